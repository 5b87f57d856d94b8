"""
AF_IB sockets: streams of SDP between GIDs, by C{(gid, service)}, without the kernel's TCP and without rules.

The service is the number of C{0x013Fpppp} (L{GIDHandshake<twisted_ib.sdp.handshake.GIDHandshake>}), so that
the peer may also be C{ib:} with C{framing=sdp}.
"""

from __future__ import annotations

import errno
import os
import socket as kernel
from contextlib import suppress
from operator import index
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.error import CannotListenError
from twisted.internet.protocol import ClientFactory
from twisted.python.failure import Failure

from twisted_ib.blocking.connecting import Connecting
from twisted_ib.blocking.connection import Connection, failure
from twisted_ib.blocking.listening import Listening
from twisted_ib.blocking.loop import BlockingLoop, theLoop
from twisted_ib.blocking.socket import AF_IB, addFamily, socket
from twisted_ib.hca.connection import ConnectRequest, RejectReason
from twisted_ib.hca.connection.rdmacm import PortSpace, gidOf, textOf
from twisted_ib.internet.addressing.addresses import HIGHEST_PORT, mapped
from twisted_ib.sdp import connectSDP
from twisted_ib.sdp.port import GIDPort
from twisted_ib.switch.listeners import refusal

if TYPE_CHECKING:
    from twisted.internet.interfaces import IConnector

_ANY: Final = "::"
#: SOCK_STREAM with what socket(2) lets callers add to it.
_FLAGS: Final = kernel.SOCK_NONBLOCK | kernel.SOCK_CLOEXEC


def _parsed(address: Any) -> tuple[str, int]:
    # Check an address, and return the GID as this package writes it, and the service.
    if not isinstance(address, tuple) or len(address) != 2:
        raise TypeError("an AF_IB address is a tuple (gid, service)")
    gid, number = address
    if not isinstance(gid, str):
        raise TypeError(f"the GID of an AF_IB address is a str, not {type(gid).__name__}")
    service = index(number)
    if not 0 <= service <= HIGHEST_PORT:
        raise OverflowError(f"the service of an AF_IB address is 0 to {HIGHEST_PORT}")
    try:
        # A GID has no zone (IBTA vol. 1 4.1.1).
        if "%" in gid:
            raise ValueError(gid)
        return textOf(gidOf(gid or _ANY)), service
    except ValueError:
        raise OSError(errno.EINVAL, f"{os.strerror(errno.EINVAL)} ({gid!r} is not a GID)") from None


def _named(address: tuple[Any, ...]) -> tuple[str, int]:
    # Ends have the address of the device's host, which is in the form of IPv4 where the GID is mapped.
    return mapped(address[0].partition("%")[0]), address[1]


def _deviceOf(loop: BlockingLoop, gid: str) -> str | None:
    # As routes have it (L{twisted_ib.switch.rules}); the default device if there is none.
    return next(iter(loop.reactor.switch.devicesFor(gid)), None)


class _BoundPort(GIDPort):
    """
    The port of a socket that is bound. It has the service from C{bind} on, and refuses until C{listen}.

    @ivar listening: The listeners that it belongs to, once the socket listens.
    """

    listening: GIDListening | None = None

    def connectionRequested(self, connection: Any, request: ConnectRequest) -> None:
        if self.listening is None:
            assert self._channel is not None
            # IBTA vol. 1 12.6.7.2, reason 8: as where nobody has the service.
            connection.reject(RejectReason.INVALID_SERVICE_ID, b"", self._channel.now())
        else:
            super().connectionRequested(connection, request)

    def close(self, reason: Failure) -> None:
        # Now: the loop may have no further turn.
        self.listening = None
        if self.connected:
            self.stopReading()
            self.connectionLost(reason)

    def connectionLost(self, reason: Failure) -> None:
        super().connectionLost(reason)
        listening, self.listening = self.listening, None
        if listening is not None:
            listening.listenerLost(self, reason)  # type: ignore[arg-type]


class _Bound:
    """
    The address of a socket.

    @ivar name: The GID, as the device's host writes it, and the service.
    @ivar device: The device's name.
    @ivar port: Its port; L{None} after the close.
    """

    def __init__(self, loop: BlockingLoop, gid: str, service: int) -> None:
        self.loop = loop
        self.port: _BoundPort | None = None
        self.device = _deviceOf(loop, gid)
        port = _BoundPort(service, _Nobody(), 1, gid, loop.reactor, self.device)
        try:
            port.startListening()
        except CannotListenError as e:
            raise refusal(e) from None
        self.port = port
        self.name = gid, port.getHost().port

    def release(self) -> _BoundPort:
        # Return the port, which is another's from now on.
        port, self.port = self.port, None
        assert port is not None
        return port

    def close(self) -> None:
        # Give the service up, under the loop's lock.
        port, self.port = self.port, None
        if port is not None:
            port.close(Failure(ConnectionAbortedError()))

    def __del__(self) -> None:
        # As of a connection whose socket was never closed.
        if self.port is not None:
            self.loop.abandon(self.close)


class _Nobody(ClientFactory):
    """
    The factory of a port that does not listen yet.
    """

    noisy = False


class GIDListening(Listening):
    """
    The listener of a socket between GIDs.
    """

    def open(self, port: _BoundPort) -> None:
        """
        Listen on a port, which is this object's from now on.
        """
        port.factory, port.backlog, port.listening = self.factory, self.backlog, self
        listeners: tuple[Any, ...] = (port,)
        self.sdpListeners = listeners
        self.connected = self.alone = True

    def resize(self, backlog: int) -> None:
        """
        Let another number of connections wait.
        """
        self.backlog = max(backlog, 1)
        for port in self.sdpListeners:
            port.backlog = self.backlog
            if len(self.accepted) < self.backlog:
                port.startReading()
            else:
                port.stopReading()
        self.loop.disturb()


