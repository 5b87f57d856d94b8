"""
The interpreter's own tests of connections and listeners, on the classes here; those of queues, and of the
other ways to start processes, take minutes: C{python -m tests.suites.multiprocessing} runs all.
"""

from __future__ import annotations

from pathlib import Path
from sysconfig import get_path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.suites.multiprocessing.__main__ import CASES, RUN, results
from tests.support.waiting import HANG_SECONDS

_NAMES = ("TestConnection", "TestListener", "TestListenerClient", "TestPicklingConnections", "TestPoll")


class InterpreterTests(SynchronousTestCase):
    """
    They find no difference.
    """

    def test_connections(self) -> None:
        """
        All of connections and listeners pass with C{fork}.
        """
        self._pass(CASES, [f"WithProcesses{each}" for each in _NAMES])

    def test_run(self) -> None:
        """
        So they do where C{ib-run --queues} puts the classes in place, and those of simple queues.
        """
        self._pass(RUN, [*(f"WithProcesses{each}" for each in _NAMES), "TestSimpleQueue"])

    def _pass(self, ours: str, names: list[str]) -> None:
        # Not by an import: a worker of trial has a package of this name on its path.
        if not (Path(get_path("stdlib")) / "test" / "_test_multiprocessing.py").exists():
            raise SkipTest("the interpreter has no tests of its own")
        found = results("fork", ours, names, HANG_SECONDS)
        self.assertGreater(len(found), 20)
        self.assertEqual({name: found[name] for name in found if found[name] not in ("ok", "0")}, {})
