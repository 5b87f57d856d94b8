"""
Reassembly of IP fragments (RFC 791 section 3.2, RFC 8200 section 4.5), within bounds.
"""

from __future__ import annotations

from bisect import bisect
from typing import Final

from twisted_ib import limits
from twisted_ib.ipoib.protocol.stack.packets import IPPacket

#: By the length of an address: octets of the longest upper layer.
_LONGEST: Final = {4: 65535 - 20, 16: 65535}
#: Which packet a fragment is of.
Key = tuple[bytes, bytes, int, int]


class _Pieces:
    """
    The fragments of one packet that have come.

    @ivar offsets: of the fragments, in order.
    @ivar length: of the whole; L{None} until the last fragment has come.
    """

    __slots__ = ("begun", "bytes", "length", "offsets", "pieces")

    def __init__(self, now: float) -> None:
        self.begun = now
        self.bytes = 0
        self.length: int | None = None
        self.offsets: list[int] = []
        self.pieces: dict[int, bytes] = {}

    def accepts(self, offset: int, piece: bytes, isMore: bool, longest: int) -> bool:
        # RFC 5722 section 4, and Linux for IPv4 too: fragments that overlap are an attack.  A copy of the
        # same is no overlap.
        if self.pieces.get(offset) == piece:
            return True
        end = offset + len(piece)
        if end > longest or len(self.offsets) >= limits.IP_FRAGMENTS:
            return False
        if self.length is not None and (not isMore or end > self.length):
            return False
        at = bisect(self.offsets, offset)
        if at and self.offsets[at - 1] + len(self.pieces[self.offsets[at - 1]]) > offset:
            return False
        if at < len(self.offsets) and (end > self.offsets[at] or not isMore):
            return False
        return True

    def add(self, offset: int, piece: bytes, isMore: bool) -> None:
        if offset in self.pieces:
            return
        self.offsets.insert(bisect(self.offsets, offset), offset)
        self.pieces[offset] = piece
        self.bytes += len(piece)
        if not isMore:
            self.length = offset + len(piece)

    @property
    def isWhole(self) -> bool:
        # Without overlaps: as many octets as the whole has are the whole.
        return self.bytes == self.length


class Reassembly:
    """
    The packets of which some fragments have come.
    """

    def __init__(self) -> None:
        self._packets: dict[Key, _Pieces] = {}

    def __len__(self) -> int:
        return len(self._packets)

    def add(self, ip: IPPacket, now: float) -> bytes | None:
        """
        Take a fragment.

        @return: the upper layer's header and payload when the packet is whole, else L{None}.
        """
        self.expire(now)
        key = (ip.source, ip.destination, ip.protocol, ip.identification)
        piece = ip.packet[ip.start : ip.stop]
        # RFC 8200 section 4.5: all but the last have a multiple of 8 octets.
        if not piece or (ip.isMore and len(piece) % 8):
            return None
        pieces = self._packets.get(key)
        if pieces is None:
            # The oldest is given up: an attacker's fragments, which are never whole, are old soon.
            if len(self._packets) >= limits.IP_REASSEMBLIES:
                del self._packets[next(iter(self._packets))]
            pieces = self._packets[key] = _Pieces(now)
        if not pieces.accepts(ip.offset, piece, ip.isMore, _LONGEST[len(ip.source)]):
            del self._packets[key]
            return None
        pieces.add(ip.offset, piece, ip.isMore)
        if pieces.isWhole:
            del self._packets[key]
            return b"".join(pieces.pieces[offset] for offset in pieces.offsets)
        return None

    def expire(self, now: float) -> None:
        """
        Give up packets that have waited too long.
        """
        while self._packets:
            key, oldest = next(iter(self._packets.items()))
            if now - oldest.begun < limits.IP_REASSEMBLY_SECONDS:
                break
            del self._packets[key]
