"""
Several processes on one address: each has what is its own.
"""

from __future__ import annotations

import codecs
import errno
import fcntl
import os
import select
import shutil
import signal
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from subprocess import run
from types import FrameType, SimpleNamespace
from typing import Any
from unittest import SkipTest, mock
from zlib import crc32

from twisted.trial.unittest import SynchronousTestCase

from benchmarks.counting import steps
from tests.contracts.groups import DatagramSide
from tests.hca.fabric.roce.test_devices import PORT, End
from tests.hca.fabric.roce.test_orphans import orphan
from tests.support.calls import requireReplaceable
from tests.support.commands import PATH
from tests.support.descriptors import descriptors, descriptorsBefore, fork, runForked
from tests.support.ownaddress import ownAddress, ownGroup
from tests.support.rundirectory import ownRunDirectory
from tests.support.waiting import HANG_SECONDS, waitUntil
from twisted_ib import limits
from twisted_ib.drive.sleeper import awaitReady
from twisted_ib.errors import DeviceError, NoRouteError, ServiceInUseError
from twisted_ib.hca.base.operation import ID_SHIFT, QPN_SHIFT
from twisted_ib.hca.connection.rdmacm import PortSpace, gidOf
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.device.form import compiledModules
from twisted_ib.hca.fabric.roce import orphans, portgroup, roce
from twisted_ib.hca.fabric.roce.orphans import MEMORY_BYTES, ConnectionRegister
from twisted_ib.hca.fabric.roce.packet import PacketFabric
from twisted_ib.hca.fabric.roce.roce import RoCELink
from twisted_ib.hca.fabric.roce.slots import SLOTS
from twisted_ib.hca.host import libc, rundirectory
from twisted_ib.hca.host.rundirectory import openDirectories
from twisted_ib.hca.mad.vendor import OPENIB, PING
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.requests import SendOpcode
from twisted_ib.hca.services.address import AddressVector
from twisted_ib.hca.wire.headers import BTH
from twisted_ib.hca.wire.icrcflow import ICRCState
from twisted_ib.hca.wire.mad.classes import OrganizationHeader
from twisted_ib.hca.wire.mad.mad import GET, SET, Mad

#: inotify(7): a file was opened.
_IN_OPEN = 0x20
HANDED = "packets_handed_on", "packets_taken_over", "packets_unknown_qp"
#: With a file system of 1 MiB as its run directory, and an address.
_FULL = """
import os
from twisted_ib import limits
from twisted_ib.errors import DeviceError
from twisted_ib.hca.fabric.roce.orphans import Orphan
from twisted_ib.hca.fabric.roce.roce import RoCELink
directory, address = sys.argv[1:]
def fill(left=0):
    with open(os.path.join(directory, "full"), "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass
        file.truncate(file.tell() - left)
def failed():
    try:
        RoCELink(address, isShared=True)
    except DeviceError as error:
        print(error)
fill()
failed()
os.unlink(os.path.join(directory, "full"))
link = RoCELink(address, isShared=True)
fill(65536)
add = link.group.connections.add
print(sum(add(Orphan("192.0.2.1", n, n, n, n, 0xFFFF)) for n in range(1, limits.PACKET_CONNECTIONS + 1)))
failed()
link.close()
"""
#: With an address: the pages faulted in by 20 windows of messages, before a device is open and while it is.
_FAULTS = """
import resource, time
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.fabric.roce.packet import PacketFabric
from twisted_ib.hca.fabric.roce.roce import RoCELink
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        [bytes(message) for message in [source] * 16]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
def make(owner, guid, clock):
    return PacketFabric(owner, guid, clock, RoCELink(sys.argv[1]))
source = memoryview(bytes(65536))
before = faults()
device = Device("test", time.monotonic, make, capture="")
faults()
print(before, faults())
device.close()
"""
#: How many processes share an address.
PROCESSES = 16
#: How often a process is killed.
DEATHS = 20
#: Another user.
NOBODY = 65534


