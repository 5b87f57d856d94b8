"""
Private data on the wire is as long as the program's (RFC 5044 section 7.1.1): every message of connection
management that MPA carries, octet by octet.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from tests.hca.fabric.iwarp.ends import ONE, SPACE, End, IWARPTestCase
from twisted_ib.hca.connection import ConnectReply, RejectReason

KEY_REQUEST, KEY_REPLY = b"MPA ID Req Frame", b"MPA ID Rep Frame"
#: Revision 2 with depths (RFC 6581): as many READs as siw asks for, and private data "hi" and a zero.
REQUEST = KEY_REQUEST + bytes.fromhex("10020007 00040004 686900")


class PrivateDataTests(IWARPTestCase):
    """
    A device and a plain socket.
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
        """
        Accept.
        """
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
            (b"", "18020004 80048004"),
            (b"\0", "18020005 80048004 00"),
            (b"hello\0\0", "1802000b 80048004 68656c6c6f0000"),
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
        end.device.cm.unlisten(SPACE << 16 | where[1])
        made = self.socket(where)
        made.sendall(REQUEST)
        self.assertEqual(self.frame(made), "3002000400000000")
