"""
The port of a device as a subnet manager sets it, and MADs between devices, nodes and programs of a subnet.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from attrs import evolve

from tests.hca.hcas import settle
from tests.hca.mad.test_redirect import Server
from tests.hca.mad.test_vendor import QUESTION
from tests.hca.mad.toys.echo import EchoAgent
from tests.hca.mad.toys.table import TableAgent, table
from tests.subnet.network.test_umad import GET, PING, Wire, mad
from tests.subnet.port.subnets import LEAVES, SubnetTestCase
from twisted_ib import limits
from twisted_ib.errors import QueuePairError, ResourceLimitError
from twisted_ib.hca.base.attributes import portAttributes
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.base.port import PhysicalState, PortState
from twisted_ib.hca.base.traits import LinkLayer, NodeType, Peers
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.mad.attributes.node import NodeInfo
from twisted_ib.hca.mad.vendor import PING as PING_CLASS
from twisted_ib.hca.services.address import AddressVector
from twisted_ib.hca.wire.grh import guidGID
from twisted_ib.hca.wire.mad.classes import (
    COMMUNICATION,
    DEVICE_MANAGEMENT,
    PERFORMANCE,
    SUBNET,
    SUBNET_DIRECTED,
    VENDOR_CLASSES,
    DirectedHeader,
)
from twisted_ib.hca.wire.mad.mad import TRAP, TRAP_REPRESS, Mad, decodeMAD
from twisted_ib.subnet.hosting.hostthread import TOPOLOGY
from twisted_ib.subnet.network.smi import PERMISSIVE_LID, Packet
from twisted_ib.subnet.network.topology import parse
from twisted_ib.subnet.network.umad import CLIENT, CONNECT, CONTROL, MAGIC, MESSAGE, UmadServer
from twisted_ib.subnet.sm.manager import Options

#: Requests are sent once, and given up soon.
ONCE = {"timeout": 0.01, "retries": 0}


class Events:
    """
    The events of a device.
    """

    def __init__(self, device: Device) -> None:
        self._got: list[EventType] = []
        device.onEvent = lambda kind, _: self._got.append(kind)

    def taken(self) -> list[EventType]:
        """
        @return: those since.
        """
        got, self._got = self._got, []
        return got


class PortTests(SubnetTestCase):
    """
    One port.
    """

    isManaged = False

    def test_traits(self) -> None:
        """
        The node is a channel adapter on InfiniBand; its port is in Init until a manager comes.
        """
        device = self.device()
        self.assertEqual(
            (device.traits.peers, device.traits.linkLayer, device.traits.nodeType),
            (Peers.SUBNET, LinkLayer.INFINIBAND, NodeType.CA),
        )
        attributes = portAttributes(device.port)
        fields = ("state", "lid", "sm_lid", "link_layer", "flags", "pkey_tbl_len")
        self.assertEqual([attributes[name] for name in fields], [2, 0, 0, 1, 0, 64])
        self.assertEqual((device.gid, len(device.gids())), (guidGID(device.guid), 1))

    def test_events(self) -> None:
        """
        Changes that a manager makes come to the device in its own turn, with the events of verbs.
        """
        device = self.device()
        events = Events(device)
        self.manager.sweep()
        self.assertEqual((device.port.lid, events.taken()), (0, []))
        settle(device)
        self.assertEqual(events.taken(), [EventType.LID_CHANGE, EventType.SM_CHANGE, EventType.PORT_ACTIVE])
        lid = self.manager.lids[device.guid]
        self.assertEqual((device.port.lid, device.port.smLID, device.port.state), (lid, 1, PortState.ACTIVE))
        port = self.subnet.attached[device.guid].port
        self.manager.setPartitions(port, 0x8123)
        self.manager.setPort(port, clientReregister=1)
        self.manager.setPort(port, gidPrefix=0xFE80 << 48 | 7)
        settle(device)
        self.assertEqual(
            events.taken(), [EventType.PKEY_CHANGE, EventType.CLIENT_REREGISTER, EventType.GID_CHANGE]
        )
        self.assertEqual((device.partitions.key(0), device.gid >> 64), (0x8123, 0xFE80 << 48 | 7))
        self.manager.setPort(port, physLinkState=3)
        settle(device)
        self.assertEqual((events.taken(), device.port.state), ([EventType.PORT_ERR], PortState.DOWN))

    def test_bound(self) -> None:
        """
        Of many changes within a turn the latest are applied.
        """
        device = self.device()
        port = self.subnet.attached[device.guid].port
        for lid in range(1, 200):
            self.manager.setPort(port, lid=lid)
        events = Events(device)
        settle(device)
        self.assertEqual((device.port.lid, len(events.taken())), (199, 64))

    def test_gone(self) -> None:
        """
        The adapter of a device that is closed is gone, and its switch's port free; one of the topology stays.
        """
        before = self.subnet.summary()
        device = self.device()
        self.assertNotEqual(self.subnet.summary(), before)
        device.close()
        device.close()
        self.assertEqual((self.subnet.summary(), self.subnet.attached), (before, {}))

    def test_full(self) -> None:
        """
        A device needs a free port of a switch.
        """
        for _ in range(8):
            self.device()
        self.assertRaises(ResourceLimitError, self.device)

    def test_description(self) -> None:
        """
        Programs find the adapter by its description.
        """
        device = self.device()
        port = self.subnet.find(f"test {device.guid:x}")
        assert port is not None
        self.assertEqual((port.guid, port.node.guid), (device.guid, device.guid - 1))

    def test_reloaded(self) -> None:
        """
        A new topology leaves devices where they are, unless it takes their switch or their port: then they
        are at another, when there is one.
        """
        device = self.device()
        self.manager.sweep()
        adapter = self.port(f"test {device.guid:x}")
        for text, state, at in (
            ('Switch 8 "s"\n[2] "a"[1]\n\nCa 1 "a"\n[1] "s"[2]\n', PortState.ACTIVE, "s1"),
            ('Switch 8 "s"\n[1] "a"[1]\n\nCa 1 "a"\n[1] "s"[1]\n', PortState.INIT, "s2"),
            ('Switch 8 "t"\n', PortState.INIT, "t1"),
            ('Ca 1 "a"\n', PortState.DOWN, ""),
            ('Switch 8 "s"\n', PortState.INIT, "s1"),
        ):
            self.subnet.load(parse(text, "new"))
            settle(device)
            self.assertEqual(device.port.state, state)
            peer = adapter.peer
            self.assertEqual("" if peer is None else f"{peer.node.description}{peer.number}", at)

    def test_taken(self) -> None:
        """
        A topology with the GUID of a device, as a file that was written while the device was there, or one
        that is too large with the devices, changes nothing.
        """
        device = self.device()
        adapter = self.port(f"test {device.guid:x}")
        before = self.subnet.summary(), adapter.peer
        for guid in (device.guid - 1, device.guid - 2):
            new = parse(f'Switch 8 "s"\n\ncaguid={guid:#x}\nCa 2 "b"\n', "new")
            error = self.assertRaises(ResourceLimitError, self.subnet.load, new)
            self.assertIn(f"'test {device.guid:x}' has a GUID of the topology", str(error))
        self.patch(limits, "SUBNET_NODES", 2)
        new = parse('Switch 8 "s"\n\nCa 1 "b"\n', "new")
        self.assertIn("more than 2", str(self.assertRaises(ResourceLimitError, self.subnet.load, new)))
        self.assertEqual((self.subnet.summary(), adapter.peer), before)

    def test_freed(self) -> None:
        """
        A device that a topology has left without a port gets one that another leaves, but not one that is
        disabled.
        """
        one, two = self.device(), self.device()
        self.subnet.load(parse('Switch 1 "t"\n', "new"))
        settle(one, two)
        self.assertEqual([each.port.state for each in (one, two)], [PortState.INIT, PortState.DOWN])
        one.close()
        settle(two)
        self.assertEqual(two.port.state, PortState.INIT)
        two.close()
        (port,) = (port for port in self.subnet.graph.ports() if port.number)
        port.setPhysicalState(PhysicalState.DISABLED)
        self.assertRaises(ResourceLimitError, self.device)


class LeavesTests(SubnetTestCase):
    """
    Switches of two tiers.
    """

    topology = """\
