"""
The queue pair: state, numbers, and what crosses the seam (IBTA vol. 1 10.2.4).

A queue pair stands between its I{consumer} (SDP, RDS, verbs) and a I{path} to one peer's HCA.  It has two
modes:

  - stream: L{QueuePair.postInline} down and C{consumer.received(buffer, start, stop)} up.  It makes no
    work request, no completion and no copy beyond the one into and the one out of the medium.  A posted
    receive is only a number, in C{posted};
  - work requests, which name memory, complete and are repeated when refused: the C{work} object, made when
    first needed.

Membership in the path's table is the state check for arriving records: a queue pair is entered when it can
receive (RTR) and removed when it cannot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from twisted_ib import limits
from twisted_ib.compilation import mypyc_attr
from twisted_ib.errors import HCAError, PathLostError, QueuePairError, ResourceLimitError
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.base.operation import RESPONSES, SILENT, SOLICITED
from twisted_ib.hca.base.partition import DEFAULT_PKEY, PartitionTable, isValid
from twisted_ib.hca.base.states import RECEIVING, QPState, QPType, checkTransition
from twisted_ib.hca.queues.receiver import RecordReceiver
from twisted_ib.hca.wire.headers import NAK_INVALID_REQUEST, QPN_MASK, RETH, RNR
from twisted_ib.hca.wire.opcodes import ACKNOWLEDGE, SEND_ONLY, WRITE_ONLY

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import Buffer, IPath

#: L{QueuePair.query}'s values of attributes that were never set.
_UNSET: dict[str, Any] = dict.fromkeys(
    (
        *("path_mtu", "path_mig_state", "qkey", "rq_psn", "sq_psn", "dest_qp_num", "qp_access_flags"),
        *("pkey_index", "alt_pkey_index", "en_sqd_async_notify", "max_rd_atomic", "max_dest_rd_atomic"),
        *("min_rnr_timer", "port_num", "timeout", "retry_cnt", "rnr_retry", "alt_port_num", "alt_timeout"),
        "rate_limit",
    ),
    0,
)
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
class StreamQueuePair(RecordReceiver):
    """
    A queue pair that carries messages: all that a stream needs.

    @ivar number: The queue pair number, 24 bits.
    @ivar remote: The peer's queue pair number; before RTR 0, or once it has asked a process for a connection
        its own.
    @ivar path: The path to the peer, L{None} before RTR, or until it is resolved.
    @ivar vector: The address vector to resolve the path from, if no path was given.
    @ivar posted: Receives posted and not used.
    @ivar pending: Inline sends that the medium had no room for, in order: tuples of word, header, payload,
        length.  L{None} when there are none.
    @ivar work: The work queues, or what takes a UD queue pair's datagrams without them, or L{None}.
    @ivar attributes: Those that L{modify} has set, for L{query}; L{None} if nothing.
    @ivar partition: Its P_Key, which C{pkey_index} has chosen from the port's table; without that the first.
    @ivar proposal: This side's parameters in its request or reply, on packet fabrics.
    @ivar onEvent: Called with an L{EventType} and this object, or L{None}.
    @ivar onRequest: Called when the peer asks for an operation and there are no work queues, to make them;
        L{None} if a stream takes nothing but messages.
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

    # Class attributes, as a stream's queue pair never changes them and there may be many: a L{QueuePair} has
    # one in its dictionary only if it differs.
    type = _RC
    maxMessage = limits.INLINE_MESSAGE
    minRNRTimer = 0
    vector: Any = None
    attributes: dict[str, Any] | None = None
    proposal: Any = None
    onEvent: Callable[[EventType, object], None] | None = None
    onRequest: Callable[[], None] | None = None
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

    # -- states

    def _partitions(self) -> PartitionTable:
        if self.device is None:
            return _PARTITIONS
        table: PartitionTable = self.device.partitions
        return table

    def joinPartition(self, index: int) -> None:
        """
        Take the P_Key of a slot of the port's table.
        """
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
        """
        Report an asynchronous event (IBTA vol. 1 11.6.3).
        """
        if self.onEvent is not None:
            self.onEvent(kind, self)

    def stop(self, reason: Exception) -> None:
        """
        Go to SQE: a send request of an unreliable queue pair failed (IBTA vol. 1 10.3.1.6).  Posted sends
        are flushed until it is brought back to RTS; receiving goes on.

        @param reason: The error.
        """
        if self.state in (QPState.RTS, QPState.SQD):
            self.state = QPState.SQE
            self.work.stopped(reason)

    def pathLost(self, reason: PathLostError) -> None:
        """
        The peer's HCA is gone: go to ERR, unless the consumer is to find out as on a wire.

        @param reason: The error.
        """
        # IBTA vol. 1 9.8.2 and 9.7.6.1.3: a channel adapter is not told of its peer's end.  An unreliable
        # connection never learns of it, a reliable one when its retries are exhausted.
        if self.work is not None and (self.type == QPType.UC or not self.failsWithPath):
            self._leave()
            self.work.requester.pathLost()
        else:
            self.fail(reason)

    def fail(self, reason: Exception) -> None:
        """
        Go to ERR by an error found here or by the path, and notify the consumer.

        @param reason: The error.
        """
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
        if self.vector is not None and self.device is not None:
            self.device.paths.leave(self)
        if path is not None:
            path.unbind(self)
            if self.work is not None:
                path.wantNoSpace(self.work.requester)
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
        """
        A stream's message arrived at a queue pair that has work queues too.

        @return: As L{delivered}.
        """
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
        if self.onRequest is not None and opcode not in RESPONSES:
            self.onRequest()
            if self.work is not None:
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


