"""
Captures of TCP connections: L{twisted_ib.hca.capture.streamtrace}.
"""

from __future__ import annotations

import socket
from collections import Counter
from pathlib import Path
from struct import pack
from typing import Any

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.hca.capture.tcpstreams import Connection, connectionsOf
from tests.hca.fabric.iwarp.protocol.rdmap import BASE, KEY, End
from tests.hca.fabric.iwarp.protocol.streams import directionsOf
from tests.support.captures import IWARP_WRONG, TSHARK, crcsOf, recorded, tshark
from twisted_ib.hca.base.operation import SOLICITED
from twisted_ib.hca.capture.capture import Capture
from twisted_ib.hca.capture.framing import RoutedFraming
from twisted_ib.hca.capture.streamtrace import TracedStream
from twisted_ib.hca.fabric.iwarp.protocol.ddp import Opcode
from twisted_ib.hca.fabric.iwarp.protocol.mpa import Depths, StartupFrame
from twisted_ib.hca.fabric.iwarp.protocol.terminate import TAGGED_INVALID_STAG
from twisted_ib.hca.wire.headers import INVALIDATE, RETH
from twisted_ib.hca.wire.opcodes import (
    READ_REQUEST,
    READ_RESPONSE_ONLY,
    SEND_ONLY,
    SEND_ONLY_INVALIDATE,
    WRITE_ONLY,
)

#: A message of several FPDUs.
LONG = bytes(range(256)) * 20


class StreamTestCase(SynchronousTestCase):
    """
    A TCP connection of this process.

    @cvar family: of its addresses.
    @cvar address: of both ends.
    """

    family, address = socket.AF_INET, "127.0.0.1"

    def setUp(self) -> None:
        """
        Connect, and begin a capture.
        """
        self.file = Path(self.mktemp())
        self.capture = Capture(str(self.file))
        self.addCleanup(self.capture.close)
        self.interfaces = [self.capture.interface(name, 1, RoutedFraming()) for name in ("one", "two")]
        with socket.socket(self.family) as listener:
            listener.bind((self.address, 0))
            listener.listen()
            self.sockets = [socket.create_connection(listener.getsockname()[:2]), listener.accept()[0]]
        for each in self.sockets:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.addCleanup(each.close)

    def traced(self, side: int) -> TracedStream:
        """
        @param side: 0 for the client's, 1 for the server's.

        @return: one end, captured.
        """
        return TracedStream(self.sockets[side], not side, self.capture, self.interfaces[side])

    def connections(self) -> list[Connection]:
        """
        @return: the connections in the capture, which is complete now.
        """
        self.capture.close()
        return connectionsOf(frame for *_, frame in recorded(self.file))


