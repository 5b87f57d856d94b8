"""
Tests of L{twisted_ib.reactor.driven} turn by turn, without devices, threads and time.
"""

from __future__ import annotations

import os
import select
from collections import deque
from threading import get_ident
from types import SimpleNamespace
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.support.calls import requireReplaceable
from tests.support.rundirectory import ownRunDirectory
from twisted_ib.drive import process
from twisted_ib.drive.turn import Idle
from twisted_ib.reactor import driven as module
from twisted_ib.reactor.driven import BRIEF_SECONDS, LEARN_TURNS, LEARN_TURNS_ASLEEP, DrivenReactor
from twisted_ib.reactor.loop import EPOLL_EVERY, DeviceLoop

#: What C{monotonic} is ahead of the reactor's clock.
AHEAD = 1000.0


class Drivers:
    """
    The threads that drive a reactor; this one has the lock.
    """

    def __init__(self, log: list[Any]) -> None:
        self.log, self.orphans = log, deque[Any]()
        self.lock = self.lockQueue = None
        self.sleeping, self.busy, self.owner = False, 5, get_ident()

    def own(self) -> None:
        """
        It has the lock again.
        """
        self.log.append("own")

    def leftIdle(self) -> None:
        """
        Nobody waits.
        """

    def threadsBeside(self, now: float) -> int:
        """
        Seven wait.
        """
        return 7


class Loop(SimpleNamespace):
    """
    In the place of the L{DeviceLoop}: it writes down who asks, and answers as it is told.
    """

    def __init__(self, log: list[Any]) -> None:
        polling = SimpleNamespace(woken=lambda: log.append("woken"), hits=1.0)
        super().__init__(turns=0, inThreads=0, polling=polling, quiet=False)
        self.log, self.finds = log, False
        self.calmFor: float | None = None

    def spin(self, reactor: object, channels: object, timeout: float | None) -> bool:
        """
        Poll.
        """
        self.log.append(("spin", timeout))
        return self.finds

    def calm(self, reactor: object) -> float | None:
        """
        What is to be done besides.
        """
        self.log.append("calm")
        return self.calmFor


class Poller:
    """
    In the place of the epoll object, and of the one that C{select.poll} makes.
    """

    def __init__(self, name: str, log: list[Any]) -> None:
        self.name, self.log, self.found = name, log, list[tuple[int, int]]()
        self.happen: Any = lambda: None

    def poll(self, *arguments: float) -> list[tuple[int, int]]:
        """
        Sleep.
        """
        self.log.append((self.name, *arguments))
        self.happen()
        return self.found


