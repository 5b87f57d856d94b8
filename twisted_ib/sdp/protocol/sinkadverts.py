"""
The sink's half of zero copy: what the peer has offered to be read (SrcAvail), and where it
may write (SinkAvail).

Pure, as L{twisted_ib.sdp.protocol.sourceadverts}.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from twisted_ib import limits
from twisted_ib.errors import SDPError
from twisted_ib.sdp.protocol.modes import Mode, changed, checkRange
from twisted_ib.sdp.protocol.wire import Transition


class Advert:
    """
    A buffer of the source's that may be read (SrcAvail).

    @ivar length: Its size, with what the message carried.
    @ivar key: Its R_Key.
    @ivar address: Its virtual address.
    @ivar asked: Bytes that are read, are being read, or came with the message.
    @ivar done: Bytes of those that are here.
    @ivar moving: READs that are not done.
    """

    __slots__ = ("address", "asked", "done", "key", "length", "moving")

    def __init__(self, length: int, key: int, address: int, carried: int) -> None:
        """
        @param carried: Bytes that came with the message.
        """
        self.length = length
        self.key = key
        self.address = address
        self.asked = self.done = carried
        self.moving = 0


class SinkAdverts:
    """
    One direction, at the end that receives.

    @ivar mode: The flow-control mode.
    @ivar most: The peer's MaxAdverts.
    @ivar adverts: What may be read, oldest first.
    @ivar places: Where the peer may write: their users and sizes, oldest first.
    @ivar cancelling: Whether a SrcAvailCancel came and is not done.
    @ivar dropping: Whether something was dropped that the peer must send as Data.
    @ivar retracting: Whether a SinkAvailCancel was sent and is not done.
    @ivar discarded: Messages with payload that used up a SinkAvail.
    @ivar refusing: Whether what was refused in Pipelined mode has not come as Data yet: what is
        offered meanwhile comes behind it, and is refused too.
    @ivar over: Whether the peer has said that it sends no more.
    """

    __slots__ = (
        "adverts",
        "cancelling",
        "discarded",
        "dropping",
        "mode",
        "most",
        "over",
        "places",
        "refusing",
        "retracting",
    )

    def __init__(self, most: int) -> None:
        """
        Nothing is offered, in Combined mode.

        @param most: The peer's MaxAdverts.
        """
        self.mode = Mode.COMBINED
        self.most = most
        self.adverts: deque[Advert] = deque()
        self.places: deque[tuple[Any, int]] = deque()
        self.cancelling = self.dropping = self.retracting = False
        self.refusing = self.over = False
        self.discarded = 0

    # -- what this end does

    def mayAsk(self, length: int, payload: int) -> bool:
        """
        Whether a SinkAvail is legal now.

        @param length: Bytes of the buffer.
        @param payload: The most that one message carries.
        """
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
        A SinkAvail was numbered.
        """
        self.places.append((user, length))

    def retract(self) -> None:
        """
        A SinkAvailCancel was numbered.
        """
        self.retracting = True

    def pick(self, most: int) -> tuple[Advert, int] | None:
        """
        The next bytes to read.

        @param most: How many at most.
        @return: Of which advertisement, and how many; L{None} if there are none.
        """
        if not self.cancelling and not self.refusing:
            for advert in self.adverts:
                count = min(advert.length - advert.asked, most)
                if count:
                    return advert, count
        return None

    def arrived(self, advert: Advert, count: int) -> None:
        """
        A READ is done; they end in the order of asking.
        """
        advert.moving -= 1
        advert.done += count
        if advert.done == advert.length and self.adverts and self.adverts[0] is advert:
            self.adverts.popleft()

    def refuse(self) -> bool:
        """
        Nothing more can be read: the oldest advertisement shall come as Data.

        @return: Whether it can be refused now; then a SendSm is due.
        """
        if not self.adverts or self.adverts[0].moving:
            return False
        self.adverts.popleft()
        self.refusing = self.mode is Mode.PIPELINED
        return True

    def cancelDone(self) -> bool | None:
        """
        Whether a SrcAvailCancel is done: then it is over.

        @return: L{None} if it is not, or there is none; else whether a SendSm is due.
        """
        if not self.cancelling or self.adverts:
            return None
        self.cancelling = False
        dropped, self.dropping = self.dropping, False
        return dropped

    # -- what the peer says

    def checkData(self) -> None:
        """
        Data came.

        @raise SDPError: The source may not send it now.
        """
        if self.adverts:
            raise SDPError("Data while a SrcAvail is outstanding")

    def payloadCame(self) -> bool:
        """
        A message with payload came.

        @return: Whether it used up the oldest SinkAvail.
        """
        self.refusing = False
        if not self.places:
            return False
        self.places.popleft()
        self.discarded += 1
        if not self.places:
            self.retracting = False
        return True

    def offered(self, length: int, key: int, address: int, carried: int) -> Advert | None:
        """
        SrcAvail.

        @param carried: Bytes that the message carries.
        @return: What may be read; L{None} if a SinkAvail crosses it, so that it is void.
        @raise SDPError: The source may not send it now.
        """
        checkRange(address, length)
        mode = self.mode
        if self.cancelling:
            raise SDPError("SrcAvail before SrcAvailCancel was answered")
        if mode is Mode.BUFFERED:
            raise SDPError("SrcAvail in BUFFERED mode")
        if mode is Mode.COMBINED:
            if not carried:
                raise SDPError("a SrcAvail in Combined mode carries its first bytes")
            if self.adverts:
                raise SDPError("a second SrcAvail in Combined mode")
        elif carried:
            raise SDPError("a SrcAvail in Pipelined mode carries no bytes")
        elif self.places:
            return None
        if len(self.adverts) >= limits.SDP_ADVERTS:
            raise SDPError(f"more than {limits.SDP_ADVERTS} SrcAvails")
        advert = Advert(length, key, address, carried)
        self.adverts.append(advert)
        return advert

    def cancel(self) -> None:
        """
        SrcAvailCancel: what is being read is finished, the rest is dropped.

        @raise SDPError: The one before is not done.
        """
        if self.cancelling:
            raise SDPError("a second SrcAvailCancel")
        adverts = self.adverts
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
        RdmaWrCompl: the source has written to the oldest place.

        @return: Whose it was.
        @raise SDPError: There is none, or it has not so many bytes.
        """
        if not self.places:
            raise SDPError("RdmaWrCompl, but no SinkAvail is outstanding")
        user, length = self.places[0]
        if count > length:
            raise SDPError(f"RdmaWrCompl of {count} bytes into {length}")
        self.places.popleft()
        self.refusing = False
        if not self.places:
            self.retracting = False  # All were completed: no SinkCancelAck comes.
        return user

    def retracted(self) -> list[Any]:
        """
        SinkCancelAck: no place is written to any more.

        @return: Whose they were.
        @raise SDPError: Nothing was cancelled.
        """
        if not self.retracting:
            raise SDPError("SinkCancelAck, but nothing was cancelled")
        self.retracting = False
        return self._clear()

    def changeMode(self, transition: Transition) -> list[Any]:
        """
        ModeChange of the source.

        @return: Whose places are not written to any more.
        @raise SDPError: It is not possible now.
        """
        mode = changed(self.mode, transition)
        if mode is Mode.BUFFERED and self.adverts:
            raise SDPError("ModeChange to BUFFERED with a SrcAvail outstanding")
        self.mode = mode
        if transition is Transition.PIPELINED_TO_COMBINED:
            self.adverts.clear()
            self.cancelling = self.dropping = self.retracting = self.refusing = False
            return self._clear()
        return []

    def ended(self) -> None:
        """
        DisConn: no place is written to any more.  A SinkCancelAck may still come.
        """
        self.over = True
        self.places.clear()

    def _clear(self) -> list[Any]:
        users = [user for user, _ in self.places]
        self.places.clear()
        return users
