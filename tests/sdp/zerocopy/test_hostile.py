"""
Tests of peers that do what they like with advertisements, of legal ones that cross what is done
here, and of ends in the middle of zero copy.
"""

from __future__ import annotations

import mmap
from itertools import product
from typing import Any

from attrs import evolve
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IHalfCloseableProtocol
from twisted.python.failure import Failure
from zope.interface import implementer

from tests.sdp.pair import Raw, Recorder
from tests.sdp.zerocopy.test_extensions import LEAST, Places
from tests.sdp.zerocopy.test_registered import BYTES, SIZE, RegisteredTestCase
from twisted_ib import limits
from twisted_ib.errors import PathLostError, ResourceLimitError
from twisted_ib.hca.memory.access import LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE
from twisted_ib.hca.queues.requests import Attributes, Capabilities
from twisted_ib.sdp.protocol.wire import BSDH, MID, Flags, SinkAvail, SrcAvail, Transition
from twisted_ib.sdp.stream import SDP_RECEIVES_LEAST
from twisted_ib.sdp.streamrdma import READ_DEPTH, StreamQueues

SOURCE = SrcAvail.layout.struct.pack
SINK = SinkAvail.layout.struct.pack
TO_PIPELINED = Transition.COMBINED_TO_PIPELINED
PIPELINED = bytes((TO_PIPELINED, 0, 0, 0))
COMBINED = bytes((Transition.PIPELINED_TO_COMBINED, 0, 0, 0))
SIZE_ASKED = (65536).to_bytes(4, "big")


class Target:
    """
    Memory of a raw peer, which the other end may read and write.

    @ivar key: Its key.
    @ivar address: Where it begins.
    """

    def __init__(self, raw: Raw, size: int) -> None:
        """
        @param size: Bytes.
        """
        device: Any = raw.device
        pd = device.memory.allocateDomain()
        region = device.memory.register(bytearray(size), LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ, pd)
        self.key, self.address = region.key, region.address
        sink: Any = self
        places = Capabilities(32, 0, 1, 0, 0)
        work = StreamQueues(raw.queuePair, pd, sink, sink, device.timers, places)
        work.attributes = Attributes(REMOTE_READ | REMOTE_WRITE, reads=16, peerReads=16, timeout=14)

    def push(self, completion: Any, solicited: bool = False) -> bool:
        """
        Nothing is asked.
        """
        return True


class Short:
    """
    The memory of a stream when no more can be registered.

    @ivar short: Whether it is so.
    @ivar reads: How many READs were asked for; none is made.
    """

    def __init__(self, keyed: Any) -> None:
        """
        @param keyed: What has the rest.
        """
        self.keyed = keyed
        self.short = True
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        """
        Find the rest.
        """
        return getattr(self.keyed, name)

    def expose(self, *arguments: Any) -> Any:
        """
        Register, or not.
        """
        if self.short:
            raise ResourceLimitError("no more")
        return self.keyed.expose(*arguments)

    def read(self, *arguments: Any) -> None:
        self.reads += 1


@implementer(IHalfCloseableProtocol)
class HalfPlaces(Places):
    """
    Goes on when the peer has ended.
    """

    def readConnectionLost(self) -> None:
        self.log.append("end")

    def writeConnectionLost(self) -> None:
        """
        Never mind.
        """


class HostileTestCase(RegisteredTestCase):
    """
    Base of tests with a raw peer.
    """

    def source(self, receives: int = 1000) -> tuple[Raw, Any]:
        """
        @return: A peer, and an end that sends to it in Pipelined mode.
        """
        raw, stream = self.pair.raw(receives)
        stream.setZeroCopyThresholds(LEAST)
        stream.openExtensions().changeMode(TO_PIPELINED)
        self.settle()
        return raw, stream

    def sink(self, protocol: Recorder) -> tuple[Raw, Any]:
        """
        @return: A peer, and an end that it sends to in Pipelined mode.
        """
        raw, stream = self.pair.raw(1000, protocol)
        raw.send(MID.MODE_CHANGE, PIPELINED)
        self.settle()
        return raw, stream

    def written(self, protocol: Recorder) -> tuple[Any, Any]:
        """
        @return: Two ends, the second of which is paused and has bytes in a place.
        """
        one, two, region, _ = self.offering(protocol=protocol)
        for _ in range(3):
            self.settle()
            one.writeRegistered(region)
        self.settle()
        two.pauseProducing()
        one.writeRegistered(region, 0, 65536)
        self.settle()
        self.assertEqual((len(two.held), two.heldBytes), (1, 0))
        return one, two

    def keys(self) -> set[int]:
        """
        @return: All keys of the end that is tested.
        """
        return set(self.pair.b.device.memory.regions)


