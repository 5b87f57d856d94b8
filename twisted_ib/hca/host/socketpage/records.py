"""
The layout of a socket page: a header, texts, and a row for each listener or connection.

All of them are records of one size, little-endian, that begin with a CRC of the rest: who reads while a
record is written sees that it is torn, and reads it again.  A row names its texts (provider, rule...) by
number: few of them differ.

Pure: values in, bytes out, and back.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from zlib import crc32

from twisted_ib.layouts import Shown
from twisted_ib.records import frozen

if TYPE_CHECKING:
    from twisted_ib.structs import Packed


#: Bytes of each record.
RECORD = 160
#: Texts of one page, from record 1 on; the rows follow.
TEXTS = 1024
#: The record of the first row.
FIRST_ROW = 1 + TEXTS
#: Rows of one page; further ones are not shown.
ROWS = 1 << 16

_MAGIC = b"IBSS"
_VERSION = 1
#: Kinds of records.
LISTENER, CONNECTION, _TEXT = 1, 2, 3

_CRC: Packed[tuple[int]] = struct.Struct("<I")
#: Magic, version, process id, program.
_HEADER: Packed[tuple[bytes, int, int, bytes]] = struct.Struct("<4sHxxI128s")
#: As L{RowValues}, but with the ports before the hosts, and as long as a record without its CRC.
_HEAD: Packed[tuple[int, int, int, int, int, float, float, float]] = struct.Struct("<B4Hddd")
_ENDS: Packed[tuple[int, int, bytes, bytes]] = struct.Struct("<2H52s52s15x")
#: Kind, bytes.
_SPOKEN: Packed[tuple[int, int, bytes]] = struct.Struct("<BB150s")
#: The longest text, in bytes; of a rule's place the end is kept.
TEXT_BYTES = 150
#: A time that is not known.
NEVER = -1.0
#: A text that there is none of.
NO_TEXT = 0
#: How often a torn record is read again.
ATTEMPTS = 3
#: An empty place for a row.
NOTHING = bytes(RECORD)


@frozen(repr=False)
class Header(Shown):
    """
    The head of a page.

    @ivar pid: The process's own number.
    @ivar program: The name of its program.
    """

    pid: int
    program: str


#: A row: kind; the numbers of the texts provider, device, rule and fallback; the times at which the
#: application asked, a provider was chosen, and the connection was made; local host and port; the peer's.
RowValues = tuple[int, int, int, int, int, float, float, float, str, int, str, int]


def _sealed(body: bytes) -> bytes:
    body = body.ljust(RECORD - _CRC.size, b"\0")
    return _CRC.pack(crc32(body)) + body


def _body(record: bytes) -> bytes | None:
    if len(record) != RECORD:
        return None
    body = record[_CRC.size :]
    return body if _CRC.unpack_from(record)[0] == crc32(body) else None


def _cut(text: str, most: int, end: bool = False) -> bytes:
    data = text.encode("utf-8", "replace")
    return data[-most:] if end else data[:most]


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode("utf-8", "replace")


def packHeader(header: Header) -> bytes:
    """
    @return: The first record.
    """
    program = _cut(header.program, 128)
    return _sealed(_HEADER.pack(_MAGIC, _VERSION, header.pid & 0xFFFFFFFF, program))


def parseHeader(record: bytes) -> Header | None:
    """
    @return: L{None} if this is no page, or one of another version.
    """
    body = _body(record)
    if body is None:
        return None
    magic, version, pid, program = _HEADER.unpack_from(body)
    if magic != _MAGIC or version != _VERSION:
        return None
    return Header(pid, _text(program))


def packText(text: str, end: bool = False) -> bytes:
    """
    @param end: Whether the end of a text that is too long is kept, not its beginning.
    @return: The record of a text.
    """
    data = _cut(text, TEXT_BYTES, end)
    return _sealed(_SPOKEN.pack(_TEXT, len(data), data))


def parseText(record: bytes) -> str | None:
    """
    @return: The text, L{None} if the record has none.
    """
    body = _body(record)
    if body is None or body[0] != _TEXT:
        return None
    return _text(_SPOKEN.unpack_from(body)[2])


#: Returns the bytes of a row's values up to the times, which many rows have in common.
packHead = _HEAD.pack
#: The same of those behind: the numbers of the ports, the peer's second, and the hosts.
packEnds = _ENDS.pack
#: Returns the bytes of the CRC-32 of all these, which come first.
packSum = _CRC.pack


def parseRows(data: bytes, readAgain: Callable[[int], bytes]) -> Iterator[RowValues]:
    """
    Yield the rows of a page, without empty places and those that stay torn.

    @param data: All records from L{FIRST_ROW} on.
    @param readAgain: Reads the record of a row by its number.
    """
    for number in range(len(data) // RECORD):
        record = data[number * RECORD : (number + 1) * RECORD]
        if record == NOTHING:
            continue
        body = _body(record)
        for _ in range(ATTEMPTS):
            if body is None:
                body = _body(readAgain(number))
        if body is None or body[0] not in (LISTENER, CONNECTION):
            continue
        port, peerPort, here, there = _ENDS.unpack_from(body, _HEAD.size)
        yield (*_HEAD.unpack_from(body), _text(here), port, _text(there), peerPort)
