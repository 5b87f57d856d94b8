"""
What a stream receives that is not just Data for C{dataReceived}: what it may read from the
peer's memory, and what goes to places of the application.
"""

from __future__ import annotations

import io
from collections import deque
from typing import TYPE_CHECKING, Any

from twisted_ib.errors import HCAError, SDPError
from twisted_ib.hca.memory.memory import LOCAL_WRITE, REMOTE_WRITE, MemoryRegion
from twisted_ib.hca.queues.requests import SGE
from twisted_ib.interfaces import ISDPBufferedProtocol
from twisted_ib.internet.region import RDMARegion
from twisted_ib.sdp.protocol.modes import Mode
from twisted_ib.sdp.protocol.sinkadverts import Advert, SinkAdverts
from twisted_ib.sdp.protocol.wire import MID, Flags, RdmaRdCompl

if TYPE_CHECKING:
    from twisted_ib.sdp.extensions import Extensions

#: Bytes that one READ brings for C{dataReceived}.
SDP_READ = 256 * 1024
#: The same into registered memory.
SDP_READ_REGISTERED = 1024 * 1024
#: What was read is reported when it is this much, or all.
SDP_REPORT = 1024 * 1024
#: A READ goes to a place of the application if that has so many bytes, or all that is left.
SDP_PLACE_LEAST = 16 * 1024

_REQ_PIPE = Flags.REQ_PIPE.value


class Place:
    """
    A part of registered memory where the application wants bytes of the stream.

    @ivar protocol: Who wants them.
    @ivar region: The memory.
    @ivar offset: Where in it.
    @ivar view: The bytes there.
    @ivar memory: What is registered.
    @ivar exposed: What the peer may write, or L{None}.
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
        Name its first bytes.
        """
        return SGE(self.memory.address + self.offset, count, self.memory.localKey)


class Placed:
    """
    Bytes that came to a place, and that the application has not heard of.

    @ivar place: Where.
    @ivar count: How many.
    """

    __slots__ = ("count", "place")

    def __init__(self, place: Place, count: int) -> None:
        self.place = place
        self.count = count


class Reading:
    """
    A READ on its way.

    @ivar advert: Of what.
    @ivar count: How many bytes.
    @ivar place: Where to, or L{None} if it goes to C{fresh}.
    @ivar fresh: A file of that many bytes in memory, whose value is no copy.
    @ivar memory: What of it is registered.
    """

    __slots__ = ("advert", "count", "fresh", "memory", "place")

    def __init__(self, advert: Advert, count: int, place: Place | None) -> None:
        self.advert = advert
        self.count = count
        self.place = place
        self.fresh: io.BytesIO | None = None
        self.memory: MemoryRegion | None = None


