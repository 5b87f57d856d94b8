"""
Connections: listening, connecting, accepting, rejecting and disconnecting; multicast groups.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from twisted_ib.verbs.c.cm.channels import acknowledgeLast, complete, takeEvent
from twisted_ib.verbs.c.cm.queues import copyAttributes, createQP, followQP
from twisted_ib.verbs.c.cm.structures import Endpoint, endpointOf, octets, socketAddress
from twisted_ib.verbs.c.errors import HandleError
from twisted_ib.verbs.c.functions import AGAIN, handler, handlers
from twisted_ib.verbs.c.pointers import CData
from twisted_ib.verbs.pyverbs import AddrInfo, ConnParam, JoinMCAttrEx, enums
from twisted_ib.verbs.pyverbs.cm.call import Stage

_E = enums.rdma_cm_event_type
_MASK = enums.rdma_cm_join_mc_attr_mask
#: Without parameters, librdmacm retries as often as can be said.
_RETRIES = 7
#: C{rdma_conn_param} has one octet for the length.
_MOST_DATA = 255


def _parameters(endpoint: Endpoint, param: CData) -> ConnParam | None:
    before = endpoint.connectData
    if not param and not before:
        return None
    made = ConnParam(enums.RDMA_MAX_RESP_RES, enums.RDMA_MAX_INIT_DEPTH, retry=_RETRIES, rnr_retry=_RETRIES)
    data = before
    if param:
        # librdmacm cma.c, rdma_connect and rdma_accept: with a queue pair the program's values are not looked
        # at.
        qp = endpoint.cmid.qp
        made = ConnParam(
            param.responder_resources,
            param.initiator_depth,
            param.flow_control,
            param.retry_count,
            param.rnr_retry_count,
            *((int(param.srq), param.qp_num) if qp is None else (0, qp.qp_num)),
        )
        data += octets(param.private_data, param.private_data_len)
    made.data_len = min(len(data), _MOST_DATA)
    made.set_private_data(data)
    return made


@handler
def rdma_listen(id: CData, backlog: int) -> int:
    endpoint = endpointOf(id)
    endpoint.cmid.listen(max(backlog, 0))
    endpoint.showAddresses()
    endpoint.showDevice()
    return 0


@handler
def rdma_get_request(listener: CData, id: CData) -> int:
    """
    Wait for a request to a synchronous identifier; the identifier that answers it has a queue pair if the
    listener has attributes for one.
    """
    endpoint = endpointOf(listener, id)
    if not endpoint.isSynchronous:
        raise HandleError("The identifier is not synchronous")
    acknowledgeLast(endpoint)
    event = takeEvent(endpoint.channel)
    if event is None:
        return AGAIN
    try:
        if event.event == _E.RDMA_CM_EVENT_REJECTED:
            raise HandleError("The request is rejected", errno.ECONNREFUSED)
        if event.status:
            raise HandleError(_E(event.event).name, abs(event.status))
        if event.event != _E.RDMA_CM_EVENT_CONNECT_REQUEST:
            raise HandleError(f"{_E(event.event).name} is no request")
        if endpoint.initAttr is not None:
            createQP(endpointOf(event.id), endpoint.structure.pd, copyAttributes(endpoint.initAttr))
    except BaseException:
        endpoint.structure.event = event
        raise
    event.id.event = event
    id[0] = event.id
    return 0


@handler
def rdma_connect(id: CData, param: CData) -> int:
    endpoint = endpointOf(id)
    followQP(endpoint)
    endpoint.cmid.connect(_parameters(endpoint, param))
    endpoint.connectData = b""
    return complete(endpoint)


@handler
def rdma_establish(id: CData) -> int:
    endpointOf(id).cmid.establish()
    return 0


@handler
def rdma_accept(id: CData, param: CData) -> int:
    endpoint = endpointOf(id)
    followQP(endpoint)
    endpoint.cmid.accept(_parameters(endpoint, param))
    # A service of datagrams is answered, and that is all (librdmacm cma.c, rdma_accept).
    return 0 if endpoint.structure.qp_type == enums.IBV_QPT_UD else complete(endpoint)


@handler
def rdma_reject(id: CData, data: CData, length: int) -> int:
    endpointOf(id).cmid.reject(octets(data, length))
    return 0


@handler
def rdma_reject_ece(id: CData, data: CData, length: int) -> int:
    """
    Reject a request for its vendor options: no request here has any.
    """
    endpointOf(id)
    raise HandleError("There are no vendor options", errno.EOPNOTSUPP)


@handler
def rdma_notify(id: CData, event: int) -> int:
    endpoint = endpointOf(id)
    if event != enums.IBV_EVENT_COMM_EST:
        raise HandleError("The communication manager needs no such event")
    identifier = endpoint.cmid.identifier
    # Linux cma.c, rdma_notify, and cm.c, cm_establish: there must be a connection, and a REP was sent.  The
    # first message has told it already: both are in one HCA.
    if identifier is None or identifier.isDatagram or identifier.stage is not Stage.UP:
        raise HandleError("The identifier has no connection that was accepted")
    return 0


@handler
def rdma_disconnect(id: CData) -> int:
    endpoint = endpointOf(id)
    endpoint.cmid.disconnect()
    return complete(endpoint)


@handlers("rdma_set_local_ece", "rdma_get_remote_ece")
def _withoutOptions(name: str) -> Callable[[CData, CData], int]:
    def refuse(id: CData, ece: CData) -> int:
        endpointOf(id, ece)
        raise HandleError("There are no vendor options", errno.EOPNOTSUPP)

    return refuse


# -- multicast groups


def _group(addr: CData) -> AddrInfo:
    info = AddrInfo()
    info.source = socketAddress(addr).address
    return info


@handler
def rdma_join_multicast(id: CData, addr: CData, context: CData) -> int:
    endpoint = endpointOf(id)
    endpoint.cmid.join_multicast(_group(addr), context=context)
    return complete(endpoint)


@handler
def rdma_join_multicast_ex(id: CData, attr: CData, context: CData) -> int:
    endpoint = endpointOf(id, attr)
    # Which attributes are there is for the verb to say; without an address there is none to read.
    group = _group(attr.addr) if attr.comp_mask & _MASK.RDMA_CM_JOIN_MC_ATTR_ADDRESS else AddrInfo()
    request = JoinMCAttrEx(group, attr.comp_mask, attr.join_flags)
    endpoint.cmid.join_multicast(mc_attr=request, context=context)
    return complete(endpoint)


@handler
def rdma_leave_multicast(id: CData, addr: CData) -> int:
    endpointOf(id).cmid.leave_multicast(_group(addr))
    return 0
