"""
RDMAP in both directions: random records through random splits, and mutated streams.
"""

from __future__ import annotations

import random
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.fabric.iwarp.protocol.examples import EXAMPLES, ulpdu
from tests.hca.fabric.iwarp.protocol.rdmap import BASE, KEY, End, Story, cuts
from tests.support.calls import called
from twisted_ib import limits
from twisted_ib.hca.base.operation import RESPONSES, SOLICITED
from twisted_ib.hca.fabric.iwarp.protocol.mpastream import FPDUWriter, StreamError
from twisted_ib.hca.fabric.iwarp.protocol.terminate import TerminationError
from twisted_ib.hca.wire.headers import RETH
from twisted_ib.hca.wire.opcodes import READ_REQUEST, SEND_ONLY, WRITE_ONLY

#: Seeds, and mutated streams, of the README command; tests.soak has more.
SEEDS = 20
MUTATED = 300

#: Octets of a READ that the end of a mutated stream has asked for.
ASKED = 3000
LENGTHS = (0, 1, 13, 14, 17, 18, 45, 46, 47, 60, 1454)


class StoryTests(SynchronousTestCase):
    """
    Random sequences of records.
    """

    seeds = range(SEEDS)

    def test_records(self) -> None:
        """
        Whatever two ends post, with CRCs or markers or neither, in ULPDUs of any length and however TCP cuts
        them, arrives: messages, memory, responses.
        """
        for seed in self.seeds:
            story = Story(seed)
            story.run(200)
            for index, end in enumerate(story.ends):
                self.assertEqual(end.memory, story.memories[index], seed)
                self.assertEqual(end.responses, story.responses[index], seed)
                found = [(opcode & SOLICITED, key, octets) for opcode, key, octets in end.messages]
                self.assertEqual(found, story.messages[index], seed)
                self.assertFalse(end.buffer, seed)
                self.assertFalse(end.bookkeeping.outstanding, seed)
                self.assertFalse(end.bookkeeping.inbound, seed)


class CostTests(SynchronousTestCase):
    """
    Calls per message.
    """

    def test_calls(self) -> None:
        """
        A message of one segment takes two calls to be posted, and two to be taken besides what it is
        delivered to, reading the FPDU included.
        """
        end, peer = End(), End()
        header = RETH.pack(BASE, KEY, 3)
        for opcode, head, posting in ((SEND_ONLY, b"", 2), (WRITE_ONLY, header, 6)):
            calls = called(lambda code=opcode, head=head: end.sender.post(end.out, code, head, b"abc", 3))
            self.assertLessEqual(calls.total() - 1, posting, calls)
            octets = bytearray(end.sent())

            def take(octets: bytearray = octets) -> None:
                peer.reader.next(octets, 0, len(octets))
                peer.receiver.take(octets, peer.reader.first, peer.reader.last)

            peer.receiver.deliver = lambda *_: 0
            calls = called(take)
            self.assertLessEqual(calls.total() - 1, 3 if opcode == SEND_ONLY else 4, calls)


class Bounds:
    """
    The user of a receiver, that checks the bounds of what it is given.

    @ivar first: where the ULPDU begins.
    @ivar last: where it ends.
    @ivar records: how many records there were.
    """

    def __init__(self, chance: random.Random) -> None:
        self.first = self.last = self.records = self.response = 0
        self._chance = chance

    def delivered(self, opcode: int, buffer: Any, start: int, stop: int) -> int:
        assert self.first - 2 <= start <= stop == self.last, (opcode, start, stop, self.first, self.last)
        self.records += 1
        return 0 if opcode in RESPONSES else self._chance.choice((0, 0, 0, 0, 0x23, 0x41))

    def readyToReceive(self) -> None:
        """
        See L{IReceiverUser.readyToReceive}.
        """

    def terminated(self, message: Any) -> None:
        assert message.termination.text
        assert message.isOfRead in (False, True)


