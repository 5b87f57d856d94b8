"""
RDMA and atomic operations between RDS sockets: registered memory and the operations on it.

A I{cookie} names memory to a peer: 64 bits, the rkey in the lower half, the offset of the first byte in
the upper one.  Its holder can read and write that memory by an operation that precedes a message on the
same queue pair; so the memory is complete when the message arrives.

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
from twisted_ib.hca.memory.access import LOCAL_READ, LOCAL_WRITE, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE
from twisted_ib.hca.memory.memory import MemoryRegion
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.receives import SGE
from twisted_ib.hca.queues.requests import ATOMIC_BYTES, SendFlags, SendOpcode, SendRequest
from twisted_ib.rds.protocol.machine import RDSMessage
from twisted_ib.rds.protocol.wire import NO_EXTENSIONS, Extension, packExtensions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twisted_ib.hca.device.device import Device
    from twisted_ib.structs import Packed

_32_BITS = 1 << 32
_64_BITS = 1 << 64
_KEY: Packed[tuple[int]] = Struct(">I")
_KEY_AND_OFFSET: Packed[tuple[int, int]] = Struct(">II")

#: The access rights that a peer gets: reading only, or everything.  Remote write and atomic access require
#: local write access (ibv_reg_mr(3)).
READABLE = REMOTE_READ
WRITABLE = LOCAL_WRITE | REMOTE_READ | REMOTE_WRITE | REMOTE_ATOMIC


class RDMAStatus(IntEnum):
    """
    The status of an operation (C{RDS_RDMA_*} in Linux C{uapi/linux/rds.h}).
    """

    SUCCESS = 0
    #: The peer's memory permits no such access (remote access error, IBTA vol. 1 9.7.5.2).
    REMOTE_ERROR = 1
    #: The socket was closed, or C{cancel} was called.
    CANCELED = 2
    #: The connection was lost; the operation may have been executed.
    DROPPED = 3
    OTHER_ERROR = 4


# Linux ib_send.c (rds_ib_send_complete) maps SUCCESS and REM_ACCESS_ERR only; all others are OTHER_ERROR
# there.  Here a lost connection is DROPPED, as it is for messages that are not retransmitted
# (rds_send_xmit).
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
    @param key: the rkey of registered memory, 32 bits.
    @param offset: of its first byte, 32 bits.
    @return: the cookie (C{rds_rdma_make_cookie} in Linux C{net/rds/rds.h}).
    """
    return key | offset << 32


def splitCookie(cookie: int) -> tuple[int, int]:
    """
    @return: rkey and offset of a cookie.
    @raise ValueError: it is not a cookie.
    """
    if not isinstance(cookie, int) or not 0 <= cookie < _64_BITS:
        raise ValueError(f"{cookie!r} is no cookie of 64 bits")
    return cookie % _32_BITS, cookie >> 32


def cookieExtensions(cookie: int) -> bytes:
    """
    @return: the extension headers that carry a cookie to the receiver (RDMA_DEST).
    @raise ValueError: it is not a cookie.
    """
    return packExtensions((Extension.RDMA_DEST, _KEY_AND_OFFSET.pack(*splitCookie(cookie))))


def cookieOf(value: bytes | None) -> int | None:
    """
    @param value: of an RDMA_DEST extension header, or L{None}.
    @return: the cookie.
    """
    return None if value is None else makeCookie(*_KEY_AND_OFFSET.unpack(value))


