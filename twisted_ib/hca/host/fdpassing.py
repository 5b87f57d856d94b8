"""
Messages with descriptors (SCM_RIGHTS) over a SEQPACKET socket, never blocking; ends of TCP that go there.
"""

from __future__ import annotations

import _socket
import errno
import os
import socket
import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, Final

from twisted_ib.errors import DescriptorError, PathLostError
from twisted_ib.hca.host.libc import KernelSocket

if TYPE_CHECKING:
    from twisted_ib.structs import Packed


_accept: Final[Callable[[_socket.socket], tuple[int, object]]] = vars(_socket.socket)["_accept"]
_INT: Packed[tuple[int]] = struct.Struct("=i")
#: SO_LINGER's struct linger (socket(7)): on, and no time.  A close resets the connection.
LINGER_RESET: Final = struct.pack("=ii", 1, 0)
#: Strangers that connect to a socket which waits for our own one, at most.
_STRANGERS: Final = 8
#: Seconds that a host may take to connect to itself.
PAIR_SECONDS: Final = 0.1


def closeAll(descriptors: Iterable[int]) -> None:
    """
    Close descriptors.
    """
    for fd in descriptors:
        os.close(fd)


def refuse(descriptor: int) -> None:
    """
    Close a descriptor of a connection of TCP that a peer has sent, so that it finds a reset, not an end.
    """
    with suppress(OSError):
        plain = _socket.socket(fileno=descriptor)
        try:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)
        finally:
            plain.detach()
    os.close(descriptor)


def takeTCP(descriptor: int) -> KernelSocket | None:
    """
    Return the socket of a connection of TCP that a peer has sent; L{None} if it is none, which is refused.
    """
    try:
        plain = KernelSocket(fileno=descriptor)
    except OSError:
        refuse(descriptor)
        return None
    with suppress(OSError):
        plain.getpeername()
        if (plain.type, plain.proto) == (socket.SOCK_STREAM, socket.IPPROTO_TCP):
            return plain
    refuse(plain.detach())
    return None


def pairOfTCP() -> tuple[_socket.socket, _socket.socket]:
    """
    Return two sockets of TCP that are connected with each other.

    @raise OSError: None is to be had.
    """
    listener = _socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    with closing(listener):
        listener.bind(("127.0.0.1", 0))
        listener.listen(_STRANGERS)
        mine = _socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        mine.settimeout(PAIR_SECONDS)
        listener.settimeout(PAIR_SECONDS)
        try:
            mine.connect(listener.getsockname())
            for _ in range(_STRANGERS):
                descriptor, address = _accept(listener)
                theirs = _socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, descriptor)
                if address == mine.getsockname():
                    mine.setblocking(False)
                    return mine, theirs
                theirs.close()
        except BaseException:
            mine.close()
            raise
        mine.close()
    raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))


def takesAll(skt: _socket.socket, data: bytes) -> bool:
    """
    Send, and return whether the kernel takes all of it at once, at the latest with room made for it.
    """
    sent = 0
    with suppress(OSError):
        sent = skt.send(data, socket.MSG_DONTWAIT)
        if sent < len(data):
            skt.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, len(data))
            sent += skt.send(data[sent:], socket.MSG_DONTWAIT)
    return sent == len(data)


def sendWithDescriptors(pair: socket.socket, data: bytes, descriptors: Sequence[int] = ()) -> bool:
    """
    Send one message; the descriptors stay open here.

    @return: False if the socket has no room now.
    @raise PathLostError: the peer is gone.
    """
    ancillary = []
    if descriptors:
        packed = b"".join([_INT.pack(fd) for fd in descriptors])
        ancillary.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, packed))
    try:
        pair.sendmsg([data], ancillary, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    except BlockingIOError:
        return False
    except OSError as error:
        raise PathLostError(f"a message to a peer was not sent: {error}") from error
    return True


def _receive(pair: socket.socket, maxBytes: int, room: int) -> tuple[bytes, list[Any], int, Any]:
    flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
    try:
        return pair.recvmsg(maxBytes, room, flags)
    except ConnectionResetError:
        # Linux net/unix/af_unix.c, unix_release_sock: a peer that closes with messages unread sets
        # ECONNRESET, which is reported once, before what the peer had sent.
        return pair.recvmsg(maxBytes, room, flags)


def receiveWithDescriptors(
    pair: socket.socket, maxBytes: int, maxCount: int = 0
) -> tuple[bytes, list[int]] | None:
    """
    Receive one message.

    @param maxBytes: the longest message accepted.
    @param maxCount: how many descriptors may come with it.
    @return: the message (empty at the end of the connection) and its descriptors, the caller's to close;
        L{None} if there is none yet.
    @raise DescriptorError: the message was longer or had more descriptors, or none is free for them.
    @raise PathLostError: the peer is gone.
    """
    # A peer may send up to 253 descriptors (SCM_MAX_FD, unix(7)).  What does not fit into the control
    # buffer is closed by the kernel, so the buffer is exact: CMSG_SPACE rounds up to 8 bytes and could
    # leave room for one more.
    room = socket.CMSG_LEN(maxCount * _INT.size) if maxCount else 0
    try:
        data, ancillary, flags, _ = _receive(pair, maxBytes, room)
    except BlockingIOError:
        return None
    except OSError as error:
        raise PathLostError(f"no more messages from a peer: {error}") from error
    descriptors: list[int] = []
    for level, kind, packed in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            whole = len(packed) - len(packed) % _INT.size
            descriptors.extend(fd for (fd,) in _INT.iter_unpack(packed[:whole]))
    # Refused as a whole: the descriptors that did arrive cannot be told from those that did not.  The
    # kernel also truncates when RLIMIT_NOFILE is reached (Linux net/core/scm.c, scm_detach_fds).
    if flags & socket.MSG_CTRUNC:
        try:
            os.close(os.dup(pair.fileno()))
        except OSError as error:
            raise DescriptorError(f"no descriptor is free for those of a peer: {error.strerror}") from error
        finally:
            closeAll(descriptors)
        raise DescriptorError(f"a peer sent more than {maxCount} descriptors")
    if flags & socket.MSG_TRUNC:
        closeAll(descriptors)
        raise DescriptorError(f"a peer sent a message of more than {maxBytes} bytes")
    return data, descriptors
