"""
The path of one queue pair: a TCP connection whose octets are FPDUs, in both directions. Here is the half that
receives.

RFC 5041 has no RNR NAK: a message without a receive would end the stream. This side stops reading instead,
so that TCP's window holds the peer; each connection has its own, so nobody else waits.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from typing import TYPE_CHECKING, Any, Final

from zope.interface import classImplements

from twisted_ib import limits
from twisted_ib.errors import QueuePairError
from twisted_ib.hca.base.interfaces import IPath
from twisted_ib.hca.base.operation import (
    ABSENT,
    ACKNOWLEDGE,
    LATER,
    NAK_INVALID_REQUEST,
    READ_RESPONSE_ONLY,
    REFUSAL,
    RNR,
    SEND_FIRST,
    SEND_LAST,
    SEND_MIDDLE,
    SOLICITED,
    WRITE_ONLY,
)
from twisted_ib.hca.fabric.iwarp.protection import protectionOf
from twisted_ib.hca.fabric.iwarp.protocol.ddp import LAST_BIT, TAGGED_BIT, Opcode
from twisted_ib.hca.fabric.iwarp.protocol.joining import joinSends
from twisted_ib.hca.fabric.iwarp.protocol.mpastream import (
    MAX_ULPDU,
    FPDUReader,
    StreamError,
    fpduBytes,
)
from twisted_ib.hca.fabric.iwarp.protocol.receiving import RDMAPReceiver
from twisted_ib.hca.fabric.iwarp.protocol.terminate import (
    NO_BUFFER,
    TerminateMessage,
    Termination,
    TerminationError,
    syndromeOf,
    terminationOf,
)
from twisted_ib.hca.fabric.iwarp.sendingpath import SendingPath
from twisted_ib.hca.queues.reassembly import Reassembly
from twisted_ib.hca.wire.headers import RETH

if TYPE_CHECKING:
    from twisted_ib.hca.fabric.iwarp.peerpath import PeerPath

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
_READ, _WRITE, _FAILED = select.EPOLLIN, select.EPOLLOUT, select.EPOLLERR | select.EPOLLHUP
_SYNDROME_MASK: Final = 0xE0
#: In the first octet of a ULPDU: it is tagged, or the last of its message (RFC 5041 section 4.1).
_WHOLE: Final = (TAGGED_BIT | LAST_BIT) >> 8
#: Parts of a message that a stream receives as a whole.
_PARTS: Final = frozenset((SEND_FIRST, SEND_MIDDLE, SEND_LAST))


class StreamPath(SendingPath):
    """
    The path of one queue pair to its peer; before that one is bound, a TCP connection in the making.
    """

    __slots__ = ("_again", "_kept", "_left", "_parts", "_reader", "_receiver", "_since")

    def __init__(self, way: PeerPath, number: int, made: Any) -> None:
        """
        @param made: its socket, which does not block.
        """
        super().__init__(way, number, made)
        self._reader: Any = None
        self._receiver: Any = None
        self._parts: Reassembly | None = None
        # If the first ULPDU of what was received was refused for now: its bounds and its FPDU's end.
        self._kept: tuple[int, int, int] | None = None
        self._again = self._since = 0.0
        # Records that it may still receive in this turn.
        self._left = 0

    def open(self, agreed: Any, largest: int, key: int) -> None:
        """
        See L{SendingPath.open}.
        """
        super().open(agreed, largest, key)
        self._reader = FPDUReader(agreed.crc, agreed.markersIn)
        self._receiver = RDMAPReceiver(self, self.reads, agreed.rtr if self.isPassive else None)

    def _isReading(self) -> bool:
        if self.isEnded or self._kept is not None:
            return False
        # Behind a Reply nothing is read before there is a queue pair for it.
        return not self.isOpen or self.queuePair is not None or self._isClosing

    def _isWaiting(self) -> bool:
        return self._kept is not None

    def finish(self) -> None:
        """
        See L{SendingPath.finish}.
        """
        self._kept = None
        self._dropParts()
        super().finish()

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

    def _consume(self, buffer: Any, start: int, stop: int) -> int:
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
        reader, take, work = self._reader, self._receiver.take, self.queuePair.work
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

    def _refused(self, syndrome: int, work: Any, buffer: Any, start: int, end: int) -> bool:
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

    def delivered(self, opcode: int, buffer: Any, start: int, stop: int) -> int:
        """
        A record arrived.

        @return: 0, or the syndrome of a refusal.
        """
        queuePair = self.queuePair
        if queuePair is None:
            return ABSENT
        if not self.isEstablished:
            self.release()
        try:
            if opcode == WRITE_ONLY and stop - start == RETH.size:
                # No octets: its STag is not checked, as that of a ready-to-receive message (RFC 5040 section
                # 5.1), and no right is needed.
                return 0
            if queuePair.work is None or self._parts is not None:
                # The event is for a completion (IBTA vol. 1 9.2), and a stream has none.
                opcode &= ~SOLICITED
                if opcode in _PARTS:
                    return self._join(queuePair, opcode, buffer, start, stop)
            syndrome: int = queuePair.delivered(opcode, buffer, start, stop)
        except BaseException as error:
            self.fabric.failed(error)
            return 0
        if not syndrome and self.waiting and self.reads.ord > self.reads.outstanding:
            self.fabric.later(self)
        return syndrome

    def _join(self, queuePair: Any, code: int, buffer: Any, start: int, stop: int) -> int:
        # Reassembly for a stream, which receives whole messages.
        parts = self._parts
        if parts is None:
            if not queuePair.posted:
                refusal: int = queuePair.streamed(buffer, start, stop)
                return refusal
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
        syndrome: int = queuePair.streamed(message, 0, len(message))
        return syndrome

    def _dropParts(self) -> None:
        parts, self._parts = self._parts, None
        if parts is not None:
            parts.drop()

    def readyToReceive(self) -> None:
        """
        The initiator's ready-to-receive message came.
        """
        if self.reads.inbound:
            self._sender.post(self._out, READ_RESPONSE_ONLY, b"", b"", 0)
            self.mark()
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
            # The message counts as the RTU, which iWARP does not have (IBTA vol. 1 12.9.8).
            self.fabric.service.established(self)

    def terminated(self, message: TerminateMessage) -> None:
        """
        The peer has terminated the stream.
        """
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

__all__ = ["RECEIVE_BYTES", "StreamPath"]
