"""
RoCEv2 packets: InfiniBand transport in UDP over IP (IBTA vol. 1 annex A17).

GIDs are 128-bit integers: C{::ffff:a.b.c.d} is an IPv4 address, anything else an IPv6 address.
"""

from __future__ import annotations

from struct import Struct
from struct import error as structError
from typing import TYPE_CHECKING, Final

from attrs import frozen

from twisted_ib.errors import HeaderError, InvariantCRCError, LengthError
from twisted_ib.hca.wire.grh import isMulticast
from twisted_ib.hca.wire.headers import BTH, ICRC
from twisted_ib.hca.wire.icrc import icrc
from twisted_ib.hca.wire.packet import Packet

if TYPE_CHECKING:
    from twisted_ib.structs import Packed


#: The UDP destination port of RoCEv2, assigned by IANA (IBTA vol. 1 annex A17).
PORT: Final = 4791
#: Source ports are of the dynamic range (RFC 6335 section 6). A flow keeps one port, so that ECMP routers
#: keep it on one route and in order.
LOWEST_PORT: Final = 0xC000
#: Path MTUs above IBTA's largest, which two ends of this package agree on, by codes that IBTA leaves free:
#: for links of 9000 octets, and for loopback and IPoIB's connected mode, where a packet fills a UDP datagram.
LONG_MTU_BYTES: Final = {6: 8192, 7: 61440}
LONG_MTU_CODES: Final = {size: code for code, size in LONG_MTU_BYTES.items()}
#: Multiplier of Linux's hash_32 (C{linux/hash.h}), as rxe_qp.c uses it.
_GOLDEN: Final = 0x61C88647

#: Destination, source, EtherType.
ETHERNET: Final[Packed[tuple[bytes, bytes, int]]] = Struct(">6s6sH")
#: RFC 791 section 3.1: version and header length, type of service, total length, identification, flags and
#: fragment offset, time to live, protocol, checksum, source, destination.
_IPV4: Final[Packed[tuple[int, int, int, int, int, int, int, int, int, int]]] = Struct(">BBHHHBBHII")
#: RFC 8200 section 3: version, traffic class and flow label; payload length, next header, hop limit; source
#: and destination, upper and lower halves.
_IPV6: Final[Packed[tuple[int, int, int, int, int, int, int, int]]] = Struct(">IHBB4Q")
#: RFC 768: source and destination port, length, checksum.
_UDP: Final[Packed[tuple[int, int, int, int]]] = Struct(">HHHH")

_TYPES: Final = {4: 0x0800, 6: 0x86DD}
# Options are refused: rxe_icrc.c hashes the first 20 octets of an IPv4 header only.
_IPV4_FIRST: Final = 0x45
_DO_NOT_FRAGMENT: Final = 0x4000
# Everything of the flags and offset but Don't Fragment: a RoCEv2 packet is never a fragment.
_FRAGMENT_MASK: Final = 0xBFFF
_PROTOCOL: Final = 17
# RFC 4291 section 2.5.5.2: IPv4-mapped IPv6 addresses.
_IPV4_PREFIX: Final = 0xFFFF
_LOW: Final = (1 << 64) - 1

#: Any bytes-like object.
Octets = bytes | bytearray | memoryview


def ipVersion(*gids: int) -> int:
    """
    @return: 4 if all GIDs are IPv4-mapped, else 6.
    """
    return 4 if all(gid >> 32 == _IPV4_PREFIX for gid in gids) else 6


def flowLabel(local: int, remote: int) -> int:
    """
    The flow label of a connection that was given none: symmetric in the two queue pair numbers, so both
    directions use one source port.
    """
    # Linux ib_verbs.h rdma_calc_flow_label.
    v = local * remote
    v ^= v >> 20
    v ^= v >> 40
    return v & 0xFFFFF


def sourcePort(label: int) -> int:
    """
    The UDP source port of a flow label.
    """
    # Linux ib_verbs.h rdma_flow_label_to_udp_sport: 20 bits folded into 14.
    return (label & 0x3FFF ^ label >> 14) | LOWEST_PORT


def datagramPort(number: int) -> int:
    """
    The UDP source port of a datagram queue pair.
    """
    # Linux rxe_qp.c rxe_qp_init_req: a datagram queue pair has many peers, so its own number is all there is
    # to hash.
    return LOWEST_PORT + ((number * _GOLDEN & 0xFFFFFFFF) >> 18)


