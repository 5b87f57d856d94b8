"""
Ports on real interfaces: of one thread, in shared memory, and on a subnet.
"""

from __future__ import annotations

from functools import partial
from ipaddress import ip_interface
from typing import Any
from unittest import skipIf

from twisted.internet.defer import gatherResults
from twisted.names.authority import BindAuthority
from twisted.names.client import Resolver
from twisted.names.dns import DNSDatagramProtocol
from twisted.names.server import DNSServerFactory
from twisted.python.filepath import FilePath

from tests.hca.hcas import serve
from tests.ipoib.pairs import OnLoopback, OnSharedMemory, OnSubnet
from tests.ipoib.test_interface import MISSING, Channel, Interfaces
from tests.ipoib.userspace.wire import Recorder
from tests.support.calls import PACKAGE, called
from twisted_ib.hca.device.device import Device
from twisted_ib.ipoib.interface import IPoIBInterface
from twisted_ib.ipoib.port import IPoIBPort
from twisted_ib.ipoib.protocol.stack.udp import LONGEST_IPV4
from twisted_ib.ipoib.userspace import IPStack

GROUP, GROUP_IPV6 = "239.1.2.3", "ff02::1:3"
QUERIES = 100
ZONE = b"""$ORIGIN example.zone.
$TTL 60
@ IN SOA ns.example.zone. root.example.zone. 1 60 60 60 60
@ IN NS ns.example.zone.
""" + b"".join(b"host%d IN A 192.0.2.%d\n" % (number, number) for number in range(QUERIES))


class Ports(Interfaces):
    """
    A stack on each of two interfaces.
    """

    def setUp(self: Any) -> None:
        """
        Put them there.
        """
        super().setUp()
        self.stacks = [IPStack(each, self.clock) for each in (self.here, self.there)]

    def opened(self: Any, at: int, port: int = 0, interface: str = "", protocol: Any = None) -> Any:
        """
        @return: the protocol of another port.
        """
        protocol = protocol or Recorder()
        stack = self.stacks[at]
        stack.interface.users += 1
        opened = IPoIBPort(port, protocol, interface, 65535, self.clock)
        opened.openOn(stack)
        self.addCleanup(opened.connectionLost)
        return protocol


class PortContract(Ports):
    """
    What ports do on any of them.
    """

    def test_datagrams(self: Any) -> None:
        """
        Datagrams of any length arrive, both ways and over both versions of IP.
        """
        linkLocal = [str(each.addresses[-1].ip) for each in (self.here, self.there)]
        for here, there in (("10.9.0.1", "10.9.0.2"), linkLocal):
            one, two = self.opened(0, 7000, here), self.opened(1, 7001, there)
            one.transport.write(b"first", (there, 7001))
            self.settle(2.0)
            for length in (0, 1, 64, 3000, 65492, LONGEST_IPV4):
                one.transport.write(bytes(length), (there, 7001))
                self.settle()
                two.transport.write(bytes(length), (here, 7000))
                self.settle()
            lengths = [0, 1, 64, 3000, 65492, LONGEST_IPV4]
            self.assertEqual([len(data) for data, _ in one.received], lengths)
            self.assertEqual([len(data) for data, _ in two.received], [5, *lengths])
            self.assertEqual({sender for _, sender in one.received}, {(there, 7001)})

    def test_pathMTU(self: Any) -> None:
        """
        A neighbour without connected mode is sent fragments, when the interface has said how long they may
        be.
        """
        other = self.interface(self.two, "10.9.0.3/24", isConnected=False)
        self.stacks.append(IPStack(other, self.clock))
        self.settle(1.0)
        one, two = self.opened(0, 7000), self.opened(2, 7001)
        for length in (10, 8000, 8000):
            one.transport.write(bytes(length), ("10.9.0.3", 7001))
            self.settle(2.0)
        self.assertEqual([len(data) for data, _ in two.received], [10, 8000])

    def test_refused(self: Any) -> None:
        """
        Where nothing receives, a connected port is told, and the device of the other end counts it.
        """
        one = self.opened(0)
        one.transport.connect("10.9.0.2", 9)
        one.transport.write(b"x")
        self.settle(2.0)
        self.assertEqual(one.refusals, 1)
        self.assertEqual(self.two.counting["ipoib"]()["no_port"], 1)

    def test_groups(self: Any) -> None:
        """
        A group's members have each datagram once, and the sender none unless it is one.
        """
        for group, interface in ((GROUP, ""), (GROUP_IPV6, "::")):
            one, two = self.opened(0, 5000, interface), self.opened(1, 5000, interface)
            self.successResultOf(two.transport.joinGroup(group))
            self.settle(2.0)
            for number in range(10):
                one.transport.write(b"%d" % number, (group, 5000))
                if not number:
                    # It waits for the sender's own membership, as few may.
                    self.settle(1.0)
            self.settle(2.0)
            self.assertEqual([data for data, _ in two.received], [b"%d" % number for number in range(10)])
            self.assertEqual(one.received, [])
            self.successResultOf(one.transport.joinGroup(group))
            self.settle(2.0)
            one.transport.write(b"me too", (group, 5000))
            self.settle(2.0)
            self.assertEqual(
                [[data for data, _ in each.received[-1:]] for each in (one, two)], [[b"me too"]] * 2
            )
            self.assertEqual(len(one.received), 1)

    def test_names(self: Any) -> None:
        """
        Twisted Names serves questions of its own client.
        """
        path = FilePath(self.mktemp())
        path.setContent(ZONE)
        server = DNSServerFactory(authorities=[BindAuthority(path.asBytesMode().path)])
        self.opened(0, 53, "10.9.0.1", DNSDatagramProtocol(server, self.clock))
        resolver = Resolver(servers=[("10.9.0.1", 53)], reactor=Reactor(self))
        # Few datagrams wait while a neighbour is looked for.
        warm = resolver.lookupAddress("host0.example.zone")
        self.settle(2.0)
        self.successResultOf(warm)
        answers = []
        for first in range(0, QUERIES, 10):
            names = [f"host{number}.example.zone" for number in range(first, first + 10)]
            asked = gatherResults([resolver.lookupAddress(name) for name in names])
            self.settle(0.1)
            self.settle(0.1)
            answers += self.successResultOf(asked)
        found = [str(answer[0][0].payload.dottedQuad()) for answer in answers]
        self.assertEqual(found, [f"192.0.2.{number}" for number in range(QUERIES)])


