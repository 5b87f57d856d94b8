"""
What is said of the interpreter's own tests on the classes here; C{tests/soak} runs some of them, and
C{python -m tests.suites.multiprocessing} all.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.suites.multiprocessing.__main__ import worse


class WorseTests(SynchronousTestCase):
    """
    L{worse}.
    """

    def test_worse(self) -> None:
        """
        What was good and is not is found, and so is what has not run.
        """
        before = {"a": "ok", "b": "ok", "c": "FAIL", "d": "ok", "end": "1"}
        after = {"a": "ok", "b": "FAIL", "c": "FAIL", "end": "1"}
        self.assertEqual(worse(before, after), ["b: FAIL", "d: None"])
