"""
Tests of the comparison of suites.
"""

from __future__ import annotations

import json
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import TestCase, mock

from twisted._version import __version__ as TWISTED
from twisted.python.reflect import namedAny
from twisted.python.versions import Version
from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.suites import aio, compare, crawl, exclusions, projects, synapse
from tests.support.waiting import HANG_SECONDS
from twisted_ib.hca.device.registry import parseRules as parse
from twisted_ib.switch.rules.policy import Policy

_IB, _EPOLL = "m.T_IBReactorTests.test_x", "m.T_EPollReactorTests.test_x"


class Fake:
    """
    Runs tests by giving what is to become of them.
    """

    def __init__(self, **fails: bool) -> None:
        """
        @param fails: By the run's first word, whether a test fails.
        """
        self.fails = fails
        self.ran: list[tuple[str, list[str]]] = []

    def run(self, run: str, names: list[str], seconds: int = 120) -> Any:
        """
        Give it.
        """
        self.ran.append((run, names))
        outcome = compare.Outcome()
        outcome.results[compare.plain(names[0])] = ("failed" if self.fails[run] else "ok", "")
        return outcome


class Sample(TestCase):
    """
    Tests for L{tests.suites.written}; by no name that trial takes for a test.
    """

    def passes(self) -> None:
        """
        Pass.
        """

    def fails(self) -> None:
        """
        Fail in a part, and pass in another.
        """
        for number in range(2):
            with self.subTest(number):
                self.assertEqual(number, 0)

    def isLeftOut(self) -> None:
        """
        Is skipped.
        """
        self.skipTest("as it should")


def outcome(**kinds: str) -> compare.Outcome:
    """
    @param kinds: By name, what became of tests.
    """
    made = compare.Outcome()
    for name, kind in kinds.items():
        made.results[name] = (kind, "a reason")
        made.names[name] = name
    return made


#: A test of rdma-core's kind.
_THEIRS = """
import unittest
import pyverbs.device as d
from pyverbs.libibverbs_enums import ibv_qp_type
from pyverbs.providers.mlx5 import mlx5dv
from tests.base import RDMATestCase

class T(RDMATestCase):
    def test_ok(self):
        with d.Context(name=self.dev_name) as context:
            self.assertEqual((context.name, ibv_qp_type.IBV_QPT_UD), ("lo0", 4))
            self.assertEqual(self.address, "127.0.0.1")

    def test_provider(self):
        raise unittest.SkipTest(f"no {mlx5dv.Context.flag | mlx5dv.other and 'hardware'}")

    def test_wrong(self):
        from pyverbs.device import nothing
"""
_PARSER = """
import sys
class parser:
    parse_args = staticmethod(lambda: None)
"""
_BASE = """
import sys
import unittest
class RDMATestCase(unittest.TestCase):
    def setUp(self):
        self.dev_name, self.args = sys.argv[2], []
        self._get_ip_mac(self.dev_name, 1, 0)
        self.address = self.args[0][3]
"""


class RDMACoreTests(SynchronousTestCase):
    """
    A suite of pyverbs.
    """

    def test_run(self) -> None:
        """
        It takes this project for pyverbs; providers' names are there, and others are not.
        """
        source = Path(self.mktemp()).resolve()
        (source / "tests").mkdir(parents=True)
        files = {"test_a": _THEIRS, "test_mlx5_x": "1/0", "base": _BASE, "args_parser": _PARSER}
        for name, text in files.items():
            (source / "tests" / f"{name}.py").write_text(text)
        command = [sys.executable, "-m", "tests.suites.rdmacore", str(source), "--dev", "lo0"]
        ended = subprocess.run(
            command, cwd=compare.ROOT, capture_output=True, text=True, timeout=HANG_SECONDS
        )
        lines = ended.stdout.splitlines()
        self.assertEqual(ended.returncode, 1, ended.stderr)
        self.assertEqual(lines[:2], ["ok   test_a.T.test_ok", "skip test_a.T.test_provider: no hardware"])
        self.assertIn("FAIL test_a.T.test_wrong: ImportError: cannot import name 'nothing'", lines[2])
        self.assertEqual(lines[3], "1 FAIL, 1 ok, 1 skip")


