"""
Connections of Linux's siw, as the protocol's modules read and make them.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.capture.tcpstreams import Connection, connectionsOf, framesOf
from tests.hca.fabric.iwarp.protocol.examples import UntaggedHeader
from tests.hca.fabric.iwarp.protocol.streams import Direction, directionsOf
from twisted_ib.hca.fabric.iwarp.protocol.ddp import Opcode
from twisted_ib.hca.fabric.iwarp.protocol.mpa import Depths

VECTORS = Path(__file__).parents[4] / "vectors/siw"


def captured(name: str) -> list[Connection]:
    """
    @return: the connections in a file.
    """
    return connectionsOf(framesOf(VECTORS / f"{name}.pcap"))


class CaptureTests(SynchronousTestCase):
    """
    All of them.
    """

    def test_all(self) -> None:
        """
        18 startup frames and 165 FPDUs are the same octets when they are made anew, PAD excepted: siw leaves
        what was there before in it.
        """
        found: list[Direction] = []
        for path in sorted(VECTORS.glob("*.pcap")):
            for connection in connectionsOf(framesOf(path)):
                if connection.client.octets:
                    found += directionsOf(connection)
        self.assertEqual(len(found), 18)
        counts = sum((each.counts for each in found), Counter[str]())
        self.assertEqual(counts, {"SEND": 81, "WRITE": 42, "READ_REQUEST": 12, "READ_RESPONSE": 30})
        self.assertEqual((sum(each.padded for each in found), sum(each.rest for each in found)), (4, 0))

    def test_startup(self) -> None:
        """
        Every frame is of revision 2, with depths and without RTR, CRC and markers.
        """
        depths = set()
        for path in VECTORS.glob("*.pcap"):
            for connection in connectionsOf(framesOf(path)):
                for each in directionsOf(connection) if connection.client.octets else ():
                    frame = each.startup
                    self.assertEqual(
                        (frame.revision, frame.crc, frame.markers, frame.isRejected), (2, False, False, False)
                    )
                    depths.add(frame.depths)
        self.assertEqual(depths, {Depths(1, 1), Depths(0, 0), Depths(128, 128), Depths(0, 1), Depths(1, 0)})

    def test_private(self) -> None:
        """
        rsockets' private data is behind the depths.
        """
        (connection,) = captured("rstream")
        for each in directionsOf(connection):
            self.assertEqual(len(each.startup.privateData), 40)

    def test_sequence(self) -> None:
        """
        Sequence numbers count messages from 1, per queue; offsets, the octets of a message.
        """
        (connection,) = captured("rping-big")
        for each in directionsOf(connection):
            expected = {0: (1, 0), 1: (1, 0)}
            for ulpdu in each.ulpdus:
                if ulpdu[1] & 15 in (Opcode.SEND, Opcode.READ_REQUEST):
                    header = UntaggedHeader.parse(ulpdu)
                    self.assertEqual((header.sequence, header.offset), expected[header.queue])
                    payload = len(ulpdu) - 18
                    sequence, offset = expected[header.queue]
                    after = (sequence + 1, 0) if header.isLast else (sequence, offset + payload)
                    expected[header.queue] = after
        client, server = directionsOf(connection)
        self.assertEqual((client.payload(Opcode.READ_RESPONSE), server.payload(Opcode.WRITE)), (5000, 5000))

    def test_refused(self) -> None:
        """
        A port without a listener: a reset, without a frame of MPA.
        """
        (connection,) = captured("rping-refused")
        self.assertEqual((bytes(connection.client.octets), connection.server.isReset), (b"", True))
