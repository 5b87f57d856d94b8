"""
WRITE and READ between registered memory, by C{ib:}: the server's part and the workloads.

The server registers a region and tells each client where it is; the client writes to it, or
reads from it, L{WINDOW} requests at a time, and the server's program has no part in that.
"""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure

from twisted_ib.tools.compare.measuring import Figures, measured

#: Requests on the way.
WINDOW = 8
#: The server's region, and where and with which key a client reaches it.
REGION_BYTES = 1 << 20
PLACE = struct.Struct(">QI")
#: The client's requests: the place of the region, and the hash of its content.
WHERE, HASH = b"where", b"hash"

_ACCESS = 1 | 2 | 4  # local write, remote write, remote read


class Owner(Protocol):
    """
    The server: owns a region for as long as a client is connected.
    """

    transport: Any

    def connectionMade(self) -> None:
        """
        Register it.
        """
        self._region = self.transport.registerMemory(REGION_BYTES, _ACCESS)
        self._region.view[:] = random.Random(1).randbytes(REGION_BYTES)

    def dataReceived(self, data: bytes) -> None:
        """
        A client asks.
        """
        if data == WHERE:
            self.transport.write(PLACE.pack(self._region.address, self._region.remoteKey))
        else:
            self.transport.write(hashlib.sha256(self._region.view).digest())

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """
        Take it back.
        """
        self._region.close()


class User(Protocol):
    """
    The client.
    """

    transport: Any
    _answer: Deferred[bytes]

    def __init__(self) -> None:
        """
        Not connected.
        """
        self.lost: Deferred[None] = Deferred()

    def ask(self, what: bytes) -> Deferred[bytes]:
        """
        Ask the server's program.
        """
        self._answer = Deferred()
        self.transport.write(what)
        return self._answer

    def dataReceived(self, data: bytes) -> None:
        """
        Its answer.
        """
        self._answer.callback(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """
        The connection is gone.
        """
        self.lost.callback(None)

    def many(self, count: int, post: Callable[[int], Deferred[Any]]) -> Deferred[None]:
        """
        Post C{count} requests, L{WINDOW} at a time.

        @param post: posts the request of a number.
        @return: fires when all are done.
        """
        done: Deferred[None] = Deferred()
        posted = finished = 0

        def next_(_: object = None) -> None:
            """
            One is done.
            """
            nonlocal posted, finished
            finished += 1
            if finished == count:
                done.callback(None)
            elif posted < count:
                posted += 1
                post(posted).addCallbacks(next_, done.errback)

        for _ in range(min(WINDOW, count)):
            posted += 1
            post(posted).addCallbacks(next_, done.errback)
        return done


async def _timed(bench: Any, size: int, seconds: float, buffers: int, reads: bool) -> Figures:
    """
    MB/s and CPU time, as of a stream.

    @param buffers: how many distinct local buffers take turns.
    """
    user = await bench.connect(bench.memory, User)
    address, key = PLACE.unpack(await user.ask(WHERE))
    transport = user.transport
    local = transport.registerMemory(size * buffers, _ACCESS)
    rest = random.Random(2).randbytes(size - 4)
    local.view[:] = b"".join([struct.pack(">I", number) + rest for number in range(buffers)])

    def write(number: int) -> Deferred[Any]:
        """
        One WRITE.
        """
        done: Deferred[Any] = transport.rdmaWrite(local, address, key, number % buffers * size, size)
        return done

    def read(number: int) -> Deferred[Any]:
        """
        One READ.
        """
        done: Deferred[Any] = transport.rdmaRead(size, address, key, local, number % buffers * size)
        return done

    post = read if reads else write
    figures = await measured(
        bench.cpuNanoseconds, lambda count: user.many(count, post), max(8, buffers), size, seconds
    )
    await user.many(1, post)
    start = size if buffers > 1 else 0  # where the first request of a run takes its bytes
    mine = hashlib.sha256(local.view[start : start + size]).digest()
    if await user.ask(HASH) != mine:
        raise ValueError("the two regions differ")
    local.close()
    transport.loseConnection()
    await user.lost
    return figures


async def rdmaWrite(bench: Any, size: int, seconds: float) -> Figures:
    """
    WRITEs from one buffer.
    """
    return await _timed(bench, size, seconds, 1, False)


async def rdmaWriteCold(bench: Any, size: int, seconds: float) -> Figures:
    """
    WRITEs from buffers that no cache holds.
    """
    return await _timed(bench, size, seconds, 128, False)


async def rdmaRead(bench: Any, size: int, seconds: float) -> Figures:
    """
    READs into one buffer.
    """
    return await _timed(bench, size, seconds, 1, True)
