"""
Messages as endpoints, to be used like C{TCP4ServerEndpoint} and C{HostnameEndpoint}.

Nothing is opened before C{listen} or C{connect} is called.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import _WrappingFactory, _WrappingProtocol
from zope.interface import alsoProvides

from twisted_ib.hca.endpoints.endpoints import ClientEndpoint, ServerEndpoint
from twisted_ib.hca.rdma.port import connectRDMA, listenRDMA
from twisted_ib.interfaces import IRDMAProtocol


class _Wrapping(_WrappingProtocol):
    """
    Tells when the protocol of a client endpoint is connected, and hands messages on to it.
    """

    def __init__(self, connected: Deferred[Any], wrapped: Any) -> None:
        """
        @param connected: Fires with the protocol.
        @param wrapped: The protocol.
        """
        _WrappingProtocol.__init__(self, connected, wrapped)
        if IRDMAProtocol.providedBy(wrapped):
            alsoProvides(self, IRDMAProtocol)

    def messageReceived(self, view: memoryview) -> None:
        """
        See L{IRDMAProtocol}.
        """
        self._wrappedProtocol.messageReceived(view)

    def remoteMemoryWritten(self, immediate: int, length: int) -> None:
        """
        See L{IRDMAProtocol}.
        """
        self._wrappedProtocol.remoteMemoryWritten(immediate, length)


class _Factory(_WrappingFactory):
    """
    Makes these.
    """

    protocol = _Wrapping


class RDMAServerEndpoint(ServerEndpoint):
    """
    Listens for messages; besides the arguments of L{ServerEndpoint} it takes C{privateData} and
    C{maxMessageSize}, as L{listenRDMA}.
    """

    listenCall = staticmethod(listenRDMA)


class RDMAClientEndpoint(ClientEndpoint):
    """
    Connects for messages; besides the arguments of L{ClientEndpoint} it takes C{privateData} and
    C{maxMessageSize}, as L{connectRDMA}.
    """

    connectCall = staticmethod(connectRDMA)
    wrappingFactory = _Factory
