"""
Tests for L{twisted_ib.tools.demo.ipoib}, without a TUN: L{tests.tun} runs it.
"""

from __future__ import annotations

import struct
from contextlib import redirect_stdout
from io import StringIO

from twisted.internet.error import ProcessDone
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.hca.mad.attributes.administration import MCMemberRecord
from twisted_ib.hca.wire.lrh import LinkPacket
from twisted_ib.ipoib.protocol.wire import ARPPacket
from twisted_ib.tools.demo.demo import commandLine
from twisted_ib.tools.demo.ipoib import LINE, Shown, seen

MGID = bytes.fromhex("ff12401bffff000000000000ffffffff")
#: UD SEND Only, to QP 1 and to the multicast queue pair: BTH and DETH.
TO_QP1 = bytes.fromhex("64 00 ffff 00 000001 00000000  80010000 00 000001")
TO_GROUP = bytes.fromhex("64 00 ffff 00 ffffff 00000000  00000b1b 00 000123")
JOIN = bytes.fromhex("01 03 02 02 0000 0000 0000000000000001 0038 0000 00000000") + bytes(32) + MGID
HARDWARE = bytes.fromhex("80000123 fe80000000000000 0000000000000002")


def arp(operation: int) -> bytes:
    """
    @return: a frame of 10.9.0.1, to 10.9.0.2.
    """
    packet = ARPPacket(operation, HARDWARE, bytes((10, 9, 0, 1)), bytes(20), bytes((10, 9, 0, 2)))
    return b"\x08\x06\0\0" + packet.pack()


def block(body: bytes) -> bytes:
    """
    @return: an enhanced packet block with a packet from LID 4 to 1, in an ERF record.
    """
    data = bytes(16) + LinkPacket(4, 1, body).pack()
    padded = data + bytes(-len(data) % 4)
    size = 32 + len(padded)
    head = struct.pack("<IIIIIII", 6, size, 0, 0, 0, len(data), len(data))
    return head + padded + struct.pack("<I", size)


class SeenTests(SynchronousTestCase):
    """
    L{seen}.
    """

    def test_lines(self) -> None:
        """
        ARP packets and joins, but nothing else.
        """
        other = bytearray(JOIN.ljust(256, b"\0"))
        other[3] = 1
        packets = [
            *(TO_GROUP + arp(1), TO_GROUP + arp(2), TO_QP1 + JOIN.ljust(256, b"\0")),
            *(TO_QP1 + bytes(other), TO_GROUP + b"\x08\0\0\0" + bytes(20)),
        ]
        octets = struct.pack("<II20xI", 0x0A0D0D0A, 32, 32) + b"".join(map(block, packets))
        expected = [
            "LID 4 to 1: ARP who has 10.9.0.2? tell 10.9.0.1",
            f"LID 4 to 1: ARP 10.9.0.1 is at {HARDWARE.hex()}",
            "LID 4 to 1: join ff12:401b:ffff::ffff:ffff",
        ]
        self.assertEqual(list(seen(octets)), expected)
        self.assertEqual(MCMemberRecord.ID, 0x38)
        # A file that is still written, or none.
        for length in range(0, len(octets), 7):
            self.assertLessEqual(len(list(seen(octets[:length]))), 3)
        self.assertEqual(list(seen(bytes(64))), [])


class ShownTests(SynchronousTestCase):
    """
    L{Shown}, and the command line.
    """

    def test_output(self) -> None:
        """
        Whole lines, made safe for a terminal and not too long; then the end.
        """
        shown, said = Shown(), StringIO()
        with redirect_stdout(said):
            for piece in (b"one\ntw", b"o\n\x1b[2J\n", b"x" * 1000, b"\nrest"):
                shown.childDataReceived(1, piece)
        self.assertEqual(said.getvalue(), f"  one\n  two\n  \\x1b[2J\n  {'x' * LINE}\n")
        shown.processEnded(Failure(ProcessDone(0)))
        self.assertIsInstance(self.successResultOf(shown.ended), ProcessDone)

    def test_arguments(self) -> None:
        """
        Without a word it is SDP's demonstration.
        """
        self.assertEqual(commandLine().parse_args([]).what, "sdp")
        options = commandLine().parse_args(["ipoib", "--tun=/tun", "--capture=file"])
        self.assertEqual((options.what, options.tun, options.capture), ("ipoib", "/tun", "file"))
