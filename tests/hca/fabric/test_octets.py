"""
Tests of what paths between processes count: octets of both directions.
"""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest import skipIf

from tests.hca.hcas import HCATestCase, settle
from twisted_ib import limits
from twisted_ib.hca.fabric.shm import hotpaths
from twisted_ib.hca.fabric.shm.shm import SharedMemoryFabric
from twisted_ib.hca.host import libc

MISSING = libc.available()


@skipIf(bool(MISSING), f"missing: {MISSING}")
class RingOctetsTests(HCATestCase):
    """
    Over rings.
    """

    fabric: Any = SharedMemoryFabric

    def count(self, device: Any) -> tuple[int, int]:
        """
        @return: What a device says that it has sent and received, in octets.
        """
        found = device.statistics()
        return 4 * found["port_xmit_data"], 4 * found["port_rcv_data"]

    def test_counted(self) -> None:
        """
        Both ends count what is sent, of any size and many times around the ring, and nothing besides but
        headers and the rounding of each record; each direction for itself, and also after the end.
        """
        a, b, one, _two = self.takers()
        settle(a, b)
        before, octets, most = self.count(a)[0], 0, 0
        for size, count in (
            (0, 10),
            (100, 3000),
            (3000, 3 * limits.RING // 3000),
            (limits.INLINE_MESSAGE, 3 * limits.RING // limits.INLINE_MESSAGE),
            (1, 1),
        ):
            rounding = 72 if size < 4096 else 2 * 4096
            for _ in range(count):
                self.assertTrue(one.post(bytes(size)))
                settle(a, b)
                octets += size
                most += size + rounding
        sent, received = self.count(a)
        self.assertTrue(octets < sent - before <= most, (octets, sent - before, most))
        self.assertEqual(self.count(b), (received, sent))
        b.close()
        settle(a)
        self.assertEqual(a.fabric.paths(), [])
        self.assertEqual((self.count(a), self.count(b)), ((sent, received), (received, sent)))

    def test_published(self) -> None:
        """
        What a peer may answer is counted where it is sent: one for the shortest record, at least one for
        others, nothing where it is only received; and not at all with more than so many peers.
        """
        a, b, one, _two = self.takers()
        settle(a, b)
        there, before = b.sent(), a.sent()
        # More than a window of a ring has.
        count = limits.RING_WINDOW // 64 + 10
        for _ in range(count):
            self.assertTrue(one.post(b""))
            settle(a, b)
        self.assertEqual((a.sent() - before, b.sent()), (count, there))
        a.updates += count - 1
        self.assertEqual(a.sent() - before, 1)
        for _ in range(limits.RING // limits.INLINE_MESSAGE):
            before = a.sent()
            self.assertTrue(one.post(bytes(limits.INLINE_MESSAGE)))
            settle(a, b)
            self.assertGreater(a.sent(), before)
        self.assertTrue(a.arm())
        before = a.sent()
        self.assertGreater(before, 0)
        path = next(iter(a.fabric._asleep))
        self.patch(a.fabric, "hot", (path,) * hotpaths.PEERS)
        self.assertEqual(a.sent(), 0)


class SocketOctetsTests(RingOctetsTests):
    """
    Over sockets.
    """

    fabric = partial(SharedMemoryFabric, rings=False)