class DrivenTestCase(SynchronousTestCase):
    """
    A reactor with devices that write down their calls, in one list.
    """

    def setUp(self) -> None:
        """
        Make it; its clock stands still.
        """
        requireReplaceable(DeviceLoop, "calm")
        requireReplaceable(DrivenReactor, "turn")
        ownRunDirectory(self)
        self.log: list[Any] = []
        self.drivers = Drivers(self.log)
        self.reactor: Any = DrivenReactor(self.drivers)  # type: ignore[arg-type]
        self.addCleanup(self.reactor.dispose)
        self.addCleanup(setattr, self.reactor, "_poller", self.reactor._poller)
        self.poller, self.loop = Poller("epoll", self.log), Loop(self.log)
        vars(self.reactor).update(_poller=self.poller, _loop=self.loop)
        self.patch(self.reactor, "_selectables", {})
        self.now = 50.0
        self.reactor.seconds = lambda: self.now
        self.patch(module, "monotonic", lambda: self.now + AHEAD)
        self.patch(self.reactor, "runUntilCurrent", lambda: self.log.append("calls"))
        self.patch(module, "handlers", SimpleNamespace(aside=self.aside))

    def aside(self, drivers: object, isFirst: bool, call: Any, *arguments: Any) -> Any:
        """
        Sleep without the lock.
        """
        self.assertIs(drivers, self.drivers)
        self.log.append(("aside", isFirst, self.drivers.sleeping, self.drivers.busy))
        return call(*arguments)

    def devices(self, *names: str, packets: bool = False) -> list[Any]:
        """
        Have devices, in their order, that have nothing to do and no deadlines.
        """
        made = []
        for name in names:
            one = SimpleNamespace(name=name, work=0, arms=True, pending=False, looks=False)
            one.traits = SimpleNamespace(packets=packets)

            def said(what: str, key: str, one: Any = one) -> Any:
                def call() -> Any:
                    self.log.append(f"{what} {one.name}")
                    return getattr(one, key)

                return call

            one.fabric = SimpleNamespace(pending=said("pending", "pending"), look=said("look", "looks"))
            one.progress, one.arm = said("progress", "work"), said("arm", "arms")
            one.look, one.deadline, one.device = one.fabric.look, lambda: None, one
            made.append(one)
        self.reactor._channels = tuple(made)
        return made

    def early(self) -> None:
        """
        All has been asked for just now.
        """
        self.reactor._askAt = self.now + AHEAD + BRIEF_SECONDS

    def turn(self, limit: float | None = None, kernel: Any = None) -> tuple[int, list[Any]]:
        """
        @return: What a turn returns, and what was called.
        """
        del self.log[:]
        return self.reactor.turn(limit, kernel), self.log[:]


