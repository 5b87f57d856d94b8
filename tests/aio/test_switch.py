"""
The event loop's connections and servers go through the switch.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any

from twisted.internet.protocol import Factory

from tests.aio.case import HOST, LoopTestCase, Recorder
from twisted_ib import limits
from twisted_ib.hca.device.registry import addDevice, removeDevice
from twisted_ib.reactor import explain
from twisted_ib.sdp.port import listenSDP


def rule(verdict: str) -> str:
    """
    @return: Rules with one verdict for everything.
    """
    return f"use {verdict} server * *:*\nuse {verdict} client * *:*\n"


class SwitchTests(LoopTestCase):
    """
    Decisions.
    """

    async def serve(self, **options: Any) -> tuple[Any, int]:
        """
        @return: A server, and its port number.
        """
        server = await self.loop.create_server(Recorder, HOST, 0, **options)
        return server, server.sockets[0].getsockname()[1]

    def test_nothing(self) -> None:
        """
        A program that does not connect has no reactor.
        """
        self.play(asyncio.sleep(0))
        self.assertIsNone(self.loop._reactor)

    def test_sdpAlone(self) -> None:
        """
        Under C{sdp} there is no TCP: neither on the server's side, nor for a client without an SDP listener.
        """
        self.setRules(rule("sdp"))

        async def scenario() -> None:
            server, port = await self.serve()
            transport, _ = await self.loop.create_connection(Recorder, HOST, port)
            self.assertEqual(explain(transport).provider, "sdp")
            with socket.socket() as plain, self.assertRaises(ConnectionRefusedError):
                plain.connect((HOST, port))
            server.close()
            with self.assertRaises(ConnectionRefusedError) as refused:
                await self.loop.create_connection(Recorder, HOST, port)
            self.assertIn("SDP", str(refused.exception))
            transport.abort()

        self.play(scenario())

    def test_plainServer(self) -> None:
        """
        A plain server is reached over TCP, and the reason is known; a plain client is served.
        """

        async def scenario() -> None:
            with socket.create_server((HOST, 0)) as plain:
                port = plain.getsockname()[1]
                transport, _ = await self.loop.create_connection(Recorder, HOST, port)
                why = explain(transport)
                self.assertEqual((why.provider, why.fallback.kind), ("tcp", "no_listener"))
                transport.abort()
            server, port = await self.serve()
            with socket.socket() as client:
                client.setblocking(False)
                await self.loop.sock_connect(client, (HOST, port))
                await self.loop.sock_sendall(client, b"x")
                client.shutdown(socket.SHUT_WR)
                self.assertEqual(await self.loop.sock_recv(client, 1), b"")
            server.close()

        self.play(scenario())

    def test_explained(self) -> None:
        """
        Both sides of a TCP connection know the rule.
        """
        self.setRules(rule("tcp"))

        async def scenario() -> None:
            made: asyncio.Future[Any] = self.loop.create_future()
            server = await asyncio.start_server(lambda _, writer: made.set_result(writer), HOST, 0)
            port = server.sockets[0].getsockname()[1]
            _, writer = await asyncio.open_connection(HOST, port)
            why = explain(writer)
            self.assertEqual((why.provider, why.rule.rpartition(":")[2]), ("tcp", "2"))
            why = explain(await made)
            self.assertEqual((why.provider, why.rule.rpartition(":")[2]), ("tcp", "1"))
            writer.close()
            server.close()

        self.play(scenario())

    def test_localAddress(self) -> None:
        """
        A bound local number is that of the SDP connection, and reserved in TCP while it lasts.
        """

        async def scenario() -> None:
            server, port = await self.serve()
            with socket.create_server((HOST, 0)) as probe:
                number = probe.getsockname()[1]
            transport, _ = await self.loop.create_connection(Recorder, HOST, port, local_addr=(HOST, number))
            self.assertEqual(explain(transport).provider, "sdp")
            self.assertEqual(transport.get_extra_info("sockname"), (HOST, number))
            with socket.socket() as other, self.assertRaises(OSError) as busy:
                other.bind((HOST, number))
            self.assertEqual(busy.exception.errno, errno.EADDRINUSE)
            transport.abort()
            server.close()

        self.play(scenario())

    def test_drawn(self) -> None:
        """
        A number that SDP has in use is drawn again, so often and no more; one that was asked for is an error.
        """
        self.setRules(rule("both"))
        drawn: list[int] = []
        inUse: dict[int, Any] = {}
        bind = socket.socket.bind

        def busyBind(skt: Any, address: Any) -> None:
            bind(skt, address)
            if skt.family == socket.AF_INET and len(drawn) < busy:
                number = skt.getsockname()[1]
                drawn.append(number)
                # The kernel may draw a number again.
                if number not in inUse:
                    inUse[number] = listenSDP(self.loop.reactor, number, Factory(), interface=HOST)

        async def scenario() -> None:
            nonlocal busy
            server, port = await self.serve()
            self.assertEqual(len(drawn), 2)
            self.assertNotIn(port, drawn)
            server.close()
            busy = 2 + limits.PORT_ATTEMPTS
            with self.assertRaises(OSError) as refused:
                await self.serve()
            self.assertEqual(refused.exception.errno, errno.EADDRINUSE)
            self.assertEqual(len(drawn), busy)
            with self.assertRaises(OSError) as refused:
                await self.loop.create_server(Recorder, HOST, drawn[0])
            self.assertEqual(refused.exception.errno, errno.EADDRINUSE)
            for each in inUse.values():
                each.stopListening()

        busy = 2
        self.patch(socket.socket, "bind", busyBind)
        self.play(scenario())

    def test_devices(self) -> None:
        """
        A server listens on a device that is added later, and leaves one that goes.
        """

        async def scenario() -> None:
            server, _ = await self.serve()
            (port,) = server._ports
            self.assertEqual(port.why.device, "shm0")
            addDevice("more", "loopback")
            self.assertEqual(port.why.device, "shm0,more")
            removeDevice("more")
            self.assertEqual((port.why.device, port.why.provider), ("shm0", "both"))
            server.close()
            self.assertEqual(port.sdpListeners, ())

        self.play(scenario())

    def test_factoryRaises(self) -> None:
        """
        A client's factory that raises leaves no connection behind.
        """

        def broken() -> Any:
            raise ZeroDivisionError

        async def scenario() -> None:
            made = Recorder()
            server = await self.loop.create_server(lambda: made, HOST, 0)
            port = server.sockets[0].getsockname()[1]
            with self.assertRaises(ZeroDivisionError):
                await self.loop.create_connection(broken, HOST, port)
            await made.called("lost")
            server.close()

        self.play(scenario())

    def test_cancelled(self) -> None:
        """
        A cancelled connect ends its attempt.
        """

        async def scenario() -> None:
            server, port = await self.serve()
            task = asyncio.ensure_future(self.loop.create_connection(Recorder, HOST, port))
            await asyncio.sleep(0)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            transport, _ = await self.loop.create_connection(Recorder, HOST, port)
            transport.abort()
            server.close()

        self.play(scenario())
