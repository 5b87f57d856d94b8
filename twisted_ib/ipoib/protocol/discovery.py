"""
ARP and neighbour discovery of an interface: what it asks, answers and announces, and what it learns.

An answer that nobody has asked for, and an announcement, change neighbours that are known, and make none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twisted_ib.errors import WireError
from twisted_ib.hca.wire.grh import isMulticast
from twisted_ib.ipoib.protocol.ip import ALL_NODES, UNSPECIFIED, NeighbourMessage, solicitedNode
from twisted_ib.ipoib.protocol.neighbours import Input, Neighbour, Neighbours
from twisted_ib.ipoib.protocol.wire import (
    ARP_HEADER,
    GROUP_QPN,
    IPV6_HEADER,
    NO_HARDWARE,
    ARPOperation,
    ARPPacket,
    Buffer,
    parseHardwareAddress,
)

if TYPE_CHECKING:
    from twisted_ib.ipoib.protocol import machine
    from twisted_ib.ipoib.protocol.peers import Peer
    from twisted_ib.ipoib.protocol.routes import Routes

#: No IPv4 address: the sender of a probe (RFC 5227).
_NO_ADDRESS: Final = bytes(4)
#: Queue pairs 0 and 1 are for management.
_LEAST_QPN: Final = 2


class Discovery:
    """
    ARP and neighbour discovery of one interface.

    @ivar hardware: the interface's hardware address.
    @ivar routes: its IP addresses.
    """

    def __init__(
        self, user: machine.Machine, neighbours: Neighbours, hardware: bytes, gid: int, routes: Routes
    ) -> None:
        self._user, self._neighbours = user, neighbours
        self.hardware, self._gid, self.routes = hardware, gid, routes

    # -- asking

    def solicit(self, neighbour: Neighbour, isUnicast: bool) -> None:
        """
        Ask a neighbour, or all, for a hardware address.
        """
        target = neighbour.address
        source = self.routes.sourceFor(target)
        if source is None:
            return
        peer = neighbour.peer if isUnicast else None
        if len(target) == 4:
            self._sendARP(peer, ARPOperation.REQUEST, source, NO_HARDWARE, target)
        elif peer is not None:
            self._sendND(peer, NeighbourMessage(source, target, target, self.hardware, True))
        else:
            group = solicitedNode(target)
            self._sendND(None, NeighbourMessage(source, group, target, self.hardware, True))

    def announce(self) -> None:
        """
        Tell all the own addresses: peers may know another queue pair of before (RFC 5227 section 3, RFC 4861
        section 7.2.6).
        """
        for address in self.routes.own:
            if len(address) == 4:
                self._sendARP(None, ARPOperation.REQUEST, address, NO_HARDWARE, address)
            else:
                message = NeighbourMessage(address, ALL_NODES, address, self.hardware, False, isOverride=True)
                self._sendND(None, message)

    def _sendARP(
        self, peer: Peer | None, operation: ARPOperation, sender: bytes, hardware: bytes, target: bytes
    ) -> None:
        frame = ARP_HEADER + ARPPacket(operation, self.hardware, sender, hardware, target).pack()
        if peer is None:
            self._user.broadcast(frame)
        else:
            self._user.request(peer, frame)

    def _sendND(self, peer: Peer | None, message: NeighbourMessage) -> None:
        frame = IPV6_HEADER + message.pack()
        if peer is None:
            self._user.multicast(message.destination, frame)
        else:
            self._user.request(peer, frame)

    # -- hearing

    def arpReceived(self, sourceGID: int, buffer: Buffer, start: int, stop: int, now: float) -> None:
        """
        An ARP packet arrived.

        @param sourceGID: the port that has sent it; 0 if that is not known.
        """
        try:
            packet = ARPPacket.parse(buffer, start, stop)
        except WireError:
            self._user.count("arp_malformed")
            return
        sender, target = packet.sender, packet.target
        if not self._isForeign(sender, packet.senderHardware, sourceGID, "arp_malformed"):
            return
        isRequest = packet.operation == ARPOperation.REQUEST
        if not isRequest or target not in self.routes.own:
            isAnswer = packet.operation == ARPOperation.REPLY and target in self.routes.own
            self._learn(sender, packet.senderHardware, isAnswer)
        elif sender == _NO_ADDRESS or self.routes.isOnLink(sender):
            # RFC 5227 section 1.1: who asks whether an address is in use has none, but a hardware address to
            # be answered at.  All those who do are one neighbour, which nothing is sent to.
            peer = self._neighbours.introduce(sender, packet.senderHardware, now).peer
            self._sendARP(peer, ARPOperation.REPLY, target, packet.senderHardware, sender)

    def messageReceived(self, sourceGID: int, buffer: Buffer, start: int, stop: int, now: float) -> None:
        """
        A neighbour solicitation or advertisement arrived.

        @param sourceGID: the port that has sent it; 0 if that is not known.
        """
        try:
            message = NeighbourMessage.parse(buffer, start, stop)
        except WireError:
            self._user.count("nd_malformed")
            return
        if message.isSolicitation:
            self._solicited(sourceGID, message, now)
            return
        neighbour = self._neighbours.entries.get(message.target)
        if (
            not self._isForeign(message.target, message.hardware, sourceGID, "nd_malformed")
            or neighbour is None
        ):
            return
        hardware = message.hardware or neighbour.hardware
        if not hardware:
            return
        if neighbour.hardware and hardware != neighbour.hardware and not message.isOverride:
            # RFC 4861 section 7.2.5: the address that is known is kept, and is to be confirmed.
            self._neighbours.input(neighbour, Input.DOUBT)
        else:
            self._neighbours.told(neighbour, hardware, message.isSolicited)

    def _solicited(self, sourceGID: int, message: NeighbourMessage, now: float) -> None:
        source, target = message.source, message.target
        if not self._isForeign(source, message.hardware, sourceGID, "nd_malformed"):
            return
        if target not in self.routes.own:
            if message.hardware is not None:
                self._learn(source, message.hardware, isAnswer=False)
        elif source == UNSPECIFIED:
            # RFC 4861 section 7.2.4: duplicate address detection is answered to all.
            answer = NeighbourMessage(target, ALL_NODES, target, self.hardware, False, False, True)
            self._sendND(None, answer)
        elif self.routes.isOnLink(source):
            if message.hardware is not None:
                neighbour: Neighbour | None = self._neighbours.introduce(source, message.hardware, now)
            else:
                neighbour = self._neighbours.entries.get(source)
            if neighbour is not None and neighbour.peer is not None:
                answer = NeighbourMessage(target, source, target, self.hardware, False, True, True)
                self._sendND(neighbour.peer, answer)

    def _isForeign(self, address: bytes, hardware: bytes | None, sourceGID: int, malformed: str) -> bool:
        # Whether somebody else may speak of an address.  Own requests come back from groups, others may take
        # this interface's addresses for theirs, a group is no neighbour, and a port speaks for itself alone.
        fault = "address_conflict" if address in self.routes.own else ""
        if hardware is not None:
            _, qpn, gid = parseHardwareAddress(hardware)
            if gid == self._gid:
                fault = "own_source"
            elif not _LEAST_QPN <= qpn < GROUP_QPN or not gid or isMulticast(gid):
                fault = malformed
            elif sourceGID not in (0, gid):
                fault = "source_mismatch"
        if fault:
            self._user.count(fault)
        return not fault

    def _learn(self, address: bytes, hardware: bytes, isAnswer: bool) -> None:
        neighbour = self._neighbours.entries.get(address)
        if neighbour is not None:
            self._neighbours.told(neighbour, hardware, isAnswer)
