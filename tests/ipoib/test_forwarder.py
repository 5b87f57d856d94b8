"""
Tests for L{twisted_ib.ipoib.forwarder}, with a pair of sockets in place of a TUN.
"""

from __future__ import annotations

import errno
import os
import socket
from ipaddress import ip_interface
from typing import Any

from twisted.internet.interfaces import IReadDescriptor
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.ipoib.protocol.test_memberships import GROUP6, igmp, mld
from tests.support.calls import called
from twisted_ib import limits
from twisted_ib.errors import HCAError, InterfaceClosedError, ResourceLimitError, TunError
from twisted_ib.ipoib import forwarder
from twisted_ib.ipoib.forwarder import Forwarder

NAME = "239.1.2.3"
IPV4 = bytes.fromhex("4500001c00000000401100000a0900010a090002") + b"datagram"
IPV6 = bytes.fromhex("6000000000083a40") + bytes(32) + b"icmp6..."


class FakeTun:
    """
    A TUN whose kernel is the other socket of a pair.
    """

    name = "ib0"

    def __init__(self) -> None:
        self.socket, self.kernel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.setblocking(False)
        self.descriptor = self.socket.fileno()
        self.calls: list[Any] = []
        self.error: TunError | None = None

    def begin(self, mtu: int, addresses: Any) -> None:
        if self.error:
            raise self.error
        self.calls.append((mtu, addresses))

    def setMTU(self, mtu: int) -> None:
        if self.error:
            raise self.error
        self.calls.append(mtu)

    def routeMulticast(self) -> None:
        self.calls.append("multicast")

    def close(self) -> None:
        self.socket.close()
        self.descriptor = -1


class FakeInterface:
    """
    An IPoIB interface that keeps what it is to send.
    """

    addresses = (ip_interface("10.9.0.1/24"),)
    consumer: Any = None

    def __init__(self, mtu: int = 0) -> None:
        self.mtu = mtu
        self.frames: list[bytes] = []
        self.joined: list[Any] = []
        self.error: HCAError | None = None
        self.closed = 0

    def send(self, frame: Any) -> None:
        self.frames.append(bytes(frame))

    def join(self, group: str) -> None:
        if self.error:
            raise self.error
        self.joined.append(group)

    def leave(self, group: str) -> None:
        self.joined.append((group, "left"))

    def close(self) -> None:
        self.closed += 1


class FakeReactor(Clock):
    """
    A reactor's readers and calls.
    """

    def __init__(self) -> None:
        super().__init__()
        self.readers: list[Any] = []
        self.addReader, self.removeReader = self.readers.append, self.readers.remove


