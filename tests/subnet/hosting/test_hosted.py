"""
Tests for a subnet in one process.
"""

from __future__ import annotations

from collections import Counter

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.subnet.network.test_umad import (
    DIRECTED,
    GET,
    NOTICE,
    PERF,
    PING,
    REPRESS,
    SET,
    SUBN,
    TRAP,
    Wire,
    mad,
)
from tests.subnet.sma.cases import smp
from twisted_ib.errors import TopologyError
from twisted_ib.hca.base.port import PhysicalState, PortState
from twisted_ib.hca.mad.attributes.node import NodeInfo
from twisted_ib.hca.mad.attributes.port import PortInfo
from twisted_ib.subnet.hosting.hosted import HostedSubnet
from twisted_ib.subnet.network.graph import Port
from twisted_ib.subnet.network.smi import Packet
from twisted_ib.subnet.network.topology import parse
from twisted_ib.subnet.network.umad import CLIENT, CONNECT, CONTROL, MAGIC, MESSAGE, UmadServer

STAR = """\
Switch 4 "s" # "leaf"
[1] "a"[1]
[2] "b"[1]

Ca 2 "a"
[1] "s"[1]

Ca 2 "b"
[1] "s"[2]
"""
#: Without b's link; without b.
UNLINKED = STAR.replace('[2] "b"[1]\n', "").replace('\n[1] "s"[2]', "")
ALONE = UNLINKED.replace('\nCa 2 "b"\n', "")
A, S = 1, 2
PORT_COUNTERS = 0x12
#: SubnetTimeout as a code, and a little more than its 1.07 seconds.
TIMEOUT = 18
LATER = 1.1


