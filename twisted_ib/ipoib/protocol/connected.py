"""
Connected mode (RFC 4755): reliable connections between interfaces, each for one direction.

The side that has packets to send connects to the UD queue pair number of its peer, which it knows from ARP or
neighbour discovery; the other side only receives.  Both tell by private data how long a message they take.
While there is no connection, and where a peer refuses one, packets are datagrams.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final

from twisted_ib import limits
from twisted_ib.errors import WireError
from twisted_ib.hca.base.machine import Machine, ignored
from twisted_ib.ipoib.protocol.wire import RC_CAPABLE, packPrivateData, parsePrivateData

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted_ib.hca.base.timers import Timer, Timers
    from twisted_ib.ipoib.protocol import machine
    from twisted_ib.ipoib.protocol.interfaces import IMachineDriver
    from twisted_ib.ipoib.protocol.peers import Peer


class ConnectionState(Enum):
    """
    The states of the connection to a peer.
    """

    #: There is none, and the next packet may make one.
    IDLE = auto()
    CONNECTING = auto()
    CONNECTED = auto()
    #: It was lost a moment ago, and is made again soon.
    LOST = auto()
    #: The peer has none for this interface, for the time being.
    REFUSED = auto()


class ConnectionInput(Enum):
    """
    The inputs of the connection to a peer.
    """

    #: There are packets to send.
    WANTED = auto()
    #: The peer has accepted.
    ACCEPTED = auto()
    #: The peer has refused or has not answered, or there are too many connections.
    REFUSED = auto()
    #: The peer has ended it, or it has failed.
    ENDED = auto()
    #: The time of this state is over; of CONNECTED, the time without packets.
    EXPIRED = auto()
    #: The peer is not known any more, or has no connected mode any more.
    DROPPED = auto()


class ConnectionAction(Enum):
    """
    The actions of the connection to a peer.
    """

    CONNECT = auto()
    #: Send packets on it from now on, and those that have waited for it.
    USE = auto()
    #: Send datagrams, and report the packets that are too long for that.
    FALL_BACK = auto()
    #: Send datagrams; packets that are too long for that wait for the next connection.
    PAUSE = auto()
    DISCONNECT = auto()
    #: It may be made again.
    RESUME = auto()


_S, _I, _A = ConnectionState, ConnectionInput, ConnectionAction
#: An input that is not here changes nothing.
CONNECTION_TRANSITIONS: Final = Machine[
    ConnectionState, ConnectionInput, tuple[ConnectionState, ConnectionAction] | None
](
    {
        (_S.IDLE, _I.WANTED): (_S.CONNECTING, _A.CONNECT),
        (_S.IDLE, _I.REFUSED): (_S.REFUSED, _A.FALL_BACK),
        (_S.CONNECTING, _I.ACCEPTED): (_S.CONNECTED, _A.USE),
        (_S.CONNECTING, _I.REFUSED): (_S.REFUSED, _A.FALL_BACK),
        (_S.CONNECTING, _I.ENDED): (_S.REFUSED, _A.FALL_BACK),
        (_S.CONNECTING, _I.DROPPED): (_S.IDLE, _A.DISCONNECT),
        (_S.CONNECTED, _I.ENDED): (_S.LOST, _A.PAUSE),
        (_S.CONNECTED, _I.EXPIRED): (_S.IDLE, _A.DISCONNECT),
        (_S.CONNECTED, _I.DROPPED): (_S.IDLE, _A.DISCONNECT),
        (_S.LOST, _I.EXPIRED): (_S.IDLE, _A.RESUME),
        (_S.LOST, _I.DROPPED): (_S.IDLE, _A.RESUME),
        (_S.REFUSED, _I.EXPIRED): (_S.IDLE, _A.RESUME),
        (_S.REFUSED, _I.DROPPED): (_S.IDLE, _A.RESUME),
    },
    unlisted=ignored,
)

#: How long states last that end by themselves.
_SECONDS: Final = {
    ConnectionState.CONNECTED: limits.IPOIB_IDLE_SECONDS,
    ConnectionState.LOST: limits.IPOIB_BACKOFF_LEAST,
    ConnectionState.REFUSED: limits.IPOIB_RECONNECT_SECONDS,
}


class Incoming:
    """
    A connection that a peer sends on.

    @ivar source: the peer's GID and UD queue pair.
    @ivar used: when the last packet arrived.
    """

    __slots__ = ("source", "timer", "used")

    def __init__(self, source: tuple[int, int], now: float) -> None:
        self.source = source
        self.used = now
        self.timer: Timer | None = None


class Connections:
    """
    The connections of one interface.

    @ivar incoming: those that peers send on, by their handles.
    @ivar isEnabled: whether this interface has connected mode.
    """

    def __init__(
        self,
        user: machine.Machine,
        driver: IMachineDriver,
        timers: Timers,
        clock: Callable[[], float],
        private: tuple[int, int],
        isEnabled: bool,
    ) -> None:
        """
        @param private: the own UD queue pair, and the longest message that is received.
        """
        self._user, self._driver, self._timers, self._clock = user, driver, timers, clock
        self._qpn, self.longest = private
        self.isEnabled = isEnabled
        self.incoming: dict[Any, Incoming] = {}
        self._handles: dict[tuple[int, int], Any] = {}
        self._outgoing: dict[Any, Peer] = {}

    def __len__(self) -> int:
        return len(self.incoming) + len(self._outgoing)

    # -- to peers

    def isPossible(self, peer: Peer) -> bool:
        """
        @return: whether there is a connection to a peer, or there may soon be one.
        """
        isRefused = peer.state is ConnectionState.REFUSED
        return self.isEnabled and bool(peer.capabilities & RC_CAPABLE) and not isRefused

    def want(self, peer: Peer) -> None:
        """
        There are packets for a peer whose path is known.
        """
        if peer.state is ConnectionState.IDLE and self.isPossible(peer):
            isFull = len(self) >= limits.IPOIB_CONNECTIONS
            self.input(peer, ConnectionInput.REFUSED if isFull else ConnectionInput.WANTED)

    def drop(self, peer: Peer) -> None:
        """
        A peer is not connected to any more.
        """
        self.input(peer, ConnectionInput.DROPPED)

    def connected(self, handle: Any, privateData: bytes) -> None:
        """
        A peer has accepted.
        """
        peer = self._outgoing.get(handle)
        if peer is None or peer.state is not ConnectionState.CONNECTING:
            return
        try:
            qpn, mtu = parsePrivateData(privateData)
        except WireError:
            qpn = -1
        if qpn != peer.qpn:
            self._driver.count("connections_refused")
            self._driver.disconnect(handle)
            self.input(peer, ConnectionInput.REFUSED)
            return
        peer.mtu = mtu
        self.input(peer, ConnectionInput.ACCEPTED)

    def failed(self, handle: Any) -> None:
        """
        A peer has not accepted.
        """
        peer = self._outgoing.get(handle)
        if peer is not None:
            self.input(peer, ConnectionInput.REFUSED)

    def ended(self, handle: Any) -> Peer | None:
        """
        A connection of either direction has ended.

        @return: the peer that it led to.
        """
        peer = self._outgoing.get(handle)
        if peer is not None:
            self.input(peer, ConnectionInput.ENDED)
        elif handle in self.incoming:
            self._forget(handle)
        return peer

    def input(self, peer: Peer, event: ConnectionInput) -> None:
        """
        Something happened to the connection to a peer.
        """
        transition = CONNECTION_TRANSITIONS[peer.state, event]
        if transition is None:
            return
        peer.state, action = transition
        if peer.connectionTimer is not None:
            peer.connectionTimer.cancel()
            peer.connectionTimer = None
        self._arm(peer)
        if action is ConnectionAction.CONNECT:
            private = packPrivateData(self._qpn, self.longest)
            peer.handle = self._driver.connect(peer.port.gid, peer.qpn, private)
            self._outgoing[peer.handle] = peer
            return
        if action is not ConnectionAction.USE and peer.handle is not None:
            handle, peer.handle = peer.handle, None
            del self._outgoing[handle]
            if action is ConnectionAction.DISCONNECT:
                self._driver.disconnect(handle)
        self._user.modeChanged(peer)

    def _arm(self, peer: Peer, seconds: float | None = None) -> None:
        seconds = _SECONDS.get(peer.state) if seconds is None else seconds
        if seconds is not None:
            peer.connectionTimer = self._timers.start(seconds, lambda: self._expired(peer))

    def _expired(self, peer: Peer) -> None:
        if peer.state is ConnectionState.CONNECTED:
            used = max((each.used for each in peer.neighbours), default=0.0)
            left = used + limits.IPOIB_IDLE_SECONDS - self._clock()
            if left > 0:
                self._arm(peer, left)
                return
        self.input(peer, ConnectionInput.EXPIRED)

    # -- from peers

    def requested(self, handle: Any, gid: int, privateData: bytes) -> bytes | None:
        """
        A peer asks for a connection.

        @return: private data; L{None} to refuse.
        """
        try:
            qpn, _ = parsePrivateData(privateData)
        except WireError:
            qpn = None
        if not self.isEnabled or qpn is None:
            self._driver.count("connections_refused")
            return None
        source = gid, qpn
        previous = self._handles.get(source)
        if previous is not None:
            # The peer has lost it, and nothing has told this end.
            self._forget(previous)
            self._driver.disconnect(previous)
        elif not self._hasRoomFor(gid):
            self._driver.count("connections_refused")
            return None
        incoming = self.incoming[handle] = Incoming(source, self._clock())
        self._handles[source] = handle
        self._watch(handle, incoming, limits.IPOIB_IDLE_SECONDS)
        return packPrivateData(self._qpn, self.longest)

    def _hasRoomFor(self, gid: int) -> bool:
        # Neither one port nor all others together take connected mode from this interface's own packets.
        return (
            len(self) < limits.IPOIB_CONNECTIONS
            and len(self.incoming) < limits.IPOIB_CONNECTIONS_INCOMING
            and sum(gid == each for each, _ in self._handles) < limits.IPOIB_CONNECTIONS_PER_GID
        )

    def isHeard(self, peer: Peer, since: float) -> bool:
        """
        @return: whether packets have arrived on a connection from a peer.
        """
        handle = self._handles.get((peer.port.gid, peer.qpn))
        return handle is not None and self.incoming[handle].used > since

    def reject(self, handle: Any) -> None:
        """
        End a connection whose peer does not keep to what was announced.
        """
        self._forget(handle)
        self._driver.disconnect(handle)

    def _forget(self, handle: Any) -> None:
        incoming = self.incoming.pop(handle)
        del self._handles[incoming.source]
        if incoming.timer is not None:
            incoming.timer.cancel()

    def _watch(self, handle: Any, incoming: Incoming, seconds: float) -> None:
        incoming.timer = self._timers.start(seconds, lambda: self._unused(handle, incoming))

    def _unused(self, handle: Any, incoming: Incoming) -> None:
        left = incoming.used + limits.IPOIB_IDLE_SECONDS - self._clock()
        if left > 0:
            self._watch(handle, incoming, left)
        else:
            self.reject(handle)

    def close(self) -> None:
        """
        End all, and make and take no others.
        """
        self.isEnabled = False
        for handle in list(self.incoming):
            self.reject(handle)
        for peer in list(self._outgoing.values()):
            self.drop(peer)
