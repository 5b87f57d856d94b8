"""
What the two ends of a connection have agreed on, and who uses the connection.
"""

from __future__ import annotations

from typing import Any, Protocol

from attrs import frozen

#: A packet without BTH, pad and invariant CRC: operation code, flags, PSN, extended headers,
#: payload.  The last two are bytes-like; what a consumer puts before its data is at the end of
#: the headers, so the pad is that of both together.
Packet = tuple[int, int, int, bytes, Any]

#: Flags of a packet: the bits that they are in the BTH's second and ninth octet.
SOLICITED_EVENT = 0x80
ACKNOWLEDGE_REQUEST = 0x01


@frozen
class ConnectionParameters:
    """
    What modify_qp takes to RTR and RTS, and what the connection manager knows of the way.

    @ivar mtu: the path MTU in bytes.
    @ivar firstPSN: of the first packet sent (C{sq_psn}).
    @ivar expectedPSN: of the first packet expected (C{rq_psn}).
    @ivar retries: C{retry_cnt}: 0 to 7; 7 is seven (IBTA vol. 1 9.9.2.1.1, unlike rxe).
    @ivar rnrRetries: C{rnr_retry}: 0 to 7; 7 is for ever.
    @ivar timeout: the local ACK timeout in seconds; L{None} is for ever.
    @ivar minRNRTimer: the code of C{min_rnr_timer}.
    @ivar reads: READs and atomics on the way to the peer (C{max_rd_atomic}).
    @ivar peerReads: the peer's that are remembered (C{max_dest_rd_atomic}).
    @ivar roundTrip: what the connection manager has measured, in seconds, or L{None}.
    """

    mtu: int
    firstPSN: int
    expectedPSN: int
    retries: int = 7
    rnrRetries: int = 7
    timeout: float | None = None
    minRNRTimer: int = 0
    reads: int = 1
    peerReads: int = 1
    roundTrip: float | None = None


class User(Protocol):
    """
    Who uses a connection: the path of one queue pair.
    """

    def delivered(self, opcode: int, buffer: Any, start: int, stop: int) -> int:
        """
        A record arrived: see L{QueuePair.delivered
        <twisted_ib.hca.queues.queuepair.QueuePair.delivered>}.

        @return: 0, or the syndrome of a refusal.
        """

    def continued(self, opcode: int, parts: list[Any], size: int) -> int:
        """
        Middle packets of a message arrived: what L{delivered} hears of, in pieces.

        @param parts: their payloads, bytes-like, not to be used after the batch.
        @param size: bytes in them.
        @return: 0, or the syndrome of a refusal.
        """

    def acknowledged(self, position: int) -> None:
        """
        The peer has done everything up to a record.

        @param position: that record's.
        """

    def refused(self, position: int, syndrome: int) -> None:
        """
        The peer will not do a record, or does not answer; nothing is sent any more.

        @param position: that record's.
        @param syndrome: a NAK's, or one of L{twisted_ib.hca.base.operation}.
        """

    def resumed(self) -> None:
        """
        There is room again after C{post} had none.
        """

    def count(self, name: str) -> None:
        """
        Something happened that is counted.
        """
