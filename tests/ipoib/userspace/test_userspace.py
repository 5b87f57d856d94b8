"""
Tests for L{twisted_ib.ipoib.userspace}.
"""

from __future__ import annotations

import gc
import random
from functools import partial
from ipaddress import ip_address
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.ipoib.protocol.stack import vectors
from tests.ipoib.protocol.stack.vectors import A6, B6, A, B
from tests.ipoib.userspace.wire import Recorder, Stacks
from tests.support.calls import PACKAGE, called
from twisted_ib import limits
from twisted_ib.ipoib.protocol.ip import PORT_UNREACHABLE, TOO_BIG, packICMP
from twisted_ib.ipoib.protocol.stack.icmp import PROTOCOL, ICMPMessage
from twisted_ib.ipoib.protocol.stack.packets import FRAGMENT, IPPacket, fragments
from twisted_ib.ipoib.protocol.stack.udp import IPv4Flow, IPv6Flow
from twisted_ib.ipoib.userspace import IPStack

GROUP = bytes((239, 1, 2, 3))
COUNT = 300
SEED = 20


def wrapped(source: bytes, destination: bytes, protocol: int, segment: bytes) -> bytes:
    """
    @return: a packet.
    """
    (frame,) = fragments(source, destination, protocol, 64, segment, 1 << 17, 0)
    return frame[4:]


class StackCase(SynchronousTestCase):
    """
    A stack, which is given packets; A's addresses are its own.
    """

    def setUp(self) -> None:
        """
        It has no ports.
        """
        self.net = Stacks()
        self.stack, self.sent = self.net.stacks[0], self.net.interfaces[0].sent

    def receive(self, packet: bytes) -> list[bytes]:
        """
        @return: the packets that are the answers.
        """
        del self.sent[:]
        self.stack.packetReceived(packet, 0, len(packet))
        self.net.clock.advance(0)
        return [frame[4:] for frame in self.sent]

    def error(self, kind: Any, packet: bytes, rest: int = 0, source: bytes = b"") -> bytes:
        """
        @return: an ICMP error of B about a packet.
        """
        version = packet[0] >> 4
        own, peer = (A, B) if version == 4 else (A6, B6)
        segment = packICMP(source or peer, own, kind[version], rest, packet)
        return wrapped(source or peer, own, PROTOCOL[version], segment)


