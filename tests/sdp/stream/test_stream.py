"""
Tests for L{twisted_ib.sdp.stream}: two streams over C{lo0}, or one and a peer
that does what the test wants.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from twisted.internet.error import ConnectionAborted
from twisted.python.failure import Failure

from tests.sdp.pair import Pair, PairTestCase
from tests.support.generated import given, settings
from twisted_ib import limits
from twisted_ib.sdp.protocol.wire import MID, Flags, SrcAvail
from twisted_ib.sdp.stream import SDP_RECEIVES_LOW

ERRORS = "sdp_protocol_errors"
PATTERN = bytes(i * 11 & 0xFF for i in range(251)) * 2000


def consistent(stream: Any) -> None:
    """
    Check what must hold of a stream between any two calls.
    """
    dirty = stream.channel.device._dirty
    assert stream.corked == (stream in dirty), "gathers without being dirty, or the reverse"
    assert dirty.count(stream) <= 1
    assert stream.room < 0 or stream.corked, "gathers in no turn"
    machine = stream.machine
    assert machine.sequence <= machine.limit, "sent without credit"
    if stream.queuePair.pending is not None:
        assert 0 < len(stream.queuePair.pending) <= limits.INLINE_SENDS


LENGTHS = (4095, 48 * 1024, 49153, 65535, 65536, 65537, 150000)
#: What is done: which end, what, how much.
SCHEDULES = st.lists(
    st.tuples(
        st.booleans(),
        st.one_of(
            st.tuples(st.just("write"), st.integers(1, 200)),
            st.tuples(st.just("write"), st.sampled_from(LENGTHS)),
            st.tuples(st.sampled_from(["turn", "pause", "resume", "turn", "settle"]), st.just(0)),
        ),
    ),
    max_size=60,
)


class ScheduleTests(PairTestCase):
    """
    Exact byte streams.
    """

    def play(self, steps: Any, polled: bool) -> None:
        """
        Play a schedule, then close in order: everything has arrived.
        """
        pair = Pair(polled)
        try:
            ends = pair.connected()
            sent = [b"", b""]
            for second, (what, n) in steps:
                stream = ends[second]
                if what == "write":
                    at = len(sent[second]) % 251
                    data = PATTERN[at : at + n]
                    sent[second] += data
                    stream.write(data)
                elif what == "turn":
                    pair.ends[second].turn()
                elif what == "pause":
                    stream.pauseProducing()
                elif what == "resume":
                    stream.resumeProducing()
                else:
                    pair.settle()
                for end in ends:
                    consistent(end)
            for stream in ends:
                stream.resumeProducing()
            pair.settle()
            for second in (0, 1):
                consistent(ends[second])
                assert ends[1 - second].heard.data == sent[second]
            ends[0].write(b"last")
            ends[0].loseConnection()
            pair.settle()
            assert ends[1].heard.data == sent[0] + b"last"
            assert [end.heard.calls for end in ends] == [["ConnectionDone"]] * 2
            assert [end.device.inUse()["qp"] for end in pair.ends] == [0, 0]
            assert [end.device.receiveBudget.heldBytes for end in pair.ends] == [0, 0]
            assert not any(end.device.counters[ERRORS] for end in pair.ends)
        finally:
            pair.close()

    @settings(max_examples=60, deadline=None)
    @given(SCHEDULES)
    def test_polled(self, steps: Any) -> None:
        """
        Two ends write, pause and resume at any time, in any turns of reactors that poll: the bytes arrive
        whole and in order.
        """
        self.play(steps, True)

    @settings(max_examples=60, deadline=None)
    @given(SCHEDULES)
    def test_notPolled(self, steps: Any) -> None:
        """
        The same on reactors that wait for the device's descriptor.
        """
        self.play(steps, False)


class SendTests(PairTestCase):
    """
    Sending: contents and times.
    """

    polled = True

    def batch(self, stream: Any) -> None:
        """
        End the batch for one stream.
        """
        stream.endOfBatch()
        self.pair.b.device._dirty.clear()

    def test_writesOfATurn(self) -> None:
        """
        On a reactor that polls, too, nothing leaves in the turn, and all writes are one message.
        """
        raw, stream = self.pair.raw()
        for turn in (b"abc", b"def"):
            for letter in turn:
                stream.write(bytes([letter]))
            self.pair.a.turn()
            self.assertNotIn(turn, raw.stream)
            self.settle()
        self.assertEqual([message[16:] for message in raw.messages], [b"abc", b"def"])

    def test_gathered(self) -> None:
        """
        Elsewhere too; many small pieces fill whole messages.
        """
        pair = Pair(False)
        self.addCleanup(pair.close)
        raw, stream = pair.raw()
        for _ in range(100):
            stream.write(b"x" * 700)
            consistent(stream)
        pair.settle()
        self.assertEqual(raw.stream, b"x" * 70000)
        self.assertEqual([len(message) - 16 for message in raw.messages], [65536, 70000 - 65536])

    def test_headerTakenIsPosted(self) -> None:
        """
        A number is only spent on a message that is posted: with a medium that
        is full, messages wait, as many as a queue pair keeps, and the rest
        stays in the buffer without numbers.
        """
        raw, stream = self.pair.raw()
        sent = b""
        for i in range(limits.RING_BULK // 65536 + 36):
            data = bytes([i]) * 65536
            sent += data
            stream.write(data)
        self.batch(stream)
        pending = stream.queuePair.pending
        self.assertEqual(len(pending), limits.INLINE_SENDS)
        self.assertFalse(stream.queuePair.canPost())
        path: Any = raw.queuePair.path
        inMedium = len(path._queue)
        self.assertEqual(stream.machine.sequence, inMedium + len(pending))
        self.assertGreater(stream.buffer.size, 20 * 65536)
        self.settle()
        self.assertEqual(raw.stream == sent, True)
        self.assertEqual(stream.machine.sequence, len(raw.messages))

    def test_noOvertaking(self) -> None:
        """
        A write in a new turn stays behind what waits for the medium or for
        credits, though the first of a turn leaves at once.
        """
        raw, stream = self.pair.raw()
        n = limits.RING_BULK // 65536 + 2
        for i in range(n):
            stream.write(bytes([i]) * 65536)
        self.batch(stream)
        self.assertIsNone(stream.buffer)
        self.assertIsNotNone(stream.queuePair.pending)
        stream.write(b"last")
        self.settle()
        self.assertEqual(raw.stream[-4:], b"last")
        self.assertEqual(len(raw.stream), n * 65536 + 4)

    def test_noOvertakingForCredits(self) -> None:
        """
        The same where bytes wait for credits.
        """
        raw, stream = self.pair.raw(5)
        raw.queuePair.posted = 1000
        for i in range(6):
            stream.write(b"%d" % i)
            self.settle()
        self.assertEqual(raw.stream, b"012")
        self.assertEqual(stream.machine.credits(), 2)
        raw.data(buffers=100)
        stream.write(b"6")
        self.settle()
        self.assertEqual(raw.stream, b"0123456")

    def test_noOvertakingInUpcall(self) -> None:
        """
        An answer that is written while the credits for what waits arrive does
        not go first.
        """
        raw, stream = self.pair.raw(5)
        raw.queuePair.posted = 1000
        for i in range(6):
            stream.write(b"%d" % i)
            self.settle()
        stream.heard.hook = lambda data: stream.write(b"6")
        raw.data(b"ping", buffers=100)
        self.settle()
        self.assertEqual(raw.stream, b"0123456")

    def test_sendQueueFull(self) -> None:
        """
        With nothing in the buffer and a send queue that is full, a write waits.
        """
        raw, stream = self.pair.raw()
        n = 0
        while stream.queuePair.canPost():
            stream.write(bytes(65536))
            self.batch(stream)
            n += 1
        self.assertIsNone(stream.buffer)
        stream.write(b"last")
        self.settle()
        self.assertEqual((len(raw.stream), raw.stream[-4:]), (n * 65536 + 4, b"last"))

    def test_largeWritesAreNotCut(self) -> None:
        """
        A large write that does not fit into a message with those before it is a message of its own.
        """
        raw, stream = self.pair.raw()
        stream.write(b"first")
        for data in (bytes(40000), bytes(65536), bytes(30000)):
            stream.write(data)
        self.settle()
        self.assertEqual([len(message) - 16 for message in raw.messages], [40005, 65536, 30000])

    def test_leavesAmidBatch(self) -> None:
        """
        What callbacks of a batch have written leaves when one has returned and it is a message's worth: the
        copies of a large answer overlap.  Less waits for the end of the batch.
        """
        for length, left in ((limits.INLINE_MESSAGE, [0, 1, 2, 3]), (16384, [0, 0, 0, 0, 1, 1, 1, 1])):
            one, two = self.pair.connected()
            found: list[int] = []

            def answer(data: bytes, two: Any = two, found: list[int] = found) -> None:
                """
                Echo, and note how many messages have left.
                """
                found.append(two.machine.sequence)
                two.write(data)

            one.write(b"x")
            self.settle()
            before = two.machine.sequence
            two.heard.dataReceived = answer
            messages = [bytes([n]) * length for n in range(len(left))]
            for message in messages:
                one.write(message)
                one.endOfBatch()
                one.channel.device._dirty.clear()
            self.pair.b.turn()
            self.assertEqual([each - before for each in found], left)
            self.settle()
            self.assertEqual(one.heard.data, b"".join(messages))

    def test_controlForCredits(self) -> None:
        """
        Without credits control messages are owed, in order, before data.
        """
        raw, stream = self.pair.raw(3)
        raw.queuePair.posted = 1000
        stream.write(b"a")
        stream.endOfBatch()
        self.pair.b.device._dirty.clear()
        self.assertEqual(stream.machine.credits(), 2)
        for size in range(3):
            raw.send(MID.CH_RCV_BUF, bytes([0, 1, size, 0]), buffers=3, acknowledged=0)
            self.settle()
        stream.write(b"b")
        self.settle()
        self.assertEqual(raw.kinds(), ["DATA", "CH_RCV_BUF_ACK"])
        self.assertEqual(len(stream.pendingControl), 2)
        # Credits that come meanwhile are for what is owed.
        stream.machine.limit += 10
        stream.sendControl(MID.CH_RCV_BUF_ACK, bytes(4))
        self.assertEqual((len(stream.pendingControl), len(raw.messages)), (3, 2))
        raw.data(buffers=100)
        self.settle()
        self.assertEqual(raw.kinds(), ["DATA", *["CH_RCV_BUF_ACK"] * 4, "DATA"])
        self.assertIsNone(stream.pendingControl)

    def test_answersNotTaken(self) -> None:
        """
        A peer that asks for answers and gives no credits for them is refused
        when as many are owed as it may have sent.
        """
        raw, stream = self.pair.raw(2)
        raw.queuePair.posted = 1000
        for _ in range(limits.SDP_RECEIVES + 1):
            self.assertEqual(stream.heard.calls, [])
            raw.send(MID.CH_RCV_BUF, b"\0\1\0\0", buffers=1, acknowledged=raw.machine.received)
            self.settle()
            if stream.pendingControl:
                self.assertLessEqual(len(stream.pendingControl), limits.SDP_RECEIVES)
        raw.send(MID.CH_RCV_BUF, b"\0\1\0\0", buffers=1)
        self.settle()
        self.assertEqual(stream.heard.calls, ["ConnectionLost"])
        self.assertIn("does not take them", str(stream.heard.reason.value))
        self.assertEqual(self.pair.b.device.counters[ERRORS], 1)

    def test_noSleepWithDirtyOwners(self) -> None:
        """
        A device does not go to sleep while somebody has gathered.
        """
        _, stream = self.pair.connected()
        device = self.pair.b.device
        self.assertTrue(device.arm())
        device.fabric.look()
        stream.write(b"a")
        stream.write(b"b")
        self.assertTrue(device.busy())
        self.assertFalse(device.arm())
        self.settle()
        self.assertTrue(device.arm())

    def test_peersBuffers(self) -> None:
        """
        No message is longer than the peer's receives.
        """
        raw, stream = self.pair.raw()
        stream.limitPayload(100)
        stream.write(b"x" * 250)
        stream.write(b"y" * 120)
        self.settle()
        self.assertEqual(raw.stream, b"x" * 250 + b"y" * 120)
        self.assertEqual(max(len(message) for message in raw.messages), 116)


class ReceiveTests(PairTestCase):
    """
    Receiving.
    """

    def test_upcallRaises(self) -> None:
        """
        An exception of a protocol is logged and closes its connection; others go on, and the device is not
        left in the middle of its work.
        """
        for polled in (False, True):
            pair = Pair(polled)
            self.addCleanup(pair.close)
            one, two = pair.connected()
            other, another = pair.connected()
            two.heard.hook = lambda data: 1 // 0
            one.write(b"1")
            other.write(b"2")
            one.write(b"3")
            pair.settle()
            self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
            self.assertEqual(two.heard.calls, ["ZeroDivisionError"])
            self.assertEqual(another.heard.data, b"2")
            self.assertFalse(any(path.busy for path in pair.b.device.fabric.paths()))
            other.write(b"4")
            pair.settle()
            self.assertEqual(another.heard.data, b"24")

    def test_creditOnClosedQueuePair(self) -> None:
        """
        A protocol may end the connection while it is given data: no credit,
        receive or data goes to the closed queue pair then.
        """
        for polled in (False, True):
            pair = Pair(polled)
            self.addCleanup(pair.close)
            raw, stream = pair.raw()
            stream.heard.hook = lambda data, s=stream: s.connectionLost(Failure(ConnectionAborted()))
            stream.machine.told = stream.machine.received + limits.SDP_CREDITS_LOW
            stream.queuePair.posted = SDP_RECEIVES_LOW
            raw.data(b"x")
            raw.data(b"y")
            pair.settle()
            self.assertEqual((stream.heard.data, stream.queuePair.posted), (b"x", 0))
            self.assertEqual(raw.messages, [])
            self.assertEqual(self.flushLoggedErrors(), [])

    def test_creditsGoOut(self) -> None:
        """
        A one-way stream gets its credits: the peer never runs out of them,
        and is told only when it has few left.
        """
        raw, stream = self.pair.raw()
        for i in range(500):
            raw.data(b"%03d" % i)
            self.assertGreaterEqual(raw.machine.credits(), 2)
            if i % 8 == 0:
                self.settle()
        self.settle()
        self.assertEqual(stream.heard.data, b"".join(b"%03d" % i for i in range(500)))
        self.assertTrue(10 < len(raw.messages) < 40, len(raw.messages))
        self.assertGreaterEqual(raw.machine.credits(), limits.SDP_CREDITS_LOW - 1)
        self.assertLessEqual(stream.queuePair.posted, limits.SDP_RECEIVES)

    def test_creditsForOtherMessages(self) -> None:
        """
        So it is where every message is one that tells of urgent data.
        """
        raw, stream = self.pair.raw()
        for i in range(200):
            raw.data(b"%03d" % i, flags=Flags.OOB_PEND)
            self.assertGreaterEqual(raw.machine.credits(), 2)
            if i % 8 == 0:
                self.settle()
        self.settle()
        self.assertEqual(stream.heard.data, b"".join(b"%03d" % i for i in range(200)))
        self.assertGreaterEqual(raw.machine.credits(), limits.SDP_CREDITS_LOW - 1)

    def test_idleEndsAreSilent(self) -> None:
        """
        Updates are not answered by updates.
        """
        one, two = self.pair.connected()
        for _ in range(100):
            one.write(b"x")
            two.write(b"y")
            self.settle()
        numbers = one.machine.sequence, two.machine.sequence
        for _ in range(20):
            self.settle()
            self.pair.advance(10)
        self.assertEqual((one.machine.sequence, two.machine.sequence), numbers)

    def test_traffic(self) -> None:
        """
        Each end has received all that the other has sent, message for message.
        """
        one, two = self.pair.connected()
        for _ in range(3):
            one.write(b"x")
            self.settle()
        sent, received, messagesSent, messagesReceived = one.traffic()
        self.assertGreaterEqual(sent, 3)
        self.assertEqual((messagesSent, messagesReceived), (sent, received))
        self.assertEqual(two.traffic(), (received, sent, received, sent))

    def test_pausedGetsFewReceives(self) -> None:
        """
        A connection whose reader pauses takes what is on the way and then no
        more data; control messages still come.
        """
        one, two = self.pair.connected()
        two.pauseProducing()
        for i in range(1000):
            one.write(b"%04d" % i)
            self.settle()
        self.assertLessEqual(len(two.held), limits.SDP_RECEIVES)
        self.assertGreater(len(two.held), limits.SDP_RECEIVES - 8)
        self.assertEqual(two.heldBytes, two.channel.device.receiveBudget.heldBytes)
        self.assertGreaterEqual(one.machine.credits(), 1)
        self.assertEqual(two.heard.log, [])
        two.resumeProducing()
        self.settle()
        self.assertEqual(two.heard.data, b"".join(b"%04d" % i for i in range(1000)))
        self.assertEqual((two.heldBytes, two.channel.device.receiveBudget.heldBytes), (0, 0))

    def test_resumeIsLater(self) -> None:
        """
        Held bytes come in a later turn, not within C{resumeProducing}; and pausing again within it stops
        them.
        """
        one, two = self.pair.connected()
        two.pauseProducing()
        for data in (b"1", b"2", b"3"):
            one.write(data)
            self.settle()
        two.heard.hook = lambda data: two.pauseProducing()
        two.resumeProducing()
        self.assertEqual(two.heard.log, [])
        self.settle()
        self.assertEqual(two.heard.log, [b"1"])
        two.heard.hook = None
        two.resumeProducing()
        one.write(b"4")
        self.settle()
        self.assertEqual(two.heard.log, [b"1", b"2", b"3", b"4"])

    def test_sourceAvailable(self) -> None:
        """
        A SrcAvail of a peer that answers no READs is answered by SendSm, and its first bytes
        are delivered.
        """
        raw, stream = self.pair.raw()
        stream.reads = 0
        offer = SrcAvail(length=100, rkey=7, address=4096, payload=b"begin").pack()
        raw.send(MID.SRC_AVAIL, offer[16:])
        self.settle()
        self.assertEqual(stream.heard.log, [b"begin"])
        self.assertEqual(raw.messages, [bytes.fromhex("0400003f 00000010 00000001 00000001")])
        stream.pauseProducing()
        raw.send(MID.SRC_AVAIL, offer[16:])
        self.settle()
        raw.data(b"rest")
        self.settle()
        self.assertEqual(stream.heldBytes, 9)
        stream.resumeProducing()
        self.settle()
        self.assertEqual((stream.heard.data, raw.kinds()[:2]), (b"beginbeginrest", ["SEND_SM"] * 2))

    def test_changeReceiveBuffer(self) -> None:
        """
        A ChRcvBuf is answered by the size that is in force.
        """
        raw, _ = self.pair.raw()
        raw.send(MID.CH_RCV_BUF, bytes.fromhex("00100000"))
        self.settle()
        self.assertEqual(raw.messages, [bytes.fromhex("0c00003f 00000014 00000001 00000001 00010000")])

    def test_illegal(self) -> None:
        """
        An unexpected message ends the connection with an error that names it; it is counted, and the peer
        sees a reset.
        """
        offer = SrcAvail(length=100, rkey=7, address=4096, payload=b"begin").pack()[16:]
        cases: list[tuple[str, int, bytes, dict[str, int]]] = [
            ("does not belong", mid, bytes(4), {})
            for mid in range(256)
            if mid not in tuple(MID) or mid <= MID.HELLO_ACK
        ]
        cases += [
            ("nothing was asked", MID.CH_RCV_BUF_ACK, b"\0\1\0\0", {}),
            ("there was no SrcAvail", MID.SEND_SM, b"", {}),
            ("too many", MID.SEND_SM, b"x", {}),
            ("no SinkAvail is outstanding", MID.RDMA_WR_COMPL, bytes(4), {}),
            ("no SrcAvail is outstanding", MID.RDMA_RD_COMPL, b"\0\0\0\1", {}),
            ("is no change of mode", MID.MODE_CHANGE, b"\x70\0\0\0", {}),
            ("PIPELINED_TO_COMBINED in COMBINED mode", MID.MODE_CHANGE, b"\x10\0\0\0", {}),
            ("BUFFERED_TO_COMBINED in COMBINED mode", MID.MODE_CHANGE, b"\x90\0\0\0", {}),
            ("nothing was cancelled", MID.SINK_CANCEL_ACK, b"", {}),
            ("SinkAvail in COMBINED mode", MID.SINK_AVAIL, b"\0\2" + bytes(18), {}),
            ("SinkAvail of 0 bytes", MID.SINK_AVAIL, bytes(20), {}),
            ("moves to service 0x11389", MID.SUSP_COMM, (0x11389).to_bytes(8, "big"), {}),
            ("nothing was suspended", MID.SUSP_COMM_ACK, b"", {}),
            ("too short for ChRcvBuf", MID.CH_RCV_BUF, b"\0\1\0", {}),
            ("too many", MID.CH_RCV_BUF, b"\0\1\0\0\0", {}),
            ("has a body of", MID.DISCONN, b"x", {}),
            ("has a body of", MID.ABORT_CONN, b"x", {}),
            ("flags 0x01", MID.DISCONN, b"", {"flags": 1}),
            ("may not carry flags", MID.SRC_AVAIL, offer, {"flags": 4}),
            ("too short for SrcAvail", MID.SRC_AVAIL, bytes(15), {}),
            ("carries its first bytes", MID.SRC_AVAIL, offer[:16], {}),
            ("carries", MID.SRC_AVAIL, bytes(16) + b"x", {}),
            ("flags", MID.DATA, b"x", {"flags": 8}),
            ("length 20", MID.DATA, b"x", {"length": 20}),
            ("number 9 where 1", MID.DATA, b"x", {"sequence": 9}),
            ("acknowledged", MID.DATA, b"x", {"acknowledged": 9}),
        ]
        counters = self.pair.b.device.counters
        for n, (text, mid, body, options) in enumerate(cases):
            raw, stream = self.pair.raw()
            raw.send(mid, body, **options)
            raw.send(MID.DATA, b"more")
            self.settle()
            self.assertEqual(stream.heard.log, ["ConnectionLost"], hex(mid))
            self.assertIn(text, str(stream.heard.reason.value))
            self.assertEqual(counters[ERRORS], n + 1)
            self.assertEqual(raw.log, ["DREQ"])
            raw.queuePair.close()
        self.assertEqual(self.pair.b.device.inUse()["qp"], 0)

    def test_noHeader(self) -> None:
        """
        So does a message without a header.
        """
        raw, stream = self.pair.raw()
        raw.queuePair.postInline(b"short", b"", 0)
        self.settle()
        self.assertIn("5 bytes has no header", str(stream.heard.reason.value))

    def test_noCredits(self) -> None:
        """
        A peer that ignores its credits loses the connection.
        """
        raw, stream = self.pair.raw()
        stream.queuePair.posted = 1
        stream.pauseProducing()
        raw.data(b"x")
        raw.data(b"y")
        self.settle()
        stream.queuePair.posted = 0
        raw.data(b"z")
        self.settle()
        stream.resumeProducing()
        self.settle()
        self.assertEqual(stream.heard.calls, ["ConnectionLost"])
        self.assertIn("credits", str(stream.heard.reason.value))
        self.assertEqual(raw.log, ["DREQ"])
