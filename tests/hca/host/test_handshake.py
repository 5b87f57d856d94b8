"""
Tests for L{twisted_ib.hca.host.handshake}, L{twisted_ib.hca.host.fdpassing}
and, over both, what a hostile peer may say.
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from unittest import skipIf

import attrs
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from tests.support.descriptors import descriptors, descriptorsBefore, runForked
from tests.support.generated import given
from twisted_ib import errors, limits
from twisted_ib.errors import DescriptorError, HandshakeError, LayoutError, PathLostError, SilentPeerError
from twisted_ib.hca.host import handshake, libc
from twisted_ib.hca.host.fdpassing import closeAll, receiveWithDescriptors, sendWithDescriptors
from twisted_ib.hca.host.handshake import (
    HANDSHAKE_BYTES,
    LAYOUT_VERSION,
    MAGIC,
    Handshake,
    HandshakeFlags,
    Hello,
    Message,
    Query,
    QueryAnswer,
    Refuse,
    RefuseReason,
    Subject,
    parse,
    refusalOf,
)

HELLO = Hello(
    guid=0x0123456789ABCDEF,
    pid=0x1122,
    ringBytes=262144,
    slackBytes=139264,
    offers=HandshakeFlags.RINGS | HandshakeFlags.EVENTFD,
    program="twistd",
)

HELLO_BYTES = bytes.fromhex(
    "545753 54445f4942 0002 01 00 00000020"  # magic, version, kind, reserved, length
    "0123456789abcdef 00001122 00040000 00022000 00000003 0006"
    "747769737464"
)
REFUSE_BYTES = bytes.fromhex("54575354445f4942 0002 02 00 00000006 0002 0002 6e6f")
QUERY_BYTES = bytes.fromhex("54575354445f4942 0002 03 00 00000000")
SOCKETS_BYTES = bytes.fromhex("54575354445f4942 0002 03 00 00000007") + b"sockets"
ANSWER_BYTES = bytes.fromhex("54575354445f4942 0002 04 00 00000008") + b'{"a": 1}'

SAMPLES: tuple[tuple[Message, bytes], ...] = (
    (HELLO, HELLO_BYTES),
    (Refuse(RefuseReason.LAYOUT, "no"), REFUSE_BYTES),
    (Query(), QUERY_BYTES),
    (Query(Subject.SOCKETS), SOCKETS_BYTES),
    (QueryAnswer({"a": 1}), ANSWER_BYTES),
)

HAS_DESCRIPTORS = hasattr(socket, "SCM_RIGHTS") and os.path.isdir("/proc/self/fd")


class CodecTests(SynchronousTestCase):
    """
    Messages as bytes.
    """

    def test_literal(self) -> None:
        """
        Each message against its bytes, both ways.
        """
        for message, data in SAMPLES:
            self.assertEqual(message.pack(), data)
            self.assertEqual(parse(data), message)

    def test_eachLengthShort(self) -> None:
        """
        Each message cut at each byte, and one byte longer, with the length in
        the head as it was and as it would fit.
        """
        for _, data in SAMPLES:
            for size in (*range(len(data)), len(data) + 1):
                cut = (data + b"\0")[:size]
                self.assertRaises(HandshakeError, parse, cut)
                if 16 <= size and data[10] != QueryAnswer.KIND and (data[10] != Query.KIND or size > 16):
                    fitting = cut[:12] + struct.pack(">I", size - 16) + cut[16:]
                    self.assertRaises(HandshakeError, parse, fitting)

    def test_magic(self) -> None:
        """
        Another protocol.
        """
        for data in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 64, HELLO_BYTES[::-1]):
            self.assertIn("does not speak", str(self.assertRaises(HandshakeError, parse, data)))

    def test_version(self) -> None:
        """
        Another version of the layout is refused by that name, whatever the
        rest of the message is; a refusal is understood from every version.
        """
        for version in (0, 1, 0xFFFF):
            stamp = MAGIC + struct.pack(">H", version)
            for data in (HELLO_BYTES, QUERY_BYTES, HELLO_BYTES[:10] + b"\x63" + HELLO_BYTES[11:]):
                error = self.assertRaises(LayoutError, parse, stamp + data[10:])
                self.assertIn(f"version {version} ", str(error))
            self.assertEqual(parse(stamp + REFUSE_BYTES[10:]), Refuse(2, "no"))

    def test_kind(self) -> None:
        """
        Kinds that nobody knows.
        """
        for kind in (0, 5, 255):
            data = QUERY_BYTES[:10] + bytes([kind]) + QUERY_BYTES[11:]
            self.assertIn(f"kind {kind}", str(self.assertRaises(HandshakeError, parse, data)))

    def test_reserved(self) -> None:
        """
        The reserved byte of the head is sent as zero and not looked at.
        """
        for message, data in SAMPLES:
            self.assertEqual(message.pack()[11], 0)
            self.assertEqual(parse(data[:11] + b"\xff" + data[12:]), message)

    def test_offers(self) -> None:
        """
        Offers that nobody knows.
        """
        for bit in range(2, 32):
            data = HELLO_BYTES[:36] + struct.pack(">I", 3 | 1 << bit) + HELLO_BYTES[40:]
            self.assertIn("offers what", str(self.assertRaises(HandshakeError, parse, data)))

    def test_longNames(self) -> None:
        """
        Our own texts are cut to their bounds, between characters; a peer's are
        refused beyond them.
        """
        hello = attrs.evolve(HELLO, program="\u00e9" * 200)
        self.assertEqual(parse(hello.pack()), attrs.evolve(HELLO, program="\u00e9" * 64))
        odd = attrs.evolve(HELLO, program="x" + "\u00e9" * 200)
        self.assertEqual(parse(odd.pack()), attrs.evolve(HELLO, program="x" + "\u00e9" * 63))
        self.assertEqual(parse(Refuse(1, "y" * 999).pack()), Refuse(1, "y" * handshake.REFUSAL_BYTES))
        self.patch(limits, "PROGRAM_BYTES", 200)
        self.patch(handshake, "REFUSAL_BYTES", 300)
        long = (attrs.evolve(HELLO, program="x" * 129).pack(), Refuse(1, "y" * 257).pack())
        self.patch(limits, "PROGRAM_BYTES", 128)
        self.patch(handshake, "REFUSAL_BYTES", 256)
        for data in long:
            self.assertRaises(HandshakeError, parse, data)

    def test_largestFits(self) -> None:
        """
        The longest messages fit into the bound that they are received with.
        """
        hello = attrs.evolve(HELLO, program="x" * 999).pack()
        self.assertTrue(len(hello) <= HANDSHAKE_BYTES)
        self.assertTrue(len(Refuse(1, "y" * 999).pack()) <= HANDSHAKE_BYTES)

    def test_longest(self) -> None:
        """
        Of a message 512 octets are received, and one of 513 is an error.
        """
        for length in (512, 513):
            one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with one, two:
                one.send(bytes(length))
                if length > 512:
                    self.assertRaises(HandshakeError, receiveWithDescriptors, two, HANDSHAKE_BYTES, 0)
                else:
                    self.assertEqual(receiveWithDescriptors(two, HANDSHAKE_BYTES, 0), (bytes(length), []))

    def test_namesAreShowable(self) -> None:
        """
        A peer's texts hold no control characters, whatever it sends.
        """
        hello = attrs.evolve(HELLO, program="a\x1b[2J\nb")
        self.assertEqual(parse(hello.pack()), attrs.evolve(HELLO, program="a?[2J?b"))
        bad = Refuse(1, "zz").pack()[:-2] + b"\xff\n"
        self.assertEqual(parse(bad), Refuse(1, "\ufffd?"))

    def test_answers(self) -> None:
        """
        An answer must be a JSON object and stay within its bound.
        """
        head = ANSWER_BYTES[:12]
        for body in (b"", b"[]", b"1", b"{", b'{"a":', b"\xff", b"[" * 10000, b'{"a":' * 3000):
            self.assertRaises(HandshakeError, parse, head + struct.pack(">I", len(body)) + body)
        self.assertRaises(HandshakeError, QueryAnswer({"a": "x" * limits.ANSWER_BYTES}).pack)
        room = limits.ANSWER_BYTES - 16 - len(json.dumps({"a": ""}))
        self.assertEqual(len(QueryAnswer({"a": "x" * room}).pack()), limits.ANSWER_BYTES)

    @given(st.binary(max_size=100), st.sampled_from(range(1, 5)), st.booleans())
    def test_anyBytes(self, body: bytes, kind: int, whole: bool) -> None:
        """
        Whatever comes is a message or a HandshakeError.
        """
        data = MAGIC + struct.pack(">HBBI", LAYOUT_VERSION, kind, 0, len(body)) + body if whole else body
        try:
            message = parse(data)
        except HandshakeError:
            return
        if not isinstance(message, QueryAnswer):
            message.pack()

    def test_refusals(self) -> None:
        """
        Each error that a peer can cause has its reason code.
        """
        expected = {
            errors.HandshakeError: RefuseReason.MALFORMED,
            errors.LayoutError: RefuseReason.LAYOUT,
            errors.DescriptorError: RefuseReason.DESCRIPTORS,
            errors.SegmentError: RefuseReason.SEGMENT,
            errors.DoorbellError: RefuseReason.DOORBELL,
            errors.PeerIdentityError: RefuseReason.IDENTITY,
            errors.SilentPeerError: RefuseReason.SILENCE,
            errors.ResourceLimitError: RefuseReason.BUSY,
        }
        self.assertEqual(set(expected.values()), set(RefuseReason))
        for kind, reason in expected.items():
            self.assertEqual(refusalOf(kind("why")), Refuse(reason, "why"))

    def test_counters(self) -> None:
        """
        Each such error has its own counter.
        """
        base = errors.HandshakeError
        kinds: list[type[HandshakeError]] = [base, *base.__subclasses__()]
        self.assertEqual(len({kind.counter for kind in kinds}), len(kinds))


class ExchangeTests(SynchronousTestCase):
    """
    One side of one handshake.
    """

    def exchange(self, server: bool = True, offers: HandshakeFlags = HELLO.offers) -> Handshake:
        """
        A side that has heard nothing yet.
        """
        return Handshake(attrs.evolve(HELLO, offers=offers), server, 100.0)

    def test_greeted(self) -> None:
        """
        The peer's hello ends our waiting.
        """
        for server, seconds in ((True, handshake.HANDSHAKE_SECONDS), (False, handshake.DIAL_SECONDS)):
            side = self.exchange(server)
            self.assertEqual(side.deadline, 100.0 + seconds)
            self.assertEqual(side.received(HELLO_BYTES, 2), HELLO)
            self.assertEqual(side.theirs, HELLO)
            self.assertEqual(side.deadline, None)
            side.tick(1e9)

    def test_agreed(self) -> None:
        """
        Used is what both offer; without rings there is no eventfd either.
        """
        ring, bell, nothing = HandshakeFlags.RINGS, HandshakeFlags.EVENTFD, HandshakeFlags(0)
        table = {
            (ring | bell, ring | bell): ring | bell,
            (ring | bell, ring): ring,
            (ring | bell, bell): nothing,
            (ring | bell, nothing): nothing,
            (ring, ring | bell): ring,
            (ring, ring): ring,
            (ring, bell): nothing,
            (ring, nothing): nothing,
            (bell, ring | bell): nothing,
            (nothing, ring | bell): nothing,
            (nothing, nothing): nothing,
        }
        for (ours, theirs), agreed in table.items():
            side = self.exchange(offers=ours)
            hello = attrs.evolve(HELLO, offers=theirs)
            side.received(hello.pack(), hello.descriptors)
            self.assertEqual(side.agreed, agreed)

    def test_descriptorCount(self) -> None:
        """
        As many descriptors as the offers say, and none with anything else.
        """
        counts = {
            HandshakeFlags(0): 0,
            HandshakeFlags.EVENTFD: 0,
            HandshakeFlags.RINGS: 1,
            HandshakeFlags.RINGS | HandshakeFlags.EVENTFD: 2,
        }
        for offers, right in counts.items():
            data = attrs.evolve(HELLO, offers=offers).pack()
            for count in range(4):
                if count == right:
                    self.exchange().received(data, count)
                else:
                    self.assertRaises(DescriptorError, self.exchange().received, data, count)
        for _, data in SAMPLES[1:]:
            self.assertRaises(DescriptorError, self.exchange().received, data, 1)

    def test_sizes(self) -> None:
        """
        Rings of another size are refused by that name, which names both.
        """
        for other in (
            attrs.evolve(HELLO, ringBytes=65536),
            attrs.evolve(HELLO, slackBytes=0),
            attrs.evolve(HELLO, ringBytes=0xFFFFFFFF),
        ):
            side = self.exchange()
            error = self.assertRaises(LayoutError, side.received, other.pack(), 2)
            self.assertIn(str(other.ringBytes), str(error))
            self.assertIn(str(HELLO.ringBytes), str(error))
            self.assertEqual(side.theirs, None)

    def test_query(self) -> None:
        """
        A server is asked; a client is not.
        """
        side = self.exchange(server=True)
        self.assertEqual(side.received(QUERY_BYTES, 0), Query())
        self.assertEqual(side.deadline, None)
        self.assertRaises(HandshakeError, self.exchange(server=False).received, QUERY_BYTES, 0)

    def test_pages(self) -> None:
        """
        An asker may repeat its query in time, and send nothing else.
        """
        side = self.exchange(server=True)
        for now in (1.0, 2.0):
            self.assertEqual(side.received(SOCKETS_BYTES, 0), Query(Subject.SOCKETS))
            self.assertEqual(side.deadline, None)
            side.pageSent(now)
            self.assertEqual(side.deadline, now + handshake.HANDSHAKE_SECONDS)
        side.tick(2.0)
        self.assertRaises(SilentPeerError, side.tick, 2.0 + handshake.HANDSHAKE_SECONDS)
        for other, count in ((QUERY_BYTES, 0), (HELLO_BYTES, 2), (ANSWER_BYTES, 0)):
            self.assertRaises(HandshakeError, side.received, other, count)

    def test_subject(self) -> None:
        """
        An unknown subject is refused as unknown.
        """
        for subject in (b"socket", b"sockets ", b"\xff", b"\0"):
            query = QUERY_BYTES[:12] + struct.pack(">I", len(subject)) + subject
            self.assertIn("unknown here", str(self.assertRaises(HandshakeError, parse, query)))

    def test_unasked(self) -> None:
        """
        Nobody in a handshake asked for an answer.
        """
        for server in (True, False):
            self.assertRaises(HandshakeError, self.exchange(server).received, ANSWER_BYTES, 0)

    def test_refused(self) -> None:
        """
        The peer's refusal is an error by name with its text.
        """
        for server in (True, False):
            side = self.exchange(server)
            error = self.assertRaises(errors.PeerRefusedError, side.received, REFUSE_BYTES, 0)
            self.assertIn("no", str(error))

    def test_twice(self) -> None:
        """
        A second message is not taken.
        """
        side = self.exchange()
        side.received(HELLO_BYTES, 2)
        self.assertIn("twice", str(self.assertRaises(HandshakeError, side.received, HELLO_BYTES, 2)))

    def test_end(self) -> None:
        """
        The end of the connection.
        """
        self.assertIn("hung up", str(self.assertRaises(PathLostError, self.exchange().received, b"", 0)))

    def test_silence(self) -> None:
        """
        A peer that is silent for too long is an error by name.
        """
        side = self.exchange()
        assert side.deadline is not None
        side.tick(side.deadline - 0.001)
        error = self.assertRaises(errors.SilentPeerError, side.tick, side.deadline)
        self.assertIn("silent for 5 seconds", str(error))


@skipIf(not HAS_DESCRIPTORS, "no descriptors over sockets")
class TransferTests(SynchronousTestCase):
    """
    Messages with descriptors.
    """

    def setUp(self) -> None:
        """
        Two connected sockets, both blocking, which must not matter.
        """
        self.before = descriptorsBefore()
        self.one, self.two = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def tearDown(self) -> None:
        """
        Nothing is left open.
        """
        self.one.close()
        self.two.close()
        self.assertEqual(descriptors(), self.before)

    def things(self, count: int) -> list[int]:
        """
        Descriptors to send, closed after the test.
        """
        made = [os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC) for _ in range(count)]
        self.addCleanup(closeAll, made)
        return made

    def test_message(self) -> None:
        """
        A message with descriptors arrives; they are not inherited.
        """
        things = self.things(2)
        self.assertTrue(sendWithDescriptors(self.one, b"hello", things))
        received = receiveWithDescriptors(self.two, 5, 2)
        assert received is not None
        data, found = received
        self.addCleanup(closeAll, found)
        self.assertEqual((data, len(found)), (b"hello", 2))
        for ours, theirs in zip(things, found, strict=True):
            self.assertTrue(os.path.sameopenfile(ours, theirs))
            self.assertFalse(os.get_inheritable(theirs))

    def test_noWaiting(self) -> None:
        """
        Nothing there and no room are answers, not waits.
        """
        self.assertEqual(receiveWithDescriptors(self.two, 10, 2), None)
        count = 0
        while sendWithDescriptors(self.one, b"x" * 100):
            count += 1
            self.assertTrue(count < 100000)

    def test_end(self) -> None:
        """
        The end of the connection: empty when read, an error when written.
        """
        self.one.close()
        self.assertEqual(receiveWithDescriptors(self.two, 10, 2), (b"", []))
        self.assertRaises(PathLostError, sendWithDescriptors, self.two, b"x")

    def test_reset(self) -> None:
        """
        A peer that closed with unread data: what it had sent is read, then the end.
        """
        sendWithDescriptors(self.two, b"unread")
        sendWithDescriptors(self.one, b"last")
        self.one.close()
        self.assertEqual(receiveWithDescriptors(self.two, 10), (b"last", []))
        self.assertEqual(receiveWithDescriptors(self.two, 10), (b"", []))

    def flood(self, count: int, maxCount: int) -> None:
        """
        Assert that C{count} descriptors are refused where C{maxCount} may come
        and that none stays open.
        """
        things = self.things(count)
        sendWithDescriptors(self.one, b"x", things)
        before = descriptorsBefore()
        self.assertRaises(DescriptorError, receiveWithDescriptors, self.two, 10, maxCount)
        self.assertEqual(descriptors(), before)

    def test_tooMany(self) -> None:
        """
        One too many, for odd and even counts: what rounding would hide.
        """
        for maxCount in range(4):
            self.flood(maxCount + 1, maxCount)

    def test_flood(self) -> None:
        """
        As many as the kernel sends at once.
        """
        self.flood(253, 2)

    def test_floods(self) -> None:
        """
        Message after message of them.
        """
        things = self.things(100)
        before = descriptorsBefore()
        for _ in range(50):
            sendWithDescriptors(self.one, b"x", things)
            self.assertRaises(DescriptorError, receiveWithDescriptors, self.two, 10, 2)
        self.assertEqual(descriptors(), before)

    def test_twoPieces(self) -> None:
        """
        Descriptors in two pieces of ancillary data.
        """
        pieces = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd])) for fd in self.things(2)]
        self.one.sendmsg([b"x"], pieces)
        before = descriptorsBefore()
        try:
            received = receiveWithDescriptors(self.two, 10, 2)
        except DescriptorError:
            self.assertEqual(descriptors(), before)
        else:
            assert received is not None
            closeAll(received[1])

    def test_noRoomHere(self) -> None:
        """
        A process that can open no more descriptors refuses by name.
        """

        def child() -> None:
            """
            Receive with the last descriptor taken.
            """
            import resource

            things = [os.dup(self.one.fileno()) for _ in range(2)]
            sendWithDescriptors(self.one, b"x", things)
            top = os.dup(self.one.fileno())
            resource.setrlimit(resource.RLIMIT_NOFILE, (top + 1, top + 1))
            error = self.assertRaises(DescriptorError, receiveWithDescriptors, self.two, 10, 2)
            assert "Too many open files" in str(error)
            self.assertRaises(OSError, os.dup, 0)
            os.close(top)
            self.assertEqual(os.dup(0), top)

        self.assertEqual(runForked(child), 0)

    def test_tooLong(self) -> None:
        """
        A message that is cut off is refused, and its descriptors closed.
        """
        things = self.things(2)
        sendWithDescriptors(self.one, b"x" * 11, things)
        before = descriptorsBefore()
        error = self.assertRaises(DescriptorError, receiveWithDescriptors, self.two, 10, 2)
        self.assertIn("more than 10 bytes", str(error))
        self.assertEqual(descriptors(), before)

    def test_credentials(self) -> None:
        """
        Other ancillary data than descriptors does not pass for them.
        """
        self.two.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        sendWithDescriptors(self.one, b"x")
        self.assertEqual(receiveWithDescriptors(self.two, 10, 8), (b"x", []))


@skipIf(bool(libc.available()) or not HAS_DESCRIPTORS, "no shared memory here")
class WholeHandshakeTests(SynchronousTestCase):
    """
    Both sides over a real socket.
    """

    def test_story(self) -> None:
        """
        The client speaks, the server answers, both have the other's memory and
        bell; nothing stays open.
        """
        from twisted_ib.hca.fabric.shm.doorbell import EventDoorbell
        from twisted_ib.hca.fabric.shm.segment import Segment

        before = descriptorsBefore()
        size = HELLO.ringBytes + HELLO.slackBytes
        sockets = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        memories = [Segment.create(size), Segment.create(size)]
        bells = [EventDoorbell.create(), EventDoorbell.create()]
        sides = [Handshake(attrs.evolve(HELLO, guid=n), bool(n), 0.0) for n in range(2)]
        theirs = []
        for sender, receiver in ((0, 1), (1, 0)):
            fds = [memories[sender].fd, bells[sender].fd]
            self.assertTrue(sendWithDescriptors(sockets[sender], sides[sender].ours.pack(), fds))
            received = receiveWithDescriptors(sockets[receiver], HANDSHAKE_BYTES, 2)
            assert received is not None
            data, found = received
            hello = sides[receiver].received(data, len(found))
            self.assertEqual(hello, sides[sender].ours)
            theirs.append((Segment.attach(found[0], size), EventDoorbell.attach(found[1])))
        self.assertEqual([side.agreed for side in sides], [HandshakeFlags.RINGS | HandshakeFlags.EVENTFD] * 2)
        memories[0].cells[0] = 7
        self.assertEqual(theirs[0][0].cells[0], 7)
        self.assertTrue(theirs[1][1].ring())
        self.assertEqual(os.read(bells[1].fd, 8), (1).to_bytes(8, "little"))
        for memory, bell in (*theirs, *zip(memories, bells, strict=True)):
            memory.close()
            bell.close()
        for end in sockets:
            end.close()
        self.assertEqual(descriptors(), before)

    def test_pure(self) -> None:
        """
        The handshake itself reaches no socket.
        """
        self.assertFalse({"socket", "os", "time"} & set(vars(handshake)))
