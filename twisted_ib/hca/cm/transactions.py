"""
Transaction ids of CM messages that travel as MADs.

The side that begins an exchange chooses its transaction id; every message of the exchange repeats it, from
either side (IBTA vol. 1 12.6, 13.4.6.4; Linux C{drivers/infiniband/core/cm.c}). Ours are made from our
communication id; those of peers are remembered.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from twisted_ib.hca.wire.cm.messages import (
    APR,
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

if TYPE_CHECKING:
    from twisted_ib.structs import Packed


#: Exchanges begun by peers whose transaction ids are remembered; over it the oldest is forgotten. A wrong id
#: does little harm: Linux matches CM messages by communication ids (cm.c cm_acquire_id).
PACKET_TRANSACTIONS = 1024

#: Local and remote communication id; the octet whose top two bits name the message that an MRA or REJ
#: answers.
_IDS: Final[Packed[tuple[int, int, int]]] = Struct(">IIB")
_KIND_SHIFT: Final = 6
_AGENT_BITS: Final = 32

#: Messages that begin an exchange.
_BEGINNINGS: Final = frozenset((REQ.attribute, DREQ.attribute, LAP.attribute, SIDR_REQ.attribute))
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
    The transaction ids of one HCA's CM messages.
    """

    def __init__(self, randomBits: Callable[[int], int]) -> None:
        """
        @param randomBits: returns that many random bits.
        """
        # Linux keeps its agent number in the upper half (ib_mad.h), the communication id in the lower:
        # random here, so that a restarted process has other ids.
        self._agent = randomBits(_AGENT_BITS) << 32
        #: (peer's address, message that began it, peer's communication id) -> transaction id.
        self._known: OrderedDict[tuple[str, int, int], int] = OrderedDict()

    def of(self, address: str, attribute: int, body: bytes) -> int:
        """
        The transaction id of a message that we send.

        @param address: the peer's, whose exchange it may belong to.
        @param body: 232 octets.
        @return: 64 bits.
        """
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

    def remember(self, address: str, attribute: int, buffer: Any, start: int, transaction: int) -> None:
        """
        A message of a peer arrived; if it begins an exchange, its transaction id is remembered.

        @param address: the peer's.
        @param buffer: holds its 232 octets, from C{start}.
        """
        if attribute not in _BEGINNINGS:
            return
        known = self._known
        key = address, attribute, _IDS.unpack_from(buffer, start)[0]
        # A peer may open several exchanges under one id (REQ, then LAP, then DREQ), so the attribute is in
        # the key.
        known[key] = transaction
        known.move_to_end(key)
        if len(known) > PACKET_TRANSACTIONS:
            known.popitem(False)
