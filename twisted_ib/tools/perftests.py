"""
What C{ib-perf} can measure: a class for each subcommand, all of them in L{TESTS}.

A test says how its ends meet, and what a connection does for latency and for bandwidth.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

from attrs import define, frozen
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP4ServerEndpoint
from twisted.internet.interfaces import IStreamClientEndpoint, IStreamServerEndpoint
from twisted.internet.posixbase import PosixReactorBase

from twisted_ib import limits
from twisted_ib.hca.rdma import Access
from twisted_ib.hca.rdma.endpoints import RDMAClientEndpoint, RDMAServerEndpoint
from twisted_ib.sdp.endpoints import SDPClientEndpoint, SDPServerEndpoint
from twisted_ib.tools.perflink import Link
from twisted_ib.tools.perfruns import PingPong, Requests, Run, Source, Span
from twisted_ib.tools.perfterms import Terms
from twisted_ib.tools.program import ProgramError

#: Connections that a server keeps until it accepts them.
_BACKLOG = 4 * limits.PERF_CONNECTING

#: How an echo and a sink are called in the talk.
ECHO, COUNT = "echo", "count"

#: Bytes of an atomic operation.
_COUNTER = 8

#: Asks the server, on the control connection.
Ask = Callable[..., Awaitable[dict[str, Any]]]


def pattern(terms: Terms) -> bytes:
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

    def welcome(self, link: Link, terms: Terms) -> dict[str, Any]:
        """
        Make a connection ready.

        @param link: the connection.
        @param terms: what is measured.

        @return: what the client has to know.
        """
        return {}

    # -- the client's end

    def joined(self, link: Link, terms: Terms, answer: dict[str, Any]) -> None:
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


class Exchange(Test):
    """
    Both programs take part: the server's sends back, or counts.
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
        One message has to come back as it was.
        """
        pieces: list[bytes] = []
        whole: Deferred[None] = Deferred()

        def came(data: bytes) -> None:
            pieces.append(data)
            if sum(map(len, pieces)) >= len(message) and not whole.called:
                whole.callback(None)

        link.take = came
        link.transport.write(message)
        await whole
        if b"".join(pieces) != message:
            raise ProgramError(f"{len(message)} bytes came back as others")


class Send(Exchange):
    """
    Messages of C{ib:}.
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
    Streams of C{sdp:}.
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


@frozen
class _SystemTCP:
    """
    The two calls of a reactor that are the operating system's TCP, also where the reactor's own
    C{listenTCP} and C{connectTCP} would find SDP.

    @ivar reactor: the reactor.
    """

    reactor: Any

    def listenTCP(self, *arguments: Any, **named: Any) -> Any:
        """
        See C{IReactorTCP}.
        """
        return PosixReactorBase.listenTCP(self.reactor, *arguments, **named)

    def connectTCP(self, *arguments: Any, **named: Any) -> Any:
        """
        See C{IReactorTCP}.
        """
        return PosixReactorBase.connectTCP(self.reactor, *arguments, **named)


class TCP(Exchange):
    """
    Twisted's TCP with TCP_NODELAY.
    """

    name = "tcp"
    summary = "the same over Twisted's TCP with TCP_NODELAY, to compare"
    hasDevice = False

    def server(self, reactor: Any, port: int, device: str | None) -> IStreamServerEndpoint:
        """
        See L{Test.server}.
        """
        return TCP4ServerEndpoint(_SystemTCP(reactor), port, _BACKLOG)

    def client(self, reactor: Any, host: str, port: int, device: str | None) -> IStreamClientEndpoint:
        """
        See L{Test.client}.
        """
        return TCP4ClientEndpoint(_SystemTCP(reactor), host, port)


@define
class Memory:
    """
    The memory of both ends of a connection, as the client knows it.

    @ivar region: the client's.
    @ivar address: where the server's begins.
    @ivar key: its key.
    @ivar added: how often 1 was added there.
    """

    region: Any
    address: int
    key: int
    added: int = 0


