"""
A send request on its way into the medium.

A message is split into records as long as the medium accepts, with the opcodes of the base transport
header: First, Middle, Last, or Only (IBTA vol. 1 9.2.1).  If the bytes lie in memory that the peer can
map, a record carries a reference instead: the peer's process copies them, once, and one record may stand
for more bytes than it could hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twisted_ib import limits
from twisted_ib.errors import MemoryAccessError
from twisted_ib.hca.base.operation import (
    ANSWERS,
    ATOMIC_ACKNOWLEDGE,
    COMPARE_SWAP,
    FETCH_ADD,
    OPERATION_MASK,
    READ_REQUEST,
    REFERENCE,
    SEND_FIRST,
    SEND_LAST,
    SEND_LAST_IMMEDIATE,
    SEND_LAST_INVALIDATE,
    SEND_MIDDLE,
    SEND_ONLY,
    SEND_ONLY_IMMEDIATE,
    SEND_ONLY_INVALIDATE,
    SOLICITED,
    WRITE_FIRST,
    WRITE_LAST,
    WRITE_LAST_IMMEDIATE,
    WRITE_MIDDLE,
    WRITE_ONLY,
    WRITE_ONLY_IMMEDIATE,
)
from twisted_ib.hca.memory.memory import LOCAL_READ, LOCAL_WRITE
from twisted_ib.hca.queues.completion import WCOpcode, WCStatus
from twisted_ib.hca.queues.requests import ATOMIC_BYTES, SendFlags, SendOpcode, SendRequest
from twisted_ib.hca.queues.scatter import find, locate, payload, scatter, total
from twisted_ib.hca.wire import headers
from twisted_ib.hca.wire.headers import ATOMIC, ATOMIC_RESULT, ATOMIC_VALUE, IMMEDIATE, INVALIDATE, RETH

if TYPE_CHECKING:
    from twisted_ib.hca.memory.memory import ProtectionDomain
    from twisted_ib.hca.services.work import WorkQueues

#: Messages of at least this many bytes may be pulled from shared memory; shorter ones are copied.
PULL_LEAST = 16 * 1024

#: By send opcode: the opcodes of an only, first, middle and last record, and of the completion.
_CODES = {
    SendOpcode.SEND: (SEND_ONLY, SEND_FIRST, SEND_MIDDLE, SEND_LAST, WCOpcode.SEND),
    SendOpcode.SEND_WITH_IMM: (
        SEND_ONLY_IMMEDIATE,
        SEND_FIRST,
        SEND_MIDDLE,
        SEND_LAST_IMMEDIATE,
        WCOpcode.SEND,
    ),
    SendOpcode.SEND_WITH_INV: (
        SEND_ONLY_INVALIDATE,
        SEND_FIRST,
        SEND_MIDDLE,
        SEND_LAST_INVALIDATE,
        WCOpcode.SEND,
    ),
    SendOpcode.RDMA_WRITE: (WRITE_ONLY, WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST, WCOpcode.RDMA_WRITE),
    SendOpcode.RDMA_WRITE_WITH_IMM: (
        WRITE_ONLY_IMMEDIATE,
        WRITE_FIRST,
        WRITE_MIDDLE,
        WRITE_LAST_IMMEDIATE,
        WCOpcode.RDMA_WRITE,
    ),
}
_SIGNALED_FLAG = int(SendFlags.SIGNALED)
_SOLICITED_FLAG = int(SendFlags.SOLICITED)
_WITH_IMMEDIATE = frozenset((SendOpcode.SEND_WITH_IMM, SendOpcode.RDMA_WRITE_WITH_IMM))
_WRITES = frozenset((SendOpcode.RDMA_WRITE, SendOpcode.RDMA_WRITE_WITH_IMM))


class Operation:
    """
    Base of all send operations.

    @cvar asks: whether it completes only when its response has come (READ, atomic).
    @cvar isLast: whether it starts only when everything before it is done.
    @ivar id: the program's wr_id; L{None} if it has no completion, however it ends.
    @ivar flags: L{SendFlags} as a plain integer: operations on an IntFlag cost ten times as much.
    @ivar length: payload bytes.
    @ivar begun: whether one of its records is in the medium.
    @ivar position: of the medium, after its latest record there.
    @ivar records: how many records were published, including repeats.
    @ivar status: its completion status so far.
    @ivar rnrRefusals: how often it was refused for want of a receive.
    @ivar absences: how often it was refused for want of a queue pair.
    @ivar answered: whether the response has come.
    @ivar completionOpcode: the L{WCOpcode} of its completion.
    """

    __slots__ = (
        "absences",
        "answered",
        "begun",
        "flags",
        "id",
        "length",
        "position",
        "records",
        "rnrRefusals",
        "status",
    )

    asks = isLast = False
    completionOpcode: WCOpcode

    def __init__(self, id: int | None, flags: int, length: int) -> None:
        self.id = id
        self.flags = flags
        self.length = length
        self.status = WCStatus.SUCCESS
        self.rnrRefusals = self.absences = self.records = 0
        self.rewind()

    @property
    def started(self) -> bool:
        """
        Whether it was ever sent, including if it waits to be repeated.
        """
        # SQD completes what was started and starts nothing new (IBTA vol. 1 10.3.1): a request
        # that drew an RNR NAK counts as started although none of its records is in the medium now.
        return self.begun or self.rnrRefusals > 0 or self.absences > 0

    def rewind(self) -> None:
        """
        Reset it, to be sent anew.
        """
        self.position = 0
        self.begun = self.answered = False

    def abandon(self, work: WorkQueues) -> None:
        """
        Release what it holds; called if it fails, is flushed or is forgotten.
        """

    def publish(self, path: Any, remote: int, pd: ProtectionDomain) -> bool:
        """
        Publish the records that are not published yet.

        @param path: the path to the peer.
        @param remote: the peer's queue pair number.
        @param pd: the protection domain of the queue pair.

        @return: False if the medium has no room for one.
        @raise MemoryAccessError: a right on local memory is missing.
        """
        raise NotImplementedError


class MessageOperation(Operation):
    """
    A SEND or an RDMA WRITE.

    @ivar inline: the payload if the request carries it; else it is in memory.
    @ivar sent: how many bytes are in the medium.
    """

    __slots__ = ("completionOpcode", "inline", "request", "sent")

    def __init__(self, request: SendRequest) -> None:
        self.request = request
        self.inline: Any = request.inline
        self.completionOpcode = _CODES[request.opcode][4]
        length = total(request.pieces) if request.inline is None else len(request.inline)
        super().__init__(request.id, int(request.flags), length)

    def rewind(self) -> None:
        """
        See L{Operation.rewind}.
        """
        super().rewind()
        self.sent = 0

    def publish(self, path: Any, remote: int, pd: ProtectionDomain) -> bool:
        """
        See L{Operation.publish}.
        """
        length = self.length
        while True:
            start = self.sent
            reference, count, payload = self._payload(path, pd, start)
            ends = start + count == length
            opcode, header = self._header(ends)
            # Bit 0x40 is free for this: on a wire it marks reliable datagrams, which nobody
            # implements.
            if reference:
                opcode |= REFERENCE
            if not path.post(opcode << 24 | remote, header, payload, reference or count):
                return False
            # State changes only after a record went: a call that found no room is repeated from
            # the same byte.
            self.begun = True
            self.records += 1
            self.sent = start + count
            self.position = path.position()
            if ends:
                return True

    def _payload(self, path: Any, pd: ProtectionDomain, start: int) -> tuple[int, int, Any]:
        # Returns the size of a reference or 0, the bytes the record stands for, and what to put
        # into it.
        left, inline = self.length - start, self.inline
        if inline is not None:
            if left == self.length <= limits.INLINE_MESSAGE:
                return 0, left, inline
            count = min(left, limits.INLINE_MESSAGE)
            return 0, count, memoryview(inline)[start : start + count]
        pieces = self.request.pieces
        reference, count = refer(path, pd, pieces, start, left, LOCAL_READ)
        if reference:
            return len(reference), count, reference
        # Rights are checked per record (IBTA vol. 1 10.6): the program may deregister the region
        # while a long message waits for room.
        found = locate(pd, pieces, start, count, LOCAL_READ)
        return 0, count, found[0] if len(found) == 1 else found

    def _header(self, ends: bool) -> tuple[int, bytes]:
        request = self.request
        only, first, middle, last, _ = _CODES[request.opcode]
        header = b""
        if self.begun:
            opcode = last if ends else middle
        else:
            opcode = only if ends else first
            if request.opcode in _WRITES:
                # IBTA vol. 1 9.2.1: the RETH is in the First or Only packet alone; it
                # has the length of the whole message.
                header = RETH.pack(request.remoteAddress, request.remoteKey, self.length)
        if ends:
            if request.opcode in _WITH_IMMEDIATE:
                header += IMMEDIATE.pack(request.immediate)
            elif request.opcode == SendOpcode.SEND_WITH_INV:
                header = INVALIDATE.pack(request.invalidateKey)
            # The event is for the receive's completion, so only the record that ends the message
            # has the bit.
            if self.flags & _SOLICITED_FLAG:
                opcode |= SOLICITED
        return opcode, header


class Inline(MessageOperation):
    """
    A SEND of bytes that has no request, and no completion unless it has a wr_id.

    @ivar immediate: 32 bits for the peer, or L{None}.
    """

    __slots__ = ("immediate",)

    def __init__(
        self, payload: Any, length: int, immediate: int | None, id: int | None, solicited: bool = False
    ) -> None:
        """
        @param payload: bytes-like, or a list of bytes-like objects.
        @param length: bytes in C{payload}.
        @param solicited: whether the peer's completion is solicited.
        """
        # Records are slices of the payload: a list that needs several is joined once, not searched
        # per record.
        if length > limits.INLINE_MESSAGE and payload.__class__ is list:
            payload = b"".join(payload)
        self.inline = payload
        self.immediate = immediate
        self.completionOpcode = WCOpcode.SEND
        flags = 0 if id is None else _SIGNALED_FLAG
        Operation.__init__(self, id, flags | _SOLICITED_FLAG if solicited else flags, length)

    def _header(self, ends: bool) -> tuple[int, bytes]:
        if not ends:
            return SEND_MIDDLE if self.begun else SEND_FIRST, b""
        solicited = SOLICITED if self.flags & _SOLICITED_FLAG else 0
        if self.immediate is None:
            return (SEND_LAST if self.begun else SEND_ONLY) | solicited, b""
        return (
            (SEND_LAST_IMMEDIATE if self.begun else SEND_ONLY_IMMEDIATE) | solicited,
            IMMEDIATE.pack(self.immediate),
        )


class RespondedOperation(Operation):
    """
    A request that completes when its response has come.
    """

    __slots__ = ("request",)

    asks = True
    request: SendRequest

    def _ask(self, path: Any, word: int, header: bytes) -> bool:
        if not path.post(word, header, b"", 0):
            return False
        self.begun = True
        self.records += 1
        self.position = path.position()
        return True

    def _place(self, pd: ProtectionDomain, start: int, source: memoryview) -> WCStatus:
        try:
            target = locate(pd, self.request.pieces, start, len(source), LOCAL_WRITE)
        except MemoryAccessError:
            # The program's own list became invalid; the response is thrown away and the request
            # fails, as in Linux rxe_comp.c do_read().
            return WCStatus.LOC_PROT_ERR
        scatter(target, source)
        return WCStatus.SUCCESS

    def take(
        self, path: Any, pd: ProtectionDomain, opcode: int, buffer: Any, start: int, stop: int
    ) -> WCStatus:
        """
        Receive a part of the response.

        @return: C{SUCCESS}, or the status that the request ends with now.
        """
        raise NotImplementedError


class Read(RespondedOperation):
    """
    An RDMA READ.

    @ivar received: how many bytes have come.
    """

    __slots__ = ("received",)

    completionOpcode = WCOpcode.RDMA_READ

    def __init__(self, request: SendRequest) -> None:
        self.request = request
        super().__init__(request.id, int(request.flags), total(request.pieces))

    def rewind(self) -> None:
        """
        See L{Operation.rewind}.
        """
        super().rewind()
        self.received = 0

    def publish(self, path: Any, remote: int, pd: ProtectionDomain) -> bool:
        """
        See L{Operation.publish}.
        """
        request = self.request
        # For the error only: a list that cannot be written fails before the peer is asked, with
        # LOC_PROT_ERR.
        locate(pd, request.pieces, 0, self.length, LOCAL_WRITE)
        header = RETH.pack(request.remoteAddress, request.remoteKey, self.length)
        return self._ask(path, READ_REQUEST << 24 | remote, header)

    def take(
        self, path: Any, pd: ProtectionDomain, opcode: int, buffer: Any, start: int, stop: int
    ) -> WCStatus:
        """
        See L{RespondedOperation.take}.
        """
        shape = ANSWERS.get(opcode & OPERATION_MASK)
        source = payload(path, opcode, buffer, start, stop)
        if shape is None or source is None:
            return WCStatus.BAD_RESP_ERR
        first, last = shape
        end = self.received + len(source)
        # First, Middle, Last or Only must fit what is still missing, as in Linux rxe_comp.c
        # check_ack().  A peer must not write more bytes than it was asked for.
        if first is not (not self.received) or last is not (end == self.length) or end > self.length:
            return WCStatus.BAD_RESP_ERR
        status = self._place(pd, self.received, source)
        if status is WCStatus.SUCCESS:
            self.received = end
            self.answered = last
        return status


class Atomic(RespondedOperation):
    """
    A compare-and-swap or a fetch-and-add; its result is the old value.
    """

    __slots__ = ("completionOpcode",)

    def __init__(self, request: SendRequest) -> None:
        self.request = request
        swaps = request.opcode == SendOpcode.ATOMIC_CMP_AND_SWP
        self.completionOpcode = WCOpcode.COMP_SWAP if swaps else WCOpcode.FETCH_ADD
        super().__init__(request.id, int(request.flags), ATOMIC_BYTES)

    def publish(self, path: Any, remote: int, pd: ProtectionDomain) -> bool:
        """
        See L{Operation.publish}.
        """
        request = self.request
        locate(pd, request.pieces, 0, ATOMIC_BYTES, LOCAL_WRITE)
        if self.completionOpcode is WCOpcode.COMP_SWAP:
            opcode, new, compare = COMPARE_SWAP, request.swap, request.compare
        else:
            # Verbs have the addend in compare_add, the AtomicETH in swap-or-add, with compare 0:
            # see Linux rxe_req.c, init_req_packet().
            opcode, new, compare = FETCH_ADD, request.compare, 0
        header = ATOMIC.pack(request.remoteAddress, request.remoteKey, new, compare)
        return self._ask(path, opcode << 24 | remote, header)

    def take(
        self, path: Any, pd: ProtectionDomain, opcode: int, buffer: Any, start: int, stop: int
    ) -> WCStatus:
        """
        See L{RespondedOperation.take}.
        """
        if opcode != ATOMIC_ACKNOWLEDGE or stop - start != ATOMIC_RESULT.size:
            return WCStatus.BAD_RESP_ERR
        (value,) = ATOMIC_RESULT.unpack_from(buffer, start)
        status = self._place(pd, 0, memoryview(ATOMIC_VALUE.pack(value)))
        self.answered = status is WCStatus.SUCCESS
        return status


def refer(
    path: Any,
    pd: ProtectionDomain,
    pieces: Any,
    start: int,
    left: int,
    access: int,
    queuePair: object = None,
) -> tuple[bytes, int]:
    """
    Refer to the bytes of the next record, if the peer can map the memory they lie in.

    @param start: the first byte, counted in the message.
    @param left: bytes of the message from there on.
    @param access: the right that is needed.
    @param queuePair: the queue pair whose peer reads, if one does.

    @return: the packed reference, or nothing if the record must carry the bytes; and how many bytes the
        record stands for.

    @raise MemoryAccessError: the right is missing.
    """
    if left >= PULL_LEAST:
        piece, offset = find(pieces, start)
        count = min(piece.length - offset, left, limits.PULL_MOST)
        # Only a region's own key becomes a reference.  A peer can read all of a region that it has
        # mapped, as long as it likes; a memory window opens its own bytes only, and only until it
        # is invalidated (IBTA vol. 1 10.6.7.2), so what is read through a window travels in the
        # records.
        region = pd.memory.regions.get(piece.key)
        if region is not None and region.segment is not None and count >= PULL_LEAST:
            _, offset = pd.memory.check(piece.key, piece.address + offset, count, access, pd, queuePair)
            number = path.offer(region.segment)
            # 0 if too many segments are shared already or the peer cannot map: then the bytes are
            # copied.
            if number:
                return headers.REFERENCE.pack(number, count, offset), count
    return b"", min(left, limits.INLINE_MESSAGE)


#: Operations that involve the peer, by opcode.
OPERATIONS: dict[SendOpcode, Callable[[SendRequest], Operation]] = {
    SendOpcode.SEND: MessageOperation,
    SendOpcode.SEND_WITH_IMM: MessageOperation,
    SendOpcode.SEND_WITH_INV: MessageOperation,
    SendOpcode.RDMA_WRITE: MessageOperation,
    SendOpcode.RDMA_WRITE_WITH_IMM: MessageOperation,
    SendOpcode.RDMA_READ: Read,
    SendOpcode.ATOMIC_CMP_AND_SWP: Atomic,
    SendOpcode.ATOMIC_FETCH_AND_ADD: Atomic,
}
