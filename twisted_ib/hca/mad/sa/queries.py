"""
Requests of records, and what their responses say.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

from twisted_ib.errors import LengthError, NoRecordsError, SAError, SAResponseError, SAStatusError
from twisted_ib.hca.mad.attributes.layouts import Attribute, layoutOf
from twisted_ib.hca.wire.mad.administration import GET_TABLE, SA_VERSION, SAStatus, statusName
from twisted_ib.hca.wire.mad.classes import ACTIVE, SUBNET_ADMINISTRATION, AdministrationHeader
from twisted_ib.hca.wire.mad.mad import GET, GET_RESPONSE, RESPONSE, SET, Mad

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
