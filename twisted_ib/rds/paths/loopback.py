"""
The loopback path between two addresses of one process, as the kernel's loopback transport (Linux
C{net/rds/loop.c}): nothing is put on the wire.
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
    from twisted.internet.interfaces import IDelayedCall

    from twisted_ib.rds.paths.network import Network


class RDSLoopbackPath:
    """
    A path without a connection: see L{RDSPath<twisted_ib.rds.paths.path.RDSPath>}.  It delivers in a later
    reactor turn, as a connection would.

    A socket receives messages from C{remote} to C{local}, so a sender's messages are delivered in the
    name of the opposite path.

    @ivar local: the sender's address.
    @ivar remote: the receiver's.
    @ivar held: the number of sockets that hold messages back.
    """

    closed = False
    held = 0
    #: It accepts bundles, which may be left over from a path whose peer is gone; it makes none.
    bundles = True
    _call: IDelayedCall | None = None

    def __init__(self, network: Network, local: str, remote: str) -> None:
        self.network = network
        self.local = local
        self.remote = remote
        self._waiting: deque[RDSMessage] = deque()
        self._blockers: set[Any] = set()

    def isCongested(self, port: int) -> bool:
        # No map is sent: both ends share it, as in Linux cong.c there is one map for each address
        # (rds_cong_from_addr).
        return port in self.network.mapOf(self.remote)

    def gathers(self) -> bool:
        """
        @return: false: there is no header to save.
        """
        return False

    def hold(self) -> None:
        self.held += 1

    def release(self) -> None:
        self.held -= 1

    def send(self, message: RDSMessage) -> None:
        self._waiting.append(message)
        self.network.counters["send_queued"] += message.count
        self._want()

    def _want(self) -> None:
        if self._call is None and not self._blockers and self._waiting:
            self._call = self.network.reactor.callLater(0, self._deliver)

    def _opposite(self) -> RDSLoopbackPath:
        found = self.network.loopbackPaths.get((self.remote, self.local))
        if found is None:
            found = RDSLoopbackPath(self.network, self.remote, self.local)
            self.network.loopbackPaths[self.remote, self.local] = found
        return found

    def _deliver(self) -> None:
        self._call = None
        # Bounded for each turn: two sockets that answer each other must not starve the reactor.
        try:
            for _ in range(min(len(self._waiting), limits.RDS_MESSAGES_PER_TURN)):
                if self._blockers or not self._waiting:
                    break
                message = self._waiting.popleft()
                try:
                    self._deliverOne(message)
                finally:
                    if message.owner is not None:
                        message.owner.messageDone(message)
        finally:
            if not self.network.dormant:
                self._want()

    def _deliverOne(self, message: RDSMessage) -> None:
        network, opposite = self.network, self._opposite()
        # The operation before its message, as on an RC queue pair.
        if isinstance(message, OperationMessage):
            # Only media of devices have such messages.
            medium: Any = network.medium
            message.execute(medium.domain(self.local))
        if message.once and message.silent:
            return
        if message.destinationPort == PING_PORT:
            network.counters["recv_ping"] += 1
            network.counters["send_pong"] += 1
            # A pong: loopback has no state machine that would answer.
            opposite.send(RDSMessage(PING_PORT, message.sourcePort))
            return
        payload = message.payload
        # A bundle's pieces may not be joined yet.
        whole = payload if isinstance(payload, bytes) else b"".join(payload)
        network.deliver(opposite, self._fields(message), whole)

    def _fields(self, message: RDSMessage) -> Fields:
        return (
            0,
            0,
            message.size,
            message.sourcePort,
            message.destinationPort,
            # RETRANSMITTED and the like are left over from another path.
            message.flags & BUNDLE,
            0,
            NO_PADDING,
            0,
            message.extensions,
        )

    def messages(self) -> Iterator[RDSMessage]:
        return iter(self._waiting)

    def drop(self, owner: object, port: int | None = None) -> list[RDSMessage]:
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
        A socket has no memory left: stop delivery from the other address.
        """
        self._opposite()._blockers.add(socket)

    def unblock(self, socket: Any) -> None:
        opposite = self._opposite()
        if socket in opposite._blockers:
            opposite._blockers.discard(socket)
            opposite._want()

    def close(self) -> None:
        """
        Stop; queued messages are dropped, as no socket is left.
        """
        self._waiting.clear()
        self._blockers.clear()
        if self._call is not None:
            self._call.cancel()
            self._call = None
