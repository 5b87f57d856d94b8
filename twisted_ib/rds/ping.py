"""
RDS pings: an empty message to port 0, which the peer's RDS instance answers itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred

from twisted_ib.rds.protocol.machine import RDSMessage
from twisted_ib.rds.protocol.wire import PING_PORT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twisted_ib.rds.paths.network import Network, Route
    from twisted_ib.rds.paths.path import RDSPath


class Ping:
    """
    One ping.  While it waits it has a port of its own, which identifies its answer.

    @ivar answer: fires with the seconds until the answer.
    """

    def __init__(self, network: Network, path: Route, among: set[Ping]) -> None:
        """
        @param path: the path to the peer.
        @param among: the pending pings, which this one joins.
        """
        self._network = network
        self._path = path
        self._among = among
        self._place = path.local, network.freePort(path.local)
        self._begin = network.reactor.seconds()
        self.answer: Deferred[float] = Deferred(self._cancelled)

    def start(self) -> None:
        """
        Send the ping.
        """
        self._among.add(self)
        self._network.sockets[self._place] = self
        self._path.send(RDSMessage(self._place[1], PING_PORT, owner=self))

    def _end(self) -> bool:
        # Returns whether it was pending: it ends once.
        if self not in self._among:
            return False
        self._among.discard(self)
        del self._network.sockets[self._place]
        self._path.drop(self)
        return True

    def _cancelled(self, answer: Deferred[float]) -> None:
        self._end()

    def fail(self, reason: Exception) -> None:
        """
        There will be no answer.
        """
        if self._end():
            self.answer.errback(reason)

    def messageReceived(self, path: Route, fields: Any, payload: bytes) -> None:
        """
        Receive a message to the ping's port.
        """
        # Linux send.c (rds_send_pong): a pong comes from port 0 of the address that was pinged; anything
        # else was meant for an earlier owner of the port.
        if path.remote == self._path.remote and fields[3] == PING_PORT and self._end():
            self.answer.callback(self._network.reactor.seconds() - self._begin)
        else:
            self._network.counters["recv_drop_no_sock"] += 1

    def datagramReceived(self, path: Route, port: int, payload: bytes | Sequence[bytes]) -> None:
        """
        Drop what is no pong: see
        L{SocketQueues.datagramReceived<twisted_ib.rds.queues.SocketQueues.datagramReceived>}.
        """
        self._network.counters["recv_drop_no_sock"] += 1

    # A bundle is one message.
    bundleReceived = datagramReceived

    def messageDone(self, message: RDSMessage) -> None:
        """
        The peer has acknowledged the ping.
        """

    messageDropped = messageDone

    def portsCleared(self, path: Route) -> None:
        """
        A ping is never held back.
        """

    def peerGone(self, path: RDSPath, reason: Exception) -> None:
        """
        A peer is unreachable.
        """
        if path is self._path:
            self.fail(reason)
