"""
C{kill -9} of one process: the other is told at once, and nothing is left.
"""

from __future__ import annotations

import hashlib
from typing import Any

from tests.processes.killing import DEATH_SECONDS, KillTestCase, StoreTestCase, addStoreTests
from tests.processes.processes import SCHEME, ChildError
from tests.processes.programs.wires import CHUNK_BYTES, content
from tests.support.waiting import HANG_SECONDS


class RoleTests(KillTestCase):
    """
    The survivor is a server, the victim a client.
    """

    def start(self) -> None:
        """
        Make the connection.
        """
        self.survivor, self.victim = self.spawn(), self.spawn()
        self.endpoint = self.listen(self.survivor)
        self.usage = self.settled(self.survivor)
        self.theirs: int = self.victim.ask("connect", endpoint=self.endpoint)
        self.mine: int = self.survivor.event("made")["wire"]
        self.listening = self.survivor

    def die(self, **details: object) -> dict[str, Any]:
        """
        Kill the victim; the survivor must be told, hold nothing, and work.

        @param details: values that its event must have.

        @return: the event.
        """
        self.victim.kill()
        event = self.survivor.event("lost", DEATH_SECONDS, wire=self.mine, **details)
        self.over()
        return event

    def over(self) -> None:
        """
        The survivor must hold nothing, and work.
        """
        self.assertSettles(self.survivor, self.usage)
        self.survivor.ask("ends", limit=0.0)
        self.again()

    def again(self) -> None:
        """
        Make a new connection.
        """
        other = self.spawn()
        self.assertWorks(other, self.survivor, self.endpoint)

    def test_idle(self) -> None:
        """
        Nothing is under way: an end in order, as the kernel gives TCP.
        """
        self.start()
        self.die(reason="ConnectionDone")

    def test_unreadByVictim(self) -> None:
        """
        The survivor has sent what the victim has not read, and more than there
        is room for.
        """
        self.start()
        self.victim.ask("pause", wire=self.theirs)
        self.survivor.ask("stream", wire=self.mine, count=100)
        self.die(reason="ConnectionLost")

    def test_unreadBySurvivor(self) -> None:
        """
        The victim has sent what the survivor does not read.
        """
        self.start()
        self.survivor.ask("pause", wire=self.mine)
        self.victim.ask("stream", wire=self.theirs, count=100)
        self.die(reason="ConnectionLost")

    def test_sending(self) -> None:
        """
        The victim is sending; all that was published arrives in order, and if that is not all that it
        wrote, the end is none in order.
        """
        self.start()
        self.victim.ask("stream", wire=self.theirs, count=1_000_000)
        self.survivor.ask("received", wire=self.mine, count=20 * CHUNK_BYTES)
        event = self.die()
        # It dies with bytes left in its own memory, or between two writes of its turn, when all has left.
        self.assertIn(event["reason"], ("ConnectionLost", "ConnectionDone"))
        if event["reason"] == "ConnectionDone":
            self.assertEqual(event["received"] % CHUNK_BYTES, 0)
        got = event["received"]
        whole, rest = divmod(got, CHUNK_BYTES)
        chunk = content(0, CHUNK_BYTES)
        digest = hashlib.sha256(chunk * whole + chunk[:rest])
        self.assertEqual(event["sha256"], digest.hexdigest())

    def test_receiving(self) -> None:
        """
        The victim is receiving.
        """
        self.start()
        self.survivor.ask("stream", wire=self.mine, count=1_000_000)
        self.victim.ask("received", wire=self.theirs, count=20 * CHUNK_BYTES)
        self.die(reason="ConnectionLost")

    def test_closed(self) -> None:
        """
        The victim had closed in an orderly way before it died.
        """
        self.start()
        self.victim.ask("close", wire=self.theirs)
        self.victim.event("lost")
        self.die(reason="ConnectionDone")

    def test_published(self) -> None:
        """
        Everything that the victim had published before it died is received.
        """
        self.start()
        self.survivor.freeze()
        self.victim.ask("write", wire=self.theirs, length=100_000)
        self.victim.ask("usage")  # A later turn: the write has left.
        self.victim.kill()
        self.survivor.thaw()
        event = self.survivor.event("lost", wire=self.mine, reason="ConnectionDone")
        self.assertEqual(event["sha256"], hashlib.sha256(content(0, 100_000)).hexdigest())
        self.over()

    def test_publishedClose(self) -> None:
        """
        So is an orderly close.
        """
        self.start()
        self.survivor.freeze()
        self.victim.ask("write", wire=self.theirs, length=100_000)
        self.victim.ask("close", wire=self.theirs)
        self.victim.event("lost", wire=self.theirs)
        self.victim.kill()
        self.survivor.thaw()
        event = self.survivor.event("lost", wire=self.mine, reason="ConnectionDone")
        self.assertEqual(event["sha256"], hashlib.sha256(content(0, 100_000)).hexdigest())
        self.over()

    def test_manyConnections(self) -> None:
        """
        All connections to the victim are lost, the one to somebody else stays.
        """
        self.start()
        other = self.spawn()
        stays = self.survivor.ask("connect", endpoint=self.listen(other))
        more = 50
        for _ in range(more):
            self.connectOnce()
            self.listening.event("made")
        self.victim.kill()
        for _ in range(more + 1):
            self.survivor.event("lost", DEATH_SECONDS, reason="ConnectionDone")
        self.survivor.ask("write", wire=stays, length=1000)
        other.ask("received", wire=1, count=1000)
        self.survivor.ask("close", wire=stays)
        other.event("lost", reason="ConnectionDone")
        other.end()
        self.survivor.ask("ends", limit=HANG_SECONDS)
        self.over()

    def connectOnce(self) -> None:
        """
        One more connection between victim and survivor.
        """
        self.victim.ask("connect", endpoint=self.endpoint)

    def test_forkedChild(self) -> None:
        """
        A forked child of the victim still holds all its descriptors.
        """
        self.start()
        self.victim.ask("hold")
        self.die(reason="ConnectionDone")


