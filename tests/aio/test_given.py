"""
Tests for L{twisted_ib.aio.given}: sockets that a program makes itself, and the loop connects.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import socket
import struct
import sys
import warnings
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import patch

from tests.aio.case import HOST, Recorder
from tests.aio.test_loop import ServingTestCase
from twisted_ib import limits
from twisted_ib.aio import given
from twisted_ib.reactor import explain
from twisted_ib.switch import reason


class Watched(socket.socket):
    """
    Has a call of its own.
    """

    def recv(self, *arguments: Any) -> bytes:
        return super().recv(*arguments)


class GivenTests(ServingTestCase):
    """
    One server, and sockets of the program's own.
    """

    def setUp(self) -> None:
        """
        Note what the server has.
        """
        super().setUp()
        self.ends: list[Recorder] = []
        self.patch(reason, "outcomes", {})

    def _end(self) -> Recorder:
        self.ends.append(Recorder())
        return self.ends[-1]

    async def _connected(self, port: int, kind: type[socket.socket] = socket.socket) -> socket.socket:
        own = kind()
        self.addCleanup(own.close)
        own.setblocking(False)
        await self.loop.sock_connect(own, (HOST, port))
        return own

    def test_connection(self) -> None:
        """
        A socket that the loop has connected and that C{create_connection} gets next is carried by SDP: it has
        the stream's addresses before, and is closed afterwards.
        """

        async def scenario() -> None:
            _, port = await self.serve(self._end)
            own = await self._connected(port)
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            names = own.getsockname(), own.getpeername()
            self.assertEqual((names[0][0], names[1]), (HOST, (HOST, port)))
            transport, client = await self.loop.create_connection(Recorder, sock=own)
            self.assertEqual(explain(transport).provider, "sdp")
            self.assertEqual((own.fileno(), type(own)), (-1, socket.socket))
            self.assertEqual(transport.get_extra_info("sockname"), names[0])
            transport.write(b"ping")
            (end,) = self.ends
            self.assertEqual(await end.has(4), b"ping")
            end.transport.write(b"pong")
            self.assertEqual(await client.has(4), b"pong")
            transport.close()
            await end.called("lost")

        self.play(scenario())
        self.assertEqual(set(reason.outcomes), {("sdp", "", "")})

    def test_used(self) -> None:
        """
        One that the program uses itself has TCP from its first use on, is counted so, and others are TCP's
        from the start.
        """
        uses: tuple[Any, ...] = (
            lambda own: own.send(b"x"),
            lambda own: own.fileno(),
            lambda own: own.getsockname() and own.makefile("rb").close(),
            lambda own: self.loop.add_reader(own, print) or self.loop.remove_reader(own),
        )

        async def scenario() -> None:
            _, port = await self.serve(self._end)
            for use in uses:
                self.loop._gives = True
                own = await self._connected(port)
                use(own)
                self.assertEqual((type(own), own.getpeername()), (socket.socket, (HOST, port)))
                await self.loop.sock_sendall(own, b"y")
                other = await self._connected(port)
                self.assertGreater(socket.socket.fileno(other), 0)
                self.assertIs(type(other), socket.socket)
                transport, _ = await self.loop.create_connection(Recorder, sock=own)
                self.assertIsNone(explain(transport).fallback)
                transport.abort()
                other.close()

        self.play(scenario())
        # One of the server's for each stream that gave way.
        self.assertEqual(reason.outcomes.pop(("sdp", "", "")), len(uses))
        # Once each, and the server's ends of both.
        wanted = {("tcp", "socket", ""): len(uses), ("tcp", "client", ""): 2 * len(uses)}
        self.assertEqual(reason.outcomes, wanted)

    def test_ends(self) -> None:
        """
        One that is closed, or forgotten, ends its stream.
        """

        async def scenario() -> None:
            _, port = await self.serve(self._end)
            (await self._connected(port)).close()
            own = socket.socket()
            own.setblocking(False)
            await self.loop.sock_connect(own, (HOST, port))
            del own
            gc.collect()
            for end in self.ends:
                await end.called("lost")
            self.assertEqual((len(self.ends), len(given._given)), (2, 0))

        self.play(scenario())

    def test_others(self) -> None:
        """
        What is bound, or has calls of its own, is TCP's, and so is all where no SDP listens;
        the reason is known.
        """

        async def scenario() -> None:
            _, port = await self.serve(self._end)
            bound = socket.socket()
            self.addCleanup(bound.close)
            bound.bind((HOST, 0))
            bound.setblocking(False)
            await self.loop.sock_connect(bound, (HOST, port))
            self.assertEqual(bound.send(b"x"), 1)
            self.assertEqual((await self._connected(port, Watched)).send(b"x"), 1)
            self.assertTrue(self.loop._gives)
            with socket.create_server((HOST, 0)) as plain:
                own = await self._connected(plain.getsockname()[1])
                transport, _ = await self.loop.create_connection(Recorder, sock=own)
                self.assertEqual(explain(transport).fallback.kind, "no_listener")
                transport.abort()

        self.play(scenario())

    def test_bounds(self) -> None:
        """
        So many classes of sockets are remembered; and a port that does not take the TCP connection in time is
        an error of the call.
        """
        for _ in range(limits.GIVEN_CLASSES + 1):
            given._classOf(type("Own", (socket.socket,), {}))
        self.assertEqual(given._classOf.cache_info().currsize, limits.GIVEN_CLASSES)
        self.patch(limits, "GIVEN_SECONDS", 0.01)

        async def scenario() -> None:
            _, port = await self.serve(self._end)
            own = await self._connected(port)
            with socket.socket() as full, socket.socket() as first:
                full.bind((HOST, 0))
                full.listen(0)
                first.connect(full.getsockname())
                second = socket.socket()
                self.addCleanup(second.close)
                second.setblocking(False)
                second.connect_ex(full.getsockname())
                given._given[own] = given._given[own]._replace(address=full.getsockname())
                with self.assertRaises(TimeoutError):
                    own.send(b"x")
            await asyncio.sleep(0)

        self.play(scenario())


class Rest(asyncio.BufferedProtocol):
    """
    Takes two octets at a time, and has its transport closed by the first.
    """

    transport: Any = None

    def __init__(self) -> None:
        self.room, self.data = bytearray(2), b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.room

    def buffer_updated(self, nbytes: int) -> None:
        self.data += self.room[:nbytes]
        self.transport.close()


class DuplicateTests(ServingTestCase):
    """
    The duplicate of a connection's socket, which another transport gets, as of programs that begin TLS so in
    the midst of a connection: over SDP as over TCP.
    """

    async def each(self, act: Callable[[], Awaitable[None]]) -> None:
        """
        Do the same over TCP and over SDP.
        """
        self.provider: str | None
        for self.provider in ("tcp", None):
            self.ends: list[Recorder] = []
            self.server, self.port = await self.serve(self._end)
            await act()
            self.server.close()

    def _end(self) -> Recorder:
        self.ends.append(Recorder())
        return self.ends[-1]

    async def connected(self, protocol: Any = Recorder, **options: Any) -> tuple[Any, Any]:
        """
        @return: A transport, and its protocol.
        """
        before = len(self.ends) - ("sock" in options)
        if not options:
            options = {"host": HOST, "port": self.port, "provider": self.provider}
        transport, made = await self.loop.create_connection(protocol, **options)
        while len(self.ends) == before:
            await asyncio.sleep(0)
        self.addCleanup(transport.abort)
        return transport, made

    async def duplicated(self) -> tuple[Any, Any, Any]:
        """
        @return: A transport that does not read, its protocol, and the duplicate.
        """
        transport, first = await self.connected()
        transport.pause_reading()
        return transport, first, transport.get_extra_info("socket").dup()

    def test_goesOn(self) -> None:
        """
        The connection goes on with all that the first transport has not read when that is closed, or aborted,
        before the second is made or after it.
        """

        async def act() -> None:
            for name in ("close", "abort"):
                for isFirst in (True, False):
                    transport, first, own = await self.duplicated()
                    transport.write(b"one")
                    end = self.ends[-1]
                    self.assertEqual(await end.has(3), b"one")
                    end.transport.write(b"two")
                    if isFirst:
                        getattr(transport, name)()
                        await first.called("lost")
                    second, protocol = await self.connected(sock=own)
                    if not isFirst:
                        getattr(transport, name)()
                        await first.called("lost")
                    self.assertEqual((first.log[-1], first.data), (("lost", None), b""))
                    self.assertEqual(await protocol.has(3), b"two")
                    self.assertEqual(second.get_extra_info("peername"), (HOST, self.port))
                    second.write(b"three")
                    self.assertEqual(await end.has(8), b"onethree")
                    second.close()
                    await end.called("lost")

        self.play(self.each(act))

    def test_unused(self) -> None:
        """
        One that is closed, or forgotten, leaves the connection to the transport.
        """

        async def act() -> None:
            for isClosed in (True, False):
                transport, _, own = await self.duplicated()
                if isClosed:
                    own.close()
                else:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore", ResourceWarning)
                        del own
                        gc.collect()
                transport.write(b"x")
                end = self.ends[-1]
                self.assertEqual(await end.has(1), b"x")
                transport.close()
                await end.called("lost")

        self.play(self.each(act))

    def test_warned(self) -> None:
        """
        One that is forgotten where warnings are errors leaves nothing open either.
        """

        async def act() -> None:
            transport, first, own = await self.duplicated()
            transport.close()
            await first.called("lost")
            with warnings.catch_warnings(), patch.object(sys, "unraisablehook") as told:
                warnings.simplefilter("error", ResourceWarning)
                del own
                gc.collect()
            self.assertIsInstance(told.call_args.args[0].exc_value, ResourceWarning)
            await self.ends[-1].called("lost")

        self.play(self.each(act))

    def test_closed(self) -> None:
        """
        One that is closed after the transport ends the connection.
        """

        async def act() -> None:
            transport, first, own = await self.duplicated()
            transport.close()
            await first.called("lost")
            self.assertNotIn("lost", str(self.ends[-1].log))
            own.close()
            await self.ends[-1].called("lost")

        self.play(self.each(act))

    def test_peer(self) -> None:
        """
        The second transport hears of the peer's end: of one that comes before it is made, and of one that the
        first was told.
        """

        async def act() -> None:
            for isTold in (True, False):
                transport, first = await self.connected()
                first.keepOpen = True
                end = self.ends[-1]
                if isTold:
                    end.transport.write_eof()
                    await first.called("eof")
                own = transport.get_extra_info("socket").dup()
                transport.close()
                await first.called("lost")
                end.transport.close()
                _, second = await self.connected(sock=own)
                await second.called("lost")
                self.assertEqual(second.log, ["made", "eof", ("lost", None)])

        self.play(self.each(act))

    def test_peerOfPaused(self) -> None:
        """
        One that does not read hears of the peer's end, of which the first was told, when it reads, and once.
        """

        class Paused(Recorder):
            def connection_made(self, transport: Any) -> None:
                super().connection_made(transport)
                self.keepOpen = True
                transport.pause_reading()

        async def act() -> None:
            transport, first = await self.connected()
            first.keepOpen = True
            self.ends[-1].transport.write_eof()
            await first.called("eof")
            own = transport.get_extra_info("socket").dup()
            transport.close()
            await first.called("lost")
            again, second = await self.connected(Paused, sock=own)
            # Called at most once, the documentation says; asyncio's own looks, and calls, again.
            logs = ["made"], ["made", "eof"], ["made", "eof", "eof"]
            if sys.version_info < (3, 11) and self.provider is not None:
                # That of Python 3.10 reads although connection_made() has paused it.
                logs = (["made", "eof"], ["made", "eof", "eof"])
            for log in logs:
                for _ in range(3):
                    # The turns in which it would read.
                    await asyncio.sleep(0)
                self.assertEqual(second.log, log)
                again.pause_reading()
                again.resume_reading()
            again.abort()

        self.play(self.each(act))

    def test_reset(self) -> None:
        """
        It hears of a reset likewise, whichever transport there is at that time.
        """

        async def act() -> None:
            for isClosed in (True, False):
                transport, first = await self.connected()
                own = transport.get_extra_info("socket").dup()
                end = self.ends[-1]
                if isClosed:
                    transport.close()
                    await first.called("lost")
                # Unread, which makes it a reset over TCP, too.
                end.transport.pause_reading()
                own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                end.transport.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )
                end.transport.write(bytes(1 << 22))
                end.transport.abort()
                if not isClosed:
                    await first.called("lost")
                _, second = await self.connected(sock=own)
                await second.called("lost")
                transport.close()

        self.play(self.each(act))

    def test_rest(self) -> None:
        """
        It has what a C{BufferedProtocol} had no room for when it closed the first.
        """

        async def act() -> None:
            transport, first = await self.connected(Rest)
            own = transport.get_extra_info("socket").dup()
            self.ends[-1].transport.write(b"abcdef")
            while not first.data:
                await asyncio.sleep(0)
            _, second = await self.connected(sock=own)
            self.assertEqual((first.data, await second.has(4)), (b"ab", b"cdef"))

        self.play(self.each(act))

    def test_raises(self) -> None:
        """
        A protocol that raises after it has closed the first transport is said so, and the connection goes on.
        """

        class Raising(Recorder):
            def data_received(self, data: bytes) -> None:
                self.transport.close()
                raise ValueError("mine")

        async def act() -> None:
            transport, first = await self.connected(Raising)
            own = transport.get_extra_info("socket").dup()
            self.ends[-1].transport.write(b"x")
            await first.called("lost")
            (error,) = self.errors
            self.errors.clear()
            self.assertEqual(str(error["exception"]), "mine")
            second, _ = await self.connected(sock=own)
            second.write(b"y")
            self.assertEqual(await self.ends[-1].has(1), b"y")

        self.play(self.each(act))

    def test_ended(self) -> None:
        """
        That of a connection which has ended has no duplicate.
        """

        async def act() -> None:
            transport, first = await self.connected()
            own = transport.get_extra_info("socket")
            self.assertFalse(own.get_inheritable())
            transport.abort()
            await first.called("lost")
            with self.assertRaises(OSError) as refused:
                own.dup()
            self.assertEqual(refused.exception.errno, errno.EBADF)

        self.play(self.each(act))


__all__ = ["DuplicateTests", "GivenTests"]
