"""
The words that a process leaves in shared memory about its streams, to be read when it has died.

When a process dies, the kernel ends its TCP connections in order if everything that was sent to it was read,
and resets them if not.  Here nobody acts for the dead, so each side keeps two cells for each stream::

    the peer's queue pair number, with L{UNREAD} while bytes wait for the application
    the number of the last message that the application's bytes need, or L{UNKNOWN} while they are gathered

A hostile peer may write anything: it says something about its own ends of connections over the same path, and
only whether these end in order or are reset.
"""

from __future__ import annotations

from typing import Final

from twisted_ib import limits

#: Flag beside the number of a queue pair, of 24 bits.
UNREAD: Final = 1 << 32
#: More than the number of any message.
UNKNOWN: Final = 1 << 62
Cells = memoryview | list[int]


def slots(start: int) -> list[int]:
    """
    Return the indices of all slots.
    """
    return list(range(start, start + 2 * limits.LAST_WORDS, 2))


class LastWords:
    """
    The words of one side about its ends of the streams of a path.

    @ivar cells: Where they are; without shared memory, and behind the last slot, nobody reads them.
    @ivar free: The indices of the second cells of the free slots; 0 is none.
    """

    __slots__ = ("cells", "free")

    def __init__(self, cells: Cells | None = None, start: int = 0) -> None:
        """
        @param cells: Zeroed, from C{start} on L{limits.LAST_WORDS} slots of two.
        """
        self.cells: Cells = [0, 0] if cells is None else cells
        self.free: list[int] = [] if cells is None else [index + 1 for index in reversed(slots(start))]

    def silence(self) -> None:
        """
        The memory is gone, or another process's: write elsewhere.
        """
        self.cells = [0] * len(self.cells)


#: Of streams without any.
NO_WORDS: Final = LastWords()


def lastWords(cells: Cells, start: int) -> dict[int, int]:
    """
    Read what a dead peer has left.

    @return: For each queue pair of ours that may end in order, the last message that it must have received;
        L{UNKNOWN} for one whose bytes were not read.
    """
    found: dict[int, int] = {}
    for index in slots(start):
        number = cells[index]
        if 0 < number < UNREAD:
            found[number] = cells[index + 1]
        elif UNREAD < number < 2 * UNREAD:
            found[number - UNREAD] = UNKNOWN
    return found
