"""
The RDMA-CM's use of private data: IP addresses and ports (IBTA vol. 1 annex A11, "RDMA IP CM service").

The service id of a REQ names the port space and the passive side's port; the first 36 octets of its private
data hold both IP addresses and the active side's port. A
L{SIDR_REQ<twisted_ib.hca.wire.cm.messages.SIDR_REQ>} begins with the same header; answers have none.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from struct import Struct
from typing import TYPE_CHECKING

from twisted_ib import limits
from twisted_ib.errors import WireError
from twisted_ib.layouts import Record
from twisted_ib.records import define

if TYPE_CHECKING:
    from twisted_ib.structs import Packed


Buffer = bytes | bytearray | memoryview

#: Octets of the header (Linux cma.c struct cma_hdr).
HEADER_BYTES = 36

_HIGHEST_PORT = 0xFFFF
_HEADER: Packed[tuple[int, int, int, bytes, bytes]] = Struct(">BBH16s16s")
#: RFC 4291 section 2.5.5.2: prefix of an IPv4 address as a GID.
_MAPPED = b"\0" * 10 + b"\xff\xff"


class PortSpace(IntEnum):
    """
    Port spaces (C{enum rdma_port_space}; SDP's is of annex A4).
    """

    # No longer in Linux: rdma_user_cm.h has the others.
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
    # Linux cma.c rdma_get_service_id.
    return portSpace << 16 | port


# Every connect and accept converts the same few addresses.
_remember = lru_cache(maxsize=limits.ADDRESSES_REMEMBERED)


@_remember
def packAddress(text: str) -> tuple[int, bytes]:
    """
    An IP address in the form of the header.

    @param text: an IPv4 or IPv6 address; a scope (C{%ib0}) is dropped.
    @return: its version, and 16 octets, of which IPv4 uses the last four.
    @raise ValueError: C{text} is not an IP address.
    """
    # IPv4 without the slow C{ipaddress}: strangers' addresses are mostly not in the caches.
    try:
        octets = bytes(map(int, text.split(".")))
    except ValueError:
        octets = b""
    if len(octets) == 4 and ".".join(map(str, octets)) == text:
        return 4, octets.rjust(16, b"\0")
    address = ip_address(text.partition("%")[0])
    return address.version, address.packed.rjust(16, b"\0")


@_remember
def gidOf(text: str) -> bytes:
    """
    The GID of an IP address: itself, or C{::ffff:a.b.c.d} (IBTA vol. 1 annex A17).

    @param text: an IPv4 or IPv6 address; a scope is dropped.
    @return: 16 octets.
    @raise ValueError: C{text} is not an IP address.
    """
    version, packed = packAddress(text)
    return _MAPPED + packed[12:] if version == 4 else packed


@_remember
def textOf(gid: bytes) -> str:
    """
    The IP address of a GID of 16 octets.
    """
    if gid[:12] == _MAPPED:
        return ".".join(map(str, gid[12:]))
    return str(IPv6Address(gid))


def gidNumber(text: str) -> int:
    """
    The GID of an IP address as an integer of 128 bits, see L{gidOf}.

    @raise ValueError: C{text} is not an IP address.
    """
    return int.from_bytes(gidOf(text), "big")


def guidOf(text: str, subnetPrefix: int) -> int:
    """
    The GUID in the GID of an IP address (IBTA vol. 1 4.1.1), see L{gidOf}.

    @return: 0 if the GID has another subnet prefix.
    @raise ValueError: C{text} is not an IP address.
    """
    prefix, guid = divmod(gidNumber(text), 1 << 64)
    return guid if prefix == subnetPrefix else 0


def gidText(gid: int) -> str:
    """
    The IP address of a GID given as an integer.
    """
    return textOf(gid.to_bytes(16, "big"))


@_remember
def unpackAddress(version: int, packed: bytes) -> str:
    """
    An address of private data as text.

    @param version: 4; any other is taken as IPv6.
    @param packed: 16 octets, of which IPv4 uses the last four.
    """
    if version == 4:
        return ".".join(map(str, packed[12:16]))
    return str(IPv6Address(packed))


def packHeader(source: str, sourcePort: int, destination: str) -> bytes:
    """
    The octets of a L{RDMACMHeader}; see L{RDMACMHeader.pack}.
    """
    version, here = packAddress(source)
    other, there = packAddress(destination)
    if version != other:
        raise ValueError(f"{source} and {destination} are of different IP versions")
    if not 0 <= sourcePort <= _HIGHEST_PORT:
        raise ValueError(f"{sourcePort} is not a port number")
    return _HEADER.pack(0, version << 4, sourcePort, here, there)


@define(eq=False, repr=False)  # Not frozen, as requests.
class RDMACMHeader(Record):
    """
    The header in the private data of a REQ or SIDR_REQ.

    @ivar source: the active side's IP address.
    @ivar sourcePort: the active side's port.
    @ivar destination: the passive side's IP address, of the same version; its port is in the service id.
    """

    source: str
    sourcePort: int
    destination: str

    def pack(self) -> bytes:
        """
        @return: 36 octets.
        @raise ValueError: an address or the port is invalid, or the addresses are of different versions.
        """
        return packHeader(self.source, self.sourcePort, self.destination)

    @classmethod
    def parse(cls, buffer: Buffer, start: int = 0, stop: int | None = None) -> RDMACMHeader:
        """
        Parse the header of private data.

        @param buffer: has the header at C{start}, the user's private data behind it.
        @param stop: offset of the end of the private data; by default the end of the buffer.
        @raise WireError: it is too short, or of another version.
        """
        if stop is None:
            stop = len(buffer)
        if start < 0 or stop > len(buffer) or stop - start < HEADER_BYTES:
            raise WireError(f"the RDMA-CM's header has {HEADER_BYTES} octets, not {stop - start}")
        version, ip, port, source, destination = _HEADER.unpack_from(buffer, start)
        # Linux cma.c cma_save_ip_info compares the whole octet, major and minor version, with 0. Reserved
        # bits and the octets in front of an IPv4 address are ignored, as there.
        if version:
            raise WireError(f"the RDMA-CM's header has version {version:#04x}, not 0")
        ip >>= 4
        if ip not in (4, 6):
            raise WireError(f"the RDMA-CM's header has addresses of IP version {ip}")
        return cls(unpackAddress(ip, source), port, unpackAddress(ip, destination))
