"""
Tests for the way of management datagrams through a subnet.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.hca.base.port import PortState
from twisted_ib.limits import SUBNET_HOPS
from twisted_ib.subnet.network.graph import Node, Port, build
from twisted_ib.subnet.network.smi import DELIVER, DISCARD, NO_SWITCH, ROUTE, Carrier, Packet, step
from twisted_ib.subnet.network.topology import parse

SENT = None
#: A port that it arrived at, and a LID.
IN, LID = 7, 0x12
SWITCH, CA = True, False

#: With two hops: whether it returns, hop pointer, port of arrival, whether the node is a switch, whether LIDs
#: are permissive; what is done, and the hop pointer afterwards (IBTA vol. 1 14.2.2, C14-6 to C14-13).
STEPS = (
    # Sent: the first hop.
    (0, 0, SENT, CA, True, 1, 1),
    (0, 0, SENT, SWITCH, True, 1, 1),
    (0, 0, SENT, CA, False, 1, 1),
    # Nobody but the sender has hop pointer 0.
    (0, 0, IN, CA, True, DISCARD, 0),
    (0, 0, IN, SWITCH, True, DISCARD, 0),
    # Within its path: on, by switches.
    (0, 1, IN, SWITCH, True, 2, 2),
    (0, 1, IN, CA, True, NO_SWITCH, 1),
    (0, 1, SENT, SWITCH, True, DISCARD, 1),
    # At its path's end.
    (0, 2, IN, CA, True, DELIVER, 3),
    (0, 2, IN, SWITCH, True, DELIVER, 3),
    (0, 2, IN, SWITCH, False, ROUTE, 3),
    (0, 2, IN, CA, False, NO_SWITCH, 3),
    (0, 2, SENT, CA, True, DISCARD, 2),
    # Behind it, after a LID-routed part.
    (0, 3, IN, CA, True, DELIVER, 3),
    (0, 3, SENT, CA, True, DISCARD, 3),
    (0, 4, IN, CA, True, DISCARD, 4),
    (0, 255, IN, SWITCH, True, DISCARD, 255),
    # Returning: sent by the responder.
    (1, 3, SENT, CA, True, 12, 2),
    (1, 3, SENT, SWITCH, True, 12, 2),
    (1, 2, IN, SWITCH, True, 11, 1),
    (1, 2, IN, CA, True, NO_SWITCH, 2),
    (1, 2, SENT, SWITCH, True, DISCARD, 2),
    # At the sender of the request.
    (1, 1, IN, CA, True, DELIVER, 0),
    (1, 1, IN, SWITCH, True, DELIVER, 0),
    (1, 1, IN, SWITCH, False, ROUTE, 0),
    (1, 1, IN, CA, False, NO_SWITCH, 1),
    (1, 1, SENT, CA, True, DISCARD, 1),
    (1, 0, IN, CA, True, DELIVER, 0),
    (1, 0, SENT, CA, True, DISCARD, 0),
    (1, 4, SENT, CA, True, DISCARD, 4),
)


def smp(returning: int, pointer: int, count: int, permissive: bool = True) -> bytearray:
    """
    @return: a directed-route SMP with initial path 1, 2 and return path 11, 12.
    """
    octets = bytearray(256)
    octets[:8] = bytes((1, 0x81, 1, 1, 0x80 * returning, 0, pointer, count))
    octets[32:36] = b"\xff" * 4 if permissive else LID.to_bytes(2, "big") * 2
    octets[129:131] = 1, 2
    octets[193:195] = 11, 12
    return octets


class StepTests(SynchronousTestCase):
    """
    One node's decision.
    """

    def test_table(self) -> None:
        """
        Each row of the table.
        """
        for row in STEPS:
            returning, pointer, ingress, switch, permissive, action, after = row
            octets = smp(returning, pointer, 2, permissive)
            self.assertEqual(step(octets, switch, ingress), action, row)
            self.assertEqual(octets[6], after, row)
            # The return path has the port of arrival, at each hop outward.
            expected = bytearray((0, 11, 12))
            if not returning and pointer in (1, 2) and ingress is not None and action != NO_SWITCH:
                expected[pointer] = IN
            elif (pointer, action) == (2, NO_SWITCH) and not returning:
                expected[pointer] = IN
            self.assertEqual(octets[192:195], expected, row)

    def test_here(self) -> None:
        """
        Without hops it is for the sender's own node, and so is the response.
        """
        for switch in (SWITCH, CA):
            octets = smp(0, 0, 0)
            self.assertEqual((step(octets, switch, None), octets[6]), (DELIVER, 1))
            octets = smp(1, 1, 0)
            self.assertEqual((step(octets, switch, None), octets[6]), (DELIVER, 0))

    def test_longest(self) -> None:
        """
        63 hops are possible, 64 are discarded.
        """
        for returning, pointer in ((0, 0), (1, 64)):
            self.assertGreaterEqual(step(smp(returning, pointer, 63), SWITCH, None), 0)
            self.assertEqual(step(smp(returning, pointer, 64), SWITCH, None), DISCARD)

    def test_anything(self) -> None:
        """
        No hop pointer, hop count or direction is an error, and each leaves by a port or ends.
        """
        for returning in (0, 1):
            for pointer in range(256):
                for count in (0, 1, 2, 62, 63, 64, 255):
                    for switch, ingress in ((SWITCH, IN), (SWITCH, None), (CA, IN), (CA, None)):
                        action = step(smp(returning, pointer, count), switch, ingress)
                        self.assertIn(action, range(NO_SWITCH, 256))


#: Two switches with two links between them, and a CA at each.
TRUNKS = """\
Switch 4 "s"
[1] "a"[1]
[2] "t"[2]
[3] "t"[3]

