"""
The messages of RDS as Linux writes them: a header of 48 bytes, extension headers in its last 16,
and the payload; and the congestion map's message.

TCP delivers a stream in which headers and payloads follow each other without more framing.  An RC
queue pair delivers fragments of 4096 payload bytes, each behind the header of the whole message.
UDP has ports and a length too; what RDS adds is the sequence number, by which a peer knows a
message that it has seen already, and the acknowledgement, which only RC uses.

The path of a message makes no L{RDSHeader}: it uses L{HEADER} on the medium's own buffer.  The class
is its documented twin, for tests, tools and what is rare.

Source: Linux 6.1 C{net/rds/rds.h}, C{net/rds/message.c}.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from struct import Struct

import attrs

from twisted_ib.errors import RDSWireError

#: Sequence, acknowledgement, length, source port, destination port, flags, credit, padding,
#: checksum, extension headers.
HEADER = Struct(">QQIHHBB4sH16s")
HEADER_BYTES = HEADER.size
#: What L{HEADER} unpacks.
Fields = tuple[int, int, int, int, int, int, int, bytes, int, bytes]

#: Bytes that the extension headers have.
EXTENSIONS_BYTES = 16
NO_EXTENSIONS = bytes(EXTENSIONS_BYTES)
NO_PADDING = bytes(4)

#: The longest payload (RDS_MAX_MSG_SIZE).
MESSAGE_BYTES = 1 << 20
#: Payload bytes of one fragment on an RC queue pair (RDS_FRAG_SIZE).
FRAGMENT_BYTES = 4096

#: The port that answers pings.
PING_PORT = 0
#: The port that the kernel's probes come from; nobody binds it (RDS_FLAG_PROBE_PORT).
PROBE_PORT = 1
#: The port that ours come from on RC: there Linux has none, and at one from port 1 it warns that the
#: transport is not TCP (C{rds_conn_peer_gen_update}).
RC_PROBE_PORT = 65535
#: The lowest port that a socket may have.
LOWEST_PORT = 2

#: Where RDS over TCP listens.
TCP_PORT = 16385

_Buffer = bytes | bytearray | memoryview
_CHECKSUM_OFFSET = 30
_WORDS = Struct(">24H")


class Flags(IntFlag):
    """
    The flags of a header; unknown ones are no error.
    """

    #: The payload is a congestion map: only if no other flag is set.
    CONG_BITMAP = 0x01
    #: The sender wants an acknowledgement at once (RC).
    ACK_REQUIRED = 0x02
    #: This sequence number was sent before, on a connection that is gone.
    RETRANSMITTED = 0x04


#: As numbers, for the path of a message.
CONG_BITMAP = int(Flags.CONG_BITMAP)
ACK_REQUIRED = int(Flags.ACK_REQUIRED)
RETRANSMITTED = int(Flags.RETRANSMITTED)


class Extension(IntEnum):
    """
    Types of extension headers.
    """

    NONE = 0
    VERSION = 1
    RDMA = 2
    RDMA_DEST = 3
    RDMA_BYTES = 4
    NPATHS = 5
    GEN_NUM = 6
    SPORT_IDX = 8


#: Bytes of each type's value, as it has no length in the message.
_VALUE_BYTES = {1: 4, 2: 4, 3: 8, 4: 8, 5: 2, 6: 4, 8: 1}


def packExtensions(*extensions: tuple[int, bytes]) -> bytes:
    """
    Write extension headers.

    @param extensions: type and value of each, in order.
    @return: 16 bytes.
    @raise ValueError: a type is unknown, a value has another length, or there is no room.
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
    """
    Read extension headers up to their end, or to what is none.

    @param found: gets the values by type.
    @return: whether they had an end.
    """
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
    Read extension headers.  An unknown type ends them, and one whose value would not fit.

    @param extensions: the last 16 bytes of a header.
    @return: the values by type; of a type that comes twice, the last.
    """
    found: dict[int, bytes] = {}
    _walk(extensions, found)
    return found


def areExtensionsGood(extensions: bytes) -> bool:
    """
    @param extensions: the last 16 bytes of a header.
    @return: whether L{parseExtensions} understands them all.
    """
    return _walk(extensions, {})


def pathsExtensions(paths: int, generation: int) -> bytes:
    """
    What a probe and its answer say of their sender.

    @param paths: how many paths it serves.
    @param generation: its instance's number; 0 for none.
    @return: 16 bytes.
    """
    extensions = [(int(Extension.NPATHS), paths.to_bytes(2, "big"))]
    if generation:
        extensions.append((int(Extension.GEN_NUM), generation.to_bytes(4, "big")))
    return packExtensions(*extensions)


def checksum(header: _Buffer, start: int = 0) -> int:
    """
    Sum up a header (RFC 1071), whatever stands in its checksum.

    @param header: at least 48 bytes from C{start} on.
    @return: what to write there; for a header that has its checksum, 0 if it is right.  The sum
        itself is never 0xffff for a header, which never has only zeros where it is sent.
    """
    total = sum(_WORDS.unpack_from(header, start))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def packChecksummed(*fields: int | bytes) -> bytes:
    """
    Write a header with its checksum.

    @param fields: those of L{HEADER}; the checksum is 0.
    @return: 48 bytes.
    """
    packed = bytearray(HEADER.pack(*fields))
    total = checksum(packed)
    packed[_CHECKSUM_OFFSET : _CHECKSUM_OFFSET + 2] = total.to_bytes(2, "big")
    return bytes(packed)


def isIntact(header: _Buffer, start: int = 0) -> bool:
    """
    @param header: at least 48 bytes from C{start} on.
    @return: whether its checksum is right, or absent.
    """
    at = start + _CHECKSUM_OFFSET
    return (not header[at] and not header[at + 1]) or not checksum(header, start)


@attrs.frozen
class RDSHeader:
    """
    The header of a message.

    @ivar sequence: of the path; 0 in what is not counted: maps and bare acknowledgements.
    @ivar acknowledgement: the highest sequence number that came (RC only).
    @ivar length: bytes of the whole message's payload.
    @ivar sourcePort: the sending socket's port.
    @ivar destinationPort: the receiving socket's port.
    @ivar flags: L{Flags}, and what others know of.
    @ivar credit: receives that were posted (RC with flow control only).
    @ivar padding: four bytes, zero.
    @ivar checksum: of these 48 bytes; 0 if there is none.
    @ivar extensions: the extension headers, 16 bytes.
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
        @return: what L{HEADER} packs.
        """
        return (
            self.sequence,
            self.acknowledgement,
            self.length,
            self.sourcePort,
            self.destinationPort,
            self.flags,
            self.credit,
            self.padding,
            self.checksum,
            self.extensions,
        )

    def pack(self) -> bytes:
        """
        @return: 48 bytes, with the checksum as it is.
        """
        return HEADER.pack(*self.fields())

    def packChecksummed(self) -> bytes:
        """
        @return: 48 bytes, with the checksum that they need.
        """
        return packChecksummed(*attrs.evolve(self, checksum=0).fields())

    @classmethod
    def parse(cls, buffer: _Buffer, start: int = 0, stop: int | None = None) -> RDSHeader:
        """
        Read a header; its checksum is not looked at.

        @param buffer: what has it at C{start}; what follows is the payload.
        @param stop: offset after the last byte that may be read; by default the end.
        @raise RDSWireError: there are not 48 bytes.
        """
        if stop is None:
            stop = len(buffer)
        if start < 0 or stop > len(buffer) or stop - start < HEADER_BYTES:
            raise RDSWireError(f"the header of RDS has {HEADER_BYTES} bytes, not {stop - start}")
        return cls(*HEADER.unpack_from(buffer, start))
