"""
Stories of two machines and more over a simulated medium.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.ipoib.medium import pair
from tests.ipoib.protocol.simulation import Run, damage
from twisted_ib.ipoib.protocol.counters import COUNTERS


class DeliveryTests(SynchronousTestCase):
    """
    Packets between two nodes.
    """

    isConnected = False
    mtu = 2044

    def setUp(self) -> None:
        """
        Two nodes.
        """
        self.medium, self.one, self.other = pair(isConnected=self.isConnected)

    def test_sizes(self) -> None:
        """
        The shortest packet and the longest one arrive, by IPv4 and by IPv6 link-local.
        """
        self.assertEqual(self.one.mtu, self.mtu)
        linkLocal = str(self.other.machine.addresses[-1].ip)
        for address, header in (("10.9.0.2", 20), (linkLocal, 40)):
            for size in (0, 1, self.mtu - header):
                self.one.send(address, bytes(size), flags=0x4000)
                self.medium.advance(0.1)
                self.assertEqual(self.other.received(), [bytes(size)])
        self.assertEqual(self.one.delivered, [])

    def test_restarted(self) -> None:
        """
        A node that was restarted has another queue pair: packets reach it in less than three seconds, though
        its announcement is lost.
        """
        self.one.send("10.9.0.2", b"before")
        self.medium.advance(0.1)
        self.other.stop()
        self.medium.loss = 1.0
        other = self.medium.node(2, "10.9.0.2/24", qpn=0x56, isConnected=self.isConnected)
        self.medium.advance(0.1)
        self.medium.loss = 0.0
        for number in range(29):
            self.one.send("10.9.0.2", b"%d" % number)
            self.medium.advance(0.1)
        self.assertEqual(other.received()[-1:], [b"28"])


class ConnectedDeliveryTests(DeliveryTests):
    """
    The same in connected mode.
    """

    isConnected = True
    mtu = 65520


class SimulationTests(SynchronousTestCase):
    """
    Runs by seeds; C{tests.soak.test_packets} has more.
    """

    def test_runs(self) -> None:
        """
        Loss, repetition, overtaking, restarts and lost connections.
        """
        for seed in range(6):
            Run(seed).go()

    def test_damaged(self) -> None:
        """
        300 damaged frames: nothing is raised, and no table is larger than its bound.
        """
        node = damage(1, 300)
        self.assertLessEqual(set(node.counters), set(COUNTERS))
        self.assertGreater(len(node.counters), 6)
