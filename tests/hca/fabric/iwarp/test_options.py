"""
The options of iWARP devices: CRCs and markers.
"""

from __future__ import annotations

import random
import socket
from itertools import product
from typing import Any

from tests.hca.fabric.iwarp.ends import ONE, SPACE, TWO, End
from tests.hca.fabric.iwarp.protocol.test_mpa import withoutLibrary
from tests.hca.fabric.iwarp.test_keyed import KeyedTestCase
from tests.hca.queues.keyed_pair import piece
from twisted_ib.errors import DeviceError
from twisted_ib.hca.fabric.iwarp.protocol.ddp import UNTAGGED
from twisted_ib.hca.fabric.iwarp.protocol.mpa import MPAErrorCode, StartupFrame
from twisted_ib.hca.fabric.iwarp.protocol.mpastream import FPDUReader, FPDUWriter
from twisted_ib.hca.fabric.iwarp.protocol.terminate import TerminateMessage, Termination
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.requests import SendOpcode

OK = WCStatus.SUCCESS
_SEND = bytes.fromhex("41430000000000000000000000010000000068692100")


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
