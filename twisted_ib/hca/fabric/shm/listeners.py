"""
Where other HCAs call, and how many calls of whom are taken.

Each path costs up to six descriptors of this process, for a while eight, so peers
are bounded by an eighth of RLIMIT_NOFILE too.  One process, and one user who is not
ours, has only a part of them: the others can still call.

When no descriptor is free a call cannot be taken, and its listener stays readable:
then nobody listens until a pair is closed or a short time has passed.
"""

from __future__ import annotations

import resource
import select
import socket
from collections.abc import Callable, Iterable
from typing import Any

from twisted_ib import limits
from twisted_ib.errors import ResourceLimitError
from twisted_ib.hca.host.rendezvous import Rendezvous

#: Of those, handshakes that are not done.
HANDSHAKES_PER_PROCESS = 16
#: How long nobody listens when no descriptor is free, in seconds.
ACCEPT_PAUSE_SECONDS = 0.1


def mostPeers() -> int:
    """
    @return: How many pairs one HCA has at a time.
    """
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return limits.PEERS
    return min(limits.PEERS, max(1, descriptors // 8))


def checkRoom(pairings: Iterable[Any]) -> None:
    """
    @param pairings: The pairs that there are.
    @raise ResourceLimitError: there are as many as there may be.
    """
    most = mostPeers()
    if sum(1 for _ in pairings) >= most:
        raise ResourceLimitError(f"{most} processes are connected already")


def checkCaller(pairings: Iterable[Any], caller: Any, uid: int) -> None:
    """
    Whether a call is to be taken.

    @param pairings: The pairs that there are, C{caller} not among them.
    @param caller: The new pair.
    @param uid: Our own user, who may use all the room.
    @raise ResourceLimitError: its process or its user has enough.
    """
    who = caller.credentials
    ofProcess = ofUser = open_ = 0
    for peerSocket in pairings:
        other = peerSocket.credentials
        if peerSocket.server and other.uid == who.uid:
            ofUser += 1
            if other.pid == who.pid:
                ofProcess += 1
                open_ += peerSocket.path is None
    # Processes outside of our process namespace all have the number 0.
    if who.pid and ofProcess >= limits.PEERS_PER_PROCESS:
        raise ResourceLimitError(f"process {who.pid} has {ofProcess} connections already")
    if open_ >= HANDSHAKES_PER_PROCESS:
        raise ResourceLimitError(f"process {who.pid} has {open_} open handshakes already")
    if who.uid != uid and ofUser >= max(1, mostPeers() // limits.PEERS_USER_DIVISOR):
        raise ResourceLimitError(f"user {who.uid} has {ofUser} connections already")


class ListeningSockets:
    """
    The listening sockets of one HCA: one, or two after a change of user.
    """

    def __init__(self, poller: Any, clock: Callable[[], float], count: Callable[[str], None]) -> None:
        """
        @param poller: The C{select.epoll} that says when somebody calls.
        @param count: Counts something on the device.
        """
        self._poller = poller
        self._clock = clock
        self._count = count
        self._listeners: dict[int, tuple[socket.socket, Rendezvous]] = {}
        self._shut: list[int] = []
        #: When to listen again; L{None} while we do.
        self.deadline: float | None = None

    def __contains__(self, fd: int) -> bool:
        """
        @return: Whether a descriptor is one where others call.
        """
        return fd in self._listeners

    def add(self, rendezvous: Rendezvous) -> None:
        """
        Listen where others look for a rendezvous.

        @raise RunDirectoryError: it cannot be made.
        """
        listener = rendezvous.bind()
        self._poller.register(listener.fileno(), select.EPOLLIN)
        self._listeners[listener.fileno()] = (listener, rendezvous)

    def accept(self, fd: int, take: Callable[[socket.socket, Rendezvous], None]) -> None:
        """
        Take the calls at a door.

        @param take: Called with each one's socket, which is its to close.
        """
        listener, rendezvous = self._listeners[fd]
        for _ in range(limits.ACCEPTS_PER_TURN):
            try:
                pair, _ = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:
                # EMFILE, ENFILE, ENOMEM: the call stays, and would call us at once.
                self._count("accept_failed")
                self._shutAll()
                return
            take(pair, rendezvous)

    def _shutAll(self) -> None:
        self.deadline = self._clock() + ACCEPT_PAUSE_SECONDS
        self._shut = list(self._listeners)
        for fd in self._shut:
            self._poller.unregister(fd)

    def reopen(self) -> None:
        """
        Hear of calls again; harmless if we do.
        """
        self.deadline = None
        shut, self._shut = self._shut, []
        for fd in shut:
            self._poller.register(fd, select.EPOLLIN)

    def tick(self, now: float) -> None:
        """
        Time has passed.
        """
        if self.deadline is not None and now >= self.deadline:
            self.reopen()

    def close(self) -> None:
        """
        Withdraw everything.
        """
        self.reopen()
        for fd, (_, rendezvous) in self._listeners.items():
            self._poller.unregister(fd)
            rendezvous.close()
        self._listeners.clear()


__all__ = ["ListeningSockets", "checkCaller", "checkRoom", "mostPeers"]
