"""
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
from typing import TYPE_CHECKING, Any

from twisted_ib import limits
from twisted_ib.errors import MemoryAccessError, QueuePairError
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.base.operation import ABSENT, REFUSAL
from twisted_ib.hca.services.operations.operation import Response
from twisted_ib.hca.wire.headers import NAK_REMOTE_ACCESS
from twisted_ib.hca.wire.opcodes import ACKNOWLEDGE

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import IDevice, IPath
    from twisted_ib.hca.services.work import WorkQueues


class _Silence:
    __slots__ = ("_body", "_path", "_word")

    def __init__(self, path: IPath, queuePair: Any) -> None:
        # Notifies the requester of a queue pair that ended with responses outstanding.  The
        # requests were consumed, so position 0 stands for them: the oldest request that awaits its
        # response.
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
        # Counted per peer, not per queue pair: a peer must not get more by opening more queue
        # pairs.
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


class ResponseQueue:
    """
    The responses that one responder owes, in the order of the requests.

    @ivar work: the work queues it belongs to; L{None} once closed.
    @ivar owed: the responses; a deque from the first one on.
    """

    __slots__ = ("_path", "owed", "work")

    def __init__(self, work: WorkQueues | None) -> None:
        self.work = work
        self.owed: deque[Response] | tuple[()] = ()
        # Where it waits for room or for its next turn, if it does; set only while responses are
        # owed.
        self._path: Any = None

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
        work, self.work = self.work, None
        path, self._path = self._path, None
        if path is not None:
            path.wantNoSpace(self)
            if path.scheduler is not None:
                path.scheduler.leave(self)
            # On a wire the requester would retry until retry_cnt is used up (IBTA vol. 1
            # 9.9.2.1.1).  This medium loses nothing, so the requester has no timer for it and must
            # be notified.
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
                    # Counted before it is sent: an attempt that finds no room has cost the turn as
                    # much.
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
        # The memory went away before the response was out (NAK of IBTA vol. 1 9.7.5.2).  The
        # request was consumed, so position 0 stands for it: the oldest request that awaits its
        # response.
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