class ShownTests(StreamTestCase):
    """
    Octets, begin and end.
    """

    def pass_(self, sender: Any, receiver: Any, octets: bytes) -> None:
        """
        Hand octets over.
        """
        self.assertEqual(sender.sendmsg([octets[:5], octets[5:]]), len(octets))
        got = b""
        while len(got) < len(octets):
            buffer = bytearray(len(octets))
            got += buffer[: receiver.recv_into(buffer)]

    def test_octets(self) -> None:
        """
        Each octet is there once, whether one end is captured or both in one file.
        """
        for sides in ((0,), (1,), (0, 1)):
            self.setUp()
            ends = [self.traced(side) if side in sides else self.sockets[side] for side in (0, 1)]
            self.pass_(*ends, b"a request")
            self.pass_(*ends[::-1], b"an answer")
            ends[0].close()
            self.assertEqual(ends[1].recv(1), b"")
            ends[1].close()
            (connection,) = self.connections()
            self.assertEqual(connection.client.octets, b"a request")
            self.assertEqual(connection.server.octets, b"an answer")
            self.assertTrue(connection.client.isFinished)
            # An end that is not captured is seen by what it sends only.
            self.assertEqual(connection.server.isFinished, 1 in sides)

    def test_direction(self) -> None:
        """
        A segment is outbound at the interface that sends it.
        """
        one = self.traced(0)
        self.pass_(one, self.sockets[1], b"a request")
        self.pass_(self.sockets[1], one, b"an answer")
        self.capture.close()
        outbound = [each[2] for each in recorded(self.file)]
        self.assertEqual(outbound, [True, False, True, True, False])

    def test_frames(self) -> None:
        """
        Each frame of MPA is a segment, however it was sent; the begin of one is shown with what ends it, or
        when the connection does.
        """
        ends = [self.traced(side) for side in (0, 1)]
        request = StartupFrame(False, b"private").pack()
        ends[0].sendmsg([request[:7]])
        ends[0].sendmsg([request[7:]])
        ends[1].sendmsg([StartupFrame(True).pack()])
        fpdu = bytes.fromhex("000ec1400000000100000000000000000000 0000")
        ends[0].sendmsg([fpdu, fpdu, fpdu[:9]])
        ends[0].close()
        self.capture.close()
        head = 54 if self.family == socket.AF_INET else 74
        sizes = [len(frame) - head for *_, frame in recorded(self.file)]
        self.assertEqual(sizes, [8, 8, 0, len(request), 20, 20, 20, 9, 0])

    def test_broken(self) -> None:
        """
        A stream that is none of MPA's is shown as it is passed.
        """
        frame = StartupFrame(False).pack()
        for octets in (b"GET / HTTP/1.0", frame[:-3] + b"\x09\0\0", frame + b"FPDU"):
            self.setUp()
            one = self.traced(0)
            one.sendmsg([octets])
            one.sendmsg([b"more"])
            (connection,) = self.connections()
            self.assertEqual(connection.client.octets, octets + b"more")

    def test_large(self) -> None:
        """
        Octets that no segment can have are several.
        """
        one = self.traced(0)
        self.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        sent = one.sendmsg([bytes(200000)])
        (connection,) = self.connections()
        self.assertEqual(connection.client.octets, bytes(sent))
        self.assertGreater(sent, 65536)
        self.assertLessEqual(max(len(frame) for *_, frame in recorded(self.file)), 14 + 65535)

    def test_leftover(self) -> None:
        """
        What was received before is there, too.
        """
        one = TracedStream(self.sockets[0], False, self.capture, 0, b"a request")
        one.sendmsg([b"an answer"])
        (connection,) = self.connections()
        self.assertEqual((connection.client.octets, connection.server.octets), (b"a request", b"an answer"))

    def test_reset(self) -> None:
        """
        A connection that the peer resets ends with an RST.
        """
        one = self.traced(0)
        self.sockets[1].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
        self.sockets[1].close()
        self.assertRaises(ConnectionResetError, one.recv, 1)
        (connection,) = self.connections()
        self.assertTrue(connection.server.isReset)

    def test_over(self) -> None:
        """
        One that is reset before it is captured has no addresses to show.
        """
        self.sockets[1].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
        self.sockets[1].close()
        self.assertRaises(ConnectionResetError, self.sockets[0].recv, 1)
        self.assertRaises(OSError, self.traced, 0)
        self.assertEqual(self.connections(), [])

    def test_closed(self) -> None:
        """
        A capture that has ended does not hinder a connection.
        """
        one = self.traced(0)
        self.capture.close()
        self.pass_(one, self.sockets[1], b"a request")
        one.shutdown(socket.SHUT_RDWR)
        one.close()
        one.close()
        self.assertEqual(one.fileno(), -1)


class ShownIPv6Tests(ShownTests):
    """
    IPv6.
    """

    family, address = socket.AF_INET6, "::1"


