"""
What tests wait for: an event. A limit of time only guards them against hanging, for L{HANG_SECONDS}; what is
waited for by any other means is given that limit too (C{tests/test_waiting.py}).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from tests.internet.remote.standing import standing, tried, waitingAt
from twisted_ib.internet.readers import channelsOf

_Reading = TypeVar("_Reading")


def patience(environment: Mapping[str, str]) -> float:
    """
    @return: The factor of limits of time, for a busy machine: C{TWISTED_IB_TEST_PATIENCE}.

    @raise ValueError: It is not a number of 1 or more.
    """
    factor = float(environment.get("TWISTED_IB_TEST_PATIENCE", "1"))
    if not factor >= 1:
        raise ValueError(f"TWISTED_IB_TEST_PATIENCE is {factor}, not 1 or more")
    return factor


PATIENCE = patience(os.environ)
#: After this a test is taken for one that hangs.
HANG_SECONDS = 60.0 * PATIENCE


def waitUntil(holds: Callable[[], object], turn: Callable[[], object] = lambda: time.sleep(0.001)) -> None:
    """
    Wait for something.

    @param holds: Whether it is so.
    @param turn: What is done between two looks; it sleeps by itself if it has nothing to do.

    @raise AssertionError: It has not become so in L{HANG_SECONDS}.
    """
    end = time.monotonic() + HANG_SECONDS
    while not holds():
        assert time.monotonic() < end, "it does not happen"
        turn()


def readUntil(
    read: Callable[[], _Reading], holds: Callable[[_Reading], object], seconds: float = 0.001
) -> _Reading:
    """
    Read something until it is as it should be.

    @param holds: Whether a reading is so.
    @param seconds: How long it sleeps between two readings.

    @return: The reading that is so.

    @raise AssertionError: None has been in L{HANG_SECONDS}.
    """
    found = read()

    def again() -> None:
        nonlocal found
        time.sleep(seconds)
        found = read()

    waitUntil(lambda: holds(found), again)
    return found


async def becomes(reactor: Any, holds: Callable[[], object]) -> None:
    """
    Wait for something, while a reactor runs.

    @param holds: Whether it is so.

    @raise AssertionError: It has not become so in L{HANG_SECONDS}.
    """
    end = reactor.seconds() + HANG_SECONDS
    while not holds():
        assert reactor.seconds() < end, "it does not happen"
        await deferLater(reactor, 0.001)


def runToEnd(test: Any, reactor: Any, steps: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """
    Run a coroutine on a reactor, and raise what it raises.  If it hangs, the error says where, and how things
    stand there and at the other end of the test's C{carrier}.

    @param test: A L{ReactorBuilder<twisted.internet.test.reactormixins.ReactorBuilder>}.
    """
    ends: list[Any] = []
    begun: list[Any] = []
    stood: list[str] = []

    def begin() -> None:
        begun.append(steps())
        done = Deferred.fromCoroutine(begun[0])
        done.addBoth(ends.append)
        done.addBoth(end)

    def end(ignored: object) -> None:
        if looking.active():
            looking.cancel()
        reactor.stop()

    def look() -> None:
        looks = [partial(waitingAt, each) for each in begun] + [partial(standing, reactor)]
        beside = getattr(getattr(test, "carrier", None), "standing", None)
        for each in [*looks, *([] if beside is None else [beside])]:
            stood.extend(tried(each))

    reactor.callWhenRunning(begin)
    # Before the time by which the reactor is stopped, which begins later.
    looking = reactor.callLater(HANG_SECONDS, look)
    try:
        test.runReactor(reactor, timeout=HANG_SECONDS)
    except Exception as error:
        if not stood:
            raise
        raise type(error)("\n".join([str(error), *stood])) from None
    test.assertEqual(len(ends), 1, "it did not come to its end")
    if isinstance(ends[0], Failure):
        ends[0].raiseException()


class Driven:
    """
    A mixin for L{twisted.internet.test.reactormixins.ReactorBuilder}.
    """

    def drive(self, steps: Any) -> None:
        """
        Run a coroutine on a reactor, which must be clean at the end.
        """
        this: Any = self
        reactor = this.buildReactor()
        runToEnd(this, reactor, lambda: steps(reactor))
        for channel in channelsOf(reactor):
            used = channel.device.inUse()
            this.assertEqual((used["qp"], used["pd"], used["mr"]), (0, 0, 0))
