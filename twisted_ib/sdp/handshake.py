"""
Hello and HelloAck: how the two ends of a stream come to know each other.

Hello travels in the private data of the CM's REQ, HelloAck in that of the REP.
They say how many receives of what size each side has posted, which is all that
the other needs to begin to send (IBTA vol. 1, annex A4).
"""

from __future__ import annotations

from typing import Any

from twisted_ib import limits
from twisted_ib.errors import WireError
from twisted_ib.hca.endpoints.addresses import Address
from twisted_ib.hca.wire.cm import REP, REQ
from twisted_ib.sdp.keyed import READ_DEPTH
from twisted_ib.sdp.stream import Stream
from twisted_ib.sdp.wire import (
    BSDH_BYTES,
    HELLO_ACK_BYTES,
    HELLO_BYTES,
    VERSION,
    Capabilities,
    Hello,
    HelloAck,
    ipVersionOf,
    packAddress,
    unpackAddress,
)

#: The RDMA-CM port space of SDP; service ids are C{0x1pppp}.
PORT_SPACE = 0x0001

#: Timeout code of the CM: about half a second between two REQs.
CM_RESPONSE_TIMEOUT = 17
#: The most that a REQ can say.
CM_RETRIES = 15
_RETRIES = 7
#: LocalRcvSz and ActRcvSz.
_RECEIVE_BYTES = limits.INLINE_MESSAGE + BSDH_BYTES
#: MaxAdverts: with more than one, Pipelined mode is possible.
_ADVERTS = limits.SDP_ADVERTS


def serviceID(port: int) -> int:
    """
    Give the service id of an SDP port.

    @param port: 0 to 65535.
    @return: the service id.
    """
    return PORT_SPACE << 16 | port


def request(stream: Stream, local: Address, peer: Address) -> REQ:
    """
    Make the REQ of an active side.

    @param stream: the one to be connected.
    @param local: its own address.
    @param peer: the address that it calls.
    @return: the message, with Hello as private data.
    """
    hello = Hello(
        buffers=stream.queuePair.posted,
        ipVersion=ipVersionOf(peer.host),
        maximumAdverts=_ADVERTS,
        desiredReceiveBytes=_RECEIVE_BYTES,
        localReceiveBytes=_RECEIVE_BYTES,
        localPort=local.port,
        sourceAddress=packAddress(local.host),
        destinationAddress=packAddress(peer.host),
    )
    return REQ(
        serviceID=serviceID(peer.port),
        localQPN=stream.queuePair.number,
        responderResources=READ_DEPTH,
        initiatorDepth=READ_DEPTH,
        remoteCMResponseTimeout=CM_RESPONSE_TIMEOUT,
        localCMResponseTimeout=CM_RESPONSE_TIMEOUT,
        maxCMRetries=CM_RETRIES,
        retryCount=_RETRIES,
        rnrRetryCount=_RETRIES,
        privateData=hello.pack(),
    )


def requested(message: REQ) -> Hello:
    """
    Read the Hello of a REQ.

    @param message: as it came.
    @raise WireError: There is none.
    """
    return Hello.parse(message.privateData[:HELLO_BYTES])


def addresses(hello: Hello) -> tuple[str, str]:
    """
    Give the two IP addresses of a Hello: the passive side's and the active
    side's.

    @param hello: of a REQ.
    @return: their texts, without scopes.
    """
    return (
        unpackAddress(hello.destinationAddress, hello.ipVersion),
        unpackAddress(hello.sourceAddress, hello.ipVersion),
    )


def sourcePort(hello: Hello) -> int:
    """
    Give the port number of the active side.

    @param hello: of a REQ.
    """
    return hello.localPort


def reply(stream: Stream, message: REQ, hello: Hello) -> REP:
    """
    Make the REP of a passive side.

    @param stream: the one to be connected.
    @param message: what is answered.
    @param hello: its Hello.
    @return: the message, with HelloAck as private data.
    """
    version = VERSION if hello.majorVersion == VERSION >> 4 else 0x11 * hello.majorVersion
    acknowledgement = HelloAck(
        buffers=stream.queuePair.posted,
        version=version,
        maximumAdverts=_ADVERTS,
        actualReceiveBytes=_RECEIVE_BYTES,
    )
    return REP(
        localQPN=stream.queuePair.number,
        responderResources=READ_DEPTH,
        initiatorDepth=READ_DEPTH,
        rnrRetryCount=_RETRIES,
        privateData=acknowledgement.pack(),
    )


def accepted(stream: Stream, connection: Any, message: REQ, hello: Hello) -> None:
    """
    Join the stream of a passive side to the peer that asked.

    @param stream: the one to be connected.
    @param connection: of the communication manager.
    @param message: the REQ that was accepted.
    @param hello: its Hello.
    """
    adverts = hello.maximumAdverts
    if hello.capabilities & Capabilities.EXTENDED_MAX_ADVERTS and hello.extendedMaximumAdverts:
        adverts = hello.extendedMaximumAdverts
    _join(stream, connection, message, hello.buffers, hello.localReceiveBytes, adverts)


def replied(stream: Stream, connection: Any, message: REP) -> None:
    """
    Join the stream of an active side to the peer that answered.

    @param stream: the one to be connected.
    @param connection: of the communication manager.
    @param message: the answer.
    @raise WireError: The answer holds no HelloAck that we can use.
    """
    hello = HelloAck.parse(message.privateData[:HELLO_ACK_BYTES])
    if hello.majorVersion != VERSION >> 4:
        raise WireError(f"HelloAck has major version {hello.majorVersion}, asked was {VERSION >> 4}")
    _join(stream, connection, message, hello.buffers, hello.actualReceiveBytes, hello.maximumAdverts)


def _join(
    stream: Stream,
    connection: Any,
    message: REQ | REP,
    receives: int,
    receiveBytes: int,
    adverts: int,
) -> None:
    """
    Let both ends' queue pairs talk.

    @param receives: The peer's, that are posted.
    @param receiveBytes: The size of one.
    @param adverts: The peer's MaxAdverts.
    """
    payload = min(receiveBytes - BSDH_BYTES, limits.INLINE_MESSAGE)
    stream.connection = connection
    connection.user = stream
    stream.machine.opened(receives, payload, adverts)
    stream.reads = min(READ_DEPTH, message.responderResources)
    stream.queuePair.connect(connection.destination, message.localQPN)
