"""
RoCEv2 over real UDP sockets of this host's loopback addresses.
"""

from __future__ import annotations

import errno
import os
import random
import select
import shutil
import socket
import sys
import time
from asyncio import SelectorEventLoop
from collections.abc import Callable
from selectors import SelectSelector
from subprocess import CalledProcessError, run
from typing import Any
from unittest import SkipTest
from unittest.mock import Mock
from zlib import crc32

from twisted.internet.asyncioreactor import AsyncioSelectorReactor
from twisted.internet.pollreactor import PollReactor
from twisted.internet.selectreactor import SelectReactor
from twisted.trial.unittest import SynchronousTestCase

from tests.hca.connection.test_compacthello import HELLO
from tests.hca.fabric.roce.test_devices import PORT, End
from tests.support.descriptors import closeWakers, descriptors, descriptorsBefore
from tests.support.ownaddress import ownAddress, ownGroup
from tests.support.waiting import HANG_SECONDS, waitUntil
from twisted_ib import limits
from twisted_ib.errors import DeviceError, NoRouteError, ResourceLimitError
from twisted_ib.hca.base.operation import GSI_QPN
from twisted_ib.hca.connection import ConnectRequest
from twisted_ib.hca.connection.rdmacm import PortSpace, gidOf
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.fabric.roce import roce
from twisted_ib.hca.fabric.roce.packet import PacketFabric
from twisted_ib.hca.fabric.roce.roce import RoCELink, mtuOf, pathMTUOf
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.requests import SendOpcode
from twisted_ib.hca.transport.parameters import TRANSPORT_LONG_BYTES
from twisted_ib.hca.wire.cm.messages import REQ
from twisted_ib.hca.wire.headers import BTH, DETH, QUEUE_KEY
from twisted_ib.hca.wire.icrc import icrc
from twisted_ib.hca.wire.icrcflow import ICRCState
from twisted_ib.hca.wire.mad.mad import HEADER
from twisted_ib.hca.wire.rocev2 import datagramPort
from twisted_ib.internet.channel import DeviceChannel
from twisted_ib.reactor.asyncioreactor import IBAsyncioReactor

UDP_PORT = 4791
OK = WCStatus.SUCCESS


def alone(case: SynchronousTestCase) -> None:
    """
    Wait until no other process of these tests has an HCA at the only IPv6 address that all hosts have.
    """
    lock = socket.socket(socket.AF_UNIX)
    case.addCleanup(lock.close)

    def bound() -> bool:
        try:
            lock.bind("\0twisted_ib tests of ::1")
        except OSError:
            return False
        return True

    waitUntil(bound)


class Streaming(End):
    """
    An end that asks for a stream.
    """

    def pathReady(self, path: Any) -> None:
        service, number = PortSpace.SDP << 16 | PORT, self.queuePair.number
        request = ConnectRequest(service, HELLO, number, responseTimeout=20)
        self.connection = self.device.sendRequest(path, request, self, self.device.clock())


class Listener:
    """
    Records what arrives at a link.
    """

    def __init__(self) -> None:
        """
        Nothing has come.
        """
        self.calls: list[tuple[Any, ...]] = []
        self.counters: list[str] = []

    def arrived(
        self,
        source: str,
        port: int,
        destination: str,
        buffer: Any,
        start: int,
        stop: int,
        size: int,
        marks: int,
    ) -> None:
        self.calls.append((source, port, destination, buffer[start:stop], size, marks))

    def count(self, name: str) -> None:
        self.counters.append(name)

    @property
    def datagrams(self) -> list[bytes]:
        """
        The datagrams received, one by one.
        """
        return [
            data[at : at + size] for _, _, _, data, size, _ in self.calls for at in range(0, len(data), size)
        ]


