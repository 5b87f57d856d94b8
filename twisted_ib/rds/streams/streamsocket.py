"""
A socket of RDS that carries streams.

A L{StreamSocket} is the datagram protocol of the socket.  It gives datagrams to the table of its
streams, tells the transports what came of it, and sends what they have to say.  A port and any
number of clients may share one; it is closed when nobody needs it any more.

What is written while an application is called leaves when that call is over; else the first write
of a turn leaves at once, and those that follow, together in the next.

All streams share what the socket may have on its way.  If nothing had room for some seconds, the peers
that most of it is for, which take nothing, lose their streams.
"""

from __future__ import annotations

from collections import deque
from secrets import randbits
from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.protocol import DatagramProtocol
from twisted.python import log
from twisted.python.failure import Failure
from zope.interface import implementer

from twisted_ib.errors import HCAError, PeerGoneError, ResourceLimitError
from twisted_ib.interfaces import IRDSProtocol
from twisted_ib.rds.protocol.frames import Reason
from twisted_ib.rds.protocol.streammachine import StreamEvent, StreamMachine, StreamState
from twisted_ib.rds.protocol.streams import Streams
from twisted_ib.rds.streams.transport import StreamTransport

#: How long a socket with streams may have no room at all: then the peers that most of what waits is for
#: lose their streams, in seconds.
RDS_STREAM_STALL_SECONDS = 5.0

