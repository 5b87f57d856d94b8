"""
Tests for L{twisted_ib.ipoib.port}: two stacks on one wire.
"""

from __future__ import annotations

from functools import partial
from ipaddress import ip_address
from typing import Any

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.error import (
    CannotListenError,
    InvalidAddressError,
    MessageLengthError,
    MulticastJoinError,
)
from twisted.internet.interfaces import IListeningPort, IMulticastTransport
from twisted.internet.task import Clock
from twisted.pair.ip import IPProtocol
from twisted.pair.rawudp import RawUDPProtocol
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.ipoib.userspace.wire import Recorder, Stacks
from twisted_ib import limits
from twisted_ib.errors import InterfaceClosedError, ResourceLimitError
from twisted_ib.ipoib.port import InterfaceAddress, IPoIBPort, RawIPoIBPort
from twisted_ib.ipoib.protocol.stack.udp import LONGEST_IPV4, LONGEST_IPV6

GROUP, GROUP_IPV6 = "239.1.2.3", "ff02::1:3"


def writeTo(protocol: Recorder, host: str, port: int) -> None:
    """
    Write nothing to an address.
    """
    protocol.transport.write(b"", (host, port))


class PortCase(SynchronousTestCase):
    """
    Two stacks.
    """

    def setUp(self) -> None:
        """
        Open none of their ports.
        """
        self.net = Stacks()

    def pair(self, **options: Any) -> tuple[Recorder, Recorder]:
        """
        @return: a port of each stack.
        """
        return self.net.open(0, 7000, **options), self.net.open(1, 7001, **options)


class OpeningTests(PortCase):
    """
    Ports are opened and closed.
    """

    def test_interfaces(self) -> None:
        """
        A port provides what Twisted's does.
        """
        port = self.net.open(0).transport
        verifyObject(IListeningPort, port)
        verifyObject(IMulticastTransport, port)

    def test_hosts(self) -> None:
        """
        The local address; that of all addresses as it was given.
        """
        for interface, host in (
            ("10.9.0.1", IPv4Address("UDP", "10.9.0.1", 53)),
            ("10.9.0.1/24", IPv4Address("UDP", "10.9.0.1", 54)),
            ("fd00::1", IPv6Address("UDP", "fd00::1", 53)),
            ("", IPv4Address("UDP", "0.0.0.0", 55)),
            ("::", IPv6Address("UDP", "::", 55)),
        ):
            self.assertEqual(self.net.open(0, host.port, interface).transport.getHost(), host)

    def test_taken(self) -> None:
        """
        A number is taken for an address, and with all addresses for each; not for the other version of IP.
        """
        self.net.open(0, 53)
        for interface in ("10.9.0.1", "0.0.0.0", ""):
            with self.assertRaises(CannotListenError) as caught:
                self.net.open(0, 53, interface)
            self.assertIn("Address already in use", str(caught.exception))
        self.net.open(0, 53, "::")
        with self.assertRaises(CannotListenError):
            self.net.open(0, 53, "fd00::1")
        self.assertEqual(self.net.interfaces[0].closed, 4)

    def test_shared(self) -> None:
        """
        A number is shared by those who all say so.
        """
        self.net.open(0, 53, listenMultiple=True)
        self.net.open(0, 53, listenMultiple=True)
        with self.assertRaises(CannotListenError):
            self.net.open(0, 53)

    def test_address(self) -> None:
        """
        The address is one of the interface's.
        """
        with self.assertRaises(CannotListenError) as caught:
            self.net.open(0, 53, "10.9.0.9")
        self.assertIn("assign requested address", str(caught.exception))

    def test_arguments(self) -> None:
        """
        What can be neither an address, nor a number, nor a length.
        """
        with self.assertRaises(InvalidAddressError):
            IPoIBPort(53, Recorder(), "example.com")
        for options in ({"port": -1}, {"port": 65536}, {"port": True}, {"maxPacketSize": -1}):
            with self.assertRaises(ValueError):
                IPoIBPort(**{"port": 53, "protocol": Recorder(), **options})  # type: ignore[arg-type]

    def test_ephemeral(self) -> None:
        """
        Any number is from 49152 up, and free; if none is found, the port cannot be opened.
        """
        numbers = {self.net.open(0).transport.getHost().port for _ in range(100)}
        self.assertEqual(len(numbers), 100)
        self.assertGreaterEqual(min(numbers), 49152)
        self.patch(self.net.stacks[0], "_draw", lambda bits: min(numbers) - 49152)
        with self.assertRaises(CannotListenError):
            self.net.open(0)

    def test_stop(self) -> None:
        """
        A port closes in the next turn, tells its protocol once, and everybody who asked.
        """
        one = self.net.open(0, 53)
        port = one.transport
        answers = [port.stopListening(), port.stopListening()]
        self.assertEqual(one.stops, 0)
        self.net.clock.advance(0)
        self.assertEqual(one.stops, 1)
        self.assertEqual([self.successResultOf(each) for each in answers], [None, None])
        self.successResultOf(port.stopListening())
        self.assertEqual((one.stops, self.net.interfaces[0].closed), (1, 1))
        self.assertIs(one.transport, None)
        port.write(b"lost", ("10.9.0.2", 1))
        self.net.open(0, 53)

    def test_nothingAfterStop(self) -> None:
        """
        A protocol that has stopped its port gets nothing more.
        """
        one, two = self.pair()
        one.transport.stopListening()
        two.transport.write(b"late", one.address)
        self.net.wire.pump()
        self.assertEqual(one.received, [])

    def test_interfaceGone(self) -> None:
        """
        Ports close when their interface has gone, with the device or with the reactor.
        """
        one, raw = self.net.open(0, 53), RawRecorder()
        RawIPoIBPort(self.net.clock, raw, "10.9.0.1", "ib0").openOn(self.net.stacks[0])
        self.net.stacks[0].interfaceFailed(ResourceLimitError("for now"))
        self.assertEqual((one.stops, raw.stops), (0, 0))
        self.net.stacks[0].interfaceFailed(InterfaceClosedError("gone"))
        self.assertEqual((one.stops, raw.stops), (1, 1))

    def test_text(self) -> None:
        """
        What it is called.
        """
        one = self.net.open(0, 53)
        port = one.transport
        self.assertIn("on 53", repr(port))
        self.assertEqual(port.logPrefix(), "Recorder (UDP)")
        port.stopListening()
        self.net.clock.advance(0)
        self.assertIn("not connected", repr(port))


