"""
Tests of what L{twisted_ib.interfaces.ISDPTransport} promises: registered memory, places, urgent
data, signs of life; with peers of our own, as OFED's, and hostile ones.
"""

from __future__ import annotations

from typing import Any

from attrs import evolve
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.python.failure import Failure
from zope.interface.verify import verifyObject

from tests.sdp.pair import PairTestCase, Recorder
from tests.sdp.stream.test_stream import ERRORS
from tests.sdp.zerocopy.test_extensions import LEAST, Hearing, Places
from twisted_ib import limits
from twisted_ib.errors import MemoryAccessError, MemoryRegionError, WrongThreadError
from twisted_ib.hca.base.operation import REFUSAL
from twisted_ib.hca.services.operations import operation
from twisted_ib.hca.wire.headers import NAK_INVALID_REQUEST
from twisted_ib.hca.wire.opcodes import ACKNOWLEDGE
from twisted_ib.interfaces import ISDPTransport
from twisted_ib.sdp import zerocopysend
from twisted_ib.sdp.protocol.modes import Mode
from twisted_ib.sdp.protocol.wire import MID, Flags, SinkAvail, SrcAvail, Transition
from twisted_ib.sdp.protocol.zerocopy import ZeroCopyMachine

SIZE = 300_000
BYTES = bytes(i * 13 & 255 for i in range(SIZE))


class RegisteredTestCase(PairTestCase):
    """
    Base of tests with registered memory.
    """

    polled = True

    def offering(self, size: int = SIZE, protocol: Any = None) -> tuple[Any, Any, Any, list[Any]]:
        """
        @return: Two ends, the first's registered memory, and a list of what C{writeRegistered}
            ended with, after one of it.
        """
        one, two = self.pair.connected(None, protocol)
        one.setZeroCopyThresholds(LEAST)
        region = one.registerMemory(BYTES[:size])
        ends: list[Any] = []
        one.writeRegistered(region).addBoth(ends.append)
        return one, two, region, ends

    def sent(self, end: Any) -> list[str]:
        """
        @return: The ids of what an end sends from now on.
        """
        kinds: list[str] = []
        path, word = end.queuePair.path, end.queuePair.sends | end.queuePair.remote
        original = path.__class__.post

        def post(posting: Any, operation: int, header: bytes, payload: Any, length: int) -> bool:
            accepted: bool = original(posting, operation, header, payload, length)
            if accepted and posting is path and operation == word:
                kinds.append(MID(header[0]).name)
            return accepted

        self.patch(path.__class__, "post", post)
        return kinds


