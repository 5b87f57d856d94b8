"""
The attributes of a shared receive queue.  Source: rdma-core 65, C{pyverbs/srq.pyx}.
"""

from __future__ import annotations

import attrs

from twisted_ib.verbs.pyverbs.base.base import PyverbsObject, checked, u32


@attrs.define(eq=False)
class SrqAttr(PyverbsObject):
    """
    The size of a shared receive queue, and its low watermark (C{struct ibv_srq_attr}).

    @ivar max_wr: receives that it holds.
    @ivar max_sge: scatter elements of each.
    @ivar srq_limit: with fewer receives left, C{IBV_EVENT_SRQ_LIMIT_REACHED} comes, once; 0 for never.
    """

    max_wr: int = attrs.field(default=100, converter=u32)
    max_sge: int = attrs.field(default=1, converter=u32)
    # IBTA vol. 1 10.2.9: the event disarms the limit; each modify arms it again.
    srq_limit: int = attrs.field(default=0, converter=u32)


class SrqInitAttr(PyverbsObject):
    """
    The attributes of a new shared receive queue.
    """

    def __init__(self, attr: SrqAttr | None = None) -> None:
        # A copy, as in pyverbs/srq.pyx: later changes of the L{SrqAttr} do not show.
        self._attr = SrqAttr(0, 0, 0) if attr is None else attrs.evolve(checked(attr, SrqAttr))

    @property
    def max_wr(self) -> int:
        """
        Receives that it holds.
        """
        return self._attr.max_wr

    @property
    def max_sge(self) -> int:
        """
        Scatter elements of each.
        """
        return self._attr.max_sge

    @property
    def srq_limit(self) -> int:
        """
        The low watermark.
        """
        return self._attr.srq_limit
