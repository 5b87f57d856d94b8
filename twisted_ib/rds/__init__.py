"""
Reliable Datagram Sockets, as Linux speaks them, for Twisted: on any reactor with C{IReactorFDSet} and
C{IReactorTime}.

L{listenRDS} is C{listenUDP} for datagrams that arrive, once and in order; the reactor C{ib} has it
as a method (L{twisted_ib.interfaces.IReactorRDS}).  What a transport can do is in
L{twisted_ib.interfaces.IRDSTransport}, what a protocol may be told in
L{twisted_ib.interfaces.IRDSProtocol}.  L{RDSServerEndpoint} and L{RDSClientEndpoint} are streams over such
sockets, as strings C{rds:PORT} and C{rds:HOST:PORT}.

Inside: C{port} is a socket and C{network} what all sockets of a process share.  C{protocol} is pure: wire
format, sequence numbers, congestion maps, streams.  C{paths} has one path for each pair of addresses,
C{media} what carries a path (TCP, RC queue pairs, the process itself), C{streams} the streams' Twisted side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twisted_ib.rds.port import listenRDS
    from twisted_ib.rds.streams.endpoints import RDSClientEndpoint, RDSServerEndpoint

__all__ = [
    "RDSClientEndpoint",
    "RDSServerEndpoint",
    "listenRDS",
]


def __getattr__(name: str) -> object:
    # Imported when used: whoever takes a codec or a machine from here does not load ports and reactors.
    if name == "listenRDS":
        from twisted_ib.rds import port

        return getattr(port, name)
    if name in ("RDSClientEndpoint", "RDSServerEndpoint"):
        from twisted_ib.rds.streams import endpoints

        return getattr(endpoints, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
