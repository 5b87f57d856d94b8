"""
Tests for L{twisted_ib.hca.fabric.query}.
"""

from __future__ import annotations

import select
import threading
import time

from tests.test_rendezvous import RendezvousTestCase
from twisted_ib.errors import (
    NoListenerError,
    PeerIdentityError,
)
from twisted_ib.hca.fabric import handshake
from twisted_ib.hca.fabric.query import ask
from twisted_ib.hca.fabric.search import Search


class QueryTests(RendezvousTestCase):
    """
    Asking an HCA.
    """

    def setUp(self) -> None:
        """
        An HCA that is asked, and who asks.
        """
        super().setUp()
        self.server = self.hca(1)
        self.search = Search(self.environment)
        self.addCleanup(self.search.close)
        (self.entry,) = self.search.hcas()

    def answer(self, reply: bytes | None, timeout: float = 5.0) -> object:
        """
        @param reply: what the HCA sends; None to send nothing.
        @return: what comes of asking.
        """
        listener = self.server.bind()

        def serve() -> None:
            """
            Accept, check the query, reply.
            """
            select.select([listener], [], [], 5)
            pair, _ = listener.accept()
            with pair:
                pair.settimeout(5)
                heard.append(pair.recv(1000))
                if reply is not None:
                    pair.send(reply)
                pair.recv(1000)

        heard: list[bytes] = []
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            return ask(self.search, self.entry, timeout)
        finally:
            thread.join()
            self.assertEqual(heard, [handshake.Query().pack()])

    def test_answered(self) -> None:
        """
        An answer comes back whole.
        """
        content = {"hca_id": "x" * 10000, "in_use": {"qp": 3}}
        self.assertEqual(self.answer(handshake.Answer(content).pack()), content)

    def test_silent(self) -> None:
        """
        Silence ends in time, and so does a connection that nobody accepts.
        """
        began = time.monotonic()
        self.assertEqual(self.answer(None, 0.05), None)
        self.assertEqual(ask(self.search, self.entry, 0.05), None)
        self.assertTrue(time.monotonic() - began < 5)

    def test_nonsense(self) -> None:
        """
        So does everything else that is no answer.
        """
        for reply in (b"x", handshake.Query().pack(), handshake.Refuse(1, "no").pack(), b"y" * 20000):
            self.assertEqual(self.answer(reply), None)

    def test_dead(self) -> None:
        """
        A dead one is an error by name.
        """
        self.server.close()
        self.assertRaises(NoListenerError, ask, self.search, self.entry)

    def test_stranger(self) -> None:
        """
        So is one of a user who is not let in; it is not even asked.
        """
        self.patch(self.search, "allows", lambda uid: False)
        self.assertRaises(PeerIdentityError, ask, self.search, self.entry)
