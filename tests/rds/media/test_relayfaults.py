"""
Tests of L{twisted_ib.rds.media.rcrelay}: what peers and other processes get wrong.
"""

from __future__ import annotations

from typing import Any

from tests.rds.media.test_relay import RelayTestCase


class RelayFaultTests(RelayTestCase):
    """
    Datagrams that nobody expects.
    """

    def warm(self, count: int = 2) -> None:
        """
        Begin processes, which have exchanged a datagram each with the peer.
        """
        self.near(count)
        for at, end in enumerate(self.ends):
            self.peer.transport.write(b"hi", (self.here, 4000 + at))
            end.transport.write(b"hi", (self.there, 5000))
        self.until(lambda: len(self.peer.got) == count and all(end.got for end in self.ends))
        self.pass_(0.3)

    def counters(self, at: int = 0) -> Any:
        """
        @return: those of a process.
        """
        return self.nears[at].network.counters

    def test_ownNobodys(self) -> None:
        """
        What one sends to a port of its own address that nobody has is dropped, and counts no more against its
        budget; once another process has the port, it gets what follows.
        """
        self.near(1)
        (end,) = self.ends
        for _ in range(2):
            end.transport.write(bytes(50000), (self.here, 4001))
        end.transport.write(b"mine", (self.here, 4000))
        self.until(lambda: end.data == [b"mine"])
        self.assertEqual(self.counters()["recv_drop_no_sock"], 2)
        self.assertEqual(end.socket.queued(), 0)
        self.near(1)
        self.pass_(0.3)
        for _ in range(2):
            end.transport.write(b"theirs", (self.here, 4001))
        self.until(lambda: self.ends[1].data == [b"theirs"] * 2)
        self.assertEqual(end.socket.queued(), 0)

    def test_ownRaises(self) -> None:
        """
        What fails to arrive at a socket of the same process counts no more either, and stops none after it.
        """
        self.near(1)
        (end,), network = self.ends, self.nears[0].network
        deliver = network.deliver

        def fail(*args: Any) -> None:
            self.patch(network, "deliver", deliver)
            raise ZeroDivisionError

        self.patch(network, "deliver", fail)
        end.transport.write(b"lost", (self.here, 4000))
        end.transport.write(b"next", (self.here, 4000))
        self.assertRaises(ZeroDivisionError, self.settle)
        self.settle()
        self.assertEqual((end.data, end.socket.queued()), ([b"next"], 0))
