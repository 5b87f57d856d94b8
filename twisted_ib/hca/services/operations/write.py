"""
RDMA WRITE: alone, and with immediate data.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any, ClassVar, Final

from twisted_ib import limits
from twisted_ib.errors import MemoryAccessError
from twisted_ib.hca.memory.access import LOCAL_READ, REMOTE_WRITE
from twisted_ib.hca.memory.domains import ProtectionDomain
from twisted_ib.hca.queues.completion import WCFlags, WCOpcode, WCStatus, WorkCompletion
from twisted_ib.hca.queues.receives import SGE, Receives
from twisted_ib.hca.queues.requests import SendOpcode
from twisted_ib.hca.queues.scatter import AT_ONCE, store
from twisted_ib.hca.services.operations.message import PULL_LEAST, IncomingMessage, MessageOperation
from twisted_ib.hca.services.operations.operation import (
    BY_RECORD,
    DONE,
    HELD,
    Operation,
    Placed,
    Refused,
    WorkContext,
    checkRemote,
)
from twisted_ib.hca.wire.headers import IMMEDIATE, NAK_INVALID_REQUEST, RETH
from twisted_ib.hca.wire.opcodes import WRITE_ONLY, WRITE_ONLY_IMMEDIATE

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import IPath
    from twisted_ib.hca.base.interfaces.roles import WorkedQueuePair
    from twisted_ib.structs import Packed

_SUCCESS: Final = WCStatus.SUCCESS
_ONLY: Final = WRITE_ONLY << 24
_ONLY_IMMEDIATE: Final = WRITE_ONLY_IMMEDIATE << 24
_RECV_WRITE: Final = WCOpcode.RECV_RDMA_WITH_IMM
_WITH_IMM: Final = int(WCFlags.WITH_IMM)
#: The headers of a WRITE of one record with immediate data: RETH, IMMEDIATE.
_HEADERS: Packed[tuple[int, int, int, int]] = Struct(">QIII")
_HEADER_BYTES: Final = _HEADERS.size


class IncomingWrite(IncomingMessage):
    """
    A WRITE of the peer; only one with immediate takes a receive, at its end.

    @ivar length: bytes of the whole message.
    """

    # The RETH's: Middle and Last packets do not repeat it (IBTA vol. 1 9.2.1).
    __slots__ = ("_first", "address", "key", "length")

    isWrite: ClassVar[bool] = True
    access: ClassVar[int] = REMOTE_WRITE
    header: ClassVar[int] = RETH.size

    def __init__(self, work: WorkContext, receives: Receives, buffer: Any, start: int, stop: int) -> None:
        if stop - start < RETH.size:
            raise Refused(NAK_INVALID_REQUEST)
        self.address, self.key, self.length = RETH.unpack_from(buffer, start)
        # The whole length is checked now, so that a WRITE without the right to all of it writes
        # nothing (IBTA vol. 1 9.7.4).
        self._first: tuple[memoryview, int] | None = checkRemote(
            work, self.address, self.key, self.length, REMOTE_WRITE
        )
        self.done = 0
        self.receive = None

    @staticmethod
    def takeWhole(work: WorkContext, receives: Receives, buffer: Any, start: int, stop: int) -> bool:
        """
        Place a message of one record with immediate data and bytes, as nearly all that have it: the
        constructor, L{place} and L{finish} in one call.

        @param receives: where it takes its receive from; the consumer has posted none.
        @return: False if it is another, or cannot be placed so; nothing has changed then.
        """
        first = start + _HEADER_BYTES
        count = stop - first
        if count <= 0 or not work.attributes.access & REMOTE_WRITE:
            return False
        address, key, length, value = _HEADERS.unpack_from(buffer, start)
        if length != count:
            return False
        pd, queuePair = work.pd, work.queuePair
        try:
            view, offset = pd.memory.check(key, address, count, REMOTE_WRITE, pd, queuePair)
        except MemoryAccessError:
            return False
        # Last: that may bring an event of a shared receive queue.
        receive = receives.take()
        if receive is None:
            return False
        if count <= AT_ONCE:
            view[offset : offset + count] = buffer[first:stop]
        else:
            store(view, offset, memoryview(buffer)[first:stop], address + count)
        done = WorkCompletion(receive.id, _SUCCESS, _RECV_WRITE, queuePair.number, count, _WITH_IMM, value)
        if not work.receiveCompletions.push(done):
            work.completionLost()
        return True

    def place(self, work: WorkContext, source: bytes | memoryview, ends: bool) -> None:
        count, done = len(source), self.done
        # Rights were checked for the RETH's length: no byte beyond it may be written, nor may the
        # message end early (Linux rxe_resp.c check_rkey(), resid).
        if done + count > self.length or ends is not (done + count == self.length):
            raise Refused(NAK_INVALID_REQUEST)
        # That of the first record, which is the one with the RETH, was just now.
        found, self._first = self._first, None
        if count:
            # Checked again per record: the region may be deregistered during a long WRITE.
            view, offset = found or checkRemote(work, self.address + done, self.key, count, REMOTE_WRITE)
            if count <= AT_ONCE:
                view[offset : offset + count] = source
            else:
                store(view, offset, source, self.address + done + count)
        self.done = done + count

    def hand(
        self, queuePair: WorkedQueuePair, extra: Packed[Any] | None, value: int, solicited: bool
    ) -> None:
        queuePair.posted -= 1
        queuePair.consumer.remoteMemoryWritten(value, self.length)


class PlacedWrite(IncomingWrite):
    """
    One that an adapter has placed.
    """

    __slots__ = ()

    def __init__(self, length: int) -> None:
        # There is no header to read.
        self.length = self.done = length
        self.address = self.key = 0
        self._first = None
        self.receive = None


class Write(MessageOperation):
    """
    An RDMA WRITE.
    """

    __slots__ = ()

    opcode: ClassVar[SendOpcode] = SendOpcode.RDMA_WRITE
    completionOpcode: ClassVar[WCOpcode] = WCOpcode.RDMA_WRITE
    only: ClassVar[int] = WRITE_ONLY
    incoming: ClassVar[type[IncomingMessage]] = IncomingWrite
    isWrite: ClassVar[bool] = True

    def place(self, path: IPath, remote: int, pd: ProtectionDomain, onTheWay: Sequence[Operation]) -> Placed:
        if not self.length or self.length > limits.PULL_MOST or self.needsRecords(pd):
            return BY_RECORD
        if not onTheWay:
            try:
                return DONE if self._copy(path, remote, pd) else BY_RECORD
            except MemoryAccessError:
                return BY_RECORD  # Which finds it, too.
        # The peer executes what it has of before later than this would be done.  If that is short WRITEs
        # only, this one waits for them, and all that follow: they are done sooner than records.
        if onTheWay[0].needsRecords(pd) or onTheWay[-1].needsRecords(pd):
            return BY_RECORD
        address, key = self._target()
        return HELD if path.writeDirectly(remote, key, address, None, 0, self.length) else BY_RECORD

    def needsRecords(self, pd: ProtectionDomain) -> bool:
        if not self.isWrite:
            return True
        if self.length < PULL_LEAST or self.inline is not None:
            return False
        # From memory that both have mapped the peer copies at memory's speed; the kernel, which looks up
        # each page, at a third of it.
        region = pd.memory.regions.get(self.request.pieces[0].key)
        return region is not None and region.segment is not None

    def _target(self) -> tuple[int, int]:
        # The peer's address and key.
        return self.request.remoteAddress, self.request.remoteKey

    def _copy(self, path: IPath, remote: int, pd: ProtectionDomain) -> bool:
        if self.inline is not None or len(self.request.pieces) != 1:
            return False
        return self._copied(path, remote, pd, self.request.pieces[0])

    def _copied(self, path: IPath, remote: int, pd: ProtectionDomain, piece: SGE) -> bool:
        memory, length = pd.memory, piece.length
        _, offset = memory.check(piece.key, piece.address, length, LOCAL_READ, pd)
        address, key = self._target()
        return path.writeDirectly(remote, key, address, memory.regions[piece.key], offset, length)


class PostedWrite(Write):
    """
    A WRITE of one record that has no request, as L{PostedSend
    <twisted_ib.hca.services.operations.send.PostedSend>}.

    @ivar address: of the memory.
    @ivar key: its local key.
    @ivar remoteAddress: of the peer's memory.
    @ivar remoteKey: its remote key.
    """

    __slots__ = ("address", "key", "remoteAddress", "remoteKey")

    def __init__(
        self,
        id: int,
        flags: int,
        address: int,
        length: int,
        key: int,
        inline: bytes | bytearray | None,
        remote: tuple[int, int],
    ) -> None:
        # In line as in MessageOperation.
        self.id = id
        self.flags = flags
        self.address = address
        self.length = length
        self.key = key
        self.inline = inline
        self.remoteAddress, self.remoteKey = remote
        self.status = _SUCCESS
        self.rnrRefusals = self.absences = self.records = self.position = self.sent = 0
        self.begun = self.answered = False

    def _target(self) -> tuple[int, int]:
        return self.remoteAddress, self.remoteKey

    def _copy(self, path: IPath, remote: int, pd: ProtectionDomain) -> bool:
        length, payload = self.length, self.inline
        if payload is None:
            return self._copied(path, remote, pd, SGE(self.address, length, self.key))
        return path.writeDirectly(remote, self.remoteKey, self.remoteAddress, payload, 0, length)

    def publish(self, path: IPath, remote: int, pd: ProtectionDomain) -> bool:
        length, payload = self.length, self.inline
        if payload is None:
            view, offset = pd.memory.check(self.key, self.address, length, LOCAL_READ, pd)
            payload = view[offset : offset + length]
        header = RETH.pack(self.remoteAddress, self.remoteKey, length)
        if not path.post(_ONLY | remote, header, payload, length):
            return False
        self.begun = True
        self.records += 1
        self.sent = length
        self.position = path.position()
        return True


class WriteImmediate(Write):
    """
    An RDMA WRITE with immediate data.
    """

    __slots__ = ()

    opcode: ClassVar[SendOpcode] = SendOpcode.RDMA_WRITE_WITH_IMM
    isWrite: ClassVar[bool] = False
    only: ClassVar[int] = WRITE_ONLY_IMMEDIATE
    ending: ClassVar[Packed[Any] | None] = IMMEDIATE
    ended: ClassVar[str] = "immediate"


class PostedWriteImmediate(PostedWrite):
    """
    A WRITE of one record with immediate data that has no request.

    @ivar immediate: 32 bits for the peer.
    """

    __slots__ = ("immediate",)

    isWrite: ClassVar[bool] = False

    def __init__(self, id: int, immediate: int, payload: Any, length: int, address: int, key: int) -> None:
        """
        @param payload: bytes-like; it must not change.
        @param address: of the peer's memory.
        @param key: its remote key.
        """
        # In line as in MessageOperation.
        self.id = id
        self.immediate = immediate
        self.flags = self.address = self.key = 0
        self.length = length
        self.inline = payload
        self.remoteAddress, self.remoteKey = address, key
        self.status = _SUCCESS
        self.rnrRefusals = self.absences = self.records = self.position = self.sent = 0
        self.begun = self.answered = False

    def publish(self, path: IPath, remote: int, pd: ProtectionDomain) -> bool:
        length = self.length
        header = _HEADERS.pack(self.remoteAddress, self.remoteKey, length, self.immediate)
        if not path.post(_ONLY_IMMEDIATE | remote, header, self.inline, length):
            return False
        self.begun = True
        self.records += 1
        self.sent = length
        self.position = path.position()
        return True
