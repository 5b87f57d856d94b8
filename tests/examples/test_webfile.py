"""
Tests of C{examples/webfile.py} within one reactor.
"""

from __future__ import annotations

import gc
import mmap
import os
import shutil
import tempfile
from hashlib import sha256
from random import Random
from typing import Any
from weakref import WeakSet

from OpenSSL.SSL import Connection
from twisted.internet.endpoints import clientFromString, wrapClientTLS
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator
from twisted.internet.protocol import Protocol
from twisted.internet.ssl import CertificateOptions
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.web.client import Agent, HTTPConnectionPool, ResponseFailed, readBody
from twisted.web.http_headers import Headers
from twisted.web.server import Site
from zope.interface import implementer

from tests.examples.case import ExampleTestCase
from tests.examples.programs import load
from tests.support.certificates import selfSigned
from tests.support.waiting import becomes

webfile = load("webfile")

#: Bytes that are registered at a time here: so many that they do not go as a copy.
_PIECE = 1 << 20
#: More than are on their way at once.
_LONG = 10 * _PIECE + 1


class Leaver(Protocol):
    """
    Asks for a file, and goes when some of it has come.
    """

    left = False

    def connectionMade(self) -> None:
        transport: Any = self.transport
        transport.write(b"GET /long HTTP/1.1\r\nHost: a\r\n\r\n")

    def dataReceived(self, data: bytes) -> None:
        """
        Go.
        """
        transport: Any = self.transport
        transport.abortConnection()
        self.left = True


@implementer(IOpenSSLClientConnectionCreator)
class Trusting:
    """
    TLS for a client that believes any certificate.
    """

    def clientConnectionForTLS(self, protocol: Any) -> Any:
        """
        @return: what TLS is made of.
        """
        options: Any = CertificateOptions()
        return Connection(options.getContext(), None)


