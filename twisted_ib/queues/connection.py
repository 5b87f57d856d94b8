"""
The C{Connection} of C{multiprocessing.connection} through shared memory.

A message of up to C{limits.QUEUE_RECORD} bytes is one record: its pickle, or its bytes.  A longer one begins
with a record of lengths, of its pickle or bytes and of each large buffer; records with these follow, of which
none has bytes of two.  Where an end has several writers, one of them may be killed within a message: the next
then begins a new one, and readers pass over what has no end or no beginning.
"""

from __future__ import annotations

import errno
import mmap
import os
import socket
import sys
from io import BytesIO
from multiprocessing import BufferTooShort
from multiprocessing.reduction import DupFd
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from twisted_ib import limits
from twisted_ib.hca.host import libc
from twisted_ib.queues.pickling import Parts, Pickled, inBand, loads, pieces
from twisted_ib.queues.ring import DIRECTION, FIRST, LAST, PairSocket, Payload, RingReader, RingWriter

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable, Iterable, Iterator

    from typing_extensions import Buffer, Self

    from twisted_ib.queues.asynchronous import DeferredConnection
    from twisted_ib.queues.futures import AsyncConnection

#: One record, complete.
_WHOLE: Final = FIRST | LAST
_RECORD: Final = limits.QUEUE_RECORD
#: Bytes of memory of a connection in both directions.
MEMORY: Final = 2 * DIRECTION
_SEALS: Final = libc.F_SEAL_SHRINK | libc.F_SEAL_GROW | libc.F_SEAL_SEAL


#: In a length: it is of bytes.
READ_ONLY: Final = 1 << 63


def missing() -> tuple[str, ...]:
    """
    @return: the reasons why this machine cannot have connections through shared memory.
    """
    return libc.available(MEMORY)


