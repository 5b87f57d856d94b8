"""
Tests of C{rpoll}, C{rselect} and C{repoll_wait} by programs in C.
"""

from __future__ import annotations

from pathlib import Path

from tests.verbs.c.library import run
from tests.verbs.c.test_calls import ProgramTestCase
from twisted_ib import limits


class OtherTests(ProgramTestCase):
    """
    C{polled.c}: descriptors that are no rsockets.
    """

    def test_others(self) -> None:
        """
        They end the wait at once, by an end that is closed, too; what nobody waits for does not.
        """
        self.passes("polled.c")

    def test_sets(self) -> None:
        """
        C{repolled.c}: sets of descriptors, as many as L{limits.RSOCKET_POLLS}.
        """
        self.assertEqual(limits.RSOCKET_POLLS, 256)
        self.passes("repolled.c")

    def passes(self, name: str) -> None:
        """
        Run a program, which says what is wrong.
        """
        program = self.compiled(Path(__file__).with_name(name), "librdmacm.so.1")
        result = run(program, TWISTED_IB_DEVICE="shm0")
        self.assertEqual((result.stdout, result.stderr, result.returncode), ("", "", 0))
