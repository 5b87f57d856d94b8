"""
The tests of C{tests.processes} with the large numbers.

This folder is no package, so that C{trial tests} leaves it out;
C{.ci/run} runs it as files.
"""

from __future__ import annotations

from tests.processes.killing import StoreTestCase, addStoreTests
from tests.processes.test_scale import ScaleTestCase
from tests.processes.wires import CHUNK_BYTES

MIB = 1 << 20


class EveryStoreTests(StoreTestCase):
    """
    Death at every store of each phase.
    """


addStoreTests(EveryStoreTests, range(1, 2000), "test_every")


class LongTests(ScaleTestCase):
    """
    Many cycles, much data.
    """

    def test_cycles(self) -> None:
        """
        10,000 times connect and close: nothing is left behind, and after the
        first 1,000 memory grows by less than 1 MiB.
        """
        self.assertLess(self.cycle(1000, 9000), MIB)

    def test_pausingReader(self) -> None:
        """
        1 GiB to a reader that pauses for 10 s: the sender grows by less than
        64 MiB.
        """
        chunks = (1 << 30) // CHUNK_BYTES
        growth, got = self.pausingReader(chunks, 10.0)
        self.assertEqual(got["received"], chunks * CHUNK_BYTES)
        self.assertLess(growth, 64 * MIB)
