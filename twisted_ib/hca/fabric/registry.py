"""
Which devices there are, by name.  Only this module names fabrics.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Any

from twisted_ib.errors import DeviceError, UnknownDeviceError
from twisted_ib.hca.fabric.neighbours import Neighbours


def _loopback(
    owner: Any, guid: int, clock: Callable[[], float], neighbours: Neighbours | None = None
) -> Any:
    """
    @return: The fabric within one thread, or among some neighbours.
    """
    from twisted_ib.hca.fabric.loopback import LoopbackFabric

    return LoopbackFabric(owner, guid, clock, neighbours)


def _sharedMemory(
    owner: Any, guid: int, clock: Callable[[], float], neighbours: Neighbours | None = None
) -> Any:
    """
    @return: The fabric between the processes of this host, which all are neighbours.
    @raise DeviceError: this system has not what it needs.
    """
    if not hasattr(select, "epoll"):
        raise DeviceError("device shm0 needs Linux; lo0 works here, within one process")
    from twisted_ib.hca.fabric.shm import SharedMemoryFabric

    return SharedMemoryFabric(owner, guid, clock)


#: Device name -> function of owner, GUID, clock and perhaps neighbours.
DEVICES: dict[str, Callable[..., Any]] = {
    "lo0": _loopback,
    "shm0": _sharedMemory,
}

#: The device that is meant where none is named.
DEFAULT_DEVICE = "shm0"


def openFabric(
    name: str,
    owner: Any,
    guid: int,
    clock: Callable[[], float],
    neighbours: Neighbours | None = None,
) -> Any:
    """
    Open the fabric of a device.

    @param neighbours: Which devices of C{lo0} it can meet; by default those of this
        thread.
    @raise UnknownDeviceError: there is no such device.
    @raise DeviceError: it can not be opened here.
    """
    try:
        make = DEVICES[name]
    except KeyError:
        raise UnknownDeviceError(
            f"there is no device {name!r}; there are {', '.join(sorted(DEVICES))}"
        ) from None
    return make(owner, guid, clock) if neighbours is None else make(owner, guid, clock, neighbours)
