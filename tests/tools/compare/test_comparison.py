"""
Tests for L{twisted_ib.tools.compare.comparison}, and for C{ib-perf compare} as a process.
"""

from __future__ import annotations

import os
import signal
import subprocess
from argparse import Namespace
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.support.commands import begun, programOf, refusal
from tests.support.waiting import HANG_SECONDS, waitUntil
from twisted_ib.hca.device import registry
from twisted_ib.tools.compare import comparison, subjects
from twisted_ib.tools.compare.comparison import SIZES, Comparison
from twisted_ib.tools.compare.processes import START_SECONDS, Patience, WorkerError
from twisted_ib.tools.compare.subjects import PLACEMENTS, SUBJECTS, Placement, Subject, inUnits
from twisted_ib.tools.perf import perf
from twisted_ib.tools.program import ProgramError


def parsed(*arguments: str) -> Namespace:
    """
    @return: the options of a command line.
    """
    return perf.commandLine().parse_args(["compare", *arguments])


class OptionTests(SynchronousTestCase):
    """
    The command line.
    """

    def test_defaults(self) -> None:
        """
        Everything, in two sizes.
        """
        options = parsed()
        self.assertEqual((options.sizes, options.subjects), (list(SIZES), list(SUBJECTS)))
        self.assertEqual((options.placements, options.json, options.plot), (list(PLACEMENTS), False, None))

    def test_lists(self) -> None:
        """
        Lists, each entry once, in the order given.
        """
        options = parsed("--sizes", "4K,64,4096", "--subjects", "unix,sdp", "--placements", "same")
        self.assertEqual(options.sizes, [4096, 64])
        self.assertEqual([each.name for each in options.subjects], ["unix", "sdp"])
        self.assertEqual([each.name for each in options.placements], ["same"])

    def test_refused(self) -> None:
        """
        An unknown word is named, with those that are known.
        """
        for arguments, said in (
            (["--subjects", "sdp,quic"], "'quic' is none of tcp, tcp-nodelay, sdp,"),
            (["--placements", "free"], "'free' is none of split, same"),
            (["--sizes", "64,"], "'' is no size from 1 to 8M"),
            (["--rounds", "0"], "'0' is no number from 1 to 1000"),
            (["--seconds", "61"], "'61' is no time from 0 to 60 seconds"),
        ):
            refused = refusal(self, perf.commandLine().parse_args, "compare", *arguments)
            self.assertIn(said, refused)

    def test_units(self) -> None:
        """
        Sizes in words.
        """
        said = [inUnits(size) for size in (64, 1000, 4096, 65536, 1 << 20)]
        self.assertEqual(said, ["64 bytes", "1000 bytes", "4 KiB", "64 KiB", "1 MiB"])


class DeviceTests(SynchronousTestCase):
    """
    C{--device}.
    """

    def endpoints(self, device: str) -> dict[str, tuple[str, str]]:
        """
        @return: those of all subjects that are left, by their names.
        """
        chosen = Comparison(parsed("--device", device, "--placements", "same")).subjects
        return {each.name: (each.server, each.client) for each in chosen}

    def test_named(self) -> None:
        """
        What has an endpoint of ours is on the device, and at its address; others are where they were.
        """
        registry.addDevice("roce7", "roce", "192.0.2.7")
        self.addCleanup(registry.removeDevice, "roce7")
        found = self.endpoints("roce7")
        at = "192.0.2.7"
        self.assertEqual(found["ib"], (f"ib:0:interface={at}:device=roce7", f"ib:{at}:{{port}}:device=roce7"))
        self.assertEqual(found["sdp-epoll"][1], f"sdp:{at}:{{port}}:device=roce7")
        self.assertEqual(found["tcp"], ("tcp:0:interface=127.0.0.1", "tcp:127.0.0.1:{port}"))

    def test_withoutAddress(self) -> None:
        """
        A device without an address of its own is reached by that of the loopback; the results name it.
        """
        [one] = Comparison(parsed("--device", "shm0", "--subjects", "ib")).subjects
        self.assertEqual(one.title, "ib:, shm0")
        self.assertEqual(self.endpoints("shm0")["sdp"][1], "sdp:127.0.0.1:{port}:device=shm0")

    def test_notChosen(self) -> None:
        """
        What cannot name a device is left out.
        """
        left = self.endpoints("shm0")
        self.assertEqual({"switched", "aio"} & set(left), set())
        with self.assertRaises(ProgramError) as raised:
            Comparison(parsed("--device", "shm0", "--subjects", "aio"))
        self.assertEqual(str(raised.exception), "there is nothing to measure: aio: its device is not chosen")

    def test_unknown(self) -> None:
        """
        A device that there is none of is refused by name.
        """
        with self.assertRaises(ProgramError) as raised:
            Comparison(parsed("--device", "nosuch"))
        self.assertIn("there is no device 'nosuch'", str(raised.exception))


