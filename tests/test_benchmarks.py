"""
The benchmarks: what is aimed at, how figures become verdicts, and that the programs run.

How fast anything is is not looked at.
"""

import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
from argparse import Namespace
from pathlib import Path
from time import monotonic

from attrs import evolve
from twisted.trial.unittest import SkipTest, SynchronousTestCase

from benchmarks import compare, conditions, footprint, sockets, transports, verbs
from benchmarks.clients import COLD_BUFFERS, chunksOf, latencies
from benchmarks.pairs import ROOT, commandOf, environmentFor, isCompiled, settings, workloadOf
from benchmarks.rows import COMPILED_TARGETS, ROWS, Target
from benchmarks.rows import byName as rowByName
from benchmarks.summary import Results, Verdict, _isLoss
from benchmarks.transports import BEFORE, COMPILED, CONTROL, MARKS
from benchmarks.transports import byName as subjectByName
from benchmarks.workloads import WORKLOADS
from twisted_ib.hca.device.form import compiledModules
from twisted_ib.tools.compare.measuring import percentile

#: The targets, by row, placement and metric.
TARGETS = {
    ("rt64", "split", "p50"): 10,
    ("rt64", "split", "p99"): 10,
    ("rt64", "same", "p50"): 2,
    ("rt64", "contended", "p50"): 1.5,
    ("rt64k", "split", "p50"): 6,
    ("rt1m", "split", "p50"): 4,
    ("rt4m", "split", "p50"): 3,
    ("stream64", "split", "MB/s"): 1.6,
    ("stream1k", "split", "MB/s"): 2.5,
    ("stream16k", "split", "MB/s"): 4,
    ("stream64k", "split", "MB/s"): 6,
    ("stream64k", "split", "CPU"): 5,
    ("stream1m", "split", "MB/s"): 6,
    ("stream1m", "split", "CPU"): 5,
    ("stream1m-cold", "split", "MB/s"): 4,
    ("stream1m-cold", "split", "CPU"): 5,
    ("write1m", "split", "MB/s"): 10,
    ("write1m-cold", "split", "MB/s"): 4.5,
    ("echo1000", "split", "msg/s"): 6,
    ("echo10000", "split", "msg/s"): 6,
    ("connects", "split", "conn/s"): 4,
    ("iwarp64k", "split", "MB/s"): 0.9,
}
#: The upper bounds.
BOUNDS = {
    ("echo10000", "split", "growth"): 20,
    ("echo10000", "split", "cost"): 1.5,
    ("echo10000", "split", "CPU cost"): 1.5,
    ("idle", "split", "memory"): 3,
    ("idle", "split", "CPU"): 0.25,
    ("verbs-send", "split", "p50"): 12,
    ("verbs-write", "split", "p50"): 12,
}


