"""
Tests for L{twisted_ib.hca.core.memory}.
"""

from __future__ import annotations

import random
from itertools import product

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib import limits
from twisted_ib.errors import (
    MemoryAccessError,
    MemoryRegionError,
    ResourceBusyError,
    ResourceLimitError,
)
from twisted_ib.hca.core.memory import (
    LOCAL_READ,
    LOCAL_WRITE,
    REMOTE_ATOMIC,
    REMOTE_READ,
    REMOTE_WRITE,
    Access,
    Memory,
    ProtectionDomain,
)

ALL_RIGHTS = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC
KINDS = [LOCAL_READ, LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC]


class MemoryTestCase(SynchronousTestCase):
    """
    A table with one protection domain.
    """

    def setUp(self) -> None:
        """
        Make them, with a known seed.
        """
        self.memory = Memory(random.Random(1).getrandbits)
        self.pd = self.memory.allocateDomain()


class RegisterTests(MemoryTestCase):
    """
    Registering and deregistering.
    """

    def test_accessBits(self) -> None:
        """
        The bits are those of verbs.
        """
        self.assertEqual(
            [int(bit) for bit in Access],
            [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 0x100000],
        )

    def test_region(self) -> None:
        """
        A region knows its buffer, and its address is a page's.
        """
        buffer = bytearray(b"hello")
        region = self.memory.register(buffer, LOCAL_WRITE, self.pd)
        self.assertEqual(region.view.tobytes(), b"hello")
        self.assertEqual(region.length, 5)
        self.assertEqual(region.address & 4095, 0)
        self.assertTrue(1 << 46 <= region.address < 1 << 47)
        self.assertIs(self.memory.regions[region.localKey], region)

    def test_randomAddresses(self) -> None:
        """
        Two regions of one buffer have two addresses and two keys.
        """
        buffer = bytearray(10)
        one = self.memory.register(buffer, 0, self.pd)
        two = self.memory.register(buffer, 0, self.pd)
        self.assertNotEqual(one.address, two.address)
        self.assertNotEqual(one.key, two.key)

    def test_address(self) -> None:
        """
        A program may choose the address.
        """
        region = self.memory.register(bytearray(4), 0, self.pd, 12345)
        self.assertEqual(region.address, 12345)

    def test_zeroBased(self) -> None:
        """
        A zero-based region starts at 0.
        """
        region = self.memory.register(bytearray(4), Access.ZERO_BASED, self.pd, 99)
        self.assertEqual(region.address, 0)

    def test_addressOverflow(self) -> None:
        """
        A region ends at or before the end of 64-bit addresses.
        """
        self.memory.register(bytearray(16), 0, self.pd, (1 << 64) - 16)
        for address in ((1 << 64) - 15, 1 << 64, -1):
            self.assertRaises(
                MemoryRegionError,
                self.memory.register,
                bytearray(16),
                0,
                self.pd,
                address,
            )

    def test_noRemoteRightByDefault(self) -> None:
        """
        A region without a remote right has no remote key.
        """
        region = self.memory.register(bytearray(4), LOCAL_WRITE, self.pd)
        self.assertEqual(region.remoteKey, 0)
        region = self.memory.register(bytearray(4), REMOTE_READ, self.pd)
        self.assertEqual(region.remoteKey, region.localKey)

    def test_remoteDemandsLocal(self) -> None:
        """
        Remote write and remote atomic access demand local write access.
        """
        for access in (REMOTE_WRITE, REMOTE_ATOMIC, REMOTE_WRITE | REMOTE_READ):
            self.assertRaises(
                MemoryRegionError,
                self.memory.register,
                bytearray(4),
                access,
                self.pd,
            )

    def test_readOnlyBuffer(self) -> None:
        """
        A read-only buffer can grant reads only.
        """
        self.memory.register(b"abc", REMOTE_READ, self.pd)
        self.assertRaises(MemoryRegionError, self.memory.register, b"abc", LOCAL_WRITE, self.pd)

    def test_notABuffer(self) -> None:
        """
        What has no contiguous buffer is refused.
        """
        for bad in (12, "text", memoryview(bytearray(8))[::2]):
            self.assertRaises(MemoryRegionError, self.memory.register, bad, 0, self.pd)

    def test_unknownBits(self) -> None:
        """
        Unknown access bits are refused.
        """
        self.assertRaises(MemoryRegionError, self.memory.register, bytearray(1), 1 << 30, self.pd)

    def test_foreignDomain(self) -> None:
        """
        The domain must be one of the same device.
        """
        other = Memory(random.Random(2).getrandbits).allocateDomain()
        self.assertRaises(MemoryRegionError, self.memory.register, bytearray(1), 0, other)

    def test_limits(self) -> None:
        """
        Regions, their size and domains are bounded.
        """
        self.patch(limits, "MEMORY_REGIONS", 2)
        self.patch(limits, "PROTECTION_DOMAINS", 1)
        self.patch(limits, "REGION_BYTES", 8)
        self.assertRaises(MemoryRegionError, self.memory.register, bytearray(9), 0, self.pd)
        self.memory.register(bytearray(8), 0, self.pd)
        self.memory.register(bytearray(8), 0, self.pd)
        self.assertRaises(ResourceLimitError, self.memory.register, bytearray(8), 0, self.pd)
        self.assertRaises(ResourceLimitError, self.memory.allocateDomain)

    def test_deregister(self) -> None:
        """
        After deregistration the key opens nothing and the buffer is free.
        """
        buffer = bytearray(4)
        region = self.memory.register(buffer, 0, self.pd, segment=object())
        key = region.key
        self.memory.deregister(region)
        self.assertRaises(
            MemoryAccessError,
            self.memory.check,
            key,
            region.address,
            1,
            LOCAL_READ,
            self.pd,
        )
        buffer.append(1)
        self.assertIsNone(region.segment)
        self.assertRaises(MemoryRegionError, self.memory.deregister, region)

    def test_busyDomain(self) -> None:
        """
        A domain that holds regions can not be deallocated; the error says why.
        """
        region = self.memory.register(bytearray(4), 0, self.pd)
        self.pd.hold("queue pairs")
        self.memory.register(bytearray(4), 0, self.pd)
        error = self.assertRaises(ResourceBusyError, self.memory.deallocateDomain, self.pd)
        self.assertIn("2 memory regions, 1 queue pairs", str(error))
        self.pd.release("queue pairs")
        self.memory.deregister(region)
        self.memory.deregister(next(iter(self.memory.regions.values())))
        self.memory.deallocateDomain(self.pd)
        self.assertEqual(self.memory.domains, set())
        self.assertRaises(MemoryRegionError, self.memory.deallocateDomain, self.pd)


