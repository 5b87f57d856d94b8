"""
Tests of L{twisted_ib.ipoib.protocol.multicast}.
"""

from __future__ import annotations

from typing import Any

from tests.hca.base.machines import MachineTestsMixin
from tests.ipoib.protocol.timed import TimedTestCase
from twisted_ib import limits
from twisted_ib.errors import ResourceLimitError
from twisted_ib.ipoib.protocol.interfaces import Group
from twisted_ib.ipoib.protocol.multicast import (
    GROUP_TRANSITIONS,
    GroupAction,
    GroupInput,
    Groups,
    GroupState,
    Membership,
)

BROADCAST, MGID = 0xFF12 << 112, 0xFF12 << 112 | 5
ERROR = RuntimeError("no group")


class Driver:
    """
    Records calls, and what the groups ask for.
    """

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def join(self, mgid: int, isSendOnly: bool, template: Group | None) -> None:
        self.calls.append(("join", mgid & 0xFF, isSendOnly, template and template.qKey))

    def leave(self, mgid: int) -> None:
        self.calls.append(("leave", mgid & 0xFF))

    def interfaceFailed(self, error: Exception) -> None:
        self.calls.append(error)

    def count(self, name: str) -> None:
        self.calls.append(name)

    def groupJoined(self, membership: Membership) -> None:
        self.calls.append(("joined", membership.mgid & 0xFF))


_S, _I = GroupState, GroupInput
JOIN, JOINED = ("join", 5, True, 7), ("joined", 5)

#: Each state of a group that is sent to with each input: the state after it, and what is done.
MATRIX: dict[GroupState, dict[GroupInput, tuple[GroupState, list[Any]]]] = {
    _S.WAITING: {
        _I.READY: (_S.JOINING, [JOIN]),
        _I.WANTED: (_S.WAITING, []),
        _I.JOINED: (_S.WAITING, []),
        _I.FAILED: (_S.WAITING, []),
        _I.EXPIRED: (_S.WAITING, []),
    },
    _S.JOINING: {
        _I.READY: (_S.JOINING, []),
        _I.WANTED: (_S.JOINING, [JOIN]),
        _I.JOINED: (_S.JOINED, [JOINED]),
        _I.FAILED: (_S.FAILED, ["group_failed"]),
        _I.EXPIRED: (_S.JOINING, []),
    },
    _S.JOINED: {
        _I.READY: (_S.JOINED, []),
        _I.WANTED: (_S.JOINING, [JOIN]),
        _I.JOINED: (_S.JOINED, [JOINED]),
        _I.FAILED: (_S.FAILED, ["group_failed"]),
        _I.EXPIRED: (_S.JOINED, []),
    },
    _S.FAILED: {
        _I.READY: (_S.FAILED, []),
        _I.WANTED: (_S.JOINING, [JOIN]),
        _I.JOINED: (_S.JOINED, [JOINED]),
        _I.FAILED: (_S.FAILED, []),
        _I.EXPIRED: (_S.JOINING, [JOIN]),
    },
}


class GroupsTestCase(TimedTestCase):
    """
    The groups of one interface.
    """

    def setUp(self) -> None:
        """
        The broadcast group is not joined.
        """
        super().setUp()
        self.driver = self.user = Driver()
        self.groups = Groups(self.driver, self.driver, self.timers, self.clock, BROADCAST)

    def join(self, mgid: int = BROADCAST) -> None:
        """
        A group is joined.
        """
        self.groups.joined(mgid, Group(mgid, 0xC000, 7, 2048))

    def up(self) -> None:
        """
        The broadcast group is joined.
        """
        self.groups.begin()
        self.join()
        self.calls()

    def inState(self, state: GroupState) -> Membership:
        """
        @return: a group that is sent to, in a state.
        """
        if state is not _S.WAITING:
            self.up()
        membership = self.groups.obtain(MGID, self.now)
        assert membership is not None
        membership.waiting.append(b"frame")
        if state is _S.JOINED:
            self.join(MGID)
        if state is _S.FAILED:
            self.groups.failed(MGID, ERROR)
        self.assertIs(membership.state, state)
        self.calls()
        return membership


class TransitionTests(MachineTestsMixin, GroupsTestCase):
    """
    Each state with each input.
    """

    machine = GROUP_TRANSITIONS
    stateType, inputType, actionType = GroupState, GroupInput, GroupAction
    begins = (GroupState.WAITING,)

    def check(self, state: GroupState, event: GroupInput) -> None:
        """
        A membership has the state after the input, and does what belongs to it.
        """
        after, calls = MATRIX[state][event]
        # WAITING ends only when there is a template.
        membership = self.inState(state)
        if state is _S.WAITING:
            self.groups.broadcast.group = Group(BROADCAST, 0xC000, 7, 2048)
        self.groups._input(membership, event)
        self.assertEqual(self.calls(), calls, (state, event))
        self.assertIs(membership.state, after, (state, event))
        hasTimer = after in (_S.JOINED, _S.FAILED)
        self.assertEqual(self.timers.deadline() is not None, hasTimer, (state, event))