class WriteTests(RegisteredTestCase):
    """
    C{writeRegistered}.
    """

    def test_interface(self) -> None:
        """
        The transport provides what it says.
        """
        one, _ = self.pair.connected()
        verifyObject(ISDPTransport, one)

    def test_inOrder(self) -> None:
        """
        Registered memory goes in its place between what is written, and is free when its
        Deferred fires: not before it is read.
        """
        one, two = self.pair.connected()
        one.setZeroCopyThresholds(LEAST)
        region = one.registerMemory(BYTES)
        ends: list[Any] = []
        one.write(b"before")
        for k in range(3):
            one.writeRegistered(region, k, 200_000).addBoth(ends.append)
            one.write(b"between")
        self.assertEqual((ends, one.unsent() > 600_000), ([], True))
        self.settle()
        self.assertEqual(one.unsent(), 0)
        expected = b"before" + b"".join(BYTES[k : k + 200_000] + b"between" for k in range(3))
        self.assertEqual(two.heard.data == expected, True)
        self.assertEqual(ends, [None] * 3)
        self.assertEqual(self.pair.a.device.inUse()["mr"], 1)
        self.assertEqual(self.pair.b.device.inUse()["mr"], 0)

    def test_notCopiedHere(self) -> None:
        """
        Of what goes out in registered memory only the bytes that a SrcAvail carries are copied
        at this end; what is read is the application's memory as it is then.
        """
        one, two = self.pair.connected()
        region = one.registerMemory(bytearray(2 << 20))
        two.pauseProducing()
        one.writeRegistered(region)
        self.settle()
        region.view[zerocopysend.SDP_CARRIED :] = b"x" * ((2 << 20) - zerocopysend.SDP_CARRIED)
        two.resumeProducing()
        self.settle()
        data = bytes(zerocopysend.SDP_CARRIED) + b"x" * ((2 << 20) - zerocopysend.SDP_CARRIED)
        self.assertEqual(two.heard.data == data, True)

    def test_small(self) -> None:
        """
        Memory shorter than the threshold is copied, and free at once; a plain stream is not made slower by
        it.
        """
        one, two = self.pair.connected()
        region = one.registerMemory(BYTES)
        ends: list[Any] = []
        one.writeRegistered(region, 5, limits.SDP_ZERO_COPY_LEAST - SIZE).addBoth(ends.append)
        one.writeRegistered(region, 9, 0).addBoth(ends.append)
        self.assertEqual(ends, [None, None])
        self.settle()
        self.assertEqual(two.heard.data, BYTES[5 : 5 + limits.SDP_ZERO_COPY_LEAST - SIZE])
        self.assertIsNone(one.queuePair.work)

    def test_thresholds(self) -> None:
        """
        A threshold of 0 is one of 1: no bytes at all go by zero copy, and the end is said.
        """
        one, two = self.pair.connected()
        one.setZeroCopyThresholds(0, 0)
        one.write(b"all")
        one.writeRegistered(one.registerMemory(BYTES), 0, 0)
        self.settle()
        one.loseConnection()
        self.settle()
        self.assertEqual((one.heard.log, two.heard.data), (["ConnectionDone"], b"all"))
        self.assertEqual(two.heard.calls, ["ConnectionDone"])

    def test_wrongThresholds(self) -> None:
        """
        A threshold that is no number is refused, before anything has changed.
        """
        one, _ = self.pair.connected()
        for wrong in ("1", 0.5):
            for arguments in ((wrong,), (None, wrong), (7, wrong)):
                with self.assertRaises(TypeError):
                    one.setZeroCopyThresholds(*arguments)
        self.assertEqual(one.openExtensions().zeroCopySend.least, limits.SDP_ZERO_COPY_LEAST)

    def test_lazy(self) -> None:
        """
        A stream that uses none of this has none of it, nor work queues, at either end.
        """
        one, two = self.pair.connected()
        one.write(b"x" * 200_000)
        two.write(b"y")
        self.settle()
        for end in (one, two):
            self.assertIsNone(end.extensions)
            self.assertIsNone(end.queuePair.work)
            self.assertNotIsInstance(end.machine, ZeroCopyMachine)

    def test_backpressure(self) -> None:
        """
        A reader that pauses is not read for: the memory stays in use until it reads.
        """
        _, two, _, ends = self.offering()
        two.pauseProducing()
        self.settle()
        self.assertLess(two.heldBytes, 2 * zerocopysend.SDP_CARRIED)
        self.assertEqual(ends, [])
        two.resumeProducing()
        self.settle()
        self.assertEqual((two.heard.data == BYTES, ends), (True, [None]))

    def test_close(self) -> None:
        """
        C{loseConnection} waits for it, and so does the half-close.
        """
        one, two, _, ends = self.offering()
        one.loseConnection()
        self.settle()
        self.assertEqual((two.heard.data == BYTES, ends), (True, [None]))
        self.assertEqual([one.heard.calls, two.heard.calls], [["ConnectionDone"]] * 2)
        for end in self.pair.ends:
            self.assertFalse(any(end.device.inUse().values()))

    def test_fails(self) -> None:
        """
        If the connection ends before, it fails with the reason; after that it fails at once.
        """
        for how in ("abort", "peer", "lost"):
            one, two, region, ends = self.offering()
            two.pauseProducing()
            one.writeRegistered(region).addBoth(ends.append)
            if how == "abort":
                one.abortConnection()
            elif how == "peer":
                self.settle()
                two.abortConnection()
            else:
                one.connectionLost(Failure(ConnectionAborted()))
            self.pair.advance(0)
            self.settle()
            kind = ConnectionLost if how == "peer" else ConnectionAborted
            self.assertEqual([end.type for end in ends], [kind] * 2, how)
            ends.clear()
            one.writeRegistered(region).addBoth(ends.append)
            self.assertEqual([end.type for end in ends], [ConnectionDone])
            self.assertRaises(MemoryRegionError, one.registerMemory, 100)
        two.resumeProducing()
        self.settle()

    def test_failureWritesAgain(self) -> None:
        """
        A callback that hears of the end and writes again is refused, and does not keep it going.
        """
        one, two, region, ends = self.offering()
        two.pauseProducing()

        def again(failure: Any) -> None:
            one.writeRegistered(region).addErrback(ends.append)

        one.writeRegistered(region).addErrback(again)
        self.settle()
        one.connectionLost(Failure(ConnectionAborted()))
        self.assertEqual(len(ends), 2)

    def test_cancelled(self) -> None:
        """
        A Deferred that is cancelled is forgotten; the bytes go.
        """
        one, two, region, _ = self.offering()
        deferred = one.writeRegistered(region)
        deferred.addErrback(lambda failure: None)
        deferred.cancel()
        self.settle()
        self.assertEqual(two.heard.data == BYTES * 2, True)

    def test_regionClosed(self) -> None:
        """
        A region that is closed while it is sent goes when it is sent; it cannot be used anew.
        """
        one, two, region, ends = self.offering()
        region.close()
        self.assertRaises(MemoryAccessError, one.writeRegistered, region)
        self.assertEqual(self.pair.a.device.inUse()["mr"], 1)
        self.settle()
        self.assertEqual((two.heard.data == BYTES, ends), (True, [None]))
        self.assertEqual(self.pair.a.device.inUse()["mr"], 0)

    def test_otherRegion(self) -> None:
        """
        A region of another connection, or bytes that a region has not, are refused.
        """
        one, two, region, _ = self.offering()
        self.assertRaises(MemoryAccessError, two.writeRegistered, region)
        for offset, length in ((0, SIZE + 1), (-1, 5), (SIZE, 1), (0, -1)):
            self.assertRaises(MemoryAccessError, one.writeRegistered, region, offset, length)

    def test_thread(self) -> None:
        """
        All of it belongs to the reactor's thread.
        """
        one, _, region, _ = self.offering()
        one.thread = 1
        for call in (
            lambda: one.writeRegistered(region),
            lambda: one.registerMemory(5),
            lambda: one.sendUrgent(b"x"),
            lambda: one.setZeroCopyThresholds(1),
        ):
            self.assertRaises(WrongThreadError, call)
        one.thread = self.pair.a.device.thread

    def test_producer(self) -> None:
        """
        A streaming producer is paused by it, and resumed when it has left.
        """
        one, _ = self.pair.connected()
        one.setZeroCopyThresholds(LEAST)
        region = one.registerMemory(BYTES)
        log: list[str] = []

        class Producer:
            def pauseProducing(self) -> None:
                log.append("pause")

            def resumeProducing(self) -> None:
                log.append("resume")

            def stopProducing(self) -> None:
                log.append("stop")

        one.registerProducer(Producer(), True)
        one.writeRegistered(region)
        self.assertEqual(log, ["pause"])
        self.settle()
        self.assertEqual(log, ["pause", "resume"])
        one.unregisterProducer()

    def test_plain(self) -> None:
        """
        Large plain writes go like it, if they shall.
        """
        one, two = self.pair.connected()
        one.setZeroCopyThresholds(plain=50_000)
        kinds = self.sent(one)
        one.write(BYTES)
        one.write(b"x")
        self.settle()
        self.assertEqual(two.heard.data == BYTES + b"x", True)
        self.assertEqual(kinds, ["SRC_AVAIL", "DATA"])
        for length in (49_999, 50_000):
            one.write(bytes(length))
            self.settle()
        self.assertEqual(kinds[2:], ["DATA", "MODE_CHANGE", "SRC_AVAIL"])
        self.assertEqual(self.pair.a.device.inUse()["mr"], 0)


