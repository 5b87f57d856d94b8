"""
ULPDUs in a TCP stream: MPA's FPDUs, with or without CRCs and markers (RFC 5044 sections 4 to 6).

An FPDU is a length of two octets, the ULPDU, up to three octets of PAD, and four octets of CRC, zero without
one. TCP may cut it anywhere: L{FPDUReader} finds it in a buffer again, L{FPDUWriter} makes it.

A marker is four octets at each 512th octet of a direction, counted from the end of the sender's startup
frame: two of zero, and FPDUPTR, the octets between the begin of the FPDU and the marker. As all FPDUs are a
multiple of four long, markers never stand in a length or a CRC.

A message that is longer than a segment costs its receiver a copy of each segment, and another of all of them,
unless it is in one piece where it lies: L{joinSends} joins those that were received together before they are
delivered.  Mostly the end of a message is much shorter than its beginning.

Both classes are on the path of each message: they make no object for it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

from twisted_ib.errors import WireError
from twisted_ib.hca.fabric.iwarp.protocol.ddp import CONTROL, LAST_BIT, SEND_QUEUE, UNTAGGED
from twisted_ib.hca.fabric.iwarp.protocol.mpa import MPAErrorCode, crc32c

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import Buffer
    from twisted_ib.structs import Packed

_unpack = UNTAGGED.unpack_from
_HEADER: Final = UNTAGGED.size
#: Octets of the length in front of an FPDU.
_PREFIX: Final = 2
_OFFSETS: Final = 0xFFFFFFFF

#: The longest ULPDU.
MAX_ULPDU: Final = 65535
#: The same with markers: FPDUPTR has 16 bits, and 65,532 octets may hold 128 markers.
MAX_ULPDU_MARKERS: Final = 65532 - 128 * 4 - 2
#: The shortest MULPDU (RFC 5044 section 4.5): its FPDU may need several segments.
MIN_MULPDU: Final = 128

#: The distance of markers, and the octets between two of them.
_MARKER_DISTANCE: Final = 512
_MARKER_BYTES: Final = 4
_BETWEEN_MARKERS: Final = 508

_LENGTH: Final[Packed[tuple[int]]] = struct.Struct(">H")
_CRC: Final[Packed[tuple[int]]] = struct.Struct("<I")
_MARKER: Final[Packed[tuple[int]]] = struct.Struct(">xxH")
_packLength = _LENGTH.pack
_packCRC = _CRC.pack
_packMarker = _MARKER.pack
_CRC_BYTES: Final = 4
#: The CRC32C of octets and their own CRC32C, whatever they are.
_RESIDUE: Final = 0x48674BC7
_NO_CRC: Final = bytes(_CRC_BYTES)
#: PAD, and PAD with a CRC of zero, by the last two bits of the ULPDU's length.
_PADS: Final = (b"\0\0", b"\0", b"", b"\0\0\0")
_TRAILERS: Final = tuple(pad + _NO_CRC for pad in _PADS)


class StreamError(WireError):
    """
    The stream of FPDUs is broken: the connection ends.

    @ivar code: for the Terminate, of layer LLP.
    """

    def __init__(self, code: MPAErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code


def mulpdu(emss: int, hasMarkers: bool = False) -> int:
    """
    @param emss: the effective maximum segment size of TCP.
    @return: the longest ULPDU whose FPDU fits in a segment (RFC 5044 section 4.5), within MPA's limits.
    """
    markers = -(-emss // _MARKER_DISTANCE) * _MARKER_BYTES if hasMarkers else 0
    largest = MAX_ULPDU_MARKERS if hasMarkers else MAX_ULPDU
    return min(max(emss - (6 + markers + emss % 4), MIN_MULPDU), largest)


def fpduBytes(length: int, hasMarkers: bool = False) -> int:
    """
    @param length: of a ULPDU.
    @return: the octets of its FPDU; with markers, how many they are at most.
    """
    octets = (length + 9) & ~3
    return octets + (1 + (octets - 1) // _BETWEEN_MARKERS) * _MARKER_BYTES if hasMarkers else octets


class FPDUWriter:
    """
    Makes FPDUs of ULPDUs.
    """

    __slots__ = ("_hasCRC", "_hasMarkers", "_position")

    def __init__(self, hasCRC: bool, hasMarkers: bool) -> None:
        """
        @param hasCRC: whether FPDUs have a CRC, for which C{google_crc32c} is needed.
        @param hasMarkers: whether the peer wants markers.
        """
        self._hasCRC = hasCRC
        self._hasMarkers = hasMarkers
        # Octets since the last marker's begin.
        self._position = 0

    def frame(self, out: list[Any], pieces: list[Any], length: int) -> int:
        """
        Append the buffers of one FPDU.

        @param out: the list. Without a CRC and markers the pieces themselves are appended, uncopied.
        @param pieces: buffers of C{bytes}, C{bytearray} or C{memoryview}: the ULPDU.
        @param length: its octets, L{MAX_ULPDU} at most; with markers, L{MAX_ULPDU_MARKERS}.
        @return: the octets appended.
        """
        if self._hasMarkers:
            return self._frameWithMarkers(out, pieces, length)
        if self._hasCRC:
            # Joined, as google_crc32c takes bytes only.
            covered = b"".join((_packLength(length), *pieces, _PADS[length & 3]))
            out.append(covered)
            out.append(_packCRC(crc32c(covered)))
        else:
            out.append(_packLength(length))
            out += pieces
            out.append(_TRAILERS[length & 3])
        return (length + 9) & ~3

    def _frameWithMarkers(self, out: list[Any], pieces: list[Any], length: int) -> int:
        body = b"".join((_packLength(length), *pieces, _PADS[length & 3]))
        parts = []
        position = self._position
        if not position:
            # In front of the length it belongs to the FPDU, and so to its CRC.
            parts.append(_packMarker(0))
            position = _MARKER_BYTES
        first, last = 0, _MARKER_DISTANCE - position
        pointer = last
        # One may stand between PAD and CRC too. Behind the CRC it belongs to the next FPDU.
        while last <= len(body):
            parts.append(body[first:last])
            parts.append(_packMarker(pointer))
            first, last = last, last + _BETWEEN_MARKERS
            pointer += _MARKER_DISTANCE
        parts.append(body[first:])
        covered = b"".join(parts)
        out.append(covered)
        out.append(_packCRC(crc32c(covered)) if self._hasCRC else _NO_CRC)
        octets = len(covered) + _CRC_BYTES
        self._position = (self._position + octets) % _MARKER_DISTANCE
        return octets


class FPDUReader:
    """
    Finds FPDUs in octets received, and the ULPDUs in them.

    @ivar hasMarkers: whether the peer sends markers.
    @ivar first: offset of the ULPDU of the FPDU found last.
    @ivar last: offset of its end.
    """

    __slots__ = ("_hasCRC", "_position", "first", "hasMarkers", "last")

    def __init__(self, hasCRC: bool, hasMarkers: bool) -> None:
        """
        @param hasCRC: whether FPDUs have a CRC, for which C{google_crc32c} is needed.
        @param hasMarkers: whether the peer sends markers.
        """
        self._hasCRC = hasCRC
        self.hasMarkers = hasMarkers
        # Octets since the last marker's begin.
        self._position = 0
        self.first = self.last = 0

    def next(self, buffer: Buffer, start: int, stop: int) -> int:
        """
        Find the FPDU that begins at C{start}. Each is to be found once: markers count the octets.

        @param buffer: a C{bytearray} or a writable C{memoryview}. If markers stand in the ULPDU they are
            taken out of it there. The two octets before the ULPDU are always the FPDU's.
        @return: the offset of its end; 0 if it does not end before C{stop}, and nothing has changed.
        @raise StreamError: the CRC or a marker is wrong.
        """
        if self.hasMarkers:
            return self._nextWithMarkers(buffer, start, stop)
        first = start + 2
        if stop < first:
            return 0
        # PAD is not checked: Linux siw sends left-over octets in it.
        length = buffer[start] << 8 | buffer[start + 1]
        end = start + (length + 9 & ~3)
        if end > stop:
            return 0
        # With a memoryview its octets are copied once only.
        if self._hasCRC and crc32c(bytes(memoryview(buffer)[start:end])) != _RESIDUE:
            raise _wrongCRC(end - start)
        self.first = first
        self.last = first + length
        return end

    def needed(self, buffer: Buffer, start: int, stop: int) -> int:
        """
        @return: the octets of the FPDU that begins at C{start}, for a read to ask for; as long as its length
            is not there, those up to the length's end.
        """
        begin = 0 if self._position or not self.hasMarkers else _MARKER_BYTES
        if stop - start < begin + 2:
            return begin + 2
        length = buffer[start + begin] << 8 | buffer[start + begin + 1]
        octets = length + 9 & ~3
        return begin + octets + self._markersWithin(octets) * _MARKER_BYTES

    def _markersWithin(self, octets: int) -> int:
        """
        @param octets: from the length to the CRC.
        @return: the markers between them.
        """
        if not self.hasMarkers:
            return 0
        before = _MARKER_DISTANCE - (self._position or _MARKER_BYTES)
        return 0 if octets <= before else 1 + (octets - before - 1) // _BETWEEN_MARKERS

    def _nextWithMarkers(self, buffer: Any, start: int, stop: int) -> int:
        end = start + self.needed(buffer, start, stop)
        begin = start if self._position else start + _MARKER_BYTES
        if end > stop:
            return 0
        if self._hasCRC and crc32c(bytes(memoryview(buffer)[start:end])) != _RESIDUE:
            raise _wrongCRC(end - start)
        if begin > start:
            _checkMarker(buffer, start, 0)
        length = buffer[begin] << 8 | buffer[begin + 1]
        pointer = _MARKER_DISTANCE - (self._position or _MARKER_BYTES)
        marker = begin + pointer
        if marker < end:
            parts = [buffer[begin:marker]]
            while marker < end:
                _checkMarker(buffer, marker, pointer)
                parts.append(buffer[marker + _MARKER_BYTES : min(marker + _MARKER_DISTANCE, end)])
                marker += _MARKER_DISTANCE
                pointer += _MARKER_DISTANCE
            body = b"".join(parts)
            buffer[begin : begin + len(body)] = body
        self._position = (self._position + end - start) % _MARKER_DISTANCE
        self.first = begin + 2
        self.last = self.first + length
        return end


def _wrongCRC(octets: int) -> StreamError:
    return StreamError(MPAErrorCode.CRC, f"an FPDU of {octets} octets has a wrong CRC")


def _checkMarker(buffer: Buffer, offset: int, pointer: int) -> None:
    # RFC 5044 section 4.2: the first half is reserved, and FPDUPTR is a multiple of four.
    found = (buffer[offset + 2] << 8 | buffer[offset + 3]) & ~3
    if found != pointer:
        raise StreamError(MPAErrorCode.MARKER, f"a marker {pointer} octets within an FPDU says {found}")


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
    while not word & LAST_BIT and queue == SEND_QUEUE and end + _PREFIX + _HEADER <= stop:
        length = buffer[end] << 8 | buffer[end + 1]
        following = end + _PREFIX
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
