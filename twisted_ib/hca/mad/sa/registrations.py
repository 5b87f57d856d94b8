"""
The registrations of a port with subnet administration: memberships of multicast groups, services, and
subscriptions to events.

A registration has users, and is made for the first and given up after the last of them.  A subnet manager
that was restarted knows none: ports are asked to register again (IBTA vol. 1 14.4.11).  States and inputs are
L{TRANSITIONS}.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, ClassVar, Final

from attrs import evolve

from twisted_ib.errors import SAResponseError
from twisted_ib.hca.base.machine import Machine
from twisted_ib.hca.base.port import LARGEST_UNICAST_LID
from twisted_ib.hca.mad.attributes.administration import (
    ALL_LIDS,
    ALL_TRAPS,
    ALL_TYPES,
    ANY_PRODUCER,
    NO_LEASE_END,
    InformInfo,
    MCMemberRecord,
    Selector,
    ServiceRecord,
)
from twisted_ib.hca.mad.sa.queries import parsed, request, select
from twisted_ib.hca.wire.mad.administration import DELETE
from twisted_ib.hca.wire.mad.mad import SET, Mad

if TYPE_CHECKING:
    from twisted_ib.errors import HCAError
    from twisted_ib.hca.base.timers import Timer
    from twisted_ib.hca.mad.attributes.notice import Notice
    from twisted_ib.hca.mad.sa.queries import Exchange
    from twisted_ib.hca.mad.sa.registry import Handle

#: Values that a group is made with (IBTA vol. 1 15.2.5.17.2): one that has gone meanwhile is made with them
#: again, and one that is there must have them.
_MAKING: Final = ("qKey", "pKey", "tClass", "sl", "flowLabel")


class State(Enum):
    """
    The states of a registration.
    """

    #: The first request to register is under way.
    REGISTERING = auto()
    REGISTERED = auto()
    #: It is registered again; its users do not notice.
    RENEWING = auto()
    #: The last user has gone, and the request to give it up is under way.
    UNREGISTERING = auto()
    #: The same, but it has a user again.
    WANTED_AGAIN = auto()
    GONE = auto()


class Input(Enum):
    """
    The inputs of a registration.
    """

    #: The first user has come, where there was none left.
    WANTED = auto()
    #: The last user has gone.
    RELEASED = auto()
    ACCEPTED = auto()
    REFUSED = auto()
    #: There is no response, or one that says to try again.
    UNANSWERED = auto()
    #: The subnet manager has forgotten it, or has become another.
    RENEW = auto()


class Action(Enum):
    """
    The actions of a registration.
    """

    NOTHING = auto()
    REGISTER = auto()
    UNREGISTER = auto()
    #: Tell the users that there is a record.
    GRANT = auto()
    #: Tell the users the error, and forget it.
    FAIL = auto()
    #: Register again, later.
    RETRY = auto()
    FORGET = auto()


#: An input that is not here changes nothing.
TRANSITIONS: Final = Machine[State, Input, tuple[State, Action]](
    {
        (State.REGISTERING, Input.ACCEPTED): (State.REGISTERED, Action.GRANT),
        (State.REGISTERING, Input.REFUSED): (State.GONE, Action.FAIL),
        (State.REGISTERING, Input.UNANSWERED): (State.GONE, Action.FAIL),
        # The request may have arrived.
        (State.REGISTERING, Input.RELEASED): (State.UNREGISTERING, Action.UNREGISTER),
        (State.REGISTERING, Input.RENEW): (State.REGISTERING, Action.REGISTER),
        (State.REGISTERED, Input.RELEASED): (State.UNREGISTERING, Action.UNREGISTER),
        (State.REGISTERED, Input.RENEW): (State.RENEWING, Action.REGISTER),
        (State.RENEWING, Input.ACCEPTED): (State.REGISTERED, Action.GRANT),
        (State.RENEWING, Input.REFUSED): (State.GONE, Action.FAIL),
        (State.RENEWING, Input.UNANSWERED): (State.RENEWING, Action.RETRY),
        (State.RENEWING, Input.RELEASED): (State.UNREGISTERING, Action.UNREGISTER),
        (State.RENEWING, Input.RENEW): (State.RENEWING, Action.REGISTER),
        (State.UNREGISTERING, Input.WANTED): (State.WANTED_AGAIN, Action.NOTHING),
        # Whatever the answer: nobody wants it, and there is nothing to be done about it.
        (State.UNREGISTERING, Input.ACCEPTED): (State.GONE, Action.FORGET),
        (State.UNREGISTERING, Input.REFUSED): (State.GONE, Action.FORGET),
        (State.UNREGISTERING, Input.UNANSWERED): (State.GONE, Action.FORGET),
        # Requests to one registration are in order: the next is sent when the one before is answered.
        (State.WANTED_AGAIN, Input.ACCEPTED): (State.REGISTERING, Action.REGISTER),
        (State.WANTED_AGAIN, Input.REFUSED): (State.REGISTERING, Action.REGISTER),
        (State.WANTED_AGAIN, Input.UNANSWERED): (State.REGISTERING, Action.REGISTER),
        (State.WANTED_AGAIN, Input.RELEASED): (State.UNREGISTERING, Action.NOTHING),
    },
    unlisted=lambda state, _: (state, Action.NOTHING),
)


class Registration:
    """
    One registration.

    @ivar key: which it is; another user of the same shares it.
    @ivar values: of the record that is registered.
    @ivar record: as subnet administration has it; L{None} until it was accepted.
    @ivar users: in the order in which they came.
    @ivar exchange: its request that is under way.
    @ivar timer: when its time is over.
    @ivar released: called when it has been given up.
    """

    __slots__ = ("exchange", "key", "record", "released", "state", "timer", "users", "values")
    #: The names of the values that two users must agree on.
    SHARED: ClassVar[tuple[str, ...]] = ()

    def __init__(self, key: tuple[Any, ...], values: dict[str, Any]) -> None:
        self.key, self.values = key, values
        self.record: Any = None
        self.state = State.REGISTERING
        self.users: dict[Handle, None] = {}
        self.exchange: Exchange | None = None
        self.timer: Timer | None = None
        self.released: list[Callable[[HCAError | None], object]] = []

    def step(self, given: Input) -> Action:
        """
        @return: the action that follows.
        """
        self.state, action = TRANSITIONS[self.state, given]
        return action

    def join(self, values: dict[str, Any]) -> None:
        """
        Another user wants the same.

        @raise ValueError: with other values.
        """
        for name in self.SHARED:
            if name in values and name in self.values and values[name] != self.values[name]:
                before = self.values[name]
                raise ValueError(f"it has {name} {before!r} already, not {values[name]!r}: close that first")

    def register(self, gid: int) -> Mad:
        """
        @param gid: the port's own GID.
        @return: the request to register.
        @raise WireError: a value does not fit.
        @raise ValueError: the record has no such value.
        """
        raise NotImplementedError

    def unregister(self) -> Mad | None:
        """
        @return: the request to give it up; L{None} if nobody could say which it is.
        """
        raise NotImplementedError

    def accepted(self, data: bytes) -> None:
        """
        It is registered.

        @param data: the record of the response.
        @raise SAResponseError: it is another record.
        """
        raise NotImplementedError

    def lasts(self) -> float | None:
        """
        @return: for how many seconds it is registered; L{None} until it is given up.
        """
        return None


class GroupRegistration(Registration):
    """
    A membership of a multicast group, with one JoinState.
    """

    __slots__ = ()
    SHARED = _MAKING

    def __init__(self, values: dict[str, Any]) -> None:
        # Of those that subnet administration gives an MGID each is another.
        super().__init__((MCMemberRecord, values["mgid"] or object(), values["joinState"]), values)

    def register(self, gid: int) -> Mad:
        self.values["portGID"] = gid
        return request(SET, *select(MCMemberRecord, self.values))

    def unregister(self) -> Mad | None:
        # IBTA vol. 1 15.2.5.17.3.
        values = {name: self.values.get(name) for name in ("mgid", "portGID", "joinState")}
        return request(DELETE, *select(MCMemberRecord, values)) if values["mgid"] else None

    def accepted(self, data: bytes) -> None:
        record = parsed(MCMemberRecord, data)
        asked = self.values["mgid"] or record.mgid
        if not asked or record.mgid != asked or record.mlid <= LARGEST_UNICAST_LID:
            raise SAResponseError(f"the answer is for group {record.mgid:#034x}: try again")
        exactly = {"mtuSelector": Selector.EXACTLY, "rateSelector": Selector.EXACTLY}
        self.record = evolve(record, **exactly)
        self.key = MCMemberRecord, asked, self.values["joinState"]
        self.values.update((name, getattr(record, name)) for name in ("mgid", "mtu", "rate", *_MAKING))
        self.values.update(exactly)


class ServiceRegistration(Registration):
    """
    A service that the port offers.
    """

    __slots__ = ()
    SHARED = (
        *("serviceLease", "serviceKey", "serviceName", "serviceData8", "serviceData16", "serviceData32"),
        "serviceData64",
    )

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__((ServiceRecord, values["serviceID"], values["servicePKey"]), values)

    def register(self, gid: int) -> Mad:
        self.values["serviceGID"] = gid
        return request(SET, *select(ServiceRecord, self.values))

    def unregister(self) -> Mad | None:
        # IBTA vol. 1 15.2.5.14: these three identify a record.
        names = ("serviceID", "serviceGID", "servicePKey")
        return request(DELETE, *select(ServiceRecord, {name: self.values[name] for name in names}))

    def accepted(self, data: bytes) -> None:
        record = parsed(ServiceRecord, data)
        if record.serviceID != self.values["serviceID"]:
            raise SAResponseError(f"the answer is for service {record.serviceID:#x}: try again")
        self.record = record

    def lasts(self) -> float | None:
        lease: int = self.values["serviceLease"]
        return None if lease == NO_LEASE_END else float(lease)


class EventRegistration(Registration):
    """
    A subscription to events.
    """

    __slots__ = ()

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__((InformInfo, *sorted(values.items())), values)

    def register(self, gid: int) -> Mad:
        return request(SET, InformInfo(**self.values))

    def unregister(self) -> Mad | None:
        return request(SET, evolve(InformInfo(**self.values), subscribe=0))

    def accepted(self, data: bytes) -> None:
        self.record = parsed(InformInfo, data)

    def matches(self, notice: Notice) -> bool:
        """
        @return: whether an event is of those that it is for.
        """
        info = InformInfo(**self.values)
        first, last, lid = info.lidRangeBegin, info.lidRangeEnd, notice.noticeIssuerLID
        return (
            info.isGeneric == notice.noticeIsGeneric
            and info.trapNumber in (ALL_TRAPS, notice.noticeTrapNumber)
            and info.noticeType in (ALL_TYPES, notice.noticeType)
            and info.producerType in (ANY_PRODUCER, notice.noticeProducerType)
            and (first == ALL_LIDS or first <= lid <= max(first, last))
        )
