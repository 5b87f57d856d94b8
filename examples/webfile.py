"""
Files for twisted.web that leave as registered memory.

C{twisted.web.static.File} reads 64 KiB, writes them, and waits to be asked for more.  A
L{RegisteredFile} registers the file's own pages, some MiB at a time, and hands them to
C{transport.writeRegistered}: no bytes object is made of them, and the peer fetches what it has
room for by RDMA READ.  Where the connection has no registered memory (C{tcp:}, TLS), or the
client asks for ranges, it is a C{File} like any.

A file that is being sent must not become shorter: replace it by a new one, under its name.

Start a server for both, and a client for each::

    python examples/webfile.py serve sdp:8080 tcp:8081 --folder /srv/files
    python examples/webfile.py get sdp:127.0.0.1:8080 --name large.iso
    python examples/webfile.py get tcp:127.0.0.1:8081 --name large.iso
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections import deque
from hashlib import sha256
from mmap import ACCESS_READ, mmap
from time import perf_counter
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.error import ConnectionClosed
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.task import react
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.client import Agent, ResponseDone
from twisted.web.iweb import IAgentEndpointFactory
from twisted.web.server import Site
from twisted.web.static import File
from zope.interface import implementer

from twisted_ib.interfaces import ISDPTransport

#: How much of a file is registered at a time, and how many of these are on their way at once.
PIECE_BYTES, PIECES_AT_ONCE = 4 << 20, 4
#: Shorter files are read and written.
LEAST_BYTES = 256 << 10


class RegisteredProducer:
    """Sends a file as the body of a response."""

    _log = Logger()

    def __init__(self, request: Any, file: Any, length: int) -> None:
        """Send nothing yet."""
        self._request = request
        self._file = file
        self._length = length
        self._sent: deque[Deferred[None]] = deque()

    def start(self) -> None:
        """Send the response's head, and then the file."""
        self._request.write(b"")
        Deferred.fromCoroutine(self._send()).addErrback(self._failed)

    async def _send(self) -> None:
        """Send one piece after the other; those on their way keep their memory."""
        transport = self._request.channel.transport
        sent = self._sent
        with self._file as file:
            for offset in range(0, self._length, PIECE_BYTES):
                if len(sent) == PIECES_AT_ONCE:
                    await sent.popleft()
                length = min(PIECE_BYTES, self._length - offset)
                pages = mmap(file.fileno(), length, access=ACCESS_READ, offset=offset)
                region = transport.registerMemory(pages)
                sent.append(transport.writeRegistered(region))
                region.close()  # When it is sent.
        while sent:
            await sent.popleft()
        self._request.sentLength += self._length
        self._request.finish()

    def _failed(self, failure: Failure) -> None:
        """The client has gone; or the rest cannot be sent, and the client must see that."""
        for each in self._sent:
            each.addErrback(lambda ignored: None)
        if not failure.check(ConnectionClosed):
            self._log.failure("a file is not sent to its end", failure)
            self._request.channel.transport.abortConnection()


class RegisteredFile(File):
    """A file, or a folder of files, in registered memory where there is such."""

    def makeProducer(self, request: Any, fileForReading: Any) -> Any:
        """Choose how a request is answered."""
        producer = super().makeProducer(request, fileForReading)
        length, transport = self.getsize(), getattr(request.channel, "transport", None)
        registered = ISDPTransport.providedBy(transport) and not request.isSecure()
        if not registered or length < LEAST_BYTES or request.getHeader(b"range") is not None:
            return producer
        return RegisteredProducer(request, fileForReading, length)


class Hashed(Protocol):
    """Takes the body of a response."""

    def __init__(self) -> None:
        """Nothing has come."""
        self.received, self.digest = 0, sha256()
        self.ended: Deferred[None] = Deferred()

    def dataReceived(self, data: bytes) -> None:
        """Hash a part."""
        self.received += len(data)
        self.digest.update(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Say that it is whole, or not."""
        if reason.check(ResponseDone):
            self.ended.callback(None)
        else:
            self.ended.errback(reason)


@implementer(IAgentEndpointFactory)
class OneEndpoint:
    """Has an Agent connect to one endpoint, whatever the URI."""

    def __init__(self, endpoint: Any) -> None:
        """Have it."""
        self._endpoint = endpoint

    def endpointForURI(self, uri: Any) -> Any:
        """Find it."""
        return self._endpoint


async def serve(reactor: Any, endpoints: list[str], folder: str) -> None:
    """Serve a folder on all endpoints, for ever."""
    site = Site(RegisteredFile(folder))
    for text in endpoints:
        port: Any = await serverFromString(reactor, text).listen(site)
        print(text.partition(":")[0], "is at port", port.getHost().port, flush=True)
    await Deferred()


async def get(reactor: Any, endpoint: str, name: str) -> None:
    """Fetch a file and say what it is."""
    agent = Agent.usingEndpointFactory(reactor, OneEndpoint(clientFromString(reactor, endpoint)))
    began = perf_counter()
    response: Any = await agent.request(b"GET", f"http://localhost/{name}".encode())
    body = Hashed()
    response.deliverBody(body)
    await body.ended
    seconds = perf_counter() - began
    print(f"{response.code}: {body.received} bytes in {seconds:.2f} s, sha256 {body.digest.hexdigest()}")


async def main(reactor: Any, *arguments: str) -> None:
    """Do what the command line says."""
    parser = ArgumentParser(description="Files for twisted.web in registered memory.")
    parser.add_argument("what", choices=["serve", "get"])
    parser.add_argument("endpoints", nargs="+", help="such as sdp:8080 or tcp:127.0.0.1:8081")
    parser.add_argument("--folder", default=".", help="what is served")
    parser.add_argument("--name", default="", help="what is fetched")
    options = parser.parse_args(arguments)
    if options.what == "serve":
        await serve(reactor, options.endpoints, options.folder)
    for endpoint in options.endpoints:
        await get(reactor, endpoint, options.name)


if __name__ == "__main__":
    react(main, sys.argv[1:])
