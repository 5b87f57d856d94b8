"""
The event loop: asyncio's for selectors, whose connections and servers go through the offload switch.
"""

from __future__ import annotations

import asyncio
import errno
import io
import os
import socket
from asyncio import sslproto
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet

# Much to import, and therefore not when the first connection is made: the event loop would stand still.
from twisted_ib import limits
from twisted_ib.aio import given
from twisted_ib.aio.connecting import SwitchedConnect
from twisted_ib.aio.listening import Server
from twisted_ib.aio.reactor import LoopReactor
from twisted_ib.aio.streamsocket import INTERNET, StreamSocket
from twisted_ib.aio.transport import StreamTransport
from twisted_ib.configuration.words import LISTEN
from twisted_ib.switch.reason import EXPLICIT, Reason, carried

if TYPE_CHECKING:
    from asyncio import BaseProtocol, Future, Transport
    from asyncio import Server as AsyncioServer
    from collections.abc import Callable, Sequence
    from selectors import BaseSelector
    from ssl import SSLContext
    from typing import BinaryIO

    from twisted_ib.switch.handle import ListeningHandle
    from twisted_ib.switch.switch import Switch

    _Protocol = TypeVar("_Protocol", bound=BaseProtocol)
    #: A tuple of C{getaddrinfo}.
    _Info = tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int]]
    _Waiter = Future[None] | None
    _Extra = dict[str, object] | None

    class _SelectorEventLoop(asyncio.SelectorEventLoop):
        _selector: BaseSelector

        def _check_closed(self) -> None: ...

        def _check_sendfile_params(
            self, sock: object, file: BinaryIO, offset: int, count: int | None
        ) -> None: ...

        async def _accept_connection2(
            self,
            protocol_factory: Callable[[], BaseProtocol],
            conn: socket.socket | StreamSocket,
            extra: dict[str, Any],
            sslcontext: SSLContext | None,
            server: AsyncioServer,
            *timeouts: float | None,
        ) -> None: ...

        async def _ensure_resolved(
            self, address: tuple[str, object], *, family: int, type: int, flags: int, loop: EventLoop
        ) -> list[_Info]: ...

        async def _connect_sock(
            self,
            exceptions: list[list[OSError]],
            addr_info: _Info,
            local_addr_infos: list[_Info] | None = None,
        ) -> socket.socket: ...

        async def _create_connection_transport(
            self, sock: socket.socket | StreamSocket, *arguments: object, **options: object
        ) -> tuple[Transport, BaseProtocol]: ...

        def _make_socket_transport(
            self,
            sock: socket.socket | StreamSocket,
            protocol: BaseProtocol,
            waiter: _Waiter = None,
            *,
            extra: _Extra = None,
            server: AsyncioServer | None = None,
            **more: object,
        ) -> Transport: ...

        def _make_ssl_transport(
            self,
            rawsock: socket.socket | StreamSocket,
            protocol: BaseProtocol,
            sslcontext: SSLContext,
            waiter: _Waiter = None,
            *,
            server_side: bool = False,
            server_hostname: str | None = None,
            extra: _Extra = None,
            server: AsyncioServer | None = None,
            **timeouts: float | None,
        ) -> Transport: ...

        async def _sendfile_native(
            self, transp: Transport, file: BinaryIO, offset: int, count: int | None
        ) -> int: ...

        async def _sendfile_fallback(
            self, transp: Transport, file: BinaryIO, offset: int, count: int | None
        ) -> int: ...

        def _stop_serving(self, sock: socket.socket) -> None: ...

    #: Its parameters are others in each version of Python.
    _SSLProtocol: Any
else:
    _SelectorEventLoop = asyncio.SelectorEventLoop
    _SSLProtocol = sslproto.SSLProtocol

_TCP = (0, socket.IPPROTO_TCP)
#: Whether the connect of this context avoids the switch.
_direct: ContextVar[bool] = ContextVar("direct", default=False)
#: The loops that are not closed yet.
openLoops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()