class RDSMemory:
    """
    Memory registered with a socket.

    @ivar view: the bytes.
    @ivar length: how many there are.
    @ivar cookie: gives a peer access.
    @ivar key: the rkey in the cookie.
    @ivar useOnce: whether the first message after an operation on it frees it (RDS_RDMA_USE_ONCE).
    @ivar region: the memory region; L{None} when freed.
    """

    __slots__ = ("_domain", "cookie", "key", "length", "region", "useOnce", "view")

    def __init__(self, domain: DeviceMemory, buffer: Any, access: int, useOnce: bool) -> None:
        """
        @raise MemoryRegionError: the buffer cannot be registered.
        @raise ResourceLimitError: too much memory is registered.
        """
        self._domain = domain
        self.region: MemoryRegion | None
        # A region with base address 0: a cookie has 32 bits of offset only, too few for an address.  Linux
        # rdma.c passes the offset in the first page instead.
        self.region = region = domain.memory.register(buffer, access, domain.pd, 0)
        self.view = region.view
        self.length = region.length
        self.useOnce = useOnce
        self.key = region.key
        self.cookie = makeCookie(region.key)

    def free(self) -> None:
        """
        Deregister the memory at once; may be repeated.
        """
        region, self.region = self.region, None
        if region is not None:
            self._domain.deregister(region)

    def piece(self, offset: int, length: int) -> SGE:
        """
        @return: a scatter/gather element of a part of the memory.
        @raise MemoryAccessError: it has no such bytes, or is freed.
        """
        region = self.region
        if region is None:
            raise MemoryAccessError("this memory was freed")
        if offset < 0 or length < 0 or offset + length > self.length:
            raise MemoryAccessError(f"memory of {self.length} bytes has no {length} bytes at {offset}")
        return SGE(region.address + offset, length, region.localKey)


class DeviceMemory:
    """
    The memory of all sockets of one process on one device.

    One protection domain serves all queue pairs (as Linux C{ib_cm.c} uses the device's), as the holder of
    a cookie may use any path.

    @ivar device: the device.
    @ivar memory: its memory table.
    @ivar pd: the protection domain.
    """

    def __init__(self, device: Device) -> None:
        """
        @raise ResourceLimitError: there are too many protection domains.
        """
        self.device = device
        self.memory = device.memory
        self.pd = device.memory.allocateDomain()

    def deregister(self, region: MemoryRegion) -> None:
        """
        Deregister a region.
        """
        if not self.device.closed:
            self.memory.deregister(region)

    def close(self) -> None:
        """
        Deallocate the protection domain, which no queue pair uses any more.
        """
        if not self.device.closed:
            self.memory.deallocateDomain(self.pd)


def nothing(buffer: Any) -> None:
    """
    The result of an operation that returns no data.
    """


def integer(buffer: Any) -> int:
    """
    @return: the 64 bits in the host's byte order.
    """
    return int.from_bytes(buffer, sys.byteorder)


