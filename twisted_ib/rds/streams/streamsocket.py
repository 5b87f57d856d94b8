"""
The RDS socket that carries streams.

A L{StreamSocket} is the socket's datagram protocol.  It passes datagrams to the table of sessions,
notifies the transports, and sends the sessions' frames.  A listening port and any number of clients may
share one; it is closed when neither a user nor a session needs it.

Data written while the application is being called is sent after that call; otherwise the first write of a
turn is sent at once, and further ones together in the next turn.

All streams share the socket's send budget.  If no room was freed for some seconds, the peers with most of
the queued data, which do not read, lose their streams.
"""

from __future__ import annotations

from collections import deque
from secrets import randbits
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.protocol import DatagramProtocol
from twisted.python import log
from twisted.python.failure import Failure
from zope.interface import implementer

from twisted_ib.errors import HCAError, PeerGoneError, ResourceLimitError
from twisted_ib.interfaces import IRDSProtocol
from twisted_ib.rds.protocol.frames import EndReason
from twisted_ib.rds.protocol.streammachine import StreamEvent, StreamMachine, StreamState
from twisted_ib.rds.protocol.streams import Streams
from twisted_ib.rds.streams.transport import StreamTransport

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall, IReactorTime


#: How long a socket may be without any room before the peers with most of the queued data lose their
#: streams, in seconds.
RDS_STREAM_STALL_SECONDS = 5.0

#: The reactor's attribute with its stream sockets, by device, address and port.
_SOCKETS = "_rdsStreamSockets"
#: Errors that make a destination unusable.
_UNUSABLE = (HCAError, OSError, ValueError)

Key = tuple["str | None", str, int]


def listenRDS(*arguments: Any, **named: Any) -> Any:
    """
    Open the socket: see L{twisted_ib.rds.port.listenRDS}.
    """
    from twisted_ib.rds import port

    return port.listenRDS(*arguments, **named)


