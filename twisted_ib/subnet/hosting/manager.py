"""
The subnet manager of a hosted subnet: it runs on the first port of a CA that has a link, as long as no
program that is attached from outside is one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twisted_ib import limits
from twisted_ib.hca.base.traits import NodeType
from twisted_ib.hca.mad.takers import Taker
from twisted_ib.hca.wire.mad.classes import SUBNET_ADMINISTRATION, SUBNET_CLASSES
from twisted_ib.hca.wire.mad.mad import HEADER, REPORT, RESPONSE
from twisted_ib.subnet.hosting.descriptors import cancel, isPending
from twisted_ib.subnet.sa.agent import Administration
from twisted_ib.subnet.sm.manager import Manager, Options
from twisted_ib.subnet.sm.requests import TRANSACTIONS

if TYPE_CHECKING:
    from twisted_ib.subnet.hosting.hosted import HostedSubnet
    from twisted_ib.subnet.network.graph import Port
    from twisted_ib.subnet.network.smi import Packet

_TRANSACTION_BITS = 32
_NUMBER_SHIFT = 48


class HostedManager:
    """
    Runs a L{Manager} with a clock.

    @ivar manager: the L{Manager}.
    @ivar port: where it is; L{None} if no node is a CA.
    """

    def __init__(
        self,
        subnet: HostedSubnet,
        options: Options,
        randomBits: Callable[[int], int],
        count: Callable[[str], object],
        clock: Any,
    ) -> None:
        """
        @param randomBits: makes as many random bits as asked for.
        @param count: called with the name of each loss.
        @param clock: has C{seconds} and C{callLater}.
        """
        self._subnet = subnet
        self._clock = clock
        self.manager = Manager(options, randomBits(_TRANSACTION_BITS), count)
        self.manager.administration = Administration(self.manager, randomBits, count)
        self.port: Port | None = None
        self._timer: Any = None
        self._return: Any = None
        self._isSending = False
        #: Ports that external subnet managers have.
        self._external: set[Port] = set()

    def start(self) -> None:
        """
        Begin at the first CA that there is.  Idempotent, as long as the port that it is at has a link.
        """
        port = self._first() if self.port is None or not self._isLinked(self.port) else self.port
        if port is not self.port:
            self._stop()
            self.port = port
        self._resume()

    def look(self) -> None:
        """
        Look soon whether something has changed; begin at another CA if the port that it is at has no link.
        """
        port = self.port
        self.start()
        if self.port is port:
            self.manager.look(self._clock.seconds())
            self._wake()

    def _isLinked(self, port: Port) -> bool:
        return self._subnet.graph.nodes.get(port.node.guid) is port.node and port.peer is not None

    def _first(self) -> Port | None:
        nodes = (node for node in self._subnet.graph.nodes.values() if node.kind is NodeType.CA)
        ports = [port for node in nodes for port in node.each()]
        return next((port for port in ports if port.peer is not None), ports[0] if ports else None)

    def _resume(self) -> None:
        if self.port is None or self._external or isPending(self._return):
            return
        self._subnet.markSM(self.port, True)
        self.manager.start(self._clock.seconds())
        self._wake()

    def _stop(self) -> None:
        self.manager.resign()
        if self.port is not None and self.port not in self._external:
            self._subnet.markSM(self.port, False)
        cancel(self._timer)

    def close(self) -> None:
        """
        End.  Idempotent.
        """
        self.manager.resign()
        cancel(self._timer)
        cancel(self._return)

    # -- external subnet managers

    def opened(self, port: Port) -> None:
        """
        A program is the subnet manager of a port from now on: this one resigns, and ports keep their LIDs.
        """
        cancel(self._return)
        self._external.add(port)
        self._stop()

    def closed(self, port: Port, isGone: bool) -> None:
        """
        It is no longer.

        @param isGone: whether it has ended without closing it: another one may take its place soon.
        """
        self._external.discard(port)
        if not self._external:
            wait = limits.SM_RETURN_SECONDS if isGone else 0
            self._return = self._clock.callLater(wait, self._resume)

    # -- MADs

    def take(self, port: Port, packet: Packet) -> bool:
        """
        A MAD has arrived at a port, and no program there takes it.

        @return: whether it is for this manager.
        """
        if self.port is None or port.node.end(port) is not self.port or self.port in self._external:
            return False
        if not _isForManager(packet):
            return False
        self.manager.received(packet, self._clock.seconds())
        self._wake()
        return True

    def _wake(self) -> None:
        # Something is to be sent, soon: who calls is in the middle of something.
        if not self._isSending:
            self._schedule(0.0)

    def _schedule(self, wait: float) -> None:
        cancel(self._timer)
        self._timer = self._clock.callLater(wait, self._turn)

    def _turn(self) -> None:
        self.manager.expired(self._clock.seconds())
        self._isSending = True
        try:
            left = self._send(limits.SM_MADS_PER_TURN)
        finally:
            self._isSending = False
        deadline = self.manager.deadline()
        if left <= 0:
            self._schedule(0.0)
        elif deadline is not None:
            self._schedule(max(0.0, deadline - self._clock.seconds()))

    def _send(self, left: int) -> int:
        manager = self.manager
        while left > 0 and self.port is not None:
            packets = manager.outgoing(left)
            if not packets:
                break
            for packet in packets:
                response = self._subnet.exchange(self.port, packet)
                if response is not None:
                    manager.received(response, self._clock.seconds())
            left -= len(packets)
        return left


def _isForManager(packet: Packet) -> bool:
    taker = packet.taker
    if taker is not Taker.REQUESTER:
        return taker is Taker.MANAGER
    # A device may be at the same port: the responses to its requests are its own.
    _, class_, _, method, _, _, transaction, _, _, _ = HEADER.unpack_from(packet.octets)
    if class_ == SUBNET_ADMINISTRATION:
        return method == REPORT | RESPONSE
    isOurs = transaction >> _NUMBER_SHIFT == TRANSACTIONS >> _NUMBER_SHIFT
    return class_ in SUBNET_CLASSES and isOurs
