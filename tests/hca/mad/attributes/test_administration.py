"""
Tests of L{twisted_ib.hca.mad.attributes.administration}: octets that OpenSM 3.3.23 answered.
"""

from __future__ import annotations

from attrs import evolve

from tests.hca.mad.attributes.cases import (
    LINEAR,
    LINEAR_OCTETS,
    SWITCH_INFO,
    SWITCH_INFO_OCTETS,
    AttributeTestCase,
)
from tests.hca.mad.attributes.records import RECORDS
from twisted_ib.hca.mad.attributes.administration import (
    GUIDInfoRecord,
    InformInfo,
    InformInfoRecord,
    LinearForwardingTableRecord,
    LinkRecord,
    MCMemberRecord,
    MulticastForwardingTableRecord,
    NodeRecord,
    PathRecord,
    PKeyTableRecord,
    PortInfoRecord,
    ServiceRecord,
    SLtoVLMappingTableRecord,
    SMInfoRecord,
    SwitchInfoRecord,
    VLArbitrationTableRecord,
    stride,
)
from twisted_ib.hca.mad.attributes.layouts import Attribute, layoutOf
from twisted_ib.hca.mad.attributes.node import MulticastForwardingTable, NodeDescription, NodeInfo, SMInfo
from twisted_ib.hca.mad.attributes.port import (
    GUIDInfo,
    PKeyTable,
    PortInfo,
    SLtoVLMappingTable,
    VLArbitrationTable,
)

