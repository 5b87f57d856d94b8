"""
The half of a stream's path that sends, and ends the connection.

What is posted is given to the kernel at the end of the batch, and counts as completed then: iWARP has no
acknowledgement of a message (RFC 5040 section 5.4). What the kernel does not take at once waits here, and
nothing more is posted meanwhile.
"""

from __future__ import annotations

import select
import socket
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any, ClassVar, Final

from twisted_ib.errors import PathLostError, QueuePairError
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.base.operation import (
    ABSENT,
    ACKNOWLEDGE,
    READ_RESPONSE_LAST,
    READ_RESPONSE_ONLY,
    REFUSAL,
    RESUME,
)
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.base.timers import Timer
from twisted_ib.hca.fabric.base.forked import Forked
from twisted_ib.hca.fabric.base.path import Waiters
from twisted_ib.hca.fabric.iwarp.protocol.ddp import UNTAGGED
from twisted_ib.hca.fabric.iwarp.protocol.mpastream import (
    MAX_ULPDU,
    FPDUWriter,
)
from twisted_ib.hca.fabric.iwarp.protocol.reads import Reads
from twisted_ib.hca.fabric.iwarp.protocol.sending import RDMAPSender
from twisted_ib.hca.fabric.iwarp.protocol.terminate import (
    PROTECTION_INVALID_STAG,
    Termination,
)

if TYPE_CHECKING:
    from twisted_ib.hca.fabric.iwarp.peerpath import PeerPath

#: Octets that are gathered for one system call; longer payloads are sent from where they are.
IWARP_GATHER = 64 * 1024
_COPIED: Final = 8 * 1024
#: How long a connection without a queue pair waits for the peer's FIN, in seconds: a socket that is closed
#: with octets unread sends RST, and the peer would lose what it has not read (RFC 1122 section 4.2.2.13).
IWARP_LINGER_SECONDS = 5.0

#: How long an initiator that has nothing to send waits for the peer's first FPDU, in seconds, before it says
#: again that it is ready; four times as long then, and the longest of these times.
_READY_SECONDS: Final = 0.05
_READY_MOST_SECONDS: Final = 0.8
#: Buffers of one sendmsg(2): UIO_MAXIOV.
_PIECES: Final = 1024
_SEND_FLAGS: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_READ, _WRITE, _ERROR = select.EPOLLIN, select.EPOLLOUT, select.EPOLLERR
_UNTAGGED_BYTES: Final = UNTAGGED.size


