"""
Layouts of management attributes as data: where each field is, in octets and bits.

An attribute is an L{Attribute}: a frozen class whose fields are declared in the order and by the numbers of
the standard's table, with L{bits}, L{table}, L{octets} and L{nested}.  The same declaration parses, packs,
names the fields, and tells which bits of a record a component mask of subnet administration selects (IBTA
vol. 1 15.4.4).  Field names are those of libibmad, whose tools print them (rdma-core C{fields.c}).

Reserved bits are ignored by who reads and 0 from who writes (IBTA vol. 1 3.2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from attrs import Factory

from twisted_ib.errors import HeaderError, LengthError
from twisted_ib.layouts import Codec, Field, bits, declared, fieldsOf, octets

if TYPE_CHECKING:
    from typing_extensions import Self

Kind = TypeVar("Kind", bound="Attribute")
_OCTET: Final = 8


def table(octet: int, count: int, width: int, first: int = 7, stride: int = 0) -> tuple[int, ...]:
    """
    A table of unsigned numbers, which is a tuple.

    @param stride: bits from one to the next, if there is anything between them.
    """
    place = Field("", octet * _OCTET + 7 - first, width, count, stride or width, tuple, 0, count)
    return declared(place, (0,) * count)


def nested(octet: int, kind: type[Kind], *, skip: int = 0) -> Kind:
    """
    Another attribute, inside a record of subnet administration.
    """
    place = Field("", octet * _OCTET, kind.OCTETS * _OCTET, kind=kind, skip=skip, components=0)
    return declared(place, Factory(kind))


class Layout:
    """
    The layout of one attribute.

    @ivar size: octets.
    @ivar fields: in the order of the table.
    @ivar codec: parses and packs it.
    @ivar components: for each bit of a component mask, which bits of the record it selects, as a number of
        C{size} octets; 0 for a reserved one.
    @ivar bits: the bits of a component mask by the names of their fields, those of a nested attribute too
        where the record has no field of that name.
    """

    __slots__ = ("bits", "codec", "components", "fields", "size")
    codec: Codec[Any]
    components: tuple[int, ...]

    def __init__(self, kind: type[Attribute]) -> None:
        self.size = kind.OCTETS
        self.fields = fieldsOf(kind)
        # What is nested has a codec of its own.
        self.codec = Codec(
            kind,
            self.size,
            [
                each._replace(kind=layoutOf(each.kind).codec, default=each.kind())
                if issubclass(each.kind, Attribute)
                else each
                for each in self.fields
            ],
        )
        components: list[int] = []
        own: dict[str, int] = {}
        within: dict[str, int] = {}
        for each in self.fields:
            mask = (1 << each.width) - 1
            shifts = [self.size * _OCTET - offset - each.width for offset in each.offsets()]
            components += [0] * each.skip
            first = len(components)
            if issubclass(each.kind, Attribute):
                inner = layoutOf(each.kind)
                components += [selected << shifts[0] for selected in inner.components]
                within.update((name, chosen << first) for name, chosen in inner.bits.items())
                continue
            if each.entries > 1:
                components += [mask << shift for shift in shifts]
            else:
                components += [mask << shifts[0]] * each.components
            own[each.name] = (1 << len(components)) - (1 << first)
        self.components = tuple(components)
        self.bits: dict[str, int] = {**within, **own}

    def selected(self, componentMask: int) -> int | None:
        """
        The bits of a record that a query compares: a record matches if it has the query's bits there.

        @return: a number of C{size} octets; L{None} if the mask has bits beyond the record's components.
        """
        if componentMask >> len(self.components):
            return None
        chosen = 0
        for index, mask in enumerate(self.components):
            if componentMask >> index & 1:
                chosen |= mask
        return chosen


class Attribute:
    """
    Base class of attributes.

    @cvar ID: the attribute id.
    @cvar OCTETS: how many it has.
    """

    __slots__ = ()
    ID: ClassVar[int]
    OCTETS: ClassVar[int]

    @classmethod
    def parse(cls, data: bytes | memoryview) -> Self:
        """
        @param data: begin with the attribute; what follows is ignored.
        @raise LengthError: there are too few octets.
        """
        layout = layoutOf(cls)
        if len(data) < layout.size:
            raise LengthError(f"an attribute of {layout.size} octets is not in {len(data)}")
        found: Self = layout.codec.parse(bytes(data[: layout.size]))
        return found

    def pack(self) -> bytes:
        """
        @return: L{OCTETS} octets.
        @raise HeaderError: a field does not fit.
        """
        try:
            return layoutOf(type(self)).codec.pack(self)
        except ValueError as error:
            raise HeaderError(str(error)) from None


# One for each class of the package.
_LAYOUTS: Final[dict[type[Attribute], Layout]] = {}


def layoutOf(kind: type[Attribute]) -> Layout:
    """
    @return: the layout of an attribute.
    """
    layout = _LAYOUTS.get(kind)
    if layout is None:
        layout = _LAYOUTS[kind] = Layout(kind)
    return layout


__all__ = ["Attribute", "Field", "Layout", "bits", "layoutOf", "nested", "octets", "table"]
