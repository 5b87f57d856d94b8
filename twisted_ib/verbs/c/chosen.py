"""
The device that a program is to use: C{ib-run} says it in the environment.
"""

from __future__ import annotations

import os

from twisted_ib.settings import DEVICE


def chosenDevice() -> str | None:
    """
    @return: the name of the only device that the program is shown; L{None} for all.
    """
    return os.environ.get(DEVICE) or None
