"""
The send side of a queue pair of RDS: gathering, the backlog of unsent fragments, pending acknowledgements
and RDMA operations.

L{twisted_ib.rds.media.rcconnection} documents the messages on the queue pair.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from twisted_ib import limits
from twisted_ib.errors import HCAError, QueuePairError, ResourceLimitError
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.base.traits import Completion
from twisted_ib.hca.memory.memory import REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.queuepair import SEND_SOLICITED
from twisted_ib.hca.queues.requests import Capabilities, SendOpcode, SendRequest
from twisted_ib.hca.services.work import WorkQueues
from twisted_ib.rds.protocol.wire import FRAGMENT_BYTES, HEADER_BYTES

if TYPE_CHECKING:
    from twisted_ib.rds.media.rc import RCMedium
    from twisted_ib.rds.media.rccarrier import RCCarrier

#: Payload bytes of one fragment between processes of a host; receives and sends of one queue pair (Linux
#: ib.h has 1024 and 256 by default).
RDS_FRAGMENT: Final = limits.INLINE_MESSAGE
RDS_RECEIVES: Final = 256
RDS_SENDS: Final = 256
#: How long an acknowledgement between processes of a host is delayed to be merged with others, in seconds.
RDS_ACK_SECONDS = 0.005
#: RDMA operations outstanding on one queue pair; further ones wait on their paths.
RDS_OPERATIONS_POSTED: Final = 64

RECEIVES: Final = RDS_RECEIVES

#: The RNR timer code, 0.32 ms as in Linux ib_cm.c (rds_ib_tune_rnr).
_RNR_TIMER: Final = 10
_RETRIES: Final = 7
#: Messages longer than this, with their headers, are not gathered; and a batch of this size is sent: the
#: peer processes the first messages while the last are being written.
_SMALL: Final = 4 * 1024
_ENOUGH: Final = 4 * 1024
#: The most pieces of a gather list.
_PIECES: Final = 16
#: An acknowledgement is due after so much was received, each message counting for C{EACH} and its bytes; a
#: sleeping peer is woken after so much was sent.
DUE: Final = 64 * 1024
#: After so much an acknowledgement is sent at once, not at the end of the batch.
MUCH: Final = 256 * 1024
EACH: Final = 4 * 1024
#: The flags of a control frame.  Linux has no such flag and is never sent one.
CONTROL: Final = 0x80
#: The kinds of control frames.
ADDRESSES: Final = 1
PORT_UNBOUND: Final = 2
PAUSE: Final = 3
RESUME: Final = 4
#: The rights of a peer that has a cookie; each memory region restricts them further.
_ACCESS: Final = int(REMOTE_READ | REMOTE_WRITE | REMOTE_ATOMIC)
#: The local ACK timeout between processes: code 14, 67 ms (4.096 us * 2^14).
_TIMEOUT: Final = 14
_RTS: Final = QPState.RTS


class RCSender:
    """
    The send side of one end of a queue pair.

    @ivar medium: the medium that made it.
    @ivar key: its key in the medium.
    @ivar channel: the device in its reactor.
    @ivar queuePair: the queue pair.
    @ivar work: its work queues; L{None} until this end or the peer begins an RDMA operation.
    @ivar domain: the memory for RDMA operations, likewise.
    @ivar connection: the CM's connection, or L{None}.
    @ivar isUp: whether messages can be sent.
    @ivar fragment: payload bytes of one fragment.
    @ivar shared: whether it has the form between processes of a host, not that of Linux.
    @ivar stuck: whether the medium is full, or the connection over.
    @ivar peerPaused: whether the peer has sent PAUSE.
    @ivar corked: whether C{endOfBatch} will be called.
    @ivar batch: the device's batch in which a message was sent: further small ones wait for its end.
    @ivar backlog: fragments that the medium had no room for.
    @ivar gathered: headers and payloads to be sent together.
    @ivar wanting: carriers whose C{send} was refused.
    @ivar bundling: carriers whose paths opened a bundle in this turn.
    @ivar owing: carriers with an acknowledgement to send.
    @ivar ackCall: the delayed call that sends those, or L{None}.
    @ivar loss: why the connection is over, until the paths are notified.
    @ivar closed: whether it is over.
    """

    def __init__(self, medium: RCMedium, key: Any, channel: Any, shared: bool) -> None:
        """
        @raise ResourceLimitError: there are too many queue pairs.
        """
        device = channel.device
        self.medium = medium
        self.key = key
        self.channel = channel
        self.fragment = RDS_FRAGMENT if shared else FRAGMENT_BYTES
        self.shared = shared
        self.connection: Any = None
        self.isUp = self.stuck = self.corked = self.closed = False
        self.peerPaused = False
        self.backlog: deque[tuple[bytes, Any, int]] = deque()
        self.owing: dict[RCCarrier, None] = {}
        self.bundling: dict[RCCarrier, None] = {}
        self.gathered: list[bytes] = []
        self.wanting: dict[RCCarrier, None] = {}
        self.ackCall: Any = None
        self.loss: Exception | None = None
        self._gatheredBytes = self._quiet = 0
        self.batch = -1
        self._device = device
        self.queuePair = device.createQueuePair(self)
        self.queuePair.maxMessage = HEADER_BYTES + self.fragment
        self.domain: Any = None
        self.work: Any = None
        self._operations: dict[int, tuple[RCCarrier, Any]] = {}
        self._completions: deque[Any] = deque()
        self._numbers = 0
        # Whether messages use the work queues.
        self._keyed = False
        self._reads = self._peerReads = 0
        # Whether a READ of no octets follows each WRITE: it is answered behind what came before it (RFC 5040
        # section 5.5), so its completion tells that the WRITE is done.
        self._confirms = False
        self.queuePair.onRequest = self._makeWork
        if not shared:
            # IBTA vol. 1 11.4.2.2: Linux ib_cm.c arms its receive CQ for solicited completions only, so a
            # fragment that is not solicited would not wake it.
            self.queuePair.sends = SEND_SOLICITED
            # In Linux's form no receive is posted when there is no memory; packets are repeated then.
            self.queuePair.waits = True
            self.queuePair.minRNRTimer = _RNR_TIMER
        # Posted before the REP: a peer that sends first would draw RNR NAKs otherwise, as Linux makes ours
        # do (ib_cm.c posts in rds_ib_cm_connect_complete).
        self.queuePair.posted = RECEIVES

    def broken(self, reason: Exception) -> None:
        """
        The connection is over; the paths are notified at the end of the batch.
        """
        if self.loss is None and not self.closed:
            self.loss = reason
            # Messages sent from now on wait for the next connection.
            self.stuck = True
            self.queuePair.posted = 0
            self.cork()

    # -- connecting

    def join(self, connection: Any, message: Any) -> None:
        """
        Connect the queue pair to the peer's.

        @param message: the peer's REQ or REP.
        """
        self.connection = connection
        connection.user = self
        # IBTA vol. 1 12.7: the peer's responder resources bound our initiator depth, and the other way round.
        self._reads = min(limits.RDMA_READS, message.responderResources)
        self._confirms = self._reads > 0 and self._device.traits.completion is Completion.SENT
        self._peerReads = min(limits.RDMA_READS, message.initiatorDepth)
        self.queuePair.connect(connection.destination, message.localQPN, message)
        self.isUp = True

    # -- sending

    def gather(self, header: bytes, payload: Any, length: int) -> None:
        """
        Send a message between processes: the first of a turn at once, further small ones together.

        @param payload: C{bytes}; of a message that is not small also a list of them.
        """
        device = self._device
        size = HEADER_BYTES + length
        if size <= _SMALL and self.batch == device.batch:
            self.gathered.append(header)
            if length:
                self.gathered.append(payload)
            self._gatheredBytes += size
            if self._gatheredBytes > _ENOUGH:
                self.flushGathered()
            else:
                self.cork()
            return
        self.batch = device.batch
        # Order: what was gathered was written before.
        if self.gathered:
            self.flushGathered()
        queuePair = self.queuePair
        if length > self.fragment:
            self.postFragments(header, payload)
        # What post() does, without its calls.
        elif (
            self.backlog
            or self._keyed
            or queuePair.pending is not None
            or queuePair.state is not _RTS
            or not queuePair.path.post(queuePair.sends | queuePair.remote, header, payload, length)
        ):
            self.post(header, payload, length)
        if size > _SMALL:
            self._quiet += size
            if self._quiet > DUE:
                # A sleeping peer should begin while the rest is being written.
                self._quiet = 0
                device.ringBells()

    def flushGathered(self) -> None:
        """
        Send the gathered messages.
        """
        gathered = self.gathered
        if gathered:
            # Many pieces are joined, as the medium's gather list is bounded.
            size, self._gatheredBytes, self.gathered = self._gatheredBytes, 0, []
            self.post(b"", gathered if len(gathered) < _PIECES else b"".join(gathered), size)

    def post(self, header: bytes, payload: Any, length: int) -> None:
        """
        Send a fragment, or queue it.

        @param payload: bytes after the header: bytes-like, or a list of bytes-like objects.
        @param length: the bytes in C{payload}.
        """
        # Fragments must not overtake those in the backlog: a message's fragments never interleave (Linux
        # recv.c reassembles one message for each connection).
        if not self.backlog:
            try:
                if self._post(header, payload, length):
                    return
            except QueuePairError as reason:
                self.broken(reason)
                return
        self.backlog.append((header, payload, length))

    def _post(self, header: bytes, payload: Any, length: int) -> bool:
        # Returns whether the fragment was sent; afterwards C{stuck} says whether the next one would be.
        queuePair = self.queuePair
        if not self._keyed:
            if queuePair.pending is not None and not queuePair.canPost():
                self.stuck = True
                return False
            queuePair.postInline(header, payload, length)
            self.stuck = queuePair.pending is not None
            return True
        try:
            body = payload
            if header:
                pieces = payload if payload.__class__ is list else [payload] if length else []
                body = [header, *pieces]
            size = len(header) + length
            self.stuck = not self.work.postInline(body, size, solicited=not self.shared)
        except ResourceLimitError:
            # C{resume} is called when work requests complete.
            self.stuck = True
            return False
        return True

    def postFragments(self, header: bytes, payload: bytes) -> None:
        """
        Send a message in fragments, each with the same header.
        """
        fragment = self.fragment
        whole = memoryview(payload)
        for start in range(0, len(payload), fragment):
            piece = whole[start : start + fragment]
            self.post(header, piece, len(piece))

    def resume(self) -> None:
        """
        The medium has room: continue at the end of the batch.
        """
        self.stuck = self.loss is not None
        self.cork()

    def cork(self) -> None:
        """
        Have C{endOfBatch} called.
        """
        if not self.corked:
            self.corked = True
            self.channel.device.markDirty(self)

    def acknowledgeDue(self) -> None:
        """
        Send the acknowledgements that are due, and delay those for little data: they may be merged with
        others or piggybacked on a message.
        """
        owing, self.owing = self.owing, {}
        for carrier in owing:
            if carrier.owing >= DUE:
                carrier.acknowledge()
                self.flushGathered()
            elif carrier.owing:
                self.owing[carrier] = None
        if self.owing and self.ackCall is None:
            delay = RDS_ACK_SECONDS
            self.ackCall = self.medium.network.reactor.callLater(delay, self._acknowledgeAll)

    def _acknowledgeAll(self) -> None:
        self.ackCall = None
        owing, self.owing = self.owing, {}
        for carrier in owing:
            carrier.acknowledge()
        self.cork()

    def postBacklog(self) -> None:
        """
        Send the backlog, as far as there is room.
        """
        backlog = self.backlog
        try:
            while backlog and not self.stuck and self._post(*backlog[0]):
                backlog.popleft()
        except QueuePairError as reason:
            self.broken(reason)

    # -- operations

    def _makeWork(self) -> None:
        # Our operations need work queues, and so do the peer's, which has keys to what they may access.
        if self.work is not None or not self.isUp:
            return
        device = self.channel.device
        # The domain was allocated when a socket was bound, so that this cannot fail.
        self.domain = self.medium.domainOf(device)
        places = Capabilities(RDS_SENDS, 0, 1, 0, 0)
        queue: Any = self
        self.work = work = WorkQueues(self.queuePair, self.domain.pd, queue, queue, device.timers, places)
        # The attributes that INIT, RTR and RTS would have set (IBTA vol. 1 10.3.1); the connection is up.
        attributes = work.attributes
        attributes.access = _ACCESS
        attributes.reads, attributes.peerReads = self._reads, self._peerReads
        attributes.retries = attributes.rnrRetries = _RETRIES
        attributes.timeout = _TIMEOUT
        attributes.minRNRTimer = _RNR_TIMER

    def postOperation(self, carrier: RCCarrier, message: Any) -> bool:
        """
        Post an RDMA operation.  From then on messages use the work queues too, in order behind it.

        @param message: its L{OperationMessage<twisted_ib.rds.paths.rdmaoperations.OperationMessage>}.
        @return: whether there was room.
        """
        self._makeWork()
        # Messages written before the operation leave before it.  If they got no room, something is pending on
        # the queue pair, or its work queue is full.
        if self.gathered:
            self.flushGathered()
        if self.queuePair.pending is not None:
            return False
        if len(self._operations) >= RDS_OPERATIONS_POSTED or not self.work.canPost():
            return False
        confirms = self._confirms and message.opcode is SendOpcode.RDMA_WRITE
        if confirms and self.work.requester.room() < 2:
            # C{resume} is called when the queue is idle.
            self.work.idle()
            return False
        self._keyed = True
        self._numbers = number = self._numbers + 1
        self._operations[number] = carrier, message
        try:
            self.work.postSend(message.request(number, self.domain, not confirms))
            if confirms:
                self.work.postSend(SendRequest(number, SendOpcode.RDMA_READ))
        except QueuePairError as reason:
            self.broken(reason)
        except HCAError:
            # The local memory was freed meanwhile: the operation fails, the connection stays.
            self._operations.pop(number)
            message.withdraw(self.domain)
            message.completed(WCStatus.LOC_PROT_ERR)
            return True
        counters = self.medium.network.counters
        counters["send_rdma"] += 1
        counters["send_rdma_bytes"] += message.length
        return True

    def push(self, completion: Any, solicited: bool = False) -> bool:
        """
        Receive a completion, in the place of a completion queue; it is reported at the end of the batch.
        """
        self._completions.append(completion)
        self.cork()
        return True

    def tellOperations(self) -> None:
        """
        Report the completed operations.
        """
        completions = self._completions
        while completions:
            completion = completions.popleft()
            # IBTA vol. 1 11.6.2: flushed work requests tell nothing about the cause; C{dropOperations}
            # reports them with the connection's end.
            if completion.status == WCStatus.WR_FLUSH_ERR:
                continue
            found = self._operations.pop(completion.workRequestID, None)
            if found is not None:
                carrier, message = found
                message.withdraw(self.domain)
                # No message follows a silent operation, so nothing else acknowledges it.
                if message.silent and carrier.path is not None:
                    carrier.path.operationDone(carrier, message)
                message.completed(completion.status)

    def dropOperations(self) -> None:
        """
        The queue pair is gone: report the outstanding operations as dropped.
        """
        operations, self._operations = self._operations, {}
        # All memory is withdrawn before the first callback, which may free or reuse it.
        for _, message in operations.values():
            message.withdraw(self.domain)
        for _, message in operations.values():
            message.completed(WCStatus.WR_FLUSH_ERR)

    def hold(self, kind: str) -> None:
        """
        See L{twisted_ib.hca.base.refcount.RefCounted}.
        """

    def release(self, kind: str) -> None:
        """
        See L{twisted_ib.hca.base.refcount.RefCounted}.
        """