class TurnTests(DrivenTestCase):
    """
    L{DrivenReactor.turn}.
    """

    def test_begin(self) -> None:
        """
        It runs without having been started, nothing is known, and bounds fit their use.
        """
        reactor = self.reactor
        self.assertIs(reactor._started, True)
        self.assertEqual((reactor._askAt, reactor._idleUntil, reactor._idleTurns), (0.0, 0.0, -1))
        for turns in (LEARN_TURNS, LEARN_TURNS_ASLEEP):
            self.assertEqual(turns & (turns - 1), 0)
        self.assertTrue(0.004 < BRIEF_SECONDS < 0.02)

    def test_found(self) -> None:
        """
        What polling finds amid messages is served, and nothing else is asked for.
        """
        one, other = self.devices("a", "b")
        self.loop.finds = True
        self.early()
        for one.work, other.work, expected in ((2, 3, 5), (0, 0, 1), (4, 0, 4)):
            self.assertEqual(self.turn(3.0), (expected, [("spin", 3.0), "progress a", "progress b"]))
        self.assertEqual(self.loop.turns, 3)

    def test_pending(self) -> None:
        """
        Devices that were polled in vain are looked at, until one has something to do.
        """
        _, other, _ = self.devices("a", "b", "c")
        other.pending = True
        self.early()
        found = [("spin", None), "pending a", "pending b", "progress a", "progress b", "progress c"]
        self.assertEqual(self.turn(), (1, found))

    def test_foundLate(self) -> None:
        """
        Else all has its turn behind the devices: what was found counts, and nobody sleeps.
        """
        (one,) = self.devices("a")
        self.loop.finds = True
        for one.work, expected in ((0, 1), (3, 3)):
            self.reactor._askAt = self.now + AHEAD
            said = [("spin", 9.0), "progress a", "calm", ("epoll", 0, 1), "look a"]
            self.assertEqual(self.turn(9.0), (expected, said))
            self.assertEqual(self.loop.inThreads, 7)

    def test_everyFew(self) -> None:
        """
        One turn of L{EPOLL_EVERY} serves the devices before it polls.
        """
        (one,) = self.devices("a")
        self.early()
        self.loop.turns = EPOLL_EVERY - 2
        self.assertEqual(self.turn()[1][0], ("spin", None))
        self.assertEqual(self.loop.turns, EPOLL_EVERY - 1)
        self.assertEqual(self.turn()[1][:3], ["progress a", "calm", ("spin", None)])
        self.loop.turns, self.loop.finds = EPOLL_EVERY - 1, True
        said = ["progress a", "calm", ("spin", None), "progress a", ("epoll", 0, 1), "look a"]
        self.assertEqual(self.turn(), (1, said))
        one.work, self.loop.turns = 2, EPOLL_EVERY - 1
        self.assertEqual(self.turn(), (2, ["progress a", "calm", ("epoll", 0, 1), "look a"]))

    def test_foundBehind(self) -> None:
        """
        What polling finds behind the devices is served in that turn.
        """
        (one,) = self.devices("a")
        self.loop.turns, self.loop.finds = EPOLL_EVERY - 1, True
        done = [0, 6]
        one.progress = lambda: done.pop(0)
        self.assertEqual(self.turn(None)[0], 6)

    def test_noWait(self) -> None:
        """
        Who does not wait has the devices served, and polls nothing.
        """
        self.devices("a")
        self.early()
        self.assertEqual(self.turn(0), (0, ["progress a", "calm", ("epoll", 0, 1), "look a"]))

    def test_noDevice(self) -> None:
        """
        Without devices epoll sleeps.
        """
        found = ["calm", ("spin", 3.0), ("aside", True, True, 0), ("epoll", 3.0, 1)]
        self.assertEqual(self.turn(3.0), (0, found))

    def test_calls(self) -> None:
        """
        Delayed calls that are due are called, and nobody sleeps behind them.
        """
        self.devices("a")
        self.loop.calmFor = 0.0
        said = [("spin", None), "pending a", "progress a", "calm", "calls", ("epoll", 0, 1), "look a"]
        self.assertEqual(self.turn(), (0, said))
        self.assertEqual(self.reactor._askAt, self.now + AHEAD)

    def test_slept(self) -> None:
        """
        The sleep ends with the limit, or the next delayed call; what came meanwhile is served, and polling
        learns of it.
        """
        (one,) = self.devices("a")
        limits = (None, 4.0, 4.0), (8.0, 4.0, 4.0), (3.0, 4.0, 3.0), (5.0, None, 5.0), (2.0, 0.005, 0.005)
        for limit, self.loop.calmFor, seconds in limits:
            self.reactor._askAt, one.looks, one.work = 0.0, False, 0
            expected = self.loop.calmFor
            self.poller.happen = lambda: vars(one).update(looks=True, work=3)
            worked, said = self.turn(limit)
            self.assertEqual(worked, 3)
            asleep = ["arm a", ("aside", True, True, 0), ("epoll", seconds, 1)]
            self.assertEqual(said[-6:], [*asleep, "look a", "progress a", "woken"])
            ahead = BRIEF_SECONDS if expected is None else min(expected, BRIEF_SECONDS)
            self.assertEqual(self.reactor._askAt, self.now + AHEAD + ahead)

    def test_inVain(self) -> None:
        """
        A sleep that brought nothing is no lesson, nor is what comes where there was no sleep.
        """
        (one,) = self.devices("a")
        self.assertEqual((self.turn(3.0)[0], "woken" in self.log), (0, False))
        self.loop.calmFor, one.looks, one.work = 0.0, True, 2
        self.reactor._askAt = 0.0
        one.progress = iter((0, 2)).__next__
        self.assertEqual((self.turn(3.0)[0], "woken" in self.log), (2, False))

    def test_learn(self) -> None:
        """
        Which connections gain is looked at once in L{LEARN_TURNS} turns, sooner where they sleep.
        """
        learned: list[int] = []
        self.reactor._switch = SimpleNamespace(learn=lambda channels: learned.append(self.loop.turns))
        self.loop.calmFor = 0.0
        for _ in range(2 * LEARN_TURNS + 1):
            self.turn(0)
        self.assertEqual(learned, [LEARN_TURNS, 2 * LEARN_TURNS])
        self.loop.polling.hits = 0.49
        self.loop.turns = 0
        del learned[:]
        for _ in range(2 * LEARN_TURNS_ASLEEP + 1):
            self.turn(0)
        self.assertEqual(learned, [LEARN_TURNS_ASLEEP, 2 * LEARN_TURNS_ASLEEP])


