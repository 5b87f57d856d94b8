"""
IP packets as a host's own stack has them: headers, extension headers, fragments and their
reassembly within bounds, ICMP echo (RFC 791, RFC 792, RFC 8200, RFC 4443).
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator
from struct import Struct
from typing import TYPE_CHECKING, Final

from attrs import frozen

from twisted_ib import limits
from twisted_ib.errors import HeaderError, LengthError
from twisted_ib.ipoib.protocol.ip import (
    DONT_FRAGMENT,
    IPV4,
    IPV4_BYTES,
    IPV6,
    IPV6_BYTES,
    MORE_FRAGMENTS,
    OFFSET_MASK,
    checksum,
    isMulticast,
    packIPv4,
    packIPv6,
    pseudoHeader,
)
from twisted_ib.ipoib.protocol.routes import LIMITED_BROADCAST
from twisted_ib.ipoib.protocol.wire import IPV4_HEADER, IPV6_HEADER

if TYPE_CHECKING:
    from twisted_ib.structs import Packed

#: By the length of an address: octets of the longest upper layer.
_LONGEST: Final = {4: 65535 - 20, 16: 65535}
#: Which packet a fragment is of.
Key = tuple[bytes, bytes, int, int]

#: Of an IPv6 Fragment header (RFC 8200 section 4.5).
_MORE_FRAGMENTS_IPV6: Final = 1

FRAGMENT: Final = 44
_HOP_BY_HOP, _ROUTING, _DESTINATION_OPTIONS = 0, 43, 60
#: Extension headers of one packet that are read (Linux C{net/ipv6/exthdrs_core.c} has no bound).
_EXTENSION_HEADERS: Final = 8

_FRAGMENT_HEADER: Final[Packed[tuple[int, int, int, int]]] = Struct("!BBHI")


@frozen
class IPPacket:
    """
    A packet and what its headers say.

    @ivar start: where the upper layer begins, behind extension headers.
    @ivar stop: where it ends: there may be octets behind it.
    @ivar protocol: that of the upper layer; of a fragment, what the first one begins with.
    @ivar identification: of the packet that it is a fragment of.
    @ivar offset: where the fragment is in that packet, octets.
    @ivar isMore: whether there is another fragment behind it.
    """

    packet: bytes
    version: int
    source: bytes
    destination: bytes
    protocol: int
    hopLimit: int
    start: int
    stop: int
    identification: int = 0
    offset: int = 0
    isMore: bool = False

    @classmethod
    def parse(cls, packet: bytes) -> IPPacket:
        """
        Parse and check a packet.

        @raise LengthError: it is cut short.
        @raise HeaderError: another version, a wrong checksum, or extension headers that are not to be
            accepted.
        """
        version = packet[0] >> 4 if packet else 0
        if version == 4:
            return cls._parseIPv4(packet)
        if version == 6:
            return cls._parseIPv6(packet)
        raise HeaderError(f"a packet of IP version {version}")

    @classmethod
    def _parseIPv4(cls, packet: bytes) -> IPPacket:
        start = (packet[0] & 15) * 4
        if not IPV4_BYTES <= start <= len(packet):
            raise LengthError(f"an IPv4 header of {start} octets in {len(packet)}")
        _, _, stop, identification, fragment, hopLimit, protocol, _, source, destination = IPV4.unpack_from(
            packet
        )
        if not start <= stop <= len(packet):
            raise LengthError(f"an IPv4 packet of {stop} octets in {len(packet)}")
        if checksum(packet[:start]):
            raise HeaderError("a wrong checksum of an IPv4 header")
        # RFC 1122 section 3.2.1.3: a group, and the limited broadcast, are nobody's source.
        if source[0] >= 224:
            raise HeaderError("an IPv4 packet from a group")
        return cls(
            packet,
            4,
            source,
            destination,
            protocol,
            hopLimit,
            start,
            stop,
            identification,
            (fragment & OFFSET_MASK) * 8,
            bool(fragment & MORE_FRAGMENTS),
        )

    @classmethod
    def _parseIPv6(cls, packet: bytes) -> IPPacket:
        if len(packet) < IPV6_BYTES:
            raise LengthError(f"an IPv6 header in {len(packet)} octets")
        _, length, protocol, hopLimit, source, destination = IPV6.unpack_from(packet)
        stop = IPV6_BYTES + length
        if stop > len(packet):
            raise LengthError(f"an IPv6 packet of {stop} octets in {len(packet)}")
        # RFC 4291 section 2.7.
        if source[0] == 0xFF:
            raise HeaderError("an IPv6 packet from a group")
        start, identification, offset, isMore = IPV6_BYTES, 0, 0, False
        for _ in range(_EXTENSION_HEADERS):
            if protocol not in (_HOP_BY_HOP, _ROUTING, FRAGMENT, _DESTINATION_OPTIONS):
                break
            if start + 8 > stop:
                raise LengthError("an IPv6 extension header that is cut short")
            if protocol == FRAGMENT:
                protocol, _, place, identification = _FRAGMENT_HEADER.unpack_from(packet, start)
                offset, isMore, start = place & ~7, bool(place & _MORE_FRAGMENTS_IPV6), start + 8
                if offset or isMore:
                    break
                continue
            # RFC 5095: a host forwards nothing for the sake of a Routing header.
            if protocol == _ROUTING and packet[start + 3]:
                raise HeaderError("an IPv6 Routing header that is not used up")
            protocol, start = packet[start], start + 8 + packet[start + 1] * 8
            if start > stop:
                raise LengthError("an IPv6 extension header that is cut short")
        else:
            raise HeaderError("more IPv6 extension headers than are read")
        return cls(
            packet,
            6,
            source,
            destination,
            protocol,
            hopLimit,
            start,
            stop,
            identification,
            offset,
            isMore,
        )

    @property
    def isFragment(self) -> bool:
        """
        Whether other fragments belong to it.
        """
        return self.isMore or self.offset > 0

    def pseudoHeader(self, length: int) -> bytes:
        """
        Return what the checksums of upper layers cover besides (RFC 768, RFC 8200 section 8.1).

        @param length: of the upper layer, octets.
        """
        return pseudoHeader(self.source, self.destination, self.protocol, length)


def isGroup(address: bytes) -> bool:
    """
    Return whether an address stands for several hosts: multicast, or 255.255.255.255.
    """
    return isMulticast(address) or address == LIMITED_BROADCAST


def fragments(
    source: bytes,
    destination: bytes,
    protocol: int,
    hopLimit: int,
    segment: bytes,
    mtu: int,
    identification: int,
) -> Iterator[bytes]:
    """
    Yield the frames of a packet: one, or several if it is longer than the path takes.

    @param segment: the upper layer's header and payload.
    @param mtu: octets of the longest packet.
    @param identification: another for each packet, while fragments of the last may be on their way.
    """
    isIPv6 = len(source) == 16
    headers = IPV6_BYTES if isIPv6 else IPV4_BYTES
    if headers + len(segment) <= mtu:
        yield _frame(source, destination, protocol, hopLimit, segment, 0, DONT_FRAGMENT)
        return
    if isIPv6:
        headers += _FRAGMENT_HEADER.size
    most = (mtu - headers) & ~7
    for offset in range(0, len(segment), most):
        piece = segment[offset : offset + most]
        isMore = offset + most < len(segment)
        if isIPv6:
            place = offset | (_MORE_FRAGMENTS_IPV6 if isMore else 0)
            piece = _FRAGMENT_HEADER.pack(protocol, 0, place, identification) + piece
            yield _frame(source, destination, FRAGMENT, hopLimit, piece, 0, 0)
        else:
            place = offset // 8 | (MORE_FRAGMENTS if isMore else 0)
            yield _frame(source, destination, protocol, hopLimit, piece, identification & 0xFFFF, place)


def _frame(
    source: bytes,
    destination: bytes,
    protocol: int,
    hopLimit: int,
    segment: bytes,
    identification: int,
    fragment: int,
) -> bytes:
    if len(source) == 16:
        header = packIPv6(source, destination, protocol, len(segment), hopLimit)
        return IPV6_HEADER + header + segment
    header = packIPv4(source, destination, protocol, len(segment), identification, fragment, hopLimit)
    return IPV4_HEADER + header + segment


class _Pieces:
    """
    The fragments of one packet that have come.

    @ivar offsets: of the fragments, in order.
    @ivar length: of the whole; L{None} until the last fragment has come.
    """

    __slots__ = ("begun", "bytes", "length", "offsets", "pieces")

    def __init__(self, now: float) -> None:
        self.begun = now
        self.bytes = 0
        self.length: int | None = None
        self.offsets: list[int] = []
        self.pieces: dict[int, bytes] = {}

    def accepts(self, offset: int, piece: bytes, isMore: bool, longest: int) -> bool:
        # RFC 5722 section 4, and Linux for IPv4 too: fragments that overlap are an attack.  A copy of the
        # same is no overlap.
        if self.pieces.get(offset) == piece:
            return True
        end = offset + len(piece)
        if end > longest or len(self.offsets) >= limits.IP_FRAGMENTS:
            return False
        if self.length is not None and (not isMore or end > self.length):
            return False
        at = bisect(self.offsets, offset)
        if at and self.offsets[at - 1] + len(self.pieces[self.offsets[at - 1]]) > offset:
            return False
        if at < len(self.offsets) and (end > self.offsets[at] or not isMore):
            return False
        return True

    def add(self, offset: int, piece: bytes, isMore: bool) -> None:
        if offset in self.pieces:
            return
        self.offsets.insert(bisect(self.offsets, offset), offset)
        self.pieces[offset] = piece
        self.bytes += len(piece)
        if not isMore:
            self.length = offset + len(piece)

    @property
    def isWhole(self) -> bool:
        # Without overlaps: as many octets as the whole has are the whole.
        return self.bytes == self.length


class Reassembly:
    """
    The packets of which some fragments have come.
    """

    def __init__(self) -> None:
        self._packets: dict[Key, _Pieces] = {}

    def __len__(self) -> int:
        return len(self._packets)

    def add(self, ip: IPPacket, now: float) -> bytes | None:
        """
        Take a fragment.

        @return: the upper layer's header and payload when the packet is whole, else L{None}.
        """
        self.expire(now)
        key = (ip.source, ip.destination, ip.protocol, ip.identification)
        piece = ip.packet[ip.start : ip.stop]
        # RFC 8200 section 4.5: all but the last have a multiple of 8 octets.
        if not piece or (ip.isMore and len(piece) % 8):
            return None
        pieces = self._packets.get(key)
        if pieces is None:
            # The oldest is given up: an attacker's fragments, which are never whole, are old soon.
            if len(self._packets) >= limits.IP_REASSEMBLIES:
                del self._packets[next(iter(self._packets))]
            pieces = self._packets[key] = _Pieces(now)
        if not pieces.accepts(ip.offset, piece, ip.isMore, _LONGEST[len(ip.source)]):
            del self._packets[key]
            return None
        pieces.add(ip.offset, piece, ip.isMore)
        if pieces.isWhole:
            del self._packets[key]
            return b"".join(pieces.pieces[offset] for offset in pieces.offsets)
        return None

    def expire(self, now: float) -> None:
        """
        Give up packets that have waited too long.
        """
        while self._packets:
            key, oldest = next(iter(self._packets.items()))
            if now - oldest.begun < limits.IP_REASSEMBLY_SECONDS:
                break
            del self._packets[key]
