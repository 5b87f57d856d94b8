"""
The messages of SDP, as they stand in an RC Send or in the CM's private data.

Every message starts with the 16 bytes of the base header (BSDH); one message
is one Send.  The classes here are the documented form.  The path that carries
a stream does not make objects: it uses L{BSDH} on the medium's own buffer, and
L{Data} is its twin for tests, traces and everything that is rare.

Reserved bits are sent as zero and ignored on receipt, except where the format
makes a named error of them (the low half of a ModeChange).

One file holds all eighteen messages, most of it their documentation: who looks
for a field looks in one place.
"""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import frozen

from twisted_ib import limits
from twisted_ib.errors import SDPWireError

if TYPE_CHECKING:
    from typing_extensions import Self

#: MID, Flags, Bufs, Len, MSeq, MSeqAck.
BSDH = struct.Struct(">BBHIII")
BSDH_BYTES = BSDH.size

HELLO_BYTES = 92
HELLO_ACK_BYTES = 196

#: What we send; OFED's rdma_cm takes major 2 only.
VERSION = 0x22
#: OFED is major 2, the OpenIB driver of 2005 is major 1.
MAJOR_VERSIONS = (1, 2)

_Buffer = bytes | bytearray | memoryview


class MID(IntEnum):
    """
    Message identifiers.  High nibble 0 means a control message.
    """

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

    #: The last byte of the payload is the urgent byte (CA4-7: payload only).
    OOB_PRES = 0x01
    #: An urgent byte is coming.
    OOB_PEND = 0x02
    #: The sink asks for Pipelined mode; RdmaRdCompl only (CA4-8, CA4-9).
    REQ_PIPE = 0x04


NO_FLAGS = Flags(0)


class Capabilities(IntFlag):
    """
    The capability nibble of Hello and HelloAck.
    """

    INVALIDATE = 0x1
    EXTENDED_MAX_ADVERTS = 0x2


NO_CAPABILITIES = Capabilities(0)


class Transition(IntEnum):
    """
    The ModeChange bytes that the protocol knows.

    Bit 7 is the half of the receiver that changes (1: its send half), bits 6
    to 4 the new mode (0 Buffered, 1 Combined, 2 Pipelined).
    """

    COMBINED_TO_BUFFERED = 0x00
    BUFFERED_TO_COMBINED = 0x90
    COMBINED_TO_PIPELINED = 0x20
    PIPELINED_TO_COMBINED = 0x10


_TRANSITIONS = frozenset(Transition)


# Each connect and each accept asks for the same few addresses again.
_remember = lru_cache(maxsize=limits.ADDRESSES_REMEMBERED)


@_remember
def packAddress(text: str) -> bytes:
    """
    Write an IP address in the 16 bytes that Hello has for it.

    @param text: An IPv4 or IPv6 address; a scope (C{%ib0}) is left out.
    @raise ValueError: C{text} is not an IP address.
    """
    return ip_address(text.partition("%")[0]).packed.rjust(16, b"\0")


@_remember
def unpackAddress(packed: bytes, ipVersion: int) -> str:
    """
    Read an IP address of a Hello.

    @param packed: 16 bytes.
    @param ipVersion: 4 or 6.
    @return: its text, without a scope.
    """
    if ipVersion == 4:
        return str(IPv4Address(packed[12:]))
    return str(IPv6Address(packed))


@_remember
def ipVersionOf(text: str) -> int:
    """
    Say whether an IP address is of version 4 or 6.

    @raise ValueError: C{text} is not an IP address.
    """
    return ip_address(text.partition("%")[0]).version


