"""
The path between two addresses of one process: nothing leaves it, as with the kernel's loopback
transport.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from twisted_ib import limits
from twisted_ib.rds.paths.rdmaoperations import OperationMessage
from twisted_ib.rds.protocol.bundle import BUNDLE
from twisted_ib.rds.protocol.machine import RDSMessage
from twisted_ib.rds.protocol.wire import NO_PADDING, PING_PORT, Fields

if TYPE_CHECKING:
    from twisted_ib.rds.network import Network


class RDSLoopbackPath:
    """
    A path that needs no connection.  Delivery is in a later turn of the reactor, as from elsewhere.

    What a socket receives has come from C{remote} to C{local}, so the one who delivers for a sender
    is its opposite.

    @ivar local: the sender's address.
    @ivar remote: the receiver's.
    @ivar held: how many sockets hold something back.
    """

    closed = False
    held = 0
    #: It may be given bundles, from a path that leads nowhere any more; none are made for it.
    bundles = True
    _call: Any = None

    def __init__(self, network: Network, local: str, remote: str) -> None:
        self.network = network
        self.local = local
        self.remote = remote
        self._waiting: deque[RDSMessage] = deque()
        self._blockers: set[Any] = set()

    def isCongested(self, port: int) -> bool:
        """
        @return: whether a port of the receiver takes nothing.
        """
        return port in self.network.mapOf(self.remote)

    def gathers(self) -> bool:
        """
        @return: no.
        """
        return False

    def hold(self) -> None:
        """
        A socket waits for the map to change.
        """
        self.held += 1

    def release(self) -> None:
        """
        It does no more.
        """
        self.held -= 1

    def send(self, message: RDSMessage) -> None:
        """
        Send a message.
        """
        self._waiting.append(message)
        self.network.counters["send_queued"] += message.count
        self._want()

    def _want(self) -> None:
        if self._call is None and not self._blockers and self._waiting:
            self._call = self.network.reactor.callLater(0, self._deliver)

    def _opposite(self) -> RDSLoopbackPath:
        found = self.network.loops.get((self.remote, self.local))
        if found is None:
            found = RDSLoopbackPath(self.network, self.remote, self.local)
            self.network.loops[self.remote, self.local] = found
        return found

    def _deliver(self) -> None:
        self._call = None
        network, opposite = self.network, self._opposite()
        for _ in range(min(len(self._waiting), limits.RDS_MESSAGES_PER_TURN)):
            if self._blockers or not self._waiting:
                break
            message = self._waiting.popleft()
            if isinstance(message, OperationMessage):
                message.execute(network.medium.domain(self.local))
            if message.once and message.silent:
                pass
            elif message.destinationPort == PING_PORT:
                network.counters["recv_ping"] += 1
                network.counters["send_pong"] += 1
                opposite.send(RDSMessage(PING_PORT, message.sourcePort))
            else:
                network.deliver(opposite, self._fields(message), message.payload)
            if message.owner is not None:
                message.owner.messageDone(message)
        if not network.dormant:
            self._want()

    def _fields(self, message: RDSMessage) -> Fields:
        return (
            0,
            0,
            len(message.payload),
            message.sourcePort,
            message.destinationPort,
            message.flags & BUNDLE,
            0,
            NO_PADDING,
            0,
            message.extensions,
        )

    def messages(self) -> Iterator[RDSMessage]:
        """
        @return: What waits.
        """
        return iter(self._waiting)

    def drop(self, owner: Any, port: int | None = None) -> list[RDSMessage]:
        """
        Forget what somebody sends.

        @param port: to this port only; L{None} for all.
        @return: the messages.
        """
        dropped = [
            message
            for message in self._waiting
            if message.owner is owner and (port is None or message.destinationPort == port)
        ]
        for message in dropped:
            self._waiting.remove(message)
        return dropped

    def block(self, socket: Any) -> None:
        """
        A socket has no memory left: what comes to this address from the other waits.
        """
        self._opposite()._blockers.add(socket)

    def unblock(self, socket: Any) -> None:
        """
        It has some again.
        """
        opposite = self._opposite()
        if socket in opposite._blockers:
            opposite._blockers.discard(socket)
            opposite._want()

    def close(self) -> None:
        """
        Leave the reactor alone; nobody is there for what waits.
        """
        self._waiting.clear()
        self._blockers.clear()
        if self._call is not None:
            self._call.cancel()
            self._call = None
