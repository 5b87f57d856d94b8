"""
Tests for C{ib-run --hosts}: what each host gets, what is said of it, and how all end.
"""

from __future__ import annotations

import io
import signal
import sys
from types import SimpleNamespace

from twisted.trial.unittest import SynchronousTestCase

from tests.support.commands import refusal as refusalOf
from tests.tools.run.case import RunTestCase
from twisted_ib import limits
from twisted_ib.tools.run import hosts
from twisted_ib.tools.run.hosts import Hosts, addresses, refusal
from twisted_ib.tools.run.program import StartError
from twisted_ib.tools.run.run import parseArguments

#: Says which host it is, and whether its port of RoCE is its own: that of the other host is another.
_PROGRAM = """
import os, socket
number, addresses = int(os.environ["TWISTED_IB_HOST"]), os.environ["TWISTED_IB_HOSTS"].split()
own = socket.socket(type=socket.SOCK_DGRAM)
own.bind((addresses[number], 4791))
print(number, os.environ["TWISTED_IB_DEVICE"], os.environ["TWISTED_IB_DEVICES"], flush=True)
print(os.path.basename(os.environ["TWISTED_IB_RUN_DIR"]), flush=True)
"""


class CommandLineTests(SynchronousTestCase):
    """
    Which words it takes, and which each host gets.
    """

    def test_words(self) -> None:
        """
        All but the number of hosts is each host's.
        """
        for words in (
            ["-q", "--hosts", "3", "x", "--hosts", "9"],
            ["-q", "--hosts=3", "x", "--hosts", "9"],
        ):
            options, asked = parseArguments(words)
            self.assertEqual((options.hosts, asked), (3, "x"))
            self.assertEqual(options.once, ["-q", "x", "--hosts", "9"])

    def test_refused(self) -> None:
        """
        There is a bound, each host has its own device, and there is something to start.
        """
        for words in (
            ("--hosts", str(limits.RUN_HOSTS + 1), "x"),
            ("--hosts", "0", "x"),
            ("--hosts", "2", "--device", "shm0", "x"),
            ("--hosts", "2", "--check"),
        ):
            self.assertIn("--hosts", refusalOf(self, parseArguments, *words))

    def test_addresses(self) -> None:
        """
        Each host has one, of a network or of loopback.
        """
        self.assertEqual(addresses(2, True), ["10.77.0.1", "10.77.0.2"])
        self.assertEqual(addresses(2, False), ["127.77.0.1", "127.77.0.2"])


class RefusalTests(SynchronousTestCase):
    """
    Why hosts are no namespaces.
    """

    def test_programs(self) -> None:
        """
        A program that is not there is named, with its package.
        """
        self.patch(hosts, "which", lambda name: None if name == "ip" else f"/bin/{name}")
        self.assertEqual(refusal(), "there is no ip, of Debian's iproute2")

    def test_trial(self) -> None:
        """
        The last line of what is tried, or that it was refused; nothing where it worked.
        """
        self.patch(hosts, "which", lambda name: name)
        for script, reason in (
            ("echo first >&2; echo last >&2; exit 1", "last"),
            ("exit 1", "refused"),
            ("echo warning >&2", ""),
        ):
            self.patch(hosts, "_NAMESPACES", ("sh", "-c", script))
            self.assertEqual(refusal(), reason)

    def test_ip(self) -> None:
        """
        What ip(8) says is in the error.
        """
        failed = SimpleNamespace(returncode=2, stderr="RTNETLINK answers: File exists\n")
        self.patch(hosts.subprocess, "run", lambda *arguments, **options: failed)
        error = self.assertRaises(StartError, hosts._ip, "link", "add")
        self.assertEqual(str(error), "ip link add: RTNETLINK answers: File exists")


