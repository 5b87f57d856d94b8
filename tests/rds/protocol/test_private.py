"""
Tests of L{twisted_ib.rds.protocol.wire}: the private data of connections.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.errors import RDSWireError
from twisted_ib.rds.protocol.wire import (
    IPV4_BYTES,
    IPV6_BYTES,
    PrivateData,
    agreed,
    packHello,
    parseHello,
    servicePort,
)

#: Of a REQ that Linux 6.1 sent.
REQ = bytes.fromhex("0a4d0002 0a4d0003 03 01 0003 00 00 0000 0000000000000000 00000000 00000000")
FULL = PrivateData("192.0.2.1", "192.0.2.2", 4, 1, 0x0102, 7, 0x1122334455667788, 0x99AABBCC)
FULL_BYTES = bytes.fromhex("c0000201 c0000202 04 01 0102 07 00 0000 1122334455667788 99aabbcc 00000000")


class PrivateDataTests(SynchronousTestCase):
    """
    The codec.
    """

    def test_linux(self) -> None:
        """
        Linux sends the same private data.
        """
        self.assertEqual(PrivateData.parse(REQ, 4), PrivateData("10.77.0.2", "10.77.0.3"))
        self.assertEqual(PrivateData("10.77.0.2", "10.77.0.3").pack(), REQ)

    def test_fields(self) -> None:
        """
        Each field is in its place.
        """
        self.assertEqual(FULL.pack(), FULL_BYTES)
        self.assertEqual(PrivateData.parse(FULL_BYTES, 4), FULL)

    def test_ipv6(self) -> None:
        """
        IPv6 addresses have 16 bytes each; a scope is left out.
        """
        data = PrivateData("2001:db8::1%3", "2001:db8::2").pack()
        self.assertEqual(data[:32].hex(), "20010db8" + "0" * 23 + "1" + "20010db8" + "0" * 23 + "2")
        self.assertEqual(data[32:], REQ[8:])
        self.assertEqual(PrivateData.parse(data, 6), PrivateData("2001:db8::1", "2001:db8::2"))

    def test_sizes(self) -> None:
        """
        There are as many bytes as Linux has.
        """
        self.assertEqual((IPV4_BYTES, IPV6_BYTES), (32, 56))
        self.assertEqual(len(PrivateData("::1", "::1").pack()), 56)

    def test_short(self) -> None:
        """
        The padding may be missing, and anything may follow; nothing else is missing.
        """
        for data, version in ((FULL_BYTES, 4), (PrivateData("::1", "::2").pack(), 6)):
            whole = PrivateData.parse(data, version)
            self.assertEqual(PrivateData.parse(data[:-4], version), whole)
            self.assertEqual(PrivateData.parse(data + b"x" * 50, version), whole)
            for length in range(len(data) - 4):
                self.assertRaises(RDSWireError, PrivateData.parse, data[:length], version)

    def test_mixed(self) -> None:
        """
        Both addresses are of one version.
        """
        self.assertRaises(ValueError, PrivateData("::1", "127.0.0.1").pack)
        self.assertRaises(ValueError, PrivateData("here", "127.0.0.1").pack)

    def test_versions(self) -> None:
        """
        3.1 is spoken, and of 4 the highest minor version that both have.
        """
        expected = {
            (3, 1, 0): (3, 1),
            (3, 1, 0xFFFF): (3, 1),
            (3, 0, 3): None,
            (3, 2, 3): None,
            (4, 0, 0): None,
            (4, 0, 1): (4, 0),
            (4, 1, 2): (4, 1),
            (4, 1, 3): (4, 1),
            (4, 7, 0xFF): (4, 1),
            (4, 7, 0xFC): None,
            (5, 1, 3): None,
            (0, 0, 0): None,
        }
        for (major, minor, minors), answer in expected.items():
            said = PrivateData("127.0.0.1", "127.0.0.2", major, minor, minors)
            self.assertEqual(agreed(said), answer, said)

    def test_ports(self) -> None:
        """
        IPv4 and IPv6 have services of their own.
        """
        self.assertEqual((servicePort("127.0.0.1"), servicePort("::1")), (18634, 16385))

    def test_hello(self) -> None:
        """
        The private data between processes of one host.
        """
        said = bytes.fromhex("52445371 01 1122334455667788")
        self.assertEqual(packHello(0x1122334455667788), said)
        self.assertEqual((parseHello(said), parseHello(said + b"more")), (0x1122334455667788,) * 2)
        for length in range(len(said)):
            self.assertRaises(RDSWireError, parseHello, said[:length])
        for offset in range(5):
            bad = bytearray(said)
            bad[offset] ^= 1
            self.assertRaises(RDSWireError, parseHello, bytes(bad))
