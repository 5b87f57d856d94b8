"""
Send requests that concern this side's memory only: the peer hears nothing of them.

They keep their place in the send queue, so that a SEND posted behind a BIND_MW tells the
peer of a key that opens something already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from twisted_ib.errors import MemoryAccessError
from twisted_ib.hca.queues.completion import WCOpcode, WCStatus
from twisted_ib.hca.queues.requests import SendOpcode, SendRequest
from twisted_ib.hca.services.sendwqe import OPERATIONS, Operation

if TYPE_CHECKING:
    from twisted_ib.hca.services.work import WorkQueues


class Local(Operation):
    """
    A request that is done here.

    @cvar failure: how it ends if it cannot be done.
    @ivar request: the request.
    @ivar done: whether it was done: it is not done again when what is before it in the
        queue must be repeated.
    """

    __slots__ = ("done", "request")

    failure: WCStatus

    def __init__(self, request: SendRequest) -> None:
        self.request = request
        self.done = False
        super().__init__(request.id, int(request.flags), 0)

    @property
    def started(self) -> bool:
        """
        See L{Operation.started}.
        """
        return self.done

    def execute(self, work: WorkQueues) -> None:
        """
        Do it, unless that was done; C{status} tells of a failure.
        """
        if not self.done:
            try:
                self._execute(work)
            except MemoryAccessError:
                self.status = self.failure
            else:
                self.done = True

    def _execute(self, work: WorkQueues) -> None:
        """
        Do it.

        @raise MemoryAccessError: it is not permitted.
        """
        raise NotImplementedError


class LocalInvalidate(Local):
    """
    A key of this side ends, after all that was posted before it is done (IBTA vol. 1
    10.8.3.3).
    """

    __slots__ = ()

    isLast = True
    completionOpcode = WCOpcode.LOCAL_INV
    failure = WCStatus.LOC_QP_OP_ERR  # As Linux's rxe_do_local_ops.

    def _execute(self, work: WorkQueues) -> None:
        work.pd.memory.invalidate(self.request.invalidateKey, work.queuePair)


class WindowBinding(Local):
    """
    A memory window opens a part of a memory region.
    """

    __slots__ = ()

    completionOpcode = WCOpcode.BIND_MW
    failure = WCStatus.MW_BIND_ERR

    def _execute(self, work: WorkQueues) -> None:
        bind = self.request.bind
        assert bind is not None  # SendRequest.check
        work.pd.memory.bind(
            bind.window,
            bind.region,
            bind.address,
            bind.length,
            bind.access,
            bind.key,
            work.queuePair,
            work.pd,
        )

    def abandon(self, work: WorkQueues) -> None:
        """
        See L{Operation.abandon}: a key that was promised for it is free.
        """
        bind = self.request.bind
        if not self.done and bind is not None and bind.key is not None:
            work.pd.memory.breakPromise(bind.window, bind.key)


#: What a reliable connection does, by opcode.
RELIABLE: dict[SendOpcode, Callable[[SendRequest], Operation]] = {
    **OPERATIONS,
    SendOpcode.LOCAL_INV: LocalInvalidate,
    SendOpcode.BIND_MW: WindowBinding,
}
