"""
Tests for L{twisted_ib.hca.memory.memory}: regions that are registered anew.
"""

from __future__ import annotations

import random

from tests.hca.memory.test_memory import ALL_RIGHTS, KINDS, MemoryTestCase
from twisted_ib import limits
from twisted_ib.errors import MemoryAccessError, MemoryRegionError, ResourceBusyError
from twisted_ib.hca.memory.access import (
    LOCAL_READ,
    LOCAL_WRITE,
    REMOTE_ATOMIC,
    REMOTE_READ,
    REMOTE_WRITE,
    Access,
)
from twisted_ib.hca.memory.domains import ProtectionDomain
from twisted_ib.hca.memory.memory import Memory


class ReregisterTests(MemoryTestCase):
    """
    L{Memory.reregister}.
    """

    def setUp(self) -> None:
        """
        A region to change.
        """
        super().setUp()
        self.buffer = bytearray(b"abcdefgh")
        self.segment = object()
        self.region = self.memory.register(self.buffer, ALL_RIGHTS, self.pd, 0x1000, segment=self.segment)
        self.old = self.region.key

    def state(self) -> tuple[object, ...]:
        """
        All that a region is.
        """
        region = self.region
        return (
            region.key,
            region.address,
            region.length,
            region.access,
            region.pd,
            region.segment,
            region.view.obj,
            dict(self.pd.users),
            dict(self.memory.regions),
        )

    def opens(self, key: int, kind: int = LOCAL_READ, pd: ProtectionDomain | None = None) -> bool:
        """
        Whether a key opens the region's first byte.
        """
        try:
            view, offset = self.memory.check(key, self.region.address, 1, kind, pd or self.pd)
        except MemoryAccessError:
            return False
        self.assertEqual((view, offset), (self.region.view, 0))
        return True

    def test_nothing(self) -> None:
        """
        With no change at all there is still a new key, and the old one opens nothing.
        """
        self.memory.reregister(self.region)
        self.assertFalse(self.opens(self.old))
        self.assertTrue(self.opens(self.region.key))
        self.assertNotEqual(self.region.key >> 8, self.old >> 8)
        self.assertEqual((self.region.address, self.region.access), (0x1000, ALL_RIGHTS))
        self.assertIs(self.region.segment, self.segment)
        self.assertEqual(self.memory.regions, {self.region.key: self.region})
        self.assertEqual(self.pd.users, {"memory regions": 1})

    def test_access(self) -> None:
        """
        Rights come and go.
        """
        for granted in (0, LOCAL_WRITE, REMOTE_READ, ALL_RIGHTS):
            self.memory.reregister(self.region, access=granted)
            for kind in KINDS:
                self.assertEqual(self.opens(self.region.key, kind), not kind & ~granted)

    def test_domain(self) -> None:
        """
        It moves to another domain, which it keeps busy now, and the old one no longer.
        """
        other = self.memory.allocateDomain()
        self.memory.reregister(self.region, pd=other)
        self.assertFalse(self.opens(self.region.key))
        self.assertTrue(self.opens(self.region.key, pd=other))
        self.assertEqual((self.pd.users, other.users), ({}, {"memory regions": 1}))
        self.memory.deallocateDomain(self.pd)
        error = self.assertRaises(ResourceBusyError, self.memory.deallocateDomain, other)
        self.assertEqual(str(error), "the protection domain is still used by 1 memory regions")

    def test_sameDomain(self) -> None:
        """
        Naming the domain that it is in changes nothing.
        """
        self.memory.reregister(self.region, pd=self.pd)
        self.assertEqual(self.pd.users, {"memory regions": 1})

    def test_buffer(self) -> None:
        """
        Another buffer of another length gets a random address unless one is chosen; the
        old one is free, and so is its segment.
        """
        new = bytearray(3)
        self.memory.reregister(self.region, new)
        self.assertIs(self.region.view.obj, new)
        self.assertEqual(self.region.length, 3)
        self.assertTrue(1 << 46 <= self.region.address < 1 << 47)
        self.assertIsNone(self.region.segment)
        self.buffer.append(1)
        segment = object()
        self.memory.reregister(self.region, bytearray(4), address=77, segment=segment)
        self.assertEqual((self.region.address, self.region.length), (77, 4))
        self.assertIs(self.region.segment, segment)
        self.memory.check(self.region.key, 77, 4, REMOTE_WRITE, self.pd)
        self.assertRaises(MemoryAccessError, self.memory.check, self.region.key, 77, 5, REMOTE_WRITE, self.pd)

    def test_address(self) -> None:
        """
        The same buffer under another name.
        """
        self.memory.reregister(self.region, address=5)
        self.assertEqual(self.memory.check(self.region.key, 6, 7, LOCAL_READ, self.pd), (self.region.view, 1))
        self.memory.reregister(self.region, segment=None)
        self.assertEqual((self.region.address, self.region.segment), (5, None))

    def test_zeroBased(self) -> None:
        """
        A region becomes zero-based, and gets an address of its own when it is no longer.
        """
        self.memory.reregister(self.region, access=ALL_RIGHTS | Access.ZERO_BASED)
        self.assertEqual(self.region.address, 0)
        self.memory.reregister(self.region, access=LOCAL_WRITE)
        self.assertGreaterEqual(self.region.address, 1 << 46)

    def test_empty(self) -> None:
        """
        A region can lose all its bytes, and get some again.
        """
        self.memory.reregister(self.region, bytearray(), address=0x1000)
        self.assertEqual(self.region.length, 0)
        self.assertFalse(self.opens(self.region.key))
        self.memory.reregister(self.region, self.buffer)
        self.assertTrue(self.opens(self.region.key))

    def test_keepKey(self) -> None:
        """
        A key is kept where the caller says so, but never for another buffer.
        """
        self.memory.reregister(self.region, access=REMOTE_READ, keepKey=True)
        self.assertEqual(self.region.key, self.old)
        self.assertTrue(self.opens(self.old, REMOTE_READ))
        self.assertFalse(self.opens(self.old, LOCAL_WRITE))
        self.memory.reregister(self.region, bytearray(8), keepKey=True)
        self.assertNotEqual(self.region.key, self.old)
        self.assertFalse(self.opens(self.old))

    def test_impossible(self) -> None:
        """
        A buffer that cannot be registered cannot be reregistered either, and the region stays as it
        was.
        """
        foreign = Memory(random.Random(2).getrandbits).allocateDomain()
        self.patch(limits, "REGION_BYTES", 8)
        before = self.state()
        for changes in (
            {"buffer": 12},
            {"buffer": b"read-only"[:4]},
            {"buffer": bytearray(9)},
            {"buffer": bytearray(4), "address": (1 << 64) - 3},
            {"address": -1},
            {"address": (1 << 64) - 7},
            {"access": REMOTE_WRITE},
            {"access": 1 << 30},
            {"pd": foreign},
            {"pd": self.memory.allocateDomain(), "access": REMOTE_ATOMIC},
        ):
            self.assertRaises(MemoryRegionError, self.memory.reregister, self.region, **changes)
            self.assertEqual(self.state(), before)

    def test_readOnly(self) -> None:
        """
        Bytes that cannot be written do not become writable.
        """
        region = self.memory.register(b"abc", REMOTE_READ, self.pd)
        self.assertRaises(MemoryRegionError, self.memory.reregister, region, access=LOCAL_WRITE)
        self.assertEqual(region.access, REMOTE_READ)

    def test_gone(self) -> None:
        """
        A region that was deregistered stays so.
        """
        plain = self.memory.register(b"", 0, self.pd)
        for region in (self.region, plain):
            self.memory.deregister(region)
            self.assertRaises(MemoryRegionError, self.memory.reregister, region)
            self.assertRaises(MemoryRegionError, self.memory.reregister, region, bytearray(4))
        self.assertEqual((self.memory.regions, self.pd.users), ({}, {}))

    def test_keysNotReused(self) -> None:
        """
        Of 2^16 registrations anew none has a key, nor an index, that was there before.
        """
        seen = {self.old >> 8}
        for _ in range(1 << 16):
            self.memory.reregister(self.region)
            seen.add(self.region.key >> 8)
        self.assertEqual(len(seen), (1 << 16) + 1)
