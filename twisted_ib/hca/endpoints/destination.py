"""
Where a connector goes, whatever it does to get there.
"""

from __future__ import annotations

from typing import Any

from twisted.internet import base
from twisted.python.failure import Failure

from twisted_ib.hca.endpoints.addresses import (
    Address,
    addressOf,
    bindPair,
    canonical,
    checkHost,
    checkPort,
    checkTimeout,
    servicePort,
    withPort,
)


class Destination(base.BaseConnector):
    """
    A connector to a port of a host.

    @cvar protocolName: The protocol, for error texts.

    @ivar host: The host as the user wrote it.
    @ivar port: The port.
    @ivar bound: Host and port of a C{bindAddress}; empty and 0 for any.
    @ivar device: The device's name, or L{None} for the default.
    """

    protocolName: str
    transport: Any

    def __init__(
        self,
        host: str | bytes,
        port: int | str,
        factory: Any,
        timeout: float | None,
        bindAddress: Any,
        reactor: Any,
        device: str | None = None,
    ) -> None:
        """
        Nothing is opened before C{connect} is called.

        @param host: The peer's address or name.
        @param port: Its port, or the name of its service.
        @param factory: Makes the protocol and hears of failure and loss.
        @param timeout: The seconds that an attempt may take; L{None} for as long as it takes.
        @param bindAddress: The local host and port, or L{None}.
        @param reactor: The reactor, whose thread everything here belongs to.
        @param device: The HCA's name; L{None} for the default.
        @raise ValueError: an argument makes no sense.
        @raise ServiceNameUnknownError: there is no such service.
        """
        self.host = checkHost(host)
        self.port = checkPort(servicePort(port), 1)
        self.bindAddress = bindAddress
        self.bound = bindPair(bindAddress)
        self.device = device
        checkTimeout(timeout)
        base.BaseConnector.__init__(self, factory, timeout, reactor)  # type: ignore[arg-type]

    def connectionLost(self, reason: Failure) -> None:
        """
        The connection has ended: tell the factory, which may connect again.

        @param reason: Why.
        """
        ended = self.transport
        base.BaseConnector.connectionLost(self, reason)
        if self.transport is ended:
            self.transport = None  # Each refers to the other.

    def where(self, address: str | None = None) -> str:
        """
        Say where to, for error texts.

        @param address: The address that is tried, if one is.
        """
        text = f"{self.protocolName} {withPort(self.host, self.port)}"
        if address is None or address == canonical(self.host):
            return text
        return f"{text} ({address})"

    def getDestination(self) -> Address:
        """
        Give the address as far as it is known without a resolver.
        """
        return addressOf(self.host, self.port)


__all__ = ["Destination"]
