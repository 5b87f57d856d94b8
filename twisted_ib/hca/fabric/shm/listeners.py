"""
Listening sockets and admission limits: which processes may connect, and how many.

Each path costs up to six descriptors of this process, for a while eight, so the number of peers is bounded
by an eighth of RLIMIT_NOFILE too.  One process, and one user other than ours, may hold only part of them,
so that others can still connect.
"""

from __future__ import annotations

import resource
import select
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from twisted_ib import limits
from twisted_ib.drive.sleeper import unwatch
from twisted_ib.errors import ResourceLimitError
from twisted_ib.hca.host.rendezvous import Rendezvous

if TYPE_CHECKING:
    from select import epoll

#: Unfinished handshakes that one process may have with an HCA.
HANDSHAKES_PER_PROCESS = 16
#: How long accepting pauses when no descriptor is free, in seconds.
ACCEPT_PAUSE_SECONDS = 0.1


def mostPeers() -> int:
    """
    @return: The most peer sockets that one HCA may have.
    """
    # getrlimit(2): the soft limit is what accept(2) and recvmsg(2) fail at, and the process may change it
    # at any time.
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return limits.PEERS
    return min(limits.PEERS, max(1, descriptors // 8))


def checkRoom(peerSockets: Iterable[Any]) -> None:
    """
    @raise ResourceLimitError: this HCA has as many peer sockets as it may have.
    """
    most = mostPeers()
    if sum(1 for _ in peerSockets) >= most:
        raise ResourceLimitError(f"{most} processes are connected already")


def checkCaller(peerSockets: Iterable[Any], caller: Any, uid: int) -> None:
    """
    Decide whether to admit a connecting peer.

    @param peerSockets: The existing peer sockets, without C{caller}.
    @param caller: The new peer socket.
    @param uid: Our own user, who is exempt from the limit per user.
    @raise ResourceLimitError: its process or its user has enough.
    """
    who = caller.credentials
    ofProcess = ofUser = open_ = 0
    for peerSocket in peerSockets:
        other = peerSocket.credentials
        # Only sockets that the peer opened count: those that we dialled are our own choice, and must not
        # lock the peer out.
        if peerSocket.server and other.uid == who.uid:
            ofUser += 1
            if other.pid == who.pid:
                ofProcess += 1
                open_ += peerSocket.path is None
    # Linux net/core/sock.c, cred_to_ucred: every process outside our pid namespace has pid 0, so a limit per
    # process would count them as one; the limit per user still holds.
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

    def __init__(self, poller: epoll, clock: Callable[[], float], count: Callable[[str], None]) -> None:
        """
        @param poller: The C{select.epoll} object that watches them.
        @param clock: Gives the time in seconds.
        @param count: Increments a counter of the device by name.
        """
        self._poller = poller
        self._clock = clock
        self._count = count
        self._listeners: dict[int, tuple[socket.socket, Rendezvous]] = {}
        self._shut: list[int] = []
        #: When to resume accepting; L{None} while not paused.
        self.deadline: float | None = None

    def __contains__(self, fd: int) -> bool:
        return fd in self._listeners

    def add(self, rendezvous: Rendezvous) -> None:
        """
        Listen on a rendezvous's socket.

        @raise RunDirectoryError: it cannot be made.
        """
        listener = rendezvous.bind()
        self._poller.register(listener.fileno(), select.EPOLLIN)
        self._listeners[listener.fileno()] = (listener, rendezvous)

    def replace(self, old: Rendezvous, new: Rendezvous) -> None:
        """
        Close a listening socket when another one is there.

        @raise RunDirectoryError: that cannot be made; the old one is closed.
        """
        self.reopen()
        for fd, (_, rendezvous) in tuple(self._listeners.items()):
            if rendezvous is old:
                unwatch(self._poller, fd)
                del self._listeners[fd]
        held = old.release()
        try:
            self.add(new)
        finally:
            if held is not None:
                held.close()

    def accept(self, fd: int, take: Callable[[socket.socket, Rendezvous], None]) -> None:
        """
        Accept the connections that wait at a listening socket.

        @param take: Called with each connected socket, which it then owns.
        """
        listener, rendezvous = self._listeners[fd]
        for _ in range(limits.ACCEPTS_PER_TURN):
            try:
                pair, _ = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:
                # accept(2), EMFILE, ENFILE or ENOMEM: the connection stays queued and the listener
                # readable, so that level-triggered epoll would spin.  Accepting pauses until a peer socket
                # is closed or the pause is over. twisted.internet.tcp differs: it holds a spare descriptor
                # and closes the connection.
                self._count("accept_failed")
                self._shutAll()
                return
            take(pair, rendezvous)

    def _shutAll(self) -> None:
        self.deadline = self._clock() + ACCEPT_PAUSE_SECONDS
        self._shut = list(self._listeners)
        for fd in self._shut:
            unwatch(self._poller, fd)

    def reopen(self) -> None:
        """
        Resume accepting; harmless if it was not paused.
        """
        self.deadline = None
        shut, self._shut = self._shut, []
        for fd in shut:
            # The program may have closed it: the others go on.
            with suppress(OSError):
                self._poller.register(fd, select.EPOLLIN)

    def tick(self, now: float) -> None:
        """
        Resume accepting when the pause is over.
        """
        if self.deadline is not None and now >= self.deadline:
            self.reopen()

    def close(self) -> None:
        """
        Close every listening socket and remove its entries.
        """
        self.deadline, self._shut = None, []
        for fd, (_, rendezvous) in self._listeners.items():
            unwatch(self._poller, fd)
            rendezvous.close()
        self._listeners.clear()
