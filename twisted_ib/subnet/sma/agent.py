"""
The subnet management agent of each node: what answers SMPs (IBTA vol. 1 14.2, 14.3).

It serves a L{node<twisted_ib.subnet.network.graph.Node>} of a subnet, and returns what its Sets have changed.
SMInfo is answered by a subnet manager, traps of others by nobody: neither is here.

Traps of the nodes of a subnet (IBTA vol. 1 13.4.9, 14.2.5.1, 14.3.13).

A trap is sent to the subnet manager that the port knows, and again until its TrapRepress comes.  A port sends
each trap number once in a SubnetTimeout (C14-8.2.1), whatever happens: a storm of events is one trap with the
latest details.  States of a port's trap number, and what follows:

  - none: an event is sent at once;
  - sent: it is repeated; another event takes its place, with another transaction id;
  - repressed: an event waits until the time is over, then it is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from attrs import evolve

from twisted_ib import limits
from twisted_ib.errors import WireError
from twisted_ib.hca.base.port import KeyViolation
from twisted_ib.hca.base.timers import timeoutSeconds
from twisted_ib.hca.mad.attributes.layouts import Attribute
from twisted_ib.hca.mad.attributes.notice import (
    BadKeyDetails,
    BadMKeyDetails,
    LinkStateDetails,
    LocalChangeDetails,
    Notice,
    NoticeType,
    Trap,
)
from twisted_ib.hca.mad.attributes.port import Capability
from twisted_ib.hca.wire.headers import MAD_BYTES
from twisted_ib.hca.wire.mad.classes import (
    SMP_ATTRIBUTE,
    SMP_KEY,
    SUBNET,
    SUBNET_CLASSES,
    SUBNET_DIRECTED,
    DirectedHeader,
    SubnetHeader,
)
from twisted_ib.hca.wire.mad.mad import (
    BAD_VERSION,
    BASE_VERSION,
    CLASS_AT,
    DIRECTION,
    GET,
    GET_RESPONSE,
    HEADER,
    INVALID_ATTRIBUTE_VALUE,
    METHOD_AT,
    REPORT,
    RESPONSE,
    SEND,
    SET,
    SM_VERSION,
    STATUS_AT,
    TRAP,
    TRAP_REPRESS,
    UNSUPPORTED_METHOD,
    UNSUPPORTED_METHOD_ATTRIBUTE,
    Mad,
    decodeMAD,
)
from twisted_ib.subnet.network.graph import Change, Node, Port
from twisted_ib.subnet.sma.node import ROWS as NODE_ROWS
from twisted_ib.subnet.sma.node import Request
from twisted_ib.subnet.sma.port import ROWS as PORT_ROWS

#: Transaction ids: a client of ibsim's protocol puts numbers of its own into the upper half.
_TRANSACTION_BITS: Final = 32
_TRANSACTION: Final = (1 << _TRANSACTION_BITS) - 1

_COUNTER: Final = 0xFFFF
#: Hop count, beside the hop pointer.
_HOPS: Final = 0xFF
#: Methods that have no response of this class.
_UNANSWERED: Final = frozenset((SEND, TRAP, REPORT, TRAP_REPRESS))
_ROWS: Final = {**NODE_ROWS, **PORT_ROWS}
#: Attributes that it serves; others are a subnet manager's, or nobody's.
ATTRIBUTES: Final = frozenset(_ROWS)


class Answer(NamedTuple):
    """
    The outcome of an SMP.

    @ivar octets: the response, 256 octets, for the way back; L{None} if there is none.
    @ivar changes: those of ports.
    @ivar rerouted: whether a forwarding table of the node changed.
    @ivar notices: traps to send, each with the port that sends it.
    """

    octets: bytes | None = None
    changes: tuple[Change, ...] = ()
    rerouted: bool = False
    notices: tuple[tuple[Port, Notice], ...] = ()


class SMA:
    """
    The subnet management agents of a subnet's nodes, with what they remember: running M_Key leases.
    """

    def __init__(self) -> None:
        self._leases: dict[Port, float] = {}

    def respond(self, arrival: Port, data: bytes, now: float, slid: int = 0) -> Answer:
        """
        Answer an SMP.

        @param arrival: the port that it came in by; of a switch that may be any.
        @param data: its 256 octets, as the SMI of the node leaves them.
        @param now: the time, seconds.
        @param slid: the LID that it is from.
        """
        if len(data) != MAD_BYTES:
            return Answer()
        base, class_, version, method, _, _, _, attribute, _, modifier = HEADER.unpack_from(data)
        if base != BASE_VERSION or class_ not in SUBNET_CLASSES:
            return Answer()
        if method & RESPONSE or method in _UNANSWERED:
            return Answer()
        key = int.from_bytes(data[SMP_KEY], "big")
        end = arrival.node.end(arrival)
        if version != SM_VERSION:
            return Answer(_response(data, method, BAD_VERSION))
        if not self._permits(end, method, key, now):
            return Answer(notices=((end, _badMKey(end, data, slid)),))
        if method not in (GET, SET):
            return Answer(_response(data, method, UNSUPPORTED_METHOD))
        row = _ROWS.get(attribute)
        if row is None or (row.onlySwitch and arrival.node.switch is None) or (method == SET and not row.set):
            return Answer(_response(data, method, UNSUPPORTED_METHOD_ATTRIBUTE))
        request = Request(arrival, end, modifier, key, method == SET, data[SMP_ATTRIBUTE])
        if request.isSet and row.set is not None:
            row.set(request)
        found = row.get(request)
        if found is None:
            return Answer(_response(data, method, INVALID_ATTRIBUTE_VALUE))
        octets = _response(data, method, request.status, found.pack())
        return Answer(octets, tuple(request.changes), request.rerouted)

    def permits(self, port: Port, data: bytes, now: float) -> bool:
        """
        Whether the M_Key of a TrapRepress is that of the port.
        """
        return self._permits(port, data[METHOD_AT], int.from_bytes(data[SMP_KEY], "big"), now)

    def forget(self, node: Node) -> None:
        """
        A node is gone, with its leases.
        """
        for port in node.each():
            self._leases.pop(port, None)

    def _permits(self, port: Port, method: int, key: int, now: float) -> bool:
        # IBTA vol. 1 14.2.4.
        deadline = self._leases.get(port)
        if deadline is not None and now >= deadline:
            # The manager with the M_Key is gone: the port is no longer protected.
            del self._leases[port]
            port.protectBits = 0
        if port.mkey in (0, key):
            self._leases.pop(port, None)
            return True
        if method == GET and port.protectBits < 2:
            return True
        port.mkeyViolations = min(port.mkeyViolations + 1, _COUNTER)
        # A lease period of 0 never ends; one that runs is not begun anew.
        if port.mkeyLeasePeriod and port not in self._leases:
            self._leases[port] = now + port.mkeyLeasePeriod
        return False


def _response(data: bytes, method: int, status: int, attribute: bytes | None = None) -> bytes:
    octets = bytearray(data)
    octets[METHOD_AT] = GET_RESPONSE if method in (GET, SET) else method | RESPONSE
    if data[CLASS_AT] == SUBNET_DIRECTED:
        status |= DIRECTION
    octets[STATUS_AT : STATUS_AT + 2] = status.to_bytes(2, "big")
    if attribute is not None:
        octets[SMP_ATTRIBUTE] = attribute.ljust(SMP_ATTRIBUTE.stop - SMP_ATTRIBUTE.start, b"\0")
    return bytes(octets)


def notice(port: Port, kind: NoticeType, trap: Trap, details: Attribute) -> Notice:
    """
    @param port: one with a LID, which sends it.
    @return: a notice of its node.
    """
    return Notice(
        noticeType=kind,
        noticeProducerType=port.node.kind,
        noticeTrapNumber=trap,
        noticeIssuerLID=port.lid,
        details=details.pack(),
    )


def _badMKey(port: Port, data: bytes, slid: int) -> Notice:
    mad = Mad.parse(data, 0, len(data))
    header = mad.header
    assert isinstance(header, (SubnetHeader, DirectedHeader))
    details = BadMKeyDetails(
        lid=slid,
        method=mad.method,
        attribute=mad.attribute,
        modifier=mad.modifier,
        mkey=header.key,
    )
    if isinstance(header, DirectedHeader):
        hops = mad.classSpecific & _HOPS
        room = len(details.returnPath)
        details = evolve(
            details,
            drSLID=header.sourceLID,
            directedRoute=1,
            truncated=hops > room,
            routeHops=min(hops, room),
            returnPath=header.returnPath[1 : 1 + min(hops, room)],
        )
    return notice(port, NoticeType.SECURITY, Trap.BAD_MKEY, details)


def countViolations(port: Port, count: int, violation: KeyViolation) -> tuple[tuple[Port, Notice], ...]:
    """
    Count packets that the device of a port has dropped for their P_Keys or Q_Keys (PortInfo's P_KeyViolations
    and Q_KeyViolations).

    @param violation: the latest.
    @return: its trap, for the master.
    """
    name = "qkeyViolations" if violation.isQueueKey else "pkeyViolations"
    setattr(port, name, min(getattr(port, name) + count, _COUNTER))
    details = BadKeyDetails(
        lid1=violation.source,
        # Not another's, whatever the device says.
        lid2=violation.target if port.hasLID(violation.target) else port.lid,
        key=violation.key,
        sl=violation.level,
        qp1=violation.sender,
        qp2=violation.receiver,
        gid1=violation.sourceGID,
        gid2=violation.targetGID,
    )
    trap = Trap.BAD_QKEY if violation.isQueueKey else Trap.BAD_PKEY
    return ((port, notice(port, NoticeType.SECURITY, trap, details)),)


def setSM(port: Port, isSM: bool) -> tuple[tuple[Port, Notice], ...]:
    """
    Say in a port's CapabilityMask whether a subnet manager is behind it.

    @return: the trap of the change, for the master.
    """
    return setCapability(port, Capability.SM, isSM)


def setCapability(port: Port, capability: Capability, isSet: bool) -> tuple[tuple[Port, Notice], ...]:
    """
    Set or clear a bit of a port's CapabilityMask.

    @return: the trap of the change, for the master.
    """
    mask = port.capMask | capability if isSet else port.capMask & ~capability
    if mask == port.capMask:
        return ()
    port.capMask = mask
    details = LocalChangeDetails(lid=port.lid, capMask=mask)
    return ((port, notice(port, NoticeType.INFORMATIONAL, Trap.CAPABILITY_CHANGED, details)),)


class Sending(NamedTuple):
    """
    A trap to send.

    @ivar port: the port that sends it, by its LID.
    @ivar dlid: the LID of the subnet manager.
    @ivar octets: the MAD.
    """

    port: Port
    dlid: int
    octets: bytes


class _Entry:
    __slots__ = ("next", "notice", "transaction", "waiting")

    def __init__(self) -> None:
        self.notice = Notice()
        self.transaction = 0
        # Until then nothing is sent.
        self.next = 0.0
        # Whether something is to be sent.
        self.waiting = False


class Traps:
    """
    The traps of a subnet's nodes.  C{trap_no_manager} counts those of ports without a subnet manager,
    C{trap_dropped} those for which there is no room.
    """

    def __init__(self, randomBits: Callable[[int], int], count: Callable[[str], object]) -> None:
        """
        @param randomBits: makes transaction ids: as many random bits as asked for.
        @param count: called with the name of each loss.
        """
        self._randomBits = randomBits
        self._count = count
        self._entries: dict[tuple[Port, int], _Entry] = {}

    def changed(self, changes: Iterable[Change], now: float) -> None:
        """
        Links went up or down: their switches report it (trap 128).
        """
        for switch in dict.fromkeys(each.port.node for each in changes if each.byLink):
            port = switch.ports[0]
            if port is not None:
                details = LinkStateDetails(lid=port.lid)
                self.add(port, notice(port, NoticeType.URGENT, Trap.LINK_STATE_CHANGED, details), now)

    def add(self, port: Port, event: Notice, now: float) -> None:
        """
        Something happened that is reported.

        @param port: the one that reports it.
        @param now: seconds.
        """
        port.note(event)
        if not port.smLID or not port.lid:
            self._count("trap_no_manager")
            return
        key = port, event.noticeTrapNumber
        entry = self._entries.get(key)
        if entry is None:
            if len(self._entries) >= limits.SUBNET_TRAPS:
                self._purge(now)
                if len(self._entries) >= limits.SUBNET_TRAPS:
                    self._count("trap_dropped")
                    return
            entry = self._entries[key] = _Entry()
            entry.next = now
        # The repetition of an event that was not repressed is the same trap; after a TrapRepress it is new.
        if not entry.waiting or entry.notice != event:
            entry.notice = event
            entry.transaction = self._randomBits(_TRANSACTION_BITS)
            entry.waiting = True

    def due(self, now: float) -> list[Sending]:
        """
        @return: the traps to send now.
        """
        self._purge(now)
        found = []
        for (port, _), entry in list(self._entries.items()):
            if not entry.waiting or entry.next > now:
                continue
            # IBTA vol. 1 14.2.5.6, SubnetTimeOut: also how often a trap may be sent.
            timeout = timeoutSeconds(port.subnetTimeout) or 0.0
            entry.next = now + max(timeout, limits.SUBNET_TRAP_LEAST)
            mad = Mad(SUBNET, SM_VERSION, TRAP, entry.transaction, Notice.ID, entry.notice.pack())
            found.append(Sending(port, port.smLID, mad.pack()))
        return found

    def deadline(self) -> float | None:
        """
        @return: when L{due} is to be called next, if something waits.
        """
        return min((entry.next for entry in self._entries.values() if entry.waiting), default=None)

    def repressed(self, port: Port, data: bytes) -> bool:
        """
        A TrapRepress arrived, whose M_Key was the port's.

        @param port: the one that sent the trap.
        @return: whether it was for a trap that waits.
        """
        try:
            mad = decodeMAD(data)
        except WireError:
            return False
        if not isinstance(mad.data, bytes):
            return False
        entry = self._entries.get((port, Notice.parse(mad.data).noticeTrapNumber))
        if entry is None or not entry.waiting or entry.transaction != mad.transaction & _TRANSACTION:
            return False
        entry.waiting = False
        return True

    def forget(self, node: Node) -> None:
        """
        A node is gone.
        """
        for key in [key for key in self._entries if key[0].node is node]:
            del self._entries[key]

    def _purge(self, now: float) -> None:
        # A port that has lost its subnet manager has nobody to repress its traps.
        done = [
            key
            for key, entry in self._entries.items()
            if not key[0].smLID or (not entry.waiting and entry.next <= now)
        ]
        for key in done:
            del self._entries[key]
