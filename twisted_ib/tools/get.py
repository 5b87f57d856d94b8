"""
C{ib-get}: fetch one URL over C{sdp:}, or any other client endpoint, to a file.
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

from twisted_ib.internet.strings import nearest
from twisted_ib.switch.switch import explain
from twisted_ib.tools.program import ArgumentParser, ProgramError, complain, remark, runProgram, sentence

PROGRAM = "ib-get"

#: The first words of client endpoints, for the error of one that is none: Twisted's and ours.
ENDPOINTS = ("sdp:", "ib:", "rds:", "direct:", "tcp:", "tls:", "ssl:", "unix:", "haproxy:")


class Output:
    """
    An output file that gets its name only when it is complete.

    @ivar _target: its final name; L{None} for a device, pipe or standard output, which are written
        directly.
    @ivar _partial: its name until then.
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
            # A duplicate, so that close() reports a full disk and leaves sys.stdout open.
            self.file = open(os.dup(1), "wb")
            return
        # rename(2) would replace a symbolic link itself, not the file that it leads to.
        target = os.path.realpath(name)
        if os.path.isdir(target):
            raise ProgramError(f"{name}: is a directory")
        if os.path.exists(target) and not stat.S_ISREG(os.stat(target).st_mode):
            self.file = open(target, "wb")
            return
        folder, base = os.path.split(target)
        # In the same directory: rename(2) is atomic within one file system only.  40 characters leave room
        # in NAME_MAX.
        partial = os.path.join(folder, f".{base[:40]}.{secrets.token_hex(4)}.part")
        try:
            self.file = open(partial, "xb")
        except OSError as error:
            raise ProgramError(f"{name}: {error.strerror}") from None
        self._target, self._partial = target, partial

    def keep(self) -> None:
        """
        Give the complete file its name.
        """
        self.file.close()
        if self._target is not None and self._partial is not None:
            os.replace(self._partial, self._target)
            self._partial = None

    def discard(self) -> None:
        """
        Remove an incomplete file; after L{keep} do nothing.
        """
        try:
            self.file.close()
        except OSError:
            # ENOSPC or EPIPE at the last flush: reported already.
            pass
        if self._partial is not None:
            os.unlink(self._partial)
            self._partial = None


