"""
Faults found in a review, with real reactors in processes: an application's error at the end of its
connection affects no other connection, and a reactor that stops closes its connections in order.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from tests.processes.killing import DEATH_SECONDS
from tests.processes.processes import Child, ProcessTestCase
from tests.processes.programs.wires import content


class MistakeTests(ProcessTestCase):
    """
    C{connectionLost} and C{clientConnectionLost} raise.
    """

    def end(self, reactor: str, how: str) -> None:
        """
        A child has mistaken connections and a healthy one to a peer, and a
        port with a connection of a third child; the peer goes.
        """
        survivor = self.spawn(reactor, "tests.processes.programs.mistaken.Mistaken")
        peer, third = self.spawn(), self.spawn()
        endpoint, own = self.listen(peer), self.listen(survivor)
        mine = third.ask("connect", endpoint=own)
        theirs = survivor.event("made")["wire"]
        wires = [survivor.ask("connectMistaken", endpoint=endpoint) for _ in range(2)]
        wires += [survivor.ask("connectMistakenFactory", endpoint=endpoint)]
        wires += [survivor.ask("connect", endpoint=endpoint)]
        if how == "ConnectionLost":
            peer.kill()
        else:
            for _ in wires:
                peer.ask("close", wire=peer.event("made")["wire"])
        for wire in wires:
            survivor.event("lost", DEATH_SECONDS, wire=wire, reason=how)
        self.assertTalk(third, mine, survivor, theirs)
        other = self.spawn()
        self.assertTalk(other, other.ask("connect", endpoint=own), survivor, survivor.event("made")["wire"])
        log = Path(survivor.log).read_text()
        self.assertEqual(log.count("ValueError: an application's mistake"), 2, log)
        self.assertEqual(log.count("ValueError: a factory's mistake"), 1, log)

    def assertTalk(self, one: Child, wire: int, other: Child, there: int) -> None:
        """
        Bytes must go through a connection.
        """
        one.ask("write", wire=wire, length=1000, seed=3)
        answer = other.ask("received", wire=there, count=1000)
        self.assertEqual(answer["sha256"], hashlib.sha256(content(3, 1000)).hexdigest())

    def test_peerDies(self) -> None:
        """
        The peer is killed: each mistake is logged once, and the port and the
        other connections go on.
        """
        for reactor in ("ib", "epoll", "select"):
            self.end(reactor, "ConnectionDone")

    def test_peerCloses(self) -> None:
        """
        The peer closes: the same.
        """
        for reactor in ("ib", "epoll", "select"):
            self.end(reactor, "ConnectionDone")


class StopTests(ProcessTestCase):
    """
    C{reactor.stop} with open connections.
    """

    def test_stop(self) -> None:
        """
        On every reactor the peer of either side gets what was written, and a
        ConnectionDone.
        """
        for reactor in ("ib", "epoll", "poll", "select"):
            for listens in (False, True):
                stopping, peer = self.spawn(reactor), self.spawn()
                server, client = (stopping, peer) if listens else (peer, stopping)
                wires = {client: client.ask("connect", endpoint=self.listen(server))}
                wires[server] = server.event("made")["wire"]
                stopping.ask("write", wire=wires[stopping], length=1000)
                stopping.end()
                event = peer.event("lost", DEATH_SECONDS)
                case = (reactor, listens)
                self.assertEqual((event["reason"], event["received"]), ("ConnectionDone", 1000), case)
