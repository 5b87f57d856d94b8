"""
SDP message formats, as they stand in an RC Send or in CM private data (IBTA vol. 1 annex A4).

Every message starts with the 16-byte base header (BSDH); one message is one Send.  The classes here document
the formats and serve tests, traces and rare messages.  The per-message path of a stream creates no objects:
it uses L{BSDH} on the medium's own buffer, and L{Data} is its documented twin.

Reserved bits are sent as zero and ignored on receipt, except in the low half of a ModeChange.

One file holds all eighteen messages, so that a field is found in one place.
"""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING, Any, ClassVar

from twisted_ib import limits
from twisted_ib.errors import SDPWireError
from twisted_ib.layouts import Codec, FrozenRecord, bits, fieldsOf, named, octets
from twisted_ib.records import frozen

if TYPE_CHECKING:
    from typing_extensions import Never, Self

    from twisted_ib.structs import Packed

#: MID, Flags, Bufs, Len, MSeq, MSeqAck.
BSDH: Packed[tuple[int, int, int, int, int, int]] = struct.Struct(">BBHIII")
BSDH_BYTES = BSDH.size

# Both fill the private data of their CM message: 92 bytes in a REQ, 196 in a REP (ib_cm.h ib_cm_data_size).
# The text of release 1.1 makes HelloAck 8 bytes too long; 196 is what is sent (OpenIB sdp_msgs.h).
HELLO_BYTES = 92
HELLO_ACK_BYTES = 196

#: The version that we send: OFED's rdma_cm accepts major 2 only (cma.c cma_get_net_info, cma_verify_rep).
VERSION = 0x22
#: OFED sends major 2, the OpenIB driver of 2005 major 1; those two cannot talk to each other.
MAJOR_VERSIONS = (1, 2)

_Buffer = bytes | bytearray | memoryview


class MID(IntEnum):
    """
    Message identifiers.  High nibble 0 means a control message.
    """

    # OFED's enum lacks RdmaWrCompl, ModeChange, SinkAvailCancel, SinkCancelAck, SuspComm and SuspCommAck
    # (sdp.h enum sdp_mid); OpenIB sdp_rcvd.c handles all of them.
    HELLO = 0x00
    HELLO_ACK = 0x01
    DISCONN = 0x02
    ABORT_CONN = 0x03
    SEND_SM = 0x04
    RDMA_WR_COMPL = 0x05
    RDMA_RD_COMPL = 0x06
    MODE_CHANGE = 0x07
    SRC_AVAIL_CANCEL = 0x08
    SINK_AVAIL_CANCEL = 0x09
    SINK_CANCEL_ACK = 0x0A
    CH_RCV_BUF = 0x0B
    CH_RCV_BUF_ACK = 0x0C
    SUSP_COMM = 0x0D
    SUSP_COMM_ACK = 0x0E
    SINK_AVAIL = 0xFD
    SRC_AVAIL = 0xFE
    DATA = 0xFF


class Flags(IntFlag):
    """
    The Flags byte of the base header; its other bits are reserved.
    """

    #: The last payload byte is urgent; legal only with payload (CA4-7).
    OOB_PRES = 0x01
    #: An urgent byte will follow.
    OOB_PEND = 0x02
    #: The sink requests Pipelined mode; RdmaRdCompl only (CA4-8, CA4-9).
    REQ_PIPE = 0x04


NO_FLAGS = Flags(0)


class Capabilities(IntFlag):
    """
    The capability nibble of Hello and HelloAck.
    """

    INVALIDATE = 0x1
    EXTENDED_MAX_ADVERTS = 0x2


class Transition(IntEnum):
    """
    The legal ModeChange bytes.

    Bit 7 selects the half of the receiver that changes (1: its send half), bits 6 to 4 the new mode (0
    Buffered, 1 Combined, 2 Pipelined).
    """

    COMBINED_TO_BUFFERED = 0x00
    BUFFERED_TO_COMBINED = 0x90
    COMBINED_TO_PIPELINED = 0x20
    PIPELINED_TO_COMBINED = 0x10

    @classmethod
    def _missing_(cls, value: object) -> Never:
        # OpenIB sdp_rcvd.c sdp_rcvd_mode_change: any other byte is EPROTO.
        raise ValueError(f"{value:#04x} is no change of mode")


# Every connect and accept converts the same few addresses.
_remember = lru_cache(maxsize=limits.ADDRESSES_REMEMBERED)


