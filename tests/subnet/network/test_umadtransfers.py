"""
Tests of L{twisted_ib.subnet.network.umad}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.subnet.network.test_umad import SA, SUBN, UmadCase, mad
from twisted_ib.subnet.network.smi import Packet
from twisted_ib.subnet.network.umad import MESSAGE, complete, isControl

GET_TABLE, TABLE = 0x12, 0x92
#: The octets of the RMPP header that a program gives to the kernel: active.
GIVEN = {"at26": 1}


class CompleteTests(SynchronousTestCase):
    """
    L{complete}.
    """

    def completed(self, octets: bytes, length: int) -> str:
        """
        @return: the RMPP header.
        """
        packet = Packet(1, 2, 1, 1, bytearray(octets), length)
        complete(packet)
        self.assertEqual((packet.octets[:24], packet.octets[36:]), (octets[:24], octets[36:]))
        return packet.octets[24:36].hex(" ", 4)

    def test_table(self) -> None:
        """
        A table is the only segment of a transfer; its length counts the header of its class.
        """
        for length, expected in ((168, 132), (256, 220), (56, 20), (0, 20)):
            found = self.completed(mad(SA, TABLE, 0x11, **GIVEN), length)
            self.assertEqual(found, f"01010700 00000001 {expected:08x}")

    def test_others(self) -> None:
        """
        Plain MADs, transfers that are complete, and classes without RMPP stay as they are.
        """
        for octets in (
            mad(SA, TABLE, 0x11),
            mad(SA, TABLE, 0x11, at26=6),
            mad(SA, TABLE, 0x11, at24=1, at25=1, at26=1),
            mad(SUBN, TABLE, 0x11, **GIVEN),
            mad(0x04, TABLE, 0x11, **GIVEN),
        ):
            self.assertEqual(self.completed(octets, 256), octets[24:36].hex(" ", 4))


class ControlTests(SynchronousTestCase):
    """
    L{isControl}.
    """

    def test_types(self) -> None:
        """
        ACK, STOP and ABORT of a transfer.
        """
        for type_, expected in ((1, False), (2, True), (3, True), (4, True)):
            octets = mad(SA, GET_TABLE, 0x11, at24=1, at25=type_, at26=1)
            self.assertIs(isControl(bytearray(octets)), expected)
        for at in ({"at24": 1, "at25": 2}, {"at25": 2, "at26": 1}):
            self.assertFalse(isControl(bytearray(mad(SA, GET_TABLE, 0x11, **at))))
        self.assertFalse(isControl(bytearray(mad(0x04, 1, 0x11, at24=1, at25=2, at26=1))))


class ServerTests(UmadCase):
    """
    A subnet manager that is a program, and a device.
    """

    def test_table(self) -> None:
        """
        The device gets a transfer, and the program none of its ACKs, which would be requests to it.
        """
        number = self.connect("m", "a", manager=True)
        delivered: list[Packet] = []

        def take(port: object, packet: Packet) -> None:
            delivered.append(packet)

        self.patch(self.subnet, "take", take)
        answer = mad(SA, TABLE, 0x11, transaction=7, **GIVEN)
        self.server.received(number, MESSAGE.pack(2, 1, 1, 1, 0, 168, answer))
        self.assertEqual(delivered[0].octets[24:28].hex(), "01010700")
        ports = self.subnet.ports
        ack = bytearray(mad(SA, GET_TABLE, 0x11, at24=1, at25=2, at26=1))
        self.assertIsNone(self.server.take(ports["a"], Packet(2, 1, 1, 1, ack)))
        self.assertEqual(self.wire.sent, [])
        self.send(number, mad(0x01, 0x01, 0x11), 1)
        request = bytearray(mad(SA, GET_TABLE, 0x11))
        self.assertIsNone(self.server.take(ports["a"], Packet(2, 1, 1, 1, request)))
        self.assertEqual(self.wire.sent[-1][1][-256:], bytes(request))

    def test_tool(self) -> None:
        """
        Another program gets a table as libumad2sim has always given it.
        """
        number, tool = self.connect("m", "a", manager=True), self.connect("t", "b")
        self.send(tool, mad(SA, GET_TABLE, 0x11), 1, 1)
        answer = mad(SA, TABLE, 0x11, transaction=tool << 48, **GIVEN)
        self.send(number, answer, 2, 1)
        self.assertEqual(self.wire.sent[-1], (tool, self.wire.sent[-1][1]))
        self.assertEqual(self.wire.sent[-1][1][-256:], answer)
