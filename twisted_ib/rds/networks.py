"""
The networks of a reactor, one for each device that RDS is used on, and the medium of each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from twisted_ib.rds.paths.network import Network

_networks: WeakKeyDictionary[Any, dict[str, Network]] = WeakKeyDictionary()


def networksOf(reactor: Any) -> list[Network]:
    """
    @return: the networks of a reactor.
    """
    return list(_networks.get(reactor, {}).values())


def networkFor(reactor: Any, device: str | None) -> Network:
    """
    @param device: C{tcp}, or a device's name; L{None} for the host's default.
    @return: the one network of a reactor and a device.
    """
    networks = _networks.setdefault(reactor, {})
    name = device or ""
    found = networks.get(name)
    if found is None:
        found = networks[name] = Network(reactor, _mediumFor(name))
    return found


def _mediumFor(name: str) -> Callable[[Network], Any]:
    if name == "tcp":
        # Imported on use: RDS over TCP needs no HCA, and the other way round.
        from twisted_ib.rds.media.tcp import TCPMedium

        return TCPMedium
    from twisted_ib.rds.media.rc import RCMedium

    return lambda network: RCMedium(network, name or None)
