"""
Tests for the parts of C{ib-perf}: options, terms, times, the talk, and what one connection does.
"""

from __future__ import annotations

import io
import json
import sys
from collections import defaultdict
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.error import ConnectionRefusedError as ConnectionRefused
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from tests.support.commands import refusal
from twisted_ib import limits
from twisted_ib.tools import machine
from twisted_ib.tools.perf import client as perfClient
from twisted_ib.tools.perf import link as perfLink
from twisted_ib.tools.perf import parameters, perf, report, runs, server
from twisted_ib.tools.perf.client import Client
from twisted_ib.tools.perf.link import Link
from twisted_ib.tools.perf.method import Test, pattern
from twisted_ib.tools.perf.parameters import ALL_SIZES, Given, Parameters, parseTerms
from twisted_ib.tools.perf.perf import TESTS
from twisted_ib.tools.perf.report import Bandwidth, Row, described, heading
from twisted_ib.tools.perf.runs import Latency, PingPong, Requests, Samples, Source, Span
from twisted_ib.tools.perf.server import Server
from twisted_ib.tools.program import ProgramError
from twisted_ib.tools.progress import Progress

TERMS = Parameters("send", (64,), 10, None, 2)

NOTHING = Given(None, None, None, None)

NAMES = {"-s": "size", "-n": "iters", "-q": "qp", "-D": "duration", "-p": "port"}

BY_NAME = {test.name: test for test in TESTS}


class OptionTests(SynchronousTestCase):
    """
    The command line.
    """

    def refused(self, *arguments: str) -> str:
        """
        @return: the one line with which a command line is refused.
        """
        return refusal(self, perf.commandLine().parse_args, *arguments)

    def test_defaults(self) -> None:
        """
        Without options: a server on perftest's port, which leaves all to the client.
        """
        for name in ("send", "write", "read", "atomic", "sdp", "tcp"):
            options = perf.commandLine().parse_args([name])
            self.assertEqual((options.test, options.host, options.port), (name, None, 18515))
            given = Given.of(options, None)
            self.assertEqual(given, NOTHING)
            self.assertEqual(given.terms(name), Parameters(name, (64,), None, 1.0, 1))

    def test_letters(self) -> None:
        """
        perftest's letters.
        """
        line = "send 10.0.0.1 -s 4K -n 7 -q 3 -d lo0 -p 99 --json"
        options = perf.commandLine().parse_args(line.split())
        self.assertEqual((options.host, options.ib_dev, options.port), ("10.0.0.1", "lo0", 99))
        self.assertTrue(options.json)
        self.assertEqual(Given.of(options, None), Given((4096,), 7, None, 3))
        options = perf.commandLine().parse_args(["send", "-a", "-D", "0.5"])
        self.assertEqual(Given.of(options, None), Given(ALL_SIZES, None, 0.5, None))

    def test_allSizes(self) -> None:
        """
        -a is all powers of two from 2 to the longest message.
        """
        self.assertEqual((len(ALL_SIZES), ALL_SIZES[0], ALL_SIZES[-1]), (23, 2, limits.PERF_MESSAGE))

    def test_bounds(self) -> None:
        """
        Each number has its bounds, and the error names what was written.
        """
        for option, good, bad in (
            ("-s", ("1", "8M", "8192k", "8388608"), ("0", "-1", "8388609", "9m", "K", "1G", "", "x")),
            ("-n", ("1", "1000000000"), ("0", "-1", "1000000001", "1.5", "")),
            ("-q", ("1", "16384"), ("0", "16385")),
            ("-D", ("0.001", "86400"), ("0", "-1", "86401", "nan", "inf", "x")),
            ("-p", ("0", "65535"), ("-1", "65536", "http")),
        ):
            for text in good:
                perf.commandLine().parse_args(["send", f"{option}{text}"])
            for text in bad:
                said = self.refused("send", option + text if text else f"--{NAMES[option]}=")
                self.assertIn(repr(text), said)

    def test_exclusive(self) -> None:
        """
        One size or all, a number or a time.
        """
        self.assertIn("-s", self.refused("send", "-a", "-s", "4"))
        self.assertIn("-D", self.refused("send", "-n", "4", "-D", "4"))
        self.refused()
        self.refused("nothing")

    def test_onlySize(self) -> None:
        """
        An atomic operation has 8 bytes.
        """
        only = BY_NAME["atomic"].only
        for line in ("atomic", "atomic -s 8"):
            self.assertEqual(Given.of(perf.commandLine().parse_args(line.split()), only).sizes, (8,))
        for line in ("atomic -s 16", "atomic -a"):
            options = perf.commandLine().parse_args(line.split())
            self.assertRaises(ProgramError, Given.of, options, only)

    def test_noDevice(self) -> None:
        """
        TCP has no device, and only a server does with any port.
        """
        for line in ("tcp -d shm0", "send 127.0.0.1 -p 0"):
            running = Deferred.fromCoroutine(perf.run(Clock(), perf.commandLine().parse_args(line.split())))
            self.failureResultOf(running, ProgramError)


