"""
Tests of L{twisted_ib.hca.cm.adapters}: streams of SDP whose peer may be an adapter's kernel.
"""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.cm.net import PERIOD, SERVICE, Net, answers, ask, send
from tests.hca.connection.test_compacthello import COMPACT, HELLO
from twisted_ib.hca.cm.machine import Connection, Event, State
from twisted_ib.hca.cm.table import ConnectionTable
from twisted_ib.hca.connection import RejectReason
from twisted_ib.hca.connection.compacthello import SOFTWARE
from twisted_ib.hca.wire.cm.messages import MRA, REJ, REP, REQ, RTU

#: The same number in the port space TCP.
MESSAGES = 0x1061C06
NOBODY = RejectReason.INVALID_SERVICE_ID


def refused(connection: Connection, reason: int = NOBODY, privateData: bytes = b"") -> REJ:
    """
    @return: a kernel's REJ.
    """
    return REJ(0, connection.localID, reason=reason, privateData=privateData)


class AskingTests(SynchronousTestCase):
    """
    The side that asks.
    """

    def setUp(self) -> None:
        """
        A table.
        """
        self.table = ConnectionTable(0xA, random.Random(1).getrandbits)

    def asked(self, privateData: bytes = HELLO, serviceID: int = SERVICE) -> tuple[Connection, REQ]:
        """
        @return: a connection and its REQ.
        """
        request = ask(privateData=privateData, startingPSN=7, vendorID=9)
        request.serviceID = serviceID
        connection = self.table.connect("peer", request, "user", 0.0)
        (sent,) = answers(self.table)
        assert isinstance(sent, REQ)
        return connection, sent

    def test_again(self) -> None:
        """
        A kernel that knows no such service is asked for the number in the other form, by a REQ with another
        id and nothing else that is new; the connection is the same, and its user hears of the answer alone.
        """
        connection, first = self.asked()
        (second,) = send(self.table, refused(connection))
        assert isinstance(second, REQ)
        self.assertEqual((second.serviceID, second.privateData), (MESSAGES, COMPACT.ljust(92, b"\0")))
        self.assertEqual(second.localCommunicationID, connection.localID)
        self.assertNotEqual(first.localCommunicationID, connection.localID)
        first.serviceID, first.privateData = second.serviceID, second.privateData
        first.localCommunicationID = connection.localID
        self.assertEqual(first, second)
        self.assertEqual((len(self.table), list(self.table.events)), (1, []))
        reply = REP(5, connection.localID, localQPN=3, localCAGUID=0xB)
        self.assertEqual(send(self.table, reply), [])
        self.assertEqual([each[:2] for each in self.table.events], [(Event.REPLY, connection)])
        connection.ready(0.0)
        self.assertEqual([type(each) for each in answers(self.table)], [RTU])
        self.assertIs(connection.state, State.ESTABLISHED)

    def test_late(self) -> None:
        """
        The REJ of a repeated REQ, which comes late, ends nothing.
        """
        connection, _ = self.asked()
        late = refused(connection)
        send(self.table, refused(connection))
        self.assertEqual(send(self.table, late), [])
        self.assertEqual((connection.state, list(self.table.events)), (State.REQ_SENT, []))
        self.assertEqual(self.table.counters["unknownID"], 1)

    def test_nobody(self) -> None:
        """
        Where nobody serves the number in either form the user hears it, once.
        """
        connection, _ = self.asked()
        send(self.table, refused(connection))
        self.assertEqual(send(self.table, refused(connection)), [])
        self.assertEqual([each[:2] for each in self.table.events], [(Event.REJECTED, connection)])
        self.assertEqual((len(self.table), self.table._peers, self.table.deadline()), (0, {}, None))

    def test_silent(self) -> None:
        """
        The second REQ is repeated as often as the first would be.
        """
        connection, _ = self.asked()
        self.table.tick(PERIOD)
        self.assertEqual(len(answers(self.table)), 1)
        (second,) = send(self.table, refused(connection), now=PERIOD)
        now, repeats = PERIOD, 0
        while self.table.deadline() is not None:
            now += PERIOD
            self.table.tick(now)
            repeats += answers(self.table) == [second]
        self.assertEqual(repeats, 15)
        self.assertEqual([each[0] for each in self.table.events], [Event.UNREACHABLE])

    def test_followed(self) -> None:
        """
        Whoever follows connections hears that the first REQ is no more, and of the second.
        """
        heard: list[tuple[State, int, bool]] = []
        self.table.follow = lambda connection, message: heard.append(
            (connection.state, connection.localID, message is not None)
        )
        connection, first = self.asked()
        send(self.table, refused(connection))
        number = first.localCommunicationID
        expected = [(State.IDLE, number, True), (State.IDLE, number, False)]
        self.assertEqual(heard, [*expected, (State.IDLE, connection.localID, True)])

    def test_notAgain(self) -> None:
        """
        Nobody is asked again who has said that this is software, or has another reason, or for another
        service, or without a Hello, or has taken time for the answer, or is a process of this host.
        """
        wrong = (
            ({}, {"privateData": SOFTWARE.ljust(148, b"\0")}),
            ({}, {"reason": RejectReason.CONSUMER_DEFINED}),
            ({"privateData": HELLO[:-1] + b"\0", "serviceID": MESSAGES}, {}),
            ({"serviceID": 0x13F1C06}, {}),
            ({"privateData": b"none"}, {}),
        )
        for asked, answer in wrong:
            connection, _ = self.asked(**asked)  # type: ignore[arg-type]
            self.assertEqual(send(self.table, refused(connection, **answer)), [])  # type: ignore[arg-type]
        connection, _ = self.asked()
        self.assertEqual(send(self.table, MRA(5, connection.localID, serviceTimeout=20)), [])
        self.assertEqual(send(self.table, refused(connection)), [])
        self.table.lossless = True
        connection, _ = self.asked()
        self.assertEqual(send(self.table, refused(connection)), [])
        self.assertEqual([each[0] for each in self.table.events], [Event.REJECTED] * 7)
        self.assertEqual((len(self.table), self.table._peers), (0, {}))


