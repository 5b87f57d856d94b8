"""
Tests of L{twisted_ib.hca.cm.table} and L{twisted_ib.hca.cm.timers}: messages that
get lost.
"""

from __future__ import annotations

import random

from attrs import define
from twisted.trial.unittest import SynchronousTestCase

from tests.hca.cm.net import PERIOD, Net, ask, send
from twisted_ib import limits
from twisted_ib.hca.cm import timers, transitions
from twisted_ib.hca.cm.admission import HalfOpenLimit
from twisted_ib.hca.cm.machine import Connection, Event, State
from twisted_ib.hca.cm.transitions import DREQ_LAST
from twisted_ib.hca.connection import PathRecord, RejectReason
from twisted_ib.hca.wire.cm.messages import DREP, DREQ, MRA, REJ, REP, REQ, RTU, timeoutSeconds


@define
class Waiting:
    """
    Something with a deadline.
    """

    localID: int
    deadline: float | None = None


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
        A REP is sent again after the REQ's local response time, and for each REQ that is repeated.
        """
        net = Net()
        _, passive = net.request(requestRetries=3)
        net.lose = {REP: 99}
        passive.accept(REP(), 0.0)
        net.pump()
        self.assertEqual(net.b.deadline(), 4.096)
        net.wait(4 * 4.096 - 0.001)
        self.assertEqual((net.carried.count(("b", REP)), net.kinds("b")), (4 + 3, []))
        net.wait(0.002)
        self.assertEqual(net.kinds("b"), [Event.UNREACHABLE])
        self.assertEqual(net.b.counters["repeatedREQ"], 3)
        self.assertEqual((len(net.b), net.b._halfOpenLimit.halfOpen), (0, 0))

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
        active, _ = net.open(requestRetries=2)
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
        path takes, not longer for a second one; then retries go on, of which
        each may be answered by an MRA.
        """
        net = Net()
        _, passive = net.request()
        passive.sendMRA(0.0, serviceTimeout=20)
        net.wait(PERIOD)
        self.assertEqual(net.carried, [("a", REQ), ("a", REQ), ("b", MRA)])
        extended = PERIOD + 4.096 + 0.512
        self.assertAlmostEqual(net.a.deadline() or 0, extended)
        send(net.a, MRA(passive.localID, passive.remoteID, 0, 31), "b", net.now)
        self.assertAlmostEqual(net.a.deadline() or 0, extended)
        self.assertEqual(net.a.counters["unexpected"], 1)
        net.wait(4.096 + 0.513)
        self.assertEqual(net.carried[3:], [("a", REQ), ("b", MRA)])
        self.assertAlmostEqual(net.a.deadline() or 0, extended + 4.096 + 0.512)
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
        active.sendMRA(0.0, serviceTimeout=20)
        net.wait(4.2)
        self.assertEqual(passive.state, State.MRA_REP_RCVD)
        self.assertAlmostEqual(net.b.deadline() or 0, 4.096 + 4.096 + 0.512)
        active.ready(net.now)
        net.pump()
        self.assertEqual(passive.state, State.ESTABLISHED)

    def test_longestServiceTimeout(self) -> None:
        """
        A peer's MRA, of either kind, can ask for about eight seconds and not
        for hours; a retry that it answers likewise keeps a long wait going.
        """
        longest = timeoutSeconds(transitions.CM_SERVICE_TIMEOUT_CODE)
        self.assertEqual(longest, 8.192)
        for code, seconds in ((20, 4.096), (21, longest), (22, longest), (31, longest)):
            net = Net()
            active, passive = net.request()
            send(net.a, MRA(passive.localID, passive.remoteID, 0, code), "b", 0.0)
            self.assertAlmostEqual(net.a.deadline() or 0, seconds + 0.512)
            passive.accept(REP(), 0.0)
            net.b.outputs.clear()
            send(net.b, MRA(passive.remoteID, passive.localID, 1, code), "a", 0.0)
            self.assertAlmostEqual(net.b.deadline() or 0, seconds + 0.512)
        net = Net()
        active, passive = net.request()
        passive.sendMRA(0.0, serviceTimeout=24)
        net.wait(90.0)
        self.assertEqual((active.state, net.kinds("a")), (State.MRA_REQ_RCVD, []))

    def test_longestResponseTimeout(self) -> None:
        """
        A REQ can make us wait for about eight seconds between two REPs, and
        for as long in TIMEWAIT, not for hours.
        """
        for code, seconds in ((20, 4.096), (21, 8.192), (22, 8.192), (31, 8.192)):
            net = Net()
            message = ask(9, primaryPath=PathRecord(localACKTimeout=code))
            message.localCommunicationID, message.localCMResponseTimeout = 5, code
            send(net.b, message, "a")
            event = net.b.nextEvent()
            assert event is not None and event[1] is not None
            event[1].accept(REP(), 0.0)
            self.assertAlmostEqual(net.b.deadline() or 0, seconds)
            net.b.outputs.clear()
            send(net.b, DREQ(5, event[1].localID), "a")
            self.assertAlmostEqual(net.b.deadline() or 0, seconds)

    def test_manyDeadlines(self) -> None:
        """
        Cancelled deadlines do not pile up.
        """
        net = Net()
        held = net.a.connect("b", ask(1), None, 0.0)
        for number in range(2000):
            net.a.connect("b", ask(2 + number), None, 0.0).abandon(0.0)
            self.assertTrue(len(net.a._deadlines) <= 2 + timers.CM_IDLE_DEADLINES)
        self.assertEqual(net.a.deadline(), PERIOD)
        held.abandon(0.0)
        self.assertEqual((len(net.a._deadlines), net.a.deadline()), (0, None))

    def test_rarelyRebuilt(self) -> None:
        """
        With many that wait, looking at all of them is rare, whether they are due, move or are cancelled.
        """
        count = 20 * timers.CM_IDLE_DEADLINES
        waiting = [Waiting(number) for number in range(count)]
        deadlines = timers.Deadlines(dict(enumerate(waiting)))
        for each in waiting:
            deadlines.set(each, each.localID)
        heap, rebuilt = deadlines.heap, 0
        for each in waiting:
            third = each.localID % 3
            if not third:
                self.assertEqual(deadlines.takeDue(each.localID), [each])
            elif third == 1:
                deadlines.set(each, count + each.localID)
            else:
                deadlines.clear(each)
            rebuilt += deadlines.heap is not heap
            heap = deadlines.heap
        self.assertLess(rebuilt, 5)
        self.assertLessEqual(len(deadlines), 2 * (count // 3 + 1) + timers.CM_IDLE_DEADLINES)

    def test_moved(self) -> None:
        """
        A deadline that moves again and again leaves a bounded number of old entries, and keeps its last time.
        """
        one = Waiting(1)
        deadlines = timers.Deadlines({1: one})
        for moves in range(1, 3 + timers.CM_IDLE_DEADLINES):
            deadlines.set(one, moves)
            self.assertEqual(len(deadlines), moves)
        deadlines.set(one, 0.5)
        self.assertEqual((len(deadlines), deadlines.soonest()), (1, 0.5))

    def test_cancelled(self) -> None:
        """
        Of cancelled deadlines as many stay as are left, and some; with the last one all go.
        """
        count = 10 * timers.CM_IDLE_DEADLINES
        waiting = [Waiting(number) for number in range(count)]
        deadlines = timers.Deadlines(dict(enumerate(waiting)))
        for each in waiting:
            deadlines.set(each, each.localID)
        while len(deadlines) == count:
            deadlines.clear(waiting.pop())
        left = len(waiting)
        self.assertEqual((len(deadlines), 2 * left + 2 + timers.CM_IDLE_DEADLINES), (left, count))
        while waiting:
            deadlines.clear(waiting.pop())
        self.assertEqual(len(deadlines), 0)

    def test_due(self) -> None:
        """
        The same holds when deadlines have passed.
        """
        count = 10 * timers.CM_IDLE_DEADLINES
        known = {number: Waiting(number) for number in range(count + 1)}
        deadlines, moved = timers.Deadlines(known), known[count]
        for number in range(count):
            deadlines.set(known[number], number)
        for deadline in range(count, count + count // 2):
            deadlines.set(moved, deadline)
        entries = len(deadlines)
        for now in range(count):
            self.assertEqual(len(deadlines.takeDue(now)), 1)
            entries -= 1
            if entries > 2 * (count - now) + timers.CM_IDLE_DEADLINES:
                entries = count - now
            self.assertEqual(len(deadlines), entries)
        deadlines.set(moved, 3 * count)
        deadlines.set(moved, 2 * count)
        self.assertEqual((deadlines.takeDue(2 * count), len(deadlines)), ([moved], 0))

    def test_randomLoss(self) -> None:
        """
        With any loss, duplication or delay both ends reach matching final states, and nothing stays behind.
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
        self.assertEqual((net.b._halfOpenLimit.halfOpen, net.b.deadline()), (0, None), f"seed {seed}")


class LosslessTests(SynchronousTestCase):
    """
    A medium that loses nothing while the peer lives.
    """

    def setUp(self) -> None:
        """
        Two tables.
        """
        self.net = Net()
        self.net.a.lossless = self.net.b.lossless = True

    def test_nothingRepeated(self) -> None:
        """
        REQ, REP and DREQ go out once, however late the answer is.
        """
        net = self.net
        active, passive = net.request()
        net.wait(limits.CM_ANSWER_SECONDS - 1)
        passive.accept(REP(localQPN=9), net.now)
        net.wait(limits.CM_ANSWER_SECONDS - 1)
        active.ready(net.now)
        net.pump()
        net.lose = {DREP: 1}
        active.disconnect(net.now)
        net.wait(limits.CM_ANSWER_SECONDS - 1)
        kinds = [kind for _, kind in net.carried]
        self.assertEqual(kinds, [REQ, REP, RTU, DREQ, DREP])
        self.assertEqual(active.state, State.DREQ_SENT)
        net.wait(2.0)
        self.assertEqual((len(net.a), len(net.b), net.a.counters["retransmitted"]), (0, 0, 0))

    def test_left(self) -> None:
        """
        A side that waits for no answer sends one DREQ, which has none, and is rid of the connection at once,
        with no deadline set; the other one gets its data.
        """
        net = self.net
        active, passive = net.open(7)
        net.carried.clear()
        self.assertTrue(active.leave(net.now, b"bye"))
        self.assertEqual((active.state, len(net.a), net.a.deadline()), (State.IDLE, 0, None))
        self.assertFalse(active.leave(net.now))
        net.pump()
        self.assertEqual(net.carried, [("a", DREQ)])
        self.assertEqual((net.kinds("b"), len(net.b)), ([Event.DISCONNECTED], 0))
        self.assertTrue(passive.disconnectData.startswith(b"bye"))

    def test_bothLeft(self) -> None:
        """
        Neither side minds that the other one has left as well.
        """
        net = self.net
        ends = net.open(7)
        net.carried.clear()
        for end in ends:
            end.leave(net.now)
        net.pump()
        self.assertEqual(net.carried, [("a", DREQ), ("b", DREQ)])
        counted = [sum(table.counters.values()) for table in (net.a, net.b)]
        self.assertEqual((counted, len(net.a), len(net.b)), ([0, 0], 0, 0))

    def test_leftByAStranger(self) -> None:
        """
        Where messages are lost the same DREQ is answered, and one that awaits an answer gets it everywhere.
        """
        for lossless, last in (False, DREQ_LAST), (True, 0):
            net = Net()
            net.b.lossless = lossless
            _, passive = net.open(7)
            found = send(net.b, DREQ(passive.remoteID, passive.localID, passive.localQPN, b"", last), "a")
            self.assertEqual(list(map(type, found)), [DREP])

    def test_noTimewait(self) -> None:
        """
        A connection that has ended keeps no ids: nothing of it is on its way.
        """
        net = self.net
        active, passive = net.open(7)
        passive.disconnect(net.now)
        net.pump()
        self.assertEqual((active.state, passive.state), (State.TIMEWAIT, State.TIMEWAIT))
        for table in (net.a, net.b):
            self.assertEqual((len(table), len(table._timewait), table._peers), (0, 0, {}))

    def test_withoutRTU(self) -> None:
        """
        If both sides say so, REQ and REP open a connection, of which neither waits for anything.
        """
        net = self.net
        active, passive = net.request()
        passive.accept(REP(localQPN=9), net.now, isConfirmed=False)
        self.assertEqual((passive.state, passive.localQPN, passive.deadline), (State.ESTABLISHED, 9, None))
        net.pump()
        active.ready(net.now, isConfirmed=False)
        net.wait(limits.CM_ANSWER_SECONDS * 2)
        self.assertEqual([kind for _, kind in net.carried], [REQ, REP])
        self.assertEqual((active.state, active.remoteQPN), (State.ESTABLISHED, 9))
        self.assertEqual((active.deadline, passive.output, active.output), (None, None, None))

    def test_withoutRTUAbandoned(self) -> None:
        """
        A passive side that awaits no RTU learns of an active side that has given up by its REJ of the REP, as
        of one that refuses it.
        """
        net = self.net
        active, passive = net.request()
        passive.accept(REP(localQPN=9), net.now, isConfirmed=False)
        active.abandon(net.now)
        net.pump()
        self.assertEqual([kind for _, kind in net.carried], [REQ, REJ, REP, REJ])
        self.assertEqual(net.kinds("b"), [Event.DISCONNECTED])
        active, passive = net.request(2)
        passive.accept(REP(localQPN=10), net.now, isConfirmed=False)
        net.pump()
        active.reject(28, b"", net.now)
        net.pump()
        self.assertEqual(net.kinds("b"), [Event.DISCONNECTED])
        self.assertEqual((len(net.a), len(net.b)), (0, 0))

    def test_withRTU(self) -> None:
        """
        A medium that may lose messages has the RTU, whatever the sides say.
        """
        net = Net()
        active, passive = net.request()
        passive.accept(REP(localQPN=9), net.now, isConfirmed=False)
        net.pump()
        active.ready(net.now, isConfirmed=False)
        net.pump()
        self.assertEqual([kind for _, kind in net.carried], [REQ, REP, RTU])

    def test_bothGiveUp(self) -> None:
        """
        A side whose time is over tells the other: neither keeps the connection.
        """
        for isAccepted in (False, True):
            self.setUp()
            net = self.net
            active, passive = net.request(requestRetries=0)
            if isAccepted:
                net.wait(limits.CM_ANSWER_SECONDS - 1)
                passive.accept(REP(localQPN=9), net.now)
            net.wait(2 * limits.CM_ANSWER_SECONDS)
            self.assertEqual((len(net.a), len(net.b)), (0, 0))
            self.assertEqual((active.state, passive.state)[isAccepted], State.IDLE)
            self.assertEqual(net.a.counters["retransmitted"], 0)

    def test_comesAgain(self) -> None:
        """
        A REQ that finds no room comes again, because an MRA says so, as often as its retries.
        """
        net = self.net
        for _ in range(3):
            active, passive = net.request(2, requestRetries=2)
            passive.ignore(net.now)
            net.pump()
            self.assertEqual((active.state, len(net.b)), (State.MRA_REQ_RCVD, 0))
            active.abandon(net.now)
            net.pump()
        net.carried.clear()
        active, passive = net.request(3, requestRetries=2)
        for _ in range(2):
            passive.ignore(net.now)
            net.wait(3.0)
            _, passive, _ = net.events["b"].pop()
        passive.ignore(net.now)
        net.wait(3.0)
        kinds = [kind for _, kind in net.carried]
        self.assertEqual(kinds, [REQ, MRA] * 3 + [REJ])
        self.assertEqual((net.kinds("a"), active.state), ([Event.UNREACHABLE], State.IDLE))

    def test_halfOpen(self) -> None:
        """
        Over the limit of half-open connections a REQ comes again, and is taken when there is room.
        """
        net = self.net
        net.b._halfOpenLimit = HalfOpenLimit(1, 1)
        _, first = net.request(1)
        net.a.connect("b", ask(2), None, 0.0)
        net.pump()
        self.assertEqual((len(net.b), net.b.counters["halfOpenExceeded"]), (1, 1))
        first.reject(RejectReason.CONSUMER_DEFINED, b"", net.now)
        net.wait(3.0)
        self.assertEqual(net.kinds("b"), [Event.REQUEST])
