"""
Several processes on one address: each has what is its own.
"""

from __future__ import annotations

import gc
import os
import select
import socket
import time
from collections.abc import Callable
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.fabric.roce.test_devices import PORT, End
from tests.support.ownaddress import ownAddress
from tests.support.rundirectory import ownRunDirectory
from tests.support.waiting import waitUntil
from twisted_ib.errors import DeviceError, ServiceInUseError
from twisted_ib.hca.connection.rdmacm import PortSpace
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.fabric.roce import portgroup
from twisted_ib.hca.fabric.roce.packet import PacketFabric
from twisted_ib.hca.fabric.roce.roce import RoCELink
from twisted_ib.hca.fabric.roce.slots import ID_SHIFT, QPN_SHIFT, SLOTS
from twisted_ib.hca.host import libc
from twisted_ib.hca.host.rundirectory import openDirectories
from twisted_ib.hca.queues.requests import SendOpcode


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

    def test_pauses(self) -> None:
        """
        Where others have the port, a process waits for less than 20 ms before it says so; where one of the
        group has just closed it, not at all.
        """
        pauses: list[float] = []
        self.patch(portgroup.time, "sleep", pauses.append)
        alone = RoCELink(self.address)
        self.assertIn("is taken", str(self.assertRaises(DeviceError, self.link)))
        self.assertEqual(pauses, sorted(set(pauses)))
        self.assertLess(sum(pauses), 0.02)
        self.assertLessEqual(portgroup.JOIN_SECONDS, 1)
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

    def test_descriptors(self) -> None:
        """
        A closed link leaves no descriptor and no entry.
        """
        RoCELink(self.address, isShared=True).close()
        gc.collect()
        before = os.listdir("/proc/self/fd")
        one = RoCELink(self.address, isShared=True)
        two = RoCELink(self.address, isShared=True)
        one.close()
        two.close()
        two.close()
        self.assertEqual(os.listdir("/proc/self/fd"), before)
        self.assertEqual([name for name in os.listdir(self.directory) if name.startswith("roce")], [])


class SharedTests(SynchronousTestCase):
    """
    Devices that share an address, and one of another.
    """

    def setUp(self) -> None:
        """
        Use a run directory of our own.
        """
        ownRunDirectory(self)
        self.address = ownAddress(7)

    def device(self, address: str) -> Device:
        """
        @return: An HCA of an address, closed after the test.
        """

        def make(owner: Any, guid: int, clock: Callable[[], float]) -> PacketFabric:
            link = RoCELink(address, isShared=True)
            return PacketFabric(owner, guid, clock, link, group=link.group)

        device = Device("test", time.monotonic, make, capture="")
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
                if deadline is not None and deadline <= time.monotonic():
                    device.tick(time.monotonic())

        waitUntil(done, turn)

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
