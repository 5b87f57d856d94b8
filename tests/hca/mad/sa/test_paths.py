"""
Tests of L{twisted_ib.hca.mad.sa.queries}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.hca.mad.attributes.administration import PathRecord
from twisted_ib.hca.mad.sa import queries
from twisted_ib.hca.mad.sa.queries import PathCache, PathKey
from twisted_ib.limits import SA_PATH_SECONDS

RECORD = PathRecord(dlid=3)


class PathCacheTests(SynchronousTestCase):
    """
    L{PathCache}.
    """

    def test_key(self) -> None:
        """
        A path is found by both GIDs and the partition.
        """
        cache = PathCache()
        cache.add(PathKey(1, 2, 3), RECORD, 0.0)
        self.assertIs(cache.find(PathKey(1, 2, 3), 0.0), RECORD)
        for other in (PathKey(2, 1, 3), PathKey(1, 2), PathKey(1, 3, 3)):
            self.assertIsNone(cache.find(other, 0.0))

    def test_lifetime(self) -> None:
        """
        It is remembered for its time, from when it was learned last.
        """
        cache, key = PathCache(), PathKey(1, 2)
        cache.add(key, RECORD, 5.0)
        self.assertIs(cache.find(key, 4.9 + SA_PATH_SECONDS), RECORD)
        cache.add(key, RECORD, 6.0)
        self.assertIs(cache.find(key, 5.9 + SA_PATH_SECONDS), RECORD)
        self.assertIsNone(cache.find(key, 6.0 + SA_PATH_SECONDS))
        self.assertEqual(len(cache), 0)

    def test_bound(self) -> None:
        """
        Over the bound that which was not used for longest is forgotten.
        """
        self.patch(queries, "SA_PATHS", 2)
        cache = PathCache()
        for number in (1, 2):
            cache.add(PathKey(number, 0), RECORD, 0.0)
        cache.find(PathKey(1, 0), 0.0)
        cache.add(PathKey(3, 0), RECORD, 0.0)
        found = [cache.find(PathKey(number, 0), 0.0) is not None for number in (1, 2, 3)]
        self.assertEqual(found, [True, False, True])
        # One that is learned again has been used.
        cache.add(PathKey(1, 0), RECORD, 0.0)
        cache.add(PathKey(4, 0), RECORD, 0.0)
        found = [cache.find(PathKey(number, 0), 0.0) is not None for number in (1, 3, 4)]
        self.assertEqual(found, [True, False, True])

    def test_forget(self) -> None:
        """
        The paths from and to a port, and all.
        """
        cache = PathCache()
        for key in (PathKey(1, 2), PathKey(2, 1), PathKey(3, 4)):
            cache.add(key, RECORD, 0.0)
        cache.forget(1)
        self.assertEqual((len(cache), cache.generation), (1, 0))
        cache.clear()
        self.assertEqual((len(cache), cache.generation), (0, 1))
