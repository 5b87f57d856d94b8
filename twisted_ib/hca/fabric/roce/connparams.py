"""
Parameters of a connection over packets: from the attributes of a queue pair, or from the REQ and REP.

The starting PSN of a message is the one that its sender expects first (IBTA vol. 1 12.7.31). Path MTU, retry
count and ACK timeout are the REQ's; the active side adds the target ACK delay of the REP (12.7.34, 12.7.33).
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import attrs

from twisted_ib import limits
from twisted_ib.hca.base.attributes import ACK_DELAY_CODE, MTU_CODES
from twisted_ib.hca.base.states import QPType
from twisted_ib.hca.base.timers import ackSeconds, timeoutSeconds
from twisted_ib.hca.connection import ConnectReply, ConnectRequest
from twisted_ib.hca.connection.rdmacm import gidText
from twisted_ib.hca.transport.parameters import ConnectionParameters
from twisted_ib.hca.wire.grh import HOP_LIMIT
from twisted_ib.hca.wire.opcodes import MTU_BYTES
from twisted_ib.hca.wire.rocev2 import (
    LONG_MTU_BYTES,
    LONG_MTU_CODES,
    LOWEST_PORT,
    PORT,
    flowLabel,
    sourcePort,
)

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import BoundQueuePair
    from twisted_ib.hca.fabric.roce.packet import PacketFabric
    from twisted_ib.structs import Packed


#: The longest time from a CM message to its answer that is used as a round trip sample, in seconds.
PACKET_ROUND_TRIP_SECONDS = 3.0
#: The local ACK timeout of our REQs, a timeout code: 0.5 s. Linux computes the same for RoCE (cm.c
#: cm_ack_timeout).
PACKET_ACK_TIMEOUT_CODE = 17
#: Source ports of all that a device accepts from peers that say theirs: it says its own before they have
#: shown that they hear the answer, so requests of strangers open no more.  A power of two.
PACKET_ACCEPT_PORTS = 16

_PSN_BITS: Final = 24
_LABEL_BITS: Final = 20
_HIGHEST_PORT: Final = 0xFFFF
_LONGEST_MTU: Final = max(MTU_BYTES)
_ALL_CODES: Final = MTU_CODES | LONG_MTU_CODES
#: The queue pair number of a REQ, above the responder resources (Linux ibta_vol1_c12.h, table 106).
_NUMBER: Final[Packed[tuple[int]]] = Struct(">I")
_NUMBER_OFFSET: Final = 32
_PROPOSAL: Final = Struct(">IHHBBd?")
#: A REQ that is sent later than this after it was made, in seconds, is a retransmission.
_AT_ONCE: Final = 0.05


def _field(index: int) -> Any:
    return property(lambda self: _PROPOSAL.unpack(self)[index])


def _said(message: ConnectRequest | ConnectReply) -> int:
    # Others may have anything in the unused field, as the number of their queue pair: were it believed,
    # nothing of theirs would be heard.
    port = message.localEECN
    isPort = port == PORT or LOWEST_PORT <= port <= _HIGHEST_PORT
    return port if isPort and port != message.localQPN else 0


def _longer(message: ConnectRequest | ConnectReply) -> int:
    # The code of a long path MTU, 0 for none; of no meaning without a port.  Q_Keys are of datagrams (IBTA
    # vol. 1 12.6.5, 12.6.8): Linux cm.c and older ends of this package have 0 there, and look at none.
    return message.localQKey if message.localQKey in LONG_MTU_BYTES else 0


class Proposal(bytes):
    """
    The parameters announced in our request or reply.  They are octets, since anybody can have many replies
    made.
    """

    __slots__ = ()

    @classmethod
    def of(
        cls, expectedPSN: int, mtu: int, port: int, peers: int, retries: int, when: float, isAwaited: bool
    ) -> Proposal:
        """
        @param expectedPSN: the starting PSN, that of the peer's first packet.
        @param mtu: path MTU code, perhaps a long one: what this end has, and then what both have.
        @param port: our UDP source port; with none of the peer's, the one to be asked of the link.
        @param peers: the peer's; 0 if it says none.
        @param retries: retry count.
        @param when: the time, seconds.
        @param isAwaited: whether its answer gives a round trip sample: it was sent once, and the queue pair
            is connected when the answer arrives.
        """
        return cls(_PROPOSAL.pack(expectedPSN, port, peers, mtu, retries, when, isAwaited))

    expectedPSN: int = _field(0)
    port: int = _field(1)
    peerPort: int = _field(2)
    retries: int = _field(4)
    when: float = _field(5)
    isAwaited: bool = _field(6)
    _mtu: int = _field(3)

    @property
    def mtu(self) -> int:
        """
        IBTA's code of the path MTU.
        """
        return min(self._mtu, _LONGEST_MTU)

    @property
    def agreed(self) -> int | None:
        """
        The long path MTU in bytes, if both ends have said one.
        """
        return LONG_MTU_BYTES.get(self._mtu) if self.peerPort else None

    def answered(self, reply: ConnectReply) -> Proposal:
        """
        @return: the same, with what is in the peer's answer.
        """
        expectedPSN, port, _, mtu, *others = _PROPOSAL.unpack(self)
        mtu = min(mtu, max(_longer(reply), _LONGEST_MTU))
        return Proposal(_PROPOSAL.pack(expectedPSN, port, _said(reply), mtu, *others))

    def roundTrip(self, now: float) -> float | None:
        """
        The round trip time from this message to its answer.

        @param now: when the answer arrived, seconds.
        @return: seconds; L{None} if the answer may be to another copy, or took so long that one was lost.
        """
        seconds = now - self.when
        return seconds if self.isAwaited and 0 <= seconds <= PACKET_ROUND_TRIP_SECONDS else None


def propose(fabric: PacketFabric, remote: int, request: ConnectRequest) -> None:
    """
    Fill in what packets need in a request, and remember it at the queue pair that it names.

    @param remote: the peer's GID.
    @param request: to be changed.
    """
    # Random: an off-path sender must guess it to inject a packet (RFC 6528 for TCP). Linux cma.c chooses it
    # at random too.
    request.startingPSN = fabric.randomBits(_PSN_BITS)
    # Hosts see the REQ that Linux's HCAs without a vendor send.
    request.vendorID = 0
    mtu = _ALL_CODES[fabric.link.pathMTUTo(gidText(remote))]
    request.pathMTU = min(mtu, _LONGEST_MTU)
    request.localQKey = mtu if mtu > _LONGEST_MTU else 0
    # It selects the UDP source port. Linux cma.c cma_get_roce_udp_flow_label computes it from the ports; any
    # value will do.
    label = fabric.randomBits(_LABEL_BITS)
    request.localEECN = fabric.link.sourcePort(sourcePort(label))
    request.primaryPath = attrs.evolve(
        request.primaryPath,
        localGID=fabric.gid.to_bytes(16, "big"),
        remoteGID=remote.to_bytes(16, "big"),
        hopLimit=HOP_LIMIT,
        flowLabel=label,
        localACKTimeout=PACKET_ACK_TIMEOUT_CODE,
    )
    psn, retries = request.startingPSN, request.retryCount
    proposal = Proposal.of(psn, mtu, request.localEECN, 0, retries, fabric.clock(), True)
    _remember(fabric, request.localQPN, proposal)


def answer(fabric: PacketFabric, remote: str, reply: ConnectReply, request: ConnectRequest) -> Proposal:
    """
    The same for a reply.

    @param remote: the peer's address.
    @param reply: to be changed.
    @return: the proposal, for a queue pair that may not exist yet.
    """
    # As in the request, whatever that asked for.
    request.vendorID = reply.vendorID = 0
    reply.startingPSN = fabric.randomBits(_PSN_BITS)
    reply.targetACKDelay = ACK_DELAY_CODE
    label = request.primaryPath.flowLabel or flowLabel(reply.localQPN, request.localQPN)
    peers = _said(request)
    mtu = request.pathMTU if request.pathMTU in MTU_BYTES else 0
    if peers:
        few = fabric.acceptLabel ^ label % PACKET_ACCEPT_PORTS
        port = reply.localEECN = fabric.link.sourcePort(sourcePort(few))
        longer = _longer(request) if mtu == _LONGEST_MTU else 0
        if longer:
            longer = min(longer, LONG_MTU_CODES.get(fabric.longRouteMTUTo(remote), 0))
        reply.localQKey = longer
        mtu = longer or mtu
    else:
        # Others see the REP that Linux sends.  The REQ's flow label, so that both directions have the same
        # source port; opened when the queue pair is connected.
        port = sourcePort(label)
    isAwaited = reply.localQPN not in fabric.owner.queuePairs
    retries = request.retryCount
    proposal = Proposal.of(reply.startingPSN, mtu, port, peers, retries, fabric.clock(), isAwaited)
    _remember(fabric, reply.localQPN, proposal)
    return proposal


def answered(fabric: PacketFabric, reply: ConnectReply, number: int) -> None:
    """
    A request of a queue pair is accepted: keep the port that the reply says.
    """
    queuePair = fabric.owner.queuePairs.get(number)
    if queuePair is not None and queuePair.proposal is not None:
        queuePair.proposal = queuePair.proposal.answered(reply)


def sending(fabric: PacketFabric, body: bytes) -> None:
    """
    A REQ is being sent, perhaps again.

    @param body: of the message.
    """
    (first,) = _NUMBER.unpack_from(body, _NUMBER_OFFSET)
    queuePair = fabric.owner.queuePairs.get(first >> 8)
    own: Proposal | None = None if queuePair is None else queuePair.proposal
    # RFC 6298 section 3 (Karn's algorithm): the answer to a retransmitted message gives no round trip
    # sample.
    if own is not None and own.isAwaited and fabric.clock() - own.when > _AT_ONCE:
        queuePair.proposal = Proposal(own[:-1] + b"\0")


def _remember(fabric: PacketFabric, number: int, proposal: Proposal) -> None:
    queuePair = fabric.owner.queuePairs.get(number)
    if queuePair is not None:
        queuePair.proposal = proposal


def connectionParameters(
    fabric: PacketFabric, queuePair: BoundQueuePair, message: ConnectRequest | ConnectReply | None
) -> ConnectionParameters:
    """
    @param message: the peer's request or reply; L{None} if the queue pair was given attributes.
    @return: the parameters of its connection.
    """
    if message is not None:
        return _agreed(fabric, queuePair, message)
    told = queuePair.attributes or {}
    own: Proposal | None = queuePair.proposal
    code = told.get("path_mtu", _LONGEST_MTU)
    # A program may have set another than the connection manager has told it.
    agreed = None if own is None or code != own.mtu else _long(queuePair)
    return ConnectionParameters(
        mtu=agreed or MTU_BYTES[code],
        firstPSN=told.get("sq_psn", 0),
        expectedPSN=told.get("rq_psn", 0),
        retries=told.get("retry_cnt", 0),
        rnrRetries=told.get("rnr_retry", 0),
        timeout=ackSeconds(told.get("timeout", 0)),
        minRNRTimer=told.get("min_rnr_timer", 0),
        reads=told.get("max_rd_atomic", 0),
        peerReads=told.get("max_dest_rd_atomic", 0),
        roundTrip=None if own is None else own.roundTrip(fabric.clock()),
    )


def _long(queuePair: BoundQueuePair) -> int | None:
    # UC acknowledges nothing, so that no bound of bytes on their way would hold.
    own: Proposal | None = queuePair.proposal
    return None if own is None or queuePair.type != QPType.RC else own.agreed


def _agreed(
    fabric: PacketFabric, queuePair: BoundQueuePair, message: ConnectRequest | ConnectReply
) -> ConnectionParameters:
    own: Proposal | None = queuePair.proposal
    expected, mtu, retries, roundTrip = 0, _LONGEST_MTU, 0, None
    if own is not None:
        expected, mtu, retries = own.expectedPSN, own.mtu, own.retries
        roundTrip = own.roundTrip(fabric.clock())
    return ConnectionParameters(
        mtu=_long(queuePair) or MTU_BYTES.get(mtu, fabric.pathMTU),
        firstPSN=message.startingPSN,
        expectedPSN=expected,
        retries=retries,
        rnrRetries=message.rnrRetryCount,
        timeout=timeoutSeconds(limits.PACKET_STREAM_TIMEOUT_CODE),
        minRNRTimer=queuePair.minRNRTimer,
        # IBTA vol. 1 12.7: what the peer serves limits our outstanding READs.
        reads=message.responderResources,
        peerReads=limits.READS,
        roundTrip=roundTrip,
    )