class ModeTests(RegisteredTestCase):
    """
    Which messages it takes.
    """

    def test_pipelined(self) -> None:
        """
        One buffer goes in Combined mode; several, or when the sink asks, in Pipelined mode.
        """
        one, _two, region, _ = self.offering()
        kinds = self.sent(one)
        self.settle()
        self.assertEqual((kinds, one.machine.zero.source.mode), (["SRC_AVAIL"], Mode.COMBINED))
        self.assertTrue(one.machine.zero.source.pipelining)
        one.writeRegistered(region)
        self.settle()
        self.assertEqual(kinds[1:], ["MODE_CHANGE", "SRC_AVAIL"])

    def test_peerLikeOFED(self) -> None:
        """
        Against a peer that takes one advertisement, Combined mode is not left, whatever waits.
        """
        one, two = self.pair.connected()
        for end in (one, two):
            end.adverts = 1
        one.setZeroCopyThresholds(LEAST)
        kinds = self.sent(one)
        region = one.registerMemory(BYTES)
        for _ in range(4):
            one.writeRegistered(region)
        self.settle()
        self.assertEqual(two.heard.data == BYTES * 4, True)
        self.assertEqual(kinds, ["SRC_AVAIL"] * 4)

    def test_buffered(self) -> None:
        """
        In Buffered mode all goes as Data, until the sink ends it.
        """
        one, two = self.pair.connected()
        one.setZeroCopyThresholds(LEAST)
        kinds = self.sent(one)
        self.assertTrue(one.openExtensions().changeMode(Transition.COMBINED_TO_BUFFERED))
        region = one.registerMemory(BYTES)
        ends: list[Any] = []
        one.writeRegistered(region).addBoth(ends.append)
        self.settle()
        self.assertEqual((set(kinds), ends), ({"MODE_CHANGE", "DATA"}, [None]))
        self.assertTrue(two.openExtensions().changeMode(Transition.BUFFERED_TO_COMBINED))
        self.settle()
        kinds.clear()
        one.writeRegistered(region)
        self.settle()
        self.assertEqual((kinds, two.heard.data == BYTES * 2), (["SRC_AVAIL"], True))

    def test_refusedReads(self) -> None:
        """
        A sink that may not read has it sent as Data.
        """
        one, two, _, ends = self.offering()
        two.reads = 0
        kinds = self.sent(one)
        self.settle()
        self.assertEqual((two.heard.data == BYTES, ends), (True, [None]))
        self.assertEqual(set(kinds), {"SRC_AVAIL", "DATA"})

    def test_refusedMessage(self) -> None:
        """
        A NAK for a message of the stream ends the connection: messages have no retry.  One for a request that
        is done says nothing.
        """
        _, two, _, _ = self.offering()
        self.settle()
        queuePair = two.queuePair
        two.write(b"x")
        for position, calls in ((1, []), (queuePair.path.position(), ["ConnectionLost"])):
            body = REFUSAL.pack(NAK_INVALID_REQUEST, queuePair.number, position)
            queuePair.work.delivered(ACKNOWLEDGE, body, 0, len(body))
            self.assertEqual(two.heard.calls, calls)

    def test_bothClose(self) -> None:
        """
        Two ends that offer and close, and so read no more, do not wait for each other.
        """
        one, two, _, _ = self.offering()
        two.setZeroCopyThresholds(LEAST)
        two.writeRegistered(two.registerMemory(BYTES))
        for end in (one, two):
            end.loseConnection()
        self.settle()
        for end in (one, two):
            self.assertEqual(len(end.heard.calls), 1)


