"""
Whether a peer may ask for one more connection.
"""

from __future__ import annotations

from twisted_ib import limits
from twisted_ib.hca.cm.peer import Peer


class Room:
    """
    The bounds of a table of connections.

    @ivar halfOpen: REQs of all peers that are not connections yet.
    """

    __slots__ = ("_inAll", "_perSource", "halfOpen")

    def __init__(self, perSource: int, inAll: int) -> None:
        """
        @param perSource: how many REQs of a peer may be half open.
        @param inAll: how many of all peers.
        """
        self._perSource = perSource
        self._inAll = inAll
        self.halfOpen = 0

    def lacks(self, peer: Peer | None, connections: int, events: int) -> str | None:
        """
        @param peer: who asks, L{None} if nothing is known of it.
        @param connections: how many there are.
        @param events: how many wait to be taken.
        @return: the counter of what there is no room for, or L{None}.
        """
        ofPeer = 0 if peer is None else peer.halfOpen
        known = 0 if peer is None else len(peer.connections)
        if ofPeer >= self._perSource or self.halfOpen >= self._inAll:
            return "halfOpenExceeded"
        if known >= limits.CM_CONNECTIONS_PER_PATH:
            return "connectionsExceeded"
        if connections >= limits.CM_CONNECTIONS:
            return "tableFull"
        if events >= limits.CM_EVENTS:
            return "eventsFull"
        return None
