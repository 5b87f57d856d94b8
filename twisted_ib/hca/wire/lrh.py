"""
InfiniBand packets as they are on a link: local route header (LRH), invariant and variant CRC (IBTA vol. 1
7.7, 7.8).

No fabric sends them: captures of C{ib} devices have them, in ERF records (link type 197), as those of
analysers.
"""

from __future__ import annotations

from functools import cache
from struct import Struct, unpack
from struct import error as structError
from typing import TYPE_CHECKING, Final

from attrs import frozen

from twisted_ib.errors import HeaderError, InvariantCRCError, LengthError, WireError
from twisted_ib.hca.wire.grh import GRH_BYTES
from twisted_ib.hca.wire.headers import BTH, ICRC
from twisted_ib.hca.wire.icrc import crc32

if TYPE_CHECKING:
    from twisted_ib.structs import Packed


#: Virtual lane and link version; service level and link next header; DLID; packet length; SLID.
_LRH: Final[Packed[tuple[int, int, int, int, int]]] = Struct(">BBHHH")
_VCRC: Final[Packed[tuple[int]]] = Struct("<H")
#: Link next header (IBTA vol. 1 7.7.5): a BTH follows, or a GRH and then a BTH; else it is a raw packet.
_NEXT_BTH: Final = 2
_NEXT_GRH: Final = 3
_NEXT_MASK: Final = 0xF
_HIGH_SHIFT: Final = 4
#: Words of four octets, from the LRH to the ICRC.
_LENGTH_MASK: Final = 0x7FF
_WORD_BITS: Final = 2

#: The headers up to the BTH's end, with ones for what switches and routers may change (IBTA vol. 1 7.8.1):
#: the virtual lane and the BTH's octet with FECN and BECN; if there is a GRH, all of the LRH, and of the GRH
#: the traffic class, flow label and hop limit.
_LOCAL_MASK: Final = int("f0" + "00" * 11 + "ff" + "00" * 7, 16)
_GLOBAL_MASK: Final = int("ff" * 8 + "0fffffff000000ff" + "00" * 36 + "ff" + "00" * 7, 16)
_LOCAL_BYTES: Final = _LRH.size + BTH.size

#: CRC-16 0x100B, as each octet's least significant bit goes first (IBTA vol. 1 7.8.2).
_VARIANT: Final = 0xD008
_VARIANT_BITS: Final = 16
_ONES: Final = 0xFFFF


@cache
def _variants() -> list[int]:
    # Linear: the entry of a sum is the sum of entries. For two octets at once, which is what the CRC has.
    table = [0]
    for bit in range(_VARIANT_BITS):
        rest = 1 << bit
        for _ in range(_VARIANT_BITS):
            rest = rest >> 1 ^ (_VARIANT if rest & 1 else 0)
        table += [each ^ rest for each in table]
    return table


def variantCRC(octets: bytes) -> int:
    """
    Compute the VCRC.

    @param octets: a packet from LRH to ICRC, which is whole words.
    @return: 16 bits; little endian on the wire.
    """
    rest, table = _ONES, _variants()
    for pair in unpack(f"<{len(octets) // 2}H", octets):
        rest = table[rest ^ pair]
    return rest ^ _ONES


def invariantCRC(octets: bytes) -> int:
    """
    Compute the ICRC of a packet with an LRH.

    @param octets: from the LRH to the pad, of a packet that is not raw.
    @return: 32 bits; little endian on the wire.
    """
    size, mask = _LOCAL_BYTES, _LOCAL_MASK
    if octets[1] & 1:
        size, mask = size + GRH_BYTES, _GLOBAL_MASK
    head = int.from_bytes(octets[:size], "big") | mask
    return crc32(octets[size:], crc32(head.to_bytes(size, "big")))


@frozen
class LinkPacket:
    """
    One packet with its LRH.

    @ivar source: SLID.
    @ivar destination: DLID.
    @ivar body: from the BTH to the pad.
    @ivar grh: 40 octets, or none.
    @ivar serviceLevel: 4 bits.
    @ivar virtualLane: 4 bits.
    """

    source: int
    destination: int
    body: bytes
    grh: bytes = b""
    serviceLevel: int = 0
    virtualLane: int = 0

    def pack(self) -> bytes:
        """
        @return: the packet from LRH to VCRC.
        @raise WireError: a field does not fit, or the lengths are not those of a packet.
        """
        size = _LRH.size + len(self.grh) + len(self.body) + ICRC.size
        if size >> _WORD_BITS > _LENGTH_MASK or size & 3 or len(self.body) < BTH.size:
            raise LengthError(f"a packet has not {size} octets")
        if len(self.grh) not in (0, GRH_BYTES) or (self.serviceLevel | self.virtualLane) >> _HIGH_SHIFT:
            raise HeaderError(f"a packet has no such LRH: {self}")
        following = _NEXT_GRH if self.grh else _NEXT_BTH
        try:
            head = _LRH.pack(
                *(self.virtualLane << _HIGH_SHIFT, self.serviceLevel << _HIGH_SHIFT | following),
                *(self.destination, size >> _WORD_BITS, self.source),
            )
        except structError as error:
            raise HeaderError(f"an LRH cannot have this: {error}") from None
        octets = b"".join((head, self.grh, self.body))
        octets += ICRC.pack(invariantCRC(octets))
        return octets + _VCRC.pack(variantCRC(octets))

    @classmethod
    def parse(cls, octets: bytes) -> LinkPacket:
        """
        Parse a packet and check its CRCs.

        @param octets: from LRH to VCRC.
        @raise WireError: it is raw, of another version, or corrupt.
        """
        if len(octets) < _LOCAL_BYTES + ICRC.size + _VCRC.size:
            raise LengthError(f"a packet has not {len(octets)} octets")
        lane, level, destination, words, source = _LRH.unpack_from(octets)
        end = len(octets) - _VCRC.size
        if words << _WORD_BITS != end:
            raise LengthError(f"a packet of {len(octets)} octets says that it has {words} words")
        following = level & _NEXT_MASK
        if lane & _NEXT_MASK or following not in (_NEXT_BTH, _NEXT_GRH):
            raise HeaderError(f"a packet begins with {octets[:2].hex()}")
        body = _LRH.size + (GRH_BYTES if following == _NEXT_GRH else 0)
        if end - body < BTH.size + ICRC.size:
            raise LengthError(f"a packet with a GRH has not {len(octets)} octets")
        if _VCRC.unpack_from(octets, end)[0] != variantCRC(octets[:end]):
            raise WireError("a packet's variant CRC is wrong")
        end -= ICRC.size
        if ICRC.unpack_from(octets, end)[0] != invariantCRC(octets[:end]):
            raise InvariantCRCError("a packet's invariant CRC is wrong")
        return cls(
            *(source, destination, octets[body:end], octets[_LRH.size : body]),
            *(level >> _HIGH_SHIFT, lane >> _HIGH_SHIFT),
        )