LINK_LOCAL = 0xFE80 << 112
PATH = PathRecord(
    dgid=LINK_LOCAL | 0x100001,
    sgid=LINK_LOCAL | 0x100004,
    dlid=1,
    slid=4,
    reversible=1,
    pKey=0xFFFF,
    mtuSelector=2,
    mtu=4,
    rateSelector=2,
    rate=3,
    packetLifeTimeSelector=2,
    packetLifeTime=18,
)
#: Record, its stride, its octets; zeros follow.
RECORDED: tuple[tuple[Attribute, int, str], ...] = (
    (
        NodeRecord(
            lid=4,
            nodeInfo=NodeInfo(
                nodeType=1,
                numPorts=2,
                systemGuid=0x100003,
                guid=0x100003,
                portGuid=0x100004,
                partCap=64,
                localPort=1,
            ),
            nodeDescription=NodeDescription(description=b"Hca2".ljust(64, b"\0")),
        ),
        14,
        "000400000101010200000000001000030000000000100003000000000010000400400000000000000100000048636132",
    ),
    (
        PortInfoRecord(
            endportLID=2,
            portNum=5,
            portInfo=PortInfo(
                localPort=1,
                linkWidthEnabled=2,
                linkWidthSupported=31,
                linkWidthActive=2,
                linkSpeedSupported=7,
                linkState=4,
                physLinkState=5,
                linkDownDefState=2,
                linkSpeedActive=1,
                linkSpeedEnabled=7,
                neighborMTU=4,
                vlCap=4,
                vlArbHighCap=8,
                vlArbLowCap=8,
                mtuCap=4,
                vlStallCount=7,
                hoqLife=18,
                operVLs=4,
            ),
        ),
        9,
        "00020500" + "00" * 28 + "01021f0274520017404000080804f240",
    ),
    (SwitchInfoRecord(lid=2, switchInfo=SWITCH_INFO), 3, "00020000" + SWITCH_INFO_OCTETS),
    (LinearForwardingTableRecord(lid=2, block=LINEAR), 9, "0002000000000000" + LINEAR_OCTETS),
    (
        SMInfoRecord(lid=1, smInfo=SMInfo(smInfoGuid=0x100001, smActivity=0x65, smState=3)),
        4,
        "00010000000000000010000100000000000000000000006503",
    ),
    (
        PATH,
        8,
        "0000000000000000fe800000000000000000000000100001fe80000000000000000000000010000400010004"
        "000000000080ffff0000848392",
    ),
    (LinkRecord(fromLID=2, fromPort=1, toPort=1, toLID=1), 1, "000201010001"),
    (
        PKeyTableRecord(lid=1, portNum=1, block=PKeyTable(keys=(0xFFFF, *(0,) * 31))),
        9,
        "0001000001000000ffff",
    ),
    (SLtoVLMappingTableRecord(lid=2, inputPort=1, outputPort=2), 2, "00020102"),
    (VLArbitrationTableRecord(lid=2, outputPort=1, blockNum=1), 9, "00020101"),
    (
        GUIDInfoRecord(lid=1, guidInfo=GUIDInfo(guids=(0x100001, *(0,) * 7))),
        9,
        "00010000000000000000000000100001",
    ),
    (
        MCMemberRecord(
            mgid=0xFF12401BFFFF0000000000000000BEEF,
            portGID=LINK_LOCAL | 0x100004,
            qKey=0xB1B,
            mlid=0xC001,
            mtuSelector=2,
            mtu=4,
            pKey=0xFFFF,
            rateSelector=2,
            rate=3,
            packetLifeTimeSelector=2,
            scope=2,
            joinState=1,
        ),
        7,
        "ff12401bffff0000000000000000beeffe80000000000000000000000010000400000b1bc0018400ffff83800000000021",
    ),
    (
        ServiceRecord(
            serviceID=0x1234,
            serviceGID=LINK_LOCAL | 0x100004,
            servicePKey=0xFFFF,
            serviceLease=60,
            serviceName=b"svc".ljust(64, b"\0"),
            serviceData8=(*range(16),),
            serviceData16=(*range(0x1011, 0x2011, 0x202),),
            serviceData32=(*range(0x20212223, 0x30313233, 0x04040404),),
            serviceData64=(0x3031323334353637, 0x3001000000000000),
        ),
        22,
        "0000000000001234fe800000000000000000000000100004ffff00000000003c"
        + "00" * 16
        + "737663"
        + "00" * 61
        + "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
        "202122232425262728292a2b2c2d2e2f30313233343536373001",
    ),
    (
        InformInfoRecord(
            subscriberGID=LINK_LOCAL | 0x100004,
            informInfo=InformInfo(
                lidRangeBegin=0xFFFF,
                isGeneric=1,
                subscribe=1,
                noticeType=0xFFFF,
                trapNumber=64,
                qpn=1,
                respTimeVal=18,
                producerType=0xFFFFFF,
            ),
        ),
        8,
        "fe800000000000000000000000100004" + "00" * 24 + "ffff000000000101ffff00400000011200ffffff",
    ),
)
#: By the standard's tables: what OpenSM answered is 0 in these fields, or not there.
FIELDS: tuple[tuple[Attribute, str], ...] = (
    (
        MulticastForwardingTableRecord(
            lid=2, position=0xF, blockNum=0x1AB, block=MulticastForwardingTable(masks=(6, *(0,) * 31))
        ),
        "0002f1ab000000000006",
    ),
    (
        PathRecord(
            serviceID=0x0102030405060708,
            rawTraffic=1,
            flowLabel=0x23456,
            hopLimit=7,
            tClass=8,
            numbPath=0x7F,
            qosClass=0x9AB,
            sl=0xC,
            preference=0xD,
        ),
        "0102030405060708" + "00" * 36 + "82345607" + "087f0000" + "9abc000000" + "0d",
    ),
    (
        MCMemberRecord(
            tClass=1, packetLifeTime=0x3F, sl=2, flowLabel=0x34567, hopLimit=8, joinState=9, proxyJoin=1
        ),
        "00" * 39 + "010000003f234567080980",
    ),
    (
        InformInfo(gid=LINK_LOCAL | 1, lidRangeEnd=0x0102),
        "fe8000000000000000000000000000010000" + "0102",
    ),
    (InformInfoRecord(enum=0x0102), "00" * 16 + "0102"),
    (ServiceRecord(serviceKey=bytes(range(16))), "00" * 32 + "000102030405060708090a0b0c0d0e0f"),
    (PortInfoRecord(options=1), "00000001"),
    (GUIDInfoRecord(blockNum=1), "000001"),
    (PKeyTableRecord(blockNum=0x0102), "00000102"),
    (LinearForwardingTableRecord(blockNum=0x0102), "00000102"),
    (SLtoVLMappingTableRecord(mapping=SLtoVLMappingTable(vls=(1, *(0,) * 15))), "00" * 8 + "10"),
    (
        VLArbitrationTableRecord(block=VLArbitrationTable(vls=(1, *(0,) * 31), weights=(2, *(0,) * 31))),
        "00" * 8 + "0102",
    ),
)


