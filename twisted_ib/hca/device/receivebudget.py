"""
The budget for received bytes that one HCA's consumers hold for paused readers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from twisted_ib import limits


class ReceiveBudget:
    """
    The bytes held by each consumer.
    """

    def __init__(self, count: Callable[[str], None]) -> None:
        #: The sum.
        self.heldBytes = 0
        #: Consumer -> bytes, if not 0.
        self.holders: dict[Any, int] = {}
        self._count = count

    def hold(self, holder: Any, count: int) -> None:
        """
        Account for C{count} bytes more (or fewer) held for a paused reader.  Beyond L{limits.HELD_BYTES} a
        connection is reset: the one that holds most, of the peer for whom most is held.
        """
        self.heldBytes += count
        holders = self.holders
        held = holders.get(holder, 0) + count
        if held:
            holders[holder] = held
        else:
            holders.pop(holder, None)
        # Credits already granted cannot be taken back (IBTA vol. 1 annex A4), so only a reset frees memory.
        # A shrinking holder is never the cause.
        if self.heldBytes > limits.HELD_BYTES and count > 0:
            self._count("held_bytes_exceeded")
            self._most().budgetExceeded()

    def _most(self) -> Any:
        holders = self.holders
        # By peer first: a peer cannot evade the limit, or have another peer's connection reset, with many
        # small connections.
        perPath: Counter[Any] = Counter()
        for each, held in holders.items():
            perPath[pathOf(each)] += held
        path = max(perPath, key=perPath.__getitem__)
        return max((each for each in holders if pathOf(each) is path), key=holders.__getitem__)


def pathOf(consumer: Any) -> Any:
    """
    The path to the peer of a queue pair's consumer, one for each peer; L{None} if there is none.
    """
    path = consumer.queuePair.path
    # A queue pair may wrap the path to its peer; all queue pairs of the peer share the inner one.
    return getattr(path, "way", path)
