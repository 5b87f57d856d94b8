"""
The system's librdmacm, by ctypes: identifiers, and the events of a channel that does not block.

Structures are those of C{rdma/rdma_cma.h} and C{infiniband/verbs.h}, whose layouts are frozen.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from ctypes import POINTER, Structure, byref, c_int, c_uint8, c_uint16, c_uint32, c_void_p
from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from attrs import define, frozen

from twisted_ib.drive import threads
from twisted_ib.hca.connection.rdmacm import PortSpace

if TYPE_CHECKING:
    from threading import Thread

    from twisted_ib.structs import Packed

#: C{sa_family}, port, and what follows.
_IN: Final[Packed[tuple[int, bytes, bytes]]] = Struct("=H2s4s8x")
_IN6: Final[Packed[tuple[int, bytes, bytes]]] = Struct("=H2s4x16s4x")
#: C{rdma_cm_id.route}, behind four pointers; it begins with both addresses, of a C{sockaddr_storage} each.
_SOURCE: Final = 4 * ctypes.sizeof(c_void_p)
_STORAGE: Final = 128
_POINTER: Final[Packed[tuple[int]]] = Struct("P")
#: In C{struct ibv_context}, behind a pointer and 32 of C{ibv_context_ops}: C{cmd_fd} and C{async_fd}; and
#: where their links lead to.
_DESCRIPTORS_AT: Final = 33 * _POINTER.size
_DESCRIPTORS: Final[Packed[tuple[int, int]]] = Struct("=ii")
_FILES: Final = ("/dev/infiniband/uverbs", "anon_inode:[infinibandevent]")
#: In C{struct ibv_device_attr}, which has fewer bytes: C{max_qp_rd_atom}, C{max_qp_init_rd_atom} and
#: C{atomic_cap}, 0 without atomics.
_FACTS_BYTES: Final = 512
_DEPTHS_AT: Final = 144
_DEPTHS: Final[Packed[tuple[int, int, int]]] = Struct("=i8xi4xi")
#: The next number, C{RDMA_MAX_RESP_RES}, is no depth.
_MOST: Final = 0xFE
_FAMILY: Final[Packed[tuple[int]]] = Struct("=H")
#: Of C{struct ibv_ah_attr} what is behind the route: one of 16 bits, and of 8 bits each.
_WAY: Final = "dlid", "sl", "src_path_bits", "static_rate", "is_global", "port_num"
_PORT: Final[Packed[tuple[int]]] = Struct(">H")


class CMEvent(IntEnum):
    """
    C{enum rdma_cm_event_type}; and that a connect has failed which L{RDMACM.begin} has begun: its status is
    the errno.
    """

    CONNECT_FAILED = -1

    ADDR_RESOLVED = 0
    ADDR_ERROR = 1
    ROUTE_RESOLVED = 2
    ROUTE_ERROR = 3
    CONNECT_REQUEST = 4
    CONNECT_RESPONSE = 5
    CONNECT_ERROR = 6
    UNREACHABLE = 7
    REJECTED = 8
    ESTABLISHED = 9
    DISCONNECTED = 10
    DEVICE_REMOVAL = 11
    MULTICAST_JOIN = 12
    MULTICAST_ERROR = 13
    ADDR_CHANGE = 14
    TIMEWAIT_EXIT = 15


class _Channel(Structure):
    _fields_ = [("fd", c_int)]


class _Parameters(Structure):
    # struct rdma_conn_param.
    _fields_ = [
        ("private_data", c_void_p),
        ("private_data_len", c_uint8),
        ("responder_resources", c_uint8),
        ("initiator_depth", c_uint8),
        ("flow_control", c_uint8),
        ("retry_count", c_uint8),
        ("rnr_retry_count", c_uint8),
        ("srq", c_uint8),
        ("qp_num", c_uint32),
    ]


class _Event(Structure):
    _fields_ = [
        ("id", c_void_p),
        ("listen_id", c_void_p),
        ("event", c_int),
        ("status", c_int),
        ("conn", _Parameters),
    ]


class _GlobalRoute(Structure):
    _fields_ = [
        ("dgid", c_uint8 * 16),
        ("flow_label", c_uint32),
        ("sgid_index", c_uint8),
        ("hop_limit", c_uint8),
        ("traffic_class", c_uint8),
    ]


class _AddressVector(Structure):
    _fields_ = [
        ("grh", _GlobalRoute),
        ("dlid", c_uint16),
        *((name, c_uint8) for name in _WAY[1:]),
    ]


class _Attributes(Structure):
    # struct ibv_qp_attr.
    _fields_ = [
        *(
            (name, c_uint32)
            for name in (
                "qp_state cur_qp_state path_mtu path_mig_state qkey rq_psn sq_psn dest_qp_num"
                " qp_access_flags max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data"
            ).split()
        ),
        ("ah_attr", _AddressVector),
        ("alt_ah_attr", _AddressVector),
        ("pkey_index", c_uint16),
        ("alt_pkey_index", c_uint16),
        *(
            (name, c_uint8)
            for name in (
                "en_sqd_async_notify sq_draining max_rd_atomic max_dest_rd_atomic min_rnr_timer port_num"
                " timeout retry_cnt rnr_retry alt_port_num alt_timeout"
            ).split()
        ),
        ("rate_limit", c_uint32),
    ]


#: The bits of C{enum ibv_qp_attr_mask} that connections have, and their fields.
_FIELDS: Final = {
    1 << 0: "qp_state",
    1 << 3: "qp_access_flags",
    1 << 4: "pkey_index",
    1 << 5: "port_num",
    1 << 8: "path_mtu",
    1 << 9: "timeout",
    1 << 10: "retry_cnt",
    1 << 11: "rnr_retry",
    1 << 12: "rq_psn",
    1 << 13: "max_rd_atomic",
    1 << 15: "min_rnr_timer",
    1 << 16: "sq_psn",
    1 << 17: "max_dest_rd_atomic",
    1 << 20: "dest_qp_num",
}
_VECTOR: Final = 1 << 7


@define
class Parameters:
    """
    C{struct rdma_conn_param}.

    @ivar isShared: whether the queue pair takes receives of a shared queue.
    """

    privateData: bytes = b""
    responderResources: int = 0
    initiatorDepth: int = 0
    retryCount: int = 7
    rnrRetryCount: int = 7
    number: int = 0
    isShared: bool = False


@frozen
class Notice:
    """
    An event of the channel.

    @ivar id: the identifier that it is about; of a request a new one.
    @ivar listener: of a request: the identifier that listens.
    @ivar parameters: of the peer.
    """

    id: int
    listener: int
    kind: int
    status: int
    parameters: Parameters


def packAddress(address: str, port: int) -> bytes:
    """
    @return: a C{sockaddr_in} or C{sockaddr_in6}.
    """
    number = _PORT.pack(port)
    if ":" in address:
        return _IN6.pack(socket.AF_INET6, number, socket.inet_pton(socket.AF_INET6, address))
    return _IN.pack(socket.AF_INET, number, socket.inet_aton(address))


def unpackAddress(packed: bytes) -> tuple[str, int]:
    """
    @param packed: a C{sockaddr}.
    @return: address and port; empty and 0 if it has none.
    """
    (family,) = _FAMILY.unpack_from(packed)
    if family == socket.AF_INET:
        _, port, address = _IN.unpack_from(packed)
        return socket.inet_ntop(family, address), int.from_bytes(port, "big")
    if family == socket.AF_INET6:
        _, port, address = _IN6.unpack_from(packed)
        return socket.inet_ntop(family, address), int.from_bytes(port, "big")
    return "", 0


class RDMACM:
    """
    A channel of librdmacm, as connections need it.  An identifier is a number, that of its structure; what
    fails raises L{OSError}.

    @ivar bell: a descriptor that is readable when a thread has connected, besides that of the channel.
    """

    def __init__(self) -> None:
        """
        @raise OSError: there is no librdmacm, or no device of the kernel for it.
        """
        self._library: Any = ctypes.CDLL("librdmacm.so.1", use_errno=True)
        self._verbs: Any = ctypes.CDLL("libibverbs.so.1")
        self._library.rdma_create_event_channel.restype = POINTER(_Channel)
        self._files = -1, -1
        self._channel = self._library.rdma_create_event_channel()
        if not self._channel:
            code = ctypes.get_errno()
            raise OSError(code, f"rdma_create_event_channel: {os.strerror(code)}")
        os.set_blocking(self.fileno(), False)
        # Identifiers that threads connect, and what to call when those are destroyed that were to be
        # meanwhile; what the threads have done, and what wakes for it.
        self._connecting: dict[int, Thread] = {}
        self._doomed: dict[int, Callable[[], object] | None] = {}
        self._done: deque[tuple[int, int]] = deque()
        self.bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def _call(self, name: str, *arguments: Any) -> None:
        if getattr(self._library, name)(*arguments):
            code = ctypes.get_errno()
            raise OSError(code, f"{name}: {os.strerror(code)}")

    def fileno(self) -> int:
        """
        @return: the channel's descriptor.
        """
        found: int = self._channel.contents.fd
        return found

    def event(self) -> Notice | None:
        """
        @return: the next event, acknowledged; L{None} if there is none now.
        """
        while self._done:
            id, code = self._done.popleft()
            # So that nothing of it is left when the bell is closed.
            self._connecting.pop(id).join()
            if id in self._doomed:
                self.destroy(id, self._doomed.pop(id))
            elif code:
                return Notice(id, 0, CMEvent.CONNECT_FAILED, code, Parameters())
        found = POINTER(_Event)()
        if self._library.rdma_get_cm_event(self._channel, byref(found)):
            code = ctypes.get_errno()
            if code in (errno.EAGAIN, errno.EINTR):
                self._heard()
                return None
            raise OSError(code, f"rdma_get_cm_event: {os.strerror(code)}")
        event = found.contents
        conn = event.conn
        length = conn.private_data_len if conn.private_data else 0
        data = ctypes.string_at(conn.private_data, length) if length else b""
        notice = Notice(
            *(event.id or 0, event.listen_id or 0, event.event, event.status),
            Parameters(
                *(data, conn.responder_resources, conn.initiator_depth),
                *(conn.retry_count, conn.rnr_retry_count, conn.qp_num),
            ),
        )
        self._call("rdma_ack_cm_event", found)
        return notice

    def _heard(self) -> None:
        # Nothing is left; what a thread does from now on rings again.
        with suppress(BlockingIOError):
            os.eventfd_read(self.bell)
            if self._done:
                os.eventfd_write(self.bell, 1)

    def create(self, space: int = PortSpace.TCP) -> int:
        """
        @return: a new identifier of a port space.
        """
        id = c_void_p()
        self._call("rdma_create_id", self._channel, byref(id), None, int(space))
        return id.value or 0

    def destroy(self, id: int, destroyed: Callable[[], object] | None = None) -> None:
        """
        Destroy an identifier: one that a thread connects when that has returned.

        @param destroyed: called when it is; the queue pair that it connects is in use until then.
        """
        if id in self._connecting:
            self._doomed[id] = destroyed
            return
        self._library.rdma_destroy_id(c_void_p(id))
        if destroyed is not None:
            destroyed()

    def bind(self, id: int, address: str, port: int) -> int:
        """
        @return: the port that it got.
        """
        self._call("rdma_bind_addr", c_void_p(id), packAddress(address, port))
        return self.ends(id)[1]

    def depths(self, id: int) -> tuple[int, int, bool]:
        """
        @return: how many READs and atomics a queue pair of its adapter serves at a time, and has outstanding;
            and whether it has atomics.
        """
        # The package ibverbs knows the first alone.
        facts = ctypes.create_string_buffer(_FACTS_BYTES)
        (context,) = _POINTER.unpack(ctypes.string_at(id, _POINTER.size))
        if not context:
            # Linux takes a loopback address as any: no adapter is bound then.
            raise OSError(errno.ENODEV, "rdma_bind_addr: the address is of no adapter")
        self._files = _DESCRIPTORS.unpack(ctypes.string_at(context + _DESCRIPTORS_AT, _DESCRIPTORS.size))
        code = self._verbs.ibv_query_device(c_void_p(context), facts)
        if code:
            raise OSError(code, f"ibv_query_device: {os.strerror(code)}")
        # rdma_cm has an octet for each.
        served, outstanding, atomics = _DEPTHS.unpack_from(facts, _DEPTHS_AT)
        return min(served, _MOST), min(outstanding, _MOST), atomics != 0

    def listen(self, id: int, backlog: int) -> None:
        """
        Listen.
        """
        self._call("rdma_listen", c_void_p(id), backlog)

    def resolveAddress(self, id: int, address: str, port: int, seconds: float) -> None:
        """
        Begin: an event follows.
        """
        where = packAddress(address, port)
        self._call("rdma_resolve_addr", c_void_p(id), None, where, int(seconds * 1000))

    def resolveRoute(self, id: int, seconds: float) -> None:
        """
        Begin: an event follows.
        """
        self._call("rdma_resolve_route", c_void_p(id), int(seconds * 1000))

    def ends(self, id: int) -> tuple[str, int, str, int]:
        """
        @return: its own address and port, and those of the peer.
        """
        packed = ctypes.string_at(id + _SOURCE, 2 * _STORAGE)
        return (*unpackAddress(packed), *unpackAddress(packed[_STORAGE:]))

    def attributes(self, id: int, state: int) -> tuple[int, dict[str, int], dict[str, Any] | None]:
        """
        @return: what a queue pair needs for a state: the mask, the attributes and the address vector.
        """
        given, mask = _Attributes(qp_state=state), c_int()
        self._call("rdma_init_qp_attr", c_void_p(id), byref(given), byref(mask))
        found = {name: getattr(given, name) for bit, name in _FIELDS.items() if mask.value & bit}
        if not mask.value & _VECTOR:
            return mask.value, found, None
        vector, route = given.ah_attr, given.ah_attr.grh
        target = {name: getattr(vector, name) for name in _WAY}
        target.update(dgid=bytes(route.dgid), flow_label=route.flow_label, sgid_index=route.sgid_index)
        target.update(hop_limit=route.hop_limit, traffic_class=route.traffic_class)
        return mask.value, found, target

    def _given(self, parameters: Parameters) -> tuple[_Parameters, Any]:
        data = ctypes.create_string_buffer(parameters.privateData, max(1, len(parameters.privateData)))
        return _Parameters(
            private_data=ctypes.addressof(data),
            private_data_len=len(parameters.privateData),
            responder_resources=parameters.responderResources,
            initiator_depth=parameters.initiatorDepth,
            retry_count=parameters.retryCount,
            rnr_retry_count=parameters.rnrRetryCount,
            srq=parameters.isShared,
            qp_num=parameters.number,
        ), data

    def connect(self, id: int, parameters: Parameters) -> None:
        """
        Send the request: an event follows.
        """
        given, _data = self._given(parameters)
        self._call("rdma_connect", c_void_p(id), byref(given))

    def begin(self, id: int, parameters: Parameters) -> None:
        """
        The same where a driver may wait within the call: in a thread, so that its failure is an event, too.
        """
        try:
            self._connecting[id] = threads.begin(self._connect, id, parameters, name="twisted_ib connect")
        except (RuntimeError, MemoryError) as error:
            raise OSError(errno.EAGAIN, f"rdma_connect: {error}") from None

    def _connect(self, id: int, parameters: Parameters) -> None:
        code = errno.EIO
        try:
            self.connect(id, parameters)
            code = 0
        except OSError as error:
            code = error.errno or code
        finally:
            self._done.append((id, code))
            os.eventfd_write(self.bell, 1)

    def forked(self) -> None:
        """
        In a forked child: the threads are the parent's, and so is what they ring.
        """
        os.close(self.bell)

    def settle(self) -> None:
        """
        Wait until no thread connects an identifier that is to be destroyed, and destroy those.
        """
        poller = select.poll()
        poller.register(self.bell, select.POLLIN)
        while self._doomed:
            poller.poll()
            self.event()

    def accept(self, id: int, parameters: Parameters) -> None:
        """
        Accept a request: an event follows.
        """
        given, _data = self._given(parameters)
        self._call("rdma_accept", c_void_p(id), byref(given))

    def reject(self, id: int, privateData: bytes) -> None:
        """
        Refuse a request or a reply.
        """
        self._call("rdma_reject", c_void_p(id), privateData, c_uint8(len(privateData)))

    def establish(self, id: int) -> None:
        """
        The reply is good.
        """
        self._call("rdma_establish", c_void_p(id))

    def disconnect(self, id: int) -> None:
        """
        End a connection.
        """
        self._call("rdma_disconnect", c_void_p(id))

    def letGo(self) -> bool:
        """
        Close what librdmacm has opened of an adapter that is gone.

        @return: whether nothing of it is open.
        """
        # librdmacm keeps its context of an adapter until it finds another (cma.c, sync_devices_list()), and
        # the kernel would wait for that.  It closes the descriptors then, which lead nowhere before.
        for fd, name in zip(self._files, _FILES, strict=True):
            try:
                link = os.readlink(f"/proc/self/fd/{fd}")
            except OSError:
                continue
            if not link.startswith(name):
                continue
            if name == _FILES[0] and not link.endswith("(deleted)"):
                return False
            nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            os.dup2(nothing, fd, inheritable=False)
            os.close(nothing)
        return True

    def close(self) -> None:
        """
        Destroy the channel, whose identifiers are destroyed.
        """
        os.close(self.bell)
        self._library.rdma_destroy_event_channel(self._channel)
