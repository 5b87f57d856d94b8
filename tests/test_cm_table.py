"""
Tests of L{twisted_ib.hca.cm.table}: tables of connections that talk.
"""

from __future__ import annotations

import gc
import random
import weakref
from typing import Any
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib import limits
from twisted_ib.errors import ResourceLimitError, ServiceInUseError
from twisted_ib.hca.cm.machine import Connection, Event, State
from twisted_ib.hca.cm.table import COUNTERS, ConnectionTable
from twisted_ib.hca.wire import cm
from twisted_ib.hca.wire.cm import (
    APR,
    DREP,
    DREQ,
    LAP,
    MRA,
    REJ,
    REP,
    REQ,
    RTU,
    SIDR_REP,
    SIDR_REQ,
    Path,
    RejectReason,
)

SERVICE = 0x11C06
#: Path timeout 17 is 512 ms, so packet lifetime 16 is 256 ms.
PERIOD = 2 * 0.256 + 4.096
TIMEWAIT = 0.512


def ask(queuePair: int = 1, **fields: Any) -> REQ:
    """
    A REQ as RDMA-CM makes them.
    """
    fields.setdefault("primaryPath", Path(localACKTimeout=17))
    fields.setdefault("maxCMRetries", 15)
    return REQ(
        serviceID=SERVICE,
        localQPN=queuePair,
        remoteCMResponseTimeout=20,
        localCMResponseTimeout=20,
        **fields,
    )


class Net:
    """
    Two tables, C{a} and C{b}; each calls the other by its name.

    @ivar events: all that happened, by name of the table.
    @ivar carried: attributes of what was sent, with the sender's name.
    @ivar lose: attributes of messages to lose, how often.
    """

    def __init__(self, seed: int = 1) -> None:
        """
        Nobody is connected.
        """
        bits = random.Random(seed).getrandbits
        self.a = ConnectionTable(0xA, bits)
        self.b = ConnectionTable(0xB, bits)
        self.b.listen(SERVICE, "listener")
        self.now = 0.0
        self.events: dict[str, list[Any]] = {"a": [], "b": []}
        self.carried: list[tuple[str, type[cm.AnyMessage]]] = []
        self.octets: list[bytes] = []
        self.lose: dict[type[cm.AnyMessage], int] = {}

    def table(self, name: str) -> ConnectionTable:
        """
        C{a} or C{b}.
        """
        return self.a if name == "a" else self.b

    def pump(self) -> None:
        """
        Carry messages until there are none.
        """
        moving = True
        while moving:
            moving = False
            for name in "ab":
                while (output := self.table(name).nextOutput()) is not None:
                    moving = True
                    self.carry(name, *output)
                while (event := self.table(name).nextEvent()) is not None:
                    self.events[name].append(event)

    def carry(self, name: str, destination: str, attribute: int, octets: bytes) -> None:
        """
        Carry or lose one message.
        """
        kind = cm.byAttribute[attribute]
        self.carried.append((name, kind))
        self.octets.append(octets)
        if self.lose.get(kind, 0):
            self.lose[kind] -= 1
            return
        self.table(destination).receive(name, attribute, octets, 0, len(octets), self.now)

    def wait(self, seconds: float) -> None:
        """
        Let time pass.
        """
        end = self.now + seconds
        self.pump()
        while True:
            due = [at for at in (self.a.deadline(), self.b.deadline()) if at is not None and at <= end]
            self.now = min(due, default=end)
            self.a.tick(self.now)
            self.b.tick(self.now)
            self.pump()
            if not due:
                return

    def kinds(self, name: str) -> list[Event]:
        """
        Take the events of one side.
        """
        kinds = [event[0] for event in self.events[name]]
        self.events[name].clear()
        return kinds

    def request(self, queuePair: int = 1, **fields: Any) -> tuple[Connection, Connection]:
        """
        Bring a REQ over.
        """
        active = self.a.connect("b", ask(queuePair, **fields), "user", self.now)
        self.pump()
        event, passive, _ = self.events["b"].pop()
        assert event is Event.REQUEST
        return active, passive

    def open(self, queuePair: int = 1, **fields: Any) -> tuple[Connection, Connection]:
        """
        Make a connection.
        """
        active, passive = self.request(queuePair, **fields)
        passive.accept(REP(localQPN=queuePair + 0x1000), self.now)
        self.pump()
        active.ready(self.now)
        self.pump()
        self.kinds("a")
        self.kinds("b")
        return active, passive


def send(
    table: ConnectionTable, message: cm.AnyMessage, source: str = "peer", now: float = 0.0
) -> list[cm.AnyMessage]:
    """
    Give a message to a table.

    @return: what it answers.
    """
    octets = message.pack()
    table.receive(source, message.attribute, octets, 0, len(octets), now)
    return answers(table)


def answers(table: ConnectionTable) -> list[cm.AnyMessage]:
    """
    Take what a table sends.
    """
    found = []
    while (output := table.nextOutput()) is not None:
        found.append(cm.byAttribute[output[1]].parse(output[2], 0, 232))
    return found


