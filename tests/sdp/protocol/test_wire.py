"""
Tests for L{twisted_ib.sdp.protocol.wire}: literal bytes both ways.

The bytes are those of a conversation that Wireshark's dissector understood.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib import limits
from twisted_ib.errors import HCAError, SDPWireError, WireError
from twisted_ib.sdp.protocol import wire

HELLO = bytes.fromhex(
    "000000400000005c0000000000000000 22400001 00008010 00008010 9c400000"
    "000000000000000000000000c0000201 000000000000000000000000c0000202" + "00" * 28
)
HELLO_ACK = bytes.fromhex(
    "01000040000000c40000000000000000 22000001 00008010" + "00" * 172,
)

#: Each message of the conversation with what it says.
VECTORS: list[tuple[str, wire.SDPMessage]] = [
    (
        HELLO.hex(),
        wire.Hello(
            buffers=64,
            desiredReceiveBytes=0x8010,
            localReceiveBytes=0x8010,
            localPort=40000,
            sourceAddress=bytes(12) + b"\xc0\x00\x02\x01",
            destinationAddress=bytes(12) + b"\xc0\x00\x02\x02",
        ),
    ),
    (HELLO_ACK.hex(), wire.HelloAck(buffers=64, actualReceiveBytes=0x8010)),
    (
        "ff00004000000015000000010000000068656c6c6f",
        wire.Data(buffers=64, sequence=1, payload=b"hello"),
    ),
    (
        "ff00003f000000100000000100000001",
        wire.Data(buffers=63, sequence=1, acknowledged=1),
    ),
    (
        "fe00003f000000210000000200000001 00010000 00001234 0000000000010000 41",
        wire.SrcAvail(
            buffers=63,
            sequence=2,
            acknowledged=1,
            length=0x10000,
            rkey=0x1234,
            address=0x10000,
            payload=b"A",
        ),
    ),
    (
        "0604003f000000140000000200000002 0000ffff",
        wire.RdmaRdCompl(
            buffers=63,
            sequence=2,
            acknowledged=2,
            flags=wire.Flags.REQ_PIPE,
            length=65535,
        ),
    ),
    (
        "0700003f000000140000000300000002 20000000",
        wire.ModeChange(
            buffers=63,
            sequence=3,
            acknowledged=2,
            transition=wire.Transition.COMBINED_TO_PIPELINED,
        ),
    ),
    (
        "fd00003f000000240000000300000003 00010000 00005678 0000000000020000 00000002",
        wire.SinkAvail(
            buffers=63,
            sequence=3,
            acknowledged=3,
            length=0x10000,
            rkey=0x5678,
            address=0x20000,
            nonDiscards=2,
        ),
    ),
    (
        "0500003f000000140000000400000003 00010000",
        wire.RdmaWrCompl(buffers=63, sequence=4, acknowledged=3, length=0x10000),
    ),
    (
        "0900003f000000100000000500000004",
        wire.SinkAvailCancel(buffers=63, sequence=5, acknowledged=4),
    ),
    (
        "0a00003f000000100000000500000005",
        wire.SinkCancelAck(buffers=63, sequence=5, acknowledged=5),
    ),
    (
        "fe00003f000000200000000600000005 00010000 00001234 0000000000040000",
        wire.SrcAvail(
            buffers=63,
            sequence=6,
            acknowledged=5,
            length=0x10000,
            rkey=0x1234,
            address=0x40000,
        ),
    ),
    (
        "0800003f000000100000000700000005",
        wire.SrcAvailCancel(buffers=63, sequence=7, acknowledged=5),
    ),
    (
        "0400003f000000100000000600000007",
        wire.SendSm(buffers=63, sequence=6, acknowledged=7),
    ),
    (
        "0700003f000000140000000800000006 10000000",
        wire.ModeChange(
            buffers=63,
            sequence=8,
            acknowledged=6,
            transition=wire.Transition.PIPELINED_TO_COMBINED,
        ),
    ),
    (
        "0b00003f000000140000000900000006 00008010",
        wire.ChRcvBuf(buffers=63, sequence=9, acknowledged=6, receiveBytes=0x8010),
    ),
    (
        "0c00003f000000140000000700000009 00008010",
        wire.ChRcvBufAck(buffers=63, sequence=7, acknowledged=9, receiveBytes=0x8010),
    ),
    (
        "ff03003f000000110000000a00000007 21",
        wire.Data(
            buffers=63,
            sequence=10,
            acknowledged=7,
            flags=wire.Flags.OOB_PRES | wire.Flags.OOB_PEND,
            payload=b"!",
        ),
    ),
    (
        "0d00003f000000180000000b00000007 0000000000011389",
        wire.SuspComm(buffers=63, sequence=11, acknowledged=7, serviceID=0x11389),
    ),
    (
        "0e00003f00000010000000080000000b",
        wire.SuspCommAck(buffers=63, sequence=8, acknowledged=11),
    ),
    (
        "0200003f000000100000000c00000008",
        wire.DisConn(buffers=63, sequence=12, acknowledged=8),
    ),
    (
        "0300003f000000100000000d00000008",
        wire.AbortConn(buffers=63, sequence=13, acknowledged=8),
    ),
]

#: Bits of each message's body that nobody may rely on.
RESERVED: list[tuple[type[wire.SDPMessage], bytes, list[int]]] = [
    (wire.Hello, HELLO, [18, 30, 31, 64, 65, *range(68, 92)]),
    (wire.HelloAck, HELLO_ACK, [18, *range(24, 196)]),
    (
        wire.ModeChange,
        bytes.fromhex("0700003f000000140000000300000002 20000000"),
        [17, 18, 19],
    ),
]


def changed(packed: bytes, offset: int, value: int) -> bytes:
    """
    Give C{packed} with one byte replaced.
    """
    return packed[:offset] + bytes([value]) + packed[offset + 1 :]


def parseMessage(buffer: bytes | memoryview, start: int = 0, stop: int | None = None) -> wire.SDPMessage:
    """
    Parse a message of any class.
    """
    kind = wire.byMID.get(buffer[start]) if 0 <= start < len(buffer) else wire.Data
    if kind is None:
        raise SDPWireError(f"message id 0x{buffer[start]:02x} is unknown")
    return kind.parse(buffer, start, stop)


def withLength(packed: bytes) -> bytes:
    """
    Give C{packed} with a Len that agrees with it.
    """
    return packed[:4] + len(packed).to_bytes(4, "big") + packed[8:]


class VectorTests(SynchronousTestCase):
    """
    Tests for what all messages have in common.
    """

    def test_everyMessageHasAVector(self) -> None:
        """
        The conversation holds each of the eighteen messages.
        """
        self.assertEqual({type(message) for _, message in VECTORS}, set(wire.MESSAGES))
        self.assertEqual(len(wire.MESSAGES), 18)
        self.assertEqual(set(wire.byMID), set(wire.MID))

    def test_pack(self) -> None:
        """
        Every message packs into the literal bytes.
        """
        for text, message in VECTORS:
            self.assertEqual(message.pack().hex(), text.replace(" ", ""))

    def test_parse(self) -> None:
        """
        The literal bytes parse into the message, by class and by identifier.
        """
        for text, message in VECTORS:
            packed = bytes.fromhex(text)
            self.assertEqual(type(message).parse(packed), message)
            self.assertEqual(parseMessage(packed), message)

    def test_parsePlace(self) -> None:
        """
        A message is found between C{start} and C{stop} of any buffer, and what
        it holds does not change with the buffer.
        """
        for text, message in VECTORS:
            buffer = bytearray(b"\xaa" * 7 + bytes.fromhex(text) + b"\xbb" * 9)
            parsed = parseMessage(memoryview(buffer), 7, len(buffer) - 9)
            buffer[:] = bytes(len(buffer))
            self.assertEqual(parsed, message)

    def test_everyLengthShort(self) -> None:
        """
        A message cut anywhere is refused, whatever its Len says.
        """
        for text, message in VECTORS:
            packed = bytes.fromhex(text)
            shortest = wire.BSDH_BYTES + message.layout.size
            for length in range(len(packed)):
                cut = packed[:length]
                self.assertRaises(SDPWireError, type(message).parse, cut)
                self.assertRaises(SDPWireError, parseMessage, cut)
                if 8 <= length < shortest:
                    self.assertRaises(SDPWireError, parseMessage, withLength(cut))

    def test_tooLong(self) -> None:
        """
        Bytes after a message are refused, also if Len counts them; only
        messages of the stream have a length of their own.
        """
        for text, message in VECTORS:
            longer = bytes.fromhex(text) + b"\0"
            self.assertRaises(SDPWireError, parseMessage, longer)
            if isinstance(message, wire.StreamMessage):
                parseMessage(withLength(longer))
            else:
                self.assertRaises(SDPWireError, parseMessage, withLength(longer))

    def test_badPlace(self) -> None:
        """
        A place outside the buffer is refused.
        """
        packed = bytes.fromhex(VECTORS[2][0])
        for start, stop in [(0, 22), (-1, 21), (22, 21), (21, 21), (21, 37)]:
            self.assertRaises(SDPWireError, parseMessage, packed, start, stop)
            self.assertRaises(SDPWireError, wire.Data.parse, packed, start, stop)

    def test_unknownIdentifiers(self) -> None:
        """
        Every other identifier is refused, 0x1D too, which has the low bits of
        SinkAvail.
        """
        known = set(wire.MID)
        for identifier in set(range(256)) - known:
            packed = bytes([identifier]) + bytes.fromhex("00003f000000100000000800000008")
            error = self.assertRaises(SDPWireError, parseMessage, packed)
            self.assertIn(f"0x{identifier:02x}", str(error))

    def test_otherIdentifier(self) -> None:
        """
        A class takes its own messages only.
        """
        packed = bytes.fromhex("0200003f000000100000000c00000008")
        for messageClass in set(wire.MESSAGES) - {wire.DisConn}:
            self.assertRaises(SDPWireError, messageClass.parse, packed)

    def test_reservedBits(self) -> None:
        """
        Each reserved bit is ignored on receipt and sent as zero.
        """
        for messageClass, packed, offsets in RESERVED:
            expected = messageClass.parse(packed)
            for offset in offsets:
                for bit in range(8):
                    parsed = messageClass.parse(changed(packed, offset, 1 << bit))
                    self.assertEqual(parsed, expected)
                    self.assertEqual(parsed.pack(), packed)

    def test_reservedFlags(self) -> None:
        """
        The five upper bits of Flags are ignored in every message.
        """
        for text, message in VECTORS:
            packed = bytes.fromhex(text)
            for bit in range(3, 8):
                parsed = parseMessage(changed(packed, 1, packed[1] | 1 << bit))
                self.assertEqual(parsed, message)

    def test_legalFlags(self) -> None:
        """
        OOB_PRES needs bytes of the stream, REQ_PIPE an RdmaRdCompl; OOB_PEND
        goes with everything.
        """
        for text, message in VECTORS:
            packed = bytes.fromhex(text)
            payload = isinstance(message, wire.StreamMessage) and bool(message.payload)
            reads = isinstance(message, wire.RdmaRdCompl)
            for bit, legal in [(1, payload), (2, True), (4, reads)]:
                flagged = changed(packed, 1, bit)
                if legal:
                    self.assertEqual(parseMessage(flagged).flags, bit)
                else:
                    self.assertRaises(SDPWireError, parseMessage, flagged)

    def test_fieldTooSmall(self) -> None:
        """
        A value that its field cannot hold is a L{ValueError}.
        """
        for message in [
            wire.Data(buffers=0x10000),
            wire.Data(sequence=1 << 32),
            wire.RdmaRdCompl(length=-1),
            wire.SuspComm(serviceID=1 << 64),
        ]:
            self.assertRaises(ValueError, message.pack)

    def test_extremes(self) -> None:
        """
        The largest value of each field goes through both ways.
        """
        most = (1 << 32) - 1
        messages: list[wire.SDPMessage] = [
            wire.Data(buffers=0xFFFF, sequence=most, acknowledged=most),
            wire.SrcAvail(length=most, rkey=most, address=(1 << 64) - 1),
            wire.SinkAvail(length=most, rkey=most, address=(1 << 64) - 1, nonDiscards=most),
            wire.SuspComm(serviceID=(1 << 64) - 1),
        ]
        for message in messages:
            self.assertEqual(parseMessage(message.pack()), message)

    def test_slots(self) -> None:
        """
        A message has no C{__dict__} and does not change.
        """
        for _, message in VECTORS:
            self.assertFalse(hasattr(message, "__dict__"))
            self.assertRaises(AttributeError, setattr, message, "sequence", 5)

    def test_errors(self) -> None:
        """
        The error is one of this package's.
        """
        self.assertTrue(issubclass(SDPWireError, WireError))
        self.assertTrue(issubclass(WireError, HCAError))


class GreetingTests(SynchronousTestCase):
    """
    Tests for the checks of Hello and HelloAck.
    """

    def refused(self, packed: bytes) -> str:
        """
        Assert that C{packed} is refused and give the reason.
        """
        return str(self.assertRaises(SDPWireError, parseMessage, packed))

    def test_sizes(self) -> None:
        """
        The two have the sizes that are sent, not those of the 1.1 text.
        """
        self.assertEqual(len(HELLO), wire.HELLO_BYTES)
        self.assertEqual(len(HELLO_ACK), wire.HELLO_ACK_BYTES)
        self.assertEqual(wire.BSDH_BYTES + wire.Hello.layout.size, 92)
        self.assertEqual(wire.BSDH_BYTES + wire.HelloAck.layout.size, 196)

    def test_wrongLength(self) -> None:
        """
        Len must be exact, with the bytes there or not.
        """
        for packed in [HELLO, HELLO_ACK]:
            for length in [0, len(packed) - 1, len(packed) + 1, 1 << 31]:
                self.refused(packed[:4] + length.to_bytes(4, "big") + packed[8:])

    def test_versions(self) -> None:
        """
        Major 1 and 2 are taken with any minor, the others are not.
        """
        for packed in [HELLO, HELLO_ACK]:
            for version in range(256):
                other = changed(packed, 16, version)
                if version >> 4 in (1, 2):
                    message = parseMessage(other)
                    assert isinstance(message, wire.Greeting)
                    self.assertEqual(message.version, version)
                    self.assertEqual(message.majorVersion, version >> 4)
                    self.assertEqual(message.pack(), other)
                else:
                    self.assertIn("major version", self.refused(other))

    def test_maximumAdverts(self) -> None:
        """
        MaxAdverts is at least 1.
        """
        for packed in [HELLO, HELLO_ACK]:
            self.assertIn("MaxAdverts", self.refused(changed(packed, 19, 0)))
            message = parseMessage(changed(packed, 19, 255))
            assert isinstance(message, wire.Greeting)
            self.assertEqual(message.maximumAdverts, 255)

    def test_sequence(self) -> None:
        """
        MSeq and MSeqAck are 0.
        """
        for packed in [HELLO, HELLO_ACK]:
            for offset in (11, 15):
                self.assertIn("sequence", self.refused(changed(packed, offset, 1)))

    def test_receiveBuffers(self) -> None:
        """
        A receive buffer holds at least
        L{SDP_LEAST_PAYLOAD<twisted_ib.limits.SDP_LEAST_PAYLOAD>} bytes after the
        base header.
        """
        self.assertEqual(limits.SDP_LEAST_PAYLOAD, 1024)
        for packed, offset in [(HELLO, 24), (HELLO_ACK, 20)]:
            for size, legal in [(0, False), (17, False), (1039, False), (1040, True), ((1 << 32) - 1, True)]:
                other = packed[:offset] + size.to_bytes(4, "big") + packed[offset + 4 :]
                if legal:
                    self.assertEqual(parseMessage(other).pack(), other)
                else:
                    self.assertIn("receive buffers", self.refused(other))

    def test_ipVersions(self) -> None:
        """
        The IP version is 4 or 6; OFED's own test lets others pass.
        """
        for version in range(16):
            packed = changed(HELLO, 17, version << 4)
            if version in (4, 6):
                self.assertEqual(wire.Hello.parse(packed).ipVersion, version)
            else:
                self.assertIn("IP version", self.refused(packed))

    def test_capabilities(self) -> None:
        """
        Two capability bits count, the others are reserved.
        """
        for bits in range(16):
            hello = wire.Hello.parse(changed(HELLO, 17, 0x40 | bits))
            answer = wire.HelloAck.parse(changed(HELLO_ACK, 17, 0xF0 | bits))
            self.assertEqual(hello.capabilities, bits & 3)
            self.assertEqual(hello.ipVersion, 4)
            self.assertEqual(answer.capabilities, bits & 3)
            self.assertEqual(hello.pack(), changed(HELLO, 17, 0x40 | bits & 3))
            self.assertEqual(answer.pack(), changed(HELLO_ACK, 17, bits & 3))

    def test_extendedAdverts(self) -> None:
        """
        The extended MaxAdverts stands at offset 66.
        """
        packed = changed(changed(HELLO, 17, 0x42), 66, 0x12)
        hello = wire.Hello.parse(packed)
        self.assertEqual(hello.capabilities, wire.Capabilities.EXTENDED_MAX_ADVERTS)
        self.assertEqual(hello.extendedMaximumAdverts, 0x1200)
        self.assertEqual(hello.pack(), packed)

    def test_addressSize(self) -> None:
        """
        An address that has not 16 bytes is not packed.
        """
        whole = bytes(16)
        for wrong in [b"", bytes(15), bytes(17)]:
            for source, destination in [(wrong, whole), (whole, wrong)]:
                hello = wire.Hello(
                    desiredReceiveBytes=4096,
                    localReceiveBytes=4096,
                    localPort=1,
                    sourceAddress=source,
                    destinationAddress=destination,
                )
                self.assertRaises(ValueError, hello.pack)


class ModeChangeTests(SynchronousTestCase):
    """
    Tests for L{wire.ModeChange}.
    """

    def test_everyByte(self) -> None:
        """
        Four bytes change a mode; all others are refused.
        """
        packed = bytes.fromhex("0700003f000000140000000300000002 20000000")
        for byte in range(256):
            other = changed(packed, 16, byte)
            if byte in (0x00, 0x90, 0x20, 0x10):
                message = wire.ModeChange.parse(other)
                self.assertEqual(message.transition, byte)
                self.assertEqual(message.pack(), other)
            else:
                self.assertRaises(SDPWireError, wire.ModeChange.parse, other)


class AdvertisementTests(SynchronousTestCase):
    """
    Tests for L{wire.SrcAvail} and L{wire.SinkAvail}.
    """

    def test_nothingToRead(self) -> None:
        """
        A SrcAvail is longer than the bytes that it carries.
        """
        for length, payload, legal in [
            (0, b"", False),
            (1, b"", True),
            (1, b"a", False),
            (2, b"a", True),
            (2, b"abc", False),
        ]:
            packed = wire.SrcAvail(length=length, rkey=1, address=2, payload=payload).pack()
            if legal:
                self.assertEqual(wire.SrcAvail.parse(packed).payload, payload)
            else:
                self.assertRaises(SDPWireError, wire.SrcAvail.parse, packed)

    def test_nothingToWrite(self) -> None:
        """
        A SinkAvail has room, and carries any number of bytes of the other
        direction.
        """
        empty = wire.SinkAvail(length=0, rkey=1, address=2, nonDiscards=3)
        self.assertRaises(SDPWireError, wire.SinkAvail.parse, empty.pack())
        full = wire.SinkAvail(length=1, rkey=1, address=2, nonDiscards=3, payload=b"abc")
        self.assertEqual(wire.SinkAvail.parse(full.pack()), full)


class AddressTests(SynchronousTestCase):
    """
    Tests for the addresses of a Hello.
    """

    def test_bothWays(self) -> None:
        """
        An IPv4 address is the last four of 16 bytes, an IPv6 address all.
        """
        for text, version, packed in [
            ("192.0.2.1", 4, "000000000000000000000000c0000201"),
            ("0.0.0.0", 4, "00000000000000000000000000000000"),
            ("fe80::1", 6, "fe800000000000000000000000000001"),
            ("::", 6, "00000000000000000000000000000000"),
            ("::ffff:192.0.2.1", 6, "00000000000000000000ffffc0000201"),
        ]:
            self.assertEqual(wire.packAddress(text), bytes.fromhex(packed))
            back = wire.unpackAddress(bytes.fromhex(packed), version)
            self.assertEqual(wire.packAddress(back), bytes.fromhex(packed))
            self.assertEqual(wire.ipVersionOf(text), version)
            self.assertEqual(wire.ipVersionOf(back), version)
        self.assertEqual(wire.unpackAddress(wire.packAddress("192.0.2.1"), 4), "192.0.2.1")

    def test_scope(self) -> None:
        """
        The scope of a link-local address is no part of the Hello.
        """
        self.assertEqual(wire.packAddress("fe80::1%ib0"), wire.packAddress("fe80::1"))
        self.assertEqual(wire.ipVersionOf("fe80::1%ib0"), 6)

    def test_noAddress(self) -> None:
        """
        A text that is no address is a L{ValueError}.
        """
        for text in ["", "localhost", "1.2.3", "1.2.3.4.5", "::g", "%ib0"]:
            self.assertRaises(ValueError, wire.packAddress, text)
            self.assertRaises(ValueError, wire.ipVersionOf, text)
