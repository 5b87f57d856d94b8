"""
Tests of L{twisted_ib.hca.cm.parked}: half-open connections as octets.
"""

from __future__ import annotations

import gc
import tracemalloc
from math import inf
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.cm import test_admission
from tests.hca.cm.net import PERIOD, answers, ask, listening, send
from twisted_ib import limits
from twisted_ib.hca.cm.machine import Connection, Event, State
from twisted_ib.hca.cm.parked import CM_PARKED_LISTED, CM_PARKED_LOOK_SECONDS, Parked
from twisted_ib.hca.connection import RejectReason
from twisted_ib.hca.wire.cm.messages import DREP, DREQ, MRA, REJ, REP, RTU, MessageKind

#: What a half-open connection costs at most, in octets, however many its source has.
HALF_OPEN_BYTES = 512


class Listener:
    """
    Has its connections parked at once.
    """

    def __init__(self) -> None:
        """
        None has come.
        """
        self.kept: list[bytes] = []

    def resumed(self, connection: Any, number: int, kept: bytes) -> None:
        """
        One is back.
        """
        self.kept.append(kept)
        connection.user = kept


class ParkedTests(SynchronousTestCase):
    """
    A table whose listener has all parked; sources are C{"10"} and the like.
    """

    def setUp(self) -> None:
        """
        It listens.
        """
        self.table = listening()
        self.table.limitHalfOpen(limits.CM_HALF_OPEN_PER_ADDRESS, limits.CM_HALF_OPEN_ADDRESSES)
        self.parked = self.table.parked
        self.parked.begin(int, str, bytes)  # type: ignore[arg-type]
        self.listener = Listener()

    def ask(self, source: str, number: int, now: float = 0.0, **fields: Any) -> list[Any]:
        """
        A REQ comes.

        @return: what is answered.
        """
        fields = {"localCommunicationID": number, "localCAGUID": 0xA, **fields}
        said: list[Any] = send(self.table, ask(fields.pop("queuePair", number), **fields), source, now)
        while self.table.events:
            event, connection, _ = self.table.events.popleft()
            if event is Event.REQUEST:
                assert isinstance(connection, Connection)
                connection.listener = self.listener
                connection.accept(REP(localQPN=0x10000 + len(self.table.accepted)), now)
                self.parked.park(connection, b"kept")
                said += answers(self.table)
        return said

    def live(self) -> list[Connection]:
        """
        Those that are no octets.
        """
        return list(self.table._connections.values())

    def test_ready(self) -> None:
        """
        Nothing but octets is left of it, and its RTU makes it again.
        """
        (reply,) = self.ask("10", 1)
        self.assertEqual((self.live(), self.table._peers, len(self.table)), ([], {}, 1))
        self.assertEqual(self.table.deadline(), PERIOD - 0.512)
        self.assertEqual(send(self.table, RTU(1, reply.localCommunicationID), "10"), [])
        (connection,) = self.live()
        self.assertEqual((connection.state, connection.user, connection.destination), (9, b"kept", "10"))
        self.assertEqual((connection.remoteID, connection.remoteQPN, connection.remoteCAGUID), (1, 1, 0xA))
        self.assertEqual(connection.localQPN, reply.localQPN)
        self.assertEqual((self.parked.count, self.parked.ofListener, self.table.accepted), (0, {}, {}))
        self.assertEqual((len(self.table), self.table.deadline()), (1, None))

    def test_taken(self) -> None:
        """
        While it is octets a connection of ours gets the same queue pair there: it gives way, as to a REQ,
        since nobody has confirmed it.
        """
        ours = self.table.connect("10", ask(5), None, 0.0)
        answers(self.table)
        (reply,) = self.ask("10", 1)
        send(self.table, REP(2, ours.localID, localQPN=1, localCAGUID=0xA), "10")
        ours.ready(0.0)
        answers(self.table)
        self.assertEqual((self.parked.count, self.table.counters["stale"], len(self.table)), (0, 1, 1))
        (rejected,) = send(self.table, RTU(1, reply.localCommunicationID), "10")
        self.assertEqual(rejected.reason, RejectReason.INVALID_COMMUNICATION_ID)
        self.assertEqual(len(send(self.table, DREQ(2, ours.localID, 5), "10")), 1)
        self.table.tick(100.0)
        self.table.events.clear()
        self.assertEqual((len(self.table), self.table._peers), (0, {}))

    def test_strangers(self) -> None:
        """
        An RTU, a REJ or a DREQ with a wrong id, or from elsewhere, is nobody's.
        """
        (reply,) = self.ask("10", 1)
        yours = reply.localCommunicationID
        for message, source in (
            (RTU(1, yours), "11"),
            (RTU(2, yours), "10"),
            (RTU(1, yours ^ 1), "10"),
            (REJ(localCommunicationID=2, remoteCommunicationID=yours), "10"),
            (DREQ(2, yours, reply.localQPN), "10"),
            (MRA(2, yours, messageMRAed=MessageKind.REP), "10"),
        ):
            send(self.table, message, source)
        guid = (0xB).to_bytes(8, "big")
        for own in 1, 2:
            send(self.table, REJ(own, reason=4, additionalInfoLength=8, additionalInfo=guid), "10")
        self.assertEqual((self.live(), self.parked.count, self.listener.kept), ([], 1, []))
        self.assertIsNone(self.parked.awaited(reply.localQPN, lambda path: False))
        self.assertIsNone(self.parked.awaited(reply.localQPN ^ 1))
        self.assertEqual(self.parked.count, 1)

    def test_ends(self) -> None:
        """
        A REJ, with our id or before it is known, and a DREQ end it; an MRA and data have the connection.
        """
        guid = (0xA).to_bytes(8, "big")
        for number in range(1, 6):
            (reply,) = self.ask("10", number)
            yours = reply.localCommunicationID
            said: dict[int, Any] = {
                1: REJ(localCommunicationID=1, remoteCommunicationID=yours, messageRejected=MessageKind.REP),
                2: REJ(2, reason=4, additionalInfoLength=8, additionalInfo=guid),
                3: DREQ(3, yours, reply.localQPN),
                4: MRA(4, yours, messageMRAed=MessageKind.REP, serviceTimeout=20),
            }
            if number == 5:
                found = self.parked.awaited(reply.localQPN)
                self.assertIsNotNone(found)
            else:
                drawn = send(self.table, said[number], "10")
                self.assertEqual([type(each) for each in drawn], [DREP] if number == 3 else [])
        self.assertEqual([each.state for each in self.live()], [State.MRA_REP_RCVD, State.REP_SENT])
        self.assertEqual((self.parked.count, len(self.listener.kept)), (0, 5))
        self.table.pathLost("10")
        self.assertEqual((len(self.table), self.table.accepted), (0, {}))

    def test_repeats(self) -> None:
        """
        A repeated REQ draws the same REP again, and makes no object; one with the queue pair of another has
        its place, as has one with its id of another HCA.
        """
        first = self.ask("10", 1)
        self.assertEqual(self.ask("10", 1), first)
        self.assertEqual((self.live(), self.table.counters["repeatedREQ"]), ([], 1))
        self.ask("10", 2, queuePair=1)
        self.ask("10", 2, localCAGUID=0xB)
        self.ask("11", 1)
        self.assertEqual((self.parked.count, self.table.counters["stale"]), (2, 2))
        self.assertEqual(self.table.counters["repeatedREQ"], 1)

    def test_times(self) -> None:
        """
        The REP is repeated once, and given up after all that the REQ has asked for.
        """
        period = PERIOD - 0.512
        self.ask("10", 1, 5.0, requestRetries=3)
        self.table.tick(5.0 + period - 0.01)
        self.assertEqual(answers(self.table), [])
        self.assertEqual(self.table.deadline(), 5.0 + period)
        self.table.tick(5.0 + period)
        self.assertEqual([type(each) for each in answers(self.table)], [REP])
        # What was repeated is young no longer.
        self.assertEqual([each.since for each in self.parked.of(10)], [-inf])
        end = 5.0 + period + 3 * period
        self.assertEqual((self.table.deadline(), self.live()), (end, []))
        self.table.tick(end - 0.01)
        self.assertEqual(len(self.table), 1)
        self.table.tick(end)
        self.assertEqual((len(self.table), answers(self.table), self.table.deadline()), (0, [], None))
        self.assertEqual([event[0] for event in self.table.events], [Event.UNREACHABLE])
        self.assertEqual(self.table._peers, {})

    def test_looks(self) -> None:
        """
        However near the deadlines are to each other, all are looked at every so often only.
        """
        for number in range(1, 101):
            self.ask("10", number, number * 1e-6)
        looks, now = 0, self.table.deadline() or 0.0
        while now < 4.3:
            self.table.tick(now)
            looks += 1
            due = self.table.deadline()
            assert due is not None
            now = due
        self.assertEqual((looks, self.table.counters["retransmitted"]), (2, 100))
        self.assertGreater(100 * CM_PARKED_LOOK_SECONDS, 100e-6)

    def test_several(self) -> None:
        """
        Few and many of one source are found and leave, in any order.
        """
        many = 2 * CM_PARKED_LISTED
        for count in 1, 2, CM_PARKED_LISTED, CM_PARKED_LISTED + 1, many:
            found = {number: self.ask("10", number)[0] for number in range(1, count + 1)}
            self.assertEqual((self.parked.halfOpens("10"), len(self.parked.of(10))), (count, count))
            self.assertEqual(isinstance(self.parked._sources[10], dict), count > CM_PARKED_LISTED)
            oldest = self.parked.oldest("10")
            assert oldest is not None
            self.assertEqual((oldest.remoteID, self.parked.find("10", -1, count)), (1, self.at(found[count])))
            for number in sorted(found, key=lambda number: number * 7 % 11):
                parked = self.at(found[number])
                self.assertIs(self.parked.find("10", number), parked)
                send(self.table, REJ(number, found[number].localCommunicationID), "10")
            self.assertEqual((self.parked.count, self.parked._sources, len(self.table)), (0, {}, 0))

    def at(self, reply: REP) -> Parked:
        """
        @return: what is parked of a REP.
        """
        parked = self.table._halfOpenLimit.at(reply.localCommunicationID)
        assert isinstance(parked, Parked)
        return parked

    def test_limits(self) -> None:
        """
        One source evicts its own oldest; of one that has shown itself only what is not young.
        """
        self.table.limitHalfOpen(3, 1000)
        replies = [self.ask("10", number)[0] for number in range(1, 6)]
        self.assertEqual((self.parked.count, self.table.counters["halfOpenReplaced"]), (3, 2))
        send(self.table, RTU(5, replies[4].localCommunicationID), "10")
        self.assertEqual((len(self.table._halfOpenLimit.shown), self.parked.count), (2, 2))
        self.ask("10", 6)
        self.assertEqual(self.ask("10", 7), [])
        self.assertEqual(self.table.counters["halfOpenExceeded"], 1)
        self.assertEqual(len(self.ask("10", 8, limits.CM_HALF_OPEN_SECONDS)), 1)
        self.assertEqual([each.remoteID for each in self.parked.of(10)], [4, 6, 8])
        self.parked.resumeAll(Listener())
        self.assertEqual(self.parked.count, 3)
        self.table.abandonAll(1.0)
        self.assertEqual((self.parked.count, self.table._halfOpenLimit.halfOpen), (0, 0))

    def test_memory(self) -> None:
        """
        Whether each source has one, two, or as many as it may, each costs little; nothing is left of them.
        """
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        for each, many in (1, 1500), (2, 1500), (limits.CM_HALF_OPEN_PER_ADDRESS,) * 2:
            left: list[int] = []
            for turn in range(2):
                gc.collect()
                before = tracemalloc.get_traced_memory()[0]
                for number in range(many):
                    source = str(0xFFFF0A000000 + number // each)
                    self.ask(source, 0x1000000 + number, queuePair=0x10000 + number)
                gc.collect()
                self.assertEqual(self.parked.count, many)
                cost = (tracemalloc.get_traced_memory()[0] - before) / many
                self.assertLess(cost, HALF_OPEN_BYTES, f"{each} of a source")
                self.table.abandonAll(0.0)
                answers(self.table)
                self.listener.kept.clear()
                self.table.tick(1000.0 * (turn + 1))
                self.table.events.clear()
                gc.collect()
                left.append(tracemalloc.get_traced_memory()[0])
            self.assertLess(left[1] - left[0], 4096)


class ParkedFloodTests(test_admission.FloodTests):
    """
    Honest clients amid forged REQs, of which octets are kept.
    """

    def setUp(self) -> None:
        """
        The server parks.
        """
        super().setUp()
        self.names: list[str] = []
        self.known: dict[str, int] = {}
        self.listener = Listener()
        self.table.parked.begin(self.nameOf, self.names.__getitem__, bytes)  # type: ignore[arg-type]

    def nameOf(self, source: Any) -> int:
        """
        The number of a source.
        """
        if source not in self.known:
            self.known[source] = len(self.names)
            self.names.append(source)
        return self.known[source]

    def accept(self, connection: Connection) -> None:
        """
        Accept and park.
        """
        connection.listener = self.listener
        super().accept(connection)
        self.table.parked.park(connection, b"")
        self.assertNotIn(connection.localID, self.table._connections)
