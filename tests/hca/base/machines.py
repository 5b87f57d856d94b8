"""
What is so of every state machine that is a table.
"""

from __future__ import annotations

from enum import Enum
from itertools import product
from typing import Any, ClassVar

from twisted_ib.hca.base.machine import Machine


class MachineTestsMixin:
    """
    All states with all inputs.

    @cvar machine: the table.
    @cvar stateType: of its states; C{inputType} and C{actionType} likewise.
    @cvar begins: the states that nothing leads to.
    @cvar ends: what stands for the end, beside states.
    @cvar others: the actions that the table does not have; C{unused} likewise of inputs.
    """

    machine: ClassVar[Machine[Any, Any, Any]]
    stateType: ClassVar[type[Enum]]
    inputType: ClassVar[type[Enum]]
    actionType: ClassVar[type[Enum] | None] = None
    begins: ClassVar[tuple[Enum, ...]] = ()
    ends: ClassVar[tuple[None, ...]] = ()
    others: ClassVar[tuple[Enum, ...]] = ()
    unused: ClassVar[tuple[Enum, ...]] = ()

    def split(self, follows: Any) -> tuple[Any, Any]:
        """
        @return: the next state, and the action.
        """
        return follows if isinstance(follows, tuple) else (follows, None)

    def check(self: Any, state: Any, given: Any) -> None:
        """
        Give an input in a state, and check what follows; by default as the table has it.
        """
        follows = self.machine[state, given]
        self.assertEqual(follows is None, (state, given) not in self.machine, (state, given))

    def test_everyStateWithEveryInput(self: Any) -> None:
        """
        What follows on each pair, which is listed and leads to a state, or not; there are no others.
        """
        pairs = list(product(self.stateType, self.inputType))
        self.assertLessEqual(set(self.machine), set(pairs))
        for (state, _), follows in self.machine.items():
            self.assertIn(self.split(follows)[0], (*self.stateType, *self.ends), state)
        for state, given in pairs:
            self.setUp()
            self.check(state, given)
        self.assertLessEqual(set(self.machine), set(pairs))

    def test_everyStateIsReached(self: Any) -> None:
        """
        Every state but those that machines begin with follows on another.
        """
        reached = {
            self.split(follows)[0]
            for (state, _), follows in self.machine.items()
            if self.split(follows)[0] is not state
        }
        self.assertEqual(set(self.stateType) - reached, set(self.begins))

    def test_everyInputCounts(self: Any) -> None:
        """
        Every input is listed in some state, but for those that no table decides.
        """
        found = {given for _, given in self.machine}
        self.assertEqual(set(self.inputType) - found, set(self.unused))

    def test_everyActionIsDone(self: Any) -> None:
        """
        Every action follows on something.
        """
        if self.actionType is not None:
            found = {self.split(follows)[1] for follows in self.machine.values()}
            self.assertEqual(set(self.actionType) - found, set(self.others))
