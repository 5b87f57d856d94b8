"""
The state machine of one end of a stream over reliable datagrams, without I/O, clock or Twisted.

L{twisted_ib.rds.protocol.frames} documents the frames.  The window works as TCP's does (RFC 9293 section
3.8.6); there is no retransmission, as RDS has it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from attrs import define, field

from twisted_ib import limits
from twisted_ib.hca.base.machine import Machine
from twisted_ib.rds.protocol.frames import HEADER, MAGIC, VERSION, EndReason, FrameKind, frame

#: Bytes of a stream in one datagram: with the frame's header one RDS fragment between processes of a host.
RDS_SEGMENT = 64 * 1024 - 32
#: The receive window, in bytes.
RDS_STREAM_WINDOW = 512 * 1024
#: The interval of repeated OPENs, in seconds.
RDS_STREAM_OPEN_SECONDS = 1.0
#: Unanswered probes after which a peer is considered dead.
RDS_STREAM_PROBES = 3

_pack = HEADER.pack


class StreamState(IntEnum):
    """
    The states of a session.
    """

    #: OPEN was sent.
    OPENING = 0
    #: OPEN was received; the application has not decided yet.
    ASKED = 1
    #: Established, perhaps in one direction only (half closed, RFC 9293 section 3.6.1).
    OPEN = 2
    #: Closed.
    CLOSED = 3


class StreamEvent(IntEnum):
    """
    The events of a session.
    """

    #: The peer accepted.
    CONNECTED = 0
    #: The peer has ended its direction; the data before it is in C{arrived}.
    END = 1
    #: The stream is closed, in order if the reason is L{EndReason.NONE}.
    CLOSED = 2


_WINDOW = RDS_STREAM_WINDOW
_SEGMENT = RDS_SEGMENT
_PIECE = limits.RDS_STREAM_PIECE
_DATA, _WINDOW_KIND, _PROBE = int(FrameKind.DATA), int(FrameKind.WINDOW), int(FrameKind.PROBE)


@define(eq=False, repr=False, weakref_slot=False)
class StreamMachine:
    """
    One end of a stream.

    Commands are methods; frames from the peer go to L{received}; L{nextOutput} gives frames to send,
    C{events} what happened, and C{arrived} the data received.

    @ivar address: the peer's (host, port).
    @ivar number: our session number.
    @ivar remote: the peer's session number; -1 while unknown.
    @ivar state: a L{StreamState}.
    @ivar events: pairs of L{StreamEvent} and L{EndReason}, oldest first; to be taken after C{arrived}.
    @ivar arrived: data for the application, oldest first.
    @ivar arrivedBytes: the bytes in C{arrived}.
    @ivar queuedBytes: bytes written and not sent yet.
    @ivar readEnd: whether the peer has ended its direction.
    @ivar ending: how this end ends its direction: 0, L{FrameKind.FIN} or L{FrameKind.CLOSE}.
    @ivar deadline: in state OPENING, when OPEN is due again.
    @ivar user: the session's user; not used here.
    """

    #: Has an attribute C{held}, the bytes that all its sessions hold.
    owner: Any
    address: tuple[str, int]
    number: int
    user: Any = None
    remote: int = -1
    state: StreamState = StreamState.OPENING
    events: deque[tuple[StreamEvent, int]] = field(factory=deque)
    arrived: deque[bytes] = field(factory=deque)
    arrivedBytes: int = 0
    queuedBytes: int = 0
    readEnd: bool = False
    ending: int = 0
    deadline: float = 0.0
    # Sending: the queue, how much of its first piece is sent, position sent (SND.NXT), and the peer's
    # limit.
    _queue: deque[bytes] = field(factory=deque)
    _head: int = 0
    _sent: int = 0
    _limit: int = 0
    # Receiving: position received (RCV.NXT), position read by the application, and the limit granted to
    # the peer.
    _received: int = 0
    _read: int = 0
    _granted: int = _WINDOW
    # Pending output: the kind and reason of a frame that goes before all others; the FIN or CLOSE that
    # was sent; a WINDOW and a PROBE that are due.
    _say: int = 0
    _sayReason: int = 0
    _said: int = 0
    _tellWindow: bool = False
    _probe: bool = False
    _heard: bool = True
    _silences: int = 0

    # -- commands

    def open(self, now: float) -> None:
        """
        Send OPEN.
        """
        self._say = FrameKind.OPEN
        self.deadline = now + RDS_STREAM_OPEN_SECONDS

    def asked(self, remote: int, window: int) -> None:
        """
        An OPEN was received; C{accept} or C{refuse} answers it.
        """
        self.state = StreamState.ASKED
        self.remote = remote
        self._limit = window

    def accept(self) -> None:
        """
        Answer OPEN with ACCEPT; also when a repeated OPEN is received.
        """
        if self.state is StreamState.ASKED or self.state is StreamState.OPEN:
            self.state = StreamState.OPEN
            self._say = FrameKind.ACCEPT

    def refuse(self, reason: int) -> None:
        """
        Answer OPEN with REFUSE.
        """
        if self.state is StreamState.ASKED:
            self._closed(reason, FrameKind.REFUSE)

    def write(self, data: bytes) -> None:
        """
        Queue bytes for sending; ignored after C{finish}, C{close} or the end.
        """
        if data and not self.ending and self.state is not StreamState.CLOSED:
            self._queue.append(data)
            self.queuedBytes += len(data)

    def finish(self) -> None:
        """
        Send FIN behind the queued bytes.
        """
        if not self.ending and self.state is not StreamState.CLOSED:
            self.ending = FrameKind.FIN

    def close(self) -> None:
        """
        Send CLOSE behind the queued bytes; received data is discarded from now on.
        """
        if self.state is not StreamState.CLOSED and self.ending != FrameKind.CLOSE:
            self.ending = FrameKind.CLOSE
            self.discardArrived()

    def discardWritten(self) -> None:
        """
        Drop the bytes that were written and not sent.
        """
        self._queue.clear()
        self._head = self.queuedBytes = 0

    def abort(self, reason: int = EndReason.ABORTED) -> None:
        """
        Close at once, with a RESET if the peer's number is known.
        """
        if self.state is StreamState.CLOSED:
            return
        self.discardArrived()
        if self.remote >= 0:
            self._closed(reason, FrameKind.RESET)
        else:
            self._closed(reason)

    def resetForMemory(self) -> None:
        """
        Drop the received data, as the socket holds too much: end the stream with L{EndReason.NO_MEMORY}.
        """
        if self.state is StreamState.CLOSED:
            # Closed in order, but the application has not read everything: it must not see an orderly end.
            self.discardArrived()
            self.events.clear()
            self.events.append((StreamEvent.CLOSED, EndReason.NO_MEMORY))
        else:
            self.abort(EndReason.NO_MEMORY)

    def vanished(self) -> None:
        """
        The peer is gone for good: close without a frame.
        """
        if self.state is not StreamState.CLOSED:
            self._closed(EndReason.GONE)

    def take(self) -> bytes:
        """
        Remove the oldest received data, for the application; this widens the window.

        @raise IndexError: there is none.
        """
        data = self.arrived.popleft()
        self.owner.held -= _PIECE
        self._consumed(len(data))
        return data

    def discardArrived(self) -> None:
        """
        Drop the received data; this widens the window too.
        """
        self.owner.held -= _PIECE * len(self.arrived)
        self.arrived.clear()
        if self.arrivedBytes:
            self._consumed(self.arrivedBytes)

    def _consumed(self, length: int) -> None:
        self.arrivedBytes -= length
        self.owner.held -= length
        self._read = read = self._read + length
        # RFC 9293 section 3.8.6.2.2: half a window at a time, else small reads would provoke a WINDOW frame
        # each (silly window syndrome).
        if read + _WINDOW - self._granted >= _WINDOW // 2:
            self._tellWindow = True

    # -- receiving

    def received(self, kind: int, reason: int, offset: int, window: int, data: bytes, start: int) -> None:
        """
        Process a frame from the peer.

        @param data: the whole datagram; the frame's data begin at C{start}.
        """
        self._heard = True
        if kind == _DATA and self.state is StreamState.OPEN and not self.readEnd:
            # The fast path for data in order; everything else is looked up in the table.
            length = len(data) - start
            position = self._received
            # RDS loses no message while both instances live: after a gap one of them was restarted.
            if offset != position:
                self.abort(EndReason.DATA_LOST)
                return
            position += length
            # The window is what bounds our memory.  An empty DATA would use memory and no window.
            if position > self._granted or not length:
                self.abort(EndReason.VIOLATION)
                return
            self._received = position
            # The limit never shrinks (RFC 9293 section 3.8.6: a receiver should not shrink its window).
            if window > self._limit:
                self._limit = window
            self.arrivedBytes += length
            self.owner.held += length
            # We have closed, but the peer may not know yet: discard the data, and let it go on until it
            # does.
            if self.ending == FrameKind.CLOSE:
                self._consumed(length)
            else:
                self.arrived.append(data[start:])
                self.owner.held += _PIECE
            return
        TRANSITIONS[self.state, kind](self, reason, offset, window)

    def _ignored(self, reason: int, offset: int, window: int) -> None:
        """
        A frame that is permitted and changes nothing.
        """

    def _violated(self, reason: int, offset: int, window: int) -> None:
        self.abort(EndReason.VIOLATION)

    def _opened(self, reason: int, offset: int, window: int) -> None:
        self.remote = offset
        self.state = StreamState.OPEN
        self._say = 0
        self._limit = window
        self.events.append((StreamEvent.CONNECTED, 0))

    def _openedAgain(self, reason: int, offset: int, window: int) -> None:
        # ACCEPT answers a repeated OPEN too; another number means that another session claims ours.
        if offset != self.remote:
            self._violated(reason, offset, window)

    def _askedAgain(self, reason: int, offset: int, window: int) -> None:
        self.accept()

    def _over(self, reason: int, offset: int, window: int) -> None:
        # A REFUSE or RESET without a reason must not look like an orderly end.
        self._closed(reason or EndReason.ABORTED)

    def _gone(self, reason: int, offset: int, window: int) -> None:
        self._closed(EndReason.GONE)

    def _position(self, offset: int, window: int) -> bool:
        if offset != self._received:
            self.abort(EndReason.DATA_LOST)
            return False
        if window > self._limit:
            self._limit = window
        return True

    def _widened(self, reason: int, offset: int, window: int) -> None:
        self._position(offset, window)

    def _probed(self, reason: int, offset: int, window: int) -> None:
        # The WINDOW is the keepalive's answer; a wrong offset in the PROBE shows lost data at once.
        if self._position(offset, window):
            self._tellWindow = True

    def _ended(self, reason: int, offset: int, window: int) -> None:
        if self.readEnd:
            self._violated(reason, offset, window)
        elif self._position(offset, window):
            self.readEnd = True
            # Both directions have ended.
            if self._said:
                self._closed(EndReason.NONE)
            elif self.ending != FrameKind.CLOSE:
                self.events.append((StreamEvent.END, 0))

    def _left(self, reason: int, offset: int, window: int) -> None:
        if self._position(offset, window):
            self.readEnd = True
            # Unsent data is dropped: the peer would discard it.  CLOSE is answered once, else both ends
            # would answer for ever.
            self._closed(EndReason.NONE, 0 if self._said else FrameKind.CLOSE)

    def _closed(self, reason: int, say: int = 0) -> None:
        self.state = StreamState.CLOSED
        self.discardWritten()
        self._tellWindow = self._probe = False
        self._say, self._sayReason = say, reason if say != FrameKind.CLOSE else 0
        self.events.append((StreamEvent.CLOSED, reason))

    # -- timers

    def tick(self, now: float) -> None:
        """
        Repeat OPEN if it is due.
        """
        if self.state is StreamState.OPENING and now >= self.deadline:
            self.open(now)

    def watch(self) -> None:
        """
        Probe the peer if it was silent; to be called each C{RDS_STREAM_PROBE_SECONDS}.
        """
        if self.state is not StreamState.OPEN:
            return
        if self._heard:
            self._heard = False
            self._silences = 0
            return
        # A keepalive as TCP's (RFC 9293 section 3.8.4), but always on: RDS itself retries for ever.
        self._silences += 1
        if self._silences > RDS_STREAM_PROBES:
            self.abort(EndReason.SILENT)
        else:
            self._probe = True

    # -- sending

    def hasOutput(self) -> bool:
        """
        @return: whether C{nextOutput} would give a frame.
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
        @return: the next frame to send, or L{None}.
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
        # Each frame carries the window, so a pending WINDOW frame is not needed any more.
        self._tellWindow = False
        self._granted = granted = self._read + _WINDOW
        return frame(kind, self.remote, self._sent, granted)

    def _sayFirst(self) -> bytes:
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
        self._said = kind = self.ending
        made = self._plain(kind)
        # The peer had ended its direction before: nothing more is expected.
        if self.readEnd:
            self._closed(EndReason.NONE)
        return made

    def _dataFrame(self, room: int) -> bytes:
        queue = self._queue
        first = queue[0]
        self._granted = granted = self._read + _WINDOW
        self._tellWindow = False
        header = _pack(MAGIC, VERSION, _DATA, 0, self.remote, self._sent, granted)
        most = room if room < _SEGMENT else _SEGMENT
        length = len(first)
        # The common case, a write that is a frame by itself: there are no pieces to put together.
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