class LinkCase(SynchronousTestCase):
    """
    Base of tests with links.
    """

    def link(self, number: int, **options: Any) -> RoCELink:
        """
        @return: A link of an address of ours, closed after the test.
        """
        link = RoCELink(ownAddress(number), **options)
        link.user = Listener()
        self.addCleanup(link.close)
        return link

    def receive(self, link: RoCELink, count: int) -> list[bytes]:
        """
        @return: the datagrams received, once there are so many.
        """

        def turn() -> None:
            select.select([link.fileno()], [], [], 0.1)
            link.receive(64)

        waitUntil(lambda: len(link.user.datagrams) >= count, turn)
        found: list[bytes] = link.user.datagrams
        return found


class LinkTests(LinkCase):
    """
    The link alone.
    """

    def test_taken(self) -> None:
        """
        The error names the owner of the port and the remedy; another host's address, or no address, is an
        error too.
        """
        link = self.link(1)
        error = self.assertRaises(DeviceError, RoCELink, link.address)
        self.assertIn("UDP port 4791 of " + link.address, str(error))
        self.assertIn("taken", str(error))
        error = self.assertRaises(DeviceError, RoCELink, "198.51.100.7")
        self.assertIn("not an address of this host", str(error))
        self.assertRaises(DeviceError, RoCELink, "nonsense")

    def test_descriptors(self) -> None:
        """
        A link that is closed, or could not be opened, leaves no descriptor.
        """
        address = ownAddress(1)
        before = descriptorsBefore()
        link = RoCELink(address)
        self.assertRaises(DeviceError, RoCELink, address)
        for wanted in range(0xC000, 0xC010):
            link.sourcePort(wanted)
        link.close()
        link.close()
        self.assertEqual(descriptors(), before)

    def test_segments(self) -> None:
        """
        Many datagrams in one call arrive as they are, the last one shorter; whichever end cannot do that.
        """
        for sends in (True, False):
            for takes in (True, False):
                here, there = self.link(1, segments=sends), self.link(2, coalesces=takes)
                data = [bytes([n]) * (1040 if n < 9 else 20) for n in range(10)]
                port = here.sourcePort(0xC123)
                if sends:
                    self.assertTrue(here.send(there.address, port, data, 1040))
                else:
                    self.assertEqual(here.burst, 1)
                    for each in data:
                        self.assertTrue(here.send(there.address, port, [each], len(each)))
                self.assertEqual(self.receive(there, 10), data)
                source, came, destination, *_ = there.user.calls[0]
                self.assertEqual((source, came, destination), (here.address, port, there.address))
                here.close()
                there.close()

    def test_manyQuestions(self) -> None:
        """
        Management messages that come one by one are received together: a source that sends many is answered
        when the rest has been processed.
        """
        here, there = self.link(1), self.link(2)
        port = here.sourcePort(0xC321)
        message = bytes(12 + 8 + 256 + 4)
        for _ in range(20):
            here.send(there.address, port, [message], len(message))
        select.select([there.fileno()], [], [], HANG_SECONDS)
        self.assertEqual(there.receive(64), 20)
        self.assertEqual(len(there.user.calls), 20)

    def test_longOnes(self) -> None:
        """
        Long packets end a turn when half of a peer's window has come.
        """
        here, there = self.link(1), self.link(2)
        port, half = here.sourcePort(0xC321), TRANSPORT_LONG_BYTES // 2 // 61440
        for _ in range(2 * half):
            here.send(there.address, port, [bytes(61456)], 61456)
        select.select([there.fileno()], [], [], HANG_SECONDS)
        there.receive(limits.RECORDS_PER_TURN)
        self.assertEqual(len(there.user.calls), half)
        self.assertEqual(len(self.receive(there, 2 * half)), 2 * half)

    def test_identification(self) -> None:
        """
        Packets have the identification that their ICRC was computed for: a receiver that sees the IP header,
        as Linux's rxe does, finds it right.
        """
        try:
            raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
        except PermissionError:
            raise SkipTest("raw sockets need privileges") from None
        with raw:
            raw.settimeout(HANG_SECONDS)
            here, there = self.link(1), ownAddress(2)
            raw.bind((there, 0))
            port = here.sourcePort(0xC321)
            flow = ICRCState(gidOf(here.address), gidOf(there), port)
            for n in range(3):
                packet = flow.sign(BTH.pack(4, 0, 0xFFFF, 17, n) + bytes([n]) * 4096)
                self.assertTrue(here.send(there, port, [packet[:12], packet[12:]], len(packet)))
                while (seen := raw.recv(65536))[12:16] != socket.inet_aton(here.address):
                    pass
                end = len(seen) - 4
                self.assertEqual(int.from_bytes(seen[end:], "little"), icrc(seen, 0, end))

    def test_ports(self) -> None:
        """
        Each flow has its port while there are sockets; then flows share those that there are. A port in use
        by another process is replaced by another.
        """
        self.patch(roce, "PACKET_SOCKETS", 3)
        link = self.link(1)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            other.bind((link.address, 0xC100))
            ports = [link.sourcePort(wanted) for wanted in (0xC100, 0xC200, 0xC300, 0xC400, 0xC500)]
            self.assertEqual(ports[1:3], [0xC200, 0xC300])
            self.assertNotEqual(ports[0], 0xC100)
            self.assertEqual(len(set(ports)), 3)
            self.assertEqual(link.sourcePort(0xC400), ports[3])
        # A flow that has the main socket's, as all were in use, does not get another when it asks again.
        self.assertEqual((link.sourcePort(4791), len(link._senders)), (4791, 3))
        there = self.link(2)
        for port in ports:
            link.send(there.address, port, [bytes(20)], 20)
        self.receive(there, 5)
        self.assertEqual([call[1] for call in there.user.calls], ports)

    def test_marks(self) -> None:
        """
        The traffic class goes with a datagram, and comes.
        """
        here, there = self.link(1), self.link(2)
        port = here.sourcePort(0xC123)
        for trafficClass, hops in ((0, 64), (0x0A, 64), (3, 5), (0xFF, 1)):
            here.send(there.address, port, [bytes(20)], 20, trafficClass, hops)
        self.receive(there, 4)
        self.assertEqual([call[5] for call in there.user.calls], [0, 0x0A, 3, 0xFF])

    def test_withoutChecksum(self) -> None:
        """
        IPv6 without a checksum of UDP, which is what rxe sends, is taken.
        """
        udp, withoutChecksum = 17, 101
        alone(self)
        link = RoCELink("::1")
        link.user = Listener()
        self.addCleanup(link.close)
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as stranger:
            stranger.setsockopt(udp, withoutChecksum, 1)
            stranger.sendto(b"unchecked", ("::1", UDP_PORT))
        self.assertEqual(self.receive(link, 1), [b"unchecked"])

    def test_unsendable(self) -> None:
        """
        A datagram that cannot be sent is lost and counted, without an error.
        """
        link = self.link(1)
        port = link.sourcePort(0xC123)
        self.assertTrue(link.send("255.255.255.255", port, [bytes(20)], 20))
        self.assertTrue(link.send(ownAddress(2), port, [bytes(70000)], 70000))
        self.assertEqual(link.user.counters, ["packets_unsendable"] * 2)

    def test_empty(self) -> None:
        """
        A datagram of nothing is counted.
        """
        here, there = self.link(1), self.link(2)
        here.send(there.address, here.sourcePort(0xC123), [b""], 0)
        here.send(there.address, here.sourcePort(0xC123), [bytes(20)], 20)
        self.receive(there, 1)
        self.assertEqual(there.user.counters, ["packets_malformed"])

    def test_groups(self) -> None:
        """
        A multicast group's datagrams come while it is joined, with the group as destination; two links may
        join one.
        """
        self.patch(roce, "PACKET_GROUPS", 1)
        here, there, group = self.link(1), self.link(2), ownGroup(1)
        try:
            here.join(group)
        except NoRouteError as error:
            raise SkipTest(str(error)) from None
        here.join(group)
        there.join(group)
        self.assertRaises(ResourceLimitError, there.join, ownGroup(2))
        here.send(group, here.sourcePort(0xC123), [b"all" * 7], 21)
        if here.user.counters:
            raise SkipTest("no multicast over the loopback interface here")
        for link in (here, there):
            self.assertEqual(self.receive(link, 1), [b"all" * 7])
            self.assertEqual(link.user.calls[0][2], group)
        there.leave(group)
        there.leave(group)
        here.send(group, here.sourcePort(0xC123), [b"again" * 4], 20)
        self.receive(here, 2)
        there.receive(64)
        self.assertEqual(len(there.user.datagrams), 1)

    def test_mtu(self) -> None:
        """
        The path MTU is what fits into an interface's packets with all headers.
        """
        cases = [(65536, 61440), (61535, 8192), (9000, 8192), (8287, 4096), (4200, 4096), (4191, 2048)]
        cases += [(1500, 1024), (576, 256)]
        self.assertEqual([(octets, pathMTUOf(octets)) for octets, _ in cases], cases)
        self.assertEqual(pathMTUOf(68), 256)
        self.assertEqual(self.link(1).pathMTU, 61440)
        self.assertEqual(mtuOf(1 << 30), 1500)

    def test_smallBuffer(self) -> None:
        """
        Where the receive buffer stays small packets do not fill whole datagrams.
        """
        self.patch(roce, "_LARGE_BUFFER", 1 << 40)
        link = self.link(1)
        self.assertEqual((link.pathMTU, link.pathMTUTo(ownAddress(2))), (8192, 8192))

    def test_waiting(self) -> None:
        """
        What waits to be received is known.
        """
        link = self.link(1)
        self.assertEqual(link.waiting(), 0)
        for _ in range(2):
            link.send(link.address, UDP_PORT, [bytes(500)], 500)
        self.assertGreater(link.waiting(), 1000)
        self.receive(link, 2)
        self.assertEqual(link.waiting(), 0)

    def test_pendingOnce(self) -> None:
        """
        What a look has found is not asked for again until it is received.
        """
        link = self.link(1)
        self.assertFalse(link.pending())
        link.send(link.address, UDP_PORT, [bytes(64)], 64)
        self.assertTrue(link.pending())
        link._main.recv(64)
        self.assertTrue(link.pending())
        link.receive(1)
        self.assertFalse(link.pending())

    def test_forgedWay(self) -> None:
        """
        Packets may be as long as an interface permits, whatever ICMP has reported of the path: anybody can
        forge that, and the path MTU that the two ends have agreed on cannot change.
        """
        probe = 3  # IP_PMTUDISC_PROBE, of both IP versions.
        link = self.link(1)
        link.sourcePort(0xC123)
        for made in (link._main, *link._senders.values()):
            self.assertEqual(made.getsockopt(socket.IPPROTO_IP, 10), probe)
        alone(self)
        other = RoCELink("::1")
        self.addCleanup(other.close)
        self.assertEqual(other._main.getsockopt(socket.IPPROTO_IPV6, 23), probe)

    def test_route(self) -> None:
        """
        The path MTU to an address of this host is more than fits into an interface's packets, unless it was
        set; without a route it is what the interface permits.
        """
        link = self.link(1)
        link.pathMTU = 1024
        self.assertEqual(link.pathMTUTo(ownAddress(2)), 61440)
        self.assertEqual(link.pathMTUTo("255.255.255.255"), 1024)
        self.assertEqual(self.link(2, mtu=256).pathMTUTo(ownAddress(1)), 256)


