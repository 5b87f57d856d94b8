"""
A subnet in this process, and programs of Debian that are attached to it.
"""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from twisted.internet.task import Clock

from tests.support.waiting import HANG_SECONDS, waitUntil
from twisted_ib.subnet.hosting.hosted import HostedSubnet
from twisted_ib.subnet.hosting.umadsockets import UmadSockets
from twisted_ib.subnet.network.topology import parse

#: Where Debian has the programs of infiniband-diags, which are not on everybody's path.
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
PRELOADED = "umad2sim/libumad2sim.so"
#: Environment variable that lets these tests run.
SWITCH = "TWISTED_IB_OPENSM"
#: OpenSM's log: errors, information, and dumps of its routes.
LOG_FLAGS = "0x43"

_names = count()


def preloaded() -> Path | None:
    """
    @return: the library through which programs reach a subnet.
    """
    for folder in (Path("/usr/lib"), *Path("/usr/lib").glob("*-linux-gnu*")):
        if (folder / PRELOADED).exists():
            return folder / PRELOADED
    return None


def lacking() -> str | None:
    """
    @return: why these tests cannot run.
    """
    if not os.environ.get(SWITCH):
        return f"they run with {SWITCH}=1"
    missing = [name for name in ("opensm", "ibsim", "ibnetdiscover") if shutil.which(name, path=PATH) is None]
    if preloaded() is None:
        missing.append("libumad2sim.so")
    if missing:
        return f"not installed: {', '.join(missing)}"
    return None


class Programs:
    """
    Starts programs that are attached to one simulator.
    """

    def __init__(self, directory: Path) -> None:
        """
        @param directory: a new one, in which they run and leave their files.
        """
        directory.mkdir(parents=True)
        #: C{IBSIM_SOCKNAME}, of nobody else in this network namespace.
        self.name = f"test{os.getpid()}.{next(_names)}"
        self.directory = directory
        self._running: list[subprocess.Popen[bytes]] = []

    def environment(self, host: str, **more: str) -> dict[str, str]:
        """
        @return: that of a program attached to a node.
        """
        return {
            "PATH": PATH,
            "IBPATH": "/usr/sbin",
            "IBSIM_SOCKNAME": self.name,
            "SIM_HOST": host,
            "LD_PRELOAD": str(preloaded()),
            "OSM_CACHE_DIR": str(self.directory),
            "OSM_TMP_DIR": str(self.directory),
            **more,
        }

    def start(self, host: str, *command: str, **more: str) -> subprocess.Popen[bytes]:
        """
        Start a program whose output goes to a file.
        """
        output = self.directory / f"{Path(command[0]).name}.{len(self._running)}.output"
        with output.open("wb") as file:
            process = subprocess.Popen(
                command,
                cwd=self.directory,
                env=self.environment(host, **more),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        process.output = output  # type: ignore[attr-defined]
        self._running.append(process)
        return process

    def opensm(self, host: str = "Hca1", *options: str) -> subprocess.Popen[bytes]:
        """
        Start OpenSM, with its own defaults.

        @param options: lines of its configuration file.
        """
        configuration = self.directory / "opensm.conf"
        configuration.write_text("".join(f"{line}\n" for line in options))
        log = str(self.directory / "opensm.log")
        return self.start(host, "opensm", "-f", log, "-F", str(configuration), "-D", LOG_FLAGS)

    def simulator(self, topology: str) -> subprocess.Popen[bytes]:
        """
        Start the real ibsim.
        """
        file = self.directory / "topology"
        file.write_text(topology)
        return self.start("", "ibsim", "-s", "-n", str(file), LD_PRELOAD="")

    def turn(self) -> None:
        """
        Let time pass.
        """
        time.sleep(0.005)

    def until(self, holds: Callable[[], object]) -> None:
        """
        Wait until something is so.
        """
        waitUntil(holds, self.turn)

    def run(self, host: str, *command: str, **more: str) -> tuple[int, str]:
        """
        Run a program to its end.

        @return: exit status and output.
        """
        process = self.start(host, *command, **more)
        self.until(lambda: process.poll() is not None)
        return process.returncode, process.output.read_text()  # type: ignore[attr-defined]

    def stop(self) -> None:
        """
        End all programs.  They say goodbye to the simulator, the first of them last.
        """
        for process in reversed(self._running):
            self.end(process)

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """
        End a program, which is told to, and is killed where that is not enough.
        """
        process.terminate()
        deadline = time.monotonic() + HANG_SECONDS / 4
        self.until(lambda: process.poll() is not None or time.monotonic() > deadline)
        # OpenSM cancels its thread in umad_recv(), which keeps the mutex of libumad2sim locked; if that
        # library's own thread waits for it with a MAD, the process never ends (1 of 1,000).
        process.kill()
        process.wait()


class Lab(Programs):
    """
    A subnet of this process, and its programs.
    """

    def __init__(self, topology: str, directory: Path) -> None:
        """
        @param topology: in the language of ibsim.
        """
        super().__init__(directory)
        self._poll = select.poll()
        self._readers: dict[int, Any] = {}
        self._clock = Clock()
        self._began = time.monotonic()
        #: Names of losses.
        self.lost: Counter[str] = Counter()
        self.subnet = HostedSubnet(parse(topology, "topology"), self._count, self._clock)
        allows = {os.geteuid()}.__contains__
        self.sockets = UmadSockets(self.subnet, self.name, self._add, self._remove, self._count, allows)
        self.subnet.consumer = self.sockets.server

    def _count(self, name: str) -> None:
        self.lost[name] += 1

    def _add(self, reader: Any) -> None:
        self._readers[reader.fileno()] = reader
        self._poll.register(reader.fileno(), select.POLLIN)

    def _remove(self, reader: Any) -> None:
        if self._readers.pop(reader.fileno(), None) is not None:
            self._poll.unregister(reader.fileno())

    def turn(self) -> None:
        """
        Serve what has arrived, or wait a little for it.
        """
        for fd, _ in self._poll.poll(5):
            reader = self._readers.get(fd)
            if reader is not None:
                reader.doRead()
        self._clock.advance(max(0.0, time.monotonic() - self._began - self._clock.seconds()))

    def stop(self) -> None:
        """
        End the programs and the subnet.
        """
        super().stop()
        self.sockets.close()
        self.subnet.close()


@contextmanager
def lab(topology: str, directory: Path) -> Iterator[Lab]:
    """
    A lab for the duration of a test.
    """
    made = Lab(topology, directory)
    try:
        yield made
    finally:
        made.stop()
