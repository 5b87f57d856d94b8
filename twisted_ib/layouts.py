"""
Layouts of messages as data: where each field is, in octets and bits.

A message is a class whose fields are declared by the numbers of the standard's table, with L{bits}, L{flag},
L{split}, L{octets}, L{within} and L{scattered}.  L{Codec} makes Python of the declaration when it is needed
first, as attrs makes C{__init__} of fields: one call of C{struct}, and a shift for each field.

Bits that no field has are 0 from who writes, and ignored by who reads, unless the message keeps them.
"""

from __future__ import annotations

from bisect import bisect, bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from operator import attrgetter
from struct import Struct
from struct import error as structError
from typing import Any, Final, Generic, NamedTuple, TypeVar

from attrs import Attribute, field

T = TypeVar("T")
#: Where a field of attrs has its L{Field}.
FIELD: Final = "twisted_ib.field"
_OCTET: Final = 8
#: What C{struct} calls a number of so many bits.
_CODES: Final = {8: "B", 16: "H", 32: "I", 64: "Q"}
#: Larger numbers are octets to C{struct}.
_LARGEST: Final = 64

# For whoever checks types: getattr says of nothing what it is.
_valueOf: Final[Callable[[object, str], object]] = getattr
_made: Final[Callable[[object, str, None], dict[str, tuple[object, object, Field | None]] | None]] = getattr
_given: Final[Callable[[object, str, object], object]] = getattr
_fields: Final[Callable[[object, str], Sequence[Attribute[object]]]] = getattr


class Shown:
    """
    A class of attrs without a C{__repr__} of its own (C{repr=False}), whose text is made of its fields when
    somebody asks for it.

    That method is a third of the time that attrs takes to make a class, and a program that starts makes sixty
    of these.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        kind = type(self)
        said = [each.name for each in _fields(kind, "__attrs_attrs__") if each.repr]
        return f"{kind.__qualname__}({', '.join(f'{name}={_valueOf(self, name)!r}' for name in said)})"


class Record(Shown):
    """
    The same without C{__eq__} (C{eq=False, repr=False}), the second third: it is compared by its fields, and
    cannot be hashed.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(_valueOf(self, name) == _valueOf(other, name) for name in _placesOf(type(self)))


class FrozenRecord(Record):
    """
    One whose fields do not change (C{frozen}): it can be hashed, too.
    """

    __slots__ = ()

    def __hash__(self) -> int:
        return hash(tuple([_valueOf(self, name) for name in _placesOf(type(self))]))


class Field(NamedTuple):
    """
    One field of a layout.

    @ivar name: the attribute of the class.
    @ivar offset: of its first bit, from the start.
    @ivar width: bits of each entry.
    @ivar entries: how many; those of a table are a tuple.
    @ivar stride: bits from entry to entry of a table.
    @ivar kind: L{int}, L{bool}, L{tuple} of numbers, L{bytes}, or what is nested.
    @ivar skip: reserved components before it (IBTA vol. 1 15.4.4).
    @ivar components: how many bits of a component mask it has.
    @ivar parts: of what L{split} was given, offset and width of each.
    @ivar inner: the fields of what is L{scattered}.
    @ivar exact: whether octets have to fill it.
    @ivar default: its value unless told otherwise.
    """

    name: str
    offset: int
    width: int
    entries: int = 1
    stride: int = 0
    kind: Any = int
    skip: int = 0
    components: int = 1
    parts: tuple[tuple[int, int], ...] = ()
    inner: tuple[Field, ...] = ()
    exact: bool = False
    default: object = None

    def offsets(self) -> list[int]:
        """
        @return: of the first bit of each entry.
        """
        return [self.offset + index * self.stride for index in range(self.entries)]


def bits(
    octet: int, width: int, first: int = 7, *, default: int = 0, skip: int = 0, components: int = 1
) -> int:
    """
    An unsigned number.

    @param octet: where it begins.
    @param width: its bits, which may go on in the octets that follow.
    @param first: its highest bit in the first octet; 7 is the octet's highest.
    @param default: its value unless told otherwise.
    @param skip: reserved components in front of it.
    @param components: the bits of a component mask that select it.
    """
    place = Field("", octet * _OCTET + 7 - first, width, skip=skip, components=components)
    return declared(place, default)


