"""
Tests of L{twisted_ib.subnet.network.graph}.
"""

from __future__ import annotations

from typing import ClassVar

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.base.machines import MachineTestsMixin
from twisted_ib import limits
from twisted_ib.errors import ResourceLimitError
from twisted_ib.hca.base.port import PhysicalState, PortState
from twisted_ib.hca.base.port import Port as DevicePort
from twisted_ib.hca.base.traits import NodeType
from twisted_ib.subnet.network.graph import TRANSITIONS, Change, LinkInput, Node, Port, build
from twisted_ib.subnet.network.topology import parse

DOWN, INIT, ARMED, ACTIVE = PortState
POLLING, SLEEP, DISABLED = PhysicalState.POLLING, PhysicalState.SLEEP, PhysicalState.DISABLED
LINK_UP = PhysicalState.LINK_UP

TOPOLOGY = """
Switch 8 "Switch1"
[1] "Hca1"[1]
[2] "Hca2"[1]

Hca 2 "Hca1"
[1] "Switch1"[1]

Hca 2 "Hca2"
[1] "Switch1"[2]
"""


class GraphTestCase(SynchronousTestCase):
    """
    A switch with two CAs.
    """

    def setUp(self) -> None:
        """
        Build it.
        """
        self.graph, nodes = build(parse(TOPOLOGY, "test"))
        self.switch, self.one, self.other = nodes.values()
        self.near, self.far = self.port(self.one, 1), self.port(self.switch, 1)

    def port(self, node: Node, number: int) -> Port:
        """
        @return: a port that is there.
        """
        port = node.port(number)
        assert port is not None
        return port

    def states(self) -> tuple[PortState, PortState]:
        """
        @return: those of the first link's ends.
        """
        return self.near.state, self.far.state

    def activate(self) -> None:
        """
        Bring both ends of the first link to Active.
        """
        for port in (self.near, self.far):
            for state in (ARMED, ACTIVE):
                self.assertEqual(port.setState(state), [Change(port)])

    def stateChange(self) -> bool:
        """
        @return: the switch's flag, which is cleared.
        """
        assert self.switch.switch is not None
        found, self.switch.switch.stateChange = self.switch.switch.stateChange, False
        return found


