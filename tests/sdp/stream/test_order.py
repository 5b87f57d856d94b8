"""
Tests for orders in L{twisted_ib.sdp.stream}, by what a review found: what may not
overtake, follow or get lost at an end, and data without the credits for it.
"""

from __future__ import annotations

from typing import Any

from twisted.python.failure import Failure

from tests.sdp.stream.test_reviewed import ReviewedTestCase, endBatch, jam
from twisted_ib.errors import PathLostError
from twisted_ib.sdp.protocol.machine import State
from twisted_ib.sdp.protocol.wire import MID, SrcAvail

ERRORS = "sdp_protocol_errors"
OFFER = SrcAvail(length=100, rkey=7, address=4096, payload=b"begin").pack()[16:]


class OrderTests(ReviewedTestCase):
    """
    Order: nothing is overtaken, misplaced or lost.
    """

    def test_deathInLastAck(self) -> None:
        """
        In LAST_ACK a paused reader has data and the peer's DisConn waiting, and
        the peer dies: it gets the data and the end of the stream, then the loss.
        """
        for pair in self.pairs():
            pair.b.device.cm.lossless = False  # Elsewhere there is no LAST_ACK to die in.
            one, two = pair.connected()
            self.half(two).pauseProducing()
            one.write(b"all of it")
            one.loseConnection()
            pair.settle()
            two.loseWriteConnection()
            pair.b.device.progress()
            self.assertEqual(two.machine.state, State.LAST_ACK)
            two.queuePair.fail(PathLostError("died"))
            pair.settle()
            self.assertEqual(two.heard.log, ["writeLost"])
            two.resumeProducing()
            pair.settle()
            self.assertEqual(two.heard.log, ["writeLost", b"all of it", "readLost", "ConnectionLost"])
            self.assertEqual(pair.b.device.receiveBudget.heldBytes, 0)

    def test_simultaneousHalfClose(self) -> None:
        """
        Both ends half close while the medium of one is full: its DREQ stays
        behind its DisConn, and both hear the ends of the streams only.
        """
        for pair in self.pairs():
            one, two = pair.connected()
            self.half(one), self.half(two)
            jam(two.queuePair.path)
            two.loseWriteConnection()
            endBatch(pair.b)
            self.assertEqual((two.machine.state, two.ending), (State.ESTABLISHED, True))
            one.loseWriteConnection()
            endBatch(pair.a)
            pair.b.device.progress()
            pair.settle()
            for end, transport in zip(pair.ends, (one, two), strict=True):
                self.assertEqual(sorted(transport.heard.log), ["readLost", "writeLost"])
                self.assertEqual(transport.queuePair.path, None)
                self.assertEqual(end.device.counters[ERRORS], 0)

    def test_disconnWithCredits(self) -> None:
        """
        A DisConn that waited for credits, and now waits for the medium, is not
        taken for sent.
        """
        for pair in self.pairs():
            raw, stream = pair.raw()
            self.half(stream)
            stream.machine.limit = stream.machine.sequence + 1
            stream.loseWriteConnection()
            pair.settle()
            jam(stream.queuePair.path)
            raw.data(buffers=100)
            endBatch(pair.a)
            pair.b.device.progress()
            self.assertTrue(stream.disconnSent)
            self.assertEqual((stream.machine.state, stream.heard.log), (State.ESTABLISHED, []))
            pair.settle()
            self.assertEqual((stream.machine.state, stream.heard.log), (State.FIN_WAIT1, ["writeLost"]))
            self.assertEqual(raw.kinds(), ["DISCONN"])

    def test_nothingBehindDisconn(self) -> None:
        """
        While a DisConn waits for the medium nothing that is written follows it.
        """
        for pair in self.pairs():
            one, two = pair.connected()
            self.half(one)
            jam(two.queuePair.path)
            two.loseConnection()
            endBatch(pair.b)
            self.assertTrue(two.disconnSent)
            two.write(b"late")
            two.write(bytes(100000))
            endBatch(pair.b)
            pair.settle()
            self.assertEqual(one.heard.log, ["readLost"])
            self.assertEqual(pair.a.device.counters[ERRORS], 0)
            self.assertEqual(two.heard.log, ["ConnectionDone"])

    def test_channelStaysForDisconn(self) -> None:
        """
        A channel without users does not leave while a DisConn waits for the
        medium; it is said as soon as there is room.
        """
        for pair in self.pairs():
            one, two = pair.connected()
            self.half(one)
            pair.b.channel.release(pair.b.keeper)
            jam(two.queuePair.path)
            two.connectionLost(Failure(PathLostError()))
            for _ in range(3):
                pair.b.turn()
            self.assertTrue(two.ending)
            self.assertTrue(pair.b.channel._registered)
            pair.settle()
            self.assertEqual(one.heard.log, ["readLost"])
            self.assertEqual(one.machine.state, State.CLOSE_WAIT)

    def test_noDataAfterAbort(self) -> None:
        """
        A protocol that aborts while data is delivered to it, and resumes, gets no more.
        """
        for pair in self.pairs():
            one, two = pair.connected()

            def abort(data: bytes, two: Any = two) -> None:
                """
                Abort, and resume.
                """
                two.abortConnection()
                two.resumeProducing()
                two.startReading()

            two.heard.hook = abort
            for data in (b"1", b"2", b"3"):
                self.arrive(one, two, data)
            pair.settle()
            self.assertEqual(two.heard.log, [b"1", "ConnectionAborted"])

    def test_reactorStops(self) -> None:
        """
        When the reactor stops, its connections are closed in order, behind what
        was written in the turn before.
        """
        for pair in self.pairs():
            made = [pair.connected() for _ in range(3)]
            for _, two in made:
                two.write(b"last words")
            pair.b.turn()
            pair.b.channel.close()
            pair.settle()
            for one, two in made:
                self.assertEqual(two.heard.log, ["ConnectionLost"])
                self.assertEqual(one.heard.log, [b"last words", "ConnectionDone"])


class CreditTests(ReviewedTestCase):
    """
    Data without the credits for it.
    """

    def test_dataWithTooFewCredits(self) -> None:
        """
        The last two receives are for control messages: data in them, as Data
        or in a SrcAvail, is a protocol error (CA4-82), paused or not; control
        messages are not.
        """
        for mid, body in ((MID.DATA, b"x"), (MID.SRC_AVAIL, OFFER)):
            for paused in (False, True):
                for posted, bad in ((3, False), (2, True), (1, True)):
                    raw, stream = self.pair.raw()
                    stream.reads = 0
                    if paused:
                        stream.pauseProducing()
                    stream.queuePair.posted = posted
                    errors = self.pair.b.device.counters[ERRORS]
                    raw.send(mid, body)
                    self.settle()
                    case = (mid, paused, posted)
                    self.assertEqual(self.pair.b.device.counters[ERRORS] - errors, bad, case)
                    self.assertEqual(stream.heard.calls, ["ConnectionLost"] if bad else [], case)
        raw, stream = self.pair.raw()
        stream.queuePair.posted = 1
        raw.send(MID.CH_RCV_BUF, b"\0\1\0\0")
        self.settle()
        self.assertEqual((raw.kinds()[0], stream.heard.log), ("CH_RCV_BUF_ACK", []))
