"""
L{twisted_ib.hca.fabric.iwarp.protocol.receiving}: each state with each input, and each rule broken.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.fabric.iwarp.protocol.examples import (
    ReadRequestHeader,
    TaggedHeader,
    UntaggedHeader,
    ulpdu,
)
from tests.hca.fabric.iwarp.protocol.rdmap import BASE, KEY, End
from twisted_ib import limits
from twisted_ib.hca.base.operation import SOLICITED
from twisted_ib.hca.fabric.iwarp.protocol import terminate
from twisted_ib.hca.fabric.iwarp.protocol.ddp import Opcode
from twisted_ib.hca.fabric.iwarp.protocol.terminate import (
    CATASTROPHIC_STREAM,
    INVALID_OFFSET,
    INVALID_QUEUE,
    MESSAGE_TOO_LONG,
    NO_MATCHING_RTR,
    SEQUENCE_RANGE,
    TAGGED_BASE_BOUNDS,
    TAGGED_INVALID_STAG,
    UNEXPECTED_OPCODE,
    Termination,
    TerminationError,
)
from twisted_ib.hca.wire.headers import RNR
from twisted_ib.hca.wire.opcodes import (
    READ_REQUEST,
    READ_RESPONSE_FIRST,
    READ_RESPONSE_LAST,
    READ_RESPONSE_MIDDLE,
    READ_RESPONSE_ONLY,
    SEND_FIRST,
    SEND_LAST,
    SEND_LAST_INVALIDATE,
    SEND_MIDDLE,
    SEND_ONLY,
    SEND_ONLY_INVALIDATE,
    WRITE_ONLY,
)

#: The sink of an end's first READ.
SINK = 0x15A


def send(
    payload: bytes = b"ab",
    isLast: bool = True,
    offset: int = 0,
    opcode: int = Opcode.SEND,
    sequence: int = 1,
    key: int = 0,
    queue: int = 0,
) -> bytes:
    """
    @return: a segment of a Send.
    """
    return UntaggedHeader(opcode, isLast, key, queue, sequence, offset).pack() + payload


def read(
    size: int = 4,
    sequence: int = 1,
    isLast: bool = True,
    offset: int = 0,
    queue: int = 1,
    sink: int = 0x1000,
    source: int = BASE,
) -> bytes:
    """
    @return: a Read Request.
    """
    header = UntaggedHeader(Opcode.READ_REQUEST, isLast, 0, queue, sequence, offset)
    return header.pack() + ReadRequestHeader(7, sink, size, KEY, source).pack()


def write(payload: bytes = b"cd", isLast: bool = True, offset: int = BASE) -> bytes:
    """
    @return: a segment of a Write.
    """
    return TaggedHeader(Opcode.WRITE, isLast, KEY, offset).pack() + payload


def response(payload: bytes = b"efgh", isLast: bool = True, offset: int = 0, stag: int = SINK) -> bytes:
    """
    @return: a segment of a Read Response.
    """
    return TaggedHeader(Opcode.READ_RESPONSE, isLast, stag, offset).pack() + payload


def take(end: End, octets: bytes) -> int:
    """
    Give an end one ULPDU, and check that it leaves alone what is not the ULPDU's.
    """
    buffer = bytearray(b"<<<<" + len(octets).to_bytes(2, "big") + octets + b">>>>")
    try:
        return end.receiver.take(buffer, 6, 6 + len(octets))
    finally:
        assert buffer[:4] == b"<<<<" and buffer[-4:] == b">>>>", buffer


END = ulpdu("Terminate tagged")
#: State -> the arguments of the end, what it asks for, and what it has received.
STATES: dict[str, tuple[dict[str, Any], tuple[int, ...], tuple[bytes, ...]]] = {
    "idle": ({}, (), ()),
    "within a Send": ({}, (), (send(isLast=False),)),
    "asked": ({}, (4,), ()),
    "within a response": ({}, (4,), (response(b"e", False),)),
    "within both": ({}, (4,), (send(isLast=False), response(b"e", False))),
    "before write": ({"ready": "write"}, (), ()),
    "before read": ({"ready": "read"}, (), ()),
    "before send": ({"ready": "send"}, (), ()),
    "ended": ({}, (4,), (END,)),
}
INPUTS = {
    "Send": send(),
    "Send empty": send(b""),
    "Send more": send(isLast=False),
    "Send more empty": send(b"", isLast=False),
    "Send on": send(offset=2),
    "Send on more": send(isLast=False, offset=2),
    "Send on more empty": send(b"", isLast=False, offset=2),
    "SendSE on": send(offset=2, opcode=Opcode.SEND_SOLICITED),
    "SendSE": send(opcode=Opcode.SEND_SOLICITED),
    "SendInv": send(opcode=Opcode.SEND_INVALIDATE, key=5),
    "Write": write(),
    "Write more": write(isLast=False),
    "Write empty": write(b"", offset=0),
    "Read": read(),
    "Read empty": read(0),
    "response": response(),
    "response empty": response(b""),
    "response more": response(b"e", False),
    "response more empty": response(b"", False),
    "response on": response(b"fgh", offset=1),
    "response on more": response(b"f", False, 1),
    "Terminate": END,
    "reserved": send(opcode=15),
}
#: The records of inputs.
WROTE = (WRITE_ONLY, BASE.to_bytes(8, "big") + KEY.to_bytes(4, "big") + b"\0\0\0\2cd")
WROTE_NOTHING = (WRITE_ONLY, bytes(8) + KEY.to_bytes(4, "big") + bytes(4))
READS = (READ_REQUEST, BASE.to_bytes(8, "big") + KEY.to_bytes(4, "big") + b"\0\0\0\4")
READS_NOTHING = (READ_REQUEST, BASE.to_bytes(8, "big") + KEY.to_bytes(4, "big") + bytes(4))
TERMINATED, READY, NOTHING = "terminated", "ready", None

#: Where no Send is unfinished, and where one is.
_SEND = {
    "Send": (SEND_ONLY, b"ab"),
    "Send empty": (SEND_ONLY, b""),
    "Send more": (SEND_FIRST, b"ab"),
    "Send more empty": NOTHING,
    "Send on": INVALID_OFFSET,
    "Send on more": INVALID_OFFSET,
    "Send on more empty": INVALID_OFFSET,
    "SendSE on": INVALID_OFFSET,
    "SendSE": (SEND_ONLY | SOLICITED, b"ab"),
    "SendInv": (SEND_ONLY_INVALIDATE, b"\0\0\0\5ab"),
}
_SEND_ON = {
    **dict.fromkeys(_SEND, INVALID_OFFSET),
    "Send on": (SEND_LAST, b"ab"),
    "Send on more": (SEND_MIDDLE, b"ab"),
    "Send on more empty": NOTHING,
    "SendSE on": UNEXPECTED_OPCODE,
}
_OTHERS = {
    "Write": WROTE,
    "Write more": WROTE,
    "Write empty": WROTE_NOTHING,
    "Read": READS,
    "Read empty": READS_NOTHING,
    "Terminate": TERMINATED,
    "reserved": UNEXPECTED_OPCODE,
}
#: Without a READ, with one that has no response yet, and within its response.
_UNASKED = dict.fromkeys((name for name in INPUTS if name.startswith("response")), UNEXPECTED_OPCODE)
_ASKED = {
    "response": (READ_RESPONSE_ONLY, b"efgh"),
    "response empty": TAGGED_BASE_BOUNDS,
    "response more": (READ_RESPONSE_FIRST, b"e"),
    "response more empty": NOTHING,
    "response on": TAGGED_BASE_BOUNDS,
    "response on more": TAGGED_BASE_BOUNDS,
}
_RESPONDED = {
    **dict.fromkeys(_UNASKED, TAGGED_BASE_BOUNDS),
    "response on": (READ_RESPONSE_LAST, b"fgh"),
    "response on more": (READ_RESPONSE_MIDDLE, b"f"),
}
_BEFORE: dict[str, Any] = {
    **dict.fromkeys(INPUTS, NO_MATCHING_RTR),
    **dict.fromkeys(("Send on", "Send on more", "Send on more empty", "SendSE on"), INVALID_OFFSET),
    "Terminate": TERMINATED,
    "reserved": UNEXPECTED_OPCODE,
}
#: State -> input -> a record, an error, or what else is told.
TABLE: dict[str, dict[str, Any]] = {
    "idle": {**_SEND, **_OTHERS, **_UNASKED},
    "within a Send": {**_SEND_ON, **_OTHERS, **_UNASKED},
    "asked": {**_SEND, **_OTHERS, **_ASKED},
    "within a response": {**_SEND, **_OTHERS, **_RESPONDED},
    "within both": {**_SEND_ON, **_OTHERS, **_RESPONDED},
    "before write": {**_BEFORE, "Write empty": READY},
    "before read": {**_BEFORE, "Read empty": READY},
    "before send": {**_BEFORE, "Send empty": READY},
    "ended": dict.fromkeys(INPUTS, NOTHING),
}


def reach(state: str) -> End:
    """
    @return: an end in a state, that has forgotten how it came there.
    """
    arguments, asked, received = STATES[state]
    end = End(**arguments)
    for length in asked:
        end.bookkeeping.ask(length)
    for octets in received:
        assert not take(end, octets)
    end.records.clear()
    end.terminations.clear()
    return end


class StateTests(SynchronousTestCase):
    """
    The table.
    """

    def test_everyInputInEveryState(self) -> None:
        """
        Each input is delivered, consumed or refused as the table says.
        """
        self.assertEqual(set(TABLE), set(STATES))
        for state, row in TABLE.items():
            self.assertEqual(set(row), set(INPUTS), state)
            for name, expected in row.items():
                end = reach(state)
                found: Any = NOTHING
                try:
                    self.assertEqual(take(end, INPUTS[name]), 0)
                except TerminationError as error:
                    found = error.termination
                if end.records:
                    [found] = end.records
                elif end.ready:
                    found = READY
                elif end.terminations:
                    found = TERMINATED
                self.assertEqual(found, expected, (state, name))

    def test_reserved(self) -> None:
        """
        Reserved bits change nothing, in any state.
        """
        for state, row in TABLE.items():
            for name, expected in row.items():
                octets = bytearray(INPUTS[name])
                octets[0] |= 0x3C
                octets[1] |= 0x30
                end = reach(state)
                if isinstance(expected, Termination):
                    error = self.assertRaises(TerminationError, take, end, octets)
                    self.assertEqual(error.termination, expected)
                else:
                    self.assertEqual(take(end, octets), 0)
                    if isinstance(expected, tuple):
                        self.assertEqual(end.records, [expected], (state, name))

    def test_refused(self) -> None:
        """
        What the user refuses has changed nothing: given again from the same octets, it is delivered as if
        for the first time.
        """
        for state, row in TABLE.items():
            for name, expected in row.items():
                if not isinstance(expected, tuple) or name.startswith("response"):
                    continue
                end = reach(state)
                inbound = list(end.bookkeeping.inbound)
                octets = INPUTS[name]
                buffer = bytearray(len(octets).to_bytes(2, "big") + octets)
                before = bytes(buffer)
                end.syndromes = [RNR | 3, 0x41]
                for syndrome in (RNR | 3, 0x41):
                    self.assertEqual(end.receiver.take(buffer, 2, len(buffer)), syndrome)
                    self.assertEqual(bytes(buffer), before, (state, name))
                    self.assertEqual(list(end.bookkeeping.inbound), inbound)
                self.assertEqual(end.receiver.take(buffer, 2, len(buffer)), 0)
                self.assertEqual(end.records, [expected])


class RuleTests(SynchronousTestCase):
    """
    Each rule broken.
    """

    def refused(
        self, octets: bytes, termination: Termination, said: str = "", end: End | None = None
    ) -> None:
        """
        A ULPDU ends the stream.
        """
        end = end or End()
        error = self.assertRaises(TerminationError, take, end, octets)
        self.assertEqual(error.termination, termination, octets.hex())
        self.assertIn(termination.text, str(error))
        self.assertIn(said, str(error))
        self.assertEqual(end.records, [])

    def test_versions(self) -> None:
        """
        DDP and RDMAP have version 1; DDP's is looked at first.
        """
        for octets, row in ((send(), terminate.UNTAGGED_VERSION), (write(), terminate.TAGGED_VERSION)):
            for first in (0, 2, 3):
                self.refused(bytes((octets[0] & ~3 | first, octets[1] ^ 0xC0)) + octets[2:], row)
            for second in (0, 0x80, 0xC0):
                other = bytes((octets[0], octets[1] & 0x3F | second)) + octets[2:]
                self.refused(other, terminate.RDMAP_VERSION)
                self.refused(other, terminate.RDMAP_VERSION, end=End(ready="write"))

    def test_opcodes(self) -> None:
        """
        Reserved opcodes, those of RFC 7306, and those of the other kind of buffer are refused by name.
        """
        for code in (Opcode.WRITE, Opcode.READ_RESPONSE, *range(8, 16)):
            name = Opcode(code).name if code < 12 else f"reserved opcode {code}"
            self.refused(send(opcode=code), UNEXPECTED_OPCODE, f"untagged {name}")
        for code in (1, *range(3, 16)):
            name = Opcode(code).name if code < 12 else f"reserved opcode {code}"
            octets = TaggedHeader(code, True, KEY, BASE).pack()
            self.refused(octets, UNEXPECTED_OPCODE, f"tagged {name}")

    def test_queues(self) -> None:
        """
        Each untagged message has its queue.
        """
        for octets, due in ((send(), 0), (read(), 1), (END, 2)):
            for queue in (0, 1, 2, 3, 0xFFFFFFFF):
                if queue != due:
                    other = octets[:6] + queue.to_bytes(4, "big") + octets[10:]
                    self.refused(other, INVALID_QUEUE, f"queue {queue} in place of {due}")

    def test_sequences(self) -> None:
        """
        Message sequence numbers of each queue begin with 1 and go on by 1, whatever the others do.
        """
        for octets in (send(), read(), END):
            for sequence in (0, 2, 0xFFFFFFFF):
                self.refused(octets[:10] + sequence.to_bytes(4, "big") + octets[14:], SEQUENCE_RANGE)
        end = End()
        for octets in (
            send(),
            read(),
            send(sequence=2),
            read(sequence=2),
            read(sequence=3),
            send(sequence=3),
        ):
            self.assertEqual(take(end, octets), 0)
        for octets in (send(sequence=3), send(sequence=5), read(sequence=3), read(sequence=5)):
            end.records.clear()
            self.refused(octets, SEQUENCE_RANGE, end=end)

    def test_wrap(self) -> None:
        """
        They have 32 bits (RFC 5041 section 4.3).
        """
        end = End()
        end.receiver._sequence = end.receiver._readSequence = 0xFFFFFFFF
        for sequence in (0xFFFFFFFF, 0):
            self.assertEqual(take(end, send(isLast=False, sequence=sequence)), 0)
            self.assertEqual(take(end, send(offset=2, sequence=sequence)), 0)
            self.assertEqual(take(end, read(sequence=sequence)), 0)
        self.assertEqual(take(end, send(sequence=1)), 0)

    def test_offsets(self) -> None:
        """
        A message continues where it is; Read Requests and Terminates have one segment.
        """
        for offset in (1, 2, 0xFFFFFFFF):
            for octets in (send(), read(), END):
                self.refused(octets[:14] + offset.to_bytes(4, "big") + octets[18:], INVALID_OFFSET)
        for offset in (0, 1, 3):
            self.refused(send(offset=offset), INVALID_OFFSET, end=reach("within a Send"))

    def test_mixed(self) -> None:
        """
        All segments of a Send have one operation; the last one's key is delivered.
        """
        end = End()
        more = send(isLast=False, opcode=Opcode.SEND_SOLICITED_INVALIDATE, key=1)
        take(end, more)
        end.records.clear()
        self.refused(send(offset=2), UNEXPECTED_OPCODE, "SEND within a message of SEND_SOLICITED", end)
        take(end, send(offset=2, opcode=Opcode.SEND_SOLICITED_INVALIDATE, key=9))
        self.assertEqual(end.records, [(SEND_LAST_INVALIDATE | SOLICITED, b"\0\0\0\x09ab")])

    def test_lengths(self) -> None:
        """
        A segment has its header; a Read Request is one, and no more.
        """
        for octets, size in ((send(), 18), (write(), 14), (response(), 14)):
            for length in range(size):
                self.refused(octets[:length], terminate.DDP_CATASTROPHIC, f"a segment of {length} octets")
        for octets in (read()[:-1], read() + b"x", read()[:18], read(isLast=False)):
            self.refused(octets, CATASTROPHIC_STREAM, f"a Read Request of {len(octets)} octets")
        for length in range(18, 22):
            self.refused(END[:length], CATASTROPHIC_STREAM, "a Terminate of")

    def test_longest(self) -> None:
        """
        A message has a longest length.
        """
        self.patch(limits, "MESSAGE_BYTES", 5)
        end = End()
        self.assertEqual(take(end, send(b"abc", False)), 0)
        end.records.clear()
        self.refused(send(b"def", False, offset=3), MESSAGE_TOO_LONG, "a Send of 6 octets or more", end)
        self.assertEqual(take(end, send(b"de", offset=3)), 0)

    def test_wraps(self) -> None:
        """
        Tagged offsets have 64 bits, and do not wrap around.
        """
        top = (1 << 64) - 2
        self.assertEqual(take(End(), write(offset=top)), 0)
        self.refused(write(offset=top + 1), terminate.TAGGED_OFFSET_WRAP)
        self.assertEqual(take(End(), read(2, sink=top, source=top)), 0)
        self.refused(read(3, sink=top), terminate.PROTECTION_OFFSET_WRAP)
        self.refused(read(3, source=top), terminate.PROTECTION_OFFSET_WRAP)

    def test_depth(self) -> None:
        """
        The peer has no more READs outstanding than agreed; an answered one makes room.
        """
        end = End(ird=2)
        for sequence in (1, 2):
            self.assertEqual(take(end, read(sequence=sequence)), 0)
        end.records.clear()
        self.refused(read(sequence=3), CATASTROPHIC_STREAM, "more than 2 READs", end)
        end.sender.post(end.out, READ_RESPONSE_ONLY, b"", b"", 0)
        self.assertEqual(take(end, read(sequence=3)), 0)
        self.refused(read(), CATASTROPHIC_STREAM, "more than 0 READs", End(ird=0))

    def test_responses(self) -> None:
        """
        A Read Response answers the oldest READ, all of it, and no more.
        """
        for octets, row in (
            (response(stag=SINK + 0x100), TAGGED_INVALID_STAG),
            (response(stag=SINK ^ 1), TAGGED_INVALID_STAG),
            (response(b"efg"), TAGGED_BASE_BOUNDS),
            (response(b"efghi"), TAGGED_BASE_BOUNDS),
            (response(b"efgh", False), TAGGED_BASE_BOUNDS),
            (response(b"efghi", False), TAGGED_BASE_BOUNDS),
            (response(offset=1), TAGGED_BASE_BOUNDS),
            (response(offset=(1 << 64) - 1), TAGGED_BASE_BOUNDS),
        ):
            end = End()
            end.bookkeeping.ask(4)
            end.bookkeeping.ask(4)
            self.refused(octets, row, end=end)
        end = End()
        end.bookkeeping.ask(4)
        for octets, said in (
            (response(b"efg"), "octets 0 to 3, the last, of a READ of 4 at 0"),
            (response(b"efgh", False), "octets 0 to 4, not the last, of a READ of 4 at 0"),
        ):
            self.refused(octets, TAGGED_BASE_BOUNDS, said, end)
        end = End()
        end.bookkeeping.ask(0)
        self.assertEqual(take(end, response(b"", False)), 0)
        self.assertEqual(take(end, response(b"")), 0)
        self.assertEqual(end.records, [(READ_RESPONSE_ONLY, b"")])
        end.records.clear()
        self.refused(response(b""), UNEXPECTED_OPCODE, "a Read Response that answers no Read Request", end)

    def test_postedWithin(self) -> None:
        """
        The next READ can be posted while the last response is delivered, at the agreed depth.
        """
        end = End(ord=1)
        end.bookkeeping.ask(4)
        asked = []
        end.receiver.deliver = lambda *_: asked.append(end.bookkeeping.ask(1)) or 0
        self.assertEqual(take(end, response()), 0)
        self.assertEqual(asked, [SINK + 0x100])

    def test_answeredWithin(self) -> None:
        """
        A Read Response can be posted while its request is delivered.
        """
        end = End()

        def deliver(*_: Any) -> int:
            end.sender.post(end.out, READ_RESPONSE_ONLY, b"", b"data", 4)
            return 0

        end.receiver.deliver = deliver
        self.assertEqual(take(end, read()), 0)
        self.assertEqual(end.sent(), b"\0\x12" + response(b"data", stag=7, offset=0x1000) + bytes(4))
        self.assertFalse(end.bookkeeping.inbound)

    def test_closedWithin(self) -> None:
        """
        The requests may be forgotten while one is delivered, and refused then.
        """
        end = End()

        def deliver(*_: Any) -> int:
            end.bookkeeping.inbound.clear()
            return 0x61

        end.receiver.deliver = deliver
        self.assertEqual(take(end, read()), 0x61)


class ReadyTests(SynchronousTestCase):
    """
    Ready-to-receive messages.
    """

    def test_forms(self) -> None:
        """
        Each of the three arrives, and is consumed; the STag is not looked at, the sequence numbers go on,
        and a READ is answered and its answer consumed.
        """
        for kind in ("write", "send", "read"):
            active, passive = End(), End(ready=kind)
            active.sender.readyToReceive(active.out, kind)
            passive.received(active.sent())
            self.assertEqual((passive.ready, passive.records), (1, []), kind)
            if kind == "read":
                self.assertEqual(active.bookkeeping.outstanding, 1)
                passive.sender.post(passive.out, READ_RESPONSE_ONLY, b"", b"", 0)
            for end, peer in ((passive, active), (active, passive)):
                end.sender.post(end.out, SEND_ONLY, b"", b"a", 1)
                end.sender.post(end.out, READ_REQUEST, READS[1], b"", 0)
                peer.received(end.sent())
                self.assertEqual(peer.records, [(SEND_ONLY, b"a"), READS], kind)
            self.assertEqual(active.bookkeeping.outstanding, 1)
            self.assertEqual(passive.ready, 1)
            # What was the first message is an ordinary one from then on.
            passive.records.clear()
            self.assertEqual(take(passive, TaggedHeader(Opcode.WRITE, True, KEY, 0).pack()), 0)
            self.assertEqual(passive.records, [WROTE_NOTHING])

    def test_others(self) -> None:
        """
        Another message in its place is named.
        """
        for kind, octets, said in (
            ("write", send(b""), "SEND in place of an empty write"),
            ("read", write(b""), "WRITE in place of an empty read"),
            ("send", read(0), "READ_REQUEST in place of an empty send"),
            ("send", TaggedHeader(9, True, KEY, 0).pack(), "IMMEDIATE_SOLICITED in place"),
            ("send", TaggedHeader(15, True, KEY, 0).pack(), "an unknown message in place"),
        ):
            error = self.assertRaises(TerminationError, take, End(ready=kind), octets)
            self.assertEqual(error.termination, NO_MATCHING_RTR)
            self.assertIn(said, str(error))

    def test_siw(self) -> None:
        """
        Without an agreement the first message is an ordinary one.
        """
        end = End()
        self.assertEqual(take(end, send()), 0)
        self.assertEqual((end.ready, end.records), (0, [(SEND_ONLY, b"ab")]))
