"""
Workloads of many connections: how fast they talk, what a message costs, what they cost when idle.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

from twisted.internet.defer import Deferred, DeferredList, gatherResults
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import deferLater

from benchmarks.bench import Bench, many
from benchmarks.footprint import IDLE_TIMES, REST_SECONDS, SETTLE_SECONDS, Footprint, Idleness
from twisted_ib.tools.compare.measuring import ContentError, Figures, deadlineIn, pattern, percentile
from twisted_ib.tools.compare.twistedprocess import Caller

#: The crowd that a larger one's cost per message is compared with.
FEW = 100
#: How much longer than other rows that comparison is: with 10,000 connections each has few turns.
LONGER = 3


class Crowd:
    """
    Connections that each have one message under way.
    """

    def __init__(self, bench: Bench, size: int) -> None:
        """
        There are none yet.

        @param size: Bytes of a message.
        """
        self._bench = bench
        self._message = pattern(size)
        self.callers: list[Caller] = []

    async def grow(self, count: int) -> None:
        """
        Connect until there are C{count}; each has had one echo then.
        """
        before = len(self.callers)

        async def join() -> None:
            """
            One more.
            """
            caller = await self._bench.connect(self._bench.echo, Caller)
            await caller.call(self._message, 0, [])
            self.callers.append(caller)

        await many(count - before, join)

    async def talk(self, seconds: float) -> Figures:
        """
        Everybody calls until the time is over.
        """
        times: list[int] = []
        deadline = deadlineIn(seconds)
        cpu, begun = self._bench.cpuNanoseconds(), perf_counter()
        await gatherResults(
            [each.call(self._message, deadline, times) for each in self.callers],
            consumeErrors=True,
        )
        took, cpu = perf_counter() - begun, self._bench.cpuNanoseconds() - cpu
        times.sort()
        return {
            "msg/s": len(times) / took,
            "CPU/msg": cpu / len(times) / 1e3,
            "p50": percentile(times, 0.5) / 1e3,
            "p99": percentile(times, 0.99) / 1e3,
            "count": float(len(times)),
        }

    async def close(self) -> None:
        """
        Close all.
        """
        await DeferredList([each.close() for each in self.callers])


async def crowd(bench: Bench, size: int, seconds: float) -> Figures:
    """
    So many connections, each with one message under way: messages a second.
    """
    await bench.checkEcho(size)
    people = Crowd(bench, size)
    await people.grow(bench.count)
    await people.talk(seconds / 4)
    figures = await people.talk(seconds)
    await people.close()
    return figures


async def scale(bench: Bench, size: int, seconds: float) -> Figures:
    """
    L{FEW} connections and then many in the same processes: messages a second, what one costs
    relative to when there were few, and how much memory was added.

    Nothing is closed: the processes end.
    """
    await bench.checkEcho(size)
    await bench.warm()
    people = Crowd(bench, size)
    await people.grow(FEW)
    await people.talk(seconds / 4)
    few = await people.talk(seconds * LONGER)
    before = await _settled(bench)
    await people.grow(bench.count)
    growth = (await _settled(bench)).since(before)
    await people.talk(seconds / 4)
    figures = await people.talk(seconds * LONGER)
    return figures | {
        "growth": (growth.user + growth.kernel) * 1024 / 1e6,
        "cost": few["msg/s"] / figures["msg/s"],
        "CPU cost": figures["CPU/msg"] / few["CPU/msg"],
    }


async def _settled(bench: Bench) -> Footprint:
    """
    The memory in use a little later.
    """
    await deferLater(bench.reactor, SETTLE_SECONDS)
    return Footprint.take(bench.processes)


class _Greeters(Factory):
    """
    Makes the connections that say one thing and are silent then.
    """

    def __init__(self, message: bytes) -> None:
        """
        @param message: the bytes that each sends.
        """
        self.message = message
        self.kept: list[Protocol] = []

    def buildProtocol(self, address: object) -> _Greeter:
        """
        One connection.
        """
        greeter = _Greeter(self)
        self.kept.append(greeter)
        return greeter


class _Greeter(Protocol):
    """
    Has one echo of one message, and as little else as a protocol can have.
    """

    _echoed: Deferred[bytes] | None = None

    def __init__(self, factory: _Greeters) -> None:
        """
        @param factory: Has the message.
        """
        self.factory = factory

    def greet(self, message: bytes) -> Deferred[bytes]:
        """
        Fires with what comes back first.
        """
        echoed = self._echoed = Deferred()
        self.transport.write(message)  # type: ignore[union-attr]
        return echoed

    def dataReceived(self, data: bytes) -> None:
        """
        The echo, in one piece.
        """
        echoed = self._echoed
        del self._echoed
        assert echoed is not None
        echoed.callback(data)


async def idle(bench: Bench, size: int, seconds: float) -> Figures:
    """
    Connections that are open and silent, after one echo each: their memory, and the CPU time of
    both processes.

    Nothing is closed: the processes end.
    """
    await bench.checkEcho(size)
    await bench.warm()
    factory = _Greeters(pattern(size))

    async def join() -> None:
        """
        One more.
        """
        greeter: Any = await bench.echo.connect(factory)
        if await greeter.greet(factory.message) != factory.message:
            raise ContentError("a first echo differs")

    await join()
    await deferLater(bench.reactor, SETTLE_SECONDS)
    idleness = Idleness(bench.processes, bench.count)
    await many(bench.count, join)
    await deferLater(bench.reactor, SETTLE_SECONDS)
    idleness.connected()
    await deferLater(bench.reactor, REST_SECONDS)
    idleness.rested()
    await deferLater(bench.reactor, seconds * IDLE_TIMES)
    return idleness.figures()
