"""
A receiver of RDS that reads slowly: what waits for it is bounded at both ends, and others notice nothing.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred

from tests.rds.ends import HOST, ProcessesTestCase, Recorder
from tests.support.rundirectory import ownRunDirectory
from twisted_ib import limits
from twisted_ib.rds import port, queues

#: Bytes of a datagram, and of all that are offered.
SIZE = 60_000
OFFERED = 48 * 1024 * 1024


class _Slow(Recorder):
    """
    Stops reading behind each datagram, and keeps none; they have to come in order.
    """

    count = 0
    wrong = 0

    def datagramReceived(self, datagram: bytes, addr: Any) -> None:
        """
        Count it.
        """
        self.count += 1
        self.wrong += int.from_bytes(datagram[:8], "big") != self.count
        if not self.count % 16:
            self.transport.pauseProducing()


class SlowTests(ProcessesTestCase):
    """
    Between processes of this host.
    """

    offered = OFFERED

    def setUp(self) -> None:
        """
        A process that sends, one that reads slowly, and one that reads.
        """
        super().setUp()
        self.a, self.b, self.c = self.process(), self.process(), self.process()
        self.one = self.a.listen(4000)
        self.slow, self.quick = self.b.listen(5000, protocol=_Slow()), self.c.listen(5001)

    def test_bounded(self) -> None:
        """
        All that is offered arrives in order; no more waits than may, and what the same socket has for
        another is there a few turns later.
        """
        sender, receiver = self.one.socket, self.slow.socket
        count = self.offered // SIZE
        sent = most = held = others = longest = began = 0
        asked = False
        waiter: Deferred[None] | None = None
        for turn in range(100 * count + 1000):
            while sent < count and (waiter is None or waiter.called):
                sent += 1
                data = sent.to_bytes(8, "big") + bytes(SIZE - 8)
                waiter = self.one.transport.write(data, (HOST, 5000))
            most = max(most, sender.queued())
            held = max(held, receiver._receivedBytes)
            if len(self.quick.got) == others:
                longest = max(longest, turn - began)
                began = turn
                others += 1
                asked = False
            if not asked and sender._queued < limits.RDS_SEND_BUDGET:
                asked = True
                self.one.transport.write(b"?", (HOST, 5001))
            if not turn % 3:
                self.slow.transport.resumeProducing()
            for process in self.processes:
                process.turn()
                process.reactor.advance(0.001)
            if self.slow.count == count:
                break
        self.assertEqual((self.slow.count, self.slow.wrong), (count, 0))
        self.assertGreater(others, 100)
        self.assertLess(longest, 20)
        self.assertGreater(held, limits.RDS_RECEIVE_BUDGET)
        self.assertLess(most, limits.RDS_SEND_BUDGET + port.RDS_CONGESTED_BUDGET + 2 * SIZE)
        self.assertLess(held, queues.RDS_RECEIVE_MOST + 2 * limits.RDS_SEND_BUDGET)


class ShmSlowTests(SlowTests):
    """
    Over rings.
    """

    device = "shm0"

    def setUp(self) -> None:
        """
        In a run directory of its own.
        """
        ownRunDirectory(self)
        super().setUp()