_Action = Callable[[StreamMachine, int, int, int], None]


def _unlisted(state: StreamState, kind: int) -> _Action:
    # Late frames are normal while the peer does not know that the session is closed.
    return StreamMachine._ignored if state == StreamState.CLOSED else StreamMachine._violated


#: What is done with a frame.  DATA in order is not here, see L{StreamMachine.received}.
TRANSITIONS = Machine[StreamState, int, _Action](
    {
        (StreamState.OPENING, FrameKind.ACCEPT): StreamMachine._opened,
        (StreamState.OPENING, FrameKind.REFUSE): StreamMachine._over,
        (StreamState.OPENING, FrameKind.RESET): StreamMachine._over,
        (StreamState.OPENING, FrameKind.GONE): StreamMachine._gone,
        (StreamState.ASKED, FrameKind.OPEN): StreamMachine._ignored,
        (StreamState.ASKED, FrameKind.RESET): StreamMachine._over,
        (StreamState.ASKED, FrameKind.GONE): StreamMachine._gone,
        (StreamState.OPEN, FrameKind.OPEN): StreamMachine._askedAgain,
        (StreamState.OPEN, FrameKind.ACCEPT): StreamMachine._openedAgain,
        (StreamState.OPEN, FrameKind.WINDOW): StreamMachine._widened,
        (StreamState.OPEN, FrameKind.PROBE): StreamMachine._probed,
        (StreamState.OPEN, FrameKind.FIN): StreamMachine._ended,
        (StreamState.OPEN, FrameKind.CLOSE): StreamMachine._left,
        (StreamState.OPEN, FrameKind.RESET): StreamMachine._over,
        (StreamState.OPEN, FrameKind.GONE): StreamMachine._gone,
    },
    unlisted=_unlisted,
)
