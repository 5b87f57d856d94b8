"""
SDP as endpoints, to be used like C{TCP4ServerEndpoint} and C{HostnameEndpoint}.

Nothing is opened before C{listen} or C{connect} is called.
"""

from __future__ import annotations

from twisted_ib.hca.endpoints.endpoints import ClientEndpoint, ServerEndpoint
from twisted_ib.sdp.port import connectSDP, listenSDP


class SDPServerEndpoint(ServerEndpoint):
    """
    Listens on an SDP port.
    """

    listenCall = staticmethod(listenSDP)


class SDPClientEndpoint(ClientEndpoint):
    """
    Connects to an SDP port.
    """

    connectCall = staticmethod(connectSDP)
