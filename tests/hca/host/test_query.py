"""
Tests for L{twisted_ib.hca.host.query}.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from tests.hca.hcas import HCATestCase
from tests.hca.host.test_rendezvous import RendezvousTestCase
from tests.support.waiting import HANG_SECONDS
from twisted_ib import limits
from twisted_ib.errors import NoListenerError, PeerIdentityError
from twisted_ib.hca.fabric.shm.shm import SharedMemoryFabric
from twisted_ib.hca.host import handshake, query
from twisted_ib.hca.host import query as hostQuery
from twisted_ib.hca.host.query import SocketsAnswer, ask, askSockets
from twisted_ib.hca.host.search import Search


class AskingTestCase(RendezvousTestCase):
    """
    An HCA, and who asks it.
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


class QueryTests(AskingTestCase):
    """
    Asking an HCA.
    """

    def answer(self, reply: bytes | None, timeout: float = HANG_SECONDS) -> object:
        """
        @param reply: what the HCA sends; None to send nothing.
        @return: what comes of asking.
        """
        listener = self.server.bind()

        def serve() -> None:
            """
            Accept, check the query, reply.
            """
            select.select([listener], [], [], HANG_SECONDS)
            pair, _ = listener.accept()
            with pair:
                pair.settimeout(HANG_SECONDS)
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
        self.assertEqual(self.answer(handshake.QueryAnswer(content).pack()), content)

    def test_silent(self) -> None:
        """
        Silence ends in time, and so does a connection that nobody accepts.
        """
        began = time.monotonic()
        self.assertEqual(self.answer(None, 0.05), None)
        self.assertEqual(ask(self.search, self.entry, 0.05), None)
        self.assertLess(time.monotonic() - began, HANG_SECONDS)

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


def page(rows: Any, more: Any) -> bytes:
    """
    @return: an answer.
    """
    return handshake.QueryAnswer({"columns": ["a"], "rows": rows, "more": more}).pack()


SOCKETS = handshake.Query(handshake.Subject.SOCKETS).pack()


class AskSocketsTests(AskingTestCase):
    """
    Asking an HCA for the sockets of its process, which may answer anything.
    """

    def told(
        self,
        replies: Iterable[bytes | None],
        pageSeconds: float = HANG_SECONDS,
        allSeconds: float = HANG_SECONDS,
        end: Callable[[], object] | None = None,
    ) -> SocketsAnswer:
        """
        @param replies: what the HCA sends for each query; None to send nothing.
        @param end: called when it hangs up.
        @return: what comes of asking.
        """
        listener = self.server.bind()

        def serve() -> None:
            """
            Accept; check each query and reply; hang up when there is no reply left.
            """
            select.select([listener], [], [], HANG_SECONDS)
            pair, _ = listener.accept()
            with pair:
                pair.settimeout(HANG_SECONDS)
                for reply in replies:
                    query = pair.recv(1000)
                    if not query:
                        return
                    heard.append(query)
                    if reply is not None:
                        with contextlib.suppress(BrokenPipeError):
                            pair.send(reply)
                if end is not None:
                    end()
                pair.recv(1000)

        heard: list[bytes] = []
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            told = askSockets(self.search, self.entry, pageSeconds, allSeconds)
        finally:
            thread.join()
            while listener.fileno() >= 0 and select.select([listener], [], [], 0)[0]:
                listener.accept()[0].close()  # The liveness check connects.
        self.assertEqual(set(heard), {SOCKETS})
        self.assertEqual(told.pid, os.getpid())
        return told

    def rows(self, told: SocketsAnswer) -> list[Any]:
        """
        @return: the rows that came.
        """
        return [row for each in told.pages for row in each["rows"]]

    def test_answered(self) -> None:
        """
        All pages are fetched.
        """
        told = self.told([page([[1]], True), page([], True), page([[2], [3]], False)])
        self.assertEqual((self.rows(told), told.complete, told.dead), ([[1], [2], [3]], True, False))

    def test_silent(self) -> None:
        """
        Silence ends in time, at the first page or a later one; what came before counts.
        """
        began = time.monotonic()
        told = self.told([None], 0.05)
        self.assertEqual((told.pages, told.complete, told.dead), ([], False, False))
        told = self.told([page([[1]], True), None], 1.0)
        self.assertEqual((self.rows(told), told.complete, told.dead), ([[1]], False, False))
        told = askSockets(self.search, self.entry, 0.05)
        self.assertEqual((told.pages, told.complete), ([], False))
        self.assertLess(time.monotonic() - began, HANG_SECONDS)

    def test_slow(self) -> None:
        """
        There is a time for all pages together.
        """

        def slowly() -> Any:
            """
            Without end.
            """
            while True:
                time.sleep(0.01)
                yield page([[1]], True)

        began = time.monotonic()
        told = self.told(slowly(), HANG_SECONDS, 0.2)
        self.assertFalse(told.complete)
        self.assertLess(time.monotonic() - began, HANG_SECONDS)

    def test_endless(self) -> None:
        """
        There is an end to all rows, and to pages that have none.
        """
        self.patch(hostQuery, "SOCKETS_LISTED", 5)
        for rows, pages in (([[1], [2]], 3), ([], 5)):
            told = self.told([page(rows, True)] * 100)
            self.assertEqual((len(told.pages), told.complete), (pages, False))

    def test_large(self) -> None:
        """
        There is an end to all bytes, whatever is in them.
        """
        large = handshake.QueryAnswer({"rows": [], "more": True, "x": [[]] * 4000}).pack()
        self.patch(hostQuery, "SOCKETS_BYTES", 2 * len(large) + 1)
        told = self.told([large] * 100)
        self.assertEqual((len(told.pages), told.complete), (3, False))

    def test_nonsense(self) -> None:
        """
        An answer that is no page ends the query.
        """
        for reply in (
            b"x",
            b"y" * 20000,
            SOCKETS,
            handshake.Refuse(1, "no").pack(),
            handshake.QueryAnswer({}).pack(),
            handshake.QueryAnswer({"rows": 5, "more": True}).pack(),
            handshake.QueryAnswer({"rows": {}, "more": True}).pack(),
        ):
            told = self.told([page([[1]], True), reply, page([[2]], False)])
            self.assertEqual((self.rows(told), told.complete, told.dead), ([[1]], False, False))
        self.assertTrue(self.told([page([], 1)]).complete)

    def test_died(self) -> None:
        """
        One that dies in between is known to be dead.
        """
        told = self.told([page([[1]], True)], end=self.server.close)
        self.assertEqual((told.complete, told.dead), (False, True))

    def test_dead(self) -> None:
        """
        One that is dead is an error by name, and so is a stranger, who is not asked.
        """
        self.patch(self.search, "allows", lambda uid: False)
        self.assertRaises(PeerIdentityError, askSockets, self.search, self.entry)
        self.server.close()
        self.assertRaises(NoListenerError, askSockets, self.search, self.entry)


