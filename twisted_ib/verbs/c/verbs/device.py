"""
Devices, contexts and ports.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import cache

from _twisted_ib_verbs import ffi

from twisted_ib.errors import HCAError
from twisted_ib.hca.base import attributes
from twisted_ib.hca.device.registry import traitsOf
from twisted_ib.verbs import pyverbs as verbs
from twisted_ib.verbs.c import attend
from twisted_ib.verbs.c.chosen import chosenDevice
from twisted_ib.verbs.c.errors import HandleError, unsupported
from twisted_ib.verbs.c.functions import AGAIN, handler, handlers
from twisted_ib.verbs.c.handles import Entry, handles
from twisted_ib.verbs.c.pointers import CData, addressOf, given, lasting
from twisted_ib.verbs.c.verbs.structures import contextAt, copyFields, copyPart, deviceAt, pointers
from twisted_ib.verbs.c.waiting import nextEvent
from twisted_ib.verbs.pyverbs.objects.deviceattr import DeviceAttr, PortAttr

#: Fields of C{struct ibv_device_attr} whose names differ in pyverbs.
_RENAMED = {"fw_ver": "fw_version", "atomic_cap": "atomic_caps", "max_raw_ipv6_qp": "max_raw_ipv6_qps"}
_DEVICE_FIELDS = [
    name for name, _ in ffi.typeof("struct ibv_device_attr").fields if hasattr(DeviceAttr(), name)
]
_PORT_FIELDS = [name for name, _ in ffi.typeof("struct ibv_port_attr").fields if hasattr(PortAttr(), name)]
# The structure of old programs ends before it.
_OLD_PORT_FIELDS = [name for name in _PORT_FIELDS if name != "port_cap_flags2"]
#: The functions that inline ones of the headers call.
_OPERATIONS = pointers(
    *(name for name, field in ffi.typeof("struct ibv_context_ops").fields if field.type.kind == "function")
)
_EXTENDED = pointers(
    *(name for name, field in ffi.typeof("struct verbs_context").fields if field.type.kind == "function")
)
#: The value of C{abi_compat} that says that C{struct verbs_context} is around it.
_IS_EXTENDED = ffi.cast("void *", -1)

#: The structures of devices by their names, for as long as the process is: programs keep the pointers after
#: they have freed the list.
_devices: dict[str, CData] = {}
#: The lists that are not freed.
_lists: dict[int, CData] = {}


def deviceStructure(name: str) -> CData:
    """
    @return: its C{struct ibv_device}.
    @raise HandleError: there is no such device (ENODEV).
    """
    if name not in _devices:
        found = [each for each in verbs.get_device_list() if each.name.decode() == name]
        if not found:
            raise HandleError(f"There is no device {name}", errno.ENODEV)
        folder = b"/sys/class/infiniband_verbs/uverbs%d" % found[0].index
        structure = ffi.new("struct ibv_device *")
        structure.node_type = found[0].node_type
        structure.transport_type = found[0].transport_type
        structure.name = found[0].name
        structure.dev_name = b"uverbs%d" % found[0].index
        structure.dev_path = folder
        structure.ibdev_path = b"/sys/class/infiniband/" + found[0].name
        _devices[name] = structure
        handles.add(addressOf(structure), "ibv_device", found[0], structure)
    return _devices[name]


@cache
def _commandDescriptor() -> int:
    # Programs check it, or set flags of it; nothing is written there.  One for all contexts, until the end.
    return os.open(os.devnull, os.O_RDWR)


def _serve(structure: CData, value: verbs.Context) -> None:
    attend.begin()
    structure.async_fd = value.async_fd
    os.set_blocking(structure.async_fd, True)


def _again(address: int, entry: Entry) -> bool:
    # On an adapter a child goes on with its parent's contexts: here they are the device opened anew, and what
    # the parent has made by them is not there.
    if entry.kind != "ibv_context":
        return False
    value = verbs.Context(name=entry.value.name)
    if not handles.renew(address, value):
        value.close()
        return True
    _serve(ffi.addressof(entry.structure, "context"), value)
    return True


handles.again = _again


def openContext(name: str, value: verbs.Context) -> CData:
    """
    @param name: the device's.
    @return: its C{struct ibv_context}.
    """
    whole = ffi.new("struct verbs_context *", {**_EXTENDED, "sz": ffi.sizeof("struct verbs_context")})
    structure = ffi.addressof(whole, "context")
    structure.device = deviceStructure(name)
    structure.ops = _OPERATIONS
    structure.cmd_fd = _commandDescriptor()
    _serve(structure, value)
    structure.num_comp_vectors = value.num_comp_vectors
    structure.abi_compat = _IS_EXTENDED
    handles.add(addressOf(structure), "ibv_context", value, whole)
    return structure


@handler
def ibv_get_device_list(num: CData) -> CData:
    chosen = chosenDevice()
    names = [each.name.decode() for each in verbs.get_device_list()]
    found = [deviceStructure(name) for name in names if chosen in (None, name)]
    made = ffi.new("struct ibv_device *[]", [*found, ffi.NULL])
    _lists[addressOf(made)] = made
    if num:
        num[0] = len(found)
    return made


@handler
def ibv_free_device_list(list: CData) -> None:
    _lists.pop(addressOf(list), None)


@handler
def ibv_get_device_name(device: CData) -> CData:
    deviceAt(device)
    return ffi.cast("char *", device.name)


@handler
def ibv_get_device_guid(device: CData) -> int:
    found = deviceAt(device)
    # The HCA gets its GUID when it is opened.
    try:
        with verbs.Context(name=found.name.decode()) as context:
            return context.query_device().node_guid
    except HCAError:
        return 0


@handler
def ibv_get_device_index(device: CData) -> int:
    return deviceAt(device).index


@handler
def ibv_open_device(device: CData) -> CData:
    name = deviceAt(device).name.decode()
    return openContext(name, verbs.Context(name=name))


@handler
def ibv_close_device(context: CData) -> int:
    # man ibv_close_device(3) asks the program to destroy them first, but does not refuse otherwise.
    handles.removeAll(addressOf(context), "ibv_context")
    return 0


def fillDevice(attr: DeviceAttr, target: CData) -> None:
    """
    @param target: the C{struct ibv_device_attr}.
    """
    ffi.memmove(target, bytes(ffi.sizeof(target[0])), ffi.sizeof(target[0]))
    copyFields(attr, target, _DEVICE_FIELDS)
    for field, name in _RENAMED.items():
        value = getattr(attr, name)
        setattr(target, field, value.encode() if isinstance(value, str) else value)


@handler
def ibv_query_device(context: CData, attr: CData) -> int:
    found = contextAt(context, attr)
    fillDevice(found.query_device(), attr)
    return 0


@handler
def query_device_ex(context: CData, input: CData, attr: CData, size: int) -> int:
    """
    The attributes of a device, with the extended ones, as far as the program's structure has them.
    """
    found = contextAt(context, attr)
    made = ffi.new("struct ibv_device_attr_ex *")
    extended = found.query_device_ex()
    fillDevice(extended.orig_attr, ffi.addressof(made, "orig_attr"))
    moderation = extended.cq_mod_caps
    made.cq_mod_caps.max_cq_count = moderation.max_cq_count
    made.cq_mod_caps.max_cq_period = moderation.max_cq_period
    made.device_cap_flags_ex = extended.device_cap_flags_ex
    made.max_dm_size = extended.max_dm_size
    made.phys_port_cnt_ex = made.orig_attr.phys_port_cnt
    copyPart(attr, made, size)
    return 0


@handler
def ibv_query_port(context: CData, port: int, attr: CData) -> int:
    found = contextAt(context, attr)
    copyFields(found.query_port(port), ffi.cast("struct ibv_port_attr *", attr), _OLD_PORT_FIELDS)
    return 0


@handler
def query_port(context: CData, port: int, attr: CData, size: int) -> int:
    """
    The attributes of a port, as far as the program's structure has them.
    """
    found = contextAt(context, attr)
    made = ffi.new("struct ibv_port_attr *")
    copyFields(found.query_port(port), made, _PORT_FIELDS)
    copyPart(attr, made, size)
    return 0


def isUsable(context: verbs.Context, index: int) -> bool:
    """
    @param index: a slot of the GID table.
    @return: whether queue pairs of other processes can be reached by the GID there.
    """
    # Programs such as perftest choose the GID of an IPv4 address if there is one.  Between processes of a
    # host these are everybody's: queue pairs find each other by the two that are made of the GUID, which are
    # there twice.
    assert context.name is not None
    return traitsOf(context.name).isReached(index)


@handler
def ibv_query_gid(context: CData, port: int, index: int, gid: CData) -> int:
    found = contextAt(context, gid)
    made = found.query_gid(port, index).raw
    ffi.memmove(gid, made if isUsable(found, index) else bytes(len(made)), len(made))
    return 0


def _fillEntry(made: verbs.GIDEntry, entry: CData) -> None:
    entry.gid.raw = verbs.GID(made.gid_str()).raw
    entry.gid_index, entry.port_num, entry.gid_type = made.gid_index, made.port_num, made.gid_type


@handler
def _ibv_query_gid_ex(context: CData, port: int, index: int, entry: CData, flags: int, size: int) -> int:
    # An entry of the GID table.
    found = contextAt(context, entry)
    made = ffi.new("struct ibv_gid_entry *")
    _fillEntry(found.query_gid_ex(port, index, flags), made)
    if not isUsable(found, index):
        raise HandleError(f"There is no GID {index}", errno.ENODATA)
    copyPart(entry, made, size)
    return 0


@handler
def _ibv_query_gid_table(context: CData, entries: CData, most: int, flags: int, size: int) -> int:
    # All entries of the GID table.
    found = contextAt(context, entries)
    # The errors of a table that is too small, and of flags, are those of the entries that are shown.
    whole = found.query_gid_table(attributes.GIDS, flags)
    table = [each for each in whole if isUsable(found, each.gid_index)]
    if most < len(table):
        raise HandleError(f"There are {len(table)} GIDs, not {most}")
    made = ffi.new("struct ibv_gid_entry *")
    at = ffi.cast("char *", entries)
    for index, each in enumerate(table):
        _fillEntry(each, made)
        copyPart(at + index * size, made, size)
    return len(table)


@handler
def ibv_query_gid_type(context: CData, port: int, index: int, type: CData) -> int:
    """
    The kind of a GID, as sysfs has it.
    """
    found = contextAt(context, type)
    type[0] = found.query_gid_type(port, index)
    return 0


@handler
def ibv_query_pkey(context: CData, port: int, index: int, pkey: CData) -> int:
    found = contextAt(context, pkey)
    pkey[0] = found.query_pkey(port, index)
    return 0


@handler
def ibv_get_pkey_index(context: CData, port: int, pkey: int) -> int:
    return contextAt(context).get_pkey_index(port, pkey)


@handler
def ibv_get_async_event(context: CData, event: CData) -> int:
    found = contextAt(context, event)
    taken = nextEvent(found.async_fd, found.take_async_event)
    if taken is None:
        return AGAIN
    if taken.element is None:
        event.element.cq = ffi.NULL
        event.element.port_num = attributes.PORT
    elif address := handles.report(taken.element):
        event.element.cq = ffi.cast("struct ibv_cq *", address)
    else:
        # Another thread has destroyed it in this moment.
        return AGAIN
    event.event_type = taken.event_type
    return 0


@handler
def ibv_ack_async_event(event: CData) -> None:
    """
    Acknowledge an event.
    """
    given(event)
    # Those of the device or its port have a number there.
    if (address := addressOf(event.element.cq)) != attributes.PORT:
        handles.acknowledge(address)


@handler
def ibv_get_sysfs_path() -> CData:
    return lasting("/sys")


@handler
def ibv_read_sysfs_file(directory: CData, file: CData, buffer: CData, size: int) -> int:
    """
    Read a file of sysfs: there is none of these devices.
    """
    raise HandleError("The device has no files in sysfs", errno.ENOENT)


@handler
def ibv_fork_init() -> int:
    """
    Nothing: no page is pinned.
    """
    verbs.fork_init()
    return 0


@handler
def ibv_is_fork_initialized() -> int:
    """
    That no preparation is needed.
    """
    return int(verbs.is_fork_initialized())


@handlers("ibv_import_device", "ibv_import_pd", "ibv_import_mr", "ibv_import_dm", "ibv_reg_dmabuf_mr")
def _lacking(name: str) -> Callable[..., CData]:
    # The objects of a context are in one process, and the memory of other devices cannot be reached.
    def refuse(*arguments: object) -> CData:
        raise unsupported()

    return refuse


@handlers("ibv_unimport_pd", "ibv_unimport_mr", "ibv_unimport_dm")
def _without(name: str) -> Callable[..., None]:
    # None was imported.
    return lambda *arguments: None


@handlers("ibv_dontfork_range", "ibv_dofork_range")
def _unpinned(name: str) -> Callable[..., int]:
    # No page is pinned.
    return lambda *arguments: 0
