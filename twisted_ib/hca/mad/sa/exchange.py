"""
One request to subnet administration, until its final response.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from twisted_ib.errors import DeviceClosedError, HCAError, SATimeoutError, WireError
from twisted_ib.hca.mad.sa.queries import check, describe
from twisted_ib.hca.wire.mad.administration import BUSY

if TYPE_CHECKING:
    from twisted_ib.hca.base.timers import Timer
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
    A request.  One that is answered with BUSY is repeated, after the time of an attempt.
    """

    __slots__ = ("_ended", "_left", "_request", "_timer", "address", "agent", "device", "mad", "patience")

    def __init__(
        self, device: Any, agent: Any, address: AddressVector, mad: Mad, patience: Patience, ended: Ended
    ) -> None:
        """
        Send it.

        @param ended: called once, unless it is cancelled.
        @raise HCAError: it cannot be sent.
        @raise ValueError: C{patience} is out of range.
        """
        self.device, self.agent, self.address, self.mad = device, agent, address, mad
        self.patience = patience
        self._left = patience.retries
        self._ended = ended
        self._request: Request | None = None
        self._timer: Timer | None = None
        self._send()

    def _send(self) -> None:
        timeout = self.patience.timeout
        self._request = self.agent.send(self.address, self.mad, self._answered, timeout, self._left)

    def _again(self) -> None:
        try:
            self._send()
        except HCAError as error:
            self._ended(error)

    def _answered(self, received: ReceivedMAD | None) -> None:
        self._request = None
        if received is None:
            if self.device.closed:
                self._ended(DeviceClosedError("the device is closed"))
            else:
                self._ended(self._timedOut())
            return
        try:
            response = received.mad
        except WireError as error:
            self._ended(error)
            return
        if response.status & BUSY and self._left:
            self._left -= 1
            self._timer = self.device.timers.start(self.patience.timeout, self._again)
            return
        fault = check(self.mad, response)
        self._ended(response if fault is None else fault)

    def _timedOut(self) -> SATimeoutError:
        seconds = self.patience.timeout * (self.patience.retries + 1)
        return SATimeoutError(
            f"{describe(self.mad)} was not answered in {seconds:g} s: check that the subnet manager runs"
        )

    def cancel(self) -> None:
        """
        Send nothing more; nothing is reported.  Idempotent.
        """
        if self._timer is not None:
            self._timer.cancel()
        if self._request is not None:
            self._request.cancel()


__all__ = ["DEFAULT", "RETRIES", "TIMEOUT", "Ended", "Exchange", "Patience"]
