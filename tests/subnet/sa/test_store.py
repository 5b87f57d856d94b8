"""
Tests of L{twisted_ib.subnet.sa.store}.
"""

from __future__ import annotations

from types import SimpleNamespace

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from tests.hca.mad.attributes.records import RECORDS
from tests.subnet.sa.cases import FULL, KEY, LIMITED, MKEY, SWITCH, SWITCH_LID, AdministrationTestCase, guidOf
from twisted_ib.hca.mad.attributes.administration import (
    GUIDInfoRecord,
    LinearForwardingTableRecord,
    LinkRecord,
    MCMemberRecord,
    MulticastForwardingTableRecord,
    NodeRecord,
    PathRecord,
    PKeyTableRecord,
    PortInfoRecord,
    Selector,
    SLtoVLMappingTableRecord,
    SMInfoRecord,
    SwitchInfoRecord,
    VLArbitrationTableRecord,
)
from twisted_ib.hca.mad.attributes.layouts import layoutOf
from twisted_ib.hca.mad.attributes.port import PortInfo
from twisted_ib.hca.wire.mad.administration import GET_TABLE, SAStatus
from twisted_ib.hca.wire.mad.classes import AdministrationHeader
from twisted_ib.hca.wire.mad.mad import GET
from twisted_ib.subnet.sa import store
from twisted_ib.subnet.sa.request import Refusal
from twisted_ib.subnet.sa.store import CAPABILITIES_MATCH, Query


def query(kind: type, data: int, mask: int) -> Query:
    """
    @return: a query by octets, as a number.
    """
    octets = data.to_bytes(kind.OCTETS, "big").ljust(200, b"\0")  # type: ignore[attr-defined]
    header = AdministrationHeader(componentMask=mask)
    request = SimpleNamespace(data=octets, header=header, mad=SimpleNamespace(modifier=0))
    return Query(kind, request)  # type: ignore[arg-type]


class QueryTests(SynchronousTestCase):
    """
    L{Query}.
    """

    def test_components(self) -> None:
        """
        Each component of each record is compared, if the mask has it, and no other.
        """
        for kind in RECORDS.values():
            layout = layoutOf(kind)
            whole = (1 << layout.size * 8) - 1
            selectors = [bit for name, bit in layout.bits.items() if name.endswith("Selector")]
            for index, bits in enumerate(layout.components):
                if 1 << index in selectors:
                    continue
                with self.subTest(kind=kind.__name__, component=index):
                    self.assertTrue(query(kind, 0, 1 << index).matches(whole & ~bits))
                    self.assertEqual(query(kind, 0, 1 << index).matches(bits), not bits)
            self.assertTrue(query(kind, 0, 0).matches(whole))

    def test_beyond(self) -> None:
        """
        A mask with bits beyond the record is invalid.
        """
        for kind in RECORDS.values():
            mask = 1 << len(layoutOf(kind).components)
            refusal = self.assertRaises(Refusal, query, kind, 0, mask)
            self.assertEqual(refusal.status, SAStatus.REQUEST_INVALID)

    def test_selectors(self) -> None:
        """
        A value with its selector is compared by what it stands for: rate 3, of 10 Gb/s, is more than rate 5,
        of 5 Gb/s.  A selector alone selects all, a value alone those that have it.
        """
        bits = layoutOf(PathRecord).bits
        both = bits["rate"] | bits["rateSelector"]
        for selector, asked, actual, expected in (
            (Selector.GREATER, 5, 3, True),
            (Selector.GREATER, 3, 5, False),
            (Selector.GREATER, 3, 3, False),
            (Selector.LESS, 3, 5, True),
            (Selector.LESS, 5, 3, False),
            (Selector.EXACTLY, 3, 3, True),
            (Selector.EXACTLY, 3, 5, False),
            (Selector.BEST, 3, 5, True),
            # Reserved.
            (Selector.LESS, 63, 3, False),
        ):
            asking = int.from_bytes(PathRecord(rateSelector=selector, rate=asked).pack(), "big")
            record = int.from_bytes(PathRecord(rateSelector=2, rate=actual).pack(), "big")
            with self.subTest(selector=selector, asked=asked, actual=actual):
                self.assertEqual(query(PathRecord, asking, both).matches(record), expected)
                self.assertTrue(query(PathRecord, asking, bits["rateSelector"]).matches(record))
                self.assertEqual(query(PathRecord, asking, bits["rate"]).matches(record), asked == actual)


