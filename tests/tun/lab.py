"""
A user without rights, who can open a TUN device: in a mount namespace of the tests, with a device node of
their own.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import site
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.support.commands import programOf
from tests.support.waiting import HANG_SECONDS

#: Environment variable that lets these tests run.
SWITCH = "TWISTED_IB_TUN"
#: Where Debian has sshd, which is not on everybody's path.
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
PROGRAMS = ("ping", "iperf3", "ssh", "scp", "sshd", "ssh-keygen", "ip", "unshare", "mount", "setpriv")
#: A number that no user of the machine has.
USER = 54321
_NAME = "twisted-ib-test"
_END = "end of"
#: Device numbers (Linux C{Documentation/admin-guide/devices.txt}).
_TUN, _NULL = (10, 200), (1, 3)


def lacking() -> str | None:
    """
    @return: why these tests cannot run.
    """
    if not os.environ.get(SWITCH):
        return f"they run with {SWITCH}=1"
    if os.geteuid():
        return "they need root, for a device node and mounts"
    missing = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    with tempfile.TemporaryDirectory() as directory:
        try:
            os.close(os.open(_node(Path(directory, "tun"), *_TUN), os.O_RDWR))
        except OSError as error:
            return f"a device node of a TUN cannot be made or opened: {error.strerror}"
    return None


def _node(node: Path, major: int, minor: int) -> Path:
    # Machines of tests have none, or one that only root may open.
    os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(major, minor))
    node.chmod(0o666)
    return node


class Host:
    """
    C{ib-ipoib run} with a shell, to which one command after another is given.
    """

    def __init__(self, process: subprocess.Popen[bytes], name: str) -> None:
        self.process, self._name = process, name
        self._said, self._count = b"", 0

    def begin(self, command: str) -> None:
        """
        Give it a command, and do not wait for its end.
        """
        assert self.process.stdin is not None
        self._count += 1
        self.process.stdin.write(f"{{ {command}\n}} 2>&1; echo {_END} {self._count} $?\n".encode())
        self.process.stdin.flush()

    def outcome(self, seconds: float = HANG_SECONDS) -> tuple[int, str]:
        """
        Wait for the end of the last command.

        @return: its exit status, and its output.
        """
        assert self.process.stdout is not None
        descriptor, deadline = self.process.stdout.fileno(), time.monotonic() + seconds
        mark = f"{_END} {self._count} ".encode()
        while not (mark in self._said and self._said.endswith(b"\n")):
            if not select.select([descriptor], [], [], max(deadline - time.monotonic(), 0))[0]:
                raise AssertionError(f"{self._name}: not done in {seconds:g} s: {self._said.decode()}")
            octets = os.read(descriptor, 65536)
            if not octets:
                raise AssertionError(f"{self._name} ended: {self._said.decode()}")
            self._said += octets
        output, _, status = self._said.rpartition(mark)
        self._said = b""
        return int(status), output.decode()

    def do(self, command: str, seconds: float = HANG_SECONDS) -> str:
        """
        Let it run a command, which is to succeed.

        @return: its output.
        """
        self.begin(command)
        status, output = self.outcome(seconds)
        if status:
            raise AssertionError(f"{self._name}: {command}: {status}: {output}")
        return output

    def retry(self, command: str, seconds: float = HANG_SECONDS) -> str:
        """
        Let it run a command until it succeeds, as a server that it needs is just starting.

        @return: its output.
        """
        return self.do(f"until {command}; do sleep 0.1; done", seconds)

    def end(self) -> int:
        """
        Let the shell end.

        @return: the exit status of C{ib-ipoib}.
        """
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(HANG_SECONDS)


class TunTestCase(SynchronousTestCase):
    """
    Hosts in namespaces of their own.

    @cvar device: theirs.
    @ivar directory: the user's home, where its processes meet.
    @ivar node: a device node that everybody may open.
    """

    device = "shm0"
    #: A hundred MB, and thousands of processes.
    timeout = 10 * HANG_SECONDS

    def setUp(self) -> None:
        """
        Make a place that the user can reach.
        """
        self.directory = Path(tempfile.mkdtemp(prefix=_NAME))
        self.addCleanup(shutil.rmtree, self.directory)
        self.directory.chmod(0o755)
        self.node = _node(self.directory / "tun", *_TUN)
        self.home = self.directory / "home"
        self.home.mkdir()
        self._script = self.directory / "enter"
        self._script.write_text(self._enter())
        for each in (self.home, *self.home.iterdir()):
            os.chown(each, USER, USER)

    def _enter(self) -> str:
        # What may lie where only root can go, Python, its packages and this checkout, is mounted where the
        # user can.
        places = {"python": sys.base_prefix, "checkout": str(Path(__file__).resolve().parents[2])}
        places |= {f"site{n}": each for n, each in enumerate(site.getsitepackages()) if os.path.isdir(each)}
        lines = ["#!/bin/sh -e"]
        for name, place in places.items():
            (self.directory / name).mkdir()
            lines.append(f"mount --rbind '{place}' {self.directory / name}")
        for name, text in (
            ("passwd", f"{_NAME}:x:{USER}:{USER}::{self.home}:/bin/sh\n"),
            ("group", f"{_NAME}:x:{USER}:\n"),
        ):
            file = self.directory / name
            file.write_text(Path("/etc", name).read_text() + text)
            lines.append(f"mount --bind {file} /etc/{name}")
        lines.append(f"mount --bind {_node(self.directory / 'null', *_NULL)} /dev/null")
        paths = ":".join(str(self.directory / name) for name in places if name != "python")
        lines += [
            f"export PYTHONHOME={self.directory}/python PYTHONPATH={paths} HOME={self.home} USER={_NAME}",
            f"export TWISTED_IB_RUN_DIR={self.home}/run PATH={PATH}",
            f"cd {self.home}",
            f'exec setpriv --reuid {USER} --regid {USER} --clear-groups -- "$@"',
        ]
        return "\n".join(lines) + "\n"

    @property
    def python(self) -> str:
        """
        The command that is Python for the user.
        """
        return f"{self.directory}/python/bin/python{sys.version_info[0]}.{sys.version_info[1]}"

    def user(self, *command: str) -> list[str]:
        """
        @return: a command line that runs a command as the user.
        """
        return ["unshare", "--mount", "sh", str(self._script), *command]

    def tool(self, *arguments: str, isRoot: bool = False) -> list[str]:
        """
        @return: a command line that runs C{ib-ipoib} as the user, or as root.
        """
        if isRoot:
            place = f"TWISTED_IB_RUN_DIR={self.directory}/run"
            return ["env", place, sys.executable, "-c", programOf("ipoib"), *arguments]
        return self.user(self.python, "-m", "twisted_ib.tools.ipoib", *arguments)

    def started(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """
        @return: a process that ends with the test.
        """
        process = subprocess.Popen(command, start_new_session=True, **options)

        def end() -> None:
            with process:
                process.terminate()
                try:
                    process.wait(HANG_SECONDS)
                finally:
                    # What a failed test has left in its network.
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)

        self.addCleanup(end)
        return process

    def host(
        self, *addresses: str, mode: str = "connected", mtu: int | None = None, isRoot: bool = False
    ) -> Host:
        """
        @param addresses: with lengths.
        @return: a host that is up.
        """
        limit = [] if mtu is None else [f"--mtu={mtu}"]
        arguments = [
            "run",
            self.device,
            *addresses,
            f"--tun={self.node}",
            f"--mode={mode}",
            *limit,
            "--",
            "sh",
        ]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        return Host(self.started(self.tool(*arguments, isRoot=isRoot), **pipes), addresses[0])

    def pair(self, **options: Any) -> tuple[Host, Host]:
        """
        @return: two hosts, 10.9.0.1 and 10.9.0.2, that reach each other.
        """
        first, second = (self.host(f"10.9.0.{n}/24", **options) for n in (1, 2))
        for each in (first, second):
            each.do("true")
        second.do("ping -q -c 1 -w 10 10.9.0.1")
        return first, second

    def linkLocal(self, host: Host) -> str:
        """
        @return: the IPv6 address of a host, with the zone.
        """
        words = host.do(f"ip -6 -o address show dev {self.device} scope link").split()
        return f"{words[words.index('inet6') + 1].partition('/')[0]}%{self.device}"


__all__ = ["Host", "TunTestCase", "lacking"]
