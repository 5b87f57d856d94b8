"""
MPI: a ring of ranks by Open MPI and by MPICH, through the device that their libraries are told.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from attrs import frozen

from tests.cprograms.lab import LabError
from tests.support.commands import programOf
from tests.support.waiting import HANG_SECONDS

_SOURCE = Path(__file__).with_name("ring.c")
#: As root, more ranks than processors, and neither of the transports that need no adapter.
_OPENMPI = "mpirun.openmpi --allow-run-as-root --oversubscribe --mca btl ^openib,vader,tcp"
_OFI = "--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include verbs;ofi_rxm"


@frozen
class Implementation:
    """
    An implementation of MPI over one of its transports.

    @ivar name: of the test.
    @ivar compiler: its C compiler.
    @ivar command: what starts ranks, but for their number.
    @ivar package: Debian's package with both.
    @ivar environment: what its libraries are told of transports.
    """

    name: str
    compiler: str
    command: str
    package: str
    environment: dict[str, str]

    def missing(self) -> str | None:
        """
        @return: why it cannot run here.
        """
        for program in (self.compiler, self.command.split()[0]):
            if shutil.which(program) is None:
                return f"no {program}: it is in Debian's package {self.package}"
        return None

    def compiled(self, folder: Path) -> Path:
        """
        @return: the ring.
        """
        target = folder / self.name
        subprocess.run((self.compiler, "-o", str(target), str(_SOURCE)), check=True, timeout=HANG_SECONDS)
        return target

    def run(self, ring: Path, ranks: int, device: str = "shm0") -> None:
        """
        Run the ring once.

        @raise LabError: some data were wrong, or it has not ended well.
        """
        tool = sys.executable, "-c", programOf("run.run"), "--quiet", "--device", device
        try:
            ended = subprocess.run(
                (*tool, *self.command.split(), "-n", str(ranks), str(ring)),
                env={**os.environ, **self.environment, "UCX_NET_DEVICES": f"{device}:1"},
                capture_output=True,
                text=True,
                timeout=HANG_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            raise LabError(f"{ranks} ranks have not ended: {error.stdout!r} {error.stderr!r}") from None
        if ended.returncode or ended.stdout != f"ring of {ranks}: 0 wrong\n":
            raise LabError(f"the status is {ended.returncode}: {ended.stdout}{ended.stderr}")


def _openMPI(name: str, options: str, **environment: str) -> Implementation:
    return Implementation(name, "mpicc.openmpi", f"{_OPENMPI} {options}", "libopenmpi-dev", environment)


def _mpich(name: str, **environment: str) -> Implementation:
    return Implementation(name, "mpicc.mpich", "mpirun.mpich", "libmpich-dev", environment)


#: All that is tried.
IMPLEMENTATIONS = (
    _openMPI("openmpi_rc", "--mca pml ucx --mca osc ucx", UCX_TLS="rc,self"),
    _openMPI("openmpi_ud", "--mca pml ucx --mca osc ucx", UCX_TLS="ud,self"),
    _openMPI("openmpi_ofi", _OFI),
    _mpich("mpich_rc", UCX_TLS="rc,self"),
    _mpich("mpich_ud", UCX_TLS="ud,self"),
)

__all__ = ["IMPLEMENTATIONS", "Implementation"]