class BriefTests(DrivenTestCase):
    """
    Sleeps amid messages, between which little is asked.
    """

    def brief(self, limit: float | None = None, turns: int = 0) -> tuple[int, list[Any]]:
        """
        @param turns: So many were before.
        @return: What a turn amid messages returns, and what it called behind its looks.
        """
        self.early()
        self.loop.turns = turns
        worked, said = self.turn(limit)
        looks = 1 + len(self.reactor._channels)
        self.assertEqual(said[:1], [("spin", limit)])
        return worked, said[looks:]

    def test_message(self) -> None:
        """
        A message ends it, and polling learns of that.
        """
        _, other = self.devices("a", "b")

        def happen() -> None:
            self.assertTrue(self.reactor.rest.isAsleep)
            other.looks, other.work = True, 4

        self.poller.happen = happen
        for limit, seconds in ((None, BRIEF_SECONDS), (1.0, BRIEF_SECONDS), (0.001, 0.001)):
            other.looks = False
            asleep = ["arm a", "arm b", ("aside", True, True, 0), ("epoll", seconds, 1)]
            self.assertEqual(self.brief(limit), (4, [*asleep, "look a", "look b", "progress b", "woken"]))
            self.assertEqual((self.loop.turns, self.reactor.rest.isAsleep), (1, False))

    def test_nothing(self) -> None:
        """
        Without one the next turn asks for everything.
        """
        self.devices("a")
        asleep = ["arm a", ("aside", True, True, 0), ("epoll", BRIEF_SECONDS, 1)]
        for turns in (0, 1, 2):
            self.assertEqual(self.brief(None, turns), (0, [*asleep, "look a"]))
            self.assertEqual(self.loop.turns, EPOLL_EVERY - 1)

    def test_armedInVain(self) -> None:
        """
        Where one device has something to do nobody sleeps; all are armed, and looked at.
        """
        one, other = self.devices("a", "b")
        for one.arms, other.arms in ((False, True), (True, False)):
            one.looks = other.looks = False
            self.assertEqual(self.brief(), (0, ["arm a", "arm b", "look a", "look b"]))
            one.looks, one.work, other.looks, other.work = True, 3, True, 2
            said = ["arm a", "arm b", "look a", "progress a", "look b", "progress b"]
            self.assertEqual(self.brief(), (5, said))

    def test_packets(self) -> None:
        """
        Acknowledgements of packets leave before it; where something has come there is no sleep.
        """
        one, other = self.devices("a", "b", packets=True)
        said = ["progress a", "arm a", "progress b", "arm b"]
        self.assertEqual(self.brief()[1][:4], said)
        for one.work, other.work in ((2, 0), (0, 2)):
            self.assertEqual(self.brief(), (2, said))
        one.work = other.work = 2
        self.assertEqual(self.brief(), (4, said))

    def test_calls(self) -> None:
        """
        A call that was made since has its turn instead.
        """
        self.devices("a")
        for name in ("_newTimedCalls", "threadCallQueue"):
            self.patch(self.reactor, name, [1])
            self.assertEqual(self.brief()[1][:2], ["progress a", "calm"])
            setattr(self.reactor, name, [])


