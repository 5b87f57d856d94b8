"""
The C{ib} reactor: epoll, with devices polled between its turns.

C{ibreactor.install()} installs it.  C{switch} lets programs written for TCP use SDP where both ends have it,
by the C{rules} of a configuration file; L{explain} returns the decision about a connection or port and its
reason, L{direct} the operating system's own TCP.  C{socketreport} shows the process's sockets to C{ib-ss}.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twisted_ib.reactor.switch.switch import direct, explain

__all__ = [
    "direct",
    "explain",
]


def __getattr__(name: str) -> object:
    # Imported when used: the import of a codec or state machine below this package must not load ports and a
    # reactor.
    if name in ("direct", "explain"):
        from twisted_ib.reactor.switch import switch

        return getattr(switch, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