class Body(Protocol):
    """
    Writes a response's body to a file as it arrives.

    @ivar written: how many bytes came.
    @ivar ended: fires with the exception that ended the body; fails if the file cannot be written.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.written = 0
        self.ended: Deferred[BaseException] = Deferred()

    def dataReceived(self, data: bytes) -> None:
        if self.ended.called:
            return
        try:
            self._file.write(data)
        except OSError as error:
            self.ended.errback(error)
            # Ends the download: without it a full disk would be noticed at the end of a large body only.
            assert self.transport is not None
            self.transport.loseConnection()
        else:
            self.written += len(data)

    def connectionLost(self, reason: Failure | None = None) -> None:
        assert reason is not None and reason.value is not None
        if not self.ended.called:
            self.ended.callback(reason.value)


@implementer(IStreamClientEndpoint)
class WatchedEndpoint:
    """
    An endpoint that remembers how its connection ended.

    @ivar reason: how, or L{None}.
    @ivar carrier: what carries it.
    """

    reason: Failure | None = None
    carrier = ""

    def __init__(self, endpoint: IStreamClientEndpoint) -> None:
        self._endpoint = endpoint

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[Any]:
        return self._endpoint.connect(protocolFactory).addCallback(self._connected)

    def _connected(self, protocol: Any) -> Any:
        # RFC 9112 section 8: a response without Content-Length is complete only if the connection was
        # closed cleanly.  twisted.web's PotentialDataLoss does not tell how it was.
        connectionLost = protocol.connectionLost
        why = explain(protocol.transport)
        self.carrier = f"{why.provider}{'' if why.device is None else f' on {why.device}'}"

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
        self._endpoint = endpoint
        self._watched: WatchedEndpoint | None = None

    @property
    def lost(self) -> Failure | None:
        """
        How the connection ended, or L{None}.
        """
        return None if self._watched is None else self._watched.reason

    @property
    def carrier(self) -> str:
        """
        The transport that carried the connection.
        """
        return "" if self._watched is None else self._watched.carrier

    def endpointForURI(self, uri: URI) -> IStreamClientEndpoint:
        endpoint = self._endpoint
        if uri.scheme == b"https":
            # RFC 9110 section 4.3.4: the certificate must match the URL's host, not the endpoint's.
            creator = BrowserLikePolicyForHTTPS().creatorForNetloc(uri.host, uri.port)
            endpoint = wrapClientTLS(creator, endpoint)
        self._watched = WatchedEndpoint(endpoint)
        return self._watched


def parseURL(text: str) -> URI:
    """
    Parse a URL.

    @raise ProgramError: it is not an http or https URL.
    """
    try:
        uri = URI.fromBytes(text.encode("ascii"))
    except ValueError:
        raise ProgramError(f"{text}: is not a URL") from None
    if uri.scheme not in (b"http", b"https") or not uri.host:
        raise ProgramError(f"{text}: is not an http or https URL")
    # RFC 3986 section 2 has neither blanks nor control characters.  A line break would end the request line
    # (RFC 9112 section 3).
    if any(character <= " " for character in text):
        raise ProgramError(f"{text!r}: a URL has no blanks")
    return uri


def parseEndpoint(reactor: Any, description: str | None, uri: URI) -> IStreamClientEndpoint:
    """
    Make the endpoint to connect to.

    @param description: as the user wrote it; L{None} for SDP to the URL's host and port.
    @param uri: the parsed URL.
    @raise ProgramError: the description is invalid.
    """
    if description is None:
        description = f"sdp:{quoteStringArgument(uri.host.decode('ascii'))}:{uri.port}"
    try:
        return clientFromString(reactor, description)
    except (ValueError, TypeError) as error:
        text = str(error).removeprefix("sdp: ")
        # Some error texts begin with the description already.
        where = "" if text.startswith("sdp:") else f"{description}: "
        kind, colon, _ = description.partition(":")
        hint = nearest(f"{kind}:", ENDPOINTS) if colon else ""
        raise ProgramError(f"endpoint {where}{text}{hint}") from None


def checkWhole(url: str, response: IResponse, body: Body, ended: BaseException, lost: Failure | None) -> None:
    """
    Check that a body is complete.

    @param url: for the error text.
    @param ended: how the body ended.
    @param lost: how the connection ended, or L{None}.
    @raise ProgramError: the body is not complete, or may not be.
    """
    wanted = response.length
    span = "" if wanted is UNKNOWN_LENGTH else f" of {wanted}"
    # RFC 9112 section 6.3: without Content-Length or chunked coding the end of the connection ends the
    # body.  After a reset or a TLS connection without close_notify it may be cut short (RFC 9112 section
    # 9.8).
    orderly = isinstance(ended, PotentialDataLoss) and lost is not None and lost.check(ConnectionDone)
    if not (isinstance(ended, ResponseDone) or orderly):
        raise ProgramError(f"{url}: the connection ended after {body.written}{span} bytes of the body")
    # RFC 9112 section 8: fewer bytes than Content-Length are an incomplete message.
    if wanted is not UNKNOWN_LENGTH and body.written != wanted:
        raise ProgramError(f"{url}: the body has {body.written} bytes, not {wanted}")


async def fetch(reactor: Any, options: Namespace, output: Output) -> int:
    """
    Fetch a URL to a file.

    @param options: the command line.
    @return: the exit status.
    """
    uri = parseURL(options.url)
    endpoints = OneEndpoint(parseEndpoint(reactor, options.endpoint, uri))
    agent = Agent.usingEndpointFactory(reactor, endpoints)
    try:
        response = await agent.request(b"GET", options.url.encode("ascii"))
    except (RequestTransmissionFailed, ResponseFailed) as error:
        # Errors of an established connection do not name the URL.
        raise ProgramError(f"{options.url}: no answer came: {sentence(error)}") from None
    # Redirections are not followed: another host would need another endpoint.  Another 2xx may have no
    # body, or only a part of it (206, RFC 9110 section 15.3.7).
    if response.code != 200:
        phrase = response.phrase.decode("ascii", "replace")
        raise ProgramError(f"{options.url}: {response.code} {phrase}")
    body = Body(output.file)
    response.deliverBody(body)
    ended = await body.ended
    checkWhole(options.url, response, body, ended, endpoints.lost)
    output.keep()
    remark(PROGRAM, f"{body.written} bytes over {endpoints.carrier}", options.verbose)
    return 0


def commandLine() -> ArgumentParser:
    """
    @return: the parser of the command line; the manual page and the completion of shells are made from it.
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
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="say what carried it (default: on a terminal)"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run C{ib-get}.

    @param arguments: the command line, by default this process's.
    @return: 0 if the whole body was written, else another exit status.
    """
    options = commandLine().parse_args(arguments)
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
