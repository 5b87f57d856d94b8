"""
Queue pair 1 on a fabric of packets: connection management in management datagrams.

Who begins an exchange chooses its transaction, and what belongs to the exchange repeats it, whoever
sends it (IBTA vol. 1 12.6, 13.4.6.4; Linux C{drivers/infiniband/core/cm.c}): ours are made of our
communication id, those of others are remembered.
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

#: Exchanges of peers by whose transaction they are answered; the oldest are forgotten.
PACKET_TRANSACTIONS = 1024
#: Requests for something new that wait until the rest is taken, over which the oldest goes; and how many
#: are answered before the next look at what has arrived.
PACKET_QUESTIONS = 512
PACKET_QUESTIONS_PER_TURN = 32

#: Base version, class, class version, method; status, class specific; transaction; attribute,
#: reserved, modifier.
_HEADER: Final = Struct(">BBBBHHQHHI")
_BASE_VERSION: Final = 1
#: Local and remote communication id, and the octet that says what a MRA or REJ is about.
_IDS: Final = Struct(">IIB")
_KIND_SHIFT: Final = 6
_AGENT_BITS: Final = 32

#: What begins an exchange.
_BEGINNINGS: Final = frozenset((REQ.attribute, DREQ.attribute, LAP.attribute, SIDR_REQ.attribute))
#: What somebody may send who is not known.
_QUESTIONS: Final = frozenset((REQ.attribute, SIDR_REQ.attribute))
#: What is always an answer -> what begins the exchange.
_ANSWERS: Final = {
    REP.attribute: REQ.attribute,
    DREP.attribute: DREQ.attribute,
    APR.attribute: LAP.attribute,
    SIDR_REP.attribute: SIDR_REQ.attribute,
}
#: What a MRA or a REJ may be about -> what begins the exchange, if it answers that.
_ABOUT: Final = {MessageKind.REQ.value: REQ.attribute}
_ABOUT_MRA: Final = {**_ABOUT, MessageKind.OTHER.value: LAP.attribute}


class CMTransactions:
    """
    Queue pair 1 of one HCA.

    What begins something new waits until the rest of what has arrived is taken, as anybody can send it:
    so a flood of it does not keep those waiting who are connected.  When there is more of it than can be
    answered the latest is answered first, for whoever has sent the oldest has given it up or will repeat
    it.

    @ivar questions: What waits: from whom, attribute, body, transaction.
    """

    __slots__ = ("_agent", "_known", "_owner", "_pathTo", "questions")

    def __init__(
        self,
        owner: Any,
        randomBits: Callable[[int], int],
        pathTo: Callable[[Any], Any] = lambda peer: peer,
    ) -> None:
        """
        @param owner: Who takes the messages: an L{IFabricOwner<twisted_ib.hca.base.interfaces.IFabricOwner>}.
        @param randomBits: Gives that many random bits.
        @param pathTo: Gives the path to who has sent something.
        """
        self._owner = owner
        self._pathTo = pathTo
        self._agent = randomBits(_AGENT_BITS) << 32
        #: Address of the peer, exchange, the peer's communication id -> transaction.
        self._known: OrderedDict[tuple[str, int, int], int] = OrderedDict()
        self.questions: deque[tuple[Any, int, bytes, int]] = deque(maxlen=PACKET_QUESTIONS)

    def wrap(self, address: str, attribute: int, body: bytes) -> bytes:
        """
        Put a message into a MAD.

        @param address: Of the peer.
        @param attribute: What it is.
        @param body: Its 232 octets.
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
        asked: int = local if exchange == SIDR_REQ.attribute else remote
        return self._known.get((address, exchange, asked), asked)

    def received(self, peer: Any, buffer: Any, start: int, stop: int) -> None:
        """
        A datagram came for queue pair 1.

        @param peer: The sender, whom C{pathTo} finds the way to.
        @param buffer: What has the MAD; valid during this call only.
        """
        if stop - start != MAD_BYTES:
            self._owner.count("management_malformed")
            return
        base, class_, version, method, _, _, transaction, attribute, _, _ = _HEADER.unpack_from(buffer, start)
        if base != _BASE_VERSION:
            self._owner.count("management_malformed")
        elif (class_, version, method) != (COMMUNICATION, CM_VERSION, SEND):
            self._owner.count("management_unsupported")
        else:
            body = bytes(buffer[start + HEADER_BYTES : stop])
            if attribute in _QUESTIONS:
                questions = self.questions
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
        Hand on some of what begins something new.

        @return: How much of it.
        """
        questions = self.questions
        left = len(questions)
        count = min(left, PACKET_QUESTIONS_PER_TURN)
        for _ in range(count):
            peer, attribute, body, transaction = questions.popleft() if count == left else questions.pop()
            path = self._pathTo(peer)
            self._remember(path.peer.address, attribute, body, transaction)
            self._owner.managementReceived(path, attribute, body, 0, BODY_BYTES)
        return count

    def _remember(self, address: str, attribute: int, body: bytes, transaction: int) -> None:
        known = self._known
        key = address, attribute, _IDS.unpack_from(body)[0]
        known[key] = transaction
        known.move_to_end(key)
        if len(known) > PACKET_TRANSACTIONS:
            known.popitem(False)


__all__ = ["CMTransactions"]
