"""
Send requests that concern local memory only: LOCAL_INV and BIND_MW; nothing is sent to the peer.

They keep their position in the send queue, so that a SEND posted behind a BIND_MW announces a key that is
already valid.
"""

from __future__ import annotations

from twisted_ib.errors import MemoryAccessError, QueuePairError
from twisted_ib.hca.queues.completion import WCOpcode, WCStatus
from twisted_ib.hca.queues.requests import SendOpcode, SendRequest
from twisted_ib.hca.services.operations.operation import Operation, WorkContext


class LocalOperation(Operation):
    """
    A request that is executed locally.

    @cvar failure: its completion status if it fails.
    @ivar done: whether it was executed.
    """

    __slots__ = ("done", "request")

    failure: WCStatus

    def __init__(self, request: SendRequest) -> None:
        self.request = request
        # Go-back after an RNR NAK may take this request back into the queue (IBTA vol. 1
        # 9.7.5.2.8); a bind or an invalidation that was done must not be done twice.
        self.done = False
        super().__init__(request.id, int(request.flags), 0)

    @property
    def started(self) -> bool:
        return self.done

    def execute(self, work: WorkContext) -> None:
        """
        Execute it once; sets C{status} if it fails.
        """
        if not self.done:
            try:
                self._execute(work)
            except MemoryAccessError:
                # The requester completes it in order with this status, and the queue pair goes to
                # ERR.
                self.status = self.failure
            else:
                self.done = True

    def _execute(self, work: WorkContext) -> None:
        raise NotImplementedError


class LocalInvalidate(LocalOperation):
    """
    Invalidate a local key.
    """

    __slots__ = ()

    # IBTA vol. 1 10.6.5.1, local invalidate fence: it starts only after all earlier requests are
    # done, since those may still use the key.  Mandatory in Linux, too: rxe_req.c,
    # rxe_wqe_is_fenced().
    isLast = True
    opcode = SendOpcode.LOCAL_INV
    completionOpcode = WCOpcode.LOCAL_INV
    # The status of Linux rxe_req.c, rxe_do_local_ops().
    failure = WCStatus.LOC_QP_OP_ERR

    def _execute(self, work: WorkContext) -> None:
        work.pd.memory.windows.invalidate(self.request.invalidateKey, work.queuePair)


class BindWindow(LocalOperation):
    """
    Bind a memory window to a part of a memory region.
    """

    __slots__ = ()

    opcode = SendOpcode.BIND_MW
    completionOpcode = WCOpcode.BIND_MW
    failure = WCStatus.MW_BIND_ERR

    @classmethod
    def check(cls, request: SendRequest, inline: int) -> None:
        super().check(request, inline)
        if request.bind is None:
            raise QueuePairError("a BIND_MW without what to bind")

    def _execute(self, work: WorkContext) -> None:
        bind = self.request.bind
        # L{check} refuses a BIND_MW without one.
        assert bind is not None
        work.pd.memory.windows.bind(
            bind.window,
            bind.region,
            bind.address,
            bind.length,
            bind.access,
            bind.key,
            work.queuePair,
            work.pd,
        )

    def abandon(self, work: WorkContext) -> None:
        # ibv_bind_mw returns the new key when the request is posted.  A bind that is flushed never
        # uses it, and without this each flushed bind would use up one of the window's
        # WINDOW_RESERVED_KEYS keys.
        bind = self.request.bind
        if not self.done and bind is not None and bind.key is not None:
            work.pd.memory.windows.releaseKey(bind.window, bind.key)
