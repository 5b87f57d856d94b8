"""
Tests of L{twisted_ib.hca.device.addressing.subnet} on a scripted subnet.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.device.addressing.test_processes import (
    HIGHER,
    LOWER,
    OWN,
    FakeDevice,
    FakeFabric,
    FakePath,
    FakeQueuePair,
    Search,
)
from twisted_ib.errors import NoRouteError, PathLostError
from twisted_ib.hca.device.addressing.subnet import LIDPath, SubnetResolution
from twisted_ib.hca.services.address import AddressPath

PREFIX = 0xFEC0000000000000
GID = PREFIX << 64


class Subnet(FakeFabric):
    """
    Switches that lead LIDs to GUIDs.

    @ivar routes: the GUIDs by LIDs.
    @ivar hcas: those that have an HCA.
    @ivar names: the GUIDs by descriptions of nodes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.generation = 1
        self.routes: dict[int, int] = {7: HIGHER, 8: LOWER}
        self.hcas = {HIGHER, LOWER}
        self.names = {"one": HIGHER}
        self.managed: list[Any] = []
        self.resolve = mock.Mock(return_value="search")
        self.settings = mock.Mock(return_value="settings")

    def route(self, lid: int) -> int:
        return self.routes.get(lid, 0)

    def has(self, guid: int) -> bool:
        return guid in self.hcas

    def named(self, name: str) -> int:
        return self.names.get(name, 0)

    def managementPath(self, lid: int) -> Any:
        return SimpleNamespace(send=lambda *arguments: self.managed.append((lid, *arguments)), lid=lid)


class SubnetDevice(FakeDevice):
    """
    A device at a port of a subnet.
    """

    def __init__(self) -> None:
        super().__init__()
        self.name = "ib0"
        self.fabric: Any = Subnet()
        self.gid = GID | OWN
        self.port = SimpleNamespace(gids=[GID | OWN, GID | 0x77], subnetPrefix=PREFIX)
        self.resolver = None
        self.clock: Any = lambda: 0.0
        self.addressPaths = mock.Mock()
        self.changePort = mock.Mock()
        self.paths = SubnetResolution(self)


class User:
    """
    Waits for a path.
    """

    def __init__(self) -> None:
        self.log: list[Any] = []

    def pathReady(self, path: Any) -> None:
        self.log.append(path)

    def connectFailed(self, error: Exception) -> None:
        self.log.append(error)


class SubnetTestCase(SynchronousTestCase):
    """
    Base of tests with such a device.
    """

    def setUp(self) -> None:
        """
        A device.
        """
        self.device = SubnetDevice()
        self.paths, self.fabric = self.device.paths, self.device.fabric

    def path(self, guid: int, lid: int = 0) -> Any:
        """
        @return: a path to an HCA, which notes what is posted.
        """
        path: Any = FakePath(guid)
        path.peer.lid = lid
        path.post = mock.Mock(return_value=False)
        path.wantSpace, path.wantNoSpace = mock.Mock(), mock.Mock()
        return path


