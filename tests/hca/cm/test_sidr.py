"""
Tests of L{twisted_ib.hca.cm.sidr}: every state with every input, lost messages, bounds, and
peers that write what they like.
"""

from __future__ import annotations

import random
from operator import methodcaller
from typing import Any, ClassVar
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.base.machines import MachineTestsMixin
from tests.hca.cm.net import SERVICE, Net, answers, ask, send
from twisted_ib import limits
from twisted_ib.errors import ConnectionStateError, ResourceLimitError
from twisted_ib.hca.cm import sidr
from twisted_ib.hca.cm.sidr import TRANSITIONS, Lookup, LookupInput, Lookups, LookupState
from twisted_ib.hca.cm.states import Event
from twisted_ib.hca.cm.table import ConnectionTable
from twisted_ib.hca.connection import SIDRStatus
from twisted_ib.hca.wire.cm.messages import REP, REQ, RTU, SIDR_REP, SIDR_REQ

#: Timeout code 20.
PERIOD = 4.096
RETRIES = 15

_S, _I = LookupState, LookupInput

#: (state, input) -> (message sent, event reported, next state); other inputs do nothing.
EXPECTED: dict[tuple[LookupState, LookupInput], tuple[Any, Any, LookupState]] = {
    (_S.IDLE, _I.ASK): (SIDR_REQ, None, _S.REQ_SENT),
    (_S.IDLE, _I.REQ): (None, Event.LOOKUP, _S.REQ_RCVD),
    (_S.REQ_SENT, _I.REP): (None, Event.FOUND, _S.IDLE),
    (_S.REQ_SENT, _I.RETRY): (SIDR_REQ, None, _S.REQ_SENT),
    (_S.REQ_SENT, _I.EXHAUSTED): (None, Event.UNREACHABLE, _S.IDLE),
    (_S.REQ_SENT, _I.CLOSE): (None, None, _S.IDLE),
    (_S.REQ_SENT, _I.PATH_LOST): (None, None, _S.IDLE),
    (_S.REQ_SENT, _I.AGAIN): (None, None, _S.REQ_SENT),
    (_S.REQ_RCVD, _I.REPEATED_REQ): (None, None, _S.REQ_RCVD),
    (_S.REQ_RCVD, _I.ANSWER): (SIDR_REP, None, _S.ANSWERED),
    (_S.REQ_RCVD, _I.CLOSE): (SIDR_REP, None, _S.ANSWERED),
    (_S.REQ_RCVD, _I.IGNORE): (None, None, _S.IDLE),
    (_S.REQ_RCVD, _I.PATH_LOST): (None, None, _S.IDLE),
    (_S.ANSWERED, _I.REPEATED_REQ): (SIDR_REP, None, _S.ANSWERED),
    (_S.ANSWERED, _I.EXPIRED): (None, None, _S.IDLE),
    (_S.ANSWERED, _I.PATH_LOST): (None, None, _S.IDLE),
}


class FakeTable:
    """
    A table that writes down what it is asked.
    """

    pack = staticmethod(methodcaller("pack"))

    def __init__(self) -> None:
        """
        Nothing is written.
        """
        self.counters: dict[str, int] = dict.fromkeys(("noListener", "repeatedSIDR", "unknownID"), 0)
        self.lossless = False
        self.sent: list[tuple[Any, int, bytes]] = []
        self.events: list[tuple[Event, object]] = []

    def send(self, output: tuple[Any, int, bytes]) -> None:
        self.sent.append(output)

    def report(self, event: Event, connection: object, message: object) -> None:
        self.events.append((event, message))


def lookupIn(state: LookupState) -> tuple[FakeTable, Lookups, Lookup]:
    """
    A lookup in some state, and its surroundings.
    """
    table = FakeTable()
    lookups = Lookups(table, random.Random(1).getrandbits)
    lookup = Lookup(lookups, "peer", 7, SERVICE)
    steps: dict[LookupState, list[tuple[LookupInput, Any]]] = {
        _S.IDLE: [],
        _S.REQ_SENT: [(_I.ASK, SIDR_REQ(7))],
        _S.REQ_RCVD: [(_I.REQ, SIDR_REQ(7))],
        _S.ANSWERED: [(_I.REQ, SIDR_REQ(7)), (_I.ANSWER, SIDR_REP())],
    }
    for given, message in steps[state]:
        lookup.feed(given, message, 0.0)
    assert lookup.state is state
    table.sent.clear()
    table.events.clear()
    return table, lookups, lookup


