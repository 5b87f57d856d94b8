"""
The fabric of iWARP: TCP sockets of one address.

A published service is a TCP listener, whose port is that of the service id. A path to an address exists at
once; the TCP connection is made by the request to connect, one for each queue pair.
"""

from __future__ import annotations

import errno
import mmap
import select
import socket
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final
from weakref import WeakSet

from zope.interface import classImplements

from twisted_ib import limits
from twisted_ib.drive.sleeper import unwatch
from twisted_ib.errors import DeviceError, NoRouteError, PathLostError, ServiceInUseError
from twisted_ib.hca.base.traits import STREAM, Traits
from twisted_ib.hca.connection.rdmacm import gidText
from twisted_ib.hca.fabric.base.fabric import CompletedSearch
from twisted_ib.hca.fabric.base.streams import ConnectedFabric, IStreamFabric
from twisted_ib.hca.fabric.iwarp.mpaservice import MPAService
from twisted_ib.hca.fabric.iwarp.peerpath import AdoptedPath, StreamPeerPath
from twisted_ib.hca.fabric.iwarp.protocol.mpa import hasCRC32C
from twisted_ib.hca.fabric.iwarp.protocol.startup import StartupOptions
from twisted_ib.hca.fabric.iwarp.streampath import RECEIVE_BYTES, StreamPath
from twisted_ib.hca.host.addresses import interfaceOf, isFreeOfTCP
from twisted_ib.hca.host.libc import KernelSocket

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import PathUser
    from twisted_ib.hca.queues.queuepair import QueuePair

#: Connections accepted in one turn of a listener: those that are open have their turn, too.
IWARP_ACCEPTS = 64
#: How long a listener rests when the process has no descriptors left, in seconds.
IWARP_ACCEPT_PAUSE_SECONDS = 1.0

_EXHAUSTED: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))

#: TCP connections without a complete Request, of all addresses. A SYN flood is the kernel's matter; these
#: have completed the handshake, so their addresses are real.
IWARP_HALF_OPEN = 4096
#: Connections that wait in the kernel; it has a bound of its own (net.core.somaxconn).
IWARP_BACKLOG = 4096
#: How long polling for an answer pays, in seconds: the peer may have to wake up first.
IWARP_ANSWER_SECONDS = 0.0002

_PORT: Final = 0xFFFF


