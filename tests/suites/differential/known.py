"""
What stays different over SDP, and why: twelve entries at most.
"""

from __future__ import annotations

from typing import Final

#: By programs and scenarios.
KNOWN: Final[dict[str, dict[str, str]]] = {
    "asyncio": {
        "closedWhileDraining": "The peer aborts with octets on their way: over TCP its kernel has them, and"
        " its first word is a reset.  Over SDP it has not seen them yet and ends in order, and the reset is"
        " behind that end: EPIPE, as of Linux's tcp_reset() in CLOSE_WAIT.",
    },
    "reactor": {},
    "socket": {},
}

#: So many may stay.
MOST_KNOWN: Final = 12
