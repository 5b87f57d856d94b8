"""
Tests of L{twisted_ib.subnet.sm.routing}.
"""

from __future__ import annotations

from random import Random

from twisted.trial.unittest import SynchronousTestCase

from tests.subnet.sm.subnets import adapter, link, ports, switch
from twisted_ib.subnet.network.switch import NO_PORT
from twisted_ib.subnet.sm.model import Model, Node
from twisted_ib.subnet.sm.routing import Routing


def built(switches: int, adapters: int, links: list[tuple[int, int]]) -> tuple[list[Node], list[Node]]:
    """
    @param adapters: of each switch.
    @param links: between switches, by their numbers.
    @return: the switches, and their adapters; LIDs count from 1, those of switches first.
    """
    made = [switch(number + 1, number + 1, 32) for number in range(switches)]
    ends: list[Node] = []
    free = [1] * switches
    for _ in range(adapters):
        for number, node in enumerate(made):
            ends.append(adapter(0x100 + len(ends), switches + len(ends) + 1))
            link((node, free[number], ends[-1], 1))
            free[number] += 1
    for one, other in links:
        link((made[one], free[one], made[other], free[other]))
        free[one] += 1
        free[other] += 1
    return made, ends


class RoutingCase(SynchronousTestCase):
    """
    Follows tables.
    """

    def unicast(self, nodes: list[Node]) -> dict[tuple[int, int], list[Node] | None]:
        """
        @return: (LID, LID) -> the nodes that a packet comes to.
        """
        for node, table in Routing(nodes).linear().items():
            assert node.switch is not None
            node.switch.linear = table
        model = Model()
        model.replace({node.guid: node for node in nodes}, None)
        found: dict[tuple[int, int], list[Node] | None] = {}
        for one in ports(nodes):
            for other in ports(nodes):
                path = model.path(one, other)
                found[one.lid, other.lid] = None if path is None else [port.node for port in path[1::2]]
        return found

    def reached(self, masks: dict[Node, int], source: Node) -> list[int]:
        """
        @return: the LIDs that a multicast packet of an adapter comes to.
        """
        found: list[int] = []
        turn = [source.ports[1].peer]
        for port in turn:
            assert port is not None and len(turn) < 200, "a loop"
            if port.node.switch is None:
                found.append(port.lid)
                continue
            for number in range(len(port.node.ports)):
                if masks.get(port.node, 0) >> number & 1 and number != port.number:
                    if number:
                        turn.append(port.node.ports[number].peer)
                    else:
                        found.append(port.node.ports[0].lid)
        return sorted(found)


class LinearTests(RoutingCase):
    """
    Linear forwarding tables.
    """

    def test_shortest(self) -> None:
        """
        All ways are as short as they can be, in random subnets.
        """
        for seed in range(20):
            random = Random(seed)
            count = random.randrange(2, 9)
            links = [(random.randrange(number), number) for number in range(1, count)]
            links += [(a, b) for a, b in (random.sample(range(count), 2) for _ in range(random.randrange(6)))]
            switches, ends = built(count, 1, links)
            ways = self.unicast(switches + ends)
            distances = [[0 if one == other else 99 for other in range(count)] for one in range(count)]
            for a, b in links:
                distances[a][b] = distances[b][a] = 1
            for middle in range(count):
                for one in range(count):
                    for other in range(count):
                        through = distances[one][middle] + distances[middle][other]
                        distances[one][other] = min(distances[one][other], through)
            for one in range(count):
                for other in range(count):
                    way = ways[count + one + 1, count + other + 1]
                    assert way is not None
                    # Switches, and the adapter.
                    expected = distances[one][other] + 2 if one != other else 0
                    self.assertEqual(len(way), expected, (seed, one, other))

    def test_balanced(self) -> None:
        """
        LIDs are spread over links that lead the same way.
        """
        switches, ends = built(2, 8, [(0, 1), (0, 1), (0, 1)])
        table = Routing(switches + ends).linear()[switches[0]]
        # Those of the other switch and of its adapters, by the ports 9, 10 and 11.
        self.assertEqual([table.count(number) for number in (9, 10, 11)], [3, 3, 3])
        self.assertEqual((table[0], table[1]), (NO_PORT, 0))

    def test_parted(self) -> None:
        """
        There is no way to what is not linked.
        """
        switches, ends = built(3, 1, [(0, 1)])
        ways = self.unicast(switches + ends)
        self.assertIsNone(ways[4, 6])
        self.assertIsNone(ways[1, 3])
        self.assertEqual(ways[4, 5], [switches[0], switches[1], ends[1]])

    def test_noSwitch(self) -> None:
        """
        Two CAs need no table, and one that is alone neither.
        """
        one, other = adapter(1, 1), adapter(2, 2)
        link((one, 1, other, 1))
        ways = self.unicast([one, other, adapter(3, 3)])
        self.assertEqual((ways[1, 2], ways[1, 3], ways[3, 3]), ([other], None, []))


class MulticastTests(RoutingCase):
    """
    Trees of multicast groups.
    """

    def test_tree(self) -> None:
        """
        From each member a packet comes to every other one once, and to nobody else, in random subnets.
        """
        for seed in range(20):
            random = Random(seed)
            count = random.randrange(1, 9)
            links = [(random.randrange(number), number) for number in range(1, count)]
            if count > 1:
                links += [(a, b) for a, b in (random.sample(range(count), 2) for _ in range(4))]
            switches, ends = built(count, 2, links)
            members = random.sample(ends, random.randrange(1, len(ends) + 1))
            listening = [*ports(members), *ports(switches[:1])]
            masks = Routing(switches + ends).multicast(listening, 0xC000 + seed)
            for member in members:
                expected = sorted(port.lid for port in listening if port.node is not member)
                self.assertEqual(self.reached(masks, member), expected, seed)

    def test_small(self) -> None:
        """
        Only switches that lead to members are on the tree.
        """
        switches, ends = built(4, 1, [(0, 1), (1, 2), (2, 3)])
        routing = Routing(switches + ends)
        self.assertEqual(routing.multicast([], 0xC000), {})
        self.assertEqual(routing.multicast([], 0xC000, ports(ends[1:2])), {})
        self.assertEqual(routing.multicast(ports(ends[1:2]), 0xC000), {switches[1]: 2})
        masks = routing.multicast(ports((ends[0], ends[2])), 0xC000)
        self.assertEqual(set(masks), set(switches[:3]))
        # From the port of one that only sends the way leads there, and none leads to it.
        masks = routing.multicast(ports(ends[:1]), 0xC000, ports(ends[2:3]))
        self.assertEqual(self.reached(masks, ends[2]), [port.lid for port in ports(ends[:1])])
        self.assertEqual(self.reached(masks, ends[0]), [])

    def test_spread(self) -> None:
        """
        Other groups use other links between the same switches.
        """
        switches, ends = built(2, 1, [(0, 1), (0, 1)])
        routing = Routing(switches + ends)
        used = {routing.multicast(ports(ends), 0xC000 + each)[switches[0]] for each in range(4)}
        self.assertEqual(used, {0b0110, 0b1010})

    def test_parted(self) -> None:
        """
        Members that are not linked with the others are left out; a CA without a switch has no tree.
        """
        switches, ends = built(3, 1, [(0, 1)])
        masks = Routing(switches + ends).multicast(ports(ends), 0xC000)
        self.assertEqual(set(masks), set(switches[:2]))
        one, other = adapter(1, 1), adapter(2, 2)
        link((one, 1, other, 1))
        self.assertEqual(Routing([one, other]).multicast(ports([one, other]), 0xC000), {})
