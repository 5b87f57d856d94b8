"""
A reliable connection over packets: a requester, a responder, and what they share.
"""

from __future__ import annotations

from typing import Any, Final

from twisted_ib.hca.base.operation import SOLICITED
from twisted_ib.hca.transport.parameters import SOLICITED_EVENT, ConnectionParameters, Packet, User
from twisted_ib.hca.transport.requester import Requester
from twisted_ib.hca.transport.responder import Responder
from twisted_ib.hca.wire.opcodes import ATOMIC_ACKNOWLEDGE, READ_RESPONSE_FIRST, SEND_ONLY

_CODE_MASK: Final = 0x7F


def joined(payload: Any) -> Any:
    """
    Copy what a record carries, unless it cannot change.

    @param payload: bytes-like, or a list of bytes-like objects.
    @return: bytes, or a view of some.
    """
    if payload.__class__ is bytes or (payload.__class__ is memoryview and payload.obj.__class__ is bytes):
        return payload
    return b"".join(payload) if payload.__class__ is list else bytes(payload)


class ReliableConnection:
    """
    One end of a reliable connection (RC).

    Nothing in here reads a clock: whoever moves the packets calls L{tick} at the L{deadline},
    and L{outputs} as long as it is L{pending}.  What the peer sends can have any code, any
    number and any length.

    @ivar remote: the peer's queue pair number.
    """

    __slots__ = ("_requester", "_requestsFirst", "_responder", "remote")

    def __init__(self, terms: ConnectionParameters, remote: int, user: User) -> None:
        """
        Begin.

        @param remote: the peer's queue pair number.
        @param user: who hears of what happens.
        """
        self.remote = remote
        self._requester = Requester(terms, user)
        self._responder = Responder(terms, user)
        self._requestsFirst = False

    def modify(self, terms: ConnectionParameters) -> None:
        """
        The terms have changed: the queue pair went to RTS, or was changed in SQD.  PSNs count
        as long as none was used.
        """
        self._requester.modify(terms)
        self._responder.modify(terms)

    def post(self, opcode: int, header: bytes, payload: Any, length: int, position: int, now: float) -> bool:
        """
        Take a record of the queue pair, a request or a response.

        @param opcode: the operation code, perhaps with L{SOLICITED}.
        @param header: extended headers; or first bytes of a stream's message.
        @param payload: bytes-like, or a list of bytes-like objects; copied if it is not bytes.
        @param length: bytes in C{payload}.
        @param position: what L{User} hears of a request by; increases.
        @return: False if there is no room now.
        """
        code = opcode & _CODE_MASK
        if READ_RESPONSE_FIRST <= code <= ATOMIC_ACKNOWLEDGE:
            return self._responder.post(code, joined(payload))
        return self._requester.post(
            code, SOLICITED_EVENT if opcode & SOLICITED else 0, header, joined(payload), position
        )

    def postNow(self, header: bytes, payload: Any, position: int, now: float) -> list[Packet] | None:
        """
        Take a small SEND that may leave at once.

        @return: its packet; L{None} if it is to be given to L{post}.
        """
        return self._requester.postNow(SEND_ONLY, header, joined(payload), position, now)

    def refuse(self, syndrome: int) -> None:
        """
        The queue pair cannot answer the oldest READ or atomic after all: its memory is gone.

        @param syndrome: of a NAK.
        """
        self._responder.refuse(syndrome)

    def receive(
        self, opcode: int, psn: int, acknowledge: bool, buffer: Any, start: int, stop: int, now: float
    ) -> None:
        """
        A packet came.

        @param opcode: its operation code, perhaps with L{SOLICITED}.
        @param acknowledge: whether it asks for an acknowledgement.
        @param buffer: has its extended headers and payload, without pad, from C{start} to
            C{stop}; used during this call only.
        """
        code = opcode & _CODE_MASK
        if READ_RESPONSE_FIRST <= code <= ATOMIC_ACKNOWLEDGE:
            self._requester.responded(code, psn, buffer, start, stop, now)
        else:
            self._responder.asked(opcode, psn, acknowledge, buffer, start, stop)

    def continued(self, code: int, psn: int, acknowledge: bool, parts: list[Any]) -> bool:
        """
        Middle packets of a message came, one behind the other.

        @param code: their operation code.
        @param psn: the number of the first.
        @param acknowledge: whether one of them asks for an acknowledgement.
        @param parts: their payloads, which have one size; used during this call only, and until
            the user's C{settle}.
        @return: whether they were the expected ones; if not L{receive} has to look at each.
        """
        return self._responder.continued(code, psn, acknowledge, parts)

    @property
    def owes(self) -> bool:
        """
        Whether an acknowledgement waits that L{outputs} was patient with, or will make.
        """
        return self._responder.owes

    def outputs(self, budget: int, now: float, patient: bool = False) -> list[Packet]:
        """
        Make packets of what may be sent now; responses and requests have turns.

        @param budget: so many at most, at least two.
        @param patient: whether an acknowledgement may wait for those of packets that soon come; who asks
            so has to ask again without, soon.
        """
        out: list[Packet] = []
        self._requestsFirst = first = not self._requestsFirst
        if first:
            self._requester.outputs(budget - 1, now, out)
            self._responder.outputs(budget - len(out), out, patient)
        else:
            self._responder.outputs(budget, out, patient)
            self._requester.outputs(budget - len(out), now, out)
        return out

    def pending(self) -> bool:
        """
        @return: whether L{outputs} would make some.
        """
        return self._responder.pending() or self._requester.pending()

    def deadline(self) -> float | None:
        """
        @return: when L{tick} has something to do, in seconds, or L{None}.
        """
        return self._requester.deadline()

    def tick(self, now: float) -> None:
        """
        Do what is due.
        """
        self._requester.tick(now)

    def close(self) -> None:
        """
        The queue pair is gone: ask and answer nothing any more.  A refusal that it owes is
        still in L{outputs}.
        """
        self._requester.close()
        self._responder.close()