class OperationMessage(RDSMessage):
    """
    An RDMA or atomic operation, and the message that follows it, if any.

    @ivar silent: whether no message follows.
    @ivar opcode: a L{SendOpcode}.
    @ivar key: the rkey of the peer's memory.
    @ivar address: of the first byte in it.
    @ivar length: how many bytes.
    @ivar compare: see L{SendRequest}.
    @ivar swap: see L{SendRequest}.
    @ivar fence: whether it waits for earlier READs and atomics (IBTA vol. 1 10.8.3.3).
    @ivar done: a Deferred that fires when the operation has completed.
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
        @param ports: the sender's and the receiver's.
        @param payload: of the message; L{None} if none follows.
        @param cookie: of the peer's memory.
        @param offset: of the first byte in it.
        @param buffer: the data, or the memory for it: bytes, a bytearray, or L{RDSMemory}.
        @param length: how many bytes.
        @param result: converts the buffer to the result of the Deferred.
        @param bufferOffset: of the first byte in L{RDSMemory}.
        @raise ValueError: a number is out of range.
        @raise MemoryAccessError: the local memory has no such bytes.
        """
        key, base = splitCookie(cookie)
        if not isinstance(offset, int) or not 0 <= base + offset < _64_BITS - limits.MESSAGE_BYTES:
            raise ValueError(f"{offset!r} is no offset into memory")
        if not 0 <= length <= limits.RDS_OPERATION:
            raise ValueError(f"an operation has at most {limits.RDS_OPERATION} bytes, not {length}")
        isAtomic = opcode not in (SendOpcode.RDMA_WRITE, SendOpcode.RDMA_READ)
        # Linux ib_send.c (rds_ib_xmit): extension RDMA follows READ and WRITE only, so an atomic never
        # frees use-once memory.
        extensions = NO_EXTENSIONS if isAtomic else packExtensions((Extension.RDMA, _KEY.pack(key)))
        # once: Linux send.c never retransmits a message with an RDMA operation.
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
            # Checked now, to fail in the caller's turn.
            buffer.piece(bufferOffset, length)
        self.done: Deferred[Any] = Deferred()

    def request(self, number: int, domain: DeviceMemory, isSignaled: bool = True) -> SendRequest:
        """
        Make the work request.

        @param number: the work request id.
        @param isSignaled: whether its completion is the operation's result.
        @raise HCAError: the local memory cannot be used.
        """
        return SendRequest(
            number,
            self.opcode,
            self._pieces(domain),
            flags=int(SendFlags.SIGNALED) * isSignaled | int(SendFlags.FENCE) * self.fence,
            remoteAddress=self.address,
            remoteKey=self.key,
            compare=self.compare,
            swap=self.swap,
        )

    def _pieces(self, domain: DeviceMemory) -> Sequence[SGE]:
        if not self.length:
            return ()
        buffer = self._buffer
        if isinstance(buffer, RDSMemory):
            return (buffer.piece(self._offset, self.length),)
        # Registered for this operation only.  The data of a WRITE is only read, which needs no right.
        access = 0 if self.opcode is SendOpcode.RDMA_WRITE else LOCAL_WRITE
        self._scratch = region = domain.memory.register(buffer, access, domain.pd)
        return (SGE(region.address, self.length, region.localKey),)

    def withdraw(self, domain: DeviceMemory) -> None:
        """
        The queue pair has finished with the operation: deregister its temporary memory.
        """
        scratch, self._scratch = self._scratch, None
        if scratch is not None:
            domain.deregister(scratch)

    def completed(self, status: int) -> None:
        """
        Report the result.

        @param status: of the completion.
        """
        self.ended(_STATUS.get(WCStatus(status), RDMAStatus.OTHER_ERROR))

    def ended(self, status: RDMAStatus) -> None:
        """
        Report the result, unless one was reported before.
        """
        # A cancelled operation may still complete on the queue pair.
        if self._ended:
            return
        self._ended = True
        # Before the Deferred: its callbacks may start another operation.
        self.owner.operationEnded()
        if status is RDMAStatus.SUCCESS:
            buffer = self._buffer
            self.done.callback(None if isinstance(buffer, RDSMemory) else self._result(buffer))
        else:
            self.done.errback(RDSOperationError(int(status), f"RDS_RDMA_{status.name}", self.opcode.name))

    # -- loopback

    def execute(self, domain: DeviceMemory) -> None:
        """
        Execute the operation on memory of this process, for the loopback path.
        """
        try:
            self._execute(domain)
        except (MemoryAccessError, MemoryRegionError):
            self.ended(RDMAStatus.REMOTE_ERROR)
        else:
            self.ended(RDMAStatus.SUCCESS)

    def _execute(self, domain: DeviceMemory) -> None:
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
        # The same check as for a peer: a cookie gives a socket of this process no more rights.
        view, start = check(self.key, self.address, length, access, domain.pd)
        end = start + length
        if isWrite:
            view[start:end] = local
            return
        local[:] = view[start:end]
        if isRead:
            return
        # IBTA vol. 1 9.4.5: the address of an atomic is naturally aligned.
        if self.address % ATOMIC_BYTES:
            raise MemoryAccessError("an atomic operation needs an aligned address")
        before = integer(local)
        if self.opcode is SendOpcode.ATOMIC_FETCH_AND_ADD:
            after = (before + self.compare) % _64_BITS
        else:
            after = self.swap if before == self.compare else before
        view[start:end] = after.to_bytes(ATOMIC_BYTES, sys.byteorder)
