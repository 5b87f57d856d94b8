"""
Walks: calls of both ends' transports in an order that is drawn.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any, Final

from tests.suites.differential.loops.ends import Buffered, Ends, Recorder, scenarios

#: The seeds of the walks, and the steps of each.
SEEDS: Final = range(12)
STEPS: Final = 30
#: Within so many turns without a call all that is under way has arrived.
_QUIET_TURNS: Final = 12
_SIZES: Final = (0, 1, 7, 1000, 5000, 20_000)
_LIMITS: Final = ((None, None), (0, None), (1000, 10), (5, 10), (None, 70_000))


class _Side:
    """
    One end: its transport, and the protocols that it had.
    """

    def __init__(self, ends: Ends, recorder: Recorder) -> None:
        self.ends, self.protocols, self.transport = ends, [recorder], recorder.transport
        self.socket = self.transport.get_extra_info("socket")

    def write(self, draw: random.Random) -> int:
        size = draw.choice(_SIZES)
        self.transport.write(draw.randbytes(size))
        return size

    def lines(self, draw: random.Random) -> int:
        size = draw.choice(_SIZES)
        pieces = [draw.randbytes(size), b"", bytearray(b"end")]
        if sys.version_info >= (3, 12) and self.transport.is_closing():
            # asyncio's own writes to a socket that it has closed: TypeError, AttributeError.
            self.transport.write(b"".join(pieces))
        else:
            self.transport.writelines(pieces)
        return size

    def limits(self, draw: random.Random) -> Any:
        self.transport.set_write_buffer_limits(*draw.choice(_LIMITS))
        return self.transport.get_write_buffer_limits()

    def states(self, draw: random.Random) -> Any:
        transport = self.transport
        return (transport.is_closing(), transport.is_reading(), transport.get_write_buffer_size() > 0)

    def other(self, draw: random.Random) -> None:
        kind = draw.choice([Recorder, Buffered])
        made = self.ends.recorder("other", {"eof": self.protocols[0].does.get("eof")}, kind)
        made.transport = self.transport
        self.protocols.append(made)
        self.transport.set_protocol(made)

    def shut(self, draw: random.Random) -> None:
        self.socket.shutdown(draw.choice([socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR]))

    def asked(self, draw: random.Random) -> Any:
        return self.socket.getpeername()[0], self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)

    def linger(self, draw: random.Random) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", draw.randrange(2), 0))


def _own(name: str) -> Callable[[_Side, random.Random], Any]:
    def call(side: _Side, draw: random.Random) -> Any:
        return getattr(side.transport, name)()

    call.__name__ = name
    return call


_CALLS: Final[tuple[tuple[int, Callable[[_Side, random.Random], Any]], ...]] = (
    (16, _Side.write),
    (4, _Side.lines),
    (5, _own("pause_reading")),
    (6, _own("resume_reading")),
    (2, _Side.limits),
    (3, _Side.states),
    (2, _Side.other),
    (1, _Side.asked),
    (1, _Side.linger),
    (1, _Side.shut),
    (2, _own("write_eof")),
    (1, _own("close")),
    (1, _own("abort")),
)


async def _settle(sides: list[_Side]) -> None:
    seen, quiet = -1, 0
    while quiet < _QUIET_TURNS:
        await asyncio.sleep(0)
        now = sum(len(str(each.log)) for side in sides for each in side.protocols)
        seen, quiet = now, quiet + 1 if now == seen else 0


def _heard(ends: Ends, sides: list[_Side]) -> None:
    for name, side in zip(("client", "server"), sides, strict=True):
        for number, each in enumerate(side.protocols):
            for what, *values in each.log:
                ends.say(f"  {name} {number} {what}", *values)
            each.log.clear()


@scenarios.each(*SEEDS)
async def walk(ends: Ends, seed: int) -> None:
    """
    Write, pause, resume, end, close, abort and change protocols, at either end.
    """
    draw = random.Random(seed)
    keeps = [draw.choice([True, False]) for _ in range(2)]
    does = [{"eof": lambda it, value=value: value} for value in keeps]
    sides = [_Side(ends, each) for each in await ends.pair(*does)]
    weights, calls = zip(*_CALLS, strict=True)
    hasEnded = False
    for step in range(STEPS):
        # Drawn whether they are used or not, so that a step is the same over both.
        side, settles = draw.choice(sides), draw.random() < 0.6
        own = random.Random(draw.random())
        (call,) = draw.choices(calls, weights)
        name = getattr(call, "__name__", "")
        isWrite = call in (_Side.write, _Side.lines)
        hasEnded = hasEnded or call == _Side.shut or name in ("write_eof", "close", "abort")
        if call == _Side.shut:
            # What comes before it is known at once over TCP.
            await _settle(sides)
            _heard(ends, sides)
        ends.call(f"{step} {'client' if side is sides[0] else 'server'} {name}", call, side, own)
        # Whether a write draws a reset is known at once, too.
        if settles or (isWrite and hasEnded) or call == _Side.shut:
            await _settle(sides)
            _heard(ends, sides)
    await _settle(sides)
    _heard(ends, sides)
    for side in sides:
        ends.say("rest", side.states(draw))