class OpenTests(SynchronousTestCase):
    """
    Opening and closing on a wire that loses nothing.
    """

    def test_threeMessages(self) -> None:
        """
        REQ, REP, RTU; both ends know each other's ids and numbers, and
        nothing waits for a timer.
        """
        net = Net()
        active, passive = net.open(7)
        self.assertEqual(net.carried, [("a", REQ), ("b", REP), ("a", RTU)])
        for one, other in ((active, passive), (passive, active)):
            self.assertEqual(one.state, State.ESTABLISHED)
            self.assertEqual(one.remoteID, other.localID)
            self.assertEqual(one.remoteQPN, other.localQPN)
        self.assertEqual((active.localQPN, passive.localQPN), (7, 0x1007))
        self.assertEqual((active.remoteCAGUID, passive.remoteCAGUID), (0xB, 0xA))
        self.assertEqual((active.user, passive.user, passive.listener), ("user", None, "listener"))
        for table in (net.a, net.b):
            self.assertIsNone(table.deadline())
            self.assertEqual(len(table._deadlines), 0)
            self.assertEqual(sum(table.counters.values()), 0)

    def test_events(self) -> None:
        """
        Each step is reported with its message.
        """
        net = Net()
        active = net.a.connect("b", ask(privateData=b"hello"), None, 0.0)
        net.pump()
        [(event, passive, request)] = net.events["b"]
        self.assertIs(event, Event.REQUEST)
        self.assertEqual(request.privateData, b"hello".ljust(92, b"\0"))
        self.assertEqual((request.localCAGUID, request.localCommunicationID), (0xA, active.localID))
        passive.accept(REP(privateData=b"welcome"), 0.0)
        net.pump()
        [(event, connection, reply)] = net.events["a"]
        self.assertEqual((event, connection), (Event.REPLY, active))
        self.assertEqual(reply.privateData, b"welcome".ljust(196, b"\0"))
        active.ready(0.0)
        net.pump()
        [_, (event, connection, ready)] = net.events["b"]
        self.assertEqual((event, connection), (Event.ESTABLISHED, passive))
        self.assertIsInstance(ready, RTU)

    def test_firstData(self) -> None:
        """
        Data is as good as an RTU; the RTU that follows is nothing new.
        """
        net = Net()
        active, passive = net.request()
        passive.accept(REP(), 0.0)
        net.pump()
        self.assertTrue(passive.established(0.0))
        self.assertFalse(passive.established(0.0))
        active.ready(0.0)
        net.pump()
        self.assertEqual(net.kinds("b"), [Event.ESTABLISHED])
        self.assertIsNone(net.b.deadline())

    def test_disconnect(self) -> None:
        """
        DREQ, DREP; both ends are told once, and their ids stay reserved for
        the path's timeout.
        """
        for closer, other in (("a", "b"), ("b", "a")):
            net = Net()
            connections = dict(zip("ab", net.open(7), strict=True))
            net.carried.clear()
            connections[closer].disconnect(net.now)
            net.pump()
            self.assertEqual(net.carried, [(closer, DREQ), (other, DREP)])
            for name in "ab":
                self.assertEqual(net.kinds(name), [Event.DISCONNECTED])
                self.assertEqual(connections[name].state, State.TIMEWAIT)
                self.assertEqual(len(net.table(name)), 0)
                self.assertEqual(net.table(name).deadline(), net.now + TIMEWAIT)
                self.assertIsNone(net.table(name).deadline(withTimewait=False))
            net.wait(1.0)
            self.assertEqual(net.events["a"], [(Event.TIMEWAIT_EXIT, None, 7)])
            self.assertEqual(net.events["b"], [(Event.TIMEWAIT_EXIT, None, 0x1007)])
            self.assertEqual((net.a._peers, net.b._peers), ({}, {}))

    def test_crossingDREQs(self) -> None:
        """
        Both disconnect at a time: each DREQ is answered, each end is told
        once, and the DREPs that come late change nothing.
        """
        net = Net()
        active, passive = net.open()
        net.carried.clear()
        active.disconnect(0.0)
        passive.disconnect(0.0)
        net.pump()
        self.assertEqual(
            sorted(net.carried, key=str),
            sorted([*([("a", DREQ), ("b", DREQ)]), ("a", DREP), ("b", DREP)], key=str),
        )
        self.assertEqual((net.kinds("a"), net.kinds("b")), ([Event.DISCONNECTED], [Event.DISCONNECTED]))
        self.assertEqual((active.state, passive.state), (State.TIMEWAIT, State.TIMEWAIT))
        self.assertIsNone(net.a.deadline(withTimewait=False))

    def test_nobodyListens(self) -> None:
        """
        REJ 8, as Linux writes it, and nothing is remembered.
        """
        net = Net()
        net.b.unlisten(SERVICE)
        active = net.a.connect("b", ask(), None, 0.0)
        net.pump()
        [(event, connection, reject)] = net.events["a"]
        self.assertEqual((event, connection), (Event.REJECTED, active))
        self.assertEqual(reject, REJ(0, active.localID, 0, 0, 8, bytes(72), bytes(148)))
        self.assertEqual((len(net.a), len(net.b), net.b._peers), (0, 0, {}))
        self.assertEqual(net.b.counters["noListener"], 1)

    def test_reject(self) -> None:
        """
        A listener refuses, with private data.
        """
        net = Net()
        _, passive = net.request()
        passive.reject(RejectReason.CONSUMER_DEFINED, b"no", 0.0)
        net.pump()
        [(event, _, reject)] = net.events["a"]
        self.assertIs(event, Event.REJECTED)
        self.assertEqual((reject.reason, reject.privateData[:3]), (28, b"no\0"))
        self.assertEqual((len(net.a), len(net.b), net.a._peers, net.b._peers), (0, 0, {}, {}))

    def test_rejectReply(self) -> None:
        """
        The active side refuses the REP.
        """
        net = Net()
        active, passive = net.request()
        passive.accept(REP(), 0.0)
        net.pump()
        active.reject(28, b"", 0.0)
        net.pump()
        self.assertEqual(net.kinds("b"), [Event.REJECTED])
        self.assertEqual((len(net.a), len(net.b), net.b._halfOpen), (0, 0, 0))
        self.assertIsNone(net.b.deadline())

    def test_ignored(self) -> None:
        """
        A REQ that the listener has no room for is forgotten; its retry is a
        new one, and can be accepted.
        """
        net = Net()
        active, passive = net.request()
        self.assertTrue(passive.ignore(0.0))
        self.assertEqual((len(net.b), net.b._peers, net.b._halfOpen), (0, {}, 0))
        net.wait(PERIOD)
        [(event, again, _)] = net.events["b"]
        self.assertIs(event, Event.REQUEST)
        self.assertIsNot(again, passive)
        again.accept(REP(), net.now)
        net.pump()
        self.assertEqual((net.kinds("a"), active.state), ([Event.REPLY], State.REP_RCVD))

    def test_abandon(self) -> None:
        """
        The active side gives up before it knows the other's id; the passive
        side finds its end by CA GUID and id, also after it accepted.
        """
        for accepted in (False, True):
            net = Net()
            active, passive = net.request()
            if accepted:
                passive.accept(REP(), 0.0)
                net.b.outputs.clear()
            active.abandon(0.0)
            net.pump()
            self.assertEqual(net.kinds("b"), [Event.REJECTED])
            self.assertEqual(passive.state, State.IDLE)
            self.assertFalse(passive.reject(28, b"", 0.0))
            self.assertEqual((len(net.a), len(net.b)), (0, 0))

    def test_listenTwice(self) -> None:
        """
        A service has one listener at a time.
        """
        net = Net()
        self.assertRaises(ServiceInUseError, net.b.listen, SERVICE, None)
        net.b.unlisten(SERVICE)
        net.b.unlisten(SERVICE)
        net.b.listen(SERVICE, "another")
        _, passive = net.request()
        self.assertEqual(passive.listener, "another")

    def test_loopback(self) -> None:
        """
        A table can connect to itself.
        """
        table = ConnectionTable(1, random.Random(1).getrandbits)
        table.listen(SERVICE, None)

        def carry() -> None:
            while (output := table.nextOutput()) is not None:
                table.receive(output[0], output[1], output[2], 0, 232, 0.0)

        active = table.connect("me", ask(1), None, 0.0)
        carry()
        event = table.nextEvent()
        assert event is not None
        passive = event[1]
        assert passive is not None
        passive.accept(REP(localQPN=2), 0.0)
        carry()
        active.ready(0.0)
        carry()
        self.assertEqual((active.state, passive.state, len(table)), (State.ESTABLISHED,) * 2 + (2,))
        active.disconnect(0.0)
        carry()
        self.assertEqual((active.state, passive.state, len(table)), (State.TIMEWAIT,) * 2 + (0,))
        self.assertEqual(table.counters, dict.fromkeys(COUNTERS, 0))

    def test_badRequest(self) -> None:
        """
        A REQ that can not be written leaves nothing behind.
        """
        net = Net()
        self.assertRaises(ValueError, net.a.connect, "b", ask(1 << 24), None, 0.0)
        self.assertEqual((len(net.a), net.a._peers, net.a.deadline()), (0, {}, None))


