"""
What queue pairs of some hardware have beside verbs' own: limits of rates, counters, extensions.

Source: rdma-core 65, C{pyverbs/qp.pyx}.
"""

from __future__ import annotations

import attrs

from twisted_ib.hca.verbs.base.base import PyverbsCM, PyverbsObject, checked, table, u16, u32
from twisted_ib.hca.verbs.base.verb import VerbsObject, unsupported


@attrs.define(eq=False)
class QPRateLimitAttr(PyverbsObject):
    """
    A limit of a queue pair's rate.

    @ivar rate_limit: kbit/s.
    @ivar max_burst_sz: octets that may come at once.
    @ivar typical_pkt_sz: octets of most packets.
    @ivar comp_mask: 0.
    """

    rate_limit: int = attrs.field(default=0, converter=u32)
    max_burst_sz: int = attrs.field(default=0, converter=u32)
    typical_pkt_sz: int = attrs.field(default=0, converter=u16)
    comp_mask: int = attrs.field(default=0, converter=u32)

    def __str__(self) -> str:
        """
        @return: a line for each field.
        """
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
    What a counter of completions counts.
    """

    op_mask: int = 0


@attrs.define(eq=False)
class ECE(PyverbsCM):
    """
    What the two ends of a connection can do beyond the standard.

    @ivar vendor_id: whose options these are; 0 is nobody's.
    @ivar options: bits.
    @ivar comp_mask: which of them are valid.
    """

    vendor_id: int = attrs.field(default=0, converter=u32)
    options: int = attrs.field(default=0, converter=u32)
    comp_mask: int = attrs.field(default=0, converter=u32)

    def __str__(self) -> str:
        """
        @return: a heading, then a line for each field.
        """
        rows = [("Vendor ID", self.vendor_id), ("Options", self.options), ("Comp Mask", self.comp_mask)]
        return "ECE:\n" + table([(name, hex(value)) for name, value in rows])


class LackingQP(VerbsObject):
    """
    What a queue pair here has not: to ask for it is EOPNOTSUPP.
    """

    def modify_rate_limit(self, attr: QPRateLimitAttr) -> None:
        """
        @raise PyverbsRDMAError: always (EOPNOTSUPP).
        """
        raise unsupported("Failed to modify QP rate limit")

    def attach_comp_cntr(self, comp_cntr: object, attr: QPAttachCompCntrAttr) -> None:
        """
        @raise PyverbsRDMAError: always (EOPNOTSUPP).
        """
        raise unsupported("Failed to attach comp cntr to QP")

    def set_ece(self, ece: ECE) -> None:
        """
        @param ece: of no vendor.

        @raise PyverbsRDMAError: it is of some (EOPNOTSUPP).
        """
        if checked(ece, ECE).vendor_id:
            raise unsupported("Failed to set ECE")

    def query_ece(self) -> ECE:
        """
        @raise PyverbsRDMAError: always (EOPNOTSUPP).
        """
        raise unsupported("Failed to query ECE")

    def query_data_in_order(self, op: int, flags: int = 0) -> int:
        """
        @return: 0: no order is promised in which the octets of a message arrive.
        """
        return 0
