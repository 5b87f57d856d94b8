"""
Tests of the packet fabric and its transport in virtual time: see L{tests.simulation}.
"""

from __future__ import annotations

import contextlib
import io
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from tests.simulation.__main__ import main
from tests.simulation.kinds import KINDS
from tests.simulation.run import Failure, Run
from tests.simulation.worker import Worker

#: Runs of each kind; C{tests/soak} has 250.
RUNS = 5


class KindTests(SynchronousTestCase):
    """
    L{RUNS} runs of each kind of fault.  L{tests.simulation.worker} and L{Run} have the
    conditions; the message of a failure has the line that makes the run again.
    """


def _test(kind: str) -> None:
    """
    Add the test of one kind.
    """

    def test(self: KindTests) -> None:
        for seed in range(RUNS):
            Run(seed, kind).go()

    test.__doc__ = f"Faults of the kind {kind}."
    setattr(KindTests, f"test_{kind}", test)


for _kind in KINDS:
    _test(_kind)


class RunTests(SynchronousTestCase):
    """
    Runs themselves.
    """

    def test_kinds(self) -> None:
        """
        All kinds are there.
        """
        self.assertEqual(len(KINDS), 16)

    def test_same(self) -> None:
        """
        The same seed gives the same log, byte for byte; another one another.
        """
        for kind in KINDS:
            first, second, other = (Run(seed, kind).go() for seed in (7, 7, 8))
            self.assertEqual("\n".join(first), "\n".join(second), kind)
            self.assertNotEqual(first, other)
            self.assertGreater(len(first), 20)

    def test_replayed(self) -> None:
        """
        A failing run says how to make it again, and so does the command.
        """
        with mock.patch.object(Worker, "check", mock.Mock(side_effect=AssertionError("broken"))):
            failure = self.assertRaises(Failure, Run(5, "loss").go)
            line = "python -m tests.simulation --runs 1 --seed 5 --kind loss"
            self.assertEqual(str(failure), f"AssertionError: broken\n  {line}")
            shown = io.StringIO()
            arguments = ["", *"--runs 2 --seed 5 --kind loss".split()]
            with mock.patch("sys.argv", arguments), contextlib.redirect_stdout(shown):
                self.assertEqual(main(), 1)
            self.assertIn(line, shown.getvalue())
            self.assertIn("2 runs, 2 failed", shown.getvalue())
