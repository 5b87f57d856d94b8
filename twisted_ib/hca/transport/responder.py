"""
The responder of a reliable connection over packets (IBTA vol. 1 9.7.4, 9.7.5, 9.7.7; Linux C{rxe_resp.c}).

A request with the expected PSN is checked for its place in the message and for its length; the user checks
the rest and executes it.  An early one draws one NAK (PSN sequence error) until the expected one comes.  A
duplicate READ is executed again, a duplicate atomic or ATOMIC WRITE is answered again, any other duplicate is
acknowledged again (IBTA vol. 1 9.7.5.1).

Acknowledgements are coalesced: one acknowledges all requests up to its PSN.  Neither it nor a NAK
overtakes the responses to READs and atomics before it, which the user posts in the order of the requests,
perhaps later.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from twisted_ib.hca.base.operation import ABSENT, LATER
from twisted_ib.hca.transport.parameters import (
    TRANSPORT_LONG_BYTES,
    ConnectionParameters,
    ConnectionUser,
    Packet,
)
from twisted_ib.hca.transport.psn import extended, packets
from twisted_ib.hca.transport.readrequests import RESPONSE_TO
from twisted_ib.hca.transport.responses import RememberedRequest, Response
from twisted_ib.hca.wire.headers import (
    ACK,
    AETH,
    NAK_INVALID_REQUEST,
    NAK_REMOTE_OPERATIONAL,
    NAK_SEQUENCE,
    PSN_MASK,
    RNR,
)
from twisted_ib.hca.wire.opcodes import (
    ACKNOWLEDGE,
    OPCODES,
    READ_REQUEST,
    SERVICE_MASK,
    Kind,
)

#: A deferred acknowledgement is sent after so many packets, at the latest.
TRANSPORT_DEFERRED = 16
#: Bytes of posted READ responses that wait to be sent; one more record than that is accepted.
TRANSPORT_ANSWERS = 512 * 1024

#: Bytes of a packet of which L{TRANSPORT_DEFERRED} are half of a window.
_LONG: Final = TRANSPORT_LONG_BYTES // 2 // TRANSPORT_DEFERRED
_SYNDROME_MASK: Final = 0xE0
_CODE_MASK: Final = 0x7F
#: An opcode that nobody has: the user gets it in place of a packet out of sequence, and refuses it
#: as an invalid request.
INVALID: Final = 0x18
#: Kinds of messages, for the message in progress; 0 is between messages.  A READ has a response of several
#: packets, which is made again for a duplicate; the others' response is one packet, which is remembered.
_SEND, _WRITE, _READ, _ANSWERED = 1, 2, 3, 4
_KINDS: Final = {Kind.SEND: _SEND, Kind.WRITE: _WRITE, Kind.READ: _READ}


def requests(service: int) -> dict[int, tuple[int, bool, bool, int, bool, int, bool]]:
    """
    The opcodes of requests.

    @param service: the bits of a service.
    @return: by opcode: its kind; whether it begins and ends a message; bytes of its headers; whether its
        payload is exactly the path MTU; if not, its least bytes and whether it may have more.
    """
    return {
        code: (
            _KINDS.get(row.kind, _ANSWERED),
            row.begins,
            row.ends,
            row.layout.size,
            row.least is None,
            row.least or 0,
            row.most is None,
        )
        for code, row in OPCODES.items()
        if code & SERVICE_MASK == service and row.isRequest
    }


#: See L{requests}.
REQUESTS: Final = requests(0)


class Responder:
    """
    Receives requests and sends their responses.

    @ivar owes: whether an acknowledgement is owed.
    """

    __slots__ = (
        "_again",
        "_asked",
        "_dead",
        "_expected",
        "_full",
        "_held",
        "_inside",
        "_later",
        "_makes",
        "_msn",
        "_nak",
        "_ready",
        "_refused",
        "_remembered",
        "_terms",
        "_user",
        "_wanted",
        "owes",
    )

    def __init__(self, parameters: ConnectionParameters, user: ConnectionUser) -> None:
        self._terms = parameters
        self._user = user
        self._expected = parameters.expectedPSN
        self._msn = 0
        self._inside = 0
        #: Whether packets behind the expected one are dropped silently, as a NAK was sent (rxe:
        #: sent_psn_nak).
        self._refused = False
        #: Whether the user will want the expected packet again, when its responses are out.
        self._later = False
        #: Whether a request drew a fatal NAK.
        self._dead = False
        #: The NAK to send: syndrome and PSN.
        self._nak: tuple[int, int] | None = None
        self.owes = False
        #: The first PSN that an acknowledgement is owed for.
        self._wanted = 0
        # rxe rounds the number of READs up to a power of two.
        self._remembered = 0
        self._asked: deque[RememberedRequest] = deque()
        #: Responses that the user has not posted all of.
        self._makes: deque[Response] = deque()
        #: Posted parts: the response, the first PSN, the bytes.
        self._ready: deque[tuple[Response, int, Any]] = deque()
        #: READs to be executed again.
        self._again: deque[RememberedRequest] = deque()
        self._held = 0
        self._full = False
        self.modify(parameters)

    def modify(self, parameters: ConnectionParameters) -> None:
        """
        The parameters have changed; the expected PSN counts only at first.
        """
        self._terms = parameters
        # Rounded up as in Linux rxe_qp.c: its peer may have as many outstanding.
        self._remembered = 1 << max(0, parameters.peerReads - 1).bit_length()

    # -- up

    def isExpected(self, psn: int) -> bool:
        """
        @return: whether this is the PSN of the next request.
        """
        return psn == self._expected & PSN_MASK

    def asked(self, opcode: int, psn: int, acknowledge: bool, buffer: Any, start: int, stop: int) -> None:
        """
        A request came.

        @param opcode: its opcode, perhaps with the solicited event bit.
        @param acknowledge: whether it has AckReq.
        """
        row = REQUESTS.get(opcode & _CODE_MASK)
        # Dropped silently, as Linux rxe_recv.c does where rxe_opcode.c has no row.
        if row is None:
            self._user.count("opcode_unknown")
            return
        if self._dead:
            # A queue pair in ERR answers nothing (IBTA vol. 1 10.3.1).
            return
        number = self._expected
        if psn != number & PSN_MASK:
            expected, number = number, extended(psn, number)
            if number > expected:
                self._early()
            else:
                self._repeated(opcode & _CODE_MASK, number, buffer, start, stop)
            return
        # The order of Linux rxe_resp.c: PSN, opcode sequence, then length (IBTA vol. 1 9.7.4).
        kind, begins, ends, header, full, least, more = row
        inside, length, mtu = self._inside, stop - start - header, self._terms.mtu
        if (inside and (begins or inside != kind)) or not (inside or begins):
            self._invalid(number)
        elif length != mtu if full else length < least or (length > mtu if more else length > least):
            self._invalid(number)
        elif kind >= _READ:
            self._question(opcode, number, buffer, start, stop)
        else:
            syndrome = self._user.delivered(opcode, buffer, start, stop)
            if syndrome:
                self._refuse(syndrome, number)
                return
            # Only now: a refused packet keeps its PSN and is sent again with it (IBTA vol. 1
            # 9.7.5.2.8).
            self._expected = number + 1
            self._refused = self._later = False
            if self._nak is not None and not self._dead:
                # The expected packet came before the NAK was sent.
                self._nak = None
            # The MSN counts messages, not packets (IBTA vol. 1 9.7.7).
            if ends:
                self._inside = 0
                self._msn += 1
            else:
                self._inside = kind
            if acknowledge:  # _want(), inlined.
                if not self.owes:
                    self.owes, self._wanted = True, number
                if mtu >= _LONG and (inside or length >= _LONG) and not self._makes:
                    # Few packets so long make a window: it is not deferred, and nor is what is owed already.
                    self._wanted = min(self._wanted, number - TRANSPORT_DEFERRED)

    def continued(self, code: int, psn: int, acknowledge: bool, parts: list[Any]) -> bool:
        """
        Middle packets of a message came, with consecutive PSNs: L{asked} for all of them at once.

        @param psn: the PSN of the first.
        @param acknowledge: whether one of them has AckReq.
        @param parts: their payloads, of equal size; valid until the user's C{settle}.
        @return: whether they were the expected ones; if not, nothing has changed.
        """
        number, mtu = self._expected, self._terms.mtu
        if (
            psn != number & PSN_MASK
            or self._dead
            or self._inside != REQUESTS[code][0]
            or len(parts[0]) != mtu
        ):
            return False
        syndrome = self._user.continued(code, parts, len(parts) * mtu)
        if syndrome:
            self._refuse(syndrome, number)
            return True
        self._expected = number + len(parts)
        self._refused = self._later = False
        if self._nak is not None and not self._dead:
            self._nak = None
        if acknowledge:
            self._want(number)
        return True

    def _want(self, number: int) -> None:
        if not self.owes:
            self.owes = True
            self._wanted = number

    def _early(self) -> None:
        # IBTA vol. 1 9.7.5.2.3: one NAK per gap (Linux rxe_resp.c check_psn(), sent_psn_nak); one
        # per packet would have a go-back-N requester start again with each.
        self._user.count("out_of_seq_request")
        if not self._refused and not self._dead:
            self._refused = True
            self._nak = NAK_SEQUENCE, self._expected

    def _invalid(self, number: int) -> None:
        # The user fails its queue pair and raises the event; its syndrome is used if it has one.
        self._refuse(self._user.delivered(INVALID, b"", 0, 0) or NAK_INVALID_REQUEST, number)

    def _refuse(self, syndrome: int, number: int) -> None:
        if syndrome & _SYNDROME_MASK == RNR:
            # RNR: packets behind it are dropped silently.  Linux rxe_resp.c differs: they draw one
            # sequence NAK.
            self._refused, self._later = True, False
            self._nak = syndrome, number
        elif syndrome == LATER:
            self._refused = self._later = True
        elif syndrome != ABSENT:
            self._dead = self._refused = True
            self._later = False
            # The user's queue pair is in ERR: no more responses come from it.
            self._makes.clear()
            self._again.clear()
            if not NAK_INVALID_REQUEST <= syndrome <= NAK_REMOTE_OPERATIONAL:
                syndrome = NAK_REMOTE_OPERATIONAL
            self._nak = syndrome, number

    def _question(self, opcode: int, number: int, buffer: Any, start: int, stop: int) -> None:
        header = bytes(buffer[start:stop])
        code = opcode & _CODE_MASK
        # More than max_dest_rd_atomic outstanding: invalid request (IBTA vol. 1 9.7.4).  Linux
        # rxe_resp.c trusts its requester and recycles the oldest.
        if not self._remember():
            self._invalid(number)
            return
        if not self._mayMake():
            # Dropped silently; the requester repeats it; by then some responses have been sent.
            return
        asked = RememberedRequest(code, number, header, self._terms.mtu, self._msn + 1)
        self._asked.append(asked)
        answer = asked.answer = Response(asked, number, asked.end)
        self._makes.append(answer)
        syndrome = self._user.delivered(opcode, header, 0, len(header))
        if syndrome:
            self._asked.pop()
            self._makes.remove(answer)
            self._refuse(syndrome, number)
            return
        # A READ uses up the PSNs of all its response packets (IBTA vol. 1 9.7.3).
        self._expected = asked.end
        self._msn += 1
        self._refused = self._later = False
        if self._nak is not None and not self._dead:
            self._nak = None

    def _remember(self) -> bool:
        asked = self._asked
        if len(asked) >= self._remembered:
            # Returns False if the oldest is not answered: the peer has more outstanding than it
            # may.
            if not asked[0].isAnswered:
                return False
            # A new request beyond the limit shows that the peer has the oldest response: a
            # duplicate of it in progress is not needed any more.
            oldest = asked.popleft()
            oldest.again = None
            if oldest.answer is not None:
                self._void(oldest.answer)
        return True

    def _mayMake(self) -> bool:
        # The user has the same bound, and counts repeated READs, too.
        return len(self._makes) < (self._terms.peerReads or 1)

    # -- duplicates

    def _repeated(self, code: int, number: int, buffer: Any, start: int, stop: int) -> None:
        self._user.count("duplicate_request")
        kind, _, _, header, _, least, _ = REQUESTS[code]
        # IBTA vol. 1 9.7.5.1: not executed again, but acknowledged again, as the acknowledgement
        # may be what was lost (Linux rxe_resp.c duplicate_request()).
        if kind < _READ:
            self._want(number)
            return
        # The length was not checked for duplicates: the header must be there before it is parsed.
        if stop - start != header + least:
            return
        for asked in self._asked:
            if asked.start <= number < asked.end and asked.code == code:
                break
        else:
            return
        if kind == _ANSWERED:
            if asked.result is not None and asked.answer is None:
                answer = asked.answer = Response(asked, number, number + 1)
                self._ready.append((answer, number, asked.result))
            return
        part = asked.part(number, bytes(buffer[start:stop]), self._terms.mtu)
        if part is not None:
            self._readAgain(asked, part)

    def _readAgain(self, asked: RememberedRequest, part: tuple[int, int, bytes]) -> None:
        answer = asked.answer
        if answer is not None:
            if not answer.isVoid and part[0] >= answer.sent:
                # It is not sent yet, and will be.
                return
            # A requester drops what is behind a lost packet, so the rest of this response is of no
            # use.
            self._void(answer)
            asked.again = part
            if answer.at < answer.end:
                # The user still posts it; it must not get a second one for the same request
                # meanwhile.
                return
            asked.answer = None
        elif asked.again is not None:
            asked.again = part
            # It is queued already.
            return
        asked.again = part
        self._again.append(asked)

    def _void(self, answer: Response) -> None:
        answer.isVoid = True
        ready = self._ready
        for entry in [entry for entry in ready if entry[0] is answer]:
            if answer.asked.code == READ_REQUEST:
                self._held -= len(entry[2])
            ready.remove(entry)

    def _doAgain(self) -> None:
        again = self._again
        while again and self._mayMake() and not self._dead:
            asked = again.popleft()
            if asked.again is None:
                continue
            (start, end, header), asked.again = asked.again, None
            answer = asked.answer = Response(asked, start, end)
            self._makes.append(answer)
            # The right to the memory is checked again, as it may be gone (Linux rxe_resp.c
            # rxe_recheck_mr()).
            syndrome = self._user.delivered(READ_REQUEST, header, 0, len(header))
            if syndrome:
                if answer in self._makes:
                    self._makes.remove(answer)
                asked.answer = None
                if syndrome != LATER:
                    self._refuse(syndrome, start)

    # -- down

    def post(self, code: int, body: bytes) -> bool:
        """
        Accept a part of the oldest response that the user makes.

        @param code: the opcode, of a response.
        @return: False if there is no room; the user is notified when there is.
        """
        makes = self._makes
        if not makes:
            return True
        answer = makes[0]
        if self._held >= TRANSPORT_ANSWERS:
            self._full = True
            return False
        at = answer.at
        answer.at = min(at + packets(len(body), self._terms.mtu), answer.end)
        if answer.asked.code != READ_REQUEST:
            answer.asked.result = body
            self._ready.append((answer, at, body))
        elif not answer.isVoid:
            self._ready.append((answer, at, body))
            self._held += len(body)
        if answer.at == answer.end:
            makes.popleft()
            # Now that the user is done with it the repeated READ may start.
            if answer.isVoid:
                answer.asked.answer = None
                self._again.append(answer.asked)
        return True

    def refuse(self, syndrome: int) -> None:
        """
        The user cannot make the rest of its oldest response: the memory is gone.

        @param syndrome: of a NAK.
        """
        if self._makes:
            self._refuse(syndrome, self._makes[0].at)

    def pending(self) -> bool:
        """
        @return: whether L{outputs} has something to send.
        """
        if self._ready or (self._again and self._mayMake() and not self._dead):
            return True
        if self._makes or self._again:
            return not self._dead and (self._mayResume() or self._mayAcknowledge())
        return self.owes or self._later or self._nak is not None

    def _mayResume(self) -> bool:
        return self._full and self._held <= TRANSPORT_ANSWERS // 2

    def _mayAcknowledge(self) -> bool:
        # Whether a request before the oldest unanswered READ is owed an acknowledgement.
        return self.owes and bool(self._makes) and self._wanted < self._makes[0].start

    def outputs(self, budget: int, out: list[Packet], patient: bool = False) -> None:
        """
        Make packets of what may be sent now.

        @param budget: maximum.
        @param out: list to append them to.
        @param patient: whether an acknowledgement of a few packets may be deferred.
        """
        if not (self._ready or self._makes or self._again or self._later or self._full) and not self._nak:
            # Fast path: nothing but an acknowledgement, as usual.
            if self.owes and not (patient and self._expected - self._wanted < TRANSPORT_DEFERRED):
                self.owes = False
                header = AETH.pack(ACK << 24 | self._msn & PSN_MASK)
                out.append((ACKNOWLEDGE, 0, self._expected - 1 & PSN_MASK, header, b""))
            return
        budget += len(out)
        while len(out) < budget:
            if self._again:
                self._doAgain()
            if self._ready:
                self._sendAnswers(budget, out)
            elif self._makes or self._again:
                if not self._dead and self._mayAcknowledge():
                    first = self._makes[0]
                    # An ACK with a PSN in or behind the READ would acknowledge it without its
                    # response, and the requester would take that for a lost one (IBTA vol. 1
                    # 9.7.5.1.2).
                    self._acknowledge(ACK, first.start - 1, first.asked.msn - 1, out)
                    self._wanted = first.start
                    # Packets behind the READ may or may not have asked for one: it stays owed.
                break
            else:
                self._reply(out)
                break
        if self._mayResume():
            self._full = False
            self._user.resumed()

    def _reply(self, out: list[Packet]) -> None:
        # The user is ready for the request that it put off: a sequence NAK asks for it again,
        # without using up the requester's RNR retries.
        if self._later:
            self._later = False
            self._nak = NAK_SEQUENCE, self._expected
        if self._nak is not None:
            (syndrome, number), self._nak = self._nak, None
            self._acknowledge(syndrome, number, self._msn, out)
            # A NAK acknowledges all before its PSN, too (IBTA vol. 1 9.7.5.2).
            self.owes = False
        elif self.owes:
            self.owes = False
            self._acknowledge(ACK, self._expected - 1, self._msn, out)

    def _acknowledge(self, syndrome: int, number: int, msn: int, out: list[Packet]) -> None:
        header = AETH.pack(syndrome << 24 | msn & PSN_MASK)
        out.append((ACKNOWLEDGE, 0, number & PSN_MASK, header, b""))

    def _sendAnswers(self, budget: int, out: list[Packet]) -> None:
        ready, mtu = self._ready, self._terms.mtu
        while ready and len(out) < budget:
            answer, at, body = ready.popleft()
            asked = answer.asked
            if asked.code != READ_REQUEST:
                out.append((RESPONSE_TO[asked.code][0], 0, at & PSN_MASK, asked.header() + body, b""))
                answer.sent = at + 1
            else:
                end = min(at + packets(len(body), mtu), answer.end)
                stop = min(end, at + budget - len(out))
                answer.cut(at, stop, mtu, body, out)
                answer.sent = stop
                self._held -= len(body)
                if stop < end:
                    rest = memoryview(body)[(stop - at) * mtu :]
                    ready.appendleft((answer, stop, rest))
                    self._held += len(rest)
                    return
            # A response that was replaced meanwhile must not count as the request's.
            if answer.sent == answer.end and asked.answer is answer:
                asked.answer = None
                asked.isAnswered = asked.isAnswered or answer.end == asked.end

    def close(self) -> None:
        """
        Accept nothing any more; what is owed for executed requests is still sent.
        """
        self._dead = True
        self._makes.clear()
        self._again.clear()
