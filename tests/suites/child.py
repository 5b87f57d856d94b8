"""
Run some tests and write down what became of each.

The arguments are a reactor's short name, its class (Twisted's own parameterised tests are aimed at it; C{-}
for other projects), the sets of L{exclusions<tests.suites.exclusions>} that hold or the project in which
classes are widened, with commas between (or C{-}), the file for the results, and the names to load.  With
C{only} before the class, no other reactor's tests are there.  Each line of the file is a JSON list:
C{"ran", id}, C{kind, id, text} for a result, or C{"ways", counts} at the end.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

from twisted.application.reactors import installReactor
from twisted.trial import util
from twisted.trial.reporter import Reporter
from twisted.trial.runner import DestructiveTestSuite, TestLoader, TrialRunner

from tests.suites.exclusions import SETS, WIDER, leaveOut, widen

#: Trial's default timeout of a test, seconds.
TEST_SECONDS = 30.0
#: The reactor whose place in Twisted's list another takes.
EPOLL = "twisted.internet.epollreactor.EPollReactor"


class Recorder(Reporter):
    """
    Writes results as they come, so that those before a crash are there.
    """

    output: Any = None

    def _record(self, *what: Any) -> None:
        """
        Write one line.
        """
        self.output.write(json.dumps(what) + "\n")
        self.output.flush()

    def startTest(self, test: Any) -> None:
        """
        A test begins.
        """
        super().startTest(test)
        self._record("ran", test.id())

    def addSuccess(self, test: Any) -> None:
        """
        It passed.
        """
        super().addSuccess(test)
        self._record("ok", test.id(), "")

    def addError(self, test: Any, error: Any) -> None:
        """
        It raised, or left something behind.
        """
        super().addError(test, error)
        self._record("failed", _name(test), str(error))

    def addFailure(self, test: Any, fail: Any) -> None:
        """
        It failed.
        """
        super().addFailure(test, fail)
        self._record("failed", _name(test), str(fail))

    def addSkip(self, test: Any, reason: Any) -> None:
        """
        It was left out.
        """
        super().addSkip(test, reason)
        self._record("skipped", _name(test), str(reason))

    def addExpectedFailure(self, test: Any, error: Any, todo: Any = None) -> None:
        """
        It failed as it says it does.
        """
        super().addExpectedFailure(test, error, todo)
        self._record("ok", test.id(), "expected failure")

    def addUnexpectedSuccess(self, test: Any, todo: Any = None) -> None:
        """
        It passed though it says it does not.
        """
        super().addUnexpectedSuccess(test, todo)
        self._record("failed", test.id(), "unexpected success")


def _name(test: Any) -> str:
    """
    @return: The test's name; a module that cannot be loaded has one, too.
    """
    return str(test.id())


def countWays() -> Counter[str]:
    """
    Count from now on what carries the connections that C{connectTCP} of C{ib} reactors makes.

    @return: How many by C{"sdp"} and C{"tcp"}, and of the latter by the reason why not the former.
    """
    from twisted_ib.configuration.words import CONNECT
    from twisted_ib.switch.switch import Switch

    ways: Counter[str] = Counter()
    settled = Switch.settled

    def counted(switch: Any, role: str, why: Any, host: str, port: int) -> None:
        if role == CONNECT:
            ways[why.provider] += 1
            if why.fallback is not None:
                ways[why.fallback.kind] += 1
        settled(switch, role, why, host, port)

    Switch.settled = counted  # type: ignore[method-assign]
    return ways


def aim(kind: str) -> None:
    """
    Aim the parameterised tests.

    @param kind: The class that takes the place of Twisted's reactor with epoll; behind C{only}, it is
        the only one.
    """
    from twisted.internet.test.reactormixins import ReactorBuilder

    only, _, name = kind.rpartition(" ")
    reactors = [EPOLL] if only else ReactorBuilder._reactors
    ReactorBuilder._reactors = [name if each == EPOLL else each for each in reactors]


def main() -> None:
    """
    Do what the arguments say.
    """
    short, kind, left, output, *names = sys.argv[1:]
    installReactor(short)
    if kind != "-":
        aim(kind)
    util.DEFAULT_TIMEOUT_DURATION = TEST_SECONDS
    for each in left.split(",") if left != "-" else ():
        if each in SETS:
            leaveOut(SETS[each], names)
        else:
            widen({name: other for name, other in WIDER.items() if name.startswith(f"{each}.")})
    ways = countWays() if short == "ib" else Counter()
    loader = TestLoader()
    loader.suiteFactory = DestructiveTestSuite
    suite = loader.loadByNames(names, recurse=True)
    with open(output, "w") as Recorder.output:
        result: Any = TrialRunner(Recorder, workingDirectory=f"{output}.trial").run(suite)
        result._record("ways", ways)


if __name__ == "__main__":
    main()
