"""
The tests of C{tests.processes} with the large numbers.

This folder is no package, so that C{trial tests} leaves it out;
C{.ci/long soak} runs it as files.
"""

from __future__ import annotations

from tests.processes.killing import StoreTestCase, addStoreTests
from tests.processes.programs.wires import CHUNK_BYTES
from tests.processes.test_scale import HaulTestCase, ScaleTestCase

MIB, GIB = 1 << 20, 1 << 30


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


class HaulTests(HaulTestCase):
    """
    8 GiB through one connection; 200 connections with pauses.
    """

    def test_oneWay(self) -> None:
        """
        8 GiB from the client.
        """
        self.haulInBounds(8 * GIB, 0, 300)

    def test_bothWays(self) -> None:
        """
        8 GiB each way at the same time.
        """
        self.haulInBounds(8 * GIB, 8 * GIB, 300)

    def test_pauses(self) -> None:
        """
        200 connections of 16 MiB each way, whose readers and writers pause at random.
        """
        self.haulWithPauses(200, 16 * MIB, 300)

    def test_shut(self) -> None:
        """
        200 connections of 16 MiB to readers that begin when all writers stand still.
        """
        self.haulToShut(200, 16 * MIB, 300)


class EPollHaulTests(HaulTests):
    """
    The same on a reactor that knows nothing of HCAs.
    """

    reactor = "epoll"
