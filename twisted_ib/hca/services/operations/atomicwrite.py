"""
ATOMIC WRITE: 8 bytes that a reader of the memory sees all or none of (IBTA vol. 1 release 1.5).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted_ib.errors import QueuePairError
from twisted_ib.hca.memory.access import LOCAL_READ, REMOTE_WRITE
from twisted_ib.hca.memory.regions import ProtectionDomain
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
from twisted_ib.hca.wire.headers import NAK_INVALID_REQUEST, RETH
from twisted_ib.hca.wire.opcodes import ATOMIC_WRITE, READ_RESPONSE_ONLY

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import IPath


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
