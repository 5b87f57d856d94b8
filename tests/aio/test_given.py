"""
Tests for L{twisted_ib.aio.given}: sockets that a program makes itself, and the loop connects.
"""

from __future__ import annotations

import asyncio
import gc
import socket
from typing import Any

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
        self.assertEqual(reason.outcomes["tcp", "socket", ""], len(uses))

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


__all__ = ["GivenTests"]
