"""
Tests for L{twisted_ib.hca.fabric.rendezvous}, L{twisted_ib.hca.fabric.search},
L{twisted_ib.hca.fabric.entries} and L{twisted_ib.hca.fabric.query}.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from unittest import skipIf

from tests.descriptors import descriptors, fork, runForked
from tests.test_rundirectory import NOBODY, UID, RunDirectoryTestCase
from twisted_ib import limits
from twisted_ib.errors import (
    NoListenerError,
    PeerIdentityError,
    ResourceLimitError,
    RunDirectoryError,
    ServiceInUseError,
)
from twisted_ib.hca.fabric import addresses, entries, handshake, rundirectory, search
from twisted_ib.hca.fabric.query import ask
from twisted_ib.hca.fabric.rendezvous import Rendezvous
from twisted_ib.hca.fabric.search import Search

SDP = 0x10000
_CLONE_NEWNET = 0x40000000
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
        What was found just after a change is not: a second change could have
        the same time.
        """
        one, two = self.hca(1), self.hca(2)
        one.publish(SERVICE, "0.0.0.0")
        now = time.time_ns() + 10**9  # whatever the pace of this test
        os.utime(self.run_, ns=(now, now))
        self.assertEqual(self.guids(two, "127.0.0.1"), [1])
        one.publish(SERVICE, "::")
        os.utime(self.run_, ns=(now, now))
        self.assertEqual(self.guids(two, "127.0.0.1"), [1, 1])

    def test_rememberedIsBounded(self) -> None:
        """
        Only so many are remembered.
        """
        self.patch(limits, "LOOKUPS_REMEMBERED", 3)
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

    def test_searchMakesNothing(self) -> None:
        """
        A command that only looks leaves nothing behind, finds what comes
        later, and complains only of what it can not trust.
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
        self.patch(limits, "RENDEZVOUS_BACKLOG", 2)
        server, client = self.hca(1), self.hca(2)
        server.publish(SERVICE, "0.0.0.0")
        (entry,) = client.lookup(SERVICE, "127.0.0.1")
        for _ in range(3):
            self.addCleanup(client.connect(entry).close)
        before = descriptors()
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
        A directory that can not be written is refused by name.
        """
        server = Rendezvous(1, self.environment)
        self.addCleanup(server.close)
        os.mkdir(os.path.join(self.run_, server.name))
        before = descriptors()
        error = self.assertRaises(RunDirectoryError, server.bind)
        self.assertIn(f"{self.run_}/{server.name} can not be made", str(error))
        self.assertEqual(descriptors(), before)

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
        before = descriptors()
        for _ in range(20):
            self.guids(old, "::1", SERVICE + 1)
        self.assertEqual(descriptors(), before)

    def test_lockHeld(self) -> None:
        """
        Somebody who holds the lock for ever is told by name.
        """
        server = self.hca(1)
        self.patch(limits, "LOCK_PAUSE_SECONDS", 0.0)
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
        self.patch(rundirectory, "TEMPORARY_BASE", self.path("tmp", 0o1777))
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


