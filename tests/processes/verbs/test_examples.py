"""
The examples for verbs, each server and client a process of its own.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from unittest import skipIf

from twisted.trial.unittest import SynchronousTestCase

from tests.support.commands import running
from tests.support.waiting import HANG_SECONDS
from twisted_ib.hca.host import libc

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"
ADDRESS = r"LID 0x[0-9a-f]{4}, QPN 0x[0-9a-f]{6}, PSN 0x[0-9a-f]{6}, GID [0-9a-f:]+\n"
N = r"\d+\.\d\d"
RESULT = rf"%d bytes in {N} seconds = {N} Mbit/sec\n%d iters in {N} seconds = {N} usec/iter\n"
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz"


def freePort() -> int:
    """
    @return: a TCP port that nobody listens on.
    """
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


@skipIf(libc.available(), "shm0 does not work here")
class ExampleTestCase(SynchronousTestCase):
    """
    Programs that meet in a run directory of the test's own, and run outside of the checkout.
    """

    def setUp(self) -> None:
        """
        Make the directories.
        """
        self.directory = tempfile.mkdtemp(prefix="tib-")
        self.addCleanup(shutil.rmtree, self.directory)
        self.runDirectory = os.path.join(self.directory, "run")
        self.port = str(freePort())

    def start(self, program: str, *arguments: str) -> subprocess.Popen[str]:
        """
        Start a program, that is killed after the test if it still runs.
        """
        command = str(EXAMPLES / f"{program}.py"), "-p", self.port, *arguments
        environment = dict(os.environ, TWISTED_IB_RUN_DIR=self.runDirectory, PYTHONPATH=str(ROOT))
        pipes = {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        return running(self, *command, cwd=self.directory, env=environment, **pipes)

    def line(self, child: subprocess.Popen[str]) -> str:
        """
        @return: the next line that a program writes to standard output; no more is read.
        """
        assert child.stdout is not None
        found = b""
        while not found.endswith(b"\n"):
            octet = os.read(child.stdout.fileno(), 1)
            self.assertTrue(octet, "it ended")
            found += octet
        return found.decode()

    def end(self, child: subprocess.Popen[str], status: int = 0) -> tuple[str, str]:
        """
        Wait until a program ends.

        @return: what it wrote to standard output and to standard error.
        """
        output, errors = child.communicate(timeout=HANG_SECONDS)
        self.assertEqual(child.returncode, status, (child.args, output, errors))
        return output, errors

    def assertClean(self) -> None:
        """
        The programs left nothing but the lock, which stays.
        """
        self.assertEqual(os.listdir(self.runDirectory), ["lock"])

    def refused(self, program: str, *arguments: str, status: int = 1) -> str:
        """
        @return: the sentence with which a program ends at once.
        """
        output, errors = self.end(self.start(program, *arguments), status)
        self.assertEqual(output, "")
        self.assertNotIn("Traceback", errors)
        return errors


class PingPongTests(ExampleTestCase):
    """
    C{ibv_rc_pingpong} and those like it.
    """

    def pair(self, program: str, *arguments: str, host: str = "localhost") -> tuple[str, str]:
        """
        Run a server and a client.

        @return: what they wrote.
        """
        server = self.start(program, *arguments)
        first = self.line(server)  # It listens now.
        client = self.start(program, *arguments, host)
        played, _ = self.end(client)
        served, _ = self.end(server)
        self.assertClean()
        return first + served, played

    def played(self, program: str, *arguments: str, size: int = 4096, iters: int = 200, qps: int = 1) -> None:
        """
        Both print where they are, and how fast it was.
        """
        options = ["-c", "-n", str(iters), "-s", str(size), *arguments]
        lines = (
            rf"(?:  local address:  {ADDRESS}){{{qps}}}(?:  remote address: {ADDRESS}){{{qps}}}"
            + RESULT % (size * iters * 2, iters)
        )
        said = self.pair(program, *options)
        for text in said:
            self.assertTrue(re.fullmatch(lines, text), text)
        here, there = (re.findall(r" address: +(LID .*)", text) for text in said)
        self.assertEqual((here[:qps], here[qps:]), (there[qps:], there[:qps]))

    def test_defaults(self) -> None:
        """
        Without options, a thousand messages of 4096 octets go each way.
        """
        for text in self.pair("ibv_rc_pingpong"):
            self.assertIn("8192000 bytes in ", text)
            self.assertIn("1000 iters in ", text)

    def test_reliable(self) -> None:
        """
        Polling; a message of many pages, with a small MTU.
        """
        self.played("ibv_rc_pingpong", "-m", "256", size=300_000, iters=50)

    def test_reliableEvents(self) -> None:
        """
        Asleep between messages.
        """
        self.played("ibv_rc_pingpong", "-e", "-m", "4096", "-i", "1", "-l", "3", "-g", "0", size=1)

    def test_reliableOneReceive(self) -> None:
        """
        One receive is enough: a sender that meets none retries.
        """
        self.played("ibv_rc_pingpong", "--rx-depth=1", "--events", iters=20)

    def test_newSend(self) -> None:
        """
        Sends by the extended queue pair.
        """
        self.played("ibv_rc_pingpong", "-N", "-d", "shm0", size=64)

    def test_unreliable(self) -> None:
        """
        An unreliable connection.
        """
        self.played("ibv_uc_pingpong", size=10_000)

    def test_unreliableEvents(self) -> None:
        """
        An unreliable connection, asleep between messages.
        """
        self.played("ibv_uc_pingpong", "-e", "-m", "512")

    def test_datagrams(self) -> None:
        """
        Datagrams.
        """
        self.played("ibv_ud_pingpong", size=1024)

    def test_datagramsEvents(self) -> None:
        """
        The longest datagrams, asleep in between.
        """
        self.played("ibv_ud_pingpong", "-e", size=4096)

    def test_shared(self) -> None:
        """
        Sixteen connections and one queue of receives.
        """
        self.played("ibv_srq_pingpong", iters=1000, qps=16)

    def test_sharedEvents(self) -> None:
        """
        As many connections as receives, asleep in between.
        """
        self.played("ibv_srq_pingpong", "-e", "-q", "5", "-r", "5", "-m", "2048", size=100, qps=5)

    def test_sharedMany(self) -> None:
        """
        As many connections as the exchange has room for.
        """
        self.played("ibv_srq_pingpong", "-q", "255", iters=500, qps=255)

    def test_exchange(self) -> None:
        """
        The exchange over TCP is that of rdma-core's programs: a server receives the client's queue pair,
        sends its own, and receives a confirmation.
        """
        server = self.start("ibv_uc_pingpong")
        local = self.line(server)
        with socket.create_connection(("127.0.0.1", int(self.port))) as wire:
            wire.sendall(b"0000:00abcd:123456:fe800000000000000123456789abcdef\0")
            answer = wire.makefile("rb").read(52)
            wire.sendall(b"done")
        found = re.fullmatch(r"  local address:  LID 0x0000, QPN 0x(.*), PSN 0x(.*), GID (.*)\n", local)
        assert found is not None
        qpn, psn, gid = found.groups()
        packed = socket.inet_pton(socket.AF_INET6, gid).hex()
        self.assertEqual(answer, f"0000:{qpn}:{psn}:{packed}\0".encode())
        output, errors = self.end(server, 1)
        self.assertEqual(
            output, "  remote address: LID 0x0000, QPN 0x00abcd, PSN 0x123456, GID fe80::123:4567:89ab:cdef\n"
        )
        self.assertEqual(errors, "The other side did not hear where my queue pairs are\n")
        self.assertClean()

    def test_nonsense(self) -> None:
        """
        A client that says nothing of the kind is refused with a sentence.
        """
        server = self.start("ibv_rc_pingpong")
        self.line(server)
        with socket.create_connection(("127.0.0.1", int(self.port))) as wire:
            wire.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: something\r\n\r\n")
            self.assertEqual(wire.recv(100), b"")
        self.assertEqual(self.end(server, 1)[1], "The other side did not say where its queue pairs are\n")
        self.assertClean()

    def test_invalid(self) -> None:
        """
        A server that validates says which pages a client has not filled, and fails.
        """
        server = self.start("ibv_rc_pingpong", "-n", "10", "-s", "5000", "-c")
        self.line(server)
        self.end(self.start("ibv_rc_pingpong", "-n", "10", "-s", "5000", "localhost"))
        output, errors = self.end(server, 1)
        self.assertRegex(output, r"usec/iter\ninvalid data in page 0\ninvalid data in page 1\n$")
        self.assertEqual(errors, "")
        self.assertClean()

    def test_impossible(self) -> None:
        """
        An option of rdma-core's programs for what there is not is refused with a sentence.
        """
        for option, word in (
            ("-o", "on-demand paging"),
            ("-O", "on-demand paging"),
            ("-P", "on-demand paging"),
            ("--ts", "timestamps"),
            ("-j", "device memory"),
            ("-U", "unprotected memory"),
        ):
            said = self.refused("ibv_rc_pingpong", option)
            self.assertRegex(said, rf"^ibv_rc_pingpong.py: {option}: .*{word}.*: .*not supported\n$")
        self.assertIn("on-demand paging", self.refused("ibv_srq_pingpong", "-o"))

    def test_mistakes(self) -> None:
        """
        Options that cannot be, and a server that is not there, are sentences.
        """
        for program, options, word in (
            ("ibv_rc_pingpong", ["-d", "mlx5_0"], "mlx5_0"),
            ("ibv_rc_pingpong", ["-i", "2"], "Invalid argument"),
            ("ibv_rc_pingpong", ["-g", "9999"], "Invalid argument"),
            ("ibv_rc_pingpong", ["-r", "1000000"], "Invalid argument"),
            ("ibv_rc_pingpong", ["localhost"], "refused"),
            ("ibv_ud_pingpong", ["-s", "4097"], "at most 4096"),
            ("ibv_srq_pingpong", ["-q", "20", "-r", "10"], "20 queue pairs"),
            ("ibv_srq_pingpong", ["-q", "256"], "255"),
        ):
            child = self.start(program, *options)
            _, errors = self.end(child, 1)
            self.assertIn(word, errors)
            self.assertEqual(errors.count("\n"), 1, errors)
        self.assertIn("usage:", self.refused("ibv_ud_pingpong", "-m", "1024", status=2))
        self.assertIn("usage:", self.refused("ibv_rc_pingpong", "-n", "0", status=2))
        self.assertClean()


class RPingTests(ExampleTestCase):
    """
    C{rping}.
    """

    def serve(self, *arguments: str) -> subprocess.Popen[str]:
        """
        @return: a server, which listens.
        """
        server = self.start("rping", "-s", "-d", *arguments)
        self.assertEqual(self.line(server), "listening\n")
        return server

    def ping(self, *arguments: str) -> str:
        """
        @return: what a client printed.
        """
        output, errors = self.end(self.start("rping", "-c", *arguments))
        self.assertEqual(errors, "client DISCONNECT EVENT...\n")
        return output

    def pinged(self, serving: tuple[str, ...], asking: tuple[str, ...]) -> tuple[str, str]:
        """
        Run a server and a client.

        @return: what they printed.
        """
        server = self.serve(*serving)
        played = self.ping(*asking)
        served, errors = self.end(server)
        self.assertEqual(errors, "server DISCONNECT EVENT...\n")
        self.assertClean()
        return served, played

    def test_data(self) -> None:
        """
        The data of each ping are a number and letters, and end with a zero octet that is not printed.
        """
        served, played = self.pinged(("-v",), ("-v", "-V", "-C", "60"))
        lines = played.splitlines()
        self.assertEqual(len(lines), 60)
        for n, line in enumerate(lines):
            start = f"rdma-ping-{n}: "
            expected = start + ((LETTERS * 3)[n % 58 :])[: 63 - len(start)]
            self.assertEqual(line, f"ping data: {expected}")
            self.assertIn(f"server {line}\n", served)

    def test_validated(self) -> None:
        """
        The most data there can be, at a given address.
        """
        options = ("-a", "127.0.0.1", "-S", "65535")
        self.assertEqual(self.pinged(options, (*options, "-I", "127.0.0.1", "-V", "-C", "20"))[1], "")

    def test_ownQueuePairs(self) -> None:
        """
        Both have queue pairs of their own, or one of the two.
        """
        for serving, asking in ((("-q",), ("-q",)), (("-q",), ()), ((), ("-q",))):
            self.assertEqual(self.pinged(serving, ("-V", "-C", "20", *asking))[1], "")

    def test_debug(self) -> None:
        """
        Debugging output says what is done.
        """
        served, played = self.pinged((), ("-C", "1", "-d"))
        self.assertIn("rdma_read completion\n", served)
        self.assertIn("rdma_write completion\n", served)
        self.assertIn("recv completion\n", played)

    def test_persistent(self) -> None:
        """
        A persistent server serves one client after the other, and two at a time, until it is interrupted.
        """
        server = self.serve("-P", "-S", "1000")
        self.ping("-V", "-C", "3", "-S", "1000")
        clients = [self.start("rping", "-c", "-V", "-v", "-C", "100", "-S", size) for size in ("30", "1000")]
        for client in clients:
            output, _ = self.end(client)
            self.assertEqual(output.count("ping data: rdma-ping-"), 100)
        self.ping("-q", "-V", "-C", "3")
        server.send_signal(signal.SIGINT)
        _, errors = self.end(server, 1)
        self.assertEqual(errors, "server DISCONNECT EVENT...\n" * 4 + "rping.py: interrupted\n")
        self.assertClean()

    def test_interrupted(self) -> None:
        """
        A client of a server that is interrupted says so and ends; a server goes on with others when a client
        is killed.
        """
        server = self.serve("-P")
        killed = self.start("rping", "-c", "-v")
        self.line(killed)
        killed.kill()
        client = self.start("rping", "-c", "-d")
        self.line(client)
        server.send_signal(signal.SIGINT)
        self.end(server, 1)
        errors = self.end(client, 1)[1]
        self.assertEqual(errors, "client DISCONNECT EVENT...\nrping.py: The peer has disconnected\n")

    def test_tooLong(self) -> None:
        """
        A client with more data than the server has room for is an error of both, not of their memory.
        """
        server = self.serve("-S", "64")
        errors = self.end(self.start("rping", "-c", "-S", "100"), 1)[1]
        self.assertEqual(errors, "client DISCONNECT EVENT...\nrping.py: The peer has disconnected\n")
        errors = self.end(server, 1)[1]
        self.assertIn("rping.py: cq completion failed: IBV_WC_LOC_PROT_ERR\n", errors)
        self.assertClean()

    def test_mistakes(self) -> None:
        """
        Options that cannot be, and a server that is not there, are sentences.
        """
        self.assertIn("usage:", self.refused("rping", status=2))
        self.assertIn("usage:", self.refused("rping", "-s", "-c", status=2))
        for size in ("25", "65536"):
            self.assertIn("valid range is 26 to 65535", self.refused("rping", "-c", "-S", size, status=2))
        self.assertIn("Connection refused", self.refused("rping", "-c", "-a", "127.0.0.1"))
        self.assertIn("Cannot assign requested address", self.refused("rping", "-s", "-a", "192.0.2.1"))
        self.assertClean()