class PeerTests(HostileTestCase):
    """
    Messages of the peer.
    """

    def test_noSuchAddress(self) -> None:
        """
        Memory beyond the last address ends the connection when it is offered, and nothing else.
        """
        raw, stream = self.pair.raw()
        raw.send(MID.SRC_AVAIL, SOURCE(1000, 7, 2**64 - 999) + b"x")
        self.settle()
        self.assertIn("there are no 1000 bytes", str(stream.heard.reason.value))
        raw, stream = self.source()
        raw.send(MID.SINK_AVAIL, SINK(70_000, 7, 2**64 - 5, 0))
        self.settle()
        self.assertIn("there are no 70000 bytes", str(stream.heard.reason.value))

    def test_lastAddress(self) -> None:
        """
        The last bytes of all are some like others, for which the key is wrong.
        """
        raw, stream = self.pair.raw()
        raw.send(MID.SRC_AVAIL, SOURCE(1000, 7, 2**64 - 1000) + b"x")
        self.settle()
        self.assertEqual(stream.heard.log, [b"x", "ConnectionLost"])

    def test_answersOwedBehindRead(self) -> None:
        """
        A peer that takes no answers loses the connection also when it is a READ that ends which
        asks for one too many.
        """
        raw, stream = self.pair.raw(1)
        stream.machine.limit = 1
        target = Target(raw, 1000)
        stingy: dict[str, int] = {"acknowledged": 0, "buffers": 0}
        for _ in range(limits.SDP_RECEIVES - 1):
            raw.send(MID.CH_RCV_BUF, SIZE_ASKED, **stingy)
            self.settle()
        raw.send(MID.SRC_AVAIL, SOURCE(1000, target.key, target.address) + b"x", **stingy)
        raw.send(MID.CH_RCV_BUF, SIZE_ASKED, **stingy)
        self.settle()
        self.assertIn("does not take them", str(stream.heard.reason.value))

    def test_keysAfterUse(self) -> None:
        """
        A SrcAvail's memory cannot be read once it was read, refused, cancelled or voided.
        """
        for over in ("read", "refused", "cancelled", "void"):
            raw, stream = self.source() if over == "void" else self.pair.raw()
            stream.setZeroCopyThresholds(LEAST)
            stream.writeRegistered(stream.registerMemory(BYTES)).addErrback(lambda reason: None)
            self.settle()
            offer = SrcAvail.parse(raw.messages[-1])
            self.assertIn(offer.rkey, self.keys())
            if over == "read":
                raw.send(MID.RDMA_RD_COMPL, (SIZE - len(offer.payload)).to_bytes(4, "big"))
            elif over == "void":
                raw.send(MID.SINK_AVAIL, SINK(65536, 7, 0, 0))
            else:
                if over == "cancelled":
                    stream.extensions.zeroCopySend.retract()
                    self.settle()
                raw.send(MID.SEND_SM)
            self.settle()
            self.assertNotIn(offer.rkey, self.keys(), over)
            raw.queuePair.close()

    def test_onlyWhatIsSent(self) -> None:
        """
        A key opens no more of a region than is sent, whether or not the peer could map it.
        """
        raw, stream = self.pair.raw()
        stream.setZeroCopyThresholds(LEAST)
        region = stream.registerMemory(BYTES)
        region._region.segment = object()
        stream.writeRegistered(region, 1000, 100_000).addErrback(lambda reason: None)
        self.settle()
        offer = SrcAvail.parse(raw.messages[-1])
        exposed = self.pair.b.device.memory.regions[offer.rkey]
        self.assertEqual((exposed.address, exposed.length), (offer.address, 100_000))
        self.assertIsNone(exposed.segment)
        region._region.segment = None

    def test_partsOfWhatPeersMap(self) -> None:
        """
        Where memory can be shared, a part of a region goes as Data: the peer would see the rest.
        """
        raw, stream = self.pair.raw()
        stream.setZeroCopyThresholds(LEAST)
        fabric = stream.queuePair.path.fabric
        self.patch(fabric, "traits", evolve(fabric.traits, zeroCopy=True))
        region = stream.registerMemory(BYTES)
        region._region.segment = object()
        stream.writeRegistered(region, 1000, 100_000)
        self.settle()
        self.assertEqual((raw.stream == BYTES[1000:101_000], set(raw.kinds())), (True, {"DATA"}))
        stream.writeRegistered(region).addErrback(lambda reason: None)
        self.settle()
        self.assertEqual(raw.kinds()[-1], "SRC_AVAIL")
        region._region.segment = None

    def test_cancelsForEver(self) -> None:
        """
        Offers that are taken back again and again leave nothing; more at a time than were
        promised end the connection.
        """
        raw, stream = self.pair.raw(60000)
        raw.send(MID.MODE_CHANGE, PIPELINED)
        stream.pauseProducing()
        for _ in range(500):
            raw.send(MID.SRC_AVAIL, SOURCE(1000, 7, 0))
            raw.send(MID.SRC_AVAIL_CANCEL)
            self.settle()
        self.assertEqual(stream.heard.log, [])
        self.assertEqual(raw.kinds().count("SEND_SM"), 500)
        for _ in range(limits.SDP_ADVERTS + 1):
            raw.send(MID.SRC_AVAIL, SOURCE(1000, 7, 0))
        self.settle()
        self.assertIn("SrcAvails", str(stream.heard.reason.value))

    def test_cancelCrossesCompletion(self) -> None:
        """
        A SinkAvailCancel that finds nothing is over: another SinkAvail may follow at once.
        """
        raw, stream = self.source()
        raw.send(MID.SINK_AVAIL_CANCEL)
        raw.send(MID.SINK_AVAIL, SINK(65536, 7, 0, 0))
        self.settle()
        self.assertEqual((stream.heard.log, len(stream.machine.zero.source.targets)), ([], 1))

    def test_cancelCrossesEnd(self) -> None:
        """
        A SinkAvailCancel may cross a DisConn, and its answer comes then.
        """
        raw, stream = self.sink(Places())
        stream.pauseProducing()
        stream.extensions.zeroCopyReceive._retract()
        raw.send(MID.DISCONN)
        raw.send(MID.SINK_CANCEL_ACK)
        self.settle()
        self.assertEqual(stream.heard.log, [])
        stream.resumeProducing()
        self.settle()
        self.assertEqual(stream.heard.log, ["ConnectionDone"])

    def test_availBeforeAnswer(self) -> None:
        """
        A SinkAvail behind a SinkAvailCancel that must be answered first ends the connection.
        """
        raw, stream = self.source()
        for mid, body in (
            (MID.SINK_AVAIL, SINK(65536, 7, 0, 0)),
            (MID.SINK_AVAIL_CANCEL, b""),
            (MID.SINK_AVAIL, SINK(65536, 7, 0, 0)),
        ):
            raw.send(mid, body)
        self.settle()
        self.assertIn("before SinkAvailCancel was answered", str(stream.heard.reason.value))

    def test_asksForPipelined(self) -> None:
        """
        REQ_PIPE is said in Combined mode only, and not to a peer that takes one SrcAvail.
        """
        for adverts, pipelined, asked in ((16, False, True), (16, True, False), (1, False, False)):
            raw, stream = self.pair.raw()
            stream.openExtensions().machine.zero.sink.most = adverts
            target = Target(raw, 1000)
            if pipelined:
                raw.send(MID.MODE_CHANGE, PIPELINED)
            carried = b"" if pipelined else b"x"
            raw.send(MID.SRC_AVAIL, SOURCE(1000, target.key, target.address) + carried)
            self.settle()
            done = raw.messages[-1]
            self.assertEqual((done[0], done[1] == Flags.REQ_PIPE), (MID.RDMA_RD_COMPL, asked))


