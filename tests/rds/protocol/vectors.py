"""
The messages of C{tests/vectors/rds.txt}, which two Linux hosts have exchanged; and headers as values.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from attrs import astuple, evolve, frozen

from twisted_ib.hca.mad.attributes.layouts import Attribute, bits, octets
from twisted_ib.rds.protocol.wire import Fields, checksum, packChecksummed

_FILE = Path(__file__).resolve().parents[2] / "vectors" / "rds.txt"


@frozen
class Captured:
    """
    A message on TCP, or a fragment on RC.
    """

    carrier: str
    connection: str
    header: bytes
    payload: bytes


def _payload(text: str) -> bytes:
    """
    Spell out a payload.
    """
    if text == "-":
        return b""
    first, count = text.split("*")
    if first.startswith("+"):
        return bytes((int(first) + i) & 255 for i in range(int(count)))
    return bytes([int(first)]) * int(count)


def captured(carrier: str) -> list[Captured]:
    """
    @param carrier: C{tcp} or C{rc}.
    @return: what it carried, in the order of the file.
    """
    found = []
    for line in _FILE.read_text().splitlines():
        if line.startswith(carrier + " "):
            _, connection, header, payload = line.split()
            found.append(Captured(carrier, connection, bytes.fromhex(header), _payload(payload)))
    return found


def streams() -> dict[str, bytes]:
    """
    @return: the streams of TCP, each from its beginning, by connection and direction.
    """
    found: dict[str, bytes] = {}
    for message in captured("tcp"):
        found[message.connection] = found.get(message.connection, b"") + message.header + message.payload
    return found


@frozen
class RDSHeader(Attribute):
    """
    The header of a message: C{struct rds_header} of Linux rds.h.
    """

    OCTETS: ClassVar[int] = 48

    sequence: int = bits(0, 64)
    acknowledgement: int = bits(8, 64)
    length: int = bits(16, 32)
    sourcePort: int = bits(20, 16)
    destinationPort: int = bits(22, 16)
    flags: int = bits(24, 8)
    credit: int = bits(25, 8)
    padding: bytes = octets(26, 4)
    checksum: int = bits(30, 16)
    extensions: bytes = octets(32, 16)

    def fields(self) -> Fields:
        """
        @return: the arguments of C{HEADER.pack}.
        """
        fields: Fields = astuple(self)
        return fields

    def packChecksummed(self) -> bytes:
        """
        @return: the octets, with the checksum computed.
        """
        return packChecksummed(*evolve(self, checksum=0).fields())


def isIntact(header: bytes | bytearray) -> bool:
    """
    @return: whether the checksum of a header is right, or absent (0).
    """
    return not any(header[30:32]) or not checksum(header)