class OutcomeTests(SynchronousTestCase):
    """
    Outcomes read from a child's file.
    """

    def read(self, *lines: Any, cut: str = "") -> compare.Outcome:
        """
        @param lines: The file's.
        @param cut: The text behind them.
        """
        path = Path(self.mktemp())
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines) + cut)
        made = compare.Outcome()
        made.read(path)
        return made

    def test_results(self) -> None:
        """
        Results by names that do not say which reactor it was; a failure outweighs what else is said.
        """
        made = self.read(
            ["ran", _IB],
            ["failed", _IB, "because"],
            ["ok", _IB, ""],
            ["ran", "m.T.test_y"],
            ["skipped", "m.T.test_y", "no reason"],
            ["ways", {"sdp": 7}],
        )
        self.assertEqual(made.having("failed"), {_EPOLL})
        self.assertEqual(made.having("skipped"), {"m.T.test_y"})
        self.assertEqual((made.names[_EPOLL], made.ways["sdp"], made.trouble), (_IB, 7, ""))

    def test_cutShort(self) -> None:
        """
        A child that ends early has failed in the test that it was in.
        """
        made = self.read(["ran", "a"], ["ok", "a", ""], ["ran", "b"], cut='["ok", "b')
        self.assertEqual((made.having("ok"), made.having("failed")), ({"a"}, {"b"}))

    def test_neverBegun(self) -> None:
        """
        Of one that has written nothing all tests are missing.
        """
        made = compare.Outcome()
        made.read(Path("nowhere"))
        self.assertEqual((made.results, made.trouble), ({}, "never began"))
        self.assertEqual(compare.missing(outcome(a="ok", b="skipped"), made, False), ["a", "b"])


class DifferenceTests(SynchronousTestCase):
    """
    Differences between runs.
    """

    def test_steady(self) -> None:
        """
        A failure on epoll, too, is none; one that comes again on ib only is one.
        """
        runner: Any = Fake(ib=True, epoll=False)
        found = compare.differences(
            runner, "ib", outcome(a="failed", b="ok"), outcome(a="failed", b="failed")
        )
        self.assertEqual(found, (["b"], []))
        self.assertEqual(runner.ran, [("ib", ["b"]), ("epoll", ["b"])])

    def test_unsteady(self) -> None:
        """
        A failure that does not come again, or comes on epoll then, is none.
        """
        for fails in ({"ib": False, "epoll": False}, {"ib": True, "epoll": True}):
            runner: Any = Fake(**fails)
            found = compare.differences(runner, "ib", outcome(b="ok"), outcome(b="failed"))
            self.assertEqual(found, ([], ["b"]))

    def test_others(self) -> None:
        """
        Tests that are left out, or fail on epoll only, are reported.
        """
        text = compare._others(
            "ib", outcome(a="ok", b="ok", c="failed", d="ok"), outcome(a="skipped", b="ok", c="ok")
        )
        self.assertEqual(len(text), 2)
        self.assertIn("left out: 1, such as a: a reason", text[0])
        self.assertIn("fails on epoll only: c", text[1])

    def test_missing(self) -> None:
        """
        Tests that did not run are missing; those of other reactors may be.
        """
        run = {name: "ok" for name in ("a.T_EPollReactorTests.x", "a.T_SelectReactorTests.x", "b")}
        baseline, other = outcome(**run), outcome(b="ok")
        self.assertEqual(compare.missing(baseline, other, True), ["a.T_EPollReactorTests.x"])
        self.assertEqual(len(compare.missing(baseline, other, False)), 2)
        self.assertEqual(compare.missing(other, baseline, False), [])

    def test_packages(self) -> None:
        """
        All packages by default; some by name; those that connect most.
        """
        every = compare.packages("")
        self.assertIn("twisted.internet", every["internet"])
        self.assertIn("twisted.python", every["small"])
        self.assertEqual(
            compare.packages("web,twisted.test.test_tcp"),
            {
                "web": ["twisted.web"],
                "twisted.test.test_tcp": ["twisted.test.test_tcp"],
            },
        )
        self.assertEqual(set(compare.packages("most")), set(compare.MOST))

    def test_rules(self) -> None:
        """
        The rules are about loopback alone, and right.
        """
        contents = parse(compare.rules("sdp"), "a file")
        policy = Policy(contents)
        for role in ("listen", "connect"):
            for address in ("127.0.0.1", "127.3.2.1", "::1"):
                self.assertEqual(policy.decide(role, "trial", address, 80).verdict, "sdp")
            for address in ("192.0.2.1", "0.0.0.0", "::"):
                self.assertEqual(policy.decide(role, "trial", address, 80).where, "default")


