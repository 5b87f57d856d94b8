"""
The RDS socket: the port that C{listenRDS} returns, and the transport of its protocol.

It is used like a UDP port (RFC 768), with two differences.  Datagrams arrive once and in the order of the
calls, for each destination; so they are queued while a peer is slow or gone, and that queue is bounded.
And a slow receiver holds back its own datagrams only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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
    MemoryRegionError,
    NoRouteError,
    PeerGoneError,
    RDSOperationError,
    RDSUnsupportedError,
    ResourceLimitError,
    SendBudgetError,
)
from twisted_ib.hca.host.addresses import normalise
from twisted_ib.hca.queues.requests import ATOMIC_BYTES, SendOpcode
from twisted_ib.interfaces import IRDSMemoryTransport, IRDSProtocol, IRDSTransport
from twisted_ib.internet.addressing.addresses import checkInteger, scopeOf, toBytes
from twisted_ib.internet.failures import listenError
from twisted_ib.rds.networks import networkFor
from twisted_ib.rds.paths.network import Network, Route
from twisted_ib.rds.paths.rdmaoperations import (
    READABLE,
    WRITABLE,
    DeviceMemory,
    OperationMessage,
    RDMAStatus,
    RDSMemory,
    cookieExtensions,
    cookieOf,
    integer,
)
from twisted_ib.rds.ping import Ping
from twisted_ib.rds.protocol.bundle import LONGEST, MOST
from twisted_ib.rds.protocol.machine import RDSMessage
from twisted_ib.rds.protocol.wire import LOWEST_PORT, Extension, parseExtensions
from twisted_ib.rds.queues import SocketQueues

#: RDMA operations of one socket that may be outstanding.
RDS_OPERATIONS = 256
#: How often a masked atomic is retried when others change the value in between.
RDS_ATOMIC_ATTEMPTS = 64

_Address = tuple[str, int]
_64_BITS = 1 << 64
_ALL_BITS = _64_BITS - 1

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall, IReactorTime

    from twisted_ib.rds.paths.path import RDSPath


#: Bytes that one socket may hold back for one congested destination; they do not count as
#: C{RDS_SEND_BUDGET}.
RDS_CONGESTED_BUDGET = 1024 * 1024
#: The same for all congested destinations of a socket.
RDS_HELD_BUDGET = 16 * 1024 * 1024
#: Unanswered pings of one socket.
RDS_PINGS = 1024
#: How long a closed socket goes on sending what is queued, in seconds.
RDS_LINGER_SECONDS = 5.0

_log = Logger()
_OVERHEAD = limits.RDS_DATAGRAM_OVERHEAD
_HIGHEST_PORT = 65535
#: Interfaces that stand for several addresses, and their IP versions.  RDS has no wildcard address (Linux
#: bind.c, rds_bind), so the socket is bound to each address.
_ALL = {"": (4, 6), "0.0.0.0": (4,), "::": (6,)}


def addMasked(value: int, add: int, mask: int) -> int:
    """
    Add the fields of two 64-bit values separately.

    @param mask: the highest bit of each field, from which nothing is carried on.
    @return: the sums.
    """
    result, start = 0, 0
    for end in range(64):
        if mask >> end & 1 or end == 63:
            field = (1 << end + 1) - (1 << start)
            result |= ((value & field) + (add & field)) & field
            start = end + 1
    return result


class _Held:
    """
    The messages held back for one congested destination.

    @ivar destination: host and port.
    @ivar bytes: their size, with overhead.
    @ivar messages: oldest first.
    @ivar waiters: the Deferreds that their C{write} calls returned.
    """

    __slots__ = ("bytes", "destination", "messages", "waiters")

    def __init__(self, destination: tuple[str, int]) -> None:
        self.destination = destination
        self.bytes = 0
        self.messages: list[RDSMessage] = []
        self.waiters: list[Deferred[None]] = []


@implementer(IListeningPort, IRDSTransport, IRDSMemoryTransport, IPushProducer)
class RDSPort(SocketQueues):
    """
    An RDS socket.

    @ivar port: the requested port; 0 for any.
    @ivar protocol: receives the datagrams.
    @ivar interface: the address to bind, or a name for several.
    @ivar maxPacketSize: the longest datagram, in bytes.
    @ivar connected: whether it is open.
    @ivar addresses: the addresses that it is bound to.
    """

    #: For protocols made for UDP, which may ask.
    _broadcast = False

    _linger: IDelayedCall
    _default: tuple[str, int] | None = None
    _memories: dict[int, RDSMemory] | None = None
    _operating = 0
    _producer: IPushProducer | None = None
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
        Open nothing before C{startListening} is called.

        @raise ValueError: an argument is invalid.
        """
        # Port 1 is reserved for probes (RDS_FLAG_PROBE_PORT in Linux rds.h; binding it is EINVAL there).
        if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= _HIGHEST_PORT or port == 1:
            raise ValueError(f"port {port!r} is not 0 or from {LOWEST_PORT} to {_HIGHEST_PORT}")
        if not isinstance(maxPacketSize, int) or not 0 <= maxPacketSize <= limits.RDS_MESSAGE:
            raise ValueError(f"maxPacketSize is 0 to {limits.RDS_MESSAGE}, not {maxPacketSize!r}")
        if not isinstance(interface, str):
            raise ValueError(f"interface {interface!r} is not an address")
        SocketQueues.__init__(self, reactor, protocol, maxPacketSize)
        self.port = port
        self.interface = interface
        self.device = device
        self._network = network
        self._tells = IRDSProtocol.providedBy(protocol)
        self._heldBytes = 0
        self._held: dict[tuple[Route, int], _Held] = {}
        self._waiters: list[Deferred[None]] = []
        self._pausedBy: set[tuple[Route, int] | None] = set()
        self._pings: set[Ping] = set()
        self._routes: dict[tuple[str, int], Route] = {}
        self._epoch = -1

    def __repr__(self) -> str:
        where = f"on {self._realPort}" if self.connected else "not connected"
        return f"<{type(self).__name__} of {self.protocol.__class__} {where}>"

    # -- opening and closing

    @property
    def network(self) -> Network:
        """
        The state that all sockets of the process share on the device.
        """
        network = self._network
        if network is None:
            network = self._network = networkFor(self.reactor, self.device)
        return network

    def startListening(self) -> None:
        """
        Bind the port.

        @raise CannotListenError: the port or the address is not available.
        """
        try:
            network = self.network
            self._counters = network.counters
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
        versions = _ALL.get(self.interface)
        if versions is None:
            return [normalise("127.0.0.1" if self.interface == "localhost" else self.interface)]
        found = [a for a in network.medium.localAddresses() if (6 if ":" in a else 4) in versions]
        if not found:
            raise NoRouteError("this host has no address of that kind")
        return found

    def getHost(self) -> IPv4Address | IPv6Address:
        # An interface that stands for several addresses as it was given.
        host = self.interface if self.interface in _ALL or not self.addresses else self.addresses[0]
        if ":" in host:
            return IPv6Address("UDP", host, self._realPort, 0, scopeOf(host))
        return IPv4Address("UDP", host or "0.0.0.0", self._realPort)

    def stopListening(self) -> Deferred[None]:
        """
        Close the socket.  Queued messages are still sent, for L{RDS_LINGER_SECONDS<RDS_LINGER_SECONDS>}
        at most; what is not acknowledged by then is dropped.

        @return: a Deferred that fires with L{None} when the socket is closed.
        """
        if not self.connected:
            return succeed(None)
        if self._closing is None:
            self.closeBundles()
            self._closing = Deferred()
            # Reading ends at once: the protocol gets nothing after it has closed.
            self._forget()
            wait = RDS_LINGER_SECONDS if self._queued or self._held else 0
            self._linger = self.reactor.callLater(wait, self._closed)
        # A Deferred for each caller, who may add callbacks of its own.
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
        for path in network.routes():
            # Linux af_rds.c (rds_release) drops a closing socket's messages at once; those on the wire may
            # arrive.
            dropped = path.drop(self)
            network.counters["send_drop_closed"] += sum(message.count for message in dropped)
            self.canceled(dropped)
        self.freeAll()
        network.unbind(self.addresses, self._realPort)
        self._queued = self._heldBytes = 0
        producer, self._producer = self._producer, None
        if producer is not None:
            self._log("stopProducing", producer.stopProducing)
        # Waiting writers are released, not failed: a writer made for UDP has no errback.
        self._fire(self._waiters)
        self._log("stopProtocol", self.protocol.doStop)
        closing = self._closing
        assert closing is not None
        # The last socket takes everything out of the reactor, so that the caller can stop it.
        quiet = network.medium.whenQuiet() if network.dormant else succeed(None)
        quiet.addCallback(lambda result: closing.callback(None))

    def _congestionChanged(self, congested: bool) -> None:
        for address in self.addresses:
            self.network.setCongested(address, self._realPort, congested)

    # -- sending

    def connect(self, host: str, port: int) -> None:
        """
        Set the destination of datagrams that are written without an address; receiving is not restricted
        (Linux C{af_rds.c}: C{rds_connect}).

        @raise InvalidAddressError: C{host} is not an IP address.
        """
        self._pathTo((host, port))
        # Datagrams for the destination before leave for it.
        bundle = self._bundles.get(None)
        if bundle is not None:
            bundle.path.closeBundle()
        self._default = (host, port)

    def _writeSlowly(self, datagram: Any, addr: Any) -> Deferred[None] | None:
        # Dropped and counted: a protocol may still write while its socket closes.
        if not self.connected or self._closing is not None:
            self.network.counters["send_drop_closed"] += 1
            return None
        data = datagram if type(datagram) is bytes else toBytes(datagram)
        length = len(data)
        if length > self.maxPacketSize:
            raise DatagramTooLongError(f"a datagram has at most {self.maxPacketSize} bytes, not {length}")
        given = addr
        if addr is None:
            addr = self._default
            if addr is None:
                raise ValueError("there is no destination")
        path = self._routes.get(addr)
        if path is None or path.closed or self._epoch != self._network.epoch:  # type: ignore[union-attr]
            path = self._pathTo(addr)
        # A bundle is checked once as a whole: its datagrams are then added without further checks.
        if (
            length <= LONGEST
            and path.gathers()
            and self._queued + MOST < limits.RDS_SEND_BUDGET
            and self.maxPacketSize >= MOST
            and not path.isCongested(addr[1])
            and not (path.held and (path, addr[1]) in self._held)
        ):
            self._openBundle(path, given, addr[1], data)
            return None
        return self.place(path, addr, RDSMessage(self._realPort, addr[1], data, self))

    def place(self, path: Route, addr: tuple[str, int], message: RDSMessage) -> Deferred[None] | None:
        """
        Send a message, or hold it back.

        @return: as C{write}.
        @raise SendBudgetError: too much is queued.
        """
        # Held back as well while earlier messages are, to keep the order.
        if path.isCongested(addr[1]) or (path.held and (path, addr[1]) in self._held):
            return self._hold(path, addr, message)
        # As Linux send.c: the limit is checked before the message is added, so the last one may exceed it.
        # A message longer than the rest of the budget would never be sent otherwise.
        if self._queued >= limits.RDS_SEND_BUDGET:
            self.network.counters["send_queue_full"] += 1
            raise SendBudgetError(f"{self._queued} bytes wait to be sent already")
        self._queued += message.size + _OVERHEAD
        path.send(message)
        if self._queued < limits.RDS_SEND_BUDGET:
            return None
        self._pause(None)
        waiter: Deferred[None] = Deferred()
        self._waiters.append(waiter)
        return waiter

    def writeSequence(self, datagrams: Any, addr: tuple[str, int] | None = None) -> Deferred[None] | None:
        """
        Write one datagram given in pieces.
        """
        return self.write(b"".join(datagrams), addr)

    def _pathTo(self, addr: tuple[str, int]) -> Route:
        given, port = addr
        if not isinstance(port, int) or not 0 <= port <= _HIGHEST_PORT:
            raise ValueError(f"port {port!r} is not between 0 and {_HIGHEST_PORT}")
        try:
            # Addresses only, as in twisted.internet.udp: resolving a name takes time, in which writes would
            # change places.
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
        # Both ends of a connection have one IP version (Linux send.c: EOPNOTSUPP otherwise).
        same = [address for address in self.addresses if (":" in address) == (":" in host)]
        if not same:
            raise error.InvalidAddressError(host, "the socket has no address of that kind")
        if len(same) == 1 or host in same:
            return host if host in same else same[0]
        # The kernel's choice (for IPv6 by RFC 6724), if the socket has that address.
        source = self.network.medium.sourceFor(host)
        return source if source in same else same[0]

    def _hold(self, path: Route, addr: tuple[str, int], message: RDSMessage) -> Deferred[None]:
        # Linux cong.c (rds_cong_wait) blocks, or fails with ENOBUFS; here the message waits apart, so that
        # others pass.
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
        size = message.size + _OVERHEAD
        held.messages.append(message)
        held.bytes += size
        self._heldBytes += size
        waiter: Deferred[None] = Deferred()
        held.waiters.append(waiter)
        if held.bytes >= RDS_CONGESTED_BUDGET or self._heldBytes >= RDS_HELD_BUDGET:
            # The producer is paused: it may be writing to this destination.
            self._pause(key)
        if isNew:
            self._tell("destinationCongested", held.destination)
        return waiter

    def portsCleared(self, path: Route) -> None:
        """
        Ports of a peer may have been cleared: send what was held back for them.
        """
        cleared = []
        # Listed first: sending may call back and change the table.
        for key in [key for key in self._held if key[0] is path and not path.isCongested(key[1])]:
            held = self._held.pop(key)
            cleared.append(held)
            path.release()
            self._heldBytes -= held.bytes
            self._queued += held.bytes
            for message in held.messages:
                path.send(message)
            self._pausedBy.discard(key)
            # Their Deferreds fire when the socket has room: the messages are still to be sent.
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
        if not self.connected:
            return 0
        path = self._pathTo(addr)
        dropped = path.drop(self, addr[1])
        for message in dropped:
            self._queued -= message.size + _OVERHEAD
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

    def largestBacklogs(self) -> list[tuple[str, int]]:
        """
        @return: the destination with the most bytes queued or unacknowledged, and those with at least
            half as many.
        """
        sizes: Counter[tuple[str, int]] = Counter()
        network = self.network
        for path in network.routes():
            for message in path.messages():
                if message.owner is self:
                    sizes[path.remote, message.destinationPort] += message.size + _OVERHEAD
        for (path, port), held in self._held.items():
            sizes[path.remote, port] += held.bytes
        most = max(sizes.values(), default=0)
        return [each for each, size in sizes.items() if size * 2 >= most]

    def messageDone(self, message: RDSMessage) -> None:
        """
        The peer has acknowledged a message.
        """
        self._queued -= message.size + _OVERHEAD
        if self._pausedBy or self._waiters or self._producer is not None or self._closing is not None:
            self._release()

    def messageDropped(self, message: RDSMessage) -> None:
        """
        A message's RDMA operation was lost with its connection.
        """
        self.messageDone(message)
        if isinstance(message, OperationMessage):
            message.ended(RDMAStatus.DROPPED)

    def peerGone(self, path: RDSPath, reason: Exception) -> None:
        """
        A peer is unreachable.
        """
        machine = path.machine
        # Only sockets with messages for it: others are not concerned.
        if any(key[0] is path for key in self._held) or any(
            message.owner is self for queue in (machine.waiting, machine.unacknowledged) for message in queue
        ):
            self._tell("peerGone", path.remote, reason)

    def ping(self, host: str) -> Deferred[float]:
        path = self._pathTo((host, 0))
        if not self.connected or len(self._pings) >= RDS_PINGS:
            raise SendBudgetError("too many pings wait for their answer")
        ping = Ping(self.network, path, self._pings)
        ping.start()
        return ping.answer

    def queued(self) -> int:
        """
        @return: bytes of messages that peers have not acknowledged.
        """
        return self._queued + self._heldBytes

    def counters(self) -> dict[str, int]:
        return dict(self.network.counters)

    # -- memory

    def _domain(self) -> DeviceMemory:
        find = getattr(self.network.medium, "domain", None)
        if find is None:
            # Linux: tcp.c gives no get_mr, so the socket options of RDMA return EOPNOTSUPP.
            raise RDSUnsupportedError("RDS over TCP has no RDMA")
        if not self.connected or self._closing is not None:
            raise MemoryRegionError("the socket is closed")
        domain: DeviceMemory = find(self.addresses[0])
        return domain

    def registerMemory(self, sizeOrBuffer: Any, writable: bool = True, useOnce: bool = False) -> RDSMemory:
        domain = self._domain()
        memories = self._memories
        if memories is None:
            memories = self._memories = {}
        if len(memories) >= limits.RDS_REGIONS:
            raise ResourceLimitError(f"a socket has at most {limits.RDS_REGIONS} regions of memory")
        buffer = sizeOrBuffer
        if isinstance(buffer, int):
            if not 0 < buffer <= limits.RDS_OPERATION:
                raise MemoryRegionError(f"memory has 1 to {limits.RDS_OPERATION} bytes, not {buffer}")
            buffer = bytearray(buffer)
        memory = RDSMemory(domain, buffer, WRITABLE if writable else READABLE, useOnce)
        memories[memory.key] = memory
        return memory

    def freeMemory(self, memoryOrCookie: RDSMemory | int, invalidate: bool = True) -> bool:
        key = memoryOrCookie.key if isinstance(memoryOrCookie, RDSMemory) else memoryOrCookie % (1 << 32)
        memory = None if self._memories is None else self._memories.pop(key, None)
        if memory is None:
            return False
        memory.free()
        return True

    def _used(self, key: int) -> None:
        # Linux rdma.c (rds_rdma_unuse): the peer has finished with the key; only use-once memory is freed.
        memory = None if self._memories is None else self._memories.get(key)
        if memory is not None and memory.useOnce:
            self.freeMemory(memory)

    def freeAll(self) -> None:
        """
        Free all memory when the socket is closed (C{rds_rdma_drop_keys} in Linux C{rdma.c}).
        """
        memories, self._memories = self._memories, None
        for memory in (memories or {}).values():
            memory.free()

    # -- messages

    def writeWithCookie(
        self, datagram: bytes, cookie: int, addr: _Address | None = None
    ) -> Deferred[None] | None:
        self._domain()
        data = self._checked(datagram)
        where = self._target(addr)
        message = RDSMessage(self._realPort, where[1], data, self, cookieExtensions(cookie))
        return self.place(self._pathTo(where), where, message)

    def _checked(self, datagram: Any) -> bytes:
        data: bytes = datagram if type(datagram) is bytes else toBytes(datagram)
        if len(data) > self.maxPacketSize:
            raise DatagramTooLongError(f"a datagram has at most {self.maxPacketSize} bytes, not {len(data)}")
        return data

    def _target(self, addr: _Address | None) -> _Address:
        found = self._default if addr is None else addr
        if found is None:
            raise ValueError("there is no destination")
        return found

    def extended(self, extensions: bytes) -> int | None:
        found = parseExtensions(extensions)
        key = found.get(Extension.RDMA)
        if key is not None:
            self._used(int.from_bytes(key, "big"))
        return cookieOf(found.get(Extension.RDMA_DEST))

    # -- operations

    def rdmaWrite(
        self,
        cookie: int,
        data: Any,
        addr: _Address | None = None,
        offset: int = 0,
        datagram: bytes | None = b"",
        localOffset: int = 0,
        length: int | None = None,
        fence: bool = False,
    ) -> Deferred[None]:
        if isinstance(data, RDSMemory):
            size = data.length - localOffset if length is None else checkInteger("length", length)
        else:
            data = memoryview(toBytes(data))[localOffset:]
            if length is not None:
                data = data[:length]
            size = len(data)
        return self._ask(
            addr,
            datagram,
            opcode=SendOpcode.RDMA_WRITE,
            cookie=cookie,
            offset=offset,
            buffer=data,
            length=size,
            bufferOffset=localOffset,
            fence=fence,
        )

    def rdmaRead(
        self,
        cookie: int,
        length: int,
        addr: _Address | None = None,
        offset: int = 0,
        datagram: bytes | None = b"",
        memory: RDSMemory | None = None,
        localOffset: int = 0,
        fence: bool = False,
    ) -> Deferred[Any]:
        length = checkInteger("length", length)
        if not 0 <= length <= limits.RDS_OPERATION:
            raise ValueError(f"an operation has at most {limits.RDS_OPERATION} bytes, not {length}")
        return self._ask(
            addr,
            datagram,
            opcode=SendOpcode.RDMA_READ,
            cookie=cookie,
            offset=offset,
            buffer=bytearray(length) if memory is None else memory,
            length=length,
            result=bytes,
            bufferOffset=localOffset,
            fence=fence,
        )

    def fetchAdd(
        self,
        cookie: int,
        add: int,
        addr: _Address | None = None,
        offset: int = 0,
        datagram: bytes | None = b"",
        mask: int = 0,
    ) -> Deferred[int]:
        add = checkInteger("what to add", add) % _64_BITS
        if checkInteger("mask", mask) % _64_BITS:
            return Deferred.fromCoroutine(
                self._masked(cookie, addr, offset, datagram, lambda old: addMasked(old, add, mask))
            )
        return self._atomic(SendOpcode.ATOMIC_FETCH_AND_ADD, cookie, addr, offset, datagram, add, 0)

    def compareAndSwap(
        self,
        cookie: int,
        compare: int,
        swap: int,
        addr: _Address | None = None,
        offset: int = 0,
        datagram: bytes | None = b"",
        compareMask: int = _ALL_BITS,
        swapMask: int = _ALL_BITS,
    ) -> Deferred[int]:
        if compareMask == swapMask == _ALL_BITS:
            opcode = SendOpcode.ATOMIC_CMP_AND_SWP
            return self._atomic(opcode, cookie, addr, offset, datagram, compare, swap)

        def change(old: int) -> int:
            return old if (old ^ compare) & compareMask else old & ~swapMask | swap & swapMask

        return Deferred.fromCoroutine(self._masked(cookie, addr, offset, datagram, change))

    def _atomic(
        self,
        opcode: SendOpcode,
        cookie: int,
        addr: _Address | None,
        offset: int,
        datagram: bytes | None,
        compare: int,
        swap: int,
    ) -> Deferred[int]:
        for name, value in (("compare", compare), ("swap", swap)):
            if not 0 <= checkInteger(name, value) < _64_BITS:
                raise ValueError(f"{name} has 64 bits, not {value!r}")
        return self._ask(
            addr,
            datagram,
            opcode=opcode,
            cookie=cookie,
            offset=offset,
            buffer=bytearray(ATOMIC_BYTES),
            length=ATOMIC_BYTES,
            result=integer,
            compare=compare,
            swap=swap,
        )

    async def _masked(
        self,
        cookie: int,
        addr: _Address | None,
        offset: int,
        datagram: bytes | None,
        change: Callable[[int], int],
    ) -> int:
        # FetchAdd and CmpSwap have no masks (IBTA vol. 1 9.4.5); Linux ib_send.c uses extended opcodes
        # (IB_WR_MASKED_ATOMIC_*).  Here: read, then swap unless the value has changed in between.
        where = self._target(addr)
        payload = None if datagram is None else self._checked(datagram)
        fetch, swap = SendOpcode.ATOMIC_FETCH_AND_ADD, SendOpcode.ATOMIC_CMP_AND_SWP
        # Adding 0 reads 64 bits atomically, which an RDMA READ does not promise.
        found = await self._atomic(fetch, cookie, where, offset, None, 0, 0)
        for _ in range(RDS_ATOMIC_ATTEMPTS):
            old, new = found, change(found)
            if new != old:
                found = await self._atomic(swap, cookie, where, offset, None, old, new)
            if found == old:
                # The message follows once, after the attempt that succeeded.
                if payload is not None:
                    self._send(where, RDSMessage(self._realPort, where[1], payload, self))
                return old
        status = RDMAStatus.OTHER_ERROR
        raise RDSOperationError(int(status), f"RDS_RDMA_{status.name}", "masked atomic")

    def _ask(self, addr: _Address | None, datagram: bytes | None, **fields: Any) -> Deferred[Any]:
        operations = self._domain().device.traits.operations
        if operations is not None and fields["opcode"] not in operations:
            raise RDSUnsupportedError(f"this device has no {fields['opcode'].name}")
        where = self._target(addr)
        payload = None if datagram is None else self._checked(datagram)
        if self._operating >= RDS_OPERATIONS:
            raise SendBudgetError(f"{self._operating} operations are on their way already")
        message = OperationMessage((self._realPort, where[1]), self, payload, **fields)
        # Counted before it is sent: it may complete during the call.
        self._operating += 1
        try:
            self._send(where, message)
        except BaseException:
            self._operating -= 1
            raise
        return message.done

    def _send(self, addr: _Address, message: RDSMessage) -> None:
        if not self.connected or self._closing is not None:
            raise PeerGoneError("the socket is closed")
        self.place(self._pathTo(addr), addr, message)

    def operationEnded(self) -> None:
        """
        An operation has completed.
        """
        self._operating -= 1

    def canceled(self, messages: list[RDSMessage]) -> None:
        """
        Messages were dropped: report their operations as cancelled.
        """
        for message in messages:
            if isinstance(message, OperationMessage):
                message.ended(RDMAStatus.CANCELED)

    # -- IConsumer: flow control of sending

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """
        See C{IConsumer}: a streaming producer is paused while the send budget, or that of a congested
        destination, is used up; a pull producer is asked for more when there is room.

        @raise RuntimeError: a producer is registered already.
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
        self._producer = None

    def _pause(self, reason: tuple[Route, int] | None) -> None:
        self._pausedBy.add(reason)
        if self._producer is not None and self._streaming and not self._producerPaused:
            self._producerPaused = True
            self._producer.pauseProducing()

    def _release(self) -> None:
        # Resumed at half the budget: otherwise each acknowledged message would pause and resume the
        # producer.
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
            # Everything is acknowledged: close now.
            self._linger.reset(0)

    def _fire(self, waiters: list[Deferred[None]]) -> None:
        for waiter in waiters:
            if not waiter.called:
                waiter.callback(None)

    def stopProducing(self) -> None:
        self.stopListening()

    # -- notifications, and the rest of a datagram transport

    def _tell(self, name: str, *arguments: Any) -> None:
        if self._tells:
            self._log(name, getattr(self.protocol, name), *arguments)

    def _log(self, name: str, call: Callable[..., Any], *arguments: Any) -> None:
        # Exceptions are logged: the caller still has others to notify.
        try:
            call(*arguments)
        except Exception:
            _log.failure("{name} of {protocol!r}", name=name, protocol=self.protocol)

    def setBroadcastAllowed(self, enabled: bool) -> None:
        """
        Remember the value: RDS has no broadcast (RFC 919).
        """
        self._broadcast = bool(enabled)

    def getBroadcastAllowed(self) -> bool:
        """
        @return: the value of C{setBroadcastAllowed}.
        """
        return self._broadcast

    def logPrefix(self) -> str:
        """
        @return: the name of the protocol's class, and C{(RDS)}.
        """
        return f"{self.protocol.__class__.__name__} (RDS)"


def listenRDS(
    reactor: IReactorTime,
    port: int,
    protocol: Any,
    interface: str = "",
    maxPacketSize: int = limits.RDS_MESSAGE,
    device: str | None = None,
) -> IListeningPort:
    """
    Open a socket: see L{twisted_ib.interfaces.IReactorRDS.listenRDS}.

    @param reactor: provides C{IReactorFDSet} and C{IReactorTime}.
    """
    socket = RDSPort(port, protocol, interface, maxPacketSize, reactor, device)
    socket.startListening()
    return socket
