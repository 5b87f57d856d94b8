"""
The source's half of zero copy: SrcAvails sent, and SinkAvails to write to (IBTA vol. 1 annex A4).

No I/O: the peer's messages go in, completed advertisements come out.  Stream bytes, memory registration and
message transmission are the caller's.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from attrs import field

from twisted_ib import limits
from twisted_ib.errors import SDPError
from twisted_ib.records import define
from twisted_ib.sdp.protocol.modes import Mode, changed, checkRange
from twisted_ib.sdp.protocol.wire import Transition


@define(eq=False, repr=False, weakref_slot=False)
class SentSrcAvail:
    """
    A SrcAvail sent: a buffer that the sink may read.

    @ivar user: The caller's.
    @ivar left: Bytes that the sink has not read, inline bytes not counted.
    @ivar sequence: MSeq of the message.
    """

    user: Any
    left: int
    sequence: int


@define(eq=False, repr=False, weakref_slot=False)
class ReceivedSinkAvail:
    """
    A SinkAvail: a buffer of the sink that may be written.

    @ivar length: Its size in bytes; C{key} and C{address} are for RDMA WRITE.
    @ivar written: Bytes written or being written.
    @ivar moving: WRITEs in flight.
    @ivar closed: Whether it gets no more bytes and is completed when its WRITEs are done.
    """

    length: int
    key: int
    address: int
    written: int = 0
    moving: int = 0
    closed: bool = False


@define(eq=False, repr=False, weakref_slot=False)
class SourceAdverts:
    """
    One direction, at its sending end.

    @ivar mode: The flow-control mode.
    @ivar most: The peer's MaxAdverts.
    @ivar offers: SrcAvails outstanding, oldest first.
    @ivar targets: SinkAvails received, oldest first.
    @ivar pipelining: Whether the sink has requested Pipelined mode (REQ_PIPE).
    @ivar cancelling: MSeq of the SrcAvailCancel in progress, or L{None}.
    @ivar retracting: Whether a SinkAvailCancel was received and a target is not completed yet.
    @ivar discarded: Messages with payload that consumed a SinkAvail.
    @ivar everOffered: Whether any SrcAvail was sent.
    """

    most: int
    mode: Mode = Mode.COMBINED
    offers: deque[SentSrcAvail] = field(factory=deque)
    targets: deque[ReceivedSinkAvail] = field(factory=deque)
    pipelining: bool = False
    everOffered: bool = False
    retracting: bool = False
    _dropped: bool = False
    cancelling: int | None = None
    discarded: int = 0
    # Our changes out of Pipelined mode that the peer may not have received yet: MSeq, and the number of
    # payload messages at that time.
    _leaves: deque[list[int]] = field(factory=deque)

    # -- sent messages

    def mayOffer(self) -> bool:
        """
        Return whether another SrcAvail is legal now.
        """
        # A SrcAvail between a cancel and its completion is an error; a SinkAvail would void it; Buffered mode
        # has none.
        if self.cancelling is not None or self.targets or self.mode is Mode.BUFFERED:
            return False
        return len(self.offers) < (self.most if self.mode is Mode.PIPELINED else 1)

    def mayPipeline(self) -> bool:
        """
        Return whether Pipelined mode is available.
        """
        # OFED announces MaxAdverts 1 and knows no ModeChange, so it must never get one; with one SrcAvail at
        # a time the mode has no advantage either.
        return self.mode is Mode.COMBINED and self.most > 1

    def offered(self, user: Any, left: int, sequence: int) -> SentSrcAvail:
        """
        Record a SrcAvail that was numbered.

        @param left: Bytes of the buffer that are not inline.
        @param sequence: Its MSeq.
        """
        offer = SentSrcAvail(user, left, sequence)
        self.offers.append(offer)
        self.everOffered = True
        return offer

    def cancelled(self, sequence: int) -> None:
        """
        Record a SrcAvailCancel that was numbered.
        """
        self.cancelling = sequence

    def changedMode(self, transition: Transition, sequence: int, payloads: int) -> None:
        """
        Record a ModeChange that is being numbered.

        @param payloads: Messages with payload sent before it.
        @raise SDPError: The transition is not possible now.
        """
        mode = changed(self.mode, transition)
        if transition is Transition.BUFFERED_TO_COMBINED:
            raise SDPError("only the sink ends Buffered mode")
        # The peer could not tell which of its READs the change overtook, so we change between buffers only.
        # (OpenIB sdp_rcvd.c sdp_rcvd_mode_change asks that question in a comment.)
        if self.offers or self.cancelling is not None or any(target.written for target in self.targets):
            raise SDPError(f"ModeChange {transition.name} with advertisements in use")
        self.mode = mode
        if transition is Transition.PIPELINED_TO_COMBINED:
            self.targets.clear()
            self._leaves.append([sequence, payloads - self.discarded])

    def dataSent(self) -> None:
        """
        Record a message with payload; it consumes the oldest SinkAvail.

        @raise SDPError: Earlier bytes of the stream are not delivered yet.
        """
        if self.offers:
            raise SDPError("data while a SrcAvail is outstanding")
        if self.targets:
            # Stream order: the WRITEs into this SinkAvail come first, and are completed by RdmaWrCompl.
            if self.targets[0].written:
                raise SDPError("data before the WRITEs are completed")
            self.targets.popleft()
            self.discarded += 1

    def completed(self) -> int | None:
        """
        Remove the oldest target if it is done.

        @return: The byte count for the RdmaWrCompl that is due, or L{None}.
        """
        if self.targets:
            target = self.targets[0]
            if target.closed and not target.moving:
                self.targets.popleft()
                return target.written
        return None

    # -- received messages

    def read(self, count: int, acknowledged: int) -> SentSrcAvail | None:
        """
        Process an RdmaRdCompl for the oldest SrcAvail.

        @param acknowledged: The message's MSeqAck.
        @return: The offer, if it is complete.
        @raise SDPError: There were no such bytes to read.
        """
        # IBTA vol. 1 annex A4: without a cancel acknowledgement, a cancel also ends when RdmaRdCompl empties
        # the queue.
        if not self.offers:
            raise SDPError(f"RdmaRdCompl of {count} bytes, but no SrcAvail is outstanding")
        offer = self.offers[0]
        # OFED sdp_zcopy.c sdp_handle_rdma_read_compl ignores such a message; here it is an error, since RC
        # keeps order.
        if acknowledged < offer.sequence:
            raise SDPError("RdmaRdCompl before the SrcAvail came")
        # More than was left would release memory that the peer may still be reading (OpenIB sdp_rcvd.c
        # sdp_rcvd_rdma_rd: EPROTO).
        if not 0 < count <= offer.left:
            raise SDPError(f"RdmaRdCompl of {count} bytes where {offer.left} are left")
        offer.left -= count
        if offer.left:
            return None
        self.offers.popleft()
        if not self.offers:
            self.cancelling = None
        return offer

    def sendSm(self, acknowledged: int) -> list[SentSrcAvail]:
        """
        Process a SendSm for the oldest SrcAvail, or for all of a cancel.

        @param acknowledged: The message's MSeqAck.
        @return: The offers whose rest must go as Data.
        @raise SDPError: No SrcAvail was ever sent.
        """
        if not self.everOffered:
            raise SDPError("SendSm, but there was no SrcAvail")
        offers = self.offers
        # The sink lets MSeqAck reach the cancel only when it is done: that acknowledges it (OpenIB sdp_rcvd.c
        # sdp_rcvd_send_sm).
        if self.cancelling is not None and acknowledged >= self.cancelling:
            return self._void()
        if not offers or acknowledged < offers[0].sequence:
            # It is for a SrcAvail that has ended in another way (OFED sdp_zcopy.c sdp_handle_sendsm ignores
            # it too).
            return []
        over = [offers.popleft()]
        if not offers:
            self.cancelling = None
        return over

    def available(
        self, length: int, key: int, address: int, nonDiscards: int, acknowledged: int, payloads: int
    ) -> tuple[bool, list[SentSrcAvail]]:
        """
        Process a SinkAvail.

        @param nonDiscards: Payload messages that the sink had received.
        @param acknowledged: The message's MSeqAck.
        @param payloads: Payload messages sent.
        @return: Whether the buffer can be used; and the SrcAvails that it voids.
        @raise SDPError: The mode has no SinkAvail, or there are too many.
        """
        checkRange(address, length)
        leaves = self._leaves
        while leaves and leaves[0][0] <= acknowledged:
            leaves.popleft()
        if leaves:
            # It was sent before the peer received our change out of Pipelined mode, which voids it, unless
            # data sent before the change had consumed it.
            if leaves[0][1] - nonDiscards & 0xFFFFFFFF:
                self.discarded += 1
                for leave in leaves:
                    leave[1] -= 1
            return False, []
        if self.mode is not Mode.PIPELINED:
            raise SDPError(f"SinkAvail in {self.mode.name} mode")
        if len(self.targets) >= limits.SDP_ADVERTS:
            raise SDPError(f"more than {limits.SDP_ADVERTS} SinkAvails")
        if self.retracting:
            raise SDPError("SinkAvail before SinkAvailCancel was answered")
        # Stale: data was in flight when the sink sent it, and consumes it there (OpenIB sdp_rcvd.c
        # sdp_rcvd_snk_avail).
        if payloads - self.discarded - nonDiscards & 0xFFFFFFFF:
            self.discarded += 1
            return False, []
        # A fresh SinkAvail voids our SrcAvails; their bytes are written instead.
        self.targets.append(ReceivedSinkAvail(length, key, address))
        return True, self._void()

    def cancelTargets(self) -> None:
        """
        Process a SinkAvailCancel: unused targets are dropped, a partly written one is completed as it is.
        """
        targets = self.targets
        while targets and not targets[-1].written:
            targets.pop()
            self._dropped = True
        for target in targets:
            target.closed = True
        # A cancel that finds no target has crossed our RdmaWrCompl, which answers it.
        self.retracting = bool(targets) or self._dropped

    def cancelDone(self) -> bool | None:
        """
        Finish a SinkAvailCancel if all targets are completed.

        @return: L{None} if there is none or it is not done; else whether a SinkCancelAck is due.
        """
        if not self.retracting or self.targets:
            return None
        self.retracting = False
        dropped, self._dropped = self._dropped, False
        return dropped

    def changeMode(self, transition: Transition) -> None:
        """
        Process a ModeChange of the sink.

        @raise SDPError: The transition does not start from the mode in force.
        """
        self.mode = changed(self.mode, transition)

    def _void(self) -> list[SentSrcAvail]:
        over = list(self.offers)
        self.offers.clear()
        self.cancelling = None
        return over
