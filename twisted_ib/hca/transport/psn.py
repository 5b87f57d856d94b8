"""
Packet sequence numbers: 24 bits, which wrap (IBTA vol. 1 9.7.1; Linux's C{psn_compare}).

A connection counts packets in numbers that do not wrap and has the low 24 bits of them on the
wire, so that only what arrives must be compared.
"""

from __future__ import annotations

from typing import Final

from twisted_ib.hca.wire.headers import PSN_MASK

#: Half of all numbers: so far before or behind another one a number is on that side of it.
HALF: Final = 1 << 23


def extended(psn: int, near: int) -> int:
    """
    The number that has these low bits and is nearest to another one.

    @param psn: 24 bits, from a packet.
    @param near: a number that does not wrap.
    @return: at least C{near - HALF}, less than C{near + HALF}.
    """
    return near + ((psn - near + HALF & PSN_MASK) - HALF)


def packets(length: int, mtu: int) -> int:
    """
    How many packets, and so numbers, a message or the answer to a READ takes; a message of
    nothing takes one (IBTA vol. 1 9.7.3.2).

    @param length: in bytes.
    @param mtu: the path MTU in bytes.
    """
    return -(-length // mtu) or 1
