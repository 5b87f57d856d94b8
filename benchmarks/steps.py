"""
The cost of each step: C{python -m benchmarks.steps}.

One process has both ends, on the C{ib} reactor with its real fabric, and the steps are called
one by one.  The cost of a step with all that it calls is measured; its own cost is the
difference.  A figure is the least of many runs, each of many calls: CPU time, or where single
calls are timed that of the wall clock, which in the least is the same: nothing here sleeps.  The
bare ring needs two CPUs and two processes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from attrs import define, field
from twisted.application.reactors import installReactor

from benchmarks.conditions import describe, inWords


@define
class Table:
    """
    A table of steps.

    @ivar steps: Name, value, and what else there is to say.
    """

    title: str
    unit: str
    steps: list[tuple[str, float, str]] = field(factory=list)

    def add(self, name: str, value: float, remark: str = "") -> float:
        """
        Add a step, or a difference of others.

        @return: the value.
        """
        self.steps.append((name, value, remark))
        return value

    def asMarkdown(self) -> Iterable[str]:
        """
        Its lines.
        """
        yield f"\n## {self.title}\n"
        yield f"| step | {self.unit} | |"
        yield "|---|---|---|"
        for name, value, remark in self.steps:
            yield f"| {name} | {value:.0f} | {remark} |"


def _inReactor(measure: Callable[[Any], Any]) -> Any:
    """
    Run something that returns a Deferred in the C{ib} reactor.

    @return: its result.
    @raise SystemExit: it failed.
    """
    from twisted.internet import reactor as installed

    reactor: Any = installed
    results: list[Any] = []

    def ended(result: Any) -> None:
        """
        Whatever it is.
        """
        results.append(result)
        reactor.stop()

    reactor.callWhenRunning(lambda: measure(reactor).addBoth(ended))
    reactor.run()
    [result] = results
    if hasattr(result, "printTraceback"):
        result.printTraceback(sys.stderr)
        raise SystemExit(1)
    return result


def run(runs: int) -> list[Table]:
    """
    Measure everything.

    @param runs: Of how many runs the least counts.
    """
    from twisted.internet.protocol import Factory

    from benchmarks import bulksteps, connectsteps, copysteps, messagesteps, packetsteps, verbssteps

    Factory.noisy = False
    # Before there is a device: these fork.
    bare = [copysteps.acrossProcesses(runs), *bulksteps.measure(runs)]

    def measure(reactor: Any) -> Any:
        """
        The steps that need the reactor.
        """
        tables: list[Table] = []
        done = messagesteps.measure(reactor, runs)
        done.addCallback(tables.extend)
        done.addCallback(lambda _: copysteps.measure(reactor, runs))
        done.addCallback(tables.extend)
        done.addCallback(lambda _: tables.extend(bare))
        done.addCallback(lambda _: connectsteps.measure(reactor, runs))
        done.addCallback(tables.extend)
        done.addCallback(lambda _: tables.extend(verbssteps.measure(runs)))
        done.addCallback(lambda _: packetsteps.measure(reactor, runs))
        done.addCallback(tables.extend)
        return done.addCallback(lambda _: tables)

    found: list[Table] = _inReactor(measure)
    return found


def main(arguments: list[str] | None = None) -> None:
    """
    Measure, print the tables, write the files.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps")
    parser.add_argument("--runs", type=int, default=40, help="runs, of which the least counts (40)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    machine = describe()
    with tempfile.TemporaryDirectory(prefix="steps-") as folder:
        os.chmod(folder, 0o700)
        os.environ["TWISTED_IB_RUN_DIR"] = folder
        installReactor("ib")
        tables = run(options.runs)
    lines = ["# What each step costs", "", f"{inWords(machine)}; least of {options.runs} runs."]
    for table in tables:
        lines.extend(table.asMarkdown())
    text = "\n".join(lines) + "\n"
    print(text)
    if options.markdown:
        options.markdown.write_text(text)
    if options.json:
        found = [{"title": each.title, "unit": each.unit, "steps": each.steps} for each in tables]
        options.json.write_text(json.dumps({"machine": machine, "tables": found}, indent=1))


if __name__ == "__main__":
    main()
