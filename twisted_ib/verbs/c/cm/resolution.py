"""
Binding and resolving addresses and routes; C{rdma_getaddrinfo}.
"""

from __future__ import annotations

import os

from _twisted_ib_cm import ffi

from twisted_ib.verbs.c import sockaddr
from twisted_ib.verbs.c.cm.channels import complete
from twisted_ib.verbs.c.cm.structures import Endpoint, endpointOf, octets, socketAddress
from twisted_ib.verbs.c.errors import HandleError
from twisted_ib.verbs.c.functions import handler
from twisted_ib.verbs.c.pointers import CData, addressOf, given
from twisted_ib.verbs.pyverbs import AddrInfo
from twisted_ib.verbs.pyverbs.cm.addrinfo import Address, resolve
from twisted_ib.verbs.pyverbs.cm.identifier import RESOLVE_MILLISECONDS

#: The host for itself, whichever process or device.
_LOOPBACKS = "127.0.0.1", "::1"
#: The parts of each C{struct rdma_addrinfo} that is not freed.
_results: dict[int, list[CData]] = {}


def bind(endpoint: Endpoint, source: sockaddr.SocketAddress) -> None:
    """
    Bind an identifier to an address of this host.
    """
    info = AddrInfo()
    info.source = source.address
    endpoint.cmid.bind_addr(info)
    endpoint.isIB = source.family == sockaddr.AF_IB
    endpoint.showAddresses()
    # rdma_bind_addr(3): the device is known unless the address is a wildcard.  On Linux a loopback address
    # names none either (cma.c, cma_any_addr), and libfabric looks for that.  Here all others of 127.0.0.0/8
    # stand for hosts: DAPL wants the device of its own.
    if not (source.address.isAny or source.address.host in _LOOPBACKS):
        endpoint.showDevice()


def resolveAddress(
    endpoint: Endpoint,
    source: sockaddr.SocketAddress | None,
    destination: CData,
    milliseconds: int = RESOLVE_MILLISECONDS,
) -> None:
    """
    Check that an address is reachable.

    @param destination: a pointer to a C{struct sockaddr}.
    @param milliseconds: how long the kernel may look for the next hop.
    """
    target = socketAddress(destination)
    info = AddrInfo()
    info.destination = target.address
    wildcard = Address("0.0.0.0" if target.address.version == 4 else "::", 0)
    info.source = wildcard if source is None else source.address
    endpoint.isIB = target.family == sockaddr.AF_IB
    endpoint.cmid.resolve_addr(info, milliseconds)
    length = sockaddr.LENGTHS[target.family]
    ffi.memmove(ffi.addressof(endpoint.structure.route.addr, "dst_storage"), destination, length)
    complete(endpoint)


@handler
def rdma_bind_addr(id: CData, addr: CData) -> int:
    bind(endpointOf(id), socketAddress(addr))
    return 0


@handler
def rdma_resolve_addr(id: CData, src: CData, dst: CData, timeout_ms: int) -> int:
    endpoint = endpointOf(id)
    resolveAddress(endpoint, socketAddress(src) if src else None, dst, timeout_ms)
    return 0


@handler
def rdma_resolve_route(id: CData, timeout_ms: int) -> int:
    endpoint = endpointOf(id)
    endpoint.cmid.resolve_route()
    return complete(endpoint)


def _port(found: tuple[str, int] | None) -> int:
    # In network byte order, as the structures have it.
    return int.from_bytes((0 if found is None else found[1]).to_bytes(2, "big"), "little")


@handler
def rdma_get_src_port(id: CData) -> int:
    return _port(endpointOf(id).cmid.local_addr)


@handler
def rdma_get_dst_port(id: CData) -> int:
    return _port(endpointOf(id).cmid.peer_addr)


# -- rdma_getaddrinfo


def _text(pointer: CData) -> str | None:
    return os.fsdecode(ffi.string(pointer)) if pointer else None


@handler
def rdma_getaddrinfo(node: CData, service: CData, hints: CData, res: CData) -> int:
    given(res)
    if not node and not service and not hints:
        raise HandleError("There is nothing to resolve")
    flags, family, space, kind = 0, 0, 0, 0
    source = destination = b""
    if hints:
        flags, space, kind = hints.ai_flags, hints.ai_port_space, hints.ai_qp_type
        # librdmacm addrinfo.c, ucma_convert_to_ai: RAI_FAMILY is not looked at.
        family = hints.ai_family
        source = octets(hints.ai_src_addr, hints.ai_src_len)
        if not (node or service):
            destination = octets(hints.ai_dst_addr, hints.ai_dst_len)
    isIB = family == sockaddr.AF_IB
    found = resolve(None, _text(node), _text(service), space, flags, 0 if isIB else family)
    own = found.source or found.destination
    if own is not None:
        packed = sockaddr.pack(own, isIB, found.portSpace)
        family = sockaddr.familyOf(packed)
        if found.source is not None:
            source = packed
        else:
            destination = packed
    made = ffi.new("struct rdma_addrinfo *")
    made.ai_flags, made.ai_family = found.flags, family
    made.ai_qp_type, made.ai_port_space = kind or found.qpType, found.portSpace
    parts = [made]
    for name, data in (("src", source), ("dst", destination)):
        if data:
            # A program may take it for any of the structures.
            storage = ffi.new("struct sockaddr_storage *")
            ffi.memmove(storage, data, min(len(data), ffi.sizeof(storage[0])))
            parts.append(storage)
            setattr(made, f"ai_{name}_len", len(data))
            setattr(made, f"ai_{name}_addr", ffi.cast("struct sockaddr *", storage))
    _results[addressOf(made)] = parts
    res[0] = made
    return 0


@handler
def rdma_freeaddrinfo(res: CData) -> None:
    if res and _results.pop(addressOf(res), None) is None:
        raise HandleError("It is no result of rdma_getaddrinfo")
