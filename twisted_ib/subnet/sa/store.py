"""
The records that a subnet is described by, and which of them a query selects (IBTA vol. 1 15.4.4, 15.2.5).

A record is a number of as many octets as it has: a query selects those that have its bits where its component
mask says, whatever record it is.  Records are made of the model when they are asked for, and kept until it
changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from attrs import evolve

from twisted_ib.hca.mad.attributes.administration import (
    GUIDInfoRecord,
    LinearForwardingTableRecord,
    LinkRecord,
    MulticastForwardingTableRecord,
    NodeRecord,
    PKeyTableRecord,
    PortInfoRecord,
    SLtoVLMappingTableRecord,
    SMInfoRecord,
    SwitchInfoRecord,
    VLArbitrationTableRecord,
    stride,
)
from twisted_ib.hca.mad.attributes.layouts import Attribute, layoutOf
from twisted_ib.hca.mad.attributes.node import (
    LIDS_PER_BLOCK,
    MULTICAST_LIDS_PER_BLOCK,
    PORTS_PER_MASK,
    LinearForwardingTable,
    MulticastForwardingTable,
)
from twisted_ib.hca.mad.attributes.port import (
    GUIDS_PER_BLOCK,
    PARTITIONS_PER_BLOCK,
    GUIDInfo,
    PKeyTable,
)
from twisted_ib.hca.mad.rmpp.receiver import RMPP_TABLE_BYTES
from twisted_ib.hca.wire.mad.administration import SAStatus
from twisted_ib.subnet.network.switch import FIRST_MULTICAST_LID, NO_PORT
from twisted_ib.subnet.sa.request import RANKS, Refusal, meets

if TYPE_CHECKING:
    from twisted_ib.subnet.sa.request import Request
    from twisted_ib.subnet.sm.model import Model, Port, Switch

#: The bit of PortInfoRecord's attribute modifier that asks for ports with all bits of a CapabilityMask (IBTA
#: vol. 1 15.2.5.3).
CAPABILITIES_MATCH: Final = 1 << 31
#: Tables of VLArbitrationTable: 1 and 2 of low priority, 3 and 4 of high.
_ARBITRATION_BLOCKS: Final = range(1, 5)
_SELECTOR: Final = "Selector"
#: All records of ports begin with a LID.
_LID: Final = 1
#: IBTA vol. 1 15.2.5.8, 15.2.5.9: ports of tables that a CA or router has once.
_PORTS: Final[dict[type[Attribute], tuple[str, ...]]] = {
    SLtoVLMappingTableRecord: ("inputPort", "outputPort"),
    VLArbitrationTableRecord: ("outputPort",),
}


class _Selection(NamedTuple):
    """
    A value of a record with a selector.
    """

    name: str
    selector: int
    shift: int
    mask: int
    components: int


# One for each record.
_SELECTIONS: Final[dict[type[Attribute], tuple[tuple[_Selection, _Selection], ...]]] = {}


def _selectionsOf(kind: type[Attribute]) -> tuple[tuple[_Selection, _Selection], ...]:
    found = _SELECTIONS.get(kind)
    if found is not None:
        return found
    layout = layoutOf(kind)
    places = {
        each.name: _Selection(
            *(each.name, 0, layout.size * 8 - each.offset - each.width, (1 << each.width) - 1),
            layout.bits.get(each.name, 0),
        )
        for each in layout.fields
    }
    found = _SELECTIONS[kind] = tuple(
        (places[name], places[name.removesuffix(_SELECTOR)]) for name in places if name.endswith(_SELECTOR)
    )
    return found


def shifts(kind: type[Attribute]) -> Mapping[str, int]:
    """
    @return: how far each number of a record is shifted to its place.
    """
    layout = layoutOf(kind)
    return {
        each.name: layout.size * 8 - each.offset - each.width for each in layout.fields if each.kind is int
    }


class Query:
    """
    Which records of a kind are selected.
    """

    __slots__ = ("_bits", "_mask", "_selections")

    def __init__(self, kind: type[Attribute], request: Request, ignored: Iterable[str] = ()) -> None:
        """
        @param ignored: names of fields that are not compared.
        @raise Refusal: the component mask has bits beyond the record.
        """
        layout = layoutOf(kind)
        components = request.header.componentMask
        if layout.selected(components) is None:
            raise Refusal(SAStatus.REQUEST_INVALID)
        asked = int.from_bytes(request.data[: layout.size], "big")
        for name in ignored:
            components &= ~layout.bits[name]
        self._selections: list[tuple[Mapping[int, float], int, int, int, int]] = []
        for selector, value in _selectionsOf(kind):
            if not components & selector.components:
                continue
            components &= ~selector.components
            if components & value.components:
                components &= ~value.components
                how = asked >> selector.shift & selector.mask
                code = asked >> value.shift & value.mask
                self._selections.append((RANKS[value.name], value.shift, value.mask, how, code))
        self._mask = layout.selected(components) or 0
        if kind is PortInfoRecord and request.mad.modifier & CAPABILITIES_MATCH:
            whole = layout.selected(components & layout.bits["capMask"]) or 0
            self._mask &= ~whole | asked
        self._bits = asked & self._mask

    def matches(self, record: int) -> bool:
        """
        @return: whether a record is selected.
        """
        return record & self._mask == self._bits and all(
            meets(ranks, record >> shift & mask, how, code)
            for ranks, shift, mask, how, code in self._selections
        )


def octetsOf(kind: type[Attribute], records: Iterable[int]) -> bytes:
    """
    @return: the records of a table, each at a multiple of 8 octets.
    """
    size, distance = kind.OCTETS, stride(kind) * 8
    return b"".join([record.to_bytes(size, "big").ljust(distance, b"\0") for record in records])


def bounded(kind: type[Attribute], records: Iterable[int]) -> list[int]:
    """
    @return: all records.
    @raise Refusal: they are more than a table may have.
    """
    most = RMPP_TABLE_BYTES // (stride(kind) * 8)
    found: list[int] = []
    for record in records:
        if len(found) >= most:
            raise Refusal(SAStatus.NO_RESOURCES)
        found.append(record)
    return found


class Store:
    """
    The records of a model's ports.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._tables: dict[type[Attribute], dict[int, list[int]]] = {}

    def forget(self) -> None:
        """
        The model has changed.
        """
        self._tables.clear()

    def find(self, kind: type[Attribute], request: Request) -> list[int]:
        """
        @param kind: one of L{KINDS}.
        @return: the records that a request selects.
        @raise Refusal: it may not have them, its component mask is not valid, or they are too many.
        """
        if kind is PKeyTableRecord and not request.isTrusted:
            # IBTA vol. 1 15.4.1.2.
            raise Refusal(SAStatus.REQUEST_INVALID)
        ports: Iterable[Port | None] = self._model.ends()
        ignored: tuple[str, ...] = ()
        if request.header.componentMask & _LID:
            port = self._model.lids.get(int.from_bytes(request.data[:2], "big"))
            ports = (port,)
            if port is not None and port.node.switch is None:
                ignored = _PORTS.get(kind, ())
        query = Query(kind, request, ignored)
        return bounded(
            kind,
            (
                record
                for port in ports
                if port is not None and port.lid and request.sees(port)
                for record in self._of(kind, port)
                if query.matches(record)
            ),
        )

    def _of(self, kind: type[Attribute], port: Port) -> list[int]:
        make, isKept = KINDS[kind]
        table = self._tables.setdefault(kind, {})
        found = table.get(port.lid)
        if found is None:
            found = list(map(_number, make(self._model, port)))
            if isKept:
                table[port.lid] = found
        return found


