"""
Whether a peer may ask for one more connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted_ib import limits
from twisted_ib.hca.cm.peer import Peer

if TYPE_CHECKING:
    from twisted_ib.hca.cm.machine import Connection


class HalfOpenLimit:
    """
    The bounds of a table of connections.

    @ivar halfOpen: REQs of all peers that are not connections yet.
    @ivar oldest: them, the oldest first, if one that is too many takes the oldest one's place; else
        L{None}: then it is not heard.
    """

    __slots__ = ("_inAll", "_ofPeers", "_perSource", "halfOpen", "oldest")

    def __init__(self, perSource: int, inAll: int, replaces: bool = False) -> None:
        """
        @param perSource: how many REQs of a peer may be half open.
        @param inAll: how many of all peers.
        @param replaces: whether one that is too many takes the oldest one's place.
        """
        self._perSource = perSource
        self._inAll = inAll
        self.halfOpen = 0
        self.oldest: dict[Connection, None] | None = {} if replaces else None
        #: The same by peer.
        self._ofPeers: dict[Peer, dict[Connection, None]] = {}

    def changed(self, connection: Connection, isHalfOpen: bool) -> None:
        """
        A connection is half open now, or not any more.
        """
        change = 1 if isHalfOpen else -1
        self.halfOpen += change
        connection.peer.halfOpen += change
        if self.oldest is None:
            return
        peer: Peer = connection.peer
        if isHalfOpen:
            self.oldest[connection] = None
            self._ofPeers.setdefault(peer, {})[connection] = None
        else:
            del self.oldest[connection]
            ofPeer = self._ofPeers[peer]
            del ofPeer[connection]
            if not ofPeer:
                del self._ofPeers[peer]

    def excess(self, peer: Peer | None) -> Connection | None:
        """
        @param peer: who asks, L{None} if nothing is known of it.
        @return: whose place it takes: of its own ones, or else of all; L{None} if there is room, or if
            nobody gives way.
        """
        if self.oldest is None:
            return None
        if peer is not None and peer.halfOpen >= self._perSource:
            return next(iter(self._ofPeers[peer]))
        return next(iter(self.oldest)) if self.halfOpen >= self._inAll else None

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