Switch 4 "t"
[1] "b"[1]
[2] "s"[2]
[3] "s"[3]

Ca 2 "a"
[1] "s"[1]

Ca 2 "b"
[1] "t"[1]
"""
#: LIDs.
A, B, S, T = 1, 2, 3, 4
SUBN, DIRECTED, PERFORMANCE = 0x01, 0x81, 0x04


class CarrierTests(SynchronousTestCase):
    """
    The way over two switches.
    """

    def setUp(self) -> None:
        """
        Make them, with LIDs and forwarding tables; the links are in Init.
        """
        self.graph, nodes = build(parse(TRUNKS, "trunks"))
        self.nodes: dict[str, Node] = nodes
        self.lost: Counter[str] = Counter()
        self.carrier = Carrier(lambda name: self.lost.update((name,)))
        for name, lid in (("a", A), ("b", B), ("s", S), ("t", T)):
            self.end(name).lid = lid
        self.set("s", {A: 1, B: 2, S: 0, T: 3})
        self.set("t", {A: 2, B: 1, S: 3, T: 0})

    def set(self, name: str, routes: dict[int, int]) -> None:
        """
        Set LFT entries of a switch.
        """
        switch = self.nodes[name].switch
        assert switch is not None
        switch.top = 0x40
        for lid, port in routes.items():
            switch.linear[lid] = port

    def port(self, name: str, number: int) -> Port:
        """
        @return: a port that there is.
        """
        port = self.nodes[name].port(number)
        assert port is not None
        return port

    def end(self, name: str) -> Port:
        """
        @return: the port that has the LID.
        """
        return self.port(name, 1 if self.nodes[name].switch is None else 0)

    def routed(self, name: str, lid: int, class_: int = SUBN) -> Port | None:
        """
        Send a LID-routed MAD.
        """
        octets = bytearray(256)
        octets[1] = class_
        return self.carrier.carry(self.end(name), Packet(self.end(name).lid, lid, 0, 0, octets))

    def directed(self, name: str, octets: bytearray, dlid: int = 0xFFFF) -> Port | None:
        """
        Send a directed-route SMP.
        """
        return self.carrier.carry(self.end(name), Packet(0xFFFF, dlid, 0, 0, octets))

    def path(self, *hops: int) -> bytearray:
        """
        @return: an SMP with an initial path.
        """
        octets = bytearray(256)
        octets[1], octets[7] = DIRECTED, len(hops)
        octets[32:36] = b"\xff" * 4
        octets[129 : 129 + len(hops)] = bytes(hops)
        return octets

    def test_thereAndBack(self) -> None:
        """
        An SMP notes its way, and the response goes back by it.
        """
        octets = self.path(1, 3, 1)
        self.assertIs(self.directed("a", octets), self.port("b", 1))
        self.assertEqual((octets[6], octets[193:197]), (4, bytearray((1, 3, 1, 0))))
        octets[4] = 0x80
        self.assertIs(self.directed("b", octets), self.port("a", 1))
        self.assertEqual(octets[6], 0)

    def test_watched(self) -> None:
        """
        Who watches a port is told of each MAD that leaves it or arrives, as it is on that link; what has not
        crossed a link has passed nothing.
        """
        told: list[tuple[str, bool, int]] = []
        packets: list[Packet] = []

        def watch(name: str, isOutbound: bool, packet: Packet) -> None:
            packets.append(packet)
            told.append((name, isOutbound, packet.octets[6]))

        for name in "ab":
            self.carrier.watched[self.port(name, 1)] = partial(watch, name)
        self.directed("a", self.path(1, 3, 1))
        self.assertEqual(told, [("a", True, 1), ("b", False, 3)])
        # The hops behind have changed another one.
        self.assertEqual([packet.octets[6] for packet in packets], [1, 3])
        self.directed("a", self.path())
        self.routed("t", S)
        self.assertEqual(len(told), 2)
        self.routed("b", A)
        self.assertEqual(told[2:], [("b", True, 0), ("a", False, 0)])

    def test_atSwitch(self) -> None:
        """
        At a switch it has come to the port that it came in by.
        """
        self.assertIs(self.directed("a", self.path(1, 2)), self.port("t", 2))
        self.assertIs(self.directed("a", self.path()), self.port("a", 1))
        self.assertIs(self.directed("s", self.path(3)), self.port("t", 3))

    def test_badPath(self) -> None:
        """
        A path through a CA, by a port that is not there or has no link, or by a CA's other port.
        """
        for hops, reason in (
            ((1, 1, 1), "smp_not_switch"),
            ((1, 9), "mad_no_link"),
            ((1, 0), "mad_no_link"),
            ((1, 4), "mad_no_link"),
            ((2,), "smp_discarded"),
        ):
            self.lost.clear()
            self.assertIsNone(self.directed("a", self.path(*hops)))
            self.assertEqual(self.lost, {reason: 1}, hops)

    def test_mixed(self) -> None:
        """
        The first and the last part of a directed route may be LID routed, there and back.
        """
        octets = self.path(3)
        octets[32:36] = bytes((0, A, 0, B))
        self.assertIs(self.directed("a", octets, S), self.port("b", 1))
        octets[4] = 0x80
        self.assertIs(self.directed("b", octets, T), self.port("a", 1))

    def test_routed(self) -> None:
        """
        By forwarding tables, from CAs and from switches; the way to oneself has no links.
        """
        self.assertIs(self.routed("a", B), self.port("b", 1))
        self.assertIs(self.routed("a", T), self.port("t", 3))
        self.assertIs(self.routed("a", A), self.port("a", 1))
        self.assertIs(self.routed("t", A), self.port("a", 1))
        self.assertIs(self.routed("t", T), self.port("t", 0))

    def test_pathBits(self) -> None:
        """
        LMC gives a port several LIDs.
        """
        self.end("b").lid, self.end("b").lmc = 0x10, 2
        self.set("s", {0x13: 2, 0x14: 2})
        self.set("t", {0x13: 1, 0x14: 1})
        self.assertIs(self.routed("a", 0x13), self.port("b", 1))
        self.assertIsNone(self.routed("a", 0x14))
        self.assertEqual(self.lost, {"mad_no_route": 1})

    def test_noRoute(self) -> None:
        """
        Nobody has the LID; or a switch believes itself to have it.
        """
        self.set("s", {0x20: 0})
        for lid in (9, 0, 0x20, 0xC000, 0xFFFF):
            self.assertIsNone(self.routed("a", lid))
        self.assertEqual(self.lost, {"mad_no_route": 5})

    def test_loop(self) -> None:
        """
        Forwarding tables that send a packet in circles.
        """
        self.set("s", {0x20: 2})
        self.set("t", {0x20: 2})
        self.assertIsNone(self.routed("a", 0x20))
        self.assertEqual(self.lost, {"mad_loop": 1})

    def test_states(self) -> None:
        """
        A link in Init carries subnet management alone; an Active one everything, also if its other end is
        Armed; one that is down nothing.
        """
        self.assertIsNone(self.routed("a", S, PERFORMANCE))
        self.port("a", 1).state = PortState.ACTIVE
        self.assertIsNone(self.routed("a", S, PERFORMANCE))
        self.port("s", 1).state = PortState.ARMED
        self.assertIs(self.routed("a", S, PERFORMANCE), self.port("s", 1))
        self.assertEqual(self.lost, {"mad_not_active": 2})
        self.graph.unlink(self.port("a", 1))
        self.assertIsNone(self.routed("a", S))
        self.assertEqual(self.lost["mad_no_link"], 1)

    def test_longest(self) -> None:
        """
        A line of as many switches as a packet may pass, and of one more.
        """
        for count in (SUBNET_HOPS - 1, SUBNET_HOPS):
            lines = [
                f'Switch 2 "{number}"\n[1] "{number - 1}"[2]\n[2] "{number + 1}"[1]\n'
                for number in range(1, count + 1)
            ]
            ends = f'Ca 2 "0"\n[2] "1"[1]\n\nCa 2 "{count + 1}"\n[1] "{count}"[2]\n'
            _, self.nodes = build(parse("\n".join((*lines, ends)), "line"))
            self.port(str(count + 1), 1).lid = 5
            for number in range(1, count + 1):
                self.set(str(number), {5: 2})
            packet = Packet(6, 5, 0, 0, bytearray((1, SUBN, *bytes(254))))
            arrived = self.carrier.carry(self.port("0", 2), packet)
            self.assertEqual(arrived is None, count == SUBNET_HOPS)
        self.assertEqual(self.lost, {"mad_loop": 1})
