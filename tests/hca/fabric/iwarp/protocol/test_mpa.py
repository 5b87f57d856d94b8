"""
MPA's Request and Reply frames, literally.
"""

from __future__ import annotations

import sys
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.errors import HeaderError, LengthError, WireError
from twisted_ib.hca.fabric.iwarp.protocol import mpa
from twisted_ib.hca.fabric.iwarp.protocol.mpa import Depths, MPAErrorCode, StartupFrame

REQUEST = b"MPA ID Req Frame"
REPLY = b"MPA ID Rep Frame"

#: Frames and their octets.
FRAMES = (
    (
        REQUEST + bytes.fromhex("40 01 0005") + b"hello",
        StartupFrame(False, b"hello", revision=1, crc=True),
    ),
    (REPLY + bytes.fromhex("40 01 0000"), StartupFrame(True, revision=1, crc=True)),
    (
        REQUEST + bytes.fromhex("10 02 0006 8010 c010") + b"pd",
        StartupFrame(False, b"pd", depths=Depths(16, 16, True, zeroWrite=True, zeroRead=True)),
    ),
    (
        REPLY + bytes.fromhex("10 02 0004 8010 8010"),
        StartupFrame(True, depths=Depths(16, 16, True, zeroWrite=True)),
    ),
    (
        REPLY + bytes.fromhex("30 02 0006 0004 0004") + b"no",
        StartupFrame(True, b"no", isRejected=True, depths=Depths(4, 4)),
    ),
    # Each flag alone, and none.
    (REQUEST + bytes.fromhex("80 01 0000"), StartupFrame(False, revision=1, markers=True)),
    (REQUEST + bytes.fromhex("08 01 0000"), StartupFrame(False, revision=1, largeFPDUs=True)),
    (REPLY + bytes.fromhex("20 01 0000"), StartupFrame(True, revision=1, isRejected=True)),
    (REQUEST + bytes.fromhex("00 02 0000"), StartupFrame(False)),
    (
        REQUEST + bytes.fromhex("10 02 0004 7ffe 0001"),
        StartupFrame(False, depths=Depths(0x3FFE, 1, zeroSend=True)),
    ),
    (
        REQUEST + bytes.fromhex("10 02 0004 0000 7fff"),
        StartupFrame(False, depths=Depths(0, 0x3FFF, zeroRead=True)),
    ),
    (REQUEST + bytes.fromhex("00 02 0200") + bytes(512), StartupFrame(False, bytes(512))),
)

#: The begin of a frame of which the last octet shows that it is none; the error.
FAULTS = (
    (b"m", HeaderError, "expected"),
    (b"MPA ID Red", HeaderError, "expected"),
    (b"MPA ID Rep f", HeaderError, "expected"),
    (REQUEST + b"\0\0", HeaderError, "MPA revision 0"),
    (REQUEST + b"\0\3", HeaderError, "MPA revision 3"),
    (REQUEST + bytes.fromhex("00 02 0201"), LengthError, "513 octets of private data; 512 at most"),
    (REQUEST + bytes.fromhex("10 02 0003"), LengthError, "flag S has 3 octets, of 4 at least"),
)


class FrameTests(SynchronousTestCase):
    """
    Frames and octets.
    """

    def test_pack(self) -> None:
        """
        A frame is packed.
        """
        for octets, frame in FRAMES:
            self.assertEqual(frame.pack(), octets)

    def test_parse(self) -> None:
        """
        A frame is parsed where it stands; as long as an octet lacks there is none.
        """
        for octets, frame in FRAMES:
            buffer = bytearray(b"MPA" + octets + b"\0")
            for buffered in (buffer, memoryview(buffer), bytes(buffer)):
                found = StartupFrame.parse(buffered, 3, len(buffer))
                self.assertEqual(found, (frame, len(buffer) - 1))
            for stop in range(3, len(buffer) - 1):
                self.assertIsNone(StartupFrame.parse(buffer, 3, stop))
                self.assertIsNone(StartupFrame.parse(buffer[:stop], 3, stop))

    def test_faults(self) -> None:
        """
        The octet that makes a frame impossible raises a L{WireError}; before it there is none.
        """
        for octets, error, text in FAULTS:
            with self.assertRaisesRegex(error, text):
                StartupFrame.parse(octets, 0, len(octets))
            # A length has two octets.
            before = len(octets) - (2 if error is LengthError else 1)
            self.assertIsNone(StartupFrame.parse(octets, 0, before))
            self.assertTrue(issubclass(error, WireError))

    def test_kind(self) -> None:
        """
        Where only one of the two is expected, the octet that tells them apart is enough.
        """
        for isReply, octets in ((True, REQUEST), (False, REPLY)):
            self.assertIsNone(StartupFrame.parse(octets, 0, 9, isReply))
            self.assertRaises(HeaderError, StartupFrame.parse, octets, 0, 10, isReply)

    def test_reserved(self) -> None:
        """
        Reserved flags are ignored; in revision 1 flag S is one.
        """
        octets = REQUEST + bytes.fromhex("17 01 0002") + b"pd"
        found = StartupFrame.parse(octets, 0, len(octets))
        self.assertEqual(found, (StartupFrame(False, b"pd", revision=1), len(octets)))

    def test_tooLong(self) -> None:
        """
        Private data that does not fit is refused, and the error says how much does.
        """
        with self.assertRaisesRegex(LengthError, "of 513 octets; MPA carries 512"):
            StartupFrame(False, bytes(513)).pack()
        with self.assertRaisesRegex(LengthError, "of 509 octets; MPA carries 508"):
            StartupFrame(False, bytes(509), depths=Depths(1, 1)).pack()


class ErrorTests(SynchronousTestCase):
    """
    MPA's errors.
    """

    def test_codes(self) -> None:
        """
        Their codes are those of RFC 5044 section 8 and RFC 6581.
        """
        names = "TCP_LOST CRC MARKER STARTUP_FRAME LOCAL_CATASTROPHIC INSUFFICIENT_IRD NO_MATCHING_RTR"
        self.assertEqual([each.name for each in MPAErrorCode], names.split())
        self.assertEqual([int(each) for each in MPAErrorCode], [1, 2, 3, 4, 5, 6, 7])


class CRCTests(SynchronousTestCase):
    """
    The library of CRC32C.
    """

    def test_value(self) -> None:
        """
        The CRC is Castagnoli's: the check value of all catalogues.
        """
        self.assertTrue(mpa.hasCRC32C())
        self.assertEqual(mpa.crc32c(b"123456789"), 0xE3069283)

    def test_missing(self) -> None:
        """
        A missing library is noticed.
        """
        withoutLibrary(self)
        self.assertFalse(mpa.hasCRC32C())


def withoutLibrary(case: SynchronousTestCase) -> None:
    """
    Until the test's end, C{google_crc32c} cannot be imported.
    """
    case.addCleanup(mpa._library.cache_clear)
    missing = mock.patch.dict(sys.modules, {"google_crc32c": None})
    missing.start()
    case.addCleanup(missing.stop)
    mpa._library.cache_clear()
