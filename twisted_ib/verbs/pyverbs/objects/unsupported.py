"""
Verbs that need special hardware, and features of queue pairs that this HCA lacks, by pyverbs' names, so that
programs can probe for them.

Creating such an object fails with EOPNOTSUPP, as on a device that lacks it; the attribute classes are plain
values.  Source: rdma-core 65, C{pyverbs/{mr,wq,xrcd,flow,dmabuf,comp_cntr,qp}.pyx}.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from twisted_ib.verbs.pyverbs.base.base import PyverbsCM, PyverbsObject, table, u16, u32
from twisted_ib.verbs.pyverbs.base.errors import PyverbsUserError
from twisted_ib.verbs.pyverbs.base.verb import VerbsObject, unsupported
from twisted_ib.verbs.pyverbs.enums.offload import ibv_flow_attr_type, ibv_wq_type
from twisted_ib.verbs.pyverbs.objects.mr import MR


class Unsupported(VerbsObject):
    """
    An object that no device here can create.

    @cvar failure: the error's text.
    """

    failure = "Not supported"

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        # First, as close() and __del__ need its attributes even of an object that failed.
        super().__init__()
        raise unsupported(self.failure)


class UnsupportedMR(MR):
    """
    A memory region of a kind that no device here can register; as in pyverbs it is an L{MR}.

    @cvar failure: the error's text.
    """

    failure = "Failed to register a MR"

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        # Not MR's, which would register memory.
        VerbsObject.__init__(self)
        raise unsupported(self.failure)


class DmaBufMR(UnsupportedMR):
    """
    A region of a DMA buffer.
    """

    failure = "Failed to register a dma-buf MR"


class BufMR(UnsupportedMR):
    """
    A region of a L{Buf}.
    """

    failure = "Failed to register a buf MR"


class Buf(Unsupported):
    """
    A buffer that the device's driver allocates.
    """

    failure = "Failed to allocate ibv_buf"


class DmaBuf(Unsupported):
    """
    A DMA buffer.
    """

    failure = "Failed to allocate dmabuf"


@attrs.define(eq=False)
class DmaHandleInitAttr(PyverbsObject):
    """
    The attributes of a new DMA handle.

    @ivar cpu_id: the processor that will use the data.
    @ivar ph: PCI Express processing hints, two bits.
    @ivar tph_mem_type: one of C{ibv_tph_mem_type}.
    """

    comp_mask: int = 0
    cpu_id: int = 0
    ph: int = 0
    tph_mem_type: int = 0

    def __str__(self) -> str:
        return "DmaHandleInitAttr:\n" + table(list(attrs.asdict(self).items()))


class DMAHandle(Unsupported):
    """
    TLP processing hints for a device's memory accesses.
    """

    failure = "Failed to create DMA Handle"


@attrs.define(eq=False)
class XRCDInitAttr(PyverbsObject):
    """
    The attributes of a new XRC domain.

    @ivar oflags: flags of C{open(2)}.
    @ivar fd: the file by which processes share it; -1 for none.
    """

    comp_mask: int
    oflags: int
    fd: int


class XRCD(Unsupported):
    """
    An XRC domain (IBTA vol. 1 annex A14).
    """

    failure = "Failed to allocate XRCD"


@attrs.define(eq=False)
class WQInitAttr(PyverbsObject):
    """
    The attributes of a new work queue.
    """

    wq_context: Any = None
    pd: Any = attrs.field(default=None, alias="wq_pd")
    cq: Any = attrs.field(default=None, alias="wq_cq")
    wq_type: int = ibv_wq_type.IBV_WQT_RQ
    max_wr: int = 100
    max_sge: int = 1
    comp_mask: int = 0
    create_flags: int = 0


@attrs.define(eq=False)
class WQAttr(PyverbsObject):
    """
    The attributes of a work queue that a modify sets.
    """

    attr_mask: int = 0
    wq_state: int = 0
    curr_wq_state: int = 0
    flags: int = 0
    flags_mask: int = 0


class WQ(Unsupported):
    """
    A work queue.
    """

    failure = "Failed to create WQ"


class RwqIndTableInitAttr(PyverbsObject):
    """
    The attributes of a new indirection table.

    @ivar log_ind_tbl_size: its size, as a power of two.
    @ivar wqs_list: its work queues.
    @ivar comp_mask: 0.
    """

    def __init__(
        self, log_ind_tbl_size: int = 5, wqs_list: Sequence[WQ] | None = None, comp_mask: int = 0
    ) -> None:
        """
        @raise PyverbsUserError: the table is too small for the queues.
        """
        # Checked although the table cannot be created: pyverbs checks it in this class, too.
        wqs = list(wqs_list or ())
        if log_ind_tbl_size <= 0 or 1 << log_ind_tbl_size < len(wqs):
            raise PyverbsUserError(f"A table of 2^{log_ind_tbl_size} has no room for {len(wqs)} WQs")
        self.log_ind_tbl_size = log_ind_tbl_size
        self.wqs_list = wqs
        self.comp_mask = comp_mask


class RwqIndTable(Unsupported):
    """
    An indirection table.
    """

    failure = "Failed to create RwqIndTable"


@attrs.define(eq=False)
class RxHashConf(PyverbsObject):
    """
    The receive hash: how packets are spread over work queues.
    """

    rx_hash_function: int = 0
    rx_hash_key_len: int = 0
    rx_hash_key: Sequence[int] | None = None
    rx_hash_fields_mask: int = 0


@attrs.define(eq=False)
class FlowAttr(PyverbsObject):
    """
    The attributes of a new flow steering rule.
    """

    num_of_specs: int = 0
    flow_type: int = ibv_flow_attr_type.IBV_FLOW_ATTR_NORMAL
    priority: int = 0
    port: int = 1
    flags: int = 0
    specs: list[Any] = attrs.field(factory=list, init=False)


class Flow(Unsupported):
    """
    A flow steering rule.
    """

    failure = "Flow creation failed"


@attrs.define(eq=False)
class CompCntrInitAttr(PyverbsObject):
    """
    The attributes of a new completion counter.
    """

    comp_mask: int = 0
    cntr_type: int = 0
    flags: int = 0


class CompCntr(Unsupported):
    """
    A completion counter on the device.
    """

    failure = "Failed to create comp_cntr"


@attrs.define(eq=False)
class QPRateLimitAttr(PyverbsObject):
    """
    A rate limit of a queue pair.

    @ivar rate_limit: kbit/s.
    @ivar max_burst_sz: octets that may be sent at once.
    @ivar typical_pkt_sz: octets of most packets.
    @ivar comp_mask: 0.
    """

    rate_limit: int = attrs.field(default=0, converter=u32)
    max_burst_sz: int = attrs.field(default=0, converter=u32)
    typical_pkt_sz: int = attrs.field(default=0, converter=u16)
    comp_mask: int = attrs.field(default=0, converter=u32)

    def __str__(self) -> str:
        return table(
            [
                ("Rate limit (kbps)", self.rate_limit),
                ("Max burst size", self.max_burst_sz),
                ("Typical packet size", self.typical_pkt_sz),
                ("Comp mask", self.comp_mask),
            ]
        )


@attrs.define(eq=False)
class QPAttachCompCntrAttr(PyverbsObject):
    """
    The operations that a completion counter counts.
    """

    op_mask: int = 0


@attrs.define(eq=False)
class ECE(PyverbsCM):
    """
    Enhanced connection establishment: vendor options that two ends agree on.

    @ivar vendor_id: the vendor that defines C{options}; 0 for none.
    @ivar comp_mask: 0.
    """

    # The CM carries it in octets of REQ and REP that were reserved before; 0 there means no ECE.
    vendor_id: int = attrs.field(default=0, converter=u32)
    options: int = attrs.field(default=0, converter=u32)
    comp_mask: int = attrs.field(default=0, converter=u32)

    def __str__(self) -> str:
        rows = [("Vendor ID", self.vendor_id), ("Options", self.options), ("Comp Mask", self.comp_mask)]
        return "ECE:\n" + table([(name, hex(value)) for name, value in rows])