class PlaceTests(RegisteredTestCase):
    """
    Receiving into registered memory.
    """

    def test_all(self) -> None:
        """
        Data is copied there, offers are read into it, and in Pipelined mode the peer writes it.
        """
        one, two, region, _ = self.offering(protocol=Places())
        mine, its = self.sent(one), self.sent(two)
        one.write(b"x" * 1000)
        self.settle()
        for _ in range(2):
            one.writeRegistered(region)
            self.settle()
        self.assertEqual(two.heard.data == BYTES + b"x" * 1000 + BYTES * 2, True)
        self.assertIn("SINK_AVAIL", its)
        self.assertIn("RDMA_WR_COMPL", mine)

    def test_protocolChanges(self) -> None:
        """
        Places of a protocol that is replaced are taken back and given back; what came to them
        is the new one's.
        """
        one, two, region, _ = self.offering(protocol=Places())
        its = self.sent(two)
        one.writeRegistered(region)
        self.settle()
        self.assertGreater(len(two.heard.given), 0)
        places, plain = two.heard, Recorder()
        two.protocol = plain
        plain.makeConnection(two)
        one.write(b"start")
        self.settle()
        one.writeRegistered(region)
        one.write(b"end")
        self.settle()
        self.assertEqual(places.given, [])
        self.assertEqual(places.data == BYTES * 2, True)
        self.assertEqual(plain.data == b"start" + BYTES + b"end", True)
        self.assertIn("SINK_AVAIL_CANCEL", its)

    def test_badPlace(self) -> None:
        """
        A place that cannot be ends the connection, and is logged.
        """
        for bad in ("length", "readonly", "other"):
            one, two = self.pair.connected(None, Places())
            region = two.registerMemory(BYTES)
            if bad == "length":
                answer: Any = (two.registerMemory(100), 0, 0)
            elif bad == "readonly":
                answer = (region, 0, 100)
            else:
                answer = (one.registerMemory(100), 0, 100)
            two.heard.getBuffer = lambda answer=answer: answer
            one.write(b"x")
            self.settle()
            self.assertEqual(len(self.flushLoggedErrors(ValueError, MemoryAccessError)), 1, bad)
            self.assertEqual(len(two.heard.calls), 1)

    def test_pausedInPlace(self) -> None:
        """
        A protocol that pauses when a place is filled gets the rest when it resumes.
        """
        protocol = Places()
        protocol.size = 100
        one, two = self.pair.connected(None, protocol)
        protocol.hook = lambda data: two.pauseProducing()
        one.write(b"a" * 100 + b"b" * 50)
        self.settle()
        self.assertEqual(protocol.log, [b"a" * 100])
        two.resumeProducing()
        self.settle()
        self.assertEqual(protocol.data, b"a" * 100 + b"b" * 50)
        self.assertEqual(self.pair.b.device.receiveBudget.heldBytes, 0)


