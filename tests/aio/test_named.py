"""
Streams by name.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from tests.aio.case import HOST, LoopTestCase, Recorder
from twisted_ib.reactor import explain

PROVIDERS = ("sdp", "rdma")


class NamedTests(LoopTestCase):
    """
    C{provider} of the connecting and listening calls, under rules that leave everything to TCP.
    """

    rules = "use tcp server * *:*\nuse tcp client * *:*\n"

    def test_streams(self) -> None:
        """
        asyncio's streams go where they are told to; all bytes arrive both ways.
        """
        data = os.urandom(700_000)

        async def handle(reader: Any, writer: Any) -> None:
            writer.write(await reader.readexactly(len(data)))
            await writer.drain()
            writer.write(bytearray(b"end"))
            writer.close()
            await writer.wait_closed()

        async def scenario() -> None:
            for provider in PROVIDERS:
                server = await asyncio.start_server(handle, HOST, 0, provider=provider)  # type: ignore[call-arg]
                self.assertTrue(server.is_serving())
                host, port = server.sockets[0].getsockname()
                self.assertEqual(host, HOST)
                reader, writer = await asyncio.open_connection("localhost", port, provider=provider)
                self.assertEqual(explain(writer).provider, provider)
                self.assertEqual(writer.get_extra_info("peername"), (HOST, port))
                self.assertEqual(writer.can_write_eof(), provider == "sdp")
                writer.write(memoryview(data))
                await writer.drain()
                self.assertEqual(await reader.read(), data + b"end")
                writer.close()
                await writer.wait_closed()
                server.close()
                await server.wait_closed()
                with self.assertRaises(ConnectionRefusedError):
                    await asyncio.open_connection(HOST, port, provider=provider)

        self.play(scenario())

    def test_messagesHaveNoHalfClose(self) -> None:
        """
        C{write_eof} says so.
        """

        async def scenario() -> None:
            server = await self.loop.create_server(Recorder, HOST, 0, provider="rdma")
            port = server.sockets[0].getsockname()[1]
            transport, protocol = await self.loop.create_connection(Recorder, HOST, port, provider="rdma")
            skt = transport.get_extra_info("socket")
            self.assertTrue(skt.getsockopt(6, 1))
            self.assertRaises(NotImplementedError, transport.write_eof)
            transport.close()
            await protocol.called("lost")
            server.close()

        self.play(scenario())

    def test_paused(self) -> None:
        """
        A server that does not serve yet lets its clients wait.
        """

        async def scenario() -> None:
            for provider in PROVIDERS:
                server = await self.loop.create_server(
                    Recorder, HOST, 0, provider=provider, start_serving=False
                )
                port = server.sockets[0].getsockname()[1]
                task = asyncio.ensure_future(
                    self.loop.create_connection(Recorder, HOST, port, provider=provider)
                )
                done, _ = await asyncio.wait([task], timeout=0.05)
                self.assertEqual(done, set())
                await server.start_serving()
                transport, _ = await task
                transport.abort()
                server.close()

        self.play(scenario())

    def test_wrong(self) -> None:
        """
        There are three providers; two make their own sockets, and need a host.
        """

        async def scenario() -> None:
            for arguments, options in (
                ((HOST, 1), {"provider": "udp"}),
                ((None, None), {"provider": "sdp"}),
                ((None, None), {"provider": "rdma", "sock": object()}),
            ):
                with self.assertRaises(ValueError):
                    await self.loop.create_connection(Recorder, *arguments, **options)
            with self.assertRaises(ValueError):
                await self.loop.create_server(Recorder, HOST, 0, provider="udp")
            server = await self.loop.create_server(Recorder, HOST, 0, provider="sdp")
            port = server.sockets[0].getsockname()[1]
            with self.assertRaises(OSError):
                await self.loop.create_server(Recorder, HOST, port, provider="sdp")
            server.close()

        self.play(scenario())


class DirectTests(LoopTestCase):
    """
    C{provider="tcp"}, without rules.
    """

    def test_direct(self) -> None:
        """
        It avoids the switch on both sides.
        """

        async def scenario() -> None:
            for mine, theirs, rule, carried in (
                ("tcp", "tcp", "explicit", "tcp"),
                ("tcp", None, "default", "tcp"),
                (None, "tcp", "explicit", "tcp"),
                (None, None, "default", "sdp"),
            ):
                server = await self.loop.create_server(Recorder, HOST, 0, provider=mine)
                port = server.sockets[0].getsockname()[1]
                transport, _ = await self.loop.create_connection(Recorder, HOST, port, provider=theirs)
                why = explain(transport)
                self.assertEqual((why.rule, why.provider), (rule, carried))
                transport.abort()
                server.close()

        self.play(scenario())
