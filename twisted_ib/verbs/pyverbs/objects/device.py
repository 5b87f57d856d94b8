"""
Devices and contexts.

All contexts of one device name in a process share an HCA, as on hardware.  It has one port, number 1; GID 0
is its own, the other GIDs are the host's addresses.  Source: rdma-core 65, C{pyverbs/device.pyx}.
"""

from __future__ import annotations

import errno
import sys
from collections import deque
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import attrs

from twisted_ib import limits
from twisted_ib.errors import UnknownDeviceError
from twisted_ib.hca.base import attributes
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.base.traits import LinkLayer
from twisted_ib.hca.device import device
from twisted_ib.hca.device.registry import deviceNames, place, traitsOf
from twisted_ib.hca.services.work import capabilitiesOf
from twisted_ib.verbs.core.hub import hub, locked
from twisted_ib.verbs.core.readable import Readable
from twisted_ib.verbs.pyverbs.base.addr import GID
from twisted_ib.verbs.pyverbs.base.base import PyverbsObject, table
from twisted_ib.verbs.pyverbs.base.devicetext import (
    guid_to_hex,
    translate_event_type,
    translate_node_type,
    translate_transport_type,
)
from twisted_ib.verbs.pyverbs.base.errors import PyverbsRDMAError, PyverbsUserError
from twisted_ib.verbs.pyverbs.base.verb import VerbsObject, check, invalid, unsupported, verb, waitFor
from twisted_ib.verbs.pyverbs.enums.device import (
    ibv_gid_type,
    ibv_gid_type_sysfs,
    ibv_node_type,
    ibv_transport_type,
)
from twisted_ib.verbs.pyverbs.objects.deviceattr import (
    CompCntrCaps,
    DeviceAttr,
    DeviceAttrEx,
    GIDEntry,
    PortAttr,
    QueryDeviceExInput,
    deviceAttr,
    deviceAttrEx,
)

_NO_GID = bytes(16)
#: The kinds of a port's GIDs, in sysfs and in tables.  IBTA vol. 1 annex A17: GIDs that are IP addresses are
#: of RoCEv2; also over shared memory, so that programs choose the same entries there.
_GID_TYPES = {
    LinkLayer.INFINIBAND: (ibv_gid_type_sysfs.IBV_GID_TYPE_SYSFS_IB_ROCE_V1, ibv_gid_type.IBV_GID_TYPE_IB),
    LinkLayer.ETHERNET: (ibv_gid_type_sysfs.IBV_GID_TYPE_SYSFS_ROCE_V2, ibv_gid_type.IBV_GID_TYPE_ROCE_V2),
}
_IPV4_MAPPED = bytes(10) + b"\xff\xff"


@attrs.define(eq=False)
class Device(PyverbsObject):
    """
    An entry of the device list.

    @ivar guid: the node GUID of its HCA in this process; 0 if that is not open.
    @ivar node_type: one of C{ibv_node_type}.
    @ivar transport_type: one of C{ibv_transport_type}.
    """

    name: bytes
    guid: int
    node_type: int
    transport_type: int
    index: int

    def __str__(self) -> str:
        kind, transport = translate_node_type(self.node_type), translate_transport_type(self.transport_type)
        return (
            f"Device {self.name.decode()}, node type {kind}, transport type {transport}, "
            f"guid {guid_to_hex(self.guid)}, index {self.index}"
        )


@locked
def get_device_list() -> list[Device]:
    """
    @return: the devices there are, the default one first.
    """
    # A device that is not open has no HCA, and so no GUID yet.
    guids = {opened.name: opened.nodeGUID for opened in hub.devices}
    return [
        Device(
            name.encode(),
            guids.get(name, 0),
            ibv_node_type(traits.nodeType.value),
            ibv_transport_type(traits.transport.value),
            index,
        )
        for index, (name, traits) in enumerate((name, traitsOf(name)) for name in deviceNames())
    ]


def rdma_get_devices() -> list[Device]:
    """
    @return: the devices with a communication manager: all of them.
    """
    return get_device_list()


class AsyncEvent(PyverbsObject):
    """
    An asynchronous event (IBTA vol. 1 11.6.3).

    @ivar event_type: one of C{ibv_event_type}.
    @ivar element: the completion queue, queue pair or shared receive queue that it is about; None for one of
        the device or its port.  Not in pyverbs.
    """

    def __init__(self, event_type: int = 0) -> None:
        self.event_type = event_type
        self.element: VerbsObject | None = None

    # man ibv_get_async_event(3): destroying an object waits for its events to be acknowledged.  Here it drops
    # them instead, so that this need not count.
    def ack(self) -> None:
        """
        Acknowledge the event.
        """

    def __str__(self) -> str:
        return table([("Event Type", translate_event_type(self.event_type))], 24)