class WebFileTests(ExampleTestCase):
    """
    Files over SDP.
    """

    def setUp(self) -> None:
        """
        A folder with files.
        """
        super().setUp()
        self.patch(webfile, "PIECE_BYTES", _PIECE)
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.sent: list[int] = []
        self.most = 0
        maps: WeakSet[Any] = WeakSet()

        def mapped(*arguments: Any, **keywords: Any) -> Any:
            """
            Count the mappings that there are.
            """
            found = mmap.mmap(*arguments, **keywords)
            maps.add(found)
            self.most = max(self.most, len(maps))
            return found

        self.patch(webfile, "mmap", mapped)
        start = webfile.RegisteredProducer.start

        def started(producer: Any) -> None:
            self.sent.append(producer._length)
            start(producer)

        self.patch(webfile.RegisteredProducer, "start", started)

    def file(self, name: str, length: int) -> bytes:
        """
        Make a file.

        @return: what is in it.
        """
        content = Random(length).randbytes(length)
        with open(os.path.join(self.folder, name), "wb") as file:
            file.write(content)
        return content

    async def start(self, reactor: Any, scheme: str = "sdp") -> None:
        """
        Serve the folder, and have an Agent that keeps its connection.
        """
        endpoint = await self.listen(reactor, Site(webfile.RegisteredFile(self.folder)), scheme)
        self.pool = HTTPConnectionPool(reactor)
        connecting = webfile.OneEndpoint(clientFromString(reactor, endpoint))
        self.agent = Agent.usingEndpointFactory(reactor, connecting, self.pool)

    async def end(self, reactor: Any) -> None:
        """
        Close the connections; nothing may be left.
        """
        await self.pool.closeCachedConnections()
        await self.assertEmpty(reactor)

    async def get(self, name: str, method: bytes = b"GET", **headers: str) -> tuple[int, bytes]:
        """
        @return: status and body.
        """
        sent = Headers({key: [value] for key, value in headers.items()})
        response: Any = await self.agent.request(method, f"http://a/{name}".encode(), sent)
        return response.code, await readBody(response)

    def test_lengths(self) -> None:
        """
        Files of many lengths arrive as they are, over one connection; short ones are written.
        """
        least = webfile.LEAST_BYTES
        lengths = [0, 1, least - 1, least, _PIECE + 1, 4 * _PIECE, 5 * _PIECE, _LONG]

        async def steps(reactor: Any) -> None:
            """
            Get each, twice.
            """
            await self.start(reactor)
            for length in lengths:
                content = self.file(str(length), length)
                for _ in range(2):
                    code, body = await self.get(str(length))
                    self.assertNotIn("memory regions", self.inUse(reactor))
                    self.assertEqual((code, sha256(body).digest()), (200, sha256(content).digest()))
            await self.end(reactor)

        self.drive(steps)
        self.assertEqual(self.sent, [length for length in lengths[3:] for _ in range(2)])
        self.assertLessEqual(self.most, webfile.PIECES_AT_ONCE + 1)  # One is just sent.

    def test_otherRequests(self) -> None:
        """
        Ranges, heads and what is not there are as with any C{File}; so is all over TCP.
        """
        content = self.file("long", _LONG)

        async def steps(reactor: Any) -> None:
            """
            Ask for each.
            """
            for scheme in ("sdp", "direct"):
                await self.start(reactor, scheme)
                part = await self.get("long", range="bytes=300000-300009")
                self.assertEqual(part, (206, content[300000:300010]))
                self.assertEqual(await self.get("long", b"HEAD"), (200, b""))
                self.assertEqual((await self.get("none"))[0], 404)
                if scheme == "direct":
                    self.assertEqual((await self.get("long"))[1], content)
                await self.end(reactor)

        self.drive(steps)
        self.assertEqual(self.sent, [])

    def test_secure(self) -> None:
        """
        In TLS, around the connection too, a file is read and written: else all of it would be
        encrypted at once.
        """
        context, _ = selfSigned(self.mktemp(), "localhost")
        content = self.file("long", _LONG)

        async def steps(reactor: Any) -> None:
            """
            Get it.
            """
            site = TLSMemoryBIOFactory(context, False, Site(webfile.RegisteredFile(self.folder)), reactor)
            endpoint = await self.listen(reactor, site, "sdp")
            client = wrapClientTLS(Trusting(), clientFromString(reactor, endpoint))
            agent = Agent.usingEndpointFactory(reactor, webfile.OneEndpoint(client))
            response: Any = await agent.request(b"GET", b"http://a/long")
            self.assertEqual(await readBody(response) == content, True)
            await self.assertEmpty(reactor)

        self.drive(steps)
        self.assertEqual(self.sent, [])

    def test_clientGoes(self) -> None:
        """
        A client that goes in the middle leaves nothing registered, and nothing in the log.
        """
        self.file("long", 30 * _PIECE)

        async def steps(reactor: Any) -> None:
            """
            Go.
            """
            await self.start(reactor)
            leaver = await self.connect(reactor, self.endpoint, Leaver)
            await becomes(reactor, lambda: leaver.left)
            await self.end(reactor)

        self.drive(steps)
        gc.collect()
        self.assertEqual(self.sent, [30 * _PIECE])

    def test_shorter(self) -> None:
        """
        Of a file that has become shorter no client gets less than was said: the connection is
        aborted.
        """
        self.file("long", _LONG)

        async def steps(reactor: Any) -> None:
            """
            Make it shorter when it is opened.
            """
            await self.start(reactor)
            opened = webfile.RegisteredFile.openForReading

            def shortened(resource: Any) -> Any:
                """
                Shorten it.
                """
                os.truncate(resource.path, 5 * _PIECE)
                return opened(resource)

            self.patch(webfile.RegisteredFile, "openForReading", shortened)
            try:
                await self.get("long")
            except ResponseFailed:
                pass
            else:
                self.fail("it came to an end")
            await self.end(reactor)

        self.drive(steps)
        gc.collect()  # So that no Deferred's failure is found later.
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)


globals().update(WebFileTests.makeTestCaseClasses())
del WebFileTests
