"""
Tests for L{twisted_ib.tools.run.summary}: what the end of a run says.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import socket
from signal import SIGTERM
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.support.commands import refusal
from tests.support.waiting import HANG_SECONDS
from tests.tools.run.case import RunTestCase
from twisted_ib import limits
from twisted_ib.switch import reason
from twisted_ib.switch.reason import LISTENED, Fallback, Reason, carried
from twisted_ib.tools.run.run import parseArguments
from twisted_ib.tools.run.summary import sentence, summary

#: Two connections by the switch, one that avoids it, and one each that is accepted.
_BLOCKING = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
kept = []
for isDirect in (False, False, True):
    client = socket.socket()
    if isDirect:
        client.useTCP()
    client.connect(listener.getsockname())
    kept += client, listener.accept()[0]
"""
_AIO = """
import asyncio, socket
async def main():
    accepted = asyncio.Queue()
    server = await asyncio.start_server(lambda *pair: accepted.put_nowait(pair), "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    kept = []
    for isOwn in (False, False, True):
        options = {"host": address[0], "port": address[1]}
        if isOwn:
            own = socket.socket()
            own.setblocking(False)
            own.bind(("127.0.0.1", 0))
            await asyncio.get_running_loop().sock_connect(own, address)
            options = {"sock": own}
        kept += await asyncio.open_connection(**options), await accepted.get()
    for _, writer in kept:
        writer.close()
    server.close()
asyncio.run(main())
"""
_IB = """
from twisted.internet import reactor
from twisted.internet.protocol import ClientFactory, Factory, Protocol
from twisted_ib.reactor import direct
ends = []
class End(Protocol):
    def connectionMade(self):
        ends.append(self)
        if len(ends) == 6:
            reactor.stop()
class Client(ClientFactory):
    protocol = End
port = reactor.listenTCP(0, Factory.forProtocol(End), interface="127.0.0.1")
for which in (reactor, reactor, direct(reactor)):
    which.connectTCP("127.0.0.1", port.getHost().port, Client())
reactor.run()
"""
#: Each program, and why the client that avoids the switch does not have SDP.
_PROGRAMS = {"blocking": (_BLOCKING, "explicit"), "aio": (_AIO, "socket"), "ib": (_IB, "explicit")}


class CountTests(SynchronousTestCase):
    """
    Tests for L{carried}.
    """

    def setUp(self) -> None:
        """
        Nothing was counted.
        """
        self.outcomes: dict[tuple[str, str, str], int] = {}
        self.patch(reason, "outcomes", self.outcomes)

    def test_kinds(self) -> None:
        """
        A connection over TCP is counted by what has decided: a fallback, the program, a rule, or its client.
        """
        for why in (
            Reason("default", "both", fallback=Fallback("remote", "10.0.0.1 is not an address of this host")),
            Reason("explicit", "tcp"),
            Reason("/rules:3", "tcp"),
            Reason("default", "both"),
            None,
        ):
            carried("tcp", why)
        carried("sdp", Reason("default", "both"))
        carried("sdp", Reason("/rules:4", "sdp"))
        self.assertEqual(
            self.outcomes,
            {
                ("tcp", "remote", ""): 1,
                ("tcp", "explicit", ""): 1,
                ("tcp", "rule", "/rules:3"): 1,
                ("tcp", "client", ""): 1,
                ("tcp", "socket", ""): 1,
                ("sdp", "", ""): 2,
            },
        )

    def test_bound(self) -> None:
        """
        So many reasons are kept apart; connections with others are counted together.
        """
        for line in range(limits.OUTCOMES + 2):
            carried("tcp", Reason(f"/rules:{line}", "tcp"))
        carried("tcp", Reason("/rules:0", "tcp"))
        self.assertEqual(len(self.outcomes), limits.OUTCOMES + 1)
        self.assertEqual(self.outcomes["tcp", "rule", "/rules:0"], 2)
        self.assertEqual(self.outcomes["tcp", "others", ""], 2)


