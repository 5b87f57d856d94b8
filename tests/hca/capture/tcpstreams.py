"""
The TCP connections in a capture: what each side has sent, in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from struct import Struct

from attrs import define, field

#: Where a file's frames begin, and what is in front of each: time, its length here and on the wire.
_BEGIN, _RECORD = 24, Struct("<IIII")
_ETHERNET = 14
_TCP = 6
_FIN, _SYN, _RST, _ACK = 1, 2, 4, 16

#: An address and a port, as they are in headers.
End = tuple[bytes, bytes]


def framesOf(file: Path) -> Iterator[bytes]:
    """
    @return: the Ethernet frames of a classic capture file.
    """
    data = file.read_bytes()
    at = _BEGIN
    while at + _RECORD.size <= len(data):
        size = _RECORD.unpack_from(data, at)[2]
        at += _RECORD.size
        yield data[at : at + size]
        at += size


@define
class Side:
    """
    What one end of a connection has sent.

    @ivar start: the sequence number of its first octet, L{None} until its SYN.
    @ivar octets: what it has sent, from the first octet on, as far as it is whole.
    @ivar isReset: whether it has sent an RST, and C{isFinished} whether a FIN.
    """

    end: End
    start: int | None = None
    octets: bytearray = field(factory=bytearray)
    isReset: bool = False
    isFinished: bool = False
    _early: dict[int, bytes] = field(factory=dict)

    def take(self, sequence: int, flags: int, data: bytes) -> None:
        """
        Add a segment, which may be out of order or a repetition.
        """
        self.isReset |= bool(flags & _RST)
        self.isFinished |= bool(flags & _FIN)
        if flags & _SYN:
            self.start = sequence + 1 & 0xFFFFFFFF
        if self.start is None or not data:
            return
        self._early[sequence - self.start & 0xFFFFFFFF] = data
        for at in sorted(self._early):
            if at > len(self.octets):
                break
            self.octets += self._early.pop(at)[len(self.octets) - at :]


@define
class Connection:
    """
    One connection.
    """

    client: Side
    server: Side


def connectionsOf(frames: Iterable[bytes]) -> list[Connection]:
    """
    @param frames: Ethernet frames.
    @return: the connections that begin in them, in the order of their first SYN.
    """
    found: list[Connection] = []
    sides: dict[tuple[End, End], Side] = {}
    for frame in frames:
        kind = frame[12:14]
        if kind == b"\x08\0" and frame[23] == _TCP:
            at, stop = _ETHERNET + (frame[14] & 15) * 4, _ETHERNET + int.from_bytes(frame[16:18], "big")
            source, destination = frame[26:30], frame[30:34]
        elif kind == b"\x86\xdd" and frame[20] == _TCP:
            at, stop = _ETHERNET + 40, _ETHERNET + 40 + int.from_bytes(frame[18:20], "big")
            source, destination = frame[22:38], frame[38:54]
        else:
            continue
        ends = (source, frame[at : at + 2]), (destination, frame[at + 2 : at + 4])
        flags = frame[at + 13]
        if flags & (_SYN | _ACK) == _SYN and (ends not in sides or sides[ends].octets):
            connection = Connection(Side(ends[0]), Side(ends[1]))
            found.append(connection)
            sides[ends], sides[ends[::-1]] = connection.client, connection.server
        if ends in sides:
            sequence = int.from_bytes(frame[at + 4 : at + 8], "big")
            sides[ends].take(sequence, flags, frame[at + (frame[at + 12] >> 4) * 4 : stop])
    return found
