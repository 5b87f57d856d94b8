"""
The path of one queue pair: a TCP connection whose octets are FPDUs, in both directions.

Records are given to the kernel at the end of the batch, and count as completed then: iWARP has no
acknowledgement of a message (RFC 5040 section 5.4). Bytes that the kernel does not take at once wait here,
and nothing more is posted meanwhile.

RFC 5041 has no RNR NAK: a message without a receive would end the stream. This side stops reading instead,
so that TCP's window holds the peer; each connection has its own, so nobody else waits.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final

from zope.interface import classImplements

from twisted_ib import limits
from twisted_ib.drive.process import Forked
from twisted_ib.errors import PathLostError, QueuePairError
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.base.interfaces import IPath
from twisted_ib.hca.base.operation import ABSENT, LATER, REFUSAL, RESUME, SOLICITED
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.base.timers import Timer
from twisted_ib.hca.fabric.base.path import Waiters
from twisted_ib.hca.fabric.base.streams import OwnPath
from twisted_ib.hca.fabric.iwarp.protocol.ddp import LAST_BIT, TAGGED_BIT, UNTAGGED, Opcode
from twisted_ib.hca.fabric.iwarp.protocol.mpastream import (
    MAX_ULPDU,
    FPDUReader,
    FPDUWriter,
    StreamError,
    fpduBytes,
    joinSends,
)
from twisted_ib.hca.fabric.iwarp.protocol.reads import Reads
from twisted_ib.hca.fabric.iwarp.protocol.receiving import RDMAPReceiver
from twisted_ib.hca.fabric.iwarp.protocol.sending import RDMAPSender
from twisted_ib.hca.fabric.iwarp.protocol.terminate import (
    NO_BUFFER,
    PROTECTION_INVALID_STAG,
    TerminateMessage,
    Termination,
    TerminationError,
    protectionOf,
    syndromeOf,
    terminationOf,
)
from twisted_ib.hca.queues.reassembly import Reassembly
from twisted_ib.hca.wire.headers import NAK_INVALID_REQUEST, RETH, RNR
from twisted_ib.hca.wire.opcodes import (
    ACKNOWLEDGE,
    READ_RESPONSE_LAST,
    READ_RESPONSE_ONLY,
    SEND_FIRST,
    SEND_LAST,
    SEND_MIDDLE,
    WRITE_ONLY,
)

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import Acknowledged, BoundQueuePair, Buffer, Waiter
    from twisted_ib.hca.fabric.iwarp.connection import MPAConnection
    from twisted_ib.hca.fabric.iwarp.iwarp import IWARPFabric
    from twisted_ib.hca.fabric.iwarp.peerpath import Setup, StreamPeerPath

#: Octets that are gathered for one system call; longer payloads are sent from where they are.
IWARP_GATHER = 64 * 1024
_COPIED: Final = 8 * 1024
#: How long a connection without a queue pair waits for the peer's FIN, in seconds: a socket that is closed
#: with octets unread sends RST, and the peer would lose what it has not read (RFC 1122 section 4.2.2.13).
IWARP_LINGER_SECONDS = 5.0
#: How long an initiator waits for the peer's first FPDU, in seconds, before it says again that it is ready;
#: four times as long then, and the longest of these times.
_READY_SECONDS: Final = 0.05
_READY_MOST_SECONDS: Final = 0.8
#: Buffers of one sendmsg(2): UIO_MAXIOV.
_PIECES: Final = 1024
_SEND_FLAGS: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_READ, _WRITE, _ERROR = select.EPOLLIN, select.EPOLLOUT, select.EPOLLERR
_FAILED = _ERROR | select.EPOLLHUP
_UNTAGGED_BYTES: Final = UNTAGGED.size
#: The octets that are received at once: one FPDU of the longest ULPDU, with markers. So a connection that is
#: not read from, or has received a part of an FPDU, keeps no more.
RECEIVE_BYTES = (fpduBytes(MAX_ULPDU, True) + 4095) & ~4095
#: Segments that are joined into one record count as one for each so many octets: they may be tiny.
JOINED_BYTES: Final = 1024
#: How long a message waits for a receive, in seconds; then the stream ends, as RFC 5041 has it at once.
IWARP_NO_RECEIVE_SECONDS = 10.0
#: The first and the longest interval at which a waiting message is tried again, in seconds.
_AGAIN_SECONDS: Final = 0.0005
_AGAIN_MOST_SECONDS: Final = 0.05
_SYNDROME_MASK: Final = 0xE0
#: In the first octet of a ULPDU: it is tagged, or the last of its message (RFC 5041 section 4.1).
_WHOLE: Final = (TAGGED_BIT | LAST_BIT) >> 8
#: Parts of a message that a stream receives as a whole.
_PARTS: Final = frozenset((SEND_FIRST, SEND_MIDDLE, SEND_LAST))


class StreamPath(Waiters, OwnPath):
    """
    The path of one queue pair to its peer; before that one is bound, a TCP connection in the making.

    @ivar way: the path to the peer's address.
    @ivar number: stands for the peer's queue pair.
    @ivar connection: its connection, as long as the user of that is to be told of the end.
    @ivar queuePair: the queue pair, or L{None}.
    @ivar startup: the exchange of MPA's startup frames; L{None} once it is over.
    @ivar isOpen: whether FPDUs are exchanged.
    @ivar isHeld: whether nothing may be sent before the peer's first FPDU.
    @ivar isEnded: whether the peer's FIN has come.
    @ivar isPassive: whether the peer has sent the Request.
    @ivar isEstablished: whether the peer is known to be ready.
    @ivar bell: whether a flush is scheduled.

    See L{IReceiverUser<twisted_ib.hca.fabric.iwarp.protocol.receiving.IReceiverUser>}.
    """

    inPackets: ClassVar = True
    recordBytes: ClassVar = limits.INLINE_MESSAGE
    inSegments: ClassVar = True
    retransmits: ClassVar = 0
    # One FPDU; towards a peer that takes shorter ones a message is cut, which costs less than another
    # message.
    messageBytes: ClassVar = MAX_ULPDU - _UNTAGGED_BYTES

    __slots__ = (
        "_again",
        "_events",
        "_full",
        "_gathered",
        "_isBlocked",
        "_isBusy",
        "_isClosing",
        "_isCut",
        "_isShut",
        "_kept",
        "_left",
        "_out",
        "_parts",
        "_posted",
        "_reader",
        "_receiver",
        "_rest",
        "_sender",
        "_since",
        "_taken",
        "alive",
        "bell",
        "connection",
        "fabric",
        "isEnded",
        "isEstablished",
        "isHeld",
        "isOpen",
        "isPassive",
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

    def __init__(self, way: StreamPeerPath, number: int, made: Any) -> None:
        """
        @param made: its socket, which does not block.
        """
        self.way = way
        self.fabric: IWARPFabric = way.fabric
        self.peer = way.peer
        self.number = number
        self.connection: MPAConnection | None = None
        self.socket: socket.socket = made
        self.queuePair: BoundQueuePair | None = None
        self.scheduler: Any = None
        self.alive = True
        self.bell = self.isOpen = self.isHeld = self.isEnded = self.isEstablished = self.isPassive = False
        self.startup: Setup | None = None
        self.timer: Timer | None = None
        self.waiting: OrderedDict[Waiter, None] = OrderedDict()
        self.unacknowledged: deque[tuple[int, Acknowledged]] = deque()
        self.track: Any = self.unacknowledged.append
        self.reads = Reads(0, 0, 0)
        self._sender: RDMAPSender
        # What waits for the end of the batch, or for the kernel; records posted, and taken by the kernel.
        self._out: list[Buffer] = []
        self._gathered = self._posted = self._taken = 0
        self._full = self._isBusy = self._isShut = self._isClosing = False
        # Whether TCP takes nothing any more.
        self._isCut = False
        # Whether nothing is posted now, for one of several reasons.
        self._isBlocked = True
        # Received and not consumed.
        self._rest = b""
        self._events = 0
        self._reader: FPDUReader
        self._receiver: RDMAPReceiver
        self._parts: Reassembly | None = None
        # If the first ULPDU of what was received was refused for now: its bounds and its FPDU's end.
        self._kept: tuple[int, int, int] | None = None
        self._again = self._since = 0.0
        # Records that it may still receive in this turn.
        self._left = 0

    # -- the queue pair

    def attach(self, queuePair: BoundQueuePair) -> None:
        """
        The path is this queue pair's.
        """
        self.queuePair = queuePair
        if self.isOpen:
            self._begin()

    def open(self, agreed: Any, largest: int, key: int, receives: int = 0) -> None:
        """
        The startup frames were exchanged: FPDUs follow.

        @param agreed: the machine that has exchanged them.
        @param largest: the longest ULPDU to send.
        @param key: see L{Reads}.
        @param receives: how many messages the peer has receives for; 0 for any number.
        """
        self.startup = None
        self.isOpen = True
        self.reads = Reads(agreed.ird, agreed.ord, key)
        self._sender = RDMAPSender(FPDUWriter(agreed.crc, agreed.markersOut), largest, self.reads)
        if receives:
            self._sender.limit(receives)
        self._reader = FPDUReader(agreed.crc, agreed.markersIn)
        self._receiver = RDMAPReceiver(self, self.reads, agreed.rtr if self.isPassive else None)
        self.isHeld = agreed.holds
        if not self.isPassive:
            # The responder may send as soon as an FPDU has come, which a Write of no octets is also where no
            # such message was agreed to.
            self._sender.readyToReceive(self._out, agreed.rtr or "write")
            self.mark()
            self.startTimer(_READY_SECONDS, lambda: self._readyAgain(_READY_SECONDS))
        self._block()
        if self.queuePair is not None:
            self._begin()

    def _readyAgain(self, seconds: float) -> None:
        # Linux siw_cm.c siw_accept() sends the Reply before it listens for FPDUs: one that comes between
        # wakes nobody until another comes.  A Write of no octets is always harmless.
        if self.isEstablished or self._isClosing:
            return
        self._sayReady()
        if seconds < _READY_MOST_SECONDS:
            self.startTimer(4 * seconds, lambda: self._readyAgain(4 * seconds))

    def _sayReady(self) -> None:
        self._sender.readyToReceive(self._out, "write")
        self.mark()

    def _begin(self) -> None:
        # Both: a queue pair, and FPDUs.
        self._watch()
        if self._rest or self.waiting:
            self.fabric.later(self)

    def _block(self) -> None:
        self._isBlocked = self._full or self.isHeld or self._isClosing or not self.isOpen

    def unbind(self, queuePair: BoundQueuePair) -> None:
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
            # The connection ends with it, of which its user is told (as by Linux siw_cm.c
            # siw_qp_cm_drop()).
            self.fabric.service.gone(self)

    # -- down

    def post(self, word: int, header: bytes, payload: Any, length: int) -> bool:
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
        # It is a refusal, which has another form here.
        return self._postNone(word >> 24, body)

    def position(self) -> int:
        return self._posted

    def sendFrame(self, octets: bytes) -> None:
        """
        Send a startup frame.
        """
        self._out.append(octets)
        self.mark()

    def mark(self) -> None:
        """
        Have L{ring} called at the end of the batch.
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

    def _keep(self, batch: list[Buffer], sent: int) -> None:
        # The first octets of what is left are amidst an FPDU: they go before anything else.
        left: list[Buffer] = []
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
        if self.isEnded or self._kept is not None:
            return False
        # Behind a Reply nothing is read before there is a queue pair for it.
        return not self.isOpen or self.queuePair is not None or self._isClosing

    def _isWaiting(self) -> bool:
        return self._kept is not None

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

    def _fail(self, queuePair: BoundQueuePair, reason: Exception) -> None:
        # Not yet failed, as by a refused work request.
        if self.queuePair is queuePair:
            if queuePair.work is not None:
                queuePair.raiseEvent(EventType.QP_FATAL)
            queuePair.fail(reason)

    def terminate(
        self, termination: Termination, buffer: Buffer, first: int, last: int, text: str = ""
    ) -> None:
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

    def _end(self, termination: Termination, buffer: Buffer, first: int, last: int) -> None:
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
        self._kept = None
        self._dropParts()
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

    def startTimer(self, seconds: float, expired: Callable[[], None]) -> None:
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
        gone: Any = Forked()
        self.socket = self._sender = gone

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

    # -- up

    def ready(self, events: int, budget: int) -> int:
        """
        The socket is ready.

        @return: how much was done.
        """
        if not self.alive:
            return 0
        startup = self.startup
        if startup is not None and startup.isDialling:
            self.fabric.service.dialled(self)
            return 1
        n = 0
        if events & _WRITE and self._full:
            self._flush()
            self._watch()
            if not self._full:
                n += self._roomy()
            if self._isClosing:
                # Its end waits for the last octets.
                self.mark()
        if events & _FAILED and self._kept is not None and self.alive:
            code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) or errno.ECONNRESET
            self.fabric.service.broken(self, OSError(code, os.strerror(code)))
        elif events & ~_WRITE and self.alive and not self._isBusy:
            n += self._read(budget)
        return n

    def progress(self, budget: int) -> int:
        """
        Do what needs no readiness of the socket: complete requests, resume waiters, consume what was
        received.

        @return: how much was done.
        """
        if not self.alive or self._isBusy:
            return 0
        n = self._roomy()
        if self._rest or (self._full and not self._out):
            n += self._read(budget)
        return n

    def _roomy(self) -> int:
        n = 0
        waiting, taken = self.unacknowledged, self._taken
        while waiting and waiting[0][0] <= taken:
            reached, requester = waiting.popleft()
            n += 1
            try:
                requester.acknowledged(reached)
            except BaseException as error:
                self.fabric.failed(error)
        if self.waiting and not self._isBlocked:
            try:
                n += self.resumeWaiting()
            except BaseException as error:
                self.fabric.failed(error)
        return n

    def _read(self, budget: int) -> int:
        fabric = self.fabric
        buffer, view, size = fabric.buffer, fabric.view, RECEIVE_BYTES
        rest, self._rest = self._rest, b""
        start, stop, n = 0, len(rest), 0
        self._left = budget
        self._isBusy = True
        try:
            if stop:
                buffer[:stop] = rest
                start = self._consume(buffer, 0, stop)
                n = 1
            while self.alive and self._isReading() and self._left > 0 and n < budget:
                if start:
                    buffer[: stop - start] = buffer[start:stop]
                    start, stop = 0, stop - start
                got = self._receive(view, stop)
                if got <= 0:
                    break
                n += 1
                asked = size - stop
                stop += got
                start = self._consume(buffer, 0, stop)
                if got < asked:
                    break
        finally:
            self._isBusy = False
            if self.alive and start < stop:
                self._rest = buffer[start:stop]
        if self.alive:
            self._settle()
        return n

    def _receive(self, view: memoryview, stop: int) -> int:
        try:
            got: int = self.socket.recv_into(view[stop:], 0, socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            self.fabric.service.broken(self, error)
            return -1
        if not got:
            self.isEnded = True
        return got

    def _settle(self) -> None:
        # After the records: the ends that were found among them.
        self._watch()
        if self.isEnded:
            self.fabric.service.ended(self, bool(self._rest))
        if self._isClosing and self.alive:
            self.mark()

    def _consume(self, buffer: bytearray | memoryview, start: int, stop: int) -> int:
        # Returns where the octets begin that are left.
        if not self.isOpen:
            start = self.fabric.service.frames(self, buffer, start, stop)
            if not self.isOpen or self.queuePair is None:
                return start
        if self._isClosing:
            # Nobody is left to take it.
            return stop
        if self._kept is not None:
            return start
        queuePair = self.queuePair
        reader, take = self._reader, self._receiver.take
        work = None if queuePair is None else queuePair.work
        joins, left = not reader.hasMarkers, self._left
        try:
            while left > 0:
                left -= 1
                end = reader.next(buffer, start, stop)
                if not end:
                    return start
                if not buffer[reader.first] & _WHOLE and joins:
                    end = joinSends(reader, buffer, end, stop)
                    left -= (end - start) // JOINED_BYTES
                syndrome = take(buffer, reader.first, reader.last)
                if syndrome and not self._refused(syndrome, work, buffer, start, end):
                    return start
                start = end
                if self._isClosing or not self.alive:
                    return stop
            # Octets may be thousands of records, and others wait.
            self.fabric.later(self)
            return start
        except TerminationError as error:
            fabric = self.fabric
            fabric.count("iwarp_terminated")
            self.terminate(error.termination, buffer, reader.first, reader.last, str(error))
        except StreamError as error:
            self.fabric.count("iwarp_bad_fpdus")
            self.terminate(Termination(2, 0, int(error.code)), b"", 0, 0, str(error))
        finally:
            self._left = left
        return stop

    def _refused(self, syndrome: int, work: Any, buffer: Buffer, start: int, end: int) -> bool:
        # Returns whether the ULPDU is done with.
        reader = self._reader
        if syndrome == LATER or syndrome & _SYNDROME_MASK == RNR:
            now = self.fabric.clock()
            if self.queuePair is not None and (
                not self._again or now - self._since < IWARP_NO_RECEIVE_SECONDS
            ):
                if not self._again:
                    self._again, self._since = _AGAIN_SECONDS, now
                self._kept = reader.first - start, reader.last - start, end - start
                self.fabric.timers.start(self._again, self._tryAgain)
                self._again = min(2 * self._again, _AGAIN_MOST_SECONDS)
                return False
            termination = NO_BUFFER
        else:
            # RFC 5041 and 5040 tell the errors of memory apart, which have one syndrome in InfiniBand.
            opcode, protection = buffer[reader.first + 1] & 0xF, None
            if opcode in (Opcode.WRITE, Opcode.READ_REQUEST):
                protection = protectionOf(work, opcode, buffer, reader.first, reader.last)
            termination = terminationOf(opcode, syndrome, protection)
        self.terminate(termination, buffer, reader.first, reader.last)
        return True

    def _tryAgain(self) -> None:
        # The same ULPDU once more; its FPDU was found, and its markers counted, before.
        kept, self._kept = self._kept, None
        if kept is None or not self.alive:
            return
        fabric = self.fabric
        first, last, end = kept
        buffer, rest = fabric.buffer, self._rest
        if fabric.isBusy:
            # Within another stream's turn, whose octets are in the buffer.
            self._kept = kept
            fabric.timers.start(self._again, self._tryAgain)
            return
        buffer[: len(rest)] = rest
        # A consumer may give the device a turn: no other stream may receive into the buffer then.
        self._isBusy = fabric.isBusy = True
        queuePair = self.queuePair
        work = None if queuePair is None else queuePair.work
        try:
            self._reader.first, self._reader.last = first, last
            syndrome = self._receiver.take(buffer, first, last)
            if syndrome and not self._refused(syndrome, work, buffer, 0, end):
                return
        except TerminationError as error:
            self.terminate(error.termination, buffer, first, last, str(error))
        finally:
            self._isBusy = fabric.isBusy = False
        if self._kept is None:
            self._again = 0.0
            self._rest = rest[end:]
            self._watch()
            # Octets that came meanwhile are in the kernel, and others are left here.
            fabric.later(self)

    # -- calls of the receiver

    def delivered(self, opcode: int, buffer: Buffer, start: int, stop: int) -> int:
        queuePair = self.queuePair
        if queuePair is None:
            return ABSENT
        isFirst = not self.isEstablished
        if isFirst:
            self.release()
        try:
            if opcode == WRITE_ONLY and stop - start == RETH.size:
                # No octets: its STag is not checked, as that of a ready-to-receive message (RFC 5040 section
                # 5.1), and no right is needed.  Of a peer that has told of its receives its address is their
                # number.
                receives: int = RETH.unpack_from(buffer, start)[0]
                if self._sender.admit(receives) and self.waiting:
                    self.fabric.later(self)
                if isFirst and self.isPassive and not receives:
                    self._sayReady()
                return 0
            if queuePair.work is None or self._parts is not None:
                # The event is for a completion (IBTA vol. 1 9.2), and a stream has none.
                opcode &= ~SOLICITED
                if opcode in _PARTS:
                    return self._join(queuePair, opcode, buffer, start, stop)
            syndrome = queuePair.delivered(opcode, buffer, start, stop)
        except BaseException as error:
            self.fabric.failed(error)
            return 0
        if not syndrome and self.waiting and self.reads.ord > self.reads.outstanding:
            self.fabric.later(self)
        return syndrome

    def _join(self, queuePair: BoundQueuePair, code: int, buffer: Buffer, start: int, stop: int) -> int:
        # Reassembly for a stream, which receives whole messages.
        parts = self._parts
        if parts is None:
            if not queuePair.posted:
                return queuePair.streamed(buffer, start, stop)
            parts = self._parts = Reassembly(queuePair)
        parts.add(buffer[start:stop])
        if parts.size > limits.INLINE_RECORD:
            self._dropParts()
            number = queuePair.number
            queuePair.fail(QueuePairError(f"the peer of queue pair {number} sent too long a message"))
            return NAK_INVALID_REQUEST
        if code != SEND_LAST:
            return 0
        self._parts = None
        message = parts.take()
        # There was a receive when the message began: a consumer that has withdrawn its receives since then
        # still gets this one.
        queuePair.posted = queuePair.posted or 1
        return queuePair.streamed(message, 0, len(message))

    def _dropParts(self) -> None:
        parts, self._parts = self._parts, None
        if parts is not None:
            parts.drop()

    def readyToReceive(self) -> None:
        if self.reads.inbound:
            self._sender.post(self._out, READ_RESPONSE_ONLY, b"", b"", 0)
            self.mark()
        else:
            # So that the peer knows that it was heard, and need not say it again.
            self._sayReady()
        self.release()

    def release(self) -> None:
        """
        The peer takes FPDUs: send what was held, and count as connected.
        """
        isFirst, self.isEstablished = not self.isEstablished, True
        if self.isHeld:
            self.isHeld = False
            self._block()
            self.fabric.later(self)
        queuePair = self.queuePair
        if isFirst and queuePair is not None and queuePair.device is not None:
            self.fabric.service.established(self)

    def terminated(self, message: TerminateMessage) -> None:
        fabric, queuePair = self.fabric, self.queuePair
        fabric.count("iwarp_terminates_received")
        if queuePair is None:
            return
        reason = message.termination.text
        text = f"the peer of queue pair {queuePair.number} has terminated the connection: {reason}"
        try:
            if message.isOfRead and queuePair.work is not None:
                body = REFUSAL.pack(syndromeOf(message.termination), queuePair.number, 0)
                queuePair.delivered(ACKNOWLEDGE, body, 0, len(body))
            self._fail(queuePair, QueuePairError(text))
        except BaseException as error:
            fabric.failed(error)


classImplements(StreamPath, IPath)