class EventLoop(_SelectorEventLoop):
    """
    An event loop that serves devices between its turns.

    Until something connects or listens by TCP it is asyncio's own.
    """

    _reactor: LoopReactor | None = None

    def __init__(self, selector: BaseSelector | None = None) -> None:
        """
        @param selector: As of C{asyncio.SelectorEventLoop}.
        """
        super().__init__(selector)
        openLoops.add(self)
        # The decisions about connections over TCP, until their transports are made.
        self._reasons: WeakKeyDictionary[socket.socket, Reason | None] = WeakKeyDictionary()
        # The decisions about servers that are asyncio's own.
        self._servers: WeakKeyDictionary[asyncio.AbstractServer, Reason] = WeakKeyDictionary()
        self._gives = True

    @property
    def reactor(self) -> LoopReactor:
        """
        The Twisted reactor of this event loop, which serves its devices; for Twisted's calls as well.
        """
        reactor = self._reactor
        if reactor is None:
            self._check_closed()
            reactor = self._reactor = LoopReactor(self)
            # A class that runs in its own way, as trio-asyncio's, gives no turns: its TCP is direct.
            classes = type(self).__mro__
            derived = classes[: classes.index(EventLoop)]
            reactor._switchless = any("run_forever" in vars(each) for each in derived)
        return reactor

    # -- connecting

    async def create_connection(
        self,
        protocol_factory: Callable[[], _Protocol],
        host: Any = None,
        port: Any = None,
        *,
        provider: str | None = None,
        device: str | None = None,
        **options: Any,
    ) -> tuple[Transport, _Protocol]:
        """
        See C{asyncio.loop.create_connection}; the rules choose the provider.

        @param provider: C{sdp}, C{rdma} or C{tcp}, whatever the rules say.  With C{rdma} the bytes travel in
            messages, to a server that was made so, and there is no half-close.
        @param device: The HCA's name, with C{sdp} and C{rdma}; the host's default by default.
        @raise ValueError: There is no such provider, or it does not connect sockets.
        """
        if provider is None:
            stream: Any = given.takeStream(options.get("sock"))
            if stream is not None:
                options["sock"] = stream
            return await super().create_connection(protocol_factory, host, port, **options)
        if provider == "tcp":
            token = _direct.set(True)
            try:
                return await super().create_connection(protocol_factory, host, port, **options)
            finally:
                _direct.reset(token)
        from twisted_ib.aio.named import connect

        stream = await connect(self, provider, host, port, device, options)
        return await super().create_connection(protocol_factory, sock=stream, **options)

    async def _connect_sock(
        self, exceptions: list[list[OSError]], addr_info: _Info, local_addr_infos: list[_Info] | None = None
    ) -> Any:
        # create_connection() calls this for each address, also for two at a time.
        family, _, _, _, address = addr_info
        why = None
        if _direct.get():
            why = Reason(EXPLICIT, "tcp", "tcp")
        elif family in INTERNET:
            switch: Switch | None = self.reactor._switchFor("connect")
            # Rules that leave everything to TCP cost this test only.
            if switch is not None and switch.configuration.tcpOnly("connect"):
                why = switch.whyDirect(*address[:2])
            elif switch is not None:
                try:
                    found, why = await self._connectSDP(switch, family, address, local_addr_infos)
                except OSError as e:
                    exceptions.append([e])
                    raise
                if found is not None:
                    return found
        # Its connect is no second question.
        token = _direct.set(True)
        try:
            sock = await super()._connect_sock(exceptions, addr_info, local_addr_infos)
        finally:
            _direct.reset(token)
        self._reasons[sock] = why
        return sock

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        """
        See C{asyncio.loop.sock_connect}; the rules choose the provider of a connection that is given to
        C{create_connection} next.
        """
        if self._gives and not _direct.get() and given.canGive(sock):
            switch: Switch | None = self.reactor._switchFor("connect")
            if switch is not None and not switch.configuration.tcpOnly("connect"):
                (found, *_) = await self._ensure_resolved(
                    address, family=sock.family, type=sock.type, flags=0, loop=self
                )
                address = found[4]
                stream, self._reasons[sock] = await self._connectSDP(switch, sock.family, address, None)
                if stream is not None:
                    given.give(sock, self, stream, address)
                    return
        await super().sock_connect(sock, address)

    def leaveGiven(self) -> None:
        """
        Leave sockets that the program makes itself to TCP from now on: it uses one itself.
        """
        self._gives = False

    async def _connectSDP(
        self,
        switch: Switch,
        family: int,
        address: tuple[str, int] | tuple[str, int, int, int],
        local_addr_infos: list[_Info] | None,
    ) -> tuple[StreamSocket | None, Reason | None]:
        bound = _bind(family, local_addr_infos)
        # If none can be bound, TCP's attempt reports it.
        if local_addr_infos is not None and bound is None:
            return None, None
        try:
            made = SwitchedConnect(self.reactor, switch, address, bound)
            stream = await made.connect()
        except BaseException:
            if bound is not None:
                bound.close()
            raise
        if stream is None and bound is not None:
            bound.close()
        return stream, made.attempt.why

    async def _create_connection_transport(
        self, sock: socket.socket | StreamSocket, *arguments: object, **options: object
    ) -> tuple[Transport, BaseProtocol]:
        try:
            return await super()._create_connection_transport(sock, *arguments, **options)
        except BaseException:
            # The application's factory has raised.  A socket would close when it is collected.
            if isinstance(sock, StreamSocket):
                sock.close()
            raise

    def _make_socket_transport(
        self,
        sock: socket.socket | StreamSocket,
        protocol: BaseProtocol,
        waiter: _Waiter = None,
        *,
        extra: _Extra = None,
        server: AsyncioServer | None = None,
        **more: object,
    ) -> Transport:
        if not isinstance(sock, StreamSocket):
            return super()._make_socket_transport(
                sock, protocol, waiter, extra=self._explained(sock, extra, server), server=server, **more
            )
        return StreamTransport(self, sock, protocol, waiter, extra, server)

    def _make_ssl_transport(
        self,
        rawsock: socket.socket | StreamSocket,
        protocol: BaseProtocol,
        sslcontext: SSLContext,
        waiter: _Waiter = None,
        *,
        server_side: bool = False,
        server_hostname: str | None = None,
        extra: _Extra = None,
        server: AsyncioServer | None = None,
        **timeouts: float | None,
    ) -> Transport:
        if not isinstance(rawsock, StreamSocket):
            return super()._make_ssl_transport(
                rawsock,
                protocol,
                sslcontext,
                waiter,
                server_side=server_side,
                server_hostname=server_hostname,
                extra=self._explained(rawsock, extra, server),
                server=server,
                **timeouts,
            )
        secure: Any = _SSLProtocol(
            self, protocol, sslcontext, waiter, server_side, server_hostname, **timeouts
        )
        StreamTransport(self, rawsock, secure, None, extra, server)
        return secure._app_transport

    async def _sendfile_native(
        self, transp: Transport, file: BinaryIO, offset: int, count: int | None
    ) -> int:
        # The part of C{sendfile} that gives the descriptor to the kernel, which reads at the offset.
        if not isinstance(transp, StreamTransport):
            return await super()._sendfile_native(transp, file, offset, count)
        sock = transp.get_extra_info("socket")
        self._check_sendfile_params(sock, file, offset, count)
        try:
            isBehind = os.fstat(file.fileno()).st_size <= offset
        except (AttributeError, io.UnsupportedOperation, OSError) as error:
            raise asyncio.SendfileNotAvailableError(str(error)) from None
        if isBehind:
            return 0
        file.seek(offset)
        return await self._sendfile_fallback(transp, file, offset, count)

    def _explained(self, sock: socket.socket, extra: _Extra, server: AsyncioServer | None) -> _Extra:
        why: Reason | None
        if server is None:
            why = self._reasons.pop(sock, None)
        else:
            why = server.whyOf(sock) if isinstance(server, Server) else self._servers.get(server)
        if sock.family in INTERNET and sock.proto in _TCP:
            # As uvloop, in whose place this loop stands; asyncio does so where the protocol is named.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A blocking socket that SDP carries was counted.
        if sock.family in INTERNET and getattr(sock, "sdp", None) is None and sock not in given.counted:
            carried("tcp", why)
        return extra if why is None else {**(extra or {}), "why": why}

    # -- listening

    async def create_server(
        self,
        protocol_factory: Callable[[], BaseProtocol],
        host: str | Sequence[str] | None = None,
        port: int | None = None,
        *,
        start_serving: bool = True,
        provider: str | None = None,
        device: str | None = None,
        **options: Any,
    ) -> AsyncioServer:
        """
        See C{asyncio.loop.create_server}; the rules choose the providers.

        @param provider: C{sdp}, C{rdma} or C{tcp}, whatever the rules say.
        @param device: The HCA's name, with C{sdp} and C{rdma}; the host's default by default.
        @raise ValueError: There is no such provider, or it does not listen on sockets.
        """
        # A blocking socket that the program has made, and that may listen already.
        leave: Callable[[], object] | None = getattr(options.get("sock"), "useTCP", None)
        if leave is not None:
            leave()
        if provider == "tcp":
            return await super().create_server(
                protocol_factory, host, port, start_serving=start_serving, **options
            )
        if provider is not None:
            from twisted_ib.aio.named import listen

            return await listen(self, provider, protocol_factory, host, port, device, start_serving, options)
        switch = self.reactor._switchFor(LISTEN)
        if switch is None or switch.configuration.tcpOnly(LISTEN):
            plain = await super().create_server(
                protocol_factory, host, port, start_serving=start_serving, **options
            )
            if switch is not None:
                self._servers[plain] = switch.whyServed(plain.sockets[0])
            return plain
        # As libsdp does: a number that TCP draws and SDP has in use is drawn again.
        draws = start_serving and not port and options.get("sock") is None
        left = limits.PORT_ATTEMPTS if draws else 1
        while True:
            left -= 1
            made = await super().create_server(protocol_factory, host, port, start_serving=False, **options)
            server = Server.adopt(made, self.reactor, switch, draws and left > 0)
            try:
                if start_serving:
                    await server.start_serving()
                return server
            except BaseException as e:
                server.close()
                if not (left and isinstance(e, OSError) and e.errno == errno.EADDRINUSE):
                    raise

    def _stop_serving(self, sock: socket.socket | ListeningHandle) -> None:
        # A port that was made by name has no descriptor.
        if isinstance(sock, socket.socket):
            super()._stop_serving(sock)

    # -- the end

    def close(self) -> None:
        """
        Close, with all devices.
        """
        if self.is_running():
            raise RuntimeError("Cannot close a running event loop")
        reactor, self._reactor = self._reactor, None
        if reactor is not None:
            reactor.close()
        openLoops.discard(self)
        super().close()


def _bind(family: int, local: list[_Info] | None) -> socket.socket | None:
    for info in local or ():
        if info[0] == family:
            bound = socket.socket(family, socket.SOCK_STREAM)
            try:
                bound.bind(info[4])
            except OSError:
                bound.close()
            else:
                return bound
    return None


def new_event_loop() -> EventLoop:
    """
    Return a new event loop, for C{asyncio.Runner(loop_factory=new_event_loop)}.
    """
    return EventLoop()
