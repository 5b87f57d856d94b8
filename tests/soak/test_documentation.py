"""
The rest of L{tests.documentation.test_blocks}.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.documentation.pages import programs
from tests.documentation.test_blocks import PAIRS, CommandTestCase, ProgramTestCase
from tests.support.ownaddress import ownAddress
from tests.support.waiting import waitUntil


class ProgramTests(ProgramTestCase):
    """
    Python programs.
    """

    def test_alone(self) -> None:
        """
        Each prints what stands after it, and nothing where nothing does; RDS over TCP has a port of its own
        on an address of its own.
        """
        said = {
            program.text: (program, text or "")
            for program, text in programs()
            if program.page != "quickstart.md"
        }
        self.assertGreater(len(said), 4)
        for program, expected in said.values():
            isOverTCP = 'device="tcp"' in program.text
            text = program.text.replace("127.0.0.1", ownAddress(1)) if isOverTCP else program.text
            self.assertEqual(self.run_(text), expected, str(program))


class CommandTests(CommandTestCase):
    """
    Command lines.
    """

    def test_pairs(self) -> None:
        """
        Each client has a server; C{ib-perf} measures for a moment only, and files stay out of C{/tmp}.
        """
        for server in PAIRS:
            serving = subprocess.Popen(
                ["sh", "-c", f"exec {server}"],
                cwd=self.directory,
                env=self.environment,
                stdout=subprocess.DEVNULL,
            )
            self.addCleanup(serving.wait)
            self.addCleanup(serving.kill)
        directory = Path(self.environment["TWISTED_IB_RUN_DIR"])
        waitUntil(lambda: len([*directory.glob("svc-*")]) == len(PAIRS))
        clients = "".join(PAIRS.values())
        self.end(clients.replace(" -a\n", " -a -D 0.001\n").replace("/tmp/", ""))
