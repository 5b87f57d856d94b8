"""
Tests of the memory of frames that are read.
"""

from __future__ import annotations

import errno
import mmap
from importlib.util import find_spec
from typing import Any
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from tests.dask.case import SKIP

if not SKIP:
    from twisted_ib.dask import memory

_MIB = 1 << 20


class RecycledTests(SynchronousTestCase):
    """
    What nobody uses any more is used again.
    """

    if SKIP or find_spec("numpy") is None:
        skip = SKIP or "missing: numpy"

    def setUp(self) -> None:
        """
        Count what is mapped.
        """
        self.recycled = memory.Recycled()
        self.mapped: list[int] = []

        def new(length: int) -> mmap.mmap:
            self.mapped.append(length)
            return mmap.mmap(-1, length)

        self.patch(self.recycled, "_new", new)

    def test_again(self) -> None:
        """
        A piece is used again for a frame of about its length, once the last view and array of it has gone.
        """
        import numpy

        view: Any = self.recycled.take(4 * _MIB)
        array = numpy.frombuffer(view[5:9], "u1")
        array[:] = 7
        del view
        other = self.recycled.take(4 * _MIB)
        self.assertEqual((self.mapped, self.recycled.kept), ([4 * _MIB] * 2, 0))
        self.assertEqual(array.tolist(), [7] * 4)
        del array
        self.assertEqual(self.recycled.kept, 4 * _MIB)
        for length in (4 * _MIB, 3 * _MIB):
            again = self.recycled.take(length)
            self.assertEqual((again.nbytes, again.readonly, again[5]), (length, False, 7))
            del again
        self.assertEqual(len(self.mapped), 2)
        for length in (4 * _MIB + 1, 3 * _MIB - 1):
            self.recycled.take(length)
        self.assertEqual(self.mapped[2:], [4 * _MIB + 1, 3 * _MIB - 1])
        del other

    def test_bounds(self) -> None:
        """
        So many bytes and pieces are kept, those that came last; short frames and longer ones are not.
        """
        for length in (memory.LEAST_BYTES - 1, memory.KEPT_BYTES + 1):
            self.assertEqual(self.recycled.take(length).nbytes, length)
        self.assertEqual((self.mapped, self.recycled.kept), ([], 0))
        self.patch(memory, "KEPT_BYTES", 8 * _MIB)
        views = [self.recycled.take((2 + number) * _MIB) for number in range(4)]
        while views:
            views.pop(0)
        self.assertEqual([len(each) for each in self.recycled._kept], [5 * _MIB])
        self.patch(memory, "KEPT_PIECES", 3)
        views = [self.recycled.take(_MIB) for _ in range(5)]
        views.clear()
        self.assertEqual([len(each) for each in self.recycled._kept], [_MIB] * 3)

    def test_noHugePages(self) -> None:
        """
        A kernel without transparent huge pages refuses the advice (madvise(2), EINVAL), and gives the memory.
        """

        class Plain(mmap.mmap):
            """
            Memory of such a kernel.
            """

            def madvise(self, *_: int) -> None:
                """
                Refuse.
                """
                raise OSError(errno.EINVAL, "Invalid argument")

        self.patch(memory.mmap, "mmap", Plain)
        self.assertEqual(memory.Recycled().take(_MIB).nbytes, _MIB)

    def test_none(self) -> None:
        """
        If there is no memory it is MemoryError; and the piece that another thread takes meanwhile is its.
        """
        with mock.patch.object(memory.mmap, "mmap", side_effect=OSError("none")):
            self.assertRaises(MemoryError, memory.Recycled().take, _MIB)
        self.recycled.take(_MIB)
        taken = list(self.recycled._kept)
        self.patch(self.recycled, "_kept", type("Stale", (list,), {"remove": [].remove})(taken))
        self.recycled.take(_MIB)
        self.assertEqual(self.mapped, [_MIB] * 2)
