"""
RMPP transfers of programs that are attached by ibsim's protocol.

A program gives RMPP to the kernel, whole and with an incomplete header (Linux C{user_mad.c}); libumad2sim
carries the first 256 octets of it, and nobody cuts it into segments.  So here a program's transfer is one
segment, for a device, which has RMPP itself; for another program it stays as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twisted_ib.hca.wire.mad.classes import (
    ACTIVE,
    DATA,
    FIRST,
    LAST,
    RMPP,
    RMPP_VERSION,
    TRANSFER_HEADERS,
    RMPPHeader,
    classHeader,
)
from twisted_ib.hca.wire.mad.mad import CLASS_AT, HEADER_BYTES

if TYPE_CHECKING:
    from twisted_ib.subnet.network.smi import Packet

#: Where the RMPP header ends: lengths count from there.
_BODY: Final = HEADER_BYTES + 12


def _headerOf(octets: bytearray) -> RMPPHeader | None:
    row = classHeader(octets[CLASS_AT])
    if row is None or row[0] not in TRANSFER_HEADERS:
        return None
    header = RMPP.parse(bytes(octets[HEADER_BYTES:_BODY]))
    return header if header.flags & ACTIVE else None


def complete(packet: Packet) -> None:
    """
    Make a transfer as a program gives it to the kernel one of a single segment; leave anything else.
    """
    octets = packet.octets
    header = _headerOf(octets)
    if header is None or header.version:
        return
    # Each segment has the header of its class, whatever the program says.
    least = HEADER_BYTES + (classHeader(octets[CLASS_AT]) or (None, 0))[1]
    size = max(packet.length, least) - _BODY
    octets[HEADER_BYTES:_BODY] = RMPP.pack(
        RMPPHeader(RMPP_VERSION, DATA, flags=ACTIVE | FIRST | LAST, segment=1, length=size)
    )


def isControl(octets: bytearray) -> bool:
    """
    @return: whether a MAD is an ACK, STOP or ABORT, which the kernel keeps from programs.
    """
    header = _headerOf(octets)
    return header is not None and header.version == RMPP_VERSION and header.type != DATA
