"""
The work completion, a plain value.  Source: rdma-core 65, C{pyverbs/cq.pyx}, C{libibverbs/verbs.h}.
"""

from __future__ import annotations

import attrs

from twisted_ib.hca.verbs.base.base import PyverbsObject, flagged, named, table, u8, u16, u32, u64
from twisted_ib.hca.verbs.enums.queues import ibv_wc_flags, ibv_wc_opcode, ibv_wc_status


@attrs.define(eq=False)
class WC(PyverbsObject):
    """
    A work completion (C{struct ibv_wc}; IBTA vol. 1 11.4.2.1).  Unless C{status} is C{IBV_WC_SUCCESS}, only
    C{wr_id}, C{status}, C{qp_num} and C{vendor_err} are valid.

    @ivar status: one of C{ibv_wc_status}.
    @ivar opcode: one of C{ibv_wc_opcode}.
    @ivar byte_len: octets transferred; of a datagram, with the 40 of its GRH.
    @ivar qp_num: the local queue pair.
    @ivar src_qp: the sender's queue pair, of a datagram.
    @ivar imm_data: the immediate data with C{IBV_WC_WITH_IMM}, the invalidated rkey with C{IBV_WC_WITH_INV}.
    @ivar wc_flags: bits of C{ibv_wc_flags}.
    @ivar pkey_index: the index of the P_Key, of a datagram to the GSI.
    @ivar slid: the sender's LID, of a datagram; C{sl} its service level.
    """

    # C{struct ibv_wc}'s order, which positional arguments depend on.
    wr_id: int = attrs.field(default=0, converter=u64)
    status: int = attrs.field(default=0, converter=u32)
    opcode: int = attrs.field(default=0, converter=u32)
    vendor_err: int = attrs.field(default=0, converter=u32)
    byte_len: int = attrs.field(default=0, converter=u32)
    qp_num: int = attrs.field(default=0, converter=u32)
    src_qp: int = attrs.field(default=0, converter=u32)
    # libibverbs/verbs.h: __be32, not converted, so that the receiver reads what lay in the sender's memory.
    imm_data: int = attrs.field(default=0, converter=u32)
    wc_flags: int = attrs.field(default=0, converter=u32)
    pkey_index: int = attrs.field(default=0, converter=u16)
    # 0 here: IBTA vol. 1 annex A17, RoCE has no LIDs.
    slid: int = attrs.field(default=0, converter=u16)
    sl: int = attrs.field(default=0, converter=u8)
    dlid_path_bits: int = attrs.field(default=0, converter=u8)

    def __str__(self) -> str:
        return table(
            [
                ("WR ID", self.wr_id),
                ("status", named(ibv_wc_status, self.status, "IBV_WC_")),
                ("opcode", named(ibv_wc_opcode, self.opcode, "IBV_WC_")),
                ("vendor error", self.vendor_err),
                ("byte length", self.byte_len),
                ("QP num", self.qp_num),
                ("source QP", self.src_qp),
                ("WC flags", flagged(ibv_wc_flags, self.wc_flags, "IBV_WC_")),
                ("pkey index", self.pkey_index),
                ("slid", self.slid),
                ("sl", self.sl),
                ("imm_data", self.imm_data),
                ("dlid path bits", self.dlid_path_bits),
            ]
        )
