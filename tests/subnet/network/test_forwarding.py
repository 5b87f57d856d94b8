"""
Tests for the ways of data through a subnet.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.subnet.port.subnets import LEAVES
from twisted_ib import limits
from twisted_ib.hca.base.port import PortState
from twisted_ib.subnet.network.forwarding import Forwarding
from twisted_ib.subnet.network.graph import Port, build
from twisted_ib.subnet.network.switch import FIRST_MULTICAST_LID, NO_PORT
from twisted_ib.subnet.network.topology import parse

GROUP = FIRST_MULTICAST_LID + 3
A, B, C, D, S, T = range(1, 7)
#: Ports to A, B, C, D, S and T.
TABLES = {"s": (1, 2, 3, 3, 0, 3), "t": (3, 3, 1, 2, 3, 0)}


class ForwardingTests(SynchronousTestCase):
    """
    Two switches with a link, and two CAs at each.
    """

    def setUp(self) -> None:
        """
        As a manager leaves them.
        """
        self.graph, self.nodes = build(parse(LEAVES, "leaves"))
        for lid, name in enumerate("abcdst", 1):
            self.port(name).lid = lid
        for name, table in TABLES.items():
            switch = self.nodes[name].switch
            assert switch is not None
            switch.linear[1 : len(table) + 1] = bytes(table)
            switch.top = len(table)
        for port in self.graph.ports():
            port.state = PortState.ACTIVE
        self.forwarding = Forwarding()

    def port(self, name: str, number: int | None = None) -> Port:
        """
        @return: the port of a node with a number, or its first.
        """
        node = self.nodes[name]
        port = next(node.each()) if number is None else node.port(number)
        assert port is not None
        return port

    def ways(self, *names: str) -> list[str]:
        """
        @return: where each LID leads to from CAs.
        """
        found = []
        for name in names or "abcd":
            ends = [self.forwarding.unicast(self.port(name), lid) for lid in range(1, 7)]
            found.append("".join("-" if end is None else end.node.description for end in ends))
        return found

    def route(self, name: str, lid: int, number: int) -> None:
        """
        Change an entry of a switch.
        """
        switch = self.nodes[name].switch
        assert switch is not None
        switch.linear[lid] = number
        self.forwarding.changed()

    def groups(self, *masks: tuple[str, int]) -> None:
        """
        Set the ports of the group at switches.
        """
        for name, mask in masks:
            switch = self.nodes[name].switch
            assert switch is not None
            switch.multicast[GROUP - FIRST_MULTICAST_LID] = mask
        self.forwarding.changed()

    def members(self, name: str) -> str:
        """
        @return: the nodes that a datagram to the group arrives at.
        """
        guids = self.forwarding.group(self.port(name), GROUP)
        return "".join(each for each in "abcd" if self.port(each).guid in guids)

    def test_everywhere(self) -> None:
        """
        Each LID leads to its port from everywhere, and to itself; others lead nowhere.
        """
        self.assertEqual(self.ways(), ["abcdst"] * 4)
        for lid in (0, 7, 0xBFFF, 0xC000):
            self.assertIsNone(self.forwarding.unicast(self.port("a"), lid))

    def test_oneSwitch(self) -> None:
        """
        An entry of one switch that leads nowhere takes the LID from the CAs behind that switch alone.
        """
        self.route("t", A, NO_PORT)
        self.assertEqual(self.ways(), ["abcdst", "abcdst", "-bcdst", "-bcdst"])
        connects = [self.forwarding.connects(self.port("a"), self.port(each)) for each in "abcd"]
        self.assertEqual(connects, [True, True, False, False])
        self.assertFalse(self.forwarding.connects(self.port("c"), self.port("a")))

    def test_astray(self) -> None:
        """
        A packet that comes to another CA, to a loop, to a switch that it is not for, or to a port without a
        link, is lost.
        """
        for number in (2, 0, 4, 9):
            self.route("s", A, number)
            self.assertEqual(self.ways("b"), ["-bcdst"])
        self.route("s", C, 3)
        self.route("t", C, 3)
        self.assertEqual(self.ways("b"), ["-b-dst"])

    def test_states(self) -> None:
        """
        Data passes links that are Active, and arrives at ports that are Armed.
        """
        self.port("a").state = PortState.ARMED
        self.forwarding.changed()
        self.assertEqual(self.ways(), ["------", "abcdst", "abcdst", "abcdst"])
        self.port("a").state = PortState.INIT
        self.port("s", 3).state = PortState.DOWN
        self.forwarding.changed()
        self.assertEqual(self.ways(), ["------", "-b--s-", "--cd-t", "--cd-t"])

    def test_pathBits(self) -> None:
        """
        All LIDs of a port lead there, each by its own entry.
        """
        port = self.port("a")
        port.lid, port.lmc = 8, 2
        for name in "st":
            switch = self.nodes[name].switch
            assert switch is not None
            switch.top = 11
            switch.linear[8:12] = bytes((1, 1, NO_PORT, 1) if name == "s" else (3,) * 4)
        self.forwarding.changed()
        ends = [self.forwarding.unicast(self.port("c"), lid) for lid in range(7, 13)]
        self.assertEqual(ends, [None, port, port, None, port, None])

    def test_generations(self) -> None:
        """
        Ways that were found are kept until something changes, and so is their bound.
        """
        generation = self.forwarding.generation
        self.assertEqual(self.ways("a"), ["abcdst"])
        switch = self.nodes["s"].switch
        assert switch is not None
        switch.linear[B] = NO_PORT
        self.assertEqual(self.ways("a"), ["abcdst"])
        self.patch(limits, "SUBNET_ROUTES", 4)
        self.assertEqual(self.ways("c"), ["a-cdst"])
        self.assertLessEqual(len(self.forwarding._ways), 4)
        self.forwarding.changed()
        self.assertEqual(self.ways("a"), ["a-cdst"])
        self.assertNotEqual(self.forwarding.generation, generation)

    def test_group(self) -> None:
        """
        A datagram to a group takes the ports of each switch's table, but that which it came by.
        """
        self.groups(("s", 0b1110), ("t", 0b1010))
        self.assertEqual([self.members(each) for each in "abcd"], ["bc", "ac", "ab", "abc"])
        self.assertIs(
            self.forwarding.group(self.port("a"), GROUP), self.forwarding.group(self.port("a"), GROUP)
        )
        self.assertEqual(self.forwarding.group(self.port("a"), GROUP + 1), ())

    def test_groupLoop(self) -> None:
        """
        A loop of tables ends, and nobody gets what he sent.
        """
        ports = self.port("s", 4), self.port("t", 4)
        for port in ports:
            port.state = PortState.DOWN
        self.graph.link(*ports)
        for port in ports:
            port.state = PortState.ACTIVE
        self.groups(("s", 0b11110), ("t", 0b11110))
        self.assertEqual([self.members(each) for each in "abcd"], ["bcd", "acd", "abd", "abc"])

    def test_groupBound(self) -> None:
        """
        A group has so many members at most.
        """
        self.patch(limits, "MULTICAST_MEMBERS", 2)
        self.patch(limits, "SUBNET_ROUTES", 1)
        self.groups(("s", 0b1110), ("t", 0b1110))
        for name in "ab":
            self.assertEqual(len(self.members(name)), 2)
        self.assertEqual(len(self.forwarding._groups), 1)
