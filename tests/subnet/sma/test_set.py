"""
Tests of what a Set does at L{twisted_ib.subnet.sma}.
"""

from __future__ import annotations

from typing import Any

from attrs import evolve
from hypothesis import strategies as st

from tests.subnet.sma.cases import SMATestCase, smp
from tests.support.generated import given
from twisted_ib import limits
from twisted_ib.hca.base.port import PhysicalState, PortState
from twisted_ib.hca.base.traits import NodeType
from twisted_ib.hca.mad.attributes.layouts import Attribute
from twisted_ib.hca.mad.attributes.node import (
    LinearForwardingTable,
    MulticastForwardingTable,
    NodeDescription,
    NodeInfo,
    SwitchInfo,
)
from twisted_ib.hca.mad.attributes.notice import LinkIntegrityDetails, Notice, NoticeType, Trap
from twisted_ib.hca.mad.attributes.port import (
    EXTENDED_SPEEDS,
    GUIDInfo,
    LedInfo,
    PKeyTable,
    PortInfo,
    SLtoVLMappingTable,
    VLArbitrationTable,
)
from twisted_ib.hca.wire.mad.mad import SET
from twisted_ib.subnet.network.graph import Change, Node, Port
from twisted_ib.subnet.sma.agent import notice

INVALID = 0x1C


class SetTestCase(SMATestCase):
    """
    A CA's port and the switch's port at the other end.
    """

    def setUp(self) -> None:
        """
        Find them.
        """
        super().setUp()
        self.near, self.far = self.port("Hca1", 1), self.port("Switch1", 1)
        self.own = self.port("Switch1", 0)

    def read(self, port: Port, kind: type[Attribute], modifier: int = 0) -> Any:
        """
        @return: an attribute as it is.
        """
        data = self.get(port, kind, modifier).data
        assert isinstance(data, bytes)
        return kind.parse(data)

    def write(self, port: Port, modifier: int = 0, **fields: int) -> tuple[int, tuple[Change, ...]]:
        """
        Set PortInfo as it is, without its states, but for some fields.

        @return: status and changes.
        """
        info = self.read(port, PortInfo, modifier)
        info = evolve(info, linkState=0, physLinkState=0)
        status, answer = self.set(port, evolve(info, **fields), modifier)
        return status, answer.changes