def named(octet: int, width: int, kind: Callable[[int], T], first: int = 7) -> T:
    """
    A number with names, 0 unless told otherwise.

    @param kind: raises L{ValueError} for a number that has none.
    """
    return declared(Field("", octet * _OCTET + 7 - first, width), 0, kind)


def flag(octet: int, bit: int) -> bool:
    """
    A bit.

    @param bit: 7 is the octet's highest.
    """
    return declared(Field("", octet * _OCTET + 7 - bit, 1, kind=bool), False)


def split(*parts: tuple[int, int] | tuple[int, int, int]) -> int:
    """
    An unsigned number in several places.

    @param parts: octet and width of each, and its highest bit in the octet if not 7; highest bits first.
    """
    places = tuple((octet * _OCTET + 7 - sum(first or [7]), width) for octet, width, *first in parts)
    return declared(Field("", places[0][0], sum(width for _, width in places), parts=places), 0)


def octets(
    octet: int, size: int, *, skip: int = 0, exact: bool = False, default: bytes | None = None
) -> bytes:
    """
    Octets, padded with zeros.

    @param exact: there have to be C{size}.
    @param default: their value unless told otherwise, which is zeros.
    """
    place = Field("", octet * _OCTET, size * _OCTET, kind=bytes, skip=skip, exact=exact)
    return declared(place, bytes(size) if default is None else default)


def within(octet: int, codec: Codec[Any], default: T) -> T:
    """
    A part that has a codec of its own.

    @param default: its value unless told otherwise; L{None} stands for zeros.
    """
    return declared(Field("", octet * _OCTET, codec.size * _OCTET, kind=codec), default)


def scattered(kind: Callable[..., T], default: T, parts: tuple[Field, ...]) -> T:
    """
    A part that has its fields among those of the message.
    """
    return declared(Field("", parts[0].offset, 0, kind=kind, inner=parts), default)


def declared(place: Field, default: Any, converter: Callable[[int], object] | None = None) -> Any:
    """
    @return: a field of attrs that knows its place.
    """
    return field(default=default, converter=converter, metadata={FIELD: place._replace(default=default)})


def placed(**declarations: Any) -> tuple[Field, ...]:
    """
    @param declarations: of the fields of a class which does not declare them itself.
    """
    return tuple(each.metadata[FIELD]._replace(name=name) for name, each in declarations.items())


def fieldsOf(kind: Any) -> tuple[Field, ...]:
    """
    @return: the declared fields of a class, in its order.
    """
    found = _placesOf(kind).items()
    return tuple(place._replace(name=name) for name, place in found if place is not None)


def _placesOf(kind: object) -> dict[str, Field | None]:
    # Of all its fields.  For those of twisted_ib.records attrs is not asked.
    made = _made(kind, "__fields__", None)
    if made is None:
        return {each.name: each.metadata.get(FIELD) for each in _fields(kind, "__attrs_attrs__")}
    return {name: place for name, (_, _, place) in made.items()}


def ofTuple(kind: type[T], size: int) -> Codec[T]:
    """
    @param kind: a L{NamedTuple<typing.NamedTuple>} with declarations for defaults, which become their values.
    """
    made: Any = kind
    declaration = placed(**made._field_defaults)
    made._field_defaults = {each.name: each.default for each in declaration}
    made.__new__.__defaults__ = tuple(made._field_defaults.values())
    return Codec(kind, size, declaration)


class _Word(NamedTuple):
    # What struct reads at once: its first bit, its bits, and its format.
    start: int
    width: int
    code: str

    @property
    def name(self) -> str:
        return f"_{self.start // _OCTET}"


