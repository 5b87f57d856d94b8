"""
Two-sided subcommands of C{ib-perf}: messages, and streams.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP4ServerEndpoint
from twisted.internet.interfaces import IStreamClientEndpoint, IStreamServerEndpoint

from twisted_ib import limits
from twisted_ib.rdma import RDMAClientEndpoint, RDMAServerEndpoint
from twisted_ib.reactor import direct
from twisted_ib.sdp import SDPClientEndpoint, SDPServerEndpoint
from twisted_ib.tools.perf.link import Link
from twisted_ib.tools.perf.method import Ask, Test
from twisted_ib.tools.perf.runs import PingPong, Run, Source, Span
from twisted_ib.tools.program import ProgramError

#: Connection requests queued at the server.
_BACKLOG = 4 * limits.PERF_CONNECTING


class Exchange(Test):
    """
    A test with both programs: the server's echoes, or counts.
    """

    latencyOf = "a round trip: to the server's program and back"

    async def begin(self, ask: Ask, what: str) -> None:
        """
        See L{Test.begin}.
        """
        await ask(phase=what)

    async def end(self, ask: Ask, moved: int) -> None:
        """
        See L{Test.end}.
        """
        await ask(sent=moved)

    def latency(self, link: Link, message: bytes, span: Span, counts: defaultdict[int, int]) -> Run:
        """
        See L{Test.latency}.
        """
        return PingPong(link, message, span, counts)

    def bandwidth(self, link: Link, message: bytes, span: Span) -> Run:
        """
        See L{Test.bandwidth}.
        """
        return Source(link, message, span)

    async def before(self, link: Link, message: bytes) -> None:
        """
        Send one message and check that it comes back unchanged.
        """
        pieces: list[bytes] = []
        whole: Deferred[None] = Deferred()

        def came(data: bytes) -> None:
            pieces.append(data)
            # A stream may deliver it in pieces.
            if sum(map(len, pieces)) >= len(message) and not whole.called:
                whole.callback(None)

        link.take = came
        link.transport.write(message)
        await whole
        if b"".join(pieces) != message:
            raise ProgramError(f"{len(message)} bytes came back as others")


class Send(Exchange):
    """
    Messages over C{ib:} (SEND, IBTA vol. 1 9.4.1).
    """

    name = "send"
    summary = "messages (SEND and RECEIVE) between two programs"

    def server(self, reactor: Any, port: int, device: str | None) -> IStreamServerEndpoint:
        """
        See L{Test.server}.
        """
        most = limits.PERF_MESSAGE
        return RDMAServerEndpoint(reactor, port, _BACKLOG, device=device, maxMessageSize=most)

    def client(self, reactor: Any, host: str, port: int, device: str | None) -> IStreamClientEndpoint:
        """
        See L{Test.client}.
        """
        return RDMAClientEndpoint(reactor, host, port, device=device, maxMessageSize=limits.PERF_MESSAGE)


class SDP(Exchange):
    """
    Streams over C{sdp:}.
    """

    name = "sdp"
    summary = "streams of sdp:, as a Twisted protocol uses them"

    def server(self, reactor: Any, port: int, device: str | None) -> IStreamServerEndpoint:
        """
        See L{Test.server}.
        """
        return SDPServerEndpoint(reactor, port, _BACKLOG, device=device)

    def client(self, reactor: Any, host: str, port: int, device: str | None) -> IStreamClientEndpoint:
        """
        See L{Test.client}.
        """
        return SDPClientEndpoint(reactor, host, port, device=device)


class TCP(Exchange):
    """
    Twisted's TCP with TCP_NODELAY, for comparison.
    """

    name = "tcp"
    summary = "streams of Twisted's TCP with TCP_NODELAY, to compare"
    hasDevice = False

    def server(self, reactor: Any, port: int, device: str | None) -> IStreamServerEndpoint:
        """
        See L{Test.server}.
        """
        # The switch is bypassed: with the reactor C{ib} a TCP endpoint might otherwise become SDP by its
        # rules.
        return TCP4ServerEndpoint(direct(reactor), port, _BACKLOG)

    def client(self, reactor: Any, host: str, port: int, device: str | None) -> IStreamClientEndpoint:
        """
        See L{Test.client}.
        """
        return TCP4ClientEndpoint(direct(reactor), host, port)
