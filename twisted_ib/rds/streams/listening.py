"""
The passive side of streams over reliable datagrams: the listening port, and the endpoint like
C{TCP4ServerEndpoint}: C{rds:PORT}.
"""

from __future__ import annotations

import os
from errno import EADDRINUSE
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IListeningPort, IProtocolFactory
from twisted.python import log, reflect
from zope.interface import implementer

from twisted_ib.internet.addressing.addresses import Address, addressOf, canonical, checkPort, splitBinding
from twisted_ib.internet.addressing.endpoints import ServerEndpoint
from twisted_ib.rds.protocol.streammachine import StreamMachine
from twisted_ib.rds.streams.streamsocket import StreamSocket, socketFor
from twisted_ib.rds.streams.transport import StreamTransport

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime
    from twisted.internet.protocol import Factory


@implementer(IListeningPort)
class StreamPort:
    """
    The port that C{listenStreams} returns.

    @ivar port: the requested port; 0 for any.
    @ivar sessionno: the number of streams accepted.
    """

    sessionno = 0
    _socket: StreamSocket | None = None
    _address: Address

    def __init__(
        self, port: int, factory: IProtocolFactory, interface: str, reactor: IReactorTime, device: str | None
    ) -> None:
        """
        Open nothing before C{startListening} is called.

        @raise ValueError: C{port} is not a port number, or C{interface} not a string.
        """
        number, interface = splitBinding(port, interface)
        self.port = checkPort(number, 0)
        if not isinstance(interface, str):
            raise ValueError(f"interface {interface!r} is not an address")
        self.factory = factory
        self.interface = {"localhost": "127.0.0.1"}.get(interface, interface)
        self.device = device
        self.reactor = reactor

    def startListening(self) -> None:
        """
        Open the socket, or take over one that still has streams of a closed port.

        @raise CannotListenError: the port or the address is not available.
        """
        socket = socketFor(self.reactor, self.device, self.interface, self.port, self)
        # Only another listening port is in the way; connections that outlive a port are not (SO_REUSEADDR
        # in socket(7)).
        if socket.server is not None:
            socket.release(self)
            raise inUse(self.interface, self.port)
        self._socket = socket
        socket.server = self
        socket.streams.listening = True
        self._address = addressOf(canonical(self.interface) or "0.0.0.0", socket.port)
        log.msg(f"{self.logPrefix()} starting on {socket.port}")
        self.factory.doStart()

    def stopListening(self) -> Deferred[None]:
        """
        Stop accepting; accepted streams go on.

        @return: a Deferred that fires when that is done, and the socket closed if it has no streams.
        """
        socket, self._socket = self._socket, None
        if socket is None:
            return succeed(None)
        log.msg(f"(RDS Port {socket.port} Closed)")
        socket.server = None
        socket.streams.listening = False
        closed = socket.release(self)
        stopped: Deferred[None] = succeed(None) if closed is None else chained(closed)
        stopped.addCallback(self._stopped)
        return stopped

    loseConnection = stopListening

    def _stopped(self, ignored: object) -> None:
        self.factory.doStop()

    def getHost(self) -> Address:
        return self._address

    def logPrefix(self) -> str:
        """
        @return: the name of the factory's class.
        """
        return reflect.qual(self.factory.__class__)

    def asked(self, session: StreamMachine) -> StreamTransport | None:
        """
        Accept or decline an OPEN.

        @return: the stream's transport; L{None} if the factory declines.
        """
        socket = self._socket
        assert socket is not None
        protocol = self.factory.buildProtocol(addressOf(*session.address))
        if protocol is None:
            return None
        # Accepted before the protocol is connected, so that its first data follow the ACCEPT.
        session.accept()
        transport = StreamTransport(socket, session, socket.localHost(session.address[0]))
        self.sessionno += 1
        transport.attach(protocol, f"{self.sessionno},{session.address[0]}")
        return transport

    def __repr__(self) -> str:
        where = "(not listening)" if self._socket is None else f"on {self._socket.port}"
        return f"<{self.__class__.__name__} of {self.logPrefix()} {where}>"


def inUse(interface: str, port: int) -> Exception:
    """
    @return: the error for a port that is in use.
    """
    return CannotListenError(interface, port, OSError(EADDRINUSE, os.strerror(EADDRINUSE)))


def chained(deferred: Deferred[None]) -> Deferred[None]:
    """
    @return: a new Deferred that fires with this one; its receiver's callbacks do not affect the original.
    """
    other: Deferred[None] = Deferred()

    def fire(result: Any) -> Any:
        other.callback(None)
        return result

    deferred.addBoth(fire)
    return other


def listenStreams(
    reactor: IReactorTime,
    port: int,
    factory: IProtocolFactory | Factory[Any],
    interface: str = "",
    backlog: int = 50,
    device: str | None = None,
) -> IListeningPort:
    """
    Accept streams over reliable datagrams.

    @param reactor: provides C{IReactorFDSet} and C{IReactorTime}.
    @param port: the RDS port; 0 for any free one.
    @param factory: makes a protocol for each stream.
    @param interface: the address to bind; all of the host by default.
    @param backlog: ignored, as streams are accepted at once.
    @param device: C{"tcp"}, or the HCA's name; see L{twisted_ib.rds.port.listenRDS}.
    @raise ValueError: C{port} is invalid.
    @raise CannotListenError: the port or the address is not available.
    """
    listening = StreamPort(port, factory, interface, reactor, device)
    listening.startListening()
    return listening


class RDSServerEndpoint(ServerEndpoint):
    """
    The endpoint that accepts streams.
    """

    listenCall = staticmethod(listenStreams)
