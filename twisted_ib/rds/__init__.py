"""
Reliable Datagram Sockets (RDS), wire compatible with Linux, for Twisted: on any reactor that provides
C{IReactorFDSet} and C{IReactorTime}.

L{listenRDS} is C{listenUDP} for datagrams that arrive once and in order; the reactor C{ib} has it as a
method (L{twisted_ib.interfaces.IReactorRDS}).  L{twisted_ib.interfaces.IRDSTransport} is the transport,
L{twisted_ib.interfaces.IRDSProtocol} lists the optional notifications of a protocol.  L{RDSServerEndpoint}
and L{RDSClientEndpoint} are streams over such sockets, with the endpoint strings C{rds:PORT} and
C{rds:HOST:PORT}.

Inside: C{port} is a socket, with C{queues} and C{ping}; C{networks} finds the network of
a reactor and a device.  C{protocol} is pure: wire format, sequence numbers, congestion maps, streams.
C{paths} has the network, which all sockets of a process share, and one path for each pair of addresses,
C{media} the connections that carry a path (TCP, RC queue pairs), C{streams} the Twisted side of streams.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twisted_ib.rds.port import listenRDS
    from twisted_ib.rds.streams.connector import RDSClientEndpoint
    from twisted_ib.rds.streams.listening import RDSServerEndpoint

__all__ = [
    "RDSClientEndpoint",
    "RDSServerEndpoint",
    "listenRDS",
]


def __getattr__(name: str) -> object:
    # Imported on first use: a program that needs only a codec or a state machine does not load reactors and
    # ports.
    if name == "listenRDS":
        from twisted_ib.rds import port

        return getattr(port, name)
    if name == "RDSClientEndpoint":
        from twisted_ib.rds.streams import connector

        return getattr(connector, name)
    if name == "RDSServerEndpoint":
        from twisted_ib.rds.streams import listening

        return getattr(listening, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
