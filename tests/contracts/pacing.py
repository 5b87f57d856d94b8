"""
Producers of a stream, what may be written, and what a transport tells of itself.
"""

from __future__ import annotations

from typing import Any

from twisted.internet import interfaces
from twisted.internet.address import IPv4Address
from zope.interface import implementer
from zope.interface.verify import verifyObject

from tests.internet.carriers import HalfTalk, StreamContract, Talk
from tests.support.waiting import becomes


@implementer(interfaces.IPushProducer, interfaces.IPullProducer)
class Producer:
    """
    Writes blocks to a transport.

    @ivar log: The calls.
    """

    def __init__(self, transport: Any, blocks: int, size: int = 30_000) -> None:
        """
        @param blocks: How many blocks there are.
        """
        self.transport = transport
        self.left = blocks
        self.size = size
        self.paused = True
        self.log: list[str] = []

    async def over(self, reactor: Any, test: Any, client: Any) -> None:
        """
        Wait until all is written.

        @param test: Fails if the connection has ended before.
        @param client: The transport's protocol, which says why.
        """
        await becomes(reactor, lambda: self.log[-1] in ("over", "stop"))
        if self.log[-1] == "stop":
            await becomes(reactor, client.ended)
            test.fail(f"producer {self.log[-20:]}, client {client.log[-1]}: {client.why}")

    def begin(self, streaming: bool) -> None:
        """
        Register.
        """
        self.streaming = streaming
        self.transport.registerProducer(self, streaming)
        if streaming:
            self.resumeProducing()

    def resumeProducing(self) -> None:
        """
        Write one block, or as long as it may.
        """
        self.log.append("resume")
        self.paused = False
        while self.left and not self.paused:
            self.left -= 1
            self.transport.write(b"b" * self.size)
            if not self.streaming:
                break
        if not self.left and self.log[-1] != "over":
            self.log.append("over")
            self.transport.unregisterProducer()

    def pauseProducing(self) -> None:
        """
        Stop.
        """
        self.log.append("pause")
        self.paused = True

    def stopProducing(self) -> None:
        """
        Stop for good.
        """
        self.log.append("stop")
        self.paused = True
        self.left = 0