class ServerDiesTests(RoleTests):
    """
    The survivor is a client, the victim a server.
    """

    def start(self) -> None:
        """
        Make the connection.
        """
        self.survivor, self.victim = self.spawn(), self.spawn()
        self.endpoint = self.listen(self.victim)
        self.usage = self.settled(self.survivor)
        self.mine = self.survivor.ask("connect", endpoint=self.endpoint)
        self.theirs = self.victim.event("made")["wire"]
        self.listening = self.victim

    def connectOnce(self) -> None:
        """
        One more connection between victim and survivor.
        """
        self.survivor.ask("connect", endpoint=self.endpoint)

    def again(self) -> None:
        """
        Nobody listens any more; then somebody takes the same port.
        """
        error = self.assertRaises(ChildError, self.survivor.ask, "connect", endpoint=self.endpoint)
        self.assertEqual(error.kind, "ConnectionRefusedError")
        other = self.spawn()
        port = self.endpoint.rpartition(":")[2]
        other.ask("listen", endpoint=f"{SCHEME}:{port}:interface=127.0.0.1")
        self.survivor.ask("ends", limit=0.0)
        self.assertWorks(self.survivor, other, self.endpoint)


class ConnectTests(KillTestCase):
    """
    A server that does not get round to answering.
    """

    def test_serverDiesWhileConnecting(self) -> None:
        """
        A connect under way fails when the server dies, not at its time-out.
        """
        server, client = self.spawn(), self.spawn()
        endpoint = self.listen(server)
        server.freeze()
        client.begin("connect", endpoint=endpoint)
        self.assertRaises(ChildError, client.answer, 0.1)
        server.kill()
        error = self.assertRaises(ChildError, client.answer, DEATH_SECONDS)
        self.assertIn("Connect", error.kind)

    def test_clientDiesWhileConnecting(self) -> None:
        """
        A client that dies before the server has looked leaves nothing.
        """
        server, client = self.spawn(), self.spawn()
        endpoint = self.listen(server)
        usage = self.settled(server)
        server.freeze()
        client.begin("connect", endpoint=endpoint)
        self.assertRaises(ChildError, client.answer, 0.1)
        client.kill()
        server.thaw()
        self.assertSettles(server, usage)
        self.assertWorks(self.spawn(), server, endpoint)


class StoreTests(StoreTestCase):
    """
    Death at some stores of each phase; C{tests/soak} takes every one.
    """


addStoreTests(StoreTests, range(1, 400, 7), "test_dies")
