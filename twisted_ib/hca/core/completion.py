"""
Completions: what became of a work request, and the queue where the program finds out.

Numbers are those of verbs (C{enum ibv_wc_status}, C{enum ibv_wc_opcode},
C{enum ibv_wc_flags}).
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum, IntFlag

from twisted_ib import limits
from twisted_ib.errors import ResourceBusyError, ResourceLimitError


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
        """
        Take the fields as they are.
        """
        self.workRequestID = workRequestID
        self.status = status
        self.opcode = opcode
        self.queuePairNumber = queuePairNumber
        self.byteLength = byteLength
        self.flags = flags
        self.immediate = immediate
        self.sourceQueuePair = 0

    def __repr__(self) -> str:
        """
        Name the request, its kind and its end.
        """
        return (
            f"<WorkCompletion {self.workRequestID} {self.opcode.name} "
            f"{self.status.name} of queue pair {self.queuePairNumber}>"
        )


class CompletionQueue:
    """
    A bounded queue of completions.

    What is queued stays in order.  A completion for which there is no room is lost; that
    is an error of the program, which gave the queue too few places, and is fatal for the
    queue pair that completes (IBTA vol. 1 11.6.3.2).  Notification (arming, solicited
    events, moderation) hangs in C{push}, which is told whether the completion is
    solicited.

    @ivar depth: its bound.
    @ivar overflowed: whether a completion was ever lost.
    @ivar users: how many work queues complete here.
    """

    __slots__ = ("_completions", "depth", "overflowed", "users")

    def __init__(self, depth: int) -> None:
        """
        @param depth: how many completions it holds.

        @raise ResourceLimitError: C{depth} is not between 1 and
            L{limits.COMPLETION_QUEUE_DEPTH}.
        """
        if not 1 <= depth <= limits.COMPLETION_QUEUE_DEPTH:
            raise ResourceLimitError(
                f"a completion queue has 1 to {limits.COMPLETION_QUEUE_DEPTH} places, not {depth}"
            )
        self.depth = depth
        self.overflowed = False
        self.users = 0
        self._completions: deque[WorkCompletion] = deque()

    def __len__(self) -> int:
        """
        How many completions wait.
        """
        return len(self._completions)

    def push(self, completion: WorkCompletion, solicited: bool = False) -> bool:
        """
        Queue a completion.

        @param completion: the work request's end.
        @param solicited: the sender asked for an event, or the status is an error.

        @return: whether there was room.
        """
        if len(self._completions) >= self.depth:
            self.overflowed = True
            return False
        self._completions.append(completion)
        return True

    def poll(self, count: int = 1) -> list[WorkCompletion]:
        """
        Take up to C{count} completions, the oldest first.
        """
        completions = self._completions
        return [completions.popleft() for _ in range(min(count, len(completions)))]

    def close(self) -> None:
        """
        Check that it may go away.

        @raise ResourceBusyError: queue pairs still complete here.
        """
        if self.users:
            raise ResourceBusyError(f"{self.users} work queues still use the completion queue")