class MachineTests(MachineTestsMixin, SynchronousTestCase):
    """
    One lookup.
    """

    machine = TRANSITIONS
    stateType, inputType = LookupState, LookupInput
    messages: ClassVar = {
        _I.ASK: SIDR_REQ(7),
        _I.REQ: SIDR_REQ(7),
        _I.REPEATED_REQ: SIDR_REQ(7),
        _I.REP: SIDR_REP(7),
        _I.ANSWER: SIDR_REP(7),
    }

    def check(self, state: LookupState, given: LookupInput) -> None:
        """
        What is sent, what is reported, where it leads; and nothing is left of what is over.
        """
        table, lookups, lookup = lookupIn(state)
        expected = EXPECTED.get((state, given))
        self.assertEqual((state, given) in TRANSITIONS, expected is not None, (state, given))
        done = lookup.feed(given, self.messages.get(given), 1.0)
        self.assertEqual(done, expected is not None, (state, given))
        sent, event, after = expected or (None, None, state)
        self.assertEqual([output[1] for output in table.sent], [sent.attribute] if sent else [])
        self.assertEqual([entry[0] for entry in table.events], [event] if event is not None else [])
        self.assertIs(lookup.state, after)
        self.assertEqual(len(lookups), int(after in (_S.REQ_SENT, _S.REQ_RCVD)))
        self.assertEqual(lookups.deadline() is not None, after is _S.REQ_SENT)
        self.assertEqual(len(lookups._answered), int(after is _S.ANSWERED))
        self.assertEqual(bool(lookups._waiting), after is _S.REQ_RCVD)

    def test_commands(self) -> None:
        """
        A second answer is an error; one that comes too late is not.
        """
        _, _, lookup = lookupIn(_S.ANSWERED)
        self.assertRaises(ConnectionStateError, lookup.answer, SIDR_REP(), 0.0)
        self.assertRaises(ConnectionStateError, lookup.reject, 2, b"", 0.0)
        self.assertFalse(lookup.ignore(0.0))
        self.assertFalse(lookup.close(0.0))
        _, _, lookup = lookupIn(_S.REQ_SENT)
        self.assertRaises(ConnectionStateError, lookup.answer, SIDR_REP(), 0.0)
        _, _, lookup = lookupIn(_S.IDLE)
        self.assertFalse(lookup.answer(SIDR_REP(), 0.0))


class SIDRNet(Net):
    """
    Two tables on a wire; C{a} asks C{b}.
    """

    def ask(self, **fields: Any) -> Lookup:
        """
        Ask, and carry what follows.
        """
        request = SIDR_REQ(serviceID=SERVICE, **fields)
        lookup = self.a.lookups.ask("b", request, "user", RETRIES, 20, self.now)
        self.pump()
        return lookup

    def asked(self) -> Lookup:
        """
        The requests that C{b} received.
        """
        event, lookup, _ = self.events["b"].pop()
        assert event is Event.LOOKUP
        return lookup  # type: ignore[no-any-return]


