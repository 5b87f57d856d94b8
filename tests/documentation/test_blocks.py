"""
Tests that each block of code in the documentation works.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from configparser import ConfigParser
from importlib.util import find_spec
from pathlib import Path

from twisted.internet import reactor
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.tap import Options

from tests.documentation.pages import PAGES, ROOT, blocks, blocksOf, programs
from tests.support.rundirectory import ownRunDirectory
from tests.support.waiting import HANG_SECONDS
from twisted_ib.hca.device.registry import parseRules

#: Blocks of commands that succeed by themselves.
ALONE = {
    "ib-devinfo\nib-devinfo -v --json\nib-ss --why\n",
    "ib-ss --why\n",
    "ib-policy check connect 127.0.0.1:8080\n",
    "ib-policy check connect 127.0.0.1:8080\nib-policy check listen 127.0.0.1:8080\n",
}
#: Servers and their clients.
PAIRS = {
    "twistd --nodaemon --pidfile= --reactor=ib web --listen=sdp:8080 --path=.\n": (
        "ib-get http://127.0.0.1:8080/ --endpoint sdp:127.0.0.1:8080 -o /tmp/listing.html\n"
    ),
    "ib-perf send\n": "ib-perf send 127.0.0.1 -a\n",
    "ib-run -m http.server 8000\n": (
        "ib-run -c \"import urllib.request as u; print(len(u.urlopen('http://127.0.0.1:8000/').read()))\"\n"
    ),
    "ib-ping -s -a 127.0.0.1\n": "ib-ping -c -a 127.0.0.1 -C 10 -V\n",
}
#: First words of commands that C{.ci/run} tries, or a test beside their program, or that need root, a network
#: or minutes.  Of these only the names are checked.
NAMED = {"pip", "python3", "python", "ib-demo", "twistd", "install", "export", "podman", "podman-compose"}
NAMED |= {"apt-get", "opensm", "ibnetdiscover", "perfquery"}


class ProgramTestCase(SynchronousTestCase):
    """
    Python programs.
    """

    def setUp(self) -> None:
        """
        Have them meet where no other process is, without the user's rules.
        """
        home = self.mktemp()
        os.mkdir(home)
        self.environment = dict(os.environ, PYTHONPATH=str(ROOT), HOME=os.path.abspath(home))
        self.environment["TWISTED_IB_RUN_DIR"] = ownRunDirectory(self)

    def run_(self, program: str) -> str:
        """
        Run a program until it ends.

        @return: what it wrote.
        """
        ended = subprocess.run(
            [sys.executable, "-c", program],
            cwd="/",
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=HANG_SECONDS,
        )
        return ended.stdout


class ProgramTests(ProgramTestCase):
    """
    The programs that a newcomer starts with; the others run in L{tests.soak.test_documentation}.
    """

    def test_quickstart(self) -> None:
        """
        The first one is a server, of which the second one is a client; without it the client says so.
        """
        (server, nothing), (client, expected) = (
            (program.text, said) for program, said in programs() if program.page == "quickstart.md"
        )
        self.assertIsNone(nothing)
        self.assertIn("nobody listens on SDP 127.0.0.1:7000", self.run_(client))
        listening = server.replace("(Echo))", "(Echo)).addCallback(lambda port: print('ready', flush=True))")
        serving = subprocess.Popen(
            [sys.executable, "-c", listening],
            cwd="/",
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(serving.communicate)
        self.addCleanup(serving.kill)
        assert serving.stdout is not None
        self.assertEqual(serving.stdout.readline(), "ready\n")
        self.assertEqual(self.run_(client), expected)


class CommandTestCase(SynchronousTestCase):
    """
    Command lines.
    """

    def setUp(self) -> None:
        """
        Put the commands of the checkout where a shell finds them.
        """
        self.metadata = ConfigParser()
        self.metadata.read(ROOT / "setup.cfg")
        scripts = self.metadata["options.entry_points"]["console_scripts"].split("\n")
        entries = dict(re.split(" = ", each) for each in scripts if each)
        entries["twistd"] = "twisted.scripts.twistd:run"
        self.directory = Path(self.mktemp()).resolve()
        self.directory.mkdir()
        for name, entry in entries.items():
            module, function = entry.split(":")
            path = self.directory / name
            path.write_text(
                f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
                f"from {module} import {function}\nsys.exit({function}())\n"
            )
            path.chmod(0o700)
        path = f"{self.directory}:{os.environ['PATH']}"
        self.environment = dict(os.environ, PATH=path, HOME=str(self.directory), PYTHONPATH=str(ROOT))
        self.environment["TWISTED_IB_RUN_DIR"] = ownRunDirectory(self)

    def end(self, commands: str) -> None:
        """
        Run commands in a shell, which have to succeed.
        """
        ended = subprocess.run(
            ["sh", "-ec", commands],
            cwd=self.directory,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=HANG_SECONDS,
        )
        self.assertEqual(ended.returncode, 0, f"{commands}\n{ended.stdout}")


class CommandTests(CommandTestCase):
    """
    Those that need no server, and the names in all; the others run in L{tests.soak.test_documentation}.
    """

    def test_alone(self) -> None:
        """
        Those that need nothing succeed.
        """
        lines = {line for block in ALONE for line in block.splitlines()}
        self.end("\n".join(sorted(lines)))

    def test_eachIsTried(self) -> None:
        """
        There is no other block of commands; the modules and extras of those that are not run exist, and
        C{twistd} knows their options.
        """
        tried = ALONE | set(PAIRS) | set(PAIRS.values())
        found = blocks("sh")
        self.assertEqual(tried - {block.text for block in found}, set())
        for block in found:
            if block.text in tried:
                continue
            for line in re.split(r"\n| && ", block.text.strip()):
                words = shlex.split(line)
                while re.match(r"[A-Z_]+=", words[0]):
                    del words[0]
                command = words[0].rpartition("/")[2]
                where = f"{block}: {line}"
                if command not in NAMED:
                    self.assertIn(command, self.metadata["options.entry_points"]["console_scripts"], where)
                for extra in re.findall(r"\[([a-z,]+)\]", line):
                    self.assertLessEqual(
                        set(extra.split(",")), set(self.metadata["options.extras_require"]), where
                    )
                if words[1:2] == ["-m"] and words[2].split(".")[0] in ("tests", "benchmarks"):
                    self.assertTrue(find_spec(words[2]), where)
                if "web" in words:
                    Options().parseOptions(words[words.index("web") + 1 :])


class OtherBlockTests(SynchronousTestCase):
    """
    Endpoints, rules and the rest.
    """

    def test_languages(self) -> None:
        """
        Each block is in a language that a test here knows.
        """
        for page in PAGES:
            for block in blocksOf(page):
                isKnown = block.language in ("endpoint", "ini", "python", "rules", "sh", "text")
                self.assertTrue(isKnown or block.language == "{toctree}", str(block))

    def test_rules(self) -> None:
        """
        Rules are valid.
        """
        found = blocks("rules")
        self.assertTrue(found)
        for block in found:
            parseRules(block.text, str(block))

    def test_endpoints(self) -> None:
        """
        Endpoints are those of a client or a server.
        """
        found = [line for block in blocks("endpoint") for line in block.text.splitlines()]
        self.assertTrue(found)
        for line in found:
            isClient = line.startswith("tls:") or re.match(r"\w+:[0-9.]+\.[0-9]+:", line)
            (clientFromString if isClient else serverFromString)(reactor, line)

    def test_units(self) -> None:
        """
        Files of systemd have the form and name options of C{twistd} that it knows.
        """
        [unit, temporary] = blocks("ini")
        parser = ConfigParser(strict=False, interpolation=None)
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        parser.read_string(unit.text)
        command = shlex.split(parser["Service"]["ExecStart"])
        Options().parseOptions(command[command.index("web") + 1 :])
        self.assertEqual(
            parser["Service"]["Environment"],
            f"TWISTED_IB_RUN_DIR=/run/{parser['Service']['RuntimeDirectory']}",
        )
        kind, path, mode, *_ = temporary.text.split()
        self.assertEqual((kind, path, mode), ("d", "/run/twisted_ib", "1770"))
