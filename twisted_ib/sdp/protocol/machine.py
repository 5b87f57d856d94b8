"""
The SDP connection machine: sequence numbers, credits and close (IBTA vol. 1 annex A4).

It is all that a stream of plain Data needs; the one in L{twisted_ib.sdp.protocol.zerocopy} continues for it
when a connection uses more.  No I/O: messages go in, headers and actions come out, and the transport carries
them out.

The base header (BSDH, 16 bytes) of each message has its sequence number (MSeq), the last sequence number
received (MSeqAck) and the number of receives posted by its sender (Bufs).  The credits left are therefore
C{MSeqAck + Bufs - MSeq}, with MSeqAck and Bufs from the peer's latest header.  The per-message methods create
no object but the bytes that they return; L{twisted_ib.sdp.protocol.wire} documents each layout.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Any, Final, NoReturn

from twisted_ib.compilation import mypyc_attr
from twisted_ib.errors import SDPError
from twisted_ib.hca.base import machine as tables
from twisted_ib.sdp.protocol.wire import BSDH, MESSAGES, MID, Flags, StreamMessage

_pack: Final = BSDH.pack
#: The base header, with MID and Flags read as one 16-bit number.
unpackHeader: Final = Struct(">HHIII").unpack_from
M32: Final = 0xFFFFFFFF
_DATA: Final = MID.DATA.value
_DISCONN: Final = MID.DISCONN.value
_ABORT_CONN: Final = MID.ABORT_CONN.value
#: MID and Flags of Data without flags.
PLAIN: Final = _DATA << 8
_HEADER: Final = BSDH.size
#: Bound on how far MSeqAck may lag behind the last MSeq sent; a ring holds fewer messages.
WINDOW: Final = 0x10000
#: Of a machine that has neither received nor sent a credit update.
_NEVER: Final = (-1, -1)
#: A message that is no plain Data: its id, its flags, and its MSeqAck, not reduced.
Other = tuple[int, int, int]


class State(IntEnum):
    """
    Connection states (IBTA vol. 1 annex A4.5.3), under TCP's names.
    """

    ESTABLISHED = 0
    # As in OFED there is no FIN_WAIT2: a DREQ follows the second DisConn at once (sdp_rx.c
    # sdp_handle_disconn).
    #: Own DisConn sent.
    FIN_WAIT1 = 1
    #: The peer's DisConn received.
    CLOSE_WAIT = 2
    #: Both DisConns, the peer's first.
    LAST_ACK = 3
    #: Both DisConns, own first; or the CM has disconnected.
    TIME_WAIT = 4
    #: Aborted, by us or by the peer.
    CLOSED = 5


class Input(IntEnum):
    """
    Events that move a connection towards its end.
    """

    DISCONN_SENT = 0
    DISCONN = 1
    ABORTCONN = 2
    DREQ = 3
    ABORT = 4


class Action(IntEnum):
    """
    Work that a message leaves to the transport.
    """

    NOTHING = 0
    #: Report end of stream to the reader.
    END_OF_STREAM = 1
    #: Report end of stream, and send a CM DREQ.
    END_AND_DISCONNECT = 2
    #: Send a CM DREQ.
    DISCONNECT = 3
    #: Send AbortConn, then a CM DREQ.
    ABORT_AND_DISCONNECT = 4
    #: The peer reset the connection.
    RESET = 5
    #: The peer has confirmed the end (DREQ after both DisConns).
    FINISHED = 6
    #: Both DisConns are in the medium, the peer's first: wait for its DREQ, where the CM needs one.
    AWAIT_DREQ = 7


_S = State
_I = Input
_A = Action


def _violated(state: State, event: Input) -> NoReturn:
    raise SDPError(f"{event.name} in {state.name}")


TRANSITIONS: Final = tables.Machine[State, Input, tuple[State, Action]](
    {
        # IBTA vol. 1 annex A4.5.3.  DisConn is SDP's FIN: it closes one direction, behind all data and all
        # own SrcAvails.
        (_S.ESTABLISHED, _I.DISCONN_SENT): (_S.FIN_WAIT1, _A.NOTHING),
        (_S.ESTABLISHED, _I.DISCONN): (_S.CLOSE_WAIT, _A.END_OF_STREAM),
        # OFED resets on AbortConn in every state (sdp_rx.c sdp_process_rx_ctl_skb), and so do we; OpenIB
        # accepts it only after a DisConn was received (sdp_rcvd.c sdp_rcvd_abort).
        (_S.ESTABLISHED, _I.ABORTCONN): (_S.CLOSED, _A.RESET),
        (_S.ESTABLISHED, _I.DREQ): (_S.CLOSED, _A.RESET),
        # Before the own DisConn a DREQ alone aborts; no SDP message is sent.
        (_S.ESTABLISHED, _I.ABORT): (_S.CLOSED, _A.DISCONNECT),
        # The side that closed first starts the CM disconnect (OpenIB sdp_rcvd.c sdp_rcvd_disconnect).
        (_S.FIN_WAIT1, _I.DISCONN): (_S.TIME_WAIT, _A.END_AND_DISCONNECT),
        (_S.FIN_WAIT1, _I.ABORTCONN): (_S.CLOSED, _A.RESET),
        # Without the peer's DisConn the stream may be cut short, which the reader must not take for its end.
        (_S.FIN_WAIT1, _I.DREQ): (_S.CLOSED, _A.RESET),
        # IBTA vol. 1 annex A4.5.3.2: after the own DisConn, AbortConn goes before the DREQ (OpenIB sdp_conn.c
        # sdp_conn_abort).
        (_S.FIN_WAIT1, _I.ABORT): (_S.CLOSED, _A.ABORT_AND_DISCONNECT),
        (_S.CLOSE_WAIT, _I.DISCONN_SENT): (_S.LAST_ACK, _A.AWAIT_DREQ),
        (_S.CLOSE_WAIT, _I.ABORTCONN): (_S.CLOSED, _A.RESET),
        (_S.CLOSE_WAIT, _I.DREQ): (_S.CLOSED, _A.RESET),
        (_S.CLOSE_WAIT, _I.ABORT): (_S.CLOSED, _A.DISCONNECT),
        (_S.LAST_ACK, _I.ABORTCONN): (_S.CLOSED, _A.RESET),
        # The peer closed first and so sends the DREQ.  OpenIB also sends one from here (sdp_sent.c
        # sdp_sent_disconnect); OFED waits, as we do.
        (_S.LAST_ACK, _I.DREQ): (_S.TIME_WAIT, _A.FINISHED),
        (_S.LAST_ACK, _I.ABORT): (_S.CLOSED, _A.ABORT_AND_DISCONNECT),
        # Anything is ignored at the end: DREQs cross, and messages may still be in flight.
        **{(state, event): (state, _A.NOTHING) for state in (_S.TIME_WAIT, _S.CLOSED) for event in Input},
    },
    unlisted=_violated,
)

#: Messages that may carry stream bytes, with the bytes of their own header behind the BSDH.
BODIES = {each.mid.value: each.layout.size for each in MESSAGES if issubclass(each, StreamMessage)}

# Module globals: an enumeration member as a dictionary key costs a Python call for its hash.
#: States in which the peer may still send stream data.
_ESTABLISHED: Final = State.ESTABLISHED
_FIN_WAIT1: Final = State.FIN_WAIT1


def _illegal(mid: int, flags: int, length: int) -> bool:
    # IBTA vol. 1 annex A4 CA4-7: OOB_PRES needs payload.  CA4-8: REQ_PIPE is for RdmaRdCompl only.  The
    # classes in wire.py check the remaining messages.
    if mid == _DATA:
        return flags & 0xFC != 0 or (length == _HEADER and flags & Flags.OOB_PRES != 0)
    if mid == _DISCONN or mid == _ABORT_CONN:
        return flags & 0xFD != 0
    return flags & 0xF8 != 0


@mypyc_attr(allow_interpreted_subclasses=True)
class Machine:
    """
    Protocol state of one connection.

    @ivar sequence: MSeq of the last message sent; not reduced modulo 2^32.
    @ivar limit: The highest MSeq that the peer has a receive for; Bufs of its Hello or HelloAck at first.
    @ivar received: MSeq of the last message received; not reduced.
    @ivar told: The highest MSeq that the peer knows we have a receive for.
    @ivar bareSent: Messages without payload sent; C{bareReceived} received.  NonDiscards counts the others.
    """

    __slots__ = (
        "_updates",
        "bareReceived",
        "bareSent",
        "limit",
        "received",
        "sequence",
        "state",
        "told",
    )

    def __init__(self, receives: int) -> None:
        # Hello and HelloAck carry MSeq 0, so the first message after them has 1.
        self.sequence = self.received = self.limit = 0
        self.told = receives
        self.state: State = State.ESTABLISHED
        self.bareSent = self.bareReceived = 0
        # C{received} and C{sequence} at the last credit updates received and sent.
        self._updates: tuple[int, int] = _NEVER

    # -- sending: each message is numbered here and then must be sent

    def header(self, length: int, receives: int) -> bytes | None:
        """
        Number a Data message and return its header; the message must then be sent.

        @param length: Stream bytes in it.
        @param receives: Receives posted now.
        @return: L{None} with fewer than three credits.
        """
        sequence = self.sequence + 1
        # IBTA vol. 1 annex A4 CA4-82: the last credit may only go to a message that raises the peer's credits
        # and carries no payload.  One more is kept for control messages, so that data cannot block them
        # (OpenIB sdp_send.c sdp_send_data_buff_post also needs three; OFED sdp.h: SDP_MIN_TX_CREDITS).
        if self.limit - sequence < 2:
            return None
        self.sequence = sequence
        received = self.received
        self.told = received + receives
        return _pack(_DATA, 0, receives, length + 16, sequence & M32, received & M32)

    def credits(self) -> int:
        """
        Return how many messages the peer has receives for.
        """
        return self.limit - self.sequence

    def owesUpdate(self, receives: int) -> bool:
        """
        Return whether a credit update should be sent if no data does it.

        @param receives: Receives posted now.
        """
        # A single new receive is only announced to a peer whose data may be blocked on it.  It is never
        # announced by an update that answers the answer to an update, unless the peer has no credit at all:
        # two ends with few receives would otherwise announce to each other, for ever, the receive that the
        # other's update used.
        # OpenIB sdp_recv.c sdp_recv_flush: below three advertised, or more than eight not advertised.
        left = self.told - self.received
        if receives <= left or left >= 3:
            return receives - left >= 2
        answers = self._updates == (self.received, self.sequence)
        return left <= 0 or receives > 3 or not answers

    def update(self, receives: int) -> bytes | None:
        """
        Number an empty Data message that announces receives, and return its header.

        @param receives: Receives posted now.
        @return: L{None} if it announces nothing new or no credit is left.
        """
        sequence = self.sequence + 1
        received = self.received
        # IBTA vol. 1 annex A4 CA4-82: the last credit may be used, since this raises the peer's count.
        if self.limit - sequence < 0 or received + receives <= self.told:
            return None
        self.sequence = sequence
        self._updates = self._updates[0], sequence
        self.bareSent += 1
        self.told = received + receives
        return _pack(_DATA, 0, receives, _HEADER, sequence & M32, received & M32)

    def controlMessage(self, mid: int, receives: int, body: bytes = b"", flags: int = 0) -> bytes | None:
        """
        Number a control message and return it whole.

        @param mid: A L{MID<twisted_ib.sdp.protocol.wire.MID>}.
        @param receives: Receives posted now.
        @param body: The bytes behind the BSDH.
        @return: L{None} with fewer than two credits.
        """
        sequence = self.sequence + 1
        # IBTA vol. 1 annex A4 CA4-82: the last credit is reserved for a credit update.
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

    def receive(self, buffer: Any, start: int, stop: int) -> bytes | Other:
        """
        Process a received message.

        @param buffer: Something whose slices are L{bytes}.
        @param start: Offset of the message.
        @param stop: Offset after it.
        @return: The stream bytes of a plain Data message, perhaps none; or what any other is.
        @raise SDPError: The protocol forbids the message.
        """
        if stop - start < _HEADER:
            raise SDPError(f"a message of {stop - start} bytes has no header")
        kind: int
        bufs: int
        length: int
        sequence: int
        acknowledged: int
        kind, bufs, length, sequence, acknowledged = unpackHeader(buffer, start)
        received = self.received + 1
        if kind != PLAIN or length != stop - start or sequence != received & M32:
            return self._receiveOther(kind, bufs, length, sequence, acknowledged, stop - start)
        self.received = received
        sent = self.sequence
        # Modulo 2^32 an MSeqAck of something not sent yet is a huge distance: a peer cannot create credits.
        behind = (sent - acknowledged) & M32
        if behind > WINDOW:
            raise SDPError(f"message {acknowledged} is acknowledged but was not sent")
        limit = sent - behind + bufs
        # Bufs is absolute, not an increment (OFED sdp_rx.c sdp_process_rx_skb).  A posted receive cannot be
        # withdrawn, so the sum never falls.
        if limit > self.limit:
            self.limit = limit
        data: bytes = buffer[start + 16 : stop]
        if not data:
            self.bareReceived += 1
            self._updates = received, self._updates[1]
        # Empty Data is legal after a DisConn: credits still flow for the other direction.
        elif self.state is not _ESTABLISHED and self.state is not _FIN_WAIT1:
            self._late()
            return b""
        return data

    def _receiveOther(
        self, kind: int, bufs: int, length: int, sequence: int, acknowledged: int, count: int
    ) -> Other:
        mid, flags = kind >> 8, kind & 0xFF
        received = self.received + 1
        # RC delivers each Send once and in order (IBTA vol. 1 9.7), so a gap or a repeat in MSeq is the
        # peer's fault. OFED does not check Len; OpenIB does not check MSeq.
        if length != count or sequence != received & M32 or (flags and _illegal(mid, flags, length)):
            raise SDPError(
                f"message {mid:#04x}: length {length} of {count}, number"
                f" {sequence} where {received & M32} is due, flags {flags:#04x}"
            )
        self.received = received
        behind = (self.sequence - acknowledged) & M32
        if behind > WINDOW:
            raise SDPError(f"message {acknowledged} is acknowledged but was not sent")
        acknowledged = self.sequence - behind
        # A late message may carry fewer receives than a previous one announced; they cannot have been
        # withdrawn.
        limit = acknowledged + bufs
        if limit > self.limit:
            self.limit = limit
        body = BODIES.get(mid)
        if body is None or count == _HEADER + body:
            self.bareReceived += 1
        elif mid == _DATA and self.state not in (_ESTABLISHED, _FIN_WAIT1):
            self._late()
        return mid, flags, acknowledged

    def _late(self) -> None:
        if self.state == State.CLOSE_WAIT or self.state == State.LAST_ACK:
            raise SDPError("data after the peer's DisConn")

    # -- closing

    def feed(self, event: Input) -> Action:
        """
        Advance the close handshake.

        @raise SDPError: The protocol forbids this event in this state.
        """
        self.state, action = TRANSITIONS[self.state, event]
        return action
