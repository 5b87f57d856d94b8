"""
Tests of L{twisted_ib.hca.cm.table}: tables of connections that talk.
"""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.cm.net import PERIOD, SERVICE, TIMEWAIT, Net, ask, send
from twisted_ib.errors import ServiceInUseError
from twisted_ib.hca.cm.machine import Event, State
from twisted_ib.hca.cm.states import COUNTERS
from twisted_ib.hca.cm.table import ConnectionTable
from twisted_ib.hca.connection import RejectReason
from twisted_ib.hca.connection.compacthello import SOFTWARE
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
            self.assertEqual(len(table._deadlines), 0)
            self.assertIsNone(table.deadline())
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

    def test_unexpected(self) -> None:
        """
        An RTU before the REP and an MRA of a LAP, which was never sent, are counted and change nothing.  An
        RTU that comes again is expected.
        """
        net = Net()
        active, passive = net.request()
        names = active.localID, passive.localID
        send(net.b, RTU(*names), "a", 0.0)
        send(net.b, MRA(*names, MessageKind.OTHER, 20), "a", 0.0)
        self.assertEqual((net.b.counters["unexpected"], passive.state), (2, State.REQ_RCVD))
        passive.accept(REP(), 0.0)
        net.pump()
        active.ready(0.0)
        net.pump()
        send(net.b, RTU(*names), "a", 0.0)
        self.assertEqual((net.b.counters["unexpected"], passive.state), (2, State.ESTABLISHED))

    def test_disconnect(self) -> None:
        """
        DREQ, DREP; both ends are notified once, and their ids stay reserved for the path's timeout.
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
        Both disconnect at a time: each DREQ is answered, each end is notified once, and the DREPs that come
        late change nothing.
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
        REJ 8, as Linux writes it but for the word that this is software, and nothing is remembered.
        """
        net = Net()
        net.b.unlisten(SERVICE)
        active = net.a.connect("b", ask(), None, 0.0)
        net.pump()
        [(event, connection, reject)] = net.events["a"]
        self.assertEqual((event, connection), (Event.REJECTED, active))
        self.assertEqual(reject, REJ(0, active.localID, 0, 0, 8, bytes(72), SOFTWARE.ljust(148, b"\0")))
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
        self.assertEqual((len(net.a), len(net.b), net.b._halfOpenLimit.halfOpen), (0, 0, 0))
        self.assertIsNone(net.b.deadline())

    def test_ignored(self) -> None:
        """
        A REQ that the listener has no slot for is forgotten; its retry is a new one, and can be accepted.
        """
        net = Net()
        active, passive = net.request()
        self.assertTrue(passive.ignore(0.0))
        self.assertEqual((len(net.b), net.b._peers, net.b._halfOpenLimit.halfOpen), (0, {}, 0))
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
        A REQ that cannot be written leaves nothing behind.
        """
        net = Net()
        self.assertRaises(ValueError, net.a.connect, "b", ask(1 << 24), None, 0.0)
        self.assertEqual((len(net.a), net.a._peers, net.a.deadline()), (0, {}, None))


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

    def test_halfOpen(self) -> None:
        """
        A REQ from the queue pair of an attempt that was never confirmed replaces it: the old one may have
        been forged in the peer's name, and must not lock the peer out.
        """
        for accepted in (False, True):
            net = Net()
            assert send(net.b, ask(7, localCommunicationID=66, localCAGUID=0xA), "a") == []
            event = net.b.nextEvent()
            assert event is not None
            forged = event[1]
            if accepted:
                forged.accept(REP(localQPN=5), 0.0)  # type: ignore[union-attr]
                net.b.outputs.clear()
            self.assertEqual(send(net.b, ask(7, localCommunicationID=99, localCAGUID=0xA), "a"), [])
            kinds = [net.b.nextEvent() for _ in range(2)]
            self.assertEqual([each and each[0] for each in kinds], [Event.UNREACHABLE, Event.REQUEST])
            assert forged is not None and kinds[1] is not None
            self.assertEqual((forged.state, len(net.b), net.b._halfOpenLimit.halfOpen), (State.IDLE, 1, 1))
            genuine = kinds[1][1]
            assert genuine is not None
            self.assertIs(net.b._peers["a"], genuine.peer)  # type: ignore[union-attr]
            genuine.accept(REP(localQPN=6), 0.0)  # type: ignore[union-attr]
            genuine.established(0.0)  # type: ignore[union-attr]
            self.assertEqual(net.b.counters["stale"], 1)

    def test_otherGUID(self) -> None:
        """
        The same numbers at another CA are another queue pair.
        """
        net = Net()
        _, passive = net.open(7)
        message = ask(7, localCommunicationID=passive.remoteID, localCAGUID=0xC)
        self.assertEqual(send(net.b, message, "a"), [])
        self.assertEqual((passive.state, len(net.b)), (State.ESTABLISHED, 2))

    def test_zeroGUID(self) -> None:
        """
        So it is where the first CA says that its GUID is 0.
        """
        net = Net()
        for guid in (0, 0xC, 0, 0xC):
            send(net.b, ask(7, localCommunicationID=5, localCAGUID=guid), "a")
        self.assertEqual(len(net.b), 2)

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
        A REJ 10 in answer to a REQ leads to TIMEWAIT.
        """
        net = Net()
        for now in (0.0, 0.1):
            active = net.a.connect("b", ask(), None, now)
            send(net.a, REJ(0, active.localID, 0, reason=10), "b", now)
            self.assertEqual(active.state, State.TIMEWAIT)
            self.assertEqual(net.a.deadline(), TIMEWAIT)
        net.a.tick(TIMEWAIT)
        self.assertEqual(len(net.a._timewait), 1)
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


