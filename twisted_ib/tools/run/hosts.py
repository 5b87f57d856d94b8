"""
C{ib-run --hosts N PROGRAM}: the program once on each of N hosts, for tests of several hosts in one line.

A host is a network namespace with an interface C{eth0} on one bridge, where an unprivileged user may make
some; else an address of loopback.  Each has C{roce0} at its address, and a run directory of its own: hosts
share no memory.  The program finds out which host it is on by its environment.  With C{--subnet N} hosts are
addresses of loopback, each with C{ib0}, and have one run directory: that of their InfiniBand subnet.

C{ib-run --on HOST COMMAND} is what rsh(1) would be between them, so that what starts programs on other hosts,
as mpirun(1), takes it as its agent.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from shutil import which
from typing import BinaryIO, NoReturn, cast

from twisted_ib.settings import RUN_DIR, RUN_HOST, RUN_HOSTS, RUN_INSIDE
from twisted_ib.tools.program import INTERRUPTED
from twisted_ib.tools.run.clibraries import asStarted, chooseDevice
from twisted_ib.tools.run.native.again import lacking
from twisted_ib.tools.run.program import NOT_RUNNABLE, StartError

#: In a host's namespace, before the program: it waits until its interface is there.
_HOST = """
read -r _ || exit
exec </dev/null
ip link set lo up && ip address add "$0/16" dev eth0 && ip link set eth0 up && exec "$@"
"""
#: Tries what hosts need, in namespaces that end with it.
_TRIAL = "ip link set lo up && ip link add bridge type bridge && ip link add host type veth peer name eth0"
_PROGRAMS = (("unshare", "util-linux"), ("ip", "iproute2"))
_NAMESPACES = ("unshare", "--user", "--map-root-user", "--net")
#: How long a namespace may take to come, and a program to end when it is asked to, seconds.
_NAMESPACE_SECONDS, _END_SECONDS = 30.0, 5.0
_PIECE = 65536
#: Signals that end the programs, too, as SIGINT does.
_ENDS = (signal.SIGTERM, signal.SIGHUP)
#: What hosts have, each its own; and in a subnet, where all share the run directory of this name.
_ROCE, _ADAPTER, _SUBNET = "roce0", "ib0", "subnet"
#: The end of the name of a link to a host's namespace, behind that of its run directory.
_NAMESPACE = ".net"


def addresses(count: int, isApart: bool) -> list[str]:
    """
    @param isApart: whether hosts are namespaces; else they are addresses of loopback.
    @return: an address for each host.
    """
    network = "10.77" if isApart else "127.77"
    return [f"{network}.0.{number}" for number in range(1, count + 1)]


def refusal() -> str:
    """
    @return: why this user cannot make hosts of namespaces, in a few words; C{""} if that is possible.
    """
    missing = [
        f"there is no {name}, of Debian's {package}" for name, package in _PROGRAMS if which(name) is None
    ]
    if missing:
        return missing[0]
    # Tried, not guessed: some systems allow a namespace and give no rights in it (Ubuntu's AppArmor).
    tried = subprocess.run([*_NAMESPACES, "sh", "-c", _TRIAL], capture_output=True, text=True)
    return "" if not tried.returncode else (tried.stderr.strip().splitlines() or ["refused"])[-1]


def _begin(words: Sequence[str]) -> None:
    # Again, in a user namespace with a network of its own.
    command = [*_NAMESPACES, sys.executable, "-m", "twisted_ib.tools.run", *words]
    os.execvpe(command[0], command, {**os.environ, RUN_INSIDE: "1"})


def _ip(*words: str) -> None:
    made = subprocess.run(["ip", *words], capture_output=True, text=True)
    if made.returncode:
        raise StartError(f"ip {' '.join(words)}: {made.stderr.strip()}", NOT_RUNNABLE)


def _connect(number: int, pid: int) -> None:
    # The child is in its namespace some time after it has begun.
    end, own = time.monotonic() + _NAMESPACE_SECONDS, os.readlink("/proc/self/ns/net")
    while os.readlink(f"/proc/{pid}/ns/net") == own:
        if time.monotonic() > end:
            raise StartError(f"host {number} does not get its namespace", NOT_RUNNABLE)
        time.sleep(0.01)
    _ip("link", "add", f"host{number}", "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    _ip("link", "set", f"host{number}", "master", "bridge", "up")


def _ended(process: subprocess.Popen[bytes]) -> int | None:
    # As of shells; None while it runs.  It is not reaped: while it is there its group's number is no other's.
    found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else 128 + found.si_status


class Hosts:
    """
    The programs of all hosts, while they run.  Each leads a process group, in which is what it has started,
    but for what setsid(2) or setpgid(2) has taken out of it.

    @ivar status: the exit status of the first that failed; 0 before.
    """

    def __init__(self, environment: Mapping[str, str], isApart: bool) -> None:
        """
        @param environment: what each program gets, beside its own.
        """
        self.status = 0
        self._environment = environment
        self._isApart = isApart
        self._processes: list[subprocess.Popen[bytes]] = []
        self._selector = selectors.DefaultSelector()
        self._rest: dict[int, bytes] = {}
        self._kept: list[int] = []
        self._waiting: list[int] = []
        self._killed = float("inf")

    def start(self, number: int, address: str, directory: str, command: Sequence[str]) -> None:
        """
        Start a program on one host; one in a namespace waits for L{release}.

        @param directory: the host's run directory.  Beside it is a link to its namespace, which outlives the
            program.
        @raise StartError: the host cannot be made.
        """
        environment = {**self._environment, RUN_HOST: str(number), RUN_DIR: directory}
        if self._isApart:
            read, write = os.pipe()
            self._waiting.append(write)
            command = ["unshare", "--net", "sh", "-c", _HOST, address, *command]
            try:
                process = self._started(command, environment, read)
                _connect(number, process.pid)
                kept = os.open(f"/proc/{process.pid}/ns/net", os.O_RDONLY)
                self._kept.append(kept)
                os.symlink(f"/proc/{os.getpid()}/fd/{kept}", directory + _NAMESPACE)
            finally:
                os.close(read)
        else:
            process = self._started(command, environment, subprocess.DEVNULL)
        self._selector.register(cast(BinaryIO, process.stdout), selectors.EVENT_READ, number)

    def _started(
        self, command: Sequence[str], environment: Mapping[str, str], stdin: int
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command,
            env=environment,
            start_new_session=True,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._processes.append(process)
        return process

    def release(self) -> None:
        """
        All hosts are there: let their programs begin.
        """
        while self._waiting:
            write = self._waiting.pop()
            # It may have been ended meanwhile.
            with suppress(BrokenPipeError):
                os.write(write, b"\n")
            os.close(write)

    def run(self) -> int:
        """
        Write what they say, each line with its host's number, until all have ended and nothing has their
        output any more; the first that fails ends all groups, by force after a while, and then nothing is
        waited for.

        @return: the exit status.
        """
        while self._selector.get_map() or None in map(_ended, self._processes):
            self._hearAll(0.1)
            for number, each in enumerate(self._processes):
                status = _ended(each)
                if status and not self.status:
                    self.status = status
                    self._say(number, f"ended with status {status}; the other hosts are ended".encode())
                    self.end(signal.SIGTERM)
                    self._killed = time.monotonic() + _END_SECONDS
            if time.monotonic() > self._killed:
                self.end(signal.SIGKILL)
                self._hearAll(0)
                break
        for number, rest in self._rest.items():
            self._say(number, rest)
        self._rest.clear()
        return self.status

    def end(self, number: signal.Signals) -> None:
        """
        Send the groups of all programs a signal, those of programs that have ended, too.
        """
        for each in self._processes:
            # A group of another user's, as of sudo(8), is not this one's to end.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(each.pid, number)

    def close(self) -> None:
        """
        End all groups at once, and leave the namespaces.
        """
        self.end(signal.SIGKILL)
        while self._processes:
            each = self._processes.pop()
            cast(BinaryIO, each.stdout).close()
            with suppress(subprocess.TimeoutExpired):
                each.wait(_END_SECONDS)
        self._selector.close()
        for fds in (self._kept, self._waiting):
            while fds:
                os.close(fds.pop())

    def _hearAll(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            self._hear(cast(BinaryIO, key.fileobj), key.data)

    def _hear(self, file: BinaryIO, number: int) -> None:
        piece = os.read(file.fileno(), _PIECE)
        *lines, rest = (self._rest.pop(number, b"") + piece).split(b"\n")
        for line in lines:
            self._say(number, line)
        if not piece or len(rest) > _PIECE:
            if rest:
                self._say(number, rest)
        elif rest:
            self._rest[number] = rest
        if not piece:
            self._selector.unregister(file)
            file.close()

    def _say(self, number: int, line: bytes) -> None:
        sys.stdout.buffer.write(b"%d: %s\n" % (number, line))
        sys.stdout.buffer.flush()


def _command(device: str, address: str, words: Sequence[str]) -> list[str]:
    # ib-run itself, for one host.
    place = [] if device == _ADAPTER else ["--address", address]
    return [sys.executable, "-m", "twisted_ib.tools.run", "--device", device, *place, *words]


def runOnHosts(count: int, words: Sequence[str], asked: Sequence[str], say: Callable[[str], None]) -> int:
    """
    @param count: how many hosts.
    @param words: C{ib-run}'s words for one host: options, the program and its arguments.
    @param asked: all words of this command.
    @param say: called with what hosts are, if they are no namespaces.
    @return: the exit status.
    @raise StartError: a host cannot be made.
    """
    isApart = bool(os.environ.pop(RUN_INSIDE, ""))
    if not isApart:
        refused = refusal()
        if not refused:
            _begin(asked)
        say(f"hosts are addresses of loopback: {refused}")
    else:
        _ip("link", "set", "lo", "up")
        _ip("link", "add", "bridge", "type", "bridge")
        _ip("link", "set", "bridge", "up")
    return _run(count, _ROCE, isApart, words)


def runInSubnet(count: int, words: Sequence[str]) -> int:
    """
    The program once at each adapter of an InfiniBand subnet.

    @param count: how many adapters.
    @param words: C{ib-run}'s words for one of them.
    @return: the exit status.
    """
    # RDMA CM finds adapters of a subnet by addresses, which are those of one network namespace.
    return _run(count, _ADAPTER, False, words)


def _end(number: int, frame: object) -> NoReturn:
    # Once: the programs are ended on the way out.
    for each in _ENDS:
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(128 + number)


def _run(count: int, device: str, isApart: bool, words: Sequence[str]) -> int:
    # Ignored, as it may be by what has started this, it would have no child leave a status.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for ends in _ENDS:
        if signal.getsignal(ends) is signal.SIG_DFL:
            signal.signal(ends, _end)
    found = addresses(count, isApart)
    hosts = Hosts({**os.environ, RUN_HOSTS: " ".join(found)}, isApart)
    with tempfile.TemporaryDirectory(prefix="ib-run-") as folder:
        try:
            directories = [
                os.path.join(folder, _SUBNET if device == _ADAPTER else str(n)) for n in range(count)
            ]
            # All of them before the first program, which may be on another host at once.
            for each in directories:
                os.makedirs(each, 0o700, exist_ok=True)
            for number, address in enumerate(found):
                hosts.start(number, address, directories[number], _command(device, address, words))
            hosts.release()
            return hosts.run()
        except KeyboardInterrupt:
            return INTERRUPTED
        finally:
            hosts.close()


def becomeOn(host: str, words: Sequence[str], command: Sequence[str]) -> NoReturn:
    """
    Become a command of the shell on another host of the same C{--hosts}, with that host's device, as rsh(1)
    would do; it does not come back.  C programs find the libraries if the extra C{[c]} is installed.

    @param host: its address.
    @param words: C{ib-run}'s options.
    @param command: its words are joined, and the host's shell divides them.
    @raise StartError: there is no such host, or no run directory of it beside this one's.
    """
    known = os.environ.get(RUN_HOSTS, "").split()
    if host not in known:
        where = f"they are {', '.join(known)}" if known else "this is none of ib-run --hosts"
        raise StartError(f"there is no host {host}: {where}", NOT_RUNNABLE)
    number = str(known.index(host))
    given = os.environ.get(RUN_DIR, "")
    own = os.path.normpath(given)
    inSubnet = os.path.basename(own) == _SUBNET
    directory = own if inSubnet else os.path.join(os.path.dirname(own), number)
    if not given or not os.path.isdir(directory):
        raise StartError(
            f"{RUN_DIR} is {given!r}, which leads to no run directory of {host}: start this with the value "
            "that ib-run --hosts gave its program",
            NOT_RUNNABLE,
        )
    environment = {**os.environ, RUN_HOST: number, RUN_DIR: directory}
    begun, device = ["sh", "-c", " ".join(command)], _ADAPTER if inSubnet else _ROCE
    if lacking():
        # What is Python in it, or starts that, needs no C library.
        chooseDevice(device, None if inSubnet else host, environment)
    else:
        begun = _command(device, host, [*words, *begun])
    if os.path.lexists(directory + _NAMESPACE) or os.path.lexists(own + _NAMESPACE):
        begun = ["nsenter", f"--net={directory}{_NAMESPACE}", *begun]
    with asStarted():
        os.execvpe(begun[0], begun, environment)
