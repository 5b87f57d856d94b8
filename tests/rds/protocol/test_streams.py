"""
Tests of L{twisted_ib.rds.protocol.streams}: all sessions of a socket; and of whole streams between two.
"""

from __future__ import annotations

from collections import Counter, deque
from itertools import count
from random import Random
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib import limits
from twisted_ib.rds.protocol import streammachine
from twisted_ib.rds.protocol import streams as protocolStreams
from twisted_ib.rds.protocol.frames import HEADER_BYTES, EndReason, FrameKind, frame
from twisted_ib.rds.protocol.streammachine import StreamEvent, StreamMachine, StreamState
from twisted_ib.rds.protocol.streams import Streams

SERVER, CLIENT = ("192.0.2.1", 4000), ("192.0.2.2", 5000)


class Network:
    """
    Some sockets with streams, and a wire between them.

    @ivar wire: Datagrams on the way: to whom, from whom, and what.
    @ivar read: The data that each session has read, by socket and number.
    @ivar ends: How each session ended.
    @ivar accept: Whether streams are accepted.
    """

    def __init__(self, *addresses: tuple[str, int], seed: int = 0) -> None:
        """
        @param seed: For the numbers of the sessions.
        """
        self.random = Random(seed)
        self.sockets = {address: Streams(self.random.getrandbits) for address in addresses}
        self.wire: deque[tuple[Any, Any, bytes]] = deque()
        self.read: dict[StreamMachine, bytearray] = {}
        self.ends: dict[StreamMachine, int] = {}
        self.halfEnds: set[StreamMachine] = set()
        self.accept = True
        self.now = 0.0
        self.accepted: list[StreamMachine] = []

    def flush(self, address: tuple[str, int], *sessions: StreamMachine | None) -> None:
        """
        Send what sessions have to say; what they have to tell is noted.
        """
        streams = self.sockets[address]
        for session in sessions:
            if session is None:
                continue
            while (data := session.nextOutput()) is not None:
                self.wire.append((session.address, address, data))
            # Events come behind what has arrived.
            for event, reason in () if session.arrived else session.events:
                if event is StreamEvent.CLOSED:
                    assert session not in self.ends
                    self.ends[session] = reason
                elif event is StreamEvent.END:
                    self.halfEnds.add(session)
            if not session.arrived:
                session.events.clear()
            streams.settle(session)
        while streams.answers:
            data, peer = streams.answers.popleft()
            self.wire.append((peer, address, data))
        others, streams.others = streams.others, []
        if others:
            self.flush(address, *others)

    def readAll(self, address: tuple[str, int], session: StreamMachine) -> None:
        """
        Read what has arrived.
        """
        while session.arrived:
            self.read.setdefault(session, bytearray()).extend(session.take())
        self.flush(address, session)

    def step(self, index: int = 0, reading: bool = True) -> None:
        """
        Deliver one datagram.

        @param index: Which.
        """
        to, sender, data = self.wire[index]
        del self.wire[index]
        streams = self.sockets.get(to)
        if streams is None:
            return
        session = streams.received(data, sender, self.now)
        if session is not None and session.state is StreamState.ASKED:
            if self.accept:
                session.accept()
                self.accepted.append(session)
            else:
                session.refuse(EndReason.UNWANTED)
        self.flush(to, session)
        if reading and session is not None:
            self.readAll(to, session)

    def run(self, reading: bool = True) -> None:
        """
        Deliver everything.
        """
        for _ in range(100_000):
            if not self.wire:
                return
            self.step(0, reading)
        raise AssertionError("no end")

    def tick(self, seconds: float) -> None:
        """
        Let time pass in one leap.
        """
        self.now += seconds
        for address, streams in self.sockets.items():
            self.flush(address, *streams.tick(self.now))

    def open(self, client: tuple[str, int] = CLIENT, server: tuple[str, int] = SERVER) -> StreamMachine:
        """
        Ask for a stream.
        """
        session = self.sockets[client].open(server, self.now)
        assert session is not None
        self.flush(client, session)
        return session

    def pair(self) -> tuple[StreamMachine, StreamMachine]:
        """
        @return: Both ends of a stream.
        """
        session = self.open()
        self.run()
        return session, self.accepted[-1]