class RowTests(SynchronousTestCase):
    """
    L{benchmarks.rows}
    """

    def test_targets(self):
        """
        Each target is there, and is reached by a better figure only.
        """
        for kind, targets in (("times", TARGETS), ("most", BOUNDS)):
            for (row, placement, metric), bound in targets.items():
                self.assertEqual(rowByName[row].targets[placement, metric], Target(bound, kind), row)
        packets = ("roce64", "p50", 2.5), ("roce64-asleep", "p50", 0.6), ("roce1m", "MB/s", 0.29)
        for row, metric, bound in packets:
            self.assertEqual(rowByName[row].targets["split", metric], Target(bound), row)
        for row in ("dgs64", "dgs1k", "dgs16k", "dgs64k"):
            self.assertEqual(rowByName[row].targets["split", "msg/s"], Target(3), row)
        for placement in ("split", "same", "free", "contended"):
            self.assertEqual(rowByName["dg64"].targets[placement, "p50"], Target(1), placement)
        for row in ("import", "twistd"):
            self.assertEqual(rowByName[row].targets["free", "wall"], Target(30, "over"))

    def test_possible(self):
        """
        A target is of a figure that the row has, in a placement where it runs, for a subject that
        runs it.
        """
        for row in ROWS:
            names = {metric for metric, _, _ in row.metrics}
            for placement, metric in row.targets:
                self.assertIn(metric, names)
                self.assertIn(placement, row.placements)
            self.assertTrue(compare.Comparison._runs(subjectByName[row.subject], row), row.name)
            self.assertTrue(compare.Comparison._runs(subjectByName[row.baseline], row), row.name)
            if not row.isStart:
                subject = subjectByName[row.subject]
                known = WORKLOADS if subject.program == "worker" else subject.workloads
                self.assertIn(workloadOf(row, subject), known)

    def test_names(self):
        """
        No two rows, nor two subjects, have one name.
        """
        self.assertEqual(len(rowByName), len(ROWS))

    def test_subjects(self):
        """
        A subject without registered memory leaves its rows out; one with short messages only, those of long
        ones; one without a reactor, those of threads.
        """

        def runs(subject, row):
            return compare.Comparison._runs(subjectByName[subject], rowByName[row])

        self.assertFalse(runs("sdp-ib", "write1m"))
        self.assertTrue(runs("ucx", "write1m"))
        self.assertFalse(runs("ib", "stream1m"))
        self.assertFalse(runs("uvloop", "threads"))
        self.assertFalse(runs("ucx", "echo1000"))

    def test_baselineOfTwo(self):
        """
        A subject may be the baseline of more families than its own, and runs no other row of theirs.
        """
        baseline = subjectByName["blocking-tcp"]
        ran = {row.family for row in ROWS if compare.Comparison._runs(baseline, row)}
        self.assertEqual(ran, {"packets", "switched", "blocking"})

    def test_settings(self):
        """
        A subject's own rules and devices are those of its processes: connections of TCP are not offloaded
        before they switch.
        """
        subject, folder = subjectByName["iwarp-crc"], self.mktemp()
        os.mkdir(folder)
        found = settings(subject, folder)
        self.assertEqual(found["TWISTED_IB_DEVICES"], "iwarp0=iwarp:127.0.0.1:crc=yes")
        for role in ("server", "client"):
            self.assertIn(f"use tcp {role} * *:*\n", Path(found["TWISTED_IB_CONFIG"]).read_text())
        self.assertEqual(settings(subjectByName["sdp-ib"], folder), {})

    def test_verbs(self):
        """
        Each request of the rows of verbs is measured by the other program as well: without the other end.
        """
        for row in ("verbs-send", "verbs-write"):
            figures = verbs.measure("lo0", {"workload": rowByName[row].workload, "seconds": 0.01})
            self.assertGreaterEqual(figures["count"], 1)
            self.assertLessEqual(figures["p50"], figures["p99"])


