"""
Tests of the entries of multicast groups: L{twisted_ib.hca.host.rendezvous},
L{twisted_ib.hca.host.search} and L{twisted_ib.hca.host.entries}.
"""

from __future__ import annotations

import errno
import os
from threading import Thread
from typing import Any
from unittest import mock, skipIf

from tests.hca.hcas import User
from tests.hca.host.test_rendezvous import SERVICE, RendezvousTestCase
from tests.hca.host.test_rundirectory import UID
from tests.support.descriptors import runForked
from twisted_ib import limits
from twisted_ib.errors import NoListenerError, RunDirectoryError
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.device.registry import openFabric
from twisted_ib.hca.fabric.base.neighbours import Neighbours, ofThisThread
from twisted_ib.hca.host import search
from twisted_ib.hca.host.search import Search

GROUP, ANOTHER = 0xFF12 << 112 | 0xABCD, 0xFF12 << 112 | 0xABCE


class GroupTests(RendezvousTestCase):
    """
    HCAs join and leave groups.
    """

    def test_names(self) -> None:
        """
        The entries are named as the drawing says.
        """
        self.hca(0x1234).join(GROUP)
        (name,) = self.names("mcg-")
        self.assertEqual(name, "mcg-ff12000000000000000000000000abcd-0000000000001234")
        self.assertEqual(os.readlink(os.path.join(self.run_, name)), "hca-0000000000001234")

    def test_members(self) -> None:
        """
        Members are found, in the order of their GUIDs, until they leave or close.
        """
        one, two, three = self.hca(1), self.hca(2), self.hca(3)
        for hca in (three, one, one):
            hca.join(GROUP)
        two.join(ANOTHER)
        looking = Search(self.environment)
        self.addCleanup(looking.close)
        for each in (looking, one, two):
            self.assertEqual((each.members(GROUP), each.members(ANOTHER)), ((1, 3), (2,)))
        one.leave(GROUP)
        one.leave(GROUP)
        self.assertEqual(looking.members(GROUP), (3,))
        three.close()
        two.close()
        self.assertEqual((looking.members(GROUP), looking.members(ANOTHER)), ((), ()))
        self.assertEqual(self.names("mcg-"), [])

    def test_remembered(self) -> None:
        """
        While nothing changes the directory is not read, and the answer is the same tuple;
        a change right after another is seen too.
        """
        one, two = self.hca(1), self.hca(2)
        one.join(GROUP)
        self.assertEqual(two.members(GROUP), (1,))
        before = os.stat(self.run_)
        two.join(GROUP)
        os.utime(self.run_, ns=(before.st_atime_ns, before.st_mtime_ns))  # Within one tick.
        found = two.members(GROUP)
        self.assertEqual(found, (1, 2))
        os.utime(self.run_, (1, 1))
        self.assertIs(two.members(GROUP), found)
        with mock.patch.object(two, "_searchGroup", side_effect=AssertionError):
            self.assertIs(two.members(GROUP), found)
        one.publish(SERVICE, "127.0.0.1")
        self.assertIs(two.members(GROUP), found)

    def test_bounds(self) -> None:
        """
        Members, and groups whose members are remembered, are bounded.
        """
        self.patch(limits, "MULTICAST_MEMBERS", 2)
        self.patch(search, "LOOKUPS_REMEMBERED", 3)
        for guid in (3, 1, 2):
            self.hca(guid).join(GROUP)
        looking = Search(self.environment)
        self.addCleanup(looking.close)
        for n in range(8):
            looking.members(GROUP + n)
            self.assertLessEqual(len(looking._groups), 3)
        self.assertEqual(looking.members(GROUP), (1, 2))

    def test_nonsense(self) -> None:
        """
        An entry that is malformed, names another HCA than it points to, or points nowhere makes no
        member.
        """
        one = self.hca(1)
        start = f"mcg-{GROUP:032x}-"
        for name, target in (
            (start + "0000000000000002", one.name),
            (start + "1", one.name),
            (start, one.name),
            (start + "0000000000000003", "/etc/passwd"),
            (start + "0000000000000004", start + "0000000000000004"),
            ("mcg-0-0000000000000001", one.name),
        ):
            os.symlink(target, os.path.join(self.run_, name))
        with open(os.path.join(self.run_, start + "0000000000000005"), "w"):
            pass
        self.assertEqual(one.members(GROUP), ())

    def test_taken(self) -> None:
        """
        Where our entry should be is something else: said by name.
        """
        one = self.hca(1)
        name = f"mcg-{GROUP:032x}-{1:016x}"
        os.symlink("hca-0000000000000002", os.path.join(self.run_, name))
        error = self.assertRaises(RunDirectoryError, one.join, GROUP)
        self.assertIn(name, str(error))
        one.leave(GROUP)
        self.assertEqual(self.names("mcg-"), [name])

    def test_dead(self) -> None:
        """
        The entries of a killed process are removed by the next one that opens an HCA.
        """

        def child() -> None:
            """
            Join, and die.
            """
            hca = self.hca(0x77)
            hca.join(GROUP)
            os._exit(3)

        self.assertEqual(runForked(child), 3)
        self.assertEqual(len(self.names("mcg-")), 1)
        self.hca(1)
        self.assertEqual(self.names(), ["hca-0000000000000001", "lock"])

    def test_child(self) -> None:
        """
        A forked child neither joins nor takes its parent out.
        """
        one = self.hca(1)
        one.join(GROUP)

        def child() -> None:
            """
            Try.
            """
            self.assertRaises(RunDirectoryError, one.join, ANOTHER)
            self.assertRaises(RunDirectoryError, one.members, GROUP)
            one.leave(GROUP)
            one.close()

        self.assertEqual(runForked(child), 0)
        self.assertEqual(one.members(GROUP), (1,))

    def test_listener(self) -> None:
        """
        The kernel identifies the listening process; there is none once the HCA is closed.  A listener that
        cannot be asked now is a different result.
        """
        one, two = self.hca(1), self.hca(2)
        found = two.listenerOf(1)
        assert found is not None
        self.assertEqual((found.pid, found.uid), (os.getpid(), os.geteuid()))
        self.assertIsNone(two.listenerOf(3))
        for number in (errno.EMFILE, errno.EAGAIN, errno.EACCES):
            with mock.patch.object(search, "connect", side_effect=OSError(number, "now")):
                self.assertRaises(OSError, two.listenerOf, 1)
        listener = one._listener
        assert listener is not None
        listener.close()
        one._listener = None
        self.assertIsNone(two.listenerOf(1))


