"""
The registrations of one port: their users, their requests, and their renewal.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from twisted_ib import limits
from twisted_ib.errors import (
    HCAError,
    NoSubnetManagerError,
    ResourceLimitError,
    SAResponseError,
    SAStatusError,
    SATimeoutError,
)
from twisted_ib.hca.base.events import notifyAll
from twisted_ib.hca.mad.sa.queries import DEFAULT, Patience
from twisted_ib.hca.mad.sa.registrations import Action, EventRegistration, Input, Registration, State
from twisted_ib.hca.wire.mad.administration import SAStatus

if TYPE_CHECKING:
    from twisted_ib.hca.base.timers import Timer
    from twisted_ib.hca.mad.agents import IManagedDevice
    from twisted_ib.hca.mad.attributes.notice import Notice
    from twisted_ib.hca.mad.sa.queries import Ended, Exchange
    from twisted_ib.hca.wire.mad.mad import Mad

#: Takes a record of subnet administration, or the reason that there is none.
Answered = Callable[[Any], object]
#: Takes an event, and the GID of the port that tells it.
Received = Callable[["Notice", int], object]
#: Sends a request.
Send = Callable[["Mad", Patience, "Ended"], "Exchange"]

#: The first wait before a renewal is tried again, seconds; each one is twice as long as the one before.
_RETRY: Final = 1.0
#: Statuses after which the same request may succeed.
_PASSING: Final = frozenset((SAStatus.BUSY, SAStatus.NO_RESOURCES))


class Handle:
    """
    One user's part in a registration.
    """

    __slots__ = ("_registry", "answered", "changed", "received", "registration")

    def __init__(
        self,
        registry: Registrations,
        registration: Registration,
        answered: Answered,
        changed: Answered | None,
        received: Received | None,
    ) -> None:
        self._registry = registry
        #: L{None} when it is closed.
        self.registration: Registration | None = registration
        #: L{None} when it was called.
        self.answered: Answered | None = answered
        self.changed, self.received = changed, received

    @property
    def record(self) -> Any:
        """
        The record as subnet administration has it; L{None} before it is registered, and when this is closed.
        """
        return None if self.registration is None else self.registration.record

    def close(self, closed: Callable[[HCAError | None], object] | None = None) -> None:
        """
        Leave the group, withdraw the service, or end the subscription, if this is the last user's.  A request
        to register that is under way is not repeated.  Idempotent.

        @param closed: called with L{None} when it is done, or with the error.
        """
        self._registry.release(self, closed)

    def tell(self, outcome: Any) -> None:
        """
        Report what became of the registration.
        """
        answered, self.answered = self.answered or self.changed, None
        if answered is not None:
            answered(outcome)


class Registrations:
    """
    See the module.
    """

    def __init__(self, device: IManagedDevice, send: Send, gid: Callable[[], int]) -> None:
        """
        @param device: has C{timers}.
        @param gid: returns the port's own GID.
        """
        self._device, self._send, self._gid = device, send, gid
        self._table: dict[tuple[Any, ...], Registration] = {}
        self._users = 0
        #: Those that are to be registered again, those that are now, and those that are later.
        self._waiting: dict[Registration, None] = {}
        self._renewing: set[Registration] = set()
        self._late: dict[Registration, None] = {}
        self._wait = _RETRY
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._table)

    # -- users

    def open(
        self,
        registration: Registration,
        answered: Answered,
        changed: Answered | None = None,
        received: Received | None = None,
    ) -> Handle:
        """
        Add a user of a registration.

        @param registration: what is wanted; one with its key that is there already is used instead.
        @param answered: called once, with the record or the error; at once if it is registered already.
        @param changed: called later, when the record is another or, with the error, the registration is lost.
        @raise HCAError: the request cannot be sent.
        @raise ResourceLimitError: there are L{SA_REGISTRATIONS<limits.SA_REGISTRATIONS>} users.
        @raise ValueError: it is registered with other values, or has no such value.
        """
        if self._users >= limits.SA_REGISTRATIONS:
            raise ResourceLimitError(f"{limits.SA_REGISTRATIONS} users of registrations: close some")
        found = self._table.get(registration.key)
        if found is None:
            self._table[registration.key] = found = registration
            try:
                self._request(found, found.register(self._gid()))
            except Exception:
                self._forget(found)
                raise
        else:
            found.join(registration.values)
            self._do(found, found.step(Input.WANTED))
        handle = Handle(self, found, answered, changed, received)
        found.users[handle] = None
        self._users += 1
        if found.state in (State.REGISTERED, State.RENEWING):
            handle.tell(found.record)
        return handle

    def release(self, handle: Handle, closed: Callable[[HCAError | None], object] | None) -> None:
        """
        See L{Handle.close}.
        """
        registration, handle.registration = handle.registration, None
        # It may be closed by another user who is told before.
        handle.answered = handle.changed = None
        if registration is not None:
            del registration.users[handle]
            self._users -= 1
            if not registration.users:
                if closed is not None:
                    registration.released.append(closed)
                self._do(registration, registration.step(Input.RELEASED))
                self._settled(registration)
                return
        if closed is not None:
            closed(None)

    def deliver(self, notice: Notice, issuer: int) -> bool:
        """
        Give an event to its subscribers.

        @return: whether there are any.
        """
        calls = [
            partial(handle.received, notice, issuer)
            for each in self._table.values()
            if isinstance(each, EventRegistration) and each.matches(notice)
            for handle in each.users
            if handle.received is not None
        ]
        notifyAll(calls)
        return bool(calls)

    def unregistering(self) -> list[Mad]:
        """
        @return: the requests to give all up.
        """
        mads = [each.unregister() for each in self._table.values()]
        return [mad for mad in mads if mad is not None]

    # -- renewal

    def renew(self) -> None:
        """
        Register all again: L{SA_RENEWALS<limits.SA_RENEWALS>} at a time, as all ports do so at once.
        """
        self._wait = _RETRY
        self._stop()
        self._waiting = dict.fromkeys(self._table.values())
        self._late.clear()
        # Those of before were asked of a subnet manager that has gone.
        self._renewing.clear()
        self._pump()

    def _pump(self) -> None:
        while self._waiting and len(self._renewing) < limits.SA_RENEWALS:
            registration = next(iter(self._waiting))
            del self._waiting[registration]
            action = registration.step(Input.RENEW)
            if action is Action.REGISTER:
                self._renewing.add(registration)
            self._do(registration, action)

    def _retry(self, registration: Registration, error: HCAError | None) -> None:
        self._late[registration] = None
        # A port that has lost its subnet manager is told of the next one.
        if self._timer is None and not isinstance(error, NoSubnetManagerError):
            self._timer = self._device.timers.start(self._wait, self._retryAll)
            self._wait = min(2 * self._wait, limits.SA_RETRY_SECONDS)

    def _retryAll(self) -> None:
        self._timer = None
        self._waiting.update(self._late)
        self._late.clear()
        self._pump()

    def _expires(self, registration: Registration) -> None:
        self._waiting[registration] = None
        self._pump()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- requests

    def _request(self, registration: Registration, mad: Mad) -> None:
        if registration.exchange is not None:
            registration.exchange.cancel()
        registration.exchange = None
        registration.exchange = self._send(mad, DEFAULT, partial(self._ended, registration))

    def _ended(self, registration: Registration, outcome: Mad | HCAError) -> None:
        registration.exchange = None
        try:
            self._take(registration, outcome)
        finally:
            self._settled(registration)

    def _settled(self, registration: Registration) -> None:
        if registration.exchange is None or registration.state is State.UNREGISTERING:
            self._renewing.discard(registration)
        self._pump()

    def _take(self, registration: Registration, outcome: Mad | HCAError) -> None:
        before, was = registration.record, registration.state
        error = self._accept(registration, outcome)
        action = registration.step(_given(error))
        released: list[Callable[[HCAError | None], object]] = []
        if was is State.WANTED_AGAIN:
            # The answer is for those that had gone.
            released, registration.released = registration.released, []
        try:
            self._do(registration, action, error, registration.record != before)
        finally:
            notifyAll(partial(each, error) for each in released)

    def _accept(self, registration: Registration, outcome: Mad | HCAError) -> HCAError | None:
        if isinstance(outcome, HCAError):
            return outcome
        data, old = outcome.data, registration.key
        if registration.state in (State.REGISTERING, State.RENEWING) and isinstance(data, bytes):
            try:
                registration.accepted(data)
            except SAResponseError as wrong:
                self._device.count("sa_malformed")
                return wrong
            # Subnet administration gives a group its MGID.
            if registration.key != old and registration.key in self._table:
                registration.key = old
                self._device.count("sa_malformed")
                return SAResponseError("a new group was given the GID of another: try again")
            self._table[registration.key] = self._table.pop(old)
        return None

    def _do(
        self,
        registration: Registration,
        action: Action,
        error: HCAError | None = None,
        isChange: bool = True,
    ) -> None:
        if action is Action.REGISTER:
            self._resend(registration, partial(registration.register, self._gid()))
        elif action is Action.UNREGISTER:
            self._resend(registration, registration.unregister)
        elif action is Action.GRANT:
            self._grant(registration, isChange)
        elif action is Action.RETRY:
            self._retry(registration, error)
        elif action in (Action.FAIL, Action.FORGET):
            self._forget(registration)
            self._end(registration, error)

    def _resend(self, registration: Registration, make: Callable[[], Mad | None]) -> None:
        if registration.timer is not None:
            registration.timer.cancel()
        mad, error = make(), None
        if mad is not None:
            try:
                self._request(registration, mad)
            except HCAError as reason:
                error = reason
            else:
                return
        elif registration.exchange is not None:
            registration.exchange.cancel()
        self._renewing.discard(registration)
        self._do(registration, registration.step(Input.UNANSWERED), error)

    def _grant(self, registration: Registration, isChange: bool) -> None:
        self._wait = _RETRY
        lasts = registration.lasts()
        if lasts is not None:
            # In the middle, so that a lost request is no lost registration.
            expires = partial(self._expires, registration)
            registration.timer = self._device.timers.start(lasts / 2, expires)
        users = [each for each in registration.users if isChange or each.answered is not None]
        notifyAll(partial(each.tell, registration.record) for each in users)

    def _end(self, registration: Registration, error: HCAError | None) -> None:
        users, registration.users = registration.users, {}
        self._users -= len(users)
        for each in users:
            each.registration = None
        released, registration.released = registration.released, []
        notifyAll(partial(each, error) for each in (*(each.tell for each in users), *released))

    def _forget(self, registration: Registration) -> None:
        self._table.pop(registration.key, None)
        self._late.pop(registration, None)


def _given(error: HCAError | None) -> Input:
    if error is None:
        return Input.ACCEPTED
    isPassing = isinstance(error, SAStatusError) and error.status in _PASSING
    isUnanswered = isinstance(error, (SATimeoutError, NoSubnetManagerError))
    return Input.UNANSWERED if isPassing or isUnanswered else Input.REFUSED