class ProcessTests(RendezvousTestCase):
    """
    Processes that are killed, forked, or race.
    """

    def server(self, prepare: Callable[[Rendezvous], object], guid: int = 1) -> int:
        """
        Start a process with an HCA and wait until it is prepared.

        @return: its process number.
        """
        reading, writing = os.pipe()

        def child() -> None:
            """
            Bind, prepare, wait.
            """
            found = Rendezvous(guid, self.environment)
            found.bind()
            prepare(found)
            os.write(writing, b"!")
            signal.pause()

        pid = fork(child)
        self.assertEqual(os.read(reading, 1), b"!")
        os.close(reading)
        os.close(writing)
        return pid

    def kill(self, pid: int) -> None:
        """
        Kill a child and wait for its end.
        """
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def test_killed(self) -> None:
        """
        What a killed process left is reclaimed by the next, and only then.
        """
        pid = self.server(lambda made: made.publish(SERVICE, "0.0.0.0"))
        client = self.hca(2)
        (entry,) = client.lookup(SERVICE, "127.0.0.1")
        self.assertRaises(ServiceInUseError, client.publish, SERVICE, "127.0.0.1")
        self.kill(pid)
        self.assertRaises(NoListenerError, client.connect, entry)
        client.publish(SERVICE, "127.0.0.1")
        self.assertEqual(self.guids(client, "127.0.0.1"), [2])
        self.assertEqual(self.names("svc-")[0][-9:], "127.0.0.1")
        self.assertEqual(len(self.names("svc-")), 1)

    def test_swept(self) -> None:
        """
        A new HCA removes the sockets and services of dead ones, and leaves
        those of the living.
        """
        for guid in range(1, 6):
            self.kill(self.server(lambda made: made.publishAny(SDP, "127.0.0.1"), guid))
        living = self.server(lambda made: made.publishAny(SDP, "::1"), 9)
        self.addCleanup(self.kill, living)
        self.hca(10)
        self.assertEqual(self.names("hca-"), ["hca-0000000000000009", "hca-000000000000000a"])
        self.assertEqual([name[-3:] for name in self.names("svc-")], ["::1"])

    def test_sweepIsBounded(self) -> None:
        """
        One new HCA removes only so many entries; the following the rest.
        """
        self.hca(1)
        for number in range(100, 110):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as bound:
                bound.bind(os.path.join(self.run_, f"hca-{number:016x}"))
            os.symlink(f"hca-{number:016x}", os.path.join(self.run_, f"svc-{number:016x}-1-::"))
        self.patch(limits, "RECLAIMED_ENTRIES", 8)
        counts = []
        for guid in range(2, 6):
            self.hca(guid)
            counts.append(len(self.names("svc-")) + len(self.names("hca-")) - guid)
        self.assertEqual(counts[0], 12)
        self.assertEqual(counts[-1], 0)

    def test_aliveByAnyMeans(self) -> None:
        """
        The look for dead HCAs leaves no connection at the living one.
        """
        server = self.hca(1)
        self.assertTrue(entries.isBound(server._home, server.name))
        self.assertEqual(select.select([server.bind()], [], [], 0)[0], [])
        self.assertFalse(entries.isBound(server._home, "hca-none"))

    def test_childHoldsSocket(self) -> None:
        """
        A child that was forked by other means than os.fork, and so keeps the
        listening socket of its killed parent, does not keep its port.
        """
        reading, writing = os.pipe()

        def prepare(made: Rendezvous) -> None:
            """
            Listen, and leave a child with a copy of the socket.
            """
            made.publish(SERVICE, "0.0.0.0")
            os.dup(made.bind().fileno())
            os.write(writing, fork(signal.pause).to_bytes(4, "little"))

        pid = self.server(prepare)
        grandchild = int.from_bytes(os.read(reading, 4), "little")
        os.close(reading)
        os.close(writing)
        try:
            client = self.hca(2)
            self.assertRaises(ServiceInUseError, client.publish, SERVICE, "0.0.0.0")
            self.kill(pid)
            self.assertTrue(entries.isBound(client._home, "hca-0000000000000001"))
            client.publish(SERVICE, "0.0.0.0")
            self.assertEqual(self.guids(client, "127.0.0.1"), [2])
        finally:
            os.kill(grandchild, signal.SIGKILL)

    def test_forkedChild(self) -> None:
        """
        A forked child can not use its parent's rendezvous, by name, and its
        end takes nothing away.
        """
        server = self.hca(1)
        server.publish(SERVICE, "0.0.0.0")
        names = self.names()

        def child() -> None:
            """
            Try everything, then close.
            """
            for call in (
                server.bind,
                lambda: server.lookup(SERVICE, "::1"),
                lambda: server.find(1),
                server.hcas,
                lambda: server.publishAny(SDP, "::"),
            ):
                try:
                    call()
                except (RunDirectoryError, AssertionError):
                    continue
                raise ValueError(f"{call} did not raise")
            assert descriptors() == self.before, os.listdir("/proc/self/fd")
            server.withdraw(SERVICE, "0.0.0.0")
            server.close()

        self.assertEqual(runForked(child), 0)
        self.assertEqual(self.names(), names)
        self.assertEqual(self.guids(server, "127.0.0.1"), [1])

    def test_forkedUnawares(self) -> None:
        """
        Nor does the end of a child that was forked by other means than
        os.fork, and so has all descriptors.
        """
        server = self.hca(1)
        server.publish(SERVICE, "0.0.0.0")
        server.publish(SERVICE + 1, "0.0.0.0")
        names = self.names()
        self.patch(search, "_searches", set())

        def child() -> None:
            """
            Close.
            """
            server.withdraw(SERVICE, "0.0.0.0")
            server.close()

        self.assertEqual(runForked(child), 0)
        self.assertEqual(self.names(), names)

    def test_race(self) -> None:
        """
        Of many processes that want the same port at once exactly one gets it,
        be it free or left from a dead one.
        """
        for round_ in range(5):
            starting, start = os.pipe()
            results, result = os.pipe()

            def child(guid: int, ends: tuple[int, int, int] = (starting, start, result)) -> None:
                """
                Wait for the start, try, tell, wait for the end.
                """
                os.close(ends[1])
                found = Rendezvous(guid, self.environment)
                found.bind()
                os.read(ends[0], 1)
                try:
                    found.publish(SERVICE, "0.0.0.0" if guid & 1 else "127.0.0.1")
                except ServiceInUseError:
                    os.write(ends[2], b"-")
                else:
                    os.write(ends[2], b"+")
                signal.pause()

            pids = [fork(partial(child, 10 * round_ + number)) for number in range(1, 9)]
            os.close(start)
            told = b"".join([os.read(results, 1) for _ in pids])
            for pid in pids:
                self.kill(pid)
            for fd in (starting, results, result):
                os.close(fd)
            self.assertEqual(sorted(told), sorted(b"+-------"))