@frozen(kw_only=True)
class SDPMessage:
    """
    What all messages share.

    @cvar mid: The message identifier.
    @cvar layout: What follows the base header.
    @cvar names: The attributes that C{layout} holds, in wire order.
    @cvar legalFlags: The flags that this message may carry.

    @ivar flags: L{Flags}; reserved bits are dropped by L{parse}.
    @ivar buffers: Receive buffers that the sender of this message has posted.
    @ivar sequence: MSeq.
    @ivar acknowledged: MSeqAck, the last MSeq that the sender received.
    """

    mid: ClassVar[MID]
    layout: ClassVar[struct.Struct] = struct.Struct("")
    names: ClassVar[tuple[str, ...]] = ()
    legalFlags: ClassVar[Flags] = Flags.OOB_PEND

    flags: Flags = NO_FLAGS
    buffers: int = 0
    sequence: int = 0
    acknowledged: int = 0

    def _stream(self) -> bytes:
        return b""

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.names)

    @classmethod
    def _attributes(cls, values: tuple[Any, ...]) -> dict[str, Any]:
        return dict(zip(cls.names, values, strict=True))

    def _check(self) -> None:
        """
        Refuse values that the format forbids.

        @raise SDPWireError: Says which.
        """

    def pack(self) -> bytes:
        """
        Give the message's bytes.

        @raise ValueError: An attribute does not fit into its field.
        """
        payload = self._stream()
        length = BSDH_BYTES + self.layout.size + len(payload)
        try:
            header = BSDH.pack(self.mid, self.flags, self.buffers, length, self.sequence, self.acknowledged)
            return header + self.layout.pack(*self._values()) + payload
        except struct.error as e:
            raise ValueError(f"{type(self).__name__}: {e}") from None

    @classmethod
    def parse(cls, buffer: _Buffer, start: int = 0, stop: int | None = None) -> Self:
        """
        Read a message of this class.

        @param buffer: Bytes-like; nothing of it is kept.
        @param start: Where the message starts in it.
        @param stop: Where the message, hence the Send, ends.
        @raise SDPWireError: This is not such a message.
        """
        end = len(buffer) if stop is None else stop
        body = start + BSDH_BYTES
        after = body + cls.layout.size
        if not 0 <= start <= end <= len(buffer) or end < after:
            raise SDPWireError(f"{end - start} bytes are too short for {cls.__name__}")
        mid, bits, buffers, length, sequence, acknowledged = BSDH.unpack_from(buffer, start)
        if mid != cls.mid:
            raise SDPWireError(f"message id 0x{mid:02x} is not {cls.__name__}")
        if length != end - start:
            raise SDPWireError(f"{cls.__name__} says {length} bytes and has {end - start}")
        attributes = cls._attributes(cls.layout.unpack_from(buffer, body))
        if issubclass(cls, StreamMessage):
            attributes["payload"] = bytes(buffer[after:end])
        elif end != after:
            raise SDPWireError(f"{cls.__name__} has {end - after} bytes too many")
        message = cls(
            flags=Flags(bits & 7),
            buffers=buffers,
            sequence=sequence,
            acknowledged=acknowledged,
            **attributes,
        )
        message._checkFlags()
        message._check()
        return message

    def _checkFlags(self) -> None:
        wrong = self.flags & ~self.legalFlags
        if wrong:
            raise SDPWireError(f"{type(self).__name__} may not carry flags 0x{wrong:02x}")
        if self.flags & Flags.OOB_PRES and not self._stream():
            raise SDPWireError(f"{type(self).__name__} has OOB_PRES and no payload")


@frozen(kw_only=True)
class StreamMessage(SDPMessage):
    """
    A message that may carry bytes of the stream.

    @ivar payload: Those bytes.
    """

    legalFlags = Flags.OOB_PEND | Flags.OOB_PRES

    payload: bytes = b""

    def _stream(self) -> bytes:
        return self.payload


@frozen(kw_only=True)
class Greeting(SDPMessage):
    """
    What Hello and HelloAck have in common.

    @ivar version: Major version in the high nibble, minor in the low; a
        HelloAck has the major that was offered.
    @ivar maximumAdverts: How many advertisements we take; at least 1.
    """

    version: int = VERSION
    capabilities: Capabilities = NO_CAPABILITIES
    maximumAdverts: int = 1

    @property
    def majorVersion(self) -> int:
        """
        The version that decides whether two sides can talk.
        """
        return self.version >> 4

    def _checkGreeting(self, receiveBytes: int) -> None:
        """
        Make the checks that both sides owe (IBTA vol. 1, annex A4:
        Hello and HelloAck).
        """
        name = type(self).__name__
        if self.majorVersion not in MAJOR_VERSIONS:
            raise SDPWireError(f"{name} has major version {self.majorVersion}")
        if self.maximumAdverts == 0:
            raise SDPWireError(f"{name} has MaxAdverts 0")
        if self.sequence or self.acknowledged:
            raise SDPWireError(f"{name} has sequence numbers other than 0")
        if receiveBytes < BSDH_BYTES + limits.SDP_LEAST_PAYLOAD:
            raise SDPWireError(f"{name} has receive buffers of {receiveBytes} bytes")


