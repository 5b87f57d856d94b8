"""
The options of the examples for verbs that L{tests.processes.verbs.test_examples} leaves out.
"""

from __future__ import annotations

import signal

from tests.processes.verbs.examples import (
    PingPongTestCase,
    RPingTestCase,
)


class PingPongTests(PingPongTestCase):
    """
    C{ibv_rc_pingpong} and those like it.
    """

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

    def test_deviceMemory(self) -> None:
        """
        Messages in device memory, which are validated.
        """
        self.played("ibv_rc_pingpong", "-j", "-c", size=5001)

    def test_unreliableEvents(self) -> None:
        """
        An unreliable connection, asleep between messages.
        """
        self.played("ibv_uc_pingpong", "-e", "-m", "512")

    def test_datagramsEvents(self) -> None:
        """
        The longest datagrams, asleep in between.
        """
        self.played("ibv_ud_pingpong", "-e", size=4096)

    def test_sharedMany(self) -> None:
        """
        As many connections as the exchange has room for.
        """
        self.played("ibv_srq_pingpong", "-q", "255", iters=500, qps=255)

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


class RPingTests(RPingTestCase):
    """
    C{rping}.
    """

    def test_ownQueuePairs(self) -> None:
        """
        Both have queue pairs of their own, or one of the two.
        """
        for serving, asking in ((("-q",), ("-q",)), (("-q",), ()), ((), ("-q",))):
            self.assertEqual(self.pinged(serving, ("-V", "-C", "20", *asking))[1], "")

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
        assert server.stderr is not None
        self.assertEqual([server.stderr.readline() for _ in range(4)], ["server DISCONNECT EVENT...\n"] * 4)
        server.send_signal(signal.SIGINT)
        _, errors = self.end(server, 1)
        self.assertEqual(errors, "rping.py: interrupted\n")
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
