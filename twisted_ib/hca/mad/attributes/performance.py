"""
Attributes of performance management (IBTA vol. 1 16.1.3).

Data counters count units of 4 octets.
"""

from __future__ import annotations

from typing import ClassVar

from attrs import frozen

from twisted_ib.hca.mad.attributes.layouts import Attribute, bits, table

#: PortSelect of all ports together.
ALL_PORTS = 0xFF


@frozen(kw_only=True)
class PortCounters(Attribute):
    """
    Counters that stay at their maxima.

    @ivar counterSelect: which counters a Set writes, from symbolErrorCounter at bit 0 to portRcvPkts at bit
        15; C{counterSelect2} bit 0 is portXmitWait.
    """

    ID: ClassVar[int] = 0x0012
    OCTETS: ClassVar[int] = 44

    portSelect: int = bits(1, 8)
    counterSelect: int = bits(2, 16)
    symbolErrorCounter: int = bits(4, 16)
    linkErrorRecoveryCounter: int = bits(6, 8)
    linkDownedCounter: int = bits(7, 8)
    portRcvErrors: int = bits(8, 16)
    portRcvRemotePhysicalErrors: int = bits(10, 16)
    portRcvSwitchRelayErrors: int = bits(12, 16)
    portXmitDiscards: int = bits(14, 16)
    portXmitConstraintErrors: int = bits(16, 8)
    portRcvConstraintErrors: int = bits(17, 8)
    counterSelect2: int = bits(18, 8)
    localLinkIntegrityErrors: int = bits(19, 4)
    excessiveBufferOverrunErrors: int = bits(19, 4, 3)
    qp1Dropped: int = bits(20, 16)
    vl15Dropped: int = bits(22, 16)
    portXmitData: int = bits(24, 32)
    portRcvData: int = bits(28, 32)
    portXmitPkts: int = bits(32, 32)
    portRcvPkts: int = bits(36, 32)
    portXmitWait: int = bits(40, 32)


@frozen(kw_only=True)
class PortCountersExtended(Attribute):
    """
    Counters of 64 bits, which wrap.

    @ivar counterSelect: which counters a Set writes, from portXmitData at bit 0 on.
    """

    ID: ClassVar[int] = 0x001D
    OCTETS: ClassVar[int] = 72

    portSelect: int = bits(1, 8)
    counterSelect: int = bits(2, 16)
    portXmitData: int = bits(8, 64)
    portRcvData: int = bits(16, 64)
    portXmitPkts: int = bits(24, 64)
    portRcvPkts: int = bits(32, 64)
    portUnicastXmitPkts: int = bits(40, 64)
    portUnicastRcvPkts: int = bits(48, 64)
    portMulticastXmitPkts: int = bits(56, 64)
    portMulticastRcvPkts: int = bits(64, 64)


@frozen(kw_only=True)
class PortSamplesControl(Attribute):
    """
    The counters of a sampling mechanism, and its times (IBTA vol. 1 16.1.3.2).

    @ivar sampleStatus: 0 done, 1 started, 2 running.
    """

    ID: ClassVar[int] = 0x0010
    OCTETS: ClassVar[int] = 80

    opCode: int = bits(0, 8)
    portSelect: int = bits(1, 8)
    tick: int = bits(2, 8)
    counterWidth: int = bits(3, 3, 2)
    counterMask0: int = bits(4, 3, 5)
    counterMask1to9: int = bits(4, 27, 2)
    counterMask10to14: int = bits(8, 15, 6)
    sampleMechanisms: int = bits(10, 8)
    sampleStatus: int = bits(11, 2, 1)
    optionMask: int = bits(12, 64)
    vendorMask: int = bits(20, 64)
    sampleStart: int = bits(28, 32)
    sampleInterval: int = bits(32, 32)
    tag: int = bits(36, 16)
    counterSelect: tuple[int, ...] = table(38, 15, 16)
    samplesOnlyOptionMask: int = bits(72, 64)


@frozen(kw_only=True)
class PortSamplesResult(Attribute):
    """
    The counts of a sampling mechanism.

    @ivar tag: that of its L{PortSamplesControl}.
    """

    ID: ClassVar[int] = 0x0011
    OCTETS: ClassVar[int] = 64

    tag: int = bits(0, 16)
    sampleStatus: int = bits(3, 2, 1)
    counters: tuple[int, ...] = table(4, 15, 32)


@frozen(kw_only=True)
class PortRcvErrorDetails(Attribute):
    """
    The parts of portRcvErrors, and of portRcvSwitchRelayErrors.
    """

    ID: ClassVar[int] = 0x0015
    OCTETS: ClassVar[int] = 16

    portSelect: int = bits(1, 8)
    counterSelect: int = bits(2, 16)
    portLocalPhysicalErrors: int = bits(4, 16)
    portMalformedPktErrors: int = bits(6, 16)
    portBufferOverrunErrors: int = bits(8, 16)
    portDLIDMappingErrors: int = bits(10, 16)
    portVLMappingErrors: int = bits(12, 16)
    portLoopingErrors: int = bits(14, 16)


@frozen(kw_only=True)
class PortXmitDiscardDetails(Attribute):
    """
    The parts of portXmitDiscards.
    """

    ID: ClassVar[int] = 0x0016
    OCTETS: ClassVar[int] = 12

    portSelect: int = bits(1, 8)
    counterSelect: int = bits(2, 16)
    portInactiveDiscards: int = bits(4, 16)
    portNeighborMTUDiscards: int = bits(6, 16)
    portSwLifetimeLimitDiscards: int = bits(8, 16)
    portSwHOQLifetimeLimitDiscards: int = bits(10, 16)


@frozen(kw_only=True)
class PortOpRcvCounters(Attribute):
    """
    Packets of one opcode.
    """

    ID: ClassVar[int] = 0x0017
    OCTETS: ClassVar[int] = 12

    opCode: int = bits(0, 8)
    portSelect: int = bits(1, 8)
    counterSelect: int = bits(2, 16)
    portOpRcvPkts: int = bits(4, 32)
    portOpRcvData: int = bits(8, 32)


@frozen(kw_only=True)
class PortFlowCtlCounters(Attribute):
    """
    Flow control packets of the link.
    """

    ID: ClassVar[int] = 0x0018
    OCTETS: ClassVar[int] = 12

    portSelect: int = bits(1, 8)
    counterSelect: int = bits(2, 16)
    portXmitFlowPkts: int = bits(4, 32)
    portRcvFlowPkts: int = bits(8, 32)


@frozen(kw_only=True)
class PortXmitDataSL(Attribute):
    """
    @ivar xmtDataSL: the data that was sent at each service level.
    """

    ID: ClassVar[int] = 0x0036
    OCTETS: ClassVar[int] = 68

    portSelect: int = bits(1, 8)
    counterSelect: int = bits(2, 16)
    xmtDataSL: tuple[int, ...] = table(4, 16, 32)


@frozen(kw_only=True)
class PortRcvDataSL(Attribute):
    """
    @ivar rcvDataSL: the data that arrived at each service level.
    """

    ID: ClassVar[int] = 0x0037
    OCTETS: ClassVar[int] = 68

    portSelect: int = bits(1, 8)
    counterSelect: int = bits(2, 16)
    rcvDataSL: tuple[int, ...] = table(4, 16, 32)
