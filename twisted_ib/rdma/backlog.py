"""
Requests and messages that wait behind a full send queue.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from twisted_ib.hca.queues.requests import SendRequest

if TYPE_CHECKING:
    from twisted_ib.rdma.transport import RDMATransport

#: Waiting requests that are posted in one turn, before other connections get theirs.
RDMA_SENDS_PER_FLUSH = 64


class Waiting(NamedTuple):
    """
    A request or a message.

    @ivar request: The request; L{None} for a message.
    @ivar payload: The message, and C{length} its bytes.
    @ivar immediate: Its immediate data, or L{None}.
    @ivar number: That of L{Requests<twisted_ib.rdma.requests.Requests>} if a Deferred waits.
    @ivar several: Whether it is several messages.
    """

    request: SendRequest | None = None
    payload: object = None
    length: int = 0
    immediate: int | None = None
    number: int | None = None
    several: bool = False


class Backlog:
    """
    They, in order; made with the first one, and gone with the last.

    @ivar entries: The queue; append only.
    """

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: deque[Waiting] = deque()

    def unsent(self) -> int:
        """
        Return the bytes of the messages.
        """
        return sum([entry.length for entry in self.entries])

    def flush(self, transport: RDMATransport) -> None:
        """
        Post what waits, as far as the send queue has room.
        """
        entries, requests, left = self.entries, transport.requests, RDMA_SENDS_PER_FLUSH
        while entries:
            if not left:
                # Other connections get a turn.
                transport.cork()
                return
            if not transport.work.canPost():
                return
            left -= 1
            request, payload, length, immediate, number, several = entries.popleft()
            if requests is not None and number is not None and requests.isCancelled(number):
                continue
            # post() lets it wait behind what waits, and posts it if nothing does.
            transport.waiting = None
            try:
                if requests is not None and number is not None and request is not None:
                    requests.post(request, number)
                else:
                    transport.post(payload, length, immediate, number, several)
            finally:
                transport.waiting = self
            if transport.hasEnded:
                return
        transport.waiting = None
