"""
Rates of paths and multicast groups, and of links (IBTA vol. 1 15.2.5.16, 14.2.5.6).
"""

from __future__ import annotations

from typing import Final

# From code 2 on (Linux ib_verbs.h enum ib_rate).
_RATES: Final = (
    *(2.5, 10, 30, 5, 20, 40, 60, 80, 120, 14, 56, 112),
    *(168, 25, 100, 200, 300, 28, 50, 400, 600, 800, 1200),
)
#: Gb/s of each code of a rate; a greater code is not always faster.
GIGABITS: Final[dict[int, float]] = dict(enumerate(_RATES, 2))
_CODES: Final = {gigabits: code for code, gigabits in GIGABITS.items()}
_SLOWEST: Final = 2
#: Lanes of PortInfo's LinkWidthActive, Gb/s of a lane of LinkSpeedActive and of LinkSpeedExtActive.
_LANES: Final = {1: 1, 2: 4, 4: 8, 8: 12, 16: 2}
_SPEEDS: Final = {1: 2.5, 2: 5, 4: 10}
_EXTENDED_SPEEDS: Final = {1: 14, 2: 25, 4: 50, 8: 100}


def linkRate(width: int, speed: int, extendedSpeed: int) -> int:
    """
    @param width: PortInfo's LinkWidthActive; C{speed} and C{extendedSpeed} likewise, the latter 0 for none.
    @return: the code of a link's rate; the slowest for what has none.
    """
    lane = _EXTENDED_SPEEDS.get(extendedSpeed) or _SPEEDS.get(speed, 0)
    return _CODES.get(_LANES.get(width, 0) * lane, _SLOWEST)


__all__ = ["GIGABITS", "linkRate"]
