"""
Tests for L{twisted_ib.hca.memory.windows}: binding and invalidating, and the keys.
"""

from __future__ import annotations

import random
from itertools import product
from typing import Any

from tests.hca.memory.window_case import BASE, MW_BIND, SIZE, ZERO_BASED, WindowTestCase
from twisted_ib.errors import MemoryAccessError, ResourceBusyError, ResourceLimitError
from twisted_ib.hca.memory import windows
from twisted_ib.hca.memory.access import LOCAL_WRITE, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE
from twisted_ib.hca.memory.windows import MemoryWindow, WindowType


class BindTests(WindowTestCase):
    """
    Binding: what may be bound to what, by whom.
    """

    def refused(self, window: MemoryWindow, *arguments: Any, **more: Any) -> str:
        """
        Bind, which fails and changes nothing, and return the text of the refusal.
        """
        before = self.state()
        error = self.assertRaises(MemoryAccessError, self.bind, window, *arguments, **more)
        self.assertEqual(self.state(), before)
        return str(error)

    def test_everyRange(self) -> None:
        """
        A window is bound to any range inside the region and to no other.
        """
        region = self.memory.register(bytearray(4), MW_BIND, self.pd, BASE)
        for kind, start, length in product(WindowType, range(-2, 7), range(1, 8)):
            window = self.memory.allocateWindow(self.pd, kind)
            if 0 <= start and start + length <= 4:
                self.bind(window, BASE + start, length, REMOTE_READ, region)
                self.assertEqual((window.address, window.length), (BASE + start, length))
            else:
                self.assertIn("not within", self.refused(window, BASE + start, length, REMOTE_READ, region))
            self.memory.windows.deallocate(window)

    def test_badRange(self) -> None:
        """
        Neither negative lengths nor sums beyond 64 bits fool it, zero-based or not.
        """
        for window, zeroBased in ((self.one, 0), (self.two, 0), (self.two, ZERO_BASED)):
            for address, length in (
                (BASE + 8, -4),
                (BASE, -1),
                (BASE, 1 << 64),
                (BASE + 8, (1 << 64) - 8),
                (0, SIZE),
                (-1, SIZE),
                (1 << 64, 1),
            ):
                self.refused(window, address, length, REMOTE_READ | zeroBased)

    def test_regionGrants(self) -> None:
        """
        The region must grant binding; and local write access, if the window is to grant
        a write or an atomic.
        """
        for regional, kind in product((0, LOCAL_WRITE, MW_BIND, MW_BIND | LOCAL_WRITE), WindowType):
            region = self.memory.register(bytearray(SIZE), regional, self.pd, BASE)
            for access in range(0, 16, 2):
                window = self.memory.allocateWindow(self.pd, kind)
                writes = access & (REMOTE_WRITE | REMOTE_ATOMIC)
                if not regional & MW_BIND:
                    self.assertIn("not grant MW_BIND", self.refused(window, access=access, region=region))
                elif writes and not regional & LOCAL_WRITE:
                    self.assertIn("local write", self.refused(window, access=access, region=region))
                else:
                    self.bind(window, access=access, region=region)
                self.memory.windows.deallocate(window)

    def test_readOnlyBytes(self) -> None:
        """
        Bytes that cannot be written are opened for reading only.
        """
        region = self.memory.register(bytes(SIZE), MW_BIND, self.pd, BASE)
        self.refused(self.one, access=REMOTE_WRITE, region=region)
        self.bind(self.one, access=REMOTE_READ, region=region)

    def test_domains(self) -> None:
        """
        Window, region and queue pair are of one domain.
        """
        other = self.memory.allocateDomain()
        foreign = self.memory.register(bytearray(SIZE), LOCAL_WRITE | MW_BIND, other, BASE)
        for window in (self.one, self.two):
            self.assertIn("another protection domain", self.refused(window, region=foreign))
            self.assertIn("another protection domain", self.refused(window, pd=other))
            self.bind(window, pd=self.pd)

    def test_regionGone(self) -> None:
        """
        A region that was deregistered is nothing to bind to, nor one of another device.
        """
        gone = self.memory.register(bytearray(SIZE), LOCAL_WRITE | MW_BIND, self.pd, BASE)
        self.memory.deregister(gone)
        for window in (self.one, self.two):
            self.assertIn("deregistered", self.refused(window, region=gone))
            before = self.state()
            key = window.key if window is self.two else None
            self.assertRaises(
                MemoryAccessError,
                self.memory.windows.bind,
                window,
                None,
                BASE,
                1,
                REMOTE_READ,
                key,
                self.queuePair,
            )
            self.assertEqual(self.state(), before)

    def test_unknownBits(self) -> None:
        """
        Unknown access bits are refused.
        """
        for window in (self.one, self.two):
            self.assertIn("unknown access bits", self.refused(window, access=1 << 30))

    def test_type1ZeroBased(self) -> None:
        """
        A window of type 1 is addressed as its region is (o10-36.2.2).
        """
        self.assertIn("zero-based", self.refused(self.one, access=REMOTE_READ | ZERO_BASED))

    def test_zeroBasedRegion(self) -> None:
        """
        Of a zero-based region a window names the bytes as the region does.
        """
        region = self.memory.register(bytearray(8), LOCAL_WRITE | MW_BIND | ZERO_BASED, self.pd)
        key = self.bind(self.one, 2, 4, region=region)
        self.assertEqual(self.opens(key, 2, 4), (region.view, 2))
        self.assertIsNone(self.opens(key, 1))
        key = self.bind(self.two, 2, 4, REMOTE_READ | ZERO_BASED, region)
        self.assertEqual(self.opens(key, 0, 4), (region.view, 2))

    def test_type1Rebind(self) -> None:
        """
        Each bind of a window of type 1 replaces what was and gives it a new key; the old
        one opens nothing.
        """
        other = self.memory.register(bytearray(SIZE), LOCAL_WRITE | MW_BIND, self.pd, 0x20000)
        first = self.bind(self.one)
        second = self.bind(self.one, 0x20000 + 1, 2, REMOTE_READ, other)
        self.assertNotEqual(first >> 8, second >> 8)
        self.assertIsNone(self.opens(first))
        self.assertIsNone(self.opens(second))
        self.assertEqual(self.opens(second, 0x20001, 2), (other.view, 1))
        self.assertEqual((self.region.users, other.users), ({}, {"memory windows": 1}))
        third = self.bind(self.one, 0x20000, SIZE, REMOTE_READ, other)
        self.assertEqual(other.users, {"memory windows": 1})
        self.assertNotIn(second, self.memory.windows.byKey)
        self.assertIs(self.memory.windows.byKey[third], self.one)

    def test_type1Unbind(self) -> None:
        """
        A length of 0 unbinds a window of type 1, whatever else is said; it can be bound
        again.
        """
        for region, address in ((self.region, BASE), (None, 0), (self.region, 1 << 70)):
            key = self.bind(self.one)
            self.memory.windows.bind(self.one, region, address, 0, 0)
            self.assertIsNone(self.one.region)
            self.assertIsNone(self.opens(key))
            self.assertIsNone(self.opens(self.one.key))
            self.assertNotEqual(self.one.key, key)
            self.assertEqual(self.region.users, {})

    def test_type1Key(self) -> None:
        """
        The program does not choose the key of a window of type 1.
        """
        for key in (0, self.one.key, self.one.key ^ 1, self.two.key, self.region.key):
            self.assertIn("not reserved", self.refused(self.one, key=key))

    def test_type2Key(self) -> None:
        """
        The program chooses the lower 8 bits of the key of a window of type 2, all of them,
        and no other.
        """
        start = self.two.key
        for low in range(256):
            key = self.bind(self.two, low=low)
            self.assertEqual(key, start & ~0xFF | low)
            self.assertIsNotNone(self.opens(key))
            self.assertIsNone(self.opens(key ^ 1))
            self.memory.windows.invalidate(key, self.queuePair)
            self.assertIsNone(self.opens(key))
        for key in (*(start ^ 1 << bit for bit in range(8, 40)), self.one.key, -1, None):
            self.assertIn("keeps the upper 24 bits", self.refused(self.two, key=key))

    def test_type2Bound(self) -> None:
        """
        A bound window of type 2 is not bound again before it is invalidated (o10-37.2.30).
        """
        key = self.bind(self.two, low=1)
        self.assertIn("invalidated first", self.refused(self.two, low=2))
        self.assertIsNotNone(self.opens(key))
        self.memory.windows.invalidate(key, self.queuePair)
        self.bind(self.two, low=2, queuePair=self.other)
        self.assertIsNone(self.opens(self.two.key))
        self.assertIsNotNone(self.opens(self.two.key, queuePair=self.other))

    def test_type2Nothing(self) -> None:
        """
        A window of type 2 is not unbound by a length of 0 (o10-37.2.40), nor bound
        without a queue pair.
        """
        self.assertIn("to nothing", self.refused(self.two, length=0))
        self.assertIn("to a queue pair", self.refused(self.two, queuePair=None))

    def test_busyRegion(self) -> None:
        """
        A region that windows are bound to is neither deregistered nor changed.
        """
        self.bind(self.one)
        self.bind(self.two, BASE + 1, 1)
        before = self.state()
        for verb in (self.memory.deregister, self.memory.reregister):
            error = self.assertRaises(ResourceBusyError, verb, self.region)
            self.assertEqual(str(error), "the memory region is still used by 2 memory windows")
            self.assertEqual(self.state(), before)
        self.memory.windows.invalidate(self.two.key, self.queuePair)
        self.assertRaises(ResourceBusyError, self.memory.deregister, self.region)
        self.memory.windows.bind(self.one, None, 0, 0, 0)
        self.memory.reregister(self.region)
        self.memory.deregister(self.region)


