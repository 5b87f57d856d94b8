"""
The devices by name.  Only this module names the adapter's fabrics; others add themselves (L{addFabric}).

There are C{lo0} and C{shm0}, those that L{addDevice} adds, those that C{TWISTED_IB_DEVICES} names, and those
of the configuration.  L{watchDevices} notifies listeners on all devices of changes.

Devices of some fabrics have an address of their own.  C{roce0}, C{roce1} and so on are such devices without
having been added: each is opened at the address that its user binds (L{place}).

C{ib0}, C{ib1} and so on exist without having been added too (L{twisted_ib.subnet.row}).  They are used by
name alone: who listens on all devices does not listen on them.
"""

from __future__ import annotations

import os
import re
import select
from collections.abc import Callable, Mapping
from importlib import import_module
from ipaddress import ip_interface
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from twisted_ib import PLUGINS, settings
from twisted_ib.configuration.file import readFirst
from twisted_ib.drive.process import members
from twisted_ib.errors import DeviceError, RulesError, UnknownDeviceError
from twisted_ib.hca.base.traits import ADAPTER, LOCAL, ROUTED, SHARED, STREAM, Traits
from twisted_ib.hca.fabric.base.neighbours import Neighbours
from twisted_ib.hca.host.addresses import isWildcard, normalise, sourceFor
from twisted_ib.layouts import Shown
from twisted_ib.records import frozen

if TYPE_CHECKING:
    from twisted_ib.configuration.syntax import Contents, DeviceStatement
    from twisted_ib.hca.base.interfaces import IFabric


def _loopback(owner: Any, guid: int, clock: Callable[[], float], neighbours: Neighbours | None = None) -> Any:
    # Imported on demand: a program pays for the fabrics that it uses.
    from twisted_ib.hca.fabric.loopback.loopback import LoopbackFabric

    return LoopbackFabric(owner, guid, clock, neighbours)


def _sharedMemory(
    owner: Any,
    guid: int,
    clock: Callable[[], float],
    neighbours: Neighbours | None = None,
    namespace: int | None = None,
) -> IFabric:
    # select.epoll, eventfd and sealed memory files are Linux's.
    if not hasattr(select, "epoll"):
        raise DeviceError("device shm0 needs Linux; lo0 works here, within one process")
    from twisted_ib.hca.fabric.shm.shm import SharedMemoryFabric

    return SharedMemoryFabric(owner, guid, clock, namespace=namespace)


def _roce(owner: Any, guid: int, clock: Callable[[], float], address: str) -> IFabric:
    """
    @param address: its own, an IP address of this host.
    @raise DeviceError: the address or its port is in use.
    """
    from twisted_ib.hca.fabric.roce.packet import PacketFabric
    from twisted_ib.hca.fabric.roce.roce import RoCELink

    # IBTA vol. 1 annex A17: RoCEv2 has one UDP port, 4791, for each address, so a device owns its address, or
    # shares it with others of this user.
    link = RoCELink(address, isShared=True)
    return PacketFabric(owner, guid, clock, link, group=link.group)


def _prepareRoCE() -> object:
    from twisted_ib.hca.fabric.roce import packet, roce
    from twisted_ib.hca.mad import agents, dispatch

    return packet, roce, agents, dispatch


def _iwarp(
    owner: Any,
    guid: int,
    clock: Callable[[], float],
    address: str,
    crc: bool = False,
    markers: bool = False,
) -> IFabric:
    from twisted_ib.hca.fabric.iwarp.iwarp import IWARPFabric

    return IWARPFabric(owner, guid, clock, address, crc, markers)


def _hardware(owner: Any, guid: int, clock: Callable[[], float], address: str, adapter: str) -> IFabric:
    # C{adapter} is its name in libibverbs.
    from twisted_ib.hca.fabric.hardware.hardware import HardwareFabric

    return HardwareFabric(owner, guid, clock, address, adapter)


def _addressOfAdapter(adapter: str) -> str:
    from twisted_ib.hca.fabric.hardware.adapters import addressOfAdapter

    return addressOfAdapter(adapter)


