"""
The queue pair: state, numbers, and what crosses the seam (IBTA vol. 1, 10.2.4).

A queue pair stands between its I{consumer} (SDP, RDS, verbs) and a I{path} (the
way to one peer's HCA).  Two ways lead through it:

  - the stream path: L{QueuePair.postInline} down and
    C{consumer.received(buffer, start, stop)} up.  It makes no work request, no
    completion and no copy beyond the one into and the one out of the medium.
    A posted receive is a promise, a number in C{posted};
  - the keyed path, for work requests that name memory, signal completions and
    are repeated when refused: the C{work} object, made when first needed.

Being in the path's table is the state check for what arrives: a queue pair is
entered when it can receive (RTR) and taken out when it cannot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twisted_ib import limits
from twisted_ib.errors import HCAError, PathLostError, QueuePairError, ResourceLimitError
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.base.operation import (
    ACKNOWLEDGE,
    NAK_INVALID_REQUEST,
    QPN_MASK,
    RNR,
    SEND_ONLY,
    SILENT,
    WRITE_ONLY,
)
from twisted_ib.hca.base.states import QPState, QPType, checkTransition
from twisted_ib.hca.wire.headers import RETH

if TYPE_CHECKING:
    from twisted_ib.hca.fabric.base.path import Path

#: What L{QueuePair.query} says of an attribute that was never set.
_UNSET: dict[str, Any] = dict.fromkeys(
    (
        *("path_mtu", "path_mig_state", "qkey", "rq_psn", "sq_psn", "dest_qp_num", "qp_access_flags"),
        *("pkey_index", "alt_pkey_index", "en_sqd_async_notify", "max_rd_atomic", "max_dest_rd_atomic"),
        *("min_rnr_timer", "port_num", "timeout", "retry_cnt", "rnr_retry", "alt_port_num", "alt_timeout"),
        "rate_limit",
    ),
    0,
)
_RC = QPType.RC
_RESET, _INIT, _RTS = QPState.RESET, QPState.INIT, QPState.RTS
_RECORD = limits.INLINE_RECORD
#: The operation of a record of a stream.
SEND = SEND_ONLY << 24
#: States whose queue pairs are in their path's table.
_RECEIVING = frozenset((QPState.RTR, QPState.RTS, QPState.SQD, QPState.SQE))


class QueuePair:
    """
    One queue pair.

    @ivar number: The queue pair number, 24 bits.
    @ivar remote: The peer's queue pair number, 0 before RTR.
    @ivar state: A L{QPState}.
    @ivar path: The way to the peer, L{None} before RTR, or until it is found.
    @ivar vector: The address vector that the way is found by, if it was not given.
    @ivar posted: Receives that are posted (promised) and not used.
    @ivar pending: Inline sends that the medium did not take yet, in order:
        tuples of word, header, payload, length.  L{None} when there are none.
    @ivar work: The keyed path of this queue pair, or L{None}.
    @ivar attributes: What it was told by L{modify}, for L{query}; L{None} if nothing.
    @ivar proposal: What this side has said in its REQ or REP, on fabrics of packets.
    @ivar onEvent: Called with an L{EventType} and this object, or L{None}.
    """

    __slots__ = (
        "__dict__",
        "consumer",
        "device",
        "maxMessage",
        "number",
        "path",
        "pending",
        "posted",
        "remote",
        "state",
        "work",
    )

    # What a stream's queue pair never changes; others have it in their dictionary.
    type = QPType.RC
    minRNRTimer = 0
    vector: Any = None
    attributes: dict[str, Any] | None = None
    proposal: Any = None
    onEvent: Callable[[EventType, object], None] | None = None

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

        @param number: Its number, 24 bits, the HCA's own.
        @param consumer: An L{IConsumer<twisted_ib.hca.base.interfaces.IConsumer>}.
        @param device: What counts and keeps time for it.
        @param type: Its transport service.
        @param maxMessage: The longest message, in bytes, that it posts inline.
        """
        self.number = number
        if type is not _RC:
            self.type = type
        self.consumer = consumer
        self.device = device
        self.state: QPState = _RESET
        self.remote = 0
        self.path: Path | None = None
        self.posted = 0
        self.pending: deque[tuple[int, bytes, Any, int]] | None = None
        self.maxMessage = maxMessage
        self.work: Any = None

    # -- states

    def modify(self, state: QPState, **attributes: Any) -> None:
        """
        Change the state, or attributes within it.

        @param attributes: What this transition takes, by the names of
            L{twisted_ib.hca.base.states}; C{ah_attr}, the address vector, is
            the path, or an address vector by which the device finds it.
        @raise QueuePairError: the transition or an attribute is not allowed;
            then nothing has changed.
        @raise NoRouteError: the address vector's GID leads nowhere from here.
        @raise SharedGIDError: it is an address of this host.
        @raise ResourceLimitError: the device looks for too many HCAs.
        """
        self._check(state, attributes)
        if "dest_qp_num" in attributes:
            self.remote = attributes["dest_qp_num"]
        if "min_rnr_timer" in attributes:
            self.minRNRTimer = attributes["min_rnr_timer"]
        if "ah_attr" in attributes:
            address = attributes["ah_attr"]
            if hasattr(address, "gid"):
                self.vector = address
            else:
                self.path = address
        before = self.attributes
        self._remember(state, attributes)
        old, self.state = self.state, state
        if state in _RECEIVING:
            if self.path is None:
                pass
            elif old not in _RECEIVING:
                self.path = self.path.bind(self)
            else:
                self.path.modified(self)
        elif state != QPState.INIT:
            self._leave()
            if state == QPState.RESET:
                self.vector = None
        if self.work is not None:
            self.work.modified(attributes)
        if old not in _RECEIVING and self.vector is not None and self.state in _RECEIVING:
            self._meet(old, before)

    def _meet(self, old: QPState, before: dict[str, Any] | None) -> None:
        """
        Have the way found that the address vector names.

        @param old: The state to go back to if the device cannot look for it.
        @param before: What it had been told then.
        @raise HCAError: the device cannot look for it.
        """
        if self.device is not None:
            try:
                self.device.meet(self)
            except HCAError:
                self.state, self.attributes, self.vector = old, before, None
                raise

    def _remember(self, state: QPState, attributes: dict[str, Any]) -> None:
        if state == QPState.RESET:
            self.attributes = None
        elif attributes:
            self.attributes = {**(self.attributes or {}), **attributes}

    def _check(self, state: QPState, attributes: dict[str, Any]) -> None:
        """
        Look at a transition and its attributes.

        @raise QueuePairError: they are not allowed.
        """
        checkTransition(self.type, self.state, state, attributes)
        remote = attributes.get("dest_qp_num", 0)
        if not 0 <= remote <= QPN_MASK:
            raise QueuePairError(f"dest_qp_num has 24 bits, not {remote:#x}")
        current = attributes.get("cur_qp_state", self.state)
        if current != self.state:
            raise QueuePairError(f"queue pair {self.number} is in {self.state.name}, not {current!r}")
        if "ah_attr" in attributes:
            address = attributes["ah_attr"]
            isPath = self.path is not None and address in (self.path, self.path.way)
            if self.state in _RECEIVING and not isPath and address != self.vector:
                # Positions and what is on the way belong to one path.
                raise QueuePairError(f"queue pair {self.number} is connected: its path cannot change")
            if address is None:
                raise QueuePairError(f"queue pair {self.number} needs a path as ah_attr")
            if hasattr(address, "gid"):
                address.check()
                if self.device is not None:
                    self.device.paths.check(address.gid)
        if self.work is not None:
            self.work.check(state, attributes)

    def connect(self, path: Path, remote: int, message: Any = None) -> None:
        """
        Take a new queue pair through INIT and RTR to RTS, with the attributes
        that a fabric of operations has no use for at their defaults.

        @param path: The way to the peer's HCA.
        @param remote: The peer's queue pair number.
        @param message: The REQ or REP by which the peer has said it, for fabrics of packets:
            sequence numbers, path MTU and timeouts are in it.
        @raise QueuePairError: the queue pair is not in RESET or INIT.
        """
        if self.state > _INIT:
            raise QueuePairError(f"queue pair {self.number} is in {self.state.name}, not RESET or INIT")
        self.remote = remote
        # A stream keeps nothing that it sent and never resumes.  What came too
        # early is lost: then its numbers do not follow, which is an error.
        path.absent.pop(self.number, None)
        self.path = path.bind(self, message)
        self.state = _RTS

    def pathFound(self, path: Path) -> None:
        """
        The way that the address vector names is found.
        """
        if self.vector is not None and self.path is None and self.state in _RECEIVING:
            self.path = path.bind(self)
            if self.work is not None:
                self.work.pathFound()

    def pathFailed(self, error: Exception) -> None:
        """
        The way that the address vector names is not found.  To work requests the peer is
        silent, and may yet be found while they wait for it.
        """
        if self.vector is not None and self.path is None and self.state in _RECEIVING:
            if self.work is not None:
                self.work.pathFailed(error)
            else:
                self.fail(error)

    def query(self) -> dict[str, Any]:
        """
        What it was told, and its state, by the names of C{struct ibv_qp_attr}.

        @return: C{cap} is the L{Capabilities<twisted_ib.hca.queues.requests.Capabilities>}
            of its work queues, C{ah_attr} the address vector or the path, each L{None} if
            there is none; what was never set is 0.
        """
        work = self.work
        found = {**_UNSET, **(self.attributes or {})}
        found["qp_state"] = found["cur_qp_state"] = self.state
        found["sq_draining"] = self.state == QPState.SQD and work is not None and not work.requester.drained()
        found["ah_attr"] = self.path if self.vector is None else self.vector
        found["cap"] = None if work is None else work.capabilities
        return found

    def raiseEvent(self, kind: EventType) -> None:
        """
        Something happened that no call and no completion tells of.
        """
        if self.onEvent is not None:
            self.onEvent(kind, self)

    def stop(self, reason: Exception) -> None:
        """
        A send request of an unreliable queue pair ended badly: what is behind it is
        flushed, and what is posted, until it is brought back to RTS; receiving goes on
        (SQE, IBTA vol. 1 10.3.1.7).

        @param reason: What happened.
        """
        if self.state in (QPState.RTS, QPState.SQD):
            self.state = QPState.SQE
            self.work.stopped(reason)

    def fail(self, reason: Exception) -> None:
        """
        Go to ERR by an error found here or by the path, and tell the consumer.

        @param reason: What happened.
        """
        if self.state in (QPState.ERR, QPState.RESET):
            return
        if self.type == QPType.UC and isinstance(reason, PathLostError) and self.work is not None:
            # Nobody tells an unreliable connection that its peer is gone.
            self._leave()
            self.work.requester.pathLost()
            return
        consumer = self.consumer  # Who hears of completions may close.
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
        """
        Leave the path's table and drop what the medium did not take.
        """
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

    def postInline(self, header: bytes, payload: Any, length: int) -> None:
        """
        Send one message without signalling: the copy into the medium is the
        whole work request.  What the medium does not take is kept, in order.

        @param header: The first bytes of the message.
        @param payload: The rest: bytes-like, or a list of bytes-like objects.
            It must not change until it is sent; but a memoryview may, at once.
        @param length: Bytes in C{payload}.
        @raise QueuePairError: not in RTS, or longer than L{maxMessage}.
        @raise ResourceLimitError: L{limits.INLINE_SENDS} messages wait.
        """
        if self.state is not _RTS or length > self.maxMessage:
            raise QueuePairError(
                f"queue pair {self.number} in {self.state.name} cannot send"
                f" {length} bytes (at most {self.maxMessage})"
            )
        # SDPTransport.write does the same in itself.
        if self.pending or not self.path.post(  # type: ignore[union-attr]
            SEND | self.remote, header, payload, length
        ):
            self.keep(header, payload, length)

    def keep(self, header: bytes, payload: Any, length: int) -> None:
        """
        Queue a message until the medium has room.
        """
        pending = self.pending
        if pending is None:
            pending = self.pending = deque()
        elif len(pending) >= limits.INLINE_SENDS:
            raise ResourceLimitError(f"queue pair {self.number} has {len(pending)} sends waiting")
        if payload.__class__ is memoryview and payload.obj.__class__ is not bytes:
            payload = bytes(payload)  # Whoever lent it does not wait.
        if not pending:
            assert self.path is not None
            self.path.wantSpace(self)
        pending.append((SEND | self.remote, header, payload, length))

    def postNothing(self) -> bool:
        """
        Write no bytes to no address, which the peer takes without noticing: a sign of life,
        and of death if it is refused (OFED's keep-alive).

        @return: Whether the medium took it; if not, others are on their way.
        """
        if self.path is None or self.pending is not None:
            return False
        self.path.requesters[self.remote] = self  # It is to hear that the peer is not there.
        return self.path.post(WRITE_ONLY << 24 | self.remote, bytes(RETH.size), b"", 0)

    def canPost(self) -> bool:
        """
        @return: Whether L{postInline} has a place for one more message.
        """
        pending = self.pending
        return pending is None or len(pending) < limits.INLINE_SENDS

    def postReceives(self, count: int) -> None:
        """
        Promise to take C{count} more messages.
        """
        self.posted += count

    def resume(self) -> None:
        """
        The medium has room: send what waits, then let the consumer go on.
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

    def delivered(self, opcode: int, buffer: Any, start: int, stop: int) -> int:
        """
        A record arrived.

        @param buffer: The medium's own buffer, whose slices are L{bytes}; it
            is valid during this call only.
        @return: 0, or the syndrome of a refusal.
        """
        if opcode == SEND_ONLY and self.work is None:
            posted = self.posted
            if posted and stop - start <= _RECORD:
                self.posted = posted - 1
                self.consumer.received(buffer, start, stop)
                return 0
            return self._refuse(posted)
        return self._deliveredOther(opcode, buffer, start, stop)

    def streamed(self, buffer: Any, start: int, stop: int) -> int:
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
        """
        A stream's message found no receive, or is too long for it: the peer
        ignores its credits.
        """
        self.fail(
            QueuePairError(
                f"the peer of queue pair {self.number} sent more than it had credits for"
                if not posted
                else f"the peer of queue pair {self.number} sent too long a message"
            )
        )
        return RNR | self.minRNRTimer if not posted else NAK_INVALID_REQUEST

    def _deliveredOther(self, opcode: int, buffer: Any, start: int, stop: int) -> int:
        if self.work is not None:
            answer: int = self.work.delivered(opcode, buffer, start, stop)
            return answer
        if opcode == ACKNOWLEDGE:
            # A stream's message was refused; it is not kept, so this is final.
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
            # A write of nothing: OFED's keepalive; neither key nor address is
            # looked at (IBTA vol. 1, 9.7.4.1.1).
            if not int.from_bytes(buffer[start + 12 : start + 16], "big"):
                return 0
        self.fail(
            QueuePairError(
                f"the peer of queue pair {self.number} sent operation {opcode:#04x},"
                " which a stream does not take"
            )
        )
        return NAK_INVALID_REQUEST
