"""
Performance management: counters of nodes and of devices.
"""

from __future__ import annotations

from typing import Any

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from tests.hca.mad.cases import MADTestCase, OnPackets, OnRings
from twisted_ib.hca.mad import pma
from twisted_ib.hca.mad.attributes.layouts import layoutOf
from twisted_ib.hca.mad.attributes.notice import ClassPortInfo
from twisted_ib.hca.mad.attributes.performance import (
    ALL_PORTS,
    PortCounters,
    PortCountersExtended,
    PortFlowCtlCounters,
    PortOpRcvCounters,
    PortRcvDataSL,
    PortRcvErrorDetails,
    PortSamplesControl,
    PortSamplesResult,
    PortXmitDataSL,
    PortXmitDiscardDetails,
)
from twisted_ib.hca.mad.pma import PMA, PMA_COUNTERS_SECONDS
from twisted_ib.hca.wire.mad.classes import PERFORMANCE, SUBNET
from twisted_ib.hca.wire.mad.mad import GET, GET_RESPONSE, SET, Mad, decodeMAD

TRAP = 0x05
#: All counters of PortCounters but qp1Dropped, in the order of CounterSelect.
NAMES = (
    *("symbolErrorCounter", "linkErrorRecoveryCounter", "linkDownedCounter", "portRcvErrors"),
    *("portRcvRemotePhysicalErrors", "portRcvSwitchRelayErrors", "portXmitDiscards"),
    *("portXmitConstraintErrors", "portRcvConstraintErrors", "localLinkIntegrityErrors"),
    *("excessiveBufferOverrunErrors", "vl15Dropped", "portXmitData", "portRcvData"),
    *("portXmitPkts", "portRcvPkts", "portXmitWait"),
)
EXTENDED = (
    *("portXmitData", "portRcvData", "portXmitPkts", "portRcvPkts"),
    *("portUnicastXmitPkts", "portUnicastRcvPkts", "portMulticastXmitPkts", "portMulticastRcvPkts"),
)


