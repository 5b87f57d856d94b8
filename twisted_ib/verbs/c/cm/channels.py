"""
Event channels and events.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from functools import partial

import attrs
from _twisted_ib_cm import ffi
from _twisted_ib_verbs import ffi as verbsFFI

from twisted_ib.errors import HCAError
from twisted_ib.verbs.c import attend
from twisted_ib.verbs.c.cm.structures import Channel, Endpoint, channelOf, endpoints
from twisted_ib.verbs.c.errors import HandleError
from twisted_ib.verbs.c.functions import AGAIN, handler
from twisted_ib.verbs.c.handles import handles
from twisted_ib.verbs.c.pointers import CData, addressOf, lasting
from twisted_ib.verbs.c.verbs.address import writeAddress
from twisted_ib.verbs.c.waiting import awaitEvent, nextEvent, rest
from twisted_ib.verbs.pyverbs import CMID, CMEvent, ConnParam, UDParam, enums

_E = enums.rdma_cm_event_type
_Take = Callable[[int, Callable[[], CMEvent | None]], CMEvent | None]
#: C{waitsFor}: the address of the channel that the thread waits for events of, one call after the other,
#: until it destroys that itself.
_thread = threading.local()
#: Events of groups: their private data is the pointer that the program joined with (librdmacm cma.c,
#: rdma_get_cm_event).
_OF_GROUPS = (_E.RDMA_CM_EVENT_MULTICAST_JOIN, _E.RDMA_CM_EVENT_MULTICAST_ERROR)
#: The last event that Linux's CM has (rdma-core 44).
_LAST = _E.RDMA_CM_EVENT_TIMEWAIT_EXIT


@attrs.define(eq=False)
class Taken:
    """
    An event that the program has.

    @ivar endpoint: whose it is; the listener's for a request.
    @ivar private: its private data, as long as the event.
    """

    endpoint: Endpoint
    private: object

    def close(self) -> None:
        """
        It is acknowledged.
        """
        handles.acknowledge(addressOf(self.endpoint.structure))


def takeEvent(channel: Channel, take: _Take = nextEvent) -> CData | None:
    """
    Take an event.

    @param take: how to wait for it.
    @return: its C{struct rdma_cm_event}; L{None} if there is none yet.
    @raise HandleError: there is none, and the program does not want to wait (EAGAIN); or a signal has come
        (EINTR).
    """
    while True:
        event = take(channel.structure.fd, channel.value.take_event)
        if event is None:
            return None
        endpoint = endpoints.eventTaken(event.identifier)
        if endpoint is None:
            # Its identifier has just been destroyed by another thread.
            event.close()
            continue
        try:
            return _structure(event, endpoint)
        except BaseException:
            handles.acknowledge(addressOf(endpoint.structure))
            raise
        finally:
            event.close()


def _structure(event: CMEvent, endpoint: Endpoint) -> CData:
    private: object
    kind = event.event_type
    made = ffi.new("struct rdma_cm_event *")
    made.event, made.status, made.id = kind, event.status, endpoint.structure
    if kind in _OF_GROUPS:
        private, length = event.context, 0
    else:
        data = event.private_data
        private, length = ffi.new("char[]", data) if data else ffi.NULL, len(data)
    if endpoint.cmid.identifier is not None and endpoint.structure.qp_type == enums.IBV_QPT_UD:
        _fillDatagram(made.param.ud, UDParam(event))
        made.param.ud.private_data, made.param.ud.private_data_len = private, length
    else:
        _fillConnection(made.param.conn, event.conn_param)
        made.param.conn.private_data, made.param.conn.private_data_len = private, length
    if kind == _E.RDMA_CM_EVENT_CONNECT_REQUEST:
        made.listen_id = endpoint.structure
        made.id = _child(event, endpoint).structure
    elif kind == _E.RDMA_CM_EVENT_ADDR_RESOLVED:
        endpoint.showAddresses()
        endpoint.showDevice()
    elif kind == _E.RDMA_CM_EVENT_ROUTE_RESOLVED:
        endpoint.showPath()
    handles.add(addressOf(made), "rdma_cm_event", Taken(endpoint, private), made)
    return made


def _fillConnection(target: CData, param: ConnParam | None) -> None:
    if param is not None:
        target.responder_resources, target.initiator_depth = param.resources, param.depth
        target.flow_control, target.srq, target.qp_num = param.flow_control, param.srq, param.qpn
        target.retry_count, target.rnr_retry_count = param.retry, param.rnr_retry


def _fillDatagram(target: CData, param: UDParam) -> None:
    target.qp_num, target.qkey = param.qp_num, param.qkey
    vector = verbsFFI.cast("struct ibv_ah_attr *", addressOf(ffi.addressof(target, "ah_attr")))
    writeAddress(param.ah_attr, vector)


def _child(event: CMEvent, listener: Endpoint) -> Endpoint:
    cmid = CMID(event, listen_id=listener.cmid)
    own = listener.structure
    # Of a synchronous listener: the child has a channel of its own, too.
    channel = listener.channel
    if listener.isSynchronous:
        channel = Channel()
        cmid.migrate_id(channel.value)
    child = Endpoint(cmid, channel, own.ps, listener.isSynchronous, own.context)
    child.isIB = listener.isIB
    child.showAddresses()
    child.showDevice()
    child.showPath()
    return child


def complete(endpoint: Endpoint) -> int:
    """
    Of a synchronous identifier: wait for the event that its command leads to; the program finds it in
    C{id->event} until the next command.

    @return: 0.
    @raise HandleError: the event says that the command failed.
    """
    if not endpoint.isSynchronous:
        return 0
    acknowledgeLast(endpoint)
    event = takeEvent(endpoint.channel, awaitEvent)
    assert event is not None
    endpoint.structure.event = event
    status = event.status
    if status:
        # librdmacm cma.c, ucma_complete.
        refused = event.event == _E.RDMA_CM_EVENT_REJECTED
        number = errno.ECONNREFUSED if refused else abs(status)
        raise HandleError(_E(event.event).name, number)
    return 0


def acknowledgeLast(endpoint: Endpoint) -> None:
    """
    Acknowledge the event of a synchronous identifier's last command.
    """
    last, endpoint.structure.event = endpoint.structure.event, ffi.NULL
    if last:
        rdma_ack_cm_event(last)


@handler
def rdma_create_event_channel() -> CData:
    attend.begin()
    return Channel().structure


@handler
def rdma_destroy_event_channel(channel: CData) -> None:
    channelOf(channel).destroy()
    _thread.waitsFor = None


@handler
def rdma_get_cm_event(channel: CData, event: CData) -> int:
    address = addressOf(channel)
    # On Linux, closing a descriptor does not end the calls that use it.  rping relies on that: its thread
    # would end the program with status 255 when the main thread destroys the channel.  And a process ends
    # there before its connections do: libiscsi's thread would handle their event with memory that is freed.
    if attend.isEnding() or (getattr(_thread, "waitsFor", None) == address and not handles.has(address)):
        rest()
        return AGAIN
    found = channelOf(channel, event)
    _thread.waitsFor = address
    try:
        # As on an adapter, where completions do not wait for a call: libfabric takes what it has not polled
        # for failed, or forgets it, once it hears of the end of a connection.
        taken = takeEvent(found, partial(nextEvent, leave=found.value.leave_event))
    except (HCAError, OSError):
        if attend.isEnding() or not handles.has(address):
            # It was destroyed in this moment.
            return AGAIN
        raise
    if taken is None or attend.isEnding():
        return AGAIN
    event[0] = taken
    return 0


@handler
def rdma_ack_cm_event(event: CData) -> int:
    handles.remove(addressOf(event), "rdma_cm_event")
    return 0


@handler
def rdma_event_str(event: int) -> CData:
    return lasting(_E(event).name if 0 <= event <= _LAST else "UNKNOWN EVENT")
