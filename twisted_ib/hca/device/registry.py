"""
Which devices there are, by name.  Only this module names fabrics.

There are C{lo0} and C{shm0}, those that L{addDevice} adds, those that C{TWISTED_IB_DEVICES} names, and
those of the configuration.  Who keeps listening on all devices is told of those that come and go:
L{watchDevices}.

Devices of some fabrics have an address of their own.  C{roce0}, C{roce1} and so on are such devices
without having been added: each is opened at the address that its user binds (L{place}).
"""

from __future__ import annotations

import os
import re
import select
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any
from weakref import WeakSet

from twisted_ib.errors import DeviceError, UnknownDeviceError
from twisted_ib.hca.fabric.base.neighbours import Neighbours
from twisted_ib.hca.host.addresses import normalise, sourceFor


def _loopback(owner: Any, guid: int, clock: Callable[[], float], neighbours: Neighbours | None = None) -> Any:
    """
    @return: The fabric within one thread, or among some neighbours.
    """
    from twisted_ib.hca.fabric.loopback.loopback import LoopbackFabric

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
    from twisted_ib.hca.fabric.shm.shm import SharedMemoryFabric

    return SharedMemoryFabric(owner, guid, clock)


def _roce(owner: Any, guid: int, clock: Callable[[], float], address: str) -> Any:
    """
    @param address: Its own, an IP address of this host.
    @return: The fabric of RoCEv2 packets.
    @raise DeviceError: somebody else has the address or its port.
    """
    from twisted_ib.hca.fabric.roce.packet import PacketFabric
    from twisted_ib.hca.fabric.roce.roce import RoCELink

    return PacketFabric(owner, guid, clock, RoCELink(address))


#: Kind of fabric -> function of owner, GUID, clock and perhaps neighbours.
FABRICS: dict[str, Callable[..., Any]] = {
    "loopback": _loopback,
    "roce": _roce,
    "shm": _sharedMemory,
}

#: Those that take an address of their own, C{address}, and need one.
ADDRESSED: frozenset[str] = frozenset(("roce",))
#: What devices are called that there are without having been added, and their fabric.
_IMPLICIT = {"roce": re.compile(r"roce(?:0|[1-9][0-9]{0,2})").fullmatch}

#: The variable that names devices: C{NAME=FABRIC} or C{NAME=FABRIC:ADDRESS}, with commas between.
VARIABLE = "TWISTED_IB_DEVICES"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}").fullmatch
#: Addresses that name no interface.
_WILDCARDS = ("", "0.0.0.0", "::")

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
#: What is read for devices, and what it was called when it was.
_read: dict[str, str | None] = {"environment": "", "configuration": None}
#: The module that knows the configuration, which stands above this one; the variable that names the file,
#: and what it is called where none is named.
_CONFIGURATION, _CONFIGURATION_VARIABLE = "twisted_ib.reactor.rules.configuration", "TWISTED_IB_CONFIG"
_CONFIGURATION_FILE = os.path.join("twisted_ib", "ib.conf")


def _checked(name: str, fabric: str, address: str | None) -> str | None:
    """
    @return: The address of a device to be, in its one spelling.
    @raise DeviceError: There can be no such device.
    """
    if fabric not in FABRICS:
        raise DeviceError(f"there is no fabric {fabric!r}; there are {', '.join(sorted(FABRICS))}")
    if fabric not in ADDRESSED:
        if address is not None:
            raise DeviceError(f"device {name}: one of fabric {fabric} has no address of its own")
        return None
    if not address:
        raise DeviceError(f"device {name}: one of fabric {fabric} needs an address of this host")
    try:
        found = normalise(address)
    except ValueError:
        found = "::"
    if found in _WILDCARDS:
        raise DeviceError(f"device {name}: {address!r} is not the address of an interface")
    return found


def addDevice(name: str, fabric: str, address: str | None = None) -> None:
    """
    Add a device, and tell who watches.  To add one again that is there does nothing.

    @param name: Its name.
    @param fabric: The kind of its fabric: C{"shm"}, C{"loopback"} or C{"roce"}.
    @param address: Its own address, for a fabric whose devices have one: C{"roce"}.
    @raise DeviceError: There is no such fabric, the name is another device's, or the address can
        not be one.
    """
    address = _checked(name, fabric, address)
    make = FABRICS[fabric]
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


def parseDevices(text: str) -> dict[str, tuple[str, str | None]]:
    """
    Read what C{TWISTED_IB_DEVICES} says.

    @param text: its value.
    @return: By name, the fabric and the address of each device.
    @raise DeviceError: It is wrong.
    """
    found: dict[str, tuple[str, str | None]] = {}
    for item in filter(None, map(str.strip, text.split(","))):
        name, equals, rest = item.partition("=")
        fabric, colon, address = rest.partition(":")
        if not equals or not _NAME(name):
            raise DeviceError(f"{VARIABLE}: {item!r} is not NAME=FABRIC:ADDRESS, as roce0=roce:192.0.2.1")
        if address.startswith("[") and address.endswith("]"):
            address = address[1:-1]
        try:
            what = fabric, _checked(name, fabric, address if colon else None)
        except DeviceError as error:
            raise DeviceError(f"{VARIABLE}: {item!r}: {error}") from None
        if found.setdefault(name, what) != what:
            raise DeviceError(f"{VARIABLE}: there are two devices {name}")
    return found


