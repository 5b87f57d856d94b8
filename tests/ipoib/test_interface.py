"""
Tests of L{twisted_ib.ipoib.interface}: interfaces on devices of each kind exchange packets.
"""

from __future__ import annotations

import struct
from ipaddress import ip_address, ip_interface
from typing import Any
from unittest import mock, skipIf

from twisted.internet.defer import CancelledError
from twisted.python.failure import Failure
from zope.interface import implementer
from zope.interface.verify import verifyObject

from tests.ipoib.pairs import PKEY, OnLoopback, OnPackets, OnSharedMemory, OnSubnet
from twisted_ib import limits
from twisted_ib.errors import DeviceError, HCAError, InterfaceClosedError, NoRouteError, ResourceLimitError
from twisted_ib.hca.base.port import PortChange
from twisted_ib.hca.host import libc
from twisted_ib.ipoib.interface import IPacketConsumer, IPoIBInterface

MISSING = libc.available()
ONE, TWO = "10.9.0.1/24", "10.9.0.2/24"
IPV4, IPV6 = b"\x08\x00\0\0", b"\x86\xdd\0\0"
HOP_BY_HOP = 0xFD


class Channel:
    """
    The channel of a device, as an interface sees it.

    @ivar users: its users.
    """

    def __init__(self, device: Any) -> None:
        self.device = device
        self.users: dict[Any, None] = {}

    def acquire(self, user: Any) -> None:
        self.users[user] = None

    def release(self, user: Any) -> None:
        """
        One fewer.
        """
        self.users.pop(user, None)


@implementer(IPacketConsumer)
class Consumer:
    """
    An L{IPacketConsumer}.

    @ivar got: packets.
    @ivar said: whether packets pass: MTUs and errors.
    """

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.said: list[Any] = []

    def packetReceived(self, buffer: Any, start: int, stop: int) -> None:
        self.got.append(bytes(buffer[start:stop]))

    def interfaceUp(self, mtu: int) -> None:
        self.said.append(mtu)

    def interfaceFailed(self, error: Exception) -> None:
        self.said.append(error)


def packet(source: str, destination: str, length: int = 100) -> bytes:
    """
    @param length: octets of it.
    @return: an IP packet of a protocol for tests (RFC 3692), with a wrong checksum, for which nobody looks.
    """
    ends = ip_address(source.partition("/")[0]).packed + ip_address(destination.partition("/")[0]).packed
    if len(ends) == 8:
        head = struct.pack(">BBHHHBBH", 0x45, 0, length, 0, 0x4000, 64, HOP_BY_HOP, 0) + ends
    else:
        head = struct.pack(">IHBB", 6 << 28, length - 40, HOP_BY_HOP, 64) + ends
    return head + bytes(n & 0xFF for n in range(length - len(head)))


class Interfaces:
    """
    An interface on each of two devices.
    """

    def setUp(self: Any) -> None:
        """
        Open them.
        """
        super().setUp()  # type: ignore[misc]
        self.all: list[IPoIBInterface] = []
        self.here, self.there = self.interface(self.one, ONE), self.interface(self.two, TWO)
        self.settle(0.2)
        self.heard, self.said = self.there.consumer.got, self.here.consumer.said

    def interface(self: Any, device: Any, *addresses: str, **arguments: Any) -> IPoIBInterface:
        """
        @return: an interface with a consumer, closed after the test.
        """
        made = IPoIBInterface(Channel(device), list(map(ip_interface, addresses)), **arguments)  # type: ignore[arg-type]
        made.consumer = Consumer()
        self.all.append(made)
        self.addCleanup(self.closed, made)
        return made

    def closed(self: Any, interface: IPoIBInterface) -> None:
        """
        Close one unless it is.
        """
        if not interface.isClosed:
            interface.close()

    def send(
        self: Any, length: int = 100, header: bytes = IPV4, source: str = ONE, destination: str = TWO
    ) -> bytes:
        """
        @return: a packet that was sent from C{here}.
        """
        made = packet(source, destination, length)
        self.here.send(header + made)
        self.settle()
        return made