class EchoTests(StackCase):
    """
    Ping.
    """

    def test_echo(self) -> None:
        """
        An echo request is answered over both versions of IP.
        """
        for ping, pong, start in (
            (vectors.PING, vectors.PONG, 20),
            (vectors.PING_IPV6, vectors.PONG_IPV6, 40),
        ):
            (answer,) = self.receive(ping)
            self.assertEqual(answer[start:], pong[start:])
            ip = IPPacket.parse(answer)
            self.assertEqual(
                (ip.source, ip.destination, ip.hopLimit),
                (IPPacket.parse(ping).destination, IPPacket.parse(ping).source, 64),
            )

    def test_long(self) -> None:
        """
        One that came in fragments is answered in fragments.
        """
        for own, peer, kind in ((A, B, (8, 0)), (A6, B6, (128, 0))):
            version = 4 if own == A else 6
            segment = packICMP(peer, own, kind, 7, bytes(5000))
            for frame in fragments(peer, own, PROTOCOL[version], 64, segment, 1500, 9):
                self.sent.clear()
                self.stack.packetReceived(frame, 4, len(frame))
            self.assertEqual(len(self.sent), 3)
            self.assertEqual({len(frame) <= 2048 for frame in self.sent}, {True})

    def test_groups(self) -> None:
        """
        To a group: IPv6's are answered by an own address of the kind, IPv4's and broadcasts are not.
        """
        for group in (b"\xe0\0\0\1", b"\xff" * 4, bytes((10, 9, 0, 255))):
            self.assertEqual(self.receive(wrapped(B, group, 1, packICMP(B, group, (8, 0), 1, b""))), [])
        nodes = ip_address("ff02::1").packed
        peer = ip_address("fe80::2").packed
        (answer,) = self.receive(wrapped(peer, nodes, 58, packICMP(peer, nodes, (128, 0), 1, b"")))
        self.assertEqual(IPPacket.parse(answer).source, ip_address("fe80::1").packed)

    def test_ownSource(self) -> None:
        """
        What comes from outside with an own address as its source is dropped.
        """
        self.assertEqual(self.receive(wrapped(A, A, 1, packICMP(A, A, (8, 0), 1, b""))), [])
        one = self.net.open(0, 7001)
        self.assertEqual(self.receive(IPv4Flow(A, 5, A, 7001, 64).frame(b"x")[4:]), [])
        self.assertEqual(one.received, [])
        self.assertEqual(self.stack.counters, {"own_source": 2})

    def test_noSource(self) -> None:
        """
        What comes from a broadcast, group or loopback address is dropped: nobody answers, and no protocol
        gets it.
        """
        four, six = self.net.open(0, 7001), self.net.open(0, 7001, "fd00::1")
        for host in ("10.9.0.255", "255.255.255.255", "224.0.0.1", "127.0.0.1", "127.9.9.9"):
            source = ip_address(host).packed
            self.assertEqual(self.receive(wrapped(source, A, 1, packICMP(source, A, (8, 0), 1, b""))), [])
            self.assertEqual(self.receive(IPv4Flow(source, 5, A, 7001, 64).frame(b"x")[4:]), [])
        for host in ("::1", "ff02::1"):
            source = ip_address(host).packed
            self.assertEqual(
                self.receive(wrapped(source, A6, 58, packICMP(source, A6, (128, 0), 1, b""))), []
            )
            self.assertEqual(self.receive(IPv6Flow(source, 5, A6, 7001, 64).frame(b"x")[4:]), [])
        self.assertEqual((four.received, six.received), ([], []))
        self.assertEqual(self.stack.counters, {"bad_source": 8, "malformed": 6})

    def test_nestedFragments(self) -> None:
        """
        Fragments whose whole is a fragment again are dropped.
        """
        one = self.net.open(0, 7001, "fd00::1")
        inner = bytes((17, 0, 0, 1)) + bytes(4) + IPv6Flow(B6, 5, A6, 7001, 64).frame(bytes(32))[44:]
        for frame in fragments(B6, A6, FRAGMENT, 64, inner, 64, 2):
            self.assertEqual(self.receive(frame[4:]), [])
        self.assertEqual((one.received, self.stack.counters), ([], {"malformed": 1}))


class UnreachableTests(StackCase):
    """
    Nothing receives.
    """

    def test_error(self) -> None:
        """
        The sender is told.
        """
        for stray, error, start in (
            (vectors.STRAY, vectors.UNREACHABLE, 20),
            (vectors.STRAY_IPV6, vectors.UNREACHABLE_IPV6, 40),
        ):
            (answer,) = self.receive(stray)
            self.assertEqual(answer[start:], error[start:])

    def test_none(self) -> None:
        """
        Not about what was sent to a group or by broadcast, nor to nobody (RFC 1122 section 3.2.2); nor is
        another's packet anything of ours.
        """
        self.stack.joinGroup(Recorder(), GROUP)
        for source, destination in (
            (B, GROUP),
            (B, b"\xff" * 4),
            (bytes(4), A),
            (bytes((10, 9, 0, 255)), A),
            (B, bytes((10, 9, 0, 7))),
        ):
            self.assertEqual(self.receive(IPv4Flow(source, 7, destination, 9, 64).frame(b"x")[4:]), [])
        self.assertEqual(self.stack.counters, {"no_port": 1, "not_for_us": 1, "bad_source": 1})

    def test_protocols(self) -> None:
        """
        Protocols that the stack does not have are dropped.
        """
        self.assertEqual(self.receive(wrapped(B, A, 6, bytes(20))), [])
        self.assertEqual(self.stack.counters, {"other_protocol": 1})

    def test_rate(self) -> None:
        """
        There are so many errors at once, and more with time.
        """
        answers = sum(len(self.receive(vectors.STRAY)) for _ in range(limits.ICMP_ERROR_BURST + 10))
        self.assertEqual(answers, limits.ICMP_ERROR_BURST)
        self.assertEqual(self.stack.counters["icmp_suppressed"], 10)
        self.net.clock.advance(1 / limits.IPOIB_ERRORS_PER_SECOND)
        self.assertEqual([len(self.receive(vectors.STRAY)) for _ in range(2)], [1, 0])


