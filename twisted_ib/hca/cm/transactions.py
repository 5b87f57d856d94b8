"""
CM messages as MADs on queue pair 1: transaction ids, and the queue of unsolicited requests.

The side that begins an exchange chooses its transaction id; every message of the exchange repeats it, from
either side (IBTA vol. 1 12.6, 13.4.6.4; Linux C{drivers/infiniband/core/cm.c}). Ours are made from our
communication id; those of peers are remembered.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from struct import Struct
from typing import Any, Final

from twisted_ib.hca.wire.cm import (
    APR,
    BODY_BYTES,
    DREP,
    DREQ,
    LAP,
    MRA,
    REJ,
    REP,
    REQ,
    SIDR_REP,
    SIDR_REQ,
    MessageKind,
)
from twisted_ib.hca.wire.mad.classes import COMMUNICATION
from twisted_ib.hca.wire.mad.mad import CM_VERSION, HEADER_BYTES, MAD_BYTES, SEND

#: Exchanges begun by peers whose transaction ids are remembered; over it the oldest is forgotten. A wrong id
#: does little harm: Linux matches CM messages by communication ids (cm.c cm_acquire_id).
PACKET_TRANSACTIONS = 1024
#: Unsolicited requests (REQ, SIDR_REQ) that are queued, over which the oldest is dropped; and how many are
#: processed before the link is polled again.
PACKET_REQUESTS = 512
PACKET_REQUESTS_PER_TURN = 32

#: Base version, class, class version, method; status, class specific; transaction; attribute,
#: reserved, modifier.
_HEADER: Final = Struct(">BBBBHHQHHI")
_BASE_VERSION: Final = 1
#: Local and remote communication id; the octet whose top two bits name the message that an MRA or REJ
#: answers.
_IDS: Final = Struct(">IIB")
_KIND_SHIFT: Final = 6
_AGENT_BITS: Final = 32

#: Messages that begin an exchange.
_BEGINNINGS: Final = frozenset((REQ.attribute, DREQ.attribute, LAP.attribute, SIDR_REQ.attribute))
#: Messages that a source without a connection may send.
_QUESTIONS: Final = frozenset((REQ.attribute, SIDR_REQ.attribute))
#: Response -> the message that began its exchange.
_ANSWERS: Final = {
    REP.attribute: REQ.attribute,
    DREP.attribute: DREQ.attribute,
    APR.attribute: LAP.attribute,
    SIDR_REP.attribute: SIDR_REQ.attribute,
}
#: Message kind of an MRA or REJ -> the message that began the exchange. An MRA or REJ about a REP belongs to
#: our own REQ's exchange, so REP is absent; kind 2 is a LAP in an MRA, but no message at all in a REJ.
_ABOUT: Final = {MessageKind.REQ.value: REQ.attribute}
_ABOUT_MRA: Final = {**_ABOUT, MessageKind.OTHER.value: LAP.attribute}


class CMTransactions:
    """
    Queue pair 1 of one HCA.

    Anybody can send REQs and SIDR_REQs, so they are queued until the rest of a batch is processed: a flood
    of them does not delay established connections. Under overload the newest is answered first.

    @ivar questions: the queued requests: source, attribute, body, transaction id.
    """

    __slots__ = ("_agent", "_known", "_owner", "_pathTo", "questions")

    def __init__(
        self,
        owner: Any,
        randomBits: Callable[[int], int],
        pathTo: Callable[[Any], Any] = lambda peer: peer,
    ) -> None:
        """
        @param owner: an L{IFabricOwner<twisted_ib.hca.base.interfaces.IFabricOwner>}, which receives the
            messages.
        @param randomBits: returns that many random bits.
        @param pathTo: returns the path to the source of a message.
        """
        self._owner = owner
        self._pathTo = pathTo
        # Linux keeps its agent number in the upper half (ib_mad.h), the communication id in the lower:
        # random here, so that a restarted process has other ids.
        self._agent = randomBits(_AGENT_BITS) << 32
        #: (peer's address, message that began it, peer's communication id) -> transaction id.
        self._known: OrderedDict[tuple[str, int, int], int] = OrderedDict()
        self.questions: deque[tuple[Any, int, bytes, int]] = deque(maxlen=PACKET_REQUESTS)

    def wrap(self, address: str, attribute: int, body: bytes) -> bytes:
        """
        Put a message into a MAD.

        @param address: the peer's, whose exchange it may belong to.
        @param body: 232 octets.
        @return: 256 octets.
        """
        transaction = self._transactionOf(address, attribute, body)
        head = _BASE_VERSION, COMMUNICATION, CM_VERSION, SEND
        return _HEADER.pack(*head, 0, 0, transaction, attribute, 0, 0) + body

    def _transactionOf(self, address: str, attribute: int, body: bytes) -> int:
        local, remote, octet = _IDS.unpack_from(body)
        exchange = _ANSWERS.get(attribute)
        if attribute == REJ.attribute:
            exchange = _ABOUT.get(octet >> _KIND_SHIFT)
        elif attribute == MRA.attribute:
            exchange = _ABOUT_MRA.get(octet >> _KIND_SHIFT)
        if exchange is None:
            return self._agent | int(local)
        # A SIDR message has one request id, at the offset of the local communication id, and both sides use
        # it.
        asked: int = local if exchange == SIDR_REQ.attribute else remote
        return self._known.get((address, exchange, asked), asked)

    def received(self, peer: Any, buffer: Any, start: int, stop: int) -> None:
        """
        A datagram arrived for queue pair 1.

        @param peer: its source, for C{pathTo}.
        @param buffer: holds the MAD; valid during this call only.
        """
        # IBTA vol. 1 13.4: every MAD has 256 octets, and queue pair 1 accepts nothing else.
        if stop - start != MAD_BYTES:
            self._owner.count("management_malformed")
            return
        base, class_, version, method, _, _, transaction, attribute, _, _ = _HEADER.unpack_from(buffer, start)
        if base != _BASE_VERSION:
            self._owner.count("management_malformed")
        # RoCE has neither subnet manager nor SA, so only connection management is served; Linux mad.c
        # validate_mad drops CM MADs with other methods than Send too.
        elif (class_, version, method) != (COMMUNICATION, CM_VERSION, SEND):
            self._owner.count("management_unsupported")
        else:
            body = bytes(buffer[start + HEADER_BYTES : stop])
            if attribute in _QUESTIONS:
                questions = self.questions
                # deque(maxlen) drops from the other end when full: the oldest, by now given up or about to
                # be repeated.
                if len(questions) == questions.maxlen:
                    self._owner.count("management_dropped")
                questions.append((peer, attribute, body, transaction))
                return
            path = self._pathTo(peer)
            if attribute in _BEGINNINGS:
                self._remember(path.peer.address, attribute, body, transaction)
            self._owner.managementReceived(path, attribute, body, 0, BODY_BYTES)

    def answer(self) -> int:
        """
        Process some of the queued requests.

        @return: how many.
        """
        questions = self.questions
        left = len(questions)
        count = min(left, PACKET_REQUESTS_PER_TURN)
        for _ in range(count):
            # In order if all can be answered; else last in, first out: the senders of the oldest have timed
            # out or will retransmit, and their answers would be wasted.
            peer, attribute, body, transaction = questions.popleft() if count == left else questions.pop()
            path = self._pathTo(peer)
            self._remember(path.peer.address, attribute, body, transaction)
            self._owner.managementReceived(path, attribute, body, 0, BODY_BYTES)
        return count

    def _remember(self, address: str, attribute: int, body: bytes, transaction: int) -> None:
        known = self._known
        key = address, attribute, _IDS.unpack_from(body)[0]
        # A peer may open several exchanges under one id (REQ, then LAP, then DREQ), so the attribute is in
        # the key.
        known[key] = transaction
        known.move_to_end(key)
        if len(known) > PACKET_TRANSACTIONS:
            known.popitem(False)


__all__ = ["CMTransactions"]