class HostsTests(SynchronousTestCase):
    """
    Programs of hosts that are addresses, and their ends.
    """

    def setUp(self) -> None:
        """
        Nothing runs, and what is said is kept.
        """
        self.said = io.BytesIO()
        self.patch(sys, "stdout", SimpleNamespace(buffer=self.said))
        self.hosts = Hosts({}, False)
        self.addCleanup(self.hosts.end, signal.SIGKILL)

    def start(self, *codes: str) -> None:
        """
        Start programs of Python, each on a host.
        """
        for number, code in enumerate(codes):
            self.hosts.start(number, "127.0.0.1", f"/{number}", [sys.executable, "-c", code])

    def test_lines(self) -> None:
        """
        Each line has the host's number: one without an end as well, empty ones, and of both outputs; a line
        that is too long is said in parts.
        """
        self.start(
            "import os; print(os.environ['TWISTED_IB_HOST'], os.environ['TWISTED_IB_RUN_DIR']); print()",
            "import sys; sys.stderr.write('end')",
        )
        self.assertEqual(self.hosts.run(), 0)
        self.assertEqual(sorted(self.said.getvalue().splitlines()), [b"0: ", b"0: 0 /0", b"1: end"])
        self.said.seek(0)
        self.said.truncate()
        self.start("print('x' * 200000, end='')")
        self.assertEqual(self.hosts.run(), 0)
        parts = self.said.getvalue().split(b"\n")
        self.assertEqual(b"".join(part.removeprefix(b"0: ") for part in parts).count(b"x"), 200000)
        self.assertLess(max(map(len, parts)), 2 * hosts._PIECE + 4)

    def test_failure(self) -> None:
        """
        The first failure ends the others, one that takes no SIGTERM too, and is the exit status.
        """
        self.patch(hosts, "_END_SECONDS", 0.01)
        stubborn = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
while True:
    time.sleep(60)
"""
        self.start(stubborn)
        while b"ready" not in self.said.getvalue():
            for key, _ in self.hosts._selector.select():
                self.hosts._hear(key.fileobj, key.data)  # type: ignore[arg-type]
        self.hosts.start(1, "127.0.0.1", "/1", [sys.executable, "-c", "raise SystemExit(5)"])
        self.assertEqual(self.hosts.run(), 5)
        self.assertIn(b"1: ended with status 5; the other hosts are ended", self.said.getvalue())
        self.assertEqual([each.poll() for each in self.hosts._processes], [-signal.SIGKILL, 5])

    def test_signal(self) -> None:
        """
        A program that a signal has ended has the status of shells.
        """
        self.start("import os; os.kill(os.getpid(), 15)")
        self.assertEqual(self.hosts.run(), 128 + 15)


class CommandTests(RunTestCase):
    """
    The command, on namespaces and on addresses.
    """

    def both(self, *words: str) -> list[str]:
        """
        @return: the lines of two hosts, sorted.
        """
        (self.folder / "program.py").write_text(_PROGRAM)
        process = self.running("-q", "--hosts", "2", *words, "program.py")
        out, error = process.communicate()
        self.assertEqual((process.returncode, error), (0, ""), out)
        return sorted(out.splitlines())

    def test_namespaces(self) -> None:
        """
        Two hosts, each with RoCE at its own address and a run directory of its own.
        """
        reason = refusal()
        if reason:
            self.skipTest(f"there may be no namespaces here: {reason}")
        self.assertEqual(
            self.both(),
            [
                "0: 0",
                "0: 0 roce0 roce0=roce:10.77.0.1",
                "1: 1",
                "1: 1 roce0 roce0=roce:10.77.0.2",
            ],
        )

    def test_addresses(self) -> None:
        """
        Where C{unshare} is refused hosts are addresses of loopback.
        """
        folder = self.folder / "bin"
        folder.mkdir()
        (folder / "unshare").write_text("#!/bin/sh\nexit 1\n")
        (folder / "unshare").chmod(0o755)
        self.environment["PATH"] = f"{folder}:{self.environment.get('PATH', '')}"
        self.assertEqual(
            self.both(),
            [
                "0: 0",
                "0: 0 roce0 roce0=roce:127.77.0.1",
                "1: 1",
                "1: 1 roce0 roce0=roce:127.77.0.2",
            ],
        )
