"""
Shared receive queues (IBTA vol. 1 10.2.9).  Source: rdma-core 65, C{pyverbs/srq.pyx}.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import attrs

from twisted_ib import limits
from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.pyverbs.base.base import PyverbsCM, PyverbsObject, checked, u32
from twisted_ib.verbs.pyverbs.base.errors import PyverbsUserError
from twisted_ib.verbs.pyverbs.base.posting import postReceive, refused
from twisted_ib.verbs.pyverbs.base.verb import VerbsObject, check, closing, unsupported, verb, within
from twisted_ib.verbs.pyverbs.base.wr import SGE, RecvWR
from twisted_ib.verbs.pyverbs.enums.queues import ibv_srq_attr_mask, ibv_srq_init_attr_mask, ibv_srq_type
from twisted_ib.verbs.pyverbs.objects.device import Context
from twisted_ib.verbs.pyverbs.objects.pd import PD

_MASK = ibv_srq_init_attr_mask
# The extended attributes of a basic queue; the others are for XRC and tag matching.
_BASIC = int(_MASK.IBV_SRQ_INIT_ATTR_TYPE | _MASK.IBV_SRQ_INIT_ATTR_PD)
_refused = partial(refused, "Failed to post receive to SRQ")


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


@attrs.define(eq=False)
class SrqInitAttrEx(PyverbsObject):
    """
    The attributes of a new shared receive queue, with the extended ones.

    @ivar max_wr: receives that it holds.
    @ivar max_sge: scatter elements of each.
    @ivar srq_limit: as in L{SrqAttr}.
    @ivar comp_mask: which of the following are valid, bits of C{ibv_srq_init_attr_mask}.
    @ivar srq_type: one of C{ibv_srq_type}.
    @ivar xrcd: an XRC domain; C{cq} is the completion queue of an XRC queue.
    @ivar max_num_tags: tags that can be matched; C{max_ops} tag operations at a time.
    """

    max_wr: int = attrs.field(default=100, converter=u32)
    max_sge: int = attrs.field(default=1, converter=u32)
    srq_limit: int = attrs.field(default=0, converter=u32)
    # pyverbs' constructor has no parameters for the extended attributes: they are set one by one.
    comp_mask: int = attrs.field(default=0, converter=u32, init=False)
    srq_type: int = attrs.field(default=0, converter=u32, init=False)
    pd: PD | None = attrs.field(default=None, init=False)
    xrcd: PyverbsObject | None = attrs.field(default=None, init=False)
    cq: PyverbsObject | None = attrs.field(default=None, init=False)
    max_num_tags: int = attrs.field(default=0, converter=u32, init=False)
    max_ops: int = attrs.field(default=0, converter=u32, init=False)


@attrs.define(eq=False)
class OpsWr(PyverbsCM):
    """
    A tag matching request, which no device here supports.
    """

    wr_id: int = 0
    # IBV_WR_TAG_ADD, IBV_OPS_SIGNALED.
    opcode: int = 0
    flags: int = 1
    next_wr: OpsWr | None = None
    unexpected_cnt: int = 0
    recv_wr_id: int = 0
    num_sge: int | None = None
    tag: int = 0
    mask: int = 0
    sg_list: Sequence[SGE] | None = None
    handle: int = attrs.field(default=0, init=False)


class SRQ(VerbsObject):
    """
    A shared receive queue.
    """

    rank = 70

    def __init__(self, creator: Any, attr: Any) -> None:
        """
        @param creator: a L{PD} with a L{SrqInitAttr}, or a L{Context} with a L{SrqInitAttrEx}.
        @raise PyverbsRDMAError: the attributes are invalid (EINVAL) or not supported (EOPNOTSUPP), or there
            are too many queues (ENOMEM).
        """
        super().__init__()
        if isinstance(creator, PD):
            self._create(creator, checked(attr, SrqInitAttr))
        elif isinstance(creator, Context):
            self._create(self._domain(checked(attr, SrqInitAttrEx)), attr)
        else:
            raise PyverbsUserError("Srq needs either Context or PD for creation")

    @staticmethod
    def _domain(attr: SrqInitAttrEx) -> PD:
        mask = int(attr.comp_mask)
        # Fields whose bit of comp_mask is not set are ignored, as in C.
        kind = attr.srq_type if mask & _MASK.IBV_SRQ_INIT_ATTR_TYPE else ibv_srq_type.IBV_SRQT_BASIC
        if kind != ibv_srq_type.IBV_SRQT_BASIC or mask & ~_BASIC:
            raise unsupported("Failed to create SRQ")
        pd = attr.pd if mask & _MASK.IBV_SRQ_INIT_ATTR_PD else None
        check(isinstance(pd, PD), "Failed to create SRQ: no PD")
        assert pd is not None
        return pd

    @verb("Failed to create SRQ")
    def _create(self, pd: PD, attr: SrqInitAttr | SrqInitAttrEx) -> None:
        pd._check()
        # srq_limit is ignored at creation: IBTA vol. 1 10.2.9 arms it by a modify.  man ibv_create_srq(3)
        # says so.
        depth = within(attr.max_wr, 1, limits.SHARED_RECEIVE_DEPTH, "Failed to create SRQ: max_wr")
        pieces = within(attr.max_sge, 0, limits.SCATTER_GATHER_ELEMENTS, "Failed to create SRQ: max_sge")
        assert pd.ctx is not None
        self._device = device = pd._device
        self._core = core = device.objects.createSharedReceiveQueue(pd._core, depth, pieces)
        self._events = events = pd.ctx._events
        # IBV_EVENT_SRQ_LIMIT_REACHED and IBV_EVENT_SRQ_ERR come by the context of the domain.
        core.onEvent = events.add
        self.pd: PD | None = pd

        def close() -> None:
            device.objects.destroySharedReceiveQueue(core)
            # IBTA vol. 1 11.6.3: a program must not fetch events of a queue that is destroyed.
            events.forget(core)

        self._opened(closing(device, close), pd)

    def _closed(self) -> None:
        self.pd = None

    @property
    def srq(self) -> int:
        """
        An integer in place of the C pointer.
        """
        return id(self)

    def get_srq_num(self) -> int:
        """
        @raise PyverbsRDMAError: always (EOPNOTSUPP): only XRC queues have numbers.
        """
        raise unsupported("Failed to retrieve SRQ number")

    @verb("Failed to modify SRQ")
    def modify(self, attr: SrqAttr, comp_mask: int) -> None:
        """
        @param attr: the new values.
        @param comp_mask: which of them are valid, bits of C{ibv_srq_attr_mask}.
        @raise PyverbsRDMAError: a value is invalid (EINVAL); nothing changes then.
        """
        self._check()
        checked(attr, SrqAttr)
        mask = int(comp_mask)
        core = self._core
        check(not mask & ~int(sum(ibv_srq_attr_mask)), f"Failed to modify SRQ: mask {mask:#x}")
        depth = limit = None
        # man ibv_modify_srq(3): if any attribute is invalid, none is modified; so both are checked first.
        if mask & ibv_srq_attr_mask.IBV_SRQ_MAX_WR:
            most = limits.SHARED_RECEIVE_DEPTH
            # Linux rxe_srq.c: receives that are posted must fit.
            depth = within(attr.max_wr, max(1, len(core)), most, "Failed to modify SRQ: max_wr")
        if mask & ibv_srq_attr_mask.IBV_SRQ_LIMIT:
            # Linux rxe_srq.c: a limit above the depth is EINVAL; measured with the new depth if there is one.
            limit = within(attr.srq_limit, 0, depth or core.depth, "Failed to modify SRQ: srq_limit")
        core.modify(limit=limit, depth=depth)

    @verb("Failed to query SRQ")
    def query(self) -> SrqAttr:
        """
        @return: its size and its limit.
        """
        self._check()
        return SrqAttr(self._core.depth, self._core.pieces, self._core.limit)

    def post_srq_ops(self, wr: OpsWr, bad_wr: OpsWr | None = None) -> None:
        """
        @raise PyverbsRDMAError: always (EOPNOTSUPP): there is no tag matching.
        """
        raise unsupported("post SRQ ops failed.")

    def post_recv(self, wr: RecvWR, bad_wr: RecvWR | None = None) -> None:
        """
        Post receives.

        @param wr: the first of a chain.
        @param bad_wr: is overwritten with the request that failed; those before it are posted.
        @raise PyverbsRDMAError: a request is invalid (EINVAL), or the queue is full (ENOMEM).
        """
        self._check()
        hub.post(partial(postReceive, self._core.post), checked(wr, RecvWR), _refused, bad_wr)
