"""
The performance management agent (PMA): counters of ports (IBTA vol. 1 16.1).

The counters themselves are somebody else's and are never changed: a Set is remembered here, as the difference
from then on.  The 32-bit counters and those of 64 bits are set apart, as in adapters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from attrs import evolve

from twisted_ib.errors import WireError
from twisted_ib.hca.base.attributes import PORT
from twisted_ib.hca.mad.attributes.layouts import Attribute, layoutOf
from twisted_ib.hca.mad.attributes.notice import RESPONSE_TIME, ClassPortInfo
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
from twisted_ib.hca.mad.requests import ReceivedMAD
from twisted_ib.hca.wire.mad.classes import PERFORMANCE
from twisted_ib.hca.wire.mad.mad import (
    BAD_VERSION,
    GET,
    GET_RESPONSE,
    INVALID_ATTRIBUTE_VALUE,
    RESPONSE,
    SET,
    UNSUPPORTED_METHOD,
    UNSUPPORTED_METHOD_ATTRIBUTE,
    Mad,
    decodeMAD,
)
from twisted_ib.hca.wire.opcodes import UD_SEND_ONLY

if TYPE_CHECKING:
    from twisted_ib.hca.mad.agents import IManagedDevice

VERSION: Final = 1
#: Bits of ClassPortInfo's CapabilityMask: PortSelect may be all ports; PortCountersExtended, and the same
#: without its counters of multicast; PortXmitWait (Linux ib_pma.h IB_PMA_CLASS_CAP_*).
ALL_PORT_SELECT: Final = 0x0100
EXTENDED_WIDTH: Final = 0x0200
EXTENDED_WIDTH_NO_MULTICAST: Final = 0x0400
XMIT_WAIT: Final = 0x1000
#: For so long the counters of a device are those that were read: reading visits every queue pair, and anybody
#: may ask.  In seconds.
PMA_COUNTERS_SECONDS = 0.02

#: Reads the counters of a port since ever: by the names of the fields of attributes, with the number of its
#: entry for those in a table; those without a name are 0.
Read = Callable[[], Mapping[str, int]]


class _Kind:
    """
    An attribute of counters.

    @ivar selected: the counters of each bit of CounterSelect, and of CounterSelect2 from bit 16 on.
    @ivar sticks: whether counters stay at their maxima; else they wrap.
    @ivar maxima: of all its counters.
    """

    def __init__(self, attribute: type[Attribute], selected: tuple[str, ...], sticks: bool = True) -> None:
        # C{selected}: the counters, or the table with all of them.
        self.attribute, self.sticks = attribute, sticks
        fields = {each.name: each for each in layoutOf(attribute).fields}
        field = fields[selected[0]]
        self._table = field.name if field.entries > 1 else ""
        if self._table:
            self.selected = tuple(f"{field.name}{index}" for index in range(field.entries))
            self.maxima = dict.fromkeys(self.selected, (1 << field.width) - 1)
        else:
            self.selected = selected
            names = [name for name in fields if name in (*selected, "qp1Dropped")]
            self.maxima = {name: (1 << fields[name].width) - 1 for name in names}

    def given(self, asked: Any) -> list[int]:
        if self._table:
            return list(getattr(asked, self._table))
        return [getattr(asked, name) for name in self.selected]

    def filled(self, asked: Any, values: dict[str, int]) -> bytes:
        if self._table:
            return bytes(evolve(asked, **{self._table: tuple(values.values())}).pack())
        return bytes(evolve(asked, **values).pack())


_KINDS: Final = {
    PortCounters.ID: _Kind(
        PortCounters,
        (
            *("symbolErrorCounter", "linkErrorRecoveryCounter", "linkDownedCounter", "portRcvErrors"),
            *("portRcvRemotePhysicalErrors", "portRcvSwitchRelayErrors", "portXmitDiscards"),
            *("portXmitConstraintErrors", "portRcvConstraintErrors", "localLinkIntegrityErrors"),
            *("excessiveBufferOverrunErrors", "vl15Dropped", "portXmitData", "portRcvData"),
            *("portXmitPkts", "portRcvPkts", "portXmitWait"),
        ),
        True,
    ),
    PortCountersExtended.ID: _Kind(
        PortCountersExtended,
        (
            *("portXmitData", "portRcvData", "portXmitPkts", "portRcvPkts"),
            *("portUnicastXmitPkts", "portUnicastRcvPkts", "portMulticastXmitPkts", "portMulticastRcvPkts"),
        ),
        sticks=False,
    ),
    PortRcvErrorDetails.ID: _Kind(
        PortRcvErrorDetails,
        (
            *("portLocalPhysicalErrors", "portMalformedPktErrors", "portBufferOverrunErrors"),
            *("portDLIDMappingErrors", "portVLMappingErrors", "portLoopingErrors"),
        ),
    ),
    PortXmitDiscardDetails.ID: _Kind(
        PortXmitDiscardDetails,
        (
            *("portInactiveDiscards", "portNeighborMTUDiscards"),
            *("portSwLifetimeLimitDiscards", "portSwHOQLifetimeLimitDiscards"),
        ),
    ),
    PortOpRcvCounters.ID: _Kind(PortOpRcvCounters, ("portOpRcvPkts", "portOpRcvData")),
    PortFlowCtlCounters.ID: _Kind(PortFlowCtlCounters, ("portXmitFlowPkts", "portRcvFlowPkts")),
    PortXmitDataSL.ID: _Kind(PortXmitDataSL, ("xmtDataSL",)),
    PortRcvDataSL.ID: _Kind(PortRcvDataSL, ("rcvDataSL",)),
}
#: Of a port that counts by no opcode and no service level.
_OF_DEVICES: Final = frozenset(_KINDS) - {PortOpRcvCounters.ID, PortXmitDataSL.ID, PortRcvDataSL.ID}
#: The fields of ClassPortInfo that managers write: where its traps would go (IBTA vol. 1 13.4.8.1).
_TRAP_FIELDS: Final = tuple(
    each.name for each in layoutOf(ClassPortInfo).fields if each.name.startswith("trap")
)


class PMA:
    """
    The PMA of one node.
    """

    def __init__(
        self,
        ports: Mapping[int, Read],
        isSwitch: bool = False,
        capabilities: int = EXTENDED_WIDTH | XMIT_WAIT,
        counters: Collection[int] = frozenset(_KINDS),
    ) -> None:
        """
        @param ports: by their numbers.
        @param isSwitch: whether any port, or all, may be asked for; else the one that the request came to.
        @param capabilities: of L{ClassPortInfo}.
        @param counters: the attributes of counters that there are.
        """
        self._ports = ports
        self._counted = counters
        self._info = ClassPortInfo(classVersion=VERSION, respTimeVal=RESPONSE_TIME)
        self._isSwitch = isSwitch
        self._capabilities = capabilities | (ALL_PORT_SELECT if isSwitch else 0)
        #: Attribute, port and counter -> what is subtracted since it was set.
        self._set: dict[tuple[int, int, str], int] = {}

    def respond(self, octets: bytes, arrival: int) -> bytes | None:
        """
        Answer a MAD of 256 octets.

        @param arrival: the port that it came to.
        @return: the response; L{None} if it is none that is answered.
        """
        try:
            mad = decodeMAD(octets)
        except WireError:
            return None
        if mad.managementClass != PERFORMANCE or mad.method & RESPONSE:
            return None
        if mad.classVersion != VERSION:
            mad = evolve(mad, status=BAD_VERSION)
        elif mad.method not in (GET, SET):
            mad = evolve(mad, status=UNSUPPORTED_METHOD)
        else:
            mad = self.answer(mad, arrival)
        return evolve(mad, method=GET_RESPONSE).pack()

    def answer(self, mad: Mad, arrival: int) -> Mad:
        """
        Answer a Get or Set.

        @return: the response, but for its method.
        """
        data = mad.data
        assert isinstance(data, bytes)
        if mad.attribute in self._counted:
            return self._counters(mad, _KINDS[mad.attribute], data, arrival)
        if mad.attribute == ClassPortInfo.ID:
            if mad.method == SET:
                given = ClassPortInfo.parse(data)
                self._info = evolve(self._info, **{name: getattr(given, name) for name in _TRAP_FIELDS})
            return evolve(mad, data=evolve(self._info, capabilityMask=self._capabilities).pack(), status=0)
        if mad.method != GET:
            return evolve(mad, status=UNSUPPORTED_METHOD_ATTRIBUTE)
        if mad.attribute == PortSamplesResult.ID:
            return evolve(mad, data=PortSamplesResult().pack(), status=0)
        if mad.attribute == PortSamplesControl.ID:
            # There is nothing that samples: SampleMechanisms 0, nothing to count, and no sample runs.
            number = PortSamplesControl.parse(data).portSelect
            if not self._chosen(number, arrival):
                return evolve(mad, status=INVALID_ATTRIBUTE_VALUE)
            return evolve(mad, data=PortSamplesControl(portSelect=number).pack(), status=0)
        return evolve(mad, status=UNSUPPORTED_METHOD_ATTRIBUTE)

    def _chosen(self, number: int, arrival: int) -> list[int]:
        if self._isSwitch:
            return list(self._ports) if number == ALL_PORTS else [number] if number in self._ports else []
        return [number] if number == arrival and number in self._ports else []

    def _counters(self, mad: Mad, kind: _Kind, data: bytes, arrival: int) -> Mad:
        asked: Any = kind.attribute.parse(data)
        chosen = self._chosen(asked.portSelect, arrival)
        if not chosen:
            return evolve(mad, status=INVALID_ATTRIBUTE_VALUE)
        # All packets that are counted are MADs: of another opcode there are none, whose count is set.
        isNone = kind.attribute is PortOpRcvCounters and asked.opCode != UD_SEND_ONLY
        found = dict.fromkeys(kind.maxima, 0)
        for number in () if isNone else chosen:
            counts = self._ports[number]()
            if mad.method == SET:
                self._write(kind, number, asked, counts)
            for name in found:
                found[name] += self._value(kind, number, name, counts)
        values = {name: min(value, kind.maxima[name]) for name, value in found.items()}
        return evolve(mad, data=kind.filled(asked, values), status=0)

    def _value(self, kind: _Kind, number: int, name: str, counts: Mapping[str, int]) -> int:
        value = counts.get(name, 0) - self._set.get((kind.attribute.ID, number, name), 0)
        # Less than it was set to: a broken path took back octets.
        return max(0, value) if kind.sticks else value & kind.maxima[name]

    def _write(self, kind: _Kind, number: int, asked: Any, counts: Mapping[str, int]) -> None:
        select = asked.counterSelect | getattr(asked, "counterSelect2", 0) << 16
        for bit, (name, value) in enumerate(zip(kind.selected, kind.given(asked), strict=True)):
            if select >> bit & 1:
                self._set[kind.attribute.ID, number, name] = counts.get(name, 0) - value


class PerformanceAgent:
    """
    The PMA of a device with one port, whose counters are those that C{ib-devinfo} shows.

    PortXmitData and PortRcvData are 0 on a fabric that counts no octets.
    """

    def __init__(self, device: IManagedDevice) -> None:
        self._device = device
        self._read: Mapping[str, int] = {}
        self._readAt = float("-inf")
        self._pma = PMA({PORT: self._counts}, capabilities=EXTENDED_WIDTH_NO_MULTICAST, counters=_OF_DEVICES)
        self.agent = device.mads.register(PERFORMANCE, VERSION, (GET, SET), self.received)

    def received(self, request: ReceivedMAD) -> None:
        """
        A peer asks.
        """
        self.agent.reply(request, self._pma.answer(request.mad, PORT))

    def _counts(self) -> Mapping[str, int]:
        now = self._device.clock()
        if now >= self._readAt + PMA_COUNTERS_SECONDS:
            statistics = self._device.statistics()
            self._readAt = now
            self._read = {
                name: sum(statistics.get(each, 0) for each in same) for name, same in _STATISTICS.items()
            }
        return self._read


#: The counters of a device that are those of a port.
_STATISTICS: Final = {
    "linkDownedCounter": ("link_downed",),
    "portRcvErrors": ("packets_malformed", "packets_bad_icrc", "packets_bad_opcode", "ring_errors"),
    "portLocalPhysicalErrors": ("packets_bad_icrc", "ring_errors"),
    "portMalformedPktErrors": ("packets_malformed", "packets_bad_opcode"),
    "portRcvConstraintErrors": ("packets_bad_pkey",),
    "portXmitDiscards": ("send_err", "datagrams_lost"),
    "portXmitData": ("port_xmit_data",),
    "portRcvData": ("port_rcv_data",),
    "portXmitPkts": ("sent_pkts",),
    "portRcvPkts": ("rcvd_pkts",),
}
