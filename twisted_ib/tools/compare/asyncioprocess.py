"""
The subjects of other event loops: asyncio's C{BufferedProtocol}, on its own loop or uvloop over TCP with
NODELAY, and on that of L{twisted_ib.aio} over SDP.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import Callable, Coroutine, Sequence
from time import perf_counter_ns
from typing import Any

from twisted_ib.tools.compare.measuring import SOURCE, ContentError, Figures, perform
from twisted_ib.tools.compare.twistedprocess import HEAD

#: Bytes of the buffer for what arrives.
BUFFER = 256 * 1024

HOST = "127.0.0.1"

#: The names of the loops that are no part of Python.
UVLOOP, AIO = "uvloop", "aio"

#: How connections and servers are made: with our loop over SDP, whatever the rules say.
_options: dict[str, Any] = {}


class Buffered(asyncio.BufferedProtocol):
    """
    Has one buffer, which all connections of this process share: what came is used at once.
    """

    buffer = memoryview(bytearray(BUFFER))
    transport: Any

    def connection_made(self, transport: Any) -> None:
        # asyncio's transports have TCP_NODELAY set.
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.buffer


class Echo(Buffered):
    """
    Send back what comes.
    """

    def buffer_updated(self, count: int) -> None:
        self.transport.write(bytes(self.buffer[:count]))


class Sink(Buffered):
    """
    Swallow announced streams, acknowledge each one's last byte.
    """

    remaining = 0
    head = b""

    def buffer_updated(self, count: int) -> None:
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

    async def collect(self, message: bytes) -> bytes:
        """
        Send one message.

        @return: the bytes that came back.
        """
        return await self.call(message, 0, [])

    def buffer_updated(self, count: int) -> None:
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
        self.mayWrite.clear()

    def resume_writing(self) -> None:
        self.mayWrite.set()

    def connection_lost(self, reason: Exception | None) -> None:
        self.lost.set_result(None)
        if self.wanted > 0 and not self.done.done():
            self.done.set_exception(reason or ConnectionError("closed"))

    async def close(self) -> None:
        """
        Close, and wait for it.
        """
        self.transport.close()
        await self.lost


async def serve() -> None:
    """
    Listen, say so, end with standard input.
    """
    loop = asyncio.get_running_loop()
    places = {}
    for name, protocol in (("echo", Echo), ("sink", Sink)):
        server = await loop.create_server(protocol, HOST, 0, backlog=1024, **_options)
        places[name] = server.sockets[0].getsockname()[1]
    print(json.dumps(places), flush=True)
    # Not in a thread: while one works, which may want the interpreter, a loop with devices does not poll.
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


async def measure(clients: dict[str, Client], command: dict[str, Any]) -> Figures:
    """
    Measure what a command asks for.

    @param clients: those that are connected, by their kind; more are added.
    """
    loop = asyncio.get_running_loop()

    async def connect(kind: str) -> Client:
        if kind not in clients:
            service = "sink" if kind == SOURCE else "echo"
            place = HOST, int(command["places"][service])
            _, clients[kind] = await loop.create_connection(Client, *place, **_options)
        return clients[kind]

    return await perform(command, connect)


async def answer() -> None:
    """
    Measure for each command, until standard input is closed.
    """
    loop = asyncio.get_running_loop()
    clients: dict[str, Client] = {}
    print('{"ready": true}', flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        try:
            figures: dict[str, object] = dict(await measure(clients, json.loads(line)))
        except (OSError, ContentError) as error:
            figures = {"error": str(error)}
        print(json.dumps(figures), flush=True)


def _runOverSDP(coroutine: Coroutine[Any, Any, None]) -> None:
    from twisted_ib.aio import new_event_loop

    loop = new_event_loop()
    try:
        loop.run_until_complete(coroutine)
    finally:
        loop.close()


def main(arguments: Sequence[str]) -> None:
    """
    Run one process: C{(server|client) (asyncio|uvloop|aio)}.
    """
    role, name = arguments
    run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run
    if name == UVLOOP:
        # An extra.
        import uvloop

        run = uvloop.run
    elif name == AIO:
        _options["provider"] = "sdp"
        run = _runOverSDP
    run(serve() if role == "server" else answer())