class TimerTests(SynchronousTestCase):
    """
    Messages that get lost.
    """

    def test_lostREQ(self) -> None:
        """
        A REQ is sent again, the same octets, after twice the packet lifetime
        and the peer's response time.
        """
        net = Net()
        net.lose = {REQ: 2}
        net.a.connect("b", ask(), None, 0.0)
        net.pump()
        self.assertEqual(net.a.deadline(), PERIOD)
        net.wait(2 * PERIOD - 0.001)
        self.assertEqual(len(net.octets), 2)
        net.wait(0.002)
        self.assertEqual(net.kinds("b"), [Event.REQUEST])
        self.assertEqual(len(set(net.octets)), 1)
        self.assertEqual(net.a.counters["retransmitted"], 2)

    def test_deadPeer(self) -> None:
        """
        The REQ goes out 16 times; after the 16th wait the peer is unreachable.
        """
        net = Net()
        net.lose = {REQ: 99}
        active = net.a.connect("b", ask(), None, 0.0)
        net.wait(16 * PERIOD - 0.001)
        self.assertEqual((len(net.octets), net.kinds("a")), (16, []))
        net.wait(0.002)
        self.assertEqual((len(net.octets), net.kinds("a")), (16, [Event.UNREACHABLE]))
        self.assertEqual((active.state, len(net.a), net.a._peers), (State.IDLE, 0, {}))
        self.assertIsNone(net.a.deadline())

    def test_lostREP(self) -> None:
        """
        A REP is sent again after the REQ's local response time; the REQs that
        come meanwhile are dropped.
        """
        net = Net()
        _, passive = net.request(maxCMRetries=3)
        net.lose = {REP: 99}
        passive.accept(REP(), 0.0)
        net.pump()
        self.assertEqual(net.b.deadline(), 4.096)
        net.wait(4 * 4.096 - 0.001)
        self.assertEqual((net.carried.count(("b", REP)), net.kinds("b")), (4, []))
        net.wait(0.002)
        self.assertEqual(net.kinds("b"), [Event.UNREACHABLE])
        self.assertEqual(net.b.counters["repeatedREQ"], 3)
        self.assertEqual((len(net.b), net.b._halfOpen), (0, 0))

    def test_lostRTU(self) -> None:
        """
        The REP comes again, and so does the RTU.
        """
        net = Net()
        net.lose = {RTU: 1}
        active, passive = net.open()
        self.assertEqual((active.state, passive.state), (State.ESTABLISHED, State.REP_SENT))
        net.wait(5.0)
        self.assertEqual(passive.state, State.ESTABLISHED)
        self.assertEqual((net.kinds("a"), net.kinds("b")), ([], [Event.ESTABLISHED]))
        self.assertEqual(len(net.b._deadlines), 0)

    def test_lostDREQ(self) -> None:
        """
        A DREQ that is never answered ends in TIMEWAIT all the same.
        """
        net = Net()
        active, _ = net.open(maxCMRetries=2)
        net.lose = {DREQ: 99}
        active.disconnect(net.now)
        net.wait(3 * PERIOD)
        self.assertEqual(net.carried.count(("a", DREQ)), 3)
        self.assertEqual(net.events["a"], [(Event.DISCONNECTED, active, None)])
        self.assertEqual(active.state, State.TIMEWAIT)

    def test_lostDREP(self) -> None:
        """
        The DREQ that comes again in TIMEWAIT, and after it, is answered.
        """
        net = Net()
        active, _ = net.open()
        net.lose = {DREP: 1}
        active.disconnect(net.now)
        net.wait(PERIOD)
        self.assertEqual(net.carried.count(("b", DREP)), 2)
        self.assertEqual(net.kinds("b"), [Event.DISCONNECTED, Event.TIMEWAIT_EXIT])
        self.assertEqual(net.kinds("a"), [Event.DISCONNECTED])

    def test_MRA(self) -> None:
        """
        An MRA makes the active side wait once for as long as it says and the
        path takes, not longer for a second one; then retries go on.
        """
        net = Net()
        _, passive = net.request()
        passive.think(0.0, serviceTimeout=24)
        net.wait(PERIOD)
        self.assertEqual(net.carried, [("a", REQ), ("a", REQ), ("b", MRA)])
        extended = PERIOD + 65.536 + 0.512
        self.assertAlmostEqual(net.a.deadline() or 0, extended)
        send(net.a, MRA(passive.localID, passive.remoteID, 0, 31), "b", net.now)
        self.assertAlmostEqual(net.a.deadline() or 0, extended)
        self.assertEqual(net.a.counters["unexpected"], 1)
        net.wait(65.536 + 0.513)
        self.assertEqual(net.carried[3:], [("a", REQ), ("b", MRA)])
        self.assertAlmostEqual(net.a.deadline() or 0, extended + PERIOD)
        passive.accept(REP(), net.now)
        net.pump()
        self.assertEqual(net.kinds("a"), [Event.REPLY])

    def test_MRAofREP(self) -> None:
        """
        The same on the other side.
        """
        net = Net()
        active, passive = net.request()
        passive.accept(REP(), 0.0)
        net.pump()
        active.think(0.0, serviceTimeout=20)
        net.wait(4.2)
        self.assertEqual(passive.state, State.MRA_REP_RCVD)
        self.assertAlmostEqual(net.b.deadline() or 0, 4.096 + 4.096 + 0.512)
        active.ready(net.now)
        net.pump()
        self.assertEqual(passive.state, State.ESTABLISHED)

    def test_manyDeadlines(self) -> None:
        """
        Deadlines that are no longer meant do not pile up.
        """
        net = Net()
        held = net.a.connect("b", ask(1), None, 0.0)
        for number in range(2000):
            net.a.connect("b", ask(2 + number), None, 0.0).abandon(0.0)
            self.assertTrue(len(net.a._deadlines) <= 2 + limits.CM_IDLE_DEADLINES)
        self.assertEqual(net.a.deadline(), PERIOD)
        held.abandon(0.0)
        self.assertEqual((net.a.deadline(), len(net.a._deadlines)), (None, 0))

    def test_randomLoss(self) -> None:
        """
        Whatever is lost, twice delivered or late, both ends come to an end
        that fits, and nothing stays behind.
        """
        for seed in range(60):
            self.randomStory(seed)

    def randomStory(self, seed: int) -> None:
        """
        Twenty connections on a bad wire.
        """
        bad = random.Random(seed)
        net = Net(seed)
        late: list[tuple[str, str, int, bytes]] = []

        def carry(name: str, destination: str, attribute: int, octets: bytes) -> None:
            for _ in range(bad.choice((0, 1, 1, 1, 2))):
                late.append((name, destination, attribute, octets))
            while late and bad.random() < 0.6:
                sender, target, kind, message = late.pop(bad.randrange(len(late)))
                net.table(target).receive(sender, kind, message, 0, 232, net.now)

        net.carry = carry  # type: ignore[method-assign]
        active = [net.a.connect("b", ask(number + 1), None, 0.0) for number in range(20)]
        ends: dict[str, set[Connection]] = {"a": set(active), "b": set()}
        for _ in range(400):
            net.wait(0.5)
            for name in "ab":
                events, net.events[name] = net.events[name], []
                for event, connection, _ in events:
                    if event is Event.REQUEST:
                        ends["b"].add(connection)
                        connection.accept(REP(localQPN=0x1000 + len(ends["b"])), net.now)
                    elif event is Event.REPLY:
                        connection.ready(net.now)
                    elif event is Event.ESTABLISHED and bad.random() < 0.5:
                        connection.disconnect(net.now)
            if net.now > 80:
                for connection in active:
                    connection.disconnect(net.now)
        states = {connection.state for name in "ab" for connection in ends[name]}
        self.assertTrue(states <= {State.IDLE, State.TIMEWAIT, State.ESTABLISHED}, f"seed {seed}: {states}")
        self.assertEqual((len(net.a), net.a._peers, net.a.deadline()), (0, {}, None), f"seed {seed}")
        self.assertEqual((net.b._halfOpen, net.b.deadline()), (0, None), f"seed {seed}")


