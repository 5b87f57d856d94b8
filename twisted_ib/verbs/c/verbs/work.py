"""
Work requests: posting to send and receive queues.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from twisted_ib import limits
from twisted_ib.hca.base.states import QPType
from twisted_ib.hca.queues.receives import SGE, ReceiveRequest
from twisted_ib.hca.queues.requests import Destination, SendOpcode, SendRequest
from twisted_ib.verbs import pyverbs as verbs
from twisted_ib.verbs.c.errors import HandleError
from twisted_ib.verbs.c.functions import handler
from twisted_ib.verbs.c.pointers import CData, given
from twisted_ib.verbs.c.postings import settle
from twisted_ib.verbs.c.verbs.memory import bindInfo
from twisted_ib.verbs.c.verbs.structures import ahAt, mwAt, qpAt, srqAt
from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.pyverbs.base.posting import FLAGS, INLINE, INVALIDATING, OPCODES, gather, windowBind
from twisted_ib.verbs.pyverbs.base.wr import storedImmediate

#: Operations whose request has its remote address in C{wr.rdma}.
_RDMA = frozenset(
    (SendOpcode.RDMA_WRITE, SendOpcode.RDMA_WRITE_WITH_IMM, SendOpcode.RDMA_READ, SendOpcode.ATOMIC_WRITE)
)
_ATOMIC = frozenset((SendOpcode.ATOMIC_CMP_AND_SWP, SendOpcode.ATOMIC_FETCH_AND_ADD))
_BIND = SendOpcode.BIND_MW
#: Operations whose structure has no list: the field may be whatever was on the stack.
_WITHOUT_LIST = frozenset((_BIND, SendOpcode.LOCAL_INV))


def elements(list: CData, count: int) -> list[SGE]:
    """
    @param list: a C{struct ibv_sge *}.
    @return: the elements.
    @raise HandleError: the count is out of bounds, or the list is null (EINVAL).
    """
    if not 0 <= count <= limits.SCATTER_GATHER_ELEMENTS:
        raise HandleError(f"A request has 0 to {limits.SCATTER_GATHER_ELEMENTS} elements, not {count}")
    if not count:
        return []
    if not list:
        given(list)
    return [SGE(each.addr, each.length, each.lkey) for each in list[0:count]]


def _postSend(qp: verbs.QP, wr: CData) -> CData:
    code, flags = wr.opcode, wr.send_flags & FLAGS
    opcode = OPCODES[code]
    pieces = [] if code in _WITHOUT_LIST else elements(wr.sg_list, wr.num_sge)
    request = SendRequest(wr.wr_id, opcode, pieces, flags)
    if flags & INLINE:
        request.pieces, request.inline = (), gather(qp._device, pieces)
    value = wr.imm_data
    if code in INVALIDATING:
        request.invalidateKey = value
    elif value:
        request.immediate = storedImmediate(value)
    if code in _RDMA:
        target = wr.wr.rdma
        request.remoteAddress, request.remoteKey = target.remote_addr, target.rkey
    elif code in _ATOMIC:
        target = wr.wr.atomic
        request.remoteAddress, request.remoteKey = target.remote_addr, target.rkey
        # libibverbs/verbs.h wr.atomic: compare_add is the operand of FETCH_ADD too; swap is ignored there.
        request.compare, request.swap = target.compare_add, target.swap
    elif code == _BIND:
        bind = wr.bind_mw
        request.bind = windowBind(mwAt(bind.mw), bindInfo(bind.bind_info), bind.rkey)
    elif qp._core.type is QPType.UD:
        target = wr.wr.ud
        handle = ahAt(target.ah)._core
        request.destination = Destination(handle, target.remote_qpn, target.remote_qkey)
    qp._work.requester.enqueue(request, True)
    return wr.next


def _postReceive(accept: Callable[[ReceiveRequest, bool], object], wr: CData) -> CData:
    accept(ReceiveRequest(wr.wr_id, elements(wr.sg_list, wr.num_sge)), True)
    return wr.next


def _refused(bad: CData, wr: CData, error: BaseException) -> None:
    bad[0] = wr


@handler
def post_send(qp: CData, wr: CData, bad: CData) -> int:
    """
    Post send requests, those that C has not recorded.
    """
    if not wr:
        settle()
        return 0
    value = qpAt(qp)
    # bad is written to by a failure only: programs compare it with what they have put there.
    with value.sends:
        hub.post(partial(_postSend, value), wr, _refused, bad)
    return 0


@handler
def post_recv(qp: CData, wr: CData, bad: CData) -> int:
    """
    Post receives, those that C has not recorded.
    """
    if not wr:
        settle()
        return 0
    value = qpAt(qp)
    with value.receives:
        hub.post(partial(_postReceive, value._work.postReceive), wr, _refused, bad)
    return 0


@handler
def post_srq_recv(srq: CData, wr: CData, bad: CData) -> int:
    """
    Post receives to a shared receive queue, those that C has not recorded.
    """
    if not wr:
        settle()
        return 0
    value = srqAt(srq)
    with value.receives:
        hub.post(partial(_postReceive, value._core.post), wr, _refused, bad)
    return 0
