"""
Tests of what L{twisted_ib.subnet.sma} answers to a Get: the octets that ibsim 0.10 answered for the same
topology, where they do not differ by intent.
"""

from __future__ import annotations

from tests.subnet.sma.cases import SMATestCase, smp
from twisted_ib.hca.mad.attributes.layouts import Attribute
from twisted_ib.hca.mad.attributes.node import (
    LinearForwardingTable,
    MulticastForwardingTable,
    NodeDescription,
    NodeInfo,
    SwitchInfo,
    VendorDiag,
)
from twisted_ib.hca.mad.attributes.notice import Notice
from twisted_ib.hca.mad.attributes.port import (
    GUIDInfo,
    LedInfo,
    PKeyTable,
    PortInfo,
    SLtoVLMappingTable,
    VLArbitrationTable,
)
from twisted_ib.hca.wire.mad.classes import DirectedHeader
from twisted_ib.hca.wire.mad.mad import GET, GET_RESPONSE, SET, decodeMAD
from twisted_ib.subnet.sma.agent import ATTRIBUTES

#: Node and port of arrival, attribute, modifier, octets without the zeros behind them.
ANSWERS: tuple[tuple[str, int, type[Attribute], int, str], ...] = (
    ("Hca1", 1, NodeInfo, 0, "0101010200000000001000000000000000100000000000000010000100400000000000a101"),
    (
        "Switch2",
        5,
        NodeInfo,
        0,
        "0101020800000000002000010000000000200001000000000020000100080000000000a105",
    ),
    ("Hca1", 1, NodeDescription, 0, "48636131"),
    (
        *("Hca1", 1, PortInfo, 0),
        "0000000000000000fe80000000000000000000000050c04800000ff901021f02"
        "72520011404000080804e040000000000000201f000000000000000000300000",
    ),
    (
        *("Hca1", 1, PortInfo, 2),
        "0000000000000000fe80000000000000000000000050c04800000ff901021f02"
        "71220011404000080804e040000000000000201f000000000000000000300000",
    ),
    (
        *("Switch1", 1, PortInfo, 0),
        "0000000000000000fe80000000000000000000000000c04800000ff901021f02"
        "745200111040000808030040000000000000011f080000000000000000300000",
    ),
    (
        *("Switch1", 1, PortInfo, 2),
        "0000000000000000000000000000000000000000000000000000000001021f0272520011404000080804e040",
    ),
    ("Switch1", 1, SwitchInfo, 0, "7800000004000000000000040000004030"),
    ("Hca1", 1, GUIDInfo, 0, "0000000000100001"),
    ("Hca1", 1, GUIDInfo, 1, ""),
    ("Switch1", 1, GUIDInfo, 0, "0000000000200000"),
    ("Hca1", 1, PKeyTable, 0, "ffff"),
    ("Hca1", 1, PKeyTable, 0x10000, "ffff"),
    ("Hca1", 1, PKeyTable, 1, ""),
    ("Switch1", 1, PKeyTable, 0, "ffff"),
    ("Switch1", 1, PKeyTable, 0x10000, "ffff"),
    ("Hca1", 1, SLtoVLMappingTable, 0, "0123456789abcde7"),
    ("Hca1", 1, SLtoVLMappingTable, 0x102, "0123456789abcde7"),
    ("Switch1", 1, SLtoVLMappingTable, 0x102, "0123456789abcde7"),
    ("Hca1", 1, VLArbitrationTable, 0x10001, "00000104020403040404050406040704"),
    ("Switch1", 1, VLArbitrationTable, 0x30001, "00040100020003000400050006000700"),
    ("Hca1", 1, LedInfo, 0, ""),
    ("Hca1", 1, VendorDiag, 0, ""),
    ("Switch1", 1, VendorDiag, 0, ""),
    ("Hca1", 1, Notice, 0, "ff"),
    ("Switch1", 1, Notice, 0, "ff"),
    ("Switch1", 1, LinearForwardingTable, 1, "ff" * 64),
    ("Switch1", 1, MulticastForwardingTable, 0, ""),
)
#: Attributes that are not there: node, attribute, modifier, status.
ABSENT: tuple[tuple[str, int, int, int], ...] = (
    ("Hca1", PortInfo.ID, 3, 0x1C),
    ("Switch1", PortInfo.ID, 9, 0x1C),
    ("Hca1", GUIDInfo.ID, 4, 0x1C),
    ("Switch1", GUIDInfo.ID, 1, 0x1C),
    ("Hca1", PKeyTable.ID, 2, 0x1C),
    ("Switch1", PKeyTable.ID, 1, 0x1C),
    ("Switch1", PKeyTable.ID, 0x90000, 0x1C),
    ("Switch1", SLtoVLMappingTable.ID, 0x0901, 0x1C),
    ("Switch1", SLtoVLMappingTable.ID, 0x0109, 0x1C),
    ("Hca1", VLArbitrationTable.ID, 0x20000, 0x1C),
    ("Hca1", VLArbitrationTable.ID, 0, 0x1C),
    ("Switch1", VLArbitrationTable.ID, 0x10009, 0x1C),
    ("Switch1", LinearForwardingTable.ID, 480, 0x1C),
    ("Switch1", MulticastForwardingTable.ID, 32, 0x1C),
    ("Switch1", MulticastForwardingTable.ID, 0x10000000, 0x1C),
    ("Hca1", SwitchInfo.ID, 0, 0x0C),
    ("Hca1", LinearForwardingTable.ID, 0, 0x0C),
    ("Hca1", MulticastForwardingTable.ID, 0, 0x0C),
    ("Hca1", LedInfo.ID, 1, 0x1C),
    ("Hca1", Notice.ID, 1, 0x1C),
    # Without a random forwarding table, as it has a linear one.
    ("Switch1", 0x1A, 0, 0x0C),
    ("Switch1", 0x77, 0, 0x0C),
)


