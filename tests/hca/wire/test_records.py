"""
Tests of L{twisted_ib.records}.
"""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable
from copy import copy, deepcopy
from enum import IntEnum
from typing import Any, ClassVar

import attrs
from attrs.exceptions import FrozenInstanceError
from twisted.trial.unittest import SynchronousTestCase

from twisted_ib import records
from twisted_ib.hca.queues.requests import Capabilities
from twisted_ib.layouts import Codec, FrozenRecord, Record, Shown, bits, fieldsOf, named


class Colour(IntEnum):
    """
    Not every number has a name.
    """

    RED = 0
    BLUE = 5


def classes(define: Callable[..., Any], frozen: Callable[..., Any]) -> dict[str, Any]:
    """
    @return: the same classes, made by either.
    """

    @frozen(kw_only=True, eq=False, repr=False)
    class Base(FrozenRecord):
        mark: ClassVar[int] = 1
        one: int = bits(0, 8, default=3)
        colour: Colour = named(1, 8, Colour)

    @frozen(kw_only=True, eq=False, repr=False)
    class Derived(Base):
        two: int
        three: int = bits(2, 16)

    class Plain(Derived):
        __slots__ = ()

    @define(eq=False, repr=False)
    class Changing(Record):
        first: int
        _second: int = 2
        third: int = bits(0, 8)

        def __attrs_post_init__(self) -> None:
            if self.first < 0:
                raise ValueError

    @define(slots=False, eq=False, repr=False)
    class Loose(Record):
        one: int = 1
        two: int = 2

    @define(slots=False, eq=False, repr=False)
    class Looser(Loose):
        two: int = bits(0, 8, default=7)
        three: int = 3

    @frozen(repr=False)
    class Key(Shown):
        one: int
        apart: object = attrs.field(eq=False, repr=False)
        two: int = attrs.field(default=2, converter=int)

    class Subkey(Key):
        __slots__ = ()

    @define(repr=False, weakref_slot=False)
    class Row(Shown):
        one: int = 1
        many: list[int] = attrs.field(factory=list)

    @frozen(repr=False)
    class Empty(Shown):
        pass

    @define(eq=False, repr=False)
    class Same(Shown):
        many: list[int] = attrs.field(factory=list, converter=list)

    found = (Base, Derived, Plain, Changing, Loose, Looser, Key, Subkey, Row, Empty, Same)
    return {each.__name__: each for each in found}


ATTRS = classes(attrs.define, attrs.frozen)


