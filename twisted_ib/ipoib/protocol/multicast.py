"""
The multicast groups of an interface: those that it receives from, and those that it only sends to.

The broadcast group comes first: it must exist, and its values are those that all other groups are made with
(RFC 4391 section 10, Linux C{ipoib_multicast.c}).  A group that is only sent to is joined at the first
packet, and left when it is not used.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from twisted_ib import limits
from twisted_ib.errors import ResourceLimitError
from twisted_ib.hca.base.machine import Machine, ignored

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted_ib.hca.base.timers import Timer, Timers
    from twisted_ib.ipoib.protocol import machine
    from twisted_ib.ipoib.protocol.interfaces import Group, IMachineDriver


class GroupState(Enum):
    """
    The states of a membership.
    """

    #: The broadcast group is not joined yet.
    WAITING = auto()
    JOINING = auto()
    JOINED = auto()
    #: It could not be joined, and is joined again later: where it is received from, without a packet.
    FAILED = auto()


class GroupInput(Enum):
    """
    The inputs of a membership.
    """

    #: The broadcast group is joined.
    READY = auto()
    #: The first user wants to receive, and the membership was to send only.
    WANTED = auto()
    JOINED = auto()
    FAILED = auto()
    #: It may be joined again.
    EXPIRED = auto()


class GroupAction(Enum):
    """
    The actions of a membership.
    """

    JOIN = auto()
    #: Send what waits.
    SEND = auto()
    #: Drop what waits, and try again later.
    RETRY = auto()


_S, _I, _A = GroupState, GroupInput, GroupAction
#: An input that is not here changes nothing.
GROUP_TRANSITIONS: Final = Machine[GroupState, GroupInput, tuple[GroupState, GroupAction] | None](
    {
        (_S.WAITING, _I.READY): (_S.JOINING, _A.JOIN),
        (_S.JOINING, _I.WANTED): (_S.JOINING, _A.JOIN),
        (_S.JOINING, _I.JOINED): (_S.JOINED, _A.SEND),
        (_S.JOINING, _I.FAILED): (_S.FAILED, _A.RETRY),
        (_S.JOINED, _I.WANTED): (_S.JOINING, _A.JOIN),
        # Its values have changed: a subnet manager was restarted.
        (_S.JOINED, _I.JOINED): (_S.JOINED, _A.SEND),
        (_S.JOINED, _I.FAILED): (_S.FAILED, _A.RETRY),
        (_S.FAILED, _I.WANTED): (_S.JOINING, _A.JOIN),
        # The client of subnet administration tries again too.
        (_S.FAILED, _I.JOINED): (_S.JOINED, _A.SEND),
        (_S.FAILED, _I.EXPIRED): (_S.JOINING, _A.JOIN),
    },
    unlisted=ignored,
)


class Membership:
    """
    The membership of one group.

    @ivar users: how many want to receive; without one it is to send only.
    @ivar group: as it was joined; L{None} while it is not.
    @ivar waiting: frames that are sent when it is.
    @ivar used: when the last packet was sent.
    """

    __slots__ = ("backoff", "group", "mgid", "state", "timer", "used", "users", "waiting")

    def __init__(self, mgid: int, now: float) -> None:
        self.mgid = mgid
        self.users = 0
        self.state = GroupState.WAITING
        self.group: Group | None = None
        self.waiting: list[bytes] = []
        self.used = now
        self.backoff = limits.IPOIB_BACKOFF_LEAST
        #: Runs in FAILED until it may be joined again, and in JOINED of a group that is only sent to.
        self.timer: Timer | None = None


class Groups:
    """
    The memberships of one interface.

    @ivar broadcast: that of the broadcast group.
    """

    def __init__(
        self,
        user: machine.Machine,
        driver: IMachineDriver,
        timers: Timers,
        clock: Callable[[], float],
        broadcast: int,
    ) -> None:
        """
        @param broadcast: the MGID of the broadcast group.
        """
        self._user, self._driver, self._timers, self._clock = user, driver, timers, clock
        self.broadcast = Membership(broadcast, clock())
        self.broadcast.users = 1
        self._entries: OrderedDict[int, Membership] = OrderedDict(((broadcast, self.broadcast),))

    def __len__(self) -> int:
        return len(self._entries)

    def begin(self) -> None:
        """
        Join the broadcast group.
        """
        self._input(self.broadcast, GroupInput.READY)

    def want(self, mgid: int) -> None:
        """
        Receive from a group.

        @raise ResourceLimitError: there are too many.
        """
        membership = self._obtain(mgid, 0.0)
        if membership is None:
            raise ResourceLimitError(
                f"an IPoIB interface has at most {limits.IPOIB_GROUPS} multicast groups: leave another first"
            )
        membership.users += 1
        if membership.users == 1:
            self._input(membership, GroupInput.WANTED)
            self._begin(membership)

    def unwant(self, mgid: int) -> None:
        """
        Undo one C{want}.
        """
        membership = self._entries.get(mgid)
        if membership is None or not membership.users or membership is self.broadcast:
            return
        membership.users -= 1
        if not membership.users:
            self._leave(membership)

    def obtain(self, mgid: int, now: float) -> Membership | None:
        """
        @return: the membership to send to a group; L{None} if there are too many.
        """
        membership = self._obtain(mgid, limits.IPOIB_GROUP_SECONDS)
        if membership is not None:
            membership.used = now
            self._entries.move_to_end(mgid)
            self._begin(membership)
        return membership

    def _obtain(self, mgid: int, seconds: float) -> Membership | None:
        entries = self._entries
        membership = entries.get(mgid)
        if membership is None:
            if len(entries) >= limits.IPOIB_GROUPS:
                oldest = next((each for each in entries.values() if not each.users), None)
                # Each packet to another group would be a join and a leave.
                if oldest is None or oldest.used > self._clock() - seconds:
                    return None
                self._leave(oldest)
            membership = entries[mgid] = Membership(mgid, self._clock())
        return membership

    def _begin(self, membership: Membership) -> None:
        if membership.state is GroupState.FAILED and membership.timer is None:
            self._input(membership, GroupInput.EXPIRED)
        elif self.broadcast.group is not None:
            self._input(membership, GroupInput.READY)

    def joined(self, mgid: int, group: Group) -> None:
        """
        A group is joined.
        """
        membership = self._entries.get(mgid)
        if membership is not None:
            membership.group = group
            self._input(membership, GroupInput.JOINED)

    def failed(self, mgid: int, error: Exception) -> None:
        """
        A group could not be joined, or was lost.
        """
        membership = self._entries.get(mgid)
        if membership is not None:
            membership.group = None
            self._input(membership, GroupInput.FAILED)
            if membership is self.broadcast:
                self._driver.interfaceFailed(error)

    def _input(self, membership: Membership, event: GroupInput) -> None:
        transition = GROUP_TRANSITIONS[membership.state, event]
        if transition is None:
            return
        membership.state, action = transition
        self._cancel(membership)
        if action is GroupAction.JOIN:
            isBroadcast = membership is self.broadcast
            template = None if isBroadcast else self.broadcast.group
            self._driver.join(membership.mgid, not membership.users, template)
        elif action is GroupAction.SEND:
            membership.backoff = limits.IPOIB_BACKOFF_LEAST
            if not membership.users:
                self._watch(membership, limits.IPOIB_IDLE_SECONDS)
            self._user.groupJoined(membership)
            if membership is self.broadcast:
                for each in list(self._entries.values()):
                    self._input(each, GroupInput.READY)
        else:
            for _ in membership.waiting:
                self._driver.count("group_failed")
            membership.waiting.clear()
            membership.timer = self._timers.start(membership.backoff, lambda: self._expired(membership))
            membership.backoff = min(2 * membership.backoff, limits.IPOIB_BACKOFF_SECONDS)

    def _expired(self, membership: Membership) -> None:
        membership.timer = None
        # A group that is only sent to waits for the next packet.
        if membership.users:
            self._input(membership, GroupInput.EXPIRED)

    def _watch(self, membership: Membership, seconds: float) -> None:
        membership.timer = self._timers.start(seconds, lambda: self._unused(membership))

    def _unused(self, membership: Membership) -> None:
        membership.timer = None
        left = membership.used + limits.IPOIB_IDLE_SECONDS - self._clock()
        if left > 0:
            self._watch(membership, left)
        else:
            self._leave(membership)

    def _leave(self, membership: Membership) -> None:
        self._cancel(membership)
        membership.group = None
        del self._entries[membership.mgid]
        if membership.state is not GroupState.WAITING:
            self._driver.leave(membership.mgid)

    def _cancel(self, membership: Membership) -> None:
        if membership.timer is not None:
            membership.timer.cancel()
            membership.timer = None

    def close(self) -> None:
        """
        Leave all.
        """
        for each in reversed(list(self._entries.values())):
            self._leave(each)