class TermsTests(SynchronousTestCase):
    """
    The parameters that both ends agree on.
    """

    def test_round(self) -> None:
        """
        Terms come out of JSON as they went in.
        """
        for terms in (TERMS, Parameters("sdp", ALL_SIZES, None, 0.5, 1)):
            self.assertEqual(parseTerms(json.loads(json.dumps(terms.message()))), terms)

    def test_hostile(self) -> None:
        """
        A field that is missing, of another kind or out of its bounds is refused.
        """
        message = json.loads(json.dumps(TERMS.message()))
        strange: list[Any] = [None, True, -1, 0, 1.5, "1", [], {}, [0], [1.0], [True], [1, "2"], 1 << 70]
        for name in list(message):
            for value in strange:
                if (name, value) not in (("test", "1"), ("ib-perf", True), ("seconds", None)):
                    self.assertRaises(ProgramError, parseTerms, {**message, name: value})
            del message[name]
            if name != "seconds":
                self.assertRaises(ProgramError, parseTerms, message)
            message = json.loads(json.dumps(TERMS.message()))
        for change in (
            {"seconds": 1},  # and iterations
            {"sizes": [64] * (len(ALL_SIZES) + 1)},
            {"sizes": [limits.PERF_MESSAGE + 1]},
            {"iterations": limits.PERF_ITERATIONS + 1},
            {"iterations": None, "seconds": limits.PERF_SECONDS + 1},
            {"queue_pairs": limits.PERF_QUEUE_PAIRS + 1},
            {"ib-perf": 2},
        ):
            self.assertRaises(ProgramError, parseTerms, {**message, **change})

    def test_memory(self) -> None:
        """
        All queue pairs together have a bound.
        """
        most = parameters.PERF_MEMORY // limits.PERF_MESSAGE
        Given((limits.PERF_MESSAGE,), 1, None, most).terms("send")
        given = Given((limits.PERF_MESSAGE,), 1, None, most + 1)
        self.assertRaises(ProgramError, given.terms, "send")
        message = Parameters("send", (limits.PERF_MESSAGE,), 1, None, most + 1).message()
        self.assertRaises(ProgramError, parseTerms, {**message, "sizes": list(message["sizes"])})

    def test_compare(self) -> None:
        """
        The server's options, and nothing else, have to be the client's too.
        """
        for given in (NOTHING, Given((64,), 10, None, 2), Given(None, 10, None, None)):
            given.compare("send", TERMS)
        for given, test, words in (
            (NOTHING, "write", "the server runs ib-perf write, not send"),
            (Given((128,), None, None, None), "send", "with -s 128,"),
            (Given(ALL_SIZES, None, None, None), "send", "with -a,"),
            (Given(None, 11, None, None), "send", "with -n 11,"),
            (Given(None, None, 1.5, None), "send", "with -D 1.5,"),
            (Given(None, None, None, 1), "send", "with -q 1,"),
        ):
            self.assertIn(words, str(self.assertRaises(ProgramError, given.compare, test, TERMS)))


