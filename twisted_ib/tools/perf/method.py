"""
What a subcommand of C{ib-perf} says: how its ends meet, and what a connection does for latency and
for bandwidth.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

from twisted.internet.interfaces import IStreamClientEndpoint, IStreamServerEndpoint

from twisted_ib.tools.perf.link import Link
from twisted_ib.tools.perf.parameters import Parameters
from twisted_ib.tools.perf.runs import Run, Span

#: How an echo and a sink are called in the talk.
ECHO, COUNT = "echo", "count"

#: Asks the server, on the control connection.
Ask = Callable[..., Awaitable[dict[str, Any]]]


def pattern(terms: Parameters) -> bytes:
    """
    @param terms: what is measured.

    @return: bytes in which no part looks like another; the same at both ends.
    """
    return random.Random(terms.largest).randbytes(terms.largest)


class Test:
    """
    One subcommand.

    @cvar name: its name.
    @cvar summary: what it measures, in a line of help.
    @cvar latencyOf: what a time is.
    @cvar only: the one size that it knows; L{None} for any.
    @cvar hasDevice: whether it uses an HCA.
    """

    name: str
    summary: str
    latencyOf: str
    only: int | None = None
    hasDevice = True

    # -- both ends

    def server(self, reactor: Any, port: int, device: str | None) -> IStreamServerEndpoint:
        """
        @param reactor: the reactor.
        @param port: the port; 0 for any.
        @param device: the HCA; L{None} for the host's default.

        @return: where clients are waited for.
        """
        raise NotImplementedError

    def client(self, reactor: Any, host: str, port: int, device: str | None) -> IStreamClientEndpoint:
        """
        @param reactor: the reactor.
        @param host: the server's address or name.
        @param port: its port.
        @param device: the HCA; L{None} for the host's default.

        @return: the way to the server.
        """
        raise NotImplementedError

    # -- the server's end

    def welcome(self, link: Link, terms: Parameters) -> dict[str, Any]:
        """
        Make a connection ready.

        @param link: the connection.
        @param terms: what is measured.

        @return: what the client has to know.
        """
        return {}

    # -- the client's end

    def joined(self, link: Link, terms: Parameters, answer: dict[str, Any]) -> None:
        """
        Make a connection ready.

        @param link: the connection.
        @param terms: what is measured.
        @param answer: what the server said of it.
        """

    async def begin(self, ask: Ask, what: str) -> None:
        """
        Tell the server what comes.

        @param ask: asks the server.
        @param what: L{ECHO} or L{COUNT}.
        """

    async def end(self, ask: Ask, moved: int) -> None:
        """
        Wait until all has arrived.

        @param ask: asks the server.
        @param moved: how many bytes were sent.
        """

    def latency(self, link: Link, message: bytes, span: Span, counts: defaultdict[int, int]) -> Run:
        """
        @param link: the connection.
        @param message: of the size that is measured.
        @param span: how long.
        @param counts: where each message's time belongs.

        @return: messages one after the other.
        """
        raise NotImplementedError

    def bandwidth(self, link: Link, message: bytes, span: Span) -> Run:
        """
        @param link: the connection.
        @param message: of the size that is measured.
        @param span: how long.

        @return: messages as fast as they go.
        """
        raise NotImplementedError

    async def before(self, link: Link, message: bytes) -> None:
        """
        What is not timed, between L{begin} of the echo and L{latency}.

        @param link: a connection.
        @param message: of the size that is measured.

        @raise ProgramError: other bytes came than were sent.
        """

    async def after(self, link: Link, message: bytes) -> None:
        """
        What is not timed, at the end of a size.

        @param link: a connection.
        @param message: of the size that was measured.

        @raise ProgramError: the bytes are not what they should be.
        """
