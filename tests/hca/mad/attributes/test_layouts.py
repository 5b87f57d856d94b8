"""
Tests of L{twisted_ib.hca.mad.attributes.layouts}.
"""

from __future__ import annotations

from typing import ClassVar

from attrs import evolve, frozen
from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.errors import HeaderError, LengthError
from twisted_ib.hca.mad.attributes.layouts import Attribute, bits, layoutOf, nested, octets, table


@frozen(kw_only=True)
class Inner(Attribute):
    """
    An attribute that a record has.
    """

    ID: ClassVar[int] = 0x10
    OCTETS: ClassVar[int] = 2

    high: int = bits(0, 4)
    low: int = bits(1, 4, 3, skip=1)


@frozen(kw_only=True)
class Sample(Attribute):
    """
    Every kind of field.
    """

    ID: ClassVar[int] = 0x11
    OCTETS: ClassVar[int] = 12

    long: int = bits(0, 12, 3, components=2)
    flag: int = bits(2, 1, 0)
    pairs: tuple[int, ...] = table(3, 3, 4, 3, stride=8)
    text: bytes = octets(6, 3, skip=1)
    inner: Inner = nested(9, Inner)
    last: int = bits(11, 8, default=7)


#: Reserved bits are 0 in it.
PACKED = bytes.fromhex("0abc 01 01020f 616200 3004 ff")
VALUE = Sample(long=0xABC, flag=1, pairs=(1, 2, 15), text=b"ab\0", inner=Inner(high=3, low=4), last=255)


class LayoutTests(SynchronousTestCase):
    """
    Fields as data.
    """

    def test_parsePack(self) -> None:
        """
        Each field is where its declaration says; octets behind the attribute are another's.
        """
        self.assertEqual(Sample.parse(PACKED + b"more"), VALUE)
        self.assertEqual(Sample.parse(memoryview(PACKED)), VALUE)
        self.assertEqual(VALUE.pack(), PACKED)
        self.assertEqual(Sample().pack().hex(), "00" * 11 + "07")
        self.assertEqual(evolve(VALUE, text=b"ab").pack(), PACKED)

    def test_reserved(self) -> None:
        """
        Reserved bits are read as nothing, and written as 0.
        """
        full = Sample.parse(bytes([255]) * 12)
        self.assertEqual(full.pack().hex(), "0fff010f0f0f" + "ff" * 3 + "f00f" + "ff")

    def test_short(self) -> None:
        """
        An attribute that is not whole.
        """
        for size in range(len(PACKED)):
            self.assertRaises(LengthError, Sample.parse, PACKED[:size])

    def test_doesNotFit(self) -> None:
        """
        A value with more bits than its field, a negative one, and tables of another length.
        """
        for change in (
            {"long": 0x1000},
            {"flag": -1},
            {"pairs": (1, 2)},
            {"pairs": (1, 2, 16)},
            {"text": b"long"},
            {"text": b"\0abc"},
            {"inner": Inner(low=16)},
        ):
            self.assertRaises(HeaderError, evolve(VALUE, **change).pack)

    def test_components(self) -> None:
        """
        A component mask selects bits of the record: reserved components none, two of one field the same, each
        entry of a table and each field of what is nested its own.
        """
        layout = layoutOf(Sample)
        selected = [f"{each:024x}" for each in layout.components]
        self.assertEqual(
            selected,
            [
                "0fff00000000000000000000",
                "0fff00000000000000000000",
                "000001000000000000000000",
                "0000000f0000000000000000",
                "000000000f00000000000000",
                "00000000000f000000000000",
                "000000000000000000000000",
                "000000000000ffffff000000",
                "000000000000000000f00000",
                "000000000000000000000000",
                "000000000000000000000f00",
                "0000000000000000000000ff",
            ],
        )
        self.assertEqual(f"{layout.selected(0b101):024x}", "0fff01000000000000000000")
        self.assertEqual(layout.selected(0), 0)
        self.assertIsNone(layout.selected(1 << len(selected)))

    def test_layoutsOfSubclasses(self) -> None:
        """
        A class that adds fields to another has a layout of its own.
        """

        @frozen(kw_only=True)
        class More(Inner):
            more: int = bits(0, 4, 3)

        self.assertEqual(Inner(high=1).pack().hex(), "1000")
        self.assertEqual(More(high=1, more=2).pack().hex(), "1200")
