"""
A reliable connection over packets: a requester, a responder, and what they share.
"""

from __future__ import annotations

from typing import Any, Final

from twisted_ib.hca.base.operation import SOLICITED
from twisted_ib.hca.transport.parameters import SOLICITED_EVENT, ConnectionParameters, ConnectionUser, Packet
from twisted_ib.hca.transport.requester import Requester
from twisted_ib.hca.transport.responder import Responder
from twisted_ib.hca.transport.segmentation import joined
from twisted_ib.hca.wire.opcodes import ATOMIC_ACKNOWLEDGE, READ_RESPONSE_FIRST, READ_RESPONSE_MIDDLE

_CODE_MASK: Final = 0x7F


class ReliableConnection:
    """
    One end of a reliable connection (RC).

    It reads no clock: the caller calls L{tick} at the L{deadline}, and L{outputs} while it is L{pending}.
    Packets from the peer may have any opcode, PSN and length.

    @ivar remote: the peer's queue pair number.
    @ivar requester: its send side.
    @ivar responder: its receive side.
    """

    __slots__ = ("_requestsFirst", "remote", "requester", "responder")

    def __init__(self, parameters: ConnectionParameters, remote: int, user: ConnectionUser) -> None:
        self.remote = remote
        self.requester = Requester(parameters, user)
        self.responder = Responder(parameters, user)
        # Requests and responses take turns: else a peer that reads all the time would keep this
        # end from sending.
        self._requestsFirst = False

    def modify(self, parameters: ConnectionParameters) -> None:
        """
        The parameters have changed: the queue pair went to RTS, or was modified in SQD.  PSNs count until
        one was used.
        """
        self.requester.modify(parameters)
        self.responder.modify(parameters)

    def post(self, opcode: int, header: bytes, payload: Any, length: int, position: int, now: float) -> bool:
        """
        Accept a record of the queue pair, a request or a response.

        @param opcode: the opcode, perhaps with L{SOLICITED}.
        @param header: extended headers, or the first bytes of a stream's message.
        @param payload: bytes-like, or a list of bytes-like objects; copied if it is not bytes.
        @param length: bytes in C{payload}.
        @param position: identifies a request to L{ConnectionUser}; increases.
        @return: False if there is no room now.
        """
        code = opcode & _CODE_MASK
        if READ_RESPONSE_FIRST <= code <= ATOMIC_ACKNOWLEDGE:
            return self.responder.post(code, joined(payload))
        return self.requester.post(
            code, SOLICITED_EVENT if opcode & SOLICITED else 0, header, joined(payload), position
        )

    def receive(
        self, opcode: int, psn: int, acknowledge: bool, buffer: Any, start: int, stop: int, now: float
    ) -> None:
        """
        A packet came.

        @param opcode: its opcode, perhaps with L{SOLICITED}.
        @param acknowledge: whether it has AckReq.
        @param buffer: has its extended headers and payload, without pad, from C{start} to C{stop}; valid
            during this call.
        """
        code = opcode & _CODE_MASK
        if READ_RESPONSE_FIRST <= code <= ATOMIC_ACKNOWLEDGE:
            self.requester.responded(code, psn, buffer, start, stop, now)
        else:
            self.responder.asked(opcode, psn, acknowledge, buffer, start, stop)

    def continued(self, code: int, psn: int, acknowledge: bool, parts: list[Any], now: float) -> bool:
        """
        Middle packets came, with consecutive PSNs: L{receive} for all of them at once.

        @param psn: the PSN of the first.
        @param acknowledge: whether one of them has AckReq.
        @param parts: their payloads, of equal size; valid until the user's C{settle}.
        @return: whether they were the expected ones; if not, nothing has changed.
        """
        if code == READ_RESPONSE_MIDDLE:
            return self.requester.continued(psn, parts, now)
        return self.responder.continued(code, psn, acknowledge, parts)

    def isExpected(self, code: int, psn: int) -> bool:
        """
        @param code: the opcode of a packet.
        @return: whether it has the PSN of the next request, or that of one of ours without an answer.
        """
        if READ_RESPONSE_FIRST <= code <= ATOMIC_ACKNOWLEDGE:
            return self.requester.isOutstanding(psn)
        return self.responder.isExpected(psn)

    @property
    def owes(self) -> bool:
        """
        Whether an acknowledgement is owed, deferred or not.
        """
        return self.responder.owes

    def outputs(self, budget: int, now: float, patient: bool = False) -> list[Packet]:
        """
        Make packets of what may be sent now.

        @param budget: maximum, at least two.
        @param patient: whether an acknowledgement may be deferred; the caller must call again without it
            soon.
        """
        out: list[Packet] = []
        if not self.requester.unsent:
            self.responder.outputs(budget, out, patient)
            return out
        self._requestsFirst = first = not self._requestsFirst
        if first:
            # One packet is kept for the responder: an acknowledgement must not wait for a full
            # window.
            self.requester.outputs(budget - 1, now, out)
            self.responder.outputs(budget - len(out), out, patient)
        else:
            self.responder.outputs(budget, out, patient)
            self.requester.outputs(budget - len(out), now, out)
        return out

    def pending(self) -> bool:
        """
        @return: whether L{outputs} would make packets.
        """
        return self.responder.pending() or self.requester.pending()

    def deadline(self) -> float | None:
        """
        @return: when to call L{tick}, in seconds, or L{None}.
        """
        return self.requester.due

    def tick(self, now: float, isGone: bool = False) -> None:
        """
        Handle expired timers.

        @param isGone: whether the peer is known to answer never again, and nothing waits to be read.
        """
        self.requester.tick(now, isGone)

    def close(self) -> None:
        """
        The queue pair is gone: send and accept nothing any more; L{outputs} still has a NAK that is owed.
        """
        self.requester.close()
        self.responder.close()
