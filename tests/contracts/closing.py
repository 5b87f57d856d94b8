"""
How a stream ends: in order, by half, by a reset, and in the middle of a call.
"""

from __future__ import annotations

from typing import Any

from tests.contracts.pacing import Producer
from tests.internet.carriers import Accepting, Calling, HalfTalk, StreamContract, Talk
from tests.support.waiting import becomes


def close(protocol: Any) -> None:
    """
    Close a protocol's connection.
    """
    protocol.transport.loseConnection()


def abort(protocol: Any) -> None:
    """
    Reset it.
    """
    protocol.transport.abortConnection()


def _small(transport: Any) -> None:
    transport.write(b"x" * 64)


def _large(transport: Any) -> None:
    transport.write(b"x" * 300_000)


def _several(transport: Any) -> None:
    for _ in range(100):
        transport.writeSequence([b"x"] * 1000)


def _closing(transport: Any) -> None:
    transport.write(b"x")
    transport.loseConnection()


def _pushed(transport: Any) -> None:
    Producer(transport, 5).begin(True)


def _pulled(transport: Any) -> None:
    Producer(transport, 5).begin(False)


#: Ways to write.
_WRITES = (_small, _large, _several, _closing, _pushed, _pulled)


class ClosingContract(StreamContract):
    """
    One end closes, and both hear of it.
    """

    def test_inOrder(self) -> None:
        """
        Bytes written before a close arrive before the end, and both ends are notified of an orderly close.
        """

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            data = bytes(range(256)) * 8192
            client.transport.write(data)
            client.transport.loseConnection()
            await self.end(reactor, port, client, server)
            self.assertEqual(server.log, ["made", data, "ConnectionDone"])
            self.assertEqual(client.log, ["made", "ConnectionDone"])

        self.drive(steps)

    def test_writeBehindClose(self) -> None:
        """
        Bytes written in the turn of a close, behind it, leave, too.
        """

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            client.transport.write(b"before")
            client.transport.loseConnection()
            client.transport.write(b" and behind")
            await self.end(reactor, port, client, server)
            self.assertEqual(server.log, ["made", b"before and behind", "ConnectionDone"])

        self.drive(steps)

    def test_bothAtOnce(self) -> None:
        """
        Both ends close in one turn.
        """

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            close(client)
            close(server)
            await self.end(reactor, port, client, server)
            self.assertEqual((client.log, server.log), (["made", "ConnectionDone"],) * 2)

        self.drive(steps)

    def test_afterTheEnd(self) -> None:
        """
        After the end nothing that is asked of the transport does anything, or raises.
        """

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            close(client)
            await self.end(reactor, port, client, server)
            for protocol in (client, server):
                transport = protocol.transport
                self.assertEqual((transport.connected, transport.disconnected), (0, 1))
                transport.write(b"x")
                transport.writeSequence([b"x"])
                transport.loseConnection()
                transport.abortConnection()
                transport.pauseProducing()
                transport.resumeProducing()
                transport.stopProducing()
                await self.soon(reactor, 0.01)
                self.assertEqual(protocol.log, ["made", "ConnectionDone"])

        self.drive(steps)

    def test_halfClose(self) -> None:
        """
        After a half-close the other half goes on, and the rest of the end is in order.
        """

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor, HalfTalk(), HalfTalk())
            client.transport.write(b"question")
            client.transport.loseWriteConnection()
            await becomes(reactor, lambda: server.log[-1] == "readConnectionLost")
            await becomes(reactor, lambda: client.log[-1] == "writeConnectionLost")
            client.transport.write(b"too late")
            server.transport.write(b"answer")
            await becomes(reactor, lambda: client.got() == b"answer")
            self.assertEqual((client.transport.connected, server.transport.connected), (1, 1))
            server.transport.write(b" and more")
            server.transport.loseConnection()
            await becomes(reactor, lambda: client.log[-1] == "readConnectionLost")
            client.transport.loseConnection()
            await self.end(reactor, port, client, server)
            self.assertEqual(server.log, ["made", b"question", "readConnectionLost", "ConnectionDone"])
            says = ["made", "writeConnectionLost", b"answer and more", "readConnectionLost"]
            self.assertEqual(client.log, [*says, "ConnectionDone"])

        self.drive(steps)

    def test_halfCloseOfPlainProtocol(self) -> None:
        """
        To a protocol that knows of no halves it is the end.
        """

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor, Talk(), HalfTalk())
            client.transport.write(b"all")
            client.transport.loseWriteConnection()
            await becomes(reactor, server.ended)
            await becomes(reactor, lambda: client.log[-1] == "readConnectionLost")
            client.transport.loseConnection()
            await self.end(reactor, port, client, server)
            self.assertEqual(server.log, ["made", b"all", "ConnectionDone"])
            says = ["made", "writeConnectionLost", "readConnectionLost", "ConnectionDone"]
            self.assertEqual(client.log, says)

        self.drive(steps)

    def test_halfCloseOfBoth(self) -> None:
        """
        Two halves make no end of those who take halves: it comes when they close.
        """

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor, HalfTalk(), HalfTalk())
            both = (client, server)
            for protocol in both:
                protocol.transport.loseWriteConnection()
            await becomes(reactor, lambda: all(len(protocol.log) == 3 for protocol in both))
            await self.soon(reactor, 0.01)
            for protocol in both:
                self.assertEqual(set(protocol.log), {"made", "readConnectionLost", "writeConnectionLost"})
                close(protocol)
            await self.end(reactor, port, *both)
            self.assertEqual([protocol.log[-1] for protocol in both], ["ConnectionDone"] * 2)

        self.drive(steps)

    def test_abort(self) -> None:
        """
        An abort loses what is not read, and the peer sees it as the loss that it is.
        """

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            client.transport.write(b"x" * 10_000_000)
            abort(client)
            self.assertEqual(client.log, ["made"])
            client.transport.abortConnection()
            client.transport.loseConnection()
            client.transport.write(b"y")
            await self.end(reactor, port, client, server)
            self.assertEqual(client.log, ["made", "ConnectionAborted"])
            self.assertEqual((server.log[-1], len(server.got()) < 10_000_000), ("ConnectionLost", True))

        self.drive(steps)

    def test_abortTakesBack(self) -> None:
        """
        What is written in one call with an abort does not reach the peer (issue 16, point 1).
        """

        async def steps(reactor: Any) -> None:
            for write in _WRITES:
                for inCallback in (True, False):
                    with self.subTest(write=write.__name__, inCallback=inCallback):
                        await self._takesBack(reactor, write, inCallback)

        self.drive(steps)

    async def _takesBack(self, reactor: Any, write: Any, inCallback: bool) -> None:
        def act(one: Any) -> None:
            write(one.transport)
            abort(one)
            one.transport.write(b"behind it")

        server = Talk(data=lambda one: one.transport.write(b"answer"))
        client = Talk(data=act) if inCallback else Talk()
        port = self.carrier.listen(reactor, Accepting(server))
        self.carrier.connect(reactor, self.carrier.host, port.getHost().port, Calling(client))
        await becomes(reactor, lambda: client.log and server.log)
        client.transport.write(b"question")
        if not inCallback:
            await becomes(reactor, client.got)
            act(client)
        await self.end(reactor, port, client, server)
        self.assertEqual(client.log, ["made", b"answer", "ConnectionAborted"])
        self.assertEqual(server.log, ["made", b"question", "ConnectionLost"])

    def test_abortAfterClose(self) -> None:
        """
        A close that does not get on can be ended by an abort.
        """

        async def steps(reactor: Any) -> None:
            server = Talk(made=lambda one: one.transport.pauseProducing())
            port, client, server = await self.pair(reactor, server)
            client.transport.write(b"x" * 20_000_000)
            client.transport.loseConnection()
            await self.soon(reactor, 0.05)
            self.assertEqual(client.log, ["made"])
            abort(client)
            await becomes(reactor, client.ended)
            server.transport.resumeProducing()
            await self.end(reactor, port, client, server)
            self.assertEqual(client.log, ["made", "ConnectionAborted"])
            self.assertEqual(server.log[-1], "ConnectionLost")

        self.drive(steps)

    def test_endBehindUnread(self) -> None:
        """
        The end waits behind what is not read, as long as nobody reads.
        """

        async def steps(reactor: Any) -> None:
            server = Talk(made=lambda one: one.transport.pauseProducing())
            port, client, server = await self.pair(reactor, server)
            client.transport.write(b"x" * 1000)
            client.transport.loseConnection()
            await becomes(reactor, client.ended)
            await self.soon(reactor, 0.03)
            self.assertEqual(server.log, ["made"])
            server.transport.resumeProducing()
            await self.end(reactor, port, client, server)
            self.assertEqual(server.log, ["made", b"x" * 1000, "ConnectionDone"])

        self.drive(steps)

    def test_pausedAtTheEnd(self) -> None:
        """
        A protocol that pauses with the last data hears of the end when reading again.
        """

        async def steps(reactor: Any) -> None:
            server = Talk(data=lambda one: one.transport.pauseProducing())
            port, client, server = await self.pair(reactor, server)
            client.transport.write(b"last")
            client.transport.loseConnection()
            await becomes(reactor, lambda: client.ended() and server.got())
            await self.soon(reactor, 0.03)
            self.assertEqual(server.log, ["made", b"last"])
            server.transport.resumeProducing()
            await self.end(reactor, port, client, server)
            self.assertEqual(server.log, ["made", b"last", "ConnectionDone"])

        self.drive(steps)

    def test_writeToClosedPeer(self) -> None:
        """
        A write to a peer that has closed does not fail at once; who goes on hears of it in a later turn.
        """

        async def steps(reactor: Any) -> None:
            server = Talk(made=lambda one: one.transport.pauseProducing())
            port, client, server = await self.pair(reactor, server)
            close(client)
            await becomes(reactor, client.ended)
            await self.soon(reactor, 0.02)
            server.transport.write(b"first")
            self.assertEqual(server.log, ["made"])
            for _ in range(500):
                await self.soon(reactor, 0.002)
                if server.ended():
                    break
                log = list(server.log)
                server.transport.write(b"again")
                self.assertEqual(server.log, log)
            await self.end(reactor, port, server)
            self.assertEqual(server.log, ["made", "ConnectionLost"])

        self.drive(steps)

    def test_closeWithUnread(self) -> None:
        """
        A close without having read all is a close to both ends.
        """

        async def steps(reactor: Any) -> None:
            server = Talk(made=lambda one: one.transport.pauseProducing())
            port, client, server = await self.pair(reactor, server)
            client.transport.write(b"never read")
            await self.soon(reactor, 0.05)
            close(server)
            await self.end(reactor, port, client, server)
            self.assertEqual((client.log, server.log), (["made", "ConnectionDone"],) * 2)

        self.drive(steps)


