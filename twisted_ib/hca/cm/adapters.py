"""
Streams of SDP between this package's software and an adapter, whose kernel has the communication manager:
requests in the form of L{twisted_ib.hca.connection.compacthello}.

Whether a peer is an adapter shows in its answer alone.  Its kernel refuses a service id of SDP's as one that
nobody serves, and is asked again in the other form; so is software of earlier versions, to no effect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from twisted_ib.errors import WireError
from twisted_ib.hca.cm.states import Input, State
from twisted_ib.hca.cm.transitions import refuse
from twisted_ib.hca.connection import RejectReason
from twisted_ib.hca.connection.compacthello import SOFTWARE, compact, expand, streamService
from twisted_ib.hca.connection.rdmacm import PortSpace, serviceID
from twisted_ib.hca.wire.cm.layout import BODY_BYTES
from twisted_ib.hca.wire.cm.messages import REJ, REQ, MessageKind

if TYPE_CHECKING:
    from twisted_ib.hca.cm.machine import Connection
    from twisted_ib.hca.cm.table import ConnectionTable

_TCP: Final = int(PortSpace.TCP)
_SDP: Final = int(PortSpace.SDP)
_PORT: Final = 0xFFFF


def takesHello(table: ConnectionTable, source: Any, message: REQ) -> bool:
    """
    A REQ with the mark came: in the port space TCP it becomes one for the stream service of that number.

    @return: False if it was refused, as it has no Hello.
    """
    if message.serviceID >> 16 != _TCP:
        return True
    try:
        message.privateData = expand(message.privateData)
    except WireError:
        table.counters["malformed"] += 1
        refuse(table, source, message, MessageKind.REQ, RejectReason.CONSUMER_DEFINED)
        return False
    message.serviceID = streamService(message.serviceID)
    return True


def asksAdapter(
    connection: Connection,
    rejection: REJ,
    connections: dict[int, Connection],
    newID: Callable[[], int],
    now: float,
) -> bool:
    """
    A REJ came: if it is that of an adapter's kernel to a Hello, send the REQ in the form that it knows.

    @param connections: the table's.
    @param newID: draws a communication id.
    @return: whether that was sent, which has another id: the REJ may come again, as the first REQ may have.
    """
    table, output = connection.peer.table, connection.output
    isOfKernel = (
        rejection.reason == RejectReason.INVALID_SERVICE_ID
        and not rejection.privateData.startswith(SOFTWARE)
        and connection.state is State.REQ_SENT
        # Between processes of this host there is none.
        and not table.lossless
    )
    if not isOfKernel or output is None:
        return False
    request = REQ.made().parse(output.ljust(BODY_BYTES, b"\0"), 0, BODY_BYTES)
    if request.serviceID >> 16 != _SDP:
        return False
    try:
        request.privateData = compact(request.privateData)
    except WireError:
        return False
    request.serviceID = serviceID(_TCP, request.serviceID & _PORT)
    connection.state = State.IDLE
    if table.follow is not None:
        table.follow(connection, None)
    del connections[connection.localID]
    request.localCommunicationID = connection.localID = newID()
    connections[connection.localID] = connection
    connection.feed(Input.CONNECT, request, now)
    return True
