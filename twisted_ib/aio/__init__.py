"""
asyncio over SDP: an event loop whose connections and servers go through the offload switch.

L{new_event_loop} makes one: C{asyncio.Runner(loop_factory=twisted_ib.aio.new_event_loop)}.  Everything else
is asyncio's: C{asyncio.open_connection}, C{start_server}, C{loop.create_connection}, C{loop.create_server},
with TLS too, by the rules of the same file as the C{ib} reactor.

Inside: C{loop} is asyncio's selector event loop, in which a C{reactor} serves the devices.  C{connecting} and
C{listening} are the two sides.  A connected stream is a C{streamsocket} until asyncio makes a C{transport} of
it, as it does of sockets.

Besides:

  - C{given}: sockets that a program makes itself and has its loop connect
  - C{moving}: connections that their blocking clients move to TCP
  - C{named}: streams by name for asyncio
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twisted_ib.aio.loop import EventLoop, new_event_loop

__all__ = ["EventLoop", "new_event_loop"]


def __getattr__(name: str) -> object:
    if name in __all__:
        from twisted_ib.aio import loop

        return getattr(loop, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