class SleepTests(DrivenTestCase):
    """
    Sleeps, and what ends them.
    """

    def sleep(self, limit: float, kernel: Any = None) -> list[Any]:
        """
        @return: What was called.
        """
        del self.log[:]
        self.reactor._sleep(limit, kernel)
        return self.log[:]

    def test_lock(self) -> None:
        """
        The lock is free in a sleep, and this thread has it again first.
        """
        aside = "aside", True, True, 0
        self.assertEqual(self.sleep(2.0), [aside, ("epoll", 2.0, 1)])
        self.assertEqual((self.drivers.sleeping, self.drivers.busy), (False, 0))
        self.drivers.owner += 1
        self.assertEqual(self.sleep(2.0), [aside, ("epoll", 2.0, 1), "own"])
        self.drivers.orphans.append(int)
        self.assertEqual(self.sleep(2.0), [aside, ("epoll", 0.0, 1), "own"])
        self.assertEqual(self.sleep(0), [("epoll", 0, 1)])

    def test_late(self) -> None:
        """
        Less than no time, as of a deadline that has passed, is none: epoll would wait for ever.
        """
        self.assertEqual(self.sleep(-1e-9), [("epoll", 0, 1)])
        self.devices("a")
        self.early()
        self.assertEqual(self.turn(-0.5)[1][-3:], ["arm a", ("epoll", 0, 1), "look a"])
        self.reactor._askAt = 0.0
        self.assertEqual(self.turn(-0.5)[1][-3:], ["arm a", ("epoll", 0, 1), "look a"])

    def test_events(self) -> None:
        """
        Descriptors that are ready are served; others are no longer known.
        """
        served: list[Any] = []
        self.patch(self.reactor, "_doReadOrWrite", lambda *event: served.append(event))
        three, four = (SimpleNamespace(logPrefix=lambda: "one") for _ in range(2))
        self.reactor._selectables = {3: three, 4: four}
        self.poller.found = [(3, select.EPOLLIN), (9, select.EPOLLIN), (4, select.EPOLLOUT)]
        self.assertEqual(self.sleep(0), [("epoll", 0, 2)])
        self.assertEqual(served, [(three, 3, select.EPOLLIN), (four, 4, select.EPOLLOUT)])

    def test_kernel(self) -> None:
        """
        Descriptors of the kernel's end a sleep, too; epoll is asked only if it is among them.
        """
        kernel, own = Poller("poll", self.log), (self.reactor.descriptor, select.POLLIN)
        asleep = [("aside", True, True, 0), ("poll", 2000)]
        for kernel.found, others, asked in (
            ([], [], []),
            ([(77, 1)], [(77, 1)], []),
            ([own], [], [("epoll", 0, 1)]),
            ([(77, 1), own], [(77, 1)], [("epoll", 0, 1)]),
        ):
            self.assertEqual(self.sleep(2.0, kernel), asleep + asked)
            self.assertEqual(self.reactor.kernelFound, (kernel, others))
        self.assertEqual(self.sleep(0, kernel), [("epoll", 0, 1)])


