"""
The contract of asyncio's transports, over SDP and, to see that the tests ask for nothing unusual, over TCP.
"""

from __future__ import annotations

import asyncio
import asyncio.log
import contextlib
import contextvars
import io
import os
import select
import socket
import sys
import time
from collections import Counter
from functools import partial
from typing import Any

from twisted.trial.unittest import SkipTest

from tests.aio.case import HOST, LoopTestCase, Recorder
from twisted_ib.errors import WrongThreadError
from twisted_ib.hca.device.form import compiledModules

#: Calls of Python functions from the write of a message to its arrival, with both ends in one event loop and
#: without polling, whose calls depend on the time.
CALLS_PER_MESSAGE = 15
POLLING = {"spin", "pending", "_pending", "<lambda>", "time"}


def abort(transport: Any) -> None:
    """
    Abort, whatever the transport has come to.
    """
    # asyncio's own raises this where a close has waited for its buffer.
    with contextlib.suppress(AttributeError):
        transport.abort()


class TransportContract:
    """
    Two protocols, a client's and a server's.

    @cvar provider: That of the connections.
    @cvar aborted: The class of the peer's reason after an abort.
    @cvar slow: What a report of a slow callback names.
    """

    provider: str
    aborted: type
    slow: str

    async def pair(self: Any, **options: Any) -> tuple[Recorder, Recorder]:
        """
        @return: The protocols of the two sides.
        """
        made: asyncio.Future[Recorder] = self.loop.create_future()

        class Accepted(Recorder):
            def connection_made(self, transport: Any) -> None:
                super().connection_made(transport)
                made.set_result(self)

        self.server = await self.loop.create_server(Accepted, HOST, 0, **options)
        self.port = self.server.sockets[0].getsockname()[1]
        transport, client = await self.loop.create_connection(Recorder, HOST, self.port)
        self.addCleanup(abort, transport)
        self.assertIs(client.transport, transport)
        self.assertEqual(transport.get_extra_info("why").provider, self.provider)
        server = await made
        self.addCleanup(abort, server.transport)
        return client, server

    async def connected(self: Any, serving: Any) -> tuple[Any, Recorder]:
        """
        @param serving: makes the server's protocol.
        @return: the client's transport and protocol.
        """
        server = await self.loop.create_server(serving, HOST, 0)
        self.addCleanup(server.close)
        transport, client = await self.loop.create_connection(
            Recorder, HOST, server.sockets[0].getsockname()[1]
        )
        self.addCleanup(transport.abort)
        return transport, client

    def test_data(self: Any) -> None:
        """
        Bytes arrive, of all types that hold bytes, in order; no other type is taken.
        """

        async def scenario() -> None:
            client, server = await self.pair()
            write = client.transport.write
            write(b"one ")
            write(bytearray(b"two "))
            write(memoryview(b"three "))
            write(b"")
            client.transport.writelines([b"four ", b"five"])
            self.assertEqual(await server.has(23), b"one two three four five")
            for wrong in ("text", 1, None):
                self.assertRaises(TypeError, write, wrong)
            large = os.urandom(3_000_000)
            server.transport.write(large)
            self.assertEqual(await client.has(len(large)), large)

        self.play(scenario())

    def test_pooled(self: Any) -> None:
        """
        The socket of an idle connection can be asked whether it is readable, as pools of connections do: it
        is not, until the peer ends it; then it is, or has no descriptor any more.
        """

        def isReadable(protocol: Recorder) -> bool:
            number = protocol.transport.get_extra_info("socket").fileno()
            if number < 0:
                return True
            poller = select.poll()
            poller.register(number, select.POLLIN)
            return bool(poller.poll(0))

        async def scenario() -> None:
            client, server = await self.pair()
            server.transport.write(b"answer")
            self.assertEqual(await client.has(6), b"answer")
            self.assertFalse(isReadable(client))
            self.assertFalse(isReadable(client))
            self.assertFalse(isReadable(server))
            client.keepOpen = True
            server.transport.write_eof()
            await client.called("eof")
            self.assertTrue(isReadable(client))
            client.transport.abort()
            await client.called("lost")
            self.assertTrue(isReadable(client))

        self.play(scenario())

    def test_order(self: Any) -> None:
        """
        C{connection_made} is first, C{connection_lost} last and once; neither comes within a call.
        """

        async def scenario() -> None:
            client, server = await self.pair()
            client.transport.write(b"x")
            client.transport.close()
            self.assertTrue(client.transport.is_closing())
            self.assertEqual(client.log, ["made"])
            await client.called("lost")
            await server.called("lost")
            self.assertEqual(client.log, ["made", ("lost", None)])
            self.assertEqual((server.data, server.log), (b"x", ["made", "eof", ("lost", None)]))
            client.transport.close()
            client.transport.abort()
            await asyncio.sleep(0)
            self.assertEqual(len(client.log), 2)

        self.play(scenario())

    def test_writeAfterClose(self: Any) -> None:
        """
        Bytes written after a close that had nothing to wait for do not arrive.
        """

        async def scenario() -> None:
            client, server = await self.pair()
            client.transport.write(b"first")
            await server.has(5)
            while client.transport.get_write_buffer_size():
                await asyncio.sleep(0)
            client.transport.close()
            client.transport.write(b"late")
            await server.called("lost")
            self.assertEqual(server.data, b"first")

        self.play(scenario())

    def test_halfClose(self: Any) -> None:
        """
        After C{write_eof} the other direction goes on, if the peer keeps it open.
        """

        async def scenario() -> None:
            client, server = await self.pair()
            server.keepOpen = True
            self.assertTrue(client.transport.can_write_eof())
            client.transport.write(b"question")
            client.transport.write_eof()
            self.assertRaises(RuntimeError, client.transport.write, b"more")
            await server.called("eof")
            self.assertEqual(server.data, b"question")
            server.transport.write(b"answer")
            self.assertEqual(await client.has(6), b"answer")
            server.transport.close()
            await client.called("lost")
            self.assertEqual(client.log, ["made", "eof", ("lost", None)])

        self.play(scenario())

    def test_abort(self: Any) -> None:
        """
        An abort discards what waits.
        """

        async def scenario() -> None:
            client, server = await self.pair()
            server.transport.pause_reading()
            client.transport.write(bytes(10_000_000))
            client.transport.abort()
            self.assertTrue(client.transport.is_closing())
            await client.called("lost")
            self.assertEqual(client.log[-1], ("lost", None))
            self.assertEqual(client.transport.get_write_buffer_size(), 0)
            server.transport.resume_reading()
            await server.called("lost")
            reason = server.log[-1][1]
            self.assertIsInstance(reason, self.aborted)
            self.assertLess(len(server.data), 10_000_000)

        self.play(scenario())

    def test_reading(self: Any) -> None:
        """
        A paused transport delivers nothing.
        """

        async def scenario() -> None:
            client, server = await self.pair()
            transport = server.transport
            self.assertTrue(transport.is_reading())
            transport.pause_reading()
            transport.pause_reading()
            self.assertFalse(transport.is_reading())
            client.transport.write(b"wait")
            server.transport.write(b"echo")
            await client.has(4)
            self.assertEqual(server.data, b"")
            transport.resume_reading()
            transport.resume_reading()
            self.assertTrue(transport.is_reading())
            self.assertEqual(await server.has(4), b"wait")
            transport.pause_reading()
            client.transport.write(b"unread")
            server.transport.write(b"more")
            await client.has(8)
            transport.close()
            self.assertFalse(transport.is_reading())
            transport.resume_reading()
            self.assertFalse(transport.is_reading())
            await server.called("lost")
            self.assertEqual(server.data, b"wait")

        self.play(scenario())

    def test_flowControl(self: Any) -> None:
        """
        A writer is paused above the high-water mark, and resumed when the peer reads.
        """

        async def scenario() -> None:
            client, server = await self.pair()
            transport = client.transport
            self.assertEqual(transport.get_write_buffer_limits(), (16384, 65536))
            transport.set_write_buffer_limits(high=1000, low=10)
            self.assertEqual(transport.get_write_buffer_limits(), (10, 1000))
            self.assertRaises(ValueError, transport.set_write_buffer_limits, high=1, low=2)
            server.transport.pause_reading()
            sent = 0
            while transport.get_write_buffer_size() <= 1000:
                transport.write(bytes(100_000))
                sent += 100_000
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            self.assertEqual(client.log[-1], "pause")
            client.log.clear()
            server.transport.resume_reading()
            await client.called("resume")
            await server.has(sent)
            self.assertEqual(transport.get_write_buffer_size(), 0)

        self.play(scenario())

    def test_firstWriteFills(self: Any) -> None:
        """
        A first write that the peer does not take at once pauses the writer before it returns.
        """

        async def scenario() -> None:
            client, server = await self.pair()
            server.transport.pause_reading()
            client.transport.write(b"few")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            self.assertEqual(client.log, ["made"])
            client.transport.write(bytes(20_000_000))
            self.assertEqual(client.log, ["made", "pause"])
            server.transport.resume_reading()
            await client.called("resume")
            await server.has(20_000_003)

        self.play(scenario())

    def test_extraInfo(self: Any) -> None:
        """
        Both sides know the addresses of both, and have a socket with options.
        """

        async def scenario() -> None:
            client, server = await self.pair()
            info = client.transport.get_extra_info
            self.assertEqual(info("peername"), (HOST, self.port))
            self.assertEqual(info("sockname"), server.transport.get_extra_info("peername"))
            self.assertEqual(server.transport.get_extra_info("sockname"), (HOST, self.port))
            self.assertEqual(info("nothing", 7), 7)
            skt = info("socket")
            self.assertEqual((skt.family, skt.type), (socket.AF_INET, socket.SOCK_STREAM))
            self.assertEqual(skt.getpeername(), (HOST, self.port))
            self.assertTrue(skt.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            skt.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.assertTrue(skt.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

        self.play(scenario())

    def test_protocols(self: Any) -> None:
        """
        A transport changes its protocol; one with buffers gets its data in them.
        """

        class Buffered(asyncio.BufferedProtocol):
            def __init__(self) -> None:
                self.buffer = bytearray(7)
                self.data = b""

            def get_buffer(self, sizehint: int) -> bytearray:
                return self.buffer

            def buffer_updated(self, count: int) -> None:
                self.data += self.buffer[:count]
                client.transport.write(b"!") if len(self.data) == 100 else None

        async def scenario() -> None:
            nonlocal client
            client, server = await self.pair()
            buffered = Buffered()
            server.transport.set_protocol(buffered)
            self.assertIs(server.transport.get_protocol(), buffered)
            client.transport.write(bytes(range(100)))
            while len(buffered.data) < 100:
                await asyncio.sleep(0)
            self.assertEqual(buffered.data, bytes(range(100)))

        client: Any = None
        self.play(scenario())

    def test_ownMethods(self: Any) -> None:
        """
        A protocol that gives itself methods, in C{connection_made} and later, has the latest called, at both
        ends.
        """
        names = ("data_received", "eof_received", "connection_lost", "pause_writing", "resume_writing")

        class Changing(Recorder):
            def connection_made(self, transport: Any) -> None:
                super().connection_made(transport)
                self.change()

            def change(self) -> None:
                self.heard: list[str] = []
                for name in names:
                    setattr(self, name, partial(self.hear, self.heard, name))

            def hear(self, heard: list[str], name: str, data: Any = None) -> None:
                heard.append(name)
                self._changed.set()
                if data == b"ask":
                    self.transport.write(b"answer")

            async def hears(self, name: str) -> None:
                await self.until(lambda: name in self.heard)

        async def scenario() -> None:
            serving = Changing()
            server = await self.loop.create_server(lambda: serving, HOST, 0)
            self.addCleanup(server.close)
            port = server.sockets[0].getsockname()[1]
            transport, client = await self.loop.create_connection(Changing, HOST, port)
            self.addCleanup(abort, transport)
            for _ in range(2):
                transport.write(b"ask")
                await client.hears("data_received")
                self.assertEqual(serving.heard, ["data_received"])
                client.change()
                serving.change()
            transport.set_write_buffer_limits(high=1)
            transport.write(bytes(20_000_000))
            await client.hears("pause_writing")
            await client.hears("resume_writing")
            transport.write_eof()
            await client.hears("connection_lost")
            await serving.hears("connection_lost")
            self.assertEqual(serving.heard[-2:], ["eof_received", "connection_lost"])
            for each in client, serving:
                self.assertEqual((each.log, each.data), (["made"], b""))

        self.play(scenario())

    def test_exceptions(self: Any) -> None:
        """
        An exception of the protocol goes to the event loop's handler, and ends the connection.
        """

        async def scenario() -> None:
            for method in ("data_received", "eof_received"):
                client, server = await self.pair()

                class Broken(Recorder):
                    pass

                def broken(self: Any, *arguments: Any) -> None:
                    raise ZeroDivisionError

                setattr(Broken, method, broken)
                protocol = Broken()
                server.transport.set_protocol(protocol)
                client.transport.write(b"x")
                client.transport.write_eof()
                await protocol.called("lost")
                self.assertIsInstance(protocol.log[-1][1], ZeroDivisionError)
                (error,) = self.errors
                self.assertEqual(error["message"], f"Fatal error: protocol.{method}() call failed.")
                self.assertIs(error["transport"], server.transport)
                self.errors.clear()

        self.play(scenario())

    def test_leaves(self: Any) -> None:
        """
        C{SystemExit} of a protocol ends the event loop, as in its other callbacks.
        """

        class Leaving(Recorder):
            def data_received(self, data: bytes) -> None:
                raise SystemExit(3)

        async def scenario() -> None:
            client, server = await self.pair()
            server.transport.set_protocol(Leaving())
            client.transport.write(b"x")
            await client.called("lost")

        task = self.loop.create_task(scenario())
        self.assertRaises(SystemExit, self.loop.run_until_complete, task)
        task.cancel()
        self.assertRaises(asyncio.CancelledError, self.loop.run_until_complete, task)

    def test_context(self: Any) -> None:
        """
        A server's protocols are called in the context in which it was made.
        """
        variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)
        seen = []

        class Seeing(Recorder):
            def data_received(self, data: bytes) -> None:
                seen.append(variable.get())
                super().data_received(data)

        async def scenario() -> None:
            variable.set(5)
            server = await self.loop.create_server(lambda: protocol, HOST, 0)
            protocol = Seeing()
            port = server.sockets[0].getsockname()[1]
            variable.set(6)
            transport, _ = await self.loop.create_connection(Recorder, HOST, port)
            transport.write(b"x")
            await protocol.has(1)
            transport.abort()

        self.play(scenario())
        self.assertEqual(seen, [5])

    def test_sendfile(self: Any) -> None:
        """
        C{loop.sendfile} sends a file.
        """
        path = os.path.join(self.folder, "file")
        data = os.urandom(500_000)
        with open(path, "wb") as file:
            file.write(data)

        async def scenario() -> None:
            client, server = await self.pair()
            with open(path, "rb") as file:
                self.assertEqual(await self.loop.sendfile(client.transport, file), len(data))
            client.transport.write(b"end")
            self.assertEqual(await server.has(len(data) + 3), data + b"end")

        self.play(scenario())

    def test_window(self: Any) -> None:
        """
        A BufferedProtocol that pauses when its room is full gets the rest when it goes on, and the end behind
        it; what is left when it closes is unread, and the end a reset.
        """

        class Window(asyncio.BufferedProtocol):
            def __init__(self) -> None:
                self.room, self.have, self.got, self.most = bytearray(100), 0, b"", 1000
                self.ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

            def connection_made(self, transport: Any) -> None:
                self.transport = transport

            def get_buffer(self, sizehint: int) -> memoryview:
                return memoryview(self.room)[self.have :]

            def buffer_updated(self, nbytes: int) -> None:
                self.have += nbytes
                if self.have == len(self.room):
                    self.transport.pause_reading()
                    asyncio.get_running_loop().call_soon(self.empty)

            def empty(self) -> None:
                self.got += bytes(self.room[: self.have])
                self.have = 0
                if len(self.got) >= self.most:
                    self.transport.close()
                else:
                    self.transport.resume_reading()

            def eof_received(self) -> None:
                self.got += bytes(self.room[: self.have])

            def connection_lost(self, exc: BaseException | None) -> None:
                self.ended.set_result(exc)

        async def scenario() -> None:
            made: list[Window] = []

            def make() -> Window:
                made.append(Window())
                return made[-1]

            data = os.urandom(350)
            for most in (1000, 200):
                transport, client = await self.connected(make)
                transport.pause_reading()
                transport.write(data)
                if most == 1000:
                    transport.write_eof()
                while not made:
                    await asyncio.sleep(0)
                window = made.pop()
                window.most = most
                self.assertIsNone(await window.ended)
                self.assertEqual(window.got, data if most == 1000 else data[:200])
                transport.resume_reading()
                await client.called("lost")
                reason = client.log[-1][1]
                self.assertEqual(isinstance(reason, ConnectionResetError), most == 200, client.log)

        self.play(scenario())

    def test_changedWithin(self: Any) -> None:
        """
        A BufferedProtocol that hands over to another protocol: what it did not take is the other's.
        """

        class First(asyncio.BufferedProtocol):
            def connection_made(self, transport: Any) -> None:
                self.transport = transport

            def get_buffer(self, sizehint: int) -> bytearray:
                return bytearray(5)

            def buffer_updated(self, nbytes: int) -> None:
                second.connection_made(self.transport)
                self.transport.set_protocol(second)

        async def scenario() -> None:
            nonlocal second
            second = Recorder()
            transport, _ = await self.connected(First)
            transport.write(b"firstsecond")
            self.assertEqual(await second.has(6), b"second")
            second.transport.abort()

        second: Any = None
        self.play(scenario())

    def test_socketShutdown(self: Any) -> None:
        """
        C{shutdown} of the socket behind a transport: the peer hears the end, and a write fails.
        """

        async def scenario() -> None:
            for how in (socket.SHUT_WR, socket.SHUT_RDWR):
                client, server = await self.pair()
                server.keepOpen = True
                client.transport.get_extra_info("socket").shutdown(how)
                await server.called("eof")
                if how == socket.SHUT_RDWR:
                    await client.called("eof")
                else:
                    server.transport.write(b"still")
                    self.assertEqual(await client.has(5), b"still")
                    client.transport.write(b"lost")
                await client.called("lost")
                reason = client.log[-1][1]
                self.assertEqual(isinstance(reason, BrokenPipeError), how == socket.SHUT_WR, reason)
                self.assertRaises(OSError, client.transport.get_extra_info("socket").shutdown, how)

        self.play(scenario())

    def test_socketShutdownReading(self: Any) -> None:
        """
        C{shutdown} of the reading half is an end for this side only, which may write on.
        """

        async def scenario() -> None:
            client, server = await self.pair()
            client.keepOpen = True
            client.transport.get_extra_info("socket").shutdown(socket.SHUT_RD)
            await client.called("eof")
            client.transport.write(b"still")
            self.assertEqual(await server.has(5), b"still")
            client.transport.write_eof()
            await server.called("lost")
            self.assertEqual(server.log, ["made", "eof", ("lost", None)])

        self.play(scenario())

    def test_socketShutdownAgain(self: Any) -> None:
        """
        C{shutdown} of what has ended already changes nothing: after another, after C{write_eof}; nor do bytes
        that are written between a close and the end.
        """

        async def scenario() -> None:
            for first in ("shutdown", "write_eof"):
                client, server = await self.pair()
                server.keepOpen = True
                shutdown = client.transport.get_extra_info("socket").shutdown
                if first == "shutdown":
                    shutdown(socket.SHUT_WR)
                else:
                    client.transport.write_eof()
                shutdown(socket.SHUT_WR)
                if first == "write_eof":
                    self.assertRaises(RuntimeError, client.transport.write, b"x")
                await server.called("eof")
                server.transport.write(b"answer")
                self.assertEqual(await client.has(6), b"answer")
                client.transport.close()
                if first == "shutdown":
                    client.transport.write(b"x")
                await client.called("lost")
                self.assertEqual((client.log, server.log), (["made", ("lost", None)], ["made", "eof"]))

        self.play(scenario())

    def test_shutdownThenClose(self: Any) -> None:
        """
        After a close nobody hears of the end that C{shutdown} made.
        """

        async def scenario() -> None:
            client, server = await self.pair()
            client.transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
            client.transport.close()
            await asyncio.gather(client.called("lost"), server.called("lost"))
            self.assertEqual(client.log, ["made", ("lost", None)])

        self.play(scenario())

    def test_writeWhileClosing(self: Any) -> None:
        """
        Bytes written while a close waits for others are sent after them; C{write_eof} then does nothing.
        """

        async def scenario() -> None:
            client, server = await self.pair()
            server.transport.pause_reading()
            size = 20_000_000
            client.transport.write(bytes(size))
            client.transport.close()
            client.transport.write_eof()
            client.transport.write(b"late")
            server.transport.resume_reading()
            await server.called("lost")
            self.assertEqual((len(server.data), server.data[size:]), (size + 4, b"late"))

        self.play(scenario())

    def test_halfCloseTwice(self: Any) -> None:
        """
        A second C{write_eof} does nothing, and the peer hears one end.
        """

        async def scenario() -> None:
            client, server = await self.pair()
            server.keepOpen = True
            client.transport.write(b"x")
            client.transport.write_eof()
            client.transport.write_eof()
            self.assertIs(client.transport.is_closing(), False)
            await server.called("eof")
            server.transport.close()
            await client.called("lost")
            self.assertEqual(server.log[:2], ["made", "eof"])

        self.play(scenario())

    def test_abortIdle(self: Any) -> None:
        """
        An abort with nothing to discard is an orderly end at the peer, and over in the next turn; nothing
        arrives or is sent any more.
        """

        async def scenario() -> None:
            client, server = await self.pair()
            server.transport.write(b"late")
            client.transport.abort()
            client.transport.abort()
            self.assertEqual((client.transport.is_closing(), client.log), (True, ["made"]))
            client.transport.write(b"x")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            self.assertEqual((client.data, client.log), (b"", ["made", ("lost", None)]))
            await server.called("lost")
            self.assertEqual(server.data, b"")

        self.play(scenario())

    def test_abortReason(self: Any) -> None:
        """
        The peer of an idle connection that is aborted hears an end, not a reset.
        """

        async def scenario() -> None:
            client, server = await self.pair()
            client.transport.abort()
            await server.called("lost")
            self.assertEqual(server.log, ["made", "eof", ("lost", None)])

        self.play(scenario())

    def test_resetAfterEnd(self: Any) -> None:
        """
        A connection that is reset after its peer's end was heard is a broken pipe.
        """

        async def scenario() -> None:
            client, server = await self.pair()
            server.keepOpen = True
            client.transport.pause_reading()
            client.transport.write_eof()
            await server.called("eof")
            server.transport.write(bytes(20_000_000))
            for _ in range(5):
                await asyncio.sleep(0)
            client.transport.abort()
            await server.called("lost")
            self.assertIsInstance(server.log[-1][1], BrokenPipeError)

        self.play(scenario())

    def test_closeContext(self: Any) -> None:
        """
        C{connection_lost} is called in the context of the close or abort that had nothing to wait for.
        """
        variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)
        seen = []

        async def scenario() -> None:
            for number, end in ((1, "close"), (2, "abort")):
                client, _ = await self.pair()
                client.connection_lost = lambda exc, client=client: (
                    seen.append(variable.get()),
                    client._note("lost", exc),
                )
                variable.set(number)
                getattr(client.transport, end)()
                variable.set(9)
                await client.called("lost")

        self.play(scenario())
        self.assertEqual(seen, [1, 2])

    def test_systemError(self: Any) -> None:
        """
        An C{OSError} of a protocol ends its connection, and is no fault to report.
        """

        class Broken(Recorder):
            def data_received(self, data: bytes) -> None:
                raise FileNotFoundError

        async def scenario() -> None:
            client, server = await self.pair()
            protocol = Broken()
            server.transport.set_protocol(protocol)
            client.transport.write(b"x")
            await protocol.called("lost")
            self.assertIsInstance(protocol.log[-1][1], FileNotFoundError)
            self.assertEqual(self.errors, [])

        self.play(scenario())

    def test_bufferExceptions(self: Any) -> None:
        """
        What fails in a BufferedProtocol is named.
        """

        class Broken(asyncio.BufferedProtocol):
            def __init__(self, part: str) -> None:
                self.part = part
                self.lost: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

            def get_buffer(self, sizehint: int) -> bytearray:
                if self.part == "get_buffer":
                    raise ZeroDivisionError
                return bytearray(0 if self.part == "empty" else 5)

            def buffer_updated(self, nbytes: int) -> None:
                raise ZeroDivisionError

            def connection_lost(self, exc: BaseException | None) -> None:
                self.lost.set_result(exc)

        async def scenario() -> None:
            for part, method, kind in (
                ("get_buffer", "get_buffer", ZeroDivisionError),
                ("empty", "get_buffer", RuntimeError),
                ("buffer_updated", "buffer_updated", ZeroDivisionError),
            ):
                client, server = await self.pair()
                protocol = Broken(part)
                server.transport.set_protocol(protocol)
                client.transport.write(b"x")
                self.assertIsInstance(await protocol.lost, kind)
                (error,) = self.errors
                self.assertEqual(error["message"], f"Fatal error: protocol.{method}() call failed.")
                self.errors.clear()

        self.play(scenario())

    def test_bufferFits(self: Any) -> None:
        """
        A BufferedProtocol that closes: with all octets read the end is orderly, also later; with one unread
        it is a reset.
        """

        class Exact(asyncio.BufferedProtocol):
            later: bool

            def connection_made(self, transport: Any) -> None:
                self.transport = transport

            def get_buffer(self, sizehint: int) -> bytearray:
                return bytearray(5)

            def buffer_updated(self, nbytes: int) -> None:
                if self.later:
                    asyncio.get_running_loop().call_soon(self.transport.close)
                else:
                    self.transport.close()

        async def scenario() -> None:
            for later, data in ((False, b"12345"), (True, b"12345"), (False, b"123456")):
                Exact.later = later
                transport, client = await self.connected(Exact)
                transport.write(data)
                await client.called("lost")
                reason = client.log[-1][1]
                self.assertEqual(isinstance(reason, ConnectionResetError), len(data) > 5, client.log)

        self.play(scenario())

    def test_lowWater(self: Any) -> None:
        """
        C{resume_writing} comes at the low-water mark, also while a close waits; then the end.
        """

        async def scenario() -> None:
            for closes in (False, True):
                client, server = await self.pair()
                server.transport.pause_reading()
                seen: list[int] = []
                client.resume_writing = lambda client=client, seen=seen: (
                    seen.append(client.transport.get_write_buffer_size()),
                    client._note("resume"),
                )
                client.transport.set_write_buffer_limits(high=4 << 20, low=2 << 20)
                client.transport.write(bytes(16))
                client.transport.write(bytes(24 << 20))
                await client.called("pause")
                if closes:
                    client.transport.close()
                server.transport.resume_reading()
                await client.called("resume")
                self.assertLessEqual(seen[0], 2 << 20)
                if closes:
                    await client.called("lost")
                    self.assertEqual([each for each in client.log if each != "made"][-1], ("lost", None))
                else:
                    self.assertGreater(seen[0], 0)
                await server.has((24 << 20) + 16)

        self.play(scenario())

    def test_closedType(self: Any) -> None:
        """
        A closed transport drops bytes, and takes no text.
        """

        async def scenario() -> None:
            client, _ = await self.pair()
            client.transport.close()
            client.transport.write(b"dropped")
            self.assertRaises(TypeError, client.transport.write, "text")

        self.play(scenario())

    def test_slow(self: Any) -> None:
        """
        A slow C{data_received} is reported in debug mode.
        """

        class Slow(asyncio.Protocol):
            def data_received(self, data: bytes) -> None:
                time.sleep(0.02)
                done.set()

        async def scenario() -> None:
            nonlocal done
            done = asyncio.Event()
            self.loop.set_debug(True)
            self.loop.slow_callback_duration = 0.01
            transport, _ = await self.connected(Slow)
            transport.write(b"x")
            await done.wait()
            await asyncio.sleep(0)
            self.loop.set_debug(False)
            self.assertTrue(said)
            kept = len(said)
            done.clear()
            transport, _ = await self.connected(Slow)
            transport.write(b"x")
            await done.wait()
            self.assertEqual(said[kept:], [])

        done: Any = None
        said: list[str] = []
        self.patch(asyncio.log.logger, "warning", lambda text, *values: said.append(text % values))
        self.play(scenario())
        self.assertTrue(any("took 0.0" in each and self.slow in each for each in said), said)

    def test_sendfilePart(self: Any) -> None:
        """
        It reads at the offset, wherever the file stands, and takes what it takes over TCP.
        """
        path = os.path.join(self.folder, "file")
        with open(path, "wb") as file:
            file.write(b"0123456789")

        async def scenario() -> None:
            client, server = await self.pair()
            send = self.loop.sendfile
            with open(path, "rb") as file:
                for arguments, tell in (((), 10), ((7,), 10), ((2, 3), 5), ((0, 1), 1), ((9, 5), 10)):
                    file.seek(0, os.SEEK_END)
                    sent = await send(client.transport, file, *arguments, fallback=False)
                    self.assertEqual((sent, file.tell()), (tell - (arguments or (0,))[0], tell))
                for arguments, error in (((-1,), ValueError), ((0, 0), ValueError), (("1",), TypeError)):
                    with self.assertRaises(error):
                        await send(client.transport, file, *arguments)
                file.seek(3)
                self.assertEqual(
                    (await send(client.transport, file, 10, fallback=False), file.tell()), (0, 3)
                )
            with open(path) as text, self.assertRaises(ValueError):
                await send(client.transport, text)
            self.assertEqual(await send(client.transport, io.BytesIO(b"xyz"), 1), 2)
            self.assertEqual(await server.has(20), b"012345678978923409yz")

        self.play(scenario())

    def test_server(self: Any) -> None:
        """
        A closed server takes no connections, and its own go on until they end.
        """

        async def scenario() -> None:
            client, server = await self.pair()
            self.assertTrue(self.server.is_serving())
            self.server.close()
            self.assertFalse(self.server.is_serving())
            with self.assertRaises(ConnectionRefusedError):
                await self.loop.create_connection(Recorder, HOST, self.port)
            client.transport.write(b"still")
            await server.has(5)
            client.transport.close()
            await asyncio.gather(server.called("lost"), self.server.wait_closed())

        self.play(scenario())


