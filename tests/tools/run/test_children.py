"""
Tests for L{twisted_ib.tools.run.children}: processes that a program starts run under C{ib-run}, too.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

from twisted.trial.unittest import SynchronousTestCase

from tests.support.waiting import HANG_SECONDS
from tests.tools.run.case import RunTestCase
from twisted_ib.settings import RUN_CHILDREN
from twisted_ib.tools.run import startup
from twisted_ib.tools.run.children import Inherited, _isRun, inherit
from twisted_ib.tools.run.native.again import lacking

_FOLDER = os.path.dirname(startup.__file__)
#: A line in one piece, also where output is not buffered (C{PYTHONUNBUFFERED}): all write to one pipe.
_WRITE = """
import os
def write(*words): os.write(1, (" ".join(words) + chr(10)).encode())
"""
_WHICH = f"""{_WRITE}
import asyncio
async def which(): return type(asyncio.get_running_loop()).__module__.split(".")[0]
# What makes the loops; one that is made imports all that carries connections.
def maker(): return asyncio.get_event_loop_policy()._loop_factory.__module__.split(".")[0]
"""
_SOCKET = f"""{_WRITE}
import socket
# It becomes SDP's with the first that connects or listens.
def kind(): return type(socket.socket()).__module__.split(".")[0]
"""
#: The processes of a program, at most so many of each kind: each says what it is, and what loop it has.
_STARTING = f"""
import multiprocessing, subprocess, sys
{_WHICH}
def say(name): write(name, maker())
if __name__ == "__main__":
    write("own", asyncio.run(which()))
    most = int(sys.argv[1])
    started = []
    for method in ("spawn", "forkserver")[:most]:
        started.append(multiprocessing.get_context(method).Process(target=say, args=(method,)))
        started[-1].start()
    for words in (["-c", {_WHICH!r} + "write('same', maker())"],
                  ["-Wi", "-c", {_SOCKET!r} + "write('blocking', kind())"],
                  ["-m", "grandparent"], ["otherkind.py"])[:most]:
        started.append(subprocess.Popen([sys.executable, *words]))
    for process in started:
        getattr(process, "join", getattr(process, "wait", None))()
        assert not getattr(process, "exitcode", getattr(process, "returncode", None))
"""
_AGAIN = """
import os, ssl, subprocess, sys
if "AGAIN" not in os.environ:
    environment = {**os.environ, "AGAIN": ""}
    sys.exit(subprocess.run([sys.executable, *sys.orig_argv[1:]], env=environment).returncode)
print("again")
"""
#: It runs as it is; what it starts does not.
_GRANDPARENT = f"""
import os, sys
code = {_SOCKET!r} + "write('grandchild', kind(), str(sys.path[0] == ''))"
os.execl(sys.executable, sys.executable, "-c", "import sys\\n" + code)
"""
#: A process of another kind than the program, and one that it spawns.
_OTHER_KIND = f"""
import multiprocessing
{_SOCKET}
def say(): write("inherited", kind())
if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=say)
    process.start()
    process.join()
"""
#: Two workers that accept from one socket, as servers start them; their clients count who has answered.
_WORKERS = """
import asyncio, multiprocessing, os, socket
async def serve(listener, ready):
    async def answer(reader, writer):
        writer.write(b"%d" % os.getpid())
        writer.close()
    server = await asyncio.start_server(answer, sock=listener)
    ready.release()
    await server.serve_forever()
