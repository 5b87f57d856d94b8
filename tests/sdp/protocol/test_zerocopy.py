"""
Tests for L{twisted_ib.sdp.protocol.zerocopy}, L{twisted_ib.sdp.protocol.sourceadverts},
L{twisted_ib.sdp.protocol.sinkadverts} and L{twisted_ib.sdp.protocol.modes}: a literal conversation, every
state with every message, races, bounds.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.sdp.protocol.test_wire import VECTORS
from twisted_ib import limits
from twisted_ib.errors import SDPError, SDPWireError
from twisted_ib.sdp.protocol import wire
from twisted_ib.sdp.protocol.machine import Input, Machine, State
from twisted_ib.sdp.protocol.modes import BY_SINK, CHANGES, Mode, changed
from twisted_ib.sdp.protocol.wire import MID, Flags, StreamMessage, Transition
from twisted_ib.sdp.protocol.zerocopy import ZeroCopyMachine

PIPELINE = Transition.COMBINED_TO_PIPELINED
COMBINE = Transition.PIPELINED_TO_COMBINED
BUFFER = Transition.COMBINED_TO_BUFFERED
UNBUFFER = Transition.BUFFERED_TO_COMBINED


def opened(receives: int = 64, adverts: int = 4) -> ZeroCopyMachine:
    """
    @return: A machine after the handshake, that knows all of the protocol.
    """
    machine = Machine(receives)
    machine.limit = receives
    return ZeroCopyMachine(machine, adverts)


def give(machine: ZeroCopyMachine, message: bytes) -> Any:
    """
    Let a message arrive.

    @return: Its bytes of the stream; or what it means.
    """
    data = machine.receive(message, 0, len(message))
    if isinstance(data, bytes):
        return data
    parsed = machine.parse(message, 0, len(message))
    name = type(parsed).__name__
    process = getattr(machine, name[0].lower() + name[1:])
    return process(parsed) if parsed.layout.size or isinstance(parsed, StreamMessage) else process()


class Ends:
    """
    Two machines, and what is on the way between them.
    """

    def __init__(self, adverts: int = 4) -> None:
        """
        Both are open.
        """
        self.c, self.s = opened(64, adverts), opened(64, adverts)

    def send(self, message: bytes | None, payload: bytes = b"") -> Any:
        """
        Let a message of C{c} arrive at C{s}.
        """
        assert message is not None
        return give(self.s, message + payload)

    def answer(self, message: bytes | None, payload: bytes = b"") -> Any:
        """
        Let a message of C{s} arrive at C{c}.
        """
        assert message is not None
        return give(self.c, message + payload)

    def pipelined(self) -> Ends:
        """
        Go to Pipelined mode, from C{c} to C{s}.
        """
        self.send(self.c.changeMode(PIPELINE, 63))
        return self


class ContinuingTests(SynchronousTestCase):
    """
    The machine that takes the place of a plain one.
    """

    def test_numbers(self) -> None:
        """
        It goes on with every number.
        """
        names = ["sequence", "received", "limit", "told", "bareSent", "bareReceived"]
        plain = Machine(64)
        # A compiled class has neither slots nor a dictionary.
        kept = {*getattr(plain, "__dict__", ()), *getattr(Machine, "__slots__", ())} - {"__dict__"}
        self.assertLessEqual(kept, {*names, "_updates", "state"})
        plain.state, plain._updates = State.CLOSE_WAIT, (7, 9)
        for value, name in enumerate(names, 1000):
            setattr(plain, name, value)
        machine = ZeroCopyMachine(plain, 4)
        self.assertEqual([getattr(machine, name) for name in names], list(range(1000, 1000 + len(names))))
        self.assertEqual((machine.state, machine._updates), (State.CLOSE_WAIT, (7, 9)))
        self.assertEqual((machine.zero.source.most, machine.zero.sink.most), (4, 4))


class ConversationTests(SynchronousTestCase):
    """
    The worked example of the protocol, byte by byte.
    """

    def test_literal(self) -> None:
        """
        Two machines that are told to do what the example does say what it says.
        """
        c, s = opened(), opened()
        vectors = [bytes.fromhex(text.replace(" ", "")) for text, _ in VECTORS]
        said: list[bytes] = []

        def go(other: ZeroCopyMachine, message: bytes | None, payload: bytes = b"") -> Any:
            assert message is not None
            said.append(message + payload)
            return give(other, message + payload)

        header = c.header(5, 64)
        self.assertEqual(go(s, header, b"hello"), b"hello")
        go(c, self.update(s))
        advert = go(s, c.sourceAvailable("a", 0x10000, 0x1234, 0x10000, b"A", 63))
        self.assertEqual((advert.length, advert.key, advert.asked), (0x10000, 0x1234, 1))
        picked = s.zero.sink.pick(1 << 20)
        assert picked is not None
        advert.asked += picked[1]
        advert.moving += 1
        s.zero.sink.arrived(advert, picked[1])
        over = go(c, s.controlMessage(MID.RDMA_RD_COMPL, 63, (65535).to_bytes(4, "big"), Flags.REQ_PIPE))
        self.assertEqual((over.user, c.zero.source.pipelining), ("a", True))
        go(s, c.changeMode(PIPELINE, 63))
        self.assertEqual(go(c, s.sinkAvailable("p", 0x10000, 0x5678, 0x20000, 63)), (True, []))
        target = c.zero.source.targets[0]
        target.written, target.closed = 0x10000, True
        self.assertEqual(c.zero.source.completed(), 0x10000)
        place = go(s, c.controlMessage(MID.RDMA_WR_COMPL, 63, (0x10000).to_bytes(4, "big")))
        self.assertEqual(place, "p")
        s.sinkAvailable("q", 0x10000, 0x5678, 0x20000, 63)
        lost = s.sequence
        self.assertEqual(lost, 4)
        message = s.cancelPlaces(63)
        assert message is not None
        said.append(message)
        c.received = lost  # The SinkAvail before it is not among the vectors.
        c.zero.source.available(0x10000, 0x5678, 0x20000, 2, 4, c.sequence - c.bareSent)
        give(c, message)
        self.assertIs(c.zero.source.cancelDone(), True)
        self.assertEqual(go(s, c.controlMessage(MID.SINK_CANCEL_ACK, 63)), ["q"])
        go(s, c.sourceAvailable("b", 0x10000, 0x1234, 0x40000, b"", 63))
        go(s, c.cancelOffers(63))
        self.assertIs(s.sourceCancelDone(), True)
        over = go(c, s.controlMessage(MID.SEND_SM, 63))
        self.assertEqual([offer.user for offer in over], ["b"])
        go(s, c.changeMode(COMBINE, 63))
        sizes = (0x8010).to_bytes(4, "big")
        for machine, other, mid in ((c, s, MID.CH_RCV_BUF), (s, c, MID.CH_RCV_BUF_ACK)):
            message = machine.controlMessage(mid, 63, sizes)
            assert message is not None
            said.append(message)
            other.receive(message, 0, len(message))
        go(s, c.urgentHeader(63), b"!")
        skipped = {MID.HELLO, MID.HELLO_ACK, MID.SUSP_COMM, MID.SUSP_COMM_ACK, MID.DISCONN, MID.ABORT_CONN}
        expected = [vector for vector in vectors if vector[0] not in skipped]
        self.assertEqual([each.hex() for each in said], [each.hex() for each in expected])

    def update(self, machine: ZeroCopyMachine) -> bytes:
        """
        @return: The example's update, which a peer may send though it tells nothing new.
        """
        machine.bareSent += 1
        machine.sequence += 1
        return bytes.fromhex("ff00003f000000100000000100000001")


class ModeTests(SynchronousTestCase):
    """
    Flow-control modes.
    """

    def test_everyChangeInEveryMode(self) -> None:
        """
        Each change is one of one mode, and an error that names both in the others.
        """
        for mode in Mode:
            for transition in Transition:
                before, after = CHANGES[transition]
                if mode is before:
                    self.assertIs(changed(mode, transition), after)
                else:
                    error = self.assertRaises(SDPError, changed, mode, transition)
                    self.assertEqual(str(error), f"ModeChange {transition.name} in {mode.name} mode")
        self.assertEqual(BY_SINK, {UNBUFFER})

    def test_bothEnds(self) -> None:
        """
        The sender of a ModeChange changes its half at once, the receiver the other one.
        """
        ends = Ends()
        c, s = ends.c.zero, ends.s.zero
        for transition in (PIPELINE, COMBINE, BUFFER):
            ends.send(ends.c.changeMode(transition, 64))
            self.assertIs(c.source.mode, s.sink.mode)
            self.assertIs(c.source.mode, CHANGES[transition][1])
        ends.answer(ends.s.changeMode(UNBUFFER, 64))
        self.assertEqual((c.source.mode, s.sink.mode), (Mode.COMBINED, Mode.COMBINED))
        self.assertEqual((c.sink.mode, s.source.mode), (Mode.COMBINED, Mode.COMBINED))

    def test_notNow(self) -> None:
        """
        A source changes no mode with an offer out, and does not end Buffered mode.
        """
        ends = Ends()
        ends.c.sourceAvailable("a", 100, 1, 2, b"x", 64)
        for transition in (PIPELINE, BUFFER):
            self.assertRaises(SDPError, ends.c.changeMode, transition, 64)
        self.assertIs(ends.c.zero.source.mode, Mode.COMBINED)
        with self.assertRaises(SDPError):
            ends.c.zero.source.changedMode(UNBUFFER, 1, 0)

    def test_combinedOnly(self) -> None:
        """
        Against a peer that takes one advertisement nobody leaves Combined mode.
        """
        for adverts, may in ((1, False), (2, True), (255, True)):
            self.assertIs(opened(adverts=adverts).zero.source.mayPipeline(), may)


#: States of a machine: name -> how it gets there.
STATES: dict[str, Callable[[Ends], Any]] = {
    "new": lambda e: None,
    "pipelined": lambda e: e.answer(e.s.changeMode(PIPELINE, 64)),
    "buffered": lambda e: e.answer(e.s.changeMode(BUFFER, 64)),
    "offered to": lambda e: e.answer(e.s.sourceAvailable("a", 100, 1, 2, b"x", 64)),
    "offers": lambda e: e.send(e.c.sourceAvailable("a", 100, 1, 2, b"x", 64)),
    "invites": lambda e: (
        e.answer(e.s.changeMode(PIPELINE, 64)),
        e.send(e.c.sinkAvailable("p", 70000, 1, 2, 64)),
    ),
    "retracts": lambda e: (STATES["invites"](e), e.send(e.c.cancelPlaces(64))),
    "may invite": lambda e: e.send(e.c.changeMode(PIPELINE, 64)),
    "ended": lambda e: e.c.feed(Input.DISCONN),
}
#: What a peer sends: name -> id, body.
SENT = {
    "Data": (MID.DATA, b"x"),
    "SendSm": (MID.SEND_SM, b""),
    "RdmaWrCompl": (MID.RDMA_WR_COMPL, b"\0\0\0\x63"),
    "RdmaRdCompl": (MID.RDMA_RD_COMPL, b"\0\0\0\x63"),
    "to buffered": (MID.MODE_CHANGE, b"\x00\0\0\0"),
    "to combined": (MID.MODE_CHANGE, b"\x10\0\0\0"),
    "to pipelined": (MID.MODE_CHANGE, b"\x20\0\0\0"),
    "end buffered": (MID.MODE_CHANGE, b"\x90\0\0\0"),
    "SrcAvailCancel": (MID.SRC_AVAIL_CANCEL, b""),
    "SinkAvailCancel": (MID.SINK_AVAIL_CANCEL, b""),
    "SinkCancelAck": (MID.SINK_CANCEL_ACK, b""),
    "SinkAvail": (MID.SINK_AVAIL, wire.SinkAvail.layout.struct.pack(70000, 1, 2, 0)),
    "SrcAvail": (MID.SRC_AVAIL, wire.SrcAvail.layout.struct.pack(100, 1, 2)),
    "SrcAvail x": (MID.SRC_AVAIL, wire.SrcAvail.layout.struct.pack(100, 1, 2) + b"x"),
    "Hello": (MID.HELLO, b""),
    "HelloAck": (MID.HELLO_ACK, b""),
    "unknown": (0x1D, b""),
}
#: What is legal, by state; the rest is an error.
LEGAL = {
    "new": "Data|to buffered|to pipelined|SrcAvailCancel|SinkAvailCancel|SrcAvail x",
    "pipelined": "Data|to combined|SrcAvailCancel|SinkAvailCancel|SrcAvail",
    "buffered": "Data|SrcAvailCancel|SinkAvailCancel",
    "offered to": "to pipelined|SrcAvailCancel|SinkAvailCancel",
    "offers": "Data|to buffered|to pipelined|SrcAvailCancel|SinkAvailCancel|SrcAvail x|SendSm|RdmaRdCompl",
    "invites": "Data|to combined|SrcAvailCancel|SinkAvailCancel|SrcAvail|RdmaWrCompl",
    "retracts": "Data|to combined|SrcAvailCancel|SinkAvailCancel|SrcAvail|RdmaWrCompl|SinkCancelAck",
    "may invite": ("Data|to buffered|to pipelined|SrcAvailCancel|SinkAvailCancel|SrcAvail x|SinkAvail"),
    "ended": "SinkAvailCancel",
}


class StateTests(SynchronousTestCase):
    """
    Every state with every message.
    """

    def test_everyStateWithEveryMessage(self) -> None:
        """
        A message that is legal in a state is accepted; any other is an error that names it, and never another
        kind of error.
        """
        self.assertEqual(set(LEGAL), set(STATES))
        for state, reach in STATES.items():
            for name, (mid, body) in SENT.items():
                ends = Ends()
                reach(ends)
                ends.s.state = State.ESTABLISHED
                sequence = ends.s.sequence + 1
                message = wire.BSDH.pack(mid, 0, 64, 16 + len(body), sequence, ends.s.received) + body
                if name in LEGAL[state].split("|"):
                    give(ends.c, message)
                    continue
                with self.assertRaises((SDPError, SDPWireError), msg=f"{name} in {state}") as caught:
                    give(ends.c, message)
                self.assertTrue(str(caught.exception))

    def test_disconnWhileOffered(self) -> None:
        """
        The end of the stream does not overtake what is offered.
        """
        ends = Ends()
        STATES["offered to"](ends)
        error = self.assertRaises(SDPError, ends.c.feed, Input.DISCONN)
        self.assertIn("SrcAvail is outstanding", str(error))


class SourceTests(SynchronousTestCase):
    """
    Processing of SrcAvails.
    """

    def test_adverts(self) -> None:
        """
        One offer in Combined mode, MaxAdverts in Pipelined, none in Buffered.
        """
        ends = Ends(3)
        source = ends.c.zero.source
        ends.send(ends.c.sourceAvailable("a", 100, 1, 2, b"x", 64))
        self.assertFalse(source.mayOffer())
        ends.answer(ends.s.controlMessage(MID.RDMA_RD_COMPL, 64, b"\0\0\0\x63"))
        ends = Ends(3).pipelined()
        source = ends.c.zero.source
        for k in range(3):
            self.assertTrue(source.mayOffer())
            ends.send(ends.c.sourceAvailable(k, 100, 1, 2, b"", 64))
        self.assertFalse(source.mayOffer())
        ends = Ends(3)
        ends.send(ends.c.changeMode(BUFFER, 64))
        self.assertFalse(ends.c.zero.source.mayOffer())

    def test_partialReads(self) -> None:
        """
        Several RdmaRdCompl for one offer; the sum may not be more, nor one of them nothing.
        """
        ends = Ends()
        ends.send(ends.c.sourceAvailable("a", 100, 1, 2, b"x", 64))
        for count, over in ((50, False), (48, False), (1, True)):
            found = ends.answer(ends.s.controlMessage(MID.RDMA_RD_COMPL, 64, count.to_bytes(4, "big")))
            self.assertIs(found is not None, over)
        for count in (0, 100):
            ends = Ends()
            ends.send(ends.c.sourceAvailable("a", 100, 1, 2, b"x", 64))
            with self.assertRaises(SDPError):
                ends.answer(ends.s.controlMessage(MID.RDMA_RD_COMPL, 64, count.to_bytes(4, "big")))

    def test_readBeforeOffered(self) -> None:
        """
        An RdmaRdCompl before the SrcAvail arrived is an error.
        """
        ends = Ends()
        early = ends.s.controlMessage(MID.RDMA_RD_COMPL, 64, b"\0\0\0\1")
        ends.c.sourceAvailable("a", 100, 1, 2, b"x", 64)
        with self.assertRaises(SDPError) as caught:
            ends.answer(early)
        self.assertIn("before the SrcAvail came", str(caught.exception))

    def test_dataWhileOffered(self) -> None:
        """
        No Data goes out while an offer stands; an update does.
        """
        ends = Ends()
        ends.c.sourceAvailable("a", 100, 1, 2, b"x", 64)
        self.assertRaises(SDPError, ends.c.header, 1, 64)
        self.assertIsNotNone(ends.c.update(70))

    def test_sendSm(self) -> None:
        """
        SendSm is about the oldest offer; one from before an offer is about none.
        """
        ends = Ends().pipelined()
        early = ends.s.controlMessage(MID.SEND_SM, 64)
        for k in range(2):
            ends.send(ends.c.sourceAvailable(k, 100, 1, 2, b"", 64))
        self.assertEqual(ends.answer(early), [])
        for k in range(2):
            over = ends.answer(ends.s.controlMessage(MID.SEND_SM, 64))
            self.assertEqual([offer.user for offer in over], [k])
        self.assertEqual(ends.answer(ends.s.controlMessage(MID.SEND_SM, 64)), [])

    def test_cancelRaces(self) -> None:
        """
        A cancel is done by a SendSm that acknowledges it, or when nothing is left; one that
        crosses it is about the oldest offer.
        """
        ends = Ends().pipelined()
        c, s, source = ends.c, ends.s, ends.c.zero.source
        for k in range(2):
            ends.send(c.sourceAvailable(k, 100, 1, 2, b"", 64))
        crossing = s.controlMessage(MID.SEND_SM, 64)
        s.zero.sink.adverts.popleft()
        cancel = c.cancelOffers(64)
        self.assertFalse(source.mayOffer())
        self.assertEqual([offer.user for offer in ends.answer(crossing)], [0])
        self.assertIsNotNone(source.cancelling)
        ends.send(cancel)
        self.assertIs(s.sourceCancelDone(), True)
        self.assertEqual([o.user for o in ends.answer(s.controlMessage(MID.SEND_SM, 64))], [1])
        self.assertIsNone(source.cancelling)
        self.assertTrue(source.mayOffer())
        # All was read before the cancel came.
        ends.send(c.sourceAvailable("a", 99, 1, 2, b"", 64))
        s.zero.sink.adverts.clear()
        done = s.controlMessage(MID.RDMA_RD_COMPL, 64, b"\0\0\0\x63")
        ends.send(c.cancelOffers(64))
        self.assertIsNone(s.zero.cap)
        ends.answer(done)
        self.assertIsNone(source.cancelling)

    def test_acknowledgedWhenDone(self) -> None:
        """
        Until what is being read is read, nothing acknowledges the cancel; then SendSm does, if
        something was dropped.
        """
        for length, due in ((99, False), (200, True)):
            ends = Ends()
            c, s, sink = ends.c, ends.s, ends.s.zero.sink
            advert = ends.send(c.sourceAvailable("a", length + 1, 1, 2, b"x", 64))
            advert.asked += 99
            advert.moving += 1
            ends.send(c.cancelOffers(64))
            number = c.sequence
            self.assertIsNone(s.sourceCancelDone())
            header = s.header(1, 64)
            assert header is not None
            self.assertEqual(wire.BSDH.unpack(header)[5], number - 1)
            ends.answer(header, b"x")
            sink.arrived(advert, 99)
            ends.answer(s.controlMessage(MID.RDMA_RD_COMPL, 64, b"\0\0\0\x63"))
            self.assertIs(s.sourceCancelDone(), due)
            if due:
                self.assertIsNotNone(c.zero.source.cancelling)
                ends.answer(s.controlMessage(MID.SEND_SM, 64))
            self.assertIsNone(c.zero.source.cancelling)

    def test_offerWhileCancelled(self) -> None:
        """
        A SrcAvail, or a second cancel, before a cancel is answered is an error.
        """
        offer = wire.SrcAvail.layout.struct.pack(100, 1, 2) + b"x"
        for mid, body in ((MID.SRC_AVAIL, offer), (MID.SRC_AVAIL_CANCEL, b"")):
            ends = Ends()
            advert = ends.send(ends.c.sourceAvailable("a", 100, 1, 2, b"x", 64))
            advert.moving += 1
            ends.send(ends.c.cancelOffers(64))
            with self.assertRaises(SDPError):
                ends.send(ends.c.controlMessage(mid, 64, body))


class SinkTests(SynchronousTestCase):
    """
    Where the peer may write.
    """

    def test_fresh(self) -> None:
        """
        With nothing on the way a place can be used, and makes offers void on both sides.
        """
        ends = Ends().pipelined()
        offer = ends.c.sourceAvailable("a", 100, 1, 2, b"", 64)
        place = ends.s.sinkAvailable("p", 70000, 3, 4, 64)
        fresh, void = ends.answer(place)
        self.assertEqual((fresh, [each.user for each in void]), (True, ["a"]))
        self.assertIsNone(ends.send(offer))
        self.assertEqual(len(ends.s.zero.sink.adverts), 0)

    def test_stale(self) -> None:
        """
        A place that data was on the way to is used up on both sides, and the counts agree.
        """
        for sent in range(4):
            for places in range(4):
                ends = Ends().pipelined()
                header = ends.c.header(1, 64)
                ends.send(header, b"x")
                messages = [ends.c.header(1, 64) for _ in range(sent)]
                avails = [ends.s.sinkAvailable(k, 70000, 3, 4, 64) for k in range(places)]
                found = [ends.answer(avail)[0] for avail in avails]
                self.assertEqual(found, [k >= sent for k in range(places)])
                for message in messages:
                    ends.send(message, b"x")
                c, s = ends.c.zero.source, ends.s.zero.sink
                self.assertEqual(len(c.targets), len(s.places))
                self.assertEqual(c.discarded, s.discarded)

    def test_dataUsesOneUp(self) -> None:
        """
        Data to a peer that has places uses one up on both sides; not behind a WRITE that is not
        reported.
        """
        ends = Ends().pipelined()
        for k in range(2):
            ends.answer(ends.s.sinkAvailable(k, 70000, 3, 4, 64))
        ends.send(ends.c.urgentHeader(64), b"!")
        self.assertEqual([user for user, _ in ends.s.zero.sink.places], [1])
        self.assertEqual(len(ends.c.zero.source.targets), 1)
        ends.c.zero.source.targets[0].written = 1
        self.assertRaises(SDPError, ends.c.header, 1, 64)

    def test_cancel(self) -> None:
        """
        A cancel completes the place in use and drops the others; SinkCancelAck is due only if
        one was dropped.
        """
        for used, places, due in ((0, 0, None), (0, 2, True), (1, 1, False), (1, 3, True)):
            ends = Ends().pipelined()
            source, sink = ends.c.zero.source, ends.s.zero.sink
            for k in range(places):
                ends.answer(ends.s.sinkAvailable(k, 70000, 3, 4, 64))
            if used:
                source.targets[0].written = source.targets[0].moving = 1
            ends.answer(ends.s.cancelPlaces(64))
            self.assertFalse(sink.mayAsk(70000, 65536))
            if used:
                self.assertIsNone(source.cancelDone())
                source.targets[0].moving = 0
                self.assertEqual(source.completed(), 1)
                self.assertEqual(ends.send(ends.c.controlMessage(MID.RDMA_WR_COMPL, 64, b"\0\0\0\1")), 0)
            self.assertIs(source.cancelDone(), due)
            if due:
                back = ends.send(ends.c.controlMessage(MID.SINK_CANCEL_ACK, 64))
                self.assertEqual(back, list(range(used, places)))
            if places:
                self.assertFalse(sink.retracting)

    def test_cancelCrossesData(self) -> None:
        """
        Data that uses up the last place ends its cancel too: no SinkCancelAck will come.
        """
        ends = Ends().pipelined()
        ends.answer(ends.s.sinkAvailable("p", 70000, 3, 4, 64))
        header = ends.c.header(1, 64)
        cancel = ends.s.cancelPlaces(64)
        ends.send(header, b"x")
        ends.answer(cancel)
        self.assertIsNone(ends.c.zero.source.cancelDone())
        self.assertTrue(ends.s.zero.sink.mayAsk(70000, 65536))

    def test_tooMuchWritten(self) -> None:
        """
        More than a place has is an error.
        """
        ends = Ends().pipelined()
        ends.answer(ends.s.sinkAvailable("p", 70000, 3, 4, 64))
        with self.assertRaises(SDPError):
            ends.send(ends.c.controlMessage(MID.RDMA_WR_COMPL, 64, (70001).to_bytes(4, "big")))

    def test_mayAsk(self) -> None:
        """
        A place is offered in Pipelined mode only, if it holds a whole message, up to
        MaxAdverts, and not while the peer offers something itself.
        """
        sink = Ends(2).s.zero.sink
        self.assertFalse(sink.mayAsk(65536, 65536))
        ends = Ends(2).pipelined()
        sink = ends.s.zero.sink
        self.assertFalse(sink.mayAsk(65535, 65536))
        for _ in range(2):
            self.assertTrue(sink.mayAsk(65536, 65536))
            ends.s.sinkAvailable("p", 70000, 3, 4, 64)
        self.assertFalse(sink.mayAsk(65536, 65536))
        ends = Ends(2).pipelined()
        ends.send(ends.c.sourceAvailable("a", 100, 1, 2, b"", 64))
        self.assertFalse(ends.s.zero.sink.mayAsk(65536, 65536))

    def test_crossesChangesOfMode(self) -> None:
        """
        A place that crosses any changes of mode and data is void, and the counts agree after.
        """
        for seed in range(300):
            draw = random.Random(seed)
            ends = Ends(16).pipelined()
            c, s = ends.c, ends.s
            down: deque[bytes] = deque()
            up: deque[bytes] = deque()
            for _ in range(60):
                step = draw.randrange(6)
                if step == 0 and not c.zero.source.offers:
                    header = c.header(1, 64)
                    if header is not None:
                        down.append(header + b"x")
                elif step == 1:
                    mode = c.zero.source.mode
                    message = c.changeMode(COMBINE if mode is Mode.PIPELINED else PIPELINE, 64)
                    if message is not None:
                        down.append(message)
                elif step == 2 and s.zero.sink.mayAsk(65536, 65536):
                    message = s.sinkAvailable("p", 70000, 3, 4, 64)
                    if message is not None:
                        up.append(message)
                elif step == 3 and down:
                    give(s, down.popleft())
                elif step == 4 and up:
                    give(c, up.popleft())
                elif step == 5:
                    for machine, way in ((c, down), (s, up)):
                        message = machine.update(64)
                        if message is not None:
                            way.append(message)
            while down:
                give(s, down.popleft())
            while up:
                give(c, up.popleft())
            self.assertEqual(c.zero.source.discarded, s.zero.sink.discarded, seed)
            self.assertEqual(len(c.zero.source.targets), len(s.zero.sink.places), seed)


class BoundTests(SynchronousTestCase):
    """
    Bounds on a peer's advertisements.
    """

    def test_adverts(self) -> None:
        """
        More SrcAvails or SinkAvails than our MaxAdverts are an error.
        """
        ends = Ends(255).pipelined()
        ends.c.limit = ends.s.limit = 1000
        for k in range(limits.SDP_ADVERTS):
            ends.send(ends.c.sourceAvailable(k, 100, 1, 2, b"", 64))
        with self.assertRaises(SDPError) as caught:
            ends.send(ends.c.sourceAvailable("x", 100, 1, 2, b"", 64))
        self.assertIn(f"more than {limits.SDP_ADVERTS} SrcAvails", str(caught.exception))
        ends = Ends(255).pipelined()
        ends.c.limit = ends.s.limit = 1000
        for k in range(limits.SDP_ADVERTS):
            ends.answer(ends.s.sinkAvailable(k, 70000, 1, 2, 64))
        with self.assertRaises(SDPError) as caught:
            ends.answer(ends.s.sinkAvailable("x", 70000, 1, 2, 64))
        self.assertIn(f"more than {limits.SDP_ADVERTS} SinkAvails", str(caught.exception))

    def test_credits(self) -> None:
        """
        Advertisements and Data need three credits, control messages two, an update one (CA4-82).
        """
        for credits in range(5):

            def machine(credits: int = credits) -> ZeroCopyMachine:
                made = opened()
                made.sequence = 7
                made.limit = 7 + credits
                made.zero.source.mode = made.zero.sink.mode = Mode.PIPELINED
                return made

            three = credits >= 3
            self.assertIs(machine().header(1, 64) is not None, three)
            self.assertIs(machine().urgentHeader(64) is not None, three)
            self.assertIs(machine().sourceAvailable("a", 100, 1, 2, b"", 64) is not None, three)
            self.assertIs(machine().sinkAvailable("p", 70000, 1, 2, 64) is not None, three)
            for call in (machine().cancelOffers, machine().cancelPlaces):
                self.assertIs(call(64) is not None, credits >= 2)
            self.assertIs(machine().changeMode(COMBINE, 64) is not None, credits >= 2)
            self.assertIs(machine().update(70) is not None, credits >= 1)

    def test_nothingSpentInVain(self) -> None:
        """
        A message that cannot be sent gets no number and changes nothing.
        """
        machine = opened()
        machine.limit = 0
        machine.sourceAvailable("a", 100, 1, 2, b"x", 64)
        machine.changeMode(PIPELINE, 64)
        machine.cancelOffers(64)
        self.assertEqual((machine.sequence, len(machine.zero.source.offers)), (0, 0))
        self.assertIs(machine.zero.source.mode, Mode.COMBINED)
        self.assertIsNone(machine.zero.source.cancelling)


class UrgentTests(SynchronousTestCase):
    """
    Flags of urgent data.
    """

    def test_notice(self) -> None:
        """
        The next message says that urgent data comes, once; its own says both.
        """
        machine = opened()
        notice = machine.notice(64)
        assert notice is not None
        self.assertEqual((notice[0], notice[1], len(notice)), (MID.DATA, Flags.OOB_PEND, 16))
        header = machine.header(5, 64)
        assert header is not None
        self.assertEqual(header[1], 0)
        urgent = machine.urgentHeader(64)
        assert urgent is not None
        self.assertEqual(urgent[1], Flags.OOB_PEND | Flags.OOB_PRES)

    def test_noticeLater(self) -> None:
        """
        Without credits the next message of any kind says it.
        """
        machine = opened()
        machine.limit = 2
        self.assertIsNone(machine.notice(64))
        message = machine.controlMessage(MID.SEND_SM, 64)
        assert message is not None
        self.assertEqual(message[1], Flags.OOB_PEND)