class ErrorTests(StackCase):
    """
    ICMP errors of others.
    """

    def test_pathMTU(self) -> None:
        """
        "Too big" makes the datagrams of a path smaller, for some time; also if the interface itself says it.
        """
        for interface, host, source, at in (
            ("10.9.0.1", "10.9.0.2", b"", 28),
            ("10.9.0.1", "10.9.0.2", A, 28),
            ("fd00::1", "fd00::2", b"", 48),
        ):
            one = self.net.open(0, 0, interface)
            for mtu, packets in ((1400, 2), (1300, 2), (1500, 2), (68, 2 if at == 48 else 3)):
                one.transport.write(bytes(1380), (host, 80))
                self.receive(self.error(TOO_BIG, self.sent[0][4:], mtu, source))
                one.transport.write(bytes(1380), (host, 80))
                self.assertEqual(len(self.sent), packets, (interface, mtu))
                del self.sent[:]
            self.net.clock.advance(limits.IPOIB_PATH_MTU_SECONDS)
            one.transport.write(bytes(1380), (host, 80))
            self.assertEqual([len(frame) for frame in self.sent], [4 + at + 1380])
            del self.sent[:]
            one.transport.stopListening()
            self.net.clock.advance(0)

    def test_stray(self) -> None:
        """
        Errors about what was not sent, and of other kinds, change nothing.
        """
        one = self.net.open(0, 7000)
        one.transport.connect("10.9.0.2", 7001)
        one.transport.write(b"x")
        sent = self.sent[0][4:]
        for packet in (
            vectors.STRAY,
            IPv4Flow(A, 7000, B, 7002, 64).frame(b"x")[4:],
            IPv4Flow(A, 7002, B, 7001, 64).frame(b"x")[4:],
            vectors.PING,
        ):
            for kind in (TOO_BIG, PORT_UNREACHABLE):
                self.receive(self.error(kind, packet, 600))
        self.assertEqual(self.stack.counters["stray_error"], 8)
        for kind in ((3, 1), (3, 0), (11, 0), (12, 0)):
            self.receive(self.error({4: kind}, sent, 600))
        self.assertEqual(one.refusals, 0)
        self.assertEqual(self.stack._pathMTUs, {})
        self.receive(self.error(PORT_UNREACHABLE, sent))
        self.assertEqual(one.refusals, 1)

    def test_paths(self) -> None:
        """
        So many paths are remembered.
        """
        self.patch(limits, "IPOIB_PATH_MTUS", 20)
        one = self.net.open(0, 7000)
        for number in range(limits.IPOIB_PATH_MTUS + 1):
            host = bytes((10, 9, 1 + number // 250, number % 250))
            one.transport.write(b"", (str(ip_address(host)), 9))
            self.receive(self.error(TOO_BIG, IPv4Flow(A, 7000, host, 9, 64).frame(b"")[4:], 1000))
        self.assertEqual(len(self.stack._pathMTUs), limits.IPOIB_PATH_MTUS)
        one.transport.stopListening()
        self.net.clock.advance(0)
        self.assertEqual(self.net.clock.getDelayedCalls(), [])

    def test_raises(self) -> None:
        """
        What a protocol raises is logged, and the next is called.
        """
        one = self.net.open(0, 9999)

        def wrong(*arguments: Any) -> None:
            raise ZeroDivisionError

        self.patch(one, "datagramReceived", wrong)
        self.patch(one, "connectionRefused", wrong)
        for _ in range(3):
            self.receive(vectors.STRAY)
        one.transport.connect("10.9.0.2", 7001)
        one.transport.write(b"x")
        self.receive(self.error(PORT_UNREACHABLE, self.sent[0][4:]))
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 4)


class BoundsTests(StackCase):
    """
    What others can make it keep.
    """

    def test_senders(self) -> None:
        """
        So many senders are remembered, and all are forgotten with their port.
        """
        self.patch(limits, "IPOIB_FLOWS", 20)
        one = self.net.open(0, 7000)
        for number in range(limits.IPOIB_FLOWS + 5):
            self.receive(IPv4Flow(B, number + 1, A, 7000, 64).frame(b"")[4:])
        self.assertEqual(len(self.stack._flows), limits.IPOIB_FLOWS)
        self.assertEqual(len(one.received), limits.IPOIB_FLOWS + 5)
        one.transport.stopListening()
        self.net.clock.advance(0)
        self.assertEqual(len(self.stack._flows), 0)

    def test_local(self) -> None:
        """
        So many packets to itself wait for the next turn; what these bring forth waits for another.
        """
        one = self.net.open(0)
        for _ in range(limits.IPOIB_LOCAL_PACKETS + 1):
            one.transport.write(b"x", one.address)
        self.assertEqual(self.stack.counters, {"local_full": 1})
        self.patch(one, "datagramReceived", lambda data, addr: one.transport.write(data, addr))
        # Not by the clock, for which there is no other turn at the same time.
        (call,) = self.net.clock.getDelayedCalls()
        call.cancel()
        self.stack._receiveLocal()
        self.assertEqual(len(self.stack._local), limits.IPOIB_LOCAL_PACKETS)
        one.transport.connectionLost()
        self.assertEqual(self.net.clock.getDelayedCalls(), [])


class ChangeTests(StackCase):
    """
    Datagrams of flows that are known, but have changed.
    """

    def test_wrong(self) -> None:
        """
        After any number of right ones: another octet anywhere, another length, none at all.
        """
        for source, packet, interface in (
            ("10.9.0.1", vectors.HELLO, ("10.9.0.2/24",)),
            ("fd00::1", vectors.HELLO_IPV6, ("fd00::2/64",)),
        ):
            net = Stacks(interface)
            one = net.open(0, 7001)
            received = net.stacks[0].packetReceived
            for _ in range(3):
                received(packet, 0, len(packet))
            expected = [(b"hello", (source, 7000))] * 3
            self.assertEqual(one.received, expected)
            wrong = [packet[:length] for length in range(len(packet))]
            for at in range(len(packet)):
                # Traffic class and flow label, IPv6's first octets, and the hop limit have no checksum.
                if len(interface[0]) < 11 and at in (0, 1, 2, 3, 7):
                    continue
                each = bytearray(packet)
                each[at] ^= 1
                wrong.append(bytes(each))
            for each in wrong:
                received(each, 0, len(each))
            self.assertEqual(one.received, expected)
            received(packet + b"..", 0, len(packet))
            received(packet + b"..", 0, len(packet) + 2)
            self.assertEqual(one.received, expected + expected[:2])

    def test_unusual(self) -> None:
        """
        Datagrams with options, with octets behind them and without a checksum arrive, and are not remembered
        as a flow is.
        """
        one = self.net.open(0, 7000)
        frame = IPv4Flow(B, 7001, A, 7000, 64).frame(b"hello")[4:]
        options = bytearray(b"\x46\0\0\x25" + frame[4:10] + b"\0\0" + frame[12:20] + b"\1\1\1\0")
        options[10:12] = (-int.from_bytes(options, "big") % 0xFFFF).to_bytes(2, "big")
        padded = wrapped(B, A, 17, frame[20:] + b"..")
        for packet in (bytes(options) + frame[20:], padded, padded):
            self.assertEqual(self.receive(packet), [])
        self.assertEqual(len(self.stack._flows), 0)
        bare = wrapped(B, A, 17, frame[20:26] + b"\0\0" + frame[28:])
        for packet in (bare, bare):
            self.receive(packet)
        self.assertEqual(one.received, [(b"hello", ("10.9.0.2", 7001))] * 5)

    def test_ends(self) -> None:
        """
        A flow's datagram may end before its packet, though the sum of both is the same.
        """
        one = self.net.open(0, 7000)
        flow = IPv4Flow(B, 7001, A, 7000, 64)
        padded = wrapped(B, A, 17, flow.frame(b"hello!")[24:] + b"\0\0")
        for packet in (flow.frame(b"hello you")[4:-1], flow.frame(b"hello yo")[4:], padded):
            self.receive(packet)
        self.assertEqual([data for data, _ in one.received], [b"hello yo", b"hello!"])

    def test_noChecksum(self) -> None:
        """
        One without a checksum is dropped over IPv6, though 0 would be right, too.
        """
        one = self.net.open(0, 7000, "fd00::1")
        flow = IPv6Flow(B6, 7001, A6, 7000, 64)
        packet = flow.frame(flow.frame(b"\0\0")[50:52])[4:]
        self.assertEqual(packet[46:48], b"\xff\xff")
        for each in (packet, packet, packet[:46] + b"\0\0" + packet[48:]):
            self.receive(each)
        self.assertEqual(len(one.received), 2)

    def test_ports(self) -> None:
        """
        A flow goes to another port when that fits better, and to none when its own has closed.
        """
        whole = self.net.open(0, 7000, "", listenMultiple=True)
        packet = IPv4Flow(B, 7001, A, 7000, 64).frame(b"x")[4:]
        for _ in range(2):
            self.receive(packet)
        exact = self.net.open(0, 7000, listenMultiple=True)
        self.receive(packet)
        exact.transport.connect("10.9.0.9", 1)
        self.receive(packet)
        whole.transport.stopListening()
        self.net.clock.advance(0)
        (error,) = self.receive(packet)
        self.assertEqual((len(whole.received), len(exact.received)), (3, 1))
        self.assertTrue(ICMPMessage.parse(IPPacket.parse(error)).isPortUnreachable)


class MutatedTests(StackCase):
    """
    Packets that are almost right.
    """

    count = COUNT

    def test_mutated(self) -> None:
        """
        Nothing is raised or logged, and little is kept.  Seed 20.
        """
        draw = random.Random(SEED)
        one, two = self.net.open(0, 7001, "", maxPacketSize=65535), self.net.open(0, 7001, "::")
        one.transport.connect("10.9.0.2", 7000)
        one.transport.write(b"x")
        sent = self.sent[0][4:]
        group = self.net.open(0, 7002, "")
        self.successResultOf(group.transport.joinGroup("239.1.2.3"))
        flow = IPv4Flow(B, 7000, A, 7001, 64)
        kinds = [
            *(flow.frame(b"known")[4:], flow.frame(b"known!")[4:], vectors.PING, vectors.PING_IPV6),
            *(vectors.STRAY, vectors.STRAY_IPV6, self.error(TOO_BIG, sent, 900)),
            *(self.error(PORT_UNREACHABLE, sent), IPv4Flow(B, 1, GROUP, 7002, 1).frame(b"group")[4:]),
            *(frame[4:] for frame in fragments(B, A, 17, 64, bytes(100), 60, 1)),
            *(frame[4:] for frame in fragments(B6, A6, 17, 64, bytes(100), 100, 1)),
        ]
        for _ in range(self.count):
            packet = bytearray(draw.choice(kinds))
            for _change in range(draw.randrange(4)):
                change = draw.randrange(4)
                at = draw.randrange(len(packet)) if packet else 0
                if change == 0 and packet:
                    packet[at] = draw.randrange(256)
                elif change == 1:
                    del packet[at:]
                elif change == 2:
                    packet += draw.randbytes(draw.randrange(20))
                elif packet:
                    packet[at] ^= 1 << draw.randrange(8)
            self.repair(draw, packet)
            self.stack.packetReceived(bytes(packet), 0, len(packet))
            self.net.clock.advance(0.01)
            for each in (one, two, group):
                each.received.clear()
            del self.sent[:]
            self.net.wire.frames.clear()
        self.assertEqual(self.flushLoggedErrors(), [])
        self.assertLessEqual(len(self.stack._reassembly), limits.IP_REASSEMBLIES)
        self.assertLessEqual(len(self.stack._pathMTUs), 1)
        self.assertGreater(self.stack.counters["malformed"], self.count // 10)

    def repair(self, draw: random.Random, packet: bytearray) -> None:
        """
        Make the checksum of an IPv4 header right, mostly: others never pass it.
        """
        if len(packet) >= 20 and packet[0] == 0x45 and draw.randrange(4):
            packet[10:12] = b"\0\0"
            packet[10:12] = (-int.from_bytes(packet[:20], "big") % 0xFFFF).to_bytes(2, "big")


class CostTests(StackCase):
    """
    The cost of a warm datagram.
    """

    def test_calls(self) -> None:
        """
        Two functions each way, besides the interface's and the protocol's.
        """
        for interface, host in (("10.9.0.1", "10.9.0.2"), ("fd00::1", "fd00::2")):
            one, two = self.net.open(0, 7000, interface), self.net.open(1, 7001, host)
            for _ in range(2):
                one.transport.write(bytes(64), two.address)
                self.net.settle()
            packet = self.sent[-1][4:]
            calls = called(partial(one.transport.write, bytes(64), two.address), PACKAGE)
            self.assertEqual(calls, {"write": 1, "frame": 1})
            receive = partial(self.net.stacks[1].packetReceived, packet, 0, len(packet))
            calls = called(receive, PACKAGE)
            self.assertEqual(calls, {"packetReceived": 1, "callLogged": 1, "received": 1})

    def test_nothingKept(self) -> None:
        """
        Nothing is kept of a datagram.
        """
        one, two = self.net.open(0, 7000), self.net.open(1, 7001)
        self.patch(Recorder, "datagramReceived", lambda *arguments: None)
        self.patch(self.net.interfaces[0], "send", lambda frame: None)

        def packets(count: int) -> None:
            packet = IPv4Flow(A, 7000, B, 7001, 64).frame(bytes(64))[4:]
            for _ in range(count):
                one.transport.write(bytes(64), two.address)
                self.net.stacks[1].packetReceived(packet, 0, len(packet))

        packets(10)
        gc.collect()
        before = len(gc.get_objects())
        packets(100)
        self.assertLessEqual(len(gc.get_objects()) - before, 5)


class InterfaceTests(SynchronousTestCase):
    """
    The interface.
    """

    def test_up(self) -> None:
        """
        Addresses and MTU are read when the interface comes up, and again when they change.
        """
        net = Stacks(mtu=0)
        stack, interface = net.stacks[0], net.interfaces[0]
        self.assertIsInstance(stack, IPStack)
        one = net.open(0, 7000)
        interface.addresses = interface.addresses[:1]
        stack.interfaceUp(2044)
        self.assertEqual(stack.addresses, {A})
        for mtu, packets in ((2044, 2), (65520, 1), (2044, 2)):
            stack.interfaceUp(mtu)
            del interface.sent[:]
            one.transport.write(bytes(3000), ("10.9.0.2", 80))
            self.assertEqual(len(interface.sent), packets)
