"""
Tests of L{twisted_ib.ipoib.protocol.connected}.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.base.machines import MachineTestsMixin
from tests.ipoib.medium import GID, pair
from tests.ipoib.protocol.timed import TimedTestCase
from twisted_ib import limits
from twisted_ib.ipoib.protocol.connected import (
    CONNECTION_TRANSITIONS,
    ConnectionAction,
    ConnectionInput,
    Connections,
    ConnectionState,
)
from twisted_ib.ipoib.protocol.neighbours import Neighbour, State
from twisted_ib.ipoib.protocol.peers import Peer, PeerPort
from twisted_ib.ipoib.protocol.wire import (
    ARP_HEADER,
    RC_CAPABLE,
    ARPPacket,
    packHardwareAddress,
    packPrivateData,
)

QPN = 0x55
PRIVATE = packPrivateData(0x77, 65524)


class Driver:
    """
    Records calls, and what connected mode asks for.
    """

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.handles = 0

    def connect(self, gid: int, qpn: int, privateData: bytes) -> int:
        self.handles += 1
        self.calls.append(("connect", gid, qpn, privateData))
        return self.handles

    def disconnect(self, handle: Any) -> None:
        self.calls.append(("disconnect", handle))

    def count(self, name: str) -> None:
        self.calls.append(name)

    def modeChanged(self, peer: Peer) -> None:
        self.calls.append(peer.state.name)


_S, _I = ConnectionState, ConnectionInput
CONNECT = ("connect", GID, 0x77, packPrivateData(QPN, 65524))
DISCONNECT = ("disconnect", 1)

#: Each state with each input: the state after it, and what is done.
MATRIX: dict[ConnectionState, dict[ConnectionInput, tuple[ConnectionState, list[Any]]]] = {
    _S.IDLE: {
        _I.WANTED: (_S.CONNECTING, [CONNECT]),
        _I.ACCEPTED: (_S.IDLE, []),
        _I.REFUSED: (_S.REFUSED, ["REFUSED"]),
        _I.ENDED: (_S.IDLE, []),
        _I.EXPIRED: (_S.IDLE, []),
        _I.DROPPED: (_S.IDLE, []),
    },
    _S.CONNECTING: {
        _I.WANTED: (_S.CONNECTING, []),
        _I.ACCEPTED: (_S.CONNECTED, ["CONNECTED"]),
        _I.REFUSED: (_S.REFUSED, ["REFUSED"]),
        _I.ENDED: (_S.REFUSED, ["REFUSED"]),
        _I.EXPIRED: (_S.CONNECTING, []),
        _I.DROPPED: (_S.IDLE, [DISCONNECT, "IDLE"]),
    },
    _S.CONNECTED: {
        _I.WANTED: (_S.CONNECTED, []),
        _I.ACCEPTED: (_S.CONNECTED, []),
        _I.REFUSED: (_S.CONNECTED, []),
        _I.ENDED: (_S.LOST, ["LOST"]),
        _I.EXPIRED: (_S.IDLE, [DISCONNECT, "IDLE"]),
        _I.DROPPED: (_S.IDLE, [DISCONNECT, "IDLE"]),
    },
    _S.LOST: {
        _I.WANTED: (_S.LOST, []),
        _I.ACCEPTED: (_S.LOST, []),
        _I.REFUSED: (_S.LOST, []),
        _I.ENDED: (_S.LOST, []),
        _I.EXPIRED: (_S.IDLE, ["IDLE"]),
        _I.DROPPED: (_S.IDLE, ["IDLE"]),
    },
    _S.REFUSED: {
        _I.WANTED: (_S.REFUSED, []),
        _I.ACCEPTED: (_S.REFUSED, []),
        _I.REFUSED: (_S.REFUSED, []),
        _I.ENDED: (_S.REFUSED, []),
        _I.EXPIRED: (_S.IDLE, ["IDLE"]),
        _I.DROPPED: (_S.IDLE, ["IDLE"]),
    },
}


class ConnectionsTestCase(TimedTestCase):
    """
    The connections of one interface.
    """

    def setUp(self) -> None:
        """
        None.
        """
        super().setUp()
        self.driver = self.user = Driver()
        self.connections = self.made(isEnabled=True)

    def made(self, isEnabled: bool) -> Connections:
        """
        @return: connections.
        """
        private = QPN, 65524
        return Connections(self.driver, self.driver, self.timers, self.clock, private, isEnabled)

    def peer(self, number: int = 0) -> Peer:
        """
        @return: a peer with connected mode and a path.
        """
        port = PeerPort(GID + number)
        port.path = "path"
        peer = Peer(port, 0x77)
        peer.capabilities = RC_CAPABLE
        peer.neighbours.append(Neighbour(b"1234", State.REACHABLE, self.now))
        return peer

    def inState(self, state: ConnectionState) -> Peer:
        """
        @return: a peer whose connection is in a state; the handle was 1.
        """
        peer = self.peer()
        if state is not _S.IDLE:
            self.connections.want(peer)
        if state in (_S.CONNECTED, _S.LOST):
            self.connections.connected(1, PRIVATE)
        if state is _S.LOST:
            self.connections.ended(1)
        if state is _S.REFUSED:
            self.connections.failed(1)
        self.assertIs(peer.state, state)
        self.calls()
        return peer


class TransitionTests(MachineTestsMixin, ConnectionsTestCase):
    """
    Each state with each input.
    """

    machine = CONNECTION_TRANSITIONS
    stateType, inputType, actionType = ConnectionState, ConnectionInput, ConnectionAction

    def check(self, state: ConnectionState, event: ConnectionInput) -> None:
        """
        The connection has the state after the input, a handle in CONNECTING and CONNECTED only, and a timer
        where it ends by itself.
        """
        after, calls = MATRIX[state][event]
        peer = self.inState(state)
        self.connections.input(peer, event)
        self.assertEqual(self.calls(), calls, (state, event))
        self.assertIs(peer.state, after, (state, event))
        self.assertEqual(peer.handle is not None, after in (_S.CONNECTING, _S.CONNECTED))
        self.assertEqual(len(self.connections), peer.handle is not None)
        hasTimer = after in (_S.CONNECTED, _S.LOST, _S.REFUSED)
        self.assertEqual(self.timers.deadline() is not None, hasTimer, (state, event))


class OutgoingTests(ConnectionsTestCase):
    """
    Connections to peers.
    """

    def test_mtu(self) -> None:
        """
        The peer says how long packets may be.
        """
        peer = self.inState(_S.CONNECTING)
        self.connections.connected(1, packPrivateData(0x77, 4000))
        self.assertEqual((peer.state, peer.mtu), (_S.CONNECTED, 3996))

    def test_wrongReply(self) -> None:
        """
        A reply with too small an MTU, of another queue pair or without private data: datagrams are sent.
        """
        for privateData in (packPrivateData(0x77, 2047), packPrivateData(0x78, 65524), b""):
            self.setUp()
            peer = self.inState(_S.CONNECTING)
            self.connections.connected(1, privateData)
            self.assertIs(peer.state, _S.REFUSED)
            self.assertEqual(self.calls(), ["connections_refused", DISCONNECT, "REFUSED"])

    def test_late(self) -> None:
        """
        Answers for connections that are gone are ignored.
        """
        peer = self.inState(_S.CONNECTING)
        self.connections.drop(peer)
        self.calls()
        self.connections.connected(1, PRIVATE)
        self.connections.failed(1)
        self.assertIsNone(self.connections.ended(1))
        self.assertEqual(self.calls(), [])

    def test_again(self) -> None:
        """
        A peer that has refused is asked again after a while, one that was lost sooner.
        """
        for state, seconds in (
            (_S.REFUSED, limits.IPOIB_RECONNECT_SECONDS),
            (_S.LOST, limits.IPOIB_BACKOFF_LEAST),
        ):
            self.setUp()
            peer = self.inState(state)
            self.advance(seconds - 0.01)
            self.connections.want(peer)
            self.assertEqual(self.calls(), [])
            self.advance(0.01)
            self.connections.want(peer)
            self.assertEqual(self.calls(), ["IDLE", CONNECT])

    def test_possible(self) -> None:
        """
        Only where both have connected mode, and the peer has not refused.
        """
        for state in ConnectionState:
            self.setUp()
            peer = self.inState(state)
            self.assertEqual(self.connections.isPossible(peer), state is not _S.REFUSED)
        peer = self.peer()
        peer.capabilities = 0
        self.assertFalse(self.connections.isPossible(peer))
        self.connections.want(peer)
        self.made(isEnabled=False).want(self.peer())
        self.assertEqual(self.calls(), [])

    def test_unused(self) -> None:
        """
        It ends so long after the last packet to one of the peer's addresses.
        """
        peer = self.inState(_S.CONNECTED)
        self.advance(100.0)
        peer.neighbours[0].used = self.now
        self.advance(limits.IPOIB_IDLE_SECONDS - 0.01)
        self.assertEqual(self.calls(), [])
        self.advance(0.02)
        self.assertEqual(self.calls(), [DISCONNECT, "IDLE"])

    def test_bound(self) -> None:
        """
        Above the bound peers get datagrams.
        """
        for number in range(limits.IPOIB_CONNECTIONS - 1):
            self.connections.want(self.peer(number))
        self.assertIsNotNone(self.connections.requested("in", GID - 1, PRIVATE))
        self.assertEqual(len(self.connections), limits.IPOIB_CONNECTIONS)
        peer = self.peer()
        self.connections.want(peer)
        self.assertIs(peer.state, _S.REFUSED)
        self.assertEqual(len(self.connections), limits.IPOIB_CONNECTIONS)


class IncomingTests(ConnectionsTestCase):
    """
    Connections from peers.
    """

    def test_accepted(self) -> None:
        """
        The answer has the own queue pair and the longest message.
        """
        answer = self.connections.requested("in", GID, PRIVATE)
        self.assertEqual(answer, bytes.fromhex("000000550000fff4"))
        self.assertEqual(list(self.connections.incoming), ["in"])

    def test_refused(self) -> None:
        """
        Wrong private data, and no connected mode.
        """
        for privateData in (b"", packPrivateData(1, 2047)):
            self.assertIsNone(self.connections.requested("in", GID, privateData))
        self.assertIsNone(self.made(isEnabled=False).requested("in", GID, PRIVATE))
        self.assertEqual(self.calls(), ["connections_refused"] * 3)

    def test_bound(self) -> None:
        """
        Above the bound none is accepted, but one in place of another of the same peer.
        """
        for number in range(limits.IPOIB_CONNECTIONS_INCOMING):
            self.assertIsNotNone(self.connections.requested(number, GID + number, PRIVATE))
        self.assertIsNone(self.connections.requested("more", GID - 1, PRIVATE))
        self.assertIsNotNone(self.connections.requested("again", GID + 5, PRIVATE))
        self.assertEqual(self.calls(), ["connections_refused", ("disconnect", 5)])
        for number in range(limits.IPOIB_CONNECTIONS - limits.IPOIB_CONNECTIONS_INCOMING):
            self.connections.want(self.peer(number))
        self.assertEqual(len(self.connections), limits.IPOIB_CONNECTIONS)

    def test_onePort(self) -> None:
        """
        One port has a few, whatever queue pairs it names; others are accepted, and connected to.
        """
        accepted = [
            self.connections.requested(number, GID, packPrivateData(number + 2, 65524)) is not None
            for number in range(limits.IPOIB_CONNECTIONS)
        ]
        self.assertEqual(accepted.count(True), limits.IPOIB_CONNECTIONS_PER_GID)
        self.assertIsNotNone(self.connections.requested("other", GID + 1, PRIVATE))
        self.inState(_S.CONNECTED)

    def test_unused(self) -> None:
        """
        It ends so long after the last packet.
        """
        self.connections.requested("in", GID, PRIVATE)
        self.advance(500.0)
        self.connections.incoming["in"].used = self.now
        self.advance(limits.IPOIB_IDLE_SECONDS - 0.01)
        self.assertEqual(self.calls(), [])
        self.advance(0.02)
        self.assertEqual(self.calls(), [("disconnect", "in")])
        self.assertEqual(len(self.connections), 0)

    def test_ended(self) -> None:
        """
        The peer ends it: nothing is left.
        """
        self.connections.requested("in", GID, PRIVATE)
        self.assertIsNone(self.connections.ended("in"))
        self.connections.ended("in")
        self.assertEqual(self.calls(), [])
        self.assertIsNone(self.timers.deadline())

    def test_closed(self) -> None:
        """
        Both directions end.
        """
        self.connections.requested("in", GID, PRIVATE)
        self.inState(_S.CONNECTED)
        self.connections.close()
        self.assertEqual(self.calls(), [("disconnect", "in"), DISCONNECT, "IDLE"])


class MachineTests(SynchronousTestCase):
    """
    Connected mode between machines.
    """

    def setUp(self) -> None:
        """
        Two nodes with a connection from one to the other.
        """
        self.medium, self.one, self.other = pair()
        self.one.send("10.9.0.2", bytes(60000))
        self.medium.advance(0.1)
        self.assertEqual(self.other.received(), [bytes(60000)])

    def test_oneWay(self) -> None:
        """
        Each direction has a connection of its own.
        """
        self.assertEqual((len(self.one.ends), len(self.other.ends)), (1, 1))
        self.other.send("10.9.0.1", b"back")
        self.medium.advance(0.1)
        self.assertEqual(self.one.received(), [b"back"])
        self.assertEqual((len(self.one.ends), len(self.other.ends)), (2, 2))
        self.assertEqual([each[0] for each in self.one.calls].count("connect"), 1)
        self.assertEqual([each[0] for each in self.other.calls].count("connect"), 1)

    def test_lost(self) -> None:
        """
        When a connection is lost, packets are datagrams, long ones wait, and it is made again.
        """
        (handle,) = self.one.ends
        self.other.disconnect(self.one.ends[handle][1])
        self.medium.advance(0.01)
        self.one.calls.clear()
        self.one.send("10.9.0.2", b"short", flags=0x4000)
        self.one.send("10.9.0.2", bytes(60000), flags=0x4000)
        self.medium.advance(0.01)
        self.assertEqual(self.other.received(), [b"short"])
        self.one.send("10.9.0.2", b"another")
        self.medium.advance(limits.IPOIB_BACKOFF_LEAST + 0.1)
        self.assertEqual(self.other.received(), [b"another", bytes(60000)])
        self.assertEqual(self.one.delivered, [])

    def test_restarted(self) -> None:
        """
        The loss of a connection has the neighbour confirmed at once: it may have been restarted.
        """
        self.other.stop()
        self.medium.loss = 1.0
        other = self.medium.node(2, "10.9.0.2/24", qpn=0x56)
        self.medium.advance(0.01)
        self.medium.loss = 0.0
        self.medium.advance(limits.IPOIB_RETRY_SECONDS + 0.05)
        self.one.send("10.9.0.2", b"again")
        self.medium.advance(0.05)
        self.assertEqual(other.received(), [b"again"])

    def test_heard(self) -> None:
        """
        While packets pass both ways on connections, nobody is asked, though all requests are lost.
        """
        self.other.send("10.9.0.1", b"back")
        self.medium.advance(0.1)
        self.medium.loss = 1.0
        for _ in range(100):
            self.one.send("10.9.0.2", b"there")
            self.other.send("10.9.0.1", b"back")
            self.medium.advance(0.1)
        self.assertEqual((len(self.one.received()), len(self.other.received())), (101, 100))
        self.assertEqual(self.one.counters["neighbour_failed"], 0)

    def test_shortPackets(self) -> None:
        """
        A connection is made again for packets of any length, not only for those that wait for it.
        """
        (handle,) = self.one.ends
        self.other.disconnect(self.one.ends[handle][1])
        for _ in range(30):
            self.medium.advance(0.1)
            self.one.send("10.9.0.2", b"short")
        self.assertEqual(len(self.one.ends), 1)
        self.assertEqual(self.one.calls[-1][0], "postConnected")

    def test_refused(self) -> None:
        """
        Who is refused sends datagrams, and reports the packets that are too long for them.
        """
        self.medium.refusesConnections = True
        self.other.send("10.9.0.1", b"short")
        self.other.send("10.9.0.1", bytes(3000), flags=0x4000)
        self.medium.advance(0.1)
        self.assertEqual(self.one.received(), [b"short"])
        (error,) = self.other.delivered
        self.assertEqual(error[20:28].hex()[:4] + error[24:28].hex(), "0304" + "000007fc")
        self.assertEqual(self.other.counters["fragmentation_needed"], 1)

    def test_tooLong(self) -> None:
        """
        A packet that is longer than announced ends the connection, and datagrams go on.
        """
        (handle,) = self.other.ends
        frame = bytes.fromhex("08000000") + bytes(65521)
        self.other.machine.connectedReceived(handle, frame, 0, len(frame), self.medium.now)
        self.assertEqual(self.other.counters["connected_too_long"], 1)
        self.assertEqual(self.other.calls[-1], ("disconnect", handle))
        self.medium.advance(0.01)
        self.one.send("10.9.0.2", b"datagram")
        self.medium.advance(0.01)
        self.assertEqual(self.other.received(), [b"datagram"])
        self.other.machine.connectedReceived(handle, frame, 0, 60, self.medium.now)
        self.assertEqual(self.other.received(), [])

    def test_full(self) -> None:
        """
        A packet that a connection has no room for is counted, also if its neighbour was to be confirmed.
        """
        self.medium.isFull = True
        self.one.send("10.9.0.2", b"1")
        self.assertEqual(self.one.counters["connected_full"], 1)
        self.medium.advance(10.0)
        self.one.send("10.9.0.2", b"2")
        self.assertEqual(self.one.counters["connected_full"], 2)

    def test_notCapable(self) -> None:
        """
        A peer that was restarted without connected mode gets datagrams.
        """
        self.other.stop()
        other = self.medium.node(2, "10.9.0.2/24", isConnected=False)
        self.medium.advance(0.1)
        self.one.calls.clear()
        self.one.send("10.9.0.2", b"1")
        self.medium.advance(0.1)
        self.assertEqual(other.received(), [b"1"])
        self.assertNotIn("connect", [each[0] for each in self.one.calls])
        self.assertEqual(self.one.ends, {})

    def test_otherPort(self) -> None:
        """
        On a connection too, nobody tells the hardware address of another port.
        """
        (handle,) = self.other.ends
        hardware = packHardwareAddress(0, 0x77, GID + 3)
        packet = ARPPacket(1, hardware, bytes((10, 9, 0, 3)), bytes(20), bytes((10, 9, 0, 2)))
        frame = ARP_HEADER + packet.pack()
        self.other.machine.connectedReceived(handle, frame, 0, len(frame), self.medium.now)
        self.assertEqual(self.other.counters["source_mismatch"], 1)

    def test_forgedCapabilities(self) -> None:
        """
        Neither another address with the peer's hardware address, asked or not, nor its own unasked, ends a
        connection.
        """
        hardware = packHardwareAddress(0, self.other.qpn, self.other.gid)
        for number, operation in ((77, 1), (77, 2), (2, 1)):
            sender, own = bytes((10, 9, 0, number)), bytes((10, 9, 0, 1))
            frame = ARP_HEADER + ARPPacket(operation, hardware, sender, bytes(20), own).pack()
            self.one.machine.datagramReceived(0, frame, 0, len(frame), self.medium.now)
            self.one.send(f"10.9.0.{number}", bytes(5000))
            self.medium.advance(0.1)
        self.assertEqual(self.other.received().count(bytes(5000)), 3)
        self.assertNotIn("disconnect", [each[0] for each in self.one.calls])