class BroadcastTests(GroupsTestCase):
    """
    The broadcast group.
    """

    def test_first(self) -> None:
        """
        It is joined without a template; the others when it is, with its values.
        """
        self.groups.want(MGID)
        self.groups.obtain(MGID + 1, self.now)
        self.assertEqual(self.calls(), [])
        self.groups.begin()
        self.assertEqual(self.calls(), [("join", 0, False, None)])
        self.join()
        self.assertEqual(self.calls(), [("joined", 0), ("join", 5, False, 7), ("join", 6, True, 7)])

    def test_failed(self) -> None:
        """
        It is joined again after 1, 2, 4 ... seconds, at most 16, and after a success after 1 second.
        """
        self.groups.begin()
        self.calls()
        for seconds in (1, 2, 4, 8, 16, 16):
            self.groups.failed(BROADCAST, ERROR)
            self.assertEqual(self.calls(), [ERROR])
            self.advance(seconds - 0.01)
            self.assertEqual(self.calls(), [])
            self.advance(0.01)
            self.assertEqual(self.calls(), [("join", 0, False, None)])
        self.join()
        self.groups.failed(BROADCAST, ERROR)
        self.calls()
        self.advance(1.0)
        self.assertEqual(self.calls(), [("join", 0, False, None)])

    def test_changed(self) -> None:
        """
        Another subnet manager has given it other values: those are told, and used as a template.
        """
        self.up()
        self.groups.joined(BROADCAST, Group(BROADCAST, 0xC001, 8, 2048))
        self.assertEqual(self.calls(), [("joined", 0)])
        self.groups.want(MGID)
        self.assertEqual(self.calls(), [("join", 5, False, 8)])


class UseTests(GroupsTestCase):
    """
    Users of groups.
    """

    def test_counted(self) -> None:
        """
        A group is joined for the first user, and left after the last.
        """
        self.up()
        self.groups.want(MGID)
        self.groups.want(MGID)
        self.join(MGID)
        self.assertEqual(self.calls(), [("join", 5, False, 7), JOINED])
        self.groups.unwant(MGID)
        self.assertEqual(self.calls(), [])
        self.groups.unwant(MGID)
        self.groups.unwant(MGID)
        self.groups.unwant(BROADCAST)
        self.assertEqual(self.calls(), [("leave", 5)])
        self.assertEqual(len(self.groups), 1)

    def test_upgraded(self) -> None:
        """
        A group that was only sent to becomes one to receive from, and is sent to meanwhile.
        """
        membership = self.inState(_S.JOINED)
        self.groups.want(MGID)
        self.assertEqual(self.calls(), [("join", 5, False, 7)])
        self.assertIsNotNone(membership.group)

    def test_retried(self) -> None:
        """
        A group that cannot be joined is tried again: by itself if it is wanted, else at the next packet.
        """
        self.up()
        self.groups.want(MGID)
        self.groups.obtain(MGID + 1, self.now)
        self.groups.failed(MGID, ERROR)
        self.groups.failed(MGID + 1, ERROR)
        self.calls()
        self.groups.obtain(MGID + 1, self.now)
        self.assertEqual(self.calls(), [])
        self.advance(1.0)
        self.assertEqual(self.calls(), [("join", 5, False, 7)])
        self.groups.obtain(MGID + 1, self.now)
        self.assertEqual(self.calls(), [("join", 6, True, 7)])

    def test_unused(self) -> None:
        """
        A group that is only sent to is left so long after the last packet.
        """
        self.inState(_S.JOINED)
        self.advance(500.0)
        self.groups.obtain(MGID, self.now)
        self.advance(limits.IPOIB_IDLE_SECONDS - 0.01)
        self.assertEqual(self.calls(), [])
        self.advance(0.02)
        self.assertEqual(self.calls(), [("leave", 5)])

    def test_late(self) -> None:
        """
        Answers for groups that were left are ignored.
        """
        self.inState(_S.JOINING)
        self.groups._leave(self.groups._entries[MGID])
        self.calls()
        self.join(MGID)
        self.groups.failed(MGID, ERROR)
        self.assertEqual(self.calls(), [])

    def test_bound(self) -> None:
        """
        A group that was only sent to, and not lately, is left for another; when all are received from there
        is no room.
        """
        self.up()
        for number in range(limits.IPOIB_GROUPS - 2):
            self.groups.want(MGID + 1 + number)
        self.groups.obtain(MGID, self.now)
        self.calls()
        self.advance(limits.IPOIB_GROUP_SECONDS - 0.01)
        self.assertIsNone(self.groups.obtain(MGID - 1, self.now))
        self.advance(0.01)
        self.groups.obtain(MGID - 1, self.now)
        self.assertEqual(self.calls(), [("leave", 5), ("join", 4, True, 7)])
        self.groups.want(MGID - 2)
        self.assertEqual(self.calls(), [("leave", 4), ("join", 3, False, 7)])
        self.assertEqual(len(self.groups), limits.IPOIB_GROUPS)
        self.assertIsNone(self.groups.obtain(MGID, self.now))
        self.assertRaises(ResourceLimitError, self.groups.want, MGID)

    def test_closed(self) -> None:
        """
        All are left, the broadcast group last.
        """
        self.inState(_S.JOINED)
        self.groups.close()
        self.assertEqual(self.calls(), [("leave", 5), ("leave", 0)])
        self.assertIsNone(self.timers.deadline())
