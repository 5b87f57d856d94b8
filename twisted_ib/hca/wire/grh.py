"""
The headers in front of a datagram's payload: global route header (GRH) and DETH.

A record of an unreliable datagram is a GRH, a DETH, the immediate if there is one, and the payload. On a
wire a BTH lies between the two and an ICRC follows the payload; the GRH counts them in its length, so that a
program which looks at the 40 bytes in front of a received message finds the usual values.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from twisted_ib.errors import WireError
from twisted_ib.hca.wire import headers

if TYPE_CHECKING:
    from twisted_ib.structs import Packed


#: GRH (IBTA vol. 1 8.3): version, traffic class and flow label; length; next header; hop limit; source and
#: destination, upper and lower halves.
_GRH: Final[Packed[tuple[int, int, int, int, int, int, int, int]]] = Struct(">IHBB4Q")

GRH_BYTES: Final = _GRH.size
DETH_BYTES: Final = headers.DETH.size
#: GRH and DETH.
HEADER_BYTES: Final = GRH_BYTES + DETH_BYTES

_VERSION: Final = 6
#: Next header: a BTH (IBTA vol. 1 8.3), or with RoCEv2 UDP (annex A17).
_BTH: Final = 0x1B
_UDP: Final = 17
_UDP_BYTES: Final = 8
#: IPv4 in the second half (Linux ib_verbs.h union rdma_network_hdr): version and header length, total
#: length, protocol, source, destination.
_IPV4: Final[Packed[tuple[int, int, int, int, int]]] = Struct(">20xBxH5xB2xII")
_IPV4_BYTES: Final = 20
_IPV4_VERSION: Final = 0x45
#: BTH and ICRC: counted in the length, though no record has them.
_UNSEEN: Final = headers.BTH.size + headers.ICRC.size
_LOW: Final = (1 << 64) - 1

#: The default subnet prefix, of GIDs that are made from a GUID (IBTA vol. 1 4.1.1).
LINK_LOCAL: Final = 0xFE80 << 112
#: As Linux sends it on RoCE v2.  Above 1 the path is not subnet local, and the LIDs of the REQ are 0xFFFF.
HOP_LIMIT: Final = 64
#: The prefix C{::ffff:0.0.0.0/96} of GIDs that are IPv4 addresses (RFC 4291 section 2.5.5.2).
IPV4_MAPPED: Final = 0xFFFF << 32
_IPV4_GROUPS: Final = 0xFFFFE
#: 127.128.0.0/9, and the bits that tell its addresses apart.
_LOOPBACK: Final = 0x7F800000
_LOOPBACK_HOSTS: Final = (1 << 23) - 1


def guidGID(guid: int) -> int:
    """
    @return: the link-local GID of an HCA's GUID.
    """
    return LINK_LOCAL | guid


def loopbackGID(guid: int) -> int:
    """
    @return: the GID of an HCA among those of its host, in the form of RoCEv2 on IPv4: an address of
        127.128.0.0/9 that is made of the GUID.
    """
    # RFC 1122 section 3.2.1.3: all of 127/8 is this host.  A GUID's lowest bit says nothing here: it is set.
    return IPV4_MAPPED | _LOOPBACK | guid >> 1 & _LOOPBACK_HOSTS


def isLoopback(gid: int) -> bool:
    """
    @return: whether a GID can be a L{loopbackGID}.
    """
    return loopbackGID(gid << 1) == gid


def isMulticast(gid: int) -> bool:
    """
    @return: whether a GID is a multicast address.
    """
    # IBTA vol. 1 4.1.1: ff00::/8. Annex A17 maps IPv4 groups: ::ffff:224.0.0.0/100.
    return gid >> 120 == 0xFF or gid >> 28 == _IPV4_GROUPS


def packGRH(
    trafficClass: int, flowLabel: int, payload: int, hopLimit: int, source: int, destination: int
) -> bytes:
    """
    Pack a global route header, whose fields fit.

    @param payload: bytes that follow in a packet, ICRC included.
    @param source: GID of the sender, and C{destination} the receiver's or a group's.
    @return: 40 bytes.
    """
    return _GRH.pack(
        _VERSION << 28 | trafficClass << 20 | flowLabel,
        payload,
        _BTH,
        hopLimit,
        source >> 64,
        source & _LOW,
        destination >> 64,
        destination & _LOW,
    )


def ends(head: bytes, behind: int) -> tuple[int, int]:
    """
    Sender and receiver of a datagram, by the 40 bytes in front of it.

    @param head: at least these bytes: a GRH; or of RoCEv2 the IPv6 header, or 20 zero bytes and the IPv4
        header (annex A17).
    @param behind: bytes behind the DETH, an immediate included.
    @return: the GIDs of the sender and of the receiver.
    @raise WireError: there is no such header, or it declares another length.
    """
    if len(head) < GRH_BYTES:
        raise WireError(f"a GRH has {GRH_BYTES} bytes, not {len(head)}")
    if head[0] >> 4 == _VERSION:
        _, payload, following, _, *halves = _GRH.unpack_from(head)
        # The length is compared because 40 arbitrary bytes of a peer must not pass for a header.
        expected = length(behind) + (_UDP_BYTES if following == _UDP else 0)
        if following in (_BTH, _UDP) and payload == expected:
            return halves[0] << 64 | halves[1], halves[2] << 64 | halves[3]
    elif not any(head[:_IPV4_BYTES]):
        version, total, protocol, source, destination = _IPV4.unpack_from(head)
        expected = _IPV4_BYTES + _UDP_BYTES + length(behind)
        if (version, total, protocol) == (_IPV4_VERSION, expected, _UDP):
            return IPV4_MAPPED | source, IPV4_MAPPED | destination
    raise WireError(f"no header of {behind} bytes in {head[:GRH_BYTES].hex()}")


def route(head: bytes) -> tuple[int, int, int, int, int]:
    """
    Parse the 40 bytes in front of a datagram, whose length is not checked: see L{ends} for those.

    @return: GIDs of sender and receiver, flow label, traffic class, hop limit.
    @raise WireError: there is no such header.
    """
    if len(head) >= GRH_BYTES:
        if head[0] >> 4 == _VERSION:
            first, _, following, hopLimit, *halves = _GRH.unpack_from(head)
            if following in (_BTH, _UDP):
                source, target = halves[0] << 64 | halves[1], halves[2] << 64 | halves[3]
                return source, target, first & 0xFFFFF, first >> 20 & 0xFF, hopLimit
        elif not any(head[:_IPV4_BYTES]) and head[_IPV4_BYTES] == _IPV4_VERSION:
            _, _, _, sender, receiver = _IPV4.unpack_from(head)
            # RFC 791 section 3.1: octet 1 is the type of service, octet 8 the time to live.
            trafficClass, hopLimit = head[_IPV4_BYTES + 1], head[_IPV4_BYTES + 8]
            return IPV4_MAPPED | sender, IPV4_MAPPED | receiver, 0, trafficClass, hopLimit
    raise WireError(f"no header in {head[:GRH_BYTES].hex()}")


def destination(head: bytes) -> int:
    """
    @param head: the 40 bytes in front of a datagram, well-formed: see L{ends}.
    @return: the GID of the receiver.
    """
    if head[0] >> 4 == _VERSION:
        return int.from_bytes(head[24:GRH_BYTES], "big")
    return IPV4_MAPPED | int.from_bytes(head[36:GRH_BYTES], "big")


def length(behind: int) -> int:
    """
    The length that a GRH declares: BTH, DETH, what follows, pad and ICRC.

    @param behind: bytes behind the DETH, an immediate included.
    """
    return _UNSEEN + DETH_BYTES + (behind + 3 & ~3)
