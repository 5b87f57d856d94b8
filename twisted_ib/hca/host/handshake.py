"""
What two processes say to each other before they share rings.

The client connects to the HCA's SEQPACKET socket and speaks first::

    HELLO  + descriptors  ->
                          <-  HELLO + descriptors, or REFUSE
    (REFUSE               ->  if the answer is not to its liking)

    QUERY                 ->
                          <-  ANSWER (a JSON object)
    (QUERY                ->  the next page of an answer that has several
                          <-  ANSWER, and so on)

One message is one packet: a head of 16 bytes, then a body.  All is big endian.
The head and REFUSE are the same in every version of the layout, so that two
versions can tell each other why they cannot talk.

Both say what they offer: rings (else the records travel over this socket) and
an eventfd as doorbell (else a byte on this socket).  What both offer is used.
With rings comes the descriptor of the sender's segment, then, with the eventfd
offered too, that of its doorbell.

Pure: bytes in, bytes out; descriptors are only counted here.
"""

from __future__ import annotations

import json
import struct
from enum import Enum, IntEnum, IntFlag
from typing import Any, ClassVar

import attrs

from twisted_ib import errors, limits
from twisted_ib.errors import HandshakeError, LayoutError

#: The longest text of a refusal in a handshake, in bytes of UTF-8.
REFUSAL_BYTES = 256
#: How long a peer may take for its part of a handshake.
HANDSHAKE_SECONDS = 5.0

MAGIC = b"TWSTD_IB"
LAYOUT_VERSION = 1

_HEAD = struct.Struct(">8sHBxI")  # magic, layout version, kind, reserved, body length
_HELLO = struct.Struct(">QIIIIH")  # guid, pid, ring, slack, offers, program's length
_REFUSE = struct.Struct(">HH")  # reason, length of the text
_ALL_OFFERS = 0x3


class HandshakeFlags(IntFlag):
    """
    What a side can do.
    """

    RINGS = 1
    EVENTFD = 2


class RefuseReason(IntEnum):
    """
    Why a side refuses.
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
    """
    Text from a peer, safe to show in one line.
    """
    shown = data[:limit].decode("utf-8", "replace")
    return "".join([c if c.isprintable() else "?" for c in shown])


def _cut(text: str, limit: int) -> bytes:
    """
    C{text} as UTF-8, at most C{limit} bytes, no character cut in two.
    """
    return text.encode("utf-8", "replace")[:limit].decode("utf-8", "ignore").encode("utf-8")


@attrs.frozen
class Hello:
    """
    A side names itself, its layout and its offers.

    @ivar guid: of its HCA.
    @ivar pid: its process number as it sees it; for display only.
    @ivar ringBytes: data bytes of its ring.
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
        """
        The message.
        """
        program = _cut(self.program, limits.PROGRAM_BYTES)
        fixed = _HELLO.pack(
            self.guid, self.pid, self.ringBytes, self.slackBytes, int(self.offers), len(program)
        )
        return _message(self.KIND, fixed + program)

    @classmethod
    def parse(cls, body: memoryview) -> Hello:
        """
        The message with this body.

        @raise HandshakeError: it is malformed.
        """
        if len(body) < _HELLO.size:
            raise HandshakeError(f"a peer's hello is too short ({len(body)} bytes)")
        guid, pid, ringBytes, slackBytes, offers, length = _HELLO.unpack_from(body)
        if length > limits.PROGRAM_BYTES or length != len(body) - _HELLO.size:
            raise HandshakeError("a peer's hello has a program name of another length than it says")
        if offers & ~_ALL_OFFERS:
            raise HandshakeError(f"a peer offers what nobody knows ({offers:#x})")
        program = _text(bytes(body[_HELLO.size :]), limits.PROGRAM_BYTES)
        return cls(guid, pid, ringBytes, slackBytes, HandshakeFlags(offers), program)


@attrs.frozen
class Refuse:
    """
    A side will not go on.

    @ivar reason: a L{RefuseReason}, or a number that only a newer peer knows.
    @ivar text: the same for people.
    """

    KIND: ClassVar[int] = 2

    reason: int
    text: str

    def pack(self) -> bytes:
        """
        The message.
        """
        text = _cut(self.text, REFUSAL_BYTES)
        return _message(self.KIND, _REFUSE.pack(self.reason, len(text)) + text)

    @classmethod
    def parse(cls, body: memoryview) -> Refuse:
        """
        The message with this body.

        @raise HandshakeError: it is malformed.
        """
        if len(body) < _REFUSE.size:
            raise HandshakeError("a peer's refusal is too short")
        reason, length = _REFUSE.unpack_from(body)
        if length > REFUSAL_BYTES or length != len(body) - _REFUSE.size:
            raise HandshakeError("a peer's refusal has a text of another length than it says")
        return cls(reason, _text(bytes(body[_REFUSE.size :]), REFUSAL_BYTES))


class Subject(Enum):
    """
    What an asker wants to know; the value is the query's body.
    """

    #: What the HCA is, can do and has in use: one answer.
    DEVICE = b""
    #: The listeners and connections of its process: pages.
    SOCKETS = b"sockets"


