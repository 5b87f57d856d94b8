"""
Tests for how L{twisted_ib.sdp.stream} and its transport end, by what a review
found: who hears of an end, when, and whose exceptions are whose.  Orders are in
L{tests.sdp.stream.test_order}, what is bounded in
L{tests.sdp.stream.test_bounds}.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

from twisted.python.failure import Failure

from tests.sdp.pair import LOCALHOST, Pair, PairTestCase, Recorder
from tests.sdp.stream.test_closing import HalfRecorder
from tests.sdp.test_transport import Producer
from twisted_ib.errors import PathLostError
from twisted_ib.hca.wire.cm.messages import REQ
from twisted_ib.internet.addressing.addresses import addressOf
from twisted_ib.sdp.port import SDPClient, SDPServer

#: An opcode that nobody refuses and a queue pair that nobody has.
JUNK = 0x10 << 24 | 5


def jam(path: Any) -> None:
    """
    Fill the medium, of this end's direction, to the last byte.
    """
    for n in (60000, 8):
        while path.post(JUNK, b"", bytes(n), n):
            pass


def endBatch(end: Any) -> None:
    """
    Let what was gathered at one end leave, while nobody takes anything.
    """
    end.device.turns += 1
    end.device._endOfBatch()


class Dying:
    """
    The path to a peer that reads nothing any more.
    """

    peer = SimpleNamespace(guid=1)

    def sendManagement(self, *message: Any) -> None:
        """
        Let it go nowhere.
        """


class Failing(Recorder):
    """
    Raises when it hears of the end.
    """

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]
        """
        Remember, and raise.
        """
        Recorder.connectionLost(self, reason)
        raise ValueError("an application's mistake")


class FailingProducer(Producer):
    """
    Raises when it is stopped.
    """

    def stopProducing(self) -> None:
        """
        Remember, and raise.
        """
        Producer.stopProducing(self)
        raise ValueError("an application's mistake")


class FailingConnector:
    """
    A connector whose factory raises.
    """

    def connectionLost(self, reason: Failure) -> None:
        raise ValueError("an application's mistake")


class Client(SDPClient):
    """
    Told apart from others also at the end, as L{tests.sdp.pair.Kept}.
    """

    __slots__ = ("heard",)

    heard: Any


class ReviewedTestCase(PairTestCase):
    """
    Base: every test on reactors that poll and on those that do not.
    """

    def pairs(self) -> Any:
        """
        Make a pair of either kind; a test does the same with both.
        """
        for polled in (True, False):
            pair = Pair(polled)
            yield pair
            pair.close()

    def half(self, stream: Any) -> Any:
        """
        Give a connected stream a protocol that can be half closed.
        """
        stream.protocol = stream.heard = HalfRecorder()
        stream.protocol.makeConnection(stream)
        return stream

    def arrive(self, one: Any, other: Any, data: bytes) -> None:
        """
        Have C{data} in the medium, ready for C{other}'s next look.
        """
        one.write(data)
        endBatch(one.channel)


class MistakeTests(ReviewedTestCase):
    """
    The exceptions of one application are logged once, and are nobody else's.
    """

    def failing(self, pair: Pair) -> list[tuple[Any, Any]]:
        """
        Connections whose end at C{b} raises, each in its way, the first ones
        and the last one healthy.
        """
        made = [pair.connected(), pair.connected(None, Failing())]
        one, two = pair.connected()
        two.registerProducer(FailingProducer(), True)
        made.append((one, two))
        client = Client(pair.b.channel, addressOf(LOCALHOST, 1), addressOf(LOCALHOST, 2), FailingConnector())
        client.protocol = client.heard = Recorder()
        pair.b.channel.acquire(client)
        one = pair.transport(pair.a)
        pair.join(one, client)
        pair.attach(one), pair.attach(client)
        made += [(one, client), pair.connected()]
        return made

    def test_peerDies(self) -> None:
        """
        When a peer dies whatever raises at that is logged once each; all its
        connections hear of it, and neither a port nor another peer's
        connection does.
        """
        for pair in self.pairs():
            made = self.failing(pair)
            made[0][1].queuePair.path.lost(PathLostError("the peer died"))
            self.assertEqual(len(self.flushLoggedErrors(ValueError)), 3)
            for _, two in made:
                self.assertEqual(two.heard.log, ["ConnectionLost"])
            self.assertIsNone(pair.b.keeper.lost)
            self.assertEqual(list(pair.b.channel.users), [pair.b.keeper])

    def test_peerCloses(self) -> None:
        """
        When DisConns come together likewise, and the healthy one goes on.
        """
        for pair in self.pairs():
            made = self.failing(pair)
            for one, _ in made[:-1]:
                one.loseConnection()
            made[-1][0].write(b"still")
            pair.settle()
            self.assertEqual(len(self.flushLoggedErrors(ValueError)), 3)
            for _, two in made[:-1]:
                self.assertEqual(two.heard.log, ["ConnectionDone"])
            made[-1][1].write(b"here")
            pair.settle()
            self.assertEqual((made[-1][1].heard.log, made[-1][0].heard.log), ([b"still"], [b"here"]))
            self.assertEqual(list(pair.b.channel.users), [pair.b.keeper, made[-1][1]])
            self.assertIsNone(pair.b.keeper.lost)

    def test_dataThenLoss(self) -> None:
        """
        A protocol that raises at data and again at the loss that this is: both
        are logged, and the reactor's turn goes on.
        """
        for pair in self.pairs():
            one, two = pair.connected(None, Failing())
            two.heard.hook = lambda data: 1 // 0
            one.write(b"x")
            pair.settle()
            self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
            self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)
            self.assertEqual(list(pair.b.channel.users), [pair.b.keeper])

    def test_requestsOfTheDead(self) -> None:
        """
        When a peer dies one whose user raises does not keep the others of its
        connections being opened from hearing of it; what the fabric found so
        is logged and does not reach the reactor.
        """
        for pair in self.pairs():
            heard: list[Exception] = []
            device, path = pair.b.device, Dying()
            for call in (lambda reason: 1 // 0, heard.append):
                device.cm.connect(path, REQ(), SimpleNamespace(pathLost=call), 0.0)
            lost = PathLostError("the peer died")
            self.patch(device.fabric, "attend", partial(device.pathLost, path, lost))
            pair.b.channel.doRead()
            self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
            self.assertEqual(heard, [lost])
            self.patch(device.fabric, "attend", lambda: None)

    def test_deadline(self) -> None:
        """
        An exception raised when a deadline passes does not reach the reactor either.
        """
        for pair in self.pairs():
            self.patch(pair.b.device, "tick", lambda now: 1 // 0)
            pair.b.channel._tick()
            self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)


class ResetTests(ReviewedTestCase):
    """
    The peer resets a connection whose reader is paused.
    """

    def test_pausedProducer(self) -> None:
        """
        Whose producer is paused it hears of it at once, and the producer is
        stopped.
        """
        for pair in self.pairs():
            one, two = pair.connected()
            one.pauseProducing(), two.pauseProducing()
            producer = Producer()
            two.registerProducer(producer, True)
            two.write(bytes(10_000_000))
            pair.settle()
            self.assertEqual(producer.log, ["pause"])
            one.abortConnection()
            pair.settle()
            self.assertEqual((two.heard.log, producer.log), (["ConnectionLost"], ["pause", "stop"]))

    def test_producerWithoutBuffer(self) -> None:
        """
        Likewise if the medium has taken everything already, and the producer
        only has not been told.
        """
        for pair in self.pairs():
            one, two = pair.connected()
            two.pauseProducing()
            two.registerProducer(Producer(), True)
            two.filled()
            self.assertIsNone(two.buffer)
            one.abortConnection()
            one.channel.reactor.advance(0)
            endBatch(one.channel)
            two.channel.device.fabric.progress()
            self.assertEqual(two.heard.log, ["ConnectionLost"])

    def test_unsentBytes(self) -> None:
        """
        With bytes that wait for credits, or in a full medium, at once.
        """
        for pair in self.pairs():
            one, two = pair.connected()
            one.pauseProducing(), two.pauseProducing()
            two.write(bytes(10_000_000))
            pair.settle()
            one.abortConnection()
            pair.settle()
            self.assertEqual(two.heard.log, ["ConnectionLost"])
            one, two = pair.connected()
            two.pauseProducing()
            jam(two.queuePair.path)
            two.write(b"x")
            endBatch(two.channel)
            self.assertEqual((two.buffer, len(two.queuePair.pending)), (None, 1))
            one.abortConnection()
            one.channel.reactor.advance(0)
            endBatch(one.channel)
            two.channel.device.fabric.progress()
            self.assertEqual(two.heard.log, ["ConnectionLost"])
            pair.settle()

    def test_closing(self) -> None:
        """
        A transport that waits to close, or to half close, does so too: before the batch ends.
        """
        for pair in self.pairs():
            for close in ("loseConnection", "loseWriteConnection"):
                one, two = pair.connected()
                two.pauseProducing()
                getattr(two, close)()
                one.abortConnection()
                one.channel.reactor.advance(0)
                endBatch(one.channel)
                two.channel.device.fabric.progress()
                self.assertEqual(two.heard.log, ["ConnectionLost"], close)
                pair.settle()

    def test_nothingToWrite(self) -> None:
        """
        With nothing to write it hears of it when it reads again, behind what
        came before; so does one that reads but has not read all.
        """
        for pair in self.pairs():
            one, two = pair.connected()
            two.pauseProducing()
            two.registerProducer(Producer(), True)
            one.write(b"data")
            pair.settle()
            one.abortConnection()
            pair.settle()
            self.assertEqual(two.heard.log, [])
            two.resumeProducing()
            pair.settle()
            self.assertEqual(two.heard.log, [b"data", "ConnectionLost"])
            self.assertEqual((two.producer, pair.b.device.receiveBudget.heldBytes), (None, 0))


class EarlyTests(ReviewedTestCase):
    """
    Events in the turn of C{connectionMade}.
    """

    def made(self, pair: Pair) -> tuple[Any, Any]:
        """
        A connection whose passive end has just got its protocol.
        """
        active = pair.transport(pair.a)
        passive = SDPServer(pair.b.channel, addressOf(LOCALHOST, 1), addressOf(LOCALHOST, 2), None, 1)
        pair.b.channel.acquire(passive)
        pair.join(active, passive)
        pair.attach(active)
        passive.attach(Recorder())
        return active, passive

    def test_deathBehindData(self) -> None:
        """
        Data, and the peer's death in the same turn: the data is delivered, then
        the loss, both in the next turn.
        """
        for pair in self.pairs():
            one, two = self.made(pair)
            heard = two.protocol
            self.arrive(one, two, b"hello")
            pair.b.device.fabric.progress()
            two.queuePair.path.lost(PathLostError("the peer died"))
            self.assertEqual(heard.log, [])
            pair.settle()
            self.assertEqual(heard.log, [b"hello", "ConnectionLost"])

    def test_resetBehindData(self) -> None:
        """
        The same when the peer resets, also if bytes wait to leave.
        """
        for pair in self.pairs():
            for full in (False, True):
                one, two = self.made(pair)
                heard = two.protocol
                if full:
                    jam(two.queuePair.path)
                    two.write(b"x")
                    endBatch(pair.b)
                self.arrive(one, two, b"hello")
                one.abortConnection()
                pair.a.reactor.advance(0)
                endBatch(pair.a)
                pair.b.device.fabric.progress()
                self.assertEqual(heard.log, [])
                pair.settle()
                self.assertEqual(heard.log, [b"hello", "ConnectionLost"])

    def test_deathAlone(self) -> None:
        """
        Without data the loss is told at once.
        """
        for pair in self.pairs():
            _, two = self.made(pair)
            heard = two.protocol
            two.queuePair.path.lost(PathLostError("the peer died"))
            self.assertEqual(heard.log, ["ConnectionLost"])
            self.assertIsNone(two._settling)
