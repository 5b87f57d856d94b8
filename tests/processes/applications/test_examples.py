"""
The examples in Twisted's style, as programs: each side in a process of its own, on C{shm0}.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from hashlib import sha256
from threading import Timer
from typing import Any

from tests.examples.programs import EXAMPLES
from tests.processes.processes import ROOT, Child, ChildError, ProcessTestCase
from tests.processes.programs.nursery import Forked
from tests.processes.programs.wires import content
from tests.support.commands import programOf
from tests.support.waiting import HANG_SECONDS, waitUntil

#: A large value.
LENT_BYTES = 20_000_000


class Running:
    """
    A program that runs.

    @ivar process: its process.
    """

    def __init__(self, environment: dict[str, str], arguments: list[str]) -> None:
        """
        Start it; it is killed when its time is over.
        """
        self.process = Forked(
            [sys.executable, *arguments],
            cwd="/",
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._timer = Timer(HANG_SECONDS, self.process.kill)
        self._timer.start()
        self._ended = False

    def line(self) -> str:
        """
        @return: the next line that it says, or C{""} if it has ended.
        """
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def rest(self) -> tuple[str, int]:
        """
        Wait for its end.

        @return: all that it says until then, and its status.
        """
        if not self._ended:
            self._said, _ = self.process.communicate()
            self._timer.cancel()
            self._ended = True
        return self._said.rstrip("\n"), self.process.returncode

    def __repr__(self) -> str:
        """
        @return: what it said, for a test that fails.
        """
        return f"<{self.process.args!r}: {self.kill()!r}>"

    def kill(self) -> str:
        """
        C{kill -9}.

        @return: what it has said that was not looked at.
        """
        self.process.kill()
        return self.rest()[0]


class ExampleTestCase(ProcessTestCase):
    """
    Runs an example.

    @cvar example: its name.
    """

    example: str

    def begin(self, *arguments: str) -> Running:
        """
        @return: the example, running.
        """
        return self.python(str(EXAMPLES / f"{self.example}.py"), *arguments)

    def python(self, *arguments: str) -> Running:
        """
        @return: a program, running.
        """
        environment = {**os.environ, "TWISTED_IB_RUN_DIR": self.runDirectory, "PYTHONPATH": str(ROOT)}
        running = Running(environment, list(arguments))
        self.addCleanup(running.kill)
        return running

    def serve(self, endpoints: list[str], *arguments: str) -> tuple[Running, list[str]]:
        """
        Start a server.

        @param endpoints: their schemes.

        @return: the server, and the clients' endpoint strings.
        """
        strings = [f"{scheme}:0:interface=127.0.0.1" for scheme in endpoints]
        server = self.begin("serve", *strings, *arguments)
        ports = []
        for _ in endpoints:
            found = re.search(r" at port (\d+)$", server.line())
            if found is None:
                self.fail(server.kill())
            ports.append(found[1])
        return server, [f"{scheme}:127.0.0.1:{port}" for scheme, port in zip(endpoints, ports, strict=True)]

    def ask(self, *arguments: str) -> str:
        """
        @return: what a client says, which has to end well.
        """
        said, status = self.begin(*arguments).rest()
        self.assertEqual(status, 0, said)
        return said

    def inUse(self, server: Running) -> dict[str, int]:
        """
        @return: what the server's HCAs have in use, as C{ib-devinfo} says.
        """
        said, _ = self.python("-c", programOf("show.devinfo"), "--json").rest()
        devices: list[dict[str, Any]] = json.loads(said)
        found = [each["in_use"] for each in devices if each["pid"] == server.process.pid]
        # A device without a user is not watched by a reactor that does not poll, and answers nothing.
        found = [each for each in found if each is not None]
        if not found:
            return {"it does not answer": 1}
        return {kind: number for each in found for kind, number in each.items() if number}

    def assertFree(self, server: Running) -> None:
        """
        The server's HCAs come to hold nothing.
        """
        waitUntil(lambda: not self.inUse(server), lambda: None)


class CounterBoardTests(ExampleTestCase):
    """
    C{examples/counterboard.py}.
    """

    example = "counterboard"

    def test_count(self) -> None:
        """
        Clients in several processes count one row; nothing is lost, nothing counted twice.
        """
        server, [endpoint] = self.serve(["ib"], "--rows", "2", "--patience", "1000")
        clients = [self.begin("count", endpoint, "--row", "1", "--times", "500") for _ in range(3)]
        said = [client.rest() for client in clients]
        self.assertEqual([status for _, status in said], [0, 0, 0], said)
        self.assertIn("made it 1500; all: 0 1500", " ".join(text for text, _ in said))
        self.assertFree(server)
        self.assertEqual(server.kill(), "")

    def test_revoked(self) -> None:
        """
        A client that keeps a seat is sent away, with C{REM_ACCESS_ERR}; the one that waits
        for the seat gets it, and goes on.
        """
        server, [endpoint] = self.serve(["ib"], "--patience", "2")
        hog = self.begin("hog", endpoint)
        self.assertEqual(hog.line(), "client 1 has the seat")
        other = self.ask("count", endpoint, "--times", "500")
        self.assertRegex(other, r"^client 2 made it 500; all: 500 0")
        self.assertEqual(hog.rest(), ("client 1 is out: FETCH_ADD ended with REM_ACCESS_ERR (10)", 0))
        self.assertEqual(server.line(), "client 1 kept a seat and is revoked")
        self.assertFree(server)

    def test_killed(self) -> None:
        """
        The seat of a client that was killed is free at once.
        """
        _, [endpoint] = self.serve(["ib"], "--patience", "1000")
        hog = self.begin("hog", endpoint)
        self.assertEqual(hog.line(), "client 1 has the seat")
        hog.kill()
        self.assertRegex(self.ask("count", endpoint, "--times", "10"), r"^client 2 made it 10; all: 10 0")


class BulkAMPTestCase(ExampleTestCase):
    """
    C{examples/bulkamp.py}.
    """

    example = "bulkamp"
    program = "tests.processes.applications.lender.Lender"

    def send(self, megabytes: int) -> None:
        """
        Let data go there and back: by RDMA READ, over TCP after the connection has switched, and in pieces
        over TCP, where the client does not want that.
        """
        server, endpoints = self.serve(["ib", "tcp"])
        arguments = "send", *endpoints, "--megabytes", str(megabytes)
        said = [*self.ask(*arguments).split("\n"), *self.ask(*arguments, "--plain").split("\n")]
        for line, how in zip(said, ("by READ", "by READ", "by READ", "in pieces"), strict=True):
            self.assertRegex(line, rf"^{megabytes} MB there and back {how} in [0-9.]+ s: the same$")
        self.assertFree(server)
        self.assertEqual(server.kill(), "")


class BulkAMPTests(BulkAMPTestCase):
    """
    What its programs say, and its parts.
    """

    def test_send(self) -> None:
        """
        A few megabytes; 100 are sent in C{tests/soak}.
        """
        self.send(5)

    def lent(self, scheme: str) -> tuple[Child, Child]:
        """
        @return: a process that was lent a value, and has not fetched it yet, and who lent it.
        """
        keeper, lender = self.spawn(), self.spawn()
        port = keeper.ask("serve", endpoint=f"{scheme}:0:interface=127.0.0.1")
        lender.ask("lend", endpoint=f"{scheme}:127.0.0.1:{port}", length=LENT_BYTES)
        self.assertEqual(lender.ask("regions"), {"ib": 1, "tcp": 0}[scheme])
        return keeper, lender

    def test_fetch(self) -> None:
        """
        A value is what it was, and then it is given back.
        """
        for scheme in ("ib", "tcp"):
            keeper, lender = self.lent(scheme)
            self.assertEqual(keeper.ask("fetch"), sha256(content(1, LENT_BYTES)).hexdigest())
            self.settled(keeper, lender)

    def test_lenderKilled(self) -> None:
        """
        A client whose server does not answer and is then killed gets an error, and keeps nothing
        registered.
        """
        for scheme in ("ib", "tcp"):
            keeper, lender = self.lent(scheme)
            lender.freeze()
            keeper.begin("fetch")
            lender.kill()
            self.assertEqual(self.assertRaises(ChildError, keeper.answer).kind, "BulkError")
            self.settled(keeper)

    def test_keeperKilled(self) -> None:
        """
        Memory lent to a process that was killed is deregistered.
        """
        for scheme in ("ib", "tcp"):
            keeper, lender = self.lent(scheme)
            keeper.kill()
            self.settled(lender)

    def settled(self, *children: Child) -> None:
        """
        Wait until nothing is registered in these processes.
        """
        deadline = time.monotonic() + HANG_SECONDS
        for child in children:
            while child.ask("regions"):
                self.assertLess(time.monotonic(), deadline, "memory stays registered")


class KeyValueTests(ExampleTestCase):
    """
    C{examples/keyvalue.py}.
    """

    example = "keyvalue"
    program = "tests.processes.applications.shop.Keeper"

    def test_commands(self) -> None:
        """
        A value that one process stores another reads; the server's program answers no GET.
        """
        server, [endpoint] = self.serve(["ib"])
        for words, answer in (
            ("get colour", "None"),
            ("put colour blue", "None"),
            ("get colour", "b'blue'"),
            ("delete colour", "True"),
            ("get colour", "None"),
            ("stats", "3"),
        ):
            what, *more = words.split()
            self.assertEqual(self.ask(what, endpoint, *more), answer, words)
        self.assertFree(server)
        self.assertEqual(server.kill(), "")

    def race(self, slow: bool, slotBytes: int, valueBytes: int, times: int) -> int:
        """
        Let two readers race a writer; no value may be a mixture.

        @return: how many READs were torn.
        """
        server, *readers = [self.spawn() for _ in range(3)]
        port = server.ask("serve", slow=slow, slotBytes=slotBytes, valueBytes=valueBytes)
        for reader in readers:
            reader.begin("read", port=port, times=times, valueBytes=valueBytes)
        torn = 0
        for reader in readers:
            found = reader.answer()
            self.assertEqual(found["mixed"], 0)
            self.assertGreater(found["seen"], 1)
            torn += found["torn"]
        self.assertEqual(server.ask("rest"), 0)
        return torn

    def test_torn(self) -> None:
        """
        Readers that race a writer who writes a slot in two steps see that it is torn; they get
        old or new values only, and the server's program answers none of them.
        """
        torn = 0
        for _ in range(10):  # How many are torn is the scheduler's choice: race again until some are.
            torn += self.race(True, 4096, 4000, 300)
            if torn > 3:
                return
        self.fail(f"only {torn} READs were torn")

    def test_race(self) -> None:
        """
        The same with the example's own table, and values that take several records to READ.
        """
        self.race(False, 65536, 65000, 300)


class WebFileTests(ExampleTestCase):
    """
    C{examples/webfile.py}.
    """

    example = "webfile"

    def test_get(self) -> None:
        """
        A large file arrives as it is, from registered memory and over TCP; another process finds
        no memory registered afterwards.
        """
        folder = self.runDirectory + ".files"
        os.mkdir(folder)
        body = content(5, 50_000_001)
        with open(os.path.join(folder, "large"), "wb") as file:
            file.write(body)
        server, endpoints = self.serve(["sdp", "tcp"], "--folder", folder)
        for endpoint in endpoints:
            said = self.ask("get", endpoint, "--name", "large")
            self.assertRegex(said, rf"^200: 50000001 bytes in [0-9.]+ s, sha256 {sha256(body).hexdigest()}$")
        self.assertRegex(self.ask("get", endpoints[0], "--name", "none"), "^404: ")
        self.assertFree(server)
        self.assertEqual(server.kill(), "")
