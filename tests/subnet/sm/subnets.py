"""
Subnets for tests of their managers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from attrs import evolve
from twisted.internet.task import Clock

from twisted_ib.hca.base.port import PortState
from twisted_ib.hca.base.traits import NodeType
from twisted_ib.hca.mad.attributes.node import NodeInfo, SwitchInfo
from twisted_ib.hca.mad.attributes.port import PortInfo
from twisted_ib.hca.wire.mad.mad import GET_RESPONSE, decodeMAD
from twisted_ib.subnet.hosting.hosted import HostedSubnet
from twisted_ib.subnet.network.smi import Packet
from twisted_ib.subnet.network.topology import Topology, parse
from twisted_ib.subnet.sm.manager import Manager, Options
from twisted_ib.subnet.sm.model import Node, Port, Switch


class Managed:
    """
    A subnet with its own manager, and with a clock that stands still until it is told to.
    """

    def __init__(self, topology: str, options: Options | None = None) -> None:
        """
        @param topology: in the language of ibsim.
        @param options: C{None} for a subnet whose manager has not begun.
        """
        self.lost: Counter[str] = Counter()
        self.clock = Clock()
        self.subnet = HostedSubnet(parse(topology, "test"), self.count, self.clock)
        if options is not None:
            self.subnet.manage(options)
            self.settle()

    def count(self, name: str) -> None:
        """
        Count a loss.
        """
        self.lost[name] += 1

    @property
    def manager(self) -> Manager:
        """
        The manager.
        """
        assert self.subnet.manager is not None
        return self.subnet.manager.manager

    def settle(self, seconds: float = 0.0) -> None:
        """
        Let everything move, and time pass from each timer to the next.
        """
        end = self.clock.seconds() + seconds
        while times := [call.getTime() for call in self.clock.getDelayedCalls() if call.getTime() <= end]:
            self.clock.advance(max(0.0, min(times) - self.clock.seconds()))
        self.clock.advance(end - self.clock.seconds())

    def load(self, topology: str | Topology) -> None:
        """
        Become another topology, and let the manager see it.
        """
        self.subnet.load(parse(topology, "test") if isinstance(topology, str) else topology)
        # A sweep may have to wait for the one before, and a trap for its turn.
        self.settle(2.0)

    def port(self, name: str) -> Any:
        """
        @return: the first port of a node.
        """
        return self.subnet.find(name)

    def lids(self) -> dict[str, int]:
        """
        @return: the LID of each node.
        """
        return {node.description: next(node.each()).lid for node in self.subnet.graph.nodes.values()}

    def notActive(self) -> list[str]:
        """
        @return: the nodes with a link that is not Active.
        """
        ports = [port for port in self.subnet.graph.ports() if port.peer is not None]
        return [port.node.description for port in ports if port.state is not PortState.ACTIVE]

    def way(self, source: str, destination: str) -> list[str]:
        """
        @return: the switches that packets pass by the tables that they have; an end of C{...} if they are
            lost.
        """
        passed: list[str] = []
        port, lid = self.port(source).peer, self.port(destination).lid
        while port is not None and not port.node.end(port).hasLID(lid):
            if port.node.switch is None or len(passed) > 64:
                return [*passed, "..."]
            passed.append(port.node.description)
            egress = port.node.port(port.node.switch.lookup(lid))
            port = None if egress is None else egress.peer
        return passed if port is not None else [*passed, "..."]


def answer(packet: Packet, data: bytes, status: int = 0, **fields: Any) -> Packet:
    """
    @param data: the attribute.
    @param fields: of the MAD that are to be others.
    @return: the response to an SMP, as it comes back.
    """
    mad = decodeMAD(packet.octets)
    if mad.managementClass == 0x81:
        status |= 0x8000
    made = evolve(mad, **{"method": GET_RESPONSE, "status": status, "data": data, **fields})
    return Packet(packet.dlid, packet.slid, 0, 0, bytearray(made.pack()))


def switch(guid: int, lid: int = 0, ports: int = 8) -> Node:
    """
    @return: a switch as it was discovered.
    """
    node = Node(NodeInfo(nodeType=NodeType.SWITCH, numPorts=ports, guid=guid, portGuid=guid))
    node.switch = Switch(SwitchInfo(linearFdbCap=1024, mcastFdbCap=64))
    node.ports = {number: Port(node, number) for number in range(ports + 1)}
    node.ports[0].guid, node.ports[0].info = guid, PortInfo(lid=lid)
    return node


def adapter(guid: int, lid: int = 0) -> Node:
    """
    @return: a CA with one port, as it was discovered.
    """
    node = Node(NodeInfo(nodeType=NodeType.CA, numPorts=1, guid=guid, portGuid=guid, localPort=1))
    node.ports = {1: Port(node, 1, guid, PortInfo(lid=lid))}
    return node


def link(*ends: tuple[Node, int, Node, int]) -> None:
    """
    Link ports: node and number, node and number.
    """
    for one, number, other, far in ends:
        one.ports[number].peer, other.ports[far].peer = other.ports[far], one.ports[number]


def ports(nodes: Iterable[Node]) -> list[Port]:
    """
    @return: the end ports of nodes.
    """
    return [port for node in nodes for port in node.ends()]
