"""
The child for many connections at a time, and for many one after the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

from attrs import asdict, define
from twisted.internet.defer import Deferred, ensureDeferred, gatherResults
from twisted.internet.endpoints import clientFromString
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from tests.processes.programs.child import Line
from tests.processes.programs.peer import Peer
from tests.processes.programs.wires import content

#: How many connects are under way at a time.
CONNECTING = 50


class Member(Protocol):
    """
    One connection of a crowd: sends a message and waits for its echo.
    """

    _done: Deferred[str] | None = None

    def __init__(self) -> None:
        """
        Not connected.
        """
        self.gone: Deferred[str] = Deferred()

    def exchange(self, message: bytes) -> Deferred[str]:
        """
        @param message: what to send.

        @return: fires with the hash of what came back.
        """
        self._missing = len(message)
        self._digest = hashlib.sha256()
        self._done = Deferred()
        transport: Any = self.transport
        transport.write(message)
        return self._done

    def dataReceived(self, data: bytes) -> None:
        """
        A part of the echo came.
        """
        self._missing -= len(data)
        self._digest.update(data)
        if self._missing <= 0 and self._done is not None:
            done, self._done = self._done, None
            done.callback(self._digest.hexdigest())

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """
        The connection is gone.
        """
        self.gone.callback(type(reason.value).__name__)
        if self._done is not None:
            done, self._done = self._done, None
            done.errback(reason)


@define
class Wait:
    """
    The counts while an echo was under way.

    @ivar turns: turns of this process's reactor.
    @ivar echoes: echoes of all connections.
    @ivar bulk: bytes of the bulk stream.
    """

    turns: int
    echoes: int
    bulk: int

    def since(self, before: Wait) -> Wait:
        """
        @return: the difference to an earlier moment.
        """
        return Wait(self.turns - before.turns, self.echoes - before.echoes, self.bulk - before.bulk)

    def worse(self, other: Wait) -> Wait:
        """
        @return: the greater of each.
        """
        return Wait(max(self.turns, other.turns), max(self.echoes, other.echoes), max(self.bulk, other.bulk))


class Repeater(Member):
    """
    Sends a short message again and again and notes what each echo waited for.

    @ivar count: echoes so far.
    @ivar worst: the most of each that an echo waited for.
    @ivar sentAt: the moment when the message that is out was sent.
    """

    count = 0

    def __init__(self, crowd: Crowd) -> None:
        """
        @param crowd: knows what the moment is.
        """
        super().__init__()
        self._crowd = crowd
        self.worst = Wait(0, 0, 0)

    def begin(self) -> None:
        self.sentAt = self._crowd.now()
        self._missing = 64
        transport: Any = self.transport
        transport.write(bytes(64))

    def dataReceived(self, data: bytes) -> None:
        """
        A part of the echo came.
        """
        self._missing -= len(data)
        if self._missing <= 0:
            self.worst = self.worst.worse(self._crowd.now().since(self.sentAt))
            self.count += 1
            self._crowd.echoes += 1
            self.begin()


class Crowd(Peer):
    """
    A L{Peer} that makes connections in great numbers.

    @ivar turns: turns of the reactor since the first crowd.
    @ivar echoes: echoes that came back to L{Repeater}s.
    """

    turns = 0
    echoes = 0
    _counting = False

    def __init__(self, reactor: Any, line: Line) -> None:
        """
        Nobody is here.
        """
        super().__init__(reactor, line)
        self.quiet = True
        self._repeaters: list[Repeater] = []

    async def _many(self, count: int, one: Callable[[int], Awaitable[None]]) -> None:
        """
        Await C{one(number)} for each number, L{CONNECTING} at a time.
        """
        numbers = iter(range(count))

        async def chain() -> None:
            """
            One after the other while there are any left.
            """
            for number in numbers:
                await one(number)

        await gatherResults([ensureDeferred(chain()) for _ in range(CONNECTING)], consumeErrors=True)

    async def _connect(self, endpoint: str, protocol: Callable[[], Protocol]) -> Any:
        """
        @return: a new connection's protocol.
        """
        return await clientFromString(self.reactor, endpoint).connect(Factory.forProtocol(protocol))

    async def do_crowd(self, endpoint: str, count: int, length: int) -> list[str]:
        """
        Make connections, and only when all are there exchange something of
        its own on each.

        @param endpoint: of an echo server.
        @param count: how many connections.
        @param length: bytes each way and connection.

        @return: how each connection ended, each way once.
        """
        members: list[Member] = []

        async def join(number: int) -> None:
            members.append(await self._connect(endpoint, Member))

        await self._many(count, join)
        whole = content(count, length + count)
        messages = [whole[number : number + length] for number in range(count)]
        echoes = await gatherResults(
            [member.exchange(message) for member, message in zip(members, messages, strict=True)],
            consumeErrors=True,
        )
        wrong = [
            number
            for number, (message, echo) in enumerate(zip(messages, echoes, strict=True))
            if hashlib.sha256(message).hexdigest() != echo
        ]
        assert not wrong, f"other bytes came back on {wrong}"
        for member in members:
            self._transport(member).loseConnection()
        return sorted(set(await gatherResults([member.gone for member in members])))

    def _transport(self, member: Member) -> Any:
        """
        @return: a connection's transport.
        """
        return member.transport

    async def do_cycle(self, endpoint: str, count: int) -> None:
        """
        Connect, echo once and close, again and again, one at a time.

        @param endpoint: of an echo server.
        @param count: how often.
        """
        message = content(0, 64)
        wanted = hashlib.sha256(message).hexdigest()
        for _ in range(count):
            member: Member = await self._connect(endpoint, Member)
            assert await member.exchange(message) == wanted
            self._transport(member).loseConnection()
            assert await member.gone == "ConnectionDone"

    async def do_repeat(self, endpoint: str, count: int) -> None:
        """
        Make connections that echo without end.

        @param endpoint: of an echo server.
        @param count: how many connections.
        """
        if not self._counting:
            self._counting = True
            self._countTurns()

        async def join(number: int) -> None:
            self._repeaters.append(await self._connect(endpoint, lambda: Repeater(self)))

        await self._many(count, join)
        for repeater in self._repeaters:
            repeater.begin()

    def _countTurns(self) -> None:
        """
        Count the reactor's turns from now on.
        """
        turn = self.reactor.doIteration

        def counted(timeout: float | None) -> None:
            """
            One turn.
            """
            self.turns += 1
            turn(timeout)

        self.reactor.doIteration = counted

    def now(self) -> Wait:
        """
        @return: the moment; bulk is what the first connection has received
            and written.
        """
        bulk = self._wires[1]
        return Wait(self.turns, self.echoes, bulk.received + bulk.written)

    def do_tally(self) -> dict[str, int]:
        """
        @return: of the connections that L{do_repeat} made: the fewest echoes
            of one, and the most that an echo waited for, those that are still
            out included.
        """
        worst, now = Wait(0, 0, 0), self.now()
        for each in self._repeaters:
            worst = worst.worse(each.worst).worse(now.since(each.sentAt))
        return {"fewest": min(each.count for each in self._repeaters), **asdict(worst)}

    def do_stuck(self, wire: int, still: float) -> Deferred[int]:
        """
        Wait until a stream stands still because the transport has enough.

        @param wire: the connection.

        @return: fires with the number of chunks left.
        """
        last: list[int | None] = [None]

        def look() -> Any:
            """
            Compare with the last time.
            """
            before, last[0] = last[0], self._wires[wire].progress
            if before is not None and before == last[0]:
                return before
            return deferLater(self.reactor, still, look)

        return deferLater(self.reactor, 0, look)
