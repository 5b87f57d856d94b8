"""
Reliable datagrams, and streams over them, between processes over queue pairs: on C{shm0}, and on
C{roce0} at addresses of the loopback interface.
"""

from __future__ import annotations

from typing import Any

from tests.processes.processes import Child, ChildError, ProcessTestCase
from tests.support.ownaddress import ownAddress
from tests.support.waiting import PATIENCE

HOST = "127.0.0.1"


class MeshTestCase(ProcessTestCase):
    """
    Some processes.
    """

    program = "tests.processes.rds.meshed.Meshed"

    def open(self, *ports: int, reactor: str = "ib") -> Child:
        """
        @return: A process with sockets.
        """
        child = self.spawn(reactor)
        for port in ports:
            child.ask("listen", interface=HOST, port=port, device="shm0")
        return child


class DatagramTests(MeshTestCase):
    """
    Datagrams.
    """

    def heard(self, child: Child, port: int, sender: int, count: int, digest: Any) -> None:
        """
        All that was sent comes, once and in order.
        """
        expected = {f"{HOST}:{sender}": [count, digest]}
        self.assertEqual(child.ask("heard", port=port, count=count), expected)

    def test_bothWays(self) -> None:
        """
        Thousands of datagrams, on each reactor.
        """
        for reactors in (("ib", "ib"), ("epoll", "ib"), ("epoll", "epoll")):
            one, two = (
                self.open(port, reactor=reactor) for port, reactor in zip((4000, 5000), reactors, strict=True)
            )
            one.begin("write", port=4000, host=HOST, to=5000, count=3000)
            two.begin("write", port=5000, host=HOST, to=4000, count=3000)
            first, second = one.answer(), two.answer()
            self.heard(two, 5000, 4000, 3000, first)
            self.heard(one, 4000, 5000, 3000, second)
            self.assertEqual((one.ask("queuePairs"), two.ask("queuePairs")), (1, 1))
            for child in (one, two):
                child.end()

    def test_killed(self) -> None:
        """
        Datagrams for a killed process that it had not received reach its successor.
        """
        one, two = self.open(4000), self.open(5000)
        digest = one.ask("write", port=4000, host=HOST, to=5000, count=100)
        self.heard(two, 5000, 4000, 100, digest)
        two.kill()
        one.ask("write", port=4000, host=HOST, to=5000, count=100, first=100)
        again = self.open(5000)
        found = again.ask("heard", port=5000, count=100)
        self.assertGreaterEqual(found[f"{HOST}:4000"][0], 100)

    def test_mesh(self) -> None:
        """
        Of 64 sockets in 8 processes each writes to all others: queue pairs grow with processes.
        """
        count = 20
        ports = {index: [4000 + index * 10 + n for n in range(8)] for index in range(8)}
        children = {index: self.open(*mine) for index, mine in ports.items()}
        for index, child in children.items():
            theirs = [port for other, some in ports.items() if other != index for port in some]
            child.begin("mesh", mine=ports[index], theirs=theirs, count=count)
        sent: dict[int, dict[str, str]] = {}
        for index, child in children.items():
            theirs = [port for other, some in ports.items() if other != index for port in some]
            digests = iter(child.answer())
            for port in ports[index]:
                for to in theirs:
                    sent.setdefault(to, {})[f"{HOST}:{port}"] = next(digests)
        for index, child in children.items():
            for port in ports[index]:
                expected = {sender: [count, digest] for sender, digest in sent[port].items()}
                self.assertEqual(child.ask("heard", port=port, count=56 * count), expected)
        self.assertEqual([child.ask("queuePairs") for child in children.values()], [7] * 8)


class StreamTests(MeshTestCase):
    """
    Streams.
    """

    def test_echo(self) -> None:
        """
        Many bytes there and back, for several clients of one process at once, on each reactor.
        """
        for reactors in (("ib", "ib"), ("epoll", "ib"), ("epoll", "epoll")):
            server, client = (self.spawn(reactor) for reactor in reactors)
            port = server.ask("serve", endpoint="rds:0")
            found = client.ask("ask", endpoint=f"rds:{HOST}:{port}", count=5_000_000, clients=3)
            self.assertEqual(found, [True] * 3)
            server.end()
            client.end()

    def test_killed(self) -> None:
        """
        A client sees that its server was killed, long before it would ask whether it lives.
        """
        server, client = self.spawn("ib"), self.spawn("ib")
        port = server.ask("serve", endpoint="rds:0")
        client.ask("hold", endpoint=f"rds:{HOST}:{port}")
        server.kill()
        self.assertEqual(client.ask("lost", 8 * PATIENCE), "ConnectionLost")

    def test_nobody(self) -> None:
        """
        Nobody is there.
        """
        client = self.spawn("ib")
        failed = self.assertRaises(ChildError, client.ask, "hold", 5, endpoint=f"rds:{HOST}:9")
        self.assertIn("nobody listens", str(failed))


class RoCETests(MeshTestCase):
    """
    Linux's form, over packets.
    """

    def test_datagrams(self) -> None:
        """
        Thousands of datagrams, both ways at once.
        """
        hosts, ports = (ownAddress(1), ownAddress(2)), (4000, 5000)
        children = [self.spawn("ib"), self.spawn("epoll")]
        for child, host, port in zip(children, hosts, ports, strict=True):
            child.ask("listen", interface=host, port=port, device="roce0")
        for mine, other in ((0, 1), (1, 0)):
            children[mine].begin("write", port=ports[mine], host=hosts[other], to=ports[other], count=3000)
        digests = [child.answer() for child in children]
        for mine, other in ((0, 1), (1, 0)):
            expected = {f"{hosts[other]}:{ports[other]}": [3000, digests[other]]}
            self.assertEqual(children[mine].ask("heard", port=ports[mine], count=3000), expected)

    def test_streams(self) -> None:
        """
        Streams.
        """
        server, client = self.spawn("ib"), self.spawn("ib")
        port = server.ask("serve", endpoint=f"rds:0:interface={ownAddress(1)}:device=roce0")
        where = f"rds:{ownAddress(1)}:{port}:device=roce0:bindAddress={ownAddress(2)}"
        found = client.ask("ask", endpoint=where, count=2_000_000, clients=3)
        self.assertEqual(found, [True] * 3)
