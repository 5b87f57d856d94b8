"""
C{ib-ping} over RoCEv2: two processes, each with an address of its own.
"""

from __future__ import annotations

import io
import os
import signal
import socket
import time
from contextlib import redirect_stderr
from unittest import mock

from tests.processes.applications.test_ping import PingTestCase
from tests.support.ownaddress import ownAddress
from twisted_ib.hca.device import registry
from twisted_ib.tools.ping import ping


class RoCETestCase(PingTestCase):
    """
    A server has one address and a client another.
    """

    def setUp(self) -> None:
        """
        Take addresses.
        """
        super().setUp()
        self.here, self.there = ownAddress(1), ownAddress(2)

    def ends(self, *arguments: str) -> list[str]:
        """
        @return: a client's command line.
        """
        return ["-c", "--device", "roce0", "-a", self.here, "-I", self.there, *arguments]


class RoCETests(RoCETestCase):
    """
    A server at one address and a client at another.
    """

    def test_sizes(self) -> None:
        """
        Rounds of all sizes; the device is where the user binds.
        """
        server, port = self.server("-s", "-P", "-V", "-S", "65535", "--device", "roce0", "-a", self.here)
        for size in ("23", "65535"):
            client = self.begun(*self.ends("-p", port, "-C", "20", "-S", size, "-V"))
            self.assertEqual(self.over(client), (0, "", ""), size)
        begin = time.monotonic()
        client = self.begun(*self.ends("-p", str(int(port) ^ 1), "-C", "1"))
        status, _, said = self.over(client)
        self.assertEqual(status, 1)
        self.assertRegex(said, r"\Aib-ping: \S+ port \d+: connection refused, nobody listens there\n\Z")
        self.assertSoon(begin)
        server.send_signal(signal.SIGTERM)
        self.assertEqual(self.over(server), (128 + signal.SIGTERM, "", ""))

    def test_configured(self) -> None:
        """
        A device that is configured is the default one.
        """
        self.environment["TWISTED_IB_DEVICES"] = f"roce0=roce:{self.here}"
        server, port = self.server("-s", "-C", "5")
        self.environment["TWISTED_IB_DEVICES"] = f"roce0=roce:{self.there}"
        client = self.begun("-c", "-a", self.here, "-p", port, "-C", "5", "-V")
        self.assertEqual((self.over(client), self.over(server)), ((0, "", ""), (0, "", "")))

    def test_taken(self) -> None:
        """
        Another process has the address, and does not share it: the error says what is wrong.
        """
        holder = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(holder.close)
        holder.bind((self.here, 4791))
        status, _, said = self.over(self.begun("-s", "--device", "roce0", "-a", self.here, "-p", "1"))
        self.assertEqual((status, said.count("\n")), (1, 1))
        self.assertIn(f"UDP port 4791 of {self.here} is taken", said)

    def test_nobody(self) -> None:
        """
        No process has the address, and the kernel says so.
        """
        said = io.StringIO()
        # In this process, where the device would stay for other tests.
        self.addCleanup(registry.removeDevice, "roce0")
        with mock.patch.dict(os.environ, self.environment), redirect_stderr(said):
            self.assertEqual(ping.main(self.ends("-C", "1")), 1)
        refused = f"ib-ping: {self.here} port 7174: connection refused, nobody listens there\n"
        self.assertEqual(said.getvalue(), refused)

    def test_transfers(self) -> None:
        """
        ucmatose and udaddy.
        """
        for name in ("ucmatose", "udaddy"):
            options = "--as", name, "--device", "roce0", "-c", "2", "-C", "20", "-S", "1000"
            server, port = self.server(*options, "-b", self.here)
            client = self.begun(*options, "-s", self.here, "-b", self.there, "-p", port)
            self.assertEqual([self.over(each)[::2] for each in (client, server)], [(0, ""), (0, "")], name)
