"""
The turn of those who drive devices: serve them, arm them, sleep, look at them, expire what is due.

Each sleeps in its own way between L{Turn.begin} and L{Turn.end}: in its epoll object, in the selector of
asyncio, or on a bell that other threads ring.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Protocol

from twisted_ib.drive.sleeper import MOST_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Driven(Protocol):
    """
    A device, alone or in a reactor, as its driver sees it.
    """

    def progress(self) -> int:
        """
        Send what is pending and process what has arrived.

        @return: How much was done.
        """

    def arm(self) -> bool:
        """
        Have its descriptor end the sleep.

        @return: False if it has something to do after all.
        """

    def look(self) -> bool:
        """
        Wake up: its descriptor need not end a sleep any more.

        @return: Whether it has something to do.
        """

    def deadline(self) -> float | None:
        """
        @return: The latest time of its next work, by the clock of all of them; L{None} for never.
        """

    def tick(self, now: float) -> object:
        """
        Do what is due.
        """


class Turn:
    """
    The devices as those who drive them know them while they sleep.

    @ivar until: The earliest deadline; infinity if there is none, 0 if there is no sleep.
    @ivar isAsleep: Whether the devices are armed, and nobody has looked at them since.
    """

    __slots__ = ("isAsleep", "until")

    def __init__(self) -> None:
        self.until = inf
        self.isAsleep = False

    def begin(self, devices: Iterable[Driven], now: Callable[[], float], most: float | None = None) -> float:
        """
        Arm the devices, before a sleep.

        @param now: Their clock.
        @param most: Seconds that it may last; L{None} for any time.
        @return: Seconds that it lasts, as far as is known; 0 if there is something to do.
        """
        if self.isAsleep:
            # A signal's handler has raised amid the last sleep: what has rung then rings no more.
            self.disarm(devices)
        until, isQuiet, self.isAsleep = inf, True, True
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

    def disarm(self, devices: Iterable[Driven]) -> None:
        """
        Look at the devices, in the place of L{end}: they are served by other means.
        """
        self.isAsleep = False
        for each in devices:
            each.look()

    def end(
        self, devices: Iterable[Driven], now: Callable[[], float], slept: float | None, serves: bool = True
    ) -> int:
        """
        Look at the devices after the sleep, and do what is due.

        @param slept: Seconds that it was to last; 0 if there was none, so that each deadline is asked for.
        @param serves: Whether a device that has something to do is served.
        @return: How much was done for those.
        """
        isOver = slept == 0 or now() >= self.until
        self.isAsleep = False
        done = 0
        hot: tuple[Driven, ...] = ()
        for each in devices:
            if each.look() and serves:
                hot += (each,)
        try:
            for each in hot:
                done += each.progress()
        finally:
            # An error of one device, or of its user, keeps back no timer of another.
            if isOver:
                for each in devices:
                    due = each.deadline()
                    if due is not None and due <= (at := now()):
                        each.tick(at)
        return done

    def isLate(self, device: Driven) -> bool:
        """
        Another thread has used a device, and perhaps started a timer.

        @return: Whether the device has a deadline before all that are known of.
        """
        due = device.deadline()
        return due is not None and due < self.until
