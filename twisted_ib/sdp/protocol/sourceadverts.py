"""
The source's half of zero copy: what it has offered to be read (SrcAvail), and where it may
write (SinkAvail).

Pure: what the peer says goes in, what is over comes out.  The stream's bytes, memory and
messages are somebody else's.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from twisted_ib import limits
from twisted_ib.errors import SDPError
from twisted_ib.sdp.protocol.modes import Mode, changed, checkRange
from twisted_ib.sdp.protocol.wire import Transition


class Offer:
    """
    A buffer that the sink may read (SrcAvail).

    @ivar user: Whose it is.
    @ivar left: Bytes that the sink has not read and that it was not given with the message.
    @ivar sequence: MSeq of the message.
    """

    __slots__ = ("left", "sequence", "user")

    def __init__(self, user: Any, left: int, sequence: int) -> None:
        self.user = user
        self.left = left
        self.sequence = sequence


class Target:
    """
    A buffer that the source may write to (SinkAvail).

    @ivar length: Its size in bytes.
    @ivar key: Its R_Key.
    @ivar address: Its virtual address.
    @ivar written: Bytes that were written, or are being written.
    @ivar moving: WRITEs that are not done.
    @ivar closed: Whether it gets no more: it is completed when the WRITEs are done.
    """

    __slots__ = ("address", "closed", "key", "length", "moving", "written")

    def __init__(self, length: int, key: int, address: int) -> None:
        self.length = length
        self.key = key
        self.address = address
        self.written = self.moving = 0
        self.closed = False


class SourceAdverts:
    """
    One direction, at the end that sends.

    @ivar mode: The flow-control mode.
    @ivar most: The peer's MaxAdverts.
    @ivar offers: What was offered and is not read, oldest first.
    @ivar targets: Where the peer wants it written, oldest first.
    @ivar pipelining: Whether the sink asks for Pipelined mode.
    @ivar cancelling: MSeq of the SrcAvailCancel that is not done, or L{None}.
    @ivar retracting: Whether the peer takes its targets back (SinkAvailCancel) and one is not
        completed yet.
    @ivar discarded: Messages with payload that used up a SinkAvail.
    @ivar everOffered: Whether there ever was an offer.
    """

    __slots__ = (
        "_dropped",
        "_leaves",
        "cancelling",
        "discarded",
        "everOffered",
        "mode",
        "most",
        "offers",
        "pipelining",
        "retracting",
        "targets",
    )

    def __init__(self, most: int) -> None:
        """
        Nothing is offered, in Combined mode.

        @param most: The peer's MaxAdverts.
        """
        self.mode = Mode.COMBINED
        self.most = most
        self.offers: deque[Offer] = deque()
        self.targets: deque[Target] = deque()
        self.pipelining = self.everOffered = self.retracting = self._dropped = False
        self.cancelling: int | None = None
        self.discarded = 0
        # Our changes from Pipelined mode that the peer may not have heard of: their MSeq, and
        # the count of messages then.
        self._leaves: deque[list[int]] = deque()

    # -- what this end does

    def mayOffer(self) -> bool:
        """
        Whether another SrcAvail is legal now.
        """
        if self.cancelling is not None or self.targets or self.mode is Mode.BUFFERED:
            return False
        return len(self.offers) < (self.most if self.mode is Mode.PIPELINED else 1)

    def mayPipeline(self) -> bool:
        """
        Whether Pipelined mode can be had: against a peer that takes one SrcAvail at a time
        it is not worth a message, and OFED's does not know it.
        """
        return self.mode is Mode.COMBINED and self.most > 1

    def offered(self, user: Any, left: int, sequence: int) -> Offer:
        """
        A SrcAvail was numbered.

        @param user: Whose buffer it is.
        @param left: Its bytes that the message does not carry.
        @param sequence: The message's number.
        """
        offer = Offer(user, left, sequence)
        self.offers.append(offer)
        self.everOffered = True
        return offer

    def cancelled(self, sequence: int) -> None:
        """
        A SrcAvailCancel was numbered.
        """
        self.cancelling = sequence

    def changedMode(self, transition: Transition, sequence: int, payloads: int) -> None:
        """
        A ModeChange of ours was numbered.

        @param payloads: Messages with payload that were sent before it.
        @raise SDPError: It is not possible now.
        """
        mode = changed(self.mode, transition)
        if transition is Transition.BUFFERED_TO_COMBINED:
            raise SDPError("only the sink ends Buffered mode")
        if self.offers or self.cancelling is not None or any(target.written for target in self.targets):
            raise SDPError(f"ModeChange {transition.name} with advertisements in use")
        self.mode = mode
        if transition is Transition.PIPELINED_TO_COMBINED:
            self.targets.clear()
            self._leaves.append([sequence, payloads - self.discarded])

    def dataSent(self) -> None:
        """
        A message with payload was numbered; it uses up the oldest SinkAvail.

        @raise SDPError: The bytes before it are not all there yet.
        """
        if self.offers:
            raise SDPError("data while a SrcAvail is outstanding")
        if self.targets:
            if self.targets[0].written:
                raise SDPError("data before the WRITEs are completed")
            self.targets.popleft()
            self.discarded += 1

    def completed(self) -> int | None:
        """
        Whether the oldest target is done: then it is over, and an RdmaWrCompl is due.

        @return: The bytes that it says.
        """
        if self.targets:
            target = self.targets[0]
            if target.closed and not target.moving:
                self.targets.popleft()
                return target.written
        return None

    # -- what the peer says

    def read(self, count: int, acknowledged: int) -> Offer | None:
        """
        RdmaRdCompl: the sink has read from the oldest offer.

        @param acknowledged: The message's MSeqAck.
        @return: The offer, if that was all of it.
        @raise SDPError: There were no such bytes to read.
        """
        if not self.offers:
            raise SDPError(f"RdmaRdCompl of {count} bytes, but no SrcAvail is outstanding")
        offer = self.offers[0]
        if acknowledged < offer.sequence:
            raise SDPError("RdmaRdCompl before the SrcAvail came")
        if not 0 < count <= offer.left:
            raise SDPError(f"RdmaRdCompl of {count} bytes where {offer.left} are left")
        offer.left -= count
        if offer.left:
            return None
        self.offers.popleft()
        if not self.offers:
            self.cancelling = None
        return offer

    def sendSm(self, acknowledged: int) -> list[Offer]:
        """
        SendSm: the sink reads no more, of the oldest offer, or of all that were cancelled.

        @param acknowledged: The message's MSeqAck.
        @return: What must go as Data.
        @raise SDPError: There never was an offer.
        """
        if not self.everOffered:
            raise SDPError("SendSm, but there was no SrcAvail")
        offers = self.offers
        if self.cancelling is not None and acknowledged >= self.cancelling:
            return self._void()
        if not offers or acknowledged < offers[0].sequence:
            return []  # Of one that is over.
        over = [offers.popleft()]
        if not offers:
            self.cancelling = None
        return over

    def available(
        self, length: int, key: int, address: int, nonDiscards: int, acknowledged: int, payloads: int
    ) -> tuple[bool, list[Offer]]:
        """
        SinkAvail: the sink wants it written.

        @param nonDiscards: The messages with payload that the sink had taken.
        @param acknowledged: The message's MSeqAck.
        @param payloads: Messages with payload that were sent.
        @return: Whether the buffer can be used (else data was on the way to it); and the
            offers that it makes void.
        @raise SDPError: The mode has no SinkAvail, or there are too many.
        """
        checkRange(address, length)
        leaves = self._leaves
        while leaves and leaves[0][0] <= acknowledged:
            leaves.popleft()
        if leaves:
            # It left before the peer heard that Pipelined mode ended, which made it void, unless
            # data before that had used it up.
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
        if payloads - self.discarded - nonDiscards & 0xFFFFFFFF:
            self.discarded += 1
            return False, []
        self.targets.append(Target(length, key, address))
        return True, self._void()

    def cancelTargets(self) -> None:
        """
        SinkAvailCancel: targets that nothing was written to are dropped, another is completed
        as it is.
        """
        targets = self.targets
        while targets and not targets[-1].written:
            targets.pop()
            self._dropped = True
        for target in targets:
            target.closed = True
        # What finds nothing has crossed an RdmaWrCompl, and is answered by it.
        self.retracting = bool(targets) or self._dropped

    def cancelDone(self) -> bool | None:
        """
        Whether SinkAvailCancel is done: then it is over.

        @return: L{None} if it is not, or there is none; else whether a SinkCancelAck is due.
        """
        if not self.retracting or self.targets:
            return None
        self.retracting = False
        dropped, self._dropped = self._dropped, False
        return dropped

    def changeMode(self, transition: Transition) -> None:
        """
        ModeChange of the sink.

        @raise SDPError: This is no change of this mode.
        """
        self.mode = changed(self.mode, transition)

    def _void(self) -> list[Offer]:
        over = list(self.offers)
        self.offers.clear()
        self.cancelling = None
        return over
