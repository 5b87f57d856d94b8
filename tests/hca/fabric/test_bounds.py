"""
Tests of the bounds of L{twisted_ib.hca.fabric.shm.shm} and L{twisted_ib.hca.fabric.base.path}.
"""

from __future__ import annotations

from typing import Any

from tests.hca.hcas import LISTENER, SDP, HCATestCase, Taker, User, settle
from twisted_ib import limits
from twisted_ib.errors import PeerRefusedError, ResourceLimitError
from twisted_ib.hca.fabric.base.path import RecordPath
from twisted_ib.hca.fabric.shm import shm
from twisted_ib.hca.fabric.shm.shm import SharedMemoryFabric


class PeerTests(HCATestCase):
    """
    The peers of one HCA are bounded.
    """

    fabric = SharedMemoryFabric

    def test_calling(self) -> None:
        """
        An HCA with as many peers as it may have dials no more, with an error by name; its peers stay.
        """
        a, b, one, two = self.takers()
        c = self.device()
        c.listen(SDP, "127.0.0.1", 7002, LISTENER)
        self.patch(limits, "PEERS", 1)
        self.assertRaises(ResourceLimitError, a.connect, SDP, "127.0.0.1", 7002, User())
        one.post(b"still here")
        settle(a, b)
        self.assertEqual(two.records, [b"still here"])

    def test_called(self) -> None:
        """
        A peer that dials an HCA with as many as it may have is refused, and counted.
        """
        a, b, one, two = self.takers()
        c = self.device()
        limit = self.patch(limits, "PEERS", 1)
        user = User()
        c.connect(SDP, "127.0.0.1", 7001, user)
        settle(b, c)
        self.assertIsInstance(user.error, PeerRefusedError)
        self.assertIn("1 processes are connected already", str(user.error))
        self.assertEqual(b.counters["handshake_refused"], 1)
        limit.restore()
        self.assertEqual(self.pathTo(c, b).peer.guid, b.guid)
        one.post(b"still here")
        settle(a, b)
        self.assertEqual(two.records, [b"still here"])

    def test_manyAtOnce(self) -> None:
        """
        More calls and more peers than one turn looks at.
        """
        self.patch(limits, "ACCEPTS_PER_TURN", 2)
        self.patch(shm, "DESCRIPTORS_PER_TURN", 3)
        b = self.device()
        b.listen(SDP, "127.0.0.1", 7001, LISTENER)
        callers = [self.device() for _ in range(12)]
        users = [User() for _ in callers]
        for caller, user in zip(callers, users, strict=True):
            caller.connect(SDP, "127.0.0.1", 7001, user)
        for _ in range(12):
            settle(b, *callers)  # A handshake is nothing that a device counts as done.
        takers = [Taker(path, 20, 20) for path in b.fabric.paths()]
        for user in users:
            Taker(user.path, 20, 20).post(b"here")
        settle(b, *callers)
        self.assertEqual([taker.records for taker in takers], [[b"here"]] * 12)


class Endless(RecordPath):
    """
    A path whose peer publishes as fast as it is read.
    """

    taken = 0
    failing = False

    def progress(self, budget: int) -> int:
        """
        There is always more.
        """
        if self.failing:
            self.taken += 1
            raise ZeroDivisionError
        self.taken += budget
        return budget


class DrainTests(HCATestCase):
    """
    Taking what a peer has left behind.
    """

    def test_endless(self) -> None:
        """
        A path is closed although its living peer publishes without end: no more
        records are taken than a ring holds, and what they complete besides.
        """
        for kept in (0, 10):
            owner: Any = None
            path = Endless(owner, None)
            path.unacknowledged.extend([(1, None)] * kept)
            path.taken = 0
            path.drain()
            self.assertEqual(path.taken, limits.RING // 64 + kept)

    def test_endlessFailures(self) -> None:
        """
        The same if a consumer fails over each record.
        """
        owner: Any = None
        path = Endless(owner, None)
        path.failing = True
        self.assertRaises(ZeroDivisionError, path.drain)
        self.assertEqual(path.taken, limits.RING // 64)
