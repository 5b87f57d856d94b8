"""
Tests for L{twisted_ib.reactor.tcprows}, and for what reactors write into socket pages.
"""

from __future__ import annotations

import gc
import os
from typing import Any
from unittest.mock import Mock

from twisted.internet import tcp
from twisted.internet.protocol import ClientFactory, DatagramProtocol, Factory, Protocol

from tests.reactor.test_socketreport import VisibilityTestCase
from tests.reactor.test_tcprows import Socket
from tests.sdp.pair import HandReactor
from tests.support.waiting import waitUntil
from twisted_ib import limits
from twisted_ib.hca.base.socketrows import COLUMNS
from twisted_ib.hca.host.search import Search
from twisted_ib.hca.host.socketpage.reading import readPage
from twisted_ib.internet.channel import channelFor
from twisted_ib.internet.readers import channelsOf
from twisted_ib.rdma.port import connectRDMA, listenRDMA
from twisted_ib.reactor import direct
from twisted_ib.reactor.tcprows import TCPReasons
from twisted_ib.sdp.port import connectSDP, listenSDP
from twisted_ib.switch.reason import Fallback, Reason


def pageRows() -> list[dict[str, Any]]:
    """
    @return: the rows of all socket pages in the run directory.
    """
    search = Search()
    try:
        pages = [readPage(entry.directory.fd, entry.name, os.geteuid()) for entry in search.hcas()]
    finally:
        search.close()
    return [dict(zip(COLUMNS, row, strict=True)) for page in pages if page for row in page["rows"]]


class Looking(Protocol):
    """
    Looks at the page in each call.
    """

    seen: list[Any] = []

    def dataReceived(self, data: bytes) -> None:
        """
        As a process that is busy from here on.
        """
        self.seen.append(pageRows())


class Sending(Protocol):
    """
    Sends as soon as it can.
    """

    def connectionMade(self) -> None:
        """
        Now.
        """
        self.transport.write(b"x")  # type: ignore[union-attr]


class ConnectionTests(VisibilityTestCase):
    """
    Ports and connections on devices.
    """

    def ends(self, listen: Any, connect: Any, reactor: Any, turn: Any) -> None:
        """
        A port is on the page at once; a connection before its first data, on both sides; it goes when it is
        closed, and the port too.
        """
        seen: list[Any] = []
        self.patch(Looking, "seen", seen)
        port = listen(reactor, 0, Factory.forProtocol(Looking), interface="127.0.0.1")
        where = f"127.0.0.1:{port.getHost().port}"
        [row] = pageRows()
        self.assertEqual(
            [row[name] for name in ("kind", "local", "device", "rule")],
            ["listener", where, "shm0", "explicit"],
        )
        factory = ClientFactory.forProtocol(Sending)
        connector = connect(reactor, "127.0.0.1", port.getHost().port, factory)
        waitUntil(lambda: bool(seen), turn)
        first, second = [row for row in seen[0] if row["kind"] == "connection"]
        self.assertEqual((first["local"], first["remote"]), (second["remote"], second["local"]))
        self.assertIn(where, (first["local"], first["remote"]))
        connector.transport.abortConnection()
        waitUntil(lambda: len(pageRows()) == 1, turn)
        port.stopListening()
        waitUntil(lambda: not pageRows(), turn)

    def test_sdp(self) -> None:
        """
        C{sdp:} on the C{ib} reactor.
        """
        self.ends(listenSDP, connectSDP, self.reactor, self.turn)

    def test_rdma(self) -> None:
        """
        C{ib:}.
        """
        self.ends(listenRDMA, connectRDMA, self.reactor, self.turn)

    def test_otherReactor(self) -> None:
        """
        Another reactor.
        """
        reactor = HandReactor()
        self.addCleanup(lambda: [channel.close() for channel in channelsOf(reactor)])
        self.ends(listenSDP, connectSDP, reactor, reactor.turn)

    def test_rds(self) -> None:
        """
        A socket of RDS, as long as it is bound.
        """
        port = self.reactor.listenRDS(0, DatagramProtocol(), interface="127.0.0.1")
        [row] = pageRows()
        self.assertEqual(
            [row[name] for name in ("kind", "provider", "device", "local", "remote")],
            ["listener", "rds", "shm0", f"127.0.0.1:{port.getHost().port}", None],
        )
        port.stopListening()
        waitUntil(lambda: not pageRows(), self.turn)

    def test_invisible(self) -> None:
        """
        A device that commands do not find has no page.
        """
        listenSDP(self.reactor, 0, Factory.forProtocol(Protocol), device="lo0")
        self.assertIsNone(channelFor(self.reactor, "lo0").shown)
        self.assertEqual(pageRows(), [])


class BesideTests(VisibilityTestCase):
    """
    The reasons of TCP, in a process that uses a device from its first turn on and is never idle.
    """

    def test_atOnce(self) -> None:
        """
        They stand on the page before the first connection does.
        """
        seen: list[Any] = []
        self.patch(Looking, "seen", seen)
        self.reactor.socketReport.begin()
        port = listenSDP(self.reactor, 0, Factory.forProtocol(Looking), interface="127.0.0.1")
        self.reactor.iterate(0)
        connectSDP(self.reactor, "127.0.0.1", port.getHost().port, ClientFactory.forProtocol(Sending))
        waitUntil(lambda: bool(seen), lambda: self.reactor.iterate(0))
        self.assertEqual([row["local"] for row in seen[0] if row["provider"] == "tcp"], ["*:0"])
        self.assertNotIn("doIteration", vars(self.reactor))


