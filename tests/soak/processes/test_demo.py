"""
C{ib-demo} on a terminal.
"""

from __future__ import annotations

import contextlib
import os
import subprocess

from tests.support.waiting import HANG_SECONDS
from tests.tools.demo.test_demo import COMMAND, DemoTestCase

#: The steps that take a second or more on a slow machine.
STEPS = (
    "Waiting for twistd",
    "Waiting for the second server",
    "Measuring round trips",
    "Measuring a file",
    "Fetching from the web server",
)


class TerminalTests(DemoTestCase):
    """
    Progress.
    """

    def test_terminal(self) -> None:
        """
        On a terminal each step shows that it goes on, with rich and without, and takes its bar back.
        """
        for hasRich in (True, False):
            main, terminal = os.openpty()
            self.addCleanup(os.close, main)
            command = (
                COMMAND
                if hasRich
                else [*COMMAND[:2], f"import sys; sys.modules['rich'] = None; {COMMAND[2]}"]
            )
            process = subprocess.Popen(
                command,
                env={**self.environment, "TERM": "xterm", "COLUMNS": "100"},
                stdin=subprocess.DEVNULL,
                stdout=terminal,
                stderr=terminal,
                text=True,
                start_new_session=True,
            )
            os.close(terminal)
            self.addCleanup(self.end, process)
            shown = b""
            # read(2) of a terminal without a process at its other end: EIO.
            with contextlib.suppress(OSError):
                while data := os.read(main, 65536):
                    shown += data
            out = shown.decode()
            self.assertEqual(process.wait(HANG_SECONDS), 0, out)
            for step in STEPS:
                self.assertGreater(out.count(step), 1, (step, out))
            if hasRich:
                # The cursor is shown as often as it was hidden (xterm's DECTCEM).
                self.assertEqual(out.count("\x1b[?25l"), out.count("\x1b[?25h"))
            else:
                self.assertNotIn("\x1b", out)
                for line in out.replace("\r\n", "\n").split("\n"):
                    self.assertFalse([each for each in STEPS if each in line.rpartition("\r")[2]], line)
            self.assertIn("hashes match", out)
            self.leavesNothing(process)
