"""
Unreliable datagrams (UD) over a fabric of operations.

A UD queue pair has no peer: each send request names an address handle, a queue pair number and a Q_Key;
each receive begins with the 40 bytes of the GRH, which has the sender's address (IBTA vol. 1 9.8.3).  A
record is what its form has (L{twisted_ib.hca.services.datagramform}), DETH, immediate and payload, and its
payload never exceeds the path MTU.

A send is done when it is on its way or lost; the sender cannot tell which.  A receiver drops and counts
what it cannot use: a malformed or misaddressed record, a wrong Q_Key, one without a receive or longer than
it.  IBTA completes the last in error if the receive came from a shared queue, since it cannot be put back;
here it can.

A request longer than the path MTU ends with LOC_LEN_ERR.  IBTA (C10-93.1.1) and Linux rxe_req.c complete it
with success and send nothing; here the program is told, as it would wait for ever for an answer.  Like any
error of a send it brings the queue pair to SQE (IBTA vol. 1 10.3.1.6): later requests are flushed, receives
go on, and a transition to RTS restarts it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted_ib.errors import MemoryAccessError, QueuePairError
from twisted_ib.hca.base.operation import SOLICITED
from twisted_ib.hca.base.states import RECEIVING, QPState
from twisted_ib.hca.memory.access import LOCAL_READ, LOCAL_WRITE
from twisted_ib.hca.queues.completion import WCFlags, WCOpcode, WCStatus, WorkCompletion
from twisted_ib.hca.queues.receives import ReceiveRequest, Receives
from twisted_ib.hca.queues.requests import Destination, SendFlags, SendOpcode, SendRequest
from twisted_ib.hca.queues.scatter import locate, scatter, total
from twisted_ib.hca.services.datagramform import OWN_KEY
from twisted_ib.hca.services.operations.operation import Operation
from twisted_ib.hca.services.sendqueue import SendQueue
from twisted_ib.hca.wire import headers
from twisted_ib.hca.wire.grh import DETH_BYTES, GRH_BYTES
from twisted_ib.hca.wire.headers import IMMEDIATE, QPN_MASK
from twisted_ib.hca.wire.opcodes import UD_SEND_ONLY, UD_SEND_ONLY_IMMEDIATE

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import DatagramPath
    from twisted_ib.hca.services.work import WorkQueues

_SIGNALED = int(SendFlags.SIGNALED)
_SOLICITED_FLAG = int(SendFlags.SOLICITED)
_IMMEDIATE_FLAG = int(WCFlags.WITH_IMM)


class Datagram(Operation):
    """
    One send request.
    """

    __slots__ = ("request",)

    carriesData = True
    completionOpcode = WCOpcode.SEND

    def __init__(self, request: SendRequest) -> None:
        self.request = request
        inline = request.inline
        super().__init__(
            request.id, int(request.flags), total(request.pieces) if inline is None else len(inline)
        )

    def send(self, work: WorkQueues) -> WCStatus:
        """
        Send it.

        @return: its completion status.
        """
        request, size = self.request, self.length
        # C10-93.1.1 and Linux rxe_req.c differ: nothing is sent, and no error is reported.
        if size > work.queuePair.device.pathMTU:
            return WCStatus.LOC_LEN_ERR
        payload: Any = request.inline
        if payload is None:
            try:
                payload = locate(work.pd, request.pieces, 0, size, LOCAL_READ)
            except MemoryAccessError:
                return WCStatus.LOC_PROT_ERR
        destination = request.destination
        # Checked by DatagramRequester.enqueue.
        assert destination is not None
        if destination.handle.closed:
            # The handle was destroyed while the request waited in SQD.
            return WCStatus.LOC_QP_OP_ERR
        opcode, immediate = UD_SEND_ONLY, b""
        if request.opcode == SendOpcode.SEND_WITH_IMM:
            opcode, immediate = UD_SEND_ONLY_IMMEDIATE, IMMEDIATE.pack(request.immediate)
        word = opcode << 24 | destination.number
        if self.flags & _SOLICITED_FLAG:
            word |= SOLICITED << 24
        # The length in the GRH covers the immediate, too, as it does on a wire (IBTA vol. 1 8.3).
        queuePair = work.queuePair
        handle, behind = destination.handle, len(immediate) + size
        # IBTA vol. 1 10.2.5: with the high bit set the queue pair's own Q_Key is used, so that an
        # unprivileged program cannot send with the Q_Key of a management queue pair.  rxe knows
        # only the rule for QP 1.
        key = work.attributes.queueKey if destination.key & OWN_KEY else destination.key
        header = queuePair.device.datagramForm.pack(queuePair, handle.vector, behind)
        header += headers.DETH.pack(key, queuePair.number) + immediate
        handle.send(word, header, payload, size)
        work.recordsSent += 1
        work.messagesSent += 1
        return WCStatus.SUCCESS


class DatagramRequester(SendQueue):
    """
    The send queue of a UD queue pair: requests complete when they are sent.  See
    L{Requester<twisted_ib.hca.services.requester.Requester>}.
    """

    __slots__ = ()

    # IBTA vol. 1 9.8.3: UD has SEND and SEND with immediate only.
    operations = {SendOpcode.SEND: Datagram, SendOpcode.SEND_WITH_IMM: Datagram}

    # -- posting

    def enqueue(self, request: SendRequest, fits: bool = False) -> None:
        work = self.work
        if work is not None and request.opcode in work.operations:
            _checkDestination(request.destination, work)
        super().enqueue(request, fits)

    def enqueueInline(
        self, payload: Any, length: int, immediate: int | None, id: int | None, solicited: bool = False
    ) -> bool:
        # A datagram needs a request, which has its destination.
        assert self.work is not None
        raise QueuePairError(f"queue pair {self.work.queuePair.number} sends datagrams, which need requests")

    # -- sending

    def pathFound(self) -> None:
        pass  # Address handles have paths, this queue pair has none.

    def delivered(self, opcode: int, buffer: Any, start: int, stop: int) -> None:
        pass  # A datagram has no response.

    def pump(self) -> None:
        work, unsent = self.work, self._unsent
        if work is None:
            return
        queuePair = work.queuePair
        # Looked at per datagram: a completion's callback may change the state, and an error brings
        # it to SQE.
        while unsent and queuePair.state == QPState.RTS:
            datagram = unsent[0]
            del unsent[0]
            assert isinstance(datagram, Datagram)
            status = datagram.send(work)
            if status is not WCStatus.SUCCESS:
                self._push(work, datagram, status)
                text = f"a datagram of queue pair {queuePair.number} ended with {status.name}"
                queuePair.stop(QueuePairError(text))
            elif datagram.flags & _SIGNALED:
                completion = WorkCompletion(
                    datagram.id or 0, status, WCOpcode.SEND, queuePair.number, datagram.length
                )
                if not work.sendCompletions.push(completion):
                    work.completionLost()
        if self._awaited:
            self._tell()

    # -- errors and flush

    def _push(self, work: WorkQueues, datagram: Operation, status: WCStatus) -> None:
        # IBTA vol. 1 10.7.3.1: an error completes even where success would be unsignaled.
        work.sendCompletions.push(
            WorkCompletion(datagram.id or 0, status, WCOpcode.SEND, work.queuePair.number), True
        )

    def flush(self, first: WCStatus) -> None:
        work, unsent, status = self.work, self._unsent, first
        assert work is not None
        while unsent:
            datagram = unsent[0]
            del unsent[0]
            self._push(work, datagram, status)
            status = WCStatus.WR_FLUSH_ERR

    def close(self) -> None:
        self.work = None
        self._unsent.clear()


def _checkDestination(destination: Destination | None, work: WorkQueues) -> None:
    number = work.queuePair.number
    if destination is None:
        raise QueuePairError(f"a datagram of queue pair {number} needs a destination")
    handle = destination.handle
    # An address handle is usable only in its own protection domain (IBTA vol. 1 11.2.2).
    if handle.closed or handle.pd is not work.pd:
        raise QueuePairError(f"queue pair {number} cannot use this address handle")
    if not 0 <= destination.number < 1 << 24 or not 0 <= destination.key < 1 << 32:
        raise QueuePairError(
            f"there is no queue pair {destination.number:#x} with Q_Key {destination.key:#x}"
        )


class DatagramResponder:
    """
    The receive queue of a UD queue pair.

    @ivar work: the work queues it belongs to; L{None} once closed.
    """

    __slots__ = ("_receives", "work")

    def __init__(self, work: WorkQueues) -> None:
        self.work: WorkQueues | None = work
        self._receives = Receives(work)

    def enqueue(self, *requests: ReceiveRequest) -> None:
        """
        Accept receives; the caller checked the state.

        @raise ResourceLimitError: the queue has not room for all.
        """
        work = self.work
        assert work is not None
        self._receives.add(*requests)
        if work.queuePair.state == QPState.ERR:
            self.flush()

    def room(self) -> int:
        """
        How many more receives of its own it holds.
        """
        return self._receives.room()

    def delivered(self, opcode: int, buffer: Any, start: int, stop: int) -> int:
        """
        Ignore a connection's record: no path is bound to a UD queue pair.
        """
        return 0

    def received(self, path: DatagramPath, opcode: int, buffer: Any, start: int, stop: int) -> None:
        """
        A record came for this queue pair, or for a multicast group that it is attached to.

        @param path: the path it came by.
        @param opcode: its opcode.
        @param buffer: the medium's own, valid during this call only.
        """
        work = self.work
        if work is None or work.queuePair.state not in RECEIVING:
            return
        work.recordsReceived += 1
        fault = self._take(work, path, opcode, buffer, start, stop)
        if fault:
            path.fabric.count(fault)

    def _take(
        self, work: WorkQueues, path: DatagramPath, opcode: int, buffer: Any, start: int, stop: int
    ) -> str:
        # Returns the counter of the reason it is dropped for, or "".  The headers are copied once,
        # as they may lie in shared memory, where the peer could change them between check and use.
        queuePair = work.queuePair
        form = queuePair.device.datagramForm
        begin = form.size + DETH_BYTES
        head = bytes(buffer[start : min(stop, start + begin + IMMEDIATE.size)])
        key = form.peerKey(path.peer)
        fault: str = form.fault(queuePair, work.attributes.queueKey, key, opcode, head, stop - start)
        if fault:
            return fault
        flags = immediate = 0
        start += begin
        if opcode & ~SOLICITED == UD_SEND_ONLY_IMMEDIATE:
            (immediate,) = IMMEDIATE.unpack_from(head, begin)
            start += IMMEDIATE.size
            flags |= _IMMEDIATE_FLAG
        completion = form.completion(
            0, WCStatus.SUCCESS, WCOpcode.RECV, queuePair.number, GRH_BYTES, flags, immediate
        )
        completion.sourceQueuePair = headers.DETH.unpack_from(head, form.size)[1] & QPN_MASK
        form.describe(queuePair.device.port, completion, head)
        payload = memoryview(buffer)[start:stop]
        return self._place(work, form.grh(head), payload, completion, bool(opcode & SOLICITED))

    def _place(
        self,
        work: WorkQueues,
        head: bytes,
        payload: memoryview,
        completion: WorkCompletion,
        solicited: bool,
    ) -> str:
        # Returns the counter of the reason it is dropped for, or "".
        receive = self._receives.take()
        if receive is None:
            return "datagrams_without_receive"
        size = len(payload)
        # The 40 bytes of the GRH are always counted, with or without one on the wire (IBTA vol. 1
        # 9.8.3).
        if total(receive.pieces) < GRH_BYTES + size:
            self._receives.putBack(receive)
            return "datagrams_too_long"
        pieces = receive.pieces
        # A shared receive's memory is in the SRQ's protection domain (IBTA vol. 1 10.2.9).
        pd = work.pd if work.shared is None else work.shared.pd
        try:
            first = locate(pd, pieces, 0, GRH_BYTES, LOCAL_WRITE)
            rest = locate(pd, pieces, GRH_BYTES, size, LOCAL_WRITE)
        except MemoryAccessError:
            self._fail(work, receive)
            return ""
        scatter(first, memoryview(head))
        scatter(rest, payload)
        completion.workRequestID = receive.id
        completion.byteLength += size
        work.messagesReceived += 1
        if not work.receiveCompletions.push(completion, solicited):
            work.completionLost()
        return ""

    # -- errors and flush

    def _fail(self, work: WorkQueues, receive: ReceiveRequest) -> None:
        # A receive with an invalid scatter list is the program's error and brings the queue pair
        # to ERR (IBTA vol. 1 9.9.3).
        number = work.queuePair.number
        self._receives.end(receive, WCStatus.LOC_PROT_ERR)
        work.queuePair.fail(QueuePairError(f"a receive of queue pair {number} ended with LOC_PROT_ERR"))

    def accessChanged(self) -> None:
        """
        The queue pair's rights are others.  A peer of datagrams reaches no memory.
        """

    def flush(self) -> None:
        """
        Complete all receives of its own in order with WR_FLUSH_ERR.
        """
        self._receives.flush()

    def close(self) -> None:
        """
        Forget everything.
        """
        self.work = None
        self._receives.clear()