class StreamsTestCase(SynchronousTestCase):
    """
    Two sockets, of which one listens.
    """

    def setUp(self) -> None:
        """
        Make them.
        """
        self.network = Network(SERVER, CLIENT)
        self.server = self.network.sockets[SERVER]
        self.client = self.network.sockets[CLIENT]
        self.server.listening = True

    def received(self, data: bytes, sender: tuple[str, int] = CLIENT) -> list[bytes]:
        """
        The server gets a datagram.

        @return: Its answer.
        """
        self.assertIsNone(self.server.received(data, sender, self.network.now))
        answers = list(self.server.answers)
        self.server.answers.clear()
        self.assertTrue(all(to == sender for _, to in answers))
        return [answer for answer, _ in answers]


class TableTests(StreamsTestCase):
    """
    Which datagram is whose.
    """

    def test_plain(self) -> None:
        """
        A datagram that is no frame is counted, and not answered.
        """
        for data in (b"", b"hello", b"x" * 31, b"x" * 32, b"RdS" * 20, frame(1, 1)[:-1]):
            self.assertEqual(self.received(data), [])
        self.assertEqual(self.server.counters, {"stream_plain_datagrams": 6})

    def test_badFrames(self) -> None:
        """
        Only DATA may have something behind the header.
        """
        for kind in FrameKind:
            if kind is not FrameKind.DATA:
                self.assertEqual(self.received(frame(kind, 1) + b"x"), [])
        self.assertEqual(self.server.counters, {"stream_bad_frames": len(FrameKind) - 1})
        self.assertEqual(len(self.server), 0)

    def test_version(self) -> None:
        """
        An OPEN of another version is refused for that reason.
        """
        for kind in FrameKind:
            data = bytearray(frame(kind, 7))
            data[4] = 2
            expected = (
                [frame(FrameKind.REFUSE, 7, reason=EndReason.VERSION)] if kind is FrameKind.OPEN else []
            )
            self.assertEqual(self.received(bytes(data)), expected)

    def test_strangers(self) -> None:
        """
        A frame that supposes a session which does not exist is answered GONE; no other frame is answered.
        """
        for kind in (*FrameKind, 0, 11, 255):
            if kind == FrameKind.OPEN:
                continue
            answered = (FrameKind.ACCEPT, FrameKind.DATA, FrameKind.WINDOW, FrameKind.PROBE, FrameKind.FIN)
            expected = [frame(FrameKind.GONE, 7)] if kind in answered else []
            self.assertEqual(self.received(frame(kind, 7)), expected, kind)

    def test_otherSender(self) -> None:
        """
        A sender that knows the number but is not the peer is treated as a stranger.
        """
        session, accepted = self.network.pair()
        data = frame(FrameKind.RESET, accepted.number, reason=5)
        for sender in ((CLIENT[0], 1), ("192.0.2.9", CLIENT[1])):
            self.assertEqual(self.received(data, sender), [])
        self.assertEqual(self.received(frame(FrameKind.GONE, session.number), ("192.0.2.9", 5000)), [])
        self.assertIs(accepted.state, StreamState.OPEN)

    def test_nobodyListens(self) -> None:
        """
        An OPEN to a port that does not listen is refused.
        """
        self.server.listening = False
        session = self.network.open()
        self.network.run()
        self.assertEqual(self.network.ends, {session: EndReason.NO_LISTENER})
        self.assertEqual((len(self.client), len(self.server)), (0, 0))

    def test_unwanted(self) -> None:
        """
        An OPEN that the application declines is refused.
        """
        self.network.accept = False
        session = self.network.open()
        self.network.run()
        self.assertEqual(self.network.ends[session], EndReason.UNWANTED)
        self.assertEqual((len(self.client), len(self.server)), (0, 0))

    def test_twoInOneProcess(self) -> None:
        """
        Streams between the same two sockets are told apart.
        """
        pairs = [self.network.pair() for _ in range(3)]
        for index, (session, _) in enumerate(pairs):
            session.write(b"%d" % index)
            self.network.flush(CLIENT, session)
        self.network.run()
        found = [bytes(self.network.read[accepted]) for _, accepted in pairs]
        self.assertEqual(found, [b"0", b"1", b"2"])

    def test_withItself(self) -> None:
        """
        A socket can have a stream with itself.
        """
        session = self.network.open(SERVER)
        self.network.run()
        session.write(b"abc")
        self.network.flush(SERVER, session)
        self.network.run()
        (accepted,) = self.network.accepted
        self.assertEqual(self.network.read[accepted], b"abc")
        session.close()
        self.network.flush(SERVER, session)
        self.network.run()
        self.assertEqual(len(self.server), 0)

    def test_openTwice(self) -> None:
        """
        An OPEN that is repeated while the first is on its way makes one stream.
        """
        session = self.network.open()
        self.network.tick(streammachine.RDS_STREAM_OPEN_SECONDS)
        self.assertEqual(len(self.network.wire), 2)
        self.network.run()
        self.assertEqual((len(self.network.accepted), session.state), (1, StreamState.OPEN))

    def test_cancelled(self) -> None:
        """
        The answer to an attempt that was cancelled ends the session that the peer made.
        """
        session = self.network.open()
        session.abort()
        self.network.flush(CLIENT, session)
        self.assertEqual(len(self.client), 0)
        self.network.run()
        self.assertEqual(self.network.ends[self.network.accepted[0]], EndReason.GONE)
        self.assertEqual(len(self.server), 0)

    def test_restarted(self) -> None:
        """
        A peer that was started again ends the streams of its earlier life.
        """
        session, _ = self.network.pair()
        self.network.sockets[SERVER] = Streams(Random(2).getrandbits)
        session.write(b"abc")
        self.network.flush(CLIENT, session)
        self.network.run()
        self.assertEqual(self.network.ends[session], EndReason.GONE)
        self.assertEqual(len(self.client), 0)

    def test_sameNumberOfAPeer(self) -> None:
        """
        A peer cannot accept two streams under one number.
        """
        first, second = (self.network.open() for _ in "12")
        self.client.received(frame(FrameKind.ACCEPT, first.number, 77, 1), SERVER, 0.0)
        self.client.received(frame(FrameKind.ACCEPT, second.number, 77, 1), SERVER, 0.0)
        self.assertIs(first.state, StreamState.OPEN)
        self.assertEqual(second.events[-1], (StreamEvent.CLOSED, EndReason.VIOLATION))
        self.network.flush(CLIENT, first, second)
        self.assertEqual(list(self.client.sessions.values()), [first])

    def test_numbersAreUnique(self) -> None:
        """
        A number that is in use is not drawn again.
        """
        numbers = iter([1, 1, 1, 2])
        streams = Streams(lambda bits: next(numbers))
        streams.open(SERVER, 0.0)
        streams.open(SERVER, 0.0)
        self.assertEqual(list(streams.sessions), [1, 2])

    def test_peerGone(self) -> None:
        """
        When a socket, or a host, is known to be gone its streams are over.
        """
        for gone in (SERVER, SERVER[0]):
            session, _ = self.network.pair()
            self.network.flush(CLIENT, *self.client.peerGone(("192.0.2.9", 4000)))
            self.network.flush(CLIENT, *self.client.peerGone("192.0.2.9"))
            self.assertIs(session.state, StreamState.OPEN)
            self.network.flush(CLIENT, *self.client.peerGone(gone))
            self.assertEqual(self.network.ends[session], EndReason.GONE)
            self.assertEqual(len(self.client), 0)