def work(listener, ready): asyncio.run(serve(listener, ready))
async def ask(address):
    for _ in range(4):
        reader, writer = await asyncio.open_connection(*address)
        print(writer.get_extra_info("why").provider, bool(await reader.read()))
        writer.close()
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    ready = context.Semaphore(0)
    workers = [context.Process(target=work, args=(listener, ready)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        ready.acquire()
    asyncio.run(ask(listener.getsockname()))
    for worker in workers:
        worker.terminate()
        worker.join()
"""

#: Sockets from before and after the first listened are given away; multiprocessing is imported later,
#: or by another thread meanwhile.
_GIVEN = """
import socket, sys, threading
from importlib.machinery import SourceFileLoader
inside, listening = threading.Event(), threading.Event()
load = SourceFileLoader.get_code
def get_code(self, name):
    if name == "multiprocessing.reduction":
        inside.set()
        listening.wait(0.2)
    return load(self, name)
SourceFileLoader.get_code = get_code
early = socket.socket()
thread = threading.Thread(target=__import__, args=("multiprocessing.connection",))
if sys.argv[1] == "meanwhile":
    thread.start()
    inside.wait()
socket.create_server(("127.0.0.1", 0)).close()
listening.set()
if not inside.is_set():
    thread.start()
thread.join()
from multiprocessing import connection, reduction
for each in early, socket.socket():
    reduction.ForkingPickler.dumps(each)
print(type(early) is not socket.socket, connection.socket is not socket)
"""

#: What a process starts connects to itself.
CONNECTING = """
import subprocess, sys
code = "import socket; l = socket.create_server(('127.0.0.1', 0)); "
code += "c = socket.create_connection(l.getsockname()); l.accept()"
subprocess.run([sys.executable, "-c", code])
"""


class ChildrenTests(RunTestCase):
    """
    Programs that start processes.
    """

    def test_started(self) -> None:
        """
        They have what they use; with C{--no-children} they are Python's own.
        """
        (self.folder / "starting.py").write_text(_STARTING)
        (self.folder / "grandparent.py").write_text(_GRANDPARENT)
        (self.folder / "otherkind.py").write_text(_OTHER_KIND)
        with_, without = self.running("starting.py", "4"), self.running("--no-children", "starting.py", "1")
        own = ("own", "spawn", "forkserver", "same")
        others = ("blocking", "grandchild", "inherited")
        expected = [[name, "twisted_ib"] for name in own + others]
        said, complaints = with_.communicate(timeout=HANG_SECONDS)
        lines = [line.split() for line in said.splitlines()]
        expected[len(own) + 1].append("True")
        self.assertEqual(sorted(lines), sorted(expected), complaints)
        # They say nothing of their own.
        self.assertEqual(complaints.count("\n"), 1, complaints)
        said, complaints = without.communicate(timeout=HANG_SECONDS)
        # Nothing tells them: it is the same for each.
        self.assertEqual(sorted(said.splitlines()), ["own twisted_ib", "same asyncio", "spawn asyncio"])

    def test_interpreter(self) -> None:
        """
        An interpreter that is named itself runs its program so, and so does one that a shell starts; not
        with C{--no-children}.
        """
        code = f"{_SOCKET}write('own', kind())"
        words = [sys.executable, "-c", code]
        cases = [(words, "twisted_ib")]
        # No program but an interpreter starts without the extra [c].
        if not lacking():
            shell = ["sh", "-c", f"{shlex.join(words)}; true"]
            cases += [(shell, "twisted_ib"), (["--no-children", *words], "socket")]
        processes = [(self.running(*command), module) for command, module in cases]
        for process, module in processes:
            said, complaints = process.communicate(timeout=HANG_SECONDS)
            self.assertEqual(said, f"own {module}\n", complaints)
            self.assertEqual("SDP" in complaints, module != "socket", complaints)
            self.assertEqual(complaints.count("\n"), 1, complaints)

    def test_workers(self) -> None:
        """
        Workers that get the socket that listens offer SDP on it, and each connection is answered.
        """
        (self.folder / "workers.py").write_text(_WORKERS)
        # On a loaded machine a worker may answer later than clients wait for SDP by default.
        rules = self.folder / "rules"
        rules.write_text(f"timeout sdp {HANG_SECONDS}\nuse both listen * *:*\nuse both connect * *:*\n")
        self.environment["TWISTED_IB_CONFIG"] = str(rules)
        said, complaints = self.running("-q", "workers.py").communicate(timeout=HANG_SECONDS)
        self.assertEqual((said, complaints), ("sdp True\n" * 4, ""))

    def test_given(self) -> None:
        """
        Sockets can be given away whenever they were made and C{multiprocessing} was imported, whose own
        connections stay the kernel's.
        """
        (self.folder / "given.py").write_text(_GIVEN)
        processes = [self.running("-q", "given.py", when) for when in ("before", "meanwhile")]
        for process in processes:
            said, complaints = process.communicate(timeout=HANG_SECONDS)
            self.assertEqual((said, complaints), ("True True\n", ""))

    def test_summary(self) -> None:
        """
        Each process says what carried its connections, if the first was asked to.
        """
        text = self.running("-q", "--summary", "-c", CONNECTING)
        child, own = text.communicate(timeout=HANG_SECONDS)[1].splitlines()
        self.assertRegex(child, r"^ib-run \d+: 2 of 2 connections went over SDP$")
        self.assertEqual(own, "ib-run: there were no connections")

    def test_otherwise(self) -> None:
        """
        A process that Python itself refuses, or of another environment, is Python's own; another
        C{sitecustomize} is imported as without C{ib-run}.
        """
        elsewhere = self.folder / "elsewhere"
        elsewhere.mkdir()
        (elsewhere / "sitecustomize.py").write_text("print('customized', flush=True)\n")
        own = self.environment["PYTHONPATH"]
        cases = {
            ("-c", "import trio"): "No module named 'trio'",
            ("-m", "surely_not_there"): "No module named surely_not_there",
            ("-I", "-c", "import socket; print(socket.socket.__module__)"): "socket\n",
            ("-c", "import socket, sitecustomize; print(sitecustomize.__file__)"): str(elsewhere),
        }
        self.environment["PYTHONPATH"] = os.pathsep.join([_FOLDER, str(elsewhere), own])
        self.environment[RUN_CHILDREN] = "aio,,"
        processes = {words: self.started(*words) for words in cases}
        for words, text in cases.items():
            said, complaints = processes[words].communicate(timeout=HANG_SECONDS)
            self.assertIn(text, said + complaints)
            self.assertEqual("customized\n" in said, words[0] != "-I", said)
        # An interpreter that has no such package.
        self.environment["PYTHONPATH"] = _FOLDER
        plain = [sys.executable, "-S", "-c", "import sitecustomize, socket; print(socket.socket.__module__)"]
        found = subprocess.run(plain, env=self.environment, capture_output=True, text=True, cwd="/")
        self.assertEqual((found.stdout, found.stderr), ("socket\n", ""))

    def test_again(self) -> None:
        """
        A program that starts its own command line, as servers do when their files change, runs in it.
        """
        words = ["-m", "twisted_ib.tools.run", "-q", "--summary", "--json", "-c", _AGAIN]
        said, complaints = self.started(*words).communicate(timeout=HANG_SECONDS)
        self.assertEqual(said, "again\n", complaints)
        self.assertEqual(complaints.count('{"pid"'), 2, complaints)


class CommandTests(SynchronousTestCase):
    """
    Tests for how a command line is known that is C{ib-run}'s own.
    """

    def test_isRun(self) -> None:
        """
        By its module or its script, behind the interpreter's options, with their values and together.
        """
        module = "-m twisted_ib.tools.run"
        for words in (module, f"-X dev -W error {module}", f"-Xdev -Bu{module[1:]}", "-I /usr/bin/ib-run -q"):
            self.patch(sys, "orig_argv", ["python", *words.split()])
            self.assertTrue(_isRun(), words)
        for words in ("", "a.py ib-run", f"-c {module}", "-m http.server", f"-X dev a.py {module}", "-"):
            self.patch(sys, "orig_argv", ["python", *words.split()])
            self.assertFalse(_isRun(), words)


class EnvironmentTests(SynchronousTestCase):
    """
    Tests for L{inherit}.
    """

    def test_environment(self) -> None:
        """
        It is set once, and taken back; what the variables had stays.
        """
        for path in ({}, {"PYTHONPATH": "/a:/b"}):
            environ = dict(path)
            for loop in ("aio", ""):
                inherit(environ, Inherited(loop, "text", "queues"))
            others = [path["PYTHONPATH"]] if path else []
            self.assertEqual(
                environ, {RUN_CHILDREN: ",text,queues", "PYTHONPATH": ":".join([_FOLDER, *others])}
            )
            inherit(environ, None)
            self.assertEqual(environ, path)
        untouched = {"PYTHONPATH": "::/a"}
        inherit(untouched, None)
        self.assertEqual(untouched, {"PYTHONPATH": "::/a"})
