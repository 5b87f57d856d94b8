"""
What becomes of a test whose guest does not answer: it is repeated once, with a guest that is booted anew.
And of one that does not end: it fails at its own limit, whatever the others have taken.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import Any

from twisted.trial.itrial import IReporter
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from tests.support.waiting import HANG_SECONDS

#: How long one test may take once its guest is there, seconds: several of its waits, each L{HANG_SECONDS}.
LIMIT_SECONDS = 5 * HANG_SECONDS


@implementer(IReporter)
class Recorder:
    """
    A reporter that keeps what one run of a test has to say.
    """

    def __init__(self) -> None:
        self._calls: list[tuple[str, tuple[Any, ...]]] = []

    def startTest(self, test: SynchronousTestCase) -> None:
        """
        Nothing: the test begins once, also where it is repeated.
        """

    def stopTest(self, test: SynchronousTestCase) -> None:
        """
        Nothing, either.
        """

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name not in IReporter:
            raise AttributeError(name)
        return lambda *arguments: self._calls.append((name, arguments))

    @property
    def failures(self) -> list[str]:
        """
        How the test failed, in a line each.
        """
        return [
            " ".join(arguments[1].getErrorMessage().split())
            for name, arguments in self._calls
            if name in ("addError", "addFailure")
        ]

    def replay(self, result: Any) -> None:
        """
        Say it to another reporter.
        """
        for name, arguments in self._calls:
            getattr(result, name)(*arguments)


def runWithRepetition(
    test: SynchronousTestCase, run: Callable[[Any], None], silence: Callable[[], str | None], result: Any
) -> None:
    """
    Run a test, and once more if its guest does not answer after the first time.  Only the last run counts.

    @param run: runs the test, and says what happened to the reporter that it is given.
    @param silence: says why no answer of the guest can be expected; L{None} while it answers.
    @param result: the reporter.
    """
    result.startTest(test)
    recorder = Recorder()
    run(recorder)
    reason = silence()
    if reason is not None:
        said = f"{test.id()}: {reason}: the guest is booted anew, and the test repeated."
        print(said, *recorder.failures, file=sys.stderr, flush=True)
        recorder = Recorder()
        run(recorder)
    recorder.replay(result)
    result.stopTest(test)


def limit(test: SynchronousTestCase, seconds: float) -> None:
    """
    Have a test fail that has not come to its end, with its cleanups, after so long.  It is
    interrupted where it waits: by SIGALRM.
    """

    def ended(*ignored: object) -> None:
        raise test.failureException(f"the test has not ended in {seconds:.0f} s")

    test.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, ended))
    test.addCleanup(signal.setitimer, signal.ITIMER_REAL, 0)
    signal.setitimer(signal.ITIMER_REAL, seconds)