class StoryTests(SynchronousTestCase):
    """
    Two tables.
    """

    def test_twoMessages(self) -> None:
        """
        A question and its answer.
        """
        net = SIDRNet()
        lookup = net.ask(privateData=b"who?")
        [(event, asked, request)] = net.events["b"]
        self.assertEqual((event, asked.listener, asked.user), (Event.LOOKUP, "listener", None))
        self.assertEqual(request.privateData, b"who?".ljust(216, b"\0"))
        self.assertTrue(asked.answer(SIDR_REP(queuePairNumber=0x99, qKey=5, privateData=b"me"), net.now))
        net.pump()
        [(event, found, reply)] = net.events["a"]
        self.assertEqual((event, found, found.user), (Event.FOUND, lookup, "user"))
        self.assertEqual((reply.status, reply.queuePairNumber, reply.qKey), (0, 0x99, 5))
        self.assertEqual((reply.serviceID, reply.requestID), (SERVICE, lookup.localID))
        self.assertEqual(reply.privateData, b"me".ljust(136, b"\0"))
        self.assertEqual(net.carried, [("a", SIDR_REQ), ("b", SIDR_REP)])
        self.assertEqual((len(net.a.lookups), len(net.b.lookups)), (0, 0))
        self.assertIsNone(net.a.deadline())
        self.assertIsNone(net.b.deadline())
        self.assertEqual(sum(net.a.counters.values()) + sum(net.b.counters.values()), 0)

    def test_no(self) -> None:
        """
        A consumer refuses, or closes without an answer.
        """
        net = SIDRNet()
        net.ask()
        net.asked().reject(SIDRStatus.NO_QP, b"why", net.now)
        net.ask()
        net.asked().close(net.now)
        net.pump()
        [(_, _, first), (_, _, second)] = net.events["a"]
        self.assertEqual((first.status, first.privateData[:4]), (3, b"why\0"))
        self.assertEqual(second.status, SIDRStatus.REJECTED)

    def test_nobody(self) -> None:
        """
        Nobody listens.
        """
        net = SIDRNet()
        net.b.unlisten(SERVICE)
        net.ask()
        [(event, _, reply)] = net.events["a"]
        self.assertEqual((event, reply.status), (Event.FOUND, SIDRStatus.SERVICE_ID_UNSUPPORTED))
        self.assertEqual(net.b.counters["noListener"], 1)

    def test_lostRequest(self) -> None:
        """
        A lost question is asked again, with the same octets.
        """
        net = SIDRNet()
        net.lose[SIDR_REQ] = RETRIES
        net.ask()
        net.wait(RETRIES * PERIOD - 0.01)
        self.assertEqual(net.events["b"], [])
        net.wait(0.02)
        self.assertEqual(net.kinds("b"), [Event.LOOKUP])
        self.assertEqual(len(set(net.octets)), 1)
        self.assertEqual(net.a.counters["retransmitted"], RETRIES)

    def test_nothing(self) -> None:
        """
        A lookup without an answer ends as unreachable, reported once.
        """
        net = SIDRNet()
        net.lose[SIDR_REQ] = RETRIES + 1
        lookup = net.ask()
        net.wait((RETRIES + 1) * PERIOD - 0.01)
        self.assertEqual(net.events["a"], [])
        net.wait(100.0)
        self.assertEqual(net.events["a"], [(Event.UNREACHABLE, lookup, None)])
        self.assertIsNone(net.a.deadline())

    def test_lostReply(self) -> None:
        """
        A lost answer is given again, without the consumer.
        """
        net = SIDRNet()
        net.lose[SIDR_REP] = 1
        net.ask()
        net.asked().answer(SIDR_REP(queuePairNumber=1), net.now)
        net.wait(PERIOD)
        self.assertEqual((net.kinds("a"), net.kinds("b")), ([Event.FOUND], []))
        self.assertEqual(net.b.counters["repeatedSIDR"], 1)

    def test_slowConsumer(self) -> None:
        """
        A slow consumer is asked once.
        """
        net = SIDRNet()
        net.ask()
        net.wait(3 * PERIOD)
        self.assertEqual(net.kinds("b"), [Event.LOOKUP])
        self.assertEqual(net.b.counters["repeatedSIDR"], 3)

    def test_ignored(self) -> None:
        """
        A question that was ignored comes again.
        """
        net = SIDRNet()
        net.ask()
        net.asked().ignore(net.now)
        net.wait(PERIOD)
        self.assertEqual(net.kinds("b"), [Event.LOOKUP])

    def test_expiry(self) -> None:
        """
        An answer is forgotten after a while; then the same question is a new one.
        """
        net = SIDRNet()
        net.ask()
        net.asked().answer(SIDR_REP(), net.now)
        question = SIDR_REQ.parse(net.octets[0], 0, 232)
        for now, kinds in ((sidr.CM_LOOKUP_SECONDS - 0.01, []), (sidr.CM_LOOKUP_SECONDS, [Event.LOOKUP])):
            send(net.b, question, "a", now)
            net.pump()
            self.assertEqual(net.kinds("b"), kinds)

    def test_withdrawn(self) -> None:
        """
        A lookup that was closed does not report its answer.
        """
        net = SIDRNet()
        lookup = net.ask()
        self.assertTrue(lookup.close(net.now))
        net.asked().answer(SIDR_REP(), net.now)
        net.pump()
        self.assertEqual(net.events["a"], [])
        self.assertEqual(net.a.counters["unknownID"], 1)

    def test_pathLost(self) -> None:
        """
        A source that is gone takes its lookups along, those of others stay.
        """
        net = SIDRNet()
        lookup = net.ask()
        asked = net.asked()
        send(net.b, SIDR_REQ(1, serviceID=SERVICE), "c")
        self.assertEqual(net.a.pathLost("b"), [lookup])
        self.assertEqual(net.b.pathLost("a"), [asked])
        self.assertEqual((len(net.a.lookups), len(net.b.lookups)), (0, 1))
        self.assertFalse(asked.answer(SIDR_REP(), net.now))
        net.pump()
        self.assertEqual(net.events["a"], [])
        self.assertIsNone(net.a.deadline())

    def test_pathLostAfterAnswer(self) -> None:
        """
        Nor is an answer kept for it.
        """
        net = SIDRNet()
        net.ask()
        net.asked().answer(SIDR_REP(), net.now)
        self.assertEqual(net.b.pathLost("a"), [])
        self.assertEqual(len(net.b.lookups._answered), 0)

    def test_besideConnections(self) -> None:
        """
        Connections and lookups of one table do not disturb each other.
        """
        net = SIDRNet()
        net.lose[SIDR_REQ] = 1
        net.a.connect("b", ask(), None, net.now)
        net.ask()
        self.assertEqual(net.a.deadline(), PERIOD)
        net.wait(PERIOD)
        self.assertEqual(net.kinds("b"), [Event.REQUEST, Event.LOOKUP])


