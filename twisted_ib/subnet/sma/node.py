"""
An SMP that an agent answers.

Attributes of a node, and of a switch (IBTA vol. 1 14.2.5.2 to 14.2.5.4, 14.2.5.10 to 14.2.5.12).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from attrs import define, field

from twisted_ib.hca.mad.attributes.layouts import Attribute
from twisted_ib.hca.mad.attributes.node import (
    LIDS_PER_BLOCK,
    MULTICAST_LIDS_PER_BLOCK,
    PORTS_PER_MASK,
    LinearForwardingTable,
    MulticastForwardingTable,
    NodeDescription,
    NodeInfo,
    SwitchInfo,
    VendorDiag,
)
from twisted_ib.hca.wire.mad.mad import INVALID_ATTRIBUTE_VALUE
from twisted_ib.subnet.network.graph import PARTITION_ENTRIES, Change, Node, Port
from twisted_ib.subnet.network.switch import Switch

#: Bits of a port number.
PORT_NUMBER: Final = 0xFF


@define
class Request:
    """
    @ivar arrival: the port that it came in by, and C{end} the one that has the LID.
    @ivar key: its M_Key.
    @ivar isSet: whether it is a Set.
    @ivar data: the octets of its attribute.
    @ivar status: of the response.
    @ivar rerouted: whether a forwarding table changed.
    @ivar reregister: whether clients of the port are asked to register again.
    """

    arrival: Port
    end: Port
    modifier: int
    key: int
    isSet: bool
    data: bytes
    status: int = 0
    rerouted: bool = False
    reregister: bool = False
    changes: list[Change] = field(factory=list)

    @property
    def node(self) -> Node:
        """
        The node that it is for.
        """
        return self.arrival.node

    @property
    def switch(self) -> Switch:
        """
        The tables of a switch, for attributes that other nodes do not have.
        """
        switch = self.node.switch
        assert switch is not None
        return switch

    def invalid(self) -> None:
        """
        Its modifier, or a field of its attribute, has an invalid value.
        """
        self.status = INVALID_ATTRIBUTE_VALUE

    def port(self, number: int) -> Port | None:
        """
        The port with a table.

        @param number: of a switch's port; a CA has one table, of the port of arrival.
        """
        return self.node.port(number) if self.node.switch is not None else self.arrival

    def changed(self, port: Port) -> None:
        """
        Note a change of a port.
        """
        self.changes.append(Change(port))


class Row(NamedTuple):
    """
    An attribute.

    @ivar get: the attribute as it is, or L{None} if the modifier is out of range.
    @ivar set: writes it; then it is got.
    @ivar onlySwitch: whether other nodes do not have it.
    """

    get: Callable[[Request], Attribute | None]
    set: Callable[[Request], None] | None = None
    onlySwitch: bool = False


def _getNodeInfo(request: Request) -> Attribute | None:
    node, end = request.node, request.end
    return NodeInfo(
        nodeType=node.kind,
        numPorts=len(node.ports) - 1,
        systemGuid=node.systemGUID,
        guid=node.guid,
        portGuid=end.guid,
        partCap=len(end.partitions),
        devId=node.deviceID,
        revision=node.revision,
        localPort=request.arrival.number,
        vendorId=node.vendorID,
    )


def _getNodeDescription(request: Request) -> Attribute | None:
    return NodeDescription(description=request.node.description.encode(errors="replace")[:64])


def _getVendorDiag(request: Request) -> Attribute | None:
    # There is nothing to diagnose, and so no second block of it.
    return None if request.modifier else VendorDiag()


def _getSwitchInfo(request: Request) -> Attribute | None:
    switch = request.switch
    return SwitchInfo(
        linearFdbCap=len(switch.linear),
        mcastFdbCap=len(switch.multicast),
        linearFdbTop=switch.top,
        defPort=switch.defaultPort,
        defMcastPrimPort=switch.defaultPrimary,
        defMcastNotPrimPort=switch.defaultNotPrimary,
        lifeTime=switch.lifeTime,
        stateChange=switch.stateChange,
        partEnforceCap=PARTITION_ENTRIES,
        filterRawInbound=1,
        filterRawOutbound=1,
        multicastFDBTop=switch.multicastTop,
    )


def _setSwitchInfo(request: Request) -> None:
    switch, info = request.switch, SwitchInfo.parse(request.data)
    # As of PortInfo: what is refused has changed nothing.
    if info.linearFdbTop >= len(switch.linear):
        request.invalid()
        return
    request.rerouted = info.linearFdbTop != switch.top
    switch.top = info.linearFdbTop
    new = info.defMcastPrimPort, info.defMcastNotPrimPort, info.multicastFDBTop
    request.rerouted |= new != (switch.defaultPrimary, switch.defaultNotPrimary, switch.multicastTop)
    switch.defaultPrimary, switch.defaultNotPrimary, switch.multicastTop = new
    switch.defaultPort, switch.lifeTime = info.defPort, info.lifeTime
    # IBTA vol. 1 14.2.5.4: writing 1 clears it.
    if info.stateChange:
        switch.stateChange = False


def _getLinear(request: Request) -> Attribute | None:
    table, start = request.switch.linear, request.modifier * LIDS_PER_BLOCK
    return (
        None
        if start >= len(table)
        else LinearForwardingTable.parse(bytes(table[start : start + LIDS_PER_BLOCK]))
    )


def _setLinear(request: Request) -> None:
    table, start = request.switch.linear, request.modifier * LIDS_PER_BLOCK
    if start >= len(table):
        request.invalid()
        return
    block = slice(start, start + LIDS_PER_BLOCK)
    request.rerouted = table[block] != request.data
    table[block] = request.data


def _masksOf(request: Request) -> tuple[int, int] | None:
    # Bits 31 to 28 are 16 ports, bits 8 to 0 are 32 multicast LIDs.
    shift = (request.modifier >> 28) * PORTS_PER_MASK
    start = (request.modifier & 0x1FF) * MULTICAST_LIDS_PER_BLOCK
    isThere = shift < len(request.node.ports) and start < len(request.switch.multicast)
    return (start, shift) if isThere else None


def _getMulticast(request: Request) -> Attribute | None:
    place = _masksOf(request)
    if place is None:
        return None
    start, shift = place
    block = request.switch.multicast[start : start + MULTICAST_LIDS_PER_BLOCK]
    return MulticastForwardingTable(masks=tuple(ports >> shift & 0xFFFF for ports in block))


def _setMulticast(request: Request) -> None:
    place = _masksOf(request)
    if place is None:
        request.invalid()
        return
    start, shift = place
    table, present = request.switch.multicast, (1 << len(request.node.ports)) - 1
    for index, mask in enumerate(MulticastForwardingTable.parse(request.data).masks, start):
        ports = (table[index] & ~(0xFFFF << shift) | mask << shift) & present
        request.rerouted |= ports != table[index]
        table[index] = ports


ROWS: Final = {
    NodeDescription.ID: Row(_getNodeDescription),
    NodeInfo.ID: Row(_getNodeInfo),
    VendorDiag.ID: Row(_getVendorDiag),
    SwitchInfo.ID: Row(_getSwitchInfo, _setSwitchInfo, onlySwitch=True),
    LinearForwardingTable.ID: Row(_getLinear, _setLinear, onlySwitch=True),
    MulticastForwardingTable.ID: Row(_getMulticast, _setMulticast, onlySwitch=True),
}
