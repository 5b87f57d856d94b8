"""
The answers to a peer's READs and atomics, in the order of the requests.

The bytes go through the medium, as it has room, or the record refers to memory that the
peer can map.  A peer that reads as fast as it is answered does not keep others from their
turn, however many queue pairs it reads by: answers go on in the next turn of the device when
its path has had some records in this one.  Rights are asked for each
record: what is deregistered is not read any more.

An atomic is executed when it is its turn, once, and its answer kept until it is published
(IBTA vol. 1 9.4.5: the responder executes READs and atomics in order).  A message behind it
brings its turn forward: SENDs, WRITEs and atomics are executed in the order in which they
came, and only READs may be later (C9-28; 10.8.3.3: a requester that minds uses a fence).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any

from twisted_ib import limits
from twisted_ib.errors import MemoryAccessError, QueuePairError
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.base.operation import (
    ABSENT,
    ACKNOWLEDGE,
    ATOMIC_ACKNOWLEDGE,
    NAK_REMOTE_ACCESS,
    READ_RESPONSE_FIRST,
    READ_RESPONSE_LAST,
    READ_RESPONSE_MIDDLE,
    READ_RESPONSE_ONLY,
    REFERENCE,
    REFUSAL,
)
from twisted_ib.hca.memory.memory import REMOTE_ATOMIC, REMOTE_READ
from twisted_ib.hca.queues.requests import ATOMIC_BYTES, SGE
from twisted_ib.hca.queues.scatter import locate
from twisted_ib.hca.services.sendwqe import refer
from twisted_ib.hca.wire.headers import ATOMIC_RESULT, ATOMIC_VALUE

if TYPE_CHECKING:
    from twisted_ib.hca.services.work import WorkQueues

_64_BITS = (1 << 64) - 1


class ReadAnswer:
    """
    One READ.

    @ivar source: the memory that is read, as a list of one.
    @ivar length: bytes asked for.
    @ivar sent: bytes that are in the medium.
    @ivar done: whether all records are.
    """

    __slots__ = ("done", "length", "sent", "source")

    def __init__(self, address: int, key: int, length: int) -> None:
        self.source = (SGE(address, length, key),)
        self.length = length
        self.sent = 0
        self.done = False

    def publish(self, work: WorkQueues, path: Any, remote: int) -> bool:
        """
        Publish the next record.

        @return: False if the medium has no room for it.
        @raise MemoryAccessError: the right to the memory is gone.
        """
        sent, asker = self.sent, work.queuePair
        reference, count = refer(path, work.pd, self.source, sent, self.length - sent, REMOTE_READ, asker)
        body: Any = reference or locate(work.pd, self.source, sent, count, REMOTE_READ, asker)
        ends = sent + count == self.length
        if sent:
            opcode = READ_RESPONSE_LAST if ends else READ_RESPONSE_MIDDLE
        else:
            opcode = READ_RESPONSE_ONLY if ends else READ_RESPONSE_FIRST
        if reference:
            opcode |= REFERENCE
        if not path.post(opcode << 24 | remote, b"", body, len(reference) or count):
            return False
        work.recordsSent += 1
        self.sent = sent + count
        self.done = ends
        return True


class AtomicAnswer:
    """
    One atomic.

    @ivar address: of the eight bytes.
    @ivar key: that opens them.
    @ivar compare: what a compare-and-swap expects; L{None} for a fetch-and-add.
    @ivar operand: what is put there, or added.
    @ivar done: whether the answer is in the medium.
    """

    __slots__ = ("_answer", "address", "compare", "done", "key", "operand")

    def __init__(self, address: int, key: int, operand: int, compare: int | None) -> None:
        self.address = address
        self.key = key
        self.operand = operand
        self.compare = compare
        self.done = False
        self._answer = b""

    def execute(self, work: WorkQueues) -> None:
        """
        Execute it, unless that was done.

        @raise MemoryAccessError: the right to the memory is gone.
        """
        if not self._answer:
            self._answer = ATOMIC_RESULT.pack(self._execute(work))

    def publish(self, work: WorkQueues, path: Any, remote: int) -> bool:
        """
        Publish the answer.

        @return: False if the medium has no room for it.
        @raise MemoryAccessError: the right to the memory is gone.
        """
        self.execute(work)
        if not path.post(ATOMIC_ACKNOWLEDGE << 24 | remote, b"", self._answer, ATOMIC_RESULT.size):
            return False
        work.recordsSent += 1
        self.done = True
        return True

    def _execute(self, work: WorkQueues) -> int:
        """
        Do what was asked, in host byte order.

        @return: what was there before.
        @raise MemoryAccessError: the right to the memory is gone.
        """
        view, offset = work.pd.memory.check(
            self.key, self.address, ATOMIC_BYTES, REMOTE_ATOMIC, work.pd, work.queuePair
        )
        old: int = ATOMIC_VALUE.unpack_from(view, offset)[0]
        if self.compare is None:
            new = old + self.operand & _64_BITS
        else:
            new = self.operand if old == self.compare else old
        ATOMIC_VALUE.pack_into(view, offset, new)
        return old


class _Silence:
    """
    A queue pair ends that owes answers.  The requests were taken, so position 0 stands for
    them: the oldest that waits for an answer.
    """

    __slots__ = ("_body", "_path", "_word")

    def __init__(self, path: Any, queuePair: Any) -> None:
        """
        @param path: the way to who waits.
        @param queuePair: the queue pair.
        """
        self._path = path
        self._word = ACKNOWLEDGE << 24 | queuePair.remote
        self._body = REFUSAL.pack(ABSENT, queuePair.number, 0)

    def resume(self) -> None:
        """
        Say so, now or when there is room.
        """
        if not self._path.postReserved(self._word, self._body, False):
            self._path.wantSpace(self)


class ResponseOrder:
    """
    Whose answers have their turn, of those that go to one peer.

    @ivar used: how many records answered the peer in this turn of the device.
    """

    __slots__ = ("_device", "_isDirty", "_turn", "_waiting", "used")

    def __init__(self, device: Any) -> None:
        self._device = device
        self._turn = self.used = 0
        self._waiting: OrderedDict[Answers, None] = OrderedDict()
        self._isDirty = False

    def left(self) -> int:
        """
        How many records may answer the peer yet in this turn of the device.
        """
        if self._turn != self._device.turns:
            self._turn, self.used = self._device.turns, 0
        return max(0, limits.RECORDS_PER_TURN - self.used)

    def wait(self, answers: Answers) -> None:
        """
        These go on when all that wait have had their turn.
        """
        self._waiting[answers] = None
        self._mark()

    def leave(self, answers: Answers) -> None:
        """
        These do not go on; harmless if they do not wait.
        """
        self._waiting.pop(answers, None)

    def _mark(self) -> None:
        if self._waiting and not self._isDirty:
            self._isDirty = True
            self._device.markDirty(self)

    def endOfBatch(self) -> None:
        """
        The next batch.
        """
        self._isDirty = False
        try:
            while self._waiting and self.left():
                answers, _ = self._waiting.popitem(False)
                answers.resume()
        finally:
            self._mark()


class Answers:
    """
    The answers that one responder owes, in the order of the requests.

    @ivar work: the pair of queues it belongs to; L{None} once closed.
    @ivar owed: the answers.
    @ivar _path: where it waits, for room or the next batch, if it does: while any is owed.
    """

    __slots__ = ("_path", "owed", "work")

    def __init__(self, work: WorkQueues) -> None:
        self.work: WorkQueues | None = work
        self.owed: deque[ReadAnswer | AtomicAnswer] = deque()
        self._path: Any = None

    def add(self, answer: ReadAnswer | AtomicAnswer) -> None:
        """
        Answer a request, now or when there is room.
        """
        self.owed.append(answer)
        if self._path is None:
            self._publish()

    def execute(self) -> None:
        """
        Execute the atomics that wait for their turn.

        @raise MemoryAccessError: the right to one's memory is gone; it keeps its turn, to be
            refused then.
        """
        work = self.work
        assert work is not None
        for answer in self.owed:
            if isinstance(answer, AtomicAnswer):
                answer.execute(work)

    def resume(self) -> None:
        """
        The medium has room again.
        """
        self._path = None
        self._publish()

    def close(self) -> None:
        """
        Owe nothing any more.  Who waits for an answer hears that there is none: on a wire it
        would ask in vain until its retries are used up.
        """
        work, self.work = self.work, None
        path, self._path = self._path, None
        if path is not None:
            path.wantNoSpace(self)
            if path.turns is not None:
                path.turns.leave(self)
            if path.alive and work is not None:
                _Silence(path, work.queuePair).resume()
        self.owed.clear()

    def _publish(self) -> None:
        """
        Publish what the medium takes, up to so many records.
        """
        work, owed = self.work, self.owed
        if work is None or work.queuePair.path is None or not owed:
            return
        path, remote = work.queuePair.path, work.queuePair.remote
        turns = self._turns(work, path)
        left = limits.RECORDS_PER_TURN if turns is None else turns.left()
        try:
            for _ in range(left):
                if turns is not None:
                    turns.used += 1
                if not owed[0].publish(work, path, remote):
                    self._wait(path)
                    return
                if owed[0].done:
                    owed.popleft()
                    if not owed:
                        return
            self._pause(turns, path)
        except MemoryAccessError:
            self._refuse(work, path, remote)

    def _refuse(self, work: WorkQueues, path: Any, remote: int) -> None:
        """
        The memory went before the answer was out.  The request was taken, so position 0
        stands for it: the oldest that waits for an answer.
        """
        queuePair = work.queuePair
        body = REFUSAL.pack(NAK_REMOTE_ACCESS, queuePair.number, 0)
        if path.post(ACKNOWLEDGE << 24 | remote, b"", body, len(body)):
            queuePair.raiseEvent(EventType.QP_ACCESS_ERR)
            queuePair.fail(QueuePairError(f"memory that queue pair {queuePair.number} gave is gone"))
        else:
            self._wait(path)

    def _turns(self, work: WorkQueues, path: Any) -> ResponseOrder | None:
        """
        Who gives turns; nobody where there is no device.
        """
        device = work.queuePair.device
        if device is not None and path.turns is None:
            path.turns = ResponseOrder(device)
        turns: ResponseOrder | None = path.turns
        return turns

    def _pause(self, turns: ResponseOrder | None, path: Any) -> None:
        if turns is None:
            self._wait(path)
        else:
            self._path = path
            turns.wait(self)

    def _wait(self, path: Any) -> None:
        self._path = path
        path.wantSpace(self)