class DatagramTests(PortCase):
    """
    Datagrams between two interfaces.
    """

    def test_both(self) -> None:
        """
        They arrive with the sender's address, over both versions of IP, and again from memory.
        """
        for first, second in (("10.9.0.1", "10.9.0.2"), ("fd00::1", "fd00::2"), ("", "10.9.0.2")):
            one = self.net.open(0, 0, first)
            two = self.net.open(1, 0, second)
            expected = []
            for payload in (b"a", b"ab", b"", b"abc", b"abc", b"x" * 1000):
                one.transport.write(payload, two.address)
                self.net.settle()
                expected.append((payload, ("10.9.0.1" if not first else first, one.address[1])))
            self.assertEqual(two.received, expected)
            two.transport.write(b"answer", two.received[0][1])
            self.net.settle()
            self.assertEqual(one.received, [(b"answer", two.address)])

    def test_linkLocal(self) -> None:
        """
        From all addresses: a link-local one is chosen for a link-local destination, and a zone is ignored.
        """
        one, two = self.net.open(0, 0, "::"), self.net.open(1, 0, "::")
        for host in ("fe80::2%ib0", "fd00::2"):
            one.transport.write(b"x", (host, two.address[1]))
        self.net.settle()
        self.assertEqual([sender[0] for _, sender in two.received], ["fe80::1", "fd00::1"])

    def test_bound(self) -> None:
        """
        A port's own address is the source, not the interface's first.
        """
        net = Stacks(("10.9.0.1/24", "10.9.0.5/24"), ("10.9.0.2/24",))
        one, two = net.open(0, 7000, "10.9.0.5"), net.open(1)
        one.transport.write(b"x", two.address)
        net.settle()
        self.assertEqual(two.received, [(b"x", ("10.9.0.5", 7000))])

    def test_self(self) -> None:
        """
        A datagram to an own address arrives in a later turn, without the wire.
        """
        one = self.net.open(0)
        one.transport.write(b"me", one.address)
        self.assertEqual(one.received, [])
        self.net.settle()
        self.assertEqual(one.received, [(b"me", one.address)])
        self.assertEqual(self.net.interfaces[0].sent, [])

    def test_sequence(self) -> None:
        """
        Parts of one datagram.
        """
        one, two = self.pair()
        one.transport.writeSequence([b"a", b"b"], two.address)
        self.net.settle()
        self.assertEqual(two.received, [(b"ab", one.address)])

    def test_maxPacketSize(self) -> None:
        """
        What a protocol does not take of a datagram is lost.
        """
        one, two = self.pair(maxPacketSize=3)
        for _ in range(2):
            one.transport.write(b"abcdef", two.address)
            self.net.settle()
        self.assertEqual(two.received, [(b"abc", one.address)] * 2)

    def test_long(self) -> None:
        """
        What is longer than the MTU goes in fragments, up to the longest datagram of UDP.
        """
        for first, second, longest in (
            ("10.9.0.1", "10.9.0.2", LONGEST_IPV4),
            ("fd00::1", "fd00::2", LONGEST_IPV6),
        ):
            one, two = self.net.open(0, 0, first), self.net.open(1, 0, second, maxPacketSize=65535)
            for length in (2044 - 28 - 20, 2044 - 28, 2044 - 27, longest):
                payload = bytes(range(251)) * 262
                one.transport.write(payload[:length], two.address)
                self.net.settle()
                self.assertEqual(two.received.pop(), (payload[:length], one.address))
            self.assertEqual({len(frame) <= 2048 for frame in self.net.interfaces[0].sent}, {True})
            with self.assertRaises(MessageLengthError):
                one.transport.write(bytes(longest + 1), two.address)

    def test_longSelf(self) -> None:
        """
        Nothing is fragmented within an interface.
        """
        for interface, longest in (("10.9.0.1", LONGEST_IPV4), ("fd00::1", LONGEST_IPV6)):
            one = self.net.open(0, 0, interface, maxPacketSize=65535)
            one.transport.write(bytes(longest), one.address)
            self.net.settle()
            self.assertEqual(one.received, [(bytes(longest), one.address)])

    def test_connected(self) -> None:
        """
        A connected port sends without an address, and receives from its peer only.
        """
        one, two = self.pair()
        other = self.net.open(1)
        other.transport.write(b"before", one.address)
        self.net.settle()
        one.transport.connect(*two.address)
        one.transport.write(b"a")
        one.transport.write(b"b", None)
        one.transport.write(b"c", two.address)
        for each in (two, other):
            each.transport.write(b"answer", one.address)
        self.net.settle()
        self.assertEqual([data for data, _ in two.received], [b"a", b"b", b"c"])
        self.assertEqual([data for data, _ in one.received], [b"before", b"answer"])
        with self.assertRaises(ValueError):
            one.transport.write(b"x", other.address)
        with self.assertRaises(RuntimeError):
            one.transport.connect(*other.address)

    def test_destinations(self) -> None:
        """
        A destination is an IP address of the port's version, and a number.
        """
        four, six = self.net.open(0), self.net.open(0, 0, "::")
        for port, host in ((four, "example.com"), (four, "fd00::2"), (six, "10.9.0.2"), (six, "<broadcast>")):
            for call in (port.transport.connect, partial(writeTo, port)):
                with self.assertRaises(InvalidAddressError):
                    call(host, 53)
        with self.assertRaises(ValueError):
            four.transport.write(b"nowhere")
        with self.assertRaises(ValueError):
            four.transport.write(b"", ("10.9.0.2", 65536))

    def test_scores(self) -> None:
        """
        The port that fits best receives: connected, then bound to the address, then any.
        """
        whole, exact = (
            self.net.open(1, 53, "", listenMultiple=True),
            self.net.open(1, 53, listenMultiple=True),
        )
        peer = self.net.open(1, 53, "", listenMultiple=True)
        one, two = self.net.open(0), self.net.open(0)
        peer.transport.connect(*two.address)
        for sender in (one, two):
            sender.transport.write(b"x", ("10.9.0.2", 53))
        self.net.settle()
        self.assertEqual(
            [each.received for each in (whole, exact, peer)],
            [[], [(b"x", one.address)], [(b"x", two.address)]],
        )

    def test_beforeUp(self) -> None:
        """
        Datagrams wait for the interface, up to a bound; those to itself do not.
        """
        net = Stacks(mtu=0)
        one, gone = net.open(0), net.open(0)
        for number in range(limits.IPOIB_STARTING_DATAGRAMS):
            (one if number else gone).transport.write(b"%d" % number, ("10.9.0.2", 53))
        one.transport.write(b"too many", ("10.9.0.2", 53))
        one.transport.write(b"me", one.address)
        gone.transport.stopListening()
        net.clock.advance(0)
        self.assertEqual(one.received, [(b"me", one.address)])
        self.assertEqual(net.interfaces[0].sent, [])
        self.assertEqual(net.stacks[0].counters, {"not_up": 1})
        net.stacks[0].interfaceUp(2044)
        self.assertEqual(
            [frame[32:] for frame in net.interfaces[0].sent],
            [b"%d" % number for number in range(1, limits.IPOIB_STARTING_DATAGRAMS)],
        )

    def test_longBeforeUp(self) -> None:
        """
        One that is too long does not wait.
        """
        net = Stacks(mtu=0)
        for interface, host, longest in (("10.9.0.1", "10.9.0.2", 65507), ("fd00::1", "fd00::2", 65527)):
            one = net.open(0, 0, interface)
            one.transport.write(bytes(longest), (host, 9))
            with self.assertRaises(MessageLengthError):
                one.transport.write(bytes(longest + 1), (host, 9))
        net.stacks[0].interfaceUp(65575)
        self.assertEqual(len(net.interfaces[0].sent), 2)

    def test_changedBeforeUp(self) -> None:
        """
        A port that was connected elsewhere meanwhile loses what waits: others' datagrams are sent.
        """
        net = Stacks(mtu=0)
        one, other = net.open(0), net.open(0)
        for each in (one, other):
            each.transport.write(b"x", ("10.9.0.2", 9))
        one.transport.connect("10.9.0.3", 9)
        net.stacks[0].interfaceUp(2044)
        self.assertEqual(len(net.interfaces[0].sent), 1)
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)

    def test_destinationsSpelled(self) -> None:
        """
        A destination that is written in two ways is remembered as long as either is.
        """
        self.patch(limits, "IPOIB_SEND_FLOWS", 2)
        one = self.net.open(0, 0, "fd00::1")
        for host, isKnown in (("fd00::2", True), ("fd00:0::2", True), ("fd00::3", True), ("fd00::4", False)):
            one.transport.write(b"", (host, 9))
            self.assertIs(one.transport.sendsTo(ip_address("fd00::2").packed, 9), isKnown)
        self.assertEqual(len(one.transport._destinations), 2)

    def test_destinationsRemembered(self) -> None:
        """
        A port remembers so many destinations.
        """
        self.patch(limits, "IPOIB_SEND_FLOWS", 20)
        one = self.net.open(0)
        for number in range(limits.IPOIB_SEND_FLOWS + 2):
            one.transport.write(b"", ("10.9.0.3", number + 1))
        self.assertEqual(len(one.transport._flows), limits.IPOIB_SEND_FLOWS)
        self.assertTrue(one.transport.sendsTo(bytes((10, 9, 0, 3)), 3))
        self.assertFalse(one.transport.sendsTo(bytes((10, 9, 0, 3)), 1))


