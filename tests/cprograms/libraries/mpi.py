"""
MPI: a ring of ranks by Open MPI and by MPICH, through the device that their libraries are told.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from attrs import frozen

from tests.cprograms.lab import LabError
from tests.cprograms.programs import DEVICES
from tests.support.commands import programOf
from tests.support.ownaddress import ownAddress
from tests.support.waiting import HANG_SECONDS

_SOURCE = Path(__file__).with_name("ring.c")
_TOOL = sys.executable, "-c", programOf("run.run"), "--quiet"
#: As root, more ranks than processors, and neither of the transports that need no adapter.
_OPENMPI = "mpirun.openmpi --allow-run-as-root --oversubscribe --mca btl ^openib,vader,tcp"
_OFI = "--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include verbs;ofi_rxm"

#: Without the variables of the first host for all.
_OPENMPI_AGENT, _MPICH_AGENT = "--mca plm_rsh_agent {0}", "-launcher rsh -launcher-exec {0} -genvnone"


@frozen
class Implementation:
    """
    An implementation of MPI over one of its transports.

    @ivar name: of the test.
    @ivar compiler: its C compiler.
    @ivar command: what starts ranks, but for their number.
    @ivar package: Debian's package with both.
    @ivar agent: options with which C{command} starts other hosts' ranks by a program in the place of rsh(1).
    @ivar rank: the variable that has a rank's number.
    @ivar environment: what its libraries are told of transports.
    """

    name: str
    compiler: str
    command: str
    package: str
    agent: str
    rank: str
    environment: dict[str, str]

    def missing(self) -> str | None:
        """
        @return: why it cannot run here.
        """
        for program in (self.compiler, self.command.split()[0]):
            if shutil.which(program) is None:
                return f"no {program}: it is in Debian's package {self.package}"
        return None

    @property
    def devices(self) -> tuple[str, ...]:
        """
        The devices that it runs on: libfabric leaves the loopback interface out.
        """
        return DEVICES[:1] if "ofi" in self.name else DEVICES

    def compiled(self, folder: Path) -> Path:
        """
        @return: the ring.
        """
        target = folder / self.name
        subprocess.run((self.compiler, "-o", str(target), str(_SOURCE)), check=True, timeout=HANG_SECONDS)
        return target

    def started(self, program: Sequence[str], ranks: int, device: str) -> tuple[str, ...]:
        """
        @return: the command that runs a program's ranks; on C{roce0} with an address each.
        """
        tool = *_TOOL, "--device", device
        command = *self.command.split(), "-n", str(ranks)
        if device == "shm0":
            return (*tool, *command, *program)
        network = ownAddress(1).rpartition(".")[0]
        each = f'exec "$@" --address {network}.$(({self.rank} + 1)) {shlex.join(program)}'
        return (*command, "sh", "-c", each, "sh", *tool)

    def run(self, ring: Path, ranks: int, device: str = "shm0") -> None:
        """
        Run the ring once.

        @raise LabError: some data were wrong, or it has not ended well.
        """
        self.check(self.started((str(ring),), ranks, device), ranks, device)

    def startedOnAddress(self, program: Sequence[str], ranks: int, address: str) -> tuple[str, ...]:
        """
        @return: the command that runs a program's ranks on C{roce0}, all with one address.
        """
        tool = *_TOOL, "--device", "roce0", "--address", address
        return (*tool, *self.command.split(), "-n", str(ranks), *program)

    def runOnAddress(self, ring: Path, ranks: int) -> None:
        """
        Run the ring once on C{roce0}, all ranks on one address.

        @raise LabError: some data were wrong, or it has not ended well.
        """
        tool = *_TOOL, "--device", "roce0", "--address", ownAddress(1)
        self.check((*self.command.split(), "-n", str(ranks), *tool, str(ring)), ranks, "roce0")

    def environmentOn(self, device: str) -> dict[str, str]:
        """
        @return: the environment of what starts ranks.
        """
        path = os.pathsep.join(filter(None, sys.path))
        return {**os.environ, **self.environment, "UCX_NET_DEVICES": f"{device}:1", "PYTHONPATH": path}

    def runOnHosts(self, ring: Path, ranks: int) -> None:
        """
        Run the ring once, each rank on a host of C{ib-run --hosts}: the first host starts the others by
        C{ib-run --on}.

        @raise LabError: some data were wrong, or it has not ended well.
        """
        folder = ring.parent
        agent = folder / "agent"
        start = folder / "start"
        options = self.agent.format(agent)
        start.write_text(f"""
