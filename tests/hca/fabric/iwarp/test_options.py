"""
The options of iWARP devices, CRCs and markers, and the private data of their startup.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Callable
from itertools import product
from typing import Any

from tests.hca.fabric.iwarp.ends import ONE, SPACE, TWO, End, IWARPTestCase
from tests.hca.fabric.iwarp.protocol.test_mpa import withoutLibrary
from tests.hca.fabric.iwarp.test_keyed import KeyedTestCase
from tests.hca.queues.keyed_pair import piece
from twisted_ib.errors import DeviceError
from twisted_ib.hca.connection import ConnectReply, RejectReason
from twisted_ib.hca.fabric.iwarp.protocol import mpa
from twisted_ib.hca.fabric.iwarp.protocol.ddp import UNTAGGED
from twisted_ib.hca.fabric.iwarp.protocol.mpa import MPAErrorCode, StartupFrame
from twisted_ib.hca.fabric.iwarp.protocol.mpastream import FPDUReader, FPDUWriter
from twisted_ib.hca.fabric.iwarp.protocol.terminate import TerminateMessage, Termination
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.requests import SendOpcode

OK = WCStatus.SUCCESS
_SEND = bytes.fromhex("41430000000000000000000000010000000068692100")

KEY_REQUEST, KEY_REPLY = b"MPA ID Req Frame", b"MPA ID Rep Frame"
#: Revision 2 with depths (RFC 6581): as many READs as siw asks for, and private data "hi" and a zero.
REQUEST = KEY_REQUEST + bytes.fromhex("10020007 00040004 686900")


class OptionTests(KeyedTestCase):
    """
    Devices with and without them.
    """

    def test_exchanged(self) -> None:
        """
        SEND, WRITE and READ with each combination: there are CRCs if either side wants them, and markers if
        both do.
        """
        maker = random.Random(2)
        for crcHere, crcThere, markers in product((False, True), repeat=3):
            here = self.device(ONE, crc=crcHere, markers=markers)
            there = self.device(TWO, crc=crcThere, markers=markers)
            one, two = self.keyed(here, there)
            for stream in (*here.fabric.streams.values(), *there.fabric.streams.values()):
                reader = stream._reader
                self.assertEqual((reader._hasCRC, reader.hasMarkers), (crcHere or crcThere, markers))
            for size in (0, 1, 509, 70001):
                self._exchange(one, two, maker.randbytes(size))
                self._exchange(two, one, maker.randbytes(size))
            here.close()
            there.close()
            self.devices.clear()

    def test_library(self) -> None:
        """
        The library of CRCs is looked for when a device opens: no peer that wants them has it imported.
        """
        mpa._library.cache_clear()
        self.device(ONE)
        self.assertEqual(mpa._library.cache_info().currsize, 1)

    def _exchange(self, one: Any, two: Any, data: bytes) -> None:
        size = len(data)
        source, target = one.register(data), two.register(size + 20)
        inbox, back = two.register(size), one.register(size)
        two.receive(5, piece(inbox))
        names = {"remoteAddress": target.address + 7, "remoteKey": target.remoteKey}
        one.send(1, SendOpcode.RDMA_WRITE, piece(source), **names)
        one.send(2, SendOpcode.SEND, piece(source))
        one.send(3, SendOpcode.RDMA_READ, piece(back), **names)
        found: list[Any] = []
        self.until(lambda: found.extend(one.statuses()) or len(found) == 3)
        self.assertEqual(found, [(1, OK), (2, OK), (3, OK)])
        self.assertEqual([each.byteLength for each in two.received()], [size])
        self.assertEqual(bytes(target.view), bytes(7) + data + bytes(13))
        self.assertEqual((bytes(inbox.view), bytes(back.view)), (data, data))

    def test_markersRefused(self) -> None:
        """
        A side without markers refuses one that wants them, in either role.
        """
        for marked in (ONE, TWO):
            here, there = (self.device(each, markers=each == marked) for each in (ONE, TWO))
            one, two = End(here), End(there)
            port = there.listen(SPACE, TWO, 0, two).port
            here.connect(SPACE, TWO, port, one)
            one.call(one.path, b"", SPACE << 16 | port)
            self.until(lambda: "rejected" in one.events)  # noqa: B023
            self.assertNotIn("replied", one.events)

    def test_damaged(self) -> None:
        """
        A wrong CRC ends the connection by a Terminate that says so, whoever has asked for CRCs.
        """
        for own, peers in ((True, False), (False, True)):
            end = End(self.device(TWO, crc=own))
            made = self.socket((TWO, end.device.listen(SPACE, TWO, 0, end).port))
            made.sendall(StartupFrame(False, b"x", crc=peers).pack())
            out: list[bytes] = []
            FPDUWriter(True, False).frame(out, [_SEND], len(_SEND))
            good = b"".join(out)
            self.until(lambda: end.queuePair)  # noqa: B023
            made.sendall(good)
            self.until(lambda: end.got)  # noqa: B023
            made.sendall(good[:-1] + bytes([good[-1] ^ 1]))
            self.until(lambda: "failed" in end.events)  # noqa: B023
            octets = self._rest(made)
            reply, at = StartupFrame.parse(octets, 0, len(octets), True) or (None, 0)
            self.assertTrue(reply is not None and reply.crc)
            reader = FPDUReader(True, False)
            self.assertEqual(reader.next(octets, at, len(octets)), len(octets))
            message = TerminateMessage.parse(octets, reader.first + UNTAGGED.size, reader.last)
            self.assertEqual(message.termination, Termination(2, 0, int(MPAErrorCode.CRC)))
            self.assertEqual((end.got, end.device.counters["iwarp_bad_fpdus"]), ([_SEND[-4:]], 1))
            end.device.close()
            self.devices.clear()

    def _rest(self, made: socket.socket) -> bytearray:
        made.setblocking(False)
        octets = bytearray()

        def isOver() -> bool:
            try:
                got = made.recv(65536)
            except BlockingIOError:
                return False
            octets.extend(got)
            return not got

        self.until(isOver)
        return octets

    def test_noLibrary(self) -> None:
        """
        A device with CRCs cannot be opened without the library: the error says what is to be installed.
        """
        withoutLibrary(self)
        error = self.assertRaises(DeviceError, self.device, ONE, crc=True)
        self.assertEqual(
            str(error),
            "the iWARP device of 127.0.0.1 has crc=yes, for which google-crc32c is not installed:"
            " pip install 'twisted-ib[iwarp]'",
        )
        self.device(ONE)


class PrivateDataTests(IWARPTestCase):
    """
    Private data on the wire is as long as the program's (RFC 5044 section 7.1.1): every message of connection
    management that MPA carries, octet by octet, between a device and a plain socket.
    """

    def frame(self, made: socket.socket) -> str:
        """
        @return: the frame that comes, behind its key, in hexadecimal digits.
        """
        got = bytearray()
        made.setblocking(False)

        def isWhole() -> bool:
            try:
                got.extend(made.recv(65536))
            except BlockingIOError:
                pass
            return len(got) >= 20 and len(got) >= 20 + int.from_bytes(got[18:20], "big")

        self.until(isWhole)
        self.assertIn(bytes(got[:16]), (KEY_REQUEST, KEY_REPLY))
        return bytes(got[16:]).hex()

    def answered(self, answer: Callable[[End], object]) -> str:
        """
        @param answer: what the listener does with a request.
        @return: the Reply to it.
        """
        end, where = self.listening()
        end.isServing = False
        made = self.socket(where)
        made.sendall(REQUEST)
        self.until(lambda: "requested" in end.events)
        answer(end)
        return self.frame(made)

    def reply(self, end: End, privateData: bytes, isConfirmed: bool) -> None:
        reply = ConnectReply(
            localQPN=end.make().number, responderResources=4, initiatorDepth=4, privateData=privateData
        )
        end.connection.user = end
        end.connection.accept(reply, self.clock.seconds(), isConfirmed)

    def test_request(self) -> None:
        """
        A REQ is a Request.
        """
        for privateData, octets in (
            (b"", "18020004 00040004"),
            (b"\0", "18020005 00040004 00"),
            (b"hello\0\0", "1802000b 00040004 68656c6c6f0000"),
        ):
            one, listener = End(self.device(ONE)), socket.create_server((ONE, 0))
            self.addCleanup(listener.close)
            port = listener.getsockname()[1]
            one.device.connect(SPACE, ONE, port, one)
            one.call(one.path, privateData, SPACE << 16 | port)
            made, _ = listener.accept()
            self.addCleanup(made.close)
            self.assertEqual(self.frame(made), octets.replace(" ", ""))
            one.device.close()

    def test_reply(self) -> None:
        """
        A REP is a Reply, whether or not an RTU follows it.
        """
        for isConfirmed in (True, False):
            for privateData, octets in (
                (b"", "10020004 00040004"),
                (b"welcome\0", "1002000c 00040004 77656c636f6d6500"),
            ):
                found = self.answered(
                    lambda end: self.reply(end, privateData, isConfirmed)  # noqa: B023
                )
                self.assertEqual(found, octets.replace(" ", ""))
                self.devices.pop().close()

    def test_reject(self) -> None:
        """
        A REJ is a Reply that refuses: the program's, and that of a consumer that closes.
        """
        now = self.clock.seconds()

        def refuse(end: End, privateData: bytes) -> None:
            end.connection.reject(RejectReason.CONSUMER_DEFINED, privateData, now)

        for answer, octets in (
            (lambda end: refuse(end, b"no\0\0"), "30020008 00000000 6e6f0000"),
            (lambda end: refuse(end, b""), "30020004 00000000"),
            (lambda end: end.connection.disconnect(now), "30020004 00000000"),
        ):
            self.assertEqual(self.answered(answer), octets.replace(" ", ""))
            self.devices.pop().close()

    def test_nobody(self) -> None:
        """
        The REJ of connection management itself, where nobody listens, has none.
        """
        end, where = self.listening()
        end.device.services.serveNoMore(SPACE << 16 | where[1])
        made = self.socket(where)
        made.sendall(REQUEST)
        self.assertEqual(self.frame(made), "3002000400000000")
