"""
The selectors of a record: of MTUs, rates and packet lifetimes (IBTA vol. 1 15.2.5.16).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from twisted_ib.hca.mad.attributes.administration import Selector
from twisted_ib.hca.mad.attributes.rates import GIGABITS, linkRate

if TYPE_CHECKING:
    from twisted_ib.hca.mad.attributes.port import PortInfo
    from twisted_ib.subnet.sm.model import Port

#: By the name of the field: code -> how much it stands for.  Other codes are reserved.
RANKS: Final[dict[str, Mapping[int, float]]] = {
    "mtu": {code: 128 << code for code in range(1, 6)},
    "rate": GIGABITS,
    "packetLifeTime": {code: code for code in range(64)},
}


def meets(ranks: Mapping[int, float], actual: int, selector: int, asked: int) -> bool:
    """
    @param actual: the code that there is.
    @return: whether it is what a selector asks for.
    """
    if selector == Selector.BEST:
        return True
    if asked not in ranks:
        return False
    rank, other = ranks.get(actual, 0), ranks[asked]
    if selector == Selector.EXACTLY:
        return rank == other
    return rank > other if selector == Selector.GREATER else rank < other


def choose(ranks: Mapping[int, float], most: int, selector: int, asked: int) -> int | None:
    """
    @param most: the code of the most that can be.
    @return: the highest code up to it that a selector asks for; L{None} if there is none.
    """
    highest = ranks.get(most, 0)
    fitting = [
        code for code, rank in ranks.items() if rank <= highest and meets(ranks, code, selector, asked)
    ]
    return max(fitting, key=ranks.__getitem__, default=None)


def mtuOf(port: Port) -> int:
    """
    @return: the code of the MTU of a port's link, or of port 0 of a switch, which has none.
    """
    return port.info.mtuCap if port.isEnd and port.number == 0 else port.info.neighborMTU


def rateOf(info: PortInfo) -> int:
    """
    @return: the code of the rate of a port's link.
    """
    return linkRate(info.linkWidthActive, info.linkSpeedActive, info.linkSpeedExtActive)
