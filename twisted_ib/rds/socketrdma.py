"""
RDMA, atomics and cookies of an RDS socket: see C{IRDSMemoryTransport} in L{twisted_ib.interfaces}.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred

from twisted_ib import limits
from twisted_ib.errors import (
    DatagramTooLongError,
    MemoryRegionError,
    PeerGoneError,
    RDSOperationError,
    RDSUnsupportedError,
    ResourceLimitError,
    SendBudgetError,
)
from twisted_ib.hca.queues.requests import ATOMIC_BYTES, SendOpcode
from twisted_ib.internet.addresses import checkInteger, toBytes
from twisted_ib.rds.paths.rdmaoperations import (
    READABLE,
    WRITABLE,
    DeviceMemory,
    OperationMessage,
    RDMAStatus,
    RDSMemory,
    cookieExtensions,
    cookieOf,
    integer,
)
from twisted_ib.rds.protocol.machine import RDSMessage
from twisted_ib.rds.protocol.wire import Extension, parseExtensions

if TYPE_CHECKING:
    from twisted_ib.rds.paths.network import Network

#: RDMA operations of one socket that may be outstanding.
RDS_OPERATIONS = 256
#: How often a masked atomic is retried when others change the value in between.
RDS_ATOMIC_ATTEMPTS = 64

_Address = tuple[str, int]
_64_BITS = 1 << 64
_ALL = _64_BITS - 1


def addMasked(value: int, add: int, mask: int) -> int:
    """
    Add the fields of two 64-bit values separately.

    @param mask: the highest bit of each field, from which nothing is carried on.
    @return: the sums.
    """
    result, start = 0, 0
    for end in range(64):
        if mask >> end & 1 or end == 63:
            field = (1 << end + 1) - (1 << start)
            result |= ((value & field) + (add & field)) & field
            start = end + 1
    return result


class SocketRDMA:
    """
    The RDMA side of a socket, a base of L{RDSPort<twisted_ib.rds.port.RDSPort>}.
    """

    # Attributes of the port.
    connected: bool
    addresses: list[str]
    maxPacketSize: int
    _realPort: int
    _closing: Any
    _default: _Address | None

    _memories: dict[int, RDSMemory] | None = None
    _operating = 0

    @property
    def network(self) -> Network:
        """
        See L{RDSPort<twisted_ib.rds.port.RDSPort>}.
        """
        raise NotImplementedError

    def place(self, path: Any, addr: _Address, message: RDSMessage) -> Deferred[None] | None:
        """
        See L{RDSPort<twisted_ib.rds.port.RDSPort>}.
        """
        raise NotImplementedError

    def _pathTo(self, addr: _Address) -> Any:
        raise NotImplementedError

    # -- memory

    def _domain(self) -> DeviceMemory:
        find = getattr(self.network.medium, "domain", None)
        if find is None:
            # Linux: tcp.c gives no get_mr, so the socket options of RDMA return EOPNOTSUPP.
            raise RDSUnsupportedError("RDS over TCP has no RDMA")
        if not self.connected or self._closing is not None:
            raise MemoryRegionError("the socket is closed")
        domain: DeviceMemory = find(self.addresses[0])
        return domain

    def registerMemory(self, sizeOrBuffer: Any, writable: bool = True, useOnce: bool = False) -> RDSMemory:
        """
        See L{IRDSMemoryTransport.registerMemory<twisted_ib.interfaces.IRDSMemoryTransport.registerMemory>}.
        """
        domain = self._domain()
        memories = self._memories
        if memories is None:
            memories = self._memories = {}
        if len(memories) >= limits.RDS_REGIONS:
            raise ResourceLimitError(f"a socket has at most {limits.RDS_REGIONS} regions of memory")
        buffer = sizeOrBuffer
        if isinstance(buffer, int):
            if not 0 < buffer <= limits.RDS_OPERATION:
                raise MemoryRegionError(f"memory has 1 to {limits.RDS_OPERATION} bytes, not {buffer}")
            buffer = bytearray(buffer)
        memory = RDSMemory(domain, buffer, WRITABLE if writable else READABLE, useOnce)
        memories[memory.key] = memory
        return memory

    def freeMemory(self, memoryOrCookie: RDSMemory | int, invalidate: bool = True) -> bool:
        """
        See L{IRDSMemoryTransport.freeMemory<twisted_ib.interfaces.IRDSMemoryTransport.freeMemory>}.
        """
        key = memoryOrCookie.key if isinstance(memoryOrCookie, RDSMemory) else memoryOrCookie % (1 << 32)
        memory = None if self._memories is None else self._memories.pop(key, None)
        if memory is None:
            return False
        memory.free()
        return True

    def _used(self, key: int) -> None:
        # Linux rdma.c (rds_rdma_unuse): the peer has finished with the key; only use-once memory is freed.
        memory = None if self._memories is None else self._memories.get(key)
        if memory is not None and memory.useOnce:
            self.freeMemory(memory)

    def freeAll(self) -> None:
        """
        Free all memory when the socket is closed (C{rds_rdma_drop_keys} in Linux C{rdma.c}).
        """
        memories, self._memories = self._memories, None
        for memory in (memories or {}).values():
            memory.free()

    # -- messages

    def writeWithCookie(
        self, datagram: bytes, cookie: int, addr: _Address | None = None
    ) -> Deferred[None] | None:
        """
        See L{IRDSMemoryTransport.writeWithCookie<twisted_ib.interfaces.IRDSMemoryTransport.writeWithCookie>}.
        """
        self._domain()
        data = self._checked(datagram)
        where = self._target(addr)
        message = RDSMessage(self._realPort, where[1], data, self, cookieExtensions(cookie))
        return self.place(self._pathTo(where), where, message)

    def _checked(self, datagram: Any) -> bytes:
        data: bytes = datagram if type(datagram) is bytes else toBytes(datagram)
        if len(data) > self.maxPacketSize:
            raise DatagramTooLongError(f"a datagram has at most {self.maxPacketSize} bytes, not {len(data)}")
        return data

    def _target(self, addr: _Address | None) -> _Address:
        found = self._default if addr is None else addr
        if found is None:
            raise ValueError("there is no destination")
        return found

    def extended(self, extensions: bytes) -> int | None:
        """
        Process the extension headers of a message.

        @return: the cookie that it carries, or L{None}.
        """
        found = parseExtensions(extensions)
        key = found.get(Extension.RDMA)
        if key is not None:
            self._used(int.from_bytes(key, "big"))
        return cookieOf(found.get(Extension.RDMA_DEST))

    # -- operations

    def rdmaWrite(
        self,
        cookie: int,
        data: Any,
        addr: _Address | None = None,
        offset: int = 0,
        datagram: bytes | None = b"",
        localOffset: int = 0,
        length: int | None = None,
        fence: bool = False,
    ) -> Deferred[None]:
        """
        See L{IRDSMemoryTransport.rdmaWrite<twisted_ib.interfaces.IRDSMemoryTransport.rdmaWrite>}.
        """
        if isinstance(data, RDSMemory):
            size = data.length - localOffset if length is None else checkInteger("length", length)
        else:
            data = memoryview(toBytes(data))[localOffset:]
            if length is not None:
                data = data[:length]
            size = len(data)
        return self._ask(
            addr,
            datagram,
            opcode=SendOpcode.RDMA_WRITE,
            cookie=cookie,
            offset=offset,
            buffer=data,
            length=size,
            bufferOffset=localOffset,
            fence=fence,
        )

    def rdmaRead(
        self,
        cookie: int,
        length: int,
        addr: _Address | None = None,
        offset: int = 0,
        datagram: bytes | None = b"",
        memory: RDSMemory | None = None,
        localOffset: int = 0,
        fence: bool = False,
    ) -> Deferred[Any]:
        """
        See L{IRDSMemoryTransport.rdmaRead<twisted_ib.interfaces.IRDSMemoryTransport.rdmaRead>}.
        """
        length = checkInteger("length", length)
        if not 0 <= length <= limits.RDS_OPERATION:
            raise ValueError(f"an operation has at most {limits.RDS_OPERATION} bytes, not {length}")
        return self._ask(
            addr,
            datagram,
            opcode=SendOpcode.RDMA_READ,
            cookie=cookie,
            offset=offset,
            buffer=bytearray(length) if memory is None else memory,
            length=length,
            result=bytes,
            bufferOffset=localOffset,
            fence=fence,
        )

    def fetchAdd(
        self,
        cookie: int,
        add: int,
        addr: _Address | None = None,
        offset: int = 0,
        datagram: bytes | None = b"",
        mask: int = 0,
    ) -> Deferred[int]:
        """
        See L{IRDSMemoryTransport.fetchAdd<twisted_ib.interfaces.IRDSMemoryTransport.fetchAdd>}.
        """
        add = checkInteger("what to add", add) % _64_BITS
        if checkInteger("mask", mask) % _64_BITS:
            return Deferred.fromCoroutine(
                self._masked(cookie, addr, offset, datagram, lambda old: addMasked(old, add, mask))
            )
        return self._atomic(SendOpcode.ATOMIC_FETCH_AND_ADD, cookie, addr, offset, datagram, add, 0)

    def compareAndSwap(
        self,
        cookie: int,
        compare: int,
        swap: int,
        addr: _Address | None = None,
        offset: int = 0,
        datagram: bytes | None = b"",
        compareMask: int = _ALL,
        swapMask: int = _ALL,
    ) -> Deferred[int]:
        """
        See L{IRDSMemoryTransport.compareAndSwap<twisted_ib.interfaces.IRDSMemoryTransport.compareAndSwap>}.
        """
        if compareMask == swapMask == _ALL:
            opcode = SendOpcode.ATOMIC_CMP_AND_SWP
            return self._atomic(opcode, cookie, addr, offset, datagram, compare, swap)

        def change(old: int) -> int:
            return old if (old ^ compare) & compareMask else old & ~swapMask | swap & swapMask

        return Deferred.fromCoroutine(self._masked(cookie, addr, offset, datagram, change))

    def _atomic(
        self,
        opcode: SendOpcode,
        cookie: int,
        addr: _Address | None,
        offset: int,
        datagram: bytes | None,
        compare: int,
        swap: int,
    ) -> Deferred[int]:
        for name, value in (("compare", compare), ("swap", swap)):
            if not 0 <= checkInteger(name, value) < _64_BITS:
                raise ValueError(f"{name} has 64 bits, not {value!r}")
        return self._ask(
            addr,
            datagram,
            opcode=opcode,
            cookie=cookie,
            offset=offset,
            buffer=bytearray(ATOMIC_BYTES),
            length=ATOMIC_BYTES,
            result=integer,
            compare=compare,
            swap=swap,
        )

    async def _masked(
        self, cookie: int, addr: _Address | None, offset: int, datagram: bytes | None, change: Any
    ) -> int:
        # FetchAdd and CmpSwap have no masks (IBTA vol. 1 9.4.5); Linux ib_send.c uses extended opcodes
        # (IB_WR_MASKED_ATOMIC_*).  Here: read, then swap unless the value has changed in between.
        where = self._target(addr)
        payload = None if datagram is None else self._checked(datagram)
        fetch, swap = SendOpcode.ATOMIC_FETCH_AND_ADD, SendOpcode.ATOMIC_CMP_AND_SWP
        # Adding 0 reads 64 bits atomically, which an RDMA READ does not promise.
        found = await self._atomic(fetch, cookie, where, offset, None, 0, 0)
        for _ in range(RDS_ATOMIC_ATTEMPTS):
            old, new = found, change(found)
            if new != old:
                found = await self._atomic(swap, cookie, where, offset, None, old, new)
            if found == old:
                # The message follows once, after the attempt that succeeded.
                if payload is not None:
                    self._send(where, RDSMessage(self._realPort, where[1], payload, self))
                return old
        status = RDMAStatus.OTHER_ERROR
        raise RDSOperationError(int(status), f"RDS_RDMA_{status.name}", "masked atomic")

    def _ask(self, addr: _Address | None, datagram: bytes | None, **fields: Any) -> Deferred[Any]:
        operations = self._domain().device.traits.operations
        if operations is not None and fields["opcode"] not in operations:
            raise RDSUnsupportedError(f"this device has no {fields['opcode'].name}")
        where = self._target(addr)
        payload = None if datagram is None else self._checked(datagram)
        if self._operating >= RDS_OPERATIONS:
            raise SendBudgetError(f"{self._operating} operations are on their way already")
        message = OperationMessage((self._realPort, where[1]), self, payload, **fields)
        # Counted before it is sent: it may complete during the call.
        self._operating += 1
        try:
            self._send(where, message)
        except BaseException:
            self._operating -= 1
            raise
        return message.done

    def _send(self, addr: _Address, message: RDSMessage) -> None:
        if not self.connected or self._closing is not None:
            raise PeerGoneError("the socket is closed")
        self.place(self._pathTo(addr), addr, message)

    def operationEnded(self) -> None:
        """
        An operation has completed.
        """
        self._operating -= 1

    def canceled(self, messages: list[RDSMessage]) -> None:
        """
        Messages were dropped: report their operations as cancelled.
        """
        for message in messages:
            if isinstance(message, OperationMessage):
                message.ended(RDMAStatus.CANCELED)
