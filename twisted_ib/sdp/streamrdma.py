"""
Memory and a stream: registration, READ and WRITE on a stream's own queue pair.

A stream's queue pair gets work queues when the first of these is used, and only then.  The
messages of the stream go on as before, beside the work queues: they are in no send queue, and
are delivered before the responder has a look at them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twisted_ib import limits
from twisted_ib.errors import MemoryRegionError, QueuePairError
from twisted_ib.hca.base.operation import ACKNOWLEDGE, REFUSAL, SEND_ONLY
from twisted_ib.hca.memory.memory import REMOTE_READ, REMOTE_WRITE, MemoryRegion
from twisted_ib.hca.queues.completion import WCStatus, WorkCompletion
from twisted_ib.hca.queues.requests import SGE, Capabilities, SendOpcode, SendRequest
from twisted_ib.hca.services.work import WorkQueues
from twisted_ib.internet.region import RDMARegion, Regions

if TYPE_CHECKING:
    from twisted_ib.sdp.stream import Stream

_RETRIES = 7
#: Timeout code of a peer whose queue pair is not there: 67 ms.
_ACK_TIMEOUT = 14
#: Timer code of a peer that finds no receive.
_RNR_TIMER = 14


#: READs that a REQ and a REP say to answer and to ask for at a time; OFED says 4, and gets them.
READ_DEPTH = 16


class StreamQueues(WorkQueues):
    """
    The work queues of a stream's queue pair.
    """

    __slots__ = ()

    def delivered(self, opcode: int, buffer: Any, start: int, stop: int) -> int:
        """
        A record arrived: see L{QueuePair.delivered
        <twisted_ib.hca.queues.queuepair.QueuePair.delivered>}.
        """
        queuePair = self.queuePair
        if opcode == SEND_ONLY:
            self.recordsReceived += 1
            return queuePair.streamed(buffer, start, stop)
        if opcode == ACKNOWLEDGE and stop - start == REFUSAL.size:
            syndrome, _, position = REFUSAL.unpack_from(buffer, start)
            if position and not self.requester.knows(position):
                queuePair.fail(
                    QueuePairError(
                        f"the peer refused a message of queue pair {queuePair.number}"
                        f" (syndrome {syndrome:#04x})"
                    )
                )
                return 0
        return WorkQueues.delivered(self, opcode, buffer, start, stop)


class StreamRDMA:
    """
    The memory of one stream, and what moves it.

    @ivar stream: Whose.
    @ivar regions: What the application registered.
    @ivar moving: READs and WRITEs on their way.
    @ivar completions: Of those that are done, and not told.
    """

    __slots__ = ("_calls", "_exposed", "_numbers", "_work", "completions", "regions", "stream")

    def __init__(self, stream: Stream) -> None:
        """
        Nothing is registered.

        @raise MemoryRegionError: The connection has ended.
        """
        device = stream.channel.device
        if stream.queuePair.device is None:
            raise MemoryRegionError("the connection has ended")
        self.stream = stream
        self.regions = Regions(device, device.memory.allocateDomain(), stream.checkCaller)
        self.completions: deque[WorkCompletion] = deque()
        self._calls: dict[int, Callable[[], None]] = {}
        self._exposed: set[MemoryRegion] = set()
        self._numbers = 0
        self._work: WorkQueues | None = None

    @property
    def moving(self) -> int:
        """
        How many READs and WRITEs are on their way, or done and not told.
        """
        return len(self._calls)

    def begin(self) -> WorkQueues:
        """
        Give the queue pair its work queues, if it has none: the peer may read and write from
        now on, what it has keys for.
        """
        work = self._work
        if work is None:
            stream: Any = self.stream
            sink: Any = self
            places = Capabilities(limits.SDP_TRANSFERS + READ_DEPTH, 0, 1, 0, 0)
            timers = stream.channel.device.timers
            self._work = work = StreamQueues(stream.queuePair, self.regions.pd, sink, sink, timers, places)
            attributes = work.attributes
            attributes.access = REMOTE_READ | REMOTE_WRITE
            attributes.reads = stream.reads
            attributes.peerReads = READ_DEPTH
            attributes.retries = attributes.rnrRetries = _RETRIES
            attributes.timeout = _ACK_TIMEOUT
            attributes.minRNRTimer = _RNR_TIMER
        return work

    # -- memory

    def register(self, sizeOrBuffer: Any, access: int | None) -> RDMARegion:
        """
        Register memory for the application.
        """
        if self.stream.queuePair.device is None:
            raise MemoryRegionError("the connection has ended")
        return self.regions.register(sizeOrBuffer, access)

    def expose(self, view: Any, access: int, segment: Any = None) -> MemoryRegion:
        """
        Register memory for one transfer.

        @param segment: What C{view} is the whole of, if the peer can map it.
        """
        memory = self.stream.channel.device.memory
        region: MemoryRegion = memory.register(view, access, self.regions.pd, None, segment)
        self._exposed.add(region)
        return region

    def hide(self, region: MemoryRegion) -> None:
        """
        The transfer is over.
        """
        if region in self._exposed:
            self._exposed.remove(region)
            self.stream.channel.device.memory.deregister(region)

    # -- work

    def read(self, piece: SGE, address: int, key: int, done: Callable[[], None]) -> None:
        """
        Read the peer's memory.

        @param piece: Where to.
        @param done: Called in a later batch, when it is there.
        """
        self._post(SendOpcode.RDMA_READ, piece, address, key, done)

    def write(self, piece: SGE, address: int, key: int, done: Callable[[], None]) -> None:
        """
        Write to the peer's memory.

        @param piece: What.
        @param done: Called in a later batch, when the peer has it.
        """
        self._post(SendOpcode.RDMA_WRITE, piece, address, key, done)

    def _post(self, opcode: SendOpcode, piece: SGE, address: int, key: int, done: Callable[[], None]) -> None:
        work = self.begin()
        self._numbers = number = self._numbers + 1
        self._calls[number] = done
        work.postSend(SendRequest(number, opcode, (piece,), remoteAddress=address, remoteKey=key))

    def push(self, completion: WorkCompletion, solicited: bool = False) -> bool:
        """
        A request ended; it is told at the end of the batch.
        """
        self.completions.append(completion)
        self.stream.cork()
        return True

    def hold(self, kind: str) -> None:
        """
        The work queues complete here: see L{twisted_ib.hca.base.refcount.RefCounted}.
        """

    def release(self, kind: str) -> None:
        """
        They do no more.
        """

    def tell(self) -> None:
        """
        Tell what is done, in the order of posting.  A request that failed took the queue pair
        with it, which everybody hears by other ways.
        """
        completions = self.completions
        while completions:
            completion = completions.popleft()
            done = self._calls.pop(completion.workRequestID, None)
            if done is not None and completion.status == WCStatus.SUCCESS:
                done()

    def close(self) -> None:
        """
        The queue pair is gone: so are all rights.
        """
        self._calls.clear()
        self.completions.clear()
        for region in list(self._exposed):
            self.hide(region)
        self.regions.close()
        self.stream.channel.device.memory.deallocateDomain(self.regions.pd)
