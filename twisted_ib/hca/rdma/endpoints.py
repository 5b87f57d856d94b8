"""
Messages as endpoints, to be used like C{TCP4ServerEndpoint} and C{HostnameEndpoint}.

Nothing is opened before C{listen} or C{connect} is called.
"""

from __future__ import annotations

from twisted_ib.hca.endpoints.endpoints import ClientEndpoint, ServerEndpoint
from twisted_ib.hca.rdma.port import connectRDMA, listenRDMA


class RDMAServerEndpoint(ServerEndpoint):
    """
    Listens for messages; besides the arguments of L{ServerEndpoint} it takes C{privateData} and
    C{maxMessageSize}, as L{listenRDMA}.
    """

    listenCall = staticmethod(listenRDMA)


class RDMAClientEndpoint(ClientEndpoint):
    """
    Connects for messages; besides the arguments of L{ClientEndpoint} it takes C{privateData} and
    C{maxMessageSize}, as L{connectRDMA}.
    """

    connectCall = staticmethod(connectRDMA)
