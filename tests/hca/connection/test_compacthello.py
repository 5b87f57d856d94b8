"""
Tests of L{twisted_ib.hca.connection.compacthello} on literal octets.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.errors import WireError
from twisted_ib.hca.connection import ConnectRequest
from twisted_ib.hca.connection.compacthello import MARK, SOFTWARE, compact, expand, isMarked, refusal
from twisted_ib.hca.connection.rdmacm import HEADER_BYTES, RDMACMHeader
from twisted_ib.sdp.handshake import SDP_HANDSHAKE
from twisted_ib.sdp.protocol.wire import Capabilities, Hello

#: Base header, and Hello up to the source's port; and both addresses.
START = "00020010 0000005c 00000000 00000000 22420003 00008010 00001010 9c400000"
IPV4 = "000000000000000000000000c0000201 000000000000000000000000c0000202"
IPV6 = "20010db8000000000000000000000001 fe80000000000000000000000000abcd"
HELLO = bytes.fromhex(f"{START} {IPV4} 0000 0102 {48 * '0'}")
COMPACT = bytes.fromhex(f"00409c40 {IPV4} b273747265616d73 {START} 0102")
HELLO6 = HELLO.replace(b"\x22\x42", b"\x22\x62").replace(bytes.fromhex(IPV4), bytes.fromhex(IPV6))
COMPACT6 = bytes.fromhex(f"00609c40 {IPV6} b273747265616d73 {START.replace('2242', '2262')} 0102")


def changed(data: bytes, at: int, value: int) -> bytes:
    """
    @return: data with another octet.
    """
    return data[:at] + bytes((value,)) + data[at + 1 :]


class CompactHelloTests(SynchronousTestCase):
    """
    Both forms of a Hello.
    """

    def test_hello(self) -> None:
        """
        The octets are those of a Hello with all its fields.
        """
        hello = Hello.parse(HELLO)
        self.assertEqual((hello.flags, hello.buffers, hello.maximumAdverts), (2, 16, 3))
        self.assertEqual((hello.desiredReceiveBytes, hello.localReceiveBytes), (0x8010, 0x1010))
        self.assertEqual((hello.localPort, hello.extendedMaximumAdverts), (40000, 0x102))
        self.assertEqual(hello.capabilities, Capabilities.EXTENDED_MAX_ADVERTS)

    def test_bothWays(self) -> None:
        """
        Of IPv4 and IPv6: nothing is lost, and the program's part fits behind the header.
        """
        for hello, packed in ((HELLO, COMPACT), (HELLO6, COMPACT6)):
            self.assertEqual(compact(hello), packed)
            self.assertEqual(expand(packed), hello)
            self.assertEqual(expand(packed.ljust(92, b"\0")), hello)
            self.assertLessEqual(len(packed), 92)
            self.assertEqual(RDMACMHeader.parse(packed).sourcePort, 40000)

    def test_otherPort(self) -> None:
        """
        The kernel begins at a port of its own: that of Hello holds.
        """
        header = RDMACMHeader("192.0.2.1", 7, "192.0.2.2").pack()
        self.assertEqual(expand(header + COMPACT[HEADER_BYTES:]), HELLO)

    def test_marked(self) -> None:
        """
        The mark tells it from requests of programs, with the header and without.
        """
        self.assertTrue(isMarked(COMPACT) and isMarked(COMPACT[HEADER_BYTES:], 0))
        for data in (b"", HELLO, COMPACT[:43], COMPACT[:HEADER_BYTES] + b"program".ljust(56, b"\0")):
            self.assertFalse(isMarked(data))

    def test_truncated(self) -> None:
        """
        None that is cut short is taken, of either form, and no Hello of another length is.
        """
        for length in range(len(COMPACT)):
            self.assertRaises(WireError, expand, COMPACT[:length])
        for length in range(len(HELLO)):
            self.assertRaises(WireError, compact, HELLO[:length])
        self.assertRaises(WireError, compact, HELLO + b"\0")

    def test_mangled(self) -> None:
        """
        Whatever an octet is, the request is refused by a named error, here or where the Hello is read, or
        the Hello is one.
        """
        refused = set()
        for at in range(len(COMPACT)):
            for value in {0, 1, 0x22, 0x42, 0x62, 0x7F, 0x80, 0xFF} - {COMPACT[at]}:
                try:
                    hello = expand(changed(COMPACT, at, value))
                except WireError:
                    refused.add(at)
                    continue
                try:
                    SDP_HANDSHAKE.requested(ConnectRequest(privateData=hello))
                except WireError:
                    refused.add(at)
        start = HEADER_BYTES + len(MARK)
        always = {0, 1, *range(HEADER_BYTES, start), start, *range(start + 4, start + 18)}
        # The flags; the number of adverts, and the upper octets of the size of receives.
        self.assertEqual(refused, always | {start + each for each in (1, 19, 26)})

    def test_mangledHello(self) -> None:
        """
        What is no Hello has no other form: another message, length or IP version.
        """
        for at, value in ((0, 1), (4, 1), (7, 0x5B), (17, 0), (17, 0x52)):
            self.assertRaises(WireError, compact, changed(HELLO, at, value))

    def test_refusal(self) -> None:
        """
        Software says what it is where it refuses a stream, and nothing elsewhere.
        """
        self.assertEqual((refusal(0x11234), SOFTWARE), (b"\xb2software", b"\xb2software"))
        self.assertEqual([refusal(each) for each in (0x1061234, 0x13F1234, 0x1234, 2**64 - 1)], [b""] * 4)