@implementer(IRDSProtocol)
class StreamSocket(DatagramProtocol):
    """
    The streams of one RDS socket.

    @ivar reactor: the reactor; everything here belongs to its thread.
    @ivar port: the port number.
    @ivar streams: the table of sessions.
    @ivar server: the port that accepts streams, or L{None}.
    @ivar users: the users of the socket besides its streams.
    """

    noisy = False

    def __init__(self, reactor: IReactorTime, key: Key) -> None:
        """
        Open nothing; see L{socketFor}.
        """
        self.reactor = reactor
        self._key = key
        self.interface = key[1]
        self.streams = Streams(randbits)
        self.server: Any = None
        self.users: set[object] = set()
        self.port = 0
        self._ready: dict[StreamMachine, None] = {}
        self._looks: dict[StreamTransport, None] = {}
        self._congested: dict[tuple[str, int], dict[StreamMachine, None]] = {}
        self._unsent: deque[tuple[bytes, tuple[str, int], StreamMachine | None]] = deque()
        self._inCall = self._paused = self._closed = False
        self._turn: IDelayedCall | None = None
        self._timer: IDelayedCall | None = None
        self._stall: IDelayedCall | None = None
        self._resumes = 0
        self._due = 0.0
        self._closing: Deferred[None] | None = None

    # -- the socket

    def open(self) -> None:
        """
        Open the socket.

        @raise CannotListenError: the port or the address is not available.
        """
        device, interface, port = self._key
        self._listening = listenRDS(self.reactor, port, self, interface=interface, device=device)
        self.port = self._listening.getHost().port
        network = getattr(self._listening, "network", None)
        if network is not None:
            self.streams.counters = network.counters

    def startProtocol(self) -> None:
        # As its producer this learns when it is full.
        register = getattr(self.transport, "registerProducer", None)
        if register is not None:
            register(self, True)

    def pauseProducing(self) -> None:
        """
        The socket's send budget is used up.
        """
        self._paused = True
        if self._stall is None:
            self._resumes = 0
            self._stall = self.reactor.callLater(RDS_STREAM_STALL_SECONDS, self._stalled)

    def resumeProducing(self) -> None:
        """
        The socket has room.
        """
        self._paused = False
        self._resumes += 1
        self._wantTurn()

    def stopProducing(self) -> None:
        """
        The socket is closing.
        """
        self._paused = True

    def doStop(self) -> None:
        super().doStop()
        self._closed = True
        for session in list(self.streams.sessions.values()):
            session.vanished()
            self._tellSession(session)
        self._cancel()
        self._forget()

    def release(self, user: object) -> Deferred[None] | None:
        """
        End a user's need of the socket; it is closed when it has no streams left.

        @return: a Deferred that fires when it is closed, if it is being closed.
        """
        self.users.discard(user)
        return self._closeIfIdle()

    def _closeIfIdle(self) -> Deferred[None] | None:
        if self.users or self.streams.sessions or self._unsent or self._closed:
            return self._closing
        self._closed = True
        self._cancel()
        self._forget()
        self._closing = maybeDeferred(self._listening.stopListening)
        self._closing.addErrback(lambda failure: log.err(failure))
        return self._closing

    def _forget(self) -> None:
        sockets = getattr(self.reactor, _SOCKETS)
        if sockets.get(self._name()) is self:
            del sockets[self._name()]

    def _name(self) -> Key:
        return (*self._key[:2], self.port)

    def localHost(self, peer: str) -> str:
        """
        @return: the socket's address towards a peer.
        """
        return self.interface or peer

    def isServed(self, address: tuple[str, int]) -> bool | None:
        """
        @return: whether some process has bound a port; L{None} if that cannot be known.
        """
        network = getattr(self._listening, "network", None)
        serves = None if network is None else getattr(network.medium, "serves", None)
        try:
            return None if serves is None else serves(*address)
        except _UNUSABLE:
            return None

    # -- IRDSProtocol

    def destinationCongested(self, addr: tuple[str, int]) -> None:
        # Sessions with that destination wait, so that the others do not.
        self._congested.setdefault(addr, {})

    def destinationCleared(self, addr: tuple[str, int]) -> None:
        self._ready.update(self._congested.pop(addr, {}))
        self._wantTurn()

    def peerGone(self, host: str, reason: Exception) -> None:
        # End the sessions with a host; where processes share it, those with ports that none has bound.
        # Protocols are called below: their writes wait until all are notified.
        outer, self._inCall = self._inCall, True
        try:
            for session in list(self.streams.sessions.values()):
                if session.address[0] == host and not self.isServed(session.address):
                    session.vanished()
                    self._tellSession(session)
                    self._ready[session] = None
        finally:
            self._inCall = outer
        self._wantTurn()

    def processGone(self, host: str) -> None:
        """
        One of the processes that share a host's address is gone: see L{twisted_ib.rds.media.rc}.
        """
        self.peerGone(host, PeerGoneError("the process is gone"))

    # -- streams

    def connect(self, address: tuple[str, int], user: Any) -> StreamMachine | None:
        """
        Open a stream to a peer.

        @param user: gets C{sessionOpened(session)} or C{sessionFailed(session, reason)}.
        @return: the session; L{None} if there are too many.
        """
        session = self.streams.open(address, self.reactor.seconds())
        if session is not None:
            session.user = user
            self.touch(session)
        return session

    def datagramReceived(self, datagram: bytes, addr: Any) -> None:
        if self._closed:
            return
        session = self.streams.received(datagram, addr, self.reactor.seconds())
        outer, self._inCall = self._inCall, True
        try:
            if session is not None:
                if session.state is StreamState.ASKED:
                    self._asked(session)
                if session.arrived or session.events:
                    self._tellSession(session)
                self._ready[session] = None
            if self.streams.others:
                self._others()
        finally:
            self._inCall = outer
        if not outer:
            self.flush()

    def _others(self) -> None:
        others, self.streams.others = self.streams.others, []
        for session in others:
            self._tellSession(session)
            self._ready[session] = None

    def _asked(self, session: StreamMachine) -> None:
        server = self.server
        transport = None
        if server is not None:
            try:
                transport = server.asked(session)
            except BaseException:
                log.err()
        if transport is None:
            session.refuse(EndReason.UNWANTED)
            # The application was not told of the session, so it is not told of its end.
            session.events.clear()

    def _tellSession(self, session: StreamMachine) -> None:
        user = session.user
        if isinstance(user, StreamTransport):
            user.arrived()
            return
        while session.events:
            event, reason = session.events.popleft()
            user, session.user = session.user, None
            if user is None:
                continue
            if event is StreamEvent.CONNECTED:
                user.sessionOpened(session)
            else:
                user.sessionFailed(session, reason)
            if isinstance(session.user, StreamTransport):
                session.user.arrived()
                return

    def ended(self, transport: StreamTransport, reason: Failure) -> None:
        """
        A protocol was told that its connection ended.
        """
        connector = getattr(transport, "connector", None)
        if connector is not None:
            try:
                connector.connectionLost(reason)
            except BaseException:
                log.err()
        self.touch(transport.session)

    # -- sending

    def touch(self, session: StreamMachine) -> None:
        """
        A session may have output, or be finished.
        """
        if self._inCall or self._paused:
            self._ready[session] = None
            return
        if self._turn is None:
            # The first of a turn is sent at once, for latency; no application code is called from here.
            while self._send(session):
                pass
            self._wantTurn()
        self._ready[session] = None

    def look(self, transport: StreamTransport) -> None:
        """
        A protocol reads again: deliver in the next turn.
        """
        self._looks[transport] = None
        self._wantTurn()

    def _wantTurn(self) -> None:
        if self._turn is None and not self._closed:
            self._turn = self.reactor.callLater(0, self._nextTurn)

    def _nextTurn(self) -> None:
        self._turn = None
        self._inCall = True
        try:
            looks, self._looks = self._looks, {}
            for transport in looks:
                transport.arrived()
                self._ready[transport.session] = None
        finally:
            self._inCall = False
        self.flush()

    def flush(self) -> None:
        """
        Send pending frames, as far as the socket has room, and resume producers.
        """
        ready = self._ready
        self._inCall = True
        try:
            # Frames that the socket refused go first: the order within a stream is the order of writes.
            while self._unsent and not self._paused:
                self._write(*self._unsent.popleft())
            answers = self.streams.answers
            while answers and not self._paused:
                self._write(*answers.popleft(), None)
            while ready and not self._paused:
                session = next(iter(ready))
                del ready[session]
                while self._send(session):
                    pass
                if self._paused:
                    # The session may have further frames.
                    ready[session] = None
                    break
                if not session.queuedBytes and isinstance(session.user, StreamTransport):
                    user = session.user
                    if user.producer is not None or user.disconnecting or user._finishing:
                        user.drained()
                        if session.hasOutput():
                            ready[session] = None
                if session.events:
                    self._tellSession(session)
                if session.state is StreamState.CLOSED:
                    self._congested.get(session.address, {}).pop(session, None)
                    self.streams.settle(session)
        finally:
            self._inCall = False
        self._schedule()
        if not self.streams.sessions and not self.users:
            self._closeIfIdle()

    def _send(self, session: StreamMachine) -> bool:
        if self._paused or self._closed:
            return False
        if self._congested and session.address in self._congested:
            if session.state is StreamState.CLOSED:
                # The last frames are dropped: the peer learns by GONE when it sends something.
                while session.nextOutput() is not None:
                    pass
            else:
                self._congested[session.address][session] = None
            return False
        data = session.nextOutput()
        if data is None:
            return False
        self._write(data, session.address, session)
        return True

    def _write(self, data: bytes, address: tuple[str, int], session: StreamMachine | None) -> None:
        transport: Any = self.transport
        try:
            transport.write(data, address)
        except ResourceLimitError:
            # The send budget is used up; C{resumeProducing} continues.
            self.pauseProducing()
            self._unsent.appendleft((data, address, session))
        except _UNUSABLE as reason:
            self.streams.counters["stream_unreachable"] += 1
            if session is not None and session.state is not StreamState.CLOSED:
                session.vanished()
                self._failed(session, reason)

    def _failed(self, session: StreamMachine, reason: Exception) -> None:
        user = session.user
        if user is not None and not isinstance(user, StreamTransport):
            user.unreachable = reason
        self._ready[session] = None
        self._wantTurn()

    # -- timers

    def _schedule(self) -> None:
        streams = self.streams
        if self._timer is not None and streams.sessions and not streams.opening:
            # Without unanswered OPENs the deadline can only move later: the timer re-arms itself then.
            return
        deadline = streams.deadline()
        if deadline is None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            return
        if self._timer is not None:
            if self._due <= deadline:
                return
            self._timer.cancel()
        self._due = deadline
        delay = max(0.0, deadline - self.reactor.seconds())
        self._timer = self.reactor.callLater(delay, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._inCall = True
        try:
            for session in self.streams.tick(self.reactor.seconds()):
                self._tellSession(session)
                self._ready[session] = None
        finally:
            self._inCall = False
        self.flush()

    def _stalled(self) -> None:
        # All streams share the send budget: a few peers that do not read must not keep it from the others
        # for ever.
        self._stall = None
        if not self._paused or self._closed:
            return
        transport: Any = self.transport
        addresses = [] if self._resumes else transport.largestBacklogs()
        self.pauseProducing()
        for address in addresses:
            self.streams.counters["stream_stalled"] += 1
            self._giveUp(address)

    def _giveUp(self, address: tuple[str, int]) -> None:
        try:
            # The socket is paused: writes in these calls wait.  What is cancelled may end that, and a turn is
            # due then.
            for session in self.streams.peerGone(address):
                self._tellSession(session)
                self._ready[session] = None
            self._unsent = deque(each for each in self._unsent if each[1] != address)
            transport: Any = self.transport
            # RDS_CANCEL_SENT_TO in Linux uapi/linux/rds.h: frees the budget of messages that are not
            # acknowledged.
            transport.cancel(address)
            self.destinationCleared(address)
        except _UNUSABLE as reason:
            log.err(reason)
        self._wantTurn()

    def _cancel(self) -> None:
        for name in ("_turn", "_timer", "_stall"):
            call = getattr(self, name)
            setattr(self, name, None)
            if call is not None and call.active():
                call.cancel()


def socketFor(
    reactor: IReactorTime, device: str | None, interface: str, port: int, user: object
) -> StreamSocket:
    """
    Find the stream socket of a port, or open one.

    @param port: 0 for a new socket on any port.
    @param user: uses the socket until C{release}.
    @raise CannotListenError: the port or the address is not available.
    """
    sockets: dict[Key, StreamSocket] | None = getattr(reactor, _SOCKETS, None)
    if sockets is None:
        sockets = {}
        setattr(reactor, _SOCKETS, sockets)
    socket = sockets.get((device, interface, port)) if port else None
    if socket is None:
        socket = StreamSocket(reactor, (device, interface, port))
        socket.open()
        sockets[socket._name()] = socket
    socket.users.add(user)
    return socket
