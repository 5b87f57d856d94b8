"""
Tests of L{twisted_ib.rds.media.tcp} on addresses of the loopback interface: two networks, and peers that know
only the wire.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from struct import pack
from typing import Any

from twisted.internet import reactor as anyReactor
from twisted.internet.defer import Deferred
from twisted.internet.error import CannotListenError
from twisted.internet.protocol import DatagramProtocol
from twisted.internet.task import deferLater
from twisted.trial.unittest import SkipTest, TestCase
from zope.interface.verify import verifyClass, verifyObject

from tests.rds.net import Told
from tests.rds.protocol.vectors import RDSHeader, streams
from tests.support.ownaddress import ownAddress
from tests.support.waiting import HANG_SECONDS, becomes
from twisted_ib import limits
from twisted_ib.interfaces import IReactorRDS
from twisted_ib.rds import listenRDS, queues
from twisted_ib.rds import port as rdsPort
from twisted_ib.rds.media import tcpcarrier
from twisted_ib.rds.media.tcp import TCPMedium
from twisted_ib.rds.networks import networkFor
from twisted_ib.rds.paths.carrier import IRDSMedium
from twisted_ib.rds.paths.network import Network
from twisted_ib.rds.port import RDSPort
from twisted_ib.rds.protocol import machine
from twisted_ib.rds.protocol.wire import (
    ACK_REQUIRED,
    CONG_BITMAP,
    HEADER_BYTES,
    RETRANSMITTED,
    pathsExtensions,
)
from twisted_ib.reactor.ibreactor import IBReactor

reactor: Any = anyReactor
STRANGER, SMALL, LARGE = ownAddress(1), ownAddress(2), ownAddress(3)
MAP = RDSHeader(0, length=8192, flags=CONG_BITMAP).pack() + bytes(8192)
#: The size of a datagram for a slow reader.
SLOW_BYTES = 60_000
PROBE = RDSHeader(1, sourcePort=1, extensions=pathsExtensions(8, 0)).pack()


def freePort() -> int:
    """
    A TCP port that is free on the addresses used here, and that no active side is given.
    """
    for port in range(20000 + os.getpid() % 5000 * 2, 32000):
        with socket.socket() as one, socket.socket() as other:
            try:
                one.bind((LARGE, port))
                other.bind((SMALL, port))
            except OSError as e:
                if e.errno == errno.EADDRINUSE:
                    continue
                raise SkipTest("no further addresses on the loopback interface") from None
            return port
    raise SkipTest("no port is free")


def data(sequence: int, payload: bytes, flags: int = 0, port: int = 5000) -> bytes:
    """
    A message for a socket.
    """
    return RDSHeader(sequence, 0, len(payload), 4000, port, flags).pack() + payload


class Slow(DatagramProtocol):
    """
    Stops reading now and then, and keeps nothing; datagrams have to come in order.
    """

    count = wrong = 0

    def datagramReceived(self, datagram: bytes, addr: Any) -> None:
        """
        Count it.
        """
        self.count += 1
        self.wrong += int.from_bytes(datagram[:8], "big") != self.count
        if not self.count % 16:
            transport: Any = self.transport
            transport.pauseProducing()


class Raw:
    """
    A peer that knows only the wire, with a socket that does not block.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        connection.setblocking(False)
        self.data = b""
        self.ended: str | None = None

    def look(self) -> None:
        """
        Read what is there.
        """
        while self.ended is None:
            try:
                got = self.socket.recv(1 << 20)
            except BlockingIOError:
                return
            except OSError as e:
                self.ended = type(e).__name__
            else:
                if not got:
                    self.ended = "end"
                self.data += got

    def messages(self) -> list[tuple[RDSHeader, bytes]]:
        """
        The whole messages received so far.
        """
        self.look()
        found = []
        at = 0
        while len(self.data) - at >= HEADER_BYTES:
            header = RDSHeader.parse(self.data[at : at + HEADER_BYTES])
            at += HEADER_BYTES
            if len(self.data) - at < header.length:
                break
            found.append((header, self.data[at : at + header.length]))
            at += header.length
        return found

    def send(self, data: bytes) -> None:
        """
        Send, all at once.
        """
        self.socket.setblocking(True)
        self.socket.sendall(data)
        self.socket.setblocking(False)

    def reset(self) -> None:
        """
        End with a reset.
        """
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
        self.socket.close()


