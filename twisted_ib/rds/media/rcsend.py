"""
The sending half of a queue pair of RDS: what is gathered, what waits for a place, and the
acknowledgements that are due.

What is on the queue pair is in L{twisted_ib.rds.media.rcconnection}.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from twisted_ib import limits
from twisted_ib.errors import HCAError, QueuePairError, ResourceLimitError
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.memory.memory import REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.requests import Capabilities
from twisted_ib.hca.services.work import WorkQueues
from twisted_ib.rds.protocol.wire import FRAGMENT_BYTES, HEADER, HEADER_BYTES, NO_EXTENSIONS, NO_PADDING

if TYPE_CHECKING:
    from twisted_ib.rds.media.rc import RCMedium
    from twisted_ib.rds.media.rccarrier import RCCarrier

#: Bytes of a message in one fragment between processes of a host; and the receives and sends of one
#: queue pair.
RDS_FRAGMENT = limits.INLINE_MESSAGE
RDS_RECEIVES = 256
RDS_SENDS = 256
#: How long an acknowledgement between processes of a host waits for more of them, in seconds.
RDS_ACK_SECONDS = 0.005
RDS_OPERATIONS_POSTED = 64

RECEIVES = RDS_RECEIVES

#: The timer code of a peer that finds no receive, 0.32 ms as Linux says.
_RNR_TIMER = 10
_RETRIES = 7
#: Messages that are longer than this, with their headers, are not gathered; and so much is gathered: a
#: peer begins with the first while the last are written.
_SMALL = 4 * 1024
_ENOUGH = 4 * 1024
#: The most pieces that the medium is given.
_PIECES = 16
#: An acknowledgement is due when so much has come, each message counting for C{EACH} and its bytes.  A
#: peer that sleeps is woken when so much was sent.
DUE = 64 * 1024
#: What is acknowledged at once, and not at the end of the batch.
MUCH = 256 * 1024
EACH = 4 * 1024
#: The code of 4096 bytes.
MTU = 5
#: Flags of a control frame; the kernel has no such flag, and never sees it.
CONTROL = 0x80
#: Kinds of control frames.
ADDRESSES, NOBODY, PAUSE, GO_ON, OPERATIONS = 1, 2, 3, 4, 5
_OPERATIONS = HEADER.pack(0, 0, 1, 0, 0, CONTROL, 0, NO_PADDING, 0, NO_EXTENSIONS) + bytes([OPERATIONS])
#: What peers may do who have a cookie.
_ACCESS = int(REMOTE_READ | REMOTE_WRITE | REMOTE_ATOMIC)
#: Timeout code between processes: 67 ms.
_TIMEOUT = 14


class RCSender:
    """
    What one end of a queue pair sends.

    @ivar medium: who has made it.
    @ivar key: what the medium knows it by.
    @ivar channel: the device in its reactor.
    @ivar queuePair: the queue pair.
    @ivar work: its work queues; between processes there are none, as nothing is refused there, until
        there is an operation.
    @ivar domain: the memory that operations use.
    @ivar connection: the CM's side, or L{None}.
    @ivar isUp: whether messages can be sent.
    @ivar fragment: bytes of payload in one fragment.
    @ivar shared: whether it has the form between processes of a host; else that of Linux.
    @ivar stuck: whether the medium has no room, or it is over.
    @ivar peerPaused: whether the peer has said that it has no memory.
    @ivar corked: whether the end of the batch is still to come.
    @ivar backlog: fragments for which there was no place.
    @ivar gathered: headers and payloads that leave together.
    @ivar wanting: carriers that were told there is no room.
    @ivar bundling: carriers whose paths have a bundle open, or had one in this turn.
    @ivar owing: carriers whose peers have not been sent an acknowledgement.
    @ivar ackCall: what sends those in a while, or L{None}.
    @ivar loss: why it is over, until the paths are told.
    @ivar closed: whether it is over.
    """

    def __init__(self, medium: RCMedium, key: Any, channel: Any, shared: bool) -> None:
        """
        Make the queue pair.

        @raise ResourceLimitError: There are too many.
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
        self.queuePair = device.createQueuePair(self)
        self.queuePair.maxMessage = HEADER_BYTES + self.fragment
        self.domain: Any = None
        self.work: Any = None
        self._operations: dict[int, tuple[RCCarrier, Any]] = {}
        self._completions: deque[Any] = deque()
        self._numbers = 0
        self._told = self._keyed = False
        if not shared:
            try:
                self._makeWork()
            except HCAError:
                self.queuePair.close()
                raise
        self.queuePair.posted = RECEIVES

    def broken(self, reason: Exception) -> None:
        """
        It is over; the paths hear of it at the end of the batch.
        """
        if self.loss is None and not self.closed:
            self.loss = reason
            # What is sent from now on waits for the next connection.
            self.stuck = True
            self.queuePair.posted = 0
            self.cork()

    def _makeWork(self) -> None:
        """
        Hang work queues on the queue pair, which repeat what was refused.

        @raise ResourceLimitError: there are too many protection domains.
        """
        device = self.channel.device
        self.domain = self.medium.domainOf(device)
        places = Capabilities(RDS_SENDS, 0, 1, 0, 0)
        queue: Any = self
        self.work = WorkQueues(self.queuePair, self.domain.pd, queue, queue, device.timers, places)

    # -- connecting

    def join(self, connection: Any, message: Any) -> None:
        """
        Let the queue pair talk to the peer's.

        @param message: The peer's REQ or REP.
        """
        self.connection = connection
        connection.user = self
        if self.shared:
            self.queuePair.connect(connection.destination, message.localQPN, message)
            self.isUp = True
            return
        modify, proposal = self.queuePair.modify, self.queuePair.proposal
        modify(QPState.INIT, pkey_index=0, port_num=1, qp_access_flags=_ACCESS)
        modify(
            QPState.RTR,
            ah_attr=connection.destination,
            path_mtu=MTU if proposal is None else proposal.mtu,
            dest_qp_num=message.localQPN,
            rq_psn=0 if proposal is None else proposal.expectedPSN,
            max_dest_rd_atomic=min(limits.RDMA_READS, message.initiatorDepth),
            min_rnr_timer=_RNR_TIMER,
        )
        modify(
            QPState.RTS,
            sq_psn=message.startingPSN,
            timeout=limits.PACKET_STREAM_TIMEOUT_CODE,
            retry_cnt=_RETRIES,
            rnr_retry=_RETRIES,
            max_rd_atomic=min(limits.RDMA_READS, message.responderResources),
        )
        self.isUp = True

    # -- sending

    def gather(self, header: bytes, payload: bytes, length: int) -> None:
        """
        Send a message between processes: the first of a turn at once, small ones after it together.
        """
        size = HEADER_BYTES + length
        if size > _SMALL:
            if self.gathered:
                self.flushGathered()
            elif not self.corked:
                self.corked = True
                self.channel.device.markDirty(self)
            if length > self.fragment:
                self.postFragments(header, payload)
            else:
                self.post(header, payload, length)
            self._quiet += size
            if self._quiet > DUE:
                # A peer that sleeps should begin while the rest is written.
                self._quiet = 0
                self.channel.device.ringBells()
        elif not self.corked:
            self.corked = True
            self.channel.device.markDirty(self)
            self.post(header, payload, length)
        else:
            self.gathered.append(header)
            if length:
                self.gathered.append(payload)
            self._gatheredBytes += size
            if self._gatheredBytes > _ENOUGH:
                self.flushGathered()

    def flushGathered(self) -> None:
        """
        Send what was gathered.
        """
        gathered = self.gathered
        if gathered:
            size, self._gatheredBytes, self.gathered = self._gatheredBytes, 0, []
            self.post(b"", gathered if len(gathered) < _PIECES else b"".join(gathered), size)

    def post(self, header: bytes, payload: Any, length: int) -> None:
        """
        Send a fragment, or let it wait.

        @param payload: What follows the header: bytes-like, or a list of bytes-like objects.
        @param length: Of that.
        """
        if not self.backlog:
            try:
                if self._post(header, payload, length):
                    return
            except QueuePairError as reason:
                self.broken(reason)
                return
        self.backlog.append((header, payload, length))

    def _post(self, header: bytes, payload: Any, length: int) -> bool:
        """
        Send a fragment, if there is a place; C{stuck} says whether there is one for the next.

        @raise QueuePairError: The queue pair sends nothing.
        """
        queuePair = self.queuePair
        work, solicited = self.work, not self.shared
        if not (solicited or self._keyed):
            if not queuePair.canPost():
                self.stuck = True
                return False
            queuePair.postInline(header, payload, length)
            self.stuck = queuePair.pending is not None
            return True
        try:
            if queuePair.pending is not None:
                # What was posted without work queues leaves first.
                self.stuck = True
                return False
            size = len(header) + length
            # Linux sleeps until something solicited comes.
            if not header:
                self.stuck = not work.postInline(payload, size, solicited=solicited)
            elif payload.__class__ is list:
                self.stuck = not work.postInline([header, *payload], size, solicited=solicited)
            else:
                body = [header, payload] if length else header
                self.stuck = not work.postInline(body, size, solicited=solicited)
        except ResourceLimitError:
            self.stuck = True  # C{resume} is called when there are places.
            return False
        return True

    def postFragments(self, header: bytes, payload: bytes) -> None:
        """
        Send a message in several fragments.
        """
        fragment = self.fragment
        whole = memoryview(payload)
        for start in range(0, len(payload), fragment):
            piece = whole[start : start + fragment]
            self.post(header, piece, len(piece))

    def resume(self) -> None:
        """
        The medium has room, or has done everything: go on at the end of the batch.
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
        Send the acknowledgements that are due, or, if a few messages are all, wait for something to
        send with them, or for more of them.
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
        Post the fragments that wait, as far as there are places.
        """
        backlog = self.backlog
        try:
            while backlog and not self.stuck and self._post(*backlog[0]):
                backlog.popleft()
        except QueuePairError as reason:
            self.broken(reason)

    # -- operations

    def beginOperations(self) -> None:
        """
        Give the queue pair its work queues, if it has none: the peer may read and write from now on,
        what it has keys for.  Messages then go through them too, behind the operations before them.

        @raise ResourceLimitError: there are too many protection domains.
        """
        if self.work is None and self.isUp:
            self._makeWork()
            work: Any = self.work
            attributes = work.attributes
            attributes.access = _ACCESS
            attributes.reads = attributes.peerReads = limits.RDMA_READS
            attributes.retries = attributes.rnrRetries = _RETRIES
            attributes.timeout = _TIMEOUT
            attributes.minRNRTimer = _RNR_TIMER
            self.announce()

    def announce(self) -> None:
        """
        Tell the peer that it needs work queues too, behind everything that was sent without them here.
        """
        if not self._told:
            if self.gathered:
                self.flushGathered()
            if not self.backlog:
                self._told = True
                self.post(_OPERATIONS, b"", 0)
        if self._told and not self.backlog:
            self._keyed = True

    def postOperation(self, carrier: RCCarrier, message: Any) -> bool:
        """
        Post an operation.

        @param message: its L{OperationMessage<twisted_ib.rds.paths.rdmaoperations.OperationMessage>}.
        @return: whether there was a place.
        """
        self.beginOperations()
        if self.gathered:
            self.flushGathered()
        if self.shared and not self._keyed:
            self.announce()
        if self.backlog or self.queuePair.pending is not None:
            return False
        if len(self._operations) >= RDS_OPERATIONS_POSTED or not self.work.canPost():
            return False
        self._numbers = number = self._numbers + 1
        self._operations[number] = carrier, message
        try:
            self.work.postSend(message.request(number, self.domain))
        except QueuePairError as reason:
            self.broken(reason)
        except HCAError:
            # It cannot use the memory here any more.
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
        An operation ended; it is told at the end of the batch.
        """
        self._completions.append(completion)
        self.cork()
        return True

    def tellOperations(self) -> None:
        """
        Tell what ended.  What was flushed ends with the connection.
        """
        completions = self._completions
        while completions:
            completion = completions.popleft()
            if completion.status == WCStatus.WR_FLUSH_ERR:
                continue
            found = self._operations.pop(completion.workRequestID, None)
            if found is not None:
                carrier, message = found
                message.withdraw(self.domain)
                if message.silent and carrier.path is not None:
                    carrier.path.operationDone(carrier, message)
                message.completed(completion.status)

    def dropOperations(self) -> None:
        """
        The queue pair is gone.
        """
        operations, self._operations = self._operations, {}
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
