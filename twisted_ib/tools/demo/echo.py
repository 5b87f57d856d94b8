"""
The other end of C{ib-demo}'s round trips: C{python -m twisted_ib.tools.demo.echo ENDPOINT...}.

Nothing in it is made for SDP: Twisted's own echo protocol, on whatever
endpoints the command line names. An endpoint after C{--nodelay} has
TCP_NODELAY set on its connections.
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

from twisted_ib.tools.program import runProgram

PROGRAM = "ib-echo"

READY = "ready"


class PromptEcho(Echo):
    """
    Echo on a connection that does not wait for more to send.
    """

    def connectionMade(self) -> None:
        """
        Set TCP_NODELAY.
        """
        cast(ITCPTransport, self.transport).setTcpNoDelay(True)


async def serve(reactor: Any, arguments: Sequence[str]) -> int:
    """
    Listen on every endpoint, say so, and serve until the process is ended.

    @param reactor: the reactor.
    @param arguments: the command line.

    @return: never.
    """
    protocol: type[Echo] = Echo
    for argument in arguments:
        if argument == "--nodelay":
            protocol = PromptEcho
            continue
        await serverFromString(reactor, argument).listen(Factory.forProtocol(protocol))
    print(READY, flush=True)
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
