"""
Decorators and the base class for verbs: the lock, the errno of each error, and closing dependants first.

As in pyverbs, a verbs object may be dropped instead of closed.  The garbage collector then finds it, perhaps
while another verb runs; so it waits in the L{DeferredCloses} until that is done.
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
from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.pyverbs.base.base import PyverbsCM
from twisted_ib.verbs.pyverbs.base.errors import PyverbsError, PyverbsRDMAError, PyverbsUserError, errnoOf

Function = TypeVar("Function", bound=Callable[..., Any])

# In place of the kernel's object handles; 0 is never one.
_handles = count(1)


def failure(message: str, error: HCAError | OSError) -> PyverbsRDMAError:
    """
    @param message: the verb that failed.
    @return: the error for a program, with the errno of L{errnoOf} or of the operating system.
    """
    if isinstance(error, OSError):
        return PyverbsRDMAError(message, error.errno or errno.EIO)
    return PyverbsRDMAError(f"{message}: {error}", errnoOf(error))


def unsupported(message: str) -> PyverbsRDMAError:
    """
    @return: EOPNOTSUPP, for an optional verb that this HCA does not have.
    """
    return PyverbsRDMAError(message, errno.EOPNOTSUPP)


def invalid(message: str) -> PyverbsRDMAError:
    """
    @return: EINVAL, for a parameter that is out of range.
    """
    return PyverbsRDMAError(message, errno.EINVAL)


class DeferredCloses:
    """
    The objects that were dropped without being closed, until it is safe to close them.

    @ivar dead: functions that close them.
    """

    def __init__(self) -> None:
        self.dead: deque[Callable[[], None]] = deque()

    def closeLater(self, close: Callable[[], None]) -> None:
        """
        Close a dropped object now, or when the next verb begins.

        @param close: closes it; must not refer to the object, which could never be collected then.
        """
        # Runs from __del__, which may interrupt this very thread inside a verb with the lock held: an RLock
        # would let it in.  deque.append is atomic, so that even a thread without the lock can add to it.
        self.dead.append(close)
        if hub.enterIfFree():
            try:
                self.closePending()
            finally:
                hub.leave()

    def closePending(self) -> None:
        """
        Close the dropped objects; one that another still uses stays.  The lock is held.
        """
        while self.dead:
            # Garbage comes in no order: a PD may be found before its MRs.  Each pass closes what has become
            # free; a pass that closes nothing ends it.
            dead = [self.dead.popleft() for _ in range(len(self.dead))]
            busy = [close for close in dead if not self._close(close)]
            self.dead.extend(busy)
            if len(busy) == len(dead):
                return

    @staticmethod
    def _close(close: Callable[[], None]) -> bool:
        try:
            close()
        except ResourceBusyError:
            return False
        except (HCAError, OSError):
            # The device was closed before, and its objects with it.
            pass
        return True

    def forget(self) -> None:
        """
        Drop everything, in a forked child: the objects are the parent's.
        """
        self.dead.clear()


#: The dropped objects of this process.
deferredCloses = DeferredCloses()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=deferredCloses.forget)


def closing(device: Device, function: Callable[..., object], *arguments: object) -> Callable[[], None]:
    """
    @param device: the owner; when it closes, its objects go with it.
    @param function: destroys the object.
    @return: a close function that does nothing once the device is closed.
    """

    def close() -> None:
        if not device.closed:
            function(*arguments)

    return close


def verb(message: str = "") -> Callable[[Function], Function]:
    """
    Decorate a verb: take the hub's lock, and give every error an errno.

    @param message: the verb's error text; by default the object's C{_failed}.
    """

    def decorate(function: Function) -> Function:
        @wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            with hub:
                # First, so that what was dropped does not count against the limits of this verb, or keep it
                # EBUSY.
                if deferredCloses.dead:
                    deferredCloses.closePending()
                try:
                    return function(*arguments, **keywords)
                # Inner verbs have named themselves: the first message is the most precise.
                except PyverbsError:
                    raise
                except (HCAError, OSError) as error:
                    raise failure(message or arguments[0]._failed, error) from error

        return cast(Function, call)

    return decorate


def waitFor(ready: Callable[[], bool], message: str, timeout: float | None = None) -> bool:
    """
    Drive the devices until C{ready} is true.  The lock must not be held.

    @param ready: called with the lock held.
    @param message: the verb that waits.
    @param timeout: seconds; None waits for ever.
    @return: whether C{ready} is true.
    @raise PyverbsRDMAError: no descriptor is free to sleep on (EMFILE), or C{ready} raised.
    """
    try:
        return hub.wait(ready, timeout)
    except PyverbsError:
        raise
    except (HCAError, OSError) as error:
        raise failure(message, error) from error


class VerbsObject(PyverbsCM):
    """
    An object of a device that other objects may depend on.

    @cvar rank: the order of closing among dependants of one object: lowest first.
    """

    rank = 0

    def __init__(self) -> None:
        # Weak, as close_weakrefs in pyverbs/base.pyx: a parent must not keep a dropped child alive.
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
        # It must not refer to self: __del__ hands it to the graveyard, and a reference would be a cycle.
        self._closer = closer
        for parent in parents:
            if parent is not None:
                parent._children.add(self)

    def _check(self) -> None:
        if self._closer is None:
            raise PyverbsUserError(f"This {type(self).__name__} is closed")

    def _closeChildren(self) -> None:
        # Where C{ibv_destroy_*} would return EBUSY, pyverbs closes dependants first.  The order matters: a QP
        # before its CQs and its PD, windows before regions.
        for child in sorted(self._children, key=_rank):
            child.close()
        self._children.clear()

    def _closed(self) -> None:
        """
        It is gone: drop what it refers to.
        """

    def close(self) -> None:
        """
        Close all dependants, then the object itself.  May be repeated.

        @raise PyverbsRDMAError: something that is no dependant uses it (EBUSY).
        """
        with hub:
            if self._closer is None:
                return
            # A dropped QP may be all that makes this CQ or PD busy.
            deferredCloses.closePending()
            self._closeChildren()
            closer = self._closer
            try:
                closer()
            except (HCAError, OSError) as error:
                raise failure(f"Failed to close {type(self).__name__}", error) from error
            # Only after it worked: with EBUSY the object stays open and close() may be called again.
            self._closer = None
            self._closed()

    def __del__(self) -> None:
        # __init__ may have raised before the attribute was set, and at interpreter exit the module's names
        # are None.
        closer = getattr(self, "_closer", None)
        if closer is not None and deferredCloses is not None:
            self._closer = None
            deferredCloses.closeLater(closer)


def _rank(child: VerbsObject) -> int:
    return child.rank


def check(condition: bool, message: str) -> None:
    """
    @raise PyverbsRDMAError: C{condition} is false (EINVAL).
    """
    if not condition:
        raise invalid(message)


def within(value: Any, least: int, most: int, what: str) -> int:
    """
    @return: C{value} as an integer; a fraction is cut off, as in C.
    @raise TypeError: it is no number.
    @raise PyverbsRDMAError: it is out of bounds (EINVAL).
    """
    number = trunc(value)
    check(least <= number <= most, f"{what} is {least} to {most}, not {number}")
    return number
