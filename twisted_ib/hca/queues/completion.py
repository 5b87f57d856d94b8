"""
Completions: what became of a work request, and the queue where the program finds out.

Numbers are those of verbs (C{enum ibv_wc_status}, C{enum ibv_wc_opcode},
C{enum ibv_wc_flags}).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import IntEnum, IntFlag

from twisted_ib import limits
from twisted_ib.errors import ResourceLimitError
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.base.refcount import RefCounted
from twisted_ib.hca.base.timers import Timer, Timers


class WCStatus(IntEnum):
    """
    How a work request ended (IBTA vol. 1 11.6.2).
    """

    SUCCESS = 0
    LOC_LEN_ERR = 1
    LOC_QP_OP_ERR = 2
    LOC_EEC_OP_ERR = 3
    LOC_PROT_ERR = 4
    WR_FLUSH_ERR = 5
    MW_BIND_ERR = 6
    BAD_RESP_ERR = 7
    LOC_ACCESS_ERR = 8
    REM_INV_REQ_ERR = 9
    REM_ACCESS_ERR = 10
    REM_OP_ERR = 11
    RETRY_EXC_ERR = 12
    RNR_RETRY_EXC_ERR = 13
    LOC_RDD_VIOL_ERR = 14
    REM_INV_RD_REQ_ERR = 15
    REM_ABORT_ERR = 16
    INV_EECN_ERR = 17
    INV_EEC_STATE_ERR = 18
    FATAL_ERR = 19
    RESP_TIMEOUT_ERR = 20
    GENERAL_ERR = 21


class WCOpcode(IntEnum):
    """
    What kind of work request ended.
    """

    SEND = 0
    RDMA_WRITE = 1
    RDMA_READ = 2
    COMP_SWAP = 3
    FETCH_ADD = 4
    BIND_MW = 5
    LOCAL_INV = 6
    TSO = 7
    FLUSH = 8
    ATOMIC_WRITE = 9
    RECV = 0x80
    RECV_RDMA_WITH_IMM = 0x81


class WCFlags(IntFlag):
    """
    Which fields of a completion say something.
    """

    GRH = 1
    WITH_IMM = 2
    WITH_INV = 4


class WorkCompletion:
    """
    One work request's end.

    If C{status} is not L{WCStatus.SUCCESS}, only C{workRequestID}, C{status} and
    C{queuePairNumber} mean anything.

    @ivar workRequestID: the number that the program gave the work request.
    @ivar status: a L{WCStatus}.
    @ivar opcode: a L{WCOpcode}.
    @ivar byteLength: bytes received or read.
    @ivar queuePairNumber: the queue pair it was posted to.
    @ivar flags: L{WCFlags} bits.
    @ivar immediate: the 32-bit immediate, if C{flags} has C{WITH_IMM}; the key that was
        invalidated, if it has C{WITH_INV}.
    @ivar sourceQueuePair: the sender's queue pair, for datagrams.
    """

    __slots__ = (
        "byteLength",
        "flags",
        "immediate",
        "opcode",
        "queuePairNumber",
        "sourceQueuePair",
        "status",
        "workRequestID",
    )

    def __init__(
        self,
        workRequestID: int,
        status: WCStatus,
        opcode: WCOpcode,
        queuePairNumber: int,
        byteLength: int = 0,
        flags: int = 0,
        immediate: int = 0,
    ) -> None:
        self.workRequestID = workRequestID
        self.status = status
        self.opcode = opcode
        self.queuePairNumber = queuePairNumber
        self.byteLength = byteLength
        self.flags = flags
        self.immediate = immediate
        self.sourceQueuePair = 0

    def __repr__(self) -> str:
        return (
            f"<WorkCompletion {self.workRequestID} {self.opcode.name} "
            f"{self.status.name} of queue pair {self.queuePairNumber}>"
        )


_MICROSECONDS = 1_000_000


class CompletionQueue(RefCounted):
    """
    A bounded queue of completions.

    What is queued stays in order.  A completion for which there is no room is lost; that
    is an error of the program, which gave the queue too few places, and is fatal for the
    queue pair that completes (IBTA vol. 1 11.6.3.2) but for no other.

    The program may poll, or ask to be told: L{arm} asks for one call of C{onCompletion},
    when the next completion comes.  Moderation (L{modify}) lets that call wait until
    there are several.

    @ivar overflowed: whether a completion was ever lost.
    @ivar onCompletion: L{None}, or what to call with the queue, once per arming.
    @ivar onEvent: L{None}, or what to call with C{CQ_ERR} and the queue, once, when the
        first completion is lost.
    @ivar count: see L{modify}.
    @ivar period: see L{modify}; in microseconds.
    """

    __slots__ = (
        "_any",
        "_completions",
        "_depth",
        "_noticed",
        "_quiet",
        "_timer",
        "_timers",
        "count",
        "onCompletion",
        "onEvent",
        "overflowed",
        "period",
    )

    kind = "completion queue"

    def __init__(self, depth: int, timers: Timers | None = None) -> None:
        """
        @param depth: how many completions it holds.
        @param timers: the device's, for moderation.

        @raise ResourceLimitError: C{depth} is not between 1 and
            L{limits.COMPLETION_QUEUE_DEPTH}.
        """
        super().__init__()
        _checkDepth(depth)
        self._depth = depth
        # Up to how many completions push() has nothing else to do: as many as there are
        # places, and none while the queue is armed.  So a queue that is not armed is not
        # slower for it.
        self._quiet = depth
        self.overflowed = False
        self.onCompletion: Callable[[CompletionQueue], None] | None = None
        self.onEvent: Callable[[EventType, object], None] | None = None
        self.count = 0
        self.period = 0
        self._completions: deque[WorkCompletion] = deque()
        self._any = False
        self._noticed = 0
        self._timer: Timer | None = None
        self._timers = timers

    def __len__(self) -> int:
        return len(self._completions)

    @property
    def depth(self) -> int:
        """
        How many completions it holds.
        """
        return self._depth

    def push(self, completion: WorkCompletion, solicited: bool = False) -> bool:
        """
        Queue a completion.

        @param completion: the work request's end.
        @param solicited: the sender asked for an event.

        @return: whether there was room.
        """
        if len(self._completions) >= self._quiet:
            return self._pushArmed(completion, solicited)
        self._completions.append(completion)
        return True

    def poll(self, count: int = 1) -> list[WorkCompletion]:
        """
        Take up to C{count} completions, the oldest first.
        """
        completions = self._completions
        return [completions.popleft() for _ in range(min(count, len(completions)))]

    def discard(self, queuePairNumber: int) -> None:
        """
        Forget the completions of a queue pair that begins anew: their requests are of a
        time that is over.
        """
        kept = [each for each in self._completions if each.queuePairNumber != queuePairNumber]
        self._completions.clear()
        self._completions.extend(kept)

    def arm(self, solicitedOnly: bool = False) -> None:
        """
        Ask for one call of C{onCompletion} when a completion comes; those that wait
        already do not count.  Who asked for any completion and asks for solicited ones
        before the call still gets any (IBTA vol. 1 11.4.2.2).

        @param solicitedOnly: only for a completion that the sender solicited, or for an
            error.
        """
        self._quiet = 0
        if not solicitedOnly:
            self._any = True

    def modify(self, count: int, period: int) -> None:
        """
        Moderate the calls of C{onCompletion}: one waits until C{count} completions that
        it is for have come since L{arm}, but no longer than C{period} after the first.
        A queue that is full waits for nothing.  Moderation ends with 0 and 0, or with a
        count of 1.

        @param count: completions; 0 is any number: only the time counts.
        @param period: microseconds; 0 is any time: only the completions count.

        @raise ResourceLimitError: one of them is more than
            L{limits.COMPLETION_MODERATION}, or there are no timers.
        """
        most = limits.COMPLETION_MODERATION
        if not (0 <= count <= most and 0 <= period <= most):
            raise ResourceLimitError(f"moderation counts to {most}, not to {count} and {period} us")
        if period and self._timers is None:
            raise ResourceLimitError("this completion queue has no timers")
        self.count = count
        self.period = period
        if self._noticed:
            self._cancel()
            self._moderate()

    def resize(self, depth: int) -> None:
        """
        Change the bound.

        @raise ResourceLimitError: as for a new queue, or more completions than C{depth}
            wait; nothing changes then.
        """
        _checkDepth(depth)
        if depth < len(self._completions):
            raise ResourceLimitError(
                f"{len(self._completions)} completions wait, which {depth} places do not hold"
            )
        self._depth = depth
        if self._quiet:
            self._quiet = depth
        elif self._noticed:
            self._moderate()

    def close(self) -> None:
        """
        Let it go: what waits is forgotten and nobody is called any more.

        @raise ResourceBusyError: work queues still complete here.
        """
        self.checkFree()
        self._disarm()
        self.onCompletion = self.onEvent = None
        self._completions.clear()

    def _pushArmed(self, completion: WorkCompletion, solicited: bool) -> bool:
        """
        Queue a completion where that is not all: the queue is full, or armed.
        """
        if len(self._completions) >= self._depth:
            if not self.overflowed:
                self.overflowed = True
                if self.onEvent is not None:
                    self.onEvent(EventType.CQ_ERR, self)
            return False
        self._completions.append(completion)
        if self._any or solicited or completion.status:
            self._noticed += 1
            self._moderate()
        return True

    def _moderate(self) -> None:
        """
        Call now, or see to it that the call comes.
        """
        enough = self._noticed >= self.count and (self.count or not self.period)
        if enough or len(self._completions) >= self._depth:
            self._tell()
        elif self.period and self._timer is None:
            assert self._timers is not None
            self._timer = self._timers.start(self.period / _MICROSECONDS, self._tell)

    def _tell(self) -> None:
        self._disarm()
        if self.onCompletion is not None:
            self.onCompletion(self)

    def _disarm(self) -> None:
        self._any = False
        self._quiet = self._depth
        self._noticed = 0
        self._cancel()

    def _cancel(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()


def _checkDepth(depth: int) -> None:
    """
    @raise ResourceLimitError: no completion queue has so many places.
    """
    if not 1 <= depth <= limits.COMPLETION_QUEUE_DEPTH:
        raise ResourceLimitError(
            f"a completion queue has 1 to {limits.COMPLETION_QUEUE_DEPTH} places, not {depth}"
        )