class OrderTests(HostileTestCase):
    """
    Order among messages.
    """

    def test_writeCompletion(self) -> None:
        """
        An RdmaWrCompl that waits for credits is not overtaken by Data that is written when they
        come.
        """
        raw, stream = self.source(4)
        target = Target(raw, 100_000)
        raw.queuePair.posted = 1
        stream.machine.limit = stream.machine.sequence + 1
        raw.send(MID.SINK_AVAIL, SINK(100_000, target.key, target.address, 0), buffers=1)
        self.settle()
        ends: list[Any] = []
        stream.writeRegistered(stream.registerMemory(BYTES), 0, 30_000).addBoth(ends.append)
        self.settle()
        self.assertEqual((ends, raw.kinds()), ([None], ["MODE_CHANGE"]))
        stream.heard.hook = lambda data: stream.write(b"y" * 60_000)
        raw.queuePair.posted = 100
        raw.data(b"go")
        self.settle()
        self.assertEqual(raw.kinds(), ["MODE_CHANGE", "RDMA_WR_COMPL", "DATA"])

    def test_threeCredits(self) -> None:
        """
        A place is advertised with three credits, and not with two (CA4-82).
        """
        for credits, kinds in ((2, []), (3, ["SINK_AVAIL"])):
            raw, stream = self.pair.raw(1000, Places())
            raw.send(MID.MODE_CHANGE, PIPELINED, buffers=credits)
            stream.machine.limit = stream.machine.sequence + credits
            self.settle()
            self.assertEqual(raw.kinds()[:1], kinds)

    def test_sourceShort(self) -> None:
        """
        Registered bytes that nothing can be registered for go as Data.
        """
        raw, stream = self.source()
        exchange = stream.openExtensions()
        exchange.keyed = Short(exchange.openRDMA())
        ends: list[Any] = []
        stream.writeRegistered(stream.registerMemory(BYTES)).addBoth(ends.append)
        self.settle()
        self.assertEqual((set(raw.kinds()[1:]), ends), ({"DATA"}, [None]))

    def test_refusedWhileShort(self) -> None:
        """
        Data for which memory is short must come as Data, and before that nothing is read: not even SrcAvails
        that left before the peer heard of it.
        """
        raw, stream = self.pair.raw()
        raw.send(MID.MODE_CHANGE, PIPELINED)
        exchange = stream.openExtensions()
        exchange.keyed = short = Short(exchange.openRDMA())
        for _ in range(2):
            raw.send(MID.SRC_AVAIL, SOURCE(1000, 7, 0))
        self.settle()
        self.assertEqual(raw.kinds(), ["SEND_SM"] * 2)
        short.short = False
        raw.send(MID.SRC_AVAIL, SOURCE(1000, 7, 0), acknowledged=0)
        self.settle()
        self.assertEqual((raw.kinds(), short.reads), (["SEND_SM"] * 3, 0))
        raw.data(b"x" * 3000)
        raw.send(MID.SRC_AVAIL, SOURCE(1000, 7, 0))
        self.settle()
        self.assertEqual((raw.kinds(), short.reads), (["SEND_SM"] * 3, 1))

    def test_creditsBehindCancel(self) -> None:
        """
        The end of a cancel raises MSeqAck, which is announced where receives are few: the peer may wait for
        it.
        """
        raw, stream = self.pair.raw()
        target = Target(raw, 2000)
        stream.channel.device.receiveBudget.heldBytes = limits.HELD_BYTES
        few = raw.machine.limit = SDP_RECEIVES_LEAST
        stream.queuePair.posted = stream.machine.told = few
        raw.send(MID.SRC_AVAIL, SOURCE(2000, target.key, target.address) + b"x")
        self.pair.b.turn()
        raw.send(MID.SRC_AVAIL_CANCEL)
        raw.data()
        self.settle()
        self.assertEqual(raw.kinds().count("RDMA_RD_COMPL"), 1)
        self.assertGreaterEqual(raw.machine.limit - raw.machine.sequence, 3)
        stream.channel.device.receiveBudget.heldBytes = 0

    def test_acknowledgedBehindChange(self) -> None:
        """
        A change to Combined mode ends a cancel too: what came is acknowledged.
        """
        raw, stream = self.sink(Recorder())
        target = Target(raw, 2000)
        raw.send(MID.SRC_AVAIL, SOURCE(2000, target.key, target.address))
        self.pair.b.turn()
        raw.send(MID.SRC_AVAIL_CANCEL)
        raw.send(MID.MODE_CHANGE, COMBINED)
        self.settle()
        stream.write(b"x")
        self.settle()
        self.assertEqual(BSDH.unpack_from(raw.messages[-1])[5], raw.machine.sequence)

    def test_changeBehindReport(self) -> None:
        """
        A change to Combined mode takes an offer back that is partly read: only if the peer knows
        how much, else bytes would come twice.
        """
        size = 6 << 20
        for knows in (True, False):
            raw, stream = self.sink(Recorder())
            target = Target(raw, size)
            stream.heard.hook = lambda data, stream=stream: stream.pauseProducing()
            raw.send(MID.SRC_AVAIL, SOURCE(size, target.key, target.address))
            self.settle()
            self.assertEqual(raw.kinds()[-1], "RDMA_RD_COMPL")
            self.assertTrue(stream.extensions.zeroCopyReceive.unread())
            options = {} if knows else {"acknowledged": raw.machine.received - 1}
            raw.send(MID.MODE_CHANGE, COMBINED, **options)
            self.settle()
            stream.resumeProducing()
            self.settle()
            self.assertEqual("ConnectionLost" in stream.heard.calls, not knows)

    def test_voidReads(self) -> None:
        """
        Places keep their order when what is read into them is void.
        """
        raw, stream = self.sink(Places())
        stream.pauseProducing()
        target = Target(raw, 300_000)
        raw.send(MID.MODE_CHANGE, COMBINED)
        self.settle()
        stream.resumeProducing()
        self.settle()
        raw.send(MID.SRC_AVAIL, SOURCE(100_001, target.key, target.address) + b"x")
        self.pair.b.turn()
        self.assertEqual(len(stream.extensions.zeroCopyReceive.readings), 2)
        raw.send(MID.MODE_CHANGE, PIPELINED)
        raw.send(MID.MODE_CHANGE, COMBINED)
        raw.data(b"hello")
        self.settle()
        raw.data(b"again")
        self.settle()
        self.assertEqual(stream.heard.log, [b"x", b"hello", b"again"])


