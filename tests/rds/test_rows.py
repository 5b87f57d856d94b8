"""
Tests of what C{ib-ss} and C{ib-devinfo} show of RDS.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.rds.ends import HOST, ProcessesTestCase
from tests.support.ownaddress import ownAddress
from twisted_ib import limits
from twisted_ib.errors import PathLostError
from twisted_ib.hca.base.socketrows import COLUMNS
from twisted_ib.hca.host.query import SocketsAnswer
from twisted_ib.internet.readers import channelsOf
from twisted_ib.rds.paths.network import KERNEL_COUNTERS, networkRows
from twisted_ib.tools.show.sockettext import socketsOf


class RowTests(ProcessesTestCase):
    """
    Sockets and paths.
    """

    def setUp(self) -> None:
        """
        Two processes.
        """
        super().setUp()
        self.a, self.b = self.process(), self.process()
        self.one, self.two = self.a.listen(4000), self.b.listen(5000)

    def rows(self, process: Any) -> list[tuple[Any, ...]]:
        """
        @return: state, local, remote, bytes and repetitions of each row.
        """
        return [
            (row.state, row.local, row.remote, row.inFlight, row.retransmits)
            for row in networkRows(process.network)
        ]

    def test_connected(self) -> None:
        """
        A socket, and a path that is up.
        """
        self.assertEqual(self.rows(self.a), [("LISTEN", "127.0.0.1:4000", None, 0, None)])
        self.one.transport.write(b"hello", (HOST, 5000))
        self.settle()
        self.pass_(0.1)
        path = ("ESTABLISHED", HOST, HOST, 0, 0)
        self.assertEqual(self.rows(self.a), [("LISTEN", "127.0.0.1:4000", None, 0, None), path])

    def test_waiting(self) -> None:
        """
        Messages queued for a peer that does not exist; pings have no row.
        """
        self.one.transport.write(b"hello", (HOST, 6000))
        self.one.transport.ping(HOST)
        queued = 5 + limits.RDS_DATAGRAM_OVERHEAD
        expected = [("LISTEN", "127.0.0.1:4000", None, queued, None), ("SYN_SENT", HOST, HOST, 5, 0)]
        self.assertEqual(self.rows(self.a), expected)

    def test_repeated(self) -> None:
        """
        Retransmissions are counted.
        """
        self.one.transport.write(b"hello", (HOST, 5000))
        self.settle()
        (session,) = self.a.medium.sessions.values()
        self.one.transport.write(b"more", (HOST, 5000))
        session.broken(PathLostError("broken by the test"))
        self.pass_(2.0)
        self.assertEqual(self.rows(self.a)[1][4], 2)
        self.assertEqual(self.a.network.counters["send_retransmitted"], 2)

    def test_congested(self) -> None:
        """
        A congested socket, and the path with messages held back for it.
        """
        self.two.socket.pauseProducing()
        data = bytes(limits.RDS_MESSAGE)
        for _ in range(2):
            self.one.transport.write(data, (HOST, 5000))
            self.settle()
        self.assertEqual(self.rows(self.b)[0][0], "CONGESTED")
        self.one.transport.write(data, (HOST, 5000))
        self.assertEqual(self.rows(self.a)[1][0], "CONGESTED")

    def test_shown(self) -> None:
        """
        They are among the rows of the process, in a form that C{ib-ss} takes.
        """
        self.one.transport.write(b"hello", (HOST, 5000))
        self.settle()
        (channel,) = channelsOf(self.a.reactor)
        page = {"columns": list(COLUMNS), "rows": [row for row in channel.socketRows() if row]}
        found = socketsOf(SocketsAnswer(7, [page]), lambda pid: "program")
        kinds = [(row["provider"], row["kind"]) for row in found]
        self.assertEqual(kinds, [("rds", "listener"), ("rds", "connection")])
        self.assertEqual({row["device"] for row in found}, {"lo0"})


class CounterTests(ProcessesTestCase):
    """
    The counters that C{ib-devinfo -v} shows.
    """

    def test_names(self) -> None:
        """
        All of the kernel's names, after C{rds_}.
        """
        a = self.process()
        one = a.listen(4000)
        one.transport.write(b"self", (HOST, 4000))
        self.settle()
        (channel,) = channelsOf(a.reactor)
        found = channel.device.statistics()
        self.assertEqual({name for name in KERNEL_COUNTERS if f"rds_{name}" not in found}, set())
        self.assertEqual((found["rds_recv_delivered"], found["rds_send_queued"]), (1, 1))


class TCPTests(SynchronousTestCase):
    """
    RDS over TCP has no device.
    """

    def _stop(self, reactor: Any, port: Any) -> None:
        """
        Twisted's ports close in a later turn.
        """
        stopped = port.stopListening()
        for _ in range(100):
            reactor.iterate()
            if stopped is None or stopped.called:
                break

    def test_visible(self) -> None:
        """
        Its sockets are shown with those of the default device.
        """
        from twisted.internet.protocol import DatagramProtocol

        from tests.support.rundirectory import ownRunDirectory
        from twisted_ib.internet.channel import channelFor
        from twisted_ib.rds import listenRDS
        from twisted_ib.reactor.ibreactor import IBReactor

        ownRunDirectory(self)
        reactor, own = IBReactor(), ownAddress(1)
        port = listenRDS(reactor, 4000, DatagramProtocol(), own, device="tcp")
        channel = channelFor(reactor)
        self.addCleanup(channel.close)
        self.addCleanup(self._stop, reactor, port)
        found = [row for row in channel.socketRows() if row is not None and row[1] == "rds"]
        self.assertEqual([(row[2], row[3], row[5]) for row in found], [(None, f"{own}:4000", "LISTEN")])