class PacingContract(StreamContract):
    """
    Producers.
    """

    def test_push(self) -> None:
        """
        A push producer is paused when much waits, resumed when all has left, and all arrives.
        """

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            producer = Producer(client.transport, 200)
            producer.begin(True)
            self.assertEqual(producer.log, ["resume", "pause"])
            await producer.over(reactor, self, client)
            self.assertEqual(producer.log.count("resume"), producer.log.count("pause") + 1)
            client.transport.loseConnection()
            await self.end(reactor, port, client, server)
            self.assertEqual(server.log, ["made", b"b" * 6_000_000, "ConnectionDone"])
            self.assertNotIn("stop", producer.log)

        self.drive(steps)

    def test_pull(self) -> None:
        """
        A pull producer is asked for a block when it registers, and for each other when the one before has
        left.
        """

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            producer = Producer(client.transport, 50)
            producer.begin(False)
            self.assertEqual(producer.log, ["resume"])
            await producer.over(reactor, self, client)
            self.assertEqual(producer.log, ["resume"] * 50 + ["over"])
            client.transport.loseConnection()
            await self.end(reactor, port, client, server)
            self.assertEqual(len(server.got()), 1_500_000)

        self.drive(steps)

    def test_switching(self) -> None:
        """
        One producer after the other, of both kinds, each with what the one before has left behind; two at
        a time are refused.
        """

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            for number in range(6):
                producer = Producer(client.transport, 10)
                producer.begin(bool(number % 2))
                if producer.left:
                    other = Producer(client.transport, 1)
                    self.assertRaises(RuntimeError, client.transport.registerProducer, other, True)
                    self.assertEqual(other.log, [])
                await producer.over(reactor, self, client)
            client.transport.loseConnection()
            await self.end(reactor, port, client, server)
            self.assertEqual(len(server.got()), 6 * 300_000)

        self.drive(steps)

    def test_replacedWhilePaused(self) -> None:
        """
        A paused push producer that unregisters leaves its place to one that pulls.
        """

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            first = Producer(client.transport, 200)
            first.begin(True)
            self.assertEqual(first.log[-1], "pause")
            written = 200 - first.left
            client.transport.unregisterProducer()
            second = Producer(client.transport, 3)
            second.begin(False)
            await second.over(reactor, self, client)
            client.transport.loseConnection()
            await self.end(reactor, port, client, server)
            self.assertEqual(len(server.got()), (written + 3) * 30_000)
            self.assertEqual(first.log, ["resume", "pause"])

        self.drive(steps)

    def test_closeWaits(self) -> None:
        """
        A close waits for a producer that pulls, and for one that is paused.
        """

        async def steps(reactor: Any) -> None:
            for streaming in (False, True):
                port, client, server = await self.pair(reactor)
                producer = Producer(client.transport, 20)
                producer.begin(streaming)
                client.transport.loseConnection()
                await self.end(reactor, port, client, server)
                self.assertEqual((len(server.got()), producer.log[-1]), (600_000, "over"))

        self.drive(steps)

    def test_stoppedAtTheEnd(self) -> None:
        """
        A producer is told when the connection ends under it, once.
        """

        async def steps(reactor: Any) -> None:
            for streaming in (False, True):
                port, client, server = await self.pair(reactor)
                server.transport.pauseProducing()
                producer = Producer(client.transport, 1000, 100_000)
                producer.begin(streaming)
                await self.soon(reactor, 0.01)
                server.transport.abortConnection()
                await self.end(reactor, port, client, server)
                self.assertEqual((client.log[-1], producer.log[-1]), ("ConnectionLost", "stop"))
                self.assertEqual(producer.log.count("stop"), 1)

        self.drive(steps)

    def test_registeredAfterTheEnd(self) -> None:
        """
        A producer registered when all is over is stopped at once.
        """

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            client.transport.loseConnection()
            await self.end(reactor, port, client, server)
            for streaming in (False, True):
                producer = Producer(client.transport, 1)
                client.transport.registerProducer(producer, streaming)
                self.assertEqual(producer.log, ["stop"])
                client.transport.unregisterProducer()

        self.drive(steps)

    def test_errorInProducer(self) -> None:
        """
        An exception of a producer ends the connection, and is its reason.
        """

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            producer: Any = Producer(client.transport, 10)
            producer.begin(False)
            producer.resumeProducing = lambda: 1 // 0
            await self.end(reactor, port, client, server)
            self.assertEqual((client.log[-1], server.log[-1]), ("ZeroDivisionError", "ConnectionDone"))
            self.assertEqual(producer.log, ["resume", "stop"])
            self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

        self.drive(steps)

    def test_halfCloseWithProducer(self) -> None:
        """
        A half-close waits for what is written, and not for more.
        """

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor, HalfTalk(), HalfTalk())
            client.transport.write(b"x" * 3_000_000)
            client.transport.loseWriteConnection()
            await becomes(reactor, lambda: server.log[-1] == "readConnectionLost")
            self.assertEqual(len(server.got()), 3_000_000)
            server.transport.loseConnection()
            await becomes(reactor, lambda: client.log[-1] == "readConnectionLost")
            client.transport.loseConnection()
            await self.end(reactor, port, client, server)

        self.drive(steps)

    def test_readerPauses(self) -> None:
        """
        Nothing arrives while a reader is paused; all of it, in order, afterwards.
        """

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            whole = b""
            for number in range(20):
                server.transport.pauseProducing()
                before = len(server.got())
                block = bytes([number]) * 50_000
                whole += block
                client.transport.write(block)
                await self.soon(reactor, 0.003)
                self.assertEqual(len(server.got()), before)
                server.transport.resumeProducing()
                await becomes(reactor, lambda: len(server.got()) > before)  # noqa: B023
            client.transport.loseConnection()
            await self.end(reactor, port, client, server)
            self.assertEqual(server.got(), whole)

        self.drive(steps)


