"""
Tests for L{twisted_ib.tools.run}: programs run as Python runs them, and connect over SDP.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import zipfile
from types import SimpleNamespace

from twisted.trial.unittest import SynchronousTestCase

from tests.support.commands import programOf, refusal
from tests.support.waiting import HANG_SECONDS
from tests.tools.run.case import RunTestCase
from twisted_ib.tools.run import run
from twisted_ib.tools.run.program import Code, Module, NotPython, StartError, find, interpreterOf
from twisted_ib.tools.run.run import parseArguments

#: Says all that a program sees of how it was started.
_PROGRAM = """
import json, os, sys
main = sys.modules["__main__"]
names = "__name__", "__file__", "__package__", "__cached__"
own = {name: str(value) for name, value in vars(main).items() if name in names}
spec = None if __spec__ is None else __spec__.name
loader = type(__loader__).__name__ if not isinstance(__loader__, type) else __loader__.__name__
json.dump([sys.argv, sys.path[0], own, spec, loader, sys.executable], sys.stdout)
sys.stdout.flush()
sys.exit(7)
"""
_SPAWN = """
import multiprocessing, sys
def child(): sys.exit(5)
if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=child)
    process.start()
    process.join()
    print(process.exitcode)
"""
#: Prints which sides of the switch are imported, and whether the collector of garbage leaves them alone.
_LOADED = """
import gc, os, sys
from twisted.internet import reactor
if not os.fork():
    sides = ("connecting", "listening")
    loaded = [side for side in sides if "twisted_ib.switch." + side in sys.modules]
    print(*loaded, gc.get_freeze_count() > 0, flush=True)
    os._exit(0)
os.wait()
"""
#: An error of a socket, and Ctrl+C while one is waited for.
_FAILS = """
import selectors, signal, socket, sys
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
if sys.argv[1] == "read":
    client.setblocking(False)
    client.recv(1)
selector = selectors.PollSelector()
selector.register(client, selectors.EVENT_READ)
signal.signal(signal.SIGALRM, signal.default_int_handler)
signal.setitimer(signal.ITIMER_REAL, 0.05)
selector.select()
"""
#: Prints the loop that each kind of program gets.
_LOOPS = {
    "from twisted.internet import reactor; print(type(reactor).__name__)": "IBReactor",
    "from twisted.internet import epollreactor as r; r.install(); "
    "from twisted.internet import reactor; print(type(reactor).__name__)": "IBReactor",
    "from twisted.internet import asyncioreactor as r; r.install(); from twisted.internet import reactor; "
    "print(type(reactor).__name__, type(reactor) is r.AsyncioSelectorReactor)": "IBAsyncioReactor True",
    "import asyncio\nasync def main(): print(type(asyncio.get_running_loop()).__module__)\n"
    "asyncio.run(main())": "twisted_ib.aio.loop",
    "import socket; s = socket.socket(); s.listen(); print(type(s).__module__)": "twisted_ib.blocking.socket",
}


#: An object of a frame that has failed.
_LEFT = """
import logging
class Last:
    def __del__(self):
        logging.getLogger().removeHandler(self)
        print("last")
def main():
    last = Last()
    raise KeyboardInterrupt
