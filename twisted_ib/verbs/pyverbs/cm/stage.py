"""
The stages of a CM identifier, and the commands that each permits.
"""

from __future__ import annotations

from enum import IntEnum


class Stage(IntEnum):
    """
    The stages, after C{enum rdma_cm_state} of Linux cma.c.

    @cvar BOUND: bound to an address of this host.
    @cvar RESOLVED: the destination is reachable.
    @cvar ROUTED: the route is known.
    @cvar CALLED: a request was received and not answered.
    @cvar ANSWERED: the REP was received; the program must call C{establish}.
    @cvar UP: established, or a REP was sent and the RTU is awaited.
    @cvar OVER: rejected, failed or disconnected.
    """

    IDLE = 0
    BOUND = 1
    RESOLVED = 2
    ROUTED = 3
    REQ_SENT = 4
    REQ_RECEIVED = 5
    REP_RECEIVED = 6
    UP = 7
    OVER = 8
    LISTENING = 9
    CLOSED = 10


#: Command -> (stages that permit it, next stage).  Linux cma.c checks the same with C{cma_comp_exch}: a
#: command in any other stage is EINVAL.
STEPS: dict[str, tuple[frozenset[Stage], Stage]] = {
    "bind": (frozenset((Stage.IDLE,)), Stage.BOUND),
    "resolve address": (frozenset((Stage.BOUND,)), Stage.RESOLVED),
    "resolve route": (frozenset((Stage.RESOLVED,)), Stage.ROUTED),
    "connect": (frozenset((Stage.ROUTED,)), Stage.REQ_SENT),
    "listen": (frozenset((Stage.BOUND,)), Stage.LISTENING),
    "accept": (frozenset((Stage.REQ_RECEIVED,)), Stage.UP),
    "reject": (frozenset((Stage.REQ_RECEIVED,)), Stage.OVER),
    "establish": (frozenset((Stage.REP_RECEIVED,)), Stage.UP),
}
