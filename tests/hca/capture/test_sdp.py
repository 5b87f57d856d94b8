"""
A whole SDP session in a capture: every kind of message, and tshark knows them all.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from twisted.internet.interfaces import IHalfCloseableProtocol
from zope.interface import implementer

from tests.hca.capture.test_capture import CaptureTestCase
from tests.sdp import pair as sdp_pair
from tests.sdp.zerocopy.test_extensions import Hearing, Places
from tests.support.captures import Observer, tshark
from twisted_ib.sdp.protocol.wire import MID, Transition

SIZE = 256 * 1024


@implementer(IHalfCloseableProtocol)
class Patient(Places):
    """
    Has places, and goes on to write when the peer has ended.
    """

    def readConnectionLost(self) -> None:
        """
        No more comes.
        """
        self.log.append("readConnectionLost")

    def writeConnectionLost(self) -> None:
        """
        No more goes.
        """


_CONTENT = bytes(range(251)) * (SIZE // 251 + 1)


class WholeSessionTests(CaptureTestCase):
    """
    Connect, BCopy, zero copy read and written, changes of mode, urgent data, a cancel, half close,
    close; within one process.
    """

    def whole(self) -> Any:
        """
        Play it.

        @return: an observer that has processed all packets.
        """
        pair = sdp_pair.Pair()
        self.addCleanup(pair.close)
        heard, places = Hearing(), Patient()
        one, two = pair.connected(heard, places)
        for end in (one, two):
            end.setZeroCopyThresholds(16384)
        sent = _CONTENT[:SIZE]
        region, back = one.registerMemory(SIZE), two.registerMemory(SIZE)
        region.view[:] = back.view[:] = sent
        one.write(b"hello, ")
        two.write(b"and back")
        pair.settle()
        # Read by a sink that has no places; then written to one that has.
        done = [two.writeRegistered(back)]
        pair.settle()
        one.openExtensions().changeMode(Transition.COMBINED_TO_PIPELINED)
        pair.settle()
        done += [one.writeRegistered(region), one.writeRegistered(region, 0, 65536)]
        pair.settle()
        one.sendUrgent(b"!")
        pair.settle()
        one.openExtensions().changeMode(Transition.PIPELINED_TO_COMBINED)
        pair.settle()
        # Offered to one who does not read now, and taken back.
        one.pauseProducing()
        done.append(two.writeRegistered(back, 0, 65536))
        pair.settle()
        two.openExtensions().zeroCopySend.retract()
        pair.settle()
        one.resumeProducing()
        pair.settle()
        one.loseWriteConnection()
        pair.settle()
        two.write(b"after")
        pair.settle()
        two.loseConnection()
        pair.settle()
        for each in done:
            self.assertIsNone(self.successResultOf(each))
        self.assertEqual(bytes(places.data), b"hello, " + sent + sent[:65536])
        self.assertEqual(bytes(heard.data), b"and back" + sent + sent[:65536] + b"after")
        self.assertEqual(places.urgent, b"!")
        return Observer(4096).see(self.frames())

    def mids(self) -> Counter[int]:
        """
        @return: how often each message was sent, by what the packets hold.
        """
        found: Counter[int] = Counter()
        for frame in self.frames():
            row = frame.packet.row
            if row.begins and row.takesReceive and frame.packet.bth.destination != 1:
                found[bytes(frame.packet.payload)[0]] += 1
        return found

    def test_messages(self) -> None:
        """
        Every kind of message that the session must have is there, in legal packets.
        """
        observer = self.whole()
        self.assertEqual(observer.messages[:3], ["REQ", "REP", "RTU"])
        found = self.mids()
        for mid in (
            MID.DATA,
            MID.SRC_AVAIL,
            MID.RDMA_RD_COMPL,
            MID.MODE_CHANGE,
            MID.SINK_AVAIL,
            MID.RDMA_WR_COMPL,
            MID.SRC_AVAIL_CANCEL,
            MID.DISCONN,
        ):
            self.assertGreater(found[mid], 0, mid.name)
        rows = Counter(frame.packet.row.kind for frame in self.frames())
        self.assertGreater(len(rows), 4)

    def test_tshark(self) -> None:
        """
        tshark finds nothing malformed in it, and counts the same messages.
        """
        self.whole()
        self.assertClean()
        shown = "infiniband_sdp && infiniband.bth.opcode in {0, 4}"
        mids = Counter(int(mid, 16) for (mid,) in tshark(self.file, shown, "infiniband_sdp.bsdh.mid"))
        self.assertEqual(mids, self.mids())
