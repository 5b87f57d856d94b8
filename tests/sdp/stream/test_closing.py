"""
Tests for how L{twisted_ib.sdp.stream} ends: in order, half, by reset, and when
the peer does not answer.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.interfaces import IHalfCloseableProtocol
from zope.interface import implementer

from tests.sdp.pair import PairTestCase, Recorder
from twisted_ib import limits
from twisted_ib.errors import PathLostError, PeerEndedError
from twisted_ib.internet import channel
from twisted_ib.sdp.protocol.machine import State
from twisted_ib.sdp.protocol.wire import MID
from twisted_ib.sdp.stream import SDP_RECEIVES_LEAST


@implementer(IHalfCloseableProtocol)
class HalfRecorder(Recorder):
    """
    Remembers half closes too.
    """

    def readConnectionLost(self) -> None:
        self.log.append("readLost")

    def writeConnectionLost(self) -> None:
        self.log.append("writeLost")


class ClosingTestCase(PairTestCase):
    """
    Base of tests of the end.
    """

    def disconnects(self) -> None:
        """
        Let DREQ and DREP end connections, as where messages may be lost.
        """
        for end in self.pair.ends:
            end.device.cm.lossless = False

    def assertGone(self) -> None:
        """
        Nothing is left at either end.
        """
        self.settle()
        for end in self.pair.ends:
            self.assertEqual(end.device.inUse()["qp"], 0)
            self.assertEqual(end.channel._closing, {})
            self.assertEqual((end.device.receiveBudget.heldBytes, end.device.receiveBudget.holders), (0, {}))
            self.assertEqual(list(end.channel.users), [end.keeper])


class OrderlyTests(ClosingTestCase):
    """
    DisConn.
    """

    def test_close(self) -> None:
        """
        Bytes written before a close leave before the DisConn, as over TCP also those written while older data
        still waits; both sides end with ConnectionDone and nothing is left.
        """
        for second in (0, 1):
            ends = self.pair.connected()
            one, two = ends[second], ends[1 - second]
            one.write(b"x" * 1000000)
            one.loseConnection()
            one.write(b"too")
            self.settle()
            one.write(b"not any more")
            self.settle()
            self.assertEqual(one.heard.calls, ["ConnectionDone"])
            self.assertEqual(two.heard.calls, ["ConnectionDone"])
            self.assertEqual(len(two.heard.data), 1000003)
            self.assertGone()

    def test_answerToHalf(self) -> None:
        """
        An end that answers a half close with much, and closes, is gone while credits are on their way to it:
        no error of the peer, and the number is not kept from others.
        """
        one, two = self.pair.connected(Recorder(), HalfRecorder())
        number = two.queuePair.number
        one.loseWriteConnection()
        self.settle()
        path = two.queuePair.path
        two.write(bytes(3_000_000))
        two.loseConnection()
        self.settle()
        self.assertEqual(len(one.heard.data), 3_000_000)
        self.assertEqual([end.device.counters["absent_queue_pair"] for end in self.pair.ends], [0, 0])
        self.assertFalse(path.absent[number])
        self.assertGone()

    def test_bothAtOnce(self) -> None:
        """
        Both close in the same turn: DisConns, and so DREQs, cross.
        """
        one, two = self.pair.connected()
        one.write(b"a"), two.write(b"b")
        one.loseConnection()
        two.loseConnection()
        self.settle()
        self.assertEqual([end.heard.calls for end in (one, two)], [["ConnectionDone"]] * 2)
        self.assertGone()

    def test_messages(self) -> None:
        """
        The closing as it is on the wire: DisConn after the data, DREQ when the
        peer's DisConn has come.
        """
        self.disconnects()
        raw, stream = self.pair.raw()
        stream.write(b"abc")
        stream.loseConnection()
        self.settle()
        self.assertEqual((raw.kinds(), raw.log), (["DATA", "DISCONN"], []))
        self.assertEqual((stream.machine.state, stream.heard.calls), (State.FIN_WAIT1, ["ConnectionDone"]))
        raw.send(MID.DISCONN)
        self.settle()
        self.assertEqual((raw.log, stream.machine.state), (["DREQ"], State.TIME_WAIT))
        raw.queuePair.close()
        self.assertGone()

    def test_peerFirst(self) -> None:
        """
        The other way round: the own DisConn follows, and the peer's DREQ ends it.
        """
        self.disconnects()
        raw, stream = self.pair.raw()
        raw.send(MID.DISCONN)
        self.settle()
        self.assertEqual((stream.heard.calls, stream.machine.state), (["ConnectionDone"], State.LAST_ACK))
        self.assertEqual(raw.kinds(), ["DISCONN"])
        raw.disconnect()
        self.settle()
        self.assertEqual(stream.machine.state, State.TIME_WAIT)
        raw.queuePair.close()
        self.assertGone()

    def test_withoutDREQ(self) -> None:
        """
        Where no message is lost both DisConns end the connection, whoever closes first: no DREQ, no TIMEWAIT.
        """
        for isFirst in (True, False):
            raw, stream = self.pair.raw()
            connection = stream.connection
            sent = self.pair.b.device.cm.messagesSent
            steps = [stream.loseConnection, lambda raw=raw: raw.send(MID.DISCONN)]
            for step in steps if isFirst else reversed(steps):
                step()
                self.settle()
            self.assertEqual((raw.kinds(), raw.log), (["DISCONN"], []))
            self.assertEqual(stream.heard.calls, ["ConnectionDone"])
            self.assertIs(stream.machine.state, State.TIME_WAIT)
            self.assertEqual(connection.state.name, "IDLE")
            self.assertTrue(self.pair.a.device.finish(raw))
            raw.queuePair.close()
            self.assertGone()
            for end in self.pair.ends:
                self.assertEqual((len(end.device.cm), len(end.device.cm._timewait)), (0, 0))
            self.assertEqual(self.pair.b.device.cm.messagesSent, sent)

    def test_disconnectedMeanwhile(self) -> None:
        """
        A peer that resets before it has read our DisConn gets its answer, and nobody hears of that here.
        """
        raw, stream = self.pair.raw()
        raw.send(MID.DISCONN)
        self.settle()
        raw.send(MID.ABORT_CONN)
        raw.disconnect()
        self.settle()
        self.assertEqual((raw.log, stream.heard.calls), (["DREQ"], ["ConnectionDone"]))
        raw.queuePair.close()
        self.assertGone()

    def test_disconnWaitsForCredits(self) -> None:
        """
        A DisConn without credits is kept until there are some.
        """
        raw, stream = self.pair.raw(3)
        raw.queuePair.posted = 1000
        stream.write(b"a")
        self.settle()
        stream.machine.limit = stream.machine.sequence + 1
        stream.loseConnection()
        self.settle()
        self.assertEqual((raw.kinds(), stream.heard.calls), (["DATA"], []))
        raw.data(buffers=100)
        self.settle()
        self.assertEqual(raw.kinds(), ["DATA", "DISCONN"])
        self.assertEqual(stream.heard.calls, ["ConnectionDone"])

    def test_endBehindUnreadData(self) -> None:
        """
        The end of the stream is told behind the data that was not read.
        """
        one, two = self.pair.connected()
        two.pauseProducing()
        one.write(b"unread")
        one.loseConnection()
        self.settle()
        self.assertEqual(two.heard.log, [])
        two.resumeProducing()
        self.settle()
        self.assertEqual(two.heard.log, [b"unread", "ConnectionDone"])
        self.assertGone()

    def test_endWhilePaused(self) -> None:
        """
        The same without data.
        """
        one, two = self.pair.connected()
        two.pauseProducing()
        one.loseConnection()
        self.settle()
        self.assertEqual(two.heard.log, [])
        two.resumeProducing()
        self.settle()
        self.assertEqual(two.heard.log, ["ConnectionDone"])
        self.assertGone()

    def test_diedAfterTheEnd(self) -> None:
        """
        The peer's process dies after its DisConn was received and before it
        is read: the reader gets the data and a clean end.
        """
        one, two = self.pair.connected()
        two.pauseProducing()
        one.write(b"unread")
        one.loseConnection()
        self.settle()
        self.pair.a.device.close()
        self.settle()
        two.resumeProducing()
        self.settle()
        self.assertEqual(two.heard.log, [b"unread", "ConnectionDone"])

    def test_halfClose(self) -> None:
        """
        After a half close the other direction goes on, from either side.
        """
        for second in (0, 1):
            ends = self.pair.connected(HalfRecorder(), HalfRecorder())
            one, two = ends[second], ends[1 - second]
            one.write(b"question")
            one.loseWriteConnection()
            one.loseWriteConnection()
            self.settle()
            one.write(b"never")
            self.assertEqual(one.heard.log, ["writeLost"])
            self.assertEqual(two.heard.log, [b"question", "readLost"])
            two.write(b"answer" * 50000)
            self.settle()
            self.assertEqual(one.heard.data, b"answer" * 50000)
            two.loseWriteConnection()
            self.settle()
            self.assertEqual(two.heard.calls, ["readLost", "writeLost"])
            self.assertEqual(one.heard.calls, ["writeLost", "readLost"])
            one.loseConnection(), two.loseConnection()
            self.settle()
            self.assertEqual([end.heard.calls[2:] for end in ends], [["ConnectionDone"]] * 2)
            self.assertGone()

    def test_halfCloseWithoutInterface(self) -> None:
        """
        A protocol that does not know half closes ends with the peer's.
        """
        one, two = self.pair.connected(HalfRecorder())
        one.loseWriteConnection()
        self.settle()
        self.assertEqual(two.heard.calls, ["ConnectionDone"])
        self.assertEqual(one.heard.calls, ["writeLost", "readLost"])
        one.loseConnection()
        self.settle()
        self.assertGone()


class Pusher:
    """
    A producer of large pieces, which counts how often it is resumed.
    """

    resumed = 0
    size = 3 * limits.SEND_BUFFER

    def __init__(self, transport: Any) -> None:
        self.transport = transport

    def resumeProducing(self) -> None:
        """
        Write a piece.
        """
        self.resumed += 1
        self.transport.write(bytes(self.size))

    def pauseProducing(self) -> None:
        """
        Do nothing.
        """

    stopProducing = pauseProducing


class BehindTests(ClosingTestCase):
    """
    What is sent behind the end of a peer whose process has closed and ended.
    """

    def ended(self, hasPlace: bool = True) -> Any:
        """
        @param hasPlace: Whether there is one for the last words of the peer's process.
        @return: The end that is left.
        """
        one, two = self.pair.connected(Recorder(), HalfRecorder())
        one.loseWriteConnection()
        self.settle()
        two.slot = int(hasPlace)
        two.failed(PeerEndedError("the peer has ended"))
        two.slot = 0
        self.settle()
        return two

    def test_write(self) -> None:
        """
        The first write is lost without a word, as over TCP, where nobody reads its answer; that of the second
        is the end.
        """
        two = self.ended()
        for word in (b"more", b"and more"):
            self.assertEqual(two.heard.calls, ["readLost"])
            two.write(word)
            self.assertEqual(two.heard.calls, ["readLost"])
            self.settle()
        self.assertEqual(two.heard.calls, ["readLost", "ConnectionLost"])

    def test_producer(self) -> None:
        """
        A producer hears of the end after one piece, however large that is.
        """
        two = self.ended()
        producer = Pusher(two)
        two.registerProducer(producer, True)
        producer.resumeProducing()
        self.settle()
        self.assertEqual((two.heard.calls[1:], producer.resumed), (["ConnectionLost"], 1))

    def test_pullProducer(self) -> None:
        """
        One that is asked for each piece hears of it after the second.
        """
        two = self.ended()
        producer = Pusher(two)
        producer.size = 10
        two.registerProducer(producer, False)
        self.settle()
        self.assertEqual((two.heard.calls[1:], producer.resumed), (["ConnectionLost"], 2))

    def test_urgent(self) -> None:
        """
        An urgent byte is a write.
        """
        two = self.ended()
        for _ in range(2):
            self.assertEqual(two.heard.calls[1:], [])
            two.sendUrgent(b"!")
            self.settle()
        self.assertEqual(two.heard.calls[1:], ["ConnectionLost"])

    def test_close(self) -> None:
        """
        A close ends in order.
        """
        two = self.ended()
        two.loseConnection()
        self.settle()
        self.assertEqual(two.heard.calls[1:], ["ConnectionDone"])

    def test_noPlace(self) -> None:
        """
        Where the peer's process could say nothing it may have had something unread: a reset.
        """
        self.assertEqual(self.ended(False).heard.calls, ["readLost", "ConnectionLost"])


class PolledBehindTests(BehindTests):
    """
    The same where the reactor polls devices, and does not say whether threads drive it.
    """

    polled = True


class ResetTests(ClosingTestCase):
    """
    The end that is not in order.
    """

    def test_abort(self) -> None:
        """
        C{abortConnection} drops what is queued: ConnectionAborted here,
        ConnectionLost there, though data was unread.
        """
        one, two = self.pair.connected()
        count = limits.RING_BULK // 65536 + 14
        for i in range(count):
            one.write(bytes([i]) * 65536)
        one.abortConnection()
        one.abortConnection()
        one.write(b"never")
        self.settle()
        self.assertEqual(one.heard.calls, ["ConnectionAborted"])
        self.assertEqual(two.heard.calls, ["ConnectionLost"])
        self.assertLess(len(two.heard.data), count * 65536)
        self.assertGone()

    def test_abortMessages(self) -> None:
        """
        Before the own DisConn an abort is a DREQ; after it an AbortConn comes
        first.
        """
        self.disconnects()
        raw, stream = self.pair.raw()
        stream.abortConnection()
        self.settle()
        self.assertEqual((raw.kinds(), raw.log), ([], ["DREQ"]))
        for first in (False, True):
            raw, stream = self.pair.raw(protocol=HalfRecorder())
            if first:
                raw.send(MID.DISCONN)
                self.settle()
            stream.loseWriteConnection()
            self.settle()
            stream.abortConnection()
            self.settle()
            self.assertEqual((raw.kinds(), raw.log), (["DISCONN", "ABORT_CONN"], ["DREQ"]))
            self.assertEqual(stream.heard.calls[-1], "ConnectionAborted")

    def test_closeWithUnreadData(self) -> None:
        """
        Closing with unread data resets, as TCP does; so does data that arrives
        after the close.
        """
        raw, stream = self.pair.raw()
        stream.pauseProducing()
        raw.data(b"unread")
        self.settle()
        stream.loseConnection()
        self.settle()
        self.assertEqual(stream.heard.calls, ["ConnectionDone"])
        self.assertEqual(raw.log, ["DREQ"])
        raw, stream = self.pair.raw()
        stream.loseConnection()
        self.settle()
        self.assertEqual(raw.log, [])
        raw.data()
        self.settle()
        self.assertEqual(raw.log, [])
        raw.data(b"late")
        self.settle()
        self.assertEqual((raw.kinds(), raw.log), (["DISCONN", "ABORT_CONN"], ["DREQ"]))
        self.assertEqual(stream.heard.log, ["ConnectionDone"])

    def inState(self, state: State) -> tuple[Any, Any]:
        """
        @return: A raw peer, and a transport in a state.
        """
        self.disconnects()
        raw, stream = self.pair.raw(protocol=HalfRecorder())
        if state in (State.CLOSE_WAIT, State.LAST_ACK):
            raw.send(MID.DISCONN)
            self.settle()
        if state in (State.FIN_WAIT1, State.LAST_ACK):
            stream.loseWriteConnection()
            self.settle()
        self.assertEqual(stream.machine.state, state)
        return raw, stream

    def test_disconnectInEachState(self) -> None:
        """
        A DREQ is a reset, but for the one that ends LAST_ACK.  An application that does not read any more is
        notified when it writes, as over TCP.
        """
        for state in list(State)[:4]:
            raw, stream = self.inState(state)
            raw.disconnect()
            self.settle()
            if state == State.LAST_ACK:
                self.assertEqual(stream.heard.calls, ["readLost", "writeLost"])
                self.assertEqual(stream.machine.state, State.TIME_WAIT)
                stream.loseConnection()
                self.settle()
                self.assertEqual(stream.heard.calls[2:], ["ConnectionDone"])
            else:
                self.assertReset(stream, state)
                self.assertEqual(stream.machine.state, State.CLOSED)
            raw.queuePair.close()
            self.assertGone()

    def assertReset(self, stream: Any, state: State) -> None:
        """
        The peer's reset is told.
        """
        if state == State.CLOSE_WAIT:
            self.assertEqual(stream.heard.calls, ["readLost"])
            stream.write(b"x")
            self.settle()
        self.assertEqual(stream.heard.calls[-1], "ConnectionLost", state)

    def test_abortConnInEachState(self) -> None:
        """
        An AbortConn is a reset in every state.
        """
        for state in list(State)[:4]:
            raw, stream = self.inState(state)
            raw.send(MID.ABORT_CONN)
            self.settle()
            if state == State.LAST_ACK:  # Neither reads nor writes any more.
                stream.loseConnection()
                self.assertEqual(stream.heard.calls, ["readLost", "writeLost", "ConnectionDone"])
            else:
                self.assertReset(stream, state)
            self.assertIsNone(stream.queuePair.path)
            raw.queuePair.close()
            self.assertGone()

    def test_disconnTwice(self) -> None:
        """
        A second DisConn, and data behind one, are protocol errors.
        """
        for state in (State.CLOSE_WAIT, State.LAST_ACK):
            for mid, body in ((MID.DISCONN, b""), (MID.DATA, b"x")):
                raw, stream = self.inState(state)
                raw.send(mid, body)
                self.settle()
                self.assertEqual(stream.heard.calls[-1], "ConnectionLost")
                self.assertEqual(raw.log, ["DREQ"])
        self.assertEqual(self.pair.b.device.counters["sdp_protocol_errors"], 4)

    def test_afterTheEnd(self) -> None:
        """
        DREQ, rejection and silence of the CM after the end are nothing.
        """
        one, _ = self.pair.connected()
        one.loseConnection()
        self.settle()
        for _ in range(2):
            one.peerDisconnected(None)
            one.rejected(None, None)
            one.unreachable(None)
        self.assertEqual(one.heard.calls, ["ConnectionDone"])
        self.assertEqual(one.machine.state, State.TIME_WAIT)

    def test_notEstablished(self) -> None:
        """
        A REP that the peer rejects or does not answer is a reset.
        """
        for call in (lambda s: s.rejected(None, None), lambda s: s.unreachable(None)):
            _, stream = self.pair.raw()
            call(stream)
            self.assertEqual(stream.heard.calls, ["ConnectionLost"])

    def test_resetWhilePaused(self) -> None:
        """
        A reset is told to a paused reader when it resumes, behind the data.
        """
        one, two = self.pair.connected()
        two.pauseProducing()
        one.write(b"data")
        self.settle()
        one.abortConnection()
        self.settle()
        self.assertEqual(two.heard.log, [])
        two.resumeProducing()
        self.settle()
        self.assertEqual(two.heard.log, [b"data", "ConnectionLost"])
        self.assertGone()

    def test_resetWhilePausedAndWriting(self) -> None:
        """
        Or when it writes; not within C{write}.
        """
        one, two = self.pair.connected()
        two.pauseProducing()
        self.settle()
        one.abortConnection()
        self.settle()
        two.write(b"to nobody")
        two.write(b"more")
        self.assertEqual(two.heard.log, [])
        self.settle()
        self.assertEqual(two.heard.log, ["ConnectionLost"])
        self.assertIsNone(two.buffer)
        self.assertGone()

    def test_pathLost(self) -> None:
        """
        The peer's process is gone: told at once, also to a paused reader.
        """
        for paused in (False, True):
            one, two = self.pair.connected()
            if paused:
                one.pauseProducing()
                two.write(b"unread")
                self.settle()
            path = one.queuePair.path
            path.lost(PathLostError("the peer died"))
            self.assertEqual(one.heard.log, ["ConnectionLost"])
            self.assertIn("the peer died", str(one.heard.reason.value))
            self.assertEqual((one.heldBytes, one.machine.state), (0, State.CLOSED))
            self.pair.close()
            self.setUp()

    def test_abandon(self) -> None:
        """
        A transport whose handshake failed goes without telling anybody.
        """
        stream = self.pair.transport(self.pair.a)
        stream.abandon()
        self.assertEqual(stream.heard.log, [])
        self.assertGone()


class BoundTests(ClosingTestCase):
    """
    Bounds.
    """

    def test_heldBytes(self) -> None:
        """
        Beyond L{limits.HELD_BYTES} the connection that holds most is reset.
        """
        self.patch(limits, "HELD_BYTES", 300000)
        pairs = [self.pair.connected() for _ in range(3)]
        for i, (one, two) in enumerate(pairs):
            two.pauseProducing()
            one.write(bytes(80000 + 10000 * (i == 1)))
        self.settle()
        self.assertEqual(self.pair.b.device.receiveBudget.heldBytes, 250000)
        pairs[0][0].write(bytes(60000))
        self.settle()
        self.assertEqual([two.heard.calls for _, two in pairs], [["ConnectionLost"], [], []])
        self.assertIn("too many bytes wait", str(pairs[0][1].heard.reason.value))
        self.assertEqual(pairs[0][0].heard.calls, ["ConnectionLost"])
        device = self.pair.b.device
        self.assertEqual(
            (device.counters["held_bytes_exceeded"], device.receiveBudget.heldBytes), (1, 170000)
        )
        pairs[2][0].write(bytes(140000))
        self.settle()
        self.assertEqual([two.heard.calls for _, two in pairs], [["ConnectionLost"], [], ["ConnectionLost"]])
        pairs[1][1].resumeProducing()
        self.settle()
        self.assertEqual((len(pairs[1][1].heard.data), device.receiveBudget.heldBytes), (90000, 0))

    def test_fewReceivesFromHalf(self) -> None:
        """
        From half of it on connections get as few receives as data needs.
        """
        self.patch(limits, "HELD_BYTES", 200000)
        raw, stream = self.pair.raw()
        one, two = self.pair.connected()
        two.pauseProducing()
        one.write(bytes(100000))
        self.settle()
        stream.queuePair.posted = 4
        raw.data(b"x", buffers=1000)
        self.settle()
        self.assertEqual(stream.queuePair.posted, limits.SDP_RECEIVES)
        one.write(bytes(10))
        self.settle()
        stream.queuePair.posted = 4
        raw.data(b"x")
        self.settle()
        self.assertEqual(stream.queuePair.posted, SDP_RECEIVES_LEAST)
        self.assertEqual(stream.heard.data, b"xx")

    def test_finWait(self) -> None:
        """
        A peer that does not answer a DisConn is reset C{FIN_WAIT_SECONDS} later,
        when another connection closes.
        """
        raw, stream = self.pair.raw()
        stream.loseConnection()
        self.settle()
        self.pair.advance(channel.FIN_WAIT_SECONDS - 1)
        self.closeAnother()
        self.assertEqual(raw.log, [])
        self.assertEqual(list(self.pair.b.channel._closing), [stream])
        self.pair.advance(1)
        self.closeAnother()
        self.assertEqual((raw.kinds(), raw.log), (["DISCONN", "ABORT_CONN"], ["DREQ"]))
        self.assertEqual(self.pair.b.device.counters["closing_timed_out"], 1)
        raw.queuePair.close()
        self.assertGone()

    def closeAnother(self) -> None:
        """
        Open and close a connection in order.
        """
        one, two = self.pair.connected()
        two.loseConnection()
        self.settle()
        self.assertEqual(one.heard.calls, ["ConnectionDone"])

    def test_closingConnections(self) -> None:
        """
        Of more than C{CLOSING_CONNECTIONS} the oldest is reset.
        """
        self.patch(channel, "CLOSING_CONNECTIONS", 3)
        raws = []
        for i in range(5):
            raw, stream = self.pair.raw()
            stream.loseConnection()
            self.settle()
            raws.append(raw)
            self.assertEqual(len(self.pair.b.channel._closing), min(i + 1, 3))
        self.assertEqual([raw.log for raw in raws], [["DREQ"], ["DREQ"], [], [], []])
