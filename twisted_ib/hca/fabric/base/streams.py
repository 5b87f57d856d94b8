"""
Fabrics whose connections are made by others: those of TCP connections, and those of an adapter with a kernel.
As a device and its users ask them, and the device, as they see it.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Mapping
from socket import socket
from typing import TYPE_CHECKING, Any

from attrs import evolve

from twisted_ib.hca.base.interfaces import IAddressDirectory, IFabric, IFabricOwner, IPeerPath
from twisted_ib.hca.base.timers import Timers
from twisted_ib.hca.connection.rdmacm import gidOf
from twisted_ib.hca.fabric.base.addressdirectory import AddressDirectory, PeerAddress
from twisted_ib.hca.fabric.base.waker import LinkWaker
from twisted_ib.hca.wire.grh import HOP_LIMIT

if TYPE_CHECKING:
    from twisted_ib.hca.connection.interfaces import IConnection
    from twisted_ib.hca.connection.request import ConnectReply, ConnectRequest


class IAdoptedPath(IPeerPath):
    """
    The path of a socket that a fabric has adopted, for one request.
    """

    def close() -> None:
        """
        Close a connection that has no queue pair yet.
        """


class IStreamFabric(IFabric, IAddressDirectory):
    """
    A fabric of TCP connections.
    """

    # RFC 5044 section 7.1: startup may follow octets of another protocol.
    def adopt(
        made: socket,
        leftover: bytes = b"",
        serviceID: int = 0,
        seconds: float | None = None,
        ended: Callable[[], object] | None = None,
    ) -> IAdoptedPath:
        """
        Let a connected TCP socket go on as a connection of this fabric.

        @param made: the C{socket.socket}; the fabric's from now on.
        @param leftover: octets received on it behind the program's last.
        @param serviceID: nonzero: the peer sends the request to connect, and the listener of this service id
            gets it (L{Services.serve<twisted_ib.hca.device.connections.Services.serve>}); 0: this side sends
            one, over the path that is returned.
        @param seconds: how long the peer may take for the request, or for its answer; by default as on other
            connections.
        @param ended: called once, when the connection has ended.
        @return: the path to the peer.
        @raise PathLostError: the socket is connected no more, or more was received behind the program's last
            octet than a peer may have sent.
        """


class IStreamOwner(IFabricOwner):
    """
    The device, as the fabric of TCP connections sees it.
    """

    # IBTA vol. 1 12.9.8: the RTU, or the first message.  MPA has no frame for it.
    def communicationEstablished(number: int) -> None:
        """
        The peer of a queue pair whose connection was accepted is ready.

        @param number: the queue pair's.
        """


class IAdapterFabric(IFabric, IAddressDirectory):
    """
    A fabric with a communication manager and memory keys of its own.
    """

    def connect(path: IPeerPath, request: ConnectRequest, user: Any, now: float) -> IConnection:
        """
        Send a request to connect over a path that this fabric has resolved.

        @param user: an L{IConnectionUser<twisted_ib.hca.connection.interfaces.IConnectionUser>}, which hears
            of it in a later turn.
        @raise OSError: the kernel has no room.
        """

    def register(view: memoryview, access: int, pd: Any) -> tuple[int, int, Any]:
        """
        Register memory.

        @param access: L{Access<twisted_ib.hca.memory.access.Access>} bits.
        @param pd: the protection domain.
        @return: its key, the address of its first byte, and an object with C{close()}, which ends that.
        @raise MemoryRegionError: the adapter does not take it.
        """


class IAdapterOwner(IFabricOwner):
    """
    The device, as such a fabric sees it.
    """

    def useAdapter(adapter: IAdapterFabric) -> None:
        """
        Have requests to connect sent, and memory registered, by a fabric, from now on.
        """

    def connectionRequested(connection: IConnection, request: ConnectRequest) -> None:
        """
        A request to connect arrived for a published service.
        """


class ConnectedFabric(AddressDirectory):
    """
    A fabric that has a path for each connection, and one descriptor for all that wakes it.

    @ivar clock: returns the time in seconds.
    @ivar timers: of listeners and connections.
    @ivar streams: the paths of queue pairs, by the number that stands for the peer's queue pair.
    @ivar soon: those that have something to do in the next turn.
    """

    streams: Mapping[int, Any]
    soon: dict[Any, None]

    def __init__(self, owner: Any, guid: int, address: str, clock: Callable[[], float]) -> None:
        super().__init__(owner, guid, address)
        self.clock = clock
        self.timers = Timers(clock)
        self.streams = {}
        self.soon = {}
        self._failure: BaseException | None = None
        self._poller = select.epoll()
        self._waker = LinkWaker(self._poller)

    def leave(self, group: int) -> None:
        """
        No effect: nothing was joined.
        """

    def paths(self) -> list[Any]:
        """
        @return: the paths of connected queue pairs.
        """
        return [stream for stream in self.streams.values() if stream.queuePair is not None]

    def failed(self, error: BaseException) -> None:
        """
        A user raised in a turn. The turn goes on; the first error is raised at its end.
        """
        if self._failure is None:
            self._failure = error

    def _raise(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _try(self, call: Callable[..., object], *arguments: Any) -> None:
        # An exception of one user must not keep the others from being notified.
        try:
            call(*arguments)
        except BaseException as error:
            self.failed(error)

    def later(self, stream: Any) -> None:
        """
        Have C{stream.progress} called in the next turn.
        """
        if stream not in self.soon:
            self.soon[stream] = None
            self.want()

    def want(self) -> None:
        """
        Ask the device for a turn.
        """
        wanted = self.owner.wanted
        if wanted is not None:
            wanted()

    def ringBells(self) -> None:
        """
        The batch ends: send what was posted.
        """
        if self.bells:
            bells, self.bells = self.bells, []
            for stream in bells:
                stream.ring()

    @property
    def hot(self) -> tuple[Any, ...]:
        """
        The fabrics that are worth polling: this one, if it has connections.
        """
        return (self,) if self.streams else ()

    def signal(self) -> None:
        """
        Make L{fileno} readable: there is something to do.
        """
        self._waker.signal()

    def attend(self) -> None:
        """
        Reset L{signal}.
        """
        self._waker.attend()

    def watch(self, fd: int, call: Callable[[], object]) -> None:
        """
        Have L{attend} call C{call} while another descriptor is readable.
        """
        self._waker.watch(fd, call)

    def fileno(self) -> int:
        """
        @return: a descriptor that is readable when there is work.
        """
        return self._waker.fileno()

    def deadline(self) -> float | None:
        """
        @return: when L{tick} should be called next, or L{None}.
        """
        return self.timers.deadline()

    def tick(self, now: float) -> None:
        """
        Run the timers that are due.
        """
        self.timers.tick(now)
        self._raise()


class ConnectedPeerPath:
    """
    The path to a peer's address, for connection management only.
    """

    __slots__ = ("__weakref__", "alive", "fabric", "peer")

    def __init__(self, fabric: ConnectedFabric, address: str) -> None:
        """
        @param address: the peer's, as text without a scope.
        """
        self.fabric = fabric
        self.peer = PeerAddress.of(address)
        self.alive = True

    def unbind(self, queuePair: Any) -> None:
        """
        No effect: nothing is bound to this path.
        """

    def forget(self, number: int) -> None:
        """
        No effect: a connection has one queue pair.
        """

    def prepareRequest(self, request: ConnectRequest) -> None:
        """
        See L{IPeerPath.prepareRequest}.
        """
        request.primaryPath = evolve(
            request.primaryPath,
            localGID=gidOf(self.fabric.address),
            remoteGID=gidOf(self.peer.address),
            hopLimit=HOP_LIMIT,
        )

    def prepareReply(self, reply: ConnectReply, request: ConnectRequest) -> Any:
        """
        See L{IPeerPath.prepareReply}.
        """
        return None

    def post(self, word: int, header: bytes, payload: Any, length: int) -> bool:
        """
        Drop a datagram: there are none.
        """
        self.fabric.count("datagrams_unsendable")
        return True

    def respond(self, word: int, record: bytes, partition: int) -> bool:
        """
        See L{IPeerPath.respond}.
        """
        return self.post(word, record, b"", 0)

    def unsent(self) -> int:
        """
        @return: 0: messages do not wait here.
        """
        return 0

    def wantSpace(self, waiter: Any) -> None:
        """
        No effect: nothing waits for space.
        """

    def wantNoSpace(self, waiter: Any) -> None:
        """
        No effect.
        """

    def position(self) -> int:
        """
        @return: 0: nothing is posted here.
        """
        return 0


__all__ = [
    "ConnectedFabric",
    "ConnectedPeerPath",
    "IAdapterFabric",
    "IAdapterOwner",
    "IStreamFabric",
    "IStreamOwner",
]
