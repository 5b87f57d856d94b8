"""
Work requests: posting to send and receive queues.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from twisted_ib import limits
from twisted_ib.verbs import pyverbs as verbs
from twisted_ib.verbs.c.errors import HandleError
from twisted_ib.verbs.c.functions import handler
from twisted_ib.verbs.c.pointers import CData, given
from twisted_ib.verbs.c.verbs.memory import bindInfo
from twisted_ib.verbs.c.verbs.structures import objectOf
from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.pyverbs.base.wr import WindowBind
from twisted_ib.verbs.pyverbs.enums.queues import ibv_qp_type, ibv_wr_opcode

_O = ibv_wr_opcode
_RDMA = frozenset((int(_O.IBV_WR_RDMA_WRITE), int(_O.IBV_WR_RDMA_WRITE_WITH_IMM), int(_O.IBV_WR_RDMA_READ)))
_ATOMIC = frozenset((int(_O.IBV_WR_ATOMIC_CMP_AND_SWP), int(_O.IBV_WR_ATOMIC_FETCH_AND_ADD)))
_BIND = int(_O.IBV_WR_BIND_MW)
#: Operations whose structure has no list: the field may be whatever was on the stack.
_WITHOUT_LIST = frozenset((_BIND, int(_O.IBV_WR_LOCAL_INV)))
_UD = int(ibv_qp_type.IBV_QPT_UD)
#: In place of no element: pyverbs' requests need one, C's do not.
_NO_ELEMENT = [verbs.SGE(0, 0, 0)]


def elements(list: CData, count: int) -> list[verbs.SGE]:
    """
    @param list: a C{struct ibv_sge *}.
    @param count: its elements.
    @return: the elements.
    @raise HandleError: the count is out of bounds, or the list is null (EINVAL).
    """
    if not 0 <= count <= limits.SCATTER_GATHER_ELEMENTS:
        raise HandleError(f"A request has 0 to {limits.SCATTER_GATHER_ELEMENTS} elements, not {count}")
    if not count:
        return []
    given(list)
    return [verbs.SGE(each.addr, each.length, each.lkey) for each in list[0:count]]


def _sendRequest(wr: CData, isDatagram: bool) -> verbs.SendWR:
    opcode = wr.opcode
    pieces = [] if opcode in _WITHOUT_LIST else elements(wr.sg_list, wr.num_sge)
    made = verbs.SendWR(
        wr.wr_id, opcode, len(pieces) or 1, wr.imm_data, pieces or _NO_ELEMENT, wr.send_flags & 0xFFFFFFFF
    )
    made.num_sge = len(pieces)
    if opcode in _RDMA:
        target = wr.wr.rdma
        made.set_wr_rdma(target.rkey, target.remote_addr)
    elif opcode in _ATOMIC:
        target = wr.wr.atomic
        made.set_wr_atomic(target.rkey, target.remote_addr, target.compare_add, target.swap)
    elif opcode == _BIND:
        bind = wr.bind_mw
        made.bind_mw = WindowBind(objectOf(bind.mw, "ibv_mw"), bind.rkey, bindInfo(bind.bind_info))
    elif isDatagram:
        target = wr.wr.ud
        made.set_wr_ud(objectOf(target.ah, "ibv_ah"), target.remote_qpn, target.remote_qkey)
    return made


def _post(wr: CData, bad: CData, post: Callable[[CData], object]) -> int:
    given(wr, bad)
    # One verb for the chain, so that the peer is woken once.
    with hub:
        for _ in range(limits.WORK_QUEUE_DEPTH):
            # man ibv_post_send(3): the first request that failed; those before it are posted.
            bad[0] = wr
            post(wr)
            wr = wr.next
            if not wr:
                return 0
        # A queue in the error state takes any number, as each is flushed at once: a list that is a circle
        # would have no end.
        bad[0] = wr
    raise HandleError("The list is longer than any queue", errno.ENOMEM)


@handler
def post_send(qp: CData, wr: CData, bad: CData) -> int:
    """
    Post send requests.
    """
    value = objectOf(qp, "ibv_qp")
    isDatagram = value.qp_type == _UD
    return _post(wr, bad, lambda each: value.post_send(_sendRequest(each, isDatagram)))


def _receiveRequest(wr: CData) -> verbs.RecvWR:
    pieces = elements(wr.sg_list, wr.num_sge)
    return verbs.RecvWR(wr.wr_id, len(pieces), pieces)


@handler
def post_recv(qp: CData, wr: CData, bad: CData) -> int:
    """
    Post receives.
    """
    value = objectOf(qp, "ibv_qp")
    return _post(wr, bad, lambda each: value.post_recv(_receiveRequest(each)))


@handler
def post_srq_recv(srq: CData, wr: CData, bad: CData) -> int:
    """
    Post receives to a shared receive queue.
    """
    value = objectOf(srq, "ibv_srq")
    return _post(wr, bad, lambda each: value.post_recv(_receiveRequest(each)))


__all__ = ["elements"]