#: The event queues of each device's contexts, for the events of the device itself.
_contexts: WeakKeyDictionary[device.Device, WeakSet[AsyncEvents]] = WeakKeyDictionary()


class AsyncEvents:
    """
    The queue of one context's events.

    An object with events has an attribute C{onEvent}: L{None}, or a function of the L{EventType} and the
    object, such as L{AsyncEvents.add}.

    @ivar lost: events dropped because the queue was full.
    @ivar readable: a descriptor that is readable while there are events, or L{None}.
    """

    __slots__ = ("__weakref__", "_events", "lost", "readable")

    def __init__(self) -> None:
        self._events: deque[tuple[EventType, Any]] = deque()
        self.lost = 0
        self.readable: Readable | None = None

    def __len__(self) -> int:
        return len(self._events)

    def add(self, kind: EventType, element: Any) -> None:
        """
        Append an event.
        """
        # The oldest stay: the first error explains those after it.  Peers can cause events, so the queue is
        # bounded.
        if len(self._events) >= limits.ASYNC_EVENTS:
            self.lost += 1
        else:
            self._events.append((kind, element))
            if self.readable is not None:
                self.readable.tell()

    def take(self) -> tuple[EventType, Any] | None:
        """
        Remove and return the oldest event and its object, or L{None}.
        """
        taken = self._events.popleft() if self._events else None
        self.settle()
        return taken

    def forget(self, element: Any) -> None:
        """
        Remove the events of a destroyed object.
        """
        # Linux uverbs releases the events of a destroyed object too: no program may be handed a dead one.
        self._events = deque(event for event in self._events if event[1] is not element)
        self.settle()

    def settle(self) -> None:
        """
        Have C{readable} follow the events.
        """
        if self.readable is not None:
            if len(self):
                self.readable.set()
            else:
                self.readable.clear()

    def close(self) -> None:
        """
        Close C{readable}.
        """
        if self.readable is not None:
            self.readable.close()


def _deviceEvent(kind: EventType, element: Any) -> None:
    # IBTA vol. 1 11.6.3: port and device events are unaffiliated: every context gets them.
    for events in list(_contexts.get(element, ())):
        events.add(kind, element)


