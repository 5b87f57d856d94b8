"""
The TCP connection that carries a path's messages, with its Twisted transports.

RDS messages have no acknowledgement of their own on TCP: a message is acknowledged when TCP has
acknowledged its last byte.  That is the number of bytes written less those still in the socket's send
queue (C{SIOCOUTQ}).  Nothing notifies a program of a change, so it is polled with incoming data, and
otherwise at growing intervals.

Source: Linux 6.1 C{net/rds/tcp_send.c} (C{rds_tcp_is_acked}), C{tcp_recv.c}.
"""

from __future__ import annotations

import socket
from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Any

from twisted.internet import error, tcp
from twisted.internet.interfaces import IPushProducer
from twisted.internet.protocol import Protocol
from twisted.python.failure import Failure
from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.errors import PeerGoneError, RDSWireError
from twisted_ib.rds.paths.carrier import IRDSCarrier
from twisted_ib.rds.paths.path import RDSPath
from twisted_ib.rds.protocol.machine import RDSMessage
from twisted_ib.rds.protocol.wire import HEADER, HEADER_BYTES, MESSAGE_BYTES, NO_PADDING

#: Bytes queued for a TCP socket before C{send} refuses more; also the size of one read.
RDS_TCP_BUFFER = 256 * 1024
#: Seconds between two polls of what the peer has acknowledged; the interval doubles from the first to the
#: second.
RDS_TCP_LOOK_SECONDS = 0.001
RDS_TCP_LOOK_SECONDS_MOST = 0.05
#: TCP keepalive: idle and interval in seconds, probes (rds_tcp_keepalive in Linux tcp_listen.c).
RDS_TCP_KEEPALIVE = (5, 5, 5)

try:
    from fcntl import ioctl
    from termios import TIOCOUTQ
except ImportError:
    ioctl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from twisted_ib.rds.media.tcp import TCPMedium
    from twisted_ib.structs import Packed

_INT: Packed[tuple[int]] = Struct("i")


class _Counted(tcp.Connection):
    """
    A connection that counts the bytes written, as a position in TCP's sequence space.
    """

    bufferSize = RDS_TCP_BUFFER
    written = 0

    def writeSomeData(self, data: bytes) -> Any:
        count = tcp.Connection.writeSomeData(self, data)
        if type(count) is int:
            self.written += count
        return count

    def unacknowledged(self) -> int:
        if ioctl is None:
            raise OSError("no SIOCOUTQ here")
        # tcp(7), SIOCOUTQ: unsent and unacknowledged bytes.  Linux tcp_send.c compares SND.UNA in its own
        # space instead, which user space cannot read.
        return int(_INT.unpack(ioctl(self.fileno(), TIOCOUTQ, bytes(_INT.size)))[0])

    def connectionLost(self, reason: Failure) -> None:
        # Before the socket is closed: the data in its receive queue was acknowledged to the peer, and what
        # the peer has acknowledged can be asked for the last time.
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


class TCPPort(tcp.Port):
    """
    The listening port of RDS over TCP.
    """

    transport = _Server


class TCPConnector(tcp.Connector):
    """
    The connector of RDS over TCP.
    """

    def _makeTransport(self) -> tcp.Client:
        return _Client(self.host, self.port, self.bindAddress, self, self.reactor)


