"""
The stream sessions of one RDS socket: a pure table that finds the session of a datagram.

It stands above L{twisted_ib.rds.protocol.streammachine}: datagrams, commands and C{now} go in; sessions
with output or events, answers to unknown senders, and a deadline come out.  A session stays in the table
until its last frame and all received data were consumed.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from twisted_ib import limits
from twisted_ib.rds.protocol.frames import HEADER, HEADER_BYTES, MAGIC, VERSION, EndReason, FrameKind, frame
from twisted_ib.rds.protocol.streammachine import StreamMachine, StreamState

#: Received bytes that all streams of one port may hold for protocols that do not read.
RDS_STREAMS_HELD = 128 * 1024 * 1024
#: Answers to datagrams without a session that may wait; further ones are dropped.
RDS_STREAM_ANSWERS = 256
RDS_STREAM_PROBE_SECONDS = 10.0

_unpack = HEADER.unpack_from
_DATA = int(FrameKind.DATA)
#: Kinds that are answered GONE if the session is unknown: their sender believes that it exists.  GONE is
#: never answered, else two ends could answer each other for ever.
_ANSWERED = frozenset([FrameKind.ACCEPT, FrameKind.DATA, FrameKind.WINDOW, FrameKind.PROBE, FrameKind.FIN])
#: Kinds whose session field is the sender's number.
_BY_REMOTE = frozenset([FrameKind.OPEN, FrameKind.GONE])


class Streams:
    """
    The sessions of one socket.

    @ivar sessions: by our session numbers.
    @ivar answers: datagrams for senders without a session, each with its (host, port).
    @ivar others: sessions ended by a datagram for another one: the caller of C{received} takes them.
    @ivar listening: whether peers may open streams.
    @ivar counters: refusals and malformed frames, by name.
    @ivar held: received bytes that wait for applications.
    @ivar opening: sessions whose OPEN is unanswered.
    """

    def __init__(self, randomBits: Callable[[int], int]) -> None:
        """
        @param randomBits: gives that many random bits, unpredictable for peers.
        """
        self._randomBits = randomBits
        self.counters: dict[str, int] = Counter()
        self.sessions: dict[int, StreamMachine] = {}
        self.answers: deque[tuple[bytes, tuple[str, int]]] = deque()
        self.others: list[StreamMachine] = []
        self.listening = False
        self.held = 0
        self._byRemote: dict[tuple[tuple[str, int], int], StreamMachine] = {}
        self._perPeer: Counter[tuple[str, int]] = Counter()
        self.opening: dict[StreamMachine, None] = {}
        self._watched = 0.0

    def __len__(self) -> int:
        return len(self.sessions)

    # -- sessions

    def open(self, address: tuple[str, int], now: float) -> StreamMachine | None:
        """
        Open a stream to a peer.

        @return: the session; L{None} if there are too many.
        """
        session = self._make(address, now)
        if session is not None:
            self.opening[session] = None
            session.open(now)
        return session

    def _make(self, address: tuple[str, int], now: float) -> StreamMachine | None:
        if len(self.sessions) >= limits.RDS_STREAMS or self._perPeer[address] >= limits.RDS_STREAMS_PER_PEER:
            return None
        if not self.sessions:
            self._watched = now
        # Unpredictable, as TCP's initial sequence numbers are (RFC 6528): whoever guesses one could inject
        # data.
        number = self._randomBits(64)
        while number in self.sessions:
            number = self._randomBits(64)
        session = self.sessions[number] = StreamMachine(self, address, number)
        self._perPeer[address] += 1
        return session

    def settle(self, session: StreamMachine) -> None:
        """
        Remove a session that is closed, has no output left and no data or event that the application has
        not seen.
        """
        if session.state is not StreamState.CLOSED or session.arrived or session.hasOutput():
            return
        # Removed before; the number may have been drawn again since.
        if self.sessions.get(session.number) is not session:
            return
        del self.sessions[session.number]
        self.opening.pop(session, None)
        self._byRemote.pop((session.address, session.remote), None)
        self._perPeer[session.address] -= 1
        if not self._perPeer[session.address]:
            del self._perPeer[session.address]

    # -- receiving

    def received(self, data: bytes, address: tuple[str, int], now: float) -> StreamMachine | None:
        """
        Process a datagram.

        @param address: the sender's (host, port).
        @return: its session, which may have events or output; in state ASKED it wants C{accept} or
            C{refuse}.  L{None} if there is none.
        """
        length = len(data)
        if length < HEADER_BYTES:
            self.counters["stream_plain_datagrams"] += 1
            return None
        magic, version, kind, reason, number, offset, window = _unpack(data)
        if magic != MAGIC:
            self.counters["stream_plain_datagrams"] += 1
            return None
        if version != VERSION:
            self._other(kind, number, address)
            return None
        # Only DATA has a body: extra bytes in another kind show a broken or forged sender.
        if kind != _DATA and length != HEADER_BYTES:
            self.counters["stream_bad_frames"] += 1
            return None
        if kind in _BY_REMOTE:
            session = self._byRemote.get((address, number))
            if session is None and kind == FrameKind.OPEN:
                return self._asked(address, number, window, now)
        else:
            session = self.sessions.get(number)
            # The number alone is no proof: the sender must be the session's peer.
            if session is not None and session.address != address:
                session = None
        if session is None:
            self._stranger(kind, number, address)
            return None
        session.received(kind, reason, offset, window, data, HEADER_BYTES)
        if session in self.opening and session.state is not StreamState.OPENING:
            del self.opening[session]
            # The peer accepted with a number that another session has: its OPEN and GONE would be
            # ambiguous.
            if session.state is StreamState.OPEN and not self._known(session):
                session.abort(EndReason.VIOLATION)
        if self.held > RDS_STREAMS_HELD:
            self._tooMuch()
        return session

    def _known(self, session: StreamMachine) -> bool:
        # Whether no other session has the peer's number.
        return self._byRemote.setdefault((session.address, session.remote), session) is session

    def _asked(self, address: tuple[str, int], number: int, window: int, now: float) -> StreamMachine | None:
        if not self.listening:
            self._answer(frame(FrameKind.REFUSE, number, reason=EndReason.NO_LISTENER), address)
            return None
        session = self._make(address, now)
        if session is None:
            # Refused without any state, so a flood of OPENs costs no memory.
            self.counters["stream_too_many"] += 1
            self._answer(frame(FrameKind.REFUSE, number, reason=EndReason.TOO_MANY), address)
            return None
        session.asked(number, window)
        self._byRemote[address, number] = session
        return session

    def _other(self, kind: int, number: int, address: tuple[str, int]) -> None:
        self.counters["stream_bad_version"] += 1
        if kind == FrameKind.OPEN:
            self._answer(frame(FrameKind.REFUSE, number, reason=EndReason.VERSION), address)

    def _stranger(self, kind: int, number: int, address: tuple[str, int]) -> None:
        self.counters["stream_unknown_session"] += 1
        if kind in _ANSWERED:
            self._answer(frame(FrameKind.GONE, number), address)

    def _answer(self, data: bytes, address: tuple[str, int]) -> None:
        if len(self.answers) < RDS_STREAM_ANSWERS:
            self.answers.append((data, address))
        else:
            self.counters["stream_answers_dropped"] += 1

    def _tooMuch(self) -> None:
        # The session that holds most is reset: it is the one whose application does not read.
        piece = limits.RDS_STREAM_PIECE
        most = max(self.sessions.values(), key=lambda each: each.arrivedBytes + piece * len(each.arrived))
        self.counters["stream_overheld"] += 1
        most.resetForMemory()
        self.others.append(most)

    # -- timers

    def deadline(self) -> float | None:
        """
        @return: when C{tick} is due; L{None} for never.
        """
        if not self.sessions:
            return None
        due = self._watched + RDS_STREAM_PROBE_SECONDS
        return min([due, *[session.deadline for session in self.opening]])

    def tick(self, now: float) -> list[StreamMachine]:
        """
        Repeat OPENs and probe silent peers, where due.

        @return: the sessions that have output or events now.
        """
        for session in self.opening:
            session.tick(now)
        found = [session for session in self.opening if session.hasOutput()]
        if now >= self._watched + RDS_STREAM_PROBE_SECONDS:
            # One timer for all sessions: a timer for each would be re-armed by each frame.
            self._watched = now
            for session in self.sessions.values():
                session.watch()
                if session.events or session.hasOutput():
                    found.append(session)
        return list(dict.fromkeys(found))

    def peerGone(self, address: tuple[str, int] | str) -> list[StreamMachine]:
        """
        A peer is gone for good.

        @param address: one socket (host, port), or a host.
        @return: the sessions with it.
        """
        host = isinstance(address, str)
        found = [
            session
            for session in self.sessions.values()
            if (session.address[0] if host else session.address) == address
        ]
        for session in found:
            session.vanished()
        return found
