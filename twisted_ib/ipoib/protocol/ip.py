"""
The headers of IP as an IPoIB interface itself reads and writes them: lengths and destinations, checksums,
fragments, ICMP errors, and neighbour discovery.

Packets are not made into objects: functions take a buffer and where a packet is in it.  RFC 791, 792, 8200,
4443, 4861.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import TYPE_CHECKING, Final

from attrs import frozen

from twisted_ib import limits
from twisted_ib.errors import WireError
from twisted_ib.hca.wire.rocev2 import internetChecksum
from twisted_ib.ipoib.protocol.wire import (
    SOURCE_LINK_LAYER,
    TARGET_LINK_LAYER,
    Buffer,
    findLinkLayerOption,
    packLinkLayerOption,
)

if TYPE_CHECKING:
    from twisted_ib.ipoib.protocol.routes import Routes
    from twisted_ib.structs import Packed

#: Version and header length, type of service, total length, identification, flags and fragment offset, time
#: to live, protocol, checksum, source, destination (RFC 791 section 3.1).
IPV4: Final[Packed[tuple[int, int, int, int, int, int, int, int, bytes, bytes]]] = Struct(">BBHHHBBH4s4s")
#: Version, traffic class and flow label; payload length, next header, hop limit, source, destination
#: (RFC 8200 section 3).
IPV6: Final[Packed[tuple[int, int, int, int, bytes, bytes]]] = Struct(">IHBB16s16s")
IPV4_BYTES: Final = IPV4.size
IPV6_BYTES: Final = IPV6.size
#: The end of pseudo headers, behind the addresses: protocol and length (RFC 768), length and next header
#: (RFC 8200 section 8.1).
_PSEUDO_IPV4: Final[Packed[tuple[int, int]]] = Struct(">xBH")
_PSEUDO_IPV6: Final[Packed[tuple[int, int]]] = Struct(">I3xB")
#: Flags of an IPv4 header, and the offset of a fragment, in units of 8 octets.
DONT_FRAGMENT: Final = 0x4000
MORE_FRAGMENTS: Final = 0x2000
OFFSET_MASK: Final = 0x1FFF
_COPIED: Final = 0x80
_END_OF_OPTIONS: Final = 0
_NO_OPERATION: Final = 1

ICMP: Final = 1
ICMPV6: Final = 58
#: Type, code, checksum, and the 32 bits that each type has of its own.
ICMP_HEADER: Final[Packed[tuple[int, int, int, int]]] = Struct(">BBHI")
#: Type and code of errors, by the version of IP.
NO_ROUTE: Final = {4: (3, 0), 6: (1, 0)}
HOST_UNREACHABLE: Final = {4: (3, 1), 6: (1, 3)}
PORT_UNREACHABLE: Final = {4: (3, 3), 6: (1, 4)}
TOO_BIG: Final = {4: (3, 4), 6: (2, 0)}
#: The longest packet with an error: RFC 1812 section 4.3.2.3, RFC 4443 section 2.4 (c).
_ERROR_BYTES: Final = {4: 576, 6: 1280}
#: The types about whose messages errors may be made (RFC 1122 section 3.2.2); of IPv6 those from 128 on.
_QUERIES_IPV4: Final = frozenset((0, 8, 9, 10, 13, 14, 15, 16, 17, 18))
_QUERIES_IPV6: Final = 128
_PREC_INTERNETCONTROL: Final = 0xC0
_HOPS: Final = 64

_SOLICITATION: Final = 135
_ADVERTISEMENT: Final = 136
#: Routers, neighbours and redirects are taken from this link only (RFC 4861 section 7.1).
_LINK_HOPS: Final = 255
_ND: Final[Packed[tuple[int, int, int, int, bytes]]] = Struct(">BBHI16s")
_SOLICITED: Final = 0x40000000
_OVERRIDE: Final = 0x20000000
UNSPECIFIED: Final = bytes(16)
ALL_NODES: Final = bytes.fromhex("ff020000000000000000000000000001")
_SOLICITED_NODE: Final = bytes.fromhex("ff0200000000000000000001ff")


def checksum(*pieces: Buffer) -> int:
    """
    @param pieces: all but the last of even length.
    @return: the Internet checksum (RFC 1071) of octets whose checksum field is 0; 0 where it is included and
        right.
    """
    if len(pieces[-1]) % 2:
        return internetChecksum(*pieces[:-1], bytes(pieces[-1]) + b"\0")
    return internetChecksum(*pieces)


def pseudoHeader(source: bytes, destination: bytes, protocol: int, length: int) -> bytes:
    """
    @param source: 4 or 16 octets, as the destination.
    @param length: octets of header and data above IP.
    @return: what UDP's, TCP's and ICMPv6's checksums begin with.
    """
    if len(source) == 4:
        return source + destination + _PSEUDO_IPV4.pack(protocol, length)
    return source + destination + _PSEUDO_IPV6.pack(length, protocol)


def packetLength(buffer: Buffer, start: int, stop: int, octets: int) -> int:
    """
    @param octets: of its addresses, which tells the version: 4 or 16.
    @return: octets of an IP packet by its own account; 0 if it is shorter than its header, longer than what
        is there, or of another version.
    """
    room = stop - start
    if octets == 4 and room >= IPV4_BYTES and buffer[start] >> 4 == 4:
        length = buffer[start + 2] << 8 | buffer[start + 3]
        return length if IPV4_BYTES <= (buffer[start] & 0xF) * 4 <= length <= room else 0
    if octets == 16 and room >= IPV6_BYTES and buffer[start] >> 4 == 6:
        length = IPV6_BYTES + (buffer[start + 4] << 8 | buffer[start + 5])
        return length if length <= room else 0
    return 0


def destinationOf(buffer: Buffer, start: int) -> bytes:
    """
    @return: where a packet goes, 4 or 16 octets.
    """
    if buffer[start] >> 4 == 4:
        return bytes(buffer[start + 16 : start + 20])
    return bytes(buffer[start + 24 : start + 40])


def packIPv4(
    source: bytes,
    destination: bytes,
    protocol: int,
    length: int,
    identification: int = 0,
    flags: int = 0,
    ttl: int = _HOPS,
    typeOfService: int = 0,
) -> bytes:
    """
    @param length: octets behind the header.
    @param flags: with the fragment offset: 16 bits.
    @return: a header without options.
    """
    fields = (IPV4_BYTES + length, identification, flags, ttl, protocol)
    header = IPV4.pack(0x45, typeOfService, *fields, 0, source, destination)
    return header[:10] + checksum(header).to_bytes(2, "big") + header[12:]


def packIPv6(source: bytes, destination: bytes, protocol: int, length: int, hops: int = _HOPS) -> bytes:
    """
    @param length: octets behind the header.
    @return: a header.
    """
    return IPV6.pack(6 << 28, length, protocol, hops, source, destination)


def isMulticast(address: bytes) -> bool:
    """
    @param address: 4 or 16 octets.
    """
    return address[0] >> 4 == 0xE if len(address) == 4 else address[0] == 0xFF


def solicitedNode(address: bytes) -> bytes:
    """
    @return: the group that an IPv6 address is asked for in (RFC 4291 section 2.7.1).
    """
    return _SOLICITED_NODE + address[13:]


# -- fragments


def fragments(packet: Buffer, mtu: int) -> Iterator[bytes]:
    """
    Cut an IPv4 packet (RFC 791 section 3.2).

    @param packet: of the length that its header says; L{mayFragment} is true of it.
    @param mtu: at least 68.
    """
    header = bytes(packet[: (packet[0] & 0xF) * 4])
    flags = header[6] << 8 | header[7]
    at, offset = len(header), flags & OFFSET_MASK
    while at < len(packet):
        size = min((mtu - len(header)) // 8 * 8, len(packet) - at)
        more = flags & MORE_FRAGMENTS or (MORE_FRAGMENTS if at + size < len(packet) else 0)
        cut = bytearray(header)
        cut[2:4] = (len(header) + size).to_bytes(2, "big")
        cut[6:8] = (more | offset).to_bytes(2, "big")
        cut[10:12] = b"\0\0"
        cut[10:12] = checksum(cut).to_bytes(2, "big")
        yield bytes(cut) + packet[at : at + size]
        header = _copiedOptions(header)
        at, offset = at + size, offset + size // 8


def _copiedOptions(header: bytes) -> bytes:
    # Not every option is in all fragments: the others become No Operation, which keeps the length.
    options, at = bytearray(header), IPV4_BYTES
    while at < len(options) and options[at] != _END_OF_OPTIONS:
        size = 1 if options[at] == _NO_OPERATION else max(2, options[at + 1]) if at + 1 < len(options) else 1
        if not options[at] & _COPIED:
            options[at : at + size] = bytes([_NO_OPERATION]) * len(options[at : at + size])
        at += size
    return bytes(options)


def mayFragment(buffer: Buffer, start: int) -> bool:
    """
    @return: whether a packet is IPv4 without Don't Fragment.
    """
    return buffer[start] >> 4 == 4 and not buffer[start + 6] & DONT_FRAGMENT >> 8


# -- ICMP


def packICMP(source: bytes, destination: bytes, kind: tuple[int, int], rest: int, body: bytes) -> bytes:
    """
    @param kind: type and code.
    @param rest: the 32 bits behind the checksum.
    @return: an ICMP message, for an IP packet between the addresses.
    """
    bare = ICMP_HEADER.pack(*kind, 0, rest) + body
    pseudo = pseudoHeader(source, destination, ICMPV6, len(bare)) if len(source) == 16 else b""
    return ICMP_HEADER.pack(*kind, checksum(pseudo, bare), rest) + body


def packICMPError(
    source: bytes, destination: bytes, kind: dict[int, tuple[int, int]], rest: int, about: Buffer
) -> bytes:
    """
    @param kind: by the version of IP, as L{PORT_UNREACHABLE}.
    @param about: the packet that cannot be delivered, of which the error quotes what it may.
    @return: an ICMP message from C{source} to the sender of that packet.
    """
    version, headers = (4, IPV4_BYTES) if len(source) == 4 else (6, IPV6_BYTES)
    quoted = bytes(about[: _ERROR_BYTES[version] - headers - ICMP_HEADER.size])
    return packICMP(source, destination, kind[version], rest, quoted)


def mayReport(packet: Buffer) -> bool:
    """
    Return whether an ICMP error may be made about a packet: it is no error itself, no later fragment, and its
    source is one host (RFC 1122 section 3.2.2, RFC 4443 section 2.4).
    """
    if packet[0] >> 4 == 4:
        if (packet[6] << 8 | packet[7]) & OFFSET_MASK:
            return False
        above = (packet[0] & 0xF) * 4
        if packet[9] == ICMP and (above >= len(packet) or packet[above] not in _QUERIES_IPV4):
            return False
        return packet[12] not in (0, 127) and packet[12] < 224
    if packet[6] == ICMPV6 and (len(packet) <= IPV6_BYTES or packet[IPV6_BYTES] < _QUERIES_IPV6):
        return False
    source = bytes(packet[8:24])
    return source != UNSPECIFIED and not isMulticast(source)


def unreachable(packet: Buffer, reporter: bytes, isNeighbour: bool) -> bytes:
    """
    Make the error that a destination cannot be reached.

    @param reporter: the source of the error.
    @param isNeighbour: whether it is on this link and does not answer; else there is no route to it.
    @return: an IP packet.
    """
    return _report(packet, reporter, HOST_UNREACHABLE if isNeighbour else NO_ROUTE, 0)


def tooBig(packet: Buffer, reporter: bytes, mtu: int) -> bytes:
    """
    Make the error that a packet is too long: fragmentation needed (RFC 1191), or packet too big (RFC 4443).

    @return: an IP packet.
    """
    return _report(packet, reporter, TOO_BIG, mtu)


def _report(packet: Buffer, reporter: bytes, kind: dict[int, tuple[int, int]], rest: int) -> bytes:
    if len(reporter) == 4:
        sender = bytes(packet[12:16])
        body = packICMPError(reporter, sender, kind, rest, packet)
        return packIPv4(reporter, sender, ICMP, len(body), typeOfService=_PREC_INTERNETCONTROL) + body
    sender = bytes(packet[8:24])
    body = packICMPError(reporter, sender, kind, rest, packet)
    return packIPv6(reporter, sender, ICMPV6, len(body)) + body


class ErrorRate:
    """
    A token bucket for errors (RFC 4443 section 2.4 (f), Linux C{net/ipv4/icmp.c}, C{icmp_global_allow}):
    L{limits.ICMP_ERROR_BURST} at once, and L{limits.IPOIB_ERRORS_PER_SECOND}.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._at = clock, clock()
        self._left = float(limits.ICMP_ERROR_BURST)

    def take(self) -> bool:
        """
        Return whether one more may be made.
        """
        now = self._clock()
        left = self._left + (now - self._at) * limits.IPOIB_ERRORS_PER_SECOND
        self._left, self._at = min(limits.ICMP_ERROR_BURST, left), now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class ICMPErrors:
    """
    The errors that one interface makes, as many as L{ErrorRate} allows.
    """

    def __init__(self, clock: Callable[[], float], count: Callable[[str], None]) -> None:
        self._rate, self._count = ErrorRate(clock), count

    def about(self, packet: Buffer, routes: Routes, isNeighbour: bool, mtu: int) -> bytes | None:
        """
        Make the error about a packet.

        @param isNeighbour: see L{unreachable}.
        @param mtu: the longest packet that could be sent; 0 if none can.
        @return: an IP packet; L{None} if none is to be made.
        """
        destination = destinationOf(packet, 0)
        reporter = routes.reporterFor(destination)
        if reporter is None or not mayReport(packet):
            return None
        # RFC 1122 section 3.2.2: never about what is sent to many; for IPv6 RFC 4443 section 2.4 (e.3) has an
        # exception.
        isForMany = isMulticast(destination) or destination in routes.broadcasts
        if isForMany and not (mtu and packet[0] >> 4 == 6):
            return None
        if not self._rate.take():
            self._count("icmp_suppressed")
            return None
        if mtu:
            return tooBig(packet, reporter, mtu)
        return unreachable(packet, reporter, isNeighbour)