class PortInfoTests(SetTestCase):
    """
    PortInfo.
    """

    def test_opensm(self) -> None:
        """
        The four Sets with which OpenSM brings a CA's port to Active, and those of a switch's port.
        """
        status, changes = self.write(
            self.near, 1, lid=1, smLID=1, subnetTimeout=18, clientReregister=1, neighborMTU=4
        )
        self.assertEqual((status, changes), (0, (Change(self.near, reregister=True),)))
        self.assertEqual(self.write(self.near, EXTENDED_SPEEDS | 1, clientReregister=0), (0, ()))
        for state in (PortState.ARMED, PortState.ACTIVE):
            for port in (self.far, self.near):
                self.assertEqual(self.write(port, 1, linkState=state), (0, (Change(port),)))
        self.assertEqual((self.near.state, self.far.state), (PortState.ACTIVE, PortState.ACTIVE))
        self.assertEqual((self.near.lid, self.near.smLID, self.near.subnetTimeout), (1, 1, 18))
        # Of port 0 the LID, of the external ports none.
        self.assertEqual(self.write(self.far, 0, lid=2, smLID=1)[0], 0)
        self.assertEqual((self.own.lid, self.far.lid), (2, 0))
        self.assertEqual(self.read(self.far, PortInfo, 1).lid, 0)

    def test_reregisterEchoed(self) -> None:
        """
        The answer to a Set has ClientReregister as it was set; a Get has it not.
        """
        for value in (1, 0):
            info = evolve(
                self.read(self.near, PortInfo), linkState=0, physLinkState=0, clientReregister=value
            )
            octets = self.respond(self.near, smp(SET, PortInfo.ID, 0, info.pack())).octets
            assert octets is not None
            self.assertEqual(PortInfo.parse(octets[64:]).clientReregister, value)
            self.assertEqual(self.read(self.near, PortInfo).clientReregister, 0)

    def test_everyState(self) -> None:
        """
        Each LinkState with each PhysLinkState, in Init: what is not allowed changes nothing.
        """
        for state in range(16):
            for physical in range(16):
                self.far.setState(PortState.DOWN)
                status, _ = self.write(self.far, 1, linkState=state, physLinkState=physical)
                allowed = state in (0, 1, 3) if not physical else state in (0, 1) and physical in (1, 2, 3)
                self.assertEqual(status, 0 if allowed else INVALID, (state, physical))
                expected = PortState.INIT
                if allowed and not physical and state == PortState.ARMED:
                    expected = PortState.ARMED
                if allowed and physical == PhysicalState.DISABLED:
                    expected = PortState.DOWN
                self.assertEqual(self.far.state, expected, (state, physical))
                self.far.setPhysicalState(PhysicalState.POLLING)

    def test_managementPort(self) -> None:
        """
        Port 0 of a switch has no state to set.
        """
        for fields in ({"linkState": 1}, {"linkState": 4}, {"physLinkState": 3}):
            self.assertEqual(self.write(self.far, 0, **fields), (INVALID, ()))
        self.assertEqual(self.own.state, PortState.ACTIVE)

    def test_lids(self) -> None:
        """
        LIDs and SM LIDs are unicast; with a refused one no other field is set.
        """
        for lid in (0xBFFF, 1):
            self.assertEqual(self.write(self.near, lid=lid, smLID=lid)[0], 0)
            self.assertEqual((self.near.lid, self.near.smLID), (lid, lid))
        for lid in (0, 0xC000, 0xFFFF):
            self.assertEqual(self.write(self.near, lid=lid, smSL=lid & 15)[0], INVALID)
            self.assertEqual(self.write(self.near, smLID=lid)[0], INVALID)
            self.assertEqual((self.near.lid, self.near.smLID, self.near.smSL), (1, 1, 0))
        self.assertEqual(self.write(self.near, lid=4, lmc=2)[0], 0)
        self.assertEqual(self.write(self.near, lid=6, lmc=2)[0], INVALID)
        self.assertEqual((self.near.lid, self.near.lmc), (4, 2))

    def test_unassigned(self) -> None:
        """
        A port without LIDs may be set as it is.
        """
        self.assertEqual(self.write(self.near, vlHighLimit=3)[0], 0)
        self.assertEqual(self.near.vlHighLimit, 3)

    def test_widthAndSpeed(self) -> None:
        """
        0 changes nothing, all ones are what is supported, and what is not supported is refused.
        """
        for width, status, enabled in ((0, 0, 2), (1, 0, 1), (0x20, INVALID, 1), (0xFF, 0, 0x1F)):
            self.assertEqual(self.write(self.near, linkWidthEnabled=width)[0], status)
            self.assertEqual(self.near.linkWidthEnabled, enabled)
        for speed, status, enabled in ((0, 0, 1), (3, 0, 3), (8, INVALID, 3), (15, 0, 7)):
            self.assertEqual(self.write(self.near, linkSpeedEnabled=speed)[0], status)
            self.assertEqual(self.near.linkSpeedEnabled, enabled)

    def test_extendedSpeeds(self) -> None:
        """
        Likewise of extended speeds, for managers that know them; one code enables none.
        """
        self.near.enable(2, 7, 1)
        for speed, status, enabled in ((2, 0, 2), (0, 0, 2), (8, INVALID, 2), (30, 0, 0), (31, 0, 7)):
            self.assertEqual(self.write(self.near, EXTENDED_SPEEDS, linkSpeedExtEnabled=speed)[0], status)
            self.assertEqual(self.near.linkSpeedExtEnabled, enabled)
        for speed in (8, 30, 1):
            self.assertEqual(self.write(self.near, linkSpeedExtEnabled=speed)[0], 0)
            self.assertEqual(self.near.linkSpeedExtEnabled, 7)

    def test_limits(self) -> None:
        """
        MTU and virtual lanes no more than there are; Sleep and Polling as the default state.
        """
        for name, value, status, left in (
            ("neighborMTU", 3, 0, 3),
            ("neighborMTU", 5, INVALID, 3),
            ("neighborMTU", 0, 0, 3),
            ("operVLs", 1, 0, 1),
            ("operVLs", 5, INVALID, 1),
            ("operVLs", 0, 0, 1),
        ):
            self.assertEqual(self.write(self.near, **{name: value})[0], status)
            self.assertEqual(getattr(self.near, name), left)
        for value in range(16):
            status = 0 if value in (0, 1, 2) else INVALID
            self.assertEqual(self.write(self.near, linkDownDefState=value)[0], status)
        self.assertEqual(self.near.downDefault, PhysicalState.POLLING)

    def test_violations(self) -> None:
        """
        Counters of violations are cleared, and not written otherwise.
        """
        self.near.pkeyViolations = 7
        self.write(self.near, pkeyViolations=5)
        self.assertEqual(self.near.pkeyViolations, 7)
        self.write(self.near, pkeyViolations=0)
        self.assertEqual(self.near.pkeyViolations, 0)

    def test_otherPorts(self) -> None:
        """
        A CA's port is set through itself alone, a switch's by its number.
        """
        self.assertEqual(self.write(self.near, 2, lid=7), (INVALID, ()))
        self.assertEqual(self.port("Hca1", 2).lid, 0)
        info = PortInfo(lid=7)
        self.assertEqual(self.set(self.far, info, 9)[0], INVALID)
        self.assertEqual(self.write(self.far, 5, hoqLife=16)[0], 0)
        self.assertEqual((self.port("Switch1", 5).hoqLife, self.far.hoqLife), (16, 0))

    def test_refusedWhole(self) -> None:
        """
        A Set that is refused for one field, whichever, has written none, and changed no state.
        """
        self.near.enable(2, 1, 1)
        others = {"smSL": 3, "subnetTimeout": 9, "initType": 5, "operVLs": 1, "vlHighLimit": 7, "hoqLife": 6}
        cases: list[tuple[Port, int, dict[str, int]]] = [
            *[(self.near, 1, {"lid": lid, "linkState": 3}) for lid in (0xC000, 0xFFFF)],
            (self.near, 1, {"smLID": 0xC000, "lid": 7}),
            *[(self.near, 1, {name: 8, "lid": 7}) for name in ("linkSpeedEnabled", "linkSpeedExtEnabled")],
        ]
        for port in (self.near, self.far):
            cases += [
                (port, 1, {"linkState": 4}),
                (port, 1, {"linkState": 3, "physLinkState": 2}),
                (port, 1, {"linkState": 3, "linkWidthEnabled": 0x20}),
                (port, 1, {"linkState": 3, "linkDownDefState": 3}),
                (port, 1, {"physLinkState": 3, "neighborMTU": 5}),
                (port, 1, {"physLinkState": 4}),
                (port, 1, {"operVLs": 5}),
            ]
        cases.append((self.far, 0, {"linkState": 1, "lid": 7}))
        for port, number, fields in cases:
            modifier = EXTENDED_SPEEDS | number
            before = self.read(port, PortInfo, modifier)
            self.assertEqual(self.write(port, modifier, **{**others, **fields}), (INVALID, ()), fields)
            self.assertEqual(self.read(port, PortInfo, modifier), before, fields)

    def test_prefix(self) -> None:
        """
        A prefix is set with a LID; 0 leaves it.
        """
        self.assertEqual(len(self.write(self.near, gidPrefix=0xFEC0 << 48)[1]), 1)
        self.write(self.near, gidPrefix=0)
        self.assertEqual(self.near.subnetPrefix, 0xFEC0 << 48)


