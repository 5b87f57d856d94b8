"""
Checks of the attributes of a new queue pair, and their conversion for the core.
"""

from __future__ import annotations

from typing import Any

from twisted_ib import limits
from twisted_ib.hca.base.states import QPType
from twisted_ib.hca.base.traits import Traits
from twisted_ib.hca.queues.requests import Capabilities, SendOpcode
from twisted_ib.hca.services.support import operationsOf
from twisted_ib.verbs.pyverbs.base.base import checked
from twisted_ib.verbs.pyverbs.base.errors import PyverbsUserError
from twisted_ib.verbs.pyverbs.base.verb import check, unsupported, within
from twisted_ib.verbs.pyverbs.enums.queues import ibv_qp_create_send_ops_flags, ibv_qp_init_attr_mask
from twisted_ib.verbs.pyverbs.objects.cq import PolledQueue
from twisted_ib.verbs.pyverbs.objects.device import Context
from twisted_ib.verbs.pyverbs.objects.pd import PD
from twisted_ib.verbs.pyverbs.objects.srq import SRQ
from twisted_ib.verbs.pyverbs.qp.qpattr import QPInitAttr, QPInitAttrEx

FAILED = "Failed to create QP"
#: An element of a scatter/gather list (C{struct ibv_sge}).
_ELEMENT_BYTES = 16

_E = ibv_qp_init_attr_mask
#: The extended attributes that are supported.  create_flags must be 0, but programs set its bit.
_EXTENDED = int(
    _E.IBV_QP_INIT_ATTR_PD | _E.IBV_QP_INIT_ATTR_CREATE_FLAGS | _E.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
)
# The flag of each operation, by the names that the two enumerations share.
_FLAGS = {opcode: int(ibv_qp_create_send_ops_flags[f"IBV_QP_EX_WITH_{opcode.name}"]) for opcode in SendOpcode}


def checkExtended(attr: QPInitAttrEx, kind: QPType, traits: Traits) -> None:
    """
    @param traits: of the device's fabric.
    @raise PyverbsRDMAError: an extended attribute asks for an unsupported feature (EOPNOTSUPP).
    """
    mask = int(attr.comp_mask)
    # Fields whose bit of comp_mask is not set are ignored, as in C.
    flags = attr.create_flags if mask & _E.IBV_QP_INIT_ATTR_CREATE_FLAGS else 0
    ops = attr.send_ops_flags if mask & _E.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS else 0
    # man ibv_wr_post(3): creation fails if the type of queue pair cannot do one of the operations.
    # Its table has SEND with invalidate for UC, for which IBTA vol. 1 9.2.1 has no opcode.
    known = sum(_FLAGS[opcode] for opcode in operationsOf(kind, traits))
    if mask & ~_EXTENDED or flags or int(ops) & ~known:
        raise unsupported(FAILED)


def domain(creator: Any, attr: QPInitAttr | QPInitAttrEx) -> PD:
    """
    @return: the protection domain: the creator, or the attribute of that name.
    """
    pd = creator
    if isinstance(creator, Context):
        creator._check()
        # A context has no domain of its own; with ibv_create_qp_ex it comes in the attributes.
        named = isinstance(attr, QPInitAttrEx) and attr.comp_mask & _E.IBV_QP_INIT_ATTR_PD
        pd = attr.pd if isinstance(attr, QPInitAttrEx) and named else None
        check(isinstance(pd, PD), f"{FAILED}: no PD")
    if not isinstance(pd, PD):
        raise PyverbsUserError(f"Cannot create QP from {type(creator)}")
    pd._check()
    return pd


def queues(pd: PD, attr: QPInitAttr | QPInitAttrEx) -> tuple[PolledQueue, PolledQueue, SRQ | None]:
    """
    @return: the completion queues of sends and receives, and the shared receive queue.
    """
    # IBTA vol. 1 10.2.4: each work queue has a completion queue, also one that nothing is posted to.
    check(attr.send_cq is not None and attr.recv_cq is not None, f"{FAILED}: no CQ")
    scq: Any = attr.send_cq
    rcq: Any = attr.recv_cq
    srq: Any = attr.srq
    checked(scq, PolledQueue)
    checked(rcq, PolledQueue)
    if srq is not None:
        checked(srq, SRQ)
    for queue in (scq, rcq, srq):
        if queue is not None:
            queue._check()
            # IBTA vol. 1 10.2.3: objects of one queue pair belong to one HCA.
            check(queue._device is pd._device, f"{FAILED}: a queue of another device")
    return scq, rcq, srq


def capabilities(attr: QPInitAttr | QPInitAttrEx, srq: SRQ | None) -> Capabilities:
    """
    @return: the sizes, as the core has them.
    @raise PyverbsRDMAError: one is out of range (EINVAL).
    """
    depth, elements = limits.WORK_QUEUE_DEPTH, limits.SCATTER_GATHER_ELEMENTS
    what = f"{FAILED}: max_"
    # man ibv_create_qp(3): max_recv_wr and max_recv_sge are ignored if there is an SRQ.
    receives = 0 if srq is not None else attr.max_recv_wr
    # Linux rxe_qp.c, rxe_qp_init_req: a request has inline what its elements would take, asked for or not.
    # Programs send inline without a look at what they got: rdma_xclient.
    inline = max(attr.max_inline_data, attr.max_send_sge * _ELEMENT_BYTES)
    return Capabilities(
        within(attr.max_send_wr, 0, depth, what + "send_wr"),
        within(receives, 0, depth, what + "recv_wr"),
        within(attr.max_send_sge, 0, elements, what + "send_sge"),
        within(attr.max_recv_sge, 0, elements, what + "recv_sge"),
        within(inline, 0, limits.INLINE_DATA, what + "inline_data"),
    )
