"""
The sink's half of zero copy: SrcAvails to read from, and SinkAvails for the peer to write to (IBTA vol. 1
annex A4).

No I/O, as in L{twisted_ib.sdp.protocol.sourceadverts}.
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


class ReceivedSrcAvail:
    """
    A SrcAvail: a buffer of the source that may be read.

    @ivar length: Its size, inline bytes included.
    @ivar key: Its R_Key; C{address} is its virtual address.
    @ivar asked: Bytes read, being read, or received inline.
    @ivar done: Bytes of those that have arrived.
    @ivar moving: READs in flight.
    """

    __slots__ = ("address", "asked", "done", "key", "length", "moving")

    def __init__(self, length: int, key: int, address: int, carried: int) -> None:
        self.length = length
        self.key = key
        self.address = address
        self.asked = self.done = carried
        self.moving = 0


@define(eq=False, repr=False, weakref_slot=False)
class SinkAdverts:
    """
    One direction, at its receiving end.

    @ivar mode: The flow-control mode.
    @ivar most: The peer's MaxAdverts.
    @ivar adverts: SrcAvails to read, oldest first.
    @ivar places: SinkAvails sent: (user, length), oldest first.
    @ivar cancelling: Whether a SrcAvailCancel was received and is not done.
    @ivar dropping: Whether something was dropped that the peer must send as Data.
    @ivar retracting: Whether a SinkAvailCancel was sent and is not done.
    @ivar discarded: Messages with payload that consumed a SinkAvail.
    @ivar refusing: Whether data refused in Pipelined mode has not arrived yet; later SrcAvails come behind it
        in the stream and are refused too.
    @ivar over: Whether the peer's DisConn was received.
    """

    most: int
    # IBTA vol. 1 annex A4: both directions start in Combined mode (OpenIB sdp_conn.c sdp_conn_alloc).
    mode: Mode = Mode.COMBINED
    adverts: deque[ReceivedSrcAvail] = field(factory=deque)
    places: deque[tuple[Any, int]] = field(factory=deque)
    cancelling: bool = False
    dropping: bool = False
    retracting: bool = False
    refusing: bool = False
    over: bool = False
    discarded: int = 0

    # -- sent messages

    def mayAsk(self, length: int, payload: int) -> bool:
        """
        Return whether a SinkAvail is legal now.

        @param length: Bytes of the buffer.
        @param payload: The largest payload of the peer's messages.
        """
        # A SinkAvail must hold the source's largest message (OpenIB sdp_rcvd.c sdp_rcvd_snk_avail), so that
        # data which crosses it can complete it instead.
        return (
            self.mode is Mode.PIPELINED
            and not self.over
            and not self.adverts
            and not self.retracting
            and length >= payload
            and len(self.places) < self.most
        )

    def asked(self, user: Any, length: int) -> None:
        """
        Record a SinkAvail that was numbered.
        """
        self.places.append((user, length))

    def retract(self) -> None:
        """
        Record a SinkAvailCancel that was numbered.
        """
        self.retracting = True

    def pick(self, most: int) -> tuple[ReceivedSrcAvail, int] | None:
        """
        Choose the next bytes to read.

        @param most: Upper bound of bytes.
        @return: The advertisement and the number of bytes, or L{None}.
        """
        if not self.cancelling and not self.refusing:
            for advert in self.adverts:
                count = min(advert.length - advert.asked, most)
                if count:
                    return advert, count
        return None

    def arrived(self, advert: ReceivedSrcAvail, count: int) -> None:
        """
        Complete a READ; READs complete in posting order.
        """
        # IBTA vol. 1 9.5: the responder executes READs in order.
        advert.moving -= 1
        advert.done += count
        if advert.done == advert.length and self.adverts and self.adverts[0] is advert:
            self.adverts.popleft()

    def refuse(self) -> bool:
        """
        Refuse the oldest advertisement, whose data shall come as Data.

        @return: Whether it could be refused; then a SendSm is due.
        """
        # Bytes being read must not also arrive as Data.
        if not self.adverts or self.adverts[0].moving:
            return False
        self.adverts.popleft()
        self.refusing = self.mode is Mode.PIPELINED
        return True

    def cancelDone(self) -> bool | None:
        """
        Finish a SrcAvailCancel if its READs are complete.

        @return: L{None} if there is none or it is not done; else whether a SendSm is due.
        """
        if not self.cancelling or self.adverts:
            return None
        self.cancelling = False
        # IBTA vol. 1 annex A4: SendSm is sent only if something was dropped (OpenIB sdp_rcvd.c
        # sdp_rcvd_src_cancel); otherwise the RdmaRdCompls have emptied the source's queue.
        dropped, self.dropping = self.dropping, False
        return dropped

    # -- received messages

    def checkData(self) -> None:
        """
        Check that Data is legal now.

        @raise SDPError: A SrcAvail is outstanding.
        """
        # Data would overtake the bytes that are still to be read (OpenIB sdp_rcvd.c sdp_rcvd_data).
        if self.adverts:
            raise SDPError("Data while a SrcAvail is outstanding")

    def payloadCame(self) -> bool:
        """
        Count a message with payload.

        @return: Whether it consumed the oldest SinkAvail.
        """
        self.refusing = False
        if not self.places:
            return False
        # The message crossed the SinkAvail: its data completes the buffer, and the source drops the SinkAvail
        # as stale by NonDiscards (OpenIB sdp_recv.c sdp_recv_buff_iocb_active).
        self.places.popleft()
        self.discarded += 1
        if not self.places:
            self.retracting = False
        return True

    def offered(self, length: int, key: int, address: int, carried: int) -> ReceivedSrcAvail | None:
        """
        Process a SrcAvail.

        @param carried: Bytes inline in the message.
        @return: The advertisement; L{None} if it crossed a SinkAvail, which voids it.
        @raise SDPError: The source may not send it now.
        """
        checkRange(address, length)
        mode = self.mode
        if self.cancelling:
            raise SDPError("SrcAvail before SrcAvailCancel was answered")
        if mode is Mode.BUFFERED:
            raise SDPError("SrcAvail in BUFFERED mode")
        # IBTA vol. 1 annex A4: in Combined mode one SrcAvail, which carries payload; in Pipelined mode up to
        # MaxAdverts without.
        if mode is Mode.COMBINED:
            if not carried:
                raise SDPError("a SrcAvail in Combined mode carries its first bytes")
            if self.adverts:
                raise SDPError("a second SrcAvail in Combined mode")
        elif carried:
            raise SDPError("a SrcAvail in Pipelined mode carries no bytes")
        # A SinkAvail voids SrcAvails; the source writes the same bytes (OpenIB sdp_rcvd.c sdp_rcvd_src_avail,
        # snk_sent).
        elif self.places:
            return None
        # A peer that keeps to our MaxAdverts never gets here; without a bound it could make the queue grow
        # for ever.
        if len(self.adverts) >= limits.SDP_ADVERTS:
            raise SDPError(f"more than {limits.SDP_ADVERTS} SrcAvails")
        advert = ReceivedSrcAvail(length, key, address, carried)
        self.adverts.append(advert)
        return advert

    def cancel(self) -> None:
        """
        Process a SrcAvailCancel: READs in flight finish, the rest is dropped.

        @raise SDPError: An earlier cancel is not done.
        """
        if self.cancelling:
            raise SDPError("a second SrcAvailCancel")
        adverts = self.adverts
        # It crossed our last RdmaRdCompl: nothing is left to cancel, and no answer is sent.
        if not adverts:
            return
        self.cancelling = True
        while adverts and not adverts[-1].moving:
            adverts.pop()
            self.dropping = True
        for advert in adverts:
            if advert.asked < advert.length:
                self.dropping = True
                advert.length = advert.asked

    def written(self, count: int) -> Any:
        """
        Process an RdmaWrCompl for the oldest SinkAvail.

        @return: The user of the buffer.
        @raise SDPError: No SinkAvail is outstanding, or it is shorter.
        """
        if not self.places:
            raise SDPError("RdmaWrCompl, but no SinkAvail is outstanding")
        user, length = self.places[0]
        # The bytes beyond were never writable, so the count is wrong (OpenIB sdp_rcvd.c sdp_rcvd_rdma_wr:
        # EPROTO).
        if count > length:
            raise SDPError(f"RdmaWrCompl of {count} bytes into {length}")
        self.places.popleft()
        self.refusing = False
        if not self.places:
            # All were completed, and the source sends SinkCancelAck only if it dropped one (OpenIB sdp_rcvd.c
            # sdp_rcvd_snk_cancel).
            self.retracting = False
        return user

    def retracted(self) -> list[Any]:
        """
        Process a SinkCancelAck: nothing more is written.

        @return: The users of the remaining buffers.
        @raise SDPError: Nothing was cancelled.
        """
        if not self.retracting:
            raise SDPError("SinkCancelAck, but nothing was cancelled")
        self.retracting = False
        return self._clear()

    def changeMode(self, transition: Transition) -> list[Any]:
        """
        Process a ModeChange of the source.

        @return: The users of the SinkAvails that it voids.
        @raise SDPError: The transition is not possible now.
        """
        mode = changed(self.mode, transition)
        # OpenIB sdp_rcvd.c sdp_rcvd_mode_change: Combined to Buffered only without SrcAvails outstanding.
        if mode is Mode.BUFFERED and self.adverts:
            raise SDPError("ModeChange to BUFFERED with a SrcAvail outstanding")
        self.mode = mode
        # The source issues its SrcAvails again under Combined rules.
        if transition is Transition.PIPELINED_TO_COMBINED:
            self.adverts.clear()
            self.cancelling = self.dropping = self.retracting = self.refusing = False
            return self._clear()
        return []

    def ended(self) -> None:
        """
        Process a DisConn: nothing more is written.
        """
        self.over = True
        # The retracting flag stays: a SinkCancelAck may still arrive, since only the peer's data has ended.
        self.places.clear()

    def _clear(self) -> list[Any]:
        users = [user for user, _ in self.places]
        self.places.clear()
        return users
