"""
The neighbours of an interface: which hardware address an IP address has, by ARP and neighbour discovery
alike.

States are those of RFC 4861 section 7.3.2 without DELAY.  A neighbour in use is confirmed again and again,
first by a request to itself and then by one to all: a peer that was restarted has another queue pair, and
nothing else tells that packets to the old one are lost.  Packets go on to a neighbour while it is confirmed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final

from attrs import define, field

from twisted_ib import limits
from twisted_ib.hca.base.machine import Machine, ignored
from twisted_ib.ipoib.protocol.wire import parseHardwareAddress

if TYPE_CHECKING:
    from twisted_ib.hca.base.timers import Timer, Timers
    from twisted_ib.ipoib.protocol import machine
    from twisted_ib.ipoib.protocol.peers import Peer


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
        return parseHardwareAddress(neighbour.hardware)[2] if neighbour and neighbour.hardware else 0

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