class VerdictTests(SynchronousTestCase):
    """
    L{Results} and L{Verdict}
    """

    def results(self, row, placement="split", **figures):
        """
        Of some rounds, each subject's by its name with C{_} for C{-}.
        """
        results = Results(conditions.describe(), {"rounds": 3})
        for subject, rounds in figures.items():
            for each in rounds:
                results.add(placement, row, subject.replace("_", "-"), each)
        return results

    def only(self, results, metric):
        """
        The verdict on one figure.
        """
        [found] = [each for each in results.verdicts() if each.metric == metric]
        return found

    def test_times(self):
        """
        The median of the per-round ratios counts, not the ratio of medians; less time is better.
        """
        tcp = [{"p50": 100.0}, {"p50": 200.0}, {"p50": 50.0}]
        sdp = [{"p50": 5.0}, {"p50": 25.0}, {"p50": 5.0}]
        found = self.only(self.results("rt64", tcp=tcp, sdp_ib=sdp), "p50")
        self.assertEqual(found.reached, 10.0)
        self.assertTrue(found.isMet)
        self.assertEqual(found.text, ">= 10x, met")

    def test_rounds(self):
        """
        A round that failed on one side counts for none, and the rounds keep their partners.
        """
        tcp = [{"msg/s": 10.0}, None, {"msg/s": 20.0}]
        sdp = [{"msg/s": 30.0}, {"msg/s": 999.0}, {"msg/s": 80.0}]
        results = self.results("echo1000", tcp=tcp, sdp_ib=sdp)
        self.assertEqual(results.ratios(("split", "echo1000"), "sdp-ib", "msg/s", True), [3.0, 4.0])
        self.assertIn("NOT MET", results.asMarkdown())

    def test_before(self):
        """
        A subject is compared with itself of another commit, round by round; on packets at other addresses.
        """
        mine, before = [{"p50": 5.0}, {"p50": 6.0}], [{"p50": 10.0}, {"p50": 3.0}]
        results = self.results("rt64", **{"sdp_ib": mine, "sdp_ib@before": before})
        [(placement, label, subject, ratios)] = results.changes(BEFORE)
        self.assertEqual((placement, subject, ratios), ("split", "sdp-ib", [2.0, 0.5]))
        self.assertIn("p50", label)
        self.assertIn("against the one before", results.asMarkdown())
        for name in ("sdp-roce", "rds-roce", "udp-ipoib"):
            mine = subjectByName[name]
            others = [mine.ofTree(mark, "/tree") for mark in MARKS]
            for other in others:
                self.assertEqual((other.base, other.tree, other.isOurs), (name, "/tree", True))
            self.assertEqual(len({each.server for each in (mine, *others)}), 4)
            self.assertEqual(len({each.client for each in (mine, *others)}), 4)
        self.assertFalse(subjectByName["tcp"].isOurs)

    def test_fallen(self):
        """
        What is below 0.95 of the commit before stands first, the greatest loss at the top; what one of the
        two has no figure of is named.
        """
        results = self.results(
            "rt64",
            sdp_ib=[{"p50": 5.0, "p99": 10.0, "p99.9": 4.0}] * 3,
            **{"sdp_ib@before": [{"p50": 4.0, "p99": 9.6, "p99.9": 1.0}] * 3},
        )
        results.leftOut = [("same", "A", "sdp-ib"), ("same", "A", "ib"), ("free", "A", "ib")]
        text = results.asMarkdown()
        [lines] = re.findall(
            r"\n## Below 0.95 of the commit before: 2 of 3 figures\n(.*?)\n## Not", text, re.S
        )
        self.assertEqual(
            re.findall(r"round trip, (\S+) .*\| (\S+) \|", lines),
            [("p99.9", "0.25-0.25"), ("p50", "0.8-0.8")],
        )
        self.assertLess(text.index("## Below"), text.index("## split"))
        self.assertIn("\n## Not measured: 3\n", text)
        self.assertIn("\n| A | same | sdp-ib, ib |\n| A | free | ib |\n", text)
        self.assertNotIn("## Not measured", self.results("rt64", sdp_ib=[{"p50": 5.0}]).asMarkdown())

    def test_control(self):
        """
        Of what is below 0.95, that in which this commit is the worst of three runs more often than chance
        makes it stands apart from what the other commit's two runs differ by as well.
        """
        before, slower, faster = (
            {"p50": 10.0, "p99": 10.0},
            {"p50": 12.0, "p99": 12.0},
            {"p50": 11.0, "p99": 13.0},
        )
        results = self.results(
            "rt64",
            sdp_ib=[slower] * 6,
            **{"sdp_ib@before": [before] * 6, "sdp_ib@control": [faster] * 6},
        )
        text = results.asMarkdown().partition("\n## Not measured")[0]
        lines = re.findall(
            r"^(### .*)$|.*round trip, (p\d+) .*\| (\S+) \| \S+ \| (\S+) \| \S+ \|$", text, re.M
        )
        self.assertEqual(
            lines,
            [
                ("### More than chance: 1", "", "", ""),
                ("", "p50", "0.833", "0.909"),
                ("### As the commit before differs from itself: 1", "", "", ""),
                ("", "p99", "0.833", "0.769"),
            ],
        )
        self.assertEqual([each[3] for each in results.changes(CONTROL)], [[1 / 1.1] * 6, [1 / 1.3] * 6])
        # The worst in five of six rounds, and in four.
        self.assertTrue(_isLoss([0.9] * 5 + [1.1], [1.0] * 6))
        self.assertFalse(_isLoss([0.9] * 4 + [1.1] * 2, [1.0] * 6))
        self.assertFalse(_isLoss([0.9] * 3, [1.0] * 3))
        self.assertTrue(_isLoss([0.9], []))
        with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()):
            compare._parse(["--control"])

    def test_turns(self):
        """
        Within three rounds each tree of a subject is the first of them once, and the last.
        """
        mine = [subjectByName[name] for name in ("sdp-ib", "ib")]
        trees = [
            tree
            for each in mine
            for tree in (each, *(each.ofTree(mark, "/tree") for mark in (BEFORE, CONTROL)))
        ]
        rounds = [
            [each.name for each in compare._inTurn([subjectByName["tcp"], *trees], n)] for n in range(3)
        ]
        for name in ("sdp-ib", "ib"):
            places = [[each for each in names if each.partition("@")[0] == name] for names in rounds]
            for at in (0, 2):
                self.assertEqual({names[at] for names in places}, {name, name + BEFORE, name + CONTROL})
        self.assertEqual([names.index("tcp") for names in rounds], [6, 0, 6])

    def test_leftOut(self):
        """
        All rows are compared unless they are left out; one that failed in each round is not.
        """
        options = compare._parse(["--rows", "rt64", "--placements", "split", "--subjects", "sdp-ib"])
        comparison = compare.Comparison(options, ROOT)
        add = comparison.results.add
        every = set(comparison._leftOut())
        self.assertIn(("split", rowByName["rt1m"].title, "sdp-ib"), every)
        self.assertNotIn("tcp", {subject for _, _, subject in every})
        for figures in (None, {"p50": 1.0}):
            add("split", "rt64", "sdp-ib", {"p50": 1.0})
            add("split", "rt64", "sdp-ib@before", figures)
            gone = every - set(comparison._leftOut())
            self.assertEqual(gone, {("split", rowByName["rt64"].title, "sdp-ib")} if figures else set())

    def test_checkout(self):
        """
        A commit's files are unpacked; a folder is taken as it is; what is neither is said.
        """
        folder = self.mktemp()
        os.mkdir(folder)
        self.assertEqual(compare._checkout(str(ROOT), folder, ROOT), ROOT)
        with self.assertRaises(SystemExit) as caught:
            compare._checkout("no-such-commit", folder, ROOT)
        self.assertIn("neither a folder nor a commit", str(caught.exception))
        if not (ROOT / ".git").exists() or not shutil.which("git"):
            raise SkipTest("not a checkout")
        compare._checkout("HEAD", folder, ROOT)
        self.assertTrue(os.path.exists(os.path.join(folder, "twisted_ib", "__init__.py")))

    def test_compiled(self):
        """
        The compiled form has targets of its own, and is compared with the pure one of the same round.
        """
        tcp, pure, form = [{"p50": 80.0}], [{"p50": 8.0}], [{"p50": 4.0}]
        results = self.results("rt64", tcp=tcp, sdp_ib=pure, **{"sdp_ib@compiled": form})
        found = [each for each in results.verdicts() if each.metric == "p50"]
        self.assertEqual([each.subject for each in found], ["sdp-ib", "sdp-ib@compiled"])
        self.assertEqual([each.target.bound for each in found], [10, 20])
        self.assertEqual([each.reached for each in found], [10.0, 20.0])
        [(_, _, subject, ratios)] = results.changes(COMPILED)
        self.assertEqual((subject, ratios), ("sdp-ib", [2.0]))
        self.assertIn("| compiled | 20x |", results.asMarkdown())
        # The tree of these tests is of the form in which they run.
        self.assertEqual(isCompiled(str(ROOT)), bool(compiledModules()))
        for name, targets in COMPILED_TARGETS.items():
            self.assertLessEqual(set(targets), set(rowByName[name].targets), name)

    def test_order(self):
        """
        Columns are in the order of the subjects, whoever ran first; each family has a table.
        """
        results = self.results("rt64", sdp_ib=[{"p50": 1.0}], tcp=[{"p50": 2.0}])
        results.titles = {"tcp": "TCP", "int32": "strings", "sdp-ib": "SDP"}
        results.add("split", "dg64", "int32", {"p50": 3.0})
        heads = [line for line in results.asMarkdown().splitlines() if line.startswith("| | ")]
        self.assertEqual(heads[:2], ["| | TCP | SDP | target |", "| | strings | target |"])

    def test_most(self):
        """
        Memory is not compared, it has a bound.
        """
        figures = {"memory": 3.0, "user": 2.0, "kernel": 1.0, "CPU": 0.3}
        results = self.results("idle", tcp=[figures], sdp_ib=[figures])
        self.assertTrue(self.only(results, "memory").isMet)
        self.assertFalse(self.only(results, "CPU").isMet)

    def test_over(self):
        """
        Start-up time may be that much longer than the baseline's.
        """
        results = self.results("twistd", "free", tcp=[{"wall": 200.0}], sdp_ib=[{"wall": 231.0}])
        found = self.only(results, "wall")
        self.assertEqual((found.reached, found.isMet), (31.0, False))
        self.assertEqual(found.wanted, "<= +30 ms")

    def test_fast(self):
        """
        Targets of bulk rows are for a TCP that is not too fast: a faster one is pointed out.
        """
        for rate, isFast in ((3400.0, False), (3600.0, True)):
            results = self.results("stream1m", tcp=[{"MB/s": rate}], sdp_ib=[{"MB/s": 1e4}])
            self.assertEqual(self.only(results, "MB/s").isFast, isFast)
            self.assertEqual("TCP over 3.5 GB/s" in results.asMarkdown(), isFast)

    def test_missing(self):
        """
        A figure that was not measured is not met, and is left out of the table of targets.
        """
        results = self.results("rt64", tcp=[{"p50": 1.0}])
        self.assertFalse(self.only(results, "p50").isMet)
        self.assertNotIn("## Targets", results.asMarkdown())

    def test_JSON(self):
        """
        Everything can be written, the machine and what is absent too.
        """
        results = self.results("rt64", tcp=[{"p50": 10.0}], sdp_ib=[{"p50": 1.0}])
        results.absent["ucx"] = "not here"
        written = json.loads(json.dumps(results.asJSON()))
        self.assertEqual(written["absent"], {"ucx": "not here"})
        for name in ("CPU", "CPUs", "kernel", "python", "load average", "time", "commit"):
            self.assertIn(name, written["machine"])
        [target] = [each for each in written["targets"] if each["metric"] == "p50"]
        self.assertEqual((target["reached"], target["met"]), (10.0, True))

    def test_wanted(self):
        """
        A bound in words has the unit.
        """
        row = rowByName["idle"]
        target = Target(0.25, "most")
        found = Verdict("split", row, "CPU", "% of a CPU, 4000 of them", target, 0.1, False, "sdp-ib")
        self.assertEqual(found.text, "<= 0.25 % of a CPU, met")


