"""
Tests of connections of asyncio's that their blocking clients move to TCP: see L{twisted_ib.aio.moving}.
"""

from __future__ import annotations

import asyncio
import os
import socket as kernel
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.aio.case import HOST, LoopTestCase, Recorder
from tests.support.descriptors import moves, received
from tests.support.waiting import HANG_SECONDS
from twisted_ib import socket as offloading
from twisted_ib.aio.moving import MovedStream
from twisted_ib.blocking import loop
from twisted_ib.blocking.loop import BlockingLoop
from twisted_ib.blocking.socket import MovedSocket
from twisted_ib.hca.host.fdpassing import takeTCP
from twisted_ib.switch.reason import MOVED

DATA = b"0123456789"
MANY = 1 << 20


class BufferedRecorder(Recorder, asyncio.BufferedProtocol):
    """
    The same that supplies buffers of three octets.
    """

    def get_buffer(self, sizehint: int) -> bytearray:
        self._buffer = bytearray(3)
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._buffer[:nbytes]))


class MovingTests(LoopTestCase):
    """
    Servers of asyncio's whose clients are blocking sockets in a thread.
    """

    protocol: Callable[[], Recorder] = Recorder

    def setUp(self) -> None:
        """
        Make the loop of blocking sockets, too.
        """
        super().setUp()
        # On one CPU blocking sockets stay TCP.
        self.patch(os, "sched_getaffinity", lambda _: {0, 1})
        made = BlockingLoop()
        self.patch(loop, "_loop", made)
        self.addCleanup(made.close)

    async def pair(self) -> tuple[Any, Recorder]:
        """
        Return a socket, and the protocol that serves it, over SDP.
        """
        made: list[Recorder] = []

        def make() -> Recorder:
            made.append(type(self).protocol())
            return made[-1]

        server = await self.loop.create_server(make, HOST, 0)
        self.addCleanup(server.close)
        skt: Any = await self.ask(offloading.create_connection, server.sockets[0].getsockname(), HANG_SECONDS)
        self.addCleanup(skt.close)
        await self.ask(skt.sendall, DATA)
        while not made:
            await asyncio.sleep(0.001)
        await made[0].has(len(DATA))
        self.assertIsNotNone(skt.sdp)
        return skt, made[0]

    async def ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """
        Return what a call returns, in a thread.
        """
        return await self.loop.run_in_executor(None, partial(call, *arguments))

    async def moved(self) -> tuple[Any, Recorder]:
        """
        Return the same once it has moved.
        """
        skt, protocol = await self.pair()
        await self.ask(moves, skt)
        await self.ask(skt.sendall, DATA)
        await protocol.has(2 * len(DATA))
        protocol.transport.write(DATA)
        self.assertEqual(await self.ask(received, skt, len(DATA)), DATA)
        await self.ask(skt.sendall, DATA)
        await protocol.has(3 * len(DATA))
        self.assertIs(type(skt), MovedSocket)
        return skt, protocol

    def test_moved(self) -> None:
        """
        The kernel carries the connection, whose transport and addresses are as before, in both directions,
        and ends it in order.
        """

        async def scenario() -> None:
            skt, protocol = await self.pair()
            transport = protocol.transport
            names = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
            old = transport._stream
            write = old.write
            await self.ask(moves, skt)
            await self.ask(skt.sendall, DATA)
            await protocol.has(2 * len(DATA))
            write(DATA)
            self.assertEqual(await self.ask(received, skt, len(DATA)), DATA)
            await self.ask(skt.sendall, DATA)
            self.assertEqual(await protocol.has(3 * len(DATA)), 3 * DATA)
            self.assertIsInstance(transport._stream, MovedStream)
            self.assertFalse(old.connected)
            plain = kernel.socket(fileno=os.dup(skt.fileno()))
            with plain:
                self.assertEqual(plain.getpeername()[0], HOST)
            self.assertEqual(
                (transport.get_extra_info("sockname"), transport.get_extra_info("peername")), names
            )
            self.assertIs(protocol.transport, transport)
            self.assertIn("MovedStream", repr(transport))
            why = transport.get_extra_info("why")
            self.assertEqual((why.provider, why.device, why.fallback), ("tcp", None, MOVED))
            self.assertRaises(OSError, transport.get_extra_info("socket").dup)
            transport.write_eof()
            self.assertEqual(await self.ask(skt.recv, 10), b"")
            await self.ask(skt.close)
            await protocol.called("lost")
            self.assertEqual(protocol.log[-1], ("lost", None))
            self.assertTrue(transport.is_closing())

        self.play(scenario())
        self.assertEqual(self.errors, [])

    def test_much(self) -> None:
        """
        Many octets are all there, through the move, in their order; a protocol that cannot send more is told,
        by the limits that it has set.
        """

        async def scenario() -> None:
            skt, protocol = await self.pair()
            data = os.urandom(MANY)
            sending = asyncio.ensure_future(self.ask(skt.sendall, data))
            await protocol.until(lambda: len(protocol.data) > MANY // 4)
            await sending
            await self.ask(moves, skt)
            await self.ask(skt.sendall, data)
            self.assertEqual(bytes(await protocol.has(len(DATA) + 2 * MANY)), DATA + 2 * data)
            protocol.transport.set_write_buffer_limits(high=1000)
            protocol.transport.write(b"x")
            self.assertEqual(await self.ask(received, skt, 1), b"x")
            protocol.transport.write(8 * data)
            self.assertGreater(protocol.transport.get_write_buffer_size(), 1000)
            await protocol.called("pause")
            self.assertEqual(await self.ask(received, skt, 8 * MANY), 8 * data)
            await protocol.called("resume")
            protocol.transport.write(data)
            protocol.transport.close()
            self.assertEqual(await self.ask(received, skt, MANY + 1), data)

        self.play(scenario())
        self.assertEqual(self.errors, [])

    def test_paused(self) -> None:
        """
        A protocol that reads nothing gets nothing, of SDP's octets nor of TCP's, until it reads again.
        """

        async def scenario() -> None:
            skt, protocol = await self.moved()
            protocol.transport.pause_reading()
            await self.ask(skt.sendall, DATA)
            await asyncio.sleep(0.01)
            self.assertEqual(len(protocol.data), 3 * len(DATA))
            protocol.transport.resume_reading()
            await protocol.has(4 * len(DATA))
            await self.ask(skt.shutdown, kernel.SHUT_WR)
            await protocol.called("eof")

        self.play(scenario())

    def test_keptOpen(self) -> None:
        """
        Whether the transport closes with the end of what the client sends, its protocol says; one that stays
        open sends on.
        """

        async def scenario() -> None:
            for keepsOpen in (False, True):
                skt, protocol = await self.moved()
                protocol.keepOpen = keepsOpen
                await self.ask(skt.shutdown, kernel.SHUT_WR)
                await protocol.called("eof" if keepsOpen else "lost")
                self.assertEqual(protocol.transport.is_closing(), not keepsOpen)
                if keepsOpen:
                    protocol.transport.write(DATA)
                    self.assertEqual(await self.ask(received, skt, len(DATA)), DATA)
                    protocol.transport.close()
                    await protocol.called("lost")
                self.assertEqual(await self.ask(skt.recv, 1), b"")
                self.assertEqual(protocol.log[-2:], ["eof", ("lost", None)])

        self.play(scenario())
        self.assertEqual(self.errors, [])

    def test_raises(self) -> None:
        """
        An error of the protocol ends the connection, and is told the loop's handler.
        """

        async def scenario() -> None:
            skt, protocol = await self.moved()

            def raises(data: bytes) -> None:
                raise ZeroDivisionError

            self.patch(protocol, "data_received", raises)
            await self.ask(skt.sendall, DATA)
            await protocol.called("lost")
            self.assertIsInstance(protocol.log[-1][1], ZeroDivisionError)

        self.play(scenario())
        self.assertEqual([type(each["exception"]) for each in self.errors], [ZeroDivisionError])

    def test_aborted(self) -> None:
        """
        An abort resets it.
        """

        async def scenario() -> None:
            skt, protocol = await self.moved()
            protocol.transport.write(32 * bytes(MANY))
            protocol.transport.abort()
            with self.assertRaises(ConnectionResetError):
                await self.ask(received, skt, 32 * MANY)
            await protocol.called("lost")

        self.play(scenario())

    def test_peerResets(self) -> None:
        """
        A client that resets it ends it with that error.
        """

        async def scenario() -> None:
            skt, protocol = await self.moved()
            skt.setsockopt(kernel.SOL_SOCKET, kernel.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            await self.ask(skt.close)
            await protocol.called("lost")
            self.assertIsInstance(protocol.log[-1][1], ConnectionResetError)

        self.play(scenario())

    def test_refused(self) -> None:
        """
        A transport that ends, or whose socket was duplicated, does not move: nor does one that the rules
        have on SDP.
        """

        async def scenario() -> None:
            skt, protocol = await self.pair()
            transport = protocol.transport
            stream = transport._stream
            first = transport.get_extra_info("socket")
            made = first.dup()
            self.assertFalse(stream.suspended(5))
            made.close()
            self.assertTrue(transport.mayMove())
            self.assertFalse(stream.suspended(-1))
            why = stream.server.why
            self.patch(why, "verdict", "sdp")
            self.assertFalse(stream.suspended(5))
            self.assertFalse(first.asked(stream, 5))
            await self.ask(moves, skt)
            await self.ask(skt.sendall, DATA)
            await protocol.has(2 * len(DATA))
            self.assertIs(transport._stream, stream)
            transport.write_eof()
            self.assertFalse(transport.mayMove())
            self.assertEqual(await self.ask(skt.recv, 10), b"")

        self.play(scenario())

    def test_socket(self) -> None:
        """
        What a program has of its socket is that of TCP's: options from before and later, the peer's address,
        and a half-close; an urgent octet stays in the stream.
        """
        priority = kernel.SOL_SOCKET, kernel.SO_PRIORITY
        keepAlive = kernel.SOL_SOCKET, kernel.SO_KEEPALIVE

        async def scenario() -> None:
            skt, protocol = await self.pair()
            transport = protocol.transport
            sock = transport.get_extra_info("socket")
            sock.setsockopt(*priority, 3)
            sock.setsockopt(*keepAlive, 1)
            peer = sock.getpeername()
            await self.ask(moves, skt)
            await self.ask(skt.sendall, DATA)
            await protocol.has(2 * len(DATA))
            transport.write(DATA)
            self.assertEqual(await self.ask(received, skt, len(DATA)), DATA)
            await self.ask(skt.sendall, DATA)
            await protocol.has(3 * len(DATA))
            mine = transport._stream._mine
            self.assertEqual([mine.getsockopt(*each) for each in (priority, keepAlive)], [3, 1])
            self.assertEqual([sock.getsockopt(*each) for each in (priority, keepAlive)], [3, 1])
            sock.setsockopt(*keepAlive, 0)
            self.assertEqual((mine.getsockopt(*keepAlive), sock.getsockopt(*keepAlive)), (0, 0))
            self.assertEqual(sock.getpeername(), peer)
            await self.ask(skt.send, b"ab", kernel.MSG_OOB)
            await self.ask(skt.sendall, b"c")
            self.assertEqual(bytes(await protocol.has(3 * len(DATA) + 3))[-3:], b"abc")
            sock.shutdown(kernel.SHUT_WR)
            self.assertEqual(await self.ask(skt.recv, 1), b"")
            await self.ask(skt.close)
            await protocol.called("lost")
            self.assertRaises(OSError, sock.getpeername)
            self.assertRaises(OSError, sock.shutdown, kernel.SHUT_WR)

        self.play(scenario())
        self.assertEqual(self.errors, [])

    def test_askedTwice(self) -> None:
        """
        One that has moved is not moved again.
        """

        async def scenario() -> None:
            _, protocol = await self.pair()
            stream = protocol.transport._stream
            with kernel.create_server((HOST, 0)) as listener:
                other = kernel.create_connection(listener.getsockname())
                mine, _ = listener.accept()
            with other:
                self.assertTrue(stream.suspended(mine.detach()))
                self.assertIsInstance(protocol.transport._stream, MovedStream)
                self.assertFalse(stream.suspended(5))
                protocol.transport.abort()
            await protocol.called("lost")

        self.play(scenario())

    def test_waits(self) -> None:
        """
        It moves once all that was written is in the medium; if it ends before, it is refused.
        """

        async def scenario() -> None:
            for ends in False, True:
                _, protocol = await self.pair()
                transport = protocol.transport
                quiet: list[bool] = []
                kind = type(transport._stream)
                patched = self.patch(kind, "isQuiet", lambda stream, quiet=quiet: bool(quiet))
                with kernel.create_server((HOST, 0)) as listener:
                    other = kernel.create_connection(listener.getsockname())
                    mine, _ = listener.accept()
                with other:
                    self.assertTrue(transport._stream.suspended(mine.detach()))
                    self.assertIs(type(transport._stream), kind)
                    if ends:
                        transport.close()
                        with self.assertRaises(ConnectionResetError):
                            await self.ask(other.recv, 1)
                    else:
                        quiet.append(True)
                        while type(transport._stream) is kind:
                            await asyncio.sleep(0.001)
                        transport.abort()
                patched.restore()
                await protocol.called("lost")

        self.play(scenario())


class BufferedTests(MovingTests):
    """
    The same with a C{BufferedProtocol}.
    """

    protocol = BufferedRecorder


class TakeTests(LoopTestCase):
    """
    L{takeTCP}.
    """

    def test_others(self) -> None:
        """
        What is no connection of TCP is closed.
        """
        one, other = kernel.socketpair()
        with other:
            self.assertIsNone(takeTCP(one.detach()))
            self.assertEqual(other.recv(1), b"")
        reader, writer = os.pipe()
        self.assertIsNone(takeTCP(reader))
        self.assertRaises(BrokenPipeError, os.write, writer, b"x")
        os.close(writer)