@_remember
def packAddress(text: str) -> bytes:
    """
    Return the 16-byte form of an IP address in Hello; a scope (C{%ib0}) is dropped.

    @raise ValueError: C{text} is not an IP address.
    """
    # An IPv4 address stands behind 12 zero bytes, not in the IPv4-mapped form (OFED sdp.h union cma_ip_addr).
    return ip_address(text.partition("%")[0]).packed.rjust(16, b"\0")


@_remember
def unpackAddress(packed: bytes, ipVersion: int) -> str:
    """
    Return the text of a 16-byte IP address of Hello, without scope.

    @param ipVersion: 4 or 6.
    """
    if ipVersion == 4:
        return str(IPv4Address(packed[12:]))
    return str(IPv6Address(packed))


@_remember
def ipVersionOf(text: str) -> int:
    """
    Return the version, 4 or 6, of an IP address.

    @raise ValueError: C{text} is not an IP address.
    """
    return ip_address(text.partition("%")[0]).version


@frozen(kw_only=True, eq=False, repr=False)
class SDPMessage(FrozenRecord):
    """
    The base header, which all messages have.

    @cvar layout: The fields behind the base header, whose places are counted from its end.
    @cvar size: Their octets.
    @cvar legalFlags: The flags that this message may carry.
    @cvar ofSource: Whether only the source of a direction sends it, so that none follows its DisConn.
    @ivar flags: Reserved bits are dropped by L{parse}.
    @ivar buffers: Bufs: receives that the sender has posted, base for the peer's credits.
    @ivar sequence: MSeq.
    @ivar acknowledged: MSeqAck: the last MSeq that the sender received.
    """

    mid: ClassVar[MID]
    layout: ClassVar[Codec[Any]]
    size: ClassVar[int] = 0
    legalFlags: ClassVar[Flags] = Flags.OOB_PEND
    ofSource: ClassVar[bool] = False

    flags: Flags = NO_FLAGS
    buffers: int = 0
    sequence: int = 0
    acknowledged: int = 0

    def _stream(self) -> bytes:
        return b""

    def _check(self) -> None:
        """
        Refuse values that the format forbids.

        @raise SDPWireError: Says which.
        """

    def pack(self) -> bytes:
        """
        Return the message's bytes.

        @raise ValueError: An attribute does not fit into its field.
        """
        payload = self._stream()
        length = BSDH_BYTES + self.layout.size + len(payload)
        try:
            header = BSDH.pack(self.mid, self.flags, self.buffers, length, self.sequence, self.acknowledged)
        except struct.error as e:
            raise ValueError(f"{type(self).__name__}: {e}") from None
        return header + self.layout.pack(self) + payload

    @classmethod
    def parse(cls, buffer: _Buffer, start: int = 0, stop: int | None = None) -> Self:
        """
        Parse a message of this class.

        @param buffer: Bytes-like; nothing of it is kept.
        @param start: Offset of the BSDH.
        @param stop: Offset after the message, which is the end of the Send.
        @raise SDPWireError: This is no valid message of this class.
        """
        end = len(buffer) if stop is None else stop
        body = start + BSDH_BYTES
        after = body + cls.layout.size
        if not 0 <= start <= end <= len(buffer) or end < after:
            raise SDPWireError(f"{end - start} bytes are too short for {cls.__name__}")
        mid, flags, buffers, length, sequence, acknowledged = BSDH.unpack_from(buffer, start)
        if mid != cls.mid:
            raise SDPWireError(f"message id 0x{mid:02x} is not {cls.__name__}")
        # IBTA vol. 1 annex A4: a message never spans two Sends, and a Send never holds two.  OFED does not
        # check Len.
        if length != end - start:
            raise SDPWireError(f"{cls.__name__} says {length} bytes and has {end - start}")
        attributes = cls.layout.parse(bytes(buffer[body:after]))
        if issubclass(cls, StreamMessage):
            attributes["payload"] = bytes(buffer[after:end])
        elif end != after:
            raise SDPWireError(f"{cls.__name__} has {end - after} bytes too many")
        attributes.update(buffers=buffers, sequence=sequence, acknowledged=acknowledged)
        try:
            message = cls(flags=Flags(flags & 7), **attributes)
        except ValueError as e:
            raise SDPWireError(f"{cls.__name__}: {e}") from None
        message._checkFlags()
        message._check()
        return message

    def _checkFlags(self) -> None:
        wrong = self.flags & ~self.legalFlags
        if wrong:
            raise SDPWireError(f"{type(self).__name__} may not carry flags 0x{wrong:02x}")
        # IBTA vol. 1 annex A4 CA4-7: the urgent byte is the last of the payload, so there must be one.
        if self.flags & Flags.OOB_PRES and not self._stream():
            raise SDPWireError(f"{type(self).__name__} has OOB_PRES and no payload")


