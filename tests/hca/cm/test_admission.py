"""
Tests of L{twisted_ib.hca.cm.admission}: half-open connections where sources are addresses, which anyone can
forge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from heapq import heappop, heappush
from itertools import count, cycle

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.cm.net import PERIOD, Net, answers, ask, flood, listening, send
from twisted_ib import limits
from twisted_ib.hca.cm.machine import Connection, Event, State
from twisted_ib.hca.cm.table import ConnectionTable
from twisted_ib.hca.wire.cm.messages import DREP, REJ, REP, REQ, RTU


class AdmissionTests(SynchronousTestCase):
    """
    Who gives way to whom.
    """

    def test_strangers(self) -> None:
        """
        Where sources are addresses, a REQ over the limit evicts the oldest half-open one: of its own source,
        or else of all. The evicted one's listener is notified.
        """
        table = listening()
        table.limitHalfOpen(3, 5)
        flood(table, "x", 5)
        self.assertEqual((len(table), table.counters["halfOpenReplaced"]), (3, 2))
        left = [(c.destination, c.remoteID) for c in table._connections.values()]
        self.assertEqual(left, [("x", 3), ("x", 4), ("x", 5)])
        flood(table, "y", 1)
        second = list(table._connections.values())[1]
        second.accept(REP(), 0.0)
        table.events.clear()
        for number in range(4):
            flood(table, f"z{number}", 1)
        # Those that gave way are the three of x.
        self.assertEqual((len(table), table.counters["halfOpenReplaced"]), (5, 5))
        told = [event[1] for event in table.events if event[0] == Event.UNREACHABLE]
        self.assertIs(told[1], second)
        self.assertEqual([c.destination for c in told], ["x"] * 3)  # type: ignore[union-attr]
        self.assertIsNone(second.deadline)
        self.assertIsNone(table.deadline(False))
        self.assertEqual(len(table._halfOpenLimit.strangers), table._halfOpenLimit.halfOpen)
        for source in ("x", "y", "z0", "z1", "z2", "z3"):
            table.pathLost(source)
        left = table._halfOpenLimit
        self.assertEqual((len(table), left.halfOpen, left.strangers, left.shown), (0, 0, {}, {}))

    def test_shown(self) -> None:
        """
        A source with a connection that came up keeps what it asks for: what comes over the limit of all is
        dropped and may be repeated. After the time that a living peer needs it gives way as all others do.
        """
        table = self.shown(100, 3)
        self.assertEqual([c.remoteID for c in table._connections.values()], [1, 2, 3, 4])
        self.assertEqual((table.counters["halfOpenExceeded"], table.counters["halfOpenReplaced"]), (2, 0))
        late = limits.CM_HALF_OPEN_SECONDS
        send(table, ask(7, localCommunicationID=7, localCAGUID=0xA), "x", late)
        left = [c.remoteID for c in table._connections.values()]
        self.assertEqual((len(left), left[0], left[-1]), (4, 1, 7))

    def test_forgedAsShown(self) -> None:
        """
        Who forges the address of a source with a connection cannot lock it out: over the source's own limit
        its newest REQ takes the place of its oldest that has had its time, and the connection stays.
        """
        table = self.shown(3, 100)
        self.assertEqual([c.remoteID for c in table._connections.values()], [1, 2, 3, 4])
        for number in (7, 8):
            late = limits.CM_HALF_OPEN_SECONDS
            send(table, ask(number, localCommunicationID=number, localCAGUID=0xA), "x", late)
        self.assertEqual([c.remoteID for c in table._connections.values()], [1, 4, 7, 8])
        self.assertEqual((table.counters["halfOpenExceeded"], table.counters["halfOpenReplaced"]), (2, 2))

    def shown(self, *bounds: int) -> ConnectionTable:
        """
        @return: a table with a connection that came up, after which five REQs came from its address.
        """
        table = listening()
        table.limitHalfOpen(*bounds)
        self.openOf(table, "x")
        (first,) = table._connections.values()
        flood(table, "x", 5, 2)
        self.assertEqual(first.state, State.ESTABLISHED)
        return table

    def test_shares(self) -> None:
        """
        Sources that have shown themselves, and those that have not, are sure of half the table each: what one
        kind has beyond that gives way to the other at once.
        """
        table = listening()
        table.limitHalfOpen(limits.CM_HALF_OPEN_PER_ADDRESS, 40)
        limit = table._halfOpenLimit
        for source in ("x", "y"):
            self.openOf(table, source)
            flood(table, source, 20, 2)
        self.assertEqual((len(limit.shown), len(limit.strangers)), (40, 0))
        for number in range(200):
            flood(table, f"z{number}", 1)
        self.assertEqual((len(limit.shown), len(limit.strangers)), (20, 20))
        self.assertEqual({limit.at(number).destination for number in limit.shown}, {"y"})
        flood(table, "x", 1, 100)
        self.assertEqual((len(limit.shown), table.counters["halfOpenExceeded"]), (20, 1))
        for connection in list(limit.shown.values()):
            connection.reject(28, b"", 0.0)
        for number in range(200):
            flood(table, f"z{number}", 1)
        self.assertEqual((len(limit.shown), len(limit.strangers)), (0, 40))
        flood(table, "x", 30, 200)
        self.assertEqual((len(limit.shown), len(limit.strangers)), (20, 20))

    def test_showsItself(self) -> None:
        """
        With its first connection that comes up a source has shown itself: its others are no strangers' any
        more. One that is refused shows nothing.
        """
        table = listening()
        table.limitHalfOpen(limits.CM_HALF_OPEN_PER_ADDRESS, limits.CM_HALF_OPEN_ADDRESSES)
        limit = table._halfOpenLimit
        flood(table, "x", 5)
        first, second = list(table._connections.values())[:2]
        first.reject(28, b"", 0.0)
        self.assertEqual((len(limit.shown), len(limit.strangers)), (0, 4))
        second.accept(REP(), 0.0)
        second.established(0.0)
        self.assertEqual((len(limit.shown), len(limit.strangers), limit.halfOpen), (3, 0, 3))

    def openOf(self, table: ConnectionTable, source: str) -> None:
        """
        Bring up the first connection of a source.
        """
        flood(table, source, 1)
        connection = list(table._connections.values())[-1]
        connection.accept(REP(localQPN=1), 0.0)
        connection.established(0.0)

    def test_hundredAtOnce(self) -> None:
        """
        A hundred connects at once from one address come up, each.
        """
        net = Net()
        net.b.limitHalfOpen(limits.CM_HALF_OPEN_PER_ADDRESS, limits.CM_HALF_OPEN_ADDRESSES)
        active = [net.a.connect("b", ask(number + 1), None, net.now) for number in range(100)]
        net.pump()
        for number, (_, passive, _) in enumerate(net.events["b"]):
            passive.accept(REP(localQPN=number + 1), net.now)
        net.pump()
        for connection in active:
            connection.ready(net.now)
        net.pump()
        for table in (net.a, net.b):
            self.assertEqual({c.state for c in table._connections.values()}, {State.ESTABLISHED})
        self.assertEqual((len(net.b), net.b.counters["halfOpenReplaced"]), (100, 0))

    def test_followed(self) -> None:
        """
        Who follows a table hears of each connection before its REQ, REP or RTU is sent, when it is
        established, and when it has ended, however it does.
        """
        table, seen = listening(), []
        table.limitHalfOpen(2, 2)
        kinds: list[type[object]] = []

        def follow(one: Connection, message: object) -> None:
            """
            Note it.
            """
            kinds.append(type(message))
            seen.append((one.localQPN, one.remoteQPN, one.state, len(table.outputs)))

        table.follow = follow
        for number, last in enumerate((RTU, REJ, None), 1):
            send(table, ask(number, localCommunicationID=number, localCAGUID=0xA))
            event, connection, _ = table.events.popleft()
            assert isinstance(connection, Connection)
            self.assertEqual((event, seen), (Event.REQUEST, []))
            connection.accept(REP(localQPN=0x100 + number), 0.0)
            numbers = 0x100 + number, number
            self.assertEqual(seen, [(*numbers, State.REQ_RCVD, 0)])
            if last is None:
                table.tick(1000.0)  # Once more.
                table.tick(9000.0)
            else:
                send(table, last(number, connection.localID))
            after = State.ESTABLISHED if last is RTU else State.IDLE
            self.assertEqual([each[:3] for each in seen[1:]], [(*numbers, after)])
            self.assertEqual(kinds, [REP, type(None)])
            table.events.clear()
            table.outputs.clear()
            seen.clear()
            kinds.clear()
        for isAnswered in True, False:
            connection = table.connect("peer", ask(9), None, 0.0)
            self.assertEqual(seen, [(9, 0, State.IDLE, 0)])
            table.outputs.clear()
            if isAnswered:
                send(table, REP(8, connection.localID, localQPN=7, localCAGUID=0xA))
                connection.ready(0.0)
                self.assertEqual(seen[1:], [(9, 7, State.REP_RCVD, 0)])
                connection.disconnect(0.0)
                send(table, DREP(8, connection.localID))
                self.assertEqual(seen[2:], [(9, 7, State.TIMEWAIT, 2)])
                self.assertEqual(kinds, [REQ, RTU, type(None)])
            else:
                connection.disconnect(0.0)
                self.assertEqual(seen[1:], [(9, 0, State.IDLE, 1)])
                self.assertEqual(kinds, [REQ, type(None)])
            table.outputs.clear()
            seen.clear()
            kinds.clear()

    def test_strangersCost(self) -> None:
        """
        A source at its limit is answered as fast however many others there are.
        """
        looked = 0

        class Counting(dict[Connection, float]):
            """
            Counts who is looked at.
            """

            def __iter__(self) -> Iterator[Connection]:
                """
                Look at all.
                """
                nonlocal looked
                for each in super().__iter__():
                    looked += 1
                    yield each

        table = listening()
        table.limitHalfOpen(2, 1000)
        table._halfOpenLimit.strangers = Counting()
        for number in range(300):
            flood(table, f"z{number}", 1)
        flood(table, "x", 12)
        self.assertEqual((len(table), table.counters["halfOpenReplaced"]), (302, 10))
        self.assertLess(looked, 20)


class FloodTests(SynchronousTestCase):
    """
    A server that accepts all who ask, and honest clients amid forged REQs, in virtual time.
    """

    #: What an honest client takes from the REP to its RTU, in seconds.
    turn = 0.05

    def setUp(self) -> None:
        """
        The server listens.
        """
        self.table = listening()
        self.table.limitHalfOpen(limits.CM_HALF_OPEN_PER_ADDRESS, limits.CM_HALF_OPEN_ADDRESSES)
        self.now, self.numbers = 0.0, count(1)
        self.due: list[tuple[float, int, Callable[[], None]]] = []
        #: Times of the REQs of each honest connect that is not up, by its communication id.
        self.asking: dict[int, int] = {}
        self.took: list[int] = []

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        """
        Something happens then.
        """
        heappush(self.due, (self.now + seconds, next(self.numbers), what))

    def forge(self, sources: Iterator[str], rate: int, left: int) -> None:
        """
        So many forged REQs come, so many in a second.
        """
        self.request(next(sources), next(self.numbers))
        if left > 1:
            self.later(1 / rate, partial(self.forge, sources, rate, left - 1))

    def connect(self, source: str, number: int) -> None:
        """
        An honest REQ, which is repeated as long as nothing comes.
        """
        self.asking[number] = self.asking.get(number, 0) + 1
        self.request(source, number)
        tries = self.asking[number]
        if tries <= 15:
            self.later(PERIOD, partial(self.again, source, number))

    def again(self, source: str, number: int) -> None:
        """
        Its time is over.
        """
        if number in self.asking:
            self.connect(source, number)

    def request(self, source: str, number: int) -> None:
        """
        A REQ comes; the server's consumer accepts at once whatever its table has taken.
        """
        octets = ask(number, localCommunicationID=number, localCAGUID=0xA).pack()
        self.table.receive(source, 0x10, octets, 0, 232, self.now)
        while (event := self.table.nextEvent()) is not None:
            if event[0] is Event.REQUEST and isinstance(event[1], Connection):
                self.accept(event[1])
        for answer in answers(self.table):
            if isinstance(answer, REP) and answer.remoteCommunicationID in self.asking:
                yours, mine = answer.localCommunicationID, answer.remoteCommunicationID
                self.later(self.turn, partial(self.ready, source, mine, yours))

    def accept(self, connection: Connection) -> None:
        """
        The consumer accepts.
        """
        connection.accept(REP(localQPN=next(self.numbers)), self.now)

    def ready(self, source: str, mine: int, yours: int) -> None:
        """
        An honest client's RTU comes.  It is lost where its connection has given way: dead at one end.
        """
        send(self.table, RTU(mine, yours), source, self.now)
        connection = self.table._connections.get(yours)
        if connection is not None and connection.state is State.ESTABLISHED:
            self.took.append(self.asking.pop(mine))

    def happen(self) -> None:
        """
        Let all happen that is due.
        """
        while self.due:
            self.now, _, what = heappop(self.due)
            what()

    def show(self, *sources: str) -> None:
        """
        Each of them has a connection that came up.
        """
        for source in sources:
            self.connect(source, next(self.numbers))
        self.happen()
        self.assertEqual(self.took, [1] * len(sources))
        self.took.clear()

    def visit(self, source: str, connects: int, seconds: float) -> None:
        """
        Honest connects, spread over some time.
        """
        for each in range(connects):
            self.later(seconds * each / connects, partial(self.connect, source, next(self.numbers)))

    def test_shownFlood(self) -> None:
        """
        Ten thousand REQs a second in the names of four addresses with a connection: strangers, those
        addresses themselves and others come up, each with its first REQ.
        """
        names = [f"shown {number}" for number in range(4)]
        self.show(*names, "other")
        self.forge(cycle(names), 10_000, 20_000)
        self.visit("other", 50, 2.0)
        self.visit("shown 1", 50, 2.0)
        for number in range(50):
            self.visit(f"stranger {number}", 1, 0.0)
            self.later(1.0, partial(self.visit, f"late stranger {number}", 1, 0.0))
        self.happen()
        self.assertEqual((self.took, self.asking), ([1] * 200, {}))

    def test_oneForged(self) -> None:
        """
        Ten thousand a second in the name of one address: it takes no more than its own places, and its owner
        comes up.
        """
        self.show("shown")
        self.forge(cycle(["shown"]), 10_000, 20_000)
        self.visit("shown", 50, 2.0)
        self.later(1.0, partial(self.visit, "stranger", 1, 0.0))
        self.happen()
        self.assertEqual((self.took, self.asking), ([1] * 51, {}))
        self.assertLessEqual(len(self.table), limits.CM_HALF_OPEN_PER_ADDRESS + 53)

    def test_strangersFlood(self) -> None:
        """
        Ten thousand a second from as many addresses: a thousand connects at once from one address come up,
        each.
        """
        self.forge((f"forged {number}" for number in count()), 10_000, 20_000)
        self.later(1.0, partial(self.visit, "burst", 1000, 0.0))
        self.happen()
        self.assertEqual((self.took, self.asking), ([1] * 1000, {}))
        self.assertLessEqual(len(self.table), limits.CM_HALF_OPEN_ADDRESSES + 1000)
