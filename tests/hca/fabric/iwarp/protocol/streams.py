"""
The octets of an iWARP connection, taken apart and put together again by the protocol's own modules.
"""

from __future__ import annotations

from collections import Counter

from attrs import define, field

from tests.hca.capture.tcpstreams import Connection
from tests.hca.fabric.iwarp.protocol.examples import ReadRequestHeader, TaggedHeader, UntaggedHeader
from twisted_ib.hca.fabric.iwarp.protocol.ddp import (
    READ_REQUEST,
    TAGGED,
    TAGGED_BIT,
    UNTAGGED,
    Opcode,
)
from twisted_ib.hca.fabric.iwarp.protocol.mpa import StartupFrame
from twisted_ib.hca.fabric.iwarp.protocol.mpastream import FPDUReader, FPDUWriter
from twisted_ib.hca.fabric.iwarp.protocol.terminate import TerminateMessage

_LENGTH_BYTES, _CRC_BYTES = 2, 4


@define
class Direction:
    """
    What one side has sent.

    @ivar startup: its Request or Reply.
    @ivar ulpdus: what its FPDUs carry.
    @ivar padded: how many FPDUs have other octets than zeros in their PAD.
    @ivar rest: octets of an FPDU that is cut off by the end.
    """

    startup: StartupFrame
    ulpdus: list[bytes] = field(factory=list)
    padded: int = 0
    rest: int = 0

    @property
    def counts(self) -> Counter[str]:
        """
        How many ULPDUs there are of each operation.
        """
        return Counter(Opcode(each[1] & 15).name for each in self.ulpdus)

    def payload(self, opcode: Opcode) -> int:
        """
        @return: how many octets an operation's segments carry.
        """
        header = TAGGED.size if opcode in (Opcode.WRITE, Opcode.READ_RESPONSE) else UNTAGGED.size
        return sum(len(each) - header for each in self.ulpdus if each[1] & 15 == opcode)


def directionsOf(connection: Connection) -> tuple[Direction, Direction]:
    """
    The client's direction and the server's: each frame, FPDU and header is the same octets when it is made
    anew, except for octets of PAD, which Linux siw does not set.

    @raise AssertionError: one is not.
    @raise WireError: one is malformed.
    """
    octets = connection.client.octets, connection.server.octets
    frames = []
    for side, each in enumerate(octets):
        parsed = StartupFrame.parse(each, 0, len(each), bool(side))
        assert parsed is not None, f"a startup frame of {len(each)} octets"
        assert parsed[0].pack() == each[: parsed[1]], f"{parsed[0]} is packed otherwise"
        frames.append(parsed)
    (request, begin), (reply, replied) = frames
    # RFC 5044 section 7.1: CRCs both ways if either side wants them; markers where the receiver does.
    hasCRC = request.crc or reply.crc
    client, server = Direction(request), Direction(reply)
    _read(client, bytes(octets[0][begin:]), hasCRC, reply.markers)
    _read(server, bytes(octets[1][replied:]), hasCRC, request.markers)
    return client, server


def _read(direction: Direction, octets: bytes, hasCRC: bool, hasMarkers: bool) -> None:
    reader, writer = FPDUReader(hasCRC, hasMarkers), FPDUWriter(hasCRC, hasMarkers)
    # The reader takes markers out in place.
    buffer, at = bytearray(octets), 0
    while end := reader.next(buffer, at, len(octets)):
        original = octets[at:end]
        ulpdu = bytes(buffer[reader.first : reader.last])
        out: list[bytes] = []
        assert writer.frame(out, [ulpdu], len(ulpdu)) == len(original)
        made = b"".join(out)
        if made != original:
            # The reader has checked the CRC, which is then one of other PAD.
            pad = _LENGTH_BYTES + len(ulpdu)
            assert not hasMarkers and any(original[pad:-_CRC_BYTES]), "an FPDU is made otherwise"
            assert made[:pad] == original[:pad], "an FPDU is made otherwise"
            direction.padded += 1
        assert _remade(ulpdu) == ulpdu, f"the headers of {ulpdu.hex()} are packed otherwise"
        direction.ulpdus.append(ulpdu)
        at = end
    direction.rest = len(octets) - at


def _remade(ulpdu: bytes) -> bytes:
    # The ULPDU, with headers that are parsed and packed.
    if ulpdu[0] << 8 & TAGGED_BIT:
        return TaggedHeader.parse(ulpdu).pack() + ulpdu[TAGGED.size :]
    header = UntaggedHeader.parse(ulpdu)
    first, rest = UNTAGGED.size, ulpdu[UNTAGGED.size :]
    if header.opcode == Opcode.READ_REQUEST:
        assert len(rest) == READ_REQUEST.size
        rest = ReadRequestHeader.parse(rest).pack()
    elif header.opcode == Opcode.TERMINATE:
        made = TerminateMessage.parse(ulpdu, first, len(ulpdu)).pack()
        rest = made if made == rest else _inLinuxOrder(made)
    return header.pack() + rest


def _inLinuxOrder(terminate: bytes) -> bytes:
    # Linux siw fills the layer, the type and the flags M, D and R from the low end of their octets.
    first, code, flags, _ = terminate[:4]
    flags = flags >> 7 | flags >> 5 & 2 | flags >> 3 & 4
    return bytes((first >> 4 | (first & 0xF) << 4, code, flags, 0)) + terminate[4:]