class StaleTests(SynchronousTestCase):
    """
    Peers that started again.
    """

    def test_staleREQ(self) -> None:
        """
        A new REQ from the queue pair of an open connection is refused with
        REJ 10, and the old connection is ended.
        """
        net = Net()
        _, passive = net.open(7)
        found = send(net.b, ask(7, localCommunicationID=99, localCAGUID=0xA), "a")
        self.assertEqual([type(message) for message in found], [REJ, DREQ])
        assert isinstance(found[0], REJ)
        self.assertEqual(found[0], REJ(0, 99, 0, 0, 10, bytes(72), bytes(148)))
        self.assertEqual(found[1], DREQ(passive.localID, passive.remoteID, 7, bytes(220)))
        self.assertEqual((passive.state, net.b.counters["stale"]), (State.DREQ_SENT, 1))
        send(net.b, DREP(passive.remoteID, passive.localID), "a")
        self.assertEqual(send(net.b, ask(7, localCommunicationID=100, localCAGUID=0xA), "a"), [])
        self.assertEqual(len(net.b), 1)

    def test_otherGUID(self) -> None:
        """
        The same numbers at another CA are another queue pair.
        """
        net = Net()
        _, passive = net.open(7)
        message = ask(7, localCommunicationID=passive.remoteID, localCAGUID=0xC)
        self.assertEqual(send(net.b, message, "a"), [])
        self.assertEqual((passive.state, len(net.b)), (State.ESTABLISHED, 2))

    def test_staleREP(self) -> None:
        """
        A REP from the queue pair of an open connection is refused.
        """
        net = Net()
        active, _ = net.open(7)
        second = net.a.connect("b", ask(8), None, 0.0)
        net.a.outputs.clear()
        found = send(net.a, REP(50, second.localID, localQPN=0x1007, localCAGUID=0xB), "b")
        self.assertEqual(found[0], REJ(second.localID, 50, 1, 0, 10, bytes(72), bytes(148)))
        self.assertEqual([type(message) for message in found], [REJ, DREQ])
        self.assertEqual((active.state, second.state), (State.DREQ_SENT, State.REQ_SENT))

    def test_staleREJ(self) -> None:
        """
        Whoever gets a REJ 10 for its REQ goes to TIMEWAIT.
        """
        net = Net()
        active = net.a.connect("b", ask(), None, 0.0)
        send(net.a, REJ(0, active.localID, 0, reason=10), "b")
        self.assertEqual(active.state, State.TIMEWAIT)
        self.assertEqual(net.a.deadline(), TIMEWAIT)
        net.a.tick(1.0)
        self.assertEqual(net.a._peers, {})

    def test_REQinTimewait(self) -> None:
        """
        A REQ that made a connection comes again while the connection's ids
        are reserved: REJ 10.  Afterwards it is a new one.
        """
        net = Net()
        active, _ = net.open()
        request = ask(localCommunicationID=active.localID, localCAGUID=0xA)
        active.disconnect(0.0)
        net.pump()
        [reject] = send(net.b, request, "a", TIMEWAIT - 0.01)
        assert isinstance(reject, REJ)
        self.assertEqual((reject.reason, reject.remoteCommunicationID), (10, active.localID))
        self.assertEqual(send(net.b, request, "a", TIMEWAIT), [])
        self.assertEqual(len(net.b), 1)


