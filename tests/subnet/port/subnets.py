"""
A subnet in one thread with devices at its ports, and a manager that configures it by SMPs: for tests.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable
from typing import Any

from attrs import evolve
from twisted.internet.task import Clock

from tests.hca.hcas import HCATestCase, serve
from twisted_ib.hca.base.port import PortState
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.fabric.base.neighbours import Neighbours
from twisted_ib.hca.fabric.loopback.loopback import LoopbackFabric
from twisted_ib.hca.fabric.shm.shm import SharedMemoryFabric
from twisted_ib.hca.mad.attributes.layouts import Attribute
from twisted_ib.hca.mad.attributes.node import (
    LIDS_PER_BLOCK,
    MULTICAST_LIDS_PER_BLOCK,
    LinearForwardingTable,
    MulticastForwardingTable,
    SwitchInfo,
)
from twisted_ib.hca.mad.attributes.port import PKeyTable, PortInfo
from twisted_ib.hca.wire.headers import MAD_BYTES
from twisted_ib.hca.wire.mad.classes import SUBNET_DIRECTED
from twisted_ib.hca.wire.mad.mad import BASE_VERSION, HEADER, SET, SM_VERSION
from twisted_ib.subnet.hosting.hosted import HostedSubnet
from twisted_ib.subnet.network.graph import Node, Port
from twisted_ib.subnet.network.smi import PERMISSIVE_LID, Packet
from twisted_ib.subnet.network.switch import FIRST_MULTICAST_LID, NO_PORT
from twisted_ib.subnet.network.topology import parse
from twisted_ib.subnet.port.fabric import SubnetFabric

#: One switch; devices bring their adapters.
SWITCH = 'Switch 8 "s"\n'
#: Two switches with one link, and two adapters at each.
LEAVES = """\
Switch 4 "s"
[1] "a"[1]
[2] "b"[1]
[3] "t"[3]

Switch 4 "t"
[1] "c"[1]
[2] "d"[1]
[3] "s"[3]

Ca 1 "a"
[1] "s"[1]

Ca 1 "b"
[1] "s"[2]

Ca 1 "c"
[1] "t"[1]

