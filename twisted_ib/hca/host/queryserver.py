"""
Where commands ask a process about an HCA that has no other place in the run directory.

An HCA of packets is found by its address, and no process dials it.  C{ib-devinfo} and C{ib-ss} find it
by an entry like those of shared memory, and hear what it says of itself; whoever wants to be
connected there is not answered.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from typing import Any

from twisted_ib import limits
from twisted_ib.errors import HandshakeError, HCAError, PathLostError
from twisted_ib.hca.host import handshake
from twisted_ib.hca.host.fdpassing import receiveWithDescriptors, sendWithDescriptors
from twisted_ib.hca.host.handshake import Query, QueryAnswer, Subject
from twisted_ib.hca.host.liveness import checkPeer
from twisted_ib.hca.host.rendezvous import Rendezvous

#: Commands that ask about one HCA of packets at a time; the oldest gives way.
INQUIRIES = 16


class _Asker:
    """
    Somebody who asks.

    @ivar socket: The way to them.
    @ivar pages: What they have not heard yet of what they asked for, or L{None}.
    """

    def __init__(self, pair: socket.socket) -> None:
        self.socket = pair
        self.pages: Iterator[dict[str, Any]] | None = None


class QueryServer:
    """
    The entry of one HCA, and those who ask.
    """

    def __init__(self, owner: Any, guid: int) -> None:
        """
        Be found.

        @param owner: The device: C{describe()} and C{describeSockets()}.
        @param guid: Its GUID.
        @raise RunDirectoryError: no directory can be used.
        @raise OSError: no descriptor is free.
        """
        self._owner = owner
        self._askers: dict[int, _Asker] = {}
        self._rendezvous = Rendezvous(guid)
        try:
            self._listener = self._rendezvous.bind()
            self._poller = select.epoll()
        except BaseException:
            self._rendezvous.close()
            raise
        self._poller.register(self._listener, select.EPOLLIN)

    def fileno(self) -> int:
        """
        @return: A descriptor that is readable when somebody asks.
        """
        return self._poller.fileno()

    def attend(self) -> None:
        """
        Answer those who have asked, without waiting.
        """
        if self._poller.closed:
            return
        for fd, _ in self._poller.poll(0):
            asker = self._askers.get(fd)
            if asker is None:
                self._accept()
                continue
            try:
                self._serve(asker)
            except HCAError:
                self._drop(fd)

    def _accept(self) -> None:
        """
        Take a call; of those who say nothing the oldest gives way.
        """
        try:
            pair, _ = self._listener.accept()
        except OSError:
            return
        pair.setblocking(False)
        try:
            checkPeer(pair, self._rendezvous.allows)
        except HCAError:
            pair.close()
            return
        if len(self._askers) >= INQUIRIES:
            self._drop(next(iter(self._askers)))
        self._askers[pair.fileno()] = _Asker(pair)
        self._poller.register(pair, select.EPOLLIN)

    def _serve(self, asker: _Asker) -> None:
        """
        Answer, if there is a question.

        @raise HCAError: it is none, or the last.
        """
        received = receiveWithDescriptors(asker.socket, limits.ANSWER_BYTES)
        if received is None:
            return
        message = handshake.parse(received[0])
        if not isinstance(message, Query):
            raise HandshakeError("nobody is connected with here")
        if message.subject == Subject.SOCKETS:
            if asker.pages is None:
                asker.pages = self._owner.describeSockets()
            content: dict[str, Any] = next(asker.pages, {})
        else:
            content = self._owner.describe()
        sent = sendWithDescriptors(asker.socket, QueryAnswer(content).pack())
        if not (sent and content.get("more")):
            raise PathLostError("an asker has its answer")

    def _drop(self, fd: int) -> None:
        self._poller.unregister(fd)
        self._askers.pop(fd).socket.close()

    def close(self) -> None:
        """
        Be found no more; in a forked child, close its descriptors.
        """
        for asker in self._askers.values():
            asker.socket.close()
        self._askers.clear()
        self._poller.close()
        self._rendezvous.close()


__all__ = ["QueryServer"]
