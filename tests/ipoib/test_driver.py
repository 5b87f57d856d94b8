"""
Tests of L{twisted_ib.ipoib.driver} with machines that only remember, on devices of each kind.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import skipIf

from zope.interface.verify import verifyObject

from tests.ipoib.pairs import BROADCAST, PKEY, OnLoopback, OnPackets, OnSharedMemory, OnSubnet
from twisted_ib import limits
from twisted_ib.errors import DeviceError, HCAError, QueuePairError
from twisted_ib.hca.base.port import PortChange
from twisted_ib.hca.connection.interfaces import IConnectionUser, IServiceListener
from twisted_ib.hca.host import libc
from twisted_ib.hca.queues.consumers import IConsumer, IDatagramConsumer
from twisted_ib.ipoib.driver import Driver
from twisted_ib.ipoib.protocol.interfaces import IMachineDriver

MISSING = libc.available()
OTHER = 0xFF12401BFFFF << 80 | 0x1020304


class Machine:
    """
    Remembers what its driver calls: the names and arguments, without the times.

    @ivar answer: the private data of the REP.
    @ivar due: its deadline.
    """

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.answer: bytes | None = b"welcome"
        self.due: float | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments: self.told.append((name, *arguments[:-1]))

    def datagramReceived(self, gid: int, buffer: Any, start: int, stop: int, now: float) -> None:
        self.told.append(("datagram", gid, bytes(buffer[start:stop])))

    def connectedReceived(self, handle: Any, buffer: Any, start: int, stop: int, now: float) -> None:
        self.told.append(("received", handle, bytes(buffer[start:stop])))

    def connectionRequested(self, handle: Any, gid: int, privateData: bytes, now: float) -> bytes | None:
        """
        Remember it, and answer.
        """
        self.told.append(("requested", handle, gid, privateData.rstrip(b"\0")))
        return self.answer

    def deadline(self) -> float | None:
        """
        When it is to be called.
        """
        return self.due

    def take(self) -> list[tuple[Any, ...]]:
        """
        @return: what it was told since.
        """
        told, self.told = self.told, []
        return told


class DriverContract:
    """
    A driver on each of two devices, both in the broadcast group.
    """

    def setUp(self: Any) -> None:
        """
        Open and join.
        """
        super().setUp()  # type: ignore[misc]
        self.drivers = self.here, self.there = [self.driver(device) for device in (self.one, self.two)]
        for driver in self.drivers:
            driver.join(BROADCAST, False, None)
        self.settle()
        self.groups = [self.said(driver)[0][2] for driver in self.drivers]

    def driver(self: Any, device: Any) -> Driver:
        """
        @return: a driver with a machine.
        """
        names = ("interfaceUp", "interfaceFailed", "found", "notFound", "ended", "moved")
        said: list[Any] = []
        user = SimpleNamespace(
            said=said, **{name: lambda *rest, n=name: said.append((n, *rest)) for name in names}
        )
        driver = Driver(device, user, PKEY)
        driver.begin(Machine())  # type: ignore[arg-type]
        self.assertEqual(self.said(driver), [("begin",)])
        self.addCleanup(self.closed, driver)
        return driver

    def closed(self: Any, driver: Any) -> None:
        """
        Close one unless it is.
        """
        if not driver._isClosed:
            driver.close(lambda: None)

    def said(self: Any, driver: Any) -> Any:
        """
        @return: what its machine was told since.
        """
        return driver.machine.take()

    def path(self: Any) -> Any:
        """
        @return: the path from C{here} to C{there}.
        """
        self.here.resolve(self.two.gid)
        self.settle()
        ((kind, gid, path),) = self.said(self.here)
        self.assertEqual((kind, gid), ("pathResolved", self.two.gid))
        return path

    def test_interfaces(self: Any) -> None:
        """
        The names of the seams.
        """
        for interface in (IMachineDriver, IDatagramConsumer):
            verifyObject(interface, self.here)
        verifyObject(IServiceListener, self.here._connections)

    def test_datagrams(self: Any) -> None:
        """
        Frames to a port and to a group, with the group's Q_Key; a group's sender gets its own too.
        """
        self.here.post(self.path(), self.there.number, b"one")
        self.here.postGroup(self.groups[0], memoryview(bytearray(b"all")))
        self.settle()
        # On InfiniBand a datagram in a subnet has no GRH.
        sources = [self.one.gid, 0] if self.one.port.lid else [self.one.gid]
        (one, each) = self.said(self.there)
        self.assertEqual((one[2], each[2]), (b"one", b"all"))
        self.assertIn(one[1], sources)
        self.assertIn(each[1], sources)
        self.assertEqual(self.said(self.here), [("datagram", self.one.gid, b"all")])
        self.there._takeKey(5)
        self.here.postGroup(self.groups[0], b"other key")
        self.settle()
        self.assertEqual(self.said(self.there), [])
        self.assertEqual(self.two.counters["qkey_violations"], 1)

    def test_lost(self: Any) -> None:
        """
        What is longer than the link's MTU is lost, and counted.
        """
        path, frame = self.path(), bytes(limits.DATAGRAM_BYTES + 1)
        self.here.post(path, self.there.number, frame)
        self.here.postGroup(self.groups[0], frame)
        self.assertEqual(self.one.counters["datagrams_lost"], 2)

    def test_groups(self: Any) -> None:
        """
        A group gives nothing back before it is joined in full, or after it is left.
        """
        for isSendOnly, expected in ((True, 0), (False, 1)):
            self.there.join(OTHER, isSendOnly, self.groups[1])
            self.settle()
            ((kind, mgid, group),) = self.said(self.there)
            self.assertEqual((kind, mgid), ("joined", OTHER))
            self.there.postGroup(group, b"own")
            self.settle()
            self.assertEqual(len(self.said(self.there)), expected)
        self.assertEqual(set(self.two.paths.groupsOf(self.there._queuePair)), {BROADCAST, OTHER})
        self.there.leave(OTHER)
        self.there.leave(OTHER)
        self.settle()
        self.there.postGroup(group, b"own")
        self.settle()
        self.assertEqual(self.said(self.there), [])
        self.assertEqual(self.there._leaving, set())

    def test_notAttached(self: Any) -> None:
        """
        A group that the device has no room for is not joined.
        """
        self.patch(limits, "MULTICAST_GROUPS", 1)
        self.here.join(OTHER, False, self.groups[0])
        self.settle()
        ((kind, mgid, error),) = self.said(self.here)
        self.assertEqual((kind, mgid, isinstance(error, HCAError)), ("joinFailed", OTHER, True))
        self.assertEqual((list(self.here._groups), self.here._leaving), ([BROADCAST], set()))

    def test_paths(self: Any) -> None:
        """
        The address handle of a path goes when the machine forgets it.
        """
        handles = self.one.objects.addressHandles
        before = len(handles)
        path = self.path()
        self.assertEqual(len(handles), before + 1)
        del path
        self.assertEqual(len(handles), before)
        self.patch(limits, "ADDRESS_HANDLES", before)
        self.here.resolve(self.two.gid)
        self.settle()
        self.assertEqual(self.said(self.here), [("pathFailed", self.two.gid)])

    def connected(self: Any) -> tuple[Any, Any]:
        """
        @return: the handles of a connection from C{here} to C{there}.
        """
        handle = self.here.connect(self.two.gid, self.there.number, b"hello")
        self.settle()
        ((asked, other, gid, data),) = self.said(self.there)
        self.assertEqual((asked, gid, data), ("requested", self.one.gid, b"hello"))
        ((told, same, answer),) = self.said(self.here)
        self.assertEqual((told, same, answer.rstrip(b"\0")), ("connected", handle, b"welcome"))
        for each in (handle, other):
            verifyObject(IConsumer, each)
            verifyObject(IConnectionUser, each)
        return handle, other

    def test_connection(self: Any) -> None:
        """
        Frames of any length in order, more of them than there are receives; the end of either side is told to
        the other.
        """
        for first in (0, 1):
            handles = self.connected()
            frames = [bytes([n]) * (n * 1031 % 65536) for n in range(100)]
            for frame in frames:
                while not self.here.postConnected(handles[0], memoryview(bytearray(frame))):
                    self.settle()
            self.settle()
            self.assertEqual(self.said(self.there), [("received", handles[1], frame) for frame in frames])
            self.drivers[first].disconnect(handles[first])
            self.drivers[first].disconnect(handles[first])
            self.settle()
            self.assertEqual(self.said(self.drivers[first]), [])
            self.assertEqual(self.said(self.drivers[1 - first]), [("connectionEnded", handles[1 - first])])
            self.assertFalse(self.here.postConnected(handles[0], b"late"))
            self.assertEqual([len(driver._connections.open) for driver in self.drivers], [0, 0])

    def test_full(self: Any) -> None:
        """
        A connection without room says so.
        """
        handle, _ = self.connected()
        frame = bytes(limits.INLINE_MESSAGE)
        posted = [self.here.postConnected(handle, frame) for _ in range(1000)]
        self.assertEqual((posted[0], posted[-1]), (True, False))
        self.settle(0.5)
        self.assertEqual(len(self.said(self.there)), sum(posted))

    def test_refused(self: Any) -> None:
        """
        A request that the machine refuses, one for a queue pair that nobody has, and one to a port that does
        not exist.
        """
        self.there.machine.answer = None
        gid, number = self.two.gid, self.there.number
        for where, queuePair in ((gid, number), (gid, number + 1), (gid ^ 0xFF00, number)):
            handle = self.here.connect(where, queuePair, b"hello")
            self.assertEqual(self.said(self.here), [])
            self.settle(5.0)
            self.assertEqual(self.said(self.here), [("connectFailed", handle)])
        self.assertEqual(len(self.said(self.there)), 1)
        self.assertEqual([len(driver._connections.open) for driver in self.drivers], [0, 0])

    def test_cancelled(self: Any) -> None:
        """
        An attempt that is given up is not answered, and what it had on the way ends.
        """
        handle = self.here.connect(self.two.gid, self.there.number, b"hello")
        self.here.disconnect(handle)
        self.settle(2.5)
        self.assertEqual(self.said(self.here), [])
        self.assertEqual([len(driver._connections.open) for driver in self.drivers], [0, 0])

    def test_noQueuePairs(self: Any) -> None:
        """
        Without room for a queue pair a request is refused, and none is made.
        """
        self.two.createQueuePair(None)
        for most in (2, 1):
            self.patch(limits, "QUEUE_PAIRS", most)
            self.here.connect(self.two.gid, self.there.number, b"hello")
            self.assertEqual(self.said(self.here), [])
            self.settle(0.1)
            self.assertEqual([each[0] for each in self.said(self.here)], ["connectFailed"])
        self.assertEqual(self.said(self.there), [])

    def test_time(self: Any) -> None:
        """
        The machine is called at its deadline, or earlier if that changes, and not again without one.
        """
        machine, start = self.here.machine, self.here.clock()
        for seconds in (0.9, 0.5, 0.7):
            machine.due = start + seconds
            self.here.deadlineChanged()
        machine.due = None
        self.settle(0.4)
        self.assertEqual(self.said(self.here), [])
        self.settle(0.2)
        self.assertEqual(self.said(self.here), [("tick",)])
        self.settle(0.5)
        self.assertEqual(self.said(self.here), [])

    def test_tickFails(self: Any) -> None:
        """
        An exception in one tick does not keep the next from coming.
        """

        def tick(now: float) -> None:
            ticks.append(now)
            machine.due = now + 0.2 if len(ticks) < 3 else None
            raise ZeroDivisionError

        ticks: list[float] = []
        machine = self.here.machine
        machine.tick, machine.due = tick, self.here.clock()
        self.here.deadlineChanged()
        for _ in range(3):
            self.assertRaises(ZeroDivisionError, self.settle, 0.3)
        self.settle(0.3)
        self.assertEqual(len(ticks), 3)

    def test_changes(self: Any) -> None:
        """
        Events of the port.
        """
        self.one.changePort(PortChange(smLID=77))
        self.assertIn(("subnetChanged",), self.said(self.here))
        gid = self.one.gid ^ 0xFF
        self.one.changePort(PortChange(gids=(gid,)))
        self.assertIn(("moved",), self.here.user.said)

    def test_partition(self: Any) -> None:
        """
        An interface needs a slot of the port's P_Key table, and has another queue pair when it is back.
        """
        self.assertRaises(DeviceError, Driver, self.one, self.here.user, 0x8001)
        self.one.changePort(PortChange(partitions=(0,)))
        ((kind, error),) = self.here.user.said
        self.assertEqual((kind, type(error)), ("ended", QueuePairError))
        number = self.here.number
        for partition in (0x8001, PKEY):
            self.one.changePort(PortChange(partitions=(partition,), gids=(self.one.gid ^ partition,)))
        self.assertEqual(self.here.user.said[1:], [("moved",)])
        self.assertNotEqual(self.here.number, number)
        self.assertEqual(self.one.inUse()["qp"], 1)

    def test_closed(self: Any) -> None:
        """
        Closing ends connections, memberships and timers, and leaves no object behind.
        """
        self.connected()
        self.here.machine.due = self.here.clock() + 0.1
        self.here.deadlineChanged()
        closed: list[bool] = []
        self.here.close(lambda: closed.append(True))
        self.assertEqual(self.said(self.here), [("close",)])
        self.settle()
        self.assertEqual(closed, [True])
        self.assertEqual([each[0] for each in self.said(self.there)], ["connectionEnded"])
        self.here.send(b"late")
        self.settle(0.2)
        self.assertEqual(self.said(self.here), [])
        used = self.one.inUse()
        self.assertEqual([used[kind] for kind in ("pd", "qp", "ah")], [0, 0, 0])
        self.assertEqual(self.one.paths._attached, {})

    def test_deviceClosed(self: Any) -> None:
        """
        The device may be closed before.
        """
        self.connected()
        self.one.close()
        self.said(self.here)
        closed: list[bool] = []
        self.here.close(lambda: closed.append(True))
        self.assertEqual((closed, self.said(self.here)), ([True], []))


class LoopbackTests(DriverContract, OnLoopback):
    """
    HCAs of one thread.
    """


@skipIf(bool(MISSING), f"missing: {MISSING}")
class SharedMemoryTests(DriverContract, OnSharedMemory):
    """
    HCAs of one host.
    """


class PacketTests(DriverContract, OnPackets):
    """
    Hosts.
    """


class SubnetTests(DriverContract, OnSubnet):
    """
    Ports of a subnet with a manager.
    """

    def test_notAttachedTwice(self) -> None:
        """
        A group that another interface of the device is in already is given up at once, if this one cannot be
        attached.
        """
        users = self.one.sa.registrations._users
        other = self.driver(self.one)
        self.patch(limits, "MULTICAST_QUEUE_PAIRS", 1)
        other.join(BROADCAST, False, None)
        self.assertEqual([each[0] for each in self.said(other)], ["joinFailed"])
        self.assertEqual((self.one.sa.registrations._users, other._groups), (users, {}))

    def test_notLeft(self) -> None:
        """
        Closing waits for an answer of subnet administration, and not for long.
        """
        self.subnet.manager.close()
        closed: list[bool] = []
        self.here.close(lambda: closed.append(True))
        self.settle()
        self.assertEqual(closed, [])
        self.settle(limits.IPOIB_LEAVE_SECONDS)
        self.assertEqual(closed, [True])