@skipIf(UID != 0, "needs root")
class OtherUserTests(RendezvousTestCase):
    """
    Several users, and one that becomes another.
    """

    def setUp(self) -> None:
        """
        A sticky directory, and an environment that lets nobody in.
        """
        super().setUp()
        self.path("run", 0o1777)
        self.environment = self.chosen(self.run_, str(NOBODY))

    def as_(self, uid: int, work: Callable[[], object]) -> None:
        """
        Do C{work} in another process as another user.
        """

        def child() -> None:
            """
            Become that user.
            """
            os.setgid(uid)
            os.setuid(uid)
            work()

        self.assertEqual(runForked(child), 0)

    def test_letIn(self) -> None:
        """
        A user who is in the list finds our HCA and we find his; he can not
        take what is ours.
        """
        server = self.hca(1)
        server.publish(SERVICE, "0.0.0.0")

        def work() -> None:
            """
            Find, connect, and try to take the port.
            """
            client = Rendezvous(2, self.chosen(self.run_, "0"))
            client.bind()
            client.connect(client.lookup(SERVICE, "127.0.0.1")[0])
            try:
                client.publish(SERVICE, "127.0.0.1")
            except ServiceInUseError:
                client.publish(SERVICE + 1, "127.0.0.1")
                os._exit(0)  # and leave the entry

        self.as_(NOBODY, work)
        self.assertEqual(self.guids(server, "127.0.0.1", SERVICE + 1), [2])
        self.assertIn(2, {entry.guid for entry in server.hcas()})

    def test_notLetIn(self) -> None:
        """
        Entries of a user who is not in the list are not seen, neither services
        nor HCAs, nor a link of ours to a socket of his.
        """
        server = self.hca(1)
        self.as_(1234, lambda: self.squat(2, SERVICE, "127.0.0.1"))
        self.assertIn("hca-0000000000000002", self.names())
        self.assertEqual(self.guids(server, "127.0.0.1"), [])
        self.assertEqual([entry.guid for entry in server.hcas()], [1])
        self.assertEqual(server.find(2), None)
        name = entries.serviceName(SERVICE, server.namespace, "::1")
        os.symlink("hca-0000000000000002", os.path.join(self.run_, name))
        self.assertEqual(self.guids(server, "::1"), [])

    def squat(self, guid: int, service: int, address: str) -> None:
        """
        Make entries by hand, as a stranger does.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as bound:
            bound.bind(os.path.join(self.run_, f"hca-{guid:016x}"))
        os.chmod(os.path.join(self.run_, f"hca-{guid:016x}"), 0o666)
        name = entries.serviceName(service, addresses.namespaceInode(), address)
        os.symlink(f"hca-{guid:016x}", os.path.join(self.run_, name))

    def test_squatted(self) -> None:
        """
        A stranger's entry of the very name is an error that names him; one of
        another name is not in the way.
        """
        server = self.hca(1)
        self.as_(1234, lambda: self.squat(2, SERVICE, "127.0.0.1"))
        error = self.assertRaises(ServiceInUseError, server.publish, SERVICE, "127.0.0.1")
        self.assertIn("belongs to user 1234", str(error))
        server.publish(SERVICE, "0.0.0.0")

    def test_leftByOther(self) -> None:
        """
        What a dead process of another user left and we may not remove is an
        error that says so.
        """
        server = self.hca(1)
        self.squat(3, SERVICE, "127.0.0.1")

        def work() -> None:
            """
            Want the same.
            """
            client = Rendezvous(2, self.chosen(self.run_, "0"))
            client.bind()
            error = self.assertRaises(ServiceInUseError, client.publish, SERVICE, "127.0.0.1")
            self.assertIn("dead process of user 0; remove it", str(error))
            client.publish(SERVICE, "0.0.0.0")

        self.as_(NOBODY, work)
        self.assertEqual(self.guids(server, "127.0.0.1"), [3, 2])
        self.hca(4)  # root may remove them, and both are dead
        self.assertEqual(self.guids(server, "127.0.0.1"), [])

    def test_otherNamespace(self) -> None:
        """
        In another network namespace the same port is free, its services are
        not found here nor ours there, and the addresses here are not local.
        """
        own = [address for address in addresses.localAddresses() if address[:4] not in ("127.", "::1")]
        server = self.hca(1)
        server.publish(SERVICE, "0.0.0.0")

        def child() -> None:
            """
            Listen in a new namespace, and leave the entry.
            """
            if ctypes.CDLL(None).unshare(_CLONE_NEWNET):
                os._exit(9)
            stranger = Rendezvous(2, self.environment)
            stranger.bind()
            assert self.guids(stranger, "127.0.0.1") == []
            stranger.publish(SERVICE, "0.0.0.0")
            assert self.guids(stranger, "127.0.0.1") == [2]
            assert not any(map(addresses.isLocalAddress, own))
            os._exit(0)

        status = runForked(child)
        if status == 9:
            self.skipTest("may not make a network namespace")
        self.assertEqual(status, 0)
        self.assertEqual(len(self.names("svc-")), 2)
        self.assertEqual(self.guids(server, "127.0.0.1"), [1])

    def test_shedRoot(self) -> None:
        """
        A process that stops being root is told so by name; its successor has
        the same services in the new user's directory, and root's clients still
        find the old ones.
        """
        self.patch(rundirectory, "SESSION_BASE", self.path("none"))
        self.patch(rundirectory, "TEMPORARY_BASE", self.path("tmp", 0o1777))
        reading, writing = os.pipe()

        def child() -> None:
            """
            Listen as root, become nobody, follow.
            """
            old = Rendezvous(1, {})
            listener = old.bind()
            old.publish(SERVICE, "0.0.0.0")
            assert old.successor() is None
            old.checkOwner()
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            for call in (old.checkOwner, lambda: old.publish(SERVICE, "::"), old.hcas):
                self.assertIn("user 65534 now", str(self.assertRaises(RunDirectoryError, call)))
            new = old.successor()
            assert new is not None
            assert new.namespace == old.namespace != 0
            self.assertEqual((new.uid, new.guid), (NOBODY, 1))
            self.assertEqual([entry.guid for entry in new.lookup(SERVICE, "127.0.0.1")], [1])
            assert old.allows(0) and not new.allows(0) and new.allows(NOBODY)
            os.write(writing, b"!")
            listener.setblocking(True)
            listener.accept()
            new.close()
            old.close()

        pid = fork(child)
        self.assertEqual(os.read(reading, 1), b"!")
        os.close(reading)
        os.close(writing)
        client = self.hca(2, {})
        client.connect(client.lookup(SERVICE, "127.0.0.1")[0]).close()
        _, status = os.waitpid(pid, 0)
        self.assertEqual(status, 0)
        self.assertEqual(os.listdir(self.path(f"tmp/twisted_ib-{NOBODY}")), ["lock"])
        client.publish(SERVICE, "0.0.0.0")  # what it could not remove


class QueryTests(RendezvousTestCase):
    """
    Asking an HCA.
    """

    def setUp(self) -> None:
        """
        An HCA that is asked, and who asks.
        """
        super().setUp()
        self.server = self.hca(1)
        self.search = Search(self.environment)
        self.addCleanup(self.search.close)
        (self.entry,) = self.search.hcas()

    def answer(self, reply: bytes | None, timeout: float = 5.0) -> object:
        """
        @param reply: what the HCA sends; None to send nothing.
        @return: what comes of asking.
        """
        listener = self.server.bind()

        def serve() -> None:
            """
            Accept, check the query, reply.
            """
            select.select([listener], [], [], 5)
            pair, _ = listener.accept()
            with pair:
                pair.settimeout(5)
                heard.append(pair.recv(1000))
                if reply is not None:
                    pair.send(reply)
                pair.recv(1000)

        heard: list[bytes] = []
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            return ask(self.search, self.entry, timeout)
        finally:
            thread.join()
            self.assertEqual(heard, [handshake.Query().pack()])

    def test_answered(self) -> None:
        """
        An answer comes back whole.
        """
        content = {"hca_id": "x" * 10000, "in_use": {"qp": 3}}
        self.assertEqual(self.answer(handshake.Answer(content).pack()), content)

    def test_silent(self) -> None:
        """
        Silence ends in time, and so does a connection that nobody accepts.
        """
        began = time.monotonic()
        self.assertEqual(self.answer(None, 0.05), None)
        self.assertEqual(ask(self.search, self.entry, 0.05), None)
        self.assertTrue(time.monotonic() - began < 5)

    def test_nonsense(self) -> None:
        """
        So does everything else that is no answer.
        """
        for reply in (b"x", handshake.Query().pack(), handshake.Refuse(1, "no").pack(), b"y" * 20000):
            self.assertEqual(self.answer(reply), None)

    def test_dead(self) -> None:
        """
        A dead one is an error by name.
        """
        self.server.close()
        self.assertRaises(NoListenerError, ask, self.search, self.entry)

    def test_stranger(self) -> None:
        """
        So is one of a user who is not let in; it is not even asked.
        """
        self.patch(self.search, "allows", lambda uid: False)
        self.assertRaises(PeerIdentityError, ask, self.search, self.entry)


class AddressTests(RunDirectoryTestCase):
    """
    L{addresses}.
    """

    def test_local(self) -> None:
        """
        Loopback, wildcards and what the interfaces have.
        """
        own = addresses.localAddresses()
        self.assertIn("127.0.0.1", own)
        for text in (*own, "127.1.2.3", "::1", "0.0.0.0", "::", "", "::ffff:127.0.0.1"):
            self.assertTrue(addresses.isLocalAddress(text), text)
        self.assertEqual(descriptors(), self.before)

    def test_notLocal(self) -> None:
        """
        Documentation networks, multicast, broadcast, a bare link-local.
        """
        for text in (
            "192.0.2.250",
            "8.8.8.8",
            "224.0.0.1",
            "255.255.255.255",
            "2001:db8::1",
            "ff02::1",
            "fe80::1",
            "::ffff:8.8.8.8",
        ):
            self.assertFalse(addresses.isLocalAddress(text), text)
        self.assertEqual(descriptors(), self.before)

    def test_notAnAddress(self) -> None:
        """
        Names are not resolved here.
        """
        for text in ("localhost", "1.2.3", "x::"):
            self.assertRaises(ValueError, addresses.isLocalAddress, text)

    def test_normalise(self) -> None:
        """
        One spelling each.
        """
        for text, one in {
            "": "0.0.0.0",
            "1.2.3.4": "1.2.3.4",
            "::FFFF:1.2.3.4": "1.2.3.4",
            "0:0::1": "::1",
            "FE80::0001%7": "fe80::1%7",
        }.items():
            self.assertEqual(addresses.normalise(text), one)

    def test_listIsBounded(self) -> None:
        """
        A host with very many addresses.
        """
        self.patch(limits, "LOCAL_ADDRESSES", 1)
        self.assertEqual(len(addresses.localAddresses()), 1)

    def test_noNamespaces(self) -> None:
        """
        Where there are none there is one, number 0.
        """

        def deny(path: object, **options: object) -> os.stat_result:
            """
            As without /proc.
            """
            raise FileNotFoundError(2, "No such file or directory")

        self.assertEqual(addresses.namespaceInode(), os.stat("/proc/self/ns/net").st_ino)
        self.patch(os, "stat", deny)
        self.assertEqual(addresses.namespaceInode(), 0)
