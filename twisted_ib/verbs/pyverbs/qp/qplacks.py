"""
Optional features of queue pairs that this HCA lacks: rate limits, completion counters, ECE.

Source: rdma-core 65, C{pyverbs/qp.pyx}.
"""

from __future__ import annotations

import attrs

from twisted_ib.verbs.pyverbs.base.base import PyverbsCM, PyverbsObject, table, u16, u32


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
