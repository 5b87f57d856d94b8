"""
Streams by name.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
from typing import Any

from tests.aio.case import HOST, LoopTestCase, Recorder
from twisted_ib.aio import named
from twisted_ib.aio.connecting import withScope
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

    def test_backlog(self) -> None:
        """
        As many clients wait as by default in asyncio.
        """
        default = inspect.signature(asyncio.AbstractEventLoop.create_server).parameters["backlog"].default
        self.assertEqual(named._BACKLOG, default)

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

    def test_firstAddressRefuses(self) -> None:
        """
        A host's next address is tried if one refuses; if all do, the error is theirs, or names each.
        """

        async def scenario() -> None:
            for provider in PROVIDERS:
                server = await self.loop.create_server(Recorder, HOST, 0, provider=provider)
                port = server.sockets[0].getsockname()[1]
                self.resolve(("127.0.0.2", port), (HOST, port))
                transport, protocol = await self.loop.create_connection(
                    Recorder, "several", port, provider=provider, local_addr=(HOST, 0), all_errors=False
                )
                self.assertEqual(transport.get_extra_info("peername"), (HOST, port))
                transport.close()
                await protocol.called("lost")
                server.close()
                for hosts, several in ((("127.0.0.2", "127.0.0.3"), True), ((HOST,), False)):
                    self.resolve(*((host, port) for host in hosts))
                    with self.assertRaises(OSError) as refused:
                        await self.loop.create_connection(Recorder, "several", port, provider=provider)
                    said = str(refused.exception)
                    self.assertEqual(said.startswith("Multiple exceptions: "), several, said)
                    self.assertEqual(isinstance(refused.exception, ConnectionRefusedError), not several)
                    for host in hosts:
                        self.assertIn(host, said)

        self.play(scenario())

    def resolve(self, *addresses: tuple[Any, ...]) -> None:
        """
        Have these socket addresses for all names.
        """

        async def getaddrinfo(host: Any, port: Any, **options: Any) -> list[Any]:
            return [(socket.AF_UNSPEC, options["type"], 0, "", address) for address in addresses]

        self.loop.getaddrinfo = getaddrinfo

    def test_scoped(self) -> None:
        """
        The zone of a link-local address (RFC 4007 section 11) goes with it, by name and by the rules.
        """
        self.setRules("use sdp client * *:*\n")

        async def scenario() -> None:
            for given, host in (
                (("fe80::5", 1, 0, 3), "fe80::5%3"),
                (("fe80::5%lo", 1, 0, 3), "fe80::5%lo"),
                (("fd00::5", 1, 0, 0), "fd00::5"),
            ):
                self.assertEqual(withScope(given), (host, 1))
                self.resolve(given)
                for provider in PROVIDERS:
                    with self.assertRaises(OSError) as refused:
                        await self.loop.create_connection(Recorder, "far", 1, provider=provider)
                    self.assertIn(host, str(refused.exception))

        self.play(scenario())

    def test_IPv6(self) -> None:
        """
        Both providers serve IPv6 addresses.
        """

        async def scenario() -> None:
            for provider in PROVIDERS:
                server = await self.loop.create_server(Recorder, "::1", 0, provider=provider)
                port = server.sockets[0].getsockname()[1]
                transport, _ = await self.loop.create_connection(Recorder, "::1", port, provider=provider)
                self.assertEqual(transport.get_extra_info("peername")[:2], ("::1", port))
                transport.abort()
                server.close()

        self.play(scenario())

    def test_hosts(self) -> None:
        """
        A server listens on one host, several, or all IPv4 addresses, and draws a number if none is given.
        """

        async def scenario() -> None:
            for provider in PROVIDERS:
                for host, names in (
                    (None, ["0.0.0.0"]),
                    ("", ["0.0.0.0"]),
                    (HOST, [HOST]),
                    ([HOST, "127.0.0.2", HOST], [HOST, "127.0.0.2"]),
                ):
                    server = await self.loop.create_server(Recorder, host, provider=provider)
                    bound = [each.getsockname() for each in server.sockets]
                    self.assertEqual([name[0] for name in bound], names)
                    self.assertGreater(min(name[1] for name in bound), 1023)
                    for name, number in bound:
                        transport, _ = await self.loop.create_connection(
                            Recorder, HOST if name == "0.0.0.0" else name, number, provider=provider
                        )
                        transport.abort()
                    server.close()

        self.play(scenario())

    def test_options(self) -> None:
        """
        A stream of messages is never delayed and has no probes, whatever is asked for; both have an orderly
        close and an abort that discards.
        """

        async def scenario() -> None:
            for provider in PROVIDERS:
                made = Recorder()
                server = await self.loop.create_server(lambda made=made: made, HOST, 0, provider=provider)
                port = server.sockets[0].getsockname()[1]
                transport, client = await self.loop.create_connection(Recorder, HOST, port, provider=provider)
                skt = transport.get_extra_info("socket")
                self.assertEqual(skt.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), 0)
                skt.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                asked = skt.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                self.assertEqual(asked, int(provider == "sdp"))
                skt.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
                self.assertEqual(
                    skt.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY), int(provider == "rdma")
                )
                transport.abort()
                await asyncio.gather(client.called("lost"), made.called("lost"))
                self.assertEqual(client.log, ["made", ("lost", None)])
                reason = made.log[-1][1]
                # Messages have no half-close: at the peer an abort is seen as such.
                self.assertEqual(type(reason), type(None) if provider == "sdp" else ConnectionResetError)
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
