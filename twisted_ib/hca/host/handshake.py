"""
The handshake of two processes before they share rings.

The client connects to the HCA's SEQPACKET socket and sends first::

    HELLO  + descriptors  ->
                          <-  HELLO + descriptors, or REFUSE
    (REFUSE               ->  if the client cannot accept that)

    QUERY                 ->
                          <-  ANSWER (a JSON object)
    (QUERY                ->  for the next page of a long answer
                          <-  ANSWER, and so on)

One message is one packet: a head of 16 bytes, then a body, all big endian.  The head and REFUSE are the
same in every version of the layout, so that two versions can report why they are incompatible.

Each Hello declares capabilities: rings (without them records travel over this socket) and an eventfd as
doorbell (without it a byte on this socket).  Features that both declare are used.  With rings comes the
descriptor of the sender's segment; with the eventfd as well, that of its doorbell after it.

Pure: bytes in, bytes out; descriptors are only counted here.
"""

from __future__ import annotations

import json
import struct
from enum import Enum, IntEnum, IntFlag
from typing import TYPE_CHECKING, Any, ClassVar

from twisted_ib import errors, limits
from twisted_ib.errors import HandshakeError, LayoutError
from twisted_ib.layouts import FrozenRecord
from twisted_ib.records import frozen

if TYPE_CHECKING:
    from twisted_ib.structs import Packed


#: The largest handshake message; answers to queries may be longer.
HANDSHAKE_BYTES = 512
#: The longest text of a refusal in a handshake, in bytes of UTF-8.
REFUSAL_BYTES = 256
#: How long a peer that connected to us may take for its part of a handshake, in seconds: without a bound,
#: silent connections would use up the slots for peers.
HANDSHAKE_SECONDS = 5.0
#: How long a peer is dialled, in seconds: about as long as Linux repeats a SYN (tcp_syn_retries 6, 127 s;
#: tcp_timer.c).  Those who wait for it have timeouts of their own.
DIAL_SECONDS = 128.0

MAGIC = b"TWSTD_IB"
#: Of the segments, and of what processes send each other over them: 2 ends streams without DREQ and DREP, and
#: opens them without RTU.
LAYOUT_VERSION = 2

_HEAD: Packed[tuple[bytes, int, int, int]] = struct.Struct(
    ">8sHBxI"
)  # magic, layout version, kind, reserved, body length
_HELLO: Packed[tuple[int, int, int, int, int, int]] = struct.Struct(
    ">QIIIIH"
)  # guid, pid, ring, slack, offers, program's length
_REFUSE: Packed[tuple[int, int]] = struct.Struct(">HH")  # reason, length of the text
_ALL_OFFERS = 0x3


class HandshakeFlags(IntFlag):
    """
    The capabilities that a Hello declares.
    """

    RINGS = 1
    EVENTFD = 2


class RefuseReason(IntEnum):
    """
    The reasons of a REFUSE, with numbers of their own (the CM has a REJ's: IBTA vol. 1 12.6.7.2).
    """

    MALFORMED = 1
    LAYOUT = 2
    DESCRIPTORS = 3
    SEGMENT = 4
    DOORBELL = 5
    IDENTITY = 6
    SILENCE = 7
    BUSY = 8


def _message(kind: int, body: bytes, version: int = LAYOUT_VERSION) -> bytes:
    return _HEAD.pack(MAGIC, version, kind, len(body)) + body


def _text(data: bytes, limit: int) -> str:
    # From a peer, and destined for logs and terminals: an escape sequence must not get there.
    shown = data[:limit].decode("utf-8", "replace")
    return "".join([c if c.isprintable() else "?" for c in shown])


def _cut(text: str, limit: int) -> bytes:
    # RFC 3629 section 3: a cut may fall within a character; the second pass drops the partial one.
    return text.encode("utf-8", "replace")[:limit].decode("utf-8", "ignore").encode("utf-8")


class Body(FrozenRecord):
    """
    The contents of a message, behind its head.

    @cvar KIND: its number in the head.
    """

    __slots__ = ()

    KIND: ClassVar[int]

    def pack(self) -> bytes:
        """
        @return: the message.
        @raise HandshakeError: it would be too long.
        """
        raise NotImplementedError

    @classmethod
    def parse(cls, body: memoryview) -> Body:
        """
        @raise HandshakeError: it is malformed.
        """
        raise NotImplementedError


