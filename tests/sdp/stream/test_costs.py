"""
The costs of SDP: functions called and objects made for a message, memory of an idle connection, and that
neither depends on the number of connections.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from typing import Any

from twisted.internet.protocol import Protocol
from twisted.internet.testing import StringTransport

from tests.sdp import pair
from tests.sdp.pair import Pair, PairTestCase
from tests.support.calls import called
from twisted_ib import limits
from twisted_ib.hca.device.form import compiledModules
from twisted_ib.sdp.stream import GATHER_LEFT

#: What an idle connection may take at both ends together, the test's two protocols included.
MOST_BYTES = 1900
#: In the compiled form, whose objects have a place for each attribute of their classes.
MOST_BYTES_COMPILED = 2704


class Sink(Protocol):
    """
    Takes bytes and does nothing.
    """

    def dataReceived(self, data: bytes) -> None:
        """
        Nothing.
        """


class Echo(Protocol):
    """
    Sends them back.
    """

    def dataReceived(self, data: bytes) -> None:
        """
        As they came.
        """
        self.transport.write(data)  # type: ignore[union-attr]


class CrowdTestCase(PairTestCase):
    """
    Many connections on reactors that poll.
    """

    polled = True

    def crowd(self, count: int, passive: type[Protocol] = Sink) -> list[Any]:
        """
        @return: The active ends of C{count} connections, all of which have said something, twice.
        """
        found = []
        for _ in range(count):
            one, two = self.pair.connected(Sink(), passive())
            two.protocol.transport = two
            found.append(one)
        for _ in range(2):
            for one in found:
                one.write(b"x" * 64)
            self.settle()
        return found


class MessageTests(CrowdTestCase):
    """
    One message in a batch, of each of many connections.
    """

    def perMessage(self, passive: type[Protocol]) -> dict[str, float]:
        """
        @return: How often which function is called for one more message.
        """
        calls = []
        for count in (10, 30):
            active = self.crowd(count, passive)

            def talk(active: list[Any] = active) -> None:
                """
                All write once.
                """
                for one in active:
                    one.write(b"x" * 64)
                self.settle()

            talk()
            calls.append(called(talk))
        few, many = calls
        return {name: (many[name] - few[name]) / 20 for name in many if many[name] - few[name] >= 10}

    def test_calls(self) -> None:
        """
        From C{write} to C{dataReceived} there are these functions, each once, nothing is initialised, and
        nobody has anything to do at the end of the batch.
        """
        found = self.perMessage(Sink)
        for name in ("send", "header", "postInline", "receive", "markDirty", "endOfBatch", "drained"):
            self.assertNotIn(name, found)
        self.assertNotIn("__init__", found)
        for name in ("write", "delivered", "received", "deliver", "dataReceived"):
            self.assertEqual(found.get(name), 1, found)
        # A reactor that does not poll is asked for a turn.
        self.assertLessEqual(sum(found.values()), 12 if self.polled else 13, found)

    def test_echo(self) -> None:
        """
        Nor for one that is sent while another is taken.
        """
        found = self.perMessage(Echo)
        for name in ("send", "markDirty", "endOfBatch", "__init__"):
            self.assertNotIn(name, found)
        self.assertLessEqual(sum(found.values()), 24, found)

    def test_objects(self) -> None:
        """
        No object that the collector knows outlives a message.
        """
        active = self.crowd(20)
        gc.collect()
        before = len(gc.get_objects())
        for _ in range(10):
            for one in active:
                one.write(b"x" * 64)
            self.settle()
        gc.collect()
        self.assertLess(len(gc.get_objects()) - before, 20)


class UnpolledMessageTests(MessageTests):
    """
    The same on a reactor that does not poll: C{epoll}, C{asyncio}.
    """

    polled = False

    def test_long(self) -> None:
        """
        A longer write is gathered, whatever the peer takes in a message: it leaves amid a batch as its pieces
        are whole.
        """
        [one] = self.crowd(1)
        self.assertEqual(one.direct, 16 * 1024)
        one.limitPayload(limits.INLINE_MESSAGE)
        self.assertEqual((one.prompt, one.direct), (16 * 1024, 16 * 1024))
        one.write(bytes(one.direct + 1))
        self.assertIsNotNone(one.buffer)
        one.limitPayload(1000)
        self.assertEqual(one.prompt, 1000)


class DirectTests(CrowdTestCase):
    """
    The first write of a batch needs no buffer.
    """

    def ready(self) -> tuple[Any, Any]:
        """
        @return: Two ends, of which the first writes so.
        """
        one, two = self.pair.connected()
        one.write(b"a")
        self.settle()
        self.assertTrue(one.direct)
        return one, two

    def test_gathered(self) -> None:
        """
        The writes of a batch are one message at its end.
        """
        one, two = self.ready()
        sent = one.machine.sequence
        for i in range(10):
            one.write(bytes([i]))
        self.assertEqual((one.machine.sequence, one.unsent()), (sent, 10))
        self.settle()
        self.assertEqual((one.machine.sequence - sent, two.heard.data[1:]), (1, bytes(range(10))))
        one.write(b"b")
        self.assertEqual((one.unsent(), one._tempDataBuffer, one.buffer), (1, [b"b"], None))
        self.settle()
        self.assertEqual((one.machine.sequence - sent, one.unsent(), two.heard.data[11:]), (2, 0, b"b"))

    def test_callback(self) -> None:
        """
        What a callback writes leaves when it returns, before the batch ends.
        """
        one, two = self.ready()
        sequences = []

        def answer(data: bytes) -> None:
            one.write(data)
            sequences.append(one.machine.sequence)

        one.heard.hook = answer
        sent = one.machine.sequence
        two.write(b"b")
        two.channel.device.progress()
        self.patch(one.channel.device, "_endOfBatch", None)
        one.channel.device.progress()
        self.assertEqual((sequences, one.machine.sequence), ([sent], sent + 1))

    def test_beforeExtensions(self) -> None:
        """
        What was written before registered memory in one call is sent before it.
        """
        one, two = self.ready()
        one.write(b"before")
        region = one.registerMemory(bytearray(b" and behind" * 10_000))
        one.writeRegistered(region)
        self.settle()
        self.assertEqual(two.heard.data[1:], b"before" + bytes(region.view))

    def test_batches(self) -> None:
        """
        The next batch has its own first write, also if the device has done nothing between.
        """
        one, _ = self.ready()
        sent = one.machine.sequence
        for n in range(1, 4):
            one.write(b"b")
            one.channel.device.progress()
            self.assertEqual(one.machine.sequence - sent, n)

    def test_credits(self) -> None:
        """
        Without credits it waits, and what is written later waits behind it.
        """
        one, two = self.ready()
        two.pauseProducing()
        text = b""
        for i in range(2 * limits.SDP_RECEIVES):
            text += bytes([i])
            one.write(text[-1:])
            self.pair.a.turn()
        self.assertIsNotNone(one.buffer)
        two.resumeProducing()
        self.settle()
        self.assertEqual(two.heard.data[1:], text)
        self.assertIsNone(one.buffer)

    def test_updates(self) -> None:
        """
        All that an end sends which only receives are updates of credits; nothing else is.
        """
        one, two = self.ready()
        there = two.channel.device
        sent, updates = two.machine.sequence, there.updates
        for _ in range(2 * limits.SDP_RECEIVES):
            one.write(b"x")
            self.settle()
        updates = there.updates - updates
        self.assertGreater(updates, 1)
        self.assertEqual(two.machine.sequence - sent, updates)
        two.write(b"y")
        self.settle()
        self.assertEqual(two.machine.sequence - sent, there.updates + 1)

    def test_threeCredits(self) -> None:
        """
        The first write of a batch needs three credits, as all data (IBTA vol. 1 annex A4 CA4-82); with fewer
        it is queued.
        """
        one, _ = self.ready()
        queued: list[bytes] = []
        self.patch(one.__class__, "send", lambda stream, data: queued.append(data))
        for credits_, expected in ((3, []), (2, [b"x"])):
            one.machine.limit = one.machine.sequence + credits_
            one.write(b"x")
            one.channel.device.progress()
            self.assertEqual(queued, expected)

    def test_creditsMeanwhile(self) -> None:
        """
        Credits that came, and are not used yet by what waits, are not for what is written now.
        """
        one, two = self.ready()
        limit, one.machine.limit = one.machine.limit, one.machine.sequence
        one.write(b"first")
        one.channel.device.progress()
        one.machine.limit = limit
        one.write(b" second")
        self.settle()
        self.assertEqual(two.heard.data[1:], b"first second")

    def test_told(self) -> None:
        """
        The peer is told of receives with what is written: while bytes go to and fro no message says only
        that.
        """
        one, two = self.pair.connected(Echo(), Echo())
        one.protocol.transport, two.protocol.transport = one, two
        one.write(b"x")
        device = one.channel.device
        while one.machine.received < 10 * limits.SDP_RECEIVES:
            self.assertTrue(device.progress() + two.channel.device.progress())
        self.assertEqual((one.machine.bareSent, two.machine.bareSent), (0, 0))

    def test_full(self) -> None:
        """
        Bytes that the medium does not accept are kept, in order.
        """
        one, two = self.ready()
        post = one.queuePair.path.__class__.post
        self.patch(one.queuePair.path.__class__, "post", lambda *arguments: False)
        one.write(b"kept")
        one.channel.device.progress()
        self.assertIsNotNone(one.queuePair.pending)
        self.patch(one.queuePair.path.__class__, "post", post)
        one.write(b" in order")
        one.queuePair.resume()
        self.settle()
        self.assertEqual(two.heard.data[1:], b"kept in order")

    def test_long(self) -> None:
        """
        A write that does not fit into one message takes the slow path.
        """
        one, two = self.ready()
        text = bytes(3 * limits.INLINE_MESSAGE + GATHER_LEFT)
        one.write(text)
        self.settle()
        self.assertEqual(two.heard.data[1:], text)

    def test_notDirect(self) -> None:
        """
        A stream with a producer, a close, an abort or extensions needs the end of the batch.
        """
        acts: list[Callable[[Any], object]] = [
            lambda one: one.registerProducer(StringTransport(), True),
            lambda one: one.loseConnection(),
            lambda one: one.loseWriteConnection(),
            lambda one: one.abortConnection(),
            lambda one: one.openExtensions(),
            lambda one: one.reset(),
        ]
        for act in acts:
            one, _ = self.ready()
            act(one)
            self.assertFalse(one.direct)

    def test_afterClose(self) -> None:
        """
        Nothing is sent behind the end.
        """
        for act in ("loseWriteConnection", "loseConnection", "abortConnection"):
            one, two = self.ready()
            one.write(b"last")
            getattr(one, act)()
            self.settle()
            one.write(b"never")
            self.settle()
            self.assertNotIn(b"never", two.heard.data[1:])

    def test_violations(self) -> None:
        """
        A message with a wrong number, length, acknowledgement or reserved flag ends the connection, though
        only the right ones are looked at in a hurry.
        """
        wrong: list[dict[str, int]] = [
            {"sequence": 77},
            {"length": 17},
            {"acknowledged": 5000},
            {"flags": 0x80},
        ]
        for options in wrong:
            raw, stream = self.pair.raw()
            raw.data(b"good")
            self.settle()
            raw.data(b"bad", **options)
            self.settle()
            self.assertEqual(stream.heard.data, b"good")
            self.assertEqual(stream.heard.calls, ["ConnectionLost"])


class IdleTests(CrowdTestCase):
    """
    Connections that say nothing.
    """

    def test_bytes(self) -> None:
        """
        One takes no more than L{MOST_BYTES} or L{MOST_BYTES_COMPILED} at both ends, after one message.
        """
        # An instance has room for each attribute that early instances of its class had: those of tests that
        # ran before in this process would count here (CPython 3.11 to 3.13, Objects/dictobject.c).
        self.patch(pair, "Kept", type("Kept", (pair.Kept,), {"__slots__": ("_peerPort",)}))
        self.crowd(20, Echo)
        gc.collect()
        count = 400
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            kept = self.crowd(count, Echo)
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        self.assertEqual(len(kept), count)
        self.assertLess(grown / count, MOST_BYTES_COMPILED if compiledModules() else MOST_BYTES)

    def test_objects(self) -> None:
        """
        It is three objects at an end: transport, queue pair, SDP's machine.
        """
        self.crowd(20, Echo)
        gc.collect()
        before = Counter(type(each).__name__ for each in gc.get_objects())
        kept = self.crowd(50, Echo)
        gc.collect()
        after = Counter(type(each).__name__ for each in gc.get_objects())
        grown = {name: count for name, count in (after - before).items() if count >= 50}
        expected = {
            "Kept": 100,
            "StreamQueuePair": 100,
            "Machine": 100,
            "Sink": 50,
            "Echo": 50,
        }
        self.assertEqual(len(kept), 50)
        if sys.version_info < (3, 11):
            grown.pop("dict", None)  # The protocols' attributes: they were objects of their own.
        self.assertEqual(grown, expected)

    def test_turns(self) -> None:
        """
        A turn in which nothing happens, or one message, calls the same functions whether there are few
        connections or many.
        """
        calls = []
        for count in (5, 60):
            one = self.crowd(count, Echo)[0]

            def turn(one: Any = one) -> None:
                """
                One that is silent, and one with a message.
                """
                self.pair.a.turn(), self.pair.b.turn()
                one.write(b"x")
                for _ in range(3):
                    self.pair.a.turn(), self.pair.b.turn()

            turn()
            calls.append(called(turn))
        self.assertEqual(*calls)


class AsleepTests(CrowdTestCase):
    """
    The same on reactors that do not poll.
    """

    polled = False

    def test_nothingDue(self) -> None:
        """
        However many there are, no call is delayed and no turn wanted, now and in a day.
        """
        for count in (1, 40):
            kept = self.crowd(count, Echo)
            for _ in range(2):
                for end in (self.pair.a, self.pair.b):
                    self.assertEqual((end.turn(), end.reactor.getDelayedCalls()), (0, []))
                    end.reactor.advance(86400)
            self.assertEqual(len(kept), count)


__all__ = ["AsleepTests", "DirectTests", "IdleTests", "MessageTests", "Pair"]
