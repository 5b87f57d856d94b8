"""
The turn of those who drive devices, without any.
"""

from __future__ import annotations

from math import inf
from threading import Thread
from types import SimpleNamespace
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.support.waiting import HANG_SECONDS
from twisted_ib.drive import turn
from twisted_ib.drive.sleeper import MOST_SECONDS
from twisted_ib.drive.turn import Turn

#: The time.
NOW = 100.0


def device(due: float | None = None, isArmed: bool = True, finds: bool = False) -> Any:
    """
    @param due: Its deadline.
    @param isArmed: What arming says.
    @param finds: What a look says.
    @return: A device that keeps what it is called for.
    """
    said: list[object] = []

    def saying(name: str, result: object) -> Any:
        return lambda *arguments: (said.append((name, *arguments)), result)[1]

    calls = (("arm", isArmed), ("look", finds), ("progress", 3), ("tick", None))
    return SimpleNamespace(
        said=said, deadline=lambda: due, **{name: saying(name, found) for name, found in calls}
    )


class TurnTests(SynchronousTestCase):
    """
    L{Turn}.
    """

    def begun(self, *devices: Any, most: float | None = None) -> tuple[float, float]:
        """
        @return: The seconds of a sleep, and what is known of deadlines.
        """
        self.turn = Turn()
        return self.turn.begin(devices, lambda: NOW, most), self.turn.until

    def ended(self, *devices: Any, slept: float | None, now: float = NOW, serves: bool = True) -> list[Any]:
        """
        @return: What was done, and what each device was called for.
        """
        for each in devices:
            each.said.clear()
        return [self.turn.end(devices, lambda: now, slept, serves), *(each.said for each in devices)]

    def test_begin(self) -> None:
        """
        The sleep lasts until the first deadline, or as long as it may.
        """
        self.assertEqual(self.begun(), (MOST_SECONDS, inf))
        self.assertEqual(self.begun(device(), most=2.0), (2.0, inf))
        late, soon = NOW + 7, NOW + 3
        self.assertEqual(self.begun(device(late), device(soon), device()), (3.0, soon))
        self.assertEqual(self.begun(device(soon), device(late), most=2.0), (2.0, soon))
        self.assertEqual(self.begun(device(NOW - 1)), (0.0, NOW - 1))

    def test_left(self) -> None:
        """
        A sleep that was left by an error, as a signal's handler raises it, has the devices looked at before
        the next one; another sleep has not.
        """
        devices = device(), device()
        self.begun(*devices)
        for expected in ([("look",), ("arm",)], [("arm",)]):
            for each in devices:
                each.said.clear()
            self.turn.begin(devices, lambda: NOW)
            self.assertEqual([each.said for each in devices], [expected] * 2)
            self.ended(*devices, slept=1.0)

    def test_disarmed(self) -> None:
        """
        Devices that are served by other means after a sleep are looked at by that alone.
        """
        devices = device(), device()
        self.begun(*devices)
        for each in devices:
            each.said.clear()
        self.turn.disarm(devices)
        self.turn.begin(devices, lambda: NOW)
        self.assertEqual([each.said for each in devices], [[("look",), ("arm",)]] * 2)

    def test_unarmed(self) -> None:
        """
        One that has something to do keeps all from sleeping, and all are armed.
        """
        devices = device(isArmed=False), device(NOW + 1)
        self.assertEqual(self.begun(*devices), (0.0, 0.0))
        self.assertEqual([each.said for each in devices], [[("arm",)]] * 2)

    def test_served(self) -> None:
        """
        What has something to do after the sleep is served, if it may be.
        """
        devices = device(finds=True), device(), device(finds=True)
        self.begun(*devices)
        look, served = [("look",)], [("look",), ("progress",)]
        self.assertEqual(self.ended(*devices, slept=1.0), [6, served, look, served])
        self.assertEqual(self.ended(*devices, slept=1.0, serves=False), [0, look, look, look])

    def test_due(self) -> None:
        """
        Deadlines are asked for if the earliest is over, or nobody slept; what is due then is done.
        """
        devices = device(NOW + 1), device(NOW + 2), device()
        look = [("look",)]
        self.begun(*devices)
        self.assertEqual(self.ended(*devices, slept=1.0, now=NOW + 0.5), [0, look, look, look])
        for at, dues in ((NOW + 1, 1), (NOW + 2, 2)):
            ticked = [*look, ("tick", at)]
            found = [0, *[ticked] * dues, *[look] * (3 - dues)]
            self.assertEqual(self.ended(*devices, slept=1.0, now=at), found)
        # As one that began since, before those that were known of.
        early = device(NOW - 1)
        self.assertEqual(self.ended(early, slept=1.0), [0, look])
        self.assertEqual(self.ended(early, slept=0), [0, [*look, ("tick", NOW)]])

    def test_raised(self) -> None:
        """
        What a device raises keeps back no timer of another.
        """

        def progress() -> int:
            raise ValueError("a user's")

        broken, other = device(finds=True), device(NOW, finds=True)
        broken.progress = progress
        self.begun(broken, other)
        self.assertRaises(ValueError, self.ended, broken, other, slept=1.0)
        self.assertEqual(other.said, [("look",), ("tick", NOW)])

    def test_late(self) -> None:
        """
        A deadline before all that were known of ends the sleep of another thread.
        """
        self.begun(device(NOW + 2))
        found = [self.turn.isLate(device(due)) for due in (None, NOW + 3, NOW + 2, NOW + 1)]
        self.assertEqual(found, [False, False, False, True])


class OthersTests(SynchronousTestCase):
    """
    L{turn.Others}: by a clock of the test's.
    """

    def setUp(self) -> None:
        self.process, self.thread = 0, 0
        self.patch(turn, "process_time_ns", lambda: self.process)
        self.patch(turn, "thread_time_ns", lambda: self.thread)
        self.others = turn.Others()

    def used(self, seconds: float, own: float = 0.0) -> None:
        """
        The process has used a CPU for so many seconds; for C{own} of them it was this thread.
        """
        self.process += round(seconds * 1e9)
        self.thread += round(own * 1e9)

    def look(self, now: float) -> bool:
        """
        Look; return what was found.
        """
        self.others.look(now)
        self.assertEqual(self.others.until, now + turn.LOOK_SECONDS)
        return self.others.areWorking

    def test_look(self) -> None:
        """
        Others work if they have used more than a small share of a CPU since the last look; this thread,
        however busy, is none of them.
        """
        # All that a process has done before: nothing beside the time that the clock shows.
        self.used(1.0, 1.0)
        self.assertFalse(self.look(1000.0))
        now = 1000.0
        for own, other, expected in [
            (0.1, 0.0, False),
            (0.1, 0.0016, True),
            (0.0, 0.1, True),
            (0.1, 0.0015, False),
            (0.0, 0.0, False),
        ]:
            self.used(own + other, own)
            now += 0.1
            self.assertIs(self.look(now), expected, (own, other))

    def test_young(self) -> None:
        """
        Each thread looks for itself; the first look of one is at what happened since the last of any.
        """
        self.look(1000.0)
        self.used(0.1)
        found: list[bool] = []

        def look(now: float) -> None:
            thread = Thread(target=lambda: found.append(self.look(now)))
            thread.start()
            thread.join(HANG_SECONDS)

        look(1000.1)
        # It is the one that has used all that was used since then.
        self.used(0.1, 0.1)
        look(1000.2)
        self.assertEqual(found, [True, False])
        # Of this thread's own look: half of the time there was another one.
        self.thread = 0
        self.assertTrue(self.look(1000.2))
