"""
Streams over reliable datagrams: one end of one stream, without I/O, clock or Twisted.

What the two ends say to each other is in L{twisted_ib.rds.protocol.frames}.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from typing import Any

from twisted_ib import limits
from twisted_ib.rds.protocol.frames import HEADER, MAGIC, VERSION, FrameKind, Reason, frame

#: Bytes of a stream in one datagram: with the frame's header one fragment of an operation fabric.
RDS_SEGMENT = 64 * 1024 - 32
#: Bytes of a stream that wait at the end that reads.
RDS_STREAM_WINDOW = 512 * 1024
#: The time between two OPENs, and how long nothing is heard until a peer is asked, in seconds.
RDS_STREAM_OPEN_SECONDS = 1.0
#: How often a peer is asked in vain: then it is gone.
RDS_STREAM_PROBES = 3

_pack = HEADER.pack


class StreamState(IntEnum):
    """
    The states of a session.
    """

    #: OPEN was sent.
    OPENING = 0
    #: OPEN was received, and nobody has said yet what becomes of it.
    ASKED = 1
    #: Data flows, perhaps in one direction only.
    OPEN = 2
    #: It is over.
    CLOSED = 3


class StreamEvent(IntEnum):
    """
    What a session tells.
    """

    #: The peer accepted.
    CONNECTED = 0
    #: The peer sends no more data; what came before is in C{arrived}.
    END = 1
    #: The stream is over, in order if the reason is L{Reason.NONE}.
    CLOSED = 2


_WINDOW = RDS_STREAM_WINDOW
_SEGMENT = RDS_SEGMENT
_PIECE = limits.RDS_STREAM_PIECE
_DATA, _WINDOW_KIND, _PROBE = int(FrameKind.DATA), int(FrameKind.WINDOW), int(FrameKind.PROBE)


class StreamMachine:
    """
    One end of a stream.

    Commands are methods; what the peer sends comes by L{received}; what is to be said is asked of
    L{nextOutput}, what happened is in C{events}, and what was read in C{arrived}.

    @ivar address: The peer's socket: host and port.
    @ivar number: Our number.
    @ivar remote: The peer's number; -1 while it is not known.
    @ivar state: A L{StreamState}.
    @ivar events: Pairs of an L{StreamEvent} and a L{Reason}, oldest first; they are behind what is in
        C{arrived}, and taken after it.
    @ivar arrived: Data for the application, oldest first.
    @ivar arrivedBytes: Their number.
    @ivar queuedBytes: How many bytes were written and have not left.
    @ivar readEnd: Whether the peer has sent all it wants to.
    @ivar ending: How this end wants to end its direction: 0, L{FrameKind.FIN} or L{FrameKind.CLOSE}.
    @ivar deadline: While OPENING: when OPEN is due again.
    @ivar user: Who uses it; nothing here does anything with it.
    """

    __slots__ = (
        "_granted",
        "_head",
        "_heard",
        "_limit",
        "_probe",
        "_queue",
        "_read",
        "_received",
        "_said",
        "_say",
        "_sayReason",
        "_sent",
        "_silences",
        "_tellWindow",
        "address",
        "arrived",
        "arrivedBytes",
        "deadline",
        "ending",
        "events",
        "number",
        "owner",
        "queuedBytes",
        "readEnd",
        "remote",
        "state",
        "user",
    )

    def __init__(self, owner: Any, address: tuple[str, int], number: int) -> None:
        """
        @param owner: Has an attribute C{held}, the bytes that wait in all its sessions.
        """
        self.owner = owner
        self.user: Any = None
        self.address = address
        self.number = number
        self.remote = -1
        self.state = StreamState.OPENING
        self.events: deque[tuple[StreamEvent, int]] = deque()
        self.arrived: deque[bytes] = deque()
        self.arrivedBytes = self.queuedBytes = 0
        self.readEnd = False
        self.ending = 0
        self.deadline = 0.0
        # Writing: what waits, how much of its first piece has left, positions.
        self._queue: deque[bytes] = deque()
        self._head = self._sent = self._limit = 0
        # Reading: positions of what came, of what the application has, of what the peer was told.
        self._received = self._read = 0
        self._granted = _WINDOW
        # What is to be said first: a kind and a reason; the end that was said; answers.
        self._say = self._sayReason = self._said = 0
        self._tellWindow = self._probe = False
        self._heard = True
        self._silences = 0

    # -- commands

    def open(self, now: float) -> None:
        """
        Ask the peer for a stream.
        """
        self._say = FrameKind.OPEN
        self.deadline = now + RDS_STREAM_OPEN_SECONDS

    def asked(self, remote: int, window: int) -> None:
        """
        The peer asks for a stream; C{accept} or C{refuse} answers.
        """
        self.state = StreamState.ASKED
        self.remote = remote
        self._limit = window

    def accept(self) -> None:
        """
        Say yes to the peer that asked; a repeated question is answered so too.
        """
        if self.state is StreamState.ASKED or self.state is StreamState.OPEN:
            self.state = StreamState.OPEN
            self._say = FrameKind.ACCEPT

    def refuse(self, reason: int) -> None:
        """
        Say no to the peer that asked.
        """
        if self.state is StreamState.ASKED:
            self._closed(reason, FrameKind.REFUSE)

    def write(self, data: bytes) -> None:
        """
        Send bytes when there is room; none after C{finish}, C{close} or the end.
        """
        if data and not self.ending and self.state is not StreamState.CLOSED:
            self._queue.append(data)
            self.queuedBytes += len(data)

    def finish(self) -> None:
        """
        Send nothing more behind what is written.
        """
        if not self.ending and self.state is not StreamState.CLOSED:
            self.ending = FrameKind.FIN

    def close(self) -> None:
        """
        End the stream behind what is written; what the peer sends is not wanted any more.
        """
        if self.state is not StreamState.CLOSED and self.ending != FrameKind.CLOSE:
            self.ending = FrameKind.CLOSE
            self.discardArrived()

    def discardWritten(self) -> None:
        """
        Forget what was written and has not left.
        """
        self._queue.clear()
        self._head = self.queuedBytes = 0

    def abort(self, reason: int = Reason.ABORTED) -> None:
        """
        End the stream now; the peer sees it as lost.
        """
        if self.state is StreamState.CLOSED:
            return
        self.discardArrived()
        if self.remote >= 0:
            self._closed(reason, FrameKind.RESET)
        else:
            self._closed(reason)

    def sacrifice(self) -> None:
        """
        Too much waits for applications, and most of it here: forget it.
        """
        if self.state is StreamState.CLOSED:
            self.discardArrived()
            self.events.clear()
            self.events.append((StreamEvent.CLOSED, Reason.NO_MEMORY))
        else:
            self.abort(Reason.NO_MEMORY)

    def vanished(self) -> None:
        """
        The peer is gone for good, whoever knows it.
        """
        if self.state is not StreamState.CLOSED:
            self._closed(Reason.GONE)

    def take(self) -> bytes:
        """
        Give the oldest data that arrived to the application, which makes room for more.

        @raise IndexError: There is none.
        """
        data = self.arrived.popleft()
        self.owner.held -= _PIECE
        self._consumed(len(data))
        return data

    def discardArrived(self) -> None:
        """
        Forget what arrived; that makes room, too.
        """
        self.owner.held -= _PIECE * len(self.arrived)
        self.arrived.clear()
        if self.arrivedBytes:
            self._consumed(self.arrivedBytes)

    def _consumed(self, length: int) -> None:
        self.arrivedBytes -= length
        self.owner.held -= length
        self._read = read = self._read + length
        if read + _WINDOW - self._granted >= _WINDOW // 2:
            self._tellWindow = True

    # -- what the peer says

    def received(self, kind: int, reason: int, offset: int, window: int, data: bytes, start: int) -> None:
        """
        A frame came from the peer for this session.

        @param data: The whole datagram; its data begin at C{start}.
        """
        self._heard = True
        if kind == _DATA and self.state is StreamState.OPEN and not self.readEnd:
            # The short way of what comes most.
            length = len(data) - start
            position = self._received
            if offset != position:
                self.abort(Reason.DATA_LOST)
                return
            position += length
            if position > self._granted or not length:
                self.abort(Reason.VIOLATION)
                return
            self._received = position
            if window > self._limit:
                self._limit = window
            self.arrivedBytes += length
            self.owner.held += length
            if self.ending == FrameKind.CLOSE:
                self._consumed(length)
            else:
                self.arrived.append(data[start:])
                self.owner.held += _PIECE
            return
        row = _TABLE[self.state]
        (row[kind] if kind < len(row) else _violated)(self, reason, offset, window)

    def _ignored(self, reason: int, offset: int, window: int) -> None:
        """
        What may come, and says nothing new.
        """

    def _violated(self, reason: int, offset: int, window: int) -> None:
        self.abort(Reason.VIOLATION)

    def _opened(self, reason: int, offset: int, window: int) -> None:
        """
        ACCEPT: there is a stream.
        """
        self.remote = offset
        self.state = StreamState.OPEN
        self._say = 0
        self._limit = window
        self.events.append((StreamEvent.CONNECTED, 0))

    def _openedAgain(self, reason: int, offset: int, window: int) -> None:
        """
        ACCEPT, because OPEN was repeated; or of somebody else with our number.
        """
        if offset != self.remote:
            self._violated(reason, offset, window)

    def _askedAgain(self, reason: int, offset: int, window: int) -> None:
        self.accept()

    def _over(self, reason: int, offset: int, window: int) -> None:
        """
        REFUSE, RESET or GONE: it is over.  In none of them stands "in order".
        """
        self._closed(reason or Reason.ABORTED)

    def _gone(self, reason: int, offset: int, window: int) -> None:
        """
        GONE: it is over.
        """
        self._closed(Reason.GONE)

    def _position(self, offset: int, window: int) -> bool:
        """
        Check the offset of a frame, and take its window.

        @return: Whether the stream goes on.
        """
        if offset != self._received:
            self.abort(Reason.DATA_LOST)
            return False
        if window > self._limit:
            self._limit = window
        return True

    def _widened(self, reason: int, offset: int, window: int) -> None:
        """
        WINDOW: there may be more room.
        """
        self._position(offset, window)

    def _probed(self, reason: int, offset: int, window: int) -> None:
        """
        PROBE: we are here.
        """
        if self._position(offset, window):
            self._tellWindow = True

    def _ended(self, reason: int, offset: int, window: int) -> None:
        """
        FIN: nothing more comes.
        """
        if self.readEnd:
            self._violated(reason, offset, window)
        elif self._position(offset, window):
            self.readEnd = True
            if self._said:
                self._closed(Reason.NONE)
            elif self.ending != FrameKind.CLOSE:
                self.events.append((StreamEvent.END, 0))

    def _left(self, reason: int, offset: int, window: int) -> None:
        """
        CLOSE: the peer sends and reads no more.
        """
        if self._position(offset, window):
            self.readEnd = True
            self._closed(Reason.NONE, 0 if self._said else FrameKind.CLOSE)

    def _closed(self, reason: int, say: int = 0) -> None:
        """
        It is over.

        @param say: The kind of the last frame, if there is one to send.
        """
        self.state = StreamState.CLOSED
        self.discardWritten()
        self._tellWindow = self._probe = False
        self._say, self._sayReason = say, reason if say != FrameKind.CLOSE else 0
        self.events.append((StreamEvent.CLOSED, reason))

    # -- time

    def tick(self, now: float) -> None:
        """
        While OPENING: ask again if it is due.
        """
        if self.state is StreamState.OPENING and now >= self.deadline:
            self.open(now)

    def watch(self) -> None:
        """
        To be called each C{RDS_STREAM_PROBE_SECONDS}: see whether the peer lives.
        """
        if self.state is not StreamState.OPEN:
            return
        if self._heard:
            self._heard = False
            self._silences = 0
            return
        self._silences += 1
        if self._silences > RDS_STREAM_PROBES:
            self.abort(Reason.SILENT)
        else:
            self._probe = True

    # -- what is to be said

    def hasOutput(self) -> bool:
        """
        @return: Whether C{nextOutput} would give something.
        """
        if self._say:
            return True
        if self.state is not StreamState.OPEN:
            return False
        if self._queue:
            if self._limit > self._sent:
                return True
        elif self.ending > self._said:
            return True
        return self._tellWindow or self._probe

    def nextOutput(self) -> bytes | None:
        """
        @return: The next frame to send, or L{None}.
        """
        if self._say:
            return self._sayFirst()
        if self.state is not StreamState.OPEN:
            return None
        if self._queue:
            room = self._limit - self._sent
            if room > 0:
                return self._dataFrame(room)
        elif self.ending > self._said:
            return self._sayEnd()
        if self._tellWindow:
            return self._plain(_WINDOW_KIND)
        if self._probe:
            self._probe = False
            return self._plain(_PROBE)
        return None

    def _plain(self, kind: int) -> bytes:
        self._tellWindow = False
        self._granted = granted = self._read + _WINDOW
        return frame(kind, self.remote, self._sent, granted)

    def _sayFirst(self) -> bytes:
        """
        Make the frame that comes before all others.
        """
        say, reason = self._say, self._sayReason
        self._say = self._sayReason = 0
        if say == FrameKind.OPEN:
            return frame(say, self.number, 0, _WINDOW)
        if say == FrameKind.ACCEPT:
            return frame(say, self.remote, self.number, _WINDOW)
        if say == FrameKind.CLOSE:
            return self._plain(say)
        return frame(say, self.remote, 0, 0, reason)

    def _sayEnd(self) -> bytes:
        """
        Make a FIN or CLOSE; that may have been the last thing to say.
        """
        self._said = kind = self.ending
        made = self._plain(kind)
        if self.readEnd:
            self._closed(Reason.NONE)
        return made

    def _dataFrame(self, room: int) -> bytes:
        """
        Make a frame of what waits.

        @param room: Bytes that the peer takes.
        """
        queue = self._queue
        first = queue[0]
        self._granted = granted = self._read + _WINDOW
        self._tellWindow = False
        header = _pack(MAGIC, VERSION, _DATA, 0, self.remote, self._sent, granted)
        most = room if room < _SEGMENT else _SEGMENT
        length = len(first)
        if not self._head and length <= most and (len(queue) == 1 or length == most):
            queue.popleft()
            self._sent += length
            self.queuedBytes -= length
            return header + first
        pieces: list[Any] = [header]
        left = most
        head = self._head
        while queue and left:
            piece = queue[0]
            length = len(piece) - head
            if length > left:
                pieces.append(memoryview(piece)[head : head + left])
                head += left
                left = 0
            else:
                pieces.append(memoryview(piece)[head:] if head else piece)
                queue.popleft()
                head = 0
                left -= length
        self._head = head
        self._sent += most - left
        self.queuedBytes -= most - left
        return b"".join(pieces)


_violated = StreamMachine._violated
_ignored = StreamMachine._ignored

#: What each kind of frame does in each state, by their numbers; the first column is no kind.
#: DATA that has its place is not here, see L{StreamMachine.received}.
_TABLE: tuple[tuple[Any, ...], ...] = tuple(
    tuple(getattr(StreamMachine, f"_{name}") for name in row.split())
    for row in (
        # -       OPEN       ACCEPT      REFUSE   DATA     WINDOW   PROBE    FIN      CLOSE    RESET    GONE
        "violated violated   opened      over     violated violated violated violated violated over     gone",
        "violated ignored    violated    violated violated violated violated violated violated over     gone",
        "violated askedAgain openedAgain violated violated widened  probed   ended    left     over     gone",
        "ignored  " * 11,
    )
)