class GetTests(SMATestCase):
    """
    Attributes as they are.
    """

    def test_octets(self) -> None:
        """
        Each attribute of each kind of node.
        """
        for name, number, kind, modifier, text in ANSWERS:
            response = self.get(self.port(name, number), kind, modifier)
            self.assertEqual(response.status, 0)
            data = response.data
            assert isinstance(data, bytes)
            self.assertEqual(data.hex(), bytes.fromhex(text).ljust(64, b"\0").hex())

    def test_absent(self) -> None:
        """
        A modifier out of range, and attributes that the node does not have: the status, also of a Set, which
        changes nothing.
        """
        for name, attribute, modifier, status in ABSENT:
            for method in (GET, SET):
                answer = self.respond(self.port(name, 1), smp(method, attribute, modifier, b"\1" * 64))
                assert answer.octets is not None
                response = decodeMAD(answer.octets)
                self.assertEqual((response.status, response.data), (status, b"\1" * 64))
                self.assertEqual(answer, (answer.octets, (), False, ()))

    def test_directed(self) -> None:
        """
        The response to a directed-route SMP has the D bit, and its paths as they came.
        """
        header = DirectedHeader(initialPath=b"\0\1" + bytes(62), returnPath=b"\0\1" + bytes(62))
        request = smp(GET, NodeInfo.ID, header=header)
        octets = self.respond(self.port("Switch1", 1), request).octets
        assert octets is not None
        self.assertEqual(octets[:24].hex(), "01810181800000000000000000001234" + "0011000000000000")
        self.assertEqual(octets[24:64] + octets[128:], request[24:64] + request[128:])
        octets = self.respond(self.port("Switch1", 1), smp(GET, 0x77, header=DirectedHeader())).octets
        assert octets is not None
        self.assertEqual(octets[4:6].hex(), "800c")

    def test_methods(self) -> None:
        """
        Another version or method has a status; what is no request of this class has no response.
        """
        port = self.port("Hca1", 1)
        for method in range(256):
            octets = self.respond(port, smp(method, NodeInfo.ID)).octets
            if method & 0x80 or method in (3, 5, 6, 7):
                self.assertIsNone(octets, method)
            else:
                assert octets is not None
                status = 0 if method == GET else 0x0C if method == SET else 0x08
                self.assertEqual(decodeMAD(octets).status, status, method)
                self.assertEqual(octets[3], GET_RESPONSE if method in (GET, SET) else method | 0x80)
        octets = self.respond(port, smp(GET, NodeInfo.ID, version=2)).octets
        assert octets is not None
        self.assertEqual(decodeMAD(octets).status, 0x04)

    def test_notOurs(self) -> None:
        """
        Another length, base version or class.
        """
        port, request = self.port("Hca1", 1), smp(GET, NodeInfo.ID)
        for data in (b"", request[:-1], request + b"\0", b"\2" + request[1:], b"\1\4" + request[2:]):
            self.assertEqual(self.respond(port, data), (None, (), False, ()))

    def test_attributes(self) -> None:
        """
        A subnet manager's attribute is not among those that are served.
        """
        self.assertNotIn(0x20, ATTRIBUTES)
        self.assertIn(PortInfo.ID, ATTRIBUTES)
