"""
The second server of C{ib-demo}: C{python -m twisted_ib.tools.demo.server FILE KIND=ENDPOINT...}.

C{echo}, C{echo-nodelay} and C{file} are Twisted's own protocols, and nothing in them is made for SDP.
C{registered} sends the file as registered memory, which only SDP has.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from mmap import ACCESS_READ, mmap
from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import serverFromString
from twisted.internet.interfaces import ITCPTransport
from twisted.internet.protocol import Factory, Protocol
from twisted.protocols.basic import FileSender
from twisted.protocols.wire import Echo

from twisted_ib.interfaces import ISDPTransport
from twisted_ib.tools.program import runProgram, write

PROGRAM = "ib-demo-server"

READY = "ready"


class PromptEcho(Echo):
    """
    Echo with TCP_NODELAY.
    """

    def connectionMade(self) -> None:
        # RFC 9293 section 3.7.4: Nagle's algorithm holds a small segment back until the last one is
        # acknowledged, which a delayed ACK (RFC 1122 section 4.2.3.2) can make 40 ms and more.
        cast(ITCPTransport, self.transport).setTcpNoDelay(True)


class FileServer(Protocol):
    """
    Sends a file for each byte that comes, as Twisted programs do.

    @ivar path: the file's.
    """

    path = ""

    def dataReceived(self, data: bytes) -> None:
        file = open(self.path, "rb")
        sent: Deferred[bytes] = FileSender().beginFileTransfer(file, self.transport)
        # It fails if the client has gone.
        sent.addBoth(lambda _: file.close())


class RegisteredFileServer(FileServer):
    """
    Sends the file's own pages, which the client fetches by RDMA READ: no bytes object is made of them.
    """

    def dataReceived(self, data: bytes) -> None:
        transport = cast(ISDPTransport, self.transport)
        with open(self.path, "rb") as file:
            region = transport.registerMemory(mmap(file.fileno(), 0, access=ACCESS_READ))
        transport.writeRegistered(region).addErrback(lambda _: None)
        # As soon as it is sent.
        region.close()


#: The protocols by the kinds of the command line.
KINDS: dict[str, type[Protocol]] = {
    "echo": Echo,
    "echo-nodelay": PromptEcho,
    "file": FileServer,
    "registered": RegisteredFileServer,
}


async def serve(reactor: Any, arguments: Sequence[str]) -> int:
    """
    Listen on every endpoint, report that, and serve until the process ends.

    @return: never.
    """
    FileServer.path, *services = arguments
    for service in services:
        kind, _, endpoint = service.partition("=")
        await serverFromString(reactor, endpoint).listen(Factory.forProtocol(KINDS[kind]))
    # Standard output is a pipe here, which Python buffers in blocks.
    write(READY)
    forever: Deferred[int] = Deferred()
    return await forever


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run the server.
    """
    given = sys.argv[1:] if arguments is None else arguments
    return runProgram(PROGRAM, lambda reactor: Deferred.fromCoroutine(serve(reactor, given)))


if __name__ == "__main__":
    sys.exit(main())
