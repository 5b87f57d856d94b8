"""
TLS over a stream: from the start, in the middle, and with certificates that are looked at.
"""

from __future__ import annotations

from typing import Any

from twisted.internet import interfaces
from twisted.internet.endpoints import wrapClientTLS
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.ssl import (
    Certificate,
    CertificateOptions,
    PrivateCertificate,
    optionsForClientTLS,
    trustRootFromCertificates,
)
from twisted.protocols.tls import TLSMemoryBIOFactory

from tests.internet.carriers import Accepting, StreamContract, Talk
from tests.support.certificates import certificate
from tests.support.waiting import becomes

try:
    from twisted.internet.endpoints import wrapServerTLS
except ImportError:  # New in Twisted 26.
    wrapServerTLS = None  # type: ignore[assignment]


SERVER, CLIENT, OTHER = certificate("server.example"), certificate("client.example"), certificate("other")


def serverOptions(trust: Certificate | None = None) -> CertificateOptions:
    """
    @param trust: Whose clients are taken; all, and none is asked, if it is L{None}.
    @return: The server's.
    """
    return SERVER.options() if trust is None else SERVER.options(trust)


def clientOptions(
    host: str = "server.example", trust: Certificate = SERVER, own: PrivateCertificate | None = None
) -> Any:
    """
    @return: A client's, which looks at the server's certificate and name.
    """
    return optionsForClientTLS(host, trustRootFromCertificates([trust]), own)


class SecureTalk(Talk):
    """
    Keeps the reason of the end.
    """

    reason: Any = None

    def connectionLost(self, reason: Any = None) -> None:
        self.reason = reason.value
        super().connectionLost(reason)

    def ended(self) -> bool:
        """
        @return: Whether it has ended.
        """
        return self.reason is not None


