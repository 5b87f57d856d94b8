"""
Calls of the operating system by descriptor, for sockets over SDP: their bytes are not at the descriptor.

Each does what it does with a TCP socket (read(2), write(2), sendfile(2)), and what L{os} does with any other
descriptor.
"""

from __future__ import annotations

import _pyio  # type: ignore[import-not-found]
import _socket
import builtins
import errno
import fcntl
import gc
import io
import os
import socket as kernel
import sys
import termios
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from operator import index
from stat import S_ISFIFO
from threading import active_count, get_ident
from types import FrameType, FunctionType
from typing import Any, Final

from twisted_ib.blocking.connection import SEND_BYTES, Connection, failure
from twisted_ib.blocking.descriptors import (
    Offloaded,
    byDescriptor,
    connected,
    keep,
    known,
    leaving,
    offloaded,
    partOf,
)
from twisted_ib.blocking.loop import BlockingLoop, forget, madeLoop, own
from twisted_ib.drive.process import hasFinalizer, life, objects
from twisted_ib.hca.base.interfaces import ISharedMemoryPath
from twisted_ib.hca.host.libc import forgetWatches
from twisted_ib.hca.host.search import closeWithin

_read, _write, _readv, _writev = os.read, os.write, os.readv, os.writev
_sendfile, _close, _splice = os.sendfile, os.close, getattr(os, "splice", None)
_closeRange, _dup2, _chroot = os.closerange, os.dup2, os.chroot
_setBlocking, _fcntl = os.set_blocking, fcntl.fcntl
_open, _ioctl = io.open, fcntl.ioctl
#: The most octets that one C{splice} moves: the size of a pipe (pipe(7)).
_SPLICE_BYTES: Final = 65536
#: Of C{os.posix_spawn}: an action that closes all descriptors from a number on (Python 3.13).
_CLOSEFROM: Final = getattr(os, "POSIX_SPAWN_CLOSEFROM", -1)


def _connectionOf(descriptor: Any) -> Connection | None:
    part = partOf(descriptor)
    return part if isinstance(part, Connection) else None


def _timeoutOf(descriptor: int) -> float | None:
    # A socket with a timeout has a descriptor that does not block.
    return None if os.get_blocking(descriptor) else 0.0


def read(fd: int, length: int, /) -> bytes:
    """
    See C{os.read}.
    """
    if not connected or (connection := _connectionOf(fd)) is None:
        return _read(fd, length)
    if length < 0:
        raise failure(errno.EINVAL)
    return connection.receive(length, 0, _timeoutOf(fd)) if length else b""


def readv(fd: int, buffers: Sequence[Any], /) -> int:
    """
    See C{os.readv}.
    """
    if not connected or (connection := _connectionOf(fd)) is None:
        return _readv(fd, buffers)
    views = [memoryview(each).cast("B") for each in buffers]
    size = sum(map(len, views))
    data = connection.receive(size, 0, _timeoutOf(fd)) if size else b""
    at = 0
    for view in views:
        piece = data[at : at + len(view)]
        view[: len(piece)] = piece
        at += len(piece)
    return len(data)


def write(fd: int, data: Any, /) -> int:
    """
    See C{os.write}.
    """
    if not connected or (connection := _connectionOf(fd)) is None:
        return _write(fd, data)
    return connection.send(data, 0, _timeoutOf(fd))


def writev(fd: int, buffers: Sequence[Any], /) -> int:
    """
    See C{os.writev}.
    """
    if not connected or (connection := _connectionOf(fd)) is None:
        return _writev(fd, buffers)
    return connection.send(b"".join(buffers), 0, _timeoutOf(fd))


def sendfile(out_fd: int, in_fd: int, offset: int | None, count: int, *more: Any, **options: Any) -> int:
    """
    See C{os.sendfile}.
    """
    if not connected or (connection := _connectionOf(out_fd)) is None:
        return _sendfile(out_fd, in_fd, offset, count, *more, **options)
    try:
        at = os.lseek(in_fd, 0, os.SEEK_CUR) if offset is None else offset
        data = os.pread(in_fd, min(count, SEND_BYTES), at)
    except OSError as error:
        # sendfile(2): it has to be a file; of a pipe an offset is what is wrong first.
        isPipe = offset is None and error.errno == errno.ESPIPE
        raise failure(errno.EINVAL if isPipe else error.errno or 0) from None
    sent = connection.send(data, 0, _timeoutOf(out_fd)) if data else 0
    if offset is None:
        os.lseek(in_fd, at + sent, os.SEEK_SET)
    return sent


