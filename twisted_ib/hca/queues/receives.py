"""
The receives of one queue pair: its own, or those of a shared receive queue.

A receive that was taken must be completed or put back.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from twisted_ib.errors import ResourceLimitError
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.queues.completion import CompletionQueue, WCOpcode, WCStatus, WorkCompletion
from twisted_ib.hca.queues.requests import Capabilities, ReceiveRequest

if TYPE_CHECKING:
    from twisted_ib.hca.queues.queuepair import QueuePair
    from twisted_ib.hca.queues.sharedreceive import SharedReceiveQueue


class ReceiveContext(Protocol):
    """
    The work queues that own receives, as the receives need them.

    @ivar queuePair: their queue pair.
    @ivar capabilities: the sizes of the queues.
    @ivar shared: the shared receive queue, or L{None}.
    @ivar receiveCompletions: the CQ where receive requests complete.
    """

    queuePair: QueuePair
    capabilities: Capabilities
    shared: SharedReceiveQueue | None
    receiveCompletions: CompletionQueue


class Receives:
    """
    The source of a responder's receives.
    """

    __slots__ = ("_flushed", "_own", "_shared", "_work")

    def __init__(self, work: ReceiveContext) -> None:
        self._work = work
        self._shared = work.shared
        self._flushed = False
        # A deque from the first one on: consumers that take messages themselves have none.
        self._own: deque[ReceiveRequest] | tuple[()] = ()

    def __len__(self) -> int:
        return len(self._own if self._shared is None else self._shared)

    def add(self, request: ReceiveRequest) -> None:
        """
        Accept a receive from the program.

        @raise ResourceLimitError: the queue is full.
        """
        if len(self._own) >= self._work.capabilities.receives:
            raise ResourceLimitError(f"the receive queue of queue pair {self._work.queuePair.number} is full")
        if not isinstance(self._own, deque):
            self._own = deque()
        self._own.append(request)

    def room(self) -> int:
        """
        How many more of its own it holds.
        """
        return self._work.capabilities.receives - len(self._own)

    def take(self) -> ReceiveRequest | None:
        """
        Remove the oldest, or return L{None} if there is none.
        """
        if self._shared is not None:
            return self._shared.take()
        return self._own.popleft() if self._own else None

    def putBack(self, request: ReceiveRequest) -> None:
        """
        Return one that was taken and not used: it is the oldest again.
        """
        if self._shared is not None:
            self._shared.putBack(request)
            return
        if not isinstance(self._own, deque):
            # Forgotten since.
            self._own = deque()
        self._own.appendleft(request)

    def end(self, request: ReceiveRequest, status: WCStatus) -> None:
        """
        Complete one that was taken, with an error.
        """
        work = self._work
        completion = WorkCompletion(request.id, status, WCOpcode.RECV, work.queuePair.number)
        # Marked solicited: an error always counts as that (IBTA vol. 1 11.4.2.2).
        work.receiveCompletions.push(completion, True)

    def flush(self) -> None:
        """
        Complete all of the queue pair's own in order with WR_FLUSH_ERR; shared ones stay, and
        QP_LAST_WQE_REACHED is raised once.
        """
        own = self._own
        while own:
            self.end(own.popleft(), WCStatus.WR_FLUSH_ERR)
        if self._shared is not None and not self._flushed:
            # IBTA vol. 1 11.6.3.1: after this event the queue pair uses no more of the SRQ's
            # receives, and the program may destroy the queue pair without losing one.
            self._flushed = True
            self._work.queuePair.raiseEvent(EventType.QP_LAST_WQE_REACHED)

    def clear(self) -> None:
        """
        Forget the queue pair's own, and the work queues: nothing is taken any more.
        """
        self._own = ()
        # They refer to each other; without the cycle both are freed at once.
        del self._work