@implementer(IRDSCarrier, IPushProducer)
class TCPCarrier(Protocol):
    """
    The messages of one path on a TCP connection.

    @ivar path: the path; L{None} before C{begin} and after the end.
    """

    path: RDSPath | None = None
    transport: _Counted

    _full = False
    _paused = False
    _given = 0
    _call: Any = None
    _delay = RDS_TCP_LOOK_SECONDS
    _need = HEADER_BYTES
    _have = 0
    _outBytes = 0
    _drained = 0

    def __init__(self, medium: TCPMedium, whenMade: Any) -> None:
        """
        @param medium: counts the carrier in C{alive}.
        @param whenMade: called with the carrier when it is connected.
        """
        self._medium = medium
        self._whenMade = whenMade
        self._out: list[bytes] = []
        self._sent: deque[tuple[int, int]] = deque()
        self._chunks: list[bytes] = []

    # -- Protocol

    def connectionMade(self) -> None:
        transport = self.transport
        self._medium.alive.add(self)
        # Linux tcp.c (rds_tcp_tune): no Nagle algorithm (RFC 1122 section 4.2.3.4); messages are written
        # whole anyway.
        transport.setTcpNoDelay(True)
        handle = transport.getHandle()
        # Linux tcp_listen.c (rds_tcp_keepalive): an end that only receives would not notice that the peer's
        # host died.
        handle.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
        for name, value in zip(names, RDS_TCP_KEEPALIVE, strict=True):
            if hasattr(socket, name):
                handle.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        made, self._whenMade = self._whenMade, None
        made(self)

    def begin(self, path: RDSPath) -> None:
        """
        Start carrying a path's messages.
        """
        transport = self.transport
        self.path = path
        transport.registerProducer(self, True)
        path.carrierUp(self)

    def dataReceived(self, data: bytes) -> None:
        if self.path is None:
            return
        if data:
            self._chunks.append(data)
            self._have += len(data)
        # A peer that answers has probably acknowledged: polling now saves a timer.
        if self._sent:
            self.look()
        if self._have >= self._need and not self._paused:
            self._parse()

    def _parse(self) -> None:
        buffer = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        at, end = 0, len(buffer)
        self._need = HEADER_BYTES
        while end - at >= HEADER_BYTES and not self._paused:
            fields = HEADER.unpack_from(buffer, at)
            # The length is the peer's: checked before anything is buffered for it.  Linux tcp_recv.c has no
            # such check.
            size = HEADER_BYTES + fields[2]
            if size > HEADER_BYTES + MESSAGE_BYTES:
                self._violated(f"a message of {fields[2]} bytes")
                return
            if end - at < size:
                self._need = size
                break
            payload = buffer[at + HEADER_BYTES : at + size]
            at += size
            # The path may have closed this carrier in the message before.
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
        path = self.path
        assert path is not None
        self._medium.network.counters["recv_bad_length"] += 1
        self.abort()
        path.lost(self, RDSWireError(f"{path.remote} has sent {what}"))

    def connectionLost(self, reason: Failure = error.ConnectionDone) -> None:  # type: ignore[assignment]
        # A partly received message is discarded: its last byte was not acknowledged, so the peer
        # retransmits all of it (Linux tcp.c, rds_tcp_reset_callbacks, does the same).
        path, self.path = self.path, None
        self._stopLooking()
        if path is not None:
            path.lost(self, PeerGoneError(f"{path.remote}: {reason.getErrorMessage()}"))
        self._medium.gone(self)

    # -- IRDSCarrier

    def send(self, message: RDSMessage) -> bool:
        if self._full:
            return False
        payload = message.payload
        self._out.append(
            # Linux: h_ack, h_credit and h_csum are 0 on TCP, which has its own acknowledgements and
            # checksum.
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
        # The position of the last byte, as m_ack_seq in Linux tcp_send.c (rds_tcp_xmit).
        if message.sequence:
            self._sent.append((self._given, message.sequence))
        if self._outBytes > RDS_TCP_BUFFER:
            self.flush()
        return True

    def flush(self) -> None:
        if self._out:
            transport = self.transport
            out, self._out, self._outBytes = self._out, [], 0
            # One write for a batch; Linux tcp_send.c corks for that (rds_tcp_xmit_path_prepare).
            transport.writeSequence(out)
            if self._call is None and self._sent:
                self._delay = RDS_TCP_LOOK_SECONDS
                self._wantLook()

    def pauseReading(self) -> None:
        self._paused = True
        transport = self.transport
        transport.pauseProducing()

    def resumeReading(self) -> None:
        self._paused = False
        # In a later turn: the caller is delivering messages and must not be called back.
        self._medium.network.reactor.callLater(0, self._resumed)

    def _resumed(self) -> None:
        if self.path is None or self._paused:
            return
        if self._have >= self._need:
            self._parse()
        if self.path is not None and not self._paused:
            transport = self.transport
            transport.resumeProducing()

    def drain(self) -> None:
        transport = self.transport
        # Without memory the data is lost: a peer that reconnects again and again while no socket reads
        # cannot make us hold more.
        if self.path is None or self.path.isFull():
            self.look()
            return
        # Our kernel has acknowledged what it holds, so the peer will not retransmit it (Linux accepts that
        # loss).
        self._paused = False
        self.dataReceived(b"")
        # Bounded: the peer may send faster than this loop reads.
        end = self._drained + limits.RDS_TCP_DRAIN
        while self.path is not None and self._drained < end and not self.path.isFull():
            try:
                data = transport.socket.recv(transport.bufferSize)
            except OSError:
                return
            if not data:
                return
            self._drained += len(data)
            self.dataReceived(data)

    def close(self) -> None:
        transport = self.transport
        # With unsent data the connection is reset; the path has kept the messages for the next one.
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
        Reset the connection.
        """
        self.path = None
        self._stopLooking()
        transport = self.transport
        transport.abortConnection()

    # -- IPushProducer: room in the transport

    def pauseProducing(self) -> None:
        self._full = True

    def resumeProducing(self) -> None:
        self._full = False
        if self.path is not None:
            self.path.resume(self)

    def stopProducing(self) -> None:
        """
        The connection ends; see C{connectionLost}.
        """

    # -- acknowledgements

    def look(self) -> None:
        """
        Poll what the peer's host has acknowledged.
        """
        sent, path = self._sent, self.path
        if not sent or path is None:
            return
        transport = self.transport
        try:
            reached = transport.written - transport.unacknowledged()
        except OSError:
            return
        sequence = 0
        # A message counts when its last byte is acknowledged, header included.
        while sent and sent[0][0] <= reached:
            sequence = sent.popleft()[1]
        if sequence:
            self._delay = RDS_TCP_LOOK_SECONDS
            path.acknowledged(self, sequence)

    def _wantLook(self) -> None:
        self._call = self._medium.network.reactor.callLater(self._delay, self._looked)
        # On a local network the first polls succeed; on a slow one the timer must not run every
        # millisecond.
        self._delay = min(self._delay * 2, RDS_TCP_LOOK_SECONDS_MOST)

    def _looked(self) -> None:
        self._call = None
        self.look()
        if self._sent and self.path is not None and self._call is None:
            self._wantLook()

    def _stopLooking(self) -> None:
        if self._call is not None:
            self._call.cancel()
            self._call = None
