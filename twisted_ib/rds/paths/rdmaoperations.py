"""
RDMA and atomics between sockets of RDS: what is registered, and what is asked for.

A I{cookie} names memory to a peer: 64 bits, the key below, the offset of the first byte above.  Who
has it reads and writes what it names, with an operation that goes before a message on the same queue
pair, so that the memory is as it should be when the message comes.

Source: Linux 6.1 C{net/rds/rdma.c}, C{include/uapi/linux/rds.h}.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred

from twisted_ib import limits
from twisted_ib.errors import MemoryAccessError, MemoryRegionError, RDSOperationError
from twisted_ib.hca.memory.memory import (
    LOCAL_READ,
    LOCAL_WRITE,
    REMOTE_ATOMIC,
    REMOTE_READ,
    REMOTE_WRITE,
    MemoryRegion,
)
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.requests import ATOMIC_BYTES, SGE, SendFlags, SendOpcode, SendRequest
from twisted_ib.rds.protocol.machine import RDSMessage
from twisted_ib.rds.protocol.wire import NO_EXTENSIONS, Extension, packExtensions

if TYPE_CHECKING:
    from collections.abc import Sequence

_32_BITS = 1 << 32
_64_BITS = 1 << 64
_KEY = Struct(">I")
_KEY_AND_OFFSET = Struct(">II")

#: What a peer may do with memory: to read it only, or everything.
READABLE = REMOTE_READ
WRITABLE = LOCAL_WRITE | REMOTE_READ | REMOTE_WRITE | REMOTE_ATOMIC


class RDMAStatus(IntEnum):
    """
    How an operation ended; the names are C{RDS_RDMA_} and these.
    """

    SUCCESS = 0
    #: The peer gives no such access to its memory.
    REMOTE_ERROR = 1
    #: The socket was closed, or C{cancel} called.
    CANCELED = 2
    #: The connection was lost: nobody knows whether it was done.
    DROPPED = 3
    OTHER_ERROR = 4


_STATUS = {
    WCStatus.SUCCESS: RDMAStatus.SUCCESS,
    WCStatus.WR_FLUSH_ERR: RDMAStatus.DROPPED,
    WCStatus.RETRY_EXC_ERR: RDMAStatus.DROPPED,
    WCStatus.REM_ACCESS_ERR: RDMAStatus.REMOTE_ERROR,
    WCStatus.REM_INV_REQ_ERR: RDMAStatus.REMOTE_ERROR,
    WCStatus.REM_OP_ERR: RDMAStatus.REMOTE_ERROR,
}


def makeCookie(key: int, offset: int = 0) -> int:
    """
    @param key: of registered memory, 32 bits.
    @param offset: of its first byte, 32 bits.
    @return: its cookie.
    """
    return key | offset << 32


def splitCookie(cookie: int) -> tuple[int, int]:
    """
    @return: key and offset of a cookie.
    @raise ValueError: it is none.
    """
    if not isinstance(cookie, int) or not 0 <= cookie < _64_BITS:
        raise ValueError(f"{cookie!r} is no cookie of 64 bits")
    return cookie % _32_BITS, cookie >> 32


def cookieExtensions(cookie: int) -> bytes:
    """
    @return: the extension headers of a message that brings a cookie.
    @raise ValueError: it is none.
    """
    return packExtensions((Extension.RDMA_DEST, _KEY_AND_OFFSET.pack(*splitCookie(cookie))))


def cookieOf(value: bytes | None) -> int | None:
    """
    @param value: of an extension C{RDMA_DEST}, or L{None}.
    @return: the cookie.
    """
    return None if value is None else makeCookie(*_KEY_AND_OFFSET.unpack(value))


class RDSMemory:
    """
    Memory that is registered with a socket.

    @ivar view: the bytes.
    @ivar length: how many there are.
    @ivar cookie: what a peer needs to use them.
    @ivar key: the key in it.
    @ivar useOnce: whether the first message behind an operation on it frees it.
    @ivar region: what is registered; L{None} once it is free.
    """

    __slots__ = ("_domain", "cookie", "key", "length", "region", "useOnce", "view")

    def __init__(self, domain: Domain, buffer: Any, access: int, useOnce: bool) -> None:
        """
        Register it.

        @raise MemoryRegionError: it cannot be.
        @raise ResourceLimitError: there is too much.
        """
        self._domain = domain
        self.region: MemoryRegion | None
        # Named from 0: a cookie has no more than 32 bits for that.
        self.region = region = domain.memory.register(buffer, access, domain.pd, 0)
        self.view = region.view
        self.length = region.length
        self.useOnce = useOnce
        self.key = region.key
        self.cookie = makeCookie(region.key)

    def free(self) -> None:
        """
        Take the rights back, at once; harmless when repeated.
        """
        region, self.region = self.region, None
        if region is not None:
            self._domain.deregister(region)

    def piece(self, offset: int, length: int) -> SGE:
        """
        Name a part of it.

        @raise MemoryAccessError: it has no such bytes, or is free.
        """
        region = self.region
        if region is None:
            raise MemoryAccessError("this memory was freed")
        if offset < 0 or length < 0 or offset + length > self.length:
            raise MemoryAccessError(f"memory of {self.length} bytes has no {length} bytes at {offset}")
        return SGE(region.address + offset, length, region.localKey)


class Domain:
    """
    The memory of all sockets of one process on one device: one protection domain for all queue pairs,
    as any path may lead to who has a cookie.

    @ivar device: the device.
    @ivar memory: its memory.
    @ivar pd: the protection domain.
    @ivar isOpen: whether something was registered, or asked for.
    """

    def __init__(self, device: Any) -> None:
        """
        @raise ResourceLimitError: there are too many.
        """
        self.device = device
        self.memory = device.memory
        self.pd = device.memory.allocateDomain()
        self.isOpen = False

    def deregister(self, region: MemoryRegion) -> None:
        """
        Take rights back.
        """
        if not self.device.closed:
            self.memory.deregister(region)

    def close(self) -> None:
        """
        No queue pair uses it any more.
        """
        if not self.device.closed:
            self.memory.deallocateDomain(self.pd)


def nothing(buffer: Any) -> None:
    """
    There is no result but that it is done.
    """


def integer(buffer: Any) -> int:
    """
    @return: The 64 bits that came.
    """
    return int.from_bytes(buffer, sys.byteorder)


class OperationMessage(RDSMessage):
    """
    An operation, and the message behind it, if there is one.

    @ivar silent: whether there is none.
    @ivar opcode: a L{SendOpcode}.
    @ivar key: of the peer's memory.
    @ivar address: of the first byte there.
    @ivar length: how many bytes.
    @ivar compare: see L{SendRequest}.
    @ivar swap: likewise.
    @ivar fence: whether it waits for READs and atomics before it.
    @ivar done: fires when the operation was done.
    """

    __slots__ = (
        "_buffer",
        "_ended",
        "_offset",
        "_result",
        "_scratch",
        "address",
        "compare",
        "done",
        "fence",
        "key",
        "length",
        "opcode",
        "silent",
        "swap",
    )

    def __init__(
        self,
        ports: tuple[int, int],
        owner: Any,
        payload: bytes | None,
        opcode: SendOpcode,
        cookie: int,
        offset: int,
        buffer: Any,
        length: int,
        result: Callable[[Any], Any] = nothing,
        bufferOffset: int = 0,
        compare: int = 0,
        swap: int = 0,
        fence: bool = False,
    ) -> None:
        """
        @param ports: ours and the peer's.
        @param payload: of the message, L{None} if there is none.
        @param cookie: of the peer's memory.
        @param offset: of the first byte in it.
        @param buffer: what is written, or where to: bytes, a bytearray, or L{RDSMemory}.
        @param length: how many bytes.
        @param result: makes of the buffer what the Deferred fires with.
        @param bufferOffset: of the first byte in L{RDSMemory}.
        @raise ValueError: a number does not fit.
        @raise MemoryAccessError: the memory here has no such bytes.
        """
        key, base = splitCookie(cookie)
        if not isinstance(offset, int) or not 0 <= base + offset < _64_BITS - limits.MESSAGE_BYTES:
            raise ValueError(f"{offset!r} is no offset into memory")
        if not 0 <= length <= limits.RDS_OPERATION:
            raise ValueError(f"an operation has at most {limits.RDS_OPERATION} bytes, not {length}")
        isAtomic = opcode not in (SendOpcode.RDMA_WRITE, SendOpcode.RDMA_READ)
        extensions = NO_EXTENSIONS if isAtomic else packExtensions((Extension.RDMA, _KEY.pack(key)))
        super().__init__(ports[0], ports[1], payload or b"", owner, extensions, once=True)
        self.silent = payload is None
        self.opcode = opcode
        self.key = key
        self.address = base + offset
        self.length = length
        self.compare = compare
        self.swap = swap
        self.fence = fence
        self._buffer = buffer
        self._offset = bufferOffset
        self._result = result
        self._scratch: MemoryRegion | None = None
        self._ended = False
        if isinstance(buffer, RDSMemory):
            buffer.piece(bufferOffset, length)
        self.done: Deferred[Any] = Deferred()

    def request(self, number: int, domain: Domain) -> SendRequest:
        """
        Make the work request.

        @param number: its number.
        @raise HCAError: its memory cannot be used.
        """
        return SendRequest(
            number,
            self.opcode,
            self._pieces(domain),
            flags=int(SendFlags.SIGNALED | SendFlags.FENCE) if self.fence else int(SendFlags.SIGNALED),
            remoteAddress=self.address,
            remoteKey=self.key,
            compare=self.compare,
            swap=self.swap,
        )

    def _pieces(self, domain: Domain) -> Sequence[SGE]:
        """
        Name the memory here; what is only there for this is registered.
        """
        if not self.length:
            return ()
        buffer = self._buffer
        if isinstance(buffer, RDSMemory):
            return (buffer.piece(self._offset, self.length),)
        access = 0 if self.opcode is SendOpcode.RDMA_WRITE else LOCAL_WRITE
        self._scratch = region = domain.memory.register(buffer, access, domain.pd)
        return (SGE(region.address, self.length, region.localKey),)

    def withdraw(self, domain: Domain) -> None:
        """
        The queue pair is done with it.
        """
        scratch, self._scratch = self._scratch, None
        if scratch is not None:
            domain.deregister(scratch)

    def completed(self, status: int) -> None:
        """
        It ended; tell.

        @param status: of the completion.
        """
        self.ended(_STATUS.get(WCStatus(status), RDMAStatus.OTHER_ERROR))

    def ended(self, status: RDMAStatus) -> None:
        """
        It ended; tell, if nobody has told it before.
        """
        if self._ended:
            return
        self._ended = True
        self.owner.operationEnded()
        if status is RDMAStatus.SUCCESS:
            buffer = self._buffer
            self.done.callback(None if isinstance(buffer, RDSMemory) else self._result(buffer))
        else:
            self.done.errback(RDSOperationError(int(status), f"RDS_RDMA_{status.name}", self.opcode.name))

    # -- within a process

    def execute(self, domain: Domain) -> None:
        """
        Do it to the memory of this very process.
        """
        try:
            self._execute(domain)
        except (MemoryAccessError, MemoryRegionError):
            self.ended(RDMAStatus.REMOTE_ERROR)
        else:
            self.ended(RDMAStatus.SUCCESS)

    def _execute(self, domain: Domain) -> None:
        """
        Do it.

        @raise MemoryAccessError: there is no such memory.
        """
        length, check = self.length, domain.memory.check
        if not length:
            return
        local: Any = self._buffer
        isWrite, isRead = self.opcode is SendOpcode.RDMA_WRITE, self.opcode is SendOpcode.RDMA_READ
        if isinstance(local, RDSMemory):
            piece = local.piece(self._offset, length)
            view, start = check(
                piece.key, piece.address, length, LOCAL_READ if isWrite else LOCAL_WRITE, domain.pd
            )
            local = view[start : start + length]
        access = REMOTE_WRITE if isWrite else REMOTE_READ if isRead else REMOTE_ATOMIC
        view, start = check(self.key, self.address, length, access, domain.pd)
        end = start + length
        if isWrite:
            view[start:end] = local
            return
        local[:] = view[start:end]
        if isRead:
            return
        if self.address % ATOMIC_BYTES:
            raise MemoryAccessError("an atomic operation needs an aligned address")
        before = integer(local)
        if self.opcode is SendOpcode.ATOMIC_FETCH_AND_ADD:
            after = (before + self.compare) % _64_BITS
        else:
            after = self.swap if before == self.compare else before
        view[start:end] = after.to_bytes(ATOMIC_BYTES, sys.byteorder)
