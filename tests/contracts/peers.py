"""
How HCAs of every fabric find each other, sleep, wake and part.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from zope.interface.verify import verifyObject

from tests.hca.applicable import Need, needs
from tests.hca.hcas import HCATestCase, Taker, User, readable, settle, turn, wakes
from tests.support.descriptors import descriptors, descriptorsBefore, runForked
from twisted_ib.errors import (
    DeviceClosedError,
    NoListenerError,
    NoRouteError,
    PathLostError,
    ServiceInUseError,
)
from twisted_ib.hca.base.interfaces import IAddressDirectory, IFabric, IFabricOwner, IHostDirectory
from twisted_ib.hca.device.device import Device

if TYPE_CHECKING:
    Base = HCATestCase
else:
    Base = object  # Mixins: trial runs what is made of them.

#: Addresses that are nobody's (RFC 5737, RFC 3849).
ELSEWHERE = ("192.0.2.1", "2001:db8::1")


class ServiceContract(Base):
    """
    Services are published, found, taken and free again.
    """

    def test_interface(self) -> None:
        """
        It is an L{IFabric} with the directory of a host or of addresses, and its device an L{IFabricOwner}.
        """
        device = self.device()
        directory = IAddressDirectory if device.fabric.traits.hasAddress else IHostDirectory
        verifyObject(IFabric, device.fabric)
        verifyObject(directory, device.fabric)
        # A caller that polled while the peer had the CPU counts that as a sleep.
        before = device.fabric.sleeps
        device.fabric.sleeps += 1
        self.assertEqual(device.fabric.sleeps, before + 1)
        verifyObject(IFabricOwner, device)

    @needs(Need.DIRECTORY)
    def test_found(self) -> None:
        """
        A listener is found under its address and under its wildcard, and gets the address of the peer.
        """
        cases = (("127.0.0.1", "127.0.0.1"), ("", "127.0.0.1"), ("::", "::1"), ("::", "127.0.0.1"))
        for bound, asked in cases:
            a, b = self.device(), self.device()
            b.listen(self.space, bound, 7001, self.listener)
            user = User()
            a.connect(self.space, asked, 7001, user)
            settle(a, b)
            self.assertEqual(user.path.peer.guid, b.guid)
            self.assertEqual([path.peer.guid for path in b.fabric.paths()], [a.guid])
            self.assertEqual(user.path.peer.pid, os.getpid())
            b.close()

    @needs(Need.DIRECTORY)
    def test_taken(self) -> None:
        """
        A port is taken by whoever has the same address or a wildcard that
        holds it, here or elsewhere; another family is free.
        """
        cases = (
            ("127.0.0.1", "127.0.0.1", True),
            ("127.0.0.1", "", True),
            ("", "127.0.0.1", True),
            ("", "", True),
            ("::", "::1", True),
            ("127.0.0.1", "127.0.0.2", False),
            ("", "::", False),
        )
        a, b = self.device(), self.device()
        for first, second, taken in cases:
            for other in (a, b):
                service = a.listen(self.space, first, 7001, self.listener)
                if taken:
                    self.assertRaises(
                        ServiceInUseError, other.listen, self.space, second, 7001, self.listener
                    )
                else:
                    other.listen(self.space, second, 7001, self.listener).close()
                service.close()

    def test_free(self) -> None:
        """
        An address that is withdrawn, and those of a closed HCA, are free again.
        """
        a, b = self.device(), self.device()
        a.listen(self.space, "", 7001, self.listener).close()
        b.listen(self.space, self.address, 7001, self.listener)
        b.close()
        a.listen(self.space, self.address, 7001, self.listener)

    def test_takenByPeer(self) -> None:
        """
        A port of an address is taken by the HCA that listens there, on all addresses or on this one.
        """
        a, b = self.device(), self.device()
        for first in (self.address, ""):
            for second in (self.address, ""):
                service = a.listen(self.space, first, 7001, self.listener)
                for other in (a, b):
                    self.assertRaises(
                        ServiceInUseError, other.listen, self.space, second, 7001, self.listener
                    )
                service.close()

    def test_withdrawn(self) -> None:
        """
        A service that is withdrawn is found no more; the connections that it has made go on.
        """
        a, b = self.device(), self.device()
        service = b.listen(self.space, self.address, 7001, self.listener)
        one, two = self.connected(a, b)
        service.close()
        self.assertNobody(a, self.address, 7001)
        one.post(b"still here")
        settle(a, b)
        self.assertEqual(two.records, [b"still here"])

    @needs(Need.DIRECTORY)
    def test_anyPort(self) -> None:
        """
        Port 0 is a port from 49152 up that nobody has, and it can be found.
        """
        a, b = self.device(), self.device()
        ports = {device.listen(self.space, "127.0.0.1", 0, self.listener).port for device in (a, a, b, b)}
        self.assertEqual(len(ports), 4)
        self.assertTrue(49152 <= min(ports) <= max(ports) < 65536)
        for port in ports:
            self.pathTo(a, b, port)

    def test_nobody(self) -> None:
        """
        Nobody listens.
        """
        a, b = self.device(), self.device()
        b.listen(self.space, self.address, 7001, self.listener)
        for address, port in ((self.address, 7002), (self.unused, 7001)):
            self.assertNobody(a, address, port)

    @needs(Need.DIRECTORY)
    def test_nobodyOfFamily(self) -> None:
        """
        Nobody listens at an address of the other IP version: said at once, by name.
        """
        a, b = self.device(), self.device()
        b.listen(self.space, self.address, 7001, self.listener)
        self.assertRaises(NoListenerError, a.connect, self.space, "::1", 7001, User())

    def test_elsewhere(self) -> None:
        """
        Addresses of other hosts are not served.
        """
        a = self.device()
        for address in ELSEWHERE:
            self.assertRaises(NoRouteError, a.listen, self.space, address, 7001, self.listener)

    @needs(Need.DIRECTORY)
    def test_notReached(self) -> None:
        """
        Addresses of other hosts are not reached.
        """
        a = self.device()
        for address in ELSEWHERE:
            self.assertRaises(NoRouteError, a.connect, self.space, address, 7001, User())

    @needs(Need.SHARED_PATH)
    def test_onePath(self) -> None:
        """
        An HCA dials another once, as often as it is asked for.
        """
        a, b, path, _ = self.joined()
        a.listen(self.space, "127.0.0.1", 7002, self.listener)
        self.assertIs(self.pathTo(a, b), path)
        self.assertEqual((len(a.fabric.paths()), len(b.fabric.paths())), (1, 1))
        back = self.pathTo(b, a, 7002)
        self.assertIs(self.pathTo(b, a, 7002), back)
        self.assertIs(self.pathTo(a, b), path)
        self.assertLessEqual(len(a.fabric.paths()), 2)

    def test_itself(self) -> None:
        """
        An HCA reaches itself by a path with two ends.
        """
        a = self.device()
        a.listen(self.space, self.address, 7001, self.listener)
        one, two = self.connected(a, a)
        one.post(b"there")
        two.post(b"and back")
        settle(a)
        self.assertEqual((two.records, one.records), ([b"there"], [b"and back"]))
        a.close()
        self.assertEqual([len(taker.said("failed")) for taker in (one, two)], [1, 1])


class SleepContract(Base):
    """
    A device that sleeps is woken when there is something to do for it.
    """

    def asleep(self) -> tuple[Device, Device, Taker, Taker]:
        """
        @return: two HCAs that sleep.
        """
        a, b, one, two = self.takers()
        settle(a, b)
        self.assertTrue(a.arm() and b.arm())
        self.assertFalse(readable(a) or readable(b) or a.busy() or b.busy())
        return a, b, one, two

    def test_record(self) -> None:
        """
        A record wakes at the end of the batch.
        """
        a, b, one, two = self.asleep()
        one.post(b"wake")
        a.progress()
        self.assertTrue(wakes(b))
        b.fabric.attend()
        self.assertTrue(b.fabric.look())
        self.assertTrue(b.busy())
        self.assertEqual((b.progress(), two.records), (1, [b"wake"]))
        self.assertFalse(b.busy())
        self.assertTrue(b.arm())
        self.assertFalse(readable(b))

    def test_again(self) -> None:
        """
        It wakes each time.
        """
        a, b, one, two = self.asleep()
        for n in range(5):
            one.post(b"%d" % n)
            a.progress()
            self.assertTrue(wakes(b))
            self.assertEqual(settle(b), 1)
            self.assertTrue(b.arm())
            self.assertFalse(readable(b))
        self.assertEqual(two.records, [b"0", b"1", b"2", b"3", b"4"])

    @needs(Need.SHARED_PATH)
    def test_inVain(self) -> None:
        """
        A bell that comes when its record is taken already does not use up the
        one for the next record.
        """
        a, b, one, two = self.asleep()
        one.post(b"first")
        b.fabric.look()
        self.assertEqual(b.progress(), 1)
        self.assertTrue(b.arm())
        a.progress()
        for _ in range(2):
            b.fabric.attend()
            b.fabric.look()
            self.assertEqual(b.progress(), 0)
            self.assertTrue(b.arm())
        one.post(b"second")
        a.progress()
        self.assertTrue(readable(b))
        settle(b)
        self.assertEqual(two.records, [b"first", b"second"])

    def test_waitsAsleep(self) -> None:
        """
        A waiter for room that begins while the device sleeps is notified too.
        """
        a, b, one, _ = self.asleep()
        while one.post(b"x" * 8000):
            pass
        a.progress()
        self.assertTrue(a.arm())
        self.assertFalse(one.post(b"x" * 8000))
        one.path.wantSpace(one)
        a.fabric.ringBells()
        self.makeRoom(a, b)
        self.assertEqual(one.said("resume"), [None])

    def makeRoom(self, a: Device, b: Device) -> None:
        """
        Let the second take what the first has posted, of which that hears.
        """
        settle(b)
        self.assertTrue(readable(a) or a.busy())
        settle(a)

    def test_late(self) -> None:
        """
        A device with something to do is not put to sleep.
        """
        a, b, one, _ = self.asleep()
        one.post(b"late")
        a.progress()
        self.assertTrue(wakes(b))
        b.fabric.attend()
        self.assertTrue(b.fabric.look())
        self.assertFalse(b.arm())
        self.assertTrue(b.busy())

    def test_outsideOfATurn(self) -> None:
        """
        A record published outside of a turn asks for one, once a batch.
        """
        a, _, one, _ = self.asleep()
        asked: list[int] = []
        a.wanted = lambda: asked.append(1)
        one.post(b"1")
        one.post(b"2")
        self.assertEqual(len(asked), 1)
        a.progress()
        one.post(b"3")
        self.assertEqual(len(asked), 2)

    def test_signal(self) -> None:
        """
        A signal makes the descriptor readable until it is attended to, asleep
        or not.
        """
        c = self.device()
        a, b, _, _ = self.asleep()
        settle(c)
        for device in (a, c):
            for _ in range(3):
                device.fabric.signal()
            self.assertTrue(readable(device))
            device.fabric.attend()
            self.assertFalse(readable(device))
            self.assertEqual(turn(device), 0)
        self.assertFalse(readable(b))

    def test_room(self) -> None:
        """
        A waiter for room is woken when there is some.
        """
        a, b, one, _ = self.asleep()
        while one.post(b"x" * 8000):
            pass
        one.path.wantSpace(one)
        a.progress()
        self.assertTrue(a.arm())
        self.assertFalse(readable(a))
        for _ in range(100):
            if readable(a):
                break
            turn(b)
        settle(a)
        self.assertEqual(one.said("resume"), [None])
        self.assertTrue(a.arm())
        self.assertFalse(readable(a))

    @needs(Need.TAKEN)
    def test_acknowledgement(self) -> None:
        """
        A sender that waits for a record to be consumed is woken, be the record its first or not.
        """
        a, b, one, _ = self.asleep()
        for n in range(1, 4):
            position = one.postKept(b"kept")
            a.progress()
            self.assertTrue(a.arm())
            self.assertFalse(readable(a))
            self.assertEqual(len(one.said("acknowledged")), n - 1)
            settle(b)
            self.assertTrue(readable(a))
            settle(a)
            self.assertEqual(one.said("acknowledged")[n - 1], position)
            self.assertTrue(a.arm() and b.arm())
            self.assertFalse(readable(a) or readable(b))

    def test_dirty(self) -> None:
        """
        A consumer that gathers is called once, after all records of the batch, and the device neither sleeps
        nor reports itself idle before that.
        """
        a, b, one, two = self.asleep()
        ends: list[int] = []

        class Owner:
            """
            Gathers.
            """

            def endOfBatch(self) -> None:
                """
                The batch ends.
                """
                ends.append(len(two.records))

        owner = Owner()
        two.upcall = lambda data: b.markDirty(owner) if data == b"1" else None
        for n in range(3):
            one.post(b"%d" % n)
        a.progress()
        self.assertTrue(wakes(b))
        turn(b)
        self.assertEqual(ends, [3])
        b.markDirty(owner)
        self.assertTrue(b.busy())
        self.assertFalse(b.arm())
        b.progress()
        self.assertEqual(ends, [3, 3])
        self.assertTrue(b.arm())


class DeathContract(Base):
    """
    A peer that is gone.
    """

    def test_closed(self) -> None:
        """
        Records that it had published are consumed; then all that is bound fails, with the reason, and the
        service is gone.
        """
        a, b, one, two = self.takers()
        more = self.another(a, b, one)
        for n in range(100):
            two.post(b"%d" % n)
        one.path.wantSpace(one)
        b.close()
        settle(a)
        self.assertEqual(one.records, [b"%d" % n for n in range(100)])
        for taker in (one, more, two):
            (reason,) = taker.said("failed")
            self.assertIsInstance(reason, PathLostError)
        self.assertFalse(one.path.alive)
        self.assertEqual((a.fabric.paths(), one.path.queuePairs()), ([], []))
        self.assertNobody(a, self.address, 7001)

    @needs(Need.SHARED_PATH)
    def test_pathFirst(self) -> None:
        """
        The device is told of the path before its queue pairs are.
        """
        a, b, one, _ = self.takers()
        lost: list[Any] = []
        a.pathLost = (  # type: ignore[method-assign]
            lambda path, reason: lost.append((path, len(one.said("failed"))))
        )
        b.close()
        settle(a)
        self.assertEqual((lost, len(one.said("failed"))), ([(one.path, 0)], 1))

    def test_wakes(self) -> None:
        """
        The end of a peer wakes a sleeper.
        """
        a, b, one, _ = self.takers()
        settle(a, b)
        self.assertTrue(a.arm())
        b.close()
        self.assertTrue(wakes(a))
        a.fabric.attend()
        self.assertTrue(a.busy() or not a.fabric.paths())
        settle(a)
        self.assertEqual(len(one.said("failed")), 1)
        self.assertTrue(a.arm())
        self.assertFalse(readable(a))

    def test_others(self) -> None:
        """
        Paths to others go on, and a new HCA at the same place is found.
        """
        a, b, _, _ = self.takers()
        c = self.device()
        c.listen(self.space, self.address, 7002, self.listener)
        three, four = self.connected(a, c, 7002, 40)
        b.close()
        settle(a)
        three.post(b"still here")
        settle(a, c)
        self.assertEqual(four.records, [b"still here"])
        d = self.device()
        d.listen(self.space, self.address, 7001, self.listener)
        five, six = self.connected(a, d, 7001, 50)
        five.post(b"the next")
        settle(a, d)
        self.assertEqual(six.records, [b"the next"])

    def test_nothingLeft(self) -> None:
        """
        No descriptor stays open.
        """
        before = descriptorsBefore()
        a, b, one, _ = self.takers()
        one.post(b"never taken")
        a.progress()
        b.close()
        settle(a)
        a.close()
        self.assertEqual(descriptors(), before)

    def test_posts(self) -> None:
        """
        A post before the end is known raises no exception for it.
        """
        a, b, one, _ = self.takers()
        b.close()
        one.post(b"nobody takes this")
        one.path.sendManagement(0x70, bytes(232))
        settle(a)
        self.assertEqual(len(one.said("failed")), 1)

    def test_exceptions(self) -> None:
        """
        A consumer that fails over a record, or over the end, keeps nobody
        else from hearing of theirs.
        """
        a, b, one, two = self.takers()
        more = self.another(a, b, one)
        one.upcall = one.failing = lambda *data: 1 // 0
        for n in range(3):
            two.post(b"%d" % n)
        b.close()
        for _ in range(5):
            try:
                turn(a)
            except ZeroDivisionError:
                pass
        self.assertEqual(one.records, [b"0", b"1", b"2"])
        self.assertEqual((len(one.said("failed")), len(more.said("failed"))), (1, 1))
        self.assertEqual(a.fabric.paths(), [])

    def test_closeInUpcall(self) -> None:
        """
        A consumer may close its own HCA over a record.
        """
        before = descriptorsBefore()
        a, b, one, two = self.takers()
        two.upcall = lambda data: b.close()
        for _ in range(3):
            one.post(b"the last one")
        a.progress()
        turn(b)
        self.assertEqual((len(two.records), b.counters["absent_queue_pair"]), (1, 0))
        settle(a)
        self.assertEqual(len(one.said("failed")), 1)
        a.close()
        self.assertEqual(descriptors(), before)

    def test_closeBesideOthers(self) -> None:
        """
        One path's upcall closes the device, as when it is removed, before the others have their turn.
        """
        a, b, one, two = self.takers()
        c, d = self.device(), self.device()
        others = [self.connected(c, b, number=40)[0], self.connected(d, b, number=50)[0]]
        settle(a, b, c, d)
        two.upcall = lambda data: b.close()
        one.post(b"1")
        turn(a)
        while not b.closed:
            turn(b)
        self.assertEqual([what for what, _ in two.log], ["taken", "failed"])
        self.assertEqual(b.progress(), 0)
        settle(a, c, d)
        self.assertEqual([other.path.alive for other in others], [False, False])

    def test_closeOverTheEnd(self) -> None:
        """
        A consumer may close its own HCA when it hears of the peer's end.
        """
        before = descriptorsBefore()
        a, b, one, _ = self.takers()
        more = self.another(a, b, one)
        one.failing = a.close
        b.close()
        settle(a)
        self.assertEqual((len(one.said("failed")), len(more.said("failed"))), (1, 1))
        self.assertTrue(a.closed)
        self.assertEqual(descriptors(), before)

    def test_forked(self) -> None:
        """
        A forked child can use neither device nor path, by name, and does not
        disturb the parent.
        """
        a, b, one, two = self.takers()

        def child() -> None:
            """
            Try.
            """
            self.assertRaises(DeviceClosedError, a.listen, self.space, "127.0.0.1", 0, self.listener)
            self.assertRaises(DeviceClosedError, one.post, b"from the child")
            a.close()

        self.assertEqual(runForked(child), 0)
        one.post(b"from the parent")
        settle(a, b)
        self.assertEqual(two.records, [b"from the parent"])
