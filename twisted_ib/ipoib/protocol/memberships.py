"""
IP multicast memberships of a kernel, from the reports that it sends (IGMP: RFC 1112, 2236, 3376; MLD: RFC
2710, 3810).

A kernel tells on a TUN, as on any link, which groups its programs have joined and left; a member of IP's
group is to be one of the subnet's.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import TYPE_CHECKING

from twisted_ib.ipoib.protocol.ip import ICMPV6, IPV6_BYTES

if TYPE_CHECKING:
    from twisted_ib.ipoib.protocol.wire import Buffer
    from twisted_ib.structs import Packed


IGMP = 2
#: The first next header of an MLD message: the router alert option makes it IPv6's hop-by-hop options.
HOP_BY_HOP = 0

# RFC 3376 section 4.2, RFC 3810 section 5.2: type, octets (here 32-bit words) of auxiliary data, sources.
_RECORD: Packed[tuple[int, int, int]] = Struct(">BBH")
_COUNT: Packed[tuple[int]] = Struct(">H")
_MODE_IS_INCLUDE, _MODE_IS_EXCLUDE, _TO_INCLUDE, _TO_EXCLUDE, _ALLOW = range(1, 6)

_IGMP_REPORTS, _IGMP_LEAVE, _IGMP_V3 = (0x12, 0x16), 0x17, 0x22
_MLD_REPORT, _MLD_DONE, _MLD_V2 = 131, 132, 143

#: A group, packed, and whether the kernel is a member of it now.
Change = tuple[bytes, bool]


def changes(packet: Buffer) -> Iterator[Change]:
    """
    @param packet: bytes-like, an IP packet.
    @return: the memberships that it reports, if it is such a report; what is cut off or malformed is left
        out.
    """
    if len(packet) < 1:
        return
    if packet[0] >> 4 == 4:
        start = (packet[0] & 0xF) * 4
        if len(packet) >= start + 8 and packet[9] == IGMP:
            yield from _igmp(packet, start)
    elif len(packet) >= IPV6_BYTES + 8 and packet[6] == HOP_BY_HOP and packet[IPV6_BYTES] == ICMPV6:
        # RFC 8200 section 4.3: units of 8 octets, without the first.
        start = IPV6_BYTES + 8 + packet[IPV6_BYTES + 1] * 8
        if len(packet) >= start + 8:
            yield from _mld(packet, start)


def _igmp(packet: Buffer, start: int) -> Iterator[Change]:
    kind = packet[start]
    if kind == _IGMP_V3:
        yield from _records(packet, start, 4)
    elif kind in _IGMP_REPORTS or kind == _IGMP_LEAVE:
        yield bytes(packet[start + 4 : start + 8]), kind != _IGMP_LEAVE


def _mld(packet: Buffer, start: int) -> Iterator[Change]:
    kind = packet[start]
    if kind == _MLD_V2:
        yield from _records(packet, start, 16)
    elif kind in (_MLD_REPORT, _MLD_DONE) and len(packet) >= start + 24:
        yield bytes(packet[start + 8 : start + 24]), kind != _MLD_DONE


def _records(packet: Buffer, start: int, size: int) -> Iterator[Change]:
    (count,) = _COUNT.unpack_from(packet, start + 6)
    offset = start + 8
    for _ in range(count):
        if len(packet) < offset + _RECORD.size + size:
            return
        kind, words, sources = _RECORD.unpack_from(packet, offset)
        offset += _RECORD.size
        group = bytes(packet[offset : offset + size])
        offset += size + sources * size + words * 4
        # A filter that includes no source is the end of a membership.
        if kind in (_MODE_IS_EXCLUDE, _TO_EXCLUDE) or (
            sources and kind in (_MODE_IS_INCLUDE, _TO_INCLUDE, _ALLOW)
        ):
            yield group, True
        elif kind == _TO_INCLUDE:
            yield group, False
