"""
Requests to subnet administration, until their final responses.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from twisted_ib.errors import (
    DeviceClosedError,
    HCAError,
    NoSubnetManagerError,
    SATimeoutError,
    WireError,
)
from twisted_ib.hca.mad.dispatch import checkPatience
from twisted_ib.hca.mad.sa.queries import check, describe
from twisted_ib.hca.wire.mad.administration import BUSY

if TYPE_CHECKING:
    from twisted_ib.hca.base.timers import Timer
    from twisted_ib.hca.mad.device import IManagedDevice
    from twisted_ib.hca.mad.requests import ReceivedMAD, Request
    from twisted_ib.hca.services.address import AddressVector
    from twisted_ib.hca.wire.mad.mad import Mad

#: Seconds for each attempt, and how often a request is repeated (libibmad C{MAD_DEF_TIMEOUT_MS},
#: C{MAD_DEF_RETRIES}).
TIMEOUT: Final = 1.0
RETRIES: Final = 3


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