class IdleTests(DrivenTestCase):
    """
    L{DrivenReactor.idle}: the devices stay armed between waits of the kernel's.
    """

    def idle(self, limit: float | None = None, result: object = "found") -> tuple[object, list[Any]]:
        """
        @return: What it returns, and what was called.
        """
        del self.log[:]

        def call(seconds: float) -> object:
            self.log.append(round(seconds, 6))
            return result

        return self.reactor.idle(limit, call), self.log[:]

    def test_again(self) -> None:
        """
        Within one turn they are armed once, and the time goes on.
        """
        self.devices("a")
        self.loop.calmFor = 5.0
        aside = "aside", True, True, 0
        self.assertEqual(self.idle(), ("found", ["calm", "arm a", aside, 5.0]))
        self.assertEqual(self.reactor.idleUntil(), self.now + AHEAD + 5.0)
        self.now += 2.0
        self.assertEqual(self.idle(), ("found", [aside, 3.0]))
        self.assertEqual(self.reactor.idleUntil(), self.now + AHEAD + 3.0)
        for limit, seconds in ((2.0, 2.0), (4.0, 3.0)):
            self.assertEqual(self.idle(limit), ("found", [aside, seconds]))
        self.now += 2.5
        self.assertEqual(self.idle(), ("found", [aside, 0.5]))
        self.now += 0.5
        self.assertEqual(self.idle(), (None, ["look a"]))

    def test_since(self) -> None:
        """
        Where somebody has driven them since, or there are others, they are armed again.
        """
        self.devices("a")
        self.loop.calmFor = 5.0
        rest = self.reactor.rest

        def driven() -> None:
            self.loop.turns += 1

        for change in (driven, lambda: self.devices("a"), lambda: rest.disarm(())):
            self.idle()
            self.assertIsNotNone(self.reactor.idleUntil())
            change()
            self.assertIsNone(self.reactor.idleUntil())
            self.assertIn("arm a", self.idle()[1])
            self.assertEqual(self.idle()[1][-1], 5.0)

    def test_nothing(self) -> None:
        """
        They are looked at where the wait has no result, and driven.
        """
        self.devices("a")
        self.loop.calmFor = 5.0
        self.assertEqual(self.idle(result=None)[1][-2:], [5.0, "look a"])
        self.assertFalse(self.reactor.rest.isAsleep)
        self.assertEqual(self.idle(result=0)[0], 0)
        self.assertTrue(self.reactor.rest.isAsleep)

    def test_calls(self) -> None:
        """
        With a call to make there is none.
        """
        self.devices("a")
        self.idle()
        for name in ("_newTimedCalls", "threadCallQueue"):
            setattr(self.reactor, name, [1])
            self.assertEqual(self.idle(), (None, []))
            self.assertIsNone(self.reactor.idleUntil())
            setattr(self.reactor, name, [])
        self.assertIsNotNone(self.reactor.idleUntil())

    def test_deviceComes(self) -> None:
        """
        A device that comes is not armed: nobody waits any longer.
        """
        self.reactor.idling.begin(self.now + AHEAD + 9.0, [])
        self.assertIs(Idle.last, self.reactor.idling)
        self.reactor._poll(())
        self.assertFalse(self.reactor.idling.holds)
        self.assertIsNone(Idle.last)


class Reader:
    """
    A reader of a program's, whose descriptor others close.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def doRead(self) -> None:
        """
        Nothing comes.
        """

    def fileno(self) -> int:
        """
        Its number.
        """
        return self.descriptor

    def logPrefix(self) -> str:
        """
        Its name.
        """
        return "reader"


class ClosedTests(SynchronousTestCase):
    """
    Its clock, and readers whose descriptors a program has closed before they are removed.
    """

    def setUp(self) -> None:
        """
        A reader, which the reactor watches.
        """
        ownRunDirectory(self)
        self.reactor = DrivenReactor(Drivers([]))
        self.addCleanup(self.reactor.dispose)
        number, other = os.pipe()
        self.addCleanup(os.close, other)
        self.number, self.reader = number, Reader(number)
        self.reactor.addReader(self.reader)

    def test_clock(self) -> None:
        """
        It goes by a clock that a program's mocks of C{time} do not reach, of the time of day, which ages are
        shown by.
        """
        # Compiled it is not bound.
        seconds = self.reactor.seconds
        self.assertIs(getattr(seconds, "__wrapped__", seconds), process.time)

    def removed(self) -> None:
        """
        Remove it: the reactor has forgotten it, and the number is free for another reader.
        """
        self.reactor.removeReader(self.reader)
        self.assertNotIn(self.reader, self.reactor.getReaders())
        self.assertEqual(self.reactor.removeAll(), [])
        self.assertNotIn(self.number, self.reactor._reads)

    def test_closed(self) -> None:
        """
        There is nothing of that number.
        """
        os.close(self.number)
        self.removed()

    def test_told(self) -> None:
        """
        The reader says that it has none.
        """
        os.close(self.number)
        self.reader.descriptor = -1
        self.removed()

    def test_other(self) -> None:
        """
        Another file has the number, which an epoll object does not watch, or which it could not.
        """
        for path in os.devnull, os.curdir:
            file = os.open(path, os.O_RDONLY)
            os.dup2(file, self.number)
            os.close(file)
            self.removed()
            os.close(self.number)
            self.setUp()
