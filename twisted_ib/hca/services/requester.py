"""
The send queue of a reliable connection over a fabric of operations.

The medium is reliable and ordered, so that retransmission of lost packets is not here.  The rest of IBTA
vol. 1 9.7: the peer may refuse a record because it has no receive (RNR) or because its queue pair
does not exist (yet), and drops everything behind it until it gets RESUME; that request and those after it
are sent again later.  A request is done when the peer has consumed its last record, a READ or an atomic
when its response has come; completions are in order of posting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from twisted_ib import limits
from twisted_ib.compilation import mypyc_attr
from twisted_ib.errors import MemoryAccessError, QueuePairError, ResourceLimitError
from twisted_ib.hca.base.operation import (
    ABSENT,
    BAD_RESPONSE,
    GSI_QPN,
    LATER,
    REFUSAL,
    RESUME,
    RNR_EXHAUSTED,
    SILENT,
)
from twisted_ib.hca.base.states import QPState, QPType
from twisted_ib.hca.base.timers import Timer, ackSeconds, rnrSeconds
from twisted_ib.hca.memory.access import LOCAL_READ
from twisted_ib.hca.queues.completion import WCStatus, WorkCompletion
from twisted_ib.hca.queues.requests import SendFlags, SendOpcode
from twisted_ib.hca.services.operations.local import LocalOperation
from twisted_ib.hca.services.operations.operation import BY_RECORD, Operation, RespondedOperation
from twisted_ib.hca.services.operations.rows import serviceOperations
from twisted_ib.hca.services.operations.send import PostedSend
from twisted_ib.hca.services.operations.write import PostedWrite
from twisted_ib.hca.services.sendqueue import FLUSHING, SendQueue
from twisted_ib.hca.wire.headers import NAK_INVALID_REQUEST, NAK_REMOTE_ACCESS, RNR
from twisted_ib.hca.wire.opcodes import ACKNOWLEDGE

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import IPath
    from twisted_ib.hca.services.work import WorkQueues

#: IBTA vol. 1 9.7.5.2, as Linux rxe_comp.c check_ack() maps them, and the syndromes of a packet
#: transport; anything else is a remote operational error.
_NAK_STATUS: Final = {
    NAK_INVALID_REQUEST: WCStatus.REM_INV_REQ_ERR,
    NAK_REMOTE_ACCESS: WCStatus.REM_ACCESS_ERR,
    SILENT: WCStatus.RETRY_EXC_ERR,
    RNR_EXHAUSTED: WCStatus.RNR_RETRY_EXC_ERR,
    BAD_RESPONSE: WCStatus.BAD_RESP_ERR,
}

_SYNDROME_MASK: Final = 0xE0
#: rnr_retry 7 is infinite: Linux rxe_comp.c does not count it down, either.
_FOR_EVER: Final = 7
#: How long, in seconds, until a request that was put off with LATER is sent again.
_LATER_SECONDS: Final = 0.0001
#: The counter when no retry is left, by Linux's names (rxe_hw_counters.c).
_EXHAUSTED: Final = {
    WCStatus.RETRY_EXC_ERR: "retry_exceeded_err",
    WCStatus.RNR_RETRY_EXC_ERR: "retry_rnr_exceeded_err",
}
_SIGNALED: Final = int(SendFlags.SIGNALED)
_FENCE: Final = int(SendFlags.FENCE)
_SUCCESS: Final = WCStatus.SUCCESS
_RTS: Final = QPState.RTS


@mypyc_attr(allow_interpreted_subclasses=True)
class Requester(SendQueue):
    """
    Sends, repeats and completes the requests of one send queue: see
    L{Waiter<twisted_ib.hca.base.interfaces.roles.Waiter>}.
    """

    __slots__ = ("_acknowledged", "_asked", "_isExpected", "_pausing", "_resuming", "_timer", "_waiting")

    operations: ClassVar[Mapping[SendOpcode, type[Any]]] = serviceOperations(QPType.RC)

    def __init__(self, work: WorkQueues) -> None:
        super().__init__(work)
        # READs and atomics that await their responses, oldest first; a deque, which is 760 bytes, from the
        # first one on.
        self._asked: deque[RespondedOperation] | tuple[()] = ()
        self._acknowledged = 0
        # Whether it waits for room in the medium; whether it waits after a refusal; whether a
        # RESUME must be sent first.
        self._waiting = self._pausing = self._resuming = False
        # Whether the path knows of this queue pair: set once, as a queue pair that leaves its path gets a new
        # requester before its next one.
        self._isExpected = False
        self._timer: Timer | None = None

    # -- posting

    def enqueueSends(self, sends: Sequence[PostedSend | PostedWrite]) -> None:
        """
        Accept SENDs and WRITEs of one record each, shorter than C{PULL_LEAST} and not solicited.

        @raise QueuePairError: the queue is closed, or the state forbids it.
        @raise ResourceLimitError: the queue has not room for all.
        """
        work, unsent, onTheWay = self.work, self._unsent, self.onTheWay
        if work is None:
            raise QueuePairError("this send queue is closed")
        state = work.queuePair.state
        if state is not _RTS and state < _RTS:
            raise work.wrongState("send")
        if len(unsent) + len(onTheWay) + len(sends) > work.capabilities.sends:
            raise ResourceLimitError(f"the send queue of queue pair {work.queuePair.number} is full")
        if work.signalAll:
            for each in sends:
                each.flags |= _SIGNALED
        mayGo = not (unsent or self._pausing or self._resuming or self._asked or self._waiting)
        if mayGo and state is _RTS and (not onTheWay or onTheWay[-1].status is _SUCCESS):
            if len(sends) == 1 and self._isExpected:
                self._publishSend(sends[0], work)
                return
            unsent.extend(sends)
            self._publishSends(work)
        else:
            unsent.extend(sends)
            if state in FLUSHING:
                self.flush(WCStatus.WR_FLUSH_ERR)
        if unsent:
            self.pump()

    # -- sending

    def resume(self) -> None:
        self._waiting = False
        self._go()

    def pathFound(self) -> None:
        """
        The path to the peer is resolved.
        """
        self._cancelTimer()
        self._go()

    def pump(self) -> None:
        unsent, onTheWay = self._unsent, self.onTheWay
        while unsent:
            work = self.work
            if work is None or self._waiting or self._pausing:
                return
            asked, anyDone = self._asked, False
            while unsent:
                operation = unsent[0]
                asks = operation.asks
                # Nearly always there is nothing that _mayGo could object to.
                isPlain = not asks and not asked and work.queuePair.state is _RTS
                if isPlain and onTheWay:
                    isPlain = not operation.isLast and onTheWay[-1].status is _SUCCESS
                if not isPlain and not self._mayGo(operation, work):
                    break
                if operation.isWrite:
                    path = work.queuePair.path
                    if path is not None and path.peerGrants[0] and not self._resuming:
                        placed = self._place(operation, work, path)
                        if placed is not BY_RECORD:
                            anyDone = bool(placed)
                            break
                if not operation.carriesData and isinstance(operation, LocalOperation):
                    operation.execute(work)
                    anyDone = True
                elif not self._publish(operation, work):
                    break
                del unsent[0]
                onTheWay.append(operation)
                # Nothing is sent behind a request that failed here; those before it still complete.
                if operation.status is not _SUCCESS:
                    anyDone = True
                    break
                if asks and isinstance(operation, RespondedOperation):
                    if not isinstance(asked, deque):
                        asked = self._asked = deque()
                    asked.append(operation)
            if not anyDone:
                return
            self._complete()
            if onTheWay:
                return
            # A request may have waited for others, which are done now.

    def _publishSend(self, operation: PostedSend | PostedWrite, work: WorkQueues) -> None:
        # Publishes the only request, as _publish() and pump() have it, where there is nothing else to do: a
        # path that expects this queue pair knows its peer's.
        queuePair = work.queuePair
        path: Any = queuePair.path
        if operation.isWrite and path.peerGrants[0]:
            self._unsent.append(operation)
            self.pump()
            return
        try:
            if not operation.publish(path, self.transport << 24 | queuePair.remote, work.pd):
                self._unsent.append(operation)
                self._wait(path)
                return
            work.recordsSent += 1
            path.track((operation.position, self))
        except MemoryAccessError:
            operation.status = WCStatus.LOC_PROT_ERR
            self.onTheWay.append(operation)
            self._complete()
            return
        except BaseException:
            # A signal's handler raised, and perhaps it is sent: rather twice than never.
            self._unsent.append(operation)
            raise
        self.onTheWay.append(operation)

    def _publishSends(self, work: WorkQueues) -> None:
        # Publishes the first requests, as far as _publish() and pump() would do no more.
        queuePair, pd = work.queuePair, work.pd
        path, remote = queuePair.path, queuePair.remote
        if path is None or remote <= GSI_QPN or self.transport:
            return
        unsent, onTheWay, word = self._unsent, self.onTheWay, PostedSend.only << 24 | remote
        post, position, track = path.post, path.position, path.track
        view: Any = None
        n = base = high = key = reached = 0
        # Nothing is within, not even no octets at 0.
        low = 1
        try:
            while unsent:
                operation = unsent[0]
                if not isinstance(operation, PostedSend):
                    break
                payload, length = operation.inline, operation.length
                if payload is None:
                    start = operation.address
                    if start < low or start + length > high or operation.key != key:
                        key = operation.key
                        view, base, low, high = pd.memory.near(key, start, length, LOCAL_READ, pd)
                    start -= base
                    payload = view[start : start + length]
                if not post(word, b"", payload, length):
                    self._wait(path)
                    break
                operation.begun = True
                operation.records += 1
                operation.sent = length
                operation.position = reached = position()
                if operation.flags & _SIGNALED:
                    track((reached, self))
                del unsent[0]
                onTheWay.append(operation)
                n += 1
        except MemoryAccessError:
            # Perhaps of the bytes around only.
            pass
        finally:
            if n:
                work.recordsSent += n
                # Of those without a completion nobody hears before the last one's.
                if not onTheWay[-1].flags & _SIGNALED:
                    track((reached, self))
                if not self._isExpected:
                    self._isExpected = True
                    path.expect(queuePair)

    def _publish(self, operation: Operation, work: WorkQueues) -> bool:
        # Returns False if some records must wait.
        queuePair = work.queuePair
        path, remote = queuePair.path, queuePair.remote
        if operation.asks and not work.attributes.reads:
            # Permitted when it was posted; max_rd_atomic was set to 0 since (SQD -> SQD).
            operation.status = WCStatus.LOC_QP_OP_ERR
            return True
        if path is None or (remote <= GSI_QPN and not self.transport):
            # QP 0 and 1 receive datagrams only: no responder there would ever refuse or answer.
            self._awaitPath(work)
            return False
        if self._resuming:
            # The responder drops everything behind a refusal, as requests in the medium already would
            # otherwise be executed before the refused one.  RESUME marks where the repeat begins.
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
            path.track((operation.position, self))
        except MemoryAccessError:
            operation.status = WCStatus.LOC_PROT_ERR
        finally:
            count = operation.records - before
            if count:
                work.recordsSent += count
                if not self._isExpected:
                    self._isExpected = True
                    path.expect(queuePair)
        return True

    def _mayGo(self, operation: Operation, work: WorkQueues) -> bool:
        onTheWay = self.onTheWay
        if onTheWay and (onTheWay[-1].status is not _SUCCESS or operation.isLast):
            # Nothing is sent behind a request that can only fail; LOCAL_INV waits for everything
            # before it.
            return False
        # SQD finishes what was started, and starts nothing (IBTA vol. 1 10.3.1).
        if work.queuePair.state != QPState.RTS and not operation.started:
            return False
        asked = self._asked
        # IBTA vol. 1 10.8.3.3: a fence waits until no READ or atomic is outstanding.
        if asked and operation.flags & _FENCE:
            return False
        # With max_rd_atomic 0 it goes on, and _publish fails it in order.
        return not operation.asks or len(asked) < (work.attributes.reads or 1)

    def _wait(self, path: IPath) -> None:
        self._waiting = True
        path.wantSpace(self)

    def _awaitPath(self, work: WorkQueues) -> None:
        # An unresolved peer looks like a silent one: the request fails when retry_cnt + 1 timeouts are over
        # (IBTA vol. 1 9.7.6.1.3), as it would with packets; with timeout 0 it waits for ever.
        if self._timer is None:
            attributes = work.attributes
            seconds = ackSeconds(attributes.timeout)
            if seconds is not None:
                self._timer = work.timers.start(seconds * (attributes.retries + 1), self._unreachable)

    def _unreachable(self) -> None:
        self._timer = None
        work, unsent = self.work, self._unsent
        # In SQD only what was started is being sent; for the rest the time starts anew in RTS.
        if work is not None and unsent and (work.queuePair.state == QPState.RTS or unsent[0].started):
            self._fail(unsent[0], WCStatus.RETRY_EXC_ERR)

    def pathLost(self) -> None:
        """
        The path broke: what the peer has not consumed gets no answer, and fails when its retries are over.
        """
        self._cancelTimer()
        self._waiting = self._isExpected = False
        oldest = next(iter(self.onTheWay or self._unsent), None)
        if oldest is not None and (self.onTheWay or oldest.started):
            self._goBack(oldest)
            # It was sent: SQD waits for its end.
            oldest.absences += 1
        self._pausing = self._resuming = False
        self._go()

    # -- from the peer

    def acknowledged(self, position: int) -> None:
        """
        The peer has consumed everything before a position of the medium, and all its refusals up to there
        have arrived.
        """
        if self.work is not None:
            if position > self._acknowledged:
                self._acknowledged = position
            self._complete()
            if self._unsent or self._awaited:
                self._go()

    def delivered(self, opcode: int, buffer: Any, start: int, stop: int) -> None:
        """
        A response came: a refusal, or data for a READ or an atomic.
        """
        if opcode != ACKNOWLEDGE:
            self._responded(opcode, buffer, start, stop)
        # A refusal of another length is ignored: a peer's fault must not raise here.
        elif stop - start == REFUSAL.size:
            syndrome, _, position = REFUSAL.unpack_from(buffer, start)
            self._refused(syndrome, position)

    def _responded(self, opcode: int, buffer: Any, start: int, stop: int) -> None:
        work, asked = self.work, self._asked
        if work is None or not asked:
            # A response to a request that was flushed, or to none.
            return
        question = asked[0]
        status = question.take(work.queuePair.path, work.pd, opcode, buffer, start, stop)
        if status is not _SUCCESS:
            self._fail(question, status)
        elif question.answered:
            asked.popleft()
            # A response acknowledges everything before it, too (Linux rxe_comp.c check_psn()): a
            # refusal of an earlier request would have come first, as the medium keeps order.
            self.acknowledged(question.position)

    def _refused(self, syndrome: int, position: int) -> None:
        operation = self._at(position)
        work = self.work
        if operation is None or work is None:
            # A refusal of a request that was completed or flushed.
            return
        attributes = work.attributes
        # The responder still owes responses to READs before it, and would cut those off by failing now.
        if syndrome == LATER:
            work.count("completer_retry_err")
            self._repeat(operation, _LATER_SECONDS)
        elif syndrome & _SYNDROME_MASK == RNR:
            work.count("rcvd_rnr_err")
            # IBTA vol. 1 9.7.5.2.8: wait at least the coded time, rnr_retry times at most.  While
            # a READ before it is outstanding it goes on retrying: completions are in order, so
            # that it could not fail yet.
            exhausted = operation.rnrRefusals >= attributes.rnrRetries
            asked = self._asked
            isBehind = asked[0].position < operation.position if asked else False
            if exhausted and attributes.rnrRetries != _FOR_EVER and not isBehind:
                self._fail(operation, WCStatus.RNR_RETRY_EXC_ERR)
                return
            operation.rnrRefusals += 1
            self._repeat(operation, rnrSeconds(syndrome))
        elif syndrome == ABSENT:
            if not position:
                # Position 0: the request was consumed and its response will not come.  A repeat
                # would execute the requests behind it a second time.
                self._fail(operation, WCStatus.RETRY_EXC_ERR)
                return
            if operation.absences >= attributes.retries:
                self._fail(operation, WCStatus.RETRY_EXC_ERR)
                return
            operation.absences += 1
            work.count("completer_retry_err")
            self._repeat(operation, ackSeconds(attributes.timeout))
        else:
            self._fail(operation, _NAK_STATUS.get(syndrome, WCStatus.REM_OP_ERR))

    def knows(self, position: int) -> bool:
        """
        Whether the record that ends at a position of the medium is, or may have been, one of this queue.
        """
        return position <= self._acknowledged or self._at(position) is not None

    def _at(self, position: int) -> Operation | None:
        # Position 0 means the oldest READ or atomic.
        if not position:
            return self._asked[0] if self._asked else None
        path = None if self.work is None else self.work.queuePair.path
        # A position is the peer's word: outside of what is outstanding it names no request.
        if path is None or not self._acknowledged < position <= path.position():
            return None
        for operation in self.onTheWay:
            if operation.position >= position:
                return operation
        if self._unsent and self._unsent[0].position >= position:
            return self._unsent[0]
        return None

    def _repeat(self, operation: Operation, seconds: float | None) -> None:
        # Go back to an operation and send it and all behind it again.  Without a time the wait
        # never ends: IBTA vol. 1 9.7.6.1.3 has timeout 0 as infinite.
        work = self.work
        assert work is not None
        self._goBack(operation)
        self._resuming = self._pausing = True
        self._cancelTimer()
        if seconds is not None:
            self._timer = work.timers.start(seconds, self._expired)

    def _goBack(self, operation: Operation) -> None:
        onTheWay, unsent = self.onTheWay, self._unsent
        if unsent:
            unsent[0].rewind()
        while not unsent or unsent[0] is not operation:
            last = onTheWay.pop()
            if self._asked and self._asked[-1] is last:
                self._asked.pop()
            # A local error behind the refused request is forgotten: it may be gone when it is sent
            # again.
            last.status = _SUCCESS
            last.rewind()
            unsent.insert(0, last)

    def _cancelTimer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _expired(self) -> None:
        self._timer = None
        self._pausing = False
        self._go()

    def isSettled(self) -> bool:
        """
        Whether everything that was sent is done, and no RESUME is owed for a refusal.
        """
        return self.drained() and not (self._pausing or self._resuming)

    # -- completion

    def _complete(self) -> None:
        work, onTheWay = self.work, self.onTheWay
        assert work is not None
        while onTheWay:
            operation = onTheWay[0]
            if operation.status is not _SUCCESS:
                self._fail(operation, operation.status)
                return
            if operation.position > self._acknowledged or (operation.asks and not operation.answered):
                return
            del onTheWay[0]
            work.messagesSent += 1
            # IBTA vol. 1 10.7.3.1: an unsignaled request has no completion if it succeeds.
            if operation.flags & _SIGNALED and operation.id is not None:
                # As _succeed(), whose call is saved.
                number, length = work.queuePair.number, operation.length
                done = WorkCompletion(operation.id, _SUCCESS, operation.completionOpcode, number, length)
                if not work.sendCompletions.push(done):
                    work.completionLost()

    def _succeed(self, work: WorkQueues, operation: Operation, id: int) -> None:
        number, length = work.queuePair.number, operation.length
        done = WorkCompletion(id, _SUCCESS, operation.completionOpcode, number, length)
        if not work.sendCompletions.push(done):
            work.completionLost()

    def _fail(self, operation: Operation, status: WCStatus) -> None:
        # Everything before the operation is done: the peer refuses in order.  What is behind it is
        # flushed when the queue pair goes to ERR.
        work, onTheWay, unsent = self.work, self.onTheWay, self._unsent
        assert work is not None
        queuePair = work.queuePair
        while onTheWay and onTheWay[0] is not operation:
            before = onTheWay[0]
            # A READ or atomic whose response is outstanding fails in its place: a responder is
            # silent after a fatal NAK.  L{LATER} keeps a responder of this package from getting
            # here.
            if before.asks and not before.answered:
                operation, status = before, WCStatus.RETRY_EXC_ERR
                break
            del onTheWay[0]
            work.messagesSent += 1
            if before.flags & _SIGNALED and before.id is not None:
                self._succeed(work, before, before.id)
        queue = onTheWay or unsent
        if not queue:
            # A completion was lost to a full queue, or the program closed the queue pair in a
            # callback.
            return
        del queue[0]
        if status in _EXHAUSTED:
            work.count(_EXHAUSTED[status])
        # The completion's callback may post; nothing is sent any more.
        self._pausing = True
        self._push(work, operation, status)
        kind = operation.completionOpcode.name
        text = f"a {kind} of queue pair {queuePair.number} ended with {status.name}"
        if work.unreachable is not None:
            text += f": {work.unreachable}"
        # The callback may have reset the queue pair: that one must not go to ERR.
        if self.work is not None:
            self._stop(work, QueuePairError(text))

    def _stop(self, work: WorkQueues, reason: Exception) -> None:
        work.queuePair.fail(reason)

    def _push(self, work: WorkQueues, operation: Operation, status: WCStatus) -> None:
        # IBTA vol. 1 10.7.3.1: an error completes even where success would be unsignaled (Linux
        # rxe_comp.c, do_complete()).
        operation.abandon(work)
        if operation.id is not None:
            done = WorkCompletion(operation.id, status, operation.completionOpcode, work.queuePair.number)
            work.sendCompletions.push(done, True)

    def flush(self, first: WCStatus) -> None:
        work, status = self.work, first
        assert work is not None
        self._cancelTimer()
        self._pausing = False
        self._asked = ()
        for queue in (self.onTheWay, self._unsent):
            while queue:
                operation = queue[0]
                del queue[0]
                self._push(work, operation, status)
                status = WCStatus.WR_FLUSH_ERR

    def close(self) -> None:
        """
        Forget everything; notifications that the medium still has for this queue do nothing.
        """
        work, self.work = self.work, None
        if self._timer is not None:
            self._cancelTimer()
        self._asked = ()
        for queue in (self.onTheWay, self._unsent):
            if queue:
                if work is not None:
                    for operation in queue:
                        operation.abandon(work)
                queue.clear()
