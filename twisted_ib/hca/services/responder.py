"""
The receive queue of a reliable connection, and the peer's access to memory.

Checks on a record are in the order of Linux rxe (C{rxe_resp.c}; IBTA vol. 1 9.7.4): opcode sequence,
access flags of the queue pair, receive available, length, R_Key.  A failed check is answered with the
syndrome of IBTA vol. 1 9.7.5.2; an RNR NAK leaves everything as it was, any other NAK brings the queue
pair to ERR.

A message goes into a posted receive, or to the queue pair's consumer if that has receives posted
(C{queuePair.posted}); those are used first.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any

from twisted_ib.errors import MemoryAccessError, QueuePairError
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.base.operation import (
    ABSENT,
    LATER,
    NAK_INVALID_REQUEST,
    NAK_REMOTE_ACCESS,
    NAK_REMOTE_OPERATIONAL,
    OPERATION_MASK,
    RESUME,
    RNR,
    SEND_ONLY,
    SHAPES,
    SOLICITED,
    UNRELIABLE,
)
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.memory.memory import LOCAL_WRITE, REMOTE_WRITE
from twisted_ib.hca.queues.completion import WCFlags, WCOpcode, WCStatus, WorkCompletion
from twisted_ib.hca.queues.reassembly import Reassembly
from twisted_ib.hca.queues.receives import Receives
from twisted_ib.hca.queues.requests import ReceiveRequest
from twisted_ib.hca.queues.scatter import locate, payload, scatter, total
from twisted_ib.hca.services.operations.operation import Refused, checkRemote
from twisted_ib.hca.services.operations.rows import RESPONSES_TO
from twisted_ib.hca.services.responses import ResponseQueue
from twisted_ib.hca.wire.headers import IMMEDIATE, INVALIDATE, RETH

if TYPE_CHECKING:
    from twisted_ib.hca.queues.queuepair import QueuePair
    from twisted_ib.hca.services.work import WorkQueues

#: NAK syndrome -> event, if no completion reports it (IBTA vol. 1 11.6.3.2).
_EVENTS = {
    NAK_INVALID_REQUEST: EventType.QP_REQ_ERR,
    NAK_REMOTE_ACCESS: EventType.QP_ACCESS_ERR,
    NAK_REMOTE_OPERATIONAL: EventType.QP_FATAL,
}


class Responder:
    """
    Executes the peer's requests.

    @ivar work: the work queues it belongs to; L{None} once closed.
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
        self._answers = ResponseQueue(work)
        # No record has arrived yet: the first one raises COMM_EST.
        self._fresh = True
        # The message in progress: None, or whether it is a WRITE.
        self._writing: bool | None = None
        # The receive in use by a SEND.
        self._receive: ReceiveRequest | None = None
        # Reassembly of a SEND for the consumer.
        self._parts: Reassembly | None = None
        self._room = self._done = 0
        # The RETH of a WRITE: Middle and Last packets do not repeat it (IBTA vol. 1 9.2.1).
        self._address = self._key = self._length = 0

    # -- posting

    def enqueue(self, request: ReceiveRequest) -> None:
        """
        Accept a receive; the caller checked the state.

        @raise ResourceLimitError: the queue is full.
        """
        work = self.work
        assert work is not None
        self._receives.add(request)
        if work.queuePair.state == QPState.ERR:
            self.flush()

    # -- from the peer

    def delivered(self, opcode: int, buffer: Any, start: int, stop: int) -> int:
        """
        Receive a record.

        @return: 0, or the syndrome of a NAK.
        """
        work = self.work
        assert work is not None
        if opcode & UNRELIABLE:
            return self._misaddressed(work)
        if self._fresh and opcode != RESUME and not self._establish(work):
            return ABSENT
        queuePair = work.queuePair
        # Shortcut for a stream's message, which is nearly all of the traffic.  Not while responses
        # are owed: atomics before it must be executed first (IBTA vol. 1 9.4.5).
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
            # IBTA vol. 1 9.7.5.2.8: an RNR NAK changes no state; the peer sends the same request
            # again.
            if syndrome & ~0x1F != RNR:
                if not self._answers.owed:
                    self._fail(work, refused.status, syndrome, refused.reason)
                    return syndrome
                # Failing now would cut off responses to earlier READs: the peer is asked to repeat
                # the request, and is refused when those are out.
                syndrome = LATER
            else:
                work.count("send_rnr_err")
            path = queuePair.path
            # A packet transport repeats from the refused packet only (IBTA vol. 1 9.7.5.2.8), a
            # fabric of operations from the beginning of the message.
            if not (inside and path is not None and path.inPackets):
                self._rewind()
            return syndrome
        return 0

    def _establish(self, work: WorkQueues) -> bool:
        # The event's handler may close or fail the queue pair; then the record is not for it any
        # more.
        self._fresh = False
        work.established()
        return self.work is not None and work.queuePair.state != QPState.ERR

    def _misaddressed(self, work: WorkQueues) -> int:
        # A record of another service is dropped silently, as in Linux rxe_recv.c
        # check_type_state().
        work.count("unreliable_misaddressed")
        return 0

    def _rewind(self) -> None:
        # The message in progress will come again from its beginning: give its receive back.
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
            # RESUME after nothing was refused.
            return
        shape = SHAPES.get(code)
        if shape is None:
            self._takeQuestion(work, code, buffer, start, stop)
            return
        isWrite, begins, ends, extra = shape
        # Linux rxe_resp.c check_op_seq(): behind First or Middle only Middle or Last of the same
        # kind.
        if begins is not (self._writing is None) or not (begins or self._writing is isWrite):
            raise Refused(NAK_INVALID_REQUEST)
        if isWrite:
            # Linux rxe_resp.c check_op_valid(): what the queue pair does not grant is an invalid
            # request (0x61), not an access error, and comes before the R_Key is looked at.
            if not work.attributes.access & REMOTE_WRITE:
                raise Refused(NAK_INVALID_REQUEST)
            # A WRITE with immediate needs its receive at the end only, but is refused before the
            # payload of this record is written.
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
        # After the payload is placed, as in Linux rxe_resp.c execute().
        if extra is INVALIDATE:
            self._invalidate(work, value)
        if ends:
            self._writing = None
            work.messagesReceived += 1
            if not isWrite or extra:
                self._ended(work, isWrite, extra, value, bool(opcode & SOLICITED))

    def _beginSend(self, work: WorkQueues) -> None:
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
        # Returns where the payload begins.  The whole length is checked now, so that a WRITE
        # without the right to all of it writes nothing (IBTA vol. 1 9.7.4).
        if stop - start < RETH.size:
            raise Refused(NAK_INVALID_REQUEST)
        address, key, length = RETH.unpack_from(buffer, start)
        checkRemote(work, address, key, length, REMOTE_WRITE)
        self._address, self._key, self._length = address, key, length
        self._done = 0
        self._writing = True
        return start + RETH.size

    def _place(self, work: WorkQueues, opcode: int, buffer: Any, start: int, stop: int, ends: bool) -> None:
        # A reference to memory that is not shared, or that is too long, is the peer's fault.
        source = payload(work.queuePair.path, opcode, buffer, start, stop)
        if source is None:
            raise Refused(NAK_REMOTE_OPERATIONAL)
        count, done = len(source), self._done
        if not count and not (ends and not done):
            # Linux rxe_resp.c rxe_resp_check_length(): a Last packet has at least one byte; only an Only
            # may be empty.
            raise Refused(NAK_INVALID_REQUEST)
        if self._answers.owed:
            self._executeAtomics()
        try:
            if self._writing:
                # Rights were checked for the RETH's length: no byte beyond it may be written, nor
                # may the message end early (Linux rxe_resp.c check_rkey(), resid).
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
                    # The device's memory for incomplete messages is used up, and this one had most
                    # of it.
                    raise Refused(NAK_REMOTE_OPERATIONAL)
            else:
                assert self._receive is not None
                # Receives of a shared queue are in its protection domain (IBTA vol. 1 10.2.9).
                pd = work.pd if work.shared is None else work.shared.pd
                scatter(locate(pd, self._receive.pieces, done, count, LOCAL_WRITE), source)
        except MemoryAccessError:
            if self._writing:
                raise Refused(NAK_REMOTE_ACCESS) from None
            # The receive's own list is at fault: the peer gets 0x63, as with Linux rxe_resp.c's
            # RESPST_ERR_MALFORMED_WQE, the program LOC_PROT_ERR (IBTA vol. 1 11.6.2).
            raise Refused(NAK_REMOTE_OPERATIONAL, WCStatus.LOC_PROT_ERR) from None
        self._done = done + count

    def _executeAtomics(self) -> None:
        try:
            # IBTA vol. 1 9.4.5 and 9.5: what is written or sent comes after the atomics before it,
            # even if their responses are still to be sent.
            self._answers.execute()
        except MemoryAccessError:
            raise Refused(NAK_REMOTE_ACCESS) from None

    def _dropParts(self) -> None:
        parts, self._parts = self._parts, None
        if parts is not None:
            parts.drop()

    def _write(self, work: WorkQueues, done: int, source: memoryview) -> None:
        # Checked again per record: the region may be deregistered during a long WRITE.
        count = len(source)
        view, offset = work.pd.memory.check(
            self._key, self._address + done, count, REMOTE_WRITE, work.pd, work.queuePair
        )
        view[offset : offset + count] = source

    def _invalidate(self, work: WorkQueues, key: int) -> None:
        try:
            work.pd.memory.invalidate(key, work.queuePair)
        except MemoryAccessError:
            # The peer's SEND is acknowledged all the same; the receive completes with an error
            # (Linux rxe_resp.c, RESPST_ERR_INVALIDATE_RKEY).
            raise Refused(0, WCStatus.REM_INV_REQ_ERR) from None

    def _ended(
        self, work: WorkQueues, isWrite: bool, extra: Struct | None, value: int, solicited: bool
    ) -> None:
        queuePair = work.queuePair
        if self._parts is not None or (isWrite and queuePair.posted):
            self._hand(queuePair, isWrite, extra, value)
            return
        receive, self._receive = self._receive, None
        if isWrite:
            # IBTA vol. 1 10.7.2.2, C10-87: a WRITE uses up a receive only if it has an immediate
            # and is done.
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
        response = RESPONSES_TO.get(code)
        if response is None:
            raise Refused(NAK_INVALID_REQUEST)
        path = work.queuePair.path
        if self._writing is not None and (path is None or not path.inPackets):
            # A packet transport checks the sequence itself; a READ amidst a message is a duplicate
            # there.
            raise Refused(NAK_INVALID_REQUEST)
        attributes = work.attributes
        # More READs and atomics than max_dest_rd_atomic: 0x61 (IBTA vol. 1 9.7.4).  Linux
        # rxe_resp.c check_resource() recycles the oldest instead and trusts the requester.
        if not attributes.access & response.access or len(self._answers.owed) >= attributes.peerReads:
            raise Refused(NAK_INVALID_REQUEST)
        answer = response.take(work, code, buffer, start, stop)
        work.messagesReceived += 1
        # Counted when it is accepted, as the MSN is (C9-148; Linux rxe_resp.c execute()).
        self._answers.add(answer)

    # -- errors and flush

    def _fail(self, work: WorkQueues, status: WCStatus, syndrome: int, reason: str = "") -> None:
        # Complete the receive in use with an error, then bring the queue pair to ERR: the flush of
        # the others must come behind it, as completions are in posting order.
        receive, self._receive = self._receive, None
        self._dropParts()
        queuePair = work.queuePair
        if receive is not None:
            self._receives.end(receive, status)
        if self.work is None:
            # The completion's callback closed the queue pair.
            return
        if syndrome in _EVENTS and (receive is None or status is WCStatus.WR_FLUSH_ERR):
            queuePair.raiseEvent(_EVENTS[syndrome])
        what = reason or "asked for what it may not"
        queuePair.fail(
            QueuePairError(f"the peer of queue pair {queuePair.number} {what} (syndrome {syndrome:#04x})")
        )

    def flush(self) -> None:
        """
        Complete all receives in order with WR_FLUSH_ERR.
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
        Forget everything; notifications that the medium still has for this queue do nothing.
        """
        self._dropParts()
        self._rewind()
        self.work = None
        self._receives.clear()
        self._answers.close()
