"""
The device that a program is to use: C{ib-run} says it in the environment.
"""

from __future__ import annotations

import os

#: The only device that programs are shown, and its address if it has one of its own.
DEVICE, ADDRESS = "TWISTED_IB_DEVICE", "TWISTED_IB_ADDRESS"


def chosenDevice() -> str | None:
    """
    @return: the name of the only device that the program is shown; L{None} for all.
    """
    return os.environ.get(DEVICE) or None


def chosenAddress() -> str | None:
    """
    @return: the address of the device.
    """
    return os.environ.get(ADDRESS) or None


__all__ = ["ADDRESS", "DEVICE", "chosenAddress", "chosenDevice"]