class FacesContract(StreamContract):
    """
    A transport's properties, and writes to it.
    """

    def test_writes(self) -> None:
        """
        Bytes in any number and size; anything else raises, and nothing of it leaves.
        """

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            transport = client.transport
            wrong: Any
            for wrong in ("text", None, 5):
                self.assertRaises(TypeError, transport.write, wrong)
            for wrong in (["text"], [b"x", "text"]):
                self.assertRaises(TypeError, transport.writeSequence, wrong)
            transport.write(b"")
            transport.writeSequence([])
            transport.writeSequence([b"", b""])
            transport.write(b"a")
            transport.writeSequence([b"b", b"", b"c"])
            transport.writeSequence((b"d", b"e"))
            transport.writeSequence([b"f" * 1_000_000] * 3)
            transport.write(b"g")
            transport.loseConnection()
            await self.end(reactor, port, client, server)
            self.assertEqual(server.got(), b"abcde" + b"f" * 3_000_000 + b"g")

        self.drive(steps)

    def test_interfaces(self) -> None:
        """
        Both ends provide the same interfaces.
        """

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            for protocol in (client, server):
                for name in (
                    "ITransport",
                    "ITCPTransport",
                    "ITLSTransport",
                    "IConsumer",
                    "IPushProducer",
                    "IHalfCloseableDescriptor",
                    "IReadWriteDescriptor",
                    "ILoggingContext",
                ):
                    interface = getattr(interfaces, name)
                    self.assertTrue(interface.providedBy(protocol.transport), name)
                    verifyObject(interface, protocol.transport)
            verifyObject(interfaces.IListeningPort, port)
            client.transport.loseConnection()
            await self.end(reactor, port, client, server)

        self.drive(steps)

    def test_states(self) -> None:
        """
        Attributes, names and addresses.
        """

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            here, there = client.transport, server.transport
            for transport in (here, there):
                state = (transport.connected, transport.disconnected, transport.disconnecting)
                self.assertEqual(state, (1, 0, 0))
                self.assertFalse(transport.TLS)
                self.assertIs(transport.reactor, reactor)
                self.assertIsInstance(transport.getPeer(), IPv4Address)
                self.assertEqual(transport.getHost().type, "TCP")
            self.assertEqual(here.getHost(), there.getPeer())
            self.assertEqual(here.getPeer(), there.getHost())
            self.assertEqual(here.getPeer(), port.getHost())
            self.assertEqual(here.addr, (self.carrier.host, port.getHost().port))
            self.assertIs(here.protocol, client)
            self.assertEqual(here.logPrefix(), "Talk,client")
            self.assertEqual(there.logPrefix(), f"Talk,0,{self.carrier.clientHost}")
            self.assertEqual(repr(there), f"<Talk #0 on {port.getHost().port}>")
            self.assertEqual(there.client[:2], (self.carrier.clientHost, here.getHost().port))
            here.loseConnection()
            self.assertEqual((here.connected, here.disconnecting), (1, 1))
            await self.end(reactor, port, client, server)
            for transport in (here, there):
                self.assertEqual((transport.connected, transport.disconnected), (0, 1))

        self.drive(steps)

    def test_options(self) -> None:
        """
        TCP's options are remembered.
        """

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            for protocol in (client, server):
                for name in ("TcpNoDelay", "TcpKeepAlive"):
                    get = getattr(protocol.transport, f"get{name}")
                    put = getattr(protocol.transport, f"set{name}")
                    self.assertFalse(get())
                    for value in (True, 1, False, 0, 1):
                        put(value)
                        self.assertEqual(bool(get()), bool(value))
            client.transport.loseConnection()
            await self.end(reactor, port, client, server)

        self.drive(steps)

    def test_logContext(self) -> None:
        """
        A protocol's log entries in its calls name its connection.
        """

        async def steps(reactor: Any) -> None:
            from twisted.python import context, log

            seen: list[Any] = []

            def look(one: Any) -> None:
                seen.append(context.get(log.ILogContext)["system"])

            server = Talk(data=look, lost=look)
            port, client, server = await self.pair(reactor, server)
            client.transport.write(b"x")
            await becomes(reactor, server.got)
            client.transport.loseConnection()
            await self.end(reactor, port, client, server)
            self.assertEqual(seen, [f"Talk,0,{self.carrier.clientHost}"] * 2)

        self.drive(steps)
