"""
The RDS wire format of Linux: a header of 48 bytes with extension headers in its last 16, then the
payload; and the congestion map, which is a message of its own.

Over TCP, headers and payloads follow each other in the byte stream without further framing.  Over an RC
queue pair a message is cut into fragments of 4096 payload bytes, each preceded by the header of the whole
message.  UDP has ports and a length too; RDS adds the sequence number, by which the receiver recognises a
duplicate, and the acknowledgement number, which only RC uses.

Nothing makes objects of headers: L{HEADER} is used on the medium's own buffer.

Source: Linux 6.1 C{net/rds/rds.h} (C{struct rds_header}), C{net/rds/message.c}.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from struct import Struct
from typing import TYPE_CHECKING

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
