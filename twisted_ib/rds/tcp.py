"""
RDS over TCP: each message is its header and its payload in the stream, with nothing between them.

The addresses of a connection are those of its path, so the active side binds its address before it
connects, and one process has an address for itself: port 16385 is where peers look.  The smaller
address connects.  A larger one that has something to say connects too, and lets go at once: the
smaller resets what it has accepted and connects itself, so that there is only one way to have a
connection (C{rds_tcp_accept_one_path}).

A message is acknowledged when TCP has acknowledged its last byte: what was written less what the
socket still has (C{SIOCOUTQ}).  Nobody tells when that changes, so it is looked at with what comes,
and at growing intervals otherwise.

Source: Linux 6.1 C{net/rds/tcp*.c}.
"""

from __future__ import annotations

import socket
from collections import deque
from ipaddress import ip_address
from struct import Struct
from typing import TYPE_CHECKING, Any

from twisted.internet import error, tcp
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IPushProducer
from twisted.internet.protocol import ClientFactory, Protocol, ServerFactory
from twisted.python.failure import Failure
from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.errors import PeerGoneError, RDSWireError, ResourceLimitError
from twisted_ib.hca.fabric.addresses import localAddresses, normalise
from twisted_ib.rds.carrier import IRDSCarrier, IRDSMedium
from twisted_ib.rds.machine import Message
from twisted_ib.rds.path import Path
from twisted_ib.rds.wire import HEADER, HEADER_BYTES, MESSAGE_BYTES, NO_PADDING, TCP_PORT

try:
    from fcntl import ioctl
    from termios import TIOCOUTQ
except ImportError:
    ioctl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from twisted_ib.rds.network import Network

_INT = Struct("i")


class _Counted(tcp.Connection):
    """
    A connection that knows how much it has written.
    """

    bufferSize = limits.RDS_TCP_BUFFER
    written = 0

    def writeSomeData(self, data: bytes) -> Any:
        """
        See L{tcp.Connection}.
        """
        count = tcp.Connection.writeSomeData(self, data)
        if type(count) is int and count > 0:
            self.written += count
        return count

    def unacknowledged(self) -> int:
        """
        @return: bytes that were written and that the peer's host does not have.
        @raise OSError: nobody knows.
        """
        if ioctl is None:
            raise OSError("no SIOCOUTQ here")
        return int(_INT.unpack(ioctl(self.fileno(), TIOCOUTQ, bytes(_INT.size)))[0])

    def connectionLost(self, reason: Failure) -> None:
        """
        See L{tcp.Connection}: what was acknowledged, here and there, is known as long as there is
        a socket.
        """
        protocol = getattr(self, "protocol", None)
        if protocol is not None:
            protocol.drain()
        super().connectionLost(reason)


class _Server(_Counted, tcp.Server):
    """
    The transport of an acceptor.
    """


class _Client(_Counted, tcp.Client):
    """
    The transport of a connector.
    """


class _Port(tcp.Port):
    """
    Listens for peers.
    """

    transport = _Server


class _Connector(tcp.Connector):
    """
    Connects to a peer.
    """

    def _makeTransport(self) -> tcp.Client:
        """
        See L{tcp.Connector}.
        """
        return _Client(self.host, self.port, self.bindAddress, self, self.reactor)


