"""
The output of C{ib-demo}: a progress bar on a terminal, and a table.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import attrs
from twisted.internet.interfaces import IReactorTime

from twisted_ib.tools.demo.probe import Fetched, RoundTripTimes

REFRESHES_PER_SECOND = 10

TITLES = (
    ("", "", "queue", "", "", "", "", ""),
    ("", "device", "pairs", "bytes", "messages", "throughput", "p50", "p99"),
)


@attrs.define
class Row:
    """
    A line of the table.

    @ivar device: the HCA, for SDP.
    @ivar queuePairs: how many queue pairs the client used.
    @ivar messages: how many SDP messages were sent and received.
    """

    name: str
    fetched: Fetched
    latency: RoundTripTimes
    device: str = "-"
    queuePairs: str = "-"
    messages: str = "-"

    def cells(self) -> tuple[str, ...]:
        """
        @return: the line's texts.
        """
        # Decimal megabytes, as network throughput is usually given.
        speed = self.fetched.size / self.fetched.seconds / 1e6
        return (
            self.name,
            self.device,
            self.queuePairs,
            f"{self.fetched.size:,}",
            self.messages,
            f"{speed:,.0f} MB/s",
            f"{self.latency.p50 * 1e6:,.1f} us",
            f"{self.latency.p99 * 1e6:,.1f} us",
        )


def makeTable(rows: Iterable[Row]) -> str:
    """
    @return: the rows under their titles, columns to the right but for the first.
    """
    lines = [*TITLES, *(row.cells() for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    # One space between: the longest rows that are to be expected fit into 80 columns.
    return "\n".join(
        " ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


@contextmanager
def progressBar(reactor: IReactorTime, name: str, total: int) -> Iterator[Callable[[int], None]]:
    """
    Show the progress of a transfer, if on a terminal and rich is installed.

    @param reactor: for its clock.
    @param total: the bytes to come.
    @return: a context manager; its value is called with the bytes of each piece that arrives.
    """
    if not (sys.stdout.isatty() and find_spec("rich")):
        yield lambda size: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    # No refresh thread: it would compete for the interpreter lock with the reactor that is measured, and
    # fork(2) with threads is unsafe.
    with Progress(*columns, console=Console(highlight=False), auto_refresh=False) as progress:
        task = progress.add_task(name, total=total)
        shown = reactor.seconds()

        def advance(size: int) -> None:
            nonlocal shown
            progress.advance(task, size)
            if reactor.seconds() - shown > 1 / REFRESHES_PER_SECOND:
                shown = reactor.seconds()
                progress.refresh()

        yield advance
        progress.refresh()
