"""
Queries to other processes: what an HCA has in use, and which sockets its process has.

The calls of commands block, for a bounded time.

A L{QueryServer} lets commands ask about an HCA that is not in the run directory for any other reason: one of
packets is found by its address, and no process dials it.  It has an entry like those of the shared-memory
fabric, answers queries there and refuses connections.

A long answer is cut into pages.  Each is one packet (L{limits.ANSWER_BYTES}) and a bounded amount of work
(L{SOCKETS_PER_PAGE}): the process that answers does other work between two pages, and may have any number of
sockets.
"""

from __future__ import annotations

import json
import os
import select
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from attrs import define, field

from twisted_ib import limits
from twisted_ib.drive.process import monotonic
from twisted_ib.drive.sleeper import awaitReady, unwatch, watch
from twisted_ib.errors import HandshakeError, HCAError, PathLostError, ResourceLimitError
from twisted_ib.hca.host import handshake
from twisted_ib.hca.host.entries import Entry
from twisted_ib.hca.host.fdpassing import closeAll, receiveWithDescriptors, sendWithDescriptors
from twisted_ib.hca.host.handshake import Query, QueryAnswer, Subject
from twisted_ib.hca.host.libc import KernelEpoll
from twisted_ib.hca.host.liveness import checkPeer
from twisted_ib.hca.host.rendezvous import Rendezvous
from twisted_ib.hca.host.search import Search
from twisted_ib.hca.host.socketpage.page import SocketPage

#: The most rows of one page, and the most candidates examined for it.
SOCKETS_PER_PAGE = 100

#: Characters kept of each text in a row that would fill more than a page.
_SHORT = 64

Row = Sequence[Any]

#: Commands that may be connected to one query server; the oldest is dropped for a new one.
QUERY_CLIENTS = 16

#: How long a command waits for the answer of one HCA, in seconds: on a busy machine a process may get no CPU
#: for some tenths.
QUERY_SECONDS = 1.0
#: How long one page may take to arrive, and all pages of one process, in seconds.
SOCKETS_PAGE_SECONDS = 1.0
SOCKETS_SECONDS = 20.0
#: Rows that are accepted from one process.
SOCKETS_LISTED = 1 << 18
#: Bytes of answers that are accepted from one process: enough for so many rows of the usual size.
SOCKETS_BYTES = 1 << 26


def ask(search: Search, entry: Entry, timeoutSeconds: float = QUERY_SECONDS) -> dict[str, Any] | None:
    """
    Ask the HCA at C{entry} for its description.

    @return: L{None} if it does not answer in time, or not with a JSON object.
    @raise HCAError: it is dead or its user is not allowed.
    """
    pair = search.connect(entry)
    try:
        # The directory's owner was checked; this checks the process behind the socket.
        checkPeer(pair, search.allows)
        if not sendWithDescriptors(pair, handshake.Query().pack()):
            return None
        return _answer(pair, monotonic() + timeoutSeconds)[0]
    finally:
        pair.close()


@define
class SocketsAnswer:
    """
    A process's answer about its listeners and connections.

    @ivar pid: the process, from the kernel; 0 if it is outside our pid namespace.
    @ivar pages: its answers, in order.
    @ivar complete: whether all have come.
    @ivar dead: whether it ended meanwhile.
    """

    pid: int
    pages: list[dict[str, Any]] = field(factory=list)
    complete: bool = False
    dead: bool = False


def askSockets(
    search: Search,
    entry: Entry,
    pageSeconds: float = SOCKETS_PAGE_SECONDS,
    allSeconds: float = SOCKETS_SECONDS,
) -> SocketsAnswer:
    """
    Ask the process of the HCA at C{entry} for its listeners and connections.

    @param pageSeconds: how long one page may take.
    @param allSeconds: how long all pages may take.
    @raise HCAError: it is dead or its user is not allowed.
    """
    pair = search.connect(entry)
    try:
        told = SocketsAnswer(checkPeer(pair, search.allows).pid)
        end = monotonic() + allSeconds
        query = handshake.Query(handshake.Subject.SOCKETS).pack()
        rows = size = 0
        try:
            while not told.complete and rows < SOCKETS_LISTED and size < SOCKETS_BYTES:
                if not sendWithDescriptors(pair, query):
                    break
                page, count = _answer(pair, min(end, monotonic() + pageSeconds))
                size += count
                if page is None or not isinstance(page.get("rows"), list):
                    break
                told.pages.append(page)
                # An empty page counts as a row, or a process could send such pages for ever.
                rows += max(len(page["rows"]), 1)
                told.complete = page.get("more") is not True
        except HCAError:
            # It has ended, or refuses: what came so far is still worth showing.
            pass
        told.dead = not told.complete and _isDead(search, entry)
        return told
    finally:
        pair.close()


def _isDead(search: Search, entry: Entry) -> bool:
    try:
        search.connect(entry).close()
    except HCAError as error:
        # A full backlog means that the process is alive but busy.
        return not isinstance(error, ResourceLimitError)
    return False


def _answer(pair: socket.socket, deadline: float) -> tuple[dict[str, Any] | None, int]:
    while True:
        # In the loop: poll(2) may report readiness for a message that receives as None.
        left = deadline - monotonic()
        if left <= 0 or not awaitReady(pair, left):
            return None, 0
        try:
            received = receiveWithDescriptors(pair, limits.ANSWER_BYTES)
            if received is None:
                continue
            data, descriptors = received
            closeAll(descriptors)
            message = handshake.parse(data)
        except HCAError:
            return None, 0
        return (message.content if isinstance(message, handshake.QueryAnswer) else None), len(data)


def pages(
    head: Mapping[str, Any], columns: Sequence[str], rows: Iterable[Row | None]
) -> Iterator[dict[str, Any]]:
    """
    Put rows on pages, lazily.

    @param head: The keys that every page begins with: names and short values.
    @param columns: The names of the values of a row.
    @param rows: The rows; L{None} for a candidate that was no row.
    @return: The pages: C{head}, C{columns}, C{rows}, and C{more}, whether another page follows.
    """
    fixed = {**head, "columns": list(columns)}
    room = limits.ANSWER_BYTES - len(QueryAnswer({**fixed, "rows": [], "more": False}).pack())
    page: list[Row] = []
    left = room
    looked = 0
    for row in rows:
        if row is not None:
            row, size = _fitting(row, room)
            if size > left:
                yield {**fixed, "rows": page, "more": True}
                page, left, looked = [], room, 0
            page.append(row)
            left -= size
        # A candidate that is no row costs time too: without this a process with many other objects would
        # search them all in one turn.
        looked += 1
        if looked == SOCKETS_PER_PAGE:
            yield {**fixed, "rows": page, "more": True}
            page, left, looked = [], room, 0
    yield {**fixed, "rows": page, "more": False}


def _fitting(row: Row, room: int) -> tuple[Row, int]:
    # Two for the comma and blank between rows.  JSON in ASCII, so characters are bytes.
    size = len(json.dumps(row)) + 2
    if size > room:
        row = [value[:_SHORT] if isinstance(value, str) else value for value in row]
        size = len(json.dumps(row)) + 2
    return row, size


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
            watch(self._poller, each, select.EPOLLIN)

    def _restore(self) -> None:
        # Make the entry anew, if the run directory was removed or replaced.
        old = self._rendezvous
        os.read(old.watch, 4096)
        if not old.isLost():
            return
        for each in self._listener.fileno(), old.watch:
            unwatch(self._poller, each)
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
        unwatch(self._poller, fd)
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