class ReportTests(SynchronousTestCase):
    """
    The printed report.
    """

    def report(self, **runs: compare.Outcome | None) -> tuple[int, str]:
        """
        @param runs: The outcomes of the tests of one package.
        @return: The exit status, and the text.
        """
        runner: Any = Fake(ib=True, epoll=False)
        runner.full = False
        with mock.patch("sys.stdout", StringIO()) as output:
            status = compare.report(runner, ["web"], {("web", run): made for run, made in runs.items()})
        return status, output.getvalue()

    def test_same(self) -> None:
        """
        Nothing differs; what carried the connections, and why not SDP.
        """
        other = outcome(a="ok", b="failed")
        other.ways.update(sdp=3, tcp=2, no_listener=2)
        status, text = self.report(epoll=outcome(a="ok", b="failed"), ib=other)
        self.assertEqual(status, 0)
        self.assertIn("ib: 3 connections by SDP, 2 by TCP; why not SDP: no_listener 2", text)
        self.assertIn("SDP carried 3 connections; 0 differences.", text)

    def test_different(self) -> None:
        """
        A test that fails, and one that did not run.
        """
        status, text = self.report(epoll=outcome(a="ok", b="ok", c="ok"), ib=outcome(a="failed", b="ok"))
        self.assertEqual(status, 1)
        self.assertIn("ib: FAILS: a: a reason", text)
        self.assertIn("ib: web: DID NOT RUN: 1, such as c", text)
        self.assertIn("2 differences.", text)

    def test_noTime(self) -> None:
        """
        A package that was not begun in each run is not compared.
        """
        status, text = self.report(epoll=outcome(a="ok"), ib=None)
        self.assertEqual(status, 1)
        self.assertIn("web: left out: the time is up", text)


class ProjectTests(SynchronousTestCase):
    """
    The comparison of other projects' suites.
    """

    def test_differing(self) -> None:
        """
        Any other result is a difference, and so is a test that did not run.
        """
        first = outcome(a="ok", b="ok", c="skipped", d="failed")
        second = outcome(a="ok", b="failed", c="ok", e="ok")
        self.assertEqual(projects.differing(first, second), ["b", "c", "d", "e"])

    def test_steady(self) -> None:
        """
        A test that differs again is a difference.
        """
        suites: Any = Fake(ib=True, epoll=False)
        steady, unsteady = projects.differences(suites, "ib", outcome(a="ok"), outcome(a="failed"))
        self.assertEqual((steady, unsteady), (["ib: DIFFERS: a: failed, on epoll ok: "], []))

    def test_unsteady(self) -> None:
        """
        One that does not is none.
        """
        suites: Any = Fake(ib=False, epoll=False)
        steady, unsteady = projects.differences(suites, "ib", outcome(a="ok"), outcome(a="failed"))
        self.assertEqual((steady, unsteady), ([], ["a"]))

    def test_nothingToDownload(self) -> None:
        """
        Where nothing can be installed there is a reason, and no failure.
        """
        environment = Path(self.mktemp())
        environment.mkdir()
        suites = projects.Suites(environment, Path(), 1)
        python = str(environment / "bin" / "python")
        self.assertIn(python, suites.install(["klein"]))


