"""
Tests for L{twisted_ib.internet.batchedcalls}: one delayed call for all that wait for the same moment.
"""

from __future__ import annotations

import gc
from typing import Any
from weakref import ref

from twisted.internet.error import TimeoutError
from twisted.trial.unittest import SynchronousTestCase

from tests.sdp.fakes import FakeReactor
from twisted_ib.internet.batchedcalls import BatchedCalls, batchedCallsOf


class _Waiting:
    """
    An owner that records its calls.

    @ivar hook: called in the next turn.
    """

    def __init__(self, log: list[Any], name: str) -> None:
        self.log = log
        self.name = name
        self.hook: Any = None

    def nextTurn(self, shared: dict[Any, Any]) -> None:
        self.log.append(self.name)
        shared.setdefault("together", []).append(self.name)
        self.shared = shared
        if self.hook is not None:
            self.hook()

    def failIfNotConnected(self, reason: Exception) -> None:
        self.log.append((self.name, type(reason)))
        if self.hook is not None:
            self.hook()


class TurnsTests(SynchronousTestCase):
    """
    Tests for L{BatchedCalls}.
    """

    def setUp(self) -> None:
        self.clock = FakeReactor()
        self.turns = BatchedCalls()
        self.log: list[Any] = []
        self.one, self.two, self.three = (_Waiting(self.log, name) for name in ("one", "two", "three"))

    def delayed(self) -> list[float]:
        """
        When the reactor's delayed calls are due.
        """
        return [call.getTime() for call in self.clock.getDelayedCalls()]

    def test_nextTurn(self) -> None:
        """
        All that wait for the next turn have one delayed call and are called in order, with something
        to share; who waits from then on has another.
        """
        self.turns.wait(self.clock, self.one)
        self.turns.wait(self.clock, self.two)
        self.assertEqual((self.delayed(), self.log), ([0.0], []))
        self.one.hook = lambda: self.turns.wait(self.clock, self.three)
        self.clock.turn()
        self.assertEqual(self.log, ["one", "two"])
        self.assertEqual(self.two.shared, {"together": ["one", "two"]})
        self.assertEqual(self.delayed(), [0.0])
        self.clock.turn()
        self.assertEqual(self.log, ["one", "two", "three"])
        self.assertEqual(self.three.shared, {"together": ["three"]})
        self.assertEqual(self.delayed(), [])

    def test_forget(self) -> None:
        """
        An owner that is withdrawn is not called; without owners there is no delayed call.
        """
        self.turns.wait(self.clock, self.one)
        self.turns.wait(self.clock, self.two)
        self.turns.forget(self.one)
        self.turns.forget(self.three)
        self.clock.turn()
        self.assertEqual(self.log, ["two"])
        self.turns.wait(self.clock, self.one)
        self.turns.forget(self.one)
        self.turns.forget(self.one)
        self.assertEqual(self.delayed(), [])
        self.turns.wait(self.clock, self.one)
        self.clock.turn()
        self.assertEqual(self.log, ["two", "one"])

    def test_raises(self) -> None:
        """
        An exception of one owner is logged and keeps no other from its turn.
        """
        self.one.hook = lambda: 1 // 0
        self.turns.wait(self.clock, self.one)
        self.turns.wait(self.clock, self.two)
        self.clock.advance(0)
        self.assertEqual(self.log, ["one", "two"])
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_limit(self) -> None:
        """
        Those with the same time have one delayed call, that of the first; each fails when its own
        time is over.
        """
        self.turns.limit(self.clock, 30, self.one)
        self.clock.advance(0.1)
        self.turns.limit(self.clock, 30, self.two)
        self.turns.limit(self.clock, 30, self.three)
        self.assertEqual(self.delayed(), [30.0])
        self.clock.advance(29.9)
        self.assertEqual(self.log, [("one", TimeoutError)])
        self.assertEqual(len(self.delayed()), 1)
        self.turns.unlimit(30, self.one)
        self.clock.advance(0.1)
        self.assertEqual(self.log[1:], [("two", TimeoutError), ("three", TimeoutError)])
        self.assertEqual((self.delayed(), self.turns._patience), ([], {}))

    def test_unlimit(self) -> None:
        """
        An owner without a deadline does not fail; without deadlines there is no delayed call.
        """
        self.turns.limit(self.clock, 30, self.one)
        self.turns.limit(self.clock, 30, self.two)
        self.turns.limit(self.clock, 5, self.three)
        self.assertEqual(self.delayed(), [5.0, 30.0])
        self.turns.unlimit(5, self.three)
        self.turns.unlimit(7, self.three)
        self.turns.unlimit(30, self.one)
        self.clock.advance(10)
        self.turns.limit(self.clock, 30, self.one)
        self.clock.advance(20)
        self.assertEqual(self.log, [("two", TimeoutError)])
        self.assertEqual(self.delayed(), [40.0])
        self.turns.unlimit(30, self.one)
        self.turns.unlimit(30, self.one)
        self.assertEqual((self.delayed(), self.turns._patience), ([], {}))

    def test_againWhileFailing(self) -> None:
        """
        An owner that fails may begin again at once.
        """
        self.turns.limit(self.clock, 30, self.one)
        self.one.hook = lambda: self.turns.limit(self.clock, 30, self.two)
        self.clock.advance(30)
        self.assertEqual((self.log, self.delayed()), ([("one", TimeoutError)], [60.0]))
        self.clock.advance(30)
        self.assertEqual(self.log[1:], [("two", TimeoutError)])
        self.assertEqual((self.delayed(), self.turns._patience), ([], {}))

    def test_againBesideOthers(self) -> None:
        """
        An owner that fails and begins again while others wait shares their one delayed call, however often.
        """
        self.turns.limit(self.clock, 30, self.one)
        self.clock.advance(1)
        self.turns.limit(self.clock, 30, self.two)
        self.one.hook = lambda: self.turns.limit(self.clock, 30, self.one)
        self.two.hook = lambda: self.turns.limit(self.clock, 30, self.two)
        for _ in range(120):
            self.clock.advance(1)
            self.assertEqual(len(self.delayed()), 1)
        self.assertEqual([name for name, _ in self.log], ["one", "two"] * 4)
        self.turns.unlimit(30, self.one)
        self.turns.unlimit(30, self.two)
        self.assertEqual((self.delayed(), self.turns._patience), ([], {}))

    def test_failingRaises(self) -> None:
        """
        An exception of one owner is logged, and the others fail in their time.
        """
        self.one.hook = lambda: 1 // 0
        self.turns.limit(self.clock, 30, self.one)
        self.turns.limit(self.clock, 30, self.two)
        self.clock.advance(1)
        self.turns.limit(self.clock, 30, self.three)
        self.clock.advance(29)
        self.clock.advance(1)
        self.assertEqual([name for name, _ in self.log], ["one", "two", "three"])
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertEqual((self.delayed(), self.turns._patience), ([], {}))

    def test_cancelled(self) -> None:
        """
        All calls of the reactor are cancelled, as trial does after a test: later owners have calls again.
        """
        self.turns.wait(self.clock, self.one)
        self.turns.limit(self.clock, 30, self.one)
        for call in self.clock.getDelayedCalls():
            call.cancel()
        self.turns.wait(self.clock, self.two)
        self.turns.limit(self.clock, 30, self.two)
        self.assertEqual(self.delayed(), [0.0, 30.0])
        for call in self.clock.getDelayedCalls():
            call.cancel()
        for each in (self.one, self.two):
            self.turns.forget(each)
            self.turns.unlimit(30, each)
        self.turns.wait(self.clock, self.three)
        self.turns.limit(self.clock, 30, self.three)
        self.clock.turn()
        self.clock.advance(30)
        self.assertEqual(self.log, ["three", ("three", TimeoutError)])
        self.assertEqual(self.delayed(), [])

    def test_reactors(self) -> None:
        """
        Each reactor has its own, which do not keep it alive, whatever they wait for.
        """
        self.assertIs(batchedCallsOf(self.clock), batchedCallsOf(self.clock))
        other = FakeReactor()
        self.assertIsNot(batchedCallsOf(self.clock), batchedCallsOf(other))
        batchedCallsOf(other).wait(other, self.one)
        batchedCallsOf(other).limit(other, 30, self.two)
        gone = ref(other)
        del other
        gc.collect()
        self.assertIsNone(gone())