class MeasuringTests(SynchronousTestCase):
    """
    L{benchmarks.clients}, L{benchmarks.footprint}, L{benchmarks.transports}
    """

    def test_oneHarness(self):
        """
        No module here has the name of one that C{ib-perf compare} has: what both need is there.
        """
        mine, theirs = (
            {path.stem for path in (ROOT / each).glob("*.py")} - {"__init__"}
            for each in ("benchmarks", "twisted_ib/tools/compare")
        )
        self.assertEqual(mine & theirs, set())

    def test_percentiles(self):
        """
        Of nanoseconds in any order, in microseconds.
        """
        self.assertEqual(percentile([1, 2, 3, 4], 0.5), 3.0)
        figures = latencies([3000, 1000, 2000])
        self.assertEqual((figures["p50"], figures["p99.9"], figures["count"]), (2.0, 3.0, 3.0))

    def test_cold(self):
        """
        The buffers of the cold source are distinct.
        """
        self.assertEqual(len(set(chunksOf(64, True))), COLD_BUFFERS)
        self.assertEqual(len(chunksOf(64, False)), 1)

    def test_footprint(self):
        """
        Both ends' own and shared memory count, and what the kernel has for them.
        """
        path = self.mktemp()
        with open(path, "w") as file:
            file.write("RssAnon:\t 10 kB\nRssFile:\t 500 kB\nRssShmem:\t 5 kB\n")
        self.assertEqual(footprint._sumOf(path, footprint._USER), 15)
        before = footprint.Footprint(100, 1000)
        self.assertEqual(footprint.Footprint(150, 1010).since(before), footprint.Footprint(50, 10))
        self.assertGreater(footprint.Footprint.take([os.getpid()]).user, 0)

    def test_absent(self):
        """
        Missing features of this machine are reported.
        """
        self.patch(shutil, "which", lambda name: None)
        self.assertEqual(subjectByName["ucx"].absence(), "ucx_perftest is not installed")
        self.assertEqual(subjectByName["tcp"].absence(), "")
        self.patch(transports, "find_spec", lambda name: None)
        self.assertEqual(subjectByName["zmq"].absence(), "zmq cannot be imported")
        tree = self.mktemp()
        os.makedirs(os.path.join(tree, "twisted_ib"))
        for name, part in ("queues", "queues"), ("verbs-shm0", "verbs/pyverbs"):
            older = subjectByName[name].ofTree(BEFORE, tree)
            self.assertEqual(older.absence(), f"there is no twisted_ib/{part} in {tree}")
        self.assertEqual(subjectByName["rds-ib"].ofTree(BEFORE, tree).absence(), "")

    def test_otherTree(self):
        """
        Programs of another tree are its own, and those that it has not this checkout's.
        """
        tree = os.path.abspath(self.mktemp())
        os.makedirs(os.path.join(tree, "benchmarks"))
        for name, text in (
            ("__init__", ""),
            ("links", "print('older')"),
            ("newer", "from benchmarks import links, clients\nprint(clients.__file__)"),
        ):
            Path(tree, "benchmarks", f"{name}.py").write_text(text)
        subject = evolve(subjectByName["pipe"].ofTree(BEFORE, tree), program="newer")
        ran = subprocess.run(
            commandOf(subject, "server"),
            cwd=os.sep,
            env=environmentFor(tree=tree),
            capture_output=True,
            text=True,
        )
        self.assertEqual(ran.stdout, f"older\n{ROOT}/benchmarks/clients.py\n", ran.stderr)

    def test_byteCode(self):
        """
        Processes that are measured have files of byte code, whatever this one is told.
        """
        self.patch(os, "environ", {"PYTHONDONTWRITEBYTECODE": "1"})
        environment = environmentFor("/cache")
        self.assertNotIn("PYTHONDONTWRITEBYTECODE", environment)
        self.assertEqual(environment["PYTHONPYCACHEPREFIX"], "/cache")