class SamplesTests(SynchronousTestCase):
    """
    Times and their percentiles.
    """

    def test_percentiles(self) -> None:
        """
        They are right to three digits, also at both ends of what is kept.
        """
        samples = Samples()
        for time in range(1, 100_001):
            samples.counts[time * 100] += 1
        latency = samples.latency()
        self.assertEqual(latency.count, 100_000)
        for value, wanted in (
            (latency.minimum, 100),
            (latency.p50, 5_000_000),
            (latency.p99, 9_900_000),
            (latency.p999, 9_990_000),
            (latency.maximum, 10_000_000),
        ):
            self.assertApproximates(value / wanted, 1, 0.001)

    def test_extremes(self) -> None:
        """
        A time of nothing, and one that is longer than a test.
        """
        samples = Samples()
        samples.counts[0] += 1
        samples.counts[limits.PERF_SECONDS * 10**10] += 1
        latency = samples.latency()
        self.assertEqual((latency.count, latency.minimum), (2, 1))
        self.assertApproximates(latency.maximum / (limits.PERF_SECONDS * 10**9), 1, 0.001)

    def test_fold(self) -> None:
        """
        Beside the histogram only so many times are kept, and none is lost.
        """
        samples = Samples()
        for time in range(1, perfClient.PERF_DISTINCT + 1):
            samples.counts[time] += 2
        samples.fold(perfClient.PERF_DISTINCT)
        self.assertEqual(len(samples.counts), perfClient.PERF_DISTINCT)
        samples.counts[perfClient.PERF_DISTINCT + 1] += 2
        samples.fold(perfClient.PERF_DISTINCT)
        self.assertEqual(len(samples.counts), 0)
        self.assertEqual(samples.latency().count, 2 * perfClient.PERF_DISTINCT + 2)

    def test_missing(self) -> None:
        """
        Without the package the error says what to install.
        """
        Samples()
        name = "hdrh.histogram"
        self.addCleanup(sys.modules.__setitem__, name, sys.modules[name])
        sys.modules[name] = None  # type: ignore[assignment]
        self.assertIn("pip install 'twisted-ib[perf]'", str(self.assertRaises(ProgramError, Samples)))


class Owner:
    """
    Remembers what its connections do.
    """

    def __init__(self) -> None:
        self.log: list[Any] = []

    def made(self, link: Link) -> None:
        self.log.append("made")

    def heard(self, link: Link, message: dict[str, Any]) -> None:
        self.log.append(message)

    def lost(self, link: Link, reason: Failure) -> None:
        self.log.append("lost")


class Transport(StringTransport):
    """
    Has what a connection here needs besides.
    """

    def __init__(self, reactor: Any = None) -> None:
        """
        @param reactor: its clock.
        """
        StringTransport.__init__(self)
        self.reactor = reactor

    def gone(self) -> bool:
        """
        @return: whether this end closes.
        """
        return bool(self.disconnecting or self.disconnected)


def linked(owner: Any = None, reactor: Any = None) -> tuple[Link, Transport]:
    """
    @return: a connection.
    """
    link, transport = Link(owner or Owner()), Transport(reactor)
    link.makeConnection(transport)
    return link, transport


class LinkTests(SynchronousTestCase):
    """
    The talk.
    """

    def test_lines(self) -> None:
        """
        A line may come in pieces, and another one later.
        """
        owner = Owner()
        link, transport = linked(owner)
        for piece in (b'{"a"', b": 1}", b"\n", b"{}\n"):
            link.dataReceived(piece)
        self.assertEqual(owner.log, ["made", {"a": 1}, {}])
        link.say(b=[2])
        self.assertEqual(transport.value(), b'{"b": [2]}\n')

    def test_strange(self) -> None:
        """
        Any other line ends the connection.
        """
        for data in (
            b"HTTP/1.1 400 Bad Request\r\n",
            b"[1]\n",
            b"{}\n{}\n",
            b"{}\nx",
            b"\xff\n",
            b"\n",
            b"[" * 4000 + b"\n",
            b"x" * (perfLink.PERF_LINE + 1),
        ):
            owner = Owner()
            link, transport = linked(owner)
            link.dataReceived(data)
            self.assertTrue(link.strange, data)
            self.assertTrue(transport.gone())
            self.assertEqual(owner.log, ["made"])


