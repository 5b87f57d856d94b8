"""
A coroutine run on a reactor of its own, for tests that are made for every reactor.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from twisted.internet.defer import Deferred

from twisted_ib.hca.channel import channelsOf


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
        failures: list[Any] = []

        def begin() -> None:
            coroutine: Coroutine[Any, Any, None] = steps(reactor)
            done = Deferred.fromCoroutine(coroutine)
            done.addErrback(failures.append)
            done.addBoth(lambda ignored: reactor.stop())

        reactor.callWhenRunning(begin)
        this.runReactor(reactor, timeout=20)
        for failure in failures:
            failure.raiseException()
        for channel in channelsOf(reactor):
            used = channel.device.inUse()
            this.assertEqual((used["qp"], used["pd"], used["mr"]), (0, 0, 0))
