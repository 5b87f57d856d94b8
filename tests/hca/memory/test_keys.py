"""
Tests for L{twisted_ib.hca.memory.keys}.
"""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.errors import ResourceLimitError
from twisted_ib.hca.memory import keys
from twisted_ib.hca.memory.keys import DrawnAhead, MemoryKeys, RandomIndices


class _All:
    """
    A container of everything.
    """

    def __contains__(self, item: object) -> bool:
        """
        It does.
        """
        return True


class RandomIndicesTests(SynchronousTestCase):
    """
    Numbers in a secret order.
    """

    def test_distinct(self) -> None:
        """
        100,000 draws give 100,000 numbers of 24 bits.
        """
        indices = RandomIndices(random.Random(1).getrandbits)
        drawn = [indices.draw(()) for _ in range(100000)]
        self.assertEqual(len(set(drawn)), len(drawn))
        self.assertTrue(0 < min(drawn) < 1 << 12)
        self.assertTrue((1 << 24) - (1 << 12) < max(drawn) < 1 << 24)

    def test_permutation(self) -> None:
        """
        The secret order is a permutation: of a block of counters, each gives another
        number, and each can be undone by none but the same counter.
        """
        indices = RandomIndices(random.Random(2).getrandbits)
        places = {indices._permute(n) for n in range(1 << 16)}
        self.assertEqual(len(places), 1 << 16)

    def test_secret(self) -> None:
        """
        Two secrets give two orders.
        """
        one = RandomIndices(random.Random(3).getrandbits)
        two = RandomIndices(random.Random(4).getrandbits)
        first = [one.draw(()) for _ in range(10)]
        second = [two.draw(()) for _ in range(10)]
        self.assertFalse(set(first) & set(second))

    def test_first(self) -> None:
        """
        Nothing below C{first} is drawn.
        """
        indices = RandomIndices(random.Random(5).getrandbits, first=1 << 23)
        for _ in range(1000):
            self.assertGreaterEqual(indices.draw(()), 1 << 23)

    def test_firstItself(self) -> None:
        """
        C{first} is drawn, and comes again when all were drawn.
        """
        self.patch(RandomIndices, "_permute", lambda self, number: number)
        indices = RandomIndices(random.Random(5).getrandbits, first=5)
        self.assertEqual([indices.draw(()) for _ in range(3)], [5, 6, 7])
        indices._counter = (1 << 24) - 1
        self.assertEqual([indices.draw({5}) for _ in range(2)], [(1 << 24) - 1, 6])

    def test_inUse(self) -> None:
        """
        Numbers in use are not drawn.
        """
        taken = RandomIndices(random.Random(6).getrandbits).draw(())
        indices = RandomIndices(random.Random(6).getrandbits)
        self.assertNotEqual(indices.draw({taken}), taken)

    def test_exhausted(self) -> None:
        """
        When everything is in use the error says so.
        """
        self.patch(RandomIndices, "_permute", lambda self, number: number)
        self.patch(keys, "_INDEX_MASK", 0xFFF)
        indices = RandomIndices(random.Random(7).getrandbits)
        self.assertRaises(ResourceLimitError, indices.draw, _All())


class DrawnAheadTests(SynchronousTestCase):
    """
    Numbers that are drawn before they are asked for.
    """

    def test_batches(self) -> None:
        """
        Numbers of the width have their bits, none twice, from few draws; others are drawn one by one.
        """
        widths: list[int] = []

        def randomBits(bits: int) -> int:
            widths.append(bits)
            return random.Random(len(widths)).getrandbits(bits)

        drawn = DrawnAhead(randomBits, 32)
        numbers = [drawn(32) for _ in range(128)]
        self.assertEqual(widths, [2048, 2048])
        self.assertEqual(len(set(numbers)), 128)
        self.assertTrue(1 << 30 < max(numbers) < 1 << 32)
        whole = random.Random(1).getrandbits(2048)
        self.assertEqual(sum(number << 32 * place for place, number in enumerate(numbers[63::-1])), whole)
        self.assertEqual(drawn(7), random.Random(3).getrandbits(7))
        self.assertEqual(widths[2:], [7])


class MemoryKeysTests(SynchronousTestCase):
    """
    Keys of memory regions.
    """

    def setUp(self) -> None:
        """
        A table with a known seed.
        """
        self.keys = MemoryKeys(random.Random(8).getrandbits)

    def test_notReused(self) -> None:
        """
        A key that was withdrawn does not come back within 2^16 allocations, nor does
        its index.
        """
        seen = set()
        for _ in range((1 << 16) + 1):
            key = self.keys.issue()
            self.assertLess(key, 1 << 32)
            seen.add(key >> 8)
            self.keys.withdraw(key)
        self.assertEqual(len(seen), (1 << 16) + 1)

    def test_lowByte(self) -> None:
        """
        The low byte is random too.
        """
        self.assertEqual(len({self.keys.issue() & 0xFF for _ in range(5000)}), 256)
