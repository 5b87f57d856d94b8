"""
Tests for L{twisted_ib.hca.services.address}.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import attrs
from twisted.trial.unittest import SynchronousTestCase

from twisted_ib import limits
from twisted_ib.errors import NoListenerError, QueuePairError, ResourceBusyError
from twisted_ib.hca.base.partition import PartitionTable
from twisted_ib.hca.base.port import Port
from twisted_ib.hca.base.traits import LinkLayer
from twisted_ib.hca.memory.memory import Memory
from twisted_ib.hca.services import address
from twisted_ib.hca.services.address import AddressHandle, AddressPaths, AddressVector

GID = 0xFE80 << 112 | 0x1234
WORD = 0x64 << 24 | 17


class FakePath:
    """
    A medium that has room for some records.

    @ivar room: for how many.
    @ivar records: what it took.
    @ivar waiting: who waits for room.
    """

    def __init__(self, room: int = 1 << 30) -> None:
        """
        It is empty.
        """
        self.room = room
        self.alive = True
        self.records: list[tuple[int, bytes]] = []
        self.waiting: list[Any] = []

    def post(self, word: int, header: bytes, payload: Any, length: int) -> bool:
        if not self.room:
            return False
        self.room -= 1
        data = b"".join(payload) if isinstance(payload, list) else bytes(payload)
        assert len(data) == length
        self.records.append((word, header + data))
        return True

    def wantSpace(self, waiter: Any) -> None:
        assert waiter not in self.waiting
        self.waiting.append(waiter)

    def wantNoSpace(self, waiter: Any) -> None:
        if waiter in self.waiting:
            self.waiting.remove(waiter)

    def drain(self, room: int) -> None:
        """
        There is room again.
        """
        self.room = room
        waiting, self.waiting = self.waiting, []
        for waiter in waiting:
            waiter.resume()


class FakeDevice:
    """
    Finds paths, at once or when told.

    @ivar path: what it finds at once, if anything.
    @ivar error: what it raises at once, if anything.
    @ivar asked: what it was asked for.
    """

    def __init__(self) -> None:
        """
        It finds nothing yet.
        """
        self.path: FakePath | None = None
        self.error: Exception | None = None
        self.asked: list[tuple[int, Any]] = []
        self.counters: Counter[str] = Counter()
        self.addressPaths = AddressPaths(self)
        self.port = Port(gids=(), partitions=PartitionTable())

    def count(self, name: str) -> None:
        self.counters[name] += 1

    def reach(self, gid: int, user: Any) -> None:
        """
        Find the path to an address.
        """
        self.asked.append((gid, user))
        if self.error is not None:
            raise self.error
        if self.path is not None:
            user.pathReady(self.path)


class VectorTests(SynchronousTestCase):
    """
    Address vectors.
    """

    def test_bits(self) -> None:
        """
        Each field has its bits.
        """
        vector = AddressVector(GID)
        vector.check()
        for name, bits in (
            ("gid", 128),
            ("flowLabel", 20),
            ("hopLimit", 8),
            ("trafficClass", 8),
            ("port", 8),
            ("lid", 16),
            ("serviceLevel", 4),
        ):
            attrs.evolve(vector, **{name: (1 << bits) - 1}).check()
            for value in (1 << bits, -1):
                self.assertRaises(QueuePairError, attrs.evolve(vector, **{name: value}).check)

    def test_nobody(self) -> None:
        """
        Without a GID a vector reaches nothing.
        """
        self.assertRaises(QueuePairError, AddressVector(0).check)
        self.assertRaises(QueuePairError, AddressVector(GID, isGlobal=False).check)

    def test_linkLayer(self) -> None:
        """
        On InfiniBand a vector needs a LID, of a port or a group, and a GID if it has one has a subnet prefix.
        """
        infiniband = LinkLayer.INFINIBAND
        for lid in (1, 0xBFFF, 0xC000, 0xFFFE):
            vector = AddressVector(0, lid=lid, isGlobal=False)
            vector.check(infiniband)
            self.assertEqual((vector.key(infiniband), vector.isMulticast), (lid, lid >= 0xC000))
            self.assertRaises(QueuePairError, vector.check)
            vector = AddressVector(GID, lid=lid)
            vector.check(infiniband)
            keys = [vector.key(each) for each in (infiniband, LinkLayer.ETHERNET)]
            self.assertEqual((keys, vector.isMulticast), ([lid, GID], False))
        self.assertTrue(AddressVector(0xFF12 << 112, lid=0xC000).isMulticast)
        for lid in (0, 0xFFFF, 0x10000, -1):
            for vector in (AddressVector(0, lid=lid, isGlobal=False), AddressVector(GID, lid=lid)):
                self.assertRaises(QueuePairError, vector.check, infiniband)
        self.assertRaises(QueuePairError, AddressVector(5, lid=5).check, infiniband)
        self.assertRaises(
            QueuePairError, AddressVector(0, lid=5, serviceLevel=16, isGlobal=False).check, infiniband
        )


class AddressTestCase(SynchronousTestCase):
    """
    A device, a protection domain and a handle.
    """

    def setUp(self) -> None:
        """
        No path is known.
        """
        self.device = FakeDevice()
        self.pd = Memory(random.Random(1).getrandbits).allocateDomain()
        self.handle = AddressHandle(self.pd, AddressVector(GID), self.device)
        self.path = FakePath()

    def send(self, text: str = "x", handle: AddressHandle | None = None) -> None:
        """
        Send a datagram, in pieces.
        """
        data = text.encode()
        (handle or self.handle).send(WORD, b"H", [data[:1], data[1:]], len(data))

    def arrived(self) -> list[str]:
        """
        The records that came into the medium.
        """
        found = [data[1:].decode() for _, data in self.path.records]
        assert all(word == WORD and data[:1] == b"H" for word, data in self.path.records)
        self.path.records.clear()
        return found

    @property
    def lost(self) -> int:
        """
        How many datagrams were counted as lost.
        """
        return self.device.counters["datagrams_lost"]


class HandleTests(AddressTestCase):
    """
    Address handles.
    """

    def test_domain(self) -> None:
        """
        A handle belongs to a protection domain until it is closed.
        """
        self.assertEqual(self.pd.users, {"address handles": 1})
        self.assertFalse(self.handle.closed)
        self.handle.close()
        self.assertTrue(self.handle.closed)
        self.handle.close()
        self.assertEqual(self.pd.users, {})

    def test_busy(self) -> None:
        """
        A handle that is held cannot be closed.
        """
        self.handle.hold("others")
        self.assertRaises(ResourceBusyError, self.handle.close)
        self.handle.release("others")
        self.handle.close()

    def test_badVector(self) -> None:
        """
        A vector that cannot be makes no handle.
        """
        self.assertRaises(QueuePairError, AddressHandle, self.pd, AddressVector(0), self.device)
        self.assertEqual(self.pd.users, {"address handles": 1})

    def test_closed(self) -> None:
        """
        A closed handle sends nothing.
        """
        self.device.path = self.path
        self.handle.close()
        self.send()
        self.assertEqual(self.device.asked, [])

    def test_forgotten(self) -> None:
        """
        Handles of one address share a way, which goes with the last.
        """
        other = AddressHandle(self.pd, AddressVector(GID, trafficClass=1), self.device)
        third = AddressHandle(self.pd, AddressVector(GID + 1), self.device)
        self.assertEqual(len(self.device.addressPaths), 2)
        for handle, left in ((self.handle, 2), (other, 1), (third, 0)):
            handle.close()
            self.assertEqual(len(self.device.addressPaths), left)


class DepartureTests(AddressTestCase):
    """
    The way to an address.
    """

    def test_found(self) -> None:
        """
        A path that is known at once is asked for once.
        """
        self.device.path = self.path
        self.send("one")
        self.send("two")
        self.assertEqual(self.arrived(), ["one", "two"])
        self.assertEqual([gid for gid, _ in self.device.asked], [GID])

    def test_waits(self) -> None:
        """
        Datagrams wait for the path, and come in order; nothing is asked for twice.
        """
        self.send("one")
        self.send("two")
        self.assertEqual(len(self.device.asked), 1)
        self.assertEqual(self.device.addressPaths.waiting, 2)
        self.device.asked[0][1].pathReady(self.path)
        self.send("three")
        self.assertEqual(self.arrived(), ["one", "two", "three"])
        self.assertEqual(self.device.addressPaths.waiting, 0)
        self.assertEqual(self.lost, 0)

    def test_copied(self) -> None:
        """
        A waiting datagram is a copy: the program may reuse its memory.
        """
        data = bytearray(b"before")
        self.handle.send(WORD, b"H", memoryview(data), 6)
        data[:] = b"after!"
        self.device.asked[0][1].pathReady(self.path)
        self.assertEqual(self.arrived(), ["before"])

    def test_unresolvedBound(self) -> None:
        """
        Only so many wait for one address; the first stay.
        """
        for i in range(limits.DATAGRAMS_QUEUED + 3):
            self.send(f"{i}")
        self.assertEqual(self.lost, 3)
        self.device.asked[0][1].pathReady(self.path)
        self.assertEqual(self.arrived(), [f"{i}" for i in range(limits.DATAGRAMS_QUEUED)])

    def test_waitingBound(self) -> None:
        """
        Only so many wait for all addresses together.
        """
        self.patch(address, "DATAGRAMS_WAITING", 3)
        other = AddressHandle(self.pd, AddressVector(GID + 1), self.device)
        for handle in (self.handle, other, self.handle, other):
            self.send("x", handle)
        self.assertEqual((self.lost, self.device.addressPaths.waiting), (1, 3))

    def test_nobody(self) -> None:
        """
        Datagrams to an unreachable address are lost; the next one starts a new lookup.
        """
        for error in (NoListenerError("nobody"), OSError("no descriptors")):
            self.device.error = error
            self.send()
        self.assertEqual(self.lost, 2)
        self.device.error = None
        self.send()
        self.send()
        self.device.asked[2][1].connectFailed(NoListenerError("nobody"))
        self.assertEqual(self.lost, 4)
        self.assertEqual(self.device.addressPaths.waiting, 0)
        self.device.path = self.path
        self.send("now")
        self.assertEqual(self.arrived(), ["now"])

    def test_full(self) -> None:
        """
        Datagrams that find no room wait for it, in order and up to the bound.
        """
        self.device.path = self.path
        self.path.room = 1
        for i in range(limits.DATAGRAMS_QUEUED + 2):
            self.send(f"{i}")
        self.assertEqual(self.lost, 1)
        self.path.drain(2)
        self.assertEqual(self.arrived(), ["0", "1", "2"])
        self.path.room = 1
        self.send("last")  # Does not overtake.
        self.path.drain(1 << 30)
        expected = [f"{i}" for i in range(3, limits.DATAGRAMS_QUEUED + 1)]
        self.assertEqual(self.arrived(), [*expected, "last"])
        self.assertEqual(self.path.waiting, [])

    def test_pathLost(self) -> None:
        """
        Datagrams that wait for room in a path that breaks are lost; then another path is looked up.
        """
        self.device.path = self.path
        self.path.room = 1
        self.send("a")
        self.send("b")
        self.path.alive = False
        self.device.addressPaths.pathLost(FakePath())
        self.assertEqual(self.lost, 0)
        self.device.addressPaths.pathLost(self.path)
        self.assertEqual((self.lost, self.device.addressPaths.waiting), (1, 0))
        self.path = self.device.path = FakePath()
        self.send("c")
        self.assertEqual(self.arrived(), ["c"])

    def test_deadPath(self) -> None:
        """
        A path that died unnoticed is replaced; one that is dead when found is none.
        """
        self.device.path = self.path
        self.send("a")
        self.path.alive = False
        self.send("b")
        self.assertEqual((self.lost, len(self.device.asked)), (1, 2))
        self.path = self.device.path = FakePath(room=0)
        self.send("c")
        self.path.alive = False
        self.device.path = FakePath()
        self.path.drain(1)
        self.path = self.device.path
        self.assertEqual(self.arrived(), ["c"])

    def test_outlivesHandle(self) -> None:
        """
        Waiting datagrams are still sent when their handle is closed; then the entry of the address
        is forgotten.
        """
        self.send("answer")
        self.handle.close()
        self.assertEqual(len(self.device.addressPaths), 1)
        self.path.room = 0
        self.device.asked[0][1].pathReady(self.path)
        self.assertEqual(len(self.device.addressPaths), 1)
        self.path.drain(1)
        self.assertEqual(self.arrived(), ["answer"])
        self.assertEqual(len(self.device.addressPaths), 0)

    def test_outlivesHandleForRoom(self) -> None:
        """
        The same when only room is missing; who comes meanwhile waits behind.
        """
        self.device.path = self.path
        self.path.room = 0
        self.send("one")
        self.handle.close()
        other = AddressHandle(self.pd, AddressVector(GID), self.device)
        self.path.room = 1
        self.send("two", other)
        self.path.drain(2)
        self.assertEqual(self.arrived(), ["one", "two"])

    def test_outlivesHandleInVain(self) -> None:
        """
        The same when the address is unreachable.
        """
        self.send("answer")
        self.handle.close()
        self.device.asked[0][1].connectFailed(NoListenerError("nobody"))
        self.assertEqual((self.lost, len(self.device.addressPaths)), (1, 0))

    def test_close(self) -> None:
        """
        A device that closes loses what waits, for a path or for room.
        """
        other = AddressHandle(self.pd, AddressVector(GID + 1), self.device)
        self.send("unresolved")
        self.device.path = self.path
        self.path.room = 0
        self.send("full", other)
        self.handle.close()
        self.device.addressPaths.close()
        self.assertEqual((self.lost, self.device.addressPaths.waiting), (2, 0))
        self.assertEqual((self.path.waiting, len(self.device.addressPaths)), ([], 1))
