"""
The sending half of zero copy: registered memory and urgent bytes, and what waits behind them (IBTA vol. 1
annex A4).

The bytes of a stream leave in order.  While something in C{items} waits, everything written later waits
behind it; what was written before is in the stream's own buffer.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred

from twisted_ib import limits
from twisted_ib.errors import HCAError
from twisted_ib.hca.memory.access import REMOTE_READ
from twisted_ib.hca.memory.memory import MemoryRegion
from twisted_ib.hca.queues.receives import SGE
from twisted_ib.internet.region import RDMARegion
from twisted_ib.sdp.pendingsends import PendingSend, SendBuffer, Urgent
from twisted_ib.sdp.protocol.modes import Mode
from twisted_ib.sdp.protocol.sourceadverts import ReceivedSinkAvail, SentSrcAvail, SourceAdverts
from twisted_ib.sdp.protocol.wire import MID, RdmaWrCompl, Transition

if TYPE_CHECKING:
    from twisted_ib.sdp.extensions import Extensions

#: Plain writes of at least so many bytes go into a SinkAvail by RDMA WRITE.
SDP_WRITE_LEAST = 8 * 1024
#: Inline bytes of a SrcAvail in Combined mode: at least one is required; this many keeps the rest aligned.
#: Below 64, OpenIB would READ them again (SDP_SRC_AVAIL_RECV in sdp_dev.h).
SDP_CARRIED = 64


class ZeroCopySend:
    """
    The sending half of L{Extensions}.

    @ivar items: Items that wait, or are in a SrcAvail, in stream order.
    @ivar writing: Items whose WRITEs are all posted and not all completed.
    @ivar size: Bytes in C{items} not sent.
    @ivar least: Registered memory shorter than this goes as Data.
    @ivar received: The number of the last message that the peer had received when it ended; 0 before.
    @ivar plainLeast: Plain writes of at least so many bytes go like registered memory; L{None} if none do.
    """

    __slots__ = (
        "_extensions",
        "_reached",
        "_retract",
        "_sent",
        "_stream",
        "items",
        "least",
        "plainLeast",
        "received",
        "size",
        "writing",
    )

    def __init__(self, extensions: Extensions) -> None:
        self._extensions = extensions
        self._stream = extensions.stream
        self._retract = False
        self.items: deque[PendingSend | SendBuffer | Urgent] = deque()
        self.writing: deque[PendingSend] = deque()
        # Items that were sent in place, each with the position after it and its last message's number; and
        # the position that is reached.
        self._sent: deque[tuple[int, int, PendingSend]] = deque()
        self.size = self._reached = self.received = 0
        self.least = limits.SDP_ZERO_COPY_LEAST
        self.plainLeast: int | None = None

    # -- queueing

    def takes(self, length: int) -> bool:
        """
        Return whether a write of C{length} bytes must wait here instead of going as Data at once.
        """
        if self.items or self.writing:
            return True
        source = self._source
        # IBTA vol. 1 annex A4: no Data while a SrcAvail is outstanding; it would overtake the bytes in it.
        if source.offers or source.retracting:
            return True
        targets = source.targets
        # Data would consume the SinkAvail, which is worth it only for a few bytes, and illegal when it is
        # partly written.
        if targets and (targets[0].written or length >= SDP_WRITE_LEAST):
            return True
        return self.plainLeast is not None and length >= self.plainLeast

    @property
    def _source(self) -> SourceAdverts:
        return self._extensions.machine.zero.source

    def queueBytes(self, data: bytes) -> None:
        """
        Queue bytes that the application wrote.
        """
        items = self.items
        if self.plainLeast is not None and len(data) >= self.plainLeast:
            items.append(PendingSend(None, None, 0, memoryview(data)))
        else:
            if not items or not isinstance(items[-1], SendBuffer):
                items.append(SendBuffer())
            last: Any = items[-1]
            last.append(data)
        self._queued(len(data))

    def queueRegistered(self, region: RDMARegion, piece: SGE) -> Deferred[None]:
        """
        Queue registered memory.

        @return: Fires when the application may use the memory again.
        """
        start = piece.address - region.address
        stop = start + piece.length
        # IBTA vol. 1 9.7.7 bounds a message, and so one WRITE, to 2^31 bytes.
        for at in range(start, stop, limits.MESSAGE_BYTES):
            memory = region.use()
            item = PendingSend(region, memory, at, memory.view[at : min(at + limits.MESSAGE_BYTES, stop)])
            self.items.append(item)
        deferred: Deferred[None] = Deferred(item.cancelled)
        # Items complete in order, so the last one's completion is that of all.
        item.deferred = deferred
        self._queued(piece.length)
        return deferred

    def queueUrgent(self, byte: bytes) -> None:
        """
        Queue an urgent byte and announce it at once with OOB_PEND.
        """
        stream = self._stream
        # If nothing waits before it, the byte's own message has both flags.
        if (self.items or stream.buffer is not None) and stream.queuePair.pending is None:
            stream.queuePair.postControl(self._extensions.machine.notice(stream.queuePair.posted))
        self.items.append(Urgent(byte))
        self._queued(1)

    def _queued(self, count: int) -> None:
        self.size += count
        stream = self._stream
        stream.block()
        stream.cork()
        if self.size > stream.bufferSize:
            stream.filled()

    # -- sending

    def idle(self) -> bool:
        """
        Return whether nothing but Data is queued or in flight.
        """
        return not self.takes(0)

    def proceed(self) -> bool:
        """
        Send what can be sent now.

        @return: Whether nothing is left.
        """
        source = self._source
        stream = self._stream
        left = limits.MESSAGES_PER_FLUSH
        while stream.queuePair.path is not None:
            # An owed RdmaWrCompl belongs before the bytes that follow it in the stream.
            if stream.pendingControl is not None:
                return False
            if self._complete(source):
                continue
            if self._isBlocked(source):
                return False
            if not left:
                # Other connections get a turn.
                stream.cork()
                return False
            left -= 1
            item = self._next()
            if item is None:
                if self._closeTarget(source):
                    continue
                break
            if not self._send(source, item):
                return False
        # A DisConn goes behind what was sent in place, whose memory ends with the connection.
        return self.idle() and not self._sent

    def _next(self) -> PendingSend | SendBuffer | Urgent | None:
        for item in self.items:
            if not (isinstance(item, PendingSend) and item.offered):
                return item
        return None

    def _complete(self, source: SourceAdverts) -> bool:
        count = source.completed()
        if count is not None:
            # Sent after the WRITEs completed, though RC order alone would put the Send behind them (IBTA vol.
            # 1 9.5).
            self._stream.sendControl(MID.RDMA_WR_COMPL, RdmaWrCompl.layout.struct.pack(count))
            return True
        # A SinkCancelAck only if a SinkAvail was dropped without completion (OpenIB sdp_rcvd.c
        # sdp_rcvd_snk_cancel).
        due = source.cancelDone()
        if due:
            self._stream.sendControl(MID.SINK_CANCEL_ACK)
        return bool(due)

    def _isBlocked(self, source: SourceAdverts) -> bool:
        if self._retract and source.offers and source.cancelling is None:
            queuePair = self._stream.queuePair
            if queuePair.canPost():
                queuePair.postControl(self._extensions.machine.cancelOffers(queuePair.posted))
        if not source.offers:
            self._retract = False
        # IBTA vol. 1 annex A4: SrcAvailCancel covers all SrcAvails; nothing of the stream is sent until the
        # sink's answer.
        return self._retract or source.cancelling is not None

    def _closeTarget(self, source: SourceAdverts) -> bool:
        targets = source.targets
        # Only partly written ones: an untouched SinkAvail is consumed by the next message with payload.
        for target in targets:
            if not target.written:
                break
            target.closed = True
        return bool(targets and targets[0].closed and not targets[0].moving)

    def _send(self, source: SourceAdverts, item: PendingSend | SendBuffer | Urgent) -> bool:
        if isinstance(item, PendingSend) and not item.plain:
            if source.targets:
                return self._write(source, item)
            if self._pays(item):
                return self._offer(source, item)
            item.plain = True
        if isinstance(item, SendBuffer) and source.targets and item.size >= SDP_WRITE_LEAST:
            payload = item.takeAll()
            self.items[self.items.index(item)] = PendingSend(None, None, 0, memoryview(payload))
            return True
        if source.offers:
            # Urgent data goes as Data (IBTA vol. 1 annex A4), so the SrcAvails before it are cancelled.
            if isinstance(item, Urgent):
                self.retract()
                return True
            return False
        if source.targets and source.targets[0].written:
            return self._closeTarget(source)
        if isinstance(item, SendBuffer):
            return self._sendBuffer(item)
        return self._sendPlain(item)

    def retract(self) -> None:
        """
        Cancel all SrcAvails.
        """
        self._retract = True
        self._stream.cork()

    def _pays(self, item: PendingSend) -> bool:
        # Where the fabric can share memory but the peer cannot map this item's, a READ copies as often as
        # Data does, and costs a response as well.
        path = self._stream.queuePair.path
        if path is None or path.sendsInPlace:
            return False
        shares = path.fabric.traits.zeroCopy
        return not shares or item.memory is None or self._mayMap(item)

    @staticmethod
    def _mayMap(item: PendingSend) -> bool:
        # Only if all of the segment is being sent: a peer that maps it sees the whole.
        memory = item.memory
        return memory is not None and memory.segment is not None and len(item.view) == memory.length

    def _sendBuffer(self, item: SendBuffer) -> bool:
        stream = self._stream
        before = item.size
        # The stream's flush sends from its own buffer; what was gathered later waits meanwhile.
        waiting, stream.buffer = stream.buffer, item
        stream.flush()
        if stream.queuePair.path is None:
            return False
        stream.buffer = waiting
        self.size -= before - item.size
        if item.size:
            return False
        self.items.popleft()
        return True

    def _sendPlain(self, item: PendingSend | Urgent) -> bool:
        stream = self._stream
        queuePair, machine = stream.queuePair, self._extensions.machine
        if not queuePair.canPost():
            return False
        isInPlace = isinstance(item, PendingSend) and self._isInPlace(item)
        if isInPlace and not self._hasPlace():
            return False
        if isinstance(item, Urgent):
            count = 1
            header = machine.urgentHeader(queuePair.posted)
            payload: bytes | memoryview = item.byte
        else:
            count = min(item.left, stream.maxPayload, stream.longest)
            header = machine.header(count, queuePair.posted)
            payload = item.view[item.at : item.at + count]
        if header is None:
            return False
        reached = 0
        if isInPlace and isinstance(payload, memoryview):
            reached = self._postInPlace(header, payload, count)
        else:
            queuePair.postInline(header, payload, count)
        self.size -= count
        if isinstance(item, PendingSend):
            item.at += count
            if item.left:
                return True
            self.items.popleft()
            if reached:
                self._sent.append((reached, machine.sequence, item))
            else:
                self._finish(item)
        else:
            self.items.popleft()
        return True

    def _isInPlace(self, item: PendingSend) -> bool:
        path = self._stream.queuePair.path
        return path is not None and path.sendsInPlace and item.region is not None

    def _hasPlace(self) -> bool:
        queuePair = self._stream.queuePair
        path = queuePair.path
        if path is None or queuePair.pending:
            return False
        if path.hasPlace():
            return True
        path.wantSpace(queuePair)
        return False

    def _postInPlace(self, header: bytes, payload: memoryview, count: int) -> int:
        # Returns the position whose acknowledgement ends the adapter's use of the memory.
        queuePair = self._stream.queuePair
        path = queuePair.path
        assert path is not None
        path.postInPlace(queuePair.sends | queuePair.remote, header, payload, count)
        reached = path.position()
        path.track((reached, self))
        return reached

    def acknowledged(self, position: int) -> None:
        """
        Memory that was sent in place up to a position may be changed again; the application hears it at the
        end of the batch.
        """
        self._reached = position
        self._stream.cork()

    def tell(self) -> None:
        """
        Report what was sent in place, and is done.
        """
        sent = self._sent
        while sent and sent[0][0] <= self._reached:
            self._finish(sent.popleft()[2])

    def conclude(self) -> None:
        """
        Report what the peer has received of that, as the connection ends: the adapter may say so only after
        the peer's end.
        """
        sent = self._sent
        while sent and sent[0][1] <= self.received:
            self._finish(sent.popleft()[2])

    # -- SrcAvails

    def _offer(self, source: SourceAdverts, item: PendingSend) -> bool:
        stream = self._stream
        queuePair, machine = stream.queuePair, self._extensions.machine
        # With all bytes inline there would be nothing to READ, hence no RdmaRdCompl.
        if source.mode is Mode.BUFFERED or item.left <= SDP_CARRIED:
            item.plain = True
            return True
        if not source.mayOffer() or not queuePair.canPost():
            return False
        # Between SrcAvails only: a change with some outstanding would void them.
        if not source.offers and source.mayPipeline() and self._wantsPipeline(source):
            return queuePair.postControl(
                machine.changeMode(Transition.COMBINED_TO_PIPELINED, queuePair.posted)
            )
        if machine.limit - machine.sequence < 3:
            return False
        try:
            exposed, start = self._expose(item)
        except HCAError:
            item.plain = True
            return True
        carried = b""
        if source.mode is Mode.COMBINED:
            carried = bytes(item.view[item.at : item.at + SDP_CARRIED])
        # In Combined mode the SrcAvail carries the first bytes; the sink READs only the rest.
        message = machine.sourceAvailable(
            item, item.left, exposed.key, exposed.address + start, carried, queuePair.posted
        )
        assert message is not None
        item.exposed = exposed
        item.offered = True
        item.at += len(carried)
        self.size -= len(carried)
        queuePair.postInline(message, b"", 0)
        return True

    def _wantsPipeline(self, source: SourceAdverts) -> bool:
        # OpenIB asks with two buffers queued (SDP_INET_SEND_MODE in sdp_dev.h), and its sink always sets
        # REQ_PIPE.
        if source.pipelining:
            return True
        several = [item for item in self.items if isinstance(item, PendingSend) and not item.plain]
        return len(several) > 1

    def _expose(self, item: PendingSend) -> tuple[MemoryRegion, int]:
        # A registration of its own: its R_Key is revoked when this one SrcAvail is over, whatever the peer
        # has kept.
        keyed = self._extensions.openRDMA()
        keyed.begin()
        memory = item.memory
        if memory is not None and self._mayMap(item):
            exposed = keyed.expose(memory.view, REMOTE_READ, memory.segment)
            return exposed, item.start + item.at
        return keyed.expose(item.view[item.at :], REMOTE_READ), 0

    def wasRead(self, item: PendingSend, count: int, over: bool) -> None:
        """
        Process an RdmaRdCompl for an item.

        @param over: Whether the item is complete.
        """
        if item not in self.items:
            # Discarded by an abort whose reset was not sent yet.
            return
        item.at += count
        self.size -= count
        if over:
            self.items.remove(item)
            self._finish(item)

    def unoffer(self, offers: list[SentSrcAvail], plain: bool) -> None:
        """
        Process SrcAvails that ended before they were read completely.

        @param plain: Whether the rest goes as Data.
        """
        for offer in offers:
            item = offer.user
            item.offered = False
            item.plain = plain
            self._extensions.hide(item)
        source = self._source
        if plain and source.offers and source.cancelling is None:
            # Data is illegal while the later SrcAvails are outstanding.
            self._retract = True

    # -- RDMA WRITE

    def _write(self, source: SourceAdverts, item: PendingSend) -> bool:
        target = next((each for each in source.targets if not each.closed), None)
        if target is None:
            return False
        keyed = self._extensions.openRDMA()
        # The work queue has room for so many transfers (StreamRDMA.begin).
        if keyed.moving >= limits.SDP_TRANSFERS:
            return False
        if item.memory is None:
            try:
                item.memory = keyed.expose(item.view, 0)
            except HCAError:
                item.plain = True
                return True
        count = min(target.length - target.written, item.left, limits.MESSAGE_BYTES)
        piece = SGE(item.memory.address + item.start + item.at, count, item.memory.localKey)
        address = target.address + target.written
        target.written += count
        target.moving += 1
        # IBTA vol. 1 annex A4: the source may complete a SinkAvail early when less than a message's payload
        # is left.
        if target.length - target.written < self._stream.maxPayload:
            target.closed = True
        item.at += count
        item.moving += 1
        self.size -= count
        if not item.left:
            self.items.popleft()
            self.writing.append(item)
        keyed.write(piece, address, target.key, lambda: self._wrote(target, item))
        return True

    def _wrote(self, target: ReceivedSinkAvail, item: PendingSend) -> None:
        target.moving -= 1
        item.moving -= 1
        if not item.left and not item.moving and item in self.writing:
            self.writing.remove(item)
            self._finish(item)

    # -- end of the connection

    def _release(self, item: PendingSend) -> Deferred[None] | None:
        self._extensions.hide(item)
        if item.region is not None:
            item.region.unuse()
        elif item.memory is not None and self._extensions.keyed is not None:
            self._extensions.keyed.hide(item.memory)
        item.memory = None
        deferred, item.deferred = item.deferred, None
        return deferred

    def _finish(self, item: PendingSend) -> None:
        deferred = self._release(item)
        if deferred is not None:
            deferred.callback(None)

    def unfinished(self) -> bool:
        """
        Return whether SrcAvails or WRITEs are outstanding.
        """
        return bool(self.writing or self._source.offers)

    def isQuiet(self) -> bool:
        """
        Return whether nothing waits to be sent, or to be done.
        """
        return not (self.items or self.size or self._sent or self.unfinished())

    def discard(self) -> list[Deferred[None]]:
        """
        Drop everything queued.

        @return: The Deferreds of what was dropped.
        """
        waiting = []
        for item in (*(item for _, _, item in self._sent), *self.writing, *self.items):
            if isinstance(item, PendingSend):
                deferred = self._release(item)
                if deferred is not None:
                    waiting.append(deferred)
        self._sent.clear()
        self.items.clear()
        self.writing.clear()
        self.size = 0
        return waiting
