"""
Memory registration, RDMA READ and RDMA WRITE on a stream's own queue pair.

The queue pair gets work queues when the first of these is used.  The stream's messages bypass the work
queues: they are in no send queue, and are delivered before the responder sees them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from twisted_ib import limits
from twisted_ib.errors import MemoryRegionError, QueuePairError
from twisted_ib.hca.base.operation import REFUSAL
from twisted_ib.hca.memory.access import REMOTE, REMOTE_READ, REMOTE_WRITE
from twisted_ib.hca.memory.memory import MemoryRegion
from twisted_ib.hca.queues.completion import WCStatus, WorkCompletion
from twisted_ib.hca.queues.receives import SGE
from twisted_ib.hca.queues.requests import Attributes, Capabilities, SendOpcode, SendRequest
from twisted_ib.hca.services.work import WorkQueues
from twisted_ib.hca.wire.opcodes import ACKNOWLEDGE, SEND_ONLY
from twisted_ib.internet.region import RDMARegion, Regions

if TYPE_CHECKING:
    from twisted_ib.sdp.stream import Stream

#: The largest value: with RNR it means without limit (IBTA vol. 1 12.7, RNR retry count).
_RETRIES = 7
#: Local ACK Timeout code for a peer whose queue pair is not there: 67 ms.
_ACK_TIMEOUT = 14
#: RNR NAK timer code.
_RNR_TIMER = 14


#: Responder resources and initiator depth in REQ and REP.  OFED announces 4 (sdp_cma.c sdp_cma_handler), and
#: gets them.
READ_DEPTH: Final = 16


class StreamQueues(WorkQueues):
    """
    Work queues of a stream's queue pair.
    """

    __slots__ = ()

    def isSettled(self) -> bool:
        # Its keep-alives are no requests.
        return False

    def promisedBytes(self) -> int:
        # The most payload is one thing, and the longest message, with its header, another.
        return limits.INLINE_RECORD

    def delivered(self, opcode: int, buffer: Any, start: int, stop: int) -> int:
        queuePair = self.queuePair
        # A stream's messages never consume receive requests: credits (Bufs) already guarantee a receive.
        if opcode == SEND_ONLY:
            self.recordsReceived += 1
            return queuePair.streamed(buffer, start, stop)
        if opcode == ACKNOWLEDGE and stop - start == REFUSAL.size:
            syndrome, _, position = REFUSAL.unpack_from(buffer, start)
            # A NAK for a request in no send queue is for a message of the stream, for which there is no
            # retry.
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
    The registered memory of one stream, and its READs and WRITEs.

    @ivar stream: The stream.
    @ivar regions: The application's registrations.
    @ivar completions: Completions not reported yet.
    """

    __slots__ = ("_calls", "_exposed", "_numbers", "_work", "completions", "regions", "stream")

    def __init__(self, stream: Stream) -> None:
        """
        Open a protection domain for the stream.

        @raise MemoryRegionError: The connection has ended.
        """
        device = stream.channel.device
        if stream.queuePair.device is None:
            raise MemoryRegionError("the connection has ended")
        self.stream = stream
        # A protection domain of its own: another connection's keys are refused here.
        self.regions = Regions(device, device.memory.allocateDomain(), stream)
        if device.adapter is not None:
            device.adapter.share(self.regions.pd, stream.queuePair)
        self.completions: deque[WorkCompletion] = deque()
        self._calls: dict[int, Callable[[], None]] = {}
        self._exposed: set[MemoryRegion] = set()
        self._numbers = 0
        self._work: WorkQueues | None = None

    @property
    def moving(self) -> int:
        """
        READs and WRITEs in flight, or completed and not reported.
        """
        return len(self._calls)

    def begin(self) -> WorkQueues:
        """
        Return the work queues, made when first needed.
        """
        work = self._work
        if work is None:
            stream: Any = self.stream
            sink: Any = self
            places = Capabilities(limits.SDP_TRANSFERS + READ_DEPTH, 0, 1, 0, 0)
            timers = stream.channel.device.timers
            self._work = work = StreamQueues(stream.queuePair, self.regions.pd, sink, sink, timers, places)
            # Until the first transfer there is no responder, so that no R_Key opens anything to the peer.
            # The peer's responder resources bound our READs, ours bound the peer's (Linux cm.c
            # cm_init_qp_rts_attr).
            access = REMOTE_READ | REMOTE_WRITE
            work.attributes = Attributes(
                access, _RNR_TIMER, stream.reads, READ_DEPTH, _ACK_TIMEOUT, _RETRIES, _RETRIES
            )
        return work

    # -- memory

    def register(self, sizeOrBuffer: Any, access: int | None) -> RDMARegion:
        """
        Register memory for the application.

        @raise MemoryRegionError: The connection has ended.
        """
        if self.stream.queuePair.device is None:
            raise MemoryRegionError("the connection has ended")
        return self.regions.register(sizeOrBuffer, access)

    def expose(self, view: Any, access: int, segment: Any = None) -> MemoryRegion:
        """
        Register memory for one transfer, under a key of its own.

        @param segment: The shared memory segment that C{view} is all of, if the peer can map it.
        @raise MemoryRegionError: An adapter does not take it.
        """
        memory = self.stream.channel.device.memory
        # A key per transfer: deregistration then revokes exactly what one advertisement granted.
        region: MemoryRegion = memory.register(
            view, access, self.regions.pd, segment=segment, isPassing=not access & REMOTE
        )
        self._exposed.add(region)
        return region

    def hide(self, region: MemoryRegion) -> None:
        """
        Deregister the memory of a transfer.
        """
        if region in self._exposed:
            self._exposed.remove(region)
            self.stream.channel.device.memory.deregister(region)

    # -- work

    def read(self, piece: SGE, address: int, key: int, done: Callable[[], None]) -> None:
        """
        Post an RDMA READ.

        @param piece: The local target.
        @param done: Called in a later batch, when the data is there.
        """
        self._post(SendOpcode.RDMA_READ, piece, address, key, done)

    def write(self, piece: SGE, address: int, key: int, done: Callable[[], None]) -> None:
        """
        Post an RDMA WRITE.

        @param piece: The local source.
        @param done: Called in a later batch, when the peer has the data.
        """
        self._post(SendOpcode.RDMA_WRITE, piece, address, key, done)

    def _post(self, opcode: SendOpcode, piece: SGE, address: int, key: int, done: Callable[[], None]) -> None:
        work = self.begin()
        self._numbers = number = self._numbers + 1
        self._calls[number] = done
        work.postSend(SendRequest(number, opcode, (piece,), remoteAddress=address, remoteKey=key))

    def push(self, completion: WorkCompletion, solicited: bool = False) -> bool:
        """
        Store a completion, which is reported at the end of the batch.
        """
        # Callbacks may write or close, which must not happen inside the core's delivery.
        self.completions.append(completion)
        self.stream.cork()
        return True

    def tell(self) -> None:
        """
        Report completions in posting order.
        """
        completions = self.completions
        while completions:
            completion = completions.popleft()
            done = self._calls.pop(completion.workRequestID, None)
            # A failed request has moved the queue pair to the error state, which ends the stream by itself.
            if done is not None and completion.status == WCStatus.SUCCESS:
                done()

    def close(self) -> None:
        """
        Release all memory after the queue pair was destroyed.
        """
        self._calls.clear()
        self.completions.clear()
        for region in list(self._exposed):
            self.hide(region)
        # Before the domain: the memory manager refuses to deallocate one that is in use.
        self.regions.close()
        self.stream.channel.device.memory.deallocateDomain(self.regions.pd)
