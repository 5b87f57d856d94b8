"""
Sockets over iWARP, whose messages are SENDs, as RFC 5040 has no immediate data.
"""

from __future__ import annotations

import ctypes
from struct import pack

from twisted.trial.unittest import SynchronousTestCase

from tests.support.ownaddress import ownAddress
from tests.support.waiting import HANG_SECONDS
from tests.verbs.c.rsocket.case import RSocketTestCase
from twisted_ib.hca.device.device import addDevice, removeDevice
from twisted_ib.hca.queues.completion import WCOpcode, WCStatus, WorkCompletion
from twisted_ib.hca.queues.requests import SendOpcode
from twisted_ib.verbs.c.rsocket.memory import Messages
from twisted_ib.verbs.c.rsocket.protocol import RSocketError, Write
from twisted_ib.verbs.c.rsocket.stream import DEPTH
from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.pyverbs import PD, Context
from twisted_ib.verbs.pyverbs.cm import identifier


class IWARPTests(RSocketTestCase):
    """
    Two sockets of one device.
    """

    device = "iwarp6"

    def setUp(self) -> None:
        """
        Add it.
        """
        self.host = ownAddress(6)
        addDevice(self.device, "iwarp", self.host)
        self.addCleanup(removeDevice, self.device)
        self.patch(identifier, "deviceFor", lambda *addresses: self.device)
        super().setUp()

    def test_data(self) -> None:
        """
        Octets both ways, many times the buffers and the messages that are asked for at once; then the end.
        """
        sides = self.pair()
        for _ in range(DEPTH + 1):
            with hub:
                self.assertEqual(sides[0].write(memoryview(b"x")), 1)
            self.assertTrue(hub.wait(lambda: sides[1].progress() or sides[1].canRead, HANG_SECONDS))
            with hub:
                self.assertEqual(sides[1].read(memoryview(bytearray(2))), 1)
                sides[0].progress()
        self.exchange(sides)

    def test_mapped(self) -> None:
        """
        Memory that one has mapped is the other's to write into.
        """
        listener, address = self.listening()
        listener.maps = 1
        active, passive = self.connected(listener, address)
        memory = bytearray(64)
        with hub:
            active.map(ctypes.addressof(ctypes.c_char.from_buffer(memory)), len(memory), True, 7)

        def written() -> bool:
            self.progress(active, passive)
            return passive.writeAt(memoryview(b"there"), 9) == 5

        self.assertTrue(hub.wait(written, HANG_SECONDS))

        def come() -> bool:
            self.progress(active, passive)
            return memory[2:7] == b"there"

        self.assertTrue(hub.wait(come, HANG_SECONDS))


class MessagesTests(SynchronousTestCase):
    """
    L{Messages}.
    """

    def test_sent(self) -> None:
        """
        A message is four octets in the host's order (librdmacm/rsocket.c, C{rs_post_msg}), and the identifier
        of the request that sends it.
        """
        request = Messages.sent(Write(0xE0000001))
        self.assertEqual((request.id, request.opcode), (0xE0000001, SendOpcode.SEND))
        self.assertEqual((request.inline, request.pieces), (pack("=I", 0xE0000001), ()))


class TakenTests(RSocketTestCase):
    """
    What has come.
    """

    def test_taken(self) -> None:
        """
        Each is where the receive that was posted for it has its memory, also when these begin anew; one of
        another length is none.
        """
        pd = PD(context := Context(name=self.device))
        self.addCleanup(context.close)
        self.addCleanup(pd.close)
        messages = Messages(pd, 2)
        self.addCleanup(messages._memory.region.close)
        for value in range(5):
            (request,) = messages.receives(1)
            (piece,) = request.pieces
            ctypes.memmove(piece.address, pack("=I", value), piece.length)
            whole = WorkCompletion(0, WCStatus.SUCCESS, WCOpcode.RECV, 1, piece.length)
            self.assertEqual(messages.taken(whole), value)
        short = WorkCompletion(0, WCStatus.SUCCESS, WCOpcode.RECV, 1, 3)
        self.assertRaises(RSocketError, messages.taken, short)
