"""
Walks: calls of both ends' transports in an order that is drawn.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

from tests.suites.differential.reactors.ends import Ends, Half, Recorder, scenarios
from tests.suites.differential.reactors.producing import Producer

#: The seeds of the walks, and the steps of each.
SEEDS: Final = range(8)
STEPS: Final = 30
#: Within so many turns without a call all that is under way has arrived.
_QUIET_TURNS: Final = 12
_SIZES: Final = (0, 1, 7, 1000, 5000, 20_000, 40_000)


class _Side:
    """
    One end: its transport, and the producers that it had.

    @ivar hasEnded: Whether any end may have ended.
    """

    hasEnded = False

    def __init__(self, ends: Ends, protocol: Recorder) -> None:
        self.ends, self.transport = ends, protocol.transport
        self.noting: list[Any] = [protocol]
        # Nagle's delay is longer than the quiet turns.
        self.transport.setTcpNoDelay(True)

    def write(self, draw: random.Random) -> int:
        size = draw.choice(_SIZES)
        self.transport.write(draw.randbytes(size))
        return size

    def sequence(self, draw: random.Random) -> int:
        size = draw.choice(_SIZES)
        self.transport.writeSequence([draw.randbytes(size), b"", b"end"])
        return size

    def push(self, draw: random.Random) -> None:
        self._register(None, True)

    def pull(self, draw: random.Random) -> None:
        if self.hasEnded:
            # How many pieces are taken before a reset differs.
            return
        # Of a piece without octets Twisted's does not ask for another.
        pieces = [draw.randbytes(draw.choice(_SIZES[1:])) for _ in range(draw.randrange(1, 4))]
        last = draw.choice(["", "loseConnection", "loseWriteConnection"])

        def resume(it: Producer) -> None:
            if pieces:
                it.transport.write(pieces.pop(0))
            else:
                it.transport.unregisterProducer()
                if last:
                    getattr(it.transport, last)()

        self._register(resume, False)

    def _register(self, resume: Any, isPush: bool) -> None:
        made = Producer(self.ends, self.transport, resume)
        self.ends.noting.remove(made)
        self.noting.append(made)
        self.transport.registerProducer(made, isPush)

    def loseWrite(self, draw: random.Random) -> None:
        # Behind the end Twisted's is an error of epoll(2).
        if self.transport.connected:
            self.transport.loseWriteConnection()

    def states(self, draw: random.Random) -> Any:
        transport = self.transport
        return bool(transport.connected), bool(transport.disconnecting), bool(transport.disconnected)

    def asked(self, draw: random.Random) -> Any:
        return self.transport.getPeer().host, bool(self.transport.producer)


def _own(name: str) -> Callable[[_Side, random.Random], Any]:
    def call(side: _Side, draw: random.Random) -> Any:
        return getattr(side.transport, name)()

    call.__name__ = name
    return call


_CALLS: Final[tuple[tuple[int, Callable[[_Side, random.Random], Any]], ...]] = (
    (16, _Side.write),
    (4, _Side.sequence),
    (5, _own("pauseProducing")),
    (6, _own("resumeProducing")),
    (3, _Side.push),
    (3, _Side.pull),
    (4, _own("unregisterProducer")),
    (2, _Side.states),
    (1, _Side.asked),
    (2, _Side.loseWrite),
    (1, _own("loseConnection")),
    (1, _own("abortConnection")),
    (1, _own("stopProducing")),
)


#: How far a turn comes, of which there are several here, differs.
_ALONE: Final = ("pull", "abortConnection", "loseConnection", "stopProducing", "resumeProducing")


async def _settle(ends: Ends, sides: list[_Side]) -> None:
    seen, quiet = -1, 0
    while quiet < _QUIET_TURNS:
        await ends.turn()
        now = sum(len(str(each.log)) for side in sides for each in side.noting)
        seen, quiet = now, quiet + 1 if now == seen else 0
    for name, side in zip(("client", "server"), sides, strict=True):
        for number, each in enumerate(side.noting):
            for what, *values in each.log:
                ends.say(f"  {name} {number} {what}", *values)
            each.log.clear()


@scenarios.each(*SEEDS)
async def walk(ends: Ends, seed: int) -> None:
    """
    Write, pause, resume, produce, end, close and abort, at either end.
    """
    draw = random.Random(seed)
    kinds = draw.choice([Recorder, Half]), draw.choice([Recorder, Half])
    sides = [_Side(ends, each) for each in await ends.pair(kinds=kinds)]
    weights, calls = zip(*_CALLS, strict=True)
    for step in range(STEPS):
        # Drawn whether they are used or not, so that a step is the same over both.
        side, settles = draw.choice(sides), draw.random() < 0.6
        own = random.Random(draw.random())
        (call,) = draw.choices(calls, weights)
        name = f"{step} {'client' if side is sides[0] else 'server'} {call.__name__}"
        isAlone = call.__name__ in _ALONE
        if isAlone:
            await _settle(ends, sides)
        ends.call(name, call, side, own)
        if call.__name__.startswith(("lose", "abort", "stop", "pull")):
            sides[0].hasEnded = sides[1].hasEnded = True
        if settles or isAlone:
            await _settle(ends, sides)
    await _settle(ends, sides)
    for side in sides:
        ends.say("rest", side.states(draw))
