"""
Tests for L{twisted_ib.hca.host.rendezvous}, L{twisted_ib.hca.host.search}
and L{twisted_ib.hca.host.entries}, several HCAs in one process.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from typing import Any
from unittest import mock

from attrs import evolve

from tests.hca.host.test_rundirectory import UID, RunDirectoryTestCase
from tests.support.descriptors import descriptors, descriptorsBefore
from twisted_ib import limits
from twisted_ib.errors import NoListenerError, ResourceLimitError, RunDirectoryError, ServiceInUseError
from twisted_ib.hca.host import addresses, entries, rendezvous, rundirectory, search
from twisted_ib.hca.host.rendezvous import Rendezvous
from twisted_ib.hca.host.search import Search

SDP = 0x10000
SERVICE = SDP | 8080


class RendezvousTestCase(RunDirectoryTestCase):
    """
    Base of tests of HCAs that share one run directory.
    """

    def setUp(self) -> None:
        """
        The environment of all of them.
        """
        super().setUp()
        self.run_ = self.path("run")
        self.environment = self.chosen(self.run_)

    def hca(self, guid: int, environment: dict[str, str] | None = None) -> Rendezvous:
        """
        @return: an HCA that is bound, closed after the test.
        """
        found = Rendezvous(guid, self.environment if environment is None else environment)
        self.addCleanup(found.close)
        found.bind()
        return found

    def names(self, prefix: str = "") -> list[str]:
        """
        @return: the entries in the directory whose names begin so.
        """
        return sorted(name for name in os.listdir(self.run_) if name.startswith(prefix))

    def guids(self, looking: Search, address: str, service: int = SERVICE) -> list[int]:
        """
        @return: the HCAs that are found for a service.
        """
        return [entry.guid for entry in looking.lookup(service, address)]


class EntryTests(RendezvousTestCase):
    """
    One process, several HCAs.
    """

    def test_names(self) -> None:
        """
        The entries are named as the drawing says.
        """
        server = self.hca(0x1234)
        server.publish(SERVICE, "127.0.0.1")
        inode = os.stat("/proc/self/ns/net").st_ino
        name = f"svc-0000000000011f90-{inode}-127.0.0.1"
        self.assertEqual(self.names(), ["hca-0000000000001234", "lock", name])
        self.assertEqual(os.readlink(os.path.join(self.run_, name)), "hca-0000000000001234")
        self.assertEqual(os.stat(os.path.join(self.run_, server.name)).st_mode & 0o777, 0o600)
        server.publishAny(SDP, "127.0.0.1")
        targets = {os.readlink(os.path.join(self.run_, each)) for each in self.names("svc-")}
        self.assertEqual(targets, {server.name})

    def test_connect(self) -> None:
        """
        A client finds the server and connects to its socket.
        """
        server = self.hca(1)
        server.publish(SERVICE, "0.0.0.0")
        client = self.hca(2)
        (entry,) = client.lookup(SERVICE, "127.0.0.1")
        self.assertEqual((entry.guid, entry.address), (1, "0.0.0.0"))
        with client.connect(entry) as one:
            listener = server.bind()
            two, _ = listener.accept()
            two.send(b"hello")
            self.assertEqual(one.recv(10), b"hello")
            two.close()
            for made in (one, listener):
                self.assertFalse(made.getblocking())
                self.assertFalse(made.get_inheritable())

    def test_withdraw(self) -> None:
        """
        A withdrawn service is not found, and free for others.
        """
        one, two = self.hca(1), self.hca(2)
        one.publish(SERVICE, "127.0.0.1")
        self.assertRaises(ServiceInUseError, two.publish, SERVICE, "127.0.0.1")
        one.withdraw(SERVICE, "127.0.0.1")
        one.withdraw(SERVICE, "127.0.0.1")
        self.assertEqual(self.guids(two, "127.0.0.1"), [])
        two.publish(SERVICE, "127.0.0.1")
        one.withdraw(SERVICE, "127.0.0.1")
        self.assertEqual(self.guids(one, "127.0.0.1"), [2])

    def test_takenOver(self) -> None:
        """
        An entry that points to another HCA meanwhile is not ours to remove.
        """
        one, two = self.hca(1), self.hca(2)
        one.publish(SERVICE, "127.0.0.1")
        one.publish(SERVICE, "127.0.0.2")
        for name in self.names("svc-"):
            os.unlink(os.path.join(self.run_, name))
            os.symlink(two.name, os.path.join(self.run_, name))
        one.withdraw(SERVICE, "127.0.0.1")
        one.close()
        self.assertEqual(self.guids(two, "127.0.0.1"), [2])
        self.assertEqual(self.guids(two, "127.0.0.2"), [2])

    def test_ownConflict(self) -> None:
        """
        To find its own service in the way an HCA does not ask itself.
        """
        server = self.hca(1)
        server.publish(SERVICE, "0.0.0.0")
        self.assertRaises(ServiceInUseError, server.publish, SERVICE, "127.0.0.1")
        self.assertEqual(select.select([server.bind()], [], [], 0)[0], [])

    def test_close(self) -> None:
        """
        Closing takes everything away and leaves no descriptor.
        """
        server = self.hca(1)
        server.publish(SERVICE, "0.0.0.0")
        server.publish(SERVICE + 1, "::1")
        server.publishAny(SDP, "127.0.0.1")
        server.close()
        server.close()
        self.assertEqual(self.names(), ["lock"])
        self.assertEqual(descriptors(), self.before)

    def test_conflicts(self) -> None:
        """
        As TCP: the same address, and all addresses of the same family.
        """
        table = {
            ("127.0.0.1", "127.0.0.1"): True,
            ("127.0.0.1", "127.0.0.2"): False,
            ("127.0.0.1", "0.0.0.0"): True,
            ("0.0.0.0", "127.0.0.1"): True,
            ("0.0.0.0", "0.0.0.0"): True,
            ("0.0.0.0", ""): True,
            ("::1", "::"): True,
            ("::", "::1"): True,
            ("::1", "::1"): True,
            ("::1", "0:0:0:0:0:0:0:1"): True,
            ("::1", "::2"): False,
            ("::1", "0.0.0.0"): False,
            ("::", "0.0.0.0"): False,
            ("127.0.0.1", "::ffff:127.0.0.1"): True,
        }
        other = self.hca(2)
        for (first, second), taken in table.items():
            for rival in (other, None):
                with self.subTest(first=first, second=second, same=rival is None):
                    server = self.hca(1)
                    server.publish(SERVICE, first)
                    rival = rival or server
                    if taken:
                        error = self.assertRaises(ServiceInUseError, rival.publish, SERVICE, second)
                        self.assertIn(addresses.normalise(first), str(error))
                    else:
                        rival.publish(SERVICE, second)
                        rival.withdraw(SERVICE, second)
                    rival.publish(SERVICE + 1, second)
                    rival.withdraw(SERVICE + 1, second)
                    server.close()

    def test_order(self) -> None:
        """
        The exact address is asked first, then all of its family, then, for
        IPv4, all of IPv6.
        """
        exact, v4, v6 = self.hca(1), self.hca(2), self.hca(3)
        v6.publish(SERVICE, "::")
        self.assertEqual(self.guids(exact, "127.0.0.1"), [3])
        self.assertEqual(self.guids(exact, "::1"), [3])
        v4.publish(SERVICE, "0.0.0.0")
        self.assertEqual(self.guids(exact, "127.0.0.1"), [2, 3])
        self.assertEqual(self.guids(exact, "::1"), [3])
        v4.withdraw(SERVICE, "0.0.0.0")
        exact.publish(SERVICE, "127.0.0.1")
        self.assertEqual(self.guids(v4, "127.0.0.1"), [1, 3])
        self.assertEqual(self.guids(v4, "::ffff:127.0.0.1"), [1, 3])
        self.assertEqual(self.guids(v4, "127.0.0.2"), [3])

    def test_thisHost(self) -> None:
        """
        To connect to 0.0.0.0 or :: means this host.
        """
        server = self.hca(1)
        server.publish(SERVICE, "127.0.0.1")
        server.publish(SERVICE, "::1")
        for address in ("0.0.0.0", "", "::"):
            self.assertEqual(self.guids(server, address), [1])

    def test_namespaces(self) -> None:
        """
        An entry of another network namespace is neither found nor in the way.
        """
        one = self.hca(1)
        self.patch(addresses, "namespaceInode", lambda: 12345)
        two = self.hca(2)
        one.publish(SERVICE, "0.0.0.0")
        two.publish(SERVICE, "0.0.0.0")
        self.assertEqual(self.guids(one, "127.0.0.1"), [1])
        self.assertEqual(self.guids(two, "127.0.0.1"), [2])
        self.assertEqual(len(self.names("svc-")), 2)

    def test_hidden(self) -> None:
        """
        What listens in another network namespace, or on a kind of device that has none, is said to.
        """
        one = self.hca(1)
        self.patch(addresses, "namespaceInode", lambda: 12345)
        two = self.hca(2)
        two.publish(SERVICE, "127.0.0.1")
        self.assertEqual(one.hidden(SERVICE, "127.0.0.1"), "it listens in another network namespace")
        self.assertEqual(two.hidden(SERVICE, "127.0.0.1"), "")
        self.assertEqual(one.hidden(SERVICE + 1, "127.0.0.1"), "")
        self.assertEqual(one.hidden(SERVICE, "127.0.0.2"), "")
        one.namespace = 0
        self.assertEqual(one.hidden(SERVICE, "127.0.0.1"), "it listens on another kind of device")

    def test_ports(self) -> None:
        """
        The ports of one HCA at just one address, of one space.
        """
        one, two = self.hca(1), self.hca(2)
        for service, address in (
            (SERVICE, "127.0.0.1"),
            (SERVICE + 1, "127.0.0.1"),
            (SERVICE + 2, "127.0.0.2"),
            (SERVICE + (1 << 16), "127.0.0.1"),
        ):
            one.publish(service, address)
        two.publish(SERVICE + 3, "127.0.0.1")
        self.assertEqual(one.ports(SDP, "127.0.0.1", 1), {8080, 8081})
        self.assertEqual(one.ports(SDP, "127.0.0.1", 2), {8083})
        self.assertEqual(two.ports(SDP, "127.0.0.3", 1), set())

    def test_shared(self) -> None:
        """
        Clients are shared among the HCAs of one address, and those of a better one stay first.
        """
        one, three = self.hca(1), self.hca(3)
        one.publish(SERVICE, "127.0.0.1")
        (entry,) = three.lookup(SERVICE, "127.0.0.1")
        self.assertEqual((search.shared([]), search.shared([entry])), ([], [entry]))
        better = [evolve(entry, guid=number) for number in (7, 8)]
        worse = [evolve(entry, address="0.0.0.0", guid=9)]
        for found, expected in (
            (better + worse, {(7, 8, 9), (8, 7, 9)}),
            (better, {(7, 8), (8, 7)}),
        ):
            orders = {tuple(each.guid for each in search.shared(found)) for _ in range(200)}
            self.assertEqual(orders, expected)

    def test_reclaimed(self) -> None:
        """
        So many entries of the dead are found at once, and those of the living never.
        """
        server = self.hca(9)
        for number in range(4):
            with socket.socket(socket.AF_UNIX) as left:
                left.bind(os.path.join(self.run_, f"hca-{number:016x}"))
        entry = server.find(9)
        assert entry is not None
        dead = evolve(entry, guid=0, name="hca-" + "0" * 16)
        for among, living in (
            ([dead], {0}),
            ([entry, dead], {9}),
            ([dead] * 15 + [entry], {9}),
            ([dead] * 16 + [entry], {0, 9}),
        ):
            self.assertEqual(entries.livingGUIDs(among), living)
        for most in (0, 2, 4, 5):
            self.patch(entries, "RECLAIMED_ENTRIES", most)
            found = entries.leftovers(server._home)
            self.assertEqual(len(found), min(most, 4))
            self.assertNotIn(server.name, found)

    def test_reclaimedShared(self) -> None:
        """
        In a shared directory the entries of others, of which so many are looked at, keep none of ours from
        being found.
        """
        uids = {f"hca-{number:016x}": UID + (number < 8) for number in range(11)}
        looked: list[str] = []
        directory: Any = mock.Mock(shared=True, names=lambda: sorted(uids))
        directory.status = lambda name: None if name.endswith("a") else mock.Mock(st_uid=uids[name])
        dead = {f"hca-{number:016x}" for number in (1, 2, 8, 9)}

        def isBound(_: object, name: str) -> bool:
            looked.append(name)
            return name not in dead

        self.patch(entries, "RECLAIMED_ENTRIES", 3)
        self.patch(entries, "isBound", isBound)
        found = entries.leftovers(directory)
        ours = [name for name in looked if uids[name] == UID and not name.endswith("a")]
        self.assertEqual(set(ours), {name for name in uids if uids[name] == UID and not name.endswith("a")})
        # What has gone meanwhile is nobody's.
        self.assertEqual(len(looked) - len(ours), 3)
        self.assertLessEqual({name for name in dead if uids[name] == UID}, set(found))
        self.patch(entries, "RECLAIMED_ENTRIES", 1)
        looked.clear()
        self.assertEqual(len([name for name in entries.leftovers(directory) if uids[name] == UID]), 1)

    def test_beside(self) -> None:
        """
        With TCP sockets that share a port, those of one address are found there together; one of all
        addresses has an entry of its own.
        """
        looking = self.hca(9)
        for guid, address in (1, "127.0.0.1"), (2, "127.0.0.1"), (3, "0.0.0.0"):
            self.hca(guid).publish(SERVICE, address, 7)
        entries = self.names("svc-")
        self.assertEqual(len(entries), 2)
        self.assertEqual(sorted(self.guids(looking, "127.0.0.2")), [3])
        self.assertEqual(sorted(self.guids(looking, "127.0.0.1")), [1, 2, 3])

    def test_leftLocked(self) -> None:
        """
        Who leaves a link that others may be adding themselves to holds the directory's lock meanwhile; the
        others stay.  One of its own needs none.
        """
        one, two = self.hca(1), self.hca(2)
        locked, lock = [], rundirectory.RunDirectory.locked

        def locks(directory: rundirectory.RunDirectory) -> Any:
            locked.append(directory.path)
            return lock(directory)

        for each in one, two:
            each.publish(SERVICE, "127.0.0.1", 7)
        one.publish(SERVICE + 1, "127.0.0.1")
        self.patch(rundirectory.RunDirectory, "locked", locks)
        one.withdraw(SERVICE + 1, "127.0.0.1")
        self.assertEqual(locked, [])
        one.withdraw(SERVICE, "127.0.0.1")
        self.assertEqual(locked, [self.run_])
        self.assertEqual(self.guids(one, "127.0.0.1"), [2])

    def test_settles(self) -> None:
        """
        Before its first entry an HCA waits for those that have lost theirs, once.
        """
        waited: list[set[str]] = []
        one = self.hca(1)
        self.patch(rundirectory.RunDirectory, "orphans", lambda _, ours: waited.append(ours))
        one.publish(SERVICE, "127.0.0.1")
        self.assertEqual(len(waited), 1)
        one.publish(SERVICE + 1, "127.0.0.1")
        self.assertEqual(len(waited), 1)

    def test_notAnAddress(self) -> None:
        """
        Names are for others to resolve.
        """
        server = self.hca(1)
        for text in ("localhost", "1.2.3", "::g", "../x", "127.0.0.1/8", "fe80::1%nosuchinterface"):
            self.assertRaises(ValueError, server.publish, SERVICE, text)
            self.assertRaises(ValueError, server.lookup, SERVICE, text)

    def test_scope(self) -> None:
        """
        A link-local address has its interface, by name or number.
        """
        server = self.hca(1)
        number = socket.if_nametoindex("lo")
        server.publish(SERVICE, "fe80::1%lo")
        self.assertEqual(self.guids(server, f"fe80::1%{number}"), [1])
        self.assertEqual(self.guids(server, f"fe80::1%{number + 100}"), [])

    def test_anyPort(self) -> None:
        """
        Ports from 49152 up, no two alike, in no order.
        """
        server = self.hca(1)
        ports = [server.publishAny(SDP, "127.0.0.1") for _ in range(50)]
        self.assertEqual(len(set(ports)), 50)
        self.assertTrue(49152 <= min(ports) <= max(ports) <= 65535)
        self.assertNotEqual(ports, sorted(ports))
        for port in ports:
            self.assertEqual(self.guids(server, "127.0.0.1", SDP | port), [1])

    def test_allPortsTaken(self) -> None:
        """
        The last free one is found; after it there is an error by name.
        """
        self.patch(addresses, "_FIRST_EPHEMERAL_PORT", 65533)
        one, two = self.hca(1), self.hca(2)
        ports = {one.publishAny(SDP, "127.0.0.1"), two.publishAny(SDP, "0.0.0.0")}
        ports.add(one.publishAny(SDP, "::1"))
        self.assertEqual(ports, {65533, 65534, 65535})
        self.assertRaises(ServiceInUseError, two.publishAny, SDP, "127.0.0.1")
        two.publishAny(0x60000, "127.0.0.1")  # another port space has its own

    def test_remembered(self) -> None:
        """
        A lookup is repeated without a search until the directory changes.
        """
        one, two = self.hca(1), self.hca(2)
        one.publish(SERVICE, "0.0.0.0")
        past = time.time_ns() - 10**9
        os.utime(self.run_, ns=(past, past))
        first = two.lookup(SERVICE, "127.0.0.1")
        self.assertIs(two.lookup(SERVICE, "127.0.0.1"), first)
        one.publish(SERVICE, "::")
        self.assertEqual(self.guids(two, "127.0.0.1"), [1, 1])
        one.withdraw(SERVICE, "0.0.0.0")
        self.assertEqual(self.guids(two, "127.0.0.1"), [1])

    def test_notRememberedTooSoon(self) -> None:
        """
        A result found just after a change is not cached: a second change could have the same time.
        """
        one, two = self.hca(1), self.hca(2)
        one.publish(SERVICE, "0.0.0.0")
        one.join(1)
        now = time.time_ns()
        os.utime(self.run_, ns=(now, now))
        for passed, isKnown in ((0, False), (50_000_000, False), (50_000_001, True)):
            with mock.patch.object(search, "time_ns", lambda passed=passed: now + passed):
                self.assertEqual((self.guids(two, "127.0.0.1"), two.members(1)), ([1], (1,)))
            self.assertEqual(bool(two._known), isKnown)
            self.assertEqual(two._groups[1][0] == two.stamps(), isKnown)

    def test_rememberedIsBounded(self) -> None:
        """
        Only so many are remembered.
        """
        self.patch(search, "LOOKUPS_REMEMBERED", 3)
        server = self.hca(1)
        server.publish(SERVICE, "0.0.0.0")
        past = time.time_ns() - 10**9
        os.utime(self.run_, ns=(past, past))
        for number in range(1, 20):
            self.assertEqual(self.guids(server, f"127.0.0.{number}"), [1])
            self.assertTrue(len(server._known) <= 3)

    def test_hcas(self) -> None:
        """
        All HCAs are listed, one is found by its GUID; strange entries are not.
        """
        one, two = self.hca(1), self.hca(0xFFFFFFFFFFFFFFFF)
        for name in ("hca-12", "hca-000000000000000g", "x", "hca-00000000000000030"):
            os.mkfifo(os.path.join(self.run_, name))
        os.mkfifo(os.path.join(self.run_, "hca-0000000000000004"))
        looking = Search(self.environment)
        self.addCleanup(looking.close)
        self.assertEqual({entry.guid for entry in looking.hcas()}, {one.guid, two.guid})
        found = looking.find(two.guid)
        assert found is not None
        looking.connect(found).close()
        self.assertEqual(looking.find(3), None)

    def test_replacedForEver(self) -> None:
        """
        Of a directory that is replaced before each look no more are looked into than L{search.LOOKS}.
        """
        self.hca(1)
        looks: list[str] = []

        class Replaced(Search):
            """
            Looks into another directory each time.
            """

            def _refresh(self) -> bool:
                if len(looks) == 2 * search.LOOKS:
                    return False
                [path] = {directory.path for directory in self._directories}
                looks.append(f"{path}.{len(looks)}")
                os.rename(path, looks[-1])
                os.mkdir(path, 0o700)
                return super()._refresh()

        looking = Replaced(self.environment)
        self.addCleanup(looking.close)
        self.assertIs(looking.find(2), None)
        self.assertEqual(len(looks), search.LOOKS)

    def test_searchMakesNothing(self) -> None:
        """
        A command that only looks leaves nothing behind, finds what comes
        later, and complains only of what it cannot trust.
        """
        looking = Search(self.environment)
        self.addCleanup(looking.close)
        self.assertEqual((looking.hcas(), looking.lookup(SERVICE, "::1"), looking.find(1)), ([], [], None))
        self.assertFalse(os.path.exists(self.run_))
        self.hca(1).publish(SERVICE, "::")
        self.assertEqual(self.guids(looking, "::1"), [1])
        os.chmod(self.run_, 0o755)
        self.assertRaises(RunDirectoryError, Search, self.environment)

    def test_nobodyThere(self) -> None:
        """
        An HCA that is gone, and one that never was.
        """
        server, client = self.hca(1), self.hca(2)
        server.publish(SERVICE, "0.0.0.0")
        (entry,) = client.lookup(SERVICE, "127.0.0.1")
        server.close()
        self.assertRaises(NoListenerError, client.connect, entry)
        with open(os.path.join(self.run_, server.name), "w"):
            self.assertRaises(NoListenerError, client.connect, entry)

    def test_backlog(self) -> None:
        """
        More processes than the kernel keeps: an error by name, no waiting.
        """
        self.patch(rendezvous, "RENDEZVOUS_BACKLOG", 2)
        server, client = self.hca(1), self.hca(2)
        server.publish(SERVICE, "0.0.0.0")
        (entry,) = client.lookup(SERVICE, "127.0.0.1")
        for _ in range(3):
            self.addCleanup(client.connect(entry).close)
        before = descriptorsBefore()
        self.assertRaises(ResourceLimitError, client.connect, entry)
        self.assertEqual(descriptors(), before)
        # Busy is alive.
        self.assertRaises(ServiceInUseError, client.publish, SERVICE, "0.0.0.0")

    def test_longPath(self) -> None:
        """
        A run directory deeper than a socket address is long.
        """
        deep = self.path("d" * 100, 0o700)
        environment = self.chosen(os.path.join(deep, "r" * 100))
        server, client = self.hca(1, environment), self.hca(2, environment)
        server.publish(SERVICE, "0.0.0.0")
        self.assertRaises(ServiceInUseError, client.publish, SERVICE, "0.0.0.0")
        client.connect(client.lookup(SERVICE, "127.0.0.1")[0]).close()
        server.close()
        client.publish(SERVICE, "0.0.0.0")

    def test_notBound(self) -> None:
        """
        A directory that cannot be written is refused by name.
        """
        server = Rendezvous(1, self.environment)
        self.addCleanup(server.close)
        os.mkdir(os.path.join(self.run_, server.name))
        before = descriptorsBefore()
        error = self.assertRaises(RunDirectoryError, server.bind)
        self.assertIn(f"{self.run_}/{server.name} cannot be made", str(error))
        self.assertEqual(descriptors(), before)

    def test_orphans(self) -> None:
        """
        Of sockets whose folder was replaced those that listen are found, but for the known ones; of a shared
        folder none.
        """
        server = self.hca(1)
        kept = []
        for name, listens in (
            ("hca-0000000000000002", True),
            ("hca-0000000000000003", False),
            ("hca- 4 ", True),
        ):
            kept.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            self.addCleanup(kept[-1].close)
            kept[-1].bind(os.path.join(self.run_, name))
            if listens:
                kept[-1].listen()
        looking = server._home
        self.assertEqual(looking.orphans(set()), set())
        for name in self.names("hca-"):
            os.unlink(os.path.join(self.run_, name))
        self.assertEqual(looking.orphans(set()), {server.name, "hca-0000000000000002", "hca- 4 "})
        self.assertEqual(looking.orphans({server.name, "hca- 4 "}), {"hca-0000000000000002"})
        looking.shared = True
        self.assertEqual(looking.orphans(set()), set())

    def test_directoryRemoved(self) -> None:
        """
        A server whose directory was removed says so; a client searches the one
        that took its place.
        """
        old = self.hca(1)
        for name in self.names():
            os.unlink(os.path.join(self.run_, name))
        os.rmdir(self.run_)
        error = self.assertRaises(RunDirectoryError, old.publish, SERVICE, "0.0.0.0")
        self.assertIn("was removed", str(error))
        new = self.hca(2)
        new.publish(SERVICE, "0.0.0.0")
        self.assertEqual(self.guids(old, "127.0.0.1"), [2])
        old.connect(old.lookup(SERVICE, "127.0.0.1")[0]).close()
        before = descriptorsBefore()
        for _ in range(20):
            self.guids(old, "::1", SERVICE + 1)
        self.assertEqual(descriptors(), before)

    def test_reopened(self) -> None:
        """
        Where the directory was replaced one for the same HCA makes its services and groups anew, once the old
        one is closed; what is another's by then is missing, and said.
        """
        old = self.hca(1)
        old.publish(SERVICE, "127.0.0.1")
        old.publish(SERVICE + 1, "127.0.0.1", 77)
        old.join(1)
        self.assertFalse(old.isLost())
        os.rename(self.run_, self.path("moved"))
        self.assertTrue(old.isLost())
        self.hca(2).publish(SERVICE, "0.0.0.0")
        # One that could not be bound passes on what it was to make.
        following = old.reopened().reopened()
        self.addCleanup(following.close)
        old.close()
        following.bind()
        self.assertEqual([type(each) for each in following.missing], [ServiceInUseError])
        self.assertEqual((self.guids(following, "127.0.0.1", SERVICE + 1), following.members(1)), ([1], (1,)))
        (entry,) = following.lookup(SERVICE + 1, "127.0.0.1")
        self.assertEqual((entry.inode, following.isLost(), following.place), (77, False, self.run_))
        os.unlink(os.path.join(self.run_, following.name))
        self.assertTrue(following.isLost())

    def test_released(self) -> None:
        """
        After a release there is no entry, but the socket listens until its owner closes it.
        """
        server = self.hca(1)
        server.publish(SERVICE, "127.0.0.1")
        server.join(SERVICE)
        listener = server.release()
        assert listener is not None
        with listener:
            self.assertEqual(self.names(), ["lock"])
            self.assertEqual(listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN), 1)
        self.assertIsNone(server.release())

    def test_drawnAgain(self) -> None:
        """
        A port whose name is there is drawn again, a bounded number of times.
        """
        server = self.hca(1)
        server.publish(SDP | 50000, "127.0.0.1")
        self.patch(limits, "PORT_ATTEMPTS", 3)
        asked: list[set[int]] = []
        drawn = [50000, 50001]

        def draw(taken: set[int]) -> int:
            asked.append(set(taken))
            return drawn.pop(0) if drawn else 50000

        self.patch(addresses, "freePort", draw)
        with mock.patch.object(server, "_takenPorts", lambda prefix: set()):
            self.assertEqual(server.publishAny(SDP, "127.0.0.1"), 50001)
            self.assertEqual(asked, [set(), {50000}])
            error = self.assertRaises(ServiceInUseError, server.publishAny, SDP, "127.0.0.1")
        self.assertIn("3 attempts", str(error))
        self.assertEqual(len(asked), 5)

    def test_exhausted(self) -> None:
        """
        Without a free descriptor for its socket the error is one of this package, and names the cause.
        """
        server = Rendezvous(1, self.environment)
        self.addCleanup(server.close)
        failure = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        with mock.patch.object(rendezvous, "KernelSocket", side_effect=failure):
            error = self.assertRaises(RunDirectoryError, server.bind)
        self.assertIn("Too many open files", str(error))
        self.assertIs(error.__cause__, failure)
        server.bind()

    def test_lockHeld(self) -> None:
        """
        Somebody who holds the lock for ever is told by name.
        """
        server = self.hca(1)
        self.patch(rundirectory, "LOCK_SECONDS", 0.0)
        with server._home.locked():
            other = Rendezvous(2, self.environment)
            self.addCleanup(other.close)
            for call in (other.bind, lambda: server.publish(SERVICE, "0.0.0.0")):
                self.assertIn("was locked", str(self.assertRaises(RunDirectoryError, call)))


class StandardPlacesTests(RendezvousTestCase):
    """
    The session's directory and the one in /tmp.
    """

    def setUp(self) -> None:
        """
        Stand-ins for both.
        """
        super().setUp()
        self.patch(rundirectory, "SESSION_BASE", self.path("user", 0o755))
        self.patch(rundirectory, "TEMPORARY_BASES", (self.path("tmp", 0o1777),))
        self.environment = {}

    def test_meet(self) -> None:
        """
        A service without a session and a client with one meet, both ways, and
        see each other's ports.
        """
        service = self.hca(1)
        service.publish(SERVICE, "0.0.0.0")
        self.path(f"user/{UID}", 0o700)
        login = self.hca(2)
        login.publish(SERVICE + 1, "0.0.0.0")
        self.assertEqual(self.guids(login, "127.0.0.1"), [1])
        self.assertEqual(self.guids(service, "127.0.0.1", SERVICE + 1), [2])
        self.assertEqual({entry.guid for entry in service.hcas()}, {1, 2})
        self.assertNotEqual(service._home.path, login._home.path)
        self.assertRaises(ServiceInUseError, login.publish, SERVICE, "127.0.0.1")
        self.assertRaises(ServiceInUseError, service.publish, SERVICE + 1, "127.0.0.1")