class UrgentTests(RegisteredTestCase):
    """
    Urgent data.
    """

    def test_outOfBand(self) -> None:
        """
        A protocol that wants it gets it at once, also while it is paused, and not in the stream.
        """
        one, two = self.pair.connected(None, Hearing())
        two.pauseProducing()
        one.write(b"before")
        one.sendUrgent(b"!")
        one.write(b"after")
        self.settle()
        self.assertEqual((two.heard.urgent, two.heard.data), (b"!", b""))
        two.resumeProducing()
        self.settle()
        self.assertEqual(two.heard.data, b"beforeafter")

    def test_inline(self) -> None:
        """
        For others it is a part of the stream.
        """
        one, two = self.pair.connected()
        one.write(b"before")
        one.sendUrgent(b"!")
        one.write(b"after")
        self.settle()
        self.assertEqual(two.heard.data, b"before!after")

    def test_flags(self) -> None:
        """
        The byte is the last of its message, which says that it is there and comes; before it
        an empty message says that it comes.
        """
        raw, stream = self.pair.raw()
        stream.write(b"x" * 70000)
        stream.write(b"y")
        stream.sendUrgent(b"!")
        self.settle()
        flags = [(message[1], message[16:]) for message in raw.messages]
        self.assertEqual(flags[-1], (Flags.OOB_PEND | Flags.OOB_PRES, b"!"))
        self.assertEqual([f for f, _ in flags].count(Flags.OOB_PEND), 1)
        self.assertEqual(raw.stream, b"x" * 70000 + b"y!")

    def test_notBehindOffers(self) -> None:
        """
        SrcAvails that were not read are cancelled, and go as Data before the byte.
        """
        one, two, _, ends = self.offering(protocol=Hearing())
        two.pauseProducing()
        self.settle()
        one.sendUrgent(b"!")
        self.settle()
        self.assertEqual((two.heard.urgent, ends), (b"!", [None]))
        two.resumeProducing()
        self.settle()
        self.assertEqual(two.heard.data == BYTES, True)

    def test_received(self) -> None:
        """
        Urgent data of a peer that has more in the message, as OFED's.
        """
        raw, stream = self.pair.raw(protocol=Hearing())
        raw.data(b"stream!", flags=Flags.OOB_PEND | Flags.OOB_PRES)
        raw.data(flags=Flags.OOB_PEND)
        self.settle()
        self.assertEqual((stream.heard.data, stream.heard.urgent), (b"stream", b"!"))

    def test_wrong(self) -> None:
        """
        It is one byte.
        """
        one, _ = self.pair.connected()
        for bad in (b"", b"xy"):
            self.assertRaises(ValueError, one.sendUrgent, bad)
        self.assertRaises(TypeError, one.sendUrgent, "x")


