"""
Tests for L{twisted_ib.hca.memory.memory}.
"""

from __future__ import annotations

import random
from itertools import product

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib import limits
from twisted_ib.errors import MemoryAccessError, MemoryRegionError, ResourceBusyError, ResourceLimitError
from twisted_ib.hca.memory.access import (
    LOCAL_READ,
    LOCAL_WRITE,
    REMOTE_ATOMIC,
    REMOTE_READ,
    REMOTE_WRITE,
    Access,
)
from twisted_ib.hca.memory.memory import Memory

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


class NearTests(MemoryTestCase):
    """
    L{Memory.near<twisted_ib.hca.memory.memory.Memory.near>}.
    """

    def test_around(self) -> None:
        """
        What is permitted around some bytes ends with the region, or a page away; what L{Memory.check} refuses
        is refused, and so are no bytes.
        """
        region = self.memory.register(bytearray(20000), 0, self.pd, 100000)
        for address, expected in (
            (100000, (100000, 104160)),
            (110000, (105904, 114160)),
            (119936, (115840, 120000)),
        ):
            view, base, *found = self.memory.near(region.key, address, 64, 0, self.pd)
            self.assertEqual((len(view), base, *found), (20000, 100000, *expected))
        for key, address, length, access in (
            (region.key + 1, 110000, 64, 0),
            (region.key, 99999, 64, 0),
            (region.key, 119937, 64, 0),
            (region.key, 110000, 0, 0),
            (region.key, 110000, 64, int(Access.LOCAL_WRITE)),
        ):
            self.assertRaises(MemoryAccessError, self.memory.near, key, address, length, access, self.pd)
        self.assertRaises(
            MemoryAccessError, self.memory.near, region.key, 110000, 64, 0, self.memory.allocateDomain()
        )


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
        An object without a contiguous buffer is refused.
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
        A domain that holds regions cannot be deallocated; the error says why.
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