class OneSided(Send):
    """
    The server's program has no part: its HCA does what the client's requests.

    @cvar access: what the client may do to the server's memory.
    """

    latencyOf = "a request: until its completion"
    access: Access

    def welcome(self, link: Link, terms: Terms) -> dict[str, Any]:
        """
        Register the memory that the client reaches into.
        """
        region = link.transport.registerMemory(terms.largest, self.access)
        self.fill(region, terms)
        link.memory = region
        return {"address": region.address, "key": region.remoteKey}

    def fill(self, region: Any, terms: Terms) -> None:
        """
        @param region: the server's memory, all zeros.
        @param terms: what is measured.
        """

    def joined(self, link: Link, terms: Terms, answer: dict[str, Any]) -> None:
        """
        Register memory here, and keep where the server's is.
        """
        address, key = answer.get("address"), answer.get("key")
        if type(address) is not int or type(key) is not int:
            raise ProgramError("the server does not say where its memory is")
        region = link.transport.registerMemory(terms.largest)
        link.memory = Memory(region, address, key)

    async def begin(self, ask: Ask, what: str) -> None:
        """
        There is nothing to tell.
        """

    async def end(self, ask: Ask, moved: int) -> None:
        """
        What is done has arrived.
        """

    async def before(self, link: Link, message: bytes) -> None:
        """
        Nothing is sent.
        """

    def request(self, link: Link, size: int) -> Callable[[], Deferred[Any]]:
        """
        @param link: the connection.
        @param size: how many bytes.

        @return: posts one request.
        """
        raise NotImplementedError

    def latency(self, link: Link, message: bytes, span: Span, counts: defaultdict[int, int]) -> Run:
        """
        See L{Test.latency}.
        """
        return Requests(self.request(link, len(message)), 1, span, counts)

    def bandwidth(self, link: Link, message: bytes, span: Span) -> Run:
        """
        See L{Test.bandwidth}.
        """
        return Requests(self.request(link, len(message)), limits.PERF_DEPTH, span)


class Write(OneSided):
    """
    RDMA WRITE.
    """

    name = "write"
    summary = "RDMA WRITE from registered memory into the server's"
    access = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ

    async def before(self, link: Link, message: bytes) -> None:
        """
        The client's memory has the message.
        """
        link.memory.region.view[: len(message)] = message

    def request(self, link: Link, size: int) -> Callable[[], Deferred[Any]]:
        """
        See L{OneSided.request}.
        """
        memory, write = link.memory, link.transport.rdmaWrite
        region, address, key = memory.region, memory.address, memory.key
        return lambda: write(region, address, key, 0, size)

    async def after(self, link: Link, message: bytes) -> None:
        """
        The server's memory has to have the message.
        """
        memory = link.memory
        found = await link.transport.rdmaRead(len(message), memory.address, memory.key)
        if found != message:
            raise ProgramError(f"{len(message)} bytes were written as others")


class Read(OneSided):
    """
    RDMA READ.
    """

    name = "read"
    summary = "RDMA READ from the server's memory into registered memory"
    access = Access.LOCAL_WRITE | Access.REMOTE_READ

    def fill(self, region: Any, terms: Terms) -> None:
        """
        The server's memory has what the client knows too.
        """
        region.view[:] = pattern(terms)

    async def before(self, link: Link, message: bytes) -> None:
        """
        The client's memory has nothing.
        """
        link.memory.region.view[: len(message)] = bytes(len(message))

    def request(self, link: Link, size: int) -> Callable[[], Deferred[Any]]:
        """
        See L{OneSided.request}.
        """
        memory, read = link.memory, link.transport.rdmaRead
        region, address, key = memory.region, memory.address, memory.key
        return lambda: read(size, address, key, region)

    async def after(self, link: Link, message: bytes) -> None:
        """
        The client's memory has to have the message.
        """
        if link.memory.region.view[: len(message)] != message:
            raise ProgramError(f"{len(message)} bytes were read as others")


class Atomic(OneSided):
    """
    Atomic FetchAdd.
    """

    name = "atomic"
    summary = "atomic FetchAdd to 8 bytes of the server's memory"
    access = Access.LOCAL_WRITE | Access.REMOTE_ATOMIC
    only = _COUNTER

    def request(self, link: Link, size: int) -> Callable[[], Deferred[Any]]:
        """
        See L{OneSided.request}.
        """
        memory, fetchAdd = link.memory, link.transport.fetchAdd
        address, key = memory.address, memory.key

        def post() -> Deferred[Any]:
            memory.added += 1
            return fetchAdd(address, key, 1)

        return post

    async def after(self, link: Link, message: bytes) -> None:
        """
        The server's memory has to have the number of requests.
        """
        memory = link.memory
        found = await link.transport.fetchAdd(memory.address, memory.key, 0)
        if found != memory.added:
            raise ProgramError(f"the counter is {found} after {memory.added} additions")


TESTS: tuple[Test, ...] = (Send(), Write(), Read(), Atomic(), SDP(), TCP())
