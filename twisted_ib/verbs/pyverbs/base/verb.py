"""
Decorators and the base class for verbs: the lock, the errno of each error, and closing dependants first.

As in pyverbs, a verbs object may be dropped instead of closed.  The garbage collector then finds it, perhaps
while another verb runs; so it waits in the hub's L{DeferredCloses
<twisted_ib.verbs.core.closes.DeferredCloses>} until that is done.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import wraps
from itertools import count
from math import trunc
from typing import Any, TypeVar, cast
from weakref import WeakSet

from twisted_ib.errors import HCAError
from twisted_ib.hca.device.device import Device
from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.pyverbs.base.base import PyverbsCM
from twisted_ib.verbs.pyverbs.base.errors import PyverbsError, PyverbsRDMAError, PyverbsUserError, errnoOf

Event = TypeVar("Event")
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
                if hub.closes.dead:
                    hub.closes.closePending()
                try:
                    return function(*arguments, **keywords)
                # Inner verbs have named themselves: the first message is the most precise.
                except PyverbsError:
                    raise
                except (HCAError, OSError) as error:
                    raise failure(message or arguments[0]._failed, error) from error

        return cast(Function, call)

    return decorate


def waitFor(take: Callable[[], Event | None], message: str, timeout: float | None = None) -> Event | None:
    """
    Drive the devices until there is an event.  The lock must not be held.

    @param take: fetches it; called with the lock held.
    @param message: the verb that waits.
    @param timeout: seconds; None waits for ever.
    @return: the event; None if there is none in this time.
    @raise PyverbsRDMAError: no descriptor is free to sleep on (EMFILE), or C{take} raised.
    """
    try:
        return hub.wait(take, timeout)
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

    def _closed(self) -> None:
        pass  # It is gone: drop what it refers to.

    def close(self) -> None:
        """
        Close all dependants, then the object itself.  May be repeated.

        @raise PyverbsRDMAError: something that is no dependant uses it (EBUSY).
        """
        with hub:
            if self._closer is None:
                return
            # A dropped QP may be all that makes this CQ or PD busy.
            hub.closes.closePending()
            # Where C{ibv_destroy_*} would return EBUSY, pyverbs closes dependants first.  The order matters:
            # a QP before its CQs and its PD, windows before regions.
            for child in sorted(self._children, key=lambda each: each.rank):
                child.close()
            self._children.clear()
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
        if closer is not None and hub is not None:
            self._closer = None
            hub.closes.closeLater(closer)


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
