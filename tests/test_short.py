"""
The comparison that cannot hide a loss: its counts, its report, and the best that each row has had.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from benchmarks import compare, counting, short
from benchmarks.best import BEST, Best, asMarkdown, kindOf
from benchmarks.pairs import ROOT
from benchmarks.rows import byName
from benchmarks.short import Count, Report
from benchmarks.summary import Results
from benchmarks.transports import BASELINES, BEFORE
from tests.support.calls import called
from twisted_ib.hca.host.libc import KernelSocket

#: Facts of a machine.
MACHINE: dict[str, object] = {
    "CPU": "Z80",
    "CPUs": 2,
    "caches": "L2 1K",
    "memory": "48 kB",
    "kernel": "Linux 1",
    "virtual": False,
    "python": "CPython 3.11.7",
    "twisted": "26.10.0",
    "isal": "",
    "uvloop": "",
    "pyzmq": "",
    "iceoryx2": "",
    "commit": "abc",
    "time": "2026-01-01",
    "load average": 0.5,
}


def resultsOf(**rounds: Any) -> Results:
    """
    @return: Results of 64 B round trips, by subject.
    """
    results = Results(MACHINE, {})
    for subject, figures in rounds.items():
        for each in figures:
            results.add("split", "rt64", subject.replace("_", "-"), each)
    return results


class BestTests(SynchronousTestCase):
    """
    L{benchmarks.best}
    """

    def setUp(self) -> None:
        """
        A file with a best.
        """
        self.path = Path(self.mktemp())
        self.best = Best()
        self.best.update(
            resultsOf(tcp=[{"p50": 40.0}] * 3, sdp_ib=[{"p50": 4.0}, {"p50": 5.0}, {"p50": 8.0}])
        )
        self.best.toFile(self.path)

    def test_file(self) -> None:
        """
        It has the median of figure and ratio with the commit, by kind of machine; a machine with as
        many CPUs of the same model and the same minor version of Python is of the same kind.
        """
        wanted = {"commit": "abc"}
        name = "split rt64 sdp-ib p50"
        self.assertEqual(
            json.loads(self.path.read_text()),
            {
                "Z80, 2 CPUs; CPython 3.11": {
                    f"{name} figure": {"median": 5.0, **wanted},
                    f"{name} ratio": {"median": 8.0, **wanted},
                }
            },
        )
        self.assertEqual(kindOf(MACHINE), kindOf({**MACHINE, "python": "CPython 3.11.9", "time": "later"}))
        self.assertEqual(Best.ofFile(Path(self.mktemp())).machines, {})

    def test_standings(self) -> None:
        """
        Each figure has its share of the best, the worst first; less time is better, a greater ratio is.
        """
        now = resultsOf(tcp=[{"p50": 40.0}], sdp_ib=[{"p50": 10.0}], **{"sdp_ib@before": [{"p50": 1.0}]})
        found = Best.ofFile(self.path).standings(now)
        self.assertEqual([(each.what, each.now, each.best, each.share) for each in found], [
            ("figure", 10.0, 5.0, 0.5),
            ("ratio", 4.0, 8.0, 0.5),
        ])  # fmt: skip
        text = asMarkdown(found, MACHINE)
        self.assertIn("| 64 B round trip, p50 (us) | split | sdp-ib | figure | 10 | 5 | abc | 0.5 |\n", text)
        other = Results({**MACHINE, "CPU": "6502"}, {}, table=now.table)
        self.assertEqual(self.best.standings(other), [])

    def test_update(self) -> None:
        """
        What is better takes the place of the best, with its commit; what is worse does not.
        """
        worse, better = (
            Results({**MACHINE, "commit": "def"}, {}, table=resultsOf(sdp_ib=[{"p50": p50}]).table)
            for p50 in (6.0, 3.0)
        )
        name = "split rt64 sdp-ib p50 figure"
        self.assertEqual(self.best.update(worse), 0)
        self.assertEqual(self.best.update(better), 1)
        entry = self.best.machines[kindOf(MACHINE)][name]
        self.assertEqual((entry["median"], entry["commit"]), (3.0, "def"))

    def test_repository(self) -> None:
        """
        The repository's file has figures of rows that there are, each with a commit.
        """
        machines = Best.ofFile(BEST).machines
        self.assertTrue(machines)
        for figures in machines.values():
            for name, entry in figures.items():
                _, row, *_ = name.split()
                self.assertIn(row, byName)
                self.assertTrue(entry["median"] > 0 and entry["commit"], name)


class ReportTests(SynchronousTestCase):
    """
    L{Report}
    """

    def report(self, **changes: Any) -> str:
        """
        @return: The text of one with some changes.
        """
        steady = {"calls": 10.0, "bytecodes": 1000.0}
        options = {
            "before": "v1",
            "results": resultsOf(),
            "theirs": {"rt64": {"sdp-ib": steady}},
            "mine": {"rt64": {"sdp-ib": steady}},
            **changes,
        }
        return Report(**options).text()

    def test_counts(self) -> None:
        """
        One more call of ten is named, and one more bytecode in 100; two in a thousand more are not.
        """
        self.assertIn("\n## Counts that grew: 0 of 2\n\n", self.report())
        mine = {"rt64": {"sdp-ib": {"calls": 11.0, "bytecodes": 1010.0}}}
        text = self.report(mine=mine)
        self.assertIn(
            "\n## Counts that grew: 2 of 2\n"
            "0.909  64 B round trip, sdp-ib: calls (functions of Python) 10 -> 11\n"
            "0.990  64 B round trip, sdp-ib: bytecodes (executed) 1 000 -> 1 010\n\n",
            text,
        )
        text = self.report(mine={"rt64": {"sdp-ib": {"calls": 10.1, "bytecodes": 1002.0}}})
        self.assertIn("\n## Counts that grew: 0 of 2\n", text)
        self.assertTrue(Count("rt64", "sdp-ib", "system calls", 0.0, 1.0).isRisen)

    def test_times(self) -> None:
        """
        A time that is worse in each of several rounds stands before one that is so in the median, or in the
        only one; one that failed has no ratio.
        """
        results = resultsOf(
            sdp_ib=[{"p50": 5.0, "p99": 9.0}, {"p50": 5.0, "p99": 9.0}, {"p50": 5.0, "p99": 1.0}, None],
            **{"sdp_ib@before": [{"p50": 4.0, "p99": 4.5}] * 4},
        )
        text = self.report(results=results)
        self.assertIn(
            "\n## Times below 0.95 in every round: 1 of 2\n"
            "0.8    64 B round trip, p50 (us), split, sdp-ib (0.8-0.8, 3 rounds)\n\n"
            "## Times below 0.95 in the median, or of one round: 1\n"
            "0.5    64 B round trip, p99 (us), split, sdp-ib (0.5-4.5, 3 rounds)\n\n",
            text,
        )
        once = resultsOf(sdp_ib=[{"p50": 5.0}], **{"sdp_ib@before": [{"p50": 4.0}]})
        self.assertIn("in every round: 0 of 1\n", self.report(results=once))

    def test_unknown(self) -> None:
        """
        What was not run or cannot be counted is named, with the reason.
        """
        results = resultsOf()
        results.leftOut = [("split", "A", "ib")]
        text = self.report(results=results, mine={"rt64": {"ib": "OSError: no"}})
        lines = "\n## Not measured: 2\nA, split, ib\n64 B round trip, ib: not counted here: OSError: no\n\n"
        self.assertIn(lines, text)

    def test_best(self) -> None:
        """
        What is below the best that such a machine has had is named, though no other commit is beside it.
        """
        best = Best()
        best.update(resultsOf(sdp_ib=[{"p50": 4.0}]))
        standings = best.standings(resultsOf(sdp_ib=[{"p50": 5.0}]))
        self.assertIn(
            "\n## Below 0.95 of the best of this kind of machine: 1 of 1\n"
            "0.800  64 B round trip, p50 (us), split, sdp-ib, figure: 5, best 4 at abc\n",
            self.report(standings=standings),
        )

    def test_broken(self) -> None:
        """
        A row that fails in each round of this tree is a failure of the program; a time is not, nor is what
        fails in the other one.
        """
        self.assertFalse(short.isBroken(resultsOf(sdp_ib=[None, {"p50": 1e9}], **{"sdp_ib@before": [None]})))
        self.assertTrue(short.isBroken(resultsOf(sdp_ib=[None, None])))


class CountingTests(SynchronousTestCase):
    """
    L{benchmarks.counting}, and L{short.countsOf}
    """

    def test_measures(self) -> None:
        """
        Functions, system calls, bytecodes, and bytes that are allocated and free again.
        """
        made = KernelSocket()
        self.addCleanup(made.close)

        def act() -> None:
            for _ in range(3):
                os.getppid()
            made.getsockname()
            bytes(100_000)

        found = counting.calls(act)
        self.assertEqual((found["calls"], found["system calls"]), (1, 4))
        # From Python 3.12 on a function is asked for its bytecodes by the run before.
        bytecodes = [counting.steps(act)["bytecodes"] for _ in range(2)]
        self.assertGreater(bytecodes[1], 10)
        allocated = counting.bytesAllocated(act, 1000)["allocated"]
        self.assertTrue(100_000 <= allocated < 101_000, allocated)

    def test_steady(self) -> None:
        """
        The same tree has the same counts, and those that C{tests.test_costs} has too are the same.
        """
        called(lambda: None)
        one, two = (short.countsOf(ROOT, ["stream64", "echo100"]) for _ in range(2))
        self.assertEqual(set(one), {"stream64", "echo100"})
        report = Report("itself", resultsOf(), one, two)
        self.assertEqual([each for each in report.counts() if each.isRisen], [])
        self.assertEqual(list(report.uncounted()), [])
        self.assertGreater(len(list(report.counts())), 10)

    def test_rows(self) -> None:
        """
        What is counted is of rows that there are.
        """
        for row, subject, _ in counting.everything():
            self.assertIn(row, byName)
            self.assertIn(subject, (*short.SUBJECTS, "sdp-epoll", "rds-roce"))


class ShortTests(SynchronousTestCase):
    """
    C{python -m benchmarks.compare --short}
    """

    def test_choice(self) -> None:
        """
        All rows, each in one placement, of this tree and the other one, without the baselines; those that
        take long are the last.
        """
        comparison = compare.Comparison(compare._parse(["--short"]), ROOT)
        names = {each.name for each in comparison._subjects}
        self.assertEqual(names, {name + mark for name in short.SUBJECTS for mark in ("", BEFORE)})
        self.assertFalse(names & set(BASELINES.values()))
        rows = [row.name for name in compare.PLACEMENTS for row in comparison._rows(name)]
        self.assertEqual(sorted(rows), sorted(byName))
        slow = [row.isFresh for row in comparison._rows("split")]
        self.assertEqual(slow, sorted(slow))
        left = {title for _, title, _ in comparison._leftOut()}
        # Between processes there is nothing of the newest release to compare with.
        self.assertEqual(left, {row.title for row in byName.values() if row.subject in short.SUBJECTS})

    def test_end(self) -> None:
        """
        No row begins when the time is up: what was not run is not measured.
        """
        comparison = compare.Comparison(compare._parse(["--short", "--rounds", "1"]), ROOT)
        comparison._end = 0.0
        comparison.run()
        self.assertEqual(comparison.results.table, {})
        self.assertTrue(comparison.results.leftOut)

    def test_release(self) -> None:
        """
        The newest tag is the release; without one the file names it; without a repository there is none, and
        the program says that it has skipped everything.
        """
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        said = io.StringIO()
        with redirect_stdout(said):
            self.assertEqual(compare.main(["--short", "--repository", folder]), short.SKIPPED)
        self.assertIn("no release to compare with", said.getvalue())
        if not shutil.which("git"):
            raise SkipTest("no git: it is in Debian's package git")
        git = ["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@b"]

        def run(*words: str) -> str:
            return subprocess.run([*git, *words], check=True, capture_output=True, text=True).stdout.strip()

        run("init", "--quiet")
        run("commit", "--quiet", "--allow-empty", "-m", "one")
        named = Path(self.mktemp())
        self.patch(short, "RELEASE", named)
        named.write_text(run("rev-parse", "HEAD") + "\n")
        self.assertEqual(short.release(Path(folder)), run("rev-parse", "HEAD"))
        run("tag", "v2")
        self.assertEqual(short.release(Path(folder)), "v2")
        named.write_text("0" * 40)
        run("tag", "--delete", "v2")
        self.assertEqual(short.release(Path(folder)), "")
