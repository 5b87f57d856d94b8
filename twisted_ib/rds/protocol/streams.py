"""
All sessions of one RDS socket: which datagram is for which of them, and which is for none.

A pure table above L{twisted_ib.rds.protocol.streammachine}: datagrams, commands and C{now} go in; sessions
that have something to say or to tell, answers for strangers and a deadline come out.  A session stays in
the table until its last frame, and all that arrived, has been taken.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from twisted_ib import limits
from twisted_ib.rds.protocol.frames import HEADER, HEADER_BYTES, MAGIC, VERSION, FrameKind, Reason, frame
from twisted_ib.rds.protocol.streammachine import StreamMachine, StreamState

#: Bytes that all streams of one port hold for protocols that do not read.
RDS_STREAMS_HELD = 128 * 1024 * 1024
#: Answers to datagrams of no stream that wait; more are dropped.
RDS_STREAM_ANSWERS = 256
RDS_STREAM_PROBE_SECONDS = 10.0

_unpack = HEADER.unpack_from
_DATA = int(FrameKind.DATA)
#: What is answered when nobody has the session: what somebody says who thinks that there is one.
_ANSWERED = frozenset([FrameKind.ACCEPT, FrameKind.DATA, FrameKind.WINDOW, FrameKind.PROBE, FrameKind.FIN])
#: The kinds that name the session by the number of the end which sends them.
_BY_REMOTE = frozenset([FrameKind.OPEN, FrameKind.GONE])


class Streams:
    """
    The sessions of one socket.

    @ivar sessions: Them, by our numbers.
    @ivar answers: Pairs of a datagram and whereto, for those who have no session.
    @ivar others: Sessions that what came for others has ended: who calls C{received} takes them.
    @ivar listening: Whether peers may ask for streams.
    @ivar counters: What was refused or made no sense, by name.
    @ivar held: Bytes that wait for applications.
    @ivar opening: Those that have asked and are not answered.
    """

    def __init__(self, randomBits: Callable[[int], int]) -> None:
        """
        @param randomBits: Gives that many random bits, which nobody can guess.
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
        """
        @return: How many sessions there are.
        """
        return len(self.sessions)

    # -- sessions

    def open(self, address: tuple[str, int], now: float) -> StreamMachine | None:
        """
        Ask a peer for a stream.

        @return: The session; L{None} if there are too many.
        """
        session = self._make(address, now)
        if session is not None:
            self.opening[session] = None
            session.open(now)
        return session

    def _make(self, address: tuple[str, int], now: float) -> StreamMachine | None:
        if len(self.sessions) >= limits.RDS_STREAMS or self._perPeer[address] >= limits.RDS_STREAMS_PER_PEER:
            if not self._perPeer[address]:
                del self._perPeer[address]
            return None
        if not self.sessions:
            self._watched = now
        number = self._randomBits(64)
        while number in self.sessions:
            number = self._randomBits(64)
        session = self.sessions[number] = StreamMachine(self, address, number)
        self._perPeer[address] += 1
        return session

    def settle(self, session: StreamMachine) -> None:
        """
        Forget a session that is over, has nothing more to say and nothing that the application
        has not got.
        """
        if session.state is not StreamState.CLOSED or session.arrived or session.hasOutput():
            return
        if self.sessions.get(session.number) is not session:
            return
        del self.sessions[session.number]
        self.opening.pop(session, None)
        self._byRemote.pop((session.address, session.remote), None)
        self._perPeer[session.address] -= 1
        if not self._perPeer[session.address]:
            del self._perPeer[session.address]

    # -- what comes

    def received(self, data: bytes, address: tuple[str, int], now: float) -> StreamMachine | None:
        """
        A datagram came.

        @param address: Whose socket sent it.
        @return: The session that it was for, which may have something to tell or to say; one in
            state ASKED wants to be accepted or refused.  L{None} if it was for none.
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
        if kind != _DATA and length != HEADER_BYTES:
            self.counters["stream_bad_frames"] += 1
            return None
        if kind in _BY_REMOTE:
            session = self._byRemote.get((address, number))
            if session is None and kind == FrameKind.OPEN:
                return self._asked(address, number, window, now)
        else:
            session = self.sessions.get(number)
            if session is not None and session.address != address:
                session = None
        if session is None:
            self._stranger(kind, number, address)
            return None
        session.received(kind, reason, offset, window, data, HEADER_BYTES)
        if session in self.opening and session.state is not StreamState.OPENING:
            del self.opening[session]
            if session.state is StreamState.OPEN and not self._known(session):
                session.abort(Reason.VIOLATION)
        if self.held > RDS_STREAMS_HELD:
            self._tooMuch()
        return session

    def _known(self, session: StreamMachine) -> bool:
        """
        A peer accepted: remember its number.

        @return: Whether no other session has it.
        """
        return self._byRemote.setdefault((session.address, session.remote), session) is session

    def _asked(self, address: tuple[str, int], number: int, window: int, now: float) -> StreamMachine | None:
        if not self.listening:
            self._answer(frame(FrameKind.REFUSE, number, reason=Reason.NO_LISTENER), address)
            return None
        session = self._make(address, now)
        if session is None:
            self.counters["stream_too_many"] += 1
            self._answer(frame(FrameKind.REFUSE, number, reason=Reason.TOO_MANY), address)
            return None
        session.asked(number, window)
        self._byRemote[address, number] = session
        return session

    def _other(self, kind: int, number: int, address: tuple[str, int]) -> None:
        self.counters["stream_bad_version"] += 1
        if kind == FrameKind.OPEN:
            self._answer(frame(FrameKind.REFUSE, number, reason=Reason.VERSION), address)

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
        """
        Too much waits for applications: the session that holds most pays.
        """
        piece = limits.RDS_STREAM_PIECE
        most = max(self.sessions.values(), key=lambda each: each.arrivedBytes + piece * len(each.arrived))
        self.counters["stream_overheld"] += 1
        most.sacrifice()
        self.others.append(most)

    # -- time

    def deadline(self) -> float | None:
        """
        @return: When C{tick} is to be called; L{None} for never.
        """
        if not self.sessions:
            return None
        due = self._watched + RDS_STREAM_PROBE_SECONDS
        return min([due, *[session.deadline for session in self.opening]])

    def tick(self, now: float) -> list[StreamMachine]:
        """
        Do what is due.

        @return: The sessions that have something to say or to tell now.
        """
        for session in self.opening:
            session.tick(now)
        found = [session for session in self.opening if session.hasOutput()]
        if now >= self._watched + RDS_STREAM_PROBE_SECONDS:
            self._watched = now
            for session in self.sessions.values():
                session.watch()
                if session.events or session.hasOutput():
                    found.append(session)
        return list(dict.fromkeys(found))

    def peerGone(self, address: tuple[str, int] | str) -> list[StreamMachine]:
        """
        The socket, or all of a host, at C{address} is gone for good.

        @return: The sessions that were with it.
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
