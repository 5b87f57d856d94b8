"""
Endpoints: the identifier of C{struct rdma_cm_id}, and the event channel that it reports to.

As in librdmacm, a synchronous identifier is one with an event channel of its own, from which each command
takes its event.  Source: rdma-core 44, C{librdmacm/cma.c}.
"""

from __future__ import annotations

import os

from _twisted_ib_cm import ffi

from twisted_ib.drive.process import life
from twisted_ib.hca.connection.rdmacm import gidOf
from twisted_ib.hca.device.device import Device
from twisted_ib.verbs.c import sockaddr
from twisted_ib.verbs.c.chosen import chosenDevice
from twisted_ib.verbs.c.errors import HandleError
from twisted_ib.verbs.c.handles import handles
from twisted_ib.verbs.c.pointers import CData, addressOf, given
from twisted_ib.verbs.c.verbs.device import openContext
from twisted_ib.verbs.c.verbs.memory import domainOf
from twisted_ib.verbs.c.verbs.structures import Kind
from twisted_ib.verbs.pyverbs import CMID, PD, QP, CMEventChannel, Context, enums
from twisted_ib.verbs.pyverbs.cm.addrinfo import Address

#: The P_Key that every device has (IBTA vol. 1 10.9.1.2), in network byte order as in memory.
_DEFAULT_KEY = int.from_bytes(b"\xff\xff", "little")


class Channel:
    """
    An event channel.

    @ivar value: the channel of verbs.
    @ivar structure: its C{struct rdma_event_channel}.
    """

    def __init__(self) -> None:
        self.value = CMEventChannel()
        fd = self.value.fd
        # It is non-blocking for the device; for programs it is as they make it.
        os.set_blocking(fd, True)
        self.structure = ffi.new("struct rdma_event_channel *", {"fd": fd})
        handles.add(addressOf(self.structure), "rdma_event_channel", self, self.structure)

    def close(self) -> None:
        """
        Close it.
        """
        self.value.close()

    def destroy(self) -> None:
        """
        Close it and forget its structure.
        """
        handles.remove(addressOf(self.structure), "rdma_event_channel")


class Endpoint:
    """
    One C{struct rdma_cm_id}.

    @ivar cmid: its identifier, which is never a synchronous one of verbs.
    @ivar structure: the C{struct rdma_cm_id}.
    @ivar channel: where its events go.
    @ivar isSynchronous: whether the channel is its own, and its commands wait.
    @ivar isIB: whether its addresses are C{struct sockaddr_ib}.
    @ivar initAttr: of a listener, a C{struct ibv_qp_init_attr} for its children; or None.
    @ivar connectData: what comes before the private data of a connect.
    """

    def __init__(
        self, cmid: CMID, channel: Channel, portSpace: int, isSynchronous: bool, context: CData
    ) -> None:
        self.cmid = cmid
        self.channel = channel
        self.isSynchronous = isSynchronous
        self.isIB = False
        self.initAttr: CData | None = None
        self.connectData = b""
        self._paths: CData | None = None
        self.structure = structure = ffi.new("struct rdma_cm_id *")
        structure.channel, structure.context, structure.ps = channel.structure, context, portSpace
        datagrams = portSpace in (enums.RDMA_PS_UDP, enums.RDMA_PS_IPOIB)
        structure.qp_type = enums.IBV_QPT_UD if datagrams else enums.IBV_QPT_RC
        handles.add(addressOf(structure), "rdma_cm_id", self, structure)
        endpoints.add(self)

    def close(self) -> None:
        """
        Close the identifier.
        """
        if self.cmid.qp is not None and not self.structure.qp:
            # The program has moved it to another identifier, which takes it later.
            self.cmid.release_qp()
        self.cmid.close()

    # -- what the program sees

    def showAddresses(self) -> None:
        """
        Show the addresses, and the device once it is known.
        """
        cmid, route = self.cmid, self.structure.route.addr
        for name, gid, found in (
            ("src_storage", route.addr.ibaddr.sgid, cmid.local_addr),
            ("dst_storage", route.addr.ibaddr.dgid, cmid.peer_addr),
        ):
            if found is not None:
                packed = sockaddr.pack(Address(*found), self.isIB, self.structure.ps)
                ffi.memmove(ffi.addressof(route, name), packed, len(packed))
                ffi.memmove(gid.raw, gidOf(found[0]), 16)

    def showDevice(self) -> None:
        """
        Show the device that it is bound to, and a domain there.
        """
        if self.structure.verbs or self.cmid.device is None:
            return
        context, domain = sharedDevice(self.cmid)
        self.structure.verbs = ffi.cast("struct ibv_context *", addressOf(context))
        self.structure.pd = ffi.cast("struct ibv_pd *", addressOf(domain))
        self.structure.port_num = self.cmid.port_num
        self.structure.route.addr.addr.ibaddr.pkey = _DEFAULT_KEY

    def showPath(self) -> None:
        """
        Show the path to the peer.
        """
        addresses, route = self.structure.route.addr.addr.ibaddr, self.structure.route
        self._paths = path = ffi.new("struct ibv_sa_path_rec *")
        path.dgid, path.sgid, path.pkey = addresses.dgid, addresses.sgid, addresses.pkey
        path.numb_path = path.reversible = 1
        # rdma-core cma.c, ucma_convert_path: selector 2 means exactly.
        path.mtu_selector = path.rate_selector = path.packet_life_time_selector = _EXACTLY
        port = self.cmid.context.query_port(self.cmid.port_num) if self.cmid.context is not None else None
        if port is not None:
            path.mtu = port.active_mtu
        route.path_rec, route.num_paths = path, 1


