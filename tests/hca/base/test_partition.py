"""
Tests of L{twisted_ib.hca.base.partition}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib import limits
from twisted_ib.errors import ResourceLimitError
from twisted_ib.hca.base.partition import DEFAULT_PKEY, PartitionTable, isValid, matches, partners

#: IBTA vol. 1 10.9.3: two P_Keys, and whether they match.
CASES = (
    (0xFFFF, 0xFFFF, True),
    (0xFFFF, 0x7FFF, True),
    (0x7FFF, 0xFFFF, True),
    (0x7FFF, 0x7FFF, False),
    (0x8001, 0x8001, True),
    (0x8001, 0x0001, True),
    (0x0001, 0x0001, False),
    (0x8001, 0xFFFF, False),
    (0x8001, 0x8002, False),
    (0x8000, 0x8000, False),
    (0x8000, 0x0000, False),
    (0x0000, 0x0000, False),
)


class MatchTests(SynchronousTestCase):
    """
    L{matches} and L{partners}.
    """

    def test_matches(self) -> None:
        """
        The low 15 bits are equal and not 0, and one of the two is a full member, in either order.
        """
        for one, other, expected in CASES:
            self.assertIs(matches(one, other), expected, (one, other))
            self.assertIs(matches(other, one), expected, (other, one))

    def test_partners(self) -> None:
        """
        The partners of a P_Key are all that match it, and no others.
        """
        for key in (0xFFFF, 0x7FFF, 0x8001, 0x0001, 0x8000, 0):
            expected = {other for other in range(1 << 16) if matches(key, other)}
            self.assertEqual(partners(key), expected, hex(key))

    def test_valid(self) -> None:
        """
        A P_Key without a partition is an empty slot.
        """
        self.assertEqual([isValid(key) for key in (0, 0x8000, 1, 0x8001)], [False, False, True, True])


class TableTests(SynchronousTestCase):
    """
    L{PartitionTable}.
    """

    def test_default(self) -> None:
        """
        Without a subnet manager there is the default partition, of full members.
        """
        table = PartitionTable()
        self.assertEqual((table.keys, len(table)), ((DEFAULT_PKEY,), 1))
        self.assertEqual(table.accepted, {0xFFFF, 0x7FFF})

    def test_replace(self) -> None:
        """
        A new table has its own keys and takes what matches one of them; empty slots take nothing.
        """
        table = PartitionTable((0x8001, 0, 0x0002))
        self.assertEqual([table.key(index) for index in (-1, 0, 1, 2, 3)], [0, 0x8001, 0, 2, 0])
        self.assertEqual(table.accepted, {0x8001, 0x0001, 0x8002})
        table.replace([0xFFFF])
        self.assertEqual((table.keys, table.accepted), ((0xFFFF,), {0xFFFF, 0x7FFF}))

    def test_bounds(self) -> None:
        """
        A table has 1 to L{limits.PARTITIONS} keys of 16 bits; if not, it stays as it was.
        """
        table = PartitionTable([0x8001] * limits.PARTITIONS)
        self.assertRaises(ResourceLimitError, table.replace, [0x8002] * (limits.PARTITIONS + 1))
        for wrong in ((), (0x10000,), (-1,)):
            self.assertRaises(ValueError, table.replace, wrong)
        self.assertEqual(table.keys, (0x8001,) * limits.PARTITIONS)