@implementer(IRDSCarrier, IPushProducer)
class TCPCarrier(Protocol):
    """
    The messages of a path on a TCP connection.

    @ivar path: whose they are; L{None} once the carrier has ended.
    """

    path: Path | None = None

    _full = False
    _paused = False
    _given = 0
    _call: Any = None
    _delay = limits.RDS_TCP_LOOK_SECONDS
    _need = HEADER_BYTES
    _have = 0
    _outBytes = 0
    _drained = 0

    def __init__(self, medium: TCPMedium, whenMade: Any) -> None:
        """
        @param medium: where it is counted.
        @param whenMade: is called with the carrier when it is connected.
        """
        self._medium = medium
        self._whenMade = whenMade
        self._out: list[bytes] = []
        self._sent: deque[tuple[int, int]] = deque()
        self._chunks: list[bytes] = []

    # -- Protocol

    def connectionMade(self) -> None:
        """
        See C{IProtocol}.
        """
        transport: Any = self.transport
        self._medium.alive.add(self)
        transport.setTcpNoDelay(True)
        handle = transport.getHandle()
        handle.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
        for name, value in zip(names, limits.RDS_TCP_KEEPALIVE, strict=True):
            if hasattr(socket, name):
                handle.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        made, self._whenMade = self._whenMade, None
        made(self)

    def begin(self, path: Path) -> None:
        """
        Carry a path's messages from now on.
        """
        transport: Any = self.transport
        self.path = path
        transport.registerProducer(self, True)
        path.carrierUp(self)

    def dataReceived(self, data: bytes) -> None:
        """
        See C{IProtocol}.
        """
        if self.path is None:
            return
        if data:
            self._chunks.append(data)
            self._have += len(data)
        if self._sent:
            self.look()
        if self._have >= self._need and not self._paused:
            self._parse()

    def _parse(self) -> None:
        """
        Take the messages that are whole.
        """
        buffer = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        at, end = 0, len(buffer)
        self._need = HEADER_BYTES
        while end - at >= HEADER_BYTES and not self._paused:
            fields = HEADER.unpack_from(buffer, at)
            size = HEADER_BYTES + fields[2]
            if size > HEADER_BYTES + MESSAGE_BYTES:
                self._violated(f"a message of {fields[2]} bytes")
                return
            if end - at < size:
                self._need = size
                break
            payload = buffer[at + HEADER_BYTES : at + size]
            at += size
            path = self.path
            if path is None:
                return
            path.messageReceived(self, fields, payload)
        if self.path is None:
            return
        rest = buffer[at:] if at else buffer
        self._chunks = [rest] if rest else []
        self._have = end - at

    def _violated(self, what: str) -> None:
        """
        The peer does not speak RDS.
        """
        path = self.path
        assert path is not None
        self._medium.network.counters["recv_bad_length"] += 1
        self.abort()
        path.lost(self, RDSWireError(f"{path.remote} has sent {what}"))

    def connectionLost(self, reason: Failure = error.ConnectionDone) -> None:  # type: ignore[assignment]
        """
        See C{IProtocol}.
        """
        path, self.path = self.path, None
        self._stopLooking()
        if path is not None:
            path.lost(self, PeerGoneError(f"{path.remote}: {reason.getErrorMessage()}"))
        self._medium.gone(self)

    # -- IRDSCarrier

    def send(self, message: Message) -> bool:
        """
        See L{IRDSCarrier.send}.
        """
        if self._full:
            return False
        payload = message.payload
        self._out.append(
            HEADER.pack(
                message.sequence,
                0,
                len(payload),
                message.sourcePort,
                message.destinationPort,
                message.flags,
                0,
                NO_PADDING,
                0,
                message.extensions,
            )
        )
        size = HEADER_BYTES
        if payload:
            self._out.append(payload)
            size += len(payload)
        self._given += size
        self._outBytes += size
        if message.sequence:
            self._sent.append((self._given, message.sequence))
        if self._outBytes > limits.RDS_TCP_BUFFER:
            self.flush()
        return True

    def flush(self) -> None:
        """
        See L{IRDSCarrier.flush}.
        """
        if self._out:
            transport: Any = self.transport
            out, self._out, self._outBytes = self._out, [], 0
            transport.writeSequence(out)
            if self._call is None and self._sent:
                self._delay = limits.RDS_TCP_LOOK_SECONDS
                self._wantLook()

    def pauseReading(self) -> None:
        """
        See L{IRDSCarrier.pauseReading}.
        """
        self._paused = True
        transport: Any = self.transport
        transport.pauseProducing()

    def resumeReading(self) -> None:
        """
        See L{IRDSCarrier.resumeReading}.
        """
        self._paused = False
        self._medium.network.reactor.callLater(0, self._resumed)

    def _resumed(self) -> None:
        """
        Go on with what was left.
        """
        if self.path is None or self._paused:
            return
        if self._have >= self._need:
            self._parse()
        if self.path is not None and not self._paused:
            transport: Any = self.transport
            transport.resumeProducing()

    def drain(self) -> None:
        """
        See L{IRDSCarrier.drain}: what the socket has was acknowledged by this host, so that the
        peer will not send it again.  And what the peer has acknowledged is not sent again.
        """
        transport: Any = self.transport
        self._paused = False
        self.dataReceived(b"")
        end = self._drained + limits.RDS_TCP_DRAIN
        while self.path is not None and self._drained < end:
            try:
                data = transport.socket.recv(transport.bufferSize)
            except OSError:
                return
            if not data:
                return
            self._drained += len(data)
            self.dataReceived(data)

    def close(self) -> None:
        """
        See L{IRDSCarrier.close}.
        """
        transport: Any = self.transport
        idle = not self._out and transport.written == self._given
        self.path = None
        self._stopLooking()
        if idle:
            transport.unregisterProducer()
            transport.loseConnection()
        else:
            transport.abortConnection()

    def abort(self) -> None:
        """
        End the connection with a reset.
        """
        self.path = None
        self._stopLooking()
        transport: Any = self.transport
        transport.abortConnection()

    # -- IPushProducer: room in the transport

    def pauseProducing(self) -> None:
        """
        There is no room.
        """
        self._full = True

    def resumeProducing(self) -> None:
        """
        There is room.
        """
        self._full = False
        if self.path is not None:
            self.path.resume(self)

    def stopProducing(self) -> None:
        """
        The connection ends.
        """

    # -- acknowledgements

    def look(self) -> None:
        """
        Find what the peer's host has.
        """
        sent, path = self._sent, self.path
        if not sent or path is None:
            return
        transport: Any = self.transport
        try:
            reached = transport.written - transport.unacknowledged()
        except OSError:
            return
        sequence = 0
        while sent and sent[0][0] <= reached:
            sequence = sent.popleft()[1]
        if sequence:
            self._delay = limits.RDS_TCP_LOOK_SECONDS
            path.acknowledged(self, sequence)

    def _wantLook(self) -> None:
        """
        Look again, later each time.
        """
        self._call = self._medium.network.reactor.callLater(self._delay, self._looked)
        self._delay = min(self._delay * 2, limits.RDS_TCP_LOOK_SECONDS_MOST)

    def _looked(self) -> None:
        """
        It is time to look.
        """
        self._call = None
        self.look()
        if self._sent and self.path is not None and self._call is None:
            self._wantLook()

    def _stopLooking(self) -> None:
        """
        Leave the reactor alone.
        """
        if self._call is not None:
            self._call.cancel()
            self._call = None