class InterfaceContract(Interfaces):
    """
    What an interface does for its user.
    """

    def test_datagrams(self: Any) -> None:
        """
        The first packet is found a way for, and the others follow.
        """
        verifyObject(IPacketConsumer, self.here.consumer)
        sent = [self.send(length) for length in (20, 100, 1000)]
        self.settle(0.2)
        self.assertEqual(self.heard, sent)

    def test_connected(self: Any) -> None:
        """
        Packets as long as connected mode has them.
        """
        self.assertEqual(self.here.mtu, 65520)
        first = self.send()
        self.settle(0.2)
        sent = [self.send(length) for length in (20, 3000, 65520)]
        self.settle(0.2)
        self.assertEqual([len(each) for each in self.heard], [len(each) for each in (first, *sent)])
        self.assertEqual(self.heard, [first, *sent])
        self.assertEqual(self.one.counters["datagrams_lost"], 0)

    def test_linkLocal(self: Any) -> None:
        """
        IPv6 between the link-local addresses that the GIDs give.
        """
        source, destination = (str(each.addresses[-1]) for each in (self.here, self.there))
        self.assertTrue(source.startswith("fe80::"), source)
        sent = [self.send(length, IPV6, source, destination) for length in (40, 1000)]
        self.settle(0.2)
        self.assertEqual(self.heard, sent)

    def test_resolve(self: Any) -> None:
        """
        An IP address leads to a hardware address and a path; or to nothing.
        """
        done = self.here.resolve("10.9.0.2")
        self.settle(0.2)
        hardware, path = self.successResultOf(done)
        self.assertEqual(hardware[1:], self.there.hardwareAddress[1:])
        self.assertFalse(path.handle.closed)
        for address in ("10.9.0.77", "192.0.2.1"):
            done = self.here.resolve(address)
            self.settle(4.0)
            self.assertIn(address, str(self.failureResultOf(done, NoRouteError).value))
        done = self.here.resolve("10.9.0.78")
        done.cancel()
        self.failureResultOf(done, CancelledError)
        self.patch(limits, "IPOIB_RESOLUTIONS", 0)
        self.failureResultOf(self.here.resolve("10.9.0.2"), ResourceLimitError)

    def test_multicast(self: Any) -> None:
        """
        A group's packets come to those that have joined it, and not to their sender.
        """
        group = "239.1.2.3"
        for each in self.all:
            each.join(group)
        self.settle(0.2)
        sent = self.send(destination=group)
        self.settle(0.2)
        self.assertEqual((self.heard, self.here.consumer.got), ([sent], []))
        self.there.leave(group)
        self.settle(0.2)
        self.send(destination=group)
        self.settle(0.2)
        self.assertEqual(self.heard, [sent])
        self.assertRaises(ValueError, self.here.join, "10.9.0.3")

    def test_ready(self: Any) -> None:
        """
        Users are told when packets pass.
        """
        self.assertIs(self.successResultOf(self.here.ready()), self.here)
        other = self.interface(self.one, "10.9.1.1/24")
        done = other.ready()
        self.settle(0.2)
        self.assertIs(self.successResultOf(done), other)
        self.assertEqual(other.consumer.said[-1], other.mtu)

    def test_restarted(self: Any) -> None:
        """
        A peer that comes back with another queue pair is found in less than 3 seconds.
        """
        self.send()
        self.settle(0.2)
        self.there.close()
        self.settle()
        again = self.interface(self.two, TWO)
        start = self.clock.seconds()
        while not again.consumer.got and self.clock.seconds() < start + 10:
            self.send()
            self.settle(0.1)
        self.assertLess(self.clock.seconds() - start, 3.0)

    def test_close(self: Any) -> None:
        """
        The last user's close ends it, and those that wait for it.
        """
        self.send(3000)
        self.settle(0.2)
        self.here.users += 1
        self.assertIsNone(self.successResultOf(self.here.close()))
        self.assertFalse(self.here.isClosed)
        waiting = self.here.resolve("10.9.0.99")
        self.settle()
        done = self.here.close()
        self.assertTrue(self.here.isClosed)
        self.settle()
        self.assertIsNone(self.successResultOf(done))
        for each in (waiting, self.here.ready(), self.here.resolve("10.9.0.2")):
            self.failureResultOf(each, InterfaceClosedError)
        self.send()
        self.assertEqual(self.here.channel.users, {})
        self.assertNotIn("ipoib", self.one.counting)
        self.assertIsNone(self.successResultOf(self.here.close()))
        used = self.one.inUse()
        self.assertEqual([used[kind] for kind in ("pd", "qp", "ah")], [0, 0, 0])
        self.assertEqual(self.one.portWatchers, [self.one._sa.event] if self.one._sa else [])

    def test_connectionLost(self: Any) -> None:
        """
        The reactor stops.
        """
        waiting = self.here.resolve("10.9.0.99")
        self.here.connectionLost(Failure(Exception()))
        self.failureResultOf(waiting, InterfaceClosedError)
        self.assertIsInstance(self.said[-1], InterfaceClosedError)
        self.assertEqual(self.here.channel.users, {})
        self.assertIsNone(self.successResultOf(self.here.close()))

    def test_consumerFails(self: Any) -> None:
        """
        The exceptions of a consumer are logged, and end neither the timers nor the joining.
        """

        def fail(*arguments: Any) -> None:
            raise ZeroDivisionError

        for name in ("packetReceived", "interfaceUp", "interfaceFailed"):
            self.patch(self.here.consumer, name, fail)
        self.send(destination="10.9.0.99")
        self.settle(4.0)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        done = self.here.resolve("10.9.0.98")
        self.settle(4.0)
        self.failureResultOf(done, NoRouteError)
        self.here.interfaceFailed(HCAError("for a while"))
        ready = self.here.ready()
        self.here.interfaceUp(self.here.mtu)
        self.successResultOf(ready)
        self.here.connectionLost(Failure(Exception()))
        self.assertEqual(self.here.channel.users, {})
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 3)

    def again(self: Any, change: Any) -> None:
        """
        Join groups, change the port, and see that all is as it was.
        """
        groups = "239.1.2.3", "239.1.2.4", "224.0.0.1"
        for each in (groups[0], *groups[:2]):
            self.here.join(each)
        self.here.leave(groups[0])
        self.here.leave(groups[1])
        self.here.leave(groups[2])
        self.settle(0.2)
        self.said.clear()
        change()
        self.assertIsInstance(self.said[0], DeviceError)
        self.assertEqual(self.said[-1], self.here.mtu)
        self.assertIs(self.successResultOf(self.here.ready()), self.here)
        for each in groups:
            self.there.send(IPV4 + packet(TWO, each))
        self.settle(0.2)
        sent = [packet(TWO, groups[0]), packet(TWO, groups[2])]
        self.assertCountEqual(self.here.consumer.got, sent)
        self.here.leave(groups[0])
        self.settle(0.2)
        self.there.send(IPV4 + packet(TWO, groups[0]))
        self.settle(0.2)
        self.assertCountEqual(self.here.consumer.got, sent)

    def test_partition(self: Any) -> None:
        """
        An interface whose partition goes is up again when it is back.
        """
        self.assertRaises(DeviceError, self.interface, self.one, ONE, pKey=0x8001)

        def change() -> None:
            lookup = self.here.resolve("10.9.0.99")
            self.one.changePort(PortChange(partitions=(0,)))
            self.failureResultOf(lookup, NoRouteError)
            ready = self.here.ready()
            self.one.changePort(PortChange(partitions=(0, 0x8002)))
            self.send()
            self.settle(2.0)
            self.assertNoResult(ready)
            self.assertFalse(self.here.isClosed)
            self.one.changePort(PortChange(partitions=(PKEY,)))
            self.settle(2.0)
            self.assertIs(self.successResultOf(ready), self.here)

        self.again(change)
        self.heard.clear()
        sent = [self.send(length) for length in (100, 3000)]
        self.settle(0.5)
        self.assertEqual(self.heard, sent)

    def test_moved(self: Any) -> None:
        """
        A port with another GID has another hardware address, and is in the same groups.
        """
        before, gid = self.here.hardwareAddress, self.one.gid

        def change() -> None:
            self.one.changePort(PortChange(gids=(gid ^ 0xFF,)))
            self.assertEqual(self.here.hardwareAddress, before[:-1] + bytes((before[-1] ^ 0xFF,)))
            # The manager of a subnet knows no other.
            self.one.changePort(PortChange(gids=(gid,)))
            self.settle(2.0)

        self.again(change)
        self.assertEqual(self.here.hardwareAddress, before)

    def test_partitionFull(self: Any) -> None:
        """
        Without a queue pair for the partition that is back the interface waits for the next change.
        """
        create = self.one.createQueuePair
        self.one.changePort(PortChange(partitions=(0,)))
        self.patch(self.one, "createQueuePair", mock.Mock(side_effect=ResourceLimitError("no more")))
        self.one.changePort(PortChange(partitions=(PKEY,)))
        self.patch(self.one, "createQueuePair", create)
        self.one.changePort(PortChange(partitions=(PKEY, 0x8002)))
        self.settle(2.0)
        self.assertEqual(self.said[-1], self.here.mtu)
        self.assertTrue(self.here.ready().called)

    def test_counters(self: Any) -> None:
        """
        They are shown with the device's.
        """
        self.here.send(IPV4 + b"\0")
        self.assertEqual(self.one.statistics()["ipoib_send_malformed"], 1)

    def test_datagramMode(self: Any) -> None:
        """
        A neighbour without connected mode gets what fits into a datagram, and ICMP says what that is.
        """
        two = self.interface(self.two, "10.9.0.3/24", isConnected=False)
        self.settle(0.2)
        self.assertLessEqual(two.mtu, 2044)
        self.send(200, destination="10.9.0.3")
        self.settle(0.2)
        self.send(3000, destination="10.9.0.3")
        self.settle(0.2)
        self.assertEqual([len(each) for each in two.consumer.got], [200])
        (error,) = self.here.consumer.got
        self.assertEqual((error[20:22], struct.unpack_from(">H", error, 26)[0]), (b"\x03\x04", two.mtu))


class LoopbackTests(InterfaceContract, OnLoopback):
    """
    HCAs of one thread.
    """


@skipIf(bool(MISSING), f"missing: {MISSING}")
class SharedMemoryTests(InterfaceContract, OnSharedMemory):
    """
    HCAs of one host.
    """


class PacketTests(InterfaceContract, OnPackets):
    """
    Hosts.
    """


class SubnetTests(InterfaceContract, OnSubnet):
    """
    Ports of a subnet with a manager.
    """
