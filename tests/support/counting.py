"""
Segments that count the stores made to them, to kill a process at the Nth, or the bytes that are copied; how
much memory a call takes; and how many connections live.

Stores are C{segment.map[a:b] = x} and C{segment.cells[i] = x}.  Writes of
C{struct.pack_into} into the map are not; a reader cannot see them before the next
counted store, so a kill there makes no difference.
"""

from __future__ import annotations

import gc
import mmap
import os
import signal
import tracemalloc
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

from twisted.internet import protocol
from twisted.python.failure import Failure

from twisted_ib.hca.fabric.shm.segment import Segment


class Counted(protocol.Protocol):
    """
    One end of a connection.

    @cvar live: how many there are in this process, of all kinds.
    """

    live: ClassVar[int] = 0

    def connectionMade(self) -> None:
        """
        There is one more.
        """
        Counted.live += 1

    def connectionLost(self, reason: Failure = protocol.connectionDone) -> None:
        """
        There is one less.
        """
        Counted.live -= 1


class Echo(Counted):
    """
    Sends back what comes, bytes or messages.
    """

    def dataReceived(self, data: bytes) -> None:
        """
        Send it back.
        """
        transport: Any = self.transport
        transport.write(data)

    messageReceived = dataReceived


class Stores:
    """
    The number of stores made by this process, and what to do before each.

    @cvar count: how many were made, the one about to be made included.
    @cvar hook: called with that number before each store, or None.
    """

    count: ClassVar[int] = 0
    hook: ClassVar[Callable[[int], object] | None] = None

    @classmethod
    def before(cls) -> None:
        """
        A store is about to be made.
        """
        cls.count += 1
        if cls.hook is not None:
            cls.hook(cls.count)

    @classmethod
    def reset(cls, hook: Callable[[int], object] | None = None) -> None:
        """
        Count from zero again.
        """
        cls.count = 0
        cls.hook = hook

    @classmethod
    def killAt(cls, number: int) -> None:
        """
        Count from zero again and kill this process by SIGKILL just before
        store C{number} (from 1).
        """

        def kill(count: int) -> None:
            """
            Kill this process if its turn has come.
            """
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)

        cls.reset(kill)


class CountingMap(mmap.mmap):
    """
    A mapping that counts.
    """

    def __setitem__(self, index: Any, value: Any) -> None:
        """
        Count, then store.
        """
        Stores.before()
        super().__setitem__(index, value)


class CountingCells:
    """
    The cells of a mapping, counting stores.
    """

    def __init__(self, view: memoryview) -> None:
        """
        Count what is stored in C{view}.
        """
        self._view = view

    def __getitem__(self, index: int) -> int:
        """
        Loads are not counted.
        """
        return self._view[index]  # type: ignore[no-any-return,unused-ignore]

    def __setitem__(self, index: int, value: int) -> None:
        """
        Count, then store.
        """
        Stores.before()
        self._view[index] = value  # type: ignore[call-overload,unused-ignore]

    def __len__(self) -> int:
        """
        How many cells there are.
        """
        return len(self._view)

    def release(self) -> None:
        """
        As a memoryview's.
        """
        self._view.release()


class CountingSegment(Segment):
    """
    A segment for C{Segment}'s place; see L{Stores}.
    """

    __slots__ = ()

    mapType = CountingMap

    def makeCells(self) -> CountingCells:
        """
        Cells that count.
        """
        return CountingCells(super().makeCells())


class CopyCountingMap(mmap.mmap):
    """
    Counts the bytes that are copied in and out by slices, for tests of what a message costs.
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


class CopyCountingSegment(Segment):
    """
    A segment whose map counts copies.
    """

    __slots__ = ()

    mapType = CopyCountingMap


def traced(call: Callable[[], object]) -> tuple[int, int]:
    """
    Call something.

    @return: the bytes that it has left, and the most that there were at a time.
    """
    tracemalloc.start()
    try:
        call()
        gc.collect()
        return tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
