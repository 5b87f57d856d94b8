"""
The work queues of a queue pair: work requests that name memory and end in completions.

The stream path of L{twisted_ib.hca.queues.streamqueuepair} copies what it is given and forgets it.  Here a
program posts work requests, and each is kept until its result is known.  A L{WorkQueues} is the pair of
work queues of one queue pair: the send queue is run by the L{Requester}, the receive queue by the
L{Responder}, in the classes of the queue pair's service (L{SERVICES}).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import attrs

from twisted_ib import limits
from twisted_ib.compilation import mypyc_attr
from twisted_ib.errors import PathLostError, QueuePairError
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.base.operation import RESPONSES
from twisted_ib.hca.base.partition import DEFAULT_PKEY, isValid
from twisted_ib.hca.base.refcount import RefCounted
from twisted_ib.hca.base.states import QPState, QPType
from twisted_ib.hca.base.timers import Timers
from twisted_ib.hca.base.traits import LOCAL, Traits
from twisted_ib.hca.memory.domains import ProtectionDomain
from twisted_ib.hca.queues.completion import Completions, WCStatus
from twisted_ib.hca.queues.receives import ReceiveRequest, checkPieces
from twisted_ib.hca.queues.requests import Attributes, Capabilities, SendOpcode, SendRequest
from twisted_ib.hca.services.datagram import DatagramRequester, DatagramResponder
from twisted_ib.hca.services.requester import Requester
from twisted_ib.hca.services.responder import Responder
from twisted_ib.hca.services.unreliable import UnreliableRequester, UnreliableResponder

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import IDevice, IPath
    from twisted_ib.hca.queues.queuepair import QueuePair
    from twisted_ib.hca.queues.receives import SharedReceiveQueue
    from twisted_ib.hca.queues.streamqueuepair import StreamQueuePair

#: The requester and responder classes of each type of queue pair.
SERVICES: Final[dict[QPType, tuple[type[Any], type[Any]]]] = {
    QPType.RC: (Requester, Responder),
    QPType.UC: (UnreliableRequester, UnreliableResponder),
    QPType.UD: (DatagramRequester, DatagramResponder),
}

#: Names in C{struct ibv_qp_attr} -> names in L{Attributes}.
_ATTRIBUTES: Final = {
    "qp_access_flags": "access",
    "min_rnr_timer": "minRNRTimer",
    "max_rd_atomic": "reads",
    "max_dest_rd_atomic": "peerReads",
    "timeout": "timeout",
    "retry_cnt": "retries",
    "rnr_retry": "rnrRetries",
    "qkey": "queueKey",
}
# The widths of the fields that carry these on the wire or in the CM's REQ; the bounds of READs are
# this package's own.  port_num: a device has one port.
_RANGES: Final = {
    "min_rnr_timer": (0, 31),
    "max_rd_atomic": (0, limits.READS),
    "max_dest_rd_atomic": (0, limits.READS),
    "timeout": (0, 31),
    "retry_cnt": (0, 7),
    "rnr_retry": (0, 7),
    "qkey": (0, 0xFFFFFFFF),
    "path_mtu": (1, 5),
    "port_num": (1, 1),
}

_UNSET: Final = Attributes()
_CAPABILITIES: Final = Capabilities()
_RESET: Final = QPState.RESET
_RTS: Final = QPState.RTS
# IBTA vol. 1 10.3.1: in SQD requests are queued and sent after the return to RTS.
_POSTING: Final = frozenset((QPState.RTS, QPState.SQD))


@lru_cache(maxsize=64)
def operationsOf(kind: QPType, traits: Traits) -> Mapping[SendOpcode, type[Any]]:
    """
    The operations of a type of queue pair on a fabric.

    @raise QueuePairError: the fabric has no such queue pairs.
    """
    if kind not in SERVICES or kind not in traits.services:
        raise QueuePairError(f"queue pairs of type {kind!r} have no work queues")
    found: Mapping[SendOpcode, type[Any]] = SERVICES[kind][0].operations
    has = traits.operations
    return found if has is None else {opcode: each for opcode, each in found.items() if opcode in has}


@lru_cache(maxsize=64)
def capabilitiesOf(traits: Traits) -> int:
    """
    @return: bits of C{device_cap_flags_ex}: the operations that a fabric's queue pairs have.
    """
    bits = 0
    for kind in traits.services:
        for operation in operationsOf(kind, traits).values():
            bits |= operation.capability
    return bits


def checkRanges(attributes: dict[str, Any]) -> None:
    """
    @raise QueuePairError: the value of an attribute is out of range.
    """
    for name, value in attributes.items():
        if name in _RANGES:
            lowest, highest = _RANGES[name]
            if not lowest <= value <= highest:
                raise QueuePairError(f"{name} is {lowest} to {highest}, not {value}")


def changedBy(attributes: dict[str, Any], before: Attributes = _UNSET) -> Attributes:
    """
    @param attributes: by their names in C{struct ibv_qp_attr}; others are ignored.
    @return: the attributes of a queue pair with these changes.
    """
    known = {_ATTRIBUTES[name]: int(value) for name, value in attributes.items() if name in _ATTRIBUTES}
    return attrs.evolve(before, **known) if known else before


@mypyc_attr(allow_interpreted_subclasses=True)
class WorkQueues:
    """
    The two work queues of a queue pair: see
    L{WorkContext<twisted_ib.hca.services.operations.operation.WorkContext>}.

    @ivar sendCompletions: the CQ where send requests complete.
    @ivar receiveCompletions: the CQ where receive requests complete.
    @ivar timers: the device's.
    @ivar operations: the classes of send requests that it takes, by opcode.
    @ivar capabilities: the sizes of the queues.
    @ivar attributes: what L{QueuePair.modify} has set.
    @ivar shared: the shared receive queue, or L{None}.
    @ivar signalAll: whether all send requests complete, signaled or not (C{sq_sig_all}).
    @ivar recordsSent: records published, including responses and repeats.
    @ivar messagesSent: send requests that were done.
    @ivar messagesReceived: the peer's messages and operations that were done.
    @ivar unreachable: why the path to the peer was not found, if it was not.
    """

    __slots__ = (
        "_isClosed",
        "attributes",
        "capabilities",
        "messagesReceived",
        "messagesSent",
        "operations",
        "pd",
        "queuePair",
        "receiveCompletions",
        "recordsReceived",
        "recordsSent",
        "requester",
        "responder",
        "sendCompletions",
        "shared",
        "signalAll",
        "timers",
        "unreachable",
    )
    __deletable__ = ("receiveCompletions", "sendCompletions")

    def __init__(
        self,
        queuePair: StreamQueuePair,
        pd: ProtectionDomain,
        sendCompletions: Completions,
        receiveCompletions: Completions,
        timers: Timers,
        capabilities: Capabilities | None = None,
        shared: SharedReceiveQueue | None = None,
        signalAll: bool = False,
    ) -> None:
        """
        Attach work queues to a queue pair in RESET.

        @raise QueuePairError: the fabric has no such queue pairs.
        """
        self.capabilities = capabilities or _CAPABILITIES
        device = queuePair.device
        self.operations = operationsOf(queuePair.type, LOCAL if device is None else device.traits)
        self.queuePair = queuePair
        self.pd = pd
        self.sendCompletions = sendCompletions
        self.receiveCompletions = receiveCompletions
        self.timers = timers
        self.attributes = _UNSET
        self.shared = shared
        self.signalAll = signalAll
        self.unreachable: Exception | None = None
        self.recordsSent = self.recordsReceived = self.messagesSent = self.messagesReceived = 0
        self._isClosed = False
        self._renew()
        # Held last: whatever raises above leaves no references behind (ibv_dealloc_pd and
        # ibv_destroy_cq refuse while they are held).
        if pd is not pd.memory.empty:
            pd.hold("queue pairs")
        if shared is not None:
            shared.hold("queue pairs")
        # A consumer may take its completions itself.
        if isinstance(sendCompletions, RefCounted):
            receives: Any = receiveCompletions
            sendCompletions.hold("work queues")
            receives.hold("work queues")
        queuePair.work = self

    def joinDomain(self, pd: ProtectionDomain) -> None:
        """
        Leave the domain that has no memory for another.
        """
        pd.hold("queue pairs")
        self.pd = pd

    # -- verbs

    def postSend(self, request: SendRequest, fits: bool = False) -> None:
        """
        Post a send request.

        @param fits: whether its numbers are known to fit their fields, as those of verbs' work requests.
        @raise QueuePairError: the state forbids it, or the request is not valid.
        @raise MemoryAccessError: the bytes to send inline cannot be read.
        @raise ResourceLimitError: the send queue is full.
        """
        self.requester.enqueue(request, fits)

    def promisedBytes(self) -> int:
        return self.queuePair.maxMessage

    def postInline(
        self,
        payload: Any,
        length: int,
        immediate: int | None = None,
        id: int | None = None,
        solicited: bool = False,
    ) -> bool:
        """
        Send bytes without a request or a region; they are kept until the peer has consumed them.

        @param payload: bytes-like, or a list of bytes-like objects; it must not change.
        @param length: bytes in C{payload}.
        @param immediate: 32 bits for the peer, if any.
        @param id: the wr_id of its completion; without it there is none, and if the SEND fails the queue
            pair does.
        @param solicited: whether the peer's completion is solicited.

        @return: whether the medium has everything posted; if not, C{consumer.resume()} is called when it
            has.

        @raise QueuePairError: the state forbids it, or it is longer than C{maxMessage}.
        @raise ResourceLimitError: the send queue is full; C{consumer.resume()} is called when it is half
            empty.
        """
        queuePair = self.queuePair
        if queuePair.state not in _POSTING:
            raise self.wrongState("send")
        if length > queuePair.maxMessage:
            raise QueuePairError(
                f"queue pair {queuePair.number} sends at most {queuePair.maxMessage} bytes, not {length}"
            )
        posted: bool = self.requester.enqueueInline(payload, length, immediate, id, solicited)
        return posted

    def canPost(self) -> bool:
        """
        Whether the send queue has room; if not, C{consumer.resume()} is called when it is half empty.
        """
        answer: bool = self.requester.canPost()
        return answer

    def idle(self) -> bool:
        """
        Whether everything posted to the send queue is done; if not, C{consumer.resume()} is called when it
        is.
        """
        answer: bool = self.requester.idle()
        return answer

    def isSettled(self) -> bool:
        """
        Whether the peer has consumed everything that was sent, and refuses nothing.
        """
        answer: bool = self.requester.isSettled()
        return answer

    def refused(self) -> bool:
        """
        Whether the peer has no receive for the oldest send request that is not done.
        """
        answer: bool = self.requester.refused()
        return answer

    def postReceive(self, request: ReceiveRequest, fits: bool = False) -> None:
        """
        Post a receive request.

        @param fits: whether its numbers are known to fit their fields.
        @raise QueuePairError: the state forbids it, or the request is not valid.
        @raise ResourceLimitError: the receive queue is full.
        """
        # IBTA vol. 1 10.3.1: allowed from INIT on, so that receives are posted before the peer can
        # send.
        if self.queuePair.state is _RESET:
            raise self.wrongState("receive")
        if self.shared is not None:
            raise QueuePairError(
                f"queue pair {self.queuePair.number} has a shared receive queue: receives are posted there"
            )
        if not fits or len(request.pieces) > self.capabilities.receivePieces:
            checkPieces(request.pieces, self.capabilities.receivePieces)
        self.responder.enqueue(request)

    def postReceives(self, requests: Sequence[ReceiveRequest]) -> None:
        """
        Post receive requests whose numbers and elements are known to fit, to the queue pair's own queue.

        @raise QueuePairError: the state forbids it.
        @raise ResourceLimitError: the receive queue has not room for all.
        """
        if self.queuePair.state is _RESET:
            raise self.wrongState("receive")
        self.responder.enqueue(*requests)

    def wrongState(self, verb: str) -> QueuePairError:
        """
        @param verb: what it does not take now.
        @return: the error that says so.
        """
        queuePair = self.queuePair
        return QueuePairError(f"queue pair {queuePair.number} takes no {verb} in {queuePair.state.name}")

    def connect(
        self,
        queuePair: QueuePair,
        path: IPath,
        remote: int,
        attributes: dict[str, Any],
        changed: Attributes | None = None,
    ) -> None:
        """
        Take a new queue pair from RESET to RTS at once, as three calls of L{QueuePair.modify} do, for a
        consumer that knows what it asks for.

        @param queuePair: the one of these.
        @param path: the path to the peer's HCA.
        @param remote: the peer's queue pair number.
        @param attributes: what the three transitions set besides, each in its range; not to be changed.
        @param changed: what L{changedBy} gives for them, if that is known.
        @raise QueuePairError: the queue pair is not in RESET, or its port is in no partition.
        """
        if queuePair.state is not _RESET:
            raise self.wrongState("path")
        index = attributes["pkey_index"]
        if index:  # In RESET it is in the partition of the first slot.
            queuePair.joinPartition(index)
        if queuePair.partition != DEFAULT_PKEY and not isValid(queuePair.partition):
            raise QueuePairError(f"queue pair {queuePair.number} is in no partition")
        queuePair.remote, queuePair.minRNRTimer = remote, attributes["min_rnr_timer"]
        queuePair.attributes = attributes
        queuePair.state = QPState.RTR
        queuePair.path = path = path.bind(queuePair)
        queuePair.state = _RTS
        path.modified(queuePair)
        # Not modified(): in RESET nothing can have been posted.
        self.attributes = changed or changedBy(attributes)

    # -- from the queue pair

    def check(self, state: QPState, attributes: dict[str, Any]) -> None:
        """
        Check a transition before it happens.

        @raise QueuePairError: an attribute's value is out of range, or the send queue has not drained.
        """
        checkRanges(attributes)
        old = self.queuePair.state
        # IBTA vol. 1 10.3.1: while the queue drains only ERR and RESET are allowed (Linux rxe_qp.c
        # refuses, too): the requests that are still on their way use the old attributes.
        if old == QPState.SQD and state in (QPState.RTS, QPState.SQD) and not self.requester.drained():
            raise QueuePairError(f"the send queue of queue pair {self.queuePair.number} has not drained")
        # An adapter goes first: what it refuses has not happened.  Connected ones have a path for that.
        device: IDevice | None = self.queuePair.device
        if self.queuePair.type == QPType.UD and device is not None:
            device.stepDatagrams(self.queuePair.number, state, attributes)

    def modified(self, attributes: dict[str, Any]) -> None:
        """
        The queue pair has a new state (C{queuePair.state}) or new attributes.
        """
        before, self.attributes = self.attributes, changedBy(attributes, self.attributes)
        if self.attributes.access != before.access:
            self.responder.accessChanged()
        state = self.queuePair.state
        if state == QPState.RESET:
            self._reset()
        elif state == QPState.ERR:
            self._flush(WCStatus.WR_FLUSH_ERR)
        # Before RTS nothing can have been posted.
        elif state >= QPState.RTS:
            self.requester.pump()
            if state == QPState.SQD and attributes.get("en_sqd_async_notify"):
                self._awaitDrained()

    def _awaitDrained(self) -> None:
        # The event comes also if nothing was to drain: a program waits for it after each RTS ->
        # SQD.
        if self.requester.drained():
            self.queuePair.raiseEvent(EventType.SQ_DRAINED)
        else:
            self.requester.awaitDrained()

    def failed(self, reason: Exception) -> None:
        """
        The queue pair went to ERR by itself: complete everything posted.
        """
        # A lost path is what packets would find out by timeouts: the oldest request gets the
        # status of these.
        lost = isinstance(reason, PathLostError)
        self._flush(WCStatus.RETRY_EXC_ERR if lost else WCStatus.WR_FLUSH_ERR)

    def closed(self) -> None:
        """
        The queue pair was destroyed; harmless if repeated.
        """
        if self._isClosed:
            return
        self._isClosed = True
        self.requester.close()
        self.responder.close()
        pd = self.pd
        if pd is not pd.memory.empty:
            pd.release("queue pairs")
            # IBTA vol. 1 10.6.7.2: a type 2B window belongs to its queue pair and must not open
            # anything without it.
            pd.memory.windows.forget(self.queuePair)
        if self.shared is not None:
            self.shared.release("queue pairs")
        if isinstance(self.sendCompletions, RefCounted):
            self.sendCompletions.release("work queues")
            receives: Any = self.receiveCompletions
            receives.release("work queues")

    def forget(self) -> None:
        """
        After L{closed}, let go of the queue pair's consumer, which has the completion queues and these.
        """
        # All of these refer to each other; without the cycles they are freed at once.
        del self.sendCompletions, self.receiveCompletions
        self.queuePair.consumer = self.queuePair.work = None

    def delivered(self, opcode: int, buffer: Any, start: int, stop: int) -> int:
        """
        A record arrived: see L{QueuePair.delivered}.
        """
        self.recordsReceived += 1
        if opcode in RESPONSES:
            self.requester.delivered(opcode, buffer, start, stop)
            return 0
        return self.responder.delivered(opcode, buffer, start, stop)

    def severalDelivered(self, opcode: int, buffer: Any, spans: list[tuple[int, int]]) -> int:
        """
        Records arrived: see L{QueuePair.severalDelivered}.
        """
        n: int = self.responder.severalDelivered(opcode, buffer, spans)
        self.recordsReceived += n
        return n

    def pathFound(self) -> None:
        """
        The queue pair has its path.
        """
        self.unreachable = None
        self.requester.pathFound()

    def pathFailed(self, error: Exception) -> None:
        """
        The path to the peer was not found.
        """
        self.unreachable = error

    def stopped(self, reason: Exception) -> None:
        """
        The queue pair went to SQE: flush the posted sends.
        """
        self.requester.flush(WCStatus.WR_FLUSH_ERR)

    def _renew(self) -> None:
        requester, responder = SERVICES[self.queuePair.type]
        self.requester = requester(self)
        self.responder = responder(self)

    def _flush(self, first: WCStatus) -> None:
        # IBTA vol. 1 10.3.1: sends in order, then receives in order.
        self.requester.flush(first)
        self.responder.flush()

    def _reset(self) -> None:
        # IBTA vol. 1 10.3.1: everything posted is forgotten without completions.  New queue
        # objects are made, as the medium may still notify the old ones, which now do nothing.
        self.requester.close()
        self.responder.close()
        self.attributes = _UNSET
        self.unreachable = None
        self._renew()

    def traffic(self) -> tuple[int, int, int, int]:
        """
        Traffic since the queue pair was made.

        @return: records sent and received, messages sent and received.
        """
        return self.recordsSent, self.recordsReceived, self.messagesSent, self.messagesReceived

    # -- from the queues

    def count(self, name: str) -> None:
        """
        Add one to a counter of the device.
        """
        device = self.queuePair.device
        if device is not None:
            device.count(name)

    def established(self) -> None:
        """
        The peer's first message came: its connection is established, and in RTR that raises COMM_EST (IBTA
        vol. 1 11.6.3.1).
        """
        # The RTU was lost or is late, and the message proves that the peer is connected.  The communication
        # manager is told here; on Linux the program calls rdma_notify() (cm.c, ib_cm_notify()).
        queuePair = self.queuePair
        if queuePair.state == QPState.RTR:
            queuePair.raiseEvent(EventType.COMM_EST)
        if queuePair.device is not None:
            queuePair.device.communicationEstablished(queuePair.number)

    def completionLost(self) -> None:
        # IBTA vol. 1 11.6.3.2: a CQ overrun is fatal for the queue pair.  Linux rxe_comp.c differs: it
        # ignores that a send completion was lost.
        self.queuePair.raiseEvent(EventType.QP_FATAL)
        self.queuePair.fail(
            QueuePairError(f"a completion of queue pair {self.queuePair.number} found its queue full")
        )