@frozen(eq=False, repr=False)
class Hello(Body):
    """
    A side's identity, layout and capabilities.

    @ivar guid: of its HCA.
    @ivar pid: its process by its own account; for display only.
    @ivar ringBytes: size of its ring.
    @ivar slackBytes: bytes behind the ring's end for a record that runs over.
    @ivar offers: see L{HandshakeFlags}.
    @ivar program: its name, for display.
    """

    KIND: ClassVar[int] = 1

    guid: int
    pid: int
    ringBytes: int
    slackBytes: int
    offers: HandshakeFlags
    program: str = ""

    @property
    def descriptors(self) -> int:
        """
        How many descriptors come with this message.
        """
        if not self.offers & HandshakeFlags.RINGS:
            return 0
        return 2 if self.offers & HandshakeFlags.EVENTFD else 1

    def pack(self) -> bytes:
        program = _cut(self.program, limits.PROGRAM_BYTES)
        fixed = _HELLO.pack(
            self.guid, self.pid, self.ringBytes, self.slackBytes, int(self.offers), len(program)
        )
        return _message(self.KIND, fixed + program)

    @classmethod
    def parse(cls, body: memoryview) -> Hello:
        if len(body) < _HELLO.size:
            raise HandshakeError(f"a peer's hello is too short ({len(body)} bytes)")
        guid, pid, ringBytes, slackBytes, offers, length = _HELLO.unpack_from(body)
        if length > limits.PROGRAM_BYTES or length != len(body) - _HELLO.size:
            raise HandshakeError("a peer's hello has a program name of another length than it says")
        # A flag that is unknown here may imply descriptors or another layout; a newer layout has a newer
        # version instead.
        if offers & ~_ALL_OFFERS:
            raise HandshakeError(f"a peer offers what nobody knows ({offers:#x})")
        program = _text(bytes(body[_HELLO.size :]), limits.PROGRAM_BYTES)
        return cls(guid, pid, ringBytes, slackBytes, HandshakeFlags(offers), program)


@frozen(eq=False, repr=False)
class Refuse(Body):
    """
    The refusal of a handshake.

    @ivar reason: a L{RefuseReason}, or a number that only a newer peer knows.
    @ivar text: the same for people.
    """

    KIND: ClassVar[int] = 2

    reason: int
    text: str

    def pack(self) -> bytes:
        text = _cut(self.text, REFUSAL_BYTES)
        return _message(self.KIND, _REFUSE.pack(self.reason, len(text)) + text)

    @classmethod
    def parse(cls, body: memoryview) -> Refuse:
        if len(body) < _REFUSE.size:
            raise HandshakeError("a peer's refusal is too short")
        reason, length = _REFUSE.unpack_from(body)
        if length > REFUSAL_BYTES or length != len(body) - _REFUSE.size:
            raise HandshakeError("a peer's refusal has a text of another length than it says")
        return cls(reason, _text(bytes(body[_REFUSE.size :]), REFUSAL_BYTES))


class Subject(Enum):
    """
    The subject of a query; the value is the query's body.
    """

    #: The HCA's attributes and what it has in use: one answer.
    DEVICE = b""
    #: The listeners and connections of its process: several pages.
    SOCKETS = b"sockets"


@frozen(eq=False, repr=False)
class Query(Body):
    """
    A request for information about an HCA.
    """

    KIND: ClassVar[int] = 3

    subject: Subject = Subject.DEVICE

    def pack(self) -> bytes:
        return _message(self.KIND, self.subject.value)

    @classmethod
    def parse(cls, body: memoryview) -> Query:
        try:
            return cls(Subject(bytes(body)))
        except ValueError:
            raise HandshakeError("an asker's query is about something unknown here") from None


@frozen(eq=False, repr=False)
class QueryAnswer(Body):
    """
    The answer of an HCA.

    @ivar content: a JSON object.
    """

    KIND: ClassVar[int] = 4

    content: dict[str, Any]

    def pack(self) -> bytes:
        body = json.dumps(self.content).encode("ascii")
        if len(body) > limits.ANSWER_BYTES - _HEAD.size:
            raise HandshakeError(f"an answer of {len(body)} bytes is too long")
        return _message(self.KIND, body)

    @classmethod
    def parse(cls, body: memoryview) -> QueryAnswer:
        try:
            content = json.loads(bytes(body))
        # RFC 8259 section 9 lets a parser limit nesting: Python's runs into its recursion limit.
        except (ValueError, RecursionError) as error:
            raise HandshakeError("an HCA's answer is not JSON") from error
        if not isinstance(content, dict):
            raise HandshakeError("an HCA's answer is not a JSON object")
        return cls(content)


Message = Hello | Refuse | Query | QueryAnswer


def parse(data: bytes) -> Message:
    """
    Parse one packet.

    @raise LayoutError: the peer has another version of the layout.
    @raise HandshakeError: it is malformed.
    """
    if len(data) < _HEAD.size:
        raise HandshakeError(f"a peer's message of {len(data)} bytes has no head")
    magic, version, kind, length = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise HandshakeError("a peer does not speak the protocol of twisted_ib")
    if length != len(data) - _HEAD.size:
        raise HandshakeError("a peer's message has another length than it says")
    # Bodies other than REFUSE's may differ between versions, so the version comes before the kind.
    if version != LAYOUT_VERSION and kind != Refuse.KIND:
        raise LayoutError(
            f"a peer has version {version} of the shared-memory layout, this is version {LAYOUT_VERSION}"
        )
    found = _KINDS.get(kind)
    if found is None:
        raise HandshakeError(f"a peer sent a message of unknown kind {kind}")
    return found.parse(memoryview(data)[_HEAD.size :])


