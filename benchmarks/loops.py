"""
The subjects of other event loops: asyncio's C{BufferedProtocol}, on its own loop or uvloop, over TCP with
NODELAY.

Talks to the driver as L{benchmarks.worker} does:
C{python -m benchmarks.loops (server|client) REACTOR (asyncio|uvloop)}, where the reactor is of no interest.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import struct
import sys
from collections.abc import Callable, Coroutine, Sequence
from importlib import import_module
from time import perf_counter, perf_counter_ns
from typing import Any

from benchmarks.footprint import IDLE_TIMES, REST_SECONDS, SETTLE_SECONDS, Idleness
from benchmarks.measuring import (
    Figures,
    answerRows,
    chunksOf,
    cpuNanoseconds,
    latencies,
    manyDescriptors,
    measured,
    pattern,
)

HEAD = struct.Struct(">QB")
BUFFER = 256 * 1024
#: How many connects are under way at a time.
CONNECTING = 32


class Buffered(asyncio.BufferedProtocol):
    """
    Has one buffer, which all connections of this process share: what came is used at once.
    """

    buffer = memoryview(bytearray(BUFFER))
    transport: Any

    def connection_made(self, transport: Any) -> None:
        """
        asyncio's transports have TCP_NODELAY set.
        """
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        """
        Where the next bytes go.
        """
        return self.buffer


class Echo(Buffered):
    """
    Send back what comes.
    """

    def buffer_updated(self, count: int) -> None:
        """
        Bytes came.
        """
        self.transport.write(bytes(self.buffer[:count]))


class Sink(Buffered):
    """
    Swallow announced streams, acknowledge each one's last byte.
    """

    remaining = 0
    head = b""

    def buffer_updated(self, count: int) -> None:
        """
        Part of a stream came, or its announcement.
        """
        data = self.buffer[:count]
        if not self.remaining:
            need = HEAD.size - len(self.head)
            self.head += data[:need]
            if len(self.head) < HEAD.size:
                return
            (self.remaining, self.hashing), self.head = HEAD.unpack(self.head), b""
            data = data[need:]
            self.digest = hashlib.sha256()
        if self.hashing:
            self.digest.update(data)
        self.remaining -= len(data)
        if not self.remaining:
            self.transport.write(self.digest.digest() if self.hashing else bytes(32))


class Client(Buffered):
    """
    One end of the client: round trips, or a stream as fast as the transport wants it.
    """

    wanted = 0
    done: asyncio.Future[bytes]

    def __init__(self) -> None:
        """
        Nothing is wanted.
        """
        self.mayWrite = asyncio.Event()
        self.mayWrite.set()
        self.lost = asyncio.get_running_loop().create_future()

    def call(self, message: bytes, deadline: int, times: list[int]) -> asyncio.Future[bytes]:
        """
        Send a message, wait until as many bytes are back, and again, until a moment has passed.
        """
        self.message, self.deadline, self.times = message, deadline, times
        self.parts: list[bytes] = []
        self.done = asyncio.get_running_loop().create_future()
        self.wanted = len(message)
        self.sentAt = perf_counter_ns()
        self.transport.write(message)
        return self.done

    def buffer_updated(self, count: int) -> None:
        """
        Part of an answer came.
        """
        self.wanted -= count
        if not self.deadline:
            self.parts.append(bytes(self.buffer[:count]))
        if self.wanted > 0:
            return
        now = perf_counter_ns()
        self.times.append(now - self.sentAt)
        if now >= self.deadline:
            self.done.set_result(b"".join(self.parts))
            return
        self.wanted = len(self.message)
        self.sentAt = perf_counter_ns()
        self.transport.write(self.message)

    async def send(self, chunks: Sequence[bytes], count: int, hashing: bool = False) -> bytes:
        """
        Write so many chunks in turn.

        @return: the acknowledgement of the last byte.
        """
        self.message, self.deadline, self.times, self.parts = b"", 0, [], []
        self.sentAt = 0
        self.done = asyncio.get_running_loop().create_future()
        self.wanted = 32
        write, length = self.transport.write, len(chunks)
        write(HEAD.pack(len(chunks[0]) * count, hashing))
        for number in range(count):
            if not self.mayWrite.is_set():
                await self.mayWrite.wait()
            write(chunks[number % length])
        return await self.done

    def pause_writing(self) -> None:
        """
        The transport has enough.
        """
        self.mayWrite.clear()

    def resume_writing(self) -> None:
        """
        It has not.
        """
        self.mayWrite.set()

    def connection_lost(self, reason: Exception | None) -> None:
        """
        Closed.
        """
        self.lost.set_result(None)
        if self.wanted > 0 and not self.done.done():
            self.done.set_exception(reason or ConnectionError("closed"))

    async def close(self) -> None:
        """
        Close, and wait for it.
        """
        self.transport.close()
        await self.lost


class Bench:
    """
    Where the server is.
    """

    def __init__(self, command: dict[str, Any]) -> None:
        """
        @param command: The row, as the driver tells it.
        """
        self.command = command
        self.size: int = command["size"]
        self.seconds: float = command["seconds"]
        self.processes = (os.getpid(), command["server"])

    async def connect(self, service: str) -> Client:
        """
        Make one connection.
        """
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(Client, "127.0.0.1", int(self.command[service]))
        return client

    def cpuNanoseconds(self) -> int:
        """
        CPU time of both processes so far.
        """
        return cpuNanoseconds(self.processes)

    async def checked(self) -> Client:
        """
        A connection that has had its message back as it was.
        """
        client = await self.connect("echo")
        message = pattern(self.size)
        if await client.call(message, 0, []) != message:
            raise ValueError("an echo differs")
        return client

    def deadlineIn(self, seconds: float) -> int:
        """
        A moment of C{perf_counter_ns}.
        """
        return perf_counter_ns() + int(seconds * 1e9)


async def roundTrip(bench: Bench) -> Figures:
    """
    One message out and back, again and again.
    """
    client = await bench.checked()
    times: list[int] = []
    message = pattern(bench.size)
    await client.call(message, bench.deadlineIn(bench.seconds / 4), [])
    await client.call(message, bench.deadlineIn(bench.seconds), times)
    await client.close()
    return latencies(times)


async def stream(bench: Bench) -> Figures:
    """
    Write until the announced length is acknowledged.
    """
    size = bench.size
    chunks = chunksOf(size, bench.command["workload"] == "cold")
    client = await bench.connect("sink")

    async def move(count: int) -> None:
        """
        One whole stream.
        """
        await client.send(chunks, count)

    figures = await measured(bench, move, max(8, (1 << 18) // size), size, bench.seconds)
    content = pattern(size + 9)
    different = [content[at : at + size] for at in range(9)]
    if await client.send(different, 9, True) != hashlib.sha256(b"".join(different)).digest():
        raise ValueError("a stream differs")
    await client.close()
    return figures


async def crowd(bench: Bench) -> Figures:
    """
    Many connections, each with one message under way.
    """
    callers = [await bench.checked() for _ in range(bench.command["count"])]
    message = pattern(bench.size)
    for seconds in (bench.seconds / 4, bench.seconds):
        times: list[int] = []
        used, begun = bench.cpuNanoseconds(), perf_counter()
        deadline = bench.deadlineIn(seconds)
        await asyncio.gather(*[each.call(message, deadline, times) for each in callers])
        took, used = perf_counter() - begun, bench.cpuNanoseconds() - used
    await asyncio.gather(*[each.close() for each in callers])
    return {"msg/s": len(times) / took, "CPU/msg": used / len(times) / 1e3}


async def connects(bench: Bench) -> Figures:
    """
    Connect, echo once, close, L{CONNECTING} at a time.
    """
    end = perf_counter() + bench.seconds
    count = 0

    async def chain() -> None:
        """
        One after the other.
        """
        nonlocal count
        while perf_counter() < end:
            await (await bench.checked()).close()
            count += 1

    begun = perf_counter()
    await asyncio.gather(*[chain() for _ in range(CONNECTING)])
    return {"conn/s": count / (perf_counter() - begun)}


async def idle(bench: Bench) -> Figures:
    """
    Connections that are open and silent, after one echo each.
    """
    count = bench.command["count"]
    kept = [await bench.checked()]
    await asyncio.sleep(SETTLE_SECONDS)
    idleness = Idleness(bench.processes, count)
    for _ in range(count):
        kept.append(await bench.checked())
    await asyncio.sleep(SETTLE_SECONDS)
    idleness.connected()
    await asyncio.sleep(REST_SECONDS)
    idleness.rested()
    await asyncio.sleep(bench.seconds * IDLE_TIMES)
    return idleness.figures()


WORKLOADS: dict[str, Callable[[Bench], Coroutine[Any, Any, Figures]]] = {
    "roundTrip": roundTrip,
    "stream": stream,
    "cold": stream,
    "crowd": crowd,
    "scale": crowd,
    "idle": idle,
    "connects": connects,
}


async def serve() -> None:
    """
    Listen, say so, end with standard input.
    """
    loop = asyncio.get_running_loop()
    places = {}
    for name, protocol in (("echo", Echo), ("sink", Sink)):
        server = await loop.create_server(protocol, "127.0.0.1", 0, backlog=1024)
        places[name] = server.sockets[0].getsockname()[1]
    print(json.dumps(places), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    manyDescriptors()
    run = import_module(sys.argv[3]).run
    if sys.argv[1] == "server":
        run(serve())
    else:
        answerRows(lambda command: run(WORKLOADS[command["workload"]](Bench(command))))