class LosslessTests(SynchronousTestCase):
    """
    A medium that loses nothing while the peer lives (issue 16, point 17).
    """

    def setUp(self) -> None:
        """
        Two tables.
        """
        self.net = SIDRNet()
        self.net.a.lossless = self.net.b.lossless = True

    def test_nothingRepeated(self) -> None:
        """
        A question goes out once, however late the answer is.
        """
        net = self.net
        net.ask()
        net.wait(limits.CM_ANSWER_SECONDS - 1)
        net.asked().answer(SIDR_REP(queuePairNumber=1), net.now)
        net.wait(limits.CM_ANSWER_SECONDS)
        self.assertEqual([kind for _, kind in net.carried], [SIDR_REQ, SIDR_REP])
        self.assertEqual((net.kinds("a"), net.a.counters["retransmitted"]), ([Event.FOUND], 0))

    def test_nothing(self) -> None:
        """
        A consumer that never answers is waited for as long as for a connection, or as all repeats would take.
        """
        for code, seconds in (20, limits.CM_ANSWER_SECONDS), (22, (RETRIES + 1) * 4 * PERIOD):
            net = self.net
            lookup = net.a.lookups.ask("b", SIDR_REQ(serviceID=SERVICE), "user", RETRIES, code, net.now)
            net.wait(seconds - 0.01)
            self.assertEqual(net.events["a"], [])
            net.wait(0.02)
            self.assertEqual(net.events["a"].pop(), (Event.UNREACHABLE, lookup, None))
            self.assertEqual((len(net.a.lookups), net.a.deadline()), (0, None))
        self.assertEqual(net.a.counters["retransmitted"], 0)

    def test_comesAgain(self) -> None:
        """
        A question that its consumer has no room for comes again, because the answer says so, as often as its
        retries; the last answer is reported.
        """
        net = self.net
        net.a.lookups.ask("b", SIDR_REQ(serviceID=SERVICE), "user", 2, 20, net.now)
        for _ in range(3):
            net.wait(3.0)
            net.asked().ignore(net.now)
        net.wait(2.0)
        self.assertEqual([kind for _, kind in net.carried], [SIDR_REQ, SIDR_REP] * 3)
        [(event, _, reply)] = net.events["a"]
        self.assertEqual((event, reply.status), (Event.FOUND, SIDRStatus.NO_QP))
        self.assertEqual((len(net.a.lookups), len(net.b.lookups), net.a.deadline()), (0, 0, None))

    def test_noRoom(self) -> None:
        """
        Over a bound a question comes again, and is taken when there is room.
        """
        net = self.net
        net.b.lookups.limitHalfOpen(1, 1)
        net.ask()
        net.ask()
        [(_, first, _)] = net.events["b"]
        first.answer(SIDR_REP(), net.now)
        net.wait(2.0)
        self.assertEqual(net.kinds("b"), [Event.LOOKUP, Event.LOOKUP])
        with mock.patch.object(limits, "CM_EVENTS", 0):
            [answer] = send(net.b, SIDR_REQ(9, serviceID=SERVICE), "c")
        assert isinstance(answer, SIDR_REP)
        self.assertEqual((answer.requestID, answer.status), (9, SIDRStatus.NO_QP))
        [(event, _, reply)] = net.events["a"]
        self.assertEqual((event, reply.status), (Event.FOUND, SIDRStatus.VALID))
        self.assertEqual((net.b.counters["lookupsExceeded"], net.b.counters["eventsFull"]), (1, 1))

    def test_withdrawn(self) -> None:
        """
        A lookup that waits to ask again can be closed, and ends with its path.
        """
        net = self.net
        for isClosed in (True, False):
            lookup = net.ask()
            net.asked().ignore(net.now)
            net.pump()
            self.assertIs(lookup.state, _S.REQ_SENT)
            if isClosed:
                lookup.close(net.now)
            else:
                net.a.pathLost("b")
            net.wait(2.0)
            self.assertEqual((net.kinds("b"), len(net.a.lookups), net.a.deadline()), ([], 0, None))