@frozen(repr=False)
class FabricKind(Shown):
    """
    One kind of fabric: what rules, tools and devices know of it without opening one.

    @ivar name: its name in C{addDevice}, C{TWISTED_IB_DEVICES} and C{device} statements.
    @ivar open: the factory, a function of owner, GUID, clock and, if its devices have one, C{address}; and of
        its options.
    @ivar traits: facts of it.
    @ivar device: the device of this kind that exists without being added; C{""} for none.
    @ivar implicit: matches the names of further devices that do, opened at the address that their user binds
        if they have one; L{None} for none.
    @ivar hasInterfaces: whether a device may be named with the address of its IPoIB interface.
    @ivar options: the names of what may be switched on for a device that is added.
    @ivar locate: of a kind whose devices stand for adapters of this host: gives the IP address of an adapter,
        by its name, or raises L{DeviceError}.  Then C{open} is given the name, too.
    @ivar prepare: imports what a device would when it is opened.
    """

    name: str
    open: Callable[..., Any]
    traits: Traits
    device: str = ""
    implicit: Callable[[str], object] | None = None
    hasInterfaces: bool = False
    options: tuple[str, ...] = ()
    locate: Callable[[str], str] | None = None
    prepare: Callable[[], object] = tuple

    @property
    def hasAddress(self) -> bool:
        """
        Whether its devices have addresses of their own.
        """
        return self.traits.hasAddress


def numbered(start: str) -> Callable[[str], bool]:
    """
    @return: whether a name is that with a number below 1000 behind it, as C{roce0}.
    """

    def matches(name: str) -> bool:
        number = name[len(start) :]
        isShort = name.startswith(start) and len(number) <= 3 and number.isdecimal()
        return isShort and str(int(number)) == number

    return matches


#: The fabrics, in order: a new one is its folder, its factory and a row.  L{addFabric} appends others.
KINDS = [
    FabricKind("loopback", _loopback, LOCAL, "lo0"),
    FabricKind("shm", _sharedMemory, SHARED, "shm0"),
    FabricKind("roce", _roce, ROUTED, implicit=numbered("roce"), prepare=_prepareRoCE),
    FabricKind("iwarp", _iwarp, STREAM, implicit=numbered("iwarp"), options=("crc", "markers")),
    FabricKind(
        *("hardware", _hardware, ADAPTER),
        # Linux' names of RDMA devices; an adapter that a device was added for has that name as well.
        implicit=lambda name: os.path.isdir(f"/sys/class/infiniband/{name}"),
        locate=_addressOfAdapter,
    ),
]
#: The same by name.
FABRICS: dict[str, FabricKind] = {kind.name: kind for kind in KINDS}

#: A device's name, and that of an adapter.  Compiled when there is one.
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}"

#: The device that is used where none is named.
DEFAULT_DEVICE = "shm0"

#: Device name -> its kind, its address or adapter if it has one, and the options that are switched on.
DEVICES: dict[str, tuple[FabricKind, str | None, frozenset[str]]] = {
    kind.device: (kind, None, frozenset()) for kind in KINDS if kind.device
}
#: The names of the devices that were added, in order.
_added: dict[str, None] = {}
_watchers: WeakSet[Any] = WeakSet()
#: The values of the variables when the environment and the configuration were last read.
_read: dict[str, str | None] = {"environment": "", "configuration": None}


def addFabric(kind: FabricKind) -> None:
    """
    Add a kind of fabric, for those that are none of the adapter's.  Adding the same again does nothing.

    @raise DeviceError: there is another one of its name.
    """
    known = FABRICS.setdefault(kind.name, kind)
    if known != kind:
        raise DeviceError(f"there is a fabric {kind.name} already, and it is another")
    if kind not in KINDS:
        KINDS.append(kind)
    if kind.device:
        DEVICES.setdefault(kind.device, (kind, None, frozenset()))


def _checked(name: str, fabric: str, address: str | None) -> str | None:
    """
    @return: the address of a new device, normalised.
    @raise DeviceError: there can be no such device.
    """
    if fabric not in FABRICS:
        raise DeviceError(f"there is no fabric {fabric!r}; there are {', '.join(sorted(FABRICS))}")
    if not FABRICS[fabric].hasAddress:
        if address is None:
            return None
        if not FABRICS[fabric].hasInterfaces:
            raise DeviceError(f"device {name}: one of fabric {fabric} has no address of its own")
        return _interface(name, address)
    if FABRICS[fabric].locate is not None:
        if not address or not re.fullmatch(_NAME, address):
            raise DeviceError(f"device {name}: one of fabric {fabric} needs an adapter's name, as rxe0")
        return address
    if not address:
        raise DeviceError(f"device {name}: one of fabric {fabric} needs an address of this host")
    try:
        found = normalise(address)
    except ValueError:
        found = "::"
    if isWildcard(found):
        raise DeviceError(f"device {name}: {address!r} is not the address of an interface")
    return found