class RunTests(SynchronousTestCase):
    """
    One connection's work during a measurement.
    """

    def setUp(self) -> None:
        """
        A clock in nanoseconds that each look moves on by 10.
        """
        self.now = 0
        self.patch(runs, "perf_counter_ns", self.look)

    def look(self) -> int:
        """
        @return: the time.
        """
        self.now += 10
        return self.now

    def test_pingPong(self) -> None:
        """
        Each message leaves when the one before it is back whole, and is timed.
        """
        link, transport = linked()
        counts: defaultdict[int, int] = defaultdict(int)
        done = PingPong(link, b"abcd", Span(3), counts).start()
        for number in range(1, 4):
            self.assertEqual(transport.value(), b"abcd" * number)
            link.dataReceived(b"ab")
            self.assertEqual(transport.value(), b"abcd" * number)
            link.dataReceived(b"cd")
        self.assertEqual(self.successResultOf(done), 3)
        self.assertEqual(transport.value(), b"abcd" * 3)
        self.assertEqual(counts, {10: 3})

    def test_pingPongTime(self) -> None:
        """
        One that takes a time ends with the first message that is back after it.
        """
        link, transport = linked()
        run = PingPong(link, b"abcd", Span(seconds=100e-9), defaultdict(int))
        done = run.start()
        while not done.called:
            link.dataReceived(b"abcd")
        self.assertEqual(transport.value(), b"abcd" * self.successResultOf(done))
        self.assertEqual(run.made, 5)

    def test_source(self) -> None:
        """
        It writes while the transport takes it, and counts what was written.
        """
        link, transport = linked()
        run = Source(link, b"ab", Span(100))
        written: list[bytes] = []

        def write(data: bytes) -> None:
            written.append(data)
            if len(written) % 30 == 0:
                run.pauseProducing()

        transport.write = write  # type: ignore[method-assign]
        done = run.start()
        for count in (30, 60, 90):
            self.assertEqual((len(written), run.made), (count, count))
            self.assertNoResult(done)
            run.resumeProducing()
        self.assertEqual((self.successResultOf(done), len(written)), (100, 100))
        self.assertIdentical(transport.producer, None)

    def test_sourceTurns(self) -> None:
        """
        Where the transport never has enough the reactor has its turns; there are none once the
        connection is gone.
        """
        clock = Clock()
        link, transport = linked(reactor=clock)
        run = Source(link, b"ab", Span(3000))
        run.start()
        self.assertEqual((run.made, len(clock.getDelayedCalls())), (1024, 1))
        clock.advance(0)
        self.assertEqual((self.successResultOf(run.done), transport.value()), (3000, b"ab" * 3000))
        link, transport = linked(reactor=clock)
        run = Source(link, b"ab", Span())
        run.start()
        run.stopProducing()
        self.assertEqual(clock.getDelayedCalls(), [])

    def test_sourceTime(self) -> None:
        """
        One that takes a time looks at the clock now and then.
        """
        link, transport = linked(reactor=Clock())
        done = Source(link, b"ab", Span(seconds=50e-9)).start()
        made = self.successResultOf(done)
        self.assertEqual(transport.value(), b"ab" * made)

    def test_requests(self) -> None:
        """
        So many are on the way, and each that is done makes room for another.
        """
        posted: list[Deferred[Any]] = []

        def post() -> Deferred[Any]:
            posted.append(Deferred())
            return posted[-1]

        done = Requests(post, 4, Span(6)).start()
        self.assertEqual(len(posted), 4)
        for number in range(6):
            self.assertNoResult(done)
            posted[number].callback(None)
        self.assertEqual((len(posted), self.successResultOf(done)), (6, 6))

    def test_requestTimes(self) -> None:
        """
        One at a time, each is timed; a few are fewer than the depth.
        """
        counts: defaultdict[int, int] = defaultdict(int)
        posted: list[Deferred[Any]] = []

        def post() -> Deferred[Any]:
            posted.append(Deferred())
            return posted[-1]

        done = Requests(post, 1, Span(3), counts).start()
        for number in range(3):
            self.assertEqual(len(posted), number + 1)
            posted[number].callback(b"")
        self.assertEqual((self.successResultOf(done), counts), (3, {10: 3}))
        Requests(post, 8, Span(2)).start()
        self.assertEqual(len(posted), 5)

    def test_requestFails(self) -> None:
        """
        The first that fails ends it.
        """
        posted: list[Deferred[Any]] = []

        def post() -> Deferred[Any]:
            posted.append(Deferred())
            return posted[-1]

        done = Requests(post, 2, Span(9)).start()
        for each in posted[:2]:
            each.errback(ProgramError("no"))
        self.failureResultOf(done, ProgramError)


