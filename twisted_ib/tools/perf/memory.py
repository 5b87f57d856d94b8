"""
The subcommands of C{ib-perf} that reach into the server's memory: WRITE, READ and atomics.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from attrs import define
from twisted.internet.defer import Deferred

from twisted_ib import limits
from twisted_ib.rdma import Access
from twisted_ib.tools.perf.exchange import Send
from twisted_ib.tools.perf.link import Link
from twisted_ib.tools.perf.method import Ask, pattern
from twisted_ib.tools.perf.parameters import Parameters
from twisted_ib.tools.perf.runs import Requests, Run, Span
from twisted_ib.tools.program import ProgramError

#: Bytes of an atomic operation.
_COUNTER = 8


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

    def welcome(self, link: Link, terms: Parameters) -> dict[str, Any]:
        """
        Register the memory that the client reaches into.
        """
        region = link.transport.registerMemory(terms.largest, self.access)
        self.fill(region, terms)
        link.memory = region
        return {"address": region.address, "key": region.remoteKey}

    def fill(self, region: Any, terms: Parameters) -> None:
        """
        @param region: the server's memory, all zeros.
        @param terms: what is measured.
        """

    def joined(self, link: Link, terms: Parameters, answer: dict[str, Any]) -> None:
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

    def fill(self, region: Any, terms: Parameters) -> None:
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