class LIDPathTests(SubnetTestCase):
    """
    Datagrams to a LID.
    """

    def lidPath(self, path: Any, guid: int = HIGHER) -> LIDPath:
        """
        @return: that of LID 7.
        """
        return LIDPath(self.device, 7, guid, path)  # type: ignore[arg-type]

    def test_post(self) -> None:
        """
        They go to the HCA, and those to queue pairs 0 and 1 through the subnet, whatever the opcode above.
        """
        path = self.path(HIGHER)
        found = self.lidPath(path)
        for taken in (False, True):
            path.post.return_value = taken
            self.assertIs(found.post(0x64000002, b"h", b"p", 1), taken)
        self.assertEqual(path.post.mock_calls, [mock.call(0x64000002, b"h", b"p", 1)] * 2)
        for word in (0x64000000, 0x64000001):
            self.assertIs(found.post(word, b"h", b"p", 1), True)
        self.assertEqual(
            self.fabric.managed, [(7, 0x64000000, b"h", b"p", 1), (7, 0x64000001, b"h", b"p", 1)]
        )
        self.assertEqual((path.post.call_count, self.device.counters), (2, {}))

    def test_lost(self) -> None:
        """
        Where there is no HCA they are lost, and counted.
        """
        found = self.lidPath(None)
        self.assertTrue(found.alive)
        self.assertIs(found.post(2, b"h", b"p", 1), True)
        self.assertEqual(self.device.counters, {"datagrams_lost": 1})
        waiter: Any = object()
        found.wantSpace(waiter)
        found.wantNoSpace(waiter)

    def test_follows(self) -> None:
        """
        Once the subnet has changed a LID may lead elsewhere, or nowhere: then they are lost, and what is sent
        next is resolved anew.
        """
        for guid, here in ((HIGHER, True), (LOWER, False), (0, False)):
            path = self.path(HIGHER)
            found = self.lidPath(path)
            self.device.counters.clear()
            self.fabric.routes[7] = guid
            found.post(2, b"", b"", 0)
            self.assertEqual((path.post.call_count, found.alive), (1, True))
            self.fabric.generation += 1
            found.post(2, b"", b"", 0)
            self.assertEqual(path.post.call_count, 1 + here)
            # A LID that leads nowhere may lead there again.
            self.assertEqual(found.alive, here or not guid)
            self.assertEqual(self.device.counters["datagrams_lost"], not here)
        self.fabric.routes[7] = HIGHER
        self.fabric.generation += 1
        found.post(2, b"", b"", 0)
        self.assertEqual((path.post.call_count, found.alive), (2, True))

    def test_appears(self) -> None:
        """
        Where an HCA comes to a port that had none what is sent next is resolved anew.
        """
        for hcas, alive in (({LOWER}, True), ({HIGHER}, False)):
            self.fabric.hcas = hcas
            found = self.lidPath(None)
            self.fabric.generation += 1
            found.post(2, b"", b"", 0)
            self.assertEqual(found.alive, alive)

    def test_space(self) -> None:
        """
        Who waits for space waits for that of the path.
        """
        path, waiter = self.path(HIGHER), object()
        found: Any = self.lidPath(path)
        found.wantSpace(waiter)
        found.wantNoSpace(waiter)
        path.wantSpace.assert_called_once_with(waiter)
        path.wantNoSpace.assert_called_once_with(waiter)
        path.alive = False
        self.assertFalse(found.alive)


class AddressTests(SubnetTestCase):
    """
    The names of ports.
    """

    def test_port(self) -> None:
        """
        The port has what the subnet manager has set, and the node the GUID below the port's.
        """
        self.paths.joined()
        self.device.changePort.assert_called_once_with("settings")
        self.assertEqual(self.paths.nodeGUID, 0x500)
        self.assertEqual(self.paths.gids(), ["fec0::501", "fec0::77"])

    def test_own(self) -> None:
        """
        The port's GIDs are its own, and no other address is; but those of the host are local too.
        """
        for gid in (GID | OWN, GID | 0x77):
            self.assertTrue(self.paths.hasGID(gid))
        self.device.gid = GID | 0x78
        self.assertTrue(self.paths.hasGID(GID | 0x78))
        self.assertFalse(self.paths.hasGID(GID | 0x79))
        for address, local in (("fec0::77", True), ("fec0::79", False), ("127.0.0.1", True)):
            self.assertEqual(self.paths.isLocal(address), local)
        self.assertEqual(self.paths.sourceFor("127.0.0.1"), "127.0.0.1")
        self.assertEqual(self.paths.sourceFor("fec0::901"), "fec0::78")
        self.assertFalse(self.paths.isOfGUID("fe80::501"))

    def test_guid(self) -> None:
        """
        A GID of the subnet has a GUID; what has a zone, or another prefix, is none.
        """
        for address, guid in (
            ("fec0::901", HIGHER),
            ("fec0::901%1", 0),
            ("2001:db8::901", 0),
            ("10.0.0.1", 0),
        ):
            self.assertEqual(self.paths.guidOf(address), guid)
        path = self.path(HIGHER, 7)
        for address, isTheirs in (("fec0::901", True), ("fec0::101", False), ("127.0.0.1", True)):
            self.assertEqual(self.paths.isPeers(path, address), isTheirs)
        self.assertEqual((self.paths.gidOf(path), self.paths.lidOf(path)), (GID | HIGHER, 7))

    def test_names(self) -> None:
        """
        A node's description leads to its GID; for another name the reason says what is one.
        """
        self.assertEqual(self.paths.hostNamed("one"), "fec0::901")
        self.assertEqual(self.paths.hostNamed("two"), "")
        self.assertIn("'two'", self.paths.unknownHost("two"))
        self.assertIn("host of ib0 is a GID", self.paths.unknownHost("two"))


