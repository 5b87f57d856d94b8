"""
Reliable datagrams between processes, each with an address of the loopback interface: RDS over TCP.
"""

from __future__ import annotations

import socket
from typing import Any

from tests.processes.processes import Child, ProcessTestCase
from tests.support.ownaddress import ownAddress


class TCPTests(ProcessTestCase):
    """
    Two processes.

    @cvar reactors: of the two.
    """

    program = "tests.processes.rds.datagrams.Datagrams"
    reactors = ("ib", "ib")

    def setUp(self) -> None:
        """
        Find addresses.
        """
        self.hosts = ownAddress(1), ownAddress(2)
        with socket.socket() as probe:
            try:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((self.hosts[1], 16385))
            except OSError as e:
                self.skipTest(f"port 16385 cannot be had: {e}")
        ProcessTestCase.setUp(self)

    def open(self, index: int, port: int) -> Child:
        """
        A process with a socket.
        """
        child = self.spawn(self.reactors[index])
        child.ask("listen", interface=self.hosts[index], port=port, device="tcp")
        return child

    def assertHeard(self, child: Child, port: int, sent: dict[str, list[Any]]) -> None:
        """
        All that was sent comes, once and in order.
        """
        count = sum(number for number, _ in sent.values())
        self.assertEqual(child.ask("heard", port=port, count=count), sent)

    def test_bothWays(self) -> None:
        """
        Thousands of datagrams, either side first, and pings.
        """
        for first in (0, 1):
            ends = [self.open(0, 4000), self.open(1, 5000)]
            ports, hosts = (4000, 5000), self.hosts
            order = (first, 1 - first)
            sent = {}
            for mine in order:
                other = 1 - mine
                digest = ends[mine].ask(
                    "write", port=ports[mine], host=hosts[other], to=ports[other], count=3000
                )
                sent[other] = {f"{hosts[mine]}:{ports[mine]}": [3000, digest]}
            for mine in order:
                self.assertHeard(ends[mine], ports[mine], sent[mine])
                self.assertGreater(ends[mine].ask("ping", port=ports[mine], host=hosts[1 - mine]), 0)
            for end in ends:
                end.end()

    def test_slow(self) -> None:
        """
        A receiver that does not read for a while gets everything at last.
        """
        one, two = self.open(0, 4000), self.open(1, 5000)
        two.ask("pause", port=5000)
        one.begin("write", port=4000, host=self.hosts[1], to=5000, count=8000)
        self.assertGreater(two.ask("ping", port=5000, host=self.hosts[0]), 0)
        two.ask("resume", port=5000)
        digest = one.answer()
        self.assertHeard(two, 5000, {f"{self.hosts[0]}:4000": [8000, digest]})

    def test_killed(self) -> None:
        """
        Either process is killed and begins anew, with new numbers: what the other writes meanwhile is
        delivered to the new one, and what the new one writes is.
        """
        for victim in (0, 1):
            ports, hosts = (4000, 5000), self.hosts
            other = 1 - victim
            ends = [self.open(0, 4000), self.open(1, 5000)]
            old = ends[victim].ask("write", port=ports[victim], host=hosts[other], to=ports[other], count=500)
            self.assertHeard(ends[other], ports[other], {f"{hosts[victim]}:{ports[victim]}": [500, old]})
            ends[victim].kill()
            ends[victim].died()
            sent = ends[other].ask(
                "write", port=ports[other], host=hosts[victim], to=ports[victim], count=20, first=1000
            )
            ends[victim] = self.open(victim, ports[victim])
            self.assertHeard(ends[victim], ports[victim], {f"{hosts[other]}:{ports[other]}": [20, sent]})
            ends[victim].ask(
                "write", port=ports[victim], host=hosts[other], to=ports[other], count=100, first=500
            )
            found = ends[other].ask("heard", port=ports[other], count=600)
            self.assertEqual(found[f"{hosts[victim]}:{ports[victim]}"][0], 600)
            for end in ends:
                end.end()


class PlainTCPTests(TCPTests):
    """
    The same without our reactor.
    """

    reactors = ("epoll", "epoll")


class MixedTCPTests(TCPTests):
    """
    The same with one of each.
    """

    reactors = ("epoll", "ib")
