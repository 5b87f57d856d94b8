"""
Tests of calls that wait for the acknowledgement of what they have destroyed.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.verbs.c.posting.declared import useDeclared
from twisted_ib.verbs.c.functions import AGAIN


class Closable:
    """
    An object that can be destroyed.
    """

    def close(self) -> None:
        """
        It is.
        """


class DestroyingTests(SynchronousTestCase):
    """
    L{destroying<twisted_ib.verbs.c.waiting.destroying>}.
    """

    def setUp(self) -> None:
        """
        Five objects, of each of which the program has an event.
        """
        useDeclared(self)
        self.waiting: Any = import_module("twisted_ib.verbs.c.waiting")
        self.sleep = self.waiting.lib.twisted_ib_own_sleep()
        self.handles = self.waiting.handles
        self.call: Callable[..., int] = self.waiting.destroying(
            lambda address: self.handles.remove(address, "ibv_cq")
        )
        for address in range(16, 96, 16):
            self.handles.add(address, "ibv_cq", value := Closable(), object())
            self.handles.report(value)

    def begun(self, address: int) -> int:
        """
        Begin a call, as C does.

        @return: its number, if it is to sleep.
        """
        self.sleep.slept = 0
        self.assertEqual(self.call(address), AGAIN)
        return int(self.sleep.slept)

    def again(self, number: int, address: int) -> int:
        """
        @return: what a call says after its sleep.
        """
        self.sleep.slept = number
        return self.call(address)

    def test_nested(self) -> None:
        """
        A call in the sleep of another waits for its own objects, and each sleeps twice as long as before.
        """
        outer = self.begun(16)
        inner = self.begun(32)
        pauses = []
        for _ in range(6):
            self.sleep.milliseconds = 0
            self.assertEqual(self.again(inner, 32), AGAIN)
            pauses.append(self.sleep.milliseconds)
        self.assertEqual(pauses, [2, 4, 8, 16, 16, 16])
        self.handles.acknowledge(32)
        self.assertEqual(self.again(inner, 32), 0)
        self.sleep.milliseconds = 0
        self.assertEqual((self.again(outer, 16), self.sleep.milliseconds), (AGAIN, 2))
        self.handles.acknowledge(16)
        self.assertEqual(self.again(outer, 16), 0)

    def test_left(self) -> None:
        """
        A call that a handler has left is no matter of others, and is forgotten by the next once the
        program has acknowledged its events.
        """
        outer = self.begun(16)
        for address in (32, 48, 64):
            self.begun(address)
        for address in (32, 48):
            self.handles.acknowledge(address)
        self.assertEqual(self.again(outer, 16), AGAIN)
        calls = self.waiting._thread.calls
        self.assertEqual(len(calls), 2)
        self.handles.acknowledge(16)
        self.assertEqual(self.again(outer, 16), 0)
        self.handles.acknowledge(64)
        self.handles.acknowledge(80)
        self.sleep.slept = 0
        self.assertEqual((self.call(80), len(calls)), (0, 0))
