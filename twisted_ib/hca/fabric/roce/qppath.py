"""
The way of one queue pair of a fabric of packets: between its records and the connection of
C{twisted_ib.hca.transport} that makes packets of them.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from math import inf
from typing import TYPE_CHECKING, Any, Final

from twisted_ib import limits
from twisted_ib.errors import PathLostError, QueuePairError
from twisted_ib.hca.base.operation import (
    ABSENT,
    ACKNOWLEDGE,
    NAK_INVALID_REQUEST,
    OPERATION_MASK,
    REFUSAL,
    RESPONSES,
    RESUME,
    RNR,
    SEND_FIRST,
    SEND_LAST,
    SEND_MIDDLE,
    SEND_ONLY,
    SILENT,
    SOLICITED,
    UNRELIABLE,
)
from twisted_ib.hca.base.states import QPType
from twisted_ib.hca.fabric.base.path import Path
from twisted_ib.hca.fabric.roce import connparams
from twisted_ib.hca.transport.reliable import ReliableConnection
from twisted_ib.hca.transport.unreliable import UnreliableConnection
from twisted_ib.hca.wire.headers import BTH, ICRC
from twisted_ib.hca.wire.rocev2 import flowLabel, sourcePort

if TYPE_CHECKING:
    from twisted_ib.hca.fabric.roce.peerpath import PeerPath

#: Connections of streams that have a part of a message, each at most INLINE_RECORD; others wait (RNR).
PACKET_PARTIAL = 1024
#: Messages of streams of so many bytes leave before the end of a batch.
PACKET_PROMPT = 1024

#: What a stream takes as one.
_PARTS: Final = frozenset((SEND_FIRST, SEND_MIDDLE, SEND_LAST))
_HOP_LIMIT: Final = 64
#: Of an RNR NAK: 1.28 ms.
_SOON: Final = 14
#: Octets of the shortest packet.
_LEAST: Final = BTH.size + ICRC.size
#: What a connection counts when it sends something again.
_SENT_AGAIN: Final = "completer_retry_err"


class QueuePairPath(Path):
    """
    The way of one queue pair to its peer.

    @ivar queuePair: It; L{None} once it is gone.
    @ivar localID: Its number.
    @ivar remote: The peer's number.
    @ivar deadline: When its connection wants to be called, or L{None}.
    @ivar connection: What makes packets of records.
    @ivar retransmits: How often its connection has sent something again.
    @ivar service: The bits of its packets' operation codes that say which service it is.
    @ivar port: The UDP source port.
    @ivar trafficClass: Of its packets.
    @ivar hopLimit: Of its packets.
    @ivar flow: What its packets' checksums begin with.
    @ivar flushed: When it last had something to send, or to acknowledge.
    @ivar until: How long it goes on without its queue pair.
    @ivar notified: When the peer was told that the way is congested.
    """

    __slots__ = (
        "_acknowledged",
        "_asked",
        "_isRoomy",
        "_isStream",
        "_parts",
        "_position",
        "_prompt",
        "_size",
        "_way",
        "connection",
        "deadline",
        "flow",
        "flushed",
        "hopLimit",
        "localID",
        "messageBytes",
        "notified",
        "port",
        "queuePair",
        "remote",
        "retransmits",
        "service",
        "trafficClass",
        "until",
    )

    inPackets = True
    #: What the queue pairs of a medium of operations need.
    absent: dict[int, None] = {}
    table: dict[int, Any] = {}
    twin = None

    def __init__(self, way: PeerPath, queuePair: Any, message: Any) -> None:
        """
        @param way: The path to the peer.
        @param queuePair: One that has its number and the peer's.
        @param message: The REQ or REP of the peer, if it comes by one.
        """
        fabric = way.fabric
        self.fabric = fabric
        self.peer = way.peer
        self.retransmits = 0
        self.alive = True
        self.bell = self.busy = False
        self.owed = self.turns = self.peerSocket = None
        self.requesters: dict[int, Any] = {}
        self.waiting: OrderedDict[Any, None] = OrderedDict()
        self.unacknowledged: deque[tuple[int, Any]] = deque()
        self._way = way
        self._position = self._asked = self._acknowledged = 0
        self._isRoomy = False
        self._isStream = message is not None
        #: Bytes that a stream sends at once, -1 if it is none; or to itself: what comes back would be there
        #: before the end of the batch, and so before what its program has put off.
        self._prompt = -1
        if self._isStream and queuePair.type == QPType.RC and self.peer.address != fabric.address:
            self._prompt = PACKET_PROMPT
        self._parts: list[Any] = []
        self._size = 0
        self.queuePair = queuePair
        self.localID: int = queuePair.number
        self.remote: int = queuePair.remote
        self.deadline: float | None = None
        self.until = 0.0
        self.notified = self.flushed = -inf
        vector = queuePair.vector
        label = 0 if vector is None else vector.flowLabel
        if not label and queuePair.proposal is not None:
            label = queuePair.proposal.label
        self.trafficClass = 0 if vector is None else vector.trafficClass
        self.hopLimit = _HOP_LIMIT if vector is None else vector.hopLimit or _HOP_LIMIT
        wanted = sourcePort(label or flowLabel(queuePair.number, queuePair.remote))
        self.port: int = fabric.link.sourcePort(wanted)
        self.flow = fabric.flowTo(self.peer.address, self.port)
        isReliable = queuePair.type == QPType.RC
        self.service = 0 if isReliable else UNRELIABLE
        connection: Any = ReliableConnection if isReliable else UnreliableConnection
        terms = connparams.termsOf(fabric, queuePair, message)
        self.connection: Any = connection(terms, queuePair.remote, self)
        link = fabric.link
        several = terms.mtu * max(1, min(link.burst, limits.PACKET_BURST_BYTES // (terms.mtu + _LEAST)))
        #: What fills the datagrams that leave together: for a few bytes more one would leave alone.
        self.messageBytes = limits.INLINE_MESSAGE // several * several

    @property
    def way(self) -> Path:
        """
        The path to the peer.
        """
        return self._way

    # -- the queue pair

    def bind(self, queuePair: Any, message: Any = None) -> Path:
        """
        Another queue pair is given the path of this one.
        """
        return self._way.bind(queuePair, message)

    def modified(self, queuePair: Any) -> None:
        """
        See L{Path.modified}: with RTS it is known what to send first, and how long to wait.
        """
        if queuePair.attributes:
            self.connection.modify(connparams.termsOf(self.fabric, queuePair, None))
            self.mark()

    def unbind(self, queuePair: Any) -> None:
        """
        The queue pair is gone.  What a stream has sent before that still arrives, if it can.
        """
        if self.queuePair is not queuePair:
            return
        self.queuePair = None
        self._dropParts()
        self.waiting.clear()
        self.unacknowledged.clear()
        self.requesters.clear()
        self.fabric.sessions.parted(self, self._isStream and not self.isDone)
        self.mark()

    @property
    def isPlain(self) -> bool:
        """
        Whether it is one of a stream that has no work requests: then nobody at the other end waits for an
        acknowledgement.
        """
        queuePair = self.queuePair
        return self._isStream and queuePair is not None and queuePair.work is None

    @property
    def isDone(self) -> bool:
        """
        Whether the peer has taken everything.
        """
        return self._acknowledged >= self._asked

    def queuePairs(self) -> list[Any]:
        """
        @return: The one whose path this is, if it is there.
        """
        return [] if self.queuePair is None else [self.queuePair]

    # -- down

    def mark(self) -> None:
        """
        There may be something to send, or another deadline.
        """
        if not self.bell:
            self.bell = True
            self.fabric.ringLater(self)

    def post(self, word: int, header: bytes, payload: Any, length: int) -> bool:
        """
        Publish one record: see L{Path.post}.
        """
        opcode = word >> 24
        if opcode == RESUME:
            return True  # The connection repeats by itself.
        if opcode == ACKNOWLEDGE:
            syndrome = REFUSAL.unpack(payload)[0]
            if syndrome != ABSENT:  # That is silence on a wire.
                self.connection.refuse(syndrome)
                self.mark()
            return True
        position = self._position + 1
        fabric = self.fabric
        now = fabric.clock()
        if (
            length <= self._prompt
            and opcode == SEND_ONLY
            and fabric.patient
            and not fabric.transmitter.stalled
        ):
            # The first of a batch, and most are alone: it need not wait for the end of that.
            packets = self.connection.postNow(header, payload, position, now)
            if packets is not None:
                self._position = self._asked = position
                fabric.transmitter.send(self, packets)
                if not self.bell:
                    self.bell = True
                    fabric.ringLater(self)
                return True
        if not self.connection.post(opcode, header, payload, length, position, now):
            return False
        self._position = position
        if opcode & OPERATION_MASK not in RESPONSES:
            self._asked = position
        if not self.bell:
            self.bell = True
            self.fabric.ringLater(self)
        return True

    def postReserved(self, word: int, body: bytes, refusal: bool) -> bool:
        """
        Publish a small record: see L{Path.postReserved}.
        """
        return self.post(word, b"", body, len(body))

    def position(self) -> int:
        """
        @return: How many records were published.
        """
        return self._position

    def sendManagement(self, attribute: int, body: bytes) -> None:
        """
        Send a connection management message.
        """
        self._way.sendManagement(attribute, body)

    def wantSpace(self, waiter: Any) -> None:
        """
        See L{Path.wantSpace}.
        """
        self.waiting[waiter] = None

    def progress(self, budget: int) -> int:
        """
        Let those go on who wait for room, once there is some.

        @return: How many there were.
        """
        if not self._isRoomy:
            return 0
        self._isRoomy = False
        return self.resumeWaiting()

    def pending(self) -> bool:
        """
        @return: Whether there is something to send, or room for who waits.
        """
        return self.bell

    def unsent(self) -> bool:
        """
        @return: Connection management does not wait here.
        """
        return False

    # -- what the connection says

    def delivered(self, opcode: int, buffer: Any, start: int, stop: int) -> int:
        """
        A record came.

        @return: 0, or the syndrome of a refusal.
        """
        queuePair = self.queuePair
        if queuePair is None:
            return ABSENT
        if opcode == SEND_MIDDLE and self._parts:  # Most packets of a stream.
            self._size += stop - start
            if self._size <= limits.INLINE_RECORD:
                self._parts.append(buffer[start:stop])
                return 0
            self._size -= stop - start
        try:
            if queuePair.work is None and opcode & ~SOLICITED in _PARTS:
                return self._join(queuePair, opcode, buffer, start, stop)
            syndrome: int = queuePair.delivered(opcode, buffer, start, stop)
            return syndrome
        except BaseException as error:
            self.fabric.failed(error)
            return 0

    def continued(self, opcode: int, parts: list[Any], size: int) -> int:
        """
        Several packets came from the middle of a message, one behind the other.

        @param parts: Their payloads, which are valid until L{settle}.
        @return: 0, or the syndrome of a refusal.
        """
        queuePair = self.queuePair
        if opcode == SEND_MIDDLE and self._parts and queuePair is not None:
            if self._size + size <= limits.INLINE_RECORD:
                self._size += size
                self._parts += parts
                return 0
        return self.delivered(opcode, b"".join(parts), 0, size)

    def settle(self) -> None:
        """
        What L{continued} was given is not valid any more: keep a copy of what is left of it.
        """
        if self._parts:
            self._parts = [b"".join(self._parts)]

    def _join(self, queuePair: Any, opcode: int, buffer: Any, start: int, stop: int) -> int:
        """
        A part of a message for a stream, which takes whole ones.

        @return: 0, or the syndrome of a refusal.
        """
        code, parts = opcode & ~SOLICITED, self._parts
        if (code == SEND_FIRST) is bool(parts):
            self._dropParts()
            return NAK_INVALID_REQUEST
        if not parts:
            if len(self.fabric.partial) >= PACKET_PARTIAL:
                return RNR | _SOON
            self.fabric.partial[self] = None
        self._size = self._size + stop - start if parts else stop - start
        if self._size > limits.INLINE_RECORD:
            self._dropParts()
            number = queuePair.number
            queuePair.fail(QueuePairError(f"the peer of queue pair {number} sent too long a message"))
            return NAK_INVALID_REQUEST
        parts.append(buffer[start:stop])
        if code != SEND_LAST:
            return 0
        message = b"".join(parts)
        self._dropParts()
        syndrome: int = queuePair.delivered(SEND_ONLY | opcode & SOLICITED, message, 0, len(message))
        return syndrome

    def _dropParts(self) -> None:
        self._parts.clear()
        self.fabric.partial.pop(self, None)

    def acknowledged(self, position: int) -> None:
        """
        The peer has taken everything up to a record.
        """
        self._acknowledged = position
        if self.queuePair is None:
            if self.isDone:
                self.fabric.sessions.parted(self, False)
                self.mark()
            return
        waiting = self.unacknowledged
        while waiting and waiting[0][0] <= position:
            reached, requester = waiting.popleft()
            try:
                requester.acknowledged(reached)
            except BaseException as error:
                self.fabric.failed(error)

    def refused(self, position: int, syndrome: int) -> None:
        """
        The peer does not do a record, or is silent.
        """
        queuePair = self.queuePair
        self._asked = self._acknowledged  # Nothing more is waited for.
        if queuePair is None:
            self.fabric.sessions.parted(self, False)
            self.mark()
            return
        try:
            if queuePair.work is not None:
                body = REFUSAL.pack(syndrome, queuePair.number, position)
                queuePair.delivered(ACKNOWLEDGE, body, 0, len(body))
            elif syndrome == SILENT:
                self.count("retry_exceeded_err")
            if self.queuePair is queuePair:  # A message of a stream was no request.
                queuePair.fail(self._failure(queuePair, syndrome))
        except BaseException as error:
            self.fabric.failed(error)

    def _failure(self, queuePair: Any, syndrome: int) -> Exception:
        if syndrome == SILENT:
            return PathLostError(f"{self.peer.address} does not answer")
        return QueuePairError(
            f"the peer refused a message of queue pair {queuePair.number} (syndrome {syndrome:#04x})"
        )

    def resumed(self) -> None:
        """
        There is room again.
        """
        if not self._isRoomy:
            self._isRoomy = True
            self.fabric.roomy.append(self)

    def count(self, name: str) -> None:
        """
        Count something on the device.
        """
        if name == _SENT_AGAIN:
            self.retransmits += 1
        self.fabric.count(name)

    # -- the end

    def lost(self, reason: PathLostError) -> None:
        """
        The device is closed.
        """
        self.alive = False
        queuePair = self.queuePair
        if queuePair is not None:
            queuePair.fail(reason)


__all__ = ["QueuePairPath"]