class TableTests(SetTestCase):
    """
    Other attributes.
    """

    def test_readOnly(self) -> None:
        """
        NodeInfo and NodeDescription cannot be set.
        """
        for value in (NodeInfo(), NodeDescription(description=b"other")):
            self.assertEqual(self.set(self.near, value)[0], 0x0C)
        self.assertEqual(self.node("Hca1").description, "Hca1")

    def test_partitions(self) -> None:
        """
        Blocks of P_Keys: of a CA for its port, of a switch for each; the same again changes nothing.
        """
        keys = (*range(0x8001, 0x8021),)
        for modifier, at in ((0, slice(0, 32)), (1, slice(32, 64))):
            status, answer = self.set(self.near, PKeyTable(keys=keys), modifier)
            self.assertEqual((status, answer.changes), (0, (Change(self.near),)))
            self.assertEqual(self.near.partitions.keys[at], keys)
            self.assertEqual(self.set(self.near, PKeyTable(keys=keys), modifier)[1].changes, ())
        self.assertEqual(self.set(self.far, PKeyTable(keys=keys), 5 << 16 | 1)[0], 0)
        self.assertEqual(self.port("Switch1", 5).partitions.keys[32:], keys)
        self.assertEqual(self.set(self.far, PKeyTable(keys=keys))[0], 0)
        self.assertEqual(self.own.partitions.keys, keys[:8])
        self.assertEqual(self.set(self.near, PKeyTable(), 2)[0], INVALID)

    def test_guids(self) -> None:
        """
        GUIDs of a port, but for its own.
        """
        status, answer = self.set(self.near, GUIDInfo(guids=(*range(1, 9),)))
        self.assertEqual((status, answer.changes), (0, (Change(self.near),)))
        self.assertEqual(self.near.guids[:9], [self.near.guid, *range(2, 9), 0])
        self.assertEqual(self.set(self.near, GUIDInfo(guids=(9,) * 8), 3)[0], 0)
        self.assertEqual((self.near.guids[24:], len(self.near.guids)), ([9] * 8, 32))
        self.assertEqual(self.set(self.far, GUIDInfo(guids=(9,) * 8))[1].changes, ())
        self.assertEqual(self.own.guids, [self.own.guid])

    def test_mapping(self) -> None:
        """
        SLtoVL: of a CA one table, of a switch one for each pair of ports.
        """
        lanes = SLtoVLMappingTable(vls=(3,) * 16)
        self.assertEqual(self.set(self.near, lanes)[0], 0)
        self.assertEqual(self.read(self.near, SLtoVLMappingTable), lanes)
        self.assertEqual(self.set(self.far, lanes, 0x0102)[0], 0)
        self.assertEqual(self.read(self.far, SLtoVLMappingTable, 0x0102), lanes)
        self.assertNotEqual(self.read(self.far, SLtoVLMappingTable, 0x0201), lanes)
        switch = self.node("Switch1").switch
        assert switch is not None
        # From port 1 to port 2.
        self.assertEqual(switch.mappings, {(1, 2): lanes.vls})

    def test_arbitration(self) -> None:
        """
        VL arbitration: as many entries as there are.
        """
        given = VLArbitrationTable(vls=(5,) * 32, weights=(9,) * 32)
        for modifier, index in ((0x10000, 0), (0x30000, 1)):
            self.assertEqual(self.set(self.near, given, modifier)[0], 0)
            self.assertEqual(self.near.arbitration[index], [(5, 9)] * 8)
            self.assertEqual(
                self.read(self.near, VLArbitrationTable, modifier).weights, (*(9,) * 8, *(0,) * 24)
            )
        self.assertEqual(self.set(self.far, given, 0x10005)[0], 0)
        self.assertEqual(self.port("Switch1", 5).arbitration[0], [(5, 9)] * 8)

    def test_switchInfo(self) -> None:
        """
        Top, default ports and life time; StateChange is cleared by 1 and kept by 0.
        """
        switch = self.node("Switch1").switch
        assert switch is not None
        info = self.read(self.far, SwitchInfo)
        self.assertEqual(info.stateChange, 1)
        info = evolve(info, linearFdbTop=3, lifeTime=18, defPort=1, stateChange=0)
        status, answer = self.set(self.far, info)
        self.assertEqual((status, answer.rerouted, switch.stateChange), (0, True, True))
        self.assertEqual((switch.top, switch.lifeTime, switch.defaultPort), (3, 18, 1))
        status, answer = self.set(self.far, evolve(info, stateChange=1))
        self.assertEqual((status, answer.rerouted, switch.stateChange), (0, False, False))
        before = self.read(self.far, SwitchInfo)
        refused = evolve(info, linearFdbTop=0x7800, lifeTime=5, defPort=2, defMcastPrimPort=3)
        self.assertEqual(self.set(self.far, refused)[0], INVALID)
        self.assertEqual(self.read(self.far, SwitchInfo), before)
        info = evolve(info, defMcastPrimPort=4, defMcastNotPrimPort=5, multicastFDBTop=0xC005)
        self.assertTrue(self.set(self.far, info)[1].rerouted)
        self.assertEqual(self.read(self.far, SwitchInfo), info)

    def test_linear(self) -> None:
        """
        Blocks of LIDs; writing what is there reroutes nothing.
        """
        switch = self.node("Switch1").switch
        assert switch is not None
        switch.top = 200
        ports = LinearForwardingTable(ports=(255, 1, 0, 5, *(255,) * 60))
        status, answer = self.set(self.far, ports, 2)
        self.assertEqual((status, answer.rerouted), (0, True))
        self.assertEqual([switch.lookup(lid) for lid in (128, 129, 130, 131, 132)], [255, 1, 0, 5, 255])
        self.assertFalse(self.set(self.far, ports, 2)[1].rerouted)
        self.assertEqual(self.set(self.far, ports, 480)[0], INVALID)
        self.assertEqual(self.set(self.far, ports, 479)[0], 0)
        self.assertEqual(len(switch.linear), 0x7800)

    def test_multicast(self) -> None:
        """
        Blocks of multicast LIDs, for 16 ports each; ports that are not there get no bit.
        """
        switch = self.node("Switch1").switch
        assert switch is not None
        masks = MulticastForwardingTable(masks=(0xFFFF, 6, *(0,) * 30))
        status, answer = self.set(self.far, masks, 1)
        self.assertEqual((status, answer.rerouted), (0, True))
        self.assertEqual(switch.replicated(0xC020, 5), [0, 1, 2, 3, 4, 6, 7, 8])
        self.assertEqual(switch.replicated(0xC021, 1), [2])
        self.assertFalse(self.set(self.far, masks, 1)[1].rerouted)
        for modifier in (32, 1 << 28):
            self.assertEqual(self.set(self.far, masks, modifier)[0], INVALID)

    def test_multicastPositions(self) -> None:
        """
        Of a switch with more ports each position is 16 of them, and leaves the others.
        """
        node = Node(NodeType.SWITCH, 7, 36, "large")
        assert node.switch is not None
        port = node.port(1)
        assert port is not None
        for position, mask, ports in (
            (0, 0xC000, 0xC000),
            (1, 0x8003, 0x8003C000),
            (2, 0xFFFF, 0x1F8003C000),
        ):
            masks = MulticastForwardingTable(masks=(mask, *(0,) * 31))
            self.assertEqual(self.set(port, masks, position << 28)[0], 0)
            self.assertEqual(node.switch.multicast[0], ports)
        read = [self.read(port, MulticastForwardingTable, position << 28).masks[0] for position in range(3)]
        self.assertEqual(read, [0xC000, 0x8003, 0x001F])
        self.assertEqual(self.set(port, MulticastForwardingTable(), 3 << 28)[0], INVALID)

    def test_led(self) -> None:
        """
        The LED of a port, and of no other.
        """
        self.assertEqual(self.set(self.near, LedInfo(ledMask=1))[0], 0)
        self.assertEqual(self.read(self.near, LedInfo).ledMask, 1)
        self.assertEqual(self.read(self.port("Hca2", 1), LedInfo).ledMask, 0)
        self.set(self.near, LedInfo())
        self.assertEqual(self.read(self.near, LedInfo).ledMask, 0)

    def test_notices(self) -> None:
        """
        The oldest notice is read until a Set with its toggle clears it; then there are others, or none.
        """
        events = [
            notice(self.near, NoticeType.URGENT, Trap.LINK_INTEGRITY, LinkIntegrityDetails(port=n))
            for n in (1, 2)
        ]
        for event in events:
            self.near.note(event)
        toggles = []
        for count, event in ((2, events[0]), (1, events[1])):
            found = self.read(self.near, Notice)
            self.assertEqual((found.noticeCount, found.details), (count, event.details))
            self.assertEqual(self.set(self.near, evolve(found, noticeToggle=1 - found.noticeToggle))[0], 0)
            self.assertEqual(self.read(self.near, Notice), found)
            self.assertEqual(self.set(self.near, found)[0], 0)
            toggles.append(found.noticeToggle)
        self.assertEqual(toggles, [0, 1])
        found = self.read(self.near, Notice)
        self.assertEqual((found.noticeType, found.noticeCount, found.noticeToggle), (NoticeType.EMPTY, 0, 0))
        self.assertEqual(self.set(self.near, found)[0], 0)

    def test_manyNotices(self) -> None:
        """
        A bounded number waits, the latest; the toggle tells that the oldest is another one.
        """
        for n in range(limits.SUBNET_NOTICES + 3):
            details = LinkIntegrityDetails(port=n)
            self.near.note(notice(self.near, NoticeType.URGENT, Trap.LINK_INTEGRITY, details))
        found = self.read(self.near, Notice)
        self.assertEqual((found.noticeCount, found.noticeToggle), (limits.SUBNET_NOTICES, 1))
        self.assertEqual(LinkIntegrityDetails.parse(found.details).port, 3)

    @given(st.sampled_from((1, 2)), st.integers(0, 0x32), st.integers(0, 2**32 - 1), st.binary(max_size=64))
    def test_anyRequest(self, method: int, attribute: int, modifier: int, data: bytes) -> None:
        """
        No SMP raises; each has an answer, as the ports have no M_Key that could differ.
        """
        sma = type(self.sma)()
        for port in (self.near, self.far, self.own):
            # A Set may have given it one.
            port.node.end(port).mkey = 0
            for index in (modifier, modifier & 0xFF, modifier & 0xF000000F, 0):
                answer = sma.respond(port, smp(method, attribute, index, data), 0.0)
                if not port.node.end(port).mkey:
                    self.assertIsNotNone(answer.octets)
