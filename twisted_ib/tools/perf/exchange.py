"""
Two-sided subcommands of C{ib-perf}: messages, and streams.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.endpoints import TCP4ClientEndpoint, TCP4ServerEndpoint
from twisted.internet.interfaces import IStreamClientEndpoint, IStreamServerEndpoint

from twisted_ib import limits
from twisted_ib.rdma import RDMAClientEndpoint, RDMAServerEndpoint
from twisted_ib.reactor import direct
from twisted_ib.sdp import SDPClientEndpoint, SDPServerEndpoint
from twisted_ib.tools.perf.method import Test

#: Connection requests queued at the server.
_BACKLOG = 4 * limits.PERF_CONNECTING


class Send(Test):
    """
    Messages over C{ib:} (SEND, IBTA vol. 1 9.4.1).
    """

    name = "send"
    summary = "messages (SEND and RECEIVE) between two programs"

    def server(self, reactor: Any, port: int, device: str | None) -> IStreamServerEndpoint:
        most = limits.PERF_MESSAGE
        return RDMAServerEndpoint(reactor, port, _BACKLOG, device=device, maxMessageSize=most)

    def client(self, reactor: Any, host: str, port: int, device: str | None) -> IStreamClientEndpoint:
        return RDMAClientEndpoint(reactor, host, port, device=device, maxMessageSize=limits.PERF_MESSAGE)


class SDP(Test):
    """
    Streams over C{sdp:}.
    """

    name = "sdp"
    summary = "streams of sdp:, as a Twisted protocol uses them"

    def server(self, reactor: Any, port: int, device: str | None) -> IStreamServerEndpoint:
        return SDPServerEndpoint(reactor, port, _BACKLOG, device=device)

    def client(self, reactor: Any, host: str, port: int, device: str | None) -> IStreamClientEndpoint:
        return SDPClientEndpoint(reactor, host, port, device=device)


class TCP(Test):
    """
    Twisted's TCP with TCP_NODELAY, for comparison.
    """

    name = "tcp"
    summary = "streams of Twisted's TCP with TCP_NODELAY, to compare"
    hasDevice = False

    def server(self, reactor: Any, port: int, device: str | None) -> IStreamServerEndpoint:
        # The switch is bypassed: with the reactor C{ib} a TCP endpoint might otherwise become SDP by its
        # rules.
        return TCP4ServerEndpoint(direct(reactor), port, _BACKLOG)

    def client(self, reactor: Any, host: str, port: int, device: str | None) -> IStreamClientEndpoint:
        return TCP4ClientEndpoint(direct(reactor), host, port)