class Codec(Generic[T]):
    """
    The layout of a class of messages, and what is made of it.

    @ivar kind: makes a message of its fields; a L{dict} has them by name.
    @ivar size: octets of the message.
    """

    def __init__(
        self,
        kind: Callable[..., T],
        size: int,
        declaration: Iterable[Field] | None = None,
        remembered: int = 0,
    ) -> None:
        """
        @param declaration: the fields; by default the class's own.
        @param remembered: how many of the latest are cached, both packed and parsed.
        """
        self.kind, self.size, self._declaration, self._remembered = kind, size, declaration, remembered

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """
        In the order of the constructor.
        """
        return fieldsOf(self.kind) if self._declaration is None else tuple(self._declaration)

    @cached_property
    def _leaves(self) -> dict[str, Field]:
        # By what stands behind C{self.}.
        return {
            name: leaf
            for each in self.fields
            for name, leaf in (
                [(f"{each.name}.{part.name}", part) for part in each.inner] or [(each.name, each)]
            )
        }

    @cached_property
    def _words(self) -> tuple[_Word, ...]:
        # Each number is read as the least of struct's that begins and ends between fields; reserved octets in
        # front of it may be part of it.
        places = sorted(
            (offset, offset + width, leaf.kind in (int, bool, tuple) and width <= _LARGEST)
            for leaf in self._leaves.values()
            for offset, width in _places(leaf)
        )
        found = self._divided(places, 0)
        assert found is not None, f"fields of {self.kind} overlap"
        return tuple(found)

    @cached_property
    def _starts(self) -> list[int]:
        return [word.start for word in self._words]

    def _divided(self, places: list[tuple[int, int, bool]], last: int) -> list[_Word] | None:
        # The words of what begins at last or later.
        if not places:
            return []
        start, end, isNumber = places[0]
        choices = [_Word(start, end - start, f"{(end - start) // _OCTET}s")]
        if isNumber:
            choices = [
                _Word(begin, width, code)
                for begin in range(start - start % _OCTET, last - 1, -_OCTET)
                for width, code in _CODES.items()
                if end <= begin + width <= self.size * _OCTET
            ]
        for word in choices:
            behind = word.start + word.width
            count = bisect_left(places, (behind,))
            if all(high <= behind and number == isNumber for _, high, number in places[:count]):
                found = self._divided(places[count:], behind)
                if found is not None:
                    return [word, *found]
        return None

    @cached_property
    def struct(self) -> Struct:
        """
        Its numbers and octets, each as wide as C{struct} has them.
        """
        codes, last = ">", 0
        for word in self._words:
            codes += f"{(word.start - last) // _OCTET}x{word.code}"
            last = word.start + word.width
        return Struct(f"{codes}{self.size - last // _OCTET}x")

    @cached_property
    def free(self) -> int:
        """
        The bits that no field has, as a number of C{size} octets.
        """
        bits = self.size * _OCTET
        free = (1 << bits) - 1
        for leaf in self._leaves.values():
            for offset, width in _places(leaf):
                inner = leaf.kind.free if isinstance(leaf.kind, Codec) else 0
                free ^= ((1 << width) - 1 ^ inner) << bits - offset - width
        return free

    @cached_property
    def keptOctets(self) -> int:
        """
        How many octets there are up to the last bit that no field has.
        """
        return self.size - ((self.free & -self.free).bit_length() - 1) // _OCTET if self.free else 0

    @cached_property
    def kept(self) -> int:
        """
        The bits that no field has, as a number of C{keptOctets}.
        """
        return self.free >> (self.size - self.keptOctets) * _OCTET

    def keep(self, octets: bytes, reserved: int) -> bytes:
        """
        Set bits that no field has.
        """
        size = self.keptOctets
        # Masked: a wrong C{reserved} must not change a field.
        head = int.from_bytes(octets[:size], "big") | reserved & self.kept
        return head.to_bytes(size, "big") + octets[size:]

    def _parts(self, leaf: Field) -> Iterator[tuple[_Word, int, int, int]]:
        # Each part: its word, shift and width in it, and how many bits of the value are behind it elsewhere.
        isTable, rest = leaf.kind is tuple, leaf.width
        for offset, width in _places(leaf):
            word = self._words[bisect(self._starts, offset) - 1]
            rest = 0 if isTable else rest - width
            yield word, word.start + word.width - offset - width, width, rest

    def _read(self, name: str, leaf: Field) -> str:
        terms: list[str] = []
        kind: object = leaf.kind
        for word, shift, width, rest in self._parts(leaf):
            term = f"{word.name} >> {shift}" if shift else word.name
            if kind is bool:
                return f"{word.name} & {1 << shift} != 0"
            if word.code.endswith("s") and kind is int:
                return f'int.from_bytes({word.name}, "big")'
            if isinstance(kind, Codec):
                isEmpty = f"None if {word.name} == {name}_octets else " if leaf.default is None else ""
                return f"{isEmpty}{name}_parse({word.name})"
            if shift + width < word.width:
                term += f" & {(1 << width) - 1}"
            terms.append(f"({term}) << {rest}" if rest else term)
        return f"({', '.join(terms)},)" if kind is tuple else " | ".join(terms)

    def reading(self) -> list[str]:
        """
        @return: an expression for each field, of names of what C{struct} unpacks.
        """
        found = []
        for each in self.fields:
            inner = ", ".join(f"{part.name}={self._read('', part)}" for part in each.inner)
            found.append(f"{each.name}_kind({inner})" if inner else self._read(each.name, each))
        return found

    def _keeping(self, at: str) -> str:
        # An expression for the bits that no field has.
        for word in self._words:
            if word.start + word.width == self.keptOctets * _OCTET and not self.kept >> word.width:
                return f"{word.name} & {self.kept}"
        return f'int.from_bytes(buffer[{at} : {at} + {self.keptOctets}], "big") & {self.kept}'

    def parser(self, head: str, at: str = "start", keeps: bool = False, **names: Any) -> Callable[..., Any]:
        """
        @param head: the first lines of the function, which has C{buffer} and C{cls}.
        @param at: where the message begins in C{buffer}.
        @param keeps: whether the bits that no field has are given to the class, behind the last field.
        @param names: those of C{head} that are not its parameters.
        """
        words = "".join(f"{word.name}, " for word in self._words)
        read = self.reading()
        if self.kind is dict or not _given(self.kind, "__match_args__", True):
            read = [f"{each.name}={value}" for each, value in zip(self.fields, read, strict=True)]
        taken = ", ".join([*read, *([self._keeping(at)] if keeps and self.free else [])])
        lines = [*head.splitlines(), f" ({words}) = unpack(buffer, {at})", f" return cls({taken})"]
        return self._made(lines, unpack=self.struct.unpack_from, **names)

    def likener(self, head: str, own: Sequence[str], most: int, **names: Any) -> Callable[..., Any]:
        """
        As L{parser} that keeps, for messages of which most are alike but for few fields: only these are read,
        if all else is as in one before.

        @param head: has C{stop} too; the class has no slots.
        @param own: numbers and octets that fill theirs.
        @param most: how many are remembered, of those that are not alike.
        """
        mine = sorted((each.offset // _OCTET, each) for each in self.fields if each.name in own)
        code, taken, others, stored, last = ">", [], [], [], 0
        for start, each in mine:
            end = start + each.width // _OCTET
            if start > last:
                code += f"{start - last}s"
                others.append(f"_{last}")
                taken.append(f"_{last}")
            parts = [f"_{start}"]
            if each.kind is bytes:
                code += f"{end - start}s"
            elif end - start == 3:
                code += "HB"
                parts.append(f"_{start + 2}")
            else:
                code += _CODES[each.width]
            taken += parts
            stored.append(f" message.{each.name} = {' << 8 | '.join(parts)}")
            last = end
        if last < self.size:
            code += f"{self.size - last}s"
            others.append(f"_{last}")
            taken.append(f"_{last}")
        lines = [
            *head.splitlines(),
            f" {', '.join(taken)} = unpack(buffer, start)",
            f" alike = known.get(({', '.join(others)},))",
            " if alike is None:",
            "  octets = bytes(buffer[start:stop])",  # Once: in shared memory the peer may write still.
            f"  {', '.join(taken)} = unpack(octets, 0)",
            "  message = first(cls, octets)",
            f"  if len(known) >= {most}:",
            "   known.clear()",
            f"  known[{', '.join(others)},] = vars(message).copy()",
            "  return message",
            " message = new(cls)",
            " message.__dict__ = alike.copy()",
            *stored,
            " return message",
        ]
        first = self.parser("def parse(cls, buffer):", "0", keeps=True)
        unpack = Struct(code).unpack_from
        return self._made(lines, unpack=unpack, first=first, known={}, new=object.__new__, **names)

    def packer(self, keeps: bool = False) -> Callable[[T], bytes]:
        """
        @param keeps: whether a message has C{reserved}: bits that no field has.
        @return: a function of a message, which raises L{ValueError} if a field does not fit.
        """
        values: dict[_Word, list[str]] = {word: [] for word in self._words}
        lines = ["def pack(self):"]
        wide: dict[int, list[str]] = {}
        short: list[str] = []
        wrong: list[str] = []
        for path, leaf in self._leaves.items():
            name, term = path.replace(".", "_"), f"self.{path}"
            kind: object = leaf.kind
            parts = list(self._parts(leaf))
            # struct checks what stands at the top of a number.
            highest, up, size, _ = parts[0]
            isTop = up + size == highest.width
            if kind is tuple or isinstance(kind, Codec) or len(parts) > 1:
                lines.append(f" {name} = {term}")
                term = name
            if kind is tuple:
                short.append(f"len({name}) != {leaf.entries}")
            elif kind is bytes:
                wrong.append(f"len({term}) {'!=' if leaf.exact else '>'} {leaf.width // _OCTET}")
            elif kind is int and leaf.width > _LARGEST:
                term += f'.to_bytes({leaf.width // _OCTET}, "big")'
            elif kind in (int, bool) and not isTop:
                wide.setdefault(leaf.width, []).append(term)
            elif isinstance(kind, Codec):
                term = f"{name}_octets if {name} is {name}_default else {name}_pack({name})"
            for index, (word, shift, width, rest) in enumerate(parts):
                if kind is tuple:
                    term = f"{name}[{index}]"
                    if shift + width < word.width:
                        wide.setdefault(width, []).append(term)
                shifted = f"{term} >> {rest}" if rest else term
                if index and kind is int:
                    shifted = f"({shifted} & {(1 << width) - 1})"
                values[word].append(f"{shifted} << {shift}" if shift else shifted)
        wrong[:0] = [*short, *(f"({' | '.join(names)}) >> {width}" for width, names in wide.items())]
        if wrong:
            lines += [f" if {' or '.join(wrong)}:", "  raise unfit(self, None)"]
        isKept = keeps and self.free
        packed = f"packed({', '.join(' | '.join(terms) for terms in values.values())})"
        lines += [" try:", f"  {'octets =' if isKept else 'return'} {packed}"]
        lines += [" except (structError, OverflowError) as error:", "  raise unfit(self, error) from None"]
        if isKept:
            lines.append(" return keep(octets, self.reserved) if self.reserved else octets")
        return self._made(lines, packed=self.struct.pack, keep=self.keep)

    def _made(self, lines: list[str], **names: Any) -> Callable[..., Any]:
        names.update(cls=self.kind, unfit=self._unfit, structError=structError)
        for each in self.fields:
            if isinstance(each.kind, Codec):
                empty = each.default is None
                names[f"{each.name}_pack"], names[f"{each.name}_parse"] = each.kind.pack, each.kind.parse
                names[f"{each.name}_default"] = each.default
                names[f"{each.name}_octets"] = (
                    bytes(each.kind.size) if empty else each.kind.pack(each.default)
                )
            names[f"{each.name}_kind"] = each.kind
        exec(compile("\n".join(lines), f"<layout of {self.kind.__name__}>", "exec"), names)
        made: Callable[..., Any] = names[lines[0].split()[1].partition("(")[0]]
        return made

    @cached_property
    def pack(self) -> Callable[[T], bytes]:
        """
        Packs a message; L{ValueError} if a field does not fit.
        """
        made = self.packer()
        return lru_cache(self._remembered)(made) if self._remembered else made

    @cached_property
    def parse(self) -> Callable[[bytes], T]:
        """
        Parses C{size} octets.
        """
        made = self.parser("def parse(buffer):", "0")
        return lru_cache(self._remembered)(made) if self._remembered else made

    def _unfit(self, message: Any, error: object) -> ValueError:
        for name, leaf in self._leaves.items():
            value: object = attrgetter(name)(message)
            kind: object = leaf.kind
            size = leaf.width // _OCTET
            if isinstance(value, bytes) and (len(value) > size or (leaf.exact and len(value) < size)):
                return ValueError(f"{name} has {size} octets, not {len(value)}")
            numbers: Sequence[object] = value if isinstance(value, Sequence) else (value,)
            if kind is tuple and len(numbers) != leaf.entries:
                return ValueError(f"{name} has {leaf.entries} entries, not {len(numbers)}")
            for number in numbers if kind in (int, bool, tuple) else ():
                if isinstance(number, int) and number >> leaf.width:
                    return ValueError(f"{name} has {leaf.width} bits: {number:#x} does not fit")
        return ValueError(f"{type(message).__name__}: {error}")


def _places(leaf: Field) -> Sequence[tuple[int, int]]:
    return leaf.parts or [(offset, leaf.width) for offset in leaf.offsets()]