class GroupTests(SynchronousTestCase):
    """
    The sockets of an address.
    """

    def setUp(self) -> None:
        """
        Use a run directory of our own.
        """
        self.directory = ownRunDirectory(self)
        self.address = ownAddress(5)

    def link(self, address: str = "") -> RoCELink:
        """
        @return: one process's sockets, closed after the test.
        """
        link = RoCELink(address or self.address, isShared=True)
        self.addCleanup(link.close)
        return link

    def test_slots(self) -> None:
        """
        Each takes the lowest slot that is free; the first can end before the others.
        """
        one, two = self.link(), self.link()
        self.assertEqual((one.group.slot, two.group.slot), (1, 2))
        self.assertFalse(two.group.isAlone())
        one.close()
        self.assertTrue(two.group.isAlone())
        self.assertEqual(self.link().group.slot, 1)
        self.assertEqual(self.link().group.slot, 3)

    def test_waiting(self) -> None:
        """
        What waits for the process counts, at its own slot as at nobody's.
        """
        link = self.link()
        for slot in 0, 1:
            self.assertEqual(link.waiting(), 0)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
                stranger.sendto(bytes([4, 0, 255, 255, 0, slot << 2]) + bytes(500), (self.address, 4791))
            self.assertGreater(link.waiting(), 506)
            self.assertEqual(len(link.group.sockets[slot].recv(1000)), 506)
        # Requests come again: of those many would be too late.
        nobodys = link.group.sockets[0].getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        self.assertLessEqual(nobodys, 2 * roce.PACKET_REQUESTS)

    def test_killed(self) -> None:
        """
        The slot of a process that is killed is free, and the others' sockets stay theirs.
        """
        receiver, sender = os.pipe()
        child = os.fork()
        if not child:
            link = RoCELink(self.address, isShared=True)
            os.write(sender, bytes([link.group.slot]))
            time.sleep(600)
            os._exit(0)
        self.addCleanup(os.close, receiver)
        self.addCleanup(os.close, sender)
        self.assertEqual(os.read(receiver, 1), b"\x01")
        two = self.link()
        self.assertEqual(two.group.slot, 2)
        os.kill(child, 9)
        os.waitpid(child, 0)
        self.assertTrue(two.group.isAlone())
        self.assertEqual(self.link().group.slot, 1)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.sendto(bytes([4, 0, 255, 255, 0, 2 << 2, 0, 1]), (self.address, 4791))
        self.assertTrue(select.select([two.group.main], [], [], 10)[0])

    def test_lateUnlocked(self) -> None:
        """
        The kernel comes late to the lock of a process that was killed, and nobody closes the file after that:
        its connections are ended.
        """
        requireReplaceable(portgroup.PortGroup, "_serve")
        group, dying = self.link().group, self.link().group
        dying.connections.add(orphan(1))
        # The thread's work is done here.
        group._end(group._thread)
        os.read(group._wake, 8)
        now, free = 0.0, 2.5

        class Poll:
            """
            Time that passes in no time.
            """

            def register(poll, fd: int, events: int = 0) -> None:
                """
                What happens is said below.
                """

            def poll(poll, timeout: float | None) -> list[tuple[int, int]]:
                """
                The file is closed first; the time of the others is over when the connections are known.
                """
                nonlocal now
                if not now:
                    now = 0.001
                    os.close(os.open(f"/proc/self/fd/{group._memory}", os.O_RDWR))
                    return [(group._watch, select.POLLIN)]
                if group._orphans:
                    return [(group._wake, select.POLLIN)]
                assert timeout is not None, "nobody looks any more"
                now += timeout / 1000
                if now >= free:
                    portgroup._lock(dying._own, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, dying.slot)
                return []

        self.patch(portgroup, "monotonic", lambda: now)
        self.patch(portgroup, "select", SimpleNamespace(poll=Poll, POLLIN=select.POLLIN))
        group._serve(group._listener)
        self.assertEqual([*group._orphans], [dying.slot])
        self.assertLessEqual(now, free + 1)

    def test_swept(self) -> None:
        """
        Who begins a group removes what those have left whose processes were killed, but for the latest, whose
        connections may be ended; what a living process has, or a stranger, stays, whatever it is called.
        """
        addresses = [ownAddress(number) for number in (6, 7, 8)]
        living = self.link()
        receiver, sender = os.pipe()
        child = os.fork()
        if not child:
            links = [RoCELink(each, isShared=True) for each in addresses]
            os.write(sender, bytes([len(links)]))
            time.sleep(600)
            os._exit(0)
        self.addCleanup(os.close, receiver)
        self.addCleanup(os.close, sender)
        os.read(receiver, 1)
        # As that of an address that ends so.
        plain = socket.socket(socket.AF_UNIX)
        self.addCleanup(plain.close)
        start = f"roce-{os.geteuid()}-{portgroup.namespaceInode()}-"
        plain.bind(os.path.join(self.directory, f"{start}127.0.0.2"))
        before = set(os.listdir(self.directory))
        files = {f"{start}{each}{end}" for each in addresses for end in ("", ".3")}
        self.assertLessEqual(files, before)

        def lost() -> set[str]:
            """
            Open and close another group.

            @return: what is no longer there.
            """
            self.link(ownAddress(9)).close()
            return before.difference(os.listdir(self.directory))

        self.patch(portgroup, "DEAD_GROUPS", 0)
        self.assertEqual(lost(), set())
        os.kill(child, 9)
        os.waitpid(child, 0)
        self.patch(portgroup, "SWEPT_ENTRIES", 0)
        self.assertEqual(lost(), set())
        self.patch(portgroup, "SWEPT_ENTRIES", 1024)
        self.patch(portgroup, "DEAD_GROUPS", 1)
        os.utime(os.path.join(self.directory, f"{start}{addresses[1]}.3"))
        latest = {each for each in files if addresses[1] in each}
        self.assertEqual(lost(), files - latest)
        self.patch(portgroup, "DEAD_GROUPS", 0)
        # One that another user may have made, who could say when it began, counts for nothing.
        path = os.path.join(self.directory, f"{start}{addresses[1]}.3")
        os.chmod(path, 0o640)
        self.assertEqual(lost(), files - latest)
        os.chmod(path, 0o600)
        self.assertEqual(lost(), files)
        self.assertEqual(self.link().group.slot, living.group.slot + 1)

    def test_drained(self) -> None:
        """
        Who takes a slot does not get what came for its last owner.
        """
        one, two = self.link(), self.link()
        two.close()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.sendto(bytes([4, 0, 255, 255, 0, 2 << 2, 0, 1]), (self.address, 4791))
        self.assertTrue(select.select([one.group.sockets[2]], [], [], 10)[0])
        two = self.link()
        self.assertEqual(two.group.slot, 2)
        self.assertEqual(select.select([two.group.main], [], [], 0)[0], [])

    def test_full(self) -> None:
        """
        There is a slot for each but one; the error says how many there are.
        """
        links = [self.link()]
        taken = [links[0].group._take(slot) for slot in range(2, SLOTS)]
        self.assertTrue(all(taken))
        error = self.assertRaises(DeviceError, self.link)
        self.assertIn("63 processes share this address", str(error))

    def test_elsewhere(self) -> None:
        """
        A process with another run directory, or that does not share the port, is told that it is taken, and
        no datagram goes astray; neither may share the port of the other.
        """
        one = self.link()
        self.assertIn("is taken", str(self.assertRaises(DeviceError, RoCELink, self.address)))
        ownRunDirectory(self)
        self.assertIn("is taken", str(self.assertRaises(DeviceError, self.link)))
        alone = RoCELink(ownAddress(6))
        self.addCleanup(alone.close)
        self.assertIn("is taken", str(self.assertRaises(DeviceError, self.link, ownAddress(6))))
        self.assertTrue(one.group.isAlone())

    def test_unmet(self) -> None:
        """
        A process that may not use its run directory cannot meet the others, and is told why.
        """
        os.makedirs(self.directory)
        os.chmod(self.directory, 0o755)
        self.link()
        error = str(self.assertRaises(DeviceError, self.link))
        self.assertIn(f"{self.address} is taken: another process has it, which this one cannot join", error)
        self.assertIn(f"{self.directory} has mode 0755", error)

    def test_users(self) -> None:
        """
        A process of another user is told whose the port is, also where both have one run directory; and so is
        this one by the other's.
        """
        if os.geteuid():
            raise SkipTest("needs root")
        # Its codec is loaded: somebody else may not read it.
        codecs.lookup("ascii")
        os.mkdir(self.directory)
        for path, mode in (os.path.dirname(self.directory), 0o711), (self.directory, 0o1777):
            os.chmod(path, mode)
        told, teller = os.pipe()
        self.addCleanup(os.close, told)

        def become() -> None:
            os.setgid(NOBODY)
            os.setuid(NOBODY)

        def ask() -> None:
            become()
            error = self.assertRaises(DeviceError, self.link)
            self.assertIn("a process of user 0 has it, and only those of one user share", str(error))

        def have() -> None:
            become()
            link = RoCELink(self.address, isShared=True)
            os.write(teller, b"+")
            signal.pause()
            link.close()

        one = self.link()
        self.assertEqual(runForked(ask), 0)
        one.close()
        child = fork(have)
        os.close(teller)
        try:
            self.assertEqual(os.read(told, 1), b"+")
            error = self.assertRaises(DeviceError, self.link)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        self.assertIn(f"a process of user {NOBODY} has it, and only those of one user share", str(error))

    def test_pauses(self) -> None:
        """
        Where others have the port, a process waits for less than 20 ms before it says so; where one of the
        group has just closed it, not at all.
        """
        pauses: list[float] = []
        self.patch(portgroup, "sleep", pauses.append)
        alone = RoCELink(self.address)
        self.assertIn("is taken", str(self.assertRaises(DeviceError, self.link)))
        self.assertEqual(pauses, sorted(set(pauses)))
        self.assertLess(sum(pauses), 0.02)
        self.assertLessEqual(portgroup.JOIN_SECONDS, 5)
        alone.close()
        pauses.clear()
        held: list[bool] = []

        class Last(socket.socket):
            """
            The last socket of a group that is closed.
            """

            def close(self) -> None:
                """
                See whether others can look for the group now.
                """
                found, _ = openDirectories(os.environ, os.geteuid(), False)
                fd = os.open("lock", os.O_RDONLY, dir_fd=found[0].fd)
                held.append(not libc.tryLock(fd))
                os.close(fd)
                found[0].close()
                super().close()

        one = self.link()
        one.group.sockets[-1] = Last(fileno=one.group.sockets[-1].detach())
        one.close()
        self.assertEqual(held, [True])
        self.link()
        self.assertEqual(pauses, [])

    def test_answersToItsEnd(self) -> None:
        """
        Who joins holds the directories' lock while it waits for an answer: a process that ends, and waits for
        that lock, still gives it.
        """
        # On a busy machine the thread that gives it may be late.
        self.patch(portgroup, "JOIN_SECONDS", HANG_SECONDS)
        one = self.link()
        opened = libc.inotify([(os.path.join(self.directory, "lock"), _IN_OPEN)])
        self.addCleanup(libc.endInotify, opened)
        ending = threading.Thread(target=one.close)
        with portgroup._directories() as (directory,):
            os.read(opened, 4096)
            ending.start()
            self.assertTrue(select.select([opened], [], [], HANG_SECONDS)[0])
            group = portgroup._ask(directory, one.group._name, self.address)
        ending.join()
        assert group is not None
        self.addCleanup(group.close)
        self.assertTrue(group.isAlone())

    def test_noThread(self) -> None:
        """
        Where no more threads may begin, the address is given up at once: not by waiting for the directories'
        lock, which who joins holds.
        """
        waits = mock.MagicMock()
        waits.return_value.__iter__.side_effect = AssertionError("it waits")
        self.patch(rundirectory, "_pauses", waits)
        self.patch(threading.Thread, "start", mock.Mock(side_effect=RuntimeError("can't start new thread")))
        self.assertRaises(RuntimeError, self.link)

    def test_silent(self) -> None:
        """
        Processes that do not answer are an error, not for ever.
        """
        self.patch(portgroup, "JOIN_SECONDS", 0.01)
        self.link().close()
        name = f"roce-{os.geteuid()}-{portgroup.namespaceInode()}-{self.address}"
        silent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(silent.close)
        silent.bind(os.path.join(self.directory, name))
        silent.listen()
        self.assertIn("did not answer", str(self.assertRaises(DeviceError, self.link)))

    def test_directoryFull(self) -> None:
        """
        Where the run directory's file system is full, it is said in one line who has no memory; a process
        that is there already goes on, with the connections that there is room for.
        """
        if shutil.which("unshare") is None:
            raise SkipTest("unshare of util-linux is not installed")
        os.mkdir(self.directory, 0o700)
        space = "unshare", "--user", "--map-root-user", "--mount", "sh", "-c"
        script = 'mount -t tmpfs -o size=1m,mode=700 none "$0" && exec "$@"'
        tried = run([*space, script, self.directory, "true"], capture_output=True, text=True)
        if tried.returncode:
            raise SkipTest(f"there may be no namespaces here: {tried.stderr.strip()}")
        command = sys.executable, "-c", PATH + _FULL, self.directory, self.address
        found = run([*space, script, self.directory, *command], capture_output=True, text=True)
        self.assertEqual(found.returncode, 0, found.stderr)
        none, some, other = found.stdout.splitlines()
        words = "no memory for what the processes of an address share: No space left on device"
        self.assertTrue(none.startswith(words), none)
        self.assertTrue(other.startswith(words), other)
        self.assertTrue(0 < int(some) < limits.PACKET_CONNECTIONS, some)

    def test_notAllocated(self) -> None:
        """
        A file system that allocates nothing beforehand will do.
        """

        def unsupported(fd: int, offset: int, length: int) -> None:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

        self.patch(os, "posix_fallocate", unsupported)
        self.assertEqual(self.link().group.slot, 1)

    def test_descriptors(self) -> None:
        """
        A closed link leaves no descriptor and no entry.
        """
        RoCELink(self.address, isShared=True).close()
        before = descriptorsBefore()
        one = RoCELink(self.address, isShared=True)
        two = RoCELink(self.address, isShared=True)
        one.close()
        two.close()
        two.close()
        self.assertEqual(descriptors(), before)
        self.assertEqual([name for name in os.listdir(self.directory) if name.startswith("roce")], [])


