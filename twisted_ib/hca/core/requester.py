"""
The send queue of a reliable connection over a fabric of operations.

The medium is reliable and ordered, so what a packet transport needs to repeat lost packets
is not here.  What is left of IBTA vol. 1 9.7: the peer may refuse a record, because it has
no receive (RNR) or because its queue pair is not there (yet), and drops what comes after it
until it is told to resume; then that request and those after it are sent again, later.  A
request is done when the peer has taken its last record, a READ when its bytes have come;
completions keep the order of posting.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from twisted_ib import limits
from twisted_ib.errors import MemoryAccessError, QueuePairError, ResourceLimitError
from twisted_ib.hca.core.completion import WCStatus, WorkCompletion
from twisted_ib.hca.core.delays import rnrSeconds, timeoutSeconds
from twisted_ib.hca.core.requests import SendFlags, SendRequest
from twisted_ib.hca.core.sending import OPERATIONS, Operation, Read
from twisted_ib.hca.core.states import QPState
from twisted_ib.hca.core.timers import Timer
from twisted_ib.hca.operation import (
    ABSENT,
    ACKNOWLEDGE,
    LATER,
    NAK_INVALID_REQUEST,
    NAK_REMOTE_ACCESS,
    REFUSAL,
    RESUME,
    RNR,
)

if TYPE_CHECKING:
    from twisted_ib.hca.core.work import WorkQueues

#: IBTA vol. 1 9.7.5.2, as Linux's rxe_comp.c has it; anything else is an operational error.
_NAK_STATUS = {
    NAK_INVALID_REQUEST: WCStatus.REM_INV_REQ_ERR,
    NAK_REMOTE_ACCESS: WCStatus.REM_ACCESS_ERR,
}

_SYNDROME_MASK = 0xE0
#: rnr_retry: this many is for ever.
_FOR_EVER = 7
_LATER_SECONDS = 0.0001
_SIGNALED = int(SendFlags.SIGNALED)


class Requester:
    """
    Sends, repeats and completes the requests of one send queue.

    An operation is first in C{_unsent}; when its last record is in the medium, or when it
    can not be sent, it goes to C{_onTheWay}; when everything before it is done and its own
    end is known, it completes.

    @ivar work: the pair of queues it belongs to.
    """

    __slots__ = (
        "_acknowledged",
        "_onTheWay",
        "_pausing",
        "_reads",
        "_resuming",
        "_timer",
        "_unsent",
        "_waiting",
        "work",
    )

    def __init__(self, work: WorkQueues) -> None:
        """
        An empty queue.
        """
        self.work: WorkQueues | None = work
        self._unsent: deque[Operation] = deque()
        self._onTheWay: deque[Operation] = deque()
        self._reads: deque[Read] = deque()
        self._acknowledged = 0
        self._waiting = self._pausing = self._resuming = False
        self._timer: Timer | None = None

    # -- posting

    def enqueue(self, request: SendRequest) -> None:
        """
        Take a request; the state was checked.

        @raise QueuePairError: the queue pair can not do this.
        @raise ResourceLimitError: the queue is full.
        """
        work = self.work
        assert work is not None
        number = work.queuePair.number
        operation = OPERATIONS.get(request.opcode)
        if operation is None:
            raise QueuePairError(f"queue pair {number} does not do {request.opcode!r}")
        if operation.isRead and not work.attributes.reads:
            raise QueuePairError(f"queue pair {number} may not have READs on the way")
        if len(self._unsent) + len(self._onTheWay) >= work.capabilities.sends:
            raise ResourceLimitError(f"the send queue of queue pair {number} is full")
        self._unsent.append(operation(request))
        if work.queuePair.state == QPState.ERR:
            self.flush(WCStatus.WR_FLUSH_ERR)
        else:
            self.pump()

    def drained(self) -> bool:
        """
        Whether nothing that was started is on its way (SQD).
        """
        return not self._onTheWay and not (self._unsent and self._unsent[0].started)

    # -- sending

    def resume(self) -> None:
        """
        The medium has room again.
        """
        self._waiting = False
        self.pump()

    def pump(self) -> None:
        """
        Publish what the state, the medium and the number of READs permit.
        """
        work = self.work
        if work is None or self._waiting or self._pausing or not self._unsent:
            return
        queuePair, unsent = work.queuePair, self._unsent
        path, remote = queuePair.path, queuePair.remote
        if path is None:
            return
        if self._resuming:
            if not path.post(RESUME << 24 | remote, b"", b"", 0):
                self._wait(path)
                return
            self._resuming = False
        while unsent and self._mayGo(unsent[0], work):
            operation = unsent[0]
            if operation.length > limits.MESSAGE_BYTES:
                operation.status = WCStatus.LOC_LEN_ERR
            else:
                try:
                    if not operation.publish(path, remote, work.pd):
                        self._wait(path)
                        return
                except MemoryAccessError:
                    operation.status = WCStatus.LOC_PROT_ERR
            unsent.popleft()
            self._onTheWay.append(operation)
            if operation.status is not WCStatus.SUCCESS:
                self._complete()
                return
            if isinstance(operation, Read):
                self._reads.append(operation)
            path.requesters[remote] = queuePair
            path.unacknowledged.append((operation.position, self))

    def _mayGo(self, operation: Operation, work: WorkQueues) -> bool:
        """
        Whether the first request that is not sent may be sent now.
        """
        onTheWay = self._onTheWay
        if onTheWay and onTheWay[-1].status is not WCStatus.SUCCESS:
            return False  # Nothing goes behind a request that can only fail.
        if work.queuePair.state != QPState.RTS and not operation.started:
            return False
        return not operation.isRead or len(self._reads) < work.attributes.reads

    def _wait(self, path: Any) -> None:
        """
        The medium is full.
        """
        self._waiting = True
        path.wantSpace(self)

    # -- what the peer did

    def acknowledged(self, position: int) -> None:
        """
        The peer has taken everything before a position of the medium, and whatever it
        refused there is known.
        """
        if self.work is not None:
            self._acknowledged = max(self._acknowledged, position)
            self._complete()

    def delivered(self, opcode: int, buffer: Any, start: int, stop: int) -> None:
        """
        An answer came: a refusal, or a READ's bytes.
        """
        if opcode != ACKNOWLEDGE:
            self._responded(opcode, buffer, start, stop)
        elif stop - start == REFUSAL.size:
            syndrome, _, position = REFUSAL.unpack_from(buffer, start)
            self._refused(syndrome, position)

    def _responded(self, opcode: int, buffer: Any, start: int, stop: int) -> None:
        """
        A part of the answer to the oldest READ came.
        """
        work, reads = self.work, self._reads
        if work is None or not reads:
            return  # Of a READ that is forgotten, or of none.
        read = reads[0]
        status = read.take(work.queuePair.path, work.pd, opcode, buffer, start, stop)
        if status is not WCStatus.SUCCESS:
            self._fail(read, status)
        elif read.answered:
            reads.popleft()
            # Who answers has taken the request and all before it; a refusal would have
            # come earlier.
            self.acknowledged(read.position)
            self.pump()

    def _refused(self, syndrome: int, position: int) -> None:
        """
        The peer refused the record that ends at a position; 0 stands for the oldest READ,
        whose answer broke off.
        """
        operation = self._at(position)
        work = self.work
        if operation is None or work is None:
            return  # Of something that is forgotten.
        attributes = work.attributes
        if syndrome == LATER:
            self._repeat(operation, _LATER_SECONDS)
        elif syndrome & _SYNDROME_MASK == RNR:
            exhausted = operation.rnrRefusals >= attributes.rnrRetries
            if exhausted and attributes.rnrRetries != _FOR_EVER and not self._readBefore(operation):
                self._fail(operation, WCStatus.RNR_RETRY_EXC_ERR)
                return
            operation.rnrRefusals += 1
            self._repeat(operation, rnrSeconds(syndrome))
        elif syndrome == ABSENT:
            if operation.absences >= attributes.retries:
                self._fail(operation, WCStatus.RETRY_EXC_ERR)
                return
            operation.absences += 1
            self._repeat(operation, timeoutSeconds(attributes.timeout))
        else:
            self._fail(operation, _NAK_STATUS.get(syndrome, WCStatus.REM_OP_ERR))

    def _at(self, position: int) -> Operation | None:
        """
        The operation whose record ends at a position of the medium.
        """
        if not position:
            return self._reads[0] if self._reads else None
        if position <= self._acknowledged:
            return None
        for operation in self._onTheWay:
            if operation.position >= position:
                return operation
        if self._unsent and self._unsent[0].position >= position:
            return self._unsent[0]
        return None

    def _readBefore(self, operation: Operation) -> bool:
        """
        Whether an answer to a READ before an operation is still to come.
        """
        return bool(self._reads) and self._reads[0] is not operation

    def _repeat(self, operation: Operation, seconds: float | None) -> None:
        """
        Take an operation and all after it back, and send them again after a time.

        @param seconds: how long; L{None} is for ever (IBTA vol. 1 9.9.2.4.1: a timeout of
            0 never ends).
        """
        work = self.work
        assert work is not None
        onTheWay, unsent = self._onTheWay, self._unsent
        if unsent:
            unsent[0].rewind()
        while not unsent or unsent[0] is not operation:
            last = onTheWay.pop()
            if self._reads and self._reads[-1] is last:
                self._reads.pop()
            last.status = WCStatus.SUCCESS
            last.rewind()
            unsent.appendleft(last)
        self._resuming = self._pausing = True
        self._cancelTimer()
        if seconds is not None:
            self._timer = work.timers.start(seconds, self._expired)

    def _cancelTimer(self) -> None:
        """
        Stop the timer, if it runs.
        """
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _expired(self) -> None:
        """
        The peer may be ready now.
        """
        self._timer = None
        self._pausing = False
        self.pump()

    # -- ends

    def _complete(self) -> None:
        """
        Complete what is done, in the order of posting.
        """
        work, onTheWay = self.work, self._onTheWay
        assert work is not None
        while onTheWay:
            operation = onTheWay[0]
            if operation.status is not WCStatus.SUCCESS:
                self._fail(operation, operation.status)
                return
            if operation.position > self._acknowledged or (operation.isRead and not operation.answered):
                return
            onTheWay.popleft()
            self._succeed(work, operation)

    def _succeed(self, work: WorkQueues, operation: Operation) -> None:
        """
        Complete an operation that is done.
        """
        if operation.flags & _SIGNALED:
            completion = WorkCompletion(
                operation.request.id,
                WCStatus.SUCCESS,
                operation.completionOpcode,
                work.queuePair.number,
                operation.length,
            )
            work.complete(work.sendCompletions, completion)

    def _fail(self, operation: Operation, status: WCStatus) -> None:
        """
        Complete an operation with an error, after all before it: the peer has taken those,
        or it would not have come to this one.  What is behind it is flushed by the queue
        pair, which fails.

        A READ before it whose answer has not come is what fails, as if its peer were gone:
        nobody answers after a fatal refusal, and L{LATER} makes sure that nobody has to.
        """
        work, onTheWay, unsent = self.work, self._onTheWay, self._unsent
        assert work is not None
        queuePair = work.queuePair
        while onTheWay and onTheWay[0] is not operation:
            before = onTheWay[0]
            if before.isRead and not before.answered:
                operation, status = before, WCStatus.RETRY_EXC_ERR
                break
            onTheWay.popleft()
            self._succeed(work, before)
            if queuePair.state == QPState.ERR:
                return  # A completion was lost, and everything is flushed.
        (onTheWay or unsent).popleft()
        self._push(work, operation, status)
        kind = operation.completionOpcode.name
        queuePair.fail(QueuePairError(f"a {kind} of queue pair {queuePair.number} ended with {status.name}"))

    def _push(self, work: WorkQueues, operation: Operation, status: WCStatus) -> None:
        """
        Queue the completion of an operation that ended badly, signalled or not.
        """
        work.sendCompletions.push(
            WorkCompletion(operation.request.id, status, operation.completionOpcode, work.queuePair.number),
            True,
        )

    def flush(self, first: WCStatus) -> None:
        """
        Complete everything, in order, with WR_FLUSH_ERR.

        @param first: the status of the first, if it is the one that failed.
        """
        work, status = self.work, first
        assert work is not None
        self._cancelTimer()
        self._reads.clear()
        for queue in (self._onTheWay, self._unsent):
            while queue:
                self._push(work, queue.popleft(), status)
                status = WCStatus.WR_FLUSH_ERR

    def close(self) -> None:
        """
        Forget everything; what the medium still knows of this queue does nothing.
        """
        self.work = None
        self._cancelTimer()
        self._reads.clear()
        self._onTheWay.clear()
        self._unsent.clear()
