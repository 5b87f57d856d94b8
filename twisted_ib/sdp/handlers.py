"""
One handler for each message that a stream may receive, but for plain Data without extensions.

The table L{HANDLERS} is filled by the decorators.  A handler of a control message gets the stream and the
message's place in the buffer; one of L{extended} gets the stream's L{Extensions} and the parsed message, and
first asks the machine, which checks the message and changes its state.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from twisted_ib import limits
from twisted_ib.errors import SDPError
from twisted_ib.hca.base.interfaces import ISharedMemoryPath
from twisted_ib.hca.host.fdpassing import refuse
from twisted_ib.sdp.protocol import wire
from twisted_ib.sdp.protocol.machine import Input

if TYPE_CHECKING:
    from twisted_ib.sdp.extensions import Extensions
    from twisted_ib.sdp.stream import Stream
    from twisted_ib.sdp.transport import SDPTransport

H = TypeVar("H", bound=Callable[..., None])

#: Message id -> whether it is for the extensions, and its handler.
HANDLERS: dict[int, tuple[bool, Any]] = {}
#: Of a message id that nobody has, or that only the handshake has.
UNEXPECTED: tuple[bool, Any] = True, None


def _handles(isExtended: bool, message: type[wire.SDPMessage]) -> Callable[[H], H]:
    def enter(handler: H) -> H:
        HANDLERS[message.mid.value] = isExtended, handler
        return handler

    return enter


#: Makes a function the handler of a control message, which needs no extensions: it is called with the stream,
#: the buffer, and the offsets of the message and of its end.
control = partial(_handles, False)
#: And of a message of zero copy, modes or urgent data: with the stream's extensions and the message.
extended = partial(_handles, True)


# -- the end


# Not parsed: every connection ends by one of these, and they have no field of their own.


def _hasBody(mid: wire.MID, start: int, stop: int) -> SDPError:
    return SDPError(f"message {mid:#04x} has a body of {stop - start - wire.BSDH_BYTES} bytes")


@control(wire.DisConn)
def _disConn(stream: Stream, buffer: Any, start: int, stop: int) -> None:
    if stop - start != wire.BSDH_BYTES:
        raise _hasBody(wire.MID.DISCONN, start, stop)
    # Revoke the SinkAvails first: the peer writes nothing after its DisConn, and a callback below may end the
    # connection.
    if stream.extensions is not None:
        stream.extensions.disconnected()
    stream.act(stream.machine.feed(Input.DISCONN))


@control(wire.AbortConn)
def _abortConn(stream: Stream, buffer: Any, start: int, stop: int) -> None:
    if stop - start != wire.BSDH_BYTES:
        raise _hasBody(wire.MID.ABORT_CONN, start, stop)
    stream.act(stream.machine.feed(Input.ABORTCONN))


# -- sizes of buffers


@control(wire.ChRcvBuf)
def _chRcvBuf(stream: Stream, buffer: Any, start: int, stop: int) -> None:
    # Refused by answering the size in force, as OpenIB always does (sdp_rcvd.c sdp_rcvd_resize_buff_ack).
    wire.ChRcvBuf.parse(buffer, start, stop)
    stream.sendControl(wire.MID.CH_RCV_BUF_ACK, wire.ChRcvBufAck.layout.struct.pack(limits.INLINE_MESSAGE))


@control(wire.ChRcvBufAck)
def _chRcvBufAck(stream: Stream, buffer: Any, start: int, stop: int) -> None:
    answer = wire.ChRcvBufAck.parse(buffer, start, stop)
    stream.openExtensions().sizeAnswered(answer.receiveBytes)


# -- sockets that move


def _transportOf(stream: Stream) -> SDPTransport:
    # Each stream is one: two classes only because Stream may be compiled.
    return cast("SDPTransport", stream)


@control(wire.SuspComm)
def _suspComm(stream: Stream, buffer: Any, start: int, stop: int) -> None:
    service = wire.SuspComm.parse(buffer, start, stop).serviceID
    path = stream.queuePair.path
    descriptor = path.handedOver(stream.queuePair.remote) if ISharedMemoryPath.providedBy(path) else None
    if descriptor is None:
        # OpenIB parses SuspComm and never answers, OFED logs it: the peer would then wait for ever.
        raise SDPError(f"SuspComm: the peer moves to service {service:#x}, where we do not follow")
    if descriptor >= 0 and not stream.attached:
        # This end is closed: as after a shutdown, the end of TCP is the answer.
        os.close(descriptor)
    # Nobody has to.
    elif descriptor >= 0 and not _transportOf(stream).suspended(descriptor):
        refuse(descriptor)


@control(wire.SuspCommAck)
def _suspCommAck(stream: Stream, buffer: Any, start: int, stop: int) -> None:
    wire.SuspCommAck.parse(buffer, start, stop)
    if not _transportOf(stream).suspended(-1):
        raise SDPError("SuspCommAck, but nothing was suspended")


# -- stream bytes, perhaps urgent


@extended(wire.Data)
def _data(extensions: Extensions, message: wire.Data) -> None:
    extensions.carried(message, extensions.machine.data)


# -- SrcAvail, from its source


@extended(wire.SrcAvail)
def _srcAvail(extensions: Extensions, message: wire.SrcAvail) -> None:
    extensions.carried(message, extensions.machine.srcAvail)


@extended(wire.SrcAvailCancel)
def _srcAvailCancel(extensions: Extensions, message: wire.SrcAvailCancel) -> None:
    extensions.machine.srcAvailCancel()


@extended(wire.RdmaWrCompl)
def _rdmaWrCompl(extensions: Extensions, message: wire.RdmaWrCompl) -> None:
    place = extensions.machine.rdmaWrCompl(message)
    extensions.zeroCopyReceive.filled(place, message.length)


@extended(wire.SinkCancelAck)
def _sinkCancelAck(extensions: Extensions, message: wire.SinkCancelAck) -> None:
    extensions.zeroCopyReceive.withdrawn(extensions.machine.sinkCancelAck(), True)


# -- SinkAvail and reports, from the sink


@extended(wire.SinkAvail)
def _sinkAvail(extensions: Extensions, message: wire.SinkAvail) -> None:
    result = extensions.carried(message, extensions.machine.sinkAvail)
    # Not as Data: what the voided SrcAvails offered can be written into the SinkAvail.
    extensions.zeroCopySend.unoffer(result[1], False)


@extended(wire.SinkAvailCancel)
def _sinkAvailCancel(extensions: Extensions, message: wire.SinkAvailCancel) -> None:
    extensions.machine.sinkAvailCancel()


@extended(wire.RdmaRdCompl)
def _rdmaRdCompl(extensions: Extensions, message: wire.RdmaRdCompl) -> None:
    machine = extensions.machine
    offer = machine.rdmaRdCompl(message)
    oldest = machine.zero.source.offers[0] if offer is None else offer
    extensions.zeroCopySend.wasRead(oldest.user, message.length, offer is not None)


@extended(wire.SendSm)
def _sendSm(extensions: Extensions, message: wire.SendSm) -> None:
    extensions.zeroCopySend.unoffer(extensions.machine.sendSm(), True)


# -- modes


@extended(wire.ModeChange)
def _modeChange(extensions: Extensions, message: wire.ModeChange) -> None:
    machine, receiver = extensions.machine, extensions.zeroCopyReceive
    # Checked before the machine, since the change itself drops the SrcAvails that we are reading.
    if message.transition is wire.Transition.PIPELINED_TO_COMBINED:
        receiver.checkReports(machine.other[2])
    receiver.withdrawn(machine.modeChange(message), False)
