"""
The measurements of C{ib-demo}: round trips and a file, on connections that stay; files of a web server.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from statistics import median
from time import perf_counter
from typing import Any
from urllib.parse import quote

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IProtocolFactory, IReactorTime, IStreamClientEndpoint
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from twisted.web.client import URI, Agent, HTTPConnectionPool, readBody
from twisted.web.iweb import IAgentEndpointFactory
from zope.interface import implementer

from twisted_ib.sdp.transport import SDPTransport
from twisted_ib.tools.compare.measuring import deadlineIn
from twisted_ib.tools.compare.twistedprocess import Caller
from twisted_ib.tools.program import ProgramError

PING = b"p" * 64


@implementer(IAgentEndpointFactory)
@attrs.define
class _AnyURI:
    endpoint: IStreamClientEndpoint

    def endpointForURI(self, uri: URI) -> IStreamClientEndpoint:
        # The URL's host and port give the Host header only; the endpoint decides where and how to connect.
        return self.endpoint


@implementer(IStreamClientEndpoint)
class CountedEndpoint:
    """
    An SDP endpoint that keeps its connections' transports, for their counters.
    """

    def __init__(self, endpoint: IStreamClientEndpoint, transports: list[SDPTransport]) -> None:
        """
        @param transports: the transports of all connections, in order; more are added.
        """
        self._endpoint = endpoint
        self._transports = transports

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[Any]:
        def connected(protocol: Any) -> Any:
            # A switch that fell back to TCP would make the comparison worthless.
            if not isinstance(protocol.transport, SDPTransport):
                raise ProgramError("a connection is not SDP's")
            self._transports.append(protocol.transport)
            return protocol

        return self._endpoint.connect(protocolFactory).addCallback(connected)


def used(transports: list[SDPTransport]) -> str:
    """
    @return: the device, queue pairs and messages of SDP connections, in words.
    """
    devices = ", ".join(sorted({each.channel.device.name for each in transports}))
    # IBTA vol. 1 annex A4: MSeq counts every message, and a connection has one RC queue pair at each end.
    messages = sum(each.machine.sequence + each.machine.received for each in transports)
    return f"SDP has used the device {devices}, {len(transports)} queue pairs and {messages:,} messages."


async def fetchFiles(
    reactor: IReactorTime, endpoint: IStreamClientEndpoint, base: str, hashes: Mapping[str, str]
) -> None:
    """
    Fetch files one after the other on one persistent connection, and compare them with their hashes.

    @param endpoint: where to connect, whatever the URL says.
    @param base: the URL of the files' directory.
    @param hashes: the SHA-256 of each, by name.
    @raise ProgramError: one cannot be had, or has another hash.
    """
    # RFC 9112 section 9.3: persistent.
    pool = HTTPConnectionPool(reactor, persistent=True)
    agent = Agent.usingEndpointFactory(reactor, _AnyURI(endpoint), pool)
    try:
        for name, wanted in hashes.items():
            response = await agent.request(b"GET", f"{base}{quote(name)}".encode("ascii"))
            if response.code != 200:
                raise ProgramError(f"{base}{name}: the server answered {response.code}")
            if sha256(await readBody(response)).hexdigest() != wanted:
                raise ProgramError(f"{base}{name} came with another hash")
    finally:
        await pool.closeCachedConnections()


async def roundTrips(caller: Caller, seconds: float) -> float:
    """
    Send messages to an echo server, one after the other.

    @param seconds: for so long.
    @return: the median of the seconds that a round trip took.
    """
    times: list[int] = []
    await caller.call(PING, deadlineIn(seconds), times)
    return median(times) / 1e9


class Fetcher(Protocol):
    """
    The client of a server that sends its file for each byte that comes.
    """

    _missing = 0
    _digest: Any = None
    _done: Deferred[None]

    def _ask(self, size: int) -> Deferred[None]:
        assert self.transport is not None
        self._missing = size
        self._done = Deferred()
        self.transport.write(b"?")
        return self._done

    def dataReceived(self, data: bytes) -> None:
        if self._digest is not None:
            self._digest.update(data)
        self._missing -= len(data)
        if not self._missing:
            self._done.callback(None)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self._missing > 0:
            self._done.errback(reason)

    async def check(self, size: int, wanted: str) -> None:
        """
        Fetch the file once and compare its SHA-256.

        @raise ProgramError: it is another.
        """
        digest = self._digest = sha256()
        await self._ask(size)
        self._digest = None
        if digest.hexdigest() != wanted:
            raise ProgramError("a file came with another hash")

    async def rate(self, size: int) -> float:
        """
        Fetch the file.

        @return: bytes a second.
        """
        began = perf_counter()
        await self._ask(size)
        return size / (perf_counter() - began)
