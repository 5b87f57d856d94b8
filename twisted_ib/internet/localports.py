"""
Port numbers of active sides.

The number of an active side has no meaning for the CM, it stands in the Hello
only; but applications tell peers apart by it, and bind to it.  As with TCP a
number may serve several connections to different peers, unless it was asked
for, and what was asked for must not be in use at all.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any
from weakref import ref

from twisted_ib import limits
from twisted_ib.hca.base.keys import DrawnAhead
from twisted_ib.internet.addresses import FIRST_EPHEMERAL_PORT, Address, sharedAddress

#: From the first of them to the last of all.
_EPHEMERAL_BITS = 14
#: What a REJ says to an active side whose address and number another one has.
NUMBER_TAKEN = b"number taken"


class LocalPorts:
    """
    The local ends that are in use in one place.

    @ivar ends: By local host and port number, the peer's address, or the set of them if there
        are several.
    """

    def __init__(self, below: Callable[[int], int] | None = None) -> None:
        """
        @param below: Gives a random number below another.
        """
        self.ends: dict[str, dict[int, Address | set[Address]]] = {}
        self._drawn = DrawnAhead(secrets.randbits, _EPHEMERAL_BITS)
        self._below = self._draw if below is None else below

    def _draw(self, below: int) -> int:
        """
        @return: A random number below C{1 << _EPHEMERAL_BITS}.
        """
        return self._drawn(_EPHEMERAL_BITS)

    def take(self, host: str, port: int, peer: Address) -> int | None:
        """
        Take a number.

        @param host: The local address.
        @param port: The number, or 0 for any.
        @param peer: The other end.
        @return: The number, or L{None} if it cannot be had.
        """
        peer = sharedAddress(peer.host, peer.port)
        ports = self.ends.get(host, {})
        if port:
            if port in ports:
                return None
        else:
            port = self._free(ports, peer)
            if not port:
                return None
        there = ports.get(port)
        if there is None:
            ports[port] = peer
        elif isinstance(there, set):
            there.add(peer)
        else:
            ports[port] = {there, peer}
        self.ends[host] = ports
        return port

    def _free(self, ports: dict[int, Address | set[Address]], peer: Address) -> int:
        """
        Find a number that no connection from here to the same peer has, or 0.
        """
        for _ in range(limits.PORT_ATTEMPTS):
            port = FIRST_EPHEMERAL_PORT + self._below(1 << _EPHEMERAL_BITS)
            there = ports.get(port)
            if there is None or not (peer in there if isinstance(there, set) else peer == there):
                return port
        return 0

    def release(self, local: Address, peer: Address) -> None:
        """
        The connection is over.

        @param local: This end.
        @param peer: The other end.
        """
        self.free(local.host, local.port, peer)

    def free(self, host: str, port: int, peer: Address) -> None:
        """
        See L{release}.
        """
        ports = self.ends.get(host)
        there = None if ports is None else ports.get(port)
        if ports is None or there is None:
            return
        if isinstance(there, set):
            there.discard(peer)
            if there:
                return
        elif there is not peer and there != peer:
            return
        del ports[port]
        if not ports:
            del self.ends[host]


#: By weak reference, as each connect asks twice.
_ports: dict[ref[Any], LocalPorts] = {}


def localPorts(place: object) -> LocalPorts:
    """
    Give the local ends in use at a device's channel.

    @param place: The channel.
    """
    found = _ports.get(ref(place))
    if found is None:
        found = _ports[ref(place, _forgotten)] = LocalPorts()
    return found


def _forgotten(place: ref[Any]) -> None:
    _ports.pop(place, None)
