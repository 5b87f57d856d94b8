"""
Streams over reliable datagrams as endpoints, to be used like C{TCP4ServerEndpoint} and
C{HostnameEndpoint}: C{rds:PORT} and C{rds:HOST:PORT}.

What they speak is documented in L{twisted_ib.rds.protocol.frames}.  Nothing is opened before C{listen} or
C{connect} is called.
"""

from __future__ import annotations

from twisted_ib.internet.endpoints import ClientEndpoint, ServerEndpoint
from twisted_ib.rds.streams.connector import connectStream
from twisted_ib.rds.streams.listening import listenStreams


class RDSServerEndpoint(ServerEndpoint):
    """
    Accepts streams over reliable datagrams.
    """

    listenCall = staticmethod(listenStreams)


class RDSClientEndpoint(ClientEndpoint):
    """
    Connects a stream over reliable datagrams.
    """

    connectCall = staticmethod(connectStream)