class BoundTests(SynchronousTestCase):
    """
    Nothing grows without a bound.
    """

    def listening(self) -> ConnectionTable:
        """
        A table with a listener.
        """
        table = ConnectionTable(1, random.Random(1).getrandbits)
        table.listen(SERVICE, "listener")
        return table

    def test_asked(self) -> None:
        """
        Own questions.
        """
        table = self.listening()
        with mock.patch.object(limits, "CM_LOOKUPS", 3):
            for _ in range(3):
                table.lookups.ask("b", SIDR_REQ(), None, 1, 20, 0.0)
            self.assertRaises(ResourceLimitError, table.lookups.ask, "b", SIDR_REQ(), None, 1, 20, 0.0)

    def test_perPath(self) -> None:
        """
        Questions of one peer, while others still may ask.
        """
        with mock.patch.object(sidr, "CM_LOOKUPS_PER_PATH", 3):
            table = self.listening()
            for number in range(5):
                send(table, SIDR_REQ(number, serviceID=SERVICE), "a")
            self.assertEqual(table.counters["lookupsExceeded"], 2)
            send(table, SIDR_REQ(0, serviceID=SERVICE), "b")
            self.assertEqual(len(table.lookups), 4)

    def test_inAll(self) -> None:
        """
        Questions of all peers.
        """
        with mock.patch.object(sidr, "CM_LOOKUPS_PATHS", 3):
            table = self.listening()
            for number in range(5):
                send(table, SIDR_REQ(0, serviceID=SERVICE), f"peer {number}")
        self.assertEqual((len(table.lookups), table.counters["lookupsExceeded"]), (3, 2))

    def test_strangers(self) -> None:
        """
        Where sources are addresses, the bounds are those of requests for connections.
        """
        table = self.listening()
        table.limitHalfOpen(2, 3)
        for number in range(5):
            for request in range(3):
                send(table, SIDR_REQ(request, serviceID=SERVICE), f"peer {number}")
        self.assertEqual((len(table.lookups), table.counters["lookupsExceeded"]), (3, 12))

    def test_answered(self) -> None:
        """
        Answers that are kept: the oldest goes.
        """
        table = self.listening()
        with mock.patch.object(sidr, "CM_LOOKUPS_ANSWERED", 2):
            for number in range(3):
                send(table, SIDR_REQ(number, serviceID=SERVICE), "a")
                event = table.nextEvent()
                assert event is not None and isinstance(event[1], Lookup)
                event[1].answer(SIDR_REP(), 0.0)
        self.assertEqual(len(table.lookups._answered), 2)
        answers(table)
        for number, again in ((0, 0), (1, 1), (2, 1)):
            self.assertEqual(len(send(table, SIDR_REQ(number, serviceID=SERVICE), "a")), again)

    def test_events(self) -> None:
        """
        SIDR_REQs that wait for the consumer.
        """
        table = self.listening()
        with mock.patch.object(limits, "CM_EVENTS", 2):
            for number in range(4):
                send(table, SIDR_REQ(number, serviceID=SERVICE), "a")
        self.assertEqual((len(table.lookups), table.counters["eventsFull"]), (2, 2))

    def test_unserved(self) -> None:
        """
        Nothing is kept for a service without a listener.
        """
        table = self.listening()
        for number in range(10):
            self.assertEqual(len(send(table, SIDR_REQ(number, serviceID=1), "a")), 1)
        self.assertEqual((len(table.lookups), len(table.lookups._answered)), (0, 0))


