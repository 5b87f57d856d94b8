"""
The examples for verbs, each server and client a process of its own.
"""

from __future__ import annotations

import re
import signal
import socket

from tests.processes.verbs.examples import (
    LETTERS,
    PingPongTestCase,
    RPingTestCase,
)


class PingPongTests(PingPongTestCase):
    """
    C{ibv_rc_pingpong} and those like it.
    """

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

    def test_unreliable(self) -> None:
        """
        An unreliable connection.
        """
        self.played("ibv_uc_pingpong", size=10_000)

    def test_datagrams(self) -> None:
        """
        Datagrams.
        """
        self.played("ibv_ud_pingpong", size=1024)

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


class RPingTests(RPingTestCase):
    """
    C{rping}.
    """

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

    def test_debug(self) -> None:
        """
        Debugging output says what is done.
        """
        served, played = self.pinged((), ("-C", "1", "-d"))
        self.assertIn("rdma_read completion\n", served)
        self.assertIn("rdma_write completion\n", served)
        self.assertIn("recv completion\n", played)

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