[ "$TWISTED_IB_HOST" = 0 ] || exit 0
exec {shlex.join(self.command.split())} {options} -n {ranks} -host $(echo $TWISTED_IB_HOSTS | tr " " ,) {ring}
""")
        # Daemons of Open MPI that share the folder of their session end now and then: as it is made ("File
        # exists"), or as one of them writes hwloc's file anew.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
            agent.write_text(f"""#!/bin/sh
mkdir -p {name}/"$1"
TMPDIR={name}/"$1" exec {sys.executable} -m twisted_ib.tools.run -q --on "$@"
""")
            agent.chmod(0o755)
            self.check((*_TOOL, "--hosts", str(ranks), "sh", str(start)), ranks, "roce0", "0: ")

    def check(self, command: Sequence[str], ranks: int, device: str, prefix: str = "") -> None:
        """
        Run a command whose ranks are a ring, once.

        @param prefix: before what the ring says.
        @raise LabError: some data were wrong, or it has not ended well.
        """
        ended = self.ended(command, ranks, device)
        if ended.returncode or ended.stdout != f"{prefix}ring of {ranks}: 0 wrong\n":
            raise LabError(f"the status is {ended.returncode}: {ended.stdout}{ended.stderr}")

    def ended(
        self,
        command: Sequence[str],
        ranks: int,
        device: str,
        folder: Path | None = None,
        seconds: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """
        Run a command that starts ranks.

        @param folder: where it runs.
        @param seconds: how long it may take; L{RING_SECONDS} by default.
        @return: its end.
        @raise LabError: there is none.
        """
        try:
            return subprocess.run(
                command,
                cwd=folder,
                env=self.environmentOn(device),
                capture_output=True,
                text=True,
                timeout=seconds or RING_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            raise LabError(f"{ranks} ranks have not ended: {error.stdout!r} {error.stderr!r}") from None


def runHPCC(device: str, ranks: int = 4, address: str = "", seconds: float | None = None) -> None:
    """
    The HPC Challenge, a small one: it checks its results.

    @param address: of all ranks, on C{roce0}; else each has one of its own there.
    @param seconds: how long it may take; L{RING_SECONDS} by default.
    @raise LabError: they are wrong, or it has not ended.
    """
    first, program = IMPLEMENTATIONS[0], ("hpcc",)
    if address:
        command = first.startedOnAddress(program, ranks, address)
    else:
        command = first.started(program, ranks, device)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = Path("/usr/share/doc/hpcc/examples/_hpccinf.txt").read_text()
        (folder / "hpccinf.txt").write_text(re.sub("^1000 *Ns", "200 Ns", text, flags=re.MULTILINE))
        ended = first.ended(command, ranks, device, folder, seconds)
        found = folder / "hpccoutf.txt"
        if ended.returncode or not found.exists() or "Success=1\n" not in found.read_text():
            raise LabError(f"the status is {ended.returncode}: {ended.stdout}{ended.stderr}")


def _openMPI(name: str, options: str, **environment: str) -> Implementation:
    command = f"{_OPENMPI} {options}"
    return Implementation(
        name, "mpicc.openmpi", command, "libopenmpi-dev", _OPENMPI_AGENT, "OMPI_COMM_WORLD_RANK", environment
    )


def _mpich(name: str, **environment: str) -> Implementation:
    return Implementation(
        name, "mpicc.mpich", "mpirun.mpich", "libmpich-dev", _MPICH_AGENT, "PMI_RANK", environment
    )


#: More ranks than processors wait out each other's time slices.
RING_SECONDS = 4 * HANG_SECONDS
#: How many ranks a ring has.
RANKS = (2, 4, 8)
#: All that is tried.
IMPLEMENTATIONS = (
    _openMPI("openmpi_rc", "--mca pml ucx --mca osc ucx", UCX_TLS="rc,self"),
    _openMPI("openmpi_ud", "--mca pml ucx --mca osc ucx", UCX_TLS="ud,self"),
    _openMPI("openmpi_ofi", _OFI),
    _mpich("mpich_rc", UCX_TLS="rc,self"),
    _mpich("mpich_ud", UCX_TLS="ud,self"),
)

__all__ = ["IMPLEMENTATIONS", "RANKS", "RING_SECONDS", "Implementation", "runHPCC"]