def readEnvironment() -> None:
    """
    Add the devices that C{TWISTED_IB_DEVICES} names, unless that is done.

    @raise DeviceError: It is wrong.
    """
    text = os.environ.get(VARIABLE, "")
    if text == _read["environment"]:
        return
    devices = parseDevices(text)
    _read["environment"] = text
    for name, (fabric, address) in devices.items():
        if name not in DEVICES:  # What the program says itself counts.
            addDevice(name, fabric, address)


def _hasFile() -> bool:
    """
    @return: Whether there may be a file that nobody names.  Without one its reader, which needs Twisted,
        is not imported.
    """
    folders = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"), "/etc"
    return any(os.path.lexists(os.path.join(folder, _CONFIGURATION_FILE)) for folder in folders)


def readConfiguration() -> None:
    """
    Add the devices of the configuration, unless that is done.  With the C{ib} reactor's rules they come
    by themselves; a name that nobody knows is looked for here.

    @raise DeviceError: It is wrong.
    """
    name = os.environ.get(_CONFIGURATION_VARIABLE, "")
    if name == _read["configuration"]:
        return
    devices = import_module(_CONFIGURATION).namedDevices() if name or _hasFile() else []
    _read["configuration"] = name
    for device, fabric, address in devices:
        if device not in DEVICES:
            addDevice(device, fabric, address)


def deviceNames() -> list[str]:
    """
    @return: The names of all devices that there are, the default one first; those of the environment and
        of the configuration only if nothing is wrong there.
    """
    _tryToRead(True)
    return sorted(DEVICES, key=lambda name: (name != DEFAULT_DEVICE, name))


def _tryToRead(configuration: bool) -> None:
    """
    The same as L{readEnvironment} and L{readConfiguration} for who has no use for an error.

    @param configuration: Whether to read that as well.
    """
    try:
        readEnvironment()
        if configuration:
            readConfiguration()
    except DeviceError:
        pass  # Who opens such a device hears of it.


def addedDevices() -> tuple[str, ...]:
    """
    @return: The names of the devices that were added and are still there.
    """
    _tryToRead(False)  # Who asks has the rules.
    return tuple(_added)


def fabricOf(name: str) -> str | None:
    """
    @return: The kind of a device's fabric; L{None} if there is no such device.
    """
    kind = _kinds.get(name)
    return None if kind is None or name not in DEVICES else kind[0]


def addressOf(name: str) -> str | None:
    """
    @return: The own address of a device; L{None} if it has none, or none yet.
    """
    kind = _kinds.get(name)
    return None if kind is None or name not in DEVICES else kind[1]


def _unknown(name: str) -> UnknownDeviceError:
    """
    @return: The error for a name that is no device's.
    """
    return UnknownDeviceError(f"there is no device {name!r}; there are {', '.join(sorted(DEVICES))}")


def _kindOf(name: str) -> str:
    """
    @return: The kind of a device's fabric, also of one that was not added.
    @raise UnknownDeviceError: There is no such device.
    @raise DeviceError: C{TWISTED_IB_DEVICES} or the configuration is wrong.
    """
    if name not in DEVICES:
        readEnvironment()
    if name not in DEVICES:
        readConfiguration()
    if name in DEVICES:
        kind = _kinds.get(name)
        return "" if kind is None else kind[0]
    for fabric, matches in _IMPLICIT.items():
        if matches(name):
            return fabric
    raise _unknown(name)


def isPlacedByUser(name: str) -> bool:
    """
    @return: Whether a device is opened at the address that its user binds, as it was not added.
    @raise UnknownDeviceError: There is no such device.
    @raise DeviceError: C{TWISTED_IB_DEVICES} or the configuration is wrong.
    """
    return _kindOf(name) in ADDRESSED and name not in DEVICES


def place(name: str, bound: str = "", peer: str = "") -> str | None:
    """
    Say at which address a device is, or is to be opened.

    @param name: The device's name.
    @param bound: The address that its user binds, if any.
    @param peer: Where its user wants to connect to, if anywhere.
    @return: Its own address; without one, what is bound, or else where the kernel would connect from.
        L{None} for a fabric whose devices have no address.
    @raise UnknownDeviceError: There is no such device.
    @raise NoRouteError: The kernel knows no way to C{peer}.
    @raise DeviceError: It needs an address and nobody gives one; or what names devices is wrong.
    @raise ValueError: C{bound} or C{peer} is not an IP address.
    """
    fabric = _kindOf(name)
    if fabric not in ADDRESSED:
        return None
    address = addressOf(name)
    if address is not None:
        return address
    if bound not in _WILDCARDS:
        return normalise(bound)
    if peer:
        return sourceFor(peer)
    raise DeviceError(
        f"device {name} has no address: bind one of this host, or say {VARIABLE}={name}={fabric}:ADDRESS"
    )


def openFabric(
    name: str,
    owner: Any,
    guid: int,
    clock: Callable[[], float],
    neighbours: Neighbours | None = None,
    address: str | None = None,
) -> Any:
    """
    Open the fabric of a device.

    @param neighbours: Which devices of C{lo0} it can meet; by default those of this
        thread.
    @param address: For a device that was not added: where it is to be, see L{place}.
    @raise UnknownDeviceError: there is no such device.
    @raise DeviceError: it cannot be opened here.
    """
    fabric = _kindOf(name)
    if fabric in ADDRESSED:
        own = place(name, address or "")
        if address is not None and own != normalise(address):
            raise DeviceError(f"device {name} has the address {own}, not {address}")
        return FABRICS[fabric](owner, guid, clock, address=own)
    make = DEVICES[name]
    return make(owner, guid, clock) if neighbours is None else make(owner, guid, clock, neighbours)
