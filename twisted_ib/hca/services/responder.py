"""
The receive queue of a reliable connection, and the peer's access to memory.

Checks on a record are in the order of Linux rxe (C{rxe_resp.c}; IBTA vol. 1 9.7.4): opcode sequence,
access flags of the queue pair, receive available, length, R_Key.  A failed check is answered with the
syndrome of IBTA vol. 1 9.7.5.2; an RNR NAK leaves everything as it was, any other NAK brings the queue
pair to ERR.

A message goes into a posted receive, or to the queue pair's consumer if that has receives posted
(C{queuePair.posted}); those are used first.

Responses to a peer's READs and atomics, in the order of the requests.

A READ response goes through the medium as it has room, or a record refers to memory that the peer can map.
A peer that reads as fast as it is answered does not starve others, however many queue pairs it reads by:
once its path has had its records for this turn, its responses go on in the device's next turn.  Rights are
checked for each record, so that deregistered memory is not read any more.

An atomic is executed once, when its turn comes, and its result kept until it is published (IBTA vol. 1
9.4.5: the responder executes READs and atomics in order).  A message behind it executes it earlier: SENDs,
WRITEs and atomics are executed in order of arrival, and only READs may be later (IBTA vol. 1 9.5; 10.8.3.3: a
requester that needs more order uses a fence).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any, Final

from twisted_ib import limits
from twisted_ib.compilation import mypyc_attr
from twisted_ib.errors import MemoryAccessError, QueuePairError
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.base.operation import ABSENT, LATER, OPERATION_MASK, REFERENCE, REFUSAL, RESUME, SOLICITED
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.receives import ReceiveRequest, Receives
from twisted_ib.hca.queues.scatter import payload
from twisted_ib.hca.services.operations.message import IncomingMessage
from twisted_ib.hca.services.operations.operation import Refused, Response
from twisted_ib.hca.services.operations.rows import PARTS_OF, RESPONSES_TO
from twisted_ib.hca.services.operations.send import IncomingSend
from twisted_ib.hca.services.operations.write import IncomingWrite, PlacedWrite
from twisted_ib.hca.wire.headers import (
    IMMEDIATE,
    INVALIDATE,
    NAK_INVALID_REQUEST,
    NAK_REMOTE_ACCESS,
    NAK_REMOTE_OPERATIONAL,
    RNR,
)
from twisted_ib.hca.wire.opcodes import ACKNOWLEDGE, SEND_ONLY, UNRELIABLE, WRITE_ONLY_IMMEDIATE

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import IDevice, IPath
    from twisted_ib.hca.services.work import WorkQueues

#: NAK syndrome -> event, if no completion reports it (IBTA vol. 1 11.6.3.2).
_EVENTS: Final = {
    NAK_INVALID_REQUEST: EventType.QP_REQ_ERR,
    NAK_REMOTE_ACCESS: EventType.QP_ACCESS_ERR,
    NAK_REMOTE_OPERATIONAL: EventType.QP_FATAL,
}

_ERR: Final = QPState.ERR
#: Messages of one record that there are shortcuts for; and those of programs, as rsockets' WRITEs.
_ALONE: Final = frozenset((SEND_ONLY, SEND_ONLY | SOLICITED, WRITE_ONLY_IMMEDIATE))
_WHOLE: Final[dict[int, type[IncomingSend | IncomingWrite]]] = {
    SEND_ONLY: IncomingSend,
    WRITE_ONLY_IMMEDIATE: IncomingWrite,
}
#: Bytes that are copied by less than it costs to make a view of them.
_SMALL: Final = 1024


class _Silence:
    __slots__ = ("_body", "_path", "_word")

    def __init__(self, path: IPath, queuePair: Any) -> None:
        # Notifies the requester of a queue pair that ended with responses outstanding.  The requests were
        # consumed, so position 0 stands for them: the oldest request that awaits its response.
        self._path = path
        self._word = ACKNOWLEDGE << 24 | queuePair.remote
        self._body = REFUSAL.pack(ABSENT, queuePair.number, 0)

    def resume(self) -> None:
        # In the reserve for refusals, room that data never uses: a full medium must not delay it.
        if not self._path.postReserved(self._word, self._body, False):
            self._path.wantSpace(self)


class ResponseScheduler:
    """
    Round robin of the queue pairs whose responses go to one peer.

    @ivar used: how many response records the peer was sent in this turn of the device.
    """

    __slots__ = ("_device", "_isDirty", "_turn", "_waiting", "used")

    def __init__(self, device: IDevice) -> None:
        self._device = device
        self._turn = self.used = 0
        self._waiting: OrderedDict[ResponseQueue, None] = OrderedDict()
        self._isDirty = False

    def left(self) -> int:
        """
        How many more response records the peer may get in this turn of the device.
        """
        # Counted per peer, not per queue pair: a peer must not get more by opening more queue pairs.
        if self._turn != self._device.turns:
            self._turn, self.used = self._device.turns, 0
        return max(0, limits.RECORDS_PER_TURN - self.used)

    def wait(self, answers: ResponseQueue) -> None:
        """
        Let these continue when all that wait have had their turn.
        """
        self._waiting[answers] = None
        self._mark()

    def leave(self, answers: ResponseQueue) -> None:
        """
        Remove these; harmless if they do not wait.
        """
        self._waiting.pop(answers, None)

    def _mark(self) -> None:
        if self._waiting and not self._isDirty:
            self._isDirty = True
            self._device.markDirty(self)

    def endOfBatch(self) -> None:
        """
        The next turn: continue with those that wait longest.
        """
        self._isDirty = False
        try:
            while self._waiting and self.left():
                answers, _ = self._waiting.popitem(False)
                answers.resume()
        finally:
            # Also after an exception: those that still wait would otherwise never be called again.
            self._mark()


@mypyc_attr(allow_interpreted_subclasses=True)
class ResponseQueue:
    """
    The responses that one responder owes, in the order of the requests.

    @ivar work: the work queues it belongs to; L{None} once closed.
    @ivar owed: the responses; a deque from the first one on.
    @ivar granting: the path by which the peer may write without being asked, if it may.
    """

    __slots__ = ("_path", "granting", "owed", "work")

    def __init__(self, work: WorkQueues | None) -> None:
        self.work = work
        self.owed: deque[Response] | tuple[()] = ()
        self.granting: IPath | None = None
        # Where it waits for room or for its next turn, if it does; only while responses are owed.
        self._path: Any = None

    def revoke(self) -> None:
        """
        Take back what the peer may do without being asked; before the rights of the queue pair end.
        """
        path, self.granting = self.granting, None
        if path is not None and self.work is not None:
            path.revokeWrites(self.work.queuePair)

    def add(self, answer: Response) -> None:
        """
        Respond to a request, now or when there is room.
        """
        if not isinstance(self.owed, deque):
            self.owed = deque()
        self.owed.append(answer)
        if self._path is None:
            self._publish()

    def execute(self) -> None:
        """
        Execute the atomics that wait for their turn (L{Response.execute}).

        @raise MemoryAccessError: the right to one's memory is gone; it stays queued and is refused in its
            turn.
        """
        work = self.work
        assert work is not None
        for answer in self.owed:
            answer.execute(work)

    def resume(self) -> None:
        """
        The medium has room again.
        """
        self._path = None
        self._publish()

    def close(self) -> None:
        """
        Drop all that is owed; the peer is notified if it waits for a response.
        """
        self.revoke()
        work, self.work = self.work, None
        path, self._path = self._path, None
        if path is not None:
            path.wantNoSpace(self)
            if path.scheduler is not None:
                path.scheduler.leave(self)
            # On a wire the requester would retry until retry_cnt is used up (IBTA vol. 1 9.9.2.1.1).  This
            # medium loses nothing, so the requester has no timer for it and must be notified.
            if path.alive and work is not None:
                _Silence(path, work.queuePair).resume()
        self.owed = ()

    def _publish(self) -> None:
        work, owed = self.work, self.owed
        if work is None or work.queuePair.path is None or not owed:
            return
        path, remote = work.queuePair.path, work.queuePair.remote
        scheduler = self._scheduler(work, path)
        left = limits.RECORDS_PER_TURN if scheduler is None else scheduler.left()
        try:
            for _ in range(left):
                if scheduler is not None:
                    # Counted before it is sent: an attempt that finds no room has cost the turn as much.
                    scheduler.used += 1
                if not owed[0].publish(work, path, remote):
                    self._wait(path)
                    return
                if owed[0].done:
                    owed.popleft()
                    if not owed:
                        return
            self._pause(scheduler, path)
        except MemoryAccessError:
            self._refuse(work, path, remote)

    def _refuse(self, work: WorkQueues, path: IPath, remote: int) -> None:
        # The memory went away before the response was out (NAK of IBTA vol. 1 9.7.5.2).  The request was
        # consumed, so position 0 stands for it: the oldest request that awaits its response.
        queuePair = work.queuePair
        body = REFUSAL.pack(NAK_REMOTE_ACCESS, queuePair.number, 0)
        if path.post(ACKNOWLEDGE << 24 | remote, b"", body, len(body)):
            # No receive is in use that could complete with an error, so an asynchronous event
            # reports it (IBTA vol. 1 11.6.3.2).
            queuePair.raiseEvent(EventType.QP_ACCESS_ERR)
            queuePair.fail(QueuePairError(f"memory that queue pair {queuePair.number} gave is gone"))
        else:
            self._wait(path)

    def _scheduler(self, work: WorkQueues, path: IPath) -> ResponseScheduler | None:
        device = work.queuePair.device
        if device is not None and path.scheduler is None:
            path.scheduler = ResponseScheduler(device)
        scheduler: ResponseScheduler | None = path.scheduler
        return scheduler

    def _pause(self, scheduler: ResponseScheduler | None, path: IPath) -> None:
        if scheduler is None:
            self._wait(path)
        else:
            self._path = path
            scheduler.wait(self)

    def _wait(self, path: IPath) -> None:
        self._path = path
        path.wantSpace(self)


#: In the place of that of a queue pair that was never asked, as most are not.
_NONE_OWED: Final = ResponseQueue(None)


@mypyc_attr(allow_interpreted_subclasses=True)
class Responder:
    """
    Executes the peer's requests.

    @ivar work: the work queues it belongs to; L{None} once closed.
    @ivar isFresh: whether the next record is the first one, and raises COMM_EST.
    """

    __slots__ = ("_answers", "_message", "_receives", "isFresh", "work")

    def __init__(self, work: WorkQueues) -> None:
        self.work: WorkQueues | None = work
        self._receives = Receives(work)
        self._answers = _NONE_OWED
        self.isFresh = True
        self._message: IncomingMessage | None = None

    # -- posting

    def enqueue(self, *requests: ReceiveRequest) -> None:
        """
        Accept receives; the caller checked the state.

        @raise ResourceLimitError: the queue has not room for all.
        """
        work = self.work
        assert work is not None
        self._receives.add(*requests)
        if work.queuePair.state is _ERR:
            self.flush()

    def room(self) -> int:
        """
        How many more receives of its own it holds.
        """
        return self._receives.room()

    # -- from the peer

    def delivered(self, opcode: int, buffer: Any, start: int, stop: int) -> int:
        """
        Receive a record.

        @return: 0, or the syndrome of a NAK.
        """
        work = self.work
        assert work is not None
        if self.isFresh and opcode != RESUME and not (opcode & UNRELIABLE or self._establish(work)):
            return ABSENT
        queuePair = work.queuePair
        # Shortcuts for a stream's message, which is nearly all of the traffic, without a copy of its own, and
        # for a program's small one.  Not while responses are owed: atomics before it must be executed first
        # (IBTA vol. 1 9.4.5).
        if opcode in _ALONE and self._message is None and not self._answers.owed:
            if not queuePair.posted:
                kind = _WHOLE.get(opcode)
                if kind is not None and kind.takeWhole(work, self._receives, buffer, start, stop):
                    work.messagesReceived += 1
                    return 0
            elif stop - start <= queuePair.maxMessage and opcode != WRITE_ONLY_IMMEDIATE:
                queuePair.posted -= 1
                work.messagesReceived += 1
                if opcode != SEND_ONLY and queuePair.gathers:
                    queuePair.consumer.severalReceived(buffer, start, stop)
                else:
                    queuePair.consumer.received(buffer, start, stop)
                return 0
        if opcode & UNRELIABLE:
            # A record of another service is dropped silently, as in Linux rxe_recv.c check_type_state().
            work.count("unreliable_misaddressed")
            return 0
        inside = self._message is not None
        try:
            self._take(work, opcode, buffer, start, stop)
        except Refused as refused:
            syndrome = refused.syndrome
            # IBTA vol. 1 9.7.5.2.8: an RNR NAK changes no state; the peer sends the same request again.
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

    def severalDelivered(self, opcode: int, buffer: Any, spans: list[tuple[int, int]]) -> int:
        """
        Receive records as L{delivered} takes a program's small messages.

        @return: how many of the first were received; the others are to be delivered one by one.
        """
        work = self.work
        if work is None or self.isFresh or opcode != SEND_ONLY or self._message is not None:
            return 0
        if self._answers.owed or work.queuePair.posted:
            return 0
        n = IncomingSend.takeSeveral(work, self._receives, buffer, spans)
        work.messagesReceived += n
        return n

    def _establish(self, work: WorkQueues) -> bool:
        # The event's handler may close or fail the queue pair; then the record is not for it any
        # more.
        self.isFresh = False
        work.established()
        return self.work is not None and work.queuePair.state != QPState.ERR

    def _rewind(self) -> None:
        # The message in progress will come again from its beginning: give its receive back.
        message, self._message = self._message, None
        if message is not None and self.work is not None:
            message.putBack(self.work, self._receives)

    def _take(self, work: WorkQueues, opcode: int, buffer: Any, start: int, stop: int) -> None:
        code = opcode & OPERATION_MASK
        if code == RESUME:
            # RESUME after nothing was refused.
            return
        part = PARTS_OF.get(code)
        if part is None:
            self._takeQuestion(work, code, buffer, start, stop)
            return
        kind, begins, ends, extra = part
        message = self._message
        # Linux rxe_resp.c check_op_seq(): behind First or Middle only Middle or Last of the same
        # kind.
        if begins is not (message is None) or not (begins or message.__class__ is kind):
            self._takeWithin(work, part, opcode, buffer, start, stop)
            return
        # Linux rxe_resp.c check_op_valid(): what the queue pair does not grant is an invalid request
        # (0x61), not an access error, and comes before the R_Key is looked at.
        if kind.access & ~work.attributes.access:
            raise Refused(NAK_INVALID_REQUEST)
        # A WRITE with immediate needs its receive at the end only, but is refused before the payload
        # of this record is written.
        if kind.isWrite and extra and not (work.queuePair.posted or self._receives):
            raise Refused(RNR | work.attributes.minRNRTimer)
        if message is None:
            message = self._message = kind(work, self._receives, buffer, start, stop)
            start += kind.header
        value = 0
        if extra:
            if stop - start < extra.size:
                raise Refused(NAK_INVALID_REQUEST)
            (value,) = extra.unpack_from(buffer, start)
            start += extra.size
        # A reference to memory that is not shared, or that is too long, is the peer's fault.
        source: Any
        if opcode & REFERENCE:
            found = payload(work.queuePair.path, opcode, buffer, start, stop)
            if found is None:
                raise Refused(NAK_REMOTE_OPERATIONAL)
            source = found
        elif stop - start < _SMALL:
            source = buffer[start:stop]
        else:
            source = memoryview(buffer)[start:stop]
        if not source and not (ends and not message.done):
            # Linux rxe_resp.c rxe_resp_check_length(): a Last packet has at least one byte; only an Only
            # may be empty.
            raise Refused(NAK_INVALID_REQUEST)
        if self._answers.owed:
            self._executeAtomics()
        message.place(work, source, ends)
        # After the payload is placed, as in Linux rxe_resp.c execute().
        if extra is INVALIDATE:
            self._invalidate(work, value)
        if ends:
            self._message = None
            work.messagesReceived += 1
            if extra or not kind.isWrite:
                message.finish(work, self._receives, extra, value, bool(opcode & SOLICITED))
            else:
                path: Any = work.queuePair.path
                if path.peerAsks[0]:
                    self._grant(work, message, path)

    def _grant(self, work: WorkQueues, message: IncomingMessage, path: IPath) -> None:
        if isinstance(message, IncomingWrite) and message.done:
            region = work.pd.memory.regions.get(message.key)
            if region is not None and path.grantWrites(work.queuePair, region):
                self._queue(work).granting = path

    def accessChanged(self) -> None:
        """
        The queue pair's rights are others: take back what the peer may do without being asked.
        """
        self._answers.revoke()

    def written(self, length: int, immediate: int) -> int:
        """
        An adapter has done a WRITE of the peer, of so many bytes, which ends with immediate data.

        @return: 0, or the syndrome of an RNR NAK.
        """
        work = self.work
        if work is None or not (work.queuePair.posted or self._receives):
            return RNR
        work.messagesReceived += 1
        # An adapter does not say whether the peer wants an event.
        PlacedWrite(length).finish(work, self._receives, IMMEDIATE, immediate, True)
        return 0

    def _takeWithin(
        self, work: WorkQueues, part: Any, opcode: int, buffer: Any, start: int, stop: int
    ) -> None:
        # RFC 5041 has no order between a tagged message and an untagged one that has begun.
        kind, begins, ends, _ = part
        path, message = work.queuePair.path, self._message
        isWhole = kind.isWrite and begins and ends
        if message is None or message.isWrite or not isWhole or path is None or not path.inSegments:
            raise Refused(NAK_INVALID_REQUEST)
        self._message = None
        try:
            self._take(work, opcode, buffer, start, stop)
        finally:
            self._message = message

    def _executeAtomics(self) -> None:
        try:
            # IBTA vol. 1 9.4.5 and 9.5: what is written or sent comes after the atomics before it,
            # even if their responses are still to be sent.
            self._answers.execute()
        except MemoryAccessError:
            raise Refused(NAK_REMOTE_ACCESS) from None

    def _invalidate(self, work: WorkQueues, key: int) -> None:
        try:
            work.pd.memory.windows.invalidate(key, work.queuePair)
        except MemoryAccessError:
            # The peer's SEND is acknowledged all the same; the receive completes with an error
            # (Linux rxe_resp.c, RESPST_ERR_INVALIDATE_RKEY).
            raise Refused(0, WCStatus.REM_INV_REQ_ERR) from None

    # -- READs and atomics

    def _takeQuestion(self, work: WorkQueues, code: int, buffer: Any, start: int, stop: int) -> None:
        response = RESPONSES_TO.get(code)
        if response is None:
            raise Refused(NAK_INVALID_REQUEST)
        path = work.queuePair.path
        if self._message is not None and (path is None or not path.inPackets):
            # A packet transport checks the sequence itself; a READ amidst a message is a duplicate
            # there.
            raise Refused(NAK_INVALID_REQUEST)
        attributes = work.attributes
        # More READs and atomics than max_dest_rd_atomic: 0x61 (IBTA vol. 1 9.7.4).  Linux
        # rxe_resp.c check_resource() recycles the oldest instead and trusts the requester.
        if not attributes.access & response.access or len(self._answers.owed) >= attributes.peerReads:
            raise Refused(NAK_INVALID_REQUEST)
        answer = response(work, code, buffer, start, stop)
        work.messagesReceived += 1
        # Counted when it is accepted, as the MSN is (C9-148; Linux rxe_resp.c execute()).
        self._queue(work).add(answer)

    def _queue(self, work: WorkQueues) -> ResponseQueue:
        if self._answers is _NONE_OWED:
            self._answers = ResponseQueue(work)
        return self._answers

    # -- errors and flush

    def _fail(self, work: WorkQueues, status: WCStatus, syndrome: int, reason: str = "") -> None:
        # Complete the receive in use with an error, then bring the queue pair to ERR: the flush of
        # the others must come behind it, as completions are in posting order.
        receive = self._dropMessage()
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

    def _dropMessage(self) -> ReceiveRequest | None:
        # Returns the receive that it has, which must be completed or put back.
        message, self._message = self._message, None
        return None if message is None else message.drop()

    def flush(self) -> None:
        """
        Complete all receives in order with WR_FLUSH_ERR.
        """
        if self._answers is not _NONE_OWED:
            self._answers.close()
        receive = self._dropMessage()
        if receive is not None:
            self._receives.end(receive, WCStatus.WR_FLUSH_ERR)
        self._receives.flush()

    def close(self) -> None:
        """
        Forget everything; notifications that the medium still has for this queue do nothing.
        """
        if self._message is not None and (receive := self._dropMessage()) is not None:
            # A shared queue keeps it for the other queue pairs.
            self._receives.putBack(receive)
        self.work = None
        self._receives.clear()
        if self._answers is not _NONE_OWED:
            self._answers.close()
