"""
The keyed path of a queue pair: work requests that name memory and end in completions.

The stream path of L{twisted_ib.hca.core.queuepair} copies what it is given and forgets it.
Here a program posts work requests; each stays until it is known how it ended.  A
L{WorkQueues} is the pair of them that hangs on a queue pair: the send queue belongs to
the L{Requester}, the receive queue to the L{Responder}.

Not here yet: shared receive queues, unconnected services.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted_ib import limits
from twisted_ib.errors import PathLostError, QueuePairError
from twisted_ib.hca.core.completion import CompletionQueue, WCStatus, WorkCompletion
from twisted_ib.hca.core.memory import ProtectionDomain
from twisted_ib.hca.core.requester import Requester
from twisted_ib.hca.core.requests import Attributes, Capabilities, ReceiveRequest, SendRequest, checkPieces
from twisted_ib.hca.core.responder import Responder
from twisted_ib.hca.core.states import QPState
from twisted_ib.hca.core.timers import Timers
from twisted_ib.hca.operation import RESPONSES

if TYPE_CHECKING:
    from twisted_ib.hca.core.queuepair import QueuePair

#: Names of C{struct ibv_qp_attr}, and what they are here.
_ATTRIBUTES = {
    "qp_access_flags": "access",
    "min_rnr_timer": "minRNRTimer",
    "max_rd_atomic": "reads",
    "max_dest_rd_atomic": "peerReads",
    "timeout": "timeout",
    "retry_cnt": "retries",
    "rnr_retry": "rnrRetries",
}
_HIGHEST = {
    "min_rnr_timer": 31,
    "max_rd_atomic": limits.READS,
    "max_dest_rd_atomic": limits.READS,
    "timeout": 31,
    "retry_cnt": 7,
    "rnr_retry": 7,
}


class WorkQueues:
    """
    The two work queues of a queue pair.

    @ivar queuePair: the queue pair.
    @ivar pd: its protection domain.
    @ivar sendCompletions: where send requests complete.
    @ivar receiveCompletions: where receive requests complete.
    @ivar timers: the device's.
    @ivar capabilities: the sizes of the queues.
    @ivar attributes: what it was told by L{QueuePair.modify}.
    """

    __slots__ = (
        "attributes",
        "capabilities",
        "pd",
        "queuePair",
        "receiveCompletions",
        "requester",
        "responder",
        "sendCompletions",
        "timers",
    )

    def __init__(
        self,
        queuePair: QueuePair,
        pd: ProtectionDomain,
        sendCompletions: CompletionQueue,
        receiveCompletions: CompletionQueue,
        timers: Timers,
        capabilities: Capabilities | None = None,
    ) -> None:
        """
        Hang the work queues on a queue pair in RESET.

        @raise ResourceLimitError: C{capabilities} has too much.
        """
        self.capabilities = capabilities or Capabilities()
        self.capabilities.check()
        self.queuePair = queuePair
        self.pd = pd
        self.sendCompletions = sendCompletions
        self.receiveCompletions = receiveCompletions
        self.timers = timers
        self.attributes = Attributes()
        self.requester = Requester(self)
        self.responder = Responder(self)
        pd.hold("queue pairs")
        sendCompletions.hold("work queues")
        receiveCompletions.hold("work queues")
        queuePair.work = self

    # -- verbs

    def postSend(self, request: SendRequest) -> None:
        """
        Post a send request.

        @raise QueuePairError: the state forbids it, or the request can not be.
        @raise ResourceLimitError: the send queue is full.
        """
        if self.queuePair.state < QPState.RTS:
            raise self._wrongState("send")
        request.check(self.capabilities.pieces)
        self.requester.enqueue(request)

    def postReceive(self, request: ReceiveRequest) -> None:
        """
        Post a receive request.

        @raise QueuePairError: the state forbids it, or the request can not be.
        @raise ResourceLimitError: the receive queue is full.
        """
        if self.queuePair.state == QPState.RESET:
            raise self._wrongState("receive")
        checkPieces(request.pieces, self.capabilities.receivePieces)
        self.responder.enqueue(request)

    def _wrongState(self, verb: str) -> QueuePairError:
        """
        The error of a verb in a state that forbids it.
        """
        queuePair = self.queuePair
        return QueuePairError(f"queue pair {queuePair.number} takes no {verb} in {queuePair.state.name}")

    # -- from the queue pair

    def check(self, state: QPState, attributes: dict[str, Any]) -> None:
        """
        Look at a transition before it happens.

        @raise QueuePairError: an attribute's value is not possible, or the send queue
            has not drained.
        """
        for name, highest in _HIGHEST.items():
            value = attributes.get(name, 0)
            if not 0 <= value <= highest:
                raise QueuePairError(f"{name} is 0 to {highest}, not {value}")
        old = self.queuePair.state
        if old == QPState.SQD and state in (QPState.RTS, QPState.SQD) and not self.requester.drained():
            raise QueuePairError(f"the send queue of queue pair {self.queuePair.number} has not drained")

    def modified(self, attributes: dict[str, Any]) -> None:
        """
        The queue pair has a new state (C{queuePair.state}) or new attributes.
        """
        for name, field in _ATTRIBUTES.items():
            if name in attributes:
                setattr(self.attributes, field, int(attributes[name]))
        state = self.queuePair.state
        if state == QPState.RESET:
            self._reset()
        elif state == QPState.ERR:
            self._flush(WCStatus.WR_FLUSH_ERR)
        else:
            self.requester.pump()

    def failed(self, reason: Exception) -> None:
        """
        The queue pair went to ERR by itself: everything that is posted ends now.
        """
        lost = isinstance(reason, PathLostError)
        self._flush(WCStatus.RETRY_EXC_ERR if lost else WCStatus.WR_FLUSH_ERR)

    def closed(self) -> None:
        """
        The queue pair is gone.
        """
        self._reset()
        self.pd.release("queue pairs")
        self.sendCompletions.release("work queues")
        self.receiveCompletions.release("work queues")

    def delivered(self, opcode: int, buffer: Any, start: int, stop: int) -> int:
        """
        A record arrived: see L{QueuePair.delivered}.
        """
        if opcode in RESPONSES:
            self.requester.delivered(opcode, buffer, start, stop)
            return 0
        return self.responder.delivered(opcode, buffer, start, stop)

    def _flush(self, first: WCStatus) -> None:
        """
        Complete all that is posted: sends in order, then receives in order.
        """
        self.requester.flush(first)
        self.responder.flush()

    def _reset(self) -> None:
        """
        Forget all that is posted, without completions (IBTA vol. 1 10.3.1).  What the
        medium still holds of the old queues finds nobody.
        """
        self.requester.close()
        self.responder.close()
        self.attributes = Attributes()
        self.requester = Requester(self)
        self.responder = Responder(self)

    # -- from the queues

    def complete(self, queue: CompletionQueue, completion: WorkCompletion, solicited: bool = False) -> None:
        """
        Queue a completion; if it is lost the queue pair fails.
        """
        if not queue.push(completion, solicited):
            self.queuePair.fail(
                QueuePairError(f"a completion of queue pair {self.queuePair.number} found its queue full")
            )
