"""
A ping: an empty message to port 0, which the peer's RDS answers by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred

from twisted_ib.rds.protocol.machine import RDSMessage
from twisted_ib.rds.protocol.wire import PING_PORT

if TYPE_CHECKING:
    from twisted_ib.rds.network import Network


class Ping:
    """
    One ping.  It has a port of its own while it waits, by which its answer is known.

    @ivar answer: fires with the seconds until the answer came.
    """

    def __init__(self, network: Network, path: Any, among: set[Ping]) -> None:
        """
        @param path: leads to the peer.
        @param among: where it is while it waits.
        """
        self._network = network
        self._path = path
        self._among = among
        self._place = path.local, network.freePort(path.local)
        self._begin = network.reactor.seconds()
        self.answer: Deferred[float] = Deferred(self._cancelled)

    def start(self) -> None:
        """
        Send it.
        """
        self._among.add(self)
        self._network.sockets[self._place] = self
        self._path.send(RDSMessage(self._place[1], PING_PORT, owner=self))

    def _end(self) -> bool:
        """
        It waits no more.

        @return: whether it did.
        """
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

    def messageReceived(self, path: Any, fields: Any, payload: bytes) -> None:
        """
        Something came for the port: the answer, if it comes from there.
        """
        if path.remote == self._path.remote and fields[3] == PING_PORT and self._end():
            self.answer.callback(self._network.reactor.seconds() - self._begin)
        else:
            self._network.counters["recv_drop_no_sock"] += 1

    def messageDone(self, message: RDSMessage) -> None:
        """
        The peer has it.
        """

    messageDropped = messageDone

    def portsCleared(self, path: Any) -> None:
        """
        A ping is never held back.
        """

    def peerGone(self, path: Any, reason: Exception) -> None:
        """
        The peer cannot be reached.
        """
        if path is self._path:
            self.fail(reason)
