"""
The subnet that a thread hosts for the devices that it opens.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from twisted_ib.errors import DeviceError

if TYPE_CHECKING:
    from twisted_ib.hca.host.subnet.hosted import HostedSubnet


class _OfThread(threading.local):
    subnet: HostedSubnet | None = None


_ofThread = _OfThread()


def hostHere(subnet: HostedSubnet | None) -> None:
    """
    Have the C{ib} devices that this thread opens from now on attached to a subnet.

    @param subnet: it; L{None} for none.
    """
    _ofThread.subnet = subnet


def ofThisThread() -> HostedSubnet:
    """
    @return: the subnet that the calling thread hosts.
    @raise DeviceError: there is none.
    """
    if _ofThread.subnet is None:
        raise DeviceError(
            "this thread hosts no subnet, which ib devices need; make a HostedSubnet and say hostHere(subnet)"
        )
    return _ofThread.subnet


__all__ = ["hostHere", "ofThisThread"]