class Listener:
    """
    The TCP listener of a service.

    @ivar serviceID: the service's id.
    """

    __slots__ = ("_fabric", "serviceID", "socket")

    def __init__(self, fabric: IWARPFabric, serviceID: int, made: socket.socket) -> None:
        self._fabric = fabric
        self.serviceID = serviceID
        self.socket = made
        fabric.watchSocket(made.fileno(), self, select.EPOLLIN)

    def ready(self, events: int, budget: int) -> int:
        """
        Accept connections.

        @return: how many.
        """
        n = 0
        while n < IWARP_ACCEPTS:
            try:
                made, where = self.socket.accept()
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._pause()
                    break
                # accept(2): errors of the network that are pending on a new connection are passed on.
                continue
            finally:
                n += 1
            self._fabric.accepted(made, where[0].partition("%")[0], self.serviceID)
        return n

    def _pause(self) -> None:
        # Level-triggered: without descriptors it would stay readable.
        fabric = self._fabric
        fabric.count("iwarp_accepts_failed")
        fabric.watchSocket(self.socket.fileno(), self, 0)
        fabric.timers.start(IWARP_ACCEPT_PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        if self.socket.fileno() >= 0:
            self._fabric.watchSocket(self.socket.fileno(), self, select.EPOLLIN)

    def close(self) -> None:
        """
        Stop listening.
        """
        self._fabric.watchSocket(self.socket.fileno(), self, 0)
        self.socket.close()


class IWARPFabric(ConnectedFabric):
    """
    The fabric of one HCA: see L{IStreamFabric<twisted_ib.hca.fabric.base.streams.IStreamFabric>}.

    @ivar service: connects and disconnects streams.
    @ivar halfOpen: connections without a complete Request, by the peer's address.
    @ivar isBusy: whether C{buffer} is in use.
    @ivar buffer: what is received; one for all streams, as each leaves at most one incomplete FPDU to itself.
    """

    name: ClassVar[str] = "iwarp"
    traits: ClassVar[Traits] = STREAM
    answerSeconds: ClassVar[float] = IWARP_ANSWER_SECONDS
    streams: dict[int, StreamPath]
    soon: dict[StreamPath, None]

    def __init__(
        self,
        owner: Any,
        guid: int,
        clock: Callable[[], float],
        address: str,
        crc: bool = False,
        markers: bool = False,
    ) -> None:
        """
        Open the device at an address of this host.

        @param owner: the device, an L{IFabricOwner<twisted_ib.hca.base.interfaces.IFabricOwner>}.
        @param clock: returns the time in seconds.
        @param address: an IP address, perhaps with a scope.
        @param crc: whether CRCs are asked for.
        @param markers: whether markers are asked for, and sent to peers that ask for them.
        @raise DeviceError: the address is not of this host, or this is not Linux; or CRCs cannot be computed.
        """
        if not hasattr(select, "epoll"):
            raise DeviceError("iWARP needs Linux")
        plain, _, scope = address.partition("%")
        # Asked whatever is wanted: after a chroot a peer that wants one would have it imported in vain.
        if not hasCRC32C() and crc:
            raise DeviceError(
                f"the iWARP device of {plain} has crc=yes, for which google-crc32c is not installed:"
                " pip install 'twisted-ib[iwarp]'"
            )
        super().__init__(owner, guid, plain, clock)
        self.family = socket.AF_INET6 if ":" in plain else socket.AF_INET
        self._scope = interfaceOf(address) if scope or plain.startswith("fe80:") else 0
        self._checkAddress()
        # No RTR: where one is agreed to, TCP's end before it has been heard ends the kernel of siw's host
        # (Linux 6.1 iwcm.c, cm_close_handler(), a BUG()); without it siw_accept() itself makes the connection
        # established, as for siw's own Requests.
        self.service = MPAService(self, StartupOptions(crc=crc, markers=markers, isPeerToPeer=False))
        self.halfOpen: Counter[str] = Counter()
        # Private, so that a forked child does not see what arrives later; slices of it are bytes.
        self.buffer: Any = mmap.mmap(-1, RECEIVE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.view = memoryview(self.buffer)
        self._listeners: dict[int, Listener] = {}
        self._adopted: WeakSet[AdoptedPath] = WeakSet()
        self._entries: dict[int, Any] = {}
        self._ready: list[tuple[int, int]] = []
        self.isBusy = self._isClosed = False
        self._observer: Any = None
        owner.useConnector(self.service)

    def _checkAddress(self) -> None:
        try:
            with KernelSocket(self.family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
                probe.bind(self.where(self.address, 0))
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise DeviceError(f"{self.address} is not an address of this host") from None
            raise DeviceError(f"no TCP socket for {self.address}: {error.strerror}") from None

    def where(self, address: str, port: int) -> tuple[Any, ...]:
        """
        @return: an address as sockets take it.
        """
        if self.family == socket.AF_INET:
            return address, port
        # RFC 4007: a link-local address is ambiguous without its zone.
        return address, port, 0, self._scope if address.startswith("fe80:") else 0

    # -- services

    def isPortFree(self, port: int) -> bool:
        """
        Return whether TCP lets a connection begin at a port, which is that of the active side.
        """
        return isFreeOfTCP(self.where(self.address, port))

    def listen(self, serviceID: int) -> int:
        # At the TCP port of its number.
        prefix, port = serviceID & ~_PORT, serviceID & _PORT
        other = self._listeners.get(port)
        if other is not None:
            space = other.serviceID >> 16
            raise ServiceInUseError(
                f"TCP port {port} of {self.address} is a service of port space {space:#06x} already"
            )
        made = KernelSocket(self.family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            # Linux socket(7): a port in TIME_WAIT may be bound again, one with a listener may not.
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if self.family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            made.bind(self.where(self.address, port))
            made.listen(IWARP_BACKLOG)
        except OSError as error:
            made.close()
            if error.errno != errno.EADDRINUSE:
                raise ServiceInUseError(
                    f"TCP port {port} of {self.address} cannot be listened on: {error.strerror}"
                ) from None
            # An iWARP service needs the TCP port itself, as with the kernel's siw.
            raise ServiceInUseError(
                f"TCP port {port} of {self.address} is taken by another TCP socket;"
                " an iWARP service needs it itself"
            ) from None
        port = made.getsockname()[1]
        self._listeners[port] = Listener(self, prefix + port, made)
        return port

    def withdraw(self, serviceID: int, address: str) -> None:
        super().withdraw(serviceID, address)
        listener = self._listeners.get(serviceID & _PORT)
        if listener is not None and listener.serviceID == serviceID:
            del self._listeners[serviceID & _PORT]
            listener.close()

    def accepted(self, made: socket.socket, address: str, serviceID: int) -> None:
        """
        A TCP connection was accepted: await its Request, or close it if too many are awaited.

        @param address: the peer's, without a scope.
        """
        halfOpen = self.halfOpen
        if halfOpen[address] >= limits.CM_HALF_OPEN_PER_ADDRESS or halfOpen.total() >= IWARP_HALF_OPEN:
            self.count("iwarp_half_open_exceeded")
            made.close()
            return
        self.service.await_(self.newPath(address), made, serviceID)

    # -- peers

    def newPath(self, address: str) -> StreamPeerPath:
        return StreamPeerPath(self, address)

    def bind(self, way: StreamPeerPath, queuePair: QueuePair) -> StreamPath:
        """
        Give a queue pair the path of its connection.
        """
        stream = self.streams.get(queuePair.remote)
        if stream is None or stream.way is not way or stream.queuePair is not None or stream.isClosing:
            # It has ended while its Reply was on the way: the queue pair learns of it next.
            stream = StreamPath(way, queuePair.remote, None)
            stream.alive = False
            stream.queuePair = queuePair
            self.doom(stream, PathLostError(f"{way.peer.address} has closed the connection"))
            return stream
        stream.attach(queuePair)
        return stream

    def reachGID(self, gid: int, user: PathUser) -> CompletedSearch:
        # There is no way to a queue pair but by a request to connect.
        raise NoRouteError(
            f"iWARP has no datagrams, and its queue pairs are connected by the connection manager:"
            f" {gidText(gid)} has a TCP port to connect to, no queue pairs to address"
        )

    def join(self, group: int) -> None:
        raise NoRouteError("iWARP has no multicast")

    def adopt(
        self,
        made: socket.socket,
        leftover: bytes = b"",
        serviceID: int = 0,
        seconds: float | None = None,
        ended: Callable[[], object] | None = None,
    ) -> AdoptedPath:
        path = AdoptedPath(self, made, leftover, seconds, ended)
        if not serviceID:
            self._adopted.add(path)
        elif (given := path.connected()) is not None:
            made, leftover = given
            self.service.await_(path, made, serviceID, leftover)
        return path

    def trace(self, observer: Any) -> None:
        self._observer = observer

    def shown(self, made: socket.socket, isInitiator: bool, leftover: bytes) -> Any:
        """
        @param made: connected, before anything was sent or received here.
        @param isInitiator: whether this side sends the Request.
        @param leftover: octets of MPA's that were received on it before.
        @return: it, or what stands for it where a capture is written.
        """
        observer = self._observer
        return made if observer is None else observer.tracedStream(made, isInitiator, leftover)

    # -- progress

    def watchSocket(self, fd: int, entry: Any, events: int) -> None:
        """
        Have C{entry.ready(events, budget)} called while a descriptor is ready; with no events, no more.
        """
        if self._isClosed or fd < 0:
            return
        if fd not in self._entries:
            if events:
                self._entries[fd] = entry
                self._poller.register(fd, events)
        elif events:
            self._poller.modify(fd, events)
        else:
            # With no events epoll(7) reports an error or a hang-up all the same.
            del self._entries[fd]
            unwatch(self._poller, fd)

    def progress(self, budget: int = limits.RECORDS_PER_TURN) -> int:
        if self.isBusy or self._isClosed:
            return 0
        self.isBusy = True
        n = 0
        try:
            if self.soon:
                soon, self.soon = self.soon, {}
                for stream in soon:
                    n += stream.progress(budget)
            ready, self._ready = self._ready or self._poll(), []
            # Looked up at once: a descriptor that is closed meanwhile may be another's then.
            entries = self._entries
            for entry, events in [(entries.get(fd), events) for fd, events in ready]:
                if entry is not None:
                    n += entry.ready(events, budget)
            n += self._dispatch()
        finally:
            self.isBusy = False
        self._raise()
        return n

    def _poll(self) -> list[tuple[int, int]]:
        return self._poller.poll(0) if self._entries else []

    # -- sleeping and waking

    def pending(self) -> bool:
        if self._isClosed:
            return False
        if self.soon or self.inbox or self.bells or self._ready:
            return True
        self._ready = self._poll()
        return bool(self._ready)

    # -- the end

    def forked(self) -> None:
        self._isClosed = True
        for stream in list(self.streams.values()):
            stream.forked()
        self._closeSockets()

    def _closeSockets(self) -> None:
        self.streams.clear()
        self.soon.clear()
        self.bells = []
        self.inbox.clear()
        self._entries.clear()
        for listener in self._listeners.values():
            listener.socket.close()
        self._listeners.clear()
        self._services.clear()
        for path in list(self._adopted):
            path.close()
        self._waker.close()
        self._poller.close()

    def close(self) -> None:
        if self._isClosed:
            return
        gone = PathLostError("the device was closed")
        for listener in list(self._listeners.values()):
            listener.close()
        for connection in list(self.service.connections):
            self._try(connection.lost, gone)
        for way in (*(stream.way for stream in self.streams.values()), *self._peers.values()):
            way.lost(gone)
        for stream in list(self.streams.values()):
            self._try(stream.lost, gone)
        # The last octets of the connections that were just failed, before the FIN.
        self.ringBells()
        self._isClosed = True
        for stream in list(self.streams.values()):
            stream.close()
        self._closeSockets()
        self._raise()


classImplements(IWARPFabric, IStreamFabric)
