"""
Subnet administration for Twisted: C{device.sa} with Deferreds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from twisted_ib.errors import HCAError
from twisted_ib.hca.mad.attributes.administration import PathRecord
from twisted_ib.hca.mad.attributes.layouts import Attribute
from twisted_ib.hca.mad.attributes.notice import Notice
from twisted_ib.hca.mad.sa.client import SAClient, Waiter
from twisted_ib.hca.mad.sa.queries import RETRIES, TIMEOUT, Patience
from twisted_ib.hca.mad.sa.registry import Handle
from twisted_ib.internet.channel import channelFor

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime


#: The device of a subnet.
DEVICE = "ib0"


#: Makes a registration: with what takes its record or error, and with what takes later changes.
Register = Callable[[Callable[[Any], None], Callable[[Any], None]], Handle]


class SARegistration:
    """
    A membership of a multicast group, a service or a subscription to events.
    """

    _handle: Handle

    def __init__(self, administration: SubnetAdministration, changed: Callable[[Any], object] | None) -> None:
        self._administration, self._changed = administration, changed
        self._isOpen = True
        self._made: Deferred[SARegistration] = Deferred(self._cancelled)

    def begin(self, register: Register) -> Deferred[SARegistration]:
        """
        @return: fires with this.
        """
        try:
            self._handle = register(self._answered, self._later)
        except Exception:
            self._end()
            self._made.errback(Failure())
        return self._made

    @property
    def record(self) -> Any:
        """
        The record as subnet administration has it; L{None} when the registration is closed or lost.
        """
        return self._handle.record

    def close(self) -> Deferred[None]:
        """
        Leave the group, withdraw the service, or end the subscription, if no other user of the device has it
        too.  Idempotent.

        @return: fires when that is done, or fails with L{SAError<twisted_ib.errors.SAError>}.  Cancelling it
            changes nothing.
        """
        # Without a canceller: a result that comes after cancel() is dropped.
        done: Deferred[None] = Deferred()
        if not self._isOpen:
            done.callback(None)
            return done

        def closed(error: HCAError | None) -> None:
            self._administration.released()
            _fire(done, error)

        self._isOpen = False
        self._handle.close(closed)
        return done

    def _cancelled(self, made: Deferred[SARegistration]) -> None:
        # Nobody has this registration, and a closed handle tells nothing more.
        self._handle.close(lambda error: self._administration.released())

    def _answered(self, outcome: object) -> None:
        if isinstance(outcome, Exception):
            self._end()
            self._made.errback(outcome)
        else:
            self._made.callback(self)

    def _later(self, outcome: object) -> None:
        if isinstance(outcome, Exception):
            self._end()
        if self._changed is not None:
            self._changed(outcome)

    def _end(self) -> None:
        if self._isOpen:
            self._isOpen = False
            self._administration.released()


class SubnetAdministration:
    """
    Asks the subnet administration of the subnet that a device is in.

    Deferreds fail with L{SAError<twisted_ib.errors.SAError>}, or with another
    L{HCAError<twisted_ib.errors.HCAError>} if there is no room or the device is closed.  When one is
    cancelled its request is not repeated.
    """

    def __init__(self, reactor: IReactorTime, device: str = DEVICE) -> None:
        """
        @param reactor: any with C{IReactorFDSet} and C{IReactorTime}.
        @param device: the name of the device, which is opened if it is not open.
        @raise HCAError: it cannot be opened.
        """
        self._channel = channelFor(reactor, device)
        self._uses = 0

    def path(
        self, dgid: int, pKey: int = 0, sgid: int = 0, timeout: float = TIMEOUT, retries: int = RETRIES
    ) -> Deferred[PathRecord]:
        """
        Ask for the path to a port.  It is remembered for L{limits.SA_PATH_SECONDS}, or until the subnet
        changes.

        @param dgid: GID of the port.
        @param pKey: the partition; 0 for any.
        @param sgid: GID of the port that it begins at; 0 for the device's.
        @param timeout: seconds of each attempt.
        @param retries: how often the request is repeated.
        """
        patience = Patience(timeout, retries)
        return self._ask(lambda answered: self._sa.path(dgid, answered, pKey, sgid, patience))

    def query(
        self,
        kind: type[Attribute],
        timeout: float = TIMEOUT,
        retries: int = RETRIES,
        **values: Any,
    ) -> Deferred[list[Any]]:
        """
        Ask for all records that have some values.

        @param kind: a class of L{RECORDS<twisted_ib.hca.mad.attributes.administration.RECORDS>}.
        @param values: by the names of its fields, or of those that are nested in it.
        """
        patience = Patience(timeout, retries)
        return self._ask(lambda answered: self._sa.query(kind, answered, values, patience))

    def join(
        self, mgid: int, changed: Callable[[Any], object] | None = None, **values: Any
    ) -> Deferred[SARegistration]:
        """
        Join a multicast group: see L{SAClient.join<twisted_ib.hca.mad.sa.client.SAClient.join>}.
        """
        return self._register(lambda answered, later: self._sa.join(mgid, answered, later, **values), changed)

    def service(
        self, serviceID: int, changed: Callable[[Any], object] | None = None, **values: Any
    ) -> Deferred[SARegistration]:
        """
        Offer a service: see L{SAClient.service<twisted_ib.hca.mad.sa.client.SAClient.service>}.
        """
        return self._register(
            lambda answered, later: self._sa.service(serviceID, answered, later, **values), changed
        )

    def subscribe(
        self,
        trap: int,
        received: Callable[[Notice, int], object],
        changed: Callable[[Any], object] | None = None,
        **values: Any,
    ) -> Deferred[SARegistration]:
        """
        Be told of events: see L{SAClient.subscribe<twisted_ib.hca.mad.sa.client.SAClient.subscribe>}.
        """
        return self._register(
            lambda answered, later: self._sa.subscribe(trap, received, answered, later, **values), changed
        )

    @property
    def gid(self) -> int:
        """
        The GID of the device.
        """
        gid: int = self._channel.device.gid
        return gid

    @property
    def _sa(self) -> SAClient:
        return self._channel.device.sa

    def _ask(self, ask: Callable[[Callable[[Any], None]], Waiter | None]) -> Deferred[Any]:
        def cancelled(ignored: Deferred[object]) -> None:
            self.released()
            if waiter is not None:
                waiter.cancel()

        def answered(outcome: object) -> None:
            self.released()
            _fire(done, outcome)

        done: Deferred[Any] = Deferred(cancelled)
        self._used()
        try:
            waiter = ask(answered)
        except Exception:
            self.released()
            done.errback(Failure())
        return done

    def _register(
        self, register: Register, changed: Callable[[Any], object] | None
    ) -> Deferred[SARegistration]:
        self._used()
        return SARegistration(self, changed).begin(register)

    # -- the channel, which serves the device while it has users

    def _used(self) -> None:
        self._uses += 1
        if self._uses == 1:
            self._channel.acquire(self)

    def released(self) -> None:
        """
        A request or a registration has ended.
        """
        self._uses -= 1
        if not self._uses:
            self._channel.release(self)

    def connectionLost(self, reason: Failure) -> None:
        """
        The reactor stops; the device reports that to all who wait.
        """


def _fire(done: Deferred[Any], outcome: object) -> None:
    if isinstance(outcome, Exception):
        done.errback(outcome)
    else:
        done.callback(outcome)
