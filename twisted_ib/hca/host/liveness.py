"""
Who a peer is, and whether it still lives.

The end of the pair's socket tells of a death at once, but not while a forked
child of the dead process holds its copy.  So each pair also has a pidfd, a
descriptor that becomes readable when the process is dead.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Callable

import attrs

from twisted_ib.errors import PathLostError, PeerIdentityError
from twisted_ib.hca.host import libc

SO_PEERPIDFD = 77
"""
Linux 6.5 and newer: a pidfd of the peer, safe against reuse of its number.
"""

_CREDENTIALS = struct.Struct("=iII")


@attrs.frozen
class PeerCredentials:
    """
    What the kernel says of the process at the other end of a socket.

    It is as of C{connect} or C{listen}, whichever the peer called: a process
    that has shed its root rights since is still root here.

    @ivar pid: its number, 0 if it is outside our process namespace.
    @ivar uid: its effective user.
    @ivar gid: its effective group.
    """

    pid: int
    uid: int
    gid: int


def peerCredentials(pair: socket.socket) -> PeerCredentials:
    """
    Who is at the other end.
    """
    data = pair.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(data)
    return PeerCredentials(pid, uid, gid)


def checkPeer(pair: socket.socket, allows: Callable[[int], bool]) -> PeerCredentials:
    """
    Who is at the other end, if that user may be.

    @param allows: says of a uid whether it is let in.
    @raise PeerIdentityError: it is not.
    """
    peer = peerCredentials(pair)
    if not allows(peer.uid):
        raise PeerIdentityError(
            f"process {peer.pid} belongs to user {peer.uid}, which is not in TWISTED_IB_ALLOW_UIDS"
        )
    return peer


class Liveness:
    """
    Whether the process at the other end of a socket lives.

    @ivar fd: a pidfd, readable from its death on; -1 if the kernel gives none,
        then only the end of the socket tells.
    """

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def of(cls, pair: socket.socket) -> Liveness:
        """
        Watch the peer of C{pair}.

        @raise PathLostError: it is dead already.
        """
        try:
            return cls(pair.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD))
        except ProcessLookupError as error:
            raise PathLostError("the peer's process is gone") from error
        except OSError:
            return cls._byNumber(peerCredentials(pair).pid)

    @classmethod
    def _byNumber(cls, pid: int) -> Liveness:
        """
        Watch process C{pid}, on kernels without SO_PEERPIDFD.
        """
        if pid <= 0:
            return cls(-1)
        try:
            return cls(libc.pidfdOpen(pid))
        except ProcessLookupError as error:
            raise PathLostError(f"the peer's process {pid} is gone") from error
        except OSError:
            return cls(-1)

    def dead(self) -> bool:
        """
        Whether the process is known to be dead.
        """
        if self.fd < 0:
            return False
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """
        Close the descriptor.
        """
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


__all__ = ["SO_PEERPIDFD", "Liveness", "PeerCredentials", "checkPeer", "peerCredentials"]
