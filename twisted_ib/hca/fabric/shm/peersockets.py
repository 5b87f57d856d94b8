"""
The sockets of one HCA to the processes that it has paths to or is shaking hands with.
"""

from __future__ import annotations

import select
from collections.abc import Iterator
from typing import TYPE_CHECKING

from twisted_ib.hca.fabric.shm.peersocket import PeerSocket

if TYPE_CHECKING:
    from select import epoll

    from twisted_ib.hca.base.interfaces import PathUser
    from twisted_ib.hca.fabric.shm.shm import SharedMemoryFabric


class PathRequest:
    """
    A consumer's request for a path while the handshake goes on.
    """

    __slots__ = ("_fabric", "_user")

    def __init__(self, fabric: SharedMemoryFabric, user: PathUser) -> None:
        self._fabric = fabric
        self._user = user

    def cancel(self) -> None:
        """
        Drop the request: the consumer is not called.
        """
        self._fabric.forget(self._user)


class PeerSockets:
    """
    The peer sockets of one HCA, each watched in an epoll object together with its peer's pidfd.

    @ivar greeting: Those whose handshake goes on, oldest first.
    @ivar poller: The C{select.epoll} object.
    """

    def __init__(self, poller: epoll) -> None:
        self.poller = poller
        self.greeting: dict[PeerSocket, None] = {}
        self._bySocket: dict[int, PeerSocket] = {}
        self._byProcess: dict[int, PeerSocket] = {}

    def __len__(self) -> int:
        return len(self._bySocket)

    def __iter__(self) -> Iterator[PeerSocket]:
        return iter(self._bySocket.values())

    def add(self, peerSocket: PeerSocket) -> None:
        """
        Watch a new one.

        @raise OSError: the kernel refuses (epoll_ctl(2): ENOSPC, ENOMEM).
        """
        self.poller.register(peerSocket.fd, select.EPOLLIN | select.EPOLLRDHUP)
        # A forked child of a dead peer keeps the socket open; only the pidfd reports the death then
        # (pidfd_open(2)).
        pidfd = peerSocket.liveness.fd
        if pidfd >= 0:
            try:
                self.poller.register(pidfd, select.EPOLLIN)
            except BaseException:
                self.poller.unregister(peerSocket.fd)
                raise
            self._byProcess[pidfd] = peerSocket
        self._bySocket[peerSocket.fd] = peerSocket
        self.greeting[peerSocket] = None

    def watch(self, peerSocket: PeerSocket, events: int) -> None:
        """
        Watch a socket for other events than before.
        """
        # The path may outlive the watch for a moment: epoll_ctl(2) would fail with ENOENT.
        if peerSocket.fd in self._bySocket:
            self.poller.modify(peerSocket.fd, events)

    def remove(self, peerSocket: PeerSocket) -> bool:
        """
        Stop watching.

        @return: False if it was not watched.
        """
        if self._bySocket.pop(peerSocket.fd, None) is None:
            return False
        self.greeting.pop(peerSocket, None)
        # Before the descriptor is closed: epoll(7) keeps watching an open file that a forked child still
        # holds.
        self.poller.unregister(peerSocket.fd)
        pidfd = peerSocket.liveness.fd
        if pidfd >= 0:
            del self._byProcess[pidfd]
            self.poller.unregister(pidfd)
        return True

    def ofSocket(self, fd: int) -> PeerSocket | None:
        """
        @return: The peer socket with this descriptor, or L{None}.
        """
        return self._bySocket.get(fd)

    def ofProcess(self, fd: int) -> PeerSocket | None:
        """
        @return: The peer socket whose peer has this pidfd, or L{None}.
        """
        return self._byProcess.get(fd)

    # -- handshakes

    def dialling(self, guid: int) -> PeerSocket | None:
        """
        @return: Our own unfinished handshake with the HCA of a GUID, or L{None}.
        """
        for peerSocket in self.greeting:
            # A handshake that the peer began does not count: its GUID is only claimed.
            if peerSocket.guid == guid and not peerSocket.server:
                return peerSocket
        return None

    def greeted(self, peerSocket: PeerSocket) -> None:
        """
        Note that a handshake is complete.
        """
        self.greeting.pop(peerSocket, None)

    def forget(self, user: PathUser) -> PeerSocket | None:
        """
        Remove a consumer from the handshake that it waits for.

        @return: that, if nobody waits for it any more.
        """
        for peerSocket in self.greeting:
            if user in peerSocket.users:
                peerSocket.users.remove(user)
                return None if peerSocket.users else peerSocket
        return None

    def deadline(self) -> float | None:
        """
        @return: When the first handshake times out, or L{None}.
        """
        found: float | None = None
        # No heap: HANDSHAKES_PER_PROCESS and limits.PEERS bound the list, and it is mostly empty.
        for peerSocket in self.greeting:
            handshake = peerSocket.handshake
            if handshake is not None and handshake.deadline is not None:
                if found is None or handshake.deadline < found:
                    found = handshake.deadline
        return found
