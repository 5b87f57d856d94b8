"""
The server of C{ib-perf}: waits for one client, does its part, and ends with it.
"""

from __future__ import annotations

import secrets
from typing import Any

from attrs import frozen
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.error import CannotListenError
from twisted.internet.protocol import Factory
from twisted.python.failure import Failure

from twisted_ib import limits
from twisted_ib.errors import HCAError
from twisted_ib.tools.perf.link import Link
from twisted_ib.tools.perf.method import COUNT, ECHO, Test
from twisted_ib.tools.perf.parameters import Given, Parameters, parseTerms
from twisted_ib.tools.program import ProgramError, sentence

#: Connections of a server that have not said yet what they are for, and how long they may.
PERF_STRANGERS = 256

_ENDED_EARLY = "the client ended before the test did"


@frozen
class Served:
    """
    What a server did.

    @ivar client: the client's address.
    @ivar terms: what was measured.
    @ivar received: how many bytes were counted.
    """

    client: str
    terms: Parameters
    received: int


class PerfSession:
    """
    One client.

    @ivar token: what its other connections say.
    @ivar links: those.
    @ivar client: its address.
    @ivar over: whether it has said that it is done.
    @ivar received: how many bytes were counted.
    """

    def __init__(self, control: Link, test: Test, terms: Parameters) -> None:
        """
        @param control: its control connection.
        @param test: the subcommand.
        @param terms: what is measured.
        """
        self.control = control
        self.terms = terms
        self.token = secrets.token_hex(8)
        self.links: list[Link] = []
        self.client = str(control.transport.getPeer().host)
        self.over = False
        self.received = 0
        self._test = test
        self._came = 0
        self._wanted: int | None = None

    def join(self, link: Link) -> None:
        """
        @param link: another connection.
        """
        self.links.append(link)
        link.say(joined=True, **self._test.welcome(link, self.terms))
        link.take = lambda data: link.distrust()

    def heard(self, message: dict[str, Any]) -> None:
        """
        @param message: what the client said on its control connection.

        @raise ProgramError: it makes no sense.
        """
        if "end" in message:
            self.over = True
            self.control.say(end=True)
        elif message.get("phase") in (ECHO, COUNT):
            self._came, self._wanted = 0, None
            for link in self.links:
                self._turn(link, message["phase"])
            self.control.say(phase=message["phase"])
        elif type(message.get("sent")) is int:
            self._wanted = message["sent"]
            self._look()
        else:
            raise ProgramError("the client says what ib-perf does not know")

    def _turn(self, link: Link, phase: str) -> None:
        """
        @param link: a connection.
        @param phase: what it does from now on.
        """
        transport = link.transport
        echoes = link.take == transport.write
        if phase == COUNT:
            if echoes:
                transport.unregisterProducer()
            link.take = self._count
        elif not echoes:
            # Who does not read what comes back is not read from any more.
            transport.registerProducer(transport, True)
            link.take = transport.write

    def _count(self, data: bytes) -> None:
        """
        @param data: what came.
        """
        self._came += len(data)
        if self._wanted is not None:
            self._look()

    def _look(self) -> None:
        if self._wanted == self._came:
            self.received += self._came
            self._came, self._wanted = 0, None
            self.control.say(received=True)


class Server(Factory):
    """
    Waits for one client.
    """

    noisy = False

    def __init__(self, reactor: Any, test: Test, given: Given) -> None:
        """
        @param reactor: the reactor.
        @param test: the subcommand.
        @param given: what its user wants of a client.
        """
        self._reactor = reactor
        self._test = test
        self._given = given
        self._session: PerfSession | None = None
        # Who has not said yet what he wants, and until when he may.
        self._strangers: dict[Link, Any] = {}
        self._ended: Deferred[Served] = Deferred()

    async def listen(self, port: int, device: str | None) -> int:
        """
        @param port: the port; 0 for any.
        @param device: the HCA.

        @return: the port.

        @raise ProgramError: it cannot be had.
        """
        try:
            listening: Any = await self._test.server(self._reactor, port, device).listen(self)
        except CannotListenError as error:
            raise ProgramError(f"cannot listen on port {port}: {sentence(error.socketError)}") from None
        except HCAError as error:
            raise ProgramError(f"cannot listen on port {port}: {sentence(error)}") from None

        def stop(result: Any) -> Deferred[Any]:
            return maybeDeferred(listening.stopListening).addCallback(lambda _: result)

        self._ended.addBoth(stop)
        number: int = listening.getHost().port
        return number

    async def serve(self) -> Served:
        """
        @return: what was done for a client, when it has ended.

        @raise ProgramError: it ended too early.
        """
        return await self._ended

    def buildProtocol(self, addr: Any) -> Link | None:
        """
        @param addr: who connects.

        @return: a connection; L{None} if there are too many that said nothing.
        """
        return Link(self) if len(self._strangers) < PERF_STRANGERS else None

    # -- from the connections

    def made(self, link: Link) -> None:
        """
        @param link: is connected.
        """
        seconds = limits.PERF_HELLO_SECONDS
        self._strangers[link] = self._reactor.callLater(seconds, link.transport.abortConnection)

    def heard(self, link: Link, message: dict[str, Any]) -> None:
        """
        @param link: where something was said.
        @param message: what.
        """
        try:
            if link not in self._strangers:
                self._known(link, message)
                return
            if "join" in message:
                self._join(link, message)
            else:
                self._begin(link, message)
            self._met(link)
        except (ProgramError, HCAError) as error:
            link.say(error=sentence(error))
            link.transport.loseConnection()

    def _known(self, link: Link, message: dict[str, Any]) -> None:
        """
        @param link: a connection that has said what it is for.
        @param message: what it says now.
        """
        if self._session is None or link is not self._session.control:
            link.distrust()
        else:
            self._session.heard(message)

    def _begin(self, link: Link, message: dict[str, Any]) -> None:
        """
        @param link: the control connection of a client.
        @param message: what it wants.

        @raise ProgramError: that cannot be.
        """
        terms = parseTerms(message)
        if self._session is not None:
            raise ProgramError("the server has a client already")
        self._given.compare(self._test.name, terms)
        if self._test.only not in (None, *terms.sizes):
            raise ProgramError(f"{self._test.name} has messages of {self._test.only} bytes")
        self._session = PerfSession(link, self._test, terms)
        link.say(session=self._session.token)

    def _join(self, link: Link, message: dict[str, Any]) -> None:
        """
        @param link: another connection of a client.
        @param message: what it says.

        @raise ProgramError: it belongs to no client.
        """
        session = self._session
        if session is None or message["join"] != session.token:
            raise ProgramError("this is no connection of the server's client")
        if len(session.links) == session.terms.queuePairs:
            raise ProgramError("the client has all its connections already")
        session.join(link)

    def _met(self, link: Link) -> None:
        """
        @param link: has said what it is for.
        """
        call = self._strangers.pop(link, None)
        if call is not None and call.active():
            call.cancel()

    def lost(self, link: Link, reason: Failure) -> None:
        """
        @param link: has ended.
        @param reason: why.
        """
        self._met(link)
        session = self._session
        if session is None or self._ended.called:
            return
        if link is session.control and session.over:
            self._ended.callback(Served(session.client, session.terms, session.received))
        elif link is session.control or (link in session.links and not session.over):
            self._ended.errback(ProgramError(_ENDED_EARLY))