@frozen(kw_only=True, eq=False, repr=False)
class StreamMessage(SDPMessage):
    """
    A message that may carry stream bytes (C{payload}).
    """

    legalFlags = Flags.OOB_PEND | Flags.OOB_PRES

    payload: bytes = b""

    def _stream(self) -> bytes:
        return self.payload


@frozen(kw_only=True, eq=False, repr=False)
class Greeting(SDPMessage):
    """
    The common fields of Hello and HelloAck.

    @ivar version: Major version in the high nibble, minor in the low; a HelloAck answers the offered major.
    @ivar maximumAdverts: Advertisements accepted at a time; at least 1.
    """

    version: int = bits(0, 8, default=VERSION)
    capabilities: Capabilities = named(1, 2, Capabilities, 1)
    maximumAdverts: int = bits(3, 8, default=1)

    @property
    def majorVersion(self) -> int:
        """
        The major version, which decides whether the two sides are compatible.
        """
        return self.version >> 4

    def _checkGreeting(self, receiveBytes: int) -> None:
        name = type(self).__name__
        # IBTA vol. 1 annex A4, Hello and HelloAck; OpenIB sdp_pass.c sdp_cm_hello_check checks MaxAdverts and
        # version too.
        if self.majorVersion not in MAJOR_VERSIONS:
            raise SDPWireError(f"{name} has major version {self.majorVersion}")
        if self.maximumAdverts == 0:
            raise SDPWireError(f"{name} has MaxAdverts 0")
        # Both carry MSeq 0 and MSeqAck 0; numbering starts with the message after them.
        if self.sequence or self.acknowledged:
            raise SDPWireError(f"{name} has sequence numbers other than 0")
        # Tiny receives would cost the work of a message for each few bytes of the stream.
        if receiveBytes < BSDH_BYTES + limits.SDP_LEAST_PAYLOAD:
            raise SDPWireError(f"{name} has receive buffers of {receiveBytes} bytes")


@frozen(kw_only=True, eq=False, repr=False)
class Hello(Greeting):
    """
    The active side's first message, in the private data of the CM REQ.

    @ivar desiredReceiveBytes: DesRemRcvSz: the receive size that we ask of the peer.
    @ivar localReceiveBytes: LocalRcvSz: our receive size, base header included.
    @ivar localPort: The source port.
    @ivar sourceAddress: 16 bytes, see L{packAddress}; C{destinationAddress} likewise.
    @ivar extendedMaximumAdverts: Valid with L{Capabilities.EXTENDED_MAX_ADVERTS} only.
    """

    mid = MID.HELLO
    size = HELLO_BYTES - BSDH_BYTES

    ipVersion: int = bits(1, 4, default=4)
    desiredReceiveBytes: int = bits(4, 32)
    localReceiveBytes: int = bits(8, 32)
    localPort: int = bits(12, 16)
    sourceAddress: bytes = octets(16, 16, exact=True)
    destinationAddress: bytes = octets(32, 16, exact=True)
    extendedMaximumAdverts: int = bits(50, 16)

    def _check(self) -> None:
        self._checkGreeting(self.localReceiveBytes)
        if self.ipVersion not in (4, 6):
            raise SDPWireError(f"Hello has IP version {self.ipVersion}")


@frozen(kw_only=True, eq=False, repr=False)
class HelloAck(Greeting):
    """
    The passive side's first message, in the private data of the CM REP.

    @ivar actualReceiveBytes: ActRcvSz: our receive size, base header included.
    """

    mid = MID.HELLO_ACK
    size = HELLO_ACK_BYTES - BSDH_BYTES

    actualReceiveBytes: int = bits(4, 32)

    def _check(self) -> None:
        self._checkGreeting(self.actualReceiveBytes)


class DisConn(SDPMessage):
    """
    No more data in this direction: the FIN of SDP.
    """

    __slots__ = ()

    mid = MID.DISCONN


class AbortConn(SDPMessage):
    """
    The connection is aborted, undelivered data included; only after a DisConn (annex A4.5.3.2).
    """

    __slots__ = ()

    mid = MID.ABORT_CONN


class SendSm(SDPMessage):
    """
    The sink will not read the SrcAvail: the source is to send the rest as Data.
    """

    __slots__ = ()

    mid = MID.SEND_SM


@frozen(kw_only=True, eq=False, repr=False)
class RdmaWrCompl(SDPMessage):
    """
    The source has written C{length} bytes into the oldest SinkAvail.
    """

    mid = MID.RDMA_WR_COMPL
    ofSource = True
    size = 4

    length: int = bits(0, 32)