class HostileTests(SynchronousTestCase):
    """
    Peers that write what they like.
    """

    def test_otherSource(self) -> None:
        """
        No other source can answer, even with the right id; and another source's request with the same id is
        not a repeated one.
        """
        net = SIDRNet()
        lookup = net.ask()
        send(net.a, SIDR_REP(lookup.localID, queuePairNumber=666), "mallory")
        self.assertIsNone(net.a.nextEvent())
        self.assertEqual(net.a.counters["foreignSource"], 1)
        self.assertIs(lookup.state, LookupState.REQ_SENT)
        send(net.b, SIDR_REQ(lookup.localID, serviceID=SERVICE), "mallory")
        net.pump()
        self.assertEqual(net.kinds("b"), [Event.LOOKUP, Event.LOOKUP])

    def test_answeredTwice(self) -> None:
        """
        Only the first answer counts.
        """
        net = SIDRNet()
        lookup = net.ask()
        for _ in range(2):
            send(net.a, SIDR_REP(lookup.localID), "b")
        net.pump()
        self.assertEqual(net.kinds("a"), [Event.FOUND])

    def test_noise(self) -> None:
        """
        Random octets of either message raise nothing, and the books stay in order.
        """
        seed = 20
        source = random.Random(seed)
        net = SIDRNet()
        mine: list[Lookup] = []
        for _ in range(3000):
            table, name = (net.a, "b") if source.random() < 0.5 else (net.b, "a")
            kind: Any = SIDR_REQ if source.random() < 0.5 else SIDR_REP
            octets = bytearray(source.randbytes(232))
            if source.random() < 0.7:
                number = source.choice(mine).localID if mine else 1
                octets[:4] = number.to_bytes(4, "big")
            if kind is SIDR_REQ and source.random() < 0.7:
                octets[8:16] = SERVICE.to_bytes(8, "big")
            if source.random() < 0.1:
                octets = octets[: source.randrange(232)]
            table.receive(name, kind.attribute, octets, 0, len(octets), net.now)
            net.now += source.random()
            if source.random() < 0.2:
                mine.append(net.ask())
            for event in net.events["b"]:
                if event[0] is Event.LOOKUP and source.random() < 0.5 and event[1].state is _S.REQ_RCVD:
                    event[1].answer(SIDR_REP(), net.now)
            net.events["b"].clear()
            net.a.tick(net.now)
            net.b.tick(net.now)
            net.pump()
        waiting = sum(map(len, net.b.lookups._waiting.values()))
        self.assertEqual(waiting, net.b.lookups._waitingInAll)
        self.assertTrue(net.a.counters["malformed"], f"seed {seed}")
        for name in "ab":
            net.table(name).pathLost("a" if name == "b" else "b")
            self.assertEqual((len(net.table(name).lookups), net.table(name).deadline()), (0, None))

    def test_connectionForLookup(self) -> None:
        """
        A message of a connection that has the id of a lookup does nothing to it.
        """
        net = SIDRNet()
        lookup = net.ask()
        for message in (REP(1, lookup.localID), RTU(1, lookup.localID), REQ(lookup.localID)):
            send(net.a, message, "b")
        self.assertIs(lookup.state, LookupState.REQ_SENT)
