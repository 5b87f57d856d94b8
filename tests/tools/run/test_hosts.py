"""
Tests for C{ib-run --hosts}: what each host gets, what is said of it, and how all end.
"""

from __future__ import annotations

import io
import os
import select
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from tests.support.commands import refusal as refusalOf
from tests.support.waiting import HANG_SECONDS
from tests.tools.run.case import RunTestCase
from twisted_ib import limits
from twisted_ib.settings import RUN_DIR, RUN_HOST, RUN_HOSTS
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

#: On the first host: start a command of the shell on the second, whose own program has ended.
_STARTS = """
import os, subprocess, sys
if os.environ["TWISTED_IB_HOST"] == "0":
    address = os.environ["TWISTED_IB_HOSTS"].split()[1]
    on = [sys.executable, "-m", "twisted_ib.tools.run", "-q", "--on", address]
    said = 'echo $TWISTED_IB_HOST $(basename $TWISTED_IB_RUN_DIR) $TWISTED_IB_DEVICES "a  b"'
    subprocess.run([*on, said], check=True)
    own = "import os; print('host', os.environ['TWISTED_IB_HOST'])"
    subprocess.run([*on, sys.executable, "-c", f'"{own}"'], check=True)
"""
#: The LID of an adapter while the other has one, too, and the name of its run directory.
_ADAPTERS = """
import os, select
from pathlib import Path
from twisted_ib.hca.verbs import Context
own = Path(os.environ["TWISTED_IB_RUN_DIR"])
lid = Context(name=os.environ["TWISTED_IB_DEVICE"]).query_port(1).lid
Path(f"lid-{os.environ['TWISTED_IB_HOST']}").touch()
while len(list(Path().glob("lid-*"))) < 2:
    select.select([], [], [], 0.02)
print(own.name, lid, flush=True)
"""
#: Behind a program that ignores SIGCHLD, as some that start others do: what they start inherits that.
_IGNORES = """
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
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
            ("--hosts", "2", "--subnet", "2", "x"),
        ):
            self.assertIn("--hosts", refusalOf(self, parseArguments, *words))
        self.assertIn("--host", refusalOf(self, parseArguments, "--host=2", "x"))
        said = refusalOf(self, parseArguments, "--on", "10.77.0.1", "-m", "x")
        self.assertIn("--on starts a command of the shell", said)

    def test_on(self) -> None:
        """
        All behind the host and the options are words of the command.
        """
        options, asked = parseArguments(["-q", "--on", "10.77.0.2", "x", "-y", "--on"])
        self.assertEqual((options.on, options.once), ("10.77.0.2", ["-q"]))
        self.assertEqual([asked, *options.arguments], ["x", "-y", "--on"])

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

    def test_on(self) -> None:
        """
        There is no such host, or there are none.
        """
        for known, reason in (
            ("10.77.0.1 10.77.0.2", "they are 10.77.0.1, 10.77.0.2"),
            ("", "this is none of ib-run --hosts"),
        ):
            self.patch(os, "environ", {RUN_HOSTS: known})
            error = self.assertRaises(StartError, hosts.becomeOn, "10.77.0.3", [], ["x"])
            self.assertEqual(str(error), f"there is no host 10.77.0.3: {reason}")

    def test_onWithoutDirectories(self) -> None:
        """
        The hosts are known, but not their run directories: there is no variable, or it is the program's own.
        A folder of the host's number where the program is does not count.
        """
        os.mkdir("0")
        self.addCleanup(os.rmdir, "0")
        own = self.mktemp()
        os.mkdir(own)
        self.patch(os, "execvpe", mock.Mock())
        for given in ({}, {RUN_DIR: ""}, {RUN_DIR: own}):
            self.patch(os, "environ", {RUN_HOSTS: "10.77.0.1", **given})
            error = self.assertRaises(StartError, hosts.becomeOn, "10.77.0.1", [], ["x"])
            self.assertEqual(
                str(error),
                f"{RUN_DIR} is {given.get(RUN_DIR, '')!r}, which leads to no run directory of 10.77.0.1: "
                "start this with the value that ib-run --hosts gave its program",
            )

    def test_onBesideSlash(self) -> None:
        """
        A run directory with a slash at its end has the same others beside it, and a subnet's is the same.
        """
        folder = Path(self.mktemp()).resolve()
        for own, other in (("0", "1"), ("subnet", "subnet")):
            (folder / own).mkdir(parents=True)
            (folder / other).mkdir(exist_ok=True)
            self.patch(os, "environ", {RUN_HOSTS: "10.77.0.1 10.77.0.2", RUN_DIR: f"{folder / own}//"})
            with mock.patch.object(os, "execvpe") as become:
                hosts.becomeOn("10.77.0.2", [], ["x"])
            environment = become.call_args.args[2]
            self.assertEqual((environment[RUN_DIR], environment[RUN_HOST]), (str(folder / other), "1"))

    def test_onApart(self) -> None:
        """
        In namespaces a command never runs in its own: nsenter(1) refuses where the other's is not there.
        """
        folder = Path(self.mktemp()).resolve()
        for number in "01":
            (folder / number).mkdir(parents=True)
        (folder / "0.net").symlink_to("/proc/self/ns/net")
        self.patch(os, "environ", {RUN_HOSTS: "10.77.0.1 10.77.0.2", RUN_DIR: str(folder / "0")})
        with mock.patch.object(os, "execvpe") as become:
            hosts.becomeOn("10.77.0.2", [], ["x"])
        self.assertEqual(become.call_args.args[1][:2], ["nsenter", f"--net={folder / '1.net'}"])

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
        self.addCleanup(self.hosts.close)

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

    def test_release(self) -> None:
        """
        A program in a namespace begins when all hosts are there, and not if they never come.
        """
        folder = Path(self.mktemp()).resolve()
        folder.mkdir()
        unshare = folder / "unshare"
        unshare.write_text('#!/bin/sh\nshift\nexec "$@"\n')
        unshare.chmod(0o755)
        self.patch(hosts, "_connect", lambda number, pid: None)
        self.patch(hosts, "_HOST", hosts._HOST.replace(hosts._HOST.splitlines()[3], 'exec "$@"'))
        for isReleased in (False, True):
            begun = Hosts({"PATH": f"{folder}:{os.environ['PATH']}"}, True)
            self.addCleanup(begun.close)
            for number in range(2):
                where = folder / f"{isReleased}{number}"
                begun.start(
                    number, "10.77.0.1", str(where), ["sh", "-c", f"ls {folder}/{isReleased}*; echo {number}"]
                )
            if isReleased:
                begun.release()
            else:
                while begun._waiting:
                    os.close(begun._waiting.pop())
            self.assertEqual(begun.run(), 0 if isReleased else 1)
            said = [line for line in self.said.getvalue().splitlines() if line.endswith(b".net")]
            links = [f"{folder}/True{number}.net".encode() for number in range(2)]
            wanted = [b"%d: %s" % (number, each) for number in range(2) for each in links]
            self.assertEqual(sorted(said), wanted if isReleased else [])

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
        processes = list(self.hosts._processes)
        self.hosts.close()
        self.assertEqual([each.wait(HANG_SECONDS) for each in processes], [-signal.SIGKILL, 5])

    def test_signal(self) -> None:
        """
        A program that a signal has ended has the status of shells.
        """
        self.start("import os; os.kill(os.getpid(), 15)")
        self.assertEqual(self.hosts.run(), 128 + 15)

    def leave(self, script: str) -> None:
        """
        Start a script, C{left} in which is a command that writes C{late} to descriptor 9, which this process
        reads, if it is not ended.
        """
        fifo = os.path.abspath(self.mktemp())
        os.mkfifo(fifo)
        self.left = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, self.left)
        left = f"left() {{ sleep {HANG_SECONDS:.0f} && echo late >&9; }}; exec 9>{fifo}; {script}"
        self.hosts.start(0, "127.0.0.1", "/0", ["sh", "-c", left])

    def assertEnded(self) -> None:
        """
        All that C{left} has started has ended, and has not been waited for.
        """
        os.set_blocking(self.left, True)
        self.assertEqual(os.read(self.left, 16), b"")

    def test_leftByFailed(self) -> None:
        """
        What a program has started is ended with the others when it fails, though the program itself has ended
        and its child still has its output.
        """
        self.leave("left & exit 7")
        self.assertEqual(self.hosts.run(), 7)
        self.assertEnded()

    def test_leftStubborn(self) -> None:
        """
        So it is if it takes no SIGTERM.
        """
        self.patch(hosts, "_END_SECONDS", 0.01)
        self.leave("trap '' TERM; left & exit 7")
        self.assertEqual(self.hosts.run(), 7)
        self.assertEnded()

    def test_leftByEnded(self) -> None:
        """
        What has no output any more is ended with the hosts, after programs that succeeded.
        """
        self.leave("{ exec >/dev/null 2>&1; left; } & exit 0")
        self.assertEqual(self.hosts.run(), 0)
        self.hosts.close()
        self.assertEnded()

    def test_leftElsewhere(self) -> None:
        """
        What has a session of its own, and the output of a program that failed, is not waited for; the last
        that was said is not lost.
        """
        self.patch(hosts, "_END_SECONDS", 0.01)
        fifo = os.path.abspath(self.mktemp())
        os.mkfifo(fifo)
        self.addCleanup(os.close, os.open(fifo, os.O_RDWR))
        waits = f"timeout {HANG_SECONDS:.0f} cat {fifo}; echo late"
        self.start(f"""
