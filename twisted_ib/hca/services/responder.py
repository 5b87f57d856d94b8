"""
The receive queue of a reliable connection, and what the peer does to memory.

Each record is looked at in the order that Linux's rxe keeps to (C{rxe_resp.c}; IBTA vol. 1
9.7.4): sequence of codes, what the queue pair permits, whether a receive is there, length,
key.  What is wrong is answered with the syndrome of IBTA vol. 1 9.7.5.2; an RNR leaves
everything as it was, any other brings the queue pair to ERR.

A message goes into a receive that was posted, or to the queue pair's consumer if that has
promised to take some (C{queuePair.posted}); promises are used first.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any

from twisted_ib import limits
from twisted_ib.errors import MemoryAccessError, QueuePairError
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.base.operation import (
    ABSENT,
    COMPARE_SWAP,
    FETCH_ADD,
    LATER,
    NAK_INVALID_REQUEST,
    NAK_REMOTE_ACCESS,
    NAK_REMOTE_OPERATIONAL,
    OPERATION_MASK,
    READ_REQUEST,
    RESUME,
    RNR,
    SEND_ONLY,
    SHAPES,
    SOLICITED,
    UNRELIABLE,
)
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.memory.memory import LOCAL_WRITE, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE
from twisted_ib.hca.queues.completion import WCFlags, WCOpcode, WCStatus, WorkCompletion
from twisted_ib.hca.queues.reassembly import Reassembly
from twisted_ib.hca.queues.receives import Receives
from twisted_ib.hca.queues.requests import ATOMIC_BYTES, ReceiveRequest
from twisted_ib.hca.queues.scatter import locate, payload, scatter, total
from twisted_ib.hca.services.responses import Answers, AtomicAnswer, ReadAnswer
from twisted_ib.hca.wire.headers import ATOMIC, IMMEDIATE, INVALIDATE, RETH

if TYPE_CHECKING:
    from twisted_ib.hca.queues.queuepair import QueuePair
    from twisted_ib.hca.services.work import WorkQueues

#: A refusal that no completion tells of -> the event (IBTA vol. 1 11.6.3.2).
_EVENTS = {
    NAK_INVALID_REQUEST: EventType.QP_REQ_ERR,
    NAK_REMOTE_ACCESS: EventType.QP_ACCESS_ERR,
    NAK_REMOTE_OPERATIONAL: EventType.QP_FATAL,
}


class Refused(Exception):
    """
    A record is answered with a refusal.

    @ivar syndrome: which; 0 if the record is taken, and only this side's queue pair ends.
    @ivar status: how the receive that it used up ends, if it used up one.
    @ivar reason: what the peer did, for a sentence; or nothing.
    """

    def __init__(self, syndrome: int, status: WCStatus = WCStatus.WR_FLUSH_ERR, reason: str = "") -> None:
        super().__init__(syndrome)
        self.syndrome = syndrome
        self.status = status
        self.reason = reason


class Responder:
    """
    Takes the peer's requests.

    @ivar work: the pair of queues it belongs to.
    """

    __slots__ = (
        "_address",
        "_answers",
        "_done",
        "_fresh",
        "_key",
        "_length",
        "_parts",
        "_receive",
        "_receives",
        "_room",
        "_writing",
        "work",
    )

    def __init__(self, work: WorkQueues) -> None:
        self.work: WorkQueues | None = work
        self._receives = Receives(work)
        self._answers = Answers(work)
        self._fresh = True  # Nothing has come.
        # The message that has begun and not ended: None, or whether it is a WRITE.
        self._writing: bool | None = None
        self._receive: ReceiveRequest | None = None  # of a SEND
        self._parts: Reassembly | None = None  # of a SEND for the consumer
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
        self._receives.add(request)
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
        if opcode & UNRELIABLE:
            return self._misaddressed(work)
        if self._fresh and opcode != RESUME and not self._establish(work):
            return ABSENT
        queuePair = work.queuePair
        if opcode == SEND_ONLY and queuePair.posted and self._writing is None and not self._answers.owed:
            if stop - start <= queuePair.maxMessage:
                queuePair.posted -= 1
                work.messagesReceived += 1
                queuePair.consumer.received(buffer, start, stop)
                return 0
        inside = self._writing is not None
        try:
            self._take(work, opcode, buffer, start, stop)
        except Refused as refused:
            syndrome = refused.syndrome
            if syndrome & ~0x1F != RNR:
                if not self._answers.owed:
                    self._fail(work, refused.status, syndrome, refused.reason)
                    return syndrome
                # The queue pair's end would cut off the answers to READs before it.
                syndrome = LATER
            else:
                work.count("send_rnr_err")
            path = queuePair.path
            if not (inside and path is not None and path.inPackets):
                self._rewind()
            return syndrome
        return 0

    def _establish(self, work: WorkQueues) -> bool:
        """
        The first record came.

        @return: whether the queue pair still takes it: who hears of it may end that.
        """
        self._fresh = False
        work.established()
        return self.work is not None and work.queuePair.state != QPState.ERR

    def _misaddressed(self, work: WorkQueues) -> int:
        """
        A record of another service: on a wire it would be dropped silently.
        """
        work.count("unreliable_misaddressed")
        return 0

    def _rewind(self) -> None:
        """
        The message that has begun comes again, from its beginning.
        """
        self._writing = None
        receive, self._receive = self._receive, None
        if receive is not None:
            self._receives.putBack(receive)
        elif self._parts is not None:
            self._dropParts()
            if self.work is not None:
                self.work.queuePair.posted += 1

    def _take(self, work: WorkQueues, opcode: int, buffer: Any, start: int, stop: int) -> None:
        code = opcode & OPERATION_MASK
        if code == RESUME:
            return  # Nothing was refused.
        shape = SHAPES.get(code)
        if shape is None:
            self._takeQuestion(work, code, buffer, start, stop)
            return
        isWrite, begins, ends, extra = shape
        if begins is not (self._writing is None) or not (begins or self._writing is isWrite):
            raise Refused(NAK_INVALID_REQUEST)
        if isWrite:
            if not work.attributes.access & REMOTE_WRITE:
                raise Refused(NAK_INVALID_REQUEST)
            if extra and not (work.queuePair.posted or self._receives):
                raise Refused(RNR | work.attributes.minRNRTimer)
            if begins:
                start = self._beginWrite(work, buffer, start, stop)
        elif begins:
            self._beginSend(work)
        value = 0
        if extra:
            if stop - start < extra.size:
                raise Refused(NAK_INVALID_REQUEST)
            (value,) = extra.unpack_from(buffer, start)
            start += extra.size
        self._place(work, opcode, buffer, start, stop, ends)
        if extra is INVALIDATE:
            self._invalidate(work, value)
        if ends:
            self._writing = None
            work.messagesReceived += 1
            if not isWrite or extra:
                self._ended(work, isWrite, extra, value, bool(opcode & SOLICITED))

    def _beginSend(self, work: WorkQueues) -> None:
        """
        A SEND begins: it needs a receive.
        """
        queuePair = work.queuePair
        if queuePair.posted:
            queuePair.posted -= 1
            self._parts = Reassembly(queuePair)
            self._room = queuePair.maxMessage
        else:
            self._receive = self._receives.take()
            if self._receive is None:
                raise Refused(RNR | work.attributes.minRNRTimer)
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
            raise Refused(NAK_INVALID_REQUEST)
        address, key, length = RETH.unpack_from(buffer, start)
        if length > limits.MESSAGE_BYTES:
            raise Refused(NAK_INVALID_REQUEST)
        try:
            work.pd.memory.check(key, address, length, access, work.pd, work.queuePair)
        except MemoryAccessError:
            raise Refused(NAK_REMOTE_ACCESS) from None
        return address, key, length

    def _place(self, work: WorkQueues, opcode: int, buffer: Any, start: int, stop: int, ends: bool) -> None:
        source = payload(work.queuePair.path, opcode, buffer, start, stop)
        if source is None:
            raise Refused(NAK_REMOTE_OPERATIONAL)
        count, done = len(source), self._done
        if not count and not (ends and not done):
            raise Refused(NAK_INVALID_REQUEST)  # Only a message of nothing has such a record.
        if self._answers.owed:
            self._executeAtomics()
        try:
            if self._writing:
                if done + count > self._length or ends is not (done + count == self._length):
                    raise Refused(NAK_INVALID_REQUEST)
                if count:
                    self._write(work, done, source)
            elif done + count > self._room:
                raise Refused(
                    NAK_INVALID_REQUEST,
                    WCStatus.LOC_LEN_ERR,
                    f"sent a message of more than {self._room} bytes",
                )
            elif (parts := self._parts) is not None:
                parts.add(source)
                if parts.dropped:
                    raise Refused(NAK_REMOTE_OPERATIONAL)  # This was who held most.
            else:
                assert self._receive is not None
                # Receives that are shared are in their queue's domain (IBTA vol. 1 10.2.9.1).
                pd = work.pd if work.shared is None else work.shared.pd
                scatter(locate(pd, self._receive.pieces, done, count, LOCAL_WRITE), source)
        except MemoryAccessError:
            if self._writing:
                raise Refused(NAK_REMOTE_ACCESS) from None
            raise Refused(NAK_REMOTE_OPERATIONAL, WCStatus.LOC_PROT_ERR) from None
        self._done = done + count

    def _executeAtomics(self) -> None:
        """
        What is written or sent comes behind the atomics before it, though their turn to be
        answered may not have come (IBTA vol. 1 C9-28).
        """
        try:
            self._answers.execute()
        except MemoryAccessError:
            raise Refused(NAK_REMOTE_ACCESS) from None

    def _dropParts(self) -> None:
        """
        Keep nothing of a message for the consumer any more.
        """
        parts, self._parts = self._parts, None
        if parts is not None:
            parts.drop()

    def _write(self, work: WorkQueues, done: int, source: memoryview) -> None:
        """
        Write a part of a WRITE.

        @raise MemoryAccessError: the right to the memory is gone.
        """
        count = len(source)
        view, offset = work.pd.memory.check(
            self._key, self._address + done, count, REMOTE_WRITE, work.pd, work.queuePair
        )
        view[offset : offset + count] = source

    def _invalidate(self, work: WorkQueues, key: int) -> None:
        """
        A SEND ends a key.  If it cannot, the peer's request is done all the same, but
        the receive ends badly (Linux's rxe_resp.c, C{RESPST_ERR_INVALIDATE_RKEY}).
        """
        try:
            work.pd.memory.invalidate(key, work.queuePair)
        except MemoryAccessError:
            raise Refused(0, WCStatus.REM_INV_REQ_ERR) from None

    def _ended(
        self, work: WorkQueues, isWrite: bool, extra: Struct | None, value: int, solicited: bool
    ) -> None:
        """
        A message is complete: so is the receive that it used.

        @param value: what C{extra} says.
        """
        queuePair = work.queuePair
        if self._parts is not None or (isWrite and queuePair.posted):
            self._hand(queuePair, isWrite, extra, value)
            return
        receive, self._receive = self._receive, None
        if isWrite:
            receive = self._receives.take()
        assert receive is not None
        flags = 0
        if extra is not None:
            flags = int(WCFlags.WITH_INV if extra is INVALIDATE else WCFlags.WITH_IMM)
        completion = WorkCompletion(
            receive.id,
            WCStatus.SUCCESS,
            WCOpcode.RECV_RDMA_WITH_IMM if isWrite else WCOpcode.RECV,
            queuePair.number,
            self._done,
            flags,
            value,
        )
        work.complete(work.receiveCompletions, completion, solicited)

    def _hand(self, queuePair: QueuePair, isWrite: bool, extra: Struct | None, value: int) -> None:
        """
        Hand a message to the consumer, which promised to take it.
        """
        parts, self._parts = self._parts, None
        consumer = queuePair.consumer
        if isWrite:
            queuePair.posted -= 1
            consumer.remoteMemoryWritten(value, self._length)
            return
        data = b"" if parts is None else parts.take()
        if extra is IMMEDIATE:
            consumer.immediateReceived(value, data, 0, len(data))
        else:
            consumer.received(data, 0, len(data))

    # -- READs and atomics

    def _takeQuestion(self, work: WorkQueues, code: int, buffer: Any, start: int, stop: int) -> None:
        if code not in (READ_REQUEST, COMPARE_SWAP, FETCH_ADD):
            raise Refused(NAK_INVALID_REQUEST)
        path = work.queuePair.path
        if self._writing is not None and (path is None or not path.inPackets):
            # In packets it is one that comes again: their transport looks at the sequence.
            raise Refused(NAK_INVALID_REQUEST)
        attributes = work.attributes
        access = REMOTE_READ if code == READ_REQUEST else REMOTE_ATOMIC
        if not attributes.access & access or len(self._answers.owed) >= attributes.peerReads:
            raise Refused(NAK_INVALID_REQUEST)
        if code != READ_REQUEST:
            self._takeAtomic(work, code, buffer, start, stop)
            return
        address, key, length = self._reth(work, buffer, start, stop, REMOTE_READ)
        if stop - start != RETH.size:
            raise Refused(NAK_INVALID_REQUEST)
        work.messagesReceived += 1
        self._answers.add(ReadAnswer(address, key, length))

    def _takeAtomic(self, work: WorkQueues, code: int, buffer: Any, start: int, stop: int) -> None:
        """
        Begin to answer an atomic: the key is looked at before the alignment, as Linux's
        rxe_resp.c does.
        """
        if stop - start != ATOMIC.size:
            raise Refused(NAK_INVALID_REQUEST)
        address, key, operand, compare = ATOMIC.unpack_from(buffer, start)
        try:
            work.pd.memory.check(key, address, ATOMIC_BYTES, REMOTE_ATOMIC, work.pd, work.queuePair)
        except MemoryAccessError:
            raise Refused(NAK_REMOTE_ACCESS) from None
        if address % ATOMIC_BYTES:
            raise Refused(NAK_INVALID_REQUEST)
        work.messagesReceived += 1
        self._answers.add(AtomicAnswer(address, key, operand, compare if code == COMPARE_SWAP else None))

    # -- ends

    def _fail(self, work: WorkQueues, status: WCStatus, syndrome: int, reason: str = "") -> None:
        """
        Complete the receive in use with an error, and bring the queue pair to ERR.

        @param reason: what the peer did.
        """
        receive, self._receive = self._receive, None
        self._dropParts()
        queuePair = work.queuePair
        if receive is not None:
            self._receives.end(receive, status)
        if self.work is None:
            return  # Who heard of it ended the queue pair.
        if syndrome in _EVENTS and (receive is None or status is WCStatus.WR_FLUSH_ERR):
            queuePair.raiseEvent(_EVENTS[syndrome])
        what = reason or "asked for what it may not"
        queuePair.fail(
            QueuePairError(f"the peer of queue pair {queuePair.number} {what} (syndrome {syndrome:#04x})")
        )

    def flush(self) -> None:
        """
        Complete all receives, in order, with WR_FLUSH_ERR.
        """
        self._answers.close()
        self._writing = None
        self._dropParts()
        receive, self._receive = self._receive, None
        if receive is not None:
            self._receives.end(receive, WCStatus.WR_FLUSH_ERR)
        self._receives.flush()

    def close(self) -> None:
        """
        Forget everything; what the medium still knows of this queue does nothing.
        """
        self._dropParts()
        self._rewind()
        self.work = None
        self._receives.clear()
        self._answers.close()
