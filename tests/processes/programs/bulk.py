"""
The child that sends and takes much: all of it hashed, memory watched.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.interfaces import IPushProducer
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.internet.task import deferLater
from twisted.python.failure import Failure
from zope.interface import implementer

from tests.processes.programs.child import Line, Program
from tests.processes.programs.wires import content

#: The bytes that all streams are cut from; the pieces begin anywhere in them.
POOL_BYTES = 1 << 22
#: The longest piece that is written at once.
PIECE_BYTES = 1 << 18
#: One of so many pieces is followed by a pause, where there are pauses.
PAUSE_EVERY = 8
#: The longest pause, seconds.
PAUSE_SECONDS = 0.05
#: A writer is stalled that has written nothing for so many seconds.
STILL_SECONDS = 0.5


@implementer(IPushProducer)
class Hauler(Protocol):
    """
    One end of a connection: sends a stream of random pieces of the pool, and takes one.

    @ivar sent: the hash of what was written.
    @ivar taken: the hash of what came.
    @ivar written: how much was written.
    @ivar received: how much came.
    @ivar pauses: how often this end has paused itself: reading, writing.
    """

    def __init__(self, program: Haulage, number: int, send: int, take: int, pauses: bool) -> None:
        """
        @param number: other numbers send other bytes and pause at other moments.
        @param send: how many bytes to send.
        @param take: how many bytes to wait for.
        @param pauses: whether to pause now and then.
        """
        self._program = program
        self._left, self._missing = send, take
        #: The pieces and times of writes; the times of pauses in reading.
        self._drawn, self._moments = random.Random(number), random.Random(-1 - number)
        self._pauses = pauses
        self._sleeps = self._paused = self._writing = False
        self.sent, self.taken = hashlib.sha256(), hashlib.sha256()
        self.written = self.received = 0
        self.pauses = [0, 0]
        self.done: Deferred[Hauler] = Deferred()

    def connectionMade(self) -> None:
        """
        Begin to send.
        """
        transport: Any = self.transport
        if self._program.shut:
            transport.pauseProducing()
        if self._left:
            transport.registerProducer(self, True)
            self.resumeProducing()

    def _pause(self, moments: random.Random, resume: Callable[[], None]) -> bool:
        """
        @param moments: says when, and how long.
        @param resume: called after the pause.

        @return: whether there is one now.
        """
        if not self._pauses or moments.randrange(PAUSE_EVERY):
            return False
        self._program.reactor.callLater(moments.random() * PAUSE_SECONDS, resume)
        return True

    # -- out

    def resumeProducing(self) -> None:
        """
        The transport takes more.
        """
        self._paused = False
        if not self._writing:
            self._write()

    def _write(self) -> None:
        """
        Write until told to pause, or until this end takes a pause itself.
        """
        transport: Any = self.transport
        pool, draw = self._program.pool, self._drawn.randrange
        self._writing = True
        while self._left and not self._paused and not self._sleeps:
            start = draw(POOL_BYTES - PIECE_BYTES)
            piece = pool[start : start + min(self._left, draw(1, PIECE_BYTES))]
            self._left -= len(piece)
            self.sent.update(piece)
            self.written += len(piece)
            transport.write(piece)
            if self._left and self._pause(self._drawn, self._awake):
                self._sleeps = True
                self.pauses[1] += 1
        self._writing = False
        if not self._left:
            self._left = -1
            transport.unregisterProducer()
            self._look()

    def _awake(self) -> None:
        """
        The writer's own pause is over.
        """
        self._sleeps = False
        if self._left > 0 and not self._paused:
            self._write()

    def pauseProducing(self) -> None:
        """
        The transport has enough.
        """
        self._paused = True

    def stopProducing(self) -> None:
        """
        The connection is gone.
        """
        self._paused = True

    # -- in

    def dataReceived(self, data: bytes) -> None:
        """
        Some of the other end's stream.
        """
        self.taken.update(data)
        self._missing -= len(data)
        self.received += len(data)
        if self._missing > 0 and self._pause(self._moments, self.readAgain):
            self.pauses[0] += 1
            transport: Any = self.transport
            transport.pauseProducing()
        self._look()

    def readAgain(self) -> None:
        """
        Read after a pause.
        """
        transport: Any = self.transport
        if transport.connected:
            transport.resumeProducing()

    # -- the end

    def _look(self) -> None:
        """
        All is there when all was written and has come.
        """
        if self._left <= 0 and self._missing <= 0 and not self.done.called:
            self.done.callback(self)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """
        The connection is gone.
        """
        if not self.done.called:
            self.done.errback(reason)


class Haulage(Program):
    """
    Server or client of many L{Hauler}s.

    @ivar pool: what all streams are cut from.
    @ivar shut: whether connections that are made do not read until told to.
    """

    shut = False

    def __init__(self, reactor: Any, line: Line) -> None:
        """
        Nothing is open.
        """
        super().__init__(reactor, line)
        self.pool = content(4, POOL_BYTES)
        self._haulers: list[Hauler] = []
        self._count = 0

    def _factory(self, seed: int, send: int, take: int, pauses: bool) -> Factory:
        """
        @return: that of the haulers.
        """

        def haul() -> Hauler:
            hauler = Hauler(self, seed + len(self._haulers), send, take, pauses)
            self._haulers.append(hauler)
            return hauler

        return Factory.forProtocol(haul)

    async def do_listen(self, endpoint: str, seed: int, send: int, take: int, pauses: bool) -> int:
        """
        Listen.

        @param endpoint: the server's endpoint string.
        @param seed: of the first connection.
        @param send: how many bytes each connection sends.
        @param take: how many it waits for.
        @param pauses: whether it pauses now and then.

        @return: the port.
        """
        factory = self._factory(seed, send, take, pauses)
        port: Any = await serverFromString(self.reactor, endpoint).listen(factory)
        return int(port.getHost().port)

    async def do_connect(
        self, endpoint: str, count: int, seed: int, send: int, take: int, pauses: bool
    ) -> None:
        """
        Connect.

        @param endpoint: the client's endpoint string.
        @param count: how often.
        """
        connecting = clientFromString(self.reactor, endpoint)
        for _ in range(count):
            await connecting.connect(self._factory(seed, send, take, pauses))

    async def do_hauled(self) -> list[list[list[object]]]:
        """
        Wait until every connection has sent and got all.

        @return: of each the length and the hash of what it sent, and of what it got.
        """
        await gatherResults([each.done for each in self._haulers], consumeErrors=True)
        return [
            [[each.written, each.sent.hexdigest()], [each.received, each.taken.hexdigest()]]
            for each in self._haulers
        ]

    def do_shut(self) -> None:
        """
        Connections that are made from now on do not read.
        """
        self.shut = True

    def do_open(self) -> None:
        """
        Have all connections read.
        """
        for each in self._haulers:
            each.readAgain()

    async def do_stuck(self) -> int:
        """
        Wait until no connection has written for a while, because the transport has enough.

        @return: how many bytes they have written.
        """
        before = -1
        while before != (now := sum(each.written for each in self._haulers)):
            before = now
            await deferLater(self.reactor, STILL_SECONDS, lambda: None)
        return now

    def do_pauses(self) -> list[int]:
        """
        @return: how often connections have paused: reading, writing.
        """
        return [sum(each.pauses[way] for each in self._haulers) for way in (0, 1)]

    def do_watch(self) -> int:
        """
        Have the kernel note anew how many pages are resident at most.

        @return: how many bytes are now.
        """
        with open("/proc/self/clear_refs", "w") as references:
            references.write("5")
        return self.do_peak()

    def do_peak(self) -> int:
        """
        @return: how many bytes were resident at most: RssAnon, RssFile and RssShmem
            together, as the kernel noted (VmHWM).
        """
        with open("/proc/self/status") as status:
            lines = dict(line.split(":", 1) for line in status)
        return int(lines["VmHWM"].split()[0]) * 1024
