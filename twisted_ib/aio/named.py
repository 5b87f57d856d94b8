"""
Streams by name for asyncio: over SDP, or in RDMA messages, whatever the rules say.
"""

from __future__ import annotations

import socket
from asyncio import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from twisted.internet.error import CannotListenError
from twisted.internet.protocol import ClientFactory
from twisted.python.failure import Failure

from twisted_ib import limits
from twisted_ib.aio.connecting import withScope
from twisted_ib.aio.listening import ServerBase, StreamFactory
from twisted_ib.aio.streamsocket import (
    AsyncioStream,
    ClientStream,
    ServerStream,
    StreamSocket,
    bytesOf,
    osError,
)
from twisted_ib.rdma.port import RDMAClient, RDMAConnector, RDMAPort, RDMAServer
from twisted_ib.sdp.port import SDPConnector, SDPPort
from twisted_ib.switch.handle import ListeningHandle
from twisted_ib.switch.listeners import refusal

if TYPE_CHECKING:
    from asyncio import BaseProtocol
    from collections.abc import Callable, Sequence

    from twisted_ib.aio.loop import EventLoop
    from twisted_ib.internet.connector import Connector
    from twisted_ib.internet.port import Port

#: Arguments of create_connection() that have done their part once there is a stream.
_ADDRESSING = (
    "family",
    "proto",
    "flags",
    "sock",
    "local_addr",
    "happy_eyeballs_delay",
    "interleave",
    "all_errors",
)
#: The REQs that wait while a server is paused, as by default in asyncio.
_BACKLOG = 100


class AsyncioMessages(AsyncioStream):
    """
    The calls of a message transport that differ for asyncio; a base before the transport's own.
    """

    __slots__ = ()

    maxMessageSize: int
    halfCloses = False
    heldBytes = 0

    def write(self, data: object, *_: object) -> None:
        """
        Send bytes in as many messages as they need.
        """
        octets = bytesOf(data)
        most = self.maxMessageSize
        for start in range(0, len(octets), most):
            super().write(octets[start : start + most])

    def endWriting(self) -> None:
        """
        End this direction.
        """
        self.loseWriteConnection()

    def failNow(self, isUsed: bool = True) -> None:
        """
        Nothing: a loss is told at once.
        """

    def closeNow(self) -> None:
        """
        End the connection; the peer is told.
        """
        self.loseConnection()

    def getTcpNoDelay(self) -> bool:
        """
        Return True: a message is not delayed.
        """
        return True

    def setTcpNoDelay(self, enabled: bool) -> None:
        """
        Do nothing.
        """

    def getTcpKeepAlive(self) -> bool:
        """
        Return False: there are no probes.
        """
        return False

    def setTcpKeepAlive(self, enabled: bool) -> None:
        """
        Do nothing.
        """


class ServerMessages(AsyncioMessages, RDMAServer):
    """
    The message transport of a passive side.
    """

    __slots__ = ()


class ClientMessages(AsyncioMessages, RDMAClient):
    """
    The message transport of an active side.
    """

    __slots__ = ()


class _SDPPort(SDPPort):
    transport = ServerStream

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        # Of the switch's ports, whose transports these are.
        self.peers: dict[str, set[int]] = {}


class _SDPConnector(SDPConnector):
    transportClass = ClientStream


class _RDMAPort(RDMAPort):
    transport = ServerMessages


class _RDMAConnector(RDMAConnector):
    transportClass = ClientMessages


_MESSAGES: dict[str, Any] = {"privateData": b"", "maxMessageSize": limits.RDMA_MESSAGE}
_CONNECTORS: dict[str, Callable[..., Connector]] = {
    "sdp": _SDPConnector,
    "rdma": partial(_RDMAConnector, **_MESSAGES),
}
_PORTS: dict[str, Callable[..., Port]] = {"sdp": _SDPPort, "rdma": partial(_RDMAPort, **_MESSAGES)}


def _check(provider: str, options: dict[str, Any]) -> None:
    if provider not in _PORTS:
        raise ValueError(f"provider {provider!r} is none of sdp, rdma and tcp")
    if options.get("sock") is not None:
        raise ValueError(f"provider {provider!r} makes its own sockets, and takes none")


