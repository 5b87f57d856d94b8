"""
Segments that count the bytes copied in and out of them, for tests of what a message costs.
"""

from __future__ import annotations

import mmap
from collections import Counter
from typing import Any

from twisted_ib.hca.fabric.shm.segment import Segment


class CountingMap(mmap.mmap):
    """
    Counts the bytes that are copied in and out by slices.
    """

    copied: Counter[str] = Counter()

    def __getitem__(self, key: Any) -> Any:
        """
        Count a copy out.
        """
        found = super().__getitem__(key)
        if isinstance(key, slice):
            self.copied["out"] += len(found)
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        """
        Count a copy in.
        """
        super().__setitem__(key, value)
        if isinstance(key, slice):
            self.copied["in"] += len(value)


class CountingSegment(Segment):
    """
    A segment whose map counts.
    """

    __slots__ = ()

    mapType = CountingMap
