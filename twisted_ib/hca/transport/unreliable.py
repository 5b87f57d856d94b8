"""
An unreliable connection over packets (IBTA vol. 1 9.8.2; Linux C{rxe_resp.c}, C{check_psn} for UC):
nothing is acknowledged, and a message with a lost packet is dropped from there on.

Duplicates are dropped, too: packets a little behind the expected PSN.  IBTA would begin a message with
one; but then a network that duplicates packets would deliver messages twice.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from twisted_ib import limits
from twisted_ib.hca.base.operation import SOLICITED
from twisted_ib.hca.transport.parameters import SOLICITED_EVENT, ConnectionParameters, ConnectionUser, Packet
from twisted_ib.hca.transport.psn import extended
from twisted_ib.hca.transport.responder import requests
from twisted_ib.hca.transport.segmentation import Record, joined
from twisted_ib.hca.wire.headers import PSN_MASK
from twisted_ib.hca.wire.opcodes import UNRELIABLE

#: Packets up to so many PSNs behind the expected one are duplicates.
TRANSPORT_BEHIND = 1024

_CODE_MASK: Final = 0x7F
#: The bits of a UC opcode without L{UNRELIABLE}; higher ones are other services'.
_OPERATION_MASK: Final = 0x1F
#: See L{requests}.
_REQUESTS: Final = requests(UNRELIABLE)


class UnreliableConnection:
    """
    One end of an unreliable connection (UC): see L{ReliableConnection
    <twisted_ib.hca.transport.reliable.ReliableConnection>}.

    @ivar remote: the peer's queue pair number.
    """

    __slots__ = (
        "_end",
        "_expected",
        "_full",
        "_held",
        "_inside",
        "_next",
        "_terms",
        "_unsent",
        "_user",
        "remote",
    )

    def __init__(self, parameters: ConnectionParameters, remote: int, user: ConnectionUser) -> None:
        self.remote = remote
        self._terms = parameters
        self._user = user
        self._unsent: deque[Record] = deque()
        self._end = self._next = parameters.firstPSN
        self._held = 0
        self._full = False
        self._expected = parameters.expectedPSN
        #: The kind of the message in progress; 0 between messages, or while one is dropped.
        self._inside = 0

    def modify(self, parameters: ConnectionParameters) -> None:
        # The first PSN counts only if nothing was posted.
        if self._end == self._terms.firstPSN:
            self._end = self._next = parameters.firstPSN
        self._terms = parameters

    def post(self, opcode: int, header: bytes, payload: Any, length: int, position: int, now: float) -> bool:
        if self._held >= limits.TRANSPORT_BYTES or len(self._unsent) >= limits.TRANSPORT_RECORDS:
            self._full = True
            return False
        record = Record(
            opcode & _OPERATION_MASK,
            SOLICITED_EVENT if opcode & SOLICITED else 0,
            header,
            joined(payload),
            position,
            self._end,
            self._terms.mtu,
        )
        self._end = record.end
        self._held += record.size
        self._unsent.append(record)
        return True

    def isExpected(self, code: int, psn: int) -> bool:
        return psn == self._expected & PSN_MASK

    def receive(
        self, opcode: int, psn: int, acknowledge: bool, buffer: Any, start: int, stop: int, now: float
    ) -> None:
        code = opcode & _CODE_MASK
        row = _REQUESTS.get(code)
        if row is None:
            self._user.count("opcode_unknown")
            return
        expected = self._expected
        number = extended(psn, expected)
        # Linux rxe_resp.c check_psn() differs: it begins a message with any First or Only.
        if 0 < expected - number <= TRANSPORT_BEHIND:
            self._user.count("duplicate_request")
            return
        kind, begins, ends, header, full, least, _ = row
        length, mtu = stop - start - header, self._terms.mtu
        # IBTA vol. 1 9.8.2: the expected PSN follows the received one, whatever was lost between.
        self._expected = number + 1
        if number != expected:
            self._user.count("out_of_seq_request")
            self._inside = 0
        if (not begins and self._inside != kind) or (length != mtu if full else not least <= length <= mtu):
            self._inside = 0
            self._user.count("packets_dropped")
            return
        self._inside = 0 if ends else kind
        self._user.delivered(opcode, buffer, start, stop)

    #: Always False: UC acknowledges nothing.
    owes = False

    def outputs(self, budget: int, now: float, patient: bool = False) -> list[Packet]:
        # A record counts as acknowledged when all its packets are made.
        out: list[Packet] = []
        unsent, mtu, position = self._unsent, self._terms.mtu, -1
        while unsent and len(out) < budget:
            record = unsent[0]
            at = self._next
            self._next = stop = min(record.end, at + budget - len(out))
            record.cut(at, stop, mtu, out, -1)
            if stop == record.end:
                unsent.popleft()
                self._held -= record.size
                position = record.position
        # IBTA vol. 1 9.8.2: a UC request completes when it was sent.
        if position >= 0:
            self._user.acknowledged(position)
        if (
            self._full
            and self._held <= limits.TRANSPORT_BYTES // 2
            and len(unsent) <= limits.TRANSPORT_RECORDS // 2
        ):
            self._full = False
            self._user.resumed()
        return [(code | UNRELIABLE, flags, psn, header, body) for code, flags, psn, header, body in out]

    def pending(self) -> bool:
        return bool(self._unsent)

    def deadline(self) -> float | None:
        return None

    def tick(self, now: float, isGone: bool = False) -> None:
        pass  # There are no timers.

    def close(self) -> None:
        self._unsent.clear()
        self._held = 0
