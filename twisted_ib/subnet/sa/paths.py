"""
Paths between ports of a subnet (IBTA vol. 1 15.2.5.16).

There is one path from a port to another, the one that the forwarding tables have.  It can be used with a
lower MTU and rate than its links allow, so these are as high as a query's selectors leave them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from twisted_ib import limits
from twisted_ib.hca.mad.attributes.administration import PathRecord, Selector
from twisted_ib.hca.mad.attributes.port import GIGABITS
from twisted_ib.hca.wire.mad.administration import SAStatus
from twisted_ib.subnet.sa.request import RANKS, Refusal, choose, mtuOf, rateOf, sharedKey
from twisted_ib.subnet.sa.store import Query, bounded, shifts

if TYPE_CHECKING:
    from twisted_ib.subnet.sa.request import Request
    from twisted_ib.subnet.sm.model import Model, Port

#: PacketLifeTime of every path but that of a port to itself, as OpenSM's (C{OSM_DEFAULT_SUBNET_TIMEOUT}).
LIFE_TIME: Final = 18
#: Components that choose a quality of service, where there are several: here there is one, and it is granted.
_GRANTED: Final = ("serviceID", "flowLabel", "hopLimit", "tClass", "qosClass")
#: Values with selectors, but for the lifetime, which is no choice.
_CHOSEN: Final = ("mtu", "rate")
_PLACES: Final = shifts(PathRecord)


class Quality(NamedTuple):
    """
    @ivar mtu: the code of the lowest of its links; C{rate} likewise.
    @ivar reversible: whether there is a way back.
    """

    mtu: int
    rate: int
    reversible: bool


class Paths:
    """
    The paths of a model.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._qualities: dict[tuple[int, int], Quality | None] = {}

    def forget(self) -> None:
        """
        The model has changed.
        """
        self._qualities.clear()

    def find(self, request: Request) -> list[int]:
        """
        @return: the paths that a request selects.
        @raise Refusal: it names a GID that is not in the subnet, its component mask is not valid, or they are
            too many.
        """
        asked = request.record(PathRecord)
        chosen = [name for name in _CHOSEN if request.has(PathRecord, name, f"{name}Selector")]
        # NumbPath says how many are wanted at most, and one is what there is.
        ignored = ["numbPath", *(each for name in chosen for each in (name, f"{name}Selector"))]
        query = Query(PathRecord, request, ignored)
        sources = self._ends(request, "sgid", "slid", asked.sgid, asked.slid)
        destinations = self._ends(request, "dgid", "dlid", asked.dgid, asked.dlid)
        if len(sources) * len(destinations) > limits.SA_TABLE_PATHS:
            raise Refusal(SAStatus.NO_RESOURCES)
        made = self._made(request, asked, chosen, sources, destinations)
        return bounded(PathRecord, filter(query.matches, made))

    def _ends(self, request: Request, gidName: str, lidName: str, gid: int, lid: int) -> list[Port]:
        found: Iterable[Port | None]
        if request.has(PathRecord, gidName):
            port = self._model.byGID(gid)
            if port is None:
                raise Refusal(SAStatus.INVALID_GID)
            found = (port,)
        elif request.has(PathRecord, lidName):
            found = (self._model.lids.get(lid),)
        else:
            found = self._model.ends()
        return [port for port in found if port is not None and port.lid and request.sees(port)]

    def _made(
        self,
        request: Request,
        asked: PathRecord,
        chosen: list[str],
        sources: list[Port],
        destinations: list[Port],
    ) -> Iterator[int]:
        places = _PLACES
        common = {name: getattr(asked, name) for name in _GRANTED if request.has(PathRecord, name)}
        common.update(dict.fromkeys(("mtuSelector", "rateSelector"), Selector.EXACTLY))
        common["packetLifeTimeSelector"] = Selector.EXACTLY
        base = sum(value << places[name] for name, value in common.items())
        wanted = asked.pKey if request.has(PathRecord, "pKey") else None
        for source in sources:
            for destination in destinations:
                quality = self._quality(source, destination)
                key = sharedKey(source.keys, destination.keys, wanted)
                if quality is None or not key:
                    continue
                values = {"mtu": quality.mtu, "rate": quality.rate}
                for name in chosen:
                    how, code = getattr(asked, f"{name}Selector"), getattr(asked, name)
                    values[name] = choose(RANKS[name], values[name], how, code) or 0
                if 0 in values.values():
                    continue
                values.update(dgid=destination.gid, sgid=source.gid, dlid=destination.lid, slid=source.lid)
                values.update(reversible=quality.reversible, pKey=key)
                values["packetLifeTime"] = 0 if source is destination else LIFE_TIME
                yield base + sum(value << places[name] for name, value in values.items())

    def _quality(self, source: Port, destination: Port) -> Quality | None:
        key = source.guid, destination.guid
        if key not in self._qualities:
            if len(self._qualities) >= limits.SA_PATH_QUALITIES:
                self._qualities.clear()
            self._qualities[key] = self._measure(source, destination)
        return self._qualities[key]

    def _measure(self, source: Port, destination: Port) -> Quality | None:
        passed = self._model.path(source, destination)
        if passed is None:
            return None
        back = self._model.path(destination, source)
        return Quality(
            min(map(mtuOf, (source, *passed, destination))),
            min((rateOf(port.info) for port in passed or (source,)), key=GIGABITS.__getitem__),
            back is not None,
        )
