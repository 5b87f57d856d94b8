"""
The work completion, a plain value.  Source: rdma-core 65, C{pyverbs/cq.pyx}, C{libibverbs/verbs.h}.
"""

from __future__ import annotations

from typing import Any

from twisted_ib.hca.queues.completion import WCFlags as CoreFlags
from twisted_ib.hca.queues.completion import WorkCompletion
from twisted_ib.verbs.pyverbs.base.base import PyverbsObject, flagged, named, table, unsigned
from twisted_ib.verbs.pyverbs.base.wr import storedImmediate
from twisted_ib.verbs.pyverbs.enums.queues import ibv_wc_flags, ibv_wc_opcode, ibv_wc_status

_new: Any = object.__new__
_WITH_GRH = int(CoreFlags.GRH)
_WITH_IMM = int(CoreFlags.WITH_IMM)
_WITH_INV = int(CoreFlags.WITH_INV)
# libibverbs/verbs.h has other bits than the core.  A table of all eight sums, as this runs per completion.
_FLAGS = {
    bits: sum(
        int(here)
        for there, here in (
            (_WITH_GRH, ibv_wc_flags.IBV_WC_GRH),
            (_WITH_IMM, ibv_wc_flags.IBV_WC_WITH_IMM),
            (_WITH_INV, ibv_wc_flags.IBV_WC_WITH_INV),
        )
        if bits & there
    )
    for bits in range(8)
}


def wcFlags(completion: WorkCompletion) -> int:
    """
    @return: the completion's bits of C{ibv_wc_flags}.
    """
    return _FLAGS[int(completion.flags)]


def wcImmediate(completion: WorkCompletion) -> int:
    """
    @return: the immediate data as they lie in memory, or the invalidated rkey; else 0.
    """
    # One field for both, as in C: a SEND has an ImmDt or an IETH, never both (IBTA vol. 1 9.2.1).
    if completion.flags & _WITH_IMM:
        return storedImmediate(completion.immediate)
    return completion.immediate if completion.flags & _WITH_INV else 0


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

    __slots__ = (
        "_byte_len",
        "_dlid_path_bits",
        "_imm_data",
        "_opcode",
        "_pkey_index",
        "_qp_num",
        "_sl",
        "_slid",
        "_src_qp",
        "_status",
        "_vendor_err",
        "_wc_flags",
        "_wr_id",
    )

    wr_id: int = unsigned("wr_id", 64)
    status: int = unsigned("status", 32)
    opcode: int = unsigned("opcode", 32)
    vendor_err: int = unsigned("vendor_err", 32)
    byte_len: int = unsigned("byte_len", 32)
    qp_num: int = unsigned("qp_num", 32)
    src_qp: int = unsigned("src_qp", 32)
    # libibverbs/verbs.h: __be32, not converted, so that the receiver reads what lay in the sender's memory.
    imm_data: int = unsigned("imm_data", 32)
    wc_flags: int = unsigned("wc_flags", 32)
    pkey_index: int = unsigned("pkey_index", 16)
    # 0 here: IBTA vol. 1 annex A17, RoCE has no LIDs.
    slid: int = unsigned("slid", 16)
    sl: int = unsigned("sl", 8)
    dlid_path_bits: int = unsigned("dlid_path_bits", 8)

    def __init__(
        self,
        wr_id: int = 0,
        status: int = 0,
        opcode: int = 0,
        vendor_err: int = 0,
        byte_len: int = 0,
        qp_num: int = 0,
        src_qp: int = 0,
        imm_data: int = 0,
        wc_flags: int = 0,
        pkey_index: int = 0,
        slid: int = 0,
        sl: int = 0,
        dlid_path_bits: int = 0,
    ) -> None:
        """
        The parameters are the attributes, in C{struct ibv_wc}'s order.

        @raise TypeError: one of them is no integer.
        @raise OverflowError: one is negative or too wide.
        """
        self.wr_id = wr_id
        self.status = status
        self.opcode = opcode
        self.vendor_err = vendor_err
        self.byte_len = byte_len
        self.qp_num = qp_num
        self.src_qp = src_qp
        self.imm_data = imm_data
        self.wc_flags = wc_flags
        self.pkey_index = pkey_index
        self.slid = slid
        self.sl = sl
        self.dlid_path_bits = dlid_path_bits

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


def workCompletion(completion: WorkCompletion) -> WC:
    """
    @return: a completion of the core, with the names and numbers of verbs.
    """
    # Its fields fit: the constructor, which checks them, is for programs.
    made: Any = _new(WC)
    made._wr_id = completion.workRequestID
    made._status = int(completion.status) if completion.status else 0
    made._opcode = int(completion.opcode)
    made._byte_len = completion.byteLength
    made._qp_num = completion.queuePairNumber
    made._src_qp = completion.sourceQueuePair
    made._vendor_err = made._pkey_index = made._imm_data = made._wc_flags = 0
    if completion.flags:
        made._imm_data, made._wc_flags = wcImmediate(completion), wcFlags(completion)
    made._slid = completion.sourceLID
    made._sl = completion.serviceLevel
    made._dlid_path_bits = completion.pathBits
    return made
