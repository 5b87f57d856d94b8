"""
A socket of RDS: what C{listenRDS} gives, and the transport of its protocol.

It is used as a UDP port is, with two differences.  What is written arrives, once and in the order
of the calls for each destination; so it has to wait somewhere while the peer is slow or gone, and
that has a bound.  And a slow peer holds back what is for it alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from twisted.internet import error
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IListeningPort, IPushProducer
from twisted.logger import Logger
from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.errors import (
    DatagramTooLongError,
    DestinationCongestedError,
    HCAError,
    NoRouteError,
    PeerGoneError,
    SendBudgetError,
)
from twisted_ib.hca.host.addresses import normalise, sourceFor
from twisted_ib.interfaces import IRDSMemoryTransport, IRDSProtocol, IRDSTransport
from twisted_ib.internet.addresses import octets, scopeOf
from twisted_ib.internet.failures import listenError
from twisted_ib.rds.network import Network, networkFor
from twisted_ib.rds.paths.rdmaoperations import OperationMessage, RDMAStatus
from twisted_ib.rds.ping import Ping
from twisted_ib.rds.protocol.bundle import LONGEST, MOST, Bundle
from twisted_ib.rds.protocol.machine import RDSMessage
from twisted_ib.rds.protocol.wire import LOWEST_PORT
from twisted_ib.rds.receiving import Receiving
from twisted_ib.rds.socketrdma import SocketRDMA

#: Of the bytes, what may wait for one destination that is congested: it does not use up what others have.
RDS_CONGESTED_BUDGET = 1024 * 1024
#: The same for all its congested destinations.
RDS_HELD_BUDGET = 16 * 1024 * 1024
#: Pings of one socket that wait for their answer.
RDS_PINGS = 1024
#: How long a socket that is closed goes on sending what waits, in seconds.
RDS_LINGER_SECONDS = 5.0

_log = Logger()
_OVERHEAD = limits.RDS_DATAGRAM_OVERHEAD
_HIGHEST_PORT = 65535
#: Interfaces that are not one address: which of the host's they mean, by their IP version.
_ALL = {"": (4, 6), "0.0.0.0": (4,), "::": (6,)}


class _Held:
    """
    What is held back for one congested destination.

    @ivar destination: host and port.
    @ivar bytes: how much it is.
    @ivar messages: oldest first.
    @ivar waiters: the Deferreds of the calls that brought them.
    """

    __slots__ = ("bytes", "destination", "messages", "waiters")

    def __init__(self, destination: tuple[str, int]) -> None:
        self.destination = destination
        self.bytes = 0
        self.messages: list[RDSMessage] = []
        self.waiters: list[Deferred[None]] = []


@implementer(IListeningPort, IRDSTransport, IRDSMemoryTransport, IPushProducer)
class RDSPort(SocketRDMA, Receiving):
    """
    A socket.

    @ivar port: the port that was asked for; 0 for any.
    @ivar protocol: who gets the datagrams.
    @ivar interface: the address to bind, or what means several.
    @ivar maxPacketSize: the longest datagram, in bytes.
    @ivar connected: whether it is open.
    @ivar addresses: what it is bound to.
    @ivar network: what it shares with the other sockets of the process.
    """

    connected = False
    #: As with UDP, for a protocol that asks.
    _broadcast = False

    _closing: Deferred[None] | None = None
    _linger: Any = None
    _default: tuple[str, int] | None = None
    _realPort = 0
    _producer: Any = None
    _streaming = False
    _producerPaused = False

    def __init__(
        self,
        port: int,
        protocol: Any,
        interface: str = "",
        maxPacketSize: int = limits.RDS_MESSAGE,
        reactor: Any = None,
        device: str | None = None,
        network: Network | None = None,
    ) -> None:
        """
        Nothing is opened before C{startListening} is called.

        @raise ValueError: an argument makes no sense.
        """
        if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= _HIGHEST_PORT or port == 1:
            raise ValueError(f"port {port!r} is not 0 or from {LOWEST_PORT} to {_HIGHEST_PORT}")
        if not isinstance(maxPacketSize, int) or not 0 <= maxPacketSize <= limits.RDS_MESSAGE:
            raise ValueError(f"maxPacketSize is 0 to {limits.RDS_MESSAGE}, not {maxPacketSize!r}")
        if not isinstance(interface, str):
            raise ValueError(f"interface {interface!r} is not an address")
        self.port = port
        self.protocol = protocol
        self.interface = interface
        self.maxPacketSize = maxPacketSize
        self.reactor = reactor
        self.device = device
        self.addresses = []
        Receiving.__init__(self)
        self._network = network
        self._tells = IRDSProtocol.providedBy(protocol)
        self._queued = 0
        self._heldBytes = 0
        self._held: dict[tuple[Any, int], _Held] = {}
        self._waiters: list[Deferred[None]] = []
        self._pausedBy: set[Any] = set()
        self._pings: set[Ping] = set()
        self._routes: dict[tuple[str, int], Any] = {}
        self._epoch = -1
        self._bundles: dict[Any, Bundle] = {}

    def __repr__(self) -> str:
        where = f"on {self._realPort}" if self.connected else "not connected"
        return f"<{type(self).__name__} of {self.protocol.__class__} {where}>"

    # -- opening and closing

    @property
    def network(self) -> Network:
        """
        What all sockets of the process share on the device.
        """
        network = self._network
        if network is None:
            network = self._network = networkFor(self.reactor, self.device)
        return network

    def startListening(self) -> None:
        """
        Take the port.

        @raise CannotListenError: It cannot be had.
        """
        try:
            network = self.network
            addresses = self._bindAddresses(network)
            self._realPort = network.bind(addresses, self.port, self)
        except OSError as e:
            raise error.CannotListenError(self.interface, self.port, e) from None
        except (HCAError, ValueError) as e:
            raise listenError(self.interface, self.port, self.device, e) from None
        self.addresses = addresses
        self.connected = True
        _log.info(
            "{protocol} starting on RDS port {port}",
            protocol=self.protocol.__class__.__name__,
            port=self._realPort,
        )
        self.protocol.makeConnection(self)

    def _bindAddresses(self, network: Network) -> list[str]:
        """
        @return: the addresses that the interface means.
        @raise ValueError: it is none.
        @raise NoRouteError: there are none.
        """
        versions = _ALL.get(self.interface)
        if versions is None:
            return [normalise("127.0.0.1" if self.interface == "localhost" else self.interface)]
        found = [a for a in network.medium.localAddresses() if (6 if ":" in a else 4) in versions]
        if not found:
            raise NoRouteError("this host has no address of that kind")
        return found

    def getHost(self) -> IPv4Address | IPv6Address:
        """
        @return: The address that is bound; what means several as it was given.
        """
        host = self.interface if self.interface in _ALL or not self.addresses else self.addresses[0]
        if ":" in host:
            return IPv6Address("UDP", host, self._realPort, 0, scopeOf(host))
        return IPv4Address("UDP", host or "0.0.0.0", self._realPort)

    def stopListening(self) -> Deferred[None]:
        """
        Close the socket.  What was written goes on to be sent, for
        L{RDS_LINGER_SECONDS<RDS_LINGER_SECONDS>} at most; what is still not acknowledged
        then is dropped.

        @return: A Deferred that fires with L{None} when it is closed.
        """
        if not self.connected:
            return succeed(None)
        if self._closing is None:
            self.closeBundles()
            self._closing = Deferred()
            self._forget()
            wait = RDS_LINGER_SECONDS if self._queued or self._held else 0
            self._linger = self.reactor.callLater(wait, self._closed)
        answer: Deferred[None] = Deferred()
        self._closing.addCallback(lambda result: answer.callback(None))
        return answer

    loseConnection = stopListening

    def _closed(self) -> None:
        if not self.connected:
            return
        self.connected = False
        if self._linger.active():
            self._linger.cancel()
        network = self.network
        for ping in list(self._pings):
            ping.fail(PeerGoneError("the socket was closed"))
        for (path, _), held in self._held.items():
            path.release()
            network.counters["send_drop_closed"] += len(held.messages)
            self._waiters += held.waiters
            self.canceled(held.messages)
        self._held.clear()
        paths: list[Any] = [*network.paths.values(), *network.loops.values()]
        for path in paths:
            dropped = path.drop(self)
            network.counters["send_drop_closed"] += sum(message.count for message in dropped)
            self.canceled(dropped)
        self.freeAll()
        network.unbind(self.addresses, self._realPort)
        self._queued = self._heldBytes = 0
        producer, self._producer = self._producer, None
        if producer is not None:
            self._log("stopProducing", producer.stopProducing)
        self._fire(self._waiters)
        self._log("stopProtocol", self.protocol.doStop)
        closing = self._closing
        assert closing is not None
        quiet = network.medium.whenQuiet() if network.dormant else succeed(None)
        quiet.addCallback(lambda result: closing.callback(None))

    # -- sending

    def connect(self, host: str, port: int) -> None:
        """
        Say where datagrams go that are written without an address; from anywhere they come as before.

        @raise InvalidAddressError: C{host} is not an IP address.
        """
        self._pathTo((host, port))
        self._default = (host, port)

    def write(self, datagram: bytes, addr: tuple[str, int] | None = None) -> Deferred[None] | None:
        """
        See L{IRDSTransport.write}.
        """
        bundle = self._bundles.get(addr)
        if bundle is not None and datagram.__class__ is bytes:
            room = bundle.room - len(datagram) - _OVERHEAD
            if room >= 0:
                bundle.room = room
                bundle.append(datagram)
                return None
        if not self.connected or self._closing is not None:
            self.network.counters["send_drop_closed"] += 1
            return None
        data = datagram if type(datagram) is bytes else octets(datagram)
        if len(data) > self.maxPacketSize:
            raise DatagramTooLongError(f"a datagram has at most {self.maxPacketSize} bytes, not {len(data)}")
        given = addr
        if addr is None:
            addr = self._default
            if addr is None:
                raise ValueError("there is no destination")
        path = self._routes.get(addr)
        if path is None or path.closed or self._epoch != self._network.epoch:  # type: ignore[union-attr]
            path = self._pathTo(addr)
        if len(data) <= LONGEST and path.gathers() and self._mayBundle(path, addr[1]):
            bundle = path.openBundle(self, given, addr[1])
            self._bundles[given] = bundle
            # What is left is given back when it is closed.
            self._queued += MOST
            bundle.room -= len(data) + _OVERHEAD
            bundle.append(data)
            return None
        return self.place(path, addr, RDSMessage(self._realPort, addr[1], data, self))

    def _mayBundle(self, path: Any, port: int) -> bool:
        """
        @return: whether datagrams may be gathered without looking at each.
        """
        return (
            self._queued + MOST < limits.RDS_SEND_BUDGET
            and self.maxPacketSize >= MOST
            and not path.isCongested(port)
            and not (path.held and (path, port) in self._held)
        )

    def bundleClosed(self, bundle: Bundle) -> RDSMessage:
        """
        A bundle gets no more.

        @return: the message to send.
        """
        del self._bundles[bundle.address]
        message = bundle.message(self._realPort)
        # It is one object, whatever it has cost to fill it.
        self._queued += len(message.payload) + message.overhead - MOST
        return message

    def closeBundles(self) -> None:
        """
        Send what was gathered.
        """
        for bundle in list(self._bundles.values()):
            bundle.path.closeBundle()

    def place(self, path: Any, addr: tuple[str, int], message: RDSMessage) -> Deferred[None] | None:
        """
        Send a message, or hold it back.

        @return: As C{write}.
        @raise SendBudgetError: too much waits.
        """
        if path.isCongested(addr[1]) or (path.held and (path, addr[1]) in self._held):
            return self._hold(path, addr, message)
        if self._queued >= limits.RDS_SEND_BUDGET:
            self.network.counters["send_queue_full"] += 1
            raise SendBudgetError(f"{self._queued} bytes wait to be sent already")
        self._queued += len(message.payload) + _OVERHEAD
        path.send(message)
        if self._queued < limits.RDS_SEND_BUDGET:
            return None
        self._pause(None)
        waiter: Deferred[None] = Deferred()
        self._waiters.append(waiter)
        return waiter

    def writeSequence(self, datagrams: Any, addr: tuple[str, int] | None = None) -> Deferred[None] | None:
        """
        Write one datagram that is given in pieces.
        """
        return self.write(b"".join(datagrams), addr)

    def _pathTo(self, addr: tuple[str, int]) -> Any:
        """
        Find the path to a destination.

        @raise InvalidAddressError: the host is not an IP address, or of no version that we have.
        @raise ValueError: the port is none.
        @raise NoRouteError: no address of ours leads there.
        """
        given, port = addr
        if not isinstance(port, int) or not 0 <= port <= _HIGHEST_PORT:
            raise ValueError(f"port {port!r} is not between 0 and {_HIGHEST_PORT}")
        try:
            host = normalise(given)
            if not given or host in _ALL:
                raise ValueError("an address that means several")
        except (ValueError, TypeError, AttributeError):
            raise error.InvalidAddressError(given, "write() only accepts IP addresses") from None
        path = self.network.route(self._sourceFor(host), host, port)
        if self._epoch != self.network.epoch or len(self._routes) >= limits.RDS_ROUTES:
            self._routes.clear()
            self._epoch = self.network.epoch
        self._routes[addr] = path
        return path

    def _sourceFor(self, host: str) -> str:
        same = [address for address in self.addresses if (":" in address) == (":" in host)]
        if not same:
            raise error.InvalidAddressError(host, "the socket has no address of that kind")
        if len(same) == 1 or host in same:
            return host if host in same else same[0]
        source = sourceFor(host)
        return source if source in same else same[0]

    def _hold(self, path: Any, addr: tuple[str, int], message: RDSMessage) -> Deferred[None]:
        key = path, addr[1]
        held = self._held.get(key)
        if self._heldBytes >= RDS_HELD_BUDGET or (held is not None and held.bytes >= RDS_CONGESTED_BUDGET):
            self.network.counters["send_queue_full"] += 1
            raise DestinationCongestedError(f"{addr[0]} port {addr[1]} takes nothing, and much waits for it")
        isNew = held is None
        if held is None:
            held = self._held[key] = _Held((path.remote, addr[1]))
            path.hold()
        self.network.counters["cong_send_blocked"] += 1
        size = len(message.payload) + _OVERHEAD
        held.messages.append(message)
        held.bytes += size
        self._heldBytes += size
        waiter: Deferred[None] = Deferred()
        held.waiters.append(waiter)
        if held.bytes >= RDS_CONGESTED_BUDGET or self._heldBytes >= RDS_HELD_BUDGET:
            self._pause(key)
        if isNew:
            self._tell("destinationCongested", held.destination)
        return waiter

    def portsCleared(self, path: Any) -> None:
        """
        Ports of a peer may take something again: send what was held back.
        """
        cleared = []
        for key in [key for key in self._held if key[0] is path and not path.isCongested(key[1])]:
            held = self._held.pop(key)
            cleared.append(held)
            path.release()
            self._heldBytes -= held.bytes
            self._queued += held.bytes
            for message in held.messages:
                path.send(message)
            self._pausedBy.discard(key)
            # They have room when the socket has.
            self._waiters += held.waiters
        if not cleared:
            return
        if self._queued >= limits.RDS_SEND_BUDGET:
            self._pause(None)
        elif None not in self._pausedBy:
            waiters, self._waiters = self._waiters, []
            self._fire(waiters)
        for held in cleared:
            self._tell("destinationCleared", held.destination)
        self._release()

    def cancel(self, addr: tuple[str, int]) -> int:
        """
        See L{IRDSTransport.cancel}.
        """
        if not self.connected:
            return 0
        path = self._pathTo(addr)
        dropped = path.drop(self, addr[1])
        for message in dropped:
            self._queued -= len(message.payload) + message.overhead
        held = self._held.pop((path, addr[1]), None)
        if held is not None:
            path.release()
            self._heldBytes -= held.bytes
            self._pausedBy.discard((path, addr[1]))
            dropped += held.messages
            self._fire(held.waiters)
        self._release()
        self.canceled(dropped)
        return sum(message.count for message in dropped)

    def heaviest(self) -> list[tuple[str, int]]:
        """
        @return: The destination that most of what waits, or is on its way, is for, and those that half
            as much is for.
        """
        sizes: Counter[tuple[str, int]] = Counter()
        network = self.network
        paths: list[Any] = [*network.paths.values(), *network.loops.values()]
        for path in paths:
            for message in path.messages():
                if message.owner is self:
                    sizes[path.remote, message.destinationPort] += len(message.payload) + _OVERHEAD
        for (path, port), held in self._held.items():
            sizes[path.remote, port] += held.bytes
        most = max(sizes.values(), default=0)
        return [each for each, size in sizes.items() if size * 2 >= most]

    def messageDone(self, message: RDSMessage) -> None:
        """
        The peer has a message.
        """
        self._queued -= len(message.payload) + message.overhead
        if self._pausedBy or self._waiters or self._producer is not None or self._closing is not None:
            self._release()

    def messageDropped(self, message: RDSMessage) -> None:
        """
        A message's operation was lost with a connection.
        """
        self.messageDone(message)
        if isinstance(message, OperationMessage):
            message.ended(RDMAStatus.DROPPED)

    def peerGone(self, path: Any, reason: Exception) -> None:
        """
        A peer cannot be reached.
        """
        machine = path.machine
        if any(key[0] is path for key in self._held) or any(
            message.owner is self for queue in (machine.waiting, machine.unacknowledged) for message in queue
        ):
            self._tell("peerGone", path.remote, reason)

    def ping(self, host: str) -> Deferred[float]:
        """
        See L{IRDSTransport.ping}.
        """
        path = self._pathTo((host, 0))
        if not self.connected or len(self._pings) >= RDS_PINGS:
            raise SendBudgetError("too many pings wait for their answer")
        ping = Ping(self.network, path, self._pings)
        ping.start()
        return ping.answer

    def queued(self) -> int:
        """
        @return: How many bytes of messages are not with the peers.
        """
        return self._queued + self._heldBytes

    def counters(self) -> dict[str, int]:
        """
        See L{IRDSTransport.counters}.
        """
        return dict(self.network.counters)

    # -- flow control of what is sent

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """
        See C{IConsumer}: a streaming producer is paused while the send budget is used up, or what
        may wait for a congested destination; another is asked for more when there is room.

        @raise RuntimeError: there is one already.
        """
        if self._producer is not None:
            raise RuntimeError(f"there is a producer already: {self._producer!r}")
        if not self.connected or self._closing is not None:
            producer.stopProducing()
            return
        self._producer = producer
        self._streaming = bool(streaming)
        self._producerPaused = self._streaming and bool(self._pausedBy)
        if self._producerPaused:
            producer.pauseProducing()
        elif not streaming:
            producer.resumeProducing()

    def unregisterProducer(self) -> None:
        """
        See C{IConsumer}.
        """
        self._producer = None

    def _pause(self, reason: Any) -> None:
        self._pausedBy.add(reason)
        if self._producer is not None and self._streaming and not self._producerPaused:
            self._producerPaused = True
            self._producer.pauseProducing()

    def _release(self) -> None:
        if self._queued <= limits.RDS_SEND_BUDGET // 2:
            self._pausedBy.discard(None)
            waiters, self._waiters = self._waiters, []
            if waiters:
                self._fire(waiters)
        producer = self._producer
        if producer is not None and not self._pausedBy:
            if self._streaming:
                if self._producerPaused:
                    self._producerPaused = False
                    self._log("resumeProducing", producer.resumeProducing)
            elif self._queued <= limits.RDS_SEND_BUDGET // 2:
                self._log("resumeProducing", producer.resumeProducing)
        if self._closing is not None and self.connected and not self._queued and not self._held:
            self._linger.reset(0)

    def _fire(self, waiters: list[Deferred[None]]) -> None:
        for waiter in waiters:
            if not waiter.called:
                waiter.callback(None)

    def stopProducing(self) -> None:
        """
        Close the socket.
        """
        self.stopListening()

    # -- what else a datagram transport has

    def _tell(self, name: str, *arguments: Any) -> None:
        if self._tells:
            self._log(name, getattr(self.protocol, name), *arguments)

    def _log(self, name: str, call: Callable[..., Any], *arguments: Any) -> None:
        """
        Call the application; what it raises is logged, as others wait for what comes next.
        """
        try:
            call(*arguments)
        except Exception:
            _log.failure("{name} of {protocol!r}", name=name, protocol=self.protocol)

    def setBroadcastAllowed(self, enabled: bool) -> None:
        """
        RDS has no broadcast; the value is remembered, as UDP would.
        """
        self._broadcast = bool(enabled)

    def getBroadcastAllowed(self) -> bool:
        """
        @return: What C{setBroadcastAllowed} was given.
        """
        return self._broadcast

    def logPrefix(self) -> str:
        """
        @return: The name of the protocol's class.
        """
        return f"{self.protocol.__class__.__name__} (RDS)"


def listenRDS(
    reactor: Any,
    port: int,
    protocol: Any,
    interface: str = "",
    maxPacketSize: int = limits.RDS_MESSAGE,
    device: str | None = None,
) -> IListeningPort:
    """
    Open a socket: see L{twisted_ib.interfaces.IReactorRDS.listenRDS}.

    @param reactor: Provides C{IReactorFDSet} and C{IReactorTime}.
    @param port: The port, from 2; 0 for any that is free.
    @param protocol: A C{DatagramProtocol}, which may provide
        L{IRDSProtocol<twisted_ib.interfaces.IRDSProtocol>}.
    @param interface: The address to bind; each of the host by default.
    @param maxPacketSize: The longest datagram, in bytes.
    @param device: C{"tcp"} for RDS over TCP, or an HCA's name; the host's default by default.
    @raise ValueError: an argument makes no sense.
    @raise CannotListenError: The port cannot be had.
    """
    socket = RDSPort(port, protocol, interface, maxPacketSize, reactor, device)
    socket.startListening()
    return socket
