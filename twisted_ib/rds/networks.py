"""
The networks of a reactor, one for each device that RDS is used on, and the medium of each.  One more is
between the processes of an address (L{twisted_ib.rds.media.rcrelay}).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from twisted_ib.hca.base.socketrows import addSource
from twisted_ib.rds.paths.network import Network, networkRows

if TYPE_CHECKING:
    from twisted.internet.base import ReactorBase

#: The name of the network between the processes of an address, which no device has.
_RELAY: Final = "/"
_TCP = "tcp"
_networks: WeakKeyDictionary[Any, dict[str, Network]] = WeakKeyDictionary()


def networkFor(reactor: ReactorBase, device: str | None) -> Network:
    """
    @param device: C{tcp}, or a device's name; L{None} for the host's default.
    @return: the one network of a reactor and a device.
    """
    networks = _networks.setdefault(reactor, {})
    name = device or ""
    found = networks.get(name)
    if found is None:
        found = networks[name] = Network(reactor, _mediumFor(reactor, name))
        if name == _TCP:
            # Networks on devices are reported by their channels.
            addSource(reactor, partial(networkRows, found))
    return found


def _relayFor(reactor: ReactorBase) -> Any:
    from twisted_ib.rds.media.rcrelay import RelayNetwork

    networks = _networks[reactor]
    if _RELAY not in networks:
        networks[_RELAY] = RelayNetwork(reactor)
    return networks[_RELAY]


def _mediumFor(reactor: ReactorBase, name: str) -> Callable[[Network], Any]:
    if name == _TCP:
        # Imported on use: RDS over TCP needs no HCA, and the other way round.
        from twisted_ib.rds.media.tcp import TCPMedium

        return TCPMedium
    from twisted_ib.hca.base.traits import Peers
    from twisted_ib.hca.device.registry import DEFAULT_DEVICE, traitsOf
    from twisted_ib.rds.media.rcaddresses import AddressMedium
    from twisted_ib.rds.media.rcprocesses import ProcessMedium, SubnetMedium

    peers, device = traitsOf(name or DEFAULT_DEVICE).peers, name or None
    if peers is Peers.ADDRESSES:
        return partial(AddressMedium, device=device, relay=partial(_relayFor, reactor))
    return partial(SubnetMedium if peers is Peers.SUBNET else ProcessMedium, device=device)
