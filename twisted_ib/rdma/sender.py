"""
The sending half of a connection of messages: what is posted, what waits, what was asked for, and
the memory that is registered for it.

A L{Sender} has a queue pair with work queues, and is the place where these complete.  What the
send queue has no place for waits here, in order.  What completed is remembered and told at the
end of the batch, not from within the core.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred

from twisted_ib.errors import (
    HCAError,
    MemoryAccessError,
    MemoryRegionError,
    QueuePairError,
    ResourceLimitError,
)
from twisted_ib.hca.memory.memory import MemoryWindow, WindowType
from twisted_ib.hca.queues.completion import WCStatus, WorkCompletion
from twisted_ib.hca.queues.requests import SGE, Capabilities, SendRequest
from twisted_ib.hca.services.work import WorkQueues
from twisted_ib.internet.addresses import whole
from twisted_ib.internet.region import RDMARegion, RDMAWindow, Regions
from twisted_ib.rdma.pendingrequests import PendingRequest

if TYPE_CHECKING:
    from twisted_ib.hca.queues.queuepair import QueuePair
    from twisted_ib.internet.channel import DeviceChannel

#: Send requests that one connection has on the way; more wait behind them.
RDMA_SENDS = 128
#: Messages and requests that wait behind those leave in one turn, before others have theirs.
RDMA_SENDS_PER_FLUSH = 64


class Sender:
    """
    What one end of a connection sends and asks for.

    @ivar channel: The device in its reactor.
    @ivar thread: The thread that may use it.
    @ivar maxMessageSize: The longest message each way, in bytes.
    @ivar queuePair: The queue pair.
    @ivar pd: Its protection domain, which is nobody else's.
    @ivar work: Its work queues.
    @ivar corked: Whether this turn's C{endOfBatch} is still to come.
    @ivar stuck: Whether the medium or the peer does not take what was posted, for now.
    @ivar asked: The requests whose end is not told, by number.
    @ivar waiting: What the send queue has no place for: tuples of a request or L{None}, the
        bytes of a message, their number, the immediate, and the number in C{asked} or L{None}.
        L{None} when there is nothing.
    """

    __slots__ = (
        "_numbers",
        "_regions",
        "asked",
        "channel",
        "completions",
        "corked",
        "maxMessageSize",
        "pd",
        "queuePair",
        "stuck",
        "thread",
        "waiting",
        "work",
    )

    def __init__(self, channel: DeviceChannel, maxMessageSize: int) -> None:
        """
        Make the queue pair.

        @raise ResourceLimitError: There are too many.
        """
        device = channel.device
        self.channel = channel
        self.thread = device.thread
        self.maxMessageSize = maxMessageSize
        self.corked = self.stuck = False
        self.asked: dict[int, PendingRequest] = {}
        self.waiting: deque[tuple[SendRequest | None, Any, int, int | None, int | None]] | None = None
        self.completions: deque[WorkCompletion] = deque()
        self._numbers = 0
        self.queuePair: QueuePair = device.createQueuePair(self)
        self.queuePair.maxMessage = maxMessageSize
        try:
            self.pd = device.memory.allocateDomain()
        except HCAError:
            self.queuePair.close()
            raise
        self._regions = Regions(device, self.pd, self.checkCaller)
        places = Capabilities(RDMA_SENDS, 0, 1, 0, 0)
        queue: Any = self
        self.work = WorkQueues(self.queuePair, self.pd, queue, queue, device.timers, places)

    # -- what the transport implements

    def filled(self) -> None:
        """
        The medium, or the peer, does not take more for now.
        """
        raise NotImplementedError

    def usable(self) -> bool:
        """
        @return: Whether the application may still ask for something.
        """
        raise NotImplementedError

    def checkCaller(self) -> None:
        """
        @raise WrongThreadError: This is not the reactor's thread.
        """
        raise NotImplementedError

    def forked(self) -> None:
        """
        In a forked child: no thread may use this.
        """
        self.thread = 0

    def cork(self) -> None:
        """
        Have C{endOfBatch} called.
        """
        if not self.corked:
            self.corked = True
            self.channel.device.markDirty(self)

    # -- sending

    def post(
        self, payload: Any, length: int, immediate: int | None = None, number: int | None = None
    ) -> None:
        """
        Send a message, or let it wait.

        @param payload: Bytes, or a list of them.
        @param length: How many.
        @param number: In C{asked}, if somebody waits for the end.
        """
        if self.waiting is None:
            try:
                if not self.work.postInline(payload, length, immediate, number):
                    self.stuck = True
                    self.filled()
                return
            except ResourceLimitError:
                pass
            except QueuePairError:
                self._unposted(number)
                return
        self._wait((None, payload, length, immediate, number))

    def _wait(self, entry: tuple[SendRequest | None, Any, int, int | None, int | None]) -> None:
        """
        Let something wait for a place in the send queue.
        """
        if self.waiting is None:
            self.waiting = deque()
        self.waiting.append(entry)
        self.filled()

    def flush(self) -> None:
        """
        Post what waits, as far as there are places.
        """
        waiting = self.waiting
        assert waiting is not None
        left = RDMA_SENDS_PER_FLUSH
        while waiting:
            if not left:
                self.cork()  # Others have a turn.
                return
            if not self.work.canPost():
                return
            left -= 1
            request, payload, length, immediate, number = waiting.popleft()
            if number is not None and self.asked[number].deferred is None:
                self._forget(number)  # Cancelled before it left.
                continue
            self.waiting = None
            try:
                if request is not None:
                    self._postRequest(request, number)
                else:
                    self.post(payload, length, immediate, number)
            finally:
                self.waiting = waiting
            if self.queuePair.path is None:
                return
        self.waiting = None

    def ask(self, asked: PendingRequest, **fields: Any) -> Deferred[Any]:
        """
        Post a request whose end somebody wants to know.

        @param fields: Of its L{SendRequest}.
        @return: What fires then.
        @raise QueuePairError: One of them does not fit.
        """
        deferred = asked.deferred
        assert deferred is not None
        self._numbers = number = self._numbers + 1
        self.asked[number] = asked
        if not self.usable():
            self._unposted(number)
            return deferred
        try:
            for name in ("remoteAddress", "remoteKey"):
                if name in fields:
                    fields[name] = whole(name, fields[name])
            request = SendRequest(number, **fields)
            request.check(1)
        except BaseException:
            self._forget(number)
            raise
        if self.waiting is not None or not self.work.canPost():
            self._wait((request, None, 0, None, number))
        else:
            self._postRequest(request, number)
        return deferred

    def askSend(self, asked: PendingRequest, payload: bytes, immediate: int | None) -> Deferred[Any]:
        """
        Post a message whose end somebody wants to know.

        @return: What fires then.
        """
        deferred = asked.deferred
        assert deferred is not None
        self._numbers = number = self._numbers + 1
        self.asked[number] = asked
        if self.usable():
            self.post(payload, len(payload), immediate, number)
        else:
            self._unposted(number)
        return deferred

    def _postRequest(self, request: SendRequest, number: int | None) -> None:
        try:
            self.work.postSend(request)
        except QueuePairError as error:
            self._refused(number, error)

    def _unposted(self, number: int | None) -> None:
        if number is not None:
            asked = self.asked[number]
            self._forget(number)
            asked.failed(WCStatus.WR_FLUSH_ERR)
        self.cork()

    def _refused(self, number: int | None, reason: Exception) -> None:
        """
        A request cannot be posted on this connection at all.
        """
        assert number is not None
        asked = self.asked[number]
        self._forget(number)
        asked.refused(reason)

    def _forget(self, number: int) -> None:
        scratch = self.asked.pop(number).scratch
        if scratch is not None and not self.channel.device.closed:
            self.channel.device.memory.deregister(scratch)

    def discard(self) -> None:
        """
        Send nothing of what waits; who waits for its end hears with all others.
        """
        self.waiting = None

    # -- completions (where the work queues complete)

    def push(self, completion: WorkCompletion, solicited: bool = False) -> bool:
        """
        A request ended; it is told at the end of the batch.
        """
        self.completions.append(completion)
        self.cork()
        return True

    def hold(self, kind: str) -> None:
        """
        The work queues complete here: see L{twisted_ib.hca.base.refcount.RefCounted}.
        """

    def release(self, kind: str) -> None:
        """
        They do no more.
        """

    def tellCompletions(self) -> None:
        """
        Fire the Deferreds of what ended, in the order of posting.
        """
        completions = self.completions
        while completions:
            completion = completions.popleft()
            number = completion.workRequestID
            asked = self.asked.get(number)
            if asked is not None:
                self._forget(number)
                asked.completed(completion)

    def failAll(self) -> None:
        """
        The connection is over: so is everything asked for, after what is known to have ended.
        """
        self.tellCompletions()
        self.waiting = None
        while self.asked:
            number = next(iter(self.asked))
            asked = self.asked[number]
            self._forget(number)
            asked.failed(WCStatus.WR_FLUSH_ERR)

    # -- memory

    def register(self, sizeOrBuffer: Any, access: int | None) -> RDMARegion:
        """
        Register memory: see L{twisted_ib.interfaces.IRDMATransport.registerMemory}.
        """
        if self.queuePair.device is None:
            raise MemoryRegionError("the connection has ended")
        return self._regions.register(sizeOrBuffer, access)

    def open(self, region: RDMARegion, access: int, piece: SGE) -> RDMAWindow:
        """
        Open a part of a region: see L{twisted_ib.interfaces.IRDMATransport.grant}.

        @param piece: That part.
        """
        memory = self.channel.device.memory
        window = memory.allocateWindow(self.pd, WindowType.TYPE_2)
        try:
            memory.bind(
                window,
                memory.regions.get(piece.key),
                piece.address,
                piece.length,
                access,
                window.key,
                self.queuePair,
            )
        except MemoryAccessError:
            memory.deallocateWindow(window)
            raise

        def revoke(handle: RDMAWindow, window: MemoryWindow) -> None:
            self.checkCaller()
            assert region.windows is not None
            region.windows.discard(handle)
            memory.deallocateWindow(window)

        found = RDMAWindow(window, revoke)
        if region.windows is None:
            region.windows = set()
        region.windows.add(found)
        return found

    def scratch(self, asked: PendingRequest, access: int = 0) -> Sequence[SGE]:
        """
        Register the memory of one request.

        @return: Its name, if there is any of it.
        """
        length = len(asked.buffer)
        if not length or self.queuePair.path is None:
            return ()
        asked.scratch = region = self.channel.device.memory.register(asked.buffer, access, self.pd)
        return (SGE(region.address, length, region.localKey),)

    def pieces(self, region: RDMARegion, offset: int, length: int | None) -> Sequence[SGE]:
        """
        Name a part of a region.

        @raise MemoryAccessError: It is none of this connection, or has no such bytes.
        """
        piece = self._regions.piece(region, offset, length)
        return (piece,) if piece.length else ()

    def closeQueuePair(self) -> None:
        """
        Nothing more is sent or taken; what was asked for fails, and memory is given back.
        """
        queuePair = self.queuePair
        if queuePair.device is None:
            return
        queuePair.close()
        self.failAll()
        self._regions.close()
        self.channel.device.memory.deallocateDomain(self.pd)
