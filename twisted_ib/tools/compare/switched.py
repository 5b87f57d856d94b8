"""
TCP connections that switch to RDMA before they are measured, as both processes of a subject make them.

An endpoint string of such a subject begins with L{SWITCHED}.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString
from twisted.internet.interfaces import IProtocolFactory, IStreamClientEndpoint
from twisted.internet.protocol import Factory, Protocol
from zope.interface import implementer

from twisted_ib.rdma import switchToRDMA
from twisted_ib.tools.compare.subjects import SWITCHED


class Switching(Protocol):
    """
    Switch at once, and let another protocol go on.

    @ivar done: Fires with that one.
    """

    def __init__(self, build: Callable[[], Any]) -> None:
        """
        @param build: Makes the other protocol.
        """
        self._build = build
        self.done: Deferred[Any] = Deferred()

    def connectionMade(self) -> None:
        # The peer does the same.
        switchToRDMA(self.transport).addCallback(self._switched).chainDeferred(self.done)

    def _switched(self, transport: Any) -> Any:
        transport.protocol = protocol = self._build()
        protocol.makeConnection(transport)
        return protocol


@implementer(IStreamClientEndpoint)
class SwitchingEndpoint:
    """
    A client's endpoint whose connections have switched.
    """

    def __init__(self, endpoint: IStreamClientEndpoint) -> None:
        """
        @param endpoint: Of the connections.
        """
        self._endpoint = endpoint

    def connect(self, factory: IProtocolFactory) -> Deferred[Any]:
        made = Factory.forProtocol(lambda: Switching(lambda: factory.buildProtocol(None)))  # type: ignore
        connected: Deferred[Any] = self._endpoint.connect(made)
        return connected.addCallback(lambda switching: switching.done)


def clientFrom(reactor: Any, text: str) -> Any:
    """
    @return: The client's endpoint of a string, which may be that of one that switches.
    """
    isSwitched = text.startswith(SWITCHED)
    endpoint = clientFromString(reactor, text.removeprefix(SWITCHED))
    return SwitchingEndpoint(endpoint) if isSwitched else endpoint


def servicesFor(text: str, services: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """
    @return: The server's endpoint string without the mark, and its services, which switch if it had one.
    """
    if not text.startswith(SWITCHED):
        return text, services

    def switching(protocol: Any) -> Callable[[], Switching]:
        return lambda: Switching(protocol)

    return text.removeprefix(SWITCHED), {name: switching(each) for name, each in services.items()}
