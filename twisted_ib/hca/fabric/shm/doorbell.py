"""
Doorbells: how one process wakes another that sleeps.

Between processes of one user a doorbell is an eventfd, which its owner watches edge-triggered and never
reads. Between users it is a byte on the peer socket.
"""

from __future__ import annotations

import os
import socket

from twisted_ib.drive.process import Descriptor
from twisted_ib.errors import DoorbellError, RingError
from twisted_ib.hca.host import libc

_BELL = b"!"
#: Rings read at a time: a peer that keeps ringing must not hold up the reactor's turn.
_DRAIN_MESSAGES = 64


class EventDoorbell(Descriptor):
    """
    An eventfd: our own, or a peer's.
    """

    __slots__ = ()

    @classmethod
    def create(cls) -> EventDoorbell:
        """
        Create the doorbell that peers ring to wake this process.
        """
        return cls(libc.eventfd())

    @classmethod
    def attach(cls, fd: int) -> EventDoorbell:
        """
        Take over the eventfd that a peer sent.

        @param fd: stays the caller's to close if this raises.
        @raise DoorbellError: it is not a non-blocking eventfd.
        """
        try:
            kind = os.readlink(f"/proc/self/fd/{fd}")
            nonBlocking = libc.isNonBlocking(fd)
        except OSError as error:
            raise DoorbellError(f"a peer's doorbell cannot be looked at: {error}") from error
        # Linux fs/eventfd.c gives every eventfd this name.  A write to anything else that a peer may send
        # (a pipe, a file, a terminal) could block or have effects of its own.
        if kind != "anon_inode:[eventfd]":
            raise DoorbellError(f"a peer offered {kind!r} as a doorbell, not an eventfd")
        if not nonBlocking:
            raise DoorbellError("a peer offered a doorbell that blocks")
        return cls(fd)

    def ring(self) -> bool:
        """
        Wake the peer.

        @return: False if the counter is full.
        @raise RingError: the peer made its doorbell blocking.
        """
        fd = self.fd
        # eventfd(2): with the counter full a write blocks unless O_NONBLOCK is set, and the peer shares the
        # open file: it can fill the counter and clear the flag at any time.  Hence the check before each
        # write.  A peer that wins the race between check and write has our own user and could stop us by a
        # signal as well; another user is never given an eventfd.  No call saves the check: pwritev2(2)
        # refuses RWF_NOWAIT here, and of a write of 0, which never blocks, eventfd(2) does not say that it
        # wakes anybody.
        if os.get_blocking(fd):
            raise RingError("a peer made its doorbell blocking")
        try:
            libc.eventfdWrite(fd, 1)
        # eventfd(2): EAGAIN means the counter is at its maximum, so the descriptor is readable: the peer
        # wakes anyway.
        except BlockingIOError:
            return False
        return True


class SocketDoorbell:
    """
    The peer socket as a doorbell, for a peer of another user.

    @ivar fd: the socket's descriptor.
    """

    __slots__ = ("_socket", "fd")

    def __init__(self, pair: socket.socket) -> None:
        self._socket = pair
        self.fd = pair.fileno()

    def ring(self) -> bool:
        """
        Wake the peer.

        @return: False if the socket is full or its peer is gone.
        """
        try:
            self._socket.send(_BELL, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        # Full: the peer has unread rings and will wake.  Gone: the watch on the socket reports it, and
        # ring() has no reason to.
        except OSError:
            return False
        return True

    def drain(self) -> bool:
        """
        Read up to 64 rings from the socket.

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
        Drop the reference; the socket itself belongs to the peer socket object.
        """
        self.fd = -1