def sendFile(skt: Any, file: Any, offset: int, count: int | None) -> int:
    """
    See C{socket.sendfile}: as sendfile(2) does, read at an offset, wherever the file stands.

    @raise socket._GiveupOnSendfile: the standard library is to read the file by its methods.
    """
    sent = 0
    try:
        try:
            descriptor = file.fileno()
            data = os.pread(descriptor, min(count or SEND_BYTES, SEND_BYTES), offset)
        except (AttributeError, io.UnsupportedOperation, OSError) as e:
            raise kernel._GiveupOnSendfile(e) from None  # type: ignore[attr-defined]
        # A file with nothing in it is sent all the same.
        if skt.gettimeout() == 0 and os.fstat(descriptor).st_size:
            raise ValueError("non-blocking sockets are not supported")
        while data:
            left = memoryview(data)
            while left:
                number = skt.send(left)
                sent += number
                left = left[number:]
            size = SEND_BYTES if count is None else min(count - sent, SEND_BYTES)
            data = os.pread(descriptor, size, offset + sent)
        return sent
    finally:
        if sent and hasattr(file, "seek"):
            file.seek(offset + sent)


def splice(src: int, dst: int, count: int, *more: Any, **options: Any) -> int:
    """
    See C{os.splice}: between a socket over SDP and a pipe the bytes are copied.
    """
    assert _splice is not None
    source, target = _connectionOf(src), _connectionOf(dst)
    if source is None and target is None:
        moved: int = _splice(src, dst, count, *more, **options)
        return moved
    if not S_ISFIFO(os.fstat(src if source is None else dst).st_mode):
        raise failure(errno.EINVAL)
    names = ("offset_src", "offset_dst", "flags")
    given = {**dict(zip(names, more, strict=False)), **options}
    offsets = given.get("offset_src"), given.get("offset_dst")
    if any(each is not None for each in offsets):
        raise failure(errno.EINVAL if offsets[source is not None] is None else errno.ESPIPE)
    flags, size = given.get("flags", 0), min(count, _SPLICE_BYTES)
    timeout = 0.0 if flags & os.SPLICE_F_NONBLOCK else _timeoutOf(dst if source is None else src)
    # By a pipe of our own: between that and theirs the kernel moves what there is, or has room for.
    out, into = os.pipe()
    try:
        if source is not None:
            # The octets that have no room in theirs stay where they are.
            data = source.receive(size, kernel.MSG_PEEK, timeout)
            done = _splice(out, dst, _write(into, data), flags=flags) if data else 0
            if done:
                source.receive(done, 0, 0.0)
            return done
        assert target is not None
        target.awaitRoom(timeout)
        moved = _splice(src, into, size, flags=flags)
        return target.send(_read(out, moved), 0, None) if moved else 0
    finally:
        _close(out)
        _close(into)


def _mark(fd: Any) -> None:
    if not connected:
        return
    connection = _connectionOf(fd if isinstance(fd, int) else fd.fileno())
    if connection is not None:
        connection.isMarked = True


def setBlocking(fd: int, blocking: bool, /) -> None:
    """
    See C{os.set_blocking}.
    """
    _setBlocking(fd, blocking)
    _mark(fd)


def control(fd: Any, cmd: int, arg: Any = 0, /) -> Any:
    """
    See C{fcntl.fcntl}.
    """
    found = _fcntl(fd, cmd, arg)
    if cmd == fcntl.F_SETFL:
        _mark(fd)
    return found


