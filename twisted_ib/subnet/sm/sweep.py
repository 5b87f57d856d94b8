"""
Discovery: the nodes and links of a subnet, found by directed-route SMPs from the subnet manager's port on
(IBTA vol. 1 14.4.2).

Each port whose link is up is asked, through it, for the NodeInfo of whoever is there: its GUID says whether
that node is known already, its LocalPort where the link ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from attrs import evolve

from twisted_ib import limits
from twisted_ib.hca.base.port import PortState
from twisted_ib.hca.base.traits import NodeType
from twisted_ib.hca.mad.attributes.node import NodeDescription, NodeInfo, SMInfo, SwitchInfo
from twisted_ib.hca.mad.attributes.port import PARTITIONS_PER_BLOCK, Capability, PKeyTable, PortInfo
from twisted_ib.subnet.network.smi import MOST_HOPS
from twisted_ib.subnet.sm.model import Node, Port, Switch
from twisted_ib.subnet.sm.requests import IRequests, Request

_KINDS = frozenset((NodeType.CA, NodeType.SWITCH, NodeType.ROUTER))
#: 0xFF is no port (IBTA vol. 1 14.2.5.3).
_MOST_PORTS = 254


class Discovery:
    """
    One sweep.

    Answers that are not taken are counted: C{sm_invalid}, a NodeInfo that cannot be; C{sm_duplicate_guid}, a
    GUID that is elsewhere too; C{sm_too_many_nodes}, beyond L{limits.SUBNET_NODES}.

    @ivar nodes: by GUID, in the order in which they were found.
    @ivar own: the port that it began at, or port 0 of that switch.
    @ivar managers: other ports with a subnet manager, and its SMInfo.
    @ivar isComplete: whether all that was asked has answered.
    """

    def __init__(self, requests: IRequests, count: Callable[[str], object], manages: bool = True) -> None:
        """
        @param manages: whether it is a subnet manager's: it resets StateChange of switches, and asks for
            P_Key tables and other managers.
        """
        self._requests = requests
        self._count = count
        self._manages = manages
        self.nodes: dict[int, Node] = {}
        self.own: Port | None = None
        self.managers: list[tuple[Port, SMInfo]] = []
        self.isComplete = True
        #: Port GUID -> end port; of those that have answered their PortInfo.
        self._ends: dict[int, Port] = {}
        self._known: set[Port] = set()

    def begin(self) -> None:
        """
        Ask the own port, and all that is behind it.
        """
        self._requests.add([Request(b"", NodeInfo.ID, 0, partial(self._arrived, b"", None))])

    def finish(self) -> None:
        """
        All requests are answered or given up: remove what is known in part only.
        """
        for guid, node in list(self.nodes.items()):
            for number, port in list(node.ports.items()):
                if port.isEnd and port not in self._known:
                    _unlink(port)
                    del node.ports[number]
            if not any(node.ends()):
                for port in node.ports.values():
                    _unlink(port)
                del self.nodes[guid]
        if self.own is not None and self.own not in self._known:
            self.own = None

    def _ask(
        self, route: bytes, attribute: int, modifier: int, answered: Callable[[bytes], object]
    ) -> Request:
        def arrived(data: bytes | None) -> None:
            if data is None:
                self.isComplete = False
            else:
                answered(data)

        return Request(route, attribute, modifier, arrived)

    # -- nodes

    def _arrived(self, route: bytes, origin: Port | None, data: bytes | None) -> None:
        # The NodeInfo at the end of a route has come; C{origin} is the other end of its last link.
        info = None if data is None else NodeInfo.parse(data)
        if info is None or not _isValid(info):
            self.isComplete = False
            if info is not None:
                self._count("sm_invalid")
            return
        node = self.nodes.get(info.guid)
        if node is None:
            if len(self.nodes) >= limits.SUBNET_NODES:
                self._count("sm_too_many_nodes")
                return
            node = Node(info)
        elif (node.info.nodeType, node.info.numPorts) != (info.nodeType, info.numPorts):
            self._count("sm_duplicate_guid")
            return
        port = self._portOf(node, info, route)
        if port is None or (origin is not None and not _link(origin, port)):
            self._count("sm_duplicate_guid")
            return
        if origin is None:
            self.own = port.end
        if info.guid not in self.nodes:
            self.nodes[info.guid] = node
            self._begun(node, route)
        if node.switch is None:
            self._requests.add([self._portInfo(port, route)])

    def _portOf(self, node: Node, info: NodeInfo, route: bytes) -> Port | None:
        if info.nodeType == NodeType.SWITCH:
            if node.switch is None:
                node.switch = Switch(SwitchInfo())
                node.ports = {number: Port(node, number) for number in range(info.numPorts + 1)}
                node.ports[0].guid, node.ports[0].route = info.portGuid, route
            found, end = node.ports[info.localPort], node.ports[0]
        elif info.localPort in node.ports:
            return None
        else:
            found = end = Port(node, info.localPort, info.portGuid, route=route)
        if self._ends.setdefault(info.portGuid, end) is not end:
            return None
        node.ports[info.localPort] = found
        return found

    def _begun(self, node: Node, route: bytes) -> None:
        first = [self._ask(route, NodeDescription.ID, 0, partial(_describe, node))]
        if node.switch is not None:
            first.append(self._ask(route, SwitchInfo.ID, 0, partial(self._switchInfo, node, route)))
        self._requests.add(first)

    # -- switches

    def _switchInfo(self, node: Node, route: bytes, data: bytes) -> None:
        info = SwitchInfo.parse(data)
        assert node.switch is not None
        node.switch.info = info
        if info.stateChange and self._manages:
            # Before its ports are asked: what changes behind that is told again.
            clear = Request(route, SwitchInfo.ID, 0, partial(self._cleared, node, route), data)
            self._requests.add([clear])
        else:
            self._cleared(node, route, b"")

    def _cleared(self, node: Node, route: bytes, data: bytes | None) -> None:
        if data is None:
            self.isComplete = False
        elif data and node.switch is not None:
            node.switch.info = SwitchInfo.parse(data)
        self._requests.add(self._portInfo(port, route) for port in node.ports.values())

    # -- ports

    def _portInfo(self, port: Port, route: bytes) -> Request:
        return self._ask(route, PortInfo.ID, port.number, partial(self._portIs, port, route))

    def _portIs(self, port: Port, route: bytes, data: bytes) -> None:
        port.info = info = PortInfo.parse(data)
        self._known.add(port)
        if port.isEnd and self._manages:
            size = min(port.node.info.partCap, limits.PARTITIONS)
            port.keys = (0,) * size
            self._requests.add(self._partitions(port, size))
            if info.capMask & Capability.SM and port is not self.own:
                self._requests.add([self._ask(port.route, SMInfo.ID, 0, partial(self._manager, port))])
        isUp = PortState.INIT <= info.linkState <= PortState.ACTIVE
        # The port by which a node was reached has a peer: of CAs only the own one is left, as they forward
        # nothing.
        if isUp and port.number and port.peer is None and len(route) < MOST_HOPS:
            further = route + bytes((port.number,))
            self._requests.add([Request(further, NodeInfo.ID, 0, partial(self._arrived, further, port))])

    def _partitions(self, port: Port, size: int) -> Iterator[Request]:
        for block in range(-(-size // PARTITIONS_PER_BLOCK)):
            yield self._ask(port.route, PKeyTable.ID, block, partial(_partition, port, block))

    def _manager(self, port: Port, data: bytes) -> None:
        # The GUID is that of the port: another one would be a manager that is not there.
        self.managers.append((port, evolve(SMInfo.parse(data), smInfoGuid=port.guid)))


def _isValid(info: NodeInfo) -> bool:
    least = 0 if info.nodeType == NodeType.SWITCH else 1
    return (
        info.nodeType in _KINDS
        and 0 not in (info.guid, info.portGuid)
        and least <= info.localPort <= info.numPorts <= _MOST_PORTS
    )


def _link(one: Port, other: Port) -> bool:
    if one.peer is other:
        # Both ends have asked.
        return True
    if one.peer is not None or other.peer is not None or one is other:
        return False
    one.peer, other.peer = other, one
    return True


def _unlink(port: Port) -> None:
    if port.peer is not None:
        port.peer.peer = None
        port.peer = None


def _describe(node: Node, data: bytes) -> None:
    node.description = NodeDescription.parse(data)


def _partition(port: Port, block: int, data: bytes) -> None:
    start = block * PARTITIONS_PER_BLOCK
    keys = (*port.keys[:start], *PKeyTable.parse(data).keys, *port.keys[start + PARTITIONS_PER_BLOCK :])
    port.keys = keys[: len(port.keys)]
