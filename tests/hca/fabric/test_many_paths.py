"""
Tests that what a fabric does each turn costs what is open, asleep or waiting, not what
paths there are.
"""

from __future__ import annotations

from typing import Any

from tests.contracts.path import fill
from tests.hca.hcas import LISTENER, SDP, HCATestCase, Taker, User, settle, turn
from tests.support.calls import requireReplaceable
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.fabric.loopback.loopback import LoopbackFabric
from twisted_ib.hca.fabric.shm.shm import SharedMemoryFabric
from twisted_ib.hca.host import handshake


class DelayedTests(HCATestCase):
    """
    Connection management that waits for room.
    """

    fabric = staticmethod(LoopbackFabric)

    def delayed(self) -> tuple[Device, Device, Any]:
        """
        @return: two HCAs, and the full path of the first on which management waits.
        """
        a, b, one, _ = self.takers()
        fill(one)
        self.assertFalse(a.fabric.unsent())
        while not one.path.unsent():
            one.path.sendManagement(0x10, bytes(232))
        self.assertTrue(a.fabric.unsent())
        return a, b, one.path

    def test_sent(self) -> None:
        """
        Nothing waits any more when it has left.
        """
        a, b, path = self.delayed()
        settle(a, b)
        self.assertFalse(path.unsent())
        self.assertFalse(a.fabric.unsent())

    def test_lost(self) -> None:
        """
        Nothing waits on a path that is gone.
        """
        a, _, path = self.delayed()
        a.close()
        self.assertFalse(path.alive)
        self.assertFalse(a.fabric.unsent())


class RingDelayedTests(DelayedTests):
    """
    The same over rings.
    """

    fabric = staticmethod(SharedMemoryFabric)


class CarrierDelayedTests(DelayedTests):
    """
    The same over the pair's socket.
    """

    fabric = staticmethod(lambda owner, guid, clock: SharedMemoryFabric(owner, guid, clock, False))


class SleepersTests(HCATestCase):
    """
    Paths that sleep.
    """

    fabric = staticmethod(SharedMemoryFabric)

    def setUp(self) -> None:
        """
        Three HCAs call one, which then sleeps.
        """
        super().setUp()
        self.b = self.device()
        self.b.listen(SDP, "127.0.0.1", 7001, LISTENER)
        self.callers = [self.device() for _ in range(3)]
        self.takers = [Taker(self.pathTo(each, self.b), 20, 21) for each in self.callers]
        settle(self.b, *self.callers)
        self.paths = self.b.fabric.paths()
        self.assertTrue(self.b.arm())

    def roused(self) -> list[Any]:
        """
        Look.

        @return: the paths that were asked whether they have work.
        """
        kind = type(self.paths[0])
        requireReplaceable(kind, "rouse")
        rouse, asked = kind.rouse, []

        def remembering(path: Any) -> Any:
            """
            Ask it.
            """
            asked.append(path)
            return rouse(path)

        patched = self.patch(kind, "rouse", remembering)
        self.b.fabric.look()
        patched.restore()
        return asked

    def test_hotOnes(self) -> None:
        """
        A path that is looked at each turn is not asked for.
        """
        self.assertEqual(self.roused(), self.paths)
        self.takers[1].post(b"wake up")
        self.callers[1].ringBells()
        self.b.fabric.attend()
        self.assertEqual(self.roused(), self.paths)
        self.assertEqual(self.b.fabric.hot, (self.paths[1],))
        self.assertEqual(self.roused(), [self.paths[0], self.paths[2]])
        self.b.progress()
        self.assertTrue(self.b.arm())
        self.assertEqual(self.b.fabric.hot, ())
        self.assertEqual(set(self.roused()), set(self.paths))

    def test_wokenByPosting(self) -> None:
        """
        Nor is one on which this side has published.
        """
        Taker(self.paths[2], 21, 20).post(b"from here")
        self.b.ringBells()
        self.assertEqual(self.b.fabric.hot, (self.paths[2],))
        self.assertEqual(self.roused(), self.paths[:2])

    def test_deadOnes(self) -> None:
        """
        Nor is one that was lost while it slept.
        """
        self.callers[0].close()
        self.b.fabric.attend()
        self.assertEqual(self.roused(), self.paths[1:])


class CarrierSleepersTests(SleepersTests):
    """
    The same over the pair's socket.
    """

    fabric = staticmethod(lambda owner, guid, clock: SharedMemoryFabric(owner, guid, clock, False))


class GreetingTests(HCATestCase):
    """
    Handshakes.
    """

    fabric = staticmethod(SharedMemoryFabric)

    def setUp(self) -> None:
        """
        One HCA that is called.
        """
        super().setUp()
        self.a, self.b = self.device(), self.device()
        self.b.listen(SDP, "127.0.0.1", 7001, LISTENER)

    def greeting(self) -> tuple[int, int, float | None]:
        """
        @return: how many handshakes and pairs the called HCA has, and its deadline.
        """
        fabric: Any = self.b.fabric
        return len(fabric._pairs.greeting), len(fabric._pairs), fabric.deadline()

    def test_done(self) -> None:
        """
        A pair with a path has no handshake, at either end.
        """
        self.assertEqual(self.greeting(), (0, 0, None))
        self.pathTo(self.a, self.b)
        self.assertEqual(self.greeting(), (0, 1, None))
        fabric: Any = self.a.fabric
        self.assertEqual((len(fabric._pairs.greeting), fabric.deadline()), (0, None))

    def test_silent(self) -> None:
        """
        The deadline is that of the oldest who says nothing, beside those who are done.
        """
        self.pathTo(self.a, self.b)
        rendezvous: Any = self.b.fabric.rendezvous
        for _ in range(2):
            self.addCleanup(rendezvous.connect(rendezvous.find(self.b.guid)).close)
            turn(self.b)
            self.clock.advance(1.0)
        self.assertEqual(self.greeting(), (2, 3, handshake.HANDSHAKE_SECONDS))
        self.clock.advance(handshake.HANDSHAKE_SECONDS - 2.0)
        self.b.tick(self.clock.seconds())
        self.assertEqual(self.greeting(), (1, 2, handshake.HANDSHAKE_SECONDS + 1.0))
        self.clock.advance(1.0)
        self.b.tick(self.clock.seconds())
        self.assertEqual(self.greeting(), (0, 1, None))

    def test_cancelled(self) -> None:
        """
        A consumer that cancels during the handshake is not called with the path, which is not made.
        """
        user = User()
        searching = self.a.fabric.reach(self.b.guid, user)
        searching.cancel()
        settle(self.a, self.b)
        self.assertEqual((user.path, user.error, len(self.a.fabric.paths())), (None, None, 0))
