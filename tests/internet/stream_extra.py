"""
Tests for any stream transport that Twisted's own mixins leave out.
"""

from __future__ import annotations

from hashlib import sha256

from twisted.internet import interfaces
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.internet.test.connectionmixins import ConnectableProtocol
from twisted.python.failure import Failure
from zope.interface import implementer
from zope.interface.verify import verifyObject

from tests.internet.twistedapi import runProtocolsQuietly


class Tail(ConnectableProtocol):
    """
    Collect everything until the peer closes.
    """

    def connectionMade(self) -> None:
        self.length = 0
        self.digest = sha256()
        self.host, self.peerAddress = self.transport.getHost(), self.transport.getPeer()

    def dataReceived(self, data: bytes) -> None:
        self.length += len(data)
        self.digest.update(data)


@implementer(interfaces.IPushProducer)
class Pump(Tail):
    """
    Send a long pseudo-random stream as a push producer, then close.
    """

    total = 4 * 1024 * 1024 + 7
    pauses = 0

    def connectionMade(self) -> None:
        super().connectionMade()
        self.sent = sha256()
        self.left = self.total
        self.paused = False
        self.transport.registerProducer(self, True)
        self.resumeProducing()

    def pauseProducing(self) -> None:
        self.paused = True
        self.pauses += 1

    def stopProducing(self) -> None:
        self.paused = True

    def resumeProducing(self) -> None:
        self.paused = False
        while self.left and not self.paused:
            size = min(self.left, 1 + (self.left * 2654435761) % 30011)
            chunk = (b"%08x" % self.left) * (size // 8 + 1)
            chunk = chunk[:size]
            self.sent.update(chunk)
            self.left -= size
            self.transport.write(chunk)
        if not self.left and self.transport.producer is not None:
            self.transport.unregisterProducer()
            self.transport.loseConnection()


class ExtraStreamTestsMixin:
    """
    Checks which Twisted's mixins leave out.
    """

    def test_bulkWithPushProducer(self) -> None:
        """
        Four megabytes arrive whole and in order, and the producer was paused.
        """
        tail, pump = Tail(), Pump()
        runProtocolsQuietly(self, tail, pump)
        self.assertEqual(tail.length, pump.total)
        self.assertEqual(tail.digest.digest(), pump.sent.digest())
        self.assertGreater(pump.pauses, 0)

    def test_transportInterface(self) -> None:
        """
        Both transports provide what a TCP transport provides.
        """
        wanted = (
            interfaces.ITransport,
            interfaces.ITCPTransport,
            interfaces.IConsumer,
            interfaces.IPushProducer,
        )
        seen: list[object] = []

        class Check(ConnectableProtocol):
            def connectionMade(inner) -> None:
                for interface in wanted:
                    try:
                        verifyObject(interface, inner.transport)
                    except Exception as e:
                        seen.append(e)
                inner.transport.loseConnection()

        runProtocolsQuietly(self, Check(), Check())
        self.assertEqual(seen, [])

    def test_halfCloseByClient(self) -> None:
        """
        After the client half-closes, the server still can answer.
        """
        events: list[object] = []

        @implementer(interfaces.IHalfCloseableProtocol)
        class Half(ConnectableProtocol):
            def connectionMade(self) -> None:
                self.transport.write(b"question")
                self.transport.loseWriteConnection()

            def dataReceived(self, data: bytes) -> None:
                events.append(data)

            def writeConnectionLost(self) -> None:
                events.append("write side closed")

            def readConnectionLost(self) -> None:
                events.append("read side closed")
                self.transport.loseConnection()

        @implementer(interfaces.IHalfCloseableProtocol)
        class Answer(ConnectableProtocol):
            def readConnectionLost(self) -> None:
                self.transport.write(b"answer")
                self.transport.loseConnection()

            def writeConnectionLost(self) -> None:
                pass

        runProtocolsQuietly(self, Answer(), Half())
        self.assertEqual(events, ["write side closed", b"answer", "read side closed"])

    def test_addresses(self) -> None:
        """
        The two ends agree on the server's address.
        """
        client, server = Tail(), Pump()
        server.total = 1
        runProtocolsQuietly(self, server, client)
        self.assertEqual(client.peerAddress, server.host)
        self.assertTrue(interfaces.IAddress.providedBy(server.peerAddress))
        hash(client.peerAddress)

    def test_manyConnections(self) -> None:
        """
        Fifty clients of one listener all get their echo.
        """
        reactor = self.buildReactor()
        answers: list[bytes] = []

        class Echo(Protocol):
            def dataReceived(self, data: bytes) -> None:
                self.transport.write(data)

        class Client(Protocol):
            def connectionMade(self) -> None:
                self.done: Deferred[None] = Deferred()
                self.got = b""
                self.transport.write(b"%016d" % id(self))

            def dataReceived(self, data: bytes) -> None:
                self.got += data
                if len(self.got) == 16:
                    self.transport.loseConnection()

            def connectionLost(self, reason: Failure = connectionDone) -> None:
                answers.append(self.got)
                self.done.callback(None)

        async def steps() -> None:
            try:
                port = await self.endpoints.server(reactor).listen(Factory.forProtocol(Echo))
                clients = await gatherResults(
                    [
                        self.endpoints.client(reactor, port.getHost()).connect(Factory.forProtocol(Client))
                        for _ in range(50)
                    ]
                )
                await gatherResults([client.done for client in clients])
                await port.stopListening()
            finally:
                reactor.stop()

        reactor.callWhenRunning(lambda: Deferred.fromCoroutine(steps()))
        self.runReactor(reactor)
        self.assertEqual(len(set(answers)), 50)
