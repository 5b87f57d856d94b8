"""
TLS of asyncio over SDP.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
from typing import Any

from twisted.trial.unittest import SkipTest

from tests.aio.case import HOST, LoopTestCase, Recorder
from tests.support.certificates import certificate
from twisted_ib.reactor import explain


class TLSTests(LoopTestCase):
    """
    Contexts of the C{ssl} module.
    """

    def setUp(self) -> None:
        """
        A certificate, and a context for each side.
        """
        super().setUp()
        made: Any = certificate("localhost")
        path = os.path.join(self.folder, "pem")
        with open(path, "wb") as file:
            file.write(made.dumpPEM())
        self.serverContext = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.serverContext.load_cert_chain(path)
        self.clientContext = ssl.create_default_context(cafile=path)

    def test_streams(self) -> None:
        """
        Both ends speak TLS from the start; bytes arrive both ways, and the end.
        """
        data = os.urandom(400_000)

        async def handle(reader: Any, writer: Any) -> None:
            writer.write(await reader.readexactly(len(data)))
            await writer.drain()
            writer.close()

        async def scenario() -> None:
            server = await asyncio.start_server(handle, HOST, 0, ssl=self.serverContext)
            port = server.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection(
                HOST, port, ssl=self.clientContext, server_hostname="localhost"
            )
            self.assertEqual(explain(writer).provider, "sdp")
            self.assertIn("TLS", writer.get_extra_info("cipher")[1])
            writer.write(data)
            await writer.drain()
            self.assertEqual(await reader.read(), data)
            writer.close()
            await writer.wait_closed()
            server.close()
            await server.wait_closed()

        self.play(scenario())

    def test_unknownName(self) -> None:
        """
        A certificate of another name ends the connection on both sides.
        """

        async def scenario() -> None:
            accepted = Recorder()
            server = await self.loop.create_server(lambda: accepted, HOST, 0, ssl=self.serverContext)
            port = server.sockets[0].getsockname()[1]
            with self.assertRaises(ssl.SSLCertVerificationError):
                await self.loop.create_connection(
                    Recorder, HOST, port, ssl=self.clientContext, server_hostname="elsewhere"
                )
            (port,) = server._ports
            while port.peers:
                await asyncio.sleep(0)
            server.close()

        self.play(scenario())

    def test_startTLS(self) -> None:
        """
        A connection is changed to TLS on both sides, after bytes without it.
        """

        class Upgrading(Recorder):
            def data_received(self, data: bytes) -> None:
                super().data_received(data)
                if data == b"STARTTLS":
                    self.transport.pause_reading()
                    self.transport.write(b"OK")
                    upgrade = loop.start_tls(self.transport, self, context, server_side=True)
                    upgrades.append(asyncio.ensure_future(upgrade))

        loop, context = self.loop, self.serverContext
        upgrades: list[Any] = []

        async def scenario() -> None:
            accepted = Upgrading()
            server = await self.loop.create_server(lambda: accepted, HOST, 0)
            port = server.sockets[0].getsockname()[1]
            transport, client = await self.loop.create_connection(Recorder, HOST, port)
            transport.write(b"STARTTLS")
            await client.has(2)
            secure = await self.loop.start_tls(
                transport, client, self.clientContext, server_hostname="localhost"
            )
            accepted.transport = await upgrades[0]
            secure.write(b"secret")
            self.assertEqual(await accepted.has(14), b"STARTTLSsecret")
            accepted.transport.write(b"answer")
            self.assertEqual(await client.has(8), b"OKanswer")
            self.assertEqual(explain(secure).provider, "sdp")
            secure.close()
            await asyncio.gather(client.called("lost"), accepted.called("lost"))
            server.close()

        self.play(scenario())

    def test_nameOfHost(self) -> None:
        """
        The name to verify is the host's, by name as by the rules, unless another is given.
        """

        async def scenario() -> None:
            for provider in (None, "sdp", "rdma", "tcp"):
                options: Any = {} if provider is None else {"provider": provider}
                server = await self.loop.create_server(Recorder, HOST, 0, ssl=self.serverContext, **options)
                port = server.sockets[0].getsockname()[1]
                for host, name, fits in (
                    ("localhost", None, True),
                    (HOST, None, False),
                    (HOST, "localhost", True),
                    ("localhost", "elsewhere", False),
                ):
                    connecting = self.loop.create_connection(
                        Recorder, host, port, ssl=self.clientContext, server_hostname=name, **options
                    )
                    if fits:
                        transport, _ = await connecting
                        transport.abort()
                    else:
                        with self.assertRaises(ssl.SSLCertVerificationError):
                            await connecting
                server.close()

        self.play(scenario())

    def test_handshakeTimeout(self) -> None:
        """
        A peer that does not begin to speak TLS is dropped when the server's time is up.
        """

        async def scenario() -> None:
            for options in ({}, {"provider": "sdp"}):
                server: Any = await self.loop.create_server(
                    Recorder, HOST, 0, ssl=self.serverContext, ssl_handshake_timeout=0.01, **options
                )
                port = server.sockets[0].getsockname()[1]
                _, silent = await self.loop.create_connection(Recorder, HOST, port, **options)
                await silent.called("lost")
                server.close()

        self.play(scenario())

    def test_shutdownTimeout(self) -> None:
        """
        A peer that does not answer the end of TLS is dropped when the server's time is up.
        """
        if sys.version_info < (3, 11):
            raise SkipTest("Python 3.11 has added this timeout")

        async def scenario() -> None:
            for options in ({}, {"provider": "sdp"}):
                accepted = Recorder()
                server: Any = await self.loop.create_server(
                    lambda accepted=accepted: accepted,
                    HOST,
                    0,
                    ssl=self.serverContext,
                    ssl_shutdown_timeout=0.01,
                    **options,
                )
                port = server.sockets[0].getsockname()[1]
                transport, client = await self.loop.create_connection(Recorder, HOST, port, **options)
                await client.called("made")
                answers, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
                tls = self.clientContext.wrap_bio(answers, sent, server_hostname="localhost")
                while True:
                    try:
                        tls.do_handshake()
                    except ssl.SSLWantReadError:
                        transport.write(sent.read())
                        await client.until(lambda client=client: client.data)
                        answers.write(client.data)
                        client.data.clear()
                    else:
                        break
                transport.write(sent.read())
                await accepted.called("made")
                accepted.transport.close()
                await accepted.called("lost")
                transport.abort()
                server.close()

        self.play(scenario())
