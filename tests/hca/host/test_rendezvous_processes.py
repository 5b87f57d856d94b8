"""
Tests for L{twisted_ib.hca.host.rendezvous} with several processes and users.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
from collections.abc import Callable
from functools import partial
from unittest import mock, skipIf

from tests.hca.host.test_rendezvous import SDP, SERVICE, RendezvousTestCase
from tests.hca.host.test_rundirectory import NOBODY, UID
from tests.support.descriptors import descriptors, fork, runForked
from twisted_ib.errors import NoListenerError, RunDirectoryError, ServiceInUseError
from twisted_ib.hca.host import addresses, entries, libc, rendezvous, rundirectory, search
from twisted_ib.hca.host.rendezvous import Rendezvous

_CLONE_NEWNET = 0x40000000


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
        The entries of a killed process are reclaimed by the next process, and only then.
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
        self.patch(entries, "RECLAIMED_ENTRIES", 8)
        counts = []
        for guid in range(2, 6):
            self.hca(guid)
            counts.append(len(self.names("svc-")) + len(self.names("hca-")) - guid)
        self.assertEqual(counts[0], 12)
        self.assertEqual(counts[-1], 0)

    def test_looksUnderLock(self) -> None:
        """
        A process that opens its HCA looks at living ones without the lock, which hundreds may want at once
        (issue 16, point 20); under it, it looks again at those that seemed dead.
        """
        self.hca(1)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as bound:
            bound.bind(os.path.join(self.run_, f"hca-{9:016x}"))
        looked: list[tuple[str, bool]] = []
        real = entries.isBound

        def isBound(directory: rundirectory.RunDirectory, name: str) -> bool:
            """
            Tell whether the lock is held meanwhile.
            """
            with open(os.path.join(self.run_, "lock")) as file:
                looked.append((name[-1], not libc.tryLock(file.fileno())))
            return real(directory, name)

        self.patch(entries, "isBound", isBound)
        self.hca(2)
        self.assertEqual(sorted(looked), [("1", False), ("9", False), ("9", True)])
        self.assertEqual(self.names("hca-"), [f"hca-{guid:016x}" for guid in (1, 2)])

    def test_boundMeanwhile(self) -> None:
        """
        An HCA that seemed dead without the lock, and lives under it, stays, and so do its services.
        """
        self.hca(1)
        living = self.hca(9)
        living.publish(SERVICE, "0.0.0.0")
        looks: list[str] = []
        real = entries.isBound

        def isBound(directory: rundirectory.RunDirectory, name: str) -> bool:
            """
            It is bound between two looks.
            """
            looks.append(name)
            return real(directory, name) and looks.count(living.name) != 1

        self.patch(entries, "isBound", isBound)
        client = self.hca(2)
        self.assertEqual(self.guids(client, "127.0.0.1"), [9])

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
        A forked child cannot use its parent's rendezvous, by name, and its
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
            # Fewer, if other tests left devices open: a child closes those too.
            assert descriptors() <= self.before, os.listdir("/proc/self/fd")
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
        self.patch(search, "searches", set())

        def child() -> None:
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
        A user who is in the list finds our HCA and we find his; he cannot
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
        self.assertEqual(
            server.hidden(SERVICE, "127.0.0.1"), "its owner, user 1234, is not in TWISTED_IB_ALLOW_UIDS"
        )
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

    def test_strangersAside(self) -> None:
        """
        A stranger's entry keeps nobody from listening, not even one that was an allowed user's, or was there,
        when the directory was read.
        """
        server, other = self.hca(1), self.hca(2)
        server.publish(SERVICE, "127.0.0.1")
        self.assertRaises(ServiceInUseError, other.publish, SERVICE, "0.0.0.0")
        names = [*other._home.names(), entries.serviceName(SERVICE, server.namespace, "127.0.0.2")]
        os.lchown(os.path.join(self.run_, *self.names("svc-")), 1234, 1234)
        self.patch(rundirectory.RunDirectory, "names", lambda directory: names)
        other.publish(SERVICE, "0.0.0.0")

    def test_leftByOther(self) -> None:
        """
        An entry of another user's dead process that we may not remove is an error that says so.
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

    def test_leftByOtherInNumbers(self) -> None:
        """
        However many entries an allowed user has left at a service, few of their processes are looked for
        before the service is refused, by an error that says so; other services are not concerned.
        """
        server = self.hca(1)
        dead = ",".join(entries.targetName(f"hca-{guid:016x}", 7) for guid in range(2, 66))
        for number in range(1, 100):
            name = entries.serviceName(SERVICE, server.namespace, f"127.0.1.{number}")
            os.symlink(dead, os.path.join(self.run_, name))
            os.lchown(os.path.join(self.run_, name), NOBODY, NOBODY)
        probes: list[str] = []

        def isServed(directory: object, name: str) -> bool:
            probes.append(name)
            return False

        self.patch(rendezvous, "isServed", isServed)
        self.patch(rundirectory.RunDirectory, "remove", lambda directory, name: False)
        error = self.assertRaises(ServiceInUseError, server.publish, SERVICE, "0.0.0.0")
        self.assertIn(f"user {NOBODY} has left", str(error))
        self.assertEqual(len(probes), rendezvous.FOREIGN_TARGETS)
        server.publish(SERVICE, "127.0.0.1")
        server.publish(SERVICE + 1, "0.0.0.0")

    def test_othersEntriesAside(self) -> None:
        """
        What an allowed user has left does not keep a new HCA from removing what we have; of his entries it
        looks at so many, without the lock and again under it.
        """
        self.patch(entries, "RECLAIMED_ENTRIES", 4)
        for number in range(60):
            path = os.path.join(self.run_, f"svc-{number:016x}-1-::")
            os.symlink("hca-0000000000000009", path)
            if number % 20:
                os.lchown(path, NOBODY, NOBODY)
        with mock.patch.object(entries, "targetsOf", wraps=entries.targetsOf) as read:
            self.hca(1)
        self.assertEqual(read.call_count, 2 * 7)
        owners = [os.lstat(os.path.join(self.run_, name)).st_uid for name in self.names("svc-")]
        self.assertEqual(owners, [NOBODY] * 53)

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

    def test_hiddenByNamespace(self) -> None:
        """
        A service of a living process of another network namespace is not found, and that is said; of a dead
        one it is not.
        """
        client, server = self.hca(1), self.hca(2)
        server.namespace += 1
        server.publish(SERVICE, "0.0.0.0")
        self.assertEqual(self.guids(client, "127.0.0.1"), [])
        self.assertEqual(client.hidden(SERVICE, "127.0.0.1"), "it listens in another network namespace")
        self.assertEqual(client.hidden(SERVICE + 1, "127.0.0.1"), "")
        entry = server.name
        os.rename(self.path(f"run/{entry}"), self.path("run/dead"))
        self.assertEqual(client.hidden(SERVICE, "127.0.0.1"), "")
        os.rename(self.path("run/dead"), self.path(f"run/{entry}"))

    def test_shedRoot(self) -> None:
        """
        A process that stops being root is told so by name; its successor has
        the same services and groups in the new user's directory, and root's clients still
        find the old ones.
        """
        self.patch(rundirectory, "SESSION_BASE", self.path("none"))
        self.patch(rundirectory, "TEMPORARY_BASES", (self.path("tmp", 0o1777),))
        reading, writing = os.pipe()

        def child() -> None:
            """
            Listen as root, become nobody, follow.
            """
            old = Rendezvous(1, {})
            listener = old.bind()
            old.publish(SERVICE, "0.0.0.0")
            old.join(0xFF12 << 112)
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
            self.assertEqual(new.members(0xFF12 << 112), (1,))
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
