"""
Requests of records, until their final responses, and what these say; the path records that a port remembers,
by GID.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from twisted_ib.errors import (
    DeviceClosedError,
    HCAError,
    LengthError,
    NoRecordsError,
    NoSubnetManagerError,
    SAError,
    SAResponseError,
    SAStatusError,
    SATimeoutError,
    WireError,
)
from twisted_ib.hca.mad.attributes.administration import PathRecord
from twisted_ib.hca.mad.attributes.layouts import Attribute, layoutOf
from twisted_ib.hca.mad.dispatch import checkPatience
from twisted_ib.hca.wire.mad.administration import BUSY, GET_TABLE, SA_VERSION, SAStatus, statusName
from twisted_ib.hca.wire.mad.classes import ACTIVE, SUBNET_ADMINISTRATION, AdministrationHeader
from twisted_ib.hca.wire.mad.mad import GET, GET_RESPONSE, RESPONSE, SET, Mad
from twisted_ib.limits import SA_PATH_SECONDS, SA_PATHS

if TYPE_CHECKING:
    from twisted_ib.hca.base.timers import Timer
    from twisted_ib.hca.mad.agents import IManagedDevice
    from twisted_ib.hca.mad.requests import ReceivedMAD, Request
    from twisted_ib.hca.services.address import AddressVector
    from twisted_ib.hca.wire.mad.mad import Mad

#: Seconds for each attempt, and how often a request is repeated (libibmad C{MAD_DEF_TIMEOUT_MS},
#: C{MAD_DEF_RETRIES}).
TIMEOUT: Final = 1.0
RETRIES: Final = 3

R = TypeVar("R", bound=Attribute)

_UNIT: Final = 8
#: Advice for users about statuses.
_ADVICE: Final[dict[int, str]] = {
    SAStatus.BUSY: "it is busy: try again later",
    SAStatus.NO_RESOURCES: "it has no room: give up groups, services or events, or try again later",
    SAStatus.REQUEST_INVALID: "a value does not fit the record that there is: give fewer of them, or its own",
    SAStatus.NO_RECORDS: "there is no such record: check GIDs and P_Key, and whether the node is up",
    SAStatus.TOO_MANY_RECORDS: "several records match: give more values, or ask for all",
    SAStatus.INVALID_GID: "a GID is not valid: check its prefix and scope",
    SAStatus.INSUFFICIENT_COMPONENTS: "there is no such group, and to make one give qKey, pKey, sl, flowLabel"
    " and tClass",
    SAStatus.REQUEST_DENIED: "this port may not: check its P_Keys and the rules of the subnet manager",
}
_OTHERWISE: Final = "it has no such function: check its version"


class PathKey(NamedTuple):
    """
    The components of a query for a path.

    @ivar pKey: 0 for any partition.
    """

    dgid: int
    sgid: int
    pKey: int = 0


class PathCache:
    """
    Path records, for L{SA_PATH_SECONDS<limits.SA_PATH_SECONDS>}.  Over L{SA_PATHS<limits.SA_PATHS>} the one
    that was not used for longest is forgotten.
    """

    def __init__(self) -> None:
        self._found: OrderedDict[PathKey, tuple[float, PathRecord]] = OrderedDict()
        #: Moves on with every L{clear}, so that an answer to a request of before is not remembered.
        self.generation = 0

    def __len__(self) -> int:
        return len(self._found)

    def add(self, key: PathKey, record: PathRecord, now: float) -> None:
        """
        Remember a path.

        @param now: seconds.
        """
        self._found[key] = now + SA_PATH_SECONDS, record
        self._found.move_to_end(key)
        if len(self._found) > SA_PATHS:
            self._found.popitem(last=False)

    def find(self, key: PathKey, now: float) -> PathRecord | None:
        """
        @return: the path, if it is remembered.
        """
        found = self._found.get(key)
        if found is None:
            return None
        if found[0] <= now:
            del self._found[key]
            return None
        self._found.move_to_end(key)
        return found[1]

    def forget(self, gid: int) -> None:
        """
        The paths from and to a port are no longer so.
        """
        for key in [key for key in self._found if gid in (key.dgid, key.sgid)]:
            del self._found[key]

    def clear(self) -> None:
        """
        The subnet has changed.
        """
        self._found.clear()
        self.generation += 1


def select(kind: type[R], values: dict[str, Any]) -> tuple[R, int]:
    """
    Make a query.

    @param values: by the names of the record's fields, or of those that are nested in it.
    @return: the record, and the component mask of what was given.
    @raise ValueError: the record has no such field.
    """
    layout = layoutOf(kind)
    mask = 0
    for name in values:
        if not layout.bits.get(name):
            raise ValueError(f"{kind.__name__} has no {name}")
        mask |= layout.bits[name]
    own = {each.name for each in layout.fields}
    given = {name: value for name, value in values.items() if name in own}
    for each in layout.fields:
        if issubclass(each.kind, Attribute):
            inner = layoutOf(each.kind).bits
            nested = {name: value for name, value in values.items() if name in inner and name not in own}
            if nested:
                given[each.name], _ = select(each.kind, nested)
    return kind(**given), mask


def request(method: int, record: Attribute, componentMask: int = 0) -> Mad:
    """
    @return: a request, but for its transaction id.
    @raise WireError: a value does not fit its field.
    """
    header = AdministrationHeader(componentMask=componentMask)
    return Mad(SUBNET_ADMINISTRATION, SA_VERSION, method, 0, record.ID, record.pack(), header=header)


def describe(mad: Mad) -> str:
    """
    @return: a request, as errors name it.
    """
    methods = {GET: "Get", SET: "Set", GET_TABLE: "GetTable"}
    return f"{methods.get(mad.method, 'Delete')} of attribute {mad.attribute:#06x}"


def refusal(asked: Mad, status: int) -> SAStatusError:
    """
    @return: the error for the status of a response.
    """
    name = statusName(status)
    advice = _ADVICE.get(status, _OTHERWISE)
    kind = NoRecordsError if status == SAStatus.NO_RECORDS else SAStatusError
    return kind(f"{describe(asked)} was refused with {name}: {advice}", status, name)


def check(asked: Mad, response: Mad) -> SAError | None:
    """
    @return: the error of a response; L{None} if it has what was asked for.
    """
    expected = GET_RESPONSE if asked.method in (GET, SET) else asked.method | RESPONSE
    if (response.method, response.attribute) != (expected, asked.attribute):
        return SAResponseError(f"{describe(asked)} was answered by that of something else: try again")
    return refusal(asked, response.status) if response.status else None


def parsed(kind: type[R], data: bytes) -> R:
    """
    @return: the record of a response.
    @raise SAResponseError: there is none.
    """
    try:
        return kind.parse(data)
    except LengthError as error:
        raise SAResponseError(f"a response without its record: {error}: try again") from None


def records(kind: type[R], response: Mad) -> list[R]:
    """
    @param response: with the data of all MADs of the transfer.
    @return: the records of a table.
    @raise SAResponseError: it is no transfer, has records of another size, or ends within one.
    """
    header, data = response.header, response.data
    # A MAD that is of no transfer does not tell how many records it has.
    if not isinstance(header, AdministrationHeader) or not header.transfer.flags & ACTIVE:
        raise SAResponseError("a table that is no transfer: try again")
    # IBTA vol. 1 15.4.7: an empty table may have AttributeOffset 0.
    if not isinstance(data, bytes) or not data:
        return []
    stride = header.attributeOffset * _UNIT
    if stride < kind.OCTETS:
        raise SAResponseError(f"records of {stride} octets, not {kind.OCTETS}: try again")
    # libumad2sim gives 256 octets of what OpenSM answers.
    if 0 < len(data) % stride < kind.OCTETS:
        raise SAResponseError(
            f"a table that is cut after {len(data) // stride} of its {kind.__name__}s, as by libumad2sim: ask"
            " for fewer, by values of their fields"
        )
    return [kind.parse(data[at:]) for at in range(0, len(data) - kind.OCTETS + 1, stride)]


class Patience(NamedTuple):
    """
    How long a response is waited for.

    @ivar timeout: of each attempt, seconds.
    @ivar retries: how often a request is repeated.
    """

    timeout: float = TIMEOUT
    retries: int = RETRIES


DEFAULT: Final = Patience()

#: Takes a response that has what was asked for, with the data of all its MADs, or the error.
Ended = Callable[["Mad | HCAError"], object]


class Exchange:
    """
    A request.  One that is answered with BUSY is repeated, after the time of an attempt; one of a port that
    has no subnet manager waits for it.
    """

    __slots__ = ("_ended", "_exchanges", "_left", "_request", "_timer", "mad", "patience")

    def __init__(self, exchanges: Exchanges, mad: Mad, patience: Patience, ended: Ended) -> None:
        self._exchanges, self.mad, self.patience = exchanges, mad, patience
        self._left = patience.retries
        self._ended = ended
        self._request: Request | None = None
        self._timer: Timer | None = None

    def send(self) -> None:
        """
        Send it.

        @raise HCAError: it cannot be sent.
        """
        exchanges, timeout = self._exchanges, self.patience.timeout
        if exchanges.device.closed:
            raise DeviceClosedError("the device is closed")
        try:
            address = exchanges.address()
        except NoSubnetManagerError as error:
            exchanges.unaddressed[self] = None
            self._wait(timeout * (self._left + 1), partial(self._end, error))
        else:
            self._request = exchanges.agent.send(address, self.mad, self._answered, timeout, self._left)

    def again(self) -> None:
        """
        Send it now.
        """
        self._stop()
        try:
            self.send()
        except HCAError as error:
            self._end(error)

    def _wait(self, seconds: float, expired: Callable[[], None]) -> None:
        self._timer = self._exchanges.device.timers.start(seconds, expired)

    def _answered(self, received: ReceivedMAD | None) -> None:
        self._request = None
        if received is None:
            isClosed = self._exchanges.device.closed
            self._end(DeviceClosedError("the device is closed") if isClosed else self._timedOut())
            return
        try:
            response = received.mad
        except WireError as error:
            self._end(error)
            return
        if response.status & BUSY and self._left:
            self._left -= 1
            self._wait(self.patience.timeout, self.again)
            return
        fault = check(self.mad, response)
        self._end(response if fault is None else fault)

    def _timedOut(self) -> SATimeoutError:
        seconds = self.patience.timeout * (self.patience.retries + 1)
        return SATimeoutError(
            f"{describe(self.mad)} was not answered in {seconds:g} s: check that the subnet manager runs"
        )

    def _end(self, outcome: Mad | HCAError) -> None:
        self._stop()
        self._ended(outcome)

    def _stop(self) -> None:
        self._exchanges.unaddressed.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()

    def cancel(self) -> None:
        """
        Send nothing more; nothing is reported.  Idempotent.
        """
        self._stop()
        if self._request is not None:
            self._request.cancel()


class Exchanges:
    """
    The requests of one port.

    @ivar device: has C{closed} and C{timers}.
    @ivar agent: sends them.
    @ivar address: returns where subnet administration is.
    @ivar unaddressed: those that wait for a subnet manager.
    """

    def __init__(self, device: IManagedDevice, agent: Any, address: Callable[[], AddressVector]) -> None:
        self.device, self.agent, self.address = device, agent, address
        self.unaddressed: dict[Exchange, None] = {}

    def begin(self, mad: Mad, patience: Patience, ended: Ended) -> Exchange:
        """
        Send a request, now or when there is a subnet manager.

        @param ended: called once, unless it is cancelled.
        @raise HCAError: it cannot be sent.
        @raise ValueError: C{patience} is out of range.
        """
        checkPatience(*patience)
        exchange = Exchange(self, mad, patience, ended)
        exchange.send()
        return exchange

    def resume(self) -> None:
        """
        There is a subnet manager, or the device is closed: go on with those that wait.
        """
        for exchange in list(self.unaddressed):
            exchange.again()
