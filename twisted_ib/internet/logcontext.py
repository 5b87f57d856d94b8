"""
The C{system} of log lines while an application is called.

Twisted calls every descriptor in a log context that names it, which costs more
than a small message does here.  So the context is entered once, around all
turns, and asks for the name only when somebody logs: whose call it is stands in
L{UpcallContext.current}.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.python import context
from twisted.python.log import ILogContext


class UpcallContext(dict[str, Any]):
    """
    A log context whose C{system} is the log prefix of whom is being called.

    @ivar current: That one (C{logPrefix()}), or L{None} between calls.
    """

    current: Any = None

    def __missing__(self, key: str) -> Any:
        """
        @return: The name of who is being called.
        """
        if key == "system":
            return "-" if self.current is None else self.current.logPrefix()
        raise KeyError(key)

    def copy(self) -> dict[str, Any]:
        """
        @return: The context as it is now, as log events begin with it.  Twisted asks for it before
            each call of a descriptor, so what is known costs nothing more.
        """
        if self.current is None:
            return {"isError": 0, "system": "-"}
        return {"isError": 0, "system": self["system"]}


#: The one of this process: calls are made in the reactor's thread.
upcalls = UpcallContext(isError=0)


def callInContext(function: Callable[..., Any], *arguments: Any) -> Any:
    """
    Call C{function} with L{upcalls} as the log context.
    """
    return context.call({ILogContext: upcalls}, function, *arguments)
