"""
Tests of L{twisted_ib.rds.port}: sockets of processes that a wire in memory joins.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import CannotListenError, InvalidAddressError
from twisted.internet.interfaces import IListeningPort
from twisted.internet.protocol import DatagramProtocol
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.rds.net import MemoryCarrier, Recorder, Told, Wire, hosts
from twisted_ib import limits
from twisted_ib.errors import DatagramTooLongError, DestinationCongestedError, PeerGoneError, SendBudgetError
from twisted_ib.interfaces import IRDSProtocol, IRDSTransport
from twisted_ib.rds import port as rdsPort
from twisted_ib.rds import queues
from twisted_ib.rds.media.tcp import TCPMedium
from twisted_ib.rds.paths import path as pathsPath
from twisted_ib.rds.paths.network import Network
from twisted_ib.rds.port import RDSPort

SIZE = 64 * 1024


class Producer:
    """
    Writes when it may.
    """

    def __init__(self, transport: Any, addr: Any, size: int = SIZE, count: int = 10**9) -> None:
        self.transport, self.addr, self.size, self.count = transport, addr, size, count
        self.paused = self.stopped = False
        self.written = 0

    def produce(self) -> None:
        while not self.paused and not self.stopped and self.written < self.count:
            self.written += 1
            self.transport.write(self.written.to_bytes(4, "big").ljust(self.size, b"."), self.addr)

    def pauseProducing(self) -> None:
        self.paused = True

    def resumeProducing(self) -> None:
        self.paused = False
        self.produce()

    def stopProducing(self) -> None:
        self.stopped = True


class PortCase(SynchronousTestCase):
    """
    Two processes; 10.0.0.1 is the smaller address.
    """

    def setUp(self) -> None:
        self.wire = Wire()
        self.here, self.there, self.third = hosts(self.wire, 3)
        self.sockets: list[Any] = []

    def tearDown(self) -> None:
        for socket in self.sockets:
            socket.stopListening()
        self.wire.advance(rdsPort.RDS_LINGER_SECONDS + 1, 0.1)
        self.assertEqual(self.wire.clock.getDelayedCalls(), [])

    def socket(self, host: Any, port: int = 0, protocol: Any = None, **arguments: Any) -> Any:
        socket = host.socket(port, protocol, **arguments)
        self.sockets.append(socket)
        return socket

    def pair(self) -> tuple[Any, Any]:
        return self.socket(self.here, 4000), self.socket(self.there, 5000)


class NetworkTests(SynchronousTestCase):
    """
    A process's sockets together.
    """

    def test_generation(self) -> None:
        """
        A random number that fits into 32 bits, and never 0, which means unknown.
        """
        for draw, expected in ((lambda most: 0, 1), (lambda most: most - 1, 0xFFFFFFFF)):
            network = Network(Clock(), TCPMedium, below=draw)
            self.assertEqual(network.generation, expected)


class DatagramTests(PortCase):
    """
    Datagrams arrive.
    """

    def test_interfaces(self) -> None:
        """
        The transport and the protocol are what they say.
        """
        socket = self.socket(self.here)
        verifyObject(IRDSTransport, socket)
        verifyObject(IListeningPort, socket)
        verifyObject(IRDSProtocol, socket.protocol)

    def test_bothWays(self) -> None:
        """
        With sizes from nothing to the longest; the sender's address comes with each.
        """
        one, two = self.pair()
        sent = [bytes([i]) * size for i, size in enumerate((0, 1, 100, 4096, 9000, 1 << 20))]
        for data in sent:
            self.assertIsNone(one.write(data, ("10.0.0.2", 5000)))
            two.write(data, ("10.0.0.1", 4000))
        self.wire.advance(0.1)
        self.assertEqual(two.protocol.got, [(data, ("10.0.0.1", 4000)) for data in sent])
        self.assertEqual(one.protocol.got, [(data, ("10.0.0.2", 5000)) for data in sent])
        self.assertEqual(self.wire.made, 1)
        self.assertEqual(one._queued, 0)

    def test_larger(self) -> None:
        """
        The larger address has something to say: it lets the smaller connect.
        """
        one, two = self.pair()
        two.write(b"hello", ("10.0.0.1", 4000))
        self.wire.advance(0.1)
        self.assertEqual(one.protocol.got, [(b"hello", ("10.0.0.2", 5000))])
        self.assertEqual(self.wire.made, 1)
        (path,) = self.there.network.paths.values()
        self.assertEqual((path._retry, path._attempt), (None, None))

    def test_staleAcknowledgement(self) -> None:
        """
        Numbers that a peer received from another instance of ours are no acknowledgement.
        """
        one = self.socket(self.here)
        one.write(b"x", ("10.0.0.2", 5000))
        (path,) = self.here.network.paths.values()
        carrier = MemoryCarrier(self.wire)
        carrier.path, carrier.peer = path, MemoryCarrier(self.wire)
        carrier.peer.path = path
        carrier.peer.take = lambda: None  # type: ignore[method-assign]
        self.wire.connections += [carrier, carrier.peer]
        path.carrierUp(carrier, 500)
        self.assertEqual(self.here.network.counters["recv_bad_ack"], 0)
        self.assertEqual(len(path.machine.waiting), 1)

    def test_oneConnection(self) -> None:
        """
        All sockets of two processes share one.
        """
        ones = [self.socket(self.here) for _ in range(5)]
        twos = [self.socket(self.there) for _ in range(5)]
        for one in ones:
            for two in twos:
                one.write(b"1", ("10.0.0.2", two.getHost().port))
                two.write(b"2", ("10.0.0.1", one.getHost().port))
        self.wire.advance(0.1)
        self.assertEqual([len(socket.protocol.got) for socket in ones + twos], [5] * 10)
        self.assertEqual(self.wire.made, 1)

    def test_sameProcess(self) -> None:
        """
        Between sockets of one process nothing leaves it; not even to itself, or a ping.
        """
        one, two = self.socket(self.here, 4000), self.socket(self.here, 4001)
        one.write(b"x", ("10.0.0.1", 4001))
        one.write(b"", ("10.0.0.1", 4000))
        self.assertEqual(two.protocol.got, [])
        answer = two.ping("10.0.0.1")
        self.wire.advance(0.01)
        self.assertEqual(two.protocol.got, [(b"x", ("10.0.0.1", 4000))])
        self.assertEqual(one.protocol.got, [(b"", ("10.0.0.1", 4000))])
        self.assertGreaterEqual(self.successResultOf(answer), 0)
        self.assertEqual(self.wire.made, 0)

    def test_kinds(self) -> None:
        """
        Anything bytes-like is taken, and copied; other things are not.
        """
        one, two = self.pair()
        data = bytearray(b"abc")
        one.write(data, ("10.0.0.2", 5000))
        data[:] = b"xyz"
        one.write(memoryview(b"def"), ("10.0.0.2", 5000))
        one.writeSequence([b"g", b"hi"], ("10.0.0.2", 5000))
        self.assertRaises(TypeError, one.write, "text", ("10.0.0.2", 5000))
        self.wire.advance(0.1)
        self.assertEqual([data for data, _ in two.protocol.got], [b"abc", b"def", b"ghi"])

    def test_connect(self) -> None:
        """
        As with UDP there can be a default destination; without one there is an error.
        """
        one, two = self.pair()
        self.assertRaises(ValueError, one.write, b"x")
        one.connect("10.0.0.2", 5000)
        one.write(b"x")
        self.wire.advance(0.1)
        self.assertEqual(two.protocol.got, [(b"x", ("10.0.0.1", 4000))])

    def test_tooLong(self) -> None:
        """
        Nothing of it is sent; and what is longer than the receiver's maximum is cut off.
        """
        one = self.socket(self.here, maxPacketSize=10)
        two = self.socket(self.there, 5000, maxPacketSize=4)
        self.assertRaises(DatagramTooLongError, one.write, bytes(11), ("10.0.0.2", 5000))
        one.write(b"0123456789", ("10.0.0.2", 5000))
        self.wire.advance(0.1)
        self.assertEqual([data for data, _ in two.protocol.got], [b"0123"])
        whole = self.socket(self.here)
        self.assertRaises(DatagramTooLongError, whole.write, bytes((1 << 20) + 1), ("10.0.0.2", 5000))

    def test_addresses(self) -> None:
        """
        Names, other kinds of address and impossible ports are refused.
        """
        one = self.socket(self.here)
        for host in ("localhost", "::1", "", "0.0.0.0", None):
            self.assertRaises(InvalidAddressError, one.write, b"", (host, 5000))
        for port in (-1, 65536, None, "5000"):
            self.assertRaises(ValueError, one.write, b"", ("10.0.0.2", port))

    def test_nobody(self) -> None:
        """
        A datagram for an unbound port is dropped, and acknowledged.
        """
        one, _ = self.pair()
        one.write(b"x", ("10.0.0.2", 5001))
        self.wire.advance(0.1)
        self.assertEqual(self.there.network.counters["recv_drop_no_sock"], 1)
        self.assertEqual(one._queued, 0)

    def test_error(self) -> None:
        """
        An exception of the protocol is logged, and the next datagram comes.
        """

        class Failing(DatagramProtocol):
            def datagramReceived(self, datagram: bytes, addr: Any) -> None:
                raise RuntimeError("mine")

        one, two = self.socket(self.here), self.socket(self.there, 5000, Failing())
        one.write(b"1", ("10.0.0.2", 5000))
        one.write(b"2", ("10.0.0.2", 5000))
        self.wire.advance(0.1)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 2)
        self.assertEqual(self.there.network.counters["recv_delivered"], 2)
        del two


class OpeningTests(PortCase):
    """
    Ports are taken and given back.
    """

    def test_startAndStop(self) -> None:
        """
        The protocol is started and stopped, and knows its transport meanwhile.
        """
        socket = self.here.socket(4000)
        self.assertIs(socket.protocol.transport, socket)
        self.assertEqual((socket.getHost().host, socket.getHost().port), ("10.0.0.1", 4000))
        self.assertIn("4000", repr(socket))
        stopped = socket.stopListening()
        self.assertNoResult(stopped)
        again = socket.stopListening()
        self.wire.advance(0.01)
        self.assertIsNone(self.successResultOf(stopped))
        self.assertIsNone(self.successResultOf(again))
        self.assertIsNone(self.successResultOf(socket.stopListening()))
        self.assertEqual(socket.protocol.events, ["start", "stop"])
        self.assertEqual(self.wire.media, {})
        self.assertIsNone(socket.write(b"", ("10.0.0.2", 5000)))

    def test_taken(self) -> None:
        """
        A port belongs to one socket; then to the next.
        """
        first = self.socket(self.here, 4000)
        self.assertRaises(CannotListenError, self.here.socket, 4000)
        first.stopListening()
        self.wire.advance(0.01)
        self.socket(self.here, 4000)

    def test_addressTaken(self) -> None:
        """
        An address that another process has cannot be had.
        """
        self.socket(self.here, 4000)
        stranger = hosts(self.wire, 1)[0]
        self.assertRaises(CannotListenError, stranger.socket, 4001)
        self.assertEqual(stranger.network.sockets, {})

    def test_any(self) -> None:
        """
        Port 0 is any from 2 up that is free.
        """
        drawn = iter([0, 0, 1, 65533])
        self.here.network.below = lambda most: next(drawn)
        ports = [self.socket(self.here).getHost().port for _ in range(3)]
        self.assertEqual(ports, [2, 3, 65535])

    def test_noneFree(self) -> None:
        """
        After so many in vain it is an error.
        """
        self.here.network.below = lambda most: 7
        self.socket(self.here)
        self.assertRaises(CannotListenError, self.here.socket)

    def test_wrong(self) -> None:
        """
        Ports, sizes and interfaces that make no sense.
        """
        for port in (-1, 1, 65536, "4000", None, True):
            self.assertRaises(ValueError, RDSPort, port, Recorder())
        for size in (-1, (1 << 20) + 1, None):
            self.assertRaises(ValueError, RDSPort, 0, Recorder(), "", size)
        for port, size in ((0, 0), (2, 1 << 20), (65535, 1)):
            RDSPort(port, Recorder(), "", size)
        self.assertRaises(ValueError, RDSPort, 0, Recorder(), None)
        for interface in ("nowhere", "10.0.0.300"):
            port = RDSPort(0, Recorder(), interface, reactor=self.wire.clock, network=self.here.network)
            self.assertRaises(CannotListenError, port.startListening)

    def test_allAddresses(self) -> None:
        """
        Without an interface the port is taken of each address; datagrams come from the one that the kernel
        would connect from, if the socket has it.
        """
        kernels = {"10.0.0.2": "10.1.0.1", "10.0.0.3": "192.0.2.1"}
        self.patch(self.here.network.medium, "sourceFor", kernels.__getitem__)
        all_ = RDSPort(7000, Told(), reactor=self.wire.clock, network=self.here.network)
        all_.startListening()
        self.sockets.append(all_)
        self.assertEqual(all_.getHost().host, "0.0.0.0")
        two = self.socket(self.there, 5000)
        for host in ("10.0.0.1", "10.1.0.1"):
            two.write(b"x", (host, 7000))
        self.wire.advance(1.0)
        self.assertEqual(len(all_.protocol.got), 2)
        three = self.socket(self.third, 5000)
        for host in ("10.0.0.2", "10.0.0.3"):
            all_.write(b"y", (host, 5000))
        self.wire.advance(0.1)
        self.assertEqual([one.protocol.got[0][1][0] for one in (two, three)], ["10.1.0.1", "10.0.0.1"])
        none = RDSPort(7000, Told(), "::", reactor=self.wire.clock, network=self.here.network)
        self.assertRaises(CannotListenError, none.startListening)

    def test_versions(self) -> None:
        """
        C{0.0.0.0} stands for the IPv4 addresses, C{::} for those of IPv6.
        """
        addresses = ["10.0.0.1", "2001:db8::1", "10.1.0.1"]
        self.patch(self.here.network.medium, "localAddresses", lambda: addresses)
        for interface, expected in (("", addresses), ("0.0.0.0", addresses[::2]), ("::", addresses[1:2])):
            port = RDSPort(0, Recorder(), interface, reactor=self.wire.clock, network=self.here.network)
            port.startListening()
            self.sockets.append(port)
            self.assertEqual(port.addresses, expected)
            self.assertEqual(port.getHost().host, interface or "0.0.0.0")

    def test_localhost(self) -> None:
        """
        A host is an address once it is bound.
        """
        for interface, host in (("localhost", "127.0.0.1"), ("2001:DB8:0::1", "2001:db8::1")):
            port = RDSPort(0, Recorder(), interface, reactor=self.wire.clock, network=self.here.network)
            self.assertEqual(port.getHost().host, interface)
            port.startListening()
            self.sockets.append(port)
            self.assertEqual(port.getHost().host, host)

    def test_quiet(self) -> None:
        """
        The last socket is closed when the medium has nothing in the reactor; others do not wait for that.
        """
        quiet: Deferred[None] = Deferred()
        self.patch(self.here.network.medium, "whenQuiet", lambda: quiet)
        one, last = self.socket(self.here), self.socket(self.here)
        closed = [one.stopListening(), last.stopListening()]
        self.wire.advance(0.1)
        self.assertEqual([each.called for each in closed], [True, False])
        quiet.callback(None)
        self.successResultOf(closed[1])

    def test_tooManySockets(self) -> None:
        """
        There is a bound.
        """
        self.patch(limits, "RDS_SOCKETS", 2)
        self.socket(self.here)
        self.socket(self.here)
        self.assertRaises(CannotListenError, self.here.socket)

    def test_tooManyPaths(self) -> None:
        """
        An idle path makes place, one that is in use does not.
        """
        self.patch(limits, "RDS_PATHS", 2)
        one = self.socket(self.here)
        for host in ("10.0.0.8", "10.0.0.9"):
            one.write(b"", (host, 5000))
        with self.assertRaises(Exception) as caught:
            one.write(b"", ("10.0.0.2", 5000))
        self.assertIn("too many paths", str(caught.exception))
        self.assertEqual(one.cancel(("10.0.0.8", 5000)), 1)
        one.write(b"", ("10.0.0.2", 5000))
        self.assertEqual(len(self.here.network.paths), 2)

    def test_routes(self) -> None:
        """
        The cache of routes is bounded; a forgotten destination is found again.
        """
        self.patch(limits, "RDS_ROUTES", 3)
        one, two = self.pair()
        for count, port in enumerate((0, *range(6000, 6010), 65535, 5000, 5000)):
            one.write(b"", ("10.0.0.2", port))
            routes = min(count, 12) % 3 + 1
            self.assertEqual((len(one._routes), len(self.here.network._routes)), (routes, routes))
        self.wire.advance(0.1)
        self.assertEqual(len(two.protocol.got), 2)
        self.assertEqual(one.counters()["send_queued"], 14)
        self.assertEqual(list(one.counters())[:2], ["conn_reset", "recv_drop_bad_checksum"])

    def test_linger(self) -> None:
        """
        A socket that is closed sends what it was given; what comes for it is dropped.
        """
        one, two = self.pair()
        for number in range(100):
            one.write(b"%d" % number, ("10.0.0.2", 5000))
        stopped = one.stopListening()
        two.write(b"late", ("10.0.0.1", 4000))
        self.wire.advance(0.2)
        self.assertIsNone(self.successResultOf(stopped))
        self.assertEqual([data for data, _ in two.protocol.got], [b"%d" % i for i in range(100)])
        self.assertEqual(one.protocol.got, [])
        self.assertEqual(self.here.network.counters["recv_drop_dead_sock"], 1)

    def test_lingerNoLonger(self) -> None:
        """
        It is closed when the last of that is acknowledged.
        """
        one = self.socket(self.here)
        for _ in range(2):
            one.write(b"x", ("10.0.0.2", 5000))
        closed = one.stopListening()
        (path,) = self.here.network.paths.values()
        for message in [message for message in path.messages() if message.owner is one]:
            self.wire.clock.advance(0)
            self.assertNoResult(closed)
            one.messageDone(message)
        self.wire.clock.advance(0)
        self.successResultOf(closed)

    def test_lingerEnds(self) -> None:
        """
        It does so for a while only.
        """
        one = self.here.socket()
        one.write(b"x", ("10.0.0.9", 5000))
        stopped = one.stopListening()
        self.wire.advance(rdsPort.RDS_LINGER_SECONDS - 0.1, 0.05)
        self.assertNoResult(stopped)
        self.wire.advance(0.2, 0.05)
        self.assertIsNone(self.successResultOf(stopped))
        self.assertEqual(self.here.network.counters["send_drop_closed"], 1)
        self.assertEqual(self.wire.clock.getDelayedCalls(), [])


class BudgetTests(PortCase):
    """
    The send queue is bounded.
    """

    def test_deferred(self) -> None:
        """
        The write that uses up the budget gives a Deferred, the next raises, and there is room when
        half has arrived.  Nothing is lost.
        """
        one, two = self.pair()
        count = 0
        while (room := one.write(bytes(SIZE), ("10.0.0.2", 5000))) is None:
            count += 1
        count += 1
        self.assertLess(count * SIZE, limits.RDS_SEND_BUDGET + SIZE)
        self.assertRaises(SendBudgetError, one.write, b"", ("10.0.0.2", 5000))
        self.assertEqual(self.here.network.counters["send_queue_full"], 1)
        self.assertNoResult(room)
        self.wire.advance(0.1)
        self.assertIsNone(self.successResultOf(room))
        self.assertEqual(len(two.protocol.got), count)
        self.assertIsNone(one.write(b"", ("10.0.0.2", 5000)))

    def test_empty(self) -> None:
        """
        Empty datagrams count too.
        """
        one, _ = self.pair()
        count = 1
        while one.write(b"", ("10.0.0.2", 5000)) is None:
            count += 1
        self.assertEqual(count, limits.RDS_SEND_BUDGET // limits.RDS_DATAGRAM_OVERHEAD)

    def test_producer(self) -> None:
        """
        A producer is paused and resumed, and all comes in order.
        """
        one, two = self.pair()
        producer = Producer(one, ("10.0.0.2", 5000), count=200)
        one.registerProducer(producer, True)
        self.assertRaises(RuntimeError, one.registerProducer, producer, True)
        producer.produce()
        self.assertTrue(producer.paused)
        self.wire.advance(1.0)
        self.assertEqual(producer.written, 200)
        self.assertEqual([int.from_bytes(data[:4], "big") for data, _ in two.protocol.got], [*range(1, 201)])
        one.unregisterProducer()

    def test_pullProducer(self) -> None:
        """
        One that waits to be asked is asked.
        """
        one, two = self.pair()

        class Pulled(Producer):
            def resumeProducing(self) -> None:
                if self.written < self.count:
                    self.written += 1
                    self.transport.write(b"x", self.addr)

        producer = Pulled(one, ("10.0.0.2", 5000), count=5)
        one.registerProducer(producer, False)
        self.wire.advance(0.5)
        self.assertEqual(len(two.protocol.got), 5)

    def test_stopped(self) -> None:
        """
        A producer is stopped with the socket, or at once if that is closed.
        """
        one = self.here.socket()
        producer, late = Producer(one, None), Producer(one, None)
        one.registerProducer(producer, True)
        one.stopListening()
        self.wire.advance(0.01)
        self.assertTrue(producer.stopped)
        one.registerProducer(late, True)
        self.assertTrue(late.stopped)

    def test_closedWhileFull(self) -> None:
        """
        Writers that wait for room are notified when the socket is closed.
        """
        one = self.here.socket()
        while (room := one.write(bytes(SIZE), ("10.0.0.9", 5000))) is None:
            pass
        one.stopListening()
        self.wire.advance(rdsPort.RDS_LINGER_SECONDS + 1, 0.1)
        self.assertIsNone(self.successResultOf(room))


class CongestionTests(PortCase):
    """
    A receiver that does not read.
    """

    def fill(self, one: Any, two: Any) -> int:
        """
        Write to a paused socket until its port is congested.

        @return: how many datagrams.
        """
        two.pauseProducing()
        count = 0
        while not one.network.paths["10.0.0.1", "10.0.0.2"].isCongested(5000) if count else True:
            try:
                one.write(count.to_bytes(4, "big").ljust(SIZE, b"."), ("10.0.0.2", 5000))
                count += 1
            except SendBudgetError:
                pass
            self.wire.advance(0.002)
        return count

    def test_heldAndCleared(self) -> None:
        """
        Datagrams for it wait, the other socket there gets its own; when it has read, all come.
        """
        one, two = self.pair()
        other = self.socket(self.there, 5001)
        count = self.fill(one, two)
        self.assertGreaterEqual(count * SIZE, limits.RDS_RECEIVE_BUDGET)
        self.assertEqual(two.protocol.got, [])
        held = one.write(b"held", ("10.0.0.2", 5000))
        self.assertEqual(one.protocol.events, ["start", "congested 10.0.0.2:5000"])
        self.assertIsNone(one.write(b"other", ("10.0.0.2", 5001)))
        self.wire.advance(0.5)
        self.assertEqual([data for data, _ in other.protocol.got], [b"other"])
        self.assertNoResult(held)
        self.assertEqual(self.here.network.counters["cong_send_blocked"], 1)
        two.resumeProducing()
        self.wire.advance(0.5)
        self.assertIsNone(self.successResultOf(held))
        self.assertEqual(one.protocol.events[1:], ["congested 10.0.0.2:5000", "cleared 10.0.0.2:5000"])
        self.assertEqual(len(two.protocol.got), count + 1)
        self.assertEqual(two.protocol.got[-1][0], b"held")
        numbers = [int.from_bytes(data[:4], "big") for data, _ in two.protocol.got[:-1]]
        self.assertEqual(numbers, [*range(count)])
        self.assertEqual([path.held for path in self.here.network.paths.values()], [0])

    def test_clearedWithoutRoom(self) -> None:
        """
        Messages held back are sent, but the socket has no room then: writers go on waiting, and a
        producer is paused, until it has.
        """
        self.socket(self.there, 5001)
        one, two = self.pair()
        one.write(b"begin", ("10.0.0.2", 5000))
        self.wire.advance(0.1)
        (path,) = self.here.network.paths.values()
        path.machine.peerMap.mark(5000)
        rooms = [one.write(bytes(SIZE), ("10.0.0.2", 5000)) for _ in range(4)]
        while one._queued < limits.RDS_SEND_BUDGET - 2 * SIZE:
            self.assertIsNone(one.write(bytes(SIZE), ("10.0.0.9", 5000)))
        producer = Producer(one, None)
        one.registerProducer(producer, True)
        path.machine.peerMap.clear(5000)
        one.portsCleared(path)
        self.assertTrue(producer.paused)
        for room in rooms:
            self.assertNoResult(room)
        self.assertRaises(SendBudgetError, one.write, b"", ("10.0.0.2", 5000))
        producer.stopped = True
        one.cancel(("10.0.0.9", 5000))
        self.assertFalse(producer.paused)
        for room in rooms:
            self.assertIsNone(self.successResultOf(room))
        self.wire.advance(0.1)
        self.assertEqual(len(two.protocol.got), 5)
        one.unregisterProducer()

    def test_heldAndSilent(self) -> None:
        """
        While something is held back the peer is sent an empty message to nobody now and then: if its host
        is gone, the queue pair notices.
        """
        one, two = self.pair()
        self.fill(one, two)
        held = one.write(b"held", ("10.0.0.2", 5000))
        self.wire.advance(1.0, 0.01)
        (path,) = self.here.network.paths.values()
        sent = path.machine.nextTransmit
        self.wire.advance(2 * pathsPath.RDS_HELD_SECONDS, 0.01)
        self.assertEqual(path.machine.nextTransmit, sent + 2)
        self.assertTrue(path.machine.isIdle())
        self.assertEqual(self.there.network.counters["recv_drop_no_sock"], 2)
        two.resumeProducing()
        self.wire.advance(1.0, 0.01)
        self.assertIsNone(self.successResultOf(held))
        sent = path.machine.nextTransmit
        self.wire.advance(2 * pathsPath.RDS_HELD_SECONDS, 0.1)
        self.assertEqual(path.machine.nextTransmit, sent)

    def test_producerTooLate(self) -> None:
        """
        A producer of a socket that closes is stopped at once.
        """
        one = self.socket(self.here)
        one.write(b"x", ("10.0.0.2", 5000))
        one.stopListening()
        producer = Producer(one, ("10.0.0.2", 5000))
        one.registerProducer(producer, True)
        self.assertEqual((producer.stopped, one._producer), (True, None))

    def test_raisingProducer(self) -> None:
        """
        An exception of a producer is logged; the other acknowledgements are processed all the same.
        """

        class Raising(Producer):
            def resumeProducing(self) -> None:
                raise ZeroDivisionError

        one, two = self.pair()
        other = self.socket(self.here, 4001)
        one.registerProducer(Raising(one, None), True)
        while one._queued < limits.RDS_SEND_BUDGET:
            one.write(bytes(1 << 20), ("10.0.0.2", 5000))
        other.write(b"x", ("10.0.0.2", 5000))
        self.wire.advance(1.0)
        self.assertEqual(len(two.protocol.got), 3)
        self.assertEqual((one._queued, other._queued), (0, 0))
        self.assertEqual(self.here.network.counters["conn_reset"], 0)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        one.unregisterProducer()

    def test_raisingAtTheEnd(self) -> None:
        """
        Exceptions of protocol and producer when the socket is closed are logged, and it is closed.
        """

        class Raising(Told):
            def stopProtocol(self) -> None:
                raise ZeroDivisionError

            def stopProducing(self) -> None:
                raise ZeroDivisionError

        one = self.socket(self.here, 4000, Raising())
        one.registerProducer(one.protocol, True)
        closed = one.stopListening()
        self.wire.advance(0.1)
        self.assertIsNone(self.successResultOf(closed))
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 2)

    def test_noOvertaking(self) -> None:
        """
        Two ports are cleared: what is written to the one whose turn has not come is behind what
        waits there.
        """
        one, two = self.pair()
        three, four = self.socket(self.there, 5001), self.socket(self.here, 4001)
        four.write(b"begin", ("10.0.0.2", 5001))
        self.wire.advance(0.1)
        (path,) = self.here.network.paths.values()
        ports = path.machine.peerMap
        for port in (5000, 5001):
            ports.mark(port)
        one.write(b"first", ("10.0.0.2", 5000))
        four.write(b"second", ("10.0.0.2", 5001))
        for port in (5000, 5001):
            ports.clear(port)
        one.portsCleared(path)
        self.assertIsNotNone(four.write(b"third", ("10.0.0.2", 5001)))
        four.portsCleared(path)
        self.wire.advance(0.1)
        self.assertEqual([data for data, _ in three.protocol.got], [b"begin", b"second", b"third"])
        self.assertEqual([data for data, _ in two.protocol.got], [b"first"])

    def test_heldBounded(self) -> None:
        """
        Its queue has a bound of its own; then an error names it, and others go on.
        """
        one, two = self.pair()
        self.socket(self.there, 5001)
        self.fill(one, two)
        count = 0
        with self.assertRaises(DestinationCongestedError) as caught:
            while True:
                self.assertIsNotNone(one.write(bytes(SIZE), ("10.0.0.2", 5000)))
                count += 1
        self.assertIn("10.0.0.2 port 5000", str(caught.exception))
        self.assertLess(count * SIZE, rdsPort.RDS_CONGESTED_BUDGET + SIZE)
        self.assertIsNone(one.write(b"", ("10.0.0.2", 5001)))

    def test_heldExactly(self) -> None:
        """
        1 MiB is held for one destination, overhead included, and 16 MiB for all; the producer is paused by
        the message that reaches the first bound.
        """
        self.patch(limits, "RDS_SEND_BUDGET", 1 << 30)
        one, two = self.pair()
        self.fill(one, two)
        producer = Producer(one, ("10.0.0.2", 5000))
        one.registerProducer(producer, True)
        (path,) = self.here.network.paths.values()
        self.patch(path, "isCongested", lambda port: True)
        part = bytes(0x4000 - limits.RDS_DATAGRAM_OVERHEAD)
        for port in range(5000, 5016):
            for _ in range(64):
                self.assertEqual(one._producerPaused, port > 5000)
                one.write(part, ("10.0.0.2", port))
            self.assertTrue(one._producerPaused)
            self.assertRaises(DestinationCongestedError, one.write, b"", ("10.0.0.2", port))
        self.assertEqual(one._heldBytes, 16 << 20)
        self.assertRaises(DestinationCongestedError, one.write, b"", ("10.0.0.2", 5016))

    def test_budgetExactly(self) -> None:
        """
        The message that uses up the send budget is taken, its writer is told to wait, and the next is not.
        """
        size = 100 + limits.RDS_DATAGRAM_OVERHEAD
        self.patch(limits, "RDS_SEND_BUDGET", 4 * size)
        one = self.socket(self.here)
        rooms = [one.write(bytes(100), ("10.0.0.2", 5000)) for _ in range(4)]
        self.assertEqual([room is None for room in rooms], [True, True, True, False])
        self.assertRaises(SendBudgetError, one.write, b"", ("10.0.0.2", 5000))
        self.assertEqual(one.queued(), 4 * size)

    def test_clearedExactly(self) -> None:
        """
        What was held counts as queued when its port is cleared: its writers go on, unless it uses up the
        budget.
        """
        size = 100 + limits.RDS_DATAGRAM_OVERHEAD
        self.patch(limits, "RDS_SEND_BUDGET", 4 * size)
        for count, released in ((3, True), (4, False)):
            one = self.socket(self.here)
            path = self.here.network.route("10.0.0.1", "10.0.0.2", 5000)
            self.patch(path, "isCongested", lambda port: True)
            rooms = [one.write(bytes(100), ("10.0.0.2", 5000)) for _ in range(count)]
            self.patch(path, "isCongested", lambda port: False)
            one.portsCleared(path)
            self.assertEqual([room.called for room in rooms], [released] * count)
            self.assertEqual((one._queued, one._heldBytes), (count * size, 0))

    def test_halfBudget(self) -> None:
        """
        A writer, or a pull producer, goes on when half of the budget is free again.
        """
        self.patch(limits, "RDS_SEND_BUDGET", 4 * (100 + limits.RDS_DATAGRAM_OVERHEAD))
        one = self.socket(self.here)
        *_, room = [one.write(bytes(100), ("10.0.0.2", 5000)) for _ in range(4)]
        (path,) = self.here.network.paths.values()
        first, second, *_ = [message for message in path.messages() if message.owner is one]
        producer = Producer(one, ("10.0.0.2", 5000), count=0)
        resumed: list[int] = []
        self.patch(producer, "resumeProducing", lambda: resumed.append(one._queued))
        one.registerProducer(producer, False)
        resumed.clear()
        one.messageDone(first)
        self.assertNoResult(room)
        self.assertEqual(resumed, [])
        one.messageDone(second)
        self.successResultOf(room)
        self.assertEqual(resumed, [one._queued])

    def test_heldAndGone(self) -> None:
        """
        A peer's end is told to a socket that holds messages for it, and to no other.
        """
        one = self.socket(self.here)
        path, other = (self.here.network.route("10.0.0.1", f"10.0.0.{n}", 5000) for n in (2, 3))
        self.patch(path, "isCongested", lambda port: True)
        one.write(b"held", ("10.0.0.2", 5000))
        one.protocol.events.clear()
        for each in (other, path):
            one.peerGone(each, PeerGoneError("gone"))
        self.assertEqual(one.protocol.events, ["gone 10.0.0.2"])

    def test_largestBacklogs(self) -> None:
        """
        Where most of a socket's own bytes go, and at least half as many.
        """
        one, other = self.socket(self.here), self.socket(self.here)
        overhead = limits.RDS_DATAGRAM_OVERHEAD
        for port, length in ((5000, 2000), (5001, 1000), (5002, 999)):
            one.write(bytes(length - overhead), ("10.0.0.2", port))
        other.write(bytes(10_000), ("10.0.0.2", 5003))
        self.assertEqual(one.largestBacklogs(), [("10.0.0.2", 5000), ("10.0.0.2", 5001)])
        self.assertEqual(other.largestBacklogs(), [("10.0.0.2", 5003)])

    def test_allHeldBounded(self) -> None:
        """
        As is what waits for all congested destinations of a socket.
        """
        self.patch(rdsPort, "RDS_HELD_BUDGET", 3 * SIZE)
        self.patch(limits, "RDS_SEND_BUDGET", 1 << 30)
        one, two = self.pair()
        self.fill(one, two)
        one.registerProducer(Producer(one, ("10.0.0.2", 5000)), True)
        for _ in range(3):
            self.assertFalse(one._producerPaused)
            one.write(bytes(SIZE - limits.RDS_DATAGRAM_OVERHEAD), ("10.0.0.2", 5000))
        self.assertTrue(one._producerPaused)
        self.assertRaises(DestinationCongestedError, one.write, b"", ("10.0.0.2", 5000))

    def test_producer(self) -> None:
        """
        A slow receiver pauses the producer; what is held anywhere is bounded.
        """
        one, two = self.pair()
        two.pauseProducing()
        producer = Producer(one, ("10.0.0.2", 5000))
        one.registerProducer(producer, True)
        producer.produce()
        most = 0
        for turn in range(400):
            self.wire.advance(0.005)
            most = max(most, two._receivedBytes + one._queued + one._heldBytes)
            if turn % 10 == 0:
                two.resumeProducing()
            elif turn % 10 == 1:
                two.pauseProducing()
        bound = limits.RDS_RECEIVE_BUDGET + 2 * limits.RDS_SEND_BUDGET + rdsPort.RDS_CONGESTED_BUDGET
        self.assertLess(most, bound)
        producer.count = producer.written
        two.resumeProducing()
        self.wire.advance(2.0)
        self.assertEqual(len(two.protocol.got), producer.written)
        one.unregisterProducer()

    def test_reconnected(self) -> None:
        """
        The new connection begins with the map: what was congested stays so, or is cleared.
        """
        one, two = self.pair()
        count = self.fill(one, two)
        held = one.write(b"held", ("10.0.0.2", 5000))
        self.wire.breakAll()
        self.wire.advance(0.5)
        self.assertNoResult(held)
        self.wire.breakAll()
        two.resumeProducing()
        self.wire.advance(0.5)
        self.assertIsNone(self.successResultOf(held))
        self.assertEqual(len(two.protocol.got), count + 1)

    def test_clearedByClosing(self) -> None:
        """
        A closed socket's port is congested no more.
        """
        one, two = self.pair()
        self.socket(self.there, 5001)
        self.fill(one, two)
        held = one.write(b"held", ("10.0.0.2", 5000))
        two.stopListening()
        self.wire.advance(0.1)
        self.assertIsNone(self.successResultOf(held))
        self.assertNotIn(5000, self.there.network.mapOf("10.0.0.2"))

    def test_closedWhileHolding(self) -> None:
        """
        A socket that holds something closes after a while.
        """
        one, two = self.pair()
        self.fill(one, two)
        held = one.write(b"held", ("10.0.0.2", 5000))
        one.stopListening()
        self.wire.advance(rdsPort.RDS_LINGER_SECONDS + 0.1, 0.1)
        self.assertIsNone(self.successResultOf(held))
        self.assertEqual(self.here.network.paths["10.0.0.1", "10.0.0.2"].held, 0)

    def test_flooded(self) -> None:
        """
        A peer that sends on regardless is not read, and its datagrams come when there is memory.
        """
        self.patch(limits, "RDS_RECEIVE_BUDGET", 4 * SIZE)
        self.patch(queues, "RDS_RECEIVE_MOST", 8 * SIZE)
        one, two = self.pair()
        two.pauseProducing()
        one.write(bytes(SIZE), ("10.0.0.2", 5000))
        path = self.here.network.paths["10.0.0.1", "10.0.0.2"]
        path.isCongested = lambda port: False
        for _ in range(30):
            one.write(bytes(SIZE), ("10.0.0.2", 5000))
            self.wire.advance(0.005)
        self.assertLess(two._receivedBytes, 11 * SIZE)
        two.resumeProducing()
        self.wire.advance(1.0)
        self.assertEqual(len(two.protocol.got), 31)

    def test_sameProcess(self) -> None:
        """
        Between sockets of one process it is the same.
        """
        self.patch(limits, "RDS_RECEIVE_BUDGET", 4 * SIZE)
        one, two = self.socket(self.here, 4000), self.socket(self.here, 4001)
        two.pauseProducing()
        for _ in range(6):
            one.write(bytes(SIZE), ("10.0.0.1", 4001))
        self.wire.advance(0.1)
        held = one.write(b"held", ("10.0.0.1", 4001))
        self.wire.advance(0.1)
        self.assertNoResult(held)
        two.resumeProducing()
        self.wire.advance(0.1)
        self.assertIsNone(self.successResultOf(held))
        self.assertEqual(len(two.protocol.got), 7)


class PeerTests(PortCase):
    """
    Peers that are there, or not, or begin anew.
    """

    def test_ping(self) -> None:
        """
        A ping takes as long as there and back.
        """
        one, _ = self.pair()
        self.successResultOf(self.pinged(one, "10.0.0.2", 0.1))
        self.wire.delay = 0.01
        seconds = self.successResultOf(self.pinged(one, "10.0.0.2", 0.1))
        self.assertAlmostEqual(seconds, 0.02, places=2)
        self.assertEqual(self.there.network.counters["send_pong"], 3)
        self.assertEqual(one.protocol.got, [])

    def pinged(self, one: Any, host: str, seconds: float) -> Any:
        answer = one.ping(host)
        self.wire.advance(seconds)
        return answer

    def test_pingByHand(self) -> None:
        """
        An empty datagram to port 0 is answered by one from there, as a socket of Linux sees it.
        """
        one, _ = self.pair()
        one.write(b"", ("10.0.0.2", 0))
        self.wire.advance(0.1)
        self.assertEqual(one.protocol.got, [(b"", ("10.0.0.2", 0))])

    def test_pingNobody(self) -> None:
        """
        A ping fails when the peer is taken for gone; it can be cancelled before; and ends with the
        socket.
        """
        one = self.socket(self.here)
        gone, cancelled = one.ping("10.0.0.9"), one.ping("10.0.0.9")
        cancelled.cancel()
        self.failureResultOf(cancelled, CancelledError)
        self.wire.advance(pathsPath.RDS_GONE_SECONDS + 2, 0.05)
        self.failureResultOf(gone, PeerGoneError)
        closed = one.ping("10.0.0.9")
        one.stopListening()
        self.wire.advance(0.1)
        self.failureResultOf(closed, PeerGoneError)

    def test_pingsBounded(self) -> None:
        """
        So many may wait.
        """
        self.patch(rdsPort, "RDS_PINGS", 2)
        one = self.socket(self.here)
        waiting = [one.ping("10.0.0.9"), one.ping("10.0.0.9")]
        self.assertRaises(SendBudgetError, one.ping, "10.0.0.9")
        for ping in waiting:
            ping.cancel()
            self.failureResultOf(ping, CancelledError)

    def test_pongForgery(self) -> None:
        """
        Only the peer that was asked answers.
        """
        one = self.socket(self.here, 4000)
        third = self.socket(self.third, 6000)
        answer = one.ping("10.0.0.9")
        ((_, port),) = [place for place, socket in self.here.network.sockets.items() if socket is not one]
        third.write(b"", ("10.0.0.1", port))
        self.wire.advance(0.1)
        self.assertNoResult(answer)
        self.assertEqual(self.here.network.counters["recv_drop_no_sock"], 1)
        answer.cancel()
        self.failureResultOf(answer, CancelledError)

    def test_gone(self) -> None:
        """
        A peer that cannot be reached is told as gone, once; when it is there after all it gets
        everything.
        """
        one = self.socket(self.here, 4000)
        bystander = self.socket(self.here)
        one.write(b"x", ("10.0.0.2", 5000))
        self.wire.advance(3 * pathsPath.RDS_GONE_SECONDS, 0.05)
        self.assertEqual(one.protocol.events, ["start", "gone 10.0.0.2"])
        self.assertEqual(bystander.protocol.events, ["start"])
        two = self.socket(self.there, 5000)
        self.wire.advance(2.0, 0.01)
        self.assertEqual(two.protocol.got, [(b"x", ("10.0.0.1", 4000))])

    def test_cancel(self) -> None:
        """
        Messages queued for a destination can be dropped; then nobody tries to reach it.
        """
        one = self.socket(self.here, 4000)
        for port in (5000, 5000, 5001):
            one.write(b"x", ("10.0.0.2", port))
        self.assertEqual(one.cancel(("10.0.0.2", 5000)), 2)
        self.assertEqual(one.cancel(("10.0.0.2", 5001)), 1)
        self.assertEqual(one._queued, 0)
        self.wire.advance(2 * pathsPath.RDS_GONE_SECONDS, 0.05)
        self.assertEqual(self.wire.clock.getDelayedCalls(), [])
        one.stopListening()
        self.wire.advance(1, 0.05)
        self.assertFalse(one.connected)
        self.assertEqual(one.cancel(("10.0.0.2", 5000)), 0)

    def test_pauses(self) -> None:
        """
        Attempts to connect become rarer, to one in a second at least.
        """
        one = self.socket(self.here, 4000)
        tried: list[float] = []
        medium = self.here.network.medium
        connect = medium.connect
        medium.connect = lambda path: tried.append(self.wire.clock.seconds()) or connect(path)
        self.here.network.random = lambda: 1.0
        one.write(b"x", ("10.0.0.2", 5000))
        self.wire.advance(5.0, 0.0005)
        pauses = [after - before - self.wire.delay for before, after in pairwise(tried)]
        for found, expected in zip(pauses, (0, 0.001, 0.002, 0.004, 0.008, 0.016), strict=False):
            self.assertAlmostEqual(found, expected, delta=0.0011)
        self.assertAlmostEqual(pauses[-1], pathsPath.RDS_RECONNECT_SECONDS_MOST, delta=0.002)

    def restart(self, host: Any, socket: Any) -> Any:
        """
        The process dies, and another begins at its address.
        """
        self.wire.breakAll()
        for address in list(self.wire.media):
            if self.wire.media[address].network is host.network:
                del self.wire.media[address]
        for call in self.wire.clock.getDelayedCalls():
            owner = getattr(call.func, "__self__", None)
            if getattr(owner, "network", None) is host.network:
                call.cancel()
        self.sockets.remove(socket)
        for path in host.network.paths.values():
            path._retry = path._attempt = path._tick = None
            path.closed = True
        host.network.dormant = True
        new = type(host)(self.wire, host.address)
        return self.socket(new, socket.getHost().port)

    def test_restarted(self) -> None:
        """
        A process that begins anew has its first datagrams delivered by a peer that remembers high
        numbers, though the connection is lost as soon as they are sent.
        """
        for smaller in (True, False):
            one, two = self.pair()
            mine, theirs = (one, two) if smaller else (two, one)
            there = (theirs.getHost().host, theirs.getHost().port)
            for _ in range(50):
                mine.write(b"old", there)
            self.wire.advance(0.5)
            self.assertEqual(len(theirs.protocol.got), 50)
            mine = self.restart(self.here if smaller else self.there, mine)
            for number in range(3):
                mine.write(b"new %d" % number, there)
                for _ in range(3):
                    self.wire.advance(0.004)
                    self.wire.breakAll()
            self.wire.advance(3.0, 0.01)
            self.assertEqual(
                [data for data, _ in theirs.protocol.got[50:]], [b"new %d" % number for number in range(3)]
            )
            theirs.write(b"back", (mine.getHost().host, mine.getHost().port))
            self.wire.advance(0.5)
            self.assertEqual([data for data, _ in mine.protocol.got], [b"back"])
            for socket in (mine, theirs):
                socket.stopListening()
            self.sockets.clear()
            self.wire.advance(1.0)
            self.setUp()

    def test_numbersGoOn(self) -> None:
        """
        When the last socket is closed and another opened, the path's numbers are still known.
        """
        one, two = self.pair()
        one.write(b"1", ("10.0.0.2", 5000))
        self.wire.advance(0.1)
        one.stopListening()
        self.wire.advance(0.5)
        self.assertEqual(self.here.network.dormant, True)
        one = self.socket(self.here, 4000)
        one.write(b"2", ("10.0.0.2", 5000))
        self.wire.advance(2.0, 0.01)
        self.assertEqual([data for data, _ in two.protocol.got], [b"1", b"2"])
        self.assertGreater(self.here.network.paths["10.0.0.1", "10.0.0.2"].machine.nextTransmit, 3)