class SendingPath(Waiters):
    """
    The half of a path that sends and ends.

    @ivar way: the path to the peer's address, which connection management knows.
    @ivar number: stands for the peer's queue pair, and for its communication id.
    @ivar localID: the communication id of this side; 0 while unknown.
    @ivar localQPN: the number of this side's queue pair, in connection management.
    @ivar queuePair: the queue pair, or L{None}.
    @ivar startup: the exchange of MPA's startup frames; L{None} once it is over.
    @ivar isOpen: whether FPDUs are exchanged.
    @ivar isHeld: whether nothing may be sent before the peer's first FPDU.
    @ivar isEnded: whether the peer's FIN has come.
    @ivar isPassive: whether the peer has sent the Request.
    @ivar isEstablished: whether connection management counts this side as connected.
    @ivar bell: whether a flush is scheduled.
    """

    inPackets: ClassVar = True
    inSegments: ClassVar = True
    retransmits: ClassVar = 0
    # One FPDU; towards a peer that takes shorter ones a message is cut, which costs less than another
    # message.
    messageBytes: ClassVar = MAX_ULPDU - _UNTAGGED_BYTES

    __slots__ = (
        "_events",
        "_full",
        "_gathered",
        "_isBlocked",
        "_isBusy",
        "_isClosing",
        "_isCut",
        "_isShut",
        "_out",
        "_posted",
        "_rest",
        "_sender",
        "_taken",
        "alive",
        "bell",
        "fabric",
        "isEnded",
        "isEstablished",
        "isHeld",
        "isOpen",
        "isPassive",
        "localID",
        "localQPN",
        "number",
        "peer",
        "queuePair",
        "reads",
        "scheduler",
        "socket",
        "startup",
        "timer",
        "track",
        "unacknowledged",
        "way",
    )

    def __init__(self, way: PeerPath, number: int, made: Any) -> None:
        """
        @param made: its socket, which does not block.
        """
        self.way = way
        self.fabric: Any = way.fabric
        self.peer = way.peer
        self.number = number
        self.localID = self.localQPN = 0
        self.socket: Any = made
        self.queuePair: Any = None
        self.scheduler: Any = None
        self.alive = True
        self.bell = self.isOpen = self.isHeld = self.isEnded = self.isEstablished = self.isPassive = False
        self.startup: Any = None
        self.timer: Timer | None = None
        self.waiting: OrderedDict[Any, None] = OrderedDict()
        self.unacknowledged: deque[tuple[int, Any]] = deque()
        self.track: Any = self.unacknowledged.append
        self.reads = Reads(0, 0, 0)
        self._sender: Any = None
        # What waits for the end of the batch, or for the kernel; records posted, and taken by the kernel.
        self._out: list[Any] = []
        self._gathered = self._posted = self._taken = 0
        self._full = self._isBusy = self._isShut = self._isClosing = False
        # Whether TCP takes nothing any more.
        self._isCut = False
        # Whether nothing is posted now, for one of several reasons.
        self._isBlocked = True
        # Received and not consumed.
        self._rest = b""
        self._events = 0

    # -- the queue pair

    def bind(self, queuePair: Any, message: Any = None) -> Any:
        """
        Give a queue pair its path.
        """
        return self.way.bind(queuePair, message)

    def attach(self, queuePair: Any) -> None:
        """
        The path is this queue pair's.
        """
        self.queuePair = queuePair
        if self.isOpen:
            self._begin()

    def open(self, agreed: Any, largest: int, key: int) -> None:
        """
        The startup frames were exchanged: FPDUs follow.

        @param agreed: the machine that has exchanged them.
        @param largest: the longest ULPDU to send.
        @param key: see L{Reads}.
        """
        self.startup = None
        self.isOpen = True
        self.reads = Reads(agreed.ird, agreed.ord, key)
        self._sender = RDMAPSender(FPDUWriter(agreed.crc, agreed.markersOut), largest, self.reads)
        ready = agreed.rtr
        self.isHeld = agreed.holds
        if ready is not None and not self.isPassive:
            self._sender.readyToReceive(self._out, ready)
            self.mark()
            if ready == "write":
                self.startTimer(_READY_SECONDS, lambda: self._readyAgain(_READY_SECONDS))
        self._block()
        if self.queuePair is not None:
            self._begin()

    def _readyAgain(self, seconds: float) -> None:
        # Linux siw_cm.c siw_accept() sends the Reply before it listens for the ready-to-receive message: one
        # that comes between wakes nobody until another FPDU comes.  A Write of no octets is always harmless.
        if self.isEstablished or self._posted or self._isClosing:
            return
        self._sender.readyToReceive(self._out, "write")
        self.mark()
        if seconds < _READY_MOST_SECONDS:
            self.startTimer(4 * seconds, lambda: self._readyAgain(4 * seconds))

    def _begin(self) -> None:
        # Both: a queue pair, and FPDUs.
        self._watch()
        if self._rest or self.waiting:
            self.fabric.later(self)

    def _block(self) -> None:
        self._isBlocked = self._full or self.isHeld or self._isClosing or not self.isOpen

    def modified(self, queuePair: Any) -> None:
        """
        No effect: records depend on no attribute of a queue pair.
        """

    def unbind(self, queuePair: Any) -> None:
        """
        The queue pair is gone: what it has posted is still sent, then the connection ends.
        """
        if self.queuePair is not queuePair:
            return
        self.queuePair = None
        self.waiting.clear()
        self.unacknowledged.clear()
        self.finish()
        if queuePair.state is QPState.ERR:
            # The connection ends with it, of which connection management is told (as by Linux siw_cm.c
            # siw_qp_cm_drop()).
            self.fabric.service.gone(self)

    def forget(self, number: int) -> None:
        """
        No effect: a connection has one queue pair.
        """

    def expect(self, requester: Any) -> None:
        """
        No effect: nothing is refused for want of a queue pair.
        """

    def queuePairs(self) -> list[Any]:
        """
        @return: the queue pair, if there is one.
        """
        return [] if self.queuePair is None else [self.queuePair]

    # -- down

    def post(self, word: int, header: bytes, payload: Any, length: int) -> bool:
        """
        Post one record: see L{IPath.post}.
        """
        opcode = word >> 24
        if self._isBlocked or opcode == RESUME or opcode == ACKNOWLEDGE:
            return self._postNone(opcode, payload)
        if length <= _COPIED:
            # The consumer's buffers are its own again when this returns.
            kind = payload.__class__
            if kind is list:
                payload = b"".join(payload)
            elif kind is not bytes:
                payload = bytes(payload)
        if not self._sender.post(self._out, opcode, header, payload, length):
            return False
        self._posted += 1
        self._gathered += length + 64
        if not self.bell:
            self.bell = True
            self.fabric.ringLater(self)
        if length > _COPIED or self._gathered > IWARP_GATHER:
            self._flush()
        if self.waiting and (opcode == READ_RESPONSE_LAST or opcode == READ_RESPONSE_ONLY):
            # A WRITE may have waited for its end.
            self.fabric.later(self)
        return True

    def _postNone(self, opcode: int, payload: Any) -> bool:
        # What is no record on the wire needs no room.
        if opcode == ACKNOWLEDGE:
            syndrome, _, position = REFUSAL.unpack(payload)
            # A READ that cannot be answered any more; silence otherwise: the connection ends.
            if syndrome != ABSENT and not position and self.reads.inbound:
                oldest = self.reads.inbound[0]
                # The responder fails the queue pair itself, with an event of its own.
                self._end(PROTECTION_INVALID_STAG, oldest, 0, len(oldest))
            return True
        return opcode == RESUME

    def postReserved(self, word: int, body: bytes, refusal: bool) -> bool:
        """
        See L{IPath.postReserved}: a refusal, which has another form here.
        """
        return self._postNone(word >> 24, body)

    def position(self) -> int:
        """
        @return: count of records posted.
        """
        return self._posted

    def wantSpace(self, waiter: Any) -> None:
        """
        See L{IPath.wantSpace}.
        """
        self.waiting[waiter] = None

    def respond(self, word: int, record: bytes, partition: int) -> bool:
        """
        See L{IPeerPath.respond<twisted_ib.hca.base.interfaces.IPeerPath.respond>}: there are no datagrams.
        """
        return True

    def sendManagement(self, attribute: int, body: bytes, transaction: int = 0) -> None:
        """
        See L{PeerPath.sendManagement}.
        """
        self.way.sendManagement(attribute, body, transaction)

    def unsent(self) -> int:
        """
        @return: 0: connection management has no messages on the wire.
        """
        return 0

    def prepareRequest(self, request: Any) -> None:
        """
        See L{PeerPath.prepareRequest}.
        """
        self.way.prepareRequest(request)

    def prepareReply(self, reply: Any, request: Any) -> Any:
        """
        See L{PeerPath.prepareReply}.
        """
        return self.way.prepareReply(reply, request)

    def sendFrame(self, octets: bytes) -> None:
        """
        Send a startup frame.
        """
        self._out.append(octets)
        self.mark()

    def mark(self) -> None:
        """
        Schedule a flush.
        """
        if not self.bell:
            self.bell = True
            self.fabric.ringLater(self)

    def ring(self) -> None:
        """
        The batch ends: give the kernel what was posted.
        """
        self.bell = False
        if not self.alive:
            return
        if self._out and not self._full:
            self._flush()
        waiting = self.unacknowledged
        if waiting and waiting[0][0] <= self._taken:
            # Not here: a consumer that is told may post, which belongs to the next batch.
            self.fabric.later(self)
        if self._isClosing and not self._out and not self._isBusy:
            self._shut()

    def _flush(self) -> None:
        out = self._out
        self._gathered = 0
        while out:
            batch = out if len(out) <= _PIECES else out[:_PIECES]
            total = sum(map(len, batch))
            try:
                sent = self.socket.sendmsg(batch, (), _SEND_FLAGS)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError:
                # The next read says why; until then nothing more is posted.
                out.clear()
                self._full = self._isBlocked = self._isCut = True
                self.fabric.later(self)
                return
            if sent != total:
                self._keep(batch, sent)
                return
            del out[: len(batch)]
        if self._isCut:
            return
        if self._full:
            self._full = False
            self._block()
        self._taken = self._posted

    def _keep(self, batch: list[Any], sent: int) -> None:
        # The first octets of what is left are amidst an FPDU: they go before anything else.
        left: list[Any] = []
        for piece in batch:
            size = len(piece)
            if sent >= size:
                sent -= size
                continue
            left.append(memoryview(piece)[sent:] if sent else piece)
            sent = 0
        out = self._out
        rest = b"".join([*left, *out[len(batch) :]])
        out.clear()
        out.append(rest)
        self._full = self._isBlocked = True
        self._watch()

    def _watch(self) -> None:
        events = _WRITE if self._full and not self._isCut else 0
        if self._isReading():
            events |= _READ
        elif self._isWaiting():
            # A reset is to be heard of all the same.
            events |= _ERROR
        if events != self._events and self.alive:
            self._events = events
            self.fabric.watchSocket(self.socket.fileno(), self, events)

    def _isReading(self) -> bool:
        raise NotImplementedError

    def _isWaiting(self) -> bool:
        raise NotImplementedError

    def watchConnect(self) -> None:
        """
        The TCP connection is being made.
        """
        self._events = _WRITE
        self.fabric.watchSocket(self.socket.fileno(), self, _WRITE)

    def watchFrames(self, leftover: bytes = b"") -> None:
        """
        The startup frames of the peer are expected.

        @param leftover: what was received of them.
        """
        self._rest = leftover
        self._watch()
        if leftover:
            self.fabric.later(self)

    # -- the end

    def _fail(self, queuePair: Any, reason: Exception) -> None:
        # Not yet failed, as by a refused work request.
        if self.queuePair is queuePair:
            if queuePair.work is not None:
                queuePair.raiseEvent(EventType.QP_FATAL)
            queuePair.fail(reason)

    def terminate(self, termination: Termination, buffer: Any, first: int, last: int, text: str = "") -> None:
        """
        End the connection with a Terminate, for the ULPDU at fault.

        @param first: where it begins in C{buffer}, and C{last} where it ends; both 0 if there is none.
        """
        queuePair = self.queuePair
        self._end(termination, buffer, first, last)
        if queuePair is not None:
            what = text or termination.text
            try:
                self._fail(
                    queuePair,
                    QueuePairError(f"the peer of queue pair {queuePair.number} broke a rule: {what}"),
                )
            except BaseException as error:
                self.fabric.failed(error)

    def _end(self, termination: Termination, buffer: Any, first: int, last: int) -> None:
        # The octets of an FPDU that is half sent go out before it.
        if self._sender.terminate(self._out, termination, buffer, first, last):
            self.fabric.count("iwarp_terminates_sent")
        self.finish()

    def terminateStartup(self, machine: Any, termination: Termination) -> None:
        """
        Send a Terminate behind the startup frames, which did not lead to an agreement.

        @param machine: that has exchanged them: CRCs and markers are agreed to before anything else.
        """
        sender = RDMAPSender(FPDUWriter(machine.crc, machine.markersOut), MAX_ULPDU, self.reads)
        sender.terminate(self._out, termination)
        self.fabric.count("iwarp_terminates_sent")
        self.mark()

    def finish(self) -> None:
        """
        End the connection: send what was posted and FIN, then await the peer's.
        """
        if self._isClosing or not self.alive:
            return
        self._isClosing = self._isBlocked = True
        self._rest = b""
        self.startTimer(IWARP_LINGER_SECONDS, self.close)
        self.mark()

    def _shut(self) -> None:
        # Everything was given to the kernel.
        if self.isEnded:
            self.close()
        elif not self._isShut:
            self._isShut = True
            try:
                self.socket.shutdown(socket.SHUT_WR)
            except OSError:
                # It was never connected, or is not any more.
                self.close()
                return
            self._watch()

    @property
    def isUnfinished(self) -> bool:
        """
        Whether something waits to be sent, or a READ for its response.
        """
        return bool(self._out or self.reads.outstanding)

    @property
    def isClosing(self) -> bool:
        """
        Whether nothing more is posted or delivered.
        """
        return self._isClosing

    def startTimer(self, seconds: float, expired: Any) -> None:
        """
        Start its timer, instead of the one that runs.
        """
        if self.timer is not None:
            self.timer.cancel()
        self.timer = self.fabric.timers.start(seconds, expired)

    def lost(self, reason: PathLostError) -> None:
        """
        The connection is gone, or ends with the device: fail the queue pair.
        """
        queuePair = self.queuePair
        if queuePair is not None:
            queuePair.fail(reason)

    def forked(self) -> None:
        """
        In a forked child: make every use an error, and close the descriptor, which is no FIN.
        """
        self.socket.close()
        self.socket = self._sender = Forked()

    def close(self) -> None:
        """
        Close the socket; harmless if repeated.
        """
        if not self.alive:
            return
        self.alive = False
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.fabric.service.closed(self)
        if self._events:
            self.fabric.watchSocket(self.socket.fileno(), self, 0)
        self.socket.close()
        self._out.clear()
        self._rest = b""


__all__ = ["SendingPath"]
