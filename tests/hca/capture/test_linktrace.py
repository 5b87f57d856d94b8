"""
Captures of devices of packets: what is on the wire, and all of it.
"""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import SkipTest

from tests.hca.fabric.roce.test_devices import HERE, PORT, THERE, End, PacketTestCase
from tests.hca.hcas import settle
from tests.hca.memorylink import MemoryLink
from tests.support.captures import TSHARK, read, tshark
from twisted_ib.hca.capture.capture import Capture
from twisted_ib.hca.connection.rdmacm import PortSpace
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.fabric.roce.packet import PacketFabric
from twisted_ib.hca.queues.requests import SendOpcode
from twisted_ib.hca.wire import decodePacket


class CaptureTests(PacketTestCase):
    """
    One file of one HCA, and one of two.
    """

    def traced(self, address: str, capture: Capture | str) -> Device:
        """
        @return: An HCA that writes into a capture.
        """
        device = Device(
            "roce7",
            self.clock.seconds,
            lambda owner, guid, clock: PacketFabric(owner, guid, clock, MemoryLink(self.wire, address)),
            capture=capture,
        )
        self.addCleanup(device.close)
        return device

    def run_(self, here: Device, there: Device) -> None:
        """
        Connect, send a message, and disconnect.
        """
        one, two = End(here), End(there)
        there.listen(PortSpace.TCP, there.fabric.address, PORT, two)
        here.connect(PortSpace.TCP, there.fabric.address, PORT, one)
        settle(here, there)
        two.receive(1, 0, 9000)
        one.memory[:3001] = bytes(range(250)) * 12 + b"!"
        one.send(1, SendOpcode.SEND, 0, 3001)
        settle(here, there)
        here.disconnect(one.connection)
        settle(here, there)

    def test_whole(self) -> None:
        """
        Every datagram is in the file, either way, once, as it was; so it is if both ends write there.
        """
        for both in (False, True):
            self.wire.log = []
            path = Path(self.mktemp())
            capture = Capture(str(path))
            here = self.traced(HERE, capture)
            there = self.traced(THERE, capture if both else "")
            self.run_(here, there)
            capture.close()
            frames = read(path)
            self.assertEqual([frame.data[42:] for frame in frames], [each[4] for each in self.wire.log])
            outbound = [frame.outbound for frame in frames]
            self.assertEqual(outbound, [both or each[0] == HERE for each in self.wire.log])
            for frame in frames:
                decodePacket(frame.data[14:42], frame.data[42:])
            here.close()
            there.close()

    def test_tshark(self) -> None:
        """
        tshark finds nothing malformed.
        """
        if TSHARK is None:
            raise SkipTest("tshark is not installed")
        path = Path(self.mktemp())
        capture = Capture(str(path))
        self.run_(self.traced(HERE, capture), self.traced(THERE, ""))
        capture.close()
        self.assertEqual(tshark(path, "_ws.malformed", "frame.number"), [])
        rows = tshark(path, "infiniband", "infiniband.bth.opcode")
        self.assertEqual(len(rows), len(read(path)))

    def test_damaged(self) -> None:
        """
        A corrupt packet is shown as it arrived.
        """
        path = Path(self.mktemp())
        capture = Capture(str(path))
        device = self.traced(HERE, capture)
        data = bytes([4, 0, 255, 255, 0, 0, 0, 9]) + bytes(12)
        self.wire.deliver((THERE, HERE, 50000, 0, data))
        self.wire.deliver((THERE, HERE, 50000, 0, b"short"))
        settle(device)
        capture.close()
        self.assertIn(data, path.read_bytes())
        self.assertEqual(device.counters["packets_bad_icrc"], 1)
