"""
The RDS wire format of Linux: a header of 48 bytes with extension headers in its last 16, then the
payload; and the congestion map, which is a message of its own.

Over TCP, headers and payloads follow each other in the byte stream without further framing.  Over an RC
queue pair a message is cut into fragments of 4096 payload bytes, each preceded by the header of the whole
message.  UDP has ports and a length too; RDS adds the sequence number, by which the receiver recognises a
duplicate, and the acknowledgement number, which only RC uses.

The data path makes no L{RDSHeader}: it uses L{HEADER} on the medium's own buffer.  The class is its
documented twin, for tests, tools and rare messages.

Source: Linux 6.1 C{net/rds/rds.h} (C{struct rds_header}), C{net/rds/message.c}.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from struct import Struct
from typing import TYPE_CHECKING

import attrs

from twisted_ib.errors import RDSWireError

if TYPE_CHECKING:
    from twisted_ib.structs import Packed


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


def isIntact(header: _Buffer, start: int = 0) -> bool:
    """
    @param header: at least 48 bytes from C{start} on.
    @return: whether its checksum is right, or absent (0).
    """
    at = start + _CHECKSUM_OFFSET
    return (not header[at] and not header[at + 1]) or not checksum(header, start)


@attrs.frozen
class RDSHeader:
    """
    The header of a message.

    @ivar sequence: number on the path; 0 in congestion maps and bare acknowledgements.
    @ivar acknowledgement: the highest sequence number received (RC only).
    @ivar length: payload bytes of the whole message, in every fragment.
    @ivar flags: L{Flags}, and perhaps unknown ones.
    @ivar credit: newly posted receives (RC with flow control only).
    @ivar padding: four bytes, zero.
    @ivar checksum: over these 48 bytes; 0 if absent.
    @ivar extensions: extension headers, 16 bytes.
    """

    sequence: int
    acknowledgement: int = 0
    length: int = 0
    sourcePort: int = 0
    destinationPort: int = 0
    flags: int = 0
    credit: int = 0
    padding: bytes = NO_PADDING
    checksum: int = 0
    extensions: bytes = NO_EXTENSIONS

    def fields(self) -> Fields:
        """
        @return: the arguments of C{HEADER.pack}.
        """
        fields: Fields = attrs.astuple(self)
        return fields

    def pack(self) -> bytes:
        """
        @return: 48 bytes, with the checksum field as it is.
        """
        return HEADER.pack(*self.fields())

    def packChecksummed(self) -> bytes:
        """
        @return: 48 bytes, with the checksum computed.
        """
        return packChecksummed(*attrs.evolve(self, checksum=0).fields())

    @classmethod
    def parse(cls, buffer: _Buffer, start: int = 0, stop: int | None = None) -> RDSHeader:
        """
        Parse a header; its checksum is not verified.

        @param buffer: has the header at C{start}, then the payload.
        @param stop: offset after the last byte that may be read; by default the end.
        @raise RDSWireError: there are fewer than 48 bytes.
        """
        if stop is None:
            stop = len(buffer)
        if start < 0 or stop > len(buffer) or stop - start < HEADER_BYTES:
            raise RDSWireError(f"the header of RDS has {HEADER_BYTES} bytes, not {stop - start}")
        return cls(*HEADER.unpack_from(buffer, start))
