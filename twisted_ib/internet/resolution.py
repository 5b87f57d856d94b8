"""
Where a connector goes, whatever it does to get there.

From a host's name to its addresses, through the reactor's own resolver.
"""

from __future__ import annotations

from typing import Any

from twisted.internet import address, base
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import DNSLookupError
from twisted.internet.interfaces import (
    IAddress,
    IHostResolution,
    IReactorPluggableNameResolver,
    IResolutionReceiver,
)
from twisted.python.failure import Failure
from zope.interface import implementer

from twisted_ib.internet.addresses import (
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

__all__ = ["Destination"]

#: Addresses of one name that a connect tries.
RESOLVED_ADDRESSES = 16


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


@implementer(IResolutionReceiver)
class _Collector:
    """
    Collect the addresses of one name.

    @ivar found: The addresses, each once.
    @ivar done: Fires with them.
    """

    def __init__(self) -> None:
        self.found: dict[str, None] = {}
        self.done: Deferred[list[str]] = Deferred()

    def resolutionBegan(self, resolutionInProgress: IHostResolution) -> None:
        """
        Nothing to do: a resolution cannot be stopped.
        """

    def addressResolved(self, address: IAddress) -> None:
        """
        Keep one address.
        """
        host = canonical(address.host)  # type: ignore[attr-defined]
        if host is not None and len(self.found) < RESOLVED_ADDRESSES:
            self.found[host] = None

    def resolutionComplete(self) -> None:
        """
        Give the addresses, IPv4 first: C{connectTCP} looks for no others.
        """
        self.done.callback(sorted(self.found, key=lambda host: ":" in host))


def _canBeName(host: str) -> bool:
    """
    Say whether a resolver can be asked at all; Twisted's never answers if the
    name cannot be encoded.
    """
    try:
        return "\0" not in host and bool(host.encode("idna"))
    except UnicodeError:
        return False


def literalOf(host: str) -> str | None:
    """
    Give the address that a host is without a look-up.

    @param host: A name, or an address; nothing is this host.
    @return: It, or L{None} for a name.
    """
    return canonical(host) if host else "127.0.0.1"


def resolve(reactor: Any, host: str) -> Deferred[list[str]]:
    """
    Find the addresses of a host.

    @param reactor: The reactor, with its resolver.
    @param host: A name, or an address, which is not looked up.
    @return: Fires with at least one address, or fails with L{DNSLookupError}.
    """
    literal = literalOf(host)
    if literal is not None:
        return succeed([literal])
    if not _canBeName(host):
        return fail(DNSLookupError(f"{host!r} cannot be the name of a host"))
    if IReactorPluggableNameResolver.providedBy(reactor):
        collector = _Collector()
        kinds = [address.IPv4Address, address.IPv6Address]
        reactor.nameResolver.resolveHostName(collector, host, 0, kinds)
        found = collector.done
    else:
        found = reactor.resolve(host).addCallback(lambda one: [one])
    return found.addCallback(_notEmpty, host)


def _notEmpty(found: list[str], host: str) -> list[str]:
    if not found:
        raise DNSLookupError(f"no address for {host!r}")
    return found
