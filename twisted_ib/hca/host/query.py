"""
Queries to other processes: what an HCA has in use, and which sockets its process has.

For commands: these calls block, for a bounded time.
"""

from __future__ import annotations

import socket
import time
from typing import Any

from attrs import define, field

from twisted_ib import limits
from twisted_ib.drive.sleeper import awaitReady
from twisted_ib.errors import HCAError, ResourceLimitError
from twisted_ib.hca.host import handshake
from twisted_ib.hca.host.entries import Entry
from twisted_ib.hca.host.fdpassing import closeAll, receiveWithDescriptors, sendWithDescriptors
from twisted_ib.hca.host.liveness import checkPeer
from twisted_ib.hca.host.search import Search

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
        return _answer(pair, time.monotonic() + timeoutSeconds)[0]
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
        end = time.monotonic() + allSeconds
        query = handshake.Query(handshake.Subject.SOCKETS).pack()
        rows = size = 0
        try:
            while not told.complete and rows < SOCKETS_LISTED and size < SOCKETS_BYTES:
                if not sendWithDescriptors(pair, query):
                    break
                page, count = _answer(pair, min(end, time.monotonic() + pageSeconds))
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
        left = deadline - time.monotonic()
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
