"""
From a host's name to its addresses, through the reactor's own resolver.
"""

from __future__ import annotations

from typing import Any

from twisted.internet import address
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import DNSLookupError
from twisted.internet.interfaces import (
    IAddress,
    IHostResolution,
    IReactorPluggableNameResolver,
    IResolutionReceiver,
)
from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.hca.endpoints.addresses import canonical


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
        Nothing to do: a resolution can not be stopped.
        """

    def addressResolved(self, address: IAddress) -> None:
        """
        Keep one address.
        """
        host = canonical(address.host)  # type: ignore[attr-defined]
        if host is not None and len(self.found) < limits.RESOLVED_ADDRESSES:
            self.found[host] = None

    def resolutionComplete(self) -> None:
        """
        Give the addresses, IPv4 first: C{connectTCP} looks for no others.
        """
        self.done.callback(sorted(self.found, key=lambda host: ":" in host))


def _canBeName(host: str) -> bool:
    """
    Say whether a resolver can be asked at all; Twisted's never answers if the
    name can not be encoded.
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
        return fail(DNSLookupError(f"{host!r} can not be the name of a host"))
    if IReactorPluggableNameResolver.providedBy(reactor):
        collector = _Collector()
        kinds = [address.IPv4Address, address.IPv6Address]
        reactor.nameResolver.resolveHostName(collector, host, 0, kinds)
        found = collector.done
    else:
        found = reactor.resolve(host).addCallback(lambda one: [one])
    return found.addCallback(_notEmpty, host)


def _notEmpty(found: list[str], host: str) -> list[str]:
    """
    Fail if a name has no address.
    """
    if not found:
        raise DNSLookupError(f"no address for {host!r}")
    return found
