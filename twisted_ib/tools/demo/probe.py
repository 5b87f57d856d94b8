"""
The measurements of C{ib-demo} for each transport: file transfers and round trips.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any
from urllib.parse import quote

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IProtocolFactory, IReactorTime, IStreamClientEndpoint
from twisted.internet.protocol import Factory, Protocol
from twisted.python.failure import Failure
from twisted.web.client import URI, Agent, HTTPConnectionPool, ResponseDone
from twisted.web.iweb import IAgentEndpointFactory
from zope.interface import implementer

from twisted_ib.sdp.transport import SDPTransport
from twisted_ib.tools.program import ProgramError

PING = b"p" * 64

#: Round trips before the first that is measured: caches, allocators and adaptive polling settle.
WARM_UP = 300

ROUND_TRIPS = 3000


@attrs.frozen
class RoundTripTimes:
    """
    Round trip times, in seconds.

    @ivar p50: the median.
    @ivar p99: the 99th percentile.
    """

    p50: float
    p99: float


@attrs.frozen
class Fetched:
    """
    Files that came over one transport.

    @ivar contents: each file's content by its name.
    @ivar seconds: the time that all took.
    """

    contents: Mapping[str, bytes]
    seconds: float

    @property
    def size(self) -> int:
        """
        The bytes of all files.
        """
        return sum(map(len, self.contents.values()))


class _Content(Protocol):
    def __init__(self, progress: Callable[[int], None]) -> None:
        self._progress = progress
        self._pieces: list[bytes] = []
        self.whole: Deferred[bytes] = Deferred()

    def dataReceived(self, data: bytes) -> None:
        self._pieces.append(data)
        self._progress(len(data))

    def connectionLost(self, reason: Failure | None = None) -> None:
        assert reason is not None
        # IResponse.deliverBody: any other reason means that the body is not complete.
        if reason.check(ResponseDone):
            self.whole.callback(b"".join(self._pieces))
        else:
            self.whole.errback(reason)


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

    @ivar transports: in the order of their connections.
    """

    def __init__(self, endpoint: IStreamClientEndpoint) -> None:
        self._endpoint = endpoint
        self.transports: list[SDPTransport] = []

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[Any]:
        """
        Connect; the Deferred fires with the protocol.
        """

        def connected(protocol: Any) -> Any:
            # A switch that fell back to TCP would make the comparison worthless.
            if not isinstance(protocol.transport, SDPTransport):
                raise ProgramError("a connection is not SDP's")
            self.transports.append(protocol.transport)
            return protocol

        return self._endpoint.connect(protocolFactory).addCallback(connected)

    @property
    def messages(self) -> int:
        """
        SDP messages sent and received.
        """
        # IBTA vol. 1 annex A4: MSeq counts every message, so the counters are there anyway.
        return sum(each.machine.sequence + each.machine.received for each in self.transports)

    @property
    def devices(self) -> str:
        """
        The names of the HCAs in use.
        """
        return ", ".join(sorted({each.channel.device.name for each in self.transports}))


async def fetchFiles(
    reactor: IReactorTime,
    endpoint: IStreamClientEndpoint,
    base: str,
    names: list[str],
    progress: Callable[[int], None],
) -> Fetched:
    """
    Fetch files one after the other on one persistent connection.

    @param endpoint: where to connect, whatever the URL says.
    @param base: the URL of the files' directory.
    @param progress: called with the size of each piece that arrives.
    """
    # RFC 9112 section 9.3: persistent, so that connection set-up is measured once and not per file.
    pool = HTTPConnectionPool(reactor, persistent=True)
    agent = Agent.usingEndpointFactory(reactor, _AnyURI(endpoint), pool)
    contents = {}
    began = perf_counter()
    try:
        for name in names:
            response = await agent.request(b"GET", f"{base}{quote(name)}".encode("ascii"))
            if response.code != 200:
                raise ProgramError(f"{base}{name}: the server answered {response.code}")
            content = _Content(progress)
            response.deliverBody(content)
            contents[name] = await content.whole
        seconds = perf_counter() - began
    finally:
        await pool.closeCachedConnections()
    return Fetched(contents, seconds)


class _Pinger(Protocol):
    def __init__(self, noDelay: bool) -> None:
        self._noDelay = noDelay
        self._times: list[float] = []
        self._missing = 0
        self._began = 0.0
        self._finished = False
        self.done: Deferred[list[float]] = Deferred()

    def connectionMade(self) -> None:
        assert self.transport is not None
        if self._noDelay:
            self.transport.setTcpNoDelay(True)  # type: ignore[attr-defined]
        self._ping()

    def _ping(self) -> None:
        assert self.transport is not None
        self._missing = len(PING)
        self._began = perf_counter()
        self.transport.write(PING)

    def dataReceived(self, data: bytes) -> None:
        self._missing -= len(data)
        # A stream may deliver an echo in pieces.
        if self._missing > 0:
            return
        self._times.append(perf_counter() - self._began)
        if len(self._times) < WARM_UP + ROUND_TRIPS:
            self._ping()
            return
        self._finished = True
        assert self.transport is not None
        self.transport.loseConnection()

    def connectionLost(self, reason: Failure | None = None) -> None:
        assert reason is not None
        if self._finished:
            self.done.callback(self._times[WARM_UP:])
        else:
            self.done.errback(reason)


async def roundTrips(endpoint: IStreamClientEndpoint, noDelay: bool = False) -> RoundTripTimes:
    """
    Measure small round trips on one connection to an echo server.

    @param noDelay: whether to set TCP_NODELAY on this end.
    """
    pinger: Any = await endpoint.connect(Factory.forProtocol(lambda: _Pinger(noDelay)))
    times = sorted(await pinger.done)
    return RoundTripTimes(times[len(times) // 2], times[len(times) * 99 // 100])