class RecordTests(SynchronousTestCase):
    """
    Classes are as attrs would make them.
    """

    def setUp(self) -> None:
        """
        Nobody has asked for anything of these.
        """
        self.ours = classes(records.define, records.frozen)

    def test_made(self) -> None:
        """
        Objects have the same values, texts and attributes; wrong arguments are refused alike.
        """
        for kind, *values in (
            ("Base",),
            ("Changing", 1),
            ("Changing", 1, 4, 5),
            ("Changing", -1),
            ("Changing",),
            ("Loose", 3),
            ("Looser", 1, 2, 3),
            ("Looser", 1, 2, 3, 4),
            ("Derived", 1),
            ("Key", 1, 2, "3"),
            ("Key", 1, 2),
            ("Key", 1),
            ("Subkey", 1, 2),
            ("Row",),
            ("Row", 1, [2]),
            ("Empty",),
            ("Same", (3,)),
            ("Same",),
        ):
            found = [self.outcome(each[kind], *values) for each in (ATTRS, self.ours)]
            self.assertEqual(found[0], found[1], kind)
        for kind, arguments in (
            ("Base", {"one": 4, "colour": 5}),
            ("Base", {"colour": 1}),
            ("Base", {"mark": 2}),
            ("Derived", {"two": 5}),
            ("Derived", {"one": 5}),
            ("Plain", {"two": 5, "three": 6}),
            ("Changing", {"first": 1, "second": 3}),
            ("Changing", {"first": 1, "_second": 3}),
        ):
            found = [self.outcome(each[kind], **arguments) for each in (ATTRS, self.ours)]
            self.assertEqual(found[0], found[1], kind)

    def outcome(self, kind: Any, *values: object, **named: object) -> object:
        """
        @return: all that is to be seen of an object, or what making it raises.
        """
        try:
            made = kind(*values, **named)
        except (TypeError, ValueError) as error:
            return str(error).rpartition(".")[2]
        try:
            weakref.ref(made)
        except TypeError:
            self.assertEqual(kind.__name__, "Row")
        slots = hasattr(made, "__dict__"), [vars(each).get("__slots__") for each in kind.__mro__]
        return repr(made), attrs.asdict(made), made == kind(*values, **named), slots, kind.__match_args__

    def test_attributes(self) -> None:
        """
        attrs has the same fields, and makes objects of others; layouts, and classes that are derived, too.
        """
        for name, kind in self.ours.items():
            said = [list(map(self.attribute, attrs.fields(one))) for one in (ATTRS[name], kind)]
            self.assertEqual(said[0], said[1])
            self.assertEqual(fieldsOf(ATTRS[name]), fieldsOf(kind))
            self.assertEqual(Codec(ATTRS[name], 4).fields, Codec(kind, 4).fields)
        changed = attrs.evolve(self.ours["Plain"](two=1), two=2, colour=5)
        self.assertEqual(changed, self.ours["Plain"](two=2, colour=Colour.BLUE))
        self.assertEqual(attrs.evolve(self.ours["Changing"](1), second=3)._second, 3)

    def attribute(self, one: Any) -> tuple[object, ...]:
        """
        @return: what is to be seen of one.
        """
        return (
            (one.name, one.alias, one.default, one.kw_only, one.converter),
            (one.eq, one.repr, dict(one.metadata)),
        )

    def test_later(self) -> None:
        """
        Nothing is compiled, and no attribute made, before somebody asks for it.
        """
        kind = self.ours["Derived"]
        before = kind.__init__
        self.assertEqual(fieldsOf(kind)[0].name, "one")
        self.assertIn(self.ours["Plain"](two=1), [kind(two=2), self.ours["Plain"](two=1)])
        self.assertNotIn(type(vars(kind)["__attrs_attrs__"]), (tuple, type(attrs.fields(ATTRS["Base"]))))
        self.assertIsNot(kind.__init__, before)
        self.assertEqual(kind.__init__.__code__.co_filename, f"<record {__name__}.{kind.__qualname__}>")

    def test_compared(self) -> None:
        """
        Those that are compared are equal, and have equal hashes, as attrs' are; what is left out of that does
        not count, and one of a derived class is another.
        """
        for kinds in (ATTRS, self.ours):
            one, same, other = (kinds["Key"](*values) for values in ((1, 2), (1, 3), (2, 2)))
            sub = kinds["Subkey"](1, 2)
            self.assertEqual(
                (one == same, one != same, one == other, one != other), (True, False, False, True)
            )
            self.assertEqual((one == sub, sub == kinds["Subkey"](1, 3), one == 1), (False, True, False))
            self.assertEqual((len({one, same, other}), hash(one) == hash(same)), (2, True))
            self.assertEqual(len({kinds["Empty"](), kinds["Empty"]()}), 1)
            row = kinds["Row"](1)
            self.assertEqual((row == kinds["Row"](), row == kinds["Row"](1, [2])), (True, False))
            self.assertIsNot(row.many, kinds["Row"](1).many)
            self.assertRaises(TypeError, hash, row)
            self.assertNotEqual(kinds["Same"](), kinds["Same"]())
            self.assertEqual(len({kinds["Same"](), kinds["Same"]()}), 2)
            self.assertRaises(AttributeError, setattr, row, "other", 1)

    def test_frozen(self) -> None:
        """
        Frozen ones stay as they are, and are keys.
        """
        made = self.ours["Plain"](two=1)
        self.assertRaises(FrozenInstanceError, setattr, made, "two", 2)
        self.assertRaises(FrozenInstanceError, delattr, made, "two")
        self.assertEqual({made: 3}[self.ours["Plain"](two=1)], 3)
        self.assertRaises(TypeError, hash, self.ours["Loose"]())

    def test_copied(self) -> None:
        """
        Those of a module are copied and pickled as attrs' are.
        """
        made = Capabilities(sends=7)
        for found in (copy(made), deepcopy(made), pickle.loads(pickle.dumps(made))):
            self.assertEqual((found, type(found)), (made, Capabilities))
            self.assertIsNot(found, made)