class TCPTests(VisibilityTestCase):
    """
    The reasons of TCP.
    """

    def setUp(self) -> None:
        """
        A process that is visible.
        """
        super().setUp()
        self.reactor.socketReport.appear()

    def test_other(self) -> None:
        """
        One row is about all sockets that no other is about.
        """
        [row] = pageRows()
        self.assertEqual(
            [row[name] for name in ("provider", "local", "remote", "rule")], ["tcp", "*:0", "*:0", "explicit"]
        )

    def peers(self, *ports: int, kind: str = "no_listener") -> list[tuple[Any, Any]]:
        """
        Connections to ports go over TCP.

        @return: The rows that are about peers: which, and why.
        """
        for port in ports:
            why = Reason("default", "both", "tcp", None, Fallback(kind, f"for {kind}"), 1.0, 2.0)
            self.reactor.socketReport.showPeer("127.0.0.1", port, why)
        rows = [row for row in pageRows() if row["local"] == "*:0" and row["remote"] != "*:0"]
        self.assertEqual({(row["provider"], row["asked"]) for row in rows}, {("tcp", None)})
        return [(row["remote"], row["fallback"]) for row in rows]

    def test_IPv6(self) -> None:
        """
        Of addresses with a scope the host and port are shown.
        """
        reasons, user = TCPReasons(page := Mock(), None), tcp.Connection.__new__(tcp.Connection)
        page.add.return_value = [8]
        user.socket = skt = Socket()
        self.addCleanup(skt.close)
        skt.here, skt.there, user.fileno = ("fe80::1", 1, 0, 3), ("fe80::2", 2, 0, 3), skt.fileno
        reasons.show(user, Reason("default", "both"))
        ((_, ((_, *shown),)), _) = page.add.call_args
        self.assertEqual(shown, ["fe80::1", 1, "fe80::2", 2])

    def test_once(self) -> None:
        """
        A reason that a peer has already is not written again; one that says something else is.
        """
        reasons = TCPReasons(page := Mock(), None)
        page.add.return_value = [8]
        written = []
        for verdict in ("both", "both", "tcp"):
            page.add.reset_mock()
            reasons.showPeer("127.0.0.1", 1, Reason("default", verdict))
            written.append(page.add.call_count)
        self.assertEqual(written, [1, 0, 1])

    def test_peers(self) -> None:
        """
        Each peer has one row, which has the last reason; beyond the bound the oldest goes.
        """
        self.assertEqual(self.peers(1, 1), [("127.0.0.1:1", "for no_listener")])
        self.assertEqual(self.peers(1, kind="short_lived"), [("127.0.0.1:1", "for short_lived")])
        self.patch(limits, "PEERS_SHOWN", 2)
        found = self.peers(2, 3, 2)
        self.assertEqual(sorted(where for where, _ in found), ["127.0.0.1:2", "127.0.0.1:3"])

    def test_ports(self) -> None:
        """
        A port of the program's has a row beside that of a peer of the same number, with the last reason.
        """
        self.peers(1)
        for kind in "forking", "listen":
            why = Reason("default", "both", "tcp", None, Fallback(kind, f"for {kind}"))
            self.reactor.socketReport.showPeer("127.0.0.1", 1, why, True)
            found = {(row["local"], row["remote"], row["fallback"]) for row in pageRows()}
            mine = [each for each in found if each[0] == "127.0.0.1:1"]
            self.assertEqual([each[2] for each in mine], [f"for {kind}"])
            self.assertIn(("*:0", "127.0.0.1:1", "for no_listener"), found)

    def test_switched(self) -> None:
        """
        A port and a client that the switch has made; an accepted connection has none.  The rows go with them.
        """
        factory = Factory.forProtocol(Protocol)
        port = self.reactor.listenTCP(0, factory, interface="127.0.0.1")
        number = port.getHost().port
        plain = direct(self.reactor).listenTCP(0, factory, interface="127.0.0.1")
        where = f"127.0.0.1:{plain.getHost().port}"
        clients = ClientFactory.forProtocol(Protocol)
        connector = self.reactor.connectTCP("127.0.0.1", plain.getHost().port, clients)
        shown: list[Any] = []

        def isThere() -> bool:
            shown[:] = [row for row in pageRows() if row["provider"] == "tcp" and row["local"] != "*:0"]
            return any(row["remote"] == where for row in shown)

        waitUntil(isThere, self.turn)
        listener, client = sorted(shown, key=lambda row: str(row["kind"]), reverse=True)
        self.assertEqual((listener["local"], listener["rule"]), (f"127.0.0.1:{number}", "default"))
        self.assertEqual((client["remote"], client["rule"]), (where, "default"))
        self.assertIn("nobody offers SDP", client["fallback"])
        connector.transport.abortConnection()
        port.stopListening()
        del port, connector, clients

        def isGone() -> bool:
            gc.collect()
            return len(pageRows()) == 1

        plain.stopListening()
        waitUntil(isGone, self.turn)

    def test_before(self) -> None:
        """
        What was there before the process became visible is shown, and nothing twice.
        """
        port = self.reactor.listenTCP(0, Factory.forProtocol(Protocol), interface="127.0.0.1")
        reasons = TCPReasons(channelFor(self.reactor).shown.openPage(), None)
        before = len(pageRows())
        reasons.show(port, Reason("/a:1", "tcp", "tcp"))
        reasons.show(port, Reason("/a:2", "tcp", "tcp"))
        reasons.show(Factory(), None)
        rows = pageRows()
        self.assertEqual(len(rows), before + 1)
        self.assertIn("/a:1", [row["rule"] for row in rows])
