"""
Tests of C{rpoll} and C{rselect} by a program in C.
"""

from __future__ import annotations

from pathlib import Path

from tests.verbs.c.library import run
from tests.verbs.c.test_calls import ProgramTestCase


class OtherTests(ProgramTestCase):
    """
    C{polled.c}: descriptors that are no rsockets.
    """

    def test_others(self) -> None:
        """
        They end the wait at once, by an end that is closed, too; what nobody waits for does not.
        """
        program = self.compiled(Path(__file__).with_name("polled.c"), "librdmacm.so.1")
        result = run(program, TWISTED_IB_DEVICE="shm0")
        self.assertEqual((result.stdout, result.stderr, result.returncode), ("", "", 0))
