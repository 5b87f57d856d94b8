"""
Random sequences of the verbs of memory, against a list of who opened what to whom.
"""

from __future__ import annotations

import random

import attrs
from twisted.trial.unittest import SynchronousTestCase

from tests.hca.memory.window_case import ALL_REMOTE, MW_BIND, REMOTE, ZERO_BASED
from twisted_ib.errors import MemoryAccessError, MemoryRegionError, ResourceBusyError
from twisted_ib.hca.memory.access import LOCAL_READ, LOCAL_WRITE
from twisted_ib.hca.memory.domains import ProtectionDomain
from twisted_ib.hca.memory.memory import Memory, MemoryRegion
from twisted_ib.hca.memory.windows import MemoryWindow, WindowType


class SequenceTests(SynchronousTestCase):
    """
    Random sequences of verbs, against a list of who opened what to whom.
    """

    seeds = range(20)
    steps = 400

    def test_random(self) -> None:
        """
        Random calls in any order: only declared errors are raised, every key opens to each queue
        pair exactly what was granted, and nothing is left at the end.
        """
        for seed in self.seeds:
            try:
                _Game(self, seed).play(self.steps)
            except Exception as error:
                raise AssertionError(f"seed {seed}") from error


@attrs.frozen
class _Right:
    """
    The access that a key grants.

    @ivar pd: the protection domain it is for.
    @ivar first: address of the first byte.
    @ivar length: how many bytes.
    @ivar access: the rights.
    @ivar view: the buffer.
    @ivar offset: of the first byte in C{view}.
    @ivar isWindow: whether it is a window's key.
    @ivar queuePair: the only queue pair it is for, or L{None} for any.
    """

    pd: ProtectionDomain
    first: int
    length: int
    access: int
    view: memoryview
    offset: int
    isWindow: bool = False
    queuePair: object = None

    def find(
        self, start: int, length: int, kind: int, pd: ProtectionDomain, queuePair: object
    ) -> tuple[memoryview, int] | None:
        """
        The expected result of L{Memory.check} for C{length} bytes from C{start} on, counted from
        C{first}.
        """
        if (
            pd is not self.pd
            or self.queuePair not in (None, queuePair)
            or not 0 <= start <= start + length <= self.length
            or kind & ~self.access
            or (self.isWindow and kind in (LOCAL_READ, LOCAL_WRITE))
        ):
            return None
        return self.view, self.offset + start


