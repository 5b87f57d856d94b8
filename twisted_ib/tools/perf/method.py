"""
The interface of an C{ib-perf} subcommand: endpoints, and the work of a connection for latency and bandwidth.
The subcommands are two-sided, messages and streams, or one-sided: RDMA WRITE, RDMA READ and atomics on the
server's memory.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from attrs import define
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP4ServerEndpoint
from twisted.internet.interfaces import IStreamClientEndpoint, IStreamServerEndpoint

from twisted_ib import limits
from twisted_ib.rdma import Access, RDMAClientEndpoint, RDMAServerEndpoint
from twisted_ib.reactor import direct
from twisted_ib.sdp import SDPClientEndpoint, SDPServerEndpoint
from twisted_ib.tools.perf.link import Link
from twisted_ib.tools.perf.parameters import Parameters
from twisted_ib.tools.perf.runs import PingPong, Requests, Run, Source, Span
from twisted_ib.tools.program import ProgramError

if TYPE_CHECKING:
    from twisted_ib.internet.region import RDMARegion

#: Bytes of an atomic operation: always 8 (IBTA vol. 1 9.4.5).
_COUNTER = 8

#: Connection requests queued at the server.
_BACKLOG = 4 * limits.PERF_CONNECTING

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


class Send(Test):
    """
    Messages over C{ib:} (SEND, IBTA vol. 1 9.4.1).
    """

    name = "send"
    summary = "messages (SEND and RECEIVE) between two programs"

    def server(self, reactor: Any, port: int, device: str | None) -> IStreamServerEndpoint:
        most = limits.PERF_MESSAGE
        return RDMAServerEndpoint(reactor, port, _BACKLOG, device=device, maxMessageSize=most)

    def client(self, reactor: Any, host: str, port: int, device: str | None) -> IStreamClientEndpoint:
        return RDMAClientEndpoint(reactor, host, port, device=device, maxMessageSize=limits.PERF_MESSAGE)


class SDP(Test):
    """
    Streams over C{sdp:}.
    """

    name = "sdp"
    summary = "streams of sdp:, as a Twisted protocol uses them"

    def server(self, reactor: Any, port: int, device: str | None) -> IStreamServerEndpoint:
        return SDPServerEndpoint(reactor, port, _BACKLOG, device=device)

    def client(self, reactor: Any, host: str, port: int, device: str | None) -> IStreamClientEndpoint:
        return SDPClientEndpoint(reactor, host, port, device=device)


class TCP(Test):
    """
    Twisted's TCP with TCP_NODELAY, for comparison.
    """

    name = "tcp"
    summary = "streams of Twisted's TCP with TCP_NODELAY, to compare"
    hasDevice = False

    def server(self, reactor: Any, port: int, device: str | None) -> IStreamServerEndpoint:
        # The switch is bypassed: with the reactor C{ib} a TCP endpoint might otherwise become SDP by its
        # rules.
        return TCP4ServerEndpoint(direct(reactor), port, _BACKLOG)

    def client(self, reactor: Any, host: str, port: int, device: str | None) -> IStreamClientEndpoint:
        return TCP4ClientEndpoint(direct(reactor), host, port)


@define
class Memory:
    """
    The client's view of a connection's memory.

    @ivar region: The client's region.
    @ivar address: The address of the server's region; C{key} is its R_Key.
    @ivar added: FetchAdds of 1 posted.
    """

    region: RDMARegion
    address: int
    key: int
    added: int = 0


class OneSided(Send):
    """
    A test without the server's program: its HCA serves the client's requests.

    @cvar access: The client's rights on the server's memory.
    """

    latencyOf = "a request: until its completion"
    access: Access

    def welcome(self, link: Link, terms: Parameters) -> dict[str, Any]:
        region = link.transport.registerMemory(terms.largest, self.access)
        self.fill(region, terms)
        link.memory = region
        # perftest exchanges the same over its TCP connection before the test (perftest_communication.c).
        return {"address": region.address, "key": region.remoteKey}

    def fill(self, region: RDMARegion, terms: Parameters) -> None:
        """
        Initialize the server's memory, which is all zeros.
        """

    def joined(self, link: Link, terms: Parameters, answer: dict[str, Any]) -> None:
        address, key = answer.get("address"), answer.get("key")
        # Not isinstance: JSON's true is an int to Python.
        if type(address) is not int or type(key) is not int:
            raise ProgramError("the server does not say where its memory is")
        # No remote rights: only the client's own requests touch it (IBTA vol. 1 10.6.3).
        region = link.transport.registerMemory(terms.largest)
        link.memory = Memory(region, address, key)

    async def begin(self, ask: Ask, what: str) -> None:
        pass  # The server has no phases.

    async def end(self, ask: Ask, moved: int) -> None:
        pass

    async def before(self, link: Link, message: bytes) -> None:
        pass  # There is no echo to test.

    def request(self, link: Link, size: int) -> Callable[[], Deferred[Any]]:
        """
        Return a function that posts one request of C{size} bytes.
        """
        raise NotImplementedError

    def latency(self, link: Link, message: bytes, span: Span, counts: defaultdict[int, int]) -> Run:
        return Requests(self.request(link, len(message)), 1, span, counts)

    def bandwidth(self, link: Link, message: bytes, span: Span) -> Run:
        # More requests than the responder's resources wait in the send queue (IBTA vol. 1 9.7.4), which keeps
        # it busy.
        return Requests(self.request(link, len(message)), limits.PERF_DEPTH, span)


class Write(OneSided):
    """
    RDMA WRITE (IBTA vol. 1 9.4.3).
    """

    name = "write"
    summary = "RDMA WRITE from registered memory into the server's"
    # Remote read serves the comparison in C{after}; remote write requires local write (IBTA vol. 1 10.6.3).
    access = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ

    async def before(self, link: Link, message: bytes) -> None:
        link.memory.region.view[: len(message)] = message

    def request(self, link: Link, size: int) -> Callable[[], Deferred[Any]]:
        memory: Memory = link.memory
        write = link.transport.rdmaWrite
        region, address, key = memory.region, memory.address, memory.key
        return lambda: write(region, address, key, 0, size)

    async def after(self, link: Link, message: bytes) -> None:
        memory: Memory = link.memory
        # On the same queue pair a READ is executed after the WRITEs before it (IBTA vol. 1 9.5).
        found = await link.transport.rdmaRead(len(message), memory.address, memory.key)
        if found != message:
            raise ProgramError(f"{len(message)} bytes were written as others")


class Read(OneSided):
    """
    RDMA READ (IBTA vol. 1 9.4.4).
    """

    name = "read"
    summary = "RDMA READ from the server's memory into registered memory"
    access = Access.LOCAL_WRITE | Access.REMOTE_READ

    def fill(self, region: RDMARegion, terms: Parameters) -> None:
        # The client can make the same data.
        region.view[:] = pattern(terms)

    async def before(self, link: Link, message: bytes) -> None:
        # Stale bytes cannot pass for data read.
        link.memory.region.view[: len(message)] = bytes(len(message))

    def request(self, link: Link, size: int) -> Callable[[], Deferred[Any]]:
        memory: Memory = link.memory
        read = link.transport.rdmaRead
        region, address, key = memory.region, memory.address, memory.key
        return lambda: read(size, address, key, region)

    async def after(self, link: Link, message: bytes) -> None:
        if link.memory.region.view[: len(message)] != message:
            raise ProgramError(f"{len(message)} bytes were read as others")


class Atomic(OneSided):
    """
    Atomic FetchAdd (IBTA vol. 1 9.4.5).
    """

    name = "atomic"
    summary = "atomic FetchAdd to 8 bytes of the server's memory"
    access = Access.LOCAL_WRITE | Access.REMOTE_ATOMIC
    only = _COUNTER

    def request(self, link: Link, size: int) -> Callable[[], Deferred[Any]]:
        memory: Memory = link.memory
        fetchAdd = link.transport.fetchAdd
        address, key = memory.address, memory.key

        def post() -> Deferred[Any]:
            # Counted when posted: a request that fails ends the test anyway.
            memory.added += 1
            return fetchAdd(address, key, 1)

        return post

    async def after(self, link: Link, message: bytes) -> None:
        memory: Memory = link.memory
        # An addition of 0 reads atomically; a READ would race with other queue pairs' atomics (IBTA vol. 1
        # 9.4.5).
        found = await link.transport.fetchAdd(memory.address, memory.key, 0)
        if found != memory.added:
            raise ProgramError(f"the counter is {found} after {memory.added} additions")
