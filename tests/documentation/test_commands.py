"""
Tests for manual pages and completions, which C{python -m docs.commands} makes.
"""

from __future__ import annotations

import re
import shutil
import subprocess

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from docs.commands import SHARE, commands, files
from tests.support.waiting import HANG_SECONDS


class CommandsTests(SynchronousTestCase):
    """
    The folder C{share}.
    """

    def completed(self, *words: str) -> set[str]:
        """
        @return: the words that bash offers for the last one of a command line.
        """
        name = words[0].replace("-", "_")
        path = SHARE / "bash-completion" / "completions" / words[0]
        line = " ".join(f"'{word}'" for word in words)
        script = (
            f'. {path}; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _{name}; echo "${{COMPREPLY[@]}}"'
        )
        ended = subprocess.run(
            ["bash", "-c", script], capture_output=True, text=True, check=True, timeout=HANG_SECONDS
        )
        return set(ended.stdout.split())

    def test_made(self) -> None:
        """
        They are what is made now, and nothing else is there.
        """
        there = {str(path.relative_to(SHARE)): path for path in SHARE.rglob("*") if path.is_file()}
        expected = files()
        self.assertEqual(set(there), set(expected))
        for name, text in expected.items():
            self.assertEqual(there[name].read_text(), text, "python -m docs.commands makes it")

    def test_names(self) -> None:
        """
        Each page has a NAME line, as lexgrog(1) wants it: the command, and one sentence.
        """
        for parser in commands():
            page = (SHARE / "man" / "man1" / f"{parser.prog}.1").read_text()
            name = parser.prog.replace("-", r"\-")
            self.assertTrue(re.search(rf"^\.SH NAME\n{re.escape(name)} \\- [a-zA-Z]\S* .*[^.]$", page, re.M))

    def test_bash(self) -> None:
        """
        Options, their values and subcommands are completed.
        """
        if shutil.which("bash") is None:
            raise SkipTest("no bash: it is in Debian's package bash")
        self.assertEqual(self.completed("ib-ss", "--wa"), {"--watch"})
        self.assertEqual(self.completed("ib-run", "--reactor", "ib"), {"ib", "ib-asyncio"})
        self.assertEqual(self.completed("ib-policy", "ch"), {"check"})
        self.assertEqual(self.completed("ib-run", "--config", "x"), set())