def _interface(name: str, address: str) -> str:
    try:
        if "/" not in address:
            raise ValueError("no prefix")
        return str(ip_interface(address))
    except ValueError:
        raise DeviceError(
            f"device {name}: {address!r} is not the address of an IPoIB interface, as 10.9.0.1/24"
        ) from None


def _enabled(name: str, fabric: str, options: Mapping[str, bool]) -> frozenset[str]:
    # Those that are switched on.
    for option in options:
        if option not in FABRICS[fabric].options:
            raise DeviceError(f"device {name}: one of fabric {fabric} has no option {option!r}")
    return frozenset(option for option, isOn in options.items() if isOn)


def addDevice(name: str, fabric: str, address: str | None = None, **options: bool) -> None:
    """
    Add a device, and notify the watchers.  Adding the same device again does nothing.

    @param fabric: its fabric, one of L{FABRICS}: C{"shm"}, C{"loopback"}, C{"ib"}, C{"roce"}, C{"iwarp"},
        C{"hardware"}.
    @param address: its own address, for a fabric whose devices have one: C{"roce"} and C{"iwarp"}; or that of
        its IPoIB interface with the length of the prefix, for C{"ib"}: see C{interfaceOf}; or the name of the
        adapter, for C{"hardware"}.
    @param options: of C{"iwarp"} C{crc}: ask peers for CRCs, which need C{google-crc32c}; and C{markers}: ask
        for markers, and send them to peers that ask. Both are off by default.
    @raise DeviceError: an unknown fabric or option, a name that another device has, or a bad address.
    """
    address = _checked(name, fabric, address)
    device = FABRICS[fabric], address, _enabled(name, fabric, options)
    if name in DEVICES:
        if DEVICES[name] == device:
            return
        raise DeviceError(f"there is a device {name} already, and it is another")
    DEVICES[name] = device
    _added[name] = None
    # A copy: a watcher may add watchers, and other threads do.
    for watcher in members(_watchers):
        watcher.deviceAdded(name)


def removeDevice(name: str) -> None:
    """
    Remove a device, and notify the watchers: its connections are lost.

    @raise UnknownDeviceError: there is no such device.
    """
    if name not in DEVICES:
        raise _unknown(name)
    del DEVICES[name]
    _added.pop(name, None)
    # All watchers first close what they have on the working device, so that DREQs can still be sent; then it
    # goes.
    for step in ("deviceGoing", "deviceGone"):
        for watcher in members(_watchers):
            getattr(watcher, step)(name)


def watchDevices(watcher: Any) -> None:
    """
    Be notified when devices are added or removed.

    @param watcher: has C{deviceAdded(name)}; C{deviceGoing(name)}, while the device still works; and
        C{deviceGone(name)}.  They are called in the thread that adds or removes the device.  Only a weak
        reference is kept.
    """
    _watchers.add(watcher)


def _withoutOptions(text: str) -> tuple[str, dict[str, bool]]:
    # FABRIC:ADDRESS:OPTION=yes: as in endpoint strings. No address has a =.
    if "=" not in text:
        return text, {}
    from twisted_ib.configuration.syntax import parseOption

    options: dict[str, bool] = {}
    while "=" in text:
        text, _, last = text.rpartition(":")
        option = parseOption(last)
        if option is None:
            raise DeviceError(f"{last!r} is not OPTION=yes or OPTION=no")
        options.setdefault(*option)
    return text, options


