"""
Errors of handlers as C has them: a result that says so, and C{errno}.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from twisted_ib import limits
from twisted_ib.drive.process import sleep
from twisted_ib.errors import DeviceClosedError, DeviceError, ForkedSocketError, HCAError, UnknownDeviceError
from twisted_ib.settings import CABI_DEBUG
from twisted_ib.verbs.c import attend
from twisted_ib.verbs.c.functions import Failure, Row
from twisted_ib.verbs.pyverbs import PyverbsError
from twisted_ib.verbs.pyverbs.base.errors import errnoOf

if TYPE_CHECKING:
    from _cffi_backend import FFI

#: These have an errno that says it, or a line of their own.
_PLAIN = (UnknownDeviceError, DeviceClosedError, ForkedSocketError)
#: Reasons that were said.
_said: set[str] = set()
#: A thread that another's exit(3) has overtaken sleeps so long at a time.
ENDING_SECONDS = 0.1

_FIXED = {Failure.MINUS_ONE: -1, Failure.ZERO: 0, Failure.NOTHING: None}


class HandleError(HCAError):
    """
    A call of a program that is wrong, or that cannot be done now.

    @ivar number: its errno.
    """

    def __init__(self, message: str, number: int = errno.EINVAL) -> None:
        super().__init__(message)
        self.number = number


def unsupported() -> HandleError:
    """
    @return: EOPNOTSUPP, for an optional function that this HCA does not have.
    """
    return HandleError("This HCA does not support it", errno.EOPNOTSUPP)


def numberOf(error: BaseException) -> int:
    """
    @return: the errno of an error.
    """
    if isinstance(error, HandleError):
        return error.number
    if isinstance(error, PyverbsError):
        # pyverbs has errors without errno, for calls that are wrong on any device, and some with a negative.
        return abs(error.error_code) if error.error_code not in (-1, 0) else errno.EINVAL
    if isinstance(error, HCAError):
        return errnoOf(error)
    if isinstance(error, OSError):
        return error.errno or errno.EIO
    if isinstance(error, MemoryError):
        return errno.ENOMEM
    # A program that is Python: a signal's handler has raised in it.
    if isinstance(error, KeyboardInterrupt):
        return errno.EINTR
    # Values that do not fit, and null pointers, which cffi refuses to follow.
    if isinstance(error, (TypeError, ValueError, OverflowError, RuntimeError)):
        return errno.EINVAL
    return errno.EIO


def _sayDevice(name: str, error: BaseException) -> None:
    # Why a device cannot be opened, as that its UDP port is taken, is for the user: an errno has no words for
    # it.  Once each: programs try again.
    cause = error.__cause__ or error
    if not isinstance(cause, DeviceError) or isinstance(cause, _PLAIN):
        return
    text = str(cause)
    if text not in _said and len(_said) < limits.SAID_REASONS:
        _said.add(text)
        print(f"{name}: {text}", file=sys.stderr)


def failing(row: Row, ffi: FFI) -> Callable[[object, BaseException, TracebackType | None], object]:
    """
    @return: what cffi calls with an exception of the row's handler, none of which has a way through C: its
        result is that of C, as the row says, and it sets C{errno}.
    """
    kind = row.failure
    fixed = ffi.NULL if kind is Failure.NULL else _FIXED.get(kind)
    loud = CABI_DEBUG in os.environ

    def failed(_: object, error: BaseException, trace: TracebackType | None) -> object:
        # The process ends before its devices do: this thread hears nothing of that, or it might return from
        # main() while the other is in exit(3).
        while attend.isEnding():
            sleep(ENDING_SECONDS)
        if loud:
            print(f"{row.name}:", file=sys.stderr)
            traceback.print_exception(None, error, trace)
        else:
            _sayDevice(row.name, error)
        number = numberOf(error)
        ffi.errno = number
        if kind is Failure.ERRNO:
            return number
        return -number if kind is Failure.NEGATIVE_ERRNO else fixed

    return failed