class PeerTests(RegisteredTestCase):
    """
    Peers that are not our own.
    """

    def lost(self, stream: Any, text: str) -> None:
        """
        Check that the connection ended for a reason.
        """
        self.settle()
        self.assertEqual(stream.heard.calls, ["ConnectionLost"])
        self.assertIn(text, str(stream.heard.reason.value))

    def test_sizes(self) -> None:
        """
        A peer with small receives is asked once for larger ones, when bytes wait for credits;
        its answer is taken as the less of what it may mean.
        """
        raw, stream = self.pair.raw(5)
        raw.queuePair.posted = 1000
        stream.limitPayload(1024)
        stream.write(b"x" * 10_000)
        self.settle()
        self.assertEqual(raw.kinds(), ["DATA"] * 3 + ["CH_RCV_BUF"])
        self.assertEqual(raw.messages[-1][16:], (65552).to_bytes(4, "big"))
        raw.send(MID.CH_RCV_BUF_ACK, (4096).to_bytes(4, "big"), buffers=100)
        self.settle()
        self.assertEqual((stream.maxPayload, raw.stream), (4080, b"x" * 10_000))
        raw.send(MID.CH_RCV_BUF_ACK, (4096).to_bytes(4, "big"), buffers=100)
        self.lost(stream, "nothing was asked")

    def test_smallerSize(self) -> None:
        """
        An answer that would make messages shorter changes nothing.
        """
        raw, stream = self.pair.raw(5)
        raw.queuePair.posted = 1000
        stream.limitPayload(1024)
        stream.write(b"x" * 10_000)
        self.settle()
        raw.send(MID.CH_RCV_BUF_ACK, (100).to_bytes(4, "big"), buffers=100)
        self.settle()
        self.assertEqual(stream.maxPayload, 1024)

    def test_badKey(self) -> None:
        """
        An offer that cannot be read, and a place that cannot be written, end the connection.
        """
        raw, stream = self.pair.raw()
        raw.send(MID.SRC_AVAIL, SrcAvail(length=100, rkey=7, address=4096, payload=b"x").pack()[16:])
        self.settle()
        self.assertEqual(stream.heard.calls, ["ConnectionLost"])
        raw, stream = self.pair.raw()
        stream.setZeroCopyThresholds(LEAST)
        stream.openExtensions().changeMode(Transition.COMBINED_TO_PIPELINED)
        self.settle()
        raw.send(MID.SINK_AVAIL, SinkAvail(length=70000, rkey=7, address=4, nonDiscards=0).pack()[16:])
        self.settle()
        ends: list[Any] = []
        stream.writeRegistered(stream.registerMemory(BYTES)).addBoth(ends.append)
        self.settle()
        self.assertEqual(stream.heard.calls, ["ConnectionLost"])
        self.assertEqual([end.type for end in ends], [ConnectionLost])
        self.assertFalse(any(self.pair.b.device.inUse().values()))

    def test_hostile(self) -> None:
        """
        An illegal answer of the sink to a SrcAvail ends the connection, with a reason.
        """
        for text, mid, body in (
            ("where 299936 are left", MID.RDMA_RD_COMPL, (299_937).to_bytes(4, "big")),
            ("RdmaRdCompl of 0 bytes", MID.RDMA_RD_COMPL, bytes(4)),
            ("no SinkAvail", MID.RDMA_WR_COMPL, bytes(4)),
            ("SinkAvail in COMBINED", MID.SINK_AVAIL, SinkAvail.layout.struct.pack(70000, 1, 2, 0)),
        ):
            raw, stream = self.pair.raw()
            stream.setZeroCopyThresholds(LEAST)
            ends: list[Any] = []
            stream.writeRegistered(stream.registerMemory(BYTES)).addBoth(ends.append)
            self.settle()
            self.assertEqual(raw.kinds(), ["SRC_AVAIL"])
            errors = self.pair.b.device.counters[ERRORS]
            raw.send(mid, body)
            self.lost(stream, text)
            self.assertEqual(self.pair.b.device.counters[ERRORS], errors + 1)
            self.assertEqual([end.type for end in ends], [ConnectionLost])
            raw.queuePair.close()
        self.assertFalse(any(self.pair.b.device.inUse().values()))

    def test_sendSmOfOFED(self) -> None:
        """
        A sink that takes a part and then says SendSm gets the rest as Data.
        """
        raw, stream = self.pair.raw()
        stream.setZeroCopyThresholds(LEAST)
        ends: list[Any] = []
        stream.writeRegistered(stream.registerMemory(BYTES)).addBoth(ends.append)
        self.settle()
        raw.send(MID.RDMA_RD_COMPL, (100_000).to_bytes(4, "big"))
        raw.send(MID.SEND_SM)
        self.settle()
        self.assertEqual((raw.stream == BYTES[100_064:], ends), (True, [None]))

    def test_closedWithOffer(self) -> None:
        """
        An application that closes with an offer unread resets, as with data unread.
        """
        raw, stream = self.pair.raw()
        stream.pauseProducing()
        raw.send(MID.SRC_AVAIL, SrcAvail(length=100, rkey=7, address=4096, payload=b"x").pack()[16:])
        self.settle()
        stream.connectionLost(Failure(ConnectionDone()))
        self.settle()
        self.assertEqual(raw.log, ["DREQ"])

    def test_sendSmForOneOfTwo(self) -> None:
        """
        A sink that wants the oldest of two offers as Data is asked to drop the other too: data
        may not come while one stands.
        """
        raw, stream = self.pair.raw()
        stream.adverts = 4
        stream.setZeroCopyThresholds(LEAST)
        region = stream.registerMemory(BYTES)
        ends: list[Any] = []
        for _ in range(2):
            stream.writeRegistered(region).addBoth(ends.append)
        self.settle()
        self.assertEqual(raw.kinds(), ["MODE_CHANGE", "SRC_AVAIL", "SRC_AVAIL"])
        raw.send(MID.SEND_SM)
        self.settle()
        self.assertEqual(raw.kinds()[3:], ["SRC_AVAIL_CANCEL"])
        raw.send(MID.SEND_SM)
        self.settle()
        self.assertEqual((raw.stream == BYTES * 2, ends), (True, [None] * 2))

    def test_offerAfterClose(self) -> None:
        """
        A SrcAvail to an application that has closed is answered with a reset.
        """
        raw, stream = self.pair.raw()
        raw.machine.limit = 64
        stream.loseConnection()
        self.settle()
        self.assertEqual(stream.heard.calls, ["ConnectionDone"])
        raw.send(MID.MODE_CHANGE, b"\x20\0\0\0")
        raw.send(MID.SRC_AVAIL, SrcAvail.layout.struct.pack(100, 7, 4096))
        self.settle()
        self.assertEqual((raw.kinds(), raw.log), (["DISCONN", "ABORT_CONN"], ["DREQ"]))

    def test_tooManyMessages(self) -> None:
        """
        A peer that ignores its credits loses the connection also where there are work queues.
        """
        one, two, _, _ = self.offering()
        self.settle()
        two.pauseProducing()
        two.queuePair.posted = 0
        one.queuePair.postInline(bytes(16), b"", 0)
        self.lost(two, "credits")


