"""
The Sockets Direct Protocol of one connection: numbers, credits, close.  What a stream that only
sends and takes Data needs is here; the rest is in L{twisted_ib.sdp.protocol.zerocopy}, and made when it
is needed.

Pure: what arrives goes in, what to do comes out; the transport does it.

The header of every message (BSDH, 16 bytes) numbers the message (MSeq), says
which was the last one received (MSeqAck) and how many receives its sender has
posted (Bufs).  What may still be sent is therefore C{MSeqAck + Bufs - MSeq},
all of the peer's latest header.  The per-message methods make no object but
the bytes they return; L{twisted_ib.sdp.protocol.wire} has the readable twin of each
layout.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Any

from twisted_ib import limits
from twisted_ib.errors import SDPError
from twisted_ib.sdp.protocol.wire import BSDH, MID, Flags, SinkAvail, SrcAvail

_pack = BSDH.pack
#: The base header, with MID and Flags as one number.
unpackHeader = Struct(">HHIII").unpack_from
M32 = 0xFFFFFFFF
_DATA, _DISCONN, _ABORT_CONN = MID.DATA.value, MID.DISCONN.value, MID.ABORT_CONN.value
#: Data without flags.
PLAIN = _DATA << 8
_HEADER = BSDH.size
#: A peer acknowledges at most this many messages back: a ring holds fewer.
WINDOW = 0x10000


class State(IntEnum):
    """
    Where a connection is between opening and closing (IBTA vol. 1, annex
    A4.5.3; the names are TCP's).
    """

    ESTABLISHED = 0
    #: Own DisConn sent.
    FIN_WAIT1 = 1
    #: The peer's DisConn received.
    CLOSE_WAIT = 2
    #: Both, the peer's first.
    LAST_ACK = 3
    #: Both, own first, or the CM has disconnected: all is said.
    TIME_WAIT = 4
    #: Ended by an abort, ours or the peer's.
    CLOSED = 5


class Input(IntEnum):
    """
    What moves a connection towards its end.
    """

    DISCONN_SENT = 0
    DISCONN = 1
    ABORTCONN = 2
    DREQ = 3
    ABORT = 4


class Action(IntEnum):
    """
    What the transport does on the way.
    """

    NOTHING = 0
    #: The peer sends no more: end of stream to the reader.
    END_OF_STREAM = 1
    #: The same, and CM DREQ.
    END_AND_DISCONNECT = 2
    #: CM DREQ.
    DISCONNECT = 3
    #: AbortConn, then CM DREQ.
    ABORT_AND_DISCONNECT = 4
    #: The peer reset the connection.
    RESET = 5
    #: The peer has confirmed the end.
    FINISHED = 6


_S, _I, _A = State, Input, Action

#: (state, input) -> (action, next state).  What is not here is a protocol error.
TRANSITIONS = {
    (_S.ESTABLISHED, _I.DISCONN_SENT): (_A.NOTHING, _S.FIN_WAIT1),
    (_S.ESTABLISHED, _I.DISCONN): (_A.END_OF_STREAM, _S.CLOSE_WAIT),
    (_S.ESTABLISHED, _I.ABORTCONN): (_A.RESET, _S.CLOSED),
    (_S.ESTABLISHED, _I.DREQ): (_A.RESET, _S.CLOSED),
    (_S.ESTABLISHED, _I.ABORT): (_A.DISCONNECT, _S.CLOSED),
    (_S.FIN_WAIT1, _I.DISCONN): (_A.END_AND_DISCONNECT, _S.TIME_WAIT),
    (_S.FIN_WAIT1, _I.ABORTCONN): (_A.RESET, _S.CLOSED),
    (_S.FIN_WAIT1, _I.DREQ): (_A.RESET, _S.CLOSED),
    (_S.FIN_WAIT1, _I.ABORT): (_A.ABORT_AND_DISCONNECT, _S.CLOSED),
    (_S.CLOSE_WAIT, _I.DISCONN_SENT): (_A.NOTHING, _S.LAST_ACK),
    (_S.CLOSE_WAIT, _I.ABORTCONN): (_A.RESET, _S.CLOSED),
    (_S.CLOSE_WAIT, _I.DREQ): (_A.RESET, _S.CLOSED),
    (_S.CLOSE_WAIT, _I.ABORT): (_A.DISCONNECT, _S.CLOSED),
    (_S.LAST_ACK, _I.ABORTCONN): (_A.RESET, _S.CLOSED),
    (_S.LAST_ACK, _I.DREQ): (_A.FINISHED, _S.TIME_WAIT),
    (_S.LAST_ACK, _I.ABORT): (_A.ABORT_AND_DISCONNECT, _S.CLOSED),
    # Everything is ignored at the end: DREQs cross, messages are late.
    **{(state, event): (_A.NOTHING, state) for state in (_S.TIME_WAIT, _S.CLOSED) for event in Input},
}

#: The messages that may carry stream bytes, and what else they have behind the header.
_BODIES = {_DATA: 0, MID.SRC_AVAIL.value: SrcAvail.layout.size, MID.SINK_AVAIL.value: SinkAvail.layout.size}

#: States in which the peer may still send stream data; an enumeration's hash costs a Python call.
_ESTABLISHED, _FIN_WAIT1 = State.ESTABLISHED, State.FIN_WAIT1


def _illegal(mid: int, flags: int, length: int) -> bool:
    """
    Whether a message may not have these flags: reserved ones, OOB_PRES without
    payload (clause CA4-7), and of Data and the two ends REQ_PIPE (CA4-8).  The
    classes of L{twisted_ib.sdp.protocol.wire} check the other messages.
    """
    if mid == _DATA:
        return flags & 0xFC != 0 or (length == _HEADER and flags & Flags.OOB_PRES != 0)
    if mid == _DISCONN or mid == _ABORT_CONN:
        return flags & 0xFD != 0
    return flags & 0xF8 != 0


class Machine:
    """
    One connection's protocol state.

    @ivar sequence: MSeq of the last message sent; does not wrap here.
    @ivar limit: The MSeq up to which the peer has receives.
    @ivar received: MSeq of the last message received; does not wrap here.
    @ivar told: The MSeq up to which the peer knows of receives here.
    @ivar state: A L{State}.
    @ivar maxPayload: Stream bytes that one message to the peer may carry.
    @ivar control: After L{receive} returned L{None}: the message id.
    @ivar flags: Likewise: its flags.
    @ivar acknowledged: Likewise: its MSeqAck, which does not wrap here.
    @ivar bareSent: How many messages without payload were sent.
    @ivar bareReceived: The same of those received.
    @ivar adverts: The peer's MaxAdverts.
    @ivar zero: The state of zero copy, or L{None}.
    """

    __slots__ = (
        "__dict__",
        "_updated",
        "_updating",
        "bareReceived",
        "bareSent",
        "limit",
        "maxPayload",
        "received",
        "sequence",
        "state",
        "told",
    )

    # Most streams have nothing but Data and do not need their own.
    control = flags = acknowledged = 0
    adverts = limits.SDP_ADVERTS
    zero: Any = None

    def __init__(self, receives: int) -> None:
        """
        @param receives: How many are posted, and so announced in the Hello or
            HelloAck.
        """
        self.sequence = self.received = self.limit = 0
        self.told = receives
        self.state: State = State.ESTABLISHED
        self.maxPayload = 0
        self.bareSent = self.bareReceived = 0
        # The numbers of the last updates: received, and sent.
        self._updated = self._updating = -1

    def opened(self, peerReceives: int, maxPayload: int, adverts: int = 1) -> None:
        """
        Hello and HelloAck are exchanged (both have MSeq 0).

        @param peerReceives: Bufs of the peer's.
        @param maxPayload: The smaller of the peer's receive size without a
            BSDH and our own limit.
        @param adverts: The peer's MaxAdverts.
        """
        self.limit = peerReceives
        self.maxPayload = maxPayload
        if adverts != self.adverts:
            self.adverts = adverts

    # -- sending: each message is numbered here and then must be sent

    def header(self, length: int, receives: int) -> bytes | None:
        """
        The header of a Data message.

        @param length: Stream bytes in it.
        @param receives: How many receives are posted now.
        @return: L{None} without three credits (clause CA4-82 keeps the last
            two for control messages).
        """
        sequence = self.sequence + 1
        if self.limit - sequence < 2:
            return None
        self.sequence = sequence
        received = self.received
        self.told = received + receives
        return _pack(_DATA, 0, receives, length + 16, sequence & M32, received & M32)

    def credits(self) -> int:
        """
        @return: How many messages the peer can take now.
        """
        return self.limit - self.sequence

    def owesUpdate(self, receives: int) -> bool:
        """
        Whether the peer should be told of posted receives, if no data does.

        One alone is told only to a peer that cannot send data for want of it, and none by an
        update that answers the answer to one, unless the peer has none left: two ends that
        have few would else tell each other of the receive that the other's message used, for
        ever.

        @param receives: How many are posted now.
        """
        left = self.told - self.received
        if receives <= left or left >= 3:
            return receives - left >= 2
        answers = self._updated == self.received and self._updating == self.sequence
        return left <= 0 or receives > 3 or not answers

    def update(self, receives: int) -> bytes | None:
        """
        The header of an empty Data message, which tells the peer of receives.

        @param receives: how many are posted now.
        @return: L{None} if it would tell nothing new or no credit is left.
        """
        sequence = self.sequence + 1
        received = self.received
        if self.limit - sequence < 0 or received + receives <= self.told:
            return None
        self.sequence = self._updating = sequence
        self.bareSent += 1
        self.told = received + receives
        return _pack(_DATA, 0, receives, _HEADER, sequence & M32, received & M32)

    def controlMessage(self, mid: int, receives: int, body: bytes = b"", flags: int = 0) -> bytes | None:
        """
        A control message, whole.

        @param mid: its id, a L{MID<twisted_ib.sdp.protocol.wire.MID>}.
        @param receives: how many receives are posted now.
        @param body: what follows the header.
        @param flags: its L{Flags}.
        @return: L{None} without two credits.
        """
        sequence = self.sequence + 1
        if self.limit - sequence < 1:
            return None
        self.sequence = sequence
        self.bareSent += 1
        received = self.received
        self.told = received + receives
        return (
            _pack(
                mid,
                flags,
                receives,
                _HEADER + len(body),
                sequence & M32,
                received & M32,
            )
            + body
        )

    # -- receiving

    def receive(self, buffer: Any, start: int, stop: int) -> bytes | None:
        """
        A message arrived.

        @param buffer: Something whose slices are L{bytes}.
        @param start: Offset of the message.
        @param stop: Offset after it.
        @return: The stream bytes of a Data message, perhaps none; L{None} for
            any other, and for one with flags, whose id is then in C{control}.
        @raise SDPError: the message is not what the protocol allows.
        """
        if stop - start < _HEADER:
            raise SDPError(f"a message of {stop - start} bytes has no header")
        kind, bufs, length, sequence, acknowledged = unpackHeader(buffer, start)
        received = self.received + 1
        if kind != PLAIN or length != stop - start or sequence != received & M32:
            self._receiveOther(kind, bufs, length, sequence, acknowledged, stop - start)
            return None
        self.received = received
        sent = self.sequence
        behind = (sent - acknowledged) & M32
        if behind > WINDOW:
            raise SDPError(f"message {acknowledged} is acknowledged but was not sent")
        limit: int = sent - behind + bufs
        if limit > self.limit:
            self.limit = limit
        data: bytes = buffer[start + 16 : stop]
        if not data:
            self.bareReceived += 1
            self._updated = received
        elif self.state is not _ESTABLISHED and self.state is not _FIN_WAIT1:
            self._late()
            return b""
        return data

    def _receiveOther(
        self, kind: int, bufs: int, length: int, sequence: int, acknowledged: int, count: int
    ) -> None:
        """
        A message arrived that is not just Data, or is not what it should be.

        @param count: Its bytes.
        @raise SDPError: See L{receive}.
        """
        mid, flags = kind >> 8, kind & 0xFF
        received = self.received + 1
        if length != count or sequence != received & M32 or _illegal(mid, flags, length):
            raise SDPError(
                f"message {mid:#04x}: length {length} of {count}, number"
                f" {sequence} where {received & M32} is due, flags {flags:#04x}"
            )
        self.received = received
        behind = (self.sequence - acknowledged) & M32
        if behind > WINDOW:
            raise SDPError(f"message {acknowledged} is acknowledged but was not sent")
        self.acknowledged = self.sequence - behind
        self.limit = max(self.limit, self.acknowledged + bufs)
        self.control, self.flags = mid, flags
        body = _BODIES.get(mid)
        if body is None or count == _HEADER + body:
            self.bareReceived += 1
        elif mid == _DATA and self.state not in (_ESTABLISHED, _FIN_WAIT1):
            self._late()

    def _late(self) -> None:
        """
        Data came after the end.

        @raise SDPError: The peer had said that none would.
        """
        if self.state == State.CLOSE_WAIT or self.state == State.LAST_ACK:
            raise SDPError("data after the peer's DisConn")

    # -- closing

    def feed(self, event: Input) -> Action:
        """
        Move towards the end.

        @param event: What happened.
        @return: What is to be done.
        @raise SDPError: the peer may not do this now.
        """
        try:
            action, self.state = TRANSITIONS[self.state, event]
        except KeyError:
            raise SDPError(f"{event.name} in {self.state.name}") from None
        return action