class ForwarderTests(SynchronousTestCase):
    """
    L{Forwarder}.
    """

    def setUp(self) -> None:
        """
        An interface that is up.
        """
        self.errors: list[BaseException] = []
        self.reactor, self.tun, self.interface = FakeReactor(), FakeTun(), FakeInterface()
        self.addCleanup(self.tun.kernel.close)
        self.addCleanup(self.tun.close)
        self.forwarder = self.made(self.interface)
        self.forwarder.interfaceUp(2044)

    def made(self, interface: FakeInterface, **options: Any) -> Forwarder:
        """
        @return: a forwarder, the interface's consumer.
        """
        made = Forwarder(self.reactor, self.tun, interface, self.errors.append, **options)  # type: ignore[arg-type]
        self.assertIs(interface.consumer, made)
        return made

    def give(self, *packets: bytes) -> None:
        """
        The kernel sends packets, and the reactor reads.
        """
        for packet in packets:
            self.tun.kernel.send(packet)
        self.forwarder.doRead()

    def test_interface(self) -> None:
        """
        It is what a reactor reads, from when the interface is up until it stops.
        """
        verifyObject(IReadDescriptor, self.forwarder)
        self.assertIs(self.successResultOf(self.forwarder.up), self.forwarder)
        self.assertEqual(self.reactor.readers, [self.forwarder])
        self.assertEqual((self.forwarder.fileno(), self.forwarder.logPrefix()), (self.tun.descriptor, "ib0"))
        self.forwarder.stop()
        self.assertEqual((self.reactor.readers, self.tun.socket.fileno()), ([], -1))
        self.forwarder.stop()

    def test_up(self) -> None:
        """
        The first time the TUN is configured; later it has another MTU, if that changed.
        """
        self.forwarder.interfaceUp(4092)
        self.assertEqual(self.tun.calls, [(2044, self.interface.addresses), 4092])
        self.assertEqual(self.reactor.readers, [self.forwarder])

    def test_alone(self) -> None:
        """
        In a namespace of its own it also has the multicast route.
        """
        self.made(self.interface, isAlone=True).interfaceUp(2044)
        self.assertEqual(self.tun.calls[-1], "multicast")

    def test_before(self) -> None:
        """
        An interface that was up before.
        """
        self.successResultOf(self.made(FakeInterface(4092)).up)
        self.assertEqual(self.tun.calls[-1], (4092, self.interface.addresses))

    def test_sent(self) -> None:
        """
        Each packet leaves with its encapsulation header, IPv4 and IPv6 mixed, of 0 to 65,535 octets.
        """
        long = IPV4[:1] + bytes(65534)
        self.tun.kernel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)
        packets = [IPV4, IPV6, IPV6, IPV4, long]
        self.give(*packets)
        kinds = {0x40: b"\x08\0\0\0", 0x60: b"\x86\xdd\0\0"}
        self.assertEqual(self.interface.frames, [kinds[each[0] & 0xF0] + each for each in packets])

    def test_bounded(self) -> None:
        """
        One turn of the reactor has a bounded number of packets.
        """
        self.patch(limits, "TUN_PACKETS_PER_TURN", 3)
        self.give(*[IPV4] * 5)
        self.assertEqual(len(self.interface.frames), 3)
        self.forwarder.doRead()
        self.assertEqual(len(self.interface.frames), 5)

    def test_cost(self) -> None:
        """
        Packets cost no call of Python but the interface's, and one each when they are received.
        """
        packets = 8
        for _ in range(packets):
            self.tun.kernel.send(IPV4)
        self.patch(self.interface, "send", len)
        sent = called(self.forwarder.doRead)
        self.assertEqual(sum(sent.values()), 1, sent)
        received = called(lambda: self.forwarder.packetReceived(IPV4, 0, len(IPV4)))
        self.assertEqual(received["packetReceived"], 1)
        self.assertEqual(sum(received.values()), 2, received)

    def test_reused(self) -> None:
        """
        No packet has memory of its own: all are read to the same place.
        """
        seen: list[Any] = []
        self.patch(self.interface, "send", lambda frame: seen.append(frame.obj))
        self.give(IPV4, IPV6)
        self.assertIs(seen[0], seen[1])

    def test_received(self) -> None:
        """
        A packet is written without a copy, from the middle of a buffer.
        """
        self.forwarder.packetReceived(bytearray(b"...." + IPV6 + b"..."), 4, 4 + len(IPV6))
        self.assertEqual(self.tun.kernel.recv(1000), IPV6)

    def test_notTaken(self) -> None:
        """
        What the kernel does not take is lost, and nothing else happens.
        """
        for number in (errno.EIO, errno.EINVAL, errno.ENOBUFS, errno.EAGAIN):
            self.patch(forwarder, "os", _Writer(number))
            self.forwarder.packetReceived(IPV4, 0, len(IPV4))
        self.assertEqual(self.errors, [])
        self.assertNotEqual(self.tun.descriptor, -1)

    def test_gone(self) -> None:
        """
        A TUN that cannot be read or written any more is told once, and the interface closed in the next turn;
        packets and events of the interface then do nothing.
        """
        self.patch(forwarder, "os", _Writer(errno.EBADFD))
        for lose in (
            lambda made: made.doRead(),
            lambda made: made.packetReceived(IPV4, 0, len(IPV4)),
            lambda made: made.connectionLost(Failure(OSError(errno.EBADFD, "gone"))),
        ):
            self.tun.close()
            self.reactor, self.tun, interface = FakeReactor(), FakeTun(), FakeInterface(2044)
            self.addCleanup(self.tun.kernel.close)
            made = self.made(interface)
            self.errors.clear()
            lose(made)
            [error] = self.errors
            self.assertIsInstance(error, TunError)
            self.assertIn("ib0: the TUN device was removed", str(error))
            self.assertEqual((self.reactor.readers, self.tun.descriptor, interface.closed), ([], -1, 0))
            made.packetReceived(IPV4, 0, len(IPV4))
            made.interfaceUp(4092)
            made.interfaceFailed(InterfaceClosedError("closed"))
            made.connectionLost(Failure(HCAError()))
            self.reactor.advance(0)
            self.assertEqual((self.errors, interface.closed), ([error], 1))

    def test_closedBefore(self) -> None:
        """
        An interface that is closed before it was up: C{up} fails.
        """
        made = self.made(FakeInterface())
        made.interfaceFailed(InterfaceClosedError("the device was closed"))
        self.failureResultOf(made.up, InterfaceClosedError)
        self.assertEqual(self.errors, [])

    def test_memberships(self) -> None:
        """
        What the kernel's programs join and leave, the interface joins and leaves: once, though it is
        repeated.
        """
        join, leave = "0400 0000 ef010203", "0300 0000 ef010203"
        self.give(
            igmp(leave), igmp(join), igmp(join), mld(f"0400 0000 {GROUP6.hex()}"), igmp(leave), igmp(leave)
        )
        self.assertEqual(self.interface.joined, [NAME, "ff02::1:ff00:2", (NAME, "left")])
        # Reports are packets too.
        self.assertEqual(len(self.interface.frames), 6)

    def test_tooManyGroups(self) -> None:
        """
        A group that the interface refuses is told, and asked for again when it is reported again: told once,
        until a group is joined again.
        """
        error = self.interface.error = ResourceLimitError("too many groups")
        report, other = igmp("0400 0000 ef010203"), igmp("0400 0000 ef010204")
        self.give(report, other, report)
        self.assertEqual(self.errors, [error])
        self.interface.error = None
        self.give(report)
        self.assertEqual(self.interface.joined, [NAME])
        self.interface.error = error
        self.give(other)
        self.assertEqual(self.errors, [error, error])

    def test_failed(self) -> None:
        """
        An interface that fails is told, and the TUN stays for when it is up again.
        """
        error = HCAError("the group has gone")
        self.forwarder.interfaceFailed(error)
        self.assertEqual((self.errors, self.reactor.readers), ([error], [self.forwarder]))

    def test_refused(self) -> None:
        """
        A TUN that cannot be configured is a failure; later, when the MTU changes, it is told: an end too.
        """
        self.tun.error = TunError("no right")
        other = self.made(FakeInterface(2044))
        self.assertEqual(str(self.failureResultOf(other.up, TunError).value), "no right")
        self.forwarder.interfaceUp(4092)
        self.assertEqual((self.errors, self.reactor.readers), ([self.tun.error], []))


class _Writer:
    def __init__(self, number: int) -> None:
        self._number = number

    def readv(self, *arguments: object) -> int:
        raise OSError(self._number, os.strerror(self._number))

    write = readv
