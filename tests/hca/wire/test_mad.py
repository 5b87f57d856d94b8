"""
Tests of L{twisted_ib.hca.wire.mad.mad} and L{twisted_ib.hca.wire.mad.cm} on a message of a real
kernel.
"""

from __future__ import annotations

import attrs
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from tests.support import packets
from tests.support.generated import given
from twisted_ib.errors import WireError
from twisted_ib.hca.wire.cm.messages import (
    APR,
    DREP,
    DREQ,
    LAP,
    MESSAGES,
    MRA,
    REJ,
    REP,
    REQ,
    RTU,
    SIDR_REP,
    SIDR_REQ,
    MessageKind,
)
from twisted_ib.hca.wire.headers import MAD_BYTES, QUEUE_KEY
from twisted_ib.hca.wire.mad import cm
from twisted_ib.hca.wire.mad.mad import DATA_BYTES, HEADER_BYTES, Mad
from twisted_ib.hca.wire.packet import Packet

_PACKET = Packet.parse(packets.REQ, 28, len(packets.REQ))
OCTETS = _PACKET.payload


class MADTests(SynchronousTestCase):
    """
    Management datagrams.
    """

    def test_kernel(self) -> None:
        """
        A REQ of Linux: its header, and the same octets again.
        """
        self.assertEqual((_PACKET["queueKey"], _PACKET["source"]), (QUEUE_KEY, 1))
        mad = Mad.parse(OCTETS, 0, len(OCTETS))
        self.assertIsInstance(mad.data, REQ)
        self.assertEqual(attrs.evolve(mad, data=b""), Mad(7, 2, 3, 0x2D12DCE2F, 0x10))
        self.assertEqual(mad.pack(), OCTETS)

    def test_fields(self) -> None:
        """
        Every field is where IBTA vol. 1 13.4.3 has it; what is missing of the data is zeros.
        """
        mad = Mad(0x11, 0x22, 0x33, 0x6666777788889999, 0xAAAA, b"data", 0xCCCCDDDD, 0x4444, 0x5555, 0xBBBB)
        octets = mad.pack()
        self.assertEqual(octets[:28].hex(), "01112233444455556666777788889999aaaabbbbccccdddd64617461")
        self.assertEqual(len(octets), MAD_BYTES)
        self.assertEqual(Mad.parse(memoryview(b"x" + octets), 1, 257), attrs.evolve(mad, data=octets[24:]))

    def test_refused(self) -> None:
        """
        Another length or base version, or what does not fit.
        """
        for size in (0, HEADER_BYTES, MAD_BYTES - 1, MAD_BYTES + 1):
            self.assertRaises(WireError, Mad.parse, OCTETS + bytes(1), 0, size)
        self.assertRaises(WireError, Mad.parse, OCTETS, 1, MAD_BYTES + 1)
        self.assertRaises(WireError, Mad.parse, b"\2" + OCTETS[1:], 0, MAD_BYTES)
        self.assertRaises(WireError, Mad(1, 1, 1, 1, 1, bytes(DATA_BYTES + 1)).pack)
        self.assertRaises(WireError, Mad(256, 1, 1, 1, 1).pack)
        self.assertRaises(WireError, Mad(1, 1, 1, 1 << 64, 1).pack)

    @given(st.binary(min_size=MAD_BYTES - 1, max_size=MAD_BYTES - 1))
    def test_roundTrip(self, octets: bytes) -> None:
        """
        Every MAD packs to what it was parsed from.
        """
        octets = b"\1" + octets
        self.assertEqual(Mad.parse(octets, 0, MAD_BYTES).pack(), octets)


class MessageTests(SynchronousTestCase):
    """
    Messages of the communication manager.
    """

    def test_kernel(self) -> None:
        """
        A REQ of Linux is taken from its MAD, and put there again.
        """
        mad = Mad.parse(OCTETS, 0, MAD_BYTES)
        message = mad.data
        assert isinstance(message, REQ)
        self.assertEqual((message.localQPN, message.startingPSN, message.pathMTU), (0x11, 0x4694BA, 3))
        self.assertEqual(cm.wrap(message.attribute, message.pack(), mad.transaction).pack(), OCTETS)

    def test_all(self) -> None:
        """
        Every message travels so.
        """
        for kind in MESSAGES:
            message = kind()
            octets = cm.wrap(kind.attribute, message.pack(), 5, 6).pack()
            mad = Mad.parse(octets, 0, MAD_BYTES)
            self.assertEqual((mad.transaction, mad.modifier), (5, 6))
            found = mad.data
            assert isinstance(found, kind)
            self.assertEqual(found.pack(), message.pack())

    def test_refused(self) -> None:
        """
        Another class, version or method, or no message.
        """
        good = Mad.parse(OCTETS, 0, MAD_BYTES)
        for change in (
            {"managementClass": 9},
            {"classVersion": 1},
            {"method": 1},
            {"attribute": 0x1B},
            {"attribute": 1},
        ):
            octets = attrs.evolve(good, data=good.data.pack(), **change).pack()  # type: ignore[union-attr,arg-type]
            self.assertIsInstance(Mad.parse(octets, 0, MAD_BYTES).data, bytes)

    def test_transactions(self) -> None:
        """
        An answer has the transaction of what it answers.
        """
        kind = MessageKind
        for message, expected in (
            (REQ(1), 1),
            (MRA(1, 2, kind.REQ), 2),
            (MRA(1, 2, kind.REP), 1),
            (MRA(1, 2, kind.OTHER), 2),
            (REJ(1, 2, kind.REQ), 2),
            (REJ(1, 2, kind.REP), 1),
            (REJ(1, 2, kind.OTHER), 1),
            (REP(1, 2), 2),
            (RTU(1, 2), 1),
            (DREQ(1, 2), 1),
            (DREP(1, 2), 2),
            (LAP(1, 2), 1),
            (APR(1, 2), 2),
            (SIDR_REQ(3), 3),
            (SIDR_REP(3), 3),
        ):
            self.assertEqual(cm.transactionOf(message), expected, repr(message)[:30])
