"""
Tests for L{twisted_ib.sdp.stream} and its transport: orders of events that are
rare, each of which once broke something or would.
"""

from __future__ import annotations

from typing import Any

from twisted.python import log

from tests.sdp.pair import Pair, PairTestCase
from tests.sdp.test_transport import Producer
from twisted_ib import limits
from twisted_ib.sdp.protocol.wire import MID, SrcAvail
from twisted_ib.sdp.stream import SDP_RECEIVES_LOW

OFFER = SrcAvail(length=100, rkey=7, address=4096, payload=b"begin").pack()[16:]


class TrapTests(PairTestCase):
    """
    On reactors that poll.
    """

    polled = True

    def test_pausedWriter(self) -> None:
        """
        A reader that pauses, gets nothing but credits for what it writes, and
        resumes, can be sent data again: its receives are posted and announced,
        although it never held anything.
        """
        for polled in (False, True):
            pair = Pair(polled)
            self.addCleanup(pair.close)
            one, two = pair.connected()
            two.pauseProducing()
            for _ in range(64):
                for _ in range(SDP_RECEIVES_LOW):
                    two.write(b"x" * 60000)
                    two.endOfBatch()
                    two.channel.device._dirty.clear()
                    pair.a.turn()
                    pair.b.turn()
                pair.settle()
            self.assertIsNone(two.held)
            self.assertLessEqual(two.queuePair.posted, SDP_RECEIVES_LOW)
            two.resumeProducing()
            pair.settle()
            one.write(b"hello")
            pair.settle()
            self.assertEqual(two.heard.data, b"hello")
            self.assertGreater(one.machine.credits(), SDP_RECEIVES_LOW)

    def test_creditBehindPending(self) -> None:
        """
        Credits that could not be told because the medium was full are told when
        it has room, by whatever way the receives were posted.
        """
        for paused in (False, True):
            raw, stream = self.pair.raw()
            if paused:
                stream.pauseProducing()
                for _ in range(limits.SDP_RECEIVES - 2):
                    raw.data(b"x")
                self.settle()
            while stream.queuePair.canPost():
                stream.write(bytes(65536))
                self.endBatch(stream)
            if paused:
                stream.resumeProducing()
                self.endBatch(stream)
            else:
                for _ in range(limits.SDP_RECEIVES - 2):
                    raw.data(b"x")
                while stream.queuePair.path.progress(64):
                    pass
            self.assertEqual(len(stream.heard.data), limits.SDP_RECEIVES - 2)
            self.assertIsNotNone(stream.queuePair.pending)
            self.settle()
            self.assertGreaterEqual(raw.machine.credits(), SDP_RECEIVES_LOW, paused)

    def filled(self) -> tuple[Any, Any]:
        """
        @return: a raw peer that takes nothing, and a stream whose send queue is
            full and whose buffer is empty, at the end of a turn.
        """
        raw, stream = self.pair.raw()
        while stream.queuePair.canPost():
            stream.write(bytes(65536))
            self.endBatch(stream)
        self.assertIsNone(stream.buffer)
        return raw, stream

    def endBatch(self, stream: Any) -> None:
        """
        End the batch for one stream, and for nobody else.
        """
        dirty = stream.channel.device._dirty
        if stream in dirty:
            dirty.remove(stream)
        stream.endOfBatch()

    def test_roomInTheMiddleOfATurn(self) -> None:
        """
        Room in the medium while a turn gathers: what was gathered leaves, and
        the turn goes on.
        """
        raw, stream = self.filled()
        stream.write(b"a")
        stream.write(b"b")
        while raw.queuePair.path.progress(64):
            pass
        path: Any = stream.queuePair.path
        path.resumeWaiting()
        stream.write(b"c")
        self.settle()
        self.assertEqual(raw.stream[-3:], b"abc")

    def test_drainedMeansTaken(self) -> None:
        """
        A producer goes on, and a connection ends, only when the medium has taken
        everything.
        """
        _, stream = self.pair.raw()
        while stream.queuePair.pending is None:
            stream.write(bytes(65536))
            self.endBatch(stream)
        producer = Producer()
        stream.registerProducer(producer, True)
        stream.write(bytes(65537))
        self.endBatch(stream)
        self.assertEqual(producer.log, ["pause"])
        self.settle()
        self.assertEqual(producer.log, ["pause", "resume"])
        _, stream = self.filled()
        stream.loseConnection()
        self.endBatch(stream)
        self.assertEqual(stream.heard.calls, [])
        self.settle()
        self.assertEqual(stream.heard.calls, ["ConnectionDone"])

    def test_answersInOrder(self) -> None:
        """
        An answer does not overtake those that waited for credits, though it
        comes with credits.
        """
        raw, stream = self.pair.raw(1)
        stream.reads = 0
        raw.queuePair.posted = 1000
        raw.send(MID.CH_RCV_BUF, b"\0\1\0\0", buffers=1)
        self.settle()
        self.assertEqual(len(stream.pendingControl), 1)
        raw.send(MID.SRC_AVAIL, OFFER, buffers=100)
        self.settle()
        self.assertEqual(raw.kinds()[:2], ["CH_RCV_BUF_ACK", "SEND_SM"])

    def resumedByAnother(self, mid: int, body: bytes) -> list[Any]:
        """
        Within the upcall of one connection another one resumes, for which in the
        same turn more arrives.

        @return: what it hears.
        """
        other, first = self.pair.raw()
        raw, stream = self.pair.raw()
        stream.reads = 0
        stream.pauseProducing()
        raw.data(b"old")
        self.settle()
        first.heard.hook = lambda data: stream.resumeProducing()
        other.data(b"go")
        raw.send(mid, body)
        self.settle()
        return list(stream.heard.log)

    def test_newDataBehindHeld(self) -> None:
        """
        New data, a new offer and the end of the stream stay behind what is held.
        """
        self.assertEqual(self.resumedByAnother(MID.DATA, b"new"), [b"old", b"new"])
        self.assertEqual(self.resumedByAnother(MID.SRC_AVAIL, OFFER), [b"old", b"begin"])
        self.assertEqual(self.resumedByAnother(MID.DISCONN, b""), [b"old", "ConnectionDone"])

    def test_promisesAreKept(self) -> None:
        """
        Pausing takes no receive back that was promised.
        """
        raw, stream = self.pair.raw()
        stream.pauseProducing()
        for n in range(1, limits.SDP_RECEIVES - 2):
            raw.data(b"x")
            self.settle()
            self.assertEqual(stream.queuePair.posted, limits.SDP_RECEIVES - n)

    def test_writeAfterAbort(self) -> None:
        """
        Nothing leaves after an abort, not even the first write of a turn.
        """
        one, two = self.pair.connected()
        one.abortConnection()
        one.write(b"never")
        self.settle()
        self.assertEqual(two.heard.log, ["ConnectionLost"])

    def test_abortStopsProducer(self) -> None:
        """
        After an abort a producer is stopped, and not resumed before.
        """
        one, _ = self.pair.connected()
        producer = Producer()
        one.registerProducer(producer, True)
        one.write(bytes(100000))
        one.abortConnection()
        self.assertEqual(producer.log, ["pause"])
        one.channel.device.progress()
        self.assertEqual(producer.log, ["pause"])
        self.settle()
        self.assertEqual(producer.log, ["pause", "stop"])

    def test_abortInUpcall(self) -> None:
        """
        A protocol that aborts while it is given data hears nothing of what came
        behind it, data or end.
        """
        for mid, body in ((MID.DATA, b"2"), (MID.DISCONN, b""), (MID.ABORT_CONN, b"")):
            raw, stream = self.pair.raw()
            stream.heard.hook = lambda data, stream=stream: stream.abortConnection()
            raw.data(b"1")
            raw.send(mid, body)
            self.settle()
            self.assertEqual(stream.heard.log, [b"1", "ConnectionAborted"], mid)

    def test_lastWordsAfterError(self) -> None:
        """
        After an exception of its protocol nothing that waits is sent any more.
        """
        raw, stream = self.pair.raw(5)
        raw.queuePair.posted = 1000
        for i in range(6):
            stream.write(b"%d" % i)
            self.settle()
        stream.heard.hook = lambda data: 1 // 0
        raw.data(b"x", buffers=100)
        self.settle()
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertEqual((raw.stream, raw.kinds()[-1]), (b"012", "DISCONN"))


class LogTests(PairTestCase):
    """
    On reactors that do not.
    """

    def test_logSystemBehindUpcall(self) -> None:
        """
        A log entry made behind an upcall, in the same turn, is not the connection's.
        """
        one, two = self.pair.connected()
        two.logstr = "Recorder,7,host"
        systems: list[str] = []

        class Later:
            """
            Logs at the end of the batch.
            """

            def endOfBatch(self) -> None:
                """
                Log.
                """
                log.msg("later")

        def observe(event: Any) -> None:
            systems.append(event["system"])

        log.addObserver(observe)
        self.addCleanup(log.removeObserver, observe)
        two.heard.hook = lambda data: two.channel.device.markDirty(Later())
        one.write(b"a")
        self.settle()
        self.assertEqual(systems, ["-"])