def ioctl(fd: Any, request: int, arg: Any = 0, mutate_flag: bool = True, /) -> Any:
    """
    See C{fcntl.ioctl}: FIONREAD and SIOCOUTQ count the bytes of SDP.
    """
    found = _ioctl(fd, request, arg, mutate_flag)
    if request == termios.FIONBIO:
        _mark(fd)
    if request not in (termios.FIONREAD, termios.TIOCOUTQ):
        return found
    connection = _connectionOf(fd if isinstance(fd, int) else fd.fileno())
    if connection is None:
        return found
    number = connection.waiting() if request == termios.FIONREAD else connection.unsent()
    if isinstance(found, bytes):
        return _count(connection, number, found[:4]) + found[4:]
    # It was written to the buffer.
    with memoryview(arg) as view, view.cast("B") as room:
        room[:4] = _count(connection, number, bytes(room[:4]))
    return found


def _count(connection: Connection, number: int, kernels: bytes) -> bytes:
    # With the kernel's, which has some of its own while a connection moves to it.
    more = int.from_bytes(kernels, sys.byteorder) if connection.sendsByTCP() else 0
    return (number + more).to_bytes(4, sys.byteorder)


class SocketFile(io.FileIO):
    """
    The file of a descriptor, as C{open} makes it.
    """

    def readinto(self, buffer: Any, /) -> int | None:
        self._checkReadable()  # type: ignore[attr-defined]
        try:
            return readv(self.fileno(), [buffer])
        except BlockingIOError:
            return None

    def read(self, size: int | None = -1, /) -> bytes | None:  # type: ignore[override]
        if size is None or size < 0:
            return self.readall()
        self._checkReadable()  # type: ignore[attr-defined]
        try:
            return read(self.fileno(), size)
        except BlockingIOError:
            return None

    def readall(self) -> bytes | None:  # type: ignore[override]
        pieces = []
        while piece := self.read(SEND_BYTES):
            pieces.append(piece)
        # Nothing, and not the end: there is nothing yet.
        return None if piece is None and not pieces else b"".join(pieces)

    def write(self, data: Any, /) -> int | None:  # type: ignore[override]
        self._checkWritable()  # type: ignore[attr-defined]
        try:
            return write(self.fileno(), data)
        except BlockingIOError:
            return None

    def close(self) -> None:
        if self.closed or not self.closefd:
            super().close()
            return
        with leaving(self.fileno()):
            super().close()


#: Files that have bytes which are not in their descriptor yet.
_FLUSHED: Final = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
#: C{open} of the standard library in Python, whose files are L{SocketFile}s.
_BUFFERS: Final = ("BufferedReader", "BufferedWriter", "BufferedRandom", "TextIOWrapper", "text_encoding")
_openPython: Any = getattr(_pyio.open, "__func__", _pyio.open)
_openSocket: Any = FunctionType(
    _openPython.__code__,
    {**vars(_pyio), **{name: vars(io)[name] for name in _BUFFERS}, "FileIO": SocketFile},
    "open",
    _openPython.__defaults__,
)


def open(file: Any, *arguments: Any, **options: Any) -> Any:
    """
    See C{io.open}, which C{os.fdopen} calls.
    """
    if not connected or _connectionOf(file) is None:
        return _open(file, *arguments, **options)
    return _openSocket(file, *arguments, **options)


# A program that replaces it where it is, as pyfakefs does, knows it by this.
open.__module__ = _open.__module__


def flushAll() -> None:
    """
    The process ends: flush the files of connections over SDP, which end before the interpreter does that.
    """
    if not any(not each.listens and not each.loop.forked for each in Offloaded.parts.values()):
        return
    used = [each for each in _selves() if isinstance(each, io.RawIOBase)]
    # By the type alone: a proxy would be asked what it is.
    found = [each for each in objects.made() if type(each) in _FLUSHED and isinstance(each, _FLUSHED)]
    # A text's buffer comes after it.
    for file in sorted(found, key=lambda each: type(each) is not io.TextIOWrapper):
        # It may be closed or detached, and its peer gone.
        with suppress(Exception):
            raw = _rawOf(file)
            part = None if raw is None else _connectionOf(raw.fileno())
            # A thread that writes it, and may wait for the peer, has its lock.
            if part is not None and not part.loop.forked and not any(each is raw for each in used):
                file.flush()


