"""
The requests of one connection whose completion somebody waits for, and the memory that they name.

Work queues complete requests in posting order.  Where a completion tells only that a request was sent, its
Deferred waits for a READ behind it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred

from twisted_ib import limits
from twisted_ib.errors import MemoryAccessError, MemoryRegionError, QueuePairError, WorkCompletionError
from twisted_ib.hca.base.traits import Completion
from twisted_ib.hca.memory.access import LOCAL_WRITE
from twisted_ib.hca.memory.domains import ProtectionDomain
from twisted_ib.hca.memory.memory import MemoryRegion
from twisted_ib.hca.queues.completion import WCOpcode, WCStatus, WorkCompletion
from twisted_ib.hca.queues.receives import SGE
from twisted_ib.hca.queues.requests import ATOMIC_BYTES, SendOpcode, SendRequest
from twisted_ib.internet.addressing.addresses import checkInteger, immediateData, toBytes
from twisted_ib.internet.region import RDMARegion, RDMAWindow, Regions
from twisted_ib.rdma import gathering
from twisted_ib.rdma.backlog import Waiting

if TYPE_CHECKING:
    from twisted_ib.rdma.transport import RDMATransport

_64_BITS = 1 << 64
_ADDRESSES = "remoteAddress", "remoteKey"

#: Makes a request's result from its memory and the completed length.
Result = Callable[[bytes | bytearray, int], object]


def nothing(buffer: bytes | bytearray, length: int) -> None:
    """
    Return no result.
    """


def count(buffer: bytes | bytearray, length: int) -> int:
    """
    Return the number of bytes received.
    """
    return length


def content(buffer: bytes | bytearray, length: int) -> bytes:
    """
    Return the bytes received.
    """
    return bytes(buffer)


def integer(buffer: bytes | bytearray, length: int) -> int:
    """
    Return the 64 bits received.
    """
    # Atomics are big-endian on the wire and in host order in memory (IBTA vol. 1 9.4.5; Linux rxe_mr.c
    # rxe_mr_do_atomic_op).
    return int.from_bytes(buffer, sys.byteorder)


class PendingRequest:
    """
    A request that is not completed.

    @ivar deferred: Fires with the result; L{None} once it was cancelled or has fired.
    @ivar buffer: Memory of this request alone.
    @ivar scratch: Its registration, or L{None}.
    """

    __slots__ = ("_result", "buffer", "deferred", "opcode", "scratch")

    def __init__(self, opcode: WCOpcode, result: Result = nothing, buffer: bytes | bytearray = b"") -> None:
        self.deferred: Deferred[Any] | None = Deferred(self._cancelled)
        self.opcode = opcode
        self.buffer = buffer
        # Kept until the completion, also after a cancel: the HCA may write to it until then.
        self.scratch: MemoryRegion | None = None
        self._result = result

    def _cancelled(self, deferred: Deferred[Any]) -> None:
        # A posted request cannot be taken back; the Deferred itself fails with CancelledError.
        self.deferred = None

    def completed(self, completion: WorkCompletion) -> None:
        """
        Fire the Deferred for a completion.
        """
        status = WCStatus(completion.status)
        if status == WCStatus.SUCCESS:
            deferred, self.deferred = self.deferred, None
            if deferred is not None:
                # byteLength is what the responder sent, which for a READ is all that was asked for.
                deferred.callback(self._result(self.buffer, completion.byteLength))
        else:
            self.failed(status)

    def failed(self, status: WCStatus) -> None:
        """
        Fail the Deferred for an error completion.
        """
        self.refused(WorkCompletionError(status, status.name, self.opcode.name))

    def refused(self, reason: Exception) -> None:
        """
        Fail the Deferred of a request that could not be posted.
        """
        deferred, self.deferred = self.deferred, None
        if deferred is not None:
            deferred.errback(reason)


class Requests:
    """
    Made with the first request: most connections only write and read messages.

    All methods belong to the reactor's thread; the transport has checked that.  A request after the end of
    the connection fails as one that was flushed.

    @ivar asked: Pending requests by number.
    @ivar sent: Where completions tell only that requests were sent: those not known to have arrived.
    @ivar regions: The registered memory.
    """

    __slots__ = ("_confirming", "_numbers", "_transport", "asked", "regions", "sent")

    def __init__(self, transport: RDMATransport) -> None:
        self._transport = transport
        self._confirming = self._numbers = 0
        self.asked: dict[int, PendingRequest] = {}
        self.sent: dict[int, WorkCompletion] = {}
        self.regions = Regions(transport.channel.device, transport.work.pd, transport)

    # -- from the application: see L{twisted_ib.interfaces.IRDMATransport}

    def send(self, data: Any, immediate: int | None) -> Deferred[None]:
        """
        Send a message.

        @param data: Bytes-like; mutable data is copied.
        @raise MessageTooLongError: It is too long.
        @raise QueuePairError: The fabric has no immediate data.
        """
        transport = self._transport
        payload = toBytes(data)
        transport.checkLength(len(payload))
        isUsable = transport.usable()
        if immediate is not None:
            immediate = immediateData(immediate)
            if isUsable:
                transport.work.requester.checkOperation(SendOpcode.SEND_WITH_IMM)
        asked = PendingRequest(WCOpcode.SEND)
        deferred = asked.deferred
        assert deferred is not None
        self._numbers = number = self._numbers + 1
        self.asked[number] = asked
        if isUsable:
            transport.post(payload, len(payload), immediate, number)
        else:
            self.unposted(number)
        return deferred

    def sendRegistered(self, region: RDMARegion, offset: int, length: int | None) -> Deferred[None]:
        """
        Send a part of a region as one message.
        """
        pieces = self._pieces(region, offset, length)
        self._transport.checkLength(sum([piece.length for piece in pieces]))
        return self._ask(PendingRequest(WCOpcode.SEND), opcode=SendOpcode.SEND, pieces=pieces)

    def read(
        self, length: int, remoteAddress: int, remoteKey: int, region: RDMARegion | None, offset: int
    ) -> Deferred[Any]:
        """
        READ the peer's memory.

        @param region: Where to; L{None} for bytes of their own.
        @raise ValueError: A READ cannot be so long.
        """
        length = checkInteger("length", length)
        # IBTA vol. 1 9.7.7: a message has at most 2^31 bytes.
        if not 0 <= length <= limits.MESSAGE_BYTES:
            raise ValueError(f"a READ has 0 to {limits.MESSAGE_BYTES} bytes, not {length}")
        if region is None:
            # Memory of its own for each request: the HCA may still write to it after a cancel.
            asked = PendingRequest(WCOpcode.RDMA_READ, content, bytearray(length))
            pieces = self._scratch(asked, LOCAL_WRITE)
        else:
            asked = PendingRequest(WCOpcode.RDMA_READ, count)
            pieces = self._pieces(region, offset, length)
        return self._ask(
            asked,
            opcode=SendOpcode.RDMA_READ,
            pieces=pieces,
            remoteAddress=remoteAddress,
            remoteKey=remoteKey,
        )

    def write(
        self,
        data: Any,
        remoteAddress: int,
        remoteKey: int,
        immediate: int | None,
        offset: int,
        length: int | None,
    ) -> Deferred[None]:
        """
        WRITE to the peer's memory.

        @param data: A region, or bytes-like.
        @param immediate: 32 bits that the peer's protocol is told of; L{None} to tell it nothing.
        @raise MemoryAccessError: There are no such bytes.
        """
        if isinstance(data, RDMARegion):
            asked = PendingRequest(WCOpcode.RDMA_WRITE)
            pieces = self._pieces(data, offset, length)
        else:
            # toBytes copies mutable data: the HCA reads it after this call has returned.
            payload = toBytes(data)
            offset = checkInteger("offset", offset)
            size = len(payload) - offset if length is None else checkInteger("length", length)
            end = offset + size
            if not 0 <= offset <= end <= len(payload):
                raise MemoryAccessError(f"data of {len(payload)} bytes has no {size} bytes at {offset}")
            asked = PendingRequest(WCOpcode.RDMA_WRITE, nothing, payload[offset:end])
            pieces = self._scratch(asked)
        return self._ask(
            asked,
            opcode=SendOpcode.RDMA_WRITE if immediate is None else SendOpcode.RDMA_WRITE_WITH_IMM,
            pieces=pieces,
            immediate=immediate or 0,
            remoteAddress=remoteAddress,
            remoteKey=remoteKey,
        )

    def compareAndSwap(self, remoteAddress: int, remoteKey: int, compare: int, swap: int) -> Deferred[int]:
        """
        Put C{swap} in the place of 64 bits of the peer's memory that are C{compare}.
        """
        asked = PendingRequest(WCOpcode.COMP_SWAP, integer, bytearray(ATOMIC_BYTES))
        compare, swap = checkInteger("compare", compare), checkInteger("swap", swap)
        opcode = SendOpcode.ATOMIC_CMP_AND_SWP
        return self._askAtomic(asked, opcode, remoteAddress, remoteKey, compare, swap)

    def fetchAdd(self, remoteAddress: int, remoteKey: int, add: int) -> Deferred[int]:
        """
        Add to 64 bits of the peer's memory.
        """
        asked = PendingRequest(WCOpcode.FETCH_ADD, integer, bytearray(ATOMIC_BYTES))
        # IBTA vol. 1 9.4.5: the sum is taken modulo 2^64, so a negative addend subtracts.
        addend = checkInteger("what to add", add) % _64_BITS
        opcode = SendOpcode.ATOMIC_FETCH_AND_ADD
        return self._askAtomic(asked, opcode, remoteAddress, remoteKey, addend, 0)

    def _askAtomic(
        self, asked: PendingRequest, opcode: SendOpcode, address: int, key: int, compare: int, swap: int
    ) -> Deferred[int]:
        # The responder returns the original 64 bits (IBTA vol. 1 9.4.5).
        return self._ask(
            asked,
            opcode=opcode,
            pieces=self._scratch(asked, LOCAL_WRITE),
            remoteAddress=address,
            remoteKey=key,
            compare=compare,
            swap=swap,
        )

    def register(self, sizeOrBuffer: Any, access: int | None) -> RDMARegion:
        """
        Register memory.

        @raise MemoryRegionError: It cannot be registered so, or the connection has ended.
        """
        self._domain()
        return self.regions.register(sizeOrBuffer, access)

    def grant(self, region: RDMARegion, access: int, offset: int, length: int | None) -> RDMAWindow:
        """
        Open a part of a region for the peer.

        @raise MemoryAccessError: There is no such part.
        """
        pieces = self._pieces(region, offset, length)
        # IBTA vol. 1 10.6.7.2, o10-37.2.40: only a window of type 1 can be bound to no bytes, which unbinds
        # it.
        if not pieces:
            raise MemoryAccessError("a window has at least one byte")
        access = checkInteger("access", access)
        return self.regions.open(region, access, pieces[0], self._transport.queuePair)

    def _domain(self) -> ProtectionDomain:
        # Raises MemoryRegionError after the end, ResourceLimitError where there are too many.  Allocated with
        # a connection's first memory, one for each: an R_Key given to one peer is refused on another's queue
        # pair (IBTA vol. 1 9.7.4).
        if self._transport.hasEnded:
            raise MemoryRegionError("the connection has ended")
        work = self._transport.work
        if work.pd is work.pd.memory.empty:
            work.joinDomain(work.pd.memory.allocateDomain())
            self.regions.pd = work.pd
        return work.pd

    def _scratch(self, asked: PendingRequest, access: int = 0) -> Sequence[SGE]:
        # Registers the memory of one request: zero bytes need no registration, as no key is checked for them
        # (IBTA vol. 1 9.7.4; Linux rxe_resp.c check_rkey).
        length, transport = len(asked.buffer), self._transport
        # As hasEnded, without its call for each request.
        if not length or transport.queuePair.path is None:
            return ()
        pd = transport.work.pd
        if pd is pd.memory.empty:
            pd = self._domain()
        asked.scratch = region = pd.memory.register(asked.buffer, access, pd)
        return (SGE(region.address, length, region.localKey),)

    def _pieces(self, region: RDMARegion, offset: int, length: int | None) -> Sequence[SGE]:
        # Raises MemoryAccessError: the region is not of this connection, or has no such bytes.
        piece = self.regions.piece(region, offset, length)
        return (piece,) if piece.length else ()

    def _ask(self, asked: PendingRequest, **fields: Any) -> Deferred[Any]:
        deferred = asked.deferred
        assert deferred is not None
        transport = self._transport
        self._numbers = number = self._numbers + 1
        self.asked[number] = asked
        if not transport.usable():
            self.unposted(number)
            return deferred
        try:
            for name in _ADDRESSES:
                if name in fields and fields[name].__class__ is not int:
                    fields[name] = checkInteger(name, fields[name])
            request = SendRequest(number, **fields)
            # Before it waits: an invalid request fails in the caller, not in a later turn.
            request.check(1)
            transport.work.requester.checkOperation(request.opcode)
        except BaseException:
            self._forget(number)
            raise
        # Behind all that was written before it.
        if transport.gathered is not None:
            gathering.post(transport)
        if transport.waiting is None and transport.work.canPost():
            self.post(request, number)
        else:
            transport.wait(Waiting(request, number=number))
        return deferred

    # -- from the transport

    def post(self, request: SendRequest, number: int) -> None:
        """
        Post a request, for which the send queue has room.
        """
        try:
            self._transport.work.postSend(request)
        except QueuePairError as error:
            asked = self.asked[number]
            self._forget(number)
            asked.refused(error)

    def unposted(self, number: int) -> None:
        """
        Fail a request that was not posted.
        """
        asked = self.asked[number]
        self._forget(number)
        # Requests posted in the error state complete flushed (IBTA vol. 1 10.3.1.7).
        asked.failed(WCStatus.WR_FLUSH_ERR)
        self._transport.cork()

    def isCancelled(self, number: int) -> bool:
        """
        Return whether nobody waits for a request that was not posted; it is forgotten then.
        """
        if self.asked[number].deferred is not None:
            return False
        self._forget(number)
        return True

    def _forget(self, number: int) -> None:
        scratch, device = self.asked.pop(number).scratch, self._transport.channel.device
        if scratch is not None and not device.closed:
            device.memory.deregister(scratch)

    def close(self) -> None:
        """
        Fail all requests, after telling of those known to be completed, and release the memory: the queue
        pair is closed.
        """
        self.tell()
        # An errback may post again, so the dictionary is read anew each time.
        while self.asked:
            number = next(iter(self.asked))
            asked = self.asked[number]
            self._forget(number)
            asked.failed(WCStatus.WR_FLUSH_ERR)
        self.regions.close()

    # -- completions

    def tell(self) -> None:
        """
        Fire the Deferreds of completed requests, in posting order.
        """
        transport = self._transport
        completions = transport.completions
        isSent = transport.channel.device.traits.completion is Completion.SENT
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
            self.sent[number] = completion
            return True
        if number == self._confirming:
            self._confirming = 0
        self._confirmed(number)
        return False

    def _confirmed(self, number: int) -> None:
        sent = self.sent
        while sent and (first := next(iter(sent))) < number:
            completion = sent.pop(first)
            asked = self.asked.get(first)
            if asked is not None:
                self._forget(first)
                asked.completed(completion)

    def _confirm(self) -> None:
        # One READ of no octets for all that were sent before it.
        transport = self._transport
        work = transport.work
        if self._confirming or transport.hasEnded or not work.canPost():
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
        self.post(SendRequest(number, opcode=SendOpcode.RDMA_READ), number)
