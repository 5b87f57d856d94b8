"""
Tests for C{ib-ss}, in parts, and run as a user runs it: as a process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.support.commands import PATH, CommandTestCase, begun, programOf, stop
from tests.support.waiting import HANG_SECONDS, readUntil, waitUntil
from twisted_ib import limits
from twisted_ib.errors import NoListenerError, ResourceLimitError, RunDirectoryError
from twisted_ib.hca.base.socketrows import COLUMNS
from twisted_ib.hca.host.query import SocketsAnswer
from twisted_ib.tools.show import ss
from twisted_ib.tools.show.processes import UNKNOWN
from twisted_ib.tools.show.sockettext import cut, order, reasons, socketsOf, table, total

PROGRAM = programOf("show.ss")
SERVER = PATH + (
    "sys.argv[0] = '/somewhere/server'; "
    "from twisted_ib.tools.demo.server import main; sys.exit(main(['', *map('echo='.__add__, sys.argv[1:])]))"
)
#: Connects to the endpoints of its command line.
CLIENT = PATH + (
    "sys.argv[0] = '/somewhere/client'\n"
    "from twisted_ib.reactor.ibreactor import install\n"
    "install()\n"
    "from twisted.internet import reactor\n"
    "from twisted.internet.endpoints import clientFromString, connectProtocol\n"
    "from twisted.internet.protocol import Protocol\n"
    "left = sys.argv[1:]\n"
    "class Quiet(Protocol):\n"
    "    def connectionMade(self):\n"
    "        left.pop()\n"
    "        if not left: print('ready', flush=True)\n"
    "for text in sys.argv[1:]:\n"
    "    connectProtocol(clientFromString(reactor, text), Quiet())\n"
    "reactor.run()\n"
)

FIELDS = {
    "pid",
    "program",
    "kind",
    "provider",
    "device",
    "local",
    "remote",
    "state",
    "rule",
    "fallback",
    "credits",
    "in_flight",
    "retransmits",
    "messages_sent",
    "messages_received",
    "bytes_sent",
    "bytes_received",
    "round_trip",
    "times",
}

ROW = ["connection", "sdp", "shm0", "127.0.0.1:80", "127.0.0.1:9", "ESTABLISHED", 64, 0, 0]
ROW += [5, 6, None, None, 0.00025, "default", None, 1000.0, 1000.25, 1000.5]


def page(rows: Any, **others: Any) -> dict[str, Any]:
    """
    @return: a page as an HCA makes it, or as one that is mistaken does.
    """
    return {"pid": 7, "program": "twistd", "columns": list(COLUMNS), "rows": rows, "more": False, **others}


def entries(*rows: Any, pid: int = 8, **others: Any) -> list[dict[str, Any]]:
    """
    @return: what is made of rows.
    """
    return socketsOf(
        SocketsAnswer(pid, [page(list(rows), **others)], True), lambda number: f"program of {number}"
    )


def row(**changes: Any) -> list[Any]:
    """
    @return: a row with other values.
    """
    return [changes.get(name, value) for name, value in zip(COLUMNS, ROW, strict=True)]


class SocketsTests(SynchronousTestCase):
    """
    The validation of answers.
    """

    def test_row(self) -> None:
        """
        A row becomes an object, whose process is the one that the kernel knows.
        """
        self.assertEqual(
            entries(ROW),
            [
                {
                    "pid": 8,
                    "program": "twistd",
                    "kind": "connection",
                    "provider": "sdp",
                    "device": "shm0",
                    "local": "127.0.0.1:80",
                    "remote": "127.0.0.1:9",
                    "state": "ESTABLISHED",
                    "rule": "default",
                    "fallback": None,
                    "credits": 64,
                    "in_flight": 0,
                    "retransmits": 0,
                    "messages_sent": 5,
                    "messages_received": 6,
                    "bytes_sent": None,
                    "bytes_received": None,
                    "round_trip": 0.00025,
                    "times": {"asked": 1000.0, "decided": 1000.25, "connected": 1000.5},
                }
            ],
        )

    def test_process(self) -> None:
        """
        Of another process namespace only the process itself knows its number; a name that cannot be is
        looked up.
        """
        [entry] = entries(ROW, pid=0)
        self.assertEqual(entry["pid"], 7)
        for pid in ("x", -1, True, 1.5, [], 1 << 70):
            [entry] = socketsOf(SocketsAnswer(0, [page([ROW], pid=pid)]), lambda number: "no")
            self.assertIsNone(entry["pid"])
        for program in (None, "", 5, "x" * (limits.PROGRAM_BYTES + 1), ["x"]):
            [entry] = entries(ROW, program=program)
            self.assertEqual(entry["program"], "program of 8")

    def test_nonsense(self) -> None:
        """
        A row that cannot be is left out, and the others are not; figures and times that cannot be are
        unknown.
        """
        odd: tuple[Any, ...] = (None, 5, 1.5, True, [], {}, "x" * 5000, [[]])
        for name in ("kind", "provider", "state", "rule"):
            for value in odd:
                self.assertEqual(len(entries(ROW, row(**{name: value}), ROW)), 2, (name, value))
        self.assertEqual(entries(row(kind="listening")), [])
        for name in ("device", "local", "remote", "fallback"):
            for value in odd[1:]:
                self.assertEqual(len(entries(row(**{name: value}))), 0, (name, value))
            self.assertIsNone(entries(row(**{name: None}))[0][name])
        for name in ("credits", "in_flight", "retransmits", "messages_sent", "bytes_received"):
            for value in (-1, 1.5, True, "x", [], 1 << 70, float("nan")):
                self.assertIsNone(entries(row(**{name: value}))[0][name], (name, value))
        for name in ("asked", "decided", "connected"):
            for value in (-1, True, "x", [], 1e300, float("nan"), float("inf")):
                self.assertIsNone(entries(row(**{name: value}))[0]["times"][name], (name, value))

    def test_pages(self) -> None:
        """
        A page whose columns are not a list of names, or a row that has not as many, is left out; columns
        that nobody knows, and another order, do not matter.
        """
        for columns in (None, 5, "x", {}, [1], [*COLUMNS, None], [[]]):
            self.assertEqual(entries(ROW, columns=columns), [])
        for short in ([], ROW[1:], [*ROW, 1], None, "x" * len(ROW), {}):
            self.assertEqual(len(entries(short, ROW)), 1)
        [entry] = entries([*ROW[::-1], "new"], columns=[*COLUMNS[::-1], "unheard"])
        self.assertEqual(entry, entries(ROW)[0])
        [entry] = entries(ROW[:-3] + ROW[-2:], columns=[*COLUMNS[:-3], *COLUMNS[-2:]])
        self.assertIsNone(entry["times"]["asked"])
        self.assertEqual(entries(ROW[1:], columns=list(COLUMNS[1:])), [])

    def test_order(self) -> None:
        """
        By process, listeners first, then by address.
        """
        rows = [row(local="b:1"), row(local="a:1"), row(kind="listener", local=None, remote=None)]
        found = [*entries(*rows), *entries(*rows, pid=3)]
        found.sort(key=order)
        self.assertEqual(
            [(each["pid"], each["local"]) for each in found],
            [(3, None), (3, "a:1"), (3, "b:1"), (8, None), (8, "a:1"), (8, "b:1")],
        )


class TextTests(SynchronousTestCase):
    """
    The output for people.
    """

    def test_table(self) -> None:
        """
        Each column is as wide as what is in it; numbers stand at the right.
        """
        found = entries(row(kind="listener", remote=None, credits=None, state="LISTEN"), ROW)
        titles, listener, connection = table(found)
        bare = [line.split() for line in table(found, header=False)]
        self.assertEqual(bare, [listener.split(), connection.split()])
        self.assertEqual(
            [titles, listener, connection],
            [
                "Program  PID  Kind        Via  Device  State        Local         Remote       "
                "Credits  InFlight  Retrans  Rule",
                "twistd     8  listener    sdp  shm0    LISTEN       127.0.0.1:80  -            "
                "      -         0        0  default",
                "twistd     8  connection  sdp  shm0    ESTABLISHED  127.0.0.1:80  127.0.0.1:9  "
                "     64         0        0  default",
            ],
        )
        self.assertEqual(len(table([])), 1)

    def test_options(self) -> None:
        """
        The letters that people type with ss(8) are taken together: all are shown, also with C{-l}, and
        C{-i} says how old a connection is, which is never less than nothing, and what it has carried.
        """
        options = ss.parseArguments(["-tlnpai"])
        kinds = ({"kind": kind, "provider": "tcp"} for kind in ("listener", "connection"))
        self.assertEqual([options.test(each) for each in kinds], [True, True])
        later = time.time() + 1000
        found = entries(row(connected=1.0), row(connected=later), row(connected=None))
        lines = [line.strip() for line in table(found, header=False, info=True)]
        ages = [int(line.split()[1]) for line in lines if line.startswith("age ")]
        self.assertEqual((len(lines), len(ages)), (6, 2))
        self.assertEqual(lines[-1], "messages 5 sent, 6 received; round trip 0.250 ms")
        [line] = table(entries(row(bytes_sent=7, bytes_received=8, connected=None)), header=False, info=True)[
            1:
        ]
        self.assertIn("; bytes 7 sent, 8 received; ", line)
        self.assertGreater(ages[0], 1000000000)
        self.assertEqual(ages[1], 0)

    def test_folded(self) -> None:
        """
        A column in which nothing stands is left out.
        """
        found = entries(row(kind="listener", remote=None, credits=None, in_flight=None, retransmits=None))
        self.assertEqual(
            table(found)[0].split(), ["Program", "PID", "Kind", "Via", "Device", "State", "Local", "Rule"]
        )

    def test_processes(self) -> None:
        """
        By process: a line names it, and its columns are left out.
        """
        found = [*entries(ROW, ROW), *entries(ROW, pid=9)]
        lines = table(found, byProcess=True)
        self.assertEqual(lines[0].split()[0], "Kind")
        self.assertEqual((lines[1], lines[4]), ("twistd, process 8:", "twistd, process 9:"))
        self.assertEqual(len(lines), 6)

    def test_total(self) -> None:
        """
        How many, by provider.
        """
        self.assertEqual(total([]), "Total: 0 listeners, 0 connections, 0 processes")
        found = entries(row(kind="listener", remote=None), ROW, row(provider="tcp"), ROW)
        self.assertEqual(total(found), "Total: 1 listener (sdp 1), 3 connections (sdp 2, tcp 1), 1 process")

    def test_why(self) -> None:
        """
        Why, and when.
        """
        [entry] = entries(row(rule="/etc/ib.conf:3", provider="tcp", device=None, fallback="nobody"))
        rule, fallback, times = reasons(entry)
        self.assertEqual(rule, "tcp: by the rule at /etc/ib.conf:3")
        self.assertEqual(fallback, "not over SDP: nobody")
        self.assertRegex(
            times,
            r"^asked 1970-01-01 \S+\.000, decided 1970-01-01 \S+\.250, "
            r"connected 1970-01-01 \S+\.500, took 500\.0 ms$",
        )
        self.assertEqual(table([entry], True)[2], "    tcp: by the rule at /etc/ib.conf:3")
        unknown = {"asked": None, "decided": None, "connected": None}
        [entry] = entries(row(**unknown))
        self.assertEqual(reasons(entry), ["sdp on shm0: no rule is about it"])
        [entry] = entries(row(rule="explicit", **unknown))
        self.assertEqual(reasons(entry), ["sdp on shm0: asked for by name, without the switch"])
        [entry] = entries(row(rule=UNKNOWN, provider="tcp", device=None, **unknown))
        self.assertEqual(reasons(entry), ["tcp: the process is busy, and has not said why before"])
        now = time.time()
        [entry] = entries(row(asked=now, decided=None, connected=None))
        self.assertNotIn("-", reasons(entry)[1])

    def test_terminal(self) -> None:
        """
        Escape sequences do not reach a terminal.
        """
        bad = "\x1b[2J\n"
        names = ("provider", "device", "local", "remote", "state", "rule", "fallback")
        text = table(entries(row(**dict.fromkeys(names, bad)), program=bad), True)
        self.assertNotIn("\x1b", "".join(text))
        self.assertNotIn("\n", "".join(text))

    def test_cut(self) -> None:
        """
        A picture is no larger than its terminal.
        """
        lines = ["x" * 100] * 50
        self.assertEqual(cut(lines, 80, 25), ["x" * 79] * 23 + ["... and 27 lines more"])
        self.assertEqual(cut(lines[:24], 80, 25), ["x" * 79] * 24)
        self.assertEqual(cut(lines, 1, 1), ["x", "."])
        self.assertEqual(cut([], 80, 25), [])


class Output:
    """
    A standard output.
    """

    def __init__(self, terminal: bool) -> None:
        """
        @param terminal: whether it is one.
        """
        self.terminal = terminal
        self.text = ""

    def isatty(self) -> bool:
        """
        @return: whether it is a terminal.
        """
        return self.terminal

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        """
        Nothing waits.
        """


class CommandTests(SynchronousTestCase):
    """
    The command, without processes.
    """

    def output(self, terminal: bool = False) -> Output:
        """
        @return: what standard output is from now on.
        """
        found = Output(terminal)
        self.patch(sys, "stdout", found)
        return found

    def test_told(self) -> None:
        """
        A process that is dead, or dies meanwhile, has no rows; one that is silent or busy is reported as
        such.
        """
        answers: list[Any] = [
            SocketsAnswer(5, [page([ROW])], True),
            SocketsAnswer(5, [page([ROW])], False, True),
            SocketsAnswer(6),
        ]
        answers += [ResourceLimitError("many"), NoListenerError("dead")]

        class Fake:
            """
            A L{Search}.
            """

            def hcas(self) -> list[Any]:
                """
                One for each answer.
                """
                return list(answers)

            def close(self) -> None:
                """
                Nothing.
                """

        def ask(search: Any, entry: Any, page: float, all_: float) -> SocketsAnswer:
            """
            Answer.
            """
            if isinstance(entry, Exception):
                raise entry
            told: SocketsAnswer = entry
            return told

        self.patch(ss, "Search", Fake)
        self.patch(ss, "askSockets", ask)
        self.patch(ss, "pageOf", lambda entry: None)
        found, notes = ss.sockets()
        self.assertEqual([entry["pid"] for entry in found], [5])
        self.assertEqual(len(notes), 2)
        self.assertEqual(notes[0], "a process does not answer")
        self.assertIn("process 6 (", notes[1])

    def test_standing(self) -> None:
        """
        Of a process that does not answer its page is shown, with the kernel's sockets of TCP if they can be
        known, and the reasons of all its rows; the reason of all others is no socket.
        """
        tcp = row(provider="tcp", device=None, local="1.2.3.4:5", rule="/a:3")
        ofKernel = row(provider="tcp", device=None, local="1.2.3.4:6")
        asked: list[Any] = []

        def kernel(pid: int, reasons: Any) -> Any:
            """
            Another one.
            """
            asked.append((pid, [each["rule"] for each in reasons]))
            return [ofKernel]

        entry: Any = None
        every = row(provider="tcp", device=None, local="*:0", remote="*:0", rule="/a:9")
        rows = [ROW, tcp, row(provider="tcp", local=None), every]
        self.patch(ss, "pageOf", lambda entry: page(rows))
        self.patch(ss, "tcpRows", kernel)
        found = ss.standing(entry, 7)
        self.assertEqual([each["local"] for each in found.sockets], ["127.0.0.1:80", "1.2.3.4:6"])
        self.assertEqual(asked, [(7, ["default", "/a:3", "/a:9"])])
        self.assertIn("does not answer in time", found.note)
        self.patch(ss, "tcpRows", lambda pid, reasons: None)
        for pid in (7, 0):
            found = ss.standing(entry, pid)
            self.assertEqual([each["local"] for each in found.sockets], ["127.0.0.1:80", "1.2.3.4:5", None])

    def test_filters(self) -> None:
        """
        Options and a filter leave only what all of them want; of several states or processes one is enough.
        """
        found = [
            *entries(row(kind="listener", remote=None, state="LISTEN"), ROW, row(provider="tcp")),
            *entries(row(remote="10.0.0.1:99", state="CLOSE_WAIT"), pid=9),
        ]
        self.patch(ss, "sockets", lambda: (found, []))
        for arguments, count in (
            ([], 4),
            (["-l"], 1),
            (["-t"], 1),
            (["--pid", "9"], 1),
            (["--pid", "9", "--pid", "8"], 4),
            (["--pid", "7"], 0),
            (["--state", "established"], 2),
            (["--state", "synchronized"], 3),
            (["--state", "established", "--state", "close-wait"], 3),
            (["--state", "established", "-t"], 1),
            (["dport", "=", ":99"], 1),
            (["sport = :80", "-t"], 1),
            (["-t", "sport", "=", ":80", "and", "--state", "established", "dport = :9"], 1),
        ):
            output = self.output()
            self.assertEqual(ss.main(["--json", *arguments]), 0)
            self.assertEqual(len(json.loads(output.text)), count, arguments)
        output = self.output()
        ss.main(["-s", "-l"])
        self.assertEqual(output.text, "Total: 1 listener (sdp 1), 0 connections, 1 process\n")
        output = self.output()
        ss.main(["-H"])
        self.assertEqual(output.text.count("\n"), 4)
        output = self.output()
        ss.main(["-p"])
        self.assertIn("twistd, process 9:\n", output.text)

    def test_watch(self) -> None:
        """
        It looks until Ctrl-C, which is no error; on a terminal each picture is written over the last.
        """
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            """
            Three pictures.
            """
            pauses.append(seconds)
            if len(pauses) % 3 == 0:
                raise KeyboardInterrupt

        self.patch(ss, "sockets", lambda: (entries(ROW), ["process 6 does not answer"]))
        output = self.output()
        ss.watch(ss.parseArguments(["--watch"]), pause)
        self.assertEqual(pauses, [1.0] * 3)
        self.assertEqual(output.text.count("Program"), 3)
        self.assertIn("does not answer", output.text)
        self.assertNotIn("\x1b", output.text)
        output = self.output()
        ss.watch(ss.parseArguments(["--watch", "0.5", "--json"]), pause)
        self.assertEqual(pauses[3:], [0.5] * 3)
        self.assertEqual([json.loads(line) for line in output.text.splitlines()], [entries(ROW)] * 3)
        output = self.output(True)
        self.patch(ss.shutil, "get_terminal_size", lambda: os.terminal_size((40, 6)))
        ss.watch(ss.parseArguments(["--watch", "2", "--why"]), pause)
        pictures = output.text.split("\x1b[H")[1:]
        self.assertEqual(len(pictures), 3)
        for each in pictures:
            self.assertEqual(each.count("\n"), 5)
            self.assertTrue(each.endswith("\x1b[J"))

    def test_errors(self) -> None:
        """
        An error is one line and a status.
        """
        complaints = Output(False)
        self.patch(sys, "stderr", complaints)
        self.output()

        def fail() -> Any:
            raise RunDirectoryError("/x will not do")

        self.patch(ss, "sockets", fail)
        for arguments in ([], ["--watch"], ["--json"]):
            complaints.text = ""
            self.assertEqual(ss.main(arguments), 1)
            self.assertEqual(complaints.text, "ib-ss: /x will not do\n")
        for arguments in (
            ["--watch", "0"],
            ["--watch", "x"],
            ["--watch", "nan"],
            ["--nosuch"],
            ["x"],
            ["--pid", "x"],
        ):
            complaints.text = ""
            self.assertRaises(SystemExit, ss.main, arguments)
            self.assertEqual(complaints.text.count("\n"), 1, complaints.text)
            self.assertTrue(complaints.text.startswith("ib-ss: "))

    def test_interrupted(self) -> None:
        """
        Ctrl-C while it looks once is a status.
        """

        def interrupt() -> Any:
            """
            Now.
            """
            raise KeyboardInterrupt

        self.patch(ss, "sockets", interrupt)
        self.output()
        self.assertEqual(ss.main([]), 130)
        self.assertEqual(ss.main(["--watch"]), 0)


class ProcessTests(CommandTestCase):
    """
    Servers, clients, and who looks at them.
    """

    program = PROGRAM

    def setUp(self) -> None:
        """
        No rules but those of a test.
        """
        super().setUp()
        self.rules = self.directory.parent / "rules"
        self.environment["XDG_CONFIG_HOME"] = str(self.directory)
        self.environment.pop("TWISTED_IB_CONFIG", None)

    def said(self, *arguments: str) -> str:
        """
        Repeat the command until each process has answered in time, which on a busy machine one may not.

        @return: its output.
        """
        results: list[subprocess.CompletedProcess[str]] = []

        def answered() -> bool:
            results[:] = [self.ended(*arguments)]
            return "does not answer in time" not in results[0].stderr

        waitUntil(answered)
        self.assertEqual((results[0].returncode, results[0].stderr), (0, ""))
        return results[0].stdout

    def list(self) -> list[dict[str, Any]]:
        """
        @return: what it prints as JSON.
        """
        found: list[dict[str, Any]] = json.loads(self.said("--json"))
        for entry in found:
            self.assertEqual(set(entry), FIELDS)
        return found

    def until(self, pid: int, count: int, tells: bool = False) -> list[dict[str, Any]]:
        """
        Look until a process shows so many.

        @param tells: also what only the process itself can say of its connections, while it is not busy.
        @return: them.
        """

        def read() -> list[dict[str, Any]]:
            return [entry for entry in self.list() if entry["pid"] == pid]

        def told(found: list[dict[str, Any]]) -> bool:
            return len(found) == count and not (tells and any(each["in_flight"] is None for each in found))

        return readUntil(read, told, 0.1)

    def test_processes(self) -> None:
        """
        A server on both and on C{sdp:}, a client of each; the rows go with their processes, also after
        kill -9.
        """
        server = self.start(SERVER, "tcp:0:interface=127.0.0.1", "sdp:0:interface=127.0.0.1")
        listeners = self.until(server.pid, 3)
        self.assertEqual({entry["program"] for entry in listeners}, {"server"})
        self.assertEqual(
            sorted((entry["kind"], entry["provider"], entry["rule"]) for entry in listeners),
            [("listener", "sdp", "default"), ("listener", "sdp", "explicit"), ("listener", "tcp", "default")],
        )
        [tcp] = [entry["local"] for entry in listeners if entry["provider"] == "tcp"]
        [sdp] = [entry["local"] for entry in listeners if entry["rule"] == "explicit"]
        self.assertEqual(sorted(entry["local"] for entry in listeners), sorted([tcp, tcp, sdp]))
        client = self.start(CLIENT, f"tcp:{tcp}", f"sdp:{sdp}")
        found = self.until(client.pid, 2, tells=True)
        self.assertEqual({entry["program"] for entry in found}, {"client"})
        self.assertEqual(
            sorted((each["kind"], each["provider"], each["remote"], each["rule"]) for each in found),
            sorted([("connection", "sdp", tcp, "default"), ("connection", "sdp", sdp, "explicit")]),
        )
        for entry in found:
            self.assertEqual((entry["state"], entry["device"]), ("ESTABLISHED", "shm0"))
            self.assertIsNone(entry["fallback"])
            self.assertEqual((entry["in_flight"], entry["retransmits"]), (0, 0))
            self.assertGreater(entry["credits"], 0)
        ends = [each for each in self.until(server.pid, 5) if each["kind"] == "connection"]
        self.assertEqual(
            {(each["local"], each["remote"]) for each in ends},
            {(each["remote"], each["local"]) for each in found},
        )
        why = self.said("--why")
        self.assertIn("no rule is about it", why)
        self.assertIn("asked for by name", why)
        client.kill()
        client.wait(HANG_SECONDS)
        self.until(server.pid, 3)
        self.assertEqual({entry["pid"] for entry in self.list()}, {server.pid})
        server.kill()
        server.wait(HANG_SECONDS)
        self.assertEqual(self.list(), [])

    def test_tcpOnly(self) -> None:
        """
        A process that has nothing but TCP is seen too, with the rule that says so.
        """
        self.rules.write_text("use tcp listen * *:*\nuse tcp connect * *:*\n")
        self.environment["TWISTED_IB_CONFIG"] = str(self.rules)
        server = self.start(SERVER, "tcp:0:interface=127.0.0.1")
        [listener] = self.until(server.pid, 1)
        self.assertEqual(
            [listener[name] for name in ("kind", "provider", "device", "state", "rule", "fallback")],
            ["listener", "tcp", None, "LISTEN", f"{self.rules}:1", None],
        )
        client = self.start(CLIENT, f"tcp:{listener['local']}")
        [entry] = self.until(client.pid, 1)
        self.assertEqual(
            [entry[name] for name in ("kind", "provider", "remote", "rule")],
            ["connection", "tcp", listener["local"], f"{self.rules}:2"],
        )
        client.kill()
        client.wait(HANG_SECONDS)
        self.until(server.pid, 1)

    def test_silent(self) -> None:
        """
        A process that does not answer holds nobody up, and is named: what it has is shown without figures.
        """
        server = self.start(SERVER, "sdp:0:interface=127.0.0.1", "tcp:0:interface=127.0.0.1")
        before = self.until(server.pid, 3)
        client = self.start(CLIENT, *[f"sdp:{row['local']}" for row in before if row["rule"] == "explicit"])
        self.until(server.pid, 4)
        stop(server.pid)
        self.addCleanup(server.send_signal, signal.SIGCONT)
        # Its TCP sockets are the kernel's, and /proc/net/tcp may leave one out while others come and go.
        found = self.until(server.pid, 4)
        kinds = sorted((row["kind"], row["provider"], row["rule"], row["credits"]) for row in found)
        self.assertEqual(
            kinds,
            [
                ("connection", "sdp", "explicit", None),
                ("listener", "sdp", "default", None),
                ("listener", "sdp", "explicit", None),
                ("listener", "tcp", "default", None),
            ],
        )
        self.assertEqual({row["program"] for row in found}, {"server"})
        self.assertEqual(
            [row["local"] for row in found if row["kind"] == "listener"], [r["local"] for r in before]
        )
        result = self.ended()
        self.assertEqual(result.returncode, 0)
        self.assertIn(f"ib-ss: process {server.pid} (", result.stderr)
        client.kill()

    def test_interrupted(self) -> None:
        """
        C{--watch} ends with Ctrl-C without a word.
        """
        watching = begun(self, self.environment, PROGRAM, "--watch", "0.1")
        assert watching.stdout is not None
        for _ in range(4):
            watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        _, complaints = watching.communicate(timeout=HANG_SECONDS)
        self.assertEqual((watching.returncode, complaints), (0, ""))

    def test_pipe(self) -> None:
        """
        It ends when nobody reads it any more.
        """
        watching = begun(self, self.environment, PROGRAM, "--watch", "0.1")
        assert watching.stdout is not None and watching.stderr is not None
        watching.stdout.readline()
        watching.stdout.close()
        self.assertEqual(watching.wait(HANG_SECONDS), 1)
        self.assertEqual(watching.stderr.read(), "")