class StateTests(MachineTestsMixin, GraphTestCase):
    """
    The state machine of a link.
    """

    machine = TRANSITIONS
    stateType, inputType = PortState, LinkInput
    #: What follows in each state.
    expected: ClassVar = {
        LinkInput.TRAINED: (INIT, None, None, None),
        LinkInput.LOST: (None, DOWN, DOWN, DOWN),
        LinkInput.DOWN: (DOWN, DOWN, DOWN, DOWN),
        LinkInput.ARM: (None, ARMED, ARMED, None),
        LinkInput.ACTIVATE: (None, None, ACTIVE, ACTIVE),
    }

    def check(self, state: PortState, given: LinkInput) -> None:
        """
        The table has what is above.
        """
        states = dict(zip(PortState, self.expected[given], strict=True))
        self.assertEqual(TRANSITIONS.get((state, given)), states[state], (state, given))

    def test_set(self) -> None:
        """
        Each state set in each state: what is refused changes nothing.
        """
        allowed = {
            DOWN: {DOWN: DOWN},
            INIT: {DOWN: INIT, ARMED: ARMED},
            ARMED: {DOWN: INIT, ARMED: ARMED, ACTIVE: ACTIVE},
            ACTIVE: {DOWN: INIT, ACTIVE: ACTIVE},
        }
        for state in PortState:
            for wanted in range(16):
                self.graph.unlink(self.near)
                if state is not DOWN:
                    self.graph.link(self.near, self.far)
                    self.near.state = state
                changes = self.near.setState(wanted)
                follows = allowed[state].get(PortState(wanted)) if 1 <= wanted <= 4 else None
                self.assertEqual(changes is None, follows is None, (state, wanted))
                self.assertEqual(self.near.state, follows or state, (state, wanted))

    def test_activated(self) -> None:
        """
        A new link is in Init; what a subnet manager sets is no StateChange.
        """
        self.assertEqual(self.states(), (INIT, INIT))
        self.assertTrue(self.stateChange())
        self.activate()
        self.assertEqual(self.states(), (ACTIVE, ACTIVE))
        self.assertFalse(self.stateChange())
        self.assertEqual(self.near.setState(ACTIVE), [])

    def test_unlinked(self) -> None:
        """
        A cable is pulled, and plugged in again: both ends go down by themselves, and come up in Init.
        """
        self.activate()
        self.stateChange()
        changes = self.graph.unlink(self.near)
        self.assertEqual(changes, [Change(self.near, True), Change(self.far, True)])
        self.assertEqual(self.states(), (DOWN, DOWN))
        self.assertEqual((self.near.physicalState, self.far.physicalState), (POLLING, POLLING))
        self.assertTrue(self.stateChange())
        self.assertEqual(self.graph.unlink(self.near), [])
        changes = self.graph.link(self.far, self.near)
        self.assertEqual(changes, [Change(self.far, True), Change(self.near, True)])
        self.assertEqual(self.states(), (INIT, INIT))

    def test_setDown(self) -> None:
        """
        A port that a subnet manager sets Down is trained again; only the other end goes down by itself.
        """
        self.activate()
        self.stateChange()
        changes = self.near.setState(DOWN)
        self.assertEqual(
            changes,
            [Change(self.near), Change(self.far, True), Change(self.near, True), Change(self.far, True)],
        )
        self.assertEqual(self.states(), (INIT, INIT))
        self.assertTrue(self.stateChange())

    def test_sleep(self) -> None:
        """
        A port whose default is Sleep is woken by one that polls; of two that sleep none is.
        """
        self.near.downDefault = SLEEP
        self.near.setState(DOWN)
        self.assertEqual(self.states(), (INIT, INIT))
        self.far.downDefault = SLEEP
        self.near.setState(DOWN)
        self.assertEqual(self.states(), (DOWN, DOWN))
        self.assertEqual(self.far.physicalState, SLEEP)
        self.far.setPhysicalState(POLLING)
        self.assertEqual(self.states(), (INIT, INIT))

    def test_disabled(self) -> None:
        """
        A disabled port stays down, whatever the other end does, until it polls.
        """
        self.activate()
        self.stateChange()
        # PortState was not what was set: it followed by itself, at both ends.
        self.assertEqual(
            self.far.setPhysicalState(DISABLED), [Change(self.far, True), Change(self.near, True)]
        )
        self.assertTrue(self.stateChange())
        self.assertEqual(self.states(), (DOWN, DOWN))
        self.assertEqual(self.far.setPhysicalState(DISABLED), [])
        for state in (SLEEP, POLLING):
            self.assertEqual(self.near.setPhysicalState(state), [Change(self.near)])
        self.assertEqual(self.states(), (DOWN, DOWN))
        self.far.setPhysicalState(POLLING)
        self.assertEqual(self.states(), (INIT, INIT))

    def test_setWhileUp(self) -> None:
        """
        A port without a cable only polls.
        """
        port = self.port(self.one, 2)
        self.assertEqual(port.setPhysicalState(POLLING), [])
        self.assertEqual(port.setState(DOWN), [])
        self.assertIsNone(port.setState(ARMED))

    def test_widthAndSpeed(self) -> None:
        """
        A link has the widest width and the highest speed that both ends enable; without one it stays down.
        """
        self.near.linkWidthEnabled, self.near.linkSpeedEnabled = 0x1F, 7
        self.far.linkWidthEnabled, self.far.linkSpeedEnabled = 0x13, 3
        self.near.setState(DOWN)
        self.assertEqual((self.near.linkWidthActive, self.far.linkSpeedActive), (2, 2))
        self.far.linkWidthEnabled = 0x11
        self.near.setState(DOWN)
        self.assertEqual(self.near.linkWidthActive, 16)
        for width, speed in ((2, 3), (0x11, 8)):
            self.near.linkWidthEnabled, self.near.linkSpeedEnabled = width, speed
            self.near.setState(DOWN)
            self.assertEqual(self.states(), (DOWN, DOWN))

    def test_extendedSpeed(self) -> None:
        """
        A link has the highest extended speed that both ends enable, if there is one.
        """
        for near, far, active in ((1, 3, 1), (3, 6, 2), (1, 2, 0), (7, 7, 4), (0, 7, 0)):
            self.near.enable(2, 1, near)
            self.far.enable(2, 1, far)
            self.near.setState(DOWN)
            self.assertEqual((self.near.linkSpeedExtActive, self.far.linkSpeedExtActive), (active, active))
            self.assertEqual(self.near.linkSpeedExtSupported, 7 if near else 0)
            self.assertEqual(self.states(), (INIT, INIT))

    def test_managementPort(self) -> None:
        """
        Port 0 of a switch is Active, and has no link.
        """
        own = self.port(self.switch, 0)
        self.assertEqual((own.state, own.physicalState), (ACTIVE, LINK_UP))
        for state in range(5):
            self.assertIsNone(own.setState(state))
        self.assertRaises(ValueError, self.graph.link, own, self.port(self.one, 2))


