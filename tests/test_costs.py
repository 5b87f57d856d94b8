"""
The cost of a warm message: how many functions of Python run for one more, and that nothing is kept.

These counts are the gate of every change of places and seams.  Speed follows them, and unlike times they do
not depend on the machine: lower a number here when a change makes it lower, raise none.
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from functools import partial
from operator import le
from typing import Any
from unittest import mock

from twisted._version import __version__ as TWISTED
from twisted.internet.protocol import ClientFactory, Factory, Protocol
from twisted.python.versions import Version
from twisted.trial.unittest import SkipTest, SynchronousTestCase

from benchmarks.counted import Made, Stream
from benchmarks.counting import perOne
from benchmarks.counting import steps as bytecodes
from tests.hca.addressed import onWire
from tests.rds.ends import Process, ProcessesTestCase, Recorder
from tests.rds.media.test_addressed import THERE, AddressedTestCase
from tests.support.calls import PACKAGE, called
from tests.support.ownaddress import ownAddress
from tests.support.rundirectory import ownRunDirectory
from tests.verbs.pyverbs.pair import End, VerbsTestCase
from twisted_ib.hca.device.form import compiledModules
from twisted_ib.internet.readers import channelsOf
from twisted_ib.rdma import connectRDMA, listenRDMA
from twisted_ib.rds import listenRDS
from twisted_ib.reactor.ibreactor import IBReactor
from twisted_ib.sdp import connectSDP, listenSDP
from twisted_ib.verbs.core import progress
from twisted_ib.verbs.pyverbs import SGE, RecvWR, SendWR, enums

#: A message's bytes.
DATA = bytes(64)
#: Measurements of which the least counts.
ROUNDS = 3
#: Turns of a reactor in which all that a message causes is over.
TURNS = 6
#: What a turn takes, whatever else the machine does.
TURN_SECONDS = 0.001
#: The modules of the objects that each connection of C{sdp:} has.
OWN = {
    "twisted_ib.sdp.port",
    "twisted_ib.sdp.protocol.machine",
    "twisted_ib.hca.queues.streamqueuepair",
    "twisted_ib.hca.cm.machine",
    "twisted_ib.internet.connector",
}
#: Turns within which connections are made.
CONNECT_TURNS = 2000


class Sink(Protocol):
    """
    Takes bytes and does nothing.
    """

    def dataReceived(self, data: bytes) -> None:
        """
        Nothing.
        """


class Echo(Protocol):
    """
    Sends back what it gets.
    """

    def dataReceived(self, data: bytes) -> None:
        """
        Back.
        """
        self.transport.write(data)  # type: ignore[union-attr]


class Clients(ClientFactory):
    """
    Keeps the connections that it makes.
    """

    noisy = False

    def __init__(self) -> None:
        """
        None yet.
        """
        self.made: list[Sink] = []

    def buildProtocol(self, addr: Any) -> Sink:
        self.made.append(Sink())
        return self.made[-1]


class StreamTests(SynchronousTestCase):
    """
    64 bytes on each of many connections in one turn of the C{ib} reactor, both ends in one process.
    """

    def clients(self, port: Any, count: int, here: str, device: str) -> list[Sink]:
        """
        @return: Connected protocols that have sent some messages.
        """
        clients, address = Clients(), port.getHost()
        for _ in range(count):
            bound = (here, 0) if here else None
            connectSDP(self.reactor, address.host, address.port, clients, bindAddress=bound, device=device)
        for turn in range(CONNECT_TURNS):
            self.now[0] += TURN_SECONDS
            self.reactor.iterate(0)
            if turn > TURNS and len(clients.made) == count:
                break
        for _ in range(3):
            self.write(clients.made)
            self.turn()
        return clients.made

    def write(self, clients: list[Sink]) -> None:
        """
        One message on each connection.
        """
        for client in clients:
            client.transport.write(DATA)  # type: ignore[union-attr]
        # As the next turn does, but before the peer's device has its part of that turn.
        transport: Any = clients[0].transport
        transport.postWritten(transport.channel.device.writers)

    def turn(self) -> None:
        """
        Let everything happen.
        """
        for _ in range(TURNS):
            self.now[0] += TURN_SECONDS
            self.reactor.iterate(0)

    def perMessage(self, device: str, here: str, there: str) -> tuple[float, float]:
        """
        @return: Functions called for one more message: by its C{write}, and by all that follows, up to
            C{dataReceived} and the peer's acknowledgement.
        """
        # The time of other processes does not pass, or messages would be repeated before their answer.
        # Functions of C are not counted.
        self.reactor, self.now = IBReactor(), [0.0]
        self.reactor.seconds = partial(self.now.__getitem__, 0)
        self.addCleanup(lambda: [channel.close() for channel in list(channelsOf(self.reactor))])
        factory = Factory.forProtocol(Sink)
        factory.noisy = False
        port = listenSDP(self.reactor, 0, factory, interface=there, device=device)
        counts = []
        few, many = 10, 30
        for count in (few, many):
            clients = self.clients(port, count, here, device)
            self.assertEqual(len(clients), count)
            gc.collect()
            before = len(gc.get_objects())
            counts.append((called(partial(self.write, clients)), called(self.turn)))
            for _ in range(20):
                self.write(clients)
                self.turn()
            gc.collect()
            self.assertLess(len(gc.get_objects()) - before, 20)
        found = []
        for less, more in zip(*counts, strict=True):
            # Calls that a turn makes once, whatever the number of messages, cancel out.
            each = {name: (more[name] - less[name]) / (many - few) for name in more}
            found.append(sum(number for number in each.values() if number >= 0.5))
        return found[0], found[1]

    def test_shared(self) -> None:
        """
        On shared memory two to send and four to receive: twelve for a message and its echo.
        """
        ownRunDirectory(self)
        self.assertEqual(self.perMessage("shm0", "", "127.0.0.1"), (2, 4))

    def test_packets(self) -> None:
        """
        On packets 14 to send, four of them the test's wire; the rest includes an acknowledgement of its own
        for each message, as the connections have nothing else to say.
        """
        onWire(self)
        sent, rest = self.perMessage("roce0", "127.0.0.1", "127.0.0.2")
        self.assertLessEqual(sent, 14)
        self.assertLessEqual(rest, 28)


class Caller(Protocol):
    """
    Sends a message and leaves when it comes back.
    """

    def connectionMade(self) -> None:
        self.transport.write(DATA)  # type: ignore[union-attr]

    def dataReceived(self, data: bytes) -> None:
        """
        Leave.
        """
        self.transport.loseConnection()  # type: ignore[union-attr]


class Callers(ClientFactory):
    """
    Counts the connections that have ended.
    """

    noisy = False
    protocol = Caller
    ended = 0

    def clientConnectionLost(self, connector: Any, reason: Any) -> None:
        self.ended += 1


class ConnectTests(SynchronousTestCase):
    """
    A connect, an echo of 64 bytes and the close, both ends in one process on the C{ib} reactor: no more
    functions are called than were, Twisted's and those of the ends included.
    """

    def perConnection(self, listen: Any, dial: Any) -> float:
        """
        @return: Functions called for one more connection.
        """
        if TWISTED < Version("Twisted", 26, 4, 0):
            raise SkipTest("Twisted's own functions are counted, of which older releases call more")
        ownRunDirectory(self)
        # As in perMessage(): timers that other processes' time makes due are not a connection's.
        reactor, now = IBReactor(), [0.0]
        reactor.seconds = partial(now.__getitem__, 0)
        self.addCleanup(lambda: [channel.close() for channel in list(channelsOf(reactor))])
        factory = Factory.forProtocol(Echo)
        factory.noisy = False
        address = listen(reactor, 0, factory, interface="127.0.0.1").getHost()

        def connect(count: int) -> None:
            callers = Callers()
            for _ in range(count):
                dial(reactor, address.host, address.port, callers)
            for _ in range(CONNECT_TURNS):
                now[0] += TURN_SECONDS
                reactor.iterate(0)
                if callers.ended == count:
                    break
            self.assertEqual(callers.ended, count)
            for _ in range(TURNS):
                now[0] += TURN_SECONDS
                reactor.iterate(0)

        connect(30)
        few, many = 10, 60
        less, more = called(partial(connect, few)), called(partial(connect, many))
        return sum((more[name] - less[name]) / (many - few) for name in more)

    def test_sdp(self) -> None:
        """
        C{sdp:}, with REQ and REP, a message and a DisConn each way.
        """
        self.assertLessEqual(self.perConnection(listenSDP, connectSDP), 306)

    def test_rdma(self) -> None:
        """
        C{ib:}, whose queue pairs have work queues.
        """
        self.assertLessEqual(self.perConnection(listenRDMA, connectRDMA), 336)


def requireBytecodes() -> None:
    """
    Check that bytecodes can be counted.

    @raise SkipTest: They cannot, or are others.
    """
    if compiledModules():
        raise SkipTest("compiled modules: their calls are not counted")
    if sys.version_info[:2] != (3, 11):
        raise SkipTest("the bytecodes of Python 3.11 are counted")


class BytecodeTests(SynchronousTestCase):
    """
    C{sdp:} in bytecodes, which see what a function of the hot path does beside its calls.
    """

    names = "twisted_ib.sdp", "SDP"

    def assertNoGarbage(self) -> None:
        """
        Check that all of a connection that has ended is free at once, with no collection of garbage.
        """
        ownRunDirectory(self)
        stream = Stream(self.names)
        self.addCleanup(stream.place.close)
        self.patch(Made, "buildProtocol", lambda made, addr: made.protocol())
        connect: Any = stream.connects(len(DATA))
        connect(1)
        gc.collect()
        gc.disable()
        try:
            connect(10)
            # Protocols and transports, and the factory that counts them.
            self.assertLess(gc.collect(), 10)
        finally:
            gc.enable()

    def test_garbage(self) -> None:
        """
        Nothing of a connection waits for the garbage collector.
        """
        self.assertNoGarbage()

    def test_messageGarbage(self) -> None:
        """
        The same over C{ib:}.
        """
        self.names = "twisted_ib.rdma", "RDMA"
        self.assertNoGarbage()

    def perOne(self, way: str, few: int, many: int, *where: str) -> float:
        """
        @param where: The device, and the addresses of the ends.

        @return: What one more takes.
        """
        requireBytecodes()
        if TWISTED < Version("Twisted", 26, 4, 0):
            raise SkipTest("Twisted's own bytecodes are counted, of which older releases have more")
        ownRunDirectory(self)
        stream = Stream(self.names, *where)
        self.addCleanup(stream.place.close)
        act: Any = getattr(stream, way)(len(DATA))
        for _ in range(2):
            act(many)
        found = []
        # A timer may be due within one of them.
        for _ in range(ROUNDS):
            less, more = bytecodes(partial(act, few)), bytecodes(partial(act, many))
            found.append((more["bytecodes"] - less["bytecodes"]) / (many - few))
        return min(found)

    def test_crowd(self) -> None:
        """
        A message and its echo on one more connection of many.
        """
        self.assertLessEqual(self.perOne("crowd", 20, 60), 1114)

    def test_trips(self) -> None:
        """
        A message and its echo after the one before, with the turns of the reactor.
        """
        self.assertLessEqual(self.perOne("trips", 10, 30), 1826)

    def test_packets(self) -> None:
        """
        The same on UDP, two packets each way, with a device at each end.
        """
        ends = ownAddress(1), ownAddress(2)
        self.assertLessEqual(self.perOne("trips", 10, 30, "roce0", *ends), 6630)

    def test_connects(self) -> None:
        """
        A connect, an echo and the close.
        """
        self.assertLessEqual(self.perOne("connects", 10, 40), 10887)

    def test_bulk(self) -> None:
        """
        A MiB of a stream: 16 messages, of which the bytes are in one object each, and in no other.
        """
        requireBytecodes()
        ownRunDirectory(self)
        stream = Stream(self.names)
        self.addCleanup(stream.place.close)
        found = perOne(stream.stream(1 << 20), 2, 6, 1 << 20, False)
        self.assertLessEqual(found["bytecodes"], 10950)
        self.assertLessEqual(found["C calls"], 190)
        self.assertLessEqual(found["allocated"], (1 << 20) + 16 * 64)

    def test_idle(self) -> None:
        """
        An open connection that has had an echo: the bytes of the objects of this package that it has at both
        ends.
        """
        requireBytecodes()
        ownRunDirectory(self)
        stream = Stream(self.names)
        self.addCleanup(stream.place.close)
        connect = stream.idle(len(DATA))
        connect(1)

        def size() -> int:
            gc.collect()
            return sum(sys.getsizeof(each) for each in gc.get_objects() if type(each).__module__ in OWN)

        before, count = size(), 10
        connect(count)
        self.assertLessEqual((size() - before) / count, 1048)

    def test_messageConnects(self) -> None:
        """
        The same over C{ib:}, whose queue pairs share the attributes that are equal.
        """
        self.names = "twisted_ib.rdma", "RDMA"
        self.assertLessEqual(self.perOne("connects", 10, 40), 11600)


class MessageTests(SynchronousTestCase):
    """
    A message of 64 bytes of C{ib:}, one of many that are written in a turn.
    """

    def test_calls(self) -> None:
        """
        11 functions to send it, five to receive it and two when it is acknowledged, with those of the ends.
        """
        ownRunDirectory(self)
        stream = Stream(("twisted_ib.rdma", "RDMA"))
        self.addCleanup(stream.place.close)
        send = stream.stream(len(DATA))
        few, many = 20, 60
        send(many)
        less, more = called(partial(send, few)), called(partial(send, many))
        each = {name: (more[name] - less[name]) / (many - few) for name in more}
        self.assertLessEqual(sum(each.values()), 19, each)

    def test_copies(self) -> None:
        """
        The bytes of one of a KiB, of many that are written in a turn, are copied into the SEND that several
        go in, and from the medium to the protocol, and in no other object.
        """
        requireBytecodes()
        ownRunDirectory(self)
        stream = Stream(("twisted_ib.rdma", "RDMA"))
        self.addCleanup(stream.place.close)
        found = perOne(stream.stream(1 << 10), 20, 60, 1 << 10, False)
        self.assertLessEqual(found["allocated"], 2 * (1 << 10) + 128)

    def test_idle(self) -> None:
        """
        An open connection that has only written and read has two queues at each end, of its send requests:
        each is 760 bytes.
        """
        ownRunDirectory(self)
        stream = Stream(("twisted_ib.rdma", "RDMA"))
        self.addCleanup(stream.place.close)
        connect = stream.idle(len(DATA))
        connect(1)

        def queues() -> int:
            gc.collect()
            return sum(type(each) is deque for each in gc.get_objects())

        before, count = queues(), 10
        connect(count)
        self.assertLessEqual(queues() - before, 4 * count)


class DatagramTests(ProcessesTestCase):
    """
    One datagram of RDS of 64 bytes in a turn, to another process on shared memory.
    """

    device = "shm0"
    #: Functions called for one more, turns of both reactors included; the acknowledgements share some.
    most = 200

    def ends(self) -> tuple[Any, Any, tuple[str, int]]:
        """
        @return: Two sockets, and the second one's address.
        """
        ownRunDirectory(self)
        one, two = (self.process().listen(port) for port in (4000, 5000))
        return one, two, ("127.0.0.1", 5000)

    def turns(self, count: int, send: Any = None) -> None:
        """
        Let both reactors turn.

        @param send: Called before each turn.
        """
        reactors: list[Process] = self.processes
        for _ in range(count):
            if send is not None:
                send()
            for _ in range(4):
                for each in reactors:
                    each.turn()

    def test_calls(self) -> None:
        """
        No more functions are called than were, and all datagrams arrive.
        """
        one, two, address = self.ends()

        def send() -> None:
            one.socket.write(DATA, address)

        send()
        self.settle()
        self.turns(50, send)
        count = 100
        busy = called(lambda: self.turns(count, send))
        idle = called(lambda: self.turns(count))
        self.assertLessEqual(sum((busy - idle).values()) / count, self.most, busy)
        self.assertEqual(two.data, [DATA] * (count + 51))


class PacketDatagramTests(AddressedTestCase):
    """
    The same between hosts, on packets.
    """

    most = 390
    turns = DatagramTests.turns
    test_calls = DatagramTests.test_calls

    def ends(self) -> tuple[Any, Any, tuple[str, int]]:
        """
        @return: Two sockets, and the second one's address.
        """
        return self.one, self.two, (THERE, 5000)


class WarmDatagramTests(SynchronousTestCase):
    """
    What of that is one datagram's own, on the C{ib} reactor: from C{write} until the medium has it, and from
    there until C{datagramReceived}.
    """

    def warm(self, device: str, here: str, there: str) -> tuple[Any, Recorder, Any]:
        """
        Send some datagrams.

        @return: Sends another one; the receiver; its HCA's fabric.
        """
        sender, receiver = reactors = IBReactor(), IBReactor()
        for each in reactors:
            self.addCleanup(lambda each=each: [channel.close() for channel in list(channelsOf(each))])
        one, two = Recorder(), Recorder()
        port = listenRDS(sender, 4000, one, here, device=device)
        listenRDS(receiver, 5000, two, there, device=device)

        def send() -> None:
            port.write(DATA, (there, 5000))

        def turn() -> None:
            for each in reactors:
                each.iterate(0)

        send()
        for _ in range(CONNECT_TURNS):
            turn()
            if two.got:
                break
        for _ in range(TURNS):
            send()
            turn()
        (channel,) = channelsOf(receiver)
        return send, two, channel.device.fabric

    def test_shared(self) -> None:
        """
        On shared memory 13 to send and 9 to receive, three of which are for its acknowledgement; one more
        datagram of the turn takes 1 to send.
        """
        ownRunDirectory(self)
        send, two, fabric = self.warm("shm0", "127.0.0.1", "127.0.0.1")
        before = len(two.got)
        counts = [called(send, PACKAGE)]
        (path,) = fabric.hot
        counts.append(called(lambda: path.progress(1), PACKAGE))
        self.assertEqual(two.data, [DATA] * (before + 1))
        # The second one opens a bundle.
        send()
        counts.append(called(send, PACKAGE))
        self.assertTrue(all(map(le, (sum(count.values()) for count in counts), (13, 9, 1))), counts)

    def test_calls(self) -> None:
        """
        32 to send and 19 to receive; 13 and 7 of them are those of a message of SDP.
        """
        onWire(self)
        send, two, fabric = self.warm("roce0", "127.0.0.1", "127.0.0.2")
        link = fabric.link
        before = len(two.got)
        self.assertFalse(link.queue)
        sent = called(send, PACKAGE)
        self.assertTrue(link.queue)
        received = called(lambda: link.receive(1), PACKAGE)
        self.assertEqual(two.data, [DATA] * (before + 1))
        self.assertLessEqual(sum(sent.values()), 32, sent)
        self.assertLessEqual(sum(received.values()), 19, received)


class WorkRequestTests(VerbsTestCase):
    """
    A work request of 64 bytes with one SGE, by the names of verbs; both ends are on one HCA.
    """

    #: Functions called to make and post a SEND, by the peer to take it, which completes it here, too, and to
    #: poll both completions.
    send = 16, 17, 4, 4
    #: The first three of a WRITE.
    write = 18, 17, 4

    def count(self, *steps: Any) -> tuple[int, ...]:
        """
        @return: How many of the package's functions ran in each step.
        """
        return tuple(sum(called(step, PACKAGE).values()) for step in steps)

    def test_calls(self) -> None:
        """
        No more functions are called than were, and each request completes, whichever end sends.
        """
        a, b = End(self), End(self)
        a.connect(b)
        self.check(a, b)
        self.check(b, a)

    def check(self, one: End, two: End) -> None:
        """
        Count the requests from one end to the other.
        """
        (address, key), (there, remoteKey) = ((each.mr.buf, each.mr.lkey) for each in (one, two))
        one.mr.write(b"a" * len(DATA), len(DATA))
        found: list[Any] = []

        def receive() -> None:
            two.qp.post_recv(RecvWR(1, 1, [SGE(there, len(DATA), remoteKey)]))

        def send() -> None:
            one.qp.post_send(SendWR(2, num_sge=1, sg=[SGE(address, len(DATA), key)]))

        def write() -> None:
            request = SendWR(3, enums.IBV_WR_RDMA_WRITE, 1, 0, [SGE(address, len(DATA), key)])
            request.set_wr_rdma(remoteKey, there)
            one.qp.post_send(request)

        path: Any = None

        def take() -> None:
            path.progress(1)

        def poll(end: End) -> None:
            found.extend(end.cq.poll(1)[1])

        receive()
        send()
        self.wait(one.cq)
        self.wait(two.cq)
        # The first asks whether the kernel may do the others.
        write()
        self.wait(one.cq)
        path = two.qp._core.path
        sent, written = [], []
        # No look at descriptors and timers comes between, as one does every now and then.
        with mock.patch.multiple(progress, _ATTENTION=float("inf"), _BUSY_ATTENTION=float("inf")):
            # A timer may be due in one of them, if this process has waited long for a processor.
            for _ in range(3):
                receive()
                sent.append(self.count(send, take, partial(poll, one), partial(poll, two)))
                written.append(self.count(write, take, partial(poll, one)))
        self.assertEqual([(each.wr_id, each.status) for each in found], [(2, 0), (1, 0), (3, 0)] * 3)
        self.assertEqual(two.mr.read(len(DATA), 0), b"a" * len(DATA))
        for rounds, most in ((sent, self.send), (written, self.write)):
            self.assertTrue(all(map(le, map(min, *rounds), most)), rounds)


class LoopbackWorkRequestTests(WorkRequestTests):
    """
    The same without rings.
    """

    device = "lo0"


class WorkRequestBytecodeTests(WorkRequestTests):
    """
    The same in bytecodes.
    """

    send = 834, 836, 205, 205
    write = 927, 920, 205

    def count(self, *steps: Any) -> tuple[int, ...]:
        """
        @return: How many bytecodes ran in each step.
        """
        requireBytecodes()
        return tuple(bytecodes(step)["bytecodes"] for step in steps)


class LoopbackWorkRequestBytecodeTests(WorkRequestBytecodeTests):
    """
    The same without rings.
    """

    device = "lo0"
    send = 768, 692, 205, 205
    write = 849, 776, 205