class TextTests(SynchronousTestCase):
    """
    Tests for L{summary} and L{sentence}.
    """

    def said(self, **counts: int) -> str:
        """
        @return: the line for so many connections over SDP, and over TCP for each kind of reason.
        """
        return sentence(
            summary({("sdp" if kind == "sdp" else "tcp", kind, "f:1"): n for kind, n in counts.items()})
        )

    def test_sentence(self) -> None:
        """
        The most frequent reason is the first, and a kind that has no words is its own.
        """
        self.assertEqual(self.said(), "there were no connections")
        self.assertEqual(self.said(sdp=1), "1 of 1 connection went over SDP")
        self.assertEqual(
            self.said(remote=2), "0 of 2 connections went over SDP; 2 over TCP: 2 to other hosts"
        )
        self.assertEqual(
            self.said(sdp=37, novel=1, rule=2),
            "37 of 40 connections went over SDP; 3 over TCP: 2 by rule f:1, 1 novel",
        )

    def test_arguments(self) -> None:
        """
        JSON is of the summary alone.
        """
        options, _ = parseArguments(["--summary", "--json", "x.py", "--json"])
        self.assertEqual((options.summary, options.json, options.arguments), (True, True, ["--json"]))
        self.assertIn("say --summary or --check, too", refusal(self, parseArguments, "--json", "x.py"))


class SummaryTests(RunTestCase):
    """
    Programs of each kind.
    """

    def found(self, complaints: str) -> dict[str, Any]:
        """
        @return: what the last line of standard error has: how many connections were carried, and the reasons.
        """
        found = json.loads(complaints.splitlines()[-1])
        found["reasons"] = {each["kind"]: each["connections"] for each in found["reasons"]}
        return {name: value for name, value in found.items() if name not in ("pid", "notes")}

    def test_loops(self) -> None:
        """
        On each loop connections are counted on both sides, also those that never come to the switch.
        """
        processes = {
            loop: self.running("--reactor", loop, "--summary", "--json", "-c", program)
            for loop, (program, _) in _PROGRAMS.items()
        }
        for loop, process in processes.items():
            _, complaints = process.communicate(timeout=HANG_SECONDS)
            self.assertEqual(process.returncode, 0, complaints)
            reasons = {"client": 1, _PROGRAMS[loop][1]: 1}
            self.assertEqual(
                self.found(complaints), {"connections": 6, "sdp": 4, "tcp": 2, "reasons": reasons}, loop
            )

    def test_rules(self) -> None:
        """
        Rules that leave all to TCP are the reason of each connection.
        """
        (self.folder / "tcp.conf").write_text("use tcp connect * *:*\nuse tcp listen * *:*\n")
        options = ("--config", "tcp.conf", "--summary", "--json")
        processes = {
            loop: self.running("--reactor", loop, *options, "-c", program)
            for loop, (program, _) in _PROGRAMS.items()
        }
        for loop, process in processes.items():
            _, complaints = process.communicate(timeout=HANG_SECONDS)
            self.assertEqual(process.returncode, 0, complaints)
            found = json.loads(complaints.splitlines()[-1])
            texts = {each["text"]: each["connections"] for each in found["reasons"]}
            place = f"by rule {self.folder}/tcp.conf"
            self.assertEqual((texts[f"{place}:1"], texts[f"{place}:2"]), (2, 3), loop)
            self.assertEqual((found["connections"], found["sdp"]), (6, 0), loop)

    def test_text(self) -> None:
        """
        The line is the last, whatever the program does at its end; without connections it says so.
        """
        ending = "import atexit, sys; atexit.register(lambda: print('end', file=sys.stderr))\n"
        text = self.running("-q", "--summary", "-c", ending + _BLOCKING)
        none = self.running("-q", "--summary", "-c", "pass")
        self.assertEqual(
            text.communicate(timeout=HANG_SECONDS)[1],
            "end\nib-run: 4 of 6 connections went over SDP; 2 over TCP: 1 from clients that came over TCP, "
            "1 asked for TCP by name\n",
        )
        self.assertEqual(none.communicate(timeout=HANG_SECONDS)[1], "ib-run: there were no connections\n")

    def test_given(self) -> None:
        """
        A port that another program has told to listen (LISTEN_FDS) has no SDP; nobody has asked for TCP,
        as the port and its connections say.
        """
        program = (
            "import socket, sys\n"
            "listener = socket.socket(fileno=int(sys.argv[1]))\n"
            "made = listener.accept()[0]\n"
            "from twisted_ib.switch.reason import kept\n"
            "print(*(kept[each].fallback for each in (listener, made)), sep='; ')\n"
        )
        with socket.create_server(("127.0.0.1", 0)) as listener:
            number = listener.fileno()
            words = ("-q", "--summary", "-c", program, str(number))
            process = self.running(*words, pass_fds=[number])
            socket.create_connection(listener.getsockname()).close()
        text = str(LISTENED)
        self.assertEqual(
            process.communicate(timeout=HANG_SECONDS),
            (
                f"{text}; {text}\n",
                "ib-run: 0 of 1 connection went over SDP; 1 over TCP: 1 to ports without SDP\n",
            ),
        )

    def test_forked(self) -> None:
        """
        A process that the program forks has a line of its own, with its own connections only.
        """
        forking = f"{_BLOCKING}\nimport os, sys\nif os.fork():\n    os.wait()\n"
        process = self.running("-q", "--summary", "-c", forking)
        child, parent = process.communicate(timeout=HANG_SECONDS)[1].splitlines()
        self.assertRegex(child, r"^ib-run \d+: there were no connections$")
        self.assertRegex(parent, r"^ib-run: 4 of 6 ")

    def test_exit(self) -> None:
        """
        A child that ends without the interpreter's end, as those that multiprocessing forks do, has its line
        if it had connections, and the status that it wanted.
        """
        forking = """
import os
for program, status in (BLOCKING, 3), ("", 4):
    if not os.fork():
        exec(program)
        os._exit(status=status)
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
        process = self.running("-q", "--summary", "-c", f"BLOCKING = {_BLOCKING!r}{forking}")
        output, complaints = process.communicate(timeout=HANG_SECONDS)
        self.assertEqual(output, "3\n4\n", complaints)
        self.assertRegex(complaints, r"\Aib-run \d+: 4 of 6 [^\n]*\nib-run: there were no connections\n\Z")

    def test_signal(self) -> None:
        """
        A program that ends itself by the signal that has stopped it, as C{twistd} and uvicorn do, has its
        line, once; a signal that is handled, or another process's, is no end.
        """
        handled = """