class ServerTests(SynchronousTestCase):
    """
    The server, without a network.
    """

    def setUp(self) -> None:
        """
        One that was given nothing.
        """
        self.clock = Clock()
        self.make(NOTHING)

    def make(self, given: Given) -> None:
        """
        @param given: its options.
        """
        self.server = Server(self.clock, BY_NAME["send"], given)

    def connect(self) -> tuple[Link, Transport]:
        """
        @return: a connection of a client, at the server's end.
        """
        link = self.server.buildProtocol(None)
        assert link is not None
        transport = Transport(self.clock)
        link.makeConnection(transport)
        return link, transport

    def ask(self, link: Link, transport: Transport, message: Any) -> Any:
        """
        @return: the answer; L{None} if there is none.
        """
        transport.clear()
        link.dataReceived(json.dumps(message).encode() + b"\n")
        return json.loads(transport.value()) if transport.value() else None

    def begin(self) -> tuple[Link, Transport, list[Link]]:
        """
        @return: a control connection with its transport, and the others.
        """
        control, transport = self.connect()
        session = self.ask(control, transport, TERMS.message())["session"]
        links = []
        for _ in range(TERMS.queuePairs):
            link, its = self.connect()
            self.assertEqual(self.ask(link, its, {"join": session}), {"joined": True})
            links.append(link)
        return control, transport, links

    def test_session(self) -> None:
        """
        An echo, a sink that says when all has come on all connections, and the end.
        """
        control, transport, (one, two) = self.begin()
        self.assertEqual(self.ask(control, transport, {"phase": "echo"}), {"phase": "echo"})
        one.transport.clear()
        one.dataReceived(b"back")
        self.assertEqual(one.transport.value(), b"back")
        self.assertEqual(self.ask(control, transport, {"phase": "count"}), {"phase": "count"})
        one.dataReceived(b"12345")
        self.assertIdentical(self.ask(control, transport, {"sent": 8}), None)
        two.dataReceived(b"678")
        self.assertEqual(json.loads(transport.value()), {"received": True})
        self.assertEqual(self.ask(control, transport, {"end": True}), {"end": True})
        ended = self.server._ended
        for link in (one, two, control):
            self.assertNoResult(ended)
            link.connectionLost(Failure(ConnectionDone()))
        served = self.successResultOf(ended)
        self.assertEqual((served.terms, served.received), (TERMS, 8))

    def test_unreadEcho(self) -> None:
        """
        A client that does not read what comes back is not read from either.
        """
        control, transport, (one, _) = self.begin()
        self.ask(control, transport, {"phase": "echo"})
        self.assertIdentical(one.transport.producer, one.transport)
        self.ask(control, transport, {"phase": "count"})
        self.assertIdentical(one.transport.producer, None)

    def test_early(self) -> None:
        """
        A client that ends too early, by any of its connections, ends the server with an error.
        """
        for number in range(3):
            self.make(NOTHING)
            control, _, links = self.begin()
            [control, *links][number].connectionLost(Failure(ConnectionDone()))
            self.failureResultOf(self.server._ended, ProgramError)

    def test_refused(self) -> None:
        """
        A client that wants something else is refused, and the server waits on.
        """
        self.make(Given((128,), None, None, None))
        for message, words in (
            (TERMS.message(), "-s 128"),
            ({**TERMS.message(), "test": "read"}, "not read"),
            ({"join": "x"}, "no connection of the server's client"),
            ({}, "version"),
        ):
            link, transport = self.connect()
            self.assertIn(words, self.ask(link, transport, message)["error"])
            self.assertTrue(transport.gone())
            link.connectionLost(Failure(ConnectionDone()))
        self.assertNoResult(self.server._ended)

    def test_oneClient(self) -> None:
        """
        There is one client, with as many connections as it said.
        """
        _, _, links = self.begin()
        link, transport = self.connect()
        self.assertIn("a client already", self.ask(link, transport, TERMS.message())["error"])
        session = self.server._session
        assert session is not None
        for token, words in ((session.token, "all its connections"), ("x", "no connection")):
            link, transport = self.connect()
            self.assertIn(words, self.ask(link, transport, {"join": token})["error"])
        self.assertEqual(session.links, links)

    def test_strangers(self) -> None:
        """
        A silent connection is closed after a while; their number is bounded.
        """
        strangers = [self.connect() for _ in range(server.PERF_STRANGERS)]
        self.assertIdentical(self.server.buildProtocol(None), None)
        self.clock.advance(limits.PERF_HELLO_SECONDS)
        for link, transport in strangers:
            self.assertTrue(transport.gone())
            link.connectionLost(Failure(ConnectionDone()))
        self.begin()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_nonsense(self) -> None:
        """
        An invalid message in the middle ends that connection.
        """
        control, transport, (one, _) = self.begin()
        one.dataReceived(b"{}\n")
        self.assertTrue(one.transport.gone())
        for message in ({}, {"phase": "x"}, {"phase": []}, {"sent": "1"}, {"sent": True}):
            self.make(NOTHING)
            control, transport, _ = self.begin()
            self.assertIn("does not know", self.ask(control, transport, message)["error"])
            self.assertTrue(transport.gone())