def _number(record: Attribute | int) -> int:
    return record if isinstance(record, int) else int.from_bytes(record.pack(), "big")


# -- the records of one end port; of a switch those of all its ports are with port 0


def _nodes(model: Model, port: Port) -> Iterator[Attribute]:
    node = port.node
    info = evolve(node.info, portGuid=port.guid, localPort=port.number)
    yield NodeRecord(lid=port.lid, nodeInfo=info, nodeDescription=node.description)


def _ports(model: Model, port: Port) -> Iterator[Attribute]:
    for each in _all(port):
        yield PortInfoRecord(endportLID=port.lid, portNum=each.number, portInfo=each.info)


def _all(port: Port) -> Iterable[Port]:
    return port.node.ports.values() if port.node.switch is not None else (port,)


def _mappings(model: Model, port: Port) -> Iterator[int]:
    # IBTA vol. 1 15.2.5.8: those of a CA have no numbers.
    numbers = (0,) if port.node.switch is None else tuple(port.node.ports)
    places = shifts(SLtoVLMappingTableRecord)
    lid = port.lid << places["lid"]
    for output in numbers:
        for source in numbers:
            yield lid | source << places["inputPort"] | output << places["outputPort"]


def _arbitration(model: Model, port: Port) -> Iterator[int]:
    places = shifts(VLArbitrationTableRecord)
    lid = port.lid << places["lid"]
    for each in _all(port):
        for block in _ARBITRATION_BLOCKS:
            yield lid | each.number << places["outputPort"] | block << places["blockNum"]