def hardwareAddress(gid: int, own: bytes) -> bytes:
    """
    The destination MAC address of a frame.

    @param own: the receiver's MAC address, for unicast.
    """
    if gid >> 28 == _IPV4_PREFIX << 4 | 0xE:
        # RFC 1112 section 6.4: the low 23 bits of the group. Linux rxe_mcast.c differs and filters on 33:33.
        return b"\x01\x00\x5e" + (gid & 0x7FFFFF).to_bytes(3, "big")
    if isMulticast(gid):
        # RFC 2464 section 7.
        return b"\x33\x33" + (gid & 0xFFFFFFFF).to_bytes(4, "big")
    return own


def ethernet(source: bytes, destination: bytes, version: int) -> bytes:
    """
    An Ethernet header.

    @param source: six octets.
    @param destination: six octets.
    @param version: the IP version, 4 or 6.
    """
    return ETHERNET.pack(destination, source, _TYPES[version])


def internetChecksum(*pieces: Octets) -> int:
    """
    @param pieces: each of an even length.
    @return: the checksum (RFC 1071) of octets whose checksum field is 0; 0 where it is included and right.
    """
    # 2**16 is 1 modulo 0xFFFF, so whole byte strings may be added as big integers: the sum is a remainder.
    total = sum([int.from_bytes(piece, "big") for piece in pieces])
    # In ones' complement a non-zero sum with remainder 0 is 0xFFFF, whose complement is 0.
    return ~(total % 0xFFFF) & 0xFFFF if total % 0xFFFF or not total else 0


def ipHeader(
    source: int,
    destination: int,
    protocol: int,
    length: int,
    trafficClass: int = 0,
    hopLimit: int = 64,
    flowLabel: int = 0,
    identification: int = 0,
) -> bytes:
    """
    An IP header; see L{UDPDatagram} for its fields.

    @param source: GID of the sender, and C{destination} the receiver's.
    @param protocol: that of the next header.
    @param length: the octets that follow.
    @raise HeaderError: a field does not fit.
    """
    try:
        if ipVersion(source, destination) == 4:
            head = _IPV4.pack(
                *(_IPV4_FIRST, trafficClass, _IPV4.size + length, identification),
                *(_DO_NOT_FRAGMENT, hopLimit, protocol, 0),
                *(source & 0xFFFFFFFF, destination & 0xFFFFFFFF),
            )
            return head[:10] + internetChecksum(head).to_bytes(2, "big") + head[12:]
        if trafficClass >> 8 or flowLabel >> 20:
            raise HeaderError(f"IPv6 has no class {trafficClass:#x} or flow {flowLabel:#x}")
        return _IPV6.pack(
            *(6 << 28 | trafficClass << 20 | flowLabel, length, protocol),
            *(hopLimit, source >> 64, source & _LOW),
            *(destination >> 64, destination & _LOW),
        )
    except structError as error:
        raise HeaderError(f"an IP packet cannot have this: {error}") from None


def transportChecksum(source: int, destination: int, protocol: int, segment: Octets) -> int:
    """
    The checksum of TCP or UDP.

    @param source: GID of the sender, and C{destination} the receiver's.
    @param segment: from the transport's header on; its checksum field is 0.
    """
    # RFC 8200 section 8.1: the pseudo-header. The same sum serves IPv4 (RFC 768, RFC 9293 section 3.1): the
    # prefix 0xFFFF of its GIDs is zero in ones' complement.
    pseudo = (source + destination + len(segment) + protocol).to_bytes(18, "big")
    return internetChecksum(pseudo, segment if not len(segment) % 2 else bytes(segment) + b"\0")


@frozen
class UDPDatagram:
    """
    One RoCEv2 packet with its IP and UDP headers.

    @ivar source: GID of the sender.
    @ivar destination: GID of the receiver, of the same IP version.
    @ivar port: UDP source port.
    @ivar body: from the BTH to the pad.
    @ivar trafficClass: 8 bits; the type of service of IPv4.
    @ivar hopLimit: the time to live of IPv4.
    @ivar flowLabel: IPv6 only, 20 bits.
    @ivar identification: IPv4 only.
    @ivar checksum: of UDP; 0 for none, L{None} to compute it.
    """

    source: int
    destination: int
    port: int
    body: bytes | bytearray | memoryview
    trafficClass: int = 0
    hopLimit: int = 64
    flowLabel: int = 0
    identification: int = 0
    checksum: int | None = 0

    def pack(self) -> bytes:
        """
        @return: the IP packet, with its ICRC.
        @raise WireError: a field does not fit.
        """
        body = self.body
        length = _UDP.size + len(body) + ICRC.size
        head = ipHeader(
            *(self.source, self.destination, _PROTOCOL, length),
            *(self.trafficClass, self.hopLimit, self.flowLabel, self.identification),
        )
        try:
            packed = b"".join((head, _UDP.pack(self.port, PORT, length, self.checksum or 0), body))
        except structError as error:
            raise HeaderError(f"a UDP datagram cannot have this: {error}") from None
        packed += ICRC.pack(icrc(packed, 0, len(packed)))
        if self.checksum is not None:
            return packed
        udp = len(head)
        # RFC 768: a computed 0 is sent as 0xFFFF, since 0 means no checksum.
        found = transportChecksum(self.source, self.destination, _PROTOCOL, packed[udp:]) or 0xFFFF
        return b"".join((packed[: udp + 6], found.to_bytes(2, "big"), packed[udp + 8 :]))