class SDPTests(TransportContract, LoopTestCase):
    """
    Over SDP.
    """

    provider = "sdp"
    aborted = ConnectionResetError
    slow = "data_received"

    def test_thread(self) -> None:
        """
        A write of another thread raises, and says what to call instead.
        """

        async def scenario() -> None:
            client, _ = await self.pair()
            with self.assertRaises(WrongThreadError) as wrong:
                await self.loop.run_in_executor(None, client.transport.write, b"x")
            self.assertIn("loop.call_soon_threadsafe()", str(wrong.exception))

        self.play(scenario())

    def test_calls(self) -> None:
        """
        A message costs these calls of Python functions from the write to C{data_received}: nothing of this
        package stands between a protocol and the stream.
        """
        if compiledModules():
            raise SkipTest("compiled modules: their calls are not counted")
        turns = 1000

        class Echo(asyncio.Protocol):
            count = 0

            def connection_made(self, transport: Any) -> None:
                self.transport = transport

            def data_received(self, data: bytes) -> None:
                self.count += 1
                if self.count <= turns:
                    self.transport.write(data)
                else:
                    done.set_result(None)

        def count(frame: Any, event: str, _: Any) -> None:
            if event == "call" and frame.f_code.co_name not in POLLING:
                calls[frame.f_code.co_name] += 1

        calls: Counter[str] = Counter()
        done: asyncio.Future[None] = self.loop.create_future()

        async def scenario() -> None:
            client, server = await self.pair()
            for each in (client, server):
                protocol = Echo()
                protocol.connection_made(each.transport)
                each.transport.set_protocol(protocol)
            client.transport.write(bytes(64))
            sys.setprofile(count)
            try:
                await done
            finally:
                sys.setprofile(None)

        self.play(scenario())
        messages = 2 * turns
        perMessage = {name: round(number / messages, 1) for name, number in calls.items()}
        self.assertEqual(perMessage["data_received"], 1)
        self.assertEqual(perMessage["write"], 1)
        self.assertLessEqual(sum(calls.values()) / messages, CALLS_PER_MESSAGE, perMessage)


class TCPTests(TransportContract, LoopTestCase):
    """
    Over TCP, by rules that allow SDP elsewhere.
    """

    provider = "tcp"
    # asyncio closes the socket, and with nothing unread the kernel sends a FIN (RFC 9293 section 3.6).
    aborted = type(None)
    slow = "_read_ready"
    rules = "use tcp server * *:*\nuse tcp client * *:*\n"
