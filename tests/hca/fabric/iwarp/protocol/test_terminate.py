"""
Terminate: every row of the table, sent once and understood once.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.fabric.iwarp.protocol.examples import ulpdu
from tests.hca.fabric.iwarp.protocol.rdmap import End
from twisted_ib.hca.base.operation import RNR_EXHAUSTED
from twisted_ib.hca.fabric.iwarp.protocol import terminate
from twisted_ib.hca.fabric.iwarp.protocol.ddp import Opcode
from twisted_ib.hca.fabric.iwarp.protocol.terminate import (
    TERMINATIONS,
    Protection,
    TerminateMessage,
    Termination,
    TerminationError,
    syndromeOf,
    terminationOf,
)
from twisted_ib.hca.wire.headers import NAK_INVALID_REQUEST, NAK_REMOTE_ACCESS, NAK_REMOTE_OPERATIONAL, RNR

SEND, WRITE, READ = ulpdu("Send abcd"), ulpdu("Write data"), ulpdu("Read Request")

#: (layer, type): codes; and the flags and headers of a Terminate about a Send, a Write and a Read Request:
#: D is the DDP header and its length, R the Read Request as well.
ROWS = {
    (0, 0): ((0,), "", "", ""),
    (0, 1): ((0, 1, 2, 3, 4, 9, 255), "D", "D", "DR"),
    (0, 2): ((5, 6), "", "", ""),
    (0, 2, 0): ((7, 8, 9, 255), "D", "D", "DR"),
    (1, 0): ((0,), "D", "D", "D"),
    (1, 1): ((0, 1, 2, 3), "D", "D", "D"),
    (1, 1, 0): ((4,), "", "", ""),
    (1, 2): ((1, 2, 3, 4, 5), "D", "D", "D"),
    (1, 2, 0): ((6,), "", "", ""),
    (2, 0): ((1, 2, 3, 4, 5, 6, 7), "", "", ""),
}


class RowTests(SynchronousTestCase):
    """
    The table.
    """

    def test_everyRow(self) -> None:
        """
        Each error is sent literally, once, with the headers that belong to it, and understood at the other
        end, about each kind of message and about none.
        """
        seen = set()
        for (layer, etype, *_), (codes, *shapes) in ROWS.items():
            for code in codes:
                termination = Termination(layer, etype, code)
                seen.add(termination)
                for about, shape in ((b"", ""), *zip((SEND, WRITE, READ), shapes, strict=True)):
                    body, flags = b"", 0
                    if "D" in shape:
                        flags = 0xC000
                        body = len(about).to_bytes(2, "big") + about[: 14 if about is WRITE else 18]
                    if "R" in shape:
                        flags = 0xE000
                        body += about[18:]
                    body = bytes((layer << 4 | etype, code)) + flags.to_bytes(2, "big") + body
                    self.assertUnderstood(termination, about, body)
        self.assertEqual(seen, set(TERMINATIONS))

    def assertUnderstood(self, termination: Termination, about: bytes, body: bytes) -> None:
        """
        Send it and receive it.
        """
        sender, receiver = End(), End()
        self.assertTrue(sender.sender.terminate(sender.out, termination, about, 0, len(about)))
        octets = sender.sent()
        header = bytes.fromhex("4147 00000000 00000002 00000001 00000000")
        self.assertEqual(octets[2 : 20 + len(body)], header + body, termination.text)
        receiver.received(octets)
        [message] = receiver.terminations
        self.assertEqual(message.termination, termination)
        self.assertEqual(message.pack(), body)
        self.assertEqual(message.isOfRead, body[2] & 0x20 != 0)

    def test_text(self) -> None:
        """
        Each error has its own text, and its numbers; so have those that nobody knows.
        """
        texts = {each.text for each in TERMINATIONS}
        self.assertEqual(len(texts), len(TERMINATIONS))
        self.assertEqual(
            terminate.NO_BUFFER.text,
            "DDP: untagged buffer error: no receive is posted for the message (layer 1, type 2, code 2)",
        )
        self.assertEqual(
            Termination(9, 3, 77).text,
            "unknown layer: unknown error: unknown code (layer 9, type 3, code 77)",
        )

    def test_unknown(self) -> None:
        """
        An error that nobody knows is understood as that, and its message keeps its octets.
        """
        for octets in (b"\x93\x4d\0\0", b"\xff\xff\xc0\0\0\x12" + WRITE[:14]):
            message = TerminateMessage.parse(octets, 0, len(octets))
            self.assertNotIn(message.termination, TERMINATIONS)
            self.assertEqual(message.pack(), octets)

    def test_short(self) -> None:
        """
        Headers that are cut short are left out, whatever the flags say; fewer than 4 octets are an error.
        """
        for about in (WRITE, READ):
            whole = TerminateMessage.about(terminate.PROTECTION_BASE_BOUNDS, about, 0, len(about)).pack()
            for size in range(len(whole)):
                if size < 4:
                    self.assertRaises(TerminationError, TerminateMessage.parse, whole, 0, size)
                    continue
                message = TerminateMessage.parse(whole, 0, size)
                self.assertEqual(message.termination, terminate.PROTECTION_BASE_BOUNDS)
                self.assertFalse(message.isOfRead)
                self.assertEqual(message.header == b"", size < 6 + (14 if about is WRITE else 18))
        # A ULPDU that is shorter than its header has none to repeat.
        for octets in (b"\x41", SEND[:17], WRITE[:13]):
            message = TerminateMessage.about(terminate.DDP_CATASTROPHIC, octets, 0, len(octets))
            self.assertEqual(message, TerminateMessage(terminate.DDP_CATASTROPHIC))

    def test_siw(self) -> None:
        """
        Linux siw sets R for a Send, which has no Read Request header; D may come without M.
        """
        octets = b"\x01\x09\xe0\0\0\x04" + SEND[:18]
        self.assertFalse(TerminateMessage.parse(octets, 0, len(octets)).isOfRead)
        octets = b"\x01\x09\xe0\0\0\x04" + SEND
        self.assertFalse(TerminateMessage.parse(octets + bytes(28), 0, len(octets) + 28).isOfRead)
        message = TerminateMessage.parse(b"\x11\0\x40\0\0\0" + WRITE, 0, 20)
        self.assertEqual((message.length, message.header), (None, WRITE[:14]))
        # Without D nothing follows, whatever stands there.
        message = TerminateMessage.parse(b"\x11\0\0\0\0\0" + WRITE, 0, 20)
        self.assertEqual(message, TerminateMessage(terminate.TAGGED_INVALID_STAG))
        message = TerminateMessage.parse(b"\x11\0\x40\0\0\0" + WRITE, 0, 20)
        self.assertEqual(message.pack(), b"\x11\0\x40\0\0\0" + WRITE[:14])

    def test_linuxOrder(self) -> None:
        """
        Linux siw's own order of the bits is understood: the first one came from Linux 6.1, whose program was
        killed with a Send on the way.  Where no flag tells the order, the table of errors does.
        """
        octets = bytes.fromhex("010003000010414300000000000000000000005b00000000")
        message = TerminateMessage.parse(octets, 0, len(octets))
        self.assertEqual(message, TerminateMessage(terminate.DDP_CATASTROPHIC, 16, octets[6:]))
        for first, code, expected in (
            (0x02, 2, terminate.CRC_ERROR),
            (0x20, 2, terminate.CRC_ERROR),
            (0x20, 7, terminate.NO_MATCHING_RTR),
            (0x10, 0, terminate.DDP_CATASTROPHIC),
            (0x01, 0, terminate.PROTECTION_INVALID_STAG),
            (0x93, 0, Termination(9, 3, 0)),
        ):
            message = TerminateMessage.parse(bytes((first, code, 0, 0)), 0, 4)
            self.assertEqual(message, TerminateMessage(expected))


class SyndromeTests(SynchronousTestCase):
    """
    From a responder's syndrome to an error, and from an error to a syndrome.
    """

    def test_terminationOf(self) -> None:
        """
        The error depends on the operation, the syndrome, and what was wrong with the memory.
        """
        access, invalid = NAK_REMOTE_ACCESS, NAK_INVALID_REQUEST
        for opcode, syndrome, protection, expected in (
            (Opcode.WRITE, access, Protection.KEY, (1, 1, 0)),
            (Opcode.WRITE, access, Protection.BOUNDS, (1, 1, 1)),
            (Opcode.WRITE, access, Protection.RIGHTS, (1, 1, 0)),
            (Opcode.WRITE, access, Protection.ASSOCIATION, (1, 1, 2)),
            (Opcode.WRITE, invalid, None, (0, 2, 7)),
            (Opcode.READ_REQUEST, access, Protection.KEY, (0, 1, 0)),
            (Opcode.READ_REQUEST, access, Protection.BOUNDS, (0, 1, 1)),
            (Opcode.READ_REQUEST, access, Protection.RIGHTS, (0, 1, 2)),
            (Opcode.READ_REQUEST, access, Protection.ASSOCIATION, (0, 1, 3)),
            (Opcode.READ_REQUEST, invalid, None, (0, 2, 7)),
            (Opcode.SEND, RNR | 12, None, (1, 2, 2)),
            (Opcode.SEND, invalid, None, (1, 2, 5)),
            (Opcode.SEND_SOLICITED, NAK_REMOTE_OPERATIONAL, None, (1, 0, 0)),
            (Opcode.SEND, 0x40, None, (0, 2, 7)),
            (Opcode.SEND_INVALIDATE, 0, Protection.KEY, (0, 2, 9)),
            (Opcode.SEND_INVALIDATE, 0, Protection.ASSOCIATION, (0, 1, 9)),
            (Opcode.SEND_SOLICITED_INVALIDATE, 0, None, (0, 1, 9)),
        ):
            self.assertEqual(terminationOf(opcode, syndrome, protection), Termination(*expected))

    def test_syndromeOf(self) -> None:
        """
        A protection error is one of access; a message without a receive, or longer than it, has its own
        syndrome; all else is the peer's error.
        """
        found: dict[int, set[Termination]] = {}
        for each in TERMINATIONS:
            found.setdefault(syndromeOf(each), set()).add(each)
        self.assertEqual(found.pop(RNR_EXHAUSTED), {terminate.NO_BUFFER})
        self.assertEqual(found.pop(NAK_INVALID_REQUEST), {terminate.MESSAGE_TOO_LONG})
        self.assertEqual(
            {(each.layer, each.etype) for each in found.pop(NAK_REMOTE_ACCESS)}, {(0, 1), (1, 1)}
        )
        self.assertIn(terminate.TAGGED_VERSION, found.pop(NAK_REMOTE_OPERATIONAL))
        self.assertFalse(found)