import subprocess
print("last", end="", flush=True)
subprocess.Popen(["sh", "-c", {waits!r}], start_new_session=True)
raise SystemExit(3)
""")
        self.assertEqual(self.hosts.run(), 3)
        self.hosts.close()
        said = self.said.getvalue().splitlines()
        self.assertEqual(said, [b"0: ended with status 3; the other hosts are ended", b"0: last"])


class CommandTests(RunTestCase):
    """
    The command, on namespaces and on addresses.
    """

    def both(self, program: str = _PROGRAM, place: str = "--hosts") -> list[str]:
        """
        @return: the lines of two hosts, sorted.
        """
        (self.folder / "program.py").write_text(program)
        process = self.running("-q", place, "2", "program.py")
        out, error = process.communicate()
        self.assertEqual((process.returncode, error), (0, ""), out)
        return sorted(out.splitlines())

    def refuseNamespaces(self) -> None:
        """
        Have C{unshare} fail.
        """
        folder = self.folder / "bin"
        folder.mkdir()
        (folder / "unshare").write_text("#!/bin/sh\nexit 1\n")
        (folder / "unshare").chmod(0o755)
        self.environment["PATH"] = f"{folder}:{self.environment.get('PATH', '')}"

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
        self.refuseNamespaces()
        self.assertEqual(
            self.both(),
            [
                "0: 0",
                "0: 0 roce0 roce0=roce:127.77.0.1",
                "1: 1",
                "1: 1 roce0 roce0=roce:127.77.0.2",
            ],
        )

    def test_commandInNamespace(self) -> None:
        """
        A host's program starts a command on the other, also after that one's program has ended: it has that
        host's network and run directory.
        """
        reason = refusal()
        if reason:
            self.skipTest(f"there may be no namespaces here: {reason}")
        self.assertEqual(self.both(_STARTS), ["0: 1 1 roce0=roce:10.77.0.2 a  b", "0: host 1"])

    def test_commandWithoutLibraries(self) -> None:
        """
        Without the extra C{[c]} a command is started, too.
        """
        (self.folder / "sitecustomize.py").write_text("import sys\nsys.modules['cffi'] = None\n")
        self.environment["PYTHONPATH"] = f"{self.folder}:{self.environment['PYTHONPATH']}"
        self.refuseNamespaces()
        self.assertEqual(self.both(_STARTS), ["0: 1 1 roce0=roce:127.77.0.2 a  b", "0: host 1"])

    def test_terminated(self) -> None:
        """
        SIGTERM and SIGHUP end the programs, as SIGINT does.
        """
        fifo = self.folder / "fifo"
        os.mkfifo(fifo)
        waits = f"import select; held = open({str(fifo)!r}, 'w')\nprint('ready', flush=True)\n"
        waits += f"select.select([], [], [], {HANG_SECONDS})"
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            held = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
            self.addCleanup(os.close, held)
            process = self.running("-q", "--subnet", "2", "-c", waits)
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(2)]
            self.assertEqual(sorted(lines), ["0: ready\n", "1: ready\n"])
            process.send_signal(number)
            self.assertEqual((*process.communicate(), process.returncode), ("", "", 128 + number))
            # Its last writer is gone.
            self.assertEqual(select.select([held], [], [], HANG_SECONDS / 2), ([held], [], []))
            self.assertEqual(os.read(held, 1), b"")

    def test_ignored(self) -> None:
        """
        The status of a program that fails is not lost where SIGCHLD is ignored at the start.
        """
        run = ("-m", "twisted_ib.tools.run", "-q", "--subnet", "1", "-c", "raise SystemExit(4)")
        process = self.started("-c", _IGNORES, *run)
        out, error = process.communicate()
        said = "0: ended with status 4; the other hosts are ended\n"
        self.assertEqual((process.returncode, out, error), (4, said, ""))

    def test_subnet(self) -> None:
        """
        Two adapters of one subnet, in one run directory, each with a LID of its own.
        """
        lines = [line.split() for line in self.both(_ADAPTERS, "--subnet")]
        self.assertEqual([line[:2] for line in lines], [["0:", "subnet"], ["1:", "subnet"]])
        first, second = (int(line[2]) for line in lines)
        self.assertTrue(first and second)
        self.assertNotEqual(first, second)

    def test_commandInSubnet(self) -> None:
        """
        It has C{ib0}, as the host has.
        """
        self.assertEqual(self.both(_STARTS, "--subnet"), ["0: 1 subnet ib0=ib a  b", "0: host 1"])
