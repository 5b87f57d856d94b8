"""
Messages: what SENDs and RDMA WRITEs have in common.

A message is split into records as long as the medium accepts, with the opcodes of the base transport
header: First, Middle, Last, or Only (IBTA vol. 1 9.2.1).  If the bytes lie in memory that the peer can
map, a record carries a reference instead: the peer's process copies them, once, and one record may stand
for more bytes than it could hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from twisted_ib import limits
from twisted_ib.compilation import mypyc_attr
from twisted_ib.hca.base.operation import REFERENCE, SOLICITED
from twisted_ib.hca.memory.access import LOCAL_READ
from twisted_ib.hca.memory.domains import ProtectionDomain
from twisted_ib.hca.queues.completion import WCFlags, WCOpcode, WCStatus, WorkCompletion
from twisted_ib.hca.queues.receives import ReceiveRequest, Receives
from twisted_ib.hca.queues.requests import SendFlags, SendRequest
from twisted_ib.hca.queues.scatter import find, locate
from twisted_ib.hca.services.operations.operation import Operation, WorkContext
from twisted_ib.hca.wire import headers
from twisted_ib.hca.wire.headers import INVALIDATE, RETH
from twisted_ib.hca.wire.opcodes import SEVERAL

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import IPath
    from twisted_ib.hca.base.interfaces.roles import WorkedQueuePair
    from twisted_ib.structs import Packed


#: Messages of at least this many bytes may be pulled from shared memory; shorter ones are copied.
PULL_LEAST = 16 * 1024

_SOLICITED_FLAG: Final = int(SendFlags.SOLICITED)
# Members of an enumeration are looked up once: that costs more than all else a message does with them.
_SUCCESS: Final = WCStatus.SUCCESS
_RECV: Final = WCOpcode.RECV
_RECV_WRITE: Final = WCOpcode.RECV_RDMA_WITH_IMM
_WITH_IMM: Final = int(WCFlags.WITH_IMM)
_WITH_INV: Final = int(WCFlags.WITH_INV)


@mypyc_attr(allow_interpreted_subclasses=True)
class IncomingMessage:
    """
    The responder's half: a message of the peer, from its first record to its last.

    @cvar isWrite: whether it is a WRITE; all records of a message are of one kind.
    @cvar access: the right that the queue pair must grant.
    @cvar header: bytes of the header that its first record has before any other.
    @ivar done: bytes that were placed.
    @ivar receive: the receive in use; or L{None}.
    """

    __slots__ = ("done", "receive")

    isWrite: ClassVar[bool] = False
    access: ClassVar[int] = 0
    header: ClassVar[int] = 0
    receive: ReceiveRequest | None

    def __init__(self, work: WorkContext, receives: Receives, buffer: Any, start: int, stop: int) -> None:
        """
        Begin one.

        @param receives: where it takes its receive from, if it takes one now.
        @raise Refused: there is no receive, or no right to all of the memory.
        """
        self.done = 0
        self.receive = None

    def place(self, work: WorkContext, source: bytes | memoryview, ends: bool) -> None:
        """
        Place a record's payload.

        @raise Refused: it does not fit, or the memory is gone.
        """
        raise NotImplementedError

    def finish(
        self, work: WorkContext, receives: Receives, extra: Packed[Any] | None, value: int, solicited: bool
    ) -> None:
        """
        Complete the receive, or notify the consumer.

        @param extra: the layout of the header that ended it, and C{value} what that has.
        """
        queuePair = work.queuePair
        receive = self.receive
        if self.isWrite and not queuePair.posted:
            # IBTA vol. 1 10.7.2.2, C10-87: a WRITE uses up a receive only if it has an immediate and is
            # done.
            receive = receives.take()
        if receive is None:
            self.hand(queuePair, extra, value, solicited)
            return
        flags = 0
        if extra is not None:
            flags = _WITH_INV if extra is INVALIDATE else _WITH_IMM
        completion = WorkCompletion(
            receive.id,
            _SUCCESS,
            _RECV_WRITE if self.isWrite else _RECV,
            queuePair.number,
            self.done,
            flags,
            value,
        )
        if not work.receiveCompletions.push(completion, solicited):
            work.completionLost()

    def hand(
        self, queuePair: WorkedQueuePair, extra: Packed[Any] | None, value: int, solicited: bool
    ) -> None:
        """
        Hand it to the consumer of a queue pair: the same parameters as of L{finish}.
        """
        raise NotImplementedError

    def putBack(self, work: WorkContext, receives: Receives) -> None:
        """
        It will come again from its beginning: give back what it took.
        """

    def drop(self) -> ReceiveRequest | None:
        """
        Forget it.

        @return: the receive in use, if there is one.
        """
        return None


@mypyc_attr(allow_interpreted_subclasses=True)
class MessageOperation(Operation):
    """
    A SEND or an RDMA WRITE.

    @cvar only: the opcode of a message of one record; those of several follow from it.
    @cvar isHeaded: whether one of its records has a header besides.
    @cvar ending: the layout of the header that ends it, if it has one.
    @cvar ended: the attribute of the request that goes there.
    @cvar incoming: the responder's half; a WRITE's names memory of the peer.
    @ivar inline: the payload if the request carries it; else it is in memory.
    @ivar sent: how many bytes are in the medium.
    """

    __slots__ = ("inline", "request", "sent")

    carriesData: ClassVar[bool] = True
    demands: ClassVar[bool] = False
    only: ClassVar[int]
    isHeaded: ClassVar[bool] = True
    ending: ClassVar[Packed[Any] | None] = None
    ended: ClassVar[str] = ""
    incoming: ClassVar[type[IncomingMessage]]

    def __init__(self, request: SendRequest) -> None:
        # Operation's constructor and rewind(), in line: there is one object of this for each message.
        self.request = request
        self.id: int | None = request.id
        flags = request.flags
        self.flags = flags if flags.__class__ is int else int(flags)
        self.inline: Any = request.inline
        length = 0
        if request.inline is not None:
            length = len(request.inline)
        else:
            for piece in request.pieces:
                length += piece.length
        self.length = length
        self.status = _SUCCESS
        self.rnrRefusals = self.absences = self.records = self.position = self.sent = 0
        self.begun = self.answered = False

    def rewind(self) -> None:
        super().rewind()
        self.sent = 0

    def publish(self, path: IPath, remote: int, pd: ProtectionDomain) -> bool:
        # One record from one place: nearly all requests.  Inline data is short.
        length = self.length
        payload = self.inline
        if payload is None:
            if length >= PULL_LEAST or length > limits.INLINE_MESSAGE or len(self.request.pieces) != 1:
                return self._publishParts(path, remote, pd)
            payload = b""
            if length:
                [piece] = self.request.pieces
                view, offset = pd.memory.check(piece.key, piece.address, length, LOCAL_READ, pd)
                payload = view[offset : offset + length]
        if self.isHeaded or self.flags & _SOLICITED_FLAG:
            opcode, header = self._header(True)
        else:
            opcode, header = self.only, b""
        if not path.post(opcode << 24 | remote, header, payload, length):
            return False
        self.begun = True
        self.records += 1
        self.sent = length
        self.position = path.position()
        return True

    def _publishParts(self, path: IPath, remote: int, pd: ProtectionDomain) -> bool:
        length = self.length
        while True:
            start = self.sent
            reference, count, payload = self._payload(path, pd, start)
            ends = start + count == length
            opcode, header = self._header(ends)
            if not ends and path.inSegments:
                opcode, header = self._announced(opcode, header)
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

    def _payload(self, path: IPath, pd: ProtectionDomain, start: int) -> tuple[int, int, Any]:
        # Returns the size of a reference or 0, the bytes the record stands for, and what to put
        # into it.
        left, inline = self.length - start, self.inline
        if inline is not None:
            if left == self.length <= limits.INLINE_MESSAGE:
                return 0, left, inline
            most: int = path.recordBytes
            count = min(left, limits.INLINE_MESSAGE, most)
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
        header = b""
        if self.begun:
            _, middle, last = SEVERAL[self.only]
            opcode = last if ends else middle
        else:
            opcode = self.only if ends else SEVERAL[self.only][0]
            if self.incoming.isWrite:
                # IBTA vol. 1 9.2.1: the RETH is in the First or Only packet alone; it
                # has the length of the whole message.
                header = RETH.pack(request.remoteAddress, request.remoteKey, self.length)
        if ends:
            if self.ending is not None:
                header += self.ending.pack(getattr(request, self.ended))
            # The event is for the receive's completion, so only the record that ends the message
            # has the bit.
            if self.flags & _SOLICITED_FLAG:
                opcode |= SOLICITED
        return opcode, header

    def _announced(self, opcode: int, header: bytes) -> tuple[int, bytes]:
        # RFC 5041 section 4.3: all segments of a message have the same RsvdULP, which has RDMAP's operation
        # (Send with Solicited Event, with Invalidate) and the key.
        if self.flags & _SOLICITED_FLAG:
            opcode |= SOLICITED
        if self.ending is not None:
            header += self.ending.pack(getattr(self.request, self.ended))
        return opcode, header


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
    most: int = path.recordBytes
    return b"", min(left, limits.INLINE_MESSAGE, most)