@mypyc_attr(allow_interpreted_subclasses=True)
class QueuePair(StreamQueuePair):
    """
    A queue pair whose consumer chooses its attributes, as that of verbs.
    """

    __slots__ = ("__dict__",)

    def __init__(
        self,
        number: int,
        consumer: Any,
        device: Any = None,
        type: QPType = QPType.RC,
        maxMessage: int = limits.INLINE_MESSAGE,
    ) -> None:
        """
        Make a queue pair in RESET.

        @param type: Its transport service.
        @param maxMessage: The longest message, in bytes, that it posts inline.
        """
        super().__init__(number, consumer, device)
        if type is not _RC:
            self.type = type
        if maxMessage != limits.INLINE_MESSAGE:
            self.maxMessage = maxMessage

    def modify(self, state: QPState, **attributes: Any) -> None:
        """
        Change the state, or attributes within it.

        @param attributes: The transition's attributes by their names in L{twisted_ib.hca.base.states};
            C{ah_attr} is a path, or an address vector that the device resolves.
        @raise QueuePairError: the transition or an attribute is not allowed; then nothing has changed.
        @raise NoRouteError: the address vector's GID is not reachable.
        @raise SharedGIDError: it is an address of this host.
        @raise ResourceLimitError: the device resolves too many addresses.
        """
        self._check(state, attributes)
        if "dest_qp_num" in attributes:
            self.remote = attributes["dest_qp_num"]
        timer = self.minRNRTimer
        if "min_rnr_timer" in attributes:
            self.minRNRTimer = attributes["min_rnr_timer"]
        if "pkey_index" in attributes:
            self.joinPartition(attributes["pkey_index"])
        if "ah_attr" in attributes:
            address = attributes["ah_attr"]
            if hasattr(address, "gid"):
                self.vector = address
            else:
                self.path = address
        before = self.attributes
        self._remember(state, attributes)
        old, self.state = self.state, state
        if state in RECEIVING:
            if self.path is None:
                pass
            elif old not in RECEIVING:
                self.path = self.path.bind(self)
            else:
                try:
                    self.path.modified(self)
                except QueuePairError:
                    self.state, self.attributes, self.minRNRTimer = old, before, timer
                    raise
        # RESET and ERR: what still comes for it finds no queue pair of its number.
        elif state != QPState.INIT:
            self._leave()
            if state == QPState.RESET:
                self.vector = self.proposal = None
                self.joinPartition(0)
        if self.work is not None:
            self.work.modified(attributes)
        # Last: the path may be known already, and then records can arrive within this call.
        if old not in RECEIVING and self.vector is not None and self.state in RECEIVING:
            self._resolvePath(old, before)

    def _resolvePath(self, old: QPState, before: dict[str, object] | None) -> None:
        # Start resolving the address vector; if the device refuses, modify() must have changed nothing.
        if self.device is not None:
            try:
                self.device.resolvePath(self)
            except HCAError:
                self.state, self.attributes, self.vector = old, before, None
                raise

    def _remember(self, state: QPState, attributes: dict[str, Any]) -> None:
        if state == QPState.RESET:
            self.attributes = None
        elif attributes:
            self.attributes = {**(self.attributes or {}), **attributes}

    def _check(self, state: QPState, attributes: dict[str, Any]) -> None:
        checkTransition(self.type, self.state, state, attributes)
        remote: int = attributes.get("dest_qp_num", 0)
        if not 0 <= remote <= QPN_MASK:
            raise QueuePairError(f"dest_qp_num has 24 bits, not {remote:#x}")
        current = attributes.get("cur_qp_state", self.state)
        if current != self.state:
            raise QueuePairError(f"queue pair {self.number} is in {self.state.name}, not {current!r}")
        if "ah_attr" in attributes:
            address = attributes["ah_attr"]
            isPath = self.path is not None and address in (self.path, self.path.way)
            if self.state in RECEIVING and not isPath and address != self.vector:
                # Positions and outstanding records belong to one path (no migration, IBTA vol. 1 17.2.8).
                raise QueuePairError(f"queue pair {self.number} is connected: its path cannot change")
            if address is None:
                raise QueuePairError(f"queue pair {self.number} needs a path as ah_attr")
            if hasattr(address, "gid"):
                if self.device is None:
                    address.check()
                else:
                    linkLayer = self.device.port.linkLayer
                    address.check(linkLayer)
                    self.device.paths.check(address.key(linkLayer), remote)
        # Most queue pairs are in the default partition, in which nothing is to be checked.
        if "pkey_index" in attributes or self.partition != DEFAULT_PKEY:
            self._checkPartition(state, attributes.get("pkey_index"))
        if self.work is not None:
            self.work.check(state, attributes)

    def _checkPartition(self, state: QPState, index: int | None) -> None:
        key = self.partition
        if index is not None:
            keys = self._partitions().keys
            if not 0 <= index < len(keys):
                raise QueuePairError(f"pkey_index is 0 to {len(keys) - 1}, not {index}")
            key = keys[index]
        # Here and when the table changes, but not per record: a bound queue pair has a partition.
        if state in RECEIVING and not isValid(key):
            raise QueuePairError(f"queue pair {self.number} is in no partition: its P_Key is {key:#06x}")

    def pathFound(self, path: IPath) -> None:
        """
        The path to the address vector is resolved.
        """
        # It may have gone to RESET or ERR, or got its path otherwise, while the lookup ran.
        if self.vector is not None and self.path is None and self.state in RECEIVING:
            self.path = path.bind(self)
            if self.work is not None:
                self.work.pathFound()

    def pathFailed(self, error: Exception) -> None:
        """
        The path to the address vector cannot be resolved.
        """
        if self.vector is not None and self.path is None and self.state in RECEIVING:
            # To work requests the peer is silent; they fail by their own timeout (IBTA vol. 1
            # 9.7.6.1.3), unless the path is found before.
            if self.work is not None:
                self.work.pathFailed(error)
            else:
                self.fail(error)

    def query(self) -> dict[str, Any]:
        """
        Get its attributes and state, by the names of C{struct ibv_qp_attr}.

        @return: C{cap} is the L{Capabilities<twisted_ib.hca.queues.requests.Capabilities>} of its work
            queues, C{ah_attr} the address vector or the path, each L{None} if there is none; attributes
            never set are 0.
        """
        work = self.work
        found = {**_UNSET, **(self.attributes or {})}
        found["qp_state"] = found["cur_qp_state"] = self.state
        found["sq_draining"] = self.state == QPState.SQD and work is not None and not work.requester.drained()
        if self.state in RECEIVING:
            found["dest_qp_num"] = self.remote
        found["ah_attr"] = self.path if self.vector is None else self.vector
        found["cap"] = None if work is None else work.capabilities
        return found
