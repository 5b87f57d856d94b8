"""
Tests of L{twisted_ib.subnet.sm.election}.
"""

from __future__ import annotations

from itertools import product
from typing import ClassVar

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.base.machines import MachineTestsMixin
from twisted_ib.hca.mad.attributes.node import SMInfo, SMState
from twisted_ib.limits import SM_POLLS
from twisted_ib.subnet.sm.election import TRANSITIONS, Control, Election

GUID, LOWER, HIGHER = 0x50, 0x10, 0x90
STATES = SMState.NOT_ACTIVE, SMState.DISCOVERING, SMState.STANDBY, SMState.MASTER


def election(state: SMState, priority: int = 5) -> Election:
    """
    @return: one in a state.
    """
    made = Election(priority, GUID)
    made.state = state
    return made


def other(state: SMState, priority: int = 5, guid: int = HIGHER) -> SMInfo:
    """
    @return: another one's SMInfo.
    """
    return SMInfo(smInfoGuid=guid, smPriority=priority, smState=state)


class RankTests(SynchronousTestCase):
    """
    Which of two goes before the other.
    """

    def test_higher(self) -> None:
        """
        The one with the higher priority; of two with the same the one with the lower GUID.
        """
        mine = election(SMState.MASTER)
        found = {
            (priority, guid): mine.isHigher(other(SMState.STANDBY, priority, guid))
            for priority, guid in product((4, 5, 6), (LOWER, HIGHER))
        }
        expected = dict.fromkeys(found, False) | dict.fromkeys([(6, LOWER), (6, HIGHER), (5, LOWER)], True)
        self.assertEqual(found, expected)


class DiscoveredTests(SynchronousTestCase):
    """
    The states that follow a sweep that has found others.
    """

    def test_alone(self) -> None:
        """
        The only one is the master; so is one that has found its own port, and those that are not active.
        """
        for found in ([], [other(SMState.NOT_ACTIVE, 15)], [other(SMState.MASTER, 15, GUID)]):
            mine = election(SMState.DISCOVERING)
            mine.discovered(found)
            self.assertEqual(mine.state, SMState.MASTER)

    def test_discovering(self) -> None:
        """
        A master, and whoever goes before it, make it a standby, which polls the master, or else the first.
        """
        for state, priority in product(STATES, (4, 6)):
            mine = election(SMState.DISCOVERING)
            mine.discovered([other(state, priority)])
            stands = state is SMState.MASTER or (state is not SMState.NOT_ACTIVE and priority == 6)
            expected = (SMState.STANDBY, HIGHER) if stands else (SMState.MASTER, 0)
            self.assertEqual((mine.state, mine.master), expected, (state, priority))
        mine = election(SMState.DISCOVERING)
        mine.discovered(
            [other(SMState.STANDBY, 9, 0x20), other(SMState.MASTER, 0, 0x30), other(SMState.STANDBY, 8, 0x40)]
        )
        self.assertEqual((mine.state, mine.master), (SMState.STANDBY, 0x30))

    def test_master(self) -> None:
        """
        A master hands over to a standby or master that goes before it, of several to the first, and stays one
        until that acknowledges it.
        """
        for state, priority in product(STATES, (4, 6)):
            mine = election(SMState.MASTER)
            mine.discovered([other(state, priority)])
            successor = HIGHER if priority == 6 and state in (SMState.STANDBY, SMState.MASTER) else 0
            self.assertEqual((mine.state, mine.successor), (SMState.MASTER, successor), (state, priority))
        mine.discovered([])
        self.assertEqual(mine.successor, 0)

    def test_unmoved(self) -> None:
        """
        A standby waits, and one that is not active does nothing.
        """
        for state in (SMState.STANDBY, SMState.NOT_ACTIVE):
            mine = election(state)
            mine.discovered([other(SMState.MASTER, 15)])
            self.assertEqual(mine.state, state)


class ControlledTests(MachineTestsMixin, SynchronousTestCase):
    """
    Sets of SMInfo.
    """

    machine = TRANSITIONS
    stateType, inputType = SMState, Control
    #: What follows each Set.
    expected: ClassVar = {
        (SMState.DISCOVERING, Control.HANDOVER): SMState.DISCOVERING,
        (SMState.STANDBY, Control.HANDOVER): SMState.MASTER,
        (SMState.STANDBY, Control.DISABLE): SMState.NOT_ACTIVE,
        (SMState.STANDBY, Control.DISCOVER): SMState.DISCOVERING,
        (SMState.NOT_ACTIVE, Control.STANDBY): SMState.STANDBY,
        (SMState.MASTER, Control.HANDOVER): SMState.MASTER,
        (SMState.MASTER, Control.ACKNOWLEDGE): SMState.STANDBY,
    }

    def check(self, state: SMState, given: int) -> None:
        """
        A Set is valid and has its effect, or changes nothing.
        """
        mine = election(state)
        mine.successor = HIGHER if state is SMState.MASTER else 0
        following = self.expected.get((state, given))
        self.assertEqual(mine.controlled(given, HIGHER), following is not None, (state, given))
        self.assertEqual(mine.state, state if following is None else following, (state, given))

    def test_unknown(self) -> None:
        """
        Numbers that are no control.
        """
        for state, given in product(STATES, (0, 6, 0xFFFFFFFF)):
            self.check(state, given)

    def test_acknowledged(self) -> None:
        """
        Only the one that it was handed over to acknowledges that; it is polled from then on.
        """
        mine = election(SMState.MASTER)
        self.assertFalse(mine.controlled(Control.ACKNOWLEDGE, HIGHER))
        mine.discovered([other(SMState.STANDBY, 6)])
        self.assertFalse(mine.controlled(Control.ACKNOWLEDGE, LOWER))
        self.assertEqual(mine.state, SMState.MASTER)
        self.assertTrue(mine.controlled(Control.ACKNOWLEDGE, HIGHER))
        self.assertEqual((mine.state, mine.master, mine.successor), (SMState.STANDBY, HIGHER, 0))


class PolledTests(SynchronousTestCase):
    """
    A standby asks the master.
    """

    def standby(self) -> Election:
        """
        @return: one that has found a master.
        """
        mine = election(SMState.DISCOVERING)
        mine.discovered([other(SMState.MASTER)])
        return mine

    def test_missed(self) -> None:
        """
        After so many polls without an answer of the master it discovers anew; an answer between them counts.
        """
        bad = (None, other(SMState.STANDBY), other(SMState.DISCOVERING), other(SMState.MASTER, 5, LOWER))
        for answer in bad:
            mine = self.standby()
            for _ in range(SM_POLLS - 1):
                mine.polled(answer)
            self.assertEqual(mine.state, SMState.STANDBY)
            mine.polled(other(SMState.MASTER))
            for _ in range(SM_POLLS - 1):
                mine.polled(answer)
            self.assertEqual(mine.state, SMState.STANDBY)
            mine.polled(answer)
            self.assertEqual(mine.state, SMState.DISCOVERING)

    def test_notActive(self) -> None:
        """
        A master that was disabled need not be waited for.
        """
        mine = self.standby()
        mine.polled(other(SMState.NOT_ACTIVE))
        self.assertEqual(mine.state, SMState.DISCOVERING)

    def test_late(self) -> None:
        """
        An answer that comes when it is no standby any more changes nothing.
        """
        mine = election(SMState.MASTER)
        for _ in range(SM_POLLS):
            mine.polled(None)
        self.assertEqual(mine.state, SMState.MASTER)
