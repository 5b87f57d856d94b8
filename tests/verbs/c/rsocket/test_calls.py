"""
Tests of the calls of rsockets, by a program in C that is compiled for TCP's, too.
"""

from __future__ import annotations

from pathlib import Path

from tests.verbs.c.library import run
from tests.verbs.c.test_calls import ProgramTestCase

PROGRAM = Path(__file__).with_name("called.c")


class CallTests(ProgramTestCase):
    """
    C{called.c}.
    """

    def test_asTCP(self) -> None:
        """
        Connections, octets, flags, options, ends and errors are those of TCP's sockets.
        """
        said = []
        for options in ("-DKERNEL",), ("librdmacm.so.1",):
            result = run(self.compiled(PROGRAM, *options), TWISTED_IB_DEVICE="shm0")
            self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)
            said.append(result.stdout.splitlines())
        self.assertEqual(said[1], said[0])
