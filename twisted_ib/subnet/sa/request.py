"""
A request to subnet administration, and its refusal; the selectors of a record: of MTUs, rates and packet
lifetimes (IBTA vol. 1 15.2.5.16).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeVar, cast

from attrs import define

from twisted_ib.hca.base.partition import matches
from twisted_ib.hca.mad.attributes.administration import Selector
from twisted_ib.hca.mad.attributes.layouts import Attribute, layoutOf
from twisted_ib.hca.mad.attributes.port import GIGABITS, linkRate
from twisted_ib.hca.wire.mad.administration import SAStatus
from twisted_ib.hca.wire.mad.classes import AdministrationHeader

if TYPE_CHECKING:
    from twisted_ib.hca.mad.attributes.port import PortInfo
    from twisted_ib.hca.wire.mad.mad import Mad
    from twisted_ib.subnet.network.smi import Packet
    from twisted_ib.subnet.sm.model import Port

#: By the name of the field: code -> how much it stands for.  Other codes are reserved.
RANKS: Final[dict[str, Mapping[int, float]]] = {
    "mtu": {code: 128 << code for code in range(1, 6)},
    "rate": GIGABITS,
    "packetLifeTime": {code: code for code in range(64)},
}

_Record = TypeVar("_Record", bound=Attribute)
#: Pairs of P_Key tables that are compared once; most ports of a subnet have the same.
_COMPARED = 4096


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


class Refusal(Exception):
    """
    A request is answered with a status other than success.
    """

    def __init__(self, status: SAStatus) -> None:
        super().__init__(status)
        self.status = status


@lru_cache(_COMPARED)
def sharedKey(one: tuple[int, ...], other: tuple[int, ...], wanted: int | None = None) -> int:
    """
    @param one: a P_Key table, C{other} likewise.
    @param wanted: a P_Key that is to match both.
    @return: the P_Key by which they reach each other: C{wanted}, or the first of C{one}; 0 if they do not.
    """
    for key in one:
        # IBTA vol. 1 10.9.3: two limited members do not reach each other.
        if any(matches(key, each) and (wanted is None or matches(each, wanted)) for each in other):
            if wanted is None:
                return key
            if matches(key, wanted):
                return wanted
    return 0


@define(eq=False)
class Request:
    """
    A request of a port of the subnet.

    @ivar packet: the one that it came in.
    @ivar mad: its fields.
    @ivar port: the requester's.
    @ivar isTrusted: whether it has the SM_Key (IBTA vol. 1 15.4.1).
    """

    packet: Packet
    mad: Mad
    port: Port
    isTrusted: bool

    @property
    def header(self) -> AdministrationHeader:
        """
        Its class header.
        """
        return cast("AdministrationHeader", self.mad.header)

    @property
    def data(self) -> bytes:
        """
        The octets of its record, and those behind it.
        """
        return cast("bytes", self.mad.data)

    def record(self, kind: type[_Record]) -> _Record:
        """
        @return: its record.
        @raise Refusal: its component mask has bits beyond the record.
        """
        if layoutOf(kind).selected(self.header.componentMask) is None:
            raise Refusal(SAStatus.REQUEST_INVALID)
        return kind.parse(self.data)

    def has(self, kind: type[Attribute], *names: str) -> bool:
        """
        @return: whether its component mask has all these fields of a record.
        """
        bits = layoutOf(kind).bits
        mask = self.header.componentMask
        return all(mask & bits[name] == bits[name] for name in names)

    def sees(self, port: Port) -> bool:
        """
        @return: whether the requester may be told of a port: its own, or one with which it shares a partition
            (IBTA vol. 1 15.4.1.2).
        """
        return self.isTrusted or port is self.port or bool(sharedKey(self.port.keys, port.keys))
