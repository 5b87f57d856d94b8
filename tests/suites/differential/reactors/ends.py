"""
Two ends of a connection for scenarios of Twisted's reactors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from attrs import define, field
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.epollreactor import EPollReactor
from twisted.internet.interfaces import IHalfCloseableProtocol
from twisted.internet.protocol import ClientFactory, Protocol
from twisted.logger import LogEvent, globalLogPublisher
from twisted.python.failure import Failure
from zope.interface import implementer

from tests.suites.differential.known import KNOWN
from tests.suites.differential.places import apart
from tests.suites.differential.record import Noting, Record, Recording, Scenarios
from tests.support.descriptors import closeWakers
from tests.support.waiting import HANG_SECONDS
from twisted_ib.internet.readers import channelsOf
from twisted_ib.reactor.ibreactor import IBReactor
from twisted_ib.sdp.stream import Stream

HOST = "127.0.0.1"


class Recorder(Noting, Protocol):
    """
    A protocol.
    """

    transport: Any = None
    port = 0

    def connectionMade(self) -> None:
        self.port = self.transport.getHost().port
        self.note("made")

    def dataReceived(self, data: bytes) -> None:
        self.note("data", data)

    def connectionLost(self, reason: Failure = Failure(Exception())) -> None:  # noqa: B008
        self.note("lost", reason.value)


@implementer(IHalfCloseableProtocol)
class Half(Recorder):
    """
    One that hears of both directions.
    """

    def readConnectionLost(self) -> None:
        self.note("readLost")

    def writeConnectionLost(self) -> None:
        self.note("writeLost")


class Factory(Noting, ClientFactory):
    """
    Gives the protocols that it has.

    @ivar protocols: What is to be given, in order; L{None} refuses.
    """

    noisy = False

    def __init__(self, name: str, ends: Ends, *protocols: Any) -> None:
        super().__init__(name, {})
        self.ends, self.protocols = ends, list(protocols)

    def doStart(self) -> None:
        self.note("doStart")
        super().doStart()

    def doStop(self) -> None:
        self.note("doStop")
        super().doStop()

    def startFactory(self) -> None:
        self.note("start")

    def stopFactory(self) -> None:
        self.note("stop")

    def startedConnecting(self, connector: Any) -> None:
        self.note("connecting")
        self.connector = connector

    def clientConnectionFailed(self, connector: Any, reason: Failure) -> None:
        self.note("failed", reason.value)

    def clientConnectionLost(self, connector: Any, reason: Failure) -> None:
        self.note("lost", reason.value)

    def buildProtocol(self, addr: Any) -> Any:
        """
        Note, and give the next one.
        """
        self.note("build", type(addr).__name__, getattr(addr, "type", None), getattr(addr, "host", None))
        made = self.protocols.pop(0) if self.protocols else self.ends.recorder("one more")
        if made is not None:
            made.factory = self
        return made


@define
class Ends(Recording):
    """
    The two ends of a scenario.
    """

    kind = Recorder
    reactor: Any
    ports: list[Any] = field(factory=list)

    async def wait(self, what: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """
        Wait for what a call returns, and say what came of it.

        @return: The result; L{None} after an error.
        """
        try:
            result = await maybeDeferred(call, *arguments)
        except Exception as e:
            self.say(f"{what}:", e)
            return None
        self.say(f"{what}:", result)
        return result

    async def turn(self) -> None:
        """
        Wait for a later turn.
        """
        later: Deferred[None] = Deferred()
        self.reactor.callLater(0, later.callback, None)
        await later

    async def until(self, holds: Callable[[], Any]) -> None:
        """
        Wait until something is so.
        """
        deadline = time.monotonic() + HANG_SECONDS / 2
        while not holds():
            if time.monotonic() > deadline:
                raise AssertionError("it does not happen")
            await self.turn()

    def factory(self, name: str, *protocols: Any) -> Factory:
        """
        @return: A factory, whose calls are said when the scenario is over.
        """
        made = Factory(name, self, *protocols)
        self.noting.append(made)
        return made

    def listen(self, factory: Any, port: int = 0, **options: Any) -> tuple[Any, int]:
        """
        @return: A port, and its number.
        """
        made = self.reactor.listenTCP(port, factory, interface=HOST, **options)
        self.ports.append(made)
        number = made.getHost().port
        self.record.names[number] = "SERVER"
        return made, number

    async def pair(
        self,
        client: dict[str, Any] | None = None,
        server: dict[str, Any] | None = None,
        kinds: tuple[Any, Any] = (None, None),
    ) -> tuple[Any, Any]:
        """
        @param client: What the client's protocol does; C{server}: likewise.
        @return: Both protocols, connected.
        """
        ours, theirs = self.recorder("client", client, kinds[0]), self.recorder("server", server, kinds[1])
        quiet = ClientFactory(), ClientFactory()
        for factory, protocol in zip(quiet, (ours, theirs), strict=True):
            factory.noisy = False
            factory.buildProtocol = lambda addr, protocol=protocol: protocol  # type: ignore[method-assign,misc]
        port, number = self.listen(quiet[1])
        self.reactor.connectTCP(HOST, number, quiet[0])
        await self.have("made", ours, theirs)
        await maybeDeferred(port.stopListening)
        self.check(ours.transport)
        self.record.names[ours.port] = "CLIENT"
        return ours, theirs

    def check(self, transport: Any) -> None:
        """
        @raise AssertionError: It is over the other of both.
        """
        if isinstance(transport, Stream) != self.isSDP:
            raise AssertionError("the connection is over the other of both")

    async def close(self) -> None:
        """
        End what is left.
        """
        for port in self.ports:
            await maybeDeferred(port.stopListening)
        recorders = [each for each in self.noting if isinstance(each, Recorder)]
        for each in self.noting:
            each.does = {}
        for each in recorders:
            if each.transport is not None and not each.has("lost"):
                with suppress(Exception):
                    each.transport.unregisterProducer()
                each.transport.abortConnection()
        for _ in range(5):
            await self.turn()


async def _played(ends: Ends, scenario: Callable[[Ends], Coroutine[Any, Any, None]]) -> None:
    try:
        await scenario(ends)
    except Exception as e:
        ends.say("the scenario ends:", e, str(e))
    ends.tell()
    await ends.close()


def play(scenario: Callable[[Ends], Coroutine[Any, Any, None]], isSDP: bool) -> Record:
    """
    Play a scenario: the same calls of a reactor's C{IReactorTCP}, of L{IBReactor}'s without any rules, and of
    Twisted's own.

    @return: What it has said.
    """
    record = Record()

    def logged(event: LogEvent) -> None:
        if "log_failure" in event:
            record.parts[""].append(f"logged: {record.form(event['log_failure'].value)}")

    with apart():
        reactor: Any = IBReactor() if isSDP else EPollReactor()
        # What a reactor does when it begins, without its signals.
        reactor.running = True
        globalLogPublisher.addObserver(logged)
        try:
            done = Deferred.fromCoroutine(_played(Ends(record, isSDP, reactor), scenario))
            deadline = time.monotonic() + HANG_SECONDS
            while not done.called and time.monotonic() < deadline:
                reactor.iterate(0.001)
            if not done.called:
                record.say("the scenario does not end")
                done.cancel()
            done.addErrback(lambda failure: record.say("the end fails:", failure.value))
        finally:
            globalLogPublisher.removeObserver(logged)
            for channel in list(channelsOf(reactor)) if isSDP else ():
                channel.close()
            # A scenario that raises an exception at the wrong place has spoiled its tables.
            with suppress(Exception):
                for each in reactor.removeAll():
                    each.connectionLost(Failure(Exception("the scenario is over")))
                closeWakers(reactor)
            for call in reactor.getDelayedCalls():
                call.cancel()
            if not isSDP:
                reactor._poller.close()
            if reactor.threadpool is not None:
                reactor.threadpool.stop()
    return record


scenarios = Scenarios(play, KNOWN["reactor"])
