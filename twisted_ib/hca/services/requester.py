"""
The send queue of a reliable connection over a fabric of operations.

The medium is reliable and ordered, so what a packet transport needs to repeat lost packets
is not here.  What is left of IBTA vol. 1 9.7: the peer may refuse a record, because it has
no receive (RNR) or because its queue pair is not there (yet), and drops what comes after it
until it is told to resume; then that request and those after it are sent again, later.  A
request is done when the peer has taken its last record, a READ or an atomic when its answer
has come; completions keep the order of posting.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from twisted_ib import limits
from twisted_ib.errors import MemoryAccessError, QueuePairError
from twisted_ib.hca.base.operation import (
    ABSENT,
    ACKNOWLEDGE,
    BAD_RESPONSE,
    GSI_QPN,
    LATER,
    NAK_INVALID_REQUEST,
    NAK_REMOTE_ACCESS,
    REFUSAL,
    RESUME,
    RNR,
    RNR_EXHAUSTED,
    SILENT,
)
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.base.timers import Timer, rnrSeconds, timeoutSeconds
from twisted_ib.hca.queues.completion import WCStatus, WorkCompletion
from twisted_ib.hca.queues.requests import SendFlags
from twisted_ib.hca.services.local import RELIABLE, Local
from twisted_ib.hca.services.sendqueue import SendQueue
from twisted_ib.hca.services.sendwqe import Operation, RespondedOperation

if TYPE_CHECKING:
    from twisted_ib.hca.services.work import WorkQueues

#: IBTA vol. 1 9.7.5.2, as Linux's rxe_comp.c has it, and what a packet transport says; anything
#: else is an operational error.
_NAK_STATUS = {
    NAK_INVALID_REQUEST: WCStatus.REM_INV_REQ_ERR,
    NAK_REMOTE_ACCESS: WCStatus.REM_ACCESS_ERR,
    SILENT: WCStatus.RETRY_EXC_ERR,
    RNR_EXHAUSTED: WCStatus.RNR_RETRY_EXC_ERR,
    BAD_RESPONSE: WCStatus.BAD_RESP_ERR,
}

_SYNDROME_MASK = 0xE0
#: rnr_retry: this many is for ever.
_FOR_EVER = 7
_LATER_SECONDS = 0.0001
#: What is counted when no retry is left, by Linux's names.
_EXHAUSTED = {
    WCStatus.RETRY_EXC_ERR: "retry_exceeded_err",
    WCStatus.RNR_RETRY_EXC_ERR: "retry_rnr_exceeded_err",
}
_SIGNALED = int(SendFlags.SIGNALED)
_FENCE = int(SendFlags.FENCE)
_SUCCESS = WCStatus.SUCCESS


class Requester(SendQueue):
    """
    Sends, repeats and completes the requests of one send queue.

    An operation is first in C{_unsent}; when its last record is in the medium, or when it
    cannot be sent, it goes to C{_onTheWay}; when everything before it is done and its own
    end is known, it completes.

    @cvar transport: the bits of the service in operation codes.
    """

    __slots__ = (
        "_acknowledged",
        "_asked",
        "_pausing",
        "_resuming",
        "_timer",
        "_waiting",
    )

    operations = RELIABLE
    transport = 0

    def __init__(self, work: WorkQueues) -> None:
        super().__init__(work)
        self._asked: deque[RespondedOperation] = deque()
        self._acknowledged = 0
        self._waiting = self._pausing = self._resuming = False
        self._timer: Timer | None = None

    # -- sending

    def resume(self) -> None:
        """
        The medium has room again.
        """
        self._waiting = False
        self._go()

    def pathFound(self) -> None:
        """
        There is a way to the peer.
        """
        self._cancelTimer()
        self._go()

    def pump(self) -> None:
        """
        Publish what the state, the medium and the number of READs permit.
        """
        while self._pump():
            pass

    def _pump(self) -> bool:
        """
        See L{pump}.

        @return: whether to go on: a request waited for others that are done now.
        """
        work = self.work
        if work is None or self._waiting or self._pausing:
            return False
        unsent, onTheWay, anyLocal = self._unsent, self._onTheWay, False
        while unsent and self._mayGo(unsent[0], work):
            operation = unsent[0]
            if isinstance(operation, Local):
                operation.execute(work)
                anyLocal = True
            elif not self._publish(operation, work):
                break
            unsent.popleft()
            onTheWay.append(operation)
            if operation.status is not _SUCCESS:
                anyLocal = True
                break
            if isinstance(operation, RespondedOperation):
                self._asked.append(operation)
        if anyLocal:
            self._complete()
        return anyLocal and bool(unsent) and not onTheWay

    def _publish(self, operation: Operation, work: WorkQueues) -> bool:
        """
        Publish the records of an operation.

        @return: False if some must wait.
        """
        queuePair = work.queuePair
        path, remote = queuePair.path, queuePair.remote
        if operation.asks and not work.attributes.reads:
            # It was permitted when it was posted (SQD -> SQD).
            operation.status = WCStatus.LOC_QP_OP_ERR
            return True
        if path is None or (remote <= GSI_QPN and not self.transport):
            # Nobody answers for queue pairs 0 and 1: they take datagrams only.
            self._awaitPath(work)
            return False
        if self._resuming:
            if not path.post(RESUME << 24 | remote, b"", b"", 0):
                self._wait(path)
                return False
            self._resuming = False
        if operation.length > limits.MESSAGE_BYTES:
            operation.status = WCStatus.LOC_LEN_ERR
            return True
        before = operation.records
        try:
            if not operation.publish(path, self.transport << 24 | remote, work.pd):
                self._wait(path)
                return False
        except MemoryAccessError:
            operation.status = WCStatus.LOC_PROT_ERR
            return True
        finally:
            if operation.records != before:
                # Whoever has published anything hears that nobody is there.
                path.requesters[remote] = queuePair
                work.recordsSent += operation.records - before
        path.unacknowledged.append((operation.position, self))
        return True

    def _mayGo(self, operation: Operation, work: WorkQueues) -> bool:
        """
        Whether the first request that is not sent may be sent now.
        """
        onTheWay = self._onTheWay
        if onTheWay and (onTheWay[-1].status is not _SUCCESS or operation.isLast):
            return False  # Nothing goes behind a request that can only fail.
        if work.queuePair.state != QPState.RTS and not operation.started:
            return False
        asked = self._asked
        if asked and operation.flags & _FENCE:
            return False
        # With 0 it goes, to fail.
        return not operation.asks or len(asked) < (work.attributes.reads or 1)

    def _wait(self, path: Any) -> None:
        self._waiting = True
        path.wantSpace(self)

    def _awaitPath(self, work: WorkQueues) -> None:
        """
        There is no way to the peer yet, or there never will be: as if it were silent, the
        request ends when all retries are used up.
        """
        if self._timer is None:
            attributes = work.attributes
            seconds = timeoutSeconds(attributes.timeout)
            if seconds is not None:
                self._timer = work.timers.start(seconds * (attributes.retries + 1), self._unreachable)

    def _unreachable(self) -> None:
        self._timer = None
        work = self.work
        # A queue that is drained (SQD) has not begun to send; in RTS the time begins anew.
        if work is not None and work.queuePair.state == QPState.RTS and self._unsent:
            self._fail(self._unsent[0], WCStatus.RETRY_EXC_ERR)

    # -- what the peer did

    def acknowledged(self, position: int) -> None:
        """
        The peer has taken everything before a position of the medium, and whatever it
        refused there is known.
        """
        if self.work is not None:
            self._acknowledged = max(self._acknowledged, position)
            self._complete()
            if self._unsent or self._awaited:
                self._go()

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
        A part of the answer to the oldest READ or atomic came.
        """
        work, asked = self.work, self._asked
        if work is None or not asked:
            return  # Of one that is forgotten, or of none.
        question = asked[0]
        status = question.take(work.queuePair.path, work.pd, opcode, buffer, start, stop)
        if status is not _SUCCESS:
            self._fail(question, status)
        elif question.answered:
            asked.popleft()
            # Who answers has taken the request and all before it; a refusal would have
            # come earlier.
            self.acknowledged(question.position)

    def _refused(self, syndrome: int, position: int) -> None:
        """
        The peer refused the record that ends at a position; 0 stands for the oldest READ
        or atomic, whose answer broke off.
        """
        operation = self._at(position)
        work = self.work
        if operation is None or work is None:
            return  # Of something that is forgotten.
        attributes = work.attributes
        if syndrome == LATER:
            work.count("completer_retry_err")
            self._repeat(operation, _LATER_SECONDS)
        elif syndrome & _SYNDROME_MASK == RNR:
            work.count("rcvd_rnr_err")
            exhausted = operation.rnrRefusals >= attributes.rnrRetries
            if exhausted and attributes.rnrRetries != _FOR_EVER and not self._answerBefore(operation):
                self._fail(operation, WCStatus.RNR_RETRY_EXC_ERR)
                return
            operation.rnrRefusals += 1
            self._repeat(operation, rnrSeconds(syndrome))
        elif syndrome == ABSENT:
            if not position:
                # It was taken and will not be answered; to repeat it would repeat what is
                # behind it and was done.
                self._fail(operation, WCStatus.RETRY_EXC_ERR)
                return
            if operation.absences >= attributes.retries:
                self._fail(operation, WCStatus.RETRY_EXC_ERR)
                return
            operation.absences += 1
            work.count("completer_retry_err")
            self._repeat(operation, timeoutSeconds(attributes.timeout))
        else:
            self._fail(operation, _NAK_STATUS.get(syndrome, WCStatus.REM_OP_ERR))

    def knows(self, position: int) -> bool:
        """
        Whether the record that ends at a position of the medium was, or may have been, one of
        this queue.
        """
        return position <= self._acknowledged or self._at(position) is not None

    def _at(self, position: int) -> Operation | None:
        """
        The operation whose record ends at a position of the medium.
        """
        if not position:
            return self._asked[0] if self._asked else None
        path = None if self.work is None else self.work.queuePair.path
        if path is None or not self._acknowledged < position <= path.position():
            return None
        for operation in self._onTheWay:
            if operation.position >= position:
                return operation
        if self._unsent and self._unsent[0].position >= position:
            return self._unsent[0]
        return None

    def _answerBefore(self, operation: Operation) -> bool:
        """
        Whether an answer to a READ or atomic before an operation is still to come.
        """
        return bool(self._asked) and self._asked[0].position < operation.position

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
            if self._asked and self._asked[-1] is last:
                self._asked.pop()
            last.status = _SUCCESS
            last.rewind()
            unsent.appendleft(last)
        self._resuming = self._pausing = True
        self._cancelTimer()
        if seconds is not None:
            self._timer = work.timers.start(seconds, self._expired)

    def _cancelTimer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _expired(self) -> None:
        self._timer = None
        self._pausing = False
        self._go()

    # -- ends

    def _complete(self) -> None:
        work, onTheWay = self.work, self._onTheWay
        assert work is not None
        while onTheWay:
            operation = onTheWay[0]
            if operation.status is not _SUCCESS:
                self._fail(operation, operation.status)
                return
            if operation.position > self._acknowledged or (operation.asks and not operation.answered):
                return
            onTheWay.popleft()
            self._succeed(work, operation)

    def _succeed(self, work: WorkQueues, operation: Operation) -> None:
        work.messagesSent += 1
        if operation.flags & _SIGNALED and operation.id is not None:
            completion = WorkCompletion(
                operation.id,
                _SUCCESS,
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

        A READ or atomic before it whose answer has not come is what fails, as if its peer
        were gone: nobody answers after a fatal refusal, and L{LATER} makes sure that nobody
        has to.
        """
        work, onTheWay, unsent = self.work, self._onTheWay, self._unsent
        assert work is not None
        queuePair = work.queuePair
        while onTheWay and onTheWay[0] is not operation:
            before = onTheWay[0]
            if before.asks and not before.answered:
                operation, status = before, WCStatus.RETRY_EXC_ERR
                break
            onTheWay.popleft()
            self._succeed(work, before)
        queue = onTheWay or unsent
        if not queue:
            return  # A completion was lost, or who heard of one ended the queue pair.
        queue.popleft()
        if status in _EXHAUSTED:
            work.count(_EXHAUSTED[status])
        self._pausing = True  # Who hears of it may post, but nothing goes any more.
        self._push(work, operation, status)
        kind = operation.completionOpcode.name
        text = f"a {kind} of queue pair {queuePair.number} ended with {status.name}"
        if work.unreachable is not None:
            text += f": {work.unreachable}"
        if self.work is not None:  # Who heard of it did not begin anew.
            self._stop(work, QueuePairError(text))

    def _stop(self, work: WorkQueues, reason: Exception) -> None:
        work.queuePair.fail(reason)

    def _push(self, work: WorkQueues, operation: Operation, status: WCStatus) -> None:
        """
        Queue the completion of an operation that ended badly, signalled or not.
        """
        operation.abandon(work)
        if operation.id is not None:
            work.sendCompletions.push(
                WorkCompletion(operation.id, status, operation.completionOpcode, work.queuePair.number),
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
        self._pausing = False
        self._asked.clear()
        for queue in (self._onTheWay, self._unsent):
            while queue:
                self._push(work, queue.popleft(), status)
                status = WCStatus.WR_FLUSH_ERR

    def close(self) -> None:
        """
        Forget everything; what the medium still knows of this queue does nothing.
        """
        work, self.work = self.work, None
        self._cancelTimer()
        if work is not None:
            for operation in (*self._onTheWay, *self._unsent):
                operation.abandon(work)
        self._asked.clear()
        self._onTheWay.clear()
        self._unsent.clear()
