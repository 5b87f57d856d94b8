"""
Interfaces of two processes in a subnet that C{ib-fabric} hosts and manages.
"""

from __future__ import annotations

from typing import Any

from tests.processes.subnet.fabrics import FabricTestCase

#: Addresses, without and with a prefix.
HOSTS = ("10.9.0.1", "10.9.0.2")


class InterfaceTestCase(FabricTestCase):
    """
    Base of tests with interfaces of children.
    """

    program = "tests.processes.ipoib.end.End"

    def open(self, end: Any, device: str, index: int) -> Any:
        """
        @return: what the interface of a child says of itself.
        """
        return end.ask("open", device=device, address=f"{HOSTS[index]}/24")

    def exchange(self, one: Any, most: int) -> None:
        """
        Packets from a child to another, and back.
        """
        one.ask("reach", peer=HOSTS[1])
        # A connection is made meanwhile.
        self.assertEqual(one.ask("flood", peer=HOSTS[1], count=200, length=500), 200)
        lengths = [25, 100, 1000, 2044, most]
        self.assertEqual(one.ask("ask", peer=HOSTS[1], lengths=lengths), len(lengths))

    def restarted(self, one: Any, two: Any, device: str) -> tuple[Any, float]:
        """
        Have a child killed, and another take its place.

        @return: the new one, and how many seconds after it was up it was reached.
        """
        two.kill()
        again = self.spawn()
        self.open(again, device, 1)
        return again, one.ask("reach", peer=HOSTS[1])


class InterfaceTests(InterfaceTestCase):
    """
    Two processes, on reactors with and without polling.
    """

    def test_exchange(self) -> None:
        """
        Packets of all lengths; one of the two is killed, and another takes its place.
        """
        self.host()
        one, two = self.spawn("epoll"), self.spawn("ib")
        groups = [self.open(end, "ib0", index) for index, end in enumerate((one, two))]
        values = [[group[name] for name in ("mlid", "qKey", "mtu")] for group in groups]
        self.assertEqual(values[0], values[1])
        self.exchange(one, 65520)
        two, seconds = self.restarted(one, two, "ib0")
        self.assertLess(seconds, 3.0)
        for end in (one, two):
            end.ask("close")