def _switches(model: Model, port: Port) -> Iterator[Attribute]:
    switch = port.node.switch
    if switch is not None:
        yield SwitchInfoRecord(lid=port.lid, switchInfo=switch.info)


def _linear(model: Model, port: Port) -> Iterator[Attribute]:
    switch = port.node.switch
    table = b"" if switch is None else switch.linear
    for block, start in enumerate(range(0, len(table), LIDS_PER_BLOCK)):
        ports = tuple(table[start : start + LIDS_PER_BLOCK])
        ports += (NO_PORT,) * (LIDS_PER_BLOCK - len(ports))
        yield LinearForwardingTableRecord(
            lid=port.lid, blockNum=block, block=LinearForwardingTable(ports=ports)
        )


def _multicast(model: Model, port: Port) -> Iterator[Attribute]:
    switch = port.node.switch
    if switch is None or not switch.multicast:
        return
    blocks = (max(switch.multicast) - FIRST_MULTICAST_LID) // MULTICAST_LIDS_PER_BLOCK + 1
    for block in range(blocks):
        for position in range(max(port.node.ports) // PORTS_PER_MASK + 1):
            masks = MulticastForwardingTable(masks=_masks(switch, block, position))
            yield MulticastForwardingTableRecord(lid=port.lid, position=position, blockNum=block, block=masks)


def _masks(switch: Switch, block: int, position: int) -> tuple[int, ...]:
    first = FIRST_MULTICAST_LID + block * MULTICAST_LIDS_PER_BLOCK
    return tuple(
        switch.multicast.get(lid, 0) >> position * PORTS_PER_MASK & 0xFFFF
        for lid in range(first, first + MULTICAST_LIDS_PER_BLOCK)
    )


def _managers(model: Model, port: Port) -> Iterator[Attribute]:
    found = model.managers.get(port.guid)
    if found is not None:
        yield SMInfoRecord(lid=port.lid, smInfo=found)


def _links(model: Model, port: Port) -> Iterator[Attribute]:
    for each in _all(port):
        if each.peer is not None:
            ends = {"fromPort": each.number, "toLID": each.peer.lid, "toPort": each.peer.number}
            yield LinkRecord(fromLID=port.lid, **ends)


def _guids(model: Model, port: Port) -> Iterator[Attribute]:
    # The manager sets no others.
    own = GUIDInfo(guids=(port.guid, *(0,) * (GUIDS_PER_BLOCK - 1)))
    for block in range(-(-port.info.guidCap // GUIDS_PER_BLOCK)):
        yield GUIDInfoRecord(lid=port.lid, blockNum=block, guidInfo=GUIDInfo() if block else own)


def _keys(model: Model, port: Port) -> Iterator[Attribute]:
    keys = port.keys
    for block, start in enumerate(range(0, len(keys), PARTITIONS_PER_BLOCK)):
        part = keys[start : start + PARTITIONS_PER_BLOCK]
        part += (0,) * (PARTITIONS_PER_BLOCK - len(part))
        yield PKeyTableRecord(lid=port.lid, blockNum=block, portNum=port.number, block=PKeyTable(keys=part))


_Make = Callable[[Any, Any], Iterator[Attribute | int]]
#: The functions that make the records of an end port, and whether they are kept until the next sweep.
KINDS: Final[dict[type[Attribute], tuple[_Make, bool]]] = {
    NodeRecord: (_nodes, True),
    PortInfoRecord: (_ports, True),
    # The manager leaves these two as they are after power on and does not read them: as OpenSM without QoS,
    # the records have zeros.  There are as many as pairs of ports, so they are made as numbers.
    SLtoVLMappingTableRecord: (_mappings, False),
    VLArbitrationTableRecord: (_arbitration, False),
    SwitchInfoRecord: (_switches, True),
    LinearForwardingTableRecord: (_linear, True),
    MulticastForwardingTableRecord: (_multicast, False),
    SMInfoRecord: (_managers, False),
    LinkRecord: (_links, True),
    GUIDInfoRecord: (_guids, True),
    PKeyTableRecord: (_keys, True),
}
