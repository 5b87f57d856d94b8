"""
Tests of connections of Twisted's reactors that their blocking clients move to TCP: see L{MovedServer
<twisted_ib.switch.serverclient.MovedServer>}.
"""

from __future__ import annotations

import gc
import os
import socket as kernel
import ssl
import sys
from collections.abc import Callable, Coroutine
from subprocess import PIPE, Popen
from typing import Any
from weakref import ref

from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IPushProducer, ISSLTransport
from twisted.internet.threads import deferToThreadPool
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool
from zope.interface import implementer

from tests.aio.case import HOST
from tests.blocking.protocol.test_moving import ANSWERS_AFTER, CLIENT
from tests.internet.carriers import Accepting, HalfTalk, Talk
from tests.support.certificates import certificate
from tests.support.descriptors import moves, received
from tests.support.waiting import HANG_SECONDS, becomes, runToEnd
from tests.switch.case import SwitchTestsBuilder
from twisted_ib import socket as offloading
from twisted_ib.blocking import loop, tls
from twisted_ib.blocking.connecting import BlockingClient
from twisted_ib.blocking.loop import BlockingLoop
from twisted_ib.blocking.socket import MovedSocket
from twisted_ib.errors import MemoryAccessError, MemoryRegionError
from twisted_ib.hca.host.fdpassing import LINGER_RESET
from twisted_ib.interfaces import IRDMARegion, ISDPTransport, ISDPUrgentProtocol
from twisted_ib.internet.readers import channelsOf
from twisted_ib.switch.reason import MOVED
from twisted_ib.switch.serverclient import Carrier, MovedServer, RedirectedServer
from twisted_ib.switch.switch import explain

#: A client that moves, and waits.
_MOVING = """
import os, sys
os.sched_getaffinity = lambda _: {0, 1}
from twisted_ib import socket
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=60)
connection.sendall(b"1")
with connection.sdp.loop:
    connection.sdp.stream.sleeps()
while connection.sdp is not None:
    with connection.sdp.loop:
        connection.sdp.loop.poll()
connection.sendall(b"2")
connection.recv(1)
"""

DATA = b"0123456789"
MANY = 1 << 20


@implementer(IPushProducer)
class Pushing:
    """
    Records its calls.
    """

    def __init__(self) -> None:
        self.log: list[str] = []

    def pauseProducing(self) -> None:
        """
        Enough.
        """
        self.log.append("pause")

    def resumeProducing(self) -> None:
        """
        More.
        """
        self.log.append("resume")

    def stopProducing(self) -> None:
        """
        It is over.
        """
        self.log.append("stop")


def aborts(skt: Any) -> None:
    """
    Have it reset what it has of SDP.
    """
    with skt.sdp.loop:
        skt.sdp.stream.abortConnection()


def ofTCP() -> tuple[kernel.socket, int]:
    """
    Return one end of a connection of TCP, and the descriptor of the other.
    """
    with kernel.create_server((HOST, 0)) as listener:
        other = kernel.create_connection(listener.getsockname())
        mine, _ = listener.accept()
    return other, mine.detach()


@implementer(ISDPUrgentProtocol)
class UrgentTalk(Talk):
    """
    Takes urgent bytes.
    """

    urgent = b""

    def urgentDataReceived(self, byte: bytes) -> None:
        """
        Take one.
        """
        self.urgent += byte


