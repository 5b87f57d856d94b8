"""
QEMU's live migration over RDMA: a machine moves from one process to another.
"""

from __future__ import annotations

import json
import select
import shutil
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.cprograms.lab import LabError, Running, Side, freePort
from tests.support.waiting import HANG_SECONDS

PACKAGE = "qemu-system-x86"
_MACHINE = "qemu-system-x86_64"
#: Without a disk it stays in its BIOS, whose memory is moved.
_COMMAND = (
    _MACHINE,
    *("-display", "none", "-nodefaults", "-accel", "tcg", "-m", "64"),
)
#: Where a machine says what became of it; relative, as the whole path may be too long for a socket.
_SOURCE, _TARGET = "source", "target"
_LOOK_SECONDS = 0.05


def missingMachine() -> str | None:
    """
    @return: why it cannot run here.
    """
    return None if shutil.which(_MACHINE) else f"no {_MACHINE}: it is in Debian's package {PACKAGE}"


class _Machine:
    # One side, with its QEMU Machine Protocol.
    def __init__(self, side: Side, name: str, directory: str, *words: str) -> None:
        command = (*_COMMAND, "-qmp", f"unix:{name},server=on,wait=off", *words)
        self.running: Running = side.start(command, directory)
        self.path = Path(directory, name)
        self.socket = socket.socket(socket.AF_UNIX)

    def connect(self) -> None:
        # It listens when it has begun, and has bound its address then.
        self.socket.settimeout(HANG_SECONDS)
        deadline = time.monotonic() + HANG_SECONDS
        while self.socket.connect_ex(str(self.path)):
            if time.monotonic() > deadline:
                raise LabError("it does not begin")
            select.select([], [], [], _LOOK_SECONDS)
        self.lines = self.socket.makefile("r")
        self.lines.readline()
        self.told("qmp_capabilities")

    def told(self, command: str, **arguments: object) -> Any:
        words = json.dumps({"execute": command, "arguments": arguments})
        try:
            self.socket.sendall(words.encode())
            # Events come between answers.
            while line := self.lines.readline():
                answer = json.loads(line)
                if "return" in answer:
                    return answer["return"]
                if "error" in answer:
                    break
        except OSError as error:
            line = str(error)
        raise LabError(f"{command}: {line or 'it has ended'}")

    def end(self) -> None:
        self.socket.close()
        self.running.stop()


def runMigration(server: Side, client: Side) -> None:
    """
    Move a machine.

    @param server: where it arrives.
    @param client: where it runs before.
    @raise LabError: it did not arrive, or a process has not ended well.
    """
    with tempfile.TemporaryDirectory() as directory:
        uri = f"rdma:{server.address}:{freePort()}"
        target = _Machine(server, _TARGET, directory, "-incoming", uri)
        source = _Machine(client, _SOURCE, directory)
        try:
            _move(source, target, uri)
        except LabError as error:
            said = (each.running.said() for each in (target, source))
            raise LabError(f"{error}\nserver:\n{next(said)}\nclient:\n{next(said)}") from None
        finally:
            for each in (source, target):
                each.end()


def _move(source: _Machine, target: _Machine, uri: str) -> None:
    for each in (target, source):
        each.connect()
    source.told("migrate", uri=uri)
    deadline = time.monotonic() + HANG_SECONDS
    while (state := source.told("query-migrate"))["status"] != "completed":
        if state["status"] in ("failed", "cancelled") or time.monotonic() > deadline:
            raise LabError(f"the machine has not moved: {state}")
        select.select([], [], [], _LOOK_SECONDS)
    while not target.told("query-status")["running"]:
        if time.monotonic() > deadline:
            raise LabError("the machine does not run where it has moved to")
        select.select([], [], [], _LOOK_SECONDS)
    for each in (source, target):
        each.told("quit")
        status = each.running.ended()
        if status:
            raise LabError(f"the status is {status}")


__all__ = ["PACKAGE", "missingMachine", "runMigration"]
