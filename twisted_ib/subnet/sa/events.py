"""
Subscriptions to events, and their Reports (IBTA vol. 1 13.4.8.3, 13.4.11, 15.2.5.12).

A Report is repeated until the subscriber's response to it has come, or has not come for all repetitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from attrs import define, evolve

from twisted_ib import limits
from twisted_ib.hca.base.operation import GSI_QPN
from twisted_ib.hca.base.timers import timeoutSeconds
from twisted_ib.hca.mad.attributes.administration import (
    ALL_LIDS,
    ALL_TRAPS,
    ALL_TYPES,
    ANY_PRODUCER,
    InformInfo,
    InformInfoRecord,
)
from twisted_ib.hca.mad.attributes.notice import GIDDetails, Notice, NoticeType, Trap
from twisted_ib.hca.wire.mad.administration import SA_VERSION, SAStatus
from twisted_ib.hca.wire.mad.classes import SUBNET_ADMINISTRATION
from twisted_ib.hca.wire.mad.mad import REPORT, Mad
from twisted_ib.subnet.network.smi import Packet
from twisted_ib.subnet.sa.request import Refusal, Request, sharedKey

if TYPE_CHECKING:
    from twisted_ib.hca.base.timers import Timer, Timers
    from twisted_ib.subnet.sm.manager import Manager
    from twisted_ib.subnet.sm.model import Port

#: How often a Report is repeated, and how long it waits at least and at most each time, seconds.
RETRIES: Final = 3
LEAST_SECONDS: Final = 1.0
MOST_SECONDS: Final = 8.0
_TRANSACTION_BITS: Final = 32
_CLASS_MANAGER: Final = 4
_GID_OCTETS: Final = 16


class Key(NamedTuple):
    """
    The identity of a subscription.

    @ivar guid: the subscriber's port.
    @ivar info: with the queue pair that Reports go to, whatever the response time.
    """

    guid: int
    info: InformInfo


@define(eq=False)
class _Subscription:
    """
    @ivar enum: the number of its InformInfoRecord.
    @ivar info: the InformInfo.
    @ivar isTrusted: whether by who has the SM_Key.
    """

    enum: int
    info: InformInfo
    isTrusted: bool


@define(eq=False)
class _Report:
    """
    @ivar guid: the subscriber's port.
    @ivar source: the GID of the port whose trap it is of; 0 if subnet administration tells it by itself.
    """

    guid: int
    source: int
    number: int
    octets: bytes
    seconds: float
    left: int
    timer: Timer | None = None


class Events:
    """
    The subscriptions of a subnet, and Reports that wait for their responses.  A port's traps have a part of a
    subscriber's Reports, so that none keeps out what others have to tell.

    C{sa_report_dropped} counts Reports for which there is no room, C{sa_report_unanswered} those that were
    repeated in vain, C{sa_forged} traps of ports that only subnet administration makes.
    """

    def __init__(
        self,
        manager: Manager,
        timers: Timers,
        randomBits: Callable[[int], int],
        count: Callable[[str], object],
    ) -> None:
        self._manager = manager
        self._timers = timers
        self._randomBits = randomBits
        self._count = count
        self._subscriptions: dict[Key, _Subscription] = {}
        self._owned: Counter[int] = Counter()
        self._reports: dict[int, _Report] = {}
        #: Reports by subscriber, and of traps by subscriber and source.
        self._waiting: Counter[int] = Counter()
        self._shares: Counter[tuple[int, int]] = Counter()

    def __len__(self) -> int:
        return len(self._subscriptions)

    @property
    def waiting(self) -> int:
        """
        How many Reports wait for their responses.
        """
        return len(self._reports)

    # -- subscriptions

    def records(self, request: Request) -> Iterator[int]:
        """
        @return: InformInfoRecords of the ports that the requester may see, as numbers.
        """
        model = self._manager.model
        for key, each in self._subscriptions.items():
            port = model.guids.get(key.guid)
            if port is not None and request.sees(port):
                record = InformInfoRecord(subscriberGID=port.gid, enum=each.enum, informInfo=each.info)
                yield int.from_bytes(record.pack(), "big")

    def inform(self, request: Request) -> InformInfo:
        """
        Subscribe, or end a subscription.
        """
        asked = InformInfo.parse(request.data)
        if asked.subscribe > 1 or asked.isGeneric > 1:
            raise Refusal(SAStatus.REQUEST_INVALID)
        # IBTA vol. 1 13.4.8.3: Reports go to the queue pair that the subscription came from.
        number = asked.qpn if asked.qpn and not asked.subscribe else request.packet.source
        info = evolve(asked, qpn=number, subscribe=1)
        key = Key(request.port.guid, evolve(info, respTimeVal=0))
        if not asked.subscribe:
            if key not in self._subscriptions:
                raise Refusal(SAStatus.REQUEST_INVALID)
            self._remove(key)
        elif key in self._subscriptions:
            self._subscriptions[key].isTrusted |= request.isTrusted
        else:
            guid = key.guid
            isFull = len(self) >= limits.SA_SUBSCRIPTIONS
            if isFull or self._owned[guid] >= limits.SA_PORT_SUBSCRIPTIONS:
                raise Refusal(SAStatus.NO_RESOURCES)
            taken = {each.enum for other, each in self._subscriptions.items() if other.guid == guid}
            enum = next(each for each in range(len(taken) + 1) if each not in taken)
            self._subscriptions[key] = _Subscription(enum, info, request.isTrusted)
            self._owned[guid] += 1
        return asked

    def _remove(self, key: Key) -> None:
        del self._subscriptions[key]
        _countDown(self._owned, key.guid)

    def configure(self) -> None:
        """
        The model has changed: subscriptions and Reports of ports that are gone are not there.
        """
        guids = self._manager.model.guids
        for key in [key for key in self._subscriptions if key.guid not in guids]:
            self._remove(key)
        for transaction in [each for each, report in self._reports.items() if report.guid not in guids]:
            self._end(transaction)

    # -- events

    def happened(self, trap: Trap, gid: int, isConcerned: Callable[[Port], bool]) -> None:
        """
        Something happened in the subnet that its administration tells of.

        @param gid: of a port or of a group.
        @param isConcerned: whether a port may be told.
        """
        own = self._manager.model.own
        if own is not None:
            notice = Notice(
                noticeType=NoticeType.SUBNET_MANAGEMENT,
                noticeProducerType=_CLASS_MANAGER,
                noticeTrapNumber=trap,
                noticeIssuerLID=own.lid,
                details=GIDDetails(gid=gid).pack(),
            )
            self._tell(notice, own.gid, gid, isConcerned, 0)

    def notify(self, notice: Notice, gid: int) -> None:
        """
        A port has sent a trap.

        @param gid: its GID.
        """
        if notice.noticeIsGeneric and notice.noticeTrapNumber in GIDDetails.TRAPS:
            # Subscribers would take others for gone.
            self._count("sa_forged")
            return
        source = self._manager.model.byGID(gid)
        if source is not None:
            self._tell(notice, gid, gid, lambda port: bool(sharedKey(port.keys, source.keys)), gid)

    def _tell(
        self, notice: Notice, issuer: int, gid: int, isConcerned: Callable[[Port], bool], source: int
    ) -> None:
        data = notice.pack() + issuer.to_bytes(_GID_OCTETS, "big")
        for key, each in list(self._subscriptions.items()):
            port = self._manager.model.guids.get(key.guid)
            if port is not None and _selects(each, notice, gid) and isConcerned(port):
                self._report(key.guid, source, each.info, data)

    def _report(self, guid: int, source: int, info: InformInfo, data: bytes) -> None:
        isFull = len(self._reports) >= limits.SA_REPORTS or self._waiting[guid] >= limits.SA_PORT_REPORTS
        if isFull or (source and self._shares[guid, source] >= limits.SA_TRAP_REPORTS):
            self._count("sa_report_dropped")
            return
        transaction = self._randomBits(_TRANSACTION_BITS)
        while transaction in self._reports:
            transaction = self._randomBits(_TRANSACTION_BITS)
        octets = Mad(SUBNET_ADMINISTRATION, SA_VERSION, REPORT, transaction, Notice.ID, data).pack()
        seconds = min(max(timeoutSeconds(info.respTimeVal) or 0.0, LEAST_SECONDS), MOST_SECONDS)
        report = self._reports[transaction] = _Report(guid, source, info.qpn, octets, seconds, RETRIES)
        self._waiting[guid] += 1
        self._shares[guid, source] += 1
        self._send(transaction, report)

    def _send(self, transaction: int, report: _Report) -> None:
        report.timer = self._timers.start(report.seconds, lambda: self._expired(transaction))
        port = self._manager.model.guids.get(report.guid)
        if port is not None:
            self._manager.send(Packet(0, port.lid, GSI_QPN, report.number, bytearray(report.octets)))

    def _expired(self, transaction: int) -> None:
        report = self._reports[transaction]
        if report.left:
            report.left -= 1
            self._send(transaction, report)
        else:
            self._count("sa_report_unanswered")
            self._end(transaction)

    def answered(self, transaction: int, port: Port) -> bool:
        """
        A response to a Report came.

        @param port: its sender's.
        @return: whether one waited for it.
        """
        report = self._reports.get(transaction)
        if report is None or report.guid != port.guid:
            return False
        self._end(transaction)
        return True

    def _end(self, transaction: int) -> None:
        report = self._reports.pop(transaction)
        if report.timer is not None:
            report.timer.cancel()
        _countDown(self._waiting, report.guid)
        _countDown(self._shares, (report.guid, report.source))


def _countDown(counts: Counter[Any], key: Any) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


def _selects(subscription: _Subscription, notice: Notice, gid: int) -> bool:
    info = subscription.info
    # Their details have keys (IBTA vol. 1 14.2.5.1).
    if notice.noticeType == NoticeType.SECURITY and not subscription.isTrusted:
        return False
    if info.isGeneric != notice.noticeIsGeneric:
        return False
    if info.noticeType not in (ALL_TYPES, notice.noticeType):
        return False
    if info.trapNumber not in (ALL_TRAPS, notice.noticeTrapNumber):
        return False
    if info.producerType not in (ANY_PRODUCER, notice.noticeProducerType):
        return False
    if info.gid:
        return info.gid == gid
    first, last = info.lidRangeBegin, info.lidRangeEnd
    return first == ALL_LIDS or first <= notice.noticeIssuerLID <= max(first, last)
