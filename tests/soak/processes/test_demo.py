"""
C{ib-demo} to its end, also on a terminal.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess

from tests.support.waiting import HANG_SECONDS
from tests.tools.demo.test_demo import COMMAND, DemoTestCase
from twisted_ib.tools.demo.demo import webArguments

#: The steps that take a second or more on a slow machine.
STEPS = (
    "Waiting for twistd",
    "Waiting for the second server",
    "Measuring round trips",
    "Measuring a file",
    "Fetching from the web server",
)


class WholeTests(DemoTestCase):
    """
    What it prints, exits with and leaves.
    """

    def test_works(self) -> None:
        """
        It prints ranges, says that the hashes match, proposes a command,
        and exits with 0; without a terminal there are no escape codes.
        """
        process = self.start()
        out, err = process.communicate(timeout=HANG_SECONDS)
        self.assertEqual((process.returncode, err), (0, ""), out)
        self.leavesNothing(process)
        for words in ("Round trips of 64 bytes", "SDP, zero copy", "hashes match", "0 to 1.5 times"):
            self.assertIn(words, out)
        for name, unit in (("SDP", "us"), ("TCP NODELAY", "us"), ("TCP", "MB/s"), ("SDP, zero copy", "MB/s")):
            self.assertRegex(out, rf"(?m)^  {name} +[\d.,]+( to [\d.,]+)? {unit}$")
        self.assertNotIn("\x1b", out)
        self.assertNotIn("\r", out)
        tail = "\n".join(out.splitlines()[-5:])
        self.assertRegex(tail, r"ib-get http://\S+ --endpoint sdp:[\d.]+:\d+ -o \S+")
        [line] = [line for line in out.splitlines() if line.startswith("Starting: ")]
        match = re.search(r"sdp:(\d+) .*--path=(\S+)$", line)
        assert match is not None, line
        arguments = webArguments(int(match[1]), match[2])
        self.assertEqual(line, "Starting: twistd " + " ".join(arguments))
        self.assertEqual(sum(argument.startswith("--listen=") for argument in arguments), 2)
        used = re.search(r"SDP has used the device shm0, (\d+) queue pairs and ([\d,]+) messages\.", out)
        assert used is not None, out
        # The round trips, the file in two ways, and the web server.
        self.assertEqual(int(used[1]), 4)
        self.assertGreater(int(used[2].replace(",", "")), 40_000_000 // 65536)


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
