"""
Tests of L{twisted_ib.hca.host.query}, and of the descriptor that they share.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
from types import SimpleNamespace
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.memorylink import MemoryLink, Wire
from tests.support.rundirectory import ownRunDirectory
from twisted_ib import limits
from twisted_ib.hca.fabric.base.waker import LinkWaker
from twisted_ib.hca.host import handshake, query
from twisted_ib.hca.host.handshake import Query, Subject
from twisted_ib.hca.host.query import QueryServer
from twisted_ib.hca.host.search import Search

GUID = 0x0200000000000001


class Owner:
    """
    Says something of itself.
    """

    def describe(self) -> dict[str, Any]:
        """
        One answer.
        """
        return {"hca_id": "roce0"}

    def describeSockets(self) -> Any:
        """
        Two pages.
        """
        return iter([{"rows": [1], "more": True}, {"rows": [2], "more": False}])


class InquiriesTests(SynchronousTestCase):
    """
    Those who ask.
    """

    def setUp(self) -> None:
        """
        An HCA that is found.
        """
        ownRunDirectory(self)
        self.inquiries = QueryServer(Owner(), GUID)
        self.addCleanup(self.inquiries.close)

    def call(self) -> socket.socket:
        """
        @return: the way to it.
        """
        search = Search()
        self.addCleanup(search.close)
        [entry] = search.hcas()
        self.assertEqual(entry.guid, GUID)
        found = search.connect(entry)
        self.addCleanup(found.close)
        self.attend()
        return found

    def attend(self) -> None:
        """
        Serve while the descriptor says so.
        """
        while select.select([self.inquiries], [], [], 0)[0]:
            self.inquiries.attend()

    def ask(self, pair: socket.socket, message: bytes) -> dict[str, Any] | None:
        """
        @return: the answer; L{None} if there is none, and never will be.
        """
        pair.send(message)
        self.attend()
        data = pair.recv(limits.ANSWER_BYTES)
        answer: Any = handshake.parse(data) if data else None
        return None if answer is None else answer.content

    def test_device(self) -> None:
        """
        A query about the device is answered, and the connection closed.
        """
        pair = self.call()
        self.assertEqual(self.ask(pair, Query().pack()), {"hca_id": "roce0"})
        self.assertEqual(pair.recv(1), b"")

    def test_sockets(self) -> None:
        """
        A query about sockets is answered page after page.
        """
        pair, query = self.call(), Query(Subject.SOCKETS).pack()
        pages = [self.ask(pair, query) for _ in range(2)]
        self.assertEqual([page and page["rows"] for page in pages], [[1], [2]])
        self.assertEqual(pair.recv(1), b"")

    def test_directoryRemoved(self) -> None:
        """
        The entry is made anew when the run directory was removed, also twice; not where it may not be.
        """
        place = os.environ["TWISTED_IB_RUN_DIR"]
        for _ in range(2):
            shutil.rmtree(place)
            self.inquiries.attend()
            self.test_device()
        shutil.rmtree(place)
        os.symlink("/", place)
        self.inquiries.attend()
        self.inquiries.attend()
        self.assertEqual(os.readlink(place), "/")

    def test_touched(self) -> None:
        """
        What changes the entry and does not remove it changes nothing; a stranger is not heard, and one that
        has gone before it was accepted is forgotten.
        """
        before = self.inquiries._rendezvous
        os.chmod(before._home.socketPath(before.name), 0o600)
        self.attend()
        self.assertIs(self.inquiries._rendezvous, before)
        self.assertEqual(self.ask(self.call(), Query().pack()), {"hca_id": "roce0"})
        self.patch(before, "allows", lambda uid: False)
        self.assertEqual(self.call().recv(1), b"")
        self.assertEqual(self.inquiries._askers, {})

    def test_nonsense(self) -> None:
        """
        Any other message is not answered: there is nothing to connect to.
        """
        for message in (b"nonsense", Query().pack()[:-1], Query(Subject.SOCKETS).pack() + b"x"):
            self.assertIsNone(self.ask(self.call(), message))
        self.call().close()
        self.attend()
        self.assertEqual(self.ask(self.call(), Query().pack()), {"hca_id": "roce0"})

    def test_silent(self) -> None:
        """
        Of many who say nothing the oldest gives way.
        """
        calls = [self.call() for _ in range(query.QUERY_CLIENTS + 1)]
        self.assertEqual(calls[0].recv(1), b"")
        for pair in calls[1:]:
            self.assertEqual(self.ask(pair, Query().pack()), {"hca_id": "roce0"})

    def test_closed(self) -> None:
        """
        It is not found any more, and hears nobody.
        """
        pair = self.call()
        self.inquiries.close()
        self.inquiries.attend()
        self.assertEqual(pair.recv(1), b"")
        search = Search()
        self.addCleanup(search.close)
        self.assertEqual(search.hcas(), [])


class WakerTests(SynchronousTestCase):
    """
    L{LinkWaker}: one descriptor for all that may happen.
    """

    def setUp(self) -> None:
        """
        A link without a descriptor.
        """
        link = MemoryLink(Wire(), "192.0.2.1")
        self.waker = LinkWaker(link)
        self.addCleanup(self.waker.close)

    def isReadable(self) -> bool:
        """
        @return: whether the descriptor says that there is something.
        """
        return bool(select.select([self.waker.fileno()], [], [], 0)[0])

    def test_early(self) -> None:
        """
        A signal before the descriptor was asked for is not lost.
        """
        self.waker.signal()
        self.assertTrue(self.isReadable())
        self.waker.attend()
        self.assertFalse(self.isReadable())
        self.waker.signal()
        self.waker.signal()
        self.assertTrue(self.isReadable())
        self.waker.attend()
        self.assertFalse(self.isReadable())

    def test_moves(self) -> None:
        """
        The link ends the sleeps of the reactor that has it now, be it by an epoll object or by the
        descriptor, and of none before it.
        """
        here, there = socket.socketpair()
        pollers = select.epoll(), select.epoll()
        waker = LinkWaker(SimpleNamespace(fileno=here.fileno, pending=lambda: False))
        for each in (here, there, *pollers, waker):
            self.addCleanup(each.close)

        def ended() -> list[bool]:
            there.send(b"x")
            found = [*map(bool, (each.poll(0) for each in pollers))]
            return [*found, bool(select.select([waker.fileno()], [], [], 0)[0])]

        self.assertEqual(ended(), [False, False, True])
        for place in (0, 1, None, 1, 0, None):
            waker.watchIn(None if place is None else pollers[place])
            self.assertEqual(ended(), [place == 0, place == 1, place is None])
        # A reactor that is closed has closed its own.
        waker.watchIn(pollers[0])
        pollers[0].close()
        waker.watchIn(None)
        self.assertTrue(select.select([waker.fileno()], [], [], 0)[0])

    def test_watched(self) -> None:
        """
        Another descriptor makes it readable, too, and who watches takes what is there.
        """
        reading, writing = os.pipe()
        self.addCleanup(os.close, reading)
        self.addCleanup(os.close, writing)
        taken: list[bytes] = []
        self.waker.watch(reading, lambda: taken.append(os.read(reading, 9)))
        self.assertFalse(self.isReadable())
        os.write(writing, b"something")
        self.assertTrue(self.isReadable())
        self.waker.attend()
        self.assertEqual((taken, self.isReadable()), ([b"something"], False))