@frozen(kw_only=True, eq=False, repr=False)
class RdmaRdCompl(SDPMessage):
    """
    The sink has read from the oldest SrcAvail.

    @ivar length: Bytes read since the last RdmaRdCompl; those inside the SrcAvail are not counted.
    """

    mid = MID.RDMA_RD_COMPL
    size = 4
    legalFlags = Flags.OOB_PEND | Flags.REQ_PIPE

    length: int = bits(0, 32)


@frozen(kw_only=True, eq=False, repr=False)
class ModeChange(SDPMessage):
    """
    One direction changes its flow-control mode.
    """

    mid = MID.MODE_CHANGE
    size = 4

    transition: Transition = named(0, 8, Transition)


class SrcAvailCancel(SDPMessage):
    """
    The source cancels all of its SrcAvails.
    """

    __slots__ = ()

    mid = MID.SRC_AVAIL_CANCEL
    ofSource = True


class SinkAvailCancel(SDPMessage):
    """
    The sink cancels all of its SinkAvails.
    """

    __slots__ = ()

    mid = MID.SINK_AVAIL_CANCEL


class SinkCancelAck(SDPMessage):
    """
    The source dropped at least one SinkAvail without completing it.
    """

    __slots__ = ()

    mid = MID.SINK_CANCEL_ACK


@frozen(kw_only=True, eq=False, repr=False)
class ChRcvBuf(SDPMessage):
    """
    A request to change the peer's receive size to C{receiveBytes}.
    """

    mid = MID.CH_RCV_BUF
    size = 4

    receiveBytes: int = bits(0, 32)


@frozen(kw_only=True, eq=False, repr=False)
class ChRcvBufAck(SDPMessage):
    """
    The answer to L{ChRcvBuf}.

    @ivar receiveBytes: The size in force, base header included; OFED leaves the base header out.
    """

    mid = MID.CH_RCV_BUF_ACK
    size = 4

    receiveBytes: int = bits(0, 32)


@frozen(kw_only=True, eq=False, repr=False)
class SuspComm(SDPMessage):
    """
    Suspend the connection: the socket moves to another process, at C{serviceID}.
    """

    mid = MID.SUSP_COMM
    size = 8

    serviceID: int = bits(0, 64)


class SuspCommAck(SDPMessage):
    """
    The answer to L{SuspComm}.
    """

    __slots__ = ()

    mid = MID.SUSP_COMM_ACK


@frozen(kw_only=True, eq=False, repr=False)
class SinkAvail(StreamMessage):
    """
    A buffer that the source may write to (Pipelined mode).

    @ivar length: Its size; C{rkey} and C{address} are for RDMA WRITE.
    @ivar nonDiscards: Messages with payload that the sink has accepted.
    @ivar payload: Bytes of the other direction's stream.
    """

    mid = MID.SINK_AVAIL
    size = 20

    length: int = bits(0, 32)
    rkey: int = bits(4, 32)
    address: int = bits(8, 64)
    nonDiscards: int = bits(16, 32)

    def _check(self) -> None:
        if self.length == 0:
            raise SDPWireError("SinkAvail of 0 bytes")


@frozen(kw_only=True, eq=False, repr=False)
class SrcAvail(StreamMessage):
    """
    A buffer that the sink may read.

    @ivar length: Its size, the payload of this message included; C{rkey} and C{address} are for RDMA READ.
    @ivar payload: The buffer's first bytes (Combined mode).
    """

    mid = MID.SRC_AVAIL
    ofSource = True
    size = 16

    length: int = bits(0, 32)
    rkey: int = bits(4, 32)
    address: int = bits(8, 64)

    def _check(self) -> None:
        # With the whole buffer inline there is nothing to read, and no RdmaRdCompl would ever complete it.
        if self.length <= len(self.payload):
            raise SDPWireError(f"SrcAvail of {self.length} bytes carries {len(self.payload)} of them")


class Data(StreamMessage):
    """
    Stream bytes; without payload it only announces Bufs and MSeqAck.
    """

    __slots__ = ()

    mid = MID.DATA


#: Every class of this file that has a message id.
MESSAGES: tuple[type[SDPMessage], ...] = tuple(
    found
    for found in list(globals().values())
    if isinstance(found, type) and issubclass(found, SDPMessage) and "mid" in vars(found)
)
#: By the whole byte: OpenIB indexes its table with C{mid & 0x1F}, so that 0x1D looks like a SinkAvail to it.
byMID: dict[int, type[SDPMessage]] = {message.mid: message for message in MESSAGES}
for _each in MESSAGES:
    _each.layout = Codec(dict, _each.size, fieldsOf(_each))
