"""
The receiving half of zero copy: READs of SrcAvails, and SinkAvails for the application's buffers (IBTA vol. 1
annex A4).
"""

from __future__ import annotations

import io
from collections import deque
from typing import TYPE_CHECKING, Any, cast

from twisted_ib.errors import HCAError, SDPError
from twisted_ib.hca.memory.access import LOCAL_WRITE, REMOTE_WRITE
from twisted_ib.hca.memory.memory import MemoryRegion
from twisted_ib.hca.queues.receives import SGE
from twisted_ib.interfaces import ISDPBufferedProtocol
from twisted_ib.internet.region import RDMARegion
from twisted_ib.sdp.protocol.modes import Mode
from twisted_ib.sdp.protocol.sinkadverts import ReceivedSrcAvail, SinkAdverts
from twisted_ib.sdp.protocol.wire import MID, Flags, RdmaRdCompl

if TYPE_CHECKING:
    from twisted_ib.sdp.extensions import Extensions
    from twisted_ib.sdp.transport import SDPTransport

#: Bytes of one READ for C{dataReceived}.
SDP_READ = 256 * 1024
#: Bytes of one READ into registered memory.
SDP_READ_REGISTERED = 1024 * 1024
#: An RdmaRdCompl is sent after so many bytes, or at the end.
SDP_REPORT = 1024 * 1024
#: A READ goes into an application buffer that has so many bytes, or all that is left.
SDP_PLACE_LEAST = 16 * 1024

_REQ_PIPE = Flags.REQ_PIPE.value


class ReceiveBuffer:
    """
    A part of registered memory into which the application wants stream bytes (L{ISDPBufferedProtocol}).

    @ivar protocol: The protocol that supplied it.
    @ivar offset: Its offset in C{region}.
    @ivar memory: The memory region; C{view} is the part's bytes.
    @ivar exposed: The registration that the peer may write to, or L{None}.
    """

    __slots__ = ("exposed", "memory", "offset", "protocol", "region", "view")

    def __init__(self, protocol: Any, region: RDMARegion, piece: SGE) -> None:
        self.protocol = protocol
        self.region = region
        self.memory: MemoryRegion = region.use()
        self.offset = offset = piece.address - region.address
        self.view = self.memory.view[offset : offset + piece.length]
        self.exposed: MemoryRegion | None = None

    def piece(self, count: int) -> SGE:
        """
        Return its first bytes as a scatter/gather element.
        """
        return SGE(self.memory.address + self.offset, count, self.memory.localKey)


class FilledBuffer:
    """
    Bytes received into a place and not reported to the application.
    """

    __slots__ = ("count", "place")

    def __init__(self, place: ReceiveBuffer, count: int) -> None:
        self.place = place
        self.count = count


class ReadInFlight:
    """
    A READ in flight.

    @ivar place: The target, or L{None} if it is C{fresh}.
    @ivar fresh: A BytesIO of C{count} bytes, whose value needs no copy.
    @ivar memory: The registration of C{fresh}.
    """

    __slots__ = ("advert", "count", "fresh", "memory", "place")

    def __init__(self, advert: ReceivedSrcAvail, count: int, place: ReceiveBuffer | None) -> None:
        self.advert = advert
        self.count = count
        self.place = place
        self.fresh: io.BytesIO | None = None
        self.memory: MemoryRegion | None = None