class StoreTests(AdministrationTestCase):
    """
    The records of ports.
    """

    def test_nodes(self) -> None:
        """
        A port with a LID is one NodeRecord, with its own GUID and number.
        """
        (found,) = self.table(NodeRecord(lid=3), "lid")
        self.assertEqual((found.nodeInfo.portGuid, found.nodeInfo.localPort), (guidOf(3), 1))
        self.assertEqual(found.nodeDescription.text, "Hca3")
        found = self.get(NodeRecord(lid=SWITCH_LID), "lid")
        self.assertEqual((found.nodeInfo.guid, found.nodeDescription.text), (SWITCH, "Switch1"))
        self.assertEqual(self.status(GET, NodeRecord()), SAStatus.TOO_MANY_RECORDS)
        self.assertEqual(self.status(GET, NodeRecord(lid=9), "lid"), SAStatus.NO_RECORDS)
        self.assertEqual(self.table(NodeRecord(lid=9), "lid"), [])

    def test_ports(self) -> None:
        """
        A switch has a record of each port, all with the LID of port 0; the M_Key is for who is trusted.
        """
        for number in range(4):
            record = PortInfoRecord(endportLID=SWITCH_LID, portNum=number)
            found = self.get(record, "endportLID", "portNum")
            self.assertEqual((found.endportLID, found.portNum), (SWITCH_LID, number))
        for key, expected in ((0, 0), (KEY, MKEY)):
            found = self.get(PortInfoRecord(endportLID=3), "endportLID", key=key)
            self.assertEqual(found, PortInfoRecord(endportLID=3, portNum=1, portInfo=found.portInfo))
            self.assertEqual(found.portInfo, evolve(self.port(3).info, mkey=expected))

    def test_capabilities(self) -> None:
        """
        With the modifier's highest bit ports match that have all bits of CapabilityMask, else those that
        have no other.
        """
        self.port(3).info = evolve(self.port(3).info, capMask=0x50C04A)
        record = PortInfoRecord(portInfo=PortInfo(capMask=2))
        (found,) = self.table(record, "capMask", modifier=CAPABILITIES_MATCH)
        self.assertEqual(found.endportLID, 3)
        self.assertEqual(self.table(record, "capMask"), [])

    def test_kept(self) -> None:
        """
        Records are made once for each sweep.
        """
        self.assertEqual(self.get(NodeRecord(lid=3), "lid").nodeDescription.text, "Hca3")
        self.port(3).node.description = evolve(self.port(3).node.description, description=b"other")
        self.assertEqual(self.get(NodeRecord(lid=3), "lid").nodeDescription.text, "Hca3")
        self.administration.swept(self.now)
        self.assertEqual(self.get(NodeRecord(lid=3), "lid").nodeDescription.text, "other")

    def test_links(self) -> None:
        """
        Each link is there in both directions.
        """
        found = self.table(LinkRecord())
        ends = {(each.fromLID, each.fromPort, each.toLID, each.toPort) for each in found}
        there = {(lid, 1, SWITCH_LID, lid) for lid in (1, 2, 3)}
        self.assertEqual(ends, there | {(far, other, near, port) for near, port, far, other in there})
        self.assertEqual(len(found), 6)

    def test_switch(self) -> None:
        """
        SwitchInfo and the forwarding tables.
        """
        (info,) = self.table(SwitchInfoRecord())
        self.assertEqual((info.lid, info.switchInfo.mcastFdbCap), (SWITCH_LID, 1024))
        first = self.get(LinearForwardingTableRecord(blockNum=0), "blockNum")
        self.assertEqual(first.block.ports[:5], (255, 1, 2, 3, 255))
        last = self.get(LinearForwardingTableRecord(blockNum=1), "blockNum")
        self.assertEqual(last.block.ports, (0, *(255,) * 63))
        self.assertEqual(self.table(MulticastForwardingTableRecord()), [])
        self.model.nodes[SWITCH].switch.multicast[0xC021] = 6
        found = self.get(MulticastForwardingTableRecord(blockNum=1), "blockNum")
        self.assertEqual(found.block.masks[:3], (0, 6, 0))

    def test_tables(self) -> None:
        """
        P_Keys, GUIDs, and the subnet manager; its key is for who is trusted.
        """
        self.assertEqual(self.status(GET, PKeyTableRecord(lid=2), "lid"), SAStatus.REQUEST_INVALID)
        found = self.get(PKeyTableRecord(lid=2), "lid", key=KEY)
        self.assertEqual((found.portNum, found.block.keys), (1, (FULL, *(0,) * 31)))
        found = self.get(GUIDInfoRecord(lid=2, blockNum=0), "lid", "blockNum")
        self.assertEqual(found.guidInfo.guids, (guidOf(2), *(0,) * 7))
        self.assertEqual(len(self.table(GUIDInfoRecord(lid=2), "lid")), 2)
        self.assertEqual(self.table(GUIDInfoRecord(lid=2, blockNum=2), "lid", "blockNum"), [])
        for key, expected in ((0, 0), (KEY, KEY)):
            found = self.get(SMInfoRecord(), key=key).smInfo
            self.assertEqual((found.smInfoGuid, found.smInfoKey, found.smState), (guidOf(1), expected, 3))

    def test_arbitration(self) -> None:
        """
        For a CA the ports of SLtoVLMappingTable and VLArbitrationTable are not compared; for a switch they
        are.
        """
        for block in range(1, 5):
            record = VLArbitrationTableRecord(lid=2, blockNum=block)
            self.assertEqual(self.get(record, "lid", "outputPort", "blockNum").outputPort, 1)
            record = evolve(record, lid=SWITCH_LID, outputPort=3)
            self.assertEqual(self.get(record, "lid", "outputPort", "blockNum").outputPort, 3)
        names = "lid", "inputPort", "outputPort"
        record = SLtoVLMappingTableRecord(lid=2)
        self.assertEqual(self.get(evolve(record, inputPort=3, outputPort=4), *names), record)
        record = SLtoVLMappingTableRecord(lid=SWITCH_LID, inputPort=1, outputPort=2)
        self.assertEqual(self.get(record, *names), record)
        self.assertEqual(self.status(GET, evolve(record, outputPort=9), *names), SAStatus.NO_RECORDS)

    def test_partitions(self) -> None:
        """
        A requester is told of ports that share a partition with it, one that is trusted of all.
        """
        self.port(2).keys = self.port(3).keys = (LIMITED,)
        self.assertEqual(
            [each.lid for each in self.table(GUIDInfoRecord(blockNum=0), "blockNum")], [SWITCH_LID, 1]
        )
        self.assertEqual(self.table(NodeRecord(lid=3), "lid"), [])
        self.assertEqual(len(self.table(NodeRecord(lid=3), "lid", key=KEY)), 1)
        self.assertEqual(len(self.table(NodeRecord(lid=3), "lid", lid=1)), 1)

    def test_bound(self) -> None:
        """
        A table that is longer than a transfer may be is refused.
        """
        self.patch(store, "RMPP_TABLE_BYTES", 3 * 112)
        self.assertEqual(self.status(GET_TABLE, NodeRecord()), SAStatus.NO_RESOURCES)
        self.assertEqual(self.status(GET_TABLE, MCMemberRecord()), SAStatus.SUCCESS)
