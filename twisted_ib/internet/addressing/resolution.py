"""
The destination of a connector: a host's name, resolved by the reactor's own resolver, and a port.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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

from twisted_ib.internet.addressing.addresses import (
    HIGHEST_PORT,
    Address,
    addressOf,
    canonical,
    checkHost,
    checkPort,
    checkTimeout,
    parseBindAddress,
    servicePort,
    withPort,
)

if TYPE_CHECKING:
    from twisted.internet.base import ReactorBase
    from twisted.internet.interfaces import IReactorTime


#: Addresses of one name that a connect tries; a DNS answer may hold many more.
RESOLVED_ADDRESSES = 16


class Destination(base.BaseConnector):
    """
    A connector to a port of a host.

    @cvar protocolName: The protocol, for error texts.
    @ivar host: The host as the user wrote it.
    @ivar bound: Host and port of a C{bindAddress}; empty and 0 for any.
    @ivar device: The device's name, or L{None} for the default.
    """

    protocolName: str
    transport: Any
    # Class attributes, as most connectors differ in none of them and there may be many.
    bindAddress: Any = None
    bound: tuple[str, int] = ("", 0)
    device: str | None = None

    def __init__(
        self,
        host: str | bytes,
        port: int | str,
        factory: Any,
        timeout: float | None,
        bindAddress: Any,
        reactor: IReactorTime,
        device: str | None = None,
    ) -> None:
        """
        Check the arguments; C{connect} opens the device.

        @param port: A port number, or the name of a service.
        @param timeout: The seconds that an attempt may take; L{None} for no limit.
        @param bindAddress: The local host and port, or L{None}.
        @param reactor: The reactor, whose thread everything here belongs to.
        @param device: The HCA's name; L{None} for the default.
        @raise ValueError: an argument makes no sense.
        @raise ServiceNameUnknownError: there is no such service.
        """
        # The usual arguments need no call to be right.
        self.host: str = host if host.__class__ is str else checkHost(host)
        if port.__class__ is int and 0 < port <= HIGHEST_PORT:
            self.port = port
        else:
            self.port = checkPort(servicePort(port), 1)
        if bindAddress is not None:
            self.bindAddress = bindAddress
            self.bound = parseBindAddress(bindAddress)
        if device is not None:
            self.device = device
        if timeout is not None:
            checkTimeout(timeout)
        base.BaseConnector.__init__(self, factory, timeout, reactor)  # type: ignore[arg-type]

    def connectionLost(self, reason: Failure) -> None:
        """
        Notify the factory, which may connect again.
        """
        ended = self.transport
        base.BaseConnector.connectionLost(self, reason)
        if self.transport is ended:
            # Connector and transport refer to each other.  A factory that has connected again has replaced it
            # already.
            self.transport = None

    def where(self, address: str | None = None) -> str:
        """
        Return the destination for error texts.

        @param address: The address that is tried, if one is.
        """
        text = f"{self.protocolName} {withPort(self.host, self.port)}"
        if address is None or address == canonical(self.host):
            return text
        return f"{text} ({address})"

    def getDestination(self) -> Address:
        """
        Return the address as far as it is known without a resolver.
        """
        return addressOf(self.host, self.port)


@implementer(IResolutionReceiver)
class _Collector:
    def __init__(self) -> None:
        self.found: dict[str, None] = {}
        self.done: Deferred[list[str]] = Deferred()

    def resolutionBegan(self, resolutionInProgress: IHostResolution) -> None:
        pass  # This resolution is never cancelled.

    def addressResolved(self, address: IAddress) -> None:
        host = canonical(address.host)  # type: ignore[attr-defined]
        if host is not None and len(self.found) < RESOLVED_ADDRESSES:
            self.found[host] = None

    def resolutionComplete(self) -> None:
        # IPv4 first: connectTCP(), which programs compare this with, resolves names to IPv4 only.  Addresses
        # are tried one after another; RFC 8305 (Happy Eyeballs) would race them, as HostnameEndpoint does
        # over TCP.
        self.done.callback(sorted(self.found, key=lambda host: ":" in host))


def _canBeName(host: str) -> bool:
    try:
        # RFC 3490: what the idna codec refuses Twisted's resolver cannot ask for either, and its Deferred
        # never fires.
        return "\0" not in host and bool(host.encode("idna"))
    except UnicodeError:
        return False


def literalOf(host: str) -> str | None:
    """
    Return the IP address that a host is without a look-up; L{None} for a name.

    The empty string is this host.
    """
    return canonical(host) if host else "127.0.0.1"


def resolve(reactor: ReactorBase, host: str, reason: str = "") -> Deferred[list[str]]:
    """
    Find the addresses of a host.

    @param reason: the text of the error, instead of one about names.
    @return: Fires with at least one address, or fails with L{DNSLookupError}.
    """
    literal = literalOf(host)
    if literal is not None:
        return succeed([literal])
    if not _canBeName(host):
        return fail(DNSLookupError(reason or f"{host!r} cannot be the name of a host"))
    if IReactorPluggableNameResolver.providedBy(reactor):
        collector = _Collector()
        kinds = [address.IPv4Address, address.IPv6Address]
        reactor.nameResolver.resolveHostName(collector, host, 0, kinds)
        found = collector.done
    else:
        # A reactor of a test, or an old one: IReactorCore.resolve gives one IPv4 address.
        found = reactor.resolve(host).addCallback(lambda one: [one])
    return found.addCallback(_notEmpty, reason or f"no address for {host!r}")


def _notEmpty(found: list[str], reason: str) -> list[str]:
    if not found:
        raise DNSLookupError(reason)
    return found