class _Pair:
    """
    In place of two processes: one of everything.
    """

    isEnded = False

    def place(self, placement):
        """
        There are no CPUs to move to.
        """

    def run(self, row, seconds, patience):
        return {metric: 1.0 for metric, _, _ in row.metrics}

    def end(self, isHard=False):
        self.isEnded = True


class ProgramTests(SynchronousTestCase):
    """
    The programs, with very short rows.

    @cvar subjects: Those that are compared; C{tests/soak} has more.
    @cvar rows: What is measured of them.
    """

    subjects: tuple[str, ...] = ("tcp", "sdp-ib", "blocking-tcp")
    rows: tuple[str, ...] = ("rt64", "sockets64")

    def test_compare(self):
        """
        A run has figures of every subject that it was asked for, and its failures decide the exit
        status.
        """
        path = self.mktemp()
        present = [name for name in self.subjects if not subjectByName[name].absence()]
        options = ["--rounds", "1", "--seconds", "0.01", "--rows", ",".join(self.rows)]
        options += ["--subjects", ",".join(present), "--placements", "free", "--json", path]
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            status = compare.main(options)
        with open(path) as file:
            results = json.load(file)
        self.assertEqual((status, results["failures"]), (0, []))
        found = {(each["row"], each["subject"]) for each in results["raw"] if all(each["rounds"])}
        wanted = {
            (row, subject)
            for row in self.rows
            for subject in present
            if compare.Comparison._runs(subjectByName[subject], rowByName[row])
        }
        self.assertEqual(found, wanted)
        self.assertIn("| 64 B round trip, p50 (us) |", said.getvalue())

    def test_interrupted(self):
        """
        A run that is ended shows what it has measured until then, and that it was ended.
        """
        original, rows, before = compare.Comparison._runRow, [], signal.getsignal(signal.SIGTERM)
        pair = _Pair()
        self.patch(compare, "Pair", lambda *_: pair)

        def runRow(comparison, subject, row, placement):
            """
            The first row is measured, then SIGTERM comes.
            """
            if rows:
                os.kill(os.getpid(), signal.SIGTERM)
            rows.append(row)
            return original(comparison, subject, row, placement)

        self.patch(compare.Comparison, "_runRow", runRow)
        options = ["--rounds", "1", "--seconds", "0.01", "--rows", ",".join(self.rows)]
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            status = compare.main([*options, "--subjects", self.subjects[0], "--placements", "free"])
        self.assertEqual((status, len(rows)), (1, 1))
        self.assertIn(f"| {rows[0].title}, p50 (us) |", said.getvalue())
        self.assertIn("interrupted", said.getvalue())
        self.assertTrue(pair.isEnded)
        self.assertEqual(signal.getsignal(signal.SIGTERM), before)