class DevicesTestCase(SynchronousTestCase):
    """
    Devices that share an address, and one of another.

    @cvar clock: their time.
    """

    clock = staticmethod(time.monotonic)

    def setUp(self) -> None:
        """
        Use a run directory of our own.
        """
        self.directory = ownRunDirectory(self)
        self.address = ownAddress(7)

    def device(self, address: str) -> Device:
        """
        @return: An HCA of an address, closed after the test.
        """

        def make(owner: Any, guid: int, clock: Callable[[], float]) -> PacketFabric:
            link = RoCELink(address, isShared=True)
            return PacketFabric(owner, guid, clock, link, group=link.group)

        device = Device("test", self.clock, make, capture="")
        self.addCleanup(device.close)
        return device

    def until(self, done: Callable[[], object], *devices: Device) -> None:
        """
        Serve devices.
        """

        def turn() -> None:
            for device in devices:
                device.progress()
                deadline = device.deadline()
                if deadline is not None and deadline <= self.clock():
                    device.tick(self.clock())

        waitUntil(done, turn)


class Silent(End):
    """
    An end that answers no request.
    """

    def connectionRequested(self, connection: Any, request: Any) -> None:
        """
        Note it.
        """
        connection.user = self
        self.log.append("requested")


class SharedTests(DevicesTestCase):
    """
    Each has what is its own.
    """

    def exchange(self, active: Device, passive: Device, *others: Device) -> None:
        """
        Connect, move data, disconnect; others read what they like meanwhile.
        """
        devices = (*others, active, passive)
        one, two = End(active, 1 << 20), End(passive, 1 << 20)
        there = passive.fabric.address
        service = passive.listen(PortSpace.TCP, there, PORT, two)
        active.connect(PortSpace.TCP, there, PORT, one)
        self.until(lambda: one.log and two.log, *devices)
        self.assertEqual((one.log, two.log), (["replied"], ["established"]))
        data = bytes(range(256)) * 1000
        one.memory[: len(data)] = data
        two.receive(1, 0, 1 << 20)
        one.send(2, SendOpcode.SEND, 0, len(data))
        self.until(lambda: two.completions, *devices)
        self.assertEqual(bytes(two.memory[: len(data)]), data)
        active.disconnect(one.connection)
        self.until(lambda: "disconnected" in one.log and "disconnected" in two.log, *devices)
        service.close()

    def test_numbers(self) -> None:
        """
        Queue pair numbers and communication ids begin with the slot.
        """
        one, two = self.device(self.address), self.device(self.address)
        for slot, device in (1, one), (2, two):
            self.assertEqual(device.fabric.slot, slot)
            numbers = {device._newNumber() for _ in range(200)}
            self.assertEqual({number >> QPN_SHIFT for number in numbers}, {slot})
            self.assertEqual(len(numbers), 200)
            ids = {device.cm._newID() for _ in range(200)}
            self.assertEqual({number >> ID_SHIFT for number in ids}, {slot})
            self.assertEqual(len(ids), 200)

    def test_service(self) -> None:
        """
        A port of one is taken for the other, until it is withdrawn; a free one is free in both.
        """
        one, two = self.device(self.address), self.device(self.address)
        service = one.listen(PortSpace.TCP, "", PORT, End(one, 64))
        self.assertRaises(ServiceInUseError, two.listen, PortSpace.TCP, self.address, PORT, End(two, 64))
        service.close()
        two.listen(PortSpace.TCP, self.address, PORT, End(two, 64))

    def test_exchange(self) -> None:
        """
        Each of three listens and connects, to another address and to each other, whoever reads the REQ.
        """
        far = self.device(ownAddress(8))
        near = [self.device(self.address) for _ in range(3)]
        for device in near:
            others = [each for each in near if each is not device]
            self.exchange(far, device, *others)
            self.exchange(device, far, *others)
            self.exchange(device, others[0], others[1], far)
        handed = sum(device.counters["packets_handed_on"] for device in near)
        self.assertGreaterEqual(handed, 1)
        self.assertEqual(handed, sum(device.counters["packets_taken_over"] for device in near))
        for device in (far, *near):
            bad = {name: n for name, n in device.counters.items() if name.startswith("packets_un")}
            self.assertEqual(bad, {})

    def test_agents(self) -> None:
        """
        An agent's answer reaches the process that has asked, whichever reads it.
        """
        far = self.device(ownAddress(8))
        near = [self.device(self.address) for _ in range(2)]
        question = Mad(PING, 1, GET, 7, 0, header=OrganizationHeader(organization=OPENIB))
        shared = near[0].fabric.group.sockets[0]
        answers: list[Any] = []
        for device in near:
            agent = device.mads.register(PING, 1, (SET,), print)
            for reader in near:
                agent.send(AddressVector(far.gid), question, answers.append)
                self.until(lambda: select.select([shared], [], [], 0)[0], far)
                data, (source, port) = shared.recvfrom(4096)
                reader.fabric.arrived(source, port, self.address, data, 0, len(data), len(data))
                self.until(lambda: answers, device)
                self.assertEqual(answers.pop().mad.status, 0)
            agent.close()
        counts = [each.counters[name] for each in near for name in HANDED]
        self.assertEqual(counts, [1, 1, 0, 1, 1, 0])

    def test_givenUp(self) -> None:
        """
        A peer that gives up before it is answered is heard by the process that it has asked, whichever reads
        that.
        """
        far = self.device(ownAddress(8))
        near = [self.device(self.address) for _ in range(3)]
        shared = near[0].fabric.group.sockets[0]
        asked = Silent(near[2], 64)
        near[2].listen(PortSpace.TCP, self.address, PORT, asked)
        for reader in near:
            caller = End(far, 64)
            far.connect(PortSpace.TCP, self.address, PORT, caller)
            self.until(lambda: asked.log, far, near[2])
            self.assertEqual(asked.log, ["requested"])
            caller.connection.disconnect(far.clock())
            self.until(lambda: select.select([shared], [], [], 0)[0], far)
            data, (source, port) = shared.recvfrom(4096)
            reader.fabric.arrived(source, port, self.address, data, 0, len(data), len(data))
            self.until(lambda: len(asked.log) > 1, near[2])
            self.assertEqual(asked.log, ["requested", "rejected 4"])
            asked.log.clear()

    def test_joined(self) -> None:
        """
        Of datagrams that UDP_GRO has joined each goes to its own process.
        """
        one, two = self.device(self.address), self.device(self.address)
        source = ownAddress(8)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
            peer.bind((source, 0xC777))
            peer.setsockopt(socket.IPPROTO_IP, 10, 3)  # IP_MTU_DISCOVER, IP_PMTUDISC_PROBE
            flow = ICRCState(gidOf(source), gidOf(self.address), 0xC777)
            datagrams = []
            for place, slot in enumerate((2, 1, 2, 1)):
                body = BTH.pack(4, 0, 0xFFFF, slot << QPN_SHIFT | 77, 0) + bytes(100)
                check = crc32(body, flow.state(len(body) + 4, place))
                datagrams.append(body + check.to_bytes(4, "little"))
            size = struct.pack("=H", len(datagrams[0]))
            peer.sendmsg(datagrams, [(17, 103, size)], 0, (self.address, 4791))
        self.until(lambda: one.counters["packets_unknown_qp"] == 2, one, two)
        self.assertEqual([each.counters[name] for each in (one, two) for name in HANDED], [0, 2, 2, 2, 0, 2])

    def test_forged(self) -> None:
        """
        Packets with made-up queue pair numbers reach the process of their slot alone: none is handed on, and
        those of a slot that nobody has are nobody's.
        """
        devices = [self.device(self.address) for _ in range(3)]
        source, counted = ownAddress(8), [0] * (len(devices) + 1)
        peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(peer.close)
        peer.bind((source, 0))
        flow = ICRCState(gidOf(source), gidOf(self.address), peer.getsockname()[1])

        def found() -> list[int]:
            return [each.counters["packets_unknown_qp"] for each in devices]

        for number in range(1000):
            slot = number % 4 + 1
            body = BTH.pack(4, 0, 0xFFFF, slot << QPN_SHIFT | 1000 + number, 0) + bytes(100)
            check = crc32(body, flow.state(len(body) + 4, 0))
            peer.sendto(body + check.to_bytes(4, "little"), (self.address, 4791))
            counted[slot - 1] += 1
            if not number % 50:
                self.until(lambda: found() == counted[:3], *devices)
        self.until(lambda: found() == counted[:3], *devices)
        self.assertEqual(counted, [250] * 4)
        self.assertEqual([each.counters[name] for each in devices for name in HANDED[:2]], [0] * 6)

    def neighbours(self, count: int) -> list[int]:
        """
        @return: so many processes, which have the address.
        """
        children = []
        for _ in range(count):
            receiver, sender = os.pipe()
            child = os.fork()
            if not child:
                try:
                    link = RoCELink(self.address, isShared=True)
                    os.write(sender, bytes([link.group.slot]))
                    signal.pause()
                finally:
                    os._exit(1)
            children.append(child)
            os.close(sender)
            self.assertEqual(os.read(receiver, 1), bytes([len(children)]))
            os.close(receiver)
        return children

    def spent(self, neighbours: int, mebibytes: int = 4) -> dict[str, int]:
        """
        @return: the system calls of an RDMA WRITE of 1 MiB, several times, to a process with others on its
            address, both ends together, by name, the packets sent, and the bytecodes.
        """
        children = self.neighbours(neighbours)
        far, near = self.device(ownAddress(8)), self.device(self.address)
        one, two = End(far, 1 << 20), End(near, 1 << 20)
        near.listen(PortSpace.TCP, self.address, PORT, two)
        far.connect(PortSpace.TCP, self.address, PORT, one)
        self.until(lambda: one.log and two.log, far, near)
        remote = {"remoteAddress": two.region.address, "remoteKey": two.region.remoteKey}

        def write() -> None:
            for number in range(mebibytes):
                one.send(number, SendOpcode.RDMA_WRITE, 0, 1 << 20, **remote)
                self.until(lambda: one.completions, far, near)
                self.assertEqual(one.done(), [(number, WCStatus.SUCCESS)])

        write()
        write()
        calls: Counter[str] = Counter()

        def see(frame: FrameType, event: str, argument: Any) -> None:
            name = getattr(argument, "__qualname__", "")
            if event == "c_call" and name.startswith(("KernelSocket.", "epoll.")):
                calls[name] += 1

        before = far.fabric.packetsSent
        sys.setprofile(see)
        try:
            write()
        finally:
            sys.setprofile(None)
        calls["packets"] = far.fabric.packetsSent - before
        calls += steps(write)
        self.assertEqual(near.counters["packets_handed_on"], 0)
        for device in (far, near):
            device.close()
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        return calls

    def test_neighbours(self) -> None:
        """
        A flow costs the same system calls and bytecodes, and as many packets, with others on the address as
        without.
        """
        if compiledModules():
            raise SkipTest("compiled modules: their calls are not counted")
        # A process that waits for a processor acknowledges late, and packets are sent again.
        self.patch(self, "clock", lambda: 1.0)
        alone = self.spent(0)
        # 18 messages for each MiB.
        self.assertEqual(alone["packets"], 4 * 18)
        self.assertGreater(alone["bytecodes"], 0)
        self.assertEqual(self.spent(PROCESSES - 1), alone)

    def test_group(self) -> None:
        """
        A multicast datagram comes to each process that has joined its group, once, and to no other.
        """
        far = self.device(ownAddress(8))
        near = [self.device(self.address) for _ in range(3)]
        group = int.from_bytes(gidOf(ownGroup(7)), "big")
        sender, sides = DatagramSide(far), [DatagramSide(device) for device in near]
        try:
            for side in sides[:2]:
                side.device.paths.attach(side.qp, group)
        except NoRouteError as error:
            raise SkipTest(str(error)) from None
        sender.tell(sender.handle(group), 0xFFFFFF, b"all")
        if far.counters["packets_unsendable"]:
            raise SkipTest("no multicast over the loopback interface here")
        heard: list[list[tuple[int, bytes]]] = [[], [], []]

        def came() -> bool:
            for side, of in zip(sides, heard, strict=True):
                of += side.heard()
            return all(heard[:2])

        self.until(came, far, *near)
        sides[0].device.paths.detach(sides[0].qp, group)
        sender.tell(sender.handle(group), 0xFFFFFF, b"again")
        self.until(lambda: came() and len(heard[1]) > 1, far, *near)
        one, two = ((sender.qp.number, data) for data in (b"all", b"again"))
        self.assertEqual(heard, [[one], [one, two], []])