class HostedTests(SynchronousTestCase):
    """
    A switch with two CAs.
    """

    def setUp(self) -> None:
        """
        Make it, with a subnet manager at C{a} for which the switch has LIDs.
        """
        self.lost: Counter[str] = Counter()
        self.clock = Clock()
        self.subnet = HostedSubnet(parse(STAR, "star"), self.count, self.clock)
        self.wire = Wire()
        self.subnet.consumer = self.server = UmadServer(self.subnet, self.wire, self.count)

    def count(self, name: str) -> None:
        """
        Count a loss.
        """
        self.lost[name] += 1

    def port(self, name: str) -> Port:
        """
        @return: the port that a client of a node is attached to.
        """
        port = self.subnet.find(name)
        assert port is not None
        return port

    def attach(self, node: str, manager: bool = False) -> int:
        """
        @return: the number of a new client.
        """
        data = CLIENT.pack(1, 0, manager, node.encode())
        reply = self.server.control(node, CONTROL.pack(MAGIC, 0, CONNECT, 0, data))
        assert reply is not None
        self.assertEqual(CONTROL.unpack(reply)[2], CONNECT)
        number: int = CLIENT.unpack_from(CONTROL.unpack(reply)[4])[0]
        return number

    def manage(self) -> None:
        """
        Let a subnet manager be there, and give LIDs.
        """
        number = self.attach("a", manager=True)
        self.server.received(number, MESSAGE.pack(0xFFFF, 0xFFFF, 0, 0, 0, 256, mad(DIRECTED, GET, 0x11)))
        for name, lid in (("a", A), ("s", S)):
            port = self.port(name)
            port.lid, port.smLID, port.subnetTimeout = lid, A, TIMEOUT
        switch = self.port("s").node.switch
        assert switch is not None
        switch.top = 2
        switch.linear[A], switch.linear[S] = 1, 0
        switch.stateChange = False
        self.wire.sent.clear()

    def traps(self) -> list[tuple[int, int]]:
        """
        @return: number and LID of the traps that the manager got since.
        """
        sent, self.wire.sent = self.wire.sent, []
        mads = [MESSAGE.unpack(message)[6] for _, message in sent]
        return [
            (int.from_bytes(each[68:70], "big"), int.from_bytes(each[74:76], "big"))
            for each in mads
            if each[3] == TRAP and each[17] == NOTICE
        ]

    def test_find(self) -> None:
        """
        By name or description; without either the first node.
        """
        switch = self.port("s")
        self.assertEqual((switch.number, self.subnet.name(switch)), (0, "s"))
        self.assertIs(self.port("leaf"), switch)
        self.assertIs(self.port(""), switch)
        self.assertEqual((self.port("b").number, self.port("b").guid), (1, 0x100004))
        self.assertIsNone(self.subnet.find("c"))
        self.assertEqual(self.subnet.summary(), "nodes: 3, links: 2")

    def test_switchPorts(self) -> None:
        """
        The ports of the switch with a LID, or of the smallest.
        """
        self.manage()
        asked = (None, S, A, 9)
        self.assertEqual([self.subnet.switchPorts(each) for each in asked], [4, 4, 254, 254])

    def test_attributes(self) -> None:
        """
        The attributes that a client asks for at first are those of a port whose M_Key protects all, too.
        """
        port = self.port("b")
        port.mkey, port.protectBits = 7, 3
        self.assertEqual(NodeInfo.parse(self.subnet.nodeInfo(port)).portGuid, 0x100004)
        self.assertEqual(PortInfo.parse(self.subnet.portInfo(port, 0)).linkState, PortState.INIT)
        self.assertEqual(PortInfo.parse(self.subnet.portInfo(port, 2)).linkState, PortState.DOWN)
        self.assertEqual(PortInfo.parse(self.subnet.portInfo(port, 9)).linkState, PortState.INIT)
        self.assertEqual(self.subnet.partitions(port), b"\xff\xff" + bytes(62))

    def test_agents(self) -> None:
        """
        Each class has its agent; others have none.
        """
        port = self.port("s")
        for class_, attribute, at in ((SUBN, 0x11, 0), (DIRECTED, 0x11, 0), (PERF, PORT_COUNTERS, 1)):
            octets = bytearray(mad(class_, GET, attribute))
            octets[65] = at
            answer = self.subnet.answer(port, Packet(1, 1, 0, 0, octets))
            assert answer is not None
            self.assertEqual((answer[3], answer[5]), (0x81, 0), class_)
        ping = bytearray(mad(PING, GET, 0))
        ping[37:40] = 0x00, 0x14, 0x05
        answer = self.subnet.answer(port, Packet(1, 1, 1, 1, ping))
        assert answer is not None
        self.assertEqual(answer[40:48], b"leaf\0\0\0\0")
        self.assertIsNone(self.subnet.answer(port, Packet(1, 1, 1, 1, bytearray(mad(0x21, GET, 0)))))

    def test_counters(self) -> None:
        """
        MADs count at the ports that they pass, both ways; a link that goes down counts at both ends.
        """
        self.manage()
        number = self.attach("b")
        message = MESSAGE.pack(0xFFFF, 0xFFFF, 0, 0, 0, 256, mad(DIRECTED, GET, 0x11, at7=1, at129=1))
        octets = bytearray(message)
        octets[64:68] = b"\xff" * 4
        self.server.received(number, bytes(octets))
        self.subnet.load(parse(UNLINKED, "star"))
        request = bytearray(mad(PERF, GET, PORT_COUNTERS))
        request[65] = 2
        # No request: nobody has sent such a trap, and the node does not answer it.
        repress = bytearray(mad(PERF, REPRESS, PORT_COUNTERS))
        self.assertEqual(self.subnet.take(self.port("s"), Packet(1, 1, 1, 1, repress)), b"")
        answer = self.subnet.answer(self.port("s"), Packet(1, 1, 1, 1, request))
        assert answer is not None
        data = answer[64:]
        self.assertEqual(data[7], 1)
        words = [int.from_bytes(data[at : at + 4], "big") for at in (24, 28, 32, 36)]
        self.assertEqual(words, [72, 72, 1, 1])

    def test_linkDown(self) -> None:
        """
        A link that is gone goes down: the switch sets its flag and sends one trap.  It comes up likewise.
        """
        self.manage()
        switch = self.port("s").node.switch
        assert switch is not None
        before = self.port("b")
        for text, state in ((UNLINKED, PortState.DOWN), (STAR, PortState.INIT)):
            self.subnet.load(parse(text, "star"))
            self.clock.advance(LATER)
            self.assertEqual((self.port("b").state, switch.stateChange), (state, True))
            self.assertEqual(set(self.traps()), {(128, S)})
            switch.stateChange = False
        self.assertIs(self.port("b"), before)
        self.assertIs(self.port("a").state, PortState.INIT)

    def test_repressed(self) -> None:
        """
        A trap is repeated until the subnet manager represses it.
        """
        self.manage()
        self.subnet.load(parse(UNLINKED, "star"))
        for _ in range(3):
            [(_, message)] = self.wire.sent
            self.assertEqual(self.traps(), [(128, S)])
            self.clock.advance(LATER)
        trap = bytearray(MESSAGE.unpack(message)[6])
        trap[3] = REPRESS
        self.wire.sent.clear()
        self.server.received(0, MESSAGE.pack(S, A, 0, 0, 0, 256, bytes(trap)))
        self.clock.advance(3 * LATER)
        self.assertEqual((self.traps(), self.clock.getDelayedCalls()), ([], []))

    def test_disabledPort(self) -> None:
        """
        A switch whose port an SMP disables reports it; the port, whose link has not failed, counts nothing.
        """
        self.manage()
        far = self.port("b").peer
        assert far is not None
        disable = smp(SET, PortInfo.ID, far.number, PortInfo(physLinkState=PhysicalState.DISABLED).pack())
        self.server.received(0, MESSAGE.pack(S, A, 0, 0, 0, 256, disable))
        self.assertEqual((far.state, far.physicalState), (PortState.DOWN, PhysicalState.DISABLED))
        self.assertIn((128, S), self.traps())
        self.assertEqual(self.subnet.counters.of(far), {})

    def test_closed(self) -> None:
        """
        A closed subnet sends nothing.
        """
        self.manage()
        self.subnet.load(parse(UNLINKED, "star"))
        self.subnet.close()
        self.subnet.close()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_nodeGone(self) -> None:
        """
        A node that is gone takes its clients with it; back, it is a new one with the same GUIDs.
        """
        self.manage()
        before = self.port("b")
        number = self.attach("b")
        self.subnet.load(parse(ALONE, "star"))
        self.assertIsNone(self.subnet.find("b"))
        self.assertNotIn(number, self.server.clients)
        self.assertEqual(self.subnet.counters.of(before), {})
        self.assertEqual(self.traps(), [(128, S)])
        self.subnet.load(parse(STAR, "star"))
        self.clock.advance(LATER)
        after = self.port("b")
        self.assertIsNot(after, before)
        self.assertEqual((after.guid, after.state, after.lid), (before.guid, PortState.INIT, 0))
        self.assertEqual((set(self.traps()), self.subnet.summary()), ({(128, S)}, "nodes: 3, links: 2"))

    def test_managerGone(self) -> None:
        """
        A node that is gone with the subnet manager behind it does not report that either.
        """
        self.manage()
        other = self.port("b")
        other.lid, other.smLID, other.subnetTimeout = 3, A, TIMEOUT
        self.attach("b", manager=True)
        self.traps()
        self.lost.clear()
        self.subnet.load(parse(ALONE, "star"))
        for _ in range(3):
            self.assertEqual(self.traps(), [(128, S)])
            self.clock.advance(LATER)
        self.assertEqual(self.lost, {})

    def test_switchGone(self) -> None:
        """
        A switch that is gone reports nothing, and nothing is kept of it.
        """
        self.manage()
        before = self.port("s")
        self.subnet.load(parse('Ca 2 "a"\n\nCa 2 "b"\n', "two"))
        self.assertEqual((self.traps(), self.clock.getDelayedCalls()), ([], []))
        for port in before.node.each():
            self.assertEqual(self.subnet.counters.of(port), {})
        self.assertEqual(self.subnet.counters.of(self.port("a")), {"linkDownedCounter": 1})

    def test_moved(self) -> None:
        """
        A link that is at another port: the old one down, the new one up.
        """
        moved = STAR.replace('[2] "b"[1]', '[3] "b"[1]').replace('"s"[2]', '"s"[3]')
        self.subnet.load(parse(moved, "star"))
        states = [each.state.name for each in self.port("s").node.each()]
        self.assertEqual(states, ["ACTIVE", "INIT", "DOWN", "INIT", "DOWN"])

    def test_shifted(self) -> None:
        """
        Without a node in the middle of the file, those behind it have other GUIDs, also ones that others had:
        they are new nodes.
        """
        text = "\n".join(f'Ca 1 "{name}"\n[1] "{peer}"[1]\n' for name, peer in ("ad", "bc", "cb", "da"))
        self.subnet.load(parse(text, "four"))
        before = self.port("d")
        text = "\n".join(f'Ca 1 "{name}"\n[1] "{peer}"[1]\n' for name, peer in ("ad", "cb", "bc", "da"))
        self.subnet.load(parse(text.replace('[1] "c"[1]\n', "").replace('[1] "b"[1]\n', ""), "four"))
        self.assertEqual(self.subnet.summary(), "nodes: 4, links: 1")
        text = text.replace('Ca 1 "c"\n[1] "b"[1]\n', "").replace('[1] "c"[1]\n', "")
        self.subnet.load(parse(text, "three"))
        self.assertEqual(self.subnet.summary(), "nodes: 3, links: 1")
        ports = list(self.subnet.graph.ports())
        self.assertIsNot(self.port("d"), before)
        for port in ports:
            self.assertIn(port.peer, (*ports, None))
            self.assertTrue(port.peer is None or port.peer.peer is port)

    def test_invalid(self) -> None:
        """
        A topology that is not valid changes nothing.
        """
        self.assertRaises(TopologyError, lambda: self.subnet.load(parse(STAR.replace("Ca", "Co"), "star")))
        self.assertEqual(self.subnet.summary(), "nodes: 3, links: 2")

    def test_capability(self) -> None:
        """
        IsSM comes and goes with its client, and trap 144 goes to the master.
        """
        self.manage()
        other = self.port("b")
        other.lid, other.smLID = 3, A
        switch = self.port("s").node.switch
        assert switch is not None
        switch.top, switch.linear[3] = 3, 2
        number = self.attach("b", manager=True)
        self.assertEqual([number for number, _ in self.traps()], [144])
        self.assertTrue(other.capMask & 2)
        self.server.gone(number)
        self.assertFalse(other.capMask & 2)

    def test_badKey(self) -> None:
        """
        A Set with another M_Key has no answer, and trap 256 goes to the master.
        """
        self.manage()
        port = self.port("s")
        port.mkey = 7
        answer = self.subnet.answer(port, Packet(A, S, 0, 0, bytearray(mad(SUBN, SET, 0x15))))
        self.assertIsNone(answer)
        self.assertEqual([number for number, _ in self.traps()], [256])
