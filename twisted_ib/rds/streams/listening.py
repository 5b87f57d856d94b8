"""
The passive side of streams over reliable datagrams: a port that accepts them.
"""

from __future__ import annotations

import os
from errno import EADDRINUSE
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IListeningPort, IProtocolFactory
from twisted.python import log, reflect
from zope.interface import implementer

from twisted_ib.internet.addresses import Address, addressOf, canonical, checkPort, unbound
from twisted_ib.rds.protocol.streammachine import StreamMachine
from twisted_ib.rds.streams.streamsocket import StreamSocket, socketFor
from twisted_ib.rds.streams.transport import StreamTransport


@implementer(IListeningPort)
class StreamPort:
    """
    What C{listenStreams} gives.

    @ivar port: The port that was asked for; 0 for any.
    @ivar sessionno: How many streams were accepted.
    """

    sessionno = 0
    _socket: StreamSocket | None = None
    _address: Address

    def __init__(
        self, port: int, factory: IProtocolFactory, interface: str, reactor: Any, device: str | None
    ) -> None:
        """
        Nothing is opened before C{startListening} is called.

        @raise ValueError: C{port} is no port number, or C{interface} no string.
        """
        number, interface = unbound(port, interface)
        self.port = checkPort(number, 0)
        if not isinstance(interface, str):
            raise ValueError(f"interface {interface!r} is not an address")
        self.factory = factory
        self.interface = {"localhost": "127.0.0.1"}.get(interface, interface)
        self.device = device
        self.reactor = reactor

    def startListening(self) -> None:
        """
        Open the socket, or take over that of streams which a port that is closed has left.

        @raise CannotListenError: The port cannot be had.
        """
        socket = socketFor(self.reactor, self.device, self.interface, self.port, self)
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
        Accept no more; streams that were accepted go on.

        @return: Fires when that is so, and when the socket is closed if there is no stream.
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
        """
        @return: The address that is listened on.
        """
        return self._address

    def logPrefix(self) -> str:
        """
        @return: The name of the factory's class.
        """
        return reflect.qual(self.factory.__class__)

    def asked(self, session: StreamMachine) -> StreamTransport | None:
        """
        A peer wants a stream.

        @return: Its transport; L{None} if the factory does not want it.
        """
        socket = self._socket
        assert socket is not None
        protocol = self.factory.buildProtocol(addressOf(*session.address))
        if protocol is None:
            return None
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
    @return: The error for a port that somebody else has.
    """
    return CannotListenError(interface, port, OSError(EADDRINUSE, os.strerror(EADDRINUSE)))


def chained(deferred: Deferred[None]) -> Deferred[None]:
    """
    @return: Another one that fires with it; who gets it can do with it as he likes.
    """
    other: Deferred[None] = Deferred()

    def fire(result: Any) -> Any:
        other.callback(None)
        return result

    deferred.addBoth(fire)
    return other


def listenStreams(
    reactor: Any,
    port: int,
    factory: IProtocolFactory,
    interface: str = "",
    backlog: int = 50,
    device: str | None = None,
) -> IListeningPort:
    """
    Accept streams over reliable datagrams.

    @param reactor: Provides C{IReactorFDSet} and C{IReactorTime}.
    @param port: The RDS port, 0 for any that is free.
    @param factory: Makes the protocols, one for each stream.
    @param interface: The address to bind; each of this host's by default.
    @param backlog: Nothing: streams are accepted as they come.
    @param device: C{"tcp"}, or the HCA's name; see L{twisted_ib.rds.port.listenRDS}.
    @raise ValueError: C{port} makes no sense.
    @raise CannotListenError: The port cannot be had.
    """
    listening = StreamPort(port, factory, interface, reactor, device)
    listening.startListening()
    return listening
