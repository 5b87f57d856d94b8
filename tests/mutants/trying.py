"""
Run the tests of a mutant, in a copy of the tree.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path

from attrs import field, frozen

from tests.mutants.mutations import Mutation
from tests.support.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]

#: The parts that are changed, and the tests of each in their order: its own, then those of what is made
#: of it.  A module's mirrored tests come before them all.
PARTS: dict[str, tuple[str, ...]] = {
    "twisted_ib/hca/base": (
        *("tests/hca/base", "tests/hca/device", "tests/hca/queues", "tests/hca/services", "tests/hca/memory"),
    ),
    "twisted_ib/hca/queues": ("tests/hca/queues", "tests/hca/services", "tests/hca/memory"),
    "twisted_ib/hca/services": ("tests/hca/services", "tests/hca/queues", "tests/hca/memory"),
    "twisted_ib/hca/memory": ("tests/hca/memory", "tests/hca/services", "tests/hca/queues"),
    "twisted_ib/hca/cm": (
        "tests/hca/cm",
        "tests/hca/connection",
        "tests/hca/device",
        "tests/verbs/pyverbs/cm",
    ),
    "twisted_ib/hca/mad": ("tests/hca/mad",),
    "twisted_ib/subnet/network": ("tests/subnet/network", "tests/subnet/sma", "tests/subnet/hosting"),
    "twisted_ib/subnet/sma": ("tests/subnet/sma",),
    "twisted_ib/subnet/sm": (
        "tests/subnet/sm",
        "tests/subnet/sa",
        "tests/hca/mad/sa",
        "tests/subnet/hosting",
    ),
    "twisted_ib/subnet/sa": (
        "tests/subnet/sa",
        "tests/subnet/sm",
        "tests/hca/mad/sa",
        "tests/subnet/hosting",
    ),
    "twisted_ib/hca/fabric/iwarp/protocol": ("tests/hca/fabric/iwarp/protocol",),
    "twisted_ib/hca/transport": ("tests/hca/transport", "tests/hca/fabric/roce"),
    "twisted_ib/sdp": ("tests/sdp",),
    "twisted_ib/rds": ("tests/rds",),
    "twisted_ib/ipoib/protocol": ("tests/ipoib/protocol",),
    "twisted_ib/aio": ("tests/aio",),
    "twisted_ib/blocking": ("tests/blocking",),
    "twisted_ib/verbs/c": ("tests/verbs/c",),
    "twisted_ib/reactor": ("tests/reactor",),
    "twisted_ib/switch": ("tests/switch",),
    "twisted_ib/queues": ("tests/queues",),
    "twisted_ib/dask": ("tests/dask",),
    "twisted_ib/rdma": ("tests/rdma",),
    "twisted_ib/hca/host": ("tests/hca/host",),
    "twisted_ib/hca/device": ("tests/hca/device",),
    "twisted_ib/drive": ("tests/drive",),
}
#: What fabrics, and so these parts, have to keep.
CONTRACTS = ("tests/hca/fabric/toy/test_toy.py", "tests/hca/fabric/test_contract.py")
#: Run last: they wait, or compile, most.
SLOW = ("test_contract", "test_processes", "test_reactors", "test_switching", "test_build", "test_signals")

#: A mutant's tests may take so many times as long as those of the unchanged tree, and so many seconds more.
SLOWER = 3.0
HANG_SECONDS = 20.0 * PATIENCE
#: The tests of the unchanged tree may take so many seconds.
BASELINE_SECONDS = 600.0 * PATIENCE

#: The part of trial's report about a test that failed, and the test's name, below the traceback; tests that
#: were skipped have parts of the same form.
_FAILURE = re.compile(r"^=+\n\[(?:FAIL|ERROR)\]\n", re.MULTILINE)
_FAILED = re.compile(r"^[^\W\d]\w*(\.\w+)+$", re.MULTILINE)
#: A line of trial's tree: a module, a class further in, and a test, whose result stands behind it.
_BEGUN = re.compile(r"^( {0,4})([\w.]+)(?: \.\.\.|$)", re.MULTILINE)


def testsOf(path: str, root: Path = ROOT) -> tuple[str, ...]:
    """
    @param path: A module's, below the root.

    @return: The modules of its tests, in the order in which they run.

    @raise LookupError: It belongs to none of the parts.
    """
    part = next((each for each in PARTS if path.startswith(f"{each}/")), None)
    if part is None:
        raise LookupError(f"{path} is in none of {', '.join(PARTS)}")
    contracts = CONTRACTS if part.startswith(("twisted_ib/hca/", "twisted_ib/subnet/")) else ()
    found = [
        each
        for entry in (*PARTS[part], *contracts)
        for each in ([root / entry] if entry.endswith(".py") else sorted((root / entry).rglob("test_*.py")))
    ]
    mirrored = f"test_{Path(path).stem}"
    folder = "tests" / Path(path).parent.relative_to("twisted_ib")

    def order(test: Path) -> tuple[bool, ...]:
        # Sorting is stable: what is equal stays in the order of the parts.
        return (
            test.stem != mirrored,
            not test.stem.startswith(mirrored),
            test.stem != f"test_{folder.name}",
            test.stem.startswith(SLOW),
            test.parent != root / folder,
        )

    return tuple(
        each.relative_to(root).with_suffix("").as_posix().replace("/", ".")
        for each in sorted(found, key=order)
    )


@frozen
class Outcome:
    """
    How the tests of a mutant ended.

    @ivar status: C{killed}, C{survived}, or C{timeout}: they hang, or the machine was busy.
    @ivar seconds: How long they ran.
    @ivar test: The test that failed first, or that was under way when the time was up, if it is known.
    """

    status: str
    seconds: float
    test: str = ""


@frozen
class Tree:
    """
    A copy of the checkout, in which modules are changed one at a time.

    @ivar root: Where it is.
    @ivar patience: After so many seconds, and some times those of the unchanged tree, tests hang.
    @ivar baselines: The seconds that tests take there, unchanged.
    @ivar seconds: The times of modification of mutants.
    """

    root: Path
    patience: float = HANG_SECONDS
    baselines: dict[tuple[str, ...], float] = field(factory=dict)
    seconds: Iterator[int] = field(factory=count)

    @classmethod
    def copied(cls, directory: Path, root: Path = ROOT) -> Tree:
        """
        @param directory: Where the copy is made.
        """
        skipped = shutil.ignore_patterns(".*", "_trial_temp*", "build", "dist", "*.egg-info")
        shutil.copytree(root, directory / "tree", ignore=skipped)
        return cls(directory / "tree")

    def baseline(self, tests: tuple[str, ...]) -> float:
        """
        @return: How long tests run in the unchanged tree, seconds.

        @raise RuntimeError: They fail there, twice: nothing can be said about mutants.
        """
        key = tuple(sorted(tests))
        if key not in self.baselines:
            outcome = self._run(tests, BASELINE_SECONDS, {})
            if outcome.status != "survived":
                # A test that failed once, on a busy machine, does not end an hour's analysis.
                outcome = self._run(tests, BASELINE_SECONDS, {})
            if outcome.status != "survived":
                raise RuntimeError(f"the unchanged tree fails: {outcome.test or outcome.status}")
            self.baselines[key] = outcome.seconds
        return self.baselines[key]

    def tried(self, path: str, mutation: Mutation, tests: tuple[str, ...]) -> Outcome:
        """
        @param path: The module that is changed, below the root.

        @return: How its tests end; the tree is as before.

        @raise RuntimeError: As L{baseline} does.
        """
        limit = self.patience + SLOWER * self.baseline(tests)
        target = self.root / path
        kept = target.with_suffix(".unchanged")
        # With its time of modification, so that what was compiled of it is good again afterwards.
        shutil.copy2(target, kept)
        try:
            target.write_text(mutation.applied(target.read_text()))
            # What was compiled is told by a second and a size: each mutant has a second of its own, as what
            # processes that its tests start have compiled of the last one may still be there.
            second = next(self.seconds)
            os.utime(target, (second, second))
            # What is compiled of the changed module is not kept.
            return self._run(tests, limit, {"PYTHONDONTWRITEBYTECODE": "1"})
        finally:
            kept.replace(target)

    def _run(self, tests: Sequence[str], limit: float, environment: Mapping[str, str]) -> Outcome:
        # Without a buffer, so that it is known what was under way when the time is up.
        command = [sys.executable, "-u", "-m", "twisted.trial", "-x", "--temp-directory", "_trial_temp"]
        begin, late = time.monotonic(), False
        # No pipe, which a process that outlives the tests may keep.
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                [*command, *tests],
                cwd=self.root,
                env={**os.environ, **environment, "PYTHONPATH": str(self.root)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                process.wait(limit)
            except subprocess.TimeoutExpired:
                late = True
            finally:
                # The processes that its tests have started too.
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                process.wait()
            seconds = time.monotonic() - begin
            output.seek(0)
            said = output.read().decode(errors="replace")
        if late:
            names = {len(indent): name for indent, name in _BEGUN.findall(said)}
            return Outcome("timeout", seconds, ".".join(names[each] for each in sorted(names)))
        if not process.returncode:
            return Outcome("survived", seconds)
        part = _FAILURE.search(said)
        failed = _FAILED.search(said, part.end()) if part else None
        return Outcome("killed", seconds, failed[0] if failed else "")
