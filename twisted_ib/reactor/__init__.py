"""
The C{ib} reactor: epoll, and devices that are looked at between its turns.

C{ibreactor} installs it (C{ibreactor.install()}).  C{switch} lets programs that know only TCP use SDP where
both ends have it, by the C{rules} of a configuration file; L{explain} says which way a connection or port
goes and why, L{direct} gives the operating system's own TCP.  C{socketreport} shows the process's sockets to
C{ib-ss}.
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
    # Imported when used: whoever takes a codec or a machine from here does not load ports and reactors.
    if name in ("direct", "explain"):
        from twisted_ib.reactor.switch import switch

        return getattr(switch, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
