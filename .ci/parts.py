"""
The parts of C{.ci/long}, each whole or as the gate's sample of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from functions import Run, shell
from machine import oldest, pythons

#: What tests need of Debian.
PACKAGES = (
    # Captures, guests and their network, compilers.
    *("tshark", "iproute2", "e2fsprogs", "build-essential"),
    # A subnet manager.
    *("opensm", "infiniband-diags", "ibsim-utils", "libumad2sim0"),
    # Linux's IP stack over IPoIB.
    *("iputils-ping", "iperf3", "openssh-client", "openssh-server"),
    # Programs of verbs, and what they are built with.
    *("ibverbs-utils", "rdmacm-utils", "perftest", "tgt", "libiscsi-bin", "dapl2-utils"),
    *("libibverbs-dev", "librdmacm-dev", "libibumad-dev"),
)


def environment(run: Run, version: str, path: str, pinned: Sequence[str]) -> Path | None:
    """
    A copy with an environment for its tests.

    @param path: the interpreter.
    @param pinned: the versions that it has to have.

    @return: the environment's interpreter, if it could be made.
    """
    folder = run.copy(version)
    script = '"$0" -m venv .venv && .venv/bin/pip install -q ".[test]" "$@"'
    name = " ".join((f"Python {version}: install", *pinned))
    made = run.check(name, 600, [*shell(script), path, *pinned], folder, attempts=2)
    return folder / ".venv/bin/python" if made else None


def extras(run: Run, tested: Path) -> bool:
    """
    What the developers' tools and the parts below need beside README's environment.
    """
    return run.check(
        "tools: install",
        600,
        [str(tested / ".venv/bin/pip"), "install", "-q", ".[test,docs,dev,c,dask]"],
        tested,
        attempts=2,
    )


def python(run: Run, version: str) -> None:
    """
    All tests on another Python; on the oldest one with the oldest versions of what the package stands on.
    """
    found = pythons()
    isOldest = version == next(iter(found), None)
    made = environment(run, version, found[version], oldest() if isOldest else [])
    if made is not None:
        command = [str(made), "-m", "twisted.trial", "-j2", "tests"]
        run.tests(f"Python {version}", 1800, command, made.parents[2], made)


def _trial(
    run: Run, name: str, seconds: float, tested: Path, names: Sequence[str], variables: dict[str, str]
) -> None:
    python = tested / ".venv/bin/python"
    settings = {"XDG_CACHE_HOME": str(run.folder / "cache"), **variables}
    run.tests(name, seconds, [str(python), "-m", "twisted.trial", *names], tested, python, settings)


def soak(run: Run, tested: Path) -> None:
    """
    Long tests: files of a directory that is no package, so that C{trial tests} leaves them out.
    """
    files = [str(each.relative_to(tested)) for each in sorted(tested.glob("tests/soak/**/test_*.py"))]
    _trial(run, "soak", 3600, tested, files, {})


def opensm(run: Run, tested: Path, sample: bool = False) -> None:
    """
    The real OpenSM and infiniband-diags on a subnet of this package: programs of Debian, which need no
    rights.
    """
    names = ["tests.opensm.sample" if sample else "tests.opensm"]
    _trial(run, "OpenSM", 1800, tested, names, {"TWISTED_IB_OPENSM": "1"})


def ipoib(run: Run, tested: Path, sample: bool = False) -> None:
    """
    Linux's own IP stack over IPoIB.
    """
    names = ["tests.tun.sample" if sample else "tests.tun"]
    _trial(run, "IPoIB", 1800, tested, names, {"TWISTED_IB_TUN": "1"})


def cprograms(run: Run, tested: Path, sample: bool = False) -> None:
    """
    Debian's own programs of verbs on the libraries for C programs, which need a compiler, headers and a
    Python with a shared libpython.
    """
    names = ["tests.cprograms.sample"] if sample else ["-j2", "tests.verbs.c", "tests.cprograms"]
    _trial(run, "C programs", 1800, tested, names, {"TWISTED_IB_CPROGRAMS": "1"})


def action(run: Run) -> None:
    """
    The action for jobs elsewhere, as the script that it is: a program of verbs runs after it.
    """
    folder = run.folder / "action-environment"
    program = 'PATH="$(cat "$GITHUB_PATH"):$PATH" ib-run ibv_devinfo'
    script = f"unset PYTHON; .github/actions/setup-rdma/setup.sh && {program}"
    variables = {
        "FOLDER": str(folder),
        "GITHUB_PATH": str(run.folder / "action-path"),
        "XDG_CACHE_HOME": str(run.folder / "cache"),
    }
    run.check("action: setup-rdma", 600, shell(script), run.copy("action"), variables, attempts=2)


def interop(run: Run, tested: Path, sample: bool = False) -> None:
    """
    Real Linux kernels as peers: guests in QEMU, of packages that come from Debian's archive and are not
    installed.
    """
    variables = {"TWISTED_IB_INTEROP": "1", "TWISTED_IB_INTEROP_CACHE": str(run.folder / "interop")}
    build = [str(tested / ".venv/bin/python"), "-m", "tests.interop.build"]
    if run.check("interop: build", 900, build, tested, variables, attempts=2):
        names = ["tests.interop.sample" if sample else "tests.interop"]
        _trial(run, "interop", 3600, tested, names, variables)
        if not sample:
            variables["TWISTED_IB_INTEROP_NEIGHBOUR"] = "1"
            _trial(run, "interop, two processes on an address", 3600, tested, names, variables)


def twisted(run: Run, tested: Path) -> None:
    """
    Twisted's own suite on epoll, on ib, and on ib with rules that send loopback over SDP: what fails on ib
    alone. Without Twisted's extras more is skipped, by all runs alike.
    """
    bin = tested / ".venv/bin"
    run.check(
        "Twisted's extras",
        600,
        [str(bin / "pip"), "install", "-q", "twisted[tls,conch,http2,test]"],
        tested,
        attempts=2,
    )
    command = ["nice", str(bin / "python"), "-m", "tests.suites.compare", "--seconds", "1500"]
    run.check("Twisted's own suite", 1800, command, tested)


def projects(run: Run, tested: Path) -> None:
    """
    The suites of four other projects, from PyPI, on epoll and on ib.
    """
    command = ["nice", str(tested / ".venv/bin/python"), "-m", "tests.suites.projects", "--seconds", "1500"]
    run.check("other projects' suites", 1800, command, tested)


#: Those that run in the environment of the main Python.
PARTS = {each.__name__: each for each in (soak, opensm, ipoib, cprograms, interop, twisted, projects)}
