"""
Hello and HelloAck: how the two ends of a stream come to know each other.

Hello travels in the private data of the CM's REQ, HelloAck in that of the REP.
They say how many receives of what size each side has posted, which is all that
the other needs to begin to send (IBTA vol. 1, annex A4).
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import Any, NamedTuple

from twisted_ib import limits
from twisted_ib.errors import SDPWireError, WireError
from twisted_ib.hca.wire.cm import REP, REQ
from twisted_ib.internet.addresses import Address
from twisted_ib.sdp.protocol.wire import (
    BSDH,
    BSDH_BYTES,
    HELLO_ACK_BYTES,
    HELLO_BYTES,
    MAJOR_VERSIONS,
    MID,
    VERSION,
    Capabilities,
    Hello,
    HelloAck,
    ipVersionOf,
    packAddress,
    unpackAddress,
)
from twisted_ib.sdp.stream import Stream
from twisted_ib.sdp.streamrdma import READ_DEPTH

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
#: A Hello with its header.  Each connection has one, for which no L{Hello} is made: that is the
#: readable twin, and says what is wrong with one that is not as it should be.
_HELLO = Struct(BSDH.format + Hello.layout.format.removeprefix(">"))
_LEAST_RECEIVE = BSDH_BYTES + limits.SDP_LEAST_PAYLOAD
#: The flags that a Hello may not have.
_WRONG_FLAGS = 7 & ~Hello.legalFlags.value
_MID = MID.HELLO.value
_EXTENDED = Capabilities.EXTENDED_MAX_ADVERTS.value
#: HelloAcks that are remembered: those of one version of a program are all the same.
_REMEMBERED = 64


class Greeting(NamedTuple):
    """
    What a Hello says.

    @ivar buffers: Receives that the active side has posted.
    @ivar majorVersion: The version that it offers.
    @ivar ipVersion: 4 or 6.
    @ivar adverts: Its MaxAdverts, or the extended one.
    @ivar localReceiveBytes: The size of its receives, base header included.
    @ivar localPort: Its port.
    @ivar sourceAddress: 16 bytes.
    @ivar destinationAddress: Likewise.
    """

    buffers: int
    majorVersion: int
    ipVersion: int
    adverts: int
    localReceiveBytes: int
    localPort: int
    sourceAddress: bytes
    destinationAddress: bytes


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
    queuePair, host = stream.queuePair, peer.host
    hello = _HELLO.pack(
        _MID,
        0,
        queuePair.posted,
        HELLO_BYTES,
        0,
        0,
        VERSION,
        ipVersionOf(host) << 4,
        _ADVERTS,
        _RECEIVE_BYTES,
        _RECEIVE_BYTES,
        local.port,
        packAddress(local.host),
        packAddress(host),
        0,
    )
    return REQ(
        serviceID=PORT_SPACE << 16 | peer.port,
        localQPN=queuePair.number,
        responderResources=READ_DEPTH,
        initiatorDepth=READ_DEPTH,
        remoteCMResponseTimeout=CM_RESPONSE_TIMEOUT,
        localCMResponseTimeout=CM_RESPONSE_TIMEOUT,
        maxCMRetries=CM_RETRIES,
        retryCount=_RETRIES,
        rnrRetryCount=_RETRIES,
        privateData=hello,
    )


def requested(message: REQ) -> Greeting:
    """
    Read the Hello of a REQ.

    @param message: as it came.
    @raise WireError: There is none.
    """
    data = message.privateData
    if len(data) < HELLO_BYTES:
        raise SDPWireError(f"{len(data)} bytes are too short for a Hello")
    # fmt: off
    (
        mid, flags, buffers, length, sequence, acknowledged,
        version, ip, adverts, _, receiveBytes, port, source, destination, extended,
    ) = _HELLO.unpack_from(data)
    # fmt: on
    major, ipVersion = version >> 4, ip >> 4
    if (
        mid != _MID
        or flags & _WRONG_FLAGS
        or length != HELLO_BYTES
        or sequence
        or acknowledged
        or major not in MAJOR_VERSIONS
        or not adverts
        or receiveBytes < _LEAST_RECEIVE
        or (ipVersion != 4 and ipVersion != 6)
    ):
        Hello.parse(data[:HELLO_BYTES])
        raise SDPWireError("a REQ has no Hello")
    if ip & _EXTENDED and extended:
        adverts = extended
    return Greeting(buffers, major, ipVersion, adverts, receiveBytes, port, source, destination)


def addresses(hello: Greeting) -> tuple[str, str]:
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


def sourcePort(hello: Greeting) -> int:
    """
    Give the port number of the active side.

    @param hello: of a REQ.
    """
    return hello.localPort


def reply(stream: Stream, message: REQ, hello: Greeting) -> REP:
    """
    Make the REP of a passive side.

    @param stream: the one to be connected.
    @param message: what is answered.
    @param hello: its Hello.
    @return: the message, with HelloAck as private data.
    """
    queuePair = stream.queuePair
    version = VERSION if hello.majorVersion == VERSION >> 4 else 0x11 * hello.majorVersion
    return REP(
        localQPN=queuePair.number,
        responderResources=READ_DEPTH,
        initiatorDepth=READ_DEPTH,
        rnrRetryCount=_RETRIES,
        privateData=_acknowledgement(queuePair.posted, version),
    )


@lru_cache(maxsize=_REMEMBERED)
def _acknowledgement(receives: int, version: int) -> bytes:
    """
    Make a HelloAck.

    @param receives: How many are posted.
    @param version: As it is answered.
    @return: 196 bytes.
    """
    return HelloAck(
        buffers=receives, version=version, maximumAdverts=_ADVERTS, actualReceiveBytes=_RECEIVE_BYTES
    ).pack()


@lru_cache(maxsize=_REMEMBERED)
def _acknowledged(data: bytes) -> tuple[int, int, int]:
    """
    Read a HelloAck.

    @param data: 196 bytes.
    @return: The peer's posted receives, the size of one, its MaxAdverts.
    @raise WireError: It is none that we can use.
    """
    hello = HelloAck.parse(data)
    if hello.majorVersion != VERSION >> 4:
        raise WireError(f"HelloAck has major version {hello.majorVersion}, asked was {VERSION >> 4}")
    return hello.buffers, hello.actualReceiveBytes, hello.maximumAdverts


def accepted(stream: Stream, connection: Any, message: REQ, hello: Greeting) -> None:
    """
    Join the stream of a passive side to the peer that asked.

    @param stream: the one to be connected.
    @param connection: of the communication manager.
    @param message: the REQ that was accepted.
    @param hello: its Hello.
    """
    _join(stream, connection, message, hello.buffers, hello.localReceiveBytes, hello.adverts)


def replied(stream: Stream, connection: Any, message: REP) -> None:
    """
    Join the stream of an active side to the peer that answered.

    @param stream: the one to be connected.
    @param connection: of the communication manager.
    @param message: the answer.
    @raise WireError: The answer holds no HelloAck that we can use.
    """
    receives, receiveBytes, adverts = _acknowledged(message.privateData[:HELLO_ACK_BYTES])
    _join(stream, connection, message, receives, receiveBytes, adverts)


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
    payload = receiveBytes - BSDH_BYTES
    if payload >= limits.INLINE_MESSAGE:  # Equal, too: all streams have the same object.
        payload = limits.INLINE_MESSAGE
    stream.connection = connection
    connection.user = stream
    stream.machine.opened(receives, payload, adverts)
    if message.responderResources < READ_DEPTH:
        stream.reads = message.responderResources
    stream.queuePair.connect(connection.destination, message.localQPN, message)
    longest = stream.queuePair.path.messageBytes - BSDH_BYTES  # type: ignore[union-attr]
    if longest < limits.INLINE_MESSAGE:
        stream.longest = longest
