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
from weakref import WeakKeyDictionary

from twisted_ib import limits
from twisted_ib.hca.endpoints.addresses import FIRST_EPHEMERAL_PORT, HIGHEST_PORT, Address

_Pair = tuple[str, int]


class LocalPorts:
    """
    The local ends that are in use in one place.

    @ivar ends: By local host and port, the peers.
    """

    def __init__(self, below: Callable[[int], int] = secrets.randbelow) -> None:
        """
        @param below: Gives a random number below another.
        """
        self.ends: dict[_Pair, set[_Pair]] = {}
        self._below = below

    def take(self, host: str, port: int, peer: Address) -> int | None:
        """
        Take a number.

        @param host: The local address.
        @param port: The number, or 0 for any.
        @param peer: The other end.
        @return: The number, or L{None} if it can not be had.
        """
        other = (peer.host, peer.port)
        if port:
            if (host, port) in self.ends:
                return None
        else:
            port = self._free(host, other)
            if not port:
                return None
        self.ends.setdefault((host, port), set()).add(other)
        return port

    def _free(self, host: str, other: _Pair) -> int:
        """
        Find a number that no connection from here to the same peer has, or 0.
        """
        for _ in range(limits.PORT_ATTEMPTS):
            port = FIRST_EPHEMERAL_PORT + self._below(HIGHEST_PORT + 1 - FIRST_EPHEMERAL_PORT)
            if other not in self.ends.get((host, port), ()):
                return port
        return 0

    def giveBack(self, local: Address, peer: Address) -> None:
        """
        The connection is over.

        @param local: This end.
        @param peer: The other end.
        """
        key = (local.host, local.port)
        peers = self.ends.get(key)
        if peers is not None:
            peers.discard((peer.host, peer.port))
            if not peers:
                del self.ends[key]


_ports: WeakKeyDictionary[object, LocalPorts] = WeakKeyDictionary()


def localPorts(place: object) -> LocalPorts:
    """
    Give the local ends in use at a device's channel.

    @param place: The channel.
    """
    found = _ports.get(place)
    if found is None:
        found = _ports[place] = LocalPorts()
    return found
