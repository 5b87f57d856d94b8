"""
The target: tgtd with a disk over iSER, and another over TCP.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from unittest import mock

from tests.cprograms.lab import LabError, Running, Side
from tests.support.waiting import HANG_SECONDS

INITIATOR = "iqn.2026-01.example:initiator"
#: Of the second initiator of `iscsi-test-cu`.
SECOND = "iqn.2007-10.com.github:sahlberg:libiscsi:iscsi-test-2"
#: Of iSER, on the target's device.
PORT = 3260
MEBIBYTES = 64
_TARGETS = {"iser": "iqn.2026-01.example:disk", "iscsi": "iqn.2026-01.example:other"}
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_LOOK_SECONDS = 0.05


def lackingPrograms(*names: str) -> str | None:
    """
    @param names: of the initiator's programs.
    @return: why there can be no target.
    """
    for name, package in (("tgtd", "tgt"), *((name, "libiscsi-bin") for name in names)):
        if shutil.which(name, path=_PATH) is None:
            return f"no {name}: it is in Debian's package {package}"
    return None


class Target:
    """
    The target, and its initiators.

    @ivar disk: the file behind the disk over iSER.
    @ivar urls: by the transport, C{iser} or C{iscsi}, the disk's.
    """

    def __init__(self, server: Side, client: Side, directory: Path) -> None:
        """
        Start it.

        @param server: where it runs.
        @param client: where the initiators run.
        @param directory: of its own, with a short name: it has a socket there.
        @raise LabError: it does not start.
        """
        self._client, self._directory = client, directory
        self._variables = {"TGT_IPC_SOCKET": str(directory / "socket"), "PATH": _PATH}
        self.disk = directory / "iser"
        address = server.address
        with socket.socket() as probe:
            probe.bind(("", 0))
            tcp = probe.getsockname()[1]
        ports = {"iser": PORT, "iscsi": tcp}
        self.urls = {kind: f"{kind}://{address}:{ports[kind]}/{name}/1" for kind, name in _TARGETS.items()}
        # A smaller pool than a gibibyte.
        options = "--iser", f"port={PORT},pool_sz_mb={MEBIBYTES}", "--iscsi", f"portal={address}:{tcp}"
        self._running = self._begun(server, "tgtd", "-f", *options)
        try:
            self._waitUntilItAnswers()
            for number, kind in enumerate(_TARGETS, 1):
                self._add(number, kind)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """
        End it.
        """
        self._running.stop()

    def ended(self, *command: str, statuses: Iterable[int] = (0,), **environment: str) -> str:
        """
        Run an initiator.

        @param statuses: that are right.
        @return: what it said.
        @raise LabError: it has failed.
        """
        run = self._begun(self._client, *command, **environment)
        try:
            status = run.ended()
            if status not in statuses:
                raise LabError(f"{command[0]} ended with {status}: {run.said()}")
            return run.said()
        finally:
            run.stop()

    def _begun(self, side: Side, *command: str, **environment: str) -> Running:
        with mock.patch.dict(os.environ, {**self._variables, **environment}):
            return side.start(command, str(self._directory))

    def _add(self, number: int, kind: str) -> None:
        disk = self._directory / kind
        disk.write_bytes(b"")
        os.truncate(disk, MEBIBYTES << 20)
        one = "--lld", kind, "--tid", str(number)
        self._admin("--mode", "target", "--op", "new", *one, "--targetname", _TARGETS[kind])
        self._admin("--mode", "logicalunit", "--op", "new", *one, "--lun", "1", "--backing-store", str(disk))
        # By name too: without that it refuses the login over iSER, of the kernel's initiator as well.
        for who in (("-I", "ALL"), ("-Q", INITIATOR), ("-Q", SECOND)):
            self._admin("--mode", "target", "--op", "bind", *one, *who)

    def _admin(self, *arguments: str) -> int:
        return subprocess.run(
            ("tgtadm", *arguments),
            env={**os.environ, **self._variables},
            capture_output=True,
            check=False,
            timeout=HANG_SECONDS,
        ).returncode

    def _waitUntilItAnswers(self) -> None:
        # Nothing tells of that but looking.
        deadline = time.monotonic() + HANG_SECONDS
        while self._admin("--lld", "iser", "--mode", "sys", "--op", "show"):
            if time.monotonic() > deadline:
                raise LabError(f"tgtd does not answer: {self._running.said()}")
            select.select([], [], [], _LOOK_SECONDS)


__all__ = ["INITIATOR", "MEBIBYTES", "PORT", "Target", "lackingPrograms"]
