"""
Tests that a signal handler that raises, as Python's own for SIGINT does, leaves fabrics that work.
"""

from __future__ import annotations

from typing import Any
from unittest import skipIf

from tests.hca.hcas import HCATestCase, settle
from twisted_ib.hca.fabric.shm.shm import SharedMemoryFabric
from twisted_ib.hca.host import libc

MISSING = libc.available()


@skipIf(bool(MISSING), f"missing: {MISSING}")
class FenceTests(HCATestCase):
    """
    A fence is two calls, between which a handler may run.
    """

    fabric: Any = SharedMemoryFabric

    def test_raises(self) -> None:
        """
        The next fence waits for nothing, whether a batch ends, paths are put to sleep or are looked at.
        """
        a, b, one, two = self.takers()
        settle(a, b)
        fabric = a.fabric
        acquire, lock = fabric._acquire, fabric._acquire.__self__

        def interrupted() -> None:
            fabric._acquire = acquire
            acquire()
            raise KeyboardInterrupt

        def post() -> None:
            one.post(b"octets")
            fabric.ringBells()

        for each in (post, fabric.arm, fabric.fence):
            fabric._acquire = interrupted
            self.assertRaises(KeyboardInterrupt, each)
            self.assertIs(fabric._acquire, acquire)
            self.assertFalse(lock.locked())
        one.post(b"after")
        settle(a, b)
        self.assertEqual(two.records[-1], b"after")
