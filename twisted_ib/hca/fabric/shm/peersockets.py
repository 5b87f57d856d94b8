"""
The sockets to the processes that one HCA has paths to, or is about to have.
"""

from __future__ import annotations

import select
from collections.abc import Iterator
from typing import Any

from twisted_ib.hca.fabric.shm.peersocket import Pairing


class Search:
    """
    A user's wish for a path, while the handshake goes on.
    """

    __slots__ = ("_pairs", "_user")

    def __init__(self, pairs: Pairs, user: Any) -> None:
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


class Pairs:
    """
    The pairs of one HCA, each with its socket and its peer's pidfd in an epoll object.

    @ivar greeting: Those whose handshake goes on, the oldest first.
    @ivar poller: The C{select.epoll} in which they are watched.
    """

    def __init__(self, poller: Any) -> None:
        """
        Have none.
        """
        self.poller = poller
        self.greeting: dict[Pairing, None] = {}
        self._bySocket: dict[int, Pairing] = {}
        self._byProcess: dict[int, Pairing] = {}

    def __len__(self) -> int:
        """
        @return: How many there are.
        """
        return len(self._bySocket)

    def __iter__(self) -> Iterator[Pairing]:
        """
        @return: All of them, the oldest first.
        """
        return iter(self._bySocket.values())

    def add(self, pairing: Pairing) -> None:
        """
        Have a new one watched.

        @raise OSError: the kernel watches no more.
        """
        self.poller.register(pairing.fd, select.EPOLLIN | select.EPOLLRDHUP)
        pidfd = pairing.liveness.fd
        if pidfd >= 0:
            try:
                self.poller.register(pidfd, select.EPOLLIN)
            except BaseException:
                self.poller.unregister(pairing.fd)
                raise
            self._byProcess[pidfd] = pairing
        self._bySocket[pairing.fd] = pairing
        self.greeting[pairing] = None

    def watch(self, pairing: Pairing, events: int) -> None:
        """
        Have a socket watched for other events than before.
        """
        if pairing.fd in self._bySocket:
            self.poller.modify(pairing.fd, events)

    def remove(self, pairing: Pairing) -> bool:
        """
        Have it watched no more.

        @return: False if it was not.
        """
        if self._bySocket.pop(pairing.fd, None) is None:
            return False
        self.greeting.pop(pairing, None)
        self.poller.unregister(pairing.fd)
        pidfd = pairing.liveness.fd
        if pidfd >= 0:
            del self._byProcess[pidfd]
            self.poller.unregister(pidfd)
        return True

    def ofSocket(self, fd: int) -> Pairing | None:
        """
        @return: Whose socket C{fd} is, or L{None}.
        """
        return self._bySocket.get(fd)

    def ofProcess(self, fd: int) -> Pairing | None:
        """
        @return: Whose peer's pidfd C{fd} is, or L{None}.
        """
        return self._byProcess.get(fd)

    # -- handshakes

    def dialling(self, guid: int) -> Pairing | None:
        """
        @return: The handshake with the HCA of a GUID that this side has begun, or
            L{None}.
        """
        for pairing in self.greeting:
            if pairing.guid == guid and not pairing.server:
                return pairing
        return None

    def greeted(self, pairing: Pairing) -> None:
        """
        Its handshake is over.
        """
        self.greeting.pop(pairing, None)

    def forget(self, user: Any) -> None:
        """
        C{user} does not want a path any more.
        """
        for pairing in self.greeting:
            if user in pairing.users:
                pairing.users.remove(user)

    def deadline(self) -> float | None:
        """
        @return: When the first handshake takes too long, or L{None}.
        """
        found: float | None = None
        for pairing in self.greeting:
            exchange = pairing.exchange
            if exchange is not None and exchange.deadline is not None:
                if found is None or exchange.deadline < found:
                    found = exchange.deadline
        return found


__all__ = ["Pairs", "Search"]