_EXACTLY = 2


class Endpoints:
    """
    The endpoints by their identifiers.
    """

    def __init__(self) -> None:
        self.forked()

    def forked(self) -> None:
        """
        Forget all in a forked child, whose parent's they are.
        """
        self._endpoints: dict[object, Endpoint] = {}

    def __len__(self) -> int:
        return len(self._endpoints)

    def add(self, endpoint: Endpoint) -> None:
        """
        Add an endpoint.
        """
        self._endpoints[endpoint.cmid.identifier] = endpoint

    def withQP(self, qp: QP) -> list[Endpoint]:
        """
        @return: those whose identifier has a queue pair.
        """
        # A copy: other threads add and remove some.
        return [each for each in list(self._endpoints.values()) if each.cmid.qp is qp]

    def eventTaken(self, identifier: object) -> Endpoint | None:
        """
        Count an event that a program gets.

        @return: the endpoint; L{None} if it is being destroyed.
        """
        endpoint = self._endpoints.get(identifier)
        return endpoint if endpoint is not None and handles.report(endpoint) else None

    def remove(self, endpoint: Endpoint) -> None:
        """
        Forget an endpoint.
        """
        # The first call takes it; another has nothing to do.
        if self._endpoints.pop(endpoint.cmid.identifier, None) is None:
            raise HandleError("The identifier is being destroyed")


#: The endpoints of this process.
endpoints = Endpoints()

#: The context and the domain of each device, as pointers.  librdmacm keeps contexts, too, until the process
#: ends: programs allocate from C{id->verbs}, and what they have must outlive the identifier.
_devices: dict[Device, tuple[CData, CData]] = {}


def _forked() -> None:
    endpoints.forked()
    _devices.clear()


life.atFork(__name__, inChild=_forked)


def sharedDevice(cmid: CMID) -> tuple[CData, CData]:
    """
    @param cmid: a bound identifier.
    @return: pointers to the C{struct ibv_context} and C{struct ibv_pd} of all identifiers of its device.
    """
    with handles.lock:
        device = cmid.device
        if device not in _devices:
            _devices[device] = _opened(Context(cmid=cmid))
        return _devices[device]


def devices() -> list[CData]:
    """
    @return: pointers to the contexts of the devices that this program may use.
    """
    with handles.lock:
        name = chosenDevice()
        if name is not None and not any(device.name == name for device in _devices):
            value = Context(name=name)
            _devices.setdefault(value._device, _opened(value))
        return [context for context, _ in _devices.values()]


def _opened(value: Context) -> tuple[CData, CData]:
    context = openContext(str(value.name), value)
    return context, domainOf(context, PD(value))


# -- arguments


endpointOf: Kind[Endpoint] = Kind("rdma_cm_id")
channelOf: Kind[Channel] = Kind("rdma_event_channel")


def socketAddress(pointer: CData) -> sockaddr.SocketAddress:
    """
    @param pointer: to a C{struct sockaddr}.
    @raise HandleError: it is null, or of an unknown family (EINVAL).
    """
    given(pointer)
    length = sockaddr.LENGTHS.get(sockaddr.familyOf(octets(pointer, 2)))
    if length is None:
        raise HandleError("A socket address is of an unknown family")
    return sockaddr.parse(octets(pointer, length))


def octets(pointer: CData, length: int) -> bytes:
    """
    @return: private data: nothing if the pointer is null.
    """
    return bytes(ffi.buffer(ffi.cast("char *", pointer), length)) if pointer and length else b""
