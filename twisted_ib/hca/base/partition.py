"""
Partitions: which queue pairs may exchange packets (IBTA vol. 1 10.9).

A P_Key has 16 bits: the number of a partition, and whether its holder is a full member of it.  Limited
members reach full members only.  A port has a table of P_Keys, and a queue pair names one by its index.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from twisted_ib import limits
from twisted_ib.errors import ResourceLimitError

#: The default partition with full membership: the only P_Key of a port that no subnet manager has configured
#: (IBTA vol. 1 10.9.1.2, annex A17).
DEFAULT_PKEY: Final = 0xFFFF
#: The bit of full members, and the bits of the partition.
FULL_MEMBER: Final = 0x8000
PARTITION_MASK: Final = 0x7FFF


def isValid(key: int) -> bool:
    """
    @return: whether a P_Key names a partition; an empty slot of a table has 0.
    """
    return bool(key & PARTITION_MASK)


def matches(one: int, other: int) -> bool:
    """
    @return: whether the holders of two P_Keys may exchange packets (IBTA vol. 1 10.9.3).
    """
    return bool(one & PARTITION_MASK and not (one ^ other) & PARTITION_MASK and (one | other) & FULL_MEMBER)


@lru_cache(limits.PARTITIONS)  # Many connections have few partitions.
def partners(key: int) -> frozenset[int]:
    """
    @return: the P_Keys that match one.  A receiver looks a packet's up in them, which costs no call.
    """
    return frozenset(other for other in (key | FULL_MEMBER, key & PARTITION_MASK) if matches(key, other))


class PartitionTable:
    """
    The P_Key table of a port (IBTA vol. 1 14.2.5.7).

    @ivar keys: 16 bits each; 0 in an empty slot.
    @ivar accepted: all P_Keys that match one of them.
    """

    __slots__ = ("accepted", "keys")

    def __init__(self, keys: Iterable[int] = (DEFAULT_PKEY,)) -> None:
        self.keys: tuple[int, ...] = ()
        self.accepted: frozenset[int] = frozenset()
        self.replace(keys)

    def __len__(self) -> int:
        return len(self.keys)

    def replace(self, keys: Iterable[int]) -> None:
        """
        Replace the table.

        @raise ResourceLimitError: there are more than L{limits.PARTITIONS}.
        @raise ValueError: there is none, or one has more than 16 bits.
        """
        found = tuple(keys)
        if len(found) > limits.PARTITIONS:
            raise ResourceLimitError(f"a P_Key table has at most {limits.PARTITIONS} entries")
        if not found or any(key >> 16 for key in found):
            raise ValueError(f"a P_Key table has keys of 16 bits, at least one, not {found}")
        self.keys = found
        self.accepted = frozenset().union(*map(partners, found))

    def key(self, index: int) -> int:
        """
        @return: the P_Key of a slot; 0 beyond the table.
        """
        return self.keys[index] if 0 <= index < len(self.keys) else 0

    def partner(self, other: int) -> int:
        """
        @return: the first P_Key of the table that matches another; the first of all if none does.
        """
        return next((key for key in self.keys if matches(key, other)), self.keys[0])
