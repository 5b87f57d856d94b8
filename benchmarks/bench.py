"""
Parts that the workloads share: the server's places, connections to them, and checks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from attrs import define, field
from twisted.internet.defer import ensureDeferred, gatherResults
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.protocol import Factory, Protocol

from twisted_ib.tools.compare.measuring import ContentError, cpuNanoseconds, pattern
from twisted_ib.tools.compare.twistedprocess import Collector

_P = TypeVar("_P", bound=Protocol)

#: How many connects are under way at a time.
CONNECTING = 32
#: Messages, and bytes of each, sent before memory is measured: at least a whole ring.
WARM_MESSAGES, WARM_BYTES = 192, 48 * 1024


@define
class Bench:
    """
    Where the server is.

    @ivar reactor: The client's.
    @ivar noDelay: Set C{TCP_NODELAY} on each connection that is made.
    @ivar processes: The processes whose CPU time and memory count.
    @ivar count: How many connections the row is about.
    """

    reactor: Any
    echo: IStreamClientEndpoint
    sink: IStreamClientEndpoint
    thread: IStreamClientEndpoint
    memory: IStreamClientEndpoint
    noDelay: bool
    processes: tuple[int, ...]
    count: int = 1
    _factories: dict[Any, Factory] = field(factory=dict)

    async def connect(self, endpoint: IStreamClientEndpoint, protocol: Callable[[], _P]) -> _P:
        """
        Make one connection.
        """
        factory = self._factories.get(protocol)
        if factory is None:
            factory = self._factories[protocol] = Factory.forProtocol(protocol)
        made: Any = await endpoint.connect(factory)
        if self.noDelay:
            made.transport.setTcpNoDelay(True)
        connected: _P = made
        return connected

    def cpuNanoseconds(self) -> int:
        """
        CPU time of all processes so far, user and system.
        """
        return cpuNanoseconds(self.processes)

    async def checkEcho(self, size: int) -> None:
        """
        One message must come back as it was.

        @raise ContentError: It does not.
        """
        collector = await self.connect(self.echo, Collector)
        message = pattern(size)
        if await collector.collect(message) != message:
            raise ContentError(f"an echo of {size} bytes differs")
        await collector.close()

    async def warm(self) -> None:
        """
        Move some MiB both ways: what two processes have once, whatever connects them, is in use
        then, and counts for no connection.
        """
        collector = await self.connect(self.echo, Collector)
        for _ in range(WARM_MESSAGES):
            await collector.collect(pattern(WARM_BYTES))
        await collector.close()


async def many(count: int, one: Callable[[], Awaitable[None]]) -> None:
    """
    Await C{one()} C{count} times, L{CONNECTING} at a time.
    """
    left = count

    async def chain() -> None:
        """
        One after the other while there are any left.
        """
        nonlocal left
        while left:
            left -= 1
            await one()

    await gatherResults(
        [ensureDeferred(chain()) for _ in range(min(count, CONNECTING))],
        consumeErrors=True,
    )
