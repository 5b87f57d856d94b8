"""
Tests of L{twisted_ib.layouts}.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from attrs import asdict, define, evolve, frozen
from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.layouts import (
    Codec,
    FrozenRecord,
    Record,
    bits,
    fieldsOf,
    flag,
    named,
    octets,
    placed,
    scattered,
    split,
    within,
)


@frozen
class Inner:
    """
    What others have.
    """

    high: int = 0
    text: bytes = b"\0\0"


INNER = Codec(Inner, 4, placed(high=bits(0, 4), text=octets(2, 2, exact=True)), 8)
ANY = Inner()


@frozen
class Sample:
    """
    Every kind of field.
    """

    long: int = bits(1, 24)
    bit: bool = flag(4, 7)
    low: int = bits(4, 3, 2)
    apart: int = split((5, 4), (8, 8), (7, 4))
    text: bytes = octets(9, 3, default=b"")
    plain: Inner = within(12, INNER, ANY)
    perhaps: Inner | None = within(16, INNER, None)
    other: Inner = scattered(Inner, ANY, placed(text=octets(22, 2, exact=True), high=bits(20, 4)))
    last: int = bits(24, 64)
    reserved: int = 0


@frozen(eq=False, repr=False)
class Kept(FrozenRecord):
    """
    One that is compared, hashed and shown by its fields.
    """

    number: int = 0
    text: bytes = b""


@define(eq=False, repr=False)
class Changing(Record):
    """
    One whose fields change.
    """

    number: int = 0


CODEC = Codec(Sample, 36)
#: A message, and its octets; a letter for each field that is in a digit, and 0 for reserved ones.
VALUE = Sample(0xABCDEF, True, 5, 0x7C16, b"ab\0", Inner(9, b"in"), Inner(3, b"??"), Inner(1, b"so"), 1 << 63)
OCTETS = bytes.fromhex("00abcdef 85 70 0060c1 616200 9000696e 30003f3f 1000736f 8000000000000000 00000000")


class CodecTests(SynchronousTestCase):
    """
    Python that is made of a declaration.
    """

    def setUp(self) -> None:
        """
        With reserved bits, and without.
        """
        head = "def parse(buffer):"
        self.keeping: Any = CODEC.parser(head, "0", keeps=True)
        self.packing = CODEC.packer(keeps=True)

    def test_parsePack(self) -> None:
        """
        Each field is where its declaration says.
        """
        self.assertEqual(CODEC.pack(VALUE).hex(), OCTETS.hex())
        self.assertEqual(CODEC.parse(OCTETS), VALUE)
        self.assertEqual(CODEC.parse(bytes(36)), Sample(text=bytes(3)))
        self.assertEqual(CODEC.pack(Sample()), bytes(36))

    def test_everyBit(self) -> None:
        """
        Each bit belongs to a field, or is kept: it is written back, and without keeping it is 0.
        """
        fields = 0
        for position in range(36 * 8):
            altered = bytearray(OCTETS)
            altered[position // 8] ^= 0x80 >> position % 8
            parsed = self.keeping(altered)
            self.assertEqual(self.packing(parsed), altered)
            self.assertNotEqual(parsed, VALUE)
            if parsed.reserved:
                self.assertEqual(evolve(parsed, reserved=0), VALUE)
                self.assertEqual(CODEC.parse(altered), VALUE)
            else:
                fields += 1
        # Those that a codec of its own does not know are not kept here.
        self.assertEqual(fields, sum((24, 1, 3, 16, 24, 20, 20, 20, 64)))

    def test_reservedStaysInItsPlace(self) -> None:
        """
        What is not reserved is not changed by C{reserved}.
        """
        octets = self.packing(evolve(VALUE, reserved=(1 << 400) - 1))
        self.assertEqual(CODEC.parse(octets), VALUE)

    def test_doesNotFit(self) -> None:
        """
        A value that is too great, negative, too long or too short is named; one that is no number is refused.
        """
        for name, value in (
            ("long", 1 << 24),
            ("low", 8),
            ("low", -1),
            ("bit", 2),
            ("bit", -1),
            ("apart", 1 << 16),
            ("apart", -1),
            ("text", b"long"),
            ("last", 1 << 64),
            ("last", -1),
        ):
            error = self.assertRaises(ValueError, CODEC.pack, evolve(VALUE, **{name: value}))
            self.assertIn(name, str(error))
        for inner in (Inner(16), Inner(-1), Inner(0, b"long"), Inner(0, b"s")):
            for name in ("plain", "perhaps", "other"):
                self.assertRaises(ValueError, CODEC.pack, evolve(VALUE, **{name: inner}))
        error = self.assertRaises(ValueError, CODEC.pack, evolve(VALUE, last=None))
        self.assertIn("Sample: ", str(error))

    def test_remembered(self) -> None:
        """
        A codec with a cache gives the same object again.
        """
        octets = INNER.pack(Inner(7))
        self.assertIs(INNER.pack(Inner(7)), octets)
        self.assertIs(INNER.parse(octets), INNER.parse(bytes(octets)))
        self.assertEqual(CODEC.parse(OCTETS), CODEC.parse(OCTETS))
        self.assertIsNot(CODEC.parse(OCTETS), CODEC.parse(OCTETS))


class Colour(IntEnum):
    """
    Not every number has a name.
    """

    RED = 0
    BLUE = 5


@frozen(kw_only=True)
class Named:
    """
    A number with names, one in two places of an octet, and one that is longer than C{struct}'s.
    """

    colour: Colour = named(0, 4, Colour)
    apart: int = split((0, 4, 3), (1, 7, 6))
    large: int = bits(2, 80)


@frozen
class Flags:
    """
    Bits that have neighbours.
    """

    one: bool = flag(0, 7)
    two: bool = flag(0, 6)
    three: bool = flag(0, 5)


class FlagTests(SynchronousTestCase):
    """
    Bits.
    """

    def test_one(self) -> None:
        """
        A flag is one bit, of L{bool} or L{int}; what has more is refused, and sets no neighbour's.
        """
        codec = Codec(Flags, 1)
        for name, octet in (("one", 0x80), ("two", 0x40), ("three", 0x20)):
            packed = [codec.pack(Flags(**{name: value})) for value in (True, 1, False, 0)]
            self.assertEqual(packed, [bytes([octet])] * 2 + [bytes(1)] * 2)
            for value in (2, -1, 256):
                error = self.assertRaises(ValueError, codec.pack, Flags(**{name: value}))
                self.assertEqual(str(error), f"{name} has 1 bits: {value:#x} does not fit")


class NamedTests(SynchronousTestCase):
    """
    Fields by name.
    """

    def test_byName(self) -> None:
        """
        A class that wants its fields by name gets them so, and a L{dict} has them so.
        """
        octets = bytes.fromhex("5f 05 0123456789abcdef0123")
        value = Named(colour=Colour.BLUE, apart=0x785, large=0x0123456789ABCDEF0123)
        codec = Codec(Named, 12)
        self.assertEqual((codec.parse(octets), codec.pack(value)), (value, octets))
        self.assertIs(codec.parse(octets).colour, Colour.BLUE)
        self.assertEqual(codec.parse(bytes(12)), Named())
        self.assertRaises(ValueError, codec.parse, b"\x10" + bytes(11))
        self.assertEqual(Codec(dict, 12, fieldsOf(Named)).parse(octets), asdict(value))
        for number in (-1, 1 << 80):
            error = self.assertRaises(ValueError, codec.pack, evolve(value, large=number))
            self.assertIn("large has 80 bits", str(error))

    def test_nothing(self) -> None:
        """
        A message may have no fields.
        """
        codec = Codec(dict, 2, ())
        self.assertEqual((codec.parse(b"\1\1"), codec.pack({})), ({}, bytes(2)))
        self.assertEqual(Codec(dict, 0, ()).parse(b""), {})


class RecordTests(SynchronousTestCase):
    """
    Records that are compared, hashed and shown without methods of their own.
    """

    def test_frozen(self) -> None:
        """
        Equal ones are one key; another class's is not equal.
        """
        one = Kept(1, b"a")
        self.assertEqual({one: 2}[Kept(1, b"a")], 2)
        self.assertNotIn(one, (Kept(1, b"b"), Inner(1, b"a")))
        self.assertEqual(repr(one), "Kept(number=1, text=b'a')")

    def test_changing(self) -> None:
        """
        One whose fields change cannot be hashed, as with attrs.
        """
        self.assertEqual(Changing(1), Changing(1))
        self.assertRaises(TypeError, hash, Changing(1))
