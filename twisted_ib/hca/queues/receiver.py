"""
The base class of what takes a path's records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted_ib.compilation import mypyc_attr

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import Buffer


@mypyc_attr(allow_interpreted_subclasses=True)
class RecordReceiver:
    """
    An entry of a path's table: a queue pair, or what stands there for one.
    """

    # One base class for all: between compiled classes C{delivered} is then a call of C, not of Python.
    __slots__ = ()

    def delivered(self, opcode: int, buffer: Buffer, start: int, stop: int) -> int:
        """
        A record arrived.

        @param buffer: The medium's own buffer, whose slices are L{bytes}; valid during this call only.
        @return: 0, or the syndrome of a NAK.
        """
        raise NotImplementedError

    def severalDelivered(self, opcode: int, buffer: Buffer, spans: list[tuple[int, int]]) -> int:
        """
        Several short records of one operation arrived, of which none is to be refused.

        @param buffer: As of L{delivered}.
        @param spans: Where each begins and ends.
        @return: How many of the first were processed; the others are delivered one by one.
        """
        return 0
