"""
The steps of C{.ci/run}: 29 minutes on two quiet cores.
"""

from __future__ import annotations

import sys
from pathlib import Path

import parts
from functions import ROOT, Run, main, shell
from machine import bare, install, oldest, others, readme

#: The whole gate; with six busy processes beside it an hour is enough.
SECONDS = 80 * 60
#: So many lines of the comparison stand in the report.
SHOWN = 60
#: Tests of the layers without I/O, for the other Pythons.
PURE = (
    *("tests.configuration", "tests.ipoib.protocol", "tests.rds.protocol", "tests.sdp.protocol"),
    *("tests.hca.base", "tests.hca.cm", "tests.hca.connection", "tests.hca.mad", "tests.hca.memory"),
    *("tests.hca.queues", "tests.hca.services", "tests.hca.transport", "tests.hca.wire"),
    *("tests.subnet.network", "tests.subnet.sa", "tests.subnet.sm", "tests.subnet.sma"),
    "tests.hca.fabric.iwarp.protocol",
)
#: Tests of what depends on an interpreter's threads, modules and descriptors, for the newest one: a minute.
NEWEST = ("tests.aio", "tests.blocking", "tests.drive", "tests.tools.run")

_COMPILES = """
import os, shutil, sys, sysconfig
missing = [] if shutil.which("gcc") else ["gcc"]
if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
    missing.append("Python's headers")
print("missing:", *missing)
sys.exit(77 if missing else 0)
"""
_FORM = """
import twisted_ib.sdp.transport
from twisted_ib.hca.device.form import compiledModules
print(*compiledModules(), sep="\\n")
assert "twisted_ib.sdp.stream" in compiledModules()
"""
# It stands in single quotes of the shell.
_NEWEST = """
from importlib.metadata import metadata
prefix = "Programming Language :: Python :: 3."
names = metadata("mypy").get_all("Classifier", [])
print("3.%d" % max(int(name[len(prefix):]) for name in names if name.startswith(prefix)))
"""


def first(run: Run) -> Path:
    """
    README's two commands, each in a copy of its own, exactly as they stand there, on a machine without what
    later steps install.

    @return: the copy with the tests' environment.
    """
    tested, demo = run.copy("tested"), run.copy("demo")
    command, prefix = readme("trial -j2 tests"), bare(run)
    python = tested / ".venv/bin/python"
    run.tests("README: tests", 1800, shell(command), tested, python, attempts=2, prefix=prefix)
    run.check("README: ib-demo", 600, [*prefix, *shell(readme("ib-demo"))], demo, attempts=2)
    return tested


def wheels(run: Run) -> Path:
    """
    From a wheel, in a place like a container: nothing of the checkout near, a current directory that takes
    no files even from root, no XDG_RUNTIME_DIR.  Then the editable installation.

    @return: the folder of the wheel.
    """
    built, wheel, bin = run.copy("built"), run.folder / "wheel", run.folder / "demo/.venv/bin"
    put = f"'{bin}/pip' install -q --force-reinstall --no-deps"
    lists = f"'{bin}/trial' --help-reactors | grep -w ib"
    for chain in (
        (
            ("wheel: build", f"'{bin}/pip' wheel -q --no-deps -w '{wheel}' '{built}'"),
            ("wheel: install", f"{put} '{wheel}'/*.whl"),
            ("wheel: trial lists the reactor", lists),
            ("wheel: ib-demo", f"env -u XDG_RUNTIME_DIR '{bin}/ib-demo'"),
        ),
        (("editable: install", f"{put} -e '{built}'"), ("editable: trial lists the reactor", lists)),
    ):
        all(run.check(name, 300, shell(script), Path("/proc/self"), attempts=2) for name, script in chain)
    return wheel