main()
"""


class AsPythonTests(RunTestCase):
    """
    A program sees what it sees under Python.
    """

    def test_all(self) -> None:
        """
        Scripts, links to them, folders, archives, modules, packages and C{-c}: arguments, the first entry of
        C{sys.path}, C{__main__} and the exit status.
        """
        (self.folder / "deep").mkdir()
        for name in ("deep/script.py", "deep/__main__.py", "module_.py"):
            (self.folder / name).write_text(_PROGRAM)
        (self.folder / "link").symlink_to("deep/script.py")
        with zipfile.ZipFile(self.folder / "archive.pyz", "w") as archive:
            archive.writestr("__main__.py", _PROGRAM)
        calls = (
            ("deep/script.py", "-x", "--reactor=aio"),
            ("./link",),
            ("./deep", "-m"),
            ("archive.pyz", "a b"),
            ("-m", "module_", "-h"),
            ("-mdeep.script", "-c"),
            ("-m", "deep"),
            ("-c", _PROGRAM, "-m", "x"),
        )
        both = [(self.started(*words), self.running("-q", *words)) for words in calls]
        for words, (python, ours) in zip(calls, both, strict=True):
            expected, found = (each.communicate(timeout=HANG_SECONDS) for each in (python, ours))
            self.assertEqual(json.loads(found[0]), json.loads(expected[0]), words)
            self.assertEqual((ours.returncode, found[1]), (7, ""), words)

    def test_light(self) -> None:
        """
        A program that does not connect starts without the adapter, and without what that is written with,
        also if it imports what could connect.
        """
        for imports, more in (("sys", ("socket", "asyncio")), ("sys, socket, asyncio, selectors, ssl", ())):
            names = "attr", "twisted", "twisted_ib.hca", "zope", "importlib.metadata", *more
            program = f"import {imports}; print([each for each in {names} if each in sys.modules])"
            found = self.running("-q", "-c", program).communicate(timeout=HANG_SECONDS)
            self.assertEqual(found, ("[]\n", ""))

    def test_signals(self) -> None:
        """
        SIGINT is C{KeyboardInterrupt}, and ends the process as that; an uncaught error has status 1.
        """
        program = "import time; print('on', flush=True); time.sleep(100)"
        process = self.running("-q", "-c", program)
        failing = self.running("-q", "-c", "1/0")
        assert process.stdout is not None
        self.assertEqual(process.stdout.readline(), "on\n")
        process.send_signal(signal.SIGINT)
        complaints = process.communicate(timeout=HANG_SECONDS)[1]
        self.assertEqual(process.returncode, -signal.SIGINT)
        self.assertIn("KeyboardInterrupt", complaints)
        self.assertIn("ZeroDivisionError", failing.communicate(timeout=HANG_SECONDS)[1])
        self.assertEqual(failing.returncode, 1)

    def test_errors(self) -> None:
        """
        An error, one of syntax too, is shown as Python shows it: no frame is one of C{ib-run}.  What its
        frames have is finalized as by Python then, with the modules that it uses.
        """
        (self.folder / "wrong.py").write_text("def f(:\n")
        (self.folder / "failing.py").write_text("def f():\n    1 / 0\nf()\n")
        (self.folder / "left.py").write_text(_LEFT)
        cases = (
            ["wrong.py"],
            ["failing.py"],
            ["-m", "failing"],
            ["-c", "def f(:"],
            ["-c", "1 / 0"],
            # Of this package's own modules it inherits nothing.
            ["-c", "def f(one: int): pass\nprint(f.__annotations__)"],
            ["left.py"],
        )
        # Python itself names a file by its whole path, too, if it was given so.
        calls = [
            [str(self.folder / word) if word.endswith(".py") else word for word in words] for words in cases
        ]
        both = [(self.started(*words), self.running("-q", *words)) for words in calls]
        for words, processes in zip(calls, both, strict=True):
            expected, found = (each.communicate(timeout=HANG_SECONDS) for each in processes)
            self.assertEqual(found, expected, words)

    def test_spawn(self) -> None:
        """
        Processes of C{multiprocessing} find the program.
        """
        (self.folder / "spawning.py").write_text(_SPAWN)
        found = self.running("spawning.py").communicate(timeout=HANG_SECONDS)
        self.assertEqual(found[0], "5\n", found[1])


class LoopTests(RunTestCase):
    """
    A program has the loop that it uses.
    """

    def test_loops(self) -> None:
        """
        Each kind has ours, and the one line says so.
        """
        processes = {program: self.running("-c", program) for program in _LOOPS}
        for program, process in processes.items():
            said, complaints = process.communicate(timeout=HANG_SECONDS)
            self.assertEqual(said, _LOOPS[program] + "\n", complaints)
            self.assertRegex(
                complaints,
                "^ib-run: -c has SDP from its first loop, reactor or socket on; rules: [^\\n]+\\n$",
            )

    def test_forks(self) -> None:
        """
        Processes that a program of Twisted's forks need not import what carries its connections, unless the
        rules leave them to TCP.
        """
        listening = "use tcp connect * *:*\n"
        (self.folder / "listening.conf").write_text(listening)
        (self.folder / "tcp.conf").write_text(f"{listening}use tcp listen * *:*\n")
        expected = {"": "connecting listening True", "listening.conf": "listening True", "tcp.conf": "False"}
        processes = {
            rules: self.running(*(("--config", rules) if rules else ()), "-c", _LOADED) for rules in expected
        }
        for rules, process in processes.items():
            said, complaints = process.communicate(timeout=HANG_SECONDS)
            self.assertEqual(said, expected[rules] + "\n", complaints)

    def test_server(self) -> None:
        """
        C{ib-run -m http.server} serves over SDP and over TCP.
        """
        (self.folder / "page").write_text("hello")
        # It does not flush the line with its port.
        self.environment["PYTHONUNBUFFERED"] = "1"
        server = self.running("-m", "http.server", "--bind", "127.0.0.1", "0")
        assert server.stdout is not None and server.stderr is not None
        self.assertIn("ib-run: http.server has SDP from", server.stderr.readline())
        found = re.search(r"port (\d+)", server.stdout.readline())
        assert found is not None
        rules = self.folder / "sdp.conf"
        rules.write_text("use sdp connect * *:*\n")
        fetch = (
            "import urllib.request as u; "
            f"print(u.urlopen('http://127.0.0.1:{found[1]}/page').read().decode())"
        )
        clients = [
            self.started("-c", fetch),
            self.running("--config", "sdp.conf", "-c", fetch),
        ]
        for client in clients:
            said, complaints = client.communicate(timeout=HANG_SECONDS)
            self.assertEqual(said, "hello\n", complaints)
        self.assertIn(f"rules: {rules}", complaints)


class RefusalTests(RunTestCase):
    """
    Programs that are not started.
    """

    def refused(self, name: str, status: int, *words: str) -> None:
        """
        Assert that L{find} refuses it.
        """
        error = self.assertRaises(StartError, find, name)
        self.assertEqual(error.status, status)
        for word in words:
            self.assertIn(word, str(error))

    def test_files(self) -> None:
        """
        A file that is not there.
        """
        self.refused(str(self.folder / "absent"), 127, "there is no such file")
        self.refused("surely-not-a-command", 127, "nor a command of that name")

    def test_devices(self) -> None:
        """
        A device of the environment that there cannot be: a program would go without.
        """
        self.environment["TWISTED_IB_DEVICES"] = "foo=bar"
        for words in (("twisted_ib.tools.run", "-c", "print(1)"), ("twisted_ib.tools.show.devinfo",)):
            process = self.started("-m", *words)
            said, complaints = process.communicate(timeout=HANG_SECONDS)
            self.assertEqual((said, process.returncode, complaints.count("\n")), ("", 1, 1), complaints)
            self.assertIn("TWISTED_IB_DEVICES: 'foo=bar': there is no fabric 'bar'", complaints)

    def test_unknownVariable(self) -> None:
        """
        A variable that nothing reads is named, and the program runs.
        """
        self.environment["TWISTED_IB_RUNDIR"] = "/run"
        said, complaints = self.started("-m", "twisted_ib.tools.run", "-c", "print(1)").communicate(
            timeout=HANG_SECONDS
        )
        self.assertEqual(said, "1\n")
        self.assertIn("nothing reads a variable of the name TWISTED_IB_RUNDIR", complaints)

    def test_names(self) -> None:
        """
        A name without a folder is a command of C{PATH}, or else a script of the current directory, and
        nothing else there.
        """
        commands = self.folder / "commands"
        commands.mkdir()
        for folder in (self.folder, commands):
            (folder / "command").write_text("#!/bin/sh\n")
        (commands / "command").chmod(0o755)
        for name in ("here", "here.py"):
            (self.folder / name).write_text("")
        self.patch(os, "environ", {**os.environ, "PATH": str(commands)})
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        for name, path in (("command", commands / "command"), ("./command", "./command")):
            self.assertEqual(self.assertRaises(NotPython, find, name).path, str(path))
        self.assertEqual(find("here.py").name, "here.py")
        self.refused("here", 127, "the file here is ./here")

    def test_notPython(self) -> None:
        """
        Programs that are not Python, and what the kernel loads for them.
        """
        shell, other = self.folder / "shell", self.folder / "other"
        shell.write_text("#! /bin/sh -e\n")
        other.write_text("#!/usr/bin/env -S perl -w\n")
        for path, binary in (
            (os.path.realpath(sys.executable), os.path.realpath(sys.executable)),
            (str(shell), "/bin/sh"),
            (str(other), shutil.which("perl") or "perl"),
        ):
            found = self.assertRaises(NotPython, find, path)
            self.assertEqual((found.path, found.binary), (path, binary))

    def test_asPython(self) -> None:
        """
        Modules, folders and archives that are no programs are refused as Python refuses them.
        """
        (self.folder / "folder").mkdir()
        with zipfile.ZipFile(self.folder / "empty.zip", "w") as archive:
            archive.writestr("x.py", "")
        calls = (["-m", "surely_not_there"], ["-m", "twisted_ib.hca"], ["./folder"], ["./empty.zip"])
        both = [(self.started(*words), self.running("-q", *words)) for words in calls]
        for words, processes in zip(calls, both, strict=True):
            expected, found = (each.communicate(timeout=HANG_SECONDS)[1] for each in processes)
            self.assertEqual(found, expected, words)
            self.assertEqual([each.returncode for each in processes], [1, 1], words)

    def test_frames(self) -> None:
        """
        What ends a program amid a call of a socket has the program's frames, and those of the standard
        library, as over TCP.
        """
        (self.folder / "fails.py").write_text(_FAILS)
        for word in ("read", "select"):
            both = [self.started("fails.py", word), self.running("-q", "fails.py", word)]
            expected, found = (each.communicate(timeout=HANG_SECONDS)[1] for each in both)
            self.assertEqual(found, expected)
            self.assertEqual([each.returncode for each in both], [both[0].returncode] * 2)

    def test_before(self) -> None:
        """
        No line of the program runs; the error is one line, and the status says which kind it is.
        """
        (self.folder / "wrong.conf").write_text("use nothing\n")
        cases = {
            ("absent.py",): (127, "absent.py: there is no such file"),
            ("--config=wrong.conf", "-c", "import socket; print('ran')"): (1, "wrong.conf:1:"),
            ("--config=none.conf", "-c", "import socket; print('ran')"): (1, "none.conf: No such file"),
        }
        processes = {words: self.running(*words) for words in cases}
        for words, (status, text) in cases.items():
            said, complaints = processes[words].communicate(timeout=HANG_SECONDS)
            self.assertEqual((processes[words].returncode, said), (status, ""), complaints)
            self.assertEqual(complaints.count("\n"), 1, complaints)
            self.assertIn(text, complaints)

    def test_otherInterpreter(self) -> None:
        """
        A command of another environment runs there, if that has this package; the wrapper of an interpreter
        is that interpreter.
        """
        (self.folder / "bin").mkdir()
        wrapper, other = self.folder / "python", self.folder / "bin/python3"
        wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        wrapper.chmod(0o700)
        # As the python of a virtual environment: another folder, and another path.
        other.symlink_to(os.path.realpath(sys.executable))
        cases = (
            (wrapper, self.environment["PYTHONPATH"]),
            (other, "/"),
            (other, self.environment["PYTHONPATH"]),
        )
        processes = []
        # C libraries are built once for each interpreter, and these are new: five seconds of a processor.
        self.environment["XDG_CACHE_HOME"] = os.devnull
        for number, (python, path) in enumerate(cases):
            script = self.folder / f"command{number}"
            script.write_text(f"#!{python} -u\nimport sys; print(sys.executable, sys.argv)\n")
            script.chmod(0o700)
            self.environment["PYTHONPATH"] = path
            # This one finds its package in any case.
            command = programOf("run.run")
            processes.append(self.started("-c", command, "-q", f"./command{number}", "x"))
        answers = [process.communicate(timeout=HANG_SECONDS) for process in processes]
        self.assertEqual(answers[0][0], f"{sys.executable} ['./command0', 'x']\n", answers[0][1])
        self.assertIn(f"{other} -m pip install twisted-ib", answers[1][1])
        self.assertEqual(processes[1].returncode, 126)
        self.assertEqual(answers[2][0], f"{other} ['./command2', 'x']\n", answers[2][1])


class ArgumentsTests(SynchronousTestCase):
    """
    Tests for L{parseArguments}.
    """

    def test_divided(self) -> None:
        """
        What follows the program is its own, whatever it looks like.
        """
        for line, kind, name, rest in (
            ("--reactor aio x.py -q -m y", str, "x.py", ["-q", "-m", "y"]),
            ("--reactor=ib -m web --config z", Module, "web", ["--config", "z"]),
            ("-mweb -c z", Module, "web", ["-c", "z"]),
            ("-c print -h", Code, "-c", ["-h"]),
            ("-q -- --odd -x", str, "--odd", ["-x"]),
        ):
            options, program = parseArguments(line.split())
            self.assertIsInstance(program, kind)
            self.assertEqual(program if isinstance(program, str) else program.name, name)
            self.assertEqual(options.arguments, rest)

    def test_plain(self) -> None:
        """
        Lines of flags and a program are read without the parser, and as it reads them; others are not.
        """
        read = run._plainly
        self.patch(run, "_plainly", lambda words: None)

        def said(options: SimpleNamespace, program: object) -> object:
            return vars(options), program if isinstance(program, str) else (type(program), vars(program))

        flags = ("-q", "--quiet", "--summary", "--queues", "--no-children", "--no-sysfs")
        for first in ("", *flags, "--json --summary", "-q -q --queues"):
            for program in ("x.py", "x.py -q --json", "-m x -y z", "-c pass -m y"):
                words = f"{first} {program}".split()
                plain = read(words)
                assert plain is not None
                self.assertEqual(said(*plain), said(*parseArguments(words)))
        for words in ("-q", "-m", "-m -y", "-- x.py", "--json x.py", "--check", "-qx x.py", "--summ x.py"):
            self.assertIsNone(read(words.split()))

    def test_refused(self) -> None:
        """
        Each mistake is one line.
        """
        for line, words in (
            ("", "there is no PROGRAM"),
            ("-q", "there is no PROGRAM"),
            ("--reactor uvloop x.py", "invalid choice: 'uvloop'"),
            ("-m", "expected one argument"),
            ("--speed x.py", "unrecognized arguments"),
        ):
            self.assertIn(words, refusal(self, parseArguments, *line.split()))

    def test_firstLines(self) -> None:
        """
        The interpreter that a file names.
        """
        for text, words in (
            (b"import a\n", []),
            (b"#!/v/bin/python3 -u\n", ["/v/bin/python3", "-u"]),
            (b"#!/usr/bin/env -S surely-none -w\n", ["surely-none", "-w"]),
            (b"#!\n", []),
            (b"#!/usr/bin/env", []),
            (b"#!/bin/sh\n'''exec' \"/a b/bin/python\" \"$0\" \"$@\"\n' '''\n", ["/a b/bin/python"]),
            (b"#!/bin/sh\n'''exec' /v/bin/python3 \"$0\" \"$@\"\n' '''\n", ["/v/bin/python3"]),
            (b"#!/bin/sh\nexit\n", ["/bin/sh"]),
        ):
            self.assertEqual(interpreterOf(text), words)
