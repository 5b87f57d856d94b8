"""
SDP connection setup: Hello in the private data of the CM REQ, HelloAck in that of the REP (IBTA vol. 1 annex
A4).

A L{Handshake} has the port space, and the form of the addresses in Hello.  Both messages announce how many
receives of which size each side has posted, which is all that the other needs to start sending.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from twisted_ib import limits
from twisted_ib.errors import SDPWireError, WireError
from twisted_ib.hca.base.traits import Peers
from twisted_ib.hca.connection import ConnectReply, ConnectRequest
from twisted_ib.hca.connection.rdmacm import PortSpace, gidOf, textOf
from twisted_ib.hca.connection.request import PathRecord, replyLike, requestLike
from twisted_ib.internet.addressing.addresses import Address, End
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

if TYPE_CHECKING:
    from twisted_ib.hca.connection.interfaces import IConnection
    from twisted_ib.hca.fabric.base.lastwords import LastWords

#: CM response timeout code: 0.54 s.
CM_RESPONSE_TIMEOUT = 17
#: The largest value of Max CM Retries, a 4-bit field.
CM_RETRIES = 15
_RETRIES = 7
# An RNR NAK is not an error here.  OFED leaves its retries 0 (sdp_cma.c sdp_cma_handler), so that one missing
# receive kills its queue pair: all receives in Bufs are posted before Hello or HelloAck is sent.
#: The fields of REQs, and of REPs.
_REQUEST = READ_DEPTH, READ_DEPTH, _RETRIES, _RETRIES, CM_RESPONSE_TIMEOUT, CM_RETRIES
_REPLY = READ_DEPTH, READ_DEPTH, _RETRIES
#: LocalRcvSz and ActRcvSz, base header included.
_RECEIVE_BYTES = limits.INLINE_MESSAGE + BSDH_BYTES
#: MaxAdverts; more than one makes Pipelined mode possible.
_ADVERTS = limits.SDP_ADVERTS
#: BSDH and Hello in one layout, since every connection has one and L{Hello} objects cost time.  L{Hello} is
#: the documented twin, and finds the error in a Hello that does not pass the checks here.
_HELLO = Struct(BSDH.format + Hello.layout.struct.format.removeprefix(">"))
_LEAST_RECEIVE = BSDH_BYTES + limits.SDP_LEAST_PAYLOAD
#: Flags that are illegal in a Hello.
_WRONG_FLAGS = 7 & ~Hello.legalFlags.value
_MID = MID.HELLO.value
_EXTENDED = Capabilities.EXTENDED_MAX_ADVERTS.value
#: HelloAcks cached; those of one program version are all equal.
_REMEMBERED = 64


class Greeting(NamedTuple):
    """
    A received Hello.

    @ivar buffers: Receives posted by the active side.
    @ivar adverts: Its MaxAdverts, or the extended one.
    @ivar localReceiveBytes: Its receive size, base header included.
    @ivar sourceAddress: 16 bytes; C{destinationAddress} likewise.
    """

    buffers: int
    majorVersion: int
    ipVersion: int
    adverts: int
    localReceiveBytes: int
    localPort: int
    sourceAddress: bytes
    destinationAddress: bytes


class Handshake:
    """
    The handshake between IP addresses: see L{Handshake<twisted_ib.internet.port.Handshake>}.

    @cvar PORT_SPACE: The RDMA-CM port space.
    @cvar UNCONFIRMED: The vendor ids of REQs and REPs whose connection needs no RTU where no message is lost:
        to a stream the REP is enough.
    """

    # Service ids are C{0x1pppp} (annex A4; OpenIB sdp_dev.h SDP_MSG_SERVICE_ID_MASK).  rdma_cm builds the
    # same value from RDMA_PS_SDP (cma.c cma_get_service_id), a port space apart from TCP's, which upstream
    # Linux has removed.
    PORT_SPACE = int(PortSpace.SDP)
    UNCONFIRMED = frozenset({0})

    #: The octet of Hello's IP version; 0 for that of the address.
    _ipVersion = 0
    _pack = staticmethod(packAddress)

    def request(self, stream: Stream, local: Address | End, peer: Address) -> ConnectRequest:
        """
        Return the REQ of an active side, with Hello as its private data.
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
            self._ipVersion or ipVersionOf(host) << 4,
            _ADVERTS,
            _RECEIVE_BYTES,
            _RECEIVE_BYTES,
            local.port,
            self._pack(local.host),
            self._pack(host),
            0,
        )
        # rdma_cm adds no header of its own for RDMA_PS_SDP: private data starts with the BSDH (cma.c
        # cma_format_hdr).
        return requestLike(self.PORT_SPACE << 16 | peer.port, hello, queuePair.number, _REQUEST)

    def requested(self, message: ConnectRequest) -> Greeting:
        """
        Parse the Hello of a REQ.

        @raise WireError: It has none, or an invalid one.
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
            # Raises the error that says what is wrong.
            Hello.parse(data[:HELLO_BYTES])
            raise SDPWireError("a REQ has no Hello")
        if ip & _EXTENDED and extended:
            adverts = extended
        return Greeting(buffers, major, ipVersion, adverts, receiveBytes, port, source, destination)

    def addresses(self, hello: Greeting) -> tuple[str, str]:
        return (
            unpackAddress(hello.destinationAddress, hello.ipVersion),
            unpackAddress(hello.sourceAddress, hello.ipVersion),
        )

    def sourcePort(self, hello: Greeting) -> int:
        return hello.localPort

    def reply(self, stream: Stream, message: ConnectRequest, hello: Greeting) -> ConnectReply:
        """
        Return the REP of a passive side, with HelloAck as its private data.
        """
        queuePair = stream.queuePair
        # The major version that was offered: OpenIB rejects 2, and OFED's rdma_cm rejects 1 (cma.c
        # cma_verify_rep).
        version = VERSION if hello.majorVersion == VERSION >> 4 else 0x11 * hello.majorVersion
        answer = _acknowledgement(queuePair.posted, version)
        return replyLike(answer, queuePair.number, _REPLY)

    def accepted(
        self, stream: Stream, connection: IConnection, message: ConnectRequest, hello: Greeting
    ) -> None:
        _join(stream, connection, message, hello.buffers, hello.localReceiveBytes, hello.adverts)

    def replied(self, stream: Stream, connection: IConnection, message: ConnectReply) -> None:
        """
        Connect the stream of an active side.

        @param connection: The CM's connection.
        @param message: The peer's REP.
        @raise WireError: It has no valid HelloAck.
        """
        receives, receiveBytes, adverts = _acknowledged(message.privateData[:HELLO_ACK_BYTES])
        _join(stream, connection, message, receives, receiveBytes, adverts)


class GIDHandshake(Handshake):
    """
    The handshake between GIDs, as AF_IB's: C{framing=sdp} of C{ib:} endpoint strings.

    Service ids are C{0x13Fpppp}.  The 92 octets of a REQ's private data are Hello's alone, so that there is
    no room for the header of RDMA-CM (IBTA vol. 1 annex A11), which AF_IB does not have; Hello's address
    fields hold the GIDs.
    """

    # Linux rdma_cm.h RDMA_PS_IB; the port space of AF_IB.
    PORT_SPACE = int(PortSpace.IB)

    # A GID has the form of an IPv6 address (IBTA vol. 1 4.1.1), an IPv4 address in it is mapped.
    _ipVersion = 6 << 4
    _pack = staticmethod(gidOf)

    def request(self, stream: Stream, local: Address | End, peer: Address) -> ConnectRequest:
        request = Handshake.request(self, stream, local, peer)
        # AF_IB's listeners are found by the GID of the request's path (Linux cma.c cma_save_ib_info).  Other
        # devices fill it in themselves.
        if stream.channel.device.traits.peers is Peers.PROCESSES:
            request.primaryPath = PathRecord(localGID=gidOf(local.host), remoteGID=gidOf(peer.host))
        return request

    def addresses(self, hello: Greeting) -> tuple[str, str]:
        return textOf(hello.destinationAddress), textOf(hello.sourceAddress)


SDP_HANDSHAKE = Handshake()
GID_HANDSHAKE = GIDHandshake()


@lru_cache(maxsize=_REMEMBERED)
def _acknowledgement(receives: int, version: int) -> bytes:
    return HelloAck(
        buffers=receives, version=version, maximumAdverts=_ADVERTS, actualReceiveBytes=_RECEIVE_BYTES
    ).pack()


@lru_cache(maxsize=_REMEMBERED)
def _acknowledged(data: bytes) -> tuple[int, int, int]:
    hello = HelloAck.parse(data)
    # The answer repeats the offered major version; another one is a peer that did not understand the Hello.
    if hello.majorVersion != VERSION >> 4:
        raise WireError(f"HelloAck has major version {hello.majorVersion}, asked was {VERSION >> 4}")
    return hello.buffers, hello.actualReceiveBytes, hello.maximumAdverts


def _join(
    stream: Stream,
    connection: IConnection,
    message: ConnectRequest | ConnectReply,
    receives: int,
    receiveBytes: int,
    adverts: int,
) -> None:
    payload = receiveBytes - BSDH_BYTES
    if payload < limits.INLINE_MESSAGE:
        stream.limitPayload(payload)
    stream.connection = connection
    connection.user = stream
    stream.machine.limit = receives
    if adverts != _ADVERTS:
        stream.adverts = adverts
    # IBTA vol. 1 12.7: the peer's responder resources bound the READs that we have outstanding (OFED
    # announces 4).
    if message.responderResources < READ_DEPTH:
        stream.reads = message.responderResources
    queuePair = stream.queuePair
    queuePair.connect(connection.destination, message.localQPN, message)
    path = queuePair.path
    words: LastWords | None = getattr(path, "lastWords", None)
    if words is not None and words.free:
        stream.words = words
        stream.slot = slot = words.free.pop()
        words.cells[slot] = 0
        words.cells[slot - 1] = message.localQPN
    longest = path.messageBytes - BSDH_BYTES  # type: ignore[union-attr]
    if longest < limits.INLINE_MESSAGE:
        stream.longest = longest
