"""
A server and its client, two processes of C{ib-run}.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Protocol

from attrs import define, field, frozen

from tests.cprograms.programs import Program
from tests.support.commands import programOf
from tests.support.ownaddress import ownAddress, ownGroup
from tests.support.waiting import HANG_SECONDS

#: Environment variable that lets these tests run.
SWITCH = "TWISTED_IB_CPROGRAMS"
#: State of a TCP socket that listens (Linux include/net/tcp_states.h), as proc(5) has it.
_LISTEN = "0A"
#: The UDP port of RoCEv2 (IBTA vol. 1 annex A17).
_ROCE = 4791
_LOOK_SECONDS = 0.02
#: So often in a row a server sleeps that waits for clients.
_LOOKS = 10
#: More processor time than it takes from the address to that.
_BUSY_SECONDS = 0.5


def lacking() -> str | None:
    """
    @return: why these tests cannot run.
    """
    if not os.environ.get(SWITCH):
        return f"they run with {SWITCH}=1"
    return unbuilt()


def unbuilt() -> str | None:
    """
    @return: why L{Here} cannot run programs.
    """
    if find_spec("elftools") is None or find_spec("cffi") is None:
        return "the extra [c] is not installed"
    if shutil.which("stdbuf") is None:
        return "there is no stdbuf"
    from twisted_ib.errors import LibraryBuildError
    from twisted_ib.verbs.c.building.build import libraries

    try:
        libraries()
    except LibraryBuildError as error:
        return f"the libraries cannot be built: {error}"
    return None


def missing(program: Program) -> str | None:
    """
    @return: why L{Here} cannot run this one.
    """
    # Behind env(1) and its variables.
    name = next(word for word in program.server.split() if word != "env" and "=" not in word)
    if shutil.which(name) is None:
        return f"no {name}: it is in Debian's package {program.package}"
    return None


class LabError(Exception):
    """
    A program did not do what it should; the text has all that both said.
    """


class Running(Protocol):
    """
    One of both processes.
    """

    def waitUntilReady(self, program: Program, port: int) -> None:
        """
        Wait until the client of this server may start.

        @param port: which the server has.
        @raise LabError: the server does not get so far.
        """

    def said(self) -> str:
        """
        @return: all that it has written so far.
        """

    def ended(self) -> int:
        """
        @return: the exit status, for which it waits.
        @raise LabError: it does not end.
        """

    def stop(self) -> None:
        """
        It is killed, if it still runs.
        """


class Side(Protocol):
    """
    Where one of both processes runs.
    """

    @property
    def words(self) -> dict[str, str]:
        """
        Of L{Program}'s words, those that this side decides for its own command: C{device} and C{gid}.
        """

    @property
    def address(self) -> str:
        """
        The address that both commands know it by.
        """

    def start(self, command: Sequence[str], directory: str) -> Running:
        """
        @param directory: for files of this run.

        @return: the process.
        """


@frozen
class Here:
    """
    A process of C{ib-run} on this host.

    @ivar device: the name of its device.
    @ivar address: the device's, and the process's own.
    @ivar prefix: words before its command, as of C{ip netns exec}.
    @ivar tool: the command C{ib-run}.
    @ivar environment: by default that of the tests.
    @ivar runDirectory: by default where a program runs; it must outlive all who have it.
    """

    device: str
    address: str
    prefix: tuple[str, ...] = ()
    tool: tuple[str, ...] = (sys.executable, "-c", programOf("run.run"))
    environment: Mapping[str, str] | None = None
    runDirectory: str | None = None

    @property
    def words(self) -> dict[str, str]:
        return {"device": self.device, "gid": "0"}

    def start(self, command: Sequence[str], directory: str) -> Running:
        options = ["--quiet", "--device", self.device]
        if self.device != "shm0":
            options += ["--address", self.address]
        # By line, so that what a program waits for can be seen.
        words = ("stdbuf", "-oL", *self.tool, *options, *command)
        environment = os.environ if self.environment is None else self.environment
        output = tempfile.TemporaryFile(dir=directory)
        runDirectory = self.runDirectory or directory
        process = subprocess.Popen(
            [*self.prefix, *words],
            env={**environment, "TWISTED_IB_RUN_DIR": runDirectory},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=directory,
        )
        return _Running(self.device, self.address, process, output, command[0], runDirectory)


def sides(device: str) -> tuple[Here, Here]:
    """
    @return: a server's and a client's, on the loopback interface.
    """
    return Here(device, ownAddress(1)), Here(device, ownAddress(2))


@define
class _Running:
    # A process whose output is collected.
    device: str
    address: str
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    name: str
    runDirectory: str
    begun: float = field(factory=time.monotonic)
    bound: float = -1.0
    asleep: int = 0

    def waitUntilReady(self, program: Program, port: int) -> None:
        # Nothing tells of another process's listening port or output but looking.
        deadline = self.begun + HANG_SECONDS
        while self.process.poll() is None:
            if self._isReady(program, port):
                return
            if time.monotonic() >= deadline and time.monotonic() >= (deadline := self._deadline()):
                break
            select.select([], [], [], _LOOK_SECONDS)
        raise LabError(f"{self.name} is not ready: status {self.process.poll()}")

    def _isReady(self, program: Program, port: int) -> bool:
        if program.isOverTCP:
            return self._isBound("tcp", port, _LISTEN)
        if program.ready:
            return program.ready in self.said()
        if self.device.startswith("iwarp"):
            return self._isBound("tcp", port, _LISTEN)
        # The program binds its address and listens at once, and nothing shows that: then it sleeps, or polls.
        if self.device == "shm0":
            isThere = any(Path(self.runDirectory).glob("svc-*"))
        else:
            isThere = self._isBound("udp", _ROCE, address=self.address)
        if not isThere:
            return False
        each = [activity(pid) for pid in family(self.process.pid)]
        isAsleep, seconds = all(one for one, _ in each), sum(busy for _, busy in each)
        if self.bound < 0:
            self.bound = seconds
        self.asleep = self.asleep + 1 if isAsleep else 0
        return self.asleep >= _LOOKS or seconds - self.bound >= _BUSY_SECONDS

    def _isBound(self, protocol: str, port: int, wanted: str = "", address: str = "") -> bool:
        return any(isBound(pid, protocol, port, wanted, address) for pid in family(self.process.pid))

    def said(self) -> str:
        self.output.seek(0)
        return self.output.read().decode(errors="replace")

    def ended(self) -> int:
        deadline = self.begun + HANG_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            with suppress(subprocess.TimeoutExpired):
                return self.process.wait(left)
            deadline = self._deadline()
        raise LabError(f"{self.name} has not ended in {HANG_SECONDS:g} s: {self.said()}")

    def _deadline(self) -> float:
        # It may look at its memory for all of it: a processor that others have is no hang.
        return self.begun + HANG_SECONDS + max(map(denied, family(self.process.pid)))

    def stop(self) -> None:
        # What it has started, as fio starts its jobs, would keep the address from all that come after it.
        for pid in family(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.output.close()


@define
class Lab:
    """
    Runs programs between two sides.

    @ivar server: where the server runs.
    @ivar client: where the client runs.
    """

    server: Side
    client: Side

    def run(self, program: Program) -> str:
        """
        Run a program once.

        @return: what its client has said.
        @raise LabError: it did not do what it should.
        """
        with tempfile.TemporaryDirectory() as directory:
            port = freePort()
            words = {
                "port": str(port),
                "server": self.server.address,
                "client": self.client.address,
                "group": ownGroup(1),
            }
            for name, text in program.files:
                Path(directory, name).write_text(text.format(**words))
            server = self._started(self.server, program.server, words, directory)
            try:
                server.waitUntilReady(program, port)
                client, said = self._client(program.client, words, directory)
                if client or program.said not in said or program.unsaid in said:
                    raise LabError(f"the client's status is {client}, {program.said!r} expected; {said}")
                status = 0 if program.goesOn else server.ended()
                if status:
                    raise LabError(f"the server's status is {status}; the client's 0: {said}")
                return said
            except LabError as error:
                raise LabError(f"{error}\nserver:\n{server.said()}") from None
            finally:
                server.stop()

    def _started(self, side: Side, command: str, words: dict[str, str], directory: str) -> Running:
        return side.start(command.format(**words, **side.words).split(), directory)

    def _client(self, command: str, words: dict[str, str], directory: str) -> tuple[int, str]:
        client = self._started(self.client, command, words, directory)
        try:
            return client.ended(), client.said()
        finally:
            client.stop()


def freePort() -> int:
    """
    @return: a port that nobody listened on.
    """
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


def family(pid: int) -> list[int]:
    """
    @return: a process, and those that it has started, and so on.
    """
    parents: dict[int, int] = {}
    for each in Path("/proc").glob("[0-9]*"):
        # One may have ended.
        with suppress(OSError):
            parents[int(each.name)] = int(_words(each)[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def activity(pid: int) -> tuple[bool, float]:
    """
    @return: whether all threads of a process sleep, and the seconds of a processor that it has had.
    """
    # proc(5).  A thread that waits for Python's lock sleeps, too, while the one that has it waits for a
    # processor: of a server that begins to listen.
    folder, seconds = Path(f"/proc/{pid}"), 0.0
    try:
        words = _words(folder)
        seconds = (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
        return all(_words(each)[0] == "S" for each in folder.glob("task/*")), seconds
    except OSError:
        # It, or a thread of it, has just ended.
        return False, seconds


def denied(pid: int) -> float:
    """
    @return: the seconds that a process has waited for a processor, of the thread that did so for the longest.
    """
    # Linux Documentation/scheduler/sched-stats.rst: nanoseconds on a processor, and on a run queue.
    longest = 0
    for each in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        # It may just have ended.
        with suppress(OSError):
            longest = max(longest, int(each.read_text().split()[1]))
    return longest / 1e9


def _words(folder: Path) -> list[str]:
    # Behind the name: the state, ..., the ticks of a processor as a user, as the system.
    return (folder / "stat").read_text().rpartition(")")[2].split()


def isBound(pid: int, protocol: str, port: int, wanted: str = "", address: str = "") -> bool:
    """
    @param wanted: the state of the socket, as proc(5) has it.

    @return: whether a process has a socket with a port: others of its network may have one, too.
    """
    # proc(5), in the process's network namespace: local address, remote address, state, ..., inode.  An IPv4
    # address is a number there, in the host's order of bytes.
    own = f"{int.from_bytes(socket.inet_aton(address), sys.byteorder):08X}" if address else ""
    for name in (protocol, f"{protocol}6"):
        try:
            lines = Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
            held = set[str]()
            for each in Path(f"/proc/{pid}/fd").iterdir():
                # One may be closed by now.
                with suppress(FileNotFoundError):
                    held.add(os.readlink(each))
        except OSError:
            # It has just ended.
            return False
        for line in lines:
            words = line.split()
            there, number = words[1].split(":")
            if wanted in ("", words[3]) and int(number, 16) == port and there.endswith(own):
                if f"socket:[{words[9]}]" in held:
                    return True
    return False