# -- neighbour discovery


@frozen
class NeighbourMessage:
    """
    A neighbour solicitation or advertisement (RFC 4861 sections 4.3, 4.4) with its IPv6 header.

    @ivar source: 16 octets; of a solicitation, L{UNSPECIFIED} to find out whether an address is in use.
    @ivar destination: 16 octets.
    @ivar target: the address that it is about, 16 octets.
    @ivar hardware: the link-layer address: of a solicitation's source, or an advertisement's target; 20
        octets, or L{None}.
    @ivar isSolicitation: which of the two it is.
    @ivar isSolicited: of an advertisement, whether it answers this node.
    @ivar isOverride: of an advertisement, whether it replaces another link-layer address.
    """

    source: bytes
    destination: bytes
    target: bytes
    hardware: bytes | None
    isSolicitation: bool
    isSolicited: bool = False
    isOverride: bool = False

    def pack(self) -> bytes:
        """
        @return: an IPv6 packet.
        """
        kind, option = _ADVERTISEMENT, TARGET_LINK_LAYER
        flags = self.isSolicited * _SOLICITED | self.isOverride * _OVERRIDE
        if self.isSolicitation:
            kind, option = _SOLICITATION, SOURCE_LINK_LAYER
        body = self.target
        if self.hardware is not None:
            body += packLinkLayerOption(option, self.hardware)
        message = packICMP(self.source, self.destination, (kind, 0), flags, body)
        return packIPv6(self.source, self.destination, ICMPV6, len(message), _LINK_HOPS) + message

    @classmethod
    def parse(cls, buffer: Buffer, start: int, stop: int) -> NeighbourMessage:
        """
        Parse a packet of which L{isDiscovery} is true.

        @raise WireError: RFC 4861 section 7.1 says to discard it.
        """
        _, length, _, hops, source, destination = IPV6.unpack_from(buffer, start)
        start += IPV6_BYTES
        if length != stop - start or length < _ND.size or hops != _LINK_HOPS:
            raise WireError("neighbour discovery that is cut short, or from another link")
        if checksum(pseudoHeader(source, destination, ICMPV6, length), buffer[start:stop]):
            raise WireError("neighbour discovery with a wrong checksum")
        kind, code, _, flags, target = _ND.unpack_from(buffer, start)
        if code or isMulticast(target) or isMulticast(source):
            raise WireError("neighbour discovery for a group, or of an unknown code")
        if kind == _SOLICITATION:
            hardware = findLinkLayerOption(buffer, start + _ND.size, stop, SOURCE_LINK_LAYER)
            if source == UNSPECIFIED and (hardware is not None or destination[:13] != _SOLICITED_NODE):
                raise WireError("a solicitation without a source has an address, or another destination")
            return cls(source, destination, target, hardware, True)
        hardware = findLinkLayerOption(buffer, start + _ND.size, stop, TARGET_LINK_LAYER)
        if isMulticast(destination) and flags & _SOLICITED:
            raise WireError("a solicited advertisement to a group")
        solicited, override = bool(flags & _SOLICITED), bool(flags & _OVERRIDE)
        return cls(source, destination, target, hardware, False, solicited, override)


def isDiscovery(buffer: Buffer, start: int, stop: int) -> bool:
    """
    @return: whether an IPv6 packet is a neighbour solicitation or advertisement.
    """
    above = start + IPV6_BYTES
    return buffer[start + 6] == ICMPV6 and above < stop and buffer[above] in (_SOLICITATION, _ADVERTISEMENT)
