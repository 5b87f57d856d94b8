"""
Walks: operations of both ends in an order that is drawn, of which no call waits.
"""

from __future__ import annotations

import random
import select
import socket
import struct
from collections.abc import Callable
from typing import Any, Final

from tests.suites.differential.sockets.ends import Ends, scenarios
from twisted_ib.blocking import loop as module

#: The seeds of the walks, and the steps of each.
SEEDS: Final = range(12)
STEPS: Final = 60
_FLAGS: Final = (0, 0, socket.MSG_DONTWAIT, socket.MSG_PEEK, socket.MSG_WAITALL)
_MASKS: Final = (5, 1, 4, 0x2005, 0x2047, 0x40, 0x100)
_SIZES: Final = (0, 1, 7, 1000, 5000, 20_000)


def _polled(skt: Any, size: int, draw: random.Random) -> Any:
    poll = select.poll()
    poll.register(skt, draw.choice(_MASKS))
    return [events for _, events in poll.poll(0)]


def _scattered(skt: Any, size: int, draw: random.Random) -> Any:
    rooms = [bytearray(size), bytearray(3), bytearray(100)]
    count, _, _, _ = skt.recvmsg_into(rooms, 0, draw.choice(_FLAGS))
    return b"".join(rooms)[:count]


def _lingers(skt: Any, size: int, draw: random.Random) -> None:
    skt.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", draw.randrange(2), 0))


_STEPS: Final[tuple[tuple[int, Callable[[Any, int, random.Random], Any]], ...]] = (
    (8, lambda skt, size, draw: skt.send(draw.randbytes(size))),
    (4, lambda skt, size, draw: skt.sendmsg([draw.randbytes(size), b"", bytearray(b"end")])),
    (10, lambda skt, size, draw: skt.recv(size, draw.choice(_FLAGS))),
    (4, _scattered),
    (6, _polled),
    (2, lambda skt, size, draw: [len(each) for each in select.select([skt], [skt], [skt], 0)]),
    (2, lambda skt, size, draw: skt.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)),
    (1, lambda skt, size, draw: skt.getpeername()[0]),
    (2, lambda skt, size, draw: skt.shutdown(draw.randrange(3))),
    (1, _lingers),
)


def _settle(ends: Ends) -> None:
    # The kernel's TCP has brought everything by now.
    for _ in range(4 * ends.isSDP):
        module.theLoop().poll()


@scenarios.each(*SEEDS)
def walk(ends: Ends, seed: int) -> None:
    """
    Send, receive, look, shut down, duplicate and close, at either end.
    """
    draw = random.Random(seed)
    sides: list[list[Any]] = [[each] for each in ends.pair(0.0)]
    for (each,) in sides:
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    weights, calls = zip(*_STEPS, strict=True)
    for step in range(STEPS):
        # Drawn whether they are used or not, so that a step is the same over both.
        side, kind, size = draw.choice(sides), draw.random(), draw.choice(_SIZES)
        own = random.Random(draw.random())
        (call,) = draw.choices(calls, weights)
        if not side:
            continue
        skt = own.choice(side)
        _settle(ends)
        if kind < 0.03:
            side.append(ends.kept(skt.dup()))
            side[-1].settimeout(0.0)
        elif kind < 0.06:
            side.remove(skt)
            skt.close()
        else:
            ends.call(f"{step}", call, skt, size, own)
    for skt in (*sides[0], *sides[1]):
        _settle(ends)
        ends.say("rest", ends.events(skt), ends.drained(skt))
        _settle(ends)
