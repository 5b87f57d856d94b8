"""
Messages and RDMA for Twisted, on any reactor with C{IReactorFDSet} and C{IReactorTime}.

L{listenRDMA} and L{connectRDMA} are C{listenTCP} and C{connectTCP} for messages; the reactor
C{ib} has them as methods (L{twisted_ib.interfaces.IReactorRDMA}).  The endpoints are
L{RDMAServerEndpoint} and L{RDMAClientEndpoint}, as strings C{ib:PORT} and C{ib:HOST:PORT}.  What a
transport can do is in L{twisted_ib.interfaces.IRDMATransport}, what a protocol may take in
L{twisted_ib.interfaces.IRDMAProtocol}; L{Access} has the rights on memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twisted_ib.hca.memory.access import Access
    from twisted_ib.rdma.port import RDMAClientEndpoint, RDMAServerEndpoint, connectRDMA, listenRDMA

__all__ = [
    "Access",
    "RDMAClientEndpoint",
    "RDMAServerEndpoint",
    "connectRDMA",
    "listenRDMA",
]


def __getattr__(name: str) -> object:
    # Imported when used: whoever takes a codec or a machine from here does not load ports and reactors.
    if name == "Access":
        from twisted_ib.hca.memory import access

        return getattr(access, name)
    if name in ("RDMAClientEndpoint", "RDMAServerEndpoint", "connectRDMA", "listenRDMA"):
        from twisted_ib.rdma import port

        return getattr(port, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