class HostileTests(SynchronousTestCase):
    """
    Peers that write what they like.
    """

    def test_otherSource(self) -> None:
        """
        No message of one peer does anything to the connection of another,
        whatever its state.
        """
        for step in range(4):
            net = Net()
            active = net.a.connect("b", ask(), None, 0.0)
            net.pump()
            passive: Connection = net.events["b"].pop()[1]
            if step > 0:
                passive.accept(REP(localQPN=5), 0.0)
                net.b.outputs.clear()
            if step > 1:
                passive.established(0.0)
            if step > 2:
                passive.disconnect(0.0)
            answers(net.b)
            while net.b.nextEvent() is not None:
                pass
            state = passive.state
            mine, yours = passive.remoteID, passive.localID
            for message in (
                *(REP(mine, yours), REJ(mine, yours, 2, reason=28), REJ(mine, yours, 0, reason=10)),
                *(REJ(mine, 0, 2, 8, 4, (0xA).to_bytes(8, "big")), MRA(mine, yours, 1, 31)),
                *(RTU(mine, yours), DREQ(mine, yours, 5), DREP(mine, yours), LAP(mine, yours)),
                *(APR(mine, yours), SIDR_REP(mine)),
            ):
                deadline = passive.deadline
                self.assertEqual(send(net.b, message, "mallory"), [])
                self.assertEqual((passive.state, passive.deadline), (state, deadline))
                self.assertIsNone(net.b.nextEvent())
            self.assertEqual(net.b.counters["foreignSource"], 8)
            # Its own REQ with the very same ids is a connection of its own.
            copy = ask(localCommunicationID=mine, localCAGUID=0xA)
            self.assertEqual(send(net.b, copy, "mallory"), [])
            self.assertEqual((passive.state, len(net.b)), (state, 2))
            self.assertEqual(active.state, State.REQ_SENT)

    def test_wrongIDs(self) -> None:
        """
        A message whose two ids do not belong together is ignored; but a DREQ
        is answered, with the ids swapped.
        """
        net = Net()
        _, passive = net.open()
        for message in (RTU(1, passive.localID), DREP(1, passive.localID), REJ(1, passive.localID, 2)):
            self.assertEqual(send(net.b, message, "a"), [])
        self.assertEqual(net.b.counters["unknownID"], 3)
        self.assertEqual(
            send(net.b, DREQ(1, passive.localID, 0x1001), "a"), [DREP(passive.localID, 1, bytes(224))]
        )
        self.assertEqual(send(net.b, DREQ(3, 4, 5), "x"), [DREP(4, 3, bytes(224))])
        for unknown in (REP(3, 4), RTU(3, 4), MRA(3, 4), REJ(3, 4), DREP(3, 4), LAP(3, 4)):
            self.assertEqual(send(net.b, unknown, "a"), [])
        self.assertEqual(passive.state, State.ESTABLISHED)

    def test_wrongQPN(self) -> None:
        """
        A DREQ for another queue pair is ignored.
        """
        net = Net()
        active, passive = net.open()
        self.assertEqual(send(net.b, DREQ(active.localID, passive.localID, 0x1002), "a"), [])
        self.assertEqual((passive.state, net.b.counters["wrongQPN"]), (State.ESTABLISHED, 1))

    def test_malformed(self) -> None:
        """
        Other lengths and attributes are counted.
        """
        net = Net()
        for octets, stop in ((bytes(231), 231), (bytes(233), 233), (b"", 0), (bytes(10), 232)):
            net.b.receive("a", REQ.attribute, octets, 0, stop, 0.0)
        for attribute in (0, 1, 0x0F, 0x1B, 0xFFFF, -1):
            net.b.receive("a", attribute, bytes(232), 0, 232, 0.0)
        self.assertEqual((net.b.counters["malformed"], net.b.counters["unknownAttribute"]), (4, 6))

    def test_zeroID(self) -> None:
        """
        0 is no id.
        """
        net = Net()
        self.assertEqual(send(net.b, ask()), [])
        active = net.a.connect("b", ask(), None, 0.0)
        net.a.outputs.clear()
        self.assertEqual(send(net.a, REP(0, active.localID), "b"), [])
        self.assertEqual((net.a.counters["invalidID"], net.b.counters["invalidID"]), (1, 1))
        self.assertEqual(active.state, State.REQ_SENT)

    def test_shortInfo(self) -> None:
        """
        A REJ "timeout" without a CA GUID is taken by its ids.
        """
        net = Net()
        _, passive = net.request()
        send(net.b, REJ(passive.remoteID, 0, 2, 7, 4, (0xA).to_bytes(8, "big")), "a")
        self.assertEqual((passive.state, net.b.counters["unknownID"]), (State.REQ_RCVD, 1))

    def test_datagramServices(self) -> None:
        """
        Nobody serves datagrams here: status 1, whoever asks.
        """
        net = Net()
        self.assertEqual(
            send(net.b, SIDR_REQ(7, serviceID=SERVICE)),
            [SIDR_REP(7, 1, serviceID=SERVICE, additionalInfo=bytes(72), privateData=bytes(136))],
        )
        self.assertEqual(send(net.b, SIDR_REP(7)), [])
        self.assertEqual(net.b.counters["unexpected"], 1)

    def test_noise(self) -> None:
        """
        Random messages with ids that exist raise nothing and leave the books
        in order.
        """
        total = 0
        for seed in range(20):
            noise = random.Random(seed)
            net = Net(seed)
            for number in range(8):
                net.request(number + 1)[1].accept(REP(localQPN=number + 1), 0.0)
                if number % 2:
                    net.pump()
            for _ in range(3000):
                self.noise(net.b, noise)
                total += len(net.b)
            for source in "axyz":
                net.b.pathLost(source)
            self.assertEqual(
                (len(net.b), net.b._peers, net.b._halfOpen, net.b.deadline(), len(net.b.outputs)),
                (0, {}, 0, None, 0),
                f"seed {seed}",
            )
        self.assertTrue(total > 20 * 3000, "too few connections to disturb")

    def noise(self, table: ConnectionTable, noise: random.Random) -> None:
        """
        One random message to a table, and sometimes a consumer's command.
        """
        ids = [*range(6), *table._connections, *(c.remoteID for c in table._connections.values())]
        kind = noise.choice((REQ, REQ, REQ, *cm.MESSAGES))
        octets = bytearray(noise.randbytes(232) if noise.random() < 0.3 else bytes(232))
        octets[0:4] = noise.choice(ids).to_bytes(4, "big")
        octets[4:8] = noise.choice(ids).to_bytes(4, "big")
        if kind is REQ:
            octets[4:140] = ask(noise.randrange(40), localCAGUID=0xA, maxCMRetries=1).pack()[4:140]
        elif kind is REP:
            octets[12:15] = bytes([0, 0, noise.randrange(9)])
            octets[28:36] = (0xA).to_bytes(8, "big")
        elif kind is DREQ:
            octets[8:11] = bytes([0, 0, noise.randrange(9)])
        elif kind is REJ and noise.random() < 0.5:
            octets[9:20] = REJ(
                additionalInfoLength=8, reason=4, additionalInfo=(0xA).to_bytes(8, "big")
            ).pack()[9:20]
        now = noise.random() * 8
        table.receive(noise.choice("aaxyz"), kind.attribute, octets, 0, 232, now)
        if noise.random() < 0.1:
            table.tick(now)
        while (event := table.nextEvent()) is not None:
            if event[0] is Event.REQUEST and event[1] is not None and noise.random() < 0.5:
                event[1].accept(REP(localQPN=noise.randrange(9)), now)
        if table._connections and noise.random() < 0.1:
            noise.choice(list(table._connections.values())).disconnect(now)


