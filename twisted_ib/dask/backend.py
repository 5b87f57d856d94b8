"""
The backend of C{ib://}: addresses, devices, listeners and connectors.

The address chooses the device: C{shm0} for one of this host; for others the first device with an address of
its own that was added (C{TWISTED_IB_DEVICES}, or a C{device} line of the rules), or C{roce0}.  Dask's setting
C{distributed.comm.ib.device} chooses one for all.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import dask
from distributed.comm.addressing import parse_host_port, unparse_host_port
from distributed.comm.core import BaseListener, CommClosedError, Connector
from distributed.comm.tcp import BaseTCPBackend
from distributed.comm.utils import ensure_concrete_host
from distributed.utils import ensure_ip
from tornado.ioloop import IOLoop
from twisted.internet.error import CannotListenError
from twisted.internet.protocol import ClientFactory, Factory
from twisted.python.failure import Failure

from twisted_ib import limits
from twisted_ib.aio.reactor import LoopReactor, reactorOf
from twisted_ib.dask.comm import IB, logger
from twisted_ib.dask.stream import FrameStream
from twisted_ib.hca.device.registry import DEFAULT_DEVICE, addedDevices, addressOf, deviceNames
from twisted_ib.hca.host.addresses import isLocalAddress
from twisted_ib.internet.failures import osError

if TYPE_CHECKING:
    from twisted.internet.interfaces import IConnector

    from twisted_ib.rdma.port import RDMAPort

_PREFIX = "ib://"
#: The setting of Dask that names a device.
_SETTING = "distributed.comm.ib.device"
#: The device to other hosts where none was added.
_REMOTE = "roce0"
#: There is no such device, or it has no such address.
_UNUSABLE = (errno.ENODEV, errno.EADDRNOTAVAIL)


def checkPlain(address: str, options: dict[str, Any]) -> None:
    """
    Refuse TLS, which C{ib://} has not.

    @param options: Those of a connector or listener of C{distributed}.
    @raise RuntimeError: It is asked for.
    """
    if options.get("require_encryption") or options.get("ssl_context") is not None:
        raise RuntimeError(
            f"encryption required by Dask configuration, refusing communication from/to {_PREFIX}{address!r}:"
            " ib:// has no TLS; tls:// has"
        )


def _toOthers() -> list[str]:
    # Listing the names reads the rules.
    deviceNames()
    return [name for name in addedDevices() if addressOf(name) is not None]


def deviceFor(host: str) -> str:
    """
    Return the device that reaches an address.

    @param host: An IP address.
    """
    chosen = dask.config.get(_SETTING, None)
    if chosen is not None:
        return str(chosen)
    return DEFAULT_DEVICE if isLocalAddress(host) else next(iter(_toOthers()), _REMOTE)


def devicesAt(host: str) -> list[str]:
    """
    Return the devices to listen on for who connects to an address.

    @param host: An IP address of this host.
    """
    chosen = dask.config.get(_SETTING, None)
    if chosen is not None:
        return [str(chosen)]
    if host.startswith("127.") or host == "::1":
        return [DEFAULT_DEVICE]
    return [DEFAULT_DEVICE, *(_toOthers() or [_REMOTE])]


def _reactor() -> LoopReactor:
    try:
        return reactorOf(asyncio.get_running_loop())
    except TypeError as error:
        raise RuntimeError(f"ib:// needs distributed.admin.event-loop to be asyncio's: {error}") from error


class _ClientFactory(ClientFactory):
    noisy = False

    def __init__(self, done: asyncio.Future[FrameStream]) -> None:
        self._done = done

    def buildProtocol(self, addr: object) -> FrameStream:
        return FrameStream(self._done.get_loop(), self._connected)

    def _connected(self, stream: FrameStream) -> None:
        if self._done.done():
            stream.abort()
        else:
            self._done.set_result(stream)

    def clientConnectionFailed(self, connector: IConnector, reason: Failure) -> None:
        if not self._done.done():
            self._done.set_exception(osError(reason.value))


class _ServerFactory(Factory):
    noisy = False

    def __init__(self, connected: Callable[[FrameStream], None]) -> None:
        self._connected = connected

    def buildProtocol(self, addr: object) -> FrameStream:
        return FrameStream(asyncio.get_running_loop(), self._connected)


def _comm(stream: FrameStream, peer: str, deserialize: bool) -> IB:
    here = stream.transport.getHost()
    return IB(stream, _PREFIX + unparse_host_port(here.host, here.port), _PREFIX + peer, deserialize)


class IBConnector(Connector):
    """
    Connects.
    """

    async def connect(self, address: str, deserialize: bool = True, **connection_args: Any) -> IB:
        """
        Connect to an address.

        @raise CommClosedError: Nobody is there.
        @raise RuntimeError: TLS is asked for.
        """
        checkPlain(address, connection_args)
        host, port = parse_host_port(address)
        reactor, host = _reactor(), ensure_ip(host)
        done: asyncio.Future[FrameStream] = reactor.events.create_future()
        try:
            # The caller has a timeout.
            connector = reactor.connectRDMA(host, port, _ClientFactory(done), None, None, deviceFor(host))
            stream = await done
        except asyncio.CancelledError:
            if done.done() and not done.cancelled() and done.exception() is None:
                done.result().abort()
            else:
                connector.disconnect()
            raise
        except (OSError, ValueError) as error:
            raise CommClosedError(f"in {self}: {type(error).__name__}: {error}") from error
        return _comm(stream, address, deserialize)


class IBListener(BaseListener):
    """
    Listens on all devices that reach its address.
    """

    prefix = _PREFIX

    def __init__(
        self,
        address: str,
        comm_handler: Callable[[IB], Awaitable[None]],
        deserialize: bool = True,
        allow_offload: bool = True,
        default_host: str | None = None,
        default_port: int = 0,
        **connection_args: Any,
    ) -> None:
        """
        @param address: Host and port.
        @param comm_handler: Gets each connection.
        @param deserialize: See C{distributed.comm.Comm}; C{allow_offload} too.
        @param default_host: The host to be contacted at, if C{address} has none.
        @param default_port: The port, if C{address} has none.
        @raise RuntimeError: TLS is asked for.
        """
        super().__init__()
        checkPlain(address, connection_args)
        self.ip, self.port = parse_host_port(address, default_port)
        self.default_host = default_host
        self.comm_handler = comm_handler
        self.deserialize = deserialize
        self.allow_offload = allow_offload
        self._ports: list[RDMAPort] = []

    async def start(self) -> None:
        """
        Listen.

        @raise OSError: The port is taken, or a device cannot be opened.
        """
        reactor = _reactor()
        self._events = reactor.events
        for left in reversed(range(limits.DASK_TRIES)):
            try:
                self._listen(reactor)
                break
            except CannotListenError as error:
                stopped = self.stop()
                # A number that is drawn on one device may be taken on another.  One that is given may be of a
                # listener whose stop() nobody has waited for: Server.close() does not.
                await (stopped or asyncio.sleep(0))
                if not left:
                    raise osError(error.socketError) from error

    def _listen(self, reactor: LoopReactor) -> None:
        host = ensure_ip(self.ip) if self.ip else ""
        concrete = ensure_ip(ensure_concrete_host(host, default_host=self.default_host))
        factory = _ServerFactory(self._connected)
        backlog, port = int(str(dask.config.get("distributed.comm.socket-backlog"))), self.port
        for name in devicesAt(concrete):
            # The device's address is chosen by that of the listener.
            interface = host if name == DEFAULT_DEVICE else concrete
            try:
                listening = reactor.listenRDMA(port, factory, interface, backlog, name)
            except CannotListenError as error:
                unusable = osError(error.socketError).errno in _UNUSABLE
                if not unusable or not self._ports or name in addedDevices():
                    raise
                logger.warning("%s cannot be reached from other hosts: %s", self.listen_address, error)
            else:
                self._ports.append(listening)
                port = listening.getHost().port

    def _connected(self, stream: FrameStream) -> None:
        IOLoop.current().add_callback(self._handle, stream)

    async def _handle(self, stream: FrameStream) -> None:
        if not self._ports or stream.loss is not None:
            # stop() was called meanwhile: abort_handshaking_comms() does not know this one.
            stream.abort()
            return
        peer = stream.transport.getPeer()
        comm = _comm(stream, unparse_host_port(peer.host, peer.port), self.deserialize)
        comm.allow_offload = self.allow_offload
        try:
            await self.on_connection(comm)
        except CommClosedError:
            logger.info("Connection from %s closed before handshake completed", comm.peer_address)
            return
        await self.comm_handler(comm)

    def stop(self) -> Awaitable[object] | None:
        """
        Stop listening.

        @return: Done when the port is free.
        """
        ports, self._ports = self._ports, []
        stopped = [port.stopListening() for port in ports]
        waited = [each.asFuture(self._events) for each in stopped if each is not None]
        return asyncio.gather(*waited) if waited else None

    def get_host_port(self) -> tuple[str, int]:
        """
        Return the address that it listens at.

        @raise ValueError: It does not listen.
        """
        if not self._ports:
            raise ValueError("invalid operation on non-started IBListener")
        where = self._ports[0].getHost()
        return where.host, where.port

    @property
    def listen_address(self) -> str:
        """
        The address that it listens at.
        """
        return _PREFIX + unparse_host_port(*self.get_host_port())

    @property
    def contact_address(self) -> str:
        """
        An address that it can be contacted at.
        """
        host, port = self.get_host_port()
        return _PREFIX + unparse_host_port(ensure_concrete_host(host, self.default_host), port)


class IBBackend(BaseTCPBackend):
    """
    C{ib://}, whose addresses are those of C{tcp://}.
    """

    _connector_class = IBConnector
    _listener_class = IBListener