class NodeTests(SynchronousTestCase):
    """
    The PMA of a CA with two ports, and that of a switch.
    """

    def setUp(self) -> None:
        """
        Both show the same counters.
        """
        self.counts: dict[int, dict[str, int]] = {1: {}, 2: {}}
        ports = {number: lambda counts=counts: counts for number, counts in self.counts.items()}
        self.ca, self.switch = PMA(ports), PMA(ports, True)

    def ask(self, attribute: Any, method: int = GET, node: PMA | None = None, arrival: int = 1) -> Any:
        """
        @return: the attribute of the answer, or its status.
        """
        mad = Mad(PERFORMANCE, 1, method, 7, attribute.ID, attribute.pack())
        octets = (node or self.ca).respond(mad.pack(), arrival)
        assert octets is not None
        found = decodeMAD(octets)
        self.assertEqual((found.method, found.transaction), (GET_RESPONSE, 7))
        assert isinstance(found.data, bytes)
        return type(attribute).parse(found.data) if not found.status else found.status

    def test_classPortInfo(self) -> None:
        """
        Each has the capabilities that ibsim 0.10 has.
        """
        for node, capabilities in ((self.ca, 0x1200), (self.switch, 0x1300)):
            expected = ClassPortInfo(classVersion=1, capabilityMask=capabilities, respTimeVal=0x12)
            self.assertEqual(self.ask(ClassPortInfo(), node=node), expected)
        # Where traps would go is written, and nothing else.
        written = evolve(expected, trapLID=7, trapQKey=8)
        self.assertEqual(self.ask(evolve(written, redirectLID=9, respTimeVal=1), SET, self.switch), written)
        self.assertEqual(self.ask(ClassPortInfo(), node=self.switch), written)

    def test_details(self) -> None:
        """
        Parts of the counters, and those of one opcode and of each service level; each is set by its own bit.
        """
        for kind in (PortRcvErrorDetails, PortXmitDiscardDetails, PortFlowCtlCounters, PortOpRcvCounters):
            names = [each.name for each in layoutOf(kind).fields if each.name.startswith("port")][1:]
            for bit, name in enumerate(names):
                self.setUp()
                self.counts[1].update(dict.fromkeys(names, 9))
                opcode = {"opCode": 0x64} if kind is PortOpRcvCounters else {}
                asked = kind(portSelect=1, counterSelect=1 << bit, **opcode, **{name: 2})
                self.assertEqual([getattr(self.ask(asked), each) for each in names], [9] * len(names))
                found = self.ask(asked, SET)
                self.assertEqual(
                    [getattr(found, each) for each in names], [2 if each == name else 9 for each in names]
                )
        for opcode in (0, 0x04, 0x65):
            asked = PortOpRcvCounters(portSelect=1, opCode=opcode, counterSelect=3, portOpRcvPkts=7)
            for method in (SET, GET):
                self.assertEqual(self.ask(asked, method), evolve(asked, portOpRcvPkts=0))
        self.assertEqual(self.ask(PortOpRcvCounters(portSelect=1, opCode=0x64)).portOpRcvPkts, 9)

    def test_levels(self) -> None:
        """
        The data of each service level.
        """
        for kind, name in ((PortXmitDataSL, "xmtDataSL"), (PortRcvDataSL, "rcvDataSL")):
            self.setUp()
            self.counts[1].update({f"{name}{level}": level + 1 for level in range(16)})
            self.assertEqual(getattr(self.ask(kind(portSelect=1)), name), tuple(range(1, 17)))
            found = self.ask(kind(portSelect=1, counterSelect=0x8001), SET)
            self.assertEqual(getattr(found, name), (0, *range(2, 16), 0))
            self.assertEqual(self.ask(kind(portSelect=2), arrival=2).pack()[4:], bytes(64))

    def test_octets(self) -> None:
        """
        Literal octets of an answer.
        """
        self.counts[1].update(portXmitData=72, portRcvPkts=0x1_0000_0000, portRcvSwitchRelayErrors=3)
        request = bytes.fromhex("01 04 01 01 0000 0000 0000000000000007 0012 0000 00000000").ljust(64, b"\0")
        octets = self.ca.respond((request + b"\0\1").ljust(256, b"\0"), 1)
        assert octets is not None
        self.assertEqual(octets[:24].hex(), "010401810000000000000000000000070012000000000000")
        self.assertEqual(
            octets[64:108].hex(" ", 4),
            "00010000 00000000 00000000 00030000 00000000 00000000 00000048 00000000"
            " 00000000 ffffffff 00000000",
        )
        self.assertEqual(octets[108:], bytes(148))

    def test_widths(self) -> None:
        """
        Narrow counters stay at their maxima, those of 64 bits wrap.
        """
        self.counts[1].update(dict.fromkeys((*NAMES, *EXTENDED), (1 << 64) + 5))
        narrow = self.ask(PortCounters(portSelect=1))
        self.assertEqual([getattr(narrow, name) for name in NAMES[:3]], [0xFFFF, 0xFF, 0xFF])
        self.assertEqual((narrow.localLinkIntegrityErrors, narrow.portXmitWait), (15, 0xFFFFFFFF))
        wide = self.ask(PortCountersExtended(portSelect=1))
        self.assertEqual([getattr(wide, name) for name in EXTENDED], [5] * 8)

    def test_set(self) -> None:
        """
        Each bit of the mask writes its counter and no other, and the answer has the values after that; the
        counts go on from there.
        """
        for kind, names, other in (
            (PortCounters, NAMES, PortCountersExtended),
            (PortCountersExtended, EXTENDED, PortCounters),
        ):
            for bit, name in enumerate(names):
                self.setUp()
                self.counts[1].update(dict.fromkeys((*NAMES, *EXTENDED), 9))
                mask = {"counterSelect": 1 << bit} if bit < 16 else {"counterSelect2": 1}
                for value in (0, 2):
                    found = self.ask(kind(portSelect=1, **mask, **{name: value}), SET)
                    self.assertEqual(
                        [getattr(found, each) for each in names if each != name], [9] * (len(names) - 1)
                    )
                    self.assertEqual(getattr(found, name), value)
                self.counts[1][name] += 3
                self.assertEqual(getattr(self.ask(kind(portSelect=1)), name), 5)
                # The other attribute's counter is another.
                if name in (EXTENDED if kind is PortCounters else NAMES):
                    self.assertEqual(getattr(self.ask(other(portSelect=1)), name), 12)
        self.assertEqual(self.ask(PortCounters(portSelect=1), SET), self.ask(PortCounters(portSelect=1)))

    def test_stuck(self) -> None:
        """
        A counter at its maximum counts again when it is cleared.
        """
        self.counts[1]["linkDownedCounter"] = 1000
        self.ask(PortCounters(portSelect=1, counterSelect=0xFFFF), SET)
        self.counts[1]["linkDownedCounter"] += 7
        self.assertEqual(self.ask(PortCounters(portSelect=1)).linkDownedCounter, 7)

    def test_fallen(self) -> None:
        """
        A count below what it was when it was cleared is 0.
        """
        self.counts[1]["portRcvData"] = 7
        self.ask(PortCounters(portSelect=1, counterSelect=0xFFFF), SET)
        self.counts[1]["portRcvData"] = 3
        self.assertEqual(self.ask(PortCounters(portSelect=1)).portRcvData, 0)

    def test_ports(self) -> None:
        """
        A CA tells of the port that was asked, a switch of any, and of all together.
        """
        for number in (1, 2):
            self.counts[number]["portRcvErrors"] = 0x9000 + number
            self.counts[number]["portXmitPkts"] = 100
        for kind in (
            PortCounters,
            PortCountersExtended,
            PortSamplesControl,
            PortRcvErrorDetails,
            PortRcvDataSL,
        ):
            for arrival, number, bad in ((1, 1, False), (2, 1, True), (1, 0, True), (1, ALL_PORTS, True)):
                found = self.ask(kind(portSelect=number), arrival=arrival)
                self.assertEqual(found == 0x1C, bad)
            for number, bad in ((1, False), (2, False), (3, True), (ALL_PORTS, False)):
                found = self.ask(kind(portSelect=number), node=self.switch)
                self.assertEqual(found == 0x1C, bad)
                if not bad:
                    self.assertEqual(found.portSelect, number)
        self.assertEqual(self.ask(PortCounters(portSelect=2), node=self.switch).portRcvErrors, 0x9002)
        everything = PortCounters(portSelect=ALL_PORTS, counterSelect=0xFFFF)
        found = self.ask(PortCounters(portSelect=ALL_PORTS), node=self.switch)
        self.assertEqual((found.portRcvErrors, found.portXmitPkts), (0xFFFF, 200))
        self.assertEqual(self.ask(everything, SET, self.switch).portXmitPkts, 0)
        self.assertEqual(self.ask(PortCounters(portSelect=2), node=self.switch).portXmitPkts, 0)

    def test_samples(self) -> None:
        """
        Nothing samples.
        """
        self.assertEqual(self.ask(PortSamplesControl(portSelect=1, tag=5)), PortSamplesControl(portSelect=1))
        self.assertEqual(self.ask(PortSamplesControl(portSelect=1), SET), 0x0C)
        self.assertEqual(self.ask(PortSamplesResult(tag=5)), PortSamplesResult())
        self.assertEqual(self.ask(PortSamplesResult(), SET), 0x0C)

    def test_refused(self) -> None:
        """
        Another version, method or attribute is answered with its status; another class and a response are
        not answered.
        """
        good = Mad(PERFORMANCE, 1, GET, 7, PortCounters.ID, PortCounters(portSelect=1).pack())
        for changes, status in (
            ({"classVersion": 2}, 0x04),
            ({"method": TRAP}, 0x08),
            ({"attribute": 0x38}, 0x0C),
            ({"attribute": 0}, 0x0C),
            ({"attribute": 0x38, "method": SET}, 0x0C),
            ({}, 0),
        ):
            octets = self.ca.respond(evolve(good, **changes).pack(), 1)
            assert octets is not None
            self.assertEqual((decodeMAD(octets).status, octets[3]), (status, GET_RESPONSE))
        for octets in (
            good.pack()[:-1],
            b"\2" + good.pack()[1:],
            evolve(good, method=GET_RESPONSE).pack(),
            Mad(SUBNET, 1, GET, 7, 0x11).pack(),
        ):
            self.assertIsNone(self.ca.respond(octets, 1))