class Reactor:
    """
    What C{twisted.names.client} needs of a reactor.
    """

    def __init__(self, case: Any) -> None:
        self._case = case
        self.callLater = case.clock.callLater

    def listenUDP(self, port: int, protocol: Any, interface: str = "", maxPacketSize: int = 8192) -> Any:
        """
        Open a port on IPoIB.
        """
        return self._case.opened(1, port, interface, protocol).transport


class LoopbackTests(PortContract, OnLoopback):
    """
    HCAs of one thread.
    """

    def test_calls(self) -> None:
        """
        The functions that one datagram more takes, down to the medium and up from it.
        """
        one, two = self.opened(0, 7000), self.opened(1, 7001)
        for _ in range(3):
            one.transport.write(bytes(64), ("10.9.0.2", 7001))
            self.settle(0.2)
        self.assertEqual(len(two.received), 3)
        send = partial(one.transport.write, bytes(64), ("10.9.0.2", 7001))
        # Of these three wake the peer, once for all datagrams of a turn.
        self.assertLessEqual(called(send, PACKAGE).total(), 12)
        self.settle()
        send()
        calls = called(self.settle, PACKAGE)
        up = ("delivered", "connectedReceived", "deliver", "packetReceived", "callLogged", "received")
        self.assertEqual([calls[name] for name in up], [1, 1, 1, 1, 1, 2])
        self.assertEqual(len(two.received), 5)


@skipIf(bool(MISSING), f"missing: {MISSING}")
class SharedMemoryTests(Ports, OnSharedMemory):
    """
    HCAs of one host.
    """

    def test_receivers(self) -> None:
        """
        1, 3 and 10 receivers: each has each datagram once.
        """
        receivers: list[Recorder] = []
        devices = [self.one, self.two]
        one = self.opened(0, 5000)
        self.stacks.pop()
        for number in range(10):
            device = Device("shm0", self.clock.seconds)
            self.addCleanup(device.close)
            devices.append(device)
            interface = IPoIBInterface(Channel(device), [ip_interface(f"10.9.0.{number + 10}/24")])  # type: ignore[arg-type]
            self.addCleanup(self.closed, interface)
            self.stacks.append(IPStack(interface, self.clock))
            receivers.append(self.opened(number + 1, 5000))
            if number + 1 not in (1, 3, 10):
                continue
            for each in receivers:
                each.transport.joinGroup(GROUP)
            serve(self.clock, 0.1, *devices)
            for count in range(10):
                one.transport.write(b"%d" % count, (GROUP, 5000))
            serve(self.clock, 0.1, *devices)
            for each in receivers:
                self.assertEqual([data for data, _ in each.received], [b"%d" % count for count in range(10)])
                each.received.clear()
                self.successResultOf(each.transport.leaveGroup(GROUP))
            self.assertEqual(one.received, [])


@skipIf(bool(MISSING), f"missing: {MISSING}")
class SubnetTests(PortContract, OnSubnet):
    """
    Ports of a subnet with a manager.
    """
