"""
Socket addresses as C has them: C{struct sockaddr_in}, C{sockaddr_in6} and C{sockaddr_ib}.
"""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address
from struct import Struct
from typing import TYPE_CHECKING

import attrs

from twisted_ib.hca.connection.rdmacm import gidOf, serviceID
from twisted_ib.hca.host.addresses import normalise
from twisted_ib.verbs.pyverbs.cm.addrinfo import Address

if TYPE_CHECKING:
    from twisted_ib.structs import Packed


#: Linux C{socket.h}: the family of C{struct sockaddr_ib}.
AF_IB = 27

_FAMILY: Packed[tuple[int]] = Struct("=H")
# The port and the IPv4 address are in network byte order, as the flow information of IPv6 is; the family and
# the scope are the host's.
_IPV4: Packed[tuple[int, bytes, bytes]] = Struct("=H2s4s8x")
_IPV6: Packed[tuple[int, bytes, bytes, bytes, int]] = Struct("=H2s4s16sI")
# rdma-core infiniband/ib.h: P_Key, flow information, GID, service id and its mask in network byte order.
_IB: Packed[tuple[int, bytes, bytes, bytes, bytes, bytes, int]] = Struct("=H2s4s16s8s8sQ")

#: Octets of each family's structure.
LENGTHS = {socket.AF_INET: _IPV4.size, socket.AF_INET6: _IPV6.size, AF_IB: _IB.size}

# rdma-core rdma_cma.h, RDMA_IB_IP_PS_MASK and RDMA_IB_IP_PORT_MASK.
_SPACE_MASK, _PORT_MASK = 0xFFFF_FFFF_FFFF_0000, 0xFFFF
_DEFAULT_KEY = b"\xff\xff"


@attrs.frozen
class SocketAddress:
    """
    One structure.

    @ivar family: C{AF_INET}, C{AF_INET6} or L{AF_IB}.
    @ivar address: what it says.
    """

    family: int
    address: Address


def familyOf(data: bytes) -> int:
    """
    @param data: at least two octets.
    """
    return int(_FAMILY.unpack_from(data)[0])


def parse(data: bytes) -> SocketAddress:
    """
    @param data: a structure, at least as long as its family asks for.
    @raise ValueError: another family, or too short.
    """
    family = familyOf(data)
    if len(data) < LENGTHS.get(family, len(data) + 1):
        raise ValueError(f"{len(data)} octets of a socket address of family {family}")
    if family == socket.AF_INET:
        _, port, packed = _IPV4.unpack_from(data)
        return SocketAddress(family, Address(str(IPv4Address(packed)), int.from_bytes(port, "big")))
    if family == socket.AF_INET6:
        _, port, _, packed, scope = _IPV6.unpack_from(data)
        host = str(IPv6Address(packed)) + (f"%{scope}" if scope else "")
        return SocketAddress(family, Address(normalise(host), int.from_bytes(port, "big")))
    _, _, _, packed, service, _, _ = _IB.unpack_from(data)
    # The service id's lowest 16 bits are the port (IBTA vol. 1 annex A11).
    number = int.from_bytes(service[-2:], "big")
    return SocketAddress(family, Address(normalise(str(IPv6Address(packed))), number))


def pack(address: Address, isIB: bool = False, portSpace: int = 0) -> bytes:
    """
    @param isIB: C{struct sockaddr_ib}, not the structure of its IP version.
    @param portSpace: of the service id in that.
    """
    port = address.port.to_bytes(2, "big")
    host, _, scope = address.host.partition("%")
    if isIB:
        service = serviceID(portSpace, address.port).to_bytes(8, "big")
        mask = (_SPACE_MASK if portSpace else 0) | (_PORT_MASK if address.port else 0)
        return _IB.pack(AF_IB, _DEFAULT_KEY, bytes(4), gidOf(host), service, mask.to_bytes(8, "big"), 0)
    if address.version == 4:
        return _IPV4.pack(socket.AF_INET, port, IPv4Address(host).packed)
    return _IPV6.pack(socket.AF_INET6, port, bytes(4), IPv6Address(host).packed, int(scope or 0))
