"""
Queue pairs and shared receive queues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from _twisted_ib_verbs import ffi, lib

from twisted_ib.hca.base.states import QPType
from twisted_ib.verbs import pyverbs as verbs
from twisted_ib.verbs.c.errors import unsupported
from twisted_ib.verbs.c.functions import handler, handlers
from twisted_ib.verbs.c.handles import handles
from twisted_ib.verbs.c.pointers import CData, addressOf
from twisted_ib.verbs.c.postings import PostedQueue, ReceiveQueue, SendQueue, SharedQueue, completed
from twisted_ib.verbs.c.verbs.address import gidOf, readAddress, writeAddress
from twisted_ib.verbs.c.verbs.structures import contextAt, copyFields, cqAt, pdAt, pointers, qpAt, srqAt
from twisted_ib.verbs.pyverbs.base.verb import VerbsObject
from twisted_ib.verbs.pyverbs.enums.queues import (
    ibv_qp_attr_mask,
    ibv_qp_init_attr_mask,
    ibv_srq_init_attr_mask,
)

#: The fields of C{struct ibv_qp_cap}, in the order of L{verbs.QPCap}.
_SIZES = ("max_send_wr", "max_recv_wr", "max_send_sge", "max_recv_sge", "max_inline_data")
_RECEIVE_SIZES = ("max_wr", "max_sge", "srq_limit")
_M = ibv_qp_attr_mask
#: The plain fields of C{struct ibv_qp_attr}, and the bit of each in the mask.
_ATTRIBUTES = {
    "qp_state": int(_M.IBV_QP_STATE),
    "cur_qp_state": int(_M.IBV_QP_CUR_STATE),
    "path_mtu": int(_M.IBV_QP_PATH_MTU),
    "path_mig_state": int(_M.IBV_QP_PATH_MIG_STATE),
    "qkey": int(_M.IBV_QP_QKEY),
    "rq_psn": int(_M.IBV_QP_RQ_PSN),
    "sq_psn": int(_M.IBV_QP_SQ_PSN),
    "dest_qp_num": int(_M.IBV_QP_DEST_QPN),
    "qp_access_flags": int(_M.IBV_QP_ACCESS_FLAGS),
    "pkey_index": int(_M.IBV_QP_PKEY_INDEX),
    "alt_pkey_index": int(_M.IBV_QP_ALT_PATH),
    "en_sqd_async_notify": int(_M.IBV_QP_EN_SQD_ASYNC_NOTIFY),
    "max_rd_atomic": int(_M.IBV_QP_MAX_QP_RD_ATOMIC),
    "max_dest_rd_atomic": int(_M.IBV_QP_MAX_DEST_RD_ATOMIC),
    "min_rnr_timer": int(_M.IBV_QP_MIN_RNR_TIMER),
    "port_num": int(_M.IBV_QP_PORT),
    "timeout": int(_M.IBV_QP_TIMEOUT),
    "retry_cnt": int(_M.IBV_QP_RETRY_CNT),
    "rnr_retry": int(_M.IBV_QP_RNR_RETRY),
    "alt_port_num": int(_M.IBV_QP_ALT_PATH),
    "alt_timeout": int(_M.IBV_QP_ALT_PATH),
    "rate_limit": int(_M.IBV_QP_RATE_LIMIT),
}
_E = ibv_qp_init_attr_mask
_S = ibv_srq_init_attr_mask
#: Extended attributes that name objects which no device here has.
_FOREIGN = int(_E.IBV_QP_INIT_ATTR_XRCD | _E.IBV_QP_INIT_ATTR_IND_TABLE | _E.IBV_QP_INIT_ATTR_RX_HASH)

#: The functions of C{struct ibv_qp_ex}.
_BUILDERS = pointers(
    *(
        name
        for name, field in ffi.typeof("struct ibv_qp_ex").fields
        if field.type.kind == "function" and name.startswith("wr_")
    )
)
#: Behind the last field that the declarations have: rdma-core 44's headers have one more.
_ATOMIC_WRITE = ffi.offsetof("struct ibv_qp_ex", "wr_abort") + ffi.sizeof("void *")
_HAS_ATOMIC_WRITE = ffi.sizeof("struct ibv_qp_ex") > _ATOMIC_WRITE


#: In the place of a queue that C does not post to.
NOTHING: AbstractContextManager[None] = nullcontext()


class _Posted(VerbsObject):
    # The attributes of its class are the queues that C posts to, by their names in the structure; others are
    # L{NOTHING}.
    sends = receives = NOTHING

    def close(self) -> None:
        for each in (self.sends, self.receives):
            if isinstance(each, PostedQueue):
                each.close()
        self.sends = self.receives = NOTHING
        super().close()


class PostedQP(_Posted, verbs.QP):
    """
    A queue pair to which C posts.

    @ivar sends: its send queue, or L{NOTHING}.
    @ivar receives: its receive queue, or L{NOTHING}.
    """

    # Its own entries of L{completed}.
    _completed: Sequence[tuple[tuple[int, bool], PostedQueue]] = ()

    def reflect(self, structure: CData, shared: verbs.SRQ | None) -> None:
        """
        @param structure: its C{struct twisted_ib_qp}.
        @param shared: its shared receive queue, if it has one.
        """
        # Signals' handlers that came unseen count before the program posts: see building/view.c.
        lib.twisted_ib_look_for_handlers()
        work = self._work
        # C does not know address handles.
        if work.queuePair.type is not QPType.UD:
            self.sends = SendQueue(self, ffi.addressof(structure, "sends"))
        if shared is None:
            self.receives = ReceiveQueue(self, ffi.addressof(structure, "receives"))
        number = work.queuePair.number
        receives = shared.receives if isinstance(shared, PostedSRQ) else self.receives
        both = ((number, False), self.sends), ((number, True), receives)
        self._completed = [(key, each) for key, each in both if isinstance(each, PostedQueue)]
        completed.update(self._completed)
        structure.self = addressOf(structure)

    def close(self) -> None:
        for key, queue in self._completed:
            # Another device's queue pair may have taken its place.
            if completed.get(key) is queue:
                del completed[key]
        super().close()


class PostedQPEX(_Posted, verbs.QPEx):
    """
    One with requests that are built one by one, to which C does not post.
    """


class PostedSRQ(_Posted, verbs.SRQ):
    """
    A shared receive queue to which C posts.
    """

    def reflect(self, structure: CData) -> None:
        """
        @param structure: its C{struct twisted_ib_srq}.
        """
        lib.twisted_ib_look_for_handlers()
        self.receives = SharedQueue(self, ffi.addressof(structure, "receives"))
        with self.receives:
            structure.self = addressOf(structure)


def _sizes(cap: CData) -> verbs.QPCap:
    return verbs.QPCap(*(getattr(cap, name) for name in _SIZES))


def _plain(attr: CData) -> dict[str, Any]:
    # Both kinds of attributes of a new queue pair have these.
    return {
        "qp_type": attr.qp_type,
        "scq": cqAt.optional(attr.send_cq),
        "rcq": cqAt.optional(attr.recv_cq),
        "srq": srqAt.optional(attr.srq),
        "cap": _sizes(attr.cap),
        "sq_sig_all": 1 if attr.sq_sig_all else 0,
    }


def queuePair(context: CData, pd: CData, attr: CData, value: verbs.QP, extended: bool = False) -> CData:
    """
    @param context: the C{struct ibv_context}.
    @param pd: the C{struct ibv_pd}.
    @param attr: the attributes it was created with; they get the sizes that it has.
    @param extended: whether programs may post by C{ibv_wr_*}.
    @return: its C{struct ibv_qp}.
    """
    copyFields(value.query(0)[1], attr.cap, _SIZES)
    whole = ffi.new("struct twisted_ib_qp *", {"qp": _BUILDERS} if extended else {})
    structure = ffi.addressof(whole.qp, "qp_base")
    if isinstance(value, PostedQP):
        value.reflect(whole, srqAt.optional(attr.srq))
    if extended and _HAS_ATOMIC_WRITE:
        last = ffi.cast("void **", addressOf(whole) + _ATOMIC_WRITE)
        last[0] = pointers("wr_atomic_write")["wr_atomic_write"]
    structure.context, structure.pd, structure.state = context, pd, value.qp_state
    copyFields(attr, structure, ("qp_context", "send_cq", "recv_cq", "srq", "qp_type"))
    copyFields(value, structure, ("handle", "qp_num"))
    parents = (context, pd, attr.send_cq, attr.recv_cq, attr.srq)
    handles.add(addressOf(structure), "ibv_qp", value, whole, map(addressOf, parents))
    return structure


@handler
def ibv_create_qp(pd: CData, attr: CData) -> CData:
    domain = pdAt(pd, attr)
    return queuePair(pd.context, pd, attr, PostedQP(domain, verbs.QPInitAttr(**_plain(attr))))


@handler
def create_qp_ex(context: CData, attr: CData) -> CData:
    owner = contextAt(context, attr)
    mask = attr.comp_mask
    if mask & _FOREIGN:
        raise unsupported()
    plain = _plain(attr)
    domain = pdAt(attr.pd) if mask & _E.IBV_QP_INIT_ATTR_PD else None
    extended = bool(mask & _E.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
    made = verbs.QPInitAttrEx(
        **plain,
        comp_mask=mask,
        pd=domain,
        create_flags=attr.create_flags,
        # They have more bits there, and a program may leave them as they are.
        send_ops_flags=attr.send_ops_flags if extended else 0,
    )
    value = (PostedQPEX if extended else PostedQP)(owner, made)
    return queuePair(context, attr.pd, attr, value, extended)


@handler
def ibv_modify_qp(qp: CData, attr: CData, mask: int) -> int:
    value = qpAt(qp, attr)
    made = verbs.QPAttr(port_num=0)
    for name, bit in _ATTRIBUTES.items():
        # Programs leave what the mask does not have as it was on the stack.
        if mask & bit:
            setattr(made, name, getattr(attr, name))
    if mask & _M.IBV_QP_AV:
        made.ah_attr = readAddress(attr.ah_attr)
    if mask & _M.IBV_QP_ALT_PATH:
        made.alt_ah_attr = readAddress(attr.alt_ah_attr)
    if mask & _M.IBV_QP_CAP:
        made.cap = _sizes(attr.cap)
    with value.sends, value.receives:
        value.modify(made, mask)
    qp.state = value.qp_state
    return 0


@handler
def ibv_query_qp(qp: CData, attr: CData, mask: int, init: CData) -> int:
    value = qpAt(qp, attr, init)
    made, created = value.query(mask)
    copyFields(made, attr, _ATTRIBUTES)
    attr.sq_draining = made.sq_draining
    copyFields(created, attr.cap, _SIZES)
    writeAddress(made.ah_attr, attr.ah_attr)
    writeAddress(made.alt_ah_attr, attr.alt_ah_attr)
    copyFields(created, init.cap, _SIZES)
    init.qp_context = qp.qp_context
    init.send_cq, init.recv_cq, init.srq = qp.send_cq, qp.recv_cq, qp.srq
    init.qp_type, init.sq_sig_all = qp.qp_type, created.sq_sig_all
    qp.state = made.qp_state
    return 0


@handler
def ibv_query_qp_data_in_order(qp: CData, op: int, flags: int) -> int:
    return qpAt(qp).query_data_in_order(int(op), flags)


@handlers("ibv_attach_mcast", "ibv_detach_mcast")
def _multicast(name: str) -> Callable[[CData, CData, int], int]:
    def call(qp: CData, gid: CData, lid: int) -> int:
        getattr(qpAt(qp, gid), name.removeprefix("ibv_"))(gidOf(gid), lid)
        return 0

    return call


@handler
def ibv_set_ece(qp: CData, ece: CData) -> int:
    """
    Choose a vendor's options, of which there are none.
    """
    value = qpAt(qp, ece)
    value.set_ece(verbs.ECE(ece.vendor_id, ece.options, ece.comp_mask))
    return 0


@handler
def ibv_query_ece(qp: CData, ece: CData) -> int:
    """
    A vendor's options, of which there are none.
    """
    value = qpAt(qp, ece)
    value.query_ece()
    return 0


def _receiveQueue(pd: CData, attr: CData, value: PostedSRQ) -> CData:
    # man ibv_create_srq(3): the structure gets the sizes that it has.
    copyFields(value.query(), attr.attr, _RECEIVE_SIZES[:2])
    fields = {"context": pd.context, "srq_context": attr.srq_context, "pd": pd, "handle": value.handle}
    whole = ffi.new("struct twisted_ib_srq *", {"srq": fields})
    value.reflect(whole)
    structure = ffi.addressof(whole, "srq")
    handles.add(addressOf(structure), "ibv_srq", value, whole, map(addressOf, (pd.context, pd)))
    return structure


def _receiveSizes(attr: CData) -> verbs.SrqAttr:
    return verbs.SrqAttr(*(getattr(attr, name) for name in _RECEIVE_SIZES))


@handler
def ibv_create_srq(pd: CData, attr: CData) -> CData:
    domain = pdAt(pd, attr)
    return _receiveQueue(pd, attr, PostedSRQ(domain, verbs.SrqInitAttr(_receiveSizes(attr.attr))))


@handler
def create_srq_ex(context: CData, attr: CData) -> CData:
    owner = contextAt(context, attr)
    made = verbs.SrqInitAttrEx(*(getattr(attr.attr, name) for name in _RECEIVE_SIZES))
    made.comp_mask = attr.comp_mask
    made.srq_type = attr.srq_type if attr.comp_mask & _S.IBV_SRQ_INIT_ATTR_TYPE else 0
    made.pd = pdAt(attr.pd) if attr.comp_mask & _S.IBV_SRQ_INIT_ATTR_PD else None
    return _receiveQueue(attr.pd, attr, PostedSRQ(owner, made))


@handler
def ibv_modify_srq(srq: CData, attr: CData, mask: int) -> int:
    value = srqAt(srq, attr)
    with value.receives:
        value.modify(_receiveSizes(attr), mask)
    return 0


@handler
def ibv_query_srq(srq: CData, attr: CData) -> int:
    value = srqAt(srq, attr)
    copyFields(value.query(), attr, _RECEIVE_SIZES)
    return 0
