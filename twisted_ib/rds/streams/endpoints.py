"""
Streams over reliable datagrams as endpoints, like C{TCP4ServerEndpoint} and C{HostnameEndpoint}:
C{rds:PORT} and C{rds:HOST:PORT}.

L{twisted_ib.rds.protocol.frames} documents the wire format.  Nothing is opened before C{listen} or
C{connect}.
"""

from __future__ import annotations

from twisted_ib.internet.addressing.endpoints import ClientEndpoint, ServerEndpoint
from twisted_ib.rds.streams.connector import connectStream
from twisted_ib.rds.streams.listening import listenStreams


class RDSServerEndpoint(ServerEndpoint):
    """
    The endpoint that accepts streams.
    """

    listenCall = staticmethod(listenStreams)


class RDSClientEndpoint(ClientEndpoint):
    """
    The endpoint that connects a stream.
    """

    connectCall = staticmethod(connectStream)
