"""
Connection setup of messages: REQ and REP with the RDMA-CM header and the users' private data.

Service ids are those of C{RDMA_PS_TCP}, so that any librdmacm program can connect or be connected to (IBTA
vol. 1 annex A11).  Other values are such programs' defaults; RNR retries are unlimited (rnr_retry 7).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from twisted_ib import limits
from twisted_ib.hca.base.traits import IB_PRIVATE_BYTES
from twisted_ib.hca.connection import ConnectReply, ConnectRequest
from twisted_ib.hca.connection.rdmacm import HEADER_BYTES, PortSpace, RDMACMHeader, packHeader
from twisted_ib.hca.connection.request import ANY_PATH, replyLike, requestLike
from twisted_ib.hca.memory.access import REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE
from twisted_ib.hca.services.work import changedBy
from twisted_ib.internet.addressing.addresses import Address, End

if TYPE_CHECKING:
    from twisted_ib.hca.connection.interfaces import IConnection
    from twisted_ib.hca.queues.requests import Attributes
    from twisted_ib.rdma.transport import RDMATransport

PORT_SPACE = int(PortSpace.TCP)
#: The vendor id of a side whose messages may come several in a SEND (L{twisted_ib.rdma.gathering}), for
#: Enhanced Connection Establishment (rdma-core C{ibv_set_ece(3)}): a made-up OUI, with the bit of local
#: administration.
GATHERS = 0x024742
#: That of a side whose messages are too short for it.
SINGLE = 0x024743
#: See L{twisted_ib.sdp.handshake.Handshake}; the other side may be a program of verbs, which needs an RTU.
UNCONFIRMED = frozenset({GATHERS, SINGLE})

#: CM response timeout code: 0.54 s.  rdma_cm uses 20, which is 4.3 s (cma.c CMA_CM_RESPONSE_TIMEOUT).
_CM_RESPONSE_TIMEOUT = 17
#: The largest value of Max CM Retries, a 4-bit field (rdma_cm's too: cma.c CMA_MAX_CM_RETRIES).
_CM_RETRIES = 15
#: The largest value; for RNR it means without limit (IBTA vol. 1 9.7.5.2.8).
_RETRIES = 7
#: Local ACK Timeout code for a peer whose queue pair is not there: 67 ms.
_ACK_TIMEOUT = 14
#: The same over a fabric of packets, which loses some: 4.3 s, times the retries.  The transport itself
#: retransmits much earlier.
_PACKET_ACK_TIMEOUT = limits.PACKET_STREAM_TIMEOUT_CODE
#: RNR NAK timer code: 1.28 ms.  Each message sent in vain costs a copy, and a protocol that resumes reading
#: waits half of this on average.  Linux cm.c leaves 0, which means 655 ms.
_RNR_TIMER = 14
#: Path MTU code: 4096 bytes (IBTA vol. 1 12.7.28).
_MTU = 5
#: The fields of REQs up to the vendor id.
_REQUEST = (
    *(limits.RDMA_READS, limits.RDMA_READS, _RETRIES, _RETRIES, _CM_RESPONSE_TIMEOUT, _CM_RETRIES),
    *(False, False, 0, _MTU, ANY_PATH),
)
#: The peer's access rights, given an R_Key whose memory allows it too.  Linux cm.c grants READ and atomics
#: whenever responder resources are not 0 (cm_init_qp_init_attr).
_ACCESS = REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC
#: The private data of peers that send none, one object for all of them.
_NOTHING = {
    zeros: zeros for zeros in (bytes(IB_PRIVATE_BYTES.request - HEADER_BYTES), bytes(IB_PRIVATE_BYTES.reply))
}


def request(messages: RDMATransport, local: Address | End, peer: Address) -> ConnectRequest:
    """
    Return the REQ of an active side.
    """
    # The 36 bytes before the user's private data (cma.c struct cma_hdr), which leave 56 of the REQ's 92.
    data = packHeader(local.host, local.port, peer.host) + messages.privateData
    vendor = GATHERS if messages.maxMessageSize >= limits.RDMA_GATHERED else SINGLE
    number = messages.queuePair.number
    return requestLike(PORT_SPACE << 16 | peer.port, data, number, (*_REQUEST, vendor))


def requested(message: ConnectRequest) -> RDMACMHeader:
    """
    Parse the RDMA-CM header of a REQ.

    @raise WireError: It has none.
    """
    return RDMACMHeader.parse(message.privateData)


def addresses(header: RDMACMHeader) -> tuple[str, str]:
    """
    Return the addresses in a header: the passive side's, the active side's.
    """
    return header.destination, header.source


def sourcePort(header: RDMACMHeader) -> int:
    """
    Return the active side's port number.
    """
    return header.sourcePort


def _depths(wanted: int, offered: int) -> tuple[int, int]:
    # (READs and atomics served, outstanding).  IBTA vol. 1 12.7: the peer's initiator depth bounds what it
    # wants of us, its responder resources bound what we may have outstanding.
    return min(wanted, limits.RDMA_READS), min(offered, limits.RDMA_READS)


def reply(messages: RDMATransport, message: ConnectRequest, header: RDMACMHeader) -> ConnectReply:
    """
    Return the REP of a passive side.
    """
    served, asked = _depths(message.initiatorDepth, message.responderResources)
    gathers = message.vendorID == GATHERS and messages.maxMessageSize >= limits.RDMA_GATHERED
    vendor = GATHERS if gathers else SINGLE if message.vendorID in UNCONFIRMED else 0
    # A REP has no RDMA-CM header; all 196 bytes are the user's (cma.c cma_accept_ib).
    data, number = messages.privateData, messages.queuePair.number
    return replyLike(data, number, (served, asked, _RETRIES, False, False, 0, 0, vendor))


def accepted(
    messages: RDMATransport, connection: IConnection, message: ConnectRequest, header: RDMACMHeader
) -> None:
    """
    Connect a passive side, after its REP was made.
    """
    data = message.privateData[HEADER_BYTES:]
    messages.peerPrivateData = _NOTHING.get(data, data)
    _join(messages, connection, message)


def replied(messages: RDMATransport, connection: IConnection, message: ConnectReply) -> None:
    """
    Connect an active side to the peer that replied.
    """
    messages.peerPrivateData = _NOTHING.get(message.privateData, message.privateData)
    _join(messages, connection, message)


def _join(messages: RDMATransport, connection: IConnection, message: ConnectRequest | ConnectReply) -> None:
    messages.connection = connection
    connection.user = messages
    queuePair, work = messages.queuePair, messages.work
    if message.vendorID == GATHERS and messages.maxMessageSize >= limits.RDMA_GATHERED:
        messages.onTheWay = work.requester.onTheWay
        queuePair.gathers = True
    device = queuePair.device
    if message.vendorID in UNCONFIRMED and device is not None and device.lossless:
        work.responder.isFresh = False  # No message stands for an RTU, as there is none.
    proposal = queuePair.proposal
    expected, mtu, timeout = 0, _MTU, _ACK_TIMEOUT
    if proposal is not None:
        expected, mtu, timeout = proposal.expectedPSN, proposal.mtu, _PACKET_ACK_TIMEOUT
    # An acceptor that does not wait is ready before its REP is sent, since data may follow at once (IBTA vol.
    # 1 12.9.8; cma.c cma_accept_ib).
    depths = message.initiatorDepth, message.responderResources
    attributes, changed = _attributes(expected, message.startingPSN, mtu, timeout, *depths)
    work.connect(queuePair, connection.destination, message.localQPN, attributes, changed)


@lru_cache(64)
def _attributes(
    expected: int, startingPSN: int, mtu: int, timeout: int, wanted: int, offered: int
) -> tuple[dict[str, int], Attributes]:
    # Connections whose attributes are equal, as all between processes of one host, share them.
    served, asked = _depths(wanted, offered)
    attributes = {
        "pkey_index": 0,
        "port_num": 1,
        "qp_access_flags": _ACCESS,
        "path_mtu": mtu,
        "rq_psn": expected,
        # The responder's limit: READs beyond it are NAKed as invalid requests (IBTA vol. 1 9.7.4).
        "max_dest_rd_atomic": served,
        "min_rnr_timer": _RNR_TIMER,
        # IBTA vol. 1 12.7: a message's starting PSN is the one that its sender expects first (Linux cm.c
        # cm_init_qp_rts_attr).
        "sq_psn": startingPSN,
        "timeout": timeout,
        "retry_cnt": _RETRIES,
        # Without limit, whatever the peer announces: here RNR is flow control, not an error.
        "rnr_retry": _RETRIES,
        "max_rd_atomic": asked,
    }
    return attributes, changedBy(attributes)