class MovingTests(SwitchTestsBuilder):
    """
    Servers whose clients are blocking sockets in threads.
    """

    _reactors = [
        "twisted_ib.reactor.ibreactor.IBReactor",
        "twisted_ib.reactor.asyncioreactor.IBAsyncioReactor",
    ]

    def setUp(self) -> None:
        """
        Make the loop of blocking sockets, too, and threads.
        """
        super().setUp()
        # On one CPU blocking sockets stay TCP.
        self.patch(os, "sched_getaffinity", lambda _: {0, 1})
        made = BlockingLoop()
        self.patch(loop, "_loop", made)
        self.addCleanup(made.close)
        self.threads = ThreadPool(1, 1)
        self.threads.start()
        self.addCleanup(self.threads.stop)
        self.sockets: list[Any] = []

    def play(self, scenario: Callable[..., Coroutine[Any, Any, None]]) -> None:
        """
        Run a scenario in a reactor, which must have nothing at its end.
        """
        reactor: Any = self.buildReactor()
        self.reactor = reactor

        async def whole() -> None:
            try:
                await scenario()
            finally:
                for each in self.sockets:
                    each.close()
            await self.until(lambda: not any(each for each in self.carriers()))
            await self.until(lambda: not any(channel.users for channel in channelsOf(reactor)))

        runToEnd(self, reactor, whole)

    def carriers(self) -> list[Any]:
        """
        Return what the reactor has of connections that have moved.
        """
        return [each for each in self.reactor.selectables() if isinstance(each, Carrier)]

    async def until(self, holds: Callable[[], object]) -> None:
        """
        Wait until something is so.
        """
        await becomes(self.reactor, holds)

    async def ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """
        Return what a call returns, in a thread.
        """
        return await deferToThreadPool(self.reactor, self.threads, call, *arguments)

    async def pair(self, talk: Talk | None = None) -> tuple[Any, Any]:
        """
        Return a socket, and the protocol that serves it, over SDP.
        """
        talk = Talk() if talk is None else talk
        port = self.reactor.listenTCP(0, Accepting(talk), interface=HOST)
        skt: Any = await self.ask(offloading.create_connection, (HOST, port.getHost().port), HANG_SECONDS)
        self.sockets.append(skt)
        await self.ask(skt.sendall, DATA)
        await self.has(talk, len(DATA))
        self.assertIsNotNone(skt.sdp)
        await port.stopListening()
        return skt, talk

    async def has(self, talk: Talk, size: int) -> bytes:
        """
        Return what a protocol has got, once that is so much.
        """
        await self.until(lambda: len(talk.got()) >= size)
        return talk.got()

    async def ended(self, talk: Talk, name: str = "ConnectionDone") -> None:
        """
        Wait until a protocol has been told its end, which is once.
        """
        await self.until(talk.ended)
        for _ in range(3):
            await self.until(lambda: True)
        self.assertEqual([each for each in talk.log if str(each).startswith("Connection")], [name])

    async def moved(self, talk: Talk | None = None) -> tuple[Any, Any]:
        """
        Return the same once it has moved.
        """
        skt, talk = await self.pair(talk)
        await self.ask(moves, skt)
        await self.exchange(skt, talk)
        self.assertIs(type(skt), MovedSocket)
        return skt, talk

    async def exchange(self, skt: Any, talk: Any) -> None:
        """
        Have both ends send and receive.
        """
        size = len(talk.got())
        await self.ask(skt.sendall, DATA)
        await self.has(talk, size + len(DATA))
        talk.transport.write(DATA)
        self.assertEqual(await self.ask(received, skt, len(DATA)), DATA)
        await self.ask(skt.sendall, DATA)
        self.assertEqual((await self.has(talk, size + 2 * len(DATA)))[size:], 2 * DATA)

    # -- bytes

    def test_moved(self) -> None:
        """
        The kernel carries the connection, whose transport and addresses are as before, in both directions,
        and ends it in order.
        """

        async def scenario() -> None:
            skt, talk = await self.pair()
            transport = talk.transport
            names = transport.getHost(), transport.getPeer(), repr(transport), transport.logstr
            handle, stream = transport.getHandle(), vars(transport)
            await self.ask(moves, skt)
            await self.exchange(skt, talk)
            self.assertIs(type(skt), MovedSocket)
            self.assertIs(talk.transport, transport)
            self.assertEqual(
                (transport.getHost(), transport.getPeer(), repr(transport), transport.logstr), names
            )
            self.assertIs(transport.getHandle(), handle)
            self.assertEqual(handle.getpeername()[1], transport.getPeer().port)
            self.assertIs(transport.protocol, talk)
            self.assertIsNone(transport.queuePair.path)
            self.assertFalse(any(transport in channel.users for channel in channelsOf(self.reactor)))
            self.assertIs(stream, vars(transport))
            self.assertEqual(transport.server.peers, {})
            with kernel.socket(fileno=os.dup(skt.fileno())) as plain:
                self.assertEqual(plain.getpeername()[0], HOST)
            transport.writeSequence([DATA, DATA])
            self.assertEqual(await self.ask(received, skt, 2 * len(DATA)), 2 * DATA)
            transport.loseConnection()
            self.assertTrue(transport.disconnecting)
            self.assertEqual(await self.ask(skt.recv, 10), b"")
            await self.ended(talk)
            self.assertEqual((transport.connected, transport.disconnected), (0, 1))
            self.assertIsNone(transport.protocol)
            transport.write(DATA)
            transport.loseConnection()
            transport.abortConnection()

        self.play(scenario)

    def test_why(self) -> None:
        """
        It says why, to who asks for it and to who reads the process's sockets.
        """

        async def scenario() -> None:
            _, talk = await self.moved()
            why = explain(talk.transport)
            self.assertEqual((why.provider, why.device, why.fallback), ("tcp", None, MOVED))
            self.assertEqual(self.reactor.switch.counters["switch_fallback_moved"], 1)
            [carrier] = self.carriers()
            self.assertIs(self.reactor.whyOf(carrier), why)
            talk.transport.loseConnection()

        self.play(scenario)

    def test_much(self) -> None:
        """
        Many octets are all there, through the move, in their order.
        """

        async def scenario() -> None:
            data = os.urandom(MANY)
            skt, talk = await self.pair()
            await self.ask(skt.sendall, data)
            await self.ask(moves, skt)
            await self.ask(skt.sendall, data)
            self.assertEqual(await self.has(talk, len(DATA) + 2 * MANY), DATA + 2 * data)
            self.assertIsInstance(talk.transport, MovedServer)
            for _ in range(4):
                talk.transport.write(data)
            talk.transport.loseConnection()
            self.assertEqual(await self.ask(received, skt, 4 * MANY + 1), 4 * data)
            await self.ended(talk)

        self.play(scenario)

    async def half(self, talk: Talk | None = None) -> tuple[Any, Any, Any, Any]:
        """
        Return the same of one whose client still sends over SDP, and the client's end of TCP; and a patch
        until whose end that is so.
        """
        skt, talk = await self.pair(talk)
        isQuiet = BlockingClient.isQuiet
        patched = self.patch(
            BlockingClient, "isQuiet", lambda stream: stream.protocol.move is None and isQuiet(stream)
        )
        await self.ask(moves, skt)
        await self.until(lambda: isinstance(talk.transport, MovedServer))
        mine = skt.sdp.move.mine
        other = kernel.socket(fileno=os.dup(mine.fileno()))
        other.settimeout(HANG_SECONDS)
        self.sockets.append(other)
        return skt, talk, other, patched

    def test_tail(self) -> None:
        """
        Until nothing more comes over SDP, only that is delivered, while the answers go by TCP already; what a
        program has kept of the transport sends there, too.
        """

        async def scenario() -> None:
            talk = Talk()
            kept: list[Any] = []
            talk.on["made"] = lambda talk: kept.extend((talk.transport.write, talk.transport.writeSequence))
            skt, talk, other, patched = await self.half(talk)
            write, writeSequence = kept
            other.sendall(b"later")
            talk.transport.write(b"a")
            write(b"b")
            writeSequence([b"c", b"d"])
            self.assertRaises(TypeError, write, "text")
            self.assertEqual(await self.ask(received, other, 4), b"abcd")
            await self.ask(skt.sendall, DATA)
            self.assertEqual(await self.has(talk, 2 * len(DATA)), 2 * DATA)
            talk.transport.pauseProducing()
            talk.transport.pauseProducing()
            patched.restore()
            await self.driven(lambda: skt.sdp is None or skt.sdp.move.sends())
            await self.ask(skt.sendall, b"x")
            await self.until(lambda: talk.transport.held)
            self.assertEqual(talk.got(), 2 * DATA)
            talk.transport.resumeProducing()
            self.assertEqual(await self.has(talk, 2 * len(DATA) + 6), 2 * DATA + b"laterx")
            talk.transport.loseConnection()
            self.assertEqual(await self.ask(skt.recv, 1), b"")
            await self.ended(talk)

        self.play(scenario)

    async def driven(self, holds: Callable[[], object]) -> None:
        """
        Drive the loop of blocking sockets until something is so.
        """

        def drive() -> bool:
            with loop.theLoop():
                loop.theLoop().poll()
            return bool(holds())

        end = self.reactor.seconds() + HANG_SECONDS
        while not await self.ask(drive):
            self.assertLess(self.reactor.seconds(), end)

    async def answered(
        self, call: Callable[[Any], object], name: str = "ConnectionDone"
    ) -> tuple[bytes, bool]:
        """
        Have a protocol do something when it gets data, once it has moved.

        @return: What its client gets until the end, and whether that is a reset.
        """
        skt, talk = await self.moved(HalfTalk(read=lambda talk: talk.transport.loseConnection()))
        talk.on["data"] = call
        await self.ask(skt.sendall, DATA)
        data, isReset = b"", False
        try:
            while piece := await self.ask(skt.recv, MANY):
                data += piece
        except ConnectionResetError:
            isReset = True
        await self.ask(skt.close)
        await self.ended(talk, name)
        return data, isReset

    def added(self) -> list[Any]:
        """
        Return what the reactor is asked to write for from now on.
        """
        added: list[Any] = []
        addWriter = self.reactor.addWriter

        def add(writer: Any) -> None:
            added.append(writer)
            addWriter(writer)

        self.patch(self.reactor, "addWriter", add)
        return added

    def test_answers(self) -> None:
        """
        Answers leave in the turn of the question, without the reactor's help; only what the kernel does not
        take waits for it.
        """

        async def scenario() -> None:
            skt, talk = await self.moved()
            talk.on["data"] = lambda talk: talk.transport.write(DATA)
            added = self.added()
            for _ in range(5):
                await self.ask(skt.sendall, DATA)
                self.assertEqual(await self.ask(received, skt, len(DATA)), DATA)
            self.assertNotIn(talk.transport._carrier, added)
            talk.on["data"] = lambda talk: talk.transport.write(bytes(16 * MANY))
            await self.ask(skt.sendall, DATA)
            self.assertEqual(len(await self.ask(received, skt, 16 * MANY)), 16 * MANY)
            self.assertIn(talk.transport._carrier, added)
            producer = Pushing()
            talk.transport.registerProducer(producer, True)
            await self.ask(skt.sendall, DATA)
            self.assertEqual(len(await self.ask(received, skt, 16 * MANY)), 16 * MANY)
            await self.until(lambda: producer.log == ["pause", "resume"])
            talk.transport.unregisterProducer()
            talk.transport.loseConnection()
            await self.ended(talk)

        self.play(scenario)

    def test_answersAndEnds(self) -> None:
        """
        An end in the same call is as over TCP: behind what was written, but for an abort, which drops that.
        """

        def ends(*names: str) -> Callable[[Any], None]:
            def end(talk: Any) -> None:
                talk.transport.write(DATA)
                for name in names:
                    getattr(talk.transport, name)()

            return end

        def loses(talk: Any) -> None:
            talk.transport.write(DATA)
            talk.transport.connectionLost(Failure(ConnectionDone()))

        def isLater(talk: Any) -> None:
            added = self.added()
            ends("loseWriteConnection")(talk)
            talk.on["written"] = lambda talk: talk.log.append(talk.transport._carrier in added)
            self.ending = talk

        async def scenario() -> None:
            self.assertEqual(await self.answered(loses), (b"", False))
            self.assertEqual(await self.answered(isLater), (DATA, False))
            self.assertIn(True, self.ending.log)
            self.assertEqual(await self.answered(ends("loseConnection")), (DATA, False))
            self.assertEqual(await self.answered(ends("loseWriteConnection")), (DATA, False))
            self.assertEqual(
                await self.answered(ends("loseWriteConnection", "loseConnection")), (DATA, False)
            )
            for names in ("abortConnection",), ("loseConnection", "abortConnection"):
                self.assertEqual(await self.answered(ends(*names), "ConnectionAborted"), (b"", True))

        self.play(scenario)

    def test_keptCalls(self) -> None:
        """
        Calls that a program has kept from before end it, each as over TCP.
        """

        async def scenario() -> None:
            for name, reason in (
                ("loseConnection", "ConnectionDone"),
                ("abortConnection", "ConnectionAborted"),
                ("stopProducing", "ConnectionDone"),
                ("stopConsuming", "ConnectionDone"),
            ):
                skt, talk = await self.pair()
                kept = getattr(talk.transport, name)
                await self.ask(moves, skt)
                await self.exchange(skt, talk)
                kept()
                self.assertEqual(await self.over(skt), "ConnectionDone" != reason)
                await self.ended(talk, reason)

        self.play(scenario)

    async def over(self, skt: Any) -> bool:
        """
        Wait for the end of what is to be received, and return whether that is a reset.
        """
        try:
            self.assertEqual(await self.ask(skt.recv, 1), b"")
        except ConnectionResetError:
            return True
        return False

    def test_paused(self) -> None:
        """
        A protocol that reads nothing gets nothing, of SDP's octets nor of TCP's, until it reads again; it may
        move meanwhile.
        """

        async def scenario() -> None:
            skt, talk = await self.pair()
            talk.transport.pauseProducing()
            await self.ask(moves, skt)
            await self.ask(skt.sendall, DATA)
            await self.until(lambda: isinstance(talk.transport, MovedServer))
            talk.transport.write(DATA)
            self.assertEqual(await self.ask(received, skt, len(DATA)), DATA)
            await self.ask(skt.sendall, DATA)
            for _ in range(5):
                await self.until(lambda: True)
            self.assertEqual(talk.got(), DATA)
            talk.transport.resumeProducing()
            await self.has(talk, 3 * len(DATA))
            talk.transport.pauseProducing()
            await self.ask(skt.sendall, DATA)
            for _ in range(5):
                await self.until(lambda: True)
            self.assertEqual(talk.got(), 3 * DATA)
            talk.transport.resumeProducing()
            await self.has(talk, 4 * len(DATA))
            await self.ask(skt.close)
            await self.ended(talk)

        self.play(scenario)

    def test_producer(self) -> None:
        """
        A producer that is there goes on: it is paused and resumed by what the kernel takes, and stopped.
        """

        async def scenario() -> None:
            skt, talk = await self.pair()
            producer = Pushing()
            talk.transport.registerProducer(producer, True)
            await self.ask(moves, skt)
            await self.exchange(skt, talk)
            self.assertIs(talk.transport.producer, producer)
            talk.transport.write(bytes(16 * MANY))
            self.assertEqual(producer.log, ["pause"])
            self.assertEqual(len(await self.ask(received, skt, 16 * MANY)), 16 * MANY)
            await self.until(lambda: producer.log == ["pause", "resume"])
            self.assertRaises(RuntimeError, talk.transport.registerProducer, producer, True)
            await self.ask(skt.close)
            await self.ended(talk)
            self.assertEqual(producer.log, ["pause", "resume", "stop"])
            self.assertNotIn(producer, vars(talk.transport).values())

        self.play(scenario)

    # -- ends

    def test_peerEnds(self) -> None:
        """
        The client's half-close ends it, or half of it where the protocol has that.
        """

        async def scenario() -> None:
            skt, talk = await self.moved()
            await self.ask(skt.shutdown, kernel.SHUT_WR)
            await self.ended(talk)
            skt, talk = await self.moved(HalfTalk())
            await self.ask(skt.shutdown, kernel.SHUT_WR)
            await self.until(lambda: "readConnectionLost" in talk.log)
            talk.transport.write(DATA)
            self.assertEqual(await self.ask(received, skt, len(DATA)), DATA)
            talk.transport.loseConnection()
            self.assertEqual(await self.ask(skt.recv, 1), b"")
            await self.ended(talk)

        self.play(scenario)

    def test_halfCloses(self) -> None:
        """
        A half-close of this end leaves the other direction.
        """

        async def scenario() -> None:
            skt, talk = await self.moved(HalfTalk())
            talk.transport.write(DATA)
            talk.transport.loseWriteConnection()
            self.assertEqual(await self.ask(received, skt, len(DATA) + 1), DATA)
            await self.until(lambda: "writeConnectionLost" in talk.log)
            size = len(talk.got())
            await self.ask(skt.sendall, DATA)
            await self.has(talk, size + len(DATA))
            await self.ask(skt.close)
            await self.until(lambda: "readConnectionLost" in talk.log)
            talk.transport.loseConnection()
            await self.ended(talk)

        self.play(scenario)

    def test_aborted(self) -> None:
        """
        An abort resets it; nothing is delivered behind that.
        """

        async def scenario() -> None:
            skt, talk = await self.moved()
            talk.transport.write(bytes(32 * MANY))
            talk.transport.abortConnection()
            with self.assertRaises(ConnectionResetError):
                await self.ask(received, skt, 32 * MANY)
            await self.ended(talk, "ConnectionAborted")

        self.play(scenario)

    def test_endsInTail(self) -> None:
        """
        An end of this side while octets may still come over SDP.
        """

        async def scenario() -> None:
            for name, reason in (
                ("loseConnection", "ConnectionDone"),
                ("abortConnection", "ConnectionAborted"),
            ):
                _, talk, other, patched = await self.half()
                getattr(talk.transport, name)()
                self.assertEqual(await self.over(other), name == "abortConnection")
                await self.ended(talk, reason)
                patched.restore()

        self.play(scenario)

    def test_lostInTail(self) -> None:
        """
        A loss of SDP in the midst: something that was sent may be missing.
        """

        async def scenario() -> None:
            skt, talk, other, _ = await self.half()
            other.sendall(DATA)
            await self.ask(aborts, skt)
            await self.driven(talk.ended)
            await self.ended(talk, "ConnectionLost")
            self.assertEqual(talk.got(), DATA)

        self.play(scenario)

    def test_peerResets(self) -> None:
        """
        A client that resets it ends it as over TCP.
        """

        async def scenario() -> None:
            skt, talk = await self.moved()
            skt.setsockopt(kernel.SOL_SOCKET, kernel.SO_LINGER, LINGER_RESET)
            await self.ask(skt.close)
            await self.ended(talk, "ConnectionLost")

        self.play(scenario)

    def test_raises(self) -> None:
        """
        An error of the protocol ends the connection, and is logged, before and behind SDP's end.
        """

        def fails(talk: Any) -> None:
            raise ZeroDivisionError

        async def scenario() -> None:
            skt, talk = await self.moved()
            talk.on["data"] = fails
            await self.ask(skt.sendall, DATA)
            await self.until(talk.ended)
            self.assertEqual(talk.log[-1], "ZeroDivisionError")
            skt, talk, _, _ = await self.half()
            talk.on["data"] = fails
            await self.ask(skt.sendall, DATA)
            await self.until(talk.ended)
            self.assertEqual(talk.log[-1], "ZeroDivisionError")
            self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 2)

        self.play(scenario)

    def test_stops(self) -> None:
        """
        A reactor that stops ends those that it has, before and behind SDP's end.
        """
        talks: list[Any] = []

        async def scenario() -> None:
            _, talk = await self.moved()
            talks.append(talk)
            _, talk, _, _ = await self.half()
            talks.append(talk)

        reactor: Any = self.buildReactor()
        self.reactor = reactor
        runToEnd(self, reactor, scenario)
        self.assertEqual([talk.log[-1] for talk in talks], ["ConnectionLost", "ConnectionLost"])
        for each in self.sockets:
            each.close()

    def test_freed(self) -> None:
        """
        At its end it is freed without the garbage collector, as one over SDP is.
        """
        kept: list[ref[Any]] = []

        async def moves() -> None:
            skt, talk = await self.moved()
            kept.extend((ref(talk.transport), ref(talk.transport._carrier)))
            await self.ask(skt.close)
            await self.ended(talk)
            talk.transport = None

        async def scenario() -> None:
            gc.collect()
            gc.disable()
            self.addCleanup(gc.enable)
            await moves()
            await self.until(lambda: not any(each() for each in kept))

        self.play(scenario)

    # -- options

    def test_options(self) -> None:
        """
        What is set goes with it.
        """

        async def scenario() -> None:
            skt, talk = await self.pair()
            transport = talk.transport
            transport.setTcpKeepAlive(True)
            transport.bufferSize = 1000
            await self.ask(moves, skt)
            await self.exchange(skt, talk)
            carrier = transport._carrier
            self.assertTrue(carrier.getTcpKeepAlive())
            self.assertTrue(carrier.getTcpNoDelay())
            self.assertTrue(transport.getTcpKeepAlive())
            self.assertEqual(carrier.bufferSize, 1000)
            transport.setTcpKeepAlive(False)
            self.assertFalse(carrier.getTcpKeepAlive())
            transport.setTcpNoDelay(True)
            self.assertTrue(transport.getTcpNoDelay())
            other = Talk()
            transport.protocol = other
            other.makeConnection(transport)
            await self.exchange(skt, other)
            transport.loseConnection()
            await self.ended(other)

        self.play(scenario)

    # -- what only SDP has

    def memory(self, transport: Any) -> None:
        """
        Registered memory is there, and is the connection's.
        """
        with transport.registerMemory(len(DATA)) as region:
            region.view[:] = DATA
            self.assertEqual(self.successResultOf(transport.writeRegistered(region, 3, 4)), None)
            self.assertRaises(MemoryAccessError, transport.writeRegistered, region, 3, 8)
        self.assertRaises(MemoryAccessError, transport.writeRegistered, region)
        self.assertRaises(TypeError, transport.writeRegistered, DATA)
        self.assertRaises(TypeError, transport.registerMemory, None)
        region = transport.registerMemory(DATA)
        self.successResultOf(transport.writeRegistered(region, 7))
        self.assertTrue(IRDMARegion.providedBy(region))

    def urgent(self, transport: Any) -> None:
        """
        No byte is urgent.
        """
        for wrong, error in ("x", TypeError), (b"xy", ValueError), (b"", ValueError):
            self.assertRaises(error, transport.sendUrgent, wrong)
        error = self.assertRaises(ValueError, transport.sendUrgent, b"x")
        self.assertIn("moved to TCP", str(error))

    def thresholds(self, transport: Any) -> None:
        """
        All is copied, whatever its size.
        """
        transport.setZeroCopyThresholds(1, 1)
        self.assertRaises(TypeError, transport.setZeroCopyThresholds, "1")
        self.assertRaises(TypeError, transport.setZeroCopyThresholds, None, "1")

    def test_table(self) -> None:
        """
        Of the interface each method works over TCP or raises; none loses anything, neither while something
        comes over SDP nor behind that, nor in another thread.
        """
        pair = [DATA[:5], DATA[5:]]
        table: dict[str, tuple[Callable[[Any], object], bytes]] = {
            "write": (lambda transport: transport.write(DATA), DATA),
            "writeSequence": (lambda transport: transport.writeSequence(pair), DATA),
            "registerMemory": (self.memory, DATA[3:7] + DATA[7:]),
            "writeRegistered": (self.memory, DATA[3:7] + DATA[7:]),
            "sendUrgent": (self.urgent, b""),
            "setZeroCopyThresholds": (self.thresholds, b""),
            "getHost": (lambda transport: transport.getHost().port, b""),
            "getPeer": (lambda transport: transport.getPeer().port, b""),
            "loseConnection": (lambda transport: transport.loseConnection(), b""),
        }
        self.assertEqual(set(table), set(ISDPTransport.names(all=True)))

        async def scenario() -> None:
            skt, talk, other, patched = await self.half()
            transport = talk.transport
            for call, expected in table.values():
                if expected:
                    call(transport)
                    self.assertEqual(await self.ask(received, other, len(expected)), expected)
            self.urgent(transport)
            patched.restore()
            await self.driven(lambda: skt.sdp is None)
            await self.exchange(skt, talk)
            for call, expected in table.values():
                call(transport)
                self.assertEqual(await self.ask(received, skt, len(expected)), expected)
            self.assertEqual(await self.ask(skt.recv, 1), b"")
            await self.ended(talk)
            transport.sendUrgent(b"x")
            self.failureResultOf(transport.writeRegistered(None), ConnectionDone)
            self.assertRaises(MemoryRegionError, transport.registerMemory, 1)

        self.play(scenario)

    def test_memoryEnds(self) -> None:
        """
        Registered memory is closed with the connection.
        """

        async def scenario() -> None:
            _, talk = await self.moved()
            region = talk.transport.registerMemory(1)
            self.assertFalse(region.closed)
            talk.transport.abortConnection()
            await self.ended(talk, "ConnectionAborted")
            self.assertTrue(region.closed)

        self.play(scenario)

    def test_urgentStays(self) -> None:
        """
        One whose protocol takes urgent bytes stays; at others they are a part of the stream.
        """

        async def scenario() -> None:
            skt, talk = await self.pair(UrgentTalk())
            await self.stays(skt, talk)
            await self.ask(skt.send, b"x", kernel.MSG_OOB)
            await self.until(lambda: talk.urgent)
            self.assertEqual(talk.urgent, b"x")
            talk.transport.abortConnection()
            skt, talk = await self.moved()
            size = len(talk.got())
            await self.ask(skt.send, b"ab", kernel.MSG_OOB)
            await self.ask(skt.sendall, b"c")
            self.assertEqual((await self.has(talk, size + 3))[size:], b"abc")
            talk.transport.abortConnection()

        self.play(scenario)

    def test_handle(self) -> None:
        """
        Options that a program sets on its handle go with it, and are those of TCP's socket.
        """
        keepAlive = kernel.SOL_SOCKET, kernel.SO_KEEPALIVE

        async def scenario() -> None:
            skt, talk = await self.pair()
            handle = talk.transport.getHandle()
            handle.setsockopt(kernel.SOL_SOCKET, kernel.SO_PRIORITY, 3)
            await self.ask(moves, skt)
            await self.exchange(skt, talk)
            carrier = talk.transport._carrier.socket
            self.assertEqual(carrier.getsockopt(kernel.SOL_SOCKET, kernel.SO_PRIORITY), 3)
            handle.setsockopt(*keepAlive, 1)
            self.assertEqual((carrier.getsockopt(*keepAlive), handle.getsockopt(*keepAlive)), (1, 1))
            talk.transport.setTcpNoDelay(False)
            self.assertEqual(carrier.getsockopt(kernel.IPPROTO_TCP, kernel.TCP_NODELAY), 0)
            talk.transport.abortConnection()
            await self.ended(talk, "ConnectionAborted")
            self.assertRaises(OSError, handle.getpeername)

        self.play(scenario)

    # -- refused

    async def stays(self, skt: Any, talk: Any) -> None:
        """
        Check that a connection does not move.
        """
        other, mine = ofTCP()
        with other:
            self.assertFalse(talk.transport.suspended(mine))
            os.close(mine)
        await self.ask(moves, skt)
        await self.ask(skt.sendall, DATA)
        await self.has(talk, 2 * len(DATA))
        self.assertNotIsInstance(talk.transport, MovedServer)

    def test_refused(self) -> None:
        """
        One with a producer that is asked for each piece, with an extension, or which a rule has on SDP stays.
        """

        async def scenario() -> None:
            skt, talk = await self.pair()
            talk.transport.registerProducer(Pushing(), False)
            await self.stays(skt, talk)
            talk.transport.abortConnection()
            skt, talk = await self.pair()
            talk.transport.setZeroCopyThresholds(1 << 20)
            await self.stays(skt, talk)
            talk.transport.abortConnection()
            skt, talk = await self.pair()
            self.patch(talk.transport.server.why, "verdict", "sdp")
            await self.stays(skt, talk)
            self.assertFalse(talk.transport.suspended(-1))
            talk.transport.loseConnection()
            self.assertFalse(talk.transport.mayMove())

        self.play(scenario)

    def test_refusedHalves(self) -> None:
        """
        One of which a half is closed stays.
        """

        async def scenario() -> None:
            skt, talk = await self.pair(HalfTalk())
            talk.transport.loseWriteConnection()
            self.assertFalse(talk.transport.mayMove())
            await self.until(lambda: "writeConnectionLost" in talk.log)
            self.assertFalse(talk.transport.mayMove())
            talk.transport.abortConnection()
            skt, talk = await self.pair(HalfTalk())
            await self.ask(skt.shutdown, kernel.SHUT_WR)
            await self.until(lambda: "readConnectionLost" in talk.log)
            self.assertFalse(talk.transport.mayMove())
            talk.transport.abortConnection()

        self.play(scenario)

    def test_askedTwice(self) -> None:
        """
        One that has moved, or is about to, is not moved again.
        """

        async def scenario() -> None:
            skt, talk = await self.pair()
            patched = self.patch(RedirectedServer, "isQuiet", lambda stream: False)
            await self.ask(moves, skt)
            await self.until(self.waits)
            other, mine = ofTCP()
            with other:
                self.assertTrue(talk.transport.suspended(mine))
                self.assertNotIsInstance(talk.transport, MovedServer)
                patched.restore()
                self.assertTrue(await self.over(other))
            await self.until(lambda: isinstance(talk.transport, MovedServer))
            await self.exchange(skt, talk)
            other, mine = ofTCP()
            with other:
                self.assertFalse(talk.transport.suspended(mine))
                os.close(mine)
            talk.transport.abortConnection()
            await self.ended(talk, "ConnectionAborted")

        self.play(scenario)

    def test_strangers(self) -> None:
        """
        What is no connection of TCP is closed, and all stays as it is.
        """

        async def scenario() -> None:
            _, talk = await self.pair()
            reader, writer = os.pipe()
            unix, peer = kernel.socketpair()
            unconnected = kernel.socket()
            datagrams = kernel.socket(kernel.AF_INET, kernel.SOCK_DGRAM)
            datagrams.connect((HOST, 9))
            for number in reader, writer, unix.detach(), unconnected.detach(), datagrams.detach():
                self.assertTrue(talk.transport.suspended(number))
                self.assertRaises(OSError, os.fstat, number)
            peer.close()
            self.assertNotIsInstance(talk.transport, MovedServer)
            talk.transport.abortConnection()

        self.play(scenario)

    def test_waits(self) -> None:
        """
        It moves once all that was written is in the medium; if it ends before, it is refused.
        """

        async def scenario() -> None:
            for ends in False, True:
                skt, talk = await self.pair()
                patched = self.patch(RedirectedServer, "isQuiet", lambda stream: False)
                await self.ask(moves, skt)
                await self.until(self.waits)
                self.assertNotIsInstance(talk.transport, MovedServer)
                if ends:
                    talk.transport.loseConnection()
                    await self.ended(talk)
                    self.assertEqual(await self.ask(skt.recv, 1), b"")
                    self.assertNotIsInstance(talk.transport, MovedServer)
                    patched.restore()
                else:
                    patched.restore()
                    await self.until(lambda talk=talk: isinstance(talk.transport, MovedServer))
                    await self.exchange(skt, talk)
                    talk.transport.loseConnection()
                    await self.ended(talk)

        self.play(scenario)

    # -- TLS

    def secured(self, skt: Any) -> tuple[Any, Any]:
        """
        Begin TLS on a socket, in a thread, with a certificate of its own.

        @return: A Deferred of what it is then, and the server's options.
        """
        made = certificate(HOST)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return deferToThreadPool(self.reactor, self.threads, tls.wrap_socket, context, skt), made.options()

    def test_wrappedTLS(self) -> None:
        """
        A server whose protocols are wrapped in TLS moves before the handshake: OpenSSL has the client's
        descriptor.
        """

        async def scenario() -> None:
            talk = Talk()
            factory = TLSMemoryBIOFactory(certificate(HOST).options(), False, Accepting(talk))
            port = self.reactor.listenTCP(0, factory, interface=HOST)
            address = HOST, port.getHost().port
            skt: Any = await self.ask(offloading.create_connection, address, HANG_SECONDS)
            self.assertIsNotNone(skt.sdp)
            secured, _ = self.secured(skt)
            client = await secured
            self.sockets.append(client)
            self.assertNotIsInstance(client, tls.SSLSocket)
            await self.ask(client.sendall, DATA)
            await self.has(talk, len(DATA))
            talk.transport.write(bytes(MANY))
            self.assertEqual(await self.ask(received, client, MANY), bytes(MANY))
            self.assertIsInstance(talk.transport.transport, MovedServer)
            self.assertEqual(explain(talk.transport).fallback, MOVED)
            talk.transport.loseConnection()
            await self.ask(client.recv, 1)
            await self.ask(client.close)
            await self.until(talk.ended)
            await port.stopListening()

        self.play(scenario)

    def test_startTLS(self) -> None:
        """
        TLS may begin once it has moved.
        """

        async def scenario() -> None:
            skt, talk = await self.moved()
            secured, options = self.secured(skt)
            talk.transport.startTLS(options)
            client = await secured
            self.sockets.append(client)
            self.assertTrue(talk.transport.TLS)
            self.assertTrue(ISSLTransport.providedBy(talk.transport))
            self.assertIsNone(talk.transport.getPeerCertificate())
            await self.exchange(client, talk)
            talk.transport.writeSequence([DATA, DATA])
            self.assertEqual(await self.ask(received, client, 2 * len(DATA)), 2 * DATA)
            talk.transport.loseConnection()
            self.assertEqual(await self.ask(client.recv, 1), b"")
            await self.ask(client.close)
            await self.until(talk.ended)

        self.play(scenario)

    def test_TLSStays(self) -> None:
        """
        One that has TLS by C{startTLS} stays.
        """

        async def scenario() -> None:
            _, talk = await self.pair()
            self.assertTrue(talk.transport.mayMove())
            talk.transport.startTLS(certificate(HOST).options())
            self.assertFalse(talk.transport.mayMove())
            talk.transport.abortConnection()

        self.play(scenario)

    # -- processes

    def test_byItself(self) -> None:
        """
        The connection of another process moves by itself, and nothing is lost.
        """

        async def scenario() -> None:
            def answer(talk: Any) -> None:
                data = bytes(talk.log[-1])
                talk.log.append("told")
                self.reactor.callLater(ANSWERS_AFTER, lambda: talk.transport.write(data))

            talk = Talk(data=answer)
            port = self.reactor.listenTCP(0, Accepting(talk), interface=HOST)
            child = Popen([sys.executable, "-c", CLIENT, str(port.getHost().port)], stdout=PIPE, text=True)
            self.addCleanup(child.kill)
            said, _ = await self.ask(child.communicate, None, HANG_SECONDS)
            await self.ended(talk)
            got = talk.got()
            count = got.count(b",")
            self.assertEqual(said.split(), ["True", "MovedSocket", str(count)])
            self.assertEqual(got, b"".join(b"%d," % number for number in range(count)))
            await port.stopListening()

        self.play(scenario)

    def test_killed(self) -> None:
        """
        A client that is killed once it has moved ends it as the kernel has it.
        """

        async def scenario() -> None:
            talk = Talk()
            port = self.reactor.listenTCP(0, Accepting(talk), interface=HOST)
            child = Popen([sys.executable, "-c", _MOVING, str(port.getHost().port)], stdout=PIPE)
            self.addCleanup(child.kill)
            await self.has(talk, 2)
            self.assertIsInstance(talk.transport, MovedServer)
            child.kill()
            await self.ended(talk)
            await self.ask(child.communicate)
            await port.stopListening()

        self.play(scenario)

    def waits(self) -> bool:
        """
        Return whether a connection waits until it is quiet.
        """
        return any(each.func.__name__ == "whenQuiet" for each in self.reactor.getDelayedCalls())


globals().update(MovingTests.makeTestCaseClasses())
del MovingTests
