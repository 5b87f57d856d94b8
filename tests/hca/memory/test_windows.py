"""
Tests for L{twisted_ib.hca.memory.windows}: what a window opens, and to whom.

How it is bound and invalidated: L{tests.hca.memory.test_window_binds}.
"""

from __future__ import annotations

import random
from itertools import product

from tests.hca.memory.window_case import ALL_REMOTE, BASE, MW_BIND, REMOTE, SIZE, ZERO_BASED, WindowTestCase
from twisted_ib import limits
from twisted_ib.errors import MemoryAccessError, MemoryRegionError, ResourceBusyError, ResourceLimitError
from twisted_ib.hca.memory.access import LOCAL_READ, LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE
from twisted_ib.hca.memory.memory import Memory
from twisted_ib.hca.memory.windows import WindowType


class AllocateTests(WindowTestCase):
    """
    Allocating and deallocating windows.
    """

    def test_types(self) -> None:
        """
        The numbers are those of verbs, and there are two.
        """
        self.assertEqual([int(kind) for kind in WindowType], [1, 2])
        self.assertIs(self.memory.allocateWindow(self.pd, 2).type, WindowType.TYPE_2)
        for kind in (0, 3, -1):
            self.assertRaises(MemoryRegionError, self.memory.allocateWindow, self.pd, kind)

    def test_new(self) -> None:
        """
        A new window has a key, which opens nothing, and keeps its domain busy.
        """
        for window in (self.one, self.two):
            self.assertIs(self.memory.windows.byKey[window.key], window)
            self.assertIsNone(window.region)
            for address, kind in product((0, BASE), REMOTE):
                error = self.assertRaises(
                    MemoryAccessError, self.memory.check, window.key, address, 1, kind, self.pd, None
                )
                self.assertIn("is not bound", str(error))
        error = self.assertRaises(ResourceBusyError, self.memory.deallocateDomain, self.pd)
        self.assertIn("2 memory windows", str(error))

    def test_gone(self) -> None:
        """
        Memory that is gone is opened neither by a region's key nor by a window's; what is still there is.
        """
        asked = []

        def present(offset: int, length: int, writes: bool) -> bool:
            """
            The first 10 bytes are there, to be read.
            """
            asked.append((offset, length))
            return offset + length <= 10 and not writes

        region = self.memory.register(
            bytearray(100), self.region.access | REMOTE_READ, self.pd, BASE, present=present
        )
        window = self.memory.allocateWindow(self.pd, 1)
        self.memory.windows.bind(window, region, BASE + 4, 96, REMOTE_READ)
        for key, address in ((region.key, BASE), (window.key, BASE + 4)):
            self.memory.check(key, address, 4, REMOTE_READ, self.pd)
            self.assertRaises(MemoryAccessError, self.memory.check, key, address, 20, REMOTE_READ, self.pd)
            self.assertRaises(MemoryAccessError, self.memory.check, key, address, 101, REMOTE_READ, self.pd)
        self.assertEqual(asked, [(0, 4), (0, 20), (0, 101), (4, 4), (4, 20)])
        # Other memory of the device's own is not asked about.
        self.memory.windows.bind(window, None, 0, 0, 0)
        self.memory.reregister(region, bytearray(100), address=BASE)
        self.memory.check(region.key, BASE, 100, REMOTE_READ, self.pd)
        self.assertEqual(len(asked), 5)

    def test_foreignDomain(self) -> None:
        """
        The domain must be one of the same device.
        """
        other = Memory(random.Random(2).getrandbits).allocateDomain()
        self.assertRaises(MemoryRegionError, self.memory.allocateWindow, other, 1)

    def test_limit(self) -> None:
        """
        Windows are bounded.
        """
        self.patch(limits, "MEMORY_WINDOWS", 3)
        third = self.memory.allocateWindow(self.pd, 1)
        self.assertRaises(ResourceLimitError, self.memory.allocateWindow, self.pd, 1)
        self.memory.windows.deallocate(third)
        self.memory.allocateWindow(self.pd, 1)

    def test_deallocate(self) -> None:
        """
        A window can be deallocated bound or not; its key opens nothing from then on, and
        nothing holds the region or the domain.
        """
        for bound in (False, True):
            for window in (self.one, self.two):
                if bound:
                    window = self.memory.allocateWindow(self.pd, window.type)
                    self.bind(window)
                    self.assertIsNotNone(self.opens(window.key))
                key = window.key
                self.memory.windows.deallocate(window)
                self.assertIsNone(self.opens(key))
                self.assertRaises(MemoryRegionError, self.memory.windows.deallocate, window)
                self.assertRaises(MemoryAccessError, self.bind, window)
        self.assertEqual(self.memory.windows.byKey, {})
        self.memory.deregister(self.region)
        self.memory.deallocateDomain(self.pd)

    def test_otherDevice(self) -> None:
        """
        A window of one device is none of another.
        """
        other = Memory(random.Random(1).getrandbits)
        self.assertRaises(MemoryRegionError, other.windows.deallocate, self.one)
        self.assertRaises(MemoryAccessError, other.windows.bind, self.one, self.region, BASE, 1, REMOTE_READ)
        self.assertRaises(MemoryAccessError, other.windows.reserve, self.one)


