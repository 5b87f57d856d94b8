"""
C{ib-get}: fetch one URL over C{sdp:}, or over any other client endpoint, to a file.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import IO, Any

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, quoteStringArgument, wrapClientTLS
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IProtocolFactory, IStreamClientEndpoint
from twisted.internet.protocol import Protocol
from twisted.python.failure import Failure
from twisted.web.client import (
    URI,
    Agent,
    BrowserLikePolicyForHTTPS,
    RequestTransmissionFailed,
    ResponseDone,
    ResponseFailed,
)
from twisted.web.http import PotentialDataLoss
from twisted.web.iweb import UNKNOWN_LENGTH, IAgentEndpointFactory, IResponse
from zope.interface import implementer

from twisted_ib.tools.program import ArgumentParser, ProgramError, complain, runProgram, sentence

PROGRAM = "ib-get"


class Output:
    """
    A file that gets its name only when it is whole.

    @ivar _target: the name it shall have; L{None} if the bytes go straight
        to where they belong, to a device or pipe.
    @ivar _partial: the name it has until then.
    @ivar file: where to write.
    """

    def __init__(self, name: str) -> None:
        """
        @param name: the file's name; C{-} is standard output.
        """
        self._target: str | None = None
        self._partial: str | None = None
        self.file: IO[bytes]
        if name == "-":
            self.file = open(os.dup(1), "wb")
            return
        target = os.path.realpath(name)
        if os.path.isdir(target):
            raise ProgramError(f"{name}: is a directory")
        if os.path.exists(target) and not stat.S_ISREG(os.stat(target).st_mode):
            self.file = open(target, "wb")
            return
        folder, base = os.path.split(target)
        partial = os.path.join(folder, f".{base[:40]}.{secrets.token_hex(4)}.part")
        try:
            self.file = open(partial, "xb")
        except OSError as error:
            raise ProgramError(f"{name}: {error.strerror}") from None
        self._target, self._partial = target, partial

    def keep(self) -> None:
        """
        All is written: give the file its name.
        """
        self.file.close()
        if self._target is not None and self._partial is not None:
            os.replace(self._partial, self._target)
            self._partial = None

    def discard(self) -> None:
        """
        Remove what is not whole; nothing after L{keep}.
        """
        try:
            self.file.close()
        except OSError:
            pass  # The disk is full, or the pipe's reader gone: said already.
        if self._partial is not None:
            os.unlink(self._partial)
            self._partial = None


class Body(Protocol):
    """
    Write a response's body to a file as it comes.

    @ivar written: how many bytes came.
    @ivar ended: fires when the body has ended, with the way it did; fails
        when the file cannot be written.
    """

    def __init__(self, file: IO[bytes]) -> None:
        """
        @param file: where to write.
        """
        self._file = file
        self.written = 0
        self.ended: Deferred[BaseException] = Deferred()

    def dataReceived(self, data: bytes) -> None:
        """
        Write a piece.

        @param data: the piece.
        """
        if self.ended.called:
            return
        try:
            self._file.write(data)
        except OSError as error:
            self.ended.errback(error)
            assert self.transport is not None
            self.transport.loseConnection()
        else:
            self.written += len(data)

    def connectionLost(self, reason: Failure | None = None) -> None:
        """
        The body has ended.

        @param reason: L{ResponseDone} if it is whole.
        """
        assert reason is not None and reason.value is not None
        if not self.ended.called:
            self.ended.callback(reason.value)


@implementer(IStreamClientEndpoint)
class WatchedEndpoint:
    """
    An endpoint that remembers how its connection ended: a body without a
    length is whole only if its server closed in good order.

    @ivar reason: how the connection ended.
    """

    reason: Failure | None = None

    def __init__(self, endpoint: IStreamClientEndpoint) -> None:
        """
        @param endpoint: what connects.
        """
        self._endpoint = endpoint

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[Any]:
        """
        Connect, and watch the connection.

        @param protocolFactory: makes the protocol.

        @return: the protocol, later.
        """
        return self._endpoint.connect(protocolFactory).addCallback(self._connected)

    def _connected(self, protocol: Any) -> Any:
        """
        Put a look at the reason before the protocol's C{connectionLost}.

        @param protocol: the protocol that is connected.

        @return: the same.
        """
        connectionLost = protocol.connectionLost

        def watched(reason: Failure) -> None:
            self.reason = reason
            connectionLost(reason)

        protocol.connectionLost = watched
        return protocol


@implementer(IAgentEndpointFactory)
class OneEndpoint:
    """
    Connects to one endpoint, whatever the URL's host is.

    """

    def __init__(self, endpoint: IStreamClientEndpoint) -> None:
        """
        @param endpoint: the endpoint.
        """
        self._endpoint = endpoint
        self._watched: WatchedEndpoint | None = None

    @property
    def lost(self) -> Failure | None:
        """
        How the connection ended, if it did.
        """
        return None if self._watched is None else self._watched.reason

    def endpointForURI(self, uri: URI) -> IStreamClientEndpoint:
        """
        @param uri: what is asked for.

        @return: the endpoint, under TLS if the URL says so.
        """
        endpoint = self._endpoint
        if uri.scheme == b"https":
            creator = BrowserLikePolicyForHTTPS().creatorForNetloc(uri.host, uri.port)
            endpoint = wrapClientTLS(creator, endpoint)
        self._watched = WatchedEndpoint(endpoint)
        return self._watched


def parseURL(text: str) -> URI:
    """
    @param text: a URL as the user wrote it.

    @return: its parts.

    @raise ProgramError: it is no URL that can be fetched.
    """
    try:
        uri = URI.fromBytes(text.encode("ascii"))
    except ValueError:
        raise ProgramError(f"{text}: is not a URL") from None
    if uri.scheme not in (b"http", b"https") or not uri.host:
        raise ProgramError(f"{text}: is not an http or https URL")
    if any(character <= " " for character in text):
        raise ProgramError(f"{text!r}: a URL has no blanks")
    return uri


def parseEndpoint(reactor: Any, description: str | None, uri: URI) -> IStreamClientEndpoint:
    """
    @param reactor: the reactor to connect with.
    @param description: the endpoint as the user wrote it; L{None} for SDP to
        the URL's host and port.
    @param uri: the URL's parts.

    @return: the endpoint.

    @raise ProgramError: the string is no endpoint.
    """
    if description is None:
        description = f"sdp:{quoteStringArgument(uri.host.decode('ascii'))}:{uri.port}"
    try:
        return clientFromString(reactor, description)
    except (ValueError, TypeError) as error:
        text = str(error).removeprefix("sdp: ")
        # Some texts begin with the string, so that it stands there already.
        where = "" if text.startswith("sdp:") else f"{description}: "
        raise ProgramError(f"endpoint {where}{text}") from None


def checkWhole(url: str, response: IResponse, body: Body, ended: BaseException, lost: Failure | None) -> None:
    """
    Check that a body came whole.

    @param url: what was asked for, for the error text.
    @param response: the response.
    @param body: what received the body.
    @param ended: how the body ended.
    @param lost: how the connection ended, if it did.

    @raise ProgramError: the body is not whole, or may not be.
    """
    wanted = response.length
    span = "" if wanted is UNKNOWN_LENGTH else f" of {wanted}"
    orderly = isinstance(ended, PotentialDataLoss) and lost is not None and lost.check(ConnectionDone)
    if not (isinstance(ended, ResponseDone) or orderly):
        raise ProgramError(f"{url}: the connection ended after {body.written}{span} bytes of the body")
    if wanted is not UNKNOWN_LENGTH and body.written != wanted:
        raise ProgramError(f"{url}: the body has {body.written} bytes, not {wanted}")


async def fetch(reactor: Any, options: Namespace, output: Output) -> int:
    """
    Fetch a URL to a file.

    @param reactor: the reactor.
    @param options: the command line.
    @param output: the file.

    @return: the exit status.
    """
    uri = parseURL(options.url)
    endpoints = OneEndpoint(parseEndpoint(reactor, options.endpoint, uri))
    agent = Agent.usingEndpointFactory(reactor, endpoints)
    try:
        response = await agent.request(b"GET", options.url.encode("ascii"))
    except (RequestTransmissionFailed, ResponseFailed) as error:
        # What befalls a connection that was made does not say whose it was.
        raise ProgramError(f"{options.url}: no answer came: {sentence(error)}") from None
    if response.code != 200:
        phrase = response.phrase.decode("ascii", "replace")
        raise ProgramError(f"{options.url}: {response.code} {phrase}")
    body = Body(output.file)
    response.deliverBody(body)
    ended = await body.ended
    checkWhole(options.url, response, body, ended, endpoints.lost)
    output.keep()
    return 0


def parseArguments(arguments: Sequence[str]) -> Namespace:
    """
    @param arguments: the command line without the command.

    @return: its parts.
    """
    parser = ArgumentParser(prog=PROGRAM, description="Fetch a URL over SDP to a file.")
    parser.add_argument("url", metavar="URL", help="an http: or https: URL")
    parser.add_argument(
        "--endpoint",
        metavar="ENDPOINT",
        help="connect to this client endpoint, e.g. sdp:HOST:PORT (default: SDP to the URL's host and port)",
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", required=True, help="where the body goes; - is standard output"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run C{ib-get}.

    @param arguments: the command line, by default this process's.

    @return: 0 if the whole body was written, else another exit status.
    """
    options = parseArguments(sys.argv[1:] if arguments is None else arguments)
    try:
        output = Output(options.output)
    except (OSError, ProgramError) as error:
        complain(PROGRAM, error)
        return 1
    try:
        return runProgram(PROGRAM, lambda reactor: Deferred.fromCoroutine(fetch(reactor, options, output)))
    finally:
        output.discard()


if __name__ == "__main__":
    sys.exit(main())
