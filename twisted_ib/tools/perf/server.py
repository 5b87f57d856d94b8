"""
The C{ib-perf} server: waits for one client, serves it, and ends with it.
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

#: Connections that have not identified themselves; each has L{limits.PERF_HELLO_SECONDS} to do so.
PERF_STRANGERS = 256

_ENDED_EARLY = "the client ended before the test did"


@frozen
class Served:
    """
    The result of a server.

    @ivar client: The client's address.
    @ivar received: Bytes counted.
    """

    client: str
    terms: Parameters
    received: int


class PerfSession:
    """
    One client.

    @ivar token: Identifies the client's other connections.
    @ivar links: Those connections.
    @ivar client: The client's address.
    @ivar over: Whether the client has declared the end.
    @ivar received: Bytes counted.
    """

    def __init__(self, control: Link, test: Test, terms: Parameters) -> None:
        self.control = control
        self.terms = terms
        # Random: another program on the host must not be able to join the test.
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
        Add a connection to be measured.
        """
        self.links.append(link)
        link.say(joined=True, **self._test.welcome(link, self.terms))
        # Until a phase begins nothing may arrive on it.
        link.take = lambda data: link.distrust()

    def heard(self, message: dict[str, Any]) -> None:
        """
        Process a message on the control connection.

        @raise ProgramError: It is invalid.
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
        transport = link.transport
        echoes = link.take == transport.write
        if phase == COUNT:
            if echoes:
                transport.unregisterProducer()
            link.take = self._count
        elif not echoes:
            # An echo as a producer of itself: if the client does not read, neither does the echo.
            transport.registerProducer(transport, True)
            link.take = transport.write

    def _count(self, data: bytes) -> None:
        self._came += len(data)
        # The last data and the client's count travel on different connections and arrive in any order.
        if self._wanted is not None:
            self._look()

    def _look(self) -> None:
        if self._wanted == self._came:
            self.received += self._came
            self._came, self._wanted = 0, None
            self.control.say(received=True)


class Server(Factory):
    """
    Waits for one client: see L{Owner<twisted_ib.tools.perf.link.Owner>}.
    """

    noisy = False

    def __init__(self, reactor: Any, test: Test, given: Given) -> None:
        self._reactor = reactor
        self._test = test
        self._given = given
        self._session: PerfSession | None = None
        # Connections that have not identified themselves, with their timeouts.
        self._strangers: dict[Link, Any] = {}
        self._ended: Deferred[Served] = Deferred()

    async def listen(self, port: int, device: str | None) -> int:
        """
        Listen, and return the port.

        @param port: 0 for any.
        @raise ProgramError: The port is not available.
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
        Wait for the end of a client.

        @raise ProgramError: It ended too early.
        """
        return await self._ended

    def buildProtocol(self, addr: Any) -> Link | None:
        return Link(self) if len(self._strangers) < PERF_STRANGERS else None

    # -- from the connections

    def made(self, link: Link) -> None:
        seconds = limits.PERF_HELLO_SECONDS
        self._strangers[link] = self._reactor.callLater(seconds, link.transport.abortConnection)

    def heard(self, link: Link, message: dict[str, Any]) -> None:
        try:
            if link not in self._strangers:
                self._known(link, message)
                return
            if "join" in message:
                self._join(link, message)
            else:
                self._begin(link, message)
            self._met(link)
        # A bad connection ends alone; the client that is being measured is not disturbed.
        except (ProgramError, HCAError) as error:
            link.say(error=sentence(error))
            link.transport.loseConnection()

    def _known(self, link: Link, message: dict[str, Any]) -> None:
        # Only the control connection continues the dialogue.
        if self._session is None or link is not self._session.control:
            link.distrust()
        else:
            self._session.heard(message)

    def _begin(self, link: Link, message: dict[str, Any]) -> None:
        terms = parseTerms(message)
        # One client per server, as in perftest: two would measure each other.
        if self._session is not None:
            raise ProgramError("the server has a client already")
        self._given.compare(self._test.name, terms)
        if self._test.only not in (None, *terms.sizes):
            raise ProgramError(f"{self._test.name} has messages of {self._test.only} bytes")
        self._session = PerfSession(link, self._test, terms)
        link.say(session=self._session.token)

    def _join(self, link: Link, message: dict[str, Any]) -> None:
        session = self._session
        if session is None or message["join"] != session.token:
            raise ProgramError("this is no connection of the server's client")
        # The agreed number bounds the registered memory (PERF_MEMORY).
        if len(session.links) == session.terms.queuePairs:
            raise ProgramError("the client has all its connections already")
        session.join(link)

    def _met(self, link: Link) -> None:
        call = self._strangers.pop(link, None)
        if call is not None and call.active():
            call.cancel()

    def lost(self, link: Link, reason: Failure) -> None:
        self._met(link)
        session = self._session
        if session is None or self._ended.called:
            return
        # The server's result is due only now, when the client has seen the last answer.
        if link is session.control and session.over:
            self._ended.callback(Served(session.client, session.terms, session.received))
        elif link is session.control or (link in session.links and not session.over):
            self._ended.errback(ProgramError(_ENDED_EARLY))
