"""
A disk over iSER is written and read.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from ctypes.util import find_library
from pathlib import Path

from tests.cprograms.iscsi import initiator
from tests.cprograms.iscsi.target import INITIATOR, MEBIBYTES, Target, lackingPrograms
from tests.cprograms.lab import LabError, Side


def lackingDisk() -> str | None:
    """
    @return: why L{runDisk} cannot run.
    """
    if find_library("iscsi") is None:
        return "no libiscsi: it is in Debian's package libiscsi7"
    return lackingPrograms("iscsi-inq", "iscsi-readcapacity16")


def runDisk(server: Side, client: Side) -> None:
    """
    libiscsi's own commands see the disk; 8 MiB written and read in requests of 4 to 256 KiB are the same, and
    are on the target's disk.

    @raise LabError: it is not so.
    """
    with tempfile.TemporaryDirectory() as directory:
        target = Target(server, client, Path(directory))
        try:
            _run(target)
        finally:
            target.stop()


def _run(target: Target) -> None:
    url = target.urls["iser"]
    said = target.ended("iscsi-inq", "-i", INITIATOR, url)
    said += target.ended("iscsi-readcapacity16", "-i", INITIATOR, url)
    if "IET" not in said or f"Total size:{MEBIBYTES << 20}" not in said:
        raise LabError(f"the disk is not as it should be: {said}")
    hashes = target.ended(sys.executable, initiator.__file__, url, INITIATOR).splitlines()
    if len(hashes) != len(initiator.WRITES) or any(len(set(each.split())) != 1 for each in hashes):
        raise LabError(f"what is read is not what was written: {hashes}")
    with target.disk.open("rb") as file:
        found = hashlib.sha256(file.read(initiator.TOTAL)).hexdigest()
    if found != hashes[-1].split()[0]:
        raise LabError("the target's disk has something else")


__all__ = ["lackingDisk", "runDisk"]
