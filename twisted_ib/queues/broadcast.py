"""
One writer, many readers: messages in one ring in shared memory, which each reader reads where they are.

A message is copied once, into the ring, whatever the number of readers.  The memory begins with a page of
cells, of which the writer has the first eight, and each reader eight::

    cell     written by
    TAIL     writer    how much has been published
    OLDEST   writer    where the oldest message begins that is whole; set before others are overwritten
    ROOM     writer    whether it waits for the readers
    HEAD     reader    how much it has consumed
    WAITS    both      whether it sleeps: set by the reader, taken back by the writer that wakes it
    CUT      writer    whether it is disconnected, as it was slow

Each reader has a socket to the writer, by which either wakes the other, and sees its end.  On x86-64 stores
are seen in program order: a message that is whole in OLDEST's terms after it was read was whole before.
"""

from __future__ import annotations

import errno
import mmap
import os
import select
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.reduction import DupFd, register
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from twisted_ib import limits
from twisted_ib.drive.process import monotonic
from twisted_ib.drive.sleeper import fence
from twisted_ib.hca.host import libc
from twisted_ib.queues.connection import READ_ONLY, lengthsOf, missing, unpackLengths
from twisted_ib.queues.pickling import Pickled, inBand, loads, pieces
from twisted_ib.queues.ring import PAGE, PairSocket, Payload, wake, woken

if TYPE_CHECKING:
    from typing_extensions import Buffer

TAIL: Final = 0
OLDEST: Final = 1
ROOM: Final = 2
#: Of a reader, from its first cell on.
HEAD: Final = 0
WAITS: Final = 1
CUT: Final = 2

#: How many lengths follow, and which message it is, counted from 1; 0 skips the end of the ring.
_HEADER: Final = Struct("<QQ")
#: The writer has no room for a reader: it waits for it, or the reader misses messages, or is disconnected.
WAIT, DROP, DISCONNECT = "wait", "drop", "disconnect"


def _aligned(size: int) -> int:
    return size + 63 & -64


def _cell(number: int, which: int) -> int:
    # Of a reader.
    return 8 * number + 8 + which


class Overrun(OSError):
    """
    A message was overwritten while it was read in place.
    """