class RecordTests(AttributeTestCase):
    """
    Records on the wire.
    """

    def test_octets(self) -> None:
        """
        Each record has its octets, and they have the record; a table has it at its stride.
        """
        for value, units, _ in RECORDED:
            self.assertEqual(stride(type(value)), units)
        self.checkOctets((*((value, text) for value, _, text in RECORDED), *FIELDS))

    def test_everyField(self) -> None:
        """
        The values have each field of each record once at least with something else than its default.
        """
        values = [value for value, *_ in (*RECORDED, *FIELDS)]
        # InformInfo is in its record too.
        values += [value.informInfo for value in values if isinstance(value, InformInfoRecord)]
        self.assertEqual({type(value) for value in values}, {*RECORDS.values(), InformInfo})
        self.checkFields(values)

    def test_components(self) -> None:
        """
        Bits of component masks, by Linux's and OpenSM's names for them.
        """
        for kind, index, name in (
            (PathRecord, 2, "dgid"),
            (PathRecord, 3, "sgid"),
            (PathRecord, 11, "reversible"),
            (PathRecord, 12, "numbPath"),
            (PathRecord, 13, "pKey"),
            (PathRecord, 22, "preference"),
            (MCMemberRecord, 0, "mgid"),
            (MCMemberRecord, 3, "mlid"),
            (MCMemberRecord, 16, "joinState"),
            (MCMemberRecord, 17, "proxyJoin"),
            (ServiceRecord, 0, "serviceID"),
            (ServiceRecord, 6, "serviceName"),
            (LinkRecord, 3, "toLID"),
            (PKeyTableRecord, 2, "portNum"),
            (MulticastForwardingTableRecord, 3, "blockNum"),
            (InformInfo, 7, "trapNumber"),
            (InformInfo, 12, "producerType"),
        ):
            layout = layoutOf(kind)
            place = next(each for each in layout.fields if each.name == name)
            mask = (1 << place.width) - 1 << 8 * kind.OCTETS - place.offset - place.width
            self.assertEqual(layout.components[index], mask, f"{kind.__name__}.{name}")
        self.assertEqual(layoutOf(PathRecord).components[0], layoutOf(PathRecord).components[1])
        self.assertEqual(layoutOf(ServiceRecord).components[36], (1 << 64) - 1)

    def test_nestedComponents(self) -> None:
        """
        Components of what is in a record count on: NodeInfo's from bit 2, PortInfo's from bit 3.
        """
        for kind, inner, first, name, index in (
            (NodeRecord, NodeInfo, 2, "vendorId", 13),
            (PortInfoRecord, PortInfo, 3, "capMask", 7),
            (PortInfoRecord, PortInfo, 3, "lmc", 20),
            (PortInfoRecord, PortInfo, 3, "linkSpeedExtEnabled", 57),
            (SMInfoRecord, SMInfo, 2, "smState", 6),
        ):
            layout = layoutOf(kind)
            place = next(each for each in layoutOf(inner).fields if each.name == name)
            offset = place.offset + 32
            self.assertEqual(
                layout.components[index], (1 << place.width) - 1 << 8 * kind.OCTETS - offset - place.width
            )
            self.assertGreaterEqual(index, first)
        self.assertEqual(len(layoutOf(NodeRecord).components), 15)
        self.assertEqual(layoutOf(NodeRecord).components[14], (1 << 512) - 1)

    def test_match(self) -> None:
        """
        A query for a path as Linux asks it: GIDs, P_Key, reversible and number of paths.
        """
        chosen = layoutOf(PathRecord).selected(0x380C)
        assert chosen is not None
        query = PathRecord(dgid=PATH.dgid, sgid=PATH.sgid, reversible=1, pKey=0xFFFF, dlid=9)

        def matches(record: PathRecord) -> bool:
            return not (int.from_bytes(record.pack(), "big") ^ int.from_bytes(query.pack(), "big")) & chosen

        self.assertTrue(matches(PATH))
        for change in ({"dgid": 1}, {"reversible": 0}, {"pKey": 1}, {"numbPath": 1}):
            self.assertFalse(matches(evolve(PATH, **change)))
        self.assertIsNone(layoutOf(PathRecord).selected(1 << 23))