def createMemory() -> int:
    """
    @return: A memory file, whose size is fixed for ever (memfd_create(2)).
    @raise OSError: This machine cannot have rings.
    """
    if lacking := missing():
        raise OSError(errno.ENOSYS, f"queues through shared memory need {', '.join(lacking)}")
    fd = libc.memfdCreate("twisted_ib")
    try:
        os.ftruncate(fd, MEMORY)
        libc.addSeals(fd, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def checkMemory(fd: int) -> None:
    """
    Check a memory file that another process has made.

    @raise OSError: It could be cut short, and reading then ends this process by SIGBUS.
    """
    # Before the size, which cannot change once it is sealed.
    sealed = libc.getSeals(fd) & _SEALS == _SEALS
    if not sealed or os.fstat(fd).st_size != MEMORY or os.fstatvfs(fd).f_bsize != mmap.PAGESIZE:
        raise OSError("a peer offered something that is not sealed memory of the right size")


def lengthsOf(total: int, buffers: Iterable[memoryview]) -> list[int]:
    """
    @param total: how many bytes the pickle has.
    @return: The lengths of a message's parts, as they are on the wire.
    """
    # Bytes are made to bytes again.
    return [total | READ_ONLY, *(each.nbytes | READ_ONLY * each.readonly for each in buffers)]


def records(parts: Pickled) -> Iterator[tuple[int, Payload, int]]:
    """
    @return: The records of a message: flags, payload, and how long that is.
    """
    found, buffers = parts
    payloads = [memoryview(each).cast("B") for each in found]
    total = sum(map(len, payloads))
    if total <= _RECORD and not buffers:
        yield _WHOLE, b"".join(payloads), total
        return
    lengths = lengthsOf(total, buffers)
    manifest = Struct(f"<{len(lengths)}Q").pack(*lengths)
    yield FIRST, manifest, len(manifest)
    payloads = [each for each in (*payloads, *buffers) if each]
    for number, view in enumerate(payloads, 1):
        length = len(view)
        for start in range(0, length, _RECORD):
            end = min(start + _RECORD, length)
            yield LAST if end == length and number == len(payloads) else 0, view[start:end], end - start


def unpackLengths(data: bytes | memoryview) -> tuple[int, ...]:
    """
    @return: The lengths in the first record of a message.
    @raise OSError: There are none, or too many.
    """
    count = len(data) // 8
    if not 0 < count <= limits.QUEUE_BUFFERS + 1 or len(data) % 8:
        raise OSError("bad message length")
    return Struct(f"<{count}Q").unpack(data)


class Assembly:
    """
    A message whose records come one by one.  Its memory grows with what has come, and not by what is claimed.
    """

    def __init__(self, lengths: tuple[int, ...] = ()) -> None:
        """
        @param lengths: the message's, if its first record is taken already.
        """
        self._start(lengths)

    def _start(self, lengths: tuple[int, ...]) -> None:
        self._lengths = lengths
        self._found: list[Payload] = []
        self._left = 0
        self._file: BytesIO | bytearray = bytearray()
        if lengths:
            self._begin()

    def __bool__(self) -> bool:
        return bool(self._lengths)

    def add(self, flags: int, data: memoryview) -> Parts | None:
        """
        Add a record.

        @return: the message, if it is complete.
        @raise OSError: it is none.
        """
        if flags & _WHOLE == _WHOLE:
            self._start(())
            return bytes(data), []
        if flags & FIRST:
            self._start(unpackLengths(data))
        elif self._lengths:
            self._left -= len(data)
            if self._left < 0:
                raise OSError("bad message length")
            if isinstance(self._file, BytesIO):
                self._write(self._file, data)
            else:
                self._file += data
            while not self._left and self._lengths:
                self._end()
        # Else its beginning went to a reader that was killed.
        if self._lengths or not self._found:
            return None
        found = self._found
        self._start(())
        return bytes(found[0]), found[1:]

    def _begin(self) -> None:
        length = self._lengths[len(self._found)]
        self._left = length & ~READ_ONLY
        if self._left > limits.REGION_BYTES:
            raise OSError("bad message length")
        # Nobody else has its bytes: getvalue() gives them back as they are.
        self._file = BytesIO() if length & READ_ONLY else bytearray()
        self._room = 0

    def _write(self, file: BytesIO, data: memoryview) -> None:
        at = file.tell()
        size = at + len(data) + self._left
        if self._left and at + len(data) > self._room:
            # By a quarter at least, or BytesIO takes more than it is told: malloc, whose threshold of mmap is
            # the longest that was freed, would then map and copy each message of one size.
            wanted = 2 * max(self._room, _RECORD)
            self._room = size if 4 * size <= 5 * wanted else wanted
            file.seek(self._room - 1)
            file.write(b"\0")
            file.seek(at)
        file.write(data)

    def _end(self) -> None:
        self._found.append(self._file.getvalue() if isinstance(self._file, BytesIO) else self._file)
        if len(self._found) == len(self._lengths):
            self._lengths = ()
        else:
            self._begin()


class Connection:
    """
    One end of a connection.  As with C{multiprocessing}, one thread may send while another receives.
    """

    def __init__(
        self, pair: socket.socket, memory: int, side: int, readable: bool = True, writable: bool = True
    ) -> None:
        """
        @param pair: the socket, which now belongs to the connection; closed with the connection.
        @param memory: the memory file, likewise.
        @param side: 0 or 1: which end this is.
        """
        self._socket = pair
        self._memory = memory
        self._side = side
        self._readable, self._writable = readable, writable
        self._map: mmap.mmap | None = mmap.mmap(memory, MEMORY)
        self._reader = RingReader(self._map, 1 - side, pair)
        self._writer = RingWriter(self._map, side, pair)

    def __del__(self, isFinalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # One whose constructor failed has none.  At the end of the interpreter the kernel does it.
        if getattr(self, "_map", None) is not None and not isFinalizing():
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """
        Whether the connection is closed.
        """
        return self._map is None

    @property
    def readable(self) -> bool:
        """
        Whether it receives.
        """
        return self._readable

    @property
    def writable(self) -> bool:
        """
        Whether it sends.
        """
        return self._writable

    def fileno(self) -> int:
        """
        @return: A descriptor that is readable while there is a message, or at the end.
        """
        self.checkOpen()
        if self._readable:
            self._reader.watch()
        return self._socket.fileno()

    def close(self) -> None:
        """
        Close this end; harmless when repeated.
        """
        memory, self._map = self._map, None
        if memory is None:
            return
        self._socket.close()
        os.close(self._memory)
        self._reader.close()
        self._writer.close()
        try:
            memory.close()
        except BufferError:
            # Another thread is in a call.
            pass

    def __reduce__(self) -> tuple[Any, ...]:
        """
        @return: The function and arguments of which C{pickle} makes this end in another process.
        """
        self.checkOpen()
        fds = DupFd(self._socket.fileno()), DupFd(self._memory)
        return _rebuilt, (*fds, self._side, self._readable, self._writable)

    def checkOpen(self) -> None:
        """
        @raise OSError: it is closed.
        """
        if self._map is None:
            raise OSError("handle is closed")

    def checkReads(self) -> None:
        """
        @raise OSError: it does not receive.
        """
        if self._map is None:
            raise OSError("handle is closed")
        if not self._readable:
            raise OSError("connection is write-only")

    def checkWrites(self) -> None:
        """
        @raise OSError: it does not send.
        """
        if self._map is None:
            raise OSError("handle is closed")
        if not self._writable:
            raise OSError("connection is read-only")

    # -- for programs that never wait

    def onReactor(self, reactor: object = None) -> DeferredConnection:
        """
        @param reactor: Twisted's, by default the one that is installed.
        @return: The connection with calls that return Deferreds; this one belongs to it from now on.
        """
        from twisted_ib.queues.asynchronous import DeferredConnection

        return DeferredConnection(self, reactor)

    def onLoop(self, loop: AbstractEventLoop | None = None) -> AsyncConnection:
        """
        @param loop: asyncio's, by default the one that runs.
        @return: The connection with calls that can be awaited; this one belongs to it from now on.
        """
        from twisted_ib.queues.futures import AsyncConnection

        return AsyncConnection(self, loop)

    def ends(self) -> tuple[RingReader, RingWriter, int]:
        """
        @return: Both directions, and the descriptor of the socket.
        """
        return self._reader, self._writer, self._socket.fileno()

    # -- sending

    def send(self, obj: object) -> None:
        """
        Send an object that can be pickled.

        @raise BrokenPipeError: the other end is closed.
        """
        self.checkWrites()
        self.sendParts(pieces(obj))

    def sendParts(self, parts: Pickled, ends: Callable[[int], object] | None = None) -> None:
        """
        Send what is left of an object once it is pickled.

        @param ends: called with the end of the ring before the record is published that ends the message.
        """
        found, buffers = parts
        if len(found) == 1 and not buffers:
            length = len(found[0])
            if length <= _RECORD:
                if ends is not None:
                    ends(self._writer.tail)
                self._writer.write(_WHOLE, found[0], length)
                return
        for flags, payload, length in records(parts):
            if ends is not None and flags & LAST:
                ends(self._writer.tail)
            self._writer.write(flags, payload, length)

    def send_bytes(self, buf: Buffer, offset: int = 0, size: int | None = None) -> None:
        """
        Send bytes.

        @raise BrokenPipeError: the other end is closed.
        """
        self.checkWrites()
        if buf.__class__ is bytes and offset == 0 and size is None and len(buf) <= _RECORD:
            self._writer.write(_WHOLE, buf, len(buf))
            return
        view = memoryview(buf)
        if view.itemsize > 1:
            view = view.cast("B")
        length = view.nbytes
        if offset < 0:
            raise ValueError("offset is negative")
        if length < offset:
            raise ValueError("buffer length < offset")
        if size is None:
            size = length - offset
        elif size < 0:
            raise ValueError("size is negative")
        elif offset + size > length:
            raise ValueError("buffer length < offset + size")
        self.sendParts(([view[offset : offset + size]], []))

    def hasRoom(self, parts: Pickled) -> bool:
        """
        @return: Whether they can be sent without waiting.
        """
        found, buffers = parts
        if len(found) == 1 and not buffers:
            return self._writer.hasRoom(len(found[0]))
        sizes = [memoryview(each).nbytes for each in (*found, *buffers)]
        # Each record has a header and is rounded up, and so has the first.
        records = 2 + len(sizes) + sum(sizes) // _RECORD
        return self._writer.hasRoom(sum(sizes) + 8 * len(sizes) + 128 * records)

    def repair(self) -> None:
        """
        Wake the reader, for a process that may have been killed before it did.
        """
        self._writer.repair()

    # -- receiving

    def lookAgain(self) -> None:
        """
        Wake up from time to time: one of several writers may be killed before it wakes this reader.
        """
        seconds, rest = divmod(limits.QUEUE_LOOK_SECONDS, 1)
        packed = Struct("@ll").pack(int(seconds), int(rest * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, packed)

    def hasMessage(self, timeout: float | None) -> bool:
        """
        Wait for a message that the caller then takes.

        @param timeout: in seconds; None is for ever.
        @raise EOFError: there is none, and the other end is closed.
        """
        self.checkReads()
        reader = self._reader
        if reader.pending():
            return True
        if timeout is not None:
            return reader.poll(timeout)
        reader.wait()
        return True

    def recv(self) -> Any:
        """
        Receive an object.

        @raise EOFError: there is none, and the other end is closed.
        """
        self.checkReads()
        return loads(*self.receiveParts())

    def receiveParts(self) -> Parts:
        """
        Receive a pickle and its buffers.

        @raise EOFError: there is none, and the other end is closed.
        """
        data, lengths = self._begin()
        return (data, []) if lengths is None else self._rest(lengths)

    def recv_bytes(self, maxlength: int | None = None) -> bytes:
        """
        Receive the bytes of a message; those of an object are its pickle.

        @raise EOFError: there is none, and the other end is closed.
        @raise OSError: the message is longer than C{maxlength}; nothing more can be received.
        """
        self.checkReads()
        if maxlength is not None and maxlength < 0:
            raise ValueError("negative maxlength")
        data, lengths = self._begin()
        size = sum(each & ~READ_ONLY for each in lengths) if lengths else len(data)
        if maxlength is not None and size > maxlength:
            if self._writable:
                self._readable = False
            else:
                self.close()
            raise OSError("bad message length")
        if lengths is None:
            return data
        return inBand(*self._rest(lengths))

    def recv_bytes_into(self, buf: Buffer, offset: int = 0) -> int:
        """
        Receive the bytes of a message into a buffer.

        @return: How many there are.
        @raise BufferTooShort: with the message, which is longer than the buffer.
        """
        self.checkReads()
        with memoryview(buf) as whole, whole.cast("B") as target:
            if offset < 0:
                raise ValueError("negative offset")
            if offset > target.nbytes:
                raise ValueError("offset too large")
            room = target.nbytes - offset
            while True:
                data, lengths = self._begin()
                size = lengths[0] & ~READ_ONLY if lengths else 0
                if lengths is None or len(lengths) > 1 or size > room:
                    break
                if self._fill(target[offset : offset + size]):
                    return size
            if lengths is not None:
                data = inBand(*self._rest(lengths))
            if len(data) > room:
                raise BufferTooShort(data)
            target[offset : offset + len(data)] = data
            return len(data)

    def poll(self, timeout: float | None = 0.0) -> bool:
        """
        @param timeout: in seconds; None is for ever.
        @return: Whether there is a message, or the end.
        """
        self.checkReads()
        return self._reader.poll(timeout)

    def _begin(self) -> tuple[bytes, tuple[int, ...] | None]:
        # The next message, or the lengths with which it begins.
        reader = self._reader
        while True:
            flags, start, length, end = reader.next()
            data = reader.copy(start, length)
            reader.consumed(end)
            if flags & _WHOLE == _WHOLE:
                return data, None
            # Else its beginning went to a reader that was killed.
            if flags & FIRST:
                return data, unpackLengths(data)

    def _rest(self, lengths: tuple[int, ...]) -> Parts:
        # Of a message that is none: the next one.
        assembly = Assembly(lengths)
        parts = None
        while parts is None:
            flags, start, length, end = self._following()
            with self._reader.view(start, length) as view:
                parts = assembly.add(flags, view)
            self._reader.consumed(end)
        return parts

    def _following(self) -> tuple[int, int, int, int]:
        try:
            return self._reader.next()
        except EOFError:
            raise OSError("got end of file during message") from None

    def _fill(self, target: memoryview) -> bool:
        # With the rest of a message; False if a writer was killed within it, so that another begins.
        at = 0
        while at < len(target):
            flags, start, length, end = self._following()
            if flags & FIRST:
                return False
            if at + length > len(target):
                raise OSError("bad message length")
            with self._reader.view(start, length) as view:
                target[at : at + length] = view
            at += length
            self._reader.consumed(end)
        return True


def _rebuilt(pair: Any, memory: Any, side: int, readable: bool, writable: bool) -> Connection:
    fds = [each.detach() for each in (pair, memory)]
    return Connection(PairSocket(fileno=fds[0]), fds[1], side, readable, writable)


def Pipe(duplex: bool = True) -> tuple[Connection, Connection]:
    """
    Make a connection.

    @param duplex: whether both ends send; else the first receives and the second sends.
    @return: Its ends.
    """
    one, other = PairSocket.two()
    memory = createMemory()
    return Connection(one, memory, 0, True, duplex), Connection(other, os.dup(memory), 1, duplex, True)
