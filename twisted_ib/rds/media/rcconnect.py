"""
Connection attempts of RDS on queue pairs: address resolution, REQ and REP.

One attempt serves all paths that wait for the same queue pair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted_ib import limits
from twisted_ib.errors import PathLostError, PeerGoneError
from twisted_ib.hca.connection import ConnectReply, ConnectRequest, Rejection
from twisted_ib.hca.connection.active import ActiveSide
from twisted_ib.hca.connection.rdmacm import RDMACMHeader
from twisted_ib.internet.channel import DeviceChannel
from twisted_ib.rds.paths.path import RDSPath

if TYPE_CHECKING:
    from twisted.internet.base import DelayedCall, ReactorBase

    from twisted_ib.hca.base.interfaces import IPeerPath
    from twisted_ib.hca.base.timers import Timer
    from twisted_ib.hca.connection.interfaces import IConnection
    from twisted_ib.hca.device.device import Device
    from twisted_ib.rds.media.rc import RCMedium
    from twisted_ib.rds.media.rcconnection import RCConnection

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
