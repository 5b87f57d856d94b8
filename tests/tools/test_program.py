"""
Tests for L{twisted_ib.tools.program}: what all commands have.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from configparser import ConfigParser
from contextlib import redirect_stdout
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.support.commands import CommandTestCase, programOf
from tests.support.waiting import HANG_SECONDS
from twisted_ib.tools.program import ArgumentParser

#: The commands, each with a call that prints something and needs nothing else.
COMMANDS = {
    "demo.demo": ["--help"],
    "get": ["--help"],
    "perf.perf": ["--help"],
    "ping.ping": ["--help"],
    "policy": ["check", "connect", "127.0.0.1:1"],
    "show.devinfo": ["-v"],
    "show.ss": [],
    "run.run": ["--help"],
}


class CommandLineTests(SynchronousTestCase):
    """
    The parsers.
    """

    def test_parsers(self) -> None:
        """
        The module of each command makes its parser, from which others make manual pages and completions.
        """
        metadata = ConfigParser()
        metadata.read(Path(__file__).parents[2] / "setup.cfg")
        scripts = metadata["options.entry_points"]["console_scripts"].strip().splitlines()
        for name, module, _ in (re.split(" = |:", line) for line in scripts):
            parser = import_module(module).commandLine()
            self.assertIsInstance(parser, ArgumentParser)
            self.assertEqual(parser.prog, name)
            self.assertIn("--version", parser.format_help())

    def test_pingCompletes(self) -> None:
        """
        A shell completes what C{ib-ping} can be, and the programs' names.
        """
        parser: Any = import_module("twisted_ib.tools.ping.ping").commandLine()
        options = {name: action for action in parser._actions for name in action.option_strings}
        self.assertEqual(list(options["--as"].choices), ["rping", "ucmatose", "udaddy", "mckey"])
        self.assertIn("--rds", options)


class CommandsTests(CommandTestCase):
    """
    Each of the commands.
    """

    def outcome(self, command: str, *arguments: str, output: int | None) -> tuple[int, str]:
        """
        @param output: the descriptor of its standard output.
        @return: its status, and its complaints.
        """
        line = [sys.executable, "-c", programOf(command), *arguments]
        ended = subprocess.run(
            line, stdout=output, stderr=subprocess.PIPE, env=self.environment, text=True, timeout=HANG_SECONDS
        )
        return ended.returncode, ended.stderr

    def version(self, command: str) -> str:
        """
        @return: what it prints for C{--version}, after which it ends with status 0.
        """
        said = io.StringIO()
        with redirect_stdout(said):
            ended = self.assertRaises(
                SystemExit, import_module(f"twisted_ib.tools.{command}").main, ["--version"]
            )
        self.assertEqual(ended.code, 0)
        return said.getvalue()

    def test_version(self) -> None:
        """
        C{--version} is one line with the version of the package.
        """
        line = [sys.executable, "-c", programOf("policy"), "--version"]
        ended = subprocess.run(line, capture_output=True, text=True, timeout=HANG_SECONDS)
        self.assertEqual((ended.returncode, ended.stdout, ended.stderr), (0, self.version("policy"), ""))
        for command in COMMANDS:
            name, number = self.version(command).split()
            self.assertTrue(name.startswith("ib-"))
            self.assertEqual(number, version("twisted-ib"))

    def test_closed(self) -> None:
        """
        A command whose output nobody reads any more ends without a word.
        """
        # With it argparse drops the error of its help, and the status is 0.
        self.environment.pop("PYTHONUNBUFFERED", None)
        for command, arguments in COMMANDS.items():
            reading, writing = os.pipe()
            os.close(reading)
            try:
                status, complaints = self.outcome(command, *arguments, output=writing)
            finally:
                os.close(writing)
            self.assertEqual((status, complaints), (1, ""), command)

    def test_full(self) -> None:
        """
        One whose output cannot be written says so in one line.
        """
        full = os.open("/dev/full", os.O_WRONLY)
        self.addCleanup(os.close, full)
        status, complaints = self.outcome("show.devinfo", output=full)
        self.assertEqual((status, complaints), (1, "standard output: No space left on device\n"))