class PromiseTests(WindowTestCase):
    """
    Keys that are known before the bind.
    """

    def test_kept(self) -> None:
        """
        A promised key opens nothing before the bind, and what the window opens after it.
        """
        old = self.bind(self.one)
        key = self.memory.windows.reserve(self.one)
        self.assertIsNone(self.opens(key))
        self.assertIsNotNone(self.opens(old))
        self.assertEqual(self.bind(self.one, key=key), key)
        self.assertIsNotNone(self.opens(key))
        self.assertIsNone(self.opens(old))
        self.assertRaises(MemoryAccessError, self.bind, self.one, key=key)
        self.memory.windows.releaseKey(self.one, key)
        self.assertIsNotNone(self.opens(key))

    def test_several(self) -> None:
        """
        Binds are done in any order, or not at all.
        """
        keys = [self.memory.windows.reserve(self.one) for _ in range(3)]
        for key in (keys[1], keys[0]):
            self.bind(self.one, key=key)
            self.assertEqual([k for k in keys if self.opens(k)], [key])
        self.memory.windows.releaseKey(self.one, keys[2])
        self.assertRaises(MemoryAccessError, self.bind, self.one, key=keys[2])
        self.assertEqual(self.one.reservedKeys, set())

    def test_otherWindow(self) -> None:
        """
        A key is promised to one window.
        """
        key = self.memory.windows.reserve(self.one)
        another = self.memory.allocateWindow(self.pd, 1)
        self.assertRaises(MemoryAccessError, self.bind, another, key=key)
        self.memory.windows.releaseKey(another, key)
        self.bind(self.one, key=key)

    def test_type2(self) -> None:
        """
        Nothing is promised to a window of type 2, or to one that is gone.
        """
        self.assertRaises(MemoryAccessError, self.memory.windows.reserve, self.two)
        self.memory.windows.deallocate(self.one)
        self.assertRaises(MemoryAccessError, self.memory.windows.reserve, self.one)

    def test_bound(self) -> None:
        """
        Promises are bounded, and end with the window.
        """
        for _ in range(windows.WINDOW_RESERVED_KEYS):
            key = self.memory.windows.reserve(self.one)
        self.assertRaises(ResourceLimitError, self.memory.windows.reserve, self.one)
        self.memory.windows.releaseKey(self.one, key)
        self.memory.windows.reserve(self.one)
        self.memory.windows.deallocate(self.one)
        self.assertEqual(self.one.reservedKeys, set())
        self.assertEqual(len(self.memory._keys._inUse), 2)


