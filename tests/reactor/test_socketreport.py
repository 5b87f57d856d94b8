"""
Tests for L{twisted_ib.reactor.socketreport} and L{twisted_ib.reactor.tcprows}.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from twisted.internet import tcp
from twisted.internet.protocol import ClientFactory, Factory, Protocol
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from tests.reactor.test_ibreactor import closeReactor
from tests.support.rundirectory import ownRunDirectory
from twisted_ib import limits
from twisted_ib.errors import RunDirectoryError
from twisted_ib.hca.base.socketrows import COLUMNS, noWhy
from twisted_ib.hca.device.registry import parseRules as parse
from twisted_ib.hca.host import handshake
from twisted_ib.hca.host.entries import HCA
from twisted_ib.hca.host.search import Search
from twisted_ib.internet.channel import channelFor
from twisted_ib.internet.readers import channelsOf
from twisted_ib.reactor import socketreport
from twisted_ib.reactor.ibreactor import IBReactor
from twisted_ib.reactor.tcprows import isTCP, tcpRows
from twisted_ib.sdp.port import listenSDP
from twisted_ib.switch.reason import Fallback, Reason
from twisted_ib.switch.rules.policy import policyOf

SOCKETS = handshake.Query(handshake.Subject.SOCKETS).pack()


def named(row: Any) -> dict[str, Any]:
    """
    @return: the values of a row by name.
    """
    return dict(zip(COLUMNS, row, strict=True))


class VisibilityTestCase(SynchronousTestCase):
    """
    An L{IBReactor} that is turned by hand, in a run directory of its own.
    """

    def setUp(self) -> None:
        """
        Make both.
        """
        super().setUp()
        self.directory = Path(ownRunDirectory(self))
        self.directory.mkdir(mode=0o700)
        self.reactor: Any = IBReactor()
        self.addCleanup(closeReactor, self.reactor)
        self.addCleanup(self.closeAll)

    def closeAll(self) -> None:
        """
        Close what was opened.
        """
        for channel in channelsOf(self.reactor):
            channel.close()
        for selectable in self.reactor.removeAll():
            selectable.connectionLost(Failure(RuntimeError()))

    def turn(self, times: int = 10) -> None:
        """
        Let the reactor turn.
        """
        for _ in range(times):
            self.reactor.runUntilCurrent()
            self.reactor.doPoll(0)

    def rows(self) -> list[dict[str, Any]]:
        """
        @return: what the process shows.
        """
        channel = channelFor(self.reactor)
        return [named(row) for row in channel.socketRows() if row is not None]

    def ours(self, *ports: Any) -> list[dict[str, Any]]:
        """
        @return: the same of some ports and their connections, not of others in this process.
        """
        numbers = tuple(f":{port.getHost().port}" for port in ports)
        return [row for row in self.rows() if str(row["local"]).endswith(numbers)]


class AppearTests(VisibilityTestCase):
    """
    Being seen.
    """

    def entries(self) -> list[str]:
        """
        @return: the HCAs in the run directory.
        """
        return [name for name in os.listdir(self.directory) if HCA.match(name)]

    def test_quiet(self) -> None:
        """
        A reactor shows itself in the first turn in which it has nothing to do, and is then as it was.
        """
        self.reactor.socketReport.begin()
        for _ in range(5):
            self.reactor.doIteration(0)
        self.assertEqual(self.entries(), [])
        self.reactor.doIteration(None)
        self.assertEqual(len(self.entries()), 1)
        self.assertNotIn("doIteration", vars(self.reactor))
        self.reactor.socketReport.begin()
        self.assertNotIn("doIteration", vars(self.reactor))
        self.closeAll()
        self.assertEqual(self.entries(), [])

    def test_open(self) -> None:
        """
        A device that is open anyway answers for TCP at once.
        """
        port = self.reactor.listenTCP(0, Factory.forProtocol(Protocol), interface="127.0.0.1")
        self.assertEqual(sorted(row["provider"] for row in self.ours(port)), ["sdp", "tcp"])
        # asyncio goes through what a turn returns.
        self.reactor.doPoll = lambda timeout: [timeout]
        self.assertEqual(self.reactor.socketReport._turn(3.0), [3.0])

    def test_times(self) -> None:
        """
        A turn of 50 ms is quiet, and a reactor that has none is shown after 2 s; until then each turn waits
        no longer than that, or than the reactor says.
        """
        now, waits = [100.0], []
        report = self.reactor.socketReport
        self.patch(socketreport, "perf_counter", lambda: now[0])
        for timeout, lasts, until, isShown in (
            (None, 0.0625, 0.0, True),
            (None, 0.03125, 0.0, False),
            (0.01, 0.0, 1.875, False),
            (9.0, 0.0, 2.0, True),
        ):
            shown: list[int] = []

            def turn(timeout: float | None, lasts: float = lasts) -> str:
                waits.append(timeout)
                now[0] += lasts
                return "events"

            begun = now[0]
            self.patch(report, "appear", lambda shown=shown: shown.append(1))
            self.patch(self.reactor, "doPoll", turn)
            self.patch(self.reactor, "setTurn", lambda turn: None)
            report.begin()
            now[0] = begun + until
            self.assertEqual(report._turn(timeout), "events")
            self.assertEqual(shown, [1] * isShown)
        self.assertEqual(waits, [0.05, 0.05, 0.01, 0.05])

    def test_busy(self) -> None:
        """
        One that is never quiet shows itself all the same.
        """
        self.patch(socketreport, "LATEST", 0)
        self.reactor.socketReport.begin()
        self.reactor.doIteration(0)
        self.assertEqual(len(self.entries()), 1)

    def test_impossible(self) -> None:
        """
        Where processes cannot meet nothing happens, and it is not tried again.
        """
        self.directory.chmod(0o755)
        self.assertRaises(RunDirectoryError, channelFor, self.reactor)
        before = self.reactor.selectables()
        self.reactor.socketReport.begin()
        self.reactor.doIteration(None)
        self.assertNotIn("doIteration", vars(self.reactor))
        self.assertEqual(self.reactor.selectables(), before)
        self.assertEqual(channelsOf(self.reactor), [])

    def test_unseen(self) -> None:
        """
        To the application all is as before: no reader, no call; and the device is looked at in no turn.
        """
        before = set(self.reactor.getReaders())
        self.reactor.socketReport.appear()
        [channel] = channelsOf(self.reactor)
        self.assertEqual(set(self.reactor.getReaders()), before)
        self.assertEqual(self.reactor.getDelayedCalls(), [])
        self.assertEqual(self.reactor.removeAll(), [])
        self.turn()
        self.assertEqual(channel.device.turns, 0)
        self.assertEqual(self.reactor._channels, ())

    def call(self) -> socket.socket:
        """
        @return: a socket to the process.
        """
        search = Search(os.environ)
        self.addCleanup(search.close)
        [entry] = search.hcas()
        pair = search.connect(entry)
        self.addCleanup(pair.close)
        self.turn()
        return pair

    def test_asked(self) -> None:
        """
        It answers; the device is polled only while there is a caller.
        """
        self.reactor.socketReport.appear()
        [channel] = channelsOf(self.reactor)
        pair = self.call()
        self.assertEqual(self.reactor._channels, (channel,))
        more = True
        while more:  # Sockets of other tests in this process are seen, too.
            pair.send(SOCKETS)
            self.turn()
            answer = handshake.parse(pair.recv(limits.ANSWER_BYTES))
            assert isinstance(answer, handshake.QueryAnswer)
            self.assertEqual(answer.content["columns"], list(COLUMNS))
            more = answer.content["more"]
        self.assertEqual(self.reactor._channels, ())
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_silentCaller(self) -> None:
        """
        A caller that sends nothing is told so and dropped, and the device is not polled any more.
        """
        self.reactor.socketReport.appear()
        [channel] = channelsOf(self.reactor)
        now = channel.device.clock()
        pair = self.call()
        channel.now = lambda: now + 2 * handshake.HANDSHAKE_SECONDS
        channel.device.clock = channel.device.fabric.clock = self.reactor.seconds = channel.now
        self.turn()
        refusal = handshake.parse(pair.recv(limits.ANSWER_BYTES))
        assert isinstance(refusal, handshake.Refuse)
        self.assertEqual(refusal.reason, handshake.RefuseReason.SILENCE)
        self.assertEqual(pair.recv(1), b"")
        self.assertEqual(self.reactor._channels, ())

    def test_used(self) -> None:
        """
        With a user it is looked at, and without one not any more; it stays visible.
        """
        self.reactor.socketReport.appear()
        [channel] = channelsOf(self.reactor)
        port: Any = listenSDP(self.reactor, 0, Factory.forProtocol(Protocol))
        self.assertEqual(self.reactor._channels, (channel,))
        self.assertEqual([row["local"] for row in self.ours(port)], [f"0.0.0.0:{port.getHost().port}"])
        port.stopListening()
        self.turn()
        self.assertEqual(self.reactor._channels, ())
        self.test_asked()

    def test_unloadable(self) -> None:
        """
        Where nothing can be imported any more, as after C{chroot}, it answers without the sockets of TCP.
        """
        with mock.patch.dict(sys.modules, {"twisted_ib.hca.base.socketrows": None}):
            self.test_asked()


class RowsTests(VisibilityTestCase):
    """
    The rows of a process.
    """

    def setUp(self) -> None:
        """
        Be seen.
        """
        super().setUp()
        self.reactor.socketReport.appear()

    def rules(self, text: str) -> None:
        """
        Have these rules.
        """
        self.patch(type(self.reactor.switch.configuration), "policy", policyOf(parse(text, "/r")))

    def listen(self, **arguments: Any) -> Any:
        """
        @return: a TCP port through the reactor.
        """
        return self.reactor.listenTCP(0, Factory.forProtocol(Protocol), interface="127.0.0.1", **arguments)

    def connect(self, number: int, protocol: type[Protocol] = Protocol) -> Any:
        """
        @return: a connector, some turns later.
        """
        factory = ClientFactory.forProtocol(protocol)
        connector = self.reactor.connectTCP("127.0.0.1", number, factory)
        self.turn(30)
        return connector

    def test_both(self) -> None:
        """
        A port over both has two rows with one rule, and so has a connection's two ends.
        """
        port = self.listen()
        number = port.getHost().port
        rows = self.ours(port)
        self.assertEqual([(row["provider"], row["device"]) for row in rows], [("sdp", "shm0"), ("tcp", None)])
        for row in rows:
            self.assertEqual(
                [row[name] for name in ("kind", "local", "remote", "state", "rule", "fallback")],
                ["listener", f"127.0.0.1:{number}", None, "LISTEN", "default", None],
            )
            self.assertLessEqual(row["asked"], row["decided"])
        self.connect(number)
        ends = [row for row in self.rows() if f"127.0.0.1:{number}" in (row["local"], row["remote"])][:-1]
        connections = [row for row in ends if row["kind"] == "connection"]
        self.assertEqual([row["provider"] for row in connections], ["sdp", "sdp"])
        self.assertEqual({row["rule"] for row in connections}, {"default"})

    def test_fallback(self) -> None:
        """
        A connection that fell back has the reason; its server was not on the switch.
        """
        stranger = socket.socket()
        self.addCleanup(stranger.close)
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        number = stranger.getsockname()[1]
        self.connect(number)
        [row] = [row for row in self.rows() if row["remote"] == f"127.0.0.1:{number}"]
        self.assertEqual(
            [row[name] for name in ("provider", "device", "state", "rule", "in_flight", "retransmits")],
            ["tcp", None, "ESTABLISHED", "default", 0, 0],
        )
        self.assertIn("nobody offers SDP", row["fallback"])
        self.assertLessEqual(row["asked"], row["connected"])

    def test_tcpOnly(self) -> None:
        """
        Where a rule leaves everything to TCP, and the switch was not asked, the rule is known all the
        same: of ports, of what they accept, and of connections.
        """
        self.rules("use tcp listen * *:*\nuse tcp connect * *:*\n")
        port = self.listen()
        self.assertIs(type(port), tcp.Port)
        number = port.getHost().port
        self.connect(number)
        found = {
            (row["kind"], row["local"] == f"127.0.0.1:{number}"): row["rule"]
            for row in self.rows()
            if f"127.0.0.1:{number}" in (row["local"], row["remote"])
        }
        self.assertEqual(
            found, {("listener", True): "/r:1", ("connection", True): "/r:1", ("connection", False): "/r:2"}
        )

    def test_adopted(self) -> None:
        """
        The rules decide for an adopted port as for any other, and the report says so (issue 16, point 3).
        """
        for rules, rule in ("use tcp listen * *:*\n", "/r:1"), ("use tcp listen * 192.0.2.1:*\n", "default"):
            self.rules(rules)
            if self.reactor.openSwitch is not None:
                self.reactor.switch.configuration.reload()
            skt = socket.socket()
            skt.bind(("127.0.0.1", 0))
            skt.listen()
            skt.setblocking(False)
            port = self.reactor.adoptStreamPort(skt.fileno(), socket.AF_INET, Factory.forProtocol(Protocol))
            skt.close()
            rows = {row["provider"]: row["rule"] for row in self.ours(port)}
            self.assertEqual(rows["tcp"], rule)
            self.assertEqual(rows.get("sdp"), None if rule == "/r:1" else "default")

    def test_shared(self) -> None:
        """
        A listening socket has one row, however many descriptors the program has of it, whether the port reads
        or not; the row is the port's (issue 16, point 3).
        """
        skt = socket.socket()
        self.addCleanup(skt.close)
        skt.bind(("127.0.0.1", 0))
        skt.listen()
        skt.setblocking(False)
        port = self.reactor.adoptStreamPort(skt.fileno(), socket.AF_INET, Factory.forProtocol(Protocol))
        other = os.dup(skt.fileno())
        self.addCleanup(os.close, other)
        for paused in (False, True):
            if paused:
                port.stopReading()
            rows = [(row["provider"], row["rule"], row["decided"]) for row in self.ours(port)]
            self.assertEqual(rows, [(each, "default", port.why.decided) for each in ("sdp", "tcp")], paused)

    def test_paused(self) -> None:
        """
        A paused connection is in no reactor, and has its row, with the rule of its port.
        """
        self.rules("use tcp listen * *:*\n")
        port = self.listen()
        number = port.getHost().port
        made: list[Any] = []

        class Keeper(Protocol):
            """
            Remembered.
            """

            def connectionMade(self) -> None:
                """
                Read nothing.
                """
                assert self.transport is not None
                made.append(self.transport)
                self.transport.pauseProducing()

        port.factory = Factory.forProtocol(Keeper)
        self.connect(number)
        self.assertEqual(len(made), 1)
        self.assertNotIn(made[0], self.reactor.selectables())
        rows = {row["kind"]: row for row in self.ours(port)}
        self.assertEqual(rows["connection"]["state"], "ESTABLISHED")
        self.assertEqual({row["rule"] for row in rows.values()}, {"/r:1"})
        made[0].loseConnection()

    def test_unix(self) -> None:
        """
        UNIX ports are none of TCP, though they are made of the same classes.
        """
        port = self.reactor.listenUNIX(str(self.directory / "x"), Factory.forProtocol(Protocol))
        self.assertFalse(isTCP(port))
        before = len(self.rows())
        port.stopListening()
        self.turn()
        self.assertEqual(len(self.rows()), before)

    def test_loopback(self) -> None:
        """
        A device that others do not see shows its own through the one that they do; each is shown once.
        """
        port: Any = listenSDP(self.reactor, 0, Factory.forProtocol(Protocol), device="lo0")
        [row] = self.ours(port)
        self.assertEqual((row["provider"], row["device"]), ("sdp", "lo0"))
        rows = [named(row) for row in channelFor(self.reactor, "lo0").socketRows() if row is not None]
        self.assertEqual(len(rows), 1)


class WhyTests(SynchronousTestCase):
    """
    Why something is so.
    """

    def setUp(self) -> None:
        """
        A reactor without a switch.
        """
        self.socketReport = socketreport.SocketReport(SimpleNamespace(openSwitch=None))

    def test_own(self) -> None:
        """
        A user with a reason returns it; a part of a port has the port's, without the other part's fallback.
        """
        why = Reason("/r:1", "both", "tcp", None, Fallback("x", "y"), 1.0)
        self.assertIs(self.socketReport.whyOf(SimpleNamespace(why=why)), why)
        part = self.socketReport.whyOf(SimpleNamespace(main=SimpleNamespace(why=why)))
        assert part is not None
        self.assertEqual((part.rule, part.fallback, part.asked), ("/r:1", None, 1.0))

    def test_none(self) -> None:
        """
        Others have none: neither a class that only looks like one, nor a TCP port without rules.
        """
        port = tcp.Port(0, Factory.forProtocol(Protocol), reactor=SimpleNamespace())
        for user in (object(), SimpleNamespace(why="because"), SimpleNamespace(main=object()), port):
            self.assertIsNone(self.socketReport.whyOf(user))

    def test_policy(self) -> None:
        """
        Where one rule leaves all to TCP it is the reason: that of listeners for a port and what it accepts,
        and that of connects for what a connector has made.
        """

        def certain(role: str, program: str) -> Any:
            return SimpleNamespace(where=f"/r:{role}", verdict=verdicts[role])

        verdicts = {"listen": "tcp", "connect": "tcp"}
        configuration = SimpleNamespace(policy=SimpleNamespace(certain=certain), program="p")
        report = socketreport.SocketReport(
            SimpleNamespace(openSwitch=SimpleNamespace(configuration=configuration))
        )
        port: Any = tcp.Port(0, Factory.forProtocol(Protocol), reactor=SimpleNamespace())
        accepted, made, other = (tcp.Connection.__new__(tcp.Connection) for _ in range(3))
        accepted.server, made.connector = port, object()
        for user, role in ((port, "listen"), (accepted, "listen"), (made, "connect")):
            why = report.whyOf(user)
            assert why is not None
            self.assertEqual((why.rule, why.verdict, why.provider), (f"/r:{role}", "tcp", "tcp"))
        self.assertIsNone(report.whyOf(other))
        verdicts["listen"] = "both"
        self.assertIsNone(report.whyOf(port))
        self.assertIsNone(report.whyOf(accepted))
        made.connector = SimpleNamespace(why=(own := Reason("/r:9", "both", "tcp")))
        self.assertIs(report.whyOf(made), own)


class TCPRowsTests(SynchronousTestCase):
    """
    Sockets known by their descriptors only.
    """

    def rows(self, selectables: Any = ()) -> list[dict[str, Any]]:
        """
        @return: the rows of this process.
        """
        return [named(row) for row in tcpRows(selectables, noWhy, noWhy) if row is not None]

    def test_found(self) -> None:
        """
        A listener and both ends of a connection, IPv6 too, with bytes on their way; none of it is closed
        by looking, and what is neither is left out.
        """
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            with socket.socket(family) as server, socket.socket(family) as client:
                try:
                    server.bind((host, 0))
                except OSError:
                    continue
                server.listen()
                name = server.getsockname()
                at = f"[{host}]:{name[1]}" if ":" in host else f"{host}:{name[1]}"
                client.connect(name)
                accepted, _ = server.accept()
                with accepted:
                    client.setblocking(False)
                    sent = 0
                    try:
                        while True:
                            sent += client.send(b"x" * 100000)
                    except BlockingIOError:
                        pass
                    rows = [row for row in self.rows() if at in (row["local"], row["remote"])]
                    self.assertEqual(
                        sorted((row["kind"], row["state"]) for row in rows),
                        [
                            ("connection", "ESTABLISHED"),
                            ("connection", "ESTABLISHED"),
                            ("listener", "LISTEN"),
                        ],
                    )
                    [one] = [row for row in rows if row["remote"] == at]
                    self.assertGreater(one["in_flight"], 0)
                    self.assertLessEqual(one["in_flight"], sent)
                    self.assertEqual((one["provider"], one["device"]), ("tcp", None))
                    accepted.recv(10)
        self.assertNotIn(at, [row["local"] for row in self.rows()])

    def test_broken(self) -> None:
        """
        Selectables that fail, or whose socket is closed, have no row, and the others have theirs.
        """

        class Broken:
            """
            An application's.
            """

            def fileno(self) -> int:
                raise KeyError("what an application may do")

        gone = tcp.Port.__new__(tcp.Port)
        gone.socket = socket.socket()
        gone.fileno = gone.socket.fileno  # type: ignore[method-assign]
        gone.socket.close()
        self.assertEqual(list(tcpRows([Broken(), gone], noWhy, noWhy))[:2], [None, None])
