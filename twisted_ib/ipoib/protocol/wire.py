"""
The formats of IPoIB: encapsulation, hardware addresses, ARP, link-layer address options, multicast GIDs
(RFC 4391), and what the two ends of a connection tell each other (RFC 4755).

As in Linux C{drivers/infiniband/ulp/ipoib}, C{include/net/ip.h} and C{include/net/if_inet6.h}.
"""

from __future__ import annotations

from enum import IntEnum
from ipaddress import IPv6Interface
from struct import Struct
from typing import TYPE_CHECKING, Final

from attrs import frozen

from twisted_ib.errors import WireError
from twisted_ib.hca.base.partition import FULL_MEMBER
from twisted_ib.hca.wire.headers import QPN_MASK

if TYPE_CHECKING:
    from twisted_ib.structs import Packed


Buffer = bytes | bytearray | memoryview


class EtherType(IntEnum):
    """
    The EtherTypes of frames.
    """

    IPV4 = 0x0800
    ARP = 0x0806
    IPV6 = 0x86DD


#: EtherType, and two octets that are 0 (RFC 4391 section 6).
ENCAPSULATION: Final[Packed[tuple[int, int]]] = Struct(">HH")
ENCAPSULATION_BYTES: Final = ENCAPSULATION.size
IPV4_HEADER: Final = ENCAPSULATION.pack(EtherType.IPV4, 0)
IPV6_HEADER: Final = ENCAPSULATION.pack(EtherType.IPV6, 0)
ARP_HEADER: Final = ENCAPSULATION.pack(EtherType.ARP, 0)

#: A capability of an interface, in front of its queue pair number (RFC 4755): it takes RC connections.
RC_CAPABLE: Final = 0x80
_HARDWARE: Final[Packed[tuple[int, bytes]]] = Struct(">I16s")
HARDWARE_BYTES: Final = _HARDWARE.size
#: The hardware address of a group has this in place of a queue pair.
GROUP_QPN: Final = QPN_MASK

#: The most that a connection takes, encapsulation included (Linux C{ipoib.h}: IPOIB_CM_BUF_SIZE).
CONNECTED_BYTES: Final = 0x10000 - 0x10 + ENCAPSULATION_BYTES
#: The longest packet in connected mode (Linux C{ipoib.h}: IPOIB_CM_MTU).
CONNECTED_MTU: Final = CONNECTED_BYTES - ENCAPSULATION_BYTES
#: The shortest MTU that a peer may announce: that of datagram mode at an IB MTU of 2048.
LEAST_ANNOUNCED: Final = 2044
#: The longest that is believed.  It is above L{CONNECTED_MTU}, which is only the longest that this end
#: announces: RFC 4755 names no bound, and other implementations may take a little more.  No IP packet is much
#: longer.
LARGEST_ANNOUNCED: Final = 65532
_SERVICE: Final = 0x10 << 56
#: QPN of the UD queue pair, and the longest message that this end receives.
_PRIVATE: Final[Packed[tuple[int, int]]] = Struct(">II")


def packHardwareAddress(capabilities: int, qpn: int, gid: int) -> bytes:
    """
    Pack a hardware address (RFC 4391 section 9.1.1).

    @return: 20 octets.
    """
    return _HARDWARE.pack(capabilities << 24 | qpn & QPN_MASK, gid.to_bytes(16, "big"))


def parseHardwareAddress(address: bytes) -> tuple[int, int, int]:
    """
    @param address: 20 octets.
    @return: capabilities, UD queue pair number, GID.
    """
    word, gid = _HARDWARE.unpack(address)
    return word >> 24, word & QPN_MASK, int.from_bytes(gid, "big")


def linkLocalInterface(gid: int) -> IPv6Interface:
    """
    @return: the link-local IPv6 address of a port (RFC 4391 section 8), of a network of 64 bits.
    """
    # Linux addrconf_ifid_infiniband: the GUID, with the universal/local bit set.
    identifier = gid & (1 << 64) - 1 | 0x02 << 56
    return IPv6Interface((0xFE80 << 112 | identifier, 64))


# -- ARP


class ARPOperation(IntEnum):
    """
    The operations of ARP packets (RFC 826).
    """

    REQUEST = 1
    REPLY = 2


_ARP: Final[Packed[tuple[int, int, int, int, int, bytes, bytes, bytes, bytes]]] = Struct(">HHBBH20s4s20s4s")
ARP_BYTES: Final = _ARP.size
#: ARPHRD_INFINIBAND (IANA: 32), IPv4, and their lengths.
_ARP_KIND: Final = (32, EtherType.IPV4, HARDWARE_BYTES, 4)
#: The target of a request.  Linux sends a template of the broadcast address; neither is read.
NO_HARDWARE: Final = bytes(HARDWARE_BYTES)


