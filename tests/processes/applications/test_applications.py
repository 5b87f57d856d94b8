"""
Unmodified Twisted applications between two processes.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from tests.processes.processes import SCHEME, Child, ProcessTestCase
from tests.processes.programs.wires import content


class WebTests(ProcessTestCase):
    """
    C{twisted.web}: files, WSGI and resources.
    """

    def start(self) -> tuple[Child, str]:
        """
        @return: a client, and the endpoint string of a server.
        """
        self.folder = Path(self.runDirectory + ".files")
        self.folder.mkdir()
        server = self.spawn(program="tests.processes.applications.webapps.WebServer")
        client = self.spawn(program="tests.processes.applications.webapps.WebClient")
        return client, self.listen(server, path=str(self.folder))

    def test_static(self) -> None:
        """
        Files of many sizes, and a part of one, arrive as they are.
        """
        client, endpoint = self.start()
        for length in (0, 1, 65536, 3_000_001):
            body = content(length, length)
            (self.folder / str(length)).write_bytes(body)
            answer = client.ask("fetch", endpoint=endpoint, path=f"/files/{length}")
            self.assertEqual(answer["sha256"], hashlib.sha256(body).hexdigest())
        part = client.ask("fetch", endpoint=endpoint, path="/files/65536", headers={"Range": "bytes=10-19"})
        self.assertEqual((part["status"], part["length"]), (206, 10))
        self.assertEqual(client.ask("fetch", endpoint=endpoint, path="/files/none")["status"], 404)
        client.ask("close")

    def test_wsgi(self) -> None:
        """
        A WSGI application, which runs in threads, gets the body and answers.
        """
        client, endpoint = self.start()
        answer = client.ask("fetch", endpoint=endpoint, path="/wsgi/a", length=500_000)
        digest = hashlib.sha256(bytes(500_000)).hexdigest()
        self.assertEqual(answer["line"], f"POST /a {digest}")
        self.assertEqual(answer["length"], 500_000 + len(answer["line"]) + 1)
        client.ask("close")

    def test_resource(self) -> None:
        """
        A resource answers in pieces and in later turns, and reads a body.
        """
        client, endpoint = self.start()
        answer = client.ask("fetch", endpoint=endpoint, path="/slow")
        self.assertEqual((answer["line"], answer["length"]), ("piece 3", 24))
        answer = client.ask("fetch", endpoint=endpoint, path="/slow", length=200_000)
        self.assertEqual(answer["line"], hashlib.sha256(bytes(200_000)).hexdigest())
        client.ask("close")


class TalkTests(ProcessTestCase):
    """
    AMP, Perspective Broker and a chat.
    """

    program = "tests.processes.applications.talkers.Talker"

    def test_amp(self) -> None:
        """
        AMP's calls, large values and errors.
        """
        server, client = self.spawn(), self.spawn()
        totals, lengths, error = client.ask("amp", endpoint=self.listen(server, kind="amp"))
        self.assertEqual(totals, [number + 2 for number in range(20)])
        self.assertEqual(lengths, [65000] * 20)
        self.assertEqual(error, "TooLarge")

    def test_perspectiveBroker(self) -> None:
        """
        Perspective Broker's calls, references and errors.
        """
        server, client = self.spawn(), self.spawn()
        answers = client.ask("pb", endpoint=self.listen(server, kind="pb"))
        self.assertEqual(answers, ["cba" * 1000, "HELLO!", "as asked"])

    def test_chat(self) -> None:
        """
        A chat of lines: everybody hears the others, and who leaves.
        """
        server = self.spawn()
        endpoint = self.listen(server, kind="chat")
        guests = {name: self.spawn() for name in ("ann", "bob", "eve")}
        for name, guest in guests.items():
            guest.ask("enter", endpoint=endpoint, name=name)
            guest.event("line", text=f"welcome {name}")
        guests["ann"].ask("say", text="hello")
        for name in ("bob", "eve"):
            guests[name].event("line", text="ann: hello")
        guests["bob"].kill()
        for name in ("ann", "eve"):
            guests[name].event("line", text="bob has gone")
        guests["eve"].ask("leave")
        guests["ann"].event("line", text="eve has gone")


class ShellTests(ProcessTestCase):
    """
    Conch.
    """

    program = "tests.processes.applications.shells.Shell"

    def test_echo(self) -> None:
        """
        An SSH session with a password and a command that echoes.
        """
        server, client = self.spawn(), self.spawn()
        self.assertTrue(client.ask("echo", endpoint=self.listen(server), length=200_000))


class OthersTests(ProcessTestCase):
    """
    Processes and threads beside a connection on which something is always
    under way, so that the reactor polls.
    """

    program = "tests.processes.programs.others.Busy"

    def busy(self) -> tuple[Child, int]:
        """
        @return: a child with a busy connection, and the connection's number.
        """
        server, client = self.spawn(), self.spawn()
        wire: int = client.ask("connect", endpoint=self.listen(server, echo=True), echo=True)
        client.ask("write", wire=wire, length=64)
        client.ask("received", wire=wire, count=6400)
        return client, wire

    def still(self, child: Child, wire: int) -> None:
        """
        The connection must be as busy as before.

        @param child: what L{busy} gave.
        @param wire: what L{busy} gave.
        """
        count = child.ask("received", wire=wire, count=0)["received"]
        child.ask("received", wire=wire, count=count + 6400)

    def test_spawnProcess(self) -> None:
        """
        C{spawnProcess}: input, output and exit status.
        """
        child, wire = self.busy()
        self.assertEqual(child.ask("spawn", length=300_000), [3, 300_000])
        self.still(child, wire)

    def test_fork(self) -> None:
        """
        multiprocessing with C{fork}.
        """
        child, wire = self.busy()
        self.assertEqual(child.ask("multiprocess", method="fork"), 42)
        self.still(child, wire)

    def test_spawn(self) -> None:
        """
        multiprocessing with C{spawn}.
        """
        child, wire = self.busy()
        self.assertEqual(child.ask("multiprocess", method="spawn"), 42)
        self.still(child, wire)

    def test_threads(self) -> None:
        """
        C{deferToThread}, and calls from there into the reactor's thread.
        """
        child, wire = self.busy()
        self.assertEqual(child.ask("threads", count=200), [number * number for number in range(200)])
        self.still(child, wire)

    def test_wrongThread(self) -> None:
        """
        A transport used from another thread says so, and goes on.
        """
        if SCHEME != "sdp":
            self.skipTest("TCP does not notice")
        child, wire = self.busy()
        for call in ("write", "loseConnection", "abortConnection"):
            self.assertEqual(child.ask("wrongThread", wire=wire, method=call), "WrongThreadError")
        self.still(child, wire)

    def test_forkedUse(self) -> None:
        """
        A transport used in a forked child says so there; here it goes on.
        """
        if SCHEME != "sdp":
            self.skipTest("TCP does not notice")
        child, wire = self.busy()
        self.assertEqual(child.ask("forked", wire=wire), "DeviceClosedError")
        self.still(child, wire)
