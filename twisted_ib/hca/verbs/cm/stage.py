"""
How far an identifier of the communication manager is, and what may be asked of it then.
"""

from __future__ import annotations

from enum import IntEnum


class Stage(IntEnum):
    """
    How far an identifier is.

    @cvar BOUND: to an address of this host.
    @cvar RESOLVED: the other address can be reached.
    @cvar ROUTED: and the way there is known.
    @cvar CALLED: a request came, which is not answered.
    @cvar ANSWERED: the peer accepts, the program must say that it is ready.
    @cvar UP: the connection stands, or is about to.
    @cvar OVER: it came to nothing, or ended.
    """

    IDLE = 0
    BOUND = 1
    RESOLVED = 2
    ROUTED = 3
    CALLING = 4
    CALLED = 5
    ANSWERED = 6
    UP = 7
    OVER = 8
    LISTENING = 9
    CLOSED = 10


#: Commands: from where, and where to.
STEPS: dict[str, tuple[frozenset[Stage], Stage]] = {
    "bind": (frozenset((Stage.IDLE,)), Stage.BOUND),
    "resolve address": (frozenset((Stage.BOUND,)), Stage.RESOLVED),
    "resolve route": (frozenset((Stage.RESOLVED,)), Stage.ROUTED),
    "connect": (frozenset((Stage.ROUTED,)), Stage.CALLING),
    "listen": (frozenset((Stage.BOUND,)), Stage.LISTENING),
    "accept": (frozenset((Stage.CALLED,)), Stage.UP),
    "reject": (frozenset((Stage.CALLED,)), Stage.OVER),
    "establish": (frozenset((Stage.ANSWERED,)), Stage.UP),
}
