"""
The invariant CRC (ICRC) at the end of a RoCEv2 packet (IBTA vol. 1 7.8.1, annex A17).

CRC-32 of Ethernet over everything from the IP header to the pad, with ones in place of the fields that
routers may change.
"""

from __future__ import annotations

from typing import Final

from twisted_ib.errors import HeaderError, LengthError

try:
    # Several times as fast as zlib.
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

    CRC32_LIBRARY = "zlib"
else:
    #: Computes the CRC of this process's packets.
    CRC32_LIBRARY = "isal"

__all__ = ["CRC32_LIBRARY", "crc32", "icrc"]

#: The CRC of eight octets of ones: rxe_icrc.c puts them where InfiniBand has the local route header, all of
#: which is masked.
_START: Final = 0x2144DF1C
_BTH_BYTES: Final = 12
_IPV4_BYTES: Final = 20
_IPV6_BYTES: Final = 40
_UDP_BYTES: Final = 8

#: IP version -> offset of the BTH, and the mask of all that precedes the BTH's end (IBTA vol. 1 annex A17;
#: Linux rxe_icrc.c rxe_icrc_hdr). Masked are of IPv4 the type of service, time to live and checksum; of IPv6
#: the traffic class, flow label and hop limit; of UDP the checksum; of the BTH the octet with FECN and BECN.
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
    Compute the ICRC.

    @param buffer: holds an IP packet.
    @param start: offset of its first octet.
    @param stop: offset of the end of its pad, where the ICRC is or will be.
    @return: 32 bits; little endian on the wire.
    @raise WireError: it is not IP, has options, or ends within its headers.
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
    # The payload is not copied: only the masked headers, 40 or 60 octets, are built anew.
    return crc32(memoryview(buffer)[end:stop], crc32(head.to_bytes(size, "big"), _START))