def watching(end: Any) -> int:
    """
    @return: How many connections the reactor of an end looks after.
    """
    return sum("KeepAlive" in str(call) for call in end.reactor.getDelayedCalls())


class KeepAliveTests(RegisteredTestCase):
    """
    Signs of life.
    """

    def test_idle(self) -> None:
        """
        After the time in which nothing happens there is one, which the peer takes without
        noticing; also where it has work queues.
        """
        for busy in (False, True):
            one, two, _, _ = self.offering()
            if not busy:
                one, two = self.pair.connected()
            self.settle()
            signs: list[int] = []
            original = one.queuePair.path.post

            def post(word: int, *rest: Any, original: Any = original, signs: Any = signs) -> Any:
                signs.append(word >> 24)
                return original(word, *rest)

            one.setTcpKeepAlive(True)
            self.assertTrue(one.getTcpKeepAlive())
            self.patch(type(one.queuePair.path), "post", lambda path, *rest: post(*rest))
            self.pair.advance(limits.SDP_KEEP_ALIVE_SECONDS - 1)
            self.settle()
            one.write(b"x")
            self.settle()
            signs.clear()
            self.pair.advance(2)
            self.settle()
            self.assertEqual(signs, [])
            self.pair.advance(limits.SDP_KEEP_ALIVE_SECONDS)
            self.settle()
            self.assertEqual(signs, [0x0A])
            self.assertEqual([one.heard.calls, two.heard.calls], [[], []])
            one.loseConnection()
            self.settle()
            self.assertEqual(watching(one), 0)
            self.doCleanups()
            self.setUp()

    def test_absent(self) -> None:
        """
        A peer that has forgotten the connection is noticed.
        """
        one, two = self.pair.connected()
        one.setTcpKeepAlive(True)
        path = two.queuePair.path
        path.unbind(two.queuePair)
        self.pair.advance(limits.SDP_KEEP_ALIVE_SECONDS)
        self.settle()
        self.assertEqual(one.heard.calls, ["ConnectionLost"])
        self.assertEqual(watching(one), 0)

    def test_off(self) -> None:
        """
        It can be switched off, and twice on.
        """
        one, _ = self.pair.connected()
        for enabled in (True, True, False, False):
            one.setTcpKeepAlive(enabled)
            self.assertEqual(watching(one), int(enabled))


