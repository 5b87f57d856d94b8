"""
Connection attempts of RDS on queue pairs: address resolution, REQ and REP.

One attempt serves all paths that wait for the same queue pair.

Connections of RDS on queue pairs that peers ask for: who sent the REQ, and what it is answered with.

A REQ between processes names the requesting HCA, one between hosts both addresses
(L{twisted_ib.rds.media.rc}).

Source: Linux 6.1 C{net/rds/ib_cm.c}, C{net/rds/rdma_transport.c}.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.errors import HCAError, PathLostError, PeerGoneError, WireError
from twisted_ib.hca.connection import ConnectReply, ConnectRequest, Rejection, RejectReason
from twisted_ib.hca.connection.active import ActiveSide
from twisted_ib.hca.connection.interfaces import IServiceListener
from twisted_ib.hca.connection.rdmacm import RDMACMHeader
from twisted_ib.internet.channel import DeviceChannel
from twisted_ib.internet.deferredaccept import HalfOpenAccept
from twisted_ib.rds.paths.path import RDSPath
from twisted_ib.rds.protocol.wire import REJECTED_VERSION

if TYPE_CHECKING:
    from twisted.internet.base import DelayedCall, ReactorBase

    from twisted_ib.hca.base.interfaces import IPeerPath
    from twisted_ib.hca.base.timers import Timer
    from twisted_ib.hca.connection.interfaces import IConnection
    from twisted_ib.hca.device.device import Device
    from twisted_ib.rds.media.rc import RCMedium
    from twisted_ib.rds.media.rcconnection import RCConnection
    from twisted_ib.structs import Packed

#: How long a connecting end rejects the peer's REQs: longer than a REQ takes to be answered, in seconds.
RDS_DUEL_SECONDS = 0.5

#: The private data of a REJ while this end is connecting.  Linux retries after zeros; a number that is no
#: reason known to it is ignored, and its attempt waits for ever (rds_rdma_cm_event_handler_cmn).
_BUSY = bytes(4)
#: What is kept of a L{HalfOpenSession} besides: C{peerHas} and C{asked}.
_KEPT: Final[Packed[tuple[int, float]]] = Struct(">Qd")

#: The path MTU code of 4096 bytes.
_MTU = 5
#: CM response timeout code: about half a second between two REQs (4.096 us * 2^17).
_CM_RESPONSE_TIMEOUT = 17
_CM_RETRIES = 3
#: Retries without an acknowledgement, and after RNR NAKs.  7 RNR retries are infinite, as in Linux ib_cm.c.
RETRIES = 7


def received(path: RDSPath) -> int:
    """
    @return: the last sequence number received on a path, or 0.
    """
    last = max(0, path.machine.nextReceive - 1)
    return last if path.pending is None else path.pending.confirmed(last)


class PendingCall:
    """
    A call in the next reactor turn, and what it leads to.

    @ivar over: whether it was cancelled.
    """

    def __init__(self, reactor: ReactorBase, call: Any, *arguments: Any) -> None:
        self.over = False
        self._call: DelayedCall | None = reactor.callLater(0, self._now, call, *arguments)

    def _now(self, call: Any, *arguments: Any) -> None:
        self._call = None
        call(*arguments)

    def cancel(self) -> None:
        """
        Cancel the call, or ignore its result.
        """
        self.over = True
        call, self._call = self._call, None
        if call is not None:
            call.cancel()


class ConnectAttempt(ActiveSide):
    """
    An attempt to connect a queue pair.

    @ivar key: the connection's key in the medium.
    @ivar waiters: the paths that wait for it.
    @ivar began: when it began, in seconds.
    """

    device: Device

    def __init__(self, medium: RCMedium, key: Any, channel: DeviceChannel) -> None:
        super().__init__(channel.device)
        self.medium = medium
        self.key = key
        self._channel = channel
        self.waiters: dict[RDSPath, None] = {}
        self.began = channel.now()
        self.local = self.remote = ""
        self.session: RCConnection | None = None
        self._timer: Timer | None = None

    def begin(self, path: RDSPath) -> None:
        """
        Resolve the peer.
        """
        self.local, self.remote = path.local, path.remote
        self._channel.acquire(self)
        self.search()

    def search(self) -> None:
        """
        Search for the path to the peer.
        """
        raise NotImplementedError

    def hello(self) -> tuple[int, str, str, bytes]:
        """
        @return: the service to ask for, both addresses in the RDMA-CM header, and the private data behind it.
        """
        raise NotImplementedError

    def checkReply(self, said: bytes) -> None:
        """
        Read the private data of the REP.

        @raise WireError: it is not that of the peer.
        """
        raise NotImplementedError

    def send(self, path: IPeerPath) -> IConnection:
        session = self.session = self.medium.newSession(self.key, self._channel)
        service, local, remote, said = self.hello()
        request = ConnectRequest(
            serviceID=service,
            localQPN=session.queuePair.number,
            responderResources=limits.RDMA_READS,
            initiatorDepth=limits.RDMA_READS,
            responseTimeout=_CM_RESPONSE_TIMEOUT,
            requestRetries=_CM_RETRIES,
            # Linux ib.h asks for one retry (RDS_IB_DEFAULT_RETRY_COUNT); seven survive a burst of loss.
            retryCount=RETRIES,
            pathMTU=_MTU,
            rnrRetryCount=RETRIES,
            privateData=RDMACMHeader(local, 0, remote).pack() + said,
        )
        return self.device.sendRequest(path, request, self, self.device.clock())

    def join(self, connection: IConnection, reply: ConnectReply) -> bool:
        session = self.session
        assert session is not None
        self.checkReply(reply.privateData)
        session.join(connection, reply)
        return True

    def connected(self, reply: ConnectReply) -> None:
        session, self.session = self.session, None
        assert session is not None
        self.connection = None
        self.done()
        self.medium.sessionUp(session, self.waiters)

    def refused(self, rejection: Rejection) -> None:
        self.failed(PathLostError(f"the peer rejected the connection ({rejection.reason})"))

    def unanswered(self) -> None:
        self.failed(PathLostError("the peer does not answer"))

    def peerDisconnected(self, connection: IConnection) -> None:
        """
        The peer has given up.
        """
        self.pathLost(PathLostError("the peer gave up"))

    def connectionLost(self, reason: Any) -> None:
        """
        The device is going.
        """
        self.failed(PeerGoneError("the device is going"))

    def failed(self, reason: Exception) -> None:
        # The paths are told in the next turn, as this may run inside a call of theirs.
        if self.isOver:
            return
        self.done()
        waiters, self.waiters = self.waiters, {}
        for path in waiters:
            self.medium.later(path, self.medium.failed, path, reason)

    def done(self) -> None:
        """
        End the attempt and release its resources.
        """
        self.medium.calls.pop(self.key, None)
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        self.giveUp()
        session, self.session = self.session, None
        if session is not None:
            session.close()
        self._channel.release(self)


class PendingConnect:
    """
    The handle of a path that waits for a L{ConnectAttempt}.
    """

    def __init__(self, medium: RCMedium, path: RDSPath) -> None:
        self.medium = medium
        self._path = path

    def cancel(self) -> None:
        """
        Stop waiting.
        """
        self.medium.forgetWaiting(self._path)


class Asked(NamedTuple):
    """
    A REQ that can be accepted: the connection's key in the medium, the private data of the REP, and the
    last sequence number that the peer has received.
    """

    key: Any
    answer: bytes
    peerHas: int


class HalfOpenSession(HalfOpenAccept):
    """
    A REQ whose queue pair is made when its sender has shown that it has the address.

    @ivar key: the connection's key in the medium.
    @ivar peerHas: see L{RCConnection<twisted_ib.rds.media.rcconnection.RCConnection>}.
    @ivar asked: when the first REQ came that this one repeats, in seconds.
    """

    __slots__ = ("asked", "key", "peerHas")

    asked: float
    key: tuple[str, str]
    peerHas: int

    def __init__(
        self, port: RequestListener, device: Any, connection: IConnection, request: Any, asked: Asked
    ):
        self.key = asked.key
        self.peerHas = asked.peerHas
        self.asked = device.clock()
        super().__init__(port, device, connection, request, asked)

    def _kept(self) -> bytes:
        return _KEPT.pack(self.peerHas, self.asked) + self._request

    def _unkept(self, kept: bytes) -> None:
        self.peerHas, self.asked = _KEPT.unpack_from(kept)
        self._request = kept[_KEPT.size :]
        # As the request was read: the device's own address, and the path's.
        self.key = self.device.fabric.address, self.connection.destination.peer.address

    def _end(self) -> None:
        self.port.medium.ceased(self)

    def _packed(self, request: ConnectRequest) -> bytes:
        # The private data has been read.
        return super()._packed(request)[: -len(request.privateData) or None]

    def close(self) -> None:
        connection = self.connection
        self._withdrawn()
        if not self.device.closed:
            self.device.disconnect(connection)

    def broken(self, reason: Exception) -> None:
        self.close()


@implementer(IServiceListener)
class RequestListener:
    """
    The listener of a medium's services; see
    L{ParkedUser<twisted_ib.hca.connection.interfaces.ParkedUser>}.

    @ivar medium: the medium.
    """

    def __init__(self, medium: RCMedium) -> None:
        self.medium = medium

    def requestWithdrawn(self, connection: IConnection) -> None:
        pass  # Each request is answered at once.

    def connectionRequested(self, connection: IConnection, request: ConnectRequest) -> None:
        medium = self.medium
        counters = medium.network.counters
        channel = medium.channelOf(connection.destination.fabric.owner)
        now = channel.now()
        try:
            asked = self.read(channel, connection, request)
        except WireError:
            counters["recv_bad_request"] += 1
            # IBTA vol. 1 12.6.7.2 reason 28: the private data has the cause, RDS_RDMA_REJ_INCOMPAT for
            # Linux.
            connection.reject(RejectReason.CONSUMER_DEFINED, REJECTED_VERSION, now)
            return
        if request.unsupported is not None:
            counters["recv_bad_request"] += 1
            connection.reject(request.unsupported, b"", now)
            return
        # A new connection would bring retransmissions that there is no memory for: the peer retries later.
        if asked is None or self._isFull(asked.key):
            connection.reject(RejectReason.CONSUMER_DEFINED, _BUSY, now)
            return
        self.accept(channel, connection, request, asked)

    def read(self, channel: DeviceChannel, connection: IConnection, request: ConnectRequest) -> Asked | None:
        """
        Read a REQ.

        @return: L{None} while it cannot be accepted.
        @raise WireError: it is wrong, or not of the one that it names.
        """
        raise NotImplementedError

    @property
    def handshake(self) -> RequestListener:
        """
        See L{HalfOpenAccept}.
        """
        return self

    def reply(self, end: Any, request: ConnectRequest, asked: Asked) -> ConnectReply:
        """
        @param end: has the queue pair.
        @return: the REP.
        """
        return ConnectReply(
            localQPN=end.queuePair.number,
            # IBTA vol. 1 12.7: the peer's initiator depth bounds our responder resources, and the other way
            # round.
            responderResources=min(limits.RDMA_READS, request.initiatorDepth),
            initiatorDepth=min(limits.RDMA_READS, request.responderResources),
            rnrRetryCount=RETRIES,
            privateData=asked.answer,
        )

    def resumed(self, connection: IConnection, number: int, kept: bytes) -> None:
        session = HalfOpenSession.resumed(self, connection, number, kept)
        self.medium.expected[session.key] = session
        parked = session.device.parking
        if self not in parked.ofListener:
            self.medium.parking.pop(parked, None)

    def establish(self, halfOpen: HalfOpenSession, request: ConnectRequest) -> None:
        """
        The RTU came, or data: make the queue pair.
        """
        medium, connection, device = self.medium, halfOpen.connection, halfOpen.device
        session = None
        try:
            channel = medium.channelOf(device)
            with device.withNumber(halfOpen):
                session = medium.newSession(halfOpen.key, channel)
            session.peerHas = halfOpen.peerHas
            session.join(connection, request)
        except HCAError:
            # The peer believes that it is connected.
            connection.user = None
            device.disconnect(connection)
            if session is not None:
                session.connection = None
                session.close()
            return
        medium.proved(session)

    def accept(
        self, channel: DeviceChannel, connection: IConnection, request: ConnectRequest, asked: Asked
    ) -> None:
        """
        Accept a REQ.
        """
        now = channel.now()
        session = None
        try:
            session = self.medium.newSession(asked.key, channel)
            session.peerHas = asked.peerHas
            reply = self.reply(session, request, asked)
            connection.destination.prepareReply(reply, request)
            # IBTA vol. 1 12.9.8: the queue pair is ready before the REP leaves, as data may precede the
            # RTU.
            session.join(connection, request)
        except HCAError:
            # IBTA vol. 1 12.6.7.2 reason 3: the peer may try again.
            connection.reject(RejectReason.NO_RESOURCES, b"", now)
        else:
            if connection.accept(reply, now):
                self.medium.accepted(session, now)
                return
        if session is not None:
            session.connection = None
            session.close()

    def _isFull(self, key: Any) -> bool:
        medium = self.medium
        return any(path.isFull() for path in medium.network.paths.values() if medium.keyOf(path) == key)
