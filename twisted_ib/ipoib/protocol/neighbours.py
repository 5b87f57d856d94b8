"""
The neighbours of an interface: which hardware address an IP address has, by ARP and neighbour discovery
alike.

States are those of RFC 4861 section 7.3.2 without DELAY.  A neighbour in use is confirmed again and again,
first by a request to itself and then by one to all: a peer that was restarted has another queue pair, and
nothing else tells that packets to the old one are lost.  Packets go on to a neighbour while it is confirmed.

L{Discovery} is what an interface asks, answers and announces, and what it learns.  An answer that nobody has
asked for, and an announcement, change neighbours that are known, and make none.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final

from attrs import define, field

from twisted_ib import limits
from twisted_ib.errors import WireError
from twisted_ib.hca.base.machine import Machine, ignored
from twisted_ib.hca.wire.grh import isMulticast
from twisted_ib.ipoib.protocol import wire
from twisted_ib.ipoib.protocol.ip import ALL_NODES, UNSPECIFIED, NeighbourMessage, solicitedNode

if TYPE_CHECKING:
    from twisted_ib.hca.base.timers import Timer, Timers
    from twisted_ib.ipoib.protocol import machine
    from twisted_ib.ipoib.protocol.peers import Peer
    from twisted_ib.ipoib.protocol.routes import Routes

#: No IPv4 address: the sender of a probe (RFC 5227).
_NO_ADDRESS: Final = bytes(4)
#: Queue pairs 0 and 1 are for management.
_LEAST_QPN: Final = 2


class State(Enum):
    """
    The states of a neighbour.
    """

    #: All were asked, and none has answered.
    INCOMPLETE = auto()
    REACHABLE = auto()
    #: It was not used since it was confirmed.
    STALE = auto()
    #: It was asked to confirm its hardware address.
    PROBE = auto()


class Input(Enum):
    """
    The inputs of a neighbour.
    """

    #: A packet is to be sent to it.
    SEND = auto()
    #: It has answered a request, or was heard.
    ANSWER = auto()
    #: It said, unasked, that it has another hardware address.
    CHANGE = auto()
    #: A connection with it was lost, or it may have another hardware address.
    DOUBT = auto()
    #: Its time is over, and it was not used meanwhile.
    UNUSED = auto()
    #: Its time is over: it was used meanwhile, or may be asked again.
    DUE = auto()
    #: Its time is over, and it was asked often enough.
    UNANSWERED = auto()


class Action(Enum):
    """
    The actions of a neighbour.
    """

    #: Take its hardware address, and send what waits.
    LEARN = auto()
    #: The same, and ask it to confirm that.
    LEARN_AND_PROBE = auto()
    #: Ask it alone.
    PROBE = auto()
    #: Ask all.
    SOLICIT = auto()
    #: Wait for its next use.
    REST = auto()
    #: Report that it does not answer, and forget it.
    FAIL = auto()
    FORGET = auto()


#: An input that is not here changes nothing.  L{None}: the neighbour is forgotten.
TRANSITIONS: Final = Machine[State, Input, tuple[State | None, Action] | None](
    {
        (State.INCOMPLETE, Input.ANSWER): (State.REACHABLE, Action.LEARN),
        # Packets wait for it, so that it is in use at once.
        (State.INCOMPLETE, Input.CHANGE): (State.PROBE, Action.LEARN_AND_PROBE),
        (State.INCOMPLETE, Input.DUE): (State.INCOMPLETE, Action.SOLICIT),
        (State.INCOMPLETE, Input.UNANSWERED): (None, Action.FAIL),
        (State.REACHABLE, Input.ANSWER): (State.REACHABLE, Action.LEARN),
        (State.REACHABLE, Input.CHANGE): (State.PROBE, Action.LEARN_AND_PROBE),
        (State.REACHABLE, Input.DOUBT): (State.PROBE, Action.PROBE),
        (State.REACHABLE, Input.UNUSED): (State.STALE, Action.REST),
        (State.REACHABLE, Input.DUE): (State.PROBE, Action.PROBE),
        (State.STALE, Input.SEND): (State.PROBE, Action.PROBE),
        (State.STALE, Input.CHANGE): (State.STALE, Action.LEARN),
        (State.STALE, Input.UNUSED): (None, Action.FORGET),
        (State.PROBE, Input.ANSWER): (State.REACHABLE, Action.LEARN),
        (State.PROBE, Input.CHANGE): (State.PROBE, Action.LEARN_AND_PROBE),
        (State.PROBE, Input.DUE): (State.PROBE, Action.SOLICIT),
        (State.PROBE, Input.UNANSWERED): (None, Action.FAIL),
    },
    unlisted=ignored,
)

#: The states in which an answer is awaited: in others one is a claim that nobody has asked for.
ASKED: Final = frozenset((State.INCOMPLETE, State.PROBE))


@define(eq=False, repr=False, weakref_slot=False)
class Neighbour:
    """
    One IP address of this link.

    @ivar address: 4 or 16 octets.
    @ivar state: a L{State}.
    @ivar used: when the last packet was sent to it.
    @ivar tries: how often all were asked, since it was asked alone or has answered.
    @ivar hardware: its hardware address; empty until it is known.
    @ivar peer: the interface that has it; L{None} until it is known.
    @ivar waiting: frames that wait for its hardware address.
    @ivar lookups: addresses that users wait for.
    @ivar limit: octets of the longest frame that C{handle}, or a datagram by C{path} to C{qpn}, carries.
    """

    address: bytes
    state: State
    used: float
    hardware: bytes = b""
    peer: Peer | None = None
    waiting: list[bytes] = field(factory=list)
    lookups: list[bytes] = field(factory=list)
    timer: Timer | None = None
    tries: int = 0
    limit: int = 0
    handle: Any = None
    path: Any = None
    qpn: int = 0


class Neighbours:
    """
    The table of one interface.

    @ivar entries: by address; the one that was confirmed longest ago comes first.
    """

    def __init__(self, user: machine.Machine, timers: Timers, clock: Callable[[], float]) -> None:
        self._user, self._timers, self._clock = user, timers, clock
        self.entries: OrderedDict[bytes, Neighbour] = OrderedDict()

    def obtain(self, address: bytes, now: float) -> Neighbour:
        """
        @return: the neighbour of an address, which is asked for if it is new.
        """
        neighbour = self.entries.get(address)
        if neighbour is None:
            neighbour = self._add(address, State.INCOMPLETE, now)
            self._arm(neighbour, limits.IPOIB_RETRY_SECONDS)
            self._user.solicit(neighbour, isUnicast=False)
        return neighbour

    def gidOf(self, address: bytes) -> int:
        """
        @return: the GID of the port that has an address; 0 if that is not known.
        """
        neighbour = self.entries.get(address)
        return wire.parseHardwareAddress(neighbour.hardware)[2] if neighbour and neighbour.hardware else 0

    def introduce(self, address: bytes, hardware: bytes, now: float) -> Neighbour:
        """
        A neighbour that may not be known has asked for this interface, and so tells its own address.

        @return: it.
        """
        neighbour = self.entries.get(address)
        if neighbour is None:
            neighbour = self._add(address, State.STALE, now)
            # Invented senders replace each other, and no neighbour that is in use.
            self.entries.move_to_end(address, last=False)
            neighbour.hardware = hardware
            self._arm(neighbour, limits.IPOIB_STALE_SECONDS)
            self._user.learned(neighbour)
        else:
            self.told(neighbour, hardware, isAnswer=False)
        return neighbour

    def told(self, neighbour: Neighbour, hardware: bytes, isAnswer: bool) -> None:
        """
        Somebody said that a neighbour has a hardware address.

        @param isAnswer: whether it was said to this interface alone, as if it had asked.
        """
        if isAnswer and neighbour.state in ASKED:
            self.input(neighbour, Input.ANSWER, hardware)
        elif hardware != neighbour.hardware:
            self.input(neighbour, Input.CHANGE, hardware)

    def input(self, neighbour: Neighbour, event: Input, hardware: bytes = b"") -> None:
        """
        Something happened to a neighbour.

        @param hardware: of an answer or a change.
        """
        # Not TRANSITIONS[]: each packet comes here, and an ignored one is to cost no call.
        transition = TRANSITIONS.get((neighbour.state, event))
        if transition is None:
            return
        state, action = transition
        if state is not None:
            neighbour.state = state
        self._do(neighbour, action, hardware)

    def _do(self, neighbour: Neighbour, action: Action, hardware: bytes) -> None:
        user = self._user
        if action in (Action.FAIL, Action.FORGET):
            self.forget(neighbour, isFailed=action is Action.FAIL)
            return
        self._arm(neighbour, _SECONDS[neighbour.state])
        if action in (Action.LEARN, Action.LEARN_AND_PROBE):
            neighbour.hardware = hardware
            if neighbour.state is not State.STALE:
                self.entries.move_to_end(neighbour.address)
            user.learned(neighbour)
        else:
            user.stateChanged(neighbour)
        neighbour.tries = neighbour.tries + 1 if action is Action.SOLICIT else 0
        if action is not Action.LEARN and action is not Action.REST:
            user.solicit(neighbour, isUnicast=action is not Action.SOLICIT)

    def forget(self, neighbour: Neighbour, isFailed: bool = False) -> None:
        """
        Take a neighbour out of the table.
        """
        if neighbour.timer is not None:
            neighbour.timer.cancel()
        del self.entries[neighbour.address]
        self._user.forgotten(neighbour, isFailed)

    def _add(self, address: bytes, state: State, now: float) -> Neighbour:
        entries = self.entries
        if len(entries) >= limits.IPOIB_NEIGHBOURS:
            self.forget(next(iter(entries.values())))
        neighbour = entries[address] = Neighbour(address, state, now)
        return neighbour

    def _arm(self, neighbour: Neighbour, seconds: float) -> None:
        if neighbour.timer is not None:
            neighbour.timer.cancel()
        started = self._clock()
        neighbour.timer = self._timers.start(seconds, lambda: self._expired(neighbour, started))

    def _expired(self, neighbour: Neighbour, started: float) -> None:
        isUsed = neighbour.used > started
        recently = self._clock() - _HEARD_SECONDS
        if isUsed and neighbour.state in _HEARD and self._user.isHeard(neighbour, recently):
            # RFC 4861 section 7.3.1: what passes confirms it, also where requests are lost for all that does.
            self.input(neighbour, Input.ANSWER, neighbour.hardware)
        elif neighbour.state in ASKED:
            isLast = neighbour.tries + 1 >= limits.IPOIB_TRIES
            self.input(neighbour, Input.UNANSWERED if isLast else Input.DUE)
        else:
            self.input(neighbour, Input.DUE if isUsed else Input.UNUSED)


#: States in which a neighbour that was heard so short a time ago needs no request.
_HEARD: Final = frozenset((State.REACHABLE, State.PROBE))
_HEARD_SECONDS: Final = limits.IPOIB_REACHABLE_SECONDS / 4
#: How long each state lasts.
_SECONDS: Final = {
    State.INCOMPLETE: limits.IPOIB_RETRY_SECONDS,
    State.REACHABLE: limits.IPOIB_REACHABLE_SECONDS,
    State.STALE: limits.IPOIB_STALE_SECONDS,
    State.PROBE: limits.IPOIB_RETRY_SECONDS,
}


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
            self._sendARP(peer, wire.ARPOperation.REQUEST, source, wire.NO_HARDWARE, target)
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
                self._sendARP(None, wire.ARPOperation.REQUEST, address, wire.NO_HARDWARE, address)
            else:
                message = NeighbourMessage(address, ALL_NODES, address, self.hardware, False, isOverride=True)
                self._sendND(None, message)

    def _sendARP(
        self, peer: Peer | None, operation: wire.ARPOperation, sender: bytes, hardware: bytes, target: bytes
    ) -> None:
        frame = wire.ARP_HEADER + wire.ARPPacket(operation, self.hardware, sender, hardware, target).pack()
        if peer is None:
            self._user.broadcast(frame)
        else:
            self._user.request(peer, frame)

    def _sendND(self, peer: Peer | None, message: NeighbourMessage) -> None:
        frame = wire.IPV6_HEADER + message.pack()
        if peer is None:
            self._user.multicast(message.destination, frame)
        else:
            self._user.request(peer, frame)

    # -- hearing

    def arpReceived(self, sourceGID: int, buffer: wire.Buffer, start: int, stop: int, now: float) -> None:
        """
        An ARP packet arrived.

        @param sourceGID: the port that has sent it; 0 if that is not known.
        """
        try:
            packet = wire.ARPPacket.parse(buffer, start, stop)
        except WireError:
            self._user.count("arp_malformed")
            return
        sender, target = packet.sender, packet.target
        if not self._isForeign(sender, packet.senderHardware, sourceGID, "arp_malformed"):
            return
        isRequest = packet.operation == wire.ARPOperation.REQUEST
        if not isRequest or target not in self.routes.own:
            isAnswer = packet.operation == wire.ARPOperation.REPLY and target in self.routes.own
            self._learn(sender, packet.senderHardware, isAnswer)
        elif sender == _NO_ADDRESS or self.routes.isOnLink(sender):
            # RFC 5227 section 1.1: who asks whether an address is in use has none, but a hardware address to
            # be answered at.  All those who do are one neighbour, which nothing is sent to.
            peer = self._neighbours.introduce(sender, packet.senderHardware, now).peer
            self._sendARP(peer, wire.ARPOperation.REPLY, target, packet.senderHardware, sender)

    def messageReceived(self, sourceGID: int, buffer: wire.Buffer, start: int, stop: int, now: float) -> None:
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
            _, qpn, gid = wire.parseHardwareAddress(hardware)
            if gid == self._gid:
                fault = "own_source"
            elif not _LEAST_QPN <= qpn < wire.GROUP_QPN or not gid or isMulticast(gid):
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
