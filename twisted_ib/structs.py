"""
The fields of a layout, for whoever checks types: C{struct.Struct} says of none what it is.

For C{LAYOUT: Final[Packed[tuple[int, bytes]]] = Struct(">I4s")}, the fields of C{LAYOUT.unpack(octets)} are
an C{int} and C{bytes}.  At run time there is nothing of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _typeshed import ReadableBuffer, WriteableBuffer

#: A tuple with the types of the fields.
F = TypeVar("F", covariant=True)


class Packed(Protocol[F]):
    """
    A C{Struct}, with the types of its fields.
    """

    @property
    def format(self) -> str:
        """
        Its format.
        """

    @property
    def size(self) -> int:
        """
        Its length, octets.
        """

    def pack(self, *values: Any) -> bytes:
        """
        @return: the octets of values.
        """

    def pack_into(self, buffer: WriteableBuffer, offset: int, *values: Any) -> None:
        """
        Put them into a buffer.
        """

    def unpack(self, buffer: ReadableBuffer, /) -> F:
        """
        @return: the values of octets.
        """

    def unpack_from(self, buffer: ReadableBuffer, offset: int = 0) -> F:
        """
        @return: the values at a place in a buffer.
        """

    def iter_unpack(self, buffer: ReadableBuffer, /) -> Iterator[F]:
        """
        @return: the values of one after the other.
        """


class UnpackFrom(Protocol[F]):
    """
    Its C{unpack_from} alone, bound.
    """

    def __call__(self, buffer: ReadableBuffer, offset: int = 0) -> F:
        """
        @return: the values at a place in a buffer.
        """


__all__ = ["Packed", "UnpackFrom"]