class MutationTests(SynchronousTestCase):
    """
    Streams of octets that no peer should send.
    """

    count = MUTATED

    def ulpdus(self, chance: random.Random) -> list[bytes]:
        """
        @return: segments of a valid stream, some of them changed.
        """
        end = End(largest=chance.choice((128, 1454)), ord=16)
        end.bookkeeping.requested(ulpdu("Read Request")[:18] + bytes(28))
        story = Story(chance.getrandbits(32))
        story.ends[0] = end
        for _ in range(chance.randint(1, 12)):
            story.post(0)
        stream, found = end.sent(), []
        while stream:
            length = int.from_bytes(stream[:2], "big")
            found.append(bytearray(stream[2 : 2 + length]))
            stream = stream[length + 9 & ~3 :]
        found += [bytearray(ulpdu(chance.choice([*EXAMPLES]))) for _ in range(chance.randrange(3))]
        for _ in range(chance.randint(0, 4)):
            self.mutate(chance.choice(found), chance)
        if chance.random() < 0.3:
            at, other = chance.randrange(len(found)), chance.randrange(len(found))
            found[at], found[other] = found[other], found[at]
        return [bytes(each) for each in found]

    def mutate(self, octets: bytearray, chance: random.Random) -> None:
        """
        Change a segment: bits, fields, its length.
        """
        kind = chance.randrange(4)
        if kind == 0 and octets:
            # A bit of the header, mostly.
            octets[chance.randrange(min(len(octets), chance.choice((2, 18, 64))))] ^= 1 << chance.randrange(8)
        elif kind == 1 and len(octets) > 8:
            at = chance.randrange(min(len(octets) - 4, 46))
            octets[at : at + 4] = chance.choice((b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff"))
        elif kind == 2:
            del octets[chance.choice(LENGTHS) :]
        else:
            octets += chance.randbytes(chance.choice(LENGTHS))

    def run_one(self, seed: int) -> int:
        """
        One stream: nothing is raised but the errors of protocols, nothing is delivered or changed outside of
        a segment, and no more is kept than is allowed.

        @return: how many records were delivered.
        """
        chance = random.Random(seed)
        writer = FPDUWriter(False, False)
        out: list[Any] = []
        for each in self.ulpdus(chance):
            writer.frame(out, [each], len(each))
        stream = bytearray(b"".join(out))
        if chance.random() < 0.2:
            self.mutate(stream, chance)
        end = End(ready=chance.choice((None, None, None, "write", "read", "send")), ird=2)
        user = Bounds(chance)
        end.receiver._user = user
        end.receiver.deliver = user.delivered
        end.sender.post(end.out, READ_REQUEST, RETH.pack(BASE, KEY, ASKED), b"", 0)
        try:
            for part in cuts(bytes(stream), chance):
                self.feed(end, user, part)
        except (TerminationError, StreamError) as error:
            self.assertTrue(str(error))
        self.assertLessEqual(len(end.bookkeeping.inbound), 2)
        self.assertLessEqual(end.receiver._offset, limits.MESSAGE_BYTES)
        return user.records

    def feed(self, end: End, user: Bounds, part: bytes) -> None:
        """
        Octets from a socket; a refused segment is given again.
        """
        end.buffer += part
        start = 0
        while True:
            stop = end.reader.next(end.buffer, start, len(end.buffer))
            if not stop:
                break
            user.first, user.last = first, last = end.reader.first, end.reader.last
            before = bytes(end.buffer)
            while end.receiver.take(end.buffer, first, last):
                # Reserved bits may be gone.
                self.assertEqual(end.buffer[first + 2 :], before[first + 2 :])
                self.assertEqual(end.buffer[:first], before[:first])
            self.assertEqual(end.buffer[: first - 2], before[: first - 2])
            self.assertEqual(end.buffer[last:], before[last:])
            start = stop
        del end.buffer[:start]
        self.assertLess(len(end.buffer), 65535 + 9)

    def test_mutated(self) -> None:
        """
        Any octets: only errors of the protocol, or records within bounds.
        """
        records = 0
        for seed in range(self.count):
            try:
                records += self.run_one(seed)
            except BaseException:
                print("seed", seed)
                raise
        # The streams get somewhere.
        self.assertGreater(records, self.count)