class Broadcast:
    """
    The writer.

    @ivar readers: the readers, each of which one process is to have.
    """

    def __init__(self, readers: int, policy: str = WAIT, size: int = limits.BROADCAST_BYTES) -> None:
        """
        @param readers: how many.
        @param policy: L{WAIT} for the slowest reader, L{DROP} the oldest messages, which slow readers then
            miss, or L{DISCONNECT} slow readers.
        @param size: of the ring, in bytes: a multiple of 4096; the longest message is almost half of it.
        """
        if policy not in (WAIT, DROP, DISCONNECT):
            raise ValueError(f"there is no policy {policy!r}")
        if not 1 <= readers <= limits.BROADCAST_READERS:
            raise ValueError(f"a broadcast has 1 to {limits.BROADCAST_READERS} readers")
        if size < PAGE or size % PAGE:
            raise ValueError("the size is no multiple of 4096")
        if lacking := missing():
            raise OSError(errno.ENOSYS, f"queues through shared memory need {', '.join(lacking)}")
        self._policy, self._size, self._closed = policy, size, False
        fd = libc.memfdCreate("twisted_ib")
        try:
            os.ftruncate(fd, PAGE + size)
            libc.addSeals(fd, libc.F_SEAL_SHRINK | libc.F_SEAL_GROW | libc.F_SEAL_SEAL)
            self._map = mmap.mmap(fd, PAGE + size)
            self._cells = memoryview(self._map)[:PAGE].cast("Q")
            pairs = [PairSocket.two() for _ in range(readers)]
            self._peers = {number: mine for number, (mine, _) in enumerate(pairs)}
            self.readers = [
                BroadcastReader(theirs, os.dup(fd), number) for number, (_, theirs) in enumerate(pairs)
            ]
        finally:
            os.close(fd)
        self._sequence = 0
        self._tail = 0
        #: Where the messages in the ring begin.
        self._starts: deque[int] = deque()

    def __enter__(self) -> Broadcast:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """
        Close the writer, in this process; harmless when repeated.  Readers read what is there, then the end.
        """
        self._closed = True
        for each in self._peers.values():
            each.close()
        self._peers.clear()

    def take(self, number: int) -> BroadcastReader:
        """
        Keep one reader, in a process that was forked for it: nobody sees the end of what it keeps besides.

        @return: the reader.
        """
        self.close()
        for each in self.readers:
            if each is not self.readers[number]:
                each.close()
        return self.readers[number]

    @property
    def connected(self) -> int:
        """
        How many readers there are, as far as the writer has noticed.
        """
        return len(self._peers)

    def send(self, obj: object) -> None:
        """
        Send an object.

        @raise BrokenPipeError: there is no reader any more.
        @raise ValueError: it is too long for the ring.
        """
        self._publish(pieces(obj))

    def send_bytes(self, buf: Buffer) -> None:
        """
        Send bytes.

        @raise BrokenPipeError: there is no reader any more.
        @raise ValueError: they are too long for the ring.
        """
        self._publish(([memoryview(buf).cast("B")], []))

    def _publish(self, parts: Pickled) -> None:
        if self._closed:
            raise OSError("handle is closed")
        found, buffers = parts
        pickled = [memoryview(each).cast("B") for each in found]
        lengths = lengthsOf(sum(map(len, pickled)), buffers)
        need = _aligned(_HEADER.size + 8 * len(lengths))
        need += _aligned(lengths[0] & ~READ_ONLY) + sum(_aligned(each.nbytes) for each in buffers)
        if need > self._size // 2:
            raise ValueError(f"{need} bytes are more than half of a ring of {self._size}")
        start, at = self._tail, self._tail % self._size
        skipped = self._size - at if at + need > self._size else 0
        self._makeRoom(start + skipped + need)
        if skipped:
            _HEADER.pack_into(self._map, PAGE + at, skipped, 0)
            start, at = start + skipped, 0
        self._sequence += 1
        target, at = self._map, at + PAGE
        Struct(f"<QQ{len(lengths)}Q").pack_into(target, at, len(lengths), self._sequence, *lengths)
        at += _aligned(_HEADER.size + 8 * len(lengths))
        first = at
        for each in pickled:
            target[at : at + len(each)] = each
            at += len(each)
        at = first + _aligned(at - first)
        for each in buffers:
            target[at : at + each.nbytes] = each
            at += _aligned(each.nbytes)
        self._starts.append(start)
        self._tail = self._cells[TAIL] = start + need
        fence()
        self._wake()

    def _wake(self) -> None:
        cells = self._cells
        for number, peer in list(self._peers.items()):
            if cells[_cell(number, WAITS)]:
                cells[_cell(number, WAITS)] = 0
                if not wake(peer):
                    self._drop(number)

    def _drop(self, number: int) -> None:
        self._peers.pop(number).close()

    def _slow(self, oldest: int) -> list[int]:
        return [each for each in self._peers if self._cells[_cell(each, HEAD)] < oldest]

    def _makeRoom(self, end: int) -> None:
        # From then on no reader reads what is before OLDEST.
        starts, oldest = self._starts, self._cells[OLDEST]
        while starts and oldest < end - self._size:
            starts.popleft()
            oldest = starts[0] if starts else self._tail
        while self._policy != DROP and (slow := self._slow(oldest)):
            if self._policy == DISCONNECT:
                for each in slow:
                    self._cells[_cell(each, CUT)] = 1
                    self._drop(each)
            else:
                self._await(oldest)
        if not self._peers or not self._alive():
            raise BrokenPipeError(errno.EPIPE, "there is no reader")
        self._cells[OLDEST] = oldest
        fence()

    def _alive(self) -> int:
        # If all have gone it is an error; to look for each at every message would take a call each.
        for number, peer in list(self._peers.items()):
            try:
                # unix(7): nothing is sent, but EPIPE says that nobody is there.
                peer.send(b"")
                break
            except OSError:
                self._drop(number)
        return len(self._peers)

    def _await(self, oldest: int) -> None:
        self._cells[ROOM] = 1
        fence()
        if not self._slow(oldest):
            self._cells[ROOM] = 0
            return
        poller = select.poll()
        numbers = {peer.fileno(): number for number, peer in self._peers.items()}
        for each in numbers:
            poller.register(each, select.POLLIN)
        # Not for ever: a reader may be killed between what it has consumed and the byte.
        for fd, _ in poller.poll(limits.QUEUE_LOOK_SECONDS * 500):
            if woken(self._peers[numbers[fd]], most=4096) == 0:
                self._drop(numbers[fd])
        self._cells[ROOM] = 0


