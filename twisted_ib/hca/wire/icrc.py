"""
The invariant CRC at the end of a RoCEv2 packet (IBTA vol. 1 7.8.1, annex A17).

It covers everything from the IP header on, with ones in place of what routers may change:
CRC-32 as Ethernet has it.  C{isal} computes it several times as fast as C{zlib}, if it is
there.
"""

from __future__ import annotations

from typing import Final

from twisted_ib.errors import HeaderError, LengthError

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

#: The CRC of eight octets of ones: they stand for the local route header of InfiniBand.
_START: Final = 0x2144DF1C
_BTH_BYTES: Final = 12
_IPV4_BYTES: Final = 20
_IPV6_BYTES: Final = 40
_UDP_BYTES: Final = 8

#: By IP version: where the BTH begins, and the mask of all in front of its end.  Of IPv4 type
#: of service, time to live and checksum; of IPv6 traffic class, flow label and hop limit; of
#: UDP the checksum; of the BTH the octet of congestion bits.
_UDP_AND_BTH = "000000000000ffff00000000ff00000000000000"
_MASKS: Final = {
    4: (
        _IPV4_BYTES + _UDP_BYTES,
        int("00ff000000000000ff00ffff" + "00" * 8 + _UDP_AND_BTH, 16),
    ),
    6: (
        _IPV6_BYTES + _UDP_BYTES,
        int("0fffffff000000ff" + "00" * 32 + _UDP_AND_BTH, 16),
    ),
}


def icrc(buffer: bytes | bytearray | memoryview, start: int, stop: int) -> int:
    """
    Compute the invariant CRC.

    @param buffer: what holds an IP packet.
    @param start: offset of its first octet.
    @param stop: offset after its pad, where the CRC is or will be.
    @return: 32 bits; on the wire they are little endian.
    @raise WireError: it is not IP, has options, or ends in its headers.
    """
    if start < 0 or stop > len(buffer) or stop <= start:
        raise LengthError("there is no IP packet")
    first = buffer[start]
    found = _MASKS.get(first >> 4)
    if found is None or (first >> 4 == 4 and first & 0xF != _IPV4_BYTES // 4):
        raise HeaderError(f"an IP packet begins with {first:#04x}")
    offset, mask = found
    size = offset + _BTH_BYTES
    if stop - start < size:
        raise LengthError(f"a packet ends after {stop - start} octets")
    end = start + size
    head = int.from_bytes(buffer[start:end], "big") | mask
    return crc32(memoryview(buffer)[end:stop], crc32(head.to_bytes(size, "big"), _START))
