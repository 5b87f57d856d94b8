"""
Tests of streams over reliable datagrams among peers that take nothing, over sockets on a wire in memory.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.error import ConnectionLost
from twisted.internet.protocol import ClientFactory, Factory, Protocol, connectionDone
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from tests.rds.net import Wire, hosts
from twisted_ib.rds import port as rdsPort
from twisted_ib.rds.paths import path
from twisted_ib.rds.protocol.frames import FrameKind, frame
from twisted_ib.rds.streams import streamsocket
from twisted_ib.rds.streams.connector import connectStream
from twisted_ib.rds.streams.listening import listenStreams

SERVER = "10.0.0.1"


class Recorder(Protocol):
    """
    Keeps what comes.
    """

    reason: Failure | None = None

    def __init__(self) -> None:
        self.got = 0

    def dataReceived(self, data: bytes) -> None:
        self.got += len(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.reason = reason


class Generous(Recorder):
    """
    Writes much to each client that connects.
    """

    def connectionMade(self) -> None:
        assert self.transport is not None
        self.transport.write(bytes(4 << 20))


class StallTests(SynchronousTestCase):
    """
    One who takes nothing keeps others waiting for a while only.
    """

    def setUp(self) -> None:
        """
        A server, a client, and a peer that knows the frames.
        """
        self.wire = Wire()
        self.hosts = {host.address: host for host in hosts(self.wire, 3)}

        def listenRDS(reactor: Any, port: int, protocol: Any, interface: str, device: Any) -> Any:
            return self.hosts[interface].socket(port, protocol)

        self.patch(streamsocket, "listenRDS", listenRDS)
        factory = Factory.forProtocol(Generous)
        self.accepted: list[Any] = []
        made = factory.buildProtocol

        def build(address: Any) -> Any:
            self.accepted.append(made(address))
            return self.accepted[-1]

        factory.buildProtocol = build  # type: ignore[method-assign]
        self.port = listenStreams(self.wire.clock, 4000, factory, SERVER)
        self.peer = self.hosts["10.0.0.3"].socket(5000)

    def serve(self) -> None:
        """
        Another client is served, soon, and nothing is left at the end.
        """
        client = Recorder()
        factory = ClientFactory.forProtocol(lambda: client)  # type: ignore[arg-type]
        connectStream(self.wire.clock, SERVER, 4000, factory, bindAddress=("10.0.0.2", 0))
        self.wire.advance(2 * streamsocket.RDS_STREAM_STALL_SECONDS + 1, 0.01)
        self.assertEqual(client.got, 4 << 20)
        self.assertIsNone(client.reason)
        assert client.transport is not None
        client.transport.loseConnection()
        for accepted in self.accepted:
            if accepted.reason is None:
                accepted.transport.abortConnection()
        self.wire.advance(1.0, 0.01)
        self.port.stopListening()
        self.peer.stopListening()
        self.wire.advance(rdsPort.RDS_LINGER_SECONDS + 1, 0.01)
        self.assertEqual(self.wire.clock.getDelayedCalls(), [])

    def ask(self) -> None:
        """
        The peer asks for a stream, with more room than there is.
        """
        self.peer.write(frame(FrameKind.OPEN, 7, 0, 1 << 60), (SERVER, 4000))

    def stall(self) -> Any:
        """
        The peer asks, and reads nothing any more.

        @return: The protocol that serves it.
        """
        self.peer.write(b"plain", (SERVER, 4000))
        self.wire.advance(1.0, 0.01)
        for carrier in self.wire.connections:
            carrier.paused = carrier.path.local == "10.0.0.3"
        self.ask()
        self.wire.advance(0.1)
        (accepted,) = self.accepted
        self.assertTrue(accepted.transport.socket._paused)
        return accepted

    def test_silent(self) -> None:
        """
        The peer does not even acknowledge.
        """
        accepted = self.stall()
        self.serve()
        self.assertIsInstance(accepted.reason.value, ConnectionLost)
        self.assertEqual(self.hosts[SERVER].network.counters["stream_stalled"], 1)

    def test_congested(self) -> None:
        """
        The peer says that its port is congested, and never that it is not.
        """
        self.hosts["10.0.0.3"].network.setCongested("10.0.0.3", 5000, True)
        self.ask()
        self.wire.advance(0.1)
        (accepted,) = self.accepted
        self.assertFalse(accepted.transport.socket._paused)
        self.serve()

    def test_ended(self) -> None:
        """
        Of streams with it that end nothing is kept.
        """
        self.hosts["10.0.0.3"].network.setCongested("10.0.0.3", 5000, True)
        for number in range(50):
            self.peer.write(frame(FrameKind.OPEN, number, 0, 1 << 60), (SERVER, 4000))
            self.wire.advance(0.1, 0.01)
            self.peer.write(frame(FrameKind.GONE, number), (SERVER, 4000))
        self.wire.advance(0.1)
        self.assertEqual(len(self.accepted), 50)
        socket = self.accepted[0].transport.socket
        self.assertEqual(len(socket.streams), 0)
        self.assertEqual([*map(len, socket._congested.values())], [0])
        self.serve()

    def test_cleared(self) -> None:
        """
        When it is not any more, its streams go on.
        """
        network = self.hosts["10.0.0.3"].network
        network.setCongested("10.0.0.3", 5000, True)
        self.ask()
        self.wire.advance(1.0, 0.01)
        self.assertEqual(self.peer.protocol.got, [])
        network.setCongested("10.0.0.3", 5000, False)
        self.wire.advance(1.0, 0.01)
        self.assertEqual(sum(len(data) - 32 for data, _ in self.peer.protocol.got), 4 << 20)
        self.serve()

    def test_several(self) -> None:
        """
        Several that do so keep nobody waiting.
        """
        network = self.hosts["10.0.0.3"].network
        sockets = [self.hosts["10.0.0.3"].socket(5001 + index) for index in range(5)]
        for index, socket in enumerate(sockets):
            network.setCongested("10.0.0.3", 5001 + index, True)
            socket.write(frame(FrameKind.OPEN, 7 + index, 0, 1 << 60), (SERVER, 4000))
        self.wire.advance(0.1)
        self.assertEqual(len(self.accepted), 5)
        for socket in sockets:
            socket.stopListening()
            self.patch(network, "setCongested", lambda *arguments: None)
        self.serve()

    def test_gone(self) -> None:
        """
        The peer's host is gone: what is for it does not use up what others have.
        """
        accepted = self.stall()
        del self.wire.media["10.0.0.3"]
        self.wire.breakAll()
        self.wire.advance(path.RDS_GONE_SECONDS + streamsocket.RDS_STREAM_STALL_SECONDS + 1, 0.1)
        self.assertIsInstance(accepted.reason.value, ConnectionLost)
        self.assertEqual(accepted.transport.socket.transport.queued(), 0)
        self.wire.media["10.0.0.3"] = self.hosts["10.0.0.3"].network.medium
        self.serve()
