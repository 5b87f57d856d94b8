"""
Tests of L{twisted_ib.ipoib.protocol.neighbours}.
"""

from __future__ import annotations

from typing import Any

from tests.hca.base.machines import MachineTestsMixin
from tests.ipoib.protocol.timed import TimedTestCase
from twisted_ib import limits
from twisted_ib.ipoib.protocol.neighbours import TRANSITIONS, Action, Input, Neighbour, Neighbours, State

ADDRESS = bytes((10, 9, 0, 2))
OLD, NEW = b"o" * 20, b"n" * 20


class User:
    """
    Records what the table asks for.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.heard = 0.0

    def isHeard(self, neighbour: Neighbour, since: float) -> bool:
        return self.heard > since

    def solicit(self, neighbour: Neighbour, isUnicast: bool) -> None:
        self.calls.append("probe" if isUnicast else "solicit")

    def learned(self, neighbour: Neighbour) -> None:
        self.calls.append(f"learned {neighbour.hardware[:1].decode()}")

    def stateChanged(self, neighbour: Neighbour) -> None:
        self.calls.append(neighbour.state.name)

    def forgotten(self, neighbour: Neighbour, isFailed: bool) -> None:
        self.calls.append("failed" if isFailed else "forgotten")


#: Each state with each input: the state after it, and what is done.
MATRIX: dict[State, dict[Input, tuple[State | None, list[str]]]] = {
    State.INCOMPLETE: {
        Input.SEND: (State.INCOMPLETE, []),
        Input.ANSWER: (State.REACHABLE, ["learned n"]),
        Input.CHANGE: (State.PROBE, ["learned n", "probe"]),
        Input.DOUBT: (State.INCOMPLETE, []),
        Input.UNUSED: (State.INCOMPLETE, []),
        Input.DUE: (State.INCOMPLETE, ["INCOMPLETE", "solicit"]),
        Input.UNANSWERED: (None, ["failed"]),
    },
    State.REACHABLE: {
        Input.SEND: (State.REACHABLE, []),
        Input.ANSWER: (State.REACHABLE, ["learned n"]),
        Input.CHANGE: (State.PROBE, ["learned n", "probe"]),
        Input.DOUBT: (State.PROBE, ["PROBE", "probe"]),
        Input.UNUSED: (State.STALE, ["STALE"]),
        Input.DUE: (State.PROBE, ["PROBE", "probe"]),
        Input.UNANSWERED: (State.REACHABLE, []),
    },
    State.STALE: {
        Input.SEND: (State.PROBE, ["PROBE", "probe"]),
        Input.ANSWER: (State.STALE, []),
        Input.CHANGE: (State.STALE, ["learned n"]),
        Input.DOUBT: (State.STALE, []),
        Input.UNUSED: (None, ["forgotten"]),
        Input.DUE: (State.STALE, []),
        Input.UNANSWERED: (State.STALE, []),
    },
    State.PROBE: {
        Input.SEND: (State.PROBE, []),
        Input.ANSWER: (State.REACHABLE, ["learned n"]),
        Input.CHANGE: (State.PROBE, ["learned n", "probe"]),
        Input.DOUBT: (State.PROBE, []),
        Input.UNUSED: (State.PROBE, []),
        Input.DUE: (State.PROBE, ["PROBE", "solicit"]),
        Input.UNANSWERED: (None, ["failed"]),
    },
}


class NeighboursTestCase(TimedTestCase):
    """
    A table.
    """

    def setUp(self) -> None:
        """
        An empty one.
        """
        super().setUp()
        self.user = User()
        self.table = Neighbours(self.user, self.timers, self.clock)

    def inState(self, state: State) -> Neighbour:
        """
        @return: a neighbour in a state.
        """
        neighbour = self.table.obtain(ADDRESS, self.now)
        if state is not State.INCOMPLETE:
            self.table.input(neighbour, Input.ANSWER, OLD)
        if state is State.STALE:
            self.table.input(neighbour, Input.UNUSED)
        if state is State.PROBE:
            self.table.input(neighbour, Input.DUE)
        self.assertIs(neighbour.state, state)
        self.calls()
        return neighbour


class TransitionTests(MachineTestsMixin, NeighboursTestCase):
    """
    Each state with each input.
    """

    machine = TRANSITIONS
    stateType, inputType, actionType = State, Input, Action
    ends = (None,)
    begins = (State.INCOMPLETE,)

    def check(self, state: State, event: Input) -> None:
        """
        A neighbour has the state after the input, and does what belongs to it; the table has it, or not.
        """
        after, calls = MATRIX[state][event]
        neighbour = self.inState(state)
        self.table.input(neighbour, event, NEW)
        self.assertEqual(self.calls(), calls, (state, event))
        self.assertEqual(ADDRESS in self.table.entries, after is not None, (state, event))
        if after is not None:
            self.assertIs(neighbour.state, after, (state, event))

    def test_timers(self) -> None:
        """
        Each state that is left by itself has one timer, and a forgotten neighbour has none.
        """
        for state in State:
            for event in Input:
                self.setUp()
                neighbour = self.inState(state)
                self.table.input(neighbour, event, NEW)
                if MATRIX[state][event][0] is None:
                    self.assertIsNone(self.timers.deadline(), (state, event))
                else:
                    assert neighbour.timer is not None
                    self.assertEqual(self.timers.deadline(), neighbour.timer.when, (state, event))


class LifeTests(NeighboursTestCase):
    """
    Neighbours over time.
    """

    def test_unanswered(self) -> None:
        """
        All are asked, so many times, and then it has failed.
        """
        self.table.obtain(ADDRESS, self.now)
        self.advance(limits.IPOIB_RETRY_SECONDS * limits.IPOIB_TRIES - 0.01)
        self.assertEqual(self.calls().count("solicit"), limits.IPOIB_TRIES)
        self.advance(0.01)
        self.assertEqual(self.calls(), ["failed"])

    def test_confirmed(self) -> None:
        """
        One that is used is asked alone, then all are, and it fails when nobody answers.
        """
        neighbour = self.inState(State.REACHABLE)
        self.advance(limits.IPOIB_REACHABLE_SECONDS / 2)
        neighbour.used = self.now
        self.advance(limits.IPOIB_REACHABLE_SECONDS / 2)
        self.assertEqual(self.calls(), ["PROBE", "probe"])
        self.advance(limits.IPOIB_RETRY_SECONDS)
        self.assertEqual(self.calls(), ["PROBE", "solicit"])
        self.advance(limits.IPOIB_RETRY_SECONDS * (limits.IPOIB_TRIES - 1))
        calls = self.calls()
        self.assertEqual(calls.count("solicit"), limits.IPOIB_TRIES - 2)
        self.assertEqual(calls[-1], "failed")

    def test_heard(self) -> None:
        """
        One that is used and has just been heard is not asked; if it was asked, that is an answer.
        """
        neighbour = self.inState(State.REACHABLE)
        self.advance(limits.IPOIB_REACHABLE_SECONDS - 0.01)
        neighbour.used = self.user.heard = self.now
        self.advance(0.01)
        self.assertEqual(self.calls(), ["learned o"])
        self.advance(0.5)
        neighbour.used = self.user.heard = self.now
        self.advance(0.5)
        self.assertEqual(self.calls(), ["PROBE", "probe"])
        self.advance(limits.IPOIB_RETRY_SECONDS - 0.01)
        neighbour.used = self.user.heard = self.now
        self.advance(0.01)
        self.assertEqual(self.calls(), ["learned o"])
        self.assertIs(neighbour.state, State.REACHABLE)
        self.advance(limits.IPOIB_REACHABLE_SECONDS - 0.01)
        self.user.heard = self.now
        self.advance(0.01)
        self.assertEqual(self.calls(), ["STALE"])

    def test_unused(self) -> None:
        """
        One that is not used is not asked, and is forgotten.
        """
        self.inState(State.REACHABLE)
        self.advance(limits.IPOIB_REACHABLE_SECONDS)
        self.assertEqual(self.calls(), ["STALE"])
        self.advance(limits.IPOIB_STALE_SECONDS)
        self.assertEqual(self.calls(), ["forgotten"])
        self.assertEqual(len(self.table.entries), 0)

    def test_answerUnasked(self) -> None:
        """
        An answer counts as one where it was asked for; else it is a claim.
        """
        for state, calls in (
            (State.INCOMPLETE, ["learned n"]),
            (State.PROBE, ["learned n"]),
            (State.REACHABLE, ["learned n", "probe"]),
            (State.STALE, ["learned n"]),
        ):
            self.setUp()
            self.table.told(self.inState(state), NEW, isAnswer=True)
            self.assertEqual(self.calls(), calls, state)

    def test_same(self) -> None:
        """
        A claim that says what is known does nothing, and an answer of that kind confirms it.
        """
        for state in (State.REACHABLE, State.STALE, State.PROBE):
            self.setUp()
            neighbour = self.inState(state)
            self.table.told(neighbour, OLD, isAnswer=False)
            self.assertEqual(self.calls(), [], state)
        self.table.told(neighbour, OLD, isAnswer=True)
        self.assertEqual(self.calls(), ["learned o"])

    def test_introduced(self) -> None:
        """
        Who asks for this interface is known, though not as reachable.
        """
        neighbour = self.table.introduce(ADDRESS, OLD, self.now)
        self.assertIs(neighbour.state, State.STALE)
        self.assertEqual(self.calls(), ["learned o"])
        self.table.introduce(ADDRESS, NEW, self.now)
        self.assertEqual(self.calls(), ["learned n"])


class BoundTests(NeighboursTestCase):
    """
    The table has a bound.
    """

    def address(self, number: int) -> bytes:
        """
        @return: one of many addresses.
        """
        return (0x0A000000 + number).to_bytes(4, "big")

    def test_oldest(self) -> None:
        """
        The one that was confirmed longest ago is forgotten for another.
        """
        self.patch(limits, "IPOIB_NEIGHBOURS", 3)
        first, second, _ = [self.table.obtain(self.address(each), self.now) for each in range(3)]
        self.table.input(first, Input.ANSWER, OLD)
        self.table.obtain(self.address(3), self.now)
        self.assertEqual(len(self.table.entries), 3)
        self.assertIn(first.address, self.table.entries)
        self.assertNotIn(second.address, self.table.entries)

    def test_introduced(self) -> None:
        """
        Senders that are invented replace each other.
        """
        known = self.inState(State.REACHABLE)
        for number in range(limits.IPOIB_NEIGHBOURS + 100):
            self.table.introduce(self.address(number), OLD, self.now)
        self.assertEqual(len(self.table.entries), limits.IPOIB_NEIGHBOURS)
        self.assertIn(known.address, self.table.entries)

    def test_timers(self) -> None:
        """
        Timers of neighbours that are gone are no more than those of the others.
        """
        self.patch(limits, "IPOIB_NEIGHBOURS", 10)
        for number in range(1000):
            self.table.obtain(self.address(number), self.now)
        heap: list[Any] = self.timers._heap
        self.assertLess(len(heap), 200)
