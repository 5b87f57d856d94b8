"""
Channel adapters and their ports, as sysfs shows those of a kernel.

A port has a subnet manager while a file C{/dev/infiniband/issmN} is open.  Here that is one in memory;
inotify(7) tells when the program opens and closes it.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from _twisted_ib_umad import ffi, lib

from twisted_ib.drive import threads
from twisted_ib.errors import HCAError
from twisted_ib.hca.base.attributes import PORT
from twisted_ib.hca.base.port import linkGigabits
from twisted_ib.hca.base.traits import LinkLayer, Peers, TransportType
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.device.registry import deviceNames, traitsOf
from twisted_ib.verbs.c import attend
from twisted_ib.verbs.c.chosen import chosenDevice
from twisted_ib.verbs.c.errors import HandleError
from twisted_ib.verbs.c.functions import handler, handlers
from twisted_ib.verbs.c.pointers import CData, given
from twisted_ib.verbs.c.umad.buffers import hold, isHeld, release, textOf
from twisted_ib.verbs.core.hub import hub

#: Octets of events that are read at once.
_EVENTS: Final = 1024

#: By the device, and there is one thread for each.
_paths: dict[Device, str] = {}

#: C{UMAD_CA_NAME_LEN}.
_NAME_BYTES: Final = ffi.sizeof(ffi.new("struct umad_port *").ca_name)
_GUID: Final = (1 << 64) - 1
#: The device of a program that names none.
_DEFAULT: Final = "ib0"
#: C{link_layer} of sysfs.
_LINK_LAYERS: Final = {LinkLayer.INFINIBAND: b"InfiniBand", LinkLayer.ETHERNET: b"Ethernet"}
_TYPE: Final = b"twisted_ib"

#: The devices of this process, for as long as it is: a program asks of them time and again, and each is at a
#: port of its own while it is open.
_devices: dict[str, Device] = {}


def issmPath(device: Device) -> str:
    """
    @return: the path of a device's file, for this process.
    @raise HandleError: its port has no subnet manager (EINVAL).
    @raise OSError: no descriptor is free.
    """
    if device.traits.peers is not Peers.SUBNET:
        raise HandleError(f"{device.name} is in no subnet")
    with hub:
        if device not in _paths:
            file = os.memfd_create("issm")
            path = f"/proc/self/fd/{file}"
            watch = lib.inotify_init1(lib.IN_CLOEXEC)
            mask = lib.IN_OPEN | lib.IN_CLOSE_WRITE | lib.IN_CLOSE_NOWRITE
            if watch < 0 or lib.inotify_add_watch(watch, path.encode(), mask) < 0:
                number = ffi.errno
                os.close(file)
                if watch >= 0:
                    os.close(watch)
                raise OSError(number, "inotify")
            threads.begin(_follow, device, watch, file, name="issm")
            _paths[device] = path
        return _paths[device]


def _follow(device: Device, watch: int, file: int) -> None:
    while os.read(watch, _EVENTS):
        isOpen = _isOpen(file)
        # A host that ends just now: the next one is told.
        with hub, suppress(HCAError):
            device.fabric.setSM(isOpen)


def _isOpen(file: int) -> bool:
    # inotify(7): events that are the same may be one, so opens cannot be counted.
    its = os.fstat(file)
    for name in os.listdir("/proc/self/fd"):
        # Closed meanwhile.
        with suppress(OSError):
            if int(name) != file and os.path.samestat(os.stat(int(name)), its):
                return True
    return False


def deviceOf(name: str) -> Device:
    """
    @param name: of a channel adapter; empty for the first.
    @return: the device, which is opened when it is asked for first.
    @raise HandleError: there is none of this name, or it has no management datagrams (ENODEV).
    @raise HCAError: it cannot be opened.
    """
    name = name or _names()[0]
    if traitsOf(name).transport is not TransportType.IB:
        raise HandleError(f"There is no channel adapter {name}", errno.ENODEV)
    with hub:
        if name not in _devices:
            _devices[name] = hub.open(name)
            attend.begin()
        return _devices[name]


def portOf(name: str, number: int) -> Device:
    """
    @param number: of the port; 0 for the best one.
    @return: the device with this port.
    @raise HandleError: it has no such port (ENODEV).
    """
    if number not in (0, PORT):
        raise HandleError(f"A channel adapter has port {PORT} only, not {number}", errno.ENODEV)
    return deviceOf(name)


def _names() -> list[str]:
    chosen = chosenDevice()
    if chosen is not None:
        return [chosen]
    found = [name for name in deviceNames() if traitsOf(name).linkLayer is LinkLayer.INFINIBAND]
    return found or [_DEFAULT]


def _listed(count: int) -> list[str]:
    # Those that a program has room for.
    return [name for name in _names() if len(name) < _NAME_BYTES][: max(count, 0)]


def _big(value: int, size: int) -> int:
    # A field in network byte order, as the host reads it.
    return int.from_bytes(value.to_bytes(size, "big"), sys.byteorder)


def _fillPort(device: Device, target: CData) -> None:
    port = device.port
    ffi.memmove(target, bytes(ffi.sizeof(target[0])), ffi.sizeof(target[0]))
    target.ca_name, target.portnum = device.name.encode()[: _NAME_BYTES - 1], PORT
    target.base_lid, target.lmc, target.sm_lid, target.sm_sl = port.lid, port.lmc, port.smLID, port.smSL
    target.state, target.phys_state = int(port.state), int(port.physicalState)
    target.rate = int(linkGigabits(port.width, port.speed))
    target.capmask = _big(port.capMask, 4)
    target.gid_prefix, target.port_guid = _big(port.subnetPrefix, 8), _big(port.gids[0] & _GUID, 8)
    keys = port.partitions.keys
    target.pkeys_size = len(keys)
    target.pkeys = hold(ffi.new("uint16_t[]", list(keys)))
    target.link_layer = _LINK_LAYERS[port.linkLayer]


@handlers("umad_init", "umad_done")
def _idle(name: str) -> Callable[[], int]:
    # Devices stay until the process ends.
    return lambda: 0


@handler
def umad_get_cas_names(cas: CData, count: int) -> int:
    given(cas)
    names = _listed(count)
    rows = ffi.cast(f"char (*)[{_NAME_BYTES}]", cas)
    for index, name in enumerate(names):
        rows[index] = name.encode()
    return len(names)


def _fillPair(target: CData, name: str) -> None:
    # One port sends the datagrams of both kinds of management.
    for field in ("smi", "gsi"):
        setattr(target, f"{field}_name", name.encode())
        setattr(target, f"{field}_preferred_port", PORT)


@handler
def umad_get_smi_gsi_pairs(cas: CData, count: int) -> int:
    given(cas)
    names = _listed(count)
    pairs = ffi.cast("struct twisted_ib_ca_pair *", cas)
    for index, name in enumerate(names):
        _fillPair(pairs[index], name)
    return len(names)


@handler
def umad_get_smi_gsi_pair_by_ca_name(devname: CData, portnum: int, ca_pair: CData, enforce_smi: int) -> int:
    given(ca_pair)
    _fillPair(ffi.cast("struct twisted_ib_ca_pair *", ca_pair), portOf(textOf(devname), portnum).name)
    return 0


@handler
def umad_get_ca_portguids(ca_name: CData, portguids: CData, max: int) -> int:
    """
    The GUIDs of the ports, that of port 0 being 0.
    """
    device = deviceOf(textOf(ca_name))
    if portguids:
        if max < PORT + 1:
            raise HandleError(f"There are {PORT + 1} port GUIDs, with that of port 0", errno.ENOMEM)
        with hub:
            portguids[0], portguids[PORT] = 0, _big(device.port.gids[0] & _GUID, 8)
    return PORT + 1 if portguids else 0


@handler
def umad_get_ca(ca_name: CData, ca: CData) -> int:
    given(ca)
    device = deviceOf(textOf(ca_name))
    with hub:
        described = device.describe()["attributes"]
        ffi.memmove(ca, bytes(ffi.sizeof(ca[0])), ffi.sizeof(ca[0]))
        ca.ca_name = device.name.encode()[: _NAME_BYTES - 1]
        ca.node_type, ca.numports = device.traits.nodeType.value, PORT
        ca.fw_ver, ca.hw_ver = described["fw_ver"].encode(), b"%x" % described["hw_ver"]
        ca.ca_type = _TYPE
        ca.node_guid = _big(described["node_guid"], 8)
        ca.system_guid = _big(described["sys_image_guid"], 8)
        port = ffi.new("struct umad_port *")
        _fillPort(device, port)
        ca.ports[PORT] = hold(port)
    return 0


@handler
def umad_release_ca(ca: CData) -> int:
    given(ca)
    for index in range(len(ca.ports)):
        port = ca.ports[index]
        if port:
            release(port.pkeys)
            release(port)
            ca.ports[index] = ffi.NULL
    return 0


@handler
def umad_get_port(ca_name: CData, portnum: int, port: CData) -> int:
    given(port)
    device = portOf(textOf(ca_name), portnum)
    with hub:
        _fillPort(device, port)
    return 0


@handler
def umad_release_port(port: CData) -> int:
    given(port)
    release(port.pkeys)
    port.pkeys, port.pkeys_size = ffi.NULL, 0
    return 0


@handler
def umad_get_issm_path(ca_name: CData, portnum: int, path: CData, max: int) -> int:
    """
    The file that a subnet manager opens, and keeps open.
    """
    text = issmPath(portOf(textOf(ca_name), portnum)).encode()
    if not path or max <= len(text):
        raise HandleError(f"The path has {len(text) + 1} octets", errno.ENAMETOOLONG)
    ffi.memmove(path, text + b"\0", len(text) + 1)
    return 0


@handler
def umad_get_ca_device_list() -> CData:
    head = ffi.NULL
    for name in reversed(_names()):
        text = ffi.new("char[]", name.encode())
        head = hold(ffi.new("struct umad_device_node *", {"next": head, "ca_name": text}), text)
    return head


def _nodes(head: CData) -> Iterator[CData]:
    # Not of a list that is freed.
    while isHeld(head):
        following = head.next
        yield head
        head = following


@handler
def umad_free_ca_device_list(head: CData) -> None:
    for node in _nodes(head):
        release(node)


@handler
def umad_sort_ca_device_list(head: CData, size: int) -> int:
    given(head)
    nodes = list(_nodes(head[0]))
    if size and size != len(nodes):
        raise HandleError(f"The list has {len(nodes)} devices, not {size}")
    nodes.sort(key=lambda node: ffi.string(node.ca_name))
    following = ffi.NULL
    for node in reversed(nodes):
        node.next = following
        following = node
    head[0] = following
    return 0