class GraphTests(GraphTestCase):
    """
    Nodes and links.
    """

    def test_built(self) -> None:
        """
        Nodes, GUIDs and links of a topology.
        """
        self.assertEqual(
            [node.kind for node in self.graph.nodes.values()], [NodeType.SWITCH, *[NodeType.CA] * 2]
        )
        self.assertEqual(len(list(self.graph.ports())), 9 + 2 + 2)
        self.assertIs(self.near.peer, self.far)
        self.assertIs(self.far.peer, self.near)
        self.assertEqual([port.guid - self.one.guid for port in self.one.each()], [1, 2])
        self.assertEqual({port.guid for port in self.switch.each()}, {self.switch.guid})
        self.assertIsNone(self.one.port(0))
        self.assertIsNone(self.one.port(3))
        self.assertIsNone(self.one.port(-1))
        self.assertEqual([port.number for port in self.switch.each() if port.isEnd], [0])
        self.assertIs(self.switch.end(self.far), self.switch.port(0))
        self.assertIs(self.one.end(self.near), self.near)

    def test_widthsAndSpeeds(self) -> None:
        """
        A topology says what each end enables.
        """
        _, nodes = build(
            parse(
                """
Switch 2 "Switch1"
[1] "Hca1"[1] w=8 s=3 e=3

Hca 2 "Hca1"
[1] "Switch1"[1] w=8 s=7 e=1
""",
                "test",
            )
        )
        near, far = self.port(nodes["Hca1"], 1), self.port(nodes["Switch1"], 1)
        for port in (near, far):
            active = port.linkWidthActive, port.linkSpeedActive, port.linkSpeedExtActive
            self.assertEqual(active, (8, 2, 1))
        self.assertEqual((near.linkSpeedEnabled, far.linkSpeedEnabled), (7, 3))
        self.assertEqual((near.linkSpeedExtEnabled, far.linkSpeedExtEnabled), (1, 3))

    def test_refused(self) -> None:
        """
        A second cable in a port, one from a port to itself, a GUID twice, and one node too many.
        """
        free = self.port(self.one, 2)
        for one, other in ((self.near, free), (free, self.near), (free, free)):
            self.assertRaises(ValueError, self.graph.link, one, other)
        self.assertIsNone(free.peer)
        self.assertRaises(ValueError, self.graph.add, self.one)
        self.patch(limits, "SUBNET_NODES", 3)
        node = Node(NodeType.CA, 7, 1, "late")
        self.assertEqual((node.vendorID, node.deviceID), (0, 0))
        self.assertRaises(ResourceLimitError, self.graph.add, node)
        self.graph.remove(self.other)
        self.graph.add(node)

    def test_removed(self) -> None:
        """
        A node that goes takes its links down, and can come back.
        """
        changes = self.graph.remove(self.one)
        self.assertEqual(changes, [Change(self.near, True), Change(self.far, True)])
        self.assertEqual(self.graph.remove(self.one), [])
        self.graph.add(self.one)
        self.graph.link(self.near, self.far)
        self.assertEqual(self.states(), (INIT, INIT))

    def test_hasLID(self) -> None:
        """
        A port has two to the power of LMC LIDs, and none before one is assigned.
        """
        self.assertFalse(self.near.hasLID(0))
        self.near.lid, self.near.lmc = 5, 1
        self.assertEqual([lid for lid in range(10) if self.near.hasLID(lid)], [4, 5])

    def test_settings(self) -> None:
        """
        A device's port gets the state of this one, and its users their events.
        """
        port = DevicePort()
        self.activate()
        self.near.lid, self.near.smLID, self.near.guids[1] = 5, 1, 0xAB
        events = port.apply(self.near.settings())
        self.assertEqual(
            [event.name for event in events],
            ["LID_CHANGE", "SM_CHANGE", "GID_CHANGE", "PKEY_CHANGE"],
        )
        self.assertEqual(port.gids, (0xFE80 << 112 | self.near.guid, 0xFE80 << 112 | 0xAB))
        self.graph.unlink(self.near)
        events = port.apply(self.near.settings(reregister=True))
        self.assertEqual([event.name for event in events], ["PORT_ERR", "CLIENT_REREGISTER"])

    def test_reset(self) -> None:
        """
        After power on a port has neither LID nor M_Key.
        """
        self.near.lid = self.near.mkey = self.near.mkeyViolations = 7
        self.near.reset()
        self.assertEqual((self.near.lid, self.near.mkey, self.near.mkeyViolations), (0, 0, 0))
        self.assertEqual(self.near.guids[0], self.near.guid)
