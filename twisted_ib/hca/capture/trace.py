"""
Capture of a fabric: observes its paths, and its link or its TCP connections
(L{twisted_ib.hca.capture.streamtrace}).

The path classes of a traced fabric of records are replaced by subclasses: a record is shown after the
medium has accepted it, and a tap in front of the receiver shows what arrives.  A fabric that is not traced
pays nothing.

Between two HCAs that write to the same capture only posted records are shown, since each would appear twice.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from zope.interface import implementer

from twisted_ib.errors import WireError
from twisted_ib.hca.base.operation import (
    GSI_QPN,
    OPERATION_MASK,
    REFERENCE,
    REFUSAL,
    RESPONSES,
    RESUME,
    SOLICITED,
    isDatagram,
)
from twisted_ib.hca.base.traits import LinkLayer
from twisted_ib.hca.capture.capture import Capture
from twisted_ib.hca.capture.flow import Flow
from twisted_ib.hca.capture.framing import Framing, LocalFraming, RoutedFraming
from twisted_ib.hca.capture.streamtrace import TracedLink, TracedStream
from twisted_ib.hca.fabric.base.link import IFabricObserver
from twisted_ib.hca.fabric.base.path import Refusing
from twisted_ib.hca.queues.scatter import payload
from twisted_ib.hca.queues.streamqueuepair import RecordReceiver
from twisted_ib.hca.wire import headers
from twisted_ib.hca.wire.grh import HEADER_BYTES
from twisted_ib.hca.wire.headers import MAD_BYTES, QPN_MASK
from twisted_ib.hca.wire.opcodes import ACKNOWLEDGE, MTU_BYTES, OPCODES, UNRELIABLE
from twisted_ib.hca.wire.packet import DEFAULT_PARTITION

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces.roles import BoundQueuePair, Buffer, Segment
    from twisted_ib.hca.fabric.base.path import RecordPath as _Path
    from twisted_ib.hca.memory.memory import MemoryRegion
else:
    _Path = object

_LONGEST_MTU: Final = max(MTU_BYTES.values())


@implementer(IFabricObserver)
class Trace:
    """
    The trace of one HCA.

    @ivar framing: of its packets.
    @ivar interface: the number of its interface in the capture.
    """

    def __init__(self, capture: Capture, fabric: Any, name: str) -> None:
        self.capture = capture
        self.fabric = fabric
        isLocal = fabric.traits.linkLayer is LinkLayer.INFINIBAND
        self.framing: Framing = LocalFraming(fabric.lidOf) if isLocal else RoutedFraming()
        self.interface = capture.interface(name, fabric.guid, self.framing)
        fabric.trace(self)

    def tracedPaths(self, base: Any) -> Any:
        return type("TracedPath", (_TracedPath, base), {"trace": self})

    def tracedLink(self, link: Any) -> TracedLink:
        return TracedLink(link, self.capture, self.interface)

    def tracedStream(self, stream: Any, isInitiator: bool, leftover: bytes) -> Any:
        try:
            return TracedStream(stream, isInitiator, self.capture, self.interface, leftover)
        except OSError:
            return stream  # The peer has reset it: there is nothing to show.

    def tracedMAD(self, isOutbound: bool, packet: Any) -> None:
        capture, fabric = self.capture, self.fabric
        source = fabric.guid if isOutbound else fabric.route(packet.slid) or packet.slid
        if capture.closed or (not isOutbound and source in capture.guids):
            return
        with capture.lock:
            try:
                capture.passed((self.interface, isOutbound), source, packet)
            except WireError:
                pass  # A program that is attached from outside may say any number of a queue pair.
            except Exception as error:
                capture.stop(error)

    def partition(self, queuePair: BoundQueuePair | None, path: Any, remote: int, isOwn: bool) -> int:
        """
        @param queuePair: of a connection, or L{None}.
        @param remote: the number of that of the peer.
        @return: the P_Key of packets on a wire of this HCA or, if not C{isOwn}, of the peer.
        """
        if queuePair is None or not self.framing.hasPartitions:
            return DEFAULT_PARTITION
        mine = queuePair.partition
        # The peer tells its own soon.
        found: int = mine if isOwn else path.members.get(remote, mine)
        return found


class PathTrace:
    """
    The trace of one path.

    @ivar segments: number -> memory segment that was offered to the peer.
    @ivar reserved: whether C{postReserved} is running, which may call C{post}.
    """

    def __init__(self, trace: Trace, path: _Path) -> None:
        self.trace = trace
        self.path = path
        self.capture = trace.capture
        self.me: int = trace.fabric.guid
        self.peer: int = path.peer.guid
        self.segments: dict[int, Segment] = {}
        self.reserved = False
        #: Remote QPN -> local QPN.
        self._mine: dict[int, int] = {}
        #: Requests without acknowledgement: position and flow.
        self._sent: deque[tuple[int, Flow]] = deque()
        if not (self.peer in self.capture.guids and path.peer.pid == os.getpid()):
            path.taker = _Tap(self, path.taker)

    # -- queue pairs

    def bound(self, queuePair: BoundQueuePair) -> None:
        """
        A queue pair uses the path.
        """
        self._mine[queuePair.remote] = queuePair.number
        self._each(queuePair, self.capture.renewed)

    def unbound(self, queuePair: BoundQueuePair) -> None:
        """
        A queue pair uses the path no more.
        """
        if self._mine.get(queuePair.remote) == queuePair.number:
            del self._mine[queuePair.remote]
        self._each(queuePair, self.capture.ended)

    def _each(self, queuePair: BoundQueuePair, call: Callable[[tuple[int, int, int]], None]) -> None:
        with self.capture.lock:
            call((self.me, self.peer, queuePair.remote))
            call((self.peer, self.me, queuePair.number))

    # -- records

    def posted(self, word: int, pieces: list[Buffer]) -> None:
        """
        The medium accepted a record.

        @param pieces: of its bytes.
        """
        capture = self.capture
        if capture.closed:
            return
        with capture.lock:
            try:
                self._posted(word, b"".join(pieces))
            except WireError:
                pass  # Malformed: it cannot be shown as a packet.
            except Exception as error:
                capture.stop(error)

    def _posted(self, word: int, record: bytes) -> None:
        number, opcode = word & QPN_MASK, word >> 24
        if self._isDatagram(True, opcode, number, record):
            return
        code = opcode & OPERATION_MASK
        if code == ACKNOWLEDGE:
            self._refusal(record, (self.peer, self.me), True)
        elif code in RESPONSES:
            flow = self.capture.flow((self.peer, self.me, self._mine.get(number, 0)))
            if flow is not None:
                self.capture.seenFrom(self.trace.interface, False)
                self._respond(flow, code, self._referred(opcode, record))
        else:
            source = self._mine.get(number, 0)
            flow = self._request((self.me, self.peer, number), source, opcode, record, True)
            if flow is not None and OPCODES[code].ends and not code & UNRELIABLE:
                # A fabric of records has no ACK packets: the path calls acknowledged once the peer has
                # passed this position.
                position = self.path.position()
                self._sent.append((position, flow))
                self.path.track((position, self))

    def acknowledged(self, position: int) -> None:
        """
        The peer has processed all records before a position; those that it refuses were refused by now.
        """
        sent, capture = self._sent, self.capture
        with capture.lock:
            capture.seenFrom(self.trace.interface, True)
            while sent and sent[0][0] <= position:
                after, flow = sent.popleft()
                try:
                    flow.taken(after)
                except Exception as error:
                    capture.stop(error)

    def arrived(
        self, opcode: int, number: int, entry: object, record: bytes, data: Buffer | None
    ) -> Flow | None:
        """
        A record of the peer arrived, and was not processed yet.

        @param entry: its receiver, or L{None}.
        @param data: the payload that it refers to, or L{None}.
        @return: the flow, if it is a request.
        """
        capture = self.capture
        if capture.closed:
            return None
        with capture.lock:
            try:
                return self._arrived(opcode, number, entry, record, data)
            except WireError:
                pass
            except Exception as error:
                capture.stop(error)
        return None

    def _arrived(
        self, opcode: int, number: int, entry: object, record: bytes, data: Buffer | None
    ) -> Flow | None:
        if self._isDatagram(False, opcode, number, record):
            return None
        code = opcode & OPERATION_MASK
        queuePair = entry.queuePair if entry.__class__ is Refusing else entry
        remote = 0 if queuePair is None else getattr(queuePair, "remote", 0)
        if code == ACKNOWLEDGE:
            self._refusal(record, (self.me, self.peer), False)
        elif code in RESPONSES:
            flow = self.capture.flow((self.me, self.peer, remote))
            if flow is not None and (data is not None or not opcode & REFERENCE):
                self.capture.seenFrom(self.trace.interface, True)
                self._respond(flow, code, record if data is None else data)
        else:
            key = self.peer, self.me, number
            flow = self._request(key, remote, opcode, record, False, data)
            if flow is not None and entry is None:
                self.capture.ended(key, False)
            return flow
        return None

    def taken(self, flow: Flow) -> None:
        """
        The peer's latest request was accepted.
        """
        capture = self.capture
        with capture.lock:
            capture.seenFrom(self.trace.interface, False)
            try:
                flow.taken(flow.records)
            except Exception as error:
                capture.stop(error)

    def _isDatagram(self, outbound: bool, opcode: int, number: int, record: bytes) -> bool:
        seen = self.trace.interface, outbound
        source, target = (self.me, self.peer) if outbound else (self.peer, self.me)
        if not isDatagram(opcode):
            return number == GSI_QPN  # Not shown: queue pair 1 receives datagrams only.
        if number == GSI_QPN and len(record) != HEADER_BYTES + MAD_BYTES:
            self.capture.management(seen, source, target, record)
            return True
        if len(record) < HEADER_BYTES:
            return False  # The same opcode with a reference, which is shorter than GRH and DETH.
        word = opcode << 24 | number
        form = self.trace.framing.form
        if not (outbound and self.capture.sentBefore(form, self, word, record)):
            self.capture.datagram(seen, source, target, word, record)
        return True

    def _refusal(self, record: bytes, ends: tuple[int, int], mine: bool) -> None:
        # ends: GUIDs of requester and responder; mine: whether this side refuses.
        if len(record) != REFUSAL.size:
            return
        syndrome, number, position = REFUSAL.unpack(record)
        flow = self.capture.flow((*ends, number))
        if flow is not None:
            self.capture.seenFrom(self.trace.interface, not mine)
            # Positions are the requester's: here they are known only if its own HCA is shown too.
            isKnown = not mine or not position or self.path.taker.__class__ is not _Tap
            flow.refused(syndrome, position if isKnown else None)

    def _respond(self, flow: Flow, code: int, data: Buffer | None) -> None:
        row = OPCODES[code]
        if data is not None:
            flow.respond(row, data)

    def _request(
        self,
        key: tuple[int, int, int],
        source: int,
        opcode: int,
        record: bytes,
        outbound: bool,
        data: Buffer | None = None,
    ) -> Flow | None:
        capture, code = self.capture, opcode & OPERATION_MASK
        capture.seenFrom(self.trace.interface, outbound)
        flow = capture.flow(key)
        # RESUME is no packet: a requester on a wire starts again with an old PSN.
        if code == RESUME:
            if flow is not None:
                flow.resume()
            return None
        row = OPCODES.get(code)
        if row is None or len(record) < row.layout.size:
            return None
        numbers, rest = row.layout.unpack_from(record), record[row.layout.size :]
        if opcode & REFERENCE:
            if outbound:
                data = self._referred(opcode, rest)
            if data is None:
                return None
        else:
            data = rest
        if flow is None:
            flow = self._begin(key, source, not code & UNRELIABLE, outbound)
        position = self.path.position() if outbound else flow.records + 1
        flow.request(row, numbers, data, bool(opcode & SOLICITED), position)
        return flow

    def _begin(self, key: tuple[int, int, int], source: int, reliable: bool, outbound: bool) -> Flow:
        number = source if outbound else key[2]
        queuePair = getattr(self.trace.fabric.owner, "queuePairs", {}).get(number)
        attributes = getattr(queuePair, "attributes", None) or {}
        psn = attributes.get("sq_psn" if outbound else "rq_psn")
        mtu = MTU_BYTES.get(attributes.get("path_mtu", 0), _LONGEST_MTU)
        remote = key[2] if outbound else source
        level = getattr(getattr(queuePair, "vector", None), "serviceLevel", 0)

        def partition(isAnswer: bool) -> int:
            return self.trace.partition(queuePair, self.path, remote, isAnswer is not outbound)

        return self.capture.begin(key, source, reliable, psn, mtu, partition, level)

    def _referred(self, opcode: int, record: bytes) -> bytes | None:
        if not opcode & REFERENCE:
            return record
        if len(record) != headers.REFERENCE.size:
            return None
        number, count, offset = headers.REFERENCE.unpack(record)
        segment = self.segments.get(number)
        return None if segment is None else bytes(segment.map[offset : offset + count])


class _Tap(RecordReceiver):
    """
    Stands in front of a path's receivers, and shows records before they process them.
    """

    __slots__ = ("_entry", "_number", "_taker", "_trace")

    def __init__(self, trace: PathTrace, taker: Callable[[int], Any]) -> None:
        self._trace = trace
        self._taker = taker
        self._number = 0
        self._entry: Any = None

    def __call__(self, number: int) -> _Tap:
        self._number = number
        self._entry = self._taker(number)
        return self

    def delivered(self, opcode: int, buffer: Buffer, start: int, stop: int) -> int:
        trace, entry, number = self._trace, self._entry, self._number
        path = trace.path
        record, data = bytes(buffer[start:stop]), None
        if opcode & REFERENCE and getattr(entry, "work", None) is not None and len(record) < HEADER_BYTES:
            # May end the path, as it would in the receiver of the record.
            row = OPCODES.get(opcode & OPERATION_MASK)
            skipped = 0 if row is None or opcode & OPERATION_MASK in RESPONSES else row.layout.size
            data = payload(path, opcode, record, skipped, len(record))
        flow = trace.arrived(opcode, number, entry, record, data)
        if entry is None:
            syndrome: int = path.unknown(opcode << 24 | number, buffer, start, stop)
            return syndrome
        syndrome = entry.delivered(opcode, buffer, start, stop)
        if flow is not None and not syndrome and entry.__class__ is not Refusing:
            trace.taken(flow)
        return syndrome


class _TracedPath(_Path):
    """
    Mixin of a traced path, in front of the fabric's path class.
    """

    trace: Trace

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.shown = PathTrace(self.trace, self)

    def bind(self, queuePair: BoundQueuePair, message: Any = None) -> _Path:
        bound = super().bind(queuePair, message)
        self.shown.bound(queuePair)
        return bound

    def unbind(self, queuePair: BoundQueuePair) -> None:
        super().unbind(queuePair)
        self.shown.unbound(queuePair)

    # Records alone are shown: a WRITE comes as one, also from a peer that shows none.

    def writeDirectly(
        self, number: int, key: int, address: int, source: object, offset: int, length: int
    ) -> bool:
        return False

    def grantWrites(self, queuePair: BoundQueuePair, region: MemoryRegion) -> bool:
        return False

    def post(self, word: int, header: bytes, payload: Any, length: int) -> bool:
        if not super().post(word, header, payload, length):
            return False
        shown = self.shown
        if not shown.reserved:
            shown.posted(word, [header, *payload] if payload.__class__ is list else [header, payload])
        return True

    def postReserved(self, word: int, body: bytes, refusal: bool) -> bool:
        shown = self.shown
        # The path may implement this by post: the record must be shown once.
        shown.reserved = True
        try:
            taken = super().postReserved(word, body, refusal)
        finally:
            shown.reserved = False
        if taken:
            shown.posted(word, [body])
        return taken

    def offer(self, segment: Segment) -> int:
        number = super().offer(segment)
        if number:
            self.shown.segments[number] = segment
        return number

    def withdraw(self, segment: Segment) -> None:
        segments = self.shown.segments
        for number in [n for n, each in segments.items() if each is segment]:
            del segments[number]
        super().withdraw(segment)
