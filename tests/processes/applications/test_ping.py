"""
C{ib-ping} as its users run it: two processes, over shared memory.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time

from tests.support.commands import CommandTestCase, begun, programOf
from tests.support.waiting import HANG_SECONDS, PATIENCE

HOST = "127.0.0.1"
#: How long a refused connect may take, in seconds.
SOON = 8 * PATIENCE


class PingTestCase(CommandTestCase):
    """
    A server, which says on which port it listens, and clients.
    """

    program = programOf("ping.ping")

    def setUp(self) -> None:
        """
        Nothing is configured.
        """
        super().setUp()
        self.environment["TWISTED_IB_CONFIG"] = os.devnull
        self.environment.pop("TWISTED_IB_DEVICES", None)

    def begun(self, *arguments: str) -> subprocess.Popen[str]:
        """
        @return: the process of the command.
        """
        return begun(self, self.environment, self.program, *arguments)

    def server(self, *arguments: str) -> tuple[subprocess.Popen[str], str]:
        """
        @return: a server's process, and its port.
        """
        process = self.begun(*arguments, "-p", "0")
        assert process.stderr is not None
        said = process.stderr.readline()
        match = re.fullmatch(r"ib-ping: waits for clients on port (\d+)\n", said)
        assert match is not None, said
        return process, match[1]

    def over(self, process: subprocess.Popen[str]) -> tuple[int, str, str]:
        """
        @return: how a process has ended: status, standard output and standard error.
        """
        out, err = process.communicate(timeout=HANG_SECONDS)
        return process.returncode, out, err

    def assertSoon(self, begin: float) -> None:
        """
        It took no longer than it may, beyond what this machine takes to start a command.
        """
        took = time.monotonic() - begin
        if took > SOON:
            again = time.monotonic()
            self.assertEqual(self.over(self.begun("--help"))[0], 0)
            took -= 2 * (time.monotonic() - again)
        self.assertLess(took, SOON)

    def begins(self, process: subprocess.Popen[str]) -> None:
        """
        Wait until a process prints something.
        """
        assert process.stdout is not None
        self.assertTrue(process.stdout.readline())


class RoundTests(PingTestCase):
    """
    rping.
    """

    def test_sizes(self) -> None:
        """
        Rounds of each size, one client after the other.
        """
        server, port = self.server("-s", "-P", "-V", "-S", "65535")
        for size in ("23", "64", "1000", "5000", "65535"):
            client = self.begun("-c", "-a", HOST, "-p", port, "-C", "30", "-S", size, "-V")
            self.assertEqual(self.over(client), (0, "", ""), size)
        server.send_signal(signal.SIGTERM)
        self.assertEqual(self.over(server), (128 + signal.SIGTERM, "", ""))

    def test_manyAtOnce(self) -> None:
        """
        A persistent server's clients do not wait for each other.
        """
        server, port = self.server("-s", "-P")
        endless = self.begun("-c", "-a", HOST, "-p", port, "-v")
        self.begins(endless)
        # Nobody reads what it prints any more: so it is stopped, within a round or between two.
        for client in [self.begun("-c", "-a", HOST, "-p", port, "-C", "50") for _ in range(2)]:
            self.assertEqual(self.over(client), (0, "", ""))
        endless.kill()
        server.send_signal(signal.SIGINT)
        self.assertEqual(self.over(server)[0], 128 + signal.SIGINT)

    def test_once(self) -> None:
        """
        A server ends with its client; over IPv6, with the client's address given.
        """
        server, port = self.server("-s", "-a", "::1", "-C", "10")
        client = self.begun("-c", "-a", "::1", "-I", "::1", "-p", port, "-C", "10", "-V")
        self.assertEqual((self.over(client), self.over(server)), ((0, "", ""), (0, "", "")))

    def test_refused(self) -> None:
        """
        Nobody listens there: soon one sentence, and a status.
        """
        for server in (None, self.server("-s")[0]):
            begin = time.monotonic()
            found = self.over(self.begun("-c", "-a", HOST, "-p", "7999", "-C", "1"))
            said = "ib-ping: 127.0.0.1 port 7999: connection refused, nobody listens there\n"
            self.assertEqual(found, (1, "", said), server)
            self.assertSoon(begin)

    def test_killedServer(self) -> None:
        """
        A server dies: its client hears of it.
        """
        server, port = self.server("-s", "-v")
        client = self.begun("-c", "-a", HOST, "-p", port)
        self.begins(server)
        server.kill()
        status, _, said = self.over(client)
        self.assertEqual(status, 1)
        self.assertRegex(said, r"\Aib-ping: 127\.0\.0\.1 has disconnected after \d+ rounds\n\Z")

    def test_killedClient(self) -> None:
        """
        A client dies: its server hears of it, within a round or between two.
        """
        server, port = self.server("-s", "-C", "1000000000")
        client = self.begun("-c", "-a", HOST, "-p", port, "-v")
        self.begins(client)
        client.kill()
        status, _, said = self.over(server)
        self.assertEqual(status, 1)
        self.assertRegex(said, r"\Aib-ping: 127\.0\.0\.1 has disconnected (within|after) .*\n\Z")

    def test_interrupted(self) -> None:
        """
        Ctrl-C ends a client in order, and its server with it.
        """
        server, port = self.server("-s")
        client = self.begun("-c", "-a", HOST, "-p", port, "-d")
        self.begins(client)
        time.sleep(0.5)
        client.send_signal(signal.SIGINT)
        self.assertEqual(self.over(client)[::2], (130, ""))
        self.assertIn(self.over(server)[0], (0, 1))

    def test_waiting(self) -> None:
        """
        A server whom nobody calls can be stopped.
        """
        server, _ = self.server("-s")
        server.send_signal(signal.SIGTERM)
        self.assertEqual(self.over(server), (143, "", ""))


class TransferTests(PingTestCase):
    """
    The other programs.
    """

    def both(self, name: str, *options: str) -> None:
        """
        Both ends succeed.
        """
        server, port = self.server("--as", name, "-b", HOST, *options)
        client = self.begun("--as", name, "-s", HOST, "-p", port, *options)
        self.assertEqual([self.over(each)[::2] for each in (client, server)], [(0, ""), (0, "")])

    def test_ucmatose(self) -> None:
        """
        Messages over three connections.
        """
        self.both("ucmatose", "-c", "3", "-C", "20", "-S", "2000")

    def test_udaddy(self) -> None:
        """
        Datagrams between three pairs, more than can wait at a time.
        """
        self.both("udaddy", "-c", "3", "-C", "200", "-S", "1000")

    def test_mckey(self) -> None:
        """
        Datagrams to a group of two processes.
        """
        group = "--as", "mckey", "-m", "239.1.2.3", "-b", HOST, "-C", "3", "-S", "200"
        receivers = [self.begun(*group), self.begun(*group)]
        for each in receivers:
            self.begins(each)
        self.assertEqual(self.over(self.begun(*group, "-s"))[::2], (0, ""))
        self.assertEqual([self.over(each)[::2] for each in receivers], [(0, ""), (0, "")])

    def test_killed(self) -> None:
        """
        The surviving side fails.
        """
        server, port = self.server("--as", "ucmatose", "-c", "2")
        client = self.begun("--as", "ucmatose", "-s", HOST, "-p", port, "-d")
        self.begins(client)
        time.sleep(0.5)
        server.kill()
        status, _, said = self.over(client)
        self.assertEqual((status, said), (1, "ib-ping: 127.0.0.1 has disconnected\n"))
