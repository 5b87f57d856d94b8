"""
Query server: lets commands ask about an HCA that is not in the run directory for any other reason.

An HCA of packets is found by its address, and no process dials it.  C{ib-devinfo} and C{ib-ss} find it by
an entry like those of the shared-memory fabric; it answers queries there and refuses connections.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from twisted_ib import limits
from twisted_ib.errors import HandshakeError, HCAError, PathLostError
from twisted_ib.hca.host import handshake
from twisted_ib.hca.host.fdpassing import receiveWithDescriptors, sendWithDescriptors
from twisted_ib.hca.host.handshake import Query, QueryAnswer, Subject
from twisted_ib.hca.host.libc import KernelEpoll
from twisted_ib.hca.host.liveness import checkPeer
from twisted_ib.hca.host.rendezvous import Rendezvous
from twisted_ib.hca.host.socketpage.page import SocketPage

#: Commands that may be connected to one query server; the oldest is dropped for a new one.
QUERY_CLIENTS = 16


class _QueryClient:
    def __init__(self, pair: socket.socket) -> None:
        self.socket = pair
        self.pages: Iterator[dict[str, Any]] | None = None


class QueryServer:
    """
    The run directory entry of one HCA, and the commands connected to it.
    """

    def __init__(self, owner: Any, guid: int) -> None:
        """
        @param owner: The device: C{describe()} and C{describeSockets()}.
        @param guid: Its GUID.
        @raise RunDirectoryError: no run directory can be used.
        @raise OSError: no descriptor is free.
        """
        self._owner = owner
        self._askers: dict[int, _QueryClient] = {}
        self._rendezvous = Rendezvous(guid)
        try:
            self._listener = self._rendezvous.bind()
            self._poller = KernelEpoll()
        except BaseException:
            self._rendezvous.close()
            raise
        self._watch()

    def _watch(self) -> None:
        for each in self._listener.fileno(), self._rendezvous.watch:
            if each >= 0:
                self._poller.register(each, select.EPOLLIN)

    def _restore(self) -> None:
        # Make the entry anew, if the run directory was removed or replaced.
        old = self._rendezvous
        os.read(old.watch, 4096)
        if not old.isLost():
            return
        for each in self._listener.fileno(), old.watch:
            self._poller.unregister(each)
        # Optional, as at the beginning: without an entry commands do not find the device.
        with suppress(HCAError):
            self._rendezvous = old.reopened()
        old.close()
        if self._rendezvous is not old:
            with suppress(HCAError):
                self._listener = self._rendezvous.bind()
                self._watch()

    def attach(self, page: SocketPage) -> None:
        """
        Have a socket page beside the entry.
        """
        self._rendezvous.attach(page)

    def fileno(self) -> int:
        """
        @return: A descriptor that is readable when there is a query.
        """
        return self._poller.fileno()

    def attend(self) -> None:
        """
        Answer the queries that have arrived, without blocking.
        """
        if self._poller.closed:
            return
        for fd, _ in self._poller.poll(0):
            if fd == self._rendezvous.watch:
                self._restore()
                break
            asker = self._askers.get(fd)
            if asker is None:
                self._accept()
                continue
            try:
                self._serve(asker)
            except HCAError:
                self._drop(fd)

    def _accept(self) -> None:
        try:
            pair, _ = self._listener.accept()
        except OSError:
            return
        try:
            checkPeer(pair, self._rendezvous.allows)
        except HCAError:
            pair.close()
            return
        # Dropping the oldest rather than refusing the newest: silent connections cannot lock commands out.
        if len(self._askers) >= QUERY_CLIENTS:
            self._drop(next(iter(self._askers)))
        self._askers[pair.fileno()] = _QueryClient(pair)
        self._poller.register(pair, select.EPOLLIN)

    def _serve(self, asker: _QueryClient) -> None:
        received = receiveWithDescriptors(asker.socket, limits.ANSWER_BYTES)
        if received is None:
            return
        message = handshake.parse(received[0])
        if not isinstance(message, Query):
            raise HandshakeError("nobody is connected with here")
        if message.subject == Subject.SOCKETS:
            if asker.pages is None:
                # Lazy pages: a slow reader costs a generator, not a copy of all rows.
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
        Remove the entry and close; in a forked child, close the child's descriptors only.
        """
        for asker in self._askers.values():
            asker.socket.close()
        self._askers.clear()
        self._poller.close()
        self._rendezvous.close()