class BoundTests(StreamsTestCase):
    """
    A peer cannot make anything grow without bound.
    """

    def test_perPeer(self) -> None:
        """
        One socket has so many streams with another, and no more.
        """
        self.patch(limits, "RDS_STREAMS_PER_PEER", 3)
        sessions = [self.network.open(CLIENT) for _ in range(3)]
        self.assertIsNone(self.client.open(SERVER, 0.0))
        self.assertIsNotNone(self.client.open(("192.0.2.7", 1), 0.0))
        self.network.run()
        self.server.received(frame(FrameKind.OPEN, 99), CLIENT, 0.0)
        self.assertEqual(self.server.answers[0][0], frame(FrameKind.REFUSE, 99, reason=EndReason.TOO_MANY))
        sessions[0].abort()
        self.network.flush(CLIENT, sessions[0])
        self.network.run()
        self.assertIsNotNone(self.client.open(SERVER, 0.0))

    def test_streams(self) -> None:
        """
        A socket has so many streams, and remembers nothing of who got none.
        """
        self.patch(limits, "RDS_STREAMS", 2)
        for port in range(10):
            self.server.received(frame(FrameKind.OPEN, 99), ("192.0.2.3", port), 0.0)
        self.assertEqual((len(self.server), self.server.counters["stream_too_many"]), (2, 8))
        self.assertEqual(len(self.server._perPeer), 2)

    def test_answers(self) -> None:
        """
        Strangers are answered as long as the answers leave.
        """
        for _ in range(protocolStreams.RDS_STREAM_ANSWERS + 5):
            self.server.received(frame(FrameKind.PROBE, 1), CLIENT, 0.0)
        self.assertEqual(len(self.server.answers), protocolStreams.RDS_STREAM_ANSWERS)
        self.assertEqual(self.server.counters["stream_answers_dropped"], 5)

    def test_held(self) -> None:
        """
        When too much waits for applications that do not read, the session with most of it is reset.
        """
        self.patch(protocolStreams, "RDS_STREAMS_HELD", 1000)
        pairs = [self.network.pair() for _ in range(3)]
        for size, (session, _) in zip((300, 600, 300), pairs, strict=True):
            session.write(bytes(size))
            self.network.flush(CLIENT, session)
            self.network.run(reading=False)
        self.assertEqual(self.network.ends, {end: EndReason.NO_MEMORY for end in pairs[1]})
        self.assertEqual((self.server.held, len(self.server)), (600 + 2 * limits.RDS_STREAM_PIECE, 2))

    def test_heldInPieces(self) -> None:
        """
        Small pieces count for the memory that they use, and the session with most of it is reset.
        """
        self.patch(protocolStreams, "RDS_STREAMS_HELD", 10_000)
        pairs = [self.network.pair() for _ in range(2)]
        pairs[0][0].write(bytes(3000))
        self.network.flush(CLIENT, pairs[0][0])
        for _ in range(200):
            pairs[1][0].write(b"ab")
            self.network.flush(CLIENT, pairs[1][0])
        self.network.run(reading=False)
        self.assertEqual(self.network.ends, {end: EndReason.NO_MEMORY for end in pairs[1]})

    def test_heldAfterTheEnd(self) -> None:
        """
        Data held by closed streams counts too.
        """
        self.patch(protocolStreams, "RDS_STREAMS_HELD", 1000)
        pairs = [self.network.pair() for _ in range(2)]
        for size, (session, _) in zip((900, 200), pairs, strict=True):
            session.write(bytes(size))
            session.close()
            self.network.flush(CLIENT, session)
            self.network.run(reading=False)
        held = 200 + limits.RDS_STREAM_PIECE
        self.assertEqual((self.server.held, pairs[0][1].arrivedBytes), (held, 0))
        self.network.flush(SERVER, *[accepted for _, accepted in pairs])
        self.assertEqual(len(self.server), 1)
        self.network.readAll(SERVER, pairs[1][1])
        self.assertEqual((self.server.held, len(self.server)), (0, 0))


