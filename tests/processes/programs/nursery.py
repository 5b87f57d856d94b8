"""
Processes of Python that start in a hundredth of a second.

A process with Twisted and the package takes half a second of a processor to start; a fork of one that has
them imported takes next to nothing. So the first L{Forked} of a test run starts such a process, which forks
itself for each of them. The child leaves L{serve}, has the descriptors, environment, folder and command line
that were asked for, and runs its program as C{python} does. A program that is about its own start, or about
variables of Python's, is no case for this.

Runs as C{python -m tests.processes.programs.nursery} with a UNIX socket as its standard input.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import socket
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

from tests.support.waiting import HANG_SECONDS
from twisted_ib.drive.sleeper import awaitReady

#: The longest request.
REQUEST_BYTES = 1 << 20
_ROOT = Path(__file__).resolve().parents[3]

#: What programs import; none of it installs a reactor.
_IMPORTED = (
    "tests.processes.programs.child",
    "tests.processes.programs.peer",
    "tests.support.counting",
    "doctest",
    "hamcrest",
    "twisted.application.reactors",
    "twisted.internet.endpoints",
    "twisted.internet.epollreactor",
    "twisted.internet.stdio",
    "twisted.internet.test.reactormixins",
    # By the search for a reactor's name, which reads the cache of all plugins.
    "twisted.application.service",
    "twisted.cred.strcred",
    "twisted.plugins.twisted_core",
    "twisted.plugins.twisted_ib_plugin",
    "twisted.plugins.twisted_reactors",
    "twisted.trial.itrial",
    "twisted.web.client",
    "twisted.web.server",
    "twisted.web.static",
    "twisted.words.iwords",
    "twisted_ib.hca.fabric.roce.roce",
    "twisted_ib.hca.fabric.shm.shm",
    "twisted_ib.reactor.ibreactor",
    "twisted_ib.reactor.socketreport",
    "twisted_ib.reactor.tcprows",
    "twisted_ib.rds.port",
    "twisted_ib.sdp.port",
    "twisted_ib.switch.rules.configuration",
    "twisted_ib.switch.connecting",
    "twisted_ib.switch.handle",
    "twisted_ib.switch.listening",
    "twisted_ib.switch.switch",
    "twisted_ib.tools.demo.demo",
    "twisted_ib.tools.demo.server",
    "twisted_ib.tools.get",
    "twisted_ib.tools.fabric",
    "twisted_ib.tools.net",
    "twisted_ib.tools.perf.perf",
    "twisted_ib.tools.ping.ping",
    "twisted_ib.tools.sa",
    "twisted_ib.tools.show.devinfo",
    "twisted_ib.tools.show.ss",
    "twisted_ib.tools.show.stat",
)


class _Nursery:
    """
    The process that forks, started when it is first needed.
    """

    _process: subprocess.Popen[bytes] | None = None

    def fork(self, descriptors: list[int], request: list[object]) -> int:
        """
        Have a child forked.

        @param descriptors: its standard input, output and error, and a pipe that gets its status.
        @param request: its command line, folder and environment, and whether it leads a session.

        @return: its process id.
        """
        if self._process is None:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._socket.settimeout(HANG_SECONDS)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.processes.programs.nursery"],
                cwd=_ROOT,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
            )
            theirs.close()
            atexit.register(self.end)
        socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
        return int(self._socket.recv(64))

    def end(self) -> None:
        """
        The tests are over.
        """
        if self._process is not None:
            self._socket.close()
            self._process.wait()


_nursery = _Nursery()


class Forked(subprocess.Popen[str]):
    """
    A process that runs a program (C{-c}), a module (C{-m}) or a file in a fork of the nursery instead of an
    interpreter of its own: the nursery is its parent, and passes its status on.
    """

    def _execute_child(self, words: list[str], *others: Any) -> None:
        # In the place of fork(2) and exec(2); the base class has made the pipes. The places are those of
        # Python 3.10 to 3.14.
        folder, environment = others[4:6]
        pipes = others[9:15]
        status, theirStatus = os.pipe()
        wanted = [pipes[0], pipes[3], pipes[5]]
        theirs = [standard if each < 0 else each for standard, each in enumerate(wanted)]
        variables = dict(os.environ if environment is None else environment)
        # Behind the pipes are restore_signals, gid, gids, uid and umask, which nobody gives here.
        request = [words[1:], os.fspath(folder or os.getcwd()), variables, bool(others[20])]
        try:
            self.pid = _nursery.fork([*theirs, theirStatus], request)
        finally:
            os.close(theirStatus)
            self._close_pipe_fds(*pipes)
        self._status = open(status, "rb", buffering=0)

    def _internal_poll(self, *others: object, **options: object) -> int | None:
        return self._ended(0)

    def _wait(self, timeout: float | None) -> int:
        found = self._ended(timeout)
        if found is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return found

    def _ended(self, seconds: float | None) -> int | None:
        # Not select(2): whoever runs many tests may have more descriptors than that takes.
        if self.returncode is None and awaitReady(self._status.fileno(), seconds):
            # Without one the nursery has died, and its children live on.
            said = self._status.read(64)
            self._status.close()
            self.returncode = os.waitstatus_to_exitcode(int(said)) if said else 255
        return self.returncode


class _Child:
    """
    A child of the nursery, which runs.

    @ivar pid: its process id.
    @ivar alive: readable when it has ended.
    """

    def __init__(self, pid: int, status: int) -> None:
        """
        @param status: where its status goes.
        """
        self.pid = pid
        self.alive = os.pidfd_open(pid)
        self.status = status

    def reap(self) -> None:
        """
        It has ended.
        """
        _, status = os.waitpid(self.pid, 0)
        with contextlib.suppress(BrokenPipeError):
            os.write(self.status, str(status).encode())
        self.close()

    def close(self) -> None:
        """
        In a fork: it is no child of this process.
        """
        os.close(self.alive)
        os.close(self.status)


def _become(descriptors: list[int], request: bytes) -> list[str]:
    """
    In the fork: be the process that was asked for.

    @return: its command line.
    """
    # Behind the standard ones, which they may be.
    moved = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 3) for each in descriptors]
    for place, (descriptor, each) in enumerate(zip(descriptors, moved, strict=True)):
        os.close(descriptor)
        os.dup2(each, place)
        os.close(each)
    words, folder, environment, isLeader = json.loads(request)
    if isLeader:
        os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    return list(words)


def serve() -> list[str] | None:
    """
    Serve requests until the other end closes.

    @return: in a child, its command line.
    """
    for each in _IMPORTED:
        importlib.import_module(each)
    assert "twisted.internet.reactor" not in sys.modules
    # Children share what they do not change.
    gc.collect()
    gc.freeze()
    requests = socket.socket(fileno=os.dup(0))
    children: list[_Child] = []
    while True:
        ready = select.select([requests, *(each.alive for each in children)], [], [])[0]
        for child in [each for each in children if each.alive in ready]:
            children.remove(child)
            child.reap()
        if requests not in ready:
            continue
        request, descriptors, _flags, _address = socket.recv_fds(requests, REQUEST_BYTES, 4)
        if not request:
            return None
        pid = os.fork()
        if not pid:
            requests.close()
            for each in children:
                each.close()
            os.close(descriptors.pop())
            return _become(descriptors, request)
        children.append(_Child(pid, descriptors.pop()))
        for descriptor in descriptors:
            os.close(descriptor)
        requests.send(str(pid).encode())


def _begin(words: list[str]) -> None:
    """
    Run a command line of Python's.
    """
    first = words[0]
    if first == "-m":
        sys.argv = [first, *words[2:]]
        sys.path[0] = os.getcwd()
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if first == "-c":
        sys.argv, sys.path[0], name, program = [first, *words[2:]], "", "<string>", words[1]
    else:
        sys.argv, sys.path[0], name, program = words, os.path.dirname(first), first, Path(first).read_text()
        main.__file__ = first
    exec(compile(program, name, "exec"), vars(main))


def _leave() -> None:
    """
    End as the interpreter does, but leave the memory to the kernel: to free what was imported takes longer
    than most programs.
    """
    shutdown: Any = vars(threading)["_shutdown"]
    shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()


def _run(words: list[str]) -> None:
    """
    Run a command line, and end. An end that is not C{sys.exit} with a number, or whose output nobody reads,
    is for the interpreter, which has words for it.
    """
    try:
        _begin(words)
        status = 0
    except SystemExit as left:
        if left.code is not None and not isinstance(left.code, int):
            raise
        status = left.code or 0
    try:
        _leave()
    except OSError:
        sys.exit(status)
    os._exit(status & 0xFF)


if __name__ == "__main__":
    found = serve()
    if found is not None:
        _run(found)
