"""
READs of one stream, in both directions.

A requester of the core names no sink: it hands out what comes for its oldest READ.  So each READ gets a sink
STag here that stands for itself, with tagged offsets from 0, and each segment of a Read Response must
continue the oldest READ exactly.  The peer's Read Requests are kept until they are answered, in order
(RFC 5040 section 5.5): the response repeats their sink.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from attrs import define

from twisted_ib.hca.fabric.iwarp.protocol.terminate import (
    CATASTROPHIC_STREAM,
    TAGGED_BASE_BOUNDS,
    TAGGED_INVALID_STAG,
    UNEXPECTED_OPCODE,
    TerminationError,
)
from twisted_ib.hca.wire.opcodes import (
    READ_RESPONSE_FIRST,
    READ_RESPONSE_LAST,
    READ_RESPONSE_MIDDLE,
    READ_RESPONSE_ONLY,
)

#: Serial numbers of sinks: the upper 24 bits of an STag.
_SERIALS: Final = (1 << 24) - 1


@define
class _Outbound:
    # A READ that awaits its response.  The response to a silent one, a ready-to-receive message, is not
    # delivered.
    stag: int
    length: int
    isSilent: bool
    received: int = 0


class Reads:
    """
    The READs that are outstanding.

    @ivar ird: how many of the peer's are accepted at a time; its Read Requests beyond it end the stream.
    @ivar ord: how many of ours may be outstanding.
    @ivar inbound: the peer's Read Requests that are not answered yet, oldest first: each is its ULPDU, 46
        octets.
    """

    __slots__ = ("_key", "_outbound", "_serial", "inbound", "ird", "ord")

    def __init__(self, ird: int, ord: int, key: int) -> None:
        """
        @param key: the low octet of our sink STags, 8 bits.
        """
        self.ird = ird
        self.ord = ord
        self._key = key
        self._serial = 0
        self._outbound: deque[_Outbound] = deque()
        self.inbound: deque[bytes] = deque()

    @property
    def outstanding(self) -> int:
        """
        How many of our READs await their responses.
        """
        return len(self._outbound)

    def ask(self, length: int, isSilent: bool = False) -> int:
        """
        A READ is requested.

        @param isSilent: whether its response is consumed here.
        @return: its sink STag; or 0 if as many as C{ord} are outstanding.
        """
        if len(self._outbound) >= self.ord:
            return 0
        # STag 0 is nobody's (RFC 5040 has no rule; Linux siw uses none).
        self._serial = self._serial % _SERIALS + 1
        stag = self._serial << 8 | self._key
        self._outbound.append(_Outbound(stag, length, isSilent))
        return stag

    def responded(self, stag: int, offset: int, count: int, isLast: bool) -> int:
        """
        A segment of a Read Response came.

        @param offset: its tagged offset.
        @param count: octets of its payload.
        @return: the opcode of its record; or -1 if it is not to be delivered.
        @raise TerminationError: it does not continue our oldest READ, or is too long or too short.
        """
        if not self._outbound:
            raise TerminationError(UNEXPECTED_OPCODE, "a Read Response that answers no Read Request")
        read = self._outbound[0]
        if stag != read.stag:
            raise TerminationError(TAGGED_INVALID_STAG, f"STag {stag:#x} in place of {read.stag:#x}")
        begun, end = read.received, read.received + count
        isWhole = end == read.length
        # A segment without octets, with more to come, changes nothing.
        if offset != begun or end > read.length or (isLast is not isWhole and (count or isLast)):
            part = "the last" if isLast else "not the last"
            detail = f"octets {offset} to {offset + count}, {part}, of a READ of {read.length} at {begun}"
            raise TerminationError(TAGGED_BASE_BOUNDS, detail)
        read.received = end
        if not isLast:
            if not count:
                return -1
            return READ_RESPONSE_MIDDLE if begun else READ_RESPONSE_FIRST
        self._outbound.popleft()
        if read.isSilent:
            return -1
        return READ_RESPONSE_LAST if begun else READ_RESPONSE_ONLY

    def requested(self, request: bytes) -> None:
        """
        A Read Request of the peer came.

        @param request: its ULPDU.
        @raise TerminationError: there are more than C{ird}.
        """
        if len(self.inbound) >= self.ird:
            # As Linux siw_qp_rx.c, siw_init_rresp().
            raise TerminationError(CATASTROPHIC_STREAM, f"more than {self.ird} READs at a time")
        self.inbound.append(request)