class DeadlineTests(StreamsTestCase):
    """
    When the table wants to be looked at.
    """

    def test_none(self) -> None:
        """
        Without streams never.
        """
        self.assertIsNone(self.client.deadline())
        self.assertEqual(self.client.tick(1000.0), [])

    def test_opening(self) -> None:
        """
        While somebody asks, when the question is due again; else when peers are due.
        """
        self.network.now = 100.0
        self.network.open()
        self.assertEqual(self.client.deadline(), 100.0 + streammachine.RDS_STREAM_OPEN_SECONDS)
        self.network.run()
        self.assertEqual(self.client.deadline(), 100.0 + protocolStreams.RDS_STREAM_PROBE_SECONDS)
        self.network.tick(protocolStreams.RDS_STREAM_PROBE_SECONDS)
        self.assertEqual(self.client.deadline(), 100.0 + 2 * protocolStreams.RDS_STREAM_PROBE_SECONDS)

    def test_deadPeer(self) -> None:
        """
        A peer that is gone without a word is seen, on both sides; a living one is not harmed.
        """
        session, accepted = self.network.pair()
        other = ("192.0.2.3", 1)
        self.network.sockets[other] = Streams(Random(3).getrandbits)
        living = self.network.open(other)
        for _ in range(streammachine.RDS_STREAM_PROBES + 2):
            self.assertEqual(self.network.ends, {})
            self.network.tick(protocolStreams.RDS_STREAM_PROBE_SECONDS)
            for index in reversed(range(len(self.network.wire))):
                if CLIENT in self.network.wire[index][:2]:
                    del self.network.wire[index]
            self.network.run()
        self.assertEqual(self.network.ends, {session: EndReason.SILENT, accepted: EndReason.SILENT})
        self.assertIs(living.state, StreamState.OPEN)