class Meeting(Test):
    """
    A test whose client connects to nobody.

    @ivar connecting: what waits for a connection, with its factory.
    """

    name = "send"

    def __init__(self) -> None:
        """
        Nobody connects.
        """
        self.connecting: list[tuple[Deferred[Any], Any]] = []

    def client(self, reactor: Any, host: str, port: int, device: str | None) -> Any:
        """
        @return: what connects.
        """
        return self

    def connect(self, factory: Any) -> Deferred[Any]:
        """
        @return: fires with the connection.
        """
        self.connecting.append((Deferred(), factory))
        return self.connecting[-1][0]

    def accept(self) -> tuple[Link, Transport]:
        """
        @return: the next connection, at the client's end.
        """
        waiting, factory = self.connecting.pop(0)
        link, transport = factory.buildProtocol(None), Transport()
        link.makeConnection(transport)
        waiting.callback(link)
        return link, transport

    async def begin(self, ask: Any, what: str) -> None:
        """
        This test measures nothing.
        """
        raise NotImplementedError


class ClientTests(SynchronousTestCase):
    """
    The client, without a network.
    """

    def setUp(self) -> None:
        """
        One that has begun.
        """
        self.begin(TERMS)

    def begin(self, terms: Parameters) -> None:
        """
        @param terms: what to measure.
        """
        self.clock, self.test = Clock(), Meeting()
        client = Client(self.clock, self.test, terms, Progress(io.StringIO(), 1))
        self.running = Deferred.fromCoroutine(client.run("there", 7, None, self.fail))

    def ends(self, *words: str) -> str:
        """
        Assert that it ends with an error that has these words.

        @return: all of it.
        """
        self.clock.advance(0)
        said = str(self.failureResultOf(self.running, ProgramError).value)
        for each in words:
            self.assertIn(each, said)
        return said

    def test_noServer(self) -> None:
        """
        Nobody listens.
        """
        self.test.connecting[0][0].errback(ConnectionRefused("nobody"))
        self.ends("cannot connect to there port 7: ", "nobody")

    def test_refused(self) -> None:
        """
        The server refuses; what it says comes to a terminal as text only, and not all of it.
        """
        link, transport = self.test.accept()
        self.assertEqual(parseTerms(json.loads(transport.value())), TERMS)
        link.dataReceived(json.dumps({"error": "no \x1b[1m" + "x" * 1000}).encode() + b"\n")
        self.assertTrue(len(self.ends("no \\x1b[1mxxx")) < 400)

    def test_silent(self) -> None:
        """
        The server does not answer.
        """
        self.test.accept()
        self.clock.advance(limits.PERF_HELLO_SECONDS)
        self.ends("there port 7 does not answer")

    def test_strange(self) -> None:
        """
        The server is something else.
        """
        link, _ = self.test.accept()
        link.dataReceived(b"220 ready\r\n")
        link.connectionLost(Failure(ConnectionDone()))
        self.ends("there port 7 is no ib-perf")

    def test_lost(self) -> None:
        """
        The server ends too early.
        """
        link, _ = self.test.accept()
        link.dataReceived(b'{"session": "x"}\n')
        self.test.accept()
        link.connectionLost(Failure(ConnectionDone()))
        self.ends("the server ended before the test did")

    def test_connecting(self) -> None:
        """
        Only so many connections are made at a time, and all in the end.
        """
        self.begin(Parameters("send", (64,), 10, None, 100))
        link, transport = self.test.accept()
        transport.clear()
        link.dataReceived(b'{"session": "x"}\n')
        joined = 0
        while self.test.connecting:
            self.assertEqual(len(self.test.connecting), min(limits.PERF_CONNECTING, 100 - joined))
            one, its = self.test.accept()
            self.assertEqual(json.loads(its.value()), {"ib-perf": 1, "join": "x"})
            one.dataReceived(b'{"joined": true}\n')
            joined += 1
        self.assertEqual(joined, 100)
        self.failureResultOf(self.running, NotImplementedError)


