"""
Tests that a signal handler that raises, as Python's own for SIGINT does, leaves fabrics that work.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from functools import cache, partial
from types import CodeType, FrameType
from typing import Any
from unittest import skipIf

from tests.hca.hcas import HCATestCase, readable, settle, turn
from tests.support.calls import requireReplaceable
from twisted_ib.drive.sleeper import acquire, fence
from twisted_ib.hca.fabric.shm.hotpaths import HotPaths
from twisted_ib.hca.fabric.shm.shm import SharedMemoryFabric
from twisted_ib.hca.host import libc

MISSING = libc.available()
#: Functions of paths between processes within which handlers raise.
FUNCTIONS = frozenset(
    ("_wake", "alert", "arm", "fence", "look", "pending", "ring", "ringBells", "ringLater", "rouse", "wake")
)
#: Python runs handlers as a function begins and after these (Python/ceval.c, "eval_breaker").
BREAKS = ("RESUME", "CALL", "CALL_FUNCTION_EX", "CALL_FUNCTION", "CALL_FUNCTION_KW", "CALL_METHOD")
#: Those that go back, and before which handlers run.
JUMPS = ("JUMP_BACKWARD", "JUMP_ABSOLUTE")
#: Places after which each of the calls is over.
MOST = 1000


class Interrupted(Exception):
    """
    A handler raised it.
    """


@cache
def places(code: CodeType) -> frozenset[int]:
    """
    @return: The offsets of the bytecodes before which handlers run.
    """
    found = set()
    # Before Python 3.11 they begin without a bytecode of their own.
    before = "RESUME" if sys.version_info < (3, 11) else ""
    for each in dis.get_instructions(code):
        if before in BREAKS or each.opname in JUMPS:
            found.add(each.offset)
        before = each.opname
    return frozenset(found)


def interrupted(call: Callable[[], object], steps: int) -> bool:
    """
    Call a function, and raise at a place within those in L{FUNCTIONS} where a handler may run.

    @param steps: How many places come first.
    @return: Whether it ended before.
    """
    left = steps

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_name not in FUNCTIONS or "/fabric/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_lasti in places(frame.f_code):
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise Interrupted
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except Interrupted:
        return False
    finally:
        sys.settrace(before)
    return True


@skipIf(bool(MISSING), f"missing: {MISSING}")
def giveBack(test: HCATestCase) -> None:
    """
    Give back the fence's lock, which is the whole process's, at the end of a test that leaves it taken.
    """
    lock: Any = getattr(acquire, "__self__")  # noqa: B009
    test.addCleanup(lambda: lock.locked() and lock.release())


class FenceTests(HCATestCase):
    """
    A fence is two calls, between which a handler may run.
    """

    fabric: Any = SharedMemoryFabric

    def test_raises(self) -> None:
        """
        The next fence waits for nothing, whether a batch ends, paths are put to sleep or are looked at.
        """
        a, b, one, two = self.takers()
        settle(a, b)
        fabric = a.fabric
        acquire, lock = fabric._acquire, fabric._acquire.__self__
        giveBack(self)

        def interrupted(isWaiting: bool) -> None:
            fabric._acquire = acquire
            self.assertTrue(acquire(isWaiting) or lock.locked())
            raise KeyboardInterrupt

        def post() -> None:
            one.post(b"octets")
            fabric.ringBells()

        fabric._acquire = interrupted
        self.assertRaises(KeyboardInterrupt, post)
        self.assertIs(fabric._acquire, acquire)
        self.assertTrue(lock.locked())
        for each in (post, fabric.arm, fence):
            each()
        one.post(b"after")
        settle(a, b)
        self.assertEqual(two.records[-1], b"after")

    def test_calls(self) -> None:
        """
        A handler that uses the device itself, as one that calls a verb, waits for nothing either.
        """
        a, b, one, two = self.takers()
        settle(a, b)
        fabric = a.fabric
        acquire, lock = fabric._acquire, fabric._acquire.__self__
        waited: list[object] = []

        def looking(*isWaiting: bool) -> bool:
            # Where that would wait, it waits for the call that it has interrupted, and so for ever.
            waited.extend(["for ever"] if lock.locked() and isWaiting != (False,) else [])
            return bool(lock.acquire(False))

        def handled(*isWaiting: bool) -> bool:
            fabric._acquire = looking
            found = bool(acquire(*isWaiting))
            one.post(b"of the handler")
            fabric.ringBells()
            fence()
            return found

        def post() -> None:
            one.post(b"octets")
            fabric.ringBells()

        for each in (post, fabric.arm, fence):
            settle(a, b)
            fabric._acquire = handled
            each()
            self.assertEqual(waited, [])
        fabric._acquire = acquire
        settle(a, b)
        self.assertEqual(two.records.count(b"of the handler"), 1)


@skipIf(bool(MISSING), f"missing: {MISSING}")
class RingTests(HCATestCase):
    """
    A handler raises at each place in turn: no wake-up is lost.
    """

    fabric: Any = SharedMemoryFabric

    def setUp(self) -> None:
        """
        Join two HCAs.
        """
        super().setUp()
        requireReplaceable(HotPaths, "arm")
        self.firsts, self.isRung = 0, False
        self.a, self.b, self.one, self.two = self.takers()
        giveBack(self)

    def everywhere(self, prepare: Callable[[], object], call: Callable[[], object]) -> None:
        """
        Call a function while the second HCA sleeps, or when it is to, until no handler interrupts it.
        """
        for steps in range(MOST):
            settle(self.a, self.b)
            prepare()
            if interrupted(call, steps):
                self.assertGreater(steps, 1)
                return
            if self.isRung:
                # The first's next turn.
                self.a.ringBells()
                self.assertTrue(readable(self.b), steps)
            # The second's: it does not sleep over a record.
            while not self.b.arm():
                self.assertEqual(self.b.fabric.hot, (self.two.path,))
                settle(self.b)
            self.assertFalse(self.b.fabric.pending())
            data = b"%d" % steps
            self.one.post(data)
            self.a.ringBells()
            self.assertTrue(readable(self.b), steps)
            settle(self.a, self.b)
            self.assertEqual(self.two.records[-1], data)
            self.assertEqual(self.two.records.count(b"first"), self.firsts)
        self.fail("it does not end")

    def sleep(self) -> None:
        """
        Put the second HCA to sleep.
        """
        self.assertTrue(self.b.arm())

    def first(self) -> None:
        """
        Post a record to the sleeping HCA.
        """
        self.sleep()
        self.firsts += 1
        self.one.post(b"first")

    def test_arm(self) -> None:
        """
        Paths are put to sleep.
        """
        self.everywhere(lambda: None, self.b.arm)

    def test_ringBells(self) -> None:
        """
        The batch that is interrupted is ended by the next.
        """
        self.isRung = True
        self.everywhere(self.first, self.a.ringBells)

    def test_alert(self) -> None:
        """
        The peer is rung for before a record, if only with the next.
        """
        self.everywhere(self.sleep, lambda: (self.one.path.alert(), self.a.ringBells()))

    def test_delivered(self) -> None:
        """
        The sender sleeps until its record is taken, and is woken although a handler raises over that.
        """

        def upcall(data: bytes) -> None:
            self.two.upcall = None
            raise Interrupted

        self.two.upcall = upcall
        self.one.postKept(b"kept")
        self.a.progress()
        self.assertTrue(self.a.arm())
        self.b.fabric.look()
        self.assertRaises(Interrupted, self.b.progress)
        turn(self.b)
        self.assertTrue(readable(self.a))
        settle(self.a, self.b)
        self.assertEqual(len(self.one.said("acknowledged")), 1)

    def test_wake(self) -> None:
        """
        A path that sleeps is woken, as its own side posts.
        """

        def post() -> None:
            self.sleep()
            self.two.post(b"answer")

        self.everywhere(post, self.b.ringBells)


class SocketTests(RingTests):
    """
    The same without rings.
    """

    fabric = partial(SharedMemoryFabric, rings=False)

    def test_post(self) -> None:
        """
        The peer of a record is rung for, if only with the next.
        """
        self.everywhere(self.sleep, lambda: self.one.post(b"posted"))
