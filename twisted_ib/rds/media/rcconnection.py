"""
RDS on RC queue pairs: messages in fragments, acknowledgements, and paths that share a queue pair.

Each fragment is one SEND: the header of the whole message and a part of its payload.  Fragments of two
messages never interleave on a queue pair.

There are two forms:

  - The form of Linux, where peers are IP addresses: 4096 payload bytes in a fragment, headers with
    checksums, one queue pair for each pair of addresses.  A posted receive is a promise of memory; without
    memory none is posted, and the peer retries after an RNR NAK (IBTA vol. 1 9.7.5.2.8).
  - The form between processes of this host, which all have the same addresses: a fragment fills a
    record, and there are no checksums, as nothing leaves memory.  Small messages of one turn are sent in
    one SEND, one behind the other, or as one message (L{twisted_ib.rds.protocol.bundle}); a header whose
    length is more than what follows it begins a fragmented message.
    One queue pair carries all paths between two processes.  The header's padding has the path's index,
    which the sender has announced by a I{control} frame: flags 0x80, ports and sequence 0, and a payload
    that begins with its kind: 1 and the path's addresses, the sender's first, as text separated by a
    space; 2 and a port (16 bits, big endian) of the index's path that is not bound; 3, stop sending, or
    4, continue.

An ack-only frame has ports, length and sequence 0.  A message with ACK_REQUIRED is acknowledged at the
end of the batch, unless something else was sent on the path meanwhile; other messages are acknowledged
when there are several, or after a few milliseconds.

Source: Linux 6.1 C{net/rds/ib_recv.c}, C{net/rds/ib_send.c}.
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from twisted_ib import limits
from twisted_ib.errors import HCAError, PathLostError, QueuePairError, RDSWireError, ResourceLimitError
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.base.traits import Completion
from twisted_ib.hca.memory.access import REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE
from twisted_ib.hca.queues.completion import WCStatus, WorkCompletion
from twisted_ib.hca.queues.requests import Attributes, Capabilities, SendOpcode, SendRequest
from twisted_ib.hca.queues.streamqueuepair import SEND_SOLICITED
from twisted_ib.hca.services.work import WorkQueues
from twisted_ib.rds.media.rccarrier import RCCarrier
from twisted_ib.rds.protocol.bundle import BUNDLE, datagramsOf
from twisted_ib.rds.protocol.wire import (
    ACK_REQUIRED,
    FRAGMENT_BYTES,
    HEADER,
    HEADER_BYTES,
    LOWEST_PORT,
    MESSAGE_BYTES,
    NO_EXTENSIONS,
    Fields,
    checksum,
)

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall
    from twisted.python.failure import Failure

    from twisted_ib.hca.connection import ConnectReply, ConnectRequest, Rejection
    from twisted_ib.hca.connection.interfaces import IConnection
    from twisted_ib.internet.channel import DeviceChannel
    from twisted_ib.rds.media.rc import RCMedium
    from twisted_ib.rds.media.rccarrier import RCCarrier
    from twisted_ib.rds.paths.path import RDSPath
    from twisted_ib.rds.paths.rdmaoperations import DeviceMemory

#: Payload bytes of one fragment between processes of a host; receives and sends of one queue pair (Linux
#: ib.h has 1024 and 256 by default).
RDS_FRAGMENT: Final = limits.INLINE_MESSAGE
RDS_RECEIVES: Final = 256
RDS_SENDS: Final = 256
#: How long an acknowledgement between processes of a host is delayed to be merged with others, in seconds.
RDS_ACK_SECONDS = 0.005
#: RDMA operations outstanding on one queue pair; further ones wait on their paths.
RDS_OPERATIONS_POSTED: Final = 64

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
#: Paths that one process of the host may announce.
RDS_SESSION_PATHS = limits.RDS_PATHS // 4
#: Bytes accepted from a process after PAUSE: a ring's worth, and what was sent before.
RDS_PAUSED = 16 * 1024 * 1024

_unpack: Final = HEADER.unpack_from
_pack: Final = HEADER.pack

_PORT: Final = Struct(">H")
#: The flags of messages that are not for the fast path.
_UNUSUAL: Final = 0xFF & ~BUNDLE


class RCConnection:
    """
    One queue pair and the paths that it carries.

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
    @ivar ours: carriers by the index that we announced.
    @ivar theirs: by the index that the peer announced: the carrier, and the path's addresses, ours first.
    @ivar peerHas: the last sequence number that the peer had received when it connected; 0 if unknown.
    @ivar asked: when the peer's first REQ came, while its RTU is awaited, in seconds.

    See L{IConsumer<twisted_ib.hca.queues.consumers.IConsumer>} and
    L{IConnectionUser<twisted_ib.hca.connection.interfaces.IConnectionUser>}.
    """

    asked = 0.0
    readsFirst = False

    def __init__(self, medium: RCMedium, key: Any, channel: DeviceChannel, shared: bool) -> None:
        """
        @raise ResourceLimitError: there are too many queue pairs.
        """
        device = channel.device
        self.medium = medium
        self.key = key
        self.channel = channel
        self.fragment = RDS_FRAGMENT if shared else FRAGMENT_BYTES
        self.shared = shared
        self.connection: IConnection | None = None
        self.isUp = self.stuck = self.corked = self.closed = False
        self.peerPaused = False
        self.backlog: deque[tuple[bytes, Any, int]] = deque()
        self.owing: dict[RCCarrier, None] = {}
        self.bundling: dict[RCCarrier, None] = {}
        self.gathered: list[bytes] = []
        self.wanting: dict[RCCarrier, None] = {}
        self.ackCall: IDelayedCall | None = None
        self.loss: Exception | None = None
        self._gatheredBytes = self._quiet = 0
        self.batch = -1
        self._device = device
        self.queuePair = device.createQueuePair(self)
        self.queuePair.maxMessage = HEADER_BYTES + self.fragment
        self.domain: DeviceMemory | None = None
        self.work: Any = None
        self._operations: dict[int, tuple[RCCarrier, Any]] = {}
        self._completions: deque[WorkCompletion] = deque()
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
        self.queuePair.posted = RDS_RECEIVES
        self.ours: dict[int, RCCarrier] = {}
        self.theirs: dict[int, tuple[RCCarrier | None, str, str]] = {}
        self.peerHas = 0
        self._pauses = self._whilePaused = 0
        self._next = 0
        self._sockets = medium.network.sockets
        # The carrier and padding of the last message: the next one is mostly for the same.
        self._last: RCCarrier | None = None
        self._lastPadding = b""
        self._first: Fields | None = None
        self._pieces: list[bytes] = []
        self._missing = 0

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

    def join(self, connection: IConnection, message: ConnectRequest | ConnectReply) -> None:
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
            or (path := queuePair.path) is None
            or not path.post(queuePair.sends | queuePair.remote, header, payload, length)
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
        work.attributes = Attributes(
            _ACCESS, _RNR_TIMER, self._reads, self._peerReads, _TIMEOUT, _RETRIES, _RETRIES
        )

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

    def push(self, completion: WorkCompletion, solicited: bool = False) -> bool:
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

    # -- paths

    def carrier(self, path: RDSPath) -> RCCarrier:
        """
        Carry a path, one of the network's, which bounds them.  The caller notifies the path.
        """
        for found in self.ours.values():
            if found.path is path:
                return found
        self._next += 1
        carrier = self.ours[self._next] = RCCarrier(self, path, self._next if self.shared else 0)
        if self.shared:
            self._control(carrier, ADDRESSES, f"{path.local} {path.remote}".encode())
        return carrier

    def _control(self, carrier: RCCarrier, kind: int, content: bytes) -> None:
        payload = bytes([kind]) + content
        header = _pack(0, 0, len(payload), 0, 0, CONTROL, 0, carrier.padding, 0, NO_EXTENSIONS)
        self.gather(header, payload, len(payload))

    def endOfBatch(self) -> None:
        """
        End of the reactor turn: send what waits, acknowledge, notify.
        """
        if self.bundling:
            bundling, self.bundling = self.bundling, {}
            for carrier in bundling:
                if carrier.path is not None:
                    carrier.path.closeBundle()
        self.corked = False
        # What is sent here does not keep the next message waiting.
        self.batch = -1
        if self._completions:
            self.tellOperations()
        if self.loss is not None:
            self._over()
            return
        if self.gathered:
            self.flushGathered()
        if self.backlog:
            self.postBacklog()
        # Acknowledged once for each batch, as Linux ib_cm.c does after polling its CQ empty
        # (rds_ib_tasklet_fn_recv).  With a backlog the acknowledgement waits for room too.
        if self.owing and not self.backlog:
            self.acknowledgeDue()
        if self.wanting and not self.stuck and not self.backlog and not self.peerPaused:
            wanting, self.wanting = self.wanting, {}
            for carrier in wanting:
                if carrier.path is not None:
                    carrier.path.resume(carrier)

    # -- receiving (consumer of the queue pair)

    def received(self, buffer: Any, start: int, stop: int) -> None:
        # By its truth: after "is not None" mypy would take it for None below, whatever is called there, and
        # mypyc's code would insist on that.
        if self.loss:
            # Not acknowledged, so the peer retransmits this and the bad message before it.
            return
        if self._pauses and not self._mayArrive(stop - start):
            return
        if not self.shared:
            if not self._pauses:
                # In Linux's form posted receives are the flow control: during a pause none is replaced.
                self.queuePair.posted = RDS_RECEIVES
            self._receivedOne(buffer, start, stop)
            return
        self.queuePair.posted = RDS_RECEIVES
        while self.loss is None:
            body = start + HEADER_BYTES
            if body > stop:
                self.violated("a message without a header")
                return
            fields = _unpack(buffer, start)
            sequence, acknowledged, length, sourcePort, port, flags, _, padding, _, extensions = fields
            start = body + length
            if start > stop or self._first is not None:
                self._fragment(fields, bytes(buffer[body:stop]))
                return
            carrier = self._last
            # The common case is a new datagram or bundle between sockets, on the path of the last message: it
            # is handled here as in _message and PathMachine.received, without their calls.
            if (
                carrier is None
                or (path := carrier.path) is None
                or padding != self._lastPadding
                or flags & _UNUSUAL
                or not (sequence and sourcePort)
                or port < LOWEST_PORT
                or extensions != NO_EXTENSIONS
                or (socket := self._sockets.get((path.local, port))) is None
            ):
                self._message(fields, buffer[body:start])
            else:
                if acknowledged > carrier.acknowledged:
                    carrier.acknowledged = acknowledged
                    path.acknowledged(carrier, acknowledged)
                carrier.received = sequence
                carrier.owing += EACH + length
                current: object = path.carrier
                if current is carrier:
                    path.machine.nextReceive = sequence + 1
                    path.pause = 0.0
                    if flags:
                        socket.bundleReceived(path, sourcePort, datagramsOf(buffer, body, start))
                    else:
                        socket.datagramReceived(path, sourcePort, bytes(buffer[body:start]))
                # Unless an answer has acknowledged it.
                owing = carrier.owing
                if owing:
                    self.owing[carrier] = None
                    if not self.corked or owing >= MUCH:
                        self._owe(carrier)
            if start == stop:
                return

    def _mayArrive(self, size: int) -> bool:
        # Receives posted before the pause are still used; a peer that reconnects again and again must not
        # get new ones each time.
        if any(each.path is not None and each.path.isFull() for each in self.ours.values()):
            self.violated("something for which there is no memory")
            return False
        if self.shared:
            self._whilePaused += size
            # A process that ignores PAUSE is cut off: nothing else bounds it between processes.
            if self._whilePaused > RDS_PAUSED:
                self.violated("more than it may")
                return False
        return True

    def owe(self, carrier: RCCarrier) -> None:
        """
        Acknowledge at the end of the batch what others have taken.
        """
        carrier.owing += DUE
        self.owing[carrier] = None
        self.cork()

    def _owe(self, carrier: RCCarrier) -> None:
        if carrier.owing >= MUCH and self.shared and not self.backlog:
            # Acknowledged at once: the peer may wait for it while there is more to process here.
            carrier.acknowledge()
            self.flushGathered()
            self.channel.device.ringBells()
        self.cork()

    def _receivedOne(self, buffer: Any, start: int, stop: int) -> None:
        body = start + HEADER_BYTES
        if body > stop:
            self.violated("a fragment without a header")
            return
        fields = _unpack(buffer, start)
        # Linux ib_recv.c (rds_ib_process_recv): 0 is "no checksum"; a wrong one drops the connection.
        if fields[8] and checksum(buffer[start:body]):
            self.medium.network.counters["recv_drop_bad_checksum"] += 1
            self.violated("a wrong checksum")
        elif fields[2] != stop - body or (self._first is not None and (fields[0] or fields[2])):
            self._fragment(fields, bytes(buffer[body:stop]))
        else:
            # Linux sends ack-only frames between the fragments of a message too (ib_recv.c rds_ib_send_ack
            # is independent of rds_ib_xmit).
            self._message(fields, bytes(buffer[body:stop]))

    def _fragment(self, fields: Fields, piece: bytes) -> None:
        first, length = self._first, fields[2]
        if first is None:
            # A message of one fragment does not come here, so the first fragment must be full.  The length
            # is checked before memory is kept for it.
            if length > MESSAGE_BYTES or len(piece) != self.fragment or length < len(piece):
                self.violated(f"{len(piece)} bytes of a message of {length}")
                return
            self._first, self._pieces, self._missing = fields, [piece], length - len(piece)
            return
        # Linux ib_recv.c compares sequence, length and ports; the acknowledgement may differ.  The padding
        # is our index.
        same = (0, 2, 3, 4, 7)
        if any(fields[index] != first[index] for index in same):
            self.violated("fragments of two messages")
            return
        if len(piece) != min(self._missing, self.fragment):
            self.violated(f"{len(piece)} bytes where {self._missing} were missing")
            return
        self._pieces.append(piece)
        self._missing -= len(piece)
        if not self._missing:
            pieces, self._pieces, self._first = self._pieces, [], None
            # The last fragment has the newest acknowledgement.
            self._message((*first[:1], fields[1], *first[2:]), b"".join(pieces))

    def _message(self, fields: Fields, payload: bytes) -> None:
        sequence, acknowledged, length, _, destinationPort, flags, _, padding, _, _ = fields
        carrier = self._last
        if (
            carrier is None
            or (path := carrier.path) is None
            or padding != self._lastPadding
            or flags == CONTROL
        ):
            carrier = self._carrierOf(padding, flags, payload)
            if carrier is None:
                return
            self._last, self._lastPadding = carrier, padding
            path = carrier.path
            assert path is not None
        # Linux ib_recv.c processes h_ack of each frame; only a higher one is news.
        if acknowledged > carrier.acknowledged:
            carrier.acknowledged = acknowledged
            path.acknowledged(carrier, acknowledged)
        # An ack-only frame.  Congestion maps have number 0 too, but a length.
        if not sequence and not length:
            return
        if sequence:
            carrier.received = sequence
            carrier.owing += DUE if flags & ACK_REQUIRED else EACH + length
            self.owing[carrier] = None
            self._owe(carrier)
            if self.shared and destinationPort > 1 and self.medium.isUnbound(path.local, destinationPort):
                # A peer that does not read gets no further frames: the backlog must not grow by its
                # messages.
                if not self.backlog:
                    self._control(carrier, PORT_UNBOUND, _PORT.pack(destinationPort))
        path.messageReceived(carrier, fields, payload if payload.__class__ is bytes else bytes(payload))

    def _carrierOf(self, padding: bytes, flags: int, payload: bytes) -> RCCarrier | None:
        if not self.shared:
            return next(iter(self.ours.values()), None) or self._begun()
        index = int.from_bytes(padding, "big")
        if flags == CONTROL:
            self._controlled(index, payload)
            return None
        known = self.theirs.get(index)
        if known is None:
            self.violated(f"a message on path {index}, which was not announced")
            return None
        carrier = known[0]
        if carrier is None or carrier.path is None:
            carrier = self._announced(index, known[1], known[2])
        return carrier

    def _begun(self) -> RCCarrier | None:
        # Data before the RTU establishes the connection as well (IBTA vol. 1 12.9.8).
        self.channel.device.communicationEstablished(self.queuePair.number)
        network = self.medium.network
        if network.dormant or self.loss is not None:
            return None
        ours, theirs = self.key
        try:
            path = network.path(self.key, ours, theirs)
            carrier = self.carrier(path)
        except ResourceLimitError:
            self.violated("something for which there is no path")
            return None
        path.carrierUp(carrier, self.peerHas)
        return carrier

    def _controlled(self, index: int, payload: bytes) -> None:
        kind = payload[0] if payload else 0
        if kind == ADDRESSES:
            try:
                theirs, ours = payload[1:].decode("ascii").split(" ")
            except ValueError:
                self.violated("a control frame without addresses")
                return
            # Index 0 is reserved, an index is announced once, and addresses must be of this host or of one of
            # the two HCAs: a process may not speak for another.
            if not index or index in self.theirs or not self.medium.areBetween(self, ours, theirs):
                self.violated(f"addresses {payload[1:]!r} for path {index}")
            elif len(self.theirs) >= RDS_SESSION_PATHS:
                self.violated("too many paths")
            else:
                self._announced(index, ours, theirs)
        elif kind == PORT_UNBOUND and len(payload) == 1 + _PORT.size:
            # The port was closed or has moved to another process: look up all routes again.  Messages on
            # the way are dropped, as Linux drops those for unbound ports.
            self.medium.moved()
        elif kind in (PAUSE, RESUME) and len(payload) == 1:
            self.peerPaused = kind == PAUSE
            self.cork()
        else:
            self.violated(f"a control frame of kind {kind}")

    def _announced(self, index: int, ours: str, theirs: str) -> RCCarrier | None:
        # The index is known even if no path can be had: messages on it are then dropped, and break no rule.
        self.theirs[index] = None, ours, theirs
        try:
            path = self.medium.pathOf(self, ours, theirs)
            if path is None:
                return None
            carrier = self.carrier(path)
        except ResourceLimitError:
            return None
        self.theirs[index] = carrier, ours, theirs
        if path.carrier is not carrier:
            path.carrierUp(carrier)
        return carrier

    def immediateReceived(self, immediate: int | None, buffer: Any, start: int, stop: int) -> None:
        """
        RDS has no immediate data: the peer broke the rules.
        """
        self.violated("immediate data")

    def remoteMemoryWritten(self, immediate: int, length: int) -> None:
        """
        RDS has no WRITE with immediate data: the peer broke the rules.
        """
        self.violated("immediate data")

    def pause(self, count: int) -> None:
        """
        Count the carriers without memory.

        @param count: 1 for one more, -1 for one fewer.
        """
        self._pauses += count
        if self.closed or self._pauses > 1 or (self._pauses == 1 and count < 0):
            return
        # No receive is replaced: the peer's SENDs draw RNR NAKs, which change nothing and are retried
        # (IBTA vol. 1 9.7.5.2.8).
        if not self.shared:
            self.queuePair.posted = 0 if self._pauses else RDS_RECEIVES
        elif self.ours and self.loss is None:
            self._whilePaused = 0
            carrier = next(iter(self.ours.values()))
            self._control(carrier, PAUSE if self._pauses else RESUME, b"")

    # -- errors, CM events and closing

    def violated(self, what: str) -> None:
        """
        The peer broke the rules: count it and end the connection.
        """
        self.medium.network.counters["recv_bad_frame"] += 1
        # Linux ib_recv.c forces a reconnect in the same cases (rds_ib_conn_error): both ends then start
        # from a known state.
        self.broken(RDSWireError(f"the peer has sent {what}"))

    def failed(self, reason: Exception) -> None:
        # Between processes the peer is gone, and its connection with it.  A silent host may come back, so it
        # gets a DREQ.
        if self.shared and isinstance(reason, PathLostError):
            self.connection = None
        self.broken(reason)

    def pathLost(self, reason: Exception) -> None:
        """
        CM: the peer's process is gone.
        """
        self.connection = None
        self.broken(reason)

    def peerDisconnected(self, connection: IConnection) -> None:
        self.connection = None
        self.broken(PathLostError("the peer closed the connection"))

    def established(self, connection: IConnection) -> None:
        """
        CM: the RTU was received.
        """
        self.medium.arrived(self)

    def rejected(self, connection: IConnection, rejection: Rejection) -> None:
        self.peerDisconnected(connection)

    def unreachable(self, connection: IConnection) -> None:
        self.peerDisconnected(connection)

    def connectionLost(self, reason: Failure) -> None:
        """
        The device is going, with the reactor.
        """
        self.broken(PathLostError("the device is going"))
        if self.loss is not None:
            self._over()

    def forked(self) -> None:
        self.closed = True

    def carrierClosed(self, carrier: RCCarrier) -> None:
        """
        A path does not need the queue pair any more; the last one closes it.
        """
        for index, found in list(self.ours.items()):
            if found is carrier:
                del self.ours[index]
        self.wanting.pop(carrier, None)
        self.owing.pop(carrier, None)
        self.bundling.pop(carrier, None)
        if not self.ours:
            self.close()

    def _over(self) -> None:
        reason = self.loss
        assert reason is not None
        carriers = list(self.ours.values())
        self.ours = {}
        # Closed before the paths are notified: they may connect again at once, under the same key.
        self.close()
        for carrier in carriers:
            path, carrier.path = carrier.path, None
            if path is not None:
                path.lost(carrier, reason)

    def close(self) -> None:
        """
        Release everything, and disconnect if the peer may not know.
        """
        if self.closed:
            return
        self.closed = True
        self.isUp = False
        if self.ackCall is not None:
            self.ackCall.cancel()
            self.ackCall = None
        self.gathered = []
        self.backlog.clear()
        self.wanting.clear()
        self.owing.clear()
        self.bundling.clear()
        connection, self.connection = self.connection, None
        device = self.channel.device
        if self.queuePair.device is not None:
            self.queuePair.close()
        self.dropOperations()
        if connection is not None and not device.closed:
            device.disconnect(connection)
        self.medium.sessionClosed(self)