class _Attempt(ClientFactory):
    """
    An attempt to connect a path.
    """

    noisy = False
    _done = False

    def __init__(self, medium: TCPMedium, path: Path) -> None:
        """
        Begin.
        """
        self._medium = medium
        self._path = path
        medium.alive.add(self)
        self._connector = _Connector(
            path.remote,
            medium.port,
            self,
            limits.RDS_CONNECT_SECONDS,
            (path.local, 0),
            medium.network.reactor,
        )
        self._connector.connect()

    def buildProtocol(self, addr: Any) -> TCPCarrier:
        """
        See C{IProtocolFactory}.
        """
        return TCPCarrier(self._medium, self._made)

    def _made(self, carrier: TCPCarrier) -> None:
        """
        There is a connection.
        """
        transport: Any = carrier.transport
        self._medium.gone(self)
        if self._done:
            transport.abortConnection()
        elif self._medium.reconnects(self._path):
            self._done = True
            carrier.begin(self._path)
        else:
            # The peer knows now, and connects; this is not how connections are made.
            self._done = True
            transport.loseConnection()
            self._path.carrierFailed(PeerGoneError(f"{self._path.remote} has to connect"))

    def clientConnectionFailed(self, connector: Any, reason: Failure) -> None:
        """
        See C{ClientFactory}.
        """
        self._medium.gone(self)
        if not self._done:
            self._done = True
            self._path.carrierFailed(PeerGoneError(f"{self._path.remote}: {reason.getErrorMessage()}"))

    def cancel(self) -> None:
        """
        The connection is not wanted any more.
        """
        if not self._done:
            self._done = True
            self._connector.stopConnecting()