def compiled(run: Run, python: Path) -> None:
    """
    The compiled form: one wheel, unpacked over a copy, so that the shared objects lie beside their sources as
    in an installation, and all tests on it.
    """
    folder, wheel = run.copy("compiled"), run.folder / "compiled-wheel"
    build = shell(f"'{python}' -m pip wheel -q --no-deps -w '{wheel}' '{run.folder}/built'")
    if (
        run.check("compiled: compiler", 60, [str(python), "-c", _COMPILES], folder)
        and run.check("compiled: build", 900, build, folder, {"TWISTED_IB_COMPILE": "1"}, attempts=2)
        and run.check("compiled: unpack", 60, shell(f"python3 -m zipfile -e '{wheel}'/*.whl ."), folder)
        and run.check("compiled: form", 60, [str(python), "-c", _FORM], folder)
    ):
        command = [str(python), "-m", "twisted.trial", "-j2", "tests"]
        run.tests("compiled: tests", 1800, command, folder, python)


def tools(run: Run, tested: Path) -> None:
    """
    The developers' tools.
    """
    if not parts.extras(run, tested):
        return
    bin = tested / ".venv/bin"
    for name, seconds, script in (
        ("ruff", 120, f"'{bin}/ruff' check ."),
        ("mypy, Python 3.10", 600, f"'{bin}/mypy' --python-version 3.10"),
        ("mypy, its newest Python", 600, f"'{bin}/mypy' --python-version $('{bin}/python' -c '{_NEWEST}')"),
        ("types of README's programs", 300, f"'{bin}/python' -m tests.gates.readme"),
        ("Any, by folder", 600, f"'{bin}/python' -m tests.gates.any"),
        ("docs", 900, f"'{bin}/python' -m sphinx -q -W --keep-going docs '{run.folder}/site'"),
        ("news fragments", 60, f"'{bin}/towncrier' build --draft --version next"),
    ):
        run.check(name, seconds, shell(script), tested)
    # README's environment lacks the extras [c], of whose calls some of the gates count, and [dask].
    python = bin / "python"
    for name, package in ("gates", "tests.gates"), ("Dask", "tests.dask"):
        run.tests(name, 600, [str(python), "-m", "twisted.trial", package], tested, python)


def compared(run: Run, tested: Path) -> None:
    """
    What is slower, or takes more, than at the newest release: it is said, and fails nothing.
    """
    program = [str(tested / ".venv/bin/python"), "-m", "benchmarks.compare"]
    command = [*program, "--short", "--repository", str(ROOT)]
    run.check("compare, short", 600, command, tested, shown=SHOWN)


def otherPythons(run: Run, wheel: Path) -> None:
    """
    The oldest and the newest of the other Pythons that the machine has: the first one with the oldest
    versions of what the package stands on, the last one with the newest.
    """
    found = others()
    for version in dict.fromkeys([*list(found)[:1], *list(found)[-1:]]):
        path, pinned = found[version], oldest() if version == next(iter(found)) else []
        python = parts.environment(run, version, path, pinned)
        if python is not None:
            names = PURE if version != list(found)[-1] else (*PURE, *NEWEST)
            command = [str(python), "-m", "twisted.trial", "-j2", *names]
            run.tests(f"Python {version}: sample", 900, command, python.parents[2], python)
        script = f"'{path}' -m venv clean && clean/bin/pip install -q '{wheel}'/*.whl && clean/bin/ib-demo"
        run.check(f"Python {version}: wheel", 600, shell(script), run.folder / version, attempts=2)


def gate(run: Run) -> None:
    """
    All steps.
    """
    tested = first(run)
    install(run, parts.PACKAGES)
    wheel = wheels(run)
    compiled(run, tested / ".venv/bin/python")
    tools(run, tested)
    compared(run, tested)
    otherPythons(run, wheel)
    parts.action(run)
    for part in (parts.opensm, parts.ipoib, parts.cprograms, parts.interop):
        part(run, tested, sample=True)


if __name__ == "__main__":
    sys.exit(main(SECONDS, gate))
