"""
Tests for L{twisted_ib.hca.base.refcount}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.errors import ResourceBusyError
from twisted_ib.hca.base.refcount import RefCounted


class _Thing(RefCounted):
    """
    An object that others depend on.
    """

    kind = "thing"


class HeldTests(SynchronousTestCase):
    """
    L{RefCounted}.
    """

    def test_counts(self) -> None:
        """
        It is busy as long as one object of any kind depends on it, and names them all.
        """
        thing = _Thing()
        thing.checkFree()
        for kind in ("queue pairs", "memory windows", "queue pairs"):
            thing.hold(kind)
        error = self.assertRaises(ResourceBusyError, thing.checkFree)
        self.assertEqual(str(error), "the thing is still used by 2 queue pairs, 1 memory windows")
        thing.release("queue pairs")
        thing.release("memory windows")
        error = self.assertRaises(ResourceBusyError, thing.checkFree)
        self.assertEqual(str(error), "the thing is still used by 1 queue pairs")
        thing.release("queue pairs")
        thing.checkFree()
        self.assertEqual(thing.users, {})

    def test_tooOften(self) -> None:
        """
        A user that was not added cannot be removed.
        """
        thing = _Thing()
        thing.hold("queue pairs")
        self.assertRaises(KeyError, thing.release, "address handles")
        thing.release("queue pairs")
        self.assertRaises(KeyError, thing.release, "queue pairs")