class EndTests(HostileTestCase):
    """
    Ends in the middle.
    """

    def test_keysAfterEnd(self) -> None:
        """
        When the peer has said that it sends no more it cannot write, and the places are the
        application's again.
        """
        raw, stream = self.sink(HalfPlaces())
        adverts = {SinkAvail.parse(each).rkey for each in raw.messages if each[0] == MID.SINK_AVAIL}
        self.assertEqual((len(adverts), adverts - self.keys()), (4, set()))
        raw.send(MID.DISCONN)
        self.settle()
        self.assertEqual((stream.heard.log, stream.heard.given), (["end"], []))
        self.assertEqual(adverts & self.keys(), set())
        stream.resumeProducing()
        self.settle()
        self.assertEqual(raw.kinds().count("SINK_AVAIL"), 4)

    def test_keysAfterClose(self) -> None:
        """
        When the application has closed, the peer cannot write to its memory any more, though it
        has not answered yet.
        """
        raw, stream = self.sink(Places())
        adverts = {SinkAvail.parse(each).rkey for each in raw.messages if each[0] == MID.SINK_AVAIL}
        self.assertEqual((len(adverts), adverts - self.keys()), (4, set()))
        stream.loseConnection()
        self.settle()
        self.assertEqual((stream.heard.calls, raw.kinds()[-1]), (["ConnectionDone"], "DISCONN"))
        self.assertEqual(adverts & self.keys(), set())

    def test_heldForPlaces(self) -> None:
        """
        Bytes that came to a paused application with places are reported although the connection has ended.
        """
        for pipelined in (False, True):
            raw, stream = self.sink(HalfPlaces()) if pipelined else self.pair.raw(1000, HalfPlaces())
            stream.pauseProducing()
            stream.loseWriteConnection()
            self.settle()
            raw.data(b"hello")
            raw.send(MID.DISCONN)
            self.settle()
            self.assertIsNone(stream.queuePair.path)
            stream.resumeProducing()
            self.settle()
            self.assertEqual(stream.heard.log, [b"hello", "end"])

    def test_heldInPlace(self) -> None:
        """
        The same with what came to a place, and bytes behind that.
        """
        for end, reason in (("loseConnection", "ConnectionDone"), ("abortConnection", "ConnectionLost")):
            one, two = self.written(Places())
            one.write(b"tail")
            self.settle()
            getattr(one, end)()
            self.settle()
            before = len(two.heard.data)
            two.resumeProducing()
            self.settle()
            self.assertEqual(two.heard.calls, [reason])
            self.assertEqual(two.heard.data[before:], BYTES[:65536] + b"tail")

    def test_closedUnread(self) -> None:
        """
        Bytes that came to a place and were not reported are unread, so that a close is an abort.
        """
        _, two = self.written(Places())
        kinds = self.sent(two)
        two.loseConnection()
        self.settle()
        self.assertEqual(kinds[-1:], ["ABORT_CONN"])

    def test_closedWithOffer(self) -> None:
        """
        So is an offer of which nothing came.
        """
        raw, stream = self.sink(Recorder())
        stream.pauseProducing()
        raw.send(MID.SRC_AVAIL, SOURCE(1000, 7, 0))
        self.settle()
        stream.connectionLost(Failure(ConnectionDone()))
        self.settle()
        self.assertEqual((raw.log, raw.kinds()), (["DREQ"], []))

    def test_depth(self) -> None:
        """
        So many READs are answered at a time as the CM was told.
        """
        _, stream = self.pair.raw()
        self.assertEqual(stream.openExtensions().openRDMA().begin().attributes.peerReads, READ_DEPTH)

    def test_lostWhileWriting(self) -> None:
        """
        An application that does not read and waits for registered memory hears of the peer's death, although
        the end of the stream is held.
        """
        raw, stream = self.pair.raw()
        stream.setZeroCopyThresholds(LEAST)
        stream.pauseProducing()
        ends: list[Any] = []
        stream.writeRegistered(stream.registerMemory(BYTES)).addErrback(ends.append)
        self.settle()
        raw.data(b"hello")
        raw.send(MID.DISCONN)
        self.settle()
        stream.queuePair.fail(PathLostError("the peer died"))
        self.settle()
        self.assertEqual((len(ends), stream.heard.calls), (1, ["ConnectionLost"]))

    def test_abortInUpcall(self) -> None:
        """
        A protocol may abort, or fail, when it gets the first of several places back.
        """

        class Once(Places):
            """
            Does so.
            """

            def bufferFilled(self, region: Any, offset: int, count: int) -> None:
                """
                Abort.
                """
                if fails:
                    raise ZeroDivisionError
                self.transport.abortConnection()  # type: ignore[attr-defined, union-attr]

        for acknowledged, fails in product((True, False), (True, False)):
            raw, stream = self.sink(Once())
            if acknowledged:
                stream.machine.zero.sink.retract()
            raw.send(MID.SINK_CANCEL_ACK if acknowledged else MID.DISCONN)
            self.settle()
            self.assertEqual(stream.heard.calls, ["ZeroDivisionError" if fails else "ConnectionAborted"])
            self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), int(fails))

    def test_huge(self) -> None:
        """
        Memory that no message can name goes in parts, and is free when all are read.
        """
        raw, stream = self.pair.raw()
        size = 2 * limits.MESSAGE_BYTES + 100_000
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
        region = stream.registerMemory(mmap.mmap(-1, size, flags=flags))
        ends: list[Any] = []
        stream.setZeroCopyThresholds(LEAST)
        stream.writeRegistered(region).addBoth(ends.append)
        self.settle()
        while not ends:
            kind = raw.messages[-1][0]
            self.assertEqual(kind, MID.SRC_AVAIL)
            offers = [SrcAvail.parse(each) for each in raw.messages if each[0] == MID.SRC_AVAIL]
            raw.messages.clear()
            for offer in offers:
                size -= offer.length
                raw.send(MID.RDMA_RD_COMPL, (offer.length - len(offer.payload)).to_bytes(4, "big"))
            self.settle()
        self.assertEqual((size, ends), (0, [None]))
        self.assertEqual(region.uses, 0)
