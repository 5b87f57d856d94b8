"""
The worked examples, in both directions, and their headers as values.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.fabric.iwarp.protocol.examples import (
    EXAMPLES,
    ReadRequestHeader,
    TaggedHeader,
    UntaggedHeader,
    fpdu,
    ulpdu,
)
from tests.hca.fabric.iwarp.protocol.rdmap import BASE, KEY, End
from twisted_ib.hca.base.operation import SOLICITED
from twisted_ib.hca.fabric.iwarp.protocol.ddp import (
    READ_REQUEST as READ_REQUEST_LAYOUT,
)
from twisted_ib.hca.fabric.iwarp.protocol.ddp import (
    TAGGED,
    UNTAGGED,
    Opcode,
)
from twisted_ib.hca.fabric.iwarp.protocol.terminate import (
    CRC_ERROR,
    TAGGED_BASE_BOUNDS,
    TAGGED_INVALID_STAG,
    UNEXPECTED_OPCODE,
    TerminateMessage,
    TerminationError,
)
from twisted_ib.hca.wire.headers import INVALIDATE, RETH
from twisted_ib.hca.wire.opcodes import (
    READ_REQUEST,
    READ_RESPONSE_ONLY,
    SEND_FIRST,
    SEND_LAST,
    SEND_ONLY,
    SEND_ONLY_INVALIDATE,
    WRITE_ONLY,
)

INVALIDATED = INVALIDATE.pack(0x11223344)
MEMORY = RETH.pack(BASE, KEY, 4)
#: What is posted, in order: opcode, header, payload, the FPDUs.
POSTED = (
    (SEND_ONLY, b"", b"hi!", ("Send hi!",)),
    (SEND_ONLY, b"ab", [b"c", memoryview(b"d")], ("Send abcd",)),
    (SEND_ONLY, b"", b"", ("Send empty",)),
    (SEND_ONLY_INVALIDATE, INVALIDATED, b"abcd", ("SendInv",)),
    (SEND_ONLY | SOLICITED, b"", b"abcd", ("SendSE",)),
    (SEND_ONLY_INVALIDATE | SOLICITED, INVALIDATED, [b"ab", b"cd"], ("SendSEInv",)),
    (SEND_ONLY, b"ABC", [b"DEF", b"GHIJKL"], ("Send of two, first", "Send of two, last")),
    (WRITE_ONLY, MEMORY, b"data", ("Write data",)),
)
#: What is delivered, in order.
DELIVERED = [
    (SEND_ONLY, b"hi!"),
    (SEND_ONLY, b"abcd"),
    (SEND_ONLY, b""),
    (SEND_ONLY_INVALIDATE, INVALIDATED + b"abcd"),
    (SEND_ONLY | SOLICITED, b"abcd"),
    (SEND_ONLY_INVALIDATE | SOLICITED, INVALIDATED + b"abcd"),
    (SEND_FIRST, b"ABCDEFGH"),
    (SEND_LAST, b"IJKL"),
    (WRITE_ONLY, MEMORY + b"data"),
]


class ExampleTests(SynchronousTestCase):
    """
    Literal octets.
    """

    def test_sent(self) -> None:
        """
        Records are sent literally so.
        """
        end = End(crc=True, largest=26)
        for opcode, header, payload, names in POSTED:
            self.assertTrue(
                end.sender.post(
                    end.out,
                    opcode,
                    header,
                    payload,
                    len(b"".join(payload)) if isinstance(payload, list) else len(payload),
                )
            )
            self.assertEqual(end.sent(), b"".join(map(fpdu, names)), names)

    def test_received(self) -> None:
        """
        The octets are delivered as records.
        """
        end = End(crc=True)
        for *_, names in POSTED:
            for name in names:
                self.assertEqual(end.received(fpdu(name)), 0)
        self.assertEqual(end.records, DELIVERED)

    def test_withoutCRC(self) -> None:
        """
        The same without a CRC.
        """
        end = End()
        end.sender.post(end.out, SEND_ONLY, b"", b"hey", 3)
        octets = end.sent()
        self.assertEqual(octets, fpdu("Send hey, no CRC"))
        end.received(octets)
        self.assertEqual(end.records, [(SEND_ONLY, b"hey")])

    def test_read(self) -> None:
        """
        A Read Request is delivered with the memory to read; the Read Response repeats its sink.  Our own
        sinks begin at 0.
        """
        end = End(crc=True)
        end.received(fpdu("Read Request"))
        self.assertEqual(end.records, [(READ_REQUEST, MEMORY)])
        self.assertEqual(list(end.bookkeeping.inbound), [ulpdu("Read Request")])
        end.sender.post(end.out, READ_RESPONSE_ONLY, b"", b"data", 4)
        self.assertEqual(end.sent(), fpdu("Read Response"))
        self.assertFalse(end.bookkeeping.inbound)
        end = End()
        end.sender.post(end.out, READ_REQUEST, MEMORY, b"", 0)
        expected = bytearray(ulpdu("Read Request"))
        expected[18:30] = bytes.fromhex("0000015a 0000000000000000")
        self.assertEqual(end.sent(), b"\0\x2e" + expected + bytes(4))
        response = TaggedHeader(Opcode.READ_RESPONSE, True, 0x0000015A, 0).pack() + b"data"
        end.received(b"\0\x12" + response + bytes(4))
        self.assertEqual(end.records, [(READ_RESPONSE_ONLY, b"data")])

    def test_otherSink(self) -> None:
        """
        A Read Response to another sink than ours is refused.
        """
        for key, termination in ((0x02, TAGGED_INVALID_STAG), (0x03, TAGGED_BASE_BOUNDS)):
            end = End(crc=True, key=key)
            for _ in range(0x0101):
                end.bookkeeping.responded(end.bookkeeping.ask(0), 0, 0, True)
            end.bookkeeping.ask(4)
            error = self.assertRaises(TerminationError, end.received, fpdu("Read Response"))
            self.assertEqual(error.termination, termination)

    def test_extensions(self) -> None:
        """
        The operations of RFC 7306 are refused by name.
        """
        for name, said in (
            ("Immediate", "untagged IMMEDIATE"),
            ("FetchAdd", "untagged ATOMIC_REQUEST"),
            ("CmpSwap", "untagged ATOMIC_REQUEST"),
            ("Atomic Response", "untagged ATOMIC_RESPONSE"),
        ):
            error = self.assertRaises(TerminationError, End(crc=True).received, fpdu(name))
            self.assertEqual(error.termination, UNEXPECTED_OPCODE)
            self.assertIn(said, str(error))

    def test_ready(self) -> None:
        """
        The ready-to-receive message as Linux siw sends it.
        """
        for crc, name in ((False, "RTR write, no CRC"), (True, "RTR write")):
            end = End(crc)
            end.sender.readyToReceive(end.out, "write")
            self.assertEqual(end.sent(), fpdu(name))
            end = End(crc, ready="write")
            end.received(fpdu(name))
            self.assertEqual((end.ready, end.records), (1, []))

    def test_terminate(self) -> None:
        """
        Terminate, with the header of a Write and without.
        """
        write = bytes.fromhex("c140dead00010000000000000010") + b"data"
        end = End(crc=True)
        self.assertTrue(end.sender.terminate(end.out, TAGGED_INVALID_STAG, b"??" + write, 2, 20))
        self.assertEqual(end.sent(), fpdu("Terminate tagged"))
        self.assertFalse(end.sender.terminate(end.out, CRC_ERROR))
        self.assertEqual(end.sent(), b"")
        end.received(fpdu("Terminate tagged"))
        expected = TerminateMessage(TAGGED_INVALID_STAG, 18, write[:14])
        self.assertEqual(end.terminations, [expected])
        end = End()
        end.sender.terminate(end.out, CRC_ERROR)
        self.assertEqual(end.sent(), fpdu("Terminate MPA, no CRC"))
        end.received(fpdu("Terminate MPA, no CRC"))
        self.assertEqual(end.terminations, [TerminateMessage(CRC_ERROR)])


class HeaderTests(SynchronousTestCase):
    """
    The headers as values.
    """

    def test_both(self) -> None:
        """
        Each example's headers are parsed and packed again.
        """
        for name in EXAMPLES:
            octets = ulpdu(name)
            kind = TaggedHeader if octets[0] & 0x80 else UntaggedHeader
            header = kind.parse(octets)
            self.assertEqual(header.pack(), octets[: len(header.pack())], name)
        octets = ulpdu("Read Request")
        request = ReadRequestHeader.parse(octets[18:])
        self.assertEqual(request, ReadRequestHeader(0x00010203, 0x1000, 4, KEY, BASE))
        self.assertEqual(request.pack(), octets[18:])
        self.assertEqual(UntaggedHeader.parse(octets), UntaggedHeader(Opcode.READ_REQUEST, True, 0, 1, 1, 0))
        write = TaggedHeader.parse(ulpdu("Write data"))
        self.assertEqual(write, TaggedHeader(Opcode.WRITE, True, KEY, BASE))

    def test_sizes(self) -> None:
        """
        The headers that are read and written without values have the sizes of those.
        """
        layouts = (TAGGED, UNTAGGED, READ_REQUEST_LAYOUT)
        kinds = (TaggedHeader, UntaggedHeader, ReadRequestHeader)
        self.assertEqual([each.size for each in layouts], [each.OCTETS for each in kinds])
