"""
How often functions are called, for tests of what a message costs.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any


def called(act: Callable[[], object]) -> Counter[str]:
    """
    @return: How often which function of Python ran while something was done.
    """
    calls: Counter[str] = Counter()

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        """
        Count a call.
        """
        if event == "call":
            calls[frame.f_code.co_name] += 1

    sys.setprofile(profile)
    try:
        act()
    finally:
        sys.setprofile(None)
    return calls