@frozen(kw_only=True)
class Hello(Greeting):
    """
    The active side's first message, in the CM REQ's private data.

    @ivar ipVersion: 4 or 6.
    @ivar desiredReceiveBytes: DesRemRcvSz, the size we would like the peer's
        receive buffers to have.
    @ivar localReceiveBytes: LocalRcvSz, the size of ours, base header included.
    @ivar localPort: The source port.
    @ivar sourceAddress: 16 bytes, see L{packAddress}.
    @ivar destinationAddress: Likewise.
    @ivar extendedMaximumAdverts: Counts with
        L{Capabilities.EXTENDED_MAX_ADVERTS} only.
    """

    mid = MID.HELLO
    layout = struct.Struct(">BBxBIIH2x16s16s2xH24x")
    names = (
        "version",
        "ipVersion",
        "maximumAdverts",
        "desiredReceiveBytes",
        "localReceiveBytes",
        "localPort",
        "sourceAddress",
        "destinationAddress",
        "extendedMaximumAdverts",
    )

    ipVersion: int = 4
    desiredReceiveBytes: int
    localReceiveBytes: int
    localPort: int
    sourceAddress: bytes
    destinationAddress: bytes
    extendedMaximumAdverts: int = 0

    def _values(self) -> tuple[Any, ...]:
        """
        Join the IP version and the capabilities into their byte.
        """
        if len(self.sourceAddress) != 16 or len(self.destinationAddress) != 16:
            raise ValueError("Hello: an address has 16 bytes")
        values = super()._values()
        return (values[0], self.ipVersion << 4 | self.capabilities, *values[2:])

    @classmethod
    def _attributes(cls, values: tuple[Any, ...]) -> dict[str, Any]:
        """
        Split the byte of the IP version and the capabilities.
        """
        attributes = dict(zip(cls.names, values, strict=True))
        attributes["capabilities"] = Capabilities(values[1] & 3)
        attributes["ipVersion"] = values[1] >> 4
        return attributes

    def _check(self) -> None:
        self._checkGreeting(self.localReceiveBytes)
        if self.ipVersion not in (4, 6):
            raise SDPWireError(f"Hello has IP version {self.ipVersion}")


@frozen(kw_only=True)
class HelloAck(Greeting):
    """
    The passive side's first message, in the CM REP's private data.

    @ivar actualReceiveBytes: ActRcvSz, the size of our receive buffers, base
        header included.
    """

    mid = MID.HELLO_ACK
    layout = struct.Struct(">BBxBI172x")
    names = ("version", "capabilities", "maximumAdverts", "actualReceiveBytes")

    actualReceiveBytes: int

    @classmethod
    def _attributes(cls, values: tuple[Any, ...]) -> dict[str, Any]:
        attributes = dict(zip(cls.names, values, strict=True))
        attributes["capabilities"] = Capabilities(values[1] & 3)
        return attributes

    def _check(self) -> None:
        self._checkGreeting(self.actualReceiveBytes)


@frozen(kw_only=True)
class DisConn(SDPMessage):
    """
    No more data from here: the FIN of SDP.
    """

    mid = MID.DISCONN


@frozen(kw_only=True)
class AbortConn(SDPMessage):
    """
    The connection is gone, data included; only after a DisConn.
    """

    mid = MID.ABORT_CONN


@frozen(kw_only=True)
class SendSm(SDPMessage):
    """
    The sink will not read what is advertised: send it as Data.
    """

    mid = MID.SEND_SM


@frozen(kw_only=True)
class RdmaWrCompl(SDPMessage):
    """
    The source has written into the oldest SinkAvail.

    @ivar length: How many bytes.
    """

    mid = MID.RDMA_WR_COMPL
    layout = struct.Struct(">I")
    names = ("length",)

    length: int


@frozen(kw_only=True)
class RdmaRdCompl(SDPMessage):
    """
    The sink has read from the oldest SrcAvail.

    @ivar length: How many bytes since the last such message, those inside the
        SrcAvail not counted.
    """

    mid = MID.RDMA_RD_COMPL
    layout = struct.Struct(">I")
    names = ("length",)
    legalFlags = Flags.OOB_PEND | Flags.REQ_PIPE

    length: int


@frozen(kw_only=True)
class ModeChange(SDPMessage):
    """
    One direction changes its flow-control mode.
    """

    mid = MID.MODE_CHANGE
    layout = struct.Struct(">B3x")
    names = ("transition",)

    transition: Transition

    @classmethod
    def _attributes(cls, values: tuple[Any, ...]) -> dict[str, Any]:
        """
        Refuse a byte that is no change (anything else is a protocol error).
        """
        if values[0] not in _TRANSITIONS:
            raise SDPWireError(f"ModeChange 0x{values[0]:02x} is no change of mode")
        return {"transition": Transition(values[0])}