def parseDevices(text: str) -> dict[str, tuple[str, str | None, dict[str, bool]]]:
    """
    Parse the value of C{TWISTED_IB_DEVICES}.

    @return: name -> fabric, address and options.
    @raise DeviceError: it is malformed.
    """
    found: dict[str, tuple[str, str | None, dict[str, bool]]] = {}
    for item in filter(None, map(str.strip, text.split(","))):
        name, equals, rest = item.partition("=")
        if not equals or not re.fullmatch(_NAME, name):
            raise DeviceError(
                f"{settings.DEVICES}: {item!r} is not NAME=FABRIC:ADDRESS, as roce0=roce:192.0.2.1"
            )
        try:
            rest, options = _withoutOptions(rest)
            fabric, colon, address = rest.partition(":")
            # Brackets as in RFC 3986 section 3.2.2, since an IPv6 address has colons as the separator does.
            if address.startswith("[") and address.endswith("]"):
                address = address[1:-1]
            what = fabric, _checked(name, fabric, address if colon else None), options
            _enabled(name, fabric, options)
        except DeviceError as error:
            raise DeviceError(f"{settings.DEVICES}: {item!r}: {error}") from None
        if found.setdefault(name, what) != what:
            raise DeviceError(f"{settings.DEVICES}: there are two devices {name}")
    return found


def readEnvironment() -> None:
    """
    Add the devices that C{TWISTED_IB_DEVICES} names, unless that is done.

    @raise DeviceError: it is malformed.
    """
    text = os.environ.get(settings.DEVICES, "")
    if text == _read["environment"]:
        return
    devices = parseDevices(text)
    # Set before the devices are added: an error in adding one must not repeat with every lookup.
    _read["environment"] = text
    for name, (fabric, address, options) in devices.items():
        # A device that the program added itself takes precedence.
        if name not in DEVICES:
            addDevice(name, fabric, address, **options)


def builtInDevices(environ: Mapping[str, str]) -> dict[str, str]:
    """
    Return the devices that exist without a file of rules, and the fabric of each.
    """
    found = {kind.device: kind.name for kind in KINDS if kind.device}
    try:
        named = parseDevices(environ.get(settings.DEVICES, ""))
    except DeviceError:
        # The error is reported when such a device is opened.
        return found
    found.update((name, device[0]) for name, device in named.items() if name not in found)
    return found


def parseRules(text: str, name: str, devices: Mapping[str, str] | None = None) -> Contents:
    """
    Parse a file of rules, with the fabrics that there are.

    @param name: Its name, for errors.
    @param devices: The devices that exist without it, and the fabric of each; by default those of an empty
        environment.
    @raise RulesError: a line is wrong; then the whole file is ignored.
    """
    # Imported on demand: most programs have no such file.
    from twisted_ib.configuration.parser import parse

    if devices is None:
        devices = builtInDevices({})
    fabrics = {kind.name: kind.hasAddress for kind in sorted(KINDS, key=lambda kind: kind.name)}
    adapters = [kind.name for kind in KINDS if kind.locate is not None]
    return parse(text, name, devices, fabrics, {kind.name: kind.options for kind in KINDS}, adapters)


def _configuredDevices() -> tuple[DeviceStatement, ...]:
    try:
        found = readFirst(os.environ)
        if found is None:
            return ()
        name, text = found
        return parseRules(text, name, builtInDevices(os.environ)).devices
    except (OSError, RulesError) as error:
        reason = error.errors[0] if isinstance(error, RulesError) else f"{error.filename}: {error.strerror}"
        raise DeviceError(reason) from None


def readConfiguration() -> None:
    """
    Add the devices of the configuration, unless that is done.  The rules of the C{ib} reactor add them too;
    this is for unknown names.

    @raise DeviceError: it is malformed.
    """
    name = os.environ.get(settings.CONFIG, "")
    if name == _read["configuration"]:
        return
    devices = _configuredDevices()
    _read["configuration"] = name
    for device in devices:
        if device.name not in DEVICES:
            addDevice(device.name, device.fabric, device.address, **dict(device.options))


def deviceNames() -> list[str]:
    """
    The names of all devices, the default one first; a malformed environment or configuration is ignored.
    """
    _tryToRead(True)
    return sorted(DEVICES, key=lambda name: (name != DEFAULT_DEVICE, name))


def _tryToRead(configuration: bool) -> None:
    try:
        readEnvironment()
        if configuration:
            readConfiguration()
    except DeviceError:
        # Opening such a device raises the error; listing names must not.
        pass


def addedDevices() -> tuple[str, ...]:
    """
    The names of the devices that were added and not removed.
    """
    # The caller has read the configuration itself.
    _tryToRead(False)
    return tuple(_added)


def fabricOf(name: str) -> str | None:
    """
    The fabric of a device; L{None} if there is no such device.
    """
    device = DEVICES.get(name)
    return None if device is None else device[0].name


