"""
The queue pair, completion queues and shared receive queue of an identifier.

They are libibverbs' objects; the communication manager moves the queue pair through its states.  Source:
rdma-core 44, C{librdmacm/cma.c}: C{rdma_create_qp_ex}, C{rdma_create_srq_ex}, C{ucma_create_cqs}.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from _twisted_ib_cm import ffi
from _twisted_ib_verbs import ffi as verbsFFI

from twisted_ib.verbs.c.cm.structures import Endpoint, endpointOf, endpoints
from twisted_ib.verbs.c.errors import HandleError
from twisted_ib.verbs.c.functions import handler
from twisted_ib.verbs.c.handles import handles
from twisted_ib.verbs.c.pointers import CData, addressOf
from twisted_ib.verbs.c.verbs.address import writeAddress
from twisted_ib.verbs.c.verbs.completion import ibv_create_comp_channel, ibv_create_cq
from twisted_ib.verbs.c.verbs.queues import (
    create_qp_ex,
    create_srq_ex,
    ibv_create_qp,
    ibv_create_srq,
)
from twisted_ib.verbs.c.verbs.structures import qpAt
from twisted_ib.verbs.pyverbs import QPAttr, enums

_M = enums.ibv_qp_attr_mask
_SIDES = ("send", "recv")
#: The attributes that the communication manager sets, by their bits.
_ATTRIBUTES = {
    _M.IBV_QP_ACCESS_FLAGS: "qp_access_flags",
    _M.IBV_QP_PKEY_INDEX: "pkey_index",
    _M.IBV_QP_PORT: "port_num",
    _M.IBV_QP_QKEY: "qkey",
    _M.IBV_QP_PATH_MTU: "path_mtu",
    _M.IBV_QP_TIMEOUT: "timeout",
    _M.IBV_QP_RETRY_CNT: "retry_cnt",
    _M.IBV_QP_RNR_RETRY: "rnr_retry",
    _M.IBV_QP_RQ_PSN: "rq_psn",
    _M.IBV_QP_SQ_PSN: "sq_psn",
    _M.IBV_QP_MAX_QP_RD_ATOMIC: "max_rd_atomic",
    _M.IBV_QP_MAX_DEST_RD_ATOMIC: "max_dest_rd_atomic",
    _M.IBV_QP_MIN_RNR_TIMER: "min_rnr_timer",
    _M.IBV_QP_DEST_QPN: "dest_qp_num",
}


def _verbs(kind: str, pointer: CData) -> CData:
    # The same pointer, with the type that libibverbs' handlers have.
    return verbsFFI.cast(f"struct {kind} *", addressOf(pointer))


def _own(kind: str, pointer: CData) -> CData:
    return ffi.cast(f"struct {kind} *", addressOf(pointer))


def copyAttributes(attr: CData) -> CData:
    """
    @return: a copy of a C{struct ibv_qp_init_attr}.
    """
    return verbsFFI.new("struct ibv_qp_init_attr *", _verbs("ibv_qp_init_attr", attr)[0])


# -- completion queues


def _createCQs(endpoint: Endpoint, attr: CData) -> None:
    """
    Make the completion queues that neither the attributes nor the identifier have.

    @param attr: the attributes of a queue pair; they get the identifier's queues.
    """
    own = endpoint.structure
    try:
        for side in _SIDES:
            given_, made = getattr(attr, f"{side}_cq"), getattr(own, f"{side}_cq")
            if given_ and made and addressOf(given_) != addressOf(made):
                raise HandleError("The identifier has another completion queue")
            depth = getattr(attr.cap, f"max_{side}_wr")
            if not given_ and not made and depth:
                _createCQ(endpoint, side, depth)
            if not given_:
                setattr(attr, f"{side}_cq", _verbs("ibv_cq", getattr(own, f"{side}_cq")))
    except BaseException:
        _destroyCQs(endpoint)
        raise


def _createCQ(endpoint: Endpoint, side: str, depth: int) -> None:
    own = endpoint.structure
    context = _verbs("ibv_context", own.verbs)
    # librdmacm cma.c, ucma_create_cqs: each completion queue has a channel of its own, and the identifier as
    # its context.
    channel = ibv_create_comp_channel(context)
    setattr(own, f"{side}_cq_channel", _own("ibv_comp_channel", channel))
    queue = ibv_create_cq(context, depth, verbsFFI.cast("void *", addressOf(own)), channel, 0)
    setattr(own, f"{side}_cq", _own("ibv_cq", queue))


def _destroyCQs(endpoint: Endpoint) -> None:
    own = endpoint.structure
    for side in _SIDES:
        for field, kind in ((f"{side}_cq", "ibv_cq"), (f"{side}_cq_channel", "ibv_comp_channel")):
            if getattr(own, field):
                handles.remove(addressOf(getattr(own, field)), kind)
                setattr(own, field, ffi.NULL)


# -- queue pairs


def createQP(endpoint: Endpoint, pd: CData, attr: CData) -> None:
    """
    Make the queue pair.

    @param pd: its domain; null for the identifier's.
    @param attr: a C{struct ibv_qp_init_attr} of either library; it gets the queues and sizes.
    """
    domain = _verbs("ibv_pd", pd or endpoint.structure.pd)
    _create(endpoint, _verbs("ibv_qp_init_attr", attr), lambda found: ibv_create_qp(domain, found))


def _create(endpoint: Endpoint, attr: CData, make: Callable[[CData], CData]) -> None:
    own = endpoint.structure
    if own.qp:
        raise HandleError("The identifier has a queue pair")
    if not own.verbs:
        raise HandleError("The identifier has no device")
    _createCQs(endpoint, attr)
    try:
        if own.srq and not attr.srq:
            attr.srq = _verbs("ibv_srq", own.srq)
        made = make(attr)
        try:
            endpoint.cmid.take_qp(qpAt(made))
        except BaseException:
            handles.remove(addressOf(made), "ibv_qp")
            raise
    except BaseException:
        _destroyCQs(endpoint)
        raise
    own.qp, own.pd = _own("ibv_qp", made), _own("ibv_pd", made.pd)


def followQP(endpoint: Endpoint) -> None:
    """
    Give an identifier the queue pair that its field C{qp} has: the uDAPL provider moves one so, from the
    identifier that it was made on to the one that a request has come with.
    """
    own = endpoint.structure
    qp = qpAt(_verbs("ibv_qp", own.qp)) if own.qp else None
    if qp is None or endpoint.cmid.qp is qp:
        return
    for other in endpoints.withQP(qp):
        other.cmid.release_qp()
    endpoint.cmid.take_qp(qp)


@handler
def rdma_create_qp(id: CData, pd: CData, attr: CData) -> int:
    endpoint = endpointOf(id, attr)
    createQP(endpoint, pd, attr)
    return 0


@handler
def rdma_create_qp_ex(id: CData, attr: CData) -> int:
    endpoint = endpointOf(id, attr)
    extended = _verbs("ibv_qp_init_attr_ex", attr)
    if not extended.comp_mask & enums.IBV_QP_INIT_ATTR_PD or not extended.pd:
        extended.comp_mask |= enums.IBV_QP_INIT_ATTR_PD
        extended.pd = _verbs("ibv_pd", endpoint.structure.pd)
    context = _verbs("ibv_context", endpoint.structure.verbs)
    _create(endpoint, extended, lambda found: create_qp_ex(context, found))
    return 0


@handler
def rdma_destroy_qp(id: CData) -> None:
    endpoint = endpointOf(id)
    own = endpoint.structure
    if not own.qp:
        raise HandleError("The identifier has no queue pair")
    handles.remove(addressOf(own.qp), "ibv_qp")
    own.qp = ffi.NULL
    endpoint.cmid.destroy_qp()
    _destroyCQs(endpoint)


def _fill(found: QPAttr, target: CData, bits: int) -> None:
    target.qp_state = found.qp_state
    for bit, name in _ATTRIBUTES.items():
        if bits & bit:
            setattr(target, name, getattr(found, name))
    if bits & _M.IBV_QP_AV:
        writeAddress(found.ah_attr, target.ah_attr)


@handler
def rdma_init_qp_attr(id: CData, attr: CData, mask: CData) -> int:
    endpoint = endpointOf(id, attr, mask)
    target = _verbs("ibv_qp_attr", attr)
    found, bits = endpoint.cmid.init_qp_attr(target.qp_state)
    _fill(found, target, bits)
    mask[0] = int(bits)
    return 0


# -- shared receive queues


@handler
def rdma_create_srq(id: CData, pd: CData, attr: CData) -> int:
    endpoint = endpointOf(id, attr)
    own = endpoint.structure
    if own.srq:
        raise HandleError("The identifier has a shared receive queue")
    made = ibv_create_srq(_verbs("ibv_pd", pd or own.pd), _verbs("ibv_srq_init_attr", attr))
    own.srq, own.pd = _own("ibv_srq", made), _own("ibv_pd", made.pd)
    return 0


@handler
def rdma_create_srq_ex(id: CData, attr: CData) -> int:
    endpoint = endpointOf(id, attr)
    own, extended = endpoint.structure, _verbs("ibv_srq_init_attr_ex", attr)
    if own.srq or not extended.comp_mask & enums.IBV_SRQ_INIT_ATTR_TYPE:
        raise HandleError("The identifier has a shared receive queue, or its type is missing")
    if extended.srq_type == enums.IBV_SRQT_XRC:
        raise HandleError("There are no XRC queues", errno.EOPNOTSUPP)
    if not extended.comp_mask & enums.IBV_SRQ_INIT_ATTR_PD or not extended.pd:
        extended.comp_mask |= enums.IBV_SRQ_INIT_ATTR_PD
        extended.pd = _verbs("ibv_pd", own.pd)
    made = create_srq_ex(_verbs("ibv_context", own.verbs), extended)
    own.srq, own.pd = _own("ibv_srq", made), _own("ibv_pd", made.pd)
    return 0


@handler
def rdma_destroy_srq(id: CData) -> None:
    endpoint = endpointOf(id)
    own = endpoint.structure
    if not own.srq:
        raise HandleError("The identifier has no shared receive queue")
    handles.remove(addressOf(own.srq), "ibv_srq")
    own.srq = ffi.NULL
    _destroyCQs(endpoint)
