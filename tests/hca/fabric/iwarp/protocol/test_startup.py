"""
The startup of MPA: the table, and both sides' frames, literally.
"""

from __future__ import annotations

from typing import Any

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from tests.hca.base.machines import MachineTestsMixin
from tests.hca.fabric.iwarp.protocol.test_mpa import REPLY, REQUEST, withoutLibrary
from twisted_ib.errors import LengthError
from twisted_ib.hca.fabric.iwarp.protocol.mpa import Depths, MPAErrorCode, StartupFrame
from twisted_ib.hca.fabric.iwarp.protocol.startup import (
    TRANSITIONS,
    Failed,
    Initiator,
    Input,
    Rejected,
    Replied,
    Requested,
    Responder,
    Startup,
    StartupOptions,
    State,
)

#: Neither CRC nor markers nor RTR nor reserved flags, as Linux siw.
PLAIN = StartupOptions(isPeerToPeer=False, largeFPDUs=False)


def take(startup: Startup, octets: bytes, now: float = 0.0) -> int:
    """
    @return: how many a machine takes.
    """
    return startup.received(bytearray(octets), 0, len(octets), now)


def requested(flags: int = 0x10, word: str = "00100010", options: StartupOptions = PLAIN) -> Responder:
    """
    @return: a responder that has received a Request of revision 2.
    """
    responder = Responder(options, 0.0)
    private = bytes.fromhex(word)
    take(responder, REQUEST + bytes((flags, 2, 0, len(private))) + private)
    return responder


def replied(options: StartupOptions, flags: int, word: str, private: bytes = b"") -> Initiator:
    """
    @return: an initiator that has received a Reply of revision 2.
    """
    initiator = Initiator(options)
    initiator.request(b"", 0.0)
    private = bytes.fromhex(word) + private
    take(initiator, REPLY + bytes((flags, 2, 0, len(private))) + private)
    return initiator


class TableTests(MachineTestsMixin, SynchronousTestCase):
    """
    Every state with every input.
    """

    machine = TRANSITIONS
    stateType, inputType = State, Input
    begins = (State.IDLE, State.AWAIT_REQUEST)

    def made(self, state: State) -> Any:
        """
        @return: a machine that came to a state by its methods.
        """
        if state in (State.IDLE, State.AWAIT_REPLY):
            initiator = Initiator(PLAIN)
            if state is State.AWAIT_REPLY:
                initiator.request(b"", 0.0)
            return initiator
        if state is State.AWAIT_REQUEST:
            return Responder(PLAIN, 0.0)
        responder = requested()
        if state in (State.AWAIT_FPDU, State.RDMA_MODE):
            responder.accept(b"", 1, 1, 1.0)
        if state is State.RDMA_MODE:
            responder.fpduReceived()
        elif state is State.REJECTED:
            responder.reject()
        elif state is State.FAILED:
            take(responder, b"x")
        return responder

    def feed(self, machine: Any, given: Input) -> None:
        """
        Give an input by the methods that there are for it; commands of the other side there are none.
        """
        isReply = isinstance(machine, Initiator)
        frame = StartupFrame(isReply, depths=Depths(0, 0), isRejected=given is Input.REJECTION)
        if given is Input.EXPIRED:
            machine.tick(127.0)
        elif given in (Input.REQUEST, Input.REPLY, Input.REJECTION):
            if isReply == (given is not Input.REQUEST):
                take(machine, frame.pack())
        elif given is Input.FAULT:
            take(machine, b"GET / HTTP/1.0")
        else:
            method, arguments = {
                Input.SEND_REQUEST: ("request", (b"", 0.0)),
                Input.ACCEPT: ("accept", (b"", 1, 1, 1.0)),
                Input.REJECT: ("reject", ()),
                Input.FPDU: ("fpduReceived", ()),
                Input.ACKNOWLEDGED: ("replyAcknowledged", ()),
            }[given]
            if hasattr(machine, method):
                output = getattr(machine, method)(*arguments)
                sends = given in (Input.SEND_REQUEST, Input.ACCEPT, Input.REJECT)
                took = (self.before, given) in TRANSITIONS
                self.assertEqual(bool(output), sends and took, (self.before, given))

    def check(self, state: State, given: Input) -> None:
        """
        An input leads to the state that the table says; one that is not in it changes nothing. A frame that
        comes too early is a fault.
        """
        machine = self.made(state)
        if state in (State.IDLE, State.AWAIT_REPLY, State.AWAIT_REQUEST):
            self.assertIsNone(machine.event)
        self.assertIs(machine.state, state)
        self.before = state
        self.feed(machine, given)
        expected = TRANSITIONS.get((state, given), state)
        if state is State.REQUEST_RECEIVED and given is Input.REQUEST:
            expected = State.FAILED
        self.assertIs(machine.state, expected, (state, given))
        waits = expected in (State.AWAIT_REPLY, State.AWAIT_REQUEST)
        self.assertEqual(machine.deadline is not None, waits, (state, given))