class LimitTests(SynchronousTestCase):
    """
    Every bound is reached.
    """

    def flood(self, table: ConnectionTable, source: str, count: int, first: int = 1) -> None:
        """
        Send REQs.
        """
        for number in range(first, first + count):
            send(table, ask(number, localCommunicationID=number, localCAGUID=0xA), source)

    def table(self, *bounds: int) -> ConnectionTable:
        """
        A table that listens.
        """
        table = ConnectionTable(0xB, random.Random(1).getrandbits, *bounds)
        table.listen(SERVICE, None)
        return table

    def test_halfOpenOfASource(self) -> None:
        """
        One source over its bound is not heard, others are; a connection that
        opens or ends makes room.
        """
        table = self.table(limits.CM_HALF_OPEN_PER_ADDRESS, limits.CM_HALF_OPEN_ADDRESSES)
        self.flood(table, "x", 70)
        self.assertEqual((len(table), table.counters["halfOpenExceeded"]), (64, 6))
        self.flood(table, "y", 1)
        self.assertEqual(len(table), 65)
        first, second = list(table._connections.values())[:2]
        first.reject(28, b"", 0.0)
        second.accept(REP(), 0.0)
        second.established(0.0)
        self.flood(table, "x", 3, 100)
        self.assertEqual((len(table), table.counters["halfOpenExceeded"]), (66, 7))

    def test_halfOpenInAll(self) -> None:
        """
        All sources together have a bound.
        """
        table = self.table(limits.CM_HALF_OPEN_PER_ADDRESS, limits.CM_HALF_OPEN_ADDRESSES)
        for number in range(65):
            self.flood(table, f"source {number}", 64)
        self.assertEqual((len(table), table.counters["halfOpenExceeded"]), (4096, 64))

    def test_paths(self) -> None:
        """
        By default a source is a path, which may have 16384.
        """
        table = self.table()
        with mock.patch.object(limits, "CM_HALF_OPEN_PER_PATH", 0):
            self.flood(table, "x", 2000)
        self.assertEqual(len(table), 2000)
        self.assertEqual(table._halfOpenPerSource, 16384)

    def test_connections(self) -> None:
        """
        A table holds so many connections: over it REQs are lost, and connect
        is an error.
        """
        table = self.table()
        with mock.patch.object(limits, "CM_CONNECTIONS", 3):
            self.flood(table, "x", 4)
            self.assertRaises(ResourceLimitError, table.connect, "x", ask(), None, 0.0)
        self.assertEqual((len(table), table.counters["tableFull"]), (3, 1))

    def test_events(self) -> None:
        """
        REQs are lost while too many events wait.
        """
        table = self.table()
        with mock.patch.object(limits, "CM_EVENTS", 3):
            self.flood(table, "x", 5)
        self.assertEqual((len(table), table.counters["eventsFull"]), (3, 2))

    def test_outputs(self) -> None:
        """
        Messages are lost while too many wait.
        """
        table = self.table()
        with mock.patch.object(limits, "CM_OUTPUTS", 3):
            for number in range(5):
                octets = DREQ(number + 1, 9).pack()
                table.receive("x", DREQ.attribute, octets, 0, 232, 0.0)
        self.assertEqual((len(table.outputs), table.counters["outputsDropped"]), (3, 2))

    def test_timewait(self) -> None:
        """
        Too many ended connections: the next to expire goes early.
        """
        net = Net()
        pairs = [net.open(number + 1) for number in range(5)]
        with mock.patch.object(limits, "CM_TIMEWAIT", 3):
            for active, _ in pairs:
                active.disconnect(net.now)
                net.pump()
                net.now += 0.01
        self.assertEqual(len(net.a._timewait), 3)
        self.assertEqual(net.a.counters["timewaitDropped"], 2)
        exits = [event[2] for event in net.events["a"] if event[0] is Event.TIMEWAIT_EXIT]
        self.assertEqual(exits, [1, 2])

    def test_timewaitIsLight(self) -> None:
        """
        TIMEWAIT keeps neither the connection nor its user.
        """
        net = Net()
        active, passive = net.open()

        class User:
            """
            Can be referred to weakly.
            """

        active.user = user = User()
        gone = weakref.ref(user)
        active.disconnect(0.0)
        net.pump()
        net.events["a"].clear()
        del active, passive, user
        gc.collect()
        self.assertIsNone(gone())
        self.assertEqual(len(net.a._timewait), 1)

    def test_ids(self) -> None:
        """
        Ids are random, never 0, and never those of a connection or of one in
        TIMEWAIT.
        """
        drawn = iter([0, 5, 5, 5, 0xFFFFFFFF, 0xFFFFFFFF])
        table = ConnectionTable(0xA, lambda bits: next(drawn))
        found = [table.connect("b", ask(number), None, 0.0).localID for number in range(2)]
        self.assertEqual(found, [1, 5])
        send(table, REJ(0, 5, 0, reason=10), "b")
        found = [table.connect("b", ask(number), None, 0.0).localID for number in range(4)]
        self.assertEqual(found, [6, 7, 0xFFFFFFFF, 2])

    def test_tenThousand(self) -> None:
        """
        Ten thousand open connections leave no timers, and go when their path
        does.
        """
        net = Net()
        for number in range(10000):
            net.open(number + 1)
            net.carried.clear()
            net.octets.clear()
        self.assertEqual((len(net.a), len(net.b)), (10000, 10000))
        for table in (net.a, net.b):
            self.assertEqual((table.deadline(), len(table._deadlines)), (None, 0))
        self.assertEqual(len(net.a.pathLost("b")), 10000)
        self.assertEqual((len(net.a), net.a._peers), (0, {}))