class ReportTests(SynchronousTestCase):
    """
    Output.
    """

    row = Row(8388608, Latency(123456789, 1, 1_500, 22_222_222, 333_333_333, 9), Bandwidth(10, 83886080, 0.5))

    def test_table(self) -> None:
        """
        Its lines fit 80 columns, and numbers stand below their titles.
        """
        for test in TESTS:
            *lines, titles = heading(test, TERMS, "shm0").split("\n")
            line = self.row.line()
            self.assertEqual(len(line), len(titles))
            for each in (*lines, titles, line):
                self.assertTrue(len(each) < 80, each)
        self.assertEqual(
            line.split(), ["8388608", "123456789", "1.50", "22222.22", "333333.33", "167.77", "20"]
        )

    def test_form(self) -> None:
        """
        The lines above the table say whether modules are compiled.
        """
        for modules, words in (([], "pure Python"), (["a", "b"], "2 compiled modules")):
            self.patch(machine, "compiledModules", lambda modules=modules: modules)
            self.assertIn(f"\nthis end runs {words}\n", heading(TESTS[0], TERMS, "shm0"))

    def test_json(self) -> None:
        """
        The same for programs.
        """
        self.patch(report, "compiledModules", lambda: ["twisted_ib.sdp.stream"])
        found = json.loads(json.dumps({**described(TESTS[0], TERMS, "shm0"), **self.row.json()}))
        self.assertEqual(found["compiled"], ["twisted_ib.sdp.stream"])
        self.assertEqual((found["test"], found["queue_pairs"], found["bytes"]), ("send", 2, 8388608))
        self.assertEqual((found["latency"]["p50_usec"], found["latency"]["p99_9_usec"]), (1.5, 333333.333))
        self.assertEqual(found["bandwidth"]["messages_per_sec"], 20.0)


class PatternTests(SynchronousTestCase):
    """
    Data sent.
    """

    def test_same(self) -> None:
        """
        Both ends know it, and it is as long as the longest message.
        """
        terms = Parameters("read", (2, 1000), 1, None, 1)
        self.assertEqual(pattern(terms), pattern(terms))
        self.assertEqual(len(pattern(terms)), 1000)
