"""
Tests of L{twisted_ib.hca.fabric.base.lastwords}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib import limits
from twisted_ib.hca.fabric.base.lastwords import UNKNOWN, UNREAD, LastWords, lastWords, slots
from twisted_ib.hca.fabric.shm.ring import BEGUN, PAGE, WORDS


class LastWordsTests(SynchronousTestCase):
    """
    The words of a path's streams.
    """

    def test_bound(self) -> None:
        """
        There are L{limits.LAST_WORDS} slots, within the page of the cells and behind the others.
        """
        words = LastWords([0] * (PAGE // 8), WORDS)
        self.assertEqual(len(words.free), limits.LAST_WORDS)
        self.assertGreater(min(words.free) - 1, BEGUN)
        self.assertLess(max(words.free), PAGE // 8)

    def test_hostile(self) -> None:
        """
        A peer may write anything: what is no queue pair, or has bytes unread, ends no stream in order.
        """
        cells = [(1 << 64) - 1] * (PAGE // 8)
        self.assertEqual(lastWords(cells, WORDS), {})
        first, second, third = slots(WORDS)[:3]
        cells[first], cells[second], cells[third] = 7, 8 | UNREAD, 0
        self.assertEqual(lastWords(cells, WORDS), {7: (1 << 64) - 1, 8: UNKNOWN})

    def test_silence(self) -> None:
        """
        Who writes when the memory is gone writes to nobody.
        """
        cells = [0] * (PAGE // 8)
        words = LastWords(cells, WORDS)
        words.silence()
        words.cells[words.free[0]] = 1
        self.assertEqual(sum(cells), 0)
