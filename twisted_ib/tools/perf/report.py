"""
What C{ib-perf} prints: a table as perftest's, or JSON; and a progress bar, on a terminal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from attrs import frozen

from twisted_ib.tools.perf.method import Test
from twisted_ib.tools.perf.parameters import Parameters
from twisted_ib.tools.perf.runs import Latency

# In 80 columns.
_COLUMNS = ("#bytes", "#iterations", "p50[usec]", "p99[usec]", "p99.9[usec]", "BW[MB/sec]", "MsgRate[/s]")
_LINE = "{:>8} {:>11} {:>10} {:>10} {:>11} {:>11} {:>12}"


@frozen
class Bandwidth:
    """
    How fast messages were.

    @ivar messages: how many.
    @ivar bytes: what they had together.
    @ivar seconds: from the first to the last one's arrival.
    """

    messages: int
    bytes: int
    seconds: float

    @property
    def megabytes(self) -> float:
        """
        Millions of bytes per second.
        """
        return self.bytes / self.seconds / 1e6

    @property
    def rate(self) -> float:
        """
        Messages per second.
        """
        return self.messages / self.seconds


@frozen
class Row:
    """
    What was measured with one size.

    @ivar size: the bytes of a message.
    @ivar latency: of messages one after the other.
    @ivar bandwidth: of messages as fast as they go.
    """

    size: int
    latency: Latency
    bandwidth: Bandwidth

    def line(self) -> str:
        """
        @return: the line of the table.
        """
        times = [f"{time / 1e3:.2f}" for time in (self.latency.p50, self.latency.p99, self.latency.p999)]
        speed = self.bandwidth
        return _LINE.format(
            self.size, self.latency.count, *times, f"{speed.megabytes:.2f}", f"{speed.rate:.0f}"
        )

    def json(self) -> dict[str, Any]:
        """
        @return: the same for programs; times in microseconds.
        """
        latency, speed = self.latency, self.bandwidth
        return {
            "bytes": self.size,
            "latency": {
                "messages": latency.count,
                "min_usec": latency.minimum / 1e3,
                "p50_usec": latency.p50 / 1e3,
                "p99_usec": latency.p99 / 1e3,
                "p99_9_usec": latency.p999 / 1e3,
                "max_usec": latency.maximum / 1e3,
            },
            "bandwidth": {
                "messages": speed.messages,
                "bytes": speed.bytes,
                "seconds": speed.seconds,
                "MB_per_sec": speed.megabytes,
                "messages_per_sec": speed.rate,
            },
        }


def heading(test: Test, terms: Parameters, device: str | None) -> str:
    """
    @param test: the subcommand.
    @param terms: what is measured.
    @param device: the HCA; L{None} if it has none.

    @return: what stands above the table.
    """
    length = f"{terms.iterations} messages" if terms.seconds is None else f"{terms.seconds:g} s"
    what = "connections" if device is None else "queue pairs"
    where = "" if device is None else f"device {device}, "
    return "\n".join(
        (
            f"ib-perf {test.name}: {where}{what} {terms.queuePairs}, {length} for each number",
            f"latency is of {test.latencyOf}",
            _LINE.format(*_COLUMNS),
        )
    )


def described(test: Test, terms: Parameters, device: str | None) -> dict[str, Any]:
    """
    @param test: the subcommand.
    @param terms: what is measured.
    @param device: the HCA; L{None} if it has none.

    @return: the same for programs.
    """
    return {
        "test": test.name,
        "device": device,
        "queue_pairs": terms.queuePairs,
        "iterations": terms.iterations,
        "seconds": terms.seconds,
        "latency_of": test.latencyOf,
    }


def write(text: str) -> None:
    """
    @param text: lines for standard output.

    @raise SystemExit: nobody reads them any more.
    """
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Else the interpreter complains too, when it writes what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None


class Progress:
    """
    A bar for all measurements of a test, on a terminal; else nothing.

    @ivar interval: how often to show it, in seconds.
    """

    def __init__(self, stream: Any, measurements: int) -> None:
        """
        @param stream: where it goes if that is a terminal.
        @param measurements: how many there are.
        """
        self._progress: Any = None
        self._task: Any = None
        self._done = -1
        self.interval = 1.0
        if stream.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
            console = Console(file=stream, highlight=False)
            # No refresh thread: it would disturb what is measured.
            self._progress = Progress(*columns, console=console, auto_refresh=False, transient=True)
            self._task = self._progress.add_task("", total=measurements)
            self._progress.start()
            self.interval = 0.1

    def next(self, what: str) -> None:
        """
        @param what: the measurement that begins.
        """
        self._done += 1
        if self._progress is not None:
            self._progress.update(self._task, description=what, completed=self._done)
            self._progress.refresh()

    def show(self, fraction: Callable[[], float]) -> None:
        """
        @param fraction: says how much of the measurement is done.
        """
        if self._progress is not None:
            self._progress.update(self._task, completed=self._done + min(fraction(), 1.0))
            self._progress.refresh()

    def close(self) -> None:
        """
        Take it away; harmless when repeated.
        """
        if self._progress is not None:
            self._progress.stop()
