"""
UDP datagrams over IPv4 and IPv6 (RFC 768, RFC 8200 section 8.1): the frames of one flow, and the segments
that packets hold.

A flow is one pair of addresses and ports.  The common part of its frames is packed and summed once.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from twisted_ib.errors import HeaderError, LengthError
from twisted_ib.ipoib.protocol.ip import DONT_FRAGMENT, IPV4_BYTES, IPV6_BYTES, checksum
from twisted_ib.ipoib.protocol.stack.packets import IPPacket
from twisted_ib.ipoib.protocol.wire import IPV4_HEADER, IPV6_HEADER

if TYPE_CHECKING:
    from twisted_ib.structs import Packed

#: The protocol number, for both versions of IP.
UDP: Final = 17
UDP_HEADER_BYTES: Final = 8
#: The longest payload: 16 bits count it, with the header of UDP and, for IPv4, that of IP.
LONGEST_IPV4: Final = 65535 - IPV4_BYTES - UDP_HEADER_BYTES
LONGEST_IPV6: Final = 65535 - UDP_HEADER_BYTES

_HEADER: Final[Packed[tuple[int, int, int, int]]] = Struct("!HHHH")
_PORTS: Final[Packed[tuple[int, int]]] = Struct("!HH")
#: Of an IPv4 header: identification, flags and fragment offset, time to live, protocol.
_TIME_TO_LIVE: Final[Packed[tuple[int, int, int, int]]] = Struct("!HHBB")
_FRAME_IPV4: Final[Packed[tuple[bytes, int, bytes, int, bytes, int, int]]] = Struct("!6sH6sH12sHH")
_FRAME_IPV6: Final[Packed[tuple[bytes, int, bytes, int, int]]] = Struct("!8sH38sHH")


class SendFlow:
    """
    Where the datagrams of one port to one address go.

    @ivar frame: makes a datagram's frame.
    @ivar send: takes it.
    @ivar most: octets of the longest payload that is not fragmented.
    """

    __slots__ = ("addresses", "frame", "hopLimit", "longest", "most", "mtu", "send")

    def __init__(
        self,
        addresses: tuple[bytes, int, bytes, int],
        hopLimit: int,
        mtu: int,
        send: Callable[[bytes], object],
    ) -> None:
        flow = (IPv4Flow if len(addresses[0]) == 4 else IPv6Flow)(*addresses, hopLimit)
        self.addresses = addresses
        self.hopLimit = hopLimit
        self.frame = flow.frame
        self.longest = flow.longest
        self.mtu = mtu
        self.most = min(mtu - flow.headers, flow.longest)
        self.send = send


class ReceiveFlow:
    """
    The datagrams from one address and port that one port receives.

    @ivar sum: of the pseudo header without the length, and of the ports.
    @ivar header: the octets in front of the addresses, which were checked.
    @ivar size: octets of packets with that header.
    """

    __slots__ = ("address", "header", "port", "size", "sum")

    def __init__(self, port: Any, address: tuple[str, int], key: bytes) -> None:
        self.port = port
        self.address = address
        self.sum = (int.from_bytes(key, "big") + UDP) % 0xFFFF
        self.header = b""
        self.size = 0


class IPv4Flow:
    """
    The datagrams from one address and port to another.

    @ivar longest: the longest payload that there can be.
    @ivar headers: octets in front of the payload, those of IP and UDP.
    """

    __slots__ = ("_addresses", "_headerSum", "_start", "_timeToLive", "_udpSum")

    longest = LONGEST_IPV4
    headers = IPV4_BYTES + UDP_HEADER_BYTES

    def __init__(
        self, source: bytes, sourcePort: int, destination: bytes, destinationPort: int, hopLimit: int
    ) -> None:
        self._start = IPV4_HEADER + b"\x45\x00"
        # An identification of 0: RFC 6864 section 4.1, it has no meaning where DF is set.
        self._timeToLive = _TIME_TO_LIVE.pack(0, DONT_FRAGMENT, hopLimit, UDP)
        self._addresses = source + destination + _PORTS.pack(sourcePort, destinationPort)
        self._headerSum = int.from_bytes(b"\x45\x00" + self._timeToLive + self._addresses[:8], "big") % 0xFFFF
        self._udpSum = (int.from_bytes(self._addresses, "big") + UDP) % 0xFFFF

    def frame(self, payload: bytes) -> bytes:
        """
        Return a datagram's frame, which routers must not fragment.

        @param payload: bytes-like, at most L{longest} octets.
        """
        length = len(payload) + UDP_HEADER_BYTES
        total = length + IPV4_BYTES
        # RFC 1071: 2^16 is 1 modulo 65535, so the sum of the 16-bit words is the whole as a number, modulo
        # 65535.  A last octet alone is the high one of a word.
        words = int.from_bytes(payload, "big")
        if length & 1:
            words <<= 8
        # A UDP checksum of 0 would say that there is none (RFC 768).  IP has no such rule.
        return (
            _FRAME_IPV4.pack(
                self._start,
                total,
                self._timeToLive,
                -(self._headerSum + total) % 0xFFFF,
                self._addresses,
                length,
                0xFFFF - (self._udpSum + 2 * length + words) % 0xFFFF,
            )
            + payload
        )


class IPv6Flow:
    """
    The same over IPv6.
    """

    __slots__ = ("_rest", "_start", "_udpSum")

    longest = LONGEST_IPV6
    headers = IPV6_BYTES + UDP_HEADER_BYTES

    def __init__(
        self, source: bytes, sourcePort: int, destination: bytes, destinationPort: int, hopLimit: int
    ) -> None:
        self._start = IPV6_HEADER + b"\x60\x00\x00\x00"
        addresses = source + destination + _PORTS.pack(sourcePort, destinationPort)
        self._rest = bytes((UDP, hopLimit)) + addresses
        self._udpSum = (int.from_bytes(addresses, "big") + UDP) % 0xFFFF

    def frame(self, payload: bytes) -> bytes:
        """
        Return a datagram's frame.

        @param payload: bytes-like, at most L{longest} octets.
        """
        length = len(payload) + UDP_HEADER_BYTES
        words = int.from_bytes(payload, "big")
        if length & 1:
            words <<= 8
        return (
            _FRAME_IPV6.pack(
                self._start,
                length,
                self._rest,
                length,
                0xFFFF - (self._udpSum + 2 * length + words) % 0xFFFF,
            )
            + payload
        )


@frozen
class UDPSegment:
    """
    A datagram without its IP header.

    @ivar start: where its payload is in the packet.
    @ivar stop: where it ends.
    """

    sourcePort: int
    destinationPort: int
    start: int
    stop: int

    @classmethod
    def parse(cls, ip: IPPacket) -> UDPSegment:
        """
        Parse and check what an IP packet holds.

        @raise LengthError: it is cut short.
        @raise HeaderError: a wrong checksum, or none where there must be one.
        """
        packet, start = ip.packet, ip.start
        if ip.stop - start < UDP_HEADER_BYTES:
            raise LengthError(f"a UDP header in {ip.stop - start} octets")
        source, destination, length, given = _HEADER.unpack_from(packet, start)
        # Octets behind the datagram are no part of it (RFC 768: the length is the datagram's own).
        if not UDP_HEADER_BYTES <= length <= ip.stop - start:
            raise LengthError(f"a UDP datagram of {length} octets in {ip.stop - start}")
        stop = start + length
        if given:
            if checksum(ip.pseudoHeader(length), packet[start:stop]):
                raise HeaderError("a wrong UDP checksum")
        elif ip.version == 6:
            # RFC 8200 section 8.1.
            raise HeaderError("a UDP datagram over IPv6 without a checksum")
        return cls(source, destination, start + UDP_HEADER_BYTES, stop)