class SecureContract(StreamContract):
    """
    TLS.
    """

    requiredInterfaces = (interfaces.IReactorFDSet, interfaces.IReactorTime, interfaces.IReactorSSL)

    async def secured(
        self, reactor: Any, server: Any, client: Any, here: Any = None, there: Any = None
    ) -> Any:
        """
        Connect two protocols through TLS from the start.

        @param here: The client's options.
        @param there: The server's.
        @return: The port.
        """
        there = serverOptions() if there is None else there
        endpoint = self.carrier.server(reactor)
        if wrapServerTLS is None:
            port = await endpoint.listen(TLSMemoryBIOFactory(there, False, Accepting(server)))
        else:
            port = await wrapServerTLS(there, endpoint).listen(Accepting(server))
        inner = self.carrier.client(reactor, port.getHost().port)
        here = clientOptions() if here is None else here
        await wrapClientTLS(here, inner).connect(Accepting(client))
        return port

    def test_wrapped(self) -> None:
        """
        Both sides wrapped: data both ways, the certificate of the peer, an end in order.
        """

        async def steps(reactor: Any) -> None:
            client, server = SecureTalk(), SecureTalk(data=lambda one: one.transport.write(b"answer"))
            port = await self.secured(reactor, server, client)
            client.transport.write(b"question")
            await becomes(reactor, lambda: client.got() == b"answer")
            self.assertEqual(server.got(), b"question")
            peer = Certificate(client.transport.getPeerCertificate())
            self.assertEqual(peer.digest(), SERVER.digest())
            self.assertIsNone(server.transport.getPeerCertificate())
            self.assertEqual(client.peer, port.getHost())
            self.assertEqual(client.host, server.peer)
            client.transport.loseConnection()
            await becomes(reactor, lambda: client.ended() and server.ended())
            self.assertEqual((client.reason.__class__, server.reason.__class__), (ConnectionDone,) * 2)
            await port.stopListening()

        self.drive(steps)

    def test_bulk(self) -> None:
        """
        Much, both ways at once, before an end of both.
        """

        async def steps(reactor: Any) -> None:
            client, server = SecureTalk(), SecureTalk()
            port = await self.secured(reactor, server, client)
            data = bytes(range(256)) * 16384
            await becomes(reactor, lambda: server.log)
            for protocol in (client, server):
                protocol.transport.write(data)
            await becomes(reactor, lambda: client.got() == data == server.got())
            server.transport.loseConnection()
            await becomes(reactor, lambda: client.ended() and server.ended())
            await port.stopListening()

        self.drive(steps)

    def test_abort(self) -> None:
        """
        An abort of what is secured is a loss to the peer, and not TLS's end.
        """

        async def steps(reactor: Any) -> None:
            client, server = SecureTalk(), SecureTalk()
            port = await self.secured(reactor, server, client)
            client.transport.write(b"x")
            await becomes(reactor, server.got)
            server.transport.abortConnection()
            await becomes(reactor, lambda: client.ended() and server.ended())
            for protocol in (client, server):  # Which TLS has from the end of the transport.
                self.assertIsInstance(protocol.reason, ConnectionLost)
            await port.stopListening()

        self.drive(steps)

    def refuses(self, here: Any, there: Any) -> None:
        """
        Try a handshake that must fail; nobody gets data, and both ends are told of an error.
        """

        async def steps(reactor: Any) -> None:
            client, server = SecureTalk(), SecureTalk()
            port = await self.secured(reactor, server, client, here, there)
            client.transport.write(b"secret")
            await becomes(reactor, lambda: client.ended() and server.ended())
            self.assertEqual(server.got(), b"")
            for protocol in (client, server):
                self.assertNotIsInstance(protocol.reason, ConnectionDone)
            await port.stopListening()

        self.drive(steps)

    def test_unknownServer(self) -> None:
        """
        A server whose certificate nobody has signed whom the client trusts.
        """
        self.refuses(clientOptions(trust=OTHER), serverOptions())

    def test_otherName(self) -> None:
        """
        A server with another name than the client asked for.
        """
        self.refuses(clientOptions("wrong.example"), serverOptions())

    def test_unknownClient(self) -> None:
        """
        A client whose certificate the server does not trust.
        """
        self.refuses(clientOptions(own=OTHER), serverOptions(CLIENT))

    def test_clientWithout(self) -> None:
        """
        A client without a certificate where one is asked for.
        """
        self.refuses(clientOptions(), serverOptions(CLIENT))

    def test_bothVerified(self) -> None:
        """
        Each side looks at the other's certificate, and takes it.
        """

        async def steps(reactor: Any) -> None:
            client, server = SecureTalk(), SecureTalk()
            port = await self.secured(
                reactor, server, client, clientOptions(own=CLIENT), serverOptions(CLIENT)
            )
            client.transport.write(b"x")
            await becomes(reactor, server.got)
            peer = Certificate(server.transport.getPeerCertificate())
            self.assertEqual(peer.digest(), CLIENT.digest())
            client.transport.loseConnection()
            await becomes(reactor, lambda: client.ended() and server.ended())
            await port.stopListening()

        self.drive(steps)

    def upgrade(self, steps: Any, here: Any = None, there: Any = None) -> None:
        """
        Talk in the clear, then have both sides start TLS in the middle, and go on.

        @param steps: What follows, given reactor, client and server.
        """

        async def whole(reactor: Any) -> None:
            def offered(one: Any) -> None:
                if one.got() == b"start":
                    one.transport.write(b"go")
                    one.transport.startTLS(serverOptions() if there is None else there)
                    one.transport.write(b"hello from the server;")

            def agreed(one: Any) -> None:
                if one.got() == b"go":
                    one.transport.startTLS(clientOptions() if here is None else here)
                    one.transport.write(b"hello from the client;")

            client, server = SecureTalk(data=agreed), SecureTalk(data=offered)
            port, client, server = await self.pair(reactor, server, client)
            for protocol in (client, server):
                self.assertFalse(protocol.transport.TLS)
            client.transport.write(b"start")
            await steps(reactor, client, server)
            await becomes(reactor, lambda: client.ended() and server.ended())
            await port.stopListening()

        self.drive(whole)

    def test_startTLS(self) -> None:
        """
        TLS in the middle of a stream, the transports staying what they are.
        """

        async def steps(reactor: Any, client: Any, server: Any) -> None:
            await becomes(reactor, lambda: server.got() == b"starthello from the client;")
            await becomes(reactor, lambda: client.got() == b"gohello from the server;")
            for protocol in (client, server):
                transport = protocol.transport
                self.assertTrue(transport.TLS)
                self.assertTrue(interfaces.ITCPTransport.providedBy(transport))
                self.assertEqual((transport.getHost(), transport.getPeer()), (protocol.host, protocol.peer))
            peer = Certificate(client.transport.getPeerCertificate())
            self.assertEqual(peer.digest(), SERVER.digest())
            client.transport.writeSequence([b"more", b"!"] * 50_000)
            await becomes(reactor, lambda: len(server.got()) == 27 + 250_000)
            client.transport.loseConnection()

        self.upgrade(steps)

    def test_startTLSEndedByServer(self) -> None:
        """
        And the server closes, with much still to be sent.
        """

        async def steps(reactor: Any, client: Any, server: Any) -> None:
            await becomes(reactor, lambda: server.got() == b"starthello from the client;")
            server.transport.write(b"z" * 3_000_000)
            server.transport.loseConnection()
            await becomes(reactor, client.ended)
            self.assertEqual(client.got(), b"gohello from the server;" + b"z" * 3_000_000)
            self.assertIsInstance(client.reason, ConnectionDone)

        self.upgrade(steps)

    def test_startTLSRefused(self) -> None:
        """
        A certificate that the client does not trust ends what began in the clear.
        """

        async def steps(reactor: Any, client: Any, server: Any) -> None:
            await becomes(reactor, lambda: client.ended() and server.ended())
            self.assertEqual((client.got(), server.got()), (b"go", b"start"))
            self.assertNotIsInstance(client.reason, ConnectionDone)

        self.upgrade(steps, clientOptions(trust=OTHER))

    def test_startTLSBothVerified(self) -> None:
        """
        Both sides look at certificates.
        """

        async def steps(reactor: Any, client: Any, server: Any) -> None:
            await becomes(reactor, lambda: server.got() == b"starthello from the client;")
            peer = Certificate(server.transport.getPeerCertificate())
            self.assertEqual(peer.digest(), CLIENT.digest())
            server.transport.abortConnection()

        self.upgrade(steps, clientOptions(own=CLIENT), serverOptions(CLIENT))

    def test_startTLSAborted(self) -> None:
        """
        An abort after C{startTLS} is a loss to the peer, and not TLS's end.
        """

        async def steps(reactor: Any, client: Any, server: Any) -> None:
            await becomes(reactor, lambda: server.got() == b"starthello from the client;")
            server.transport.abortConnection()
            await becomes(reactor, lambda: client.ended() and server.ended())
            self.assertIsInstance(client.reason, ConnectionLost)

        self.upgrade(steps)

    def test_startTLSBeforeQueued(self) -> None:
        """
        Bytes written in the clear before C{startTLS} leave in the clear, however many they are.
        """

        async def steps(reactor: Any) -> None:
            size = 2_000_000

            def received(one: Any) -> None:
                if len(one.got()) == size:
                    one.transport.startTLS(clientOptions())

            client = SecureTalk(data=received)

            def begin(one: Any) -> None:
                one.transport.write(b"c" * size)
                one.transport.startTLS(serverOptions())
                one.transport.write(b"secret")

            port, client, server = await self.pair(reactor, SecureTalk(made=begin), client)
            await becomes(reactor, lambda: client.got() == b"c" * size + b"secret")
            client.transport.loseConnection()
            await becomes(reactor, lambda: client.ended() and server.ended())
            await port.stopListening()

        self.drive(steps)
