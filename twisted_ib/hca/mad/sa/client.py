"""
The client of subnet administration on one port.

Records and events are reported to functions.  A failure is reported in the place of a record, as an
L{HCAError<twisted_ib.errors.HCAError>}; what is wrong with a call is raised.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from attrs import evolve

from twisted_ib import limits
from twisted_ib.errors import (
    HCAError,
    LengthError,
    NoSubnetManagerError,
    ResourceLimitError,
    SAResponseError,
    SATimeoutError,
)
from twisted_ib.hca.base.events import EventType, notifyAll
from twisted_ib.hca.base.partition import DEFAULT_PKEY
from twisted_ib.hca.base.port import PortState
from twisted_ib.hca.mad.attributes.administration import (
    ALL_LIDS,
    ALL_TYPES,
    ANY_PRODUCER,
    NO_LEASE_END,
    JoinState,
    NodeRecord,
    PathRecord,
)
from twisted_ib.hca.mad.attributes.layouts import Attribute
from twisted_ib.hca.mad.attributes.notice import GIDDetails, Notice
from twisted_ib.hca.mad.sa.queries import (
    DEFAULT,
    Exchange,
    Exchanges,
    PathCache,
    PathKey,
    Patience,
    parsed,
    records,
    request,
    select,
)
from twisted_ib.hca.mad.sa.registrations import EventRegistration, GroupRegistration, ServiceRegistration
from twisted_ib.hca.mad.sa.registry import Answered, Handle, Received, Registrations
from twisted_ib.hca.services.address import AddressVector
from twisted_ib.hca.wire.mad.administration import GET_TABLE, SA_VERSION
from twisted_ib.hca.wire.mad.classes import SUBNET_ADMINISTRATION
from twisted_ib.hca.wire.mad.mad import GET, REPORT, UNSUPPORTED_METHOD_ATTRIBUTE, Mad

if TYPE_CHECKING:
    from twisted_ib.hca.base.timers import Timer
    from twisted_ib.hca.mad.agents import IManagedDevice
    from twisted_ib.hca.mad.requests import ReceivedMAD

#: A Notice of subnet administration has the GID of its issuer behind it (IBTA vol. 1 13.4.8.2).
_ISSUER: Final = slice(Notice.OCTETS, Notice.OCTETS + 16)
#: After these the paths may be others.
_REROUTES: Final = frozenset(
    (
        *(EventType.PORT_ERR, EventType.LID_CHANGE, EventType.SM_CHANGE, EventType.GID_CHANGE),
        *(EventType.PKEY_CHANGE, EventType.CLIENT_REREGISTER),
    )
)
#: After these subnet administration may have forgotten the port (IBTA vol. 1 14.4.11; Linux C{sa_query.c},
#: C{multicast.c}).
_FORGETS: Final = frozenset(
    (
        *(EventType.PORT_ACTIVE, EventType.LID_CHANGE, EventType.SM_CHANGE, EventType.GID_CHANGE),
        EventType.CLIENT_REREGISTER,
    )
)


class Waiter:
    """
    One user of a query.
    """

    __slots__ = ("_query", "answered")

    def __init__(self, query: Query, answered: Answered) -> None:
        self._query, self.answered = query, answered

    def cancel(self) -> None:
        """
        Wait no longer; nothing is reported.  The request of the last user is not repeated.  Idempotent.
        """
        self._query.leave(self)


class Query:
    """
    A query that is under way, and its users.
    """

    __slots__ = ("_client", "_made", "exchange", "key", "waiters")

    def __init__(self, client: SAClient, made: Callable[[Mad], Any], key: PathKey | None = None) -> None:
        """
        @param made: makes of a response what is reported.
        @param key: of a path, whose users share one query.
        """
        self._client, self._made, self.key = client, made, key
        self.exchange: Exchange | None = None
        self.waiters: dict[Waiter, None] = {}

    def wait(self, answered: Answered) -> Waiter:
        """
        Add a user.
        """
        waiter = Waiter(self, answered)
        self.waiters[waiter] = None
        self._client.waiting += 1
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """
        See L{Waiter.cancel}.
        """
        if waiter not in self.waiters:
            return
        del self.waiters[waiter]
        self._client.waiting -= 1
        if not self.waiters:
            self._client.ended(self)
            if self.exchange is not None:
                self.exchange.cancel()

    def answered(self, outcome: Mad | HCAError) -> None:
        """
        The response, or none.
        """
        self._client.ended(self)
        found: Any = outcome
        if not isinstance(outcome, HCAError):
            try:
                found = self._made(outcome)
            except SAResponseError as error:
                self._client.count("sa_malformed")
                found = error
        waiters, self.waiters = self.waiters, {}
        self._client.waiting -= len(waiters)
        notifyAll(partial(each.answered, found) for each in waiters)


class SAClient:
    """
    The client of one device.
    """

    def __init__(self, device: IManagedDevice, address: Callable[[], AddressVector] | None = None) -> None:
        """
        @param device: has C{clock}, C{closed}, C{count}, C{datagramForm}, C{gid}, C{mads}, C{name}, C{port}
            and C{timers}.
        @param address: returns where subnet administration is; the subnet manager of the port unless told
            otherwise.
        @raise ServiceInUseError: another agent has the Reports of the device.
        """
        self._device = device
        self._agent = device.mads.register(SUBNET_ADMINISTRATION, SA_VERSION, (REPORT,), self._reported, 1)
        self._exchanges = Exchanges(device, self._agent, self._manager if address is None else address)
        #: The paths that are remembered.
        self.paths = PathCache()
        #: The registrations.
        self.registrations = Registrations(device, self._exchanges.begin, lambda: device.gid)
        self._queries: dict[PathKey, Query] = {}
        #: Users of queries.
        self.waiting = 0
        self._reports: OrderedDict[tuple[int, bytes], None] = OrderedDict()
        self._isForgotten = False
        self._timer: Timer | None = None

    def count(self, name: str) -> None:
        """
        Add one to a counter of the device.
        """
        self._device.count(name)

    def leave(self) -> None:
        """
        The device will be closed: give up what is registered, without waiting for answers.
        """
        try:
            address = self._exchanges.address()
            for mad in self.registrations.unregistering():
                self._agent.send(address, mad)
        except HCAError:
            # Nobody to tell, or no room: the subnet manager forgets a port that goes.
            self.count("sa_not_left")

    def close(self) -> None:
        """
        The device is closed: requests that wait for a subnet manager end.
        """
        self._exchanges.resume()

    # -- queries

    def path(
        self, dgid: int, answered: Answered, pKey: int = 0, sgid: int = 0, patience: Patience = DEFAULT
    ) -> Waiter | None:
        """
        Ask for a path to a port; one that is remembered is reported at once.

        @param answered: called once, with the L{PathRecord} or the error.
        @param pKey: the partition; 0 for any.
        @param sgid: from which of the port's GIDs; 0 for the first.
        @return: what cancels it; L{None} if it is answered already.
        @raise HCAError: the request cannot be sent.
        @raise ResourceLimitError: L{SA_WAITING<limits.SA_WAITING>} wait.
        """
        key = PathKey(dgid, sgid or self._device.gid, pKey)
        found = self.paths.find(key, self._device.clock())
        if found is not None:
            answered(found)
            return None
        query = self._queries.get(key)
        if query is None:
            # As Linux's (sa_query.c, cma.c) and those of IPoIB.
            values = {"dgid": dgid, "sgid": key.sgid, "reversible": 1, "numbPath": 1}
            if pKey:
                values["pKey"] = pKey
            mad = request(GET, *select(PathRecord, values))
            query = Query(self, partial(self._learn, key, self.paths.generation), key)
            return self._begin(query, mad, answered, patience)
        self._hasRoom()
        return query.wait(answered)

    def _learn(self, key: PathKey, generation: int, response: Mad) -> PathRecord:
        data = response.data
        record = parsed(PathRecord, data if isinstance(data, bytes) else b"")
        if record.dgid != key.dgid or not record.dlid:
            raise SAResponseError(f"the answer is a path to {record.dgid:#034x}: try again")
        if generation == self.paths.generation:
            self.paths.add(key, record, self._device.clock())
        return record

    def query(
        self,
        kind: type[Attribute],
        answered: Answered,
        values: dict[str, Any] | None = None,
        patience: Patience = DEFAULT,
    ) -> Waiter:
        """
        Ask for all records that have some values.

        @param kind: a class of L{RECORDS<twisted_ib.hca.mad.attributes.administration.RECORDS>}.
        @param answered: called once, with the list of records, which may be empty, or the error.
        @param values: by the names of the record's fields, or of those that are nested in it.
        @return: what cancels it.
        @raise HCAError: the request cannot be sent.
        @raise ResourceLimitError: L{SA_WAITING<limits.SA_WAITING>} wait.
        @raise ValueError: the record has no such field.
        """
        mad = request(GET_TABLE, *select(kind, values or {}))
        return self._begin(Query(self, partial(records, kind)), mad, answered, patience)

    def silent(self, told: Callable[[bool], object]) -> Waiter:
        """
        Find out whether it is away: then nobody learns of others, and what is not known may be there.

        @param told: called once, with whether it has not answered in L{limits.SA_SILENT_SECONDS}.
        @return: see L{query}.
        @raise HCAError: it cannot be asked.
        """
        values, patience = {"lid": self._device.port.lid or 0}, Patience(limits.SA_SILENT_SECONDS, 0)
        return self.query(NodeRecord, lambda said: told(isinstance(said, SATimeoutError)), values, patience)

    def _begin(self, query: Query, mad: Mad, answered: Answered, patience: Patience) -> Waiter:
        self._hasRoom()
        waiter = query.wait(answered)
        if query.key is not None:
            self._queries[query.key] = query
        try:
            query.exchange = self._exchanges.begin(mad, patience, query.answered)
        except Exception:
            waiter.cancel()
            raise
        return waiter

    def _hasRoom(self) -> None:
        if self.waiting >= limits.SA_WAITING:
            raise ResourceLimitError(f"{limits.SA_WAITING} queries wait for their answers: wait for some")

    def ended(self, query: Query) -> None:
        """
        A query has ended.
        """
        if query.key is not None:
            self._queries.pop(query.key, None)

    def _manager(self) -> AddressVector:
        port = self._device.port
        # Before Active a port sends nothing but subnet management (IBTA vol. 1 7.2.7).
        if not port.smLID or port.state is not PortState.ACTIVE:
            raise NoSubnetManagerError(
                f"{self._device.name} has no subnet manager: start one, and see that the port is linked"
            )
        return AddressVector(0, lid=port.smLID, serviceLevel=port.smSL, isGlobal=False)

    # -- registrations

    def join(
        self,
        mgid: int,
        answered: Answered,
        changed: Answered | None = None,
        joinState: JoinState = JoinState.FULL_MEMBER,
        **values: Any,
    ) -> Handle:
        """
        Join a multicast group; leave it by L{Handle.close}.

        @param mgid: its GID; 0 for a new one, whose GID is in the record.
        @param answered: called once, with the C{MCMemberRecord} or the error.
        @param changed: called later, when the record is another or, with the error, the membership is lost.
        @param values: of the record.  A group that does not exist is made if C{qKey}, C{pKey}, C{sl},
            C{flowLabel} and C{tClass} are among them.
        @raise HCAError: the request cannot be sent.
        @raise ResourceLimitError: there are too many users.
        @raise ValueError: the port is a member with other values, or the record has no such field.
        """
        values = {"mgid": mgid, "joinState": JoinState(joinState), **values}
        return self.registrations.open(GroupRegistration(values), answered, changed)

    def service(
        self,
        serviceID: int,
        answered: Answered,
        changed: Answered | None = None,
        lease: int = NO_LEASE_END,
        pKey: int = DEFAULT_PKEY,
        **values: Any,
    ) -> Handle:
        """
        Register a service that this port offers; withdraw it by L{Handle.close}.

        @param answered: called once, with the C{ServiceRecord} or the error.
        @param changed: as for L{join}.
        @param lease: seconds; the registration is renewed before they are over.
        @param values: of the record, such as C{serviceName} and C{serviceData8}.
        @raise HCAError: as for L{join}.
        @raise ValueError: as for L{join}, or there is no lease.
        """
        if lease <= 0:
            raise ValueError(f"a service has a lease of 1 s or more, not {lease}")
        fixed = {"serviceID": serviceID, "servicePKey": pKey, "serviceLease": lease}
        # OpenSM (osm_sa_service_record.c) finds a service by its name too.
        values = {"serviceName": b"", "serviceKey": b"", **values, **fixed}
        return self.registrations.open(ServiceRegistration(values), answered, changed)

    def subscribe(
        self,
        trap: int,
        received: Received,
        answered: Answered,
        changed: Answered | None = None,
        **values: Any,
    ) -> Handle:
        """
        Be told of events; end it by L{Handle.close}.

        @param trap: a number of L{Trap<twisted_ib.hca.mad.attributes.notice.Trap>}, or
            L{ALL_TRAPS<twisted_ib.hca.mad.attributes.administration.ALL_TRAPS>}.
        @param received: called with each C{Notice}, and the GID of the port that tells it.
        @param answered: called once, with the C{InformInfo} or the error.
        @param changed: as for L{join}.
        @param values: of the record.
        @raise HCAError: as for L{join}.
        @raise TypeError: the record has no such field.
        """
        info = {
            "lidRangeBegin": ALL_LIDS,
            "isGeneric": 1,
            "subscribe": 1,
            "noticeType": ALL_TYPES,
            "trapNumber": trap,
            "qpn": self._agent.number,
            "producerType": ANY_PRODUCER,
            **values,
        }
        return self.registrations.open(EventRegistration(info), answered, changed, received)

    # -- events

    def event(self, kind: EventType) -> None:
        """
        Something happened to the port.
        """
        if kind in _REROUTES:
            self.paths.clear()
        self._isForgotten |= kind in _FORGETS
        # A port that is not Active sends nothing but subnet management; and one Set of a subnet manager is
        # several events.
        isActive = self._device.port.state is PortState.ACTIVE
        if self._isForgotten and isActive and self._timer is None:
            self._timer = self._device.timers.start(0.0, self._renew)

    def _renew(self) -> None:
        self._timer = None
        self._isForgotten = False
        self._exchanges.resume()
        # A subnet manager that was restarted may count its transactions from the beginning.
        self._reports.clear()
        self.registrations.renew()

    def _reported(self, received: ReceivedMAD) -> None:
        device = self._device
        try:
            manager = self._exchanges.address()
        except NoSubnetManagerError:
            key = 0
        else:
            key = manager.gid if manager.isGlobal else manager.lid
        # Anybody can send a Report: only that of subnet administration counts.
        if device.datagramForm.peerKey(received.path.peer) != key:
            self.count("sa_foreign")
            return
        mad = received.mad
        if mad.attribute != Notice.ID:
            self._agent.reply(received, evolve(mad, status=UNSUPPORTED_METHOD_ATTRIBUTE))
            return
        self._agent.reply(received, mad)
        data = mad.data if isinstance(mad.data, bytes) else b""
        report = mad.transaction, data
        if report in self._reports:
            self.count("sa_repeated")
            return
        self._reports[report] = None
        if len(self._reports) > limits.SA_REPORTS_KNOWN:
            self._reports.popitem(last=False)
        try:
            notice = Notice.parse(data)
        except LengthError:
            self.count("sa_malformed")
            return
        if notice.noticeIsGeneric and notice.noticeTrapNumber in GIDDetails.TRAPS:
            self.paths.forget(GIDDetails.parse(notice.details).gid)
        if not self.registrations.deliver(notice, int.from_bytes(data[_ISSUER], "big")):
            self.count("sa_unclaimed")