def addressOf(name: str) -> str | None:
    """
    The own address of a device; L{None} if it has none, or none yet.
    """
    kind, address, _ = DEVICES.get(name, (None, None, None))
    if kind is None or not kind.hasAddress:
        return None
    try:
        return address if kind.locate is None or address is None else kind.locate(address)
    except DeviceError:
        # Opening the device says why.
        return None


def interfaceOf(name: str) -> str | None:
    """
    The address of a device's IPoIB interface, with the length of the prefix; L{None} if it was added without.
    """
    kind, address, _ = DEVICES.get(name, (None, None, None))
    return address if kind is not None and kind.hasInterfaces else None


def _unknown(name: str) -> UnknownDeviceError:
    return UnknownDeviceError(f"there is no device {name!r}; there are {', '.join(sorted(DEVICES))}")


def kindOf(name: str) -> FabricKind:
    """
    The kind of a device's fabric, also if the device exists only once a user binds it.

    @raise UnknownDeviceError: there is no such device.
    @raise DeviceError: C{TWISTED_IB_DEVICES} or the configuration is malformed.
    """
    if name not in DEVICES:
        readEnvironment()
    if name not in DEVICES:
        readConfiguration()
    if name in DEVICES:
        return DEVICES[name][0]
    # Last, so that an added device may have such a name and an address of its own.
    for kind in FABRICS.values():
        if kind.implicit is not None and kind.implicit(name):
            if kind.locate is not None:
                DEVICES[name] = kind, name, frozenset()
            return kind
    raise _unknown(name)


def isPlacedByUser(name: str) -> bool:
    """
    Whether a device was not added, and is opened at the address that its user binds.

    @raise UnknownDeviceError: there is no such device.
    @raise DeviceError: C{TWISTED_IB_DEVICES} or the configuration is malformed.
    """
    return kindOf(name).hasAddress and name not in DEVICES


def traitsOf(name: str) -> Traits:
    """
    The facts of a device's fabric.

    @raise UnknownDeviceError: there is no such device.
    @raise DeviceError: C{TWISTED_IB_DEVICES} or the configuration is malformed.
    """
    return kindOf(name).traits


def place(name: str, bound: str = "", peer: str = "") -> str | None:
    """
    Choose the address at which a device is opened.

    @param bound: the address that its user binds, if any.
    @param peer: the address that its user connects to, if any.
    @return: its own address; without one, C{bound}, or else the kernel's source address for C{peer}.  L{None}
        for a fabric whose devices have no address.
    @raise UnknownDeviceError: there is no such device.
    @raise NoRouteError: the kernel has no route to C{peer}.
    @raise DeviceError: it needs an address and there is none; or the configuration is malformed.
    @raise ValueError: C{bound} or C{peer} is not an IP address.
    """
    kind = kindOf(name)
    if not kind.hasAddress:
        return None
    address = addressOf(name)
    if address is not None:
        return address
    if kind.locate is not None:
        return kind.locate(str(DEVICES[name][1]))
    # Normalised, as the address is compared as text with the addresses of packets.
    if bound and not isWildcard(bound):
        return normalise(bound)
    if peer:
        return sourceFor(peer)
    raise DeviceError(
        f"device {name} has no address: bind one of this host, or say "
        f"{settings.DEVICES}={name}={kind.name}:ADDRESS"
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

    @param neighbours: the devices of C{lo0} that it can reach; by default those of this thread.
    @param address: for a device that was not added: its address, see L{place}.
    @raise UnknownDeviceError: there is no such device.
    @raise DeviceError: it cannot be opened here.
    """
    kind = kindOf(name)
    if kind.hasAddress:
        own = place(name, address or "")
        # A program that binds another address than the device's must not be served silently at a third.
        if address is not None and own != normalise(address):
            raise DeviceError(f"device {name} has the address {own}, not {address}")
        named: dict[str, object] = dict.fromkeys(DEVICES[name][2], True) if name in DEVICES else {}
        if kind.locate is not None:
            named["adapter"] = DEVICES[name][1]
        return kind.open(owner, guid, clock, address=own, **named)
    return kind.open(owner, guid, clock) if neighbours is None else kind.open(owner, guid, clock, neighbours)


# Last: they import what is above.
for _plugin in PLUGINS:
    import_module(_plugin)