class InitiatorTests(SynchronousTestCase):
    """
    The side that asks.
    """

    def test_request(self) -> None:
        """
        The Request has the wishes.
        """
        for options, octets in (
            (PLAIN, "10 02 0006 0000 0000"),
            (StartupOptions(revision=1, largeFPDUs=False), "00 01 0002"),
            (evolve(PLAIN, crc=True, markers=True), "d0 02 0006 0000 0000"),
            (StartupOptions(readsIn=16, readsOut=1), "18 02 0006 8010 8001"),
            (evolve(PLAIN, isPeerToPeer=True, zeroSend=True, zeroRead=True), "10 02 0006 c000 c000"),
            # 0x3FFF is never sent.
            (evolve(PLAIN, readsIn=20000, readsOut=0x3FFF), "10 02 0006 3ffe 3ffe"),
        ):
            initiator = Initiator(options)
            self.assertEqual(initiator.request(b"pd", 5.0), REQUEST + bytes.fromhex(octets) + b"pd")
            self.assertEqual(initiator.deadline, 132.0)

    def test_tooLong(self) -> None:
        """
        Private data that is too long is refused, and a shorter one can follow.
        """
        initiator = Initiator(PLAIN)
        self.assertRaises(LengthError, initiator.request, bytes(509), 0.0)
        self.assertTrue(initiator.request(bytes(508), 0.0))

    def test_reply(self) -> None:
        """
        After the Reply, in any split, FPDUs may follow at once, in the same segment too.
        """
        reply = REPLY + bytes.fromhex("10 02 0006 0001 0001") + b"ok"
        for split in range(len(reply)):
            initiator = Initiator(evolve(PLAIN, readsIn=1, readsOut=1))
            initiator.request(b"", 0.0)
            self.assertEqual(take(initiator, reply[:split]), 0)
            self.assertIsNone(initiator.event)
            self.assertEqual(
                initiator.received(b"##" + reply + b"fpdu", 2, len(reply) + 6, 1.0), len(reply) + 2
            )
            assert isinstance(initiator.event, Replied)
            self.assertEqual(initiator.event.frame.privateData, b"ok")
            self.assertEqual((initiator.ird, initiator.ord, initiator.rtr), (1, 1, None))
            self.assertIs(initiator.state, State.RDMA_MODE)
            self.assertFalse(initiator.holds)
            # They are no longer the startup's.
            self.assertEqual(take(initiator, b"fpdu"), 0)
            self.assertIsNone(initiator.event)

    def test_depths(self) -> None:
        """
        The peer's IRD bounds our ORD; its ORD must not be larger than our IRD. 0x3FFF leaves ours as it is.
        """
        options = evolve(PLAIN, readsIn=8, readsOut=4)
        for word, depths in (
            ("0004 0008", (8, 4)),
            ("0003 0001", (8, 3)),
            ("0000 0000", (8, 0)),
            ("0080 0000", (8, 4)),
            ("3fff 3fff", (8, 4)),
        ):
            initiator = replied(options, 0x10, word)
            self.assertIsInstance(initiator.event, Replied)
            self.assertEqual((initiator.ird, initiator.ord), depths)
        event = replied(options, 0x10, "0004 0009").event
        assert isinstance(event, Failed)
        self.assertEqual(event.code, MPAErrorCode.INSUFFICIENT_IRD)
        self.assertIn("9 RDMA Reads at once; 8 are possible here", event.reason)

    def test_readyToReceive(self) -> None:
        """
        The responder's choice among the offered messages is the RTR; without A there is none; another is a
        fault.
        """
        options = StartupOptions(readsIn=1, readsOut=1, zeroRead=True)
        for word, rtr in (
            ("8001 8001", "write"),
            ("8001 4001", "read"),
            ("8001 c001", "write"),
            ("0001 0001", None),
        ):
            initiator = replied(options, 0x10, word)
            self.assertIsInstance(initiator.event, Replied)
            self.assertEqual(initiator.rtr, rtr)
        self.assertEqual(replied(evolve(options, zeroSend=True), 0x10, "c001 0001").rtr, "send")
        for word in ("c001 0001", "8001 0001"):
            event = replied(options, 0x10, word).event
            assert isinstance(event, Failed)
            self.assertEqual(event.code, MPAErrorCode.NO_MATCHING_RTR)
        # An A that was not asked for means nothing.
        self.assertIsNone(replied(evolve(options, isPeerToPeer=False), 0x10, "8001 8001").rtr)

    def test_format(self) -> None:
        """
        A Reply repeats the Request's revision and flag S.
        """
        for options, octets in (
            (PLAIN, "00 01 0000"),
            (PLAIN, "00 02 0000"),
            (evolve(PLAIN, revision=1), "10 02 0004 0000 0000"),
        ):
            initiator = Initiator(options)
            initiator.request(b"", 0.0)
            take(initiator, REPLY + bytes.fromhex(octets))
            assert isinstance(initiator.event, Failed)
            self.assertEqual(initiator.event.code, MPAErrorCode.STARTUP_FRAME)
        initiator = Initiator(evolve(PLAIN, revision=1, readsIn=2, readsOut=3))
        initiator.request(b"", 0.0)
        take(initiator, REPLY + bytes.fromhex("00 01 0000"))
        self.assertIsInstance(initiator.event, Replied)
        self.assertEqual((initiator.ird, initiator.ord), (2, 3))

    def test_rejected(self) -> None:
        """
        A Reply with flag R is the user's, of either revision.
        """
        event = replied(PLAIN, 0x30, "0000 0000", b"no").event
        assert isinstance(event, Rejected)
        self.assertEqual(event.frame.privateData, b"no")
        initiator = Initiator(PLAIN)
        initiator.request(b"", 0.0)
        take(initiator, REPLY + bytes.fromhex("20 01 0002") + b"v1")
        assert isinstance(initiator.event, Rejected)
        self.assertEqual(initiator.event.frame.privateData, b"v1")

    def test_malformed(self) -> None:
        """
        What is no Reply fails with MPA's code, as early as it shows.
        """
        initiator = Initiator(PLAIN)
        initiator.request(b"", 0.0)
        take(initiator, b"MPA ID Req")
        assert isinstance(initiator.event, Failed)
        self.assertEqual(initiator.event.code, MPAErrorCode.STARTUP_FRAME)

    def test_expired(self) -> None:
        """
        A Reply that is not complete after 127 seconds is none.
        """
        initiator = Initiator(PLAIN)
        initiator.request(b"", 3.0)
        take(initiator, REPLY, 12.0)
        initiator.tick(129.9)
        self.assertIsNone(initiator.event)
        initiator.tick(130.0)
        late = Failed("the peer has sent no MPA Reply within 127 seconds", isLate=True)
        self.assertEqual(initiator.event, late)