class ScheduleTests(SynchronousTestCase):
    """
    Whole streams under random schedules.
    """

    schedules = 4

    def schedule(self, seed: int, loss: float = 0.0, twice: float = 0.0) -> Counter[str]:
        """
        Several clients and one server write, read, end and abort as chance has it; each socket's
        datagrams to another arrive in order.

        @param loss: The share of datagrams that are lost.
        @param twice: The share that arrive twice.
        @return: How often what happened.
        """
        random = Random(seed)
        clients = [("192.0.2.2", port) for port in (1, 2, 3)]
        network = Network(SERVER, *clients, seed=seed)
        network.sockets[SERVER].listening = True
        written: dict[StreamMachine, bytearray] = {}
        homes: dict[StreamMachine, tuple[str, int]] = {}
        pairs: dict[int, StreamMachine] = {}
        happened = Counter[str]()
        numbers = count()
        for _ in range(1500):
            action = random.random()
            if action < 0.03 and len(homes) < 12:
                client = random.choice(clients)
                session = network.open(client)
                homes[session] = client
                pairs[session.number] = session
                next(numbers)
            for accepted in network.accepted:
                homes.setdefault(accepted, SERVER)
            session = random.choice(list(homes)) if homes else None
            if session is not None and 0.03 <= action < 0.4:
                home = homes[session]
                if action < 0.3:
                    data = random.randbytes(random.choice((0, 1, 10, 1000, 70_000, 300_000)))
                    if not session.ending and session.state is not StreamState.CLOSED:
                        written.setdefault(session, bytearray()).extend(data)
                    session.write(data)
                elif action < 0.38:
                    network.readAll(home, session)
                elif action < 0.39:
                    random.choice((session.finish, session.close))()
                elif action < 0.392:
                    session.abort()
                network.flush(home, session)
            elif network.wire:
                # Any pair of sockets may be next, in order.
                ways = {}
                for index, (to, sender, _) in enumerate(network.wire):
                    ways.setdefault((to, sender), index)
                index = random.choice(list(ways.values()))
                chance = random.random()
                if chance < loss:
                    del network.wire[index]
                else:
                    if chance > 1 - twice:
                        network.wire.insert(index + 1, network.wire[index])
                    network.step(index, reading=random.random() < 0.7)
        for _ in range(40):
            network.run()
            for accepted in network.accepted:
                homes.setdefault(accepted, SERVER)
            for session, home in homes.items():
                network.readAll(home, session)
                session.close()
                network.flush(home, session)
            network.tick(protocolStreams.RDS_STREAM_PROBE_SECONDS)
        byRemote = {session.number: session for session in homes}
        for session in homes:
            self.assertIs(session.state, StreamState.CLOSED, seed)
            peer = byRemote.get(session.remote)
            sent = written.get(peer, bytearray()) if peer is not None else bytearray()
            read = network.read.get(session, bytearray())
            # Never a hole, never a byte twice.
            self.assertTrue(sent.startswith(read), seed)
            happened["bytes"] += len(read)
            happened[EndReason(network.ends[session]).name] += 1
        for streams in network.sockets.values():
            self.assertEqual((len(streams), streams.held, len(streams._perPeer)), (0, 0, 0))
            self.assertEqual((streams._byRemote, streams.opening), ({}, {}))
        return happened

    def total(self, seeds: int, **knobs: float) -> Counter[str]:
        """
        Run some schedules.
        """
        found = Counter[str]()
        for seed in range(seeds):
            found += self.schedule(seed, **knobs)
        return found

    def test_reliable(self) -> None:
        """
        Over datagrams that all arrive in order a stream breaks only if somebody aborts it.
        """
        found = self.total(2 * self.schedules)
        self.assertGreater(found["bytes"], 600_000 * self.schedules)
        self.assertGreater(found["NONE"], 13 * self.schedules)
        # An end that accepts a stream whose opener has given up is answered GONE.
        self.assertLessEqual(set(found), {"bytes", "NONE", "ABORTED", "GONE"})

    def test_lost(self) -> None:
        """
        Where a datagram is lost a stream breaks, and has no hole.
        """
        found = self.total(self.schedules, loss=0.02)
        self.assertGreater(found["DATA_LOST"], self.schedules)
        self.assertGreater(found["bytes"], 60_000 * self.schedules)

    def test_twice(self) -> None:
        """
        Where a datagram comes twice no byte does.
        """
        found = self.total(self.schedules, twice=0.02)
        self.assertGreater(found["DATA_LOST"], self.schedules)
        self.assertGreater(found["bytes"], 60_000 * self.schedules)

    def test_everyOrderOfEnds(self) -> None:
        """
        Each combination of what both sides do last ends both, with all that was written before a
        FIN or CLOSE read by who did not close or abort.
        """
        ends = [StreamMachine.finish, StreamMachine.close, StreamMachine.abort]
        for first in ends:
            for second in ends:
                for crossing in (False, True):
                    network = Network(SERVER, CLIENT)
                    network.sockets[SERVER].listening = True
                    session, accepted = network.pair()
                    session.write(b"one")
                    accepted.write(b"two")
                    network.flush(CLIENT, session)
                    network.flush(SERVER, accepted)
                    first(session)
                    network.flush(CLIENT, session)
                    if not crossing:
                        network.run()
                    second(accepted)
                    network.flush(SERVER, accepted)
                    network.run()
                    what = first.__name__, second.__name__, crossing
                    self.assertEqual(set(network.ends), {session, accepted}, what)
                    self.assertFalse(network.sockets[SERVER].sessions, what)
                    self.assertFalse(network.sockets[CLIENT].sessions, what)
                    if StreamMachine.abort not in (first, second):
                        self.assertEqual(set(network.ends.values()), {EndReason.NONE}, what)
                    if first is second is StreamMachine.finish:
                        self.assertEqual((network.read[session], network.read[accepted]), (b"two", b"one"))

    def test_header(self) -> None:
        """
        The header has the length that is documented.
        """
        self.assertEqual(HEADER_BYTES, 32)