Ca 1 "d"
[1] "t"[2]
"""
DIRECTED_LIDS = slice(32, 36)
DATA = slice(64, 128)
_OK = b"\x80\x00"


class Manager:
    """
    Configures a subnet by SMPs that go through its carrier.

    @ivar lids: the LIDs that it has given, by GUID.
    """

    def __init__(self, subnet: HostedSubnet) -> None:
        self.subnet = subnet
        self.lids: dict[int, int] = {}

    def set(self, port: Port, attribute: Attribute, modifier: int = 0) -> None:
        """
        Set an attribute by an SMP, which comes to the node of its sender.
        """
        smp = bytearray(MAD_BYTES)
        HEADER.pack_into(
            *(smp, 0, BASE_VERSION, SUBNET_DIRECTED, SM_VERSION, SET, 0, 0, 1, attribute.ID, 0, modifier)
        )
        smp[DIRECTED_LIDS] = b"\xff" * 4
        smp[DATA] = attribute.pack().ljust(64, b"\0")
        packet = Packet(PERMISSIVE_LID, PERMISSIVE_LID, 0, 0, smp)
        arrived = self.subnet.carry(port, packet)
        assert arrived is not None
        response = self.subnet.answer(arrived, packet)
        assert response is not None and response[4:6] == _OK, response

    def setPort(self, port: Port, number: int = 0, **fields: Any) -> None:
        """
        Set fields of PortInfo, and leave the others as they are.
        """
        before = PortInfo.parse(self.subnet.portInfo(port, number))
        nothing = {"linkState": 0, "physLinkState": 0, "clientReregister": 0}
        self.set(port, evolve(before, **{**nothing, **fields}), number)

    def setRoute(self, switch: Port, lid: int, number: int) -> None:
        """
        Set one entry of the forwarding table of a switch.
        """
        assert switch.node.switch is not None
        table, block = switch.node.switch.linear, lid // LIDS_PER_BLOCK
        ports = bytearray(table[block * LIDS_PER_BLOCK : (block + 1) * LIDS_PER_BLOCK])
        ports[lid % LIDS_PER_BLOCK] = number
        self.set(switch, LinearForwardingTable(ports=tuple(ports)), block)

    def setGroup(self, switch: Port, lid: int, *numbers: int) -> None:
        """
        Set the ports of a multicast LID, and those of the others of its block to none.
        """
        block, index = divmod(lid - FIRST_MULTICAST_LID, MULTICAST_LIDS_PER_BLOCK)
        masks = [0] * MULTICAST_LIDS_PER_BLOCK
        masks[index] = sum(1 << number for number in numbers)
        self.set(switch, MulticastForwardingTable(masks=tuple(masks)), block)

    def setPartitions(self, port: Port, *keys: int) -> None:
        """
        Set the P_Key table.
        """
        self.set(port, PKeyTable(keys=(*keys, *(0,) * (32 - len(keys)))))

    def sweep(self) -> None:
        """
        Give LIDs, shortest ways, and Active links.
        """
        ends = [port for port in self.subnet.graph.ports() if port.isEnd and (port.peer or port.isManagement)]
        for port in ends:
            lid = self.lids.setdefault(port.guid, len(self.lids) + 1)
            if port.lid != lid:
                self.setPort(port, lid=lid, smLID=1)
        for node in self.subnet.graph.nodes.values():
            if node.switch is not None:
                self._route(node, ends)
        for state in (PortState.ARMED, PortState.ACTIVE):
            for port in self.subnet.graph.ports():
                if port.peer is not None and PortState.INIT <= port.state < state:
                    self.setPort(port.node.end(port), 0 if port.isEnd else port.number, linkState=state)

    def _route(self, node: Node, ends: list[Port]) -> None:
        (switch,) = node.ports[:1]
        assert switch is not None
        self.set(switch, SwitchInfo(linearFdbTop=len(self.lids), lifeTime=18))
        ports = [NO_PORT] * LIDS_PER_BLOCK
        for end in ends:
            ports[end.lid] = _wayTo(node, end.node)
        self.set(switch, LinearForwardingTable(ports=tuple(ports)))


def _wayTo(node: Node, target: Node) -> int:
    if node is target:
        return 0
    # Breadth first; each with the port of the first step.
    seen, left = {node}, [(node, 0)]
    for current, first in left:
        for port in current.each():
            far = port.peer.node if port.peer is not None else current
            if far is target:
                return first or port.number
            if far.switch is not None and far not in seen:
                seen.add(far)
                left.append((far, first or port.number))
    return NO_PORT


class SubnetTestCase(HCATestCase):
    """
    Base of tests with devices of one subnet.

    @cvar topology: of the subnet.
    @cvar isManaged: whether a device that is attached is configured at once.
    @ivar subnet: it, and C{manager} its manager.
    @ivar lost: its losses by name.
    """

    topology = SWITCH
    isManaged = True
    grows = False

    def setUp(self) -> None:
        """
        Make the subnet.
        """
        super().setUp()
        self.clock: Clock
        self.lost: Counter[str] = Counter()
        self.subnet = HostedSubnet(parse(self.topology, "test"), self._count, self.clock, self.grows)
        self.manager = Manager(self.subnet)
        self.neighbours = Neighbours()
        #: The adapters that the next devices are attached to.
        self.names: list[str] = []
        type(self).fabric = staticmethod(self.open)  # type: ignore[assignment]

    def _count(self, name: str) -> None:
        self.lost[name] += 1

    def records(self, owner: Any, guid: int, clock: Callable[[], float]) -> Any:
        """
        Make the fabric that carries the records.
        """
        return LoopbackFabric(owner, guid, clock, self.neighbours)

    def open(self, owner: Any, guid: int, clock: Callable[[], float]) -> Any:
        """
        Make the fabric of a device.
        """
        return SubnetFabric(owner, guid, clock, self._attach, self.records)

    def _attach(self, device: Any, guid: int) -> Any:
        name = self.names.pop(0) if self.names else f"test {guid:x}"
        port = self.subnet.attach(device, guid, name)
        if self.isManaged:
            self.manager.sweep()
        return port

    def at(self, *names: str) -> list[Device]:
        """
        @return: devices at adapters of the topology.
        """
        self.names = list(names)
        return [self.device() for _ in names]

    def deviceOf(self, guid: int) -> Device:
        """
        @return: a device with a GUID.
        """
        drawn = [guid]
        device = Device(
            *("test", self.clock.seconds, self.open),
            lambda bits: drawn.pop() if drawn else secrets.randbits(bits),
        )
        self.addCleanup(device.close)
        return device

    def port(self, name: str) -> Port:
        """
        @return: the first port of a node, of a switch port 0.
        """
        found = self.subnet.find(name)
        assert found is not None
        return found

    def run_(self, seconds: float, *devices: Device) -> None:
        """
        Serve devices while time passes.
        """
        serve(self.clock, seconds, *devices)


class OnSubnetRings:
    """
    Records on rings.
    """

    def records(self, owner: Any, guid: int, clock: Callable[[], float]) -> Any:
        """
        Make the fabric that carries the records.
        """
        return SharedMemoryFabric(owner, guid, clock)


__all__ = ["LEAVES", "SWITCH", "Manager", "OnSubnetRings", "SubnetTestCase"]
