"""
Tests for how connections that real endpoints make close behind a push producer
that is not paused, over C{sdp} as over C{tcp}.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.web.resource import Resource
from twisted.web.server import Site

from tests.sdp.endpoints.test_endpoints import Collector, EndpointTestCase, Server
from tests.sdp.test_transport import Producer
from tests.support.certificates import selfSigned
from tests.support.waiting import HANG_SECONDS


class Produced(Collector):
    """
    Registers a push producer that is never paused, says a word and closes at
    the first byte.

    @ivar producer: That.
    """

    def connectionMade(self) -> None:
        """
        Register.
        """
        self.producer = Producer()
        transport: Any = self.transport
        transport.registerProducer(self.producer, True)

    def dataReceived(self, data: bytes) -> None:
        transport: Any = self.transport
        transport.write(b"bye")
        transport.loseConnection()


class ClosingTestsMixin:
    """
    A server closes; the client hears of it.

    @cvar scheme: What endpoints to use.
    """

    scheme: str

    async def ask(self: Any, prefix: str, factory: Any, question: bytes) -> bytes:
        """
        Serve, connect and ask; the server closes.

        @return: the answer, all of it.
        """
        port = await self.listen(f"{prefix}{self.scheme}:0:interface=127.0.0.1", factory)
        client = await self.connect(f"{self.scheme}:127.0.0.1:{port.getHost().port}")
        client.transport.write(question)
        lost: Deferred[None] = client.lost
        await lost.addTimeout(HANG_SECONDS, self.reactor)
        answer: bytes = client.data
        return answer

    async def test_producer(self: Any) -> None:
        """
        C{loseConnection} sends what was written, stops the producer and closes.
        """
        server = Server(Produced)
        self.assertEqual(await self.ask("", server, b"x"), b"bye")
        made: Any = server.made[0]
        await made.lost
        self.assertEqual(made.producer.log, ["stop"])

    async def test_haproxyHeader(self: Any) -> None:
        """
        A C{haproxy} server that is sent a wrong header closes, also with a
        web site behind it, which is a producer of its transport.
        """
        site = Site(Resource())
        self.patch(site, "startFactory", lambda: None)
        for factory in (Server(), Server(Produced), site):
            answer = await self.ask("haproxy:", factory, b"GET / HTTP/1.0\r\n\r\n")
            self.assertEqual(answer, b"")

    async def test_web(self: Any) -> None:
        """
        A web site closes behind an answer that asked for it.
        """
        site = Site(Resource())
        self.patch(site, "startFactory", lambda: None)
        answer = await self.ask("", site, b"GET / HTTP/1.0\r\n\r\n")
        self.assertIn(b" 404 ", answer)
        answer = await self.ask("", site, b"nonsense\r\n\r\n")
        self.assertIn(b" 400 ", answer)

    async def test_plainBytesToTLS(self: Any) -> None:
        """
        A TLS server whose client sends plain bytes closes, also with a web site
        in it.
        """
        options, _ = selfSigned(self.mktemp(), "localhost")
        site: Any = Site(Resource())
        self.patch(site, "startFactory", lambda: None)
        for inner in (Server(), Server(Produced), site):
            factory = TLSMemoryBIOFactory(options, False, inner)
            self.assertEqual(await self.ask("", factory, b"GET / HTTP/1.0\r\n\r\n"), b"")


class SDPClosingTests(ClosingTestsMixin, EndpointTestCase):
    """
    Over C{sdp}.
    """

    scheme = "sdp"


class TCPClosingTests(ClosingTestsMixin, EndpointTestCase):
    """
    Over C{tcp}, which shows that no more is asked than TCP does.
    """

    scheme = "tcp"
