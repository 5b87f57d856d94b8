"""
How one process wakes another that sleeps.

Between processes of one user it is an eventfd: the sleeper has it in its epoll
object, edge-triggered, and never reads it.  Its owner can fill it, or make it
blocking so that a write would hang; so a write is made only while the flag
C{O_NONBLOCK} is seen to be set, and a full counter is no error.  (A process of
the same user that changes the flag between the look and the write could as well
stop us by a signal: between users there is no eventfd.)

Between users it is a byte on the pair's socket.
"""

from __future__ import annotations

import os
import socket

from twisted_ib.errors import DoorbellError, RingError
from twisted_ib.hca.host import libc

_ONE = (1).to_bytes(8, "little")  # little endian: rings are for x86-64 only
_BELL = b"!"
_DRAIN_MESSAGES = 64


class EventDoorbell:
    """
    An eventfd: ours to be woken by, or a peer's to wake it.

    @ivar fd: the descriptor, -1 when it is closed.
    """

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def create(cls) -> EventDoorbell:
        """
        A doorbell to be woken by.
        """
        return cls(libc.eventfd())

    @classmethod
    def attach(cls, fd: int) -> EventDoorbell:
        """
        A peer's doorbell.

        @param fd: what the peer sent; ours to close if this raises, the
            doorbell's if not.
        @raise DoorbellError: it is not a non-blocking eventfd.
        """
        try:
            kind = os.readlink(f"/proc/self/fd/{fd}")
            nonBlocking = libc.isNonBlocking(fd)
        except OSError as error:
            raise DoorbellError(f"a peer's doorbell cannot be looked at: {error}") from error
        if kind != "anon_inode:[eventfd]":
            raise DoorbellError(f"a peer offered {kind!r} as a doorbell, not an eventfd")
        if not nonBlocking:
            raise DoorbellError("a peer offered a doorbell that blocks")
        return cls(fd)

    def ring(self) -> bool:
        """
        Wake the peer.

        @return: False if the counter is full: then it is readable anyway.
        @raise RingError: the peer made its doorbell blocking.
        """
        fd = self.fd
        if not libc.isNonBlocking(fd):
            raise RingError("a peer made its doorbell blocking")
        try:
            os.write(fd, _ONE)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """
        Close the descriptor.
        """
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class SocketDoorbell:
    """
    The pair's socket as a doorbell, for a peer of another user.

    @ivar fd: the socket's descriptor.
    """

    __slots__ = ("_socket", "fd")

    def __init__(self, pair: socket.socket) -> None:
        self._socket = pair
        self.fd = pair.fileno()

    def ring(self) -> bool:
        """
        Wake the peer.

        @return: False if its socket is full (then it is readable anyway) or
            gone (then the pair's owner hears of it by itself).
        """
        try:
            self._socket.send(_BELL, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:
            return False
        return True

    def drain(self) -> bool:
        """
        Take up to 64 rings of the peer out of the socket.

        @return: False if the peer has hung up.
        """
        for _ in range(_DRAIN_MESSAGES):
            try:
                if not self._socket.recv(1, socket.MSG_DONTWAIT):
                    return False
            except BlockingIOError:
                return True
            except OSError:
                return False
        return True

    def close(self) -> None:
        """
        Forget the socket.
        """
        self.fd = -1


__all__ = ["EventDoorbell", "SocketDoorbell"]
