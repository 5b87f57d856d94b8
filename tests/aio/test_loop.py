"""
What the event loop decides about each connect and listen, and what becomes of those that are given up.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
import sys
from threading import get_ident
from typing import Any

from twisted.internet.protocol import Factory
from twisted.trial.unittest import SkipTest

import twisted_ib
from tests.aio.case import HOST, LoopTestCase, Recorder
from tests.support.waiting import HANG_SECONDS
from twisted_ib import limits
from twisted_ib import socket as offloading
from twisted_ib.aio.loop import EventLoop
from twisted_ib.aio.streamsocket import StreamSocket
from twisted_ib.blocking import loop as blocking
from twisted_ib.blocking.loop import BlockingLoop
from twisted_ib.hca.device.form import compiledModules
from twisted_ib.hca.device.registry import addDevice, removeDevice
from twisted_ib.internet.readers import channelsOf
from twisted_ib.reactor import explain
from twisted_ib.sdp.port import listenSDP

#: Calls of Python functions of this package for a turn of a loop whose device has nothing to do.
CALLS_PER_IDLE_TURN = 16
#: An address that no host has (RFC 5737).
NOBODYS = "192.0.2.1"


def bothOf(verdict: str) -> str:
    """
    @return: Rules with one verdict for everything.
    """
    return f"use {verdict} server * *:*\nuse {verdict} client * *:*\n"


def freeNumber() -> int:
    """
    @return: A port number that nobody uses.
    """
    with socket.create_server((HOST, 0)) as probe:
        return int(probe.getsockname()[1])


class ServingTestCase(LoopTestCase):
    """
    Has servers.
    """

    async def serve(self, protocol: Any = Recorder, host: Any = HOST, **options: Any) -> tuple[Any, int]:
        """
        @return: A server, and its port number.
        """
        server = await self.loop.create_server(protocol, host, 0, **options)
        self.addCleanup(server.close)
        return server, server.sockets[0].getsockname()[1]


class ConnectTests(ServingTestCase):
    """
    Connecting.
    """

    def test_directIPv6(self) -> None:
        """
        Rules that leave everything to TCP hold for IPv6 addresses.
        """
        self.setRules(bothOf("tcp"))

        async def scenario() -> None:
            _, port = await self.serve(host="::1")
            transport, _ = await self.loop.create_connection(Recorder, "::1", port)
            why = explain(transport)
            self.assertEqual((why.provider, why.rule.rpartition(":")[2]), ("tcp", "2"))
            transport.abort()

        self.play(scenario())

    def test_unbindable(self) -> None:
        """
        A local address that the host does not have is TCP's error, whatever the rules say; the server sees
        nothing.
        """

        async def scenario() -> None:
            for verdict in ("tcp", "both", "sdp"):
                self.setRules(bothOf(verdict))
                made: list[Recorder] = []
                server, port = await self.serve(lambda made=made: made.append(Recorder()) or made[-1])
                with self.assertRaises(OSError) as refused:
                    await self.loop.create_connection(Recorder, HOST, port, local_addr=(NOBODYS, 0))
                self.assertEqual(refused.exception.errno, errno.EADDRNOTAVAIL)
                self.assertEqual(made, [])
                server.close()

        self.play(scenario())

    def test_boundOverTCP(self) -> None:
        """
        A local number that was bound for SDP is TCP's if SDP is not offered, and nobody's when SDP alone has
        failed.
        """

        async def scenario() -> None:
            number = freeNumber()
            with socket.create_server((HOST, 0)) as plain:
                transport, _ = await self.loop.create_connection(
                    Recorder, *plain.getsockname(), local_addr=(HOST, number)
                )
                self.assertEqual(explain(transport).provider, "tcp")
                self.assertEqual(transport.get_extra_info("sockname"), (HOST, number))
                transport.abort()
            self.setRules(bothOf("sdp"))
            number = freeNumber()
            with self.assertRaises(ConnectionRefusedError):
                await self.loop.create_connection(Recorder, HOST, freeNumber(), local_addr=(HOST, number))
            with socket.socket() as again:
                again.bind((HOST, number))

        self.play(scenario())

    def cancelWhenDone(self, connecting: Any) -> asyncio.Task[Any]:
        """
        @return: The task of a connect, cancelled in the turn in which the connect is done, before it hears of
            that.
        """
        make = self.loop.create_future

        def watched() -> Any:
            made = make()
            made.add_done_callback(lambda _: task.cancel())
            self.loop.create_future = make
            return made

        self.loop.create_future = watched
        task: asyncio.Task[Any] = self.loop.create_task(connecting)
        return task

    def test_cancelledWhenDone(self) -> None:
        """
        A connect that is cancelled in the turn in which it is done leaves no connection; so does one that has
        failed or was to go on over TCP.
        """

        async def scenario() -> None:
            for options in ({}, {"provider": "sdp"}, {"provider": "rdma"}):
                made = Recorder()
                server, port = await self.serve(lambda made=made: made, **options)
                task = self.cancelWhenDone(self.loop.create_connection(Recorder, HOST, port, **options))
                with self.assertRaises(asyncio.CancelledError):
                    await task
                await made.called("lost")
                self.assertEqual(made.data, b"")
                server.close()
            for verdict, options in (("sdp", {}), ("both", {}), ("both", {"provider": "sdp"})):
                self.setRules(bothOf(verdict))
                task = self.cancelWhenDone(
                    self.loop.create_connection(Recorder, HOST, freeNumber(), **options)
                )
                with self.assertRaises(asyncio.CancelledError):
                    await task

        self.play(scenario())

    def endsOfCancelled(self, module: Any, greeting: bytes, provider: str | None) -> list[str]:
        """
        Return how connections end at a blocking server that accepts them in the turn in which their connects
        are cancelled, or in the one before that.

        @param module: Makes the server's sockets.
        @param greeting: Sent at once.
        """
        made: list[Any] = []

        def accept() -> None:
            while True:
                try:
                    made.append(listener.accept()[0])
                except BlockingIOError:
                    return
                made[-1].send(greeting)
                made[-1].settimeout(HANG_SECONDS)

        async def scenario() -> None:
            def connect() -> Any:
                connecting = self.loop.create_connection(Recorder, *listener.getsockname(), provider=provider)
                return self.loop.create_task(connecting)

            # The two processes know each other from now on.
            first = connect()
            while not first.done():
                accept()
                await asyncio.sleep(0)
            for turns in range(16):
                task = connect()
                for _ in range(turns // 2):
                    await asyncio.sleep(0)
                if turns % 2:
                    accept()
                # Behind what the loop does first in a turn.
                self.loop.call_soon(accept)
                task.cancel()
                await asyncio.wait([task])
                if not task.cancelled():
                    task.result()[0].abort()
                    made.pop().close()
                # Of a stream that is closed the end leaves later.
                for _ in range(4):
                    await asyncio.sleep(0)
            first.result()[0].abort()
            made.pop(0).close()

        def endOf(connection: Any) -> str:
            with connection:
                try:
                    return repr(connection.recv(9))
                except OSError as error:
                    return errno.errorcode[error.errno or 0]

        with module.create_server((HOST, 0)) as listener:
            listener.setblocking(False)
            self.play(scenario())
            return [endOf(connection) for connection in made]

    def test_cancelledAtServer(self) -> None:
        """
        A cancelled connect is the end of the stream at a server that has accepted it already, and a reset if
        that has sent to it, as over TCP.
        """
        # On one CPU blocking sockets stay TCP.
        self.patch(os, "sched_getaffinity", lambda _: {0, 1})
        made = BlockingLoop()
        self.patch(blocking, "_loop", made)
        self.addCleanup(made.close)
        for greeting, end in ((b"", "b''"), (b"hello", "ECONNRESET")):
            for module, provider in ((socket, "tcp"), (offloading, None)):
                found = self.endsOfCancelled(module, greeting, provider)
                # What a transport of TCP had read already was not unread.
                ends = {end} if not greeting or module is offloading else {end, "b''"}
                self.assertIn(end, found)
                self.assertLessEqual(set(found), ends, (module, greeting))

    def test_cancelledBefore(self) -> None:
        """
        A connect by name to a server that does not serve yet, cancelled: its server never sees it.
        """

        async def scenario() -> None:
            for provider in ("sdp", "rdma"):
                made: list[Recorder] = []
                server, port = await self.serve(
                    lambda made=made: made.append(Recorder()) or made[-1],
                    provider=provider,
                    start_serving=False,
                )
                task = self.loop.create_task(
                    self.loop.create_connection(Recorder, HOST, port, provider=provider)
                )
                done, _ = await asyncio.wait([task], timeout=0.02)
                self.assertEqual(done, set())
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                await server.start_serving()
                transport, _ = await self.loop.create_connection(Recorder, HOST, port, provider=provider)
                await asyncio.gather(*(each.called("made") for each in made))
                living = [each for each in made if not each.transport.is_closing()]
                self.assertEqual(len(living), 1)
                transport.abort()
                server.close()

        self.play(scenario())


class ListenTests(ServingTestCase):
    """
    Listening.
    """

    def test_startLater(self) -> None:
        """
        A server that is told not to serve yet refuses, and serves from C{start_serving}; twice is once.
        """

        async def scenario() -> None:
            server, port = await self.serve(start_serving=False)
            self.assertFalse(server.is_serving())
            with self.assertRaises(ConnectionRefusedError):
                await self.loop.create_connection(Recorder, HOST, port)
            await server.start_serving()
            await server.start_serving()
            self.assertTrue(server.is_serving())
            transport, _ = await self.loop.create_connection(Recorder, HOST, port)
            self.assertEqual(explain(transport).provider, "sdp")
            transport.abort()

        self.play(scenario())

    def test_ownSocket(self) -> None:
        """
        The number of a socket that the application has bound is not drawn again.
        """
        self.setRules(bothOf("both"))

        async def scenario() -> None:
            bound = socket.socket()
            bound.bind((HOST, 0))
            number = bound.getsockname()[1]
            inUse = listenSDP(self.loop.reactor, number, Factory(), interface=HOST)
            with self.assertRaises(OSError) as refused:
                await self.loop.create_server(Recorder, sock=bound)
            self.assertEqual(refused.exception.errno, errno.EADDRINUSE)
            inUse.stopListening()

        self.play(scenario())

    def test_drawnInVain(self) -> None:
        """
        Without a rule that asks for SDP, a server whose numbers are all in use there listens on TCP alone.
        """
        inUse: list[Any] = []
        bind = socket.socket.bind

        def busyBind(skt: Any, address: Any) -> None:
            bind(skt, address)
            if skt.family != socket.AF_INET:
                return
            number = skt.getsockname()[1]
            drawn.append(number)
            if number not in [each.getHost().port for each in inUse]:
                inUse.append(listenSDP(self.loop.reactor, number, Factory(), interface=HOST))

        async def scenario() -> None:
            server, port = await self.serve()
            self.assertEqual((len(drawn), drawn[-1]), (limits.PORT_ATTEMPTS, port))
            self.assertEqual(server._ports[0].why.provider, "tcp")
            for each in inUse:
                each.stopListening()

        drawn: list[int] = []
        self.patch(socket.socket, "bind", busyBind)
        self.play(scenario())

    def test_alreadyListening(self) -> None:
        """
        A socket that listens already goes on doing so beside SDP, also under C{sdp}.
        """
        self.setRules(bothOf("sdp"))

        async def scenario() -> None:
            with socket.create_server((HOST, 0)) as listening:
                port = listening.getsockname()[1]
                server = await self.loop.create_server(Recorder, sock=listening)
                transport, _ = await self.loop.create_connection(Recorder, HOST, port)
                self.assertEqual(explain(transport).provider, "sdp")
                transport.abort()
                transport, protocol = await self.loop.create_connection(Recorder, HOST, port, provider="tcp")
                transport.write_eof()
                await protocol.called("lost")
                server.close()

        self.play(scenario())

    def test_noDelay(self) -> None:
        """
        TCP of a socket that the program has made waits for no acknowledgement before it sends the next piece,
        as uvloop's: asyncio has that for sockets which name their protocol.
        """

        async def scenario() -> None:
            with socket.socket() as bound, socket.socket() as own:
                bound.bind((HOST, 0))
                accepted = Recorder()
                server = await self.loop.create_server(lambda: accepted, sock=bound)
                own.connect(bound.getsockname())
                own.setblocking(False)
                client, _ = await self.loop.create_connection(Recorder, sock=own)
                await accepted.called("made")
                for transport in (accepted.transport, client):
                    has = transport.get_extra_info("socket").getsockopt
                    self.assertTrue(has(socket.IPPROTO_TCP, socket.TCP_NODELAY))
                    transport.abort()
                server.close()

        self.play(scenario())

    def test_unix(self) -> None:
        """
        A socket of no Internet family is served as asyncio does.
        """

        async def scenario() -> None:
            path = os.path.join(self.folder, "s")
            bound = socket.socket(socket.AF_UNIX)
            bound.bind(path)
            server = await self.loop.create_server(Recorder, sock=bound)
            transport, protocol = await self.loop.create_unix_connection(Recorder, path)
            transport.write_eof()
            await protocol.called("lost")
            self.assertEqual((protocol.log, self.errors), (["made", "eof", ("lost", None)], []))
            server.close()

        self.play(scenario())

    def test_ownRules(self) -> None:
        """
        A connection over TCP knows the rule of the socket that has accepted it, of several with their own
        numbers and of several with one.
        """
        other = "127.0.0.2"
        self.setRules(f"use tcp server * {HOST}:*\nuse both server * {other}:*\n")

        async def scenario() -> None:
            for number in (0, freeNumber()):
                made: asyncio.Queue[Recorder] = asyncio.Queue()

                class Accepted(Recorder):
                    def connection_made(self, transport: Any, made: asyncio.Queue[Recorder] = made) -> None:
                        super().connection_made(transport)
                        made.put_nowait(self)

                server = await self.loop.create_server(Accepted, [HOST, other], number)
                rules = {}
                for skt in server.sockets:
                    transport, _ = await self.loop.create_connection(
                        Recorder, *skt.getsockname(), provider="tcp"
                    )
                    accepted = (await made.get()).transport
                    self.assertEqual(explain(accepted).provider, "tcp")
                    rules[skt.getsockname()[0]] = explain(accepted).rule.rpartition(":")[2]
                    transport.abort()
                self.assertEqual(rules, {HOST: "1", other: "2"})
                server.close()

        self.play(scenario())

    def test_wildcardRule(self) -> None:
        """
        So does one of a socket for all addresses.
        """
        self.setRules("use both server * *:*\n")

        async def scenario() -> None:
            for every, host in (("0.0.0.0", HOST), ("::", "::1")):
                made: asyncio.Future[Recorder] = self.loop.create_future()

                class Accepted(Recorder):
                    def connection_made(self, transport: Any, made: asyncio.Future[Recorder] = made) -> None:
                        super().connection_made(transport)
                        made.set_result(self)

                _, port = await self.serve(Accepted, every)
                transport, _ = await self.loop.create_connection(Recorder, host, port, provider="tcp")
                self.assertEqual(explain((await made).transport).rule.rpartition(":")[2], "1")
                transport.abort()

        self.play(scenario())

    def test_peerHasGone(self) -> None:
        """
        A peer over TCP that was gone before it was accepted is known by its address.
        """

        class Accepted(Recorder):
            def connection_made(self, transport: Any) -> None:
                super().connection_made(transport)
                made.set_result(transport)

        made: asyncio.Future[Any] = self.loop.create_future()

        async def scenario() -> None:
            _, port = await self.serve(Accepted)
            with socket.create_connection((HOST, port)) as plain:
                name = plain.getsockname()
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.assertEqual((await made).get_extra_info("peername"), name)

        self.play(scenario())

    def test_descriptor(self) -> None:
        """
        To C{ib-ss} a port has the descriptor of its socket.
        """

        async def scenario() -> None:
            server, _ = await self.serve()
            self.assertEqual(
                [port.fileno() for port in server._ports], [skt.fileno() for skt in server.sockets]
            )

        self.play(scenario())

    def test_closedHasNoDevices(self) -> None:
        """
        A device that is added after a server's close is not listened on.
        """

        async def scenario() -> None:
            server, _ = await self.serve()
            (port,) = server._ports
            server.close()
            addDevice("more", "loopback")
            self.addCleanup(removeDevice, "more")
            self.assertEqual(port.sdpListeners, ())

        self.play(scenario())


class LifeTests(LoopTestCase):
    """
    The event loop itself.
    """

    def test_closeWhileRunning(self) -> None:
        """
        A running event loop does not close, and its connections go on.
        """

        async def scenario() -> None:
            accepted = Recorder()
            server = await self.loop.create_server(lambda: accepted, HOST, 0)
            port = server.sockets[0].getsockname()[1]
            transport, _ = await self.loop.create_connection(Recorder, HOST, port)
            self.assertRaises(RuntimeError, self.loop.close)
            transport.write(b"still")
            await accepted.has(5)
            transport.abort()
            server.close()

        self.play(scenario())

    def test_runsItself(self) -> None:
        """
        A class that is derived and runs in its own way, as trio-asyncio's does, has TCP: nothing serves its
        devices.
        """

        class Loop(EventLoop):
            def run_forever(self) -> None:
                super().run_forever()

        async def scenario() -> None:
            server = await asyncio.get_running_loop().create_server(Recorder, HOST, 0)
            connect = asyncio.get_running_loop().create_connection
            transport, _ = await connect(Recorder, *server.sockets[0].getsockname())
            found.append(type(transport.get_extra_info("socket")) is StreamSocket)
            transport.abort()
            server.close()
            await asyncio.sleep(0)

        found: list[bool] = []
        for made in EventLoop, Loop:
            loop = made()
            self.addCleanup(loop.close)
            loop.run_until_complete(scenario())
        self.assertEqual(found, [True, False])

    def test_otherThread(self) -> None:
        """
        A device that another thread adds is used in the event loop's.
        """

        async def scenario() -> None:
            server = await self.loop.create_server(Recorder, HOST, 0)
            (port,) = server._ports
            self.assertFalse(self.loop.reactor.inOtherThread())
            await self.loop.run_in_executor(None, addDevice, "more", "loopback")
            self.addCleanup(removeDevice, "more")
            while port.why.device != "shm0,more":
                await asyncio.sleep(0)
            threads = {each.device.name: each.device.thread for each in channelsOf(self.loop.reactor)}
            self.assertEqual(threads, dict.fromkeys(("shm0", "more"), get_ident()))
            server.close()

        self.play(scenario())

    def test_shutdownWithoutTransport(self) -> None:
        """
        C{shutdown} of a stream that has no transport yet ends it in order.
        """

        async def scenario() -> None:
            accepted = Recorder()
            server = await self.loop.create_server(lambda: accepted, HOST, 0)
            port = server.sockets[0].getsockname()[1]
            info = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (HOST, port))
            stream = await self.loop._connect_sock([], info)
            self.assertIsInstance(stream, StreamSocket)
            stream.shutdown(socket.SHUT_RDWR)
            await accepted.called("lost")
            self.assertEqual(accepted.log, ["made", "eof", ("lost", None)])
            server.close()

        self.play(scenario())

    def test_idleTurn(self) -> None:
        """
        A turn for a descriptor of somebody else's costs no call of this package until there is a device, and
        these while a device only listens.
        """
        if compiledModules():
            raise SkipTest("compiled modules: their calls are not counted")
        turns = 1000
        package = os.path.dirname(twisted_ib.__file__) + os.sep
        calls = 0

        def count(frame: Any, event: str, _: Any) -> None:
            nonlocal calls
            calls += event == "call" and frame.f_code.co_filename.startswith(package)

        async def perTurn() -> float:
            nonlocal calls
            done, left, calls = self.loop.create_future(), turns, 0

            def again() -> None:
                nonlocal left
                left -= 1
                one.recv(1)
                other.send(b"x") if left else done.set_result(None)

            one, other = socket.socketpair()
            with one, other:
                self.loop.add_reader(one, again)
                other.send(b"x")
                sys.setprofile(count)
                try:
                    await done
                finally:
                    sys.setprofile(None)
                    self.loop.remove_reader(one)
            return round(calls / turns)

        async def scenario() -> None:
            self.assertEqual(await perTurn(), 0)
            server = await self.loop.create_server(Recorder, HOST, 0)
            for _ in range(9):
                await asyncio.sleep(0)
            self.assertLessEqual(await perTurn(), CALLS_PER_IDLE_TURN)
            server.close()

        self.play(scenario())
