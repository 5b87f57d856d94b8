"""
Tests for L{twisted_ib.sdp.port}: when an end begins to read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionLost
from twisted.internet.protocol import Protocol
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from tests.sdp.fakes import FakeChannel, FakeReactor, RecordingProtocol
from twisted_ib.internet.addressing.addresses import addressOf
from twisted_ib.internet.serverclient import ConnectedTransport
from twisted_ib.sdp.port import SDPClient, SDPServer
from twisted_ib.sdp.protocol import wire


class _Connector:
    """
    The factory of a client.
    """

    def __init__(self) -> None:
        """
        Nothing is lost.
        """
        self.reasons: list[Any] = []

    def connectionLost(self, reason: Any) -> None:
        self.reasons.append(reason)


class _Acting(RecordingProtocol):
    """
    Does something with its transport as soon as it has one.
    """

    def __init__(self, act: Callable[[Any], None]) -> None:
        """
        @param act: What.
        """
        self.act = act
        self.data: list[bytes] = []

    def dataReceived(self, data: bytes) -> None:
        """
        Collect.
        """
        self.data.append(data)

    def connectionMade(self) -> None:
        """
        Do it.
        """
        RecordingProtocol.connectionMade(self)
        self.act(self.transport)


class EndTestsMixin:
    """
    Tests of both ends.
    """

    def make(self) -> Any:
        """
        Make an end.
        """
        raise NotImplementedError

    def setUp(self) -> None:
        """
        Make a device.
        """
        self.number = 0
        self.reactor = FakeReactor()
        self.channel: Any = FakeChannel(self.reactor)
        self.local = addressOf("127.0.0.1", 50000)
        self.peer = addressOf("127.0.0.2", 5001)

    def attached(self: Any, act: Callable[[Any], None] = lambda transport: None) -> Any:
        """
        Make an end with a protocol.
        """
        end = self.make()
        self.channel.acquire(end)
        end.attach(_Acting(act))
        self.assertTrue(end.protocol.made)
        return end

    def test_nextTurn(self: Any) -> None:
        """
        Data that comes in the turn of C{connectionMade} is delivered in the batch of the next turn; later
        data goes straight to the protocol.
        """
        end = self.attached()
        self.assertTrue(end.reading)
        end.endOfBatch()
        self.arrive(end, b"early")
        end.endOfBatch()
        self.assertEqual(end.protocol.data, [])
        self.reactor.advance(0)
        self.assertEqual(self.reactor.getDelayedCalls(), [])
        self.assertEqual(end.protocol.data, [])
        self.assertIn(end, self.channel.device.dirty)
        end.endOfBatch()
        self.assertEqual(end.protocol.data, [b"early"])
        self.arrive(end, b"late")
        self.assertEqual(end.protocol.data, [b"early", b"late"])

    def test_nothingEarly(self: Any) -> None:
        """
        If nothing came nothing is to be done.
        """
        end = self.attached()
        end.endOfBatch()
        self.channel.device.dirty.clear()
        self.reactor.advance(0)
        self.assertEqual(self.channel.device.dirty, [])
        self.arrive(end, b"late")
        self.assertEqual(end.protocol.data, [b"late"])

    def test_offeredEarly(self: Any) -> None:
        """
        A SrcAvail received in that turn is read in the next, though nothing else comes.
        """
        end = self.attached()
        end.openExtensions()
        end.endOfBatch()
        self.channel.device.dirty.clear()
        self.reactor.advance(0)
        self.assertEqual(self.channel.device.dirty, [end])

    def arrive(self, end: Any, data: bytes) -> None:
        """
        Let data come.
        """
        self.number += 1
        message = wire.Data(buffers=24, sequence=self.number, payload=data).pack()
        end.received(message, 0, len(message))

    def test_pausedAtOnce(self: Any) -> None:
        """
        A protocol that pauses in C{connectionMade} stays paused.
        """
        end = self.attached(lambda transport: transport.pauseProducing())
        self.assertEqual(self.reactor.getDelayedCalls(), [])
        self.arrive(end, b"early")
        self.assertFalse(end.reading)
        end.resumeProducing()
        self.assertTrue(end.reading)
        end.endOfBatch()
        self.assertEqual(end.protocol.data, [b"early"])

    def test_pausedNothingEarly(self: Any) -> None:
        """
        Likewise if nothing came.
        """
        end = self.attached(lambda transport: transport.pauseProducing())
        end.resumeProducing()
        self.arrive(end, b"late")
        self.assertEqual(end.protocol.data, [b"late"])

    def test_closedAtOnce(self: Any) -> None:
        """
        One that closes or aborts does not, and leaves no call behind.
        """
        for act in [
            lambda transport: transport.loseConnection(),
            lambda transport: transport.abortConnection(),
        ]:
            end = self.make()
            self.channel.acquire(end)
            end.attach(_Acting(act))
            self.assertFalse(end.reading)
            self.reactor.advance(0)
            self.assertFalse(end.reading)
            self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_noProtocol(self: Any) -> None:
        """
        Without a protocol the connection is closed in order, and nothing is
        read.
        """
        end = self.make()
        end.attach(None)
        self.assertTrue(end.disconnecting)
        self.assertIsInstance(end.protocol, Protocol)
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_kind(self: Any) -> None:
        """
        Both are L{ConnectedTransport}s.
        """
        self.assertIsInstance(self.make(), ConnectedTransport)


class ServerTests(EndTestsMixin, SynchronousTestCase):
    """
    Tests for L{SDPServer}.
    """

    def make(self) -> SDPServer:
        return SDPServer(self.channel, self.local, self.peer, None, 7)

    def test_names(self) -> None:
        """
        It is called as TCP's; its number can be assigned, and its peer's port number stays.
        """
        end: Any = self.attached()
        self.assertEqual(repr(end), "<_Acting #7 on 50000>")
        self.assertEqual(end.logPrefix(), "_Acting,7,127.0.0.2")
        self.assertEqual(end.client, ("127.0.0.2", 5001))
        end.sessionno = 5
        self.assertEqual((end.sessionno, end.client), (5, ("127.0.0.2", 5001)))

    def test_raises(self) -> None:
        """
        An exception of C{connectionMade} goes to the port, as with TCP.
        """
        self.assertRaises(ZeroDivisionError, self.attached, lambda transport: 1 // 0)

    def test_TLS(self) -> None:
        """
        C{startTLS} makes it a server.
        """
        self.assertFalse(self.make()._tlsClientDefault)


class ClientTests(EndTestsMixin, SynchronousTestCase):
    """
    Tests for L{SDPClient}.
    """

    def make(self) -> SDPClient:
        self.connector = _Connector()
        return SDPClient(self.channel, self.local, self.peer, self.connector)

    def test_names(self) -> None:
        """
        It is called as TCP's.
        """
        end: Any = self.attached()
        self.assertIn("to ('127.0.0.2', 5001) at ", repr(end))
        self.assertEqual(end.logPrefix(), "_Acting,client")

    def test_raises(self) -> None:
        """
        An exception of C{connectionMade} is logged and ends the connection.
        """
        end = self.make()
        self.channel.acquire(end)
        end.attach(_Acting(lambda transport: 1 // 0))
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        [reason] = self.connector.reasons
        self.assertTrue(reason.check(ZeroDivisionError))
        self.assertEqual(self.reactor.getDelayedCalls(), [])
        self.assertEqual(self.channel.users, [])

    def test_TLS(self) -> None:
        """
        C{startTLS} makes it a client.
        """
        self.assertTrue(self.make()._tlsClientDefault)

    def test_lostWhileLost(self) -> None:
        """
        A callback that learns of the end by a Deferred and ends the connection once more does not have the
        connector notified twice.
        """
        end = self.attached()
        waits: Deferred[None] = Deferred()
        waits.addErrback(end.connectionLost)
        end.openExtensions().orphans.append(waits)
        end.connectionLost(Failure(ConnectionLost()))
        self.assertEqual(len(self.connector.reasons), 1)
