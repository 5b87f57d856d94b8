"""
Packet sequence numbers: 24 bits, which wrap (IBTA vol. 1 9.7.1; Linux C{rxe_verbs.h}, C{psn_compare}).

A connection counts packets in numbers that do not wrap and puts their low 24 bits on the wire, so that
only received PSNs need modular arithmetic.
"""

from __future__ import annotations

from typing import Final

from twisted_ib.hca.wire.headers import PSN_MASK

#: Half of the number space: differences below this are ahead, the others behind (as RFC 1982
#: section 3.2).
HALF: Final = 1 << 23


def extended(psn: int, near: int) -> int:
    """
    The number nearest to C{near} that has these low 24 bits.

    @param psn: 24 bits, from a packet.
    @param near: a number that does not wrap.
    @return: at least C{near - HALF}, less than C{near + HALF}.
    """
    return near + ((psn - near + HALF & PSN_MASK) - HALF)


def packets(length: int, mtu: int) -> int:
    """
    How many packets, and so PSNs, a message or a READ response needs; an empty one needs one (IBTA vol. 1
    9.7.3).

    @param length: in bytes.
    @param mtu: the path MTU in bytes.
    """
    return -(-length // mtu) or 1
