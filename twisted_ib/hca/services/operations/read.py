"""
RDMA READ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted_ib.hca.base.operation import ANSWERS, OPERATION_MASK, REFERENCE
from twisted_ib.hca.memory.access import LOCAL_WRITE, REMOTE_READ
from twisted_ib.hca.memory.domains import ProtectionDomain
from twisted_ib.hca.queues.completion import WCOpcode, WCStatus
from twisted_ib.hca.queues.receives import SGE
from twisted_ib.hca.queues.requests import SendOpcode, SendRequest
from twisted_ib.hca.queues.scatter import locate, payload, total
from twisted_ib.hca.services.operations.message import refer
from twisted_ib.hca.services.operations.operation import (
    Refused,
    RespondedOperation,
    Response,
    WorkContext,
    checkRemote,
)
from twisted_ib.hca.wire.headers import NAK_INVALID_REQUEST, RETH
from twisted_ib.hca.wire.opcodes import (
    READ_REQUEST,
    READ_RESPONSE_FIRST,
    READ_RESPONSE_LAST,
    READ_RESPONSE_MIDDLE,
    READ_RESPONSE_ONLY,
)

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import IPath


class ReadResponse(Response):
    """
    The response to one READ.

    @ivar source: the memory to read, as a list of one element.
    @ivar length: bytes requested.
    @ivar sent: bytes that are in the medium.
    """

    __slots__ = ("length", "sent", "source")

    access = REMOTE_READ

    def __init__(self, work: WorkContext, code: int, buffer: Any, start: int, stop: int) -> None:
        if stop - start != RETH.size:
            raise Refused(NAK_INVALID_REQUEST)
        address, key, length = RETH.unpack_from(buffer, start)
        checkRemote(work, address, key, length, REMOTE_READ)
        self.source = (SGE(address, length, key),)
        self.length = length
        self.sent = 0
        self.done = False

    def publish(self, work: WorkContext, path: IPath, remote: int) -> bool:
        # Checked again per record, and not only when the request came: a region that is
        # deregistered during a long READ must not leak what its memory holds next.  Linux
        # rxe_resp.c read_reply() looks the rkey up again, too (rxe_recheck_mr()).
        sent, asker = self.sent, work.queuePair
        reference, count = refer(path, work.pd, self.source, sent, self.length - sent, REMOTE_READ, asker)
        body: Any = reference or locate(work.pd, self.source, sent, count, REMOTE_READ, asker)
        ends = sent + count == self.length
        if sent:
            opcode = READ_RESPONSE_LAST if ends else READ_RESPONSE_MIDDLE
        else:
            opcode = READ_RESPONSE_ONLY if ends else READ_RESPONSE_FIRST
        if reference:
            opcode |= REFERENCE
        if not path.post(opcode << 24 | remote, b"", body, len(reference) or count):
            return False
        # Only now does it count as sent: a record that found no room is made anew later, with the
        # rights of then.
        work.recordsSent += 1
        self.sent = sent + count
        self.done = ends
        return True


class Read(RespondedOperation):
    """
    An RDMA READ.

    @ivar received: how many bytes have come.
    """

    __slots__ = ("received",)

    opcode = SendOpcode.RDMA_READ
    completionOpcode = WCOpcode.RDMA_READ
    code = READ_REQUEST
    response = ReadResponse

    def __init__(self, request: SendRequest) -> None:
        self.request = request
        super().__init__(request.id, int(request.flags), total(request.pieces))

    def rewind(self) -> None:
        super().rewind()
        self.received = 0

    def publish(self, path: IPath, remote: int, pd: ProtectionDomain) -> bool:
        request = self.request
        # For the error only: a list that cannot be written fails before the peer is asked, with
        # LOC_PROT_ERR.
        locate(pd, request.pieces, 0, self.length, LOCAL_WRITE)
        header = RETH.pack(request.remoteAddress, request.remoteKey, self.length)
        return self._ask(path, remote, header)

    def take(
        self, path: IPath, pd: ProtectionDomain, opcode: int, buffer: Any, start: int, stop: int
    ) -> WCStatus:
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
