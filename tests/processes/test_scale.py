"""
Many connections, many after each other, much data.

The sizes here are for every day, on C{ib}; C{tests/soak} runs the same with the large ones, and these on a
reactor that knows nothing of HCAs.
"""

from __future__ import annotations

from typing import Any

from tests.processes.processes import SCHEME, Child, ProcessTestCase
from tests.processes.programs.wires import CHUNK_BYTES
from tests.support.waiting import HANG_SECONDS

#: The most that may happen while one of 1,000 echoes is under way beside a bulk sender:
#: turns of the client's reactor, echoes of all connections, bytes of the bulk.
MOST_TURNS = 256
MOST_ECHOES = 8000
MOST_BYTES = 16 << 20

#: The most that a process may have resident while it sends and receives streams of any length, and by
#: how much it may grow then.
MOST_RESIDENT, MOST_GROWTH = 200 << 20, 32 << 20


class ScaleTestCase(ProcessTestCase):
    """
    An echo server and a client.
    """

    program = "tests.processes.programs.crowd.Crowd"

    def pair(self) -> tuple[Child, Child, str]:
        """
        @return: server, client, and the endpoint string.
        """
        server, client = self.spawn(), self.spawn()
        return server, client, self.listen(server, echo=True)

    def cycle(self, warmUp: int, count: int) -> int:
        """
        Connect and close often, and compare what both sides hold.

        @param warmUp: cycles before the first look.
        @param count: cycles between the two looks.

        @return: the growth of the side that grew more, in bytes.
        """
        server, client, endpoint = self.pair()
        client.ask("cycle", 10 * HANG_SECONDS, endpoint=endpoint, count=warmUp)
        # The client first: its device must look for what the server waits for.
        before = {child: child.ask("usage") for child in (client, server)}
        client.ask("cycle", 10 * HANG_SECONDS, endpoint=endpoint, count=count)
        growth = []
        for child, usage in before.items():
            self.assertSettles(child, usage)
            growth.append(child.ask("usage")["resident"] - usage["resident"])
        return max(growth)

    def pausingReader(self, chunks: int, seconds: float) -> tuple[int, dict[str, Any]]:
        """
        Stream to a reader that pauses after the first byte.

        @param chunks: how many chunks of L{CHUNK_BYTES}.
        @param seconds: the sender must be seen to stand still for so long.

        @return: the growth of the sender while the reader paused, in bytes, and
            what the reader got.
        """
        server, client = self.spawn(), self.spawn()
        endpoint = self.listen(server)
        wire = client.ask("connect", endpoint=endpoint)
        before = client.ask("usage")["resident"]
        server.ask("pause", wire=1)
        client.ask("stream", wire=wire, count=chunks)
        left = client.ask("stuck", 2 * HANG_SECONDS, wire=wire, still=seconds)
        growth = client.ask("usage")["resident"] - before
        self.assertGreater(left, 0)
        server.ask("resume", wire=1)
        return growth, server.ask("received", 2 * HANG_SECONDS, wire=1, count=chunks * CHUNK_BYTES)


class ConnectionsTests(ScaleTestCase):
    """
    How many connections there are changes nothing.
    """

    def test_thousand(self) -> None:
        """
        1,000 connections at the same time carry 64 KiB each way.
        """
        _server, client, endpoint = self.pair()
        ends = client.ask("crowd", 2 * HANG_SECONDS, endpoint=endpoint, count=1000, length=65536)
        self.assertEqual(ends, ["ConnectionDone"])

    def test_cycles(self) -> None:
        """
        Connecting and closing leaves nothing behind.
        """
        self.cycle(100, 300)


class BackPressureTests(ScaleTestCase):
    """
    A reader that does not read.
    """

    def test_pausingReader(self) -> None:
        """
        The sender holds little of what a pausing reader has not taken, and
        everything arrives in the end.
        """
        growth, got = self.pausingReader(1024, 0.1)
        self.assertEqual(got["received"], 1024 * CHUNK_BYTES)
        self.assertLess(growth, 8 << 20)