class DeviceContract:
    """
    The PMA of a device.
    """

    toys = ()

    def query(self: Any, attribute: Any, method: int = GET) -> Any:
        """
        @return: the attribute of C{b}'s answer, and what C{ib-devinfo} shows of it.
        """
        self.wait(PMA_COUNTERS_SECONDS)
        responses: list[Any] = []
        if not hasattr(self, "asking"):
            self.asking = self.a.mads.register(PERFORMANCE, 1, (TRAP,), print)
        mad = Mad(PERFORMANCE, 1, method, 0, attribute.ID, attribute.pack())
        self.asking.send(self.address(self.b), mad, responses.append)
        expected = self.b.statistics()
        self.settle()
        (response,) = responses
        self.assertEqual(response.mad.status, 0)
        return type(attribute).parse(response.mad.data), expected

    def test_counters(self: Any) -> None:
        """
        They are those that C{ib-devinfo} shows, and a Set does not change those.
        """
        for name in ("packets_bad_icrc", "packets_bad_icrc", "packets_bad_pkey"):
            self.b.count(name)
        found, expected = self.query(PortCountersExtended(portSelect=1))
        packets = expected["rcvd_pkts"]
        # The request itself is a packet, where packets are counted.
        self.assertIn(found.portRcvPkts, (packets, packets + 1))
        found, _ = self.query(PortCounters(portSelect=1))
        self.assertEqual((found.portRcvErrors, found.portRcvConstraintErrors), (2, 1))
        found, _ = self.query(PortRcvErrorDetails(portSelect=1))
        self.assertEqual((found.portLocalPhysicalErrors, found.portMalformedPktErrors), (2, 0))
        found, expected = self.query(PortCounters(portSelect=1, counterSelect=0xFFFF), SET)
        self.assertEqual((found.portRcvErrors, found.portRcvPkts), (0, 0))
        self.assertGreaterEqual(self.b.statistics()["rcvd_pkts"], packets)
        self.assertEqual(self.b.statistics()["packets_bad_icrc"], 2)
        self.b.count("packets_bad_icrc")
        found, _ = self.query(PortCounters(portSelect=1))
        self.assertEqual(found.portRcvErrors, 1)
        found, _ = self.query(ClassPortInfo())
        self.assertEqual(found.capabilityMask, pma.EXTENDED_WIDTH_NO_MULTICAST)

    def test_cost(self: Any) -> None:
        """
        A flood of requests reads the counters once in a while, as that visits every queue pair.
        """
        read: list[None] = []
        statistics = self.b.statistics
        self.b.statistics = lambda: read.append(None) or statistics()
        asking = self.a.mads.register(PERFORMANCE, 1, (TRAP,), print)
        octets = PortCounters(portSelect=1).pack()
        responses: list[Any] = []
        for _ in range(50):
            asking.send(
                self.address(self.b), Mad(PERFORMANCE, 1, GET, 0, PortCounters.ID, octets), responses.append
            )
        self.settle()
        self.assertEqual((len(responses), len(read)), (50, 1))


class PacketTests(OnPackets, DeviceContract, MADTestCase):
    """
    C{roce0}.
    """

    def test_packets(self) -> None:
        """
        Packets are counted, and multicast is not told apart.
        """
        for n in range(1, 4):
            found, _ = self.query(PortCountersExtended(portSelect=1))
            self.assertEqual((found.portRcvPkts, found.portXmitPkts), (n, n - 1))
            self.assertEqual((found.portXmitData, found.portUnicastRcvPkts), (0, 0))


class RingTests(OnRings, DeviceContract, MADTestCase):
    """
    C{shm0}.
    """
