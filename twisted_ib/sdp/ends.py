"""
The two ends of a connection, as L{twisted.internet.tcp} has C{Server} and
C{Client}.
"""

from __future__ import annotations

from twisted_ib.hca.endpoints.ends import CLIENT_FIELDS, SERVER_FIELDS, ClientEnd, ServerEnd
from twisted_ib.sdp.transport import SDPTransport


class SDPServer(ServerEnd, SDPTransport):
    """
    The transport of a passive side.
    """

    __slots__ = SERVER_FIELDS


class SDPClient(ClientEnd, SDPTransport):
    """
    The transport of an active side.
    """

    __slots__ = CLIENT_FIELDS