@attrs.frozen
class Query:
    """
    An asker wants to know something of an HCA.

    @ivar subject: what.
    """

    KIND: ClassVar[int] = 3

    subject: Subject = Subject.DEVICE

    def pack(self) -> bytes:
        """
        The message.
        """
        return _message(self.KIND, self.subject.value)

    @classmethod
    def parse(cls, body: memoryview) -> Query:
        """
        The message with this body.

        @raise HandshakeError: it is about something that nobody knows here.
        """
        try:
            return cls(Subject(bytes(body)))
        except ValueError:
            raise HandshakeError("an asker's query is about something unknown here") from None


@attrs.frozen
class QueryAnswer:
    """
    What an HCA says of itself.

    @ivar content: a JSON object.
    """

    KIND: ClassVar[int] = 4

    content: dict[str, Any]

    def pack(self) -> bytes:
        """
        The message.

        @raise HandshakeError: it would be longer than L{limits.ANSWER_BYTES}.
        """
        body = json.dumps(self.content).encode("ascii")
        if len(body) > limits.ANSWER_BYTES - _HEAD.size:
            raise HandshakeError(f"an answer of {len(body)} bytes is too long")
        return _message(self.KIND, body)

    @classmethod
    def parse(cls, body: memoryview) -> QueryAnswer:
        """
        The message with this body.

        @raise HandshakeError: it is no JSON object.
        """
        try:
            content = json.loads(bytes(body))
        except (ValueError, RecursionError) as error:
            raise HandshakeError("an HCA's answer is not JSON") from error
        if not isinstance(content, dict):
            raise HandshakeError("an HCA's answer is not a JSON object")
        return cls(content)


Message = Hello | Refuse | Query | QueryAnswer


def parse(data: bytes) -> Message:
    """
    One packet.

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
    What to send to the peer that caused C{error}.
    """
    return Refuse(_REASONS.get(type(error), RefuseReason.MALFORMED), str(error))


class Handshake:
    """
    One side of one handshake.

    @ivar ours: our hello.
    @ivar theirs: the peer's, None before it came.
    @ivar deadline: when the peer's part is overdue; None when it has come.
    @ivar asked: what the peer has asked for, if it only asks.
    """

    __slots__ = ("_server", "asked", "deadline", "ours", "theirs")

    def __init__(self, ours: Hello, server: bool, now: float) -> None:
        """
        Begin.

        @param server: whether the peer connected to us.
        """
        self.ours = ours
        self.theirs: Hello | None = None
        self.asked: Query | None = None
        self.deadline: float | None = now + HANDSHAKE_SECONDS
        self._server = server

    @property
    def agreed(self) -> HandshakeFlags:
        """
        What both offer.
        """
        theirs = self.theirs
        assert theirs is not None
        both = self.ours.offers & theirs.offers
        return both if both & HandshakeFlags.RINGS else HandshakeFlags(0)

    def received(self, data: bytes, descriptors: int) -> Hello | Query:
        """
        A packet came.

        @param descriptors: how many came with it.
        @return: the peer's hello, or (to a server) a query.
        @raise errors.PeerRefusedError: the peer refused.
        @raise HandshakeError: or a subclass that says what is wrong with it.
        """
        if self.theirs is not None:
            raise HandshakeError("a peer spoke twice")
        if not data:
            raise HandshakeError("a peer hung up in the handshake")
        message = parse(data)
        expected = message.descriptors if isinstance(message, Hello) else 0
        if descriptors != expected:
            raise errors.DescriptorError(f"a peer sent {descriptors} descriptors where {expected} belong")
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
        An asker has a page of its answer, and is to ask for the next one in time.
        """
        self.deadline = now + HANDSHAKE_SECONDS

    def _checkHello(self, theirs: Hello) -> None:
        """
        Whether the peer's rings are laid out as ours.

        The sizes must match even where the records travel over the socket:
        they bound a record.

        @raise LayoutError: they are not.
        """
        sizes = f"{theirs.ringBytes} + {theirs.slackBytes}"
        needed = f"{self.ours.ringBytes} + {self.ours.slackBytes}"
        if sizes != needed:
            raise LayoutError(f"a peer has rings of {sizes} bytes, here they are {needed}")

    def tick(self, now: float) -> None:
        """
        Time has passed.

        @raise errors.SilentPeerError: the peer has not spoken in time.
        """
        if self.deadline is not None and now >= self.deadline:
            raise errors.SilentPeerError(
                f"a peer was silent for {HANDSHAKE_SECONDS:g} seconds in the handshake"
            )


_KINDS: dict[int, type[Hello] | type[Refuse] | type[Query] | type[QueryAnswer]] = {
    kind.KIND: kind for kind in (Hello, Refuse, Query, QueryAnswer)
}


__all__ = [
    "LAYOUT_VERSION",
    "MAGIC",
    "Handshake",
    "HandshakeFlags",
    "Hello",
    "Message",
    "Query",
    "QueryAnswer",
    "Refuse",
    "RefuseReason",
    "Subject",
    "parse",
    "refusalOf",
]
