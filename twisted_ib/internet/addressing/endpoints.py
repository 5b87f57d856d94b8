"""
Endpoints of all protocols, used as C{TCP4ServerEndpoint} and C{HostnameEndpoint} are.

Nothing is opened before C{listen} or C{connect} is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import ref

from twisted.internet import error
from twisted.internet.defer import Deferred, execute, fail
from twisted.internet.interfaces import (
    IConnector,
    IListeningPort,
    IProtocol,
    IProtocolFactory,
    IStreamClientEndpoint,
    IStreamServerEndpoint,
)
from twisted.internet.protocol import ClientFactory
from twisted.python.failure import Failure
from zope.interface import implementer

from twisted_ib.internet.addressing.addresses import checkPort, parseBindAddress, splitBinding, withPort

if TYPE_CHECKING:
    from twisted.internet.interfaces import Binding, IReactorTime


@implementer(IStreamServerEndpoint)
class ServerEndpoint:
    """
    Listens on a port.

    @cvar listenCall: The listening call, as C{listenSDP}.
    """

    listenCall: Any

    def __init__(
        self,
        reactor: IReactorTime,
        port: int | Binding,
        backlog: int = 50,
        interface: str = "",
        device: str | None = None,
        **more: Any,
    ) -> None:
        """
        @param reactor: Provides C{IReactorFDSet} and C{IReactorTime}.
        @param port: The port; 0 for any that is free; or a C{Binding}.
        @param backlog: REQs that wait while the port does not accept.
        @param interface: The address to bind; all IPv4 addresses by default.
        @param device: The HCA's name; the host's default by default.
        @param more: Further arguments of the call.
        @raise ValueError: C{port} is not a port number.
        """
        self._reactor = reactor
        number, interface = splitBinding(port, interface)
        self._port = checkPort(number, 0)
        self._backlog = backlog
        self._interface = interface
        self._device = device
        self._more = more

    def listen(self, protocolFactory: IProtocolFactory) -> Deferred[IListeningPort]:
        return execute(
            type(self).listenCall,
            self._reactor,
            self._port,
            protocolFactory,
            backlog=self._backlog,
            interface=self._interface,
            device=self._device,
            **self._more,
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {withPort(self._interface or '*', self._port)}>"


@implementer(IStreamClientEndpoint)
class ClientEndpoint:
    """
    Connects to a port.

    @cvar connectCall: The connecting call, as C{connectSDP}.
    """

    connectCall: Any

    def __init__(
        self,
        reactor: IReactorTime,
        host: str,
        port: int,
        timeout: float | None = 30,
        bindAddress: Binding | tuple[str, int] | str | None = None,
        device: str | None = None,
        **more: Any,
    ) -> None:
        """
        @param reactor: Provides C{IReactorFDSet} and C{IReactorTime}; also a resolver, if C{host} is a name.
        @param timeout: Seconds.
        @param bindAddress: The local host and port to connect from.
        @param device: The HCA's name; the host's default by default.
        @param more: Further arguments of the call.
        @raise ValueError: C{port} or C{bindAddress} makes no sense.
        """
        # For its error only: the endpoint is where the mistake is, not connect().
        parseBindAddress(bindAddress)
        self._reactor = reactor
        self._host = host
        self._port = checkPort(port, 1)
        self._timeout = timeout
        self._bindAddress = bindAddress
        self._device = device
        self._more = more
        self._connected: ref[EndpointFactory] | None = None

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        try:
            factory = EndpointFactory(protocolFactory, self)
            where = self._reactor, self._host, self._port, factory
            how = self._timeout, self._bindAddress, self._device
            # Keywords cost a dictionary, even none of them.
            if self._more:
                type(self).connectCall(*where, *how, **self._more)
            else:
                type(self).connectCall(*where, *how)
            made: Deferred[IProtocol] = factory._onConnection
            return made
        except BaseException:
            # Endpoints report all errors by the Deferred, as twisted.internet.endpoints does.
            return fail()

    def shared(self, factory: EndpointFactory) -> EndpointFactory:
        """
        Return what stands for the user's factory in all connections of this endpoint to it, once their
        Deferreds have fired.

        @param factory: That of a new connection.
        """
        found = None if self._connected is None else self._connected()
        if found is None or found._wrappedFactory is not factory._wrappedFactory:
            self._connected = ref(factory)
            return factory
        return found

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {withPort(self._host, self._port)}>"


class EndpointFactory(ClientFactory):
    """
    Fires a Deferred when a protocol of the user's factory is connected, or with the reason that it is not.

    @ivar _onConnection: The Deferred; L{None} once there is a connection.
    """

    # Twisted's _WrappingFactory puts another protocol between the transport and the user's, which costs a
    # call per message, and keeps references to the connector; its module imports all kinds of endpoints, and
    # TLS.  Here the transport has the user's protocol, and the client transport calls protocolMade().
    _wrappedFactory: IProtocolFactory
    _onConnection: Any
    _connector: Any

    def __init__(self, wrappedFactory: IProtocolFactory, endpoint: ClientEndpoint) -> None:
        self._wrappedFactory = wrappedFactory
        self._onConnection = Deferred(self._cancelled)
        self._endpoint = endpoint

    def startedConnecting(self, connector: IConnector) -> None:
        self._connector = connector

    def _cancelled(self, deferred: Deferred[IProtocol]) -> None:
        deferred.errback(error.ConnectingCancelledError(self._connector.getDestination()))
        self._connector.stopConnecting()

    def doStart(self) -> None:
        # The user's factory is told, not this one.
        self._wrappedFactory.doStart()

    def doStop(self) -> None:
        self._wrappedFactory.doStop()

    def buildProtocol(self, addr: Any) -> Any:
        # Without a protocol the endpoint fails.
        try:
            protocol = self._wrappedFactory.buildProtocol(addr)
            if protocol is None:
                raise error.NoProtocol()
        except BaseException:
            self._onConnection.errback()
            return None
        return protocol

    def protocolMade(self, protocol: Any) -> None:
        """
        The protocol is connected.
        """
        made, self._onConnection = self._onConnection, None
        connector, self._connector = self._connector, None
        # Nothing of this one connection is left in it, and there may be many.
        connector.factory = self._endpoint.shared(self)
        made.callback(protocol)

    def clientConnectionFailed(self, connector: IConnector, reason: Failure) -> None:
        made = self._onConnection
        if made is not None and not made.called:
            made.errback(reason)