class ReachTests(SubnetTestCase):
    """
    The way to LIDs and GIDs.
    """

    def test_hca(self) -> None:
        """
        A LID that leads to an HCA has a path once there is one to that; it is the same for all.
        """
        search, path = Search(), self.path(HIGHER)
        self.fabric.answers = [search]
        user, other = User(), User()
        self.assertIs(self.paths.reach(7, user), search)
        asking = self.fabric.users.pop()
        asking.pathReady(path)
        (found,) = user.log
        self.assertEqual((found.lid, found.path, found.alive), (7, path, True))
        self.fabric.answers = [path, search]
        self.paths.reach(7, other)
        self.assertIs(other.log[0], found)
        error = PathLostError("gone")
        self.paths.reach(7, other)
        self.fabric.users.pop().connectFailed(error)
        self.assertIs(other.log[1], error)
        again = self.path(HIGHER)
        self.assertIsNot(self.paths.lidPath(7, HIGHER, again), found)
        path.alive = False
        self.assertIsNot(self.paths.lidPath(7, HIGHER, path), found)

    def test_noHCA(self) -> None:
        """
        Where no HCA is there is a path all the same, as MADs may be taken there; where nothing leads is none.
        """
        self.fabric.hcas.clear()
        user = User()
        self.assertIsNone(self.paths.reach(7, user))
        self.assertEqual((user.log[0].lid, user.log[0].path), (7, None))
        error = self.assertRaises(NoRouteError, self.paths.reach, 9, user)
        self.assertIn("0x9", str(error))

    def test_gid(self) -> None:
        """
        A GID leads to its GUID's HCA; for a connection the directory is asked.
        """
        search, user = Search(), User()
        self.fabric.answers = [search]
        with mock.patch.object(self.fabric, "reach", wraps=self.fabric.reach) as reach:
            self.assertIs(self.paths.reach(GID | HIGHER, user), search)
        reach.assert_called_once_with(HIGHER, user)
        self.assertEqual(self.paths.reachHCA(GID | HIGHER, user), "search")
        (service, text, asking) = self.fabric.resolve.call_args.args
        self.assertEqual((service, asking), (0, user))
        self.assertEqual(text, "fec0::901")

    def test_multicast(self) -> None:
        """
        LIDs up to 0xBFFF are unicast, and those above lead to groups, not to one peer.
        """
        self.fabric.routes[0xBFFF] = HIGHER
        self.fabric.hcas.clear()
        user = User()
        for lid in (0xBFFF, 0xC000):
            self.assertIsNone(self.paths.reach(lid, user))
        self.assertEqual((user.log[0].lid, user.log[1].gid), (0xBFFF, 0xC000))
        self.assertEqual(self.paths.check(0xBFFF), 0)
        self.assertRaises(NoRouteError, self.paths.check, 0xC000)

    def test_queuePairs(self) -> None:
        """
        Queue pairs wait for the HCA to which their LID leads, and get it when that calls.
        """
        pair: Any = FakeQueuePair(LOWER)
        pair.vector = SimpleNamespace(lid=8)
        self.paths.resolvePath(pair)
        self.assertEqual([each.key for each in self.paths.pendingOf(LOWER)], [8])
        self.assertEqual(self.paths.pendingOf(HIGHER), [])
        path = self.path(LOWER)
        self.paths.pathAccepted(path)
        self.assertEqual(pair.found, [path])
        self.fabric.proofs = [False]
        self.assertTrue(self.paths.isProven(self.path(0)))
        self.assertFalse(self.paths.isProven(self.path(LOWER)))

    def test_pathLost(self) -> None:
        """
        With the path to an HCA go those of its LIDs.
        """
        lost, kept = self.path(HIGHER), self.path(LOWER)
        found = [self.paths.lidPath(lid, HIGHER, lost) for lid in (6, 7)]
        other = self.paths.lidPath(8, LOWER, kept)
        self.paths.pathLost(lost)
        self.assertEqual(self.device.addressPaths.pathLost.mock_calls, [mock.call(each) for each in found])
        self.assertIs(self.paths.lidPath(8, LOWER, kept), other)
        self.assertIsNot(self.paths.lidPath(7, HIGHER, lost), found[1])

    def test_management(self) -> None:
        """
        Datagrams to queue pairs 0 and 1 go through the subnet, and hold no path.
        """
        for number in (0, 1):
            way = self.paths.hold(7, number)
            self.assertEqual(way.lid, 7)
            self.paths.release(way)
        self.device.addressPaths.release.assert_not_called()
        self.assertIs(self.paths.hold(7, 2), self.device.addressPaths.hold.return_value)
        self.device.addressPaths.hold.assert_called_once_with(7)
        held = AddressPath.__new__(AddressPath)
        self.paths.release(held)
        self.device.addressPaths.release.assert_called_once_with(held)