class ZeroCopyReceive:
    """
    The receiving half of L{Extensions}.

    @ivar places: Unused application buffers, in stream order.
    @ivar readings: READs in flight, in stream order.
    """

    __slots__ = ("_back", "_due", "_extensions", "_known", "_stream", "_told", "_wants", "places", "readings")

    def __init__(self, extensions: Extensions) -> None:
        self._extensions = extensions
        self._stream = cast("SDPTransport", extensions.stream)
        self._back = self._due = self._told = 0
        self._known: object = None
        self._wants = False
        self.places: deque[ReceiveBuffer] = deque()
        self.readings: deque[ReadInFlight] = deque()

    @property
    def _sink(self) -> SinkAdverts:
        return self._extensions.machine.zero.sink

    def buffered(self) -> bool:
        """
        Return whether the protocol supplies buffers (L{ISDPBufferedProtocol}).
        """
        protocol = self._stream.protocol
        # The protocol can change, as with startTLS or policies; the interface test is worth one per protocol.
        if protocol is not self._known:
            self._known = protocol
            self._wants = ISDPBufferedProtocol.providedBy(protocol)
            if self._wants:
                self._extensions.machine.zero.places = True
        return self._wants

    # -- places

    def _readsInto(self) -> bool:
        # If other bytes arrive while a place is being read into, that READ is void, and its place comes
        # before any other.
        return bool(self.readings) and self.readings[-1].place is not None

    def put(self, data: bytes) -> None:
        """
        Deliver stream bytes, at least one, into application buffers if there are some.
        """
        stream = self._stream
        if not self.buffered():
            # The protocol takes no buffers any more; those that the peer cannot write to are returned.
            while len(self.places) > len(self._sink.places):
                self.tell(self.places.popleft(), 0)
        while self.buffered() and not self._readsInto():
            place = self.places.popleft() if self.places else self._ask()
            if place is None:
                break
            count = min(len(data), len(place.view))
            place.view[:count] = data[:count]
            self.tell(place, count)
            if count == len(data):
                return
            data = data[count:]
            # bufferFilled may have closed the connection or paused it.
            if not stream.attached:
                return
            if not stream.reading:
                stream.holdAgain(data)
                return
        if stream.attached:
            stream.deliver(data)

    def _ask(self) -> ReceiveBuffer | None:
        stream = self._stream
        if not self.buffered() or stream.queuePair.path is None:
            return None
        # Through _tell: an exception of getBuffer ends the connection, as one of dataReceived does.
        found: list[ReceiveBuffer | None] = []
        stream._tell(lambda: found.append(self._place(stream.protocol)))
        return found[0] if found and stream.queuePair.path is not None else None

    def _place(self, protocol: Any) -> ReceiveBuffer | None:
        answer = protocol.getBuffer()
        if answer is None:
            return None
        region, offset, length = answer
        piece = self._extensions.openRDMA().regions.piece(region, offset, length)
        place = ReceiveBuffer(protocol, region, piece)
        # An empty place accepts no bytes: L{put} would ask for another one for ever.
        if not piece.length or not place.memory.access & LOCAL_WRITE:
            region.unuse()
            raise ValueError(f"nothing can be received into {piece.length} bytes of {region!r}")
        return place

    def tell(self, place: ReceiveBuffer, count: int) -> None:
        """
        Return a place to the application, with C{count} bytes in it.
        """
        self._extensions.hide(place)
        place.region.unuse()
        stream = self._stream
        if stream.attached:
            stream._tell(lambda: place.protocol.bufferFilled(place.region, place.offset, count))

    def filled(self, place: ReceiveBuffer, count: int) -> None:
        """
        Process bytes that the peer has written to the oldest place.
        """
        self.places.remove(place)
        # Revoked before the application sees the bytes, so that the peer cannot change them later.
        self._extensions.hide(place)
        self._arrived(FilledBuffer(place, count))

    def finish(self, placed: FilledBuffer) -> None:
        """
        Report bytes received into a place; if another protocol has taken over meanwhile, they are delivered
        to it.
        """
        place, count = placed.place, placed.count
        if place.protocol is self._stream.protocol or not count:
            self.tell(place, count)
            return
        data = bytes(place.view[:count])
        self.tell(place, 0)
        self.put(data)

    def withdrawn(self, places: list[ReceiveBuffer], back: bool) -> None:
        """
        Process SinkAvails that the peer will not write to.

        @param back: Whether the buffers return to the application.
        """
        for place in places:
            self._extensions.hide(place)
        for place in places if back else ():
            # A callback for another place may have ended the connection.
            if place in self.places:
                self.places.remove(place)
                self._arrived(FilledBuffer(place, 0))

    def ended(self) -> None:
        """
        Revoke all SinkAvails after the peer's DisConn.
        """
        self._sink.ended()
        for place in self.places:
            self._extensions.hide(place)

    def returnPlaces(self) -> None:
        """
        Return all buffers to the application: nothing more arrives.
        """
        self.withdrawn(list(self.places), True)

    # -- progress

    def proceed(self) -> None:
        """
        Send reports, READs and SinkAvails as far as possible.
        """
        stream = self._stream
        if stream.queuePair.path is None:
            return
        self._report()
        dropped = self._extensions.machine.sourceCancelDone()
        if dropped:
            stream.sendControl(MID.SEND_SM)
        elif dropped is not None:
            # While the cancel was in progress MSeqAck was held back; announce the full value now.
            stream._credit()
        sink = self._sink
        # Without responder resources at the peer there are no READs: everything has to come as Data.
        if stream.leaving() or not stream.reads or sink.refusing:
            self._refuse(sink)
        elif stream.reading and stream.held is None and stream.attached:
            self._read(sink)
            self._invite(sink)
        # The protocol was replaced by one that supplies no buffers, as with startTLS.
        if sink.places and not sink.retracting and stream.attached and not self.buffered():
            self._retract()

    def _read(self, sink: SinkAdverts) -> None:
        stream = self._stream
        # IBTA vol. 1 9.7.4: more READs than the responder's resources would be NAKed as invalid requests.
        while len(self.readings) < stream.reads:
            if sink.pick(1) is None:
                return
            place = self._toRead(sink)
            most = SDP_READ if place is None else min(len(place.view), SDP_READ_REGISTERED)
            picked = sink.pick(most)
            if picked is None or stream.queuePair.path is None:
                return
            if place is not None:
                self.places.popleft()
            advert, count = picked
            reading = ReadInFlight(advert, count, place)
            keyed = self._extensions.openRDMA()
            try:
                piece = self._target(reading)
            # No memory can be registered; SendSm makes the source send the bytes as Data (IBTA vol. 1 annex
            # A4).
            except HCAError:
                self._refuse(sink)
                return
            address = advert.address + advert.asked
            advert.asked += count
            advert.moving += 1
            self.readings.append(reading)
            keyed.read(piece, address, advert.key, self._arrive)

    def _refuse(self, sink: SinkAdverts) -> None:
        # All of them: bytes behind a refused SrcAvail must not be read before those of the refused one
        # arrive.
        while sink.refuse():
            self._stream.sendControl(MID.SEND_SM)

    def _toRead(self, sink: SinkAdverts) -> ReceiveBuffer | None:
        # READs in flight into fresh memory are copied into places when they complete; later bytes must not
        # take those.
        if self.readings and self.readings[-1].place is None:
            return None
        if not self.places:
            place = self._ask()
            if place is not None:
                self.places.append(place)
        if not self.places:
            return None
        picked = sink.pick(SDP_PLACE_LEAST)
        place = self.places[0]
        return place if picked is not None and len(place.view) >= picked[1] else None

    def _target(self, reading: ReadInFlight) -> SGE:
        if reading.place is not None:
            self._extensions.hide(reading.place)
            return reading.place.piece(reading.count)
        # CPython's BytesIO.getvalue returns its own buffer as bytes: no copy for dataReceived.
        reading.fresh = io.BytesIO(bytes(reading.count))
        memory = self._extensions.openRDMA().expose(reading.fresh.getbuffer(), LOCAL_WRITE)
        reading.memory = memory
        return SGE(memory.address, reading.count, memory.localKey)

    def _arrive(self) -> None:
        reading = self.readings.popleft()
        advert, count, place = reading.advert, reading.count, reading.place
        data: bytes | FilledBuffer = b""
        if reading.fresh is not None:
            assert reading.memory is not None
            self._extensions.openRDMA().hide(reading.memory)
            data = reading.fresh.getvalue()
        elif place is not None:
            data = FilledBuffer(place, count)
        sink = self._sink
        if advert not in sink.adverts:
            # The source has voided the SrcAvail and sends the bytes in another way.
            if place is not None:
                self.places.insert(self._back, place)
                self._back = self._back + 1 if self.readings else 0
            return
        sink.arrived(advert, count)
        self._due += count
        # Few reports: each RdmaRdCompl costs a credit and a message (several per SrcAvail are legal).
        if advert.done == advert.length or self._due >= SDP_REPORT:
            self._report()
        self._arrived(data)

    def _report(self) -> None:
        due, self._due = self._due, 0
        if due:
            sink = self._sink
            # IBTA vol. 1 annex A4 CA4-8: REQ_PIPE is legal in RdmaRdCompl only.  A peer with MaxAdverts 1 has
            # no use for it.
            asks = sink.mode is Mode.COMBINED and sink.most > 1
            self._stream.sendControl(
                MID.RDMA_RD_COMPL, RdmaRdCompl.layout.struct.pack(due), _REQ_PIPE if asks else 0
            )
            self._told = self._extensions.machine.sequence + (self._stream.pendingControl is not None)

    def checkReports(self, acknowledged: int) -> None:
        """
        Check a ModeChange that voids the SrcAvails being read.

        @param acknowledged: Its MSeqAck.
        @raise SDPError: Bytes were read that the source does not know to be read.
        """
        # The source offers again from where the last RdmaRdCompl that it has received ends.  Bytes read
        # beyond that would arrive twice.  (OpenIB sdp_rcvd.c sdp_rcvd_mode_change leaves the question open in
        # a comment.)
        if self.unread() and (self._due or self._told > acknowledged):
            raise SDPError("ModeChange while a SrcAvail is being read")

    def _arrived(self, what: bytes | FilledBuffer) -> None:
        stream = self._stream
        if not stream.reading or stream.held is not None:
            stream.hold(what)
        elif isinstance(what, FilledBuffer):
            self.finish(what)
        else:
            self.put(what)

    # -- SinkAvails

    def _invite(self, sink: SinkAdverts) -> None:
        stream = self._stream
        machine = self._extensions.machine
        path = stream.queuePair.path
        if path is None or path.sendsInPlace:
            # Its peers get no keys.
            return
        payload = stream.messageBytes
        # Not while READs are in flight: their bytes come first in the stream, perhaps into these buffers.
        while sink.mayAsk(payload, payload) and not self.readings and self.buffered():
            at = len(sink.places)
            if at == len(self.places):
                place = self._ask()
                if place is None:
                    return
                self.places.append(place)
                if stream.queuePair.path is None or not stream.reading:
                    return
            place = self.places[at]
            length = len(place.view)
            # Smaller than the source's largest message is illegal (OpenIB sdp_rcvd.c sdp_rcvd_snk_avail);
            # CA4-82: three credits.
            if length < payload or not stream.queuePair.canPost() or machine.limit - machine.sequence < 3:
                return
            keyed = self._extensions.openRDMA()
            keyed.begin()
            try:
                # IBTA vol. 1 10.6.3: remote write requires local write.
                exposed = keyed.expose(place.view, LOCAL_WRITE | REMOTE_WRITE)
            except HCAError:
                return
            message = machine.sinkAvailable(
                place, length, exposed.key, exposed.address, stream.queuePair.posted
            )
            assert message is not None
            place.exposed = exposed
            stream.queuePair.postInline(message, b"", 0)

    def _retract(self) -> None:
        queuePair = self._stream.queuePair
        if queuePair.canPost():
            queuePair.postControl(self._extensions.machine.cancelPlaces(queuePair.posted))

    # -- end of the connection

    def unread(self) -> bool:
        """
        Return whether SrcAvails are outstanding.
        """
        return bool(self._sink.adverts)

    def close(self) -> None:
        """
        Release all buffers: the connection has ended.
        """
        for place in self.places:
            place.region.unuse()
        for reading in self.readings:
            if reading.place is not None:
                reading.place.region.unuse()
        self.places.clear()
        self.readings.clear()