class CopyTests(RegisteredTestCase):
    """
    How often bytes are copied.
    """

    def test_oncePerByte(self) -> None:
        """
        Registered memory is copied once: from there to where it is wanted, by whoever reads it.
        """
        _, two, _region, _ = self.offering()
        copied: list[int] = []
        original = operation.scatter

        def scatter(target: Any, source: Any, end: int) -> None:
            copied.append(len(source))
            original(target, source, end)

        self.patch(operation, "scatter", scatter)
        self.settle()
        self.assertEqual(sum(copied), SIZE - zerocopysend.SDP_CARRIED)
        self.assertEqual(two.heard.data == BYTES, True)

    def test_whatPeersCanNotMap(self) -> None:
        """
        Where memory can be shared and this is not, it goes as Data, from where it is.
        """
        for shares, mids in ((False, ["SRC_AVAIL"]), (True, ["DATA"])):
            one, two = self.pair.connected()
            one.setZeroCopyThresholds(LEAST)
            traits = evolve(one.queuePair.path.fabric.traits, zeroCopy=shares)
            self.patch(one.queuePair.path.fabric, "traits", traits)
            region = one.registerMemory(bytearray(BYTES))
            sent = self.sent(one)
            one.writeRegistered(region)
            self.settle()
            self.assertEqual(two.heard.data == BYTES, True)
            self.assertEqual(sent[0], mids[0])
            self.assertEqual("SRC_AVAIL" in sent, not shares)
