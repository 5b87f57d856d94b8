"""
Tests of L{twisted_ib.subnet.sm.sweep}, with nodes that answer what no true one does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.subnet.sm.subnets import answer
from twisted_ib import limits
from twisted_ib.hca.base.traits import NodeType
from twisted_ib.hca.mad.attributes.layouts import Attribute
from twisted_ib.hca.mad.attributes.node import NodeDescription, NodeInfo, SMInfo, SMState, SwitchInfo
from twisted_ib.hca.mad.attributes.port import Capability, PKeyTable, PortInfo
from twisted_ib.hca.wire.mad.classes import DirectedHeader
from twisted_ib.hca.wire.mad.mad import SET, Mad, decodeMAD
from twisted_ib.subnet.network.smi import MOST_HOPS
from twisted_ib.subnet.sm.requests import Requests
from twisted_ib.subnet.sm.sweep import Discovery

INIT = 2
CA, SWITCH = NodeType.CA, NodeType.SWITCH
#: Answers a Get: the route and the MAD; L{None} for no answer.
Script = Callable[[bytes, Mad], Attribute | None]


def node(kind: int, guid: int, number: int = 1, **fields: Any) -> NodeInfo:
    """
    @param number: the port that the request arrived at.
    @return: the NodeInfo of a node with four ports.
    """
    values = {
        "nodeType": kind,
        "guid": guid,
        "portGuid": guid,
        "localPort": number,
        "numPorts": 4,
        "partCap": 32,
    }
    return NodeInfo(**{**values, **fields})


class SweepCase(SynchronousTestCase):
    """
    A CA with GUID 1 at which the sweep begins, whose link leads to a switch with GUID 2, at whose ports 2 to
    4 are what a test says.
    """

    def setUp(self) -> None:
        """
        All ports of the switch are up, and its other ports lead nowhere.
        """
        self.lost: Counter[str] = Counter()
        self.sets: list[Mad] = []
        self.asked: list[tuple[bytes, int]] = []
        #: The NodeInfo at a route.
        self.nodes: dict[bytes, NodeInfo] = {b"": node(CA, 1), b"\1": node(SWITCH, 2)}
        self.special: dict[tuple[bytes, int], Attribute | None] = {}
        #: The answer to a Set.
        self.cleared: Attribute | None = SwitchInfo(linearFdbCap=64)
        #: The greatest number of requests that have waited at once.
        self.most = 0

    def count(self, name: str) -> None:
        """
        Count a loss.
        """
        self.lost[name] += 1

    def answer(self, route: bytes, mad: Mad) -> Attribute | None:
        """
        @return: the answer of the node at a route.
        """
        if mad.attribute not in (PortInfo.ID, PKeyTable.ID):
            self.assertEqual(mad.modifier, 0)
        if mad.method == SET:
            return self.cleared
        if (route, mad.attribute) in self.special:
            return self.special[route, mad.attribute]
        there = self.nodes.get(route)
        if there is None or mad.attribute == NodeInfo.ID:
            return there
        return {
            NodeDescription.ID: NodeDescription(description=b"node %d" % there.guid),
            SwitchInfo.ID: SwitchInfo(linearFdbCap=64),
            PortInfo.ID: PortInfo(linkState=INIT),
            PKeyTable.ID: PKeyTable(keys=(0xFFFF, *(0,) * 31)),
        }.get(mad.attribute)

    def sweep(self, script: Script | None = None, manages: bool = True) -> Discovery:
        """
        @return: a sweep that is over.
        """
        requests = Requests(0, self.count)
        found = Discovery(requests, self.count, manages)
        found.begin()
        now = 0.0
        while not requests.isIdle:
            requests.fill(now)
            packets = requests.outgoing()
            self.most = max(self.most, len(packets))
            for packet in packets:
                mad = decodeMAD(packet.octets)
                assert isinstance(mad.header, DirectedHeader) and isinstance(mad.data, bytes)
                route = mad.header.initialPath[1 : 1 + mad.classSpecific]
                if mad.method == SET:
                    self.sets.append(mad)
                self.asked.append((route, mad.attribute))
                reply = (script or self.answer)(route, mad)
                if reply is not None:
                    requests.received(answer(packet, reply.pack()))
            if not packets:
                now += limits.SM_TIMEOUT_SECONDS
                requests.expired(now)
        found.finish()
        return found

    def links(self, found: Discovery) -> set[tuple[int, int, int, int]]:
        """
        @return: node and port, node and port of each link, the lower first.
        """
        return {
            (each.guid, port.number, port.peer.node.guid, port.peer.number)
            for each in found.nodes.values()
            for port in each.ports.values()
            if port.peer is not None and (each.guid, port.number) < (port.peer.node.guid, port.peer.number)
        }


class DiscoveryTests(SweepCase):
    """
    A sweep finds nodes and links.
    """

    def test_found(self) -> None:
        """
        Nodes, descriptions, links, P_Keys and routes; a CA's other port is another end, and leads nowhere.
        """
        self.nodes[b"\1\2"] = node(CA, 3, 1)
        self.nodes[b"\1\3"] = node(CA, 3, 2, portGuid=33)
        self.nodes[b"\1\4"] = node(SWITCH, 4, 3)
        # A link between the switches a second time.
        self.nodes[b"\1\4\2"] = node(CA, 5)
        found = self.sweep()
        self.assertEqual(list(found.nodes), [1, 2, 3, 4, 5])
        expected = {(1, 1, 2, 1), (2, 2, 3, 1), (2, 3, 3, 2), (2, 4, 4, 3), (4, 2, 5, 1)}
        self.assertEqual(self.links(found), expected)
        self.assertIs(found.own, found.nodes[1].ports[1])
        routes = {port.guid: port.route for each in found.nodes.values() for port in each.ends()}
        expected_ = {1: b"", 2: b"\1", 3: b"\1\2", 33: b"\1\3", 4: b"\1\4", 5: b"\1\4\2"}
        self.assertEqual(routes, expected_)
        self.assertEqual(found.nodes[3].description.text, "node 3")
        self.assertEqual(found.nodes[3].ports[2].keys, (0xFFFF, *(0,) * 31))
        self.assertEqual(self.sets, [])
        # Only the links of the own CA and of switches are ways.
        self.assertFalse({route for route, _ in self.asked if route.startswith((b"\1\2\1", b"\1\3\2"))})

    def test_trunk(self) -> None:
        """
        Two links between two switches, each asked from one end.
        """
        self.nodes[b"\1\2"] = node(SWITCH, 4, 1)
        self.nodes[b"\1\3"] = node(SWITCH, 4, 2)
        found = self.sweep()
        self.assertEqual(self.links(found), {(1, 1, 2, 1), (2, 2, 4, 1), (2, 3, 4, 2)})
        self.assertEqual(self.lost, {"sm_unanswered": 3})

    def test_stateChange(self) -> None:
        """
        That a port of a switch has changed its state is cleared before its ports are asked.
        """
        self.special[b"\1", SwitchInfo.ID] = SwitchInfo(stateChange=1, linearFdbCap=64)
        found = self.sweep()
        self.assertEqual([mad.attribute for mad in self.sets], [SwitchInfo.ID])
        info = found.nodes[2].switch and found.nodes[2].switch.info
        self.assertEqual(info, SwitchInfo(linearFdbCap=64))
        order = [attribute for route, attribute in self.asked if route == b"\1"]
        self.assertLess(len(order) - 1 - order[::-1].index(SwitchInfo.ID), order.index(PortInfo.ID))

    def test_looks(self) -> None:
        """
        One that does not manage asks for no P_Keys and no manager, and leaves StateChange as it is.
        """
        self.special[b"\1", SwitchInfo.ID] = SwitchInfo(stateChange=1)
        self.special[b"\1", PortInfo.ID] = PortInfo(linkState=INIT, capMask=Capability.SM)
        found = self.sweep(manages=False)
        self.assertEqual((self.links(found), found.isComplete), ({(1, 1, 2, 1)}, False))
        self.assertEqual(self.sets, [])
        self.assertTrue({attribute for _, attribute in self.asked}.isdisjoint((PKeyTable.ID, SMInfo.ID)))

    def test_notCleared(self) -> None:
        """
        When that is not answered the ports are asked all the same, and the sweep is not complete.
        """
        self.nodes.update({bytes((1, number)): node(CA, 7 + number) for number in (2, 3, 4)})
        self.assertTrue(self.sweep().isComplete)
        self.special[b"\1", SwitchInfo.ID] = SwitchInfo(stateChange=1, linearFdbCap=64)
        self.cleared = None
        found = self.sweep()
        self.assertEqual((len(found.nodes), found.isComplete), (5, False))

    def test_managers(self) -> None:
        """
        Ports that have a subnet manager are asked for it; its GUID is that of the port.
        """
        self.nodes[b"\1\2"] = node(CA, 3)
        self.special[b"\1\2", PortInfo.ID] = PortInfo(linkState=INIT, capMask=Capability.SM)
        self.special[b"\1\2", SMInfo.ID] = SMInfo(smInfoGuid=7, smPriority=4, smState=SMState.STANDBY)
        found = self.sweep()
        self.assertEqual(
            [(port.guid, info) for port, info in found.managers],
            [(3, SMInfo(smInfoGuid=3, smPriority=4, smState=SMState.STANDBY))],
        )

    def test_alone(self) -> None:
        """
        The link of the own port is down; or the own port does not answer at all.
        """
        self.special[b"", PortInfo.ID] = PortInfo(linkState=1)
        found = self.sweep()
        self.assertEqual((list(found.nodes), found.isComplete), ([1], True))
        self.special[b"", PortInfo.ID] = None
        found = self.sweep()
        self.assertEqual((found.nodes, found.own, found.isComplete), ({}, None, False))
        self.nodes.clear()
        self.assertIsNone(self.sweep().own)

    def test_window(self) -> None:
        """
        However many ports there are, no more requests wait than the window has room for.
        """
        self.nodes[b"\1"] = node(SWITCH, 2, numPorts=254)
        for number in range(2, 255):
            self.nodes[bytes((1, number))] = node(CA, 1000 + number)
        found = self.sweep()
        self.assertEqual((len(found.nodes), self.most), (255, limits.SM_WINDOW))


class BadAnswerTests(SweepCase):
    """
    Nodes that answer badly, or not.
    """

    def test_invalid(self) -> None:
        """
        A NodeInfo that cannot be is dropped, and the rest is found.
        """
        self.nodes[b"\1\3"] = node(CA, 9)
        for invalid in (
            node(0, 3),
            node(4, 3),
            node(CA, 0, portGuid=3),
            node(CA, 3, portGuid=0),
            node(CA, 3, 0),
            node(CA, 3, 5),
            node(SWITCH, 3, numPorts=255),
        ):
            self.lost.clear()
            self.nodes[b"\1\2"] = invalid
            found = self.sweep()
            self.assertEqual((list(found.nodes), found.isComplete), ([1, 2, 9], False), invalid)
            self.assertEqual(self.lost["sm_invalid"], 1, invalid)

    def test_duplicate(self) -> None:
        """
        A GUID, or the GUID of a port, that is elsewhere too: the first one that was found stays.
        """
        self.nodes[b"\1\2"] = node(CA, 3)
        for other in (
            node(CA, 3),
            node(CA, 3, 2),
            node(CA, 4, portGuid=3),
            node(CA, 2),
            node(SWITCH, 3),
            node(SWITCH, 2, 2),
            node(SWITCH, 4, portGuid=3),
            node(CA, 3, numPorts=1),
        ):
            self.lost.clear()
            self.nodes[b"\1\3"] = other
            found = self.sweep()
            self.assertEqual(self.links(found), {(1, 1, 2, 1), (2, 2, 3, 1)}, other)
            self.assertEqual((list(found.nodes), self.lost["sm_duplicate_guid"]), ([1, 2, 3], 1), other)

    def test_silent(self) -> None:
        """
        Nodes that do not answer all that they must are left out, with their links.
        """
        self.nodes[b"\1\2"] = node(CA, 3)
        self.nodes[b"\1\3"] = node(SWITCH, 4, 1)
        self.nodes[b"\1\4"] = node(CA, 5)
        self.special[b"\1\2", PortInfo.ID] = None
        self.special[b"\1\3", SwitchInfo.ID] = None
        self.special[b"\1\4", NodeDescription.ID] = None
        found = self.sweep()
        self.assertEqual((list(found.nodes), found.isComplete), ([1, 2, 5], False))
        self.assertEqual(self.links(found), {(1, 1, 2, 1), (2, 4, 5, 1)})

    def test_nodes(self) -> None:
        """
        One that makes nodes up without end gets so many, and a path of so many hops.
        """
        made = iter(range(100, 1 << 20))

        def invent(route: bytes, mad: Mad) -> Attribute | None:
            if mad.attribute == NodeInfo.ID and len(route) > 1:
                return node(SWITCH, next(made), 1, numPorts=2)
            found = self.answer(route, mad)
            return found or self.answer(b"\1", mad)

        self.nodes[b"\1"] = node(SWITCH, 2, numPorts=2)
        found = self.sweep(invent)
        self.assertEqual(max(len(route) for route, _ in self.asked), MOST_HOPS)
        self.assertEqual(len(found.nodes), MOST_HOPS + 1)
        self.patch(limits, "SUBNET_NODES", 10)
        found = self.sweep(invent)
        self.assertEqual((len(found.nodes), self.lost), (10, {"sm_too_many_nodes": 1}))

    def test_keys(self) -> None:
        """
        A port that says its P_Key table is enormous is asked for as many as a table has at most.
        """
        self.nodes[b"\1\2"] = node(CA, 3, partCap=0xFFFF)
        found = self.sweep()
        self.assertEqual(len(found.nodes[3].ports[1].keys), limits.PARTITIONS)
        self.assertEqual(self.asked.count((b"\1\2", PKeyTable.ID)), limits.PARTITIONS // 32)
