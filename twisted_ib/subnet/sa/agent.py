"""
The agent of subnet administration (IBTA vol. 1 15.4): requests in, responses and Reports out.

Tables are sent by RMPP.  A requester that has none, as a program on libumad2sim, gets the records that one
MAD has room for.  Losses are counted:

  - C{sa_unknown_requester}: its LID is no port's;
  - C{sa_wrong_key}: another SM_Key than 0 and the manager's (IBTA vol. 1 15.4.1: it is not answered);
  - C{sa_unexpected}: a response that nobody waits for, or a segment of no transfer;
  - C{sa_busy}: there is no room for the transfer of a table; the requester repeats its request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from attrs import evolve

from twisted_ib.errors import ResourceLimitError, WireError
from twisted_ib.hca.base.operation import GSI_QPN
from twisted_ib.hca.base.timers import Timers
from twisted_ib.hca.mad.attributes.administration import (
    InformInfo,
    InformInfoRecord,
    MCMemberRecord,
    PathRecord,
    PortInfoRecord,
    ServiceRecord,
    SMInfoRecord,
    stride,
)
from twisted_ib.hca.mad.attributes.layouts import Attribute, layoutOf
from twisted_ib.hca.mad.attributes.notice import ClassPortInfo, Notice, Trap
from twisted_ib.hca.mad.requests import ReceivedMAD
from twisted_ib.hca.mad.rmpp.segments import TABLE, dataAt, headerOf, isSegment
from twisted_ib.hca.mad.transfers import Transfers
from twisted_ib.hca.wire.headers import MAD_BYTES
from twisted_ib.hca.wire.mad.administration import DELETE, GET_TABLE, SA_VERSION, SAStatus
from twisted_ib.hca.wire.mad.classes import DATA, RMPP_VERSION, SUBNET_ADMINISTRATION, RMPPHeader
from twisted_ib.hca.wire.mad.mad import GET, GET_RESPONSE, REPORT, RESPONSE, SET, Mad, decodeMAD
from twisted_ib.subnet.network.smi import Packet
from twisted_ib.subnet.sa.events import Events
from twisted_ib.subnet.sa.groups import Groups
from twisted_ib.subnet.sa.paths import Paths
from twisted_ib.subnet.sa.request import Refusal, Request, sharedKey
from twisted_ib.subnet.sa.services import Services
from twisted_ib.subnet.sa.store import KINDS, Query, Store, bounded, octetsOf

if TYPE_CHECKING:
    from twisted_ib.subnet.sm.manager import Manager
    from twisted_ib.subnet.sm.model import Port

#: ClassPortInfo: UD multicast and matching of CapabilityMask; MulticastFDBTop, the whole of PortInfo with
#: extended speeds, width 2x and HDR, send-only full members (OpenSM osm_base.h); answers take 268 ms at most.
_CAPABILITIES: Final = 1 << 9 | 1 << 13
_CAPABILITIES_2: Final = 1 << 3 | 1 << 6 | 1 << 7 | 1 << 12 | 1 << 13 | 1 << 15
_RESPONSE_TIME: Final = 16
#: Fields that a requester without the SM_Key is not told (IBTA vol. 1 15.4.1.2, 15.2.5.17).
_HIDDEN: Final[dict[type[Attribute], tuple[str, ...]]] = {
    PortInfoRecord: ("mkey",),
    SMInfoRecord: ("smInfoKey",),
    ServiceRecord: ("serviceKey",),
    MCMemberRecord: ("portGID", "joinState", "proxyJoin"),
}
_AT: Final = dataAt(SUBNET_ADMINISTRATION) or 0
#: Linux ib_mad.h: IB_MGMT_RMPP_*: a table of one MAD, to who has no RMPP.
_WHOLE: Final = RMPPHeader(RMPP_VERSION)


class Administration:
    """
    Subnet administration of one subnet manager: see
    L{IAdministration<twisted_ib.subnet.sm.interfaces.IAdministration>}, and for its transfers see
    L{Agents<twisted_ib.hca.mad.dispatch.Agents>}.
    """

    def __init__(
        self, manager: Manager, randomBits: Callable[[int], int], count: Callable[[str], object]
    ) -> None:
        """
        @param randomBits: makes transaction ids: as many random bits as asked for.
        @param count: called with the name of each loss.
        """
        self._manager = manager
        self.randomBits = randomBits
        self.count = count
        self._now = 0.0
        self._known: dict[int, Port] = {}
        self.timers = Timers(self.clock)
        self.store = Store(manager.model)
        self.paths = Paths(manager.model)
        self._begin()

    def _begin(self) -> None:
        self.transfers = Transfers(self)
        self.events = Events(self._manager, self.timers, self.randomBits, self.count)
        self.groups = Groups(self._manager, self._groupChanged)
        self.services = Services(self._manager, self.timers)

    # -- what transfers ask for

    @property
    def device(self) -> Administration:
        """
        The owner of C{clock}, C{timers} and C{count}.
        """
        return self

    def clock(self) -> float:
        """
        @return: the time of the last call, seconds.
        """
        return self._now

    def addressOf(self, lid: int) -> int:
        # A peer is its LID, which is its path too.
        return lid

    def takesTransfer(self, mad: ReceivedMAD) -> bool:
        # No request is a transfer.
        self.count("sa_unexpected")
        return False

    def requestOf(self, mad: ReceivedMAD) -> None:
        pass  # No response is a transfer.

    # -- the manager

    def swept(self, now: float) -> None:
        self._now = now
        self.store.forget()
        self.paths.forget()
        for each in (self.services, self.events, self.groups):
            each.configure()
        before, self._known = self._known, dict(self._manager.model.guids)
        for trap, ports, others in (
            (Trap.GID_OUT_OF_SERVICE, before, self._known),
            (Trap.GID_IN_SERVICE, self._known, before),
        ):
            for guid in [guid for guid in ports if guid not in others]:
                self.events.happened(trap, ports[guid].gid, partial(_share, ports[guid].keys))

    def _groupChanged(self, trap: Trap, mgid: int, key: int) -> None:
        self.events.happened(trap, mgid, partial(_share, (key,)))

    def notify(self, notice: Notice, gid: int, now: float) -> None:
        self._now = now
        self.events.notify(notice, gid)

    def deadline(self) -> float | None:
        return self.timers.deadline()

    def expired(self, now: float) -> None:
        self._now = now
        self.timers.tick(now)

    def reset(self) -> None:
        self.timers = Timers(self.clock)
        self._known = {}
        self.store.forget()
        self.paths.forget()
        self._begin()

    # -- requests

    def received(self, packet: Packet, now: float) -> None:
        self._now = now
        octets = bytes(packet.octets)
        try:
            mad = decodeMAD(octets)
        except WireError:
            self.count("sa_unexpected")
            return
        port = self._requester(packet.slid)
        if mad.managementClass != SUBNET_ADMINISTRATION:
            self.count("sa_unexpected")
        elif port is None:
            self.count("sa_unknown_requester")
        elif isSegment(octets) and headerOf(octets).type != DATA:
            segment = ReceivedMAD(
                *(
                    packet.slid,
                    packet.source,
                    packet.source,
                    mad.method,
                    mad.transaction,
                    mad.attribute,
                    octets,
                )
            )
            self.transfers.received(segment, mad.managementClass, mad.classVersion)
        elif mad.method & RESPONSE:
            isReport = mad.method == REPORT | RESPONSE
            if not isReport or not self.events.answered(mad.transaction, port):
                self.count("sa_unexpected")
        else:
            self._requested(packet, mad, port)

    def _requester(self, lid: int) -> Port | None:
        model = self._manager.model
        found = model.lids.get(lid)
        if found is not None:
            return found
        # A LID with path bits.
        for port in model.ends():
            if port.lid and lid >> port.info.lmc == port.lid >> port.info.lmc:
                return port
        return None

    def _requested(self, packet: Packet, mad: Mad, port: Port) -> None:
        key = mad.header.key  # type: ignore[union-attr]
        if key not in (0, self._manager.key):
            self.count("sa_wrong_key")
            return
        request = Request(packet, mad, port, bool(key))
        try:
            kind, records = self._answer(request)
            if mad.method != GET_TABLE and len(records) != 1:
                raise Refusal(SAStatus.TOO_MANY_RECORDS if records else SAStatus.NO_RECORDS)
        except Refusal as refusal:
            self._respond(request, refusal.status)
            return
        hidden = 0
        if not request.isTrusted and mad.method in (GET, GET_TABLE):
            layout = layoutOf(kind)
            for name in _HIDDEN.get(kind, ()):
                hidden |= layout.selected(layout.bits[name]) or 0
        data = octetsOf(kind, (record & ~hidden for record in records))
        if mad.method == GET_TABLE:
            self._respondTable(request, kind, data)
        else:
            self._respond(request, SAStatus.SUCCESS, data[: kind.OCTETS], stride(kind))

    def _answer(self, request: Request) -> tuple[type[Attribute], list[int]]:
        mad = request.mad
        if mad.classVersion != SA_VERSION:
            raise Refusal(SAStatus.BAD_VERSION)
        if mad.method not in _METHODS:
            raise Refusal(SAStatus.UNSUPPORTED_METHOD)
        found = _ROWS.get((mad.method, mad.attribute))
        if found is not None:
            record = found(self, request)
            return type(record), [int.from_bytes(record.pack(), "big")]
        query = _QUERIES.get(mad.attribute)
        if query is None or mad.method not in (GET, GET_TABLE):
            raise Refusal(SAStatus.UNSUPPORTED_METHOD_ATTRIBUTE)
        kind, find = query
        return kind, find(self, request)

    def _respond(
        self, request: Request, status: SAStatus, data: bytes | None = None, offset: int = 0
    ) -> None:
        mad = request.mad
        header = request.header._replace(transfer=RMPPHeader(), attributeOffset=offset)
        response = evolve(
            mad,
            method=GET_RESPONSE if mad.method in (GET, SET) else mad.method | RESPONSE,
            status=status,
            data=request.data if data is None else data,
            header=header,
        )
        self._send(request, response.pack())

    def _respondTable(self, request: Request, kind: type[Attribute], data: bytes) -> None:
        mad, packet = request.mad, request.packet
        offset = stride(kind)
        method = mad.method | RESPONSE
        rmpp = _WHOLE if packet.room else TABLE
        header = request.header._replace(transfer=rmpp, attributeOffset=offset)
        head = evolve(mad, method=method, status=0, data=b"", header=header).pack()[:_AT]
        if packet.room:
            count = (packet.room - _AT) // (offset * 8)
            part = data[: count * offset * 8]
            self._send(request, (head + part).ljust(MAD_BYTES, b"\0"), _AT + len(part))
            return
        key = (*(packet.slid, packet.source, mad.managementClass), *(SA_VERSION, mad.transaction, method))
        if self.transfers.repeated(key):
            return
        try:
            self.transfers.send(
                *(key, head, data), lambda octets: self._send(request, octets), isResponse=True
            )
        except ResourceLimitError:
            self.count("sa_busy")

    def _send(self, request: Request, octets: bytes, length: int = MAD_BYTES) -> None:
        packet = request.packet
        self._manager.send(Packet(0, packet.slid, GSI_QPN, packet.source, bytearray(octets), length))

    # -- what is asked for

    def _classPortInfo(self, request: Request) -> ClassPortInfo:
        return ClassPortInfo(
            classVersion=SA_VERSION,
            capabilityMask=_CAPABILITIES,
            capabilityMask2=_CAPABILITIES_2,
            respTimeVal=_RESPONSE_TIME,
        )


def _share(keys: tuple[int, ...], port: Port) -> bool:
    return bool(sharedKey(port.keys, keys))


_Find = Callable[["Administration", Request], list[int]]


def _stored(kind: type[Attribute]) -> tuple[type[Attribute], _Find]:
    return kind, lambda own, request: own.store.find(kind, request)


def _selected(
    kind: type[Attribute], records: Callable[[Administration, Request], Iterable[int]]
) -> tuple[type[Attribute], _Find]:
    return kind, lambda own, asked: bounded(kind, filter(Query(kind, asked).matches, records(own, asked)))


_METHODS: Final = frozenset((GET, SET, GET_TABLE, DELETE))
#: By method and attribute: what answers with one record, whatever there is.
_ROWS: Final[dict[tuple[int, int], Callable[[Administration, Request], Attribute]]] = {
    (GET, ClassPortInfo.ID): Administration._classPortInfo,
    (SET, MCMemberRecord.ID): lambda own, request: own.groups.join(request),
    (DELETE, MCMemberRecord.ID): lambda own, request: own.groups.leave(request),
    (SET, ServiceRecord.ID): lambda own, request: own.services.register(request),
    (DELETE, ServiceRecord.ID): lambda own, request: own.services.delete(request),
    (SET, InformInfo.ID): lambda own, request: own.events.inform(request),
}
#: By attribute: what finds the records that a Get or GetTable selects.
_QUERIES: Final[dict[int, tuple[type[Attribute], _Find]]] = {
    **{kind.ID: _stored(kind) for kind in KINDS},
    PathRecord.ID: (PathRecord, lambda own, request: own.paths.find(request)),
    MCMemberRecord.ID: _selected(MCMemberRecord, lambda own, request: own.groups.records(request)),
    ServiceRecord.ID: _selected(ServiceRecord, lambda own, request: own.services.records(request)),
    InformInfoRecord.ID: _selected(InformInfoRecord, lambda own, request: own.events.records(request)),
}
