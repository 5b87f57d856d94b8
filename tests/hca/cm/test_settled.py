"""
Tests of L{twisted_ib.hca.cm.peer.SettledConnections}: established connections that queue pairs stand for.
"""

from __future__ import annotations

import random
from functools import partial
from types import SimpleNamespace
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.cm.net import Net, ask, send
from twisted_ib import limits
from twisted_ib.errors import ResourceLimitError
from twisted_ib.hca.cm.machine import Connection, Event
from twisted_ib.hca.cm.peer import Peer
from twisted_ib.hca.wire.cm.messages import DREQ, REP


class SettledTests(SynchronousTestCase):
    """
    Two tables between which nothing is lost.
    """

    def setUp(self) -> None:
        """
        Their users, by queue pair number.
        """
        self.net = Net()
        self.users: dict[str, dict[int, Any]] = {"a": {}, "b": {}}
        for name, users in self.users.items():
            table = self.net.table(name)
            table.lossless, table.draw = True, partial(random.Random(1).getrandbits, 24)
            table.settled.userOf = users.get

    def opened(self, number: int = 7, other: int = 0, isLate: bool = False) -> tuple[Connection, Connection]:
        """
        @param other: The passive side's queue pair, if not its communication id.
        @param isLate: Whether it has asked for time.
        @return: both ends.
        """
        net = self.net
        active = net.a.connect("b", ask(number), None, net.now, number)
        net.pump()
        _, passive, _ = net.events["b"].pop()
        if isLate:
            passive.sendMRA(net.now)
        passive.accept(REP(localQPN=other or passive.localID), net.now, False)
        net.pump()
        active.ready(net.now, isConfirmed=False)
        net.events["a"].clear()
        return active, passive

    def settled(self, number: int = 7) -> list[Any]:
        """
        @return: the users of both ends.
        """
        found = []
        for name, end in zip("ab", self.opened(number), strict=True):
            user = SimpleNamespace(queuePair=SimpleNamespace(number=end.localID, remote=end.remoteID))
            user.connection = self.net.table(name).settled.settle(end)
            self.assertIsInstance(user.connection, Peer)
            self.users[name][end.localID] = user
            found.append(user)
        return found

    def counts(self) -> list[tuple[int, int, int]]:
        """
        @return: of each table: its connections, those among them that are objects, and its peers.
        """
        tables = self.net.a, self.net.b
        return [(len(each), len(each._connections), len(each._peers)) for each in tables]

    def test_finished(self) -> None:
        """
        It counts as one, and its end leaves nothing; no message is needed.
        """
        one, two = self.settled()
        self.settled(8)
        self.assertEqual(self.counts(), [(2, 0, 1)] * 2)
        sent = len(self.net.carried)
        for table, user in ((self.net.a, one), (self.net.b, two)):
            self.assertTrue(table.settled.finish(user.connection))
        self.assertEqual((self.counts(), len(self.net.carried)), ([(1, 0, 1)] * 2, sent))

    def test_disconnected(self) -> None:
        """
        A DREQ is sent, and answered, as if it were an object still; the users have that then.
        """
        one, two = self.settled()
        connection: Any = self.net.a.settled.resume(one.connection, one)
        self.assertIs(one.connection, connection)
        connection.disconnect(self.net.now, b"why")
        self.net.pump()
        [(kind, ended, message)] = self.net.events["b"]
        self.assertEqual((kind, ended.user, ended), (Event.DISCONNECTED, two, two.connection))
        self.assertEqual(message.privateData.rstrip(b"\0"), b"why")
        self.assertEqual(self.net.kinds("a"), [Event.DISCONNECTED])
        self.assertEqual(self.counts(), [(0, 0, 0)] * 2)

    def test_foreign(self) -> None:
        """
        Only the peer ends one, by both numbers.
        """
        _, two = self.settled()
        number, remote = two.queuePair.number, two.queuePair.remote
        self.users["b"][number + 1] = SimpleNamespace()
        for source, ids in (
            ("c", (remote, number)),
            ("a", (remote + 1, number)),
            ("a", (remote, number + 1)),
        ):
            send(self.net.b, DREQ(*ids, ids[1]), source)
            self.assertEqual(self.counts()[1], (1, 0, 1), ids)
        self.assertEqual(self.net.b.counters["unknownID"], 3)

    def test_unfit(self) -> None:
        """
        It stays an object with other numbers, after an MRA, since its REQ may come again then, and before it
        is established.
        """
        asked = self.net.a.connect("b", ask(30), None, self.net.now, 30)
        ends = [asked, *self.opened(10, other=0x999), self.opened(20, isLate=True)[1]]
        for end in ends:
            self.assertIs(end.peer.table.settled.settle(end), end)
        self.net.b.settled.userOf = None
        passive = self.opened(40)[1]
        self.assertIs(self.net.b.settled.settle(passive), passive)

    def test_pathLost(self) -> None:
        """
        They end with the path, and their users have nothing to end any more.
        """
        one, two = self.settled()
        for table, source, user in ((self.net.a, "b", one), (self.net.b, "a", two)):
            self.assertEqual(table.pathLost(source), [])
            self.assertIsNone(table.settled.resume(user.connection, user))
            self.assertFalse(table.settled.finish(user.connection))
        self.assertEqual(self.counts(), [(0, 0, 0)] * 2)

    def test_bounds(self) -> None:
        """
        A table holds no more of them than objects, in all and of a peer.
        """
        self.settled(1), self.settled(2)
        self.patch(limits, "CM_CONNECTIONS_PER_PATH", 2)
        self.net.a.connect("b", ask(3), None, self.net.now)
        self.net.pump()
        self.assertEqual((self.net.b.counters["connectionsExceeded"], self.net.events["b"]), (1, []))
        self.patch(limits, "CM_CONNECTIONS", 3)
        self.assertRaises(ResourceLimitError, self.net.a.connect, "b", ask(4), None, self.net.now)
