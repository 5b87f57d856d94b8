"""
The C{ib-perf} client: connects, sends the test's parameters, measures.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

from twisted.internet.defer import Deferred, FirstError, gatherResults
from twisted.internet.error import ConnectError
from twisted.internet.protocol import Factory
from twisted.internet.task import LoopingCall
from twisted.python.failure import Failure

from twisted_ib import limits
from twisted_ib.errors import HCAError
from twisted_ib.tools.perf.link import Link
from twisted_ib.tools.perf.method import COUNT, ECHO, Test, pattern
from twisted_ib.tools.perf.parameters import VERSION, Parameters
from twisted_ib.tools.perf.report import Bandwidth, Row
from twisted_ib.tools.perf.runs import Run, Samples, Span
from twisted_ib.tools.program import ProgramError, printable, sentence
from twisted_ib.tools.progress import Progress

#: Distinct latencies that are kept outside the histogram before they are folded into it.
PERF_DISTINCT = 65536

#: Messages or seconds that are not measured: caches, allocators and pollers settle.
WARM_UP = Span(300, 0.1)

#: Measurements per message size: latency and bandwidth.
MEASUREMENTS = 2

_SHOWN_ERROR = 300


class Client:
    """
    One run of a test: see L{Owner<twisted_ib.tools.perf.link.Owner>}.
    """

    def __init__(self, reactor: Any, test: Test, terms: Parameters, progress: Progress) -> None:
        self._reactor = reactor
        self._test = test
        self._terms = terms
        self._progress = progress
        self._links: list[Link] = []
        self._answers: dict[Link, Deferred[dict[str, Any]]] = {}
        self._work: Deferred[None] | None = None
        self._error: ProgramError | None = None
        self._over = False
        self._where = ""
        # -n and -D exclude each other.
        self._span = Span(terms.iterations) if terms.iterations else Span(seconds=terms.seconds)

    async def run(self, host: str, port: int, device: str | None, show: Callable[[Row], None]) -> None:
        """
        Measure.

        @param device: The HCA to connect from.
        @param show: Called with the results of each size.
        @raise ProgramError: The test failed; the text says why.
        """
        # A missing histogram package is reported before the server is contacted.
        Samples()
        self._where = f"{host} port {port}"
        endpoint = self._test.client(self._reactor, host, port, device)
        work = self._work = Deferred.fromCoroutine(self._measure(endpoint, show))
        try:
            await work
        except Exception as error:
            # A cancelled coroutine ends with an error that does not say why.
            raise self._error or self._explained(error) from None

    def _explained(self, error: Exception) -> Exception:
        if isinstance(error, (ConnectError, HCAError)) and not self._links:
            return ProgramError(f"cannot connect to {self._where}: {sentence(error)}")
        return error

    async def _measure(self, endpoint: Any, show: Callable[[Row], None]) -> None:
        # The first connection only controls: nothing else on it disturbs what is measured on the others.
        control: Link = await endpoint.connect(Factory.forProtocol(lambda: Link(self)))
        self._links.append(control)
        answer = await self._ask(control, True, **self._terms.message())
        await self._join(endpoint, answer.get("session"))

        async def ask(**message: Any) -> dict[str, Any]:
            return await self._ask(control, False, **message)

        content = pattern(self._terms)
        for size in self._terms.sizes:
            show(await self._size(ask, content[:size]))
        await ask(end=True)
        # From now on a lost connection is the expected end.
        self._over = True
        for link in self._links:
            link.transport.loseConnection()

    # -- connections

    async def _join(self, endpoint: Any, session: Any) -> None:
        missing = self._terms.queuePairs

        async def some() -> None:
            nonlocal missing
            while missing:
                missing -= 1
                link: Link = await endpoint.connect(Factory.forProtocol(lambda: Link(self)))
                self._links.append(link)
                message = {"ib-perf": VERSION, "join": session}
                self._test.joined(link, self._terms, await self._ask(link, True, **message))

        # Several connects at a time, but not all: a server's backlog is finite.
        together = min(missing, limits.PERF_CONNECTING)
        await _all([Deferred.fromCoroutine(some()) for _ in range(together)])

    async def _ask(self, link: Link, prompt: bool, **message: Any) -> dict[str, Any]:
        answered: Deferred[dict[str, Any]] = Deferred()
        self._answers[link] = answered
        link.say(**message)
        # Only short questions have a timeout: a measurement's answer takes as long as the measurement.
        guard = None
        if prompt:
            error = ProgramError(f"the server at {self._where} does not answer")
            guard = self._reactor.callLater(limits.PERF_HELLO_SECONDS, self._fail, error)
        try:
            answer = await answered
        finally:
            self._answers.pop(link, None)
            if guard is not None and guard.active():
                guard.cancel()
        if "error" in answer:
            # The server's text reaches the user's terminal: without control characters, and not without end.
            raise ProgramError(printable(str(answer["error"]))[:_SHOWN_ERROR])
        return answer

    def made(self, link: Link) -> None:
        pass  # The client speaks first.

    def heard(self, link: Link, message: dict[str, Any]) -> None:
        answered = self._answers.pop(link, None)
        # Nothing was asked: the other end does not follow the protocol.
        if answered is None:
            link.distrust()
        else:
            answered.callback(message)

    def lost(self, link: Link, reason: Failure) -> None:
        if link.strange:
            self._fail(ProgramError(f"the server at {self._where} is no ib-perf"))
        elif not self._over:
            self._fail(ProgramError("the server ended before the test did"))

    def _fail(self, error: ProgramError) -> None:
        if self._error is None and self._work is not None:
            self._error = error
            # In a turn of its own: the running code may be the coroutine itself, which cannot be cancelled
            # from within.
            self._reactor.callLater(0, self._work.cancel)

    # -- measurements

    async def _size(self, ask: Any, message: bytes) -> Row:
        test, links = self._test, self._links[1:]
        samples = Samples()
        await test.begin(ask, ECHO)
        for link in links:
            await test.before(link, message)

        def latency(span: Span, counts: defaultdict[int, int]) -> list[Run]:
            return [test.latency(link, message, span, counts) for link in links]

        # The warm-up's samples go into a dictionary that is thrown away.
        await _all([run.start() for run in latency(WARM_UP, defaultdict(int))])
        await self._watched(f"{len(message)} bytes, latency", latency(self._span, samples.counts), samples)
        await self._bandwidth(ask, message, WARM_UP)
        speed = await self._bandwidth(ask, message, self._span)
        for link in links:
            await test.after(link, message)
        return Row(len(message), samples.latency(), speed)

    async def _bandwidth(self, ask: Any, message: bytes, span: Span) -> Bandwidth:
        await self._test.begin(ask, COUNT)
        runs = [self._test.bandwidth(link, message, span) for link in self._links[1:]]
        began = perf_counter_ns()
        if span is WARM_UP:
            made = sum(await _all([run.start() for run in runs]))
        else:
            made = await self._watched(f"{len(message)} bytes, bandwidth", runs, None)
        # The clock stops only when the server has received everything: what is in buffers does not count as
        # transferred. perftest's send test waits for completions instead, which RC gives per message (IBTA
        # vol. 1 9.7.5).
        await self._test.end(ask, made * len(message))
        # At least one nanosecond, since the rates divide by it.
        return Bandwidth(made, made * len(message), max(perf_counter_ns() - began, 1) / 1e9)

    async def _watched(self, what: str, runs: Sequence[Run], samples: Samples | None) -> int:
        began = perf_counter_ns()
        seconds, count = self._terms.seconds, self._terms.iterations

        def fraction() -> float:
            if seconds is not None:
                return (perf_counter_ns() - began) / 1e9 / seconds
            return sum(run.made for run in runs) / (count or 1) / len(runs)

        def look() -> None:
            self._progress.show(fraction)
            # On the timer, not per message, which would add the histogram's cost to the latency.
            if samples is not None:
                samples.fold(PERF_DISTINCT)

        self._progress.next(what)
        looking = LoopingCall(look)
        looking.clock = self._reactor
        looking.start(self._progress.interval, now=False)
        try:
            return sum(await _all([run.start() for run in runs]))
        finally:
            looking.stop()


async def _all(waited: Sequence[Deferred[Any]]) -> list[Any]:
    try:
        # consumeErrors: the other failures are consequences of the first, and would be logged as unhandled.
        return await gatherResults(waited, consumeErrors=True)
    except Exception as error:
        for each in waited:
            each.addErrback(lambda _: None).cancel()
        if isinstance(error, FirstError):
            error.subFailure.raiseException()
        raise
