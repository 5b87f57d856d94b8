"""
The child processes do what the other tests here build upon.
"""

from __future__ import annotations

import hashlib

from tests.processes.processes import ChildError, ProcessTestCase
from tests.processes.programs.wires import content


class ChildTests(ProcessTestCase):
    """
    Two children and one connection.
    """

    def test_talk(self) -> None:
        """
        Bytes go both ways, and an orderly close is told to both.
        """
        server, client = self.spawn(), self.spawn()
        wire = client.ask("connect", endpoint=self.listen(server))
        there = server.event("made")["wire"]
        client.ask("write", wire=wire, length=300_000, seed=1)
        answer = server.ask("received", wire=there, count=300_000)
        self.assertEqual(answer["sha256"], hashlib.sha256(content(1, 300_000)).hexdigest())
        server.ask("write", wire=there, length=10, seed=2)
        client.ask("received", wire=wire, count=10)
        client.ask("close", wire=wire)
        self.assertEqual(client.event("lost")["reason"], "ConnectionDone")
        self.assertEqual(server.event("lost")["reason"], "ConnectionDone")

    def test_abort(self) -> None:
        """
        An abort is a ConnectionAborted here and a ConnectionLost there.
        """
        server, client = self.spawn(), self.spawn()
        wire = client.ask("connect", endpoint=self.listen(server))
        server.event("made")
        client.ask("abort", wire=wire)
        self.assertEqual(client.event("lost")["reason"], "ConnectionAborted")
        self.assertEqual(server.event("lost")["reason"], "ConnectionLost")

    def test_error(self) -> None:
        """
        A command's exception comes back by name.
        """
        client = self.spawn()
        error = self.assertRaises(ChildError, client.ask, "received", wire=7, count=1)
        self.assertEqual(error.kind, "KeyError")

    def test_end(self) -> None:
        """
        A child whose input closes ends by itself, connections or not.
        """
        server, client = self.spawn(), self.spawn()
        client.ask("connect", endpoint=self.listen(server))
        client.end(5)
        server.event("lost")
        server.end(5)
