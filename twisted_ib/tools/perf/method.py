"""
The interface of an C{ib-perf} subcommand: endpoints, and the work of a connection for latency and bandwidth.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IStreamClientEndpoint, IStreamServerEndpoint

from twisted_ib.tools.perf.link import Link
from twisted_ib.tools.perf.parameters import Parameters
from twisted_ib.tools.perf.runs import PingPong, Run, Source, Span
from twisted_ib.tools.program import ProgramError

#: The phases of the dialogue: the server echoes, or counts.
ECHO, COUNT = "echo", "count"

#: Asks a question on the control connection.
Ask = Callable[..., Awaitable[dict[str, Any]]]


def pattern(terms: Parameters) -> bytes:
    """
    Return test data without repetitions; both ends make the same.
    """
    # Seeded with the size, so that neither end has to send its data for a comparison.
    return random.Random(terms.largest).randbytes(terms.largest)


class Test:
    """
    One subcommand: by default of both programs, of which the server's echoes, or counts.

    @cvar latencyOf: The meaning of a latency, for the report.
    @cvar only: The one message size; L{None} for any.
    @cvar hasDevice: Whether it uses an HCA.
    """

    name: str
    summary: str
    latencyOf = "a round trip: to the server's program and back"
    only: int | None = None
    hasDevice = True

    # -- both ends

    def server(self, reactor: Any, port: int, device: str | None) -> IStreamServerEndpoint:
        """
        Return the endpoint of the server.

        @param port: 0 for any.
        @param device: The HCA; L{None} for the host's default.
        """
        raise NotImplementedError

    def client(self, reactor: Any, host: str, port: int, device: str | None) -> IStreamClientEndpoint:
        """
        Return the endpoint of the client.

        @param device: The HCA; L{None} for the host's default.
        """
        raise NotImplementedError

    # -- the server's end

    def welcome(self, link: Link, terms: Parameters) -> dict[str, Any]:
        """
        Prepare a connection at the server, and return what the client has to know.
        """
        return {}

    # -- the client's end

    def joined(self, link: Link, terms: Parameters, answer: dict[str, Any]) -> None:
        """
        Prepare a connection at the client.

        @param answer: The server's result of L{welcome}.
        """

    async def begin(self, ask: Ask, what: str) -> None:
        """
        Announce a phase to the server.

        @param what: L{ECHO} or L{COUNT}.
        """
        await ask(phase=what)

    async def end(self, ask: Ask, moved: int) -> None:
        """
        Wait until everything has arrived at the server.

        @param moved: Bytes sent.
        """
        await ask(sent=moved)

    def latency(self, link: Link, message: bytes, span: Span, counts: defaultdict[int, int]) -> Run:
        """
        Return a run of messages sent one after the other.

        @param counts: Receives the number of messages per latency, in nanoseconds.
        """
        return PingPong(link, message, span, counts)

    def bandwidth(self, link: Link, message: bytes, span: Span) -> Run:
        """
        Return a run of messages sent as fast as possible.
        """
        return Source(link, message, span)

    async def before(self, link: Link, message: bytes) -> None:
        """
        Send one message and check that it comes back unchanged, outside the measured time.

        @raise ProgramError: It does not.
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

    async def after(self, link: Link, message: bytes) -> None:
        """
        Verify a connection after a size, outside the measured time.

        @raise ProgramError: Data was corrupted.
        """