@frozen(kw_only=True)
class SrcAvailCancel(SDPMessage):
    """
    The source takes back all of its SrcAvails.
    """

    mid = MID.SRC_AVAIL_CANCEL


@frozen(kw_only=True)
class SinkAvailCancel(SDPMessage):
    """
    The sink takes back all of its SinkAvails.
    """

    mid = MID.SINK_AVAIL_CANCEL


@frozen(kw_only=True)
class SinkCancelAck(SDPMessage):
    """
    The source dropped at least one SinkAvail without completing it.
    """

    mid = MID.SINK_CANCEL_ACK


@frozen(kw_only=True)
class ChRcvBuf(SDPMessage):
    """
    A request to change the size of the peer's receive buffers.

    @ivar receiveBytes: The wanted size.
    """

    mid = MID.CH_RCV_BUF
    layout = struct.Struct(">I")
    names = ("receiveBytes",)

    receiveBytes: int


@frozen(kw_only=True)
class ChRcvBufAck(SDPMessage):
    """
    The answer to L{ChRcvBuf}.

    @ivar receiveBytes: The size in force (OFED leaves the base header out).
    """

    mid = MID.CH_RCV_BUF_ACK
    layout = struct.Struct(">I")
    names = ("receiveBytes",)

    receiveBytes: int


@frozen(kw_only=True)
class SuspComm(SDPMessage):
    """
    Stop sending: the socket moves to another process.

    @ivar serviceID: Where it goes.
    """

    mid = MID.SUSP_COMM
    layout = struct.Struct(">Q")
    names = ("serviceID",)

    serviceID: int


@frozen(kw_only=True)
class SuspCommAck(SDPMessage):
    """
    The answer to L{SuspComm}.
    """

    mid = MID.SUSP_COMM_ACK


@frozen(kw_only=True)
class SinkAvail(StreamMessage):
    """
    A buffer that the source may write to (Pipelined mode).

    @ivar length: Its size.
    @ivar rkey: Its R_Key.
    @ivar address: Its virtual address.
    @ivar nonDiscards: Messages with payload that the sink has accepted.
    @ivar payload: Bytes of the other direction's stream.
    """

    mid = MID.SINK_AVAIL
    layout = struct.Struct(">IIQI")
    names = ("length", "rkey", "address", "nonDiscards")

    length: int
    rkey: int
    address: int
    nonDiscards: int

    def _check(self) -> None:
        if self.length == 0:
            raise SDPWireError("SinkAvail of 0 bytes")


@frozen(kw_only=True)
class SrcAvail(StreamMessage):
    """
    A buffer that the sink may read from.

    @ivar length: Its size, the payload of this message included.
    @ivar rkey: Its R_Key.
    @ivar address: Its virtual address.
    @ivar payload: The first bytes of it (Combined mode).
    """

    mid = MID.SRC_AVAIL
    layout = struct.Struct(">IIQ")
    names = ("length", "rkey", "address")

    length: int
    rkey: int
    address: int

    def _check(self) -> None:
        if self.length <= len(self.payload):
            raise SDPWireError(f"SrcAvail of {self.length} bytes carries {len(self.payload)} of them")


@frozen(kw_only=True)
class Data(StreamMessage):
    """
    Bytes of the stream, or none: then it only tells Bufs and MSeqAck.
    """

    mid = MID.DATA


def parseMessage(buffer: _Buffer, start: int = 0, stop: int | None = None) -> SDPMessage:
    """
    Read a message of whatever class.

    @param buffer: what holds the message.
    @param start: offset of its BSDH.
    @param stop: offset after it; by default the buffer's end.
    @return: an object of the class for its MID.
    @raise SDPWireError: It is none.
    """
    end = len(buffer) if stop is None else stop
    if not 0 <= start < end <= len(buffer):
        raise SDPWireError("an empty message")
    messageClass = byMID.get(buffer[start])
    if messageClass is None:
        raise SDPWireError(f"message id 0x{buffer[start]:02x} is unknown")
    return messageClass.parse(buffer, start, end)


MESSAGES: tuple[type[SDPMessage], ...] = (
    Hello,
    HelloAck,
    DisConn,
    AbortConn,
    SendSm,
    RdmaWrCompl,
    RdmaRdCompl,
    ModeChange,
    SrcAvailCancel,
    SinkAvailCancel,
    SinkCancelAck,
    ChRcvBuf,
    ChRcvBufAck,
    SuspComm,
    SuspCommAck,
    SinkAvail,
    SrcAvail,
    Data,
)
byMID: dict[int, type[SDPMessage]] = {message.mid: message for message in MESSAGES}