class LoopSuitesTests(SynchronousTestCase):
    """
    The comparison of suites on asyncio and on this project's loops.
    """

    def test_read(self) -> None:
        """
        Of a test's parts a failure counts; one that runs again, and a line that is cut, do not.
        """
        path = Path(self.mktemp())
        parts = [
            ("CollectReport", "a.py", "passed", None),
            ("CollectReport", "b.py", "failed", "no module"),
            ("TestReport", "a.py::x", "passed", None),
            ("TestReport", "a.py::x", "failed", {"reprcrash": {"message": "left behind\nmore"}}),
            ("TestReport", "a.py::y", "rerun", None),
            ("TestReport", "a.py::y", "passed", None),
            ("TestReport", "a.py::z", "skipped", None),
        ]
        names = ("$report_type", "nodeid", "outcome", "longrepr")
        lines = [json.dumps(dict(zip(names, part, strict=True))) for part in parts]
        path.write_text("\n".join([*lines, '{"exitstatus": 0}', '{"nodeid": "a.py']))
        found = aio.Outcome()
        found.read(path)
        results = {"b.py": "failed", "a.py::x": "failed", "a.py::y": "passed", "a.py::z": "skipped"}
        self.assertEqual((found.results, found.count), (results, 4))
        self.assertEqual(found.reasons, {"b.py": "no module", "a.py::x": "left behind"})

    def test_interpreter(self) -> None:
        """
        The interpreter's tests have a line each: those that passed, failed in a part, and were left out.
        """
        path = Path(self.mktemp()).absolute()
        path.parent.mkdir(parents=True, exist_ok=True)
        names = [f"{__name__}.Sample.{each}" for each in ("passes", "fails", "isLeftOut", "none")]
        done = subprocess.run(
            [sys.executable, "-m", "tests.suites.written", str(path), *names],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=aio.ROOT,
            check=False,
        )
        self.assertEqual(done.returncode, 1)
        found = aio.Outcome()
        found.readLines(path)
        self.assertEqual([found.having(each) for each in ("passed", "failed", "skipped")], [1, 2, 1])

    def test_nothingPassed(self) -> None:
        """
        If nothing passed, or nothing ran, nothing was compared: that is a fault, and it is said.
        """
        for results in ({}, {"x": "failed"}, {"x": "skipped"}):
            suites: Any = mock.Mock()
            suites.parts.return_value = [["x"]]
            suites.run.side_effect = lambda *of, results=results: aio.Outcome(len(results), dict(results))
            with mock.patch("sys.stdout", StringIO()) as said:
                self.assertEqual(aio.compare(suites, "interpreter"), 1)
            self.assertIn("NOTHING PASSED", said.getvalue())

    def settled(self, alone: dict[str, list[str]]) -> tuple[list[str], list[str], list[tuple[bool, str]]]:
        """
        Settle a test that fails on this project's loop alone.

        @param alone: By C{a.py}, its file, and C{a.py::x}, what becomes of it when that runs again there.
        """
        ran = []

        def run(name: str, isOurs: bool, tests: list[str]) -> aio.Outcome:
            ran.append((isOurs, tests[0]))
            return aio.Outcome(1, {"a.py::x": alone[tests[0]].pop(0) if isOurs else "passed"})

        suites: Any = mock.Mock(run=run)
        sides = (aio.Outcome(1, {"a.py::x": result}) for result in ("passed", "failed"))
        return (*aio.settle(suites, "daphne", *sides), ran)

    def test_settle(self) -> None:
        """
        A test is a difference if its file, and then it alone, differs each time.
        """
        failing = {"a.py": ["failed"], "a.py::x": ["failed"] * aio.ROUNDS}
        steady, unsteady, ran = self.settled(failing)
        self.assertEqual((steady, unsteady), (["a.py::x"], []))
        both = [(False, "a.py::x"), (True, "a.py::x")]
        self.assertEqual(ran, [(False, "a.py"), (True, "a.py"), *both * aio.ROUNDS])
        steady, unsteady, ran = self.settled({"a.py": ["failed"], "a.py::x": ["passed"]})
        self.assertEqual((steady, unsteady, len(ran)), ([], ["a.py::x"], 4))
        steady, unsteady, ran = self.settled({"a.py": ["passed"]})
        self.assertEqual((steady, unsteady, len(ran)), ([], ["a.py::x"], 2))

    def test_many(self) -> None:
        """
        More than so many do not run alone: they are differences.
        """
        names = [f"a.py::{number}" for number in range(aio.MOST_ALONE + 1)]
        suites: Any = mock.Mock()
        suites.run.side_effect = [aio.Outcome(0, dict.fromkeys(names, "passed")), aio.Outcome()]
        sides = (aio.Outcome(0, dict.fromkeys(names, each)) for each in ("passed", "failed"))
        steady, unsteady = aio.settle(suites, "daphne", *sides)
        self.assertEqual((len(steady), unsteady), (len(names), []))


