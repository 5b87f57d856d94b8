"""
Rates of paths and multicast groups, and of links (IBTA vol. 1 15.2.5.16, 14.2.5.6).
"""

from __future__ import annotations

from typing import Final

from twisted_ib.hca.base.port import linkGigabits

# From code 2 on (Linux ib_verbs.h enum ib_rate).
_RATES: Final = (
    *(2.5, 10, 30, 5, 20, 40, 60, 80, 120, 14, 56, 112),
    *(168, 25, 100, 200, 300, 28, 50, 400, 600, 800, 1200),
)
#: Gb/s of each code of a rate; a greater code is not always faster.
GIGABITS: Final[dict[int, float]] = dict(enumerate(_RATES, 2))
_CODES: Final = {gigabits: code for code, gigabits in GIGABITS.items()}
_SLOWEST: Final = 2


def linkRate(width: int, speed: int, extendedSpeed: int) -> int:
    """
    @param width: PortInfo's LinkWidthActive; C{speed} and C{extendedSpeed} likewise, the latter 0 for none.
    @return: the code of a link's rate; the slowest for what has none.
    """
    # The extended speeds follow the others (libibverbs/verbs.h, ibv_port_attr.active_speed).
    return _CODES.get(linkGigabits(width, extendedSpeed << 4 or speed), _SLOWEST)
