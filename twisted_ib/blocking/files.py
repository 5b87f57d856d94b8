"""
Calls of the operating system by descriptor, for sockets over SDP: their bytes are not at the descriptor.

Each does what it does with a TCP socket (read(2), write(2), sendfile(2)), and what L{os} does with any other
descriptor.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Any

from twisted_ib.blocking.connection import SEND_BYTES, Connection, failure
from twisted_ib.blocking.descriptors import partOf
from twisted_ib.blocking.socket import socket

_read, _write, _readv, _writev = os.read, os.write, os.readv, os.writev
_sendfile, _fdopen, _splice = os.sendfile, os.fdopen, getattr(os, "splice", None)


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
    connection = _connectionOf(fd)
    if connection is None:
        return _read(fd, length)
    if length < 0:
        raise failure(errno.EINVAL)
    return connection.receive(length, 0, _timeoutOf(fd)) if length else b""


def readv(fd: int, buffers: Sequence[Any], /) -> int:
    """
    See C{os.readv}.
    """
    connection = _connectionOf(fd)
    if connection is None:
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
    connection = _connectionOf(fd)
    if connection is None:
        return _write(fd, data)
    return connection.send(data, 0, _timeoutOf(fd))


def writev(fd: int, buffers: Sequence[Any], /) -> int:
    """
    See C{os.writev}.
    """
    connection = _connectionOf(fd)
    if connection is None:
        return _writev(fd, buffers)
    return connection.send(b"".join(buffers), 0, _timeoutOf(fd))


def sendfile(out_fd: int, in_fd: int, offset: int | None, count: int, *more: Any, **options: Any) -> int:
    """
    See C{os.sendfile}.
    """
    connection = _connectionOf(out_fd)
    if connection is None:
        return _sendfile(out_fd, in_fd, offset, count, *more, **options)
    try:
        at = os.lseek(in_fd, 0, os.SEEK_CUR) if offset is None else offset
        data = os.pread(in_fd, min(count, SEND_BYTES), at)
    except OSError as error:
        # sendfile(2): it has to be a file.
        raise failure(errno.EINVAL if error.errno == errno.ESPIPE else error.errno or 0) from None
    sent = connection.send(data, 0, _timeoutOf(out_fd)) if data else 0
    if offset is None:
        os.lseek(in_fd, at + sent, os.SEEK_SET)
    return sent


def splice(src: int, dst: int, *more: Any, **options: Any) -> int:
    """
    See C{os.splice}: a socket over SDP is no end of it, as many a descriptor is none.
    """
    if _connectionOf(src) is not None or _connectionOf(dst) is not None:
        raise failure(errno.EINVAL)
    assert _splice is not None
    moved: int = _splice(src, dst, *more, **options)
    return moved


def fdopen(fd: int, mode: str = "r", buffering: int = -1, *more: Any, **options: Any) -> Any:
    """
    See C{os.fdopen}.
    """
    if _connectionOf(fd) is None:
        return _fdopen(fd, mode, buffering, *more, **options)
    closes = options.pop("closefd", True)
    encoding, errors, newline = (*more, None, None, None)[:3]
    made = socket(fileno=fd if closes else os.dup(fd))
    texts = {"encoding": encoding, "errors": errors, "newline": newline, **options}
    kind = mode.replace("r", "rw").replace("+", "") if "+" in mode else mode
    file = made.makefile(kind, buffering, **texts)  # type: ignore[call-overload]
    # The descriptor is closed with the file.
    made.close()
    return file


#: Of L{os}: the name, and what stands for it.
CALLS = tuple(
    (name, call)
    for name, call in (
        ("read", read),
        ("readv", readv),
        ("write", write),
        ("writev", writev),
        ("sendfile", sendfile),
        ("splice", splice),
        ("fdopen", fdopen),
    )
    if hasattr(os, name)
)

__all__ = ["CALLS", "fdopen", "read", "readv", "sendfile", "splice", "write", "writev"]