class RefusalTests(PortCase):
    """
    Nothing receives at a port.
    """

    def test_connected(self) -> None:
        """
        A connected port is told, from another interface and from its own.
        """
        for interface, host in (
            ("10.9.0.1", "10.9.0.2"),
            ("10.9.0.1", "10.9.0.1"),
            ("fd00::1", "fd00::2"),
            ("fd00::1", "fd00::1"),
        ):
            one = self.net.open(0, 0, interface)
            one.transport.connect(host, 80)
            one.transport.write(b"x")
            self.net.settle()
            self.assertEqual(one.refusals, 1)
            one.transport.stopListening()
            one.transport.write(b"x")
            self.net.wire.pump()
            self.assertEqual(one.refusals, 1)

    def test_notConnected(self) -> None:
        """
        Others are not, as with Twisted's UDP.
        """
        one = self.net.open(0)
        one.transport.write(b"x", ("10.9.0.2", 80))
        self.net.settle()
        self.assertEqual(one.refusals, 0)


class MulticastTests(PortCase):
    """
    Groups and broadcast.
    """

    def test_receivers(self) -> None:
        """
        1, 3 and 10 receivers: each has each datagram once, and the sender, which has not joined, none.
        """
        for count in (1, 3, 10):
            for group, interfaces in (
                (GROUP, [(f"10.9.0.{number + 1}/24",) for number in range(count + 1)]),
                (GROUP_IPV6, [(f"fe80::{number + 1}/64",) for number in range(count + 1)]),
            ):
                net = Stacks(*interfaces)
                sender, *receivers = [net.open(number, 5000) for number in range(count + 1)]
                for each in receivers:
                    self.successResultOf(each.transport.joinGroup(group))
                for number in range(20):
                    sender.transport.write(b"%d" % number, (group, 5000))
                net.settle()
                for each in receivers:
                    self.assertEqual(
                        each.received, [(b"%d" % number, sender.address) for number in range(20)]
                    )
                self.assertEqual(sender.received, [])

    def test_loopback(self) -> None:
        """
        Members on the sender's interface have a datagram too, the sender among them, unless the sender says
        no.  A port that has not joined has none, nor has one with another number.
        """
        one, member = (
            self.net.open(0, 5000, "", listenMultiple=True),
            self.net.open(0, 5000, listenMultiple=True),
        )
        stranger, other = self.net.open(0, 5000, "", listenMultiple=True), self.net.open(0, 5001)
        for each in (one, member, other):
            self.successResultOf(each.transport.joinGroup(GROUP))
        self.assertTrue(one.transport.getLoopbackMode())
        one.transport.write(b"x", (GROUP, 5000))
        self.net.settle()
        one.transport.setLoopbackMode(0)
        self.assertFalse(one.transport.getLoopbackMode())
        one.transport.write(b"y", (GROUP, 5000))
        self.net.settle()
        received = [[data for data, _ in each.received] for each in (one, member, stranger, other)]
        self.assertEqual(received, [[b"x"], [b"x"], [], []])
        self.assertEqual(len(self.net.interfaces[0].sent), 2)

    def test_membership(self) -> None:
        """
        The interface joins with the first port and leaves with the last, also if that closes.
        """
        one, two = self.net.open(0, 5000, listenMultiple=True), self.net.open(0, 5000, listenMultiple=True)
        groups = self.net.interfaces[0].groups
        self.successResultOf(one.transport.joinGroup(GROUP, "10.9.0.1"))
        self.successResultOf(two.transport.joinGroup(GROUP, "0.0.0.0"))
        self.assertEqual(groups[GROUP], 1)
        self.successResultOf(one.transport.leaveGroup(GROUP))
        self.assertEqual(groups[GROUP], 1)
        two.transport.stopListening()
        self.net.clock.advance(0)
        self.assertEqual(groups[GROUP], 0)

    def test_joinFails(self) -> None:
        """
        What is no group, the wrong version, another interface, a second join, and a full interface.
        """
        port = self.net.open(0).transport
        for group, interface in (
            ("10.9.0.2", ""),
            (GROUP_IPV6, ""),
            (GROUP, "10.9.0.2"),
            (GROUP, "::1"),
        ):
            self.failureResultOf(port.joinGroup(group, interface), MulticastJoinError)
        self.failureResultOf(port.leaveGroup(GROUP), MulticastJoinError)
        self.successResultOf(port.joinGroup(GROUP))
        self.failureResultOf(port.joinGroup(GROUP), MulticastJoinError)
        self.successResultOf(port.leaveGroup(GROUP))

        def full(group: str) -> None:
            raise ResourceLimitError("full")

        self.patch(self.net.interfaces[0], "join", full)
        for _ in range(2):
            self.failureResultOf(port.joinGroup(GROUP), MulticastJoinError)
        port.stopListening()
        self.net.clock.advance(0)
        self.failureResultOf(port.joinGroup(GROUP), MulticastJoinError)

    def test_timeToLive(self) -> None:
        """
        1 for groups, until it is set; 64 for others.
        """
        for interface, group, host, at in (
            ("10.9.0.1", GROUP, "10.9.0.2", 12),
            ("fd00::1", GROUP_IPV6, "fd00::2", 11),
        ):
            port, sent = self.net.open(0, 0, interface).transport, self.net.interfaces[0].sent
            del sent[:]
            for ttl in (None, 9):
                if ttl is not None:
                    port.setTTL(ttl)
                port.write(b"", (group, 1))
                port.write(b"", (host, 1))
            self.assertEqual([frame[at] for frame in sent], [1, 64, 9, 64])
            self.assertEqual(port.getTTL(), 9)
            for wrong in (-1, 256):
                with self.assertRaises(ValueError):
                    port.setTTL(wrong)

    def test_outgoingInterface(self) -> None:
        """
        There is no other interface than the port's.
        """
        four, six = self.net.open(0).transport, self.net.open(0, 0, "::").transport
        self.assertEqual((four.getOutgoingInterface(), six.getOutgoingInterface()), ("0.0.0.0", 0))
        self.assertEqual(self.successResultOf(four.setOutgoingInterface("10.9.0.1")), 1)
        self.assertEqual(self.successResultOf(six.setOutgoingInterface(3)), 1)
        self.assertEqual((four.getOutgoingInterface(), six.getOutgoingInterface()), ("10.9.0.1", 3))
        for port, wrong in ((four, "10.9.0.2"), (four, "::1"), (four, 3), (six, "fd00::1")):
            self.failureResultOf(port.setOutgoingInterface(wrong), OSError)

    def test_broadcast(self) -> None:
        """
        Broadcasts must be allowed; all ports with the number receive them, the sender's host among them.
        """
        one, two = self.net.open(0, 5000), self.net.open(1, 5000)
        other, six = self.net.open(1, 5001), self.net.open(1, 5000, "::")
        self.assertFalse(one.transport.getBroadcastAllowed())
        for host in ("<broadcast>", "10.9.0.255"):
            one.transport.setBroadcastAllowed(False)
            with self.assertRaises(PermissionError):
                one.transport.write(b"x", (host, 5000))
            one.transport.setBroadcastAllowed(True)
            self.assertTrue(one.transport.getBroadcastAllowed())
            one.transport.write(b"x", (host, 5000))
        self.net.settle()
        self.assertEqual([len(each.received) for each in (one, two, other, six)], [2, 2, 0, 0])


