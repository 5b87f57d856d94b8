"""
The attributes of a shared receive queue.  Source: rdma-core 65, C{pyverbs/srq.pyx}.
"""

from __future__ import annotations

import attrs

from twisted_ib.hca.verbs.base.base import PyverbsObject, checked, u32


@attrs.define(eq=False)
class SrqAttr(PyverbsObject):
    """
    The size of a shared receive queue, and when it reports that it runs low.

    @ivar max_wr: receives that it holds.
    @ivar max_sge: scatter elements in each.
    @ivar srq_limit: the event C{IBV_EVENT_SRQ_LIMIT_REACHED} comes, once, when fewer receives
        are left; 0 is never.
    """

    max_wr: int = attrs.field(default=100, converter=u32)
    max_sge: int = attrs.field(default=1, converter=u32)
    srq_limit: int = attrs.field(default=0, converter=u32)


class SrqInitAttr(PyverbsObject):
    """
    The attributes of a new shared receive queue: as they were when this was made.
    """

    def __init__(self, attr: SrqAttr | None = None) -> None:
        """
        @param attr: the size; all zeros if None.
        """
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
        Scatter elements in each.
        """
        return self._attr.max_sge

    @property
    def srq_limit(self) -> int:
        """
        As in L{SrqAttr}.
        """
        return self._attr.srq_limit