class ResponderTests(SynchronousTestCase):
    """
    The side that answers.
    """

    def test_accept(self) -> None:
        """
        The Reply has the Request's revision and flag S, A, one of the messages offered, and the depths.
        """
        for request, reply, ird, ord, rtr in (
            ("00 01 0000", "00 01 0002", 4, 4, None),
            ("00 02 0000", "00 02 0002", 4, 4, None),
            ("10 02 0004 0010 0010", "10 02 0006 0004 0004", 4, 4, None),
            ("10 02 0004 0001 0001", "10 02 0006 0004 0001", 4, 1, None),
            ("10 02 0004 3fff 3fff", "10 02 0006 0004 0004", 4, 4, None),
            ("10 02 0004 c010 c010", "10 02 0006 8004 8004", 4, 4, "write"),
            ("10 02 0004 c010 4010", "10 02 0006 8004 4004", 4, 4, "read"),
            ("10 02 0004 c010 0010", "10 02 0006 c004 0004", 4, 4, "send"),
            ("10 02 0004 8010 0010", "10 02 0006 8004 8004", 4, 4, "write"),
            # Offers without A are none.
            ("10 02 0004 4010 c010", "10 02 0006 0004 0004", 4, 4, None),
        ):
            responder = Responder(PLAIN, 0.0)
            octets = REQUEST + bytes.fromhex(request)
            self.assertEqual(take(responder, octets), len(octets))
            self.assertIsInstance(responder.event, Requested)
            self.assertEqual(responder.accept(b"ok", 4, 4, 1.0), REPLY + bytes.fromhex(reply) + b"ok")
            self.assertEqual((responder.ird, responder.ord, responder.rtr), (ird, ord, rtr))

    def test_ownLimits(self) -> None:
        """
        0x3FFF is never sent; a zero-length Read needs an IRD of one.
        """
        reply = requested(word="3fff 3fff").accept(b"", 20000, 0x3FFF, 0.0)
        self.assertEqual(reply, REPLY + bytes.fromhex("10 02 0004 3ffe 3ffe"))
        reply = requested(word="8000 4001").accept(b"", 0, 0, 0.0)
        self.assertEqual(reply, REPLY + bytes.fromhex("10 02 0004 8001 4000"))

    def test_flags(self) -> None:
        """
        CRCs are used if either side wants them, markers towards the side that does; long FPDUs if both.
        """
        both = evolve(PLAIN, markers=True, largeFPDUs=True)
        for options, flags, reply, agreed in (
            (PLAIN, 0x10, 0x10, (False, False, False, False)),
            (PLAIN, 0x50, 0x50, (True, False, False, False)),
            (evolve(PLAIN, crc=True), 0x10, 0x50, (True, False, False, False)),
            (PLAIN, 0x18, 0x10, (False, False, False, False)),
            (both, 0x10, 0x90, (False, True, False, False)),
            (both, 0x98, 0x98, (False, True, True, True)),
        ):
            responder = requested(flags, options=options)
            self.assertEqual(responder.accept(b"", 1, 1, 0.0)[16], reply)
            crc, markersIn, _, large = agreed
            found = responder.crc, responder.markersIn, responder.markersOut, responder.largeFPDUs
            self.assertEqual(found, agreed)
            # The initiator's view of the same exchange.
            asked = evolve(PLAIN, crc=flags & 0x40 > 0, markers=True, largeFPDUs=flags & 8 > 0)
            initiator = replied(asked, reply, "0001 0001")
            self.assertEqual((initiator.crc, initiator.largeFPDUs), (crc, large))
            self.assertEqual((initiator.markersOut, initiator.markersIn), (markersIn, True))

    def test_ownCRC(self) -> None:
        """
        An initiator's CRC holds though the Reply does not repeat it (RFC 5044 section 7.1.1).
        """
        self.assertTrue(replied(evolve(PLAIN, crc=True), 0x10, "0000 0000").crc)

    def test_markersRefused(self) -> None:
        """
        Without the option, markers are refused: by a Reply with flag R, or by the initiator's end.
        """
        event = requested(0x90).event
        assert isinstance(event, Failed)
        self.assertEqual(event.output, REPLY + bytes.fromhex("30 02 0004 0000 0000"))
        self.assertIn("markers", event.reason)
        event = replied(PLAIN, 0x90, "0000 0000").event
        assert isinstance(event, Failed)
        self.assertEqual((event.output, event.code), (b"", None))

    def test_withoutLibrary(self) -> None:
        """
        Without google_crc32c no CRC is offered, and a peer that wants one is refused by name.
        """
        withoutLibrary(self)
        options = evolve(PLAIN, crc=True)
        self.assertEqual(Initiator(options).request(b"", 0.0)[16], 0x10)
        self.assertEqual(requested(options=options).accept(b"", 1, 1, 0.0)[16], 0x10)
        event = requested(0x50).event
        assert isinstance(event, Failed)
        self.assertEqual(event.output, REPLY + bytes.fromhex("30 02 0004 0000 0000"))
        self.assertIn("pip install 'twisted-ib[iwarp]'", event.reason)
        event = replied(PLAIN, 0x50, "0000 0000").event
        assert isinstance(event, Failed)
        self.assertIn("pip install 'twisted-ib[iwarp]'", event.reason)

    def test_reject(self) -> None:
        """
        A refusal has flag R and the user's private data, and ends.
        """
        responder = requested(0x50)
        self.assertEqual(responder.reject(b"no"), REPLY + bytes.fromhex("70 02 0006 0000 0000") + b"no")
        self.assertEqual(responder.accept(b"", 1, 1, 0.0), b"")
        responder = Responder(PLAIN, 0.0)
        take(responder, REQUEST + bytes.fromhex("00 01 0000"))
        self.assertEqual(responder.reject(), REPLY + bytes.fromhex("20 01 0000"))

    def test_tooLong(self) -> None:
        """
        Private data that is too long is refused, and a shorter one can follow.
        """
        responder = requested()
        self.assertRaises(LengthError, responder.reject, bytes(509))
        self.assertRaises(LengthError, responder.accept, bytes(509), 1, 1, 0.0)
        self.assertTrue(responder.accept(bytes(508), 1, 1, 0.0))

    def test_early(self) -> None:
        """
        Octets behind the Request and before the Reply end the connection, in the same segment or later.
        """
        responder = Responder(PLAIN, 0.0)
        take(responder, REQUEST + bytes.fromhex("00 01 0000") + b"xy")
        self.assertEqual(
            responder.event, Failed("the peer has sent 2 octets more than its Request before the Reply")
        )
        responder = requested()
        take(responder, b"")
        self.assertIsNone(responder.event)
        take(responder, b"x")
        self.assertIsInstance(responder.event, Failed)

    def test_late(self) -> None:
        """
        A command that comes too late does nothing, and has no event.
        """
        for command, arguments in ((Responder.accept, (b"", 1, 1, 0.0)), (Responder.reject, ())):
            responder = requested()
            take(responder, b"x")
            self.assertIsInstance(responder.event, Failed)
            self.assertEqual(command(responder, *arguments), b"")
            self.assertIsNone(responder.event)
            self.assertIs(responder.state, State.FAILED)
        initiator = replied(PLAIN, 0x10, "0000 0000")
        self.assertEqual(initiator.request(b"", 0.0), b"")
        self.assertIsNone(initiator.event)

    def test_malformed(self) -> None:
        """
        What is no Request ends the connection, without an answer.
        """
        responder = Responder(PLAIN, 0.0)
        take(responder, b"\x16\x03\x01")
        assert isinstance(responder.event, Failed)
        self.assertEqual((responder.event.output, responder.event.code), (b"", None))

    def test_expired(self) -> None:
        """
        A Request that is not complete after 5 seconds is none, however it drips; its user has time.
        """
        responder = Responder(PLAIN, 1.0)
        for octets in range(16):
            take(responder, REQUEST[:octets], 5.9)
        responder.tick(5.9)
        self.assertIsNone(responder.event)
        responder.tick(6.0)
        late = Failed("the peer has sent no MPA Request within 5 seconds", isLate=True)
        self.assertEqual(responder.event, late)
        responder = requested()
        responder.tick(100.0)
        self.assertTrue(responder.accept(b"", 1, 1, 100.0))

    def test_hold(self) -> None:
        """
        The responder's FPDUs wait for the initiator's first one; where none was announced, in revision 2, the
        Reply's acknowledgement is enough.
        """
        for octets, releases in (
            ("00 01 0000", False),
            ("00 02 0000", False),
            ("10 02 0004 8000 8000", False),
            ("10 02 0004 0000 0000", True),
        ):
            for acknowledged in (False, True):
                responder = Responder(PLAIN, 0.0)
                take(responder, REQUEST + bytes.fromhex(octets))
                self.assertFalse(responder.holds)
                responder.accept(b"", 1, 1, 0.0)
                self.assertTrue(responder.holds)
                self.assertEqual(responder.releasesWhenQuiet, releases)
                if acknowledged:
                    responder.replyAcknowledged()
                    self.assertEqual(responder.holds, not releases)
                    self.assertEqual(responder.state is State.RDMA_MODE, releases)
                responder.fpduReceived()
                self.assertFalse(responder.holds)
                self.assertIs(responder.state, State.RDMA_MODE)


class BothTests(SynchronousTestCase):
    """
    Our two sides with each other.
    """

    def test_both(self) -> None:
        """
        They agree, with each option.
        """
        for revision in (1, 2):
            for crc in (False, True):
                for markers in (False, True):
                    options = StartupOptions(revision, crc, markers, 8, 4)
                    initiator, responder = Initiator(options), Responder(options, 0.0)
                    take(responder, initiator.request(b"one", 0.0))
                    self.assertEqual(responder.frame and responder.frame.privateData, b"one")
                    take(initiator, responder.accept(b"two", 2, 16, 0.0))
                    self.assertEqual(initiator.frame and initiator.frame.privateData, b"two")
                    rtr = "write" if revision == 2 else None
                    for each in (initiator, responder):
                        self.assertEqual(
                            (each.crc, each.markersIn, each.markersOut, each.largeFPDUs, each.rtr),
                            (crc, markers, markers, True, rtr),
                        )
                    expected = (8, 2, 2, 8) if revision == 2 else (8, 4, 2, 16)
                    self.assertEqual((initiator.ird, initiator.ord, responder.ird, responder.ord), expected)
