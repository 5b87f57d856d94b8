"""
What the RDMA-CM adds to the communication manager: IP addresses and port numbers.

A TCP segment has both in every packet.  A REQ has neither: its service id names the port
space and the passive side's port, and the first 36 octets of its private data say who asks
whom (IBTA vol. 1 annex A11, "RDMA IP CM service").  A L{SIDR_REQ
<twisted_ib.hca.wire.cm.sidr.SIDR_REQ>} begins with the same header.  Answers have none.
"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from struct import Struct

import attrs

from twisted_ib import limits
from twisted_ib.errors import WireError
from twisted_ib.hca.wire.cm.layout import Buffer

#: Octets of the header.
HEADER_BYTES = 36
#: Octets that it leaves to the user in a REQ and in a SIDR_REQ, and what the answers have.
REQ_USER_BYTES = 56
SIDR_REQ_USER_BYTES = 180
REP_USER_BYTES = 196
REJ_USER_BYTES = 148
SIDR_REP_USER_BYTES = 136

_HIGHEST_PORT = 0xFFFF
_HEADER = Struct(">BBH16s16s")
#: What an IPv4 address has in front of it as a GID.
_MAPPED = b"\0" * 10 + b"\xff\xff"
_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9][0-9]|[0-9])"
#: Any IPv4 address: a stranger may write any, so they are not worth to be remembered.
_FOUR = re.compile(rf"{_OCTET}\.{_OCTET}\.{_OCTET}\.{_OCTET}").fullmatch


class PortSpace(IntEnum):
    """
    The spaces of port numbers (C{enum rdma_port_space}; SDP's is annex A4's).
    """

    SDP = 0x0001
    IPOIB = 0x0002
    TCP = 0x0106
    UDP = 0x0111
    IB = 0x013F


def serviceID(portSpace: int, port: int) -> int:
    """
    The service id of a port.

    @param portSpace: a L{PortSpace}.
    @param port: 0 to 65535.
    """
    return portSpace << 16 | port


# Each connect and each accept asks for the same few addresses again.
_remember = lru_cache(maxsize=limits.ADDRESSES_REMEMBERED)


@_remember
def packAddress(text: str) -> tuple[int, bytes]:
    """
    An IP address as the header has it.

    @param text: an IPv4 or IPv6 address; a scope (C{%ib0}) is left out.
    @return: its version, and 16 octets, of which IPv4 uses the last four.
    @raise ValueError: C{text} is not an IP address.
    """
    quick = _FOUR(text)
    if quick is not None:
        return 4, b"\0" * 12 + bytes(map(int, quick.groups()))
    address = ip_address(text.partition("%")[0])
    return address.version, address.packed.rjust(16, b"\0")


@_remember
def gidOf(text: str) -> bytes:
    """
    The GID of an IP address: itself, or C{::ffff:a.b.c.d}.

    @param text: an IPv4 or IPv6 address; a scope is left out.
    @return: 16 octets.
    @raise ValueError: C{text} is not an IP address.
    """
    version, packed = packAddress(text)
    return _MAPPED + packed[12:] if version == 4 else packed


@_remember
def textOf(gid: bytes) -> str:
    """
    The IP address that a GID stands for.

    @param gid: 16 octets.
    """
    if gid[:12] == _MAPPED:
        return ".".join(map(str, gid[12:]))
    return str(IPv6Address(gid))


def gidNumber(text: str) -> int:
    """
    The GID of an IP address as a number.

    @param text: see L{gidOf}.
    @return: 128 bits.
    @raise ValueError: C{text} is not an IP address.
    """
    return int.from_bytes(gidOf(text), "big")


def gidText(gid: int) -> str:
    """
    The IP address that a GID stands for.

    @param gid: 128 bits.
    """
    return textOf(gid.to_bytes(16, "big"))


@_remember
def unpackAddress(version: int, packed: bytes) -> str:
    """
    An address of private data as text.

    @param version: 4; for any other the address is one of IPv6.
    @param packed: 16 octets, of which IPv4 uses the last four.
    """
    if version == 4:
        return ".".join(map(str, packed[12:16]))
    return str(IPv6Address(packed))


@attrs.frozen
class RDMACMHeader:
    """
    Who asks whom, of a REQ or SIDR_REQ.

    @ivar source: the active side's IP address.
    @ivar sourcePort: its port.
    @ivar destination: the passive side's IP address, of the same version.  Its port is in the
        service id.
    """

    source: str
    sourcePort: int
    destination: str

    def pack(self) -> bytes:
        """
        @return: 36 octets.
        @raise ValueError: what should be an address or a port is none, or the addresses are
            of different versions.
        """
        version, source = packAddress(self.source)
        other, destination = packAddress(self.destination)
        if version != other:
            raise ValueError(f"{self.source} and {self.destination} are of different IP versions")
        if not 0 <= self.sourcePort <= _HIGHEST_PORT:
            raise ValueError(f"{self.sourcePort} is not a port number")
        return _HEADER.pack(0, version << 4, self.sourcePort, source, destination)

    @classmethod
    def parse(cls, buffer: Buffer, start: int = 0, stop: int | None = None) -> RDMACMHeader:
        """
        Read the header of private data.  Reserved bits and the octets before an IPv4 address
        are not looked at, as in Linux.

        @param buffer: what begins with the header at C{start}; what follows it is the user's.
        @param stop: offset after the private data; by default its end.
        @return: the header.
        @raise WireError: it is too short, or of another version.
        """
        if stop is None:
            stop = len(buffer)
        if start < 0 or stop > len(buffer) or stop - start < HEADER_BYTES:
            raise WireError(f"the RDMA-CM's header has {HEADER_BYTES} octets, not {stop - start}")
        version, ip, port, source, destination = _HEADER.unpack_from(buffer, start)
        if version:
            raise WireError(f"the RDMA-CM's header has version {version:#04x}, not 0")
        ip >>= 4
        if ip not in (4, 6):
            raise WireError(f"the RDMA-CM's header has addresses of IP version {ip}")
        return cls(unpackAddress(ip, source), port, unpackAddress(ip, destination))
