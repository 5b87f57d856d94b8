"""
MPA's startup: the exchange of Request and Reply (RFC 5044 section 7.1, RFC 6581).

An L{Initiator} or a L{Responder} is one side's state machine: octets, commands and a clock's reading in;
octets, a deadline and an event out. Its behaviour is the table L{TRANSITIONS}, its states are named as in
Linux siw. Afterwards it knows what the two sides have agreed to, and whether the responder may send.

The responder's first FPDU waits for the initiator's (RFC 5044 section 7.1.2). Revision 2 does not ask for
that where the initiator announces no RTR; but Linux siw, while it reads the Reply, takes any octet behind it
for an error (siw_cm.c siw_recv_mpa_rr). As an initiator with nothing to send would be waited for in vain,
that wait ends L{HOLD_SECONDS} after TCP has acknowledged the Reply.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

from attrs import define, frozen

from twisted_ib.errors import WireError
from twisted_ib.hca.base.machine import Machine, ignored
from twisted_ib.hca.fabric.iwarp.protocol.mpa import (
    MAX_DEPTH,
    NOT_NEGOTIATED,
    Depths,
    MPAErrorCode,
    StartupFrame,
    hasCRC32C,
)

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import Buffer

#: An initiator waits so long for the Reply, as TCP for the answer to a SYN (tcp(7), tcp_syn_retries): a
#: program that is busy meanwhile answers late, and the user's own timeout is shorter.
REPLY_SECONDS: Final = 127.0
#: A responder for the Request (Linux siw_cm.h MPAREP_TIMEOUT).
REQUEST_SECONDS: Final = 5.0
#: A responder's first FPDU waits so long after TCP has acknowledged the Reply: the initiator's kernel has it,
#: and siw has read it.
HOLD_SECONDS: Final = 0.05

_NO_LIBRARY = "the peer wants CRCs, for which google-crc32c is not installed: pip install 'twisted-ib[iwarp]'"
_MARKERS_REFUSED = "the peer wants markers, which are switched off"


class State(IntEnum):
    """
    States of a startup.
    """

    #: The initiator's first, and the responder's.
    IDLE = 0
    AWAIT_REQUEST = 1
    AWAIT_REPLY = 2
    #: The responder's user is to accept or reject.
    REQUEST_RECEIVED = 3
    #: The responder has accepted, and may not send yet.
    AWAIT_FPDU = 4
    RDMA_MODE = 5
    #: By either side. These two are final: the TCP connection is to be closed.
    REJECTED = 6
    FAILED = 7


class Input(IntEnum):
    """
    Inputs of a startup: commands, frames, FPDUs and times.
    """

    SEND_REQUEST = 0
    ACCEPT = 1
    REJECT = 2
    REQUEST = 3
    REPLY = 4
    #: A Reply with flag R.
    REJECTION = 5
    #: A Request or Reply that is none, or cannot be agreed to; octets that come too early.
    FAULT = 6
    EXPIRED = 7
    #: The first FPDU has been received.
    FPDU = 8
    #: The Reply has been acknowledged for L{HOLD_SECONDS}.
    ACKNOWLEDGED = 9


@frozen
class StartupOptions:
    """
    One side's wishes.

    @ivar revision: of an initiator's Request: 1 or 2. A responder takes both. In revision 1 it sends nothing
        before the initiator does.
    @ivar crc: want CRCs. Without C{google_crc32c} none are offered, and a peer that wants some is refused.
    @ivar markers: want markers in what is received, and send them to a peer that wants them; else such a peer
        is refused, as Linux siw does.
    @ivar readsIn: inbound reads that an initiator holds: its IRD.
    @ivar readsOut: outbound reads that it wants: its ORD.
    @ivar isPeerToPeer: an initiator of revision 2 offers to send an RTR, of one of the three kinds:
    @ivar zeroWrite: an RDMA Write of no octets,
    @ivar zeroRead: an RDMA Read,
    @ivar zeroSend: a Send.
    @ivar largeFPDUs: announce that FPDUs may be longer than a TCP segment.
    """

    revision: int = 2
    crc: bool = False
    markers: bool = False
    readsIn: int = 0
    readsOut: int = 0
    isPeerToPeer: bool = True
    zeroWrite: bool = True
    zeroRead: bool = False
    zeroSend: bool = False
    largeFPDUs: bool = True


@frozen
class Requested:
    """
    Event of a responder: answer the Request by C{accept} or C{reject}.
    """

    frame: StartupFrame


@frozen
class Replied:
    """
    Event of an initiator: it may send FPDUs. The first is the RTR, if one is agreed to.
    """

    frame: StartupFrame


@frozen
class Rejected:
    """
    Event of an initiator: the responder's user has refused.
    """

    frame: StartupFrame


@frozen
class Failed:
    """
    Event: there is no connection; the TCP connection is to be closed.

    @ivar reason: a text.
    @ivar output: octets to send before.
    @ivar code: the Terminate message to send before; L{None} for none.
    @ivar isLate: whether the peer has been silent for too long.
    """

    reason: str
    output: bytes = b""
    code: MPAErrorCode | None = None
    isLate: bool = False


_Event = Requested | Replied | Rejected | Failed | None


@define(eq=False, repr=False, weakref_slot=False)
class Startup:
    """
    The common part of both sides.

    @ivar state: the L{State}.
    @ivar event: the event of the last call, or L{None}.
    @ivar deadline: when to call C{tick}, or L{None}.
    @ivar frame: the peer's frame, once it is there.
    @ivar crc: FPDUs have CRCs, in both directions.
    @ivar markersIn: those received have markers.
    @ivar markersOut: those sent have.
    @ivar ird: inbound reads to hold.
    @ivar ord: outbound reads to have outstanding at most.
    @ivar rtr: the initiator's first FPDU is an RTR: C{"write"}, C{"read"} or C{"send"}; else L{None}.
    @ivar largeFPDUs: those sent may be longer than a TCP segment.
    """

    _options: StartupOptions
    state: State = State.IDLE
    event: _Event = None
    deadline: float | None = None
    frame: StartupFrame | None = None
    crc: bool = False
    markersIn: bool = False
    markersOut: bool = False
    ird: int = 0
    ord: int = 0
    rtr: str | None = None
    largeFPDUs: bool = False

    #: Whether the frame that is waited for is a Reply.
    _awaitsReply = False

    @property
    def holds(self) -> bool:
        """
        Whether this side is a responder that may not send FPDUs yet.
        """
        return self.state is State.AWAIT_FPDU

    def received(self, buffer: Buffer, start: int, stop: int, now: float) -> int:
        """
        Take octets that were received. As long as the frame is not complete, give it again with more.

        @return: the offset of the frame's end: what follows are FPDUs. C{start} if it has not ended, or if
            none is waited for.
        """
        self.event = None
        if self.state is State.REQUEST_RECEIVED:
            if stop > start:
                self._fault("the peer has sent more than its Request before the Reply")
            return start
        if self.state not in (State.AWAIT_REQUEST, State.AWAIT_REPLY):
            return start
        try:
            found = StartupFrame.parse(buffer, start, stop, self._awaitsReply)
        except WireError as error:
            # RFC 5044 section 8: only the initiator is past its own frame, so that FPDUs may follow.
            self._fault(str(error), code=MPAErrorCode.STARTUP_FRAME if self._awaitsReply else None)
            return start
        if found is None:
            return start
        self.frame, end = found
        self._take(self.frame, stop - end)
        return end

    def tick(self, now: float) -> None:
        """
        Tell that the deadline has come; earlier it does nothing.
        """
        self.event = None
        if self.deadline is not None and now >= self.deadline:
            frame, seconds = ("Reply", REPLY_SECONDS) if self._awaitsReply else ("Request", REQUEST_SECONDS)
            reason = f"the peer has sent no MPA {frame} within {seconds:g} seconds"
            self._feed(Input.EXPIRED, Failed(reason, isLate=True))

    def _feed(self, given: Input, event: _Event = None) -> None:
        following = TRANSITIONS[self.state, given]
        if following is not None:
            self.state = following
            self.event = event
            # Only the two states that wait for a frame have one, and every input ends them.
            self.deadline = None

    def _take(self, frame: StartupFrame, more: int) -> None:
        raise NotImplementedError

    def _fault(self, reason: str, output: bytes = b"", code: MPAErrorCode | None = None) -> None:
        self._feed(Input.FAULT, Failed(reason, output, code))

    def _refusal(self, frame: StartupFrame) -> str | None:
        # Why its CRCs or markers cannot be agreed to; None if they are now.
        options = self._options
        if frame.markers and not options.markers:
            return _MARKERS_REFUSED
        if frame.crc and not hasCRC32C():
            return _NO_LIBRARY
        self.crc = frame.crc or self._offersCRC()
        self.markersIn, self.markersOut = options.markers, frame.markers
        self.largeFPDUs = frame.largeFPDUs and options.largeFPDUs
        return None

    def _offersCRC(self) -> bool:
        return self._options.crc and hasCRC32C()


class Initiator(Startup):
    """
    The side that sends the Request: TCP's client, unless a protocol above has said otherwise.
    """

    __slots__ = ("_offered", "_privateData")

    _awaitsReply = True

    def request(self, privateData: bytes, now: float) -> bytes:
        """
        @return: the Request, to be sent at once; empty if it has been sent.
        @raise LengthError: the private data is too long.
        """
        self.event = None
        if self.state is not State.IDLE:
            return b""
        options = self._options
        isEnhanced = options.revision > 1
        self.ird, self.ord = min(options.readsIn, MAX_DEPTH), min(options.readsOut, MAX_DEPTH)
        offers = isEnhanced and options.isPeerToPeer
        self._offered = Depths(
            self.ird,
            self.ord,
            offers,
            offers and options.zeroSend,
            offers and options.zeroWrite,
            offers and options.zeroRead,
        )
        frame = StartupFrame(
            isReply=False,
            privateData=privateData,
            revision=options.revision,
            markers=options.markers,
            crc=self._offersCRC(),
            depths=self._offered if isEnhanced else None,
            largeFPDUs=options.largeFPDUs,
        )
        output = frame.pack()
        self._feed(Input.SEND_REQUEST)
        self.deadline = now + REPLY_SECONDS
        return output

    def _take(self, frame: StartupFrame, more: int) -> None:
        if frame.isRejected:
            self._feed(Input.REJECTION, Rejected(frame))
            return
        isEnhanced = self._options.revision > 1
        if frame.revision != self._options.revision or (frame.depths is not None) != isEnhanced:
            # RFC 6581: a Reply has the revision and the flag S of its Request.
            reason = f"the Reply to a Request of MPA revision {self._options.revision} has another format"
            self._fault(reason, code=MPAErrorCode.STARTUP_FRAME)
            return
        refusal = self._refusal(frame)
        if refusal is not None:
            self._fault(refusal)
            return
        # A C of ours that the Reply does not repeat holds all the same (RFC 5044 section 7.1.1).
        if frame.depths is None or self._agrees(frame.depths):
            self._feed(Input.REPLY, Replied(frame))

    def _agrees(self, depths: Depths) -> bool:
        if depths.ord != NOT_NEGOTIATED and depths.ord > self.ird:
            reason = f"the peer wants {depths.ord} RDMA Reads at once; {self.ird} are possible here"
            self._fault(reason, code=MPAErrorCode.INSUFFICIENT_IRD)
            return False
        if depths.ird != NOT_NEGOTIATED:
            self.ord = min(self.ord, depths.ird)
        # A Reply without A is that of a responder which does not wait for an RTR.
        if depths.isPeerToPeer and self._offered.isPeerToPeer:
            self.rtr = _chosen(self._offered, depths)
            if self.rtr is None:
                reason = "the peer waits for another RTR message than those offered"
                self._fault(reason, code=MPAErrorCode.NO_MATCHING_RTR)
                return False
        return True


class Responder(Startup):
    """
    The side that answers.

    @ivar releasesWhenQuiet: whether L{replyAcknowledged} ends the wait for the initiator's first FPDU.
    """

    __slots__ = ("releasesWhenQuiet",)

    def __init__(self, options: StartupOptions, now: float) -> None:
        super().__init__(options)
        self.state = State.AWAIT_REQUEST
        self.deadline = now + REQUEST_SECONDS
        self.releasesWhenQuiet = False

    def accept(self, privateData: bytes, ird: int, ord: int, now: float) -> bytes:
        """
        Answer the Request.

        @param ird: inbound reads to hold.
        @param ord: outbound reads wanted.
        @return: the Reply, to be sent at once; empty if it is too late for one.
        @raise LengthError: the private data is too long.
        """
        self.event = None
        frame = self.frame
        if self.state is not State.REQUEST_RECEIVED or frame is None:
            return b""
        asked = frame.depths
        self.ird, self.ord = min(ird, MAX_DEPTH), min(ord, MAX_DEPTH)
        own = None
        if asked is not None:
            if asked.isPeerToPeer:
                # Linux siw answers so too if none is offered.
                self.rtr = _chosen(asked, asked) or "write"
            if self.rtr == "read" and not self.ird:
                self.ird = 1
            if asked.ird != NOT_NEGOTIATED:
                self.ord = min(self.ord, asked.ird)
            rtr = self.rtr
            own = Depths(self.ird, self.ord, asked.isPeerToPeer, rtr == "send", rtr == "write", rtr == "read")
        output = self._reply(frame, privateData, own, False)
        # RFC 6581: in the model of client and server it may send at once.
        self.releasesWhenQuiet = asked is not None and self.rtr is None
        self._feed(Input.ACCEPT)
        return output

    def reject(self, privateData: bytes = b"") -> bytes:
        """
        Refuse the Request.

        @return: the Reply, after which the TCP connection is to be closed; empty if it is too late for one.
        @raise LengthError: the private data is too long.
        """
        self.event = None
        frame = self.frame
        if self.state is not State.REQUEST_RECEIVED or frame is None:
            return b""
        output = self._refused(frame, privateData)
        self._feed(Input.REJECT)
        return output

    def fpduReceived(self) -> None:
        """
        Tell that the initiator's first FPDU has come: this side may send.
        """
        self._feed(Input.FPDU)

    def replyAcknowledged(self) -> None:
        """
        Tell that TCP has acknowledged the Reply, and L{HOLD_SECONDS} have passed since.
        """
        if self.releasesWhenQuiet:
            self._feed(Input.ACKNOWLEDGED)

    def _take(self, frame: StartupFrame, more: int) -> None:
        refusal = self._refusal(frame)
        if refusal is not None:
            self._fault(refusal, self._refused(frame, b""))
        elif more:
            # RFC 5044 section 7.1.2: an initiator sends no FPDU before it has the Reply.
            self._fault(f"the peer has sent {more} octets more than its Request before the Reply")
        else:
            self._feed(Input.REQUEST, Requested(frame))

    def _refused(self, frame: StartupFrame, privateData: bytes) -> bytes:
        return self._reply(frame, privateData, None if frame.depths is None else Depths(0, 0), True)

    def _reply(
        self, frame: StartupFrame, privateData: bytes, depths: Depths | None, isRejected: bool
    ) -> bytes:
        reply = StartupFrame(
            isReply=True,
            privateData=privateData,
            revision=frame.revision,
            markers=self._options.markers and not isRejected,
            crc=self.crc,
            isRejected=isRejected,
            depths=depths,
            largeFPDUs=self._options.largeFPDUs and frame.largeFPDUs,
        )
        return reply.pack()


def _chosen(offered: Depths, answered: Depths) -> str | None:
    # The RTR that is in both; the first of several, in Linux siw's order.
    if offered.zeroWrite and answered.zeroWrite:
        return "write"
    if offered.zeroRead and answered.zeroRead:
        return "read"
    return "send" if offered.zeroSend and answered.zeroSend else None


#: What is not here changes nothing: a command that comes too late, octets after the end.
TRANSITIONS: Final = Machine[State, Input, State | None](
    {
        (State.IDLE, Input.SEND_REQUEST): State.AWAIT_REPLY,
        (State.AWAIT_REPLY, Input.REPLY): State.RDMA_MODE,
        (State.AWAIT_REPLY, Input.REJECTION): State.REJECTED,
        (State.AWAIT_REPLY, Input.FAULT): State.FAILED,
        (State.AWAIT_REPLY, Input.EXPIRED): State.FAILED,
        (State.AWAIT_REQUEST, Input.REQUEST): State.REQUEST_RECEIVED,
        (State.AWAIT_REQUEST, Input.FAULT): State.FAILED,
        (State.AWAIT_REQUEST, Input.EXPIRED): State.FAILED,
        (State.REQUEST_RECEIVED, Input.ACCEPT): State.AWAIT_FPDU,
        (State.REQUEST_RECEIVED, Input.REJECT): State.REJECTED,
        (State.REQUEST_RECEIVED, Input.FAULT): State.FAILED,
        (State.AWAIT_FPDU, Input.FPDU): State.RDMA_MODE,
        (State.AWAIT_FPDU, Input.ACKNOWLEDGED): State.RDMA_MODE,
    },
    unlisted=ignored,
)