class TCPCase(TestCase):
    """
    Networks and raw peers, which are all gone at the end.
    """

    timeout = HANG_SECONDS

    def setUp(self) -> None:
        self.number = freePort()
        self.sockets: list[Any] = []
        self.raw: list[Any] = []

    def tearDown(self) -> Any:
        for raw in self.raw:
            raw.close()
        self.patch(rdsPort, "RDS_LINGER_SECONDS", 0.1)

        async def close() -> None:
            for one in self.sockets:
                await one.stopListening()

        return Deferred.fromCoroutine(close())

    def open(self, address: str, port: int, network: Network | None = None, protocol: Any = None) -> Any:
        """
        Open a socket in a process of its own.
        """
        if network is None:
            network = Network(reactor, lambda network: TCPMedium(network, self.number))
        one = RDSPort(port, protocol or Told(), address, reactor=reactor, network=network)
        one.startListening()
        self.sockets.append(one)
        return one

    def listenRaw(self, address: str) -> socket.socket:
        """
        A peer that listens.
        """
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address, self.number))
        listening.listen()
        listening.setblocking(False)
        self.raw.append(listening)
        return listening

    def connectRaw(self, source: str, target: str) -> Raw:
        """
        A peer that connects.
        """
        connection = socket.socket()
        connection.bind((source, 0))
        connection.connect((target, self.number))
        self.raw.append(connection)
        return Raw(connection)

    async def accept(self, listening: socket.socket) -> Raw:
        """
        Wait for a connection.
        """
        found: list[Raw] = []

        def look() -> bool:
            try:
                found.append(Raw(listening.accept()[0]))
            except BlockingIOError:
                return False
            return True

        await becomes(reactor, look)
        self.raw.append(found[0].socket)
        return found[0]


