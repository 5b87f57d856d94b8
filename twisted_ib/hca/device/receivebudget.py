"""
The memory that the consumers of one HCA hold for readers that are paused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from twisted_ib import limits


class ReceiveBudget:
    """
    Who holds how much.

    @ivar heldBytes: What all hold.
    @ivar holders: What each holds that holds anything.
    """

    __slots__ = ("_count", "heldBytes", "holders")

    def __init__(self, count: Callable[[str], None]) -> None:
        """
        Nothing is held.

        @param count: Adds one to the counter of a name.
        """
        self.heldBytes = 0
        self.holders: dict[Any, int] = {}
        self._count = count

    def hold(self, holder: Any, count: int) -> None:
        """
        C{holder} keeps C{count} bytes more (or fewer) for a paused reader.
        Beyond L{limits.HELD_BYTES} a connection is reset: the one that holds
        most, of the peer for whom most is held.
        """
        self.heldBytes += count
        holders = self.holders
        held = holders.get(holder, 0) + count
        if held:
            holders[holder] = held
        else:
            holders.pop(holder, None)
        if self.heldBytes > limits.HELD_BYTES and count > 0:
            self._count("held_bytes_exceeded")
            self._most().budgetExceeded()

    def _most(self) -> Any:
        """
        @return: Who holds most, of the peer for whom most is held.
        """
        holders = self.holders
        perPath: Counter[Any] = Counter()
        for each, held in holders.items():
            perPath[pathOf(each)] += held
        path = max(perPath, key=perPath.__getitem__)
        return max((each for each in holders if pathOf(each) is path), key=holders.__getitem__)


def pathOf(consumer: Any) -> Any:
    """
    @return: The path to the peer of a queue pair's consumer, one for each peer; L{None} if there is none.
    """
    path = consumer.queuePair.path
    return getattr(path, "way", path)


__all__ = ["ReceiveBudget", "pathOf"]
