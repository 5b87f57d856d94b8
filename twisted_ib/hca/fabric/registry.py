"""
Which devices there are, by name.  Only this module names fabrics.

There are C{lo0} and C{shm0}, and those that L{addDevice} adds.  Who keeps listening on all devices is
told of those that come and go: L{watchDevices}.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakSet

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


#: Kind of fabric -> function of owner, GUID, clock and perhaps neighbours.
FABRICS: dict[str, Callable[..., Any]] = {
    "loopback": _loopback,
    "shm": _sharedMemory,
}

#: Those that take an address of their own, C{address}.
_ADDRESSED: frozenset[str] = frozenset()

#: Device name -> the same function.
DEVICES: dict[str, Callable[..., Any]] = {
    "lo0": _loopback,
    "shm0": _sharedMemory,
}

#: The device that is meant where none is named.
DEFAULT_DEVICE = "shm0"

#: Device name -> its kind of fabric, and its address if it has one.
_kinds: dict[str, tuple[str, str | None]] = {"lo0": ("loopback", None), "shm0": ("shm", None)}
#: The names of those that were added, in order.
_added: dict[str, None] = {}
_watchers: WeakSet[Any] = WeakSet()


def addDevice(name: str, fabric: str, address: str | None = None) -> None:
    """
    Add a device, and tell who watches.  To add one again that is there does nothing.

    @param name: Its name.
    @param fabric: The kind of its fabric, C{"shm"} or C{"loopback"}.
    @param address: Its own address, for a fabric whose devices have one.
    @raise DeviceError: There is no such fabric, or the name is another device's.
    """
    make = FABRICS.get(fabric)
    if make is None:
        raise DeviceError(f"there is no fabric {fabric!r}; there are {', '.join(sorted(FABRICS))}")
    if address is not None and fabric not in _ADDRESSED:
        raise DeviceError(f"device {name}: one of fabric {fabric} has no address of its own")
    if name in DEVICES:
        if _kinds.get(name) == (fabric, address):
            return
        raise DeviceError(f"there is a device {name} already, and it is another")
    DEVICES[name] = make if address is None else partial(make, address=address)
    _kinds[name] = (fabric, address)
    _added[name] = None
    for watcher in list(_watchers):
        watcher.deviceAdded(name)


def removeDevice(name: str) -> None:
    """
    Remove a device, and tell who watches: its connections are lost.

    @param name: Its name.
    @raise UnknownDeviceError: There is no such device.
    """
    if name not in DEVICES:
        raise _unknown(name)
    del DEVICES[name]
    _kinds.pop(name, None)
    _added.pop(name, None)
    for step in ("deviceGoing", "deviceGone"):
        for watcher in list(_watchers):
            getattr(watcher, step)(name)


def watchDevices(watcher: Any) -> None:
    """
    Be told of devices that come and go.

    @param watcher: Has C{deviceAdded(name)}; C{deviceGoing(name)}, while the device still works; and
        C{deviceGone(name)}.  Called in the thread of who adds or removes.  It is not kept alive.
    """
    _watchers.add(watcher)


def addedDevices() -> tuple[str, ...]:
    """
    @return: The names of the devices that were added and are still there.
    """
    return tuple(_added)


def fabricOf(name: str) -> str | None:
    """
    @return: The kind of a device's fabric; L{None} if there is no such device.
    """
    kind = _kinds.get(name)
    return None if kind is None or name not in DEVICES else kind[0]


def _unknown(name: str) -> UnknownDeviceError:
    """
    @return: The error for a name that is no device's.
    """
    return UnknownDeviceError(f"there is no device {name!r}; there are {', '.join(sorted(DEVICES))}")


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
        raise _unknown(name) from None
    return make(owner, guid, clock) if neighbours is None else make(owner, guid, clock, neighbours)
