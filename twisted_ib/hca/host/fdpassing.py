"""
Messages with descriptors over a SEQPACKET socket, never waiting.

A peer may send as many descriptors as it likes.  The room for them is exactly
what the message may bring, what does not fit is closed by the kernel and
reported, and then all are closed and the message is refused.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Sequence

from twisted_ib.errors import DescriptorError, PathLostError

_INT = struct.Struct("=i")


def closeAll(descriptors: Iterable[int]) -> None:
    """
    Close descriptors.
    """
    for fd in descriptors:
        os.close(fd)


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


def receiveWithDescriptors(
    pair: socket.socket, maxBytes: int, maxCount: int = 0
) -> tuple[bytes, list[int]] | None:
    """
    Take one message.

    @param maxBytes: the longest message that is taken.
    @param maxCount: how many descriptors may come with it.
    @return: the message (empty at the end of the connection) and its
        descriptors, ours to close; None if there is none yet.
    @raise DescriptorError: the message was longer or had more descriptors.
    @raise PathLostError: the peer is gone.
    """
    # CMSG_SPACE would leave room for one more, because it rounds up.
    room = socket.CMSG_LEN(maxCount * _INT.size) if maxCount else 0
    try:
        data, ancillary, flags, _ = pair.recvmsg(
            maxBytes, room, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
        )
    except BlockingIOError:
        return None
    except OSError as error:
        raise PathLostError(f"no more messages from a peer: {error}") from error
    descriptors: list[int] = []
    for level, kind, packed in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            whole = len(packed) - len(packed) % _INT.size
            descriptors.extend(fd for (fd,) in _INT.iter_unpack(packed[:whole]))
    if flags & socket.MSG_CTRUNC:
        closeAll(descriptors)
        raise DescriptorError(f"a peer sent more than {maxCount} descriptors, or none is free here")
    if flags & socket.MSG_TRUNC:
        closeAll(descriptors)
        raise DescriptorError(f"a peer sent a message of more than {maxBytes} bytes")
    return data, descriptors


__all__ = ["closeAll", "receiveWithDescriptors", "sendWithDescriptors"]