class AnalysedTests(StreamTestCase):
    """
    tshark understands what is shown of iWARP.
    """

    def setUp(self) -> None:
        """
        Skip the test without tshark.
        """
        if TSHARK is None:
            raise SkipTest("tshark is not installed")
        super().setUp()

    def start(self, hasCRC: bool, hasMarkers: bool) -> None:
        """
        Exchange startup frames.
        """
        self.streams = [self.traced(side) for side in (0, 1)]
        for side, stream in enumerate(self.streams):
            frame = StartupFrame(bool(side), b"private", 2, hasMarkers, hasCRC, depths=Depths(16, 16))
            stream.sendmsg([frame.pack()])
            self.streams[1 - side].recv(100)
        self.ends = [End(hasCRC, hasMarkers) for _ in range(2)]

    def post(self, side: int, opcode: int, header: bytes = b"", payload: bytes = b"") -> None:
        """
        Send a record, and have the other end take it.
        """
        end = self.ends[side]
        self.assertTrue(end.sender.post(end.out, opcode, header, payload, len(payload)))
        self.hand(side)

    def hand(self, side: int) -> None:
        """
        Hand over what was posted.
        """
        octets = self.ends[side].sent()
        self.streams[side].sendmsg([octets])
        got = 0
        while got < len(octets):
            part = self.streams[1 - side].recv(1000)
            self.ends[1 - side].received(part)
            got += len(part)

    def operations(self) -> None:
        """
        Each operation, in both directions; then a Terminate.
        """
        for side in (0, 1):
            for size in (0, 3, 5000):
                self.post(side, SEND_ONLY, b"", LONG[:size])
                self.post(side, WRITE_ONLY, RETH.pack(BASE, KEY, size), LONG[:size])
                self.post(side, READ_REQUEST, RETH.pack(BASE, KEY, size))
                self.post(1 - side, READ_RESPONSE_ONLY, b"", LONG[:size])
            self.post(side, SEND_ONLY | SOLICITED, b"", b"solicited")
            self.post(side, SEND_ONLY_INVALIDATE, INVALIDATE.pack(KEY), b"invalidates")
        header = bytes.fromhex("c140dead00010000000000000010")
        self.ends[0].sender.terminate(self.ends[0].out, TAGGED_INVALID_STAG, header, 0, len(header))
        self.hand(0)
        for stream in self.streams:
            stream.close()

    def look(self, hasCRC: bool, hasMarkers: bool) -> None:
        """
        Compare what tshark finds with what the protocol's modules do.
        """
        (connection,) = self.connections()
        found = sum((each.counts for each in directionsOf(connection)), Counter[str]())
        self.assertEqual(found["TERMINATE"], 1)
        self.assertEqual(tshark(self.file, IWARP_WRONG), [])
        rows = tshark(self.file, "iwarp_mpa", "iwarp_rdma.opcode", "iwarp_mpa.marker_fpduptr")
        opcodes = [Opcode(int(code, 0)).name for row in rows for code in row[0].split(",") if code]
        self.assertEqual(Counter(opcodes), found)
        self.assertEqual(any(row[1] for row in rows), hasMarkers)
        self.assertEqual(crcsOf(self.file), {"Good": found.total()} if hasCRC else {})

    def test_plain(self) -> None:
        """
        Without CRC and markers.
        """
        self.start(False, False)
        self.operations()
        self.look(False, False)

    def test_markers(self) -> None:
        """
        With CRCs and markers.
        """
        self.start(True, True)
        self.operations()
        self.look(True, True)

    def test_wrong(self) -> None:
        """
        A wrong CRC is found.
        """
        self.start(True, False)
        end = self.ends[0]
        end.sender.post(end.out, SEND_ONLY, b"", b"damaged", 7)
        octets = end.sent()
        self.streams[0].sendmsg([octets[:-1] + bytes([octets[-1] ^ 1])])
        self.capture.close()
        self.assertEqual(crcsOf(self.file), {"Bad": 1})


class ChecksumTests(SynchronousTestCase):
    """
    TCP's checksums, as tshark is asked about them.
    """

    def found(self, checksum: str) -> int:
        """
        @param checksum: of a segment for which 0 is right.
        @return: in how many segments tshark finds something wrong.
        """
        if TSHARK is None:
            raise SkipTest("tshark is not installed")
        frame = bytes.fromhex(
            "525400770002 525400770001 0800"
            "4500002a 00004000 4006b6ca c0000201 c0000202"
            f"c0001c06 00000001 00000001 50180053 {checksum} 0000"
            "4f6b"
        )
        file = Path(self.mktemp())
        header = pack("<IHHIIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
        file.write_bytes(header + pack("<IIII", 0, 0, len(frame), len(frame)) + frame)
        return len(tshark(file, IWARP_WRONG))

    def test_zero(self) -> None:
        """
        It may be written as 0xFFFF, which Linux does.
        """
        self.assertEqual([self.found(each) for each in ("0000", "ffff")], [0, 0])

    def test_wrong(self) -> None:
        """
        Any other is wrong.
        """
        self.assertEqual([self.found(each) for each in ("0001", "fffe", "b094")], [1, 1, 1])
