"""
Attempts to connect a queue pair of RDS: to find the way to a peer, to ask it, and to read its answer.

One attempt serves all paths that wait for the same queue pair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted_ib import limits
from twisted_ib.errors import HCAError, PathLostError, PeerGoneError, RDSWireError
from twisted_ib.hca.wire.cm import REP, REQ, RejectReason
from twisted_ib.hca.wire.cm.rdmacm import PortSpace, RDMACMHeader, serviceID
from twisted_ib.internet.channel import DeviceChannel
from twisted_ib.rds.media.rcsend import MTU
from twisted_ib.rds.paths.path import RDSPath
from twisted_ib.rds.protocol.private import MAJOR, MINOR, PrivateData, packHello, parseHello, servicePort

if TYPE_CHECKING:
    from twisted_ib.rds.media.rc import RCMedium
    from twisted_ib.rds.media.rcconnection import RCConnection

#: Where sockets are published between processes ("RD" in ASCII); port 0 is the service of the queue
#: pairs, which nobody looks up.
PORT_SPACE = 0x5244
SESSIONS = PORT_SPACE << 16
#: Where RDS listens between hosts.
TCP_SPACE = int(PortSpace.TCP)

#: Timeout code of the CM: about half a second between two REQs.
_CM_RESPONSE_TIMEOUT = 17
_CM_RETRIES = 3
#: How often a peer is asked again that does not answer, or finds no receive.
RETRIES = 7


def received(path: RDSPath) -> int:
    """
    @return: the last sequence number that came on a path, or 0.
    """
    return max(0, path.machine.nextReceive - 1)


class Later:
    """
    Something that is done in the next turn, or in another call that it leads to.

    @ivar over: whether nobody waits for it any more.
    """

    def __init__(self, reactor: Any, call: Any, *arguments: Any) -> None:
        self.over = False
        self._call = reactor.callLater(0, self._now, call, *arguments)

    def _now(self, call: Any, *arguments: Any) -> None:
        self._call = None
        call(*arguments)

    def cancel(self) -> None:
        """
        Nobody waits for it any more.
        """
        self.over = True
        call, self._call = self._call, None
        if call is not None:
            call.cancel()


class ConnectAttempt:
    """
    An attempt to connect a queue pair.

    @ivar key: what the session will be known by.
    @ivar waiters: the paths that wait for it.
    @ivar began: when it began, in seconds.
    """

    def __init__(self, medium: RCMedium, key: Any, channel: DeviceChannel) -> None:
        self._medium = medium
        self.key = key
        self._channel = channel
        self.waiters: dict[RDSPath, None] = {}
        self.began = channel.now()
        self._local = self._remote = ""
        self._route: Any = None
        self._session: RCConnection | None = None
        self._connection: Any = None
        self._over = False

    def begin(self, path: RDSPath) -> None:
        """
        Look for the way.
        """
        device = self._channel.device
        self._local, self._remote = path.local, path.remote
        self._channel.acquire(self)
        try:
            if self._medium.addressed:
                port = servicePort(path.remote)
                route = device.connect(TCP_SPACE, path.remote, port, self, self._channel.now())
            else:
                route = device.fabric.reach(self.key, self)
        except (HCAError, OSError) as reason:
            self.failed(reason)
            return
        if self._connection is None and not self._over:
            self._route = route

    def pathReady(self, path: Any) -> None:
        """
        There is a way: ask.
        """
        if self._over:
            return
        self._route = None
        try:
            self._session = session = self._medium.newSession(self.key, self._channel)
            request = self._request(session)
            path.prepareREQ(request)
            self._connection = self._channel.device.cm.connect(path, request, self, self._channel.now())
        except HCAError as reason:
            self.failed(reason)

    def _request(self, session: RCConnection) -> REQ:
        local, remote = self._local, self._remote
        if self._medium.addressed:
            service = serviceID(TCP_SPACE, servicePort(remote))
            path = next(iter(self.waiters))
            said = PrivateData(local, remote, acknowledged=received(path)).pack()
        else:
            service, local, remote = SESSIONS, "127.0.0.1", "127.0.0.1"
            said = packHello(self._channel.device.guid)
        return REQ(
            serviceID=service,
            localQPN=session.queuePair.number,
            responderResources=limits.RDMA_READS,
            initiatorDepth=limits.RDMA_READS,
            remoteCMResponseTimeout=_CM_RESPONSE_TIMEOUT,
            localCMResponseTimeout=_CM_RESPONSE_TIMEOUT,
            maxCMRetries=_CM_RETRIES,
            retryCount=RETRIES,
            pathMTU=MTU,
            rnrRetryCount=RETRIES,
            privateData=RDMACMHeader(local, 0, remote).pack() + said,
        )

    def connectFailed(self, reason: Exception) -> None:
        """
        There is no way.
        """
        self.failed(reason)

    def replied(self, connection: Any, reply: REP) -> None:
        """
        The peer says yes.
        """
        session = self._session
        if connection is not self._connection or session is None:
            return
        now = self._channel.now()
        try:
            self._checkReply(reply)
            session.join(connection, reply)
        except HCAError as reason:
            connection.reject(RejectReason.CONSUMER_DEFINED, b"", now)
            self._connection = None
            self.failed(reason)
            return
        connection.ready(now)
        self._session = None
        self.done()
        self._medium.sessionUp(session, self.waiters)

    def _checkReply(self, reply: REP) -> None:
        """
        @raise RDSWireError: The peer speaks something else.
        """
        said = reply.privateData
        if self._medium.addressed:
            answer = PrivateData.parse(said, 6 if ":" in self._remote else 4)
            if (answer.major, answer.minor) != (MAJOR, MINOR):
                raise RDSWireError(f"the peer speaks version {answer.major}.{answer.minor}")
            assert self._session is not None
            self._session.peerHas = answer.acknowledged
        elif parseHello(said) != self.key:
            raise RDSWireError("another HCA has answered")

    def rejected(self, connection: Any, rejection: Any) -> None:
        """
        The peer says no.
        """
        if connection is self._connection:
            self._connection = None
            self.failed(PathLostError(f"the peer rejected the connection ({rejection.reason})"))

    def unreachable(self, connection: Any) -> None:
        """
        The peer does not answer.
        """
        if connection is self._connection:
            self._connection = None
            self.failed(PathLostError("the peer does not answer"))

    def pathLost(self, reason: Exception) -> None:
        """
        The peer's process is gone.
        """
        self._connection = None
        self.failed(reason)

    def peerDisconnected(self, connection: Any) -> None:
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
        It came to nothing: tell the paths, but not from within what they have called.
        """
        if self._over:
            return
        self.done()
        waiters, self.waiters = self.waiters, {}
        for path in waiters:
            self._medium.later(path, self._medium.failed, path, reason)

    def done(self) -> None:
        """
        Leave nothing behind.
        """
        self._over = True
        self._medium.calls.pop(self.key, None)
        route, self._route = self._route, None
        if route is not None:
            route.cancel()
        connection, self._connection = self._connection, None
        session, self._session = self._session, None
        if session is not None:
            if connection is not None:
                connection.abandon(self._channel.now())
            session.close()
        self._channel.release(self)


class PendingConnect:
    """
    A path that waits for a L{ConnectAttempt}.
    """

    def __init__(self, medium: RCMedium, path: RDSPath) -> None:
        self._medium = medium
        self._path = path

    def cancel(self) -> None:
        """
        It does no more.
        """
        self._medium.forgetWaiting(self._path)