def udpOf(buffer: Octets, start: int, stop: int) -> tuple[int, int]:
    """
    Check the IP and UDP headers of a packet.

    @param buffer: holds the IP packet.
    @param start: offset of its first octet.
    @param stop: offset of the end; Ethernet padding behind the packet is ignored.
    @return: the offset of the UDP header, and that of the packet's end.
    @raise WireError: this is not RoCEv2.
    """
    if start < 0 or stop > len(buffer) or stop - start < _IPV4.size:
        raise LengthError(f"an IP packet has not {stop - start} octets")
    if buffer[start] >> 4 == 4:
        first, _, total, _, fragment, _, protocol, *_ = _IPV4.unpack_from(buffer, start)
        if first != _IPV4_FIRST or fragment & _FRAGMENT_MASK:
            raise HeaderError("an IPv4 packet has options or is a fragment")
        udp = start + _IPV4.size
        end = start + total
    elif buffer[start] >> 4 == 6 and stop - start >= _IPV6.size:
        _, total, protocol, *_ = _IPV6.unpack_from(buffer, start)
        udp = start + _IPV6.size
        end = udp + total
    else:
        raise HeaderError(f"an IP packet begins with {buffer[start]:#04x}")
    if protocol != _PROTOCOL:
        raise HeaderError(f"protocol {protocol} is not UDP")
    # BTH and ICRC are the least that a packet has: checked here, before anything behind the headers is read.
    if end > stop or end - udp < _UDP.size + BTH.size + ICRC.size:
        raise LengthError(f"an IP packet of {stop - start} octets says that its UDP has {end - udp}")
    _, other, length, _ = _UDP.unpack_from(buffer, udp)
    if other != PORT:
        raise HeaderError(f"UDP port {other} is not RoCEv2's")
    # Both lengths must agree: the ICRC is found by one of them, and data between the two would be covered by
    # no check.
    if length != end - udp:
        raise LengthError(f"UDP says {length} octets, IP {end - udp}")
    return udp, end


def _matches(network: bytes, octets: bytes) -> None:
    # The lengths of the given headers must be those of this very packet, as the ICRC covers them.
    udp, end = udpOf(octets, 0, len(octets))
    if udp + _UDP.size != len(network) or end != len(octets):
        raise LengthError(
            f"{len(network)} octets of IP and UDP do not say that {len(octets) - len(network)} follow"
        )


def decodePacket(network: Octets, datagram: Octets) -> Packet:
    """
    Parse a packet as it was on the wire.

    @param network: its IP and UDP headers, 28 octets for IPv4 or 48 for IPv6.
    @param datagram: the UDP payload, from BTH to ICRC.
    @return: the packet; L{encodePacket} makes the same octets of it.
    @raise LengthError: it is too short, or the headers declare another length.
    @raise HeaderError: the headers are not those of RoCEv2, or the BTH has another version.
    @raise InvariantCRCError: it is corrupt.
    @raise OpcodeError: its opcode is undefined.
    @raise WireError: one of these, or its pad is not zero.
    """
    network, datagram = bytes(network), bytes(datagram)
    octets = network + datagram
    _matches(network, octets)
    end = len(octets) - ICRC.size
    if ICRC.unpack_from(octets, end)[0] != icrc(octets, 0, end):
        raise InvariantCRCError("a packet's invariant CRC is wrong")
    return Packet.parse(datagram, 0, len(datagram))


def encodePacket(packet: Packet, network: Octets) -> bytes:
    """
    Serialize a packet.

    @param network: the IP and UDP headers that it will have, lengths included.
    @return: the UDP payload, from BTH to ICRC.
    @raise WireError: a field does not fit, or the headers are not those of RoCEv2 or declare another length.
    """
    network, body = bytes(network), packet.pack()
    octets = network + body
    _matches(network, octets + bytes(ICRC.size))
    return body + ICRC.pack(icrc(octets, 0, len(octets)))
