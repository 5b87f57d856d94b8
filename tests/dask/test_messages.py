"""
Tests of L{twisted_ib.dask.messages}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib import limits
from twisted_ib.dask.messages import (
    BODY,
    FRAMES,
    READ,
    Place,
    body,
    frames,
    kindOf,
    lent,
    partsOf,
    placeOf,
    read,
)
from twisted_ib.errors import WireError

_TWO = bytes.fromhex(
    "01000000 00000002"  # Frames: two.
    "0000000000000003 0000000000000000 00000000 0000000000000000"  # Three bytes, here.
    "0000000000010000 0000000000001000 00000007 0000000000abc000"  # 64 KiB, at 0x1000, key 7, pointer.
    "616263"
)
_BODY = bytes.fromhex("02000000 00000000 0000000000020000 0000000000001000 00000007 0000000000000000")
_READ = bytes.fromhex("03000000 00000000")


class MessageTests(SynchronousTestCase):
    """
    Messages as bytes.
    """

    def test_frames(self) -> None:
        """
        A message carries each frame, or says where it is.
        """
        parts = [b"abc", Place(0x10000, 0x1000, 7, 0xABC000)]
        self.assertEqual(frames(parts), _TWO)
        self.assertEqual(kindOf(memoryview(_TWO)), FRAMES)
        self.assertEqual(partsOf(memoryview(_TWO)), parts)

    def test_body(self) -> None:
        """
        A message that is too long is somewhere else.
        """
        place = Place(0x20000, 0x1000, 7)
        self.assertEqual(body(place), _BODY)
        self.assertEqual(kindOf(memoryview(_BODY)), BODY)
        self.assertEqual(placeOf(memoryview(_BODY)), place)

    def test_read(self) -> None:
        """
        What was lent is given back.
        """
        self.assertEqual(read(), _READ)
        self.assertEqual(kindOf(memoryview(_READ)), READ)

    def test_empty(self) -> None:
        """
        There may be no frames, and frames of no bytes.
        """
        self.assertEqual(partsOf(memoryview(frames([]))), [])
        self.assertEqual(partsOf(memoryview(frames([b"", bytearray(1)]))), [b"", b"\0"])

    def test_lengths(self) -> None:
        """
        A message that is a byte shorter or longer is refused.
        """
        for message in (_TWO, _BODY, _READ):
            for wrong in (message[:-1], message + b"x"):
                with self.assertRaises(WireError):
                    kind = kindOf(memoryview(wrong))
                    self.assertEqual(kind, FRAMES)
                    partsOf(memoryview(wrong))
        for length in range(len(_TWO)):
            self.assertRaises(WireError, partsOf, memoryview(_TWO[:length]))

    def test_kinds(self) -> None:
        """
        Other kinds are refused, and frames where there are none.
        """
        for kind in {*range(256)} - {FRAMES}:
            self.assertRaises(WireError, partsOf, memoryview(bytes([kind]) + _TWO[1:]))
        self.assertRaises(WireError, kindOf, memoryview(_READ[:-1] + b"\x01"))

    def test_nowhere(self) -> None:
        """
        A body needs a key, a length of at least a head, and at most a message's.
        """
        for length, key in ((0x20000, 0), (7, 7), (limits.MESSAGE_BYTES + 1, 7)):
            self.assertRaises(WireError, placeOf, memoryview(body(Place(length, 0x1000, key))))

    def test_notLent(self) -> None:
        """
        What is lent has a length, which is no longer than may be read, and lies within 64 bits.
        """
        most, top = limits.DASK_FRAME_MOST, 1 << 64
        for length, address in ((1, 0x1000), (most, 0x1000), (most, top - most)):
            place = Place(length, address, 7)
            self.assertEqual(partsOf(memoryview(frames([place]))), [place])
        for length, address in ((0, 0x1000), (most + 1, 0x1000), (2, top - 1), (most, top - most + 1)):
            message = frames([Place(length, address, 7)])
            self.assertRaisesRegex(WireError, "can be lent", partsOf, memoryview(message))
        self.assertRaises(WireError, placeOf, memoryview(body(Place(0x20000, top - 0x1FFFF, 7))))
        self.assertRaises(WireError, placeOf, memoryview(body(Place(0x20000, 0x1000, 7, top - 0x1FFFF))))

    def test_tooManyLent(self) -> None:
        """
        A message lends so many frames and not one more; those that it carries do not count.
        """
        self.patch(limits, "DASK_FRAMES", 3)
        parts = [b"x", *[Place(1, 0x1000, 7)] * 3]
        self.assertEqual(partsOf(memoryview(frames(parts))), parts)
        message = memoryview(frames([*parts, Place(1, 0x1000, 7)]))
        self.assertRaisesRegex(WireError, "lends 4 frames", partsOf, message)

    def test_lent(self) -> None:
        """
        What fits is in the message; else the long frames are lent.
        """
        long = limits.DASK_FRAME_BYTES
        self.assertEqual(lent([1, long], 64 + long + 1), [])
        self.assertEqual(lent([1, long], 64 + long), [1])
        self.assertEqual(lent([long - 1, long, long + 1], 1000), [1, 2])

    def test_mostLent(self) -> None:
        """
        Beyond a number of long frames further ones are not lent.
        """
        lengths = [limits.DASK_FRAME_BYTES] * (limits.DASK_FRAMES + 1)
        self.assertEqual(lent(lengths, 1000), list(range(limits.DASK_FRAMES)))
