"""
The sending half of a message connection: posted and waiting requests, and registered memory.

A L{Sender} has a queue pair with work queues and acts as their completion queue.  Requests that find the send
queue full wait here, in order.
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
from twisted_ib.hca.base.traits import Completion
from twisted_ib.hca.memory.memory import MemoryWindow, WindowType
from twisted_ib.hca.queues.completion import WCOpcode, WCStatus, WorkCompletion
from twisted_ib.hca.queues.requests import SGE, Capabilities, SendOpcode, SendRequest
from twisted_ib.hca.services.work import WorkQueues
from twisted_ib.internet.addresses import checkInteger
from twisted_ib.internet.region import RDMARegion, RDMAWindow, Regions
from twisted_ib.rdma.pendingrequests import PendingRequest

if TYPE_CHECKING:
    from twisted_ib.hca.queues.queuepair import QueuePair
    from twisted_ib.internet.channel import DeviceChannel

#: Depth of the send queue; more requests wait behind it.
RDMA_SENDS = 128
#: Waiting requests that are posted in one turn, before other connections get theirs.
RDMA_SENDS_PER_FLUSH = 64

_PLACES = Capabilities(RDMA_SENDS, 0, 1, 0, 0)


class Sender:
    """
    One end's send queue, pending requests and memory.

    @ivar thread: The id of the thread that may use it.
    @ivar maxMessageSize: The longest message each way, in bytes.
    @ivar pd: The protection domain of this connection alone.
    @ivar work: The work queues.
    @ivar corked: Whether this turn's C{endOfBatch} is still to come.
    @ivar stuck: Whether the medium or the peer does not accept more for now.
    @ivar asked: Pending requests by number.
    @ivar sent: Where completions tell only that requests were sent: those not known to have arrived.
    @ivar waiting: Requests behind a full send queue: (request or L{None}, message bytes, their number,
        immediate, number in C{asked} or L{None}); L{None} if there are none.
    """

    __slots__ = (
        "_confirming",
        "_numbers",
        "_regions",
        "asked",
        "channel",
        "completions",
        "corked",
        "maxMessageSize",
        "pd",
        "queuePair",
        "sent",
        "stuck",
        "thread",
        "waiting",
        "work",
    )

    # Types that mypy, whose modules mypyc orders, may need before it has read __init__.
    channel: DeviceChannel
    thread: int

    def __init__(self, channel: DeviceChannel, maxMessageSize: int) -> None:
        """
        Create the queue pair.

        @raise ResourceLimitError: There are too many.
        """
        device = channel.device
        self.channel = channel
        self.thread = device.thread
        self.maxMessageSize = maxMessageSize
        self.corked = self.stuck = False
        self.asked: dict[int, PendingRequest] = {}
        self.sent: dict[int, WorkCompletion] | None = None
        self._confirming = 0
        self.waiting: deque[tuple[SendRequest | None, Any, int, int | None, int | None]] | None = None
        # A deque is 760 bytes, which a connection that only writes never needs.
        self.completions: deque[WorkCompletion] | tuple[()] = ()
        self._numbers = 0
        self.queuePair: QueuePair = device.createQueuePair(self)
        self.queuePair.maxMessage = maxMessageSize
        try:
            # A domain per connection: an R_Key given to one peer is refused on another's queue pair (IBTA
            # vol. 1 9.7.4).
            self.pd = device.memory.allocateDomain()
        except HCAError:
            self.queuePair.close()
            raise
        self._regions = Regions(device, self.pd, self.checkCaller)
        queue: Any = self
        self.work = WorkQueues(self.queuePair, self.pd, queue, queue, device.timers, _PLACES)

    # -- implemented by the transport

    def filled(self) -> None:
        """
        Handle a send queue that accepts no more for now.
        """
        raise NotImplementedError

    def usable(self) -> bool:
        """
        Return whether the application may still post requests.
        """
        raise NotImplementedError

    def checkCaller(self) -> None:
        """
        Check the calling thread.

        @raise WrongThreadError: This is not the reactor's thread.
        """
        raise NotImplementedError

    def forked(self) -> None:
        """
        Disable the connection in a forked child, where no thread may use it.
        """
        self.thread = 0

    def cork(self) -> None:
        """
        Schedule C{endOfBatch}.
        """
        if not self.corked:
            self.corked = True
            self.channel.device.markDirty(self)

    # -- sending

    def post(
        self, payload: Any, length: int, immediate: int | None = None, number: int | None = None
    ) -> None:
        """
        Post a message, or let it wait.

        @param payload: Bytes, or a list of them.
        @param length: Their number.
        @param number: In C{asked}, if a Deferred waits for the completion.
        """
        # Never past a waiting request: a queue pair executes requests in posting order (IBTA vol. 1 9.5).
        if self.waiting is None:
            try:
                if not self.work.postInline(payload, length, immediate, number):
                    self.stuck = True
                    self.filled()
                return
            # The send queue is full; the message waits.
            except ResourceLimitError:
                pass
            except QueuePairError:
                self._unposted(number)
                return
        self._wait((None, payload, length, immediate, number))

    def _wait(self, entry: tuple[SendRequest | None, Any, int, int | None, int | None]) -> None:
        if self.waiting is None:
            self.waiting = deque()
        self.waiting.append(entry)
        self.filled()

    def flush(self) -> None:
        """
        Post what waits, as far as the send queue has room.
        """
        waiting = self.waiting
        assert waiting is not None
        left = RDMA_SENDS_PER_FLUSH
        while waiting:
            if not left:
                # Other connections get a turn.
                self.cork()
                return
            if not self.work.canPost():
                return
            left -= 1
            request, payload, length, immediate, number = waiting.popleft()
            if number is not None and self.asked[number].deferred is None:
                # Cancelled before it was posted.
                self._forget(number)
                continue
            # post appends to C{waiting} if it is set; without it, it posts.
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
        Post a request.

        @param fields: Those of its L{SendRequest}.
        @return: Fires when it has completed.
        @raise QueuePairError: A field is invalid.
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
                    fields[name] = checkInteger(name, fields[name])
            request = SendRequest(number, **fields)
            # Before it waits: an invalid request fails in the caller, not in a later turn.
            request.check(1)
            self.work.requester.checkOperation(request.opcode)
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
        Post a message.

        @return: Fires when it has completed.
        @raise QueuePairError: The fabric has no immediate data.
        """
        deferred = asked.deferred
        assert deferred is not None
        if immediate is not None and self.usable():
            self.work.requester.checkOperation(SendOpcode.SEND_WITH_IMM)
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
            # Requests posted in the error state complete flushed (IBTA vol. 1 10.3.1.7).
            asked.failed(WCStatus.WR_FLUSH_ERR)
        self.cork()

    def _refused(self, number: int | None, reason: Exception) -> None:
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
        Drop what waits; its Deferreds fail with all others at the end.
        """
        self.waiting = None

    # -- completions (where the work queues complete)

    def push(self, completion: WorkCompletion, solicited: bool = False) -> bool:
        """
        Store a completion, which is reported at the end of the batch.
        """
        # A callback may post or close, which must not happen inside the core's delivery.
        if not isinstance(self.completions, deque):
            self.completions = deque()
        self.completions.append(completion)
        self.cork()
        return True

    def hold(self, kind: str) -> None:
        """
        Do nothing: see L{twisted_ib.hca.base.refcount.RefCounted}.
        """

    def release(self, kind: str) -> None:
        """
        Do nothing, like L{hold}.
        """

    def tellCompletions(self) -> None:
        """
        Fire the Deferreds of completed requests, in posting order.
        """
        completions = self.completions
        isSent = self.channel.device.traits.completion is Completion.SENT
        while completions:
            completion = completions.popleft()
            number = completion.workRequestID
            asked = self.asked.get(number)
            if asked is not None:
                if isSent and self._isUnconfirmed(number, asked, completion):
                    continue
                self._forget(number)
                asked.completed(completion)
        if self.sent:
            self._confirm()

    def _isUnconfirmed(self, number: int, asked: PendingRequest, completion: WorkCompletion) -> bool:
        # A Deferred fires when the peer has what was sent (see IRDMATransport). READs are answered behind
        # what came before them (RFC 5040 section 5.5), so each tells that.
        if completion.status != WCStatus.SUCCESS:
            return False
        if asked.opcode is not WCOpcode.RDMA_READ:
            self.sent = self.sent or {}
            self.sent[number] = completion
            return True
        if number == self._confirming:
            self._confirming = 0
        self._confirmed(number)
        return False

    def _confirmed(self, number: int) -> None:
        sent = self.sent or {}
        while sent and (first := next(iter(sent))) < number:
            completion = sent.pop(first)
            asked = self.asked.get(first)
            if asked is not None:
                self._forget(first)
                asked.completed(completion)

    def _confirm(self) -> None:
        # One READ of no octets for all that were sent before it.
        work = self.work
        if self._confirming or self.queuePair.path is None or not work.canPost():
            return
        self._numbers = number = self._numbers + 1
        if not work.attributes.reads:
            # The peer serves no READs: iWARP has no other way to know.
            self._confirmed(number)
            return
        asked = self.asked[number] = PendingRequest(WCOpcode.RDMA_READ)
        # Nobody waits for it.
        asked.deferred = None
        self._confirming = number
        self._postRequest(SendRequest(number, opcode=SendOpcode.RDMA_READ), number)

    def failAll(self) -> None:
        """
        Fail all pending requests, after reporting those known to be completed.
        """
        self.tellCompletions()
        self.waiting = None
        # An errback may post again, so the dictionary is read anew each time.
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
        Bind a memory window to a part of a region: see L{twisted_ib.interfaces.IRDMATransport.grant}.

        @param piece: That part.
        """
        memory = self.channel.device.memory
        # IBTA vol. 1 10.6.7.2: a type 2 window belongs to one queue pair, so its R_Key is of no use to other
        # peers, and it can be revoked without deregistering the region.
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

        @return: Its scatter/gather list, empty for no bytes.
        """
        length = len(asked.buffer)
        # Zero bytes need no registration: no key is checked for them (IBTA vol. 1 9.7.4; Linux rxe_resp.c
        # check_rkey).
        if not length or self.queuePair.path is None:
            return ()
        asked.scratch = region = self.channel.device.memory.register(asked.buffer, access, self.pd)
        return (SGE(region.address, length, region.localKey),)

    def pieces(self, region: RDMARegion, offset: int, length: int | None) -> Sequence[SGE]:
        """
        Return the scatter/gather list of a part of a region.

        @raise MemoryAccessError: It is not of this connection, or has no such bytes.
        """
        piece = self._regions.piece(region, offset, length)
        return (piece,) if piece.length else ()

    def closeQueuePair(self) -> None:
        """
        Destroy the queue pair, fail all pending requests and release memory.
        """
        queuePair = self.queuePair
        if queuePair.device is None:
            return
        # First the queue pair: while it exists the peer's requests may still touch the memory.
        queuePair.close()
        self.failAll()
        self._regions.close()
        self.channel.device.memory.deallocateDomain(self.pd)
