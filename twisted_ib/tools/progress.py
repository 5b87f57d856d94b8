"""
A progress bar on a terminal, for commands that measure.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any


class Progress:
    """
    A progress bar over all measurements; nothing if the stream is not a terminal, or without rich.

    @ivar interval: Seconds between two updates.
    """

    def __init__(self, stream: Any, measurements: int) -> None:
        self._progress: Any = None
        self._task: Any = None
        self._done = -1
        # Also without a bar: the timer of C{ib-perf} folds latency samples into their histogram.
        self.interval = 1.0
        # Imported only for a terminal: rich is slow to import, and need not be installed.
        if stream.isatty() and find_spec("rich"):
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
            console = Console(file=stream, highlight=False)
            # No refresh thread: it would take the interpreter lock from what is measured.
            self._progress = Progress(*columns, console=console, auto_refresh=False, transient=True)
            self._task = self._progress.add_task("", total=measurements)
            self._progress.start()
            self.interval = 0.1

    def next(self, what: str) -> None:
        """
        Begin a measurement.
        """
        self._done += 1
        if self._progress is not None:
            self._progress.update(self._task, description=what, completed=self._done)
            self._progress.refresh()

    def show(self, fraction: Callable[[], float]) -> None:
        """
        Update the bar.

        @param fraction: Returns the finished part of the measurement, 0 to 1.
        """
        if self._progress is not None:
            self._progress.update(self._task, completed=self._done + min(fraction(), 1.0))
            self._progress.refresh()

    def close(self) -> None:
        """
        Remove the bar; harmless when repeated.
        """
        if self._progress is not None:
            self._progress.stop()
