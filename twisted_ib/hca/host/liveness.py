"""
Peer credentials, and whether a peer's process is alive.

The end of the peer socket reports a death at once, unless a forked child of the dead process holds a copy
of it.  So each peer also has a pidfd, which becomes readable when the process ends.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from twisted_ib.drive.process import Descriptor
from twisted_ib.drive.sleeper import awaitReady
from twisted_ib.errors import PathLostError, PeerIdentityError
from twisted_ib.hca.host import libc
from twisted_ib.layouts import Shown
from twisted_ib.records import frozen
from twisted_ib.settings import ALLOW_UIDS

if TYPE_CHECKING:
    from twisted_ib.structs import Packed


#: Linux 6.5 and newer (include/uapi/asm-generic/socket.h): a pidfd of the peer, immune to reuse of its pid.
SO_PEERPIDFD = 77

_CREDENTIALS: Packed[tuple[int, int, int]] = struct.Struct("=iII")


@frozen(repr=False)
class PeerCredentials(Shown):
    """
    The kernel's word on the process at the other end of a socket.

    @ivar pid: its process, 0 if outside our pid namespace.
    @ivar uid: its effective user.
    @ivar gid: its effective group.
    """

    # unix(7), SO_PEERCRED: as of connect(2) or listen(2), whichever the peer called.  A process that has
    # dropped root since is still root here.
    pid: int
    uid: int
    gid: int


def peerCredentials(pair: socket.socket) -> PeerCredentials:
    """
    @return: The credentials of the process at the other end.
    """
    data = pair.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(data)
    return PeerCredentials(pid, uid, gid)


def checkPeer(pair: socket.socket, allows: Callable[[int], bool], called: bool = False) -> PeerCredentials:
    """
    Read the peer's credentials and check its user.

    @param allows: whether a uid is allowed.
    @param called: whether the peer called us; it is told the error's text.
    @raise PeerIdentityError: its user is not.
    """
    peer = peerCredentials(pair)
    if not allows(peer.uid) and called:
        raise PeerIdentityError(f"its owner, user {os.geteuid()}, does not allow user {peer.uid}")
    if not allows(peer.uid):
        raise PeerIdentityError(
            f"process {peer.pid} belongs to user {peer.uid}, which is not in {ALLOW_UIDS}"
        )
    return peer


class Liveness(Descriptor):
    """
    A watch on the process at the other end of a socket.

    @ivar fd: a pidfd, readable once the process has ended; -1 if the kernel gives none, so that only the
        end of the socket reports it.
    """

    __slots__ = ()

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
        # Kernels before 6.5.  The pid may have been reused between connect and here, in which case another
        # process is watched; the end of the socket still reports the death.  Of 0, one outside our
        # pid namespace, there is none.
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
        return self.fd >= 0 and awaitReady(self.fd, 0) > 0
