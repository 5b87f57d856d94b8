"""
The octets of segments.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.mad.rmpp.segmented import AT, HEAD, data
from twisted_ib.hca.mad.rmpp.segments import (
    TABLE,
    TransferStatus,
    control,
    dataAt,
    fault,
    headerOf,
    isSegment,
)
from twisted_ib.hca.mad.rmpp.sender import Sender
from twisted_ib.hca.wire.mad.classes import (
    ABORT,
    ACK,
    BOOT_INFORMATION,
    COMMUNICATION,
    DATA,
    DEVICE_ADMINISTRATION,
    FIRST,
    LAST,
    PERFORMANCE,
    RMPP,
    STOP,
    SUBNET,
    SUBNET_ADMINISTRATION,
    RMPPHeader,
)

#: BaseVersion, class, version, method; status, class specific; transaction; attribute, reserved, modifier.
COMMON = "01 03 02 92 0000 0000 1122334455667788 0011 0000 00000000"
#: SM_Key, AttributeOffset, reserved, ComponentMask.
ADMINISTRATION = "0000000000000000 000e 0000 0000000000000000"


class SegmentTests(SynchronousTestCase):
    """
    Literal octets.
    """

    def test_data(self) -> None:
        """
        The first segment has the length of all, with the class header of each; the last one its own.
        """
        sender = Sender(HEAD, bytes(200) + b"\xaa" * 30, 0.0)
        (first,) = sender.begin(0.0)
        self.assertEqual(
            first, bytes.fromhex(COMMON + "01 01 fb 00 00000001 0000010e" + ADMINISTRATION) + bytes(200)
        )
        (last,) = sender.received(control(first, AT, ACK, 0, 1, 65), 0.0)
        self.assertEqual(
            last,
            bytes.fromhex(COMMON + "01 01 fd 00 00000002 00000032" + ADMINISTRATION)
            + (b"\xaa" * 30).ljust(200, b"\0"),
        )

    def test_single(self) -> None:
        """
        A table without records is one segment, first and last, whose length is that of the class header.
        """
        (only,) = Sender(HEAD, b"", 0.0).begin(0.0)
        self.assertEqual(only[24:36].hex(" ", 4), "0101ff00 00000001 00000014")

    def test_control(self) -> None:
        """
        An ACK, STOP or ABORT has the headers of the segment; to its sender the response bit of the method is
        turned round.
        """
        back, on = COMMON.replace("92", "12"), COMMON
        segment = data(7, payload=b"records")
        for arguments, responds, common, header in (
            ((ACK, 0, 7, 71), True, back, "01 02 f9 00 00000007 00000047"),
            ((STOP, 1), True, back, "01 03 f9 01 00000000 00000000"),
            ((ABORT, 126), False, on, "01 04 f9 7e 00000000 00000000"),
        ):
            mad = control(segment, AT, *arguments, responds=responds)
            self.assertEqual(mad, bytes.fromhex(common + header + ADMINISTRATION) + bytes(200))

    def test_offsets(self) -> None:
        """
        Data begins behind the class header; other classes have no RMPP.
        """
        found = [dataAt(each) for each in (SUBNET_ADMINISTRATION, DEVICE_ADMINISTRATION, BOOT_INFORMATION)]
        self.assertEqual((found, dataAt(0x30), dataAt(0x4F)), ([56, 36, 36], 40, 40))
        for each in (SUBNET, PERFORMANCE, COMMUNICATION, 0x09, 0x50, 0xFF):
            self.assertIsNone(dataAt(each))

    def test_active(self) -> None:
        """
        A MAD is of a transfer if the flag Active says so, whatever else is set.
        """
        self.assertTrue(isSegment(data(1)))
        for octet, expected in ((0, False), (0xFE, False), (0x01, True), (0xFF, True)):
            self.assertIs(isSegment(bytes(26) + bytes((octet,)) + bytes(229)), expected)
        self.assertEqual(RMPP.pack(TABLE), bytes.fromhex("01 01 01 00 00000000 00000000"))

    def test_faults(self) -> None:
        """
        Version, type and status of every kind, and the order in which they are looked at.
        """
        for kind in range(256):
            for version in (0, 1, 2, 255):
                for status in (0, 1, 2, 117, *range(118, 128), 128, 255):
                    found = fault(RMPPHeader(version, kind, 0, 1, status))
                    if version != 1:
                        expected = TransferStatus.UNSUPPORTED_VERSION
                    elif kind not in (DATA, ACK, STOP, ABORT):
                        expected = TransferStatus.BAD_TYPE
                    elif status in {DATA: (0,), ACK: (0,), STOP: (1,)}.get(kind, range(118, 128)):
                        expected = None
                    else:
                        expected = TransferStatus.ILLEGAL_STATUS
                    self.assertEqual(found, expected, (version, kind, status))

    def test_flags(self) -> None:
        """
        Flags and response time share an octet.
        """
        self.assertEqual(headerOf(data(1, FIRST | LAST))[2:4], (0x1F, 7))