class CrawlTests(SynchronousTestCase):
    """
    The table of crawls.
    """

    def test_report(self) -> None:
        """
        It has the medians; C{ib-run} may take no more than C{tcp}.
        """
        costs = {
            "tcp": [crawl.Cost(2.0, 1.0, 4.0, 2.0), crawl.Cost(4.0, 1.0, 6.0, 2.0)],
            "sdp": [crawl.Cost(3.0, 1.0, 6.0, 1.0)],
            "ib-run": [crawl.Cost(1.0, 1.0, 5.0, 2.0)],
        }
        with mock.patch("sys.stdout", StringIO()) as output:
            self.assertEqual(crawl.report(costs), 0)
        self.assertIn("tcp                3.00     1.00     4.00     7.00\n", output.getvalue())
        self.assertIn("ib-run: 0.50 of the CPU time of tcp while it crawls, 1.00 in all\n", output.getvalue())
        costs["ib-run"] = [crawl.Cost(1.0, 1.0, 5.0, 2.1)]
        with mock.patch("sys.stdout", StringIO()):
            self.assertEqual(crawl.report(costs), 1)


class HeldTests(SynchronousTestCase):
    """
    A crawl that C{ib-ss} looks at goes on until it has looked.
    """

    def test_last(self) -> None:
        """
        The last page is answered once that is so, and at once later; others, and a page that is the only one,
        never wait.
        """
        held, answered = crawl.Held(3), []
        self.assertEqual([held.holds(page, lambda: None) for page in range(2)], [False] * 2)
        self.assertTrue(held.holds(2, lambda: answered.append(2)))
        self.assertEqual(answered, [])
        held.release()
        self.assertEqual(answered, [2])
        self.assertFalse(held.holds(2, lambda: answered.append(2)))
        self.assertFalse(crawl.Held(1).holds(0, lambda: None))


class SynapseTests(SynchronousTestCase):
    """
    Synapse and its worker, where they are not.
    """

    def test_missing(self) -> None:
        """
        Without Redis there is a reason, and no failure.
        """
        command = [sys.executable, "-m", "tests.suites.synapse", "--redis", "surely-none"]
        ended = subprocess.run(
            command, cwd=compare.ROOT, capture_output=True, text=True, timeout=HANG_SECONDS
        )
        self.assertEqual(
            (ended.returncode, ended.stdout),
            (projects.SKIPPED, "skipped: there is no surely-none (apt-get install redis-server)\n"),
        )

    def test_configuration(self) -> None:
        """
        Main process and worker know each other's ports, which differ.
        """
        directory = Path(self.mktemp()).resolve()
        directory.mkdir()
        server = synapse.Server("python", "redis", directory)
        server.configure()
        main, worker = (json.loads((directory / f"{name}.yaml").read_text()) for name in ("main", "worker"))
        ports = [each["port"] for each in (*main["listeners"], *worker["worker_listeners"])]
        self.assertEqual(len({*ports, main["redis"]["port"]}), 4)
        self.assertEqual(main["instance_map"]["main"]["port"], ports[1])
        self.assertEqual((server.main, server.worker), (ports[0], ports[2]))


class Subject(SynchronousTestCase):
    """
    Tests to try exclusions on; not run by themselves.
    """

    def inherited(self) -> None:
        """
        A test.
        """


class ExclusionTests(SynchronousTestCase):
    """
    Tests that are left out.
    """

    def test_leaveOut(self) -> None:
        """
        The method or the class that is named, of what is loaded, with its reason.
        """
        one, other = type("One", (Subject,), {}), type("Other", (Subject,), {})
        found = {"Here.One": one, "Here.Other": other, "Here.Other.inherited": other.inherited}
        self.patch(exclusions, "namedAny", found.__getitem__)
        names = {"Here.One": "why", "Here.Other.inherited": "because", "There.nothing": ""}
        exclusions.leaveOut(names, ["Here"])
        self.assertEqual((one.skip, other.inherited.skip), ("why", "because"))
        self.assertFalse(hasattr(Subject.inherited, "skip"))

    def test_names(self) -> None:
        """
        Those of Twisted's tests that are no one reactor's are there.
        """
        if TWISTED < Version("Twisted", 26, 4, 0):
            raise SkipTest("some of these tests are newer than this Twisted")
        for names in exclusions.SETS.values():
            for name in names:
                if "_IBReactorTests" not in name:
                    self.assertTrue(namedAny(name))
