"""
Reachability on a fabric: tests to mix into a L{HCATestCase<tests.hca.hcas.HCATestCase>}, beside those of
L{tests.contracts.path} and L{tests.contracts.peers}.
"""

from __future__ import annotations

from typing import Any

from tests.hca.applicable import Need, needs
from tests.hca.hcas import Taker, settle
from twisted_ib.hca.base.operation import ABSENT, RESPONSES, word
from twisted_ib.hca.wire.opcodes import READ_RESPONSE_ONLY, SEND_ONLY


class ReachContract:
    """
    Records reach the queue pairs of their own path, as long as these are bound.
    """

    def test_each(self: Any) -> None:
        """
        Of several HCAs, and several queue pairs of one, each gets what its own peer posts.
        """
        a, b, c = self.device(), self.device(), self.device()
        b.listen(self.space, self.address, 7001, self.listener)
        c.listen(self.space, self.address, 7002, self.listener)
        pairs = [self.connected(a, b), self.connected(a, c, 7002, 40), self.connected(c, b, 7001, 50)]
        for number, pair in enumerate(pairs):
            for taker in pair:
                taker.post(b"%d from %d" % (number, taker.number))
        settle(a, b, c)
        for number, (one, two) in enumerate(pairs):
            for taker, peer in ((one, two), (two, one)):
                self.assertEqual(taker.log, [("taken", b"%d from %d" % (number, peer.number))])

    @needs(Need.SHARED_PATH)
    def test_ownTables(self: Any) -> None:
        """
        A peer reaches the queue pairs of its own path only; those of another peer's path
        are absent for it.
        """
        _, b, _, two = self.takers()
        c = self.device()
        b.listen(self.space, self.address, 7002, self.listener)
        path = self.pathTo(c, b, 7002)
        stranger = Taker(path, 40, 20)
        path.requesters[20] = stranger
        stranger.post(b"I am another")
        settle(b, c)
        self.assertEqual(two.records, [])
        self.assertEqual([syndrome for syndrome, _, _ in stranger.said("refused")], [ABSENT])

    @needs(Need.SHARED_PATH)
    def test_absentResponses(self: Any) -> None:
        """
        Responses for a number that nobody has are dropped silently.
        """
        a, b, path, _ = self.joined()
        one = Taker(path, 17, 18)
        path.requesters[18] = one
        for code in RESPONSES:
            one.post(bytes(16), code)
        settle(a, b)
        self.assertEqual(one.log, [])

    @needs(Need.RETRIES)
    def test_responsesWhileRefusing(self: Any) -> None:
        """
        A queue pair that drops requests after a refusal takes responses.
        """
        a, b, one, two = self.takers()
        two.answers.append(0x25)
        for data in (b"refused", b"dropped"):
            one.post(data)
        one.post(b"response", READ_RESPONSE_ONLY)
        settle(a, b)
        self.assertEqual(two.records, [b"refused", b"response"])

    @needs(Need.SHARED_PATH)
    def test_unbindWithin(self: Any) -> None:
        """
        A consumer may destroy queue pairs, its own and others, over a record.
        """
        a, b, one, two = self.takers()
        other = Taker(two.path, 30, 31)

        def close(data: bytes) -> None:
            """
            Take both out of the table.
            """
            for taker in (two, other):
                taker.path.unbind(taker)

        two.upcall = close
        one.post(b"1")
        one.post(b"2")
        one.remote = 30
        one.post(b"3")
        settle(a, b)
        self.assertEqual((two.records, other.records), ([b"1"], []))

    @needs(Need.SHARED_PATH)
    def test_requesterLeaves(self: Any) -> None:
        """
        When a requester leaves the peer hears of it behind all that it sent, even if the
        medium is full: it must not wait for that one to resume.
        """
        a, b, path, other = self.joined()
        one = Taker(path, 20, 21)
        path.requesters[21] = one
        self.assertTrue(one.post(b"refused, as nobody is there"))
        while one.post(bytes(8000)):
            pass
        while path.postReserved(word(SEND_ONLY, 21), b"", False):
            pass
        path.unbind(one)
        self.assertEqual(path.requesters, {})
        settle(a, b)
        self.assertEqual((other.absent, list(path.waiting)), ({}, []))
        two, three = Taker(other, 21, 22), Taker(path, 22, 21)
        self.assertTrue(three.post(b"taken"))
        settle(a, b)
        self.assertEqual((two.records, one.log), ([b"taken"], []))