class AskedTests(HCATestCase):
    """
    An HCA that is asked, perhaps by somebody who breaks the rules.
    """

    fabric = SharedMemoryFabric

    def setUp(self) -> None:
        """
        An HCA whose process has many sockets.
        """
        super().setUp()
        self.device_: Any = self.device()
        self.made = 0

        def rows() -> Any:
            """
            Count those that are looked at.
            """
            for n in range(3 * query.SOCKETS_PER_PAGE):
                self.made += 1
                yield [n]

        self.device_.socketRows = rows

    def call(self) -> socket.socket:
        """
        @return: a socket to it.
        """
        search = Search()
        self.addCleanup(search.close)
        (entry,) = [entry for entry in search.hcas() if entry.guid == self.device_.guid]
        pair = search.connect(entry)
        self.addCleanup(pair.close)
        self.attend()
        return pair

    def attend(self) -> None:
        """
        Let it look at its sockets.
        """
        for _ in range(3):
            self.device_.fabric.attend()

    def ask(self, pair: socket.socket, message: bytes = SOCKETS) -> Any:
        """
        @return: what it answers; None if it says nothing.
        """
        pair.send(message)
        self.attend()
        try:
            data = pair.recv(limits.ANSWER_BYTES + 1)
        except BlockingIOError:
            return None
        return handshake.parse(data) if data else b""

    def test_pages(self) -> None:
        """
        It makes the pages as they are asked for, and hangs up after the last one.
        """
        pair = self.call()
        for n in range(1, 4):
            answer = self.ask(pair)
            self.assertEqual(len(answer.content["rows"]), query.SOCKETS_PER_PAGE)
            self.assertTrue(answer.content["more"])
            self.assertEqual(self.made, n * query.SOCKETS_PER_PAGE)
        self.assertFalse(self.ask(pair).content["more"])
        self.assertEqual(pair.recv(1), b"")
        self.assertEqual(self.device_.counters["handshake_refused"], 0)

    def test_somethingElse(self) -> None:
        """
        An asker may not begin anything else.
        """
        for other in (handshake.Query().pack(), handshake.Refuse(1, "x").pack(), b"x"):
            pair = self.call()
            self.ask(pair)
            answer = self.ask(pair, other)
            self.assertIsInstance(answer, handshake.Refuse)
            self.assertEqual(pair.recv(1), b"")

    def test_noHurry(self) -> None:
        """
        An asker that does not ask for the next page in time is dropped, and so is one that hangs up.
        """
        pair = self.call()
        self.ask(pair)
        fabric = self.device_.fabric
        now = fabric.clock()
        self.assertTrue(now < fabric.deadline() <= now + handshake.HANDSHAKE_SECONDS)
        fabric.tick(now + 2 * handshake.HANDSHAKE_SECONDS)
        self.assertIn(b"silent for 5 seconds", pair.recv(1000))
        self.assertEqual(pair.recv(1), b"")
        self.assertIsNone(fabric.deadline())
        pair = self.call()
        self.ask(pair)
        pair.close()
        self.attend()
        self.assertIsNone(fabric.deadline())
        self.assertEqual(fabric.paths(), [])

    def test_deaf(self) -> None:
        """
        An asker that sends queries and reads nothing is dropped.
        """
        self.device_.socketRows = lambda: ([n, "x" * 10000] for n in range(100000))
        pair = self.call()
        for _ in range(1000):
            try:
                pair.send(SOCKETS)
            except OSError:
                break
            self.attend()
        else:
            self.fail("it still listens")
        self.assertIsNone(self.device_.fabric.deadline())
