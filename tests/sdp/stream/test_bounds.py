"""
Tests for what is bounded in streams and their channel, by what a review found:
updates of credits, closing connections, held bytes, messages of one flush.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.sdp.pair import End, Keeper, Pair, Raw
from tests.sdp.stream.test_order import ERRORS
from tests.sdp.stream.test_reviewed import ReviewedTestCase, jam
from tests.sdp.test_transport import Producer
from tests.support.generated import given, settings
from twisted_ib import limits
from twisted_ib.internet import channel as internetChannel
from twisted_ib.sdp.pendingsends import SendBuffer
from twisted_ib.sdp.protocol.machine import State
from twisted_ib.sdp.stream import SDP_CONTROL_RECEIVES, SDP_RECEIVES_LEAST

#: What is done: which end, what, how much.
STEPS = st.lists(
    st.tuples(
        st.booleans(),
        st.one_of(
            st.tuples(st.just("message"), st.integers(1, 70)),
            st.tuples(st.just("write"), st.sampled_from((1, 65536, 300000))),
            st.tuples(st.sampled_from(["turn", "pause", "resume", "press", "relieve", "settle"]), st.just(0)),
        ),
    ),
    max_size=40,
)


def press(end: End, pressed: bool) -> None:
    """
    Let it look as if more than half of the memory for held bytes were used at
    one end, or not any more.
    """
    device: Any = end.device
    most = limits.HELD_BYTES // 2 + 1
    if pressed and device.receiveBudget.heldBytes < most:
        device.receiveBudget.heldBytes += most
    elif not pressed and device.receiveBudget.heldBytes >= most:
        device.receiveBudget.heldBytes -= most


class UpdateTests(ReviewedTestCase):
    """
    Updates of credits: enough, and not without end.
    """

    def test_twoEndsWithFewReceives(self) -> None:
        """
        Two ends with few receives, one paused, one short of memory, exchange a
        bounded number of updates after one message.
        """
        for pair in self.pairs():
            one, two = pair.connected()
            one.pauseProducing()
            two.write(bytes(8_000_000))
            pair.settle()
            two.discard()
            press(pair.b, True)
            for _ in range(70):
                one.write(b"r")
                for _ in range(3):
                    pair.a.turn(), pair.b.turn()
            pair.settle()
            self.assertLessEqual(two.queuePair.posted, SDP_RECEIVES_LEAST)
            before = one.machine.sequence + two.machine.sequence
            one.write(b"r")
            pair.settle()
            self.assertLess(one.machine.sequence + two.machine.sequence - before, 10)
            press(pair.b, False)
            self.assertEqual(two.heard.data, b"r" * 71)

    def test_bothShortOfMemory(self) -> None:
        """
        Both short of memory: any number of messages gets through, with a
        bounded number of updates for each.
        """
        for pair in self.pairs():
            one, two = pair.connected()
            for end in pair.ends:
                press(end, True)
            for n in range(1, 200):
                for stream in (one, two)[: 1 + n % 2]:
                    stream.write(b"r")
                pair.settle()
            self.assertEqual((len(two.heard.data), len(one.heard.data)), (199, 100))
            self.assertLess(one.machine.sequence + two.machine.sequence, 4 * 299)
            for end in pair.ends:
                press(end, False)

    def test_oneThatIsMissing(self) -> None:
        """
        One receive alone is told to a peer that cannot send data without it,
        and not to one that can.
        """
        for posted, kinds in ((3, ["DATA"]), (4, [])):
            raw, stream = self.pair.raw()
            stream.pauseProducing()
            stream.queuePair.posted = posted
            stream.machine.told = stream.machine.received + posted
            raw.machine.limit = raw.machine.sequence + posted
            raw.data()
            self.settle()
            self.assertEqual((raw.kinds(), raw.machine.credits()), (kinds, 3))

    def play(self, steps: Any, polled: bool) -> None:
        """
        Play a schedule; when all resume, all bytes arrive and the two fall
        silent with the credits that data needs.
        """
        pair = Pair(polled)
        try:
            ends = pair.connected()
            sent = [0, 0]
            for second, (what, n) in steps:
                self.step(pair, ends[second], pair.ends[second], what, n)
                sent[second] += n
            for stream in ends:
                stream.resumeProducing()
            pair.settle()
            assert all(stream.machine.credits() >= 3 for stream in ends), "stuck"
            assert [len(each.heard.data) for each in ends] == sent[::-1]
            for end in pair.ends:
                press(end, False)
                assert (end.device.receiveBudget.heldBytes, end.device.counters[ERRORS]) == (0, 0)
            for stream in ends:
                stream.write(b"more")
            pair.settle()
            assert [len(each.heard.data) - 4 for each in ends] == sent[::-1]
            before = [each.machine.sequence for each in ends]
            for _ in range(20):
                pair.a.turn(), pair.b.turn()
            assert [each.machine.sequence for each in ends] == before, "not silent"
        finally:
            pair.close()

    def step(self, pair: Pair, stream: Any, end: End, what: str, n: int) -> None:
        """
        Do one thing.
        """
        if what == "message":
            for _ in range(n):
                stream.write(b"m")
                end.turn()
        elif what == "write":
            stream.write(bytes(n))
        elif what == "turn":
            end.turn()
        elif what == "pause":
            stream.pauseProducing()
        elif what == "resume":
            stream.resumeProducing()
        elif what == "settle":
            pair.settle()
        else:
            press(end, what == "press")

    @settings(max_examples=80, deadline=None)
    @given(STEPS)
    def test_polled(self, steps: Any) -> None:
        """
        Two ends that respect credits, pause and are short of memory send each other anything: neither gets
        stuck or breaks the protocol, and the two fall silent.
        """
        self.play(steps, True)

    @settings(max_examples=80, deadline=None)
    @given(STEPS)
    def test_notPolled(self, steps: Any) -> None:
        """
        The same on reactors that wait for the device's descriptor.
        """
        self.play(steps, False)


class FlushTests(ReviewedTestCase):
    """
    One flush.
    """

    def test_messagesPerFlush(self) -> None:
        """
        One flush sends C{MESSAGES_PER_FLUSH} messages at most, though credits
        and the medium allow more; the rest leaves in later batches, and what is
        queued by others in between leaves before.
        """
        self.patch(limits, "MESSAGES_PER_FLUSH", 4)
        self.patch(limits, "INLINE_MESSAGE", 1000)
        for pair in self.pairs():
            one, two = pair.connected()
            third, fourth = pair.connected()
            one.limitPayload(1000)
            one.buffer = SendBuffer()
            one.append = one.buffer.pieces.append
            for _ in range(10):
                one.buffer.append(bytes(1000))
            one.corked = False
            one.cork()
            order: list[str] = []
            two.heard.hook = lambda data, order=order: order.append("bulk")
            fourth.heard.hook = lambda data, order=order: order.append("other")
            third.write(b"x")
            pair.a.device.wanted = None
            device = pair.a.device
            counts = []
            while device._dirty:
                before = one.machine.sequence
                device._endOfBatch()
                counts.append(one.machine.sequence - before)
            self.assertEqual(counts, [4, 4, 2])
            pair.settle()
            self.assertEqual(order.count("bulk"), 10)
            self.assertLess(order.index("other"), 5)

    def test_producerTurns(self) -> None:
        """
        In one batch a producer is resumed C{PRODUCER_TURNS} times at most, though the medium has room; each
        time what it has written leaves as soon as it returns.
        """
        self.patch(limits, "PRODUCER_TURNS", 3)
        for streaming in (True, False):
            for pair in self.pairs():
                one, _ = pair.connected()
                producer = Producer()
                sent: list[int] = []

                def resumed(one: Any = one, sent: list[int] = sent) -> None:
                    sent.append(one.machine.sequence)
                    one.write(bytes(70_000))

                producer.hook = resumed
                one.registerProducer(producer, streaming)
                one.write(bytes(70_000))
                pair.a.device.wanted = None
                before = len(sent)
                pair.a.device._endOfBatch()
                self.assertEqual(len(sent) - before, 3)
                self.assertEqual([each - sent[-3] for each in sent[-3:]], [0, 2, 4])
                pair.a.device._endOfBatch()
                self.assertEqual(len(sent) - before, 6)
                one.unregisterProducer()
                pair.settle()

    def test_resumedFills(self) -> None:
        """
        A resumed producer is paused when what it has written fills C{PRODUCER_AHEAD} and the send buffer,
        as well as writes of its size can, and all of it leaves at once.
        """
        self.patch(limits, "PRODUCER_TURNS", 1)
        # Messages end where writes end, so a last one may be short.
        sizes = (
            (64, 262144, 4),
            (1000, 262000, 5),
            (9000, 261000, 5),
            (16384, 262144, 4),
            (20000, 260000, 5),
        )
        for size, most, messages in sizes:
            for pair in self.pairs():
                one, two = pair.connected()
                producer = Producer()

                def resumed(one: Any = one, producer: Producer = producer, size: int = size) -> None:
                    while producer.log[-1] == "resume":
                        one.write(bytes(size))

                one.registerProducer(producer, True)
                one.write(bytes(70_000))
                self.assertEqual(producer.log, ["pause"])
                producer.hook = resumed
                pair.a.device.wanted = None
                pair.a.device._endOfBatch()
                self.assertEqual(producer.log, ["pause", "resume", "pause"])
                self.assertEqual((one.machine.sequence, one.unsent()), (2 + messages, 0))
                producer.hook = None
                one.unregisterProducer()
                pair.settle()
                self.assertEqual(len(two.heard.data), 70_000 + most)

    def test_pulledFill(self) -> None:
        """
        Of what a pull producer writes, one piece each time, full messages leave before the end of the batch,
        and the rest with it.
        """
        self.patch(limits, "PRODUCER_TURNS", 9)
        for size, messages in ((1000, 0), (16384, 2), (20000, 3), (40000, 9)):
            for pair in self.pairs():
                one, two = pair.connected()
                producer = Producer()
                sent: list[int] = []

                def resumed(one: Any = one, sent: list[int] = sent, size: int = size) -> None:
                    sent.append(one.machine.sequence)
                    one.write(bytes([len(sent)]) * size)

                producer.hook = resumed
                wanted, pair.a.device.wanted = pair.a.device.wanted, None
                one.registerProducer(producer, False)
                for _ in range(2):
                    if len(sent) < 9:
                        sent.clear()
                        pair.a.device._endOfBatch()
                self.assertEqual((len(sent), one.machine.sequence - sent[0]), (9, messages))
                producer.hook = None
                one.unregisterProducer()
                pair.a.device.wanted = wanted
                if wanted is not None:
                    wanted()
                pair.settle()
                self.assertTrue(two.heard.data.endswith(b"".join(bytes([n]) * size for n in range(1, 10))))

    def test_abortOfResumed(self) -> None:
        """
        A producer that is resumed again in the same batch and aborts takes back what it has written in that
        call, and no more.
        """
        for pair in self.pairs():
            one, two = pair.connected()
            producer = Producer()

            def resumed(one: Any = one, producer: Producer = producer) -> None:
                one.write(bytes([producer.log.count("resume")]) * 70_000)
                if producer.log.count("resume") == 2:
                    one.abortConnection()

            producer.hook = resumed
            one.registerProducer(producer, True)
            one.write(bytes(70_000))
            pair.settle()
            self.assertEqual(producer.log, ["pause", "resume", "pause", "resume", "pause", "stop"])
            self.assertNotIn(2, two.heard.data)
            self.assertEqual(two.heard.calls, ["ConnectionLost"])

    def test_closeBehindFlush(self) -> None:
        """
        A close waits for all batches of what was written.
        """
        self.patch(limits, "MESSAGES_PER_FLUSH", 2)
        for pair in self.pairs():
            one, two = pair.connected()
            one.write(bytes(2_000_000))
            one.loseConnection()
            pair.settle()
            self.assertEqual((len(two.heard.data), two.heard.calls), (2_000_000, ["ConnectionDone"]))


class ThreeTestCase(ReviewedTestCase):
    """
    Base of tests with two peers of C{b}.
    """

    def third(self, pair: Pair) -> tuple[End, End]:
        """
        Give C{pair} a third end.

        @return: the two peers of C{b}; C{pair.a} is who connects.
        """
        other = End(pair.a.channel.polled, 3)
        first = pair.a
        pair.ends = (first, pair.b, other)  # type: ignore[assignment]
        return first, other

    def silent(self, pair: Pair) -> Raw:
        """
        @return: the peer of a connection that C{b} closes, who does not answer.
        """
        raw, stream = pair.raw()
        stream.loseConnection()
        pair.settle()
        return raw


class ClosingTests(ThreeTestCase):
    """
    Connections that the application has closed and the peer has not.
    """

    def test_deadline(self) -> None:
        """
        While there are users a peer that does not answer a DisConn is reset
        C{FIN_WAIT_SECONDS} later by the channel's own deadline, without any
        other connection.
        """
        for pair in self.pairs():
            raw = self.silent(pair)
            channel, counters = pair.b.channel, pair.b.device.counters
            for _ in range(int(internetChannel.FIN_WAIT_SECONDS) - 1):
                pair.advance(1)
                pair.settle()
            self.assertEqual((raw.log, counters["closing_timed_out"]), ([], 0))
            pair.b.reactor.rightNow += 1.5
            channel._tick()
            self.assertEqual((counters["closing_timed_out"], channel._closing), (1, {}))
            pair.settle()
            self.assertEqual((raw.kinds(), raw.log), (["DISCONN", "ABORT_CONN"], ["DREQ"]))

    def test_asksForTheDeadline(self) -> None:
        """
        The timed call of the channel is for the oldest closing, if nothing else
        is due before and somebody reads; else there is none.
        """
        for pair in self.pairs():
            self.silent(pair)
            self.patch(pair.b.device, "deadline", lambda: None)
            self.patch(pair.b.reactor, "calls", [])
            pair.b.channel._timer = None
            pair.b.channel.schedule()
            self.assertEqual(pair.b.reactor.getDelayedCalls(), [])
            reader = type("Reader", (), {"reading": True})()
            pair.b.channel.acquire(reader)
            pair.b.channel.schedule()
            (call,) = pair.b.reactor.getDelayedCalls()
            self.assertEqual(call.getTime(), min(pair.b.channel._closing.values()))
            reader.reading = False
            pair.b.channel.schedule()
            self.assertEqual(pair.b.reactor.getDelayedCalls(), [])
            pair.b.channel.release(reader)

    def test_whoHasMostPays(self) -> None:
        """
        Beyond C{CLOSING_CONNECTIONS} the oldest one of the peer with most is
        reset, not the oldest of all.
        """
        self.patch(internetChannel, "CLOSING_CONNECTIONS", 4)
        for pair in self.pairs():
            first, other = self.third(pair)
            old = self.silent(pair)
            pair.a = other
            many = [self.silent(pair) for _ in range(5)]
            pair.a = first
            self.assertEqual(old.log, [])
            self.assertEqual([raw.log for raw in many], [["DREQ"], ["DREQ"], [], [], []])
            self.assertEqual(len(pair.b.channel._closing), 4)
            self.silent(pair)
            self.assertEqual((old.log, many[2].log), ([], ["DREQ"]))
            other.channel.close()


class HeldTests(ThreeTestCase):
    """
    Bytes held for paused readers.
    """

    def test_roomForMany(self) -> None:
        """
        200 well-behaved senders, and readers that pause at the same time, cause no reset.
        """
        each = (limits.SDP_RECEIVES - SDP_CONTROL_RECEIVES) * limits.INLINE_MESSAGE
        self.assertGreaterEqual(limits.HELD_BYTES, 200 * each)

    def test_whoHoldsMostPays(self) -> None:
        """
        Beyond C{HELD_BYTES} the largest connection of the peer for whom most is
        held is reset, though a connection of another peer is larger.
        """
        self.patch(limits, "HELD_BYTES", 300000)
        for pair in self.pairs():
            first, other = self.third(pair)
            made = [(pair.connected(), 120000)]
            pair.a = other
            made += [(pair.connected(), n) for n in (50000, 70000, 55000)]
            pair.a = first
            for (_, two), _ in made:
                two.pauseProducing()
            for (one, _), n in made:
                one.write(bytes(n))
                pair.settle()
            self.assertEqual([two.heard.calls for (_, two), _ in made], [[]] * 4)
            made[0][0][0].write(bytes(10000))
            pair.settle()
            ends = [two.heard.calls for (_, two), _ in made]
            self.assertEqual(ends, [[], [], ["ConnectionLost"], []])
            device: Any = pair.b.device
            self.assertEqual(
                (device.counters["held_bytes_exceeded"], device.receiveBudget.heldBytes), (1, 235000)
            )
            other.channel.close()


class EndTests(ReviewedTestCase):
    """
    The last user, and what is still to be said.
    """

    def test_nobodyLeft(self) -> None:
        """
        Connections of a channel that is closed with a full medium, on a
        reactor that stops, end; nothing is left at either end.
        """
        for pair in self.pairs():
            one, two = pair.connected()
            jam(two.queuePair.path)
            pair.b.channel.close()
            self.assertEqual(two.heard.log, ["ConnectionLost"])
            pair.settle()
            self.assertEqual(len(one.heard.log), 1)
            self.assertIn(one.machine.state, (State.CLOSED, State.CLOSE_WAIT, State.TIME_WAIT))

    def test_userRaises(self) -> None:
        """
        A user that raises when the reactor gives the device up does not keep
        the others from being closed in order.
        """
        for pair in self.pairs():
            bad = Keeper()
            self.patch(bad, "connectionLost", lambda reason: 1 // 0)
            pair.b.channel.acquire(bad)
            one, two = pair.connected()
            pair.b.channel.close()
            pair.settle()
            self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
            self.assertEqual((one.heard.log, two.heard.log), (["ConnectionDone"], ["ConnectionLost"]))
            pair.b.channel.release(bad)