class FakePair:
    """
    A pair of processes that answers at once, and fails where it is told to.

    @cvar log: the steps of all pairs, in order.
    @cvar failing: the steps that fail, by the subject's name.
    @cvar patiences: the seconds for which they may do nothing.
    """

    log: list[tuple[Any, ...]] = []
    failing: dict[str, str] = {}
    patiences: set[float] = set()

    def __init__(self, subject: Subject, folder: str, patience: float) -> None:
        self.name, self.patience = subject.name, patience
        FakePair.patiences.add(patience)

    def step(self, name: str, *details: Any) -> None:
        """
        Note a step.
        """
        self.log.append((name, self.name, *details))
        if self.failing.get(self.name) == name:
            raise WorkerError(f"it cannot {name}")

    def start(self) -> None:
        """
        Start.
        """
        self.step("start")

    @property
    def processes(self) -> list[int]:
        """
        None.
        """
        return []

    def ready(self, patience: Patience) -> None:
        """
        Be ready.
        """
        self.step("ready")

    def warm(self) -> None:
        """
        Be warm.
        """
        self.step("warm")

    def place(self, placement: Placement) -> None:
        """
        Go to some CPUs.
        """
        self.step("place", placement.name)

    def measure(self, measure: str, size: int, seconds: float) -> dict[str, float]:
        """
        Measure.
        """
        self.step("measure", measure, size)
        return {"p50": 5.0, "MB/s": 7.0}

    def end(self) -> None:
        """
        End.
        """
        self.step("end")


