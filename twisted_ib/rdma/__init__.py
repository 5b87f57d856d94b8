"""
RDMA messaging for Twisted, on any reactor with C{IReactorFDSet} and C{IReactorTime}.

L{listenRDMA} and L{connectRDMA} correspond to C{listenTCP} and C{connectTCP}; the reactor C{ib} has them as
methods (L{twisted_ib.interfaces.IReactorRDMA}).  The endpoints are L{RDMAServerEndpoint} and
L{RDMAClientEndpoint}, as strings C{ib:PORT} and C{ib:HOST:PORT}.  Transports provide
L{twisted_ib.interfaces.IRDMATransport}, as L{RDMAProtocol} says to type checkers; any protocol may provide
L{twisted_ib.interfaces.IRDMAProtocol}.  L{Access} has the access rights of memory.  L{SubnetAdministration}
asks for paths, groups and services of an InfiniBand subnet.  L{switchToRDMA} lets a connection of bytes go on
as one of messages and RDMA.

Modules:

  - C{administration}: subnet administration for Twisted
  - C{backlog}: requests and messages that wait behind a full send queue
  - C{gathering}: several messages in one SEND
  - C{handshake}: connection setup of messages
  - C{port}: L{listenRDMA} and L{connectRDMA}, their port, connector and transports, and the endpoints, used
    like C{TCP4ServerEndpoint} and C{HostnameEndpoint}
  - C{protocol}: the base class of protocols of messages
  - C{receiving}: the way of messages from a connection's queue pair to its protocol
  - C{requests}: requests of a connection whose completion somebody waits for
  - C{successor}: the two transports of a connection that switches to RDMA
  - C{switching}: a connection of bytes goes on as one of messages, RDMA READ and WRITE, as C{startTLS} lets
    one go on encrypted
  - C{transport}: the Twisted transport for messages and RDMA
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twisted_ib.hca.memory.access import Access
    from twisted_ib.rdma.administration import SubnetAdministration
    from twisted_ib.rdma.port import RDMAClientEndpoint, RDMAServerEndpoint, connectRDMA, listenRDMA
    from twisted_ib.rdma.protocol import RDMAProtocol
    from twisted_ib.rdma.switching import switchToRDMA

__all__ = [
    "Access",
    "RDMAClientEndpoint",
    "RDMAProtocol",
    "RDMAServerEndpoint",
    "SubnetAdministration",
    "connectRDMA",
    "listenRDMA",
    "switchToRDMA",
]


def __getattr__(name: str) -> object:
    # PEP 562: ports and reactors are imported on first use, so that importing a codec or the machine from
    # this package does not load them.
    module: object
    if name == "Access":
        from twisted_ib.hca.memory import access

        module = access
    elif name == "SubnetAdministration":
        from twisted_ib.rdma import administration

        module = administration
    elif name in ("RDMAClientEndpoint", "RDMAServerEndpoint", "connectRDMA", "listenRDMA"):
        from twisted_ib.rdma import port

        module = port
    elif name == "RDMAProtocol":
        from twisted_ib.rdma import protocol

        module = protocol
    elif name == "switchToRDMA":
        from twisted_ib.rdma import switching

        module = switching
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(module, name)
