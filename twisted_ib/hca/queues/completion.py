"""
Completion queues, and the work completions that a program polls from them.

Numbers are those of verbs (C{enum ibv_wc_status}, C{enum ibv_wc_opcode}, C{enum ibv_wc_flags}).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import IntEnum, IntFlag
from typing import ClassVar, Final, Protocol

from twisted_ib import limits
from twisted_ib.compilation import mypyc_attr
from twisted_ib.errors import ResourceLimitError
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.base.refcount import RefCounted
from twisted_ib.hca.base.timers import Timer, Timers


class WCStatus(IntEnum):
    """
    The result of a work request (IBTA vol. 1 11.6.2).
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
    The kind of work request that completed.
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
    Which optional fields of a completion are valid.
    """

    GRH = 1
    WITH_IMM = 2
    WITH_INV = 4


@mypyc_attr(allow_interpreted_subclasses=True)
class WorkCompletion:
    """
    The result of one work request.

    If C{status} is not L{WCStatus.SUCCESS}, only C{workRequestID}, C{status} and C{queuePairNumber} are
    valid.

    @ivar workRequestID: the program's wr_id.
    @ivar byteLength: bytes received or read.
    @ivar queuePairNumber: the local queue pair.
    @ivar flags: L{WCFlags} bits.
    @ivar immediate: the 32-bit immediate with C{WITH_IMM}; the invalidated key with C{WITH_INV}.
    @ivar sourceQueuePair: the sender's queue pair number, for datagrams.
    @cvar sourceLID: 0, as C{pathBits} and C{serviceLevel}: see L{LocalCompletion}.
    """

    sourceLID = 0
    pathBits = 0
    serviceLevel = 0

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


class LocalCompletion(WorkCompletion):
    """
    The completion of a datagram that has local addresses (IBTA vol. 1 11.4.2.1).

    @ivar sourceLID: of the sender.
    @ivar pathBits: of the LID that it was sent to: what that adds to the port's base LID.
    @ivar serviceLevel: 4 bits.
    """

    __slots__ = ("pathBits", "serviceLevel", "sourceLID")


class RoutedCompletion(WorkCompletion):
    """
    The completion of a datagram that has a GRH or an IP header.

    @ivar serviceLevel: what there is in its place on Ethernet.
    """

    __slots__ = ("serviceLevel",)


class Completions(Protocol):
    """
    Where work requests complete: a L{CompletionQueue}, or what hears of each at once.
    """

    def push(self, completion: WorkCompletion, solicited: bool = False) -> bool:
        """
        As L{CompletionQueue.push}.
        """


_MICROSECONDS: Final = 1_000_000


class Mirror(Protocol):
    """
    Where a program finds the oldest completions of a queue, and takes them without a call.

    @ivar shown: how many of the queue's first completions it has, or the program has taken.
    """

    shown: int

    def wanted(self) -> object:
        """
        There are completions that it does not have.
        """

    def show(self) -> object:
        """
        Have them, as far as there is room.
        """

    def settle(self) -> object:
        """
        Remove from the queue what the program has taken.
        """

    def recall(self) -> object:
        """
        As L{settle}, and have nothing of the others any more.
        """

    def more(self) -> bool:
        """
        Post what the program has left to whoever needs it.

        @return: whether there was anything.
        """


@mypyc_attr(allow_interpreted_subclasses=True)
class CompletionQueue(RefCounted):
    """
    A bounded queue of completions.

    Completions stay in order.  A completion that finds the queue full is lost; the program made the queue
    too small, and that is fatal for the queue pair that completes (IBTA vol. 1 11.6.3.2) but for no other.

    The program polls, or asks for a notification: L{arm} asks for one call of C{onCompletion} at the next
    completion.  With moderation (L{modify}) that call waits until there are several.

    @ivar overflowed: whether a completion was ever lost.
    @ivar completions: those that wait, the oldest first; the same object as long as the queue lives.
    @ivar onCompletion: L{None}, or the function to call with the queue, once per L{arm}.
    @ivar onEvent: L{None}, or the function to call with C{CQ_ERR} and the queue, once, when the first
        completion is lost.
    @ivar mirror: L{None}, or what has a copy of the first of C{completions}; see L{reflect}.
    @ivar quiet: the number of completions up to which L{push} only appends: the depth, or 0 while the queue
        is armed, or its mirror has them all, which sets it so.
    @ivar count: see L{modify}.
    @ivar period: see L{modify}; in microseconds.
    """

    __slots__ = (
        "_any",
        "_armed",
        "_depth",
        "_noticed",
        "_timer",
        "_timers",
        "completions",
        "count",
        "mirror",
        "onCompletion",
        "onEvent",
        "overflowed",
        "period",
        "quiet",
    )

    kind: ClassVar[str] = "completion queue"

    def __init__(self, depth: int, timers: Timers | None = None) -> None:
        """
        @param depth: how many completions it holds.
        @param timers: the device's, for moderation.

        @raise ResourceLimitError: C{depth} is not between 1 and L{limits.COMPLETION_QUEUE_DEPTH}.
        """
        super().__init__()
        _checkDepth(depth)
        self._depth = depth
        # One comparison serves the bound, the notification and the mirror.
        self.quiet = depth
        self._armed = False
        self.mirror: Mirror | None = None
        self.overflowed = False
        self.onCompletion: Callable[[CompletionQueue], None] | None = None
        self.onEvent: Callable[[EventType, object], None] | None = None
        self.count = 0
        self.period = 0
        self.completions: deque[WorkCompletion] = deque()
        # Armed for any completion, not only for solicited ones and errors.
        self._any = False
        # Completions since L{arm} that the notification is for.
        self._noticed = 0
        self._timer: Timer | None = None
        self._timers = timers

    def __len__(self) -> int:
        return len(self.completions)

    @property
    def depth(self) -> int:
        """
        How many completions it holds.
        """
        return self._depth

    def push(self, completion: WorkCompletion, solicited: bool = False) -> bool:
        """
        Queue a completion.

        @param solicited: whether the sender asked for an event.

        @return: whether there was room.
        """
        n = len(self.completions)
        if n >= self.quiet:
            if self.mirror is None or self._armed or n + 1 >= self._depth:
                return self._pushNoticed(completion, solicited)
            # Once, until the mirror has them.
            self.mirror.wanted()
            self.quiet = self._depth
        self.completions.append(completion)
        return True

    def takes(self, count: int) -> bool:
        """
        @return: whether so many successful and not solicited completions may be appended to L{completions},
            where L{push} would do no more.
        """
        n = len(self.completions)
        if self._armed or n + count >= self._depth:
            return False
        if n >= self.quiet and self.mirror is not None:
            # As in push().
            self.mirror.wanted()
            self.quiet = self._depth
        return True

    def poll(self, count: int = 1) -> list[WorkCompletion]:
        """
        Remove and return up to C{count} completions, the oldest first.
        """
        completions = self.completions
        return [completions.popleft() for _ in range(min(count, len(completions)))]

    def reflect(self, mirror: Mirror | None) -> None:
        """
        Have the program take completions from a mirror, or no longer.
        """
        self.mirror = mirror
        self._setQuiet()

    def _setQuiet(self) -> None:
        self.quiet = 0 if self._armed or self.mirror is not None else self._depth

    def recall(self) -> None:
        """
        Leave out what the program has taken: C{completions} are those that wait.
        """
        if self.mirror is not None:
            self.mirror.recall()

    def discard(self, queuePairNumber: int) -> None:
        """
        Remove the completions of a queue pair that was reset or destroyed.
        """
        self.recall()
        # IBTA vol. 1 10.3.1: RESET discards its work requests; the same wr_ids may be in use again
        # soon, and a stale completion would be mistaken for a new one.
        kept = [each for each in self.completions if each.queuePairNumber != queuePairNumber]
        self.completions.clear()
        self.completions.extend(kept)

    def arm(self, solicitedOnly: bool = False) -> None:
        """
        Ask for one call of C{onCompletion} at the next completion; completions already queued do not
        count.

        @param solicitedOnly: only for a solicited completion or an error; if an earlier call asked for any
            completion, that remains (IBTA vol. 1 11.4.2.2).
        """
        # Completions that are queued already raise no event: a program arms, polls once more, then
        # waits (libibverbs, ibv_req_notify_cq).
        self.quiet = 0
        self._armed = True
        if not solicitedOnly:
            self._any = True

    def modify(self, count: int, period: int) -> None:
        """
        Moderate the calls of C{onCompletion}: wait until C{count} relevant completions have come since
        L{arm}, but no longer than C{period} after the first; never wait while the queue is full.  0 and 0,
        or a count of 1, end moderation.

        @param count: completions; 0 means that only the time counts.
        @param period: microseconds; 0 means that only the number counts.

        @raise ResourceLimitError: one of them is more than L{limits.COMPLETION_MODERATION}, or there are
            no timers.
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

        @raise ResourceLimitError: as for a new queue, or there are more than C{depth} completions; nothing
            changes then.
        """
        _checkDepth(depth)
        # Linux rxe_cq.c rxe_cq_chk_attr() refuses the same; to drop completions would lose
        # results.
        self.recall()
        if depth < len(self.completions):
            raise ResourceLimitError(
                f"{len(self.completions)} completions wait, which {depth} places do not hold"
            )
        self._depth = depth
        self._setQuiet()
        if self._noticed:
            self._moderate()

    def close(self) -> None:
        """
        Destroy it: completions are dropped and nothing is called any more.

        @raise ResourceBusyError: work queues still use it.
        """
        self.checkFree()
        self._disarm()
        self.onCompletion = self.onEvent = None
        self.recall()
        self.completions.clear()

    def _pushNoticed(self, completion: WorkCompletion, solicited: bool) -> bool:
        if self.mirror is not None:
            # What the program has taken leaves room, and does not make it full.
            if len(self.completions) + 1 >= self._depth:
                self.mirror.recall()
            self.mirror.wanted()
        if len(self.completions) >= self._depth:
            # Once: a program that does not poll would otherwise get an event per lost completion.
            if not self.overflowed:
                self.overflowed = True
                if self.onEvent is not None:
                    self.onEvent(EventType.CQ_ERR, self)
            return False
        self.completions.append(completion)
        if not self._armed:
            return True
        # IBTA vol. 1 11.4.2.2: an error counts as solicited.  Linux rxe_cq.c rxe_cq_post() looks
        # at the solicited flag only.
        if self._any or solicited or completion.status:
            self._noticed += 1
            self._moderate()
        return True

    def _moderate(self) -> None:
        # A full queue does not wait: the next completion would be lost before the program polls.
        enough = self._noticed >= self.count and (self.count or not self.period)
        if enough or len(self.completions) >= self._depth:
            self._tell()
        elif self.period and self._timer is None:
            assert self._timers is not None
            self._timer = self._timers.start(self.period / _MICROSECONDS, self._tell)

    def _tell(self) -> None:
        # Disarmed before the call, so that the program may arm again in it.
        self._disarm()
        if self.onCompletion is not None:
            self.onCompletion(self)

    def _disarm(self) -> None:
        self._any = self._armed = False
        self.quiet = self._depth if self.mirror is None else 0
        self._noticed = 0
        self._cancel()

    def _cancel(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()


def _checkDepth(depth: int) -> None:
    if not 1 <= depth <= limits.COMPLETION_QUEUE_DEPTH:
        raise ResourceLimitError(
            f"a completion queue has 1 to {limits.COMPLETION_QUEUE_DEPTH} places, not {depth}"
        )