@frozen
class ARPPacket:
    """
    An ARP packet for IPv4 (RFC 4391 section 9.2), 56 octets.

    @ivar operation: an L{ARPOperation}, or another number.
    @ivar senderHardware: 20 octets.
    @ivar sender: the sender's IP address, 4 octets.
    @ivar targetHardware: 20 octets.
    @ivar target: 4 octets.
    """

    operation: int
    senderHardware: bytes
    sender: bytes
    targetHardware: bytes
    target: bytes

    def pack(self) -> bytes:
        """
        @return: the packet, without encapsulation.
        """
        return _ARP.pack(
            *_ARP_KIND, self.operation, self.senderHardware, self.sender, self.targetHardware, self.target
        )

    @classmethod
    def parse(cls, buffer: Buffer, start: int, stop: int) -> ARPPacket:
        """
        Parse a packet; octets behind it are padding.

        @raise WireError: it is cut short, or for other kinds of addresses.
        """
        if stop - start < ARP_BYTES:
            raise WireError(f"an ARP packet has {ARP_BYTES} octets, not {stop - start}")
        *kind, operation, hardware, sender, targetHardware, target = _ARP.unpack_from(buffer, start)
        if tuple(kind) != _ARP_KIND:
            raise WireError(f"ARP for other addresses: {kind}")
        return cls(operation, hardware, sender, targetHardware, target)


# -- options of neighbour discovery

#: Kinds of link-layer address options (RFC 4861 section 4.6.1).
SOURCE_LINK_LAYER: Final = 1
TARGET_LINK_LAYER: Final = 2
#: Kind, length in units of 8 octets, two octets that are 0, the address (RFC 4391 section 9.3).
_OPTION: Final[Packed[tuple[int, int, bytes]]] = Struct(">BB2x20s")
_OPTION_UNITS: Final = _OPTION.size // 8


def packLinkLayerOption(kind: int, address: bytes) -> bytes:
    """
    @param kind: L{SOURCE_LINK_LAYER} or L{TARGET_LINK_LAYER}.
    @return: 24 octets.
    """
    return _OPTION.pack(kind, _OPTION_UNITS, address)


def findLinkLayerOption(buffer: Buffer, start: int, stop: int, kind: int) -> bytes | None:
    """
    Find a link-layer address among the options of a message.

    @return: 20 octets, or L{None}.
    @raise WireError: an option has length 0 or is cut short, or a link-layer address has another length.
    """
    found = None
    while start < stop:
        # RFC 4861 section 4.6: the length 0 is invalid.
        units = buffer[start + 1] if stop - start >= 2 else 0
        if not units or units * 8 > stop - start:
            raise WireError("an option without a length, or cut short")
        if buffer[start] == kind and found is None:
            if units != _OPTION_UNITS:
                raise WireError(f"a link-layer address of {units * 8} octets")
            found = _OPTION.unpack_from(buffer, start)[2]
        start += units * 8
    return found


# -- multicast GIDs

#: Transient, and link-local (RFC 4291 section 2.7).
_PREFIX: Final = 0xFF12
_IPV4_SIGNATURE: Final = 0x401B
_IPV6_SIGNATURE: Final = 0x601B


def _mgid(signature: int, pKey: int, group: int) -> int:
    # RFC 4391 section 4: the P_Key is that of full members.
    return _PREFIX << 112 | signature << 96 | (pKey | FULL_MEMBER) << 80 | group


def multicastGID(group: bytes, pKey: int) -> int:
    """
    @param group: an IP multicast address, 4 or 16 octets.
    @return: the MGID of its datagrams.
    """
    number = int.from_bytes(group, "big")
    if len(group) == 4:
        return _mgid(_IPV4_SIGNATURE, pKey, number & (1 << 28) - 1)
    return _mgid(_IPV6_SIGNATURE, pKey, number & (1 << 80) - 1)


def broadcastGID(pKey: int) -> int:
    """
    @return: the MGID of a partition's broadcast group.
    """
    return _mgid(_IPV4_SIGNATURE, pKey, 0xFFFFFFFF)


# -- connected mode


def serviceID(qpn: int) -> int:
    """
    @param qpn: the UD queue pair of the interface that takes connections.
    @return: its service id (RFC 4755).
    """
    return _SERVICE | qpn


def packPrivateData(qpn: int, size: int) -> bytes:
    """
    Pack the private data of a REQ or REP.

    @param qpn: the sender's UD queue pair.
    @param size: the longest message that it receives, encapsulation included.
    """
    return _PRIVATE.pack(qpn, size)


def parsePrivateData(data: bytes) -> tuple[int, int]:
    """
    @return: the UD queue pair, and the longest packet that the peer receives: at most
        L{LARGEST_ANNOUNCED} octets, whatever it says.
    @raise WireError: it is cut short, or announces less than L{LEAST_ANNOUNCED} octets.
    """
    if len(data) < _PRIVATE.size:
        raise WireError(f"{len(data)} octets of private data are too few")
    qpn, size = _PRIVATE.unpack_from(data)
    mtu = size - ENCAPSULATION_BYTES
    if mtu < LEAST_ANNOUNCED:
        raise WireError(f"an MTU of {mtu} octets for a connection")
    return qpn & QPN_MASK, min(mtu, LARGEST_ANNOUNCED)
