"""
Tests for C{ib-get}, run as a user runs it: as a process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import serverFromString
from twisted.internet.error import ProcessTerminated
from twisted.internet.protocol import Factory, ProcessProtocol, Protocol
from twisted.internet.task import LoopingCall, deferLater
from twisted.internet.threads import deferToThread
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase
from twisted.web.server import Site
from twisted.web.static import File

from tests.support.commands import programOf, running
from tests.support.waiting import HANG_SECONDS
from twisted_ib.internet.readers import channelsOf
from twisted_ib.tools.get import parseEndpoint, parseURL
from twisted_ib.tools.program import ProgramError

COMMAND = ["-c", programOf("get")]

OK = b"HTTP/1.1 200 OK\r\n"


class Canned(Protocol):
    """
    Answer the first request with given bytes, then end the connection.
    """

    def __init__(self, answer: bytes, end: str) -> None:
        """
        @param answer: the bytes.
        @param end: the transport's method that ends the connection; C{""}
            for none.
        """
        self._answer = answer
        self._end = end
        self._request = b""

    def dataReceived(self, data: bytes) -> None:
        """
        @param data: a piece of the request.
        """
        self._request += data
        if self._request.endswith(b"\r\n\r\n"):
            self.transport.write(self._answer)
            if self._end:
                getattr(self.transport, self._end)()


class GetTests(TestCase):
    """
    What C{ib-get} writes, says and exits with.
    """

    timeout = HANG_SECONDS

    def setUp(self) -> None:
        """
        Make a directory for the output.
        """
        self.directory = Path(self.mktemp()).resolve()
        self.directory.mkdir()
        self.output = self.directory / "out.bin"

    async def serve(self, factory: Any, scheme: str = "tcp") -> int:
        """
        Listen until the test ends.

        @param factory: makes the server's protocols.
        @param scheme: C{tcp} or C{sdp}.

        @return: the port.
        """
        port = await serverFromString(reactor, f"{scheme}:0:interface=127.0.0.1").listen(factory)
        self.addCleanup(self.idle)
        self.addCleanup(port.stopListening)
        number: int = port.getHost().port
        return number

    async def idle(self) -> None:
        """
        Wait until the server's ends of all connections are gone too.
        """
        for channel in channelsOf(reactor):
            while channel.users:
                await deferLater(reactor, 0.001)

    async def canned(self, answer: bytes, end: str = "loseConnection") -> list[str]:
        """
        Serve a canned answer over TCP.

        @param answer: the answer.
        @param end: see L{Canned}.

        @return: the command line to fetch it.
        """
        port = await self.serve(Factory.forProtocol(lambda: Canned(answer, end)))
        return [f"http://127.0.0.1:{port}/x", "--endpoint", f"tcp:127.0.0.1:{port}", "-o", str(self.output)]

    async def get(self, arguments: list[str]) -> tuple[int, str]:
        """
        Run the command.

        @param arguments: its command line.

        @return: its exit status, and what it said on standard error.
        """
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        process = running(self, *COMMAND, *arguments, env=dict(os.environ), cwd=str(self.directory), **pipes)
        out, err = await deferToThread(process.communicate, timeout=HANG_SECONDS)
        self.assertEqual(out, "")
        return process.returncode, err

    async def said(self, arguments: list[str]) -> str:
        """
        @return: what a command that succeeds has said.
        """
        status, text = await self.get(arguments)
        self.assertEqual(status, 0, text)
        return text

    async def succeeds(self, arguments: list[str], content: bytes) -> None:
        """
        Assert that the command succeeds, silently.

        @param arguments: its command line.
        @param content: what the file has to hold then.
        """
        self.assertEqual(await self.get(arguments), (0, ""))
        self.assertEqual(self.output.read_bytes(), content)
        self.assertEqual(os.listdir(self.directory), ["out.bin"])

    async def fails(self, arguments: list[str], *words: str) -> None:
        """
        Assert that the command fails with one line, and leaves no file.

        @param arguments: its command line.
        @param words: what the line has to contain.
        """
        status, said = await self.get(arguments)
        self.assertNotEqual(status, 0)
        self.assertEqual(said.count("\n"), 1, said)
        self.assertTrue(said.startswith("ib-get: "), said)
        for word in words:
            self.assertIn(word, said)
        self.assertEqual(os.listdir(self.directory), [])

    async def overScheme(self, scheme: str) -> None:
        """
        Fetch a file from Twisted's web server.

        @param scheme: C{tcp} or C{sdp}.
        """
        folder = Path(self.mktemp())
        folder.mkdir()
        content = bytes(range(256)) * 8192
        (folder / "file").write_bytes(content)
        port = await self.serve(Site(File(str(folder))), scheme)
        arguments = [f"http://127.0.0.1:{port}/file", "-o", str(self.output)]
        words = [*arguments, "--endpoint", f"{scheme}:127.0.0.1:{port}"]
        await self.succeeds(words, content)
        self.output.unlink()
        carrier = "sdp on shm0" if scheme == "sdp" else scheme
        self.assertEqual(await self.said([*words, "-v"]), f"ib-get: {len(content)} bytes over {carrier}\n")

    async def test_overSDP(self) -> None:
        """
        A file from Twisted's web server comes whole over SDP.
        """
        await self.overScheme("sdp")

    async def test_overTCP(self) -> None:
        """
        A file from Twisted's web server comes whole over another endpoint.
        """
        await self.overScheme("tcp")

    async def test_defaultEndpoint(self) -> None:
        """
        Without an endpoint it connects to the URL's host and port over SDP.
        """
        port = await self.serve(
            Factory.forProtocol(lambda: Canned(OK + b"Content-Length: 2\r\n\r\nhi", "loseConnection")), "sdp"
        )
        await self.succeeds([f"http://127.0.0.1:{port}/", "-o", str(self.output)], b"hi")

    async def test_empty(self) -> None:
        """
        An empty body is a whole body.
        """
        await self.succeeds(await self.canned(OK + b"Content-Length: 0\r\n\r\n"), b"")

    async def test_chunked(self) -> None:
        """
        A chunked body is whole with its last chunk.
        """
        answer = OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
        await self.succeeds(await self.canned(answer), b"abc")

    async def test_withoutLength(self) -> None:
        """
        A body without a length is whole when the server closes in good order.
        """
        await self.succeeds(await self.canned(OK + b"\r\nall of it"), b"all of it")

    async def test_withoutLengthAborted(self) -> None:
        """
        A body without a length is not whole when the connection breaks.
        """
        await self.fails(await self.canned(OK + b"\r\npart of it", "abortConnection"))

    async def test_replaces(self) -> None:
        """
        A file that exists is replaced.
        """
        self.output.write_bytes(b"before")
        await self.succeeds(await self.canned(OK + b"Content-Length: 3\r\n\r\nnew"), b"new")

    async def test_truncated(self) -> None:
        """
        A body shorter than its length is an error that says so.
        """
        await self.fails(await self.canned(OK + b"Content-Length: 100\r\n\r\nhalf"), "4 of 100 bytes")

    async def test_truncatedChunks(self) -> None:
        """
        A chunked body without its last chunk is an error.
        """
        await self.fails(await self.canned(OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"), "3 bytes")

    async def test_failureKeepsFile(self) -> None:
        """
        A failure leaves a file that exists as it is.
        """
        self.output.write_bytes(b"before")
        status, _ = await self.get(await self.canned(OK + b"Content-Length: 100\r\n\r\nhalf"))
        self.assertEqual((status, self.output.read_bytes()), (1, b"before"))
        self.assertEqual(os.listdir(self.directory), ["out.bin"])

    async def test_status(self) -> None:
        """
        Anything but 200 is an error that names the status.
        """
        answer = b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno"
        await self.fails(await self.canned(answer), "404 Not Found")

    async def test_noAnswer(self) -> None:
        """
        A server that closes before it answers, or that answers no HTTP, is an
        error that names the URL.
        """
        for answer, end, why in (
            (b"", "loseConnection", "closed cleanly"),
            (b"", "abortConnection", "lost in a non-clean fashion"),
            (OK, "abortConnection", "lost in a non-clean fashion"),
            (b"SSH-2.0-OpenSSH\r\n\r\n", "loseConnection", "SSH"),
        ):
            arguments = await self.canned(answer, end)
            await self.fails(arguments, f"ib-get: {arguments[0]}: no answer came: ", why)

    async def test_nobodyListens(self) -> None:
        """
        A port that nobody listens on is an error that names host and port.
        """
        arguments = ["http://127.0.0.1:1/", "--endpoint", "sdp:127.0.0.1:1", "-o", str(self.output)]
        await self.fails(arguments, "127.0.0.1", "1")

    async def test_unknownDevice(self) -> None:
        """
        A device that does not exist is an error that names it.
        """
        endpoint = "sdp:127.0.0.1:7000:device=nosuch0"
        await self.fails(["http://127.0.0.1/", "--endpoint", endpoint, "-o", str(self.output)], "nosuch0")

    async def test_badArguments(self) -> None:
        """
        An error in the command line is one line too.
        """
        url, endpoint = "http://127.0.0.1/", "sdp:127.0.0.1:http"
        said = f"ib-get: endpoint {endpoint}: port 'http' is not a number (1 to 65535)\n"
        await self.fails([url, "--endpoint", endpoint, "-o", str(self.output)], said)
        await self.fails(["http://127.0.0.1:port/", "-o", str(self.output)])
        await self.fails([], "URL")

    def test_badEndpoints(self) -> None:
        """
        The error of an endpoint says what is wrong.
        """
        uri = parseURL("http://127.0.0.1/")
        for endpoint, word in (
            ("sdp:127.0.0.1:70000", "port 70000 is out of range (1 to 65535)"),
            ("sdp:127.0.0.1:7000:colour=red", "got an unexpected keyword argument 'colour'"),
            ("sdp:127.0.0.1", "missing a required argument: 'port'"),
            ("nosuch:127.0.0.1:7000", "Unknown endpoint type: 'nosuch'"),
            ("sdpp:127.0.0.1:7000", "Unknown endpoint type: 'sdpp'; did you mean sdp:?"),
        ):
            error = self.assertRaises(ProgramError, parseEndpoint, reactor, endpoint, uri)
            # The endpoint stands there once.
            self.assertEqual(str(error), f"endpoint {endpoint}: {word}")

    def test_badURLs(self) -> None:
        """
        What is no URL is an error of one line.
        """
        for url in (
            "ftp://127.0.0.1/",
            "nonsense",
            "http:///path",
            "http://a/b c",
            "http://\u00e9/",
            "http://a/\n",
        ):
            self.assertNotIn("\n", str(self.assertRaises(ProgramError, parseURL, url)))

    async def test_badOutput(self) -> None:
        """
        A file that cannot be written is an error that names it.
        """
        url = "http://127.0.0.1:1/"
        missing = str(self.directory / "missing" / "file")
        await self.fails([url, "-o", missing], missing, "No such file")
        await self.fails([url, "-o", str(self.directory)], str(self.directory), "directory")

    async def test_diskFull(self) -> None:
        """
        A disk without room is an error.
        """
        for size in (10, 1 << 20):
            arguments = await self.canned(OK + b"Content-Length: %d\r\n\r\n" % size + b"x" * size)
            await self.fails([*arguments[:-1], "/dev/full"], "ib-get: No space left")

    async def test_interrupted(self) -> None:
        """
        When it is interrupted it removes what it has written.
        """
        arguments = await self.canned(OK + b"Content-Length: 1000000\r\n\r\n" + b"x" * 500000, "")
        process = Interrupted()
        transport = reactor.spawnProcess(
            process, sys.executable, [sys.executable, *COMMAND, *arguments], env=dict(os.environ)
        )

        def look() -> None:
            if any(path.stat().st_size for path in self.directory.iterdir()):
                transport.signalProcess("INT")
                looking.stop()

        looking = LoopingCall(look)
        await looking.start(0.02)
        reason = await self.assertFailure(process.ended, ProcessTerminated)
        self.assertEqual(reason.exitCode, 130)
        self.assertEqual(process.said, b"")
        self.assertEqual(os.listdir(self.directory), [])


class Interrupted(ProcessProtocol):
    """
    Wait for a process to end, which is a failure.
    """

    def __init__(self) -> None:
        """
        Nothing has ended yet.
        """
        self.said = b""
        self.ended: Deferred[None] = Deferred()

    def childDataReceived(self, childFD: int, data: bytes) -> None:
        """
        @param childFD: where the process says something.
        @param data: what it says.
        """
        self.said += data

    def processEnded(self, reason: Failure) -> None:
        """
        @param reason: how it has ended.
        """
        self.ended.errback(reason)
