"""
The receive queue of a reliable connection, and what the peer does to memory.

Each record is looked at in the order that Linux's rxe keeps to (C{rxe_resp.c}; IBTA vol. 1
9.7.4): sequence of codes, what the queue pair permits, whether a receive is there, length,
key.  What is wrong is answered with the syndrome of IBTA vol. 1 9.7.5.2; an RNR leaves
everything as it was, any other brings the queue pair to ERR.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from twisted_ib import limits
from twisted_ib.errors import MemoryAccessError, QueuePairError, ResourceLimitError
from twisted_ib.hca.core.answers import Answers
from twisted_ib.hca.core.completion import WCFlags, WCOpcode, WCStatus, WorkCompletion
from twisted_ib.hca.core.memory import LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE
from twisted_ib.hca.core.requests import ReceiveRequest
from twisted_ib.hca.core.scatter import locate, payload, scatter, total
from twisted_ib.hca.core.states import QPState
from twisted_ib.hca.operation import (
    LATER,
    NAK_INVALID_REQUEST,
    NAK_REMOTE_ACCESS,
    NAK_REMOTE_OPERATIONAL,
    OPERATION_MASK,
    READ_REQUEST,
    RESUME,
    RNR,
    SEND_FIRST,
    SEND_LAST,
    SEND_LAST_IMMEDIATE,
    SEND_MIDDLE,
    SEND_ONLY,
    SEND_ONLY_IMMEDIATE,
    SOLICITED,
    WRITE_FIRST,
    WRITE_LAST,
    WRITE_LAST_IMMEDIATE,
    WRITE_MIDDLE,
    WRITE_ONLY,
    WRITE_ONLY_IMMEDIATE,
)
from twisted_ib.hca.wire.headers import IMMEDIATE, RETH

if TYPE_CHECKING:
    from twisted_ib.hca.core.work import WorkQueues

# Code -> (is a WRITE, begins a message, ends it, has an immediate).
_SHAPES = {
    SEND_FIRST: (False, True, False, False),
    SEND_MIDDLE: (False, False, False, False),
    SEND_LAST: (False, False, True, False),
    SEND_LAST_IMMEDIATE: (False, False, True, True),
    SEND_ONLY: (False, True, True, False),
    SEND_ONLY_IMMEDIATE: (False, True, True, True),
    WRITE_FIRST: (True, True, False, False),
    WRITE_MIDDLE: (True, False, False, False),
    WRITE_LAST: (True, False, True, False),
    WRITE_LAST_IMMEDIATE: (True, False, True, True),
    WRITE_ONLY: (True, True, True, False),
    WRITE_ONLY_IMMEDIATE: (True, True, True, True),
}


class _Refused(Exception):
    """
    A record is answered with a refusal.

    @ivar syndrome: which.
    @ivar status: how the receive that it used up ends, if it used up one.
    """

    def __init__(self, syndrome: int, status: WCStatus = WCStatus.WR_FLUSH_ERR) -> None:
        """
        Take the fields as they are.
        """
        super().__init__(syndrome)
        self.syndrome = syndrome
        self.status = status


class Responder:
    """
    Takes the peer's requests.

    @ivar work: the pair of queues it belongs to.
    """

    __slots__ = (
        "_address",
        "_answers",
        "_done",
        "_key",
        "_length",
        "_receive",
        "_receives",
        "_room",
        "_writing",
        "work",
    )

    def __init__(self, work: WorkQueues) -> None:
        """
        An empty queue.
        """
        self.work: WorkQueues | None = work
        self._receives: deque[ReceiveRequest] = deque()
        self._answers = Answers(work)
        # The message that has begun and not ended: None, or whether it is a WRITE.
        self._writing: bool | None = None
        self._receive: ReceiveRequest | None = None  # of a SEND
        self._room = self._done = 0
        self._address = self._key = self._length = 0  # of a WRITE

    # -- posting

    def enqueue(self, request: ReceiveRequest) -> None:
        """
        Take a receive; the state was checked.

        @raise ResourceLimitError: the queue is full.
        """
        work = self.work
        assert work is not None
        if len(self._receives) >= work.capabilities.receives:
            raise ResourceLimitError(f"the receive queue of queue pair {work.queuePair.number} is full")
        self._receives.append(request)
        if work.queuePair.state == QPState.ERR:
            self.flush()

    # -- what the peer asks for

    def delivered(self, opcode: int, buffer: Any, start: int, stop: int) -> int:
        """
        Take a record.

        @return: 0, or the syndrome of a refusal.
        """
        work = self.work
        assert work is not None
        try:
            self._take(work, opcode, buffer, start, stop)
        except _Refused as refused:
            syndrome = refused.syndrome
            if syndrome & ~0x1F != RNR:
                if not self._answers:
                    self._fail(work, refused.status, syndrome)
                    return syndrome
                # The queue pair's end would cut off the answers to READs before it.
                syndrome = LATER
            self._rewind()
            return syndrome
        return 0

    def _rewind(self) -> None:
        """
        The message that has begun comes again, from its beginning.
        """
        self._writing = None
        receive, self._receive = self._receive, None
        if receive is not None:
            self._receives.appendleft(receive)

    def _take(self, work: WorkQueues, opcode: int, buffer: Any, start: int, stop: int) -> None:
        """
        Take a record, or raise L{_Refused}.
        """
        code = opcode & OPERATION_MASK
        if code == RESUME:
            return  # Nothing was refused.
        shape = _SHAPES.get(code)
        if shape is None:
            if code != READ_REQUEST or self._writing is not None:
                raise _Refused(NAK_INVALID_REQUEST)
            self._takeRead(work, buffer, start, stop)
            return
        isWrite, begins, ends, immediate = shape
        if begins is not (self._writing is None) or not (begins or self._writing is isWrite):
            raise _Refused(NAK_INVALID_REQUEST)
        if isWrite:
            if not work.attributes.access & REMOTE_WRITE:
                raise _Refused(NAK_INVALID_REQUEST)
            if immediate and not self._receives:
                raise _Refused(RNR | work.attributes.minRNRTimer)
            if begins:
                start = self._beginWrite(work, buffer, start, stop)
        elif begins:
            self._beginSend(work)
        value = 0
        if immediate:
            if stop - start < IMMEDIATE.size:
                raise _Refused(NAK_INVALID_REQUEST)
            (value,) = IMMEDIATE.unpack_from(buffer, start)
            start += IMMEDIATE.size
        self._place(work, opcode, buffer, start, stop, ends)
        if ends:
            self._writing = None
            self._ended(work, isWrite, value if immediate else None, bool(opcode & SOLICITED))

    def _beginSend(self, work: WorkQueues) -> None:
        """
        A SEND begins: it needs a receive.
        """
        if not self._receives:
            raise _Refused(RNR | work.attributes.minRNRTimer)
        self._receive = self._receives.popleft()
        self._room = total(self._receive.pieces)
        self._done = 0
        self._writing = False

    def _beginWrite(self, work: WorkQueues, buffer: Any, start: int, stop: int) -> int:
        """
        A WRITE begins: its key must open all that it names.

        @return: where the record goes on.
        """
        self._address, self._key, self._length = self._reth(work, buffer, start, stop, REMOTE_WRITE)
        self._done = 0
        self._writing = True
        return start + RETH.size

    def _reth(
        self, work: WorkQueues, buffer: Any, start: int, stop: int, access: int
    ) -> tuple[int, int, int]:
        """
        Parse and check the header that names memory here.

        @return: address, key and length.
        """
        if stop - start < RETH.size:
            raise _Refused(NAK_INVALID_REQUEST)
        address, key, length = RETH.unpack_from(buffer, start)
        if length > limits.MESSAGE_BYTES:
            raise _Refused(NAK_INVALID_REQUEST)
        try:
            work.pd.memory.check(key, address, length, access, work.pd)
        except MemoryAccessError:
            raise _Refused(NAK_REMOTE_ACCESS) from None
        return address, key, length

    def _place(self, work: WorkQueues, opcode: int, buffer: Any, start: int, stop: int, ends: bool) -> None:
        """
        Put a record's payload where it belongs.
        """
        source = payload(work.queuePair.path, opcode, buffer, start, stop)
        if source is None:
            raise _Refused(NAK_REMOTE_OPERATIONAL)
        count, done = len(source), self._done
        if not count and not (ends and not done):
            raise _Refused(NAK_INVALID_REQUEST)  # Only a message of nothing has such a record.
        try:
            if self._writing:
                if done + count > self._length or ends is not (done + count == self._length):
                    raise _Refused(NAK_INVALID_REQUEST)
                if count:
                    address = self._address + done
                    view, offset = work.pd.memory.check(self._key, address, count, REMOTE_WRITE, work.pd)
                    view[offset : offset + count] = source
            else:
                assert self._receive is not None
                if done + count > self._room:
                    raise _Refused(NAK_INVALID_REQUEST, WCStatus.LOC_LEN_ERR)
                scatter(locate(work.pd, self._receive.pieces, done, count, LOCAL_WRITE), source)
        except MemoryAccessError:
            if self._writing:
                raise _Refused(NAK_REMOTE_ACCESS) from None
            raise _Refused(NAK_REMOTE_OPERATIONAL, WCStatus.LOC_PROT_ERR) from None
        self._done = done + count

    def _ended(self, work: WorkQueues, isWrite: bool, immediate: int | None, solicited: bool) -> None:
        """
        A message is complete: complete the receive that it used.
        """
        if not isWrite:
            receive, self._receive = self._receive, None
        elif immediate is None:
            return
        else:
            receive = self._receives.popleft()
        assert receive is not None
        completion = WorkCompletion(
            receive.id,
            WCStatus.SUCCESS,
            WCOpcode.RECV_RDMA_WITH_IMM if isWrite else WCOpcode.RECV,
            work.queuePair.number,
            self._done,
            0 if immediate is None else int(WCFlags.WITH_IMM),
            immediate or 0,
        )
        work.complete(work.receiveCompletions, completion, solicited)

    # -- READs

    def _takeRead(self, work: WorkQueues, buffer: Any, start: int, stop: int) -> None:
        """
        Begin to answer a READ.
        """
        attributes = work.attributes
        if not attributes.access & REMOTE_READ or len(self._answers) >= attributes.peerReads:
            raise _Refused(NAK_INVALID_REQUEST)
        address, key, length = self._reth(work, buffer, start, stop, REMOTE_READ)
        if stop - start != RETH.size:
            raise _Refused(NAK_INVALID_REQUEST)
        self._answers.add(address, key, length)

    # -- ends

    def _fail(self, work: WorkQueues, status: WCStatus, syndrome: int) -> None:
        """
        Complete the receive in use with an error, and bring the queue pair to ERR.
        """
        receive, self._receive = self._receive, None
        number = work.queuePair.number
        if receive is not None:
            work.receiveCompletions.push(WorkCompletion(receive.id, status, WCOpcode.RECV, number), True)
        work.queuePair.fail(
            QueuePairError(f"queue pair {number} refused a request of its peer (syndrome {syndrome:#04x})")
        )

    def flush(self) -> None:
        """
        Complete all receives, in order, with WR_FLUSH_ERR.
        """
        work, receives = self.work, self._receives
        assert work is not None
        self._answers.close()
        self._rewind()
        while receives:
            work.receiveCompletions.push(
                WorkCompletion(
                    receives.popleft().id, WCStatus.WR_FLUSH_ERR, WCOpcode.RECV, work.queuePair.number
                ),
                True,
            )

    def close(self) -> None:
        """
        Forget everything; what the medium still knows of this queue does nothing.
        """
        self.work = None
        self._receives.clear()
        self._answers.close()
        self._receive = None