class HeapTests(SynchronousTestCase):
    """
    The memory of copies of what is on its way.
    """

    def test_kept(self) -> None:
        """
        Memory of a window of messages is not given back to the kernel, and faulted in anew, for each window.
        """
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
        command = sys.executable, "-c", PATH + _FAULTS, ownAddress(7)
        found = run(command, capture_output=True, text=True, env=environment, timeout=HANG_SECONDS)
        self.assertEqual(found.returncode, 0, found.stderr)
        before, after = map(int, found.stdout.split())
        self.assertLess(after, 100, before)


class Peer(End):
    """
    One end of a connection in a process that forks.
    """

    def forked(self) -> None:
        """
        In the child, which has ends of its own.
        """


class ManyTests(DevicesTestCase):
    """
    Many processes on one address.
    """

    def echo(self, port: int, report: int) -> None:
        """
        Send back what comes, until killed.

        @param report: where the slot's number is written when it listens.
        """
        device = self.device(self.address)
        end = End(device, 64)
        device.listen(PortSpace.TCP, self.address, port, end)
        os.write(report, bytes([device.fabric.slot]))
        self.until(lambda: end.log, device)
        end.receive(1, 0, 2)
        while True:
            for number, _ in end.done():
                if number == 1:
                    end.send(2, SendOpcode.SEND, 0, 2)
                else:
                    end.receive(1, 0, 2)
            device.progress()
            deadline = device.deadline()
            left = None if deadline is None else deadline - time.monotonic()
            if not end.completions and (left is None or left > 0):
                awaitReady(device.fabric.link.fileno(), left)
            device.tick(time.monotonic())

    def kill(self, child: int) -> None:
        """
        Kill a process, if it still lives.
        """
        if child in self.children:
            self.children.remove(child)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    def test_processes(self) -> None:
        """
        Each of them has a connection. One after the other is killed, the first one first, while all send; the
        others lose nothing.
        """
        self.children: list[int] = []
        far = self.device(ownAddress(8))
        ends: list[tuple[int, Peer]] = []
        for number in range(PROCESSES):
            receiver, sender = os.pipe()
            self.addCleanup(os.close, receiver)
            child = os.fork()
            if not child:
                try:
                    self.echo(PORT + number, sender)
                finally:
                    os._exit(1)
            self.children.append(child)
            self.addCleanup(self.kill, child)
            os.close(sender)
            self.assertEqual(os.read(receiver, 1), bytes([number + 1]))
            end = Peer(far, 64)
            end.port = PORT + number
            far.connect(PortSpace.TCP, self.address, end.port, end)
            self.until(lambda end=end: end.log, far)
            ends.append((child, end))
        for turn in range(PROCESSES):
            for number, (_, end) in enumerate(ends[turn:]):
                data = bytes([turn, number])
                end.memory[:2] = data
                end.receive(1, 2, 2)
                end.send(2, SendOpcode.SEND, 0, 2)
            self.kill(ends[turn][0])
            for number, (_, end) in enumerate(ends[turn + 1 :], 1):
                self.until(lambda end=end: len(end.completions) == 2, far)
                self.assertEqual({status for _, status in end.done()}, {WCStatus.SUCCESS})
                self.assertEqual(bytes(end.memory[2:4]), bytes([turn, number]))


