"""
Requests built one by one: C{ibv_wr_*}.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar, cast
from weakref import WeakKeyDictionary

from _twisted_ib_verbs import ffi

from twisted_ib import limits
from twisted_ib.hca.queues.requests import ATOMIC_BYTES
from twisted_ib.verbs import pyverbs as verbs
from twisted_ib.verbs.c.errors import HandleError, unsupported
from twisted_ib.verbs.c.functions import handler, handlers
from twisted_ib.verbs.c.pointers import CData, addressOf, given
from twisted_ib.verbs.c.verbs.memory import bindInfo
from twisted_ib.verbs.c.verbs.structures import ahAt, mwAt, qpAt
from twisted_ib.verbs.c.verbs.work import elements
from twisted_ib.verbs.pyverbs.base.wr import storedImmediate

Function = TypeVar("Function", bound=Callable[..., None])


def _queuePair(qp: CData) -> verbs.QPEx:
    value = qpAt(qp)
    if not isinstance(value, verbs.QPEx):
        raise HandleError("The queue pair was created without IBV_QP_INIT_ATTR_SEND_OPS_FLAGS")
    return value


def _begun(qp: CData) -> verbs.QPEx:
    value = _queuePair(qp)
    # Programs set these fields before the call.
    value.wr_id, value.wr_flags = qp.wr_id, qp.wr_flags
    return value


#: The first failure of each queue pair's batch.
_failures: WeakKeyDictionary[verbs.QPEx, Exception] = WeakKeyDictionary()


def _builder(function: Function) -> Function:
    @wraps(function)
    def call(qp: CData, *arguments: CData) -> None:
        value = _queuePair(qp)
        try:
            function(qp, *arguments)
        # man ibv_wr_post(3): these functions report nothing, and ibv_wr_complete what failed in any of them.
        except Exception as error:
            _failures.setdefault(value, error)
            raise

    return cast(Function, call)


@handler
def ibv_qp_to_qp_ex(qp: CData) -> CData:
    value = qpAt(qp)
    # Not an error: programs ask so whether it has one.
    return ffi.cast("struct ibv_qp_ex *", qp) if isinstance(value, verbs.QPEx) else ffi.NULL


@handler
def wr_start(qp: CData) -> None:
    value = _queuePair(qp)
    _failures.pop(value, None)
    value.wr_start()


@handler
def wr_complete(qp: CData) -> int:
    value = _queuePair(qp)
    failed = _failures.pop(value, None)
    if failed is not None:
        value.wr_abort()
        raise failed
    value.wr_complete()
    return 0


@handler
def wr_abort(qp: CData) -> None:
    value = _queuePair(qp)
    _failures.pop(value, None)
    value.wr_abort()


@handlers(
    *("wr_send", "wr_send_inv", "wr_rdma_read", "wr_rdma_write"),
    *("wr_atomic_cmp_swp", "wr_atomic_fetch_add", "wr_local_inv"),
)
def _beginning(name: str) -> Callable[..., None]:
    @_builder
    def begin(qp: CData, *numbers: int) -> None:
        getattr(_begun(qp), name)(*numbers)

    return begin


@handler
@_builder
def wr_send_imm(qp: CData, data: int) -> None:
    _begun(qp).wr_send_imm(storedImmediate(data))


@handler
@_builder
def wr_send_tso(qp: CData, hdr: CData, size: int, mss: int) -> None:
    """
    Nothing: there are no segmented sends.
    """
    _begun(qp)
    raise unsupported()


@handler
@_builder
def wr_rdma_write_imm(qp: CData, rkey: int, addr: int, data: int) -> None:
    _begun(qp).wr_rdma_write_imm(rkey, addr, storedImmediate(data))


@handler
@_builder
def wr_atomic_write(qp: CData, rkey: int, addr: int, atomic_wr: CData) -> None:
    """
    Begin an ATOMIC WRITE, whose value is copied.
    """
    given(atomic_wr)
    _begun(qp).wr_atomic_write(rkey, addr, bytes(ffi.buffer(atomic_wr, ATOMIC_BYTES)))


@handler
@_builder
def wr_bind_mw(qp: CData, mw: CData, rkey: int, info: CData) -> None:
    value = _begun(qp)
    given(info)
    value.wr_bind_mw(mwAt(mw), rkey, bindInfo(info))


@handler
@_builder
def wr_set_sge(qp: CData, lkey: int, addr: int, length: int) -> None:
    _queuePair(qp).wr_set_sge(verbs.SGE(addr, length, lkey))


@handler
@_builder
def wr_set_sge_list(qp: CData, count: int, list: CData) -> None:
    pieces = [verbs.SGE(each.address, each.length, each.key) for each in elements(list, count)]
    _queuePair(qp).wr_set_sge_list(count, pieces)


@handler
@_builder
def wr_set_inline_data(qp: CData, addr: CData, length: int) -> None:
    _queuePair(qp).wr_set_inline_data(addressOf(addr), length)


@handler
@_builder
def wr_set_inline_data_list(qp: CData, count: int, list: CData) -> None:
    value = _queuePair(qp)
    if count > limits.SCATTER_GATHER_ELEMENTS:
        raise HandleError(f"A request has at most {limits.SCATTER_GATHER_ELEMENTS} pieces, not {count}")
    if count:
        given(list)
    pieces = [verbs.DataBuffer(addressOf(each.addr), each.length) for each in list[0:count]] if count else []
    value.wr_set_inline_data_list(count, pieces)


@handler
@_builder
def wr_set_ud_addr(qp: CData, ah: CData, qpn: int, qkey: int) -> None:
    _queuePair(qp).wr_set_ud_addr(ahAt(ah), qpn, qkey)


@handler
@_builder
def wr_set_xrc_srqn(qp: CData, srqn: int) -> None:
    """
    Nothing: there are no XRC queue pairs.
    """
    _queuePair(qp)
    raise unsupported()
