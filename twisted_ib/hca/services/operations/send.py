"""
SEND: alone, with immediate data, and with a key to invalidate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from twisted_ib import limits
from twisted_ib.compilation import mypyc_attr
from twisted_ib.errors import MemoryAccessError
from twisted_ib.hca.base.operation import SOLICITED
from twisted_ib.hca.base.states import QPType
from twisted_ib.hca.memory.access import LOCAL_READ, LOCAL_WRITE
from twisted_ib.hca.memory.domains import ProtectionDomain
from twisted_ib.hca.queues.completion import CompletionQueue, WCOpcode, WCStatus, WorkCompletion
from twisted_ib.hca.queues.reassembly import Reassembly
from twisted_ib.hca.queues.receives import ReceiveRequest, Receives
from twisted_ib.hca.queues.requests import SendFlags, SendOpcode
from twisted_ib.hca.queues.scatter import AT_ONCE, locate, scatter, store
from twisted_ib.hca.services.operations.message import IncomingMessage, MessageOperation
from twisted_ib.hca.services.operations.operation import RELIABLE, Refused, WorkContext
from twisted_ib.hca.wire.headers import (
    IMMEDIATE,
    INVALIDATE,
    NAK_INVALID_REQUEST,
    NAK_REMOTE_OPERATIONAL,
    RNR,
)
from twisted_ib.hca.wire.opcodes import (
    SEND_FIRST,
    SEND_LAST,
    SEND_LAST_IMMEDIATE,
    SEND_MIDDLE,
    SEND_ONLY,
    SEND_ONLY_IMMEDIATE,
    SEND_ONLY_INVALIDATE,
)

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import IPath
    from twisted_ib.hca.base.interfaces.roles import WorkedQueuePair
    from twisted_ib.structs import Packed


_SIGNALED_FLAG: Final = int(SendFlags.SIGNALED)
_SUCCESS: Final = WCStatus.SUCCESS
_RECV: Final = WCOpcode.RECV
_ONLY: Final = SEND_ONLY << 24
_SOLICITED_FLAG: Final = int(SendFlags.SOLICITED)


class IncomingSend(IncomingMessage):
    """
    A SEND of the peer: for the consumer if that has receives posted, else into a receive.

    @ivar parts: the reassembly for the consumer; or L{None}.
    @ivar room: bytes that it may have.
    """

    __slots__ = ("parts", "room")

    def __init__(self, work: WorkContext, receives: Receives, buffer: Any, start: int, stop: int) -> None:
        queuePair = work.queuePair
        self.done = 0
        self.parts: Reassembly | None = None
        self.receive = None
        if queuePair.posted:
            queuePair.posted -= 1
            self.parts = Reassembly(queuePair)
            self.room: int = work.promisedBytes()
        else:
            self.receive = receive = receives.take()
            if receive is None:
                raise Refused(RNR | work.attributes.minRNRTimer)
            room = 0
            for piece in receive.pieces:
                room += piece.length
            self.room = room

    @staticmethod
    def takeWhole(work: WorkContext, receives: Receives, buffer: Any, start: int, stop: int) -> bool:
        """
        Receive a message of one record into the first element of a receive, as nearly all that are small:
        the constructor, L{place} and L{finish} in one call.

        @param receives: where it takes its receive from; the consumer has posted none.
        @return: False if it is another, or cannot be received so; nothing has changed then.
        """
        count = stop - start
        receive = receives.take() if 0 < count <= AT_ONCE else None
        if receive is None:
            return False
        pieces = receive.pieces
        if pieces and count <= (piece := pieces[0]).length:
            pd = work.pd if work.shared is None else work.shared.pd
            try:
                view, offset = pd.memory.check(piece.key, piece.address, count, LOCAL_WRITE, pd)
            except MemoryAccessError:
                receives.putBack(receive)
                return False
            view[offset : offset + count] = buffer[start:stop]
            done = WorkCompletion(receive.id, _SUCCESS, _RECV, work.queuePair.number, count)
            if not work.receiveCompletions.push(done):
                work.completionLost()
            return True
        receives.putBack(receive)
        return False

    @staticmethod
    def takeSeveral(work: WorkContext, receives: Receives, buffer: Any, spans: list[tuple[int, int]]) -> int:
        """
        Receive messages as L{takeWhole} does, for which there are receives of the queue pair's own, and room
        for the completions.

        @param spans: where each begins and ends.
        @return: how many of the first were received.
        """
        completions, requests = work.receiveCompletions, receives.oldest(len(spans))
        # A consumer may take its completions itself.
        if not isinstance(completions, CompletionQueue) or not completions.takes(len(requests)):
            return 0
        number, pd = work.queuePair.number, work.pd
        view: Any = None
        base = low = high = key = 0
        done: list[WorkCompletion] = []
        for request, (start, stop) in zip(requests, spans, strict=False):
            pieces = request.pieces
            count = stop - start
            if not pieces or not 0 < count <= pieces[0].length:
                break
            piece = pieces[0]
            first = piece.address
            if first < low or first + count > high or piece.key != key:
                key = piece.key
                try:
                    view, base, low, high = pd.memory.near(key, first, count, LOCAL_WRITE, pd)
                except MemoryAccessError:
                    break
            first -= base
            view[first : first + count] = buffer[start:stop]
            done.append(WorkCompletion(request.id, _SUCCESS, _RECV, number, count))
        receives.drop(len(done))
        completions.completions.extend(done)
        return len(done)

    def place(self, work: WorkContext, source: bytes | memoryview, ends: bool) -> None:
        count, done, parts = len(source), self.done, self.parts
        if done + count > self.room:
            raise Refused(
                NAK_INVALID_REQUEST,
                WCStatus.LOC_LEN_ERR,
                f"sent a message of more than {self.room} bytes",
            )
        if parts is not None:
            parts.add(source)
            if parts.dropped:
                # The device's memory for incomplete messages is used up, and this one had most
                # of it.
                raise Refused(NAK_REMOTE_OPERATIONAL)
        else:
            assert self.receive is not None
            pieces = self.receive.pieces
            # Receives of a shared queue are in its protection domain (IBTA vol. 1 10.2.9).
            pd = work.pd if work.shared is None else work.shared.pd
            try:
                if len(pieces) == 1 and count:
                    # Nearly all receives: what locate() and scatter() would do.
                    [piece] = pieces
                    view, offset = pd.memory.check(piece.key, piece.address + done, count, LOCAL_WRITE, pd)
                    if count <= AT_ONCE:
                        view[offset : offset + count] = source
                    else:
                        store(view, offset, source, piece.address + done + count)
                else:
                    scatter(locate(pd, pieces, done, count, LOCAL_WRITE), source)
            except MemoryAccessError:
                # The receive's own list is at fault: the peer gets 0x63, as with Linux rxe_resp.c's
                # RESPST_ERR_MALFORMED_WQE, the program LOC_PROT_ERR (IBTA vol. 1 11.6.2).
                raise Refused(NAK_REMOTE_OPERATIONAL, WCStatus.LOC_PROT_ERR) from None
        self.done = done + count

    def hand(
        self, queuePair: WorkedQueuePair, extra: Packed[Any] | None, value: int, solicited: bool
    ) -> None:
        data = b"" if self.parts is None else self.parts.take()
        if extra is IMMEDIATE:
            queuePair.consumer.immediateReceived(value, data, 0, len(data))
        elif solicited and queuePair.gathers:
            queuePair.consumer.severalReceived(data, 0, len(data))
        else:
            queuePair.consumer.received(data, 0, len(data))

    def putBack(self, work: WorkContext, receives: Receives) -> None:
        receive = self.drop()
        if receive is not None:
            receives.putBack(receive)
        else:
            work.queuePair.posted += 1

    def drop(self) -> ReceiveRequest | None:
        if self.parts is not None:
            self.parts.drop()
        return self.receive


@mypyc_attr(allow_interpreted_subclasses=True)
class Send(MessageOperation):
    """
    A SEND.
    """

    __slots__ = ()

    opcode: ClassVar[SendOpcode] = SendOpcode.SEND
    completionOpcode: ClassVar[WCOpcode] = WCOpcode.SEND
    only: ClassVar[int] = SEND_ONLY
    isHeaded: ClassVar[bool] = False
    incoming: ClassVar[type[IncomingMessage]] = IncomingSend


class SendImmediate(Send):
    """
    A SEND with immediate data.
    """

    __slots__ = ()

    opcode: ClassVar[SendOpcode] = SendOpcode.SEND_WITH_IMM
    only: ClassVar[int] = SEND_ONLY_IMMEDIATE
    ending: ClassVar[Packed[Any] | None] = IMMEDIATE
    ended: ClassVar[str] = "immediate"
    isHeaded: ClassVar[bool] = True


class SendInvalidate(Send):
    """
    A SEND that invalidates a key of the peer.
    """

    __slots__ = ()

    # IBTA vol. 1 9.2.1: UC has no opcode for it.
    services: ClassVar[frozenset[QPType]] = RELIABLE
    opcode: ClassVar[SendOpcode] = SendOpcode.SEND_WITH_INV
    only: ClassVar[int] = SEND_ONLY_INVALIDATE
    ending: ClassVar[Packed[Any] | None] = INVALIDATE
    ended: ClassVar[str] = "invalidateKey"
    isHeaded: ClassVar[bool] = True


class PostedSend(Send):
    """
    A SEND of one record that has no request: from one piece of memory or of inline data, not solicited.

    @ivar address: of the memory.
    @ivar key: its local key.
    """

    __slots__ = ("address", "key")

    def __init__(
        self, id: int, flags: int, address: int, length: int, key: int, inline: bytes | bytearray | None
    ) -> None:
        # In line as in MessageOperation.
        self.id = id
        self.flags = flags
        self.address = address
        self.length = length
        self.key = key
        self.inline = inline
        self.status = _SUCCESS
        self.rnrRefusals = self.absences = self.records = self.position = self.sent = 0
        self.begun = self.answered = False

    def publish(self, path: IPath, remote: int, pd: ProtectionDomain) -> bool:
        length, payload = self.length, self.inline
        if payload is None:
            view, offset = pd.memory.check(self.key, self.address, length, LOCAL_READ, pd)
            payload = view[offset : offset + length]
        if not path.post(_ONLY | remote, b"", payload, length):
            return False
        self.begun = True
        self.records += 1
        self.sent = length
        self.position = path.position()
        return True


class Inline(Send):
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
        flags = 0 if id is None else _SIGNALED_FLAG
        # In line as in MessageOperation.
        self.id = id
        self.flags = flags | _SOLICITED_FLAG if solicited else flags
        self.length = length
        self.status = _SUCCESS
        self.rnrRefusals = self.absences = self.records = self.position = self.sent = 0
        self.begun = self.answered = False

    def publish(self, path: IPath, remote: int, pd: ProtectionDomain) -> bool:
        length = self.length
        if length > limits.INLINE_MESSAGE or self.flags & _SOLICITED_FLAG or self.immediate is not None:
            return self._publishParts(path, remote, pd)
        # One record without a header: nearly all messages.
        if not path.post(_ONLY | remote, b"", self.inline, length):
            return False
        self.begun = True
        self.records += 1
        self.sent = length
        self.position = path.position()
        return True

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
