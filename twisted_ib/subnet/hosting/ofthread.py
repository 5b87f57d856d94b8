"""
The subnet that a thread hosts for the devices that it opens.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twisted_ib.subnet.hosting.hosted import HostedSubnet


class _OfThread(threading.local):
    subnet: HostedSubnet | None = None


_ofThread = _OfThread()


def hostHere(subnet: HostedSubnet | None) -> None:
    """
    Have the C{ib} devices that this thread opens from now on attached to a subnet.

    @param subnet: it; L{None} for that of the run directory again.
    """
    _ofThread.subnet = subnet


def ofThisThread() -> HostedSubnet | None:
    """
    @return: the subnet that the calling thread hosts; L{None} if its devices belong to that of the run
        directory.
    """
    return _ofThread.subnet


__all__ = ["hostHere", "ofThisThread"]
