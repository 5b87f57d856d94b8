"""
Messages and RDMA for Twisted, on any reactor with C{IReactorFDSet} and C{IReactorTime}.

L{listenRDMA} and L{connectRDMA} are C{listenTCP} and C{connectTCP} for messages; the reactor
C{ib} has them as methods (L{twisted_ib.interfaces.IReactorRDMA}).  The endpoints are
C{ib:PORT} and C{ib:HOST:PORT}.  What a transport can do is in
L{twisted_ib.interfaces.IRDMATransport}, what a protocol may take in
L{twisted_ib.interfaces.IRDMAProtocol}; L{Access} has the rights on memory.
"""

from __future__ import annotations

from twisted_ib.hca.core.memory import Access
from twisted_ib.hca.rdma.port import connectRDMA, listenRDMA

__all__ = ["Access", "connectRDMA", "listenRDMA"]
