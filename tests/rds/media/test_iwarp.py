"""
RDS over the queue pairs of iWARP: in Linux's form, as between all hosts, over TCP sockets of this host.
"""

from __future__ import annotations

import socket
from typing import Any

from tests.rds.ends import ProcessesTestCase
from tests.support.ownaddress import ownAddress
from tests.support.rundirectory import ownRunDirectory
from twisted_ib import limits
from twisted_ib.errors import PathLostError, RDSUnsupportedError
from twisted_ib.hca.fabric.iwarp.streampath import IWARP_NO_RECEIVE_SECONDS
from twisted_ib.rds import queues
from twisted_ib.rds.media import rcaddresses

ONE, TWO, SIX = ownAddress(1), ownAddress(2), "::1"


class IWARPTests(ProcessesTestCase):
    """
    Two hosts, of which each is an address of this one.
    """

    device = "iwarp0"

    def setUp(self) -> None:
        """
        A socket on each.
        """
        super().setUp()
        ownRunDirectory(self)
        self.a, self.b = self.process(), self.process()
        self.one, self.two = self.a.listen(4000, ONE), self.b.listen(5000, TWO)

    def session(self, process: Any) -> Any:
        """
        @return: the connection of a process.
        """
        (found,) = process.medium.sessions.values()
        return found

    def test_sizes(self) -> None:
        """
        Datagrams of any size, both ways, in order.
        """
        sizes = [0, 1, 100, 4095, 4096, 4097, 9000, 1 << 20, 3]
        sent = [bytes([index]) * size for index, size in enumerate(sizes)]
        for data in sent:
            self.one.transport.write(data, (TWO, 5000))
        self.until(lambda: len(self.two.got) == len(sent))
        self.assertEqual((self.two.data, {address for _, address in self.two.got}), (sent, {(ONE, 4000)}))
        for data in sent:
            self.two.transport.write(data, (ONE, 4000))
        self.until(lambda: len(self.one.got) == len(sent))
        self.assertEqual(self.one.data, sent)
        for process in (self.a, self.b):
            self.assertEqual(process.queuePairs, 1)

    def test_ipv6(self) -> None:
        """
        Within one process, over IPv6.
        """
        # Any free port: a test in another process may have the one of RDS, and ::1 is the only address.
        with socket.create_server((SIX, 0), family=socket.AF_INET6) as free:
            port = free.getsockname()[1]
        self.patch(rcaddresses, "servicePort", lambda address: port)
        one, two = self.a.listen(4000, SIX), self.a.listen(5000, SIX)
        one.transport.write(b"x" * 5000, (SIX, 5000))
        self.until(lambda: two.got)
        self.assertEqual(two.got, [(b"x" * 5000, (SIX, 4000))])

    def test_duel(self) -> None:
        """
        If both ends connect at once, there is one connection after a while.
        """
        self.one.transport.write(b"a", (TWO, 5000))
        self.two.transport.write(b"b", (ONE, 4000))
        self.until(lambda: self.one.got and self.two.got)
        self.assertEqual((self.one.data, self.two.data), ([b"b"], [b"a"]))
        self.session(self.a)
        self.session(self.b)

    def test_reconnected(self) -> None:
        """
        A connection that breaks is made anew, and each datagram comes once.
        """
        sent = [b"%d" % number * 3000 for number in range(40)]
        for number, data in enumerate(sent):
            self.one.transport.write(data, (TWO, 5000))
            if number % 10 == 5:
                self.until(lambda: self.two.got)
                self.session(self.b).broken(PathLostError("for the test"))
        self.until(lambda: len(self.two.got) >= len(sent))
        self.assertEqual(self.two.data, sent)
        self.until(lambda: not self.one.transport._queued)
        self.assertEqual((self.a.queuePairs, self.b.queuePairs), (1, 1))

    def test_restarted(self) -> None:
        """
        A process in the place of one that ended takes what is sent from then on.
        """
        self.one.transport.write(b"old", (TWO, 5000))
        self.until(lambda: self.two.got and not self.one.transport._queued)
        self.b.kill()
        self.processes.remove(self.b)
        c = self.process()
        two = c.listen(5000, TWO)
        self.one.transport.write(b"new", (TWO, 5000))
        self.until(lambda: two.got)
        self.assertEqual(two.data, [b"new"])

    def test_paused(self) -> None:
        """
        A receiver that reads nothing has the sender wait, longer than a message may wait for a receive;
        then everything comes once.
        """
        self.patch(limits, "RDS_RECEIVE_BUDGET", 1000)
        self.patch(queues, "RDS_RECEIVE_MOST", 2000)
        ports = [self.b.listen(port, TWO) for port in range(5001, 5010)]
        for port in ports:
            port.transport.pauseProducing()
        sent = [b"%d" % number * 500 for number in range(20)]
        for data in sent:
            for port in range(5001, 5010):
                self.one.transport.write(data, (TWO, port))
        self.until(lambda: any(session._pauses for session in self.b.medium.sessions.values()))
        for process in self.processes:
            process.reactor.advance(IWARP_NO_RECEIVE_SECONDS + 1)
        for port in ports:
            port.transport.resumeProducing()
        self.until(lambda: all(len(port.got) >= len(sent) for port in ports))
        self.assertEqual([port.data for port in ports], [sent] * len(ports))

    def test_atomics(self) -> None:
        """
        iWARP has no atomics: they are refused by name, and the connection stays.
        """
        memory = self.two.transport.registerMemory(8)
        self.one.transport.write(b"first", (TWO, 5000))
        self.until(lambda: self.two.got)
        session = self.session(self.a)
        for call in (self.one.transport.fetchAdd, self.one.transport.compareAndSwap):
            with self.assertRaisesRegex(RDSUnsupportedError, "no ATOMIC_"):
                call(
                    memory.cookie,
                    1,
                    *((2,) if call == self.one.transport.compareAndSwap else ()),
                    (TWO, 5000),
                )
        self.assertIs(self.session(self.a), session)
