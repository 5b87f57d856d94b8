"""
Extended queue pairs: requests are built by calls, and posted together.

Source: rdma-core 65, C{pyverbs/qp.pyx}; man page C{ibv_wr_post}.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

import attrs

from twisted_ib.errors import HCAError
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.queues.receives import SGE as Piece
from twisted_ib.hca.queues.requests import SendOpcode, SendRequest
from twisted_ib.verbs.core.hub import locked
from twisted_ib.verbs.pyverbs.base.base import PyverbsCM, checked, u32, u64
from twisted_ib.verbs.pyverbs.base.errors import PyverbsError, PyverbsRDMAError, PyverbsUserError
from twisted_ib.verbs.pyverbs.base.posting import gather, listed, pieces, windowBind
from twisted_ib.verbs.pyverbs.base.verb import check, failure, invalid, unsupported, verb
from twisted_ib.verbs.pyverbs.base.wr import SGE, DatagramTarget, MWBindInfo
from twisted_ib.verbs.pyverbs.enums.queues import (
    ibv_qp_create_send_ops_flags,
    ibv_qp_init_attr_mask,
    ibv_send_flags,
)
from twisted_ib.verbs.pyverbs.objects.ah import AH
from twisted_ib.verbs.pyverbs.objects.mr import MW
from twisted_ib.verbs.pyverbs.qp.qp import QP
from twisted_ib.verbs.pyverbs.qp.qpattr import QPAttr, QPInitAttr, QPInitAttrEx

_SEND_OPS = int(ibv_qp_init_attr_mask.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
_INLINE = int(ibv_send_flags.IBV_SEND_INLINE)
#: The bit of C{send_ops_flags} that each operation needs.
_OPS = {opcode: int(ibv_qp_create_send_ops_flags[f"IBV_QP_EX_WITH_{opcode.name}"]) for opcode in SendOpcode}


@attrs.define(eq=False)
class DataBuffer(PyverbsCM):
    """
    A piece of inline data (C{struct ibv_data_buf}).

    @ivar addr: an address of a region.
    @ivar length: in octets.
    """

    addr: int = attrs.field(converter=u64)
    length: int = attrs.field(converter=u32)


class QPEx(QP):
    """
    An extended queue pair.

    Between L{wr_start} and L{wr_complete} each call that names an operation begins a request with the current
    C{wr_id} and C{wr_flags}; C{wr_set_} calls complete it.  All requests are posted, or none.

    @ivar wr_id: the id of the next request.
    @ivar wr_flags: its flags, bits of C{ibv_send_flags}.
    @ivar comp_mask: 0.
    @ivar ind_table: None.
    """

    def __init__(
        self, creator: Any, init_attr: QPInitAttr | QPInitAttrEx, qp_attr: QPAttr | None = None
    ) -> None:
        # Before the base's constructor, which may already close the object.
        self.wr_id = self.wr_flags = self.comp_mask = 0
        self.ind_table = None
        self._batch: list[SendRequest] | None = None
        self._error: PyverbsError | None = None
        # A dropped address handle would be closed while its request waits to be posted.
        self._handles: list[AH] = []
        mask = int(getattr(init_attr, "comp_mask", 0))
        self._ops = int(getattr(init_attr, "send_ops_flags", 0)) if mask & _SEND_OPS else 0
        super().__init__(creator, init_attr, qp_attr)

    # -- the batch

    @locked
    def wr_start(self) -> None:
        """
        Begin a batch of requests.

        @raise PyverbsUserError: the queue pair was created without C{send_ops_flags}.
        """
        self._check()
        if not self._ops:
            raise PyverbsUserError("The QP was created without IBV_QP_INIT_ATTR_SEND_OPS_FLAGS")
        # A batch that was not completed is dropped.  In C a second start would deadlock on the provider's
        # lock.
        self._batch = []
        self._error = None
        self._handles = []

    @verb("ibv_wr_complete failed.")
    def wr_complete(self) -> None:
        """
        Post the requests of the batch, all or none.

        @raise PyverbsRDMAError: the state forbids it or one of them is invalid (EINVAL), or there is no room
            (ENOMEM).
        """
        self._check()
        batch, error = self._begun(), self._error
        self._batch = self._error = None
        # man ibv_wr_post(3): the builders report nothing; a failure of any aborts the whole batch here.
        if error is not None:
            raise error
        # All checks come before the first post, as a posted request cannot be taken back.
        work = self._work
        check(self._core.state >= QPState.RTS or not batch, "ibv_wr_complete failed: the QP is not in RTS")
        for request in batch:
            request.check(work.capabilities.pieces)
            operation = work.operations[request.opcode]
            operation.check(request, work.capabilities.inline)
            # Such a request would wait for ever: max_rd_atomic 0 lets no READ out.
            reads = not operation.asks or work.attributes.reads
            check(bool(reads), "ibv_wr_complete failed: max_rd_atomic is 0")
        if len(batch) > work.requester.room():
            raise PyverbsRDMAError("ibv_wr_complete failed: the send queue is full", errno.ENOMEM)
        for request in batch:
            work.postSend(request, True)
        self._handles = []

    @locked
    def wr_abort(self) -> None:
        """
        Drop the requests of the batch.
        """
        self._begun()
        self._batch = self._error = None

    def _begun(self) -> list[SendRequest]:
        if self._batch is None:
            raise PyverbsUserError("wr_start was not called")
        return self._batch

    def _add(self, opcode: SendOpcode, **fields: Any) -> None:
        # The inline setters decide; man ibv_wr_post(3) does not have IBV_SEND_INLINE among the flags.
        flags = int(self.wr_flags) & ~_INLINE
        if not self._ops & _OPS[opcode]:
            self._error = invalid(f"ibv_wr_complete failed: the QP was created without {opcode.name}")
        self._begun().append(SendRequest(u64(self.wr_id), opcode, (), flags, **fields))

    def _present(self) -> SendRequest:
        batch = self._begun()
        if not batch:
            raise PyverbsUserError("No request was begun")
        return batch[-1]

    # -- operations

    @locked
    def wr_send(self) -> None:
        """
        Begin a SEND.
        """
        self._add(SendOpcode.SEND)

    @locked
    def wr_send_imm(self, data: int) -> None:
        """
        Begin a SEND with immediate data.

        @param data: 32 bits, big-endian on the wire.
        """
        # C's parameter is __be32: pyverbs/qp.pyx converts, unlike SendWR.imm_data, which is stored as it is.
        self._add(SendOpcode.SEND_WITH_IMM, immediate=u32(data))

    @locked
    def wr_send_inv(self, invalidate_rkey: int) -> None:
        """
        Begin a SEND that invalidates a memory window of the peer.
        """
        self._add(SendOpcode.SEND_WITH_INV, invalidateKey=u32(invalidate_rkey))

    @locked
    def wr_rdma_read(self, rkey: int, remote_addr: int) -> None:
        """
        Begin an RDMA READ.

        @param remote_addr: an address of the peer's region or window.
        """
        self._remote(SendOpcode.RDMA_READ, rkey, remote_addr)

    @locked
    def wr_rdma_write(self, rkey: int, remote_addr: int) -> None:
        """
        Begin an RDMA WRITE; parameters as in L{wr_rdma_read}.
        """
        self._remote(SendOpcode.RDMA_WRITE, rkey, remote_addr)

    @locked
    def wr_rdma_write_imm(self, rkey: int, remote_addr: int, data: int) -> None:
        """
        Begin an RDMA WRITE with immediate data; parameters as in L{wr_rdma_read} and L{wr_send_imm}.
        """
        self._remote(SendOpcode.RDMA_WRITE_WITH_IMM, rkey, remote_addr, immediate=u32(data))

    @locked
    def wr_atomic_cmp_swp(self, rkey: int, remote_addr: int, compare: int, swap: int) -> None:
        """
        Begin a compare-and-swap; parameters as in L{SendWR.set_wr_atomic}.
        """
        self._remote(SendOpcode.ATOMIC_CMP_AND_SWP, rkey, remote_addr, compare=u64(compare), swap=u64(swap))

    @locked
    def wr_atomic_fetch_add(self, rkey: int, remote_addr: int, add: int) -> None:
        """
        Begin a fetch-and-add; parameters as in L{SendWR.set_wr_atomic}.
        """
        self._remote(SendOpcode.ATOMIC_FETCH_AND_ADD, rkey, remote_addr, compare=u64(add))

    @locked
    def wr_atomic_write(self, rkey: int, remote_addr: int, atomic_wr: bytes) -> None:
        """
        Begin an ATOMIC WRITE.

        @param remote_addr: an address of the peer's region or window, a multiple of 8.
        @param atomic_wr: the bytes to write; the first 8 count.
        """
        # man ibv_wr_post(3): the value is copied now, and is no inline data, which max_inline_data limits.
        self._remote(SendOpcode.ATOMIC_WRITE, rkey, remote_addr, inline=bytes(atomic_wr[:8]))

    def _remote(self, opcode: SendOpcode, rkey: int, address: int, **fields: Any) -> None:
        self._add(opcode, remoteKey=u32(rkey), remoteAddress=u64(address), **fields)

    @locked
    def wr_local_inv(self, invalidate_rkey: int) -> None:
        """
        Begin a local invalidate of a memory window.
        """
        self._add(SendOpcode.LOCAL_INV, invalidateKey=u32(invalidate_rkey))

    @locked
    def wr_bind_mw(self, mw: MW, rkey: int, bind_info: MWBindInfo) -> None:
        """
        Begin the bind of a type 2 window.

        @param mw: the window; it is closed with the queue pair.
        @param rkey: the rkey that it will have.
        @param bind_info: the part of a region.
        """
        bind = windowBind(checked(mw, MW), checked(bind_info, MWBindInfo), u32(rkey))
        self._add(SendOpcode.BIND_MW, bind=bind)
        # IBTA vol. 1 10.6.7.2: a window of type 2B is bound to the queue pair, which could not be destroyed
        # before it; pyverbs/qp.pyx closes it first, too.
        self._children.add(mw)

    def wr_flush(self, rkey: int, remote_addr: int, length: int, ptype: int, level: int) -> None:
        """
        @raise PyverbsRDMAError: always (EOPNOTSUPP).
        """
        raise unsupported("Failed to begin a flush")

    def wr_send_tso(self, hdr: int, hdr_sz: int, mss: int) -> None:
        """
        @raise PyverbsRDMAError: always (EOPNOTSUPP).
        """
        raise unsupported("Failed to begin a segmented send")

    # -- what belongs to one

    @locked
    def wr_set_sge(self, sge: SGE) -> None:
        """
        Set the local buffer of the request: one element.
        """
        self._present().pieces = pieces([checked(sge, SGE)])

    @locked
    def wr_set_sge_list(self, num_sge: int, sg_list: Sequence[SGE]) -> None:
        """
        Set the local buffers of the request: the first C{num_sge} elements.
        """
        self._present().pieces = pieces(listed(sg_list, num_sge))

    @locked
    def wr_set_inline_data(self, addr: int, length: int) -> None:
        """
        Set the inline data of the request; they are read now.

        @param addr: an address of a region.
        @param length: in octets.
        """
        self.wr_set_inline_data_list(1, [DataBuffer(addr, length)])

    @locked
    def wr_set_inline_data_list(self, num_buf: int, buf_list: Sequence[DataBuffer]) -> None:
        """
        Set the inline data of the request: the first C{num_buf} buffers, read now.
        """
        present = self._present()
        buffers = list(buf_list)[:num_buf]
        if len(buffers) < num_buf:
            raise PyverbsUserError(f"num_buf is {num_buf}, but there are {len(buffers)} buffers")
        try:
            # C's setter has no lkey: the octets are found by address alone.
            present.inline = gather(self._device, [Piece(each.addr, each.length, 0) for each in buffers])
        except (HCAError, OSError) as error:
            # man ibv_wr_post(3): setters return nothing; wr_complete reports the error.
            self._error = error if isinstance(error, PyverbsError) else failure("Inline data", error)

    @locked
    def wr_set_ud_addr(self, ah: AH, remote_qpn: int, remote_rkey: int) -> None:
        """
        Set the destination of a datagram.

        @param remote_qpn: the peer's queue pair number.
        @param remote_rkey: its Q_Key, by pyverbs' name.
        """
        DatagramTarget(checked(ah, AH), remote_qpn, remote_rkey).fill(self._present())
        self._handles.append(ah)

    def wr_set_xrc_srqn(self, remote_srqn: int) -> None:
        """
        @raise PyverbsRDMAError: always (EOPNOTSUPP): there are no XRC queue pairs.
        """
        raise unsupported("Failed to set an XRC shared receive queue")
