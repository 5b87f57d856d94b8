"""
The queues of a socket: datagrams added to an open bundle, those received while its protocol does not read,
and congestion marks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from twisted_ib import limits
from twisted_ib.compilation import mypyc_attr
from twisted_ib.interfaces import IRDSCookieProtocol
from twisted_ib.rds.protocol.bundle import BUNDLE, MOST, Bundle, datagramsOf
from twisted_ib.rds.protocol.machine import RDSMessage
from twisted_ib.rds.protocol.wire import NO_EXTENSIONS, Fields

if TYPE_CHECKING:
    from twisted_ib.rds.paths.network import Route

#: Stands for no open bundle: it has no room, and nobody's address.
NO_BUNDLE: Final = Bundle(None, None, object(), 0)
NO_BUNDLE.room = -1

#: Bytes that one socket accepts in any case: messages already on the way when its port is marked congested.
#: Beyond that, connections with messages for it are not read.
RDS_RECEIVE_MOST = 16 * 1024 * 1024

_log = Logger()
_OVERHEAD: Final = limits.RDS_DATAGRAM_OVERHEAD


@mypyc_attr(allow_interpreted_subclasses=True)
class SocketQueues:
    """
    The part of L{RDSPort<twisted_ib.rds.port.RDSPort>} that messages pass; compiled, which a port cannot be.
    See L{IRDSTransport<twisted_ib.interfaces.IRDSTransport>}.

    @ivar _counters: those of the network, when the socket is open.
    @ivar _queued: the bytes that peers have not acknowledged, with overhead; an open bundle's whole room.
    @ivar _bundles: open bundles, by the address that was given to C{write}.
    @ivar _bundle: the one that was written to last, or L{NO_BUNDLE}.
    @ivar _received: the queue: path, sender's port, payload, cookie.
    @ivar _receivedBytes: the bytes in it, with overhead.
    @ivar _congested: whether the port is marked congested.
    @ivar _blocked: paths whose connections are not read.
    """

    def __init__(self, reactor: Any, protocol: Any, maxPacketSize: int) -> None:
        self._realPort = 0
        self._queued = 0
        self._bundles: dict[Any, Bundle] = {}
        self._bundle = NO_BUNDLE
        self.reactor = reactor
        self.protocol = protocol
        self.maxPacketSize = maxPacketSize
        self.addresses: list[str] = []
        self.connected = False
        self._closing: Deferred[None] | None = None
        self._counters: dict[str, int] = {}
        self._received: deque[tuple[Route, int, bytes, int | None]] = deque()
        self._takesCookies: bool = IRDSCookieProtocol.providedBy(protocol)
        self._receivedBytes = 0
        self._blocked: set[Route] = set()
        self._reading = True
        self._congested = False
        self._drain: Any = None

    # -- sending

    def write(self, datagram: Any, addr: Any = None) -> Deferred[None] | None:
        # The fast path: the bundle was opened after all checks, and its room is part of the send budget.
        bundle: Bundle | None
        bundle = self._bundle
        # Mostly the address is the same object, which saves computing its hash.
        if bundle.address is not addr:
            bundle = self._bundles.get(addr) if self._bundles else None
        if bundle is not None and datagram.__class__ is bytes:
            room = bundle.room - len(datagram) - _OVERHEAD
            if room >= 0:
                bundle.room = room
                bundle.pieces.append(datagram)
                return None
        return self._writeSlowly(datagram, addr)

    def _writeSlowly(self, datagram: Any, addr: Any) -> Deferred[None] | None:
        raise NotImplementedError

    def _openBundle(self, path: Any, given: Any, port: int, data: bytes) -> None:
        bundle: Bundle = path.openBundle(self, given, port)
        self._bundles[given] = self._bundle = bundle
        # Reserve the whole bundle; bundleClosed() returns the rest.
        self._queued += MOST
        bundle.room -= len(data) + _OVERHEAD
        bundle.pieces.append(data)

    def bundleClosed(self, bundle: Bundle) -> RDSMessage:
        """
        A bundle is complete.

        @return: the message to send.
        """
        del self._bundles[bundle.address]
        if self._bundle is bundle:
            self._bundle = NO_BUNDLE
        message = bundle.message(self._realPort)
        # Account for the bundle's real size instead of its reserved one: one object, and so one overhead,
        # however many datagrams it has.
        self._queued += message.size + _OVERHEAD - MOST
        return message

    def separate(self, bundle: RDSMessage) -> list[RDSMessage]:
        """
        @param bundle: a message that is on no path any more.
        @return: its datagrams as messages of their own, for a peer that may not know bundles.
        """
        octets = b"".join(bundle.payload) if isinstance(bundle.payload, list) else bundle.payload
        pieces = datagramsOf(octets, 0, len(octets))
        made = [RDSMessage(bundle.sourcePort, bundle.destinationPort, piece, self) for piece in pieces]
        self._queued += sum(each.size + _OVERHEAD for each in made) - bundle.size - _OVERHEAD
        return made

    def closeBundles(self) -> None:
        """
        Send all open bundles.
        """
        for bundle in list(self._bundles.values()):
            bundle.path.closeBundle()

    # -- receiving

    def pauseProducing(self) -> None:
        self._reading = False

    def resumeProducing(self) -> None:
        if not self._reading and self.connected and self._closing is None:
            self._reading = True
            self._wantDrain()

    def stopReading(self) -> None:
        """
        See C{pauseProducing}.
        """
        self.pauseProducing()

    def startReading(self) -> None:
        """
        See C{resumeProducing}.
        """
        self.resumeProducing()

    def messageReceived(self, path: Route, fields: Fields, payload: bytes) -> None:
        """
        Receive a datagram, or a bundle.
        """
        # Only from processes of this host: elsewhere the flag may get another meaning.
        if fields[5] & BUNDLE and path.bundles:
            self.bundleReceived(path, fields[3], datagramsOf(payload, 0, len(payload)))
        else:
            isPlain = fields[9] == NO_EXTENSIONS or self._closing is not None
            cookie = None if isPlain else self.extended(fields[9])
            self.datagramReceived(path, fields[3], payload, cookie)

    def datagramReceived(self, path: Route, port: int, payload: bytes, cookie: int | None = None) -> None:
        """
        Receive a datagram.

        @param port: the sender's.
        """
        # Not while the socket closes.
        if self._reading and not self._received:
            self._deliver(path.remote, port, payload, cookie)
        else:
            self._queue(path, port, payload, cookie)

    def bundleReceived(self, path: Route, port: int, datagrams: Sequence[bytes]) -> None:
        """
        Receive the datagrams of a bundle; none means that it was malformed.
        """
        counters = self._counters
        if not datagrams:
            counters["recv_bad_length"] += 1
            return
        # Without a type: mypy believes that a call changes nothing, and mypyc believes mypy.
        socket: Any = self
        rest = iter(datagrams)
        most = self.maxPacketSize
        if not self._received and (most >= MOST or max(map(len, datagrams)) <= most):
            receive, address = self.protocol.datagramReceived, (path.remote, port)
            counters["recv_delivered"] += len(datagrams)
            # The fast path ends when the protocol pauses reading, or closes: the rest takes the slow one.
            while self._reading:
                try:
                    for datagram in rest:
                        receive(datagram, address)
                        if not socket._reading:
                            break
                    else:
                        return
                except Exception:
                    _log.failure("a datagram from {host}:{port}", host=address[0], port=port)
            datagrams = list(rest)
            counters["recv_delivered"] -= len(datagrams)
        for datagram in datagrams:
            self.datagramReceived(path, port, datagram)

    def _queue(self, path: Route, port: int, payload: bytes, cookie: int | None) -> None:
        counters = self._counters
        if self._closing is not None:
            counters["recv_drop_dead_sock"] += 1
            return
        counters["recv_queued"] += 1
        self._received.append((path, port, payload, cookie))
        self._receivedBytes += len(payload) + _OVERHEAD
        if self._receivedBytes > limits.RDS_RECEIVE_BUDGET:
            # Linux recv.c (rds_recv_rcvbuf_delta): marked above the budget, cleared below half of it, so that
            # the map does not change with each message.  Messages on the way are still accepted.
            self._mark(True)
            if self._receivedBytes > RDS_RECEIVE_MOST:
                self._blocked.add(path)
                path.block(self)

    def extended(self, extensions: bytes) -> int | None:
        """
        Process extension headers: see L{RDSPort<twisted_ib.rds.port.RDSPort>}.
        """
        raise NotImplementedError

    def _deliver(self, host: str, port: int, payload: bytes, cookie: int | None = None) -> None:
        self._counters["recv_delivered"] += 1
        if len(payload) > self.maxPacketSize:
            # As recvmsg() truncates (MSG_TRUNC); the rest is lost.
            payload = payload[: self.maxPacketSize]
        try:
            if cookie is not None and self._takesCookies:
                self.protocol.datagramWithCookieReceived(payload, (host, port), cookie)
            else:
                self.protocol.datagramReceived(payload, (host, port))
        except Exception:
            # Logged, as twisted.internet.udp does: other datagrams must not suffer.
            _log.failure("a datagram from {host}:{port}", host=host, port=port)

    def _wantDrain(self) -> None:
        if self._received and self._drain is None and self._reading:
            self._drain = self.reactor.callLater(0, self._drained)

    def _drained(self) -> None:
        self._drain = None
        received = self._received
        # Bounded for each turn, so that a full queue does not starve the reactor.
        for _ in range(min(len(received), limits.RDS_MESSAGES_PER_TURN)):
            if not self._reading or not received:
                break
            path, port, payload, cookie = received.popleft()
            self._receivedBytes -= len(payload) + _OVERHEAD
            self._deliver(path.remote, port, payload, cookie)
        if self._receivedBytes < limits.RDS_RECEIVE_BUDGET // 2 and self.connected:
            self._mark(False)
        if self._receivedBytes < RDS_RECEIVE_MOST // 2:
            self._unblock()
        self._wantDrain()

    def _mark(self, congested: bool) -> None:
        if self._congested is not congested:
            self._congested = congested
            self._congestionChanged(congested)

    def _congestionChanged(self, congested: bool) -> None:
        raise NotImplementedError

    def isFull(self) -> bool:
        """
        @return: whether nothing more may be accepted, not even what a TCP socket still holds.
        """
        return self._receivedBytes > RDS_RECEIVE_MOST + limits.RDS_TCP_DRAIN

    def _unblock(self) -> None:
        blocked, self._blocked = self._blocked, set()
        for path in blocked:
            path.unblock(self)

    def _forget(self) -> None:
        self._reading = False
        self._received.clear()
        self._receivedBytes = 0
        self._unblock()
        if self._drain is not None:
            self._drain.cancel()
            self._drain = None
