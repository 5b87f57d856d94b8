"""
Tests of L{twisted_ib.hca.base.machine}.
"""

from __future__ import annotations

from enum import Enum, auto

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.base.machines import MachineTestsMixin
from twisted_ib.hca.base.machine import Machine, ignored, listed


class State(Enum):
    """
    Of a door.
    """

    OPEN = auto()
    SHUT = auto()


class Input(Enum):
    """
    What is done to it.
    """

    PUSH = auto()
    PULL = auto()


TABLE = listed({State.OPEN: {Input.PULL: State.SHUT}, State.SHUT: {Input.PUSH: State.OPEN}})


class DoorTests(MachineTestsMixin, SynchronousTestCase):
    """
    A machine that ignores what is not in its table.
    """

    machine = Machine[State, Input, "State | None"](TABLE, unlisted=ignored)
    stateType, inputType = State, Input

    def test_listed(self) -> None:
        """
        A table by states is one by pairs.
        """
        expected = {(State.OPEN, Input.PULL): State.SHUT, (State.SHUT, Input.PUSH): State.OPEN}
        self.assertEqual(dict(self.machine), expected)

    def test_unlisted(self) -> None:
        """
        What follows on other pairs, or an error; looking them up adds nothing.
        """
        machine = Machine(TABLE, unlisted=lambda state, given: state)
        self.assertIs(machine[State.OPEN, Input.PUSH], State.OPEN)
        self.assertRaises(KeyError, lambda: Machine(TABLE)[State.OPEN, Input.PUSH])
        self.assertEqual(len(machine), 2)