class CheckTests(MemoryTestCase):
    """
    L{Memory.check}: every right and every violation.
    """

    address = 0x10000

    def refused(self, *arguments: object) -> str:
        """
        Check, and return the text of the refusal.
        """
        return str(self.assertRaises(MemoryAccessError, self.memory.check, *arguments))

    def test_everyRight(self) -> None:
        """
        For every set of granted rights, every set of needed rights is given exactly if
        it is part of it.
        """
        for granted in range(16):
            if granted & (REMOTE_WRITE | REMOTE_ATOMIC) and not granted & LOCAL_WRITE:
                continue
            region = self.memory.register(bytearray(8), granted, self.pd, self.address)
            for needed in range(16):
                arguments = (region.key, self.address, 8, needed, self.pd)
                if needed & ~granted:
                    self.assertIn("does not grant", self.refused(*arguments))
                else:
                    view, offset = self.memory.check(*arguments)
                    self.assertIs(view, region.view)
                    self.assertEqual(offset, 0)

    def test_everyBound(self) -> None:
        """
        Of a region of 4 bytes, every start and length around it: given exactly if inside.
        """
        region = self.memory.register(bytearray(b"abcd"), ALL_RIGHTS, self.pd, self.address)
        for start, length, kind in product(range(-3, 8), range(1, 9), KINDS):
            arguments = (region.key, self.address + start, length, kind, self.pd)
            if 0 <= start and start + length <= 4:
                self.assertEqual(self.memory.check(*arguments), (region.view, start))
            else:
                self.assertIn("not within", self.refused(*arguments))

    def test_overflow(self) -> None:
        """
        Sums that would wrap in 64 bits, and negative lengths, are outside.
        """
        top = (1 << 64) - 8
        region = self.memory.register(bytearray(8), ALL_RIGHTS, self.pd, top)
        for address, length in (
            (top, 9),
            (top + 7, 2),
            (top, 1 << 64),
            (top, (1 << 64) - 1),
            (0, 8),
            (1, 7),
            (top + 4, -4),
            (top, -1),
        ):
            for kind in KINDS:
                self.assertIn(
                    "not within",
                    self.refused(region.key, address, length, kind, self.pd),
                )

    def test_foreignDomain(self) -> None:
        """
        From another domain a region gives nothing.
        """
        region = self.memory.register(bytearray(8), ALL_RIGHTS, self.pd, self.address)
        other = self.memory.allocateDomain()
        for kind in KINDS:
            self.assertIn(
                "another protection domain",
                self.refused(region.key, self.address, 1, kind, other),
            )

    def test_unknownKey(self) -> None:
        """
        Every bit of a key counts.
        """
        region = self.memory.register(bytearray(8), ALL_RIGHTS, self.pd, self.address)
        for bit, kind in product(range(32), KINDS):
            key = region.key ^ 1 << bit
            self.assertEqual(
                f"no memory region has key {key:#010x}",
                self.refused(key, self.address, 1, kind, self.pd),
            )

    def test_nothing(self) -> None:
        """
        An access of no bytes is not checked, and finds no bytes.
        """
        for kind in KINDS:
            view, offset = self.memory.check(0xDEADBEEF, 1 << 63, 0, kind, self.pd)
            self.assertEqual((view.tobytes(), offset), (b"", 0))

    def test_emptyRegion(self) -> None:
        """
        A region of no bytes gives none, whatever it grants and wherever it is.
        """
        for buffer, address in product(
            (b"", bytearray(), memoryview(bytearray(4))[2:2]), (0, 1 << 63, 1 << 64)
        ):
            access = REMOTE_READ if buffer == b"" and isinstance(buffer, bytes) else ALL_RIGHTS
            region = self.memory.register(buffer, access, self.pd, address)
            self.assertEqual((region.address, region.length), (address, 0))
            for start, kind in product((-1, 0, 1), KINDS):
                self.assertIn("not within", self.refused(region.key, address + start, 1, kind, self.pd))
            self.assertEqual(self.memory.check(region.key, address, 0, REMOTE_READ, self.pd)[0], b"")
            self.memory.deregister(region)

    def test_chosenAddress(self) -> None:
        """
        A region is addressed as the program said, at both ends of the address space and
        in the middle; the offset in its view counts from there.
        """
        for address in (0, 1, 0x7FFF, 1 << 63, (1 << 64) - 8):
            region = self.memory.register(bytearray(8), ALL_RIGHTS, self.pd, address)
            for offset in range(8):
                found = self.memory.check(region.key, address + offset, 8 - offset, LOCAL_WRITE, self.pd)
                self.assertEqual(found, (region.view, offset))
                self.refused(region.key, address + offset, 9 - offset, LOCAL_WRITE, self.pd)
            self.refused(region.key, address - 1, 8, LOCAL_WRITE, self.pd)

    def test_zeroBased(self) -> None:
        """
        A zero-based region is addressed by offsets, for its owner and for peers.
        """
        region = self.memory.register(bytearray(8), ALL_RIGHTS | Access.ZERO_BASED, self.pd)
        self.assertEqual(self.memory.check(region.key, 3, 5, REMOTE_READ, self.pd), (region.view, 3))
        self.refused(region.key, 3, 6, REMOTE_READ, self.pd)

    def test_find(self) -> None:
        """
        The region of a key is found whoever asks; there is none of an unknown key.
        """
        region = self.memory.register(bytearray(8), 0, self.pd)
        self.assertIs(self.memory.find(region.key), region)
        self.assertIsNone(self.memory.find(region.key ^ 1))


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
        self.assertEqual(str(error), "the protection domain still holds 1 memory regions")

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
        self.assertRaises(MemoryAccessError, self.opens_, 1)
        self.memory.reregister(self.region, self.buffer)
        self.assertTrue(self.opens(self.region.key))

    def opens_(self, length: int) -> object:
        """
        Check the region's first bytes.
        """
        return self.memory.check(self.region.key, self.region.address, length, LOCAL_READ, self.pd)

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
        What can not be registered can not be registered anew, and the region stays as it
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
        Bytes that can not be written do not become writable.
        """
        region = self.memory.register(b"abc", REMOTE_READ, self.pd)
        self.assertRaises(MemoryRegionError, self.memory.reregister, region, access=LOCAL_WRITE)
        self.assertEqual(region.access, REMOTE_READ)

    def test_gone(self) -> None:
        """
        A region that was deregistered stays so.
        """
        self.memory.deregister(self.region)
        self.assertRaises(MemoryRegionError, self.memory.reregister, self.region)
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