async def _resolved(
    loop: EventLoop, host: str, port: object, options: dict[str, Any]
) -> list[tuple[str, int]]:
    infos = await loop._ensure_resolved(
        (host, port),
        family=options.get("family", 0),
        type=socket.SOCK_STREAM,
        flags=options.get("flags", 0),
        loop=loop,
    )
    return list(dict.fromkeys(withScope(info[4]) for info in infos))


# -- connecting


class _Factory(ClientFactory):
    noisy = False

    def __init__(self, done: Future[StreamSocket]) -> None:
        self._done = done

    def buildProtocol(self, addr: object) -> Any:
        return StreamSocket(self._connected)

    def _connected(self, stream: StreamSocket) -> None:
        if self._done.done():
            # Cancelled.
            stream.close()
        else:
            self._done.set_result(stream)

    def clientConnectionFailed(self, connector: object, reason: Failure) -> None:
        if not self._done.done():
            assert reason.value is not None
            self._done.set_exception(osError(reason.value))


async def connect(
    loop: EventLoop,
    provider: str,
    host: str | None,
    port: int | None,
    device: str | None,
    options: dict[str, Any],
) -> StreamSocket:
    """
    Connect to the first address that answers.

    @param options: Those of C{create_connection}; left are those that are still to be heeded.
    @raise OSError: None does.
    @raise ValueError: There is no such provider, or no host.
    """
    _check(provider, options)
    if host is None:
        raise ValueError(f"provider {provider!r} needs a host")
    if options.get("ssl") and options.get("server_hostname") is None:
        options["server_hostname"] = host
    errors: list[OSError] = []
    for address in await _resolved(loop, host, port, options):
        try:
            stream = await _attempt(loop, provider, address, options.get("local_addr"), device)
        except OSError as e:
            errors.append(e)
            continue
        for name in _ADDRESSING:
            options.pop(name, None)
        return stream
    if len({str(error) for error in errors}) == 1:
        raise errors[0]
    raise OSError(f"Multiple exceptions: {', '.join(map(str, errors))}")


async def _attempt(
    loop: EventLoop,
    provider: str,
    address: tuple[str, int],
    bound: tuple[str, int] | None,
    device: str | None,
) -> StreamSocket:
    done: Future[StreamSocket] = loop.create_future()
    make = _CONNECTORS[provider]
    connector = make(*address, _Factory(done), None, bound, loop.reactor, device)
    connector.connect()
    try:
        return await done
    except BaseException:
        if done.cancelled():
            connector.disconnect()
        elif done.exception() is None:
            done.result().close()
        raise


# -- listening


class NamedServer(ServerBase):
    """
    asyncio's server, with ports of SDP or for messages in the place of sockets.
    """

    ports: tuple[Port, ...] = ()

    def _start_serving(self) -> None:
        self._serving = True
        for port in self.ports:
            port.startReading()

    def close(self) -> None:
        """
        Stop listening.
        """
        ports, self.ports = self.ports, ()
        for port in ports:
            if port.connected:
                port.stopListening()
        super().close()


async def listen(
    loop: EventLoop,
    provider: str,
    protocol_factory: Callable[[], BaseProtocol],
    host: str | Sequence[str] | None,
    port: int | None,
    device: str | None,
    start_serving: bool,
    options: dict[str, Any],
) -> NamedServer:
    """
    Listen on each address of some hosts.

    @param host: One, or several; none for all IPv4 addresses.
    @param options: Those of C{create_server}.
    @raise OSError: One of them is not available.
    @raise ValueError: There is no such provider.
    """
    _check(provider, options)
    hosts = [host or "0.0.0.0"] if host is None or isinstance(host, str) else host
    addresses = [pair for each in hosts for pair in await _resolved(loop, each, port or 0, options)]
    timeouts = {name: options[name] for name in ("ssl_shutdown_timeout",) if name in options}
    backlog = options.get("backlog", _BACKLOG)
    server = NamedServer(
        loop,
        [],
        protocol_factory,
        options.get("ssl"),
        backlog,
        options.get("ssl_handshake_timeout"),
        **timeouts,
    )
    factory = StreamFactory(server)
    try:
        for address, number in dict.fromkeys(addresses):
            opened = _PORTS[provider](number, factory, backlog, address, loop.reactor, device)
            opened.startListening()
            opened.stopReading()
            server.ports += (opened,)
            server._sockets.append(ListeningHandle(opened.getHost()))
        if start_serving:
            server._start_serving()
    except CannotListenError as e:
        server.close()
        raise refusal(e) from None
    return server