def _rawOf(file: object) -> io.RawIOBase | None:
    # A program may have put something else beneath one, with an attribute of any name.
    while not isinstance(file, io.RawIOBase):
        if isinstance(file, io.TextIOWrapper):
            file = file.buffer
        elif isinstance(file, io.BufferedWriter | io.BufferedRandom):
            file = file.raw
        elif isinstance(file, io.BufferedRWPair):
            # It does not say what it writes to.
            inner: list[object] = gc.get_referents(file)
            file = next(each for each in inner if isinstance(each, io.BufferedWriter))
        else:
            return None
    return file


def _selves() -> Iterator[object]:
    # Whose methods other threads are in.
    for thread, top in sys._current_frames().items():
        frame: FrameType | None = top if thread != get_ident() else None
        while frame is not None:
            yield frame.f_locals.get("self")
            frame = frame.f_back


def close(fd: int) -> None:
    """
    See C{os.close}.
    """
    if not connected and fd.__class__ is int and fd not in known:
        # No connection, nor a listener of this number: duplicates of one have nothing to say.
        return _close(fd)
    if fd in own and (loop := madeLoop()) is not None and loop.reactor.descriptor == fd:
        # One that closes all there are, one by one.
        _sweep(0, sys.maxsize)
    with leaving(fd):
        _close(fd)
    return None


def duplicate(fd: int, fd2: int, inheritable: bool = True) -> int:
    """
    See C{os.dup2}: it closes what had the second number, and the sockets of that number have what the first
    one has.
    """
    skt = offloaded.get(fd2)
    # One that is about to connect is a socket alone.
    if (skt is None and not connected and fd2 not in known) or fd == fd2:
        return _dup2(fd, fd2, inheritable)
    # Of what is not open nothing is closed.
    os.fstat(fd)
    its = byDescriptor.get(fd2)
    others = () if its is None or its.others is None else tuple(its.others)
    with leaving(fd2):
        _dup2(fd, fd2, inheritable)
    if skt is not None:
        skt.take()
    for each in others:
        if each is not skt and each._sdp is its:
            # The first has ended what they had.
            each._sdp = None
            each.take()
    return fd2


def changeRoot(path: Any) -> None:
    """
    See C{os.chroot}: a server that listens waits for its clients then, by a module that could not be found.
    """
    from twisted_ib.blocking import waits  # noqa: F401

    _chroot(path)


def closeRange(fd_low: int, fd_high: int, /) -> None:
    """
    See C{os.closerange}.
    """
    if not own:
        return _closeRange(fd_low, fd_high)
    low, high = index(fd_low), index(fd_high)
    _sweep(low, high)
    for descriptor in sorted({*known, *offloaded}):
        # Where the loop goes on.
        if low <= descriptor < high:
            with suppress(OSError):
                close(descriptor)
    return _closeRange(low, high)


def _sweep(low: int, high: int) -> None:
    # The program closes descriptors that are none of its own, as a daemon does that begins: if the loop's is
    # among them the loop ends, with all that it carries.
    loop = madeLoop()
    if loop is None or loop.closed or not low <= loop.reactor.descriptor < high:
        return
    swept = []
    for descriptor, skt in list(offloaded.items()):
        part = skt.sdp
        if low <= descriptor < high:
            swept.append(skt)
        elif part is not None:
            # A listener outside of the range goes on over TCP; a connection is cut off.
            if part.listens:
                skt.useTCP()
            else:
                with loop:
                    part.close(True)
    try:
        loop.close()
    finally:
        forget()
    for skt in swept:
        # The program is about to close its descriptor: not what has the number later, as the next loop may.
        _socket.socket.detach(skt)
    # Those that outlive it.
    forgetWatches()
    closeWithin(low, high)


