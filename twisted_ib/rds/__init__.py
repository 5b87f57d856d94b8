"""
Reliable Datagram Sockets, as Linux speaks them, for Twisted: on any reactor with C{IReactorFDSet} and
C{IReactorTime}.

L{listenRDS} is C{listenUDP} for datagrams that arrive, once and in order; the reactor C{ib} has it
as a method (L{twisted_ib.interfaces.IReactorRDS}).  What a transport can do is in
L{twisted_ib.interfaces.IRDSTransport}, what a protocol may be told in
L{twisted_ib.interfaces.IRDSProtocol}.
"""

from __future__ import annotations

from typing import Any

from twisted_ib import limits

__all__ = ["listenRDS"]


def listenRDS(
    reactor: Any,
    port: int,
    protocol: Any,
    interface: str = "",
    maxPacketSize: int = limits.RDS_MESSAGE,
    device: str | None = None,
) -> Any:
    """
    Open a socket: see L{twisted_ib.rds.port.listenRDS}.
    """
    from twisted_ib.rds.port import listenRDS

    return listenRDS(reactor, port, protocol, interface, maxPacketSize, device)
