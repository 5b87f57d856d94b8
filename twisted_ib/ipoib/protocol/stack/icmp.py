"""
ICMP of a host's own stack (RFC 792, RFC 1122 section 3.2.2, RFC 4443): echo, port unreachable, and errors of
others about its own datagrams.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from attrs import frozen

from twisted_ib.errors import HeaderError, LengthError
from twisted_ib.ipoib.protocol.ip import (
    ICMP,
    ICMP_HEADER,
    ICMPV6,
    IPV4_BYTES,
    IPV6_BYTES,
    OFFSET_MASK,
    PORT_UNREACHABLE,
    TOO_BIG,
    checksum,
    packICMP,
    packICMPError,
)
from twisted_ib.ipoib.protocol.stack.packets import FRAGMENT, IPPacket
from twisted_ib.ipoib.protocol.stack.udp import UDP

if TYPE_CHECKING:
    from twisted_ib.structs import Packed


#: Type and code of messages, by the version of IP.
ECHO_REQUEST: Final = {4: (8, 0), 6: (128, 0)}
ECHO_REPLY: Final = {4: (0, 0), 6: (129, 0)}
#: By the version: the protocol's number.
PROTOCOL: Final = {4: ICMP, 6: ICMPV6}

_PORTS: Final[Packed[tuple[int, int]]] = Struct("!HH")
#: The types of IPv4's errors; those of IPv6 are below 128.
_ERRORS_IPV4: Final = frozenset((3, 4, 5, 11, 12))


@frozen
class ICMPMessage:
    """
    A message whose checksum is right.

    @ivar kind: type and code.
    @ivar rest: the 32 bits behind the checksum: identifier and sequence number of an echo, and the MTU of
        an error "too big".
    @ivar body: the rest of the message: an error's has the packet that it is about.
    """

    version: int
    kind: tuple[int, int]
    rest: int
    body: bytes

    @classmethod
    def parse(cls, ip: IPPacket) -> ICMPMessage:
        """
        Parse and check what an IP packet holds.

        @raise LengthError: it is cut short.
        @raise HeaderError: a wrong checksum.
        """
        message = ip.packet[ip.start : ip.stop]
        if len(message) < ICMP_HEADER.size:
            raise LengthError(f"an ICMP header in {len(message)} octets")
        # RFC 4443 section 2.3: only ICMPv6 has a pseudo header.
        pseudo = ip.pseudoHeader(len(message)) if ip.version == 6 else b""
        if checksum(pseudo, message):
            raise HeaderError("a wrong ICMP checksum")
        kind, code, _, rest = ICMP_HEADER.unpack_from(message)
        return cls(ip.version, (kind, code), rest, message[ICMP_HEADER.size :])

    @property
    def isError(self) -> bool:
        """
        Whether it is one of those that must not be answered with an error.
        """
        return self.kind[0] in _ERRORS_IPV4 if self.version == 4 else self.kind[0] < 128

    @property
    def isEchoRequest(self) -> bool:
        """
        Whether it asks for an echo.
        """
        return self.kind == ECHO_REQUEST[self.version]

    @property
    def isPortUnreachable(self) -> bool:
        """
        Whether it says that nothing receives a datagram.
        """
        return self.kind == PORT_UNREACHABLE[self.version]

    @property
    def isTooBig(self) -> bool:
        """
        Whether it says that a packet was too long for its path.
        """
        return self.kind == TOO_BIG[self.version]

    @property
    def pathMTU(self) -> int:
        """
        The MTU that an error "too big" tells; 0 if it tells none.
        """
        # RFC 1191 section 4: the low 16 bits; those above are unused.
        return self.rest & 0xFFFF if self.version == 4 else self.rest

    def echoReply(self, source: bytes, destination: bytes) -> bytes:
        """
        Return the answer to an echo request.
        """
        return packICMP(source, destination, ECHO_REPLY[self.version], self.rest, self.body)

    def quoted(self) -> Quoted:
        """
        Return what an error says of the packet that it is about.

        @raise LengthError: there is too little of it.
        @raise HeaderError: it is of another version.
        """
        return Quoted.parse(self.version, self.body)


@frozen
class Quoted:
    """
    The beginning of a packet that was sent, as an error has it.

    @ivar ports: of source and destination, if it was a UDP datagram, or the first fragment of one.
    """

    source: bytes
    destination: bytes
    ports: tuple[int, int] | None

    @classmethod
    def parse(cls, version: int, packet: bytes) -> Quoted:
        """
        Parse what an error quotes: 8 octets behind the IP header at least (RFC 792).
        """
        if not packet or packet[0] >> 4 != version:
            raise HeaderError(f"an ICMP error about no packet of IPv{version}")
        if version == 4:
            start, protocol = (packet[0] & 15) * 4, packet[9:10]
            isFirst = not int.from_bytes(packet[6:8], "big") & OFFSET_MASK
        else:
            start, protocol, isFirst = IPV6_BYTES, packet[6:7], True
            # This stack sends no other extension header.
            if protocol == bytes((FRAGMENT,)):
                start, protocol, isFirst = 48, packet[40:41], not int.from_bytes(packet[42:44], "big") & ~7
        if start < IPV4_BYTES or len(packet) < start + 8:
            raise LengthError(f"an ICMP error with {len(packet)} octets of a packet")
        source, destination = (
            (packet[12:16], packet[16:20]) if version == 4 else (packet[8:24], packet[24:40])
        )
        isUDP = isFirst and protocol == bytes((UDP,))
        ports = _PORTS.unpack_from(packet, start) if isUDP else None
        return cls(source, destination, ports)


def portUnreachable(ip: IPPacket, source: bytes) -> bytes:
    """
    Return the error that nothing receives a datagram, for a packet from C{source} to its sender.
    """
    return packICMPError(source, ip.source, PORT_UNREACHABLE, 0, ip.packet[: ip.stop])
