"""
RDS on RC queue pairs: messages in fragments, acknowledgements, and the paths that share one.

Each fragment is one SEND: the header of the whole message and a part of its payload.  The fragments
of two messages are never mixed on one queue pair.  A receive is a promise; while there is no memory
there is none, and the peer is answered RNR and asks again.

There are two forms:

  - As Linux speaks it, where peers are IP addresses: 4096 bytes a fragment, headers have checksums,
    one queue pair for each pair of addresses.
  - Between processes of this host, where all have the same addresses: a fragment is as long as a
    record, and nothing is summed up that never leaves memory.  One queue pair carries all paths
    between two processes.  The padding of the header tells them apart: it is an index that the
    sender has announced by a I{control} frame, whose flags are 0x80, ports and sequence 0, and whose
    payload begins with its kind: 1 and the two addresses of the path, the sender's first, as text
    with a space between; or 2 and the number of a port (16 bits, big endian) of the index's path,
    at which nobody is.

An ack frame has ports, length and sequence 0.  Whoever gets a message that wants an acknowledgement
sends one at the end of the batch, unless it has sent something else on the path meanwhile; between
processes of a host the end of each batch is acknowledged.
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Any

from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.errors import (
    HCAError,
    PathLostError,
    QueuePairError,
    RDSWireError,
    ResourceLimitError,
)
from twisted_ib.hca.core.requests import Capabilities
from twisted_ib.hca.core.states import QPState
from twisted_ib.hca.core.work import WorkQueues
from twisted_ib.rds.carrier import IRDSCarrier
from twisted_ib.rds.machine import Message
from twisted_ib.rds.wire import (
    ACK_REQUIRED,
    FRAGMENT_BYTES,
    HEADER,
    HEADER_BYTES,
    MESSAGE_BYTES,
    NO_EXTENSIONS,
    NO_PADDING,
    Fields,
    checksum,
    packChecksummed,
)

if TYPE_CHECKING:
    from twisted_ib.rds.connected import RCMedium
    from twisted_ib.rds.path import Path

_RECEIVES = limits.RDS_RECEIVES
_unpack = HEADER.unpack_from
_pack = HEADER.pack

#: Flags of a control frame; the kernel has no such flag, and never sees it.
CONTROL = 0x80
#: Kinds of control frames.
ADDRESSES, NOBODY = 1, 2
_PORT = Struct(">H")

#: Timeout code of a peer whose queue pair is not there: 67 ms.
_ACK_TIMEOUT = 14
#: The timer code of a peer that finds no receive, 0.32 ms as Linux says.
_RNR_TIMER = 10
_RETRIES = 7
#: The code of 4096 bytes.
MTU = 5


@implementer(IRDSCarrier)
class RCCarrier:
    """
    One path on a queue pair.

    @ivar session: the queue pair.
    @ivar path: the path; L{None} when the carrier has ended.
    @ivar padding: what our headers have there, the index that we have announced.
    @ivar received: the sequence number of the last message.
    @ivar owing: whether the peer wants an acknowledgement, or gets one anyhow.
    @ivar acknowledged: the last acknowledgement that came.
    """

    __slots__ = ("acknowledged", "owing", "padding", "path", "paused", "received", "session")

    def __init__(self, session: Session, path: Path, index: int) -> None:
        """
        @param index: ours for the path.
        """
        self.session = session
        self.path: Any = path
        self.padding = index.to_bytes(4, "big")
        self.received = self.acknowledged = 0
        self.owing = self.paused = False

    # -- IRDSCarrier

    def send(self, message: Message) -> bool:
        """
        See L{IRDSCarrier.send}.
        """
        session = self.session
        if session.stuck or session.backlog or not session.work.canPost():
            session.wanting[self] = None
            return False
        payload = message.payload
        length = len(payload)
        self.owing = False
        fields = (
            message.sequence,
            self.received,
            length,
            message.sourcePort,
            message.destinationPort,
            message.flags,
            0,
            self.padding,
            0,
            message.extensions,
        )
        header = packChecksummed(*fields) if session.sums else _pack(*fields)
        if length <= session.fragment:
            session.post([header, payload] if length else header, HEADER_BYTES + length)
        else:
            session.postFragments(header, payload)
        return True

    def flush(self) -> None:
        """
        See L{IRDSCarrier.flush}: nothing is held back.
        """

    def pauseReading(self) -> None:
        """
        See L{IRDSCarrier.pauseReading}.
        """
        if not self.paused:
            self.paused = True
            self.session.pause(1)

    def resumeReading(self) -> None:
        """
        See L{IRDSCarrier.resumeReading}.
        """
        if self.paused:
            self.paused = False
            self.session.pause(-1)

    def drain(self) -> None:
        """
        See L{IRDSCarrier.drain}: whatever came was given to the path when it came.
        """

    def close(self) -> None:
        """
        See L{IRDSCarrier.close}.
        """
        self.path = None
        self.resumeReading()
        self.session.carrierClosed(self)

    # -- what comes

    def acknowledge(self) -> None:
        """
        Send an ack frame, unless something else has said as much.
        """
        if self.owing:
            self.owing = False
            session = self.session
            fields = (0, self.received, 0, 0, 0, 0, 0, self.padding, 0, NO_EXTENSIONS)
            header = packChecksummed(*fields) if session.sums else _pack(*fields)
            session.post(header, HEADER_BYTES)


class Session:
    """
    One queue pair and the paths that it carries.

    @ivar medium: who has made it.
    @ivar key: what the medium knows it by.
    @ivar queuePair: the queue pair.
    @ivar work: its work queues.
    @ivar connection: the CM's side, or L{None}.
    @ivar isUp: whether messages can be sent.
    @ivar fragment: bytes of payload in one fragment.
    @ivar sums: whether headers have checksums.
    @ivar shared: whether several paths are on it, and there are control frames.
    @ivar stuck: whether the medium has no room.
    @ivar backlog: fragments for which there was no place.
    @ivar wanting: carriers that were told there is no room.
    @ivar ours: carriers by the index that we announced.
    @ivar theirs: by the index that the peer announced: the carrier, and the path's addresses here.
    @ivar peerHas: the sequence number up to which the peer has everything, if it said so when it
        connected.
    @ivar loss: why it is over, until the paths are told.
    """

    def __init__(
        self, medium: RCMedium, key: Any, channel: Any, fragment: int, sums: bool, shared: bool
    ) -> None:
        """
        Make the queue pair.

        @raise ResourceLimitError: There are too many.
        """
        device = channel.device
        self.medium = medium
        self.key = key
        self.channel = channel
        self.fragment = fragment
        self.sums = sums
        self.shared = shared
        self.connection: Any = None
        self.isUp = self.stuck = self.corked = self.closed = False
        self.backlog: deque[tuple[Any, int]] = deque()
        self.wanting: dict[RCCarrier, None] = {}
        self.ours: dict[int, RCCarrier] = {}
        self.theirs: dict[int, tuple[RCCarrier | None, str, str]] = {}
        self.peerHas = 0
        self.loss: Exception | None = None
        self._owing: dict[RCCarrier, None] = {}
        self._pauses = 0
        self._next = 0
        self._first: Fields | None = None
        self._pieces: list[bytes] = []
        self._missing = 0
        self.queuePair = device.createQueuePair(self)
        self.queuePair.maxMessage = HEADER_BYTES + fragment
        try:
            self.pd = device.memory.allocateDomain()
        except HCAError:
            self.queuePair.close()
            raise
        places = Capabilities(limits.RDS_SENDS, 0, 1, 0, 0)
        queue: Any = self
        self.work = WorkQueues(self.queuePair, self.pd, queue, queue, device.timers, places)
        self.queuePair.posted = _RECEIVES

    # -- connecting

    def join(self, connection: Any, message: Any) -> None:
        """
        Let the queue pair talk to the peer's.

        @param message: The peer's REQ or REP.
        """
        self.connection = connection
        connection.user = self
        modify = self.queuePair.modify
        modify(QPState.INIT, pkey_index=0, port_num=1, qp_access_flags=0)
        modify(
            QPState.RTR,
            ah_attr=connection.destination,
            path_mtu=MTU,
            dest_qp_num=message.localQPN,
            rq_psn=0,
            max_dest_rd_atomic=0,
            min_rnr_timer=_RNR_TIMER,
        )
        modify(
            QPState.RTS,
            sq_psn=message.startingPSN,
            timeout=_ACK_TIMEOUT,
            retry_cnt=_RETRIES,
            rnr_retry=_RETRIES,
            max_rd_atomic=0,
        )
        self.isUp = True

    def carrier(self, path: Path) -> RCCarrier:
        """
        Carry a path; the path is told at the end of the batch.

        @raise ResourceLimitError: there are too many paths.
        """
        for found in self.ours.values():
            if found.path is path:
                return found
        if len(self.ours) >= limits.RDS_PATHS:
            raise ResourceLimitError("too many paths of RDS between two processes")
        self._next += 1
        carrier = self.ours[self._next] = RCCarrier(self, path, self._next if self.shared else 0)
        if self.shared:
            self._control(carrier, ADDRESSES, f"{path.local} {path.remote}".encode())
        return carrier

    def _control(self, carrier: RCCarrier, kind: int, content: bytes) -> None:
        """
        Send a control frame.
        """
        payload = bytes([kind]) + content
        header = _pack(0, 0, len(payload), 0, 0, CONTROL, 0, carrier.padding, 0, NO_EXTENSIONS)
        self.post([header, payload], HEADER_BYTES + len(payload))

    # -- sending

    def post(self, payload: Any, length: int) -> None:
        """
        Send a fragment, or let it wait.
        """
        if not self.backlog:
            try:
                if not self.work.postInline(payload, length):
                    self.stuck = True
                return
            except ResourceLimitError:
                self.stuck = True  # C{resume} is called when there are places.
            except QueuePairError as reason:
                self.broken(reason)
                return
        self.backlog.append((payload, length))

    def postFragments(self, header: bytes, payload: bytes) -> None:
        """
        Send a message in several fragments.
        """
        fragment = self.fragment
        whole = memoryview(payload)
        for start in range(0, len(payload), fragment):
            piece = whole[start : start + fragment]
            self.post([header, piece], HEADER_BYTES + len(piece))

    def resume(self) -> None:
        """
        The medium has room, or has done everything: go on at the end of the batch.
        """
        self.stuck = False
        self.cork()

    def cork(self) -> None:
        """
        Have C{endOfBatch} called.
        """
        if not self.corked:
            self.corked = True
            self.channel.device.markDirty(self)

    def endOfBatch(self) -> None:
        """
        The turn is over: acknowledge, send what waits, tell what happened.
        """
        self.corked = False
        if self.loss is not None:
            self._over()
            return
        self._postBacklog()
        if self._owing and not self.backlog:
            owing, self._owing = self._owing, {}
            for carrier in owing:
                carrier.acknowledge()
        if self.wanting and not self.stuck and not self.backlog:
            wanting, self.wanting = self.wanting, {}
            for carrier in wanting:
                if carrier.path is not None:
                    carrier.path.resume(carrier)

    def _postBacklog(self) -> None:
        """
        Post the fragments that wait, as far as there are places.
        """
        backlog = self.backlog
        try:
            while backlog and not self.stuck and self.work.canPost():
                if not self.work.postInline(*backlog.popleft()):
                    self.stuck = True
        except QueuePairError as reason:
            self.broken(reason)

    # -- receiving (consumer of the queue pair)

    def received(self, buffer: Any, start: int, stop: int) -> None:
        """
        A fragment came.
        """
        if not self._pauses:
            self.queuePair.posted = _RECEIVES
        start += HEADER_BYTES
        if start > stop:
            self.violated("a fragment without a header")
            return
        fields = _unpack(buffer, start - HEADER_BYTES)
        if fields[8] and checksum(buffer[start - HEADER_BYTES : start]):
            self.medium.network.counters["recv_drop_bad_checksum"] += 1
            self.violated("a wrong checksum")
            return
        length = fields[2]
        if self._first is not None or length != stop - start:
            self._fragment(fields, bytes(buffer[start:stop]))
            return
        payload = buffer[start:stop] if length else b""
        if payload.__class__ is not bytes:
            payload = bytes(payload)
        self._message(fields, payload)

    def _fragment(self, fields: Fields, piece: bytes) -> None:
        """
        A fragment of a message that has several came.
        """
        first, length = self._first, fields[2]
        if first is None:
            if length > MESSAGE_BYTES or len(piece) != self.fragment or length < len(piece):
                self.violated(f"{len(piece)} bytes of a message of {length}")
                return
            self._first, self._pieces, self._missing = fields, [piece], length - len(piece)
            return
        same = (0, 2, 3, 4, 7)
        if any(fields[index] != first[index] for index in same):
            self.violated("fragments of two messages")
            return
        if len(piece) != min(self._missing, self.fragment):
            self.violated(f"{len(piece)} bytes where {self._missing} were missing")
            return
        self._pieces.append(piece)
        self._missing -= len(piece)
        if not self._missing:
            pieces, self._pieces, self._first = self._pieces, [], None
            self._message((*first[:1], fields[1], *first[2:]), b"".join(pieces))

    def _message(self, fields: Fields, payload: bytes) -> None:
        """
        A whole message came, an ack frame, or a control frame.
        """
        sequence, acknowledged, length, _, destinationPort, flags, _, padding, _, _ = fields
        carrier = self._carrierOf(padding, flags, payload)
        if carrier is None:
            return
        path = carrier.path
        if acknowledged > carrier.acknowledged:
            carrier.acknowledged = acknowledged
            path.acknowledged(carrier, acknowledged)
        if not sequence and not length:
            return
        if sequence:
            carrier.received = sequence
            if self.shared or flags & ACK_REQUIRED:
                carrier.owing = True
                self._owing[carrier] = None
                if not self.corked:
                    self.corked = True
                    self.channel.device.markDirty(self)
            if self.shared and destinationPort > 1:
                if (path.local, destinationPort) not in self.medium.network.sockets:
                    self._control(carrier, NOBODY, _PORT.pack(destinationPort))
        path.messageReceived(carrier, fields, payload)

    def _carrierOf(self, padding: bytes, flags: int, payload: bytes) -> RCCarrier | None:
        """
        Find the carrier that a message is for; a control frame is for this.
        """
        if not self.shared:
            return next(iter(self.ours.values()), None)
        index = int.from_bytes(padding, "big")
        if flags == CONTROL:
            self._controlled(index, payload)
            return None
        known = self.theirs.get(index)
        if known is None:
            self.violated(f"a message on path {index}, which was not announced")
            return None
        carrier = known[0]
        if carrier is None or carrier.path is None:
            carrier = self._announced(index, known[1], known[2])
        return carrier

    def _controlled(self, index: int, payload: bytes) -> None:
        """
        A control frame came.
        """
        kind = payload[0] if payload else 0
        if kind == ADDRESSES:
            try:
                theirs, ours = payload[1:].decode("ascii").split(" ")
            except ValueError:
                self.violated("a control frame without addresses")
                return
            isLocal = self.channel.device.isLocal
            if not index or index in self.theirs or not isLocal(theirs) or not isLocal(ours):
                self.violated(f"addresses {payload[1:]!r} for path {index}")
            elif len(self.theirs) >= limits.RDS_PATHS:
                self.violated("too many paths")
            else:
                self._announced(index, ours, theirs)
        elif kind == NOBODY and len(payload) == 1 + _PORT.size:
            self.medium.moved()
        else:
            self.violated(f"a control frame of kind {kind}")

    def _announced(self, index: int, ours: str, theirs: str) -> RCCarrier | None:
        """
        The peer uses a path: use it too.
        """
        self.theirs[index] = None, ours, theirs
        try:
            path = self.medium.pathOf(self, ours, theirs)
            if path is None:
                return None
            carrier = self.carrier(path)
        except ResourceLimitError:
            return None
        self.theirs[index] = carrier, ours, theirs
        if path.carrier is not carrier:
            path.carrierUp(carrier)
        return carrier

    def immediateReceived(self, immediate: int | None, buffer: Any, start: int, stop: int) -> None:
        """
        A message with immediate data came, which RDS does not have.
        """
        self.violated("immediate data")

    def remoteMemoryWritten(self, immediate: int, length: int) -> None:
        """
        The peer wrote to memory, with immediate data, which RDS does not have.
        """
        self.violated("immediate data")

    def pause(self, count: int) -> None:
        """
        A carrier has no memory left (1), or again has some (-1).
        """
        self._pauses += count
        if not self.closed:
            self.queuePair.posted = 0 if self._pauses else _RECEIVES

    # -- where the work queues complete: nothing is signalled

    def push(self, completion: Any, solicited: bool = False) -> bool:
        """
        A request ended, with an error: see C{failed}.
        """
        return True

    def hold(self, kind: str) -> None:
        """
        See L{twisted_ib.hca.core.held.Held}.
        """

    def release(self, kind: str) -> None:
        """
        See L{twisted_ib.hca.core.held.Held}.
        """

    # -- the end

    def violated(self, what: str) -> None:
        """
        The peer broke the rules: end the connection, and count it.
        """
        self.medium.network.counters["recv_bad_frame"] += 1
        self.broken(RDSWireError(f"the peer has sent {what}"))

    def broken(self, reason: Exception) -> None:
        """
        It is over; the paths hear of it at the end of the batch.
        """
        if self.loss is None and not self.closed:
            self.loss = reason
            self.queuePair.posted = 0
            self.cork()

    def failed(self, reason: Exception) -> None:
        """
        The queue pair is in error: see L{QueuePair.fail}.
        """
        if isinstance(reason, PathLostError):
            self.connection = None
        self.broken(reason)

    def pathLost(self, reason: Exception) -> None:
        """
        The CM says that the peer's process is gone.
        """
        self.connection = None
        self.broken(reason)

    def peerDisconnected(self, connection: Any) -> None:
        """
        The CM says that the peer disconnected, or confirmed that we did.
        """
        self.connection = None
        self.broken(PathLostError("the peer closed the connection"))

    def rejected(self, connection: Any, rejection: Any) -> None:
        """
        The CM says that the peer does not want the REP.
        """
        self.peerDisconnected(connection)

    def unreachable(self, connection: Any) -> None:
        """
        The CM says that the peer does not answer the REP.
        """
        self.peerDisconnected(connection)

    def connectionLost(self, reason: Any) -> None:
        """
        The device is going, with the reactor.
        """
        self.broken(PathLostError("the device is going"))
        if self.loss is not None:
            self._over()

    def forked(self) -> None:
        """
        In a forked child nobody may use this.
        """
        self.closed = True

    def carrierClosed(self, carrier: RCCarrier) -> None:
        """
        A path does not need this any more.
        """
        for index, found in list(self.ours.items()):
            if found is carrier:
                del self.ours[index]
        self.wanting.pop(carrier, None)
        self._owing.pop(carrier, None)
        if not self.ours:
            self.close()

    def _over(self) -> None:
        """
        Tell the paths.
        """
        reason = self.loss
        assert reason is not None
        carriers = list(self.ours.values())
        self.ours = {}
        self.close()
        for carrier in carriers:
            path, carrier.path = carrier.path, None
            if path is not None:
                path.lost(carrier, reason)

    def close(self) -> None:
        """
        Give everything back; the peer is told, if it may not know.
        """
        if self.closed:
            return
        self.closed = True
        self.isUp = False
        self.backlog.clear()
        self.wanting.clear()
        self._owing.clear()
        connection, self.connection = self.connection, None
        device = self.channel.device
        if self.queuePair.device is not None:
            self.queuePair.close()
            if not device.closed:
                device.memory.deallocateDomain(self.pd)
        if connection is not None and not device.closed:
            device.disconnect(connection)
        self.medium.sessionClosed(self)


__all__ = ["FRAGMENT_BYTES", "NO_PADDING", "RCCarrier", "Session"]