class ZeroCopyReceive:
    """
    The receiving half of an L{Extensions}.

    @ivar places: Those that nothing came to, in the order of the stream.
    @ivar readings: READs on their way, in the order of the stream.
    """

    __slots__ = ("_back", "_due", "_extensions", "_known", "_stream", "_told", "_wants", "places", "readings")

    def __init__(self, extensions: Extensions) -> None:
        self._extensions = extensions
        self._stream: Any = extensions.stream
        self._back = self._due = self._told = 0
        self._known: Any = None
        self._wants = False
        self.places: deque[Place] = deque()
        self.readings: deque[Reading] = deque()

    @property
    def _sink(self) -> SinkAdverts:
        return self._extensions.machine.zero.sink

    def buffered(self) -> bool:
        """
        Whether the protocol has places for what comes.
        """
        protocol = self._stream.protocol
        if protocol is not self._known:
            self._known = protocol
            self._wants = ISDPBufferedProtocol.providedBy(protocol)
            if self._wants:
                self._extensions.machine.zero.places = True
        return self._wants

    # -- places

    def _readsInto(self) -> bool:
        """
        Whether a place is being read into.  When other bytes come then, that is void, and the
        place still comes before any other.
        """
        return bool(self.readings) and self.readings[-1].place is not None

    def put(self, data: bytes) -> None:
        """
        Hand stream bytes to the application: in its places if it has some.

        @param data: Not empty.
        """
        stream = self._stream
        if not self.buffered():
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
            if not stream.attached:
                return
            if not stream.reading:
                stream.holdAgain(data)
                return
        if stream.attached:
            stream.deliver(data)

    def _ask(self) -> Place | None:
        """
        Ask the protocol for a place; it comes behind all others.
        """
        stream = self._stream
        if not self.buffered() or stream.queuePair.path is None:
            return None
        found: list[Any] = []
        stream._tell(lambda: found.append(self._place(stream.protocol)))
        return found[0] if found and stream.queuePair.path is not None else None

    def _place(self, protocol: Any) -> Place | None:
        """
        What the protocol says.

        @raise Exception: It says what is not possible.
        """
        answer = protocol.getBuffer()
        if answer is None:
            return None
        region, offset, length = answer
        piece = self._extensions.openRDMA().regions.piece(region, offset, length)
        place = Place(protocol, region, piece)
        if not piece.length or not place.memory.access & LOCAL_WRITE:
            region.unuse()
            raise ValueError(f"nothing can be received into {piece.length} bytes of {region!r}")
        return place

    def tell(self, place: Place, count: int) -> None:
        """
        Tell the application of what came to a place.
        """
        self._hide(place)
        place.region.unuse()
        stream = self._stream
        if stream.attached:
            stream._tell(lambda: place.protocol.bufferFilled(place.region, place.offset, count))

    def _hide(self, place: Place) -> None:
        """
        The peer may not write to a place any more.
        """
        exposed, place.exposed = place.exposed, None
        keyed = self._extensions.keyed
        if exposed is not None and keyed is not None:
            keyed.hide(exposed)

    def filled(self, place: Place, count: int) -> None:
        """
        The peer has written to the oldest place.
        """
        self.places.remove(place)
        self._hide(place)
        self._arrived(Placed(place, count))

    def finish(self, placed: Placed) -> None:
        """
        Tell of bytes that came to a place.  If another protocol has taken over meanwhile, they
        are its own.
        """
        place, count = placed.place, placed.count
        if place.protocol is self._stream.protocol or not count:
            self.tell(place, count)
            return
        data = bytes(place.view[:count])
        self.tell(place, 0)
        self.put(data)

    def withdrawn(self, places: list[Place], back: bool) -> None:
        """
        The peer writes to places no more.

        @param back: Whether they are the application's again.
        """
        for place in places:
            self._hide(place)
        for place in places if back else ():
            if place in self.places:  # Who heard of another may have ended the connection.
                self.places.remove(place)
                self._arrived(Placed(place, 0))

    def ended(self) -> None:
        """
        The peer sends no more, nor writes.
        """
        self._sink.ended()
        for place in self.places:
            self._hide(place)

    def returnPlaces(self) -> None:
        """
        Nothing more comes to any place: all are the application's again.
        """
        self.withdrawn(list(self.places), True)

    # -- going on

    def proceed(self) -> None:
        """
        Do what can be done now.
        """
        stream = self._stream
        if stream.queuePair.path is None:
            return
        self._report()
        dropped = self._extensions.machine.sourceCancelDone()
        if dropped:
            stream._control(MID.SEND_SM)
        elif dropped is not None:
            stream._credit()  # The last message could not acknowledge all.
        sink = self._sink
        if stream.leaving() or not stream.reads or sink.refusing:
            self._refuse(sink)
        elif stream.reading and stream.held is None and stream.attached:
            self._read(sink)
            self._invite(sink)
        if sink.places and not sink.retracting and stream.attached and not self.buffered():
            self._retract()

    def _read(self, sink: SinkAdverts) -> None:
        """
        Read what is offered, as deep as the peer permits.
        """
        stream = self._stream
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
            reading = Reading(advert, count, place)
            keyed = self._extensions.openRDMA()
            try:
                piece = self._target(reading)
            except HCAError:
                self._refuse(sink)
                return
            address = advert.address + advert.asked
            advert.asked += count
            advert.moving += 1
            self.readings.append(reading)
            keyed.read(piece, address, advert.key, self._arrive)

    def _refuse(self, sink: SinkAdverts) -> None:
        """
        Have all that is offered sent as Data: none may be read before one that is refused.
        """
        while sink.refuse():
            self._stream._control(MID.SEND_SM)

    def _toRead(self, sink: SinkAdverts) -> Place | None:
        """
        The place to read into, if there is one and it pays.  While something is read that is
        copied to places when it comes, these are not for what comes behind it.
        """
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

    def _target(self, reading: Reading) -> SGE:
        """
        Where a READ goes.

        @raise HCAError: No more memory can be registered.
        """
        if reading.place is not None:
            self._hide(reading.place)
            return reading.place.piece(reading.count)
        reading.fresh = io.BytesIO(bytes(reading.count))
        memory = self._extensions.openRDMA().expose(reading.fresh.getbuffer(), LOCAL_WRITE)
        reading.memory = memory
        return SGE(memory.address, reading.count, memory.localKey)

    def _arrive(self) -> None:
        reading = self.readings.popleft()
        advert, count, place = reading.advert, reading.count, reading.place
        data: Any = None
        if reading.fresh is not None:
            assert reading.memory is not None
            self._extensions.openRDMA().hide(reading.memory)
            data = reading.fresh.getvalue()
        elif place is not None:
            data = Placed(place, count)
        sink = self._sink
        if advert not in sink.adverts:
            # The peer has taken it back and sends it in another way.
            if place is not None:
                self.places.insert(self._back, place)
                self._back = self._back + 1 if self.readings else 0
            return
        sink.arrived(advert, count)
        self._due += count
        if advert.done == advert.length or self._due >= SDP_REPORT:
            self._report()
        self._arrived(data)

    def _report(self) -> None:
        due, self._due = self._due, 0
        if due:
            sink = self._sink
            asks = sink.mode is Mode.COMBINED and sink.most > 1
            self._stream._control(MID.RDMA_RD_COMPL, RdmaRdCompl.layout.pack(due), _REQ_PIPE if asks else 0)
            self._told = self._extensions.machine.sequence + (self._stream.owes is not None)

    def checkReports(self, acknowledged: int) -> None:
        """
        A ModeChange came, which may take back what we are reading: what the peer offers again
        begins behind what it knows to be read.

        @param acknowledged: Its MSeqAck.
        @raise SDPError: More was read, and would come twice.
        """
        if self.unread() and (self._due or self._told > acknowledged):
            raise SDPError("ModeChange while a SrcAvail is being read")

    def _arrived(self, what: Any) -> None:
        stream = self._stream
        if not stream.reading or stream.held is not None:
            stream.hold(what)
        elif what.__class__ is Placed:
            self.finish(what)
        else:
            self.put(what)

    # -- places that the peer may write to

    def _invite(self, sink: SinkAdverts) -> None:
        stream = self._stream
        machine = self._extensions.machine
        payload = stream.messageBytes
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
            if length < payload or not stream.queuePair.canPost() or machine.limit - machine.sequence < 3:
                return
            keyed = self._extensions.openRDMA()
            keyed.begin()
            try:
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
        """
        Take the places back: nobody wants bytes there any more.
        """
        queuePair = self._stream.queuePair
        if queuePair.canPost():
            message = self._extensions.machine.cancelPlaces(queuePair.posted)
            if message is not None:
                queuePair.postInline(message, b"", 0)

    # -- ends

    def unread(self) -> bool:
        """
        Whether the peer offers what is not read.
        """
        return bool(self._sink.adverts)

    def close(self) -> None:
        """
        The connection is over.
        """
        for place in self.places:
            place.region.unuse()
        for reading in self.readings:
            if reading.place is not None:
                reading.place.region.unuse()
        self.places.clear()
        self.readings.clear()