class RoundTests(SynchronousTestCase):
    """
    The rounds, with pairs that are no processes.
    """

    def setUp(self) -> None:
        """
        Have no processes, and two CPUs.
        """
        self.patch(comparison, "Pair", FakePair)
        self.patch(FakePair, "log", [])
        self.patch(FakePair, "failing", {})
        self.patch(os, "sched_getaffinity", lambda _: {0, 1})

    def run_(self, *arguments: str) -> tuple[Comparison, Any]:
        """
        @return: a comparison that has run, and its results.
        """
        comparison = Comparison(parsed(*arguments))
        return comparison, comparison.run(self.mktemp(), lambda _: None)

    def done(self, step: str) -> list[tuple[Any, ...]]:
        """
        @return: the details of all steps with this name.
        """
        return [each[1:] for each in FakePair.log if each[0] == step]

    def test_patience(self) -> None:
        """
        Processes may do nothing for as long as is asked.
        """
        FakePair.patiences.clear()
        self.run_("--rounds", "1", "--sizes", "64", "--subjects", "ib,tcp", "--patience", "90")
        self.assertEqual(FakePair.patiences, {90.0})
        self.run_("--rounds", "1", "--sizes", "64", "--subjects", "ib,tcp")
        self.assertEqual(FakePair.patiences, {90.0, START_SECONDS})

    def test_rounds(self) -> None:
        """
        Each round has new pairs; all subjects of a row follow each other, and every other round turns them.
        """
        self.run_("--rounds", "2", "--sizes", "64", "--subjects", "ib,tcp")
        one, other = [("ib",), ("tcp",)], [("tcp",), ("ib",)]
        # ExitStack ends the last one first.
        self.assertEqual((self.done("start"), self.done("end")), (other * 2, one * 2))
        self.assertEqual([each[0] for each in self.done("measure")], ["ib", "tcp"] * 4 + ["tcp", "ib"] * 4)
        self.assertEqual(
            self.done("place")[:4], [(name, place) for place in ("split", "same") for name in ("tcp", "ib")]
        )

    def test_results(self) -> None:
        """
        Each row has the figure that is meant; ratios are to TCP with NODELAY, where it takes part.
        """
        for names, baseline in (("sdp,tcp-nodelay", "tcp-nodelay"), ("sdp,unix", "sdp")):
            _, results = self.run_("--rounds", "3", "--sizes", "64", "--subjects", names)
            self.assertEqual(results.baseline, baseline)
            [latency, throughput, *_] = results.rows.values()
            self.assertEqual(latency["sdp"].rounds, (5.0,) * 3)
            self.assertEqual(throughput["sdp"].rounds, (7.0,) * 3)

    def test_long(self) -> None:
        """
        Messages longer than a subject's are not measured.
        """
        for names, count in (("ib,tcp", 1), ("ib", 0)):
            _, results = self.run_("--rounds", "1", "--sizes", "1M,64", "--subjects", names)
            sizes = [row.size for row in results.rows]
            self.assertEqual(sizes.count(1 << 20), count * 4)
            self.assertNotIn(1 << 20, [each[2] for each in self.done("measure") if each[0] == "ib"])

    def test_failure(self) -> None:
        """
        A subject that fails, at any step, is out of the results, and the others are in; all are ended.
        """
        for step in ("ready", "warm", "place", "measure"):
            FakePair.log.clear()
            FakePair.failing = {"sdp": step}
            comparison, results = self.run_("--rounds", "2", "--subjects", "tcp,sdp,unix")
            self.assertEqual(comparison.failures, {"sdp": f"it cannot {step}"})
            self.assertEqual(results.absent, {"sdp": f"it cannot {step}"})
            self.assertEqual({name for row in results.rows.values() for name in row}, {"tcp", "unix"})
            self.assertEqual(len(self.done("start")), len(self.done("end")))

    def test_allFail(self) -> None:
        """
        If all fail there is an error.
        """
        FakePair.failing = {"sdp": "ready"}
        error = self.assertRaises(ProgramError, self.run_, "--subjects", "sdp")
        self.assertEqual(str(error), "every subject failed, sdp first: it cannot ready")

    def test_absent(self) -> None:
        """
        Subjects and placements that are not possible here are left out, and named.
        """
        self.patch(subjects, "find_spec", lambda _: None)
        self.patch(os, "sched_getaffinity", lambda _: {0})
        _, results = self.run_("--subjects", "tcp,uvloop", "--rounds", "1")
        self.assertEqual(results.absent, {"uvloop": "uvloop is not installed", "split": "there is one CPU"})
        error = self.assertRaises(ProgramError, self.run_, "--subjects", "uvloop")
        self.assertIn("there is nothing to measure: uvloop: uvloop is not installed", str(error))


class ProcessTestCase(SynchronousTestCase):
    """
    The command, as a process.
    """

    def setUp(self) -> None:
        """
        Have a place for temporary files.
        """
        self.temporary = Path(self.mktemp()).resolve()
        self.temporary.mkdir()
        self.environment = dict(os.environ, TMPDIR=str(self.temporary))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """
        @return: the command, leader of a process group of its own.
        """
        command = ["compare", "--placements", "same", "--sizes", "64", *arguments]
        process = begun(self, self.environment, "import os; os.setsid(); " + programOf("perf.perf"), *command)
        self.addCleanup(self.gone, process)
        return process

    def gone(self, process: subprocess.Popen[str]) -> None:
        """
        Assert that no process and no file of the command is left.
        """
        process.wait(HANG_SECONDS)
        self.assertRaises(ProcessLookupError, os.killpg, process.pid, 0)
        self.assertEqual(os.listdir(self.temporary), [])


class ProcessTests(ProcessTestCase):
    """
    How it ends; C{tests/soak} has what it measures.
    """

    def test_interrupt(self) -> None:
        """
        Ctrl-C ends all processes; a picture that cannot be is refused before they start.
        """
        process = self.start("--subjects", "sdp", "--seconds", "10")
        refused = self.start("--plot", "/nowhere/it.svg")
        assert process.stdout is not None
        self.assertIn("1 subjects; 64 bytes; 5 rounds, 10 s", process.stdout.readline())
        # The processes are being started.
        waitUntil(lambda: any(self.temporary.glob("*/0/sdp/*.log")))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=HANG_SECONDS)
        self.assertEqual((process.returncode, err), (130, ""))
        out, err = refused.communicate(timeout=HANG_SECONDS)
        self.assertEqual((refused.returncode, out), (1, ""))
        self.assertEqual(err, "ib-perf: /nowhere/it.svg: there is no such folder\n")
