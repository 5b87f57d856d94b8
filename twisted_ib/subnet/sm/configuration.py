"""
The settings of the subnet manager: PortInfo, P_Keys and forwarding tables, where they are not yet as they
should be (IBTA vol. 1 14.4.3, 14.4.4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final

from attrs import evolve

from twisted_ib.hca.base.port import PortState
from twisted_ib.hca.mad.attributes.node import (
    LIDS_PER_BLOCK,
    MULTICAST_LIDS_PER_BLOCK,
    PORTS_PER_MASK,
    LinearForwardingTable,
    MulticastForwardingTable,
    SwitchInfo,
)
from twisted_ib.hca.mad.attributes.port import PARTITIONS_PER_BLOCK, Capability, PKeyTable, PortInfo
from twisted_ib.subnet.network.switch import FIRST_MULTICAST_LID, NO_PORT
from twisted_ib.subnet.sm.model import Node, Port
from twisted_ib.subnet.sm.requests import Request

#: SubnetTimeOut, and SwitchInfo's LifeTimeValue: 1.07 seconds, as OpenSM's.
_TIMEOUT: Final = 18
_MASK: Final = (1 << PORTS_PER_MASK) - 1
#: Of MulticastForwardingTable's attribute modifier: the block, and where the ports of the mask begin.
_BLOCK: Final = 0x1FF
_POSITION_SHIFT: Final = 28
#: Fields of a Set of PortInfo that leave the port as it is (IBTA vol. 1 14.2.5.6).
_NO_CHANGE: Final = {
    "linkState": 0,
    "physLinkState": 0,
    "linkDownDefState": 0,
    "linkWidthEnabled": 0,
    "linkSpeedEnabled": 0,
    "clientReregister": 0,
}


class Configuration:
    """
    Makes the requests of one subnet manager, and remembers what it has written to switches and whose clients
    it has asked to register again.

    @ivar isComplete: whether all of them had the effect that they were to have.
    """

    def __init__(self) -> None:
        self.isComplete = True
        #: Node GUID -> (attribute, modifier) -> the block that the switch has.
        self._written: dict[int, dict[tuple[int, int], bytes]] = {}
        #: GUIDs of the ports that were found by each sweep since their clients were asked.
        self._told: set[int] = set()

    def forget(self) -> None:
        """
        Another subnet manager may have written: all tables are written again, and all clients are asked to
        register with this one.
        """
        self._written.clear()
        self._told.clear()

    def retain(self, nodes: dict[int, Node], master: int) -> None:
        """
        A sweep has found these nodes.  Tables are written again to a switch that was gone or reset; clients
        of a port that was gone, its own link may have been Active all the time, are asked to register.

        @param master: the LID that the ports of this manager's subnet know it by.
        """
        for guid in list(self._written):
            node = nodes.get(guid)
            if node is None or node.ports[0].info.smLID != master:
                del self._written[guid]
        self._told &= {port.guid for node in nodes.values() for port in node.ends()}

    # -- ports

    def _setPort(self, port: Port, isDone: Callable[[PortInfo], bool], **fields: Any) -> Request:
        def answered(data: bytes | None) -> None:
            if data is not None:
                port.info = PortInfo.parse(data)
            if data is None or not isDone(port.info):
                self.isComplete = False

        # M_Keys are not used: one that an agent has sent is not to become its own.
        wanted = evolve(port.info, mkey=0, protectBits=0, **{**_NO_CHANGE, **fields})
        return Request(port.end.route, PortInfo.ID, port.number, answered, wanted.pack())

    def _setEnd(self, port: Port, reregister: bool, fields: dict[str, int]) -> Request:
        def isDone(info: PortInfo) -> bool:
            # There was an answer: the clients were told.
            self._told.add(port.guid)
            return _has(fields, info)

        return self._setPort(port, isDone, **fields, clientReregister=reregister)

    def ends(
        self, ports: Iterable[Port], lids: dict[int, int], master: int, prefix: int
    ) -> Iterator[Request]:
        """
        Give end ports their LIDs, and all ports the MTU of their links.

        @param lids: port GUID -> LID.
        @param master: the subnet manager's LID.
        @param prefix: the subnet prefix.
        """
        for port in ports:
            peer = port.peer
            mtu = port.info.neighborMTU if peer is None else min(port.info.mtuCap, peer.info.mtuCap)
            fields: dict[str, int] = {"neighborMTU": mtu}
            if port.isEnd:
                if port.guid not in lids:
                    self.isComplete = False
                    continue
                fields.update(lid=lids[port.guid], lmc=0, smLID=master, smSL=0)
                fields.update(gidPrefix=prefix, subnetTimeout=_TIMEOUT)
                isNew = port.guid not in self._told or port.info.linkState == PortState.INIT
                # IBTA vol. 1 14.4.11: only a port that says so can be asked.
                reregister = isNew and bool(port.info.capMask & Capability.CLIENT_REREGISTRATION)
                if reregister or not _has(fields, port.info):
                    yield self._setEnd(port, reregister, fields)
                else:
                    self._told.add(port.guid)
            elif peer is not None and not _has(fields, port.info):
                yield self._setPort(port, partial(_has, fields), **fields)

    def states(self, ports: Iterable[Port], before: PortState, after: PortState) -> Iterator[Request]:
        """
        Bring ports whose link is up from one state to the next.
        """
        for port in ports:
            if port.peer is not None and port.info.linkState == before and port.lid:
                yield self._setPort(port, partial(_has, {"linkState": after}), linkState=after)

    def partitions(self, port: Port, keys: tuple[int, ...]) -> Iterator[Request]:
        """
        Give an end port its P_Keys.

        @param keys: as many as its table has.
        """
        for start in range(0, len(keys), PARTITIONS_PER_BLOCK):
            block = keys[start : start + PARTITIONS_PER_BLOCK]
            if block != port.keys[start : start + PARTITIONS_PER_BLOCK]:
                data = PKeyTable(keys=(*block, *(0,) * (PARTITIONS_PER_BLOCK - len(block)))).pack()
                answered = partial(self._partitioned, port, start)
                yield Request(port.route, PKeyTable.ID, start // PARTITIONS_PER_BLOCK, answered, data)

    def _partitioned(self, port: Port, start: int, data: bytes | None) -> None:
        if data is None:
            self.isComplete = False
            return
        keys = (*port.keys[:start], *PKeyTable.parse(data).keys, *port.keys[start + PARTITIONS_PER_BLOCK :])
        port.keys = keys[: len(port.keys)]

    # -- switches

    def linear(self, node: Node, table: bytes) -> Iterator[Request]:
        """
        Write the linear forwarding table of a switch.

        @param table: the port of each LID.
        """
        switch, route = node.switch, node.ports[0].route
        assert switch is not None
        switch.linear = table
        written = self._written.setdefault(node.guid, {})
        # Blocks that are no longer used had ways.
        blocks = {modifier + 1 for attribute, modifier in written if attribute == LinearForwardingTable.ID}
        size = max(-(-len(table) // LIDS_PER_BLOCK), *blocks, 0)
        padded = table.ljust(size * LIDS_PER_BLOCK, bytes((NO_PORT,)))
        for block in range(size):
            data = padded[block * LIDS_PER_BLOCK : (block + 1) * LIDS_PER_BLOCK]
            yield from self._block(node, LinearForwardingTable.ID, block, data)
        wanted = evolve(switch.info, linearFdbTop=max(len(table) - 1, 0), lifeTime=_TIMEOUT, stateChange=0)
        if wanted != evolve(switch.info, stateChange=0):
            yield Request(route, SwitchInfo.ID, 0, partial(self._topped, node), wanted.pack())

    def _topped(self, node: Node, data: bytes | None) -> None:
        if data is None or node.switch is None:
            self.isComplete = False
        else:
            node.switch.info = SwitchInfo.parse(data)

    def multicast(self, node: Node, mlids: Iterable[int]) -> Iterator[Request]:
        """
        Write what has changed in the multicast forwarding table of a switch.

        @param mlids: the multicast LIDs whose entries in L{Switch.multicast} may have.
        """
        switch = node.switch
        assert switch is not None
        written = self._written.setdefault(node.guid, {})
        blocks = {(mlid - FIRST_MULTICAST_LID) // MULTICAST_LIDS_PER_BLOCK for mlid in mlids}
        blocks |= {
            modifier & _BLOCK
            for (attribute, modifier), data in written.items()
            if attribute == MulticastForwardingTable.ID and not data
        }
        for block in sorted(blocks):
            first = FIRST_MULTICAST_LID + block * MULTICAST_LIDS_PER_BLOCK
            masks = [switch.multicast.get(first + index, 0) for index in range(MULTICAST_LIDS_PER_BLOCK)]
            for position in range(-(-len(node.ports) // PORTS_PER_MASK)):
                shift = position * PORTS_PER_MASK
                data = MulticastForwardingTable(masks=tuple(mask >> shift & _MASK for mask in masks)).pack()
                yield from self._block(
                    node, MulticastForwardingTable.ID, position << _POSITION_SHIFT | block, data
                )

    def _block(self, node: Node, attribute: int, modifier: int, data: bytes) -> Iterator[Request]:
        written = self._written.setdefault(node.guid, {})
        key = attribute, modifier
        if written.get(key) != data:
            # Until the switch answers, nobody knows.
            written[key] = b""
            answered = partial(self._wrote, node.guid, key, data)
            yield Request(node.ports[0].route, attribute, modifier, answered, data)

    def _wrote(self, guid: int, key: tuple[int, int], wanted: bytes, data: bytes | None) -> None:
        if data is None:
            self.isComplete = False
        else:
            self._written.setdefault(guid, {})[key] = wanted


def _has(fields: dict[str, int], info: PortInfo) -> bool:
    return all(getattr(info, name) == value for name, value in fields.items())
