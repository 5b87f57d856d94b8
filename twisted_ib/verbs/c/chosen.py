"""
The device that a program is to use: C{ib-run} says it in the environment.
"""

from __future__ import annotations

import os

#: The variable that names the only device that programs are shown.
DEVICE = "TWISTED_IB_DEVICE"


def chosenDevice() -> str | None:
    """
    @return: the name of the only device that the program is shown; L{None} for all.
    """
    return os.environ.get(DEVICE) or None


__all__ = ["DEVICE", "chosenDevice"]
