"""
The factory of a client endpoint.
"""

from __future__ import annotations

from typing import Any

from twisted.internet import error
from twisted.internet.endpoints import _WrappingFactory
from twisted.internet.interfaces import IConnector
from twisted.python.failure import Failure


class EndpointFactory(_WrappingFactory):
    """
    Tells when a protocol of the user's factory is connected, or why not.

    Twisted's own puts another protocol between the transport and the user's, and refers to what
    has ended; here the transport has the user's protocol, and the end of the attempt is told to
    L{protocolMade}.

    @ivar _onConnection: The Deferred; L{None} once there is a connection.
    """

    _onConnection: Any
    _connector: Any

    def buildProtocol(self, addr: Any) -> Any:
        """
        Ask the user's factory; that it fails, or has none, is what the endpoint fails with.
        """
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
        The protocol has its transport.
        """
        made, self._onConnection = self._onConnection, None
        self._connector = None
        made.callback(protocol)

    def clientConnectionFailed(self, connector: IConnector, reason: Failure) -> None:
        """
        There will be no connection.
        """
        made = self._onConnection
        if made is not None and not made.called:
            made.errback(reason)