import os, signal
signal.signal(signal.SIGTERM, lambda *_: print("handled"))
os.kill(os.getpid(), signal.SIGTERM)
os.kill(os.getppid(), 0)
os.kill(os.getpid(), signal.SIGCONT)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
"""
        for end in "os.kill(os.getpid(), signal.SIGTERM)", "signal.raise_signal(signal.SIGTERM)":
            process = self.running("-q", "--summary", "-c", _BLOCKING + handled + end)
            output, complaints = process.communicate(timeout=HANG_SECONDS)
            self.assertEqual((output, process.returncode), ("handled\n", -SIGTERM), complaints)
            self.assertRegex(complaints, r"\Aib-run: 4 of 6 connections went over SDP; [^\n]*\n\Z")

    def test_terminal(self) -> None:
        """
        On a terminal it is said without being asked, if there were connections, and not with C{-q}.
        """
        expected = {
            ("-c", _BLOCKING): 1,
            ("-q", "-c", _BLOCKING): 0,
            ("--reactor", "blocking", "-c", "pass"): 0,
        }
        for words, lines in expected.items():
            mine, its = pty.openpty()
            process = self.started("-m", "twisted_ib.tools.run", *words, stderr=its)
            os.close(its)
            process.communicate(timeout=HANG_SECONDS)
            text = b""
            # EIO: nobody has the other end any more (Linux tty_io.c).
            with contextlib.suppress(OSError):
                while more := os.read(mine, 4096):
                    text += more
            os.close(mine)
            self.assertEqual(text.count(b"went over SDP"), lines, (words, text))
