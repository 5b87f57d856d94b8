"""
RDS on RC queue pairs: messages in fragments, acknowledgements, and the paths that share one.

Each fragment is one SEND: the header of the whole message and a part of its payload.  The fragments
of two messages are never mixed on one queue pair.

There are two forms:

  - As Linux speaks it, where peers are IP addresses: 4096 bytes a fragment, headers have checksums,
    one queue pair for each pair of addresses.  A receive is a promise; while there is no memory there
    is none, and the peer is answered RNR and asks again.
  - Between processes of this host, where all have the same addresses: a fragment is as long as a
    record, and nothing is summed up that never leaves memory.  Small messages of one turn are in one
    SEND, one behind the other: a header whose length is more than what follows it begins a fragment.
    One queue pair carries all paths between two processes.  The padding of the header tells them
    apart: it is an index that the sender has announced by a I{control} frame, whose flags are 0x80,
    ports and sequence 0, and whose payload begins with its kind: 1 and the two addresses of the path,
    the sender's first, as text with a space between; 2 and the number of a port (16 bits, big endian)
    of the index's path, at which nobody is; 3, "send nothing more for now", or 4, "go on".

An ack frame has ports, length and sequence 0.  Whoever gets a message that wants an acknowledgement
sends one at the end of the batch, unless it has sent something else on the path meanwhile; other
messages are acknowledged when there are some, or after a few milliseconds.
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
ADDRESSES, NOBODY, PAUSE, GO_ON = 1, 2, 3, 4
_PORT = Struct(">H")

#: The timer code of a peer that finds no receive, 0.32 ms as Linux says.
_RNR_TIMER = 10
_RETRIES = 7
#: Messages that are longer than this, with their headers, are not gathered; and so much is gathered: a
#: peer begins with the first while the last are written.
_SMALL = 4 * 1024
_ENOUGH = 4 * 1024
#: An acknowledgement is due when so much has come, each message counting for this and its bytes.
#: The most pieces that the medium is given.
_PIECES = 16
_DUE = 64 * 1024
_EACH = 4 * 1024
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
    @ivar owing: how much the acknowledgement is due that the peer gets: 0 if it is not.
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
        self.owing = 0
        self.paused = False

    # -- IRDSCarrier

    def send(self, message: Message) -> bool:
        """
        See L{IRDSCarrier.send}.
        """
        session = self.session
        if session.stuck or session.peerPaused or session.backlog:
            session.wanting[self] = None
            return False
        payload = message.payload
        length = len(payload)
        self.owing = 0
        if session.shared:
            header = _pack(
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
            session.gather(header, payload, length)
            return True
        header = packChecksummed(
            message.sequence,
            self.received,
            length,
            message.sourcePort,
            message.destinationPort,
            message.flags,
            0,
            NO_PADDING,
            0,
            message.extensions,
        )
        if length <= session.fragment:
            session.post(header, payload, length)
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
        session = self.session
        self.path = None
        if session.isUp and session.loss is None:
            self.acknowledge()
            session.flushGathered()
        self.resumeReading()
        session.carrierClosed(self)

    # -- what comes

    def acknowledge(self) -> None:
        """
        Send an ack frame, unless something else has said as much.
        """
        if self.owing:
            self.owing = 0
            session = self.session
            fields = (0, self.received, 0, 0, 0, 0, 0, self.padding, 0, NO_EXTENSIONS)
            if session.shared:
                session.gather(_pack(*fields), b"", 0)
            else:
                session.post(packChecksummed(*fields), b"", 0)


class _Nobody:
    """
    Stands for a carrier where there was none yet.
    """

    path = None


_NOBODY = _Nobody()


class Session:
    """
    One queue pair and the paths that it carries.

    @ivar medium: who has made it.
    @ivar key: what the medium knows it by.
    @ivar queuePair: the queue pair.
    @ivar work: its work queues; between processes there are none, as nothing is refused there.
    @ivar connection: the CM's side, or L{None}.
    @ivar isUp: whether messages can be sent.
    @ivar fragment: bytes of payload in one fragment.
    @ivar shared: whether it has the form between processes of a host; else that of Linux.
    @ivar stuck: whether the medium has no room.
    @ivar peerPaused: whether the peer has said that it has no memory.
    @ivar backlog: fragments for which there was no place.
    @ivar wanting: carriers that were told there is no room.
    @ivar ours: carriers by the index that we announced.
    @ivar theirs: by the index that the peer announced: the carrier, and the path's addresses here.
    @ivar peerHas: the sequence number up to which the peer has everything, if it said so when it
        connected.
    @ivar loss: why it is over, until the paths are told.
    """

    def __init__(self, medium: RCMedium, key: Any, channel: Any, shared: bool) -> None:
        """
        Make the queue pair.

        @raise ResourceLimitError: There are too many.
        """
        device = channel.device
        self.medium = medium
        self.key = key
        self.channel = channel
        self.fragment = limits.RDS_FRAGMENT if shared else FRAGMENT_BYTES
        self.shared = shared
        self.connection: Any = None
        self.isUp = self.stuck = self.corked = self.closed = False
        self.backlog: deque[tuple[bytes, Any, int]] = deque()
        self.peerPaused = False
        self.wanting: dict[RCCarrier, None] = {}
        self.ours: dict[int, RCCarrier] = {}
        self.theirs: dict[int, tuple[RCCarrier | None, str, str]] = {}
        self.peerHas = 0
        self.loss: Exception | None = None
        self._owing: dict[RCCarrier, None] = {}
        self._gathered: list[bytes] = []
        self._gatheredBytes = 0
        self._ackCall: Any = None
        self._pauses = self._whilePaused = 0
        self._next = 0
        self._sockets = medium.network.sockets
        # Who got the last message, and what its header had: the next one is mostly for the same.
        self._last: Any = _NOBODY
        self._lastPadding = b""
        self._first: Fields | None = None
        self._pieces: list[bytes] = []
        self._missing = 0
        self.queuePair = device.createQueuePair(self)
        self.queuePair.maxMessage = HEADER_BYTES + self.fragment
        self.pd: Any = None
        self.work: Any = None
        if not shared:
            self._makeWork(device)
        self.queuePair.posted = _RECEIVES

    def _makeWork(self, device: Any) -> None:
        """
        Hang work queues on the queue pair, which repeat what was refused.
        """
        try:
            self.pd = device.memory.allocateDomain()
        except HCAError:
            self.queuePair.close()
            raise
        places = Capabilities(limits.RDS_SENDS, 0, 1, 0, 0)
        queue: Any = self
        self.work = WorkQueues(self.queuePair, self.pd, queue, queue, device.timers, places)

    # -- connecting

    def join(self, connection: Any, message: Any) -> None:
        """
        Let the queue pair talk to the peer's.

        @param message: The peer's REQ or REP.
        """
        self.connection = connection
        connection.user = self
        if self.shared:
            self.queuePair.connect(connection.destination, message.localQPN, message)
            self.isUp = True
            return
        modify, proposal = self.queuePair.modify, self.queuePair.proposal
        modify(QPState.INIT, pkey_index=0, port_num=1, qp_access_flags=0)
        modify(
            QPState.RTR,
            ah_attr=connection.destination,
            path_mtu=MTU if proposal is None else proposal.mtu,
            dest_qp_num=message.localQPN,
            rq_psn=0 if proposal is None else proposal.expectedPSN,
            max_dest_rd_atomic=0,
            min_rnr_timer=_RNR_TIMER,
        )
        modify(
            QPState.RTS,
            sq_psn=message.startingPSN,
            timeout=limits.PACKET_STREAM_TIMEOUT_CODE,
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
        self.gather(header, payload, len(payload))

    # -- sending

    def gather(self, header: bytes, payload: bytes, length: int) -> None:
        """
        Send a message between processes: the first of a turn at once, small ones after it together.
        """
        size = HEADER_BYTES + length
        if size > _SMALL:
            self.flushGathered()
            if length > self.fragment:
                self.postFragments(header, payload)
            else:
                self.post(header, payload, length)
        elif not self.corked:
            self.corked = True
            self.channel.device.markDirty(self)
            self.post(header, payload, length)
        else:
            self._gathered.append(header)
            if length:
                self._gathered.append(payload)
            self._gatheredBytes += size
            if self._gatheredBytes > _ENOUGH:
                self.flushGathered()

    def flushGathered(self) -> None:
        """
        Send what was gathered.
        """
        gathered = self._gathered
        if gathered:
            size, self._gatheredBytes, self._gathered = self._gatheredBytes, 0, []
            self.post(b"", gathered if len(gathered) < _PIECES else b"".join(gathered), size)

    def post(self, header: bytes, payload: Any, length: int) -> None:
        """
        Send a fragment, or let it wait.

        @param payload: What follows the header: bytes-like, or a list of bytes-like objects.
        @param length: Of that.
        """
        if not self.backlog:
            try:
                if self._post(header, payload, length):
                    return
            except QueuePairError as reason:
                self.broken(reason)
                return
        self.backlog.append((header, payload, length))

    def _post(self, header: bytes, payload: Any, length: int) -> bool:
        """
        Send a fragment, if there is a place; C{stuck} says whether there is one for the next.

        @raise QueuePairError: The queue pair sends nothing.
        """
        queuePair = self.queuePair
        work = self.work
        if work is None:
            if not queuePair.canPost():
                self.stuck = True
                return False
            queuePair.postInline(header, payload, length)
            self.stuck = queuePair.pending is not None
            return True
        try:
            self.stuck = not work.postInline([header, payload] if length else header, HEADER_BYTES + length)
        except ResourceLimitError:
            self.stuck = True  # C{resume} is called when there are places.
            return False
        return True

    def postFragments(self, header: bytes, payload: bytes) -> None:
        """
        Send a message in several fragments.
        """
        fragment = self.fragment
        whole = memoryview(payload)
        for start in range(0, len(payload), fragment):
            piece = whole[start : start + fragment]
            self.post(header, piece, len(piece))

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
        if self._gathered:
            self.flushGathered()
        if self.backlog:
            self._postBacklog()
        if self._owing and not self.backlog:
            self._acknowledgeDue()
        if self.wanting and not self.stuck and not self.backlog and not self.peerPaused:
            wanting, self.wanting = self.wanting, {}
            for carrier in wanting:
                if carrier.path is not None:
                    carrier.path.resume(carrier)

    def _acknowledgeDue(self) -> None:
        """
        Send the acknowledgements that are due, or, if a few messages are all, wait for something to
        send with them, or for more of them.
        """
        owing, self._owing = self._owing, {}
        for carrier in owing:
            if carrier.owing >= _DUE:
                carrier.acknowledge()
                self.flushGathered()
            elif carrier.owing:
                self._owing[carrier] = None
        if self._owing and self._ackCall is None:
            delay = limits.RDS_ACK_SECONDS
            self._ackCall = self.medium.network.reactor.callLater(delay, self._acknowledgeAll)

    def _acknowledgeAll(self) -> None:
        """
        Nothing was sent for a while.
        """
        self._ackCall = None
        owing, self._owing = self._owing, {}
        for carrier in owing:
            carrier.acknowledge()
        self.cork()

    def _postBacklog(self) -> None:
        """
        Post the fragments that wait, as far as there are places.
        """
        backlog = self.backlog
        try:
            while backlog and not self.stuck and self._post(*backlog[0]):
                backlog.popleft()
        except QueuePairError as reason:
            self.broken(reason)

    # -- receiving (consumer of the queue pair)

    def received(self, buffer: Any, start: int, stop: int) -> None:
        """
        A fragment came.
        """
        if not self.shared:
            if not self._pauses:
                self.queuePair.posted = _RECEIVES
            self._receivedOne(buffer, start, stop)
            return
        self.queuePair.posted = _RECEIVES
        if self._pauses:
            self._whilePaused += stop - start
            if self._whilePaused > limits.RDS_PAUSED:
                self.violated("more than it may")
                return
        while self.loss is None:
            body = start + HEADER_BYTES
            if body > stop:
                self.violated("a message without a header")
                return
            fields = _unpack(buffer, start)
            start = body + fields[2]
            if start > stop or self._first is not None:
                self._fragment(fields, bytes(buffer[body:stop]))
                return
            self._message(fields, buffer[body:start])
            if start == stop:
                return

    def _receivedOne(self, buffer: Any, start: int, stop: int) -> None:
        """
        A fragment as Linux sends it came.
        """
        body = start + HEADER_BYTES
        if body > stop:
            self.violated("a fragment without a header")
            return
        fields = _unpack(buffer, start)
        if fields[8] and checksum(buffer[start:body]):
            self.medium.network.counters["recv_drop_bad_checksum"] += 1
            self.violated("a wrong checksum")
        elif self._first is not None or fields[2] != stop - body:
            self._fragment(fields, bytes(buffer[body:stop]))
        else:
            self._message(fields, bytes(buffer[body:stop]))

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
        carrier = self._last
        if carrier.path is None or padding != self._lastPadding or flags == CONTROL:
            carrier = self._carrierOf(padding, flags, payload)
            if carrier is None:
                return
            self._last, self._lastPadding = carrier, padding
        path = carrier.path
        if acknowledged > carrier.acknowledged:
            carrier.acknowledged = acknowledged
            path.acknowledged(carrier, acknowledged)
        if not sequence and not length:
            return
        if sequence:
            carrier.received = sequence
            if not carrier.owing:
                self._owing[carrier] = None
            carrier.owing += _DUE if flags & ACK_REQUIRED else _EACH + length
            if not self.corked:
                self.corked = True
                self.channel.device.markDirty(self)
            if self.shared and destinationPort > 1 and (path.local, destinationPort) not in self._sockets:
                self._control(carrier, NOBODY, _PORT.pack(destinationPort))
        path.messageReceived(carrier, fields, payload if payload.__class__ is bytes else bytes(payload))

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
            if not index or index in self.theirs or not self._isLocal(theirs) or not self._isLocal(ours):
                self.violated(f"addresses {payload[1:]!r} for path {index}")
            elif len(self.theirs) >= limits.RDS_PATHS:
                self.violated("too many paths")
            else:
                self._announced(index, ours, theirs)
        elif kind == NOBODY and len(payload) == 1 + _PORT.size:
            self.medium.moved()
        elif kind in (PAUSE, GO_ON) and len(payload) == 1:
            self.peerPaused = kind == PAUSE
            self.cork()
        else:
            self.violated(f"a control frame of kind {kind}")

    def _isLocal(self, address: str) -> bool:
        """
        @return: Whether a peer may have an address, or we.
        """
        try:
            return bool(self.channel.device.isLocal(address))
        except ValueError:
            return False

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
        if self.closed or self._pauses > 1 or (self._pauses == 1 and count < 0):
            return
        if not self.shared:
            self.queuePair.posted = 0 if self._pauses else _RECEIVES
        elif self.ours and self.loss is None:
            self._whilePaused = 0
            carrier = next(iter(self.ours.values()))
            self._control(carrier, PAUSE if self._pauses else GO_ON, b"")

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
        if self._ackCall is not None:
            self._ackCall.cancel()
            self._ackCall = None
        self._gathered = []
        self.backlog.clear()
        self.wanting.clear()
        self._owing.clear()
        connection, self.connection = self.connection, None
        device = self.channel.device
        if self.queuePair.device is not None:
            self.queuePair.close()
            if self.pd is not None and not device.closed:
                device.memory.deallocateDomain(self.pd)
        if connection is not None and not device.closed:
            device.disconnect(connection)
        self.medium.sessionClosed(self)


__all__ = ["FRAGMENT_BYTES", "NO_PADDING", "RCCarrier", "Session"]
