"""
A coroutine run on a reactor of its own, for tests that are made for every reactor.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from twisted_ib.internet.readers import channelsOf


def runToEnd(
    test: Any,
    reactor: Any,
    steps: Callable[[], Coroutine[Any, Any, None]],
    timeoutSeconds: float | None = None,
) -> None:
    """
    Run a coroutine on a reactor, and raise what it raises.

    @param test: A L{ReactorBuilder<twisted.internet.test.reactormixins.ReactorBuilder>}.
    @param timeoutSeconds: How long it may take, by default as long as the test.
    """
    ends: list[Any] = []

    def begin() -> None:
        done = Deferred.fromCoroutine(steps())
        done.addBoth(ends.append)
        done.addBoth(lambda ignored: reactor.stop())

    reactor.callWhenRunning(begin)
    test.runReactor(reactor, timeout=timeoutSeconds)
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
        runToEnd(this, reactor, lambda: steps(reactor), 20)
        for channel in channelsOf(reactor):
            used = channel.device.inUse()
            this.assertEqual((used["qp"], used["pd"], used["mr"]), (0, 0, 0))
