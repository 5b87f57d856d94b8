"""
The negotiated parameters of a connection, and the interface to its user.
"""

from __future__ import annotations

from typing import Any, Protocol

from attrs import frozen

from twisted_ib import limits
from twisted_ib.hca.wire.opcodes import MTU_BYTES

#: A packet without BTH, pad and invariant CRC: opcode, flags, PSN, extended headers, payload.  The
#: last two are bytes-like; the header that a stream puts before its data is at the end of the
#: extended headers, so the pad count is that of both together.
Packet = tuple[int, int, int, bytes, Any]

#: Flags of a packet: SE with its value in octet 1 of the BTH, and AckReq, which is the high bit of
#: octet 8 there.
SOLICITED_EVENT = 0x80
ACKNOWLEDGE_REQUEST = 0x01

#: Bytes of the longest packets that are on their way, for the most part: eight packets, of which the peer
#: acknowledges each half.  A quarter of the least buffer of a peer's socket that has such packets.
TRANSPORT_LONG_BYTES = 480 * 1024
#: IBTA's largest path MTU in bytes.
_USUAL = max(MTU_BYTES.values())
#: Of packets up to so long as many bytes are on their way as of the usual ones, on links that have a queue.
_OF_LINKS = 8192


def asking(packet: Packet) -> Packet:
    """
    @return: a packet with AckReq.
    """
    opcode, flags, psn, header, payload = packet
    return opcode, flags | ACKNOWLEDGE_REQUEST, psn, header, payload


@frozen
class ConnectionParameters:
    """
    The attributes of modify_qp to RTR and RTS, and what the connection manager knows of the path.

    @ivar mtu: the path MTU in bytes.
    @ivar firstPSN: of the first packet sent (C{sq_psn}).
    @ivar expectedPSN: of the first packet received (C{rq_psn}).
    @ivar retries: C{retry_cnt}, 0 to 7; 7 is seven (IBTA vol. 1 9.9.2.1.1, unlike rxe).
    @ivar rnrRetries: C{rnr_retry}, 0 to 7; 7 is infinite.
    @ivar timeout: the local ACK timeout in seconds; L{None} is infinite.
    @ivar minRNRTimer: the code of C{min_rnr_timer}.
    @ivar reads: outstanding READs and atomics to the peer (C{max_rd_atomic}).
    @ivar peerReads: the peer's READs and atomics that are remembered (C{max_dest_rd_atomic}).
    @ivar roundTrip: measured by the connection manager, in seconds, or L{None}.
    """

    mtu: int
    firstPSN: int
    expectedPSN: int
    # Linux rxe_comp.c does not count down at 7, so that it retries for ever; in IBTA vol. 1
    # 9.9.2.1.1 only rnr_retry has an infinite value.
    retries: int = 7
    rnrRetries: int = 7
    timeout: float | None = None
    minRNRTimer: int = 0
    reads: int = 1
    peerReads: int = 1
    roundTrip: float | None = None

    @property
    def isLong(self) -> bool:
        """
        Whether packets may be longer than IBTA's longest.
        """
        return self.mtu > _USUAL

    @property
    def silence(self) -> float | None:
        """
        Seconds without an answer after which the peer counts as dead; L{None} for never.
        """
        # The shortest timeout is that of a retransmission: IBTA vol. 1 9.7.6.1.3 permits up to four times
        # what was asked for, and a reactor's turn may take longer than a timeout of microseconds.
        if self.timeout is None:
            return None
        return max(self.timeout, limits.TRANSPORT_RESEND_LEAST) * (self.retries + 1)

    @property
    def mostBytes(self) -> int:
        """
        Bytes of long packets that are on their way, for the most part.
        """
        return limits.TRANSPORT_WINDOW * _USUAL if self.mtu <= _OF_LINKS else TRANSPORT_LONG_BYTES

    def scaled(self, packets: int) -> int:
        """
        @param packets: a bound in packets, of L{limits.TRANSPORT_WINDOW} for a whole window.
        @return: that for packets of this path MTU: of long ones the same share of C{mostBytes}, at least two.
        """
        if not self.isLong:
            return packets
        return max(2, packets * self.mostBytes // (limits.TRANSPORT_WINDOW * self.mtu))


class ConnectionUser(Protocol):
    """
    The user of a connection: the path of one queue pair.
    """

    def delivered(self, opcode: int, buffer: Any, start: int, stop: int) -> int:
        """
        A record arrived: see L{QueuePair.delivered <twisted_ib.hca.queues.queuepair.QueuePair.delivered>}.

        @return: 0, or the syndrome of a NAK.
        """

    def continued(self, opcode: int, parts: list[Any], size: int) -> int:
        """
        Several Middle packets of a message arrived together.

        @param parts: their payloads, bytes-like, valid until the end of the batch.
        @param size: bytes in them.
        @return: 0, or the syndrome of a NAK.
        """

    def acknowledged(self, position: int) -> None:
        """
        The peer has executed every record up to and including the one at C{position}.
        """

    def refused(self, position: int, syndrome: int) -> None:
        """
        The peer refused the record at C{position}, or does not answer; nothing is sent any more.

        @param syndrome: of a NAK, or one of L{twisted_ib.hca.base.operation}.
        """

    def resumed(self) -> None:
        """
        There is room again after C{post} returned False.
        """

    def count(self, name: str) -> None:
        """
        Add one to a counter.
        """
