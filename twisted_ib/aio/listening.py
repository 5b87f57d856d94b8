"""
Listening through the switch for asyncio: the SDP listeners beside a server's TCP sockets.
"""

from __future__ import annotations

import socket
from asyncio import base_events
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from twisted.internet.protocol import Factory
from twisted.python.failure import Failure

from twisted_ib.aio.streamsocket import INTERNET, ServerStream, StreamSocket
from twisted_ib.configuration.words import BOTH, SDP, TCP
from twisted_ib.switch.listeners import SocketListeners
from twisted_ib.switch.reason import Reason

if TYPE_CHECKING:
    from asyncio import BaseProtocol
    from collections.abc import Callable
    from ssl import SSLContext

    from twisted_ib.aio.loop import EventLoop
    from twisted_ib.aio.reactor import LoopReactor
    from twisted_ib.switch.switch import Switch

    class ServerBase(base_events.Server):
        """
        asyncio's server, with what is not public of it.
        """

        _backlog: int
        _loop: EventLoop
        _protocol_factory: Callable[[], BaseProtocol]
        _serving: bool
        _sockets: list[Any]
        _ssl_context: SSLContext | None
        _ssl_handshake_timeout: float | None
        _ssl_shutdown_timeout: float | None

        def _start_serving(self) -> None: ...

else:
    ServerBase = base_events.Server

#: The addresses of sockets that accept on all others.
_ANY = ("0.0.0.0", "::")


class StreamFactory(Factory):
    """
    Hands the streams of a port to a server, as asyncio's readers of listening sockets do connections.
    """

    noisy = False

    def __init__(self, server: ServerBase) -> None:
        self._server = server
        # As with asyncio's reader of a listening socket: that of start_serving().
        self._context = copy_context()

    def buildProtocol(self, addr: object) -> Any:
        return StreamSocket(self._connected)

    def _connected(self, stream: StreamSocket) -> None:
        loop = self._server._loop
        self._context.run(loop.create_task, self._accept(loop, stream))

    async def _accept(self, loop: EventLoop, stream: StreamSocket) -> None:
        server = self._server
        timeouts = [server._ssl_handshake_timeout]
        if hasattr(server, "_ssl_shutdown_timeout"):
            timeouts.append(server._ssl_shutdown_timeout)
        try:
            if server._sockets is not None:
                extra = {"peername": stream.getpeername()}
                await loop._accept_connection2(
                    server._protocol_factory, stream, extra, server._ssl_context, server, *timeouts
                )
        except OSError:
            # The peer has gone already.
            pass
        finally:
            # Nothing if a transport has it.
            stream.close()


class SocketPort(SocketListeners):
    """
    One socket of a server, and its SDP listeners.

    @ivar socket: The socket, which asyncio accepts from unless SDP is C{alone}.
    """

    transportClass = ServerStream

    def __init__(self, reactor: LoopReactor, switch: Switch, server: Server, skt: socket.socket) -> None:
        self.factory = StreamFactory(server)
        self.backlog = server._backlog
        self.socket = skt
        self._besideSocket(switch, reactor, skt)

    def open(self, draws: bool) -> None:
        """
        Open the SDP listeners that the rules want.

        @param draws: Whether another number would do if this one is in use.
        @raise OSError: They cannot be opened, and the socket alone will not do.
        """
        why = self.why
        self._decide(self._address)
        # The kernel queues TCP clients on a socket that listens already, and another process may share it.
        if why.verdict == SDP and self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            why.verdict = BOTH
        self._open(self.socket, draws)

    def accepts(self, name: tuple[str | int, ...]) -> bool:
        """
        Return whether a connection over TCP with this local socket address comes from here.
        """
        mine: tuple[str | int, ...] = self.socket.getsockname()
        return name == mine or (name[1:2] == mine[1:2] and mine[0] in _ANY)

    def fileno(self) -> int:
        """
        Return the socket's descriptor, for C{ib-ss}.
        """
        return self.socket.fileno()

    def logPrefix(self) -> str:
        return "asyncio"

    def close(self) -> None:
        self.connectionLost(Failure(ConnectionAbortedError()))

    def connectionLost(self, reason: Failure) -> None:
        self.connected = False
        self._closeCompanions(reason)


class Server(ServerBase):
    """
    asyncio's server, with SDP listeners beside its sockets.
    """

    _reactor: LoopReactor
    _switch: Switch
    _ports: tuple[SocketPort, ...] = ()
    _draws = False

    @classmethod
    def adopt(cls, server: Any, reactor: LoopReactor, switch: Switch, draws: bool) -> Server:
        """
        Return asyncio's server, which does not serve yet, as one of these.

        @param draws: Whether another number would do if one is in use.
        """
        # As startTLS() changes a transport's class: to make another from its parts would name all of them,
        # which are others in each version of Python.
        server.__class__ = cls
        made: Server = server
        made._reactor, made._switch, made._draws = reactor, switch, draws
        return made

    def _start_serving(self) -> None:
        # start_serving(), serve_forever() and create_server() come here.
        if self._serving:
            return
        sockets = self._sockets
        try:
            for skt in sockets:
                if skt.family in INTERNET:
                    port = SocketPort(self._reactor, self._switch, self, skt)
                    port.open(self._draws)
                    self._ports += (port,)
            # After SDP: a client that waits for this port would keep the TCP connection that it got before.
            alone = [port.socket for port in self._ports if port.alone]
            self._sockets = [skt for skt in sockets if skt not in alone]
            super()._start_serving()
        except BaseException:
            self._closePorts()
            raise
        finally:
            self._sockets = sockets

    def whyOf(self, skt: socket.socket) -> Reason | None:
        """
        Return the decision about a connection over TCP that this server has accepted.
        """
        # Sockets of several addresses may have one number, and each its own rule.
        own = skt.getsockname()
        for port in self._ports:
            if port.accepts(own):
                why = port.why
                return Reason(why.rule, why.verdict, TCP, None, why.fallback)
        return None

    def _closePorts(self) -> None:
        ports, self._ports = self._ports, ()
        for port in ports:
            port.close()

    def close(self) -> None:
        """
        Stop listening.
        """
        # SDP first: without the TCP socket its listeners would offer a service that TCP cannot reach.
        self._closePorts()
        super().close()