class Context(VerbsObject):
    """
    An open device.
    """

    def __init__(self, **kwargs: Any) -> None:
        """
        Open a device.

        @keyword name: its name.
        @keyword address: an IP address of this host, for a device that has an address of its own and was not
            added, as C{roce0}.  Not in pyverbs.
        @keyword cmid: in place of a name, the connection identifier whose device it is.
        @raise PyverbsUserError: there is no name.
        @raise PyverbsRDMAError: there is no such device (ENODEV), or it cannot be opened.
        """
        super().__init__()
        self.name: str | None = kwargs.get("name")
        cmid = kwargs.get("cmid")
        # ibv_import_device takes over a uverbs descriptor; there is none here.
        if kwargs.get("cmd_fd") is not None:
            raise unsupported("Failed to import device")
        if kwargs.get("attr") is not None:
            raise unsupported("Failed to open device for a provider")
        if cmid is None and self.name is None:
            raise PyverbsUserError("Device name must be provided")
        self._open(cmid, kwargs.get("address") or "")

    @verb("Failed to open device")
    def _open(self, cmid: Any, address: str) -> None:
        if cmid is None:
            assert self.name is not None
            try:
                own = place(self.name, address)
            except UnknownDeviceError:
                raise PyverbsRDMAError(f"Failed to find device {self.name}", errno.ENODEV) from None
            except ValueError as error:
                raise invalid(f"Failed to open device: {error}") from None
            self._device = hub.open(self.name, own)
        else:
            check(cmid.device is not None, "Failed to open device: the CMID has none")
            self._device = hub.open(cmid.device.name, cmid.device.address)
            self.name = self._device.name
        # One queue per context, as each has an async_fd of its own in C.
        self._events = AsyncEvents()
        _contexts.setdefault(self._device, WeakSet()).add(self._events)
        # Set again by each context of the device: it is a function without state.
        self._device.onEvent = _deviceEvent
        # A local name: the closer must not refer to the context.
        opened, events = self._device, self._events

        def close() -> None:
            hub.close(opened)
            events.close()

        self._opened(close)

    @property
    def context(self) -> int:
        """
        An integer in place of the C pointer.
        """
        return id(self)

    @property
    def num_comp_vectors(self) -> int:
        """
        Completion vectors of the device.
        """
        return attributes.COMPLETION_VECTORS

    @property
    def cmd_fd(self) -> int:
        """
        The descriptor of the device's fabric.
        """
        self._check()
        fd: int = self._device.fabric.fileno()
        return fd

    # -- queries

    @verb("Failed to query device")
    def query_device(self) -> DeviceAttr:
        """
        @return: the limits and capabilities of the device.
        """
        self._check()
        device = self._device
        return deviceAttr(device.nodeGUID, len(device.partitions), device.traits)

    @verb("Failed to query EX device")
    def query_device_ex(self, ex_input: QueryDeviceExInput | None = None) -> DeviceAttrEx:
        """
        @param ex_input: ignored.
        @return: these and the extended ones.
        """
        self._check()
        device = self._device
        traits = device.traits
        return deviceAttrEx(device.nodeGUID, len(device.partitions), traits, capabilitiesOf(traits))

    def query_comp_cntr_caps(self) -> CompCntrCaps:
        """
        @raise PyverbsRDMAError: always (EOPNOTSUPP): there are no completion counters.
        """
        raise unsupported("Failed to query comp_cntr caps")

    def _checkPort(self, port_num: int, what: str) -> None:
        self._check()
        check(port_num == attributes.PORT, f"Failed to query {what} {port_num}")

    @verb("Failed to query port")
    def query_port(self, port_num: int) -> PortAttr:
        """
        @param port_num: 1.
        @return: the attributes of the port.
        @raise PyverbsRDMAError: there is no such port (EINVAL).
        """
        self._checkPort(port_num, "port")
        return PortAttr(**attributes.portAttributes(self._device.port))

    def query_port_speed(self, port_num: int) -> int:
        """
        @raise PyverbsRDMAError: always: EINVAL if there is no such port, else EOPNOTSUPP, as memory has no
            speed.
        """
        self._checkPort(port_num, "port speed for port")
        raise unsupported(f"Failed to query port speed for port {port_num}")

    @verb("Failed to query pkey")
    def query_pkey(self, port_num: int, index: int) -> int:
        """
        @param index: a slot of the P_Key table.
        @return: the P_Key in network byte order, read as an integer of this machine.
        @raise PyverbsRDMAError: there is no such port or slot (EINVAL).
        """
        self._checkPort(port_num, "pkey of port")
        keys = self._device.partitions.keys
        check(0 <= index < len(keys), f"Failed to query pkey {index} of port {port_num}")
        return int.from_bytes(keys[index].to_bytes(2, "big"), sys.byteorder)

    @verb("Failed to get pkey index")
    def get_pkey_index(self, port_num: int, pkey: int) -> int:
        """
        @param pkey: a P_Key, as L{query_pkey} gives it.
        @return: its slot of the P_Key table.
        @raise PyverbsRDMAError: there is no such port or P_Key (EINVAL).
        """
        self._check()
        for index in range(len(self._device.partitions)):
            if self.query_pkey(port_num, index) == pkey:
                return index
        raise invalid(f"Failed to get pkey index of pkey = {pkey} of port {port_num}")

    def _gids(self) -> list[bytes]:
        return [_packed(text) for text in self._device.gids()]

    @verb("Failed to query gid")
    def query_gid(self, port_num: int, index: int) -> GID:
        """
        @param index: a slot of the GID table.
        @return: the GID there; zeros in an empty slot.
        @raise PyverbsRDMAError: there is no such port or slot (EINVAL).
        """
        self._checkPort(port_num, f"gid {index} of port")
        check(0 <= index < attributes.GIDS, f"Failed to query gid {index} of port {port_num}")
        # Read anew each time: the host's addresses come and go.
        gids = self._gids()
        gid = GID()
        gid.raw = gids[index] if index < len(gids) else _NO_GID
        return gid

    @verb("Failed to query gid type")
    def query_gid_type(self, port_num: int, index: int) -> int:
        """
        @param index: a slot of the GID table.
        @return: one of C{ibv_gid_type_sysfs}.
        @raise PyverbsRDMAError: there is no such port or slot (EINVAL).
        """
        self._checkPort(port_num, "gid type of port")
        check(0 <= index < attributes.GIDS, f"Failed to query gid type of gid index {index}")
        return _GID_TYPES[self._device.port.linkLayer][0]

    @verb("Failed to query gid tables of the device")
    def query_gid_table(self, max_entries: int, flags: int = 0) -> list[GIDEntry]:
        """
        @param max_entries: entries that the caller has room for.
        @param flags: 0.
        @return: the entries of the GID table.
        @raise PyverbsRDMAError: there are more; with a negative errno (-EINVAL), as in pyverbs.
        """
        self._check()
        gids = self._gids()
        # C{ibv_query_gid_table} returns a negative errno, which pyverbs/device.pyx passes on unchanged.
        if flags or max_entries < len(gids):
            raise PyverbsRDMAError("Failed to query gid tables of the device", -errno.EINVAL)
        return [self._entry(gid, index) for index, gid in enumerate(gids)]

    @verb("Failed to query gid table")
    def query_gid_ex(self, port_num: int, gid_index: int, flags: int = 0) -> GIDEntry:
        """
        @param gid_index: a slot of the GID table.
        @param flags: 0.
        @return: the entry there.
        @raise PyverbsRDMAError: there is no such port or slot (EINVAL), or it is empty (ENODATA).
        """
        self._checkPort(port_num, "gid table of port")
        message = f"Failed to query gid table of port {port_num} in index {gid_index}"
        check(not flags and 0 <= gid_index < attributes.GIDS, message)
        gids = self._gids()
        if gid_index >= len(gids):
            raise PyverbsRDMAError(message, errno.ENODATA)
        return self._entry(gids[gid_index], gid_index)

    def _entry(self, gid: bytes, index: int) -> GIDEntry:
        return GIDEntry(
            int.from_bytes(gid[:8], sys.byteorder),
            int.from_bytes(gid[8:], sys.byteorder),
            index,
            attributes.PORT,
            _GID_TYPES[self._device.port.linkLayer][1],
        )

    def query_rt_values_ex(self, comp_mask: int = 1) -> tuple[int, int]:
        """
        @raise PyverbsRDMAError: always (EOPNOTSUPP): the device has no clock.
        """
        raise unsupported("Failed to query real time values")

    # -- events

    @property
    def async_fd(self) -> int:
        """
        A descriptor that is readable while there is an event, for programs with a thread that drives the
        devices.  Not in pyverbs.
        """
        with hub:
            self._check()
            if self._events.readable is None:
                self._events.readable = Readable()
                self._events.settle()
            return self._events.readable.fd

    def get_async_event(self) -> AsyncEvent:
        """
        Wait for an event of the device or of an object of this context; the devices are driven meanwhile.

        @return: the oldest event.
        """
        event = self.next_async_event()
        assert event is not None
        return event

    def next_async_event(self, timeout: float | None = None) -> AsyncEvent | None:
        """
        Fetch the oldest event.  Not in pyverbs.

        @param timeout: seconds to wait for one; None waits for ever.
        @return: the event; None if there is none in this time.
        """
        return waitFor(self.take_async_event, "Failed to get async event", timeout)

    def take_async_event(self) -> AsyncEvent | None:
        """
        Fetch the oldest event, if there is one.  The hub's lock is held.  Not in pyverbs.
        """
        # Closed by another thread: this raises in the waiting one.
        self._check()
        self._device.check()
        found = self._events.take()
        if found is None:
            return None
        event = AsyncEvent(int(found[0]))
        event.element = self._objectOf(found[1])
        return event

    def _objectOf(self, core: Any) -> VerbsObject | None:
        # Queues are children of the context or of a domain.
        for child in self._children:
            for each in (child, *child._children):
                if getattr(each, "_core", None) is core:
                    return each
        return None


def _packed(text: str) -> bytes:
    # RFC 4007 section 11: what follows % names a zone of this host, and is no part of the address.
    packed = ip_address(text.partition("%")[0]).packed
    # RFC 4291 section 2.5.5.2: an IPv4 address becomes ::ffff:a.b.c.d, as RoCEv2 has it.
    return packed if len(packed) == len(_NO_GID) else _IPV4_MAPPED + packed


class FdArr(PyverbsObject):
    """
    An array of file descriptors: the first C{count} of C{arr}.
    """

    def __init__(self, arr: Iterable[int] = (), count: int = 0) -> None:
        self.arr = list(arr)[:count]
        self.count = len(self.arr)

    def __str__(self) -> str:
        return table([("Number of fd in arr", self.count), ("FDs in arr", self.arr)], 20)
