"""
Identifiers: making and destroying them, their channels and options, and the devices that they may have.
"""

from __future__ import annotations

import errno

from _twisted_ib_cm import ffi

from twisted_ib.verbs.c import attend
from twisted_ib.verbs.c.chosen import chosenDevice
from twisted_ib.verbs.c.cm.channels import acknowledgeLast, complete
from twisted_ib.verbs.c.cm.queues import copyAttributes, createQP, rdma_destroy_qp, rdma_destroy_srq
from twisted_ib.verbs.c.cm.resolution import bind, resolveAddress
from twisted_ib.verbs.c.cm.structures import (
    Channel,
    Endpoint,
    channelOf,
    devices,
    endpointOf,
    endpoints,
    octets,
    socketAddress,
)
from twisted_ib.verbs.c.errors import HandleError
from twisted_ib.verbs.c.functions import handler
from twisted_ib.verbs.c.handles import handles
from twisted_ib.verbs.c.pointers import CData, addressOf, given
from twisted_ib.verbs.pyverbs import CMID, enums

#: The octets of the options of C{RDMA_OPTION_ID} (rdma_cma.h).  The type of service and the reuse of
#: addresses are taken and change nothing: a path has one class, and a port is free as soon as its listener is
#: gone.
_OPTIONS = {
    enums.RDMA_OPTION_ID_TOS: 1,
    enums.RDMA_OPTION_ID_REUSEADDR: ffi.sizeof("int"),
    enums.RDMA_OPTION_ID_AFONLY: ffi.sizeof("int"),
    enums.RDMA_OPTION_ID_ACK_TIMEOUT: 1,
}

#: The lists of devices that are not freed.
_lists: dict[int, CData] = {}


def _make(channel: CData, context: CData, portSpace: int) -> Endpoint:
    own = None if channel else Channel()
    used = own or channelOf(channel)
    try:
        cmid = CMID(used.value, port_space=portSpace, device=chosenDevice())
        return Endpoint(cmid, used, portSpace, own is not None, context)
    except BaseException:
        if own is not None:
            own.destroy()
        raise


@handler
def rdma_create_id(channel: CData, id: CData, context: CData, ps: int) -> int:
    given(id)
    attend.begin()
    id[0] = _make(channel, context, ps).structure
    return 0


@handler
def rdma_destroy_id(id: CData) -> int:
    endpoint = endpointOf(id)
    acknowledgeLast(endpoint)
    endpoints.remove(endpoint)
    # The queue pair is the program's to destroy.
    handles.remove(addressOf(id), "rdma_cm_id")
    if endpoint.isSynchronous:
        endpoint.channel.destroy()
    return 0


@handler
def rdma_create_ep(id: CData, res: CData, pd: CData, attr: CData) -> int:
    given(id, res)
    attend.begin()
    endpoint = _make(ffi.NULL, ffi.NULL, res.ai_port_space)
    try:
        if res.ai_qp_type != endpoint.structure.qp_type:
            raise HandleError("The port space has no such queue pairs", errno.EOPNOTSUPP)
        if res.ai_flags & enums.RAI_PASSIVE:
            bind(endpoint, socketAddress(res.ai_src_addr))
            if pd:
                endpoint.structure.pd = pd
            if attr:
                endpoint.initAttr = copyAttributes(attr)
                endpoint.initAttr.qp_type = res.ai_qp_type
        else:
            source = socketAddress(res.ai_src_addr) if res.ai_src_addr else None
            resolveAddress(endpoint, source, res.ai_dst_addr)
            endpoint.cmid.resolve_route()
            complete(endpoint)
            if attr:
                attr.qp_type = res.ai_qp_type
                createQP(endpoint, pd, attr)
            endpoint.connectData = octets(res.ai_connect, res.ai_connect_len)
    except BaseException:
        rdma_destroy_ep(endpoint.structure)
        raise
    id[0] = endpoint.structure
    return 0


@handler
def rdma_destroy_ep(id: CData) -> None:
    endpoint = endpointOf(id)
    if endpoint.structure.qp:
        rdma_destroy_qp(id)
    if endpoint.structure.srq:
        rdma_destroy_srq(id)
    rdma_destroy_id(id)


@handler
def rdma_migrate_id(id: CData, channel: CData) -> int:
    endpoint = endpointOf(id)
    if endpoint.isSynchronous and not channel:
        raise HandleError("The identifier is synchronous already")
    own = None if channel else Channel()
    target = own or channelOf(channel)
    endpoint.cmid.migrate_id(target.value)
    acknowledgeLast(endpoint)
    before, endpoint.channel = endpoint.channel, target
    endpoint.structure.channel = target.structure
    if endpoint.isSynchronous:
        before.destroy()
    endpoint.isSynchronous = own is not None
    return 0


@handler
def rdma_set_option(id: CData, level: int, optname: int, optval: CData, optlen: int) -> int:
    endpoint = endpointOf(id, optval)
    if level != enums.RDMA_OPTION_ID or optname not in _OPTIONS:
        raise HandleError("There is no such option", errno.ENOSYS)
    if optlen != _OPTIONS[optname]:
        raise HandleError("The option has another length")
    value = int.from_bytes(octets(optval, optlen), "little")
    if optname == enums.RDMA_OPTION_ID_ACK_TIMEOUT:
        endpoint.cmid.set_option(level, optname, value, optlen)
    elif optname == enums.RDMA_OPTION_ID_AFONLY:
        endpoint.cmid.set_ipv6_only(bool(value))
    return 0


@handler
def rdma_get_devices(num_devices: CData) -> CData:
    if num_devices:
        num_devices[0] = 0
    attend.begin()
    found = [ffi.cast("struct ibv_context *", addressOf(each)) for each in devices()]
    made = ffi.new("struct ibv_context *[]", [*found, ffi.NULL])
    _lists[addressOf(made)] = made
    if num_devices:
        num_devices[0] = len(found)
    return made


@handler
def rdma_free_devices(list: CData) -> None:
    if _lists.pop(addressOf(list), None) is None:
        raise HandleError("It is no list of devices")
