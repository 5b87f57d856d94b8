"""
The private data that RDS puts into REQ and REP on RC queue pairs.

In a REQ it follows the RDMA IP CM header (IBTA vol. 1 annex A11).  Both ends declare their addresses and
the versions that they support: a major and a minor number and, with major 4, a mask of minors.  An
acknowledgement and credits may be included, so that a connection that replaces another starts with what
was known on the old one.

Between processes of a host, REQ and REP carry C{RDSq}, version 1 and the GUID of the sending HCA (8
bytes, big endian).

Source: Linux 6.1 C{net/rds/ib.h}, C{net/rds/rdma_transport.h}, C{net/rds/ib_cm.c}.
"""

from __future__ import annotations

from ipaddress import ip_address
from struct import Struct
from typing import TYPE_CHECKING

import attrs

from twisted_ib.errors import RDSWireError

if TYPE_CHECKING:
    from twisted_ib.structs import Packed


#: Ports in the TCP port space of the RDMA CM: RDS_PORT in Linux rds.h, and RDS_CM_PORT.  Linux has one
#: listener for each IP version (rds_rdma_listen_init).
SERVICE_PORT_IPV4 = 18634
SERVICE_PORT_IPV6 = 16385

#: The version that we propose and accept.
MAJOR, MINOR = 3, 1
#: Minor versions of major 4; their wire frames are the same (RDS_IB_SUPPORTED_PROTOCOLS in Linux ib.h).
MINORS_4 = 0x0003
#: The private data of a REJ for an unsupported version: a native C{int} 1 (RDS_RDMA_REJ_INCOMPAT).
REJECTED_VERSION = b"\x01\0\0\0"

#: The common part of C{struct rds_ib_connect_private} in Linux ib.h: major, minor, mask of minors, type of
#: service, reserved, acknowledgement, credits, and the padding of a 64-bit struct.
_COMMON: Packed[tuple[int, int, int, int, int, int]] = Struct(">BBHBxxxQI4x")
COMMON_BYTES = _COMMON.size
IPV4_BYTES = 8 + COMMON_BYTES
IPV6_BYTES = 32 + COMMON_BYTES
#: Without the padding: Linux ib_cm.c asks only for "at least" the struct, and CM private data is padded
#: anyway.
_LEAST = COMMON_BYTES - 4

#: REQ and REP between processes of a host: magic, version, GUID.
_HELLO: Packed[tuple[bytes, int, int]] = Struct(">4sBQ")
_MAGIC, _VERSION = b"RDSq", 1


@attrs.frozen
class PrivateData:
    """
    The private data of one end.

    @ivar source: the sender's address.
    @ivar destination: the receiver's; both of one IP version.
    @ivar major: major version that is proposed or chosen.
    @ivar minor: its minor version.
    @ivar minors: mask of the supported minor versions, with major 4.
    @ivar acknowledged: the last sequence number received, or 0.
    @ivar credits: posted receives if flow control is wanted, else 0.
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
        @raise ValueError: an address is invalid, or they are of different IP versions.
        """
        # RFC 4007 section 11: a zone after % is local to the host and has no place on the wire.
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
        Parse the private data; bytes behind it are ignored.

        @param version: the IP version, 4 or 6.
        @raise RDSWireError: it is too short.
        """
        size = 4 if version == 4 else 16
        if len(data) < 2 * size + _LEAST:
            raise RDSWireError(f"private data has at least {2 * size + _LEAST} bytes, not {len(data)}")
        # Credits may be declared but are not used: Linux ib_cm.c ignores ours unless flow control is on.
        common = data[2 * size :][:COMMON_BYTES].ljust(COMMON_BYTES, b"\0")
        return cls(
            str(ip_address(bytes(data[:size]))),
            str(ip_address(bytes(data[size : 2 * size]))),
            *_COMMON.unpack(common),
        )


def agreed(proposed: PrivateData) -> tuple[int, int] | None:
    """
    Choose the version of a connection as the acceptor does (C{rds_ib_protocol_compatible} in Linux
    C{ib_cm.c}).

    @return: major and minor; L{None} if no version is supported by both.
    """
    if proposed.major == 4:
        # Linux ib_cm.c takes the highest minor version that both masks have.
        common = proposed.minors & MINORS_4
        return (4, common.bit_length() - 1) if common else None
    return (MAJOR, MINOR) if (proposed.major, proposed.minor) == (MAJOR, MINOR) else None


def servicePort(address: str) -> int:
    """
    @return: the RDMA CM port where RDS listens for connections to an address.
    """
    return SERVICE_PORT_IPV6 if ":" in address else SERVICE_PORT_IPV4


def packHello(guid: int) -> bytes:
    """
    @param guid: the sending HCA's.
    @return: the private data of REQ and REP between processes of a host.
    """
    return _HELLO.pack(_MAGIC, _VERSION, guid)


def parseHello(data: bytes) -> int:
    """
    Parse the private data of L{packHello}; bytes behind it are ignored.

    @return: the GUID.
    @raise RDSWireError: it is something else.
    """
    if len(data) < _HELLO.size:
        raise RDSWireError(f"who asks says {_HELLO.size} bytes, not {len(data)}")
    magic, version, guid = _HELLO.unpack_from(data)
    if magic != _MAGIC or version != _VERSION:
        raise RDSWireError(f"{bytes(data[: _HELLO.size])!r} is nothing that another process says")
    return int(guid)
