"""
The queue pair of a stream, as which each other one begins: state, numbers, and what crosses the seam (IBTA
vol. 1 10.2.4).

A queue pair stands between its I{consumer} (SDP, RDS, verbs) and a I{path} to one peer's HCA.  It has two
modes:

  - stream: L{StreamQueuePair.postInline} down and C{consumer.received(buffer, start, stop)} up.  It makes no
    work request, no completion and no copy beyond the one into and the one out of the medium.  A posted
    receive is only a number, in C{posted};
  - work requests, which name memory, complete and are repeated when refused: the C{work} object, made when
    first needed.

Membership in the path's table is the state check for arriving records: a queue pair is entered when it can
receive (RTR) and removed when it cannot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from twisted_ib import limits
from twisted_ib.compilation import mypyc_attr
from twisted_ib.errors import PathLostError, QueuePairError, ResourceLimitError
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.base.operation import RESPONSES, SILENT, SOLICITED
from twisted_ib.hca.base.partition import DEFAULT_PKEY, PartitionTable, isValid
from twisted_ib.hca.base.states import RECEIVING, QPState, QPType
from twisted_ib.hca.wire.headers import NAK_INVALID_REQUEST, RETH, RNR
from twisted_ib.hca.wire.opcodes import ACKNOWLEDGE, SEND_ONLY, WRITE_ONLY

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import Buffer, IPath

_RC: Final = QPType.RC
_RESET: Final = QPState.RESET
_INIT: Final = QPState.INIT
_RTS: Final = QPState.RTS
_RECORD: Final = limits.INLINE_RECORD
#: Of a queue pair without a device.
_PARTITIONS: Final = PartitionTable()
#: The operation of a stream's record, and the same with a solicited event.
SEND: Final = SEND_ONLY << 24
SEND_SOLICITED: Final = (SEND_ONLY | SOLICITED) << 24


@mypyc_attr(allow_interpreted_subclasses=True)
class RecordReceiver:
    """
    An entry of a path's table: a queue pair, or what stands there for one.
    """

    # One base class for all: between compiled classes C{delivered} is then a call of C, not of Python.
    __slots__ = ()

    def delivered(self, opcode: int, buffer: Buffer, start: int, stop: int) -> int:
        """
        A record arrived.

        @param buffer: The medium's own buffer, whose slices are L{bytes}; valid during this call only.
        @return: 0, or the syndrome of a NAK.
        """
        raise NotImplementedError

    def severalDelivered(self, opcode: int, buffer: Buffer, spans: list[tuple[int, int]]) -> int:
        """
        Several short records of one operation arrived, of which none is to be refused.

        @param buffer: As of L{delivered}.
        @param spans: Where each begins and ends.
        @return: How many of the first were processed; the others are delivered one by one.
        """
        return 0


@mypyc_attr(allow_interpreted_subclasses=True)
class StreamQueuePair(RecordReceiver):
    """
    A queue pair that carries messages: all that a stream needs.  See
    L{WorkedQueuePair<twisted_ib.hca.base.interfaces.roles.WorkedQueuePair>}.

    @ivar number: The queue pair number, 24 bits.
    @ivar remote: The peer's queue pair number; before RTR 0, or once it has asked a process for a connection
        its own.
    @ivar path: The path to the peer, L{None} before RTR, or until it is resolved.
    @ivar posted: Receives posted and not used.
    @ivar pending: Inline sends that the medium had no room for, in order: tuples of word, header, payload,
        length.  L{None} when there are none.
    @ivar work: The work queues, or what takes a UD queue pair's datagrams without them, or L{None}.
    @ivar partition: Its P_Key, which C{pkey_index} has chosen from the port's table; without that the first.
    @ivar sends: The operation of its inline messages, C{SEND} or C{SEND_SOLICITED}.
    @ivar waits: Whether a message without a posted receive draws an RNR NAK; the path's transport must
        repeat it then.  Otherwise it is an error of the peer.
    @ivar gathers: Whether a solicited message is several, which the consumer takes as C{severalReceived}.
    @ivar failsWithPath: Whether the end of the peer's HCA is an error at once.  If not, a reliable connection
        keeps its state and its receives, and what is posted fails by its retries.
    """

    __slots__ = (
        "consumer",
        "device",
        "number",
        "partition",
        "path",
        "pending",
        "posted",
        "remote",
        "state",
        "work",
    )

    # Class attributes: a L{QueuePair} has one in its dictionary only if it differs.
    maxMessage = limits.INLINE_MESSAGE
    sends = SEND
    waits = False
    gathers = False
    failsWithPath = True

    def __init__(self, number: int, consumer: Any, device: Any = None) -> None:
        """
        Make a queue pair in RESET.

        @param number: Its number, 24 bits, of the local HCA.
        @param consumer: An L{IConsumer<twisted_ib.hca.queues.consumers.IConsumer>}.
        @param device: Counts and keeps time for it.
        """
        self.number = number
        self.consumer = consumer
        self.device = device
        self.partition = DEFAULT_PKEY
        self.state: QPState = _RESET
        self.remote = 0
        self.path: IPath | None = None
        self.posted = 0
        self.pending: deque[tuple[int, bytes, Buffer | Sequence[Buffer], int]] | None = None
        self.work: Any = None

    # -- attributes of which a stream's queue pair changes none: they take no memory there, as there may be
    # many, in the compiled form neither, where an instance has what its class has (a callable could not be
    # one: mypyc calls the base's property, not the subclass's attribute)

    @property
    def type(self) -> QPType:
        return _RC

    @property
    def vector(self) -> Any:
        return None

    @property
    def attributes(self) -> dict[str, Any] | None:
        return None

    @property
    def proposal(self) -> Any:
        return None

    @property
    def minRNRTimer(self) -> int:
        return 0

    # -- states

    def _partitions(self) -> PartitionTable:
        if self.device is None:
            return _PARTITIONS
        table: PartitionTable = self.device.partitions
        return table

    def joinPartition(self, index: int) -> None:
        self.partition = self._partitions().key(index)

    def partitionsChanged(self) -> None:
        """
        The port's P_Key table has changed: follow the slot, and fail if no partition is left in it.
        """
        self.joinPartition((self.attributes or {}).get("pkey_index", 0))
        if self.state not in RECEIVING:
            return
        if not isValid(self.partition):
            self.fail(QueuePairError(f"the partition of queue pair {self.number} was removed"))
        elif self.path is not None:
            self.path.modified(self)

    def connect(self, path: IPath, remote: int, message: Any = None) -> None:
        """
        Take a new queue pair through INIT and RTR to RTS, for streams: other attributes keep their
        defaults.

        @param path: The path to the peer's HCA.
        @param remote: The peer's queue pair number.
        @param message: The peer's request or reply, for packet fabrics: it has sequence numbers, path MTU and
            timeouts.
        @raise QueuePairError: the queue pair is not in RESET or INIT, or its port is in no partition.
        """
        if self.state > _INIT:
            raise QueuePairError(f"queue pair {self.number} is in {self.state.name}, not RESET or INIT")
        if self.partition != DEFAULT_PKEY and not isValid(self.partition):
            raise QueuePairError(f"queue pair {self.number} is in no partition")
        self.remote = remote
        # A stream does not keep what it sent and never sends RESUME: records that came too early
        # are lost.  Its own sequence numbers show that, and it ends with an error.
        path.forget(self.number)
        self.path = path.bind(self, message)
        self.state = _RTS

    def raiseEvent(self, kind: EventType) -> None:
        pass  # IBTA vol. 1 11.6.3: nobody asks a stream's for them.

    def makeWork(self) -> bool:
        """
        The peer asks for an operation and there are no work queues: make them, if they are to be made then.

        @return: Whether there are some now; a stream takes nothing but messages.
        """
        return False

    def stop(self, reason: Exception) -> None:
        # IBTA vol. 1 10.3.1.6: a send request of an unreliable queue pair failed.  Posted sends are flushed
        # until it is brought back to RTS; receiving goes on.
        if self.state in (QPState.RTS, QPState.SQD):
            self.state = QPState.SQE
            self.work.stopped(reason)

    def pathLost(self, reason: PathLostError) -> None:
        # IBTA vol. 1 9.8.2 and 9.7.6.1.3: a channel adapter is not told of its peer's end.  An unreliable
        # connection never learns of it, a reliable one when its retries are exhausted.
        if self.work is not None and (self.type == QPType.UC or not self.failsWithPath):
            self._leave()
            self.work.requester.pathLost()
        else:
            self.fail(reason)

    def fail(self, reason: Exception) -> None:
        if self.state in (QPState.ERR, QPState.RESET):
            return
        # Taken first: a completion's callback may close the queue pair and forget the consumer.
        consumer = self.consumer
        self.state = QPState.ERR
        self._leave()
        if self.work is not None:
            self.work.failed(reason)
        consumer.failed(reason)

    def close(self) -> None:
        """
        Destroy the queue pair: nothing is delivered or sent any more.
        """
        self.state = _RESET
        self._leave()
        if self.work is not None:
            self.work.closed()
        device, self.device = self.device, None
        if device is not None:
            device.queuePairClosed(self)

    def _leave(self) -> None:
        # Callers leave before they flush or notify: a callback must not see one more record
        # delivered.
        path, self.path = self.path, None
        if path is not None:
            path.unbind(self)
            if self.work is not None:
                path.wantNoSpace(self.work.requester)
        elif self.vector is not None and self.device is not None:
            # It may be looked for.
            self.device.paths.leave(self)
        self.pending = None
        self.posted = 0

    # -- down

    def postInline(self, header: bytes, payload: Buffer | Sequence[Buffer], length: int) -> None:
        """
        Send one message without a completion; it is copied into the medium, or kept, in order, until that
        has room.

        @param header: The first bytes of the message.
        @param payload: The rest: bytes-like, or a list of bytes-like objects.  It must not change until it
            is sent, except a memoryview, which may change at once.
        @param length: Bytes in C{payload}.
        @raise QueuePairError: not in RTS, or longer than L{maxMessage}.
        @raise ResourceLimitError: L{limits.INLINE_SENDS} messages wait.
        """
        if self.state is not _RTS or length > self.maxMessage:
            raise QueuePairError(
                f"queue pair {self.number} in {self.state.name} cannot send"
                f" {length} bytes (at most {self.maxMessage})"
            )
        # Stream.postWritten and Stream.deliver inline this, to save a call per message: change all.
        if self.pending or not self.path.post(  # type: ignore[union-attr]
            self.sends | self.remote, header, payload, length
        ):
            self.keep(header, payload, length)

    def keep(self, header: bytes, payload: Buffer | Sequence[Buffer], length: int) -> None:
        """
        Queue a message until the medium has room.

        @raise ResourceLimitError: L{limits.INLINE_SENDS} messages wait.
        """
        pending = self.pending
        if pending is None:
            pending = self.pending = deque()
        elif len(pending) >= limits.INLINE_SENDS:
            raise ResourceLimitError(f"queue pair {self.number} has {len(pending)} sends waiting")
        if payload.__class__ is memoryview and payload.obj.__class__ is not bytes:
            # The lender of a view may reuse its buffer after the call.
            payload = bytes(payload)
        if not pending:
            assert self.path is not None
            self.path.wantSpace(self)
        pending.append((self.sends | self.remote, header, payload, length))

    def postNothing(self) -> bool:
        """
        Write no bytes to no address, as a keep-alive (OFED): the peer ignores it, and a refusal shows that
        it is gone.

        @return: Whether the medium accepted it; if not, other records are outstanding, which serve as
            well.
        """
        if self.path is None or self.pending is not None:
            return False
        self.path.expect(self)
        return self.path.post(WRITE_ONLY << 24 | self.remote, bytes(RETH.size), b"", 0)

    def postControl(self, message: bytes | None) -> bool:
        """
        Send a message of a header alone.

        @param message: L{None} where there are no credits for it.
        @return: Whether it was sent.
        """
        if message is not None:
            self.postInline(message, b"", 0)
        return message is not None

    def canPost(self) -> bool:
        """
        @return: Whether L{postInline} has room for one more message.
        """
        pending = self.pending
        return pending is None or len(pending) < limits.INLINE_SENDS

    def postReceives(self, count: int) -> None:
        """
        Post C{count} more receives.
        """
        self.posted += count

    def resume(self) -> None:
        """
        The medium has room: send pending messages, then resume the consumer.
        """
        pending, path = self.pending, self.path
        if path is None:
            return
        while pending:
            if not path.post(*pending[0]):
                path.wantSpace(self)
                return
            pending.popleft()
        self.pending = None
        self.consumer.resume()

    # -- up

    def delivered(self, opcode: int, buffer: Buffer, start: int, stop: int) -> int:
        work = self.work
        if work is not None:
            syndrome: int = work.delivered(opcode, buffer, start, stop)
            return syndrome
        if opcode == SEND_ONLY:
            posted = self.posted
            if posted and stop - start <= _RECORD:
                self.posted = posted - 1
                self.consumer.received(buffer, start, stop)
                return 0
            return self._refuse(posted)
        return self._deliveredOther(opcode, buffer, start, stop)

    def severalDelivered(self, opcode: int, buffer: Buffer, spans: list[tuple[int, int]]) -> int:
        work = self.work
        return 0 if work is None else work.severalDelivered(opcode, buffer, spans)

    def streamed(self, buffer: Buffer, start: int, stop: int) -> int:
        posted = self.posted
        if posted and stop - start <= _RECORD:
            self.posted = posted - 1
            self.consumer.received(buffer, start, stop)
            return 0
        return self._refuse(posted)

    def _refuse(self, posted: int) -> int:
        if self.waits and not posted:
            if self.device is not None:
                self.device.count("send_rnr_err")
            return RNR | self.minRNRTimer
        # A stream has credits (SDP: annex A4) and cannot be repeated, so that no receive is a
        # protocol error of the peer, not a reason for an RNR wait.
        self.fail(
            QueuePairError(
                f"the peer of queue pair {self.number} sent more than it had credits for"
                if not posted
                else f"the peer of queue pair {self.number} sent too long a message"
            )
        )
        return RNR | self.minRNRTimer if not posted else NAK_INVALID_REQUEST

    def _deliveredOther(self, opcode: int, buffer: Buffer, start: int, stop: int) -> int:
        if opcode not in RESPONSES and self.makeWork():
            answer: int = self.work.delivered(opcode, buffer, start, stop)
            return answer
        if opcode == ACKNOWLEDGE:
            # A stream does not keep what it sent: a refusal cannot be repaired by sending again.
            if stop > start and buffer[start] == SILENT:
                if self.device is not None:
                    self.device.count("retry_exceeded_err")
                self.fail(QueuePairError(f"the peer of queue pair {self.number} does not answer"))
                return 0
            self.fail(
                QueuePairError(
                    f"the peer refused a message of queue pair {self.number}"
                    f" (syndrome {buffer[start] if stop > start else 0:#04x})"
                )
            )
            return 0
        if opcode == WRITE_ONLY and stop - start == RETH.size:
            # A write of no bytes is OFED's keep-alive; neither key nor address is checked (IBTA
            # vol. 1 9.7.4.1, C9-88; Linux rxe_resp.c check_rkey()).
            if not int.from_bytes(buffer[start + 12 : start + 16], "big"):
                return 0
        self.fail(
            QueuePairError(
                f"the peer of queue pair {self.number} sent operation {opcode:#04x},"
                " which a stream does not take"
            )
        )
        return NAK_INVALID_REQUEST
