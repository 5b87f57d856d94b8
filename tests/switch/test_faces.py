"""
The faces of the switch say the same of the same connection: Twisted's reactors, asyncio, blocking sockets.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Coroutine
from typing import Any

from twisted.internet import error
from twisted.internet.task import deferLater
from twisted.logger import formatEvent, globalLogPublisher

from tests.aio.case import HOST, LoopTestCase, Recorder
from tests.blocking.case import BlockingTestCase
from tests.support.commands import running, stop
from tests.support.waiting import runToEnd
from tests.switch.case import Client, SwitchTestsBuilder
from twisted_ib import socket as offloading
from twisted_ib.internet.readers import channelsOf
from twisted_ib.switch.rules.configuration import Configuration
from twisted_ib.switch.switch import direct, explain

#: A server of both, in a process of its own.
_SERVER = f"""
from twisted_ib import socket
listener = socket.create_server(("{HOST}", 0))
print(listener.getsockname()[1], flush=True)
kept = []
while True:
    kept.append(listener.accept())
"""
#: Until a connect that nobody answers is over, in seconds.
_BRIEF = 0.2
_NUMBERS = (
    (error.ConnectionRefusedError, errno.ECONNREFUSED),
    ((error.TimeoutError, error.TCPTimedOutError), errno.ETIMEDOUT),
    ((TimeoutError, asyncio.TimeoutError), errno.ETIMEDOUT),
)


class FaceContract:
    """
    What each face does with a connect; a mixin of test cases.
    """

    #: The rules of most, which have one line that counts.
    both = "use both connect * *:*\n"
    sdp = "use sdp connect * *:*\n"
    tcp = f"use tcp connect * {HOST}:*\nuse both connect * *:*\n"

    def configure(self, text: str) -> None:
        """
        Have rules.
        """
        raise NotImplementedError

    def playFace(self, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """
        Run a coroutine to its end.
        """
        raise NotImplementedError

    async def connect(self, port: int, timeout: float | None = None, isDirect: bool = False) -> str:
        """
        Connect, and close.

        @return: The provider, or the outcome.
        """
        raise NotImplementedError

    async def cancelled(self, port: int) -> None:
        """
        Begin to connect, and cancel it.
        """
        raise NotImplementedError

    text = ""

    def outcome(self, reason: BaseException) -> str:
        """
        Keep an error's text.

        @return: The name of its number, or that of its class if it has none.
        """
        self.text = str(reason)
        number = next((number for kind, number in _NUMBERS if isinstance(reason, kind)), None)
        number = number or getattr(reason, "errno", None)
        return errno.errorcode[number] if number else type(reason).__name__

    def server(self) -> tuple[int, subprocess.Popen[str]]:
        """
        @return: The port and the process of a server over SDP and TCP.
        """
        case: Any = self
        # Of its own rules: none.
        environment = {name: os.environ[name] for name in os.environ if name != "TWISTED_IB_CONFIG"}
        made = running(case, "-c", _SERVER, env=environment)
        assert made.stdout is not None
        return int(made.stdout.readline()), made

    def plain(self) -> int:
        """
        @return: The port of a server over TCP alone.
        """
        case: Any = self
        made = socket.create_server((HOST, 0))
        case.addCleanup(made.close)
        return int(made.getsockname()[1])

    def unused(self) -> int:
        """
        @return: The port of nobody.
        """
        case: Any = self
        bound = socket.socket()
        bound.bind((HOST, 0))
        case.addCleanup(bound.close)
        return int(bound.getsockname()[1])

    def said(self, rules: str, port: int, expected: str, *lines: str, **options: Any) -> None:
        """
        Check a connect.

        @param expected: The provider, or the outcome.
        @param lines: What the logs say: of the rules, and Twisted's.
        """
        found: list[str] = []

        async def scenario() -> None:
            found.append(await self.connect(port, **options))

        self.checked(rules, port, scenario, *lines)
        case: Any = self
        case.assertEqual(found, [expected])

    def checked(
        self, rules: str, port: int, scenario: Callable[[], Coroutine[Any, Any, None]], *lines: str
    ) -> None:
        """
        Check the lines of a scenario: of matches and warnings, and of what falls back.
        """
        case: Any = self
        logged: list[str] = []
        self.configure(rules)
        case.patch(Configuration, "log", lambda configuration, level, text: logged.append(text))
        case.patch(Configuration, "logs", lambda configuration, level: level == 7)

        def observe(event: dict[str, Any]) -> None:
            if event["log_namespace"].startswith("twisted_ib.switch"):
                logged.append(formatEvent(event))

        globalLogPublisher.addObserver(observe)
        try:
            self.playFace(scenario)
        finally:
            globalLogPublisher.removeObserver(observe)
        where = f"{HOST}:{port}"
        config = os.environ["TWISTED_IB_CONFIG"]
        texts = [each.replace(where, "PEER").replace(config, "RULES") for each in logged]
        case.assertEqual(texts, list(lines))

    def test_tcp(self) -> None:
        """
        A rule for TCP, among others: one line.
        """
        self.said(self.tcp, self.plain(), "tcp", "connect PEER: tcp, by rule RULES:1 (tcp)")

    def test_tcpRefused(self) -> None:
        """
        The decision is logged, whatever becomes of it.
        """
        self.said(self.tcp, self.unused(), "ECONNREFUSED", "connect PEER: tcp, by rule RULES:1 (tcp)")

    def test_tcpAlone(self) -> None:
        """
        Rules that leave everything to TCP cost nothing, a line neither.
        """
        self.said("use tcp connect * *:*\n", self.plain(), "tcp")

    def test_direct(self) -> None:
        """
        A connection that avoids the switch is not its business.
        """
        self.said(self.sdp, self.plain(), "tcp", isDirect=True)

    def test_sdp(self) -> None:
        """
        SDP alone, and nobody there: refused, as by TCP, and the error says by whom.
        """
        port = self.plain()
        self.said(self.sdp, port, "ECONNREFUSED")
        case: Any = self
        case.assertIn(f"nobody listens on SDP {HOST}:{port}", self.text)
        case.assertEqual(self.text.count("nobody"), 1)

    def test_both(self) -> None:
        """
        Both, and nobody there over SDP: the reason is said twice, to the administrator and in the rules' log.
        """
        reason = "nobody offers SDP on PEER"
        self.said(
            self.both,
            self.plain(),
            "tcp",
            f"PEER goes over TCP: {reason}",
            f"connect PEER: tcp, by rule RULES:1 (both): {reason}",
        )

    def test_refused(self) -> None:
        """
        Both, and nobody there at all.
        """
        reason = "nobody offers SDP on PEER"
        self.said(
            self.both,
            self.unused(),
            "ECONNREFUSED",
            f"PEER goes over TCP: {reason}",
            f"connect PEER: tcp, by rule RULES:1 (both): {reason}",
        )

    def test_somebody(self) -> None:
        """
        Both, and somebody there.
        """
        port, _ = self.server()
        self.said(self.both, port, "sdp", "connect PEER: sdp on shm0, by rule RULES:1 (both)")

    def killed(self) -> int:
        """
        @return: The port of a server that was killed.
        """
        port, process = self.server()
        process.kill()
        process.wait()
        return port

    def test_killed(self) -> None:
        """
        Both, and a listener that was killed: what it has left is found, and that nobody is there.
        """
        reason = "nobody listens on SDP PEER"
        self.said(
            self.both,
            self.killed(),
            "ECONNREFUSED",
            f"PEER goes over TCP: {reason}",
            f"connect PEER: tcp, by rule RULES:1 (both): {reason}",
        )

    def test_killedAlone(self) -> None:
        """
        The same with SDP alone.
        """
        self.said(self.sdp, self.killed(), "ECONNREFUSED")

    def test_timedOut(self) -> None:
        """
        SDP alone, and a listener that does not answer within the program's time.
        """
        port, process = self.server()
        stop(process.pid)
        self.said(self.sdp, port, "ETIMEDOUT", timeout=_BRIEF)

    def test_tooLate(self) -> None:
        """
        Both, and a listener that does not answer within SDP's time: TCP, whose kernel does.
        """
        port, process = self.server()
        stop(process.pid)
        reason = f"SDP PEER did not answer within {_BRIEF} s"
        self.said(
            f"timeout sdp {_BRIEF}\n{self.both}",
            port,
            "tcp",
            f"PEER goes over TCP: {reason}",
            f"connect PEER: tcp, by rule RULES:2 (both): {reason}",
        )

    def test_cancelled(self) -> None:
        """
        A connect that the program gives up says nothing, and the next one is made.
        """
        port, process = self.server()

        async def scenario() -> None:
            case: Any = self
            stop(process.pid)
            await self.cancelled(port)
            process.send_signal(signal.SIGCONT)
            case.assertEqual(await self.connect(port), "sdp")

        self.checked(self.both, port, scenario, "connect PEER: sdp on shm0, by rule RULES:1 (both)")


class TwistedTests(FaceContract, SwitchTestsBuilder):
    """
    C{connectTCP} of both reactors.
    """

    _reactors = [
        "twisted_ib.reactor.ibreactor.IBReactor",
        "twisted_ib.reactor.asyncioreactor.IBAsyncioReactor",
    ]

    def configure(self, text: str) -> None:
        self.rules(text)

    def playFace(self, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.reactor: Any = self.buildReactor()
        runToEnd(self, self.reactor, scenario)

    async def connect(self, port: int, timeout: float | None = None, isDirect: bool = False) -> str:
        client = Client()
        options = {} if timeout is None else {"timeout": timeout}
        (direct(self.reactor) if isDirect else self.reactor).connectTCP(HOST, port, client, **options)
        if await client.done == "failed":
            return self.outcome(client.reason)
        transport = client.answer.transport
        provider = explain(transport).provider
        transport.abortConnection()
        await client.lost
        return provider

    async def cancelled(self, port: int) -> None:
        client = Client()
        connector = self.reactor.connectTCP(HOST, port, client)
        while not channelsOf(self.reactor):
            await deferLater(self.reactor, 0)
        connector.stopConnecting()
        await client.done
        self.assertIsInstance(client.reason, error.UserError)


class AsyncioTests(FaceContract, LoopTestCase):
    """
    C{create_connection} of asyncio.
    """

    def configure(self, text: str) -> None:
        self.setRules(text)

    def playFace(self, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.play(scenario())

    async def connect(self, port: int, timeout: float | None = None, isDirect: bool = False) -> str:
        options = {"provider": "tcp"} if isDirect else {}
        try:
            made = self.loop.create_connection(Recorder, HOST, port, **options)
            transport, protocol = await asyncio.wait_for(made, timeout)
        except (OSError, asyncio.TimeoutError) as e:
            return self.outcome(e)
        provider = explain(transport).provider
        transport.abort()
        await protocol.called("lost")
        return provider

    async def cancelled(self, port: int) -> None:
        task = asyncio.ensure_future(self.loop.create_connection(Recorder, HOST, port))
        while self.loop._reactor is None or not channelsOf(self.loop.reactor):
            await asyncio.sleep(0)
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task


class BlockingTests(FaceContract, BlockingTestCase):
    """
    C{connect} of blocking sockets.
    """

    def configure(self, text: str) -> None:
        self.rules(text)

    def playFace(self, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        # Nothing in it waits for anything but calls.
        self.assertRaises(StopIteration, scenario().send, None)

    async def connect(self, port: int, timeout: float | None = None, isDirect: bool = False) -> str:
        with offloading.socket() as made:
            if isDirect:
                made.useTCP()
            made.settimeout(timeout)
            try:
                made.connect((HOST, port))
            except OSError as e:
                return self.outcome(e)
            return "tcp" if made.sdp is None else "sdp"

    async def cancelled(self, port: int) -> None:
        with offloading.socket() as made:
            made.setblocking(False)
            self.assertEqual(made.connect_ex((HOST, port)), errno.EINPROGRESS)


globals().update(TwistedTests.makeTestCaseClasses())
del TwistedTests
