"""
What a connection over packets needs to know: from the attributes that a program gives to a queue pair,
or from the messages by which two ends have agreed.

The packet number that a side puts into its message is the one that it expects first (IBTA vol. 1
12.7.31); the path MTU and the retries are the REQ's; how long to wait for an acknowledgement is the
REQ's too, and at the active side longer by what the REP says (12.7.34, 12.7.33).
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final

import attrs

from twisted_ib import limits
from twisted_ib.hca.base.attributes import ACK_DELAY_CODE, MTU_CODES
from twisted_ib.hca.base.timers import timeoutSeconds
from twisted_ib.hca.transport.parameters import ConnectionParameters
from twisted_ib.hca.wire.cm import REP, REQ
from twisted_ib.hca.wire.cm.rdmacm import gidText
from twisted_ib.hca.wire.opcodes import MTU_BYTES

#: The longest time from a message of connection management to its answer that counts as a round trip,
#: in seconds.
PACKET_ROUND_TRIP_SECONDS = 3.0
#: What a REQ of ours says of the time to an acknowledgement, a timeout code: 0.5 s.
PACKET_ACK_TIMEOUT_CODE = 17

_HOP_LIMIT: Final = 64
_PSN_BITS: Final = 24
_LABEL_BITS: Final = 20
_LONGEST_MTU: Final = max(MTU_BYTES)
#: Where a REQ has the queue pair number, above another octet.
_NUMBER: Final = Struct(">I")
_NUMBER_OFFSET: Final = 32
#: A REQ leaves so soon, in seconds, when it is sent first.
_AT_ONCE: Final = 0.05


@attrs.frozen
class Proposal:
    """
    What this side has said in its REQ or REP.

    @ivar expectedPSN: The packet number to come first.
    @ivar mtu: The code of the path MTU.
    @ivar label: The flow label.
    @ivar retries: How often to repeat what is not acknowledged.
    @ivar when: The time, seconds.
    @ivar isAwaited: Whether it was said once, and the queue pair is connected when it is answered.
    """

    expectedPSN: int
    mtu: int
    label: int
    retries: int
    when: float
    isAwaited: bool

    def roundTrip(self, now: float) -> float | None:
        """
        @param now: When the answer has come, seconds.
        @return: How long that took; L{None} if it may be the answer to something else, or so long that
            something was lost.
        """
        seconds = now - self.when
        return seconds if self.isAwaited and 0 <= seconds <= PACKET_ROUND_TRIP_SECONDS else None


def propose(fabric: Any, remote: int, request: REQ) -> None:
    """
    Say in a REQ what packets need, and remember it on the queue pair that it names.

    @param fabric: The fabric of packets.
    @param remote: The peer's GID.
    @param request: To be changed.
    """
    request.startingPSN = fabric.randomBits(_PSN_BITS)
    request.pathMTU = MTU_CODES[fabric.link.pathMTUTo(gidText(remote))]
    label = fabric.randomBits(_LABEL_BITS)
    request.primaryPath = attrs.evolve(
        request.primaryPath,
        localGID=fabric.gid.to_bytes(16, "big"),
        remoteGID=remote.to_bytes(16, "big"),
        hopLimit=_HOP_LIMIT,
        flowLabel=label,
        localACKTimeout=PACKET_ACK_TIMEOUT_CODE,
    )
    retries = request.retryCount
    _remember(
        fabric,
        request.localQPN,
        Proposal(request.startingPSN, request.pathMTU, label, retries, fabric.clock(), True),
    )


def answer(fabric: Any, reply: REP, request: REQ) -> Proposal:
    """
    The same in a REP.

    @param reply: To be changed.
    @param request: What it answers.
    @return: What it says, for a queue pair that is not there yet.
    """
    reply.startingPSN = fabric.randomBits(_PSN_BITS)
    reply.targetACKDelay = ACK_DELAY_CODE
    label, retries = request.primaryPath.flowLabel, request.retryCount
    isAwaited = reply.localQPN not in fabric.owner.queuePairs
    proposal = Proposal(reply.startingPSN, request.pathMTU, label, retries, fabric.clock(), isAwaited)
    _remember(fabric, reply.localQPN, proposal)
    return proposal


def sending(fabric: Any, body: bytes) -> None:
    """
    A REQ is sent, perhaps again: then nobody knows which one is answered (RFC 6298 section 3).

    @param body: Of the message.
    """
    (first,) = _NUMBER.unpack_from(body, _NUMBER_OFFSET)
    queuePair = fabric.owner.queuePairs.get(first >> 8)
    own: Proposal | None = None if queuePair is None else queuePair.proposal
    if own is not None and own.isAwaited and fabric.clock() - own.when > _AT_ONCE:
        queuePair.proposal = attrs.evolve(own, isAwaited=False)


def _remember(fabric: Any, number: int, proposal: Proposal) -> None:
    """
    Keep what was said with the queue pair that it was said of, if there is one.
    """
    queuePair = fabric.owner.queuePairs.get(number)
    if queuePair is not None:
        queuePair.proposal = proposal


def termsOf(fabric: Any, queuePair: Any, message: REQ | REP | None) -> ConnectionParameters:
    """
    @param message: What the peer has said, if the queue pair was not given attributes.
    @return: What its connection keeps to.
    """
    if message is not None:
        return _agreed(fabric, queuePair, message)
    told = queuePair.attributes or {}
    own: Proposal | None = queuePair.proposal
    return ConnectionParameters(
        mtu=MTU_BYTES[told.get("path_mtu", _LONGEST_MTU)],
        firstPSN=told.get("sq_psn", 0),
        expectedPSN=told.get("rq_psn", 0),
        retries=told.get("retry_cnt", 0),
        rnrRetries=told.get("rnr_retry", 0),
        timeout=timeoutSeconds(told.get("timeout", 0)),
        minRNRTimer=told.get("min_rnr_timer", 0),
        reads=told.get("max_rd_atomic", 0),
        peerReads=told.get("max_dest_rd_atomic", 0),
        roundTrip=None if own is None else own.roundTrip(fabric.clock()),
    )


def _agreed(fabric: Any, queuePair: Any, message: REQ | REP) -> ConnectionParameters:
    own: Proposal | None = queuePair.proposal
    expected, mtu, retries, roundTrip = 0, _LONGEST_MTU, 0, None
    if own is not None:
        expected, mtu, retries = own.expectedPSN, own.mtu, own.retries
        roundTrip = own.roundTrip(fabric.clock())
    return ConnectionParameters(
        mtu=MTU_BYTES.get(mtu, fabric.pathMTU),
        firstPSN=message.startingPSN,
        expectedPSN=expected,
        retries=retries,
        rnrRetries=message.rnrRetryCount,
        timeout=timeoutSeconds(limits.PACKET_STREAM_TIMEOUT_CODE),
        minRNRTimer=queuePair.minRNRTimer,
        reads=message.responderResources,
        peerReads=limits.READS,
        roundTrip=roundTrip,
    )