class PathLostTests(SynchronousTestCase):
    """
    The way to a peer is gone.
    """

    def test_everything(self) -> None:
        """
        Connections of all states are given back and forgotten, with what they
        would send or report, and with what is in TIMEWAIT; other peers' are
        not touched.
        """
        net = Net()
        net.open(1)
        net.open(2)[0].disconnect(0.0)
        net.pump()
        net.request(3)
        send(net.b, ask(1, localCommunicationID=1, localCAGUID=0xC), "c")
        net.kinds("b")
        net.request(4)[1].accept(REP(), 0.0)
        net.b.connect("a", ask(5), None, 0.0)
        net.a.connect("b", ask(6), None, 0.0)
        output = net.a.nextOutput()
        assert output is not None
        net.b.receive("a", output[1], output[2], 0, 232, 0.0)
        send_other = DREQ(1, 2).pack()
        net.b.receive("c", DREQ.attribute, send_other, 0, 232, 0.0)
        lost = net.b.pathLost("a")
        self.assertEqual(len(lost), 5)
        self.assertEqual({connection.state for connection in lost}, {State.IDLE})
        self.assertEqual({connection.deadline for connection in lost}, {None})
        self.assertEqual([output[0] for output in net.b.outputs], ["c"])
        self.assertIsNone(net.b.nextEvent())
        self.assertEqual((len(net.b), list(net.b._peers), len(net.b._timewait)), (1, ["c"], 0))
        self.assertEqual((net.b._halfOpen, net.b.deadline()), (1, None))
        self.assertEqual([connection.accept(REP(), 0.0) for connection in lost[1:2]], [False])

    def test_unknown(self) -> None:
        """
        Nothing is lost with a path that nobody used but for messages to it.
        """
        net = Net()
        net.b.receive("x", DREQ.attribute, DREQ(1, 2).pack(), 0, 232, 0.0)
        self.assertEqual(net.b.pathLost("x"), [])
        self.assertIsNone(net.b.nextOutput())
