"""
The C{system} of log lines while an application is called.

Twisted calls every descriptor in a log context of its own (C{twisted.python.log.callWithLogger}), which here
would cost more than a small message.  So one context is entered around all turns, and its name is computed
only when something is logged: L{UpcallContext.current} is the transport or port being called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.python import context, log
from twisted.python.log import ILogContext


class UpcallContext(dict[str, Any]):
    """
    A log context whose C{system} is the log prefix of the object being called.

    @ivar current: that object, which has C{logPrefix()}; L{None} between calls.
    """

    current: object = None

    def __missing__(self, key: str) -> Any:
        if key == "system":
            current: Any = self.current
            return "-" if current is None else current.logPrefix()
        raise KeyError(key)

    def copy(self) -> dict[str, Any]:
        """
        Return the context as a plain dictionary, with which log events begin.
        """
        # twisted.python.log.callWithContext copies before each call of a descriptor; between calls the copy
        # needs no log prefix.
        if self.current is None:
            return {"isError": 0, "system": "-"}
        return {"isError": 0, "system": self["system"]}


#: The only one of this process: applications are called in the reactor's thread.
upcalls = UpcallContext(isError=0)


def callLogged(current: object, function: Callable[..., object], *arguments: Any) -> None:
    """
    Call an application for a transport or port, and log what it raises, as the reactor does with what
    C{doRead()} of a TCP or UDP port raises.
    """
    upcalls.current = current
    try:
        function(*arguments)
    except KeyboardInterrupt:
        raise
    except BaseException:
        log.err()
    finally:
        upcalls.current = None


def callLast(current: object, function: Callable[..., object], *arguments: Any) -> None:
    """
    Call an application for the last time, and log whatever it raises: it cannot end the connection again, and
    must not stop a loop over other users.
    """
    upcalls.current = current
    try:
        function(*arguments)
    except BaseException:
        log.err()
    finally:
        upcalls.current = None


def callInContext(function: Callable[..., Any], *arguments: Any) -> Any:
    """
    Call C{function} with L{upcalls} as the log context.
    """
    return context.call({ILogContext: upcalls}, function, *arguments)