class BothTests(TCPCase):
    """
    Two networks.
    """

    async def exchange(self, one: Any, two: Any) -> None:
        """
        All sizes, both ways, and pings.
        """
        here = (one.getHost().host, one.getHost().port)
        there = (two.getHost().host, two.getHost().port)
        sent = [bytes([i]) * size for i, size in enumerate((0, 1, 100, 4096, 9000, 1 << 20))]
        for item in sent:
            one.write(item, there)
        await becomes(reactor, lambda: len(two.protocol.got) == 6)
        for item in sent:
            two.write(item, here)
        await becomes(reactor, lambda: len(one.protocol.got) == 6)
        self.assertEqual(two.protocol.got, [(item, here) for item in sent])
        self.assertEqual(one.protocol.got, [(item, there) for item in sent])
        self.assertGreater(await one.ping(there[0]), 0)
        self.assertGreater(await two.ping(here[0]), 0)
        await becomes(reactor, lambda: one._queued == 0 and two._queued == 0)

    async def test_smallerFirst(self) -> None:
        """
        The smaller address has something to say first.
        """
        await self.exchange(self.open(SMALL, 4000), self.open(LARGE, 5000))

    async def test_largerFirst(self) -> None:
        """
        The larger has: it reminds the smaller, which connects.
        """
        one, two = self.open(SMALL, 4000), self.open(LARGE, 5000)
        await self.exchange(two, one)
        (path,) = two.network.paths.values()
        self.assertEqual(path.carrier.transport.getHost().port, self.number)

    async def test_bothAtOnce(self) -> None:
        """
        Both have, at the same time.
        """
        one, two = self.open(SMALL, 4000), self.open(LARGE, 5000)
        one.write(b"1", (LARGE, 5000))
        two.write(b"2", (SMALL, 4000))
        await becomes(reactor, lambda: one.protocol.got and two.protocol.got)
        self.assertEqual((len(one.protocol.got), len(two.protocol.got)), (1, 1))

    async def test_ipv6(self) -> None:
        """
        IPv6 is the same.
        """
        try:
            with socket.socket(socket.AF_INET6) as probe:
                probe.bind(("::1", 0))
        except OSError:
            raise SkipTest("no IPv6") from None
        one = self.open("::1", 4000)
        self.assertEqual(one.getHost().host, "::1")
        one.write(b"x", ("::1", 4000))
        await becomes(reactor, lambda: one.protocol.got)
        self.assertEqual(one.protocol.got, [(b"x", ("::1", 4000))])

    async def test_reconnects(self) -> None:
        """
        However often the connection is reset, each datagram comes once, in order.
        """
        one, two = self.open(SMALL, 4000), self.open(LARGE, 5000)
        count = 3000
        for number in range(count):
            one.write(number.to_bytes(4, "big") * 10, (LARGE, 5000))
            two.write(number.to_bytes(4, "big") * 10, (SMALL, 4000))
            if number % 20 == 0:
                await deferLater(reactor, 0)
            if number % 200 == 199:
                paths = [path for end in (one, two) for path in end.network.paths.values()]
                carriers = [path.carrier for path in paths if path.carrier is not None]
                if carriers:
                    carriers[number // 200 % len(carriers)].transport.loseConnection()
        await becomes(reactor, lambda: min(len(one.protocol.got), len(two.protocol.got)) == count)
        for end in (one, two):
            numbers = [int.from_bytes(item[:4], "big") for item, _ in end.protocol.got]
            self.assertEqual(numbers, [*range(count)])
        self.assertGreater(one.network.counters["conn_reset"], 3)

    async def test_taken(self) -> None:
        """
        One process has an address; another cannot have it too, or one that is not of this host.
        """
        self.open(SMALL, 4000)
        self.assertRaises(CannotListenError, self.open, SMALL, 4001)
        self.assertRaises(CannotListenError, self.open, "192.0.2.1", 4001)

    async def test_reactor(self) -> None:
        """
        The reactor C{ib} has it as a method; it is one network for each reactor and device, which
        all addresses of the host belong to but those with a scope.
        """
        verifyClass(IReactorRDS, IBReactor)
        network = networkFor(reactor, "tcp")
        self.assertIs(networkFor(reactor, "tcp"), network)
        verifyObject(IRDSMedium, network.medium)
        addresses = network.medium.localAddresses()
        self.assertIn("127.0.0.1", addresses)
        self.assertEqual([address for address in addresses if "%" in address], [])
        self.patch(network.medium, "port", self.number)
        one = listenRDS(reactor, 4000, Told(), SMALL, device="tcp")
        self.sockets.append(one)
        self.assertIs(one.network, network)

    async def test_quiet(self) -> None:
        """
        When the last socket is closed nothing of it is in the reactor.
        """
        one, two = self.open(SMALL, 4000), self.open(LARGE, 5000)
        one.write(b"x", (LARGE, 5000))
        await becomes(reactor, lambda: two.protocol.got)
        for end in (one, two):
            await end.stopListening()
            self.assertEqual(end.network.medium.alive, set())


class SlowTests(TCPCase):
    """
    A receiver that reads slowly.

    @cvar offered: bytes that it is sent.
    """

    offered = 32 << 20

    async def test_bounded(self) -> None:
        """
        All that is offered arrives in order; no more waits than may, and what the same socket has for
        another peer goes on.
        """
        one = self.open(SMALL, 4000)
        slow = self.open(LARGE, 5000, protocol=Slow())
        quick = self.open(STRANGER, 5001)
        count = self.offered // SLOW_BYTES
        most = held = others = 0
        waiting: list[Deferred[None]] = []

        async def offer() -> None:
            for number in range(1, count + 1):
                taken = one.write(number.to_bytes(8, "big") + bytes(SLOW_BYTES - 8), (LARGE, 5000))
                if taken is not None:
                    waiting[:] = [taken]
                    await taken

        offering = Deferred.fromCoroutine(offer())
        await becomes(
            reactor,
            lambda: (
                slow._receivedBytes > limits.RDS_RECEIVE_BUDGET and bool(waiting) and not waiting[0].called
            ),
        )
        while slow.protocol.count < count:
            slow.resumeProducing()
            if len(quick.protocol.got) == others and one._queued < limits.RDS_SEND_BUDGET:
                others += 1
                one.write(b"?", (STRANGER, 5001))
            most, held = max(most, one.queued()), max(held, slow._receivedBytes)
            await deferLater(reactor, 0.001)
        await offering
        await becomes(reactor, lambda: len(quick.protocol.got) == others)
        self.assertEqual((slow.protocol.count, slow.protocol.wrong), (count, 0))
        self.assertGreater(others, 20)
        self.assertLess(most, limits.RDS_SEND_BUDGET + rdsPort.RDS_CONGESTED_BUDGET + 2 * SLOW_BYTES)
        self.assertLess(held, queues.RDS_RECEIVE_MOST + 2 * limits.RDS_SEND_BUDGET)


class AcceptedTests(TCPCase):
    """
    A peer connects: it has the smaller address.
    """

    async def begun(self) -> tuple[Any, Raw]:
        """
        A socket, and a peer that has said who it is.
        """
        one = self.open(LARGE, 5000)
        peer = self.connectRaw(SMALL, LARGE)
        peer.send(MAP + PROBE)
        await becomes(reactor, lambda: len(peer.messages()) == 3)
        return one, peer

    async def test_greeting(self) -> None:
        """
        Both say their map and ask, and are answered: one path.
        """
        one, peer = await self.begun()
        ports, *others = peer.messages()
        self.assertEqual((ports[0].flags, ports[1]), (CONG_BITMAP, bytes(8192)))
        generation = one.network.generation
        found = sorted((h.sourcePort, h.destinationPort, h.sequence, h.flags) for h, _ in others)
        self.assertEqual([item[:2] for item in found], [(0, 1), (1, 0)])
        self.assertEqual({h.extensions for h, _ in others}, {pathsExtensions(1, generation)})
        self.assertEqual({(h.checksum, h.acknowledgement, h.credit) for h, _ in others}, {(0, 0, 0)})

    async def test_linux(self) -> None:
        """
        A stream sent by Linux is understood, in pieces of any size.
        """
        for stream in streams().values():
            one = self.open(LARGE, 4000)
            peer = self.connectRaw(SMALL, LARGE)
            at = 0
            size = 1
            while at < len(stream):
                peer.send(stream[at : at + size])
                at += size
                size = size * 3 % 1999 + 1
                await deferLater(reactor, 0)
            expected = 0
            at = 0
            while at < len(stream):
                header = RDSHeader.parse(stream[at : at + HEADER_BYTES])
                at += HEADER_BYTES + header.length
                expected += header.destinationPort == 4000
            await becomes(reactor, lambda e=expected, o=one: len(o.protocol.got) == e)
            counters = one.network.counters
            self.assertEqual([name for name in counters if "bad" in name and counters[name]], [])
            peer.socket.close()
            await one.stopListening()

    async def test_tooLong(self) -> None:
        """
        A length of more than a mebibyte ends the connection with a reset.
        """
        one, peer = await self.begun()
        peer.send(RDSHeader(2, length=(1 << 20) + 1, sourcePort=4000, destinationPort=5000).pack())
        await becomes(reactor, lambda: peer.look() or peer.ended)
        self.assertEqual(peer.ended, "ConnectionResetError")
        self.assertEqual(one.network.counters["recv_bad_length"], 1)

    async def test_half(self) -> None:
        """
        Half a message is thrown away with its connection; its repetition is taken.
        """
        one, peer = await self.begun()
        peer.send(data(2, b"abcdef")[:-3])
        peer.socket.close()
        peer = self.connectRaw(SMALL, LARGE)
        peer.send(MAP + data(2, b"abcdef", RETRANSMITTED | ACK_REQUIRED))
        await becomes(reactor, lambda: one.protocol.got)
        self.assertEqual(one.protocol.got, [(b"abcdef", (SMALL, 4000))])

    async def test_repeated(self) -> None:
        """
        A repetition of what came is dropped.
        """
        one, peer = await self.begun()
        peer.send(data(2, b"2") + data(3, b"3"))
        await becomes(reactor, lambda: len(one.protocol.got) == 2)
        peer.reset()
        peer = self.connectRaw(SMALL, LARGE)
        peer.send(MAP + data(2, b"2", RETRANSMITTED) + data(3, b"3", RETRANSMITTED) + data(4, b"4"))
        await becomes(reactor, lambda: len(one.protocol.got) == 3)
        self.assertEqual([item for item, _ in one.protocol.got], [b"2", b"3", b"4"])
        self.assertEqual(one.network.counters["recv_drop_old_seq"], 2)

    async def test_replaced(self) -> None:
        """
        A second connection takes the place of the first, of which nothing is lost that TCP has
        acknowledged.
        """
        one, peer = await self.begun()
        (path,) = one.network.paths.values()
        path.carrier.transport.stopReading()
        peer.send(b"".join(data(2 + i, b"%d" % i) for i in range(100)))
        second = self.connectRaw(SMALL, LARGE)
        second.send(MAP + data(102, b"100"))
        await becomes(reactor, lambda: len(one.protocol.got) == 101)
        self.assertEqual([item for item, _ in one.protocol.got], [b"%d" % i for i in range(101)])
        await becomes(reactor, lambda: peer.look() or peer.ended)

    async def test_drained(self) -> None:
        """
        Data received before a reset is delivered, even if a write notices the reset first.
        """
        one, peer = await self.begun()
        peer.send(b"".join(data(2 + i, b"%d" % i) for i in range(100)))
        peer.reset()
        (path,) = one.network.paths.values()
        carrier = path.carrier
        self.assertIsNotNone(carrier)
        for _ in range(3):
            if path.carrier is carrier:
                one.write(b"x", (SMALL, 4000))
                carrier.transport.doWrite()
        await becomes(reactor, lambda: len(one.protocol.got) == 100)

    async def test_closed(self) -> None:
        """
        A path that closes ends its connection if all is sent, and resets it otherwise: what was not sent is
        kept for the next one.
        """
        self.patch(limits, "RDS_SEND_BUDGET", 1 << 30)
        one, peer = await self.begun()
        peer.send(RDSHeader(2, destinationPort=1, extensions=pathsExtensions(1, 9)).pack())
        (path,) = one.network.paths.values()
        for count, end in ((0, "end"), (8, "ConnectionResetError")):
            await becomes(reactor, lambda: path.carrier is not None and path.machine.isOpen)
            for _ in range(count):
                one.write(bytes(1 << 20), (SMALL, 4000))
            path.close()
            await becomes(reactor, lambda peer=peer: peer.look() or peer.ended)
            self.assertEqual(peer.ended, end)
            peer = self.connectRaw(SMALL, LARGE)

    async def test_closedAndOpenAgain(self) -> None:
        """
        A socket is closed when what it had is gone, whatever is opened meanwhile.
        """
        one, _ = await self.begun()
        closed = one.stopListening()
        one._closed()
        self.assertNoResult(closed)
        self.open(STRANGER, 5001, one.network)
        await becomes(reactor, lambda: closed.called)

    async def test_drainedWhilePaused(self) -> None:
        """
        A peer that connects again and again pins no more memory of a socket that is not read.
        """
        self.patch(limits, "RDS_RECEIVE_BUDGET", 1000)
        self.patch(queues, "RDS_RECEIVE_MOST", 10_000)
        self.patch(limits, "RDS_TCP_DRAIN", 100_000)
        one, peer = await self.begun()
        one.pauseProducing()
        (path,) = one.network.paths.values()
        sequence = 2
        for _ in range(20):
            with contextlib.suppress(ConnectionError):
                peer.send(b"".join(data(sequence + i, bytes(1000)) for i in range(50)))
            sequence += 50
            await deferLater(reactor, 0.01)
            peer = self.connectRaw(SMALL, LARGE)
            await deferLater(reactor, 0.01)
        self.assertLess(one._receivedBytes, 10_000 + 100_000 + tcpcarrier.RDS_TCP_BUFFER)
        count = len(one._received)
        one.resumeProducing()
        await becomes(reactor, lambda: len(one.protocol.got) >= count)
        await becomes(reactor, lambda: not path._blockers)
        peer = self.connectRaw(SMALL, LARGE)
        peer.send(data(sequence, b"last"))
        await becomes(reactor, lambda: one.protocol.got[-1][0] == b"last")

    async def test_drainBounded(self) -> None:
        """
        A peer that goes on sending does not keep its connection from ending.
        """
        one, peer = await self.begun()
        (path,) = one.network.paths.values()
        carrier = path.carrier
        reads: list[int] = []

        class Endless:
            def recv(self, size: int) -> bytes:
                reads.append(size)
                return data(2, bytes(10_000 - HEADER_BYTES))

        self.patch(limits, "RDS_TCP_DRAIN", 100_000)
        real, carrier.transport.socket = carrier.transport.socket, Endless()
        carrier.drain()
        carrier.transport.socket = real
        self.assertEqual(len(reads), 10)
        self.assertEqual(len(one.protocol.got), 10)
        del peer

    async def test_acknowledgedAtTheEnd(self) -> None:
        """
        Messages that TCP had acknowledged when the connection was lost are not repeated, though nobody had
        looked yet.
        """
        one, peer = await self.begun()
        peer.send(RDSHeader(2, destinationPort=1, extensions=pathsExtensions(1, 9)).pack())
        (path,) = one.network.paths.values()
        path.carrier._wantLook = lambda: None
        one.write(b"first", (SMALL, 4000))
        await becomes(reactor, lambda: len(peer.messages()) == 4)
        # Linux puts acknowledgements off for 40 ms.
        await deferLater(reactor, 0.2)
        self.assertGreater(one._queued, 0)
        peer.reset()
        await becomes(reactor, lambda: one._queued == 0)
        self.assertEqual(one.network.counters["send_retransmitted"], 0)

    async def test_acknowledged(self) -> None:
        """
        A message that TCP has acknowledged is done, read or not; any other is repeated with its
        number.
        """
        one, peer = await self.begun()
        peer.send(RDSHeader(2, sourcePort=0, destinationPort=1, extensions=pathsExtensions(1, 9)).pack())
        one.write(b"first", (SMALL, 4000))
        await becomes(reactor, lambda: one._queued == 0)
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        big = [bytes([i]) * (1 << 20) for i in range(2)]
        for item in big:
            one.write(item, (SMALL, 4000))
        await deferLater(reactor, 0.1)
        self.assertGreater(one._queued, 0)
        peer.reset()
        peer = self.connectRaw(SMALL, LARGE)
        await becomes(reactor, lambda: len(peer.messages()) > 1 and peer.messages()[-1][0].sequence == 5)
        repeated = peer.messages()[1:]
        for header, payload in repeated:
            self.assertEqual(header.flags, RETRANSMITTED | ACK_REQUIRED)
            self.assertTrue(payload == big[header.sequence - 4])
        self.assertEqual([header.sequence for header, _ in repeated][-2:], [4, 5][-len(repeated) :])

    async def test_ourRemoteAddress(self) -> None:
        """
        Nobody but ourselves has an address of ours.
        """
        network = Network(reactor, lambda network: TCPMedium(network, self.number))
        self.open(LARGE, 5000, network)
        self.open(SMALL, 5000, network)
        peer = self.connectRaw(SMALL, LARGE)
        await becomes(reactor, lambda: peer.look() or peer.ended)
        self.assertEqual(network.paths, {})

    async def test_tooMany(self) -> None:
        """
        Without room for another path the connection is reset.
        """
        self.patch(limits, "RDS_PATHS", 1)
        await self.begun()
        peer = self.connectRaw(STRANGER, LARGE)
        await becomes(reactor, lambda: peer.look() or peer.ended)


class ConnectingTests(TCPCase):
    """
    A peer has the larger address.
    """

    async def test_connectedTo(self) -> None:
        """
        We connect from our address, and say map and probe first; data comes after the answer.
        """
        listening = self.listenRaw(LARGE)
        one = self.open(SMALL, 4000)
        one.write(b"x", (LARGE, 5000))
        peer = await self.accept(listening)
        self.assertEqual(peer.socket.getpeername()[0], SMALL)
        await becomes(reactor, lambda: len(peer.messages()) == 2)
        await deferLater(reactor, 0.05)
        self.assertEqual(len(peer.messages()), 2)
        peer.send(MAP + RDSHeader(1, sourcePort=0, destinationPort=1).pack())
        await becomes(reactor, lambda: len(peer.messages()) == 3)
        header, payload = peer.messages()[2]
        self.assertEqual((header.sequence, header.sourcePort, header.destinationPort), (2, 4000, 5000))
        self.assertEqual(payload, b"x")

    async def test_noAnswer(self) -> None:
        """
        A peer that does not answer probes gets data after a while.
        """
        self.patch(machine, "RDS_PROBE_SECONDS", 0.05)
        listening = self.listenRaw(LARGE)
        one = self.open(SMALL, 4000)
        one.write(b"x", (LARGE, 5000))
        peer = await self.accept(listening)
        await becomes(reactor, lambda: len(peer.messages()) == 3)

    async def test_reminded(self) -> None:
        """
        The larger address connects: it is reset, and we connect.
        """
        listening = self.listenRaw(LARGE)
        self.open(SMALL, 4000)
        peer = self.connectRaw(LARGE, SMALL)
        await becomes(reactor, lambda: peer.look() or peer.ended)
        self.assertEqual(peer.ended, "ConnectionResetError")
        self.assertEqual(peer.data, b"")
        peer = await self.accept(listening)
        await becomes(reactor, lambda: len(peer.messages()) == 2)

    async def test_reminding(self) -> None:
        """
        As the larger we do the same to a smaller that listens: connect, let go, and wait.
        """
        listening = self.listenRaw(SMALL)
        one = self.open(LARGE, 5000)
        one.write(b"x", (SMALL, 4000))
        peer = await self.accept(listening)
        await becomes(reactor, lambda: peer.look() or peer.ended)
        self.assertEqual(peer.data, b"")
        second = await self.accept(listening)
        self.assertEqual(second.socket.getpeername()[0], LARGE)
        peer = self.connectRaw(SMALL, LARGE)
        await becomes(reactor, lambda: len(peer.messages()) == 2)

    async def test_again(self) -> None:
        """
        A connection that is lost is made again by the smaller, though nothing waits.
        """
        listening = self.listenRaw(LARGE)
        one = self.open(SMALL, 4000)
        one.write(b"x", (LARGE, 5000))
        peer = await self.accept(listening)
        peer.send(MAP + RDSHeader(1, sourcePort=0, destinationPort=1).pack())
        await becomes(reactor, lambda: len(peer.messages()) == 3 and one._queued == 0)
        peer.reset()
        peer = await self.accept(listening)
        await becomes(reactor, lambda: len(peer.messages()) == 1)
        self.assertEqual(peer.messages()[0][0].flags, CONG_BITMAP)

    async def test_options(self) -> None:
        """
        The connection does not wait for more data, and looks for a dead peer.
        """
        listening = self.listenRaw(LARGE)
        one = self.open(SMALL, 4000)
        one.write(b"x", (LARGE, 5000))
        await self.accept(listening)
        (path,) = one.network.paths.values()
        await becomes(reactor, lambda: path.carrier is not None)
        handle = path.carrier.transport.getHandle()
        for level, name, value in (
            (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
            (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
            (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 5),
            (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 5),
            (socket.IPPROTO_TCP, "TCP_KEEPCNT", 5),
        ):
            self.assertEqual(handle.getsockopt(level, getattr(socket, name)), value, name)