class _Accepting(ServerFactory):
    """
    What listens for peers gives their connections to the medium.
    """

    noisy = False

    def __init__(self, medium: TCPMedium) -> None:
        """
        @param medium: the medium.
        """
        self._medium = medium

    def buildProtocol(self, addr: Any) -> TCPCarrier:
        """
        See C{IProtocolFactory}.
        """
        return TCPCarrier(self._medium, self._medium.accepted)


@implementer(IRDSMedium)
class TCPMedium:
    """
    RDS over TCP.

    @ivar name: C{tcp}.
    @ivar acknowledges: no: TCP does.
    @ivar network: whose medium it is.
    @ivar port: where peers listen.
    @ivar alive: what is in the reactor.
    """

    name = "tcp"
    acknowledges = sharesAddresses = False

    def __init__(self, network: Network, port: int = TCP_PORT) -> None:
        """
        Nothing is opened yet.
        """
        self.network = network
        self.port = port
        self.alive: set[Any] = set()
        self._ports: dict[str, tuple[_Port, set[int]]] = {}
        self._waiters: list[Deferred[None]] = []

    def localAddresses(self) -> list[str]:
        """
        See L{IRDSMedium.localAddresses}: all but those that need a scope.
        """
        return [address for address in map(normalise, localAddresses()) if "%" not in address]

    def bind(self, address: str, port: int) -> None:
        """
        See L{IRDSMedium.bind}.
        """
        found = self._ports.get(address)
        if found is None:
            listening = _Port(self.port, _Accepting(self), interface=address, reactor=self.network.reactor)
            try:
                listening.startListening()
            except error.CannotListenError as e:
                raise e.socketError from None
            self.alive.add(listening)
            found = self._ports[address] = listening, set()
        found[1].add(port)

    def unbind(self, address: str, port: int) -> None:
        """
        See L{IRDSMedium.unbind}.
        """
        listening, ports = self._ports[address]
        ports.discard(port)
        if not ports:
            del self._ports[address]
            stopped: Any = listening.stopListening() or succeed(None)
            stopped.addBoth(lambda result: self.gone(listening))

    def pathTo(self, address: str, host: str, port: int) -> Path:
        """
        See L{IRDSMedium.pathTo}.
        """
        return self.network.path((address, host), address, host)

    def reconnects(self, path: Path) -> bool:
        """
        See L{IRDSMedium.reconnects}: the smaller address does.
        """
        return _number(path.local) < _number(path.remote)

    def connect(self, path: Path) -> _Attempt:
        """
        See L{IRDSMedium.connect}.
        """
        return _Attempt(self, path)

    def accepted(self, carrier: TCPCarrier) -> None:
        """
        A peer has connected.
        """
        transport: Any = carrier.transport
        local, remote = normalise(transport.getHost().host), normalise(transport.getPeer().host)
        if remote == local or self.network.isOurs(remote) or self.network.dormant:
            carrier.abort()
            return
        try:
            path = self.pathTo(local, remote, 0)
        except ResourceLimitError:
            carrier.abort()
            return
        if self.reconnects(path):
            carrier.abort()
            path.connectNow()
        else:
            carrier.begin(path)

    def gone(self, what: Any) -> None:
        """
        Something is not in the reactor any more.
        """
        self.alive.discard(what)
        if not self.alive:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                waiter.callback(None)

    def whenQuiet(self) -> Deferred[None]:
        """
        See L{IRDSMedium.whenQuiet}.
        """
        if not self.alive:
            return succeed(None)
        waiter: Deferred[None] = Deferred()
        self._waiters.append(waiter)
        return waiter


def _number(address: str) -> int:
    """
    @return: an address as a number, for comparison.
    """
    return int(ip_address(address.partition("%")[0]))