Switch 4 "spine"
[1] "s"[1]
[2] "t"[1]

Switch 5 "s"
[1] "spine"[1]
[2] "a"[1]

Switch 5 "t"
[1] "spine"[2]
[2] "b"[1]

Ca 1 "a"
[1] "s"[2]

Ca 1 "b"
[1] "t"[2]
"""

    def test_spread(self) -> None:
        """
        Devices are at leaves, as many at each, and only then at other switches.
        """
        devices = [self.device() for _ in range(8)]
        peers = [self.port(f"test {device.guid:x}").peer for device in devices]
        names = [peer.node.description for peer in peers if peer is not None]
        self.assertEqual(names, ["s", "t", "s", "t", "s", "t", "spine", "spine"])


class OwnManagerTests(SubnetTestCase):
    """
    A subnet with its own manager.
    """

    isManaged = False

    def sweep(self, *devices: Device) -> None:
        """
        Let the manager do what it has to.
        """
        for _ in range(20):
            self.clock.advance(0.1)
            settle(*devices)

    def test_active(self) -> None:
        """
        Devices that come are made Active; when that goes which the manager is at, the others keep their LIDs.
        """
        self.subnet.manage(Options())
        self.addCleanup(self.subnet.close)
        one, two = self.device(), self.device()
        self.sweep(one, two)
        self.assertEqual([each.port.state for each in (one, two)], [PortState.ACTIVE] * 2)
        self.assertEqual((one.port.smLID, two.port.smLID), (one.port.lid,) * 2)
        lid = two.port.lid
        one.close()
        three = self.device()
        self.sweep(two, three)
        self.assertEqual((two.port.lid, two.port.smLID, two.port.state), (lid, lid, PortState.ACTIVE))
        self.assertEqual(three.port.state, PortState.ACTIVE)


class AloneTests(SubnetTestCase):
    """
    A device that is alone at a switch.
    """

    isManaged = False

    def test_counts(self) -> None:
        """
        It is Active after so many SMPs, in one turn of the manager's, without any time between.
        """
        self.subnet.manage(Options())
        self.addCleanup(self.subnet.close)
        device = self.device()
        hosted: Any = self.subnet.manager
        self.assertIsNot(device.port.state, PortState.ACTIVE)
        self.clock.advance(0.0)
        settle(device)
        self.assertIs(device.port.state, PortState.ACTIVE)
        self.assertLessEqual(hosted.manager._requests.sent, 27)


class SoonTests(SubnetTestCase):
    """
    Devices that come one after the other, at a switch whose ports take a sweep several turns.
    """

    topology = TOPOLOGY.replace("Switch 36", "Switch 254")
    isManaged = False

    def test_soon(self) -> None:
        """
        Each is Active soon: one that comes while the first sweep is under way, when the switch has nobody yet
        whom it could tell, and those that come more often than the switch may send traps.
        """
        self.subnet.manage(Options())
        self.addCleanup(self.subnet.close)
        devices = [self.device()]

        def meanwhile() -> None:
            assert self.subnet.manager is not None
            self.assertIsNotNone(self.subnet.manager.manager._stages)
            devices.append(self.device())

        # Between two turns of the manager's first sweep.
        self.clock.callLater(0, meanwhile)
        for _ in range(4):
            for _ in range(30):
                self.clock.advance(0.01)
                settle(*devices)
            self.assertEqual({each.port.state for each in devices}, {PortState.ACTIVE})
            devices.append(self.device())


class AdapterTests(SubnetTestCase):
    """
    Adapters of a topology.
    """

    topology = LEAVES

    def test_guid(self) -> None:
        """
        A device at an adapter of the topology has its GUID; the adapter stays when the device goes.
        """
        (device,) = self.at("c")
        self.assertEqual(device.guid, self.port("c").guid)
        self.assertEqual(device.gid & (1 << 64) - 1, device.guid)
        before = self.subnet.summary()
        device.close()
        self.assertEqual(self.subnet.summary(), before)
        (again,) = self.at("c")
        self.assertEqual(again.port.lid, self.manager.lids[again.guid])

    def test_others(self) -> None:
        """
        A device has an adapter of its own if that of its name has a device, or is none.
        """
        self.at("a")
        for device in self.at("a", "s"):
            self.assertNotIn(device.guid, [self.port(each).guid for each in "abcd"])

    def test_removed(self) -> None:
        """
        When its adapter is taken out of the topology, the port is down for good.
        """
        (device,) = self.at("a")
        settle(device)
        self.subnet.load(parse('Switch 4 "s"\n', "smaller"))
        settle(device)
        self.assertEqual((device.port.state, self.subnet.attached), (PortState.DOWN, {}))
        device.close()


class MADTests(SubnetTestCase):
    """
    MADs of devices at C{a} and C{c}.
    """

    topology = LEAVES

    def setUp(self) -> None:
        """
        Open them.
        """
        super().setUp()
        self.a, self.c = self.at("a", "c")
        settle(self.a, self.c)
        self.responses: list[Any] = []

    def ask(self, agent: Any, lid: int, question: Mad, **changes: Any) -> Any:
        """
        C{a} asks.

        @return: the response.
        """
        self.responses.clear()
        address = AddressVector(0, lid=lid, isGlobal=False)
        agent.send(address, question, self.responses.append, **{**ONCE, **changes})
        self.run_(0.05, self.a, self.c)
        (response,) = self.responses
        return response

    def test_agents(self) -> None:
        """
        A device asks another by its LID, also without a way for data between their rings.
        """
        asking = EchoAgent(self.a)
        EchoAgent(self.c)
        response = self.ask(asking.agent, self.c.port.lid, asking.question())
        self.assertEqual(bytes(response.mad.data), bytes(range(232))[::-1])
        self.assertEqual((response.path.peer.lid, self.a.fabric.paths()), (self.c.port.lid, []))
        self.assertIsNone(self.ask(asking.agent, 40, asking.question()))
        self.assertEqual(self.lost["mad_no_route"], 1)

    def test_transfer(self) -> None:
        """
        Tables go as transfers.
        """
        asking, asked = TableAgent(self.a), TableAgent(self.c)
        response = self.ask(asking.agent, self.c.port.lid, asking.question(500), timeout=1.0)
        self.assertEqual(response.mad.data, table(500))
        self.assertEqual(len(asked.requests), 1)

    def test_nodes(self) -> None:
        """
        Nodes answer for themselves: subnet management, also of the device's own node, and what no device is
        there for.
        """
        agent = self.a.mads.register(SUBNET, 1, (0x05,), self.responses.append)
        question = Mad(SUBNET, 1, GET, 0, NodeInfo.ID)
        for name in "sca":
            response = self.ask(agent, self.port(name).lid, question)
            self.assertEqual(NodeInfo.parse(bytes(response.mad.data)).guid, self.port(name).node.guid)
        ping = self.a.mads.register(PING_CLASS, 1, (0x05,), self.responses.append)
        response = self.ask(ping, self.port("d").lid, QUESTION)
        self.assertEqual(bytes(response.mad.data).rstrip(b"\0"), b"d")

    def test_directed(self) -> None:
        """
        A directed route begins at the permissive LID, and leads back to a port without a LID too.
        """
        agent = self.a.mads.register(SUBNET_DIRECTED, 1, (), self.responses.append)
        for lid in (self.a.port.lid, 0):
            self.port("a").lid = lid
            for path, name in ((b"", "a"), (b"\1", "s")):
                question = Mad(
                    *(SUBNET_DIRECTED, 1, GET, 0, NodeInfo.ID),
                    classSpecific=len(path),
                    header=DirectedHeader(initialPath=b"\0" + path),
                )
                response = self.ask(agent, PERMISSIVE_LID, question)
                self.assertEqual(NodeInfo.parse(response.mad.data).guid, self.port(name).node.guid)
        other = self.a.mads.register(SUBNET, 1, (), self.responses.append)
        address = AddressVector(0, lid=PERMISSIVE_LID, isGlobal=False)
        self.assertRaises(QueuePairError, other.send, address, Mad(SUBNET, 1, GET, 0, NodeInfo.ID))

    def test_redirected(self) -> None:
        """
        A redirection has the LID, and requests follow it to a queue pair of the rings.
        """
        asking, asked = EchoAgent(self.a), EchoAgent(self.c)
        server = Server(self.c)
        asked.agent.redirectTo(server.queuePair)
        response = self.ask(asking.agent, self.c.port.lid, asking.question(), timeout=0.02, retries=1)
        self.assertEqual(bytes(response.mad.data).rstrip(b"\0"), b"served")
        self.assertEqual(len(server.came), 1)

    def attach(self) -> int:
        """
        @return: the number of a program at C{b}.
        """
        self.wire = Wire()
        self.subnet.consumer = self.server = UmadServer(self.subnet, self.wire, self._count)
        reply = self.server.control("b", CONTROL.pack(MAGIC, 0, CONNECT, 0, CLIENT.pack(1, 0, False, b"b")))
        assert reply is not None
        number: int = CLIENT.unpack_from(CONTROL.unpack(reply)[4])[0]
        return number

    def asked(self, number: int, lid: int, octets: bytes, queuePair: int = 1) -> list[Mad]:
        """
        A program asks.

        @return: its response.
        """
        self.wire.sent.clear()
        self.server.received(number, MESSAGE.pack(lid, 0, queuePair, 1, 0, 256, octets))
        settle(self.a, self.c)
        return [decodeMAD(MESSAGE.unpack(message)[6]) for _, message in self.wire.sent]

    def test_programs(self) -> None:
        """
        Programs that are attached by ibsim's protocol ask devices, at queue pair 1 and at one that a class is
        redirected to, and are asked by them.
        """
        number = self.attach()
        (pong,) = self.asked(number, self.c.port.lid, QUESTION.pack())
        self.assertEqual(bytes(pong.data).rstrip(b"\0"), b"test")  # type: ignore[arg-type]
        server = Server(self.c)
        (served,) = self.asked(number, self.c.port.lid, mad(PING, GET, 0), server.queuePair.number)
        self.assertEqual(bytes(served.data).rstrip(b"\0"), b"served")  # type: ignore[arg-type]
        agent = self.a.mads.register(PING_CLASS, 1, (0x05,), self.responses.append)
        self.wire.sent.clear()
        self.responses.clear()
        address = AddressVector(0, lid=self.port("b").lid, isGlobal=False)
        agent.send(address, decodeMAD(mad(PING, GET, 0)), self.responses.append, **ONCE)
        ((_, message),) = self.wire.sent
        octets = bytearray(MESSAGE.unpack(message)[6])
        octets[3] |= 0x80
        self.server.received(number, MESSAGE.pack(self.a.port.lid, 0, 1, 1, 0, 256, bytes(octets)))
        settle(self.a)
        self.assertEqual(len(self.responses), 1)

    def test_represses(self) -> None:
        """
        A TrapRepress that a device sends ends the Trap of a device or a program, of any class but subnet
        management, also at the subnet's own manager.
        """
        self.subnet.manage(Options())
        self.addCleanup(self.subnet.close)
        lid = self.c.port.lid
        for class_ in (DEVICE_MANAGEMENT, PERFORMANCE, VENDOR_CLASSES[0]):
            self.subnet.consumer = None
            agent = self.c.mads.register(class_, 1, (TRAP,), self.repress)
            asking = self.a.mads.register(class_, 1, (), self.responses.append)
            trap = Mad(class_, 1, TRAP, 0, 5)
            self.assertEqual(self.ask(asking, lid, trap).method, TRAP_REPRESS)
            number = self.attach()
            self.assertEqual(self.ask(asking, lid, trap).method, TRAP_REPRESS)
            (repressed,) = self.asked(number, lid, trap.pack())
            self.assertEqual((repressed.managementClass, repressed.method), (class_, TRAP_REPRESS))
            agent.close()
            asking.close()

    def repress(self, trap: Any) -> None:
        """
        C{c} answers a Trap.
        """
        agent = self.c.mads.register(trap.mad.managementClass, 1, (), self.responses.append)
        address = AddressVector(0, lid=trap.path.peer.lid, isGlobal=False)
        agent.post(address, trap.source, evolve(trap.mad, method=TRAP_REPRESS))

    def test_repressesOfPrograms(self) -> None:
        """
        So does one that a program sends: the transaction id is the device's.  One that nobody waits for does
        not come back.
        """
        number = self.attach()
        agent = self.a.mads.register(PING_CLASS, 1, (), self.responses.append)
        address = AddressVector(0, lid=self.port("b").lid, isGlobal=False)
        agent.send(address, decodeMAD(mad(PING, TRAP, 0)), self.responses.append, **ONCE)
        ((_, message),) = self.wire.sent
        octets = bytearray(MESSAGE.unpack(message)[6])
        octets[3] = TRAP_REPRESS
        for name in "aad":
            self.assertEqual(self.asked(number, self.port(name).lid, bytes(octets)), [])
        self.assertEqual([each.method for each in self.responses], [TRAP_REPRESS])
        self.assertEqual((self.a.counters["management_unmatched"], self.lost["umad_unclaimed"]), (1, 1))

    def test_dropped(self) -> None:
        """
        Connection management comes over paths alone, and what waits for a device has a bound.
        """
        number = self.attach()
        before = Counter(self.c.counters)
        self.asked(number, self.c.port.lid, mad(COMMUNICATION, 0x03, 0x10))
        self.assertEqual(dict(self.c.counters - before), {"management_dropped": 1})
        self.patch(limits, "SUBNET_MADS", 2)
        for _ in range(3):
            self.subnet.send(self.port("a"), Packet(1, self.c.port.lid, 1, 1, bytearray(mad(PING, GET, 0))))
        self.assertEqual(self.c.counters["management_dropped"], 2)


class GrowingTests(SubnetTestCase):
    """
    A subnet that has a switch more when a port is left.
    """

    topology = 'Switch 4 "s"'
    grows = True

    def test_grows(self) -> None:
        """
        Each switch has devices at all ports but those to other switches; all reach each other, and a port
        that becomes free is taken first.
        """
        devices = [self.device() for _ in range(9)]
        self.manager.sweep()
        settle(*devices)
        switches = [node for node in self.subnet.graph.nodes.values() if node.switch is not None]
        self.assertEqual([len(node.ports) for node in switches], [5] * 4)
        self.assertEqual(len({node.guid for node in switches}), 4)
        ends = [self.port(f"test {device.guid:x}").peer for device in devices]
        places = [(switches.index(end.node), end.number) for end in ends if end is not None]
        rows = [[(0, 1), (0, 2), (0, 3)], [(1, 2), (1, 3)], [(2, 2), (2, 3)], [(3, 2), (3, 3)]]
        self.assertEqual(places, [place for row in rows for place in row])
        first, last = devices[0].fabric.port, devices[-1].fabric.port
        self.assertEqual(first.route(devices[-1].port.lid), devices[-1].guid)
        self.assertEqual(last.route(devices[0].port.lid), devices[0].guid)
        devices[1].close()
        late = self.device()
        end = self.port(f"test {late.guid:x}").peer
        assert end is not None
        self.assertEqual((end.node, end.number), (switches[0], 2))
