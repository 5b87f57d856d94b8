"""
What stays different over SDP, and why: twelve entries at most.
"""

from __future__ import annotations

import sys
from typing import Final

#: By programs and scenarios.
KNOWN: Final[dict[str, dict[str, str]]] = {
    "asyncio": {}
    if sys.version_info >= (3, 11)
    else {
        "callbackRaises": "Python 3.10 tells of the error when the task is collected",
        "duplicateOfEnded": "its transports over TCP read although connection_made() has paused them",
    },
    "reactor": {},
    "socket": {},
}

#: So many may stay.
MOST_KNOWN: Final = 12
