"""
Tests of L{twisted_ib.hca.fabric.shm} against processes that call and lie, or call too
often.
"""

from __future__ import annotations

from tests.hcas import LISTENER, SDP, HCATestCase, Taker, User, settle
from twisted_ib.errors import HCAError
from twisted_ib.hca.fabric.shm import SharedMemoryFabric


class SpoofingTests(HCATestCase):
    """
    A caller that says another's GUID.
    """

    fabric = SharedMemoryFabric

    def test_another(self) -> None:
        """
        Connections to an HCA never go to whoever called before and said its GUID.
        """
        victim, b, liar = self.device(), self.device(), self.device()
        b.listen(SDP, "127.0.0.1", 7001, LISTENER)
        victim.listen(SDP, "127.0.0.1", 7002, LISTENER)
        liar.fabric.guid = victim.guid
        false = Taker(self.pathTo(liar, b), 20, 21)
        one = Taker(self.pathTo(b, victim, 7002), 20, 20)
        two = Taker(victim.fabric.paths()[0], 20, 20)
        one.post(b"secret")
        settle(b, victim, liar)
        self.assertEqual((two.records, false.records), ([b"secret"], []))

    def test_ourOwn(self) -> None:
        """
        Another process that says our own GUID is refused.
        """
        b, liar = self.device(), self.device()
        b.listen(SDP, "127.0.0.1", 7001, LISTENER)
        liar.fabric.guid = b.guid
        b.fabric.pid = -1
        user = User()
        liar.connect(SDP, "127.0.0.1", 7001, user, 0.0)
        settle(b, liar)
        self.assertIsInstance(user.error, HCAError)
        self.assertEqual((user.path, b.fabric.paths()), (None, []))
        self.assertEqual(b.counters["handshakesRefused"], 1)