class CheckTests(WindowTestCase):
    """
    The access that a bound window grants, and to which queue pairs.
    """

    def test_everyBound(self) -> None:
        """
        Of a window of 4 bytes inside a region, every start and length around it: given
        exactly if inside the window, and then as the bytes of the region.
        """
        for window in (self.one, self.two):
            key = self.bind(window, BASE + 5, 4)
            for start, length, kind in product(range(-7, 13), range(1, 10), REMOTE):
                found = self.opens(key, BASE + 5 + start, length, kind)
                if 0 <= start and start + length <= 4:
                    self.assertEqual(found, (self.region.view, 5 + start))
                else:
                    self.assertIsNone(found, (start, length))

    def test_everyBoundZeroBased(self) -> None:
        """
        The same with a window whose bytes count from 0; the region's own names open
        nothing.
        """
        key = self.bind(self.two, BASE + 5, 4, ALL_REMOTE | ZERO_BASED)
        for start, length, kind in product(range(-7, 13), range(1, 10), REMOTE):
            found = self.opens(key, start, length, kind)
            if 0 <= start and start + length <= 4:
                self.assertEqual(found, (self.region.view, 5 + start))
            else:
                self.assertIsNone(found, (start, length))
        self.assertIsNone(self.opens(key, BASE + 5))

    def test_writeThrough(self) -> None:
        """
        Bytes written through a window land in its bytes and nowhere else.
        """
        for zeroBased in (0, ZERO_BASED):
            self.region.view[:] = bytes(SIZE)
            window = self.memory.allocateWindow(self.pd, 2)
            key = self.bind(window, BASE + 3, 6, ALL_REMOTE | zeroBased)
            found = self.opens(key, 0 if zeroBased else BASE + 3, 6, REMOTE_WRITE)
            assert found is not None
            view, offset = found
            view[offset : offset + 6] = b"window"
            self.assertEqual(bytes(self.region.view), b"\0\0\0window" + bytes(SIZE - 9))

    def test_topOfAddresses(self) -> None:
        """
        Sums that would wrap in 64 bits, and negative lengths, are outside.
        """
        top = (1 << 64) - 8
        region = self.memory.register(bytearray(8), LOCAL_WRITE | MW_BIND, self.pd, top)
        for window in (self.one, self.two):
            key = self.bind(window, top + 4, 4, region=region)
            self.assertEqual(self.opens(key, top + 4, 4), (region.view, 4))
            for address, length in (
                (top + 4, 5),
                (top + 7, 2),
                (top + 3, 1),
                (top + 4, 1 << 64),
                (top + 4, (1 << 64) - 1),
                (0, 4),
                (top + 6, -2),
                (top + 4, -1),
            ):
                self.assertIsNone(self.opens(key, address, length), (address, length))

    def test_everyRight(self) -> None:
        """
        For every set of granted rights every set of needed remote rights is given exactly
        if it is part of it; what the region itself grants does not count.
        """
        remotes = [sum(bits) for bits in product((0, 2), (0, 4), (0, 8))]
        for regional in (LOCAL_WRITE, LOCAL_WRITE | ALL_REMOTE):
            region = self.memory.register(bytearray(SIZE), regional | MW_BIND, self.pd, BASE)
            for kind, granted, needed in product(WindowType, remotes, remotes[1:]):
                window = self.memory.allocateWindow(self.pd, kind)
                key = self.bind(window, access=granted, region=region)
                found = self.opens(key, BASE, SIZE, needed)
                self.assertEqual(found, None if needed & ~granted else (region.view, 0))
                self.memory.windows.deallocate(window)

    def test_noLocalAccess(self) -> None:
        """
        A window's key is of no use in a scatter/gather list of its owner, nor for a
        mixture of rights.
        """
        for window in (self.one, self.two):
            key = self.bind(window, access=ALL_REMOTE | LOCAL_WRITE)
            for kind in (LOCAL_READ, LOCAL_WRITE, LOCAL_WRITE | REMOTE_WRITE, MW_BIND, 0x100 | REMOTE_READ):
                error = self.assertRaises(
                    MemoryAccessError, self.memory.check, key, BASE, 1, kind, self.pd, self.queuePair
                )
                self.assertEqual(str(error), f"no memory region has key {key:#010x}")

    def test_localOnly(self) -> None:
        """
        A window without any remote right can be bound, and opens nothing.
        """
        for window, access in product((self.one, self.two), (0, LOCAL_WRITE, MW_BIND, 0x100000)):
            if window.region is not None and window.type == WindowType.TYPE_2:
                self.memory.windows.invalidate(window.key, self.queuePair)
            key = self.bind(window, access=access)
            self.assertEqual(window.access, 0)
            for kind in REMOTE:
                self.assertIsNone(self.opens(key, kind=kind))

    def test_domain(self) -> None:
        """
        A window opens nothing to a queue pair of another domain.
        """
        other = self.memory.allocateDomain()
        for window in (self.one, self.two):
            key = self.bind(window)
            self.assertIsNotNone(self.opens(key))
            self.assertIsNone(self.opens(key, pd=other))

    def test_queuePair(self) -> None:
        """
        A window of type 1 serves every queue pair of its domain, one of type 2 that which
        bound it.
        """
        key = self.bind(self.one)
        for queuePair in (self.queuePair, self.other, None):
            self.assertIsNotNone(self.opens(key, queuePair=queuePair))
        key = self.bind(self.two)
        self.assertIsNotNone(self.opens(key))
        for stranger in (self.other, None):
            self.assertIsNone(self.opens(key, queuePair=stranger))

    def test_everyKeyBit(self) -> None:
        """
        Every bit of a window's key counts.
        """
        for window in (self.one, self.two):
            key = self.bind(window)
            for bit in range(32):
                self.assertIsNone(self.opens(key ^ 1 << bit))

    def test_nothing(self) -> None:
        """
        An access of no bytes is not checked through a window either.
        """
        key = self.bind(self.two)
        self.assertEqual(self.opens(key, 0, 0, queuePair=self.other), (memoryview(b""), 0))

    def test_regionKey(self) -> None:
        """
        The region's own key is not changed by windows: it grants what it granted.
        """
        self.bind(self.one)
        self.assertIsNone(self.opens(self.region.key))
        self.assertEqual(
            self.memory.check(self.region.key, BASE, SIZE, LOCAL_WRITE, self.pd), (self.region.view, 0)
        )

    def test_overlapping(self) -> None:
        """
        Windows on the same bytes do not know of each other.
        """
        read = self.bind(self.one, access=REMOTE_READ)
        write = self.bind(self.two, access=REMOTE_WRITE)
        self.assertIsNotNone(self.opens(read, kind=REMOTE_READ))
        self.assertIsNone(self.opens(read, kind=REMOTE_WRITE))
        self.assertIsNotNone(self.opens(write, kind=REMOTE_WRITE))
        self.memory.windows.invalidate(write, self.queuePair)
        self.assertIsNotNone(self.opens(read, kind=REMOTE_READ))