class ReentryContract(StreamContract):
    """
    Ends that begin in a protocol's own calls.
    """

    def closes(self, call: Any, name: str, reasons: tuple[str, str], kind: Any = Talk) -> None:
        """
        Do something in one call of the server's protocol, to which much happens.

        @param reasons: What the server and the client hear at last.
        """

        async def steps(reactor: Any) -> None:
            depth: list[int] = [0]

            def inside(protocol: Any) -> None:
                self.assertEqual(depth, [0])
                depth[0] += 1
                before = list(protocol.log)
                call(protocol)
                self.assertEqual(protocol.log, before, "called from within a call")
                depth[0] -= 1

            server: Any = kind(**{name: inside, "lost": lambda one: self.assertEqual(depth, [0])})
            client = HalfTalk(read=close)
            port = self.carrier.listen(reactor, Accepting(server))
            self.carrier.connect(reactor, self.carrier.host, port.getHost().port, Calling(client))
            await becomes(reactor, lambda: client.log and server.log)
            if name != "made":
                # Data after a close makes TCP reset the connection.
                client.transport.write(b"question")
            if name == "read":
                client.transport.loseWriteConnection()
            await self.end(reactor, port, client, server)
            self.assertEqual((server.log[-1], client.log[-1]), reasons)
            self.assertEqual(sum(entry in reasons for entry in server.log), 1)

        self.drive(steps)

    def test_closeInConnectionMade(self) -> None:
        """
        A close in C{connectionMade}.
        """
        self.closes(lambda one: (one.transport.write(b"bye"), close(one)), "made", _DONE)

    def test_closeInDataReceived(self) -> None:
        """
        In C{dataReceived}, twice.
        """
        self.closes(lambda one: (close(one), close(one)), "data", _DONE)

    def test_closeInReadConnectionLost(self) -> None:
        """
        In C{readConnectionLost}.
        """
        self.closes(close, "read", _DONE, HalfTalk)

    def test_abortInConnectionMade(self) -> None:
        """
        An abort in C{connectionMade}.
        """
        self.closes(abort, "made", _ABORTED)

    def test_abortInDataReceived(self) -> None:
        """
        In C{dataReceived}, with more to come.
        """
        self.closes(lambda one: (one.transport.write(b"x"), abort(one), abort(one)), "data", _ABORTED)

    def test_abortInReadConnectionLost(self) -> None:
        """
        In C{readConnectionLost}: nothing is left to reset, but the other half.
        """
        self.closes(abort, "read", _ABORTED, HalfTalk)

    def test_everythingInConnectionLost(self) -> None:
        """
        In C{connectionLost} nothing has an effect any more.
        """

        async def steps(reactor: Any) -> None:
            def last(one: Any) -> None:
                for name in ("loseConnection", "abortConnection", "pauseProducing"):
                    getattr(one.transport, name)()
                one.transport.write(b"x")
                one.transport.resumeProducing()

            port, client, server = await self.pair(reactor, Talk(lost=last), Talk(lost=last))
            close(client)
            await self.end(reactor, port, client, server)
            self.assertEqual((client.log, server.log), (["made", "ConnectionDone"],) * 2)

        self.drive(steps)

    def test_ownMethod(self) -> None:
        """
        A protocol that sets C{dataReceived} on itself, in C{connectionMade} or later, has that one called.
        """

        async def steps(reactor: Any) -> None:
            heard: list[bytes] = []
            own = {"dataReceived": heard.append}
            port, client, server = await self.pair(reactor, Talk(made=lambda one: vars(one).update(own)))
            client.transport.write(b"ask")
            await becomes(reactor, lambda: heard == [b"ask"])
            vars(client).update(own)
            server.transport.write(b"answer")
            await becomes(reactor, lambda: heard == [b"ask", b"answer"])
            client.transport.loseConnection()
            await self.end(reactor, port, client, server)

        self.drive(steps)

    def test_errorInDataReceived(self) -> None:
        """
        An exception is logged, and is the reason of the end; to the peer it is an end in order.
        """

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor, Talk(data=lambda one: 1 // 0))
            client.transport.write(b"x")
            await self.end(reactor, port, client, server)
            self.assertEqual(server.log, ["made", b"x", "ZeroDivisionError"])
            self.assertEqual(client.log, ["made", "ConnectionDone"])
            self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

        self.drive(steps)

    def test_errorInConnectionMadeOfClient(self) -> None:
        """
        The same in a client's C{connectionMade}.
        """

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor, Talk(), Talk(made=lambda one: 1 // 0))
            await self.end(reactor, port, client, server)
            self.assertEqual(client.log, ["made", "ZeroDivisionError"])
            self.assertEqual(server.log, ["made", "ConnectionDone"])
            self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

        self.drive(steps)

    def test_errorInConnectionMadeOfServer(self) -> None:
        """
        In a server's it is logged, and no more: the connection stands.
        """

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor, Talk(made=lambda one: 1 // 0))
            client.transport.write(b"x")
            await becomes(reactor, lambda: server.got() or server.ended())
            close(client)
            await self.end(reactor, port, client, server)
            self.assertEqual(server.log, ["made", b"x", "ConnectionDone"])
            self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

        self.drive(steps)

    def test_errorInConnectionLost(self) -> None:
        """
        In C{connectionLost} it is logged, and the peer's end is as ever.
        """

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor, Talk(lost=lambda one: 1 // 0))
            close(client)
            await self.end(reactor, port, client, server)
            self.assertEqual((client.log, server.log), (["made", "ConnectionDone"],) * 2)
            self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

        self.drive(steps)


_DONE = ("ConnectionDone", "ConnectionDone")
_ABORTED = ("ConnectionAborted", "ConnectionLost")
