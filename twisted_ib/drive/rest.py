"""
The rest of those who drive devices: how long it may last, and what ends it early.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Protocol

from twisted_ib.drive.sleeper import MOST_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Driven(Protocol):
    """
    A device, alone or in a reactor, as who rests sees it.
    """

    def arm(self) -> bool:
        """
        Have its descriptor wake who rests.

        @return: False if it has something to do after all.
        """

    def deadline(self) -> float | None:
        """
        @return: When it has something to do at the latest, by the clock of all of them; L{None} for never.
        """


class Rest:
    """
    What those who rest know of their devices.

    @ivar until: The earliest deadline; infinity if there is none, 0 if there is no rest.
    """

    __slots__ = ("until",)

    def __init__(self) -> None:
        self.until = inf

    def begin(self, devices: Iterable[Driven], now: Callable[[], float], most: float | None = None) -> float:
        """
        Arm the devices.

        @param now: Their clock.
        @param most: Seconds that it may last; L{None} for any time.
        @return: Seconds that it lasts, as far as is known; 0 if there is something to do.
        """
        until, isQuiet = inf, True
        for each in devices:
            # IBTA vol. 1 11.4.2.2: a completion before the arming raises no event.  All are armed all the
            # same.
            if not each.arm():
                isQuiet = False
            elif (due := each.deadline()) is not None and due < until:
                until = due
        self.until = until if isQuiet else 0.0
        seconds = self.until - now()
        if most is not None and most < seconds:
            seconds = most
        return MOST_SECONDS if seconds > MOST_SECONDS else max(seconds, 0.0)

    def isLate(self, device: Driven) -> bool:
        """
        Another thread has used a device, and perhaps started a timer.

        @return: Whether the device has a deadline before all that are known of.
        """
        due = device.deadline()
        return due is not None and due < self.until


__all__ = ["Driven", "Rest"]
