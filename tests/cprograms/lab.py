"""
A server and its client, two processes of C{ib-run}.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from attrs import define, field, frozen

from tests.cprograms.programs import Program
from tests.support.commands import programOf
from tests.support.ownaddress import ownAddress, ownGroup
from tests.support.waiting import HANG_SECONDS

#: Environment variable that lets these tests run.
SWITCH = "TWISTED_IB_CPROGRAMS"
#: The words of a client that is too early: the server has not called rdma_listen(3) yet. The error of
#: datagrams is the status of a SIDR REP, 1 for a service that is not there (IBTA vol. 1 12.11.2.1).
_REFUSED = re.compile(r"RDMA_CM_EVENT_REJECTED|RDMA_CM_EVENT_UNREACHABLE, error: 1\b|Connection refused")
_LISTEN = "0A"
_LOOK_SECONDS = 0.02


def lacking() -> str | None:
    """
    @return: why these tests cannot run.
    """
    if not os.environ.get(SWITCH):
        return f"they run with {SWITCH}=1"
    if find_spec("elftools") is None or find_spec("cffi") is None:
        return "the extra [c] is not installed"
    if shutil.which("stdbuf") is None:
        return "there is no stdbuf"
    from twisted_ib.cabi.building.build import libraries
    from twisted_ib.errors import LibraryBuildError

    try:
        libraries()
    except LibraryBuildError as error:
        return f"the libraries cannot be built: {error}"
    return None


class LabError(Exception):
    """
    A program did not do what it should; the text has all that both said.
    """


@frozen
class Side:
    """
    Where one of both processes runs.

    @ivar address: its own.
    @ivar prefix: words before its command, as of C{ip netns exec}.
    """

    address: str
    prefix: tuple[str, ...] = ()


def sides() -> tuple[Side, Side]:
    """
    @return: a server's and a client's, on the loopback interface.
    """
    return Side(ownAddress(1)), Side(ownAddress(2))


@define
class _Running:
    # A process whose output is collected.
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    name: str
    begun: float = field(factory=time.monotonic)

    def said(self) -> str:
        self.output.seek(0)
        return self.output.read().decode(errors="replace")

    def ended(self) -> int:
        left = self.begun + HANG_SECONDS - time.monotonic()
        try:
            return self.process.wait(max(left, 0.1))
        except subprocess.TimeoutExpired:
            said = self.said()
            raise LabError(f"{self.name} has not ended in {HANG_SECONDS:g} s: {said}") from None

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.output.close()


@define
class Lab:
    """
    Runs programs on a device.

    @ivar device: its name.
    @ivar server: where the server runs.
    @ivar client: where the client runs.
    """

    device: str
    server: Side
    client: Side

    def run(self, program: Program) -> str:
        """
        Run a program once.

        @return: what its client has said.
        @raise LabError: it did not do what it should.
        """
        with tempfile.TemporaryDirectory() as directory:
            words = {
                "device": self.device,
                "port": str(_freePort()),
                "server": self.server.address,
                "client": self.client.address,
                "group": ownGroup(1),
            }
            server = self._started(self.server, program.server.format(**words).split(), directory)
            try:
                self._waitFor(server, program, int(words["port"]))
                client, said = self._client(program.client.format(**words).split(), directory, server)
                if client or program.said not in said:
                    raise LabError(f"the client's status is {client}, {program.said!r} expected; {said}")
                status = server.ended()
                if status:
                    raise LabError(f"the server's status is {status}; the client's 0: {said}")
                return said
            except LabError as error:
                raise LabError(f"{error}\nserver:\n{server.said()}") from None
            finally:
                server.stop()

    def _started(self, side: Side, command: Sequence[str], directory: str) -> _Running:
        options = ["--device", self.device]
        if self.device != "shm0":
            options += ["--address", side.address]
        # By line, so that what a program waits for can be seen.
        words = ("stdbuf", "-oL", sys.executable, "-c", programOf("run.run"), *options, *command)
        output = tempfile.TemporaryFile(dir=directory)
        process = subprocess.Popen(
            [*side.prefix, *words],
            env={**os.environ, "TWISTED_IB_RUN_DIR": directory},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=directory,
        )
        return _Running(process, output, command[0])

    def _waitFor(self, server: _Running, program: Program, port: int) -> None:
        # Nothing tells of another process's listening port or output but looking.
        deadline = time.monotonic() + HANG_SECONDS
        while time.monotonic() < deadline and server.process.poll() is None:
            if program.isOverTCP:
                if _listens(server.process.pid, port):
                    return
            elif program.ready in server.said():
                return
            select.select([], [], [], _LOOK_SECONDS)
        raise LabError(f"{server.name} is not ready: status {server.process.poll()}")

    def _client(self, command: Sequence[str], directory: str, server: _Running) -> tuple[int, str]:
        deadline = time.monotonic() + HANG_SECONDS
        while True:
            client = self._started(self.client, command, directory)
            try:
                status = client.ended()
            finally:
                said = client.said()
                client.stop()
            if not status or not _REFUSED.search(said) or server.process.poll() is not None:
                return status, said
            if time.monotonic() > deadline:
                raise LabError(f"{client.name} is refused: {said}")


def _freePort() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


def _listens(pid: int, port: int) -> bool:
    # proc(5), in the process's network namespace: local address, remote address, state.
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            local, _, state = line.split()[1:4]
            if state == _LISTEN and int(local.rpartition(":")[2], 16) == port:
                return True
    return False
