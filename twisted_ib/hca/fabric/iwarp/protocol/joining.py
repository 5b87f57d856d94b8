"""
The segments of one Send that were received together, joined before they are delivered.

A message that is longer than a segment costs its receiver a copy of each segment, and another of all of them,
unless it is in one piece where it lies.  Mostly its end is much shorter than its beginning.
"""

from __future__ import annotations

from typing import Final

from twisted_ib.hca.fabric.iwarp.protocol.ddp import CONTROL, LAST_BIT, SEND_QUEUE, UNTAGGED
from twisted_ib.hca.fabric.iwarp.protocol.mpastream import FPDUReader

_unpack = UNTAGGED.unpack_from
_HEADER: Final = UNTAGGED.size
_LENGTH: Final = 2
_OFFSETS: Final = 0xFFFFFFFF


def joinSends(reader: FPDUReader, buffer: bytearray | memoryview, end: int, stop: int) -> int:
    """
    Join the ULPDU that was found last with those behind it that continue its message: each one's payload is
    moved behind that of the one before.

    @param reader: has found an untagged segment, and is of a stream without markers.  Its C{first} and
        C{last} are then those of the joined segment.
    @param buffer: see L{FPDUReader.next}.
    @param end: what that has returned.
    @param stop: the end of what was received.
    @return: the offset of the end of the last FPDU.
    @raise StreamError: see L{FPDUReader.next}.
    """
    first, last = reader.first, reader.last
    if last - first < _HEADER:
        return end
    word, key, queue, sequence, offset = _unpack(buffer, first)
    offset -= first + _HEADER
    begun = word
    while not word & LAST_BIT and queue == SEND_QUEUE and end + _LENGTH + _HEADER <= stop:
        length = buffer[end] << 8 | buffer[end + 1]
        following = end + _LENGTH
        # RFC 5041 section 4.3: what RDMAP has in the header is the same in all segments of a message.
        expected = begun, key, queue, sequence, offset + last & _OFFSETS
        word, *others = _unpack(buffer, following)
        if length < _HEADER or (word & ~LAST_BIT, *others) != expected:
            break
        found = reader.next(buffer, end, stop)
        if not found:
            break
        payload = buffer[following + _HEADER : reader.last]
        buffer[last : last + len(payload)] = payload
        last += len(payload)
        end = found
        CONTROL.pack_into(buffer, first, word)
    reader.first, reader.last = first, last
    return end
