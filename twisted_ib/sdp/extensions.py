"""
The part of a stream that uses more of SDP than Data: zero copy, flow-control modes and urgent data.

It is made when either end first uses one of these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from twisted_ib import limits
from twisted_ib.errors import SDPError
from twisted_ib.interfaces import ISDPUrgentProtocol
from twisted_ib.sdp.protocol import wire
from twisted_ib.sdp.protocol.modes import changed
from twisted_ib.sdp.protocol.zerocopy import ZeroCopyMachine
from twisted_ib.sdp.streamrdma import StreamRDMA
from twisted_ib.sdp.zerocopyreceive import ZeroCopyReceive
from twisted_ib.sdp.zerocopysend import ZeroCopySend

if TYPE_CHECKING:
    from twisted_ib.sdp.pendingsends import PendingSend
    from twisted_ib.sdp.stream import Stream
    from twisted_ib.sdp.zerocopyreceive import ReceiveBuffer

_PRESENT = wire.Flags.OOB_PRES.value


class Extensions:
    """
    A stream's optional half.

    @ivar machine: The stream's machine, which takes the place of the one that it had.
    @ivar keyed: The stream's memory; L{None} until it is used.
    @ivar orphans: Deferreds of discarded sends, which fail at the end.
    @ivar asked: Whether a ChRcvBuf is unanswered; L{None} before the first.
    @ivar over: Whether the application has been, or is being, notified of the end.
    """

    __slots__ = ("asked", "keyed", "machine", "orphans", "over", "stream", "zeroCopyReceive", "zeroCopySend")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        stream.machine = self.machine = ZeroCopyMachine(stream.machine, stream.adverts)
        self.keyed: StreamRDMA | None = None
        self.zeroCopySend = ZeroCopySend(self)
        self.zeroCopyReceive = ZeroCopyReceive(self)
        self.orphans: list[Deferred[None]] = []
        self.asked: bool | None = None
        self.over = False

    def openRDMA(self) -> StreamRDMA:
        """
        Return the stream's memory, made when first needed.

        @raise MemoryRegionError: The connection has ended.
        """
        keyed = self.keyed
        if keyed is None:
            keyed = self.keyed = StreamRDMA(self.stream)
        return keyed

    # -- the batch

    def tell(self) -> None:
        """
        Report completed READs and WRITEs, and what was sent in place.
        """
        if self.keyed is not None and self.keyed.completions:
            self.keyed.tell()
        self.zeroCopySend.tell()

    # -- messages

    def take(self, handler: Any, buffer: Any, start: int, stop: int) -> None:
        """
        Process a message other than plain Data, DisConn, AbortConn and buffer resizing.

        @param handler: From L{HANDLERS<twisted_ib.sdp.handlers.HANDLERS>}; L{None} if the message has none.
        @raise SDPError: The protocol forbids the message.
        @raise SDPWireError: The message is malformed.
        """
        # Transfers completed before this message are reported before it; a callback may end the connection.
        self.tell()
        if self.stream.queuePair.path is None:
            # A callback has ended the connection.
            return
        if handler is None:
            raise self.machine.unexpected()
        handler(self, self.machine.parse(buffer, start, stop))
        if self.zeroCopyReceive.unread() and not self.stream.attached:
            # A close with unread data, or with an unread SrcAvail, is abortive (IBTA vol. 1 annex A4.5.3.2;
            # OpenIB sdp_inet.c sdp_inet_release), as TCP answers with RST.
            self.stream.reset()
        self.stream.cork()

    def disconnected(self) -> None:
        """
        Process the peer's DisConn.
        """
        self.zeroCopyReceive.ended()
        self.zeroCopySend.received = self.machine.other[2]

    def carried(self, message: Any, machine: Callable[[Any], Any]) -> Any:
        """
        Process a message that may carry stream bytes, and deliver these.

        @param machine: The machine's method for it.
        @return: The value that it has returned.
        """
        places = self.machine.zero.sink.places
        first = places[0][0] if places else None
        result = machine(message)
        if message.payload:
            used = first is not None and not (places and places[0][0] is first)
            self._payload(message.payload, message.flags, first if used else None)
        return result

    def _payload(self, payload: bytes, flags: int, place: Any) -> None:
        stream: Any = self.stream
        protocol = stream.protocol
        urgent = b""
        # OOB_PRES: the last byte is the urgent one.  Without ISDPUrgentProtocol it stays in the stream, like
        # SO_OOBINLINE.
        if flags & _PRESENT and stream.attached and ISDPUrgentProtocol.providedBy(protocol):
            payload, urgent = payload[:-1], payload[-1:]
        if payload:
            if stream.reading and stream.held is None:
                self.zeroCopyReceive.put(payload)
            else:
                stream.hold(payload)
        elif place is not None:
            # The message consumed the SinkAvail although no stream byte is left for it: the buffer goes back
            # empty.
            self.zeroCopyReceive.withdrawn([place], True)
        if urgent and stream.attached:
            stream._tell(lambda: protocol.urgentDataReceived(urgent))

    def hide(self, item: PendingSend | ReceiveBuffer) -> None:
        """
        Revoke what the peer may read or write of an item.
        """
        exposed, item.exposed = item.exposed, None
        if exposed is not None and self.keyed is not None:
            self.keyed.hide(exposed)

    # -- modes

    def changeMode(self, transition: wire.Transition) -> bool:
        """
        Change the flow-control mode of the sending direction, or end the peer's Buffered mode.

        @return: False if it must wait, for credits or for transfers in flight.
        @raise SDPError: The mode in force has no such transition.
        """
        stream = self.stream
        zero = self.machine.zero
        if transition is wire.Transition.BUFFERED_TO_COMBINED:
            changed(zero.sink.mode, transition)
        else:
            changed(zero.source.mode, transition)
            if self.zeroCopySend.takes(0):
                return False
        queuePair = stream.queuePair
        # Owed control messages were produced under the mode in force, so they go first.
        if queuePair.path is None or stream.pendingControl is not None or not queuePair.canPost():
            return False
        return queuePair.postControl(self.machine.changeMode(transition, queuePair.posted))

    # -- sizes of buffers

    def askSize(self) -> None:
        """
        Send a ChRcvBuf, once, to ask for larger receives at the peer.
        """
        # Once only: OFED grants what it can and otherwise answers the old size (sdp_rx.c
        # sdp_handle_resize_request).
        if self.asked is None:
            self.asked = True
            size = limits.INLINE_MESSAGE + wire.BSDH_BYTES
            self.stream.sendControl(wire.MID.CH_RCV_BUF, wire.ChRcvBuf.layout.struct.pack(size))

    def sizeAnswered(self, size: int) -> None:
        """
        Process a ChRcvBufAck.

        @raise SDPError: Nothing was asked.
        """
        if not self.asked:
            raise SDPError("ChRcvBufAck, but nothing was asked")
        self.asked = False
        # OFED's value counts the payload, others count the whole message; the smaller reading is safe for
        # both.
        payload = min(size - wire.BSDH_BYTES, limits.INLINE_MESSAGE)
        # Growth only: a smaller answer cannot shrink receives that were announced in Hello and are posted.
        if payload > self.stream.maxPayload:
            self.stream.limitPayload(payload)

    # -- ends

    def inUse(self) -> bool:
        """
        Return whether SrcAvails or WRITEs are outstanding, so that a close now is abortive.
        """
        return self.zeroCopySend.unfinished() or self.zeroCopyReceive.unread()

    def isQuiet(self) -> bool:
        """
        Return whether nothing of it waits, be it to be sent, or for the peer.
        """
        return self.zeroCopySend.isQuiet() and not self.zeroCopyReceive.unread()

    def discard(self) -> None:
        """
        Drop all queued sends.
        """
        self.orphans += self.zeroCopySend.discard()

    def fail(self, reason: Failure) -> None:
        """
        Fail the Deferreds of discarded sends: the connection has ended.
        """
        self.over = True
        self.zeroCopySend.conclude()
        self.discard()
        orphans, self.orphans = self.orphans, []
        for deferred in orphans:
            # The memory was released when the sends were discarded; only the notification is left.
            deferred.errback(reason)

    def close(self) -> None:
        """
        Release memory after the queue pair was destroyed.
        """
        self.zeroCopyReceive.close()
        keyed, self.keyed = self.keyed, None
        if keyed is not None:
            keyed.close()