class FairnessTests(ScaleTestCase):
    """
    1,000 echoing connections and one that sends as much as it can.
    """

    def beside(self, sender: Child, receiver: Child, wire: int, client: Child) -> None:
        """
        Stream while the crowd echoes: no echo may wait long.

        @param sender: sends the stream.
        @param receiver: receives it.
        @param wire: the stream's connection at the sender.
        @param client: has the echoing connections.
        """
        chunks = 512
        sender.ask("stream", wire=wire, count=chunks)
        receiver.ask("received", 2 * HANG_SECONDS, wire=1, count=chunks * CHUNK_BYTES)
        tally = client.ask("tally")
        self.assertGreater(tally["fewest"], 1, tally)
        self.assertLess(tally["turns"], MOST_TURNS, tally)
        self.assertLess(tally["echoes"], MOST_ECHOES, tally)
        self.assertLess(tally["bulk"], MOST_BYTES, tally)

    def test_bulkFromClient(self) -> None:
        """
        The bulk travels with the requests.
        """
        server, client, endpoint = self.pair()
        sink = self.listen(server)
        wire = client.ask("connect", endpoint=sink)
        client.ask("repeat", endpoint=endpoint, count=1000)
        self.beside(client, server, wire, client)

    def test_bulkFromServer(self) -> None:
        """
        The bulk travels with the echoes.
        """
        server, client, endpoint = self.pair()
        sink = self.listen(server)
        client.ask("connect", endpoint=sink)
        client.ask("repeat", endpoint=endpoint, count=1000)
        self.beside(server, client, 1, client)


class HaulTestCase(ProcessTestCase):
    """
    Two processes that send each other long streams, all hashed.

    @ivar lengths: bytes that the client, and the server, is to send on each connection.
    @ivar resident: bytes that server and client had resident at the beginning.
    """

    program = "tests.processes.programs.bulk.Haulage"

    def begin(
        self, count: int, there: int, back: int, pauses: bool = False, shut: bool = False
    ) -> tuple[Child, Child]:
        """
        Make connections, which send.

        @param count: how many connections, at the same time.
        @param there: bytes that the client sends on each.
        @param back: bytes that the server sends on each.
        @param pauses: readers and writers pause at moments of their own.
        @param shut: the server does not read until it is told to.

        @return: server and client.
        """
        server, client = self.spawn(), self.spawn()
        self.lengths = there, back
        port = server.ask(
            "listen", endpoint=f"{SCHEME}:0:interface=127.0.0.1:backlog=1000",
            seed=0, send=back, take=there, pauses=pauses,
        )  # fmt: skip
        self.resident = [child.ask("watch") for child in (server, client)]
        if shut:
            server.ask("shut")
        client.ask(
            "connect", endpoint=f"{SCHEME}:127.0.0.1:{port}", count=count,
            seed=count, send=there, take=back, pauses=pauses,
        )  # fmt: skip
        return server, client

    def end(self, server: Child, client: Child, count: int, seconds: float) -> None:
        """
        Wait until all has come, and compare.

        @param seconds: how long it may take.
        """
        here = client.ask("hauled", seconds)
        other = server.ask("hauled", seconds)
        self.assertEqual({(sent[0], taken[0]) for sent, taken in here}, {self.lengths})
        self.assertEqual(len({sent[1] for sent, _ in here}), count)  # All different.
        self.assertEqual(sorted(here), sorted([taken, sent] for sent, taken in other))

    def haulInBounds(self, there: int, back: int, seconds: float = HANG_SECONDS) -> None:
        """
        One connection, and neither process becomes large.
        """
        pair = self.begin(1, there, back)
        self.end(*pair, 1, seconds)
        for child, before in zip(pair, self.resident, strict=True):
            peak = child.ask("peak")
            self.assertLess(peak, MOST_RESIDENT)
            self.assertLess(peak - before, MOST_GROWTH)

    def haulWithPauses(self, count: int, each: int, seconds: float = HANG_SECONDS) -> None:
        """
        Many connections at once, whose readers and writers pause.
        """
        pair = self.begin(count, each, each, True)
        self.end(*pair, count, seconds)
        for child in pair:
            reads, writes = child.ask("pauses")
            self.assertGreater(reads, count)
            self.assertGreater(writes, count // 2)

    def haulToShut(self, count: int, each: int, seconds: float = HANG_SECONDS) -> None:
        """
        Many connections at once, none of whose readers reads until all writers stand still.
        """
        pair = server, client = self.begin(count, each, 0, shut=True)
        self.assertLess(client.ask("stuck", seconds), count * each)
        server.ask("open")
        self.end(*pair, count, seconds)


class HaulTests(HaulTestCase):
    """
    Streams of some MiB.
    """

    def test_oneWay(self) -> None:
        """
        64 MiB from the client.
        """
        self.haulInBounds(64 << 20, 0)

    def test_bothWays(self) -> None:
        """
        64 MiB each way at the same time.
        """
        self.haulInBounds(64 << 20, 64 << 20)

    def test_pauses(self) -> None:
        """
        20 connections of 1 MiB each way.
        """
        self.haulWithPauses(20, 1 << 20)

    def test_shut(self) -> None:
        """
        10 connections of 8 MiB to readers that begin late.
        """
        self.haulToShut(10, 8 << 20)
