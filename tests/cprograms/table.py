"""
The table of programs tried, as docs/c-programs.md has it: which there are, and how a run of all makes it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from attrs import frozen

from tests.cprograms.lab import SWITCH, Lab, LabError, lacking, sides
from tests.cprograms.libraries.dapl import runDAPL
from tests.cprograms.libraries.libfabric import CONNECTED, DATAGRAMS
from tests.cprograms.libraries.mpi import IMPLEMENTATIONS, RANKS, Implementation, runHPCC
from tests.cprograms.libraries.namespaces import apart
from tests.cprograms.libraries.ucx import PROGRAMS as UCX
from tests.cprograms.libraries.ucx import TRANSPORTS, runUCX
from tests.cprograms.others.pythons import (
    NIXL,
    installedFromPyPI,
    installFromPyPI,
    runMPI4Py,
    runNIXL,
    runPyverbs,
)
from tests.cprograms.others.qemu import PACKAGE as QEMU
from tests.cprograms.others.qemu import runMigration
from tests.cprograms.perftest.forms import EVERY, FORMS, Form
from tests.cprograms.programs import CM, DEVICES, FIO, IPERF, IWARP, PINGPONGS, QPERF, SERVERS, Program

#: A run, by its name: raises L{LabError}.
Runs = dict[str, Callable[[], None]]
#: Devices of the table: over iWARP what connects by the communication manager.
COLUMNS = (*DEVICES, "iwarp0")
_HEAD = ("program", "package", *(f"`{device}`" for device in COLUMNS))


@frozen
class Row:
    """
    Programs of one package.

    @ivar programs: their names.
    @ivar package: Debian's.
    @ivar version: which was tried.
    @ivar runs: what is run on a device; nothing where it is not for it.
    @ivar isOfPyPI: whether it is PyPI's instead, with an environment of its own.
    """

    programs: str
    package: str
    version: str
    runs: Callable[[str], Runs]
    isOfPyPI: bool = False

    def installed(self) -> str:
        """
        @return: the version that is there; C{""} if it lacks.
        """
        return installedFromPyPI(self.package) if self.isOfPyPI else installed(self.package)

    def line(self, version: str, passed: Iterable[int]) -> str:
        """
        @param passed: how many have, by device.
        @return: its line of the table.
        """
        numbers = [len(self.runs(device)) for device in COLUMNS]
        figures = (f"{n} of {most}" if most else "" for n, most in zip(passed, numbers, strict=True))
        return f"| {self.programs} | `{self.package}` {version} | {' | '.join(figures)} |".replace(
            "  |", " |"
        )


def _run(program: Program, device: str) -> None:
    Lab(*sides(device)).run(program)


def _pairs(programs: Iterable[Program], device: str) -> Runs:
    told = (each for each in programs if device in DEVICES or each in IWARP)
    return {each.name: partial(_run, each, device) for each in told}


def _perftest(device: str) -> Runs:
    return {form.command: partial(form.run, *sides(device)) for form in FORMS[device]}


def _ucx(device: str) -> Runs:
    if device not in DEVICES:
        return {}
    # One over datagrams alone.
    told = [(program, TRANSPORTS[0]) for program in UCX] + [(UCX[0], TRANSPORTS[1])]
    return {f"{each.name} {way}": partial(runUCX, each, way, *sides(device)) for each, way in told}


def _apart(program: Program, device: str) -> None:
    with apart(device) as ends:
        Lab(*ends).run(program)


def _libfabric(device: str) -> Runs:
    run = _run if device == "shm0" else _apart
    programs = (*CONNECTED, *DATAGRAMS) if device in DEVICES else CONNECTED
    return {each.name: partial(run, each, device) for each in programs}


def _ring(implementation: Implementation, ranks: int, device: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        implementation.run(implementation.compiled(Path(folder)), ranks, device)


def _mpi(name: str, device: str) -> Runs:
    return {
        f"{each.name} {ranks}": partial(_ring, each, ranks, device)
        for each in IMPLEMENTATIONS
        if each.name.startswith(name) and device in each.devices
        for ranks in RANKS
    }


def _dapl(device: str) -> Runs:
    return {"dtest": partial(runDAPL, *sides(device))}


def _hpcc(device: str) -> Runs:
    return {"hpcc": partial(runHPCC, device)} if device in DEVICES else {}


def _mpi4py(device: str) -> Runs:
    return {"mpi4py": partial(runMPI4Py, device)} if device in DEVICES else {}


def _pyverbs(device: str) -> Runs:
    return {"pyverbs": partial(runPyverbs, sides(device)[0])} if device in DEVICES else {}


def _migration(device: str) -> Runs:
    return {"migrate": partial(runMigration, *sides(device))} if device in DEVICES else {}


def _nixl(device: str) -> Runs:
    return {"nixl": partial(runNIXL, *sides(device))} if device in DEVICES else {}


_CM_PROGRAMS = (
    *("rping", "ucmatose", "cmtime", "udaddy", "mckey", "rdma_client", "rdma_xclient", "rstream"),
    "riostream",
)
#: The table.
ROWS = (
    Row(
        "`ibv_rc_pingpong`, `ibv_uc_pingpong`, `ibv_ud_pingpong`, `ibv_srq_pingpong`, polling and `-e`",
        *("ibverbs-utils", "44.0-2"),
        partial(_pairs, PINGPONGS),
    ),
    Row(
        ", ".join(f"`{each}`" for each in _CM_PROGRAMS),
        *("rdmacm-utils", "44.0-2"),
        partial(_pairs, CM),
    ),
    Row("perftest in forms of its options", "perftest", "4.5+0.17-1", _perftest),
    Row("`qperf -cm 1`", "qperf", "0.4.11-3", partial(_pairs, QPERF)),
    Row("`iperf3` by `librspreload.so`", "iperf3", "3.12-1+deb12u2", partial(_pairs, (IPERF,))),
    Row(
        "`redis-server` by it: `redis-cli`",
        "redis-server",
        "5:7.0.15-1~deb12u10",
        partial(_pairs, SERVERS[:1]),
    ),
    Row("`nginx` by it: `curl`", "nginx", "1.22.1-9+deb12u11", partial(_pairs, SERVERS[1:])),
    Row("`fio`'s engine `rdma`: write, read, send", "fio", "3.33-3", partial(_pairs, FIO)),
    Row("DAPL's `dtest`", "dapl2-utils", "2.1.10.1.f1e05b7a-3+b1", _dapl),
    Row("libfabric's `fi_pingpong`: msg, rxm, dgram, rxd", "libfabric-bin", "1.17.0-3", _libfabric),
    Row("`ucx_perftest`, its 15 tests by rc, one by ud", "ucx-utils", "1.13.1-1", _ucx),
    Row(
        "rings of Open MPI's ranks, by UCX and by ofi",
        *("libopenmpi-dev", "4.1.4-3+b1"),
        partial(_mpi, "openmpi"),
    ),
    Row("rings of MPICH's ranks, by UCX", "libmpich-dev", "4.0.2-3+b1", partial(_mpi, "mpich")),
    Row("`hpcc`, 4 ranks of Open MPI, by UCX", "hpcc", "1.5.0-3", _hpcc),
    Row("a ring of 4 ranks by mpi4py", "python3-mpi4py", "3.1.4-2+b2", _mpi4py),
    Row("two queue pairs by rdma-core's pyverbs", "python3-pyverbs", "44.0-2", _pyverbs),
    Row("QEMU's live migration, `migrate rdma:`", QEMU, "1:7.2+dfsg-7+deb12u18+b3", _migration),
    Row("two agents of NIXL, by its wheel's UCX", NIXL, "1.5.1", _nixl, isOfPyPI=True),
)


def installed(package: str) -> str:
    """
    @return: the version of a package of Debian; C{""} without it.
    """
    words = ("dpkg-query", "-W", "-f=${Version}", package)
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout


def _install(rows: Iterable[Row]) -> None:
    # What lacks.
    lacking = [row for row in rows if not row.installed()]
    wanted = [row.package for row in lacking if not row.isOfPyPI]
    if wanted:
        subprocess.run(("apt-get", "install", "-y", "--no-install-recommends", *wanted), check=True)
    for row in lacking:
        if row.isOfPyPI:
            installFromPyPI(row.package, "numpy")


def head() -> list[str]:
    """
    @return: the first lines of the table.
    """
    return [f"| {' | '.join(_HEAD)} |", f"|{' --- |' * len(_HEAD)}"]


def whole() -> list[str]:
    """
    @return: the lines of the table where all have passed.
    """
    return [*head(), *(row.line(row.version, [len(row.runs(each)) for each in COLUMNS]) for row in ROWS)]


def main() -> int:
    """
    Install the packages that lack, run all, and print the table.

    @return: the exit status: how many runs failed, at most 100.
    """
    parser = argparse.ArgumentParser("python -m tests.cprograms.programs")
    parser.add_argument("packages", nargs="*", help="those of the table (default: all)")
    parser.add_argument("--no-install", action="store_true", help="run what is there")
    parser.add_argument("--forms", choices=DEVICES, help="run all forms of perftest on it instead")
    options = parser.parse_args()
    rows = [row for row in ROWS if not options.packages or row.package in options.packages]
    if not options.no_install:
        _install(rows)
    os.environ[SWITCH] = "1"
    reason = lacking()
    if reason is not None:
        print(reason)
        return 1
    if options.forms is not None:
        return min(sum([_isWrong(form, options.forms) for form in EVERY[options.forms]]), 100)
    return min(table(rows), 100)


def table(rows: Iterable[Row]) -> int:
    """
    Run what is there, and print the table.

    @return: how many runs failed; a program that is not there is one.
    """
    failures = 0
    print(*head(), sep="\n", flush=True)
    for row in rows:
        version = row.installed()
        if not version:
            print(f"{row.programs}: no {row.package} is installed", file=sys.stderr, flush=True)
            failures += 1
            continue
        passed = []
        for device in COLUMNS:
            errors = [error for run in row.runs(device).values() if (error := _error(run))]
            passed.append(len(row.runs(device)) - len(errors))
            failures += len(errors)
            print(*errors, sep="\n", end="", file=sys.stderr, flush=True)
        print(row.line(version, passed), flush=True)
    return failures


def _isWrong(form: Form, device: str) -> bool:
    error = _error(partial(form.run, *sides(device)))
    print(f"{form.command}: {error or form.refusal or 'passed'}", flush=True)
    return bool(error)


def _error(run: Callable[[], None]) -> str:
    try:
        run()
    except LabError as error:
        return f"{error}\n"
    return ""


__all__ = ["COLUMNS", "ROWS", "Row", "Runs", "head", "installed", "main", "table", "whole"]