def executing(plain: Any) -> Callable[..., None]:
    """
    See C{subprocess.Popen}: start a process that is given no socket over SDP.  A socket that listens in
    both does so over TCP alone.

    @param plain: its C{_execute_child}.
    """
    names = plain.__code__.co_varnames[1 : plain.__code__.co_argcount]

    def execute(popen: Any, *arguments: Any) -> None:
        # Its standard descriptors are integers among the arguments; pass_fds is a tuple or a list.
        given: list[Any] = []
        below = 0
        for name, value in zip(names, arguments, strict=False):
            if name in ("p2cread", "c2pwrite", "errwrite"):
                given.append(value)
            elif name == "pass_fds":
                given += value
            elif name == "close_fds":
                below = 0 if value else sys.maxsize
        _give(given, below)
        plain(popen, *arguments)

    return execute


def spawning(plain: Callable[..., int]) -> Callable[..., int]:
    """
    See C{os.posix_spawn}, which tells nobody of the process that it makes: as L{executing}.

    @param plain: it, or C{os.posix_spawnp}.
    """

    def spawn(
        path: object,
        argv: object,
        env: object,
        /,
        *,
        file_actions: Iterable[Sequence[int]] | None = (),
        **options: object,
    ) -> int:
        actions = list(file_actions or ())
        # What is no action is its own to complain of.
        pairs = [each for each in actions if isinstance(each, tuple) and len(each) > 1]
        given = [each[1] for each in pairs if each[0] == os.POSIX_SPAWN_DUP2]
        _give(given, min([each[1] for each in pairs if each[0] == _CLOSEFROM], default=sys.maxsize))
        return plain(path, argv, env, file_actions=actions, **options)

    return spawn


def _give(given: Collection[int], below: int) -> None:
    # To another process; beside that it may inherit those below a number of which each says so itself.
    keep(given)
    for descriptor, skt in list(offloaded.items()):
        part, isGiven = skt.sdp, descriptor in given
        # Another thread may close it.
        with suppress(OSError):
            isGiven = isGiven or (descriptor < below and skt.get_inheritable())
        if isGiven and part is not None and part.listens:
            skt.useTCP()


class _Last:
    # Closes a loop when it is collected: what is made last is finalized after the program's.

    def __init__(self, loop: BlockingLoop) -> None:
        self._loop = loop

    def __del__(self) -> None:
        # If something has kept this too long, the interpreter has taken apart what is needed: the peers see
        # that the process has gone.
        try:
            self._loop.close(True)
        except Exception:
            pass


def _isUsedLast(loop: BlockingLoop) -> bool:
    # Whether a finalizer of the program (C{__del__}), which the interpreter calls after this, may send: a
    # connection stands.  Beside another thread, which is ended wherever it is, there is no more to be done.
    if loop.forked or loop.closed or active_count() > 1:
        return False
    streams = [each.stream for each in loop.connections() if each.sockets]
    paths = [each and each.queuePair.path for each in streams]
    # Peers on shared memory, and no others, see in any case that the process has gone.
    if not paths or not all(map(ISharedMemoryPath.providedBy, paths)):
        return False
    # Files and generators have one of C.
    kinds = {kind for kind in set(map(type, objects.made())) if hasFinalizer(kind)}
    return any(isinstance(getattr(kind, "__del__", None), FunctionType) for kind in kinds)


def _end() -> None:
    flushAll()
    loop = madeLoop()
    if loop is not None and _isUsedLast(loop):
        with loop:
            loop.closeOrphans()
            loop.poll()
            # Else a peer does not read: it is waited for once.
            if not loop.isUnsent():
                loop.last = _Last(loop)


# Before the loop's own.
life.atEnd(__name__, _end)
#: Of what owner: the name, and what stands for it.
CALLS: tuple[tuple[Any, str, Any], ...] = (
    *((os, name, call) for name, call in (("splice", splice),) if hasattr(os, name)),
    (os, "read", read),
    (os, "readv", readv),
    (os, "write", write),
    (os, "writev", writev),
    (os, "sendfile", sendfile),
    (os, "close", close),
    (os, "dup2", duplicate),
    (os, "closerange", closeRange),
    (os, "chroot", changeRoot),
    (io, "open", open),
    (builtins, "open", open),
    (os, "set_blocking", setBlocking),
    *((os, name, spawning(vars(os)[name])) for name in ("posix_spawn", "posix_spawnp") if hasattr(os, name)),
    (fcntl, "fcntl", control),
    (fcntl, "ioctl", ioctl),
)
