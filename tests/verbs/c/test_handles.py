"""
Tests of the table of structures, of calls that wait for the acknowledgement of what they have destroyed, and
of errors as C has them.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.verbs.c.posting.declared import useDeclared
from twisted_ib.errors import ResourceBusyError, UnknownDeviceError
from twisted_ib.verbs.c.errors import HandleError, failing, numberOf
from twisted_ib.verbs.c.functions import AGAIN, Failure, Row
from twisted_ib.verbs.c.handles import FREED_STRUCTURES, Entry, Handles
from twisted_ib.verbs.pyverbs import PyverbsRDMAError, PyverbsUserError


class Closable:
    """
    An object; it can be told to refuse.
    """

    def __init__(self) -> None:
        self.closed = 0
        self.error: Exception | None = None

    def close(self) -> None:
        """
        Count.
        """
        if self.error is not None:
            raise self.error
        self.closed += 1


class HandlesTests(SynchronousTestCase):
    """
    L{Handles}.
    """

    def setUp(self) -> None:
        """
        A domain with a region.
        """
        self.handles = Handles()
        self.pd, self.mr = Closable(), Closable()
        self.handles.add(16, "ibv_pd", self.pd, object())
        self.handles.add(32, "ibv_mr", self.mr, object(), (16, 0, None))

    def refused(self, number: int, call: Any, *arguments: Any) -> None:
        """
        Assert that a call fails with an errno.
        """
        self.assertEqual(self.assertRaises(HandleError, call, *arguments).number, number)

    def isFree(self) -> bool:
        """
        @return: whether this thread can take the lock; it does not keep it.
        """
        taken = self.handles.lock.acquire(blocking=False)
        if taken:
            self.handles.lock.release()
        return taken

    def test_get(self) -> None:
        """
        A structure is found by its address and kind; any other is EINVAL, null only where it may be none.
        """
        self.assertIs(self.handles.get(16, "ibv_pd"), self.pd)
        self.assertEqual(self.handles.report(self.mr), 32)
        self.handles.acknowledge(32)
        self.assertEqual(self.handles.report(object()), 0)
        self.refused(errno.EINVAL, self.handles.get, 16, "ibv_mr")
        self.refused(errno.EINVAL, self.handles.get, 17, "ibv_pd")
        self.refused(errno.EINVAL, self.handles.get, 0, "ibv_pd")
        self.refused(errno.EINVAL, self.handles.structure, 17)

    def test_order(self) -> None:
        """
        An object that another uses is EBUSY; one that cannot be closed stays.
        """
        self.refused(errno.EBUSY, self.handles.remove, 16, "ibv_pd")
        self.mr.error = ResourceBusyError("a window is bound")
        self.assertRaises(ResourceBusyError, self.handles.remove, 32, "ibv_mr")
        self.refused(errno.EBUSY, self.handles.remove, 16, "ibv_pd")
        self.mr.error = None
        self.assertIs(self.handles.remove(32, "ibv_mr"), self.mr)
        self.refused(errno.EINVAL, self.handles.remove, 32, "ibv_mr")
        self.handles.remove(16, "ibv_pd")
        self.assertEqual((self.pd.closed, self.mr.closed, len(self.handles)), (1, 1, 0))

    def test_parentIsGone(self) -> None:
        """
        An object of one that another thread has destroyed is not added, and nothing is counted.
        """
        self.refused(errno.EINVAL, self.handles.add, 48, "ibv_qp", Closable(), object(), (16, 99))
        self.handles.remove(32, "ibv_mr")
        self.handles.remove(16, "ibv_pd")

    def test_acknowledged(self) -> None:
        """
        The call that destroys an object is at its end when the object's events are acknowledged, some of them
        as it is closed; none is reported any more then, and acknowledgements too many count for nothing.
        """
        self.handles.acknowledge(32, 9)
        for _ in range(3):
            self.handles.report(self.mr)

        def close() -> None:
            self.assertEqual(self.handles.report(self.mr), 0)
            self.handles.acknowledge(32)

        self.mr.close = close  # type: ignore[method-assign]
        with self.handles.destroying() as destroyed:
            with self.handles.destroying() as others:
                # A call of a signal's handler.
                pass
            self.handles.remove(32, "ibv_mr")
        self.assertEqual((len(destroyed), others), (1, []))
        with ThreadPoolExecutor(1) as other:
            self.refused(errno.EINVAL, self.handles.remove, 32, "ibv_mr")
            for _ in range(2):
                self.assertTrue(self.handles.isOwed(destroyed))
                other.submit(self.handles.acknowledge, 32).result()
        self.assertFalse(self.handles.isOwed(destroyed))
        self.refused(errno.EINVAL, self.handles.acknowledge, 32)
        self.handles.remove(16, "ibv_pd")

    def test_left(self) -> None:
        """
        What was destroyed by a call that a signal's handler has left is gone, no later call waits for it, and
        its events can be acknowledged.  What cannot be closed loses no event.
        """
        self.handles.report(self.mr)
        self.mr.error = ResourceBusyError("a window is bound")
        self.assertRaises(ResourceBusyError, self.handles.remove, 32, "ibv_mr")
        self.mr.error = None
        with self.handles.destroying() as left:
            self.handles.remove(32, "ibv_mr")
        self.assertTrue(self.handles.isOwed(left))
        with self.handles.destroying() as later:
            self.handles.remove(16, "ibv_pd")
        self.assertFalse(self.handles.isOwed(later))
        self.handles.acknowledge(32)
        self.refused(errno.EINVAL, self.handles.acknowledge, 32)

    def test_move(self) -> None:
        """
        A moved object uses the new parent in place of the old one.
        """
        self.handles.add(48, "ibv_pd", Closable(), object())
        self.handles.move(32, 16, 48)
        self.handles.remove(16, "ibv_pd")
        self.refused(errno.EBUSY, self.handles.remove, 48, "ibv_pd")
        self.handles.remove(32, "ibv_mr")
        self.handles.remove(48, "ibv_pd")
        self.assertEqual(len(self.handles), 0)

    def test_removeAll(self) -> None:
        """
        An object goes with all that use it, those first.
        """
        self.handles.removeAll(16, "ibv_pd")
        self.assertEqual((self.pd.closed, self.mr.closed, len(self.handles)), (1, 1, 0))
        self.refused(errno.EINVAL, self.handles.removeAll, 16, "ibv_pd")

    def test_removeAllRaises(self) -> None:
        """
        If one in the middle cannot be closed, those below and above it are, no structure is left, and the
        error is raised.
        """
        window, other = Closable(), Closable()
        self.handles.add(48, "ibv_mw", window, object(), (32,))
        self.handles.add(64, "ibv_mr", other, object(), (16,))
        self.mr.error = ResourceBusyError("a window is bound")
        self.assertRaises(ResourceBusyError, self.handles.removeAll, 16, "ibv_pd")
        self.assertEqual([each.closed for each in (window, other, self.mr, self.pd)], [1, 1, 0, 1])
        self.assertEqual((len(self.handles), self.handles.report(self.mr)), (0, 0))

    def test_forked(self) -> None:
        """
        In a forked child what the parent has is not there until it is made anew, which is done without the
        lock; what is closed first is only forgotten, and not made at all.
        """
        made: list[int] = []
        free: list[bool] = []

        def again(address: int, entry: Entry) -> bool:
            made.append(address)
            with ThreadPoolExecutor(1) as other:
                free.append(other.submit(self.isFree).result())
            return self.handles.renew(address, Closable())

        self.handles.again = again
        self.handles.add(48, "ibv_context", Closable(), object())
        self.handles.forked()
        self.refused(errno.EINVAL, self.handles.remove, 16, "ibv_pd")
        self.refused(errno.EINVAL, self.handles.removeAll, 48, "ibv_pd")
        self.handles.removeAll(48, "ibv_context")
        self.refused(errno.EINVAL, self.handles.removeAll, 48, "ibv_context")
        self.refused(errno.EINVAL, self.handles.get, 48, "ibv_context")
        self.assertEqual(made, [])
        self.assertIsInstance(self.handles.get(16, "ibv_pd"), Closable)
        self.assertEqual((made, free, self.pd.closed, self.mr.closed), ([16], [True], 0, 0))

    def test_freed(self) -> None:
        """
        The structures of destroyed objects stay for a while, and not for ever.
        """

        class Structure:
            alive = 0

            def __init__(self) -> None:
                Structure.alive += 1

            def __del__(self) -> None:
                Structure.alive -= 1

        for _ in range(FREED_STRUCTURES + 10):
            self.handles.add(48, "ibv_pd", Closable(), Structure())
            self.handles.remove(48, "ibv_pd")
        self.assertEqual(Structure.alive, FREED_STRUCTURES)


class ErrorTests(SynchronousTestCase):
    """
    L{numberOf} and L{failing}.
    """

    def test_numbers(self) -> None:
        """
        Each error has an errno.
        """
        for error, number in (
            (HandleError("it is busy", errno.EBUSY), errno.EBUSY),
            (PyverbsRDMAError("no room", errno.ENOMEM), errno.ENOMEM),
            (PyverbsRDMAError("of the table", -errno.EINVAL), errno.EINVAL),
            (PyverbsRDMAError("without a number", -1), errno.EINVAL),
            (PyverbsRDMAError("without a number", 0), errno.EINVAL),
            (PyverbsUserError("it is closed"), errno.EINVAL),
            (UnknownDeviceError("there is none"), errno.ENODEV),
            (OSError(errno.EMFILE, "no descriptor"), errno.EMFILE),
            (OSError("no number"), errno.EIO),
            (OverflowError("too wide"), errno.EINVAL),
            (RuntimeError("a null pointer"), errno.EINVAL),
            (MemoryError(), errno.ENOMEM),
            (KeyboardInterrupt(), errno.EINTR),
            (AttributeError("a fault of this package"), errno.EIO),
        ):
            self.assertEqual(numberOf(error), number, repr(error))

    def test_results(self) -> None:
        """
        A failure is the result that the row says, and errno is set.
        """
        ffi = SimpleNamespace(NULL="null", errno=0)
        for kind, result in (
            (Failure.ERRNO, errno.EBUSY),
            (Failure.NEGATIVE_ERRNO, -errno.EBUSY),
            (Failure.MINUS_ONE, -1),
            (Failure.ZERO, 0),
            (Failure.NULL, "null"),
            (Failure.NOTHING, None),
        ):
            ffi.errno = 0
            failed = failing(Row("f", "V", "int f(void)", kind), ffi)
            error = HandleError("it is busy", errno.EBUSY)
            self.assertEqual((failed(None, error, None), ffi.errno), (result, errno.EBUSY), kind)


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
