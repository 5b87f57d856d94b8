"""
The RDS wire format of Linux: a header of 48 bytes with extension headers in its last 16, then the
payload; and the congestion map, which is a message of its own.

Over TCP, headers and payloads follow each other in the byte stream without further framing.  Over an RC
queue pair a message is cut into fragments of 4096 payload bytes, each preceded by the header of the whole
message.  UDP has ports and a length too; RDS adds the sequence number, by which the receiver recognises a
duplicate, and the acknowledgement number, which only RC uses.

Nothing makes objects of headers: L{HEADER} is used on the medium's own buffer.

Source: Linux 6.1 C{net/rds/rds.h} (C{struct rds_header}), C{net/rds/message.c}.

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

from enum import IntEnum, IntFlag
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

#: C{struct rds_header} of Linux rds.h: sequence, acknowledgement, length, source port, destination port,
#: flags, credit, padding, checksum, extension headers.
HEADER: Packed[tuple[int, int, int, int, int, int, int, bytes, int, bytes]] = Struct(">QQIHHBB4sH16s")
HEADER_BYTES = HEADER.size
#: The fields in the order in which L{HEADER} unpacks them.
Fields = tuple[int, int, int, int, int, int, int, bytes, int, bytes]

#: Space for extension headers (RDS_HEADER_EXT_SPACE in Linux rds.h).
EXTENSIONS_BYTES = 16
NO_EXTENSIONS = bytes(EXTENSIONS_BYTES)
NO_PADDING = bytes(4)

#: The longest payload (RDS_MAX_MSG_SIZE in Linux rds.h).
MESSAGE_BYTES = 1 << 20
#: Payload bytes of one fragment on an RC queue pair (RDS_FRAG_SIZE in Linux rds.h).
FRAGMENT_BYTES = 4096

#: The ping service: RDS itself answers messages to this port (C{rds_recv_incoming}).
PING_PORT = 0
#: Source port of the kernel's probes; no socket can bind it (RDS_FLAG_PROBE_PORT in Linux rds.h).
PROBE_PORT = 1
#: Source port of our probes on RC.  Linux sends none there, and handles a probe from port 1 as TCP's: it
#: runs into the WARN_ON of C{rds_conn_peer_gen_update}, which expects no other transport.
RC_PROBE_PORT = 65535
#: The lowest port that a socket can bind: 0 is the ping service, 1 the probe port.
LOWEST_PORT = 2

#: The TCP port that RDS listens on (RDS_TCP_PORT in Linux tcp.h).
TCP_PORT = 16385

_Buffer = bytes | bytearray | memoryview
_CHECKSUM_OFFSET = 30
_WORDS: Packed[tuple[int, ...]] = Struct(">24H")


class Flags(IntFlag):
    """
    The flags of a header.  Unknown flags are no error: Oracle's trees define more.
    """

    #: The payload is a congestion map.  Linux tcp_recv.c and ib_recv.c compare the whole byte, so a map has
    #: no other flag.
    CONG_BITMAP = 0x01
    #: The receiver is to acknowledge at once (RC only, see the ack state in Linux ib_recv.c).
    ACK_REQUIRED = 0x02
    #: This sequence number was sent before, on a connection that was lost.
    RETRANSMITTED = 0x04


#: Plain integers for the data path: operators of L{IntFlag} are slow.
CONG_BITMAP = int(Flags.CONG_BITMAP)
ACK_REQUIRED = int(Flags.ACK_REQUIRED)
RETRANSMITTED = int(Flags.RETRANSMITTED)


class Extension(IntEnum):
    """
    The types of extension headers (RDS_EXTHDR_* in Linux C{net/rds/rds.h}).
    """

    NONE = 0
    VERSION = 1
    RDMA = 2
    RDMA_DEST = 3
    RDMA_BYTES = 4
    NPATHS = 5
    GEN_NUM = 6
    SPORT_IDX = 8


#: Bytes of each type's value.  The wire has no length byte, so an unknown type cannot be skipped.
_VALUE_BYTES = {1: 4, 2: 4, 3: 8, 4: 8, 5: 2, 6: 4, 8: 1}


def packExtensions(*extensions: tuple[int, bytes]) -> bytes:
    """
    Pack extension headers.

    @param extensions: type and value of each, in order.
    @return: 16 bytes, zero padded.
    @raise ValueError: a type is unknown, a value has the wrong length, or they exceed 16 bytes.
    """
    packed = bytearray()
    for kind, value in extensions:
        if _VALUE_BYTES.get(kind) != len(value):
            raise ValueError(f"extension {kind} has no value of {len(value)} bytes")
        packed.append(kind)
        packed += value
    if len(packed) > EXTENSIONS_BYTES:
        raise ValueError(f"extension headers have {EXTENSIONS_BYTES} bytes, not {len(packed)}")
    return bytes(packed.ljust(EXTENSIONS_BYTES, b"\0"))


def _walk(extensions: bytes, found: dict[int, bytes]) -> bool:
    # Returns False at the first header that cannot be parsed: Linux message.c (rds_message_next_extension)
    # stops there as well, and keeps the headers before it.
    at = 0
    while at < len(extensions) and (kind := extensions[at]):
        size = _VALUE_BYTES.get(kind)
        at += 1
        if size is None or at + size > len(extensions):
            return False
        found[kind] = extensions[at : at + size]
        at += size
    return True


def parseExtensions(extensions: bytes) -> dict[int, bytes]:
    """
    Parse extension headers, up to the first that is unknown or would exceed the space.

    @param extensions: the last 16 bytes of a header.
    @return: the values by type; of a repeated type, the last value.
    """
    found: dict[int, bytes] = {}
    _walk(extensions, found)
    return found


def areExtensionsGood(extensions: bytes) -> bool:
    """
    @return: whether L{parseExtensions} understands all of them.
    """
    return _walk(extensions, {})


def pathsExtensions(paths: int, generation: int) -> bytes:
    """
    The extension headers of a probe and of its answer.

    @param paths: the number of paths that the sender serves (NPATHS).
    @param generation: the sender's instance (GEN_NUM); 0 for none.
    @return: 16 bytes.
    """
    # NPATHS comes first: Linux 6.1 adds no second extension to its own probes, but parses several.
    extensions = [(int(Extension.NPATHS), paths.to_bytes(2, "big"))]
    if generation:
        extensions.append((int(Extension.GEN_NUM), generation.to_bytes(4, "big")))
    return packExtensions(*extensions)


def checksum(header: _Buffer, start: int = 0) -> int:
    """
    Compute the checksum of a header (RFC 1071), including the checksum field as it stands.

    @param header: at least 48 bytes from C{start} on.
    @return: the value for the checksum field; over a header that has its checksum already, 0 if it is
        right.
    """
    total = sum(_WORDS.unpack_from(header, start))
    total = (total & 0xFFFF) + (total >> 16)
    # A sum of 0xffff gives 0, which the receiver takes for "no checksum" and accepts as well.  0xffff never
    # occurs: it needs a header of zeros only, which is never sent.
    return ~(total + (total >> 16)) & 0xFFFF


def packChecksummed(*fields: int | bytes) -> bytes:
    """
    Pack a header with its checksum.

    @param fields: those of L{HEADER}; the checksum field is 0.
    @return: 48 bytes.
    """
    packed = bytearray(HEADER.pack(*fields))
    total = checksum(packed)
    packed[_CHECKSUM_OFFSET : _CHECKSUM_OFFSET + 2] = total.to_bytes(2, "big")
    return bytes(packed)


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
