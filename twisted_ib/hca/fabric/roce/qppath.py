"""
The path of one connected queue pair of a fabric of packets: between its records and the connection of
C{twisted_ib.hca.transport} that makes packets of them.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Final

from zope.interface import classImplements

from twisted_ib import limits
from twisted_ib.errors import PathLostError, QueuePairError
from twisted_ib.hca.base.interfaces import IPath
from twisted_ib.hca.base.operation import (
    ABSENT,
    OPERATION_MASK,
    REFUSAL,
    RESPONSES,
    RESUME,
    SILENT,
    SOLICITED,
)
from twisted_ib.hca.base.partition import partners
from twisted_ib.hca.base.states import QPType
from twisted_ib.hca.fabric.base.path import Waiters
from twisted_ib.hca.fabric.roce import connparams
from twisted_ib.hca.transport.reliable import ReliableConnection
from twisted_ib.hca.transport.requester import Requester
from twisted_ib.hca.transport.responder import Responder
from twisted_ib.hca.transport.unreliable import UnreliableConnection
from twisted_ib.hca.wire.grh import HOP_LIMIT
from twisted_ib.hca.wire.headers import BTH, ICRC, NAK_INVALID_REQUEST, RNR
from twisted_ib.hca.wire.opcodes import ACKNOWLEDGE, SEND_FIRST, SEND_LAST, SEND_MIDDLE, SEND_ONLY, UNRELIABLE
from twisted_ib.hca.wire.rocev2 import flowLabel, sourcePort

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import Acknowledged, BoundQueuePair, Buffer, Waiter
    from twisted_ib.hca.fabric.roce.peerpath import PeerPath

#: Streams that may have a partly received message, each of at most INLINE_RECORD; further ones are refused
#: by RNR NAK.
PACKET_REASSEMBLIES = 1024
#: Messages of streams up to so many bytes are sent before the end of a batch.
PACKET_PROMPT = 1024

#: A stream that was active within this time, in seconds, delays its acknowledgements until nothing more
#: arrives: one ACK acknowledges all earlier requests (IBTA vol. 1 9.7.5).
PACKET_PATIENCE_SECONDS = 0.0005

#: A peer has changed its UDP source port when it has repeated so often from another what is expected.
PACKET_MOVE_REPEATS = 2
#: Whoever guesses what is expected is not heard: each packet from another port that is not expected puts a
#: move off so many seconds, up to so many in all.  So fewer than a thousand guesses a second, of 2**24
#: numbers, count.
PACKET_GUESS_SECONDS = 1e-3
PACKET_CALM_SECONDS = 60.0

#: Parts of a message that a stream receives as a whole.
_PARTS: Final = frozenset((SEND_FIRST, SEND_MIDDLE, SEND_LAST))
#: RNR timer code 14: 1.28 ms (IBTA vol. 1 9.7.5.2.8; Linux ib_verbs.h enum ib_rnr_timeout).
_SOON: Final = 14
#: Octets of the shortest packet.
_LEAST: Final = BTH.size + ICRC.size
#: Counter of a connection's retransmissions.
_SENT_AGAIN: Final = "completer_retry_err"


class QueuePairPath(Waiters):
    """
    The path of one queue pair to its peer.

    @ivar queuePair: L{None} once it is gone.
    @ivar localID: its number.
    @ivar remote: the peer's number.
    @ivar deadline: of the connection's timer, or L{None}.
    @ivar partition: the P_Key of its packets; C{accepted} are those that match it.
    @ivar connection: the transport connection.
    @ivar requester: its send side, if it is reliable, and C{responder} its receive side.
    @ivar bell: whether a flush is scheduled.
    @ivar retransmits: count of the connection's retransmissions.
    @ivar sentAtOnce: whether a message was sent since the last flush.
    @ivar unacknowledged: what C{track} was given, in order: C{track} is its C{append}.
    @ivar isStream: whether the connection manager connected it.
    @ivar service: transport service bits of its opcodes.
    @ivar mtu: most bytes of a packet's payload.
    @ivar port: UDP source port.
    @ivar peerPort: the peer's; 0 until one of its packets has shown it, if the peer has not said it.
    @ivar heard: the flow of the peer's packets, once C{peerPort} is known: source, destination and UDP source
        port.
    @ivar flow: ICRC state of its packets.
    @ivar flushed: when it last had something to send or acknowledge.
    @ivar until: when a path without a queue pair ends; 0 if it does not linger.
    @ivar notified: when the last congestion notification was sent to the peer.

    See L{PeerPath} and L{ConnectionUser<twisted_ib.hca.transport.parameters.ConnectionUser>}.
    """

    __slots__ = (
        "_acknowledged",
        "_asked",
        "_calm",
        "_isAgreed",
        "_isRoomy",
        "_moving",
        "_parts",
        "_position",
        "_prompt",
        "_size",
        "_way",
        "accepted",
        "alive",
        "bell",
        "connection",
        "deadline",
        "fabric",
        "flow",
        "flushed",
        "heard",
        "hopLimit",
        "isStream",
        "localID",
        "messageBytes",
        "mtu",
        "notified",
        "partition",
        "peer",
        "peerPort",
        "port",
        "queuePair",
        "remote",
        "requester",
        "responder",
        "retransmits",
        "scheduler",
        "sentAtOnce",
        "service",
        "track",
        "trafficClass",
        "unacknowledged",
        "until",
    )

    inPackets: ClassVar = True
    inSegments: ClassVar = False

    def __init__(self, way: PeerPath, queuePair: BoundQueuePair, message: Any) -> None:
        """
        @param queuePair: has its number and the peer's.
        @param message: the peer's request or reply; L{None} if the queue pair was given attributes.
        """
        fabric = way.fabric
        self.fabric = fabric
        self.peer = way.peer
        self.retransmits = 0
        self.alive = True
        self.bell = self.sentAtOnce = False
        self.scheduler: Any = None
        self.waiting: OrderedDict[Waiter, None] = OrderedDict()
        self.unacknowledged: deque[tuple[int, Acknowledged]] = deque()
        self.track: Any = self.unacknowledged.append
        self._way = way
        self._position = self._asked = self._acknowledged = 0
        self._isRoomy = False
        self.isStream = message is not None
        # Bytes that are sent at once; -1 for none: not a stream, or connected to itself, where the answer
        # would arrive before the end of the batch, and so before calls that the program has deferred to it.
        self._prompt = -1
        if self.isStream and queuePair.type == QPType.RC and self.peer.address != fabric.address:
            self._prompt = PACKET_PROMPT
        self._parts: list[Any] = []
        self._size = 0
        self.queuePair: BoundQueuePair | None = queuePair
        self.localID: int = queuePair.number
        self.remote: int = queuePair.remote
        self.partition: int = queuePair.partition
        self.accepted = partners(self.partition)
        self.deadline: float | None = None
        self.until = 0.0
        self.notified = self.flushed = -inf
        vector = queuePair.vector
        self.trafficClass = 0 if vector is None else vector.trafficClass
        self.hopLimit = HOP_LIMIT if vector is None else vector.hopLimit or HOP_LIMIT
        self.port: int
        self.peerPort: int
        if queuePair.proposal is not None:
            self.port, self.peerPort = queuePair.proposal.port, queuePair.proposal.peerPort
        else:
            label = 0 if vector is None else vector.flowLabel
            self.port, self.peerPort = sourcePort(label or flowLabel(self.localID, self.remote)), 0
        if not self.peerPort:  # Both have said theirs, or ours may still be another.
            self.port = fabric.link.sourcePort(self.port)
        self.flow = fabric.flowTo(self.peer.address, self.port)
        self._isAgreed = self.peerPort != 0
        self.heard: tuple[str, str, int] | None = None
        #: Another port from which a packet came that is expected: its opcode and PSN, and when it came again,
        #: and how often.
        self._moving: tuple[int, int, int, float, int] | None = None
        #: No move is believed before.
        self._calm = 0.0
        isReliable = queuePair.type == QPType.RC
        # IBTA vol. 1 9.2.1: the upper three bits of an opcode.
        self.service = 0 if isReliable else UNRELIABLE
        connection: Any = ReliableConnection if isReliable else UnreliableConnection
        terms = connparams.connectionParameters(fabric, queuePair, message)
        self.connection: Any = connection(terms, queuePair.remote, self)
        self.requester: Requester | None = self.connection.requester if isReliable else None
        self.responder: Responder | None = self.connection.responder if isReliable else None
        link, self.mtu = fabric.link, terms.mtu
        several = terms.mtu * max(1, min(link.burst, limits.PACKET_BURST_BYTES // (terms.mtu + _LEAST)))
        # A whole number of full batches: a few bytes more would need a packet of its own.
        self.messageBytes = limits.INLINE_MESSAGE // several * several

    @property
    def way(self) -> PeerPath:
        return self._way

    @property
    def recordBytes(self) -> int:
        return limits.INLINE_MESSAGE // self.mtu * self.mtu

    # -- the queue pair

    def bind(self, queuePair: BoundQueuePair, message: Any = None) -> QueuePairPath:
        return self._way.bind(queuePair, message)

    def modified(self, queuePair: BoundQueuePair) -> None:
        # With RTS come the first PSN and the timeouts.
        if queuePair.partition != self.partition:
            self.partition = queuePair.partition
            self.accepted = partners(self.partition)
        if queuePair.attributes:
            terms = connparams.connectionParameters(self.fabric, queuePair, None)
            self.mtu = terms.mtu
            self.connection.modify(terms)
            self.mark()

    def unbind(self, queuePair: BoundQueuePair) -> None:
        """
        The queue pair is gone. A stream's data that was sent before is still delivered, if it can be.
        """
        if self.queuePair is not queuePair:
            return
        self.queuePair = None
        self._dropParts()
        self.waiting.clear()
        self.unacknowledged.clear()
        self.fabric.sessions.parted(self, self.isStream and not self.isDone)
        self.mark()

    def forget(self, number: int) -> None:
        pass

    def expect(self, requester: Any) -> None:
        pass  # The transport finds a silent peer by its timeout.

    @property
    def isDone(self) -> bool:
        """
        Whether the peer has acknowledged everything.
        """
        return self._acknowledged >= self._asked

    def queuePairs(self) -> list[BoundQueuePair]:
        """
        @return: the queue pair, if there is one.
        """
        return [] if self.queuePair is None else [self.queuePair]

    # -- sending

    def mark(self) -> None:
        """
        Schedule a flush: there may be packets to send, or another deadline.
        """
        if not self.bell:
            self.bell = True
            self.fabric.ringLater(self)

    def post(self, word: int, header: bytes, payload: Any, length: int) -> bool:
        opcode = word >> 24
        if opcode == RESUME:
            return True  # The transport retransmits by itself.
        if opcode == ACKNOWLEDGE:
            syndrome = REFUSAL.unpack(payload)[0]
            if syndrome != ABSENT:  # No such queue pair: dropped silently on a wire (Linux rxe_recv.c).
                self.connection.responder.refuse(syndrome)
                self.mark()
            return True
        position = self._position + 1
        fabric = self.fabric
        now = fabric.clock()
        if (
            length <= self._prompt
            and opcode & ~SOLICITED == SEND_ONLY
            and not self.sentAtOnce
            and fabric.patient
            and (
                not self.bell
                or now - self.flushed < PACKET_PATIENCE_SECONDS
                or not ((responder := self.responder) and responder.owes)
            )
            and not fabric.transmitter.stalled
        ):
            # The first message of a batch is mostly the only one: sent at once, it does not wait for the
            # batch's end.  Further ones share calls of the link, and so does one with what acknowledges the
            # message that it answers.
            requester: Requester = self.requester  # type: ignore[assignment]
            packet = requester.postNow(opcode, header, payload, position)
            if packet is not None:
                self.sentAtOnce = True
                self._position = self._asked = position
                fabric.transmitter.sendOne(self, packet)
                requester.sent(now)  # While it is on its way.
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
        return self.post(word, b"", body, len(body))

    def position(self) -> int:
        return self._position

    def respond(self, word: int, record: bytes, partition: int) -> bool:
        return self._way.respond(word, record, partition)

    def sendManagement(self, attribute: int, body: bytes, transaction: int = 0) -> None:
        self._way.sendManagement(attribute, body, transaction)

    def prepareRequest(self, request: Any) -> None:
        self._way.prepareRequest(request)

    def prepareReply(self, reply: Any, request: Any) -> Any:
        return self._way.prepareReply(reply, request)

    def readReply(self, reply: Any, number: int) -> None:
        self._way.readReply(reply, number)

    def progress(self, budget: int) -> int:
        """
        Resume those that wait for space, once there is some.

        @return: how many.
        """
        if not self._isRoomy:
            return 0
        self._isRoomy = False
        return self.resumeWaiting()

    def pending(self) -> bool:
        """
        @return: whether the fabric has something to do: its link alone says whether packets have come.
        """
        return self.fabric.pending()

    def unsent(self) -> int:
        return 0

    def isForged(self, port: int, opcode: int, psn: int, now: float) -> bool:
        """
        A packet came from another UDP source port than C{peerPort}.

        @return: whether it is not the peer's.
        """
        # All packets of a queue pair have one port, in this package, in Linux (rxe_qp.c rxe_qp_init_req,
        # src_port) and of adapters: by it networks keep them in order (IBTA vol. 1 annex A17). The first with
        # the PSN that is expected shows it, as PSNs begin with a random one. Who has said it keeps it.
        if self._isAgreed:
            return True
        isLearned = self.peerPort != 0
        if not self.connection.isExpected(opcode, psn):
            if isLearned:
                self._calm = min(max(self._calm, now) + PACKET_GUESS_SECONDS, now + PACKET_CALM_SECONDS)
            return isLearned
        # Only RC repeats what is lost.
        if isLearned and (self.service or now < self._calm or not self._hasMoved(port, opcode, psn, now)):
            return True
        self.peerPort = port
        self._moving = None
        return False

    def _hasMoved(self, port: int, opcode: int, psn: int, now: float) -> bool:
        # A program may change it all the same (ibv_modify_qp_udp_sport(3)).  Then what is expected comes from
        # there again and again, as it is repeated, and from nowhere else.
        moving = self._moving
        if moving is None or moving[0] != port or not self.connection.isExpected(moving[1], moving[2]):
            self._moving = port, opcode, psn, now, 0
            return False
        port, opcode, psn, when, repeats = moving
        if now - when < limits.TRANSPORT_RESEND_LEAST:
            return False
        self._moving = port, opcode, psn, now, repeats + 1
        return repeats + 1 >= PACKET_MOVE_REPEATS

    # -- calls of the transport connection

    def delivered(self, opcode: int, buffer: Buffer, start: int, stop: int) -> int:
        queuePair = self.queuePair
        if queuePair is None:
            return ABSENT
        if opcode == SEND_MIDDLE and self._parts:  # Fast path: most packets of a stream.
            self._size += stop - start
            if self._size <= limits.INLINE_RECORD:
                self._parts.append(buffer[start:stop])
                return 0
            self._size -= stop - start
        try:
            if queuePair.work is None or self._parts:
                # The event is for a completion (IBTA vol. 1 9.2), and a stream has none.
                opcode &= ~SOLICITED
                if opcode in _PARTS:
                    return self._join(queuePair, opcode, buffer, start, stop)
            syndrome = queuePair.delivered(opcode, buffer, start, stop)
            return syndrome
        except BaseException as error:
            self.fabric.failed(error)
            return 0

    def continued(self, opcode: int, parts: list[Any], size: int) -> int:
        queuePair = self.queuePair
        if opcode == SEND_MIDDLE and self._parts and queuePair is not None:
            if self._size + size <= limits.INLINE_RECORD:
                self._size += size
                self._parts += parts
                return 0
        return self.delivered(opcode, b"".join(parts), 0, size)

    def settle(self) -> None:
        """
        The payloads given to L{continued} become invalid: copy those that are still needed.
        """
        if self._parts:
            self._parts = [b"".join(self._parts)]

    def _join(self, queuePair: BoundQueuePair, code: int, buffer: Buffer, start: int, stop: int) -> int:
        # Reassembly for a stream, which receives whole messages. Returns 0, or the AETH syndrome of a
        # refusal.
        parts = self._parts
        # IBTA vol. 1 9.7.4: a First inside a message, or a Middle or Last outside of one, is a NAK invalid
        # request.
        if (code == SEND_FIRST) is bool(parts):
            self._dropParts()
            return NAK_INVALID_REQUEST
        if not parts:
            if not queuePair.posted:
                # The First packet uses the receive (IBTA vol. 1 9.7.5.2.8): the peer repeats from there.
                return queuePair.streamed(buffer, start, stop)
            # RNR NAK, not an error: the peer retries once others have completed their messages (IBTA vol. 1
            # 9.7.5.2.8).
            if len(self.fabric.partial) >= PACKET_REASSEMBLIES:
                return RNR | _SOON
            self.fabric.partial[self] = None
        self._size = self._size + stop - start if parts else stop - start
        # As a receive WQE that is too small: NAK invalid request (Linux rxe_resp.c), and the queue pair
        # fails.
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
        # There was a receive when the message began: a consumer that has withdrawn its receives since then
        # still gets this one.
        queuePair.posted = queuePair.posted or 1
        syndrome = queuePair.streamed(message, 0, len(message))
        return syndrome

    def _dropParts(self) -> None:
        self._parts.clear()
        self.fabric.partial.pop(self, None)

    def acknowledged(self, position: int) -> None:
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
        queuePair = self.queuePair
        self._asked = self._acknowledged  # Nothing more will be acknowledged.
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
            if self.queuePair is queuePair:  # Not yet failed, as by a refused work request.
                queuePair.fail(self._failure(queuePair, syndrome))
        except BaseException as error:
            self.fabric.failed(error)

    def _failure(self, queuePair: BoundQueuePair, syndrome: int) -> Exception:
        if syndrome == SILENT:
            return PathLostError(f"{self.peer.address} does not answer")
        return QueuePairError(
            f"the peer refused a message of queue pair {queuePair.number} (syndrome {syndrome:#04x})"
        )

    def resumed(self) -> None:
        if not self._isRoomy:
            self._isRoomy = True
            self.fabric.writable.append(self)

    def count(self, name: str) -> None:
        if name == _SENT_AGAIN:
            self.retransmits += 1
        self.fabric.count(name)

    # -- the end

    def lost(self, reason: PathLostError) -> None:
        self.alive = False
        queuePair = self.queuePair
        if queuePair is not None:
            queuePair.fail(reason)


classImplements(QueuePairPath, IPath)
