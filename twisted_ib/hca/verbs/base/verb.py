"""
What every verb does: takes the lock, gives errors an errno, closes what depends on an object
before the object.

Objects of verbs may be forgotten instead of closed, as with pyverbs.  Such an object is closed
when the interpreter finds that nobody has it any more, which may be in the middle of anything:
then it waits in the L{Graveyard} until the next verb begins.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable
from functools import wraps
from itertools import count
from math import trunc
from typing import Any, TypeVar, cast
from weakref import WeakSet

from twisted_ib.errors import HCAError, ResourceBusyError
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.verbs.base.base import PyverbsCM
from twisted_ib.hca.verbs.base.errors import PyverbsError, PyverbsRDMAError, PyverbsUserError, errnoOf
from twisted_ib.hca.verbs.base.hub import hub

Function = TypeVar("Function", bound=Callable[..., Any])

_handles = count(1)


def failure(message: str, error: HCAError | OSError) -> PyverbsRDMAError:
    """
    @param message: which verb failed.
    @param error: why.

    @return: the error that a program of verbs gets.
    """
    if isinstance(error, OSError):
        return PyverbsRDMAError(message, error.errno or errno.EIO)
    return PyverbsRDMAError(f"{message}: {error}", errnoOf(error))


def unsupported(message: str) -> PyverbsRDMAError:
    """
    @param message: which verb failed.

    @return: the error of what this HCA does not do.
    """
    return PyverbsRDMAError(message, errno.EOPNOTSUPP)


def invalid(message: str) -> PyverbsRDMAError:
    """
    @param message: which verb failed, and why.

    @return: the error of a parameter that cannot be.
    """
    return PyverbsRDMAError(message, errno.EINVAL)


class Graveyard:
    """
    What is to be closed as soon as nobody is in the middle of something.
    """

    def __init__(self) -> None:
        self._dead: deque[Callable[[], None]] = deque()

    def bury(self, close: Callable[[], None]) -> None:
        """
        Close something that nobody has any more: now, or when the next verb begins.

        @param close: closes it, and knows nothing of the object that is going.
        """
        self._dead.append(close)
        if hub.enterIfFree():
            try:
                self.sweep()
            finally:
                hub.__exit__()

    def sweep(self) -> None:
        """
        Close what waits; what others still use waits for those.  The lock is held.
        """
        while self._dead:
            dead = [self._dead.popleft() for _ in range(len(self._dead))]
            busy = [close for close in dead if not self._close(close)]
            self._dead.extend(busy)
            if len(busy) == len(dead):
                return

    @staticmethod
    def _close(close: Callable[[], None]) -> bool:
        """
        Close one.

        @return: whether it is gone.
        """
        try:
            close()
        except ResourceBusyError:
            return False
        except (HCAError, OSError):
            pass  # It went with its device.
        return True

    def forget(self) -> None:
        """
        In a forked child: all of it is the parent's.
        """
        self._dead.clear()


graveyard = Graveyard()
"""
What this process has forgotten.
"""


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=graveyard.forget)


def closing(device: Device, function: Callable[..., object], *arguments: object) -> Callable[[], None]:
    """
    @param device: whose object it is; it takes all of its objects with it when it is closed.
    @param function: gives the object back.
    @param arguments: for it.

    @return: what closes the object.
    """

    def close() -> None:
        if not device.closed:
            function(*arguments)

    return close


def verb(message: str = "") -> Callable[[Function], Function]:
    """
    Decorate a verb: it runs with the hub's lock held, and fails with errors that have an errno.

    @param message: says which verb failed; by default the object's C{_failed} does.
    """

    def decorate(function: Function) -> Function:
        @wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            with hub:
                if graveyard._dead:
                    graveyard.sweep()
                try:
                    return function(*arguments, **keywords)
                except PyverbsError:
                    raise
                except (HCAError, OSError) as error:
                    raise failure(message or arguments[0]._failed, error) from error

        return cast(Function, call)

    return decorate


def waitFor(ready: Callable[[], bool], message: str) -> None:
    """
    Wait until something is so, and serve peers meanwhile.  The lock must not be held.

    @param ready: whether it is so; called with the lock held.
    @param message: which verb waits.

    @raise PyverbsRDMAError: no descriptor is free to sleep on (EMFILE), or C{ready} raised.
    """
    try:
        hub.wait(ready)
    except PyverbsError:
        raise
    except (HCAError, OSError) as error:
        raise failure(message, error) from error


class VerbsObject(PyverbsCM):
    """
    Something of a device that others may depend on.

    @cvar rank: when it is closed among what depends on the same object: the lower, the sooner.
    @ivar handle: its number, unique in this process.
    """

    rank = 0

    def __init__(self) -> None:
        self._children: WeakSet[VerbsObject] = WeakSet()
        self._closer: Callable[[], None] | None = None
        self._handle = next(_handles)

    @property
    def handle(self) -> int:
        """
        Its number, unique in this process.
        """
        return self._handle

    def _opened(self, closer: Callable[[], None], *parents: VerbsObject | None) -> None:
        """
        It exists now.

        @param closer: gives back what it has of the device; does not refer to this object.
        @param parents: what it depends on.
        """
        self._closer = closer
        for parent in parents:
            if parent is not None:
                parent._children.add(self)

    def _check(self) -> None:
        """
        @raise PyverbsUserError: it is closed.
        """
        if self._closer is None:
            raise PyverbsUserError(f"This {type(self).__name__} is closed")

    def _closeChildren(self) -> None:
        for child in sorted(self._children, key=_rank):
            child.close()
        self._children.clear()

    def _closed(self) -> None:
        """
        It is gone: drop what it refers to.
        """

    def close(self) -> None:
        """
        Close what depends on it, then give it back.  Harmless when repeated.

        @raise PyverbsRDMAError: something else uses it (EBUSY).
        """
        with hub:
            if self._closer is None:
                return
            graveyard.sweep()
            self._closeChildren()
            closer = self._closer
            try:
                closer()
            except (HCAError, OSError) as error:
                raise failure(f"Failed to close {type(self).__name__}", error) from error
            self._closer = None
            self._closed()

    def __del__(self) -> None:
        closer = getattr(self, "_closer", None)
        if closer is not None and graveyard is not None:
            self._closer = None
            graveyard.bury(closer)


def _rank(child: VerbsObject) -> int:
    return child.rank


def check(condition: bool, message: str) -> None:
    """
    @raise PyverbsRDMAError: a condition of a verb's parameters does not hold (EINVAL).
    """
    if not condition:
        raise invalid(message)


def within(value: Any, least: int, most: int, what: str) -> int:
    """
    @param value: a number; a fraction is cut off, as C does.
    @param what: its name, for the error.

    @return: it as an integer.

    @raise TypeError: it is no number.
    @raise PyverbsRDMAError: it is outside of the bounds (EINVAL).
    """
    number = trunc(value)
    check(least <= number <= most, f"{what} is {least} to {most}, not {number}")
    return number