@skipIf(UID != 0, "needs root")
class UserTests(RendezvousTestCase):
    """
    Groups in a directory of several users, some of whom are not let in.
    """

    def setUp(self) -> None:
        """
        A sticky directory where the user 5 and the user 6 are let in.
        """
        super().setUp()
        os.mkdir(self.run_)
        os.chmod(self.run_, 0o1777)
        self.environment["TWISTED_IB_ALLOW_UIDS"] = "5,6"
        self.looking = self.hca(0x1000)

    def entry(self, uid: int, guid: int) -> str:
        """
        A user makes an HCA's entry in the group.

        @return: its path.
        """
        path = os.path.join(self.run_, f"mcg-{GROUP:032x}-{guid:016x}")
        os.symlink(f"hca-{guid:016x}", path)
        os.lchown(path, uid, uid)
        return path

    def member(self, uid: int, guid: int) -> None:
        """
        A user's HCA joins.
        """
        hca = self.hca(guid)
        os.lchown(os.path.join(self.run_, hca.name), uid, uid)
        self.entry(uid, guid)

    def test_letIn(self) -> None:
        """
        HCAs of those who are let in are members.
        """
        for uid, guid in ((0, 1), (5, 2), (6, 3), (7, 4)):
            self.member(uid, guid)
        self.assertEqual(self.looking.members(GROUP), (1, 2, 3))

    def test_byAnother(self) -> None:
        """
        Nobody makes another user's HCA a member.
        """
        self.hca(1)
        for uid in (5, 7):
            path = self.entry(uid, 1)
            self.assertEqual(self.looking.members(GROUP), ())
            os.unlink(path)

    def test_forestalled(self) -> None:
        """
        Another's entry in the place of ours would make us a member for some only, and for
        ever: said by name.
        """
        hca = self.hca(1)
        for uid in (5, 7):
            path = self.entry(uid, 1)
            error = self.assertRaises(RunDirectoryError, hca.join, GROUP)
            self.assertIn(path, str(error))
            self.assertEqual(hca._joined, {})
            os.unlink(path)
        hca.join(GROUP)
        hca.join(GROUP)
        self.assertEqual(self.looking.members(GROUP), (1,))

    def test_noSocket(self) -> None:
        """
        Entries of HCAs that are not there take nobody's place.
        """
        self.patch(limits, "MULTICAST_MEMBERS", 2)
        self.member(5, 4)
        for guid in (1, 2, 3):
            self.entry(5, guid)
        self.assertEqual(self.looking.members(GROUP), (4,))

    def test_crowd(self) -> None:
        """
        Where there are too many, those of our own user come first, and each other user has
        a part of the places.
        """
        self.patch(limits, "MULTICAST_MEMBERS", 8)
        self.patch(limits, "PEERS_USER_DIVISOR", 4)
        for guid in range(1, 8):
            self.member(5, guid)
        for guid in range(0x10, 0x13):
            self.member(6, guid)
        own = [*range(0x20, 0x25)]
        for guid in own[:4]:
            self.member(0, guid)
        self.assertEqual(self.looking.members(GROUP), (1, 2, 0x10, 0x11, *own[:4]))
        for guid in own[4:]:
            self.member(0, guid)
        self.assertEqual(self.looking.members(GROUP), (1, 2, 0x10, *own))


