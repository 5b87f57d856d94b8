"""
A stream and its reactor: who reads, what happens when it stops, and that nothing is kept.
"""

from __future__ import annotations

import gc
import socket
from typing import Any
from weakref import ref

from twisted.internet import error
from twisted.internet.asyncioreactor import AsyncioSelectorReactor
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool
from twisted.trial.unittest import SkipTest

from tests.contracts.pacing import Producer
from tests.internet.carriers import Accepting, Calling, HalfTalk, StreamContract, Talk
from tests.support.waiting import HANG_SECONDS, becomes


def _close(protocol: Any) -> None:
    """
    Close a protocol's connection.
    """
    protocol.transport.loseConnection()


class ReactorContract(StreamContract):
    """
    The reactor and its streams.
    """

    def test_readers(self) -> None:
        """
        A transport and a port are among the reactor's readers while they read.
        """

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor, HalfTalk(), HalfTalk())
            await self.soon(reactor)
            here, there = client.transport, server.transport
            for one in (here, there, port):
                self.assertIn(one, reactor.getReaders())
            here.pauseProducing()
            port.stopReading()
            self.assertEqual([one in reactor.getReaders() for one in (here, port)], [False, False])
            here.resumeProducing()
            port.startReading()
            self.assertEqual([one in reactor.getReaders() for one in (here, there, port)], [True] * 3)
            here.loseWriteConnection()
            await becomes(reactor, lambda: server.log[-1] == "readConnectionLost")
            self.assertEqual([one in reactor.getReaders() for one in (here, there)], [True, False])
            there.loseConnection()
            self.assertNotIn(there, reactor.getReaders())
            await becomes(reactor, lambda: client.log[-1] == "readConnectionLost")
            here.loseConnection()
            await self.end(reactor, port, client, server)
            for one in (here, there, port):
                self.assertNotIn(one, reactor.getReaders())

        self.drive(steps)

    def test_putOff(self) -> None:
        """
        Calls that a protocol schedules with C{callLater(0)} come before the answer to what it writes, and
        before the end that it or its peer asks for meanwhile.
        """

        async def steps(reactor: Any) -> None:
            order: list[str] = []

            def serve(one: Any) -> None:
                order.append("data")
                reactor.callLater(0, order.append, "later")
                one.transport.write(b"answer")

            def call(one: Any) -> None:
                if len(one.got()) < 60:
                    one.transport.write(b"question")
                else:
                    one.transport.loseConnection()
                    server.transport.loseConnection()

            server = Talk(data=serve, lost=lambda one: order.append("lost"))
            port, client, _ = await self.pair(reactor, server, Talk(data=call))
            client.transport.write(b"question")
            await self.end(reactor, port, client, server)
            self.assertEqual(order, [*(["data", "later"] * 10), "lost"])

        self.drive(steps)

    def test_putOffBeforeClose(self) -> None:
        """
        The same of who closes at once, by half or as a whole.
        """

        async def steps(reactor: Any) -> None:
            order: list[str] = []

            def half(one: Any) -> None:
                reactor.callLater(0, order.append, "later")
                one.transport.loseWriteConnection()

            def whole(one: Any) -> None:
                reactor.callLater(0, order.append, "later")
                one.transport.loseConnection()

            server = HalfTalk(
                data=half,
                written=lambda one: order.append("written"),
                read=whole,
                lost=lambda one: order.append("lost"),
            )
            port, client, server = await self.pair(reactor, server, HalfTalk(read=_close))
            client.transport.write(b"x")
            await self.end(reactor, port, client, server)
            self.assertEqual(sorted(order[:2]), ["later", "written"])
            self.assertEqual(sorted(order[2:]), ["later", "lost"])
            if not isinstance(reactor, AsyncioSelectorReactor):  # It looks at descriptors first.
                self.assertEqual(order[0], "later")

        self.drive(steps)

    def test_stop(self) -> None:
        """
        A reactor that stops loses its connections, and its ports.
        """
        reactor: Any = self.buildReactor()
        client, server = Talk(), Talk()
        clients, accepting = Calling(client), Accepting(server)

        def begin() -> None:
            port = self.carrier.listen(reactor, accepting)
            self.carrier.connect(reactor, self.carrier.host, port.getHost().port, clients)
            stop()

        def stop() -> None:
            if client.log and server.log:
                reactor.stop()
            else:
                reactor.callLater(0.05, stop)

        reactor.callWhenRunning(begin)
        self.runReactor(reactor, timeout=HANG_SECONDS)
        self.assertEqual((client.log, server.log), (["made", "ConnectionLost"],) * 2)
        self.assertEqual((clients.log, accepting.stopped), (["started", "lost: ConnectionLost"], 1))

    def test_stopInCall(self) -> None:
        """
        A reactor that is stopped by a protocol, in each of its calls.
        """
        for name in ("made", "data", "lost"):
            reactor: Any = self.buildReactor()
            server = Talk(**{name: lambda one: reactor.running and reactor.stop()})  # noqa: B023
            client = Talk(made=lambda one: (one.transport.write(b"x"), one.transport.loseConnection()))

            def begin() -> None:
                port = self.carrier.listen(reactor, Accepting(server))  # noqa: B023
                self.carrier.connect(reactor, self.carrier.host, port.getHost().port, Calling(client))  # noqa: B023

            reactor.callWhenRunning(begin)
            self.runReactor(reactor, timeout=HANG_SECONDS)
            self.assertTrue(server.ended())
            ends = [entry for entry in server.log if str(entry).startswith("Conn")]
            self.assertEqual(ends, server.log[-1:])

    def test_forgotten(self) -> None:
        """
        Nothing keeps a connection that is over.
        """
        kept: list[Any] = []

        async def steps(reactor: Any) -> None:
            for end in ("loseConnection", "abortConnection"):
                port, client, server = await self.pair(reactor)
                kept.extend(ref(one) for one in (client, server, client.transport, server.transport))
                client.transport.write(b"x" * 100_000)
                await becomes(reactor, lambda one=server: len(one.got()) == 100_000)
                getattr(server.transport, end)()
                await self.end(reactor, port, client, server)
                del client, server, port
            for _ in range(20):
                await self.soon(reactor, 0.005)
                gc.collect()
                if not any(one() for one in kept):
                    break
            self.assertEqual([one() for one in kept], [None] * 8)

        self.drive(steps)

    def test_manyAtOnce(self) -> None:
        """
        Connections that are made and lost in waves leave nothing behind, whoever ends them.
        """

        async def steps(reactor: Any) -> None:
            accepting = Accepting()
            port = self.carrier.listen(reactor, accepting)
            for wave in range(3):
                calling = [Calling() for _ in range(20)]
                for clients in calling:
                    self.carrier.connect(reactor, self.carrier.host, port.getHost().port, clients)
                await becomes(reactor, lambda: len(accepting.made) == 20 * (wave + 1))  # noqa: B023
                await becomes(reactor, lambda: all(each.one.log for each in calling))  # noqa: B023
                peers = {server.peer.port: server for server in accepting.made}
                for number, clients in enumerate(calling):
                    one = clients.one if number % 2 else peers[clients.one.host.port]
                    (one.transport.abortConnection if number % 3 else one.transport.loseConnection)()
                await becomes(reactor, lambda: all(each.one.ended() for each in calling))  # noqa: B023
            await self.end(reactor, port, *accepting.made)

        self.drive(steps)

    def test_threads(self) -> None:
        """
        Threads write by C{callFromThread}, in order.
        """

        async def steps(reactor: Any) -> None:
            pool = ThreadPool(1, 1)
            pool.start()
            port, client, server = await self.pair(reactor)

            def work() -> None:
                for number in range(200):
                    reactor.callFromThread(client.transport.write, b"%d;" % number)

            await deferToThreadPool(reactor, pool, work)
            pool.stop()
            whole = b"".join(b"%d;" % number for number in range(200))
            await becomes(reactor, lambda: server.got() == whole)
            client.transport.loseConnection()
            await self.end(reactor, port, client, server)

        self.drive(steps)

    def test_abortWithProducer(self) -> None:
        """
        An abort stops the producer, once, and a close after it changes nothing.
        """

        async def steps(reactor: Any) -> None:
            for streaming in (False, True):
                port, client, server = await self.pair(reactor)
                producer = Producer(client.transport, 1000)
                producer.begin(streaming)
                client.transport.abortConnection()
                client.transport.loseConnection()
                await self.end(reactor, port, client, server)
                self.assertEqual(producer.log.count("stop"), 1)
                self.assertEqual((client.log[-1], server.log[-1]), ("ConnectionAborted", "ConnectionLost"))

        self.drive(steps)

    def test_serviceName(self) -> None:
        """
        A port that is given by the name of its service.
        """
        try:
            number = socket.getservbyname("discard", "tcp")
        except OSError:
            raise SkipTest("this host does not know its services") from None

        async def steps(reactor: Any) -> None:
            clients = Calling()
            connector = self.carrier.connect(reactor, self.carrier.host, "discard", clients)
            self.assertEqual(connector.getDestination().port, number)
            await becomes(reactor, lambda: len(clients.log) > 1)
            self.assertEqual(clients.log, ["started", "failed: ConnectionRefusedError"])
            self.assertRaises(
                error.ServiceNameUnknownError,
                self.carrier.connect,
                reactor,
                self.carrier.host,
                "no-such-service",
                Calling(),
            )

        self.drive(steps)