class InvalidateTests(WindowTestCase):
    """
    L{Memory.windows.invalidate}, and the end of a queue pair.
    """

    def refused(self, key: int, queuePair: object) -> str:
        """
        Invalidate, which fails and changes nothing, and return the text of the refusal.
        """
        before = self.state()
        error = self.assertRaises(MemoryAccessError, self.memory.windows.invalidate, key, queuePair)
        self.assertEqual(self.state(), before)
        return str(error)

    def test_invalidate(self) -> None:
        """
        An invalidated window opens nothing, is free for another bind and holds nothing
        but its domain.
        """
        key = self.bind(self.two)
        self.memory.windows.invalidate(key, self.queuePair)
        self.assertIsNone(self.opens(key))
        self.assertEqual((self.two.region, self.two.queuePair, self.two.length), (None, None, 0))
        self.assertEqual((self.two.key, self.region.users), (key, {}))
        self.assertEqual(self.pd.users, {"memory regions": 1, "memory windows": 2})
        self.assertIn("no memory window that is bound", self.refused(key, self.queuePair))
        self.bind(self.two)
        self.assertIsNotNone(self.opens(key))

    def test_otherQueuePair(self) -> None:
        """
        Only through the queue pair that a window serves it is invalidated.
        """
        key = self.bind(self.two)
        for stranger in (self.other, None):
            self.assertIn("another queue pair", self.refused(key, stranger))
        self.assertIsNotNone(self.opens(key))

    def test_type1(self) -> None:
        """
        A window of type 1 cannot be invalidated, by either side (o10-37.2.26).
        """
        key = self.bind(self.one)
        self.assertIn("of type 1", self.refused(key, self.queuePair))
        self.assertIsNotNone(self.opens(key))

    def test_notAWindow(self) -> None:
        """
        Neither are regions, unknown keys, or windows by an old key.
        """
        old = self.bind(self.two, low=1)
        self.memory.windows.invalidate(old, self.queuePair)
        new = self.bind(self.two, low=2)
        for key in (self.region.key, old, new ^ 0x80, new ^ 0x100, 0, 0xFFFFFFFF):
            self.refused(key, self.queuePair)
        self.assertIsNotNone(self.opens(new))

    def test_queuePairGone(self) -> None:
        """
        With a queue pair the windows that it served are free, and only those.
        """
        mine = [self.memory.allocateWindow(self.pd, 2) for _ in range(3)]
        for window in mine:
            self.bind(window)
        theirs = self.bind(self.two, queuePair=self.other)
        shared = self.bind(self.one)
        self.memory.windows.forget(self.queuePair)
        self.memory.windows.forget(self.queuePair)
        self.memory.windows.forget(object())
        for window in mine:
            self.assertIsNone(self.opens(window.key))
            self.assertIsNone(window.region)
        self.assertIsNotNone(self.opens(theirs, queuePair=self.other))
        self.assertIsNotNone(self.opens(shared))
        self.assertEqual(self.region.users, {"memory windows": 2})
        self.memory.windows.forget(self.other)
        self.assertEqual(self.memory.windows._served, {})


class KeyTests(WindowTestCase):
    """
    Keys of regions and windows together.
    """

    def test_notReused(self) -> None:
        """
        Of 2^16 allocations of any kind none gets an index that another had before.
        """
        seen = {self.region.key >> 8, self.one.key >> 8, self.two.key >> 8}
        count = len(seen)
        maker = random.Random(3)
        for _ in range(1 << 16):
            kind = maker.randrange(5)
            if kind == 0:
                region = self.memory.register(b"", 0, self.pd)
                key = region.key
                self.memory.deregister(region)
            elif kind == 1:
                key = self.bind(self.one)
            elif kind == 2:
                key = self.memory.windows.reserve(self.one)
                self.memory.windows.releaseKey(self.one, key)
            elif kind == 3:
                window = self.memory.allocateWindow(self.pd, maker.choice((1, 2)))
                key = window.key
                self.memory.windows.deallocate(window)
            else:
                self.memory.windows.bind(self.one, None, 0, 0, 0)
                self.memory.reregister(self.region)
                seen.add(self.one.key >> 8)
                count += 1
                key = self.region.key
            seen.add(key >> 8)
            count += 1
        self.assertEqual(len(seen), count)
        self.assertEqual(len(self.memory._keys._inUse), 3)