class SocketsTests(SynchronousTestCase):
    """
    Round trips of two processes; C{tests/soak} has those of loops.
    """

    def test_trips(self) -> None:
        """
        The first ones do not count, nor have pauses before them; a later round has fewer of those.
        """
        sent: list[bytes] = []
        found: list[dict[str, float]] = []
        trips = sockets.Trips(
            b"1234", 3, 2, 0.5, lambda figures: found.append(figures) or len(found) < 2, sent.append
        )
        pauses = []
        while not trips.isOver:
            pauses.append(trips.pause)
            trips.send()
            self.assertFalse(trips.received(1))
            self.assertTrue(trips.received(3))
        self.assertEqual(sent, [b"1234"] * len(pauses))
        self.assertEqual(pauses, [0.0, 0.0, 0.0, 0.5, 0.5, 0.0, 0.0, 0.5, 0.5])
        self.assertEqual([set(each) for each in found], [{"us", "switches"}] * 2)

    def test_seconds(self) -> None:
        """
        A row that has no time left has the fewest rounds, and as few trips after long pauses.
        """
        options = Namespace(size=8, rounds=20, trips=500, warming=1)
        begun = monotonic()
        found = sockets.compare("blocking", (-1, -1), 0.05, 0.0, options)
        self.assertEqual({name: len(each) for name, each in found.items()}, {"tcp": 3, "sdp": 3})
        self.assertGreaterEqual(monotonic() - begun, 2 * 3 * sockets.FEWEST_TRIPS * 0.05)
