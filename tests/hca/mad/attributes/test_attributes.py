"""
Tests of L{twisted_ib.hca.mad.attributes}: octets that ibsim 0.10 answered under OpenSM 3.3.23, and
the values that infiniband-diags 44.0 printed for them.
"""

from __future__ import annotations

from gc import collect

from attrs import evolve
from hypothesis import strategies as st

from tests.hca.mad.attributes.cases import (
    LINEAR,
    LINEAR_OCTETS,
    SWITCH_INFO,
    SWITCH_INFO_OCTETS,
    AttributeTestCase,
)
from tests.support.generated import given
from twisted_ib.hca.base.traits import NodeType
from twisted_ib.hca.mad.attributes.layouts import Attribute, layoutOf
from twisted_ib.hca.mad.attributes.node import (
    MulticastForwardingTable,
    NodeDescription,
    NodeInfo,
    SMInfo,
    SMState,
    SwitchInfo,
    VendorDiag,
)
from twisted_ib.hca.mad.attributes.notice import (
    BadKeyDetails,
    BadMKeyDetails,
    ClassPortInfo,
    Details,
    GIDDetails,
    LinkIntegrityDetails,
    LinkStateDetails,
    LocalChangeDetails,
    Notice,
    NoticeType,
    Trap,
)
from twisted_ib.hca.mad.attributes.performance import (
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
from twisted_ib.hca.mad.attributes.port import (
    Capability,
    Capability2,
    GUIDInfo,
    LedInfo,
    PKeyTable,
    PortInfo,
    SLtoVLMappingTable,
    VLArbitrationTable,
)

#: C{smpquery portinfo} of a CA's port: what it prints that is not 0.
CA_PORT = PortInfo(
    gidPrefix=0xFE80 << 48,
    lid=1,
    smLID=1,
    capMask=0x50C04A,
    mkeyLeasePeriod=4089,
    localPort=1,
    linkWidthEnabled=2,
    linkWidthSupported=0x1F,
    linkWidthActive=2,
    linkSpeedSupported=7,
    linkState=4,
    physLinkState=5,
    linkDownDefState=2,
    linkSpeedActive=1,
    linkSpeedEnabled=1,
    neighborMTU=4,
    vlCap=4,
    vlArbHighCap=8,
    vlArbLowCap=8,
    mtuCap=4,
    vlStallCount=7,
    operVLs=4,
    guidCap=32,
    subnetTimeout=31,
    capabilityMask2=0x30,
)
#: A number for each service level, and for each sampled counter.
LEVELS = (*range(0x01020304, 0x01020314),)
LEVEL_OCTETS = "".join(f"{level:08x}" for level in LEVELS)
SAMPLES = "01020002" + "".join(f"{n:08x}" for n in range(1, 16))
#: Values, and their octets; zeros follow.
ANSWERS: tuple[tuple[Attribute, str], ...] = (
    (
        NodeInfo(
            nodeType=NodeType.CA,
            numPorts=2,
            systemGuid=0x100003,
            guid=0x100003,
            portGuid=0x100004,
            partCap=64,
            revision=0xA1,
            localPort=1,
        ),
        "0101010200000000001000030000000000100003000000000010000400400000000000a101",
    ),
    (NodeDescription(description=b"Switch1".ljust(64, b"\0")), "53776974636831"),
    (
        CA_PORT,
        "0000000000000000fe80000000000000000100010050c04a00000ff901021f02"
        "74520011404000080804e040000000000000201f000000000000000000300000",
    ),
    (SWITCH_INFO, SWITCH_INFO_OCTETS),
    (GUIDInfo(guids=(0x100001, *(0,) * 7)), "0000000000100001"),
    (PKeyTable(keys=(0xFFFF, *(0,) * 31)), "ffff"),
    (SLtoVLMappingTable(vls=(*range(15), 7)), "0123456789abcde7"),
    (
        VLArbitrationTable(vls=(*range(8), *(0,) * 24), weights=(0, *(4,) * 7, *(0,) * 24)),
        "00000104020403040404050406040704",
    ),
    (LINEAR, LINEAR_OCTETS),
    (
        SMInfo(smInfoGuid=0x100001, smInfoKey=1, smActivity=0x65, smPriority=0, smState=SMState.MASTER),
        "000000000010000100000000000000010000006503",
    ),
    (ClassPortInfo(classVersion=1, capabilityMask=0x1200, respTimeVal=18), "0101120000000012"),
    (
        PortCounters(portSelect=1, portXmitData=9000, portRcvData=8856, portXmitPkts=125, portRcvPkts=123),
        "0001" + "00" * 22 + "00002328000022980000007d0000007b",
    ),
    (
        PortCountersExtended(
            portSelect=1, portXmitData=9072, portRcvData=8928, portXmitPkts=126, portRcvPkts=124
        ),
        "0001" + "00" * 6 + "000000000000237000000000000022e0000000000000007e000000000000007c",
    ),
)
#: The rest of the fields, by the standard's tables.
FIELDS: tuple[tuple[Attribute, str], ...] = (
    (
        PortInfo(
            mkey=0x0102030405060708,
            diagCode=0x1112,
            protectBits=2,
            lmc=7,
            smSL=9,
            initType=0xA,
            vlHighLimit=0x13,
            initReply=0xB,
            hoqLife=0x1F,
            partEnforceInb=1,
            filterRawInb=1,
            mkeyViolations=0x1415,
            pkeyViolations=0x1617,
            qkeyViolations=0x1819,
            clientReregister=1,
            mcastPkeyTrapSuppressionEnabled=2,
            respTimeVal=0x10,
            localPhysErr=0xC,
            overrunErr=0xD,
            maxCreditHint=0x1A1B,
            roundTrip=0x1C1D1E,
            linkSpeedExtActive=2,
            linkSpeedExtSupported=3,
            linkSpeedExtEnabled=0x1E,
        ),
        "01020304050607080000000000000000000000000000000011120000000000000000870009"
        "0a130000b01f0a141516171819"
        "00c010cd1a1b001c1d1e0000231e",
    ),
    (
        PortInfo(partEnforceOutb=1, filterRawOutb=1),
        "00" * 43 + "05",
    ),
    (
        SwitchInfo(
            randomFdbCap=0x0102,
            defPort=3,
            defMcastPrimPort=4,
            defMcastNotPrimPort=5,
            stateChange=1,
            optSLtoVLMapping=2,
            lidsPerPort=0x0607,
            inboundPartEnf=1,
            outboundPartEnf=1,
            enhancedPort0=1,
            multicastFDBTop=0xC123,
        ),
        "0000010200000000030405060607" + "0000" + "c800c123",
    ),
    (MulticastForwardingTable(masks=(0x0102, 0x8001, *(0,) * 30)), "01028001"),
    (LedInfo(ledMask=1), "80"),
    (VendorDiag(nextIndex=0x0102, diagData=b"\3" + bytes(61)), "010203"),
    (
        BadKeyDetails(
            lid1=0x0102,
            lid2=0x0304,
            key=0x05060708,
            sl=9,
            qp1=0x0A0B0C,
            qp2=0x0D0E0F,
            gid1=0xFE80 << 112 | 1,
            gid2=0xFE80 << 112 | 2,
        ),
        "00000102030405060708900a0b0c000d0e0f"
        "fe800000000000000000000000000001fe800000000000000000000000000002",
    ),
    (
        NodeInfo(baseVers=2, classVers=3, devId=0x0102, revision=3, vendorId=0x040506),
        "0203" + "00" * 28 + "010200000003" + "00040506",
    ),
    (SMInfo(smPriority=15, smState=SMState.STANDBY), "00" * 20 + "f2"),
    (
        ClassPortInfo(
            baseVersion=2,
            capabilityMask2=0x7FFFFFE,
            respTimeVal=1,
            redirectGID=0xFE80 << 112 | 1,
            redirectTC=2,
            redirectSL=3,
            redirectFL=0x45678,
            redirectLID=0x090A,
            redirectPKey=0xFFFF,
            redirectQP=0x0B0C0D,
            redirectQKey=0x80010000,
            trapGID=2,
            trapTC=3,
            trapSL=4,
            trapFL=0x56789,
            trapLID=0x0A0B,
            trapPKey=0x7FFF,
            trapHL=0xFE,
            trapQP=0x0C0D0E,
            trapQKey=0x10111213,
        ),
        "02000000ffffffc1fe80000000000000000000000000000102345678090affff000b0c0d80010000"
        "00000000000000000000000000000002034567890a0b7ffffe0c0d0e10111213",
    ),
    (
        PortCounters(
            counterSelect=0x0102,
            symbolErrorCounter=0x0304,
            linkErrorRecoveryCounter=5,
            linkDownedCounter=6,
            portRcvErrors=0x0708,
            portRcvRemotePhysicalErrors=0x090A,
            portRcvSwitchRelayErrors=0x0B0C,
            portXmitDiscards=0x0D0E,
            portXmitConstraintErrors=0x0F,
            portRcvConstraintErrors=0x10,
            counterSelect2=0x11,
            localLinkIntegrityErrors=1,
            excessiveBufferOverrunErrors=2,
            qp1Dropped=0x1314,
            vl15Dropped=0x1516,
            portXmitWait=0x1718191A,
        ),
        "00000102030405060708090a0b0c0d0e0f10111213141516" + "00" * 16 + "1718191a",
    ),
    (
        PortCountersExtended(
            counterSelect=0xFF,
            portUnicastXmitPkts=1,
            portUnicastRcvPkts=2,
            portMulticastXmitPkts=3,
            portMulticastRcvPkts=4,
        ),
        "000000ff" + "00" * 36 + "0000000000000001000000000000000200000000000000030000000000000004",
    ),
    (PortSamplesResult(tag=0x0102, sampleStatus=2, counters=(*range(1, 16),)), SAMPLES),
    (
        PortRcvErrorDetails(
            portSelect=1,
            counterSelect=0x0203,
            portLocalPhysicalErrors=0x0405,
            portMalformedPktErrors=0x0607,
            portBufferOverrunErrors=0x0809,
            portDLIDMappingErrors=0x0A0B,
            portVLMappingErrors=0x0C0D,
            portLoopingErrors=0x0E0F,
        ),
        "000102030405060708090a0b0c0d0e0f",
    ),
    (
        PortXmitDiscardDetails(
            portSelect=1,
            counterSelect=0x0203,
            portInactiveDiscards=0x0405,
            portNeighborMTUDiscards=0x0607,
            portSwLifetimeLimitDiscards=0x0809,
            portSwHOQLifetimeLimitDiscards=0x0A0B,
        ),
        "000102030405060708090a0b",
    ),
    (
        PortOpRcvCounters(
            opCode=0x64, portSelect=1, counterSelect=2, portOpRcvPkts=0x03040506, portOpRcvData=7
        ),
        "640100020304050600000007",
    ),
    (
        PortFlowCtlCounters(portSelect=1, counterSelect=2, portXmitFlowPkts=0x03040506, portRcvFlowPkts=7),
        "000100020304050600000007",
    ),
    (PortXmitDataSL(portSelect=1, counterSelect=2, xmtDataSL=LEVELS), "00010002" + LEVEL_OCTETS),
    (PortRcvDataSL(portSelect=1, counterSelect=2, rcvDataSL=LEVELS), "00010002" + LEVEL_OCTETS),
    (
        PortSamplesControl(
            opCode=1,
            portSelect=2,
            tick=3,
            counterWidth=4,
            counterMask0=7,
            counterMask1to9=1,
            counterMask10to14=0x7FFF,
            sampleMechanisms=5,
            sampleStatus=2,
            optionMask=6,
            vendorMask=7,
            sampleStart=8,
            sampleInterval=9,
            tag=0x0A0B,
            counterSelect=(*range(1, 16),),
            samplesOnlyOptionMask=0x0C,
        ),
        "01020304380000017fff0502000000000000000600000000000000070000000800000009"
        "0a0b000100020003000400050006000700080009000a000b000c000d000e000f00000000000000000000000c",
    ),
    (
        Notice(
            noticeType=NoticeType.URGENT,
            noticeProducerType=NodeType.SWITCH,
            noticeTrapNumber=Trap.LINK_STATE_CHANGED,
            noticeIssuerLID=2,
            noticeToggle=1,
            noticeCount=0x0102,
            details=LinkStateDetails(lid=2).pack(),
        ),
        "810000020080000281020002",
    ),
    (Notice(noticeIsGeneric=0, noticeType=NoticeType.EMPTY), "7f"),
    (GIDDetails(gid=0xFE80 << 112 | 0x100001), "000000000000fe800000000000000000000000100001"),
    (LinkIntegrityDetails(lid=0x0102, port=3), "0000010203"),
    (
        LocalChangeDetails(
            lid=0x0102,
            otherLocalChanges=1,
            capMask=0x50C048,
            smPriorityChange=1,
            nodeDescriptionChange=1,
            capabilityMask2=0x30,
        ),
        "0000010200010050c048" + "0009" + "0030",
    ),
    (LocalChangeDetails(linkWidthEnabledChange=1, hierarchyChange=1), "00" * 11 + "12"),
    (LocalChangeDetails(linkSpeedEnabledChange=1, capabilityMask2Change=1), "00" * 11 + "24"),
    (
        BadMKeyDetails(
            lid=0x0102,
            drSLID=0xFFFF,
            method=2,
            attribute=0x15,
            modifier=0x80000001,
            mkey=0x0304050607080910,
            directedRoute=1,
            truncated=1,
            routeHops=2,
            returnPath=bytes((1, 5)).ljust(30, b"\0"),
        ),
        "00000102ffff0200001580000001030405060708091000c20105",
    ),
)
KINDS = tuple({type(value) for value, _ in (*ANSWERS, *FIELDS)})


class AttributeTests(AttributeTestCase):
    """
    Attributes on the wire.
    """

    def test_octets(self) -> None:
        """
        Each value has its octets, and they have the value.
        """
        self.checkOctets((*ANSWERS, *FIELDS))

    def test_everyField(self) -> None:
        """
        The values have each field once at least with something else than its default.
        """
        self.checkFields(value for value, _ in (*ANSWERS, *FIELDS))

    def test_distinct(self) -> None:
        """
        No two fields share a bit, and all are inside.
        """
        for kind in KINDS:
            used: set[int] = set()
            for each in layoutOf(kind).fields:
                for offset in each.offsets():
                    places = set(range(offset, offset + each.width))
                    self.assertEqual(places & used, set(), f"{kind.__name__}.{each.name}")
                    used |= places
            self.assertLess(max(used), kind.OCTETS * 8)

    @given(st.sampled_from(KINDS), st.binary(min_size=200, max_size=200))
    def test_anyOctets(self, kind: type[Attribute], data: bytes) -> None:
        """
        Any octets are an attribute, which survives being packed.
        """
        value = kind.parse(data)
        self.assertEqual(kind.parse(value.pack()), value)

    def test_names(self) -> None:
        """
        Fields have the names that smpquery prints.
        """
        names = [each.name.lower() for each in layoutOf(PortInfo).fields]
        printed = (
            "Mkey GidPrefix Lid SMLid CapMask DiagCode MkeyLeasePeriod LocalPort LinkWidthEnabled"
            " LinkWidthSupported LinkWidthActive LinkSpeedSupported LinkState PhysLinkState LinkDownDefState"
            " ProtectBits LMC LinkSpeedActive LinkSpeedEnabled NeighborMTU SMSL VLCap InitType VLHighLimit"
            " VLArbHighCap VLArbLowCap InitReply MtuCap VLStallCount HoqLife OperVLs PartEnforceInb"
            " PartEnforceOutb FilterRawInb FilterRawOutb MkeyViolations PkeyViolations QkeyViolations GuidCap"
            " ClientReregister McastPkeyTrapSuppressionEnabled SubnetTimeout RespTimeVal LocalPhysErr"
            " OverrunErr MaxCreditHint RoundTrip CapabilityMask2 LinkSpeedExtActive LinkSpeedExtSupported"
            " LinkSpeedExtEnabled"
        )
        self.assertEqual(names, printed.lower().split())

    def test_text(self) -> None:
        """
        A description ends at its first zero, and may be no UTF-8.
        """
        self.assertEqual(NodeDescription(description=b"Hca1\0rest").text, "Hca1")
        self.assertEqual(NodeDescription(description=b"\xff" * 64).text, "\N{REPLACEMENT CHARACTER}" * 64)

    def test_capabilities(self) -> None:
        """
        The bits that smpquery names for an ibsim port.
        """
        names = (
            Capability.TRAP
            | Capability.SL_MAPPING
            | Capability.EXTENDED_SPEEDS
            | Capability.CAPABILITY_MASK_2
            | Capability.VENDOR_CLASS
            | Capability.CAPABILITY_MASK_NOTICE
        )
        self.assertEqual(names, 0x50C048)
        self.assertEqual(Capability(CA_PORT.capMask), names | Capability.SM)
        self.assertEqual(CA_PORT.capabilityMask2, Capability2.LINK_WIDTH_2X | Capability2.LINK_SPEED_HDR)

    def test_details(self) -> None:
        """
        Every trap that this package sends has one class of details.
        """
        # Classes with slots are made twice, and attrs of before 23.1 leaves the first ones to be collected.
        collect()
        numbers = [trap for kind in Details.__subclasses__() for trap in kind.TRAPS]
        self.assertEqual(len(numbers), len(set(numbers)))
        details = evolve(Notice(), details=LinkStateDetails(lid=7).pack()).details
        self.assertEqual(LinkStateDetails.parse(details).lid, 7)