class Fabric:
    """
    A member.
    """

    def __init__(self, guid: int) -> None:
        """
        Take the GUID.
        """
        self.guid = guid


class NeighboursTests(RendezvousTestCase):
    """
    L{Neighbours}.
    """

    def test_groups(self) -> None:
        """
        The same within a process.
        """
        neighbours, one, two = Neighbours(), Fabric(1), Fabric(2)
        for fabric in (two, one):
            neighbours.fabrics[fabric.guid] = fabric
            neighbours.join(GROUP, fabric.guid)
            neighbours.join(GROUP, fabric.guid)
        neighbours.join(ANOTHER, 2)
        self.assertEqual(neighbours.groups, {GROUP: (1, 2), ANOTHER: (2,)})
        neighbours.services[SERVICE, "::"] = two
        neighbours.leave(GROUP, 3)
        neighbours.forget(two)
        self.assertEqual((neighbours.groups, neighbours.services), ({GROUP: (1,)}, {}))
        self.assertEqual(list(neighbours.fabrics), [1])
        neighbours.leave(GROUP, 1)
        neighbours.leave(GROUP, 1)
        self.assertEqual(neighbours.groups, {})

    def test_thread(self) -> None:
        """
        Each thread has its own.
        """
        found = []
        thread = Thread(target=lambda: found.append(ofThisThread()))
        thread.start()
        thread.join()
        self.assertIs(ofThisThread(), ofThisThread())
        self.assertIsNot(found[0], ofThisThread())

    def test_acrossThreads(self) -> None:
        """
        Devices of several threads meet if they are told to, and not otherwise.
        """
        chosen = Neighbours()
        here = [self.loopback(chosen), self.loopback(None)]
        found: list[object] = []

        def there() -> None:
            """
            In another thread.
            """
            for device, neighbours in zip(here, (chosen, None), strict=True):
                try:
                    user = User()
                    self.loopback(neighbours).fabric.reach(device.guid, user)
                    found.append(user.path.peer.guid == device.guid)
                except Exception as error:
                    found.append(type(error))

        thread = Thread(target=there)
        thread.start()
        thread.join()
        self.assertEqual(found, [True, NoListenerError])

    def loopback(self, neighbours: Neighbours | None) -> Device:
        """
        @return: A device of lo0.
        """

        def fabric(owner: Any, guid: int, clock: Any) -> Any:
            """
            Make its fabric.
            """
            return openFabric("lo0", owner, guid, clock, neighbours)

        device = Device("lo0", fabric=fabric, anyThread=True)
        self.addCleanup(device.close)
        return device
