"""
Tests of L{twisted_ib.hca.cm.table}: peers that write what they like, and bounds.
"""

from __future__ import annotations

import gc
import random
import weakref
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.cm.net import SERVICE, Net, answers, ask, flood, listening, send
from twisted_ib import limits
from twisted_ib.errors import ResourceLimitError
from twisted_ib.hca.cm import table as cmTable
from twisted_ib.hca.cm.machine import Connection, Event, State
from twisted_ib.hca.cm.table import ConnectionTable
from twisted_ib.hca.wire.cm import messages as cm
from twisted_ib.hca.wire.cm.messages import (
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
    MessageKind,
)


class HostileTests(SynchronousTestCase):
    """
    Peers that write what they like.
    """

    seeds = 5

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
        for unknown in (MRA(3, 4), REJ(3, 4), DREP(3, 4), LAP(3, 4)):
            self.assertEqual(send(net.b, unknown, "a"), [])
        self.assertEqual(passive.state, State.ESTABLISHED)

    def test_nobodysID(self) -> None:
        """
        Who accepts, or confirms, what nobody has here is told so, once for each REP or RTU: reason 6, invalid
        communication ID.
        """
        net = Net()
        for message, kind in ((REP(3, 4), MessageKind.REP), (RTU(3, 4), MessageKind.OTHER)):
            (reject,) = send(net.b, message, "a")
            assert isinstance(reject, REJ)
            told = reject.localCommunicationID, reject.remoteCommunicationID
            self.assertEqual((told, reject.messageRejected, reject.reason), ((4, 3), kind, 6))

    def test_overtaken(self) -> None:
        """
        A REP or RTU of a connection that was open and has ended draws nothing, whoever ended it, for a while
        after TIMEWAIT too: its sender knows.
        """
        for ends in (0, 1):
            net = Net()
            pair = net.open()
            mine, yours = (each.localID for each in pair)
            pair[ends].disconnect(net.now)
            net.wait(limits.CM_ENDED_SECONDS - 0.1)
            self.assertEqual((len(net.a._timewait), len(net.b._timewait)), (0, 0))
            self.assertEqual(send(net.a, REP(yours, mine), "b", net.now), [])
            self.assertEqual(send(net.b, RTU(mine, yours), "a", net.now), [])
            net.wait(0.1)
            for table, message in ((net.a, REP(yours, mine)), (net.b, RTU(mine, yours))):
                (reject,) = send(table, message, "x", net.now)
                self.assertIsInstance(reject, REJ)

    def test_ended(self) -> None:
        """
        Of more connections than CM_ENDED the oldest are forgotten, and those whose time is over.
        """
        net = Net()
        pairs = [net.open(number + 1) for number in range(5)]
        self.patch(limits, "CM_ENDED", 3)
        for active, _ in pairs:
            active.disconnect(net.now)
            net.wait(0.1)
            self.assertLessEqual(len(net.b.ended), 3)
        told = [len(send(net.b, RTU(each.localID, yours.localID), "a", net.now)) for each, yours in pairs]
        self.assertEqual(told, [1, 1, 0, 0, 0])
        active, _ = net.open(6)
        net.wait(limits.CM_ENDED_SECONDS)
        active.disconnect(net.now)
        net.pump()
        self.assertEqual(len(net.b.ended), 1)

    def test_confirmedTooLate(self) -> None:
        """
        A passive side that has gone without a word: whoever confirms its REP hears of it at once.
        """
        net = Net()
        active, passive = net.request()
        passive.accept(REP(), net.now)
        net.pump()
        net.lose[REJ] = 1
        passive.abandon(net.now)
        net.pump()
        active.ready(net.now)
        net.pump()
        self.assertEqual(net.carried, [("a", REQ), ("b", REP), ("b", REJ), ("a", RTU), ("b", REJ)])
        self.assertEqual(net.kinds("a"), [Event.REPLY, Event.DISCONNECTED])

    def test_quiet(self) -> None:
        """
        Where a process begins on an address, an RTU may mean the one that was there before: no word of it.
        """
        net = Net()
        net.b.quietUntil = 9.0
        self.assertEqual(send(net.b, RTU(3, 4), "a", 8.9), [])
        self.assertEqual(len(send(net.b, RTU(3, 4), "a", 9.0)), 1)

    def test_repeatedID(self) -> None:
        """
        A REQ with the id of a half-open connection is its repetition, whatever queue pair it names.
        """
        net = Net()
        for number in (0x11, 0x12, 0x11):
            send(net.b, ask(number, localCommunicationID=5, localCAGUID=3), "x")
        self.assertEqual((len(net.b), net.b.counters["repeatedREQ"]), (1, 2))

    def test_rejectWithoutID(self) -> None:
        """
        A REJ that is about the REQ may lack the id of its sender, as Linux writes it, while that is not
        known; afterwards nobody ends anything who knows less than both ids.
        """
        net = Net()
        calling = net.a.connect("b", ask(), None, 0.0)
        send(net.a, REJ(0, calling.localID, 0, reason=8), "b")
        self.assertEqual(calling.state, State.IDLE)
        for kind in (0, 1, 2):
            net = Net()
            active, passive = net.open()
            send(net.a, REJ(0, active.localID, kind, reason=10), "b")
            send(net.b, REJ(0, passive.localID, kind, reason=10), "a")
            self.assertEqual((active.state, passive.state), (State.ESTABLISHED, State.ESTABLISHED))

    def test_rejectByGUID(self) -> None:
        """
        A peer that gives up before it knows our id is found by its CA GUID and id; an open connection has
        been confirmed, so that its peer knows our id.
        """
        for disconnects in (False, True):
            net = Net()
            _, passive = net.open()
            if disconnects:
                passive.disconnect(0.0)
            state = passive.state
            send(net.b, REJ(passive.remoteID, 0, 2, 8, 4, (0xA).to_bytes(8, "big")), "a")
            self.assertEqual((passive.state, net.b.counters["unknownID"]), (state, 1))

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
        A datagram service without a listener: status 1, for every source. See C{test_cm_sidr} for those with
        one.
        """
        net = Net()
        self.assertEqual(
            send(net.b, SIDR_REQ(7, serviceID=SERVICE + 1)),
            [SIDR_REP(7, 1, serviceID=SERVICE + 1, additionalInfo=bytes(72), privateData=bytes(136))],
        )
        self.assertEqual(send(net.b, SIDR_REP(7)), [])
        self.assertEqual(net.b.counters["unknownID"], 1)

    def test_noise(self) -> None:
        """
        Random messages with ids that exist raise nothing and leave the books
        in order.
        """
        total = 0
        for seed in range(self.seeds):
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
                (
                    len(net.b),
                    net.b._peers,
                    net.b._halfOpenLimit.halfOpen,
                    net.b.deadline(),
                    len(net.b.outputs),
                ),
                (0, {}, 0, None, 0),
                f"seed {seed}",
            )
        self.assertTrue(total > self.seeds * 3000, "too few connections to disturb")

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
            octets[4:140] = ask(noise.randrange(40), localCAGUID=0xA, requestRetries=1).pack()[4:140]
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

    def test_halfOpenOfASource(self) -> None:
        """
        REQs of a source over its bound are dropped, those of others are not; a connection that opens or ends
        makes room.
        """
        table = listening(limits.CM_HALF_OPEN_PER_ADDRESS, limits.CM_HALF_OPEN_ADDRESSES)
        flood(table, "x", 1030)
        self.assertEqual((len(table), table.counters["halfOpenExceeded"]), (1024, 6))
        flood(table, "y", 1)
        self.assertEqual(len(table), 1025)
        first, second = list(table._connections.values())[:2]
        first.reject(28, b"", 0.0)
        second.accept(REP(), 0.0)
        second.established(0.0)
        flood(table, "x", 3, 2000)
        self.assertEqual((len(table), table.counters["halfOpenExceeded"]), (1026, 7))

    def test_halfOpenInAll(self) -> None:
        """
        All sources together have a bound.
        """
        table = listening(limits.CM_HALF_OPEN_PER_ADDRESS, limits.CM_HALF_OPEN_ADDRESSES)
        for number in range(5):
            flood(table, f"source {number}", 1000)
        self.assertEqual((len(table), table.counters["halfOpenExceeded"]), (4096, 904))

    def test_strangersAmplify(self) -> None:
        """
        Nobody makes this side repeat its answers faster than is sensible.
        """
        table = listening()
        request = ask(1, localCommunicationID=1)
        request.localCMResponseTimeout = 0
        send(table, request, "x")
        (connection,) = table._connections.values()
        connection.accept(REP(), 0.0)
        assert connection.deadline is not None
        self.assertGreater(connection.deadline, 0.06)

    def test_paths(self) -> None:
        """
        By default a source is a path, which may have 4096: a small part of
        what all have together, so that others are still heard.
        """
        self.assertLessEqual(16 * limits.CM_HALF_OPEN_PER_PATH, limits.CM_HALF_OPEN_PATHS)
        table = listening()
        flood(table, "x", limits.CM_HALF_OPEN_PER_PATH + 1)
        self.assertEqual((len(table), table.counters["halfOpenExceeded"]), (4096, 1))
        flood(table, "y", 1)
        self.assertEqual(len(table), 4097)

    def test_connectionsOfASource(self) -> None:
        """
        One source has a bound on its connections, open ones counted, and cannot use up the room of others;
        one that ends makes room.
        """
        self.assertLessEqual(4 * limits.CM_CONNECTIONS_PER_PATH, limits.CM_CONNECTIONS)
        table = listening()
        with mock.patch.object(limits, "CM_CONNECTIONS_PER_PATH", 3):
            flood(table, "x", 3)
            for connection in list(table._connections.values()):
                connection.accept(REP(), 0.0)
                connection.established(0.0)
            flood(table, "x", 2, 10)
            self.assertEqual((len(table), table.counters["connectionsExceeded"]), (3, 2))
            flood(table, "y", 1)
            self.assertEqual(len(table), 4)
            first = next(iter(table._connections.values()))
            send(table, DREQ(first.remoteID, first.localID), "x")
            flood(table, "x", 1, 20)
            self.assertEqual((len(table), table.counters["connectionsExceeded"]), (4, 2))

    def test_connections(self) -> None:
        """
        A table holds so many connections: over it REQs are lost, and connect
        is an error.
        """
        table = listening()
        with mock.patch.object(limits, "CM_CONNECTIONS", 3):
            flood(table, "x", 4)
            self.assertRaises(ResourceLimitError, table.connect, "x", ask(), None, 0.0)
        self.assertEqual((len(table), table.counters["tableFull"]), (3, 1))

    def test_events(self) -> None:
        """
        REQs are lost while too many events wait.
        """
        table = listening()
        with mock.patch.object(limits, "CM_EVENTS", 3):
            flood(table, "x", 5)
        self.assertEqual((len(table), table.counters["eventsFull"]), (3, 2))

    def test_outputs(self) -> None:
        """
        Messages are lost while too many wait.
        """
        table = listening()
        with mock.patch.object(cmTable, "CM_OUTPUTS", 3):
            for number in range(5):
                octets = DREQ(number + 1, 9).pack()
                table.receive("x", DREQ.attribute, octets, 0, 232, 0.0)
        self.assertEqual((len(table.outputs), table.counters["outputsDropped"]), (3, 2))

    def test_timewait(self) -> None:
        """
        Too many connections in TIMEWAIT: the next to expire is released early.
        """
        net = Net()
        pairs = [net.open(number + 1) for number in range(5)]
        with mock.patch.object(cmTable, "CM_TIMEWAIT", 3):
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
        TIMEWAIT; the one after another has its upper six bits, by which
        processes of one address find what is whose.
        """
        drawn = iter([0, 5, 5, 5, 0xFFFFFFFF, 0xFFFFFFFF])
        table = ConnectionTable(0xA, lambda bits: next(drawn))
        found = [table.connect("b", ask(number), None, 0.0).localID for number in range(2)]
        self.assertEqual(found, [1, 5])
        send(table, REJ(0, 5, 0, reason=10), "b")
        found = [table.connect("b", ask(number), None, 0.0).localID for number in range(4)]
        self.assertEqual(found, [6, 7, 0xFFFFFFFF, 0xFC000000])

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
            self.assertEqual((len(table._deadlines), table.deadline()), (0, None))
        self.assertEqual(len(net.a.pathLost("b")), 10000)
        self.assertEqual((len(net.a), net.a._peers), (0, {}))