class AskedTests(SynchronousTestCase):
    """
    The side that an adapter asks.
    """

    def request(self, privateData: bytes = COMPACT) -> tuple[Net, Connection]:
        """
        @return: a net with a connection that was asked for in the form of adapters.
        """
        net = Net()
        request = ask(privateData=privateData)
        request.serviceID = MESSAGES
        return net, net.a.connect("b", request, "user", 0.0)

    def test_stream(self) -> None:
        """
        The stream service gets it as any other, also where messages have the number, and a repeated REQ is
        the same.
        """
        net, active = self.request()
        net.b.listen(MESSAGES, "messages")
        net.pump()
        ((event, passive, message),) = net.events["b"]
        self.assertEqual((event, message.serviceID, message.privateData), (Event.REQUEST, SERVICE, HELLO))
        self.assertEqual(passive.listener, "listener")
        passive.accept(REP(localQPN=3), 0.0)
        net.b.receive("a", REQ.attribute, net.octets[0], 0, 232, 0.0)
        net.pump()
        self.assertEqual(net.b.counters["repeatedREQ"], 1)
        self.assertEqual(net.kinds("a"), [Event.REPLY])
        active.ready(net.now)
        net.pump()
        self.assertIs(passive.state, State.ESTABLISHED)

    def test_messages(self) -> None:
        """
        A request without the mark is for the number's messages, and never for its streams.
        """
        for data in (b"", COMPACT[:36], COMPACT[:43], COMPACT[:36] + b"a program's"):
            net, _ = self.request(data)
            net.pump()
            self.assertEqual((net.kinds("a"), net.kinds("b")), ([Event.REJECTED], []))
            net, _ = self.request(data)
            net.b.listen(MESSAGES, "messages")
            net.pump()
            ((_, passive, message),) = net.events["b"]
            self.assertEqual((passive.listener, message.serviceID), ("messages", MESSAGES))

    def test_otherSpace(self) -> None:
        """
        In another port space the mark means nothing.
        """
        net = Net()
        net.a.connect("b", ask(privateData=COMPACT), "user", 0.0)
        net.pump()
        ((_, _, message),) = net.events["b"]
        self.assertEqual((message.serviceID, message.privateData), (SERVICE, COMPACT.ljust(92, b"\0")))

    def test_nobody(self) -> None:
        """
        Where the number has no streams it is refused, and its messages hear nothing of it.
        """
        net, _ = self.request()
        net.b.unlisten(SERVICE)
        net.b.listen(MESSAGES, "messages")
        net.pump()
        ((_, _, rejection),) = net.events["a"]
        self.assertEqual((rejection.reason, net.events["b"]), (NOBODY, []))

    def test_mangled(self) -> None:
        """
        A mark without a Hello is refused and counted, and nothing of it stays.
        """
        for at in (0, 1, 44, 48, 61):
            net, _ = self.request(COMPACT[:at] + b"\x7f" + COMPACT[at + 1 :])
            net.b.listen(MESSAGES, "messages")
            net.pump()
            ((_, _, rejection),) = net.events["a"]
            self.assertEqual((rejection.reason, net.events["b"]), (RejectReason.CONSUMER_DEFINED, []))
            self.assertEqual((net.b.counters["malformed"], len(net.b), net.b._peers), (1, 0, {}))
