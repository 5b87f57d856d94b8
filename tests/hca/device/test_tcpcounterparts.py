"""
Services beside TCP sockets: their entries, and who looks for them without a device.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.hca.host.test_rendezvous import SERVICE, RendezvousTestCase
from twisted_ib.errors import NoListenerError, ServiceInUseError
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.device.tcpcounterparts import Counterpart, TCPCounterparts
from twisted_ib.hca.host import rendezvous
from twisted_ib.hca.host.entries import SERVICE_TARGETS, targetName, targetsOf
from twisted_ib.hca.host.rendezvous import Rendezvous
from twisted_ib.hca.host.search import Search

HCA = "hca-00000000000000ff"


class TargetTests(SynchronousTestCase):
    """
    The content of a service's link.
    """

    def test_both(self) -> None:
        """
        With and without an inode, both ways.
        """
        self.assertEqual(targetName(HCA, 0), HCA)
        self.assertEqual(targetName(HCA, 4711), f"{HCA}.tcp-4711")
        self.assertEqual(targetsOf(HCA), [(HCA, 0)])
        self.assertEqual(targetsOf(f"{HCA}.tcp-4711"), [(HCA, 4711)])
        self.assertEqual(targetsOf(f"{HCA}.tcp-4711,{HCA}"), [(HCA, 4711), (HCA, 0)])
        many = [HCA] * SERVICE_TARGETS
        self.assertEqual(len(targetsOf(",".join(many))), SERVICE_TARGETS)

    def test_wrong(self) -> None:
        """
        Anything else names nobody.
        """
        for text in (
            None,
            "",
            "hca-ff",
            f"{HCA}.tcp-",
            f"{HCA}.tcp-0",
            f"{HCA}.tcp-01",
            f"{HCA}.tcp-x",
            f"{HCA}.tcp-{'9' * 21}",
            f"{HCA}.tcp-4711\n",
            f"{HCA}.tcp-\u0665",
            f"./{HCA}",
            f"{HCA},",
            f"{HCA},x",
            ",".join([HCA] * (SERVICE_TARGETS + 1)),
        ):
            self.assertEqual(targetsOf(text), [])


class EntryTests(RendezvousTestCase):
    """
    Entries with an inode.
    """

    def looking(self) -> TCPCounterparts:
        """
        @return: a search in the tests' run directory.
        """
        self.patch(os, "environ", {**os.environ, **self.environment})
        beside = TCPCounterparts()
        self.addCleanup(beside.close)
        return beside

    def published(self, guid: int, inode: int, address: str = "127.0.0.1") -> Rendezvous:
        """
        @return: An HCA that has a service beside a TCP socket.
        """
        made = self.hca(guid)
        made.publish(SERVICE, address, inode)
        return made

    def test_found(self) -> None:
        """
        A service that accompanies a TCP socket is found as any other, and by a search for such services.
        """
        server = self.published(1, 4711)
        self.assertEqual(self.guids(self.hca(2), "127.0.0.1"), [1])
        beside = self.looking()
        (found,) = beside.inProcesses(SERVICE, "127.0.0.1")
        self.assertEqual(found, Counterpart(1, "127.0.0.1", 4711, os.geteuid()))
        self.assertTrue(beside.isOurs(found))
        server.withdraw(SERVICE, "127.0.0.1")
        self.assertEqual(self.names("svc"), [])
        self.assertEqual(beside.inProcesses(SERVICE, "127.0.0.1"), [])

    def test_dropped(self) -> None:
        """
        A search that nobody has closed, as that of a loop which was dropped, leaves no descriptor.
        """
        before = os.listdir("/proc/self/fd")
        beside = TCPCounterparts()
        self.assertEqual(beside.inProcesses(SERVICE, "127.0.0.1"), [])
        del beside
        self.assertEqual(os.listdir("/proc/self/fd"), before)

    def test_without(self) -> None:
        """
        One without a TCP socket is not.
        """
        self.hca(1).publish(SERVICE, "127.0.0.1")
        self.assertEqual(self.looking().inProcesses(SERVICE, "127.0.0.1"), [])

    def test_exclusive(self) -> None:
        """
        A number is one server's if one of them has no TCP socket.
        """
        self.published(1, 4711)
        self.hca(3).publish(SERVICE + 1, "127.0.0.1")
        other = self.hca(2)
        for service, inode in (SERVICE, 0), (SERVICE + 1, 4712):
            self.assertRaises(ServiceInUseError, other.publish, service, "127.0.0.1", inode)
            self.assertRaises(ServiceInUseError, other.publish, service, "0.0.0.0", inode)

    def test_reclaimed(self) -> None:
        """
        The entries of a dead HCA are removed, and a living one keeps its own.
        """
        self.published(1, 4711)
        link = os.path.join(self.run_, self.names("svc")[0])
        dead = link.replace("127.0.0.1", "127.0.0.2")
        os.symlink(f"{HCA}.tcp-1", dead)
        self.hca(2)
        self.assertEqual((os.path.lexists(link), os.path.lexists(dead)), (True, False))

    def test_closed(self) -> None:
        """
        An HCA that closes takes its entries along.
        """
        server = self.published(1, 4711)
        server.close()
        self.assertEqual(self.names("svc"), [])

    def shown(self, beside: TCPCounterparts) -> list[tuple[int, int]]:
        """
        @return: GUIDs and inodes of those that have the service.
        """
        found = beside.inProcesses(SERVICE, "127.0.0.1")
        return sorted((each.guid, each.inode) for each in found)

    def test_shared(self) -> None:
        """
        Several HCAs share a service beside one TCP socket or several (SO_REUSEPORT), until each goes.
        """
        one, beside = self.published(1, 4711), self.looking()
        two, three = self.published(2, 4711), self.published(3, 4712)
        self.assertEqual(len(self.names("svc")), 1)
        self.assertEqual(self.shown(beside), [(1, 4711), (2, 4711), (3, 4712)])
        wide = self.published(4, 4713, "0.0.0.0")
        self.assertEqual(beside.inProcesses(SERVICE, "127.0.0.1")[3].guid, 4)
        wide.withdraw(SERVICE, "0.0.0.0")
        two.withdraw(SERVICE, "127.0.0.1")
        self.assertEqual(self.shown(beside), [(1, 4711), (3, 4712)])
        one.close()
        self.assertEqual(self.shown(beside), [(3, 4712)])
        three.withdraw(SERVICE, "127.0.0.1")
        self.assertEqual((self.shown(beside), self.names("svc")), ([], []))

    def test_sharedWithTheDead(self) -> None:
        """
        Targets of dead HCAs leave a shared entry when another joins, and so does what they left half done.
        """
        self.published(1, 4711)
        link = os.path.join(self.run_, self.names("svc")[0])
        target = os.readlink(link)
        os.unlink(link)
        os.symlink(f"{HCA}.tcp-5,{target}", link)
        os.symlink(target, os.path.join(self.run_, f"{HCA}.new"))
        self.published(2, 4712)
        self.assertEqual(self.shown(self.looking()), [(1, 4711), (2, 4712)])
        self.assertEqual(self.names(f"{HCA}.new"), [])

    def test_sharedBound(self) -> None:
        """
        So many share a service, and no more.
        """
        self.patch(rendezvous, "SERVICE_TARGETS", 2)
        self.published(1, 4711)
        self.published(2, 4712)
        self.assertRaises(ServiceInUseError, self.published, 3, 4713)

    def test_sharedEvenly(self) -> None:
        """
        Clients are shared among the HCAs of one address; another address comes after them.
        """
        for guid in (1, 2, 3):
            self.published(guid, 4710 + guid)
        self.published(4, 4714, "0.0.0.0")
        beside, first = self.looking(), Counter[int]()
        for _ in range(300):
            found = beside.inProcesses(SERVICE, "127.0.0.1")
            self.assertEqual((len(found), found[3].guid), (4, 4))
            first[found[0].guid] += 1
        # 300 draws of 1 in 3: below 50 has a probability of 1e-10.
        self.assertEqual([first[guid] > 50 for guid in (1, 2, 3)], [True] * 3)

    def test_onceEach(self) -> None:
        """
        One HCA has a service once, beside whatever socket.
        """
        one, two = self.published(1, 4711), self.published(2, 4711)
        for hca in (one, two):
            self.assertRaises(ServiceInUseError, hca.publish, SERVICE, "127.0.0.1", 4711)
        one.withdraw(SERVICE, "127.0.0.1")
        two.withdraw(SERVICE, "127.0.0.1")
        self.assertEqual(self.names("svc"), [])

    def test_environment(self) -> None:
        """
        The search follows the environment: tests and programs change it.
        """
        self.published(1, 4711)
        beside = self.looking()
        self.assertEqual(len(beside.inProcesses(SERVICE, "127.0.0.1")), 1)
        os.environ["TWISTED_IB_RUN_DIR"] = self.path("none")
        self.assertEqual(beside.inProcesses(SERVICE, "127.0.0.1"), [])

    def test_otherUser(self) -> None:
        """
        The user of an entry is the owner of its link.
        """
        if os.geteuid():
            raise SkipTest("only root can give a link to another user")
        self.published(1, 4711)
        os.lchown(os.path.join(self.run_, self.names("svc")[0]), 65534, 65534)
        search = Search({**self.environment, "TWISTED_IB_ALLOW_UIDS": "65534"})
        self.addCleanup(search.close)
        (found,) = search.lookup(SERVICE, "127.0.0.1")
        self.assertEqual((found.inode, found.uid), (4711, 65534))
        self.assertFalse(TCPCounterparts().isOurs(Counterpart(1, "", 4711, 65534)))


class ThreadTests(SynchronousTestCase):
    """
    C{lo0}.
    """

    def test_inThread(self) -> None:
        """
        A device's services beside TCP sockets are found in its thread, until they end.
        """
        device = Device("lo0", lambda: 0.0)
        self.addCleanup(device.close)
        listener: Any = object()
        service = device.listen(1, "127.0.0.1", 8080, listener, 4711)
        plain = device.listen(1, "127.0.0.1", 8081, listener)
        beside = TCPCounterparts()
        expected = [Counterpart(device.guid, "127.0.0.1", 4711, os.geteuid())]
        self.assertEqual(beside.inThread(service.serviceID, "127.0.0.1"), expected)
        self.assertEqual(beside.inThread(plain.serviceID, "127.0.0.1"), [])
        service.close()
        self.assertEqual(beside.inThread(service.serviceID, "127.0.0.1"), [])
        device.listen(1, "127.0.0.1", 8080, listener, 4711)
        device.close()
        self.assertEqual(beside.inThread(service.serviceID, "127.0.0.1"), [])
        other = Device("lo0", lambda: 0.0)
        self.addCleanup(other.close)
        self.assertRaises(NoListenerError, other.fabric.reach, device.guid, listener)
