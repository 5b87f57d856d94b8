"""
One direction of a connection: a ring of records in memory that two processes share.

All of its state is in that memory, as an end may be inherited or sent to another process at any time.  It
begins with a page of cells::

    cell     written by
    TAIL     writer    how much has been published
    BELLS    writer    how often the reader was woken: bytes sent to its socket
    HEAD     reader    how much has been consumed
    AWAKE    reader    whether it looks at TAIL now and takes what comes, so that nobody need wake it
    TAKEN    reader    how many of those bytes it has taken
    WATCHED  reader    whether its socket is waited for by others: see below
    ROOM     writer    whether it waits until half of the ring is free: SLEEPS by the cell, POLLED by its
                       socket, to which the reader then sends a byte

Counters run freely; positions are counters modulo the ring's size.  A record starts at a multiple of 64
bytes with its length and flags; one that would pass the end continues in the slack behind it.  A value that
the other side wrote is read once into a local, checked, and then used.  On x86-64 stores are seen in
program order, so publishing is one store to TAIL; "does the other side sleep?" needs a full fence, which an
uncontended lock is.

The end of the other side is that of its socket: the kernel closes it, however the last process ends that
has it.  At most one byte is in the socket while the ring is not empty.  A record is published without one
only to a reader that is awake and finds nothing before it, so that this reader takes it.  Hence the socket
is readable whenever a record waits; once it is watched, only then.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import threading
from struct import Struct
from typing import TYPE_CHECKING, Final

from twisted_ib import limits
from twisted_ib.drive.process import monotonic
from twisted_ib.drive.sleeper import acquire, fence, release
from twisted_ib.hca.base.polling import AdaptivePolling
from twisted_ib.hca.host.libc import KernelSocket
from twisted_ib.queues import futex

if TYPE_CHECKING:
    from collections.abc import Callable

#: What can be sent.
Payload = bytes | bytearray | memoryview

TAIL: Final = 0
BELLS: Final = 1
HEAD: Final = 8
AWAKE: Final = 9
TAKEN: Final = 10
WATCHED: Final = 11
ROOM: Final = 16

#: How a writer waits for room.
SLEEPS: Final = 1
POLLED: Final = 2

#: Flags of a record: whether its message begins with it, and ends with it.
FIRST: Final = 1
LAST: Final = 2

PAGE: Final = 4096
#: The most that a cell holds, which a peer may write.
_CELL: Final = (1 << 64) - 1
_SIZE: Final = limits.QUEUE_RING
_MASK: Final = _SIZE - 1
_HALF: Final = _SIZE // 2
_RECORD: Final = limits.QUEUE_RECORD
#: Bytes of one direction: cells, ring, and slack for a record that runs past the end.
DIRECTION: Final = PAGE + _SIZE + _RECORD + PAGE

#: More wake-ups than a peer has sent that keeps to the layout.
_BELLS: Final = 4096

_HEADER: Final = Struct("<II")
_pack: Final = _HEADER.pack_into
_unpack: Final = _HEADER.unpack_from


class PairSocket(KernelSocket):
    """
    An end of a pair, which its connection closes.  It does not complain when it is collected with a circle of
    objects before the connection is, as those of C{multiprocessing.Pool}.
    """

    __slots__ = ()

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        fd = self.detach()
        if fd >= 0:
            close(fd)

    @classmethod
    def two(cls) -> tuple[PairSocket, PairSocket]:
        """
        @return: Both ends of a new pair.
        """
        one, other = socket.socketpair()
        return cls(fileno=one.detach()), cls(fileno=other.detach())


def wake(pair: socket.socket) -> bool:
    """
    Send the byte that wakes the other side; one too many is no message.

    @return: False if that side has ended.
    """
    try:
        pair.send(b"!", socket.MSG_DONTWAIT)
    except BlockingIOError:
        # Full: it wakes anyway.
        pass
    except OSError:
        return False
    return True


def woken(pair: socket.socket, flags: int = socket.MSG_DONTWAIT, most: int = 1) -> int | None:
    """
    Take wake-ups.

    @return: How many; 0 at the end of the other side, None if there is none.
    """
    try:
        return len(pair.recv(most, flags))
    except BlockingIOError:
        return None
    except ConnectionResetError:
        # It ended without having taken its wake-ups (unix(7)); no more is lost.
        return 0


#: Milliseconds for a byte that has been announced.
_ANNOUNCED: Final = 100


class Ring:
    """
    The part that both sides have.
    """

    __slots__ = ("_cells", "_first", "_map", "_socket", "_view")

    def __init__(self, memory: mmap.mmap, number: int, pair: socket.socket) -> None:
        """
        @param memory: of all directions.
        @param number: which one of them.
        @param pair: the socket that ends with the other side.
        """
        start = number * DIRECTION
        self._map = memory
        self._view = memoryview(memory)
        self._cells = self._view[start : start + PAGE].cast("Q")
        self._first = start + PAGE
        self._socket = pair

    def close(self) -> None:
        """
        Let go of the memory.
        """
        self._cells.release()
        self._view.release()


class RingWriter(Ring):
    """
    The side that publishes records.
    """

    __slots__ = ()

    @property
    def tail(self) -> int:
        """
        How much has been published.
        """
        return self._cells[TAIL]

    def write(self, flags: int, payload: Payload, length: int, waits: bool = True) -> bool:
        """
        Publish one record.

        @param length: the payload's, at most C{limits.QUEUE_RECORD}.
        @param waits: until there is room.
        @return: Whether it is published.
        @raise BrokenPipeError: the other side has ended.
        """
        cells = self._cells
        try:
            # unix(7): nothing is sent, but EPIPE says that nobody is there.
            self._socket.send(b"")
        except ConnectionResetError as error:
            raise BrokenPipeError(*error.args) from None
        tail = cells[TAIL]
        end = (tail + length + 71) & -64
        if (end ^ tail) > _MASK:
            end = (tail | _MASK) + 1
            if end > _CELL:
                raise OSError(f"the peer claims that this end has written up to {tail}")
        # HEAD before AWAKE: a reader that has consumed all is no longer awake for what it has taken.
        head = cells[HEAD]
        if not 0 <= end - head <= _SIZE:
            if not waits:
                self._check(head, tail)
                return False
            head = self._waitForRoom(tail, end)
        pos = self._first + (tail & _MASK)
        target = self._map
        _pack(target, pos, length, flags)
        pos += 8
        target[pos : pos + length] = payload
        # Counted before the record is visible: who takes it then knows that a byte comes.
        rings = not (head == tail and cells[AWAKE]) and cells[BELLS] <= cells[TAKEN]
        if rings:
            cells[BELLS] = cells[TAKEN] + 1 & _CELL
        cells[TAIL] = end
        # Store TAIL, fence, load AWAKE here; store AWAKE, fence, load TAIL in RingReader.wait: one side sees
        # the other's store (Dekker's algorithm).  The same with TAKEN and RingReader.settle.
        if acquire(False):
            release()
        else:
            fence()
        if not rings:
            if (head == tail and cells[AWAKE]) or cells[BELLS] > cells[TAKEN]:
                return True
            cells[BELLS] = cells[TAKEN] + 1 & _CELL
        # If the reader has ended: it may have taken the record before.
        wake(self._socket)
        return True

    def repair(self) -> None:
        """
        Wake the reader: a writer before us may have been killed before it did.
        """
        cells = self._cells
        cells[BELLS] = cells[TAKEN] + 1 & _CELL
        wake(self._socket)

    def hasRoom(self, length: int) -> bool:
        """
        @return: Whether a record of so many bytes can be published at once.
        """
        end = (self._cells[TAIL] + length + 71) & -64
        # With the most that is skipped at the end of the ring.
        return end + _RECORD + 128 - self._cells[HEAD] <= _SIZE

    def askForRoom(self) -> None:
        """
        Have the reader send a byte when half of the ring is free, where any record fits.

        The caller tries once more before it waits for the byte.
        """
        self._cells[ROOM] = POLLED
        fence()

    @staticmethod
    def _check(head: int, tail: int) -> None:
        if not head <= tail <= head + _SIZE:
            raise OSError(f"the peer claims to have read up to {head} of {tail}")

    def _waitForRoom(self, tail: int, end: int) -> int:
        cells = self._cells
        yields = 50
        while True:
            head = cells[HEAD]
            self._check(head, tail)
            if end - head <= _SIZE:
                cells[ROOM] = 0
                return head
            if yields:
                yields -= 1
                os.sched_yield()
                continue
            cells[ROOM] = SLEEPS
            fence()
            # In this order: who closes the other side does it before it looks at ROOM.
            self._socket.send(b"")
            if cells[HEAD] == head:
                # Not for ever: the reader may be killed.
                futex.wait(cells, ROOM, SLEEPS, limits.QUEUE_LOOK_SECONDS / 2)


class RingReader(Ring):
    """
    The side that consumes records.
    """

    __slots__ = ("_poller", "_polling", "_taking")

    def __init__(self, memory: mmap.mmap, number: int, pair: socket.socket) -> None:
        super().__init__(memory, number, pair)
        self._polling = AdaptivePolling(monotonic, os.sched_yield)
        self._poller = select.poll()
        self._poller.register(pair, select.POLLIN)
        # The lock of who takes wake-ups, and its process: a child has none of its parent's threads.
        self._taking = os.getpid(), threading.RLock()

    def close(self) -> None:
        self._wake()
        super().close()

    def _wake(self) -> None:
        cells = self._cells
        if how := cells[ROOM]:
            cells[ROOM] = 0
            if how == SLEEPS:
                futex.wake(cells, ROOM)
            else:
                # Either end may be closed, which wakes it, too.
                wake(self._socket)

    def pending(self) -> bool:
        """
        @return: Whether there is a record.
        """
        cells = self._cells
        return cells[TAIL] != cells[HEAD]

    def wait(self) -> None:
        """
        Wait for a record, which the caller then takes.

        @raise EOFError: the other side has ended, and everything is read.
        """
        cells = self._cells
        try:
            cells[AWAKE] = 1
            found = self._polling.spin(self.pending)
        finally:
            cells[AWAKE] = 0
        if found:
            return
        fence()
        while not self.pending():
            with self._taker():
                # As in RingWriter.write: TAKEN is seen before TAIL is looked at once more.  And a thread that
                # polls may have taken this record's wake-up.
                if not self.pending() and not self.take(0) and not self.pending():
                    raise EOFError

    def _taker(self) -> threading.RLock:
        process, lock = self._taking
        if process != os.getpid():
            lock = threading.RLock()
            self._taking = os.getpid(), lock
        return lock

    def _isReadable(self, milliseconds: int) -> bool:
        try:
            return bool(self._poller.poll(milliseconds))
        except RuntimeError:
            # Another thread polls, here or in the parent when this process was forked.
            poller = select.poll()
            poller.register(self._socket, select.POLLIN)
            return bool(poller.poll(milliseconds))

    def poll(self, timeout: float | None) -> bool:
        """
        @param timeout: in seconds; None is for ever.
        @return: Whether there is a record, or the end.
        """
        if self.pending():
            return True
        if timeout is None or timeout > 0:
            if self._polling.spin(self.pending):
                return True
            end = None if timeout is None else monotonic() + timeout
        else:
            end = 0.0
        left = limits.QUEUE_LOOK_SECONDS
        while True:
            if end is not None:
                left = min(limits.QUEUE_LOOK_SECONDS, max(0.0, end and end - monotonic()))
            # Rounded up: one millisecond less would be a busy loop.
            readable = self._isReadable(-int(-left * 1000 // 1))
            if self.pending():
                return True
            if readable:
                lock = self._taker()
                if not lock.acquire(False):
                    # Another thread receives, which needs the wake-up.
                    return True
                try:
                    if not self.take():
                        return True
                finally:
                    lock.release()
            elif not left:
                return False

    def take(self, flags: int = socket.MSG_DONTWAIT) -> bool:
        """
        Take a wake-up, so that the next record brings one.

        @return: False at the end of the other side.
        """
        count = woken(self._socket, flags)
        self._cells[TAKEN] = self._cells[TAKEN] + (count or 0) & _CELL
        fence()
        return count != 0

    def next(self, waits: bool = True) -> tuple[int, int, int, int]:
        """
        Wait for a record.

        @param waits: False if there is one: L{pending}.
        @return: Its flags, where its payload starts, the payload's length, and what to tell L{consumed}.
        @raise EOFError: the other side has ended, and everything is read.
        @raise OSError: it has broken the layout.
        """
        cells = self._cells
        head = cells[HEAD]
        tail = cells[TAIL]
        if tail == head:
            if not waits:
                raise OSError("the peer has taken back what it had written")
            self.wait()
            tail = cells[TAIL]
        pos = self._first + (head & _MASK)
        length, flags = _unpack(self._map, pos)
        end = (head + length + 71) & -64
        if (end ^ head) > _MASK:
            end = (head | _MASK) + 1
        if not head < end <= tail <= head + _SIZE or length > _RECORD:
            raise OSError(f"the peer claims to have written {length} of {tail - head} bytes")
        return flags, pos + 8, length, end

    def consumed(self, end: int, waits: bool = True) -> None:
        """
        Give the space of a record back.

        @param waits: as of L{settle}.
        """
        cells = self._cells
        head = cells[HEAD]
        cells[HEAD] = end
        tail = cells[TAIL]
        if tail - head > _HALF >= tail - end:
            fence()
            self._wake()
        if cells[WATCHED]:
            self.settle(waits)

    def watch(self) -> None:
        """
        From now on the socket is readable only while there is a record, or at the end.
        """
        self._cells[WATCHED] = 1
        self.settle()

    def settle(self, waits: bool = True) -> None:
        """
        Take the bytes from the socket if there is no record.

        @param waits: shortly for one that is announced, which else wakes somebody in vain.
        """
        cells = self._cells
        taken, rung = cells[TAKEN], cells[BELLS]
        if rung <= taken or self.pending():
            return
        if rung - taken > _BELLS:
            raise OSError(f"the peer claims to have rung {rung - taken} times")
        cells[TAKEN] = rung
        fence()
        if self.pending():
            cells[TAKEN] = taken
            return
        # Announced before the record that is now consumed: it is here, comes at once, or its sender is dead.
        if self._isReadable(_ANNOUNCED if waits else 0):
            woken(self._socket, most=rung - taken)

    def copy(self, start: int, length: int) -> bytes:
        """
        @return: A copy of what is at a place of the memory.
        """
        return self._map[start : start + length]

    def view(self, start: int, length: int) -> memoryview:
        """
        @return: The bytes at a place of the memory.
        """
        return self._view[start : start + length]
