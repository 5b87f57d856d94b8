"""
What REQ and REP say for messages: the RDMA-CM's header, and the users' private data.

A service id is one of C{RDMA_PS_TCP}, so that any program of librdmacm can call or be called
(IBTA vol. 1 annex A11).  The other numbers are what such programs use by default; a peer that
finds no receive is asked again for as long as it takes (rnr_retry 7).
"""

from __future__ import annotations

from typing import Any

from twisted_ib import limits
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.memory.memory import REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE
from twisted_ib.hca.wire.cm import REP, REQ
from twisted_ib.hca.wire.cm.rdmacm import HEADER_BYTES, PortSpace, RDMACMHeader, serviceID
from twisted_ib.internet.addresses import Address
from twisted_ib.rdma.messages import Messages

PORT_SPACE = int(PortSpace.TCP)

#: Timeout code of the CM: about half a second between two REQs.
_CM_RESPONSE_TIMEOUT = 17
#: The most that a REQ can say.
_CM_RETRIES = 15
_RETRIES = 7
#: Timeout code of a peer whose queue pair is not there: 67 ms.
_ACK_TIMEOUT = 14
#: The same over a fabric of packets, which loses some: 4.3 s, and so many times as often as one asks
#: again; it asks again much earlier by itself.
_PACKET_ACK_TIMEOUT = limits.PACKET_STREAM_TIMEOUT_CODE
#: Timer code of a peer that finds no receive: 1.28 ms.  Each message that it sends in vain costs
#: a copy, and half of this is what a protocol waits that reads again.
_RNR_TIMER = 14
#: The code of 4096 bytes.
_MTU = 5
#: What the peer may do, if it has a key of memory that grants it too.
_ACCESS = REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC


def request(messages: Messages, local: Address, peer: Address) -> REQ:
    """
    Make the REQ of an active side.
    """
    header = RDMACMHeader(local.host, local.port, peer.host)
    return REQ(
        serviceID=serviceID(PORT_SPACE, peer.port),
        localQPN=messages.queuePair.number,
        responderResources=limits.RDMA_READS,
        initiatorDepth=limits.RDMA_READS,
        remoteCMResponseTimeout=_CM_RESPONSE_TIMEOUT,
        localCMResponseTimeout=_CM_RESPONSE_TIMEOUT,
        maxCMRetries=_CM_RETRIES,
        retryCount=_RETRIES,
        pathMTU=_MTU,
        rnrRetryCount=_RETRIES,
        privateData=header.pack() + messages.privateData,
    )


def requested(message: REQ) -> RDMACMHeader:
    """
    Read the header of a REQ.

    @raise WireError: There is none.
    """
    return RDMACMHeader.parse(message.privateData)


def addresses(header: RDMACMHeader) -> tuple[str, str]:
    """
    Give the two IP addresses of a header: the passive side's and the active side's.
    """
    return header.destination, header.source


def sourcePort(header: RDMACMHeader) -> int:
    """
    Give the port number of the active side.
    """
    return header.sourcePort


def _depths(message: REQ | REP) -> tuple[int, int]:
    """
    Give how many READs and atomics of the peer are answered at a time, and how many may be on
    the way to it.
    """
    return min(limits.RDMA_READS, message.initiatorDepth), min(limits.RDMA_READS, message.responderResources)


def reply(messages: Messages, message: REQ, header: RDMACMHeader) -> REP:
    """
    Make the REP of a passive side.
    """
    served, asked = _depths(message)
    return REP(
        localQPN=messages.queuePair.number,
        responderResources=served,
        initiatorDepth=asked,
        rnrRetryCount=_RETRIES,
        privateData=messages.privateData,
    )


def accepted(messages: Messages, connection: Any, message: REQ, header: RDMACMHeader) -> None:
    """
    Join a passive side to the peer that asked.
    """
    messages.peerPrivateData = message.privateData[HEADER_BYTES:]
    _join(messages, connection, message)


def replied(messages: Messages, connection: Any, message: REP) -> None:
    """
    Join an active side to the peer that answered.
    """
    messages.peerPrivateData = message.privateData
    _join(messages, connection, message)


def _join(messages: Messages, connection: Any, message: REQ | REP) -> None:
    served, asked = _depths(message)
    messages.connection = connection
    connection.user = messages
    modify, proposal = messages.queuePair.modify, messages.queuePair.proposal
    expected, mtu, timeout = 0, _MTU, _ACK_TIMEOUT
    if proposal is not None:
        expected, mtu, timeout = proposal.expectedPSN, proposal.mtu, _PACKET_ACK_TIMEOUT
    modify(QPState.INIT, pkey_index=0, port_num=1, qp_access_flags=_ACCESS)
    modify(
        QPState.RTR,
        ah_attr=connection.destination,
        path_mtu=mtu,
        dest_qp_num=message.localQPN,
        rq_psn=expected,
        max_dest_rd_atomic=served,
        min_rnr_timer=_RNR_TIMER,
    )
    modify(
        QPState.RTS,
        sq_psn=message.startingPSN,
        timeout=timeout,
        retry_cnt=_RETRIES,
        # The peer says how often it wants to be asked again; to pause is no error here.
        rnr_retry=_RETRIES,
        max_rd_atomic=asked,
    )
