"""
Run some of Twisted's tests and write down what became of each.

The arguments are a reactor's short name, its class, the device that TCP is redirected to (or C{-}),
the file for the results, and the names to load.  Each line of the file is a JSON list: C{"ran", id},
C{kind, id, text} for a result, or C{"carried", number} at the end.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from twisted.application.reactors import installReactor
from twisted.trial import util
from twisted.trial.reporter import Reporter
from twisted.trial.runner import DestructiveTestSuite, TestLoader, TrialRunner

from tests.suites.exclusions import BY_NAME, SOCKETS, leaveOut
from tests.suites.redirect import Redirection

#: What trial gives a test that says nothing else, seconds.
TEST_SECONDS = 60.0
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
    @return: The test's name; a module that can not be loaded has one, too.
    """
    return str(test.id())


def main() -> None:
    """
    Do what the arguments say.
    """
    short, kind, device, output, *names = sys.argv[1:]
    installReactor(short)
    from twisted.internet.test.reactormixins import ReactorBuilder

    ReactorBuilder._reactors = [kind if each == EPOLL else each for each in ReactorBuilder._reactors]
    util.DEFAULT_TIMEOUT_DURATION = TEST_SECONDS
    if kind != EPOLL:
        leaveOut(BY_NAME)
        leaveOut(SOCKETS)  # By default, too, connections inside the process go over SDP.
    redirection = None
    if device != "-":
        redirection = Redirection(device)
        redirection.begin()
    loader = TestLoader()
    loader.suiteFactory = DestructiveTestSuite
    suite = loader.loadByNames(names, recurse=True)
    with open(output, "w") as Recorder.output:
        result: Any = TrialRunner(Recorder, workingDirectory=f"{output}.trial").run(suite)
        result._record("carried", redirection.carried if redirection else 0)


if __name__ == "__main__":
    main()