class _Client(ClientFactory):
    """
    The factory of an attempt.
    """

    noisy = False

    def __init__(self, attempt: GIDConnecting) -> None:
        self.attempt = attempt

    def buildProtocol(self, address: object) -> Any:
        return self.attempt.buildProtocol(address)

    def clientConnectionFailed(self, connector: IConnector, reason: Failure) -> None:
        if not self.attempt.isOver:
            self.attempt.failed(reason.value)


class GIDConnecting(Connecting):
    """
    The attempt of one socket between GIDs.
    """

    def __init__(
        self, loop: BlockingLoop, address: tuple[Any, ...], bound: tuple[str, int], device: str | None
    ) -> None:
        super().__init__(loop, address)
        gid, service = address
        here = bound if bound[1] else None
        self._attempt = connectSDP(
            loop.reactor, gid, service, _Client(self), None, here, device, PortSpace.IB
        )
        loop.disturb()

    def cancel(self) -> None:
        super().cancel()
        if self.connection is None:
            # It may have failed meanwhile.
            with suppress(Exception):
                self._attempt.stopConnecting()
            self.loop.changed()


class GIDSocket(socket):
    """
    The socket of C{socket(AF_IB, SOCK_STREAM)}. Addresses are C{(gid, service)}: the text of a GID, as of an
    IPv6 address, and a number of 16 bits. The kernel has a number for it, and no part in its traffic.
    """

    __slots__ = ("_bound",)

    _bound: _Bound | None

    def __init__(
        self, family: int = AF_IB, type: int = -1, proto: int = -1, fileno: int | None = None
    ) -> None:
        self._bound = None
        if family != AF_IB:
            raise failure(errno.EAFNOSUPPORT)
        if type != -1 and type & ~_FLAGS != kernel.SOCK_STREAM:
            raise failure(errno.ESOCKTNOSUPPORT)
        if proto not in (-1, 0):
            raise failure(errno.EPROTONOSUPPORT)
        super().__init__(kernel.AF_INET, kernel.SOCK_STREAM if type == -1 else type, 0, fileno)

    @property
    def family(self) -> Any:
        return AF_IB

    # -- binding, listening

    def bind(self, address: Any, /) -> None:
        """
        See C{socket.bind}: the GID is one of this host, or C{"::"} or C{""} for any; service 0 draws one.
        """
        gid, service = _parsed(address)
        if self.fileno() < 0:
            raise failure(errno.EBADF)
        if self._bound is not None or self._sdp is not None or self._connecting is not None:
            raise failure(errno.EINVAL)
        loop = theLoop()
        with loop:
            self._bound = _Bound(loop, gid, service)
            loop.disturb()

    def listen(self, backlog: int = min(kernel.SOMAXCONN, 128), /) -> None:
        listening, backlog = self.sdp, max(index(backlog), 0)
        if self._connecting is not None or isinstance(listening, Connection):
            raise failure(errno.EINVAL)
        if isinstance(listening, GIDListening):
            with listening.loop:
                listening.resize(backlog)
            return
        bound = self._bound
        if bound is None or bound.port is None or not bound.port.connected:
            # Never bound; or after a shutdown, or when its device has gone.
            self._bound = None
            self.bind((_ANY, 0) if bound is None else bound.name)
            bound = self._bound
        assert bound is not None
        with bound.loop:
            made = GIDListening(bound.loop, self, backlog)
            made.open(bound.release())
            self._carry(made)

    def _accepted(self, listening: Listening) -> tuple[kernel.socket, Any]:
        made, peer = super()._accepted(listening)
        return made, _named(peer)

    # -- connecting

    def _switch(self, role: str) -> Any:
        # No rule speaks of GIDs.
        return theLoop().reactor.switch

    def connect_ex(self, address: Any, /) -> int:
        try:
            return super().connect_ex(address)
        except OSError as e:
            if e.errno is None:
                raise
            return e.errno

    def _target(self, address: Any) -> tuple[Any, ...]:
        gid, service = _parsed(address)
        if self.fileno() < 0:
            raise failure(errno.EBADF)
        if gid == _ANY or not service:
            raise failure(errno.EINVAL)
        return gid, service

    def _attempts(self, loop: BlockingLoop, where: tuple[Any, ...], timeout: float | None) -> Connecting:
        bound = self._bound
        if bound is not None:
            # The number is the connection's now.
            with bound.loop:
                bound.close()
            gid, service = bound.name
            return GIDConnecting(loop, where, ("" if gid == _ANY else gid, service), bound.device)
        return GIDConnecting(loop, where, ("", 0), _deviceOf(loop, where[0]))

    # -- names

    def getsockname(self) -> tuple[str, int]:
        connection = self._connection()
        if connection is not None:
            return _named(connection.local)
        if self.fileno() < 0:
            raise failure(errno.EBADF)
        return (_ANY, 0) if self._bound is None else _named(self._bound.name)

    def getpeername(self) -> tuple[str, int]:
        return _named(super().getpeername())

    def sendto(self, data: Any, *arguments: Any) -> int:
        if self._connection() is None:
            raise failure(errno.ENOTCONN)
        return super().sendto(data, *arguments)

    def sendmsg(self, *arguments: Any) -> int:
        if self._connection() is None:
            raise failure(errno.ENOTCONN)
        return super().sendmsg(*arguments)

    # -- the end

    def _drop(self) -> None:
        super()._drop()
        bound = self._bound
        if bound is not None and not bound.loop.forked:
            with bound.loop:
                bound.close()

    def _real_close(self) -> None:
        self._drop()
        super()._real_close()


addFamily(AF_IB, GIDSocket)
