"""
Tests for L{twisted_ib.hca.base.socketrows}, and for the rows of ports and connections.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from twisted.internet.protocol import ClientFactory, Factory, Protocol
from twisted.trial.unittest import SynchronousTestCase

from tests.hca.addressed import onWire
from tests.sdp.pair import HandReactor
from twisted_ib import limits
from twisted_ib.hca.base import socketrows
from twisted_ib.hca.base.socketrows import COLUMNS, TCP_STATES, Row, noWhy, rowOf, usersRows, values
from twisted_ib.hca.device.registry import addDevice
from twisted_ib.internet.channel import channelFor
from twisted_ib.rdma.port import connectRDMA, listenRDMA
from twisted_ib.sdp.port import connectSDP, listenSDP


def named(row: Any) -> dict[str, Any]:
    """
    @return: the values of a row by name.
    """
    return dict(zip(COLUMNS, row, strict=True))


class RowTests(SynchronousTestCase):
    """
    From a row to its values.
    """

    def test_explicit(self) -> None:
        """
        Without a C{Why} it was asked for by name.
        """
        row = named(values(Row("listener", "sdp", "0.0.0.0:80", None, "LISTEN"), "shm0", None))
        self.assertEqual(
            row,
            {
                **dict.fromkeys(COLUMNS),
                "kind": "listener",
                "provider": "sdp",
                "device": "shm0",
                "local": "0.0.0.0:80",
                "state": "LISTEN",
                "rule": "explicit",
            },
        )

    def test_states(self) -> None:
        """
        The kernel's numbers of TCP's states, as C{include/net/tcp_states.h} counts them; CLOSE is no row.
        """
        names = "ESTABLISHED SYN_SENT SYN_RECV FIN_WAIT1 FIN_WAIT2 TIME_WAIT CLOSE CLOSE_WAIT LAST_ACK LISTEN"
        expected = dict(enumerate([*names.split(), "CLOSING"], 1))
        del expected[7]
        self.assertEqual(TCP_STATES, expected)

    def test_why(self) -> None:
        """
        With one its rule, its reason and its times are told.
        """
        why = SimpleNamespace(rule="/a:3", fallback=KeyError("x"), asked=1.5, decided=2.5, connected=None)
        row = named(values(Row("connection", "tcp", "a:1", "b:2", "ESTABLISHED", None, 5, 2), None, why))
        self.assertEqual(
            [row[name] for name in ("in_flight", "retransmits", "rule", "fallback", "asked", "decided")],
            [5, 2, "/a:3", "'x'", 1.5, 2.5],
        )
        json.dumps(values(Row("connection", "tcp", "a:1", "b:2", "X"), None, why))

    def test_long(self) -> None:
        """
        Texts have bounds; of a rule's place the end stays, which has the line.
        """
        why = SimpleNamespace(
            rule="x" * 5000 + ":17", fallback="y" * 5000, asked=None, decided=None, connected=None
        )
        row = named(values(Row("connection", "tcp", "z" * 5000, None, "X"), None, why))
        self.assertEqual(len(row["rule"]), limits.SOCKET_RULE)
        self.assertTrue(row["rule"].endswith("x:17"))
        self.assertEqual((len(row["fallback"]), len(row["local"])), (socketrows.SOCKET_TEXT,) * 2)

    def test_users(self) -> None:
        """
        A user without a description has no row, nor has one whose description fails; the others have theirs.
        """

        class Broken:
            """
            An application's.
            """

            def socketRow(self) -> Row:
                raise KeyError("what an application may do")

        class Over:
            """
            A connection that is over.
            """

            def socketRow(self) -> None:
                """
                Nothing.
                """

        class Port:
            """
            A listener.
            """

            def socketRow(self) -> Row:
                """
                Say so.
                """
                return Row("listener", "sdp", "a:1", None, "LISTEN")

        found = list(usersRows([object(), Broken(), Over(), Port()], "shm0", noWhy))
        self.assertEqual(found[:3], [None, None, None])
        self.assertEqual(named(found[3])["local"], "a:1")
        self.assertIsNone(rowOf(Port(), None, lambda user: 1 / 0))


class Writer(Protocol):
    """
    Writes much.
    """

    def connectionMade(self) -> None:
        """
        More than the medium takes.
        """
        for _ in range(2000):
            self.transport.write(b"x" * 60000)  # type: ignore[union-attr]


class Paused(Protocol):
    """
    Reads nothing.
    """

    def connectionMade(self) -> None:
        """
        Not now.
        """
        self.transport.pauseProducing()  # type: ignore[union-attr]


class RowsTestCase(SynchronousTestCase):
    """
    Ports and connections on a device.
    """

    device = "lo0"

    def setUp(self) -> None:
        """
        A reactor and its device.
        """
        self.reactor = HandReactor()
        self.channel = channelFor(self.reactor, self.device)
        self.addCleanup(self.channel.close)

    def rows(self) -> list[dict[str, Any]]:
        """
        @return: the rows of all users.
        """
        return [named(row) for row in self.channel.socketRows() if row is not None]

    def turn(self, times: int = 20) -> None:
        """
        Let the reactor turn.
        """
        for _ in range(times):
            self.reactor.turn()

    def connect(self, listen: Any, connect: Any, protocol: type[Protocol]) -> tuple[Any, Any]:
        """
        @return: a port and a connector whose connection stands.
        """
        port = listen(self.reactor, 0, Factory.forProtocol(Paused), device=self.device, interface="127.0.0.1")
        connector = connect(
            self.reactor,
            "127.0.0.1",
            port.getHost().port,
            ClientFactory.forProtocol(protocol),
            device=self.device,
        )
        return port, connector


class PacketTests(RowsTestCase):
    """
    Connections on C{roce0}, whose packets are acknowledged.
    """

    device = "roce0"

    def setUp(self) -> None:
        """
        A device on a wire of its own.
        """
        onWire(self)
        addDevice(self.device, "roce", "127.0.0.1")
        super().setUp()

    def test_roundTrip(self) -> None:
        """
        An end that has sent something knows how long the acknowledgement took.
        """
        self.connect(listenSDP, connectSDP, Writer)
        for _ in range(20):
            self.turn(1)
            self.reactor.advance(0.001)
        self.assertGreater(max(row["round_trip"] or 0.0 for row in self.rows()), 0.0)


class UsersTests(RowsTestCase):
    """
    Ports and connections of both kinds, on C{lo0}.
    """

    def test_sdp(self) -> None:
        """
        A port; a connection while it is made, while it stands with bytes that wait, and while it is
        closed; and nothing when all is over.
        """
        port, connector = self.connect(listenSDP, connectSDP, Writer)
        number = port.getHost().port
        [row] = self.rows()
        self.assertEqual(
            [row[name] for name in ("kind", "provider", "device", "local", "remote", "state", "rule")],
            ["listener", "sdp", "lo0", f"127.0.0.1:{number}", None, "LISTEN", "explicit"],
        )
        self.turn()
        _, *ends = self.rows()
        [client] = [end for end in ends if end["remote"] == f"127.0.0.1:{number}"]
        [server] = [end for end in ends if end["local"] == f"127.0.0.1:{number}"]
        self.assertEqual((client["local"], client["remote"]), (server["remote"], server["local"]))
        for end in (client, server):
            self.assertEqual(
                [end[name] for name in ("kind", "provider", "device", "state", "retransmits")],
                ["connection", "sdp", "lo0", "ESTABLISHED", 0],
            )
            # Counted by the machine; nothing is acknowledged in memory.
            self.assertGreater(end["messages_sent"] + end["messages_received"], 0)
            self.assertEqual((end["bytes_sent"], end["round_trip"]), (None, None))
        self.assertGreater(client["messages_sent"], server["messages_sent"])
        self.assertGreater(client["in_flight"], 1000000)
        self.assertEqual(server["in_flight"], 0)
        self.assertLess(client["credits"], 4)
        self.assertEqual(server["credits"], limits.SDP_RECEIVES)
        connector.transport.abortConnection()
        self.turn()
        self.assertEqual([row["kind"] for row in self.rows()], ["listener"])
        port.stopListening()
        self.turn()
        self.assertEqual(self.rows(), [])

    def test_registered(self) -> None:
        """
        Registered memory that the peer has not read is on its way, too.
        """
        _port, connector = self.connect(listenSDP, connectSDP, Protocol)
        self.turn()
        transport = connector.transport
        region = transport.registerMemory(2 * limits.SDP_ZERO_COPY_LEAST)
        transport.writeRegistered(region).addErrback(lambda reason: None)
        self.turn()
        [row] = [row for row in self.rows() if row["in_flight"]]
        self.assertGreater(row["in_flight"], limits.SDP_ZERO_COPY_LEAST)
        self.assertLessEqual(row["in_flight"], region.length)

    def test_closing(self) -> None:
        """
        A connection that the application has closed, and whose peer has not, is still there.
        """
        _port, connector = self.connect(listenSDP, connectSDP, Protocol)
        self.turn()
        connector.transport.loseConnection()
        self.turn()
        states = sorted(row["state"] for row in self.rows())
        self.assertEqual(states, ["CLOSE_WAIT", "FIN_WAIT1", "LISTEN"])

    def test_rdma(self) -> None:
        """
        The same of messages.
        """
        _port, connector = self.connect(listenRDMA, connectRDMA, Writer)
        self.turn()
        listener, *ends = self.rows()
        self.assertEqual((listener["provider"], listener["state"]), ("rdma", "LISTEN"))
        self.assertEqual(len(ends), 2)
        for end in ends:
            self.assertEqual(
                [end[name] for name in ("kind", "provider", "device", "state", "credits", "retransmits")],
                ["connection", "rdma", "lo0", "ESTABLISHED", None, 0],
            )
        self.assertGreater(max(end["in_flight"] for end in ends), 1000000)
        connector.transport.loseConnection()
        self.turn(3)
        self.assertIn("FIN_WAIT1", [row["state"] for row in self.rows()])
        connector.transport.abortConnection()
        self.turn()
        self.assertEqual([row["state"] for row in self.rows()], ["LISTEN"])

    def test_connecting(self) -> None:
        """
        A connection that is asked for and not there yet.
        """
        port, _connector = self.connect(listenSDP, connectSDP, Protocol)
        port.stopReading()
        self.turn()
        [_, row] = self.rows()
        self.assertEqual((row["state"], row["remote"]), ("SYN_SENT", f"127.0.0.1:{port.getHost().port}"))

    def test_beside(self) -> None:
        """
        A reactor may know why, and may have more.
        """
        why = SimpleNamespace(rule="default", fallback=None, asked=None, decided=None, connected=None)
        more = values(Row("listener", "tcp", "a:1", None, "LISTEN"), None, None)
        asked = []
        self.reactor.whyOf = lambda user: why  # type: ignore[attr-defined]
        self.reactor.socketsBeside = lambda channel: asked.append(channel) or [more]  # type: ignore[attr-defined,func-returns-value]
        self.connect(listenSDP, connectSDP, Protocol)
        first, second = self.rows()
        self.assertEqual((first["provider"], first["rule"]), ("sdp", "default"))
        self.assertEqual((second["provider"], second["rule"]), ("tcp", "explicit"))
        self.assertEqual(asked, [self.channel])

    def test_device(self) -> None:
        """
        The device tells it in pages; one that no reactor has has none.
        """
        self.connect(listenSDP, connectSDP, Protocol)
        [page] = self.channel.device.describeSockets()
        self.assertEqual((page["hca_id"], page["columns"]), ("lo0", list(COLUMNS)))
        self.assertEqual(len(page["rows"]), 1)
        self.channel.device.socketRows = None
        [page] = self.channel.device.describeSockets()
        self.assertEqual(page["rows"], [])
