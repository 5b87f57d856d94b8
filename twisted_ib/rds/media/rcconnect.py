"""
Connection attempts of RDS on queue pairs: address resolution, REQ and REP.

One attempt serves all paths that wait for the same queue pair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted_ib import limits
from twisted_ib.errors import PathLostError, PeerGoneError, RDSWireError
from twisted_ib.hca.connection import ConnectReply, ConnectRequest, Rejection
from twisted_ib.hca.connection.active import ActiveSide
from twisted_ib.hca.connection.rdmacm import PortSpace, RDMACMHeader, serviceID
from twisted_ib.internet.channel import DeviceChannel
from twisted_ib.rds.paths.path import RDSPath
from twisted_ib.rds.protocol.private import MAJOR, MINOR, PrivateData, packHello, parseHello, servicePort

if TYPE_CHECKING:
    from twisted.internet.base import DelayedCall, ReactorBase

    from twisted_ib.hca.base.interfaces import IPeerPath
    from twisted_ib.hca.base.timers import Timer
    from twisted_ib.hca.connection.interfaces import IConnection
    from twisted_ib.hca.device.device import Device
    from twisted_ib.rds.media.rc import RCMedium
    from twisted_ib.rds.media.rcconnection import RCConnection

#: The port space in which sockets are published between processes ("RD" in ASCII); port 0 is the REQ
#: service of an HCA, which is reached by GUID and never looked up.
PORT_SPACE = 0x5244
SESSIONS = PORT_SPACE << 16
#: The port space between hosts (RDMA_PS_TCP, as in Linux rdma_transport.c).
TCP_SPACE = int(PortSpace.TCP)

#: The path MTU code of 4096 bytes.
_MTU = 5
#: CM response timeout code: about half a second between two REQs (4.096 us * 2^17).
_CM_RESPONSE_TIMEOUT = 17
_CM_RETRIES = 3
#: How long a process may take to answer a REQ, in seconds: one that has closed its last socket lives, but
#: does not look at its HCA any more, and another may have the port meanwhile.
RDS_ANSWER_SECONDS = 4.0
#: Retries without an acknowledgement, and after RNR NAKs.  7 RNR retries are infinite, as in Linux ib_cm.c.
RETRIES = 7


def received(path: RDSPath) -> int:
    """
    @return: the last sequence number received on a path, or 0.
    """
    return max(0, path.machine.nextReceive - 1)


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
        self._medium = medium
        self.key = key
        self._channel = channel
        self.waiters: dict[RDSPath, None] = {}
        self.began = channel.now()
        self._local = self._remote = ""
        self._session: RCConnection | None = None
        self._timer: Timer | None = None

    def begin(self, path: RDSPath) -> None:
        """
        Resolve the peer.
        """
        self._local, self._remote = path.local, path.remote
        self._channel.acquire(self)
        if self._medium.traits.hasAddress:
            # As Linux ib_cm.c (rds_ib_conn_path_connect): RDMA_PS_TCP, and the port by the IP version.
            self.find(self.device.connect, TCP_SPACE, path.remote, servicePort(path.remote))
        else:
            self.find(self.device.fabric.reach, self.key)

    def pathReady(self, path: IPeerPath) -> None:
        """
        The peer is resolved: send the REQ, and wait no longer for the answer than a living peer needs.
        """
        super().pathReady(path)
        if self.connection is not None and not self._medium.traits.hasAddress:
            self._timer = self.device.timers.start(RDS_ANSWER_SECONDS, self.unanswered)

    def request(self, path: IPeerPath) -> ConnectRequest:
        """
        Create the queue pair, and the REQ.
        """
        session = self._session = self._medium.newSession(self.key, self._channel)
        local, remote = self._local, self._remote
        if self._medium.traits.hasAddress:
            service = serviceID(TCP_SPACE, servicePort(remote))
            waiter = next(iter(self.waiters))
            # Linux ib_cm.c (rds_ib_cm_fill_conn_param): the last number received goes into the REQ.
            said = PrivateData(local, remote, acknowledged=received(waiter)).pack()
        else:
            # Between processes the addresses mean nothing, but the RDMA CM header is required (IBTA vol. 1
            # annex A11).
            service, local, remote = SESSIONS, "127.0.0.1", "127.0.0.1"
            said = packHello(self.device.guid)
        return ConnectRequest(
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

    def join(self, connection: IConnection, reply: ConnectReply) -> bool:
        """
        Check the REP, and connect the queue pair.
        """
        session = self._session
        assert session is not None
        self._checkReply(reply)
        session.join(connection, reply)
        return True

    def connected(self, reply: ConnectReply) -> None:
        """
        The queue pair is the paths'.
        """
        session, self._session = self._session, None
        assert session is not None
        self.connection = None
        self.done()
        self._medium.sessionUp(session, self.waiters)

    def _checkReply(self, reply: ConnectReply) -> None:
        said = reply.privateData
        if self._medium.traits.hasAddress:
            answer = PrivateData.parse(said, 6 if ":" in self._remote else 4)
            # Linux ib_cm.c (rds_ib_cm_connect_complete): the REP has the version that the acceptor chose.
            if (answer.major, answer.minor) != (MAJOR, MINOR):
                raise RDSWireError(f"the peer speaks version {answer.major}.{answer.minor}")
            assert self._session is not None
            self._session.peerHas = answer.acknowledged
        elif parseHello(said) != self.key:
            # The path would deliver to a process that the route does not mean.
            raise RDSWireError("another HCA has answered")

    def refused(self, rejection: Rejection) -> None:
        """
        A REJ was received.
        """
        self.failed(PathLostError(f"the peer rejected the connection ({rejection.reason})"))

    def unanswered(self) -> None:
        """
        The REQ was not answered.
        """
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
        """
        The attempt failed: notify the paths in the next turn, as this may run inside a call of theirs.
        """
        if self.isOver:
            return
        self.done()
        waiters, self.waiters = self.waiters, {}
        for path in waiters:
            self._medium.later(path, self._medium.failed, path, reason)

    def done(self) -> None:
        """
        End the attempt and release its resources.
        """
        self._medium.calls.pop(self.key, None)
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        self.giveUp()
        session, self._session = self._session, None
        if session is not None:
            session.close()
        self._channel.release(self)


class PendingConnect:
    """
    The handle of a path that waits for a L{ConnectAttempt}.
    """

    def __init__(self, medium: RCMedium, path: RDSPath) -> None:
        self._medium = medium
        self._path = path

    def cancel(self) -> None:
        """
        Stop waiting.
        """
        self._medium.forgetWaiting(self._path)
