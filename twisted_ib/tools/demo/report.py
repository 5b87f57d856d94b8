"""
The output of C{ib-demo}: a progress bar on a terminal, and a table.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import attrs
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table
from twisted.internet.interfaces import IReactorTime

from twisted_ib.tools.demo.probe import Fetched, RoundTripTimes

REFRESHES_PER_SECOND = 10

TITLES = ("", "device", "queue\npairs", "bytes", "messages", "throughput", "p50", "p99")


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

    def cells(self) -> list[str]:
        """
        @return: the line's texts.
        """
        # Decimal megabytes, as network throughput is usually given.
        speed = self.fetched.size / self.fetched.seconds / 1e6
        return [
            self.name,
            self.device,
            self.queuePairs,
            f"{self.fetched.size:,}",
            self.messages,
            f"{speed:,.0f} MB/s",
            f"{self.latency.p50 * 1e6:,.1f} us",
            f"{self.latency.p99 * 1e6:,.1f} us",
        ]


def makeConsole() -> Console:
    """
    @return: where to print.
    """
    if sys.stdout.isatty():
        return Console(highlight=False)
    # Without a terminal: no escape codes whatever FORCE_COLOR and TERM say, and lines that are not wrapped
    # at 80.
    return Console(highlight=False, force_terminal=False, color_system=None, no_color=True, width=120)


def makeTable(rows: Iterable[Row], terminal: bool) -> Table:
    """
    @param rows: its lines.
    @param terminal: whether to fit it into 80 columns.
    """
    table = Table(box=SIMPLE_HEAD if terminal else None, pad_edge=False)
    table.padding = 0 if terminal else (0, 2, 0, 0)
    for title in TITLES:
        table.add_column(title, justify="right" if title else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row.cells())
    return table


@contextmanager
def progressBar(
    console: Console, reactor: IReactorTime, name: str, total: int
) -> Iterator[Callable[[int], None]]:
    """
    Show the progress of a transfer, if on a terminal.

    @param reactor: for its clock.
    @param total: the bytes to come.
    @return: a context manager; its value is called with the bytes of each piece that arrives.
    """
    if not console.is_terminal:
        yield lambda size: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    # No refresh thread: it would compete for the interpreter lock with the reactor that is measured, and
    # fork(2) with threads is unsafe.
    with Progress(*columns, console=console, auto_refresh=False) as progress:
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
