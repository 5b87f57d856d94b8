"""
The reactors C{ib} and C{ib-asyncio}: epoll and asyncio, with devices polled between their turns.

L{install} installs C{ib-asyncio}, L{IBAsyncioReactor}; C{ibreactor.install()} installs C{ib}.
L{twisted_ib.switch} lets programs written for TCP use SDP where both ends have it; L{explain} returns the
decision about a connection or port and its reason, L{direct} the operating system's own TCP.
C{socketreport} shows the process's sockets to C{ib-ss}.

Besides:

  - C{asyncioreactor}: Twisted's reactor on asyncio, with devices polled between the turns of its event loop
  - C{base}: the part of the C{ib} and C{ib-asyncio} reactors that does not depend on their loops
  - C{driven}: the reactor that threads which block drive, turn by turn
  - C{ibreactor}: epoll, with devices polled between its turns
  - C{loop}: the loop of the C{ib} and C{ib-asyncio} reactors between a message and its answer
  - C{tcprows}: the TCP ports and connections of a process, for C{ib-ss}
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twisted_ib.reactor.asyncioreactor import IBAsyncioReactor, install
    from twisted_ib.switch.switch import direct, explain

__all__ = [
    "IBAsyncioReactor",
    "direct",
    "explain",
    "install",
]


def __getattr__(name: str) -> object:
    # Imported when used: the import of a codec or state machine below this package must not load ports and a
    # reactor.
    if name in ("direct", "explain"):
        from twisted_ib.switch import switch

        return getattr(switch, name)
    if name in ("IBAsyncioReactor", "install"):
        from twisted_ib.reactor import asyncioreactor

        return getattr(asyncioreactor, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