class DeviceTests(SynchronousTestCase):
    """
    Two HCAs over sockets.
    """

    def device(self, host: str, **options: Any) -> Device:
        """
        @return: An HCA of an address, closed after the test.
        """

        def make(owner: Any, guid: int, clock: Callable[[], float]) -> PacketFabric:
            """
            Make its fabric.
            """
            return PacketFabric(owner, guid, clock, RoCELink(host, **options))

        device = Device("test", time.monotonic, make, capture="")
        self.addCleanup(device.close)
        return device

    def until(self, done: Callable[[], object], *devices: Device) -> None:
        """
        Serve devices, asleep as long as they can be.
        """

        def turn() -> None:
            n = 0
            for device in devices:
                device.fabric.attend()
                device.fabric.look()
                n += device.progress()
                deadline = device.deadline()
                if deadline is not None and deadline <= time.monotonic():
                    device.tick(time.monotonic())
                    n += 1
            if not n and all([device.arm() for device in devices]):
                waits = [when for device in devices if (when := device.deadline()) is not None]
                timeout = max(0.0, min(waits) - time.monotonic()) if waits else 0.1
                select.select([device.fabric.fileno() for device in devices], [], [], min(timeout, 0.1))

        waitUntil(done, turn)

    def exchange(self, active: Device, passive: Device) -> None:
        """
        Connect, move data both ways, and disconnect.
        """
        one, two = End(active, 1 << 20), End(passive, 1 << 20)
        there = passive.fabric.address
        service = passive.listen(PortSpace.TCP, there, PORT, two)
        active.connect(PortSpace.TCP, there, PORT, one)
        self.until(lambda: one.log and two.log, active, passive)
        self.assertEqual((one.log, two.log), (["replied"], ["established"]))
        data = random.Random(1).randbytes(300_001)
        one.memory[: len(data)] = data
        two.receive(1, 0, 1 << 20)
        one.send(2, SendOpcode.SEND, 0, len(data))
        self.until(lambda: two.completions, active, passive)
        self.assertEqual((two.done(), bytes(two.memory[: len(data)])), ([(1, OK)], data))
        remote = {"remoteAddress": one.region.address + 500_000, "remoteKey": one.region.remoteKey}
        two.send(3, SendOpcode.RDMA_WRITE, 0, len(data), **remote)
        two.send(4, SendOpcode.RDMA_READ, 600_000, 200_000, **remote)
        self.until(lambda: len(two.completions) == 2, active, passive)
        self.assertEqual(two.done(), [(3, OK), (4, OK)])
        self.assertEqual(bytes(one.memory[500_000:800_001]), data)
        self.assertEqual(bytes(two.memory[600_000:800_000]), data[:200_000])
        active.disconnect(one.connection)
        self.until(lambda: "disconnected" in one.log and "disconnected" in two.log, active, passive)
        service.close()
        for device in {active, passive}:
            bad = {name: n for name, n in device.counters.items() if name.startswith("packets_")}
            self.assertEqual(bad, {})

    def test_exchange(self) -> None:
        """
        Connecting and moving data, with the kernel's help for many datagrams, and without.
        """
        for options in ({}, {"segments": False, "coalesces": False}, {"mtu": 256}):
            one, two = self.device(ownAddress(1), **options), self.device(ownAddress(2), **options)
            self.exchange(one, two)
            one.close()
            two.close()

    def test_nobody(self) -> None:
        """
        A connect to a host where nobody has the port is refused at once, by ICMP, before the REQ is repeated:
        one of streams, too, which no adapter is asked for there.
        """
        one = self.device(ownAddress(1))
        ends: list[End] = [End(one, 64), End(one, 64), Streaming(one, 64)]
        for attempt, end in enumerate(ends, 1):
            one.connect(PortSpace.TCP, ownAddress(9), PORT, end)
            self.until(lambda end=end: end.log, one)
            self.assertEqual(end.log, ["rejected 8"])
            self.assertEqual(one.counters["requests_undelivered"], attempt)
        self.assertEqual(one.cm.counters["retransmitted"], 0)

    def test_nobodyAmongStrays(self) -> None:
        """
        Datagrams that strangers send to the port that REQs come from are not taken, and leave room for ICMP:
        for a report in the largest of a network adapter's pages.
        """
        one = self.device(ownAddress(1))
        port = one.fabric.link.sourcePort(datagramPort(GSI_QPN))
        stranger = self.receiver(ownAddress(3))
        for _ in range(20):
            stranger.sendto(bytes(1400), (ownAddress(1), port))
        sender = one.fabric.link._senders[port]
        self.assertRaises(BlockingIOError, sender.recv, 1)
        self.assertGreater(sender.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF), 2 * 65536)
        end = End(one, 64)
        one.connect(PortSpace.TCP, ownAddress(9), PORT, end)
        self.until(lambda: end.log, one)
        self.assertEqual(end.log, ["rejected 8"])
        self.assertEqual(one.cm.counters["retransmitted"], 0)

    def test_reportOfAnother(self) -> None:
        """
        What ICMP says of one host keeps back no datagram to another, and changes nothing else.
        """
        one, there = self.device(ownAddress(1)), self.receiver(ownAddress(3))
        link = one.fabric.link
        port = link.sourcePort(datagramPort(GSI_QPN))
        burst = link.burst
        for attempt in range(5):
            for _ in range(2):
                self.assertTrue(link.send(ownAddress(9), port, [b"to nobody"], 9))
            said = bytes([attempt])
            self.assertTrue(link.send(ownAddress(3), port, [said], 1))
            self.assertEqual(there.recv(2), said)
        # Of errors that are no answer to UDP_SEGMENT, it is not switched off.
        error = OSError(errno.EOPNOTSUPP, "")
        self.assertTrue(link._failed(error, link._main, [b""], [], ("", 0)))
        self.assertEqual(link.burst, burst)

    def receiver(self, address: str) -> socket.socket:
        """
        @return: a socket at RoCE's port of an address.
        """
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(made.close)
        made.settimeout(HANG_SECONDS)
        made.bind((address, roce.PORT))
        return made

    def test_nobodyAnyMore(self) -> None:
        """
        ICMP ends no connection that is established: not even where its messages come to nobody, and still
        less if it is forged.
        """
        one, two = self.device(ownAddress(1)), self.device(ownAddress(2))
        active, passive = End(one, 64), End(two, 64)
        two.listen(PortSpace.TCP, ownAddress(2), PORT, passive)
        one.connect(PortSpace.TCP, ownAddress(2), PORT, active)
        self.until(lambda: active.log and passive.log, one, two)
        body = REQ(localCommunicationID=active.connection.localID, serviceID=7).pack()
        head = DETH.pack(QUEUE_KEY, 1) + HEADER.pack(1, 7, 2, 3, 0, 0, 5, REQ.attribute, 0, 0)
        request = BTH.pack(0x64, 0, 0xFFFF, 1, 0) + head + body
        for datagram in (request, request[:60], request[:30], b""):
            one.fabric.undelivered(ownAddress(2), datagram)
            one.fabric.undelivered(ownAddress(3), datagram)
        self.assertEqual(active.log, ["replied"])
        two.fabric.link.close()
        one.disconnect(active.connection)
        self.until(lambda: one.cm.counters["retransmitted"], one)
        self.assertEqual(active.log, ["replied"])

    def test_itself(self) -> None:
        """
        An HCA that connects to itself, by IPv6 too.
        """
        alone(self)
        for host in (ownAddress(3), "::1"):
            try:
                device = self.device(host)
            except DeviceError:
                if ":" not in host:
                    raise
                raise SkipTest("no IPv6 here, or somebody tests it already") from None
            self.exchange(device, device)
            device.close()

    def test_strangersIdentification(self) -> None:
        """
        A peer with unpredictable identifications is understood, as its ICRC reveals them.
        """
        device = self.device(ownAddress(1))
        source = ownAddress(2)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.bind((source, 0xC777))
            flow = ICRCState(gidOf(source), gidOf(device.fabric.address), 0xC777)
            body = BTH.pack(4, 0, 0xFFFF, 77, 0) + bytes(100)
            for identification in (0, 1, 0x1234, 0xFFFF):
                check = crc32(body, flow.state(len(body) + 4, identification))
                stranger.sendto(body + check.to_bytes(4, "little"), (device.fabric.address, UDP_PORT))
            stranger.sendto(body + (check ^ 0x10000).to_bytes(4, "little"), (device.fabric.address, UDP_PORT))
        self.until(lambda: device.fabric.packetsReceived == 5, device)
        self.assertEqual(device.counters["packets_unknown_qp"], 4)
        self.assertEqual(device.counters["packets_bad_icrc"], 1)

    def test_descriptors(self) -> None:
        """
        A device that is closed leaves no descriptor; one of a parent process is closed in a child.
        """
        address = ownAddress(1)
        before = descriptorsBefore()
        device = self.device(address)
        device.fabric.fileno()
        device.close()
        self.assertEqual(descriptors(), before)
        device = self.device(address)
        device.fabric.fileno()
        child = os.fork()
        if not child:
            os._exit(0 if descriptors() <= before else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(device.fabric.pending(), False)

    def test_reactor(self) -> None:
        """
        In the epoll object of a reactor that looks at it by itself each packet ends a sleep, and needs no
        call; what else there is has its descriptor as before.
        """
        device = self.device(ownAddress(1))
        poller, other = select.epoll(), socket.socketpair()
        for each in (poller, *other):
            self.addCleanup(each.close)
        for _ in range(2):
            device.fabric.registerWith(poller)
        poller.poll(0)
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(sender.close)
        for _ in range(3):
            sender.sendto(bytes(64), (device.fabric.address, UDP_PORT))
            self.assertEqual(len(poller.poll(HANG_SECONDS)), 1)
            self.assertEqual((poller.poll(0), device.fabric.pending()), ([], True))
        watched = device.fabric.fileno()
        self.assertEqual(select.select([watched], [], [], 0)[0], [])
        called: list[bytes] = []
        device.fabric.watch(other[0].fileno(), lambda: called.append(other[0].recv(1)))
        other[1].send(b"x")
        self.assertEqual(select.select([watched], [], [], HANG_SECONDS)[0], [watched])
        device.fabric.attend()
        self.assertEqual((called, select.select([watched], [], [], 0)[0]), ([b"x"], []))
        device.fabric.signal()
        self.assertEqual(select.select([watched], [], [], HANG_SECONDS)[0], [watched])

    def test_movedClosed(self) -> None:
        """
        A device goes from one reactor to another although the program has closed the number of its link.
        """
        device = self.device(ownAddress(1))
        poller, fd = select.epoll(), device.fabric.link.fileno()
        self.addCleanup(poller.close)
        kept = os.dup(fd)
        self.addCleanup(os.close, kept)
        device.fabric.fileno()
        # Nobody else gets the number.
        self.addCleanup(os.dup2, kept, fd)
        os.close(fd)
        for place in (poller, None):
            device.fabric.registerWith(place)

    def test_moved(self) -> None:
        """
        A device that goes from a reactor with epoll to one without ends the sleeps of that one alone.
        """
        device = self.device(ownAddress(1))
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(sender.close)
        attempt, poller = Mock(), select.epoll()
        self.addCleanup(poller.close)
        loops = SelectorEventLoop(), SelectorEventLoop(SelectSelector())
        for each in loops:
            self.addCleanup(each.close)
        asyncios = AsyncioSelectorReactor(loops[0]), IBAsyncioReactor(loops[1])
        for reactor in (SelectReactor(), PollReactor(), *asyncios):
            self.addCleanup(closeWakers, reactor)
            device.fabric.registerWith(poller)
            poller.poll(0)
            channel = DeviceChannel(reactor, device)
            channel.attempt(attempt)
            sender.sendto(bytes(64), (device.fabric.address, UDP_PORT))
            self.assertTrue(select.select([channel.fileno()], [], [], HANG_SECONDS)[0])
            self.assertEqual(poller.poll(0), [])
            channel.leave()


#: Of a host on a link: connects to another of the link where nobody has the port, and says what came of it,
#: how many requests it repeated, and after how many milliseconds.
_NOBODY = """
import sys, time
from tests.hca.fabric.roce.test_devices import PORT, End
from tests.hca.fabric.roce.test_roce import DeviceTests
from twisted_ib.hca.connection.rdmacm import PortSpace
case = DeviceTests("test_nobody")
device = case.device(sys.argv[1])
end = End(device, 64)
began = time.monotonic()
device.connect(PortSpace.TCP, sys.argv[2], PORT, end)
case.until(lambda: end.log, device)
passed = int(1000 * (time.monotonic() - began))
print(*end.log, device.cm.counters["retransmitted"], passed)
case.doCleanups()
"""


#: The path MTU of a host's link, what routes to some addresses are set to, and what the kernel has of them.
_ROUTES = """
import sys
from twisted_ib.hca.fabric.roce.roce import RoCELink
link = RoCELink(sys.argv[1])
print(link.pathMTU, *([each(to) for to in sys.argv[1:]] for each in (link.routeMTUTo, link.pathMTUTo)))
link.close()
"""


class NamespaceTests(SynchronousTestCase):
    """
    Hosts with kernels' networks of their own, on a link.
    """

    def setUp(self) -> None:
        """
        Make them.
        """
        if os.geteuid():
            raise SkipTest("needs root")
        if shutil.which("ip") is None:
            raise SkipTest("there is no ip here")
        self.names = [f"twisted-ib-roce-{os.getpid()}-{end}" for end in (1, 2)]
        try:
            for name in self.names:
                self.ip("netns", "add", name)
                self.addCleanup(self.ip, "netns", "del", name)
            one, two = self.names
            self.ip("-n", one, "link", "add", "veth0", "type", "veth", "peer", "name", "veth0", "netns", two)
            for number, name in enumerate(self.names, 1):
                self.ip("-n", name, "addr", "add", f"192.0.2.{number}/24", "dev", "veth0")
                self.ip("-n", name, "link", "set", "veth0", "up")
        except CalledProcessError as error:
            raise SkipTest(f"there may be no namespaces here: {error.stderr.strip()}") from None

    def ip(self, *command: str) -> None:
        """
        Run C{ip}.
        """
        run(["ip", *command], check=True, capture_output=True, text=True, timeout=HANG_SECONDS)

    def test_nobody(self) -> None:
        """
        A connect to another host where nobody has the port ends when that host's kernel says so: before a
        request is repeated, which is after half a second.
        """
        command = ["ip", "netns", "exec", self.names[0], sys.executable, "-c", _NOBODY]
        said = run([*command, "192.0.2.1", "192.0.2.2"], capture_output=True, text=True, timeout=HANG_SECONDS)
        self.assertEqual((said.stdout.split()[:-1], said.stderr), (["rejected", "8", "0"], ""))
        self.assertLess(int(said.stdout.split()[-1]), 1000)

    def test_route(self) -> None:
        """
        A route that was given an MTU has it, also where the interface has more; ICMP does not.
        """
        name = self.names[0]
        for number, host in enumerate(self.names, 1):
            self.ip("-n", host, "link", "set", "veth0", "mtu", "9000")
            self.ip("-n", host, "addr", "add", f"2001:db8::{number}/64", "dev", "veth0", "nodad")
        for to, mtu in ("192.0.2.3", 1500), ("192.0.2.4", 4200), ("2001:db8::3", 1280):
            self.ip("-n", name, "route", "add", to, "dev", "veth0", "mtu", str(mtu))
        for words, found in (
            ("192.0.2.1 192.0.2.2 192.0.2.3 192.0.2.4", [8192, 1024, 4096]),
            ("2001:db8::1 2001:db8::2 2001:db8::3", [8192, 1024]),
        ):
            command = ["ip", "netns", "exec", name, sys.executable, "-c", _ROUTES, *words.split()]
            said = run(command, capture_output=True, text=True, timeout=HANG_SECONDS)
            self.assertEqual(said.stdout + said.stderr, f"8192 {[8192, *found]} {[61440, *found]}\n")