_REASONS: dict[type[errors.HCAError], RefuseReason] = {
    errors.LayoutError: RefuseReason.LAYOUT,
    errors.DescriptorError: RefuseReason.DESCRIPTORS,
    errors.SegmentError: RefuseReason.SEGMENT,
    errors.DoorbellError: RefuseReason.DOORBELL,
    errors.PeerIdentityError: RefuseReason.IDENTITY,
    errors.SilentPeerError: RefuseReason.SILENCE,
    errors.ResourceLimitError: RefuseReason.BUSY,
}


def refusalOf(error: errors.HCAError) -> Refuse:
    """
    @return: The refusal to send to the peer that caused C{error}.
    """
    return Refuse(_REASONS.get(type(error), RefuseReason.MALFORMED), str(error))


class Handshake:
    """
    One side of one handshake.

    @ivar ours: our Hello.
    @ivar theirs: the peer's, L{None} before it came.
    @ivar deadline: when the peer's part is overdue; L{None} when it has come.
    @ivar asked: the peer's query, if it is an asker.
    """

    __slots__ = ("_seconds", "_server", "asked", "deadline", "ours", "theirs")

    def __init__(self, ours: Hello, server: bool, now: float) -> None:
        """
        @param server: whether the peer connected to us.
        """
        self.ours = ours
        self.theirs: Hello | None = None
        self.asked: Query | None = None
        self._seconds = HANDSHAKE_SECONDS if server else DIAL_SECONDS
        self.deadline: float | None = now + self._seconds
        self._server = server

    @property
    def agreed(self) -> HandshakeFlags:
        """
        The capabilities that both sides declare.
        """
        theirs = self.theirs
        assert theirs is not None
        both = self.ours.offers & theirs.offers
        # Without rings there is nothing for a doorbell to announce.
        return both if both & HandshakeFlags.RINGS else HandshakeFlags(0)

    def received(self, data: bytes, descriptors: int) -> Hello | Query:
        """
        Process a packet.

        @param descriptors: how many came with it.
        @return: the peer's Hello, or (to a server) a query.
        @raise errors.PeerRefusedError: the peer refused.
        @raise errors.PathLostError: it hung up.
        @raise HandshakeError: or a subclass: the packet is malformed or out of order.
        """
        if self.theirs is not None:
            raise HandshakeError("a peer spoke twice")
        if not data:
            raise errors.PathLostError("a peer hung up in the handshake")
        message = parse(data)
        expected = message.descriptors if isinstance(message, Hello) else 0
        # Before anything else is believed: the caller takes descriptors off its list by position.
        if descriptors != expected:
            raise errors.DescriptorError(f"a peer sent {descriptors} descriptors where {expected} belong")
        # A query holds a slot among the peers: it may fetch the next page, not turn into a handshake with a
        # new deadline.
        if self.asked is not None and message != self.asked:
            raise HandshakeError("an asker sent something else than its query again")
        if isinstance(message, Hello):
            self._checkHello(message)
            self.theirs = message
        elif isinstance(message, Refuse):
            raise errors.PeerRefusedError(f"a peer refused: {message.text}")
        elif not (self._server and isinstance(message, Query)):
            raise HandshakeError("a peer sent a message that is not for this side")
        else:
            self.asked = message
        self.deadline = None
        return message

    def pageSent(self, now: float) -> None:
        """
        Expect an asker's query for the next page in time.
        """
        self.deadline = now + HANDSHAKE_SECONDS

    def _checkHello(self, theirs: Hello) -> None:
        # Also where the records travel over the socket: the sizes bound a record.
        sizes = f"{theirs.ringBytes} + {theirs.slackBytes}"
        needed = f"{self.ours.ringBytes} + {self.ours.slackBytes}"
        if sizes != needed:
            raise LayoutError(f"a peer has rings of {sizes} bytes, here they are {needed}")

    def tick(self, now: float) -> None:
        """
        Check the deadline.

        @raise errors.SilentPeerError: the peer has not sent its part in time.
        """
        if self.isOverdue(now):
            raise errors.SilentPeerError(f"a peer was silent for {self._seconds:g} seconds in the handshake")

    def isOverdue(self, now: float) -> bool:
        """
        Whether the deadline has passed.
        """
        return self.deadline is not None and now >= self.deadline


_KINDS: dict[int, type[Hello] | type[Refuse] | type[Query] | type[QueryAnswer]] = {
    kind.KIND: kind for kind in (Hello, Refuse, Query, QueryAnswer)
}
