"""
Tests of C{ib-ipoib} itself: its exit status, signals, and what it says where something is missing.
"""

from __future__ import annotations

import os
import signal
import subprocess

from tests.support.captures import TSHARK
from tests.support.waiting import HANG_SECONDS, waitUntil
from tests.tun.lab import TunTestCase


class RunTests(TunTestCase):
    """
    C{ib-ipoib run}.
    """

    def ended(self, *command: str, node: str | None = None) -> tuple[int, str]:
        """
        @return: the exit status of C{ib-ipoib run}, negative for a signal, and all that it and the command
            said.
        """
        arguments = ("run", "shm0", "10.9.0.1/24", f"--tun={node or self.node}", "--name=ip0", "--", *command)
        done = subprocess.run(
            self.tool(*arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=HANG_SECONDS,
        )
        return done.returncode, done.stdout

    def test_namespace(self) -> None:
        """
        The command is the same user, without capabilities, with lo, the interface and the route of multicast.
        """
        status, said = self.ended(
            "sh", "-c", "id -u; grep CapEff /proc/self/status; ip -o address; ip route; ping -q -c1 127.0.0.1"
        )
        self.assertEqual(status, 0, said)
        self.assertEqual(said.split()[:3], ["54321", "CapEff:", "0000000000000000"])
        for words in ("127.0.0.1/8", "10.9.0.1/24 brd 10.9.0.255", "inet6 fe80::", "224.0.0.0/4 dev ip0"):
            self.assertIn(words, said)
        self.assertEqual(said.count("inet6 fe80::"), 1)

    def test_status(self) -> None:
        """
        The command's exit status, or the signal that ended it; 127 where there is none, 126 where it cannot
        run.
        """
        self.assertEqual(self.ended("sh", "-c", "exit 7"), (7, ""))
        self.assertEqual(self.ended("sh", "-c", "kill -KILL $$"), (-signal.SIGKILL, ""))
        self.assertEqual(self.ended("sh", "-c", "kill -SEGV $$"), (-signal.SIGSEGV, ""))
        self.assertEqual(self.ended("/none")[0], 127)
        self.assertEqual(self.ended("/etc/passwd")[0], 126)

    def test_signals(self) -> None:
        """
        SIGTERM goes to the command; SIGINT, which a terminal sends to both, is the command's alone.
        """
        # nohup(1) ignores it for all its children, and then no shell traps it.
        self.addCleanup(signal.signal, signal.SIGHUP, signal.signal(signal.SIGHUP, signal.SIG_DFL))
        arguments = ("run", "shm0", "10.9.0.1/24", f"--tun={self.node}", "--")
        for number, script in (
            (signal.SIGTERM, "trap 'echo term; exit 3' TERM; echo up; while :; do sleep 0.1; done"),
            (signal.SIGHUP, "trap 'echo term; exit 3' HUP; echo up; while :; do sleep 0.1; done"),
        ):
            process = self.started(self.tool(*arguments, "sh", "-c", script), stdout=subprocess.PIPE)
            assert process.stdout is not None
            self.assertEqual(process.stdout.readline(), b"up\n")
            process.send_signal(signal.SIGINT)
            process.send_signal(number)
            self.assertEqual(process.stdout.read(), b"term\n")
            self.assertEqual(process.wait(HANG_SECONDS), 3)

    def test_missing(self) -> None:
        """
        What is missing is said by name, and the status is 125.
        """
        node = self.directory / "closed"
        os.mknod(node, 0o600 | 0o020000, os.makedev(10, 200))
        file = self.directory / "file"
        file.touch(0o666)
        file.chmod(0o666)
        for name, words in (
            (str(node), f"ib-ipoib: {node} has mode 0600"),
            ("/none", "ib-ipoib: /none does not exist"),
            (str(file), "ib-ipoib: ip0 was not made"),
        ):
            status, said = self.ended("true", node=name)
            self.assertEqual((status, said.count("\n")), (125, 1), said)
            self.assertIn(words, said)

    def test_limit(self) -> None:
        """
        Where there may be no user namespaces, the setting is named.
        """
        # In a user namespace of the test, whose limit it is.
        script = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"'
        command = self.tool("run", "shm0", "10.9.0.1/24", f"--tun={self.node}", isRoot=True)
        said = subprocess.run(
            ["unshare", "--user", "--map-root-user", "sh", "-c", script, "sh", *command, "--", "true"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=HANG_SECONDS,
        )
        self.assertEqual(said.returncode, 125, said.stdout)
        self.assertIn("user.max_user_namespaces is 0", said.stdout)


class UpTests(TunTestCase):
    """
    C{ib-ipoib up}.
    """

    def test_netns(self) -> None:
        """
        The administrator's interface in a namespace with a name: it is there while the process is.
        """
        name = self.directory.name
        subprocess.run(["ip", "netns", "add", name], check=True)
        self.addCleanup(subprocess.run, ["ip", "netns", "delete", name], check=True)
        arguments = ("up", "shm0", "10.9.0.1/24", f"--netns={name}", f"--tun={self.node}", "--name=ip0")
        process = self.started(self.tool(*arguments, isRoot=True), stdout=subprocess.PIPE)
        assert process.stdout is not None
        self.assertRegex(
            process.stdout.readline().decode(), r"^ip0: 10\.9\.0\.1/24 fe80::\S+/64 mtu \d+ on shm0\n$"
        )

        def links() -> str:
            listed = subprocess.run(
                ["ip", "-n", name, "-o", "address"], stdout=subprocess.PIPE, text=True, check=True
            )
            return listed.stdout

        self.assertIn("10.9.0.1/24", links())
        process.send_signal(signal.SIGTERM)
        process.wait(HANG_SECONDS)
        waitUntil(lambda: "ip0" not in links())

    def test_noRight(self) -> None:
        """
        Without CAP_NET_ADMIN it says so, and without such a namespace.
        """
        for arguments, words in (
            ((), "this needs CAP_NET_ADMIN"),
            (("--netns=none",), "there is no network namespace none"),
        ):
            said = subprocess.run(
                self.tool("up", "shm0", "10.9.0.1/24", f"--tun={self.node}", *arguments),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=HANG_SECONDS,
            )
            self.assertEqual(said.returncode, 1)
            self.assertIn(words, said.stdout)


class DemoTests(TunTestCase):
    """
    C{ib-demo ipoib}.
    """

    def test_shown(self) -> None:
        """
        Ping, iperf3 and ssh succeed; ARP and the broadcast group's join are in the capture, which Wireshark
        reads.
        """
        file = self.home / "demo.pcapng"
        command = self.user(self.python, "-m", "twisted_ib.tools.demo.demo", "ipoib")
        shown = subprocess.run(
            [*command, f"--tun={self.node}", f"--capture={file}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=2 * HANG_SECONDS,
        )
        self.assertEqual(shown.returncode, 0, shown.stdout)
        for words in (
            "3 packets transmitted, 3 received",
            "65500 bytes from 10.9.0.1",
            "join ff12:401b:ffff::ffff:ffff",
            "ARP who has 10.9.0.1? tell 10.9.0.2",
            "iperf Done.",
            "logged in: 10.9.0.2",
        ):
            self.assertIn(words, shown.stdout)
        if TSHARK:
            listed = subprocess.run(
                [TSHARK, "-r", str(file), "-Y", "_ws.malformed"], capture_output=True, check=True
            )
            self.assertEqual(listed.stdout, b"")