class Dying(End):
    """
    The end of a process that is killed when it has sent its REP.
    """

    def connectionRequested(self, connection: Any, request: Any) -> None:
        """
        The last that it does.
        """
        super().connectionRequested(connection, request)
        os.kill(os.getpid(), signal.SIGKILL)


class Calling(End):
    """
    The end of a process that is killed when it has sent its REQ.
    """

    def pathReady(self, path: Any) -> None:
        """
        The last that it does.
        """
        super().pathReady(path)
        os.kill(os.getpid(), signal.SIGKILL)


class Hearing(End):
    """
    That of one that is killed when it has read the REP.
    """

    def replied(self, connection: Any, reply: Any) -> None:
        """
        The last that it does.
        """
        os.kill(os.getpid(), signal.SIGKILL)


class DeathTests(DevicesTestCase):
    """
    A process is killed that has a connection, to a peer that is idle.
    """

    def serve(self, report: int, answers: bool) -> None:
        """
        Be a server until killed.

        @param report: where an octet is written when it listens, another when a connection is open, and one
            when a message has been answered.
        """
        device = self.device(self.address)
        end = End(device, 64)
        device.listen(PortSpace.TCP, self.address, PORT, end)
        os.write(report, bytes([device.fabric.slot]))
        self.until(lambda: end.log, device)
        if answers:
            end.receive(1, 0, 32)
        os.write(report, b"e")
        if answers:
            self.until(lambda: end.completions, device)
            end.send(2, SendOpcode.SEND, 0, 32)
            device.flush()
            os.write(report, b"a")
        signal.pause()

    def killed(self, far: Device, answers: bool = False) -> Peer:
        """
        @param answers: whether it has had a message before, and answered: neither that nor the
            acknowledgement is read.
        @return: the peer's end of a connection whose process has been killed.
        """
        receiver, sender = os.pipe()
        self.addCleanup(os.close, receiver)
        child = os.fork()
        if not child:
            try:
                self.serve(sender, answers)
            finally:
                os._exit(1)
        os.close(sender)
        try:
            self.assertEqual(len(os.read(receiver, 1)), 1)
            end = Peer(far, 64)
            far.connect(PortSpace.TCP, self.address, PORT, end)
            self.until(lambda: end.log, far)
            self.assertEqual((end.log, os.read(receiver, 1)), (["replied"], b"e"))
            if answers:
                end.receive(2, 32, 32)
                end.send(1, SendOpcode.SEND, 0, 32)
                far.flush()
                self.assertEqual(os.read(receiver, 1), b"a")
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        return end

    def left(self) -> list[str]:
        """
        @return: the entries of groups in the run directory.
        """
        return sorted(name for name in os.listdir(self.directory) if name.startswith("roce-"))

    def test_neighbour(self) -> None:
        """
        A process that shares its address, and does nothing itself, ends its connections.
        """
        neighbour = RoCELink(self.address, isShared=True)
        self.addCleanup(neighbour.close)
        far = self.device(ownAddress(8))
        for _ in range(DEATHS):
            end = self.killed(far)
            self.until(lambda end=end: "disconnected" in end.log, far)
        self.assertEqual(neighbour.group.slot, 1)
        waitUntil(lambda: not neighbour.group._orphans)
        self.assertTrue(neighbour.group.isAlone())

    def test_answered(self) -> None:
        """
        So for one that has answered a request, and never saw that its peer has the answer.
        """
        neighbour = RoCELink(self.address, isShared=True)
        self.addCleanup(neighbour.close)
        far = self.device(ownAddress(8))
        for _ in range(5):
            receiver, sender = os.pipe()
            child = os.fork()
            if not child:
                try:
                    device = self.device(self.address)
                    device.listen(PortSpace.TCP, self.address, PORT, Dying(device, 64))
                    os.write(sender, b"l")
                    self.until(lambda: False, device)
                finally:
                    os._exit(1)
            os.close(sender)
            self.assertEqual(os.read(receiver, 1), b"l")
            os.close(receiver)
            end = Peer(far, 64)
            far.connect(PortSpace.TCP, self.address, PORT, end)
            self.until(lambda end=end: "disconnected" in end.log, far)
            self.assertEqual(
                (end.log, os.waitpid(child, 0)[1]), (["replied", "disconnected"], signal.SIGKILL)
            )

    def test_called(self) -> None:
        """
        A server whose client is killed in the handshake is told.
        """
        neighbour = RoCELink(self.address, isShared=True)
        self.addCleanup(neighbour.close)
        far = self.device(ownAddress(8))
        for kind in (Calling, Hearing) * 5:
            end = Peer(far, 64)
            service = far.listen(PortSpace.TCP, ownAddress(8), PORT, end)
            child = os.fork()
            if not child:
                try:
                    device = self.device(self.address)
                    device.connect(PortSpace.TCP, ownAddress(8), PORT, kind(device, 64))
                    self.until(lambda: False, device)
                finally:
                    os._exit(1)
            self.until(lambda end=end: end.log, far)
            self.assertEqual(os.waitpid(child, 0)[1], signal.SIGKILL)
            self.assertIn(end.log, (["rejected 4"], ["rejected 6"]))
            service.close()

    def test_restarted(self) -> None:
        """
        Where nobody else has the address, the first process that opens it again ends them; the file lasts
        until then, and no longer.
        """
        far = self.device(ownAddress(8))
        for _ in range(DEATHS):
            end = self.killed(far)
            self.assertEqual(end.log, ["replied"])
            again = RoCELink(self.address, isShared=True)
            self.addCleanup(again.close)
            self.assertEqual(again.group.slot, 2)
            self.until(lambda end=end: "disconnected" in end.log, far)
            waitUntil(lambda again=again: not again.group._orphans)
            again.close()
        mine = [name for name in self.left() if name.partition(self.address)[1]]
        self.assertEqual(mine, [])

    def test_unregistered(self) -> None:
        """
        What is sent to a queue pair of a dead process of the same address fails with the second timeout,
        though nobody says that it is dead: MPI connects queue pairs by itself.
        """
        self.patch(ConnectionRegister, "add", lambda register, orphan: True)
        far = self.device(self.address)
        end = self.killed(far)
        end.send(1, SendOpcode.SEND, 0, 64)
        self.until(lambda: end.completions, far)
        self.assertEqual(end.done(), [(1, WCStatus.RETRY_EXC_ERR)])
        self.assertEqual((end.log, far.counters["completer_retry_err"]), (["replied"], 1))

    def test_lastWords(self) -> None:
        """
        What a process has acknowledged and sent before it was killed counts, however late it is read, and
        though the timers come first, as on reactors that do not poll.
        """
        self.patch(ConnectionRegister, "add", lambda register, orphan: True)
        far = self.device(self.address)
        end = self.killed(far, answers=True)

        def hasRetried() -> bool:
            if (far.deadline() or 0.0) <= far.clock():
                far.tick(far.clock())
                far.flush()
            return far.counters["completer_retry_err"] >= 2

        # No further timer: where the handshake was slow, so are these, and the peer's time is over soon.
        waitUntil(hasRetried)
        self.until(lambda: len(end.completions) == 2, far)
        self.assertEqual(end.done(), [(1, WCStatus.SUCCESS), (2, WCStatus.SUCCESS)])

    def test_polled(self) -> None:
        """
        Where no inotify instance is left, a death is seen a little later.
        """

        def none(watches: Any) -> int:
            raise OSError(24, "Too many open files")

        self.patch(portgroup.libc, "inotify", none)
        self.patch(orphans, "DEATH_POLL_SECONDS", 0.01)
        neighbour = RoCELink(self.address, isShared=True)
        self.addCleanup(neighbour.close)
        far = self.device(ownAddress(8))
        end = self.killed(far)
        self.until(lambda: "disconnected" in end.log, far)

    def test_closed(self) -> None:
        """
        A process that closes its device tells its peers itself, and leaves nothing to others.
        """
        far, near, other = (self.device(each) for each in (ownAddress(8), self.address, self.address))
        one, two = End(far, 64), End(near, 64)
        near.listen(PortSpace.TCP, self.address, PORT, two)
        far.connect(PortSpace.TCP, self.address, PORT, one)
        self.until(lambda: one.log and two.log, far, near, other)
        connections = other.fabric.group.connections
        ((orphan,), (mirrored,)) = connections.of(1), far.fabric.group.connections.of(1)
        self.assertEqual((orphan.address, mirrored.address), (ownAddress(8), self.address))
        numbers = orphan.localID, orphan.localQPN, orphan.remoteID, orphan.remoteQPN
        self.assertEqual(
            numbers, (mirrored.remoteID, mirrored.remoteQPN, mirrored.localID, mirrored.localQPN)
        )
        near.close()
        self.until(lambda: "disconnected" in one.log, far, other)
        self.assertEqual((connections.of(1), far.fabric.group.connections.of(1)), ([], []))

    def test_many(self) -> None:
        """
        Beyond L{limits.PACKET_CONNECTIONS} connections are counted that nobody will end.
        """
        self.patch(limits, "PACKET_CONNECTIONS", 0)
        far, near = self.device(ownAddress(8)), self.device(self.address)
        one, two = End(far, 64), End(near, 64)
        near.listen(PortSpace.TCP, self.address, PORT, two)
        far.connect(PortSpace.TCP, self.address, PORT, one)
        self.until(lambda: one.log and two.log, far, near)
        for device in far, near:
            self.assertEqual(device.counters["connections_unregistered"], 1)
            self.assertEqual(device.fabric.group.connections.of(1), [])

    def test_strangers(self) -> None:
        """
        A file that is not ours, or whose form is another, is not believed.
        """
        link = RoCELink(self.address, isShared=True)
        (name,) = (each for each in self.left() if each.endswith(".3"))
        link.close()
        path = os.path.join(self.directory, name)
        for size, mode, isOld in (
            (7, 0o600, False),
            (MEMORY_BYTES, 0o644, False),
            (MEMORY_BYTES, 0o600, True),
            (MEMORY_BYTES, 0o600, False),
        ):
            with open(path, "wb") as made:
                made.truncate(size)
                made.seek(size - 1)
                made.write(b"x")
            os.chmod(path, mode)
            if isOld:
                os.utime(path, (0, 0))
            link = RoCELink(self.address, isShared=True)
            self.addCleanup(link.close)
            now = os.stat(path)
            self.assertEqual((now.st_size, now.st_mode & 0o777), (MEMORY_BYTES, 0o600))
            isKept = (size, mode, isOld) == (MEMORY_BYTES, 0o600, False)
            with open(path, "rb") as made:
                self.assertEqual(made.read()[-1:] == b"x", isKept)
            link.close()
            self.assertFalse(os.path.exists(path))