#: Where a reactor has its sockets with streams, by device, address and port.
_SOCKETS = "_rdsStreamSockets"
#: What both kinds of loss of the socket are to its streams.
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
    The streams of one socket.

    @ivar reactor: The reactor, whose thread everything here belongs to.
    @ivar port: The port's number.
    @ivar streams: The table of its streams.
    @ivar server: The port that accepts streams, or L{None}.
    @ivar users: Who needs the socket besides its streams.
    """

    noisy = False

    def __init__(self, reactor: Any, key: Key) -> None:
        """
        Nothing is open; see L{socketFor}.
        """
        self.reactor = reactor
        self._key = key
        self.interface = key[1]
        self.streams = Streams(randbits)
        self.server: Any = None
        self.users: set[Any] = set()
        self.port = 0
        self._ready: dict[StreamMachine, None] = {}
        self._looks: dict[StreamTransport, None] = {}
        self._congested: dict[tuple[str, int], dict[StreamMachine, None]] = {}
        self._unsent: deque[tuple[bytes, tuple[str, int], StreamMachine | None]] = deque()
        self._inCall = self._paused = self._closed = False
        self._turn: Any = None
        self._timer: Any = None
        self._stall: Any = None
        self._resumes = 0
        self._due = 0.0
        self._closing: Deferred[None] | None = None

    # -- the socket

    def open(self) -> None:
        """
        Open the socket.

        @raise CannotListenError: It cannot be had.
        """
        device, interface, port = self._key
        self._listening = listenRDS(self.reactor, port, self, interface=interface, device=device)
        self.port = self._listening.getHost().port
        network = getattr(self._listening, "network", None)
        if network is not None:
            self.streams.counters = network.counters

    def startProtocol(self) -> None:
        """
        The socket is open: hear of it when it takes no more.
        """
        register = getattr(self.transport, "registerProducer", None)
        if register is not None:
            register(self, True)

    def pauseProducing(self) -> None:
        """
        The socket has enough to send.
        """
        self._paused = True
        if self._stall is None:
            self._resumes = 0
            self._stall = self.reactor.callLater(RDS_STREAM_STALL_SECONDS, self._stalled)

    def resumeProducing(self) -> None:
        """
        The socket takes more.
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
        """
        The socket is closed, by us or with the reactor.
        """
        super().doStop()
        self._closed = True
        for session in list(self.streams.sessions.values()):
            session.vanished()
            self._tellSession(session)
        self._cancel()
        self._forget()

    def release(self, user: Any) -> Deferred[None] | None:
        """
        C{user} does not need the socket any more; when its last stream has ended it is closed.

        @return: If that is now: fires when it is closed.
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
        @return: The address that this socket has for a peer.
        """
        return self.interface or peer

    def isServed(self, address: tuple[str, int]) -> bool | None:
        """
        @return: Whether somebody has a port; L{None} if that cannot be known.
        """
        network = getattr(self._listening, "network", None)
        serves = None if network is None else getattr(network.medium, "serves", None)
        try:
            return None if serves is None else serves(*address)
        except _UNUSABLE:
            return None

    # -- what the socket tells

    def destinationCongested(self, addr: Any) -> None:
        """
        See L{IRDSProtocol}: streams with it wait, so that others do not.
        """
        self._congested.setdefault(addr, {})

    def destinationCleared(self, addr: Any) -> None:
        """
        See L{IRDSProtocol}.
        """
        self._ready.update(self._congested.pop(addr, {}))
        self._wantTurn()

    def peerGone(self, host: str, reason: Exception) -> None:
        """
        A host cannot be reached, or a process that had its address: end the streams with sockets that
        nobody has.
        """
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
        A process of a host is gone, which several have: see L{twisted_ib.rds.media.rc}.
        """
        self.peerGone(host, PeerGoneError("the process is gone"))

    # -- streams

    def connect(self, address: tuple[str, int], user: Any) -> StreamMachine | None:
        """
        Ask a peer for a stream.

        @param user: Gets C{sessionOpened(session)} or C{sessionFailed(session, reason)}.
        @return: The session; L{None} if there are too many.
        """
        session = self.streams.open(address, self.reactor.seconds())
        if session is not None:
            session.user = user
            self.touch(session)
        return session

    def datagramReceived(self, datagram: bytes, addr: Any) -> None:
        """
        A datagram came.
        """
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
            session.refuse(Reason.UNWANTED)
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
        A protocol has heard of the end.
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
        A session may have something to say, or be done.
        """
        if self._inCall or self._paused:
            self._ready[session] = None
            return
        if self._turn is None:
            # The first of this turn leaves at once; application code is not called.
            while self._send(session):
                pass
            self._wantTurn()
        self._ready[session] = None

    def look(self, transport: StreamTransport) -> None:
        """
        A protocol reads again.
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
        Send what there is to say, as far as the socket takes it, and tell who can write more.
        """
        ready = self._ready
        self._inCall = True
        try:
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
                    ready[session] = None  # There may be more.
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
        """
        Send the next frame of a session.

        @return: Whether there may be another.
        """
        if self._paused or self._closed:
            return False
        if self._congested and session.address in self._congested:
            if session.state is StreamState.CLOSED:
                # Who sends something for it later hears that it is gone.
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
            # As much waits as may; it goes on when the socket says so.
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

    # -- time

    def _schedule(self) -> None:
        """
        Be called when the next deadline of the streams passes.
        """
        streams = self.streams
        if self._timer is not None and streams.sessions and not streams.opening:
            return  # Then it only becomes later.
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
        """
        If nothing had room for a while, give up the peers that most of what waits is for: all streams
        share what the socket may send, and some must not keep it from the others.
        """
        self._stall = None
        if not self._paused or self._closed:
            return
        transport: Any = self.transport
        addresses = [] if self._resumes else transport.heaviest()
        self.pauseProducing()
        for address in addresses:
            self.streams.counters["stream_stalled"] += 1
            self._giveUp(address)

    def _giveUp(self, address: tuple[str, int]) -> None:
        """
        A socket takes nothing: end its streams, and forget what waits for it.
        """
        outer, self._inCall = self._inCall, True
        try:
            for session in self.streams.peerGone(address):
                self._tellSession(session)
                self._ready[session] = None
            self._unsent = deque(each for each in self._unsent if each[1] != address)
            transport: Any = self.transport
            transport.cancel(address)
            self.destinationCleared(address)
        except _UNUSABLE as reason:
            log.err(reason)
        finally:
            self._inCall = outer
        self._wantTurn()

    def _cancel(self) -> None:
        for name in ("_turn", "_timer", "_stall"):
            call = getattr(self, name)
            setattr(self, name, None)
            if call is not None and call.active():
                call.cancel()


def socketFor(reactor: Any, device: str | None, interface: str, port: int, user: Any) -> StreamSocket:
    """
    Find the socket with streams of a port, or open it.

    @param port: 0 for a new one on any port.
    @param user: Who needs it until it says C{release}.
    @raise CannotListenError: It cannot be had.
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
