"""
What stays different over SDP, and why: twelve entries at most.
"""

from __future__ import annotations

from typing import Final

#: By programs and scenarios.
KNOWN: Final[dict[str, dict[str, str]]] = {
    "asyncio": {},
    "reactor": {},
    "socket": {},
}

#: So many may stay.
MOST_KNOWN: Final = 12
