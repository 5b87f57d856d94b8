"""
Atomics: compare-and-swap and fetch-and-add (IBTA vol. 1 9.4.5), and ATOMIC WRITE: 8 bytes that a reader of
the memory sees all or none of (IBTA vol. 1 release 1.5).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted_ib.errors import QueuePairError
from twisted_ib.hca.memory.access import LOCAL_READ, LOCAL_WRITE, REMOTE_ATOMIC, REMOTE_WRITE
from twisted_ib.hca.memory.domains import ProtectionDomain
from twisted_ib.hca.queues.completion import WCOpcode, WCStatus
from twisted_ib.hca.queues.requests import ATOMIC_BYTES, SendOpcode, SendRequest
from twisted_ib.hca.queues.scatter import locate, total
from twisted_ib.hca.services.operations.operation import (
    Refused,
    RespondedOperation,
    Response,
    WorkContext,
    checkRemote,
)
from twisted_ib.hca.wire.headers import ATOMIC, ATOMIC_RESULT, ATOMIC_VALUE, NAK_INVALID_REQUEST, RETH
from twisted_ib.hca.wire.opcodes import (
    ATOMIC_ACKNOWLEDGE,
    ATOMIC_WRITE,
    COMPARE_SWAP,
    FETCH_ADD,
    READ_RESPONSE_ONLY,
)

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import IPath

_64_BITS = (1 << 64) - 1


class AtomicResponse(Response):
    """
    The response to one atomic.

    @ivar compare: the value that a compare-and-swap expects; L{None} for a fetch-and-add.
    @ivar operand: the value to store, or to add.
    """

    __slots__ = ("_answer", "address", "compare", "key", "operand")

    access = REMOTE_ATOMIC

    def __init__(self, work: WorkContext, code: int, buffer: Any, start: int, stop: int) -> None:
        if stop - start != ATOMIC.size:
            raise Refused(NAK_INVALID_REQUEST)
        self.address, self.key, self.operand, compare = ATOMIC.unpack_from(buffer, start)
        checkRemote(work, self.address, self.key, ATOMIC_BYTES, REMOTE_ATOMIC)
        # Key before alignment, as in Linux rxe_resp.c: a misaligned address without a right is an
        # access error.
        if self.address % ATOMIC_BYTES:
            raise Refused(NAK_INVALID_REQUEST)
        self.compare: int | None = compare if code == COMPARE_SWAP else None
        self.done = False
        self._answer = b""

    def execute(self, work: WorkContext) -> None:
        # An atomic must never execute twice (IBTA vol. 1 9.4.5): the result also marks that it was
        # done, while it waits for room or for READs before it.
        if not self._answer:
            self._answer = ATOMIC_RESULT.pack(self._execute(work))

    def publish(self, work: WorkContext, path: IPath, remote: int) -> bool:
        self.execute(work)
        if not path.post(ATOMIC_ACKNOWLEDGE << 24 | remote, b"", self._answer, ATOMIC_RESULT.size):
            return False
        work.recordsSent += 1
        self.done = True
        return True

    def _execute(self, work: WorkContext) -> int:
        view, offset = work.pd.memory.check(
            self.key, self.address, ATOMIC_BYTES, REMOTE_ATOMIC, work.pd, work.queuePair
        )
        # Values are in host byte order in memory and big-endian on the wire, as in Linux rxe_mr.c.
        # No lock: one reactor thread executes the atomics of a device, so they are atomic among
        # its queue pairs only.
        old: int = ATOMIC_VALUE.unpack_from(view, offset)[0]
        if self.compare is None:
            new = old + self.operand & _64_BITS
        else:
            new = self.operand if old == self.compare else old
        ATOMIC_VALUE.pack_into(view, offset, new)
        return old


class Atomic(RespondedOperation):
    """
    An atomic operation; its result is the old value.
    """

    __slots__ = ()

    response = AtomicResponse
    # IBTA vol. 1 9.4.5: the old value, 64 bits.
    result = ATOMIC_BYTES

    def __init__(self, request: SendRequest) -> None:
        self.request = request
        super().__init__(request.id, int(request.flags), ATOMIC_BYTES)

    def publish(self, path: IPath, remote: int, pd: ProtectionDomain) -> bool:
        request = self.request
        locate(pd, request.pieces, 0, ATOMIC_BYTES, LOCAL_WRITE)
        header = ATOMIC.pack(request.remoteAddress, request.remoteKey, *self.operands())
        return self._ask(path, remote, header)

    def operands(self) -> tuple[int, int]:
        """
        @return: the Swap (or Add) Data of the AtomicETH, and its Compare Data.
        """
        raise NotImplementedError

    def take(
        self, path: IPath, pd: ProtectionDomain, opcode: int, buffer: Any, start: int, stop: int
    ) -> WCStatus:
        if opcode != ATOMIC_ACKNOWLEDGE or stop - start != ATOMIC_RESULT.size:
            return WCStatus.BAD_RESP_ERR
        (value,) = ATOMIC_RESULT.unpack_from(buffer, start)
        status = self._place(pd, 0, memoryview(ATOMIC_VALUE.pack(value)))
        self.answered = status is WCStatus.SUCCESS
        return status


class CompareSwap(Atomic):
    """
    A compare-and-swap.
    """

    __slots__ = ()

    opcode = SendOpcode.ATOMIC_CMP_AND_SWP
    completionOpcode = WCOpcode.COMP_SWAP
    code = COMPARE_SWAP

    def operands(self) -> tuple[int, int]:
        return self.request.swap, self.request.compare


class FetchAdd(Atomic):
    """
    A fetch-and-add.
    """

    __slots__ = ()

    opcode = SendOpcode.ATOMIC_FETCH_AND_ADD
    completionOpcode = WCOpcode.FETCH_ADD
    code = FETCH_ADD

    def operands(self) -> tuple[int, int]:
        # Verbs have the addend in compare_add, the AtomicETH in swap-or-add, with compare 0: see Linux
        # rxe_req.c, init_req_packet().
        return self.request.compare, 0


class AtomicWriteResponse(Response):
    """
    The response to one ATOMIC WRITE.

    @ivar value: the bytes to write.
    """

    __slots__ = ("_isExecuted", "address", "key", "value")

    # Not REMOTE_ATOMIC: Linux rxe_resp.c check_qp_attr_access(), check_rkey().
    access = REMOTE_WRITE

    def __init__(self, work: WorkContext, code: int, buffer: Any, start: int, stop: int) -> None:
        if stop - start != RETH.size + ATOMIC_BYTES:
            raise Refused(NAK_INVALID_REQUEST)
        address, key, length = RETH.unpack_from(buffer, start)
        # Key before length and alignment, as for atomics.
        checkRemote(work, address, key, length, REMOTE_WRITE)
        if length != ATOMIC_BYTES or address % ATOMIC_BYTES:
            raise Refused(NAK_INVALID_REQUEST)
        self.address = address
        self.key = key
        self.value = bytes(buffer[start + RETH.size : stop])
        self.done = self._isExecuted = False

    def execute(self, work: WorkContext) -> None:
        # Once: a repeat could overwrite what someone else has written since.
        if not self._isExecuted:
            view, offset = work.pd.memory.check(
                self.key, self.address, ATOMIC_BYTES, REMOTE_WRITE, work.pd, work.queuePair
            )
            view[offset : offset + ATOMIC_BYTES] = self.value
            self._isExecuted = True

    def publish(self, work: WorkContext, path: IPath, remote: int) -> bool:
        self.execute(work)
        if not path.post(READ_RESPONSE_ONLY << 24 | remote, b"", b"", 0):
            return False
        work.recordsSent += 1
        self.done = True
        return True


class AtomicWrite(RespondedOperation):
    """
    An ATOMIC WRITE; its 8 bytes are inline, whatever the queue pair's limit, or in memory.
    """

    __slots__ = ()

    opcode = SendOpcode.ATOMIC_WRITE
    completionOpcode = WCOpcode.ATOMIC_WRITE
    #: IB_UVERBS_DEVICE_ATOMIC_WRITE (Linux ib_user_verbs.h).
    capability = 1 << 40
    carriesData = True
    code = ATOMIC_WRITE
    response = AtomicWriteResponse

    def __init__(self, request: SendRequest) -> None:
        self.request = request
        super().__init__(request.id, int(request.flags), ATOMIC_BYTES)

    @classmethod
    def check(cls, request: SendRequest, inline: int) -> None:
        length = total(request.pieces) if request.inline is None else len(request.inline)
        if length != ATOMIC_BYTES:
            raise QueuePairError(f"an ATOMIC WRITE has {ATOMIC_BYTES} bytes, not {length}")

    def publish(self, path: IPath, remote: int, pd: ProtectionDomain) -> bool:
        request = self.request
        value = request.inline
        if value is None:
            value = b"".join(locate(pd, request.pieces, 0, ATOMIC_BYTES, LOCAL_READ))
        header = RETH.pack(request.remoteAddress, request.remoteKey, ATOMIC_BYTES)
        return self._ask(path, remote, header, value)

    def take(
        self, path: IPath, pd: ProtectionDomain, opcode: int, buffer: Any, start: int, stop: int
    ) -> WCStatus:
        # A READ response of no bytes (Linux rxe_resp.c send_read_response_ack()).
        if opcode != READ_RESPONSE_ONLY or start != stop:
            return WCStatus.BAD_RESP_ERR
        self.answered = True
        return WCStatus.SUCCESS
