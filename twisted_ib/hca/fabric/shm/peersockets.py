"""
The sockets to the processes that one HCA has paths to, or is about to have.
"""

from __future__ import annotations

import select
from collections.abc import Iterator
from typing import Any

from twisted_ib.hca.fabric.shm.peersocket import PeerSocket


class PathRequest:
    """
    A user's wish for a path, while the handshake goes on.
    """

    __slots__ = ("_pairs", "_user")

    def __init__(self, pairs: PeerSockets, user: Any) -> None:
        """
        Begin nothing: the fabric does.

        @param pairs: Where the user is entered.
        @param user: Whom the fabric tells.
        """
        self._pairs = pairs
        self._user = user

    def cancel(self) -> None:
        """
        The user does not want to hear of it any more.
        """
        self._pairs.forget(self._user)


class PeerSockets:
    """
    The pairs of one HCA, each with its socket and its peer's pidfd in an epoll object.

    @ivar greeting: Those whose handshake goes on, the oldest first.
    @ivar poller: The C{select.epoll} in which they are watched.
    """

    def __init__(self, poller: Any) -> None:
        self.poller = poller
        self.greeting: dict[PeerSocket, None] = {}
        self._bySocket: dict[int, PeerSocket] = {}
        self._byProcess: dict[int, PeerSocket] = {}

    def __len__(self) -> int:
        """
        @return: How many there are.
        """
        return len(self._bySocket)

    def __iter__(self) -> Iterator[PeerSocket]:
        """
        @return: All of them, the oldest first.
        """
        return iter(self._bySocket.values())

    def add(self, peerSocket: PeerSocket) -> None:
        """
        Have a new one watched.

        @raise OSError: the kernel watches no more.
        """
        self.poller.register(peerSocket.fd, select.EPOLLIN | select.EPOLLRDHUP)
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
        Have a socket watched for other events than before.
        """
        if peerSocket.fd in self._bySocket:
            self.poller.modify(peerSocket.fd, events)

    def remove(self, peerSocket: PeerSocket) -> bool:
        """
        Have it watched no more.

        @return: False if it was not.
        """
        if self._bySocket.pop(peerSocket.fd, None) is None:
            return False
        self.greeting.pop(peerSocket, None)
        self.poller.unregister(peerSocket.fd)
        pidfd = peerSocket.liveness.fd
        if pidfd >= 0:
            del self._byProcess[pidfd]
            self.poller.unregister(pidfd)
        return True

    def ofSocket(self, fd: int) -> PeerSocket | None:
        """
        @return: Whose socket C{fd} is, or L{None}.
        """
        return self._bySocket.get(fd)

    def ofProcess(self, fd: int) -> PeerSocket | None:
        """
        @return: Whose peer's pidfd C{fd} is, or L{None}.
        """
        return self._byProcess.get(fd)

    # -- handshakes

    def dialling(self, guid: int) -> PeerSocket | None:
        """
        @return: The handshake with the HCA of a GUID that this side has begun, or
            L{None}.
        """
        for peerSocket in self.greeting:
            if peerSocket.guid == guid and not peerSocket.server:
                return peerSocket
        return None

    def greeted(self, peerSocket: PeerSocket) -> None:
        """
        Its handshake is over.
        """
        self.greeting.pop(peerSocket, None)

    def forget(self, user: Any) -> None:
        """
        C{user} does not want a path any more.
        """
        for peerSocket in self.greeting:
            if user in peerSocket.users:
                peerSocket.users.remove(user)

    def deadline(self) -> float | None:
        """
        @return: When the first handshake takes too long, or L{None}.
        """
        found: float | None = None
        for peerSocket in self.greeting:
            exchange = peerSocket.exchange
            if exchange is not None and exchange.deadline is not None:
                if found is None or exchange.deadline < found:
                    found = exchange.deadline
        return found


__all__ = ["PathRequest", "PeerSockets"]