class _Game:
    """
    One random sequence.

    @ivar rights: what is open, by key.
    @ivar old: keys that open nothing any more.
    @ivar refusals: verbs that failed.
    """

    def __init__(self, case: SynchronousTestCase, seed: int) -> None:
        """
        Two domains, two queue pairs in each.
        """
        self.case, self.maker = case, random.Random(seed)
        self.memory = Memory(self.maker.getrandbits)
        self.domains = [self.memory.allocateDomain() for _ in range(2)]
        self.queuePairs = [(object(), pd) for pd in self.domains for _ in range(2)]
        self.regions: list[MemoryRegion] = []
        self.windows: list[MemoryWindow] = []
        self.rights: dict[int, _Right] = {}
        self.old: set[int] = set()
        self.refusals = 0

    def play(self, steps: int) -> None:
        """
        All of it.
        """
        verbs = [
            self.register,
            self.reregister,
            self.deregister,
            self.allocate,
            self.bind,
            self.bind,
            self.bind,
            self.invalidate,
            self.forget,
            self.deallocate,
        ]
        for _ in range(steps):
            try:
                self.maker.choice(verbs)()
            except (MemoryAccessError, MemoryRegionError, ResourceBusyError):
                self.refusals += 1
            self.check()
        self.case.assertTrue(steps // 20 < self.refusals < steps, self.refusals)
        for window in self.windows:
            self.memory.windows.deallocate(window)
        for region in self.regions:
            self.memory.deregister(region)
        for pd in self.domains:
            self.memory.deallocateDomain(pd)
        self.case.assertEqual(
            (self.memory.windows.byKey, self.memory.regions, self.memory.domains), ({}, {}, set())
        )
        self.case.assertEqual((self.memory._keys._inUse, self.memory.windows._served), (set(), {}))

    def close(self, key: int) -> None:
        """
        A key opens nothing from now on.
        """
        self.rights.pop(key, None)
        self.old.add(key)

    def open(self, region: MemoryRegion) -> None:
        """
        Remember what a region's key opens.
        """
        self.old.discard(region.key)
        self.rights[region.key] = _Right(
            region.pd, region.address, region.length, region.access, region.view, 0
        )

    def access(self) -> int:
        """
        Rights for a region, sometimes impossible ones.
        """
        return self.maker.randrange(16) | self.maker.choice((0, MW_BIND, MW_BIND))

    def register(self) -> None:
        """
        A new region.
        """
        maker = self.maker
        size = maker.choice((0, 4, 8, 20))
        address = maker.choice((None, 0, 100, (1 << 64) - 12))
        region = self.memory.register(bytearray(size), self.access(), maker.choice(self.domains), address)
        self.regions.append(region)
        self.open(region)

    def reregister(self) -> None:
        """
        Change a region.
        """
        maker = self.maker
        if self.regions:
            region = maker.choice(self.regions)
            key = region.key
            self.memory.reregister(
                region,
                maker.choice((None, bytearray(6))),
                maker.choice((None, self.access())),
                maker.choice((None, *self.domains)),
                maker.choice((None, 200)),
                keepKey=maker.random() < 0.3,
            )
            self.close(key)
            self.open(region)

    def deregister(self) -> None:
        """
        Drop a region.
        """
        if self.regions:
            region = self.maker.choice(self.regions)
            self.memory.deregister(region)
            self.regions.remove(region)
            self.close(region.key)

    def allocate(self) -> None:
        """
        A new window.
        """
        if len(self.windows) < 8:
            window = self.memory.allocateWindow(self.maker.choice(self.domains), self.maker.choice((1, 2)))
            self.windows.append(window)

    def bind(self) -> None:
        """
        Bind a window, often wrongly.
        """
        maker = self.maker
        if not self.windows or not self.regions:
            return
        window, region = maker.choice(self.windows), maker.choice(self.regions)
        queuePair, pd = maker.choice(self.queuePairs)
        if maker.random() < 0.7:
            pd = window.pd
            region = next((one for one in self.regions if one.pd is pd), region)
        start = maker.randrange(-1, 5)
        length = maker.randrange(0, 6)
        access = maker.randrange(16) | maker.choice((0, ZERO_BASED))
        key = old = window.key
        if window.type == WindowType.TYPE_2:
            key = old & ~0xFF | maker.getrandbits(8)
        wanted = key if window.type == WindowType.TYPE_2 else None
        self.memory.windows.bind(
            window, region, region.address + start, length, access, wanted, queuePair, pd
        )
        self.close(old)
        self.old.discard(window.key)
        if length:
            only = queuePair if window.type == WindowType.TYPE_2 else None
            first = 0 if access & ZERO_BASED else region.address + start
            self.rights[window.key] = _Right(
                window.pd, first, length, access & ALL_REMOTE, region.view, start, True, only
            )

    def invalidate(self) -> None:
        """
        Invalidate any key, through any queue pair.
        """
        keys = [window.key for window in self.windows] + [region.key for region in self.regions]
        if keys:
            key = self.maker.choice(keys)
            self.memory.windows.invalidate(key, self.maker.choice(self.queuePairs)[0])
            self.close(key)

    def forget(self) -> None:
        """
        A queue pair goes, now and then.
        """
        if self.maker.random() < 0.1:
            queuePair = self.maker.choice(self.queuePairs)[0]
            self.memory.windows.forget(queuePair)
            for key, right in list(self.rights.items()):
                if right.queuePair is queuePair:
                    self.close(key)

    def deallocate(self) -> None:
        """
        Drop a window.
        """
        if self.windows:
            window = self.maker.choice(self.windows)
            self.memory.windows.deallocate(window)
            self.windows.remove(window)
            self.close(window.key)

    def check(self) -> None:
        """
        Ask for bytes with keys that open something and keys that do not.
        """
        maker = self.maker
        for _ in range(6):
            keys = [*self.rights] if maker.random() < 0.8 else [*self.old]
            if not keys:
                continue
            key = maker.choice(keys)
            queuePair, pd = maker.choice(self.queuePairs)
            kind = maker.choice((LOCAL_READ, LOCAL_WRITE, *REMOTE))
            right = self.rights.get(key)
            start, length = maker.randrange(-1, 5), maker.randrange(1, 6)
            first = right.first if right else 100
            try:
                found = self.memory.check(key, first + start, length, kind, pd, queuePair)
            except MemoryAccessError:
                found = None
            expected = right and right.find(start, length, kind, pd, queuePair)
            self.case.assertEqual(found, expected)
