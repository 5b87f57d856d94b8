"""
The echo server of C{ib-demo}: C{python -m twisted_ib.tools.demo.echo ENDPOINT...}.

Nothing in it is made for SDP: Twisted's own echo protocol on the endpoints of the command line.  Endpoints
after C{--nodelay} have TCP_NODELAY set on their connections.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import serverFromString
from twisted.internet.interfaces import ITCPTransport
from twisted.internet.protocol import Factory
from twisted.protocols.wire import Echo

from twisted_ib.tools.program import runProgram, write

PROGRAM = "ib-echo"

READY = "ready"


class PromptEcho(Echo):
    """
    Echo with TCP_NODELAY.
    """

    def connectionMade(self) -> None:
        """
        Set TCP_NODELAY.
        """
        # RFC 9293 section 3.7.4: Nagle's algorithm holds a small segment back until the last one is
        # acknowledged, which a delayed ACK (RFC 1122 section 4.2.3.2) can make 40 ms and more.
        cast(ITCPTransport, self.transport).setTcpNoDelay(True)


async def serve(reactor: Any, arguments: Sequence[str]) -> int:
    """
    Listen on every endpoint, report that, and serve until the process ends.

    @return: never.
    """
    protocol: type[Echo] = Echo
    for argument in arguments:
        if argument == "--nodelay":
            protocol = PromptEcho
            continue
        await serverFromString(reactor, argument).listen(Factory.forProtocol(protocol))
    # Standard output is a pipe here, which Python buffers in blocks.
    write(READY)
    forever: Deferred[int] = Deferred()
    return await forever


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run the echo server.

    @param arguments: the command line, by default this process's.
    @return: the exit status.
    """
    given = sys.argv[1:] if arguments is None else arguments
    return runProgram(PROGRAM, lambda reactor: Deferred.fromCoroutine(serve(reactor, given)))


if __name__ == "__main__":
    sys.exit(main())