class PathLostTests(SynchronousTestCase):
    """
    The path to a peer is lost.
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
        self.assertEqual((net.b._halfOpenLimit.halfOpen, net.b.deadline()), (1, None))
        self.assertEqual([connection.accept(REP(), 0.0) for connection in lost[1:2]], [False])

    def test_asking(self) -> None:
        """
        Those whose REQ has no answer yet are given back too, and counted until it has one.
        """
        net = Net()
        asking, refused = (net.a.connect("b", ask(number), None, 0.0) for number in (1, 2))
        self.assertEqual(net.a._peers["b"].calling, 2)
        while net.a.nextOutput() is not None:
            pass
        opened, _ = net.open(3)
        send(net.a, REJ(0, refused.localID, 0, reason=8), "b")
        self.assertEqual((net.a._peers["b"].calling, refused.state), (1, State.IDLE))
        self.assertEqual(net.a.pathLost("b"), [asking, opened])
        self.assertEqual((net.a._peers, len(net.a)), ({}, 0))

    def test_unknown(self) -> None:
        """
        Nothing is lost with a path that had no connection, only messages.
        """
        net = Net()
        net.b.receive("x", DREQ.attribute, DREQ(1, 2).pack(), 0, 232, 0.0)
        self.assertEqual(net.b.pathLost("x"), [])
        self.assertIsNone(net.b.nextOutput())


class LengthTests(SynchronousTestCase):
    """
    Tables on a medium that carries the length of private data.
    """

    def lengths(self, privateData: bytes) -> dict[type[cm.AnyMessage], set[int]]:
        """
        @return: how many octets of private data each kind of message has on the wire.
        """
        net = Net()
        for table in (net.a, net.b):
            table.keepLengths()
        active, passive = net.request(privateData=privateData)
        passive.sendMRA(net.now, 20, privateData)
        net.wait(PERIOD)
        passive.accept(REP(localQPN=9, privateData=privateData), net.now)
        net.pump()
        active.ready(net.now, privateData)
        net.pump()
        for repeated in (passive, active):
            # The RTU again for a REP, an APR for a LAP.
            kind: type[REP | LAP] = REP if repeated is active else LAP
            message = kind(repeated.remoteID, repeated.localID)
            where, source = (net.a, "b") if repeated is active else (net.b, "a")
            octets = message.packExact()
            where.receive(source, message.attribute, octets, 0, len(octets), net.now)
            net.pump()
        active.disconnect(net.now, privateData)
        net.pump()
        _, refused = net.request(2)
        refused.reject(28, privateData, net.now)
        net.pump()
        request = SIDR_REQ(serviceID=SERVICE, privateData=privateData)
        net.a.lookups.ask("b", request, "user", 3, 20, net.now)
        net.pump()
        net.events["b"].pop()[1].answer(SIDR_REP(privateData=privateData), net.now)
        net.pump()
        found: dict[type[cm.AnyMessage], set[int]] = {}
        for (_, kind), octets in zip(net.carried, net.octets, strict=True):
            found.setdefault(kind, set()).add(len(octets) - (232 - kind.privateDataBytes))
        return found

    def test_program(self) -> None:
        """
        Private data is as long as the program's, zeros at its end included.
        """
        sizes = self.lengths(b"five\0")
        for kind in (MRA, REJ, REP, RTU, DREQ, SIDR_REQ, SIDR_REP):
            self.assertEqual((kind, sizes.pop(kind)), (kind, {5}))
        self.assertEqual(sizes, {REQ: {5, 0}, APR: {0}, DREP: {0}})

    def test_none(self) -> None:
        """
        Without any there is none, and so it is where nobody listens, for an id that nobody has and for a REP
        that no RTU follows.
        """
        sizes = self.lengths(b"")
        self.assertEqual(set(map(tuple, sizes.values())), {(0,)})
        self.assertEqual(len(sizes), 10)
        net = Net()
        net.b.keepLengths()
        net.b.lossless = True
        for message in (ask(localCommunicationID=5), REP(3, 4), DREQ(3, 4, 5)):
            net.b.unlisten(SERVICE)
            octets = message.packExact()
            net.b.receive("a", message.attribute, octets, 0, len(octets), 0.0)
        net.b.listen(SERVICE, "listener")
        for number in (6, 7):
            octets = ask(number, localCommunicationID=number).packExact()
            net.b.receive("a", REQ.attribute, octets, 0, len(octets), 0.0)
        first, second = (event[1] for event in net.b.events)
        first.accept(REP(localQPN=1), 0.0, False)  # type: ignore[union-attr]
        second.ignore(0.0)  # type: ignore[union-attr]
        kinds = [cm.byAttribute[attribute] for _, attribute, _ in net.b.outputs]
        self.assertEqual(kinds, [REJ, REJ, DREP, REP, MRA])
        for kind, (_, _, octets) in zip(kinds, net.b.outputs, strict=True):
            self.assertEqual((kind, len(octets)), (kind, 232 - kind.privateDataBytes))