class RawRecorder(IPProtocol):
    """
    C{twisted.pair}'s IP, which counts its ends.
    """

    stops = 0

    def stopProtocol(self) -> None:
        self.stops += 1


class RawTests(PortCase):
    """
    Raw ports.
    """

    def test_pair(self) -> None:
        """
        C{twisted.pair.ip} and C{twisted.pair.rawudp} take the packets, in place of errors; others go on.
        """
        ip, udp, protocol = RawRecorder(), RawUDPProtocol(), Recorder()
        ip.addProto(17, udp)
        udp.addProto(7000, protocol)
        port = RawIPoIBPort(self.net.clock, ip, "10.9.0.1", "ib0")
        port.openOn(self.net.stacks[0])
        verifyObject(IListeningPort, port)
        self.assertEqual(port.getHost(), InterfaceAddress("ib0", "10.9.0.1"))
        one, two = self.net.open(0, 7001), self.net.open(1, 7001)
        two.transport.connect("10.9.0.1", 7000)
        for _ in range(2):
            two.transport.write(b"raw")
        two.transport.write(b"raw")
        self.net.settle()
        self.assertEqual(protocol.received, [(b"raw", two.address)] * 3)
        self.assertEqual(two.refusals, 0)
        # The packet of a UDP port, written as it is.
        one.transport.write(b"again", two.address)
        packet = self.net.interfaces[0].sent[-1][4:]
        two.transport.stopListening()
        self.net.settle()
        two = self.net.open(1, 7001)
        port.write(packet)
        self.net.settle()
        self.assertEqual(two.received, [(b"again", one.address)])
        self.successResultOf(self.stopped(port))
        self.assertEqual(ip.stops, 1)
        port.write(packet)

    def stopped(self, port: Any) -> Any:
        """
        @return: what stopping it gives, a turn later.
        """
        result = port.stopListening()
        self.net.clock.advance(0)
        return result

    def test_beside(self) -> None:
        """
        A raw port gets the packets of UDP ports too, each time.
        """
        ip, packets = RawRecorder(), []
        one, two = self.pair()
        self.patch(ip, "datagramReceived", lambda packet, *arguments: packets.append(packet))
        for opens in (False, True):
            if opens:
                RawIPoIBPort(self.net.clock, ip, "10.9.0.1", "ib0").openOn(self.net.stacks[0])
            for _ in range(3):
                two.transport.write(b"x", one.address)
                self.net.settle()
        self.assertEqual((len(one.received), len(packets)), (6, 3))

    def test_ipv6(self) -> None:
        """
        Packets of IPv6 have its EtherType.
        """
        got: list[Any] = []
        ip = RawRecorder()
        self.patch(ip, "datagramReceived", lambda *arguments: got.append(arguments))
        RawIPoIBPort(Clock(), ip, "fd00::1", "ib0").openOn(self.net.stacks[0])
        self.net.open(1, 0, "fd00::2").transport.write(b"x", ("fd00::1", 9))
        packet = self.net.interfaces[1].sent[0][4:]
        self.net.settle()
        self.assertEqual(got, [(packet, 0, None, None, 0x86DD)])
        port = ip.transport
        port.write(packet)
        self.assertEqual(self.net.interfaces[0].sent[-1], b"\x86\xdd\0\0" + packet)
