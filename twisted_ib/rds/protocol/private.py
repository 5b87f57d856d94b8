"""
What RDS says in the private data of REQ and REP when it uses RC queue pairs.

In a REQ it is behind the RDMA-CM's header.  Both ends say their addresses and the versions that they
speak: a version is a major and a minor number, and with major 4 a mask of minors.  The peer's
acknowledgement and its credits may be in it too, so that a connection which replaces another begins
with what the other knew.

Between processes of a host a REQ and a REP say C{RDSq}, version 1 and the GUID of the HCA that says it
(8 bytes, big endian).

Source: Linux 6.1 C{net/rds/ib.h}, C{net/rds/rdma_transport.h}, C{net/rds/ib_cm.c}.
"""

from __future__ import annotations

from ipaddress import ip_address
from struct import Struct

import attrs

from twisted_ib.errors import RDSWireError

#: Service ids are ports of the RDMA-CM's TCP space.
SERVICE_PORT_IPV4 = 18634
SERVICE_PORT_IPV6 = 16385

#: What we propose and take.
MAJOR, MINOR = 3, 1
#: Minor versions of major 4, of which wire frames are the same (RDS_IB_SUPPORTED_PROTOCOLS).
MINORS_4 = 0x0003
#: The private data of a REJ to a version that nobody here speaks: a native C{int} 1.
REJECTED_VERSION = b"\x01\0\0\0"

#: Major, minor, mask of minors, type of service, reserved, acknowledgement, credits, padding.
_COMMON = Struct(">BBHBxxxQI4x")
COMMON_BYTES = _COMMON.size
IPV4_BYTES = 8 + COMMON_BYTES
IPV6_BYTES = 32 + COMMON_BYTES
#: Without the padding, which readers do not ask for.
_LEAST = COMMON_BYTES - 4

#: What a REQ and a REP say between processes of a host.
_HELLO = Struct(">4sBQ")
_MAGIC, _VERSION = b"RDSq", 1


@attrs.frozen
class PrivateData:
    """
    What one end says.

    @ivar source: its address.
    @ivar destination: the other's; both of one IP version.
    @ivar major: of the version that it proposes, or takes.
    @ivar minor: the same.
    @ivar minors: a mask of the minor versions that it speaks, with major 4.
    @ivar typeOfService: of the connection.
    @ivar acknowledged: the last sequence number that it has, or 0.
    @ivar credits: receives that it has posted, if it wants them counted; else 0.
    """

    source: str
    destination: str
    major: int = MAJOR
    minor: int = MINOR
    minors: int = MINORS_4
    typeOfService: int = 0
    acknowledged: int = 0
    credits: int = 0

    def pack(self) -> bytes:
        """
        @return: 32 bytes for IPv4, 56 for IPv6.
        @raise ValueError: the addresses are none, or of different versions.
        """
        source, destination = (
            ip_address(address.partition("%")[0]) for address in (self.source, self.destination)
        )
        if source.version != destination.version:
            raise ValueError(f"{source} and {destination} are of different IP versions")
        return (
            source.packed
            + destination.packed
            + _COMMON.pack(
                self.major,
                self.minor,
                self.minors,
                self.typeOfService,
                self.acknowledged,
                self.credits,
            )
        )

    @classmethod
    def parse(cls, data: bytes, version: int) -> PrivateData:
        """
        Read it.

        @param data: it, and whatever follows.
        @param version: of IP.
        @raise RDSWireError: it is too short.
        """
        size = 4 if version == 4 else 16
        if len(data) < 2 * size + _LEAST:
            raise RDSWireError(f"private data has at least {2 * size + _LEAST} bytes, not {len(data)}")
        common = data[2 * size :][:COMMON_BYTES].ljust(COMMON_BYTES, b"\0")
        return cls(
            str(ip_address(bytes(data[:size]))),
            str(ip_address(bytes(data[size : 2 * size]))),
            *_COMMON.unpack(common),
        )


def agreed(proposed: PrivateData) -> tuple[int, int] | None:
    """
    Choose the version of a connection, as the acceptor does (C{rds_ib_protocol_compatible}).

    @return: major and minor; L{None} if there is none.
    """
    if proposed.major == 4:
        common = proposed.minors & MINORS_4
        return (4, common.bit_length() - 1) if common else None
    return (MAJOR, MINOR) if (proposed.major, proposed.minor) == (MAJOR, MINOR) else None


def servicePort(address: str) -> int:
    """
    @return: the port where RDS listens for connections to an address.
    """
    return SERVICE_PORT_IPV6 if ":" in address else SERVICE_PORT_IPV4


def packHello(guid: int) -> bytes:
    """
    @param guid: of the HCA that speaks.
    @return: what it says to another one of its host.
    """
    return _HELLO.pack(_MAGIC, _VERSION, guid)


def parseHello(data: bytes) -> int:
    """
    Read that.

    @param data: it, and whatever follows.
    @return: the GUID.
    @raise RDSWireError: it is something else.
    """
    if len(data) < _HELLO.size:
        raise RDSWireError(f"who asks says {_HELLO.size} bytes, not {len(data)}")
    magic, version, guid = _HELLO.unpack_from(data)
    if magic != _MAGIC or version != _VERSION:
        raise RDSWireError(f"{bytes(data[: _HELLO.size])!r} is nothing that another process says")
    return int(guid)