class BroadcastReader:
    """
    One reader, which is for one process.

    @ivar dropped: how many messages it has missed.
    """

    def __init__(self, pair: socket.socket, memory: int, number: int) -> None:
        """
        @param pair: the socket, which now belongs to the reader.
        @param memory: the memory file, likewise.
        """
        self._socket, self._memory, self._number = pair, memory, number
        self._size = os.fstat(memory).st_size - PAGE
        self._map = mmap.mmap(memory, PAGE + self._size)
        self._view = memoryview(self._map)
        self._cells = self._view[:PAGE].cast("Q")
        self._head, self._waits, self._cut = (_cell(number, each) for each in (HEAD, WAITS, CUT))
        self._sequence = 0
        self.dropped = 0

    def __enter__(self) -> BroadcastReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """
        Close the reader, in this process; harmless when repeated.
        """
        memory, self._memory = self._memory, -1
        if memory >= 0:
            self._socket.close()
            os.close(memory)

    def reduced(self) -> tuple[Any, ...]:
        """
        @return: The function and arguments of which C{pickle} makes this reader in another process.
        """
        self._checkOpen()
        return _rebuilt, (DupFd(self._socket.fileno()), DupFd(self._memory), self._number)

    def _checkOpen(self) -> None:
        if self._memory < 0:
            raise OSError("handle is closed")

    def fileno(self) -> int:
        """
        @return: A descriptor that is readable once there is a message after L{poll} was false, or at the end.
        """
        self._checkOpen()
        return self._socket.fileno()

    def poll(self, timeout: float | None = 0.0) -> bool:
        """
        @param timeout: in seconds; None is for ever.
        @return: Whether there is a message, or the end.
        """
        self._checkOpen()
        end = None if timeout is None else monotonic() + timeout
        cells = self._cells
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        while cells[TAIL] == cells[self._head]:
            cells[self._waits] = 1
            fence()
            if cells[TAIL] != cells[self._head]:
                break
            left = None if end is None else max(0.0, end - monotonic())
            if not poller.poll(None if left is None else -int(-left * 1000 // 1)):
                return False
            if woken(self._socket) == 0:
                break
        return True

    @contextmanager
    def reading(self) -> Iterator[Any]:
        """
        Receive an object in place: its large buffers are views of the ring, and must not be used after this
        context.

        @raise EOFError: there is none, and the writer is closed.
        @raise ConnectionAbortedError: the writer has disconnected this reader, as it was slow.
        @raise Overrun: at the end of the context: the message was overwritten meanwhile (L{DROP}).
        """
        while True:
            start, end, views = self._next()
            data = bytes(views[0])
            if self._isWhole(start):
                break
        try:
            yield loads(data, list(views[1:]))
        finally:
            isWhole = self._isWhole(start)
            self._consumed(end)
        if not isWhole:
            self._checkCut()
            raise Overrun(errno.EOVERFLOW, "the message was overwritten while it was read")

    def recv(self) -> Any:
        """
        Receive an object, by one copy of its large buffers.

        @raise EOFError: there is none, and the writer is closed.
        @raise ConnectionAbortedError: the writer has disconnected this reader, as it was slow.
        """
        return loads(*self._copied())

    def recv_bytes(self) -> bytes:
        """
        Receive the bytes of a message; those of an object are its pickle.

        @raise EOFError: there is none, and the writer is closed.
        @raise ConnectionAbortedError: the writer has disconnected this reader, as it was slow.
        """
        return inBand(*self._copied())

    def _copied(self) -> tuple[bytes, list[Payload]]:
        while True:
            start, end, views = self._next()
            data = bytes(views[0])
            buffers: list[Payload] = [bytes(each) if each.readonly else bytearray(each) for each in views[1:]]
            if self._isWhole(start):
                self._consumed(end)
                return data, buffers

    def _isWhole(self, start: int) -> bool:
        return self._cells[OLDEST] <= start

    def _consumed(self, end: int) -> None:
        cells = self._cells
        cells[self._head] = end
        fence()
        if cells[ROOM]:
            wake(self._socket)

    def _next(self) -> tuple[int, int, list[memoryview]]:
        # Where the next message begins and ends, and its parts.
        cells = self._cells
        while True:
            head = cells[self._head]
            tail = cells[TAIL]
            if tail == head:
                self.poll(None)
                tail = cells[TAIL]
                if tail == head:
                    self._checkCut()
                    raise EOFError
            oldest = cells[OLDEST]
            if head < oldest:
                self._checkCut()
                self._consumed(oldest)
                continue
            try:
                sequence, end, views = self._parts(head, tail)
            except OSError:
                # Overwritten meanwhile; else it is the same for who reads again: the ring stays as it is.
                if self._isWhole(head):
                    raise OSError("the writer has broken the layout of the ring") from None
                continue
            if not self._isWhole(head):
                continue
            if sequence:
                self.dropped += sequence - self._sequence - 1
                self._sequence = sequence
                return head, end, views
            self._consumed(end)

    def _checkCut(self) -> None:
        if self._cells[self._cut]:
            raise ConnectionAbortedError(errno.ECONNABORTED, "this reader was too slow")

    def _parts(self, head: int, tail: int) -> tuple[int, int, list[memoryview]]:
        # Of a message that may be overwritten meanwhile: nothing is believed that is not within the ring and
        # what is published.
        views: list[memoryview] = []
        size, at = self._size, head % self._size
        end = place = PAGE + at + _HEADER.size
        if end <= PAGE + size and tail - head <= size:
            count, sequence = _HEADER.unpack_from(self._map, PAGE + at)
            if sequence:
                place = PAGE + at + _aligned(_HEADER.size + 8 * count)
                for each in unpackLengths(self._view[end : end + 8 * count]):
                    length = each & ~READ_ONLY
                    view = self._view[place : place + length]
                    views.append(view.toreadonly() if each & READ_ONLY else view)
                    place += _aligned(length)
            else:
                place = PAGE + size
            end = head + place - PAGE - at
            if place <= PAGE + size and end <= tail:
                return sequence, end, views
        raise OSError("bad message length")


def _rebuilt(pair: Any, memory: Any, number: int) -> BroadcastReader:
    fds = [each.detach() for each in (pair, memory)]
    return BroadcastReader(PairSocket(fileno=fds[0]), fds[1], number)


def _reduced(reader: BroadcastReader) -> tuple[Any, ...]:
    return reader.reduced()


register(BroadcastReader, _reduced)
